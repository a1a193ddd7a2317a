//! The host's CPUs: a task with work waits until a CPU is free, first come, first served.
//!
//! Place in the data flow: the cost of the calls of a file system or a host FTL, and the computation of applications
//! between their calls, is booked here; the task then sleeps until its work is done.
//!
//! Invariant: work is never interrupted and never overtaken. A booking is therefore final: it begins when the earliest
//! CPU has finished everything booked on it before, and its end is known at once. A task sleeps once for waiting and
//! work together, which costs the simulation no more than the work alone.
//!
//! Deliberately absent: time slices, priorities, CPUs of different speeds, and threads that share a core.

use crate::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

/// A set of CPUs and the work booked on them.
#[derive(Debug)]
pub struct Cpus {
    /// Time at which each CPU becomes free, the earliest on top; empty if the number of CPUs is unlimited.
    free_at: BinaryHeap<Reverse<Instant>>,
    booked_ns: u64,
    waited_ns: u64,
}

impl Cpus {
    /// Creates this many CPUs; with `None`, each task has a CPU of its own.
    pub fn new(cpus: Option<NonZeroU32>) -> Self {
        let count = cpus.map_or(0, NonZeroU32::get) as usize;
        Self { free_at: vec![Reverse(Instant::ZERO); count].into(), booked_ns: 0, waited_ns: 0 }
    }

    /// Books `work` from `now` on and returns the time at which it is done.
    #[inline]
    pub fn book(&mut self, now: Instant, work: Duration) -> Instant {
        self.booked_ns += work.as_nanos();
        let Some(mut earliest) = self.free_at.peek_mut() else { return now + work };
        let begin = now.max(earliest.0);
        self.waited_ns += begin.since(now).as_nanos();
        earliest.0 = begin + work;
        earliest.0
    }

    /// Returns the CPU time spent until `now`, in nanoseconds. With an unlimited number of CPUs, work counts when it is
    /// booked.
    pub fn busy_ns(&self, now: Instant) -> u64 {
        // The work ahead of a CPU has no gap: a booking begins at the earliest now, so no idle time lies in the future.
        let ahead: u64 = self.free_at.iter().map(|at| at.0.max(now).since(now).as_nanos()).sum();
        self.booked_ns - ahead
    }

    /// Returns the time that work waited for a CPU, in nanoseconds, counted when the work is booked.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomStream;

    const US: Duration = Duration::from_micros(1);

    fn cpus(count: u32) -> Cpus {
        Cpus::new(NonZeroU32::new(count))
    }

    #[test]
    fn work_is_done_in_the_order_of_its_booking() {
        let at = |us| Instant::ZERO + US * us;
        let mut two = cpus(2);
        let ends = [5, 1, 2, 1].map(|work| two.book(at(10), US * work));
        // The third booking follows the second one, which ends first; the fourth follows the third.
        assert_eq!(ends, [at(15), at(11), at(13), at(14)]);
        assert_eq!(two.waited_ns(), 4_000);
        assert_eq!([at(10), at(12), at(14), at(20)].map(|now| two.busy_ns(now)), [0, 4_000, 8_000, 9_000]);
        let mut many = cpus(0);
        assert_eq!([5, 1, 2].map(|work| many.book(at(10), US * work)), [at(15), at(11), at(12)]);
        assert_eq!((many.waited_ns(), many.busy_ns(at(10))), (0, 8_000));
    }

    /// Returns the mean wait of jobs of equal length with Poisson arrivals, in units of that length.
    fn mean_wait(count: u32, load: f64) -> f64 {
        let (mut cpus, mut stream) = (cpus(count), RandomStream::new(1, "arrivals"));
        let (mut now, jobs) = (0.0, 400_000);
        for _ in 0..jobs {
            now += -(1.0 - stream.unit()).ln() * 1_000.0 / (load * f64::from(count));
            cpus.book(Instant::from_nanos(now as u64), US);
        }
        cpus.waited_ns() as f64 / 1_000.0 / f64::from(jobs)
    }

    /// M/D/1: the Pollaczek-Khinchine formula ρ / 2(1 - ρ). M/D/c: below M/M/c (Erlang C over c(1 - ρ)), and not below
    /// half of it by more than the sampling error.
    #[test]
    fn waits_are_those_of_queueing_theory() {
        for load in [0.3f64, 0.6, 0.9] {
            let expected = load / (2.0 * (1.0 - load));
            let seen = mean_wait(1, load);
            assert!((seen / expected - 1.0).abs() < 0.05, "load {load}: {seen} instead of {expected}");
            for count in [2u32, 6] {
                let offered = load * f64::from(count);
                let (mut term, mut sum) = (1.0, 1.0);
                for k in 1..count {
                    term *= offered / f64::from(k);
                    sum += term;
                }
                let last = term * offered / f64::from(count) / (1.0 - load);
                let exponential = last / (sum + last) / (f64::from(count) * (1.0 - load));
                let seen = mean_wait(count, load);
                assert!(
                    seen < exponential && seen > 0.47 * exponential,
                    "{count} CPUs, load {load}: {seen}, {exponential}"
                );
            }
        }
    }
}
