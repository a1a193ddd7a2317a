//! Checks of the open channel: commands that it refuses before anything has changed.

use super::chunks::is_offline;
use super::job::Cx;
use super::state::OpenChannel;
use crate::config::{OpenVersion, PersistPolicy, PointerMove};
use crate::front::check_handle;
use crate::geometry::ChunkId;
use crate::planted::PlantedBug;
use flashweir_core::command::{OPEN_NAMESPACE, OutOfRange, PLACES_MAX, PpaWrite};
use flashweir_core::oob::OobRecord;
use flashweir_core::open::{BlockMark, OpenError, PpaCopy};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, Command, Data, DeviceError, Op, Ppa};
use std::collections::{BTreeMap, BTreeSet};

type Verdict = Result<(), DeviceError>;

impl OpenChannel {
    /// See [`crate::firmware::Firmware::check`].
    pub(super) fn verdict(&self, cx: &Cx, command: &Command) -> Verdict {
        let lacks = |what| Err(DeviceError::NotSupported(what));
        let is_12 = cx.config.open.version == OpenVersion::V12;
        match &command.op {
            Op::PpaRead { .. } | Op::PpaWrite(_) | Op::PpaErase(_) | Op::OpenGeometry | Op::Flush => {}
            Op::PpaCopy(_) | Op::ChunkReport { .. } | Op::ChunkNotices { .. } if is_12 => {
                return lacks("copies, reports and notices of chunks: it is one of OCSSD 1.2");
            }
            Op::BlockMarks { .. } | Op::MarkBlocks(_) if !is_12 => {
                return lacks("a table of bad blocks: it is one of OCSSD 2.0");
            }
            Op::PpaCopy(_)
            | Op::ChunkReport { .. }
            | Op::ChunkNotices { .. }
            | Op::BlockMarks { .. }
            | Op::MarkBlocks(_) => {}
            Op::Read { .. } | Op::Write { .. } | Op::WriteZeroes { .. } | Op::Trim { .. } => {
                return lacks("a page namespace");
            }
            Op::RFlush(_) => return lacks("range flush"),
            Op::Barrier => return lacks("barrier"),
            Op::Share(_) => return lacks("SHARE"),
            Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. } | Op::SegReport { .. } => {
                return lacks("append-only segments");
            }
        }
        cx.front.check_order(command, PersistPolicy::None)?;
        check_handle(command, 1)?;
        if command.ns != OPEN_NAMESPACE {
            return Err(DeviceError::InvalidField("the open channel, the only namespace here, is number 2"));
        }
        self.check_arguments(cx, &command.op)
    }

    fn check_arguments(&self, cx: &Cx, op: &Op) -> Verdict {
        match op {
            Op::PpaRead { ppas, blocks } => {
                check_places(cx, ppas)?;
                check_length(cx, ppas, *blocks)?;
                self.check_read(cx, ppas)
            }
            Op::PpaWrite(write) => {
                let PpaWrite { ppas, blocks, records, data } = &**write;
                check_places(cx, ppas)?;
                check_length(cx, ppas, *blocks)?;
                check_records(ppas, records)?;
                check_data(cx, ppas, data)?;
                self.check_write(cx, ppas)
            }
            Op::PpaErase(ppas) => {
                check_places(cx, ppas)?;
                self.check_reset(cx, ppas)
            }
            Op::PpaCopy(copy) => {
                let PpaCopy { sources, destinations, records } = &**copy;
                check_places(cx, sources)?;
                check_places(cx, destinations)?;
                if sources.len() != destinations.len() {
                    return Err(DeviceError::InvalidField("each source of a copy has one destination"));
                }
                records.as_ref().map_or(Ok(()), |records| check_records(destinations, records))?;
                self.check_read(cx, sources)?;
                self.check_write(cx, destinations)
            }
            Op::ChunkReport { first, count } => {
                let chunks = cx.geometry.open.chunks;
                match *count > 0 && first.checked_add(*count).is_some_and(|end| end <= chunks) {
                    true => Ok(()),
                    false => Err(DeviceError::InvalidField("the device does not have these chunks")),
                }
            }
            Op::BlockMarks { parallel_unit } => match *parallel_unit < cx.geometry.parallel_units() {
                true => Ok(()),
                false => Err(DeviceError::InvalidField("the device does not have this parallel unit")),
            },
            Op::MarkBlocks(marks) => {
                check_places(cx, &marks.places)?;
                self.check_marks(cx, &marks.places, marks.mark)
            }
            _ => Ok(()),
        }
    }

    /// Checks that each unit has been programmed, is given back by the flash or by the memory of the device, and that no reset of its
    /// chunk was accepted.
    fn check_read(&self, cx: &Cx, places: &[Ppa]) -> Verdict {
        for place in places {
            let at = Address::Ppa(*place);
            let (page, _) = cx.geometry.open_page(*place);
            let (chunk, _) = cx.geometry.chunk_of(*place);
            let is_erasing = self.chunks[chunk].eraser.is_some();
            if is_erasing && !cx.has_planted(PlantedBug::ReadPassesErase) {
                return Err(DeviceError::NotWritten { at });
            }
            let is_recent = self.is_recent(cx, *place);
            match cx.config.open.version {
                OpenVersion::V12 if is_recent => continue,
                OpenVersion::V20 if is_recent && !cx.has_planted(PlantedBug::RecentUnitsRead) => {
                    return Err(DeviceError::Open { at, what: OpenError::TooRecent });
                }
                OpenVersion::V12 | OpenVersion::V20 => {}
            }
            if page.page >= cx.flash.media.pages_written(page.block) {
                return Err(DeviceError::NotWritten { at });
            }
        }
        Ok(())
    }

    /// Whether a unit is one of the last ones of an open chunk, which its flash does not give back (open-channel §6.4).
    pub(super) fn is_recent(&self, cx: &Cx, place: Ppa) -> bool {
        let cached = cx.config.open.cached_units;
        if cached == 0 {
            return false;
        }
        let (id, unit) = cx.geometry.chunk_of(place);
        let chunk = &self.chunks[id];
        let per_page = cx.geometry.units_per_page;
        let end = self.chunks.shown_pointer(cx, id) * per_page;
        self.chunks.is_open(chunk) && unit < chunk.accepted * per_page && unit + cached >= end
    }

    /// Checks that the addresses are whole write units, each at the write pointer of its chunk.
    fn check_write(&self, cx: &Cx, places: &[Ppa]) -> Verdict {
        let write_pages = cx.geometry.open.write_pages;
        let write_units = (write_pages * cx.geometry.units_per_page) as usize;
        let mut pointers: BTreeMap<ChunkId, u32> = BTreeMap::new();
        let mut opens = 0;
        for units in places.chunks(write_units) {
            let first = units[0];
            let (id, unit) = cx.geometry.chunk_of(first);
            let at = Address::Ppa(first);
            let is_whole = (unit as usize).is_multiple_of(write_units)
                && units.len() == write_units
                && units.iter().zip(first.0..).all(|(place, number)| place.0 == number);
            if !is_whole {
                return Err(DeviceError::Misaligned { at });
            }
            if is_offline(cx, id) {
                return Err(DeviceError::Open { at, what: OpenError::Offline });
            }
            let page = unit / cx.geometry.units_per_page;
            let chunk = &self.chunks[id];
            let pointer = pointers.entry(id).or_insert_with(|| {
                opens += u32::from(chunk.accepted == 0);
                chunk.accepted
            });
            if chunk.eraser.is_some() || page < *pointer {
                return Err(DeviceError::Overwrite { at });
            }
            if chunk.is_closed_early {
                return Err(DeviceError::Open { at, what: OpenError::ClosedEarly });
            }
            // The chunk waits for the programs of another write.
            let waits = cx.config.open.pointer == PointerMove::Programmed && chunk.programs > 0;
            if page > *pointer || waits {
                let pages = if waits { chunk.pointer(PointerMove::Programmed) } else { *pointer };
                return Err(DeviceError::OutOfOrder { at, expected: pages * cx.geometry.units_per_page });
            }
            *pointer += write_pages;
        }
        let limit = cx.config.open.max_open;
        match limit > 0 && self.chunks.open() + opens > limit && opens > 0 {
            true => Err(DeviceError::TooManyOpen { limit }),
            false => Ok(()),
        }
    }

    /// Checks that the chunks are good and written, named once each, and not being reset already.
    fn check_reset(&self, cx: &Cx, places: &[Ppa]) -> Verdict {
        let mut seen = BTreeSet::new();
        for place in places {
            let (id, _) = cx.geometry.chunk_of(*place);
            let chunk = &self.chunks[id];
            let at = Address::Ppa(*place);
            if !seen.insert(id) {
                return Err(DeviceError::InvalidField("a reset names a chunk twice"));
            }
            if chunk.eraser.is_some() {
                return Err(DeviceError::InvalidField("the chunk is being reset already"));
            }
            if is_offline(cx, id) {
                return Err(DeviceError::Open { at, what: OpenError::Offline });
            }
            // With OCSSD 1.2 a host does not see which chunks are free.
            let is_free = chunk.accepted == 0 && !chunk.is_closed_early;
            if is_free && cx.config.open.version == OpenVersion::V20 {
                return Err(DeviceError::Open { at, what: OpenError::InvalidReset });
            }
        }
        Ok(())
    }

    /// Checks that a host may set this mark: the factory's are not its own, and a bad block stays bad.
    fn check_marks(&self, cx: &Cx, places: &[Ppa], mark: BlockMark) -> Verdict {
        if mark == BlockMark::FactoryBad {
            return Err(DeviceError::InvalidField("only the factory marks blocks as bad from the factory"));
        }
        for place in places {
            let (chunk, _) = cx.geometry.chunk_of(*place);
            if cx.flash.media.is_bad(cx.geometry.open_page(*place).0.block) {
                return Err(DeviceError::InvalidField("a bad block stays bad"));
            }
            let chunk = &self.chunks[chunk];
            if mark.is_bad() && (chunk.programs > 0 || chunk.eraser.is_some()) {
                return Err(DeviceError::InvalidField("the block is being written or erased"));
            }
        }
        Ok(())
    }
}

