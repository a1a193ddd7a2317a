//! Atomic files on ext4 with journalled data (share §7): what others see of withheld writes. What a power cut leaves is in `sets`.

use crate::bed::{Bed, cache_of};
use flashweir_core::{Duration, RandomStream};
use flashweir_fs::ext4::{Ext4, Ext4Options, Journaling, Options, check, mkfs};
use flashweir_fs::memfs::MemFs;
use flashweir_fs::port::{Image, block_on};
use flashweir_fs::vfs::*;
use std::rc::Rc;

const PAGE: u64 = 4096;
pub(crate) const NAMES: [&str; 3] = ["/a", "/b", "/c"];

fn options() -> Ext4Options {
    Ext4Options { journaling: Journaling::Journal, ..Ext4Options::default() }
}

fn volume(mib: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    image
}

fn mounted(image: &Rc<Image>) -> Bed<Ext4> {
    let fs = block_on(Ext4::mount_with(Rc::clone(image) as _, options())).unwrap();
    Bed::mount(MountOptions { cache: cache_of(2000), ..MountOptions::default() }, |_| fs)
}

/// Runs one scene on a new volume, unmounts, and checks the volume.
fn scene(scene: impl AsyncFnOnce(Vfs<Ext4>) + 'static) {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        scene(vfs.clone()).await;
        vfs.unmount().await.unwrap();
    });
    let report = block_on(check(image as _)).unwrap();
    assert_eq!(report.problems, []);
}

pub(crate) async fn open<F: Fs>(vfs: &Vfs<F>, name: &str) -> File<F> {
    let flags = OpenFlags::READ_WRITE.create().atomic();
    vfs.process(Creds::ROOT).open(name, flags, 0o644).await.unwrap()
}

pub(crate) async fn plain<F: Fs>(vfs: &Vfs<F>, name: &str) -> File<F> {
    vfs.process(Creds::ROOT).open(name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap()
}

pub(crate) async fn contents<F: Fs>(file: &File<F>) -> Vec<u8> {
    let mut bytes = vec![0xee; file.size() as usize];
    assert_eq!(file.pread(0, Sink::bytes(&mut bytes)).await, Ok(file.size()));
    bytes
}

pub(crate) async fn put<F: Fs>(file: &File<F>, at: u64, bytes: &[u8]) {
    assert_eq!(file.pwrite(at, Source::bytes(bytes)).await, Ok(bytes.len() as u64));
}

/// The file system has this many bytes of a file, whatever the vfs withholds.
async fn below(vfs: &Vfs<Ext4>, file: &File<Ext4>) -> u64 {
    vfs.fs().getattr(file.ino()).await.unwrap().size
}

#[test]
fn who_may_have_atomic_files() {
    let mut bed = Bed::new();
    let vfs: Vfs<MemFs> = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let opened = root.open("/f", OpenFlags::WRITE.create().atomic(), 0o644).await;
        assert_eq!(opened.map(drop), Err(Errno::EOPNOTSUPP));
        assert!(root.stat("/f", Follow::Yes).await.is_err(), "a refused call made the file");
    });
    scene(async |vfs| {
        let root = vfs.process(Creds::ROOT);
        for flags in [OpenFlags::READ.atomic(), OpenFlags::WRITE.create().atomic().sync(SyncKind::All)] {
            assert_eq!(root.open("/f", flags, 0o644).await.map(drop), Err(Errno::EINVAL), "{flags:?}");
        }
        let (file, other) = (open(&vfs, "/a").await, plain(&vfs, "/b").await);
        assert_eq!(vfs.syncv(&[&file, &other], SyncKind::All).await, Err(Errno::EINVAL));
        assert_eq!(other.abort().await, Err(Errno::EINVAL));
        vfs.syncv(&[], SyncKind::All).await.unwrap();
        file.close().await.unwrap();
        other.close().await.unwrap();
    });
    // A file without a name can be atomic too.
    scene(async |vfs| {
        let root = vfs.process(Creds::ROOT);
        let file = root.open_nameless("/", OpenFlags::READ_WRITE.atomic(), 0o600).await.unwrap();
        put(&file, 0, &[1; 9000]).await;
        assert_eq!(below(&vfs, &file).await, 0);
        file.sync(SyncKind::Data).await.unwrap();
        assert_eq!(below(&vfs, &file).await, 9000);
        file.close().await.unwrap();
    });
}

