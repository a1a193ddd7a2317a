//! Free blocks and inodes: found, allocated, freed.
//!
//! A block is allocated as close after a goal as possible: at it, else in its group, else in a later group; of the free
//! runs there the first that is long enough, or the longest. Inodes are the lowest of their group, so that what was never
//! used of a table stays at its end. A directory in the root goes to the group with most free blocks among those with an
//! average number of free inodes, all others to the group of their parent.
//!
//! Invariants: see [`super::state`], 2 and 3. Metadata of other inodes than the one whose claim is being used never take claimed blocks.

use super::super::layout::group::{empty_inode_bitmap, flags};
use super::super::layout::{Addr, Feature, Group, Ino};
use super::state::{State, Step, block_of};
use crate::ext4::Inode;
use crate::ext4::layout::extent::{ROOT_ENTRIES, block_entries};
use crate::format::{set_slot_bit, slot_bit};
use crate::port::BLOCK_BYTES;
use crate::vfs::Errno;
use std::cmp::Reverse;

const WORD_BITS: u32 = 64;

/// The first bit from `from` on whose value is `is_set`, or `end`.
fn next_bit(words: &[u64], from: u32, end: u32, is_set: bool) -> u32 {
    let mut at = from;
    while at < end {
        let word = words[(at / WORD_BITS) as usize];
        let rest = (if is_set { word } else { !word }) >> (at % WORD_BITS);
        if rest != 0 {
            return (at + rest.trailing_zeros()).min(end);
        }
        at = (at / WORD_BITS + 1) * WORD_BITS;
    }
    end
}

/// The first free run of `want` bits, or the longest one: its start and its length.
fn find_run(words: &[u64], end: u32, want: u32) -> (u32, u32) {
    let (mut best, mut at) = ((0, 0), 0);
    loop {
        let start = next_bit(words, at, end, false);
        if start == end {
            return best;
        }
        at = next_bit(words, start, end.min(start.saturating_add(want)), true);
        if at - start > best.1 {
            best = (start, at - start);
            if best.1 >= want {
                return best;
            }
        }
    }
}

impl State {
    /// Makes sure that the bitmap of a group's blocks is in memory.
    fn need_bitmap(&mut self, group: Group) -> Step<()> {
        if self.group(group).taken.is_some() {
            return Ok(());
        }
        let geometry = self.geometry;
        let desc = &self.group(group).desc;
        let addr = desc.block_bitmap;
        if desc.has(flags::BLOCK_UNINIT, &geometry) && !self.buffers.contains_key(&addr) {
            let bitmap = desc.uninitialised_block_bitmap(group, &geometry);
            self.loaded(addr, block_of(&bitmap)?);
        }
        let bitmap = self.block(addr)?;
        let desc = &self.group(group).desc;
        if !desc.has(flags::BLOCK_UNINIT, &geometry) {
            desc.check_block_bitmap(group, &geometry, &bitmap[..])?;
        }
        let blocks = geometry.group_blocks(group);
        let words =
            bitmap.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let mut words: Vec<u64> = words.collect();
        for bit in blocks..(words.len() as u32 * WORD_BITS) {
            words[(bit / WORD_BITS) as usize] |= 1 << (bit % WORD_BITS);
        }
        self.groups[group.0 as usize].taken = Some(words);
        Ok(())
    }

    /// Number of blocks that can be taken without a claim.
    pub(super) fn free_blocks(&self) -> u64 {
        let counts = &self.counts;
        counts.free_blocks.saturating_sub(counts.waiting + counts.claimed)
    }

