//! Schedulers: they pick the next of the requests that may leave.
//!
//! Invariant: every request in a scheduler may leave at once; epochs and overlaps are handled outside. A scheduler may
//! therefore choose freely, and order does not depend on which one is used.
//!
//! Not modelled: priorities, idling for the next request of a submitter, slices whose length depends on the number of a
//! submitter's requests (CFQ), and joining two waiting requests when the gap between them is filled.

use crate::config::{CfqConfig, DeadlineConfig, Scheduler};
use flashweir_core::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Namespace, first sector, number of the submission.
type Place = (u16, u64, u64);

/// A request, as a scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: u32,
    /// Namespace and first sector; `None` for flushes and other requests without an address, which go before the sorted
    /// ones.
    pub(crate) place: Option<(u16, u64)>,
    pub(crate) is_read: bool,
    pub(crate) submitter: u16,
    /// Time from which its age counts.
    pub(crate) since: Instant,
    /// Number of the submission.
    pub(crate) seq: u64,
}

/// Requests by address and by age.
#[derive(Clone, Debug, Default)]
struct Sorted {
    by_place: BTreeMap<Place, (u32, Instant)>,
    by_age: BTreeMap<(Instant, u64), Place>,
    /// Key of the last request that left.
    last: Option<Place>,
}

impl Sorted {
    fn insert(&mut self, (ns, first): (u16, u64), entry: Entry) {
        let place = (ns, first, entry.seq);
        self.by_place.insert(place, (entry.request, entry.since));
        self.by_age.insert((entry.since, entry.seq), place);
    }

    fn remove(&mut self, place: Place) -> u32 {
        let (request, since) = self.by_place.remove(&place).expect("a place has one request");
        self.by_age.remove(&(since, place.2));
        request
    }

    fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Takes the next request above the last one.
    fn take_next(&mut self) -> Option<u32> {
        let (&place, _) = self.by_place.range(self.last?..).next()?;
        self.last = Some(place);
        Some(self.remove(place))
    }

    /// Takes the oldest request if it has waited for `expire` or none is further up, else the next one up.
    fn take(&mut self, now: Instant, expire: Duration) -> Option<u32> {
        let (&(since, _), &oldest) = self.by_age.first_key_value()?;
        if now.since(since) < expire
            && let Some(request) = self.take_next()
        {
            return Some(request);
        }
        self.last = Some(oldest);
        Some(self.remove(oldest))
    }
}

/// Two directions: reads, and requests that change something.
#[derive(Clone, Debug)]
struct Deadline {
    figures: DeadlineConfig,
    directions: [Sorted; 2],
    direction: usize,
    batch: u32,
    starved: u32,
}

const READ: usize = 0;
const WRITE: usize = 1;

impl Deadline {
    fn next(&mut self, now: Instant) -> Option<u32> {
        if self.batch < self.figures.fifo_batch
            && let Some(request) = self.directions[self.direction].take_next()
        {
            self.batch += 1;
            return Some(request);
        }
        let [reads, writes] = [READ, WRITE].map(|direction| !self.directions[direction].is_empty());
        let starved = writes && self.starved >= self.figures.writes_starved;
        self.direction = if reads && !starved { READ } else { WRITE };
        self.starved = if self.direction == WRITE { 0 } else { self.starved + u32::from(writes) };
        self.batch = 1;
        let expire = [self.figures.read_expire, self.figures.write_expire][self.direction];
        self.directions[self.direction].take(now, expire)
    }
}

/// Takes submitters in turn. `turns` lists those that have requests.
#[derive(Clone, Debug)]
struct Cfq {
    figures: CfqConfig,
    submitters: BTreeMap<u16, Sorted>,
    turns: VecDeque<u16>,
    slice_ends: Option<Instant>,
}

impl Cfq {
    fn insert(&mut self, place: (u16, u64), entry: Entry) {
        let queue = self.submitters.entry(entry.submitter).or_default();
        if queue.is_empty() {
            self.turns.push_back(entry.submitter);
        }
        queue.insert(place, entry);
    }

    fn next(&mut self, now: Instant) -> Option<u32> {
        if self.turns.len() > 1 && self.slice_ends.is_some_and(|end| now >= end) {
            self.turns.rotate_left(1);
            self.slice_ends = None;
        }
        let submitter = *self.turns.front()?;
        self.slice_ends.get_or_insert(now.saturating_add(self.figures.slice));
        let queue = self.submitters.get_mut(&submitter).expect("a submitter in turn has a queue");
        let request = queue.take(now, self.figures.expire);
        if queue.is_empty() {
            self.turns.pop_front();
            self.slice_ends = None;
        }
        request
    }

