//! The operations that the vfs calls.

use super::super::layout::dentry::Entry;
use super::super::layout::node::{self, INODE_WORDS, Inode, Kind as NodeKind, blocks_max, inline};
use super::super::layout::xattr::{self, PREFIXES};
use super::super::layout::{Addr, Geometry, Nid};
use super::moving::Moving;
use super::names::Place;
use super::options::PlantedBug;
use super::state::State;
use super::stop::{Step, Stop};
use super::tags::in_place_tag;
use super::{F2fs, Scope};
use crate::boxed::Boxed;
use crate::engine::errno;
use crate::engine::{
    Engine, Fields, Listed, Nodes, device_number, node_kind, read_runs, stamp, time, vfs_kind,
};
use crate::order::{answer, answers, copied};
use crate::port::{BLOCK_BYTES, Block, Selection, Share, Ticket, Write, bytes_of};
use crate::set::{self, Homes, Page, PagePair, Scratch};
use crate::vfs::{
    Attr, Barrier, DirtyPage, Errno, Ino, Kind, Limits, NewNode, PageRun, RenameMode, Result, SetPart,
    StatFs, SyncKind, Ticket as VfsTicket, Timestamp, WriteCause,
};
use crate::xattrs::{self, Prefixes, Xattr};
use flashweir_core::command::Tag;
use flashweir_core::{Contents, Duration, Order, Payload};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Most pages of one write by fsync that are written with FUA; a larger one is collected in the disk's buffer, and flushed as a whole.
const DURABLE_PAGES_MAX: usize = 32;
/// Most names of one inode.
pub(super) const LINKS_MAX: u32 = u32::MAX >> 1;

impl State {
    pub(super) fn changed_at(&mut self, ino: Nid, now: Timestamp) -> Step<()> {
        self.space.clock.tick(now);
        let inode = self.inode_mut(ino)?;
        (inode.mtime, inode.ctime) = (time(now), time(now));
        Ok(())
    }

    /// Creates an inode, whose entry and contents come later. There must be room for it and its attributes.
    fn create_inode(&mut self, dir: Nid, name: &[u8], new: &NewNode, xattrs: &[Xattr]) -> Step<Nid> {
        let kind = node_kind(new.kind);
        let (inline_data, inline_dentry) = (self.inline_data, self.inline_dentry);
        let ino = self.new_inode(kind.mode_bits() | new.mode & 0o7777)?;
        let advise = if kind == NodeKind::Regular { self.advice_for(name) } else { 0 };
        let generation = self.nat[&ino].version;
        let inode = self.inode_mut(ino)?;
        (inode.uid, inode.gid, inode.advise) = (new.uid, new.gid, advise);
        (inode.atime, inode.mtime, inode.ctime) = (time(new.now), time(new.now), time(new.now));
        inode.crtime = inode.crtime.map(|_| time(new.now));
        inode.generation = u32::from(generation);
        (inode.parent, inode.name) = (dir, name.to_vec());
        match new.kind {
            Kind::CharDevice(device) | Kind::BlockDevice(device) => inode.set_address(1, Addr(device)),
            Kind::File if inline_data => inode.inline |= inline::DATA,
            Kind::Directory => {
                (inode.links, inode.depth, inode.size) = (2, 1, BLOCK_BYTES as u64);
                if inline_dentry {
                    inode.inline |= inline::DENTRY;
                    inode.size = inode.inline_bytes().len() as u64;
                }
            }
            _ => (),
        }
        if !xattrs.is_empty() {
            self.set_xattrs(ino, xattrs)?;
        }
        Ok(ino)
    }

    /// Takes one name off an inode; returns whether the inode has to be freed now.
    fn drop_name(&mut self, ino: Nid, now: Timestamp) -> Step<bool> {
        let inode = self.inode_mut(ino)?;
        inode.ctime = time(now);
        inode.links = if inode.kind() == NodeKind::Directory { 0 } else { inode.links.saturating_sub(1) };
        if inode.links > 0 {
            return Ok(false);
        }
        self.orphans.insert(ino);
        Ok(!self.held.contains_key(&ino))
    }

    /// Refuses another inode without names beyond what a checkpoint pack can list.
    fn check_nameless(&self) -> Step<()> {
        if self.orphans.len() < self.area.nameless_max() { Ok(()) } else { Err(Errno::ENOSPC.into()) }
    }

    /// Notes that an inode has moved to another parent.
    fn moved(
        &mut self,
        ino: Nid,
        dots: Option<(Place, Entry)>,
        to: (Nid, &[u8]),
        now: Timestamp,
    ) -> Step<()> {
        if let Some((place, entry)) = dots {
            self.redirect(ino, place, &Entry { ino: to.0, ..entry })?;
        }
        let inode = self.inode_mut(ino)?;
        inode.ctime = time(now);
        (inode.parent, inode.name) = (to.0, to.1.to_vec());
        Ok(())
    }

    /// The entry `..` of a directory, which is in memory afterwards; `None` for other inodes.
    fn dots(&mut self, ino: Nid) -> Step<Option<(Place, Entry)>> {
        match self.inode(ino)?.kind() {
            NodeKind::Directory => Ok(Some(self.find(ino, b"..")?.ok_or(Errno::EUCLEAN)?)),
            _ => Ok(None),
        }
    }

