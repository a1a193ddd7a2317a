//! The file system under test: a small, used volume that is mounted for each case, and recovered and checked after each
//! cut.
//!
//! Place in the data flow: a [`Base`] is made once and shared; [`Clock`] runs the explorer's work on it.
//!
//! The volume is aged (crash-laboratory §3.5): its free segments hold nodes and data of deleted files, so that a
//! recovery that follows a stale pointer finds stale data.
//!
//! Invariant: a base is a function of its seed.

use super::format::Format;
use super::mounting::{self, Did};
use super::on::BaseMedia;
use super::ops::{Op, Ops, Pairs, Runner};
use super::segments::{self, Recorder};
use super::setup::{BLOCKS, FULL, Setup};
use super::tree::{Tree, Unreadable};
use flashweir_contract::{Contents, DeviceKind};
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_core::{Executor, Instant, Lpn, RandomStream};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::port::{BlockPort, Segments};
use flashweir_fs::vfs::{CacheConfig, Creds, Errno, Follow, MountOptions, SetTime, Vfs};
use flashweir_fs::{AnyFs, Mounted as _};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Contents that every case begins with. The files are durable; only few generated operations name them.
const PREPARED: &str = "mkdir:A,mkdir:B,mkdir:A/D,write:A/old:0+9000,write:B/old:0+4096,setxattr:A/old:kept:40,\
                        symlink:A/old:link,link:A/old:B/second,sync";
/// Pages of each file that fills the volume, and of each file that replaces a deleted one.
pub const FILL_PAGES: u64 = 32;
const HOLE_PAGES: u64 = 12;
/// Pages left free after the filling files, and after the replacing ones.
const FILL_LEAVES: u64 = 700;
const HOLES_LEAVE: u64 = 350;
/// One in this many filling files is deleted.
const DELETED: u64 = 4;
/// Then the filling files are overwritten at scattered places until this many sections have been cleaned to free space,
/// up to a maximum number of writes, with a sync after each `WORN_SYNC` writes.
const WORN_SECTIONS: u64 = 2;
const WORN_MAX: u64 = 4_000;
const WORN_SYNC: u64 = 64;
/// Journal blocks of ext4 left before its end when a case begins: at most the first number on half of the bases, at
/// least the second on the others. The part of the journal after that point is full of old transactions.
const LOG_LEFT_MAX: u64 = 24;
const LOG_LEFT_MIN: u64 = 100;
/// Number of rounds of created and deleted files before that, and number of files in each.
const AGES: u64 = 3;
const AGED_FILES: u64 = 420;

/// An executor with a clock of its own.
#[derive(Debug, Default)]
pub struct Clock {
    executor: Executor,
    now: Instant,
}

impl Clock {
    /// Returns a handle for tasks of this clock.
    pub fn handle(&self) -> Handle {
        self.executor.handle()
    }

    /// Advances time until `future` is ready; returns `None` if it waits for something that never happens.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        let task = self.executor.spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        loop {
            self.executor.run_ready(self.now);
            if !self.executor.is_alive(task) {
                return result.take();
            }
            self.now = self.executor.next_timer()?;
        }
    }
}

impl Drop for Clock {
    /// Drops the tasks, which hold the mount, which holds the executor.
    fn drop(&mut self) {
        self.executor.clear();
    }
}

/// A disk below a volume, with a clock of its own.
pub trait Disk {
    /// Runs a task until it is ready; returns `None` if it waits for something that never happens, or if the power
    /// fails before.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T>;
}

/// Runs a task on a disk that answers without a clock of its own.
fn run_alone<T: 'static, F: Future<Output = T> + 'static>(
    port: Rc<dyn BlockPort>,
    task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
) -> Option<T> {
    let mut clock = Clock::default();
    let handle = clock.handle();
    clock.run(task(port, handle))
}

impl Disk for ModelPort {
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T> {
        run_alone(Rc::new(self.clone()), task)
    }
}

impl Disk for Recorder {
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T> {
        run_alone(Rc::new(self.clone()), task)
    }
}

/// A disk of append segments whose changes nobody needs.
impl Disk for Rc<Segments> {
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T> {
        run_alone(Rc::clone(self) as Rc<dyn BlockPort>, task)
    }
}

