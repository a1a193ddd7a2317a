//! The operations that the vfs calls.

use super::super::layout::dirent::{Entry, NAME_BYTES_MAX};
use super::super::layout::extent::{BLOCKS_MAX, Extent, Node as Tree, UNWRITTEN_BLOCKS_MAX};
use super::super::layout::inode::{BASE_BYTES, NARROW_SECONDS, WIDE_SECONDS, flags};
use super::super::layout::xattr::PREFIXES;
use super::super::layout::{self, Addr, Feature, Geometry};
use super::names::Place;
use super::placed::{Begun, Placed, Placing};
use super::state::{State, Step, Stop};
use super::{Ext4, Journaling, PlantedBug};
use crate::boxed::Boxed;
use crate::engine::errno;
use crate::engine::{
    Engine, Fields, Listed, Nodes, device_number, node_kind, read_runs, stamp, time, vfs_kind,
};
use crate::ext4::Inode;
use crate::format::Kind as NodeKind;
use crate::order::{answer, copied, errno_of};
use crate::port::{BLOCK_BYTES, Block, Moment, Remap, Share, Ticket, Write};
use crate::set::{self, Homes, Page, PagePair, Scratch};
use crate::vfs::Ticket as VfsTicket;
use crate::vfs::{
    Attr, Barrier, DirtyPage, Errno, Ino, Kind, Limits, NewNode, PageRun, RenameMode, Result, SetPart,
    StatFs, SyncKind, Timestamp, WriteCause,
};
use crate::xattrs::{self, Prefixes, Xattr};
use flashweir_core::{Contents, Duration, Order, Payload};
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most names of one inode.
const LINKS_MAX: u16 = 65_000;
/// Longest value of an attribute that Linux accepts. Not every such value fits.
const XATTR_BYTES_MAX: usize = 65_536;

impl State {
    fn changed_at(&mut self, ino: layout::Ino, now: Timestamp) -> Step<()> {
        self.tick(now);
        let inode = &mut self.node_times(ino)?.inode;
        (inode.mtime, inode.ctime) = (time(now), time(now));
        Ok(())
    }

    // Links of directories: a directory that cannot count its subdirectories has one link.

    fn check_more_links(&self, dir: layout::Ino) -> Step<()> {
        let inode = self.inode(dir)?;
        let may_overflow = self.geometry.features.has(Feature::DIR_NLINK) && inode.has(flags::INDEX);
        match inode.links >= LINKS_MAX && !may_overflow {
            true => Err(Errno::EMLINK.into()),
            false => Ok(()),
        }
    }

    fn one_more_link(&mut self, dir: layout::Ino) -> Step<()> {
        let inode = self.inode_mut(dir)?;
        inode.links = match inode.links {
            1 => 1,
            links if links >= LINKS_MAX => 1,
            links => links + 1,
        };
        Ok(())
    }

    fn one_link_less(&mut self, dir: layout::Ino) -> Step<()> {
        let inode = self.inode_mut(dir)?;
        inode.links = if inode.links > 2 { inode.links - 1 } else { inode.links };
        Ok(())
    }

