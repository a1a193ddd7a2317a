//! A model on a mounted file system: its files, its threads as tasks, its end, its results.

use super::error::RunError;
use super::limits::{Events, Semaphore};
use super::model::{Model, Op};
use super::pool::Pool;
use super::thread::{Halt, Runner};
use super::tree::{self, Plan};
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_core::{Duration, Instant, Stream};
use flashweir_fs::vfs::{Fs, PAGE_BYTES, Process};
use flashweir_sim::measure::{CallRecorder, WorkloadResult};
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// What the caller of a model decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the run, in results and in the names of its random streams. Runs side by side have different names.
    pub name: String,
    /// Seed of the random streams.
    pub seed: u64,
    /// Takes the place of the file's own time.
    pub runtime: Option<Duration>,
    /// Length of an interval of the series.
    pub interval: Duration,
    /// Time at the start that does not count; the time of the run begins after it.
    pub ramp: Duration,
    /// Every flowop goes past the page cache. What filebench would draw as any number of bytes is rounded up to pages then.
    pub is_direct: bool,
    /// CPU time of one step of `hog`, which writes to one place in memory. A guess: three cycles of a 3 GHz CPU.
    pub hog_step: Duration,
}

impl Options {
    /// A run of this name and seed, for as long as the file says, in intervals of a second.
    pub fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            seed,
            runtime: None,
            interval: Duration::from_secs(1),
            ramp: Duration::ZERO,
            is_direct: false,
            hog_step: Duration::from_nanos(1),
        }
    }
}

/// A model whose files are there.
pub struct Filebench<F: Fs> {
    shared: Rc<Shared<F>>,
}

impl<F: Fs> fmt::Debug for Filebench<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filebench").field("name", &self.shared.options.name).finish_non_exhaustive()
    }
}

/// What the threads of a run share.
pub(super) struct Shared<F: Fs> {
    pub(super) model: Rc<Model>,
    pub(super) options: Options,
    pub(super) process: Process<F>,
    pub(super) handle: Handle,
    pub(super) pools: Vec<Pool>,
    /// By flowop, the semaphores of its instances; none but for `semblock`.
    pub(super) semaphores: Vec<Vec<Semaphore>>,
    pub(super) events: OnceCell<Events>,
    /// Contents written so far, so that no two are alike.
    pub(super) writes: Cell<u64>,
    /// What counts in limits: calls, reads and writes, and their bytes.
    pub(super) totals: Cell<Totals>,
    recorders: RefCell<Vec<CallRecorder>>,
    pub(super) is_over: Cell<bool>,
    /// When it is over at the latest.
    pub(super) deadline: Cell<Instant>,
    /// What began earlier does not count.
    measured_from: Cell<Instant>,
    ended_early: RefCell<Option<String>>,
    failure: RefCell<Option<RunError>>,
    over: Signal,
    running: Cell<u64>,
    all_ended: Signal,
}

/// Calls and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) calls: u64,
    pub(super) ios: u64,
    pub(super) bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, op: Op, bytes: u64) {
        self.calls += u64::from(op.touches_files());
        self.ios += u64::from(moves_data(op));
        self.bytes += bytes;
    }
}

fn moves_data(op: Op) -> bool {
    match op {
        Op::Read
        | Op::ReadWholeFile
        | Op::Write
        | Op::WriteWholeFile
        | Op::AppendFile
        | Op::AppendFileRand
        | Op::AioWrite => true,
        Op::CreateFile | Op::OpenFile | Op::CloseFile | Op::DeleteFile | Op::StatFile | Op::Fsync => false,
        Op::AioWait | Op::SemBlock | Op::SemPost | Op::Hog | Op::Delay => false,
        Op::EventLimit | Op::OpsLimit | Op::IopsLimit | Op::BwLimit => false,
        Op::FinishOnCount | Op::FinishOnBytes => false,
    }
}

