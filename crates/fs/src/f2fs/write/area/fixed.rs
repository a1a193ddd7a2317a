//! The fixed area of the disk: two checkpoint packs that are used in turn, two copies of each block of the tables (NAT and SIT)
//! that are used in turn, and a summary for each segment.
//!
//! Place in the data flow: [`Area`](super::Area) for a volume that may be written over.
//!
//! Invariants: no block to which the last checkpoint refers is written; the new checkpoint is complete with the last block that
//! [`Fixed::store`] wrote, and not before. Summaries of nodes are in the pack of an unmount only. After a power cut the footers of
//! the nodes take their place.

use super::super::super::layout::bytes::{block_bit, set_block_bit};
use super::super::super::layout::checkpoint::{Checkpoint, Flags, ORPHANS_PER_BLOCK, crc_of, encode_orphans};
use super::super::super::layout::summary::{Summary, compact_blocks, encode_compact};
use super::super::super::layout::superblock::{NAT_PER_BLOCK, SIT_PER_BLOCK};
use super::super::super::layout::tables::{
    NAT_JOURNAL_MAX, NatEntry, SIT_JOURNAL_MAX, SitEntry, encode_nat_journal, encode_sit_journal,
};
use super::super::super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::super::super::volume::Volume;
use super::super::by_nid::ByNid;
use super::super::segments::Marks;
use super::stored::{Out, PACK_OTHERS, Stored, Tables};
use crate::port::BLOCK_BYTES;
use std::collections::BTreeSet;

/// Which copies are valid, and which entries they lack.
#[derive(Debug)]
pub(super) struct Fixed {
    geometry: Geometry,
    /// Number of blocks of a pack that continue the bitmaps of its head.
    pub(super) payload: u32,
    pack: usize,
    /// Nodes whose entries differ from the blocks of the NAT on the disk.
    nat_changed: BTreeSet<Nid>,
    /// Segments whose entries differ from the blocks of the SIT on the disk.
    sit_changed: Marks,
}

/// Changed entries of the NAT and of the SIT that are in journals.
type Journals<'a> = (&'a [(Nid, NatEntry)], &'a [(SegNo, SitEntry)]);

impl Fixed {
    /// Returns the area of a volume that was just mounted: entries in the journals are not in its table blocks yet.
    pub(super) fn of(volume: &Volume) -> Self {
        let geometry = *volume.geometry();
        let segments = geometry.main_segments;
        let mut sit_changed = Marks::new(segments);
        let journal = volume.sit_journal_segments().filter(|segment| segment.0 < segments);
        journal.for_each(|segment| sit_changed.insert(segment));
        let (payload, nat_changed) =
            (volume.superblock().checkpoint_payload, volume.nat_journal_nids().collect());
        Self { geometry, payload, pack: volume.pack(), nat_changed, sit_changed }
    }

    /// Notes that the entry of a node changed.
    pub(super) fn note_node(&mut self, nid: Nid) {
        self.nat_changed.insert(nid);
    }

    /// Notes that the entry of a segment changed.
    pub(super) fn note_segment(&mut self, segment: SegNo) {
        self.sit_changed.insert(segment);
    }

    /// The checkpoint is complete; the next one uses the other pack.
    pub(super) fn turn(&mut self) {
        self.pack ^= 1;
    }

    /// Most inodes without names that a checkpoint can list.
    pub(super) fn nameless_max(&self) -> usize {
        let others = PACK_OTHERS + self.payload.min(SEGMENT_BLOCKS / 2);
        (SEGMENT_BLOCKS - others) as usize * ORPHANS_PER_BLOCK
    }

    /// Writes tables and checkpoint except for its last block, and enters the places of the tables into the checkpoint.
    pub(super) fn store(&mut self, tables: &Tables<'_>, checkpoint: &mut Checkpoint, out: Out<'_>) -> Stored {
        let nat = self.store_nat(tables.nat, checkpoint, out);
        let sit = self.store_sit(tables.sit, checkpoint, out);
        self.store_pack(tables, (&nat, &sit), checkpoint, out)
    }