    /// Reserves room for the pages of a range that have none; returns whether there were some.
    fn reserve_range(&mut self, ino: Nid, (at, end): (u64, u64)) -> Step<bool> {
        self.make_blocks(ino)?;
        let indices = at / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
        let (mut missing, mut nodes) = (0, 0);
        let words = u64::from(node::NODE_WORDS);
        for index in indices.clone() {
            if self.address(ino, index)? == Addr::NULL {
                missing += 1;
                if self.slot(ino, index, false)?.is_none() {
                    // Direct nodes, and indirect ones above them; at the two ends of the range one more of each, and the double one.
                    nodes = missing / words + missing / (words * words) + 5;
                }
                self.check_room(missing + nodes)?;
            }
        }
        if missing > 0 {
            for index in indices {
                self.reserve(ino, index)?;
            }
        }
        Ok(missing > 0)
    }
}

impl Nodes for State {
    type Number = Nid;
    type Stop = Stop;
    const ROOT: Nid = Nid::ROOT;
    const PREFIXES: &'static Prefixes = &PREFIXES;

    fn number(ino: Ino) -> Result<Nid> {
        u32::try_from(ino.0).map(Nid).map_err(|_| Errno::ESTALE)
    }

    fn ino(number: Nid) -> Ino {
        Ino(number.0.into())
    }

    fn named(&mut self, dir: Nid, name: &[u8]) -> Step<Option<Nid>> {
        Ok(self.find(dir, name)?.map(|(_, entry)| entry.ino))
    }

    fn entries(&mut self, dir: Nid, after: u64, most: usize) -> Step<Vec<Listed<Self>>> {
        let listed = self.list(dir, after, most)?.into_iter().map(|(cookie, entry)| Listed {
            cookie,
            name: entry.name.into(),
            ino: entry.ino,
            kind: entry.kind,
        });
        Ok(listed.collect())
    }

    fn kind_of(&self, _ino: Nid) -> Step<NodeKind> {
        Err(Errno::EUCLEAN.into())
    }

    fn create(&mut self, dir: Nid, name: &[u8], new: &NewNode, target: Option<&[u8]>) -> Step<Attr> {
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if new.kind.is_dir() && self.inode(dir)?.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let xattrs = xattrs_of_new(new)?;
        self.make_room(dir, name)?;
        let room = self.room(dir, name)?;
        self.check_names()?;
        let ino = self.create_inode(dir, name, new, &xattrs)?;
        let kind = node_kind(new.kind);
        if new.kind.is_dir() {
            self.inode_mut(dir)?.links += 1;
            for (name, to) in [(b".".as_slice(), ino), (b"..", dir)] {
                let room = self.room(ino, name)?;
                self.insert(ino, room, &Entry::new(name, to, NodeKind::Directory))?;
            }
        }
        if let Some(target) = target {
            self.set_link(ino, target)?;
        }
        self.insert(dir, room, &Entry::new(name, ino, kind))?;
        self.changed_at(dir, new.now)?;
        self.attr(ino)
    }

    fn create_nameless(&mut self, dir: Nid, new: &NewNode) -> Step<Attr> {
        if self.inode(dir)?.kind() != NodeKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        self.check_nameless()?;
        let xattrs = xattrs_of_new(new)?;
        self.check_names()?;
        let ino = self.create_inode(dir, b"", new, &xattrs)?;
        self.inode_mut(ino)?.links = 0;
        self.orphans.insert(ino);
        *self.held.entry(ino).or_default() += 1;
        self.space.clock.tick(new.now);
        self.attr(ino)
    }

    fn link(&mut self, ino: Nid, dir: Nid, name: &[u8], now: Timestamp) -> Step<Attr> {
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let inode = self.inode(ino)?;
        let kind = inode.kind();
        if inode.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        self.make_room(dir, name)?;
        let room = self.room(dir, name)?;
        // As in `rename`.
        if room.is_new {
            self.check_names()?;
        }
        self.insert(dir, room, &Entry::new(name, ino, kind))?;
        self.since.renamed.insert(ino);
        let inode = self.inode_mut(ino)?;
        if inode.links == 0 {
            (inode.parent, inode.name) = (dir, name.to_vec());
        }
        inode.links += 1;
        inode.ctime = time(now);
        self.orphans.remove(&ino);
        self.changed_at(dir, now)?;
        self.attr(ino)
    }

    fn unlink(&mut self, dir: Nid, name: &[u8], now: Timestamp) -> Step<Option<Nid>> {
        let (place, entry) = self.find(dir, name)?.ok_or(Errno::ENOENT)?;
        let inode = self.inode(entry.ino)?;
        let (is_directory, has_other_names) = (inode.kind() == NodeKind::Directory, inode.links > 1);
        if is_directory || !has_other_names {
            self.check_nameless()?;
        }
        if is_directory && !self.is_empty(entry.ino)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.remove(dir, place, &entry)?;
        if is_directory {
            let dir = self.inode_mut(dir)?;
            dir.links = dir.links.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        }
        if is_directory || has_other_names {
            // A new file under this name must not take the place of the old one when recovery finds it.
            self.since.reshaped.insert(dir);
        }
        self.changed_at(dir, now)?;
        let is_gone = self.drop_name(entry.ino, now)?;
        Ok(is_gone.then_some(entry.ino))
    }

