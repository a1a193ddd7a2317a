//! What users see: a disk on threads, and a handle for each thread that uses it.
//!
//! A handle blocks. [`Handle::submit_write`] is the other form: its ticket is the part that waits for the medium, so a thread may have
//! as many of them as it likes.

use crate::assembly::{Assembly, Geometry, REQUEST_UNITS};
use crate::collector::Collector;
use crate::content::{Content, UNIT_BYTES, Unit, WORDS, unit_of_bytes, unit_to_bytes};
use crate::fault::{Fault, OpenError};
use crate::measure::{Lap, Laps};
use crate::medium::{Medium, PowerLost};
use crate::metrics::{Counters, ThreadsMetrics};
use crate::pending::Pending;
use crate::pool::{Lease, Worker};
use crate::queue::Queue;
use crate::recovery::recover;
use crate::ring::flags;
use crate::shared::{Limiter, Shared};
use crate::spin::SpinLock;
use crate::sync::{Arc, Backoff, Builder, JoinHandle, Ordering, sleep};
use crate::versions::{Found, Places, Reserved};
use crate::writer::Writer;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::host_word::Word;

/// Units of a request that are read from a file at the same time.
const READS_MAX: usize = 12;

/// A disk.
#[derive(Debug)]
pub struct Disk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Numbers and pool ends of handles that may be given out.
    handles: Arc<SpinLock<Vec<(usize, Worker)>>>,
}

/// Ends everything if its thread panics: nobody else would answer those who wait for it.
struct StopsAll<'a>(&'a Shared);

impl Drop for StopsAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.medium.fail("a thread of the device has panicked");
        }
    }
}

impl Disk {
    /// Opens a disk on an erased medium in memory.
    ///
    /// # Errors
    /// A number of the geometry that cannot be.
    pub fn open(assembly: Assembly, geometry: Geometry) -> Result<Self, OpenError> {
        geometry.check(assembly)?;
        Self::open_medium(assembly, Arc::new(Medium::new(geometry)))
    }

    /// Opens a disk on what another one left on its medium, with any assembly.
    ///
    /// # Errors
    /// A number of the geometry that cannot be, or a file that cannot be read.
    pub fn open_medium(assembly: Assembly, medium: Arc<Medium>) -> Result<Self, OpenError> {
        Self::open_watched(assembly, medium, &mut |_| true)
    }

    /// The same; `progress` gets the fraction of a file that is read, and says whether to go on. Until all is read nothing is changed.
    ///
    /// # Errors
    /// As [`Self::open_medium`], or it was stopped.
    pub fn open_watched(
        assembly: Assembly,
        medium: Arc<Medium>,
        progress: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Self, OpenError> {
        medium.geometry().check(assembly)?;
        Self::recovered(assembly, medium, progress)
    }

    /// The same without a look at the geometry: where too little is kept from the user, the device becomes full.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open_unchecked(assembly: Assembly, medium: Arc<Medium>) -> Result<Self, OpenError> {
        Self::recovered(assembly, medium, &mut |_| true)
    }

    /// Opens a disk with a bug, for the models that must find it.
    ///
    /// # Errors
    /// As [`Self::open_medium`].
    #[cfg(shuttle)]
    pub fn open_planted(
        assembly: Assembly,
        medium: Arc<Medium>,
        planted: Option<crate::planted::PlantedBug>,
    ) -> Result<Self, OpenError> {
        medium.geometry().check(assembly)?;
        medium.power_on(&mut |_| true)?;
        let (mut shared, ends) = Shared::new(assembly, medium);
        shared.versions.planted = planted;
        Self::started(shared, ends)
    }

