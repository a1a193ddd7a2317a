//! The vfs over F2FS volumes: the same scripts as over memory, and after each one a volume that is good.

use crate::bed::Bed;
use crate::changes::{Model, compare, random_changes};
use crate::disk::{self, Disk, Timeline, many_at_once, page};
use crate::posix::TOPICS;
use crate::script::Script;
use flashweir_core::{DeviceError, Duration, Instant, RandomStream};
use flashweir_fs::f2fs::{
    Background, CommitMode, F2fs, F2fsOptions, Flushing, InPlace, Options, check, mkfs,
};
use flashweir_fs::port::{BlockPort, Image, PortError, Request, Ticket, Write, block_on, bytes_of};
use flashweir_fs::vfs::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

fn volume(mib: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    image
}

fn mounted(image: &Rc<Image>) -> Bed<F2fs> {
    let fs = block_on(F2fs::mount(Rc::clone(image) as _)).unwrap();
    Bed::mount(MountOptions::default(), |_| fs)
}

/// Everything is as it should be; gives directories and files.
fn good(image: &Rc<Image>) -> (u64, u64) {
    let report = block_on(check(Rc::clone(image) as _)).unwrap();
    assert_eq!(report.problems, []);
    (report.directories, report.files)
}

#[test]
fn posix() {
    for (topic, script) in TOPICS {
        println!("{topic}");
        // The largest file of this format is smaller than that of memory.
        let mut script = script.replace("\\0", "\0");
        for below in 0..3 {
            let (memory, ours) = ((16_u64 << 40) + 1 - below, 4_329_690_644_481 - below);
            script = script.replace(&memory.to_string(), &ours.to_string());
        }
        let (memory, ours) = ((16_u64 << 40) - 2, 4_329_690_644_478_u64);
        script = script.replace(&memory.to_string(), &ours.to_string());
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

/// A new file under the first name of a file with two: recovery found the entry of the last checkpoint, took the old file for replaced,
/// and freed it.
#[test]
fn regression_a_file_whose_first_name_goes_to_another_keeps_its_contents() {
    for second in ["/d/y", "/y"] {
        let image = volume(64);
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            root.mkdir("/d", 0o700).await.unwrap();
            let create =
                async |name: &str| root.open(name, OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
            let old = create("/d/x").await;
            old.pwrite(0, Source::bytes(&[b'A'; 9000])).await.unwrap();
            vfs.sync_all().await.unwrap();
            root.link("/d/x", second).await.unwrap();
            root.unlink("/d/x").await.unwrap();
            let new = create("/d/x").await;
            new.pwrite(0, Source::bytes(&[b'B'; 9000])).await.unwrap();
            new.sync(SyncKind::All).await.unwrap();
            // The mount ends here, as in a power cut.
            std::mem::forget((old, new));
        });
        drop(bed);
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            for (name, content) in [("/d/x", b'B'), (second, b'A')] {
                let file = root.open(name, OpenFlags::READ, 0).await;
                let file = file.unwrap_or_else(|errno| panic!("{name}: {errno:?}"));
                let mut bytes = vec![0; 9000];
                assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(9000));
                assert!(bytes.iter().all(|&byte| byte == content), "{name}");
                file.close().await.unwrap();
            }
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
}

/// Many fsyncs between two checkpoints: recovery writes all of their nodes again before it can clean anything, and found no room, so that
/// the volume never mounted again.
#[test]
fn regression_what_many_fsyncs_left_has_room_to_be_recovered() {
    let image = volume(256);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    const FILES: u32 = 22_000;
    let checkpoints = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let open = async |number: u32, flags: OpenFlags| {
            root.open(&format!("/{number}"), flags, 0o600).await.unwrap()
        };
        for number in 0..FILES {
            let file = open(number, OpenFlags::READ_WRITE.create()).await;
            file.pwrite(0, Source::bytes(b"first")).await.unwrap();
            file.close().await.unwrap();
        }
        vfs.sync_all().await.unwrap();
        let before = vfs.fs().metrics().checkpoints;
        for number in 0..FILES {
            let file = open(number, OpenFlags::READ_WRITE).await;
            file.pwrite(0, Source::bytes(&number.to_le_bytes())).await.unwrap();
            file.sync(SyncKind::All).await.unwrap();
            file.close().await.unwrap();
        }
        vfs.fs().metrics().checkpoints - before
    });
    // Not all of them by a checkpoint each.
    assert!((1..20).contains(&checkpoints), "{checkpoints}");
    drop(bed);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..FILES {
            let file = root.open(&format!("/{number}"), OpenFlags::READ, 0).await.unwrap();
            let mut bytes = [0; 5];
            assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(5));
            assert_eq!(bytes[..4], number.to_le_bytes());
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