    fn rename(
        &mut self,
        from: (Nid, &[u8]),
        to: (Nid, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Step<Option<Nid>> {
        if mode != RenameMode::Exchange && self.find(to.0, to.1)?.is_none() {
            self.make_room(to.0, to.1)?;
        }
        let (old_place, old) = self.find(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let target = self.find(to.0, to.1)?;
        let old_dots = self.dots(old.ino)?;
        let is_directory = old_dots.is_some();
        if mode == RenameMode::Exchange {
            let (new_place, new) = target.ok_or(Errno::ENOENT)?;
            let new_dots = self.dots(new.ino)?;
            for (dir, gains, loses) in [(to.0, &old_dots, &new_dots), (from.0, &new_dots, &old_dots)] {
                let links = self.inode(dir)?.links + u32::from(gains.is_some());
                let links = links.checked_sub(u32::from(loses.is_some())).ok_or(Errno::EUCLEAN)?;
                self.inode_mut(dir)?.links = links;
            }
            self.redirect(from.0, old_place, &Entry { name: old.name, hash: old.hash, ..new.clone() })?;
            self.redirect(to.0, new_place, &Entry { ino: old.ino, kind: old.kind, ..new.clone() })?;
            self.note_renamed(old.ino, [from.0, to.0]);
            self.note_renamed(new.ino, [from.0, to.0]);
            self.moved(old.ino, old_dots, to, now)?;
            self.moved(new.ino, new_dots, from, now)?;
            self.changed_at(from.0, now)?;
            self.changed_at(to.0, now)?;
            return Ok(None);
        }
        let mut gone = None;
        let replaces_directory = match &target {
            Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST.into()),
            Some((_, entry)) => {
                let is_directory = self.inode(entry.ino)?.kind() == NodeKind::Directory;
                if is_directory && !self.is_empty(entry.ino)? {
                    return Err(Errno::ENOTEMPTY.into());
                }
                is_directory
            }
            None => false,
        };
        if is_directory && !replaces_directory && from.0 != to.0 && self.inode(to.0)?.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let room = if target.is_none() { Some(self.room(to.0, to.1)?) } else { None };
        if target.is_some() {
            self.check_nameless()?;
        }
        let are_links_wrong = |dir: Nid, loses: bool| Ok::<_, Stop>(loses && self.inode(dir)?.links == 0);
        if are_links_wrong(from.0, is_directory)? || are_links_wrong(to.0, replaces_directory)? {
            return Err(Errno::EUCLEAN.into());
        }
        // A full volume accepts a name for which no block is needed.
        if room.as_ref().is_some_and(|room| room.is_new) {
            self.check_names()?;
        }
        // Nothing can stop the operation from here on.
        self.note_renamed(old.ino, [from.0, to.0]);
        match (target, room) {
            (Some((place, entry)), _) => {
                self.redirect(to.0, place, &Entry { ino: old.ino, kind: old.kind, ..entry.clone() })?;
                gone = self.drop_name(entry.ino, now)?.then_some(entry.ino);
            }
            (None, Some(room)) => {
                let kind = self.inode(old.ino)?.kind();
                self.insert(to.0, room, &Entry::new(to.1, old.ino, kind))?;
            }
            (None, None) => unreachable!("a name that does not exist needs room"),
        }
        // Behind the insertion, which may go to the same block: without entries it is freed.
        self.remove(from.0, old_place, &old)?;
        if is_directory {
            self.inode_mut(from.0)?.links -= 1;
            self.inode_mut(to.0)?.links += 1;
        }
        if replaces_directory {
            self.inode_mut(to.0)?.links -= 1;
        }
        self.moved(old.ino, old_dots, to, now)?;
        self.changed_at(from.0, now)?;
        self.changed_at(to.0, now)?;
        Ok(gone)
    }

    fn held(&mut self) -> &mut BTreeMap<Nid, u32> {
        &mut self.held
    }

    fn is_nameless(&self, ino: Nid) -> bool {
        self.orphans.contains(&ino)
    }

    fn attr(&self, ino: Nid) -> Step<Attr> {
        let inode = self.inode(ino)?;
        // As in Linux, contents within the inode are counted by their length.
        let is_file = inode.kind() == NodeKind::Regular;
        let is_within = is_file && inode.has_inline(inline::DATA) || inode.has_inline(inline::DENTRY);
        let within_512 = if is_within { inode.size.div_ceil(512) } else { 0 };
        Ok(Attr {
            ino: Self::ino(inode.nid),
            generation: inode.generation,
            kind: vfs_kind(inode.kind(), || device_number(inode.device())),
            mode: inode.mode & 0o7777,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            blocks_512: inode.blocks.saturating_sub(1) * 8 + within_512,
            atime: stamp(inode.atime),
            mtime: stamp(inode.mtime),
            ctime: stamp(inode.ctime),
        })
    }

    fn attributes(&mut self, ino: Nid) -> Step<Fields<'_>> {
        let Inode { mode, uid, gid, atime, mtime, ctime, .. } = self.inode_mut(ino)?;
        Ok(Fields { mode, uid, gid, atime, mtime, ctime })
    }

    fn changed(&mut self, ino: Nid, _now: Timestamp) -> Step<Fields<'_>> {
        self.attributes(ino)
    }

    fn xattrs(&self, ino: Nid) -> Step<Vec<Xattr>> {
        Self::xattrs(self, ino)
    }

