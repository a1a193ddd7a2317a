//! Files that are made without a name (`O_TMPFILE`).

use crate::bed::Bed;
use crate::disk::page;
use crate::each::*;
use flashweir_core::Duration;
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;
use std::cell::Cell;
use std::rc::Rc;

const RW: OpenFlags = OpenFlags::READ_WRITE;

async fn read<F: Fs>(vfs: &Vfs<F>, path: &str) -> Vec<u8> {
    let file = vfs.process(Creds::ROOT).open(path, OpenFlags::READ, 0).await.unwrap();
    let mut bytes = vec![0; file.size() as usize];
    file.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
    file.close().await.unwrap();
    bytes
}

async fn come_and_go<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    root.mkdir("/d", 0o755).await.unwrap();
    vfs.sync_all().await.unwrap();
    let before = vfs.statfs().await.unwrap();
    let dir_before = root.stat("/d", Follow::No).await.unwrap();
    let file = root.open_nameless("/d", RW, 0o666).await.unwrap();
    let attr = file.attr().await.unwrap();
    assert_eq!((attr.links, attr.mode, attr.kind), (0, 0o644, Kind::File));
    for at in 0..40 {
        file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
        if at == 20 {
            file.sync(SyncKind::All).await.unwrap();
        }
    }
    let mut bytes = [0; 4096];
    file.pread(39 * 4096, Sink::bytes(&mut bytes)).await.unwrap();
    assert_eq!(bytes, page(39, 1));
    file.truncate(30 * 4096).await.unwrap();
    file.sync(SyncKind::Data).await.unwrap();
    assert_eq!(root.list("/d").await.unwrap(), []);
    assert_eq!(root.stat("/d", Follow::No).await.unwrap(), dir_before, "the directory is as it was");
    let held = vfs.statfs().await.unwrap();
    assert_eq!(held.inodes_free + 1, before.inodes_free);
    assert!(held.pages_free + 30 <= before.pages_free);
    file.close().await.unwrap();
    vfs.sync_all().await.unwrap();
    assert_eq!(vfs.statfs().await.unwrap(), before, "all of it is free again");
}

async fn get_a_name<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    for dir in ["/d", "/e"] {
        root.mkdir(dir, 0o755).await.unwrap();
    }
    root.create("/d/there").await.unwrap().close().await.unwrap();
    let file = root.open_nameless("/d", RW, 0o600).await.unwrap();
    file.pwrite(0, Source::bytes(&page(0, 7))).await.unwrap();
    assert_eq!(root.link_inode(file.ino(), "/d/there").await, Err(Errno::EEXIST));
    // In any directory of the file system, and it is found at once.
    let attr = root.link_inode(file.ino(), "/e/name").await.unwrap();
    assert_eq!((attr.links, attr.ino), (1, file.ino()));
    assert_eq!(read(&vfs, "/e/name").await, page(0, 7));
    file.pwrite(4096, Source::bytes(&page(1, 7))).await.unwrap();
    assert_eq!(root.link("/e/name", "/d/second").await.unwrap().links, 2);
    file.close().await.unwrap();
    root.unlink("/e/name").await.unwrap();
    assert_eq!(root.stat("/d/second", Follow::No).await.unwrap().links, 1);
    assert_eq!(read(&vfs, "/d/second").await, [page(0, 7), page(1, 7)].concat());
    // One that had a name and lost it gets no other, as in Linux.
    let file = root.open_nameless("/d", RW, 0o600).await.unwrap();
    root.link_inode(file.ino(), "/e/name").await.unwrap();
    root.unlink("/e/name").await.unwrap();
    assert_eq!(root.link_inode(file.ino(), "/e/name").await, Err(Errno::ENOENT));
    file.close().await.unwrap();
    // What was synced without a name, linked and synced with it.
    let file = root.open_nameless("/", RW, 0o600).await.unwrap();
    file.pwrite(0, Source::bytes(&page(0, 8))).await.unwrap();
    file.sync(SyncKind::All).await.unwrap();
    root.link_inode(file.ino(), "/synced").await.unwrap();
    file.sync(SyncKind::All).await.unwrap();
    file.close().await.unwrap();
}