    /// Takes up to `want` blocks in a row, close to a goal.
    pub(super) fn allocate(&mut self, goal: Addr, want: u32) -> Step<(Addr, u32)> {
        let want = match self.is_spending {
            true => want,
            false => u64::from(want).min(self.free_blocks()) as u32,
        };
        if want == 0 {
            return Err(Errno::ENOSPC.into());
        }
        let geometry = self.geometry;
        let (home, bit) = geometry.place_of(goal).unwrap_or_default();
        self.need_bitmap(home)?;
        let end = geometry.group_blocks(home);
        let taken = self.group(home).taken.as_deref().unwrap_or_default();
        let run = next_bit(taken, bit, end.min(bit.saturating_add(want)), true).saturating_sub(bit);
        if run > 0 {
            return self.take(home, bit, run);
        }
        let mut best: Option<(Group, u32, u32)> = None;
        for offset in 0..geometry.group_count {
            let group = Group((home.0 + offset) % geometry.group_count);
            let state = self.group(group);
            if state.desc.free_blocks == 0 || state.longest <= best.map_or(0, |(_, _, count)| count) {
                continue;
            }
            self.need_bitmap(group)?;
            let end = geometry.group_blocks(group);
            let taken = self.group(group).taken.as_deref().unwrap_or_default();
            let (first, count) = find_run(taken, end, want);
            if count >= want {
                return self.take(group, first, want);
            }
            self.groups[group.0 as usize].longest = count;
            if best.is_none_or(|(_, _, found)| found < count) && count > 0 {
                best = Some((group, first, count));
            }
            // A shorter run nearby is better than a longer one far away.
            if best.is_some_and(|(_, _, found)| found >= want.min(WORD_BITS)) {
                break;
            }
        }
        let (group, first, count) = best.ok_or(Errno::ENOSPC)?;
        self.take(group, first, count)
    }

    fn take(&mut self, group: Group, first: u32, count: u32) -> Step<(Addr, u32)> {
        let addr = self.group(group).desc.block_bitmap;
        let bitmap = self.block_mut(addr)?;
        for bit in first..first + count {
            set_slot_bit(&mut bitmap[..], bit as usize, true);
        }
        self.mark_undoably(group, first, count, true);
        let desc = self.desc_mut(group);
        desc.free_blocks = desc.free_blocks.checked_sub(count).ok_or(Errno::EUCLEAN)?;
        desc.flags &= !flags::BLOCK_UNINIT;
        self.counts.free_blocks -= u64::from(count);
        Ok((Addr(self.geometry.group_start(group).0 + u64::from(first)), count))
    }

    /// Frees blocks; they can be allocated again when that is committed.
    pub(super) fn free(&mut self, addr: Addr, count: u32) -> Step<()> {
        if !self.geometry.is_data(addr, count.into()) {
            return Err(Errno::EUCLEAN.into());
        }
        let (mut at, mut left) = (addr, count);
        while left > 0 {
            let (group, first) = self.geometry.place_of(at).ok_or(Errno::EUCLEAN)?;
            let here = left.min(self.geometry.group_blocks(group) - first);
            self.need_bitmap(group)?;
            let bitmap_addr = self.group(group).desc.block_bitmap;
            let bitmap = self.block_mut(bitmap_addr)?;
            for bit in first..first + here {
                if !slot_bit(&bitmap[..], bit as usize) {
                    return Err(Errno::EUCLEAN.into());
                }
                set_slot_bit(&mut bitmap[..], bit as usize, false);
            }
            self.desc_mut(group).free_blocks += here;
            self.counts.free_blocks += u64::from(here);
            self.counts.waiting += u64::from(here);
            self.running.freed.push((at, here));
            (at, left) = (Addr(at.0 + u64::from(here)), left - here);
        }
        Ok(())
    }

    /// A transaction was committed: the blocks that it freed can be allocated.
    pub(super) fn release_freed(&mut self, freed: &[(Addr, u32)]) {
        for &(addr, count) in freed {
            let (group, first) = self.geometry.place_of(addr).expect("it was freed");
            self.mark(group, first, count, false);
            self.counts.waiting -= u64::from(count);
        }
    }

