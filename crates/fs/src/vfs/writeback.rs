//! Dirty pages go to the file system: in the background by number and age, or because a caller waits.
//!
//! Place in the data flow: `io` makes pages dirty and waits here at the hard limit; fsync, sync and direct I/O write
//! ranges; one task for each mount does the rest.
//!
//! Invariants:
//! 1. A page is clean only after a write of exactly its content has succeeded. After a failed write all pages of the
//!    batch are dirty again, and each open file reports it once (oracle of crash-laboratory §2.10).
//! 2. Background write-back serves inodes in turn, a batch of each, in ascending order of pages within a round.
//! 3. fsync writes what was dirty when it began; a writer that goes on does not keep it waiting.
//! 4. A writer waits at the hard limit only as long as some page can be written; otherwise it gets the error.
//!
//! Deliberately absent: an estimate of the disk's speed, from which Linux paces writers before they reach the limit.

use super::inode::Inode;
use super::pages::{Slot, State};
use super::state::{Shared, Vfs};
use super::sync::{Either, Event};
use super::types::*;
use super::{Barrier, DirtyPage, Errno, Fs, SyncKind, WriteCause};
use flashweir_core::Instant;
use flashweir_core::executor::Handle;
use std::ops::Deref;
use std::rc::{Rc, Weak};

/// Distance in pages between prefetching the pages of a batch and using them.
const AHEAD: usize = 8;
/// The range of all pages of a file.
pub(crate) const WHOLE: (u64, u64) = (0, u64::MAX);

/// A mount on which a task in the background works; an unmount waits for its end.
struct AtWork<F: Fs> {
    vfs: Vfs<F>,
}

impl<F: Fs> AtWork<F> {
    /// `None` if the mount has ended.
    fn begin(mount: &Weak<Shared<F>>) -> Option<Self> {
        let shared = mount.upgrade().filter(|shared| !shared.unmounted.get())?;
        shared.at_work.set(shared.at_work.get() + 1);
        Some(Self { vfs: Vfs(shared) })
    }
}

impl<F: Fs> Deref for AtWork<F> {
    type Target = Vfs<F>;
    fn deref(&self) -> &Vfs<F> {
        &self.vfs
    }
}

impl<F: Fs> Drop for AtWork<F> {
    fn drop(&mut self) {
        let shared = &self.vfs.0;
        shared.at_work.set(shared.at_work.get() - 1);
        shared.helper_ended.notify();
    }
}

/// The task of background write-back of a mount. It ends with the mount.
pub(crate) async fn run<F: Fs>(mount: Weak<Shared<F>>, work: Rc<Event>, handle: Handle) {
    let mut look_at = None;
    loop {
        let Some(vfs) = AtWork::begin(&mount) else { return };
        vfs.settle_dropped().await;
        let interval = vfs.0.options.cache.writeback_interval;
        let now = handle.now();
        if vfs.is_above_background() && vfs.write_one_batch(Instant::MAX).await {
            continue;
        }
        if look_at.is_some_and(|at| at <= now) {
            vfs.write_expired().await;
            look_at = None;
            // Pages became dirty meanwhile, and nobody waited for the event.
            continue;
        }
        let is_clean = vfs.0.pages.borrow().unclean() == 0;
        vfs.0.idle.set(is_clean);
        if is_clean {
            look_at = None;
        } else if look_at.is_none() {
            look_at = Some(handle.now().saturating_add(interval));
        }
        if !vfs.0.dropped.borrow().is_empty() {
            continue;
        }
        drop(vfs);
        match look_at {
            Some(at) => Either(work.wait(), handle.sleep_until(at)).await,
            None => work.wait().await,
        }
    }
}

/// The task of a mount that lets the file system do its background work. It ends with the mount.
pub(crate) async fn turns<F: Fs>(mount: Weak<Shared<F>>, turn: Rc<Event>, handle: Handle) {
    loop {
        let Some(vfs) = AtWork::begin(&mount) else { return };
        let span = vfs.0.fs.background(vfs.timestamp()).await;
        if vfs.0.unmounted.get() {
            return;
        }
        vfs.0.turn_idle.set(span.is_none());
        drop(vfs);
        match span {
            Some(span) => Either(turn.wait(), handle.sleep_until(handle.now().saturating_add(span))).await,
            None => turn.wait().await,
        }
    }
}