/// Returns the options of all mounts here: a small cache, and calls that cost nothing.
pub fn options() -> MountOptions {
    MountOptions { cache: CacheConfig::of_bytes(4 << 20), ..MountOptions::default() }
}

/// Mounts the file system on a port, which recovers it.
pub async fn mount(port: Rc<dyn BlockPort>, handle: Handle, setup: Setup) -> Result<Vfs<AnyFs>, String> {
    Vfs::mount(mounting::mount(port, setup).await?, handle, options()).map_err(|error| error.to_string())
}

/// Makes a reference in memory, with the prepared contents.
pub async fn reference(handle: Handle, filled: Filled) -> Result<(Runner<AnyFs>, Vfs<AnyFs>), String> {
    let vfs = Vfs::mount(MemFs::new(MemFsConfig::default()).into(), handle.clone(), options());
    let vfs = vfs.map_err(|error| error.to_string())?;
    let mut runner = Runner::reference(&vfs, handle);
    if filled != Filled::default() {
        runner.begin_filling().await?;
        for file in 0..filled.files {
            runner.fill(file).await?;
        }
        runner.make_holes(filled.files).await?;
        for file in 0..filled.holes {
            runner.fill_hole(file).await?;
        }
        for number in 0..filled.worn {
            runner.wear(filled, number).await?;
        }
    }
    prepare(&mut runner).await?;
    Ok((runner, vfs))
}

/// Files that fill a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Number of filling files, including the deleted ones.
    pub files: u64,
    /// Number of replacing files.
    pub holes: u64,
    /// Number of overwrites of the filling files.
    pub worn: u64,
}

impl Runner<AnyFs> {
    async fn filling(&mut self, number: u64, op: Op) -> Result<(), String> {
        let said = |errno: Errno| format!("{op} before the first case: {errno:?}");
        self.apply(PREPARED_NUMBERS + 0x2000 + number as usize, &op).await.map(drop).map_err(said)
    }

    async fn begin_filling(&mut self) -> Result<(), String> {
        self.filling(0, Op::Mkdir("fill".into())).await
    }

    async fn fill(&mut self, file: u64) -> Result<(), String> {
        self.filling(file, Op::Write(format!("fill/{file}"), 0, FILL_PAGES * 4_096)).await
    }

    async fn make_holes(&mut self, files: u64) -> Result<(), String> {
        for file in (0..files).filter(|file| file % DELETED == 1) {
            self.filling(file, Op::Unlink(format!("fill/{file}"))).await?;
        }
        self.filling(0, Op::Sync).await
    }

    async fn fill_hole(&mut self, file: u64) -> Result<(), String> {
        self.filling(0x1000 + file, Op::Write(format!("fill/hole-{file}"), 0, HOLE_PAGES * 4_096)).await
    }

    async fn wear(&mut self, filled: Filled, number: u64) -> Result<(), String> {
        let mut random = RandomStream::new(number, "wear of a volume");
        let file = random.below(filled.files / DELETED) * DELETED;
        let (at, pages) = (random.below(FILL_PAGES - 3), 1 + random.below(3));
        self.filling(0x2000 + number, Op::Write(format!("fill/{file}"), at * 4_096, pages * 4_096)).await
    }
}

/// Fills a volume until little is free, deletes some files, fills it again, and overwrites files until cleaning has to
/// free space: a case begins with few free sections, and with holes in the others.
async fn fill_volume(vfs: &Vfs<AnyFs>, runner: &mut Runner<AnyFs>, format: Format) -> Result<Filled, String> {
    let said = |errno: Errno| format!("filling the volume: {errno:?}");
    let mut filled = Filled::default();
    runner.begin_filling().await?;
    while vfs.statfs().await.map_err(said)?.pages_free > FILL_LEAVES {
        runner.fill(filled.files).await?;
        filled.files += 1;
        vfs.sync_all().await.map_err(said)?;
    }
    runner.make_holes(filled.files).await?;
    while vfs.statfs().await.map_err(said)?.pages_free > HOLES_LEAVE {
        runner.fill_hole(filled.holes).await?;
        filled.holes += 1;
        vfs.sync_all().await.map_err(said)?;
    }
    let cleaned = || Did::of(vfs.fs()).cleaned;
    let before = cleaned();
    while mounting::cleans(format) && cleaned() < before + WORN_SECTIONS && filled.worn < WORN_MAX {
        runner.wear(filled, filled.worn).await?;
        filled.worn += 1;
        if filled.worn.is_multiple_of(WORN_SYNC) {
            vfs.sync_all().await.map_err(said)?;
        }
    }
    Ok(filled)
}

