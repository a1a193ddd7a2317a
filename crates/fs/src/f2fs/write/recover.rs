//! Roll-forward: what fsync wrote on top of the last checkpoint becomes part of the volume again.
//!
//! Place in the data flow: [`mount`](super::F2fs::mount) runs it before anybody else sees the volume. It is a table of steps
//! ([`F2fs::recover`]), the last of which is a checkpoint.
//!
//! Invariants:
//! 1. Until that checkpoint is complete, no block of the chain and none that it refers to is written. So a cut in the middle
//!    leaves everything to the next mount, which does the same again.
//! 2. Nodes are taken by their contents and not by their places: they are changed in memory like those of any operation.
//! 3. An image can be hostile: a chain ends ([`chain`](super::super::chain)), an inode, a name or an address that contradicts
//!    the volume is an error, and what is not found is not invented.

use super::super::chain::{Link, Synced, synced};
use super::super::layout::dentry::Entry;
use super::super::layout::node::{self, Footer, Inode, Kind, NODE_WORDS, advise, inline};
use super::super::layout::summary::Owner;
use super::super::layout::{Addr, Nid, SegNo, xattr};
use super::state::{State, Step};
use super::{Error, F2fs, Result};
use crate::port::{BLOCK_BYTES, BlockBytes};
use crate::vfs::{Errno, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a mount found to recover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Nodes that were written on top of the checkpoint.
    pub nodes: u64,
    /// Files that fsync had written.
    pub files: u64,
    /// Those among them that the checkpoint lacked.
    pub new_files: u64,
    /// Inodes without a name that were freed.
    pub orphans: u64,
}

/// Whom recovery gave blocks, and whose summaries it changed.
#[derive(Debug, Default)]
struct Adopted {
    owners: BTreeMap<Addr, (Nid, u64)>,
    segments: BTreeSet<SegNo>,
}

impl F2fs {
    /// Recovers what is there and frees orphans. A volume that was unmounted, and has nothing, is not written to.
    pub(super) async fn recover(&self) -> Result<()> {
        let chain = self.volume.chain().await?;
        let orphans: Vec<Nid> = self.state.borrow().orphans.iter().copied().collect();
        for &ino in &orphans {
            self.step(|state| state.destroy(ino), format_args!("orphan {ino} cannot be freed")).await?;
        }
        let mut plan = synced(&chain);
        plan.retain(|ino, synced| synced.named.is_some() || self.state.borrow().is_there(*ino));
        self.keep_chain(&chain, &plan).await?;
        self.step(State::dodge, "a log has no place to go on").await?;
        let mut new = BTreeSet::new();
        for (&ino, synced) in &plan {
            if self.adopt_inode(ino, synced, &chain).await? {
                new.insert(ino);
            }
        }
        let mut adopted = Adopted::default();
        for (&ino, synced) in &plan {
            self.adopt_nodes(ino, synced, &chain, &mut adopted).await?;
        }
        let mut named: Vec<usize> =
            plan.iter().filter(|(ino, _)| new.contains(ino)).filter_map(|(_, synced)| synced.named).collect();
        named.sort_unstable();
        for at in named {
            self.adopt_name(&chain[at]).await?;
        }
        for segment in adopted.segments {
            self.state.borrow_mut().store_summary(segment);
        }
        let (valid, user) = {
            let state = self.state.borrow();
            (state.valid_blocks, state.checkpoint.user_blocks)
        };
        if valid > user {
            return Err(Error::Corrupt(format!(
                "with what was synced it has {valid} blocks, room for {user}"
            )));
        }
        self.recovered.set(Recovered {
            nodes: chain.len() as u64,
            files: plan.len() as u64,
            new_files: new.len() as u64,
            orphans: orphans.len() as u64,
        });
        if !chain.is_empty() || !self.volume.is_clean() {
            // Stamps that are on the disk must not be in use any more; see `fsync`.
            self.state.borrow_mut().changed = true;
            let written = self.checkpoint().await;
            written.map_err(|errno| {
                Error::Corrupt(format!("recovery cannot write its checkpoint: {errno:?}"))
            })?;
        }
        Ok(())
    }