/// Pages that were handed to the file system; if this is dropped before the answer, they are dirty again.
pub(crate) struct Batch<F: Fs> {
    vfs: Vfs<F>,
    pub(crate) inode: Rc<Inode>,
    number: u64,
    pub(crate) pages: Vec<DirtyPage>,
    /// Slots of the pages, in which they stay until the answer.
    slots: Vec<Slot>,
    written: bool,
}

impl<F: Fs> Drop for Batch<F> {
    fn drop(&mut self) {
        let mut pages = self.vfs.0.pages.borrow_mut();
        let mut is_dirty = false;
        for (at, slot) in self.slots.iter().enumerate() {
            self.slots.get(at + AHEAD).inspect(|slot| pages.prefetch(**slot));
            is_dirty |= pages.end_write(*slot, self.written);
        }
        drop(pages);
        if is_dirty {
            self.vfs.queue_dirty(&self.inode);
        }
        self.vfs.0.batches.give_back(std::mem::take(&mut self.pages));
        self.vfs.0.slots.give_back(std::mem::take(&mut self.slots));
        self.inode.end_batch(self.number);
        self.inode.changed.notify();
        self.vfs.0.cleaned.notify();
    }
}

impl<F: Fs> Vfs<F> {
    /// Notes that pages were written: the file system may have background work.
    #[inline]
    pub(crate) fn note_written(&self) {
        if self.0.turn_idle.replace(false) {
            self.0.turn.notify();
        }
    }

    // Becoming dirty.

    /// Notes that the inode has dirty pages.
    #[inline]
    pub(crate) fn queue_dirty(&self, inode: &Rc<Inode>) {
        if !inode.queued.replace(true) {
            self.0.dirty.borrow_mut().push_back(Rc::clone(inode));
        }
        if self.0.idle.replace(false) || self.is_above_background() {
            self.0.work.notify();
        }
    }

    /// Waits until `pages` more pages can become dirty. Waiting writers get equal shares of pages, not of calls, as in Linux: the
    /// turn of a writer comes when as many pages were granted since its arrival as it wants itself (self-clocked fair queueing).
    #[inline]
    pub(crate) async fn throttle(&self, pages: u64) -> Result<()> {
        if self.0.throttled.borrow().is_empty() && self.has_room_for_dirty(pages) {
            return Ok(());
        }
        let start = self.now();
        let (turns, arrivals) = self.0.throttle_clock.get();
        let place = (turns + pages, arrivals);
        self.0.throttle_clock.set((turns, arrivals + 1));
        self.0.throttled.borrow_mut().insert(place);
        let may_go = || self.0.throttled.borrow().first() == Some(&place) && self.has_room_for_dirty(pages);
        let waited = loop {
            if may_go() {
                self.0.throttle_clock.set((place.0, self.0.throttle_clock.get().1));
                break Ok(());
            }
            self.0.work.notify();
            self.0.cleaned.wait().await;
            if let Some(errno) = self.0.stuck.get().filter(|_| !may_go()) {
                break Err(errno);
            }
        };
        self.0.throttled.borrow_mut().remove(&place);
        // There may be room for the next writer as well.
        self.0.cleaned.notify();
        let waited_ns = self.now().since(start).as_nanos();
        self.count(|count| {
            count.throttled_waits += 1;
            count.throttled_ns += waited_ns;
        });
        waited
    }

    #[inline]
    fn has_room_for_dirty(&self, pages: u64) -> bool {
        let cached = self.0.pages.borrow();
        let (unclean, withheld) = (cached.unclean() as u64, cached.withheld() as u64);
        unclean == 0 || unclean + withheld + pages <= self.0.options.cache.dirty_hard_pages
    }

    /// Waits until `pages` more pages can be withheld. `ENOMEM` if everything that fills the memory is withheld: no write-back makes
    /// room then, only a sync, an abort or a shorter file.
    pub(crate) async fn throttle_withheld(&self, pages: u64) -> Result<()> {
        let mut has_waited = false;
        loop {
            let (unclean, withheld) = {
                let cached = self.0.pages.borrow();
                (cached.unclean() as u64, cached.withheld() as u64)
            };
            if unclean + withheld + pages <= self.0.options.cache.dirty_hard_pages {
                return Ok(());
            }
            if unclean == 0 {
                return Err(Errno::ENOMEM);
            }
            if let Some(errno) = self.0.stuck.get().filter(|_| has_waited) {
                return Err(errno);
            }
            self.0.work.notify();
            self.0.cleaned.wait().await;
            has_waited = true;
        }
    }

