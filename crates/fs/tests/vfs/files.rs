//! Files and directories that several use at once, and what becomes of space and inodes.

use crate::bed::{Bed, cache_of};
use flashweir_core::{Duration, RandomStream};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::*;
use std::cell::Cell;
use std::rc::Rc;

const PAGE: u64 = 4096;
const MS: Duration = Duration::from_millis(1);

async fn open(vfs: &Vfs<MemFs>, name: &str) -> File<MemFs> {
    let flags = OpenFlags::READ_WRITE.create();
    vfs.process(Creds::ROOT).open(name, flags, 0o644).await.expect("the file can be opened")
}

/// Cookies stay valid while entries come and go.
#[test]
fn a_directory_is_read_while_it_changes() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        root.mkdir("/d", 0o755).await.unwrap();
        for n in 0..100 {
            root.create(format!("/d/{n}")).await.unwrap().close().await.unwrap();
        }
        let dir = root.open("/d", OpenFlags::READ, 0).await.unwrap();
        let (mut after, mut seen) = (Cookie::START, Vec::new());
        for round in 0.. {
            let entries = dir.read_dir(after, 7).await.unwrap();
            assert!(entries.len() <= 7);
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            seen.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            // One goes that was seen, one that was not, and one comes.
            let _ = root.unlink(format!("/d/{}", seen[round])).await;
            if round < 20 {
                let _ = root.unlink(format!("/d/{}", 99 - round)).await;
                root.create(format!("/d/new{round}")).await.unwrap().close().await.unwrap();
            }
        }
        dir.close().await.unwrap();
        let mut once = seen.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), seen.len(), "an entry was seen twice");
        for name in (0..100).map(|n| n.to_string()) {
            if root.stat(format!("/d/{name}"), Follow::Yes).await.is_ok() {
                assert!(seen.contains(&name), "{name} was there all the time and not seen");
            }
        }
        assert!(seen.len() > 80 && seen.iter().any(|name| name.starts_with("new")), "{seen:?}");
    });
}

/// Many tasks make, link, move and remove the same few names; the tree stays whole and nothing is lost.
#[test]
fn tasks_change_the_same_names() {
    for seed in 0..20 {
        let mut bed = Bed::small(Duration::from_micros(20), cache_of(50));
        let ended = Rc::new(Cell::new(0));
        for task in 0..8u64 {
            let (vfs, handle, ended) = (bed.vfs.clone(), bed.handle.clone(), Rc::clone(&ended));
            bed.executor.spawn(async move {
                churn(&vfs, &handle, &mut RandomStream::new(seed, &format!("task {task}"))).await;
                ended.set(ended.get() + 1);
            });
        }
        bed.pass(Duration::from_secs(100));
        assert_eq!(ended.get(), 8, "tasks wait for each other for ever");
        let vfs = bed.vfs.clone();
        bed.run(async move {
            check_tree(&vfs).await;
            vfs.unmount().await.unwrap();
        });
    }
}

async fn churn(vfs: &Vfs<MemFs>, handle: &flashweir_core::executor::Handle, random: &mut RandomStream) {
    let root = vfs.process(Creds::ROOT);
    let path = |random: &mut RandomStream| {
        let depth = 1 + random.below(3);
        (0..depth).map(|_| format!("/{}", (b'a' + random.below(3) as u8) as char)).collect::<String>()
    };
    for _ in 0..150 {
        let (one, other) = (path(random), path(random));
        // Whether it works depends on the others.
        match random.below(10) {
            0 | 1 => drop(root.mkdir(&one, 0o755).await),
            2 => drop(root.rmdir(&one).await),
            3 | 4 => {
                if let Ok(file) = root.open(&one, OpenFlags::READ_WRITE.create(), 0o644).await {
                    let _ =
                        file.pwrite(random.below(5) * 1000, Source::pattern(random.next_u64(), 3000)).await;
                    if random.chance(0.5) {
                        file.close().await.expect("a file can be closed");
                    }
                }
            }
            5 => drop(root.unlink(&one).await),
            6 => drop(root.link(&one, &other).await),
            7 => drop(root.rename(&one, &other, RenameMode::Exchange).await),
            _ => drop(root.rename(&one, &other, RenameMode::Replace).await),
        }
        if random.chance(0.3) {
            handle.sleep_until(handle.now() + Duration::from_micros(random.below(100))).await;
        } else {
            handle.yield_now().await;
        }
    }
}

