//! The engine of `flashweir-db` under power cuts: over the VFS, over F2FS and ext4, over a simulated device and over the
//! contract's model, which may show any legal state.
//!
//! Each state of the rows says which transactions are in it: transaction `n` of a task gives all of its rows the stamp
//! `n`, and leaves a row of its own. After a cut, all rows of a task therefore have one stamp: that of the last
//! acknowledged commit or of the one in progress. Transactions that roll back lie in between.

use flashweir_contract::{DeviceKind, Exploration, LogPos};
use flashweir_core::executor::Handle;
use flashweir_core::{Bytes, Duration, Executor, Instant, RandomStream};
use flashweir_db::{CommitMode, Config, CpuCosts, DataIo, Db, DbError, DoubleWrite, Recovery, Tree};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_fs::ext4::{CheckpointBy, Ext4Options, Journaling};
use flashweir_fs::f2fs::{CleanBy, F2fsOptions};
use flashweir_fs::port::BlockPort;
use flashweir_fs::vfs::{Creds, Fs, MountOptions, Process, Vfs};
use flashweir_fs::{AnyFs, Kind, Mode, NewVolume};
use flashweir_sim::live::Tear;
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::volume::mount_on;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const TASKS: u8 = 3;
const ROWS: u16 = 12;

/// Pages of 16 KiB, memory for few of them, and a log that wraps around.
fn config() -> Config {
    Config {
        page_bytes: 16_384,
        pool_bytes: 64 * 16_384,
        log_files: 2,
        log_file_bytes: 520 << 10,
        batch_pages: 8,
        dirty_percent_max: 5,
        transactions_max: 4,
        costs: CpuCosts::ZERO,
        ..Config::default()
    }
}

/// Number of acknowledged transactions per task.
type Acked = Rc<RefCell<[u32; TASKS as usize]>>;

fn row_key(task: u8, row: u16) -> [u8; 3] {
    // Rows of different tasks are adjacent in the pages.
    let [high, low] = row.to_be_bytes();
    [high, low, task]
}

fn mark_key(task: u8, stamp: u32) -> Vec<u8> {
    [&[task][..], &stamp.to_be_bytes()].concat()
}

fn value(stamp: u32, row: u16) -> Vec<u8> {
    // Lengths change, so that pages split and merge.
    let bytes = 4 + (stamp as usize * 37 + usize::from(row) * 101) % 1500;
    let mut value = stamp.to_le_bytes().repeat(bytes.div_ceil(4));
    value.truncate(bytes.max(4));
    value
}

async fn write_all<F: Fs>(
    trx: &mut flashweir_db::Transaction<F>,
    rows: Tree,
    task: u8,
    stamp: u32,
) -> Result<(), DbError> {
    for row in 0..ROWS {
        let (key, value) = (row_key(task, row), value(stamp, row));
        if stamp == 1 {
            trx.insert(rows, &key, &value).await?;
        } else {
            trx.update(rows, &key, &value).await?;
        }
    }
    Ok(())
}

/// Runs one transaction after the other, until the power fails.
async fn work<F: Fs>(db: Db<F>, task: u8, from: u32, acked: Acked, seed: u64) {
    let (rows, marks) = (db.tree("rows").unwrap(), db.tree("marks").unwrap());
    let mut stream = RandomStream::new(seed, &format!("database.{task}"));
    for stamp in from.. {
        let mut trx = db.begin().await.unwrap();
        write_all(&mut trx, rows, task, stamp).await.unwrap();
        trx.insert(marks, &mark_key(task, stamp), &[task; 300]).await.unwrap();
        trx.commit().await.unwrap();
        acked.borrow_mut()[usize::from(task)] = stamp;
        if stream.chance(0.4) {
            let mut trx = db.begin().await.unwrap();
            for row in 0..ROWS {
                trx.update(rows, &row_key(task, row), b"never").await.unwrap();
            }
            trx.delete(marks, &mark_key(task, stamp)).await.unwrap();
            trx.rollback().await.unwrap();
        }
    }
}

/// What a database runs on.
#[derive(Clone)]
struct Scene {
    flush: FlushMode,
    mode: Mode,
    config: Config,
}