    /// Creates an inode, whose name and contents come later.
    fn create_inode(&mut self, dir: layout::Ino, new: &NewNode) -> Step<layout::Ino> {
        let kind = node_kind(new.kind);
        let ino = self.new_inode(dir, kind.mode_bits() | new.mode & 0o7777)?;
        let inode = self.inode_mut(ino)?;
        (inode.uid, inode.gid, inode.links) = (new.uid, new.gid, 1);
        (inode.atime, inode.mtime, inode.ctime) = (time(new.now), time(new.now), time(new.now));
        inode.crtime = inode.crtime.map(|_| time(new.now));
        match new.kind {
            Kind::CharDevice(device) | Kind::BlockDevice(device) => {
                inode.set_device(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
            }
            Kind::File | Kind::Directory | Kind::Symlink => {
                inode.flags |= flags::EXTENTS;
                Tree::empty_root().encode_root(&mut inode.block);
            }
            Kind::Fifo | Kind::Socket => (),
        }
        let xattrs = xattrs::of_new(&new.acls);
        if !xattrs.is_empty() {
            self.set_xattrs(ino, &xattrs)?;
        }
        Ok(ino)
    }

    /// Takes one name off an inode; returns whether the inode has to be freed now.
    fn drop_name(&mut self, ino: layout::Ino, now: Timestamp) -> Step<bool> {
        let is_directory = self.kind(ino)? == NodeKind::Directory;
        let inode = self.inode_mut(ino)?;
        inode.ctime = time(now);
        inode.links = if is_directory { 0 } else { inode.links.saturating_sub(1) };
        if inode.links > 0 {
            return Ok(false);
        }
        self.check_freeable(ino)?;
        self.add_orphan(ino)?;
        Ok(!self.held.contains_key(&ino))
    }

    /// The entry `..` of a directory; `None` for other inodes.
    fn dots(&mut self, ino: layout::Ino) -> Step<Option<(Place, Entry)>> {
        match self.kind(ino)? {
            NodeKind::Directory => Ok(Some(self.find(ino, b"..")?.ok_or(Errno::EUCLEAN)?)),
            _ => Ok(None),
        }
    }

    /// Notes that an inode has moved to another parent.
    fn moved(
        &mut self,
        ino: layout::Ino,
        dots: Option<(Place, Entry)>,
        to: layout::Ino,
        now: Timestamp,
    ) -> Step<()> {
        if let Some((place, entry)) = dots.filter(|(_, entry)| entry.ino != to) {
            self.redirect(ino, place, &entry, to, NodeKind::Directory)?;
        }
        self.inode_mut(ino)?.ctime = time(now);
        Ok(())
    }

    // Pages.

    /// Claims room for the pages of a range that have none.
    pub(super) fn reserve(&mut self, ino: layout::Ino, (at, end): (u64, u64)) -> Step<bool> {
        let (mut at, end) = (at / BLOCK, end.div_ceil(BLOCK));
        let (mut holes, mut unwritten) = (Vec::new(), Vec::new());
        while at < end {
            let span = self.span(ino, at)?;
            let to = span.end.min(end);
            let claim = self.claims.get(&ino);
            match span.addr {
                None => holes
                    .extend((at..to).filter(|page| claim.is_none_or(|claim| !claim.pages.contains(page)))),
                Some(_) if span.is_unwritten => unwritten.extend(
                    (at..to).filter(|page| claim.is_none_or(|claim| !claim.unwritten.contains(page))),
                ),
                Some(_) => (),
            }
            at = to;
        }
        self.claim(ino, &holes, &unwritten)?;
        Ok(!holes.is_empty() || !unwritten.is_empty())
    }

    /// Gives pages their blocks, as many as are in a row; the size on the disk then covers them.
    fn place(&mut self, ino: layout::Ino, first: u64, count: u32, cause: WriteCause) -> Step<Placed> {
        let span = self.span(ino, first)?;
        let mut count = u64::from(count).min(span.end - first);
        let addr = match span.addr {
            Some(addr) => {
                if span.is_unwritten {
                    self.is_spending = self.is_conversion_claimed(ino, first);
                    self.convert(ino, first, first + count)?;
                }
                Addr(addr.0 + (first - span.first))
            }
            None => {
                count = count.min(BLOCKS_MAX.into());
                self.is_spending = self.is_claimed(ino, first, first + count);
                if !self.is_spending {
                    count = 1;
                    self.is_spending = self.is_claimed(ino, first, first + 1);
                }
                let goal = self.goal(ino, first)?;
                let (addr, blocks) = self.allocate(goal, count as u32)?;
                count = blocks.into();
                let new = Extent { first: first as u32, blocks: blocks as u16, addr, is_unwritten: false };
                self.insert_extent(ino, new)?;
                self.count_blocks(ino, count as i64)?;
                self.metrics.allocated_pages += count;
                addr
            }
        };
        let pages_end = (first + count) * BLOCK;
        let node = self.node(ino)?;
        // A write past the page cache makes the file longer at once: the size changes with the blocks. Otherwise pages behind the
        // end of the file are covered later; where data are journalled, with a later version of the page.
        let known = if cause == WriteCause::Direct { pages_end } else { pages_end.min(node.size) };
        let end = if self.journals_data { known } else { pages_end };
        if end > node.written_end || known > node.inode.size {
            let node = self.node_mut(ino)?;
            node.written_end = node.written_end.max(end);
            node.inode.size = node.inode.size.max(known);
            self.note_size(ino)?;
        }
        let is_new = span.written(first).is_none();
        if is_new {
            self.end_claim(ino, first, first + count);
        }
        Ok(Placed { first, count: count as u32, addr, is_new })
    }

    /// Number of pages from one on, of at most `count`, that were all written and have a content on the disk.
    fn written_pages(
        &mut self,
        ino: layout::Ino,
        first: u64,
        count: u64,
        has_content: impl Fn(Addr) -> bool,
    ) -> Step<u64> {
        for done in 0..count {
            let at = self.span(ino, first + done)?.written(first + done);
            if !at.is_some_and(&has_content) {
                return Ok(done);
            }
        }
        Ok(count)
    }

    /// Allocates a part of a range that has no room yet; returns the page up to which all pages have room.
    fn allocate_some(&mut self, ino: layout::Ino, first: u64, end: u64) -> Step<u64> {
        let mut at = first;
        while at < end {
            let span = self.span(ino, at)?;
            if span.addr.is_some() {
                at = span.end;
                continue;
            }
            let mut to = span.end.min(end).min(at + u64::from(UNWRITTEN_BLOCKS_MAX));
            if let Some(claim) = self.claims.get(&ino) {
                if claim.pages.contains(&at) {
                    at += 1;
                    continue;
                }
                to = claim.pages.range(at..to).next().copied().unwrap_or(to);
            }
            let goal = self.goal(ino, at)?;
            let (addr, count) = self.allocate(goal, (to - at) as u32)?;
            let new = Extent { first: at as u32, blocks: count as u16, addr, is_unwritten: true };
            self.insert_extent(ino, new)?;
            self.count_blocks(ino, count.into())?;
            self.renew_claim(ino)?;
            return Ok(at + u64::from(count));
        }
        Ok(end)
    }

    /// Number of pages of a range that have no room.
    fn missing(&mut self, ino: layout::Ino, first: u64, end: u64) -> Step<u64> {
        let (mut at, mut missing) = (first, 0);
        while at < end {
            let span = self.span(ino, at)?;
            let to = span.end.min(end);
            if span.addr.is_none() {
                let claim = self.claims.get(&ino);
                missing += to - at - claim.map_or(0, |claim| claim.pages.range(at..to).count() as u64);
            }
            at = to;
        }
        Ok(missing)
    }
}

impl Nodes for State {
    type Number = layout::Ino;
    type Stop = Stop;
    const ROOT: layout::Ino = layout::Ino::ROOT;
    const PREFIXES: &'static Prefixes = &PREFIXES;