/// Combines number and generation of an inode of the reference into a number that is never reused.
pub fn forever(ino: u64, generation: u32) -> u64 {
    ino << 32 | u64::from(generation)
}

async fn prepare(runner: &mut Runner<AnyFs>) -> Result<(), String> {
    let Ops(ops) = PREPARED.parse()?;
    for (index, op) in ops.iter().enumerate() {
        let said = |errno: Errno| format!("{op} before the first case: {errno:?}");
        runner.apply(PREPARED_NUMBERS + index, op).await.map_err(said)?;
    }
    Ok(())
}

/// Offset for the numbers of preparing and aging operations, beyond those of any sequence.
const PREPARED_NUMBERS: usize = 0x8000;

/// A volume that each case begins on, and the reference's view of it.
#[derive(Clone, Debug)]
pub struct Base {
    /// File system.
    pub format: Format,
    /// Seed that it was made from.
    pub seed: u64,
    /// Blocks of the disk; all of them are durable.
    pub contents: Arc<Contents>,
    /// Contents of the volume, with the reference's numbers.
    pub tree: Arc<Tree>,
    /// Maps the reference's numbers to those of the volume.
    pub numbers: Pairs,
    /// Pages of an empty volume: free ones, and those of the root.
    pub pages: u64,
    /// Files that fill it.
    pub filled: Filled,
    /// The volume on simulated devices.
    pub(super) media: BaseMedia,
}

impl Base {
    /// Makes, ages and prepares a volume.
    pub fn make(format: Format, seed: u64) -> Result<Self, String> {
        let never = || "the preparation waits for ever".to_owned();
        let port = ModelPort::new(DeviceKind::D1.policy(), BLOCKS, FlushMode::Flush);
        let recorder = Recorder::new(segments::empty());
        let disk: Rc<dyn BlockPort> = match format.appends() {
            true => Rc::new(recorder.clone()),
            false => Rc::new(port.clone()),
        };
        let mut clock = Clock::default();
        let handle = clock.handle();
        let made = clock.run(async move {
            mounting::make(&*disk, format, seed).await?;
            let fs = mounting::mount_to_age(Rc::clone(&disk), format).await?;
            let vfs = Vfs::mount(fs, handle.clone(), options()).map_err(|error| error.to_string())?;
            let said = |errno: Errno| format!("ageing the volume: {errno:?}");
            age(&vfs, &handle, seed).await.map_err(said)?;
            // A directory that a new ext4 volume has and other file systems lack.
            match vfs.process(Creds::ROOT).rmdir("/lost+found").await {
                Ok(()) | Err(Errno::ENOENT) => vfs.sync_all().await.map_err(said)?,
                Err(errno) => return Err(said(errno)),
            }
            let stat = vfs.statfs().await.map_err(said)?;
            let empty = mounting::used_pages(&disk, format).await?;
            let mut runner = Runner::new(&vfs, handle.clone());
            let filled = if seed & FULL != 0 {
                fill_volume(&vfs, &mut runner, format).await?
            } else {
                Filled::default()
            };
            prepare(&mut runner).await?;
            turn_log(&vfs, seed).await.map_err(said)?;
            let tree = Tree::read(&vfs, None, |ino, _| ino).await.map_err(|wrong| format!("{wrong:?}"))?;
            vfs.unmount().await.map_err(said)?;
            Ok::<_, String>((tree, stat.pages_free + empty, filled))
        });
        let (found, pages, filled) = made.ok_or_else(never)??;
        let mut clock = Clock::default();
        let handle = clock.handle();
        let expected = clock.run(async move {
            let (_, vfs) = reference(handle, filled).await?;
            Tree::read(&vfs, None, forever).await.map_err(|wrong| format!("{wrong:?}"))
        });
        let tree = expected.ok_or_else(never)??;
        let numbers = tree.nodes.keys().filter_map(|&model| Some((model, found.find(&tree.path_of(model))?)));
        let numbers: Pairs = numbers.collect();
        if let Some(difference) = tree.difference(&found, &numbers) {
            return Err(format!("the prepared volume is not as it should be: {difference}"));
        }
        let contents = match format.appends() {
            true => written(recorder.disk()),
            false => port.contents(),
        };
        Ok(Self {
            format,
            seed,
            contents: Arc::new(contents),
            tree: Arc::new(tree),
            numbers,
            pages,
            filled,
            media: BaseMedia::default(),
        })
    }