/// Two pages across the border of two trees take two data blocks and five nodes.
#[test]
fn regression_a_reservation_counts_all_nodes() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/sparse", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
        let fill = root.open("/fill", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
        file.pwrite(0, Source::bytes(&[1; 8000])).await.unwrap();
        // From the second indirect node to the double indirect one.
        let border = (873 + 2 * 1018 + 2 * 1018 * 1018) * 4096;
        let mut page = 0;
        let free = async || vfs.statfs().await.unwrap().pages_free;
        while free().await > 6 {
            fill.pwrite(page * 4096, Source::bytes(&[2; 4096])).await.unwrap();
            page += 1;
        }
        assert_eq!(free().await, 6);
        assert_eq!(file.pwrite(border - 4096, Source::bytes(&[3; 8192])).await, Ok(4096));
        vfs.sync_all().await.unwrap();
        file.close().await.unwrap();
        fill.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}

#[test]
fn random_changes_survive_mounts() {
    let image = volume(256);
    let mut model = Model::new();
    for round in 0..6 {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        let mut random = RandomStream::new(round, "f2fs changes");
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
        assert_eq!(good(&image), (4, model.len() as u64));
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

/// An image that remembers what was asked of it.
#[derive(Debug)]
struct Recorder {
    image: Rc<Image>,
    requests: RefCell<Vec<Request>>,
}

impl BlockPort for Recorder {
    fn capacity_blocks(&self) -> u64 {
        self.image.capacity_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        if !matches!(request, Request::Read { .. }) {
            self.requests.borrow_mut().push(request.clone());
        }
        self.image.submit(request)
    }
}

/// Whatever part of the writes since the last flush is lost, a checkpoint is there and everything in it is good.
#[test]
fn a_cut_leaves_a_checkpoint() {
    let recorder = Rc::new(Recorder { image: volume(64), requests: RefCell::default() });
    let fs = block_on(F2fs::mount(Rc::clone(&recorder) as _)).unwrap();
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for dir in 0..3 {
            root.mkdir(format!("/d{dir}"), 0o755).await.unwrap();
        }
        let mut random = RandomStream::new(9, "f2fs cuts");
        let mut model = Model::new();
        for _ in 0..12 {
            random_changes(&vfs, &mut random, &mut model, 20).await;
            vfs.sync_all().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    let requests = recorder.requests.take();
    let flushes: Vec<usize> = (0..requests.len()).filter(|&at| requests[at] == Request::Flush).collect();
    assert!(flushes.len() > 8, "there are several checkpoints");
    let mut random = RandomStream::new(10, "f2fs cuts");
    let mut checkpoints = BTreeSet::new();
    for _ in 0..60 {
        let flush = random.below(flushes.len() as u64) as usize;
        let start = flush.checked_sub(1).map_or(0, |before| flushes[before]);
        let image = volume(64);
        for (at, request) in requests[..flushes[flush]].iter().enumerate() {
            let is_durable = matches!(request, Request::Write(write) if write.fua);
            if at < start || is_durable || random.below(2) == 0 {
                block_on(image.submit(request.clone()).completed()).unwrap();
            }
        }
        let report = block_on(check(Rc::clone(&image) as _)).unwrap();
        assert_eq!(report.problems, [], "after {start} requests and some of those up to {}", flushes[flush]);
        checkpoints.insert(report.checkpoint);
        // What fsync wrote after it can be recovered.
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move { vfs.unmount().await.unwrap() });
        good(&image);
        let report = block_on(check(Rc::clone(&image) as _)).unwrap();
        assert!(report.is_clean);
    }
    assert!(checkpoints.len() > 3, "cuts were in different checkpoints");
}

/// A volume that is as full as users can make it and is overwritten at random, many times its size.
#[test]
fn a_full_volume_goes_on() {
    for (mib, per_section, rounds) in [(64, 1, 3), (200, 1, 4), (400, 4, 2)] {
        let image = Rc::new(Image::in_memory(mib << 8));
        let options = Options { segments_per_section: per_section, ..Options::new(mib << 8) };
        block_on(mkfs(&*image, &options)).unwrap();
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        let pages = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let free = vfs.statfs().await.unwrap().pages_free;
            let file = root.open("/full", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            let mut versions = Vec::new();
            // All but what nodes take.
            while file
                .pwrite(versions.len() as u64 * 4096, Source::bytes(&page(versions.len() as u64, 0)))
                .await
                .is_ok()
            {
                versions.push(0);
            }
            let pages = versions.len() as u64;
            assert!(pages > free - free / 500 - 20, "{pages} of {free}");
            assert!(vfs.statfs().await.unwrap().pages_free < 8);
            let mut random = RandomStream::new(mib, "f2fs overwrites");
            for number in 1..rounds * pages {
                let at = random.below(pages);
                versions[at as usize] = number;
                file.pwrite(at * 4096, Source::bytes(&page(at, number))).await.unwrap();
                if number % (pages / 4) == 0 {
                    file.sync(SyncKind::All).await.unwrap();
                }
            }
            file.sync(SyncKind::All).await.unwrap();
            let metrics = vfs.fs().metrics();
            println!("{mib} MiB, {pages} pages: {metrics:?}, {}", metrics.amplification_milli());
            assert!(metrics.cleaned_foreground > 0);
            for (at, version) in versions.iter().enumerate() {
                let mut bytes = [0; 4096];
                file.pread(at as u64 * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                assert!(bytes == page(at as u64, *version), "page {at}");
            }
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
            pages
        });
        good(&image);
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            vfs.process(Creds::ROOT).unlink("/full").await.unwrap();
            assert!(vfs.statfs().await.unwrap().pages_free > pages);
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
}

/// Names come and go, and pages of a large file are overwritten, in a volume so small that it is cleaned all the time.
#[test]
fn regression_a_full_volume_takes_another_name() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let user = vfs.process(Creds::ROOT);
        user.mkdir("/dir", 0o700).await.unwrap();
        let file = user.create("/full").await.unwrap();
        let mut at = 0;
        let refused = loop {
            match file.pwrite(at, Source::pattern(1, 4096)).await {
                Ok(written) => at += written,
                Err(errno) => break errno,
            }
        };
        assert_eq!(refused, Errno::ENOSPC);
        user.rename("/full", "/moved", RenameMode::Replace).await.unwrap();
        user.rename("/moved", "/dir/moved", RenameMode::NoReplace).await.unwrap();
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    assert_eq!(good(&image), (2, 1));
}

#[test]
fn random_changes_while_cleaning() {
    let image = volume(64);
    let mut model = Model::new();
    let mut ballast = vec![0; 1700];
    let mut cleaned = 0;
    for round in 0..4 {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        let mut random = RandomStream::new(round, "f2fs changes while cleaning");
        let metrics;
        (model, ballast, metrics) = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            for dir in 0..3 {
                assert_eq!(root.mkdir(&format!("/d{dir}"), 0o755).await.is_ok(), round == 0);
            }
            let file = root.open("/ballast", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            for part in 0..10 {
                for number in 0..500 {
                    let at = random.below(ballast.len() as u64);
                    ballast[at as usize] = round * 10_000 + part * 500 + number + 1;
                    file.pwrite(at * 4096, Source::bytes(&page(at, ballast[at as usize]))).await.unwrap();
                }
                file.sync(SyncKind::All).await.unwrap();
                random_changes(&vfs, &mut random, &mut model, 60).await;
                compare(&vfs, &model).await;
            }
            for (at, version) in ballast.iter().enumerate().filter(|(_, version)| **version > 0) {
                let mut bytes = [0; 4096];
                file.pread(at as u64 * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                assert!(bytes == page(at as u64, *version), "page {at}");
            }
            file.close().await.unwrap();
            let metrics = vfs.fs().metrics();
            vfs.unmount().await.unwrap();
            (model, ballast, metrics)
        });
        cleaned += metrics.cleaned_foreground;
        assert_eq!(good(&image), (4, model.len() as u64 + 1));
    }
    assert!(cleaned > 10, "{cleaned} sections");
}

/// When scattered pages of a file were overwritten and writing has stopped, its sections are cleaned one after the other, and no timer
/// remains when there is nothing left to do.
#[test]
fn cleaning_in_the_background() {
    let image = volume(256);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run({
        let vfs = vfs.clone();
        async move {
            let root = vfs.process(Creds::ROOT);
            for name in ["/first", "/second"] {
                let file = root.create(name).await.unwrap();
                for at in 0..2000 {
                    file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
                }
                file.sync(SyncKind::All).await.unwrap();
                for at in (0..2000).step_by(2) {
                    file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
                }
                file.sync(SyncKind::All).await.unwrap();
                file.close().await.unwrap();
            }
        }
    });
    let seconds = Duration::from_secs;
    assert_eq!(vfs.fs().metrics().cleaned_background, 0);
    bed.pass(seconds(25));
    assert_eq!(vfs.fs().metrics().cleaned_background, 0, "those who write come first");
    bed.pass(seconds(10));
    assert_eq!(vfs.fs().metrics().cleaned_background, 1, "then it begins");
    bed.pass(seconds(3600));
    let metrics = vfs.fs().metrics();
    assert!((7..30).contains(&metrics.cleaned_background), "{metrics:?}");
    assert_eq!(metrics.cleaned_foreground, 0);
    bed.pass(Duration::from_secs(3600));
    assert_eq!(vfs.fs().metrics(), metrics, "it has come to an end");
    bed.run({
        let vfs = vfs.clone();
        async move {
            let file = vfs.process(Creds::ROOT).open("/first", OpenFlags::READ_WRITE, 0).await.unwrap();
            for at in (0..2000).step_by(2) {
                file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
            }
            file.sync(SyncKind::All).await.unwrap();
            file.close().await.unwrap();
        }
    });
    let cleaned = metrics.cleaned_background;
    bed.pass(seconds(290));
    assert_eq!(
        vfs.fs().metrics().cleaned_background,
        cleaned,
        "where nothing was worth it, it sleeps longer"
    );
    bed.pass(seconds(700));
    assert!(vfs.fs().metrics().cleaned_background > cleaned, "and comes back");
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for name in ["/first", "/second"] {
            let file = root.open(name, OpenFlags::READ, 0).await.unwrap();
            for at in 0..2000 {
                let mut bytes = [0; 4096];
                file.pread(at * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                assert!(bytes == page(at, 1 - at % 2));
            }
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
    let volume = block_on(flashweir_fs::f2fs::Volume::mount(image)).unwrap();
    let elapsed_s = volume.checkpoint().elapsed_s;
    assert!((7_200 + 290..8_190).contains(&elapsed_s), "{elapsed_s} s until the last section was cleaned");
}

/// The mount ends at any point of a turn of cleaning: that turn ends first, nothing reaches the disk afterwards, and the volume is good.
#[test]
fn an_unmount_waits_for_cleaning_in_the_background() {
    let mut ends = BTreeSet::new();
    for step in 0..60 {
        let (image, ms) = (volume(64), Duration::from_millis);
        let background = Background {
            sleep_min: ms(2),
            sleep_max: ms(4),
            sleep_without_victim: ms(20),
            idle: Duration::ZERO,
        };
        let options = F2fsOptions { background: Some(background), ..F2fsOptions::default() };
        let disk = Disk::new(Rc::clone(&image));
        let fs = block_on(F2fs::mount_with(Rc::clone(&disk) as _, options)).unwrap();
        let mut bed = disk.bed(fs, true);
        let vfs = bed.vfs.clone();
        bed.run({
            let vfs = vfs.clone();
            async move {
                let file = vfs.process(Creds::ROOT).create("/file").await.unwrap();
                for at in (0..1200).chain((0..1200).step_by(2)) {
                    file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
                }
                file.sync(SyncKind::All).await.unwrap();
                file.close().await.unwrap();
            }
        });
        bed.pass(Duration::from_micros(100 * step));
        let mount = vfs.clone();
        bed.run(async move { mount.unmount().await.unwrap() });
        let (requests, metrics) = (disk.requests.borrow().len(), vfs.fs().metrics());
        bed.pass(Duration::from_secs(1));
        assert_eq!(disk.requests.borrow().len(), requests, "step {step}: after the unmount");
        assert_eq!(vfs.fs().metrics(), metrics, "step {step}");
        ends.insert(metrics.cleaned_background);
        good(&image);
    }
    assert!(ends.len() > 1, "some ended before, and some after a section was cleaned: {ends:?}");
}

/// Blocks of a removed file are discarded at the next checkpoint; without `checkpoint_interval` none is made before a sync, and the device
/// keeps them.
#[test]
fn what_was_removed_is_discarded_after_a_while() {
    let discarded = |checkpoint_interval: Option<Duration>| {
        let image = volume(64);
        let options = F2fsOptions { checkpoint_interval, ..F2fsOptions::default() };
        let fs = block_on(F2fs::mount_with(Rc::clone(&image) as _, options)).unwrap();
        let mut bed = Bed::mount(MountOptions::default(), |_| fs);
        let vfs = bed.vfs.clone();
        bed.run({
            let vfs = vfs.clone();
            async move {
                let root = vfs.process(Creds::ROOT);
                let file = root.create("/file").await.unwrap();
                for at in 0..2000 {
                    file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
                }
                file.sync(SyncKind::All).await.unwrap();
                file.close().await.unwrap();
                vfs.sync_all().await.unwrap();
                root.unlink("/file").await.unwrap();
            }
        });
        let before = vfs.fs().metrics();
        bed.pass(Duration::from_secs(200));
        let after = vfs.fs().metrics();
        bed.pass(Duration::from_secs(2000));
        assert_eq!(vfs.fs().metrics().checkpoints, after.checkpoints, "there is nothing for another one");
        bed.run(async move { vfs.unmount().await.unwrap() });
        good(&image);
        (after.discarded_blocks - before.discarded_blocks, after.checkpoints - before.checkpoints)
    };
    assert_eq!(discarded(None), (0, 0));
    let (blocks, checkpoints) = discarded(Some(Duration::from_secs(60)));
    assert!(blocks >= 2000 && checkpoints == 1, "{blocks} blocks, {checkpoints} checkpoints");
}

/// What is written where it is, and by which rule; a page that has no block gets one.
#[test]
fn in_place_or_not() {
    let written = |in_place: InPlace, name: &'static str, pages: u64, kind: Option<SyncKind>| {
        let image = volume(64);
        let options = F2fsOptions { in_place, ..F2fsOptions::default() };
        let fs = block_on(F2fs::mount_with(Rc::clone(&image) as _, options)).unwrap();
        let mut bed = Bed::mount(MountOptions::default(), |_| fs);
        let vfs = bed.vfs.clone();
        let (before, after) = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let file = root.open(name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            for at in 0..20 {
                file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
            }
            file.sync(SyncKind::All).await.unwrap();
            let before = vfs.fs().metrics();
            assert_eq!(before.in_place_pages, 0);
            for at in 0..pages {
                file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
            }
            match kind {
                Some(kind) => file.sync(kind).await.unwrap(),
                None => vfs.sync_all().await.unwrap(),
            }
            let after = vfs.fs().metrics();
            for at in 0..20 {
                let mut bytes = [0; 4096];
                file.pread(at * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                assert!(bytes == page(at, u64::from(at < pages)));
            }
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
            (before, after)
        });
        good(&image);
        let volume = block_on(flashweir_fs::f2fs::Volume::mount(image)).unwrap();
        let content = block_on(async {
            let inode = volume.inode(flashweir_fs::f2fs::Nid(4)).await.unwrap();
            volume.read(&inode, 0, 20 * 4096).await.unwrap()
        });
        for (at, bytes) in content.chunks(4096).enumerate() {
            assert!(bytes == page(at as u64, u64::from((at as u64) < pages)), "page {at} on the disk");
        }
        assert_eq!(after.written_pages - before.written_pages, pages);
        after.in_place_pages
    };
    let (all, data) = (Some(SyncKind::All), Some(SyncKind::Data));
    assert_eq!(written(InPlace::default(), "/file", 8, all), 8);
    assert_eq!(written(InPlace::default(), "/file", 9, all), 0, "too many for an fsync");
    assert_eq!(written(InPlace::default(), "/file", 20, data), 20, "fdatasync writes in place");
    assert_eq!(written(InPlace::default(), "/file.mp4", 20, all), 20, "cold");
    assert_eq!(written(InPlace::never(), "/file.mp4", 8, all), 0);
    let util = InPlace { util: true, ..InPlace::never() };
    assert_eq!(written(util, "/file", 20, all), 0, "the volume is nearly empty");
    assert_eq!(written(InPlace { force: true, ..InPlace::never() }, "/file", 20, None), 20);
    assert_eq!(
        written(InPlace { ssr: true, ..InPlace::never() }, "/file", 20, None),
        0,
        "there are free segments"
    );
}

/// A full volume is overwritten and cleaned; whatever part of the requests since the last flush is lost, discards among
/// them, it is good, and no page is older than at the last sync before.
#[test]
fn cuts_while_cleaning() {
    let recorder = Rc::new(Recorder { image: volume(120), requests: RefCell::default() });
    let fs = block_on(F2fs::mount(Rc::clone(&recorder) as _)).unwrap();
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    let log = Rc::clone(&recorder);
    let (synced, metrics) = bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/full", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        let pages = vfs.statfs().await.unwrap().pages_free - 60;
        let mut versions = vec![0; pages as usize];
        for at in 0..pages {
            file.pwrite(at * 4096, Source::bytes(&page(at, 0))).await.unwrap();
        }
        file.sync(SyncKind::All).await.unwrap();
        let mut synced = vec![(log.requests.borrow().len(), versions.clone())];
        let mut random = RandomStream::new(5, "f2fs cuts while cleaning");
        for number in 1..=30_000 {
            let at = random.below(pages);
            versions[at as usize] = number;
            file.pwrite(at * 4096, Source::bytes(&page(at, number))).await.unwrap();
            if random.below(2000) == 0 {
                file.sync(SyncKind::All).await.unwrap();
                synced.push((log.requests.borrow().len(), versions.clone()));
            }
        }
        file.close().await.unwrap();
        (synced, vfs.fs().metrics())
    });
    assert!(metrics.cleaned_foreground > 4 && metrics.discarded_blocks > 0, "{metrics:?}");
    let requests = recorder.requests.take();
    let first = synced[0].0;
    let flushes: Vec<usize> = (first..requests.len()).filter(|&at| requests[at] == Request::Flush).collect();
    let mut random = RandomStream::new(6, "f2fs cuts while cleaning");
    for _ in 0..25 {
        let flush = 1 + random.below(flushes.len() as u64 - 1) as usize;
        let (start, end) = (flushes[flush - 1], flushes[flush]);
        let image = volume(120);
        for (at, request) in requests[..end].iter().enumerate() {
            let is_durable = at < start || matches!(request, Request::Write(write) if write.fua);
            if is_durable || random.below(2) == 0 {
                block_on(image.submit(request.clone()).completed()).unwrap();
            }
        }
        let report = block_on(check(Rc::clone(&image) as _)).unwrap();
        assert_eq!(report.problems, [], "after {start} requests and some of those up to {end}");
        let (_, least) = synced.iter().rfind(|(at, _)| *at <= start + 1).unwrap();
        let mut bed = mounted(&image);
        let (vfs, least) = (bed.vfs.clone(), least.clone());
        bed.run(async move {
            let file = vfs.process(Creds::ROOT).open("/full", OpenFlags::READ, 0).await.unwrap();
            for (at, least) in (0..).zip(least) {
                let mut bytes = [0; 4096];
                file.pread(at * 4096, Sink::bytes(&mut bytes)).await.unwrap();
                let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                assert!(
                    bytes == page(at, version) && version >= least,
                    "page {at}: {version}, synced {least}"
                );
            }
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
        });
        good(&image);
    }
}

/// Small contents are in inodes if the mount option says so, and move into blocks when there is no room any more.
#[test]
fn small_contents_stand_in_inodes() {
    use flashweir_fs::f2fs::layout::node::inline;
    const SIZES: [usize; 7] = [0, 1, 3463, 3464, 3465, 3488, 3489];
    for (is_inline, features, room) in
        [(true, &[][..], 3488), (true, &["inode_crtime", "inode_checksum"], 3464), (false, &[], 0)]
    {
        let image = Rc::new(Image::in_memory(64 << 8));
        let mut options = Options::new(64 << 8);
        features.iter().for_each(|feature| options.add_feature(feature).unwrap());
        block_on(mkfs(&*image, &options)).unwrap();
        let options =
            F2fsOptions { inline_data: is_inline, inline_dentry: is_inline, ..F2fsOptions::default() };
        let bytes = |size: usize| -> Vec<u8> { (0..size).map(|at| at as u8 | 1).collect() };
        for round in 0..2 {
            let fs = block_on(F2fs::mount_with(Rc::clone(&image) as _, options.clone())).unwrap();
            let mut bed = Bed::mount(MountOptions::default(), |_| fs);
            let vfs = bed.vfs.clone();
            bed.run(async move {
                let root = vfs.process(Creds::ROOT);
                if round == 0 {
                    for size in SIZES {
                        let file = root.create(format!("/written-{size}")).await.unwrap();
                        file.write(Source::bytes(&bytes(size))).await.unwrap();
                        file.close().await.unwrap();
                        // A file that was larger keeps its blocks.
                        let file = root.create(format!("/grown-{size}")).await.unwrap();
                        file.write(Source::bytes(&bytes(3000))).await.unwrap();
                        vfs.sync_all().await.unwrap();
                        file.truncate(size as u64).await.unwrap();
                        file.pwrite(0, Source::bytes(&bytes(size))).await.unwrap();
                        file.close().await.unwrap();
                    }
                    root.mkdir("/few", 0o700).await.unwrap();
                    root.mkdir("/many", 0o700).await.unwrap();
                    for number in 0..190 {
                        root.mkdir(format!("/many/{number}"), 0o700).await.unwrap();
                        if number < 178 {
                            root.mkdir(format!("/few/{number}"), 0o700).await.unwrap();
                        }
                    }
                }
                let model = SIZES.into_iter().flat_map(|size| {
                    [(format!("/written-{size}"), bytes(size)), (format!("/grown-{size}"), bytes(size))]
                });
                compare(&vfs, &model.collect()).await;
                vfs.unmount().await.unwrap();
            });
            let volume = block_on(flashweir_fs::f2fs::Volume::mount(Rc::clone(&image) as _)).unwrap();
            let found = |name: &str| block_on(volume.find(name.as_bytes())).unwrap().unwrap();
            for size in SIZES {
                for name in [format!("written-{size}"), format!("grown-{size}")] {
                    let inode = found(&name);
                    assert_eq!(inode.has_inline(inline::DATA), is_inline && size <= room, "{name}");
                    assert_eq!(
                        inode.blocks,
                        1 + u64::from(size > 0 && !inode.has_inline(inline::DATA)),
                        "{name}"
                    );
                }
            }
            let names = ["few", "many", "few/7"].map(|name| found(name).has_inline(inline::DENTRY));
            assert_eq!(names, [is_inline, false, is_inline]);
            assert_eq!(good(&image), (1 + 2 + 178 + 190, 14));
        }
    }
}

/// A page that is written in place changes nothing but itself, and what makes it durable may be a checkpoint.
#[test]
fn regression_a_page_in_place_is_flushed_where_nothing_else_changed() {
    let log = Rc::new(Recorder { image: volume(64), requests: RefCell::default() });
    let in_place = InPlace { force: true, ..InPlace::default() };
    let options = F2fsOptions { in_place, ..F2fsOptions::default() };
    let fs = block_on(F2fs::mount_with(Rc::clone(&log) as _, options)).unwrap();
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let (vfs, requests) = (bed.vfs.clone(), Rc::clone(&log));
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.create("/one").await.unwrap();
        // A file of two names is synced by a checkpoint.
        root.link("/one", "/two").await.unwrap();
        file.write(Source::bytes(&page(0, 1))).await.unwrap();
        vfs.sync_all().await.unwrap();
        file.pwrite(0, Source::bytes(&page(0, 2))).await.unwrap();
        // The checkpoint has the new times, and not the page.
        vfs.fs().checkpoint().await.unwrap();
        let before = requests.requests.borrow().len();
        file.sync(SyncKind::All).await.unwrap();
        let after = requests.requests.borrow()[before..].to_vec();
        let written = after.iter().position(|request| matches!(request, Request::Write(_)));
        let flushed = after.iter().rposition(|request| *request == Request::Flush);
        assert!(written.is_some() && written < flushed, "{after:?}");
        assert_eq!(vfs.fs().metrics().in_place_pages, 1);
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&log.image);
}

