//! Independent pieces of work on several threads, with one bar.
//!
//! Invariant: results come in the order of the pieces, whatever the number of threads.

use crate::progress::Bar;
use crate::run::threads;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How work is shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a> {
    /// Threads; none is one for each processor.
    pub(crate) jobs: Option<u32>,
    /// No bar.
    pub(crate) quiet: bool,
    /// Set when the user wants it to stop.
    pub(crate) cancel: &'a AtomicBool,
}

impl Pool<'_> {
    /// Does `count` pieces, of which `name` gives the name. `work` gets the number of a piece, and what it tells the
    /// fraction of it that is done, to be told whether to go on; it gives `None` if it did not.
    pub(crate) fn all<T: Send>(
        &self,
        count: usize,
        name: impl Fn(usize) -> String + Sync,
        work: impl Fn(usize, &mut dyn FnMut(f64) -> bool) -> Option<T> + Sync,
    ) -> Vec<Option<T>> {
        let watch = Mutex::new((Bar::new(self.quiet), vec![0.0; count]));
        let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        let thread = || {
            while !self.cancel.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(result) = results.get(at) else { break };
                let mut step = |fraction: f64| {
                    if let Ok(mut watch) = watch.lock() {
                        let (bar, done) = &mut *watch;
                        done[at] = fraction;
                        bar.set(done.iter().sum::<f64>() / done.len() as f64, || name(at));
                    }
                    !self.cancel.load(Ordering::Relaxed)
                };
                let done = work(at, &mut step);
                if let Ok(mut result) = result.lock() {
                    *result = done;
                }
                step(1.0);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads(self.jobs).min(count) {
                scope.spawn(thread);
            }
        });
        if let Ok(watch) = watch.lock() {
            watch.0.clear();
        }
        results.into_iter().map(|result| result.into_inner().expect("a panic ends the program")).collect()
    }
}