fn check_places(cx: &Cx, places: &[Ppa]) -> Verdict {
    if places.is_empty() || places.len() > PLACES_MAX {
        return Err(DeviceError::InvalidField("a command names 1 to 64 places"));
    }
    let capacity = cx.geometry.physical_units();
    match places.iter().find(|place| place.0 >= capacity) {
        Some(place) => Err(OutOfRange { at: Address::Ppa(*place), count: 1, capacity }.into()),
        None => Ok(()),
    }
}

fn check_length(cx: &Cx, places: &[Ppa], blocks: u32) -> Verdict {
    match u64::from(blocks) == places.len() as u64 * cx.geometry.lbas_per_unit {
        true => Ok(()),
        false => Err(DeviceError::InvalidField("the length is not that of the places")),
    }
}

fn check_records(places: &[Ppa], records: &[OobRecord]) -> Verdict {
    if records.len() != places.len() {
        return Err(DeviceError::InvalidField("each place has one out-of-band record"));
    }
    match records.iter().all(|record| record.owner.fits()) {
        true => Ok(()),
        false => Err(DeviceError::InvalidField("the number of an owner has no room in its record")),
    }
}

fn check_data(cx: &Cx, places: &[Ppa], data: &Data) -> Verdict {
    let is_long_enough = match data {
        Data::Zero | Data::Pattern(_) => true,
        Data::Bytes(bytes) => {
            bytes.len() as u64 == places.len() as u64 * cx.geometry.lbas_per_unit * LBA_BYTES
        }
        Data::Units(units) => units.len() == places.len(),
    };
    match is_long_enough {
        true => Ok(()),
        false => Err(DeviceError::InvalidField("the data are not as long as the places")),
    }
}
