//! The host FTL as a layer: requests of the page namespace above, commands of the open channel below.
//!
//! ```text
//!  write, TRIM ──► limiter ──► ring ──► program on the open line of a group ──► durable ──► published in the map
//!  read        ──► map ──► copy out of a ring, or read of a unit
//!  GC          ──► read of a victim's valid units ──► limiter ──► ring ──► …
//! ```
//!
//! Invariants:
//! 1. Each request is answered exactly once. A write or TRIM is answered when all of its units are in rings, with FUA when they are
//!    on the medium; a FLUSH when everything that was answered before is on the medium, whatever ring it went through.
//! 2. At any moment the medium holds, for each unit ever written, its newest durable version, or the record of the TRIM after it.
//! 3. A program never waits for a read or another program; GC never waits for the user. So everything accepted becomes durable.
//!
//! Deliberately absent: SHARE, requests of parts of a mapping unit.

use super::config::{HostFtlConfig, Layout, Limits};
use super::lines::{Line, LineId, LineState, Lines, MetaPage};
use super::map::{HostMap, Word};
use super::metrics::HostFtlMetrics;
use super::passage::Passages;
use super::planted::PlantedHostBug;
use super::recent::Recent;
use super::ring::{Change, Entry, Ring, State};
use super::state::{Erasing, HostFtl, Limiter, Queued, Reading, Recovery, TrimRecord};
use super::streams::Orders;
use super::tasks::Task;
use super::threads::{Then, Threads};
use super::turns::{Turns, Waiting};
use crate::layer::{Effect, Input, Layer, Offer};
use crate::task::TaskAttribute;
use flashweir_core::command::{OPEN_NAMESPACE, PLACES_MAX, PpaWrite, Units};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::OpenError;
use flashweir_core::{Address, Command, Data, DeviceError, Done, Instant, Lba, Lpn, Op, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::{FlashGeometry, PageAddr};
use flashweir_ftl::limiter::{Scores, Windows};
use flashweir_ftl::line_pages::{META_RECORD, PAD_RECORD, TrimPage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

impl Layer for HostFtl {
    fn describe(&self) -> String {
        Self::describe(self)
    }

    fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        Self::handle(self, now, input, effects);
    }

    fn boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl HostFtl {
    /// Returns a host FTL above a device whose blocks are all erased.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn new(config: HostFtlConfig, flash: FlashGeometry, unit_bytes: usize) -> Result<Self, String> {
        let layout = Layout::new(&config, flash, unit_bytes)?;
        let (groups, rings) = (layout.groups as usize, usize::from(config.rings));
        let lines = Lines::new(&layout);
        let free = layout.lines * layout.blocks_per_line();
        let limiter = match config.limits {
            Limits::Windows => {
                Limiter::Windows(Windows::new(layout.marks.times(layout.groups), free * layout.groups))
            }
            Limits::Scores => Limiter::Scores(Scores::new(layout.marks, &vec![free; groups])),
        };
        Ok(Self {
            map: HostMap::new(layout.user_units),
            rings: (0..config.rings).map(|number| Ring::new(number, layout.ring_entries)).collect(),
            lines,
            limiter,
            trims: BTreeMap::new(),
            orders: Orders::new(config.epochs_max, &layout),
            unfinished: BTreeSet::new(),
            recent: Recent::new(config.cached_units),
            seq: 0,
            first_seq: 0,
            queued: vec![VecDeque::new(); rings],
            hurried: vec![u64::MAX; rings],
            other_ring: 0,
            waiters: Vec::new(),
            reads: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_id: 1,
            out: Default::default(),
            turns: Turns::default(),
            offered: None,
            is_stalled: false,
            programs: vec![0; layout.flash.dies() as usize],
            last_read: vec![None; groups],
            collecting: vec![None; groups],
            erasing: Vec::new(),
            turn: 0,
            drained: 0,
            wheel: 0,
            now: Instant::ZERO,
            user_was_active: None,
            user_waits_for_space: false,
            user_is_stuck: false,
            pad_at: vec![None; rings],
            inactive_at: None,
            recovery: None,
            is_opening: false,
            is_read_only: false,
            early: VecDeque::new(),
            threads: Threads::new(&config, layout.unit_sectors),
            armed: None,
            answers_held: 0,
            metrics: HostFtlMetrics::default(),
            passages: Passages::default(),
            layout,
            config,
        })
    }

    /// Returns a host FTL above a device that was in use: it reads what is there before it answers anything. It begins with the first
    /// input of any kind.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn recover(config: HostFtlConfig, flash: FlashGeometry, unit_bytes: usize) -> Result<Self, String> {
        let mut ftl = Self::new(config, flash, unit_bytes)?;
        let mut recovery = Box::new(Recovery::default());
        recovery.begin(&mut ftl);
        ftl.recovery = Some(recovery);
        Ok(ftl)
    }

    /// Numbers that follow from configuration and flash.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Counters.
    pub fn metrics(&self) -> HostFtlMetrics {
        let mut metrics = HostFtlMetrics { epochs: self.orders.closed(), ..self.metrics };
        self.threads.iter().for_each(|threads| threads.count(&mut metrics));
        metrics
    }

    pub(super) fn metrics_mut(&mut self) -> &mut HostFtlMetrics {
        &mut self.metrics
    }

    /// Whether the recovery has ended.
    pub fn is_ready(&self) -> bool {
        self.recovery.is_none() && !self.is_opening
    }

    /// Where a unit is: its content in a ring, or its place on the medium; `None` if it reads as zeros.
    pub fn find(&self, lpn: Lpn) -> Option<Result<Payload, Ppa>> {
        match self.map.get(lpn) {
            Word::Empty | Word::Trimmed(_) => None,
            Word::Place(ppa) => Some(Err(ppa)),
            Word::Cached(slot) => match &self.rings[usize::from(slot.ring)].look(slot)?.change {
                Change::Write(payload) => Some(Ok(payload.clone())),
                Change::Trim(_) | Change::Order(_) => None,
            },
        }
    }

    /// Describes in words what it waits for.
    pub fn describe(&self) -> String {
        let rings = self.rings.iter().map(|ring| {
            let [published, sync, subm, mem] = [ring.published, ring.sync, ring.subm, ring.mem];
            format!("{published}/{sync}/{subm}/{mem}+{}", ring.failures())
        });
        let lines = self.lines.ids().map(|id| {
            let line = self.lines.get(id);
            format!("{:?} {}{}", line.state, line.valid, if line.is_clean { " clean" } else { "" })
        });
        format!(
            "host FTL: lines {}; rings {}{}; {} requests queued, {} waiting, {} reads; {} commands below, {} to be offered; {} units free; collecting {:?}",
            lines.collect::<Vec<_>>().join(", "),
            rings.collect::<Vec<_>>().join(" "),
            self.orders.describe(),
            self.queued.iter().map(VecDeque::len).sum::<usize>(),
            self.waiters.len(),
            self.reads.len(),
            self.tasks.len(),
            self.out.iter().map(VecDeque::len).sum::<usize>(),
            self.lines.free_units(),
            self.collecting.iter().flatten().collect::<Vec<_>>(),
        )
    }

    pub(super) fn has_planted(&self, bug: PlantedHostBug) -> bool {
        self.config.planted == Some(bug)
    }

    /// Handles an input; see [`Layer::handle`].
    pub fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        // Most steps of threads change nothing else.
        let may_be_a_step = self.threads.is_some() && self.is_ready() && !self.is_stalled;
        let is_step = may_be_a_step && matches!(input, Input::Wake);
        let mut has_news = self.follow_threads(effects);
        match input {
            Input::Submit { command, submitter } if !self.is_ready() => {
                self.early.push_back((command, submitter));
            }
            Input::Submit { command, submitter } => self.arrive(command, submitter, effects),
            Input::Unplug | Input::Transferred(_) => {}
            Input::Accepted => {
                self.offered.take().expect("an offer was answered");
            }
            Input::Busy => {
                let command = self.offered.take().expect("an offer was answered");
                self.out[usize::from(!matches!(command.op, Op::PpaRead { .. }))].push_front(command);
                self.is_stalled = true;
                effects.push(Effect::At(now + self.config.retry_after));
            }
            Input::Completed { id, result } => {
                self.is_stalled = false;
                let task = self.tasks.remove(&id.0).expect("a command is answered once");
                match &mut self.threads {
                    Some(threads) if self.recovery.is_none() => {
                        self.answers_held += 1;
                        threads.hear(now, id.0, task, result);
                    }
                    _ => {
                        self.passages.caused_by(Some(id.0));
                        self.answered(task, result, effects);
                    }
                }
            }
            Input::Wake => {
                self.is_stalled = false;
                if self.inactive_at.is_some_and(|at| at <= now) {
                    self.inactive_at = None;
                    has_news = true;
                }
                for ring in 0..self.rings.len() {
                    if self.pad_at[ring].is_some_and(|at| at <= now) {
                        self.pad_at[ring] = None;
                        self.kick(ring);
                        has_news = true;
                    }
                }
            }
        }
        if has_news || !is_step {
            loop {
                self.go_on(effects);
                if !self.follow_threads(effects) {
                    break;
                }
            }
            self.offer(effects);
        }
        self.passages.caused_by(None);
        self.arm_threads(effects);
    }

    /// A request begins: at once, or on the CPU of its submitter.
    fn arrive(&mut self, command: Command, submitter: u16, effects: &mut Vec<Effect>) {
        if command.stream.is_some() && self.check(&command).is_ok() {
            self.orders.arrive(&command);
        }
        match &mut self.threads {
            None => self.submit(command, submitter, effects),
            Some(threads) => threads.submit(self.now, command, submitter),
        }
    }

    /// Does what follows the paths of threads that have ended; returns whether there were any.
    fn follow_threads(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut has_news = false;
        loop {
            let Some(threads) = &mut self.threads else { return false };
            let ended = threads.advance(self.now);
            if ended.is_empty() {
                return has_news;
            }
            has_news = true;
            for then in ended {
                let asks = match &then {
                    Then::Submit { command, .. } => Some(command.id.0),
                    Then::Retry { token, .. } => Some(*token),
                    _ => None,
                };
                if let (Some(token), Some(threads)) = (asks, &mut self.threads) {
                    threads.submitted(self.now, token);
                }
                match then {
                    Then::Submit { command, submitter } => self.submit(command, submitter, effects),
                    Then::Retry { token, ring } => self.try_again(token, ring, effects),
                    Then::Complete { token, result } => effects.push(Effect::Completed { token, result }),
                    Then::Send { ring, die, id } => {
                        let threads = self.threads.as_mut().expect("it sent something");
                        self.out[1].extend(threads.built(ring, die, id));
                    }
                    Then::Answer { id, task, result } => {
                        self.answers_held -= 1;
                        self.passages.caused_by(Some(id));
                        self.answered(task, result, effects);
                    }
                }
            }
        }
    }

    /// Asks to be called at the next step of a thread.
    fn arm_threads(&mut self, effects: &mut Vec<Effect>) {
        let next = self.threads.as_ref().and_then(|threads| threads.next());
        if let Some(at) = next.filter(|_| next != self.armed) {
            effects.push(Effect::At(at));
        }
        self.armed = next;
    }

    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        if self.recovery.is_some() {
            return;
        }
        if self.is_opening {
            return self.open(effects);
        }
        loop {
            let mut has_moved = self.admit_all(effects);
            has_moved |= self.collect_all();
            has_moved |= self.restart_epochs();
            has_moved |= self.write_order_record();
            has_moved |= self.drain();
            self.finish_again();
            has_moved |= self.erase();
            if has_moved {
                continue;
            }
            if !self.refuse_if_full(effects) {
                break;
            }
        }
        self.arm_pads(effects);
        self.arm_gc(effects);
    }

    /// Goes on with the record of what the recovery has discarded; the FTL is ready when it is durable.
    fn open(&mut self, effects: &mut Vec<Effect>) {
        if self.is_order_recorded() {
            self.is_opening = false;
            self.lines.ids().for_each(|line| self.lines.get_mut(line).unstable = 0);
            self.begin(effects);
            return self.go_on(effects);
        }
        let can_begin = !self.orders.is_wanted || self.can_record_order();
        while can_begin && (self.write_order_record() | self.drain() | self.erase()) {}
        let is_stuck =
            self.tasks.is_empty() && self.out.iter().all(VecDeque::is_empty) && self.offered.is_none();
        if !can_begin || is_stuck && !self.lines.have_room() {
            (self.is_opening, self.is_read_only) = (false, true);
            self.begin(effects);
        }
    }

    /// Takes the requests that came before the FTL was ready.
    fn begin(&mut self, effects: &mut Vec<Effect>) {
        for (command, submitter) in std::mem::take(&mut self.early) {
            self.arrive(command, submitter, effects);
        }
    }

    /// Asks to be called when the user counts as inactive, if GC has copies that wait for that.
    fn arm_gc(&mut self, effects: &mut Vec<Effect>) {
        let mut groups = self.collecting.iter().flatten();
        if self.inactive_at.is_none() && groups.any(|collecting| !collecting.copies.is_empty()) {
            let inactive = self.user_was_active.map(|at| at + self.config.user_active_for);
            self.inactive_at = inactive.filter(|&at| at > self.now);
            effects.extend(self.inactive_at.map(Effect::At));
        }
    }

    /// Offers the next command, reads first.
    fn offer(&mut self, effects: &mut Vec<Effect>) {
        if self.offered.is_some() || self.is_stalled {
            return;
        }
        let [reads, others] = &mut self.out;
        if let Some(command) = reads.pop_front().or_else(|| others.pop_front()) {
            self.offered = Some(command.clone());
            effects.push(Effect::Offer(Offer { command, attribute: TaskAttribute::Simple, submitter: 0 }));
        }
    }

    /// Puts a command of the open channel into the queue for offers.
    pub(super) fn send(&mut self, op: Op, queue: u32, task: Task) {
        let is_read = matches!(op, Op::PpaRead { .. });
        let id = self.next_id;
        self.next_id += 1;
        let writer = match &task {
            Task::Program { ring, entries, die, .. } => Some(((*ring, *die), entries.len() as u64)),
            _ => None,
        };
        self.tasks.insert(id, task);
        let queue = (queue % u32::from(self.config.queues)) as u16;
        let command = Command { queue, ns: OPEN_NAMESPACE, ..Command::new(id, op) };
        match (&mut self.threads, writer) {
            (Some(threads), Some((writer, units))) => threads.send(self.now, writer, units, command),
            _ => self.out[usize::from(!is_read)].push_back(command),
        }
    }

    /// Sends a program, or keeps it until those before it on its blocks have ended, where a chunk takes one at a time.
    fn send_program(&mut self, op: Op, queue: u32, task: Task) {
        let waiting = Waiting { op, queue, task };
        let next = if self.config.one_write_per_chunk { self.turns.take(waiting) } else { Some(waiting) };
        if let Some(Waiting { op, queue, task }) = next {
            self.send(op, queue, task);
        }
    }

    pub(super) fn read(&mut self, ppas: &[Ppa], task: Task) {
        let blocks = ppas.len() as u32 * self.layout.unit_sectors as u32;
        // Reads depend on nothing that is under way, so they take any queue.
        self.send(Op::PpaRead { ppas: ppas.into(), blocks }, self.next_id as u32, task);
    }

    // ---- requests ----

    fn submit(&mut self, command: Command, submitter: u16, effects: &mut Vec<Effect>) {
        let token = command.id.0;
        effects.extend([Effect::Dispatched(token), Effect::Transferred(token)]);
        self.passages.begun(self.now, token);
        if let Err(error) = self.check(&command) {
            return self.complete(token, Err(error), 0, effects);
        }
        let ring = usize::from(submitter) % self.rings.len();
        let per_unit = self.layout.unit_sectors;
        let (tags, fua, order) = (command.tags, command.fua, self.orders.take_arrived(token));
        // Of what is deallocated only whole units count; writes have no others.
        let whole = |lba: Lba, blocks: u32| {
            let first = lba.0.div_ceil(per_unit);
            (Lpn(first), ((lba.0 + u64::from(blocks)) / per_unit).saturating_sub(first))
        };
        let queued = |(first, units): (Lpn, u64), data| {
            let (targets, entries) = (Vec::new(), Vec::new());
            Queued { token, first, units, done: 0, data, tags, fua, order, targets, entries, vain_tries: 0 }
        };
        match command.op {
            Op::Read { lba, blocks } => self.submit_read(token, lba, blocks, effects),
            Op::Write { lba, blocks, data } => {
                let (first, units) = whole(lba, blocks);
                let bytes = self.layout.unit_bytes;
                let content =
                    |nth: usize| data.unit(Lpn(first.0 + nth as u64), nth, nth * bytes..(nth + 1) * bytes);
                let data = (0..units as usize).map(content).collect();
                self.metrics.writes += 1;
                self.queue(ring, queued((first, units), Some(data)), effects);
            }
            Op::WriteZeroes { lba, blocks } => {
                let (first, units) = whole(lba, blocks);
                let data = vec![Payload::Zero; units as usize];
                self.metrics.writes += 1;
                self.queue(ring, queued((first, units), Some(data)), effects);
            }
            Op::Trim { lba, blocks } => {
                self.metrics.trims += 1;
                self.queue(ring, queued(whole(lba, blocks), None), effects);
            }
            Op::Barrier => self.complete(token, Ok(Done::Ok), 0, effects),
            // Nothing was accepted in this boot.
            Op::Flush | Op::RFlush(_) if self.is_read_only => self.complete(token, Ok(Done::Ok), 0, effects),
            Op::Flush => {
                self.metrics.flushes += 1;
                let mut targets: Vec<(usize, u64)> =
                    self.rings.iter().map(Ring::end_of_users).enumerate().collect();
                if self.has_planted(PlantedHostBug::FlushMissesRing) {
                    targets.pop();
                }
                self.wait(token, targets, effects);
            }
            Op::RFlush(flush) => {
                self.metrics.range_flushes += 1;
                self.wait_for(token, self.selected_by(&flush), effects);
            }
            _ => unreachable!("checked"),
        }
    }

    fn queue(&mut self, ring: usize, queued: Queued, effects: &mut Vec<Effect>) {
        self.user_was_active = Some(self.now);
        let token = queued.token;
        self.queued[ring].push_back(queued);
        if self.retries() {
            self.try_again(token, ring, effects);
        }
    }

    /// Answers a request, after its thread has done what is left; it copied `from_rings` units out of rings.
    pub(super) fn complete(
        &mut self,
        token: u64,
        result: Result<Done, DeviceError>,
        from_rings: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.passages.decided(self.now, token);
        match &mut self.threads {
            None => effects.push(Effect::Completed { token, result }),
            Some(threads) => threads.complete(self.now, token, result, from_rings),
        }
    }

    fn submit_read(&mut self, token: u64, lba: Lba, blocks: u32, effects: &mut Vec<Effect>) {
        self.metrics.reads += 1;
        let per_unit = self.layout.unit_sectors;
        let units = lba.0 / per_unit..(lba.0 + u64::from(blocks)).div_ceil(per_unit);
        let mut reading =
            Reading { lba, data: Vec::new(), left: 0, from_rings: 0, has_contents: true, error: None };
        let mut places: Vec<(usize, Ppa)> = Vec::new();
        let mut from_rings = 0;
        for (at, unit) in units.map(Lpn).enumerate() {
            let payload = match self.find(unit) {
                None => Payload::Zero,
                Some(Ok(payload)) => {
                    from_rings += 1;
                    payload
                }
                Some(Err(ppa)) => match self.recent_unit(ppa) {
                    Some((_, payload)) => {
                        from_rings += 1;
                        payload
                    }
                    None => {
                        places.push((at, ppa));
                        Payload::Zero
                    }
                },
            };
            reading.data.push(payload);
        }
        self.metrics.ring_hits += from_rings;
        reading.from_rings = from_rings;
        if blocks == 0 {
            return self.complete(token, Ok(Done::Ok), 0, effects);
        }
        if places.is_empty() {
            let data = reading.data.into_boxed_slice();
            return self.complete(token, Ok(Done::Data(data)), from_rings, effects);
        }
        for part in places.chunks(PLACES_MAX) {
            reading.left += 1;
            let (at, ppas): (Vec<usize>, Vec<Ppa>) = part.iter().copied().unzip();
            let mut lines: Vec<LineId> = ppas.iter().map(|&ppa| self.lines.line_of(ppa).0).collect();
            lines.dedup();
            for &line in &lines {
                self.lines.get_mut(line).readers += 1;
                self.last_read[self.lines.group_of(line)] = Some(read_slot(self.now));
            }
            self.read(&ppas, Task::Read { token, at, lines });
        }
        self.reads.insert(token, reading);
    }

    fn read_answered(
        &mut self,
        (token, at, lines): (u64, Vec<usize>, Vec<LineId>),
        result: Result<Done, DeviceError>,
        effects: &mut Vec<Effect>,
    ) {
        for line in lines {
            self.lines.get_mut(line).readers -= 1;
        }
        let reading = self.reads.get_mut(&token).expect("a read with parts under way");
        reading.left -= 1;
        match units_of(result) {
            Ok(Units { data, .. }) if data.is_empty() => reading.has_contents = false,
            Ok(Units { data, .. }) => {
                for (at, payload) in at.into_iter().zip(data) {
                    reading.data[at] = payload;
                }
            }
            Err(_) => {
                reading.error.get_or_insert(DeviceError::Uncorrectable { at: Address::Lba(reading.lba) });
            }
        }
        if reading.left == 0 {
            let reading = self.reads.remove(&token).expect("it was there");
            let data = if reading.has_contents { reading.data } else { Vec::new() };
            let result = reading.error.map_or(Ok(Done::Data(data.into_boxed_slice())), Err);
            self.complete(token, result, reading.from_rings, effects);
        }
    }

    // ---- writing ----

    /// Programs what rings have, from one ring to the next; the first one waits no longer than the others.
    fn drain(&mut self) -> bool {
        let mut has_moved = false;
        let least = u64::from(self.layout.program_units());
        let rings = self.rings.len();
        for nth in 0..rings {
            let ring = (self.drained + nth) % rings;
            while self.rings[ring].pending() >= least
                || self.rings[ring].pending() > 0 && self.rings[ring].is_forced()
            {
                if self.threads.as_ref().is_some_and(|threads| !threads.is_writer_idle(ring)) {
                    break;
                }
                // What no group takes from this ring it takes from no other.
                if !self.program(ring) {
                    self.drained = ring;
                    return has_moved;
                }
                has_moved = true;
            }
        }
        has_moved
    }

    /// Programs the next entries of a ring; returns false if no group has a page for them now.
    fn program(&mut self, ring: usize) -> bool {
        let Some((line, die, ppas)) = self.next_pages() else { return false };
        let mut entries = Vec::new();
        let (mut records, mut data) = (Vec::new(), Vec::new());
        let mut of_users = 0;
        for &ppa in &ppas {
            let Some(position) = self.rings[ring].take_pending() else { break };
            let is_uncounted = self.has_planted(PlantedHostBug::MembersUncounted);
            let entry = self.rings[ring].at(position);
            entry.state = State::Submitted;
            of_users += u64::from(!entry.is_gc && !matches!(entry.change, Change::Order(_)));
            let (mut record, payload) = entry.image(self.layout.unit_bytes);
            record.member = self.orders.member(entry.member, is_uncounted);
            record.seq = self.recorded_seq(record.seq, position);
            entries.push((position, ppa));
            records.push(record);
            data.push(payload);
        }
        self.metrics.padded_units += (ppas.len() - entries.len()) as u64;
        self.metrics.programmed_units += ppas.len() as u64;
        self.metrics.user_programmed_units += of_users;
        self.note_owners(line, &ppas, &records);
        let blocks = self.blocks_of(&ppas);
        self.programs[die as usize] += 1;
        let op = self.write(ppas, records, data);
        self.send_program(op, die, Task::Program { ring, entries, line, die, blocks });
        true
    }

    /// A write of whole pages; what is missing at the end is padding.
    pub(super) fn write(&self, ppas: Vec<Ppa>, mut records: Vec<OobRecord>, mut data: Vec<Payload>) -> Op {
        records.resize(ppas.len(), PAD_RECORD);
        data.resize(ppas.len(), Payload::Zero);
        let blocks = ppas.len() as u32 * self.layout.unit_sectors as u32;
        let data = Data::Units(data.into_iter().collect());
        PpaWrite { ppas: ppas.into(), blocks, records: records.into(), data }.into()
    }

    fn note_owners(&mut self, line: LineId, ppas: &[Ppa], records: &[OobRecord]) {
        for (&ppa, record) in ppas.iter().zip(records) {
            let number = self.lines.unit_number(ppa).expect("a unit of the line");
            let line = self.lines.get_mut(line);
            if let Some(owner) = line.owners.get_mut(number) {
                *owner = (record.owner, record.seq);
            }
            if let Some(member) = record.member {
                let last = line.members.entry(member.stream).or_default();
                *last = member.epoch.max(*last);
            }
        }
    }

    fn blocks_of(&self, ppas: &[Ppa]) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> =
            ppas.iter().map(|&ppa| self.layout.flash.page_of(ppa).0.block).collect();
        blocks.dedup();
        blocks
    }

    /// Units of the next pages to be programmed, of one die: groups take turns, and those that collect are passed over in proportion.
    fn next_pages(&mut self) -> Option<(LineId, u32, Vec<Ppa>)> {
        let groups = self.collecting.len();
        let active = self.collecting.iter().flatten().count();
        for tries in 0..2 * groups {
            let group = (self.turn + tries) % groups;
            if tries < groups && active < groups && self.collecting[group].is_some() {
                self.wheel += 1;
                if self.wheel % groups as u64 >= active as u64 {
                    continue;
                }
            }
            self.prepare(group);
            let is_read = |slot: u64| read_slot(self.now) - slot <= 1;
            let limit = match self.last_read[group] {
                Some(slot) if self.config.reads_first && is_read(slot) => 1,
                _ => self.config.programs_per_die,
            };
            let program = self.lines.take_pages(group, &self.programs, limit);
            if let Some(program) = program {
                self.turn = (group + 1) % groups;
                let ppas = program.pages.into_iter().flat_map(|at| self.layout.flash.units_of(at));
                return Some((program.line, program.die, ppas.collect()));
            }
        }
        None
    }

    /// Sees to an open line of the group with room, as far as there is one.
    fn prepare(&mut self, group: usize) {
        if self.lines.is_full(group) {
            let line = self.lines.end(group).expect("a full line is open");
            self.finish(line);
        }
        if self.lines.open[group].is_none() && self.lines.has_free(group) {
            if let Some(page) = self.lines.open_next(group) {
                let line = self.lines.open[group].expect("it was opened");
                self.program_meta(line, page);
            }
            self.free_changed(group);
        }
    }

    /// Writes the end metadata of a line that has ended, once all of its programs have and nobody counts members there.
    fn finish(&mut self, line: LineId) {
        if self.lines.has_ended(line)
            && !self.lines.get(line).has_failed
            && (self.lines.get(line).unstable > 0 || !self.is_counted_out(line))
        {
            self.unfinished.insert(line);
            return;
        }
        for page in self.lines.finish(line) {
            self.program_meta(line, page);
        }
    }

    /// Tries again what waited for members.
    fn finish_again(&mut self) {
        for line in std::mem::take(&mut self.unfinished) {
            self.finish(line);
        }
    }

    /// A program of a line has ended.
    fn program_ended(&mut self, line: LineId) {
        self.lines.get_mut(line).programs -= 1;
        self.finish(line);
        let pages = self.layout.flash.pages_per_block;
        // A line without end metadata leaves chunks open.
        let is_whole = |line: &Line| {
            line.state == LineState::Closed && !line.has_failed && line.next.iter().all(|&next| next == pages)
        };
        if !self.recent.is_needless() && is_whole(self.lines.get(line)) {
            self.lines.blocks(line).for_each(|block| self.recent.forget(block));
        }
    }

    fn program_meta(&mut self, line: LineId, (at, contents): MetaPage) {
        let ppas: Vec<Ppa> = self.layout.flash.units_of(at).collect();
        let die = self.layout.die_of(at.block);
        let data: Vec<Payload> =
            contents.into_iter().map(|page| bytes(page, self.layout.unit_bytes)).collect();
        self.metrics.meta_units += ppas.len() as u64;
        self.metrics.programmed_units += ppas.len() as u64;
        self.lines.get_mut(line).programs += 1;
        let op = self.write(ppas, vec![META_RECORD; data.len()], data);
        self.send_program(op, die, Task::Meta { line, block: at.block });
    }

    fn free_changed(&mut self, group: usize) {
        let blocks = |group| self.lines.free_count(group) * self.layout.blocks_per_line();
        match &mut self.limiter {
            Limiter::Windows(windows) => windows.set_free((0..self.collecting.len()).map(blocks).sum()),
            Limiter::Scores(scores) => scores.set_free(group, blocks(group)),
        }
    }

    fn arm_pads(&mut self, effects: &mut Vec<Effect>) {
        for (ring, pad_at) in self.rings.iter().zip(&mut self.pad_at) {
            match ring.pending() {
                0 => *pad_at = None,
                // What is to leave anyway waits for a page, and a call would change nothing.
                _ if ring.flush_point == ring.mem => {}
                _ if pad_at.is_none() => {
                    let at = self.now + self.config.pad_after;
                    *pad_at = Some(at);
                    effects.push(Effect::At(at));
                }
                _ => {}
            }
        }
    }

    // ---- answers from below ----

    fn answered(&mut self, task: Task, result: Result<Done, DeviceError>, effects: &mut Vec<Effect>) {
        for Waiting { op, queue, task } in self.turns.ended(&task) {
            self.send(op, queue, task);
        }
        match task {
            Task::Read { token, at, lines } => self.read_answered((token, at, lines), result, effects),
            Task::Program { ring, entries, line, die, blocks } => {
                self.programs[die as usize] -= 1;
                let is_done = result.is_ok();
                if !is_done {
                    self.metrics.program_failures += 1;
                    blocks.iter().for_each(|&block| self.program_failed(line, block, &result));
                }
                if is_done && !self.recent.is_needless() {
                    self.keep_recent(ring, &entries);
                }
                for (position, ppa) in entries {
                    if is_done || self.has_planted(PlantedHostBug::FailedProgramForgotten) {
                        self.programmed(ring, position, ppa);
                    } else {
                        self.rings[ring].failed(position);
                    }
                }
                self.program_ended(line);
                self.rings.iter_mut().for_each(|ring| ring.advance());
                self.answer_waiters(effects);
            }
            Task::Meta { line, block } => {
                if result.is_err() {
                    self.metrics.program_failures += 1;
                    self.program_failed(line, block, &result);
                }
                self.program_ended(line);
            }
            Task::Erase { line, block } => {
                // OCSSD 2.0 does not erase what is erased already.
                let free = OpenError::InvalidReset;
                let is_free = matches!(result, Err(DeviceError::Open { what, .. }) if what == free);
                self.erase_answered(line, block, result.is_ok() || is_free);
            }
            Task::Collect { group, units } => self.collected(group, units, units_of(result)),
            Task::Recover(ask) => {
                let mut recovery = self.recovery.take().expect("it asked");
                if !recovery.answered(self, ask, result) {
                    self.recovery = Some(recovery);
                    return;
                }
                for group in 0..self.collecting.len() {
                    self.free_changed(group);
                }
                self.is_opening = self.orders.is_wanted;
                if !self.is_opening {
                    self.begin(effects);
                }
            }
        }
    }

    /// Keeps what the device does not give back yet.
    fn keep_recent(&mut self, ring: usize, entries: &[(u64, Ppa)]) {
        for &(position, ppa) in entries {
            let entry = self.rings[ring].at(position);
            let (mut record, payload) = entry.image(self.layout.unit_bytes);
            record.seq = self.recorded_seq(record.seq, position);
            self.recent.add(self.layout.flash.page_of(ppa).0.block, (ppa, record, payload));
        }
    }

    /// Record and content of a unit that the device may not give back yet.
    pub(super) fn recent_unit(&self, ppa: Ppa) -> Option<(OobRecord, Payload)> {
        if self.recent.is_needless() {
            return None;
        }
        let (_, record, payload) = self.recent.find(self.layout.flash.page_of(ppa).0.block, ppa)?;
        Some((*record, payload.clone()))
    }

    /// What a failed program says of its block. A chunk that a power loss in a part of a write unit has closed early, or whose write pointer it
    /// has left behind a page that reads as never written, is good again after an erase; whether its block is, the erase tells.
    fn program_failed(&mut self, line: LineId, block: BlockId, result: &Result<Done, DeviceError>) {
        match result {
            Err(
                DeviceError::Open { what: OpenError::ClosedEarly, .. }
                | DeviceError::Overwrite { .. }
                | DeviceError::OutOfOrder { .. },
            ) => self.lines.closed_early(line),
            _ => self.lines.failed(line, block),
        }
    }

    /// An entry is on the medium. A member of a stream counts when those of earlier epochs are there, too.
    fn programmed(&mut self, ring: usize, position: u64, ppa: Ppa) {
        let entry = self.rings[ring].at(position);
        let Some(member) = entry.member else { return self.persisted(ring, position, ppa) };
        entry.state = State::Programmed;
        self.lines.get_mut(self.lines.line_of(ppa).0).unstable += 1;
        if self.has_planted(PlantedHostBug::MembersAlwaysStable) {
            self.persisted(ring, position, ppa);
        }
        for (ring, position, ppa) in self.orders.programmed(member, (ring, position, ppa)) {
            self.lines.get_mut(self.lines.line_of(ppa).0).unstable -= 1;
            if !self.has_planted(PlantedHostBug::MembersAlwaysStable) {
                self.persisted(ring, position, ppa);
            }
        }
    }

    /// An entry is on the medium for good.
    fn persisted(&mut self, ring: usize, position: u64, ppa: Ppa) {
        let entry = self.rings[ring].at(position);
        entry.state = State::Persistent;
        let (seq, is_gc) = (entry.seq, entry.is_gc);
        let lpns: Vec<Lpn> = entry.before.iter().map(|before| before.lpn).collect();
        let ranges = match &entry.change {
            Change::Write(_) => None,
            Change::Trim(ranges) => Some(ranges.clone()),
            Change::Order(_) => {
                self.lines.set_valid(ppa);
                return self.order_page_persisted(ppa);
            }
        };
        if let Limiter::Windows(windows) = &mut self.limiter {
            windows.left(is_gc);
        }
        self.lines.set_valid(ppa);
        match ranges {
            None => {
                if !self.settle(lpns[0], Word::Place(ppa), seq) {
                    self.lines.set_invalid(ppa);
                }
            }
            Some(ranges) => {
                // The record counts for itself while its units are looked at.
                self.trims.insert(ppa, TrimRecord { seq, live: 1, ranges });
                for lpn in lpns {
                    if self.settle(lpn, Word::Trimmed(ppa), seq) {
                        self.trims.get_mut(&ppa).expect("it counts for itself").live += 1;
                    }
                }
                self.release(Word::Trimmed(ppa));
            }
        }
    }

    /// A version of a unit is durable; returns whether it is the newest such version.
    fn settle(&mut self, lpn: Lpn, place: Word, seq: u64) -> bool {
        let Word::Cached(slot) = self.map.get(lpn) else { return false };
        let entry = self.rings[usize::from(slot.ring)].find(slot).expect("the map names living entries");
        let before = entry.before(lpn);
        if seq <= before.seq {
            return false;
        }
        before.seq = seq;
        let old = std::mem::replace(&mut before.place, place);
        self.release(old);
        true
    }

    // ---- erasing ----

    /// Begins to erase a line without valid units.
    pub(super) fn begin_erase(&mut self, line: LineId) {
        let mut waiting: VecDeque<BlockId> = self.lines.begin_erase(line).into();
        if self.has_planted(PlantedHostBug::StartErasedLast) {
            waiting.rotate_left(1);
        }
        let left = waiting.len() as u32;
        waiting.iter().for_each(|&block| self.recent.forget(block));
        self.metrics.lines_erased += 1;
        self.erasing.push(Erasing { line, waiting, left });
        // The block with the start metadata is erased alone and first.
        self.erase_next(self.erasing.len() - 1);
    }

    fn erase_next(&mut self, at: usize) {
        let Erasing { line, ref mut waiting, .. } = self.erasing[at];
        let Some(block) = waiting.pop_front() else { return };
        let die = self.layout.die_of(block);
        let first = self.layout.flash.ppa(PageAddr { block, page: 0 }, 0);
        self.send(Op::PpaErase([first].into()), die, Task::Erase { line, block });
    }

    fn erase_answered(&mut self, line: LineId, block: BlockId, is_done: bool) {
        if is_done {
            self.lines.erase_done(block);
        } else {
            self.metrics.erase_failures += 1;
            self.lines.erase_failed(block);
        }
        let at =
            self.erasing.iter().position(|erasing| erasing.line == line).expect("the line is being erased");
        if !is_done && block == self.lines.first_block(line) {
            // Its start metadata stays, so the other blocks must: what it describes is there, though nothing of it is valid.
            self.erasing.remove(at);
            self.lines.retire(line);
            return self.free_changed(self.lines.group_of(line));
        }
        self.erasing[at].left -= 1;
        while !self.erasing[at].waiting.is_empty() {
            self.erase_next(at);
        }
        if self.erasing[at].left == 0 {
            self.erasing.remove(at);
            self.lines.erased(line);
            self.free_changed(self.lines.group_of(line));
        }
    }

    /// Erases a free line of each group that has no erased one.
    fn erase(&mut self) -> bool {
        let mut has_moved = false;
        for group in 0..self.collecting.len() {
            if let Some(line) = self.lines.to_erase(group) {
                self.begin_erase(line);
                has_moved = true;
            }
        }
        has_moved
    }

    /// Panics if an account does not balance. No command is under way.
    pub fn audit(&self) {
        self.lines.audit();
        let mut live: BTreeMap<Ppa, u64> = BTreeMap::new();
        let mut count = |place: Word| match place {
            Word::Place(ppa) => {
                assert!(self.lines.is_valid(ppa), "unit {} is not valid", ppa.0);
                assert_eq!(live.insert(ppa, 0), None, "unit {} counts twice", ppa.0);
            }
            Word::Trimmed(ppa) => *live.entry(ppa).or_default() += 1,
            Word::Empty | Word::Cached(_) => {}
        };
        (0..self.layout.user_units).for_each(|unit| count(self.map.get(Lpn(unit))));
        self.order_places().for_each(|ppa| count(Word::Place(ppa)));
        for ring in &self.rings {
            for (position, entry) in ring.entries() {
                for before in &entry.before {
                    let is_named = self.map.get(before.lpn) == Word::Cached(ring.slot(position));
                    // What was published early or superseded names nothing any more.
                    if is_named {
                        count(before.place);
                    }
                }
            }
        }
        for (ppa, record) in &self.trims {
            assert_eq!(live.get(ppa), Some(&record.live), "the record of a deallocation in unit {}", ppa.0);
        }
        let valid: u32 = self.lines.ids().map(|line| self.lines.get(line).valid).sum();
        assert_eq!(valid as usize, live.len(), "valid units and those that something names");
    }
}

