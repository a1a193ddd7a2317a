//! The volatile write buffer: slots, versions, and the order of eviction.
//!
//! A logical page may have several versions at once: one that is being programmed and newer ones. The map names the newest slot,
//! each slot names what was there before it (`under`), and the end of the chain is the durable place.
//!
//! Invariants: a slot is in the dirty list exactly while it is `Dirty`; only a dirty or held slot for which no command waits is
//! overwritten in place (contract §6.8: a version in the closure of a pending flush is frozen).

use super::tags::{Owners, TagIndex};
use crate::config::Eviction;
use flashweir_core::command::{Handle, StreamId, Tag};
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::MapWord;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    /// May be overwritten in place.
    Dirty,
    /// Waits for earlier epochs of its stream before it may be written; may be overwritten in place.
    Held,
    /// A command waits for it, or it was chosen for writing.
    Placed,
    /// It is on the medium, but recovery could still discard it.
    Programmed(Ppa),
}

/// Why the version in a slot no longer counts when it reaches the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superseded {
    No,
    /// A newer version is durable.
    ByWrite,
    /// A deallocation, or a SHARE to this page, with this sequence number was accepted.
    ByChange(u64),
    /// It never counted by itself: it is the copy for a SHARE that has not been accepted (share §4.5).
    Hidden,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) lpn: Lpn,
    pub(crate) seq: u64,
    pub(crate) payload: Payload,
    pub(crate) under: MapWord,
    pub(crate) state: SlotState,
    pub(crate) superseded: Superseded,
    pub(crate) generation: u32,
    /// Command that completes when this version is durable.
    pub(crate) waiter: Option<u32>,
    /// The page write that it joined, once it is placed.
    pub(crate) page: u32,
    /// Stream and epoch to which it belongs.
    pub(crate) member: Option<(StreamId, u32)>,
    /// Whether it is orderless and stands for a member that it replaced (contract §6.10).
    pub(crate) orderless: bool,
    /// Whether it never leaves the buffer: an earlier member of its stream was lost, or its plane has no room and a capacitor
    /// protects it.
    pub(crate) stuck: bool,
    /// Where the host wants it placed.
    pub(crate) handle: Handle,
    /// Head of its chain in the index of tags.
    tags: u32,
    /// Head of its chain in the table of waiting range flushes.
    waits: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// The place of a version according to a map word. All map words of this firmware are read through this type, so that a new kind of
/// word has to be handled by every reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is no version: never written, or deallocated.
    Nowhere,
    /// In a slot of the buffer, above the word that the slot keeps as `under`.
    Slot(u32),
    /// On the medium.
    Unit(Ppa),
    /// On the medium, shared with other pages, by the number of the virtual page.
    Shared(u64),
}

/// The slots of the write buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: u32,
    /// The oldest dirty slot, which is evicted next; the next field is the newest.
    head: u32,
    tail: u32,
    dirty: u32,
    eviction: Eviction,
    tags: TagIndex,
    /// Chains of range flushes that wait for a version: command, next entry.
    waits: Vec<(u32, u32)>,
    free_waits: Vec<u32>,
}

