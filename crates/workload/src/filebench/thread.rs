//! One thread of a model: it executes its flowops one after the other, until the run is over.
//!
//! Invariant: a flowop is measured from its first call of the file system to its last; its file is chosen before.

use super::error::RunError;
use super::halt::Halt;
use super::model::{Flowop, Op};
use super::pool::{Found, Pool, Wanted};
use super::shared::{Shared, Totals};
use flashweir_core::signal::Signal;
use flashweir_core::{Duration, Instant, RandomStream};
use flashweir_fs::vfs::{Errno, File, Follow, Fs, OpenFlags, PAGE_BYTES, Seek, Sink, Source, SyncKind};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of passes through all flowops in zero time after which time is considered to stand still.
const TIMELESS_PASSES_MAX: u32 = 1000;

type Step<T = ()> = Result<T, Halt>;

/// An open file of a thread.
struct Open<F: Fs> {
    file: Rc<File<F>>,
    fileset: usize,
    number: u32,
}

impl<F: Fs> Clone for Open<F> {
    fn clone(&self) -> Self {
        Self { file: Rc::clone(&self.file), ..*self }
    }
}

/// Files of a set that a thread uses in turn; each stays open from its first use.
struct Rotation<F: Fs> {
    files: Vec<Option<Open<F>>>,
    next: usize,
    /// Position of the rotation for the next file to be opened.
    pick: Cell<u32>,
}

/// Writes that were begun and may not have ended.
#[derive(Debug, Default)]
struct Writes {
    count: Cell<u64>,
    ended: Signal,
}

/// State of a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    seen: Option<u64>,
    /// Allowance before it has to wait; negative for a debt.
    credit: i64,
}

pub(super) struct Runner<F: Fs> {
    shared: Rc<Shared<F>>,
    /// Indices of process and thread in the model.
    place: (usize, usize),
    /// Number of the first flowop of this thread among all.
    first_flowop: usize,
    instance: usize,
    stream: RandomStream,
    fds: BTreeMap<usize, Open<F>>,
    rotations: BTreeMap<usize, Rotation<F>>,
    writes: Rc<Writes>,
    /// Totals of each flowop of this thread.
    counts: Vec<Totals>,
    limits: Vec<Limit>,
}

impl<F: Fs> Runner<F> {
    pub(super) fn new(
        shared: Rc<Shared<F>>,
        place: (usize, usize),
        first_flowop: usize,
        instance: usize,
        stream: RandomStream,
    ) -> Self {
        let flowops = shared.model.processes[place.0].threads[place.1].flowops.len();
        Self {
            shared,
            place,
            first_flowop,
            instance,
            stream,
            fds: BTreeMap::new(),
            rotations: BTreeMap::new(),
            writes: Rc::default(),
            counts: vec![Totals::default(); flowops],
            limits: vec![Limit::default(); flowops],
        }
    }

    pub(super) async fn run(mut self) {
        let why = match self.passes().await {
            Ok(()) => Halt::Over,
            Err(why) => why,
        };
        while self.writes.count.get() > 0 {
            self.writes.ended.wait().await;
        }
        let rotated = std::mem::take(&mut self.rotations).into_values().flat_map(|rotation| rotation.files);
        let open: Vec<_> = std::mem::take(&mut self.fds).into_values().chain(rotated.flatten()).collect();
        for open in open {
            // The run is over, so an error has no receiver.
            let _ = self.close(open).await;
        }
        self.shared.ended(why);
    }

    async fn passes(&mut self) -> Step {
        let model = Rc::clone(&self.shared.model);
        let flowops = &model.processes[self.place.0].threads[self.place.1].flowops;
        let mut timeless = 0;
        loop {
            let start = self.shared.handle.now();
            for (index, flowop) in flowops.iter().enumerate() {
                for _ in 0..flowop.iters {
                    if self.shared.is_over.get() {
                        return Ok(());
                    }
                    self.step(index, flowop).await?;
                }
            }
            timeless = if self.shared.handle.now() == start { timeless + 1 } else { 0 };
            if timeless >= TIMELESS_PASSES_MAX {
                let reason = "the thread takes no virtual time; mount with host costs, or on a device";
                return Err(failed(&flowops[0], reason));
            }
        }
    }