    /// Allocates a block of metadata of an inode, filled with zeros.
    pub(super) fn new_block(&mut self, ino: Ino, goal: Addr) -> Step<Addr> {
        let (addr, _) = self.allocate(goal, 1)?;
        self.put_block(addr, Box::new([0; BLOCK_BYTES]));
        self.count_blocks(ino, 1)?;
        Ok(addr)
    }

    /// Frees a block of metadata of an inode.
    pub(super) fn free_block(&mut self, ino: Ino, addr: Addr) -> Step<()> {
        self.free(addr, 1)?;
        self.forget_block(addr);
        self.count_blocks(ino, -1)
    }

    /// Default address from which an inode's blocks are allocated.
    pub(super) fn goal_of(&self, ino: Ino) -> Addr {
        let (group, _) = self.geometry.place_of_inode(ino).unwrap_or_default();
        self.geometry.group_start(group)
    }

    // Claims.

    /// Number of blocks of the extent tree that `pages` new pages of a file may need, wherever they are. Each leaf that is full now
    /// may be split once; leaves that result from a split are half full, and each half takes that many more.
    fn tree_claim(&self, ino: Ino, pages: u64) -> Step<u64> {
        let inode = self.inode(ino)?;
        let depth = self.extent_root(ino)?.0.depth;
        let per_block = u64::from(block_entries(self.geometry.block_bytes));
        let blocks = inode.sectors(&self.geometry) / 8;
        let leaves = match depth {
            0 => 0,
            depth => per_block.saturating_pow(u32::from(depth) - 1).saturating_mul(ROOT_ENTRIES.into()),
        };
        let full = pages.min(blocks / per_block).min(leaves);
        let half = per_block / 2;
        let splits = full + pages / half;
        Ok(splits + splits / half + 6)
    }

    /// Claims room for pages of a file that are in holes, and for marking others as written.
    pub(super) fn claim(&mut self, ino: Ino, pages: &[u64], unwritten: &[u64]) -> Step<()> {
        if pages.is_empty() && unwritten.is_empty() {
            return Ok(());
        }
        let old = self.claims.get(&ino);
        let (entries, old_tree) = old.map_or((0, 0), |claim| (claim.entries(), claim.tree));
        let tree =
            self.tree_claim(ino, entries + pages.len() as u64 + 2 * unwritten.len() as u64)?.max(old_tree);
        let more = pages.len() as u64 + tree - old_tree;
        if self.free_blocks() < more {
            return Err(Errno::ENOSPC.into());
        }
        self.counts.claimed += more;
        let claim = self.claims.entry(ino).or_default();
        claim.pages.extend(pages);
        claim.unwritten.extend(unwritten);
        claim.tree = tree;
        Ok(())
    }

    /// The tree of a file was changed otherwise: counts again the blocks that its pages may need. The last step of an operation.
    pub(super) fn renew_claim(&mut self, ino: Ino) -> Step<()> {
        let Some((entries, tree)) = self.claims.get(&ino).map(|claim| (claim.entries(), claim.tree)) else {
            return Ok(());
        };
        let new = self.tree_claim(ino, entries)?;
        if new > tree {
            if self.free_blocks() < new - tree {
                return Err(Errno::ENOSPC.into());
            }
            self.counts.claimed += new - tree;
            self.claims.get_mut(&ino).expect("it was found").tree = new;
        }
        Ok(())
    }

    /// Pages of a file have their blocks, or need none any more. The last step of an operation.
    pub(super) fn end_claim(&mut self, ino: Ino, first: u64, end: u64) {
        let Some(claim) = self.claims.get_mut(&ino) else { return };
        let mut ended = 0;
        for (set, blocks) in [(&mut claim.pages, 1), (&mut claim.unwritten, 0)] {
            let count = match end - first {
                1 => set.remove(&first).into(),
                _ => set.extract_if(first..end, |_| true).count() as u64,
            };
            ended += count * blocks;
        }
        let is_empty = claim.pages.is_empty() && claim.unwritten.is_empty();
        let tree = if is_empty { claim.tree } else { self.counts.taken_for_tree.min(claim.tree) };
        claim.tree -= tree;
        self.counts.claimed -= ended + tree;
        if is_empty {
            self.claims.remove(&ino);
        }
    }

