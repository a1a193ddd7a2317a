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

use crate::devices::tiny_open;
use flashweir_core::command::{OPEN_NAMESPACE, PpaWrite, pattern};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::{
    Agenda, Command, CommandId, Completion, Data, DeviceError, Done, Instant, Lpn, Op, Payload, Ppa,
    RandomStream,
};
use flashweir_device::flash::PageState;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Effect, Event, Media, Recovery, Torn};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;
use std::collections::BTreeMap;

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    /// Number of commands that completed successfully, over all boots.
    pub commands: u64,
    /// Number of positions at which the power was cut.
    pub cuts: u64,
    /// Number of media that were recovered and judged.
    pub states: u64,
    /// Number of programs and erases that were interrupted, over all states.
    pub interrupted: u64,
    /// Number of boots that continued from a state.
    pub boots: u64,
}

/// The host's knowledge of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing was written since the last erase.
    Empty,
    /// Number of the operation that wrote it, and whether that has completed.
    Written { operation: u64, is_done: bool },
    /// Nothing is promised until the next erase, because an erase or a program was cut or has failed.
    Open { operation: u64 },
}

/// A command in flight.
#[derive(Clone, Debug)]
struct Flying {
    op: Op,
    /// For a read, the host's knowledge of the page at submission; nothing is required in a block with a pending erase.
    known: Known,
}

/// A host with a device of its own.
#[derive(Clone, Debug)]
struct World {
    device: Device,
    agenda: Agenda<Event>,
    random: RandomStream,
    /// Knowledge per block and page.
    pages: Vec<Vec<Known>>,
    /// Write pointer of each block, as the host sees it.
    pointers: Vec<u32>,
    /// Whether each block is being erased.
    erasing: Vec<bool>,
    flying: BTreeMap<u64, Flying>,
    next: u64,
    counts: OpenCounts,
}

/// Cuts one history of each tiny device at every event, over `boots` consecutive histories. The state that a boot
/// continues from and the commands depend only on the seed.
///
/// # Errors
/// A sentence that describes the illegal state of the device.
pub fn explore(seed: u64, commands: u64, boots: u64) -> Result<OpenCounts, String> {
    let mut counts = OpenCounts::default();
    for config in tiny_open() {
        let name = config.name.clone();
        let mut world = World { counts, ..World::new(&config, seed) };
        for boot in 0..boots {
            world = world
                .live(&config, commands, boot + 1 < boots)
                .map_err(|what| format!("{name}, seed {seed}: {what}"))?;
            world.counts.boots += 1;
        }
        counts = world.counts;
    }
    Ok(counts)
}

impl World {
    fn new(config: &DeviceConfig, seed: u64) -> Self {
        let options = DeviceOptions { seed, track_contents: true, planted: None };
        let device = Device::new(config.clone(), options);
        let geometry = device.geometry();
        let (blocks, pages) = (geometry.blocks() as usize, geometry.pages_per_block as usize);
        Self {
            agenda: Agenda::default(),
            random: RandomStream::new(seed, "open channel"),
            pages: vec![vec![Known::Empty; pages]; blocks],
            pointers: vec![0; blocks],
            erasing: vec![false; blocks],
            flying: BTreeMap::new(),
            next: 1,
            counts: OpenCounts::default(),
            device,
        }
    }

    /// Runs one boot of `commands` commands, with cuts before each event. Returns the world after one of the cuts if
    /// `goes_on`.
    fn live(mut self, config: &DeviceConfig, commands: u64, goes_on: bool) -> Result<Self, String> {
        let (mut left, mut last) = (commands, None);
        // Number of submitted commands beyond which the power may fail for good.
        let end = self.random.below(commands.max(2) / 2) + commands / 2;
        loop {
            while left > 0 && self.flying.len() < 6 {
                left -= 1;
                self.submit()?;
            }
            let Some(now) = self.agenda.peek() else { break };
            self.counts.cuts += 1;
            for nth in 0..self.ways(now) {
                let media = self.cut(now, nth);
                let after = self.after(config, media)?;
                let is_late = commands - left > end;
                if goes_on && is_late && self.random.chance(0.1) {
                    return Ok(Self { random: self.random, counts: self.counts, ..after });
                }
                last = Some(after);
            }
            let Some((now, event)) = self.agenda.pop() else { break };
            let mut effects = Vec::new();
            self.device.event(now, event, &mut effects);
            self.carry_out(effects)?;
        }
        if !self.flying.is_empty() {
            return Err(format!("commands never complete\n{}", self.device.describe()));
        }
        self.device.audit();
        Ok(match last.filter(|_| goes_on) {
            Some(after) => Self { random: self.random, counts: self.counts, ..after },
            None => self,
        })
    }

    /// Returns the number of combinations in which the interrupted operations may end; at most 27.
    fn ways(&self, now: Instant) -> u32 {
        3u32.pow(self.device.interrupted(now).len().min(3) as u32)
    }

    fn cut(&mut self, now: Instant, nth: u32) -> Media {
        let mut rest = nth;
        self.counts.interrupted += self.device.interrupted(now).len() as u64;
        self.device.cut(now, |_| {
            let torn = [Torn::Absent, Torn::Damaged, Torn::Done][(rest % 3) as usize];
            rest /= 3;
            torn
        })
    }

    /// Recovers a medium and judges its contents.
    fn after(&mut self, config: &DeviceConfig, media: Media) -> Result<Self, String> {
        self.counts.states += 1;
        let options = DeviceOptions { seed: self.next, track_contents: true, planted: None };
        let (device, _) = Recovery::begin(config, options, media).finish();
        device.audit();
        let mut after = Self {
            device,
            agenda: Agenda::default(),
            random: self.random.clone(),
            pages: self.pages.clone(),
            pointers: self.pointers.clone(),
            erasing: vec![false; self.erasing.len()],
            flying: BTreeMap::new(),
            next: self.next,
            counts: self.counts,
        };
        for block in 0..after.pages.len() {
            after.judge(block, self.erasing[block])?;
        }
        Ok(after)
    }

