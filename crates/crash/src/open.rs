//! The laboratory of the open channel: histories of programs and erases, with every power cut in them
//! (crash-laboratory §1, D6).
//!
//! Place in the data flow: a random host keeps several commands in flight at a tiny device; before each event the power
//! is cut in every way that the interrupted operations allow, the device is recovered, and its contents are checked
//! against the answers that the host got. The rules, per page, are those of open-channel §6 and commands §6:
//!
//! 1. What completed is there, contents and records, until an erase of its erase block was submitted.
//! 2. A program in flight is there as a whole, or cannot be read, or was never written; so is a page of an erase block
//!    whose erase is in flight.
//! 3. What can be read is what was written there; the written pages of an erase block are a prefix.
//! 4. An erase block whose erase has completed is empty, and accepts its pages again.

use crate::explorer::WorldSpec;
use crate::ruled::{Core, Ruled};
use flashweir_core::command::{OPEN_NAMESPACE, PpaWrite, pattern};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::{Command, CommandId, Completion, Data, DeviceError, Done, Lpn, Op, Payload, Ppa};
use flashweir_device::Device;
use flashweir_device::flash::PageState;
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;
use std::collections::BTreeMap;

/// What a host knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing was written since the last erase.
    Empty,
    /// Operation number; completed if so.
    Written { operation: u64, is_done: bool },
    /// Nothing is promised until the next erase: an erase or a program was cut or has failed.
    Open { operation: u64 },
}

/// What a command under way has to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    /// As the page is known; of a read, as it was when that was submitted, and empty in a block that was to be erased.
    Known(Known),
    /// A refusal: the write is not for the next page of its block.
    Refusal(DeviceError),
}

/// A command under way.
#[derive(Clone, Debug)]
struct Flying {
    op: Op,
    expected: Expected,
}

/// A host of an open channel.
#[derive(Clone, Debug)]
pub(crate) struct World<'a> {
    core: Core<'a>,
    /// By block and page.
    pages: Vec<Vec<Known>>,
    /// Where each block is written next, as the host sees it.
    pointers: Vec<u32>,
    /// Blocks that are being erased.
    erasing: Vec<bool>,
    flying: BTreeMap<u64, Flying>,
}