/// The requests of a call: D data, N a node, n the same with FUA, P what is before the main area.
fn requests_of(
    commit_mode: CommitMode,
    fsync: Flushing,
    call: impl AsyncFnOnce(&File<F2fs>) + 'static,
) -> String {
    let log = Timeline::new(volume(64));
    let options = F2fsOptions { commit_mode, fsync, ..F2fsOptions::default() };
    let fs = block_on(F2fs::mount_with(Rc::clone(&log) as _, options)).unwrap();
    let kind = |write: &Write| {
        let bytes = bytes_of(&write.payloads[0]);
        // A page of the file says in all of its bytes but the first which it is; a node has a footer.
        match bytes[100..].iter().all(|&byte| byte == bytes[100]) {
            true => "D",
            false if write.block.0 < 2560 => "P",
            false if write.fua => "n",
            false => "N",
        }
    };
    disk::requests_of(log, fs, kind, call)
}

/// The waits of barriers §6. Legacy mode waits for the transfer of data, for their flush and for nodes with FUA, or for two range flushes.
/// In dual mode data and nodes are under way at once, and one flush is behind them.
#[test]
fn waits_and_flushes_of_one_call() {
    use CommitMode::{DualMode, Legacy};
    use Flushing::{Flush, RangeFlush};
    let sync = async |file: &File<F2fs>| file.sync(SyncKind::All).await.unwrap();
    assert_eq!(requests_of(Legacy, Flush, sync), "'D'F'n");
    assert_eq!(requests_of(Legacy, RangeFlush, sync), "'D'R'N'R");
    assert_eq!(requests_of(DualMode, Flush, sync), "'D|N|'F");
    assert_eq!(requests_of(DualMode, RangeFlush, sync), "'D|N|'R");
    let data = async |file: &File<F2fs>| file.sync(SyncKind::Data).await.unwrap();
    assert_eq!(requests_of(Legacy, Flush, data), "'D'F'n");
    assert_eq!(requests_of(DualMode, Flush, data), "'D|N|'F");
    let order = async |file: &File<F2fs>| file.barrier(Barrier::All).await.unwrap();
    assert_eq!(requests_of(DualMode, Flush, order), "'D|N|");
    let order_data = async |file: &File<F2fs>| {
        file.barrier(Barrier::Data).await.unwrap();
        // Nothing is dirty, and nothing was dispatched since.
        file.barrier(Barrier::Data).await.unwrap();
    };
    assert_eq!(requests_of(DualMode, Flush, order_data), "'D|");
    let overwrite = async |file: &File<F2fs>| {
        file.sync(SyncKind::All).await.unwrap();
        file.pwrite(0, Source::bytes(&page(0, 2))).await.unwrap();
        // In its place: no node is needed to find it.
        file.barrier(Barrier::Data).await.unwrap();
        file.sync(SyncKind::Data).await.unwrap();
    };
    assert_eq!(requests_of(DualMode, Flush, overwrite), "'D|N|'F'D|'F");
    let twice = async |file: &File<F2fs>| {
        file.barrier(Barrier::All).await.unwrap();
        file.pwrite(8192, Source::bytes(&page(2, 2))).await.unwrap();
        file.barrier(Barrier::All).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        // Everything is durable.
        file.sync(SyncKind::All).await.unwrap();
    };
    // One flush is for both, and there is no wait for a transfer before it.
    assert_eq!(requests_of(DualMode, Flush, twice), "'D|N|D|N|'F");
}

