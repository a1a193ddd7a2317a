//! Checks of the open channel: commands that it refuses before anything has changed.

use super::firmware::{Cx, OpenChannel};
use crate::config::PersistPolicy;
use crate::front::check_handle;
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::command::{OPEN_NAMESPACE, OutOfRange, PLACES_MAX, PpaWrite};
use flashweir_core::oob::OobRecord;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, Command, Data, DeviceError, Op, Ppa};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, BTreeSet};

type Verdict = Result<(), DeviceError>;

impl OpenChannel {
    /// See [`crate::firmware::Firmware::check`].
    pub(super) fn verdict(&self, cx: &Cx, command: &Command) -> Verdict {
        let lacks = |what| Err(DeviceError::NotSupported(what));
        match &command.op {
            Op::PpaRead { .. } | Op::PpaWrite(_) | Op::PpaErase(_) | Op::Flush => {}
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
        match &command.op {
            Op::PpaRead { ppas, blocks } => {
                check_places(cx, ppas)?;
                check_length(cx, ppas, *blocks)?;
                self.check_read(cx, ppas)
            }
            Op::PpaWrite(write) => {
                let PpaWrite { ppas, blocks, records, data } = &**write;
                check_places(cx, ppas)?;
                check_length(cx, ppas, *blocks)?;
                check_data(cx, ppas, records, data)?;
                self.check_write(cx, ppas)
            }
            Op::PpaErase(ppas) => {
                check_places(cx, ppas)?;
                self.check_erase(cx, ppas)
            }
            _ => Ok(()),
        }
    }

    /// Checks that each unit has been programmed, and that no erase of its block was accepted.
    fn check_read(&self, cx: &Cx, ppas: &[Ppa]) -> Verdict {
        let is_there = |ppa: &Ppa| {
            let at = cx.geometry.page_of(*ppa).0;
            (!self.is_erasing(at.block) || cx.has_planted(PlantedBug::ReadPassesErase))
                && at.page < cx.flash.media.pages_written(at.block)
        };
        match ppas.iter().find(|ppa| !is_there(ppa)) {
            Some(ppa) => Err(DeviceError::NotWritten { at: Address::Ppa(*ppa) }),
            None => Ok(()),
        }
    }

    /// Checks that the addresses are whole pages, each at the write pointer of its block.
    fn check_write(&self, cx: &Cx, ppas: &[Ppa]) -> Verdict {
        let per_page = cx.geometry.units_per_page as usize;
        let mut pointers: BTreeMap<BlockId, u32> = BTreeMap::new();
        for units in ppas.chunks(per_page) {
            let first = units[0];
            let (page, unit) = cx.geometry.page_of(first);
            let at = Address::Ppa(first);
            let is_whole = unit == 0
                && units.len() == per_page
                && units.iter().zip(first.0..).all(|(ppa, number)| ppa.0 == number);
            if !is_whole {
                return Err(DeviceError::Misaligned { at });
            }
            if cx.flash.media.is_bad(page.block) {
                return Err(DeviceError::WriteFault { at });
            }
            let pointer = pointers.entry(page.block).or_insert_with(|| self.write_pointer(page.block));
            if self.is_erasing(page.block) || page.page < *pointer {
                return Err(DeviceError::Overwrite { at });
            }
            if page.page > *pointer {
                return Err(DeviceError::OutOfOrder { at, expected: *pointer * cx.geometry.units_per_page });
            }
            *pointer += 1;
        }
        Ok(())
    }

    /// Checks that the blocks are good, named once each, and not being erased already.
    fn check_erase(&self, cx: &Cx, ppas: &[Ppa]) -> Verdict {
        let mut seen = BTreeSet::new();
        for ppa in ppas {
            let PageAddr { block, .. } = cx.geometry.page_of(*ppa).0;
            if !seen.insert(block) {
                return Err(DeviceError::InvalidField("an erase names a block twice"));
            }
            if self.is_erasing(block) {
                return Err(DeviceError::InvalidField("the block is being erased already"));
            }
            if cx.flash.media.is_bad(block) {
                return Err(DeviceError::WriteFault { at: Address::Ppa(*ppa) });
            }
        }
        Ok(())
    }
}

fn check_places(cx: &Cx, ppas: &[Ppa]) -> Verdict {
    if ppas.is_empty() || ppas.len() > PLACES_MAX {
        return Err(DeviceError::InvalidField("a command names 1 to 64 places"));
    }
    let capacity = cx.geometry.physical_units();
    match ppas.iter().find(|ppa| ppa.0 >= capacity) {
        Some(ppa) => Err(OutOfRange { at: Address::Ppa(*ppa), count: 1, capacity }.into()),
        None => Ok(()),
    }
}

fn check_length(cx: &Cx, ppas: &[Ppa], blocks: u32) -> Verdict {
    match u64::from(blocks) == ppas.len() as u64 * cx.geometry.lbas_per_unit {
        true => Ok(()),
        false => Err(DeviceError::InvalidField("the length is not that of the places")),
    }
}

fn check_data(cx: &Cx, ppas: &[Ppa], records: &[OobRecord], data: &Data) -> Verdict {
    if records.len() != ppas.len() {
        return Err(DeviceError::InvalidField("each place has one out-of-band record"));
    }
    if !records.iter().all(|record| record.owner.fits()) {
        return Err(DeviceError::InvalidField("the number of an owner has no room in its record"));
    }
    let is_long_enough = match data {
        Data::Zero | Data::Pattern(_) => true,
        Data::Bytes(bytes) => bytes.len() as u64 == ppas.len() as u64 * cx.geometry.lbas_per_unit * LBA_BYTES,
        Data::Units(units) => units.len() == ppas.len(),
    };
    match is_long_enough {
        true => Ok(()),
        false => Err(DeviceError::InvalidField("the data are not as long as the places")),
    }
}