#[test]
fn nothing_but_a_sync_of_the_file_releases_it() {
    let image = volume(64);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    let (file, other) = bed.run(async move {
        let (file, other) = (open(&vfs, "/a").await, plain(&vfs, "/b").await);
        put(&file, 0, &[1; 5000]).await;
        put(&other, 0, &[2; 5000]).await;
        assert_eq!((vfs.dirty_pages(), vfs.is_settled(file.ino())), (2, false));
        other.sync(SyncKind::All).await.unwrap();
        vfs.sync_all().await.unwrap();
        (file, other)
    });
    bed.pass(Duration::from_secs(100));
    assert_eq!(bed.vfs.metrics().background_written_pages, 0);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        assert_eq!((below(&vfs, &file).await, vfs.dirty_pages()), (0, 2));
        file.sync(SyncKind::Data).await.unwrap();
        assert_eq!((below(&vfs, &file).await, vfs.dirty_pages()), (5000, 0));
        file.close().await.unwrap();
        other.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}

#[test]
fn everybody_reads_what_is_withheld() {
    scene(async |vfs| {
        let root = vfs.process(Creds::ROOT);
        let writer = open(&vfs, "/a").await;
        put(&writer, 0, &[1; 6000]).await;
        writer.sync(SyncKind::All).await.unwrap();
        let before = writer.attr().await.unwrap();
        vfs.compute(Duration::from_secs(1)).await;
        put(&writer, 4096, &[2; 4096]).await;
        put(&writer, 20_000, &[3; 10]).await;
        // By path, by number, by name in a directory, by another file, and past the cache.
        let direct = root.open("/a", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
        let sizes = [
            root.stat("/a", Follow::Yes).await.unwrap(),
            vfs.attr_of(writer.ino()).await.unwrap(),
            vfs.lookup_name(vfs.root(), b"a").await.unwrap(),
            direct.attr().await.unwrap(),
        ];
        for attr in sizes {
            assert_eq!((attr.size, attr.mtime > before.mtime), (20_010, true));
        }
        let mut bytes = vec![0; 20_480];
        assert_eq!(direct.pread(0, Sink::bytes(&mut bytes)).await, Ok(20_010));
        let mut expected = [vec![1; 4096], vec![2; 4096], vec![0; 20_000 - 8192], vec![3; 10]].concat();
        assert!(bytes[..20_010] == expected);
        assert_eq!(writer.seek(Seek::Hole(0)).await, Ok(8192));
        // A write past the cache, by a process that knows nothing of the set, belongs to it too.
        put(&direct, 0, &[4; 512]).await;
        expected[..512].fill(4);
        assert!(contents(&writer).await == expected);
        assert_eq!(below(&vfs, &writer).await, 6000);
        writer.abort().await.unwrap();
        assert!(contents(&writer).await == [1; 6000]);
        assert_eq!(root.stat("/a", Follow::Yes).await.unwrap().size, 6000);
        direct.close().await.unwrap();
        writer.close().await.unwrap();
    });
}

#[test]
fn a_last_close_keeps_what_is_withheld_and_an_unmount_loses_it() {
    let image = volume(64);
    for (round, expected) in [(1, 0), (2, 3000), (3, 3000)] {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let file = open(&vfs, "/a").await;
            assert_eq!(below(&vfs, &file).await, if round == 3 { 3000 } else { 0 });
            put(&file, 0, &[round; 3000]).await;
            file.close().await.unwrap();
            // Another process goes on with it, and may release it although it did not open the file as atomic.
            let file = plain(&vfs, "/a").await;
            assert!(contents(&file).await == [round; 3000]);
            put(&file, 0, &[9]).await;
            if round == 2 {
                file.sync(SyncKind::All).await.unwrap();
            }
            assert_eq!(below(&vfs, &file).await, expected);
            file.close().await.unwrap();
            vfs.unmount().await.unwrap();
        });
    }
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = plain(&vfs, "/a").await;
        assert!(contents(&file).await == [vec![9], vec![2; 2999]].concat());
        // Nothing of it is atomic any more.
        put(&file, 3000, &[7]).await;
        assert_eq!(below(&vfs, &file).await, 3001);
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}