impl Buffer {
    /// Returns an empty buffer with a capacity in mapping units.
    pub(crate) fn new(capacity: u32, eviction: Eviction) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            head: NONE,
            tail: NONE,
            dirty: 0,
            eviction,
            tags: TagIndex::default(),
            waits: Vec::new(),
            free_waits: Vec::new(),
        }
    }

    /// Number of slots in use.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of slots that are dirty and not chosen for writing.
    pub(crate) fn dirty(&self) -> u32 {
        self.dirty
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.used() < self.capacity
    }

    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Begins to fetch a slot from memory.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        let slot = &self.slots[slot as usize];
        // The fields that are used lie in three cache lines.
        flashweir_core::prefetch(slot);
        flashweir_core::prefetch(&slot.superseded);
        flashweir_core::prefetch(&slot.next);
    }

    /// Puts a dirty version into a free slot; returns the slot.
    pub(crate) fn insert(&mut self, lpn: Lpn, seq: u64, payload: Payload, under: MapWord) -> u32 {
        let slot = match self.free.pop() {
            Some(free) => {
                let slot = &mut self.slots[free as usize];
                let generation = slot.generation.wrapping_add(1) & ((1 << 30) - 1);
                *slot = Slot { generation, ..Slot::dirty(lpn, seq, payload, under) };
                free
            }
            None => {
                self.slots.push(Slot::dirty(lpn, seq, payload, under));
                self.slots.len() as u32 - 1
            }
        };
        self.link(slot);
        slot
    }

    /// The place of a version according to a map word. Panics if the word names a slot that was used again since, which is a bug of
    /// the simulator.
    #[inline]
    pub(crate) fn place(&self, word: MapWord) -> Place {
        match word {
            MapWord::Unmapped => Place::Nowhere,
            MapWord::Cached { slot, generation } => {
                debug_assert_eq!(self.slots[slot as usize].generation, generation, "slot {slot} was reused");
                Place::Slot(slot)
            }
            MapWord::Direct(ppa) => Place::Unit(ppa),
            MapWord::Shared(vpid) => Place::Shared(vpid),
        }
    }

    /// What is below all versions in the buffer: a place on the medium, or nothing.
    #[inline]
    pub(crate) fn bottom(&self, mut word: MapWord) -> Place {
        loop {
            match self.place(word) {
                Place::Slot(slot) => word = self.slots[slot as usize].under,
                bottom => return bottom,
            }
        }
    }

    /// The map word that names a slot.
    #[inline]
    pub(crate) fn word(&self, slot: u32) -> MapWord {
        MapWord::Cached { slot, generation: self.slots[slot as usize].generation }
    }

    /// Overwrites a dirty slot in place.
    pub(crate) fn overwrite(&mut self, slot: u32, seq: u64, payload: Payload) {
        let state = self.slots[slot as usize].state;
        debug_assert!(matches!(state, SlotState::Dirty | SlotState::Held));
        self.slots[slot as usize].seq = seq;
        self.slots[slot as usize].payload = payload;
        if self.eviction == Eviction::Lru && state == SlotState::Dirty {
            self.unlink(slot);
            self.link(slot);
        }
    }

    /// Adds owners to a version and keeps those that it has (contract §6.9: a newer version also fulfils what was promised of the
    /// one that it replaces).
    #[inline]
    pub(crate) fn own(&mut self, slot: u32, tags: [Tag; 2]) {
        if tags != [Tag(0); 2] {
            self.tags.unite(&mut self.slots[slot as usize].tags, slot, tags);
        }
    }

    /// Removes the owners of a version.
    #[inline]
    pub(crate) fn disown(&mut self, slot: u32) {
        if self.slots[slot as usize].tags != NONE {
            self.tags.clear(&mut self.slots[slot as usize].tags);
        }
    }

    /// The owners of a version.
    pub(crate) fn owners(&self, slot: u32) -> Owners {
        self.tags.owners(self.slots[slot as usize].tags)
    }

    /// The versions that a tag owns.
    pub(crate) fn tagged(&self, tag: Tag) -> impl Iterator<Item = u32> + '_ {
        self.tags.slots(tag)
    }

    /// Makes the range flush `command` wait for a version.
    pub(crate) fn wait(&mut self, slot: u32, command: u32) {
        let entry = (command, self.slots[slot as usize].waits);
        let at = match self.free_waits.pop() {
            Some(free) => {
                self.waits[free as usize] = entry;
                free
            }
            None => {
                self.waits.push(entry);
                self.waits.len() as u32 - 1
            }
        };
        self.slots[slot as usize].waits = at;
    }

    /// Removes one of the range flushes that wait for a version; returns its command.
    #[inline]
    pub(crate) fn stop_wait(&mut self, slot: u32) -> Option<u32> {
        let at = self.slots[slot as usize].waits;
        if at == NONE {
            return None;
        }
        let (command, next) = self.waits[at as usize];
        self.slots[slot as usize].waits = next;
        self.free_waits.push(at);
        Some(command)
    }

    /// Whether a range flush waits for a version.
    pub(crate) fn is_waited_for(&self, slot: u32) -> bool {
        self.slots[slot as usize].waits != NONE
    }

    /// Holds back a dirty version: it must not be written yet.
    pub(crate) fn hold(&mut self, slot: u32) {
        debug_assert_eq!(self.slots[slot as usize].state, SlotState::Dirty);
        self.unlink(slot);
        self.slots[slot as usize].state = SlotState::Held;
    }

    /// Releases a version that was held back: it may be written.
    pub(crate) fn unhold(&mut self, slot: u32) {
        if self.slots[slot as usize].state == SlotState::Held {
            self.slots[slot as usize].state = SlotState::Dirty;
            self.link(slot);
        }
    }

    /// Marks a version as being on the medium at `ppa`; it stays in the buffer.
    pub(crate) fn programmed(&mut self, slot: u32, ppa: Ppa) {
        self.slots[slot as usize].state = SlotState::Programmed(ppa);
    }

    /// Makes a dirty version the next one to be evicted.
    pub(crate) fn hurry(&mut self, slot: u32) {
        if self.slots[slot as usize].state != SlotState::Dirty || self.head == slot {
            return;
        }
        self.unlink(slot);
        let head = self.head;
        (self.slots[slot as usize].previous, self.slots[slot as usize].next) = (NONE, head);
        match head {
            NONE => self.tail = slot,
            head => self.slots[head as usize].previous = slot,
        }
        self.head = slot;
        self.dirty += 1;
    }

    /// The dirty slot that is evicted next.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Marks a dirty slot as chosen for writing.
    pub(crate) fn choose(&mut self, slot: u32) {
        assert_eq!(self.slots[slot as usize].state, SlotState::Dirty);
        self.unlink(slot);
        self.slots[slot as usize].state = SlotState::Placed;
    }

    /// Frees a slot.
    pub(crate) fn release(&mut self, slot: u32) {
        match self.slots[slot as usize].state {
            SlotState::Dirty => self.unlink(slot),
            SlotState::Held | SlotState::Placed | SlotState::Programmed(_) => {}
            SlotState::Free => unreachable!("slot {slot} is given back once"),
        }
        debug_assert_eq!(self.slots[slot as usize].waits, NONE, "a range flush waits for slot {slot}");
        self.disown(slot);
        self.slots[slot as usize].state = SlotState::Free;
        self.slots[slot as usize].payload = Payload::Zero;
        self.free.push(slot);
    }

    /// All slots in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, s)| s.state != SlotState::Free).map(|(i, s)| (i as u32, s))
    }

    fn link(&mut self, slot: u32) {
        let tail = self.tail;
        let linked = &mut self.slots[slot as usize];
        (linked.previous, linked.next) = (tail, NONE);
        match tail {
            NONE => self.head = slot,
            tail => self.slots[tail as usize].next = slot,
        }
        self.tail = slot;
        self.dirty += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let (previous, next) = (self.slots[slot as usize].previous, self.slots[slot as usize].next);
        match previous {
            NONE => self.head = next,
            previous => self.slots[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.slots[next as usize].previous = previous,
        }
        self.dirty -= 1;
    }
}

impl Slot {
    /// A slot with a version that nothing waits for and that has no owner.
    #[inline]
    fn dirty(lpn: Lpn, seq: u64, payload: Payload, under: MapWord) -> Self {
        Self {
            lpn,
            seq,
            payload,
            under,
            state: SlotState::Dirty,
            superseded: Superseded::No,
            generation: 0,
            waiter: None,
            page: NONE,
            member: None,
            orderless: false,
            stuck: false,
            handle: Handle(0),
            tags: NONE,
            waits: NONE,
            previous: NONE,
            next: NONE,
        }
    }
}