    fn recovered(
        assembly: Assembly,
        medium: Arc<Medium>,
        progress: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Self, OpenError> {
        medium.power_on(progress)?;
        let (shared, ends) = Shared::new(assembly, medium);
        Self::started(shared, ends)
    }

    /// Recovers what the medium has, and starts the threads.
    fn started(shared: Shared, mut ends: Vec<Worker>) -> Result<Self, OpenError> {
        if recover(&shared).is_err() {
            let error = shared.medium.failure().and_then(std::io::Error::raw_os_error);
            return Err(OpenError::File(std::io::Error::from_raw_os_error(error.unwrap_or(libc::EIO))));
        }
        if (0..shared.lines.groups()).all(|group| shared.lines.free_blocks(group) == 0) {
            return Err(OpenError::NoLine);
        }
        let shared = Arc::new(shared);
        let mut threads = Vec::new();
        let mut start = |name: String, work: Box<dyn FnOnce(&Shared) + Send>| {
            let shared = shared.clone();
            let thread = Builder::new().name(name).spawn(move || {
                let _guard = StopsAll(&shared);
                work(&shared);
            });
            threads.push(thread.expect("a thread of its own"));
        };
        let end = ends.pop().expect("the collector's");
        start("collector".into(), Box::new(move |shared| Collector::new(shared, end).run()));
        for ring in (0..shared.writers.len()).rev() {
            let end = ends.pop().expect("a writer's");
            start(format!("writer {ring}"), Box::new(move |shared| Writer::new(shared, ring, end).run()));
        }
        let handles = ends.into_iter().enumerate().rev().collect();
        Ok(Self { shared, threads, handles: Arc::new(SpinLock::new(handles)) })
    }

    /// Handles at most at a time.
    pub fn workers(&self) -> u32 {
        self.shared.geometry.workers
    }

    /// A handle for a thread; `None` if all are given out. The n-th one that is open belongs to CPU n.
    pub fn handle(&self) -> Option<Handle> {
        let (number, end) = self.handles.lock().pop()?;
        let ring = number % self.shared.writers.len();
        Some(Handle {
            shared: self.shared.clone(),
            number,
            ring,
            end: Some(end),
            queue: self.shared.medium.queue(READS_MAX),
            turn: 0,
            laps: Laps::new(),
            handles: self.handles.clone(),
        })
    }

    /// What it is on.
    pub fn medium(&self) -> &Medium {
        &self.shared.medium
    }

    /// Logical units.
    pub fn units(&self) -> u64 {
        self.shared.geometry.user_units
    }

    /// Units that are written, and neither deallocated nor in a ring only.
    pub fn mapped_units(&self) -> u64 {
        let map = &self.shared.versions.map;
        (0..map.units()).filter(|&lpn| matches!(map.get(Lpn(lpn)), Word::Place(_))).count() as u64
    }

    /// Counters so far.
    pub fn metrics(&self) -> ThreadsMetrics {
        ThreadsMetrics::sum(&self.shared.counters)
    }

    /// Nanoseconds that threads have waited for locks: of rings, of the map, of the pool.
    #[cfg(feature = "measure")]
    pub fn waited_ns(&self) -> [u64; 3] {
        let Shared { versions, pool, .. } = &*self.shared;
        let rings = versions.rings.iter().map(|ring| ring.producer.waited_ns()).sum();
        [rings, versions.map.waited_ns(), pool.waited_ns()]
    }

    /// Ends all threads, without writing anything that has not been flushed, and gives back the medium.
    pub fn close(self) -> Arc<Medium> {
        self.shared.end();
        self.shared.medium.clone()
    }

    /// Ends all threads once everything that was written is flushed, and closes a file in order. Whoever opens that learns of damage to its
    /// records since.
    ///
    /// # Errors
    /// The system's reason.
    pub fn seal(&mut self) -> std::io::Result<()> {
        self.end();
        self.shared.medium.seal()
    }

    fn end(&mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("a thread of the disk panicked");
            }
        }
    }

    /// Cuts the power while requests may be under way, and gives back what is left. Requests that are not answered fail, also when the
    /// power is back.
    pub fn cut(self) -> Arc<Medium> {
        self.shared.medium.power_off();
        self.shared.end();
        self.shared.medium.clone()
    }

    /// Panics if an account does not balance, once GC has nothing under way. Every request was answered.
    pub fn audit(&self) {
        let Shared { versions, lines, .. } = &*self.shared;
        let mut counts = (0, 1);
        for _ in 0..2_000 {
            for (number, ring) in versions.rings.iter().enumerate() {
                ring.force(ring.mem.load(Ordering::Acquire));
                self.shared.writers[number].wake();
                versions.publish(number, lines);
            }
            let words = (0..versions.map.units()).map(|lpn| versions.map.get(Lpn(lpn)));
            let named = words.filter(|word| matches!(word, Word::Place(_) | Word::Trimmed(_))).count();
            counts = (lines.valid_total(), named as u64);
            if counts.0 == counts.1 {
                return;
            }
            sleep(std::time::Duration::from_millis(1));
        }
        panic!("{} units are valid, and the map names {}", counts.0, counts.1);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
    }
}