    /// Returns a disk with this volume, as a cut may leave it.
    pub fn port(&self, mode: FlushMode) -> ModelPort {
        ModelPort::with_contents(self.format.device_kind().policy(), Arc::clone(&self.contents), BLOCKS, mode)
    }
}

/// Returns what is written on a disk of append segments, blocks of zeros included.
pub(crate) fn written(disk: &Segments) -> Contents {
    let segments = (0u64..).step_by(disk.segment_blocks() as usize).zip(disk.contents());
    segments.flat_map(|(first, blocks)| (first..).map(Lpn).zip(blocks)).collect()
}

/// Returns the hash of the image of a base.
pub fn base_hash(base: &Base) -> u64 {
    mix(base.seed)
}

/// Lets the journal of ext4 wrap around, and stop where it soon has to wrap around again, or later.
async fn turn_log(vfs: &Vfs<AnyFs>, seed: u64) -> Result<(), Errno> {
    let left = || vfs.fs().journal_blocks_left();
    let mut random = RandomStream::new(seed, "where a log begins");
    let near_end = 4 + random.below(LOG_LEFT_MAX - 4);
    while left().is_some_and(|left| left > near_end) {
        touch(vfs).await?;
    }
    if random.chance(0.5) {
        // Wraps around once more.
        while left().is_some_and(|left| left <= near_end) {
            touch(vfs).await?;
        }
        let target = LOG_LEFT_MIN + random.below(left().unwrap_or(1));
        while left().is_some_and(|left| left > target) {
            touch(vfs).await?;
        }
    }
    Ok(())
}

/// Makes a durable change that no check examines.
pub(crate) async fn touch(vfs: &Vfs<AnyFs>) -> Result<(), Errno> {
    let root = vfs.process(Creds::ROOT);
    root.utimens("/", SetTime::Omit, SetTime::Now, Follow::Yes).await?;
    vfs.sync_all().await
}

/// Creates and deletes files, some of which are made durable one by one.
async fn age(vfs: &Vfs<AnyFs>, handle: &Handle, seed: u64) -> Result<(), Errno> {
    let mut random = RandomStream::new(seed, "ageing of a volume");
    let mut runner = Runner::new(vfs, handle.clone());
    let mut number = PREPARED_NUMBERS + 100;
    for round in 0..AGES {
        runner.apply(number, &Op::Mkdir("old".into())).await?;
        for file in 0..AGED_FILES {
            number += 1;
            let name = format!("old/{round}-{file}");
            runner.apply(number, &Op::Write(name.clone(), 0, 100 + random.below(8_000))).await?;
            if random.chance(0.05) {
                runner.apply(number, &Op::Fsync(name)).await?;
            }
        }
        vfs.sync_all().await?;
        for file in 0..AGED_FILES {
            runner.apply(number, &Op::Unlink(format!("old/{round}-{file}"))).await?;
        }
        runner.apply(number, &Op::Rmdir("old".into())).await?;
        vfs.sync_all().await?;
    }
    Ok(())
}

/// Damage of a volume after a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The volume cannot be mounted.
    Mount(String),
    /// Something on it cannot be read.
    Read(String),
    /// The check reports a fault; the text says when.
    Check(String),
    /// The volume cannot be used.
    Use(String),
    /// A task waits for something that never happens.
    Wedged,
}

impl Damage {
    /// Describes the damage in one line.
    pub fn what(&self) -> String {
        match self {
            Self::Mount(what) => format!("mount: {what}"),
            Self::Read(what) => format!("read: {what}"),
            Self::Check(what) => format!("check: {what}"),
            Self::Use(what) => format!("use: {what}"),
            Self::Wedged => "recovery waits for ever".into(),
        }
    }
}