impl Scene {
    fn f2fs(flush: FlushMode, config: Config) -> Self {
        Self { flush, mode: Kind::F2fs.into(), config }
    }
}

async fn mount(port: Rc<dyn BlockPort>, handle: Handle, scene: &Scene) -> Result<Vfs<AnyFs>, String> {
    let fs = mount_on(port, scene.flush, &scene.mode).await.map_err(|error| format!("mount: {error}"))?;
    Vfs::mount(fs, handle, MountOptions::default()).map_err(|error| error.to_string())
}

/// Makes a volume with an empty database, which is durable.
async fn make(port: Rc<dyn BlockPort>, handle: Handle, scene: Scene) -> Db<AnyFs> {
    scene.mode.kind.mkfs(&*port, &NewVolume::new(port.capacity_blocks())).await.unwrap();
    let vfs = mount(port, handle.clone(), &scene).await.unwrap();
    let process = vfs.process(Creds::ROOT);
    process.mkdir("/db", 0o755).await.unwrap();
    let db = Db::create(&process, handle, "/db", scene.config).await.unwrap();
    db.create_tree("rows").await.unwrap();
    db.create_tree("marks").await.unwrap();
    vfs.sync_all().await.unwrap();
    db
}

/// Opens the database that a cut left; returns an error, or what recovery did.
async fn verify(
    port: Rc<dyn BlockPort>,
    handle: Handle,
    scene: Scene,
    acked: [u32; TASKS as usize],
) -> Result<Recovery, String> {
    let vfs = mount(port, handle.clone(), &scene).await?;
    let (db, recovery) = open(&vfs.process(Creds::ROOT), handle, scene.config).await?;
    let report = db.check().await.map_err(|error| error.to_string())?;
    if !report.is_good() || report.lost_pages > 0 {
        return Err(format!("{report:?}"));
    }
    let (rows, marks) = (db.tree("rows").unwrap(), db.tree("marks").unwrap());
    for task in 0..TASKS {
        let acked = acked[usize::from(task)];
        let mut stamp = None;
        for row in 0..ROWS {
            let found = db.get(rows, &row_key(task, row)).await.map_err(|error| error.to_string())?;
            let found_stamp = match &found {
                None => 0,
                Some(found) => u32::from_le_bytes(std::array::from_fn(|i| found[i])),
            };
            if *stamp.get_or_insert(found_stamp) != found_stamp {
                return Err(format!("task {task}: a part of a transaction: {stamp:?} and {found_stamp}"));
            }
            if found.is_some_and(|found| found != value(found_stamp, row)) {
                return Err(format!("task {task}, row {row}: not what transaction {found_stamp} wrote"));
            }
        }
        let stamp = stamp.unwrap_or(0);
        if !(acked..=acked + 1).contains(&stamp) {
            return Err(format!("task {task}: {acked} was acknowledged, {stamp} is there"));
        }
        let found = db.scan(marks, &[task], Some(&[task + 1]), usize::MAX).await;
        let keys: Vec<Vec<u8>> =
            found.map_err(|error| error.to_string())?.into_iter().map(|(key, _)| key).collect();
        let wanted: Vec<Vec<u8>> = (1..=stamp).map(|stamp| mark_key(task, stamp)).collect();
        if keys != wanted {
            return Err(format!("task {task}: {} marks of {stamp}", keys.len()));
        }
        // The database remains usable.
        let mut trx = db.begin().await.map_err(|error| error.to_string())?;
        write_all(&mut trx, rows, task, stamp + 1).await.map_err(|error| error.to_string())?;
        trx.commit().await.map_err(|error| error.to_string())?;
    }
    let report = db.check().await.map_err(|error| error.to_string())?;
    if report.is_good() { Ok(recovery) } else { Err(format!("after going on: {report:?}")) }
}

async fn open<F: Fs>(
    process: &Process<F>,
    handle: Handle,
    config: Config,
) -> Result<(Db<F>, Recovery), String> {
    Db::open(process, handle, "/db", config).await.map_err(|error| format!("open: {error}"))
}

// On the simulated device.

const DEVICE: DeviceOptions = DeviceOptions { seed: 1, track_contents: true, planted: None };

fn stack(name: &str, mode: FlushMode) -> Stack {
    Stack::new(Device::new(device(name), DEVICE), mode)
}

