//! The work list as data: which work may be possible.
//!
//! Place in the data flow: code that makes other work possible (a program that ended, a free slot, a durable record, a closed
//! epoch) notes that work here; [`super::drain`] does it, in the order of [`Due`].
//!
//! Deliberately absent: priorities among operations at a die, which are the machine's business.

use flashweir_core::command::StreamId;
use flashweir_ftl::PlaneId;

/// Kinds of work that may be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Epochs of the streams in the list may be complete.
    Epochs,
    /// Flushes may have nothing left to wait for.
    Flushes,
    /// Planes in the list may begin GC.
    Collect,
    /// Collections of planes in the list may do their next part.
    CollectStep,
    /// Versions may leave the buffer.
    Destage,
    /// Pages that are full or urgent go to the machine.
    Release,
    /// Needs for translation pages may be served.
    LookUp,
    /// Word lines may have to be completed by filler.
    WordLines,
    /// The map log may have something to write.
    Log,
    /// The first command that waits to be accepted may be accepted.
    Admit,
    /// Planes in the list may be unable to proceed at all.
    Stuck,
}

/// The order of the drain.
const ORDER: [Due; 11] = [
    Due::Epochs,
    Due::Flushes,
    Due::Collect,
    Due::CollectStep,
    Due::Destage,
    Due::Release,
    Due::LookUp,
    Due::WordLines,
    Due::Log,
    Due::Admit,
    Due::Stuck,
];

/// The work list; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// A bit for each of [`ORDER`].
    bits: u32,
    pub(super) streams: Vec<StreamId>,
    pub(super) collect: Vec<PlaneId>,
    pub(super) collect_step: Vec<PlaneId>,
    /// Slots for which a command waits and whose word lines may be incomplete.
    pub(super) slots: Vec<u32>,
    /// Whether all word lines are to be completed, and whether those are for which something waits.
    pub(super) wordlines: [bool; 2],
    pub(super) stuck: Vec<PlaneId>,
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Takes the first item. The lists are short: mostly one plane, or the planes of a die.
pub(super) fn first<T>(list: &mut Vec<T>) -> Option<T> {
    if list.len() > 1 { Some(list.remove(0)) } else { list.pop() }
}

impl Work {
    /// Notes that work of this kind may be due.
    #[inline]
    pub(super) fn set(&mut self, due: Due) {
        self.bits |= 1 << due as u32;
    }

    /// Epochs of a stream may be complete.
    pub(super) fn settle(&mut self, stream: StreamId) {
        add(&mut self.streams, stream);
        self.set(Due::Epochs);
    }

    /// A plane may begin GC.
    #[inline]
    pub(super) fn collect(&mut self, plane: PlaneId) {
        add(&mut self.collect, plane);
        self.set(Due::Collect);
    }

    /// The collection of a plane may do its next part.
    #[inline]
    pub(super) fn collect_step(&mut self, plane: PlaneId) {
        add(&mut self.collect_step, plane);
        self.set(Due::CollectStep);
    }

    /// Word lines that hold these versions are to be completed.
    #[inline]
    pub(super) fn complete_wordlines_of(&mut self, slots: &[u32]) {
        if !slots.is_empty() {
            self.slots.extend_from_slice(slots);
            self.set(Due::WordLines);
        }
    }

    /// All word lines are to be completed.
    pub(super) fn complete_all_wordlines(&mut self) {
        self.complete_wordlines([true, false]);
    }

    /// All word lines are to be completed, or those for which something waits, or none.
    #[inline]
    pub(super) fn complete_wordlines(&mut self, [all, awaited]: [bool; 2]) {
        if all || awaited {
            self.wordlines = [self.wordlines[0] || all, self.wordlines[1] || awaited];
            self.set(Due::WordLines);
        }
    }

    /// A plane may be unable to proceed.
    pub(super) fn check_stuck(&mut self, plane: PlaneId) {
        add(&mut self.stuck, plane);
        self.set(Due::Stuck);
    }

    /// Whether no work is due.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Takes the first kind of work that is due.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Due> {
        let due = ORDER.get(self.bits.trailing_zeros() as usize)?;
        self.bits &= self.bits - 1;
        Some(*due)
    }
}