    fn remove(&mut self, submitter: u16, place: Place) {
        let queue = self.submitters.get_mut(&submitter).expect("its request is in here");
        queue.remove(place);
        if queue.is_empty() {
            if self.turns.front() == Some(&submitter) {
                self.slice_ends = None;
            }
            self.turns.retain(|&other| other != submitter);
        }
    }
}

#[derive(Clone, Debug)]
enum Kind {
    Fifo(VecDeque<u32>),
    Deadline(Box<Deadline>),
    Cfq(Cfq),
}

/// The scheduler of one queue.
#[derive(Clone, Debug)]
pub(crate) struct Elevator {
    /// Requests without an address, where the others are sorted.
    express: VecDeque<u32>,
    kind: Kind,
    len: usize,
}

impl Elevator {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        let kind = match scheduler {
            Scheduler::None => Kind::Fifo(VecDeque::new()),
            Scheduler::Deadline(figures) => Kind::Deadline(Box::new(Deadline {
                figures,
                directions: Default::default(),
                direction: READ,
                batch: figures.fifo_batch,
                starved: 0,
            })),
            Scheduler::Cfq(figures) => Kind::Cfq(Cfq {
                figures,
                submitters: BTreeMap::new(),
                turns: VecDeque::new(),
                slice_ends: None,
            }),
        };
        Self { express: VecDeque::new(), kind, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        self.len += 1;
        match (&mut self.kind, entry.place) {
            (Kind::Fifo(queue), _) => queue.push_back(entry.request),
            (_, None) => self.express.push_back(entry.request),
            (Kind::Deadline(deadline), Some(place)) => {
                deadline.directions[if entry.is_read { READ } else { WRITE }].insert(place, entry);
            }
            (Kind::Cfq(cfq), Some(place)) => cfq.insert(place, entry),
        }
    }

    /// Updates a request whose first sector is now `first`.
    pub(crate) fn moved(&mut self, entry: Entry, first: u64) {
        let Some((ns, was)) = entry.place else { return };
        let sorted = match &mut self.kind {
            Kind::Fifo(_) => return,
            Kind::Deadline(deadline) => &mut deadline.directions[if entry.is_read { READ } else { WRITE }],
            Kind::Cfq(cfq) => cfq.submitters.get_mut(&entry.submitter).expect("its request is in here"),
        };
        sorted.remove((ns, was, entry.seq));
        sorted.insert((ns, first), entry);
    }

    /// Removes a request.
    pub(crate) fn remove(&mut self, entry: Entry) {
        self.len -= 1;
        let from = |queue: &mut VecDeque<u32>| queue.retain(|&request| request != entry.request);
        match (&mut self.kind, entry.place) {
            (Kind::Fifo(queue), _) => from(queue),
            (_, None) => from(&mut self.express),
            (Kind::Deadline(deadline), Some((ns, first))) => {
                let sorted = &mut deadline.directions[if entry.is_read { READ } else { WRITE }];
                sorted.remove((ns, first, entry.seq));
            }
            (Kind::Cfq(cfq), Some((ns, first))) => cfq.remove(entry.submitter, (ns, first, entry.seq)),
        }
    }