/// One thread's way to a disk.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    number: usize,
    ring: usize,
    /// It is there until the handle is dropped.
    end: Option<Worker>,
    queue: Option<Queue<'static>>,
    turn: usize,
    laps: Laps,
    handles: Arc<SpinLock<Vec<(usize, Worker)>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.handles.lock().extend(self.end.take().map(|end| (self.number, end)));
    }
}

/// The end of a request that may have to wait for the medium.
#[derive(Debug)]
#[must_use = "a request with FUA, or a FLUSH, is answered when its ticket is"]
pub struct Ticket {
    waits: Option<(Arc<Shared>, Arc<Pending>)>,
}

impl Ticket {
    /// Of a request that has nothing to wait for.
    pub fn answered() -> Self {
        Self { waits: None }
    }

    /// Waits until the request is answered.
    ///
    /// # Errors
    /// The power was lost before.
    pub fn wait(self) -> Result<(), Fault> {
        let Some((shared, pending)) = self.waits else { return Ok(()) };
        if !pending.wait(|| shared.goes_on()) {
            return Err(shared.fault());
        }
        // A sync after the next recovery says nothing about what the power cut took.
        match shared.medium.sync() {
            Ok(()) if shared.goes_on() => Ok(()),
            _ => Err(shared.fault()),
        }
    }
}

