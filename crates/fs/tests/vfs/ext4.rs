//! The vfs over ext4 volumes: the same scripts as over memory, and after each one a volume that is good.

use crate::bed::{Bed, cache_of};
use crate::changes::{Model, compare, random_changes};
use crate::disk::{self, Disk, Timeline, many_at_once, page};
use crate::model::{Action, action, play};
use crate::posix::TOPICS;
use crate::script::Script;
use flashweir_core::{DeviceError, Duration, Payload, RandomStream};
use flashweir_fs::ext4::{self, CommitMode, Ext4, Ext4Options, Journaling, Options, check, mkfs};
use flashweir_fs::port::{BlockPort, Image, Request, Ticket, Write, block_on, bytes_of};
use flashweir_fs::vfs::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::rc::Rc;

fn volume(mib: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    image
}

fn mounted(image: &Rc<Image>) -> Bed<Ext4> {
    let fs = block_on(Ext4::mount(Rc::clone(image) as _)).unwrap();
    Bed::mount(MountOptions::default(), |_| fs)
}

/// Everything is as it should be.
fn good(image: &Rc<Image>) {
    let report = block_on(check(Rc::clone(image) as _)).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.is_clean);
}

#[test]
fn posix() {
    for (topic, script) in TOPICS {
        println!("{topic}");
        // The largest file of this format is smaller than that of memory.
        let mut script = script.replace("\\0", "\0");
        for below in 0..3 {
            let (memory, ours) = ((16_u64 << 40) + 1 - below, 17_592_186_040_321 - below);
            script = script.replace(&memory.to_string(), &ours.to_string());
        }
        let (memory, ours) = ((16_u64 << 40) - 2, 17_592_186_040_318_u64);
        script = script.replace(&memory.to_string(), &ours.to_string());
        // Reserved inodes and lost+found are in use; numbers from the highest on, so that none is replaced twice.
        for used in (0..20).rev() {
            let line = |used: u32| format!("inodes-used => {used}\n");
            script = script.replace(&line(used), &line(used + 10));
        }
        // A value has to fit into a node.
        let script: Vec<&str> = script.lines().filter(|line| !line.contains("user.long")).collect();
        let script = script.join("\n");
        let image = volume(64);
        let mut bed = mounted(&image);
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        bed.run(async move {
            Script::run(vfs.clone(), handle, &script).await;
            vfs.unmount().await.expect("everything is closed and can be written");
        });
        good(&image);
    }
}

/// A commit makes the lengths of all files durable, but no pages. What was cut off from the last page before was still on the disk, and came
/// back with a later length.
#[test]
fn regression_what_was_truncated_does_not_come_back_after_a_cut() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let create = async |name: &str| root.open(name, OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
        let (file, other) = (create("/file").await, create("/other").await);
        file.pwrite(0, Source::bytes(&[b'A'; 4096])).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        file.truncate(100).await.unwrap();
        file.truncate(3000).await.unwrap();
        other.pwrite(0, Source::bytes(b"other")).await.unwrap();
        other.sync(SyncKind::All).await.unwrap();
        // The mount ends here, as in a power cut.
        std::mem::forget((file, other));
    });
    drop(bed);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = vfs.process(Creds::ROOT).open("/file", OpenFlags::READ, 0).await.unwrap();
        let mut bytes = vec![9; 4096];
        assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(3000));
        assert!(bytes[..100] == [b'A'; 100] && bytes[100..3000].iter().all(|&byte| byte == 0));
        file.close().await.unwrap();
    });
}