    async fn step(&mut self, index: usize, flowop: &Flowop) -> Step {
        match flowop.op {
            Op::CreateFile => self.create(index, flowop).await,
            Op::OpenFile => self.open(index, flowop).await,
            Op::CloseFile => self.close_fd(index, flowop).await,
            Op::DeleteFile => self.delete(index, flowop).await,
            Op::StatFile => self.stat(index, flowop).await,
            Op::Fsync => self.fsync(index, flowop).await,
            Op::Read | Op::Write => self.transfer(index, flowop).await,
            Op::ReadWholeFile => self.read_whole(index, flowop).await,
            Op::WriteWholeFile => self.write_whole(index, flowop).await,
            Op::AppendFile | Op::AppendFileRand => self.append(index, flowop).await,
            Op::AioWrite => self.begin_write(index, flowop).await,
            Op::AioWait => self.wait_for_writes(index, flowop).await,
            Op::SemBlock => self.block(index, flowop).await,
            Op::SemPost => self.post(index, flowop).await,
            Op::Hog => {
                let steps = flowop.value.draw(&mut self.stream);
                self.compute(index, flowop, self.shared.options.hog_step * steps).await
            }
            Op::Delay => {
                let seconds = flowop.value.draw(&mut self.stream).min(1 << 32);
                self.sleep(index, flowop, Duration::from_secs(seconds)).await
            }
            Op::EventLimit => self.take_events(index, flowop, 1).await,
            Op::OpsLimit | Op::IopsLimit | Op::BwLimit => self.limit(index, flowop).await,
            Op::FinishOnCount | Op::FinishOnBytes => self.finish(index, flowop),
        }
    }

    // Common helpers.

    fn now(&self) -> Instant {
        self.shared.handle.now()
    }

    fn record(&mut self, index: usize, flowop: &Flowop, bytes: u64, began: Instant) {
        self.counts[index].add(flowop.op, bytes);
        self.shared.record(self.first_flowop + index, flowop.op, bytes, began);
    }

    fn over(&self) -> Step {
        if self.shared.is_over.get() { Err(Halt::Over) } else { Ok(()) }
    }

    fn flags(&self, flowop: &Flowop, fileset: usize) -> OpenFlags {
        let fileset = &self.shared.model.filesets[fileset];
        let flags = match (fileset.read_only, fileset.write_only) {
            (true, _) => OpenFlags::READ,
            (_, true) => OpenFlags::WRITE,
            _ => OpenFlags::READ_WRITE,
        };
        let is_direct = flowop.is_direct || self.shared.options.is_direct;
        let flags = if is_direct { flags.direct() } else { flags };
        // `O_SYNC`, as in filebench; a write that is to be durable at once withholds nothing.
        match flowop.is_dsync {
            true => flags.sync(SyncKind::All),
            false if self.shared.options.is_atomic && !fileset.read_only => flags.atomic(),
            false => flags,
        }
    }

    fn fileset(&self, flowop: &Flowop) -> Step<usize> {
        flowop
            .fileset
            .ok_or_else(|| failed(flowop, format!("fd={} is not open, and it has no fileset", flowop.fd)))
    }

    fn pool(&self, fileset: usize) -> &Pool {
        &self.shared.pools[fileset]
    }

    /// Picks the next file of this kind; waits while all are busy.
    async fn pick(&self, flowop: &Flowop, fileset: usize, wanted: Wanted) -> Step<u32> {
        loop {
            self.over()?;
            let own =
                self.rotations.get(&fileset).filter(|_| flowop.opens_next).map(|rotation| &rotation.pick);
            match self.pool(fileset).take(wanted, own) {
                Found::File(number) => return Ok(number),
                Found::Busy => self.pool(fileset).freed.wait().await,
                Found::None => {
                    let name = &self.shared.model.filesets[fileset].name;
                    let kind = if wanted == Wanted::Absent { "is missing" } else { "exists" };
                    let reason = format!("flowop `{}`: no file of `{name}` {kind}", flowop.name);
                    return Err(Halt::NoFile(reason));
                }
            }
        }
    }

