//! A model on a mounted file system: its files, its threads as tasks, its end, its results.

use super::error::RunError;
use super::limits::{Events, Semaphore};
use super::model::{Model, Op};
use super::options::Options;
use super::pool::Pool;
use super::shared::Shared;
use super::thread::Runner;
use super::tree::{self, Plan};
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_core::{Instant, RandomStream};
use flashweir_fs::vfs::{Fs, PAGE_BYTES, Process};
use flashweir_sim::measure::{CallRecorder, WorkloadResult};
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// A model whose files are prepared.
pub struct Filebench<F: Fs> {
    shared: Rc<Shared<F>>,
}

impl<F: Fs> fmt::Debug for Filebench<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filebench").field("name", &self.shared.options.name).finish_non_exhaustive()
    }
}

impl<F: Fs> Filebench<F> {
    /// Makes the files of the model. They are durable when this returns.
    ///
    /// # Errors
    /// A file that could not be created, or a model without an end.
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
            totals_with_ramp: Cell::default(),
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

    /// Runs all threads until the time is over or a flowop ends the run. Returns when every thread has come to rest;
    /// completions after the end do not count.
    ///
    /// # Errors
    /// The first call that failed, or flowops that contradict each other.
    pub async fn run(self) -> Result<WorkloadResult, RunError> {
        let shared = &self.shared;
        let begun = shared.handle.now();
        let start = begun.saturating_add(shared.options.ramp);
        shared.measured_from.set(start);
        if let Some(runtime) = shared.options.runtime.or(shared.model.runtime) {
            shared.deadline.set(start.saturating_add(runtime));
        }
        if let Some(rate) = shared.model.event_rate {
            let _ = shared.events.set(Events::new(rate, begun));
        }
        let recorder = |_| CallRecorder::new(start, shared.options.interval);
        *shared.recorders.borrow_mut() = shared.model.flowops().map(recorder).collect();
        shared.running.set(shared.model.thread_count());
        self.spawn_threads();
        self.until_over().await;
        // A run may end in its ramp.
        let end = shared.handle.now().max(start);
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
                    let stream = RandomStream::new(shared.options.seed, &name);
                    let shared = Rc::clone(shared);
                    let runner = Runner::new(shared, (p, t), first_flowop, instance as usize, stream);
                    self.shared.handle.spawn(runner.run());
                }
                first_flowop += thread.flowops.len();
            }
        }
    }

    /// Waits until the deadline, or until a thread ends the run early.
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

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