fn device(name: &str) -> DeviceConfig {
    let mut device = preset(name).unwrap();
    device.geometry.channels = 2;
    device.geometry.chips_per_channel = 2;
    device.geometry.blocks_per_plane = 128;
    device.ftl.over_provisioning = 0.3;
    device.ftl.metadata = flashweir_device::config::Metadata::Log;
    device.buffer.capacity = Bytes::mib(4);
    device.validate().unwrap();
    device
}

/// Runs for a drawn time, cuts, recovers, verifies. Returns the number of acknowledged transactions and what recovery
/// did.
fn cut_once(device: &str, scene: &Scene, seed: u64) -> Result<(u32, Recovery), String> {
    // Transactions take time, so that some are in progress when others make the log durable.
    let costs = CpuCosts { row: Duration::from_micros(100), ..CpuCosts::ZERO };
    let scene = Scene { config: Config { costs, ..scene.config.clone() }, ..scene.clone() };
    let mut stream = RandomStream::new(seed, "database.cut");
    let mut first = stack(device, scene.flush);
    let (port, handle): (Rc<dyn BlockPort>, _) = (Rc::new(first.port()), first.handle());
    let db = first.block_on(make(port, handle.clone(), scene.clone())).expect("it is made");
    let acked = Acked::default();
    for task in 0..TASKS {
        handle.spawn(work(db.clone(), task, 1, Rc::clone(&acked), seed));
    }
    drop(db);
    let end = first.now() + Duration::from_micros(1_000 + stream.below(150_000));
    while first.now() < end && first.turn() {}
    let mut second = first.cut(DEVICE, Tear::Drawn(seed)).0;
    let acked = *acked.borrow();
    let (port, handle): (Rc<dyn BlockPort>, _) = (Rc::new(second.port()), second.handle());
    let verified = second.block_on(verify(port, handle, scene, acked));
    let verified = verified.unwrap_or_else(|| Err("recovery waits for something that never comes".into()));
    Ok((acked.iter().sum(), verified?))
}

#[test]
fn what_was_committed_survives_cuts_of_the_whole_stack() {
    let (mut commits, mut redone, mut rolled_back) = (0, 0, 0);
    for seed in 0..50 {
        for (device, mode) in [("rflush", FlushMode::RangeFlush), ("mobile-ufs", FlushMode::Flush)] {
            let cut = cut_once(device, &Scene::f2fs(mode, config()), seed);
            let (acked, recovery) = cut.unwrap_or_else(|fault| panic!("{device}, seed {seed}: {fault}"));
            commits += acked;
            redone += recovery.changes_redone;
            rolled_back += recovery.rolled_back;
        }
    }
    assert!(commits > 300 && redone > 1000 && rolled_back > 0, "{commits}, {redone}, {rolled_back}");
}

/// Planted bug: commits do not wait for their sync.
#[test]
fn commits_without_a_sync_are_found() {
    let config = Config { commit: CommitMode::Write, ..config() };
    let scene = Scene::f2fs(FlushMode::RangeFlush, config);
    let found = (0..6).filter(|&seed| cut_once("rflush", &scene, seed).is_err());
    assert!(found.count() >= 4);
}

/// Planted bug: the device ignores flushes.
#[test]
fn a_device_that_does_not_flush_is_found() {
    let scene = Scene::f2fs(FlushMode::NoFlush, config());
    let found = (0..6).filter(|&seed| cut_once("mobile-ufs", &scene, seed).is_err());
    assert!(found.count() >= 4);
}

// On the contract's model.

/// Counts of acknowledged transactions, from a position of the log on.
type History = Rc<RefCell<Vec<(LogPos, [u32; TASKS as usize])>>>;

fn until(executor: &mut Executor, is_done: impl Fn() -> bool) {
    let mut now = Instant::ZERO;
    loop {
        executor.run_ready(now);
        if is_done() {
            return;
        }
        now = executor.next_timer().expect("the tasks wait for something that comes");
    }
}

