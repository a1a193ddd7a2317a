//! What a checkpoint hands to the area, and gets back.

use super::super::super::layout::summary::Summary;
use super::super::super::layout::tables::{NatEntry, SitEntry};
use super::super::super::layout::{Addr, Nid};
use super::super::by_nid::ByNid;
use super::super::options::PlantedBug;
use crate::port::BlockBytes;

/// Number of blocks of a pack that do not list inodes without names: its head, its summaries and its last block.
pub(in super::super) const PACK_OTHERS: u32 = 8;

/// A checkpoint that is stored except for its last block.
#[derive(Debug)]
pub(in super::super) struct Stored {
    /// The block that completes it.
    pub(in super::super) last: (Addr, BlockBytes),
    /// The checksum in this block.
    pub(in super::super) crc: u32,
}

/// The tables that a checkpoint stores, as they are in memory.
pub(in super::super) struct Tables<'a> {
    pub(in super::super) nat: &'a ByNid<NatEntry>,
    pub(in super::super) sit: &'a [SitEntry],
    /// Summaries of the segments that logs write, in the order of the logs.
    pub(in super::super) summaries: Vec<&'a Summary>,
    /// Inodes without names, which are listed as orphans.
    pub(in super::super) nameless: Vec<Nid>,
    /// Whether the volume is being unmounted, so that nothing follows.
    pub(in super::super) is_unmount: bool,
    pub(in super::super) planted: Option<PlantedBug>,
}

/// Receives a block and its address.
pub(super) type Out<'a> = &'a mut dyn FnMut(Addr, &BlockBytes);