    fn is_above_background(&self) -> bool {
        let cache = &self.0.options.cache;
        let unclean = self.0.pages.borrow().unclean() as u64;
        unclean > cache.dirty_background_pages || (!self.0.throttled.borrow().is_empty() && unclean > 0)
    }

    // Writing.

    /// Marks the pages of `indices` that are in this state, dirty or withheld, as being written, and collects them.
    pub(crate) fn begin_batch(&self, inode: &Rc<Inode>, indices: &[(u64, Slot)], state: State) -> Batch<F> {
        let (mut batch, mut slots) = (self.0.batches.take(), self.0.slots.take());
        let mut pages = self.0.pages.borrow_mut();
        for (at, &(index, found)) in indices.iter().enumerate() {
            indices.get(at + AHEAD).inspect(|(_, slot)| pages.prefetch(*slot));
            let Some(slot) = pages.find_again(inode.owner, (index, found)) else { continue };
            if pages.state(slot) == state {
                pages.begin_write(slot);
                batch.push(DirtyPage { index, payload: pages.payload(slot).clone() });
                slots.push(slot);
            }
        }
        drop(pages);
        let (vfs, inode, number) = (self.clone(), Rc::clone(inode), inode.begin_batch());
        Batch { vfs, inode, number, pages: batch, slots, written: false }
    }

    /// Writes the pages of `indices` that are still dirty. Returns their number.
    async fn write_batch(
        &self,
        inode: &Rc<Inode>,
        indices: &[(u64, Slot)],
        cause: WriteCause,
    ) -> Result<usize> {
        let mut batch = self.begin_batch(inode, indices, State::Dirty);
        let count = batch.pages.len();
        if count == 0 {
            return Ok(0);
        }
        let result = self.0.fs.write_pages(inode.ino, &batch.pages, cause).await;
        self.note_written();
        self.end_batch(&mut batch, result, cause).map(|()| count)
    }

    /// Hands the dirty pages of a range, written up to byte `end` of the file, to a file system that journals data. They are taken
    /// before anything is awaited. The caller tells of an error, and drops the pages.
    pub(crate) async fn hand_over(&self, inode: &Rc<Inode>, range: (u64, u64), end: u64) -> Result<()> {
        let mut indices = Vec::new();
        self.0.pages.borrow().dirty_indices(inode.owner, range, self.now(), &mut indices);
        let mut batch = self.begin_batch(inode, &indices, State::Dirty);
        let result = self.0.fs.write_at_once(inode.ino, &batch.pages, end, self.timestamp()).await;
        self.note_written();
        if result.is_err() {
            self.count(|counts| counts.failed_pages += batch.pages.len() as u64);
            return result;
        }
        self.end_batch(&mut batch, result, WriteCause::Sync)
    }

    pub(crate) fn end_batch(
        &self,
        batch: &mut Batch<F>,
        result: Result<()>,
        cause: WriteCause,
    ) -> Result<()> {
        let count = batch.pages.len() as u64;
        batch.written = result.is_ok();
        match result {
            Ok(()) => self.0.stuck.set(None),
            Err(errno) => batch.inode.record_error(errno),
        }
        self.count(|counts| match (result, cause) {
            (Err(_), _) => counts.failed_pages += count,
            (Ok(()), WriteCause::Background) => counts.background_written_pages += count,
            (Ok(()), _) => counts.sync_written_pages += count,
        });
        result
    }

    /// Writes the pages within `range` that are dirty now, and waits for those that are being written now.
    pub(crate) async fn write_range(
        &self,
        inode: &Rc<Inode>,
        range: (u64, u64),
        cause: WriteCause,
    ) -> Result<()> {
        if self.0.pages.borrow().unclean_of(inode.owner) == 0 {
            return Ok(());
        }
        let batch_pages = self.0.options.cache.batch_pages as usize;
        let mut indices = Vec::new();
        // A page that is being written and was changed again is dirty in the second round; no further round is needed.
        let now = self.now();
        let errors_before = inode.error_count();
        for _ in 0..2 {
            indices.clear();
            self.0.pages.borrow().dirty_indices(inode.owner, range, now, &mut indices);
            for batch in indices.chunks(batch_pages) {
                self.write_batch(inode, batch, cause).await?;
            }
            if self.0.pages.borrow().unclean_of(inode.owner) == 0 {
                break;
            }
            inode.batches_ended().await;
        }
        // Another task's batch may have failed during the wait.
        if inode.error_count() == errors_before { Ok(()) } else { Err(inode.last_error()) }
    }

