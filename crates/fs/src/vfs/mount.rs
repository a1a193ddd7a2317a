//! A mounted file system: its pages and inodes in memory, from mount to unmount.
//!
//! Place in the data flow: everything that the vfs does is a method of [`Vfs`], in files by topic: `names` and `attrs` (rules),
//! `walk` (paths), `io` and `direct` (data), `readahead`, `writeback`.
//!
//! Invariant: a call is run to its end. A future that is dropped before leaves no lock and no page behind, but an inode that it
//! used stays in use; only a power cut drops futures.

use super::config::{ConfigError, MountOptions, VfsMetrics};
use super::inode::Inode;
use super::pages::Pages;
use super::state::{Pool, Shared, Vfs};
use super::sync::{Event, RwLock};
use super::types::*;
use super::{Errno, Fs};
use flashweir_core::cpus::Cpus;
use flashweir_core::executor::{Handle, Sleep};
use flashweir_core::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A reference that keeps an inode in the table.
pub(crate) struct InodeRef<F: Fs> {
    vfs: Vfs<F>,
    inode: Rc<Inode>,
}

impl<F: Fs> InodeRef<F> {
    pub(crate) fn rc(&self) -> &Rc<Inode> {
        &self.inode
    }
    pub(crate) fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }
}

impl<F: Fs> Deref for InodeRef<F> {
    type Target = Inode;
    #[inline]
    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl<F: Fs> Drop for InodeRef<F> {
    fn drop(&mut self) {
        // Two references are left: that of the table and this one.
        self.vfs.forget_if_idle(&self.inode, 2);
    }
}

/// Time on a CPU of the host, booked when it is asked for. Each call of an application waits for one or two of these, so this is a
/// plain future and not one of several.
#[derive(Debug)]
#[must_use = "time passes while it is awaited"]
pub(crate) struct Charge(Option<Sleep>);

impl Future for Charge {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().map_or(Poll::Ready(()), |sleep| Pin::new(sleep).poll(context))
    }
}

impl<F: Fs> Vfs<F> {
    /// Mounts `fs`, which must not be used otherwise from here on. Background write-back becomes a task of the executor of
    /// `handle`; it sets no timer while nothing is dirty.
    pub fn mount(fs: F, handle: Handle, options: MountOptions) -> std::result::Result<Self, ConfigError> {
        options.validate(fs.has_barriers())?;
        let capacity = options.cache.capacity_pages as usize;
        let vfs = Self(Rc::new(Shared {
            limits: fs.limits(),
            fs,
            civil: Cell::new((Instant::ZERO, Timestamp { seconds: options.epoch_seconds, nanos: 0 })),
            cpus: RefCell::new(Cpus::new(options.costs.cpus)),
            options,
            handle: handle.clone(),
            pages: RefCell::new(Pages::new(capacity)),
            inodes: RefCell::default(),
            owners_freed: Rc::default(),
            dirty: RefCell::default(),
            dropped: RefCell::default(),
            renames: RwLock::default(),
            work: Rc::default(),
            throttled: RefCell::default(),
            throttle_clock: Cell::default(),
            idle: Cell::new(false),
            turn: Rc::default(),
            turn_idle: Cell::new(false),
            at_work: Cell::new(0),
            cleaned: Event::default(),
            stuck: Cell::new(None),
            unmounted: Cell::new(false),
            helpers: Cell::new(0),
            helper_ended: Event::default(),
            metrics: RefCell::default(),
            batches: Pool::new(),
            payloads: Pool::new(),
            slots: Pool::new(),
        }));
        handle.spawn(super::writeback::run(Rc::downgrade(&vfs.0), Rc::clone(&vfs.0.work), handle.clone()));
        if vfs.0.fs.has_background() && !vfs.0.options.read_only {
            handle.spawn(super::writeback::turns(
                Rc::downgrade(&vfs.0),
                Rc::clone(&vfs.0.turn),
                handle.clone(),
            ));
        }
        Ok(vfs)
    }

    /// Writes everything except for what atomic files withhold, which is lost, and ends background write-back. `EBUSY` if files are still open. An error of the last write-back is
    /// returned, and what could not be written is lost.
    pub async fn unmount(&self) -> Result<()> {
        while self.0.helpers.get() > 0 {
            self.0.helper_ended.wait().await;
        }
        self.settle_dropped().await;
        if self.0.inodes.borrow().values().any(|inode| inode.users.get() > 0) {
            return Err(Errno::EBUSY);
        }
        self.0.unmounted.set(true);
        self.0.turn.notify();
        self.0.work.notify();
        while self.0.at_work.get() > 0 {
            self.0.helper_ended.wait().await;
        }
        let synced = match self.0.options.read_only {
            true => Ok(()),
            false => {
                self.roll_back_all().await;
                self.write_all().await.and(self.0.fs.unmount().await)
            }
        };
        self.0.work.notify();
        synced
    }