    /// Whether all pages of a range have claimed room.
    pub(super) fn is_claimed(&self, ino: Ino, first: u64, end: u64) -> bool {
        self.claims.get(&ino).is_some_and(|claim| claim.pages.range(first..end).count() as u64 == end - first)
    }

    /// Whether marking a page as written has claimed room.
    pub(super) fn is_conversion_claimed(&self, ino: Ino, page: u64) -> bool {
        self.claims.get(&ino).is_some_and(|claim| claim.unwritten.contains(&page))
    }

    // Inodes.

    fn need_inode_bitmap(&mut self, group: Group) -> Step<Addr> {
        let geometry = self.geometry;
        let desc = &self.group(group).desc;
        let addr = desc.inode_bitmap;
        if desc.has(flags::INODE_UNINIT, &geometry) && !self.buffers.contains_key(&addr) {
            self.loaded(addr, block_of(&empty_inode_bitmap(&geometry))?);
        }
        let bitmap = self.block(addr)?;
        if !self.buffers[&addr].is_checked {
            let desc = &self.group(group).desc;
            if !desc.has(flags::INODE_UNINIT, &geometry) {
                desc.check_inode_bitmap(group, &geometry, &bitmap[..])?;
            }
            self.buffers.get_mut(&addr).expect("it was found").is_checked = true;
        }
        Ok(addr)
    }

    fn group_for(&self, parent: Ino, is_directory: bool) -> Group {
        let home = self.geometry.place_of_inode(parent).unwrap_or_default().0;
        if !is_directory || parent != Ino::ROOT {
            return home;
        }
        let average = self.counts.free_inodes / u64::from(self.geometry.group_count);
        let candidates = self.geometry.groups().filter(|&group| {
            let free = self.group(group).desc.free_inodes;
            free > 0 && u64::from(free) >= average
        });
        candidates.max_by_key(|&group| (self.group(group).desc.free_blocks, Reverse(group))).unwrap_or(home)
    }

    /// Creates an inode without a name.
    pub(super) fn new_inode(&mut self, parent: Ino, mode: u16) -> Step<Ino> {
        let geometry = self.geometry;
        let is_directory = crate::format::Kind::of_mode(mode) == Some(crate::format::Kind::Directory);
        let home = self.group_for(parent, is_directory);
        for offset in 0..geometry.group_count {
            let group = Group((home.0 + offset) % geometry.group_count);
            if self.group(group).desc.free_inodes == 0 {
                continue;
            }
            let addr = self.need_inode_bitmap(group)?;
            let bitmap = self.block(addr)?;
            let full_bytes = bitmap.iter().take_while(|&&byte| byte == 0xff).count() as u32;
            let is_free = |index: &u32| {
                let ino = geometry.ino_at(group, *index);
                ino.0 >= geometry.first_ino && !slot_bit(&bitmap[..], *index as usize)
            };
            let Some(index) = (8 * full_bytes..geometry.inodes_per_group).find(is_free) else { continue };
            return self.take_inode(group, index, mode, is_directory);
        }
        Err(Errno::ENOSPC.into())
    }