impl<'a> Ruled<'a> for World<'a> {
    const NAME: &'static str = "open";
    const COMMANDS: u32 = 48;
    const HAS_RECOVERY: bool = false;

    fn new(spec: &'a WorldSpec) -> Self {
        let core = Core::new(spec, "open channel");
        let geometry = core.device.geometry();
        let (blocks, pages) = (geometry.blocks() as usize, geometry.pages_per_block as usize);
        Self {
            pages: vec![vec![Known::Empty; pages]; blocks],
            pointers: vec![0; blocks],
            erasing: vec![false; blocks],
            flying: BTreeMap::new(),
            core,
        }
    }

    fn core(&self) -> &Core<'a> {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

    /// A program of one to three pages, an erase, a read, a FLUSH, or a program that has to be refused.
    fn choose(&mut self) -> Option<(Command, String)> {
        let geometry = self.core.device.geometry().clone();
        let block = self.core.random.below(u64::from(geometry.blocks())) as usize;
        let (id, number) = (BlockId(block as u32), self.core.next);
        let full = geometry.pages_per_block;
        let pointer = self.pointers[block];
        let program = |first: u32, pages: u32| {
            let ppas: Vec<Ppa> = (first..first + pages)
                .flat_map(|page| (0..geometry.units_per_page).map(move |unit| (page, unit)))
                .map(|(page, unit)| geometry.ppa(PageAddr { block: id, page }, unit))
                .collect();
            let records = ppas.iter().map(|ppa| record(number, *ppa)).collect();
            let blocks = ppas.len() as u32 * geometry.lbas_per_unit as u32;
            Op::from(PpaWrite { ppas: ppas.into(), blocks, records, data: Data::Pattern(number) })
        };
        let (op, text, expected) = match self.core.random.below(12) {
            0..6 if !self.erasing[block] && pointer < full => {
                let pages = (1 + self.core.random.below(3) as u32).min(full - pointer);
                for page in pointer..pointer + pages {
                    self.pages[block][page as usize] = Known::Written { operation: number, is_done: false };
                }
                self.pointers[block] += pages;
                let text = format!("program of block {block}, pages {pointer} to {}", pointer + pages - 1);
                (program(pointer, pages), text, Expected::Known(Known::Empty))
            }
            0..8 if !self.erasing[block] && pointer > full / 2 => {
                self.erasing[block] = true;
                let op = Op::PpaErase([geometry.ppa(PageAddr { block: id, page: 0 }, 0)].into());
                (op, format!("erase of block {block}"), Expected::Known(Known::Empty))
            }
            8 => (Op::Flush, "FLUSH".into(), Expected::Known(Known::Empty)),
            // A page that was written, or lies in a block that is to be erased; or one behind the next one.
            9 if self.erasing[block] || pointer > 0 => {
                let page = self.core.random.below(u64::from(pointer.max(1))) as u32;
                let at = flashweir_core::Address::Ppa(geometry.ppa(PageAddr { block: id, page }, 0));
                let expected = Expected::Refusal(DeviceError::Overwrite { at });
                (program(page, 1), format!("program of block {block}, page {page} again"), expected)
            }
            9 if pointer + 1 < full => {
                let at =
                    flashweir_core::Address::Ppa(geometry.ppa(PageAddr { block: id, page: pointer + 1 }, 0));
                let expected = pointer * geometry.units_per_page;
                let expected = Expected::Refusal(DeviceError::OutOfOrder { at, expected });
                (
                    program(pointer + 1, 1),
                    format!("program of block {block}, page {} early", pointer + 1),
                    expected,
                )
            }
            _ => {
                let page = self.core.random.below(u64::from(full)) as u32;
                let unit = self.core.random.below(u64::from(geometry.units_per_page)) as u32;
                let ppa = geometry.ppa(PageAddr { block: id, page }, unit);
                let known = if self.erasing[block] { Known::Empty } else { self.pages[block][page as usize] };
                let op = Op::PpaRead { ppas: [ppa].into(), blocks: geometry.lbas_per_unit as u32 };
                (op, format!("read of block {block}, page {page}, unit {unit}"), Expected::Known(known))
            }
        };
        self.flying.insert(number, Flying { op: op.clone(), expected });
        Some((Command { ns: OPEN_NAMESPACE, ..Command::new(number, op) }, text))
    }

    fn accepted(&mut self, _: u64) {}

    fn completed(
        &mut self,
        Completion { id: CommandId(number), result, .. }: Completion,
    ) -> Result<(), String> {
        let Flying { op, expected } =
            self.flying.remove(&number).ok_or_else(|| format!("command {number} completes twice"))?;
        let known = match expected {
            Expected::Known(known) => known,
            Expected::Refusal(expected) => return self.refused(number, &op, &expected, result),
        };
        let geometry = self.core.device.geometry();
        let page_of = |ppa: &Ppa| geometry.page_of(*ppa).0;
        match (op, result) {
            (Op::PpaWrite(write), result) => {
                for at in write.ppas.iter().map(page_of) {
                    let known = &mut self.pages[at.block.0 as usize][at.page as usize];
                    *known = match result {
                        Ok(_) => Known::Written { operation: number, is_done: true },
                        Err(_) => Known::Open { operation: number },
                    };
                }
                match result {
                    Ok(_) => Ok(()),
                    // The block is closed early.
                    Err(DeviceError::WriteFault { .. }) => {
                        let block = page_of(&write.ppas[0]).block.0 as usize;
                        self.pointers[block] = geometry.pages_per_block;
                        Ok(())
                    }
                    // A page before these has failed, of which the host does not know yet.
                    Err(DeviceError::Overwrite { .. })
                        if self.core.device.config().faults.program_fail > 0.0 =>
                    {
                        Ok(())
                    }
                    Err(error) => Err(format!("write {number}: {error}")),
                }
            }
            (Op::PpaErase(ppas), result) => {
                let block = page_of(&ppas[0]).block.0 as usize;
                self.erasing[block] = false;
                match result {
                    Ok(_) => {
                        self.pages[block].fill(Known::Empty);
                        self.pointers[block] = 0;
                        Ok(())
                    }
                    Err(DeviceError::WriteFault { .. }) => Ok(()),
                    Err(error) => Err(format!("erase {number}: {error}")),
                }
            }
            (Op::PpaRead { ppas, .. }, result) => read_back(known, ppas[0], &result)
                .map_err(|what| format!("read {number} of {:?}: {what}", ppas[0])),
            (_, result) => result.map(drop).map_err(|error| format!("flush {number}: {error}")),
        }
    }

    fn after(&self, device: Device) -> Result<Self, String> {
        let mut after = Self {
            core: self.core.above(device),
            pages: self.pages.clone(),
            pointers: self.pointers.clone(),
            erasing: vec![false; self.erasing.len()],
            flying: BTreeMap::new(),
        };
        for block in 0..after.pages.len() {
            after.judge(block, self.erasing[block])?;
        }
        Ok(after)
    }

    fn sees_the_same(&self, other: &Self) -> bool {
        self.pages == other.pages
    }
}

