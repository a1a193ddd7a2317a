//! Descriptors of commands and buffers for them: one pool behind one lock, or a slab for each worker (open-channel §2.5).
//!
//! A worker takes from its own slab without any shared word. What another thread gives back goes to a list of many producers; the
//! owner takes all of that list at once when its own is empty.
//!
//! Invariant: an item is leased to one holder at a time; it returns to the slab that it came from, whoever returns it.

use crate::content::Content;
use crate::spin::SpinLock;
use crate::sync::{Alone, AtomicU32, Ordering};

/// What a command needs beside its data.
#[derive(Debug, Default)]
pub struct Item {
    /// Addresses and out-of-band records, as the device reads them.
    pub list: Content,
    /// Room for one unit.
    pub buffer: Content,
}

const NONE: u32 = u32::MAX;

/// Items of one owner.
#[derive(Debug)]
struct Slab {
    items: Box<[Item]>,
    /// For each item that was given back, the one given back before it.
    links: Box<[AtomicU32]>,
    /// The item that another thread gave back last.
    returned: Alone<AtomicU32>,
    /// A planted bug: an item is put onto the list by a store.
    #[cfg(loom)]
    puts_by_store: bool,
}

impl Slab {
    fn new(items: u32) -> Self {
        Self {
            items: (0..items).map(|_| Item::default()).collect(),
            links: (0..items).map(|_| AtomicU32::new(NONE)).collect(),
            returned: Alone(AtomicU32::new(NONE)),
            #[cfg(loom)]
            puts_by_store: false,
        }
    }

    /// Puts an item onto the list of many producers.
    fn put(&self, item: u32) {
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            self.links[item as usize].store(head, Ordering::Relaxed);
            #[cfg(loom)]
            if self.puts_by_store {
                return self.returned.store(item, Ordering::Release);
            }
            // The list is only ever taken as a whole, so a head that has come back is as good as one that stayed.
            match self.returned.compare_exchange(head, item, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// All items.
#[derive(Debug)]
pub struct Pool {
    slabs: Box<[Slab]>,
    /// Free items of the one slab that all share.
    shared: Option<SpinLock<Vec<u32>>>,
}

/// A worker's end of the pool.
#[derive(Debug)]
pub struct Worker {
    slab: u32,
    free: Vec<u32>,
}

/// An item in use.
#[derive(Debug)]
pub struct Lease<'a> {
    pool: &'a Pool,
    slab: u32,
    item: u32,
}

impl<'a> Lease<'a> {
    /// The item, which stays in the pool's memory.
    pub(crate) fn get(&self) -> &'a Item {
        &self.pool.slabs[self.slab as usize].items[self.item as usize]
    }
}

impl std::ops::Deref for Lease<'_> {
    type Target = Item;

    fn deref(&self) -> &Item {
        self.get()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        match &self.pool.shared {
            Some(free) => free.lock().push(self.item),
            None => self.pool.slabs[self.slab as usize].put(self.item),
        }
    }
}

impl Pool {
    /// Nanoseconds that threads have waited for the lock so far.
    #[cfg(feature = "measure")]
    pub(crate) fn waited_ns(&self) -> u64 {
        self.shared.as_ref().map_or(0, SpinLock::waited_ns)
    }

    /// A pool for so many workers with `items` items each, and their ends of it; `is_shared` makes it one slab behind one lock.
    pub fn new(workers: u32, items: u32, is_shared: bool) -> (Self, Vec<Worker>) {
        let all = workers * items;
        if is_shared {
            let shared = Some(SpinLock::new((0..all).collect()));
            let ends = (0..workers).map(|_| Worker { slab: 0, free: Vec::new() }).collect();
            return (Self { slabs: [Slab::new(all)].into(), shared }, ends);
        }
        let ends = (0..workers).map(|slab| Worker { slab, free: (0..items).collect() }).collect();
        (Self { slabs: (0..workers).map(|_| Slab::new(items)).collect(), shared: None }, ends)
    }
}

#[cfg(loom)]
impl Pool {
    /// Plants a bug.
    pub(crate) fn put_by_store(&mut self) {
        self.slabs.iter_mut().for_each(|slab| slab.puts_by_store = true);
    }
}

impl Worker {
    /// An item, unless all are in use.
    pub fn take<'a>(&mut self, pool: &'a Pool) -> Option<Lease<'a>> {
        let item = match &pool.shared {
            Some(free) => free.lock().pop(),
            None => {
                if self.free.is_empty() {
                    self.collect(pool);
                }
                self.free.pop()
            }
        };
        item.map(|item| Lease { pool, slab: self.slab, item })
    }

    /// Takes all items that other threads gave back.
    fn collect(&mut self, pool: &Pool) {
        let slab = &pool.slabs[self.slab as usize];
        let mut item = slab.returned.swap(NONE, Ordering::Acquire);
        while item != NONE {
            self.free.push(item);
            item = slab.links[item as usize].load(Ordering::Relaxed);
        }
    }

    /// Gives an item back by the shortest way; an item of another worker goes the way of a drop.
    pub fn give(&mut self, lease: Lease<'_>) {
        if lease.pool.shared.is_none() && lease.slab == self.slab {
            self.free.push(lease.item);
            std::mem::forget(lease);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Two workers lease from their own ends and give back each other's items; every item is in one hand at a time.
    #[test]
    fn items_return_to_their_owners() {
        let rounds = if cfg!(miri) { 30 } else { 20_000 };
        for is_shared in [false, true] {
            let (pool, ends) = Pool::new(2, 3, is_shared);
            let (left, right) = (std::sync::Mutex::new(Vec::new()), std::sync::Mutex::new(Vec::new()));
            let (pool, posts) = (&pool, [&left, &right]);
            let ends: Vec<Worker> = std::thread::scope(|scope| {
                let work = |(at, mut end): (usize, Worker)| {
                    scope.spawn(move || {
                        for round in 0..rounds {
                            if let Some(lease) = end.take(pool) {
                                let stamp = round * 2 + at as u64;
                                lease.buffer.set_word(0, stamp);
                                assert_eq!(lease.buffer.word(0), stamp, "somebody else has the item");
                                match round % 3 {
                                    0 => end.give(lease),
                                    1 => drop(lease),
                                    _ => posts[1 - at].lock().unwrap().push(lease),
                                }
                            }
                            for lease in posts[at].lock().unwrap().drain(..) {
                                end.give(lease);
                            }
                        }
                        end
                    })
                };
                let threads: Vec<_> = ends.into_iter().enumerate().map(work).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            posts.iter().for_each(|post| post.lock().unwrap().clear());
            let mut found = Vec::new();
            for mut end in ends {
                while let Some(lease) = end.take(pool) {
                    found.push((lease.slab, lease.item));
                    std::mem::forget(lease);
                }
            }
            found.sort_unstable();
            let all: Vec<(u32, u32)> = match is_shared {
                true => (0..6).map(|item| (0, item)).collect(),
                false => (0..6).map(|item| (item / 3, item % 3)).collect(),
            };
            assert_eq!(found, all);
        }
    }
}
