//! A mounted file system on an executor whose time the tests move.

use flashweir_core::executor::Handle;
use flashweir_core::{Duration, Executor, Instant};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::{CacheConfig, Fs, MountOptions, Vfs};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

/// A file system, its mount and its time.
pub(crate) struct Bed<F: Fs> {
    pub(crate) executor: Executor,
    pub(crate) handle: Handle,
    pub(crate) vfs: Vfs<F>,
    now: Instant,
}

impl Bed<MemFs> {
    /// A file system in memory without a disk.
    pub(crate) fn new() -> Self {
        Self::with(MemFsConfig::default(), Duration::ZERO, MountOptions::default())
    }

    /// With a disk that takes this long for a page.
    pub(crate) fn with(config: MemFsConfig, time_per_page: Duration, options: MountOptions) -> Self {
        Self::mount(options, |handle| match time_per_page {
            Duration::ZERO => MemFs::new(config),
            time => MemFs::with_disk(config, handle, time),
        })
    }

    /// With a small cache, and a disk that takes this long for a page.
    pub(crate) fn small(time_per_page: Duration, cache: CacheConfig) -> Self {
        let options = MountOptions { cache, ..MountOptions::default() };
        Self::with(MemFsConfig::default(), time_per_page, options)
    }
}

impl<F: Fs> Bed<F> {
    /// Mounts what `make` makes.
    pub(crate) fn mount(options: MountOptions, make: impl FnOnce(Handle) -> F) -> Self {
        let executor = Executor::new();
        let handle = executor.handle();
        let vfs = Vfs::mount(make(handle.clone()), handle.clone(), options).expect("the options are valid");
        Self { executor, handle, vfs, now: Instant::ZERO }
    }

    /// Lets time pass until `future` is ready.
    pub(crate) fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        let task = self.executor.spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        loop {
            self.executor.run_ready(self.now);
            if !self.executor.is_alive(task) {
                return result.take().expect("the task has ended");
            }
            self.now = self.executor.next_timer().expect("the task waits for ever");
        }
    }

    /// Lets this much time pass.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.executor.run_ready(self.now);
        while let Some(at) = self.executor.next_timer().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.executor.run_ready(self.now);
        }
        self.now = end;
        self.executor.run_ready(end);
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }
}

/// A cache of `pages` with limits of half and three quarters, and pages that are written after 30 s.
pub(crate) fn cache_of(pages: u64) -> CacheConfig {
    CacheConfig {
        capacity_pages: pages,
        dirty_background_pages: pages / 2,
        dirty_hard_pages: pages * 3 / 4,
        batch_pages: 4,
        readahead_pages: 4,
        ..CacheConfig::default()
    }
}