    /// Opens a picked file, which is not busy afterwards.
    async fn open_picked(&self, flowop: &Flowop, fileset: usize, number: u32, create: bool) -> Step<Open<F>> {
        let path = self.pool(fileset).path(number);
        let flags = self.flags(flowop, fileset);
        let flags = if create { flags.create() } else { flags };
        let opened = self.shared.process.open(&path, flags, 0o666).await;
        self.pool(fileset).release(number, opened.is_ok());
        match opened {
            Ok(file) => Ok(Open { file: Rc::new(file), fileset, number }),
            Err(errno) => Err(call_failed(flowop, path, errno)),
        }
    }

    /// Returns the file that a flowop works on, opening it if necessary.
    async fn target(&mut self, flowop: &Flowop) -> Step<Open<F>> {
        if flowop.fd == 0 && flowop.opens_next {
            return self.target_of_rotation(flowop).await;
        }
        if let Some(open) = self.fds.get(&flowop.fd) {
            return Ok(open.clone());
        }
        let fileset = self.fileset(flowop)?;
        let number = self.pick(flowop, fileset, Wanted::Existing).await?;
        let open = self.open_picked(flowop, fileset, number, false).await?;
        self.fds.insert(flowop.fd, open.clone());
        Ok(open)
    }

    async fn target_of_rotation(&mut self, flowop: &Flowop) -> Step<Open<F>> {
        let fileset = self.fileset(flowop)?;
        let files = self.pool(fileset).len();
        let rotation = self.rotations.entry(fileset).or_insert_with(|| Rotation {
            files: (0..files).map(|_| None).collect(),
            next: 0,
            pick: Cell::new(0),
        });
        let place = rotation.next;
        rotation.next = (place + 1) % files;
        if let Some(open) = &rotation.files[place] {
            return Ok(open.clone());
        }
        let number = self.pick(flowop, fileset, Wanted::Existing).await?;
        let open = self.open_picked(flowop, fileset, number, false).await?;
        if let Some(rotation) = self.rotations.get_mut(&fileset) {
            rotation.files[place] = Some(open.clone());
        }
        Ok(open)
    }

    async fn close(&self, open: Open<F>) -> Result<(), Errno> {
        self.pool(open.fileset).closed(open.number);
        match Rc::try_unwrap(open.file) {
            Ok(file) => file.close().await,
            // A write in progress closes the file when it ends.
            Err(_) => Ok(()),
        }
    }

    fn path(&self, open: &Open<F>) -> String {
        self.pool(open.fileset).path(open.number)
    }

    // Operations on whole files.

    async fn create(&mut self, index: usize, flowop: &Flowop) -> Step {
        self.check_closed(flowop)?;
        let fileset = self.fileset(flowop)?;
        let number = self.pick(flowop, fileset, Wanted::Absent).await?;
        let began = self.now();
        // The file exists from now on, but no other thread takes it while it is busy.
        self.pool(fileset).set_exists(number, true);
        let open = self.open_picked(flowop, fileset, number, true).await?;
        self.record(index, flowop, 0, began);
        self.fds.insert(flowop.fd, open);
        Ok(())
    }

    async fn open(&mut self, index: usize, flowop: &Flowop) -> Step {
        self.check_closed(flowop)?;
        let fileset = self.fileset(flowop)?;
        let number = self.pick(flowop, fileset, Wanted::Existing).await?;
        let began = self.now();
        let open = self.open_picked(flowop, fileset, number, false).await?;
        self.record(index, flowop, 0, began);
        self.fds.insert(flowop.fd, open);
        Ok(())
    }

    fn check_closed(&self, flowop: &Flowop) -> Step {
        if self.fds.contains_key(&flowop.fd) {
            return Err(failed(flowop, format!("fd={} is still open", flowop.fd)));
        }
        Ok(())
    }