/// A write past the page cache ends with its pages, and one of a part of a page was taken for one: files were too long on the disk.
#[test]
fn regression_a_direct_write_of_a_part_of_a_page_keeps_the_length() {
    for journaling in [Journaling::Ordered, Journaling::Journal, Journaling::Writeback] {
        let image = volume(64);
        let options = Ext4Options { journaling, ..Ext4Options::default() };
        let fs = block_on(Ext4::mount_with(Rc::clone(&image) as _, options)).unwrap();
        let mut bed = Bed::mount(MountOptions::default(), |_| fs);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let flags = OpenFlags::READ_WRITE.create().direct();
            let new = root.open("/new", flags, 0o600).await.unwrap();
            new.pwrite(0, Source::bytes(&[1; 512])).await.unwrap();
            new.close().await.unwrap();
            let old = root.open("/old", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
            old.pwrite(0, Source::bytes(&[2; 5000])).await.unwrap();
            old.close().await.unwrap();
            let old = root.open("/old", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
            old.pwrite(4096, Source::bytes(&[3; 512])).await.unwrap();
            old.close().await.unwrap();
            vfs.unmount().await.unwrap();
        });
        drop(bed);
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            for (name, size) in [("/new", 512), ("/old", 5000)] {
                let attr = root.stat(name, Follow::Yes).await.unwrap();
                assert_eq!(attr.size, size, "{name}, {journaling:?}");
            }
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
}

/// Times beyond those of the format became others with the next mount: 1900 was 2444, 2500 was 1955.
#[test]
fn regression_times_are_the_nearest_that_an_inode_has() {
    let image = volume(64);
    let at = |seconds| SetTime::At(Timestamp { seconds, nanos: 5 });
    for is_set in [true, false] {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            if is_set {
                root.create("/file").await.unwrap().close().await.unwrap();
                root.create("/plain").await.unwrap().close().await.unwrap();
                root.utimens("/file", at(-2_208_988_800), at(16_725_225_600), Follow::Yes).await.unwrap();
                root.utimens("/plain", at(-1), at(1 << 33), Follow::Yes).await.unwrap();
            }
            let times = async |name| {
                let attr = root.stat(name, Follow::Yes).await.unwrap();
                [attr.atime, attr.mtime].map(|time| (time.seconds, time.nanos))
            };
            assert_eq!(times("/file").await, [(-2_147_483_648, 0), (15_032_385_535, 0)]);
            assert_eq!(times("/plain").await, [(-1, 5), (1 << 33, 5)]);
            vfs.unmount().await.unwrap();
        });
        drop(bed);
        good(&image);
    }
}

#[test]
fn random_changes_survive_mounts() {
    let image = volume(256);
    let mut model = Model::new();
    for round in 0..6 {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        let mut random = RandomStream::new(round, "ext4 changes");
        model = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            for dir in 0..3 {
                let made = root.mkdir(&format!("/d{dir}"), 0o755).await;
                assert_eq!(made.is_ok(), round == 0);
            }
            compare(&vfs, &model).await;
            random_changes(&vfs, &mut random, &mut model, 400).await;
            compare(&vfs, &model).await;
            vfs.unmount().await.unwrap();
            model
        });
        good(&image);
    }
}

/// Many names in one directory, so that it has several levels.
#[test]
fn thousands_of_names() {
    let image = volume(128);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..4000 {
            root.symlink(&format!("target {number}"), &format!("/name-{number}")).await.unwrap();
        }
        for number in (0..4000).step_by(3) {
            root.unlink(&format!("/name-{number}")).await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..4000 {
            let found = root.readlink(&format!("/name-{number}")).await;
            let expected = format!("target {number}").into_bytes();
            assert_eq!(found.ok().as_deref(), (number % 3 != 0).then_some(&expected[..]), "{number}");
        }
        vfs.unmount().await.unwrap();
    });
}

