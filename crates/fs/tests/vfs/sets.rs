//! Atomic files on file systems that do not journal data (share §7.9): sets by SHARE, from the vfs down to what a power cut leaves.

use crate::atomic::{Model, NAMES, change, contents, open, plain, put};
use crate::bed::{Bed, cache_of};
use crate::disk::Disk;
use flashweir_core::RandomStream;
use flashweir_fs::ext4::{self, Ext4};
use flashweir_fs::f2fs::{self, F2fs, F2fsOptions};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::{Block, BlockPort, Image, Request, Write, block_on};
use flashweir_fs::vfs::*;
use std::rc::Rc;

const BLOCKS: u64 = 64 << 8;

/// A format under test.
trait Format {
    type Mounted: Fs + 'static;
    fn made() -> Rc<Image>;
    fn mounted(&self, disk: Rc<dyn BlockPort>) -> Self::Mounted;
    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String>;
}

struct Soj;

impl Format for Soj {
    type Mounted = Ext4;

    fn made() -> Rc<Image> {
        let image = Rc::new(Image::in_memory(BLOCKS));
        block_on(ext4::mkfs(&*image, &ext4::Options::new(BLOCKS))).unwrap();
        image
    }

    fn mounted(&self, disk: Rc<dyn BlockPort>) -> Ext4 {
        block_on(Ext4::mount(disk)).unwrap()
    }

    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String> {
        block_on(ext4::check(disk)).unwrap().problems.iter().map(ToString::to_string).collect()
    }
}

struct Ssc(CommitMode);

impl Format for Ssc {
    type Mounted = F2fs;

    fn made() -> Rc<Image> {
        let image = Rc::new(Image::in_memory(BLOCKS));
        block_on(f2fs::mkfs(&*image, &f2fs::Options::new(BLOCKS))).unwrap();
        image
    }

    fn mounted(&self, disk: Rc<dyn BlockPort>) -> F2fs {
        let options = F2fsOptions { commit_mode: self.0, ..F2fsOptions::default() };
        block_on(F2fs::mount_with(disk, options)).unwrap()
    }

    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String> {
        block_on(f2fs::check(disk)).unwrap().problems.iter().map(ToString::to_string).collect()
    }
}

fn readers_see_what_was_written<T: Format>(format: &T) {
    for seed in 0..6 {
        let image = T::made();
        let mut models = vec![Model::default(); 3];
        for round in 0..3 {
            let pages = if seed % 2 == 0 { 2000 } else { 100 };
            let options = MountOptions { cache: cache_of(pages), ..MountOptions::default() };
            let mut bed = Bed::mount(options, |_| format.mounted(Rc::clone(&image) as _));
            let vfs = bed.vfs.clone();
            let mut random = RandomStream::new(seed, &format!("sets by SHARE, round {round}"));
            models = bed.run(async move {
                let mut files = Vec::new();
                for (name, model) in NAMES.iter().zip(&mut models) {
                    files.push(open(&vfs, name).await);
                    model.seen.clone_from(&model.below);
                }
                for step in 0..150 {
                    change(&vfs, &files, &mut models, &mut random, true).await;
                    for (file, model) in files.iter().zip(&models) {
                        let what = format!("seed {seed}, round {round}, step {step}");
                        assert!(contents(file).await == model.seen, "{what}");
                        let below = vfs.fs().getattr(file.ino()).await.unwrap().size;
                        assert_eq!(below, model.below.len() as u64, "{what}");
                    }
                }
                for file in files {
                    file.close().await.unwrap();
                }
                vfs.unmount().await.unwrap();
                models
            });
            assert_eq!(T::problems(Rc::clone(&image) as _), Vec::<String>::new());
        }
        let mut bed = Bed::mount(MountOptions::default(), |_| format.mounted(image as _));
        let vfs = bed.vfs.clone();
        bed.run(async move {
            for (name, model) in NAMES.iter().zip(&models) {
                let file = plain(&vfs, name).await;
                assert!(contents(&file).await == model.below, "seed {seed}: {name}");
                file.close().await.unwrap();
            }
            vfs.unmount().await.unwrap();
        });
    }
}