    /// Puts changed entries of the NAT into the journal, or, if they do not fit, into the other copies of their blocks.
    fn store_nat(
        &mut self,
        nat: &ByNid<NatEntry>,
        checkpoint: &mut Checkpoint,
        out: Out<'_>,
    ) -> Vec<(Nid, NatEntry)> {
        let entry = |nid: Nid| nat.get(&nid).copied().unwrap_or_default();
        if self.nat_changed.len() <= NAT_JOURNAL_MAX {
            return self.nat_changed.iter().map(|&nid| (nid, entry(nid))).collect();
        }
        let changed = std::mem::take(&mut self.nat_changed);
        let indices: BTreeSet<u32> = changed.iter().map(|&nid| Geometry::nat_place(nid).0).collect();
        for index in indices {
            let mut block = [0; BLOCK_BYTES];
            let first = index * NAT_PER_BLOCK;
            for (nid, entry) in nat.range(Nid(first)..Nid(first + NAT_PER_BLOCK)) {
                // A node that was never written is not in the NAT yet.
                let entry = if entry.addr == Addr::NEW { NatEntry::default() } else { *entry };
                entry.into_block(&mut block, (nid.0 - first) as usize);
            }
            let second = !block_bit(&checkpoint.nat_versions, index as usize);
            set_block_bit(&mut checkpoint.nat_versions, index as usize, second);
            out(self.geometry.nat_block(index, second), &block);
        }
        Vec::new()
    }

    /// Does the same for the SIT.
    fn store_sit(
        &mut self,
        sit: &[SitEntry],
        checkpoint: &mut Checkpoint,
        out: Out<'_>,
    ) -> Vec<(SegNo, SitEntry)> {
        if self.sit_changed.len() <= SIT_JOURNAL_MAX {
            let entry = |segment: &SegNo| (*segment, sit[segment.0 as usize].clone());
            return self.sit_changed.sorted().iter().map(entry).collect();
        }
        let changed = self.sit_changed.take();
        let indices: BTreeSet<u32> = changed.iter().map(|&segment| Geometry::sit_place(segment).0).collect();
        for index in indices {
            let mut block = [0; BLOCK_BYTES];
            let entries = sit.iter().skip((index * SIT_PER_BLOCK) as usize).take(SIT_PER_BLOCK as usize);
            for (place, entry) in entries.enumerate() {
                entry.into_block(&mut block, place);
            }
            let second = !block_bit(&checkpoint.sit_versions, index as usize);
            set_block_bit(&mut checkpoint.sit_versions, index as usize, second);
            out(self.geometry.sit_block(index, second), &block);
        }
        Vec::new()
    }

    /// Writes the blocks of the pack except for the last one, which is returned.
    fn store_pack(
        &self,
        tables: &Tables<'_>,
        (nat, sit): Journals<'_>,
        checkpoint: &mut Checkpoint,
        out: Out<'_>,
    ) -> Stored {
        let pack = self.pack ^ 1;
        let orphan_blocks = encode_orphans(&tables.nameless);
        let (data, nodes) = tables.summaries.split_at(3);
        let mut data: Vec<Summary> = data.iter().map(|summary| (*summary).clone()).collect();
        data[Log::HotData.index()].journal = encode_nat_journal(nat);
        data[Log::ColdData.index()].journal = encode_sit_journal(sit);
        let is_compact = compact_blocks(&checkpoint.cursors) < 3;
        let mut summaries = match is_compact {
            true => encode_compact([&data[0], &data[1], &data[2]], &checkpoint.cursors),
            false => data.iter().map(Summary::encode).collect(),
        };
        let kept = Flags::LARGE_NAT_BITMAP | Flags::ERROR | Flags::FSCK;
        checkpoint.flags.0 = checkpoint.flags.0 & kept | Flags::CRC_RECOVERY;
        if tables.is_unmount {
            summaries.extend(nodes.iter().map(|summary| summary.encode()));
            checkpoint.flags.0 |= Flags::UNMOUNTED;
        }
        if is_compact {
            checkpoint.flags.0 |= Flags::COMPACT_SUMMARIES;
        }
        if !tables.nameless.is_empty() {
            checkpoint.flags.0 |= Flags::ORPHANS;
        }
        checkpoint.summary_start = 1 + self.payload + orphan_blocks.len() as u32;
        checkpoint.pack_blocks = checkpoint.summary_start + summaries.len() as u32 + 1;
        debug_assert!(checkpoint.pack_blocks <= SEGMENT_BLOCKS);
        let head = checkpoint.encode(self.payload);
        let start = self.geometry.checkpoint_pack(pack).0;
        for (index, block) in head.iter().chain(&orphan_blocks).chain(&summaries).enumerate() {
            out(Addr(start + index as u32), block);
        }
        let crc = crc_of(&head[0]);
        Stored { last: (Addr(start + checkpoint.pack_blocks - 1), head[0]), crc }
    }
}
