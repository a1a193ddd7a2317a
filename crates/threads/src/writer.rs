//! The writer of a ring: programs what producers have marked (open-channel §1.5, open-channel §4.3).
//!
//! Invariant: `sync` passes an entry after its program, and after the map's old place of it is invalid.

use crate::lines::Program;
use crate::medium::{Owner, PowerLost};
use crate::pool::Worker;
use crate::ring::{flags, state};
use crate::shared::{Limiter, Shared};
use crate::sync::{Backoff, Ordering};
use flashweir_core::{Lpn, Ppa};
use std::time::Duration;

/// Between two looks at a ring that nobody forces.
const KICK: Duration = Duration::from_millis(10);

/// Kicks after which a program is filled up with padding.
const KICKS_UNTIL_PAD: u32 = 200;

/// The thread.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    shared: &'a Shared,
    ring: usize,
    end: Worker,
    /// Next position to be written.
    subm: u64,
    /// Entries of the next program.
    entries: Vec<u64>,
    kicks: u32,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(shared: &'a Shared, ring: usize, end: Worker) -> Self {
        Self { shared, ring, end, subm: 0, entries: Vec::new(), kicks: 0 }
    }

    /// Works until the FTL ends.
    pub(crate) fn run(mut self) {
        self.shared.writers[self.ring].is_me();
        let mut backoff = Backoff::default();
        while self.shared.goes_on() {
            let Ok(is_at_work) = self.step() else { return };
            if is_at_work {
                backoff = Backoff::default();
            } else if self.is_forced() {
                // A producer is about to mark what is waited for.
                backoff.wait();
            } else {
                self.sleep();
            }
        }
    }

    fn is_forced(&self) -> bool {
        self.subm < self.shared.versions.rings[self.ring].flush_point.load(Ordering::Acquire)
    }

    fn sleep(&mut self) {
        let ring = &self.shared.versions.rings[self.ring];
        let least = u64::from(self.shared.geometry.units_per_program);
        self.shared.writers[self.ring].sleep(KICK, || {
            let pending = ring.mem.load(Ordering::Acquire) - self.subm;
            pending >= least || pending > 0 && self.is_forced() || !self.shared.goes_on()
        });
        let has_pending = ring.mem.load(Ordering::Acquire) > self.subm;
        self.kicks = if has_pending { self.kicks + 1 } else { 0 };
    }

    /// Programs once, if there is enough; returns whether there was.
    fn step(&mut self) -> Result<bool, PowerLost> {
        let ring = &self.shared.versions.rings[self.ring];
        let mem = ring.mem.load(Ordering::Acquire);
        let most = self.shared.geometry.units_per_program as usize;
        self.entries.clear();
        let mut end = self.subm;
        while end < mem && self.entries.len() < most {
            match ring.entry(end).state.load(Ordering::Acquire) {
                state::FILLED => self.entries.push(end),
                state::DROPPED => {}
                _ => break,
            }
            end += 1;
        }
        let is_short = self.entries.len() < most;
        // What is forced and not yet marked may fill the program.
        let is_forced = end >= ring.flush_point.load(Ordering::Acquire).min(mem) && self.is_forced();
        if end == self.subm
            || is_short && !is_forced && self.kicks < KICKS_UNTIL_PAD && !self.entries.is_empty()
        {
            return Ok(false);
        }
        self.kicks = 0;
        if !self.entries.is_empty() {
            self.program()?;
        }
        if let Limiter::Windows(windows) = &self.shared.limiter {
            let is_gc = |&at: &u64| ring.entry(at).flags.load(Ordering::Relaxed) & flags::GC != 0;
            let gc = (self.subm..end).filter(is_gc).count() as u32;
            windows.left((end - self.subm) as u32 - gc, gc);
        }
        ring.advance(end);
        self.subm = end;
        Ok(true)
    }

    fn place(&self) -> Result<Program, PowerLost> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(program) = self.shared.next_program() {
                return Ok(program);
            }
            if !self.shared.goes_on() {
                return Err(PowerLost);
            }
            self.shared.collector.wake();
            backoff.wait();
        }
    }

    fn program(&mut self) -> Result<(), PowerLost> {
        let shared = self.shared;
        let ring = &shared.versions.rings[self.ring];
        let program = self.place()?;
        let item = shared.item(&mut self.end);
        let all = shared.geometry.units_per_program as usize;
        for at in 0..all {
            let (owner, seq) = match self.entries.get(at) {
                None => (Owner::Pad, 0),
                Some(&position) => {
                    let entry = ring.entry(position);
                    let lpn = Lpn(entry.lpn.load(Ordering::Relaxed));
                    let is_trim = entry.flags.load(Ordering::Relaxed) & flags::TRIM != 0;
                    let owner = if is_trim { Owner::Trim(lpn) } else { Owner::Unit(lpn) };
                    (owner, entry.seq.load(Ordering::Relaxed))
                }
            };
            item.list.set_word(2 * at, owner.pack());
            item.list.set_word(2 * at + 1, seq);
        }
        let entries = &self.entries;
        let content = |at: u32| entries.get(at as usize).map(|&position| &ring.entry(position).content);
        shared.medium.program(program.ppa, &item.list, program.opening, content)?;
        self.end.give(item);
        for (at, &position) in (0..).zip(entries) {
            shared.versions.persisted(self.ring, position, Ppa(program.ppa.0 + at), &shared.lines);
        }
        shared.lines.ended(program);
        let counters = shared.writer_counters(self.ring);
        counters.programmed_units.add(all as u64);
        counters.padded_units.add((all - entries.len()) as u64);
        Ok(())
    }
}
