//! The host's CPUs: whoever has work for one waits until one is free, first come, first served.
//!
//! Place in the data flow: what a call of a file system or a host FTL costs, and what applications work between their calls, is booked
//! here, and the task sleeps until it is done.
//!
//! Invariant: work is never interrupted, and nobody overtakes. So a booking is final: it begins when the earliest of the CPUs
//! has done all that was booked before, and the moment of its end is known at once. A task sleeps once for waiting and work
//! together, which costs the simulation no more than the work alone.
//!
//! Deliberately absent: time slices, priorities, CPUs of different speed, and threads that share a core.

use crate::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

/// CPUs and what is booked on them.
#[derive(Debug)]
pub struct Cpus {
    /// When each CPU has done what is booked, the earliest on top; without a limit of CPUs there is none.
    free_at: BinaryHeap<Reverse<Instant>>,
    booked_ns: u64,
    waited_ns: u64,
}

impl Cpus {
    /// So many CPUs; without a number each task has one of its own.
    pub fn new(cpus: Option<NonZeroU32>) -> Self {
        let count = cpus.map_or(0, NonZeroU32::get) as usize;
        Self { free_at: vec![Reverse(Instant::ZERO); count].into(), booked_ns: 0, waited_ns: 0 }
    }

    /// Books work from `now` on. Returns when it is done.
    #[inline]
    pub fn book(&mut self, now: Instant, work: Duration) -> Instant {
        self.booked_ns += work.as_nanos();
        let Some(mut earliest) = self.free_at.peek_mut() else { return now + work };
        let begin = now.max(earliest.0);
        self.waited_ns += begin.since(now).as_nanos();
        earliest.0 = begin + work;
        earliest.0
    }

    /// CPU time that was worked until `now`. Without a limit it counts when it is booked.
    pub fn busy_ns(&self, now: Instant) -> u64 {
        // What lies ahead of a CPU has no gap: a gap ends when something is booked, and nothing is booked in the future.
        let ahead: u64 = self.free_at.iter().map(|at| at.0.max(now).since(now).as_nanos()).sum();
        self.booked_ns - ahead
    }

    /// Time for which work waited for a CPU, counted when it is booked.
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
        // The third follows the second, which ends first; the fourth follows the third.
        assert_eq!(ends, [at(15), at(11), at(13), at(14)]);
        assert_eq!(two.waited_ns(), 4_000);
        assert_eq!([at(10), at(12), at(14), at(20)].map(|now| two.busy_ns(now)), [0, 4_000, 8_000, 9_000]);
        let mut many = cpus(0);
        assert_eq!([5, 1, 2].map(|work| many.book(at(10), US * work)), [at(15), at(11), at(12)]);
        assert_eq!((many.waited_ns(), many.busy_ns(at(10))), (0, 8_000));
    }

    /// Mean wait of work of one length that comes at random, in units of it.
    fn mean_wait(count: u32, load: f64) -> f64 {
        let (mut cpus, mut stream) = (cpus(count), RandomStream::new(1, "arrivals"));
        let (mut now, jobs) = (0.0, 400_000);
        for _ in 0..jobs {
            now += -(1.0 - stream.unit()).ln() * 1_000.0 / (load * f64::from(count));
            cpus.book(Instant::from_nanos(now as u64), US);
        }
        cpus.waited_ns() as f64 / 1_000.0 / f64::from(jobs)
    }

    /// M/D/1: Pollaczek and Khinchine's ρ / 2(1 - ρ). M/D/c: below M/M/c (Erlang's C over c(1 - ρ)), and not below half of it
    /// by more than the sample's error.
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
