//! Atomic files on every format that has sets (share §7): by the journal, and by SHARE (share §7.9). From what readers see down to what a
//! power cut leaves.

use crate::atomic::{Model, NAMES, change, contents, open, plain, put};
use crate::bed::{Bed, cache_of};
use crate::disk::Disk;
use flashweir_core::RandomStream;
use flashweir_fs::ext4::{self, Ext4, Ext4Options, Journaling, PlantedBug};
use flashweir_fs::f2fs::{self, F2fs, F2fsOptions};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::{Block, BlockPort, Image, Request, Write, block_on};
use flashweir_fs::vfs::*;
use std::rc::Rc;

/// A format under test.
trait Format {
    type Mounted: Fs + 'static;
    /// Whether a file may become longer before its set is written.
    const GROWS_FIRST: bool;
    fn made(blocks: u64) -> Rc<Image>;
    fn mounted(&self, disk: Rc<dyn BlockPort>) -> Self::Mounted;
    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String>;
}

fn made_ext4(blocks: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(blocks));
    block_on(ext4::mkfs(&*image, &ext4::Options::new(blocks))).unwrap();
    image
}

fn problems_of_ext4(disk: Rc<dyn BlockPort>) -> Vec<String> {
    block_on(ext4::check(disk)).unwrap().problems.iter().map(ToString::to_string).collect()
}

/// ext4 that journals data.
#[derive(Clone, Copy, Debug, Default)]
struct Journalled {
    commit_mode: CommitMode,
    planted: Option<PlantedBug>,
}

impl Format for Journalled {
    type Mounted = Ext4;
    const GROWS_FIRST: bool = false;

    fn made(blocks: u64) -> Rc<Image> {
        made_ext4(blocks)
    }

    fn mounted(&self, disk: Rc<dyn BlockPort>) -> Ext4 {
        let Self { commit_mode, planted } = *self;
        let options =
            Ext4Options { journaling: Journaling::Journal, commit_mode, planted, ..Ext4Options::default() };
        block_on(Ext4::mount_with(disk, options)).unwrap()
    }

    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String> {
        problems_of_ext4(disk)
    }
}

/// ext4 with ordered data.
struct Soj;

impl Format for Soj {
    type Mounted = Ext4;
    const GROWS_FIRST: bool = true;

    fn made(blocks: u64) -> Rc<Image> {
        made_ext4(blocks)
    }

    fn mounted(&self, disk: Rc<dyn BlockPort>) -> Ext4 {
        block_on(Ext4::mount(disk)).unwrap()
    }

    fn problems(disk: Rc<dyn BlockPort>) -> Vec<String> {
        problems_of_ext4(disk)
    }
}

struct Ssc(CommitMode);

impl Format for Ssc {
    type Mounted = F2fs;
    const GROWS_FIRST: bool = true;

    fn made(blocks: u64) -> Rc<Image> {
        let image = Rc::new(Image::in_memory(blocks));
        block_on(f2fs::mkfs(&*image, &f2fs::Options::new(blocks))).unwrap();
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

fn bed<T: Format>(format: &T, disk: Rc<Image>, pages: u64) -> Bed<T::Mounted> {
    let options = MountOptions { cache: cache_of(pages), ..MountOptions::default() };
    Bed::mount(options, |_| format.mounted(disk))
}

/// What each of the three files shows on a new mount, which is not unmounted.
fn shown<T: Format>(format: &T, disk: Rc<Image>) -> Vec<Vec<u8>> {
    let mut bed = bed(format, disk, 2000);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let mut shown = Vec::new();
        for name in NAMES {
            let file = plain(&vfs, name).await;
            shown.push(contents(&file).await);
            std::mem::forget(file);
        }
        shown
    })
}