async fn be_refused<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    root.mkdir("/d", 0o755).await.unwrap();
    root.create("/f").await.unwrap().close().await.unwrap();
    let refused = async |dir: &str, flags, who: &Process<F>| who.open_nameless(dir, flags, 0o600).await.err();
    assert_eq!(refused("/d", OpenFlags::READ, &root).await, Some(Errno::EINVAL));
    assert_eq!(refused("/d", RW.create(), &root).await, Some(Errno::EINVAL));
    assert_eq!(refused("/f", RW, &root).await, Some(Errno::ENOTDIR));
    assert_eq!(refused("/nothing", RW, &root).await, Some(Errno::ENOENT));
    let user = vfs.process(Creds::user(1000, 1000));
    assert_eq!(refused("/d", RW, &user).await, Some(Errno::EACCES));
    // With `O_EXCL` it never gets a name.
    let exclusive = OpenFlags { exclusive: true, ..RW };
    let file = root.open_nameless("/d", exclusive, 0o600).await.unwrap();
    assert_eq!(root.link_inode(file.ino(), "/name").await, Err(Errno::ENOENT));
    let ino = file.ino();
    file.close().await.unwrap();
    // Nor does one that is closed.
    assert!(matches!(root.link_inode(ino, "/name").await, Err(Errno::ENOENT | Errno::ESTALE)));
    let umasked = root.with_umask(0o027).open_nameless("/d", RW, 0o777).await.unwrap();
    assert_eq!(umasked.attr().await.unwrap().mode, 0o750);
    umasked.close().await.unwrap();
}

#[test]
fn nameless_files_come_and_go() {
    on_each!(come_and_go);
}

#[test]
fn nameless_files_get_a_name() {
    on_each!(get_a_name);
}

#[test]
fn nameless_files_are_refused() {
    on_each!(be_refused);
}

/// One task closes the file while another links it: it has a name and all that was written, or it is gone.
#[test]
fn a_link_beside_the_last_close() {
    let (mut linked, mut gone) = (0, 0);
    for wait_us in 0..40 {
        let mut bed = Bed::with(MemFsConfig::default(), Duration::from_micros(3), MountOptions::default());
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        let result = Rc::new(Cell::new(None));
        let slot = Rc::clone(&result);
        bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            let file = root.open_nameless("/", RW, 0o600).await.unwrap();
            for at in 0..4 {
                file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
            }
            let ino = file.ino();
            let (linker, clock) = (root.clone(), handle.clone());
            let slot = Rc::clone(&slot);
            handle.spawn(async move {
                for _ in 0..wait_us {
                    clock.yield_now().await;
                }
                slot.set(Some(linker.link_inode(ino, "/name").await.map(|attr| attr.links)));
            });
            for _ in 0..20 {
                handle.yield_now().await;
            }
            file.close().await.unwrap();
            handle.sleep_until(handle.now() + Duration::from_millis(1)).await;
            vfs.unmount().await.unwrap();
        });
        let vfs = bed.vfs.clone();
        match result.get().expect("it was linked or not") {
            Ok(links) => {
                linked += 1;
                assert_eq!((links, vfs.fs().inodes(), vfs.fs().used_pages()), (1, 2, 4));
            }
            Err(errno) => {
                gone += 1;
                assert!(matches!(errno, Errno::ENOENT | Errno::ESTALE), "{errno}");
                assert_eq!((vfs.fs().inodes(), vfs.fs().used_pages()), (1, 0));
            }
        }
    }
    assert!(linked > 5 && gone > 5, "{linked} {gone}");
}

/// A volume that is not unmounted: files without names are freed by the next mount, those that got one are there.
#[test]
fn nameless_files_are_freed_by_recovery() {
    async fn leave<F: Fs>(vfs: Vfs<F>) -> StatFs {
        let root = vfs.process(Creds::ROOT);
        let before = vfs.statfs().await.unwrap();
        let named = root.open_nameless("/", RW, 0o600).await.unwrap();
        let nameless = root.open_nameless("/", RW, 0o600).await.unwrap();
        for file in [&named, &nameless] {
            for at in 0..30 {
                file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
            }
            file.sync(SyncKind::All).await.unwrap();
        }
        root.link_inode(named.ino(), "/name").await.unwrap();
        vfs.sync_all().await.unwrap();
        named.close().await.unwrap();
        std::mem::forget(nameless);
        before
    }
    async fn find<F: Fs>(vfs: Vfs<F>, before: StatFs) {
        let root = vfs.process(Creds::ROOT);
        assert_eq!(root.stat("/name", Follow::No).await.unwrap().links, 1);
        let expected: Vec<u8> = (0..30).flat_map(|at| page(at, 1)).collect();
        assert_eq!(read(&vfs, "/name").await, expected);
        root.unlink("/name").await.unwrap();
        vfs.sync_all().await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap(), before);
        vfs.unmount().await.unwrap();
    }
    let image = ext4_volume();
    let mut bed = ext4_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    let before = bed.run(leave(vfs));
    let mut bed = ext4_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    assert_eq!(vfs.fs().recovered().orphans, 1);
    bed.run(find(vfs, before));
    ext4_good(&image);
    let image = f2fs_volume();
    let mut bed = f2fs_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    let before = bed.run(leave(vfs));
    let mut bed = f2fs_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    assert_eq!(vfs.fs().recovered().orphans, 1);
    bed.run(find(vfs, before));
    f2fs_good(&image);
}