    /// The file system below.
    pub fn fs(&self) -> &F {
        &self.0.fs
    }

    /// Counters since the mount.
    pub fn metrics(&self) -> VfsMetrics {
        let evicted_pages = self.0.pages.borrow().evictions();
        let cpus = self.0.cpus.borrow();
        let (cpu_busy_ns, cpu_waited_ns) = (cpus.busy_ns(self.now()), cpus.waited_ns());
        VfsMetrics { evicted_pages, cpu_busy_ns, cpu_waited_ns, ..*self.0.metrics.borrow() }
    }

    /// Number of pages that are dirty, withheld or being written.
    pub fn dirty_pages(&self) -> u64 {
        let pages = self.0.pages.borrow();
        (pages.unclean() + pages.withheld()) as u64
    }

    /// Whether no page of a file is dirty, withheld or being written. Until then the number of its blocks may grow without a call.
    pub fn is_settled(&self, ino: Ino) -> bool {
        let owner = self.0.inodes.borrow().get(&ino).map(|inode| inode.owner);
        owner.is_none_or(|owner| self.0.pages.borrow().unclean_of(owner) == 0)
    }

    /// Number of pages in memory.
    pub fn cached_pages(&self) -> u64 {
        self.0.pages.borrow().present() as u64
    }

    /// The current civil time.
    #[inline]
    pub fn timestamp(&self) -> Timestamp {
        let (at, civil) = self.0.civil.get();
        self.0.limits.time(civil.plus_nanos(self.now().since(at).as_nanos()))
    }

    /// Sets the civil time. For mounts that follow the host's time, which need not run like virtual time.
    pub fn set_civil(&self, civil: Timestamp) {
        self.0.civil.set((self.now(), civil));
    }

    /// The number of pages and inodes, in all and free.
    pub async fn statfs(&self) -> Result<StatFs> {
        self.charge_call(0, 0).await;
        self.0.fs.statfs().await
    }