/// A page that was overwritten went elsewhere: fdatabarrier orders the node with which it is found.
#[test]
fn fdatabarrier_orders_pages_that_moved() {
    let in_place = InPlace::never();
    let log = Timeline::new(volume(64));
    let options = F2fsOptions { commit_mode: CommitMode::DualMode, in_place, ..F2fsOptions::default() };
    let fs = block_on(F2fs::mount_with(Rc::clone(&log) as _, options)).unwrap();
    let kind = |write: &Write| {
        let bytes = bytes_of(&write.payloads[0]);
        if bytes[100..].iter().all(|&byte| byte == bytes[100]) { "D" } else { "N" }
    };
    let call = async |file: &File<F2fs>| {
        file.barrier(Barrier::Data).await.unwrap();
        file.pwrite(0, Source::bytes(&page(0, 2))).await.unwrap();
        file.barrier(Barrier::Data).await.unwrap();
        file.barrier(Barrier::Data).await.unwrap();
    };
    // The first page is new, and needs none.
    assert_eq!(disk::requests_of(log, fs, kind, call), "'D|D|N|");
}

#[test]
fn many_at_once_on_a_slow_disk() {
    for seed in 0..4 {
        let disk = Disk::new(volume(64));
        let commit_mode = if seed < 1 { CommitMode::Legacy } else { CommitMode::DualMode };
        let fsync = if seed == 3 { Flushing::RangeFlush } else { Flushing::Flush };
        let options = F2fsOptions { commit_mode, fsync, ..F2fsOptions::default() };
        let fs = block_on(F2fs::mount_with(Rc::clone(&disk) as _, options)).unwrap();
        many_at_once(disk.bed(fs, true), seed);
        good(&disk.image);
    }
}

