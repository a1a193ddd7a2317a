//! An in-memory file system, an executor, and its virtual time.

use flashweir_core::{Duration, Executor, Instant};
use flashweir_db::{Config, CpuCosts, Db, Recovery, Result};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::{CacheConfig, Creds, MountOptions, Process, Vfs};
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) struct Bed {
    executor: Executor,
    now: Instant,
    pub(crate) fs: MemFs,
    pub(crate) vfs: Vfs<MemFs>,
}

/// A configuration small enough that every case occurs: pages are evicted, the log wraps around.
pub(crate) fn small() -> Config {
    Config {
        page_bytes: 4096,
        pool_bytes: 128 * 4096,
        log_files: 2,
        log_file_bytes: 520 << 10,
        batch_pages: 16,
        transactions_max: 8,
        costs: CpuCosts::ZERO,
        ..Config::default()
    }
}

impl Bed {
    pub(crate) fn new() -> Self {
        let executor = Executor::new();
        let fs = MemFs::with_disk(MemFsConfig::default(), executor.handle(), Duration::from_micros(10));
        let cache = CacheConfig::of_bytes(16 << 20);
        let options = MountOptions { cache, ..MountOptions::default() };
        let vfs = Vfs::mount(fs.clone(), executor.handle(), options).unwrap();
        Self { executor, now: Instant::ZERO, fs, vfs }
    }

    pub(crate) fn process(&self) -> Process<MemFs> {
        self.vfs.process(Creds::ROOT)
    }

    pub(crate) fn handle(&self) -> flashweir_core::executor::Handle {
        self.executor.handle()
    }

    /// Runs until the task returns its result.
    pub(crate) fn run<T: 'static>(&mut self, task: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        self.executor.spawn(async move {
            let value = task.await;
            *result.borrow_mut() = Some(value);
        });
        loop {
            self.executor.run_ready(self.now);
            if let Some(value) = slot.borrow_mut().take() {
                return value;
            }
            self.now = self.executor.next_timer().expect("the task waits for something that comes");
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn create(&mut self, config: Config) -> Db<MemFs> {
        let (process, handle) = (self.process(), self.handle());
        self.run(async move {
            process.mkdir("/db", 0o755).await.unwrap();
            Db::create(&process, handle, "/db", config).await.unwrap()
        })
    }

    pub(crate) fn open(&mut self, config: Config) -> Result<(Db<MemFs>, Recovery)> {
        let (process, handle) = (self.process(), self.handle());
        self.run(async move { Db::open(&process, handle, "/db", config).await })
    }
}