    /// Takes the next request.
    pub(crate) fn next(&mut self, now: Instant) -> Option<u32> {
        let request = self.express.pop_front().or_else(|| match &mut self.kind {
            Kind::Fifo(queue) => queue.pop_front(),
            Kind::Deadline(deadline) => deadline.next(now),
            Kind::Cfq(cfq) => cfq.next(now),
        })?;
        self.len -= 1;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn entry(request: u32, first: u64, is_read: bool, submitter: u16) -> Entry {
        let seq = request.into();
        Entry { request, place: Some((0, first)), is_read, submitter, since: Instant::ZERO, seq }
    }

    fn drain(elevator: &mut Elevator, now: Instant) -> Vec<u32> {
        let order = std::iter::from_fn(|| elevator.next(now)).collect();
        assert!(elevator.is_empty());
        order
    }

    #[test]
    fn none_keeps_the_order() {
        let mut elevator = Elevator::new(Scheduler::None);
        for (request, first) in [(0, 30), (1, 10), (2, 20)] {
            elevator.insert(entry(request, first, false, 0));
        }
        elevator.insert(Entry { place: None, ..entry(3, 0, false, 0) });
        assert_eq!(drain(&mut elevator, Instant::ZERO), [0, 1, 2, 3]);
    }

    #[test]
    fn deadline_goes_up_and_begins_again_with_the_oldest() {
        let mut elevator = Elevator::new(Scheduler::Deadline(DeadlineConfig::default()));
        for (request, first) in [(0, 30), (1, 10), (2, 40), (3, 20)] {
            elevator.insert(entry(request, first, false, 0));
        }
        elevator.insert(Entry { place: None, ..entry(4, 0, false, 0) });
        assert_eq!(drain(&mut elevator, Instant::ZERO), [4, 0, 2, 1, 3]);
    }

    #[test]
    fn deadline_lets_two_batches_of_reads_before_writes() {
        let figures = DeadlineConfig { fifo_batch: 2, ..DeadlineConfig::default() };
        let mut elevator = Elevator::new(Scheduler::Deadline(figures));
        for request in 0..8 {
            elevator.insert(entry(request, request.into(), true, 0));
        }
        for request in 10..13 {
            elevator.insert(entry(request, request.into(), false, 0));
        }
        assert_eq!(drain(&mut elevator, Instant::ZERO), [0, 1, 2, 3, 10, 11, 4, 5, 6, 7, 12]);
    }

    #[test]
    fn deadline_serves_what_has_expired_when_a_batch_begins() {
        let figures = DeadlineConfig { fifo_batch: 2, ..DeadlineConfig::default() };
        let order = |now| {
            let mut elevator = Elevator::new(Scheduler::Deadline(figures));
            elevator.insert(entry(0, 50, false, 0));
            elevator.insert(entry(1, 10, false, 0));
            for request in 2..5 {
                elevator.insert(entry(request, 50 + u64::from(request), false, 0));
            }
            drain(&mut elevator, now)
        };
        assert_eq!(order(Instant::from_nanos(4_999 * MS)), [0, 2, 3, 4, 1]);
        assert_eq!(order(Instant::from_nanos(5_000 * MS)), [0, 2, 1, 3, 4]);
    }

    #[test]
    fn cfq_gives_each_submitter_a_slice() {
        let mut elevator = Elevator::new(Scheduler::Cfq(CfqConfig::default()));
        for request in 0..4 {
            elevator.insert(entry(request, 10 * u64::from(request % 2) + u64::from(request), false, 1));
        }
        elevator.insert(entry(7, 1, true, 2));
        let at = |ms| Instant::from_nanos(ms * MS);
        // Upward from 0, and from there to the oldest; the second submitter follows when the slice of 100 ms is over.
        assert_eq!([0, 50].map(|ms| elevator.next(at(ms))), [Some(0), Some(2)]);
        assert_eq!([100, 101].map(|ms| elevator.next(at(ms))), [Some(7), Some(1)]);
        assert_eq!(drain(&mut elevator, at(102)), [3]);
    }

    #[test]
    fn one_can_be_taken_out_of_turn() {
        let schedulers = [
            Scheduler::None,
            Scheduler::Deadline(DeadlineConfig::default()),
            Scheduler::Cfq(CfqConfig::default()),
        ];
        for scheduler in schedulers {
            let mut elevator = Elevator::new(scheduler);
            let entries = [(0, 10, 1), (1, 20, 2), (2, 30, 1)];
            let entries = entries.map(|(request, first, submitter)| entry(request, first, false, submitter));
            let express = Entry { place: None, ..entry(3, 0, false, 0) };
            entries.into_iter().chain([express]).for_each(|entry| elevator.insert(entry));
            elevator.remove(entries[1]);
            elevator.remove(express);
            assert_eq!(drain(&mut elevator, Instant::ZERO), [0, 2], "{scheduler:?}");
        }
    }

    #[test]
    fn a_front_merge_moves_the_request() {
        let mut elevator = Elevator::new(Scheduler::Deadline(DeadlineConfig::default()));
        for (request, first) in [(0, 10), (1, 20), (2, 30)] {
            elevator.insert(entry(request, first, false, 0));
        }
        elevator.moved(entry(2, 30, false, 0), 15);
        assert_eq!(drain(&mut elevator, Instant::ZERO), [0, 2, 1]);
    }
}