    /// Checks one block against the host's knowledge, and updates the knowledge.
    fn judge(&mut self, block: usize, is_erasing: bool) -> Result<(), String> {
        let media = self.device.media();
        let id = BlockId(block as u32);
        let geometry = self.device.geometry();
        let written = media.pages_written(id);
        for page in 0..geometry.pages_per_block {
            let known = self.pages[block][page as usize];
            let at = PageAddr { block: id, page };
            let state = media.page_state(at);
            let wrong = |what: &str| Err(format!("block {block}, page {page}: {what} ({known:?})"));
            let operation = match known {
                Known::Empty if state == PageState::Erased || is_erasing || media.erase_torn(id) => continue,
                Known::Empty => return wrong("something is there that nobody has written"),
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
        // From here on, the host knows the observed state.
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

    /// Submits a program of one to three pages, an erase, a read, or a command that must be refused.
    fn submit(&mut self) -> Result<(), String> {
        let geometry = self.device.geometry().clone();
        let block = self.random.below(u64::from(geometry.blocks())) as usize;
        let (id, number) = (BlockId(block as u32), self.next);
        let full = geometry.pages_per_block;
        let mut known = Known::Empty;
        let op = match self.random.below(10) {
            0..6 if !self.erasing[block] && self.pointers[block] < full => {
                let pages = (1 + self.random.below(3) as u32).min(full - self.pointers[block]);
                let first = self.pointers[block];
                let ppas: Vec<Ppa> = (first..first + pages)
                    .flat_map(|page| (0..geometry.units_per_page).map(move |unit| (page, unit)))
                    .map(|(page, unit)| geometry.ppa(PageAddr { block: id, page }, unit))
                    .collect();
                for page in first..first + pages {
                    self.pages[block][page as usize] = Known::Written { operation: number, is_done: false };
                }
                self.pointers[block] += pages;
                let records = ppas.iter().map(|ppa| record(number, *ppa)).collect();
                let blocks = ppas.len() as u32 * geometry.lbas_per_unit as u32;
                PpaWrite { ppas: ppas.into(), blocks, records, data: Data::Pattern(number) }.into()
            }
            0..8 if !self.erasing[block] && self.pointers[block] > full / 2 => {
                self.erasing[block] = true;
                Op::PpaErase([geometry.ppa(PageAddr { block: id, page: 0 }, 0)].into())
            }
            8 => Op::Flush,
            _ => {
                let page = self.random.below(u64::from(full)) as u32;
                let unit = self.random.below(u64::from(geometry.units_per_page)) as u32;
                let ppa = geometry.ppa(PageAddr { block: id, page }, unit);
                if !self.erasing[block] {
                    known = self.pages[block][page as usize];
                }
                Op::PpaRead { ppas: [ppa].into(), blocks: geometry.lbas_per_unit as u32 }
            }
        };
        self.next += 1;
        self.flying.insert(number, Flying { op: op.clone(), known });
        let command = Command { ns: OPEN_NAMESPACE, ..Command::new(number, op) };
        let mut effects = Vec::new();
        self.device.command(self.agenda.now(), command, &mut effects);
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, event),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) => self.completed(completion)?,
            }
        }
        Ok(())
    }

    fn completed(
        &mut self,
        Completion { id: CommandId(number), result, .. }: Completion,
    ) -> Result<(), String> {
        let Flying { op, known } =
            self.flying.remove(&number).ok_or_else(|| format!("command {number} completes twice"))?;
        self.counts.commands += u64::from(result.is_ok());
        let geometry = self.device.geometry();
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
                    // A preceding page has failed, which the host does not know yet.
                    Err(DeviceError::Overwrite { .. }) if self.device.config().faults.program_fail > 0.0 => {
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
}

/// Checks the answer to a read of a page of which `known` was known at submission.
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

/// Returns the out-of-band record of an operation's unit: every field differs between units.
fn record(operation: u64, ppa: Ppa) -> OobRecord {
    OobRecord { owner: Owner::Lpn(Lpn(operation << 20 | ppa.0)), seq: operation, member: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a world without cuts whose commands have all completed.
    fn quiet(config: &DeviceConfig) -> World {
        let mut world = World::new(config, 3);
        for _ in 0..60 {
            world.submit().unwrap();
            while let Some((now, event)) = world.agenda.pop() {
                let mut effects = Vec::new();
                world.device.event(now, event, &mut effects);
                world.carry_out(effects).unwrap();
            }
        }
        assert!(world.flying.is_empty());
        world
    }

    #[test]
    fn a_device_that_loses_what_completed_is_found_out() {
        for config in tiny_open() {
            let mut world = quiet(&config);
            let media = world.device.cut(world.agenda.now(), |_| Torn::Done);
            world.after(&config, media.clone()).unwrap();
            let is_held = |pages: &Vec<Known>| {
                pages.iter().any(|page| matches!(page, Known::Written { is_done: true, .. }))
            };
            let block = BlockId(world.pages.iter().position(is_held).expect("something was written") as u32);
            let mut erased = media.clone();
            erased.erase(block);
            assert!(world.after(&config, erased).is_err());
            let page =
                world.pages[block.0 as usize].iter_mut().find(|page| matches!(page, Known::Written { .. }));
            *page.unwrap() = Known::Written { operation: 1 << 30, is_done: true };
            assert!(world.after(&config, media).is_err(), "another version than was written");
        }
    }
}