    fn set_xattrs(&mut self, ino: Nid, xattrs: &[Xattr]) -> Step<()> {
        Self::set_xattrs(self, ino, xattrs)
    }
}

/// The attributes of a new inode. They fit into a node of their own.
fn xattrs_of_new(new: &NewNode) -> Step<Vec<Xattr>> {
    let xattrs = xattrs::of_new(&new.acls);
    match xattr::encode(&xattrs, xattr::NODE_BYTES) {
        Some(_) => Ok(xattrs),
        None => Err(Errno::ENOSPC.into()),
    }
}

impl F2fs {
    /// Brings the nodes that map pages of a file into memory, one after the other: an operation on all of them begins again for each that is
    /// missing.
    async fn load_nodes(&self, ino: Nid, (first, end): (u64, u64)) -> Result<()> {
        // A few nodes are found as well by the operation itself.
        if self.run(|state| Ok(state.inode(ino)?.blocks)).await? < 4 * u64::from(node::NODE_WORDS) {
            return Ok(());
        }
        let mut at = first;
        while at < end {
            at = self.run(|state| state.leaf_end(ino, at)).await?;
        }
        Ok(())
    }

    /// Reads pages of a file whose contents are not inline.
    async fn read_blocks(&self, ino: Nid, first: u64, pages: &mut [Payload]) -> Result<()> {
        let mut runs: Vec<(usize, Addr, u32)> = Vec::new();
        for (at, page) in pages.iter_mut().enumerate() {
            let index = first + at as u64;
            *page = Payload::Zero;
            let cached =
                self.state.borrow().blocks.get(&(ino, index)).map(|block| crate::port::payload_of(block));
            if let Some(cached) = cached {
                *page = cached;
                continue;
            }
            let (addr, moving) = loop {
                let addr = self.run(|state| state.address(ino, index)).await?;
                match self.moving.borrow().get(&addr).cloned() {
                    Some(Moving::Disk) => {}
                    moving => break (addr, moving),
                }
                self.arrived(addr).await;
            };
            if addr == Addr::NULL || addr == Addr::NEW {
                continue;
            }
            self.state.borrow().geometry.place_of(addr).ok_or(Errno::EUCLEAN)?;
            if let Some(Moving::Content(content)) = moving {
                *page = content;
                continue;
            }
            match runs.last_mut() {
                Some((start, from, count)) if *start + *count as usize == at && from.0 + *count == addr.0 => {
                    *count += 1
                }
                _ => runs.push((at, addr, 1)),
            }
        }
        let runs = runs.into_iter().map(|(at, addr, count)| (at, Geometry::block(addr), count));
        read_runs(&*self.port, runs, pages).await
    }

    /// Whether pages of a file that have blocks are written in place.
    pub(super) async fn is_in_place(&self, ino: Nid, pages: usize, cause: WriteCause) -> Result<bool> {
        if self.appends() {
            return Ok(false);
        }
        let rules = &self.options.in_place;
        let is_cause = match cause {
            WriteCause::Background => rules.background,
            WriteCause::Sync => rules.fsync && pages as u64 <= rules.min_fsync_blocks,
            WriteCause::DataSync => rules.fsync,
            WriteCause::Direct => rules.direct,
        };
        if rules.force || is_cause {
            return Ok(true);
        }
        let is_cold =
            rules.cold && self.run(|state| Ok(state.inode(ino)?.advise & node::advise::COLD != 0)).await?;
        let state = self.state.borrow();
        let is_full = (rules.util || rules.ssr_util) && state.utilization() > rules.min_util;
        let is_short = (rules.ssr || rules.ssr_util) && state.needs_holes();
        Ok(is_cold || rules.util && is_full || rules.ssr && is_short || rules.ssr_util && is_full && is_short)
    }

    /// When data of so many pages become durable. On append segments FUA covers the data in front of it in the segment and nothing else,
    /// while a flush also waits for what other tasks have written since.
    fn durable_by(&self, pages: usize, cause: WriteCause) -> Durable {
        let is_sync = matches!(cause, WriteCause::Sync | WriteCause::DataSync);
        let is_forgotten = self.options.planted == Some(PlantedBug::NoDataFlush);
        match self.appends() && is_sync && pages <= DURABLE_PAGES_MAX && !is_forgotten {
            true => Durable::Itself,
            false => Durable::Later,
        }
    }

    fn is_same_segment(&self, one: Block, other: Block) -> bool {
        let blocks = u64::from(self.segment_blocks.max(1));
        one.0 / blocks == other.0 / blocks
    }

    /// The address of a page's block, if it may be overwritten: it is valid, and cleaning is not moving it.
    fn place_there(&self, state: &mut State, ino: Nid, index: u64) -> Step<Option<Addr>> {
        let addr = state.address(ino, index)?;
        Ok(Some(addr).filter(|addr| state.may_write_over(*addr) && !self.moving.borrow().contains_key(addr)))
    }

    /// If only the first page of a file is written and may be in its inode, writes it there.
    pub(super) async fn write_inline(&self, ino: Nid, pages: &[DirtyPage]) -> Result<bool> {
        let [page] = pages else { return Ok(false) };
        if page.index > 0 || self.failed.get() {
            return Ok(false);
        }
        self.balance().await?;
        let is_inline = self.run(|state| state.write_inline(ino, &page.payload)).await?;
        if is_inline {
            // The data are in a node now, so fdatabarrier has to order that node as if the page had moved.
            self.note_moved_page(ino);
        }
        Ok(is_inline)
    }