/// Runs a task by itself to its end.
pub(crate) fn completed<T: 'static, V: Future<Output = T> + 'static>(task: impl FnOnce(Handle) -> V) -> T {
    let mut executor = Executor::new();
    let result = Rc::new(RefCell::new(None));
    let (slot, task) = (Rc::clone(&result), task(executor.handle()));
    executor.spawn(async move {
        let value = task.await;
        *slot.borrow_mut() = Some(value);
    });
    until(&mut executor, || result.borrow().is_some());
    result.take().expect("it has ended")
}

/// Runs a task on the model, where nothing takes time: it yields to the others in the middle of each transaction.
async fn work_on_model(db: Db<AnyFs>, task: u8, port: ModelPort, handle: Handle, history: History) {
    let (rows, marks) = (db.tree("rows").unwrap(), db.tree("marks").unwrap());
    for stamp in 1..=12 {
        let mut trx = db.begin().await.unwrap();
        write_all(&mut trx, rows, task, stamp).await.unwrap();
        handle.yield_now().await;
        trx.insert(marks, &mark_key(task, stamp), &[task; 300]).await.unwrap();
        trx.commit().await.unwrap();
        let mut acked = history.borrow().last().expect("it begins with one").1;
        acked[usize::from(task)] = stamp;
        history.borrow_mut().push((port.position(), acked));
        if (stamp + u32::from(task)).is_multiple_of(3) {
            let mut trx = db.begin().await.unwrap();
            for row in 0..ROWS {
                trx.update(rows, &row_key(task, row), b"never").await.unwrap();
            }
            handle.yield_now().await;
            trx.rollback().await.unwrap();
        }
        // Writes pages while transactions are in progress.
        if stamp % 4 == u32::from(task) {
            db.flush().await.unwrap();
        }
    }
}

/// Runs on the model and checks states after cuts at drawn positions. Returns the number of states and the first fault.
fn states_on_model(kind: DeviceKind, scene: &Scene, seed: u64, cuts: u64) -> (u64, Option<String>) {
    let (port, history) = history_on_model(kind, scene);
    let scene = scene.clone();
    states_after(&port, &history, (seed, cuts), |woken, handle, acked| {
        verify(Rc::new(woken), handle, scene.clone(), acked)
    })
}

/// Runs on the model. Returns it, and what was acknowledged when.
fn history_on_model(kind: DeviceKind, scene: &Scene) -> (ModelPort, Vec<(LogPos, [u32; TASKS as usize])>) {
    let port = ModelPort::new(kind.policy(), (64 << 20) / 4096, scene.flush).with_share_blocks_max(256);
    let mut executor = Executor::new();
    let made = Rc::new(RefCell::new(None));
    {
        let (slot, port, handle) = (Rc::clone(&made), Rc::new(port.clone()), executor.handle());
        let scene = scene.clone();
        executor.spawn(async move {
            let db = make(port, handle, scene).await;
            *slot.borrow_mut() = Some(db);
        });
    }
    until(&mut executor, || made.borrow().is_some());
    let db: Db<AnyFs> = made.take().expect("it is made");
    let history: History = Rc::new(RefCell::new(vec![(port.position(), [0; TASKS as usize])]));
    let running = Rc::new(Cell::new(TASKS));
    for task in 0..TASKS {
        let running = Rc::clone(&running);
        let work = work_on_model(db.clone(), task, port.clone(), executor.handle(), Rc::clone(&history));
        executor.spawn(async move {
            work.await;
            running.set(running.get() - 1);
        });
    }
    until(&mut executor, || running.get() == 0);
    (port, history.take())
}

/// Checks states after cuts at drawn positions of a history, which says what was acknowledged at each. Returns the number of states and
/// the first fault.
fn states_after<A: Copy, V: Future<Output = Result<R, String>> + 'static, R: 'static>(
    port: &ModelPort,
    history: &[(LogPos, A)],
    (seed, cuts): (u64, u64),
    verify: impl Fn(ModelPort, Handle, A) -> V,
) -> (u64, Option<String>) {
    let (first, last) = (history[0].0.0, port.position().0);
    let mut stream = RandomStream::new(seed, "database.positions");
    let mut states = 0;
    for cut in 0..cuts {
        let upto = LogPos(first + stream.below(u64::from(last - first) + 1) as u32);
        let acked = history.iter().rev().find(|(position, _)| *position <= upto).expect("the first is").1;
        let exploration =
            Exploration { exhaustive_atoms_max: 1, random_draws: 3, seed: seed + cut, pairs: false };
        let tried = port.after_cut(upto, exploration, |woken| {
            let verified = completed(|handle| verify(woken, handle, acked));
            verified.map(drop).map_err(|fault| format!("cut at {}: {fault}", upto.0))
        });
        match tried {
            Ok((count, _)) => states += count,
            Err(fault) => return (states, Some(fault)),
        }
    }
    (states, None)
}