    fn number(ino: Ino) -> Result<layout::Ino> {
        u32::try_from(ino.0).ok().filter(|&ino| ino != 0).map(layout::Ino).ok_or(Errno::ESTALE)
    }

    fn ino(number: layout::Ino) -> Ino {
        Ino(number.0.into())
    }

    fn named(&mut self, dir: layout::Ino, name: &[u8]) -> Step<Option<layout::Ino>> {
        Ok(self.find(dir, name)?.map(|(_, entry)| entry.ino))
    }

    fn entries(&mut self, dir: layout::Ino, after: u64, most: usize) -> Step<Vec<Listed<Self>>> {
        let listed = self.list(dir, after, most)?.into_iter().map(|listed| {
            let (cookie, entry) = (listed.cookie, listed.entry);
            Listed { cookie, name: entry.name.into(), ino: entry.ino, kind: entry.kind }
        });
        Ok(listed.collect())
    }

    fn kind_of(&self, ino: layout::Ino) -> Step<NodeKind> {
        self.kind(ino)
    }

    fn create(&mut self, dir: layout::Ino, name: &[u8], new: &NewNode, target: Option<&[u8]>) -> Step<Attr> {
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if new.kind.is_dir() {
            self.check_more_links(dir)?;
        }
        let kind = node_kind(new.kind);
        let ino = self.create_inode(dir, new)?;
        if new.kind.is_dir() {
            self.inode_mut(ino)?.links = 2;
            self.make_dir(ino, dir)?;
            self.one_more_link(dir)?;
        }
        if let Some(target) = target {
            self.set_link_target(ino, target)?;
        }
        self.insert(dir, &Entry::new(name, ino, kind))?;
        self.changed_at(dir, new.now)?;
        self.attr(ino)
    }

    fn create_nameless(&mut self, dir: layout::Ino, new: &NewNode) -> Step<Attr> {
        if self.kind(dir)? != NodeKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let ino = self.create_inode(dir, new)?;
        self.inode_mut(ino)?.links = 0;
        self.add_orphan(ino)?;
        self.tick(new.now);
        let attr = self.attr(ino)?;
        *self.held.entry(ino).or_default() += 1;
        Ok(attr)
    }

    fn link(&mut self, ino: layout::Ino, dir: layout::Ino, name: &[u8], now: Timestamp) -> Step<Attr> {
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let kind = self.kind(ino)?;
        if self.inode(ino)?.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        self.insert(dir, &Entry::new(name, ino, kind))?;
        self.remove_orphan(ino)?;
        let inode = self.inode_mut(ino)?;
        inode.links += 1;
        inode.ctime = time(now);
        self.changed_at(dir, now)?;
        self.attr(ino)
    }

    fn unlink(&mut self, dir: layout::Ino, name: &[u8], now: Timestamp) -> Step<Option<layout::Ino>> {
        let (place, entry) = self.find(dir, name)?.ok_or(Errno::ENOENT)?;
        let is_directory = self.kind(entry.ino)? == NodeKind::Directory;
        if is_directory && !self.is_empty(entry.ino)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.remove(dir, place)?;
        if is_directory {
            self.one_link_less(dir)?;
        }
        self.changed_at(dir, now)?;
        let is_gone = self.drop_name(entry.ino, now)?;
        Ok(is_gone.then_some(entry.ino))
    }

