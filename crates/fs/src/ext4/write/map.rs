//! The extent tree of a file: lookup, insertion, and cuts.
//!
//! Invariants: an index entry names the first block of the file that its child maps. The root has at most four entries and every
//! other node at least one. Nodes that become small are not merged; a tree becomes lower when something is cut off, and when the
//! file is freed.

use super::super::layout::extent::{
    BLOCKS_MAX, DEPTH_MAX, Entries, Extent, Index, Node, Place, ROOT_ENTRIES, UNWRITTEN_BLOCKS_MAX,
    block_entries,
};
use super::super::layout::inode::flags;
use super::super::layout::{Addr, Geometry, Ino};
use super::super::read::path_to;
use super::orphan::STEP_BLOCKS;
use super::spans::Span;
use super::state::{State, Step};
use crate::format::{Kind, u32_at};
use crate::port::BLOCK_BYTES;
use crate::vfs::Errno;
use std::ops::Range;
use std::rc::Rc;

/// A node on the path to a block of a file.
#[derive(Debug)]
struct Level {
    /// Address of its block; null is the root.
    addr: Addr,
    node: Rc<Node>,
    place: Place,
    /// Index of the child on the path.
    child: usize,
}

fn extents_mut(node: &mut Rc<Node>) -> &mut Vec<Extent> {
    match &mut Rc::make_mut(node).entries {
        Entries::Leaf(extents) => extents,
        Entries::Index(_) => unreachable!("a way ends with a leaf"),
    }
}

fn children(node: &mut Rc<Node>) -> &mut Vec<Index> {
    match &mut Rc::make_mut(node).entries {
        Entries::Index(children) => children,
        Entries::Leaf(_) => unreachable!("a leaf has no children"),
    }
}

/// The extents of a leaf.
fn extents_of(leaf: &Node) -> &[Extent] {
    match &leaf.entries {
        Entries::Leaf(extents) => extents,
        Entries::Index(_) => unreachable!("a way ends with a leaf"),
    }
}

fn first_of(node: &Node) -> Option<u32> {
    match &node.entries {
        Entries::Leaf(extents) => extents.first().map(|extent| extent.first),
        Entries::Index(children) => children.first().map(|child| child.first),
    }
}

/// Merges two extents if they follow each other in the file and on the disk.
fn merged(left: &Extent, right: &Extent) -> Option<Extent> {
    let max = if left.is_unwritten { UNWRITTEN_BLOCKS_MAX } else { BLOCKS_MAX };
    let blocks = u32::from(left.blocks) + u32::from(right.blocks);
    let follows = left.end() == u64::from(right.first)
        && left.addr.0 + u64::from(left.blocks) == right.addr.0
        && left.is_unwritten == right.is_unwritten;
    (follows && blocks <= u32::from(max)).then_some(Extent { blocks: blocks as u16, ..*left })
}

/// Extents that replace others: at most three that change, and their neighbours.
#[derive(Debug)]
struct Few {
    extents: [Extent; 5],
    /// Entries before this index are not in use.
    first: usize,
}

impl Few {
    /// Returns these extents, merged where possible.
    fn merged(extents: impl DoubleEndedIterator<Item = Extent>) -> Self {
        let mut few = Self { extents: Default::default(), first: 5 };
        for extent in extents.rev() {
            match few.get().first().and_then(|behind| merged(&extent, behind)) {
                Some(both) => few.extents[few.first] = both,
                None => {
                    few.first -= 1;
                    few.extents[few.first] = extent;
                }
            }
        }
        few
    }

    fn get(&self) -> &[Extent] {
        &self.extents[self.first..]
    }
}

/// The parts of an extent before and after a range.
fn rest(extent: &Extent, first: u64, end: u64) -> (Option<Extent>, Option<Extent>) {
    let before = u64::from(extent.first) < first;
    let before = before.then(|| Extent { blocks: (first - u64::from(extent.first)) as u16, ..*extent });
    let behind = (end < extent.end()).then(|| Extent {
        first: end as u32,
        blocks: (extent.end() - end) as u16,
        addr: Addr(extent.addr.0 + (end - u64::from(extent.first))),
        is_unwritten: extent.is_unwritten,
    });
    (before, behind)
}

/// Span of an entry of a leaf.
fn span_of(extent: &Extent) -> Span {
    Span {
        first: extent.first.into(),
        end: extent.end(),
        addr: Some(extent.addr),
        is_unwritten: extent.is_unwritten,
    }
}

