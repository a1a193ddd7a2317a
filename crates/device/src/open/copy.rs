//! Copies inside of the device (commands §6.10): sources are read, then programmed at their destinations.
//!
//! Place in the data flow: the destinations are accepted when the command arrives and hold back later pages of their chunks until all
//! sources are read; from then on they are programs like others.
//!
//! Invariant: contents are taken when the copy arrives, as those of a read are; a die serves reads that are queued before it erases
//! their block.

use super::job::{Cx, Job, Source};
use super::state::{Copying, OpenChannel, fail};
use crate::flash::{Class, OpKind, Purpose, UnitImage};
use crate::geometry::{ChunkId, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::PpaCopy;
use flashweir_core::{Address, DeviceError, Payload, Ppa};

impl OpenChannel {
    pub(super) fn start_copy(&mut self, cx: &mut Cx, command: u32, copy: &PpaCopy) {
        cx.accept(command);
        cx.metrics.host_copies += 1;
        cx.metrics.host_units_copied += copy.sources.len() as u64;
        let pages = copy.destinations.len() as u32 / cx.geometry.units_per_page;
        cx.front.commands.get_mut(command).left = pages;
        let number = self.next_copy;
        self.next_copy += 1;
        let reads = pages_of(cx, &copy.sources);
        let mut chunks: Vec<ChunkId> =
            copy.destinations.iter().map(|place| cx.geometry.chunk_of(*place).0).collect();
        chunks.dedup();
        let images = self.sources(cx, command, copy);
        let copying = Copying {
            command,
            reads: reads.len() as u32,
            programs: pages,
            images,
            chunks,
            is_answered: false,
        };
        self.copies.insert(number, copying);
        self.accept_pages(cx, Source::Copy { copy: number }, &copy.destinations);
        let ops = reads
            .into_iter()
            .map(|(at, units, first)| {
                cx.metrics.pages_read += 1;
                self.note_refresh(cx, first);
                let what = (Purpose::HostRead { command }, Job::CopyRead { copy: number });
                cx.given((OpKind::Read, Class::Read), at, units * cx.geometry.unit_bytes as u32, what)
            })
            .collect();
        self.push_all(cx, ops);
    }

    /// Contents and records for the destinations. That of a source that cannot be read is filled with padding, and the command fails.
    fn sources(&self, cx: &mut Cx, command: u32, copy: &PpaCopy) -> Vec<UnitImage> {
        let mut images = Vec::new();
        for (nth, place) in copy.sources.iter().enumerate() {
            let unit = cx.geometry.open_unit(*place);
            let media = &cx.flash.media;
            let content = if media.tracks_contents() { media.payload(unit) } else { Some(Payload::Zero) };
            let Some((content, own)) = content.zip(media.record(unit)) else {
                cx.metrics.uncorrectable_reads += 1;
                fail(cx, command, DeviceError::Uncorrectable { at: Address::Ppa(*place) });
                images.push(UnitImage::pad());
                continue;
            };
            let record = match &copy.records {
                Some(records) => records[nth],
                None if cx.has_planted(PlantedBug::CopyForgetsRecords) => {
                    OobRecord { owner: Owner::Pad, seq: 0, member: None }
                }
                None => own,
            };
            images.push(UnitImage::with_record(record, content));
        }
        images
    }

    /// A page of sources was read.
    pub(super) fn copy_read(&mut self, cx: &mut Cx, copy: u64) {
        let copying = self.copies.get_mut(&copy).expect("a copy ends after its reads");
        copying.reads -= 1;
        if copying.reads > 0 {
            return;
        }
        if cx.has_planted(PlantedBug::EarlyCopy) {
            copying.is_answered = true;
            cx.complete(copying.command);
        }
        let chunks = std::mem::take(&mut copying.chunks);
        self.release(cx, &chunks);
    }

    /// A page of destinations was programmed, or has failed.
    pub(super) fn copy_programmed(&mut self, copy: u64) {
        let copying = self.copies.get_mut(&copy).expect("a copy ends after its programs");
        copying.programs -= 1;
        if copying.programs == 0 {
            self.copies.remove(&copy);
        }
    }
}

/// The flash pages of places, in order, each with the number of its units that are read together and its first place.
pub(super) fn pages_of(cx: &Cx, places: &[Ppa]) -> Vec<(PageAddr, u32, Ppa)> {
    let mut pages: Vec<(PageAddr, u32, Ppa)> = Vec::new();
    for place in places {
        let (at, _) = cx.geometry.open_page(*place);
        match pages.last_mut() {
            Some((last, units, _)) if *last == at => *units += 1,
            _ => pages.push((at, 1, *place)),
        }
    }
    pages
}