    fn rename(
        &mut self,
        from: (layout::Ino, &[u8]),
        to: (layout::Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Step<Option<layout::Ino>> {
        let (old_place, old) = self.find(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let target = self.find(to.0, to.1)?;
        let old_kind = self.kind(old.ino)?;
        let old_dots = self.dots(old.ino)?;
        let is_directory = old_dots.is_some();
        let mut gone = None;
        match (target, mode) {
            (Some((new_place, new)), RenameMode::Exchange) => {
                let new_kind = self.kind(new.ino)?;
                let new_dots = self.dots(new.ino)?;
                if is_directory != new_dots.is_some() && from.0 != to.0 {
                    let (gains, loses) = if is_directory { (to.0, from.0) } else { (from.0, to.0) };
                    self.check_more_links(gains)?;
                    self.one_more_link(gains)?;
                    self.one_link_less(loses)?;
                }
                self.redirect(from.0, old_place, &old, new.ino, new_kind)?;
                self.redirect(to.0, new_place, &new, old.ino, old_kind)?;
                self.moved(new.ino, new_dots, from.0, now)?;
            }
            (None, RenameMode::Exchange) => return Err(Errno::ENOENT.into()),
            (Some(_), RenameMode::NoReplace) => return Err(Errno::EEXIST.into()),
            (Some((place, replaced)), RenameMode::Replace) => {
                let replaces_directory = self.kind(replaced.ino)? == NodeKind::Directory;
                if replaces_directory && !self.is_empty(replaced.ino)? {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.redirect(to.0, place, &replaced, old.ino, old_kind)?;
                self.remove(from.0, old_place)?;
                gone = self.drop_name(replaced.ino, now)?.then_some(replaced.ino);
                // The directory that arrives is counted in place of the one that leaves.
                if is_directory {
                    self.one_link_less(from.0)?;
                }
                if is_directory != replaces_directory {
                    match is_directory {
                        true => self.one_more_link(to.0)?,
                        false => self.one_link_less(to.0)?,
                    }
                }
            }
            (None, _) => {
                if is_directory && from.0 != to.0 {
                    self.check_more_links(to.0)?;
                    self.one_more_link(to.0)?;
                    self.one_link_less(from.0)?;
                }
                // Inserting the new name may move entries, so the old one is removed first.
                self.remove(from.0, old_place)?;
                self.insert(to.0, &Entry::new(to.1, old.ino, old_kind))?;
            }
        }
        self.moved(old.ino, old_dots, to.0, now)?;
        self.changed_at(from.0, now)?;
        self.changed_at(to.0, now)?;
        Ok(gone)
    }

    fn held(&mut self) -> &mut BTreeMap<layout::Ino, u32> {
        &mut self.held
    }

    fn is_nameless(&self, ino: layout::Ino) -> bool {
        self.inode(ino).is_ok_and(|inode| inode.links == 0)
    }

    fn attr(&self, ino: layout::Ino) -> Step<Attr> {
        let node = self.node(ino)?;
        let inode = &node.inode;
        let claimed = self.claims.get(&ino).map_or(0, |claim| claim.pages.len() as u64);
        Ok(Attr {
            ino: Ino(u64::from(ino.0)),
            generation: inode.generation,
            kind: vfs_kind(inode.kind().ok_or(Errno::EUCLEAN)?, || device_number(inode.device())),
            mode: inode.mode & 0o7777,
            links: inode.links.into(),
            uid: inode.uid,
            gid: inode.gid,
            size: node.size,
            blocks_512: inode.sectors(&self.geometry) + 8 * claimed,
            atime: stamp(inode.atime),
            mtime: stamp(inode.mtime),
            ctime: stamp(inode.ctime),
        })
    }

    fn attributes(&mut self, ino: layout::Ino) -> Step<Fields<'_>> {
        Ok(fields(&mut self.node_times(ino)?.inode))
    }

    fn changed(&mut self, ino: layout::Ino, now: Timestamp) -> Step<Fields<'_>> {
        self.tick(now);
        Ok(fields(self.inode_mut(ino)?))
    }

    fn xattrs(&self, ino: layout::Ino) -> Step<Vec<Xattr>> {
        Self::xattrs(self, ino)
    }

    fn set_xattrs(&mut self, ino: layout::Ino, xattrs: &[Xattr]) -> Step<()> {
        Self::set_xattrs(self, ino, xattrs)
    }
}

fn fields(inode: &mut Inode) -> Fields<'_> {
    let Inode { mode, uid, gid, atime, mtime, ctime, .. } = inode;
    Fields { mode, uid, gid, atime, mtime, ctime }
}

/// Number of pages in a row, at most as many as fit into an extent.
pub(super) fn row(pages: &[DirtyPage]) -> u32 {
    let in_row = pages.iter().zip(pages[0].index..).take_while(|(page, index)| page.index == *index);
    in_row.count().min(BLOCKS_MAX.into()) as u32
}

impl Ext4 {
    /// Frees an inode without names that is not held.
    pub(super) async fn destroy(&self, ino: Option<layout::Ino>) -> Result<()> {
        let Some(ino) = ino else { return Ok(()) };
        while !self.change(|state| state.destroy_some(ino)).await? {}
        Ok(())
    }

    /// Gives pages their blocks and begins to write them, in one step; returns the number of the write, and the blocks. Where the transaction has
    /// to be committed first, it is, as often as other tasks fill it, and once for blocks that a commit sets free. A commit waits for data, so
    /// `end` has to end the writes that the caller has begun.
    async fn begin_data(
        &self,
        ino: layout::Ino,
        wanted: (u64, u32),
        cause: WriteCause,
        mut end: impl AsyncFnMut() -> Result<()>,
    ) -> Result<(u64, Placed)> {
        let mut has_waited = false;
        loop {
            match self.try_begin_data(ino, wanted, cause).await? {
                Placing::Begun(number, row) => return Ok((number, row)),
                Placing::NoBlocks if has_waited => return Err(Errno::ENOSPC),
                Placing::NoBlocks => has_waited = true,
                Placing::Full => (),
            }
            end().await?;
            self.turn_over().await?;
        }
    }

    async fn try_begin_data(
        &self,
        ino: layout::Ino,
        (first, count): (u64, u32),
        cause: WriteCause,
    ) -> Result<Placing> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        if self.is_full(0) {
            return Ok(Placing::Full);
        }
        let placed = self.run(|state| {
            let row = state.place(ino, first, count, cause)?;
            Ok(Placing::Begun(self.begin_write(), row))
        });
        match placed.await {
            Err(Errno::ENOSPC) if self.state.borrow().counts.waiting > 0 => Ok(Placing::NoBlocks),
            placed => placed,
        }
    }

    /// Goes on with a truncation that may have more than one part.
    pub(super) async fn end_truncation(&self, ino: layout::Ino, mut is_done: bool) -> Result<()> {
        while !is_done {
            is_done = self.change(|state| state.truncate_some(ino)).await?;
        }
        Ok(())
    }

    /// Makes a range of pages a hole, part by part.
    async fn punch(&self, ino: layout::Ino, first: u64, mut end: u64) -> Result<()> {
        while end > first {
            end = self.change(|state| state.punch_some(ino, first, end)).await?;
        }
        Ok(())
    }

    /// Takes back what a failed write has placed: its new blocks have no contents, and could have those of other files. Their pages get room
    /// again, unless the caller writes past the cache; then the file gets back the length that it had. A transaction that was closed with these
    /// blocks may be committed before the one that takes them back; in dual mode nothing is taken back, and a failed write ends all changes.
    async fn take_back(&self, ino: layout::Ino, rows: &[Placed], cause: WriteCause) -> Result<()> {
        for row in rows.iter().filter(|row| row.is_new) {
            let (first, end) = (row.first, row.first + u64::from(row.count));
            self.punch(ino, first, end).await?;
            if cause != WriteCause::Direct {
                self.change(|state| state.reserve(ino, (first * BLOCK, end * BLOCK))).await?;
            }
        }
        if cause != WriteCause::Direct {
            return Ok(());
        }
        let is_done = self.change(|state| state.end_at_size(ino)).await?;
        self.end_truncation(ino, is_done).await
    }

