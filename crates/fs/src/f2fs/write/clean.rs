//! Cleaning: the valid blocks of a section move, so that the section is free after the next checkpoint.
//!
//! Place in the data flow: operations that take room come through [`F2fs::balance`] first; the vfs runs the turns of background cleaning.
//!
//! A summary names the owner that a block had when it was written; whether the owner still refers to the block is checked. Data go to the
//! cold log at once. Nodes become dirty and move with the next checkpoint.
//!
//! With [`CleanBy::Share`] (SSC, share §6) blocks of data are neither read nor written: their new places take over the old ones, and the
//! next checkpoint is made when that has been answered. Blocks that are in memory and newer are written. Nodes move as ever, since their
//! footers chain what was synced.
//!
//! Invariants:
//! 1. One section is cleaned at a time. From its choice on no page is written in place there, and writes that were under way then have
//!    completed before it is read.
//! 2. A block that was moved is readable at its new place at once: until it has arrived, `moving` has its content, or says that a SHARE
//!    brings it, for which a reader waits.
//! 3. Cleaning ends: each section is looked at once between two checkpoints, and where little was gained it is not tried
//!    again before there are more holes.

use super::super::error::Result;
use super::super::layout::node::{self, Footer};
use super::super::layout::summary::Owner;
use super::super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::moving::Moving;
use super::options::CleanBy;
use super::space::Choice;
use super::state::State;
use super::stop::{Step, Stop};
use super::{F2fs, Scope, Turns};
use crate::boxed::Boxed;
use crate::order::{answers, errno_of};
use crate::port::{BlockBytes, Share, Ticket, Write, payload_of};
use crate::vfs::{Errno, Timestamp};
use flashweir_core::command::Tag;
use flashweir_core::{Duration, Order, Payload};

/// Why a section is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// An operation waits for room.
    Foreground,
    /// There is time for it.
    Background,
}

impl State {
    /// Inode and block of the file to which a block belongs, if the one that its summary names still refers to it.
    pub(super) fn data_of(&self, addr: Addr, owner: Owner) -> Step<Option<(Nid, u64)>> {
        let Some(entry) = self.nat.get(&owner.nid).filter(|entry| entry.addr != Addr::NULL) else {
            return Ok(None);
        };
        if entry.version != owner.version {
            return Ok(None);
        }
        let (ino, at) = (entry.ino, u32::from(owner.offset));
        let inode = self.inode(ino)?;
        let addresses = inode.address_count();
        let (offset, room) = if owner.nid == ino {
            (0, if inode.has_addresses() { addresses } else { 0 })
        } else {
            let block = self.nodes.get(&owner.nid).ok_or(Stop::AnyNode(owner.nid))?;
            (Footer::decode(&block[..]).offset, node::NODE_WORDS)
        };
        let first = node::first_block(offset, addresses);
        match first.filter(|_| at < room) {
            Some(first) if self.address_in(ino, owner.nid, at)? == addr => {
                Ok(Some((ino, first + u64::from(at))))
            }
            _ => Ok(None),
        }
    }

    /// Moves a block of data to the cold log. The content that it gets is that of the disk, where that was read, or newer; none if
    /// the disk has it. Does nothing if its owner does not refer to it any more.
    fn move_data(
        &mut self,
        from: Addr,
        owner: Owner,
        content: Option<&Payload>,
    ) -> Step<Option<(Nid, Addr, Option<Payload>)>> {
        let Some((ino, index)) = self.data_of(from, owner)? else { return Ok(None) };
        let (segment, _) = self.geometry.place_of(from).expect("victims are in the main area");
        let age = self.sit[segment.0 as usize].mtime_s;
        let to = self.allocate_aged(Log::ColdData, owner, Some(age))?;
        self.set_address_in(ino, owner.nid, u32::from(owner.offset), to)?;
        self.release_block(from);
        if self.inode(ino)?.extent.blocks > 0 {
            self.inode_mut(ino)?.extent = Default::default();
        }
        let is_newer = self.blocks_dirty.remove(&(ino, index)) || content.is_some();
        let content = match self.blocks.get(&(ino, index)).filter(|_| is_newer) {
            Some(newer) => Some(payload_of(newer)),
            None => content.cloned(),
        };
        self.metrics.moved_data_blocks += 1;
        Ok(Some((ino, to, content)))
    }

    /// Marks a node to be rewritten, if it is still at this block.
    pub(super) fn move_node(&mut self, from: Addr, nid: Nid) -> Step<()> {
        let Some(entry) = self.nat.get(&nid).filter(|entry| entry.addr == from) else { return Ok(()) };
        // A checkpoint needs the inode to place any of its nodes: what cannot be read stays where it is.
        self.inode(entry.ino)?;
        if entry.ino != nid && !self.nodes.contains_key(&nid) {
            return Err(Stop::AnyNode(nid));
        }
        self.dirty.insert((entry.ino, nid));
        self.changed = true;
        self.metrics.moved_node_blocks += 1;
        Ok(())
    }

