//! Tables and checkpoints that are appended: a map in segments that are filled one after the other, in the order of a ring, and packs in
//! two segments that take turns (append-segments §4.1 and the following).
//!
//! Place in the data flow: [`Area`](super::Area) for a volume on a disk of append segments; [`crate::alfs`] reads what is stored here.
//!
//! A checkpoint appends the blocks of the map that changed, then the blocks with their places, then its pack. Where the ring is nearly
//! used up, what the segments that were written longest ago still hold is appended as well; they are discarded after the checkpoint.
//!
//! Invariants:
//! 1. Before a checkpoint the map's segments have room for every block of the map: a checkpoint never fails for want of it.
//! 2. A segment is discarded when a complete checkpoint refers to nothing in it. Until then it is not written.
//! 3. Of the two segments of packs the one that is not written is empty when a checkpoint is made.

use super::super::super::appended::layout::{
    ENTRIES_PER_BLOCK, PLACES_PER_BLOCK, Root, Superblock, encode_places, set_entry,
};
use super::super::super::appended::map::{Map, Places};
use super::super::super::layout::checkpoint::{Checkpoint, Flags, ORPHANS_PER_BLOCK, encode_orphans};
use super::super::super::layout::summary::encode_compact;
use super::super::super::layout::superblock::SIT_PER_BLOCK;
use super::super::super::layout::{Addr, Nid, SegNo};
use super::super::options::PlantedBug;
use super::stored::{Out, Stored, Tables};
use crate::port::BLOCK_BYTES;
use flashweir_core::command::SegmentId;
use flashweir_core::metrics;
use std::collections::BTreeSet;

metrics! {
    /// Counters of the map of an ALFS volume since the mount, in blocks of 4 KiB.
    pub struct AlfsMetrics {
        /// Blocks of the inode map written.
        entry_blocks,
        /// Usage blocks written.
        usage_blocks,
        /// Blocks of places of the inode map (TIMB) written.
        timb_blocks,
        /// Blocks of places of usage blocks written.
        usage_place_blocks,
        /// Blocks of packs of checkpoints written.
        pack_blocks,
        /// Blocks of the map that were written only because their segment is to be discarded.
        moved_map_blocks,
        /// Segments of the map that were cleaned.
        cleaned_map_segments,
    }
}

/// A table of the map.
#[derive(Debug)]
struct Table {
    places: Places,
    /// Blocks, and blocks of places, that the next checkpoint writes.
    dirty: BTreeSet<u32>,
    dirty_roots: BTreeSet<u32>,
    /// Blocks that it writes only because their segment is to be discarded.
    moved: BTreeSet<u32>,
}

impl Table {
    fn new(places: Places) -> Self {
        Self { places, dirty: BTreeSet::new(), dirty_roots: BTreeSet::new(), moved: BTreeSet::new() }
    }

    /// Number of blocks that the next checkpoint writes.
    fn due(&self) -> u32 {
        let roots: BTreeSet<u32> = self.dirty.iter().map(|index| index / PLACES_PER_BLOCK).collect();
        (self.dirty.len() + roots.union(&self.dirty_roots).count()) as u32
    }

    /// Marks what lies in a range of addresses; returns how many blocks that adds.
    fn evacuate(&mut self, range: &std::ops::Range<u32>) -> u64 {
        let inside = |places: &[Addr]| {
            let indices = (0..).zip(places).filter(|(_, place)| range.contains(&place.0));
            indices.map(|(index, _)| index).collect::<Vec<u32>>()
        };
        let (blocks, roots) = (inside(&self.places.blocks), inside(&self.places.roots));
        let moved = blocks.into_iter().filter(|index| self.dirty.insert(*index));
        let before = self.moved.len();
        self.moved.extend(moved);
        let roots = roots.into_iter().filter(|index| self.dirty_roots.insert(*index)).count();
        (self.moved.len() - before + roots) as u64
    }