fn check_model(actions: [Vec<Action>; 2], journaling: Journaling) {
    let image = volume(16);
    let options = Ext4Options { journaling, ..Ext4Options::default() };
    let fs = block_on(Ext4::mount_with(Rc::clone(&image) as _, options)).unwrap();
    let mut bed = Bed::mount(MountOptions { cache: cache_of(32), ..MountOptions::default() }, |_| fs);
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    let ended = Rc::new(());
    for (name, actions) in ["/a", "/b"].into_iter().zip(actions) {
        let (vfs, handle, ended) = (vfs.clone(), handle.clone(), Rc::clone(&ended));
        bed.executor.spawn(async move {
            play(vfs, handle, name, actions).await;
            drop(ended);
        });
    }
    bed.run(async move {
        while Rc::strong_count(&ended) > 1 {
            handle.sleep_until(handle.now() + Duration::from_millis(10)).await;
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Two files at the same time read as they were written.
    #[test]
    fn files_read_as_written(a in prop::collection::vec(action(), 1..60), b in prop::collection::vec(action(), 1..60)) {
        check_model([a.clone(), b.clone()], Journaling::Ordered);
        check_model([a, b], Journaling::Journal);
    }
}

/// Whether pages of a file are those of a list; those without a version are zeros.
async fn compare_pages(vfs: &Vfs<Ext4>, name: &str, versions: &[Option<u64>]) {
    let file = vfs.process(Creds::ROOT).open(name, OpenFlags::READ.direct(), 0).await.unwrap();
    for (at, version) in (0..).zip(versions) {
        let mut bytes = [0; 4096];
        assert_eq!(file.pread(at * 4096, Sink::bytes(&mut bytes)).await, Ok(4096), "page {at}");
        assert!(bytes == version.map_or([0; 4096], |version| page(at, version)), "page {at}: {version:?}");
    }
    file.close().await.unwrap();
}

/// A file of single pages whose extents need a deep tree; holes are filled, allocated and punched.
#[test]
fn fragmented_files() {
    let image = volume(256);
    let mut versions: Vec<Option<u64>> = vec![None; 12_000];
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    let mut random = RandomStream::new(1, "ext4 fragments");
    versions = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        // Two files that take turns have no two pages next to each other.
        let files = [root.create("/a").await.unwrap(), root.create("/b").await.unwrap()];
        let pages = versions.len() as u64;
        for at in (0..pages).step_by(2) {
            versions[at as usize] = Some(0);
            for file in &files {
                file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
                file.sync(SyncKind::Data).await.unwrap();
            }
        }
        files[0].truncate(pages * 4096).await.unwrap();
        for round in 1..6000 {
            let at = random.below(pages);
            let count = 1 + random.below(4).min(pages - at - 1);
            match random.below(4) {
                0 => {
                    versions[at as usize] = Some(round);
                    files[0].pwrite(at * 4096, Source::bytes(&page(at, round))).await.unwrap();
                }
                1 => files[0].allocate(at * 4096, count * 4096, true).await.unwrap(),
                2 => {
                    versions[at as usize..(at + count) as usize].fill(None);
                    files[0].punch_hole(at * 4096, count * 4096).await.unwrap();
                }
                _ => {
                    for at in at..at + count {
                        versions[at as usize] = Some(round);
                        files[0].pwrite(at * 4096, Source::bytes(&page(at, round))).await.unwrap();
                    }
                }
            }
            if round % 1500 == 0 {
                vfs.sync_all().await.unwrap();
            }
        }
        for file in files {
            file.close().await.unwrap();
        }
        compare_pages(&vfs, "/a", &versions).await;
        vfs.unmount().await.unwrap();
        versions
    });
    good(&image);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        compare_pages(&vfs, "/a", &versions).await;
        let root = vfs.process(Creds::ROOT);
        root.truncate("/b", 5000 * 4096).await.unwrap();
        root.truncate("/a", 17).await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let free = vfs.statfs().await.unwrap().pages_free;
        root.unlink("/a").await.unwrap();
        root.unlink("/b").await.unwrap();
        assert!(vfs.statfs().await.unwrap().pages_free >= free + 2501);
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// Long names in one directory, so that its index has two levels.
#[test]
fn a_directory_with_a_deep_index() {
    const COUNT: u64 = 9000;
    let image = volume(128);
    let name = |number: u64| format!("/d/{number:05}{}", "x".repeat(240));
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        root.mkdir("/d", 0o755).await.unwrap();
        for number in 0..COUNT {
            root.symlink("to", name(number)).await.unwrap();
        }
        for number in (0..COUNT).filter(|number| number % 3 == 0) {
            root.unlink(name(number)).await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..COUNT {
            assert_eq!(root.readlink(name(number)).await.is_ok(), number % 3 != 0, "{number}");
        }
        let dir = root.open("/d", OpenFlags::READ.directory(), 0).await.unwrap();
        let (mut seen, mut cookie) = (std::collections::BTreeSet::new(), Cookie::START);
        loop {
            let entries = dir.read_dir(cookie, 7).await.unwrap();
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            // What is made meanwhile splits blocks.
            root.symlink("to", format!("/d/later{}{}", seen.len(), "y".repeat(200))).await.unwrap();
            for entry in entries {
                assert!(seen.insert(entry.name.clone()), "{:?} twice", entry.name);
            }
        }
        let first = seen.iter().filter(|name| !name.starts_with(b"later")).count() as u64;
        assert_eq!(first, COUNT - COUNT / 3);
        dir.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// More subdirectories than links can count.
#[test]
fn a_directory_that_cannot_count_its_subdirectories() {
    const COUNT: u64 = 65_010;
    let image = Rc::new(Image::in_memory(700 << 8));
    let options = Options { inodes: Some(70_000), ..Options::new(700 << 8) };
    block_on(mkfs(&*image, &options)).unwrap();
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        root.mkdir("/many", 0o755).await.unwrap();
        for number in 0..COUNT {
            root.mkdir(format!("/many/{number}"), 0o755).await.unwrap();
        }
        assert_eq!(root.stat("/many", Follow::Yes).await.unwrap().links, 1);
        for number in 0..100 {
            root.rmdir(format!("/many/{number}")).await.unwrap();
        }
        assert_eq!(root.stat("/many", Follow::Yes).await.unwrap().links, 1);
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// Pages that begin as blocks of the journal do, and pages that are overwritten and freed while the journal has them, are read as
/// they were written: from memory, after a checkpoint, and after a cut.
#[test]
fn journalled_data_are_read_wherever_they_are() {
    const PAGES: u64 = 60;
    let like_a_journal = |at: u64, version: u64| {
        let mut bytes = page(at, version);
        bytes[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        bytes
    };
    let image = volume(64);
    let options = || Ext4Options { journaling: Journaling::Journal, ..Ext4Options::default() };
    let fs = block_on(Ext4::mount_with(Rc::clone(&image) as _, options())).unwrap();
    let mut bed = Bed::mount(MountOptions { cache: cache_of(32), ..MountOptions::default() }, |_| fs);
    let vfs = bed.vfs.clone();
    let versions = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/file", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        let mut random = RandomStream::new(3, "journalled data");
        let mut versions = vec![0; PAGES as usize];
        for version in 1..5000 {
            let at = random.below(PAGES);
            versions[at as usize] = version;
            file.pwrite(at * 4096, Source::bytes(&like_a_journal(at, version))).await.unwrap();
            let other = random.below(PAGES);
            match random.below(12) {
                0 => file.sync(SyncKind::Data).await.unwrap(),
                1 => {
                    file.punch_hole(other * 4096, 4096).await.unwrap();
                    versions[other as usize] = 0;
                }
                _ => (),
            }
            let mut bytes = [0; 4096];
            if file.pread(other * 4096, Sink::bytes(&mut bytes)).await.unwrap() == 4096 {
                let expected = match versions[other as usize] {
                    0 => [0; 4096],
                    version => like_a_journal(other, version),
                };
                assert!(bytes == expected, "page {other} at {version}");
            }
        }
        file.sync(SyncKind::Data).await.unwrap();
        assert!(vfs.fs().metrics().journalled_blocks > 2000, "the journal went round");
        assert!(vfs.fs().metrics().revoked_blocks > 10);
        // The power is cut.
        std::mem::forget(file);
        versions
    });
    let fs = block_on(Ext4::mount_with(Rc::clone(&image) as _, options())).unwrap();
    assert!(fs.recovered().log.transactions > 0);
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = vfs.process(Creds::ROOT).open("/file", OpenFlags::READ, 0).await.unwrap();
        for (at, version) in (0..).zip(versions) {
            let mut bytes = [0; 4096];
            file.pread(at * 4096, Sink::bytes(&mut bytes)).await.unwrap();
            let expected = if version == 0 { [0; 4096] } else { like_a_journal(at, version) };
            assert!(bytes == expected, "page {at}");
        }
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// A volume that users fill, overwrite at random, empty and fill again.
#[test]
fn a_full_volume_goes_on() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let free = vfs.statfs().await.unwrap().pages_free;
        for round in 0..3 {
            let file = root.open("/full", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            let mut versions = Vec::new();
            loop {
                let at = versions.len() as u64;
                match file.pwrite(at * 4096, Source::bytes(&page(at, round))).await {
                    Ok(_) => versions.push(Some(round)),
                    Err(errno) => break assert_eq!(errno, Errno::ENOSPC),
                }
            }
            let pages = versions.len() as u64;
            assert!(pages + 100 > free, "{pages} of {free}");
            assert!(
                root.symlink(&"x".repeat(100), "/link").await.is_err()
                    || vfs.statfs().await.unwrap().pages_free < 100
            );
            let _ = root.unlink("/link").await;
            let mut random = RandomStream::new(round, "ext4 overwrites");
            for number in 100..2000 {
                let at = random.below(pages);
                versions[at as usize] = Some(number);
                file.pwrite(at * 4096, Source::bytes(&page(at, number))).await.unwrap();
            }
            file.sync(SyncKind::All).await.unwrap();
            compare_pages(&vfs, "/full", &versions).await;
            file.close().await.unwrap();
            root.unlink("/full").await.unwrap();
            assert_eq!(vfs.statfs().await.unwrap().pages_free, free);
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// On a disk that remembers what was asked of it, with a small cache.
fn mounted_on(disk: &Rc<Disk>, options: Ext4Options, is_slow: bool) -> Bed<Ext4> {
    disk.bed(block_on(Ext4::mount_with(Rc::clone(disk) as _, options)).unwrap(), is_slow)
}

#[test]
fn many_at_once_on_a_slow_disk() {
    for seed in 0..4 {
        let disk = Disk::new(volume(64));
        let journaling = if seed % 2 == 0 { Journaling::Ordered } else { Journaling::Journal };
        let commit_mode = if seed < 2 { CommitMode::Legacy } else { CommitMode::DualMode };
        let checkpoint_blocks = if seed < 2 { 0 } else { 200 };
        let options = Ext4Options { journaling, commit_mode, checkpoint_blocks, ..Ext4Options::default() };
        many_at_once(mounted_on(&disk, options, true), seed);
        good(&disk.image);
    }
}

/// The requests of a call: D data, J blocks of the journal, C commit block, c the same with FUA.
fn requests_of(commit_mode: CommitMode, call: impl AsyncFnOnce(&File<Ext4>) + 'static) -> String {
    requests_with(Ext4Options { commit_mode, ..Ext4Options::default() }, call)
}

fn requests_with(options: Ext4Options, call: impl AsyncFnOnce(&File<Ext4>) + 'static) -> String {
    let log = Timeline::new(volume(64));
    let fs = block_on(Ext4::mount_with(Rc::clone(&log) as _, options)).unwrap();
    let kind = |write: &Write| {
        let bytes = bytes_of(&write.payloads[0]);
        let is_of_journal = bytes[..4] == 0xc03b_3998_u32.to_be_bytes();
        match bytes[7] {
            1 if is_of_journal => "J",
            2 if is_of_journal && write.fua => "c",
            2 if is_of_journal => "C",
            _ => "D",
        }
    };
    disk::requests_of(log, fs, kind, call)
}

/// The waits of barriers §6. Legacy mode waits for the transfers of data, of blocks of the journal and of the commit block, and has two
/// flushes, one of them FUA. In dual mode all three are under way at once, and one flush is behind them.
#[test]
fn waits_and_flushes_of_one_call() {
    use CommitMode::{DualMode, Legacy};
    let sync = async |file: &File<Ext4>| file.sync(SyncKind::All).await.unwrap();
    assert_eq!(requests_of(Legacy, sync), "'D'J'F'c");
    assert_eq!(requests_of(DualMode, sync), "'D+J|C|'F");
    let data = async |file: &File<Ext4>| file.sync(SyncKind::Data).await.unwrap();
    assert_eq!(requests_of(Legacy, data), "'D'J'F'c");
    assert_eq!(requests_of(DualMode, data), "'D|J|C|'F");
    let order = async |file: &File<Ext4>| file.barrier(Barrier::All).await.unwrap();
    assert_eq!(requests_of(DualMode, order), "'D+J|C|");
    let twice = async |file: &File<Ext4>| {
        file.barrier(Barrier::Data).await.unwrap();
        file.barrier(Barrier::Data).await.unwrap();
    };
    // The second one finds nothing that is dirty.
    assert_eq!(requests_of(DualMode, twice), "'D|B");
    let two_transactions = async |file: &File<Ext4>| {
        file.barrier(Barrier::All).await.unwrap();
        file.pwrite(8192, Source::bytes(&page(2, 2))).await.unwrap();
        file.barrier(Barrier::All).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
    };
    // One flush is for both. The second one has blocks of the first, so its data go, and it waits for the answers to that.
    assert_eq!(requests_of(DualMode, two_transactions), "'D+J|C|D+J|C|'F");
    let versions = Ext4Options { commit_mode: DualMode, multi_version: true, ..Ext4Options::default() };
    // With versions of its own it does not, nor does it for data that are in order before the commit block.
    assert_eq!(requests_with(versions, two_transactions), "'D+J|C|D+J|C|F");
}

/// A disk that takes everything but barriers.
#[derive(Debug)]
struct Barrierless {
    disk: Rc<Image>,
    writes: Cell<u32>,
}

impl BlockPort for Barrierless {
    fn capacity_blocks(&self) -> u64 {
        self.disk.capacity_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        match request {
            Request::Barrier(_) => Ticket::done(Err(DeviceError::NotSupported("barriers").into())),
            Request::Write(_) => {
                self.writes.set(self.writes.get() + 1);
                self.disk.submit(request)
            }
            _ => self.disk.submit(request),
        }
    }
}

/// Dual mode would order nothing there; the volume is left as it is, and can be mounted with waits.
#[test]
fn dual_mode_is_refused_on_a_disk_without_barriers() {
    let disk = Rc::new(Barrierless { disk: volume(64), writes: Cell::default() });
    let mount = |commit_mode| {
        let options = Ext4Options { commit_mode, ..Ext4Options::default() };
        block_on(Ext4::mount_with(Rc::clone(&disk) as _, options))
    };
    let refused = mount(CommitMode::DualMode).unwrap_err();
    assert_eq!(refused, ext4::Error::Refused("dual-mode journaling on a disk without barriers".into()));
    assert!(refused.to_string().contains("dual-mode journaling on a disk without barriers"));
    assert_eq!(disk.writes.get(), 0);
    mount(CommitMode::Legacy).unwrap();
}

/// A volume on a disk whose free blocks hold bytes that must not be visible.
fn volume_with_secrets(mib: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(mib << 8));
    for block in 0..mib << 8 {
        let secret = Payload::Bytes(vec![0xee; 4096].into());
        block_on(image.write(Write::new(flashweir_fs::port::Block(block), vec![secret])).completed())
            .unwrap();
    }
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    image
}

/// Files that lose their names while they are open, and some that are being made shorter, are done with at the next mount.
#[test]
fn orphans_are_freed_at_the_next_mount() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    let free = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let free = vfs.statfs().await.unwrap().pages_free;
        let mut files = Vec::new();
        for number in 0..5_u64 {
            let name = format!("/open{number}");
            let file = root.open(&name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            for at in 0..200 {
                // No two pages next to each other.
                file.pwrite(at * 8192, Source::bytes(&page(at, number))).await.unwrap();
            }
            root.setxattr(&name, "user.large", &[7; 3000], XattrMode::Set, Follow::Yes).await.unwrap();
            file.sync(SyncKind::All).await.unwrap();
            root.unlink(&name).await.unwrap();
            files.push(file);
        }
        // The second of the list and the last one leave it again.
        for number in [3, 0] {
            files.remove(number).close().await.unwrap();
        }
        root.mkdir("/stays", 0o700).await.unwrap();
        vfs.sync_all().await.unwrap();
        for file in files {
            let mut bytes = [0; 4096];
            assert_eq!(file.pread(8192, Sink::bytes(&mut bytes)).await, Ok(4096));
            // The power is cut: it is not unmounted.
            std::mem::forget(file);
        }
        free
    });
    let report = block_on(check(Rc::clone(&image) as _)).unwrap();
    assert_eq!((report.problems, report.orphans), (vec![], 3));
    let fs = block_on(Ext4::mount(Rc::clone(&image) as _)).unwrap();
    assert_eq!(fs.recovered().orphans, 3);
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        root.rmdir("/stays").await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().pages_free, free);
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// A task appends to a file whose data are journalled while two others sync it: each write has its pages and the length that they give
/// the file, whoever syncs in between.
#[test]
fn appends_beside_syncs_keep_their_lengths() {
    for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
        let image = volume(32);
        let disk = Disk::new(Rc::clone(&image));
        let options = Ext4Options { journaling: Journaling::Journal, commit_mode, ..Ext4Options::default() };
        let mut bed = mounted_on(&disk, options.clone(), true);
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        let done = Rc::new(Cell::new(false));
        for task in 0..2 {
            let (vfs, handle, done) = (vfs.clone(), handle.clone(), Rc::clone(&done));
            bed.executor.spawn(async move {
                let root = vfs.process(Creds::ROOT);
                let file = root.open("/log", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
                while !done.get() {
                    let kind = if task == 0 { SyncKind::All } else { SyncKind::Data };
                    file.sync(kind).await.unwrap();
                    handle.sleep_until(handle.now() + Duration::from_micros(17 + 100 * task)).await;
                }
                file.close().await.unwrap();
            });
        }
        const BYTES: usize = 1500;
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let file = root.open("/log", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            for number in 0..200_u64 {
                let bytes = [number as u8; BYTES];
                assert_eq!(file.pwrite(number * BYTES as u64, Source::bytes(&bytes)).await, Ok(BYTES as u64));
                handle.sleep_until(handle.now() + Duration::from_micros(number % 7 * 40)).await;
            }
            file.sync(SyncKind::All).await.unwrap();
            file.close().await.unwrap();
            done.set(true);
            handle.sleep_until(handle.now() + Duration::from_millis(100)).await;
        });
        // As it was synced, without an unmount.
        let mut bed = Bed::mount(MountOptions::default(), |_| {
            block_on(Ext4::mount_with(Rc::clone(&image) as _, options.clone())).unwrap()
        });
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let file = root.open("/log", OpenFlags::READ, 0).await.unwrap();
            let mut bytes = vec![0; 200 * BYTES + 1];
            assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(200 * BYTES as u64));
            assert!(
                bytes[..200 * BYTES].chunks(BYTES).zip(0_u8..).all(|(part, number)| part == [number; BYTES])
            );
            file.close().await.unwrap();
        });
    }
}