    async fn step<T>(
        &self,
        operation: impl FnMut(&mut State) -> Step<T>,
        what: impl std::fmt::Display,
    ) -> Result<T> {
        self.run(operation).await.map_err(|errno| Error::Corrupt(format!("recovery: {what}: {errno:?}")))
    }

    async fn block_of(&self, link: &Link) -> Result<Arc<[u8]>> {
        self.volume.block(link.addr).await
    }

    /// The file whose inode is in a block.
    async fn inode_of_link(&self, link: &Link) -> Result<Inode> {
        let superblock = self.volume.superblock();
        let block = self.block_of(link).await?;
        let inode = Inode::decode(block, superblock.features, superblock.inode_checksum_seed())?;
        let bytes_max = node::blocks_max(inode.address_count()) * BLOCK_BYTES as u64;
        if inode.kind() != Kind::Regular || inode.size > bytes_max {
            let (nid, kind, size) = (inode.nid, inode.kind(), inode.size);
            return Err(Error::Corrupt(format!(
                "inode {nid}, synced at {}, is {kind:?} of {size} bytes",
                link.addr
            )));
        }
        Ok(inode)
    }

    /// Nobody gets the blocks of the chain, and those that it refers to.
    async fn keep_chain(&self, chain: &[Link], plan: &BTreeMap<Nid, Synced>) -> Result<()> {
        for link in chain {
            self.state.borrow_mut().keep_block(link.addr);
        }
        for &at in plan.values().flat_map(|synced| &synced.nodes) {
            let addresses = match chain[at].footer.offset {
                0 => {
                    let inode = self.inode_of_link(&chain[at]).await?;
                    match inode.has_addresses() {
                        true => (0..inode.address_count()).map(|index| inode.address(index)).collect(),
                        false => Vec::new(),
                    }
                }
                Footer::XATTR_OFFSET => Vec::new(),
                _ => {
                    let block = self.block_of(&chain[at]).await?;
                    (0..NODE_WORDS).map(|index| Addr(node::word(&block, index))).collect()
                }
            };
            let mut state = self.state.borrow_mut();
            addresses.into_iter().for_each(|addr| state.keep_block(addr));
        }
        Ok(())
    }

    /// Makes an inode exist that the checkpoint lacks; says whether it did.
    async fn adopt_inode(&self, ino: Nid, synced: &Synced, chain: &[Link]) -> Result<bool> {
        if self.state.borrow().is_there(ino) {
            let inode = self.step(|state| state.inode(ino).cloned(), format_args!("inode {ino}")).await?;
            return match inode.kind() {
                Kind::Regular => Ok(false),
                kind => Err(Error::Corrupt(format!("inode {ino} is {kind:?}, and was synced as a file"))),
            };
        }
        let Some(at) = synced.named else {
            return Err(Error::Corrupt(format!("inode {ino} was synced and is gone")));
        };
        if !(Nid::ROOT < ino && ino < self.volume.geometry().nid_end()) {
            return Err(Error::Corrupt(format!("node {ino} is no number of a file, and was synced")));
        }
        let inode = self.inode_of_link(&chain[at]).await?.emptied();
        let mut state = self.state.borrow_mut();
        state.take_nid(ino, ino);
        state.valid_inodes += 1;
        state.inodes.insert(ino, inode);
        Ok(true)
    }