    /// See [`Fs::share_pages`](crate::vfs::Fs::share_pages): SHARE takes the place of the writes of data, and a commit waits for it as for
    /// them.
    async fn share_data(
        &self,
        (from, first): (layout::Ino, u64),
        (to, to_first): (layout::Ino, u64),
        count: u64,
    ) -> Result<u64> {
        // Room is claimed before the first SHARE: that may take a commit, which waits for what has begun.
        let has_content = |at| self.has_content(at);
        let mut count = self.run(|state| state.written_pages(from, first, count, has_content)).await?;
        if count == 0 {
            return Ok(0);
        }
        let room = |count| {
            move |state: &mut State| state.reserve(to, (to_first * BLOCK, (to_first + count) * BLOCK))
        };
        match self.change(room(count)).await {
            Err(Errno::ENOSPC) if count > 1 => {
                self.change(room(1)).await?;
                count = 1;
            }
            reserved => drop(reserved?),
        }
        let (mut done, mut result, mut earlier, mut shares) = (0, Ok(()), Ok(()), Vec::new());
        while done < count && result.is_ok() {
            let span = match self.run(|state| state.span(from, first + done)).await {
                Ok(span) => span,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            };
            let Some(source) = span.written(first + done) else { break };
            let row = (count - done).min(span.end - first - done);
            let row = row.min(self.port.share_blocks_max().into()).min(BLOCKS_MAX.into());
            let wanted = (to_first + done, row as u32);
            let end = async || {
                earlier = self.end_shares(&mut shares).await;
                earlier
            };
            let placed = self.begin_data(to, wanted, WriteCause::Direct, end).await;
            let (number, Placed { addr, count, .. }) = match placed {
                Ok(placed) => placed,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            };
            let remap = Remap { dst: Block(addr.0), src: Block(source.0), count };
            let order = self.data_order(Order::Within);
            let share = Share { remaps: vec![remap], order, ..Share::default() };
            shares.push((number, self.port.share(share.clone()), share));
            let mut state = self.state.borrow_mut();
            state.metrics.written_pages += u64::from(count);
            state.note_dispatched(to);
            done += u64::from(count);
        }
        let ended = self.end_shares(&mut shares).await;
        if done < count {
            // No page of the target is in memory, so nobody else has claimed this room.
            let rest = (to_first + done, to_first + count);
            let given_back = self.change(|state| {
                state.end_claim(to, rest.0, rest.1);
                Ok(())
            });
            given_back.await?;
        }
        // What was shared before an error is in the file.
        earlier.and(ended).and(if done > 0 { Ok(()) } else { result }).map(|()| done)
    }

    /// Waits for SHAREs, each with the number of its write. One that is refused is done by copying. The blocks have their files already, so where
    /// neither is possible, or a commit may have gone ahead, the volume has failed.
    async fn end_shares(&self, shares: &mut Vec<(u64, Ticket, Share)>) -> Result<()> {
        let mut result = Ok(());
        for (number, ticket, share) in shares.drain(..) {
            let mut ended = answer(ticket).await;
            if let Err(reason) = ended
                && !self.is_dual()
            {
                ended = copied(&*self.port, &share, reason, |write| self.port.write(write)).await;
            }
            self.fail_if(ended.is_err());
            self.end_write(number);
            result = result.and(ended);
        }
        result
    }

    /// Whether the disk has a content at an address.
    fn has_content(&self, at: Addr) -> bool {
        self.port.has_content(Block(at.0))
    }

    /// Gives the first pages in a row their blocks. The caller has to submit them at once, and then to call [`Self::end_write`].
    pub(super) async fn place_data(&self, ino: layout::Ino, pages: &[DirtyPage]) -> Result<(u64, Placed)> {
        self.begin_data(ino, (pages[0].index, row(pages)), WriteCause::Sync, async || Ok(())).await
    }

    /// Writes pages by way of the journal: as many in one transaction as it has room for.
    /// `wrote` is the end of what was written and the time, which are noted in the same transaction.
    pub(super) async fn journal_pages(
        &self,
        ino: layout::Ino,
        pages: &[DirtyPage],
        cause: WriteCause,
        wrote: Option<(u64, Timestamp)>,
    ) -> Result<()> {
        let is_split = self.options.planted == Some(PlantedBug::SplitWrites);
        let most = if is_split { pages.len().div_ceil(2) } else { self.data_blocks_max() };
        for (number, part) in pages.chunks(most.max(1)).enumerate() {
            if is_split && number > 0 {
                self.commit().await?;
            }
            let mut result = self.journal_part(ino, part, cause, wrote).await;
            if result == Err(Errno::ENOSPC) && self.state.borrow().counts.waiting > 0 {
                // Blocks become free with a commit. Pages that already have blocks keep them.
                self.turn_over().await?;
                result = self.journal_part(ino, part, cause, wrote).await;
            }
            if result.is_err() && wrote.is_some() {
                let _ = Box::pin(self.take_back(ino, &[], WriteCause::Direct)).await;
            }
            result?;
        }
        Ok(())
    }

