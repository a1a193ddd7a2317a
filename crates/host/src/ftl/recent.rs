//! The last units of each open chunk, which OCSSD 2.0 does not give back: the host FTL serves them itself (open-channel §6.4).
//!
//! Place in the data flow: a program that has succeeded leaves its units here; reads and GC look here before they ask the device.
//!
//! Invariant: a unit of data that the device would refuse as too recent is here. What is here may be more: padding counts for nothing.

use flashweir_core::oob::OobRecord;
use flashweir_core::{Payload, Ppa};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, VecDeque};

/// A unit: its place, record and content.
type Unit = (Ppa, OobRecord, Payload);

/// The units.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// Units of a chunk that the device keeps back.
    keep: usize,
    blocks: BTreeMap<BlockId, VecDeque<Unit>>,
}

impl Recent {
    /// Returns the memory for a device that keeps back so many units of a chunk.
    pub(super) fn new(keep: u32) -> Self {
        Self { keep: keep as usize, blocks: BTreeMap::new() }
    }

    /// Whether the device keeps nothing back.
    pub(super) fn is_needless(&self) -> bool {
        self.keep == 0
    }

    /// A unit of this block is on the medium.
    pub(super) fn add(&mut self, block: BlockId, unit: Unit) {
        let units = self.blocks.entry(block).or_default();
        units.push_back(unit);
        // The device takes a unit for recent while fewer than `keep` others follow it.
        if units.len() > self.keep {
            units.pop_front();
        }
    }

    /// The block is erased, or full and closed: the device gives back whatever it holds.
    pub(super) fn forget(&mut self, block: BlockId) {
        self.blocks.remove(&block);
    }

    /// The unit at this place, if it is recent.
    pub(super) fn find(&self, block: BlockId, at: Ppa) -> Option<&Unit> {
        self.blocks.get(&block)?.iter().find(|(ppa, ..)| *ppa == at)
    }
}