impl<F: Fs> Filebench<F> {
    /// Makes the files of the model. They are durable when it returns.
    ///
    /// # Errors
    /// A file that could not be made; a model without an end.
    pub async fn prepare(
        model: Rc<Model>,
        process: Process<F>,
        handle: Handle,
        options: Options,
    ) -> Result<Self, RunError> {
        let finishes = |op| matches!(op, Op::FinishOnCount | Op::FinishOnBytes);
        let has_end = options.runtime.or(model.runtime).is_some();
        if !has_end && !model.flowops().any(|(_, _, flowop)| finishes(flowop.op)) {
            return Err(RunError::NoEnd);
        }
        let streams = format!("filebench.{}.fileset", options.name);
        let mut writes = 1;
        let mut pools = Vec::new();
        for fileset in &model.filesets {
            let mut plan = Plan::new(fileset, options.seed, &streams);
            if options.is_direct {
                plan.files
                    .iter_mut()
                    .for_each(|file| file.size = file.size.next_multiple_of(PAGE_BYTES as u64));
            }
            tree::make(&process, fileset, &plan, writes).await?;
            writes += plan.files.len() as u64;
            pools.push(Pool::new(&plan));
        }
        let semaphores = model
            .flowops()
            .map(|(process, thread, flowop)| match flowop.op {
                Op::SemBlock => {
                    let instances = u64::from(process.instances) * u64::from(thread.instances);
                    (0..instances).map(|_| Semaphore::new(flowop.highwater)).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let shared = Shared {
            model,
            options,
            process,
            handle,
            pools,
            semaphores,
            events: OnceCell::new(),
            writes: Cell::new(writes),
            totals: Cell::default(),
            recorders: RefCell::default(),
            is_over: Cell::new(false),
            deadline: Cell::new(Instant::MAX),
            measured_from: Cell::new(Instant::ZERO),
            ended_early: RefCell::default(),
            failure: RefCell::default(),
            over: Signal::default(),
            running: Cell::new(0),
            all_ended: Signal::default(),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Runs all threads until the time is over or a flowop ends the run. Returns when every thread has come to rest; what
    /// completed after the end does not count.
    ///
    /// # Errors
    /// The first call that failed, and flowops that contradict each other.
    pub async fn run(self) -> Result<WorkloadResult, RunError> {
        let shared = &self.shared;
        let start = shared.handle.now() + shared.options.ramp;
        shared.measured_from.set(start);
        if let Some(runtime) = shared.options.runtime.or(shared.model.runtime) {
            shared.deadline.set(start.saturating_add(runtime));
        }
        if let Some(rate) = shared.model.event_rate {
            let _ = shared.events.set(Events::new(rate, start));
        }
        let recorder = |_| CallRecorder::new(start, shared.options.interval);
        *shared.recorders.borrow_mut() = shared.model.flowops().map(recorder).collect();
        shared.running.set(shared.model.thread_count());
        self.spawn_threads();
        self.until_over().await;
        let end = shared.handle.now();
        shared.end(None);
        while shared.running.get() > 0 {
            shared.all_ended.wait().await;
        }
        if let Some(failure) = shared.failure.take() {
            return Err(failure);
        }
        let recorders = shared.recorders.take();
        let calls = recorders.into_iter().zip(shared.model.flowops()).map(|(recorder, (_, _, flowop))| {
            recorder.finish(&flowop.name, flowop.op.name(), flowop.op.touches_files(), end)
        });
        Ok(WorkloadResult {
            name: shared.options.name.clone(),
            seed: shared.options.seed,
            start_ns: start.as_nanos(),
            end_ns: end.as_nanos(),
            interval_ns: shared.options.interval.as_nanos(),
            ended_early: shared.ended_early.take(),
            calls: calls.collect(),
        })
    }

    fn spawn_threads(&self) {
        let shared = &self.shared;
        let mut first_flowop = 0;
        for (p, process) in shared.model.processes.iter().enumerate() {
            for (t, thread) in process.threads.iter().enumerate() {
                for instance in 0..u64::from(process.instances) * u64::from(thread.instances) {
                    let name = format!(
                        "filebench.{}.{}.{}.{instance}",
                        shared.options.name, process.name, thread.name
                    );
                    let stream = Stream::new(shared.options.seed, &name);
                    let shared = Rc::clone(shared);
                    let runner = Runner::new(shared, (p, t), first_flowop, instance as usize, stream);
                    self.shared.handle.spawn(runner.run());
                }
                first_flowop += thread.flowops.len();
            }
        }
    }

    /// Until the deadline, or until somebody ends the run before.
    async fn until_over(&self) {
        let shared = &self.shared;
        let mut deadline = pin!(shared.handle.sleep_until(shared.deadline.get()));
        let mut over = pin!(shared.over.wait());
        poll_fn(|context| {
            let is_over = shared.is_over.get()
                || over.as_mut().poll(context).is_ready()
                || deadline.as_mut().poll(context).is_ready();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl<F: Fs> Shared<F> {
    /// Ends the run; `early` says why, if it is before the time. Wakes all who wait for another thread.
    pub(super) fn end(&self, early: Option<String>) {
        if self.is_over.replace(true) {
            return;
        }
        *self.ended_early.borrow_mut() = early;
        self.over.notify();
        for pool in &self.pools {
            pool.freed.notify();
        }
        for semaphore in self.semaphores.iter().flatten() {
            semaphore.changed.notify();
        }
    }

    /// A flowop began and ended; it counts if the run is not over.
    pub(super) fn record(&self, flowop: usize, op: Op, bytes: u64, began: Instant) {
        if self.is_over.get() || began < self.measured_from.get() {
            return;
        }
        self.recorders.borrow_mut()[flowop].record(bytes, began, self.handle.now());
        let mut totals = self.totals.get();
        totals.add(op, bytes);
        self.totals.set(totals);
    }

    /// Something went wrong: the run ends, and the first such thing is what it answers.
    pub(super) fn fail(&self, error: RunError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.end(None);
    }

    /// A thread has come to rest.
    pub(super) fn ended(&self, why: Halt) {
        match why {
            Halt::Over => {}
            Halt::NoFile(reason) => self.end(Some(reason)),
            Halt::Failed(error) => self.fail(error),
        }
        self.running.set(self.running.get() - 1);
        self.all_ended.notify();
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