/// Number of the slot of 100 ms in which a read counts; it counts in the next one, too.
fn read_slot(now: Instant) -> u64 {
    now.as_nanos() / 100_000_000
}

/// The units of a read's answer.
pub(super) fn units_of(result: Result<Done, DeviceError>) -> Result<Units, DeviceError> {
    match result? {
        Done::Units(units) => Ok(*units),
        _ => Err(DeviceError::InvalidField("a read of units is answered with units")),
    }
}

/// The content of a unit that begins with these bytes.
pub(super) fn bytes(mut page: Vec<u8>, unit_bytes: usize) -> Payload {
    page.resize(unit_bytes, 0);
    Payload::Bytes(Arc::from(page))
}

impl Entry {
    /// Record and content of the unit that the entry becomes.
    fn image(&self, unit_bytes: usize) -> (OobRecord, Payload) {
        let (owner, payload) = match &self.change {
            Change::Write(payload) => (Owner::Lpn(self.before[0].lpn), payload.clone()),
            Change::Trim(ranges) => {
                (Owner::Meta, bytes(TrimPage { ranges: ranges.clone() }.encode(), unit_bytes))
            }
            Change::Order(page) => (Owner::Meta, bytes(page.clone(), unit_bytes)),
        };
        (OobRecord { owner, seq: self.seq, member: None }, payload)
    }
}
