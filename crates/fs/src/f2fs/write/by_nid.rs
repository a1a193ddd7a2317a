//! State of nodes, by their numbers.
//!
//! Every page that is written asks for its node several times, so that is one step in a vector and not a walk through a
//! tree. Numbers are allocated from the smallest on, so the vector has few gaps; it reaches to the largest number in use.

use super::super::layout::Nid;
use std::collections::BTreeSet;
use std::ops::{Index, Range, RangeInclusive};

/// A map from numbers of nodes.
#[derive(Debug)]
pub(super) struct ByNid<T>(Vec<Option<T>>);

impl<T> Default for ByNid<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByNid<T> {
    #[inline]
    pub(super) fn get(&self, nid: &Nid) -> Option<&T> {
        self.0.get(nid.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, nid: &Nid) -> Option<&mut T> {
        self.0.get_mut(nid.0 as usize)?.as_mut()
    }

    pub(super) fn contains_key(&self, nid: &Nid) -> bool {
        self.get(nid).is_some()
    }

    fn place(&mut self, nid: Nid) -> &mut Option<T> {
        let at = nid.0 as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        &mut self.0[at]
    }

    pub(super) fn insert(&mut self, nid: Nid, value: T) {
        *self.place(nid) = Some(value);
    }

    /// Inserts a value unless the node has one.
    pub(super) fn insert_new(&mut self, nid: Nid, value: T) {
        self.place(nid).get_or_insert(value);
    }

    pub(super) fn remove(&mut self, nid: &Nid) -> Option<T> {
        self.0.get_mut(nid.0 as usize)?.take()
    }

    /// The values in a range, in ascending order.
    pub(super) fn range(&self, range: Range<Nid>) -> impl Iterator<Item = (Nid, &T)> {
        let end = (range.end.0 as usize).min(self.0.len());
        let start = (range.start.0 as usize).min(end);
        let all = (start as u32..).map(Nid).zip(&self.0[start..end]);
        all.filter_map(|(nid, value)| value.as_ref().map(|value| (nid, value)))
    }
}

impl<T> Index<&Nid> for ByNid<T> {
    type Output = T;

    #[inline]
    fn index(&self, nid: &Nid) -> &T {
        self.get(nid).expect("it is in memory")
    }
}

impl<T> FromIterator<(Nid, T)> for ByNid<T> {
    fn from_iter<I: IntoIterator<Item = (Nid, T)>>(all: I) -> Self {
        let mut table = Self::default();
        all.into_iter().for_each(|(nid, value)| table.insert(nid, value));
        table
    }
}

/// Nodes that differ from their blocks on the disk, each after its inode. A node belongs to one inode.
#[derive(Debug, Default)]
pub(super) struct DirtyNodes {
    nodes: BTreeSet<(Nid, Nid)>,
    /// Whether each node is in the set: most nodes that become dirty are dirty already.
    is_in: Vec<bool>,
}

impl DirtyNodes {
    /// Inserts a node; returns whether it was clean.
    #[inline]
    pub(super) fn insert(&mut self, (ino, nid): (Nid, Nid)) -> bool {
        let at = nid.0 as usize;
        if self.is_in.get(at).is_some_and(|is_in| *is_in) {
            return false;
        }
        if at >= self.is_in.len() {
            self.is_in.resize(at + 1, false);
        }
        self.is_in[at] = true;
        self.nodes.insert((ino, nid))
    }

    pub(super) fn remove(&mut self, node: &(Nid, Nid)) {
        if self.nodes.remove(node) {
            self.is_in[node.1.0 as usize] = false;
        }
    }

    pub(super) fn first(&self) -> Option<&(Nid, Nid)> {
        self.nodes.first()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn range(&self, range: RangeInclusive<(Nid, Nid)>) -> impl Iterator<Item = &(Nid, Nid)> {
        self.nodes.range(range)
    }
}