    /// Gives an inode what its synced nodes say.
    async fn adopt_nodes(
        &self,
        ino: Nid,
        synced: &Synced,
        chain: &[Link],
        adopted: &mut Adopted,
    ) -> Result<()> {
        let mut has_inode = false;
        let mut end = 0;
        for &at in &synced.nodes {
            let link = &chain[at];
            let what = format_args!("node {} of inode {ino}", link.footer.offset).to_string();
            let addresses = self.state.borrow().inodes[&ino].address_count();
            if link.footer.offset == 0 {
                has_inode = true;
                let inode = self.inode_of_link(link).await?;
                self.step(|state| state.adopt_fields(ino, &inode), &what).await?;
                if inode.has_addresses() {
                    for index in 0..inode.address_count().min(addresses) {
                        let addr = inode.address(index);
                        self.step(|state| state.adopt(ino, index.into(), addr, adopted), &what).await?;
                    }
                }
            } else if link.footer.offset == Footer::XATTR_OFFSET {
                let block = self.block_of(link).await?;
                let block: BlockBytes = block[..].try_into().expect("a block");
                self.step(|state| state.adopt_xattrs(ino, &block), &what).await?;
            } else {
                let Some(first) = node::first_block(link.footer.offset, addresses) else {
                    return Err(Error::Corrupt(format!("{what} was synced, which holds no addresses")));
                };
                let block = self.block_of(link).await?;
                self.step(|state| state.adopt_plain(ino), &what).await?;
                for word in 0..NODE_WORDS {
                    let (index, addr) = (first + u64::from(word), Addr(node::word(&block, word)));
                    self.step(|state| state.adopt(ino, index, addr, adopted), &what).await?;
                    end = if addr.is_place() { index + 1 } else { end };
                }
            }
        }
        let inode = self.state.borrow().inodes[&ino].clone();
        if inode.advise & advise::KEEPS_SIZE != 0 {
            return Ok(());
        }
        let pages = inode.size.div_ceil(BLOCK_BYTES as u64);
        match has_inode {
            // What is beyond the end is what a truncation could not say otherwise.
            true => self.step(|state| state.truncate(ino, pages), "a truncation").await,
            false if end > pages => {
                let grow = |state: &mut State| {
                    state.inode_mut(ino)?.size = end * BLOCK_BYTES as u64;
                    Ok(())
                };
                self.step(grow, "a size").await
            }
            false => Ok(()),
        }
    }

    /// Enters the name of an inode that the checkpoint lacks. Whoever had the name loses it.
    async fn adopt_name(&self, link: &Link) -> Result<()> {
        let inode = self.inode_of_link(link).await?;
        let (ino, dir, name) = (inode.nid, inode.parent, inode.name.clone());
        let what = format!("inode {ino}, \"{}\" in directory {dir}", name.escape_ascii());
        if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
            return Err(Error::Corrupt(format!("{what}, was synced, and its name is none")));
        }
        let now = Timestamp { seconds: inode.ctime.seconds, nanos: inode.ctime.nanos.min(999_999_999) };
        self.step(|state| state.make_plain(dir), &what).await?;
        let there = self.step(|state| state.find(dir, &name), &what).await?;
        if there.is_some_and(|(_, entry)| entry.ino != ino) {
            let gone = self.step(|state| state.unlink(dir, &name, now), &what).await?;
            if let Some(gone) = gone {
                self.step(|state| state.destroy(gone), &what).await?;
            }
        }
        let enter = |state: &mut State| {
            if state.find(dir, &name)?.is_some() {
                return Ok(());
            }
            let room = state.room(dir, &name)?;
            state.insert(dir, room, &Entry::new(&name, ino, Kind::Regular))?;
            state.changed_at(dir, now)
        };
        self.step(enter, &what).await
    }
}

impl State {
    /// Whether a number is that of a node.
    fn is_there(&self, nid: Nid) -> bool {
        self.nat.get(&nid).is_some_and(|entry| entry.addr != Addr::NULL)
    }

    /// Takes the fields of a synced inode, and its contents if they are inline.
    fn adopt_fields(&mut self, ino: Nid, new: &Inode) -> Step<()> {
        let old = self.inode(ino)?;
        if new.inline_bytes().len() != old.inline_bytes().len()
            || new.xattr_bytes().len() != old.xattr_bytes().len()
        {
            return Err(Errno::EUCLEAN.into());
        }
        let (was_inline, old_xattrs) = (old.has_inline(inline::DATA), old.xattr_nid);
        let is_inline = new.has_inline(inline::DATA);
        if is_inline && !was_inline {
            self.truncate(ino, 0)?;
        }
        if was_inline && !is_inline {
            self.adopt_plain(ino)?;
        }
        for slot in 0..5 {
            if !is_inline && new.node(slot) == Nid(0) {
                self.drop_slot(ino, slot)?;
            }
        }
        if new.xattr_nid == Nid(0) && old_xattrs != Nid(0) {
            self.inode_mut(ino)?.xattr_nid = Nid(0);
            self.free_node(old_xattrs, ino)?;
        }
        let inode = self.inode_mut(ino)?;
        (inode.mode, inode.uid, inode.gid, inode.size) = (new.mode, new.uid, new.gid, new.size);
        (inode.atime, inode.ctime, inode.mtime) = (new.atime, new.ctime, new.mtime);
        (inode.advise, inode.flags, inode.depth) = (new.advise, new.flags, new.depth);
        inode.xattr_bytes_mut().copy_from_slice(new.xattr_bytes());
        let bits = inline::DATA | inline::DATA_EXIST | inline::PINNED;
        inode.inline = inode.inline & !bits | new.inline & bits;
        if is_inline {
            inode.inline_bytes_mut().copy_from_slice(new.inline_bytes());
        }
        Ok(())
    }