impl World<'_> {
    /// Holds one block against what is known, and takes over what it shows.
    fn judge(&mut self, block: usize, is_erasing: bool) -> Result<(), String> {
        let media = self.core.device.media();
        let id = BlockId(block as u32);
        let geometry = self.core.device.geometry();
        let written = media.pages_written(id);
        for page in 0..geometry.pages_per_block {
            let known = self.pages[block][page as usize];
            let at = PageAddr { block: id, page };
            let state = media.page_state(at);
            let wrong = |what: &str| Err(format!("block {block}, page {page}: {what} ({known:?})"));
            let operation = match known {
                Known::Empty if state == PageState::Erased || is_erasing || media.erase_torn(id) => continue,
                Known::Empty => return wrong("a page that was never written is not erased"),
                Known::Written { operation, is_done: true } if !is_erasing => {
                    if state != PageState::Good {
                        return wrong("what completed is not there");
                    }
                    operation
                }
                Known::Written { operation, .. } | Known::Open { operation } => operation,
            };
            if state != PageState::Good {
                continue;
            }
            for unit in 0..geometry.units_per_page {
                let ppa = geometry.ppa(at, unit);
                let expected = (Payload::Tag(pattern(operation, Lpn(ppa.0))), record(operation, ppa));
                if media.payload(ppa).zip(media.record(ppa)) != Some(expected) {
                    return wrong("what can be read is not what was written there");
                }
            }
        }
        // From here on the host knows what it sees.
        let is_torn = media.erase_torn(id);
        for (page, known) in (0..).zip(&mut self.pages[block]) {
            *known = match *known {
                _ if is_torn => Known::Empty,
                Known::Written { operation, .. } | Known::Open { operation } if page < written => {
                    match media.page_state(PageAddr { block: id, page }) {
                        PageState::Good => Known::Written { operation, is_done: true },
                        _ => Known::Open { operation },
                    }
                }
                _ => Known::Empty,
            };
        }
        self.pointers[block] = if is_torn { geometry.pages_per_block } else { written };
        Ok(())
    }

    /// Judges the answer to a program that is not for the next page of its block. A block that has failed refuses it as such.
    fn refused(
        &self,
        number: u64,
        op: &Op,
        expected: &DeviceError,
        result: Result<Done, DeviceError>,
    ) -> Result<(), String> {
        let faults = &self.core.device.config().faults;
        let may_fail = faults.program_fail > 0.0 || faults.erase_fail > 0.0;
        match result {
            Err(error) if error == *expected => Ok(()),
            Err(DeviceError::Overwrite { .. } | DeviceError::WriteFault { .. }) if may_fail => Ok(()),
            other => {
                Err(format!("program {number}, {op:?}: {other:?} where it has to be refused: {expected}"))
            }
        }
    }
}