    fn take_inode(&mut self, group: Group, index: u32, mode: u16, is_directory: bool) -> Step<Ino> {
        let geometry = self.geometry;
        let ino = geometry.ino_at(group, index);
        let (addr, at) = self.inode_place(ino)?;
        let desc = &self.group(group).desc;
        let never_used = match geometry.features.has_group_checksums() {
            true => geometry.inodes_per_group - desc.unused_inodes.min(geometry.inodes_per_group),
            false => geometry.inodes_per_group,
        };
        let per_block = geometry.block_bytes / u32::from(geometry.inode_bytes);
        if index / per_block * per_block >= never_used && !self.buffers.contains_key(&addr) {
            // No inode in this block was ever used.
            self.put_block(addr, Box::new([0; BLOCK_BYTES]));
        }
        let generation = match index < never_used {
            true => {
                let raw = &self.block(addr)?[at..at + usize::from(geometry.inode_bytes)];
                let old = self.nodes.get(&ino).map(|node| node.inode.generation);
                let old =
                    old.or_else(|| Inode::parse(raw, ino, &geometry).ok().map(|inode| inode.generation));
                old.unwrap_or(0).wrapping_add(1)
            }
            false => self.block(addr).map(|_| 0)?,
        };
        let bitmap = self.group(group).desc.inode_bitmap;
        set_slot_bit(&mut self.block_mut(bitmap)?[..], index as usize, true);
        if geometry.features.has(Feature::METADATA_CSUM) || geometry.features.has(Feature::GDT_CSUM) {
            self.need_bitmap(group)?;
            if self.group(group).desc.has(flags::BLOCK_UNINIT, &geometry) {
                // In a group with inodes both bitmaps are initialised.
                let blocks = self.group(group).desc.block_bitmap;
                self.block_mut(blocks)?;
                self.desc_mut(group).flags &= !flags::BLOCK_UNINIT;
            }
        }
        let desc = self.desc_mut(group);
        desc.free_inodes = desc.free_inodes.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        desc.directories += u32::from(is_directory);
        desc.flags &= !flags::INODE_UNINIT;
        if geometry.features.has_group_checksums() {
            desc.unused_inodes = desc.unused_inodes.min(geometry.inodes_per_group - index - 1);
        }
        self.counts.free_inodes -= 1;
        let mut inode = Inode::new(ino, mode, &geometry);
        inode.generation = generation;
        self.put_inode(inode)?;
        Ok(ino)
    }

    /// Frees the number of an inode that has nothing left.
    pub(super) fn free_inode(&mut self, ino: Ino) -> Step<()> {
        let geometry = self.geometry;
        let is_directory = self.kind(ino)? == crate::format::Kind::Directory;
        let (group, index) = geometry.place_of_inode(ino).ok_or(Errno::EUCLEAN)?;
        let addr = self.need_inode_bitmap(group)?;
        let bitmap = self.block_mut(addr)?;
        if !slot_bit(&bitmap[..], index as usize) {
            return Err(Errno::EUCLEAN.into());
        }
        set_slot_bit(&mut bitmap[..], index as usize, false);
        let desc = self.desc_mut(group);
        desc.free_inodes += 1;
        desc.directories = desc.directories.saturating_sub(u32::from(is_directory));
        self.counts.free_inodes += 1;
        self.remove_orphan(ino)?;
        // A smaller number would be taken for that of the next orphan.
        let seconds = self.clock.seconds.max(i64::from(geometry.inodes_count) + 1) as u32;
        let node = self.node_mut(ino)?;
        node.is_gone = true;
        node.size = 0;
        (node.inode.links, node.inode.size, node.inode.dtime) = (0, 0, seconds);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_a_bitmap() {
        let mut words = vec![u64::MAX; 4];
        for bit in [3, 4, 5, 60, 61, 62, 63, 64, 65, 200] {
            words[bit / 64] &= !(1 << (bit % 64));
        }
        assert_eq!(next_bit(&words, 0, 256, false), 3);
        assert_eq!(next_bit(&words, 3, 256, true), 6);
        assert_eq!(next_bit(&words, 66, 256, false), 200);
        assert_eq!(next_bit(&words, 201, 256, false), 256);
        assert_eq!(find_run(&words, 256, 2), (3, 2));
        assert_eq!(find_run(&words, 256, 4), (60, 4));
        assert_eq!(find_run(&words, 256, 10), (60, 6));
        assert_eq!(find_run(&words, 62, 10), (3, 3));
        assert_eq!(find_run(&[u64::MAX], 64, 1), (0, 0));
    }
}
