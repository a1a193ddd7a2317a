//! Roll-forward: what fsync wrote on top of the last checkpoint becomes part of the volume again.
//!
//! Place in the data flow: [`mount`](super::F2fs::mount) runs it before the volume is visible to any other code. It is a table of steps
//! ([`F2fs::recover`]), the last of which is a checkpoint.
//!
//! Invariants:
//! 1. Until that checkpoint is complete, no block of the chain and none that it refers to is written. So a cut in the middle
//!    leaves everything to the next mount, which does the same again.
//! 2. Nodes are taken by their contents and not by their places: they are changed in memory like those of any operation.
//! 3. The nodes that this checkpoint writes belong to no chain ([`Epoch::NONE`]). They go to where the chain broke off, and what
//!    was behind the break may still be there: nodes with the mark of an fsync that was never acknowledged. With the stamp of the
//!    old checkpoint they would close the gap, and if the power goes before the new checkpoint is complete, the next mount
//!    would take the far side for synced.
//! 4. An image can be hostile: a chain ends ([`chain`](super::super::chain)), an inode, a name or an address that contradicts
//!    the volume is an error, and what is not found is not invented.

use super::super::appended::written_in;
use super::super::chain::{Link, Synced, synced};
use super::super::layout::checkpoint::Epoch;
use super::super::layout::dentry::Entry;
use super::super::layout::node::{self, Footer, Inode, Kind, NODE_WORDS, advise, inline};
use super::super::layout::summary::Owner;
use super::super::layout::{Addr, Nid, SegNo, xattr};
use super::options::PlantedBug;
use super::recovered::Recovered;
use super::space::Discarded;
use super::state::State;
use super::stop::Step;
use super::{Error, F2fs, Result};
use crate::engine::Nodes as _;
use crate::port::{BLOCK_BYTES, BlockBytes};
use crate::vfs::{Errno, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl F2fs {
    /// Recovers synced files and frees orphans. Writes nothing to a volume that was unmounted and has neither.
    pub(super) async fn recover(&self, written: Option<&[u32]>) -> Result<()> {
        let chain = self.volume.chain(self.options.planted == Some(PlantedBug::StaleGeneration)).await?;
        let orphans: Vec<Nid> = self.state.borrow().orphans.iter().copied().collect();
        for &ino in &orphans {
            self.step(|state| state.destroy(ino), format_args!("orphan {ino} cannot be freed")).await?;
        }
        let mut plan = synced(&chain);
        plan.retain(|ino, synced| synced.named.is_some() || self.state.borrow().is_there(*ino));
        self.keep_chain(&chain, &plan, written).await?;
        match written {
            None => self.step(State::dodge, "a log has no place to go on").await?,
            Some(_) => {
                self.state.borrow_mut().keep_numbers(&chain)?;
                self.discard_stale().await?;
            }
        }
        let mut new = BTreeSet::new();
        for (&ino, synced) in &plan {
            if self.adopt_inode(ino, synced, &chain).await? {
                new.insert(ino);
            }
        }
        // Segments whose summaries changed.
        let mut adopted = BTreeSet::new();
        for (&ino, synced) in &plan {
            self.adopt_nodes(ino, synced, &chain, &mut adopted).await?;
        }
        let mut named: Vec<usize> =
            plan.iter().filter(|(ino, _)| new.contains(ino)).filter_map(|(_, synced)| synced.named).collect();
        named.sort_unstable();
        for at in named {
            self.adopt_name(&chain[at]).await?;
        }
        match written {
            None => {
                for segment in adopted {
                    self.state.borrow_mut().store_summary(segment);
                }
            }
            Some(written) => self.go_on_behind(written, &adopted).await?,
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
            {
                let mut state = self.state.borrow_mut();
                // The stamps of nodes on the disk must not be in use any more; see `fsync`.
                state.changed = true;
                state.epoch = Epoch::NONE;
            }
            let written = self.checkpoint().await;
            written.map_err(|errno| {
                Error::Corrupt(format!("recovery cannot write its checkpoint: {errno:?}"))
            })?;
        }
        Ok(())
    }

    /// Discards append segments in which something is written that neither the checkpoint nor the chain needs: a power cut has undone their
    /// discards. Before the next checkpoint no log could go on there, and all other segments may hold the chain.
    async fn discard_stale(&self) -> Result<()> {
        let sections: BTreeSet<u32> = self.state.borrow().freed_sections(&[]).into_iter().collect();
        if sections.is_empty() {
            return Ok(());
        }
        // The disk may have accepted what was found and lose it yet: then the checkpoint before has to be whole.
        self.port.flush().completed().await?;
        let discarded = self.discard_all(&sections, std::iter::empty()).await;
        discarded.map_err(|errno| Error::Corrupt(format!("recovery cannot discard a segment: {errno:?}")))?;
        self.state.borrow_mut().forget(Vec::new(), &Discarded { sections, ..Discarded::default() });
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

    /// Reads the inode in a block of the chain.
    async fn inode_of_link(&self, link: &Link) -> Result<Inode> {
        let superblock = self.volume.superblock();
        let block = self.block_of(link).await?;
        let inode = Inode::decode(block, superblock.features, superblock.inode_checksum_seed())?;
        let bytes_max = match inode.has_inline(inline::DATA) {
            true => inode.inline_bytes().len() as u64,
            false => node::blocks_max(inode.address_count()) * BLOCK_BYTES as u64,
        };
        let (nid, kind, size) = (inode.nid, inode.kind(), inode.size);
        if kind != Kind::Regular || size > bytes_max || nid != link.footer.ino {
            return Err(Error::Corrupt(format!(
                "inode {nid}, synced at {} as {}, is {kind:?} of {size} bytes",
                link.addr, link.footer.ino
            )));
        }
        Ok(inode)
    }

    /// Keeps the blocks of the chain, and those to which it refers, from being allocated. Errors: one that was never written, where
    /// the write pointers of append segments say so.
    async fn keep_chain(
        &self,
        chain: &[Link],
        plan: &BTreeMap<Nid, Synced>,
        written: Option<&[u32]>,
    ) -> Result<()> {
        let geometry = *self.volume.geometry();
        let is_written = |addr: Addr| match (written, geometry.place_of(addr)) {
            (Some(written), Some((segment, offset))) => offset < written_in(&geometry, written, segment),
            _ => true,
        };
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
            if let Some(&addr) = addresses.iter().find(|addr| !is_written(**addr)) {
                let (node, ino) = (chain[at].addr, chain[at].footer.ino);
                return Err(Error::Corrupt(format!(
                    "the node synced at {node} gives inode {ino} block {addr}, which was never written"
                )));
            }
            let mut state = self.state.borrow_mut();
            addresses.into_iter().for_each(|addr| state.keep_block(addr));
        }
        Ok(())
    }

    /// Creates an inode that the checkpoint lacks; returns whether it did.
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
        state.inodes.insert(ino, Box::new(inode));
        Ok(true)
    }

    /// Applies the synced nodes of an inode.
    async fn adopt_nodes(
        &self,
        ino: Nid,
        synced: &Synced,
        chain: &[Link],
        adopted: &mut BTreeSet<SegNo>,
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
                    end = if addr.is_place() { end.max(index + 1) } else { end };
                }
            }
        }
        self.step(|state| state.xattrs(ino), format_args!("attributes of inode {ino}")).await?;
        let inode = self.state.borrow().inodes[&ino].clone();
        if inode.advise & advise::KEEPS_SIZE != 0 {
            return Ok(());
        }
        let pages = inode.size.div_ceil(BLOCK_BYTES as u64);
        match has_inode {
            // Of a truncation the nodes say only the size, so blocks beyond the end are freed.
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

    /// Creates the name of an inode that the checkpoint lacks. A file that had the name loses it.
    async fn adopt_name(&self, link: &Link) -> Result<()> {
        let inode = self.inode_of_link(link).await?;
        let (ino, dir, name) = (inode.nid, inode.parent, inode.name.clone());
        let what = format!("inode {ino}, \"{}\" in directory {dir}", name.escape_ascii());
        if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
            return Err(Error::Corrupt(format!("{what}, was synced, and its name is none")));
        }
        let now = Timestamp { seconds: inode.ctime.seconds, nanos: inode.ctime.nanos.min(999_999_999) };
        let clock = self.state.borrow().space.clock;
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
            state.make_room(dir, &name)?;
            let room = state.room(dir, &name)?;
            state.insert(dir, room, &Entry::new(&name, ino, Kind::Regular))?;
            state.changed_at(dir, now)
        };
        self.step(enter, &what).await?;
        // The time of the file is not that of the mount, from which on the volume's clock goes.
        self.state.borrow_mut().space.clock = clock;
        Ok(())
    }
}