/// The number of extents of a leaf that begin no later than a block. The search begins where the block would be if extents were
/// spread evenly: in a leaf of a large file most steps of a binary search miss the caches.
fn extents_up_to(extents: &[Extent], block: u64, place: &Place) -> usize {
    let is_before = |extent: &Extent| u64::from(extent.first) <= block;
    let (within, blocks) = (block.saturating_sub(place.range.start), place.range.end - place.range.start);
    let guess = (within * extents.len() as u64).checked_div(blocks).unwrap_or(0) as usize;
    // All extents before `low` begin no later, and none from `high` on.
    let (mut low, mut high, mut step) = (0, extents.len(), 4);
    if guess < high && is_before(&extents[guess]) {
        low = guess + 1;
        while low + step < high {
            match is_before(&extents[low + step]) {
                true => (low, step) = (low + step + 1, 2 * step),
                false => high = low + step,
            }
        }
    } else {
        high = high.min(guess);
        while high > low + step {
            match is_before(&extents[high - step]) {
                true => low = high - step + 1,
                false => (high, step) = (high - step, 2 * step),
            }
        }
    }
    low + extents[low..high].partition_point(is_before)
}

impl State {
    /// Goes from the root to the leaf that maps a block, or would map it, and calls back for each index on the path with its block
    /// (null for the root), itself, its place and the child. Returns the same of the leaf.
    fn descend(
        &self,
        ino: Ino,
        block: u64,
        mut pass: impl FnMut(Addr, &Rc<Node>, &Place, usize),
    ) -> Step<(Addr, &Rc<Node>, Place)> {
        let (root, seed) = self.extent_root(ino)?;
        let (mut addr, mut node) = (Addr::NULL, root);
        let mut place = node.root_place();
        while let Entries::Index(below) = &node.entries {
            let child = below.partition_point(|child| u64::from(child.first) <= block).saturating_sub(1);
            let next = below.get(child).ok_or(Errno::EUCLEAN)?.child;
            pass(addr, node, &place, child);
            place = node.child_place(child, &place);
            (addr, node) = (next, self.extent_node(next, &place, *seed)?);
        }
        Ok((addr, node, place))
    }

    /// The nodes from the root to the leaf that maps a block, or would map it.
    fn way(&self, ino: Ino, block: u64) -> Step<Vec<Level>> {
        let level = |addr, node: &Rc<Node>, place: &Place, child| Level {
            addr,
            node: Rc::clone(node),
            place: place.clone(),
            child,
        };
        let mut way = Vec::new();
        let (addr, leaf, place) = self.descend(ino, block, |addr, node, place, child| {
            way.push(level(addr, node, place, child));
        })?;
        if !leaf.fits(&place) {
            return Err(Errno::EUCLEAN.into());
        }
        way.push(level(addr, leaf, &place, 0));
        Ok(way)
    }

    /// Addresses of the nodes below the root on the path to the leaf that maps a block, or would map it.
    pub(super) fn tree_path(&self, ino: Ino, block: u64) -> Step<Vec<Addr>> {
        Ok(self.way(ino, block)?.iter().map(|level| level.addr).filter(|&addr| addr != Addr::NULL).collect())
    }

    /// The part of a file in which a block lies.
    pub(super) fn span(&self, ino: Ino, block: u64) -> Step<Span> {
        if block >= Geometry::FILE_BLOCKS_MAX {
            return Err(Errno::EFBIG.into());
        }
        if let Some(span) = self.spans.get(ino, block) {
            return Ok(span);
        }
        let span = match self.is_old_names(ino)? {
            true => self.find_old_span(ino, block)?,
            false => self.find_span(ino, block)?,
        };
        self.spans.insert(ino, block, span);
        Ok(span)
    }

    fn find_span(&self, ino: Ino, block: u64) -> Step<Span> {
        let mut last = self.last_leaf.borrow_mut();
        if !matches!(&*last, Some((of, place, _)) if *of == ino && place.range.contains(&block)) {
            let (_, leaf, place) = self.descend(ino, block, |_, _, _, _| ())?;
            *last = Some((ino, place, Rc::clone(leaf)));
        }
        let (_, place, leaf) = last.as_ref().expect("it was put there");
        let extents = extents_of(leaf);
        let at = extents_up_to(extents, block, place);
        let before = at.checked_sub(1).map(|at| span_of(&extents[at]));
        let is_inside = |first: u64, end: u64| place.range.start <= first && end <= place.range.end;
        if before.is_some_and(|span| !is_inside(span.first, span.end))
            || extents.get(at).is_some_and(|behind| !is_inside(behind.first.into(), behind.end()))
        {
            return Err(Errno::EUCLEAN.into());
        }
        Ok(match before {
            Some(span) if block < span.end => span,
            before => {
                // Nothing is mapped before the first child of an index.
                let outside = block < place.range.start;
                let first = before.map_or(if outside { block } else { place.range.start }, |span| span.end);
                let end = extents.get(at).map_or(place.range.end, |extent| extent.first.into());
                let end = if outside { place.range.start } else { end };
                Span { first, end, addr: None, is_unwritten: false }
            }
        })
    }