#[test]
fn names_go_and_change_while_pages_are_withheld() {
    scene(async |vfs| {
        let root = vfs.process(Creds::ROOT);
        let free = vfs.statfs().await.unwrap().pages_free;
        let (a, b) = (open(&vfs, "/a").await, open(&vfs, "/b").await);
        put(&a, 0, &[1; 50_000]).await;
        put(&b, 0, &[2; 50_000]).await;
        root.rename("/a", "/c", RenameMode::Replace).await.unwrap();
        root.unlink("/b").await.unwrap();
        assert!(contents(&b).await == [2; 50_000]);
        vfs.syncv(&[&b, &a, &a], SyncKind::All).await.unwrap();
        assert_eq!(root.stat("/c", Follow::Yes).await.unwrap().size, 50_000);
        put(&b, 0, &[3; 90_000]).await;
        b.close().await.unwrap();
        // A file is replaced while its pages wait, and nobody has it open.
        put(&a, 0, &[4; 90_000]).await;
        a.close().await.unwrap();
        plain(&vfs, "/d").await.close().await.unwrap();
        root.rename("/d", "/c", RenameMode::Replace).await.unwrap();
        assert_eq!(vfs.dirty_pages(), 0);
        root.unlink("/c").await.unwrap();
        vfs.sync_all().await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().pages_free, free);
    });
}

#[test]
fn times_that_are_set_stay() {
    scene(async |vfs| {
        let file = open(&vfs, "/a").await;
        put(&file, 0, &[1; 100]).await;
        let at = Timestamp { seconds: 1234, nanos: 0 };
        vfs.set_times(&Creds::ROOT, file.ino(), SetTime::Omit, SetTime::At(at)).await.unwrap();
        assert_eq!(file.attr().await.unwrap().mtime, at);
        file.sync(SyncKind::All).await.unwrap();
        assert_eq!(file.attr().await.unwrap().mtime, at);
        file.close().await.unwrap();
    });
}

#[test]
fn a_set_that_is_too_large_changes_nothing() {
    scene(async |vfs| {
        // The journal of this volume has 1,024 blocks; a transaction takes a quarter of them, with metadata and another operation.
        let (a, b) = (open(&vfs, "/a").await, open(&vfs, "/b").await);
        put(&a, 0, &vec![1; 140 << 12]).await;
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        put(&a, 0, &vec![2; 100 << 12]).await;
        put(&b, 0, &vec![3; 100 << 12]).await;
        let full = vfs.dirty_pages();
        for _ in 0..2 {
            assert_eq!(vfs.syncv(&[&a, &b], SyncKind::All).await, Err(Errno::EFBIG));
            assert_eq!((vfs.dirty_pages(), below(&vfs, &b).await), (full, 0));
        }
        assert!(contents(&b).await == vec![3; 100 << 12]);
        // Half of it is small enough.
        b.abort().await.unwrap();
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        assert_eq!((vfs.dirty_pages(), b.size()), (0, 0));
        assert!(contents(&a).await == [vec![2; 100 << 12], vec![1; 40 << 12]].concat());
        a.close().await.unwrap();
        b.close().await.unwrap();
    });
}

#[test]
fn a_set_without_room_changes_nothing() {
    scene(async |vfs| {
        let (a, b, filler) = (open(&vfs, "/a").await, open(&vfs, "/b").await, plain(&vfs, "/f").await);
        put(&a, 0, &[1; 8192]).await;
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        let mut at = 0;
        while filler.pwrite(at, Source::pattern(1, PAGE)).await.is_ok() {
            at += PAGE;
        }
        filler.sync(SyncKind::All).await.unwrap();
        put(&a, 0, &[2; 8192]).await;
        put(&b, 0, &[2; 50 << 12]).await;
        assert_eq!(vfs.syncv(&[&a, &b], SyncKind::All).await, Err(Errno::ENOSPC));
        assert_eq!((vfs.dirty_pages(), below(&vfs, &b).await), (52, 0));
        // What was claimed in vain is free again.
        filler.truncate(at - 20 * PAGE).await.unwrap();
        filler.sync(SyncKind::All).await.unwrap();
        assert_eq!(vfs.syncv(&[&a, &b], SyncKind::All).await, Err(Errno::ENOSPC));
        for more in 0..10 {
            put(&filler, at - (20 - more) * PAGE, &[5; PAGE as usize]).await;
        }
        filler.truncate(PAGE).await.unwrap();
        vfs.syncv(&[&a, &b], SyncKind::All).await.unwrap();
        assert!(contents(&b).await == [2; 50 << 12]);
        for file in [a, b, filler] {
            file.close().await.unwrap();
        }
    });
}