/// Whatever part of the writes since the last flush is lost: the volume is good after a mount, and no page is older than
/// at the last sync before, or what was never written to its file.
#[test]
fn a_cut_leaves_the_last_commit() {
    for journaling in [Journaling::Ordered, Journaling::Journal] {
        a_cut_leaves_the_last_commit_of(journaling);
    }
}

fn a_cut_leaves_the_last_commit_of(journaling: Journaling) {
    const PAGES: u64 = 300;
    let disk = Disk::new(volume_with_secrets(32));
    let options = Ext4Options { journaling, ..Ext4Options::default() };
    let mut bed = mounted_on(&disk, options, false);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(&disk));
    let synced = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for dir in 0..3 {
            root.mkdir(format!("/d{dir}"), 0o755).await.unwrap();
        }
        let mut random = RandomStream::new(9, "ext4 cuts");
        let mut model = Model::new();
        let mut versions = vec![0; PAGES as usize];
        let mut synced = vec![(log.requests.borrow().len(), versions.clone())];
        let file = root.create("/pages").await.unwrap();
        for version in 1..300 {
            random_changes(&vfs, &mut random, &mut model, 4).await;
            for _ in 0..5 {
                let at = random.below(PAGES);
                file.pwrite(at * 4096, Source::bytes(&page(at, version))).await.unwrap();
                versions[at as usize] = version;
            }
            match random.below(40) {
                0 => vfs.sync_all().await.unwrap(),
                1..4 => file.sync(SyncKind::All).await.unwrap(),
                4..6 => file.sync(SyncKind::Data).await.unwrap(),
                _ => continue,
            }
            synced.push((log.requests.borrow().len(), versions.clone()));
        }
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
        synced
    });
    let requests = disk.requests.take();
    let flushes: Vec<usize> = (0..requests.len()).filter(|&at| requests[at] == Request::Flush).collect();
    assert!(flushes.len() > 30, "there are several commits");
    let mut random = RandomStream::new(10, "ext4 cuts");
    let mut replayed = 0;
    for _ in 0..80 {
        let flush = random.below(flushes.len() as u64) as usize;
        let start = flush.checked_sub(1).map_or(0, |before| flushes[before]);
        let end = start + random.below((flushes[flush] - start + 1) as u64) as usize;
        let image = volume_with_secrets(32);
        for (at, request) in requests[..end].iter().enumerate() {
            let is_durable = at < start || matches!(request, Request::Write(write) if write.fua);
            if is_durable || random.below(2) == 0 {
                block_on(image.submit(request.clone()).completed()).unwrap();
            }
        }
        let report = block_on(check(Rc::clone(&image) as _)).unwrap();
        assert_eq!(report.problems, [], "after {start} requests and some of those up to {end}");
        let fs = block_on(Ext4::mount(Rc::clone(&image) as _)).unwrap();
        replayed += fs.recovered().log.transactions;
        let mut bed = Bed::mount(MountOptions::default(), |_| fs);
        let (_, least) = synced.iter().rfind(|(at, _)| *at <= start + 1).unwrap_or(&synced[0]);
        let (vfs, least) = (bed.vfs.clone(), least.clone());
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let Ok(file) = root.open("/pages", OpenFlags::READ, 0).await else {
                assert!(least.iter().all(|&version| version == 0), "the file is gone");
                return vfs.unmount().await.unwrap();
            };
            for (at, least) in (0..).zip(least) {
                let mut bytes = [0; 4096];
                let read = file.pread(at * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                assert!(read == 4096 || least == 0, "page {at} is gone");
                let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                assert!(
                    bytes == [0; 4096] || bytes == page(at, version),
                    "page {at} holds what nobody wrote to it"
                );
                assert!(version >= least, "page {at}: {version}, synced {least}");
            }
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
    assert!(replayed > 80, "logs were replayed: {replayed}");
}

/// Other tasks fill each transaction as soon as it begins; that is no lack of room for a write.
#[test]
fn a_write_waits_for_transactions_that_others_fill() {
    let image = Rc::new(Image::in_memory(128 << 8));
    let new = Options { journal_blocks: Some(1024), inodes: Some(20_000), ..Options::new(128 << 8) };
    block_on(mkfs(&*image, &new)).unwrap();
    let disk = Disk::new(Rc::clone(&image));
    let fs = block_on(Ext4::mount(Rc::clone(&disk) as _)).unwrap();
    let mut bed = disk.bed(fs, true);
    let vfs = bed.vfs.clone();
    for task in 0..6 {
        let vfs = vfs.clone();
        bed.executor.spawn(async move {
            let root = vfs.process(Creds::ROOT);
            for number in 0..1_000 {
                root.mkdir(format!("/dir{task}-{number}"), 0o755).await.unwrap();
            }
        });
    }
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let flags = OpenFlags::WRITE.create().direct();
        for round in 0..400 {
            let file = root.open(format!("/file{}", round % 5), flags.truncate(), 0o644).await.unwrap();
            for at in 0..4 {
                assert_eq!(file.pwrite(at * 8192, Source::bytes(&page(at, round))).await, Ok(4096));
            }
            file.close().await.unwrap();
        }
    });
    bed.pass(Duration::from_secs(60));
    let vfs = bed.vfs.clone();
    bed.run(async move { vfs.unmount().await.unwrap() });
    good(&image);
}