    // Time.

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.0.handle.now()
    }

    #[inline]
    fn charge(&self, span: Duration) -> Charge {
        let book = || self.0.cpus.borrow_mut().book(self.now(), span);
        Charge((span != Duration::ZERO).then(|| self.0.handle.sleep_until(book())))
    }

    /// Lets an application work for `span` on one of the CPUs that all calls share.
    pub async fn compute(&self, span: Duration) {
        self.charge(span).await;
    }

    /// Waits for the CPU time of a call that copies `bytes` and touches `pages`.
    #[inline]
    pub(crate) fn charge_call(&self, bytes: u64, pages: u64) -> Charge {
        self.charge(self.0.options.costs.of_call(bytes, pages))
    }

    /// The same for names of a path.
    pub(crate) fn charge_components(&self, components: u64) -> Charge {
        self.charge(self.0.options.costs.path_component * components)
    }

    /// Waits for the CPU time of waiting, if the call had to wait since `start`.
    #[inline]
    pub(crate) fn charge_wait(&self, start: Instant) -> Charge {
        if self.now() == start { Charge(None) } else { self.charge(self.0.options.costs.of_wait()) }
    }

    #[inline]
    pub(crate) fn count(&self, count: impl FnOnce(&mut VfsMetrics)) {
        count(&mut self.0.metrics.borrow_mut());
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.0.options.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    // The table of inodes.

    /// The inode in memory, which is created if it is not there.
    pub(crate) fn inode(&self, ino: Ino) -> InodeRef<F> {
        let mut inodes = self.0.inodes.borrow_mut();
        let inode = inodes.entry(ino).or_insert_with(|| self.new_inode(ino));
        InodeRef { vfs: self.clone(), inode: Rc::clone(inode) }
    }

    fn new_inode(&self, ino: Ino) -> Rc<Inode> {
        let mut pages = self.0.pages.borrow_mut();
        for owner in self.0.owners_freed.borrow_mut().drain(..) {
            pages.remove_owner(owner);
        }
        Rc::new(Inode::new(ino, pages.add_owner(ino), Rc::clone(&self.0.owners_freed)))
    }

    /// A file that was created without a name, which the file system holds; the caller is its user. The previous inode with this
    /// number no longer exists, but may still be in the table.
    pub(crate) fn use_nameless(&self, attr: &Attr, is_linkable: bool) -> InodeRef<F> {
        let inode = self.new_inode(attr.ino);
        inode.note(attr);
        inode.held.set(true);
        inode.gone.set(true);
        inode.linkable.set(is_linkable);
        inode.users.set(1);
        self.0.inodes.borrow_mut().insert(attr.ino, Rc::clone(&inode));
        InodeRef { vfs: self.clone(), inode }
    }

    /// Removes the inode from the table if it is idle and has only `references` references, including that of the table.
    pub(crate) fn forget_if_idle(&self, inode: &Rc<Inode>, references: usize) {
        let idle = inode.users.get() == 0 && !inode.held.get() && Rc::strong_count(inode) == references;
        if !idle || self.0.pages.borrow().pages_of(inode.owner) > 0 {
            return;
        }
        let mut inodes = self.0.inodes.borrow_mut();
        if inodes.get(&inode.ino).is_some_and(|known| Rc::ptr_eq(known, inode)) {
            inodes.remove(&inode.ino);
        }
    }

    /// Removes closed files whose last page was evicted.
    #[inline]
    pub(crate) fn forget_emptied(&self) {
        loop {
            let Some(ino) = self.0.pages.borrow_mut().pop_emptied() else { return };
            let inode = self.0.inodes.borrow().get(&ino).cloned();
            if let Some(inode) = inode {
                self.forget_if_idle(&inode, 2);
            }
        }
    }

    /// Makes the caller a user of the inode; the file system holds it from here on.
    pub(crate) async fn use_inode(&self, ino: Ino) -> Result<InodeRef<F>> {
        let inode = self.inode(ino);
        let using = inode.using.alone().await;
        if inode.gone.get() && !inode.held.get() {
            return Err(Errno::ESTALE);
        }
        if !inode.held.get() {
            let attr = self.0.fs.hold(ino).await?;
            inode.note(&attr);
            inode.held.set(true);
        }
        inode.users.set(inode.users.get() + 1);
        drop(using);
        Ok(inode)
    }

    /// Makes the caller a user of an inode that was looked up. `ESTALE` if the number is that of another one by now.
    pub(crate) async fn use_found(&self, attr: &Attr) -> Result<InodeRef<F>> {
        let inode = self.use_inode(attr.ino).await?;
        if inode.generation.get() == attr.generation {
            return Ok(inode);
        }
        self.end_use(inode).await?;
        Err(Errno::ESTALE)
    }

    /// Ends the caller's use of the inode.
    pub(crate) async fn end_use(&self, inode: InodeRef<F>) -> Result<()> {
        inode.users.set(inode.users.get() - 1);
        self.settle(inode.rc()).await
    }

    /// Releases the inode to the file system if it is not in use and none of its pages has to be written.
    pub(crate) async fn settle(&self, inode: &Rc<Inode>) -> Result<()> {
        let is_needed = || {
            let unclean = self.0.pages.borrow().unclean_of(inode.owner) > 0 || inode.withheld.get().is_some();
            !inode.held.get() || inode.users.get() > 0 || (unclean && !inode.gone.get())
        };
        if is_needed() {
            return Ok(());
        }
        let _using = inode.using.alone().await;
        if is_needed() {
            return Ok(());
        }
        if inode.gone.get() {
            self.drop_pages(inode, (0, u64::MAX)).await;
        }
        inode.held.set(false);
        let released = self.0.fs.release(inode.ino).await;
        if inode.gone.get() {
            self.remove_from_table(inode);
        }
        released
    }

    /// The inode has no name any more, so none of its pages needs to be written.
    pub(crate) async fn note_gone(&self, inode: &Rc<Inode>) {
        inode.gone.set(true);
        if inode.users.get() > 0 {
            return;
        }
        if inode.held.get() {
            // The names are gone, even if freeing the space fails; recovery finds the space.
            let _ = self.settle(inode).await;
        } else {
            self.drop_pages(inode, (0, u64::MAX)).await;
            self.remove_from_table(inode);
        }
    }

    /// Removes the inode from the table, because its number may soon be that of another file.
    fn remove_from_table(&self, inode: &Rc<Inode>) {
        let mut inodes = self.0.inodes.borrow_mut();
        if inodes.get(&inode.ino).is_some_and(|known| Rc::ptr_eq(known, inode)) {
            inodes.remove(&inode.ino);
        }
    }

    /// Spawns a task of the vfs that uses inodes.
    pub(crate) fn spawn_helper(&self, helper: impl Future<Output = ()> + 'static) {
        let vfs = self.clone();
        vfs.0.helpers.set(vfs.0.helpers.get() + 1);
        self.0.handle.spawn(async move {
            helper.await;
            vfs.0.helpers.set(vfs.0.helpers.get() - 1);
            vfs.0.helper_ended.notify();
        });
    }

    /// Closes files that were dropped.
    pub(crate) async fn settle_dropped(&self) {
        loop {
            let Some(inode) = self.0.dropped.borrow_mut().pop() else { return };
            // There is no caller that could get the error.
            let _ = self.settle(&inode).await;
            self.forget_if_idle(&inode, 2);
        }
    }
}
