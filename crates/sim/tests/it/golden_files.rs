//! Golden records of file systems: what three tasks see of each format and mode, on a small volume that gets full and is cleaned, until
//! the power is cut, and after it.
//!
//! Each run is one line of `tests/golden/files.txt`: the hash over all events of the device and their times, the end time, digests of the
//! answers that the tasks got and of the counters, and a digest of the tree that recovery finds.
//!
//! Invariant: as in [`crate::golden`], a record is a function of the code alone. A change that is meant to alter one records anew:
//!
//! ```text
//! FLASHWEIR_GOLDEN=record cargo test -p flashweir-sim golden
//! ```

use crate::golden::{OPTIONS, compare, device, digest};
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Duration};
use flashweir_device::Device;
use flashweir_device::config::{PersistPolicy, RangeFlushSupport};
use flashweir_device::presets::preset;
use flashweir_fs::ext4::{CheckpointBy, Journaling};
use flashweir_fs::f2fs::{Background, Flushing};
use flashweir_fs::order::CommitMode;
use flashweir_fs::vfs::{
    Barrier, CacheConfig, Creds, Errno, Follow, MountOptions, OpenFlags, Process, RenameMode, Sink, Source,
    SyncKind, Vfs,
};
use flashweir_fs::{AnyFs, Kind, Mode, Mounted, NewVolume};
use flashweir_sim::live::Tear;
use flashweir_sim::stack::{FlushMode, Stack};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/files.txt");
const PAGE: u64 = 4096;

type Answers = Rc<RefCell<String>>;

/// How a volume is mounted, and on what.
#[derive(Clone)]
struct Case {
    mode: Mode,
    flush: FlushMode,
}

/// A device of 52 append segments of 2 MiB.
fn segments() -> Device {
    let mut config = preset("amf").unwrap();
    (config.geometry.channels, config.geometry.chips_per_channel) = (2, 2);
    (config.geometry.blocks_per_plane, config.append.segments) = (60, 52);
    config.append.spare_blocks = 4;
    config.buffer.capacity = Bytes::mib(1);
    config.validate().unwrap();
    Device::new(config, OPTIONS)
}

impl Case {
    fn stack(&self) -> Stack {
        if self.mode.kind.appends() {
            return Stack::new(segments(), self.flush);
        }
        let is_dual = self.mode.commit_mode() == CommitMode::DualMode;
        let mut config = device(if is_dual { "barrier-ufs" } else { "rflush" }).config().clone();
        if is_dual {
            config.order.policy = PersistPolicy::InOrderRecovery;
            config.buffer.range_flush = RangeFlushSupport::Selective;
        }
        if self.mode.ext4.checkpoint_by == CheckpointBy::Share {
            // Small enough to be full at times.
            config.ftl.share.pages = 300;
        }
        Stack::new(Device::new(config, OPTIONS), self.flush)
    }

    fn mounted(&self, stack: &mut Stack) -> Vfs<AnyFs> {
        let (port, handle, mode) = (Rc::new(stack.port()), stack.handle(), self.mode.clone());
        let cache = CacheConfig {
            dirty_expire: Duration::from_millis(300),
            writeback_interval: Duration::from_millis(50),
            ..CacheConfig::of_bytes(2 << 20)
        };
        let mount = async move {
            let fs = mode.mount(port).await.expect("the volume is good");
            Vfs::mount(fs, handle, MountOptions { cache, ..MountOptions::default() })
                .expect("the options are good")
        };
        stack.block_on(mount).expect("the power stays on")
    }
}

