//! State that the threads of a run share: its files, clock, counts and end.
//!
//! Place in the data flow: the run makes it and waits for its end; each thread adds its counts, and reports the reason
//! why it came to rest.
//!
//! Invariant: the run returns the first of several failures.

use super::error::RunError;
use super::halt::Halt;
use super::limits::{Events, Semaphore};
use super::model::{Model, Op};
use super::options::Options;
use super::pool::Pool;
use flashweir_core::Instant;
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_fs::vfs::{Fs, Process};
use flashweir_sim::measure::CallRecorder;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// State that the threads of a run share.
pub(super) struct Shared<F: Fs> {
    pub(super) model: Rc<Model>,
    pub(super) options: Options,
    pub(super) process: Process<F>,
    pub(super) handle: Handle,
    pub(super) pools: Vec<Pool>,
    /// Semaphores of each flowop's instances; empty except for `semblock`.
    pub(super) semaphores: Vec<Vec<Semaphore>>,
    pub(super) events: OnceCell<Events>,
    /// Number of contents written so far, so that all of them differ.
    pub(super) writes: Cell<u64>,
    /// Totals for limits: calls, reads and writes, and their bytes.
    pub(super) totals: Cell<Totals>,
    /// The same, with what ended in the ramp.
    pub(super) totals_with_ramp: Cell<Totals>,
    pub(super) recorders: RefCell<Vec<CallRecorder>>,
    pub(super) is_over: Cell<bool>,
    /// Time at which the run ends at the latest.
    pub(super) deadline: Cell<Instant>,
    /// Calls that ended earlier do not count.
    pub(super) measured_from: Cell<Instant>,
    pub(super) ended_early: RefCell<Option<String>>,
    pub(super) failure: RefCell<Option<RunError>>,
    pub(super) over: Signal,
    pub(super) running: Cell<u64>,
    pub(super) all_ended: Signal,
}

impl<F: Fs> Shared<F> {
    /// Ends the run; `early` is the reason if it ends early. Wakes all threads that wait for another one.
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

    /// Records a flowop; it counts if it ends after the ramp and before the run is over. If only those counted that also begin there, long
    /// ones would be too few.
    pub(super) fn record(&self, flowop: usize, op: Op, bytes: u64, began: Instant) {
        let (now, from) = (self.handle.now(), self.measured_from.get());
        if self.is_over.get() {
            return;
        }
        let add = |to: &Cell<Totals>| {
            let mut totals = to.get();
            totals.add(op, bytes);
            to.set(totals);
        };
        add(&self.totals_with_ramp);
        if now > from || began == from {
            self.recorders.borrow_mut()[flowop].record(bytes, began, now);
            add(&self.totals);
        }
    }

    /// Records an error, which ends the run; the run returns the first one.
    pub(super) fn fail(&self, error: RunError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.end(None);
    }

    /// Records that a thread has come to rest.
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

/// Numbers of calls and of their bytes.
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