    /// A block of the table has a new place, which its block of places has to name.
    fn put(&mut self, index: u32, place: Addr, planted: Option<PlantedBug>) {
        self.places.blocks[index as usize] = place;
        if !self.moved.remove(&index) || planted != Some(PlantedBug::LostTimb) {
            self.dirty_roots.insert(index / PLACES_PER_BLOCK);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Appended {
    superblock: Superblock,
    entries: Table,
    usage: Table,
    /// Segment of the map that is written, counted from the first one, and the next block in it.
    cursor: (u32, u32),
    /// Segments of the map that are not empty.
    used: Vec<bool>,
    /// Segments of the map that the checkpoint under way leaves without content.
    victims: Vec<u32>,
    /// Segment of the packs that is written, and the next block in it.
    pack: (u32, u32),
    /// Whether the checkpoint under way is the first one in its segment.
    has_switched: bool,
    pub(super) metrics: AlfsMetrics,
}

impl Appended {
    pub(super) fn of(map: &Map) -> Self {
        let superblock = map.superblock.clone();
        let cursor = (map.cursor.0 - superblock.map().start, map.cursor.1);
        Self {
            entries: Table::new(map.entries.clone()),
            usage: Table::new(map.usage.clone()),
            cursor,
            used: map.used.clone(),
            victims: Vec::new(),
            pack: map.pack,
            has_switched: false,
            superblock,
            metrics: AlfsMetrics::default(),
        }
    }

    /// Bytes in memory: of the table of TIMB places, and of all the rest, marks for the next checkpoint included (append-segments §9.12).
    pub(super) fn memory_bytes(&self) -> [u64; 2] {
        let Self { entries, usage, used, victims, .. } = self;
        let places = |places: &[Addr]| size_of_val(places) as u64;
        // A tree's nodes are half full at least.
        let marks = |table: &Table| {
            let Table { dirty, dirty_roots, moved, .. } = table;
            2 * size_of::<u32>() as u64 * (dirty.len() + dirty_roots.len() + moved.len()) as u64
        };
        let tables =
            places(&entries.places.roots) + places(&usage.places.blocks) + places(&usage.places.roots);
        let states = (size_of_val(&used[..]) + size_of_val(&victims[..]) + size_of::<Self>()) as u64;
        [places(&entries.places.blocks), tables + marks(entries) + marks(usage) + states]
    }

    pub(super) fn note_node(&mut self, nid: Nid) {
        self.entries.dirty.insert(nid.0 / ENTRIES_PER_BLOCK);
    }

    pub(super) fn note_segment(&mut self, segment: SegNo) {
        self.usage.dirty.insert(segment.0 / SIT_PER_BLOCK);
    }

    pub(super) fn nameless_max(&self) -> usize {
        (self.superblock.segment_blocks / 2) as usize * ORPHANS_PER_BLOCK
    }

    pub(super) fn dead_segments(&self) -> Vec<SegmentId> {
        let first = self.superblock.map().start;
        let mut dead: Vec<_> = self.victims.iter().map(|victim| SegmentId(first + victim)).collect();
        dead.extend(self.has_switched.then_some(SegmentId(3 - self.pack.0)));
        dead
    }

    pub(super) fn turn(&mut self) {
        for victim in self.victims.drain(..) {
            self.used[victim as usize] = false;
        }
        self.has_switched = false;
    }

    /// Blocks that can be written before a segment has to be discarded.
    fn free_blocks(&self) -> u32 {
        let empty = self.used.iter().filter(|used| !**used).count() as u32;
        self.superblock.segment_blocks - self.cursor.1 + empty * self.superblock.segment_blocks
    }

    fn due(&self) -> u32 {
        self.entries.due() + self.usage.due()
    }

    /// Blocks that have to be free after a checkpoint: the whole map, and a segment that a power cut may leave half written.
    fn wanted(&self) -> u32 {
        self.superblock.map_blocks() + self.superblock.segment_blocks
    }

    /// Blocks that can be written before a segment is cleaned.
    pub(super) fn blocks_left(&self) -> u64 {
        self.free_blocks().saturating_sub(self.wanted()).into()
    }

    /// The other segments of the map in the order of the ring, which is that in which they were written except after a mount.
    fn oldest(&self) -> impl Iterator<Item = u32> {
        let (now, count) = (self.cursor.0, self.superblock.map_segments);
        (1..count).map(move |step| (now + step) % count)
    }

    /// Takes segments whose blocks this checkpoint writes elsewhere, the oldest first, until enough is free after it.
    fn clean(&mut self) {
        let segment_blocks = self.superblock.segment_blocks;
        let wanted = self.wanted();
        let candidates: Vec<u32> = self.oldest().filter(|at| self.used[*at as usize]).collect();
        for victim in candidates {
            let gained = self.victims.len() as u32 * segment_blocks;
            if (self.free_blocks() + gained).saturating_sub(self.due()) >= wanted {
                break;
            }
            let first = self.superblock.first_block(self.superblock.map().start + victim).0;
            let range = first..first + segment_blocks;
            self.metrics.moved_map_blocks += self.entries.evacuate(&range) + self.usage.evacuate(&range);
            self.metrics.cleaned_map_segments += 1;
            self.victims.push(victim);
        }
    }

    /// The next block of the map. The next empty segment need not be the next one of the ring: a mount discards segments that hold nothing,
    /// and those before them may hold something.
    fn next(&mut self) -> Addr {
        if self.cursor.1 == self.superblock.segment_blocks {
            let empty = self.oldest().find(|at| !self.used[*at as usize]);
            self.cursor = (empty.expect("the map has room (invariant 1)"), 0);
        }
        self.used[self.cursor.0 as usize] = true;
        let segment = self.superblock.map().start + self.cursor.0;
        let addr = Addr(self.superblock.first_block(segment).0 + self.cursor.1);
        self.cursor.1 += 1;
        addr
    }

    pub(super) fn store(&mut self, tables: &Tables<'_>, checkpoint: &mut Checkpoint, out: Out<'_>) -> Stored {
        self.clean();
        self.store_entries(tables, out);
        self.store_usage(tables, out);
        self.metrics.timb_blocks += self.store_places(|area| &mut area.entries, out);
        self.metrics.usage_place_blocks += self.store_places(|area| &mut area.usage, out);
        self.store_pack(tables, checkpoint, out)
    }

    fn store_entries(&mut self, tables: &Tables<'_>, out: Out<'_>) {
        for index in std::mem::take(&mut self.entries.dirty) {
            let mut block = [0; BLOCK_BYTES];
            let first = index * ENTRIES_PER_BLOCK;
            for (nid, entry) in tables.nat.range(Nid(first)..Nid(first + ENTRIES_PER_BLOCK)) {
                // A node that was never written is not in the map yet.
                if entry.addr.is_place() {
                    set_entry(&mut block, nid.0 - first, *entry);
                }
            }
            let place = self.next();
            out(place, &block);
            self.entries.put(index, place, tables.planted);
            self.metrics.entry_blocks += 1;
        }
    }

    fn store_usage(&mut self, tables: &Tables<'_>, out: Out<'_>) {
        for index in std::mem::take(&mut self.usage.dirty) {
            let mut block = [0; BLOCK_BYTES];
            let segments =
                tables.sit.iter().skip((index * SIT_PER_BLOCK) as usize).take(SIT_PER_BLOCK as usize);
            for (at, entry) in segments.enumerate() {
                entry.into_block(&mut block, at);
            }
            let place = self.next();
            out(place, &block);
            self.usage.put(index, place, None);
            self.metrics.usage_blocks += 1;
        }
    }

    /// Writes blocks of places; returns how many.
    fn store_places(&mut self, table: impl Fn(&mut Self) -> &mut Table, out: Out<'_>) -> u64 {
        let roots = std::mem::take(&mut table(self).dirty_roots);
        for &root in &roots {
            let place = self.next();
            let places = &mut table(self).places;
            let first = (root * PLACES_PER_BLOCK) as usize;
            let end = places.blocks.len().min(first + PLACES_PER_BLOCK as usize);
            out(place, &encode_places(&places.blocks[first..end]));
            places.roots[root as usize] = place;
        }
        roots.len() as u64
    }

    /// Writes the pack except for its last block, the checkpoint.
    fn store_pack(&mut self, tables: &Tables<'_>, checkpoint: &mut Checkpoint, out: Out<'_>) -> Stored {
        let orphans = encode_orphans(&tables.nameless);
        let data: Vec<_> = tables.summaries[..3].to_vec();
        let summaries = encode_compact([data[0], data[1], data[2]], &checkpoint.cursors);
        checkpoint.summary_start = orphans.len() as u32;
        checkpoint.pack_blocks = checkpoint.summary_start + summaries.len() as u32 + 1;
        let kept = Flags::ERROR | Flags::FSCK;
        checkpoint.flags.0 = checkpoint.flags.0 & kept | Flags::CRC_RECOVERY | Flags::COMPACT_SUMMARIES;
        if tables.is_unmount {
            checkpoint.flags.0 |= Flags::UNMOUNTED;
        }
        if !tables.nameless.is_empty() {
            checkpoint.flags.0 |= Flags::ORPHANS;
        }
        if self.pack.1 + checkpoint.pack_blocks > self.superblock.segment_blocks {
            self.pack = (3 - self.pack.0, 0);
            self.has_switched = true;
        }
        let first = self.superblock.first_block(self.pack.0).0 + self.pack.1;
        for (addr, block) in (first..).map(Addr).zip(orphans.iter().chain(&summaries)) {
            out(addr, block);
        }
        self.pack.1 += checkpoint.pack_blocks;
        self.metrics.pack_blocks += u64::from(checkpoint.pack_blocks);
        let root = Root {
            checkpoint: checkpoint.clone(),
            cursor: (self.superblock.map().start + self.cursor.0, self.cursor.1),
            timb: self.entries.places.roots.clone(),
            usage: self.usage.places.roots.clone(),
        };
        let last = root.encode();
        Stored { last: (Addr(first + checkpoint.pack_blocks - 1), last), crc: Root::crc_of(&last) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::appended::layout::places;
    use super::super::super::super::layout::checkpoint::Cursor;
    use super::super::super::super::layout::summary::Summary;
    use super::super::super::super::layout::superblock::Features;
    use super::super::super::super::layout::tables::{NatEntry, SitEntry};
    use super::super::super::by_nid::ByNid;
    use super::*;
    use crate::port::BlockBytes;
    use flashweir_core::RandomStream;
    use std::collections::BTreeMap;

    /// A new map with two TIMB blocks, and its tables.
    fn map() -> (Appended, Checkpoint, Vec<SitEntry>) {
        let superblock = Superblock {
            segment_blocks: 512,
            segments: 1200,
            map_segments: 10,
            uuid: [0; 16],
            label: String::new(),
            extensions: (Vec::new(), Vec::new()),
            features: Features(0),
        };
        let new = |blocks: u32, roots: u32| Places {
            blocks: vec![Addr::NULL; blocks as usize],
            roots: vec![Addr::NULL; roots as usize],
        };
        let map = Map {
            entries: new(superblock.entry_blocks(), superblock.timb_blocks()),
            usage: new(superblock.usage_blocks(), 1),
            cursor: (superblock.map().start, 0),
            used: vec![false; 10],
            pack: (1, 0),
            other_pack: 0,
            superblock,
        };
        let checkpoint = Checkpoint {
            version: 1,
            user_blocks: 0,
            valid_blocks: 0,
            reserved_segments: 0,
            overprovision_segments: 0,
            free_segments: 0,
            cursors: [Cursor::default(); 6],
            flags: Flags(0),
            pack_blocks: 0,
            summary_start: 0,
            valid_nodes: 0,
            valid_inodes: 0,
            next_free_nid: Nid(4),
            elapsed_s: 0,
            sit_versions: Vec::new(),
            nat_versions: Vec::new(),
        };
        let sit = vec![SitEntry::default(); map.superblock.geometry().main_segments as usize];
        (Appended::of(&map), checkpoint, sit)
    }

    fn tables<'a>(
        nat: &'a ByNid<NatEntry>,
        sit: &'a [SitEntry],
        summary: &'a Summary,
        planted: Option<PlantedBug>,
    ) -> Tables<'a> {
        Tables { nat, sit, summaries: vec![summary; 6], nameless: Vec::new(), is_unmount: false, planted }
    }

    /// The map as a mount finds it, which discards segments that hold nothing.
    fn remounted(area: &Appended) -> Appended {
        let superblock = area.superblock.clone();
        let mut map = Map {
            entries: area.entries.places.clone(),
            usage: area.usage.places.clone(),
            cursor: (superblock.map().start + area.cursor.0, area.cursor.1),
            used: area.used.clone(),
            pack: area.pack,
            other_pack: 0,
            superblock,
        };
        let dead = map.dead_segments();
        map.note_discarded(&dead);
        Appended::of(&map)
    }

    /// A segment with a block that never changes stays where segments before and behind it are discarded, and the map goes on behind it.
    #[test]
    fn regression_a_mount_leaves_empty_segments_behind_a_used_one() {
        let (mut area, mut checkpoint, sit) = map();
        let (mut nat, summary) = (ByNid::default(), Summary::new(false));
        let (mut random, mut mounts) = (RandomStream::new(7, "entries of nodes"), 0);
        for round in 0..3_000u32 {
            for _ in 0..1 + random.below(30) {
                let nid = Nid(if round == 0 { 580_000 } else { random.below(20_000) as u32 });
                nat.insert(nid, NatEntry { version: 0, ino: nid, addr: Addr(round + 1) });
                area.note_node(nid);
            }
            let tables = tables(&nat, &sit, &summary, None);
            let before = area.used.clone();
            let (first, open) = (area.superblock.first_block(area.superblock.map().start).0, area.cursor.0);
            area.store(&tables, &mut checkpoint, &mut |addr, _| {
                if let Some(at) = addr.0.checked_sub(first) {
                    let at = at / 512;
                    assert!(at == open || !before[at as usize], "segment {at} of the map is written again");
                }
            });
            area.turn();
            if random.below(40) == 0 {
                (area, mounts) = (remounted(&area), mounts + 1);
            }
        }
        assert!(mounts > 50, "{mounts} mounts");
    }

    /// Makes checkpoints at random; returns how many of them refer to a segment that is discarded after them.
    fn lost(planted: Option<PlantedBug>) -> usize {
        let (mut area, mut checkpoint, sit) = map();
        let mut random = RandomStream::new(1, "entries of nodes");
        let mut nat = ByNid::default();
        let (summary, mut lost, mut cleaned) = (Summary::new(false), 0, 0);
        let mut disk: BTreeMap<Addr, BlockBytes> = BTreeMap::new();
        for round in 0..1_000 {
            // Nodes with high numbers change seldom.
            let first = if round % 200 == 0 { 580_000 } else { 0 };
            for _ in 0..1 + random.below(30) {
                let nid = Nid(first + random.below(20_000) as u32);
                nat.insert(nid, NatEntry { version: 0, ino: nid, addr: Addr(round + 1) });
                area.note_node(nid);
                area.note_segment(SegNo(random.below(1_000) as u32));
            }
            let tables = tables(&nat, &sit, &summary, planted);
            let mut written = BTreeMap::new();
            area.store(&tables, &mut checkpoint, &mut |addr, block| {
                assert!(written.insert(addr, *block).is_none(), "{addr} twice");
            });
            disk.append(&mut written);
            let dead: BTreeSet<u32> = area.dead_segments().iter().map(|segment| segment.0).collect();
            cleaned += area.victims.len();
            // Where the blocks of places, as they are on the disk, say that blocks are.
            let is_lost = |addr: &Addr| *addr != Addr::NULL && dead.contains(&(addr.0 / 512));
            let roots = || area.entries.places.roots.iter().chain(&area.usage.places.roots);
            let named = roots().filter_map(|root| disk.get(root)).flat_map(|block| places(block));
            lost += named.filter(is_lost).count() + roots().filter(|root| is_lost(root)).count();
            area.turn();
            assert!(
                area.free_blocks() >= area.superblock.map_blocks(),
                "there is room for the next checkpoint"
            );
        }
        assert!(cleaned > 20, "{cleaned} segments were cleaned");
        lost
    }

    /// Blocks of places lie in the segments of the map, too, and are moved when these are cleaned (append-segments §4.6).
    #[test]
    fn no_checkpoint_refers_to_a_discarded_segment() {
        assert_eq!(lost(None), 0);
        assert!(lost(Some(PlantedBug::LostTimb)) > 0, "a TIMB block that cleaning forgets is found");
    }
}