/// One random call of a task on its own names, and on some that all share; what it answers.
async fn call(process: &Process<AnyFs>, task: u64, random: &mut RandomStream) -> Result<u64, Errno> {
    let owner = if random.chance(0.2) { 9 } else { task };
    let [one, other] = [(); 2].map(|()| format!("/d{}/f{owner}{}", random.below(3), random.below(5)));
    let (offset, len) = (random.below(80 * PAGE), 1 + random.below(24 * PAGE));
    let is_direct = random.chance(0.1);
    let what = random.below(20);
    match what {
        0 => return process.unlink(&one).await.map(|()| 0),
        1 => return process.rename(&one, &other, RenameMode::Replace).await.map(|()| 0),
        2 => return process.link(&one, &other).await.map(|attr| attr.ino.0),
        3 => return process.truncate(&one, offset).await.map(|()| offset),
        4 => {
            return process
                .mkdir(format!("/d{}/e{}", random.below(3), random.below(3)), 0o755)
                .await
                .map(|_| 0);
        }
        5 => return process.rmdir(format!("/d{}/e{}", random.below(3), random.below(3))).await.map(|()| 0),
        6 => {
            let (name, value) = (b"user.golden", vec![b'v'; 1 + random.below(200) as usize]);
            let follow = Follow::Yes;
            return process.setxattr(&one, name, &value, Default::default(), follow).await.map(|()| 0);
        }
        _ => {}
    }
    let flags = if is_direct { OpenFlags::READ_WRITE.direct() } else { OpenFlags::READ_WRITE };
    let file = process.open(&one, flags.create(), 0o644).await?;
    let align = |value: u64| if is_direct { value / PAGE * PAGE } else { value };
    let (offset, len) = (align(offset), align(len + PAGE - 1).max(1));
    let answer = match what {
        7 => file.punch_hole(offset, len).await.map(|()| 1),
        8 => file.allocate(offset, len, random.chance(0.5)).await.map(|()| 2),
        9..12 => {
            let mut bytes = vec![0; len as usize];
            let read = file.pread(offset, Sink::bytes(&mut bytes)).await;
            read.map(|read| digest(&format!("{:?}", &bytes[..read as usize])))
        }
        12 => file.barrier(if random.chance(0.5) { Barrier::All } else { Barrier::Data }).await.map(|()| 3),
        _ => {
            let byte = 1 + random.below(255) as u8;
            file.pwrite(offset, Source::bytes(&vec![byte; len as usize])).await
        }
    };
    let answer = match random.below(8) {
        0 => answer.and(file.sync(SyncKind::All).await.map(|()| 4)),
        1 => answer.and(file.sync(SyncKind::Data).await.map(|()| 5)),
        _ => answer,
    };
    file.close().await?;
    answer
}

fn spawn(stack: &mut Stack, vfs: &Vfs<AnyFs>, round: u64, answers: &Answers) {
    for task in 0..3 {
        let (process, handle) = (vfs.process(Creds::ROOT), stack.handle());
        let answers = Rc::clone(answers);
        let mut random = RandomStream::new(round * 100 + task, "golden files");
        stack.spawn(async move {
            for _ in 0..250 {
                let answer = call(&process, task, &mut random).await;
                write!(answers.borrow_mut(), "{task} {} {answer:?};", handle.now().as_nanos()).unwrap();
                if random.chance(0.1) {
                    let pause = Duration::from_micros(random.below(20_000));
                    handle.sleep_until(handle.now() + pause).await;
                }
            }
        });
    }
}

/// All names with their kinds, sizes and contents.
async fn tree(process: &Process<AnyFs>) -> String {
    let mut text = String::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in process.list(format!("{dir}/")).await.unwrap() {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let path = format!("{dir}/{name}");
            if name == "." || name == ".." || name == "lost+found" {
                continue;
            }
            if entry.kind == flashweir_fs::vfs::Kind::Directory {
                writeln!(text, "{path}/").unwrap();
                dirs.push(path);
                continue;
            }
            let file = process.open(&path, OpenFlags::READ, 0).await.unwrap();
            let mut bytes = vec![0; file.size() as usize];
            file.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
            let links = file.attr().await.unwrap().links;
            writeln!(text, "{path} {links} {:016x}", digest(&format!("{bytes:?}"))).unwrap();
            file.close().await.unwrap();
        }
    }
    text
}