/// Readers see what was written, and an unmount keeps what was synced.
fn readers_see_what_was_written<T: Format>(format: &T, seeds: u64) {
    for seed in 0..seeds {
        let image = T::made(64 << 8);
        let mut models = vec![Model::default(); 3];
        for round in 0..3 {
            let mut bed = bed(format, Rc::clone(&image), if seed % 2 == 0 { 2000 } else { 100 });
            let vfs = bed.vfs.clone();
            let mut random = RandomStream::new(seed, &format!("atomic files, round {round}"));
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
        let synced: Vec<Vec<u8>> = models.into_iter().map(|model| model.below).collect();
        assert!(shown(format, image) == synced, "seed {seed}");
    }
}

#[test]
fn readers_see_what_was_written_on_every_format() {
    readers_see_what_was_written(&Journalled::default(), 12);
    readers_see_what_was_written(&Soj, 6);
    readers_see_what_was_written(&Ssc(CommitMode::Legacy), 6);
    readers_see_what_was_written(&Ssc(CommitMode::DualMode), 6);
}

/// What a file may show instead of `older`, while it becomes `newer`: the new length, and zeros behind the old end.
fn is_older(found: &[u8], older: &[u8], newer: &[u8]) -> bool {
    let Some((head, tail)) = found.split_at_checked(older.len()) else { return false };
    head == older && tail.iter().all(|byte| *byte == 0) && found.len() <= older.len().max(newer.len())
}

/// Cuts the power after each of the requests of more than `syncs` syncs, in order; the error says after which of them the three files are
/// not as one sync left them, but for lengths that come first.
fn cuts_leave_whole_sets<T: Format>(
    format: &T,
    (blocks, changes, syncs): (u64, u64, usize),
) -> std::result::Result<(), String> {
    let disk = Disk::new(T::made(blocks));
    let mut bed = disk.bed(format.mounted(Rc::clone(&disk) as _), false);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(&disk));
    // After so many requests a sync has returned, with the files like this.
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
        for number in 0..changes {
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
    assert!(
        synced.len() > syncs && requests.len() > 200,
        "{} syncs, {} requests",
        synced.len(),
        requests.len()
    );
    assert!(!T::GROWS_FIRST || shares > 15, "{shares} by SHARE");
    each_cut(format, blocks, &requests, &synced, |at, found, [older, newer]| {
        let grown = || found.iter().zip(older.iter().zip(newer)).all(|(f, (o, n))| is_older(f, o, n));
        match found == older || found == newer || T::GROWS_FIRST && grown() {
            true => Ok(()),
            false => Err(format!("after request {at} of {}, {:?}", requests.len(), requests[at])),
        }
    })
    .map(drop)
}

/// Contents of the three files.
type Contents = [Vec<u8>];

/// Cuts the power after each request from the first of `states` on, which say after how many requests the files had been made durable so.
/// `judge` gets the number of the request, what the files show then, and their states before and after it. Returns the last disk.
fn each_cut<T: Format, E>(
    format: &T,
    blocks: u64,
    requests: &[Request],
    states: &[(usize, Vec<Vec<u8>>)],
    judge: impl Fn(usize, &Contents, [&Contents; 2]) -> std::result::Result<(), E>,
) -> std::result::Result<Rc<Image>, E> {
    let image = T::made(blocks);
    for (at, request) in requests.iter().enumerate() {
        block_on(image.submit(request.clone()).completed()).unwrap();
        if at < states[0].0 {
            continue;
        }
        let found = shown(format, copy(&image));
        // The state before the cut, or the one within whose making it lies.
        let before = states.iter().rposition(|(end, _)| *end <= at + 1).unwrap();
        let older = &states[before].1;
        let newer = states.get(before + 1).map_or(older, |(_, newer)| newer);
        judge(at, &found, [older, newer])?;
    }
    Ok(image)
}

fn copy(image: &Rc<Image>) -> Rc<Image> {
    let copy = Rc::new(Image::in_memory(image.capacity_blocks()));
    for block in (0..image.capacity_blocks()).map(Block) {
        let content = block_on(image.read(block, 1).completed()).unwrap();
        block_on(copy.write(Write::new(block, content.into_vec())).completed()).unwrap();
    }
    copy
}

#[test]
fn a_cut_leaves_whole_sets_of_a_journal() {
    for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
        let format = Journalled { commit_mode, planted: None };
        assert_eq!(cuts_leave_whole_sets(&format, (32 << 8, 250, 30)), Ok(()), "{commit_mode:?}");
        let format = Journalled { planted: Some(PlantedBug::LeftOutOfSet), ..format };
        assert!(cuts_leave_whole_sets(&format, (32 << 8, 250, 30)).is_err(), "{commit_mode:?}");
    }
}

