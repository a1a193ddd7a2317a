//! The work list as data: who may be able to go on.
//!
//! Place in the data flow: whatever sets something free (a program that ended, a slot, a durable record, a closed epoch) notes
//! here who may go on because of it; [`super::drain`] lets them, in the order of [`Due`].
//!
//! Deliberately absent: priorities among operations at a die, which are the machine's business.

use flashweir_core::command::StreamId;
use flashweir_ftl::PlaneId;

/// Who may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Epochs that may be complete, of the streams in the list.
    Epochs,
    /// Flushes that may have nothing left to wait for.
    Flushes,
    /// Planes in the list may begin a collection.
    Collect,
    /// The collections of planes in the list may do their next part.
    CollectStep,
    /// Versions may leave the buffer.
    Destage,
    /// Pages that are full or urgent go to the machine.
    Release,
    /// Whoever waits for a translation page may find it.
    LookUp,
    /// Word lines may have to be completed by filler.
    WordLines,
    /// The map log may have something to write.
    Log,
    /// The first command that waits to be accepted.
    Admit,
    /// Planes in the list may be unable to go on at all.
    Stuck,
}

/// In the order of the drain.
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

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// A bit for each of [`ORDER`].
    bits: u32,
    pub(super) streams: Vec<StreamId>,
    pub(super) collect: Vec<PlaneId>,
    pub(super) collect_step: Vec<PlaneId>,
    /// Slots that somebody waits for, whose word lines may be incomplete.
    pub(super) slots: Vec<u32>,
    /// All word lines are to be completed.
    pub(super) all_wordlines: bool,
    pub(super) stuck: Vec<PlaneId>,
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// The lists are short: mostly one plane, or the planes of a die.
pub(super) fn first<T>(list: &mut Vec<T>) -> Option<T> {
    if list.len() > 1 { Some(list.remove(0)) } else { list.pop() }
}

impl Work {
    /// Somebody may go on.
    #[inline]
    pub(super) fn set(&mut self, due: Due) {
        self.bits |= 1 << due as u32;
    }

    /// Epochs of a stream may be complete.
    pub(super) fn settle(&mut self, stream: StreamId) {
        add(&mut self.streams, stream);
        self.set(Due::Epochs);
    }

    /// A plane may begin a collection.
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
        self.all_wordlines = true;
        self.set(Due::WordLines);
    }

    /// A plane may be unable to go on.
    pub(super) fn check_stuck(&mut self, plane: PlaneId) {
        add(&mut self.stuck, plane);
        self.set(Due::Stuck);
    }

    /// Whether nobody may go on.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// The first that is due.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Due> {
        let due = ORDER.get(self.bits.trailing_zeros() as usize)?;
        self.bits &= self.bits - 1;
        Some(*due)
    }
}