    /// Background: writes a batch of the next inode with pages that became dirty until `until`. Returns false if no such page can
    /// be written.
    async fn write_one_batch(&self, until: Instant) -> bool {
        let now = self.now();
        // Since it was set other pages may have become dirty.
        self.0.stuck.set(None);
        let (mut failed, mut failed_pages) = (None, 0);
        let turns = self.0.dirty.borrow().len();
        for _ in 0..turns {
            let Some(inode) = self.0.dirty.borrow_mut().pop_front() else { break };
            if !self.0.pages.borrow().has_dirty(inode.owner) {
                inode.queued.set(false);
                self.forget_if_idle(&inode, 2);
                continue;
            }
            self.0.dirty.borrow_mut().push_back(Rc::clone(&inode));
            if inode.retry_at.get() > now {
                failed = Some(inode.last_error());
                failed_pages += self.unclean_and_waiting(&inode);
                continue;
            }
            match self.write_next_of(&inode, until).await {
                Ok(0) => continue,
                Ok(_) => {
                    // There is no caller that could get the error; recovery finds the space.
                    let _ = self.settle(&inode).await;
                    return true;
                }
                Err(errno) => {
                    inode.retry_at.set(self.now().saturating_add(self.0.options.cache.writeback_interval));
                    failed = Some(errno);
                    failed_pages += self.unclean_and_waiting(&inode);
                }
            }
        }
        // Writers wait as long as a page of another file can be written, or is being written.
        if failed.is_some() && failed_pages == self.0.pages.borrow().unclean() {
            self.0.stuck.set(failed);
            self.0.cleaned.notify();
        }
        false
    }

    /// Number of unclean pages of an inode, or 0 while some of them are being written.
    fn unclean_and_waiting(&self, inode: &Inode) -> usize {
        if inode.is_being_written() { 0 } else { self.0.pages.borrow().unclean_of(inode.owner) as usize }
    }

    /// Writes the next batch of the inode's round; begins a new round if none is left.
    async fn write_next_of(&self, inode: &Rc<Inode>, until: Instant) -> Result<usize> {
        let mut next = Vec::new();
        loop {
            let is_new = self.plan_batch(inode, until, &mut next);
            let written = self.write_batch(inode, &next, WriteCause::Background).await?;
            if written > 0 || is_new {
                return Ok(written);
            }
            // Other tasks may have written the rest of an old round meanwhile.
        }
    }

    /// Takes the next batch of the inode's round. Returns whether a new round began.
    fn plan_batch(&self, inode: &Inode, until: Instant, next: &mut Vec<(u64, Slot)>) -> bool {
        let mut round = inode.round.borrow_mut();
        let is_new = round.is_empty();
        if is_new {
            self.0.pages.borrow().dirty_indices(inode.owner, WHOLE, until, &mut round);
            round.reverse();
        }
        let left = round.len().saturating_sub(self.0.options.cache.batch_pages as usize);
        next.clear();
        next.extend(round.drain(left..).rev());
        is_new
    }

    /// Background: writes all pages that have expired.
    async fn write_expired(&self) {
        let expire = self.0.options.cache.dirty_expire.as_nanos();
        let Some(until) = self.now().as_nanos().checked_sub(expire).map(Instant::from_nanos) else { return };
        while self.write_one_batch(until).await {}
    }

    // Durability.

    /// Writes the dirty pages of the inode and makes them durable.
    pub(crate) async fn sync_inode(&self, inode: &Rc<Inode>, kind: SyncKind) -> Result<()> {
        self.sync_inodes(std::slice::from_ref(inode), kind).await
    }

    /// The same of several inodes.
    pub(crate) async fn sync_inodes(&self, inodes: &[Rc<Inode>], kind: SyncKind) -> Result<()> {
        let cause = kind.into();
        let is_in_order = self.0.fs.syncs_in_order();
        let mut result = Ok(());
        for inode in inodes {
            result = result.and(match is_in_order {
                true => self.sync_in_order(inode, kind, cause).await,
                false => self.write_range(inode, WHOLE, cause).await,
            });
        }
        if is_in_order {
            return result;
        }
        result?;
        let inos: Vec<Ino> = inodes.iter().map(|inode| inode.ino).collect();
        let synced = self.0.fs.fsync_all(&inos, kind).await;
        synced.inspect_err(|errno| inodes.iter().for_each(|inode| inode.record_error(*errno)))
    }