    /// Valid blocks of a segment with their owners.
    pub(super) fn valid_blocks_of(&self, segment: SegNo) -> Step<Vec<(Addr, Owner)>> {
        let entry = &self.sit[segment.0 as usize];
        if entry.valid == 0 {
            return Ok(Vec::new());
        }
        let owners = &self.space.summary(segment)?.owners;
        let valid = (0..SEGMENT_BLOCKS).filter(|&offset| entry.is_valid(offset));
        Ok(valid.map(|at| (self.geometry.main_block(segment, at), owners[at as usize])).collect())
    }
}

impl F2fs {
    /// Loads a node of which only the number is known.
    pub(super) async fn load_any_node(&self, nid: Nid, addr: Addr) -> Result<()> {
        let block = self.volume.node_block(nid, addr).await?;
        let block: BlockBytes = block[..].try_into().expect("a block");
        self.state.borrow_mut().nodes.insert_new(nid, Box::new(block));
        Ok(())
    }

    /// Cleans until there is room for a checkpoint and for cleaning itself. Called before an operation that takes room.
    pub(super) async fn balance(&self) -> std::result::Result<(), Errno> {
        if !self.needs_room() {
            return Ok(());
        }
        self.changes.until(|| !self.is_cleaning.get()).await;
        if !self.needs_room() {
            return Ok(());
        }
        self.is_cleaning.set(true);
        let result = self.gain_room().await;
        self.is_cleaning.set(false);
        self.changes.notify();
        result
    }

    #[inline]
    pub(super) fn needs_room(&self) -> bool {
        let state = self.state.borrow();
        state.is_short(0) && !state.is_hopeless()
    }