/// What a request puts into rings.
#[derive(Clone, Copy)]
enum Change<'a> {
    Write(&'a [Unit]),
    Bytes(&'a [[u8; UNIT_BYTES]]),
    Trim(u64),
}

impl Handle {
    fn counters(&self) -> &Counters {
        &self.shared.counters[self.number]
    }

    fn check(&self, lpn: Lpn, count: u64) -> Result<(), Fault> {
        let end = self.shared.geometry.user_units;
        match lpn.0.checked_add(count) {
            Some(last) if last <= end => Ok(()),
            _ => Err(Fault::OutOfRange(Lpn(lpn.0.max(end)))),
        }
    }

    /// Writes units from `lpn` on; with `fua` they are on the medium when this returns.
    ///
    /// # Errors
    /// Parts of the request may have been executed.
    pub fn write(&mut self, lpn: Lpn, units: &[Unit], fua: bool) -> Result<(), Fault> {
        self.submit_write(lpn, units, fua)?.wait()
    }

    /// Writes units without waiting for the medium; with `fua` the ticket does.
    ///
    /// # Errors
    /// Parts of the request may have been executed.
    pub fn submit_write(&mut self, lpn: Lpn, units: &[Unit], fua: bool) -> Result<Ticket, Fault> {
        self.counters().writes.add(1);
        self.change(lpn, Change::Write(units), fua)
    }

    /// The same with bytes, of whole units.
    ///
    /// # Errors
    /// Parts of the request may have been executed.
    pub fn submit_bytes(&mut self, lpn: Lpn, bytes: &[u8], fua: bool) -> Result<Ticket, Fault> {
        let (units, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "{} bytes are no whole units", bytes.len());
        self.counters().writes.add(1);
        self.change(lpn, Change::Bytes(units), fua)
    }

    /// Writes a part of a unit, from byte `from` of it on, without waiting for the medium; with `fua` the ticket does. A write of another handle
    /// to the same unit comes before or after it as a whole.
    ///
    /// # Errors
    /// Nothing was executed.
    pub fn submit_part(&mut self, lpn: Lpn, from: usize, bytes: &[u8], fua: bool) -> Result<Ticket, Fault> {
        self.check(lpn, 1)?;
        self.counters().writes.add(1);
        let (ring, Reserved { first, seq }) = self.reserve(1)?;
        let Self { shared, number, queue, end, .. } = self;
        let end = end.as_mut().expect("it is there until the drop");
        let read = |ppa: Ppa, unit: &mut Unit| {
            if !shared.medium.read_memory(ppa, unit)? {
                let item = shared.item(end);
                shared.medium.read(queue, std::iter::once((ppa, &item.buffer)))?;
                item.buffer.read(unit);
                end.give(item);
            }
            Ok::<(), PowerLost>(())
        };
        let merge = |unit: &mut Unit| {
            let mut whole = unit_to_bytes(unit);
            whole[from..from + bytes.len()].copy_from_slice(bytes);
            *unit = unit_of_bytes(&whole);
        };
        let place = [ring as u64, first];
        let changed = shared.versions.change_part(place, *number, lpn, seq, &shared.lines, read, merge);
        shared.versions.installed(*number);
        let is_in = changed.map_err(|PowerLost| shared.fault())?;
        self.counters().user_units.add(1);
        if !fua {
            return Ok(Ticket::answered());
        }
        if !is_in {
            // It is durable when what came after it is.
            return Ok(self.submit_flush());
        }
        let pending = Arc::new(Pending::new());
        let shared = &*self.shared;
        shared.versions.wait_for(ring, first + 1, &pending, &mut |ring| shared.writers[ring].wake());
        pending.done();
        Ok(Ticket { waits: Some((self.shared.clone(), pending)) })
    }

    /// Deallocates units: they read as zeros. Each that was written is a record on the medium.
    ///
    /// # Errors
    /// Parts of the request may have been executed.
    pub fn trim(&mut self, lpn: Lpn, count: u64, fua: bool) -> Result<(), Fault> {
        self.submit_trim(lpn, count, fua)?.wait()
    }

    /// The same without waiting for the medium; with `fua` the ticket does.
    ///
    /// # Errors
    /// Parts of the request may have been executed.
    pub fn submit_trim(&mut self, lpn: Lpn, count: u64, fua: bool) -> Result<Ticket, Fault> {
        self.check(lpn, count)?;
        self.counters().trims.add(1);
        let end = lpn.0 + count;
        let (mut at, mut ticket) = (lpn.0, Ticket::answered());
        // What reads as zeros anyway needs no record.
        while at < end {
            let (run, is_hole) = self.extent(Lpn(at), end - at)?;
            if !is_hole {
                ticket = self.change(Lpn(at), Change::Trim(run), false)?;
            }
            at += run;
        }
        // Whoever asks for FUA waits for the records of who was faster, too.
        Ok(if fua { self.submit_flush() } else { ticket })
    }

    /// How many units from `lpn` on, of at most `most`, are written, or are not; and whether they are not, so that they read as zeros.
    ///
    /// # Errors
    /// A unit is not there.
    pub fn extent(&self, lpn: Lpn, most: u64) -> Result<(u64, bool), Fault> {
        self.check(lpn, most)?;
        let map = &self.shared.versions.map;
        let is_hole = |lpn: u64| matches!(map.get(Lpn(lpn)), Word::Empty | Word::Trimmed(_));
        let first = is_hole(lpn.0);
        let run = (1..most).find(|at| is_hole(lpn.0 + at) != first).unwrap_or(most);
        Ok((run, first))
    }

    /// Has everything written that was answered before, to whichever handle.
    ///
    /// # Errors
    /// The power was lost before.
    pub fn flush(&mut self) -> Result<(), Fault> {
        self.submit_flush().wait()
    }

    /// Begins a FLUSH.
    pub fn submit_flush(&mut self) -> Ticket {
        self.counters().flushes.add(1);
        let pending = Arc::new(Pending::new());
        self.shared.versions.flush(&pending, |ring| self.shared.writers[ring].wake());
        pending.done();
        Ticket { waits: Some((self.shared.clone(), pending)) }
    }

    fn change(&mut self, lpn: Lpn, change: Change<'_>, fua: bool) -> Result<Ticket, Fault> {
        let count = match change {
            Change::Write(units) => units.len() as u64,
            Change::Bytes(units) => units.len() as u64,
            Change::Trim(count) => count,
        };
        self.check(lpn, count)?;
        let pending = fua.then(|| Arc::new(Pending::new()));
        let most = REQUEST_UNITS.min(self.shared.versions.rings[self.ring].len() / 2);
        let mut done = 0;
        while done < count {
            let part = most.min(count - done);
            let (ring, first) = self.enter(
                Lpn(lpn.0 + done),
                part,
                |at, content| match change {
                    Change::Write(units) => content.write(&units[(done + at) as usize]),
                    Change::Bytes(units) => content.set_bytes(&units[(done + at) as usize]),
                    Change::Trim(_) => {}
                },
                matches!(change, Change::Trim(_)),
            )?;
            if let Some(pending) = &pending {
                let shared = &*self.shared;
                shared
                    .versions
                    .wait_for(ring, first + part, pending, &mut |ring| shared.writers[ring].wake());
            }
            done += part;
        }
        self.counters().user_units.add(count);
        Ok(Ticket {
            waits: pending.map(|pending| {
                pending.done();
                (self.shared.clone(), pending)
            }),
        })
    }

    /// Takes entries of a ring for units of the user, as soon as they may enter.
    fn reserve(&mut self, count: u64) -> Result<(usize, Reserved), Fault> {
        self.laps.begin();
        let counted = self.admit(count as u32)?;
        self.laps.end(Lap::Admit);
        let reserved = self.reserve_entries(count);
        self.shared.has_entered(counted);
        self.laps.end(Lap::Reserve);
        reserved
    }

    fn reserve_entries(&mut self, count: u64) -> Result<(usize, Reserved), Fault> {
        let shared = &*self.shared;
        let mut backoff = Backoff::default();
        loop {
            let reserve = |ring| {
                let reserved = shared.versions.reserve(ring, count as u32, Some(self.number), &shared.lines);
                reserved.map(|reserved| (ring, reserved))
            };
            // A ring that is full sends a request to one other (open-channel §2.4).
            let rings = shared.versions.rings.len();
            let other = (self.ring + 1 + self.turn % (rings - 1).max(1)) % rings;
            if let Some(found) = reserve(self.ring).or_else(|| if rings > 1 { reserve(other) } else { None })
            {
                return Ok(found);
            }
            if !shared.goes_on() {
                return Err(shared.fault());
            }
            self.turn += 1;
            self.counters().busy_rings.add(1);
            shared.writers[self.ring].wake();
            backoff.wait();
        }
    }

    /// Brings a part of a request into a ring; returns the ring and the first position.
    fn enter(
        &mut self,
        lpn: Lpn,
        count: u64,
        copy: impl Fn(u64, &Content),
        is_trim: bool,
    ) -> Result<(usize, u64), Fault> {
        let (ring, reserved) = self.reserve(count)?;
        let shared = &*self.shared;
        for at in 0..count {
            let position = reserved.first + at;
            let flag = if is_trim { flags::TRIM } else { 0 };
            let place = [ring as u64, position];
            shared
                .versions
                .fill(place, Lpn(lpn.0 + at), reserved.seq + at, flag, |content| copy(at, content));
            self.laps.end(Lap::Copy);
            shared.versions.install(ring, position);
            self.laps.end(Lap::Install);
        }
        shared.versions.installed(self.number);
        for at in 0..count {
            shared.versions.mark(ring, reserved.first + at);
        }
        let end = reserved.first + count;
        let pending = end - shared.versions.rings[ring].sync.load(Ordering::Relaxed).min(end);
        if pending >= u64::from(shared.geometry.units_per_program) {
            shared.writers[ring].wake();
        }
        self.laps.end(Lap::Mark);
        Ok((ring, reserved.first))
    }

    /// Waits until the limiter lets units enter, and there is room for them, beside all who have been let in and have no entries yet. Returns
    /// how many units are counted as such.
    fn admit(&mut self, count: u32) -> Result<u32, Fault> {
        let shared = &self.shared;
        let mut backoff = Backoff::default();
        loop {
            if !shared.goes_on() {
                return Err(shared.fault());
            }
            shared.user_writes();
            if !shared.has_room() {
                if shared.is_full.load(Ordering::Acquire) {
                    return Err(Fault::Full);
                }
                self.counters().gated.add(1);
                shared.collector.wake();
            } else if let Some(counted) = shared.may_wait(count) {
                let gc_runs = shared.collecting.load(Ordering::Acquire) > 0;
                let gc_waits = shared.gc_waits.load(Ordering::Acquire);
                let is_admitted = match &shared.limiter {
                    Limiter::Windows(windows) => windows.admit_user(count),
                    Limiter::Scores(scores) => scores.admit_user(count, gc_runs, gc_waits),
                };
                if is_admitted {
                    return Ok(counted);
                }
                shared.has_entered(counted);
                self.counters().limited.add(1);
                shared.writers[self.ring].wake();
            }
            backoff.wait();
        }
    }

    /// Nanoseconds of each part of this handle's requests so far, in the order of [`LAPS`](crate::LAPS).
    #[cfg(feature = "measure")]
    pub fn laps_ns(&self) -> [u64; crate::LAPS.len()] {
        self.laps.ns
    }

    /// Reads units from `lpn` on.
    ///
    /// # Errors
    /// The power was lost, or a unit is not there.
    pub fn read(&mut self, lpn: Lpn, units: &mut [Unit]) -> Result<(), Fault> {
        self.check(lpn, units.len() as u64)?;
        self.counters().reads.add(1);
        self.read_units(&mut (lpn.0..).map(Lpn).zip(units).collect::<Vec<_>>())
    }

    /// Executes reads at the same time, each of units from its `Lpn` on.
    ///
    /// # Errors
    /// The power was lost, or a unit is not there.
    pub fn read_many<'a>(&mut self, reads: impl Iterator<Item = (Lpn, &'a mut [Unit])>) -> Result<(), Fault> {
        let mut all = Vec::new();
        for (lpn, units) in reads {
            self.check(lpn, units.len() as u64)?;
            self.counters().reads.add(1);
            all.extend((lpn.0..).map(Lpn).zip(units));
        }
        self.read_units(&mut all)
    }

    fn read_units(&mut self, units: &mut [(Lpn, &mut Unit)]) -> Result<(), Fault> {
        units.chunks_mut(READS_MAX).try_for_each(|part| self.read_part(part))
    }

    fn read_part(&mut self, units: &mut [(Lpn, &mut Unit)]) -> Result<(), Fault> {
        let Self { shared, number, end, queue, laps, .. } = self;
        let shared = &**shared;
        let end = end.as_mut().expect("it is there until the drop");
        // Units of a file, whose lines are held.
        let mut on_file: Vec<(usize, Ppa, Lease<'_>)> = Vec::new();
        let mut result = Ok(());
        for (at, (lpn, unit)) in units.iter_mut().enumerate() {
            laps.begin();
            let found = shared.versions.find(*lpn, unit, &shared.lines);
            laps.end(Lap::Find);
            match found {
                Found::Zeros => **unit = [0; WORDS],
                Found::Copied => shared.counters[*number].ring_hits.add(1),
                Found::Place(ppa) => {
                    let item = shared.item(end);
                    item.list.set_word(0, ppa.0);
                    match shared.medium.read_memory(ppa, unit) {
                        Ok(false) => {
                            on_file.push((at, ppa, item));
                            continue;
                        }
                        read => result = result.and(read.map(|_| ())),
                    }
                    end.give(item);
                    shared.lines.release(ppa);
                    laps.end(Lap::Device);
                }
            }
        }
        if !on_file.is_empty() {
            let reads = on_file.iter().map(|(_, ppa, item)| (*ppa, &item.buffer));
            result = result.and(shared.medium.read(queue, reads));
            for (at, ppa, item) in on_file {
                item.buffer.read(units[at].1);
                end.give(item);
                shared.lines.release(ppa);
            }
            laps.end(Lap::Device);
        }
        // What was read after the end belongs to another life of the medium.
        if result.is_ok() && shared.goes_on() { Ok(()) } else { Err(shared.fault()) }
    }
}
