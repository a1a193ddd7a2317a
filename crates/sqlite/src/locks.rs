//! Locks of files and shared memory of logs, among the connections of one world.
//!
//! Place in the data flow: [`crate::interface`] asks for them on the threads of SQLite. Only one of these runs at any time, so the table is
//! never waited for.
//!
//! Invariants: at most one connection has a lock above SHARED; EXCLUSIVE is alone. Memory of a log lives until the last
//! connection that uses it has gone, and does not move.
//!
//! Deliberately absent: waiting. SQLite asks again.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A lock of SQLite, in its numbering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    #[default]
    None = 0,
    Shared = 1,
    Reserved = 2,
    Pending = 3,
    Exclusive = 4,
}

impl Level {
    pub(crate) fn of(number: i32) -> Self {
        match number {
            ..=0 => Self::None,
            1 => Self::Shared,
            2 => Self::Reserved,
            3 => Self::Pending,
            4.. => Self::Exclusive,
        }
    }
}

/// Holder of a lock: an open file.
pub(crate) type Owner = u64;

/// A part of a log's index. Words, because SQLite wants them aligned; atomic, because SQLite on another thread writes to
/// them too.
pub(crate) type Region = Arc<[AtomicU64]>;

/// Slots of shared locks.
const SLOTS: usize = 8;

/// A lock in shared memory.
#[derive(Debug, Default)]
struct Slot {
    shared: Vec<Owner>,
    exclusive: Option<Owner>,
}

/// State of one file that its connections share.
#[derive(Debug, Default)]
struct Shared {
    levels: BTreeMap<Owner, Level>,
    users: Vec<Owner>,
    regions: Vec<Region>,
    slots: [Slot; SLOTS],
}

/// Files by their path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<BTreeMap<String, Shared>>>);

impl Locks {
    fn table(&self) -> MutexGuard<'_, BTreeMap<String, Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises a lock to `wanted`; false if others are in the way. Then it may have become PENDING, which keeps new readers out.
    pub(crate) fn lock(&self, path: &str, owner: Owner, wanted: Level) -> bool {
        let mut table = self.table();
        let levels = &mut table.entry(path.to_owned()).or_default().levels;
        let has = levels.get(&owner).copied().unwrap_or_default();
        if has >= wanted {
            return true;
        }
        let highest = levels.iter().filter(|(other, _)| **other != owner).map(|(_, level)| *level).max();
        let highest = highest.unwrap_or_default();
        let is_granted = match wanted {
            Level::None => true,
            Level::Shared => highest < Level::Pending,
            Level::Reserved | Level::Pending => highest < Level::Reserved,
            Level::Exclusive => highest == Level::None,
        };
        let level = match is_granted {
            true => wanted,
            false if wanted == Level::Exclusive && highest == Level::Shared => Level::Pending,
            false => has,
        };
        if level > Level::None {
            levels.insert(owner, level);
        }
        is_granted
    }

    /// Lowers a lock.
    pub(crate) fn unlock(&self, path: &str, owner: Owner, to: Level) {
        if let Some(shared) = self.table().get_mut(path)
            && let Some(level) = shared.levels.get_mut(&owner)
        {
            *level = to.min(*level);
            if *level == Level::None {
                shared.levels.remove(&owner);
            }
        }
    }

    /// Whether a connection has RESERVED or more.
    pub(crate) fn is_reserved(&self, path: &str) -> bool {
        let table = self.table();
        table.get(path).is_some_and(|shared| shared.levels.values().any(|level| *level >= Level::Reserved))
    }