    async fn journal_part(
        &self,
        ino: layout::Ino,
        pages: &[DirtyPage],
        cause: WriteCause,
        wrote: Option<(u64, Timestamp)>,
    ) -> Result<()> {
        let _handle = self.handle(pages.len()).await?;
        let (Some((end, now)), Some(last)) = (wrote, pages.last()) else {
            return self.put_pages(ino, pages, cause).await;
        };
        // A call of more pages than a transaction takes grows the file part by part.
        let before = self.run(|state| Ok(state.node(ino)?.size)).await?;
        Engine::wrote(self, ino, end.min((last.index + 1) * BLOCK), now);
        let put = self.put_pages(ino, pages, cause).await;
        if put.is_err() {
            // The caller does not know the new length; see `take_back` for that on the disk.
            self.state.borrow_mut().note_written(ino, |node| node.size = node.size.min(before));
        }
        put
    }

    /// Puts pages into the running transaction; the caller has a handle.
    pub(super) async fn put_pages(
        &self,
        ino: layout::Ino,
        pages: &[DirtyPage],
        cause: WriteCause,
    ) -> Result<()> {
        let mut at = 0;
        while at < pages.len() {
            let (rest, first) = (&pages[at..], pages[at].index);
            let count = row(rest);
            let placed = self.run(|state| {
                let Placed { addr, count, .. } = state.place(ino, first, count, cause)?;
                let contents = rest[..count as usize].iter().map(|page| page.payload.clone());
                state.put_data(ino, addr, contents)?;
                state.metrics.written_pages += u64::from(count);
                Ok(count)
            });
            at += placed.await? as usize;
        }
        Ok(())
    }

    /// Waits for writes of data, for the last one first: when it has ended most others have ended too, so the task is woken a few
    /// times instead of once for each.
    ///
    /// What was placed for a write that failed is taken back.
    async fn end_data(&self, ino: layout::Ino, begun: &mut Vec<Begun>, cause: WriteCause) -> Result<()> {
        for write in begun.iter().rev() {
            write.ticket.reached(Moment::Completed).await;
        }
        let (mut result, mut failed) = (Ok(()), Vec::new());
        for Begun { number, ticket, row } in begun.drain(..) {
            let answer = ticket.into_answer().map(drop);
            if answer.is_err() {
                failed.push(row);
            }
            result = result.and(answer.map_err(|error| errno_of(&error)));
            self.end_write(number);
        }
        if !failed.is_empty() {
            // The first error says more than one of this.
            let _ = Box::pin(self.take_back(ino, &failed, cause)).await;
        }
        result
    }

    /// Runs of pages: an index in `pages`, a block and a count. Pages without a block become zeros.
    async fn runs(
        &self,
        ino: layout::Ino,
        first: u64,
        pages: &mut [Payload],
    ) -> Result<Vec<(usize, Addr, u32)>> {
        let is_mapped = self.run(|state| Ok(state.inode(ino)?.has(flags::EXTENTS))).await?;
        let old = if is_mapped { None } else { Some(self.run(|state| state.inode(ino).cloned()).await?) };
        let end = first + pages.len() as u64;
        let (mut runs, mut at) = (Vec::new(), first);
        while at < end {
            let (addr, to) = match &old {
                None if at >= Geometry::FILE_BLOCKS_MAX => (None, end),
                None => {
                    let span = self.run(|state| state.span(ino, at)).await?;
                    (span.written(at), span.end.min(end))
                }
                Some(inode) => {
                    let run = self.volume.run(inode, at).await.map_err(|error| errno(&error))?;
                    (run.addr, end.min(at.saturating_add(run.blocks.max(1))))
                }
            };
            match addr {
                Some(addr) => runs.push(((at - first) as usize, addr, (to - at) as u32)),
                None => pages[(at - first) as usize..(to - first) as usize].fill(Payload::Zero),
            }
            at = to;
        }
        Ok(runs)
    }
}

impl Engine for Ext4 {
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

    async fn destroy(&self, ino: Option<layout::Ino>) -> Result<()> {
        Self::destroy(self, ino).await
    }

    fn is_dual(&self) -> bool {
        Self::is_dual(self)
    }

    fn limits(&self) -> Limits {
        let geometry = self.state.borrow().geometry;
        let file_bytes_max = Geometry::FILE_BLOCKS_MAX * BLOCK;
        let has_extra = usize::from(geometry.inode_bytes) > BASE_BYTES;
        Limits {
            name_bytes_max: NAME_BYTES_MAX,
            symlink_bytes_max: BLOCK_BYTES - 1,
            // Otherwise an inode counts 2^32 sectors, those of its metadata included.
            file_bytes_max: match geometry.features.has(Feature::HUGE_FILE) {
                true => file_bytes_max,
                false => (2 << 40) - (2 << 40 >> 7),
            },
            links_max: LINKS_MAX.into(),
            xattr_value_bytes_max: XATTR_BYTES_MAX,
            time_seconds: if has_extra { WIDE_SECONDS } else { NARROW_SECONDS },
            has_nanos: has_extra,
        }
    }

    async fn readlink(&self, ino: layout::Ino) -> Result<Box<[u8]>> {
        self.run(|state| state.link_target(ino)).await
    }

    async fn resize(&self, ino: layout::Ino, size: u64) -> Result<()> {
        let is_done = self.change(|state| state.resize(ino, size)).await?;
        let ended = self.end_truncation(ino, is_done).await;
        // What is left behind the end would be contents again if the file became longer; the next mount goes on with it.
        self.fail_if(ended.is_err());
        ended
    }

