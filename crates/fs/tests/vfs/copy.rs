//! copy_file_range: what it answers, what is there afterwards, and that whole pages move no data where the disk has SHARE.

use crate::bed::{Bed, cache_of};
use crate::disk::Disk;
use flashweir_core::RandomStream;
use flashweir_fs::ext4::{self, CommitMode, Ext4, Ext4Options, Journaling};
use flashweir_fs::f2fs::{self, F2fs};
use flashweir_fs::memfs::{MemFs, MemFsCounts};
use flashweir_fs::port::{Image, Request, block_on};
use flashweir_fs::vfs::*;
use std::rc::Rc;

const PAGE: u64 = 4096;

fn ext4_on(disk: &Rc<Disk>, journaling: Journaling, commit_mode: CommitMode) -> Ext4 {
    let options = Ext4Options { journaling, commit_mode, ..Ext4Options::default() };
    block_on(Ext4::mount_with(Rc::clone(disk) as _, options)).unwrap()
}

fn ext4_disk() -> Rc<Disk> {
    let image = Rc::new(Image::in_memory(32 << 8));
    block_on(ext4::mkfs(&*image, &ext4::Options::new(32 << 8))).unwrap();
    Disk::new(image)
}

fn f2fs_disk() -> Rc<Disk> {
    let image = Rc::new(Image::in_memory(64 << 8));
    block_on(f2fs::mkfs(&*image, &f2fs::Options::new(64 << 8))).unwrap();
    Disk::new(image)
}

fn f2fs_on(disk: &Rc<Disk>) -> F2fs {
    block_on(F2fs::mount(Rc::clone(disk) as _)).unwrap()
}

async fn open<F: Fs>(vfs: &Vfs<F>, name: &str) -> File<F> {
    vfs.process(Creds::ROOT).open(name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap()
}

async fn contents<F: Fs>(file: &File<F>) -> Vec<u8> {
    let mut bytes = vec![0xee; file.size() as usize];
    assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(file.size()));
    bytes
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let mut bed = Bed::mount(MountOptions::default(), |_| MemFs::new(Default::default()));
    let vfs: Vfs<MemFs> = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = open(&vfs, "/f").await;
        file.pwrite(0, Source::bytes(&[7; 10_000])).await.unwrap();
        let read = root.open("/f", OpenFlags::READ, 0).await.unwrap();
        let write = root.open("/f", OpenFlags::WRITE, 0).await.unwrap();
        let append = root.open("/f", OpenFlags::WRITE.append(), 0).await.unwrap();
        let dir = root.open("/", OpenFlags::READ.directory(), 0).await.unwrap();
        for (from, to, expected) in [
            (&write, &file, Errno::EBADF),
            (&file, &read, Errno::EBADF),
            (&file, &append, Errno::EBADF),
            (&dir, &file, Errno::EISDIR),
            (&file, &dir, Errno::EISDIR),
        ] {
            assert_eq!(vfs.copy_range((from, 0), (to, 20_000), 10).await, Err(expected), "{from:?} {to:?}");
        }
        // Ranges that overlap, and ranges that only touch.
        for (at, to_at, len) in [(0, 5, 10), (5, 0, 10), (0, 0, 1)] {
            assert_eq!(vfs.copy_range((&file, at), (&file, to_at), len).await, Err(Errno::EINVAL));
        }
        assert_eq!(vfs.copy_range((&file, 0), (&file, 4), 4).await, Ok(4));
        // What is copied counts, not what was asked for.
        assert_eq!(vfs.copy_range((&file, 9_990), (&file, 9_000), 1 << 20).await, Ok(10));
        let is_synced = |before: MemFsCounts| vfs.fs().counts().syncs > before.syncs;
        let synchronous = root.open("/f", OpenFlags::WRITE.sync(SyncKind::Data), 0).await.unwrap();
        for (to, expected) in [(&file, false), (&synchronous, true)] {
            let before = vfs.fs().counts();
            assert_eq!(vfs.copy_range((&file, 0), (to, 100), 50).await, Ok(50));
            assert_eq!(is_synced(before), expected);
        }
        assert_eq!(vfs.copy_range((&file, 0), (&file, 0), 0).await, Ok(0));
        assert_eq!(vfs.copy_range((&file, u64::MAX), (&file, 0), 5).await, Err(Errno::EOVERFLOW));
        // Behind the end there is nothing, and the target does not grow.
        assert_eq!(vfs.copy_range((&file, 10_000), (&file, 90_000), 5).await, Ok(0));
        assert_eq!(file.size(), 10_000);
        assert_eq!(vfs.copy_range((&file, 9_990), (&file, 20_000), 500).await, Ok(10));
        assert_eq!(file.size(), 20_010);
        assert_eq!(
            vfs.copy_range((&file, 0), (&file, vfs.limits().file_bytes_max), 5).await,
            Err(Errno::EFBIG)
        );
        for file in [file, read, write, append, dir] {
            file.close().await.unwrap();
        }
    });
}