#[test]
fn what_was_committed_is_in_every_state_that_the_contract_allows() {
    for seed in 0..2 {
        let scene = Scene::f2fs(FlushMode::RangeFlush, config());
        let (states, fault) = states_on_model(DeviceKind::D1, &scene, seed, 40);
        assert_eq!(fault, None, "seed {seed}, after {states} states");
        assert!(states > 200, "{states}");
    }
}

/// Opens the database that a cut left, and does no more.
async fn recover(port: Rc<dyn BlockPort>, handle: Handle, scene: Scene) -> Result<Recovery, String> {
    let vfs = mount(port, handle.clone(), &scene).await?;
    Ok(open(&vfs.process(Creds::ROOT), handle, scene.config).await?.1)
}

/// A cut in any step of a recovery leaves an equally good start for the next one (database §7).
#[test]
fn a_recovery_that_is_cut_is_as_good_a_start() {
    let few = |seed| Exploration { exhaustive_atoms_max: 1, random_draws: 1, seed, pairs: false };
    let chosen = ["DWB-ON/OJ", "DWB-OFF/DJ", "DWB-OFF/SADJ"];
    let safe = safe_scenes().into_iter().filter(|(name, _)| chosen.contains(name));
    let on_f2fs = ("DWB-ON/F2FS", Scene::f2fs(FlushMode::RangeFlush, config()));
    let mut rolled_back_in_all = 0;
    for (seed, (name, scene)) in (100..).zip(safe.chain([on_f2fs])) {
        let (port, history) = history_on_model(DeviceKind::D4, &scene);
        let (first, last) = (history[0].0.0, port.position().0);
        let mut stream = RandomStream::new(seed, "database.recoveries");
        let (mut states, mut redone, mut rolled_back) = (0, 0, 0);
        for cut in 0..2 {
            let upto = LogPos(first + stream.below(u64::from(last - first) + 1) as u32);
            let acked = history.iter().rev().find(|(position, _)| *position <= upto).expect("the first is").1;
            let tried = port.after_cut(upto, few(seed + cut), |woken| {
                let (port, again) = (Rc::new(woken.clone()), scene.clone());
                let recovery = completed(|handle| recover(port, handle, again))?;
                redone += recovery.changes_redone;
                rolled_back += recovery.rolled_back;
                for nested in 0..2 {
                    let upto = LogPos(stream.below(u64::from(woken.position().0) + 1) as u32);
                    let (count, _) = woken.after_cut(upto, few(seed + nested), |woken| {
                        let (port, scene) = (Rc::new(woken), scene.clone());
                        completed(|handle| verify(port, handle, scene, acked))
                            .map(drop)
                            .map_err(|fault| format!("cut again at {}: {fault}", upto.0))
                    })?;
                    states += count;
                }
                Ok::<_, String>(())
            });
            tried.unwrap_or_else(|fault| panic!("{name}, seed {seed}: cut at {}: {fault}", upto.0));
        }
        assert!(states > 20 && redone > 50, "{name}: {states}, {redone}");
        rolled_back_in_all += rolled_back;
    }
    assert!(rolled_back_in_all > 0, "a recovery takes back what was not committed");
}

#[test]
fn on_the_model_commits_without_a_sync_are_found() {
    let config = Config { commit: CommitMode::Write, ..config() };
    assert!(states_on_model(DeviceKind::D1, &Scene::f2fs(FlushMode::RangeFlush, config), 0, 20).1.is_some());
}

// Ways to keep pages from being torn (database §1).

fn ext4(journaling: Journaling, checkpoint_by: CheckpointBy) -> Mode {
    Ext4Options { journaling, checkpoint_by, ..Ext4Options::default() }.into()
}