    /// Whether this is a directory, or a long symbolic link, whose blocks are mapped as in ext2 and ext3. It is read, and entries change within
    /// its blocks; it gets no others.
    fn is_old_names(&self, ino: Ino) -> Step<bool> {
        let inode = self.inode(ino)?;
        Ok(!inode.has(flags::EXTENTS) && inode.kind() != Some(Kind::Regular))
    }

    /// The place of a block of it.
    fn find_old_span(&self, ino: Ino, block: u64) -> Step<Span> {
        let path = path_to(block, BLOCK_BYTES as u64 / 4).ok_or(Errno::EUCLEAN)?;
        let checked = |word: u32| match Addr(word.into()) {
            Addr::NULL => Ok(None),
            addr if self.geometry.is_data(addr, 1) => Ok(Some(addr)),
            _ => Err(Errno::EUCLEAN),
        };
        let mut addr = checked(self.inode(ino)?.word(path[0] as usize))?;
        for &step in &path[1..] {
            let Some(at) = addr else { break };
            addr = checked(u32_at(&self.block(at)?[..], 4 * step as usize))?;
        }
        Ok(Span { first: block, end: block + 1, addr, is_unwritten: false })
    }

    /// Preferred address of a file's blocks from `block` on: behind the blocks before it.
    pub(super) fn goal(&mut self, ino: Ino, block: u64) -> Step<Addr> {
        let way = self.way(ino, block)?;
        let leaf = extents_of(&way.last().expect("there is a root").node);
        let at = leaf.partition_point(|extent| u64::from(extent.first) <= block);
        Ok(match at.checked_sub(1).map(|at| leaf[at]) {
            Some(before) => {
                let distant = Addr(before.addr.0 + (block - u64::from(before.first)));
                let is_inside = self.geometry.place_of(distant).is_some();
                if is_inside { distant } else { before.addr }
            }
            None => match leaf.first() {
                Some(behind) => {
                    let distance = u64::from(behind.first).saturating_sub(block);
                    Addr(behind.addr.0.saturating_sub(distance).max(1))
                }
                None => self.goal_of(ino),
            },
        })
    }

    fn new_tree_block(&mut self, ino: Ino, near: Addr) -> Step<Addr> {
        let goal = if near == Addr::NULL { self.goal_of(ino) } else { near };
        let addr = self.new_block(ino, goal)?;
        self.counts.taken_for_tree += u64::from(self.is_spending);
        Ok(addr)
    }

    fn write_node(&mut self, ino: Ino, addr: Addr, node: &Rc<Node>) -> Step<()> {
        let seed = self.inode(ino)?.seed(&self.geometry);
        self.put_extent_node(addr, Rc::clone(node), seed)
    }

    /// Writes the last node of a path, which was changed at an entry, and the changes that follow from it in the nodes above.
    fn write_way(&mut self, ino: Ino, mut way: Vec<Level>, mut at: usize) -> Step<()> {
        let geometry = self.geometry;
        let per_block = block_entries(geometry.block_bytes);
        while let Some(mut level) = way.pop() {
            let Some(parent) = way.last_mut() else {
                return self.write_root(ino, Rc::unwrap_or_clone(level.node));
            };
            let index = parent.child;
            if level.node.is_empty() {
                self.free_block(ino, level.addr)?;
                children(&mut parent.node).remove(index);
                at = index;
                continue;
            }
            let first = first_of(&level.node).expect("it is not empty");
            let is_moved = matches!(&parent.node.entries, Entries::Index(all) if all[index].first != first);
            if is_moved {
                children(&mut parent.node)[index].first = first;
            }
            if level.node.len() <= usize::from(level.node.max) {
                self.write_node(ino, level.addr, &level.node)?;
                if !is_moved {
                    return Ok(());
                }
                at = index;
                continue;
            }
            let length = level.node.len();
            // A node that grows at its end stays full.
            let is_end = at + 1 >= length && length - 1 <= usize::from(level.node.max);
            let middle = if is_end { length - 1 } else { length / 2 };
            let entries = match &mut Rc::make_mut(&mut level.node).entries {
                Entries::Leaf(extents) => Entries::Leaf(extents.split_off(middle)),
                Entries::Index(children) => Entries::Index(children.split_off(middle)),
            };
            let right = Rc::new(Node { depth: level.node.depth, max: per_block, generation: 0, entries });
            let addr = self.new_tree_block(ino, level.addr)?;
            self.write_node(ino, addr, &right)?;
            self.write_node(ino, level.addr, &level.node)?;
            let entry = Index { first: first_of(&right).expect("it is not empty"), child: addr };
            let parent = way.last_mut().expect("it was there");
            children(&mut parent.node).insert(index + 1, entry);
            at = index + 1;
        }
        Ok(())
    }