#[test]
fn a_cut_leaves_whole_sets_by_share() {
    let size = (64 << 8, 200, 25);
    assert_eq!(cuts_leave_whole_sets(&Soj, size), Ok(()));
    assert_eq!(cuts_leave_whole_sets(&Ssc(CommitMode::Legacy), size), Ok(()));
    assert_eq!(cuts_leave_whole_sets(&Ssc(CommitMode::DualMode), size), Ok(()));
}

/// A set for which there is no room, and one whose SHARE the device refuses, give back what they took. The next attempt writes all of it.
fn a_refused_set_gives_back<T: Format>(format: &T) {
    let disk = Disk::new(T::made(64 << 8));
    let mut bed = disk.bed(format.mounted(Rc::clone(&disk) as _), false);
    let (vfs, port) = (bed.vfs.clone(), Rc::clone(&disk));
    bed.run(async move {
        let (a, b, filler) = (open(&vfs, "/a").await, open(&vfs, "/b").await, plain(&vfs, "/f").await);
        put(&a, 0, &[1; 100]).await;
        put(&b, 20 << 12, &[1; 8192]).await;
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        // The file without a name is there from now on.
        put(&a, 0, &[2; 100]).await;
        vfs.syncv(&[&a], SyncKind::All).await.unwrap();
        put(&a, 0, &[3; 9000]).await;
        put(&b, 0, &[3; 30 << 12]).await;
        let below = async |file: &File<T::Mounted>| vfs.fs().getattr(file.ino()).await.unwrap().size;
        let before = vfs.fs().statfs().await.unwrap().pages_free;
        port.refuses_shares.set(true);
        assert_eq!(vfs.syncv(&[&a, &b], SyncKind::All).await, Err(Errno::EIO));
        port.refuses_shares.set(false);
        assert_eq!((below(&a).await, below(&b).await), (100, 22 << 12));
        // The holes in front of the old end are blocks of zeros now.
        assert!(vfs.fs().statfs().await.unwrap().pages_free + 22 >= before, "{before}");
        let mut at = 0;
        while filler.pwrite(at, Source::pattern(1, 4096)).await.is_ok() {
            at += 4096;
        }
        filler.sync(SyncKind::All).await.unwrap();
        // Room for less than the contents, and for these but not for the pages that get them.
        for pages in [20, 36] {
            filler.truncate(at - (pages << 12)).await.unwrap();
            filler.sync(SyncKind::All).await.unwrap();
            let before = vfs.fs().statfs().await.unwrap().pages_free;
            for _ in 0..3 {
                assert_eq!(vfs.syncv(&[&a, &b], SyncKind::All).await, Err(Errno::ENOSPC));
                assert_eq!((below(&a).await, below(&b).await), (100, 22 << 12));
                assert_eq!(vfs.fs().statfs().await.unwrap().pages_free, before);
            }
        }
        filler.truncate(4096).await.unwrap();
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        assert!(contents(&a).await == [3; 9000] && contents(&b).await == [3; 30 << 12]);
        for file in [a, b, filler] {
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    assert_eq!(T::problems(Rc::clone(&disk.image) as _), Vec::<String>::new());
}

#[test]
fn a_set_refused_by_share_gives_back_what_it_took() {
    a_refused_set_gives_back(&Soj);
    a_refused_set_gives_back(&Ssc(CommitMode::Legacy));
    a_refused_set_gives_back(&Ssc(CommitMode::DualMode));
}

/// The requests that make a set of three files durable in the blocks that they have.
fn requests_of_a_set<T: Format>(format: &T) -> Vec<Request> {
    let disk = Disk::new(T::made(64 << 8));
    let mut bed = disk.bed(format.mounted(Rc::clone(&disk) as _), false);
    let (vfs, port) = (bed.vfs.clone(), Rc::clone(&disk));
    bed.run(async move {
        let mut files = Vec::new();
        for name in NAMES {
            files.push(open(&vfs, name).await);
        }
        let set: Vec<&File<T::Mounted>> = files.iter().collect();
        for version in 0..3 {
            for file in &set {
                put(file, 0, &[version; 20_000]).await;
            }
            port.requests.borrow_mut().clear();
            vfs.syncv(&set, SyncKind::Data).await.unwrap();
        }
        let requests = port.requests.take();
        for file in files {
            file.close().await.unwrap();
        }
        requests
    })
}

#[test]
fn a_set_of_several_files_takes_one_flush() {
    // The transaction and its commit block, which is durable by itself.
    let by_journal = requests_of_a_set(&Journalled::default());
    assert!(matches!(&by_journal[..], [Request::Write(_), Request::Flush, Request::Write(last)] if last.fua));
    for by_share in [requests_of_a_set(&Soj), requests_of_a_set(&Ssc(CommitMode::Legacy))] {
        assert!(matches!(&by_share[..], [Request::Write(_), Request::Share(_), Request::Flush]));
    }
}

const PAGE: u64 = 4096;

/// Two ranges of pages of the first two files, or of one of them, that may be exchanged: for each a file and its first page; their number.
fn ranges(random: &mut RandomStream, pages: [u64; 2]) -> ([(usize, u64); 2], u64) {
    loop {
        let count = 1 + random.below(6);
        let [one, other] = [random.below(2) as usize, random.below(2) as usize];
        let place = |random: &mut RandomStream, file: usize| {
            random.below((pages[file] + 1).saturating_sub(count).max(1))
        };
        let (at, other_at) = (place(random, one), place(random, other));
        let fits = at + count <= pages[one] && other_at + count <= pages[other];
        if fits && (one != other || at + count <= other_at || other_at + count <= at) {
            return ([(one, at), (other, other_at)], count);
        }
    }
}

fn exchange_bytes(contents: &mut [Vec<u8>], [(one, at), (other, other_at)]: [(usize, u64); 2], count: u64) {
    for byte in 0..(count * PAGE) as usize {
        let (here, there) = ((at * PAGE) as usize + byte, (other_at * PAGE) as usize + byte);
        let kept = contents[one][here];
        contents[one][here] = contents[other][there];
        contents[other][there] = kept;
    }
}

/// Exchanges beside writes, holes and syncs are as on byte strings; after each request of them a cut leaves ranges that are exchanged, or
/// not.
fn exchanges_are_whole<T: Format>(format: &T, rounds: u64, shares_least: usize) {
    let blocks = 64 << 8;
    let disk = Disk::new(T::made(blocks));
    let mut bed = disk.bed(format.mounted(Rc::clone(&disk) as _), false);
    let (vfs, log) = (bed.vfs.clone(), Rc::clone(&disk));
    let states: Vec<(usize, Vec<Vec<u8>>)> = bed.run(async move {
        let mut files = Vec::new();
        let mut model = vec![vec![0; 20 << 12], vec![0; 9 << 12], Vec::new()];
        for (name, bytes) in NAMES.iter().zip(&model) {
            let file = plain(&vfs, name).await;
            // Every page is a hole at first.
            file.truncate(bytes.len() as u64).await.unwrap();
            files.push(file);
        }
        vfs.sync_all().await.unwrap();
        let mut states = vec![(log.requests.borrow().len(), model.clone())];
        let mut random = RandomStream::new(5, "exchanges");
        for round in 0..rounds {
            let file = random.below(2) as usize;
            let at = random.below(model[file].len() as u64 - 5000);
            if random.chance(0.6) {
                // Before it is synced: a write is not whole under a cut.
                let bytes: Vec<u8> = (0..4500).map(|byte| (byte + round) as u8 | 1).collect();
                put(&files[file], at / PAGE * PAGE, &bytes[..4096]).await;
                model[file][(at / PAGE * PAGE) as usize..][..4096].copy_from_slice(&bytes[..4096]);
                vfs.sync_all().await.unwrap();
                states.push((log.requests.borrow().len(), model.clone()));
            }
            let ([one, other], count) = ranges(&mut random, [20, 9]);
            let places = [one, other].map(|(file, page)| (&files[file], page * PAGE));
            vfs.exchange(places[0], places[1], count * PAGE).await.unwrap();
            exchange_bytes(&mut model, [one, other], count);
            for (file, bytes) in files.iter().zip(&model) {
                assert!(contents(file).await == *bytes, "round {round}");
            }
            vfs.sync_all().await.unwrap();
            states.push((log.requests.borrow().len(), model.clone()));
        }
        std::mem::forget(files);
        states
    });
    let requests = disk.requests.take();
    let shares = requests.iter().filter(|request| matches!(request, Request::Share(_))).count();
    assert!(shares >= shares_least, "{shares}");
    let image = each_cut(format, blocks, &requests, &states, |at, found, [older, newer]| {
        match found == older || found == newer {
            true => Ok(()),
            false => Err(format!("after request {at}: {:?}", requests[at])),
        }
    });
    let image = image.unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(T::problems(image as _), Vec::<String>::new());
}

#[test]
fn a_cut_leaves_ranges_exchanged_or_not() {
    exchanges_are_whole(&Journalled::default(), 25, 0);
    exchanges_are_whole(&Soj, 25, 25);
    exchanges_are_whole(&Ssc(CommitMode::Legacy), 25, 25);
    exchanges_are_whole(&Ssc(CommitMode::DualMode), 25, 25);
}

#[test]
fn what_cannot_be_exchanged_is_refused() {
    let disk = Disk::new(Soj::made(64 << 8));
    let mut bed = disk.bed(Soj.mounted(Rc::clone(&disk) as _), false);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let (a, b) = (plain(&vfs, "/a").await, plain(&vfs, "/b").await);
        put(&a, 0, &[1; 10_000]).await;
        put(&b, 0, &[2; 18_192]).await;
        for (at, b_at, len, expected) in [
            (1, 0, 4096, Errno::EINVAL),
            (0, 512, 4096, Errno::EINVAL),
            (0, 0, 5000, Errno::EINVAL),
            (0, 0, 12_288, Errno::EINVAL),
            (4096, u64::MAX - 4095, 4096, Errno::EINVAL),
        ] {
            assert_eq!(vfs.exchange((&a, at), (&b, b_at), len).await, Err(expected), "{at} {b_at} {len}");
        }
        assert_eq!(vfs.exchange((&b, 0), (&b, 4096), 8192).await, Err(Errno::EINVAL), "they overlap");
        let reader = vfs.process(Creds::ROOT).open("/a", OpenFlags::READ, 0).await.unwrap();
        assert_eq!(vfs.exchange((&reader, 0), (&b, 0), 4096).await, Err(Errno::EBADF));
        assert_eq!(vfs.exchange((&b, 0), (&reader, 0), 4096).await, Err(Errno::EBADF));
        // Up to the ends of both files, which are in the middle of a page.
        vfs.exchange((&a, 0), (&b, 8192), 10_000).await.unwrap();
        assert!(contents(&a).await == [2; 10_000]);
        assert!(contents(&b).await == [vec![2; 8192], vec![1; 10_000]].concat());
        assert_eq!(vfs.exchange((&a, 0), (&b, 0), 0).await, Ok(()));
        let atomic = open(&vfs, "/a").await;
        put(&atomic, 0, &[3; 10]).await;
        assert_eq!(vfs.exchange((&a, 0), (&b, 0), 4096).await, Err(Errno::EBUSY));
        vfs.syncv(&[&atomic], SyncKind::All).await.unwrap();
        let (long, other) = (plain(&vfs, "/long").await, plain(&vfs, "/other").await);
        for file in [&long, &other] {
            file.truncate(64 << 20).await.unwrap();
        }
        assert_eq!(vfs.exchange((&long, 0), (&other, 0), 64 << 20).await, Err(Errno::EFBIG));
        for file in [a, b, reader, atomic, long, other] {
            file.close().await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
}