/// Whether a read of a page of which this was known when it was submitted may be answered so.
fn read_back(known: Known, ppa: Ppa, result: &Result<Done, DeviceError>) -> Result<(), String> {
    let is_content = |operation: u64| match result {
        Ok(Done::Units(units)) => {
            units.data[..] == [Payload::Tag(pattern(operation, Lpn(ppa.0)))]
                && units.records[..] == [record(operation, ppa)]
        }
        _ => false,
    };
    let is_unwritten = matches!(result, Err(DeviceError::NotWritten { .. }));
    let is_unreadable = matches!(result, Err(DeviceError::Uncorrectable { .. }));
    let is_right = match known {
        Known::Empty => is_unwritten,
        Known::Written { operation, is_done: true } => is_content(operation),
        Known::Written { operation, is_done: false } | Known::Open { operation } => {
            is_content(operation) || is_unwritten || is_unreadable
        }
    };
    if is_right { Ok(()) } else { Err(format!("{result:?} ({known:?})")) }
}

/// The out-of-band record of an operation's unit: all of it differs from place to place.
fn record(operation: u64, ppa: Ppa) -> OobRecord {
    OobRecord { owner: Owner::Lpn(Lpn(operation << 20 | ppa.0)), seq: operation, member: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::devices::tiny_open;
    use crate::explorer::{Counts, Effort, Fault, Found};
    use crate::ruled::{explore_world, live, medium, quiet};
    use crate::token::Chosen;
    use flashweir_device::{Media, Recovery};

    fn specs() -> impl Iterator<Item = WorldSpec> {
        let of = |config| WorldSpec { config, seed: 3, planted: None, effort: Effort::SHALLOW };
        tiny_open().into_iter().map(of)
    }

    #[test]
    fn a_device_that_loses_what_completed_is_found_out() {
        for spec in specs() {
            let mut world: World = quiet(&spec, 60);
            let media = medium(&world.core);
            let woken = |media: Media| Recovery::begin(&spec.config, spec.options(), media).finish().0;
            world.after(woken(media.clone())).unwrap();
            let is_held = |pages: &Vec<Known>| {
                pages.iter().any(|page| matches!(page, Known::Written { is_done: true, .. }))
            };
            let block = BlockId(world.pages.iter().position(is_held).expect("something was written") as u32);
            let mut erased = media.clone();
            erased.erase(block);
            assert!(world.after(woken(erased)).is_err());
            let page =
                world.pages[block.0 as usize].iter_mut().find(|page| matches!(page, Known::Written { .. }));
            *page.unwrap() = Known::Written { operation: 1 << 30, is_done: true };
            assert!(world.after(woken(media)).is_err(), "another version than was written");
        }
    }

    /// The cut at its end would be sound: it is the end itself that is not.
    #[test]
    fn regression_a_hang_is_shown_again_by_its_token() {
        for spec in specs() {
            let mut world = World::new(&spec);
            world.core.in_flight += 1;
            let mut counts = Counts::default();
            let hang =
                |found: &Found| matches!(&found.fault, Fault::Rule(what) if what.contains("never complete"));
            let (found, _) =
                *live(world.clone(), 0, 4, None, &mut counts).expect_err("a command never completes");
            assert!(hang(&found), "{found:?}");
            let token = found.token(&spec, Chosen::Some((0..4).collect()));
            let (again, _) = *live(world, 0, 4, Some(&token), &mut counts).expect_err("it still does not");
            assert!(hang(&again), "{again:?}");
        }
    }

    #[test]
    fn a_world_repeats() {
        for spec in specs() {
            let (counts, found) = explore_world::<World>(&spec);
            assert_eq!(found, None);
            assert_eq!(explore_world::<World>(&spec), (counts, None));
            assert!(counts.states > 200 && counts.distinct > 50, "{counts:?}");
        }
    }
}