    /// Gives pages their places, as far as there is room, and submits them; the last page of all has the order `last`. The caller has
    /// to end the write.
    pub(super) async fn place_some(
        &self,
        ino: Nid,
        pages: &[DirtyPage],
        in_place: bool,
        last: Order,
        by: Durable,
    ) -> Placed {
        let number = self.begin_write(ino);
        if by == Durable::Later {
            self.note_wet(ino);
        }
        let (new_tag, period) = {
            let state = self.state.borrow();
            (state.data_tag(), state.period())
        };
        let (mut count, mut result) = (0, Ok(()));
        let mut tickets = Vec::new();
        let mut write: Option<Write> = None;
        for page in pages {
            if self.needs_room() && count > 0 {
                break;
            }
            let step = self
                .run(|state| {
                    let there = if in_place { self.place_there(state, ino, page.index)? } else { None };
                    // Any checkpoint can show more of the page in which the file ends, by a new length.
                    let is_left = there.is_some() && !state.ends_within(ino, page.index)?;
                    let second_tag = if is_left { in_place_tag(period) } else { new_tag };
                    let addr = match there {
                        Some(addr) => addr,
                        None => {
                            let log = state.data_log(ino)?;
                            let had_place = self.is_dual() && state.address(ino, page.index)?.is_place();
                            let addr = state.place(ino, page.index, log)?;
                            if had_place {
                                self.note_moved_page(ino);
                            }
                            addr
                        }
                    };
                    state.metrics.in_place_pages += u64::from(there.is_some());
                    state.blocks.remove(&(ino, page.index));
                    state.blocks_dirty.remove(&(ino, page.index));
                    Ok((addr, second_tag))
                })
                .await;
            let (addr, second_tag) = match step {
                Ok(placed) => placed,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            };
            count += 1;
            if second_tag != new_tag && self.in_place_since.get().is_none() {
                self.in_place_since.set(Some(period));
            }
            let block = Geometry::block(addr);
            if by == Durable::Later {
                self.note_wet_to(ino, block);
            }
            match &mut write {
                Some(run)
                    if run.block.0 + run.payloads.len() as u64 == block.0 && run.tags[1] == second_tag =>
                {
                    run.payloads.push(page.payload.clone());
                }
                _ => {
                    let mut next = Write::new(block, Contents::One(page.payload.clone()));
                    next.tags = [Tag(u64::from(ino.0)), second_tag];
                    if let Some(run) = write.replace(next) {
                        // Whatever a segment has before a durable block is durable, too.
                        let fua = by == Durable::Itself && !self.is_same_segment(run.block, block);
                        tickets.push(self.submit_data(Write { fua, ..run }, Order::Within));
                    }
                }
            }
        }
        let order = if count == pages.len() { last } else { Order::Within };
        let fua = by == Durable::Itself;
        tickets.extend(write.map(|run| self.submit_data(Write { fua, ..run }, order)));
        self.end_placing(number);
        let metrics = &mut self.state.borrow_mut().metrics;
        metrics.written_pages += count as u64;
        metrics.written_blocks += count as u64;
        Placed { number, count, result, tickets }
    }

    /// Writes pages as far as there is room; returns how many.
    async fn write_some(
        &self,
        ino: Nid,
        pages: &[DirtyPage],
        in_place: bool,
        by: Durable,
    ) -> (usize, Result<()>) {
        let Placed { number, count, mut result, tickets } =
            self.place_some(ino, pages, in_place, Order::Within, by).await;
        let written = answers(tickets).await;
        if self.is_dual() {
            self.note_volatile(ino);
            // Requests that were ordered behind these pages may refer to them.
            self.failed.set(self.failed.get() || written.is_err());
        }
        result = result.and(written);
        self.end_write(number);
        (count, result)
    }
}

impl F2fs {
    /// Whether the disk has a content at an address.
    pub(super) fn has_content(&self, at: Addr) -> bool {
        self.port.has_content(Geometry::block(at))
    }

    /// Waits for a SHARE. One that is refused is done by copying, unless something may have been ordered behind it.
    pub(super) async fn shared_or_copied(&self, ticket: Ticket, share: &Share) -> Result<()> {
        match answer(ticket).await {
            Err(reason) if !self.is_dual() => {
                copied(&*self.port, share, reason, |write| self.submit_data(write, Order::Within)).await
            }
            ended => ended,
        }
    }

    /// The block of a page, if it may be overwritten and has what the page shows.
    fn home(&self, state: &mut State, ino: Nid, index: u64) -> Step<Option<Addr>> {
        let there = self.place_there(state, ino, index)?;
        Ok(there.filter(|_| !state.blocks.contains_key(&(ino, index))))
    }

    /// Whether nothing that leads to a file's blocks waits to be written, or is being written.
    fn is_synced(&self, state: &State, ino: Nid) -> bool {
        !self.is_checkpointing.get()
            && !self.frozen.borrow().contains(&ino)
            && !self.syncing.borrow().values().any(|other| *other == ino)
            && !state.is_abandoned
            && !state.has_to_sync(ino, SyncKind::Data)
    }