    /// A part of the memory, made of zeros if it does not exist and `extends`.
    pub(crate) fn region(
        &self,
        path: &str,
        owner: Owner,
        index: usize,
        bytes: usize,
        extends: bool,
    ) -> Option<Region> {
        let mut table = self.table();
        let shared = table.entry(path.to_owned()).or_default();
        if !shared.users.contains(&owner) {
            shared.users.push(owner);
        }
        while extends && shared.regions.len() <= index {
            shared.regions.push((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
        }
        shared.regions.get(index).cloned()
    }

    /// Takes or gives back locks in the memory; false if others are in the way.
    pub(crate) fn lock_slots(
        &self,
        path: &str,
        owner: Owner,
        slots: std::ops::Range<usize>,
        is_lock: bool,
        is_shared: bool,
    ) -> bool {
        let mut table = self.table();
        let shared = table.entry(path.to_owned()).or_default();
        let Some(slots) = shared.slots.get_mut(slots) else { return false };
        if !is_lock {
            for slot in slots {
                slot.shared.retain(|other| *other != owner);
                slot.exclusive = slot.exclusive.filter(|other| *other != owner);
            }
            return true;
        }
        let is_free = |slot: &Slot| {
            slot.exclusive.is_none_or(|other| other == owner)
                && (is_shared || slot.shared.iter().all(|other| *other == owner))
        };
        if !slots.iter().all(is_free) {
            return false;
        }
        for slot in slots {
            match is_shared {
                true if !slot.shared.contains(&owner) => slot.shared.push(owner),
                true => {}
                false => slot.exclusive = Some(owner),
            }
        }
        true
    }

    /// The connection uses the memory no more.
    pub(crate) fn unmap(&self, path: &str, owner: Owner) {
        if let Some(shared) = self.table().get_mut(path) {
            shared.users.retain(|other| *other != owner);
            for slot in &mut shared.slots {
                slot.shared.retain(|other| *other != owner);
                slot.exclusive = slot.exclusive.filter(|other| *other != owner);
            }
            if shared.users.is_empty() {
                shared.regions.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_those_of_sqlite() {
        let locks = Locks::default();
        let lock = |owner, level| locks.lock("db", owner, level);
        assert!(lock(1, Level::Shared) && lock(2, Level::Shared));
        assert!(lock(1, Level::Reserved) && !lock(2, Level::Reserved) && locks.is_reserved("db"));
        assert!(!lock(1, Level::Exclusive), "somebody reads");
        assert!(!lock(3, Level::Shared), "somebody waits for readers to go");
        locks.unlock("db", 2, Level::None);
        assert!(lock(1, Level::Exclusive) && !lock(3, Level::Shared));
        locks.unlock("db", 1, Level::Shared);
        assert!(lock(3, Level::Shared) && !locks.is_reserved("db"));
        assert!(!locks.is_reserved("other"));
    }

    /// All states of two connections, and all wishes of the second: the rules of SQLite's "File Locking And Concurrency".
    #[test]
    fn a_lock_is_granted_as_the_table_says() {
        let all = [Level::None, Level::Shared, Level::Reserved, Level::Pending, Level::Exclusive];
        for (other, has) in all.into_iter().flat_map(|other| all.map(|has| (other, has))) {
            let is_legal = match other.max(has) {
                Level::Exclusive => other.min(has) == Level::None,
                Level::Reserved | Level::Pending => other.min(has) <= Level::Shared,
                Level::None | Level::Shared => true,
            };
            for wanted in all.into_iter().filter(|_| is_legal) {
                let locks = Locks::default();
                let levels = [(1, other), (2, has)].into_iter().filter(|(_, level)| *level > Level::None);
                locks.table().entry("db".into()).or_default().levels.extend(levels);
                let expected = wanted <= has
                    || match wanted {
                        Level::None | Level::Shared => other <= Level::Reserved,
                        Level::Reserved | Level::Pending => other <= Level::Shared,
                        Level::Exclusive => other == Level::None,
                    };
                let after = match expected {
                    true => wanted.max(has),
                    // Only readers are in the way: they are let out, and no other in.
                    false if wanted == Level::Exclusive && other == Level::Shared => Level::Pending,
                    false => has,
                };
                let case = format!("one has {other:?}, the other {has:?} and wants {wanted:?}");
                assert_eq!(locks.lock("db", 2, wanted), expected, "{case}");
                let level = |owner| locks.table()["db"].levels.get(&owner).copied().unwrap_or_default();
                assert_eq!((level(1), level(2)), (other, after), "{case}");
                for to in all {
                    let from = level(2);
                    locks.unlock("db", 2, to);
                    assert_eq!(level(2), from.min(to), "from {from:?} to {to:?}");
                    assert_eq!(locks.is_reserved("db"), level(1).max(level(2)) >= Level::Reserved);
                    locks.table().get_mut("db").unwrap().levels.insert(2, from);
                }
            }
        }
    }

    /// SQLite asks for SHARED again in the middle of a transaction; it has it, even if other connections wait.
    #[test]
    fn a_lock_that_is_held_already_is_granted_and_stays() {
        let locks = Locks::default();
        let lock = |owner, level| locks.lock("db", owner, level);
        assert!(lock(1, Level::Shared) && lock(2, Level::Shared));
        assert!(lock(2, Level::Reserved) && !lock(2, Level::Exclusive), "the second waits for the first");
        assert!(lock(1, Level::Shared), "it has the lock, though no new reader would get one");
        assert!(lock(2, Level::Shared) && locks.is_reserved("db"), "a lower level is no step down");
        locks.unlock("db", 1, Level::None);
        assert!(lock(2, Level::Exclusive));
    }

    /// A connection that ends while it has locks of the log's memory leaves none behind.
    #[test]
    fn locks_in_memory_go_with_their_owner() {
        let locks = Locks::default();
        let slots = |owner, is_lock, is_shared| locks.lock_slots("db", owner, 0..2, is_lock, is_shared);
        for owner in [1, 2] {
            locks.region("db", owner, 0, 32_768, true);
        }
        assert!(slots(1, true, false) && !slots(2, true, true) && !slots(2, true, false));
        locks.unmap("db", 1);
        assert!(slots(2, true, false), "the first is gone");
        assert!(slots(2, false, false) && slots(3, true, true));
    }

    #[test]
    fn shared_locks_in_memory_are_given_back() {
        let locks = Locks::default();
        let slots = |owner, is_lock, is_shared| locks.lock_slots("db", owner, 0..2, is_lock, is_shared);
        assert!(slots(1, true, true) && slots(2, true, true) && !slots(2, true, false));
        assert!(slots(1, false, true) && slots(2, true, false), "the other reader is gone");
        assert!(slots(2, false, true) && slots(1, true, false), "reader and writer are gone");
    }

    #[test]
    fn a_lock_beyond_the_slots_is_refused() {
        let locks = Locks::default();
        assert!(locks.lock_slots("db", 1, 0..1, true, false));
        assert!(!locks.lock_slots("db", 1, 7..99, true, false), "there are not so many");
        assert!(!locks.lock_slots("db", 1, 7..99, false, false));
    }

    #[test]
    fn memory_lives_as_long_as_somebody_uses_it() {
        let locks = Locks::default();
        assert!(locks.region("db", 1, 0, 32_768, false).is_none());
        let first = locks.region("db", 1, 1, 32_768, true).unwrap();
        assert_eq!(first.len(), 4_096);
        assert!(Arc::ptr_eq(&first, &locks.region("db", 2, 1, 32_768, false).unwrap()));
        let slots = |owner, is_lock, is_shared| locks.lock_slots("db", owner, 3..5, is_lock, is_shared);
        assert!(slots(1, true, true) && slots(2, true, true) && !slots(2, true, false));
        locks.unmap("db", 1);
        assert!(slots(2, true, false) && !slots(1, true, true));
        locks.unmap("db", 2);
        assert!(locks.region("db", 1, 1, 32_768, false).is_none());
    }
}
