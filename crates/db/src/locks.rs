//! Row locks: a transaction holds a row from its first change, or its request to change it, until the transaction ends.
//!
//! Place in the data flow: a transaction requests a lock here before it reads a row that it intends to change.
//!
//! Invariants: locks are granted in the order of the requests; each transaction waits for at most one lock, and thus
//! for at most one other transaction (the one before it in the queue, or the holder). A wait that would close a cycle
//! is refused, so that every wait ends.
//!
//! Deliberately absent: shared locks, gaps between rows, intentions. Plain reads take no locks.

use flashweir_core::executor::{Receiver, Sender, oneshot};
use std::collections::{BTreeMap, VecDeque};

/// Identifies a transaction; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrxId(pub(crate) u64);

/// A row: its tree and key.
type Row = (u32, Box<[u8]>);

#[derive(Debug)]
struct Lock {
    holder: TrxId,
    queue: VecDeque<(TrxId, Sender<()>)>,
}

/// Result of a lock request.
#[derive(Debug)]
pub(crate) enum Wish {
    /// The lock is granted.
    Granted,
    /// The lock is granted when this receives a value.
    Wait(Receiver<()>),
    /// The lock would never be granted.
    Deadlock,
}

/// All locks.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    rows: BTreeMap<Row, Lock>,
    held: BTreeMap<TrxId, Vec<Row>>,
    /// The row that each waiting transaction waits for.
    waiting: BTreeMap<TrxId, Row>,
}

impl Locks {
    pub(crate) fn ask(&mut self, trx: TrxId, tree: u32, key: &[u8]) -> Wish {
        let row = (tree, Box::from(key));
        let Some(lock) = self.rows.get(&row) else {
            self.rows.insert(row.clone(), Lock { holder: trx, queue: VecDeque::new() });
            self.held.entry(trx).or_default().push(row);
            return Wish::Granted;
        };
        if lock.holder == trx {
            return Wish::Granted;
        }
        if self.would_wait_for(&row, trx) {
            return Wish::Deadlock;
        }
        let (sender, receiver) = oneshot();
        let lock = self.rows.get_mut(&row).expect("it was found above");
        lock.queue.push_back((trx, sender));
        self.waiting.insert(trx, row);
        Wish::Wait(receiver)
    }

    /// Whether a transaction that waits for `row` would wait for `trx`, which waits for nothing. Transactions before it
    /// in the queue wait for the holder as it does, so only holders matter.
    fn would_wait_for(&self, row: &Row, trx: TrxId) -> bool {
        let mut row = row;
        loop {
            let Some(lock) = self.rows.get(row) else { return false };
            if lock.holder == trx {
                return true;
            }
            match self.waiting.get(&lock.holder) {
                Some(next) => row = next,
                None => return false,
            }
        }
    }

    /// Ends a wait that is over or was given up.
    pub(crate) fn end_wait(&mut self, trx: TrxId) {
        if let Some(row) = self.waiting.remove(&trx)
            && let Some(lock) = self.rows.get_mut(&row)
        {
            lock.queue.retain(|(other, _)| *other != trx);
        }
    }

    /// Ends all waits without a lock: the engine has stopped, and no transaction ends in order any more.
    pub(crate) fn give_up_waits(&mut self) {
        self.waiting.clear();
        self.rows.values_mut().for_each(|lock| lock.queue.clear());
    }

    /// Passes all locks of a transaction to those that wait for them.
    pub(crate) fn release(&mut self, trx: TrxId) {
        self.end_wait(trx);
        for row in self.held.remove(&trx).unwrap_or_default() {
            let Some(lock) = self.rows.get_mut(&row) else { continue };
            let next = loop {
                let Some((next, sender)) = lock.queue.pop_front() else { break None };
                // A transaction that does not wait any more is skipped.
                if sender.send(()).is_ok() {
                    break Some(next);
                }
                self.waiting.remove(&next);
            };
            match next {
                Some(next) => {
                    lock.holder = next;
                    self.waiting.remove(&next);
                    self.held.entry(next).or_default().push(row);
                }
                None => {
                    self.rows.remove(&row);
                }
            }
        }
    }

    /// Whether no transaction holds or awaits a lock.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.held.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TrxId = TrxId(1);
    const B: TrxId = TrxId(2);
    const C: TrxId = TrxId(3);

    #[test]
    fn the_first_who_asks_gets_it_first() {
        let mut locks = Locks::default();
        assert!(matches!(locks.ask(A, 1, b"x"), Wish::Granted));
        assert!(matches!(locks.ask(A, 1, b"x"), Wish::Granted));
        assert!(matches!(locks.ask(B, 2, b"x"), Wish::Granted), "another tree");
        let Wish::Wait(mut b) = locks.ask(B, 1, b"x") else { panic!("it is taken") };
        let Wish::Wait(mut c) = locks.ask(C, 1, b"x") else { panic!("it is taken") };
        locks.release(A);
        assert_eq!((b.try_receive(), c.try_receive()), (Some(()), None));
        locks.release(B);
        assert_eq!(c.try_receive(), Some(()));
        locks.release(C);
        assert!(locks.is_empty());
    }

    #[test]
    fn a_circle_is_refused() {
        let mut locks = Locks::default();
        for (trx, key) in [(A, b"a"), (B, b"b"), (C, b"c")] {
            assert!(matches!(locks.ask(trx, 1, key), Wish::Granted));
        }
        let _a = locks.ask(A, 1, b"b");
        let _b = locks.ask(B, 1, b"c");
        assert!(matches!(locks.ask(C, 1, b"a"), Wish::Deadlock));
        locks.release(C);
        locks.release(B);
        locks.release(A);
        assert!(locks.is_empty());
    }

    /// B waits behind C for A's row; then C must not wait for B.
    #[test]
    fn a_circle_through_a_queue_is_refused() {
        let mut locks = Locks::default();
        assert!(matches!(locks.ask(A, 1, b"a"), Wish::Granted));
        assert!(matches!(locks.ask(B, 1, b"b"), Wish::Granted));
        let _c = locks.ask(C, 1, b"a");
        let _b = locks.ask(B, 1, b"a");
        // A requests a row of B; B waits for C, C waits for A.
        assert!(matches!(locks.ask(A, 1, b"b"), Wish::Deadlock));
        assert!(matches!(locks.ask(A, 1, b"z"), Wish::Granted));
    }

    #[test]
    fn who_gives_up_is_passed_over() {
        let mut locks = Locks::default();
        assert!(matches!(locks.ask(A, 1, b"a"), Wish::Granted));
        let b = locks.ask(B, 1, b"a");
        let Wish::Wait(mut c) = locks.ask(C, 1, b"a") else { panic!("it is taken") };
        drop(b);
        locks.release(A);
        assert_eq!(c.try_receive(), Some(()));
        locks.release(C);
        assert!(locks.is_empty());
    }
}