    async fn let_go(&self, ino: layout::Ino) -> Result<()> {
        let is_changed = {
            let mut state = self.state.borrow_mut();
            // All of its pages are written, so what is left of its claims is of writes that have failed.
            if !state.held.contains_key(&ino) {
                state.end_claim(ino, 0, u64::MAX);
            }
            state.nodes.get(&ino).is_some_and(|node| node.data_tid != 0) && state.is_tall(ino)
        };
        if !is_changed || self.failed.get() {
            return Ok(());
        }
        self.change(|state| if state.claims.contains_key(&ino) { Ok(()) } else { state.flatten(ino) }).await
    }

    async fn read_pages(&self, ino: layout::Ino, first: u64, pages: &mut [Payload]) -> Result<()> {
        let runs = self.runs(ino, first, pages).await?;
        // No task writes these pages meanwhile, so the journal's contents are the newest.
        let newest = |addr: Addr| {
            let newest = self.state.borrow().newest_data(addr).cloned();
            newest.or_else(|| self.journal.newest(addr))
        };
        let journalled = |(at, addr, count): &(usize, Addr, u32)| {
            let (at, places) = (*at, addr.0..addr.0 + u64::from(*count));
            places.enumerate().map(move |(page, addr)| (at + page, Addr(addr))).collect::<Vec<_>>()
        };
        let journalled = match self.options.journaling {
            Journaling::Journal => runs.iter().flat_map(journalled).collect(),
            _ => Vec::new(),
        };
        let journalled: Vec<(usize, Payload)> =
            journalled.into_iter().filter_map(|(at, addr)| Some((at, newest(addr)?))).collect();
        let runs = runs.into_iter().map(|(at, addr, count)| (at, Block(addr.0), count));
        read_runs(&*self.port, runs, pages).await?;
        for (at, payload) in journalled {
            pages[at] = payload;
        }
        Ok(())
    }

    async fn reserve(&self, ino: layout::Ino, range: (u64, u64)) -> Result<bool> {
        self.change(|state| state.reserve(ino, range)).await
    }

    fn prefetch(&self, ino: layout::Ino, index: u64) {
        self.state.borrow().spans.prefetch(ino, index);
    }

    fn wrote(&self, ino: layout::Ino, end: u64, now: Timestamp) {
        // A file that is being written is held, so its inode is in memory.
        let mut state = self.state.borrow_mut();
        state.tick(now);
        state.note_written(ino, |node| {
            node.size = node.size.max(end);
            (node.inode.mtime, node.inode.ctime) = (time(now), time(now));
        });
        // Setting another feature cannot fail.
        let _ = state.note_size(ino);
    }

    async fn write_pages(&self, ino: layout::Ino, pages: &[DirtyPage], cause: WriteCause) -> Result<()> {
        if self.options.journaling == Journaling::Journal {
            // The path of journalled data is in a box, so that the other futures are not larger by it.
            let journalled: Boxed<'_, _> = Box::pin(self.journal_pages(ino, pages, cause, None));
            return journalled.await;
        }
        let (mut at, mut result, mut begun) = (0, Ok(()), self.begun.take());
        while at < pages.len() {
            let wanted = (pages[at].index, row(&pages[at..]));
            let end = async || self.end_data(ino, &mut begun, cause).await;
            let (number, row) = match self.begin_data(ino, wanted, cause, end).await {
                Ok(placed) => placed,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            };
            let count = row.count as usize;
            let payloads: Contents = pages[at..at + count].iter().map(|page| page.payload.clone()).collect();
            let order = self.data_order(Order::Within);
            let write = Write { order, ..Write::new(Block(row.addr.0), payloads) };
            begun.push(Begun { number, ticket: self.port.write(write), row });
            let mut state = self.state.borrow_mut();
            state.metrics.written_pages += count as u64;
            state.note_dispatched(ino);
            at += count;
        }
        let ended = self.end_data(ino, &mut begun, cause).await;
        self.begun.give_back(begun);
        if result.is_err() && ended.is_ok() && cause == WriteCause::Direct {
            // What was placed is behind the end of the file, whose length the caller does not change after an error.
            let _ = Box::pin(self.take_back(ino, &[], cause)).await;
        }
        result.and(ended)
    }

    async fn write_at_once(
        &self,
        ino: layout::Ino,
        pages: &[DirtyPage],
        end: u64,
        now: Timestamp,
    ) -> Result<()> {
        let journalled: Boxed<'_, _> =
            Box::pin(self.journal_pages(ino, pages, WriteCause::Sync, Some((end, now))));
        journalled.await
    }

    async fn write_set(&self, parts: &[SetPart]) -> Result<()> {
        let written: Boxed<'_, _> = match self.options.journaling {
            Journaling::Journal => Box::pin(self.journal_set(parts)),
            _ => Box::pin(set::write(self, parts)),
        };
        written.await
    }

    fn has_sets(&self) -> bool {
        self.at_once_max().is_some() || self.shares_pages()
    }

    async fn share_pages(&self, from: (layout::Ino, u64), to: (layout::Ino, u64), count: u64) -> Result<u64> {
        let shared: Boxed<'_, _> = Box::pin(self.share_data(from, to, count));
        shared.await
    }

    async fn exchange_pages(&self, one: Page<Self>, other: Page<Self>, count: u64) -> Result<()> {
        let exchanged: Boxed<'_, _> = Box::pin(set::exchange(self, one, other, count));
        exchanged.await
    }

    /// Not where data are journalled: the newest content of a page may be in the log, and a SHARE would overtake what the log has of
    /// the target.
    fn shares_pages(&self) -> bool {
        self.options.journaling != Journaling::Journal && self.port.share_blocks_max() > 0
    }

    fn set_pages_max(&self) -> u64 {
        self.at_once_max().unwrap_or(self.port.share_blocks_max().into())
    }

