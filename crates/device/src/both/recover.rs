//! Recovery of both namespaces: what segments own leaves the pool, what else holds anything is pages', and each of the two writes its
//! checkpoint.
//!
//! A block that neither needs, such as one of a deallocated segment whose erase had not ended, goes to the pages, as a block without a valid
//! unit; GC erases it.
//!
//! Invariant: each step leaves what either namespace needs, so a cut between or inside the steps leads to the same contents again.

use super::ftl::Both;
use crate::config::DeviceConfig;
use crate::firmware::{DeviceOptions, Plan, boot};
use crate::flash::plan::duration;
use crate::flash::{Media, RecoveryReport, Torn};
use crate::planted::PlantedBug;
use crate::{page, segment};

/// Reads the medium, and plans what is to be written.
pub(super) fn plan(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Both> {
    assert!(media.tracks_contents(), "recovery needs a medium that keeps contents");
    let (findings, media) = page::read(config, options, media);
    let mut reads = findings.reads.clone();
    let (mut cx, mut firmware) = boot::<Both>(config.clone(), options, media);
    let Both { page, segments, .. } = &mut firmware;
    let mut reading = segment::read(&cx, segments);
    segment::claim(&mut cx, segments, &mut reading);
    let takes_late = cx.has_planted(PlantedBug::SegmentBlockTakenForPage);
    if !takes_late {
        segment::claim_owned(&mut cx, segments, &mut reading);
    }
    cx.front.seq = reading.seq();
    let (mut steps, of_pages) = page::rebuild(&mut cx, page, findings);
    if takes_late {
        segment::claim_owned(&mut cx, segments, &mut reading);
    }
    // Segments see the medium as the steps so far leave it: they may get blocks that these erase.
    let mut after = cx.flash.media.sketch();
    steps.iter().for_each(|step| step.apply(&mut after, Torn::Done));
    let before = std::mem::replace(&mut cx.flash.media, after);
    steps.extend(segment::finish(&mut cx, segments, &mut reading));
    cx.flash.media = before;
    reads.iter_mut().zip(reading.reads()).for_each(|(all, of_segments)| *all += of_segments);
    let report = RecoveryReport {
        pages_read: reads.iter().sum(),
        steps: steps.len() as u64,
        units: of_pages.units + segments.units_found(),
        time: duration(&cx.config, &cx.geometry, &reads, &steps),
    };
    Plan { cx, firmware, steps, report }
}