#[test]
fn memory_that_is_full_of_withheld_pages_is_an_error_and_not_a_wait() {
    let image = volume(64);
    let fs = block_on(Ext4::mount_with(Rc::clone(&image) as _, options())).unwrap();
    let mut bed = Bed::mount(MountOptions { cache: cache_of(64), ..MountOptions::default() }, |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let (file, other) = (open(&vfs, "/a").await, plain(&vfs, "/b").await);
        put(&file, 0, &[1; 40 << 12]).await;
        assert_eq!(file.pwrite(40 << 12, Source::pattern(1, 40 << 12)).await, Err(Errno::ENOMEM));
        put(&file, 40 << 12, &[1; 8 << 12]).await;
        assert_eq!(file.pwrite(48 << 12, Source::pattern(1, 1)).await, Err(Errno::ENOMEM));
        // Pages that are withheld already can change, and other files go on.
        put(&file, 0, &[2; 48 << 12]).await;
        put(&other, 0, &[3; 100 << 12]).await;
        assert!(contents(&other).await == [3; 100 << 12] && contents(&file).await == [2; 48 << 12]);
        file.sync(SyncKind::All).await.unwrap();
        put(&file, 48 << 12, &[4; 1]).await;
        file.close().await.unwrap();
        other.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}

/// What a file has to be: in the file system, and for its readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) below: Vec<u8>,
    pub(crate) seen: Vec<u8>,
}

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.seen.resize(self.seen.len().max(at + bytes.len()), 0);
        self.seen[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// One random change of one of the files, or a sync of some of them. Without `cuts` no file becomes shorter than the file system has it.
pub(crate) async fn change<F: Fs>(
    vfs: &Vfs<F>,
    files: &[File<F>],
    models: &mut [Model],
    random: &mut RandomStream,
    cuts: bool,
) -> bool {
    let which = random.below(3) as usize;
    let (file, model) = (&files[which], &mut models[which]);
    let most = if random.chance(0.2) { 30_000 } else { 600 };
    let (at, count) = (random.below(60_000), 1 + random.below(most));
    match random.below(12) {
        0 if cuts => {
            file.truncate(at).await.unwrap();
            model.seen.resize(at as usize, 0);
            model.below.truncate(at as usize);
        }
        1 => {
            let longer = at.max(model.below.len() as u64);
            file.truncate(longer).await.unwrap();
            model.seen.resize(longer as usize, 0);
        }
        2 => {
            file.punch_hole(at, count).await.unwrap();
            let end = model.seen.len().min((at + count) as usize);
            model.seen.get_mut(at as usize..end).into_iter().for_each(|part| part.fill(0));
        }
        3 => {
            let keep_size = random.chance(0.5);
            file.allocate(at, count, keep_size).await.unwrap();
            if !keep_size {
                model.seen.resize(model.seen.len().max((at + count) as usize), 0);
            }
        }
        4 => {
            file.abort().await.unwrap();
            model.seen.clone_from(&model.below);
        }
        5 => {
            let chosen: Vec<usize> = (0..3).filter(|_| random.chance(0.7)).collect();
            let set: Vec<_> = chosen.iter().map(|&which| &files[which]).collect();
            let kind = if random.chance(0.5) { SyncKind::All } else { SyncKind::Data };
            vfs.syncv(&set, kind).await.unwrap();
            chosen.iter().for_each(|&which| models[which].below = models[which].seen.clone());
            return true;
        }
        6 => {
            file.sync(SyncKind::Data).await.unwrap();
            model.below.clone_from(&model.seen);
            return true;
        }
        7 => vfs.sync_all().await.unwrap(),
        _ => {
            let bytes: Vec<u8> = (0..count).map(|_| 1 + random.below(250) as u8).collect();
            put(file, at, &bytes).await;
            model.write(at as usize, &bytes);
        }
    }
    false
}