    fn at_once_max(&self) -> Option<u64> {
        (self.options.journaling == Journaling::Journal).then(|| self.data_blocks_max() as u64)
    }

    async fn allocate(
        &self,
        ino: layout::Ino,
        range: (u64, u64),
        keep_size: bool,
        now: Timestamp,
    ) -> Result<()> {
        let (first, end) = (range.0 / BLOCK, range.1.div_ceil(BLOCK));
        self.change(|state| {
            // A file that is too large for the volume takes no room.
            let missing = state.missing(ino, first, end)?;
            match missing > state.free_blocks() {
                true => Err(Errno::ENOSPC.into()),
                false => Ok(()),
            }
        })
        .await?;
        let mut at = first;
        while at < end {
            at = self.change(|state| state.allocate_some(ino, at, end)).await?;
        }
        self.change(|state| {
            state.changed_at(ino, now)?;
            let node = state.node_mut(ino)?;
            if !keep_size && range.1 > node.size {
                (node.size, node.inode.size) = (range.1, range.1);
                state.note_size(ino)?;
            }
            Ok(())
        })
        .await
    }

    async fn pages_from(&self, ino: layout::Ino, first: u64) -> Result<PageRun> {
        let inode = self.run(|state| state.inode(ino).cloned()).await?;
        if !inode.has(flags::EXTENTS) {
            let run = self.volume.run(&inode, first).await.map_err(|error| errno(&error))?;
            return Ok(PageRun {
                end: first.saturating_add(run.blocks.max(1)),
                has_data: run.addr.is_some(),
            });
        }
        if first >= Geometry::FILE_BLOCKS_MAX {
            return Ok(PageRun { end: u64::MAX, has_data: false });
        }
        let span = self.run(|state| state.span(ino, first)).await?;
        Ok(PageRun { end: span.end, has_data: span.written(first).is_some() })
    }

    async fn punch_pages(&self, ino: layout::Ino, first: u64, count: u64, now: Timestamp) -> Result<()> {
        self.punch(ino, first, first.saturating_add(count)).await?;
        self.change(|state| state.changed_at(ino, now)).await
    }

    async fn fsync(&self, ino: layout::Ino, kind: SyncKind) -> Result<()> {
        self.sync_files(&[ino], kind).await
    }

    async fn fsync_all(&self, inos: &[layout::Ino], kind: SyncKind) -> Result<()> {
        self.sync_files(inos, kind).await
    }

    async fn sync(&self) -> Result<()> {
        self.sync_all().await
    }

    async fn barrier(&self, ino: layout::Ino, pages: &[DirtyPage], kind: Barrier) -> Result<VfsTicket> {
        let data = self.order_file(ino, pages, kind).await?;
        Ok(Box::pin(async move { data.completed().await }))
    }

    async fn unmount(&self) -> Result<()> {
        let released = self.scratch.end(self).await;
        released.and(self.end().await)
    }

    async fn background(&self, now: Timestamp) -> Option<Duration> {
        self.commit_in_background(now).await
    }

    fn has_background(&self) -> bool {
        true
    }

    fn statfs(&self) -> StatFs {
        let state = self.state.borrow();
        let pages = state.geometry.blocks_count.saturating_sub(self.overhead.get());
        let counts = &state.counts;
        // Blocks that wait for a commit count as free: the commit comes before the answer.
        let pages_free = counts.free_blocks.saturating_sub(counts.claimed);
        StatFs {
            pages,
            pages_free,
            pages_available: pages_free.saturating_sub(state.superblock.reserved_blocks),
            inodes: state.geometry.inodes_count.into(),
            inodes_free: counts.free_inodes,
        }
    }
}

impl Homes for Ext4 {
    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn share_max(&self) -> u64 {
        self.port.share_blocks_max().into()
    }

    async fn give_room_back(&self, ino: layout::Ino, index: u64) -> Result<()> {
        self.change(|state| {
            state.end_claim(ino, index, index + 1);
            Ok(())
        })
        .await
    }

    async fn has_home(&self, ino: layout::Ino, index: u64) -> Result<bool> {
        let home = self.run(|state| state.span(ino, index)).await?.written(index);
        Ok(home.is_some_and(|home| self.has_content(home)))
    }

    async fn is_settled(&self, ino: layout::Ino) -> Result<bool> {
        let wanted = self.run(|state| Ok(state.node(ino)?.data_tid)).await?;
        Ok(self.committed.get() >= wanted)
    }

    async fn share_over(&self, pairs: &[PagePair<Self>]) -> Result<bool> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        let begun = self.run(|state| {
            let mut share = Share { order: self.data_order(Order::Within), ..Share::default() };
            for &((ino, index), (from, from_index)) in pairs {
                let home = state.span(ino, index)?.written(index);
                let source = state.span(from, from_index)?.written(from_index);
                let (Some(home), Some(source)) = (home, source) else { return Ok(None) };
                if state.node(ino)?.data_tid > self.committed.get() {
                    return Ok(None);
                }
                share.add(Block(home.0), Block(source.0));
            }
            Ok(Some((self.begin_write(), share)))
        });
        let Some((number, share)) = begun.await? else { return Ok(false) };
        let ticket = self.port.share(share);
        {
            let mut state = self.state.borrow_mut();
            state.metrics.written_pages += pairs.len() as u64;
            pairs.iter().for_each(|((ino, _), _)| state.note_dispatched(*ino));
        }
        let ended = answer(ticket).await;
        self.end_write(number);
        ended.map(|()| true)
    }
}