/// Recovers the volume on a port by mounting it; returns what it shows. The volume is unmounted again, and must be
/// intact before and after.
pub fn recover(on: &mut impl Disk, setup: Setup) -> Result<Tree, Damage> {
    let recovered = on.run(|disk, handle| async move {
        let vfs = mount(Rc::clone(&disk), handle, setup).await.map_err(Damage::Mount)?;
        let read = |Unreadable { path, errno }| Damage::Read(format!("{path}: {errno:?}"));
        let tree = Tree::read(&vfs, None, |ino, _| ino).await.map_err(read)?;
        vfs.unmount().await.map_err(|errno| Damage::Use(format!("unmount: {errno:?}")))?;
        mounting::used_pages(&disk, setup.format).await.map_err(Damage::Check)?;
        Ok(tree)
    });
    recovered.unwrap_or(Err(Damage::Wedged))
}

/// Checks the volume on a port as it is, without recovery.
pub fn check(on: &mut impl Disk, format: Format) -> Result<(), Damage> {
    let checked = on.run(move |disk, _| async move { mounting::used_pages(&disk, format).await });
    checked.unwrap_or_else(|| Err("waits for ever".into())).map(drop).map_err(Damage::Check)
}

/// Proves that a recovered volume can be used: something is written, everything is deleted, and all space is free
/// again.
pub fn exercise(on: &mut impl Disk, pages: u64, setup: Setup) -> Result<(), Damage> {
    let done = on.run(move |disk, handle| async move {
        let vfs = mount(Rc::clone(&disk), handle.clone(), setup).await.map_err(Damage::Mount)?;
        let failed = |what: &'static str| move |errno: Errno| Damage::Use(format!("{what}: {errno:?}"));
        let mut runner = Runner::new(&vfs, handle);
        for (index, word) in
            ["mkdir:new", "write:new/a:0+300000", "fsync:new/a", "write:new/b:100+50"].iter().enumerate()
        {
            let op = word.parse().map_err(Damage::Use)?;
            runner.apply(PREPARED_NUMBERS + index, &op).await.map_err(failed("writing"))?;
        }
        empty(&vfs, "/".into()).await.map_err(failed("deleting"))?;
        vfs.sync_all().await.map_err(failed("sync"))?;
        let free = vfs.statfs().await.map_err(failed("statfs"))?.pages_free;
        vfs.unmount().await.map_err(failed("unmount"))?;
        let used = mounting::used_pages(&disk, setup.format).await.map_err(Damage::Check)?;
        match free + used == pages {
            true => Ok(()),
            false => Err(Damage::Use(format!("{free} pages are free and {used} in use, of {pages}"))),
        }
    });
    done.unwrap_or(Err(Damage::Wedged))
}

/// Deletes everything in a directory.
async fn empty(vfs: &Vfs<AnyFs>, dir: String) -> Result<(), Errno> {
    let process = vfs.process(Creds::ROOT);
    let mut todo = vec![dir];
    while let Some(dir) = todo.last().cloned() {
        let mut below = None;
        for entry in process.list(&dir).await? {
            let path = format!("{}/{}", dir.trim_end_matches('/'), String::from_utf8_lossy(&entry.name));
            if entry.kind.is_dir() {
                below = Some(path);
            } else {
                process.unlink(&path).await?;
            }
        }
        match below {
            Some(below) => todo.push(below),
            None => {
                todo.pop();
                if !todo.is_empty() {
                    process.rmdir(&dir).await?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_good_and_can_be_used() {
        for seed in [2, 3] {
            let base = Base::make(Format::F2FS, seed).unwrap();
            assert!(base.contents.len() > 2_000, "it was used: {} blocks", base.contents.len());
            let mut port = base.port(FlushMode::RangeFlush);
            let setup = Setup::new(Format::F2FS, FlushMode::RangeFlush, seed);
            let tree = recover(&mut port, setup).unwrap();
            assert_eq!(base.tree.difference(&tree, &base.numbers), None);
            exercise(&mut port, base.pages, setup).unwrap();
        }
    }
}
