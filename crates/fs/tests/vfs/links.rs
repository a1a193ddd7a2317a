//! Symbolic links of every length that a path may have, inside of the inode and in a block of their own; and names that many tasks change at
//! once.

use crate::bed::Bed;
use crate::each::*;
use flashweir_core::{Duration, RandomStream};
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;
use std::cell::Cell;
use std::rc::Rc;

async fn links_of_all_lengths<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    for bytes in [1, 59, 60, 200, 3_000, 4_000, 4_095] {
        let (target, path) = ("x".repeat(bytes), format!("/to-{bytes}"));
        root.symlink(&target, &path).await.unwrap();
        assert_eq!(&*root.readlink(&path).await.unwrap(), target.as_bytes(), "{bytes} bytes");
        assert_eq!(root.stat(&path, Follow::No).await.unwrap().size, bytes as u64);
    }
    vfs.sync_all().await.unwrap();
    for bytes in [60, 4_000] {
        root.unlink(format!("/to-{bytes}")).await.unwrap();
    }
}

#[test]
fn links_say_what_they_were_made_with() {
    on_each!(links_of_all_lengths);
}

/// Directories that are linked, moved over each other, and removed at once, on a disk that takes its time: some tasks held a directory and
/// waited for one above it, or for one beside it, whose holder waited for what they held.
#[test]
fn regression_tasks_that_change_directories_do_not_wait_for_each_other() {
    for seed in 0..8 {
        let mut bed = Bed::with(MemFsConfig::default(), Duration::from_micros(50), MountOptions::default());
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        let ended = Rc::new(Cell::new(0));
        for task in 0..8_u64 {
            let (vfs, handle, ended) = (vfs.clone(), handle.clone(), Rc::clone(&ended));
            bed.executor.spawn(async move {
                let root = vfs.process(Creds::ROOT);
                let mut random = RandomStream::new(seed, &format!("task {task}"));
                let mut path = || {
                    let depth = 1 + random.below(3);
                    (0..depth).map(|_| format!("/{}", random.below(2))).collect::<String>()
                };
                for round in 0..400 {
                    let (from, to) = (path(), path());
                    // Most of these fail, in some way that depends on the others.
                    let _ = match (task + round) % 5 {
                        0 => root.rmdir(&from).await,
                        1 => root.rename(&from, &to, RenameMode::Replace).await,
                        2 => root.rename(&from, &to, RenameMode::Exchange).await,
                        3 => root.link(&from, &to).await.map(drop),
                        _ => root.mkdir(&from, 0o755).await.map(drop),
                    };
                    if round % 16 == task {
                        vfs.sync_all().await.unwrap();
                    }
                    handle.sleep_until(handle.now() + Duration::from_micros(10 * (task + 1))).await;
                }
                ended.set(ended.get() + 1);
            });
        }
        bed.pass(Duration::from_secs(60));
        assert_eq!(ended.get(), 8, "seed {seed}");
        bed.run(async move { vfs.unmount().await.unwrap() });
    }
}