/// Every inode is reached by as many names as it counts, and none exists that is not reached.
async fn check_tree(vfs: &Vfs<MemFs>) {
    let root = vfs.process(Creds::ROOT);
    let mut names: std::collections::BTreeMap<Ino, (u32, Attr)> = Default::default();
    let mut left = vec![vfs.fs().root()];
    let mut directories = 1;
    while let Some(dir) = left.pop() {
        let here = root.at(dir);
        let mut subdirectories = 0;
        for entry in here.list(".").await.unwrap() {
            let attr = here.stat(&entry.name, Follow::No).await.unwrap();
            assert_eq!(attr.ino, entry.ino);
            if attr.kind.is_dir() {
                subdirectories += 1;
                directories += 1;
                assert_eq!(vfs.fs().parent(entry.ino).await, Ok(dir));
                left.push(entry.ino);
            } else {
                names.entry(entry.ino).or_insert((0, attr)).0 += 1;
            }
        }
        assert_eq!(vfs.attr_of(dir).await.unwrap().links, 2 + subdirectories);
    }
    for (ino, (count, attr)) in &names {
        assert_eq!(attr.links, *count, "{ino}");
    }
    assert_eq!(vfs.fs().inodes(), directories + names.len() as u64, "an inode without a name is left");
    let blocks: u64 = names.values().map(|(_, attr)| attr.blocks_512 / 8).sum();
    assert_eq!(vfs.fs().used_pages(), blocks);
}

/// The number of a removed file goes to a new one, and nothing of the old one shows.
#[test]
fn a_number_that_is_used_again_brings_no_old_pages() {
    let mut bed = Bed::small(MS, cache_of(100));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for wait in [Duration::ZERO, MS * 3, Duration::from_secs(40)] {
            let old = open(&vfs, "/old").await;
            old.write(Source::pattern(1, 10 * PAGE)).await.unwrap();
            let ino = old.ino();
            old.close().await.unwrap();
            handle.sleep_until(handle.now() + wait).await;
            root.unlink("/old").await.unwrap();
            assert_eq!((vfs.cached_pages(), vfs.fs().used_pages()), (0, 0));
            let new = open(&vfs, "/new").await;
            assert_eq!(new.ino(), ino);
            new.truncate(10 * PAGE).await.unwrap();
            let mut bytes = vec![1; 10 * PAGE as usize];
            new.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0));
            new.close().await.unwrap();
            root.unlink("/new").await.unwrap();
        }
    });
}

/// A directory that is older than its parent: locking by numbers alone deadlocks here.
#[test]
fn directories_are_locked_from_above() {
    let mut bed = Bed::small(Duration::from_micros(20), cache_of(50));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let inner = root.mkdir("/inner", 0o755).await.unwrap();
        let outer = root.mkdir("/outer", 0o755).await.unwrap();
        assert!(inner.ino < outer.ino);
        root.rename("/inner", "/outer/inner", RenameMode::Replace).await.unwrap();
        root.create("/outer/inner/stays").await.unwrap().close().await.unwrap();
        root.create("/outer/x").await.unwrap().close().await.unwrap();
    });
    for task in 0..6 {
        let vfs = bed.vfs.clone();
        bed.executor.spawn(async move {
            let root = vfs.process(Creds::ROOT);
            let (above, below) = ("/outer/x", "/outer/inner/x");
            for _ in 0..100 {
                // All but one of the moves come too late.
                match task % 3 {
                    0 => drop(root.rename(above, below, RenameMode::Replace).await),
                    1 => drop(root.rename(below, above, RenameMode::Replace).await),
                    _ => assert_eq!(root.rmdir("/outer/inner").await, Err(Errno::ENOTEMPTY)),
                }
            }
        });
    }
    bed.pass(Duration::from_secs(1));
    assert_eq!(bed.executor.len(), 1, "only write-back is left, nobody waits for a lock");
}