    fn write_root(&mut self, ino: Ino, mut root: Node) -> Step<()> {
        if root.is_empty() {
            root = Node::empty_root();
        }
        if root.len() > ROOT_ENTRIES.into() {
            if root.depth >= DEPTH_MAX {
                return Err(Errno::ENOSPC.into());
            }
            let near = match &root.entries {
                Entries::Leaf(extents) => extents[0].addr,
                Entries::Index(children) => children[0].child,
            };
            let child = self.new_tree_block(ino, near)?;
            let below = Rc::new(Node { max: block_entries(self.geometry.block_bytes), ..root });
            self.write_node(ino, child, &below)?;
            let first = first_of(&below).expect("it is not empty");
            let entries = Entries::Index(vec![Index { first, child }]);
            root = Node { depth: below.depth + 1, max: ROOT_ENTRIES, generation: 0, entries };
        }
        root.max = ROOT_ENTRIES;
        root.encode_root(&mut self.inode_mut(ino)?.block);
        Ok(())
    }

    /// Whether a file's tree has more than one node.
    pub(super) fn is_tall(&self, ino: Ino) -> bool {
        self.extent_root(ino).is_ok_and(|(root, _)| root.depth > 0)
    }

    /// Removes levels that the tree of a file does not need.
    pub(super) fn flatten(&mut self, ino: Ino) -> Step<()> {
        loop {
            let (root, seed) = self.extent_root(ino)?;
            let Entries::Index(below) = &root.entries else { return Ok(()) };
            let [only] = below[..] else { return Ok(()) };
            let place = root.child_place(0, &root.root_place());
            let child = Rc::clone(self.extent_node(only.child, &place, *seed)?);
            if child.len() > ROOT_ENTRIES.into() {
                return Ok(());
            }
            self.free_block(ino, only.child)?;
            let root = Node { max: ROOT_ENTRIES, ..Rc::unwrap_or_clone(child) };
            root.encode_root(&mut self.inode_mut(ino)?.block);
        }
    }

    /// Maps blocks of a file that were a hole.
    pub(super) fn insert_extent(&mut self, ino: Ino, new: Extent) -> Step<()> {
        self.change_extents(ino, new.first.into(), |leaf| {
            let at = leaf.partition_point(|extent| extent.first < new.first);
            Ok((at..at, [None, Some(new), None]))
        })
    }

    /// Marks a part of one unwritten extent as written.
    pub(super) fn convert(&mut self, ino: Ino, first: u64, end: u64) -> Step<()> {
        self.change_extents(ino, first, |leaf| {
            let at = leaf.partition_point(|extent| u64::from(extent.first) <= first);
            let at = at.checked_sub(1).ok_or(Errno::EUCLEAN)?;
            let old = leaf[at];
            if !old.is_unwritten || end > old.end() || first >= end {
                return Err(Errno::EUCLEAN.into());
            }
            let (before, behind) = rest(&old, first, end);
            let new = Extent {
                first: first as u32,
                blocks: (end - first) as u16,
                addr: Addr(old.addr.0 + (first - u64::from(old.first))),
                is_unwritten: false,
            };
            Ok((at..at + 1, [before, Some(new), behind]))
        })
    }

    /// Replaces extents of the leaf that maps a block, or would map it: `change` returns which, and by what, which must not be
    /// nothing. Extents around them are merged if possible.
    fn change_extents(
        &mut self,
        ino: Ino,
        block: u64,
        change: impl FnOnce(&[Extent]) -> Step<(Range<usize>, [Option<Extent>; 3])>,
    ) -> Step<()> {
        let (addr, leaf, place) = self.descend(ino, block, |_, _, _, _| ())?;
        if !leaf.fits(&place) {
            return Err(Errno::EUCLEAN.into());
        }
        let (max, extents) = (usize::from(leaf.max), extents_of(leaf));
        let (range, changed) = change(extents)?;
        let changed = changed.into_iter().flatten();
        let last = range.start + changed.clone().count() - 1;
        // The neighbours are included, because they may be merged.
        let (from, to) = (range.start.saturating_sub(1), extents.len().min(range.end + 1));
        let (before, behind) = (&extents[from..range.start], &extents[range.end..to]);
        let new = Few::merged(before.iter().copied().chain(changed).chain(behind.iter().copied()));
        let new = new.get();
        let is_larger = extents.len() - (to - from) + new.len() > max;
        let is_moved = from == 0 && extents.first().is_none_or(|first| first.first != new[0].first);
        self.note_tree(ino);
        if addr != Addr::NULL && !is_larger && !is_moved {
            return self.replace_extents((ino, place), addr, from..to, new);
        }
        let mut way = self.way(ino, block)?;
        extents_mut(&mut way.last_mut().expect("there is a root").node).splice(from..to, new.iter().copied());
        self.write_way(ino, way, last)
    }