/// A database whose tables have files of their own.
fn scene(mode: Mode, double_write: DoubleWrite, data_io: DataIo) -> Scene {
    let config = Config { double_write, data_io, file_per_table: true, io_capacity: 200, ..config() };
    Scene { flush: FlushMode::Flush, mode, config }
}

/// Every combination that promises what a database needs.
fn safe_scenes() -> Vec<(&'static str, Scene)> {
    use {CheckpointBy::*, DataIo::*, DoubleWrite::*, Journaling::*};
    let ssc: Mode = F2fsOptions { clean_by: CleanBy::Share, ..F2fsOptions::default() }.into();
    vec![
        ("DWB-ON/OJ", scene(ext4(Ordered, Write), On, Buffered)),
        ("DWB-ON/OJ, direct", scene(ext4(Ordered, Write), On, Direct)),
        ("DWB-OFF/DJ", scene(ext4(Journal, Write), Off, Buffered)),
        ("DWB-OFF/SADJ", scene(ext4(Journal, Share), Atomic, Buffered)),
        ("DWB-OFF/SADJ, direct", scene(ext4(Journal, Share), Atomic, Direct)),
        ("DWB-OFF/SSC", scene(ssc, Atomic, Buffered)),
    ]
}

#[test]
fn no_page_is_torn_where_something_keeps_it_whole() {
    for (name, scene) in safe_scenes() {
        let mut commits = 0;
        for seed in 0..12 {
            let cut = cut_once("share-960evo", &scene, seed);
            commits += cut.unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}")).0;
        }
        assert!(commits > 30, "{name}: {commits}");
    }
}

#[test]
fn on_the_model_no_page_is_torn_where_something_keeps_it_whole() {
    for (name, scene) in safe_scenes() {
        let (states, fault) = states_on_model(DeviceKind::D4, &scene, 1, 25);
        assert_eq!(fault, None, "{name}, after {states} states");
        assert!(states > 100, "{name}: {states}");
    }
}

/// Is MariaDB's `fast` safe? Where a write is durable when it completes, and bypasses the page cache. A volatile buffer may write the
/// next batch of copies to flash, over those of pages whose own writes it still has; a flush comes too late.
#[test]
fn fast_double_writes_are_safe_without_a_volatile_buffer_only() {
    use {CheckpointBy::*, DataIo::*, DoubleWrite::*, Journaling::*};
    let direct = scene(ext4(Ordered, Write), Fast, Direct);
    let (states, fault) = states_on_model(DeviceKind::D2, &direct, 1, 100);
    assert_eq!(fault, None, "after {states} states");
    for (name, kind, scene) in [
        ("direct, volatile buffer", DeviceKind::D4, direct),
        ("buffered", DeviceKind::D2, scene(ext4(Ordered, Write), Fast, Buffered)),
    ] {
        assert_torn(name, kind, &scene);
    }
}

fn assert_torn(name: &str, kind: DeviceKind, scene: &Scene) {
    let found = (0..40).find_map(|seed| states_on_model(kind, scene, seed, 60).1);
    let fault = found.unwrap_or_else(|| panic!("{name}: nothing is torn"));
    assert!(fault.contains("torn"), "{name}: {fault}");
}

#[test]
fn without_double_writes_ordered_data_are_torn() {
    use {CheckpointBy::*, DataIo::*, DoubleWrite::*, Journaling::*};
    for data_io in [Buffered, Direct] {
        assert_torn("DWB-OFF/OJ", DeviceKind::D4, &scene(ext4(Ordered, Write), Off, data_io));
    }
}