/// Files are closed by some while others open them.
#[test]
fn a_file_is_opened_while_it_is_closed() {
    let mut bed = Bed::small(Duration::from_micros(20), cache_of(50));
    for task in 0..5u64 {
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        bed.executor.spawn(async move {
            let mut random = RandomStream::new(7, &format!("task {task}"));
            for _ in 0..200 {
                let file = open(&vfs, "/f").await;
                if random.chance(0.3) {
                    file.pwrite(random.below(9000), Source::pattern(task, 100)).await.unwrap();
                }
                for _ in 0..random.below(4) {
                    handle.yield_now().await;
                }
                file.close().await.unwrap();
            }
        });
    }
    bed.pass(Duration::from_secs(100));
    let vfs = bed.vfs.clone();
    bed.run(async move { vfs.unmount().await.unwrap() });
    assert!(bed.executor.is_empty());
}

/// A file is removed while its pages are being written.
#[test]
fn a_file_is_removed_under_write_back() {
    let mut bed = Bed::small(MS, cache_of(100));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, 70 * PAGE)).await.unwrap();
        file.close().await.unwrap();
        handle.sleep_until(handle.now() + MS * 2).await;
        assert_eq!(vfs.fs().counts().written_pages, 0, "the first batch is under way");
        vfs.process(Creds::ROOT).unlink("/f").await.unwrap();
        assert_eq!((vfs.cached_pages(), vfs.dirty_pages()), (0, 0));
        assert_eq!((vfs.fs().used_pages(), vfs.fs().inodes()), (0, 1));
        assert!(vfs.fs().counts().written_pages <= 8, "pages of a removed file were written");
        vfs.unmount().await.unwrap();
    });
}

/// A file that is dropped instead of closed is closed nevertheless.
#[test]
fn a_dropped_file_is_closed() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    let file = bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        vfs.process(Creds::ROOT).unlink("/f").await.unwrap();
        file
    });
    assert_eq!(bed.vfs.fs().inodes(), 2);
    let vfs = bed.vfs.clone();
    assert_eq!(bed.run(async move { vfs.unmount().await }), Err(Errno::EBUSY));
    drop(file);
    bed.pass(MS * 10);
    assert_eq!((bed.vfs.fs().inodes(), bed.vfs.fs().used_pages(), bed.vfs.cached_pages()), (1, 0, 0));
    let vfs = bed.vfs.clone();
    assert_eq!(bed.run(async move { vfs.unmount().await }), Ok(()));
}

/// A power cut in the middle of everything: futures are dropped, and nothing panics.
#[test]
fn a_cut_drops_everything_at_any_moment() {
    for cut_at in (0..200).map(|step| MS * step / 10) {
        let mut bed = Bed::small(MS, cache_of(40));
        for task in 0..4 {
            let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
            bed.executor.spawn(async move {
                let mut random = RandomStream::new(task, "cut");
                let file = open(&vfs, "/f").await;
                let direct =
                    vfs.process(Creds::ROOT).open("/f", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
                loop {
                    let at = random.below(30);
                    match random.below(5) {
                        0 => drop(file.pwrite(at * 1000, Source::pattern(at, 5000)).await),
                        1 => drop(direct.pwrite(at * PAGE, Source::pattern(at, 2 * PAGE)).await),
                        2 => drop(file.pread(at * PAGE, Sink::nowhere(9000)).await),
                        3 => drop(file.truncate(at * 2000).await),
                        _ => drop(file.sync(SyncKind::All).await),
                    }
                    handle.yield_now().await;
                    handle.sleep_until(handle.now() + Duration::from_micros(50)).await;
                }
            });
        }
        bed.pass(cut_at);
        bed.executor.clear();
        assert!(bed.executor.is_empty());
        // Pages that were under I/O are dirty or absent again.
        let config = MemFsConfig::default();
        assert!(bed.vfs.dirty_pages() <= config.pages);
    }
}