/// A disk that keeps no order.
#[derive(Debug)]
struct Unordered(Rc<Image>);

impl BlockPort for Unordered {
    fn capacity_blocks(&self) -> u64 {
        self.0.capacity_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        match request {
            Request::Barrier(_) => {
                Ticket::done(Err(PortError::Device(DeviceError::NotSupported("barriers"))))
            }
            request => self.0.submit(request),
        }
    }
}

/// An fsync that finds nothing to write may be about what an earlier one has on its way: its answer says that this is durable.
#[test]
fn an_fsync_waits_for_one_of_the_same_file_that_is_on_its_way() {
    let mut together = 0;
    for delay in (0..600).step_by(6) {
        let disk = Disk::new(volume(96));
        let fs = block_on(F2fs::mount(Rc::clone(&disk) as _)).unwrap();
        let mut bed = disk.bed(fs, true);
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        let [first, second] = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            root.create("/file").await.unwrap().close().await.unwrap();
            vfs.sync_all().await.unwrap();
            root.chmod("/file", 0o600).await.unwrap();
            let ino = root.stat("/file", Follow::Yes).await.unwrap().ino;
            let ends: Rc<RefCell<[Option<Instant>; 2]>> = Rc::default();
            for (which, wait) in [0, delay].into_iter().enumerate() {
                let (vfs, handle, ends) = (vfs.clone(), handle.clone(), Rc::clone(&ends));
                let own = handle.clone();
                handle.spawn(async move {
                    own.sleep_until(own.now() + Duration::from_micros(wait)).await;
                    // Below the vfs, which has the two wait in turn.
                    vfs.fs().fsync(ino, SyncKind::All).await.unwrap();
                    ends.borrow_mut()[which] = Some(own.now());
                });
            }
            handle.sleep_until(handle.now() + Duration::from_secs(1)).await;
            ends.take().map(|end| end.expect("an fsync ends within a second"))
        });
        assert!(
            second >= first,
            "{delay} us later: the second is answered at {second:?}, the first at {first:?}"
        );
        together += u32::from(second == first);
    }
    assert!(together > 10, "they met {together} times");
}