/// Trees whose data files are made one after the other: each that was acknowledged is there with its row, and the next one can be made.
#[test]
fn data_files_that_were_being_made_are_there_or_made_again() {
    use {CheckpointBy::*, DataIo::*, DoubleWrite::*, Journaling::*};
    const TREES: usize = 6;
    for scene in [
        scene(ext4(Ordered, Write), On, Direct),
        scene(ext4(Journal, Share), Atomic, Buffered),
        scene(Kind::F2fs.into(), On, Buffered),
    ] {
        let port = ModelPort::new(DeviceKind::D4.policy(), (64 << 20) / 4096, scene.flush);
        let mut executor = Executor::new();
        let history = Rc::new(RefCell::new(Vec::new()));
        let (acked, on, handle, of) = (Rc::clone(&history), port.clone(), executor.handle(), scene.clone());
        let is_over = Rc::new(Cell::new(false));
        let over = Rc::clone(&is_over);
        executor.spawn(async move {
            let db = make(Rc::new(on.clone()), handle, of).await;
            acked.borrow_mut().push((on.position(), 0));
            for made in 1..=TREES {
                fill(&db, made).await.unwrap();
                acked.borrow_mut().push((on.position(), made));
            }
            over.set(true);
        });
        until(&mut executor, || is_over.get());
        let (states, fault) = states_after(&port, &history.take(), (1, 60), |woken, handle, acked| {
            let scene = scene.clone();
            async move {
                let vfs = mount(Rc::new(woken), handle.clone(), &scene).await?;
                let (db, _) = open(&vfs.process(Creds::ROOT), handle, scene.config).await?;
                let refused = |error: DbError| error.to_string();
                // Two of them were there from the beginning.
                let there = db.trees().len() - 2;
                if !(acked..=acked + 1).contains(&there) {
                    return Err(format!("{acked} trees were acknowledged, {there} are there"));
                }
                for made in 1..=acked {
                    let tree = db.tree(&format!("t{made}")).map_err(refused)?;
                    if db.get(tree, b"key").await.map_err(refused)?.is_none() {
                        return Err(format!("tree {made} is empty"));
                    }
                }
                fill(&db, there + 1).await.map_err(refused)?;
                let report = db.check().await.map_err(refused)?;
                if report.is_good() && report.lost_pages == 0 { Ok(()) } else { Err(format!("{report:?}")) }
            }
        });
        assert_eq!(fault, None, "after {states} states");
        assert!(states > 100, "{states}");
    }
}

/// Makes a tree in a data file of its own, with a row.
async fn fill(db: &Db<AnyFs>, number: usize) -> Result<(), DbError> {
    let tree = db.create_tree(&format!("t{number}")).await?;
    let mut trx = db.begin().await?;
    trx.insert(tree, b"key", &[7; 500]).await?;
    trx.commit().await
}

/// Once a new database with many transactions was one set, and so was what several loaders had in one file: more than the device shares at
/// once, and the engine stopped.
#[test]
fn regression_no_set_is_larger_than_what_the_device_shares_at_once() {
    let ssc: Mode = F2fsOptions { clean_by: CleanBy::Share, ..F2fsOptions::default() }.into();
    for mode in [ext4(Journaling::Journal, CheckpointBy::Share), ssc] {
        let mut scene = scene(mode, DoubleWrite::Atomic, DataIo::Buffered);
        scene.config = Config {
            transactions_max: 200,
            batch_pages: 64,
            pool_bytes: 64 << 20,
            file_per_table: false,
            ..scene.config
        };
        let mut device = device("share-960evo");
        device.ftl.share.batch = 170;
        let mut stack = Stack::new(Device::new(device, DEVICE), scene.flush);
        let (port, handle): (Rc<dyn BlockPort>, _) = (Rc::new(stack.port()), stack.handle());
        let loaded = Rc::new(Cell::new(0));
        let db = stack.block_on(make(port, handle.clone(), scene)).expect("it is made");
        for name in ["rows", "marks"] {
            let (db, loaded) = (db.clone(), Rc::clone(&loaded));
            handle.spawn(async move {
                let mut loader = db.load(db.tree(name).unwrap()).await.unwrap();
                for row in 0..3_000u32 {
                    loader.add(&row.to_be_bytes(), &[7; 1_000]).await.unwrap();
                }
                let rows = loader.finish().await.unwrap();
                loaded.set(loaded.get() + rows);
            });
        }
        let end = stack.now() + Duration::from_secs(60);
        while loaded.get() < 6_000 && stack.now() < end && stack.turn() {}
        assert_eq!(loaded.get(), 6_000);
        let report = stack.block_on(async move { db.check().await }).expect("it ends").unwrap();
        assert!(report.is_good() && report.lost_pages == 0, "{report:?}");
        assert_eq!((report.rows["rows"], report.rows["marks"]), (3_000, 3_000));
    }
}