fn record(case: &Case) -> String {
    let mut stack = case.stack();
    let (port, kind) = (stack.port(), case.mode.kind);
    let made = stack.block_on(async move {
        let mut new = NewVolume::new(64 << 8);
        new.ext4.journal_blocks = Some(1_024);
        kind.mkfs(&port, &new).await.map(drop)
    });
    made.expect("the power stays on").expect("there is room");
    let answers = Answers::default();
    let mut text = String::new();
    for round in 0..2 {
        let vfs = case.mounted(&mut stack);
        let process = vfs.process(Creds::ROOT);
        if round == 0 {
            let dirs = async move {
                for dir in ["/d0", "/d1", "/d2"] {
                    process.mkdir(dir, 0o755).await.unwrap();
                }
                process.vfs().sync_all().await.unwrap();
            };
            stack.block_on(dirs).expect("the power stays on");
        } else {
            let found = stack.block_on(async move { tree(&process).await }).expect("the power stays on");
            write!(text, "tree {:016x} ", digest(&found)).unwrap();
        }
        spawn(&mut stack, &vfs, round, &answers);
        let begin = stack.now();
        let end = begin + Duration::from_secs(if round == 0 { 2 } else { 40 });
        while stack.next().is_some_and(|next| next <= end) && stack.turn() {}
        let cleaned = vfs.fs().metric("cleaned_background") + vfs.fs().metric("cleaned_foreground");
        // Names and values: a help text may change.
        let counters = vfs.fs().metrics().into_iter().chain(vfs.metrics().list());
        let metrics: String = counters.map(|metric| format!("{}={} ", metric.name, metric.value)).collect();
        write!(
            text,
            "hash {:016x} end {} answers {:016x} counters {:016x} ",
            stack.trace_hash(),
            stack.now().as_nanos(),
            digest(&answers.borrow()),
            digest(&metrics)
        )
        .unwrap();
        if round == 0 {
            drop(vfs);
            (stack, _) = stack.cut(OPTIONS, Tear::Drawn(5));
        } else {
            let unmounted = stack.block_on(async move { vfs.unmount().await }).expect("the power stays on");
            unmounted.unwrap();
            let port = Rc::new(stack.port());
            let checked = stack.block_on(kind.check(port)).expect("the power stays on").unwrap();
            assert!(checked.problems.is_empty(), "{:?}", checked.problems);
            write!(text, "used {} cleaned {}", checked.used_blocks, cleaned).unwrap();
        }
    }
    text
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    let ms = Duration::from_millis;
    let background = Background {
        sleep_min: ms(10),
        sleep_max: ms(30),
        sleep_without_victim: ms(100),
        idle: Duration::ZERO,
    };
    for (journaling, commit_mode) in [
        (Journaling::Ordered, CommitMode::Legacy),
        (Journaling::Journal, CommitMode::Legacy),
        (Journaling::Ordered, CommitMode::DualMode),
    ] {
        let mut mode = Mode::from(Kind::Ext4).committing(commit_mode);
        mode.ext4.journaling = journaling;
        mode.ext4.discard = journaling == Journaling::Ordered;
        cases.push((format!("ext4 {journaling:?} {commit_mode:?}"), Case { mode, flush: FlushMode::Flush }));
    }
    for (name, journaling, commit_mode) in
        [("SOJ", Journaling::Ordered, CommitMode::Legacy), ("SDJ", Journaling::Journal, CommitMode::DualMode)]
    {
        let mut mode = Mode::from(Kind::Ext4).committing(commit_mode);
        (mode.ext4.journaling, mode.ext4.checkpoint_by) = (journaling, CheckpointBy::Share);
        mode.ext4.checkpoint_blocks = 200;
        cases.push((format!("ext4 {name} {commit_mode:?}"), Case { mode, flush: FlushMode::Flush }));
    }
    for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
        for flush in [FlushMode::Flush, FlushMode::RangeFlush] {
            let mut mode = Mode::from(Kind::F2fs).committing(commit_mode);
            mode.f2fs.background = Some(background.clone());
            mode.f2fs.checkpoint_interval = Some(ms(500));
            if flush == FlushMode::RangeFlush {
                mode.f2fs.fsync = Flushing::RangeFlush;
                mode.f2fs.discard_blocks_min = 1;
            }
            cases.push((format!("f2fs {commit_mode:?} {flush:?}"), Case { mode, flush }));
        }
    }
    for fsync_checkpoints in [false, true] {
        let mut mode = Mode::from(Kind::Alfs);
        mode.alfs.fsync_checkpoints = fsync_checkpoints;
        mode.alfs.background = Some(background.clone());
        mode.alfs.checkpoint_interval = Some(ms(500));
        let name = format!("alfs {}", if fsync_checkpoints { "Checkpoint" } else { "RollForward" });
        cases.push((name, Case { mode, flush: FlushMode::Flush }));
    }
    cases
}

#[test]
fn golden_records_of_file_systems_are_what_they_were() {
    let records: Vec<String> =
        cases().iter().map(|(name, case)| format!("{name}: {}", record(case))).collect();
    compare(RECORDS, &(records.join("\n") + "\n"));
}