    /// Whether the content of a page is at its place on the disk.
    fn may_share(&self, state: &State, page: (Nid, u64), at: Addr) -> bool {
        at.is_place()
            && !state.blocks.contains_key(&page)
            && !self.moving.borrow().contains_key(&at)
            && self.has_content(at)
    }

    /// Gives pages new places, which take over the blocks of another file by one SHARE; returns how many, 0 if the first block of the
    /// source has to be copied. Cleaning may move that file meanwhile: its address is taken in the step in which the place is.
    async fn share_some(
        &self,
        (from, first): (Nid, u64),
        (to, to_first): (Nid, u64),
        count: u64,
    ) -> Result<u64> {
        let number = self.begin_write(to);
        self.note_wet(to);
        let tag = self.state.borrow().data_tag();
        let mut share = Share { tags: [Tag(u64::from(to.0)), tag], ..Share::default() };
        let (mut done, mut result) = (0, Ok(()));
        while done < count && !(self.needs_room() && done > 0) {
            let (index, to_index) = (first + done, to_first + done);
            let placed = self.run(|state| {
                let source = state.address(from, index)?;
                if !self.may_share(state, (from, index), source) {
                    return Ok(None);
                }
                state.geometry.place_of(source).ok_or(Errno::EUCLEAN)?;
                let log = state.data_log(to)?;
                let had_place = self.is_dual() && state.address(to, to_index)?.is_place();
                let addr = state.place(to, to_index, log)?;
                if had_place {
                    self.note_moved_page(to);
                }
                state.blocks.remove(&(to, to_index));
                state.blocks_dirty.remove(&(to, to_index));
                Ok(Some((addr, source)))
            });
            match placed.await {
                Ok(Some((addr, source))) => share.add(Geometry::block(addr), Geometry::block(source)),
                Ok(None) => break,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
            done += 1;
        }
        let ticket = (done > 0).then(|| self.submit_share(share.clone()));
        self.end_placing(number);
        self.state.borrow_mut().metrics.written_pages += done;
        let answered = match ticket {
            Some(ticket) => self.shared_or_copied(ticket, &share).await,
            None => Ok(()),
        };
        if self.is_dual() {
            self.note_volatile(to);
        }
        // Addresses in memory lead to places without contents; no checkpoint may say so.
        self.failed.set(self.failed.get() || answered.is_err());
        self.end_write(number);
        answered?;
        match result {
            Err(errno) if done == 0 => Err(errno),
            _ => Ok(done),
        }
    }
}

/// When data become durable that are written to new places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    /// With the write itself: those that an fsync waits for, on append segments.
    Itself,
    /// With a later flush.
    Later,
}

/// Pages that have their places and were submitted.
pub(super) struct Placed {
    /// Number of the write to which they belong.
    pub(super) number: u64,
    pub(super) count: usize,
    /// Why no more pages were placed.
    pub(super) result: Result<()>,
    pub(super) tickets: Vec<Ticket>,
}

impl Engine for F2fs {
    type State = State;

    fn state(&self) -> &RefCell<State> {
        &self.state
    }

    fn run<T>(&self, operation: impl FnMut(&mut State) -> Step<T>) -> impl Future<Output = Result<T>> {
        Self::run(self, operation)
    }

    fn change<T>(&self, operation: impl FnMut(&mut State) -> Step<T>) -> impl Future<Output = Result<T>> {
        Self::change(self, operation)
    }

    async fn destroy(&self, ino: Option<Nid>) -> Result<()> {
        match ino {
            Some(ino) => {
                self.load_nodes(ino, (0, u64::MAX)).await?;
                self.change(|state| state.destroy(ino)).await
            }
            None => Ok(()),
        }
    }

    fn is_dual(&self) -> bool {
        Self::is_dual(self)
    }

    fn limits(&self) -> Limits {
        Limits {
            name_bytes_max: node::NAME_BYTES_MAX,
            symlink_bytes_max: BLOCK_BYTES - 1,
            // An inode with the fewest addresses possible.
            file_bytes_max: blocks_max(INODE_WORDS - 9 - 50) * BLOCK_BYTES as u64,
            links_max: LINKS_MAX,
            xattr_value_bytes_max: xattr::VALUE_BYTES_MAX,
            time_seconds: (i64::MIN, i64::MAX),
            has_nanos: true,
        }
    }

    async fn readlink(&self, ino: Nid) -> Result<Box<[u8]>> {
        let inode = self.run(|state| state.inode(ino).cloned()).await?;
        if inode.has_inline(inline::DATA) {
            let target = self.volume.read_link(&inode).await.map_err(|error| errno(&error))?;
            return Ok(target.into());
        }
        let mut page = [Payload::Zero];
        self.read_pages(ino, 0, &mut page).await?;
        let size = (inode.size as usize).min(BLOCK_BYTES);
        Ok(bytes_of(&page[0])[..size].into())
    }

    async fn resize(&self, ino: Nid, size: u64) -> Result<()> {
        if !size.is_multiple_of(BLOCK_BYTES as u64) {
            self.has_cut.set(true);
        }
        self.load_nodes(ino, (size.div_ceil(BLOCK_BYTES as u64), u64::MAX)).await?;
        self.change(|state| state.resize(ino, size)).await
    }