/// A new volume on a disk that refuses writes once it is told which.
fn on_a_disk_that_can_fail() -> (Rc<Image>, Rc<Disk>, Bed<Ext4>) {
    let image = volume(32);
    let disk = Disk::new(Rc::clone(&image));
    let bed = disk.bed(block_on(Ext4::mount(Rc::clone(&disk) as _)).unwrap(), false);
    (image, disk, bed)
}

/// A write fails whose blocks were new: neither are they in the file, with what they had before, nor does the file have a length that no call
/// gave it.
#[test]
fn regression_a_write_that_fails_leaves_neither_blocks_nor_length() {
    let (image, bad, mut bed) = on_a_disk_that_can_fail();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        // What is freed here has contents.
        let old = root.create("/old").await.unwrap();
        old.write(Source::pattern(9, 6_000 * 4096)).await.unwrap();
        old.sync(SyncKind::All).await.unwrap();
        old.close().await.unwrap();
        root.unlink("/old").await.unwrap();
        vfs.sync_all().await.unwrap();
        *bad.refused.borrow_mut() = Some(Payload::Bytes(page(1, 1)[..].into()));
        let direct = root.open("/direct", OpenFlags::READ_WRITE.create().direct(), 0o644).await.unwrap();
        assert_eq!(direct.pwrite(0, Source::bytes(&page(0, 1))).await, Ok(4096));
        let two = [page(1, 1), page(2, 1)].concat();
        assert_eq!(direct.pwrite(4096, Source::bytes(&two)).await, Err(Errno::EIO));
        assert_eq!(direct.size(), 4096);
        direct.close().await.unwrap();
        let cached = root.open("/cached", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        assert_eq!(cached.pwrite(4096, Source::bytes(&page(1, 1))).await, Ok(4096));
        assert_eq!(cached.sync(SyncKind::All).await, Err(Errno::EIO));
        // Another file's sync commits what there is of both.
        root.open("/other", OpenFlags::WRITE.create(), 0o644)
            .await
            .unwrap()
            .sync(SyncKind::All)
            .await
            .unwrap();
    });
    // The power fails here.
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        assert_eq!(root.stat("/direct", Follow::Yes).await.unwrap().size, 4096);
        let cached = root.open("/cached", OpenFlags::READ, 0).await.unwrap();
        let mut bytes = vec![1; cached.size() as usize];
        cached.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "what the blocks had before");
        cached.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// The last checkpoint fails: another attempt to unmount must not say that the journal, which has what was synced, is empty.