#[test]
fn dual_mode_needs_a_disk_that_keeps_order() {
    let disk = Rc::new(Unordered(volume(64)));
    let dual = F2fsOptions { commit_mode: CommitMode::DualMode, ..F2fsOptions::default() };
    let refused = |disk: Rc<dyn BlockPort>, options: F2fsOptions| {
        block_on(F2fs::mount_with(disk, options)).map(drop).unwrap_err().to_string()
    };
    let said = refused(Rc::clone(&disk) as _, dual.clone());
    assert!(said.contains("dual mode on a disk without barriers"), "{said}");
    let ranges = F2fsOptions { checkpoint: Flushing::RangeFlush, ..dual };
    let said = refused(Rc::clone(&disk.0) as _, ranges);
    assert!(said.contains("dual mode with range flushes of checkpoints"), "{said}");
    block_on(F2fs::mount(disk)).unwrap();
}

/// Blocks of a directory go with their last names, and come again. A name is the only one in its block, and gets another one there.
#[test]
fn directories_give_their_blocks_back() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        root.mkdir("/d", 0o755).await.unwrap();
        root.create("/f").await.unwrap().close().await.unwrap();
        let name = |number: u32| format!("/d/{number:08}");
        let sectors = || async { root.stat("/d", Follow::Yes).await.unwrap().blocks_512 };
        for round in 0..2 {
            for number in 0..5_000 {
                root.link("/f", name(number)).await.unwrap();
                // It has the first free slots of its bucket, alone in a new block at times.
                root.rename(name(number), name(number + 10_000), RenameMode::NoReplace).await.unwrap();
                root.rename(name(number + 10_000), name(number), RenameMode::NoReplace).await.unwrap();
            }
            assert!(sectors().await > 8 * 20);
            vfs.sync_all().await.unwrap();
            assert_eq!(root.list("/d").await.unwrap().len(), 5_000);
            for number in 0..5_000 {
                root.unlink(name(number)).await.unwrap();
            }
            assert_eq!(sectors().await, 8, "round {round}: the block of `.` and `..`");
            assert!(root.list("/d").await.unwrap().is_empty());
        }
        root.rmdir("/d").await.unwrap();
        vfs.unmount().await.unwrap();
    });
    good(&image);
}