    async fn read_pages(&self, ino: Nid, first: u64, pages: &mut [Payload]) -> Result<()> {
        let inode = self.run(|state| state.inode(ino).cloned()).await?;
        if inode.has_inline(inline::DATA) {
            let bytes = self.volume.read(&inode, 0, BLOCK_BYTES).await.map_err(|error| errno(&error))?;
            for (index, page) in (first..).zip(pages) {
                *page = Payload::Zero;
                if index == 0 && !bytes.is_empty() {
                    let mut block = bytes.clone();
                    block.resize(BLOCK_BYTES, 0);
                    *page = Payload::Bytes(block.into());
                }
            }
            return Ok(());
        }
        let number = self.begin_read();
        let result = self.read_blocks(ino, first, pages).await;
        self.end_read(number);
        result
    }

    async fn reserve(&self, ino: Nid, range: (u64, u64)) -> Result<bool> {
        let reserve = |state: &mut State| match state.reserve_inline(ino, range.1)? {
            true => Ok(false),
            false => state.reserve_range(ino, range),
        };
        self.change(reserve).await
    }

    fn wrote(&self, ino: Nid, end: u64, now: Timestamp) {
        let mut state = self.state.borrow_mut();
        // A file that is being written is held, so its inode is in memory.
        state.space.clock.tick(now);
        let is_longer = state.inode(ino).is_ok_and(|inode| end > inode.size);
        let inode = if is_longer { state.inode_mut(ino) } else { state.inode_times(ino) };
        if let Ok(inode) = inode {
            inode.size = inode.size.max(end);
            (inode.mtime, inode.ctime) = (time(now), time(now));
        }
    }

    async fn write_pages(&self, ino: Nid, pages: &[DirtyPage], cause: WriteCause) -> Result<()> {
        self.has_new_holes.set(true);
        if self.write_inline(ino, pages).await? {
            return Ok(());
        }
        let in_place = self.is_in_place(ino, pages.len(), cause).await?;
        let by = self.durable_by(pages.len(), cause);
        let mut rest = pages;
        while !rest.is_empty() {
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            // Cleaning waits for writes that have begun, so none may be under way meanwhile.
            self.balance().await?;
            self.changes.until(|| !self.frozen.borrow().contains(&ino)).await;
            let (written, result) = self.write_some(ino, rest, in_place, by).await;
            result?;
            rest = &rest[written..];
        }
        Ok(())
    }

    async fn write_set(&self, parts: &[SetPart]) -> Result<()> {
        let written: Boxed<'_, _> = Box::pin(set::write(self, parts));
        written.await
    }

    fn has_sets(&self) -> bool {
        self.shares_pages()
    }

    fn set_pages_max(&self) -> u64 {
        Homes::share_max(self)
    }