#[test]
fn regression_an_unmount_that_failed_does_not_succeed_later() {
    let (image, bad, mut bed) = on_a_disk_that_can_fail();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.create("/file").await.unwrap();
        file.pwrite(0, Source::bytes(&page(0, 1))).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        file.close().await.unwrap();
        // The descriptors of the groups.
        bad.refused_block.set(Some(1));
        assert_eq!(vfs.unmount().await, Err(Errno::EIO));
        bad.refused_block.set(None);
        assert_eq!(vfs.unmount().await, Err(Errno::EROFS));
    });
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        assert_eq!(root.stat("/file", Follow::Yes).await.unwrap().size, 4096, "it was synced");
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// Reserved room in a tree of two levels: a sync of what is written there commits the change of a leaf.
#[test]
fn a_sync_commits_what_is_written_into_the_reserved_room_of_a_tall_tree() {
    for kind in [SyncKind::All, SyncKind::Data] {
        let image = volume(32);
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let file = root.open("/f", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
            for at in 0..10 {
                file.allocate(2 * at * 4096, 4096, false).await.unwrap();
            }
            file.sync(SyncKind::All).await.unwrap();
            file.pwrite(6 * 4096, Source::bytes(&page(6, 1))).await.unwrap();
            file.sync(kind).await.unwrap();
        });
        // The power fails here.
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let file = vfs.process(Creds::ROOT).open("/f", OpenFlags::READ, 0).await.unwrap();
            let mut bytes = [0; 4096];
            file.pread(6 * 4096, Sink::bytes(&mut bytes)).await.unwrap();
            assert!(bytes == page(6, 1), "{kind:?}");
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
}

/// The page of a failed write is dirty, and is written when the disk can; room that was reserved behind the end goes with a truncation to the
/// same length.
#[test]
fn what_failed_is_written_later() {
    let (image, bad, mut bed) = on_a_disk_that_can_fail();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/file", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        *bad.refused.borrow_mut() = Some(Payload::Bytes(page(0, 1)[..].into()));
        file.pwrite(0, Source::bytes(&page(0, 1))).await.unwrap();
        assert_eq!(file.sync(SyncKind::All).await, Err(Errno::EIO));
        *bad.refused.borrow_mut() = None;
        file.sync(SyncKind::All).await.unwrap();
        file.allocate(4096, 40_960, true).await.unwrap();
        file.truncate(4096).await.unwrap();
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = vfs.process(Creds::ROOT).open("/file", OpenFlags::READ, 0).await.unwrap();
        let mut bytes = [0; 4096];
        assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(4096));
        assert!(bytes == page(0, 1));
        let attr = vfs.process(Creds::ROOT).stat("/file", Follow::Yes).await.unwrap();
        assert_eq!(attr.blocks_512, 8);
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}
