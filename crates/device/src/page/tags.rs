//! Tags of the versions in the buffer: which versions a tag owns, and which tags a version has (range-flush §3.2).
//!
//! Invariants: a version is in the list of each of its tags, or, once it has had more than [`TAGS_MAX`], in the list of those that
//! every tag owns; an untagged version costs nothing; an empty list is removed.
//!
//! Deliberately absent: tags of versions on the medium. Tags exist only while the version is volatile (contract §9.6).

use flashweir_core::command::Tag;
use std::collections::BTreeMap;

/// Most tags of one version; with more it counts as owned by every tag.
pub(crate) const TAGS_MAX: usize = 4;

const NONE: u32 = u32::MAX;

/// The owners of a version, or of a volatile deallocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    pub(crate) tags: Vec<Tag>,
    /// There are more than can be remembered: every tag counts as an owner.
    pub(crate) any: bool,
}

impl Owners {
    pub(crate) fn of(tags: [Tag; 2]) -> Self {
        let mut owners = Self::default();
        owners.unite(&Self { tags: tags.into_iter().filter(|tag| tag.0 != 0).collect(), any: false });
        owners
    }

    pub(crate) fn unite(&mut self, other: &Self) {
        self.any |= other.any;
        for tag in &other.tags {
            if !self.tags.contains(tag) {
                self.tags.push(*tag);
            }
        }
        if self.any || self.tags.len() > TAGS_MAX {
            self.any = true;
            self.tags.clear();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty() && !self.any
    }

    pub(crate) fn match_any(&self, tags: &[Tag]) -> bool {
        !tags.is_empty() && (self.any || self.tags.iter().any(|tag| tags.contains(tag)))
    }
}

/// One version in the list of one tag.
#[derive(Clone, Copy, Debug)]
struct Node {
    slot: u32,
    list: u32,
    /// The next tag of the same version.
    sibling: u32,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    tag: Tag,
    first: u32,
}

/// The list of versions that every tag owns.
const ANY: u32 = 0;

/// Index from versions to tags and from tags to versions. A version names its first node; `u32::MAX` is none.
#[derive(Clone, Debug)]
pub(crate) struct TagIndex {
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    lists: Vec<List>,
    free_lists: Vec<u32>,
    by_tag: BTreeMap<Tag, u32>,
}

impl Default for TagIndex {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            lists: vec![List { tag: Tag(0), first: NONE }],
            free_lists: Vec::new(),
            by_tag: BTreeMap::new(),
        }
    }
}

impl TagIndex {
    /// Adds tags to those of a version whose first node is `first`.
    pub(crate) fn unite(&mut self, first: &mut u32, slot: u32, tags: [Tag; 2]) {
        for tag in tags.into_iter().filter(|tag| tag.0 != 0) {
            let (mut count, mut there, mut node) = (0, false, *first);
            while node != NONE {
                let Node { list, sibling, .. } = self.nodes[node as usize];
                there |= list == ANY || self.lists[list as usize].tag == tag;
                (count, node) = (count + 1, sibling);
            }
            if there {
                continue;
            }
            if count < TAGS_MAX {
                let list = self.list(tag);
                self.link(first, slot, list);
            } else {
                self.clear(first);
                self.link(first, slot, ANY);
                return;
            }
        }
    }

    /// Removes all tags of a version, which is not volatile any more.
    pub(crate) fn clear(&mut self, first: &mut u32) {
        let mut node = std::mem::replace(first, NONE);
        while node != NONE {
            let Node { list, sibling, previous, next, .. } = self.nodes[node as usize];
            match previous {
                NONE => self.lists[list as usize].first = next,
                previous => self.nodes[previous as usize].next = next,
            }
            if next != NONE {
                self.nodes[next as usize].previous = previous;
            }
            if list != ANY && self.lists[list as usize].first == NONE {
                self.by_tag.remove(&self.lists[list as usize].tag);
                self.free_lists.push(list);
            }
            self.free_nodes.push(node);
            node = sibling;
        }
    }

    /// The owners of a version.
    pub(crate) fn owners(&self, first: u32) -> Owners {
        let mut owners = Owners::default();
        let mut node = first;
        while node != NONE {
            let Node { list, sibling, .. } = self.nodes[node as usize];
            match list {
                ANY => owners.any = true,
                list => owners.tags.push(self.lists[list as usize].tag),
            }
            node = sibling;
        }
        owners
    }

    /// Slots of the versions that `tag` owns, including those that every tag owns.
    pub(crate) fn slots(&self, tag: Tag) -> impl Iterator<Item = u32> + '_ {
        let own = self.by_tag.get(&tag).map_or(NONE, |list| self.lists[*list as usize].first);
        [own, self.lists[ANY as usize].first].into_iter().flat_map(|first| {
            let node = |at: u32| (at != NONE).then(|| &self.nodes[at as usize]);
            std::iter::successors(node(first), move |at| node(at.next)).map(|node| node.slot)
        })
    }

    fn list(&mut self, tag: Tag) -> u32 {
        if let Some(list) = self.by_tag.get(&tag) {
            return *list;
        }
        let empty = List { tag, first: NONE };
        let list = match self.free_lists.pop() {
            Some(free) => {
                self.lists[free as usize] = empty;
                free
            }
            None => {
                self.lists.push(empty);
                self.lists.len() as u32 - 1
            }
        };
        self.by_tag.insert(tag, list);
        list
    }

    fn link(&mut self, first: &mut u32, slot: u32, list: u32) {
        let next = self.lists[list as usize].first;
        let node = Node { slot, list, sibling: *first, previous: NONE, next };
        let at = match self.free_nodes.pop() {
            Some(free) => {
                self.nodes[free as usize] = node;
                free
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        if next != NONE {
            self.nodes[next as usize].previous = at;
        }
        self.lists[list as usize].first = at;
        *first = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;
    use std::collections::BTreeSet;

    /// Compares the index with sets, over random insertions, unions and removals.
    #[test]
    fn the_index_is_what_sets_say() {
        let mut random = RandomStream::new(7, "tags");
        let mut index = TagIndex::default();
        let mut firsts = [NONE; 40];
        let mut model: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); 40];
        for _ in 0..20_000 {
            let slot = random.below(40) as usize;
            if random.chance(0.3) {
                index.clear(&mut firsts[slot]);
                model[slot].clear();
            } else {
                let tags = [random.below(9), random.below(9)];
                index.unite(&mut firsts[slot], slot as u32, tags.map(Tag));
                model[slot].extend(tags.iter().filter(|tag| **tag != 0));
            }
            let is_any = |set: &BTreeSet<u64>| set.len() > TAGS_MAX;
            let owners = index.owners(firsts[slot]);
            assert_eq!(owners.any, is_any(&model[slot]));
            if !owners.any {
                let tags: BTreeSet<u64> = owners.tags.iter().map(|tag| tag.0).collect();
                assert_eq!((tags.len(), &tags), (owners.tags.len(), &model[slot]));
            }
            let tag = 1 + random.below(8);
            let slots: Vec<u32> = index.slots(Tag(tag)).collect();
            let set: BTreeSet<u32> = slots.iter().copied().collect();
            let expected: BTreeSet<u32> = (0..40)
                .filter(|slot| model[*slot as usize].contains(&tag) || is_any(&model[*slot as usize]))
                .collect();
            assert_eq!((slots.len(), &set), (expected.len(), &expected));
        }
        firsts.iter_mut().for_each(|first| index.clear(first));
        assert!(index.by_tag.is_empty() && index.free_nodes.len() == index.nodes.len());
    }
}