    /// Does the same in dual mode: dispatches the pages, and then what makes them durable.
    async fn sync_in_order(&self, inode: &Rc<Inode>, kind: SyncKind, cause: WriteCause) -> Result<()> {
        let errors_before = inode.error_count();
        let mut batch = self.dirty_batch(inode).await;
        let dispatched = match batch.pages.is_empty() {
            true => Ok(None),
            false => self.0.fs.barrier(inode.ino, &batch.pages, kind.into()).await.map(Some),
        };
        let (written, synced) = match dispatched {
            Ok(ticket) => {
                inode.batch_is_ordered(batch.number);
                let synced = self.0.fs.fsync(inode.ino, kind).await;
                (
                    match ticket {
                        Some(ticket) => ticket.await,
                        None => Ok(()),
                    },
                    synced,
                )
            }
            Err(errno) => (Err(errno), Ok(())),
        };
        self.note_written();
        let written = self.end_batch(&mut batch, written, cause);
        if let Err(errno) = synced {
            inode.record_error(errno);
        }
        written.and(synced)?;
        drop(batch);
        // The device has answered earlier batches by now, or will soon.
        inode.batches_ended().await;
        // Another task's batch may have failed during the wait.
        if inode.error_count() == errors_before { Ok(()) } else { Err(inode.last_error()) }
    }

    /// All dirty pages of an inode, once the batches that are under way have ended or are ordered. Waits for a page that is being
    /// written and has changed since.
    async fn dirty_batch(&self, inode: &Rc<Inode>) -> Batch<F> {
        if self.0.fs.syncs_in_order() {
            inode.batches_ordered().await;
        }
        let has_order = || self.0.fs.syncs_in_order() && !self.0.pages.borrow().has_redirtied(inode.owner);
        if inode.is_being_written() && !has_order() {
            inode.batches_ended().await;
        }
        let mut indices = Vec::new();
        self.0.pages.borrow().dirty_indices(inode.owner, WHOLE, self.now(), &mut indices);
        let batch = self.begin_batch(inode, &indices, State::Dirty);
        // Meanwhile another task may have begun to write pages that were dirty before.
        inode.batches_ordered_before(batch.number).await;
        batch
    }

    /// Hands the dirty pages of the inode to the file system in order, and leaves waiting for the answer to a task.
    pub(crate) async fn order_inode(&self, inode: &Rc<Inode>, kind: Barrier) -> Result<()> {
        if !self.0.fs.has_barriers() {
            return Err(Errno::EOPNOTSUPP);
        }
        let user = self.use_inode(inode.ino).await?;
        let mut batch = self.dirty_batch(inode).await;
        let ticket = match self.0.fs.barrier(inode.ino, &batch.pages, kind).await {
            Ok(ticket) => ticket,
            Err(errno) => {
                let failed = self.end_batch(&mut batch, Err(errno), WriteCause::Sync);
                drop(batch);
                return failed.and(self.end_use(user).await);
            }
        };
        // The batch is passed to the task as it is: a caller that waits for batches that have begun waits for the end of this one.
        inode.batch_is_ordered(batch.number);
        let vfs = self.clone();
        self.spawn_helper(async move {
            let result = ticket.await;
            // Open files report the error at their next fsync.
            let _ = vfs.end_batch(&mut batch, result, WriteCause::Sync);
            drop(batch);
            let _ = vfs.end_use(user).await;
        });
        Ok(())
    }

    /// sync: writes everything and makes it durable, except for what is withheld. Returns the first error, after everything was tried.
    pub async fn sync_all(&self) -> Result<()> {
        if self.0.options.read_only {
            return Ok(());
        }
        let written = self.write_all().await;
        written.and(self.0.fs.sync().await)
    }

    /// Writes all dirty pages. Returns the first error, after everything was tried.
    pub(crate) async fn write_all(&self) -> Result<()> {
        let inodes: Vec<Rc<Inode>> = self.0.inodes.borrow().values().cloned().collect();
        let mut first = Ok(());
        for inode in inodes {
            if self.0.pages.borrow().unclean_of(inode.owner) > 0 {
                first = first.and(self.write_range(&inode, WHOLE, WriteCause::Sync).await);
                first = first.and(self.settle(&inode).await);
            }
            self.forget_if_idle(&inode, 2);
        }
        first
    }
}