    async fn share_pages(&self, from: (Nid, u64), to: (Nid, u64), count: u64) -> Result<u64> {
        self.has_new_holes.set(true);
        self.change(|state| state.make_blocks(to.0)).await?;
        let mut done = 0;
        while done < count {
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            // As in `write_pages`.
            self.balance().await?;
            self.changes.until(|| !self.frozen.borrow().contains(&to.0)).await;
            let (from, to) = ((from.0, from.1 + done), (to.0, to.1 + done));
            let most = (count - done).min(self.port.share_blocks_max().into());
            // Room is reserved for as many as can be shared now.
            let most = self.change(|state| {
                let mut shared = 0;
                while shared < most {
                    let page = (from.0, from.1 + shared);
                    let at = state.address(page.0, page.1)?;
                    if !self.may_share(state, page, at) {
                        break;
                    }
                    shared += 1;
                }
                let bytes = BLOCK_BYTES as u64;
                if shared > 0 {
                    state.reserve_range(to.0, (to.1 * bytes, (to.1 + shared) * bytes))?;
                }
                Ok(shared)
            });
            let most = match most.await {
                Err(Errno::ENOSPC) if done > 0 => break,
                most => most?,
            };
            // An fsync may have begun meanwhile.
            self.changes.until(|| !self.frozen.borrow().contains(&to.0)).await;
            match self.share_some(from, to, most).await {
                Ok(0) => break,
                Ok(shared) => done += shared,
                // What was shared before counts.
                Err(Errno::ENOSPC) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    async fn exchange_pages(&self, one: Page<Self>, other: Page<Self>, count: u64) -> Result<()> {
        let exchanged: Boxed<'_, _> = Box::pin(set::exchange(self, one, other, count));
        exchanged.await
    }

    fn shares_pages(&self) -> bool {
        self.port.share_blocks_max() > 0
    }

    async fn allocate(&self, ino: Nid, range: (u64, u64), keep_size: bool, now: Timestamp) -> Result<()> {
        let pages = (range.0 / BLOCK_BYTES as u64, range.1.div_ceil(BLOCK_BYTES as u64));
        self.load_nodes(ino, pages).await?;
        self.change(|state| state.reserve_range(ino, range)).await?;
        self.change(|state| {
            state.changed_at(ino, now)?;
            let inode = state.inode_mut(ino)?;
            if keep_size && range.1 > inode.size {
                inode.advise |= node::advise::KEEPS_SIZE;
            }
            inode.size = if keep_size { inode.size } else { inode.size.max(range.1) };
            Ok(())
        })
        .await
    }

    async fn pages_from(&self, ino: Nid, first: u64) -> Result<PageRun> {
        self.run(|state| state.pages_from(ino, first)).await
    }

    async fn punch_pages(&self, ino: Nid, first: u64, count: u64, now: Timestamp) -> Result<()> {
        self.change(|state| state.make_blocks(ino)).await?;
        let pages = (first, first.saturating_add(count));
        self.load_nodes(ino, pages).await?;
        self.change(|state| {
            state.free_blocks(ino, pages)?;
            state.changed_at(ino, now)
        })
        .await
    }

    async fn fsync(&self, ino: Nid, kind: SyncKind) -> Result<()> {
        match self.is_dual() {
            true => self.sync_in_order(ino, kind).await,
            false => self.sync_file(ino, kind).await,
        }
    }

    async fn sync(&self) -> Result<()> {
        self.checkpoint().await
    }

    async fn barrier(&self, ino: Nid, pages: &[DirtyPage], kind: Barrier) -> Result<VfsTicket> {
        self.has_new_holes.set(true);
        let calls = self.order_file(ino, pages, kind).await?;
        Ok(Box::pin(async move {
            let mut result = Ok(());
            for call in calls {
                result = result.and(call.completed().await);
            }
            result
        }))
    }

    async fn unmount(&self) -> Result<()> {
        let released = self.scratch.end(self).await;
        released.and(self.checkpoint_of(Scope::Unmount).await)
    }

    async fn background(&self, now: Timestamp) -> Option<Duration> {
        match self.options.checkpoint_interval {
            Some(interval) => Some(self.checkpoint_in_background(now, interval).await),
            None => self.clean_in_background(now).await,
        }
    }

    fn has_background(&self) -> bool {
        self.options.background.is_some() || self.options.checkpoint_interval.is_some()
    }

    fn statfs(&self) -> StatFs {
        let state = self.state.borrow();
        let pages = state.checkpoint.user_blocks;
        let pages_free = pages.saturating_sub(state.valid_blocks);
        let inodes = u64::from(state.geometry.nid_end().0).min(pages);
        let inodes_free = inodes.saturating_sub(u64::from(state.valid_inodes));
        StatFs { pages, pages_free, pages_available: pages_free, inodes, inodes_free }
    }
}

impl Homes for F2fs {
    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn share_max(&self) -> u64 {
        self.port.share_blocks_max().into()
    }

    async fn give_room_back(&self, ino: Nid, index: u64) -> Result<()> {
        let give_back = |state: &mut State| match state.address(ino, index)? {
            Addr::NEW => state.free_block(ino, index),
            _ => Ok(()),
        };
        self.change(give_back).await
    }

    async fn has_home(&self, ino: Nid, index: u64) -> Result<bool> {
        self.change(|state| state.make_blocks(ino)).await?;
        self.run(|state| Ok(self.home(state, ino, index)?.is_some_and(|home| self.has_content(home)))).await
    }

    /// In order, it is known only that a checkpoint or fsync is dispatched; then fsync makes it durable.
    async fn is_settled(&self, ino: Nid) -> Result<bool> {
        Ok(!self.is_dual()
            && !self.wet.borrow().contains_key(&ino)
            && self.is_synced(&self.state.borrow(), ino))
    }

    async fn share_over(&self, pairs: &[PagePair<Self>]) -> Result<bool> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        self.balance().await?;
        // Cleaning may be moving the new contents.
        let moving = || {
            self.run(|state| {
                for &(_, (from, index)) in pairs {
                    let source = state.address(from, index)?;
                    if self.moving.borrow().contains_key(&source) {
                        return Ok(Some(source));
                    }
                }
                Ok(None)
            })
        };
        while let Some(source) = moving().await? {
            self.changes.until(|| !self.moving.borrow().contains_key(&source)).await;
        }
        let begun = self.run(|state| {
            let mut share = Share::default();
            for &((ino, index), (from, from_index)) in pairs {
                let source = state.address(from, from_index)?;
                let Some(home) = self.home(state, ino, index)? else { return Ok(None) };
                if !self.is_synced(state, ino) || !self.may_share(state, (from, from_index), source) {
                    return Ok(None);
                }
                share.add(Geometry::block(home), Geometry::block(source));
            }
            let mut files: Vec<Nid> = pairs.iter().map(|((ino, _), _)| *ino).collect();
            files.dedup();
            // No cleaning begins before all of the set is durable: a page that moves would be durable with the next checkpoint, and the
            // others not yet.
            let numbers: Vec<u64> = files.iter().map(|ino| self.begin_write(*ino)).collect();
            Ok(Some((share, files[0], numbers)))
        });
        let Some((mut share, first, numbers)) = begun.await? else { return Ok(false) };
        share.tags[0] = Tag(u64::from(first.0));
        let ticket = self.submit_share(share);
        numbers.iter().for_each(|number| self.end_placing(*number));
        self.state.borrow_mut().metrics.written_pages += pairs.len() as u64;
        self.state.borrow_mut().metrics.in_place_pages += pairs.len() as u64;
        let mut shared = answers([ticket]).await;
        if shared.is_ok() {
            shared = self.flush(self.options.fsync, Selection::of_owners([Tag(u64::from(first.0))])).await;
        }
        numbers.into_iter().for_each(|number| self.end_write(number));
        shared.map(|()| true)
    }
}
