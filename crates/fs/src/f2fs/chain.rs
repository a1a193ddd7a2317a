//! The nodes in the log of warm nodes that were written after a checkpoint: fsync leaves them there, with a mark.
//!
//! Place in the data flow: a mount for writing recovers what is here, a check counts it.
//!
//! Invariant: a chain ends, whatever the disk holds: at a block that is not of this checkpoint, outside of the main area,
//! that was never written, or that was met before.

use super::appended::map::is_unwritten;
use super::error::{Error, Result};
use super::layout::node::Footer;
use super::layout::{Addr, Log, Nid};
use super::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};

/// A node of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) addr: Addr,
    pub(crate) footer: Footer,
}

impl Link {
    fn is_inode(&self) -> bool {
        self.footer.nid == self.footer.ino && self.footer.offset == 0
    }
}

/// The part of a chain that belongs to one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    /// The last node with the mark of fsync. What follows was not synced.
    last: usize,
    /// The last inode with a name that the checkpoint may lack.
    pub(crate) named: Option<usize>,
    /// The newest version of each of its nodes, in the order of the chain.
    pub(crate) nodes: Vec<usize>,
}

/// Finds the files that fsync completed in a chain, by inode.
pub(crate) fn synced(chain: &[Link]) -> BTreeMap<Nid, Synced> {
    let mut inodes: BTreeMap<Nid, Synced> = BTreeMap::new();
    for (at, link) in chain.iter().enumerate().filter(|(_, link)| link.footer.is_fsynced) {
        let empty = Synced { last: at, named: None, nodes: Vec::new() };
        let synced = inodes.entry(link.footer.ino).or_insert(empty);
        synced.last = at;
        if link.is_inode() && link.footer.has_dentry {
            synced.named = Some(at);
        }
    }
    let mut seen = BTreeSet::new();
    for (at, link) in chain.iter().enumerate().rev() {
        let Footer { ino, offset, .. } = link.footer;
        if let Some(synced) = inodes.get_mut(&ino)
            && at <= synced.last
            && seen.insert((ino, offset))
        {
            synced.nodes.insert(0, at);
        }
    }
    inodes
}

impl Volume {
    /// Reads the nodes that were written after the checkpoint, in their order; `takes_any` is for a planted bug that goes on with nodes
    /// of other checkpoints. Errors: those of the port.
    pub(crate) async fn chain(&self, takes_any: bool) -> Result<Vec<Link>> {
        let cursor = self.checkpoint().cursor(Log::WarmNode);
        let mut addr = self.geometry().main_block(cursor.segment, cursor.offset.into());
        let (mut chain, mut seen) = (Vec::new(), BTreeSet::new());
        while self.geometry().place_of(addr).is_some() && seen.insert(addr) {
            let block = match self.block(addr).await {
                // The log has not got any further.
                Err(Error::Port(error)) if is_unwritten(&error) => break,
                block => block?,
            };
            let footer = Footer::decode(&block);
            if !takes_any && !self.epoch().admits(&footer) {
                break;
            }
            chain.push(Link { addr, footer });
            addr = footer.next;
        }
        Ok(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(at: u32, ino: u32, offset: u32, is_fsynced: bool, has_dentry: bool) -> Link {
        let nid = if offset == 0 { ino } else { 100 * ino + offset };
        let footer =
            Footer { nid: Nid(nid), ino: Nid(ino), offset, is_fsynced, has_dentry, ..Footer::default() };
        Link { addr: Addr(at), footer }
    }

    #[test]
    fn what_follows_the_last_mark_of_an_inode_does_not_count() {
        let chain = [
            link(0, 5, 1, false, false),
            link(1, 6, 0, true, true),
            link(2, 5, 0, true, true),
            link(3, 5, 2, true, false),
            link(4, 5, 1, true, false),
            link(5, 5, 0, false, false),
            link(6, 7, 0, false, false),
        ];
        let found = synced(&chain);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [Nid(5), Nid(6)]);
        assert_eq!(found[&Nid(5)], Synced { last: 4, named: Some(2), nodes: vec![2, 3, 4] });
        assert_eq!(found[&Nid(6)], Synced { last: 1, named: Some(1), nodes: vec![1] });
    }
}