    /// Makes a range of a file a hole, from its end on, and stops after `extents_max` extents. Returns the block up to which it is
    /// done: `first` when all is done.
    pub(super) fn cut(&mut self, ino: Ino, first: u64, end: u64, extents_max: usize) -> Step<u64> {
        let mut end = end.min(Geometry::FILE_BLOCKS_MAX);
        let mut left = extents_max;
        let is_metadata = self.kind(ino)? != Kind::Regular;
        let (whole, is_data) = (first, self.journals_data && !is_metadata);
        while end > whole && left > 0 {
            let mut first = whole;
            let mut way = self.way(ino, end - 1)?;
            let level = way.last_mut().expect("there is a root");
            let start = level.place.range.start;
            if start >= end {
                // Nothing is mapped before the first child.
                end = first;
                break;
            }
            let leaf = extents_mut(&mut level.node);
            let to = leaf.partition_point(|extent| u64::from(extent.first) < end);
            if let Some(last) = to.checked_sub(1).map(|last| leaf[last]).filter(|_| is_data) {
                // Each block is revoked, so a step is limited in blocks too.
                first = first.max(last.end().min(end).saturating_sub(STEP_BLOCKS));
            }
            let from = leaf.partition_point(|extent| extent.end() <= first).max(to.saturating_sub(left));
            if from >= to {
                end = if start <= first { first } else { start };
                continue;
            }
            let cut: Vec<Extent> = leaf[from..to].to_vec();
            let mut parts = Vec::new();
            let mut gone = Vec::new();
            for extent in &cut {
                if extent.end() <= first {
                    parts.push(*extent);
                    continue;
                }
                let (before, behind) = rest(extent, first, end);
                let lowest = first.max(extent.first.into());
                let highest = end.min(extent.end());
                if lowest < highest {
                    let addr = Addr(extent.addr.0 + (lowest - u64::from(extent.first)));
                    gone.push((addr, (highest - lowest) as u32));
                }
                parts.extend(before);
                parts.extend(behind);
            }
            let lowest = u64::from(cut[0].first).max(first);
            left = if first > whole { 0 } else { left.saturating_sub(cut.len()) };
            let is_whole = from == 0 || leaf[from - 1].end() <= first;
            let at = from + parts.len().saturating_sub(1);
            leaf.splice(from..to, parts);
            self.write_way(ino, way, at)?;
            for (addr, count) in gone {
                self.free(addr, count)?;
                for block in addr.0..addr.0 + u64::from(count) {
                    if is_metadata {
                        self.forget_block(Addr(block));
                    } else if is_data {
                        self.forget_data(Addr(block));
                    }
                }
                self.count_blocks(ino, -i64::from(count))?;
            }
            end = if is_whole && start <= first { first } else { lowest };
        }
        self.flatten(ino)?;
        Ok(end.max(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::random::RandomStream;

    #[test]
    fn extents_are_found_as_by_halving() {
        let mut random = RandomStream::new(1, "extents");
        for _ in 0..2_000 {
            let mut leaf: Vec<Extent> = Vec::new();
            let gap = 1 + random.below(3_000);
            for _ in 0..random.below(60) {
                let first = leaf.last().map_or(500, Extent::end) + random.below(gap);
                let blocks = 1 + random.below(8) as u16;
                leaf.push(Extent { first: first as u32, blocks, addr: Addr(1), is_unwritten: false });
            }
            let end = [leaf.last().map_or(600, Extent::end), 1 << 20, u64::from(u32::MAX)];
            let place = Place { depth: 0, range: random.below(500)..end[random.below(3) as usize] };
            for _ in 0..20 {
                let block = random.below(place.range.end + 2);
                let expected = leaf.partition_point(|extent| u64::from(extent.first) <= block);
                assert_eq!(extents_up_to(&leaf, block, &place), expected, "{block} in {place:?}: {leaf:?}");
            }
        }
    }
}