    /// In a box, because otherwise the future of each change would be larger by this one, which it seldom needs.
    fn gain_room(&self) -> Boxed<'_, std::result::Result<(), Errno>> {
        Box::pin(async move {
            if self.state.borrow().has_emptied() {
                self.checkpoint_of(Scope::Metadata).await?;
            }
            let (mut freed, mut looked_at) = (0, 0);
            let sections = self.state.borrow().sections();
            while self.state.borrow().is_short(freed) && looked_at < sections {
                let Some(victim) = self.state.borrow().victim(Choice::Greedy) else { break };
                if freed > 0 && self.state.borrow().needs_checkpoint_before_cleaning(victim) {
                    self.checkpoint_of(Scope::Metadata).await?;
                    freed = 0;
                    continue;
                }
                let is_empty = self.clean(victim, Reason::Foreground).await?;
                (freed, looked_at) = (freed + u32::from(is_empty), looked_at + 1);
            }
            if freed > 0 {
                self.checkpoint_of(Scope::Metadata).await?;
            }
            self.state.borrow_mut().note_hope();
            Ok(())
        })
    }

    /// Moves the valid blocks out of a section. Returns false if the disk could not read some of them.
    async fn clean(&self, section: u32, reason: Reason) -> std::result::Result<bool, Errno> {
        {
            let space = &mut self.state.borrow_mut().space;
            space.cleaned.insert(section);
            space.cleaning = Some(section);
        }
        let result = self.empty_section(section).await;
        let mut state = self.state.borrow_mut();
        state.space.cleaning = None;
        if let Err(errno) = result {
            // Whoever needs the block hears of it. The section stays, and others are cleaned.
            let is_unreadable =
                [Errno::EIO, Errno::EUCLEAN, Errno::ESTALE].contains(&errno) && !self.failed.get();
            state.space.unreadable.extend(is_unreadable.then_some(section));
            return if is_unreadable { Ok(false) } else { Err(errno) };
        }
        match reason {
            Reason::Foreground => state.metrics.cleaned_foreground += 1,
            Reason::Background => state.metrics.cleaned_background += 1,
        }
        Ok(true)
    }

    async fn empty_section(&self, section: u32) -> std::result::Result<(), Errno> {
        let before = self.writes.get();
        self.changes.until(|| !self.writes_before(before)).await;
        self.settle().await?;
        self.answered(None).await?;
        let per_section = self.state.borrow().geometry.segments_per_section;
        for segment in (section * per_section..(section + 1) * per_section).map(SegNo) {
            let valid = self.run(|state| state.valid_blocks_of(segment)).await?;
            let is_node =
                usize::from(self.state.borrow().sit[segment.0 as usize].log) >= Log::HotNode.index();
            if is_node {
                for (addr, owner) in valid {
                    self.run(|state| state.move_node(addr, owner.nid)).await?;
                }
            } else {
                self.move_data(valid).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn move_data(&self, valid: Vec<(Addr, Owner)>) -> std::result::Result<(), Errno> {
        // A checkpoint that frees one of these blocks meanwhile does not discard it before it was read.
        let reading = self.begin_read();
        let moved = self.move_read(valid).await;
        self.end_read(reading);
        moved
    }

    async fn move_read(&self, valid: Vec<(Addr, Owner)>) -> std::result::Result<(), Errno> {
        let mut wanted = Vec::with_capacity(valid.len());
        for (addr, owner) in valid {
            if self.run(|state| state.data_of(addr, owner)).await?.is_some() {
                wanted.push((addr, owner));
            }
        }
        let is_shared = |at: Addr| self.options.clean_by == CleanBy::Share && self.has_content(at);
        let runs =
            wanted.chunk_by(|&(one, _), &(next, _)| one.0 + 1 == next.0 && is_shared(one) == is_shared(next));
        let read = |run: &[(Addr, Owner)]| self.port.read(Geometry::block(run[0].0), run.len() as u32);
        let reads: Vec<_> = runs.map(|run| (run, (!is_shared(run[0].0)).then(|| read(run)))).collect();
        let number = self.begin_write(Nid(0));
        let mut moved = Moved::default();
        let mut result = Ok(());
        for (run, ticket) in reads {
            let contents = match ticket {
                None => None,
                Some(ticket) => match ticket.completed().await {
                    Ok(contents) => Some(contents),
                    Err(error) => {
                        result = result.and(Err(errno_of(&error)));
                        continue;
                    }
                },
            };
            for (at, &(addr, owner)) in run.iter().enumerate() {
                let content = contents.as_ref().map(|contents| &contents[at]);
                match self.run(|state| self.move_one(state, addr, owner, content)).await {
                    Ok(Some((ino, to, Some(content)))) => self.note_moved(&mut moved, ino, to, content),
                    Ok(Some((ino, to, None))) => self.note_shared(&mut moved, ino, to, addr),
                    Ok(None) => (),
                    Err(errno) => result = result.and(Err(errno)),
                }
            }
        }
        self.submit_shared(&mut moved);
        self.submit_moved(&mut moved);
        self.end_placing(number);
        let mut answered = answers(moved.tickets).await;
        for (ticket, share) in moved.shares {
            answered = answered.and(self.shared_or_copied(ticket, &share).await);
        }
        if answered.is_err() {
            // Addresses in memory lead to places without contents; no checkpoint may say so.
            self.failed.set(true);
        }
        result = result.and(answered);
        let mut moving = self.moving.borrow_mut();
        moved.places.iter().for_each(|addr| {
            moving.remove(addr);
        });
        drop(moving);
        self.end_write(number);
        result
    }

    /// Moves a block unless its file is in the middle of an fsync, whose nodes would then refer to the new place.
    fn move_one(
        &self,
        state: &mut State,
        addr: Addr,
        owner: Owner,
        content: Option<&Payload>,
    ) -> Step<Option<(Nid, Addr, Option<Payload>)>> {
        match state.data_of(addr, owner)? {
            Some((ino, _)) if self.frozen.borrow().contains(&ino) => Ok(None),
            _ => state.move_data(addr, owner, content),
        }
    }

    fn note_moved(&self, moved: &mut Moved, ino: Nid, to: Addr, content: Payload) {
        self.note_place(moved, ino, to, Moving::Content(content.clone()));
        let tag = Tag(u64::from(ino.0));
        match moved.writes.last_mut() {
            Some(last)
                if last.tags[0] == tag && last.block.0 + last.payloads.len() as u64 == u64::from(to.0) =>
            {
                last.payloads.push(content);
            }
            _ => {
                self.submit_moved(moved);
                let mut write = Write::new(Geometry::block(to), vec![content]);
                write.tags = [tag, self.state.borrow().data_tag()];
                moved.writes.push(write);
            }
        }
    }

    fn note_place(&self, moved: &mut Moved, ino: Nid, to: Addr, moving: Moving) {
        self.moving.borrow_mut().insert(to, moving);
        moved.places.push(to);
        self.note_wet(ino);
        self.note_wet_to(ino, Geometry::block(to));
        self.note_moved_page(ino);
    }

    /// Notes that a place takes over another one. All blocks of a SHARE are of one file, since it has one pair of tags.
    fn note_shared(&self, moved: &mut Moved, ino: Nid, to: Addr, from: Addr) {
        self.note_place(moved, ino, to, Moving::Disk);
        let tag = Tag(u64::from(ino.0));
        if moved.share.tags[0] != tag || moved.shared == self.port.share_blocks_max() {
            self.submit_shared(moved);
            moved.share.tags = [tag, self.state.borrow().data_tag()];
        }
        moved.shared += 1;
        moved.share.add(Geometry::block(to), Geometry::block(from));
    }

    fn submit_shared(&self, moved: &mut Moved) {
        let (share, shared) = (std::mem::take(&mut moved.share), std::mem::take(&mut moved.shared));
        if shared > 0 {
            {
                let metrics = &mut self.state.borrow_mut().metrics;
                metrics.shares += 1;
                metrics.shared_data_blocks += u64::from(shared);
            }
            moved.shares.push((self.submit_share(share.clone()), share));
        }
    }

    fn submit_moved(&self, moved: &mut Moved) {
        for write in moved.writes.drain(..) {
            self.state.borrow_mut().metrics.written_blocks += write.payloads.len() as u64;
            moved.tickets.push(self.submit_data(write, Order::Within));
        }
    }

    /// Number of sections that are not cleaned because the disk could not read a block of them.
    #[cfg(test)]
    pub(crate) fn unreadable_sections(&self) -> usize {
        self.state.borrow().space.unreadable.len()
    }

    /// Does one turn of background cleaning if it is time for one, and makes a checkpoint if something changed and none was made
    /// for `interval`. Returns the time until the next call.
    pub(super) async fn checkpoint_in_background(&self, now: Timestamp, interval: Duration) -> Duration {
        let seconds = |span: Duration| span.as_nanos().div_ceil(1_000_000_000).max(1);
        let now_s = now.seconds.max(0) as u64;
        let Turns { mut clean_s, mut looked_s, mut begun } = self.turns.get();
        if now_s >= clean_s {
            let span = self.clean_in_background(now).await;
            clean_s = now_s + seconds(span.unwrap_or(interval));
        }
        if now_s >= looked_s + seconds(interval) {
            if looked_s > 0 && self.checkpoints_begun.get() == begun {
                // Callers that need to know of an error get it as well.
                let _ = self.checkpoint().await;
            }
            (looked_s, begun) = (now_s, self.checkpoints_begun.get());
        }
        self.turns.set(Turns { clean_s, looked_s, begun });
        let next_s = clean_s.min(looked_s + seconds(interval)).saturating_sub(now_s);
        Duration::from_secs(next_s.max(1))
    }

    /// Does one turn of background cleaning; returns the time until the next one.
    pub(super) async fn clean_in_background(&self, now: Timestamp) -> Option<Duration> {
        let times = self.options.background.clone()?;
        let slept = self.sleep.get().unwrap_or(times.sleep_min);
        if self.failed.get() || !self.has_new_holes.get() {
            self.is_asleep.set(true);
            return None;
        }
        if self.is_asleep.replace(false) {
            // Writers take precedence.
            return Some(slept);
        }
        let step = times.sleep_min;
        let longer =
            if slept == times.sleep_without_victim { slept } else { (slept + step).min(times.sleep_max) };
        let shorter = match slept == times.sleep_without_victim {
            true => times.sleep_max,
            false => slept.saturating_sub(step).max(step),
        };
        let sleep = |span: Duration| {
            self.sleep.set(Some(span));
            Some(span)
        };
        let is_idle = self.state.borrow_mut().space.clock.is_idle(now, times.idle);
        if !is_idle
            || self.is_cleaning.get()
            || self.is_checkpointing.get()
            || !self.writing.borrow().is_empty()
        {
            return sleep(longer);
        }
        let next = if self.state.borrow().has_many_holes() { shorter } else { longer };
        let victim = self.state.borrow().victim(Choice::CostBenefit);
        let Some(victim) = victim else {
            // There is nothing to clean before the next write.
            self.has_new_holes.set(false);
            self.is_asleep.set(true);
            sleep(times.sleep_without_victim);
            return None;
        };
        // Without a checkpoint the sections that it empties would stay, until those are used up that a checkpoint needs.
        let (is_short, is_tight, has_emptied) = {
            let state = self.state.borrow();
            (state.is_short(0), state.needs_checkpoint_before_cleaning(victim), state.has_emptied())
        };
        if (is_short || is_tight) && has_emptied {
            // Callers that need to know of an error get it as well.
            let _ = self.checkpoint_of(Scope::Metadata).await;
            return sleep(next);
        }
        if is_tight {
            return sleep(longer);
        }
        self.is_cleaning.set(true);
        let cleaned = self.clean(victim, Reason::Background).await;
        self.is_cleaning.set(false);
        self.changes.notify();
        match cleaned {
            Ok(_) if next == times.sleep_without_victim => sleep(times.sleep_min),
            Ok(_) => sleep(next),
            // Callers that need to know of the error get it as well.
            Err(_) => sleep(times.sleep_without_victim),
        }
    }
}

/// Blocks that are being moved.
#[derive(Default)]
struct Moved {
    writes: Vec<Write>,
    /// A SHARE that is not submitted yet, and the number of its blocks.
    share: Share,
    shared: u32,
    shares: Vec<(Ticket, Share)>,
    tickets: Vec<Ticket>,
    places: Vec<Addr>,
}