impl State {
    /// Whether a node has this number.
    fn is_there(&self, nid: Nid) -> bool {
        self.nat.get(&nid).is_some_and(|entry| entry.addr != Addr::NULL)
    }

    /// Applies the fields of a synced inode, and its contents if they are inline.
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

    /// Drops inline contents; blocks follow.
    fn adopt_plain(&mut self, ino: Nid) -> Step<()> {
        if self.inode(ino)?.has_inline(inline::DATA) {
            let inode = self.inode_mut(ino)?;
            inode.inline_bytes_mut().fill(0);
            inode.inline &= !(inline::DATA | inline::DATA_EXIST);
        }
        Ok(())
    }

    /// Frees everything below one of the five nodes of an inode.
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
        // If it was there before, it has to be read first.
        self.node(nid, ino, Footer::XATTR_OFFSET)?;
        let room = self.nodes.get_mut(&nid).expect("it was read or made");
        room[..xattr::NODE_BYTES].copy_from_slice(&block[..xattr::NODE_BYTES]);
        self.dirty.insert((ino, nid));
        Ok(())
    }

    /// Moves a block of a file to where a synced node says.
    fn adopt(&mut self, ino: Nid, index: u64, addr: Addr, adopted: &mut BTreeSet<SegNo>) -> Step<()> {
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
            // Linux moves blocks to other places in a file, or to other files (`FALLOC_FL_COLLAPSE_RANGE`). A file that has the
            // block according to the checkpoint, or to what was adopted before, loses it. A directory never does.
            let (other, at) = self.data_of(addr, self.owner_of(segment, offset)?)?.ok_or(Errno::EUCLEAN)?;
            if self.inode(other)?.kind() != Kind::Regular {
                return Err(Errno::EUCLEAN.into());
            }
            self.free_block(other, at)?;
        }
        self.free_block(ino, index)?;
        let (nid, at) = self.slot(ino, index, true)?.expect("it was created");
        self.set_address_in(ino, nid, at, addr)?;
        self.valid_blocks += 1;
        self.inode_mut(ino)?.blocks += 1;
        let owner = Owner { nid, version: self.nat[&nid].version, offset: at as u16 };
        adopted.extend(self.take_block(addr, owner, log)?);
        Ok(())
    }

    /// The owner of a valid block according to the summary of its segment, after [`Self::load_summary`].
    fn owner_of(&self, segment: SegNo, offset: u32) -> Step<Owner> {
        let open = self.logs.iter().find(|open| open.cursor.segment == segment);
        let summary = match open {
            Some(open) => &open.summary,
            None => self.space.summary(segment)?,
        };
        Ok(summary.owners[offset as usize])
    }

    /// Loads the summary of a segment in which a block is adopted, so that nothing stops the operation afterwards.
    fn load_summary(&self, segment: SegNo) -> Step<()> {
        let is_open = self.logs.iter().any(|open| open.cursor.segment == segment);
        if !is_open && self.sit[segment.0 as usize].valid > 0 {
            self.space.summary(segment)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Log;
    use super::super::super::{Options, Volume, check, mkfs};
    use super::*;
    use crate::port::{Block, BlockPort, Image, Write, block_on, payload_of};
    use crate::vfs::{DirtyPage, Fs, Ino, Kind as FsKind, NewAcls, NewNode, SyncKind, WriteCause};
    use flashweir_core::Payload;
    use std::rc::Rc;

    const PAGE: u64 = BLOCK_BYTES as u64;

    fn run<T>(what: impl Future<Output = std::result::Result<T, Errno>>) -> T {
        block_on(what).unwrap()
    }

    fn mounted(image: &Rc<Image>) -> Result<F2fs> {
        block_on(F2fs::mount(Rc::clone(image) as _))
    }

    /// Creates a file of `pages` pages, each filled with its number.
    fn file(fs: &F2fs, name: &[u8], pages: u64) -> Nid {
        let now = Timestamp { seconds: 1_700_000_000, nanos: 0 };
        let acls = NewAcls::default();
        let new = NewNode { kind: FsKind::File, mode: 0o600, uid: 0, gid: 0, now, acls };
        let ino = run(fs.create(fs.root(), name, &new)).ino;
        run(fs.hold(ino));
        run(fs.reserve(ino, (0, pages * PAGE)));
        fs.wrote(ino, pages * PAGE, now);
        let page = |index| DirtyPage {
            index,
            payload: Payload::Bytes(vec![(index % 255) as u8 + 1; BLOCK_BYTES].into()),
        };
        let pages: Vec<DirtyPage> = (0..pages).map(page).collect();
        run(fs.write_pages(ino, &pages, WriteCause::Background));
        Nid(ino.0 as u32)
    }

    /// The first byte of each page.
    fn bytes(fs: &F2fs, name: &[u8]) -> Vec<u8> {
        let attr = run(fs.lookup(fs.root(), name));
        let mut pages = vec![Payload::Zero; attr.size.div_ceil(PAGE) as usize];
        run(fs.read_pages(attr.ino, 0, &mut pages));
        pages.iter().map(|page| crate::port::bytes_of(page)[0]).collect()
    }

    fn good(image: &Rc<Image>) {
        assert_eq!(block_on(check(Rc::clone(image) as _)).unwrap().problems, []);
    }

    /// Moves a block as Linux does for `FALLOC_FL_COLLAPSE_RANGE`: it becomes the block of another page, of the same or another
    /// file.
    fn move_page(fs: &F2fs, from: (Nid, u64), to: (Nid, u64)) {
        let addr = run(fs.run(|state| state.address(from.0, from.1)));
        run(fs.run(|state| {
            let (nid, at) = state.slot(from.0, from.1, false)?.expect("it has a node");
            state.set_address_in(from.0, nid, at, Addr::NULL)?;
            let (nid, at) = state.slot(to.0, to.1, true)?.expect("it was made");
            let old = state.address_in(to.0, nid, at)?;
            state.release_block(old);
            state.set_address_in(to.0, nid, at, addr)
        }));
    }

    #[test]
    fn regression_blocks_that_moved_within_a_file_are_recovered() {
        // The second file exceeds the addresses of the inode and uses its first node.
        for pages in [20, 900_u64] {
            let image = Rc::new(Image::in_memory(64 << 8));
            block_on(mkfs(&*image, &Options::new(64 << 8))).unwrap();
            let fs = mounted(&image).unwrap();
            let ino = file(&fs, b"collapsed", pages);
            run(fs.sync());
            for index in 5..pages - 3 {
                move_page(&fs, (ino, index + 3), (ino, index));
            }
            run(fs.run(|state| {
                state.inode_mut(ino)?.blocks -= 3;
                state.resize(ino, (pages - 3) * PAGE)
            }));
            run(fs.fsync(Ino(ino.0.into()), SyncKind::All));
            assert_eq!(fs.metrics().fsyncs_by_nodes, 1);
            drop(fs);
            let fs = mounted(&image).unwrap();
            let expected: Vec<u8> = (0..5).chain(8..pages).map(|index| (index % 255) as u8 + 1).collect();
            assert_eq!(bytes(&fs, b"collapsed"), expected);
            run(fs.unmount());
            good(&image);
        }
    }

    #[test]
    fn a_block_that_moved_to_a_synced_file_leaves_a_hole_in_the_other() {
        let image = Rc::new(Image::in_memory(64 << 8));
        block_on(mkfs(&*image, &Options::new(64 << 8))).unwrap();
        let fs = mounted(&image).unwrap();
        let (from, to) = (file(&fs, b"from", 4), file(&fs, b"to", 2));
        run(fs.sync());
        move_page(&fs, (from, 2), (to, 0));
        run(fs.fsync(Ino(to.0.into()), SyncKind::All));
        drop(fs);
        let fs = mounted(&image).unwrap();
        assert_eq!((bytes(&fs, b"to"), bytes(&fs, b"from")), (vec![3, 2], vec![1, 2, 0, 4]));
        run(fs.unmount());
        good(&image);
    }

    /// A volume after a power cut, with files `kept` of 4 pages and `other` of 2, a directory, and places for a chain.
    struct Cut {
        image: Rc<Image>,
        volume: Volume,
        kept: Inode,
        other: Inode,
        dir: Nid,
        /// Where the chain begins.
        head: Addr,
    }

    /// A node of a chain; the address of its successor is set when it is written.
    #[derive(Clone)]
    enum Hostile {
        Inode(Inode),
        Node(Box<BlockBytes>),
    }

    impl Cut {
        fn new() -> Self {
            let image = Rc::new(Image::in_memory(64 << 8));
            let mut options = Options::new(64 << 8);
            options.add_feature("inode_checksum").unwrap();
            block_on(mkfs(&*image, &options)).unwrap();
            let fs = mounted(&image).unwrap();
            file(&fs, b"kept", 4);
            file(&fs, b"other", 2);
            let now = Timestamp { seconds: 1, nanos: 0 };
            let acls = NewAcls::default();
            let new = NewNode { kind: FsKind::Directory, mode: 0o700, uid: 0, gid: 0, now, acls };
            let dir = Nid(run(fs.create(fs.root(), b"dir", &new)).ino.0 as u32);
            run(fs.sync());
            drop(fs);
            let volume = block_on(Volume::mount(Rc::clone(&image) as _)).unwrap();
            let found = |name: &[u8]| block_on(volume.find(name)).unwrap().unwrap();
            let (kept, other) = (found(b"kept"), found(b"other"));
            let cursor = volume.checkpoint().cursor(Log::WarmNode);
            let head = volume.geometry().main_block(cursor.segment, cursor.offset.into());
            Self { image, volume, kept, other, dir, head }
        }

        /// The footer of a node that fsync has written last.
        fn footer(&self, nid: Nid, ino: Nid, offset: u32) -> Footer {
            let checkpoint = self.volume.epoch().stamp;
            Footer {
                nid,
                ino,
                offset,
                is_fsynced: true,
                has_dentry: offset == 0,
                checkpoint,
                ..Footer::default()
            }
        }

        fn inode(&self, inode: &Inode, change: impl Fn(&mut Inode)) -> Hostile {
            let mut inode = inode.clone();
            inode.set_footer(self.footer(inode.nid, inode.nid, 0));
            change(&mut inode);
            Hostile::Inode(inode)
        }

        /// An inode that no checkpoint has.
        fn new_inode(&self, name: &[u8]) -> Inode {
            let mut inode = self.kept.clone().emptied();
            (inode.nid, inode.name) = (Nid(50), name.to_vec());
            inode
        }

        /// A node of addresses; the offset may make it one of another kind.
        fn node(&self, ino: Nid, offset: u32, words: &[Addr]) -> Hostile {
            let mut block = [0; BLOCK_BYTES];
            words.iter().enumerate().for_each(|(at, addr)| node::set_word(&mut block, at as u32, addr.0));
            self.footer(Nid(90), ino, offset).encode(&mut block);
            Hostile::Node(Box::new(block))
        }

        fn at(&self, at: usize) -> Addr {
            Addr(self.head.0 + at as u32)
        }

        /// Writes a chain whose last node names `next`, and mounts.
        fn mount(&self, chain: &[Hostile], next: Addr) -> std::result::Result<F2fs, String> {
            self.write(chain, next);
            mounted(&self.image).map_err(|error| error.to_string())
        }

        fn write(&self, chain: &[Hostile], next: Addr) {
            for (at, node) in chain.iter().enumerate() {
                let next = if at + 1 == chain.len() { next } else { self.at(at + 1) };
                let block = match node.clone() {
                    Hostile::Inode(mut inode) => {
                        let superblock = self.volume.superblock();
                        inode.set_footer(Footer { next, ..inode.footer() });
                        inode.encode(superblock.features, superblock.inode_checksum_seed())
                    }
                    Hostile::Node(mut block) => {
                        Footer { next, ..Footer::decode(&block[..]) }.encode(&mut block[..]);
                        *block
                    }
                };
                let write = Write::new(Block(self.at(at).0.into()), vec![payload_of(&block)]);
                block_on(self.image.write(write).completed()).unwrap();
            }
        }

        /// Checks that the volume mounts and is good, and that its files are as in the checkpoint.
        fn takes(&self, chain: &[Hostile], next: Addr, nodes: u64) -> F2fs {
            let fs = self.mount(chain, next).unwrap();
            assert_eq!(fs.recovered().nodes, nodes);
            assert_eq!((bytes(&fs, b"kept"), bytes(&fs, b"other")), (vec![1, 2, 3, 4], vec![1, 2]));
            run(fs.sync());
            good(&self.image);
            fs
        }

        /// Checks that the volume does not mount and is not changed: the checkpoint is as good as before.
        fn refuses(&self, chain: &[Hostile], why: &str) {
            let error = self.mount(chain, Addr(0)).map(drop).expect_err(why);
            assert!(error.contains(why), "expected {why:?}: {error}");
            assert!(mounted(&self.image).is_err());
            good(&self.image);
        }
    }

    #[test]
    fn a_chain_ends_where_it_leads_nowhere_new() {
        let same = |cut: &Cut| cut.inode(&cut.kept, |_| ());
        // The last node names itself, the first node, and a block where no node can be.
        let cut = Cut::new();
        cut.takes(&[same(&cut)], cut.at(0), 1);
        let cut = Cut::new();
        cut.takes(&[same(&cut), same(&cut), same(&cut)], cut.at(1), 3);
        for next in [0, 1, 0x200, u32::MAX, u32::MAX - 1] {
            let cut = Cut::new();
            cut.takes(&[same(&cut)], Addr(next), 1);
        }
        let cut = Cut::new();
        let end = cut.volume.geometry().main_segments * 512 + cut.volume.geometry().main_block(SegNo(0), 0).0;
        cut.takes(&[same(&cut)], Addr(end), 1);
    }

    #[test]
    fn regression_recovery_does_not_close_the_gap_of_a_broken_chain() {
        // What one fsync wrote was acknowledged; of the next one, which wrote attributes and the inode, only the inode is there.
        let cut = Cut::new();
        let synced = cut.inode(&cut.kept, |inode| inode.size = 4 * PAGE - 1);
        let lost = cut.node(cut.kept.nid, Footer::XATTR_OFFSET, &[]);
        let beyond = cut.inode(&cut.kept, |inode| {
            (inode.size, inode.xattr_nid) = (3 * PAGE, Nid(90));
        });
        cut.write(&[synced, lost, beyond], Addr(0));
        let zeros = Write::new(Block(cut.at(1).0.into()), vec![Payload::Zero]);
        block_on(cut.image.write(zeros).completed()).unwrap();
        let before = cut.image.to_bytes().unwrap();
        let size = |fs: &F2fs| run(fs.lookup(fs.root(), b"kept")).size;
        let fs = mounted(&cut.image).unwrap();
        assert_eq!((fs.recovered().nodes, size(&fs)), (1, 4 * PAGE - 1));
        drop(fs);
        // Recovery wrote a node into the gap; the power fails before its checkpoint is complete.
        let mut after = cut.image.to_bytes().unwrap();
        let gap = cut.at(1).0 as usize * BLOCK_BYTES;
        assert_ne!(after[gap..][..BLOCK_BYTES], [0; BLOCK_BYTES]);
        let packs = [0, 2].map(|pack| cut.volume.geometry().checkpoint_pack(pack).0 as usize * BLOCK_BYTES);
        after[packs[0]..packs[1]].copy_from_slice(&before[packs[0]..packs[1]]);
        let image = Rc::new(Image::from_bytes(&after));
        let fs = mounted(&image).unwrap();
        assert_eq!((fs.recovered().nodes, size(&fs)), (1, 4 * PAGE - 1));
        run(fs.sync());
        good(&image);
    }

    #[test]
    fn a_chain_ends_before_what_is_not_of_this_checkpoint() {
        for stamp in [0, 1, 1 << 32, u64::MAX] {
            let cut = Cut::new();
            let old = cut.inode(&cut.other, |inode| {
                let footer = inode.footer();
                inode.set_footer(Footer { checkpoint: footer.checkpoint ^ stamp, ..footer });
                inode.size = 77;
            });
            if stamp == 0 {
                assert_eq!(run(cut.mount(&[old], Addr(0)).unwrap().lookup(Ino(3), b"other")).size, 77);
                continue;
            }
            cut.takes(std::slice::from_ref(&old), Addr(0), 0);
            let cut = Cut::new();
            cut.takes(&[cut.inode(&cut.kept, |_| ()), old], Addr(0), 1);
        }
    }

    #[test]
    fn inodes_of_a_chain_that_contradict_themselves_are_refused() {
        type Change = fn(&Cut, &mut Inode);
        let wrong: [(Change, &str); 8] = [
            (|cut, inode| inode.set_footer(cut.footer(Nid(60), inode.nid, 0)), "synced at"),
            (|cut, inode| inode.set_footer(cut.footer(inode.nid, cut.other.nid, 0)), "synced at"),
            (|cut, inode| inode.set_footer(cut.footer(cut.dir, cut.dir, 0)), "was synced as a file"),
            (|cut, inode| inode.set_footer(cut.footer(Nid::ROOT, Nid::ROOT, 0)), "was synced as a file"),
            (
                |cut, inode| {
                    let end = cut.volume.geometry().nid_end();
                    inode.set_footer(cut.footer(end, end, 0));
                },
                "no number",
            ),
            (|_, inode| inode.mode = 0o040_700, "Directory"),
            (|_, inode| inode.size = u64::MAX, "bytes"),
            (|_, inode| (inode.inline, inode.size) = (inode.inline | inline::DATA, 4000), "of 4000 bytes"),
        ];
        for (change, why) in wrong {
            let cut = Cut::new();
            cut.refuses(&[cut.inode(&cut.kept, |inode| change(&cut, inode))], why);
        }
        // A wrong checksum.
        let cut = Cut::new();
        let mut block =
            block_on(cut.volume.block(block_on(cut.volume.nat_entry(cut.kept.nid)).unwrap().addr))
                .unwrap()
                .to_vec();
        cut.footer(cut.kept.nid, cut.kept.nid, 0).encode(&mut block);
        block[16] ^= 1;
        cut.refuses(&[Hostile::Node(Box::new(block.try_into().unwrap()))], "the checksum of inode");
    }

    #[test]
    fn names_of_a_chain_that_lead_nowhere_are_refused() {
        let cut = Cut::new();
        let fs = cut.takes(&[cut.inode(&cut.new_inode(b"new"), |_| ())], Addr(0), 1);
        assert_eq!((fs.recovered().new_files, bytes(&fs, b"new")), (1, vec![]));
        for (name, parent) in [
            (&b".."[..], Nid::ROOT),
            (b"", Nid::ROOT),
            (b"a/b", Nid::ROOT),
            (b"new", Nid(0)),
            (b"new", Nid(50)),
            (b"new", Nid(4711)),
            (b"new", Nid(u32::MAX)),
            (b"new", cut.kept.nid),
        ] {
            let cut = Cut::new();
            cut.refuses(&[cut.inode(&cut.new_inode(name), |inode| inode.parent = parent)], "\" in directory");
        }
    }

    #[test]
    fn an_inode_may_follow_its_nodes_and_needs_one() {
        // A file whose inode is not in the chain was not synced, nor was one whose inode has no mark yet.
        let cut = Cut::new();
        cut.takes(&[cut.node(Nid(50), 1, &[Addr::NEW])], Addr(0), 1);
        let cut = Cut::new();
        let inode = cut.inode(&cut.new_inode(b"new"), |inode| {
            inode.size = 900 * PAGE;
            inode.set_node(0, Nid(90));
        });
        let fs = cut.takes(&[cut.node(Nid(50), 1, &[Addr::NEW]), inode], Addr(0), 2);
        let attr = run(fs.lookup(fs.root(), b"new"));
        // A reserved block and the node that has its address.
        assert_eq!((attr.size, attr.blocks_512), (900 * PAGE, 16));
        for offset in [3, 1022, 2041, Footer::XATTR_OFFSET - 1, 1 << 28] {
            let cut = Cut::new();
            cut.refuses(&[cut.node(cut.kept.nid, offset, &[Addr::NEW])], &format!("node {offset} of inode"));
        }
    }

    #[test]
    fn addresses_of_a_chain_that_are_no_free_blocks_of_data_are_refused() {
        let cut = Cut::new();
        let geometry = *cut.volume.geometry();
        let first = geometry.main_block(SegNo(0), 0).0;
        let end = first + geometry.main_segments * 512;
        let dir = block_on(cut.volume.root()).unwrap().address(0);
        let node = block_on(cut.volume.nat_entry(cut.kept.nid)).unwrap().addr;
        for addr in [1, first - 1, end, u32::MAX - 1, dir.0, node.0, cut.head.0] {
            let cut = Cut::new();
            let inode = cut.inode(&cut.kept, |inode| inode.set_address(1, Addr(addr)));
            cut.refuses(&[inode], "recovery: node 0 of inode");
            let cut = Cut::new();
            cut.refuses(&[cut.node(cut.kept.nid, 1, &[Addr(addr)])], "recovery: node 1 of inode");
        }
    }

    #[test]
    fn the_last_of_those_who_claim_a_block_has_it() {
        let cut = Cut::new();
        let twice = cut.inode(&cut.kept, |inode| inode.set_address(3, inode.address(0)));
        let fs = cut.mount(&[twice], Addr(0)).unwrap();
        assert_eq!(bytes(&fs, b"kept"), [0, 2, 3, 1]);
        run(fs.sync());
        good(&cut.image);
        let cut = Cut::new();
        let theirs = cut.inode(&cut.other, |inode| inode.set_address(1, cut.kept.address(2)));
        let fs = cut.mount(&[cut.inode(&cut.kept, |_| ()), theirs], Addr(0)).unwrap();
        assert_eq!((bytes(&fs, b"kept"), bytes(&fs, b"other")), (vec![1, 2, 0, 4], vec![1, 3]));
        run(fs.sync());
        good(&cut.image);
    }
}