#[test]
fn readers_see_what_was_written_on_every_format() {
    readers_see_what_was_written(&Soj);
    readers_see_what_was_written(&Ssc(CommitMode::Legacy));
    readers_see_what_was_written(&Ssc(CommitMode::DualMode));
}

/// What a file may show instead of `older`, while it becomes `newer`: the new length, and zeros behind the old end.
fn is_older(found: &[u8], older: &[u8], newer: &[u8]) -> bool {
    let Some((head, tail)) = found.split_at_checked(older.len()) else { return false };
    head == older && tail.iter().all(|byte| *byte == 0) && found.len() <= older.len().max(newer.len())
}

/// Cuts the power after each request, in order; each time the three files are as one sync left them, but for their lengths.
fn cuts_leave_whole_sets<T: Format>(format: &T) {
    let disk = Disk::new(T::made());
    let mut bed = disk.bed(format.mounted(Rc::clone(&disk) as _), false);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(&disk));
    let synced: Vec<(usize, Vec<Vec<u8>>)> = bed.run(async move {
        let mut files = Vec::new();
        for name in NAMES {
            files.push(open(&vfs, name).await);
        }
        vfs.sync_all().await.unwrap();
        let mut models = vec![Model::default(); 3];
        let mut synced = vec![(log.requests.borrow().len(), vec![Vec::new(); 3])];
        let mut random = RandomStream::new(4, "sets under cuts");
        let other = plain(&vfs, "/other").await;
        for number in 0..200 {
            let has_synced = change(&vfs, &files, &mut models, &mut random, false).await;
            if number % 5 == 0 {
                put(&other, 0, &[number as u8; 100]).await;
                other.sync(SyncKind::All).await.unwrap();
            }
            if has_synced {
                let below = models.iter().map(|model| model.below.clone()).collect();
                synced.push((log.requests.borrow().len(), below));
            }
        }
        std::mem::forget((files, other));
        synced
    });
    let requests = disk.requests.take();
    let shares = requests.iter().filter(|request| matches!(request, Request::Share(_))).count();
    assert!(synced.len() > 25 && shares > 15, "{} syncs, {shares} by SHARE", synced.len());
    let image = T::made();
    for (at, request) in requests.iter().enumerate() {
        block_on(image.submit(request.clone()).completed()).unwrap();
        if at < synced[0].0 {
            continue;
        }
        let options = MountOptions { cache: cache_of(2000), ..MountOptions::default() };
        let mut bed = Bed::mount(options, |_| format.mounted(copy(&image) as _));
        let vfs = bed.vfs.clone();
        let found = bed.run(async move {
            let mut found = Vec::new();
            for name in NAMES {
                let file = plain(&vfs, name).await;
                found.push(contents(&file).await);
                std::mem::forget(file);
            }
            found
        });
        let before = synced.iter().rposition(|(end, _)| *end <= at + 1).unwrap();
        let older = &synced[before].1;
        let newer = synced.get(before + 1).map_or(older, |(_, newer)| newer);
        let are_older = found.iter().zip(older.iter().zip(newer)).all(|(f, (o, n))| is_older(f, o, n));
        assert!(are_older || found == *newer, "after request {at} of {}, {request:?}", requests.len());
    }
}

fn copy(image: &Rc<Image>) -> Rc<Image> {
    let copy = Rc::new(Image::in_memory(BLOCKS));
    for block in (0..BLOCKS).map(Block) {
        let content = block_on(image.read(block, 1).completed()).unwrap();
        block_on(copy.write(Write::new(block, content.into_vec())).completed()).unwrap();
    }
    copy
}

#[test]
fn a_cut_leaves_whole_sets_on_every_format() {
    cuts_leave_whole_sets(&Soj);
    cuts_leave_whole_sets(&Ssc(CommitMode::Legacy));
    cuts_leave_whole_sets(&Ssc(CommitMode::DualMode));
}
