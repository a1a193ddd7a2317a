//! The writer of a ring: programs what producers have marked (open-channel §1.5, open-channel §4.3).
//!
//! In memory a program is over when it is begun. Above a file several are under way, and what is over first waits for those before it.
//!
//! Invariant: `sync` passes an entry after its program, and after the map's old place of it is invalid.

use crate::lines::Program;
use crate::medium::{Begun, Owner, PowerLost};
use crate::pool::{Lease, Worker};
use crate::queue::Queue;
use crate::ring::{flags, state};
use crate::shared::{Limiter, Shared};
use crate::sync::{Backoff, Instant, Ordering};
use flashweir_core::{Lpn, Ppa};
use std::collections::VecDeque;
use std::time::Duration;

/// Programs of a ring that are under way at most: four more than Linux's pblk has on a die.
const UNDER_WAY_MAX: usize = 12;

/// Between two looks at a ring that nobody forces.
const KICK: Duration = Duration::from_millis(10);

/// Kicks after which a program is filled up with padding.
const KICKS_UNTIL_PAD: u32 = 200;

/// A recovery holds, and reads again, what was programmed since the last sync, so there is one now and then even if no client flushes.
const PROGRAMS_UNTIL_SYNC: u64 = 4096;

/// A step of the ring, from the end of the one before it.
#[derive(Debug)]
struct Step<'a> {
    /// Position behind its entries.
    end: u64,
    /// Entries of its program; the others were dropped.
    entries: Vec<u64>,
    program: Option<(Program, Lease<'a>)>,
    begun: Begun,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    shared: &'a Shared,
    ring: usize,
    end: Worker,
    queue: Option<Queue<'a>>,
    /// Next position to be written.
    subm: u64,
    /// Entries of the next program.
    entries: Vec<u64>,
    /// Steps in their order, and the number of the first.
    under_way: VecDeque<Step<'a>>,
    first: u64,
    /// The number at which it makes durable what it has programmed.
    sync_at: u64,
    kicks: u32,
    /// End of the ring when what was marked up to there did not fill a program.
    looked_at: u64,
    /// Since when entries wait to fill a program.
    waits_since: Option<Instant>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(shared: &'a Shared, ring: usize, end: Worker) -> Self {
        let queue = shared.medium.queue(UNDER_WAY_MAX);
        Self {
            shared,
            ring,
            end,
            queue,
            subm: 0,
            entries: Vec::new(),
            under_way: VecDeque::new(),
            first: 0,
            sync_at: PROGRAMS_UNTIL_SYNC,
            kicks: 0,
            looked_at: 0,
            waits_since: None,
        }
    }

    /// Works until the FTL ends.
    pub(crate) fn run(mut self) {
        self.shared.writers[self.ring].is_me();
        let mut backoff = Backoff::default();
        while self.shared.goes_on() {
            let Ok(is_at_work) = self.turn() else { return };
            if is_at_work {
                backoff = Backoff::default();
            } else if self.is_forced() || !self.sleep() {
                // A producer is about to mark what is waited for, or what fills a program.
                backoff.wait();
            }
        }
        // What is under way at the end is part of what a file is sealed with.
        while !self.under_way.is_empty() && !self.shared.medium.is_off() {
            let Ok(()) = self.completed(true) else { return };
            self.end_steps();
        }
    }

    /// Begins the next program, or waits for one that is under way; returns whether there was something to do.
    fn turn(&mut self) -> Result<bool, PowerLost> {
        let has_begun = self.under_way.len() < UNDER_WAY_MAX && self.step()?;
        if self.under_way.is_empty() {
            return Ok(has_begun);
        }
        self.completed(!has_begun)?;
        self.end_steps();
        if self.first >= self.sync_at {
            self.sync_at = self.first + PROGRAMS_UNTIL_SYNC;
            self.shared.medium.sync()?;
        }
        Ok(true)
    }

    /// Ends steps that nothing before them waits for any more.
    fn end_steps(&mut self) {
        while let Some(step) = self.under_way.pop_front_if(|step| step.begun == Begun::Ended) {
            self.end_step(step);
        }
    }

    /// Takes note of programs that have ended; with `wait` there is at least one.
    fn completed(&mut self, wait: bool) -> Result<(), PowerLost> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        let (first, under_way) = (self.first, &mut self.under_way);
        let mut all = Ok(());
        self.shared.medium.completed(queue, wait, |tag| {
            let step = &mut under_way[(tag - first) as usize];
            let (Some((program, item)), Begun::UnderWay(number)) = (&step.program, step.begun) else {
                unreachable!("a program that was begun")
            };
            all = all.and(self.shared.medium.ended(number, program.ppa, &item.get().list));
            step.begun = Begun::Ended;
        })?;
        all
    }

    fn is_forced(&self) -> bool {
        self.subm < self.shared.versions.rings[self.ring].flush_point.load(Ordering::Acquire)
    }

    /// Sleeps until there may be something to program; returns false if there is already.
    fn sleep(&mut self) -> bool {
        let ring = &self.shared.versions.rings[self.ring];
        let least = u64::from(self.shared.geometry.units_per_program);
        let mut has_work = false;
        self.shared.writers[self.ring].sleep(KICK, || {
            let mem = ring.mem.load(Ordering::Acquire);
            let pending = mem - self.subm;
            has_work = pending >= least && mem != self.looked_at
                || pending > 0 && self.is_forced()
                || !self.shared.goes_on();
            has_work
        });
        let has_pending = ring.mem.load(Ordering::Acquire) > self.subm;
        // Who is woken again and again sleeps less, and kicks as often.
        self.waits_since = if has_pending { self.waits_since.or_else(|| Some(Instant::now())) } else { None };
        let kicks = self.waits_since.map_or(0, |since| since.elapsed().as_millis() / KICK.as_millis());
        self.kicks = u32::try_from(kicks).unwrap_or(u32::MAX);
        !has_work
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
            // Some may be dropped: as many as a program takes need not be there.
            self.looked_at = if end == mem { mem } else { self.subm };
            return Ok(false);
        }
        let place = if self.entries.is_empty() { None } else { self.place()? };
        if place.is_none() && !self.entries.is_empty() {
            return Ok(false);
        }
        (self.kicks, self.waits_since) = (0, None);
        let mut step =
            Step { end, entries: std::mem::take(&mut self.entries), program: None, begun: Begun::Ended };
        if let Some(program) = place {
            self.program(&mut step, program)?;
        }
        self.under_way.push_back(step);
        self.subm = end;
        Ok(true)
    }

    /// What a step has programmed is on the medium.
    fn end_step(&mut self, step: Step<'a>) {
        let shared = self.shared;
        let ring = &shared.versions.rings[self.ring];
        self.first += 1;
        if let Some((program, item)) = step.program {
            self.end.give(item);
            for (at, &position) in (0..).zip(&step.entries) {
                shared.versions.persisted(self.ring, position, Ppa(program.ppa.0 + at), &shared.lines);
            }
            shared.lines.ended(program);
            let all = u64::from(shared.geometry.units_per_program);
            let counters = shared.writer_counters(self.ring);
            counters.programmed_units.add(all);
            counters.padded_units.add(all - step.entries.len() as u64);
        }
        if let Limiter::Windows(windows) = &shared.limiter {
            let begin = ring.sync.load(Ordering::Relaxed);
            let is_gc = |&at: &u64| ring.entry(at).flags.load(Ordering::Relaxed) & flags::GC != 0;
            let gc = (begin..step.end).filter(is_gc).count() as u32;
            windows.left((step.end - begin) as u32 - gc, gc);
        }
        ring.advance(step.end);
        self.entries = step.entries;
    }

    /// A place for a program. `None` if there is none before a program that is under way has ended: GC may wait for its copies in there.
    fn place(&self) -> Result<Option<Program>, PowerLost> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(program) = self.shared.next_program() {
                return Ok(Some(program));
            }
            if !self.shared.goes_on() {
                return Err(PowerLost);
            }
            self.shared.collector.wake();
            if !self.under_way.is_empty() {
                return Ok(None);
            }
            backoff.wait();
        }
    }

    fn program(&mut self, step: &mut Step<'a>, program: Program) -> Result<(), PowerLost> {
        let shared = self.shared;
        let mut backoff = Backoff::default();
        while !shared.medium.may_begin(program.ppa)? {
            // Other writers may wait for what ends here.
            self.completed(false)?;
            if !shared.goes_on() {
                return Err(PowerLost);
            }
            backoff.wait();
        }
        let ring = &shared.versions.rings[self.ring];
        let lease = shared.item(&mut self.end);
        let list = &lease.get().list;
        for at in 0..shared.geometry.units_per_program as usize {
            let (owner, seq) = match step.entries.get(at) {
                None => (Owner::Pad, 0),
                Some(&position) => {
                    let entry = ring.entry(position);
                    let lpn = Lpn(entry.lpn.load(Ordering::Relaxed));
                    let is_trim = entry.flags.load(Ordering::Relaxed) & flags::TRIM != 0;
                    let owner = if is_trim { Owner::Trim(lpn) } else { Owner::Unit(lpn) };
                    (owner, entry.seq.load(Ordering::Relaxed))
                }
            };
            list.set_word(2 * at, owner.pack());
            list.set_word(2 * at + 1, seq);
        }
        let entries = &step.entries;
        let content = |at: u32| entries.get(at as usize).map(|&position| &ring.entry(position).content);
        let tag = self.first + self.under_way.len() as u64;
        let medium = &shared.medium;
        step.begun = medium.program(&mut self.queue, tag, program.ppa, list, program.opening, content)?;
        step.program = Some((program, lease));
        Ok(())
    }
}
