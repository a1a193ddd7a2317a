//! The connections of a mix: tasks that execute one transaction after the other until the time is over.
//!
//! Invariants: a transaction that was refused because of a deadlock is repeated with the same input, and counts once,
//! from its first try on; transactions that begin in the ramp or end after the time do not count.

use super::{OltpError, RunOptions};
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_core::{Instant, RandomStream};
use flashweir_db::{DbError, Transaction};
use flashweir_fs::vfs::Fs;
use flashweir_sim::measure::{CallRecorder, WorkloadResult};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A mix of kinds of transactions.
pub(super) trait Mix: 'static {
    /// The input of one transaction.
    type Input;

    /// Returns the names of the kinds.
    fn kinds(&self) -> &'static [&'static str];

    /// Draws a kind and its input for a connection.
    fn draw(&self, stream: &mut RandomStream, connection: u32) -> (usize, Self::Input);

    /// Executes one transaction, which is committed, or rolled back if its kind requires it, when this returns. After
    /// an error, none of its changes remain. Returns the time at which the commit of changes began, if there was one.
    async fn perform(&self, input: &Self::Input) -> Result<Option<Instant>, DbError>;
}

/// Ends a transaction according to its result: `Ok(true)` commits, `Ok(false)` and an error roll back. Returns the time
/// at which the commit of changes began, if there was one.
pub(super) async fn end<F: Fs>(
    trx: Transaction<F>,
    done: Result<bool, DbError>,
    handle: &Handle,
) -> Result<Option<Instant>, DbError> {
    match done {
        Ok(true) => {
            let commit = trx.has_changes().then(|| handle.now());
            trx.commit().await.map(|()| commit)
        }
        Ok(false) => trx.rollback().await.map(|()| None),
        Err(error) => {
            // The first error is the one that counts.
            let _ = trx.rollback().await;
            Err(error)
        }
    }
}

/// Name of the synchronous writes in results: the ends of transactions that changed something. They are part of the
/// transactions, and not in the total.
pub const COMMIT: &str = "commit";

struct Shared<M> {
    mix: Rc<M>,
    handle: Handle,
    /// Transactions that ended earlier do not count.
    start: Instant,
    deadline: Instant,
    recorders: RefCell<Vec<CallRecorder>>,
    failure: RefCell<Option<OltpError>>,
    running: Cell<u32>,
    ended: Signal,
}

/// Runs all connections to the end of the time. The options must have been checked.
pub(super) async fn run<M: Mix>(
    mix: Rc<M>,
    handle: Handle,
    options: &RunOptions,
) -> Result<WorkloadResult, OltpError> {
    let (start, kinds) = (handle.now() + options.ramp, mix.kinds());
    let shared = Rc::new(Shared {
        mix,
        start,
        deadline: start.saturating_add(options.runtime),
        handle,
        recorders: RefCell::new(
            (0..=kinds.len()).map(|_| CallRecorder::new(start, options.interval)).collect(),
        ),
        failure: RefCell::default(),
        running: Cell::new(options.connections),
        ended: Signal::default(),
    });
    for connection in 0..options.connections {
        let stream =
            RandomStream::new(options.seed, &format!("oltp.{}.connection.{connection}", options.name));
        shared.handle.spawn(connect(Rc::clone(&shared), connection, stream));
    }
    while shared.running.get() > 0 {
        shared.ended.wait().await;
    }
    if let Some(failure) = shared.failure.take() {
        return Err(failure);
    }
    let recorders = shared.recorders.take();
    let calls = recorders.into_iter().zip(kinds.iter().chain([&COMMIT]));
    Ok(WorkloadResult {
        name: options.name.clone(),
        seed: options.seed,
        start_ns: start.as_nanos(),
        end_ns: shared.deadline.as_nanos(),
        interval_ns: options.interval.as_nanos(),
        ended_early: None,
        calls: calls
            .map(|(recorder, kind)| recorder.finish(kind, kind, *kind != COMMIT, shared.deadline))
            .collect(),
    })
}

async fn connect<M: Mix>(shared: Rc<Shared<M>>, connection: u32, mut stream: RandomStream) {
    let kinds = shared.mix.kinds();
    while shared.handle.now() < shared.deadline && shared.failure.borrow().is_none() {
        let (kind, input) = shared.mix.draw(&mut stream, connection);
        let began = shared.handle.now();
        let result = loop {
            match shared.mix.perform(&input).await {
                Err(DbError::Deadlock) => {}
                result => break result,
            }
        };
        let now = shared.handle.now();
        match result {
            // All that end in the time: those that began earlier stand for those that do not end in it.
            Ok(commit) if (now > shared.start || began == shared.start) && now <= shared.deadline => {
                let mut recorders = shared.recorders.borrow_mut();
                recorders[kind].record(0, began, now);
                if let Some(commit) = commit {
                    recorders[kinds.len()].record(0, commit, now);
                }
            }
            Ok(_) => {}
            Err(error) => {
                shared.failure.borrow_mut().get_or_insert(OltpError::Db { during: kinds[kind], error });
            }
        }
        if now == began {
            // Lets the others run where nothing takes time.
            shared.handle.yield_now().await;
        }
    }
    shared.running.set(shared.running.get() - 1);
    shared.ended.notify();
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Duration;
    use flashweir_device::presets::preset;
    use flashweir_device::{Device, DeviceOptions};
    use flashweir_sim::stack::{FlushMode, Stack};

    /// Transactions of 10 ms, some of which are refused at first.
    struct Sleeps {
        handle: Handle,
        refused: Cell<u32>,
    }

    impl Mix for Sleeps {
        type Input = u64;

        fn kinds(&self) -> &'static [&'static str] {
            &["even", "odd"]
        }

        fn draw(&self, stream: &mut RandomStream, _: u32) -> (usize, u64) {
            let number = stream.below(100);
            ((number % 2) as usize, number)
        }

        async fn perform(&self, input: &u64) -> Result<Option<Instant>, DbError> {
            self.handle.sleep_until(self.handle.now() + Duration::from_millis(10)).await;
            if *input % 2 == 1 && self.refused.replace(self.refused.get() + 1).is_multiple_of(2) {
                return Err(DbError::Deadlock);
            }
            if *input == 1000 { Err(DbError::NotFound) } else { Ok(None) }
        }
    }

    #[test]
    fn a_refused_transaction_is_done_again_and_counts_once() {
        let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
        let mut stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
        let handle = stack.handle();
        let mix = Rc::new(Sleeps { handle: handle.clone(), refused: Cell::new(0) });
        let options = RunOptions {
            connections: 1,
            runtime: Duration::from_millis(1_005),
            ..RunOptions::new("sleeps", 3)
        };
        let result = stack.block_on(async move { run(mix, handle, &options).await }).unwrap().unwrap();
        let [even, odd, commit] = &result.calls[..] else { panic!("two kinds, and commits") };
        assert_eq!(commit.calls, 0);
        // The last one begins before the end of the time and ends after it.
        assert!((even.calls + 2 * odd.calls).abs_diff(100) <= 1, "{} {}", even.calls, odd.calls);
        assert!((9_990_000.0..10_010_000.0).contains(&even.latency.summary.mean_ns));
        assert!((19_980_000.0..20_020_000.0).contains(&odd.latency.summary.mean_ns));
        assert_eq!(result.span_ns(), 1_005_000_000);
    }
}