    async fn close_fd(&mut self, index: usize, flowop: &Flowop) -> Step {
        let Some(open) = self.fds.remove(&flowop.fd) else {
            return Err(failed(flowop, format!("fd={} is not open", flowop.fd)));
        };
        let path = self.path(&open);
        let began = self.now();
        self.close(open).await.map_err(|errno| call_failed(flowop, path, errno))?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn delete(&mut self, index: usize, flowop: &Flowop) -> Step {
        let fileset = self.fileset(flowop)?;
        let number = self.pick(flowop, fileset, Wanted::Closed).await?;
        let path = self.pool(fileset).path(number);
        let began = self.now();
        let removed = self.shared.process.unlink(&path).await;
        if removed.is_ok() {
            self.pool(fileset).set_exists(number, false);
        }
        self.pool(fileset).release(number, false);
        removed.map_err(|errno| call_failed(flowop, path, errno))?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn stat(&mut self, index: usize, flowop: &Flowop) -> Step {
        if flowop.fd > 0
            && let Some(open) = self.fds.get(&flowop.fd).cloned()
        {
            let began = self.now();
            let found = open.file.attr().await;
            found.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
            self.record(index, flowop, 0, began);
            return Ok(());
        }
        let fileset = self.fileset(flowop)?;
        let number = self.pick(flowop, fileset, Wanted::Existing).await?;
        let path = self.pool(fileset).path(number);
        let began = self.now();
        let found = self.shared.process.stat(&path, Follow::Yes).await;
        self.pool(fileset).release(number, false);
        found.map_err(|errno| call_failed(flowop, path, errno))?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn fsync(&mut self, index: usize, flowop: &Flowop) -> Step {
        let Some(open) = self.fds.get(&flowop.fd).cloned() else {
            return Err(failed(flowop, format!("fd={} is not open", flowop.fd)));
        };
        let began = self.now();
        let synced = open.file.sync(SyncKind::All).await;
        synced.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    // Data.

    /// Returns contents that were not written before.
    fn content(&self, len: u64) -> Source<'static> {
        let number = self.shared.writes.get();
        self.shared.writes.set(number + 1);
        Source::pattern(number, len)
    }

    /// Returns the number of bytes of an I/O.
    fn iosize(&mut self, flowop: &Flowop) -> u64 {
        let bytes = flowop.iosize.draw(&mut self.stream).max(1);
        self.whole_pages(bytes)
    }

    /// Rounds up to whole pages if every flowop bypasses the page cache.
    fn whole_pages(&self, bytes: u64) -> u64 {
        if self.shared.options.is_direct { bytes.next_multiple_of(PAGE_BYTES as u64) } else { bytes }
    }

    /// Draws a multiple of `iosize` within the working set.
    fn random_offset(&mut self, flowop: &Flowop, open: &Open<F>, iosize: u64) -> Step<u64> {
        let size = self.pool(open.fileset).size(open.number);
        let bytes = if flowop.working_set > 0 { flowop.working_set } else { size };
        if bytes < iosize {
            return Err(failed(flowop, format!("a file of {bytes} bytes is smaller than iosize={iosize}")));
        }
        Ok(self.stream.below(bytes / iosize) * iosize)
    }

    async fn transfer(&mut self, index: usize, flowop: &Flowop) -> Step {
        let open = self.target(flowop).await?;
        let iosize = self.iosize(flowop);
        let offset = if flowop.is_random { Some(self.random_offset(flowop, &open, iosize)?) } else { None };
        let content = self.content(iosize);
        let began = self.now();
        let done = match (flowop.op, offset) {
            (Op::Read, Some(offset)) => open.file.pread(offset, Sink::nowhere(iosize)).await,
            (Op::Read, None) => open.file.read(Sink::nowhere(iosize)).await,
            (_, Some(offset)) => open.file.pwrite(offset, content).await,
            (_, None) => open.file.write(content).await,
        };
        let bytes = done.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
        self.record(index, flowop, bytes, began);
        if bytes == 0 && flowop.op == Op::Read && offset.is_none() {
            let rewound = open.file.seek(Seek::Start(0)).await;
            rewound.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
        }
        Ok(())
    }

    async fn read_whole(&mut self, index: usize, flowop: &Flowop) -> Step {
        let open = self.target(flowop).await?;
        let iosize = match flowop.iosize.draw(&mut self.stream) {
            0 => open.file.size().max(1),
            iosize => self.whole_pages(iosize),
        };
        let began = self.now();
        let mut at = 0;
        loop {
            let read = open.file.pread(at, Sink::nowhere(iosize)).await;
            let read = read.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
            if read == 0 {
                break;
            }
            at += read;
        }
        self.record(index, flowop, at, began);
        Ok(())
    }

    async fn write_whole(&mut self, index: usize, flowop: &Flowop) -> Step {
        let open = self.target(flowop).await?;
        let source = match flowop.src_fd {
            0 => open.clone(),
            fd => match self.fds.get(&fd) {
                Some(source) => source.clone(),
                None => return Err(failed(flowop, format!("srcfd={fd} is not open"))),
            },
        };
        let size = self.pool(source.fileset).size(source.number);
        let iosize = match flowop.iosize.draw(&mut self.stream) {
            0 => size,
            iosize => self.whole_pages(iosize),
        };
        let began = self.now();
        let mut bytes = 0;
        while bytes < size {
            let written = open.file.write(self.content((size - bytes).min(iosize))).await;
            bytes += written.map_err(|errno| call_failed(flowop, self.path(&open), errno))?;
        }
        self.record(index, flowop, bytes, began);
        Ok(())
    }

    async fn append(&mut self, index: usize, flowop: &Flowop) -> Step {
        let iosize = self.iosize(flowop);
        let wanted = if flowop.op == Op::AppendFileRand { self.stream.below(iosize) } else { iosize };
        let wanted = self.whole_pages(wanted);
        let open = self.target(flowop).await?;
        let began = self.now();
        let mut bytes = 0;
        if wanted > 0 {
            let fail = |errno| call_failed(flowop, self.path(&open), errno);
            open.file.seek(Seek::End(0)).await.map_err(fail)?;
            bytes = open.file.write(self.content(wanted)).await.map_err(fail)?;
            if bytes < wanted {
                return Err(call_failed(flowop, self.path(&open), Errno::ENOSPC));
            }
        }
        self.record(index, flowop, bytes, began);
        Ok(())
    }

    async fn begin_write(&mut self, index: usize, flowop: &Flowop) -> Step {
        let open = self.target(flowop).await?;
        let iosize = self.iosize(flowop);
        let offset = self.random_offset(flowop, &open, iosize)?;
        let content = self.content(iosize);
        self.counts[index].add(flowop.op, iosize);
        let (shared, writes) = (Rc::clone(&self.shared), Rc::clone(&self.writes));
        let number = self.first_flowop + index;
        let (name, path, began) = (flowop.name.clone(), self.path(&open), self.now());
        writes.count.set(writes.count.get() + 1);
        self.shared.handle.spawn(async move {
            match open.file.pwrite(offset, content).await {
                Ok(bytes) => shared.record(number, Op::AioWrite, bytes, began),
                Err(errno) => shared.fail(RunError::Call { flowop: name, path, errno }),
            }
            writes.count.set(writes.count.get() - 1);
            writes.ended.notify();
        });
        Ok(())
    }

    async fn wait_for_writes(&mut self, index: usize, flowop: &Flowop) -> Step {
        let began = self.now();
        while self.writes.count.get() > 0 {
            self.writes.ended.wait().await;
        }
        self.record(index, flowop, 0, began);
        Ok(())
    }

    // Waiting.

    /// Keeps a CPU busy, but books no time beyond the end of the run.
    async fn compute(&mut self, index: usize, flowop: &Flowop, span: Duration) -> Step {
        let began = self.now();
        let left = self.shared.deadline.get().saturating_since(began);
        self.shared.process.vfs().compute(span.min(left)).await;
        self.over()?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn sleep(&mut self, index: usize, flowop: &Flowop, span: Duration) -> Step {
        let began = self.now();
        self.sleep_until(began.saturating_add(span)).await?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    /// Sleeps, but not beyond the end of the run.
    async fn sleep_until(&self, at: Instant) -> Step {
        self.shared.handle.sleep_until(at.min(self.shared.deadline.get())).await;
        self.over()
    }

    async fn block(&mut self, index: usize, flowop: &Flowop) -> Step {
        let posts = flowop.value.draw(&mut self.stream);
        let shared = Rc::clone(&self.shared);
        let semaphore = &shared.semaphores[self.first_flowop + index][self.instance];
        let began = self.now();
        semaphore.add_room(posts);
        while !semaphore.try_take(posts) {
            semaphore.changed.wait().await;
            self.over()?;
        }
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn post(&mut self, index: usize, flowop: &Flowop) -> Step {
        let posts = flowop.value.draw(&mut self.stream);
        let shared = Rc::clone(&self.shared);
        let began = self.now();
        for semaphore in flowop.target.iter().flat_map(|&target| &shared.semaphores[target]) {
            while !semaphore.try_post(posts, flowop.is_blocking) {
                semaphore.changed.wait().await;
                self.over()?;
            }
        }
        self.record(index, flowop, 0, began);
        Ok(())
    }

    async fn take_events(&mut self, index: usize, flowop: &Flowop, count: u64) -> Step {
        let began = self.now();
        let Some(events) = self.shared.events.get() else { return Ok(()) };
        let at = events.take(count, began);
        self.sleep_until(at).await?;
        self.record(index, flowop, 0, began);
        Ok(())
    }

    /// Returns the totals that a limit or an end refers to: `all`, or those of one flowop of this thread.
    fn counted(&self, flowop: &Flowop, all: &Cell<Totals>) -> Totals {
        match flowop.target {
            Some(target) => self.counts[target - self.first_flowop],
            None => all.get(),
        }
    }

    /// Takes as many events as the work since the last call requires.
    async fn limit(&mut self, index: usize, flowop: &Flowop) -> Step {
        const MIB: i64 = 1 << 20;
        if self.shared.events.get().is_none() {
            return Ok(());
        }
        let totals = self.counted(flowop, &self.shared.totals_with_ramp);
        let (now, per_event) = match flowop.op {
            Op::BwLimit => (totals.bytes, MIB),
            Op::IopsLimit => (totals.ios, 1),
            _ => (totals.calls, 1),
        };
        let limit = &mut self.limits[index];
        let Some(seen) = limit.seen.replace(now) else { return Ok(()) };
        limit.credit -= (now - seen) as i64;
        if limit.credit >= 0 {
            return Ok(());
        }
        let events = limit.credit.unsigned_abs().div_ceil(per_event as u64);
        limit.credit += events as i64 * per_event;
        self.take_events(index, flowop, events).await
    }

    fn finish(&mut self, index: usize, flowop: &Flowop) -> Step {
        let wanted = flowop.value.draw(&mut self.stream);
        let totals = self.counted(flowop, &self.shared.totals);
        let is_done = match flowop.op {
            Op::FinishOnBytes => totals.bytes > wanted,
            _ => totals.calls >= wanted,
        };
        let now = self.now();
        self.record(index, flowop, 0, now);
        if is_done {
            self.shared.end(Some(format!("flowop `{}`: {wanted} reached", flowop.name)));
            return Err(Halt::Over);
        }
        Ok(())
    }
}

fn failed(flowop: &Flowop, reason: impl Into<String>) -> Halt {
    Halt::Failed(RunError::Flowop { flowop: flowop.name.clone(), reason: reason.into() })
}

fn call_failed(flowop: &Flowop, path: String, errno: Errno) -> Halt {
    Halt::Failed(RunError::Call { flowop: flowop.name.clone(), path, errno })
}