/// Random copies within and between two files, beside writes, lengths, holes and syncs, are as on byte strings.
fn copies_are_as_on_bytes<F: Fs>(fs: F, seed: u64) {
    let mut bed = Bed::mount(MountOptions { cache: cache_of(100), ..MountOptions::default() }, |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let files = [open(&vfs, "/a").await, open(&vfs, "/b").await];
        let mut models = [Vec::new(), Vec::new()];
        let mut random = RandomStream::new(seed, "copies");
        for step in 0..400 {
            let (one, other) = (random.below(2) as usize, random.below(2) as usize);
            let place = |random: &mut RandomStream| match random.below(3) {
                0 => random.below(200_000),
                _ => PAGE * random.below(48),
            };
            let (at, to_at) = (place(&mut random), place(&mut random));
            let len = place(&mut random) / 2 + 1;
            match random.below(10) {
                0..=5 => {
                    let got = vfs.copy_range((&files[one], at), (&files[other], to_at), len).await;
                    let end = (models[one].len() as u64).min(at + len);
                    let expected = end.saturating_sub(at);
                    if expected > 0 && one == other && at < to_at + expected && to_at < at + expected {
                        assert_eq!(got, Err(Errno::EINVAL));
                        continue;
                    }
                    assert_eq!(got, Ok(expected), "seed {seed}, step {step}: {len} from {at} to {to_at}");
                    if expected > 0 {
                        let part = models[one][at as usize..end as usize].to_vec();
                        put(&mut models[other], to_at, &part);
                    }
                }
                6 | 7 => {
                    let bytes: Vec<u8> = (0..len).map(|byte| (byte + step) as u8 | 1).collect();
                    assert_eq!(files[one].pwrite(at, Source::bytes(&bytes)).await, Ok(len));
                    put(&mut models[one], at, &bytes);
                }
                8 => {
                    files[one].truncate(at).await.unwrap();
                    models[one].resize(at as usize, 0);
                }
                _ => {
                    files[one].punch_hole(at, len).await.unwrap();
                    let end = models[one].len().min((at + len) as usize);
                    models[one]
                        .get_mut(at as usize..end)
                        .into_iter()
                        .for_each(|part: &mut [u8]| part.fill(0));
                }
            }
            if random.chance(0.1) {
                files[other].sync(SyncKind::All).await.unwrap();
            }
            for (file, model) in files.iter().zip(&models) {
                assert!(contents(file).await == *model, "seed {seed}, step {step}: {file:?}");
            }
        }
        for file in files {
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    model.resize(model.len().max(end), 0);
    model[at..end].copy_from_slice(bytes);
}

fn shares_of(disk: &Disk) -> usize {
    disk.requests.borrow().iter().filter(|request| matches!(request, Request::Share(_))).count()
}

#[test]
fn copies_of_every_format_are_as_on_bytes() {
    for seed in 0..4 {
        copies_are_as_on_bytes(MemFs::new(Default::default()), seed);
        for (journaling, commit_mode, has_shares) in [
            (Journaling::Ordered, CommitMode::Legacy, true),
            (Journaling::Ordered, CommitMode::DualMode, true),
            (Journaling::Journal, CommitMode::Legacy, false),
        ] {
            let disk = ext4_disk();
            copies_are_as_on_bytes(ext4_on(&disk, journaling, commit_mode), seed);
            assert_eq!(shares_of(&disk) > 20, has_shares, "{journaling:?} {commit_mode:?}");
            let report = block_on(ext4::check(Rc::clone(&disk) as _)).unwrap();
            assert_eq!(report.problems, []);
        }
        let disk = f2fs_disk();
        copies_are_as_on_bytes(f2fs_on(&disk), seed);
        assert!(shares_of(&disk) > 20);
        assert_eq!(block_on(f2fs::check(Rc::clone(&disk) as _)).unwrap().problems, []);
    }
}

/// Of a large copy no data are written, and both files can go their ways afterwards.
fn whole_pages_are_shared_on<F: Fs>(disk: &Rc<Disk>, fs: F) {
    let mut bed = disk.bed(fs, true);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(disk));
    bed.run(async move {
        let (from, to) = (open(&vfs, "/from").await, open(&vfs, "/to").await);
        const BYTES: u64 = 3 << 20;
        from.pwrite(0, Source::pattern(1, BYTES + 100)).await.unwrap();
        // The source was not synced, and the target has dirty pages.
        to.pwrite(8192, Source::pattern(9, 9000)).await.unwrap();
        from.sync(SyncKind::Data).await.unwrap();
        let before = log.requests.borrow().len();
        assert_eq!(vfs.copy_range((&from, 0), (&to, 0), u64::MAX / 4).await, Ok(BYTES + 100));
        let written: usize = log.requests.borrow()[before..]
            .iter()
            .map(|request| match request {
                Request::Write(write) => write.payloads.len(),
                _ => 0,
            })
            .sum();
        // The target's dirty pages; metadata come later.
        assert!(written <= 3, "{written} blocks were written");
        assert!(contents(&to).await == contents(&from).await);
        to.sync(SyncKind::All).await.unwrap();
        from.pwrite(5000, Source::pattern(3, 5000)).await.unwrap();
        from.sync(SyncKind::All).await.unwrap();
        to.pwrite(50_000, Source::pattern(4, 5000)).await.unwrap();
        let (mut left, right) = (contents(&from).await, contents(&to).await);
        assert!(left[5000..10_000] != right[5000..10_000] && left[..5000] == right[..5000]);
        vfs.process(Creds::ROOT).unlink("/to").await.unwrap();
        to.close().await.unwrap();
        vfs.sync_all().await.unwrap();
        left.truncate(contents(&from).await.len());
        assert!(contents(&from).await == left);
        from.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}

#[test]
fn whole_pages_are_shared() {
    let disk = ext4_disk();
    whole_pages_are_shared_on(&disk, ext4_on(&disk, Journaling::Ordered, CommitMode::Legacy));
    assert_eq!(block_on(ext4::check(Rc::clone(&disk.image) as _)).unwrap().problems, []);
    let disk = f2fs_disk();
    whole_pages_are_shared_on(&disk, f2fs_on(&disk));
    assert_eq!(block_on(f2fs::check(Rc::clone(&disk.image) as _)).unwrap().problems, []);
}

/// Set-ID bits go as with a write, and a full volume takes what fits.
#[test]
fn rights_and_room() {
    let disk = ext4_disk();
    let fs = ext4_on(&disk, Journaling::Ordered, CommitMode::Legacy);
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let from = open(&vfs, "/from").await;
        from.pwrite(0, Source::pattern(1, 12 << 20)).await.unwrap();
        drop(open(&vfs, "/to").await);
        root.chmod("/to", 0o6777).await.unwrap();
        let user = vfs.process(Creds::user(1000, 1000));
        let (mine, to) = (
            user.open("/from", OpenFlags::READ, 0).await.unwrap(),
            user.open("/to", OpenFlags::WRITE, 0).await.unwrap(),
        );
        assert_eq!(vfs.copy_range((&mine, 0), (&to, 0), PAGE).await, Ok(PAGE));
        assert_eq!(root.stat("/to", Follow::Yes).await.unwrap().mode, 0o777);
        let mut at = PAGE;
        let error = loop {
            match vfs.copy_range((&mine, 0), (&to, at), 12 << 20).await {
                Ok(copied) => at += copied,
                Err(errno) => break errno,
            }
        };
        assert_eq!((error, to.size()), (Errno::ENOSPC, at));
        assert!(at > 10 << 20, "{at} bytes fit");
        for file in [from, mine, to] {
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    assert_eq!(block_on(ext4::check(Rc::clone(&disk) as _)).unwrap().problems, []);
}

/// A copy of two extents into a transaction that becomes full with the first one: its commit must not wait for a SHARE that nobody ends.
#[test]
fn regression_a_copy_waits_for_no_commit_that_waits_for_it() {
    let image = Rc::new(Image::in_memory(64 << 8));
    block_on(ext4::mkfs(&*image, &ext4::Options::new(64 << 8))).unwrap();
    let disk = Disk::new(image);
    let mut bed = disk.bed(ext4_on(&disk, Journaling::Ordered, CommitMode::Legacy), true);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(&disk));
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        // One of each sixteen changes a block of the table of inodes.
        for number in 0..2600 {
            open(&vfs, &format!("/{number}")).await.close().await.unwrap();
        }
        let (from, other) = (open(&vfs, "/from").await, open(&vfs, "/other").await);
        for _ in 0..2 {
            for file in [&from, &other] {
                file.pwrite(file.size(), Source::pattern(1, 4 * PAGE)).await.unwrap();
                file.sync(SyncKind::All).await.unwrap();
            }
        }
        for changes in 100..160 {
            vfs.sync_all().await.unwrap();
            for number in 0..changes {
                root.chmod(format!("/{}", 16 * number), 0o600 + changes as u16 % 2).await.unwrap();
            }
            let (to, before) = (open(&vfs, "/to").await, shares_of(&log));
            assert_eq!(vfs.copy_range((&from, 0), (&to, 0), 8 * PAGE).await, Ok(8 * PAGE), "{changes}");
            assert!(shares_of(&log) >= before + 2, "the file is in one piece");
            to.close().await.unwrap();
            root.unlink("/to").await.unwrap();
        }
        from.close().await.unwrap();
        other.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}