    /// Lets go of inline contents; blocks follow.
    fn adopt_plain(&mut self, ino: Nid) -> Step<()> {
        if self.inode(ino)?.has_inline(inline::DATA) {
            let inode = self.inode_mut(ino)?;
            inode.inline_bytes_mut().fill(0);
            inode.inline &= !(inline::DATA | inline::DATA_EXIST);
        }
        Ok(())
    }

    /// Frees all below one of the five nodes of an inode.
    fn drop_slot(&mut self, ino: Nid, slot: usize) -> Step<()> {
        let inode = self.inode(ino)?;
        let (nid, addresses) = (inode.node(slot), u64::from(inode.address_count()));
        if nid == Nid(0) {
            return Ok(());
        }
        let words = u64::from(NODE_WORDS);
        let (height, offset, before) = [
            (0, 1, 0),
            (0, 2, words),
            (1, 3, 2 * words),
            (1, 4 + NODE_WORDS, (2 + words) * words),
            (2, 5 + 2 * NODE_WORDS, (2 + 2 * words) * words),
        ][slot];
        let start = addresses + before;
        self.truncate_below(ino, nid, height, offset, start, start)?;
        self.inode_mut(ino)?.set_node(slot, Nid(0));
        Ok(())
    }

    fn adopt_xattrs(&mut self, ino: Nid, block: &BlockBytes) -> Step<()> {
        let nid = match self.inode(ino)?.xattr_nid {
            Nid(0) => {
                let nid = self.new_node(ino, Footer::XATTR_OFFSET)?;
                self.inode_mut(ino)?.xattr_nid = nid;
                nid
            }
            nid => nid,
        };
        // It is read first, if it was there before.
        self.xattrs(ino)?;
        let room = self.nodes.get_mut(&nid).expect("it was read or made");
        room[..xattr::NODE_BYTES].copy_from_slice(&block[..xattr::NODE_BYTES]);
        self.dirty.insert((ino, nid));
        Ok(())
    }

    /// A block of a file is where a synced node says.
    fn adopt(&mut self, ino: Nid, index: u64, addr: Addr, adopted: &mut Adopted) -> Step<()> {
        if self.address(ino, index)? == addr {
            return Ok(());
        }
        match addr {
            Addr::NULL => return self.free_block(ino, index),
            Addr::NEW => {
                self.free_block(ino, index)?;
                return self.reserve(ino, index);
            }
            _ => (),
        }
        let (segment, offset) = self.geometry.place_of(addr).ok_or(Errno::EUCLEAN)?;
        let log = self.data_log(ino)?;
        self.load_summary(segment)?;
        if self.sit[segment.0 as usize].is_valid(offset) {
            // Linux may have given a block to another owner meanwhile; the later one has it. What the checkpoint has is
            // nobody else's.
            let (other, at) = *adopted.owners.get(&addr).ok_or(Errno::EUCLEAN)?;
            self.free_block(other, at)?;
        }
        self.free_block(ino, index)?;
        let (nid, at) = self.slot(ino, index, true)?.expect("it was created");
        self.set_address_in(ino, nid, at, addr)?;
        self.valid_blocks += 1;
        self.inode_mut(ino)?.blocks += 1;
        let owner = Owner { nid, version: self.nat[&nid].version, offset: at as u16 };
        adopted.segments.extend(self.take_block(addr, owner, log)?);
        adopted.owners.insert(addr, (ino, index));
        Ok(())
    }

    /// Brings the summary of a segment into memory in which a block is adopted, so that nothing stops afterwards.
    fn load_summary(&self, segment: SegNo) -> Step<()> {
        let is_open = self.logs.iter().any(|open| open.cursor.segment == segment);
        if !is_open && self.sit[segment.0 as usize].valid > 0 {
            self.space.summary(segment)?;
        }
        Ok(())
    }
}
