//! The table between the kernel's numbers and the vfs.

use super::*;
use flashweir_core::Bytes;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::f2fs::{self, F2fs};
use flashweir_fs::port::BlockPort as _;
use flashweir_fs::vfs::MountOptions;
use flashweir_sim::stack::{FlushMode, Stack};
use std::task::Poll;

const ROOT: NodeId = NodeId::ROOT;
const CALLER: Creds = Creds::checked(7, 8);
const WRITES: How = How { reads: true, writes: true, direct: false };

fn stack() -> Stack {
    stack_of(0)
}

/// A device with SHARE for so many pages.
fn stack_of(share_pages: u32) -> Stack {
    let mut config = preset("mobile-ufs").unwrap();
    config.ftl.share.pages = share_pages;
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 2;
    config.geometry.blocks_per_plane = 128;
    config.ftl.over_provisioning = 0.3;
    config.buffer.capacity = Bytes::mib(4);
    config.validate().unwrap();
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    Stack::new(Device::new(config, options), FlushMode::Flush)
}

/// Mounts what is on the stack, or what is made on it.
async fn mounted(
    port: Port,
    handle: flashweir_core::executor::Handle,
    told: Option<(BTreeMap<u64, Told>, u64)>,
) -> Table<F2fs> {
    let cuts = u32::from(told.is_some());
    let (told, next_file) = match told {
        Some(told) => told,
        None => {
            f2fs::mkfs(&port, &f2fs::Options::new(port.capacity_blocks())).await.unwrap();
            (BTreeMap::new(), 1)
        }
    };
    let fs = F2fs::mount(Rc::new(port.clone())).await.unwrap();
    let vfs = Vfs::mount(fs, handle, MountOptions::default()).unwrap();
    Table::new(vfs, port, told, next_file, cuts).await.unwrap()
}

#[test]
fn an_inode_stays_until_the_kernel_has_forgotten_it_as_often_as_it_was_told() {
    let mut stack = stack();
    let (port, handle) = (stack.port(), stack.handle());
    let done = stack.block_on(async move {
        let table = mounted(port, handle, None).await;
        let (attr, file) = table.create(&CALLER, ROOT, b"file", 0o600, (true, WRITES)).await.unwrap();
        let number = table.number(attr.ino);
        table.lookup(ROOT, b"file").await.unwrap();
        table.write(file, 0, b"content", From::Program, false).await.unwrap();
        table.remove(&CALLER, ROOT, b"file", false).await.unwrap();
        assert_eq!(table.lookup(ROOT, b"file").await, Err(Errno::ENOENT));
        table.release(file).await;
        table.forget(vec![(number.0, 1)]).await;
        assert_eq!(table.attr(number).await.map(|attr| (attr.links, attr.size)), Ok((0, 7)));
        // An open file needs no name.
        let again = table.open(number, WRITES).await.unwrap();
        assert_ne!(again, file);
        table.release(again).await;
        table.forget(vec![(number.0, 1)]).await;
        assert_eq!(table.attr(number).await, Err(Errno::ESTALE));
        assert_eq!(table.read(file, 0, &mut [0], false).await, Err(Errno::EIO));
        table.clear().await;
        table.vfs().unmount().await.unwrap();
    });
    assert_eq!(done, Some(()));
}

/// Runs a scene on a disk with SHARE: a table with a file of a thousand ones, and two open files of it.
fn with_file(scene: impl AsyncFnOnce(Table<F2fs>, NodeId, [u64; 2]) + 'static) {
    let mut stack = stack_of(1000);
    let (port, handle) = (stack.port(), stack.handle());
    let done = stack.block_on(async move {
        let table = mounted(port, handle, None).await;
        let (attr, file) = table.create(&CALLER, ROOT, b"file", 0o600, (true, WRITES)).await.unwrap();
        let number = table.number(attr.ino);
        let other = table.open(number, WRITES).await.unwrap();
        table.write(file, 0, &[1; 1000], From::Program, false).await.unwrap();
        table.sync(file, SyncKind::All).await.unwrap();
        scene(table, number, [file, other]).await;
    });
    assert_eq!(done, Some(()));
}

/// What readers see of the beginning, and the length that the file system has.
async fn seen(table: &Table<F2fs>, number: NodeId, file: u64) -> (u8, u64) {
    let mut bytes = [0];
    table.read(file, 0, &mut bytes, false).await.unwrap();
    (bytes[0], table.vfs().fs().getattr(table.ino(number).unwrap()).await.unwrap().size)
}

async fn put(table: &Table<F2fs>, file: u64, byte: u8, len: usize) {
    table.write(file, 0, &vec![byte; len], From::Program, false).await.unwrap();
}

#[test]
fn only_a_commit_releases_what_was_started() {
    with_file(async |table, number, [file, other]| {
        table.begin_atomic(file, Until::Commit).await.unwrap();
        put(&table, file, 2, 2000).await;
        for handle in [file, other] {
            table.sync(handle, SyncKind::All).await.unwrap();
            table.vfs().sync_all().await.unwrap();
            assert_eq!(seen(&table, number, handle).await, (2, 1000));
        }
        table.commit(file).await.unwrap();
        assert_eq!(seen(&table, number, other).await, (2, 2000));
        // The file is like others again.
        put(&table, other, 3, 100).await;
        table.sync(other, SyncKind::All).await.unwrap();
        assert_eq!(table.commit(file).await, Err(Errno::EINVAL));
        // Closing forgets.
        table.begin_atomic(file, Until::Commit).await.unwrap();
        put(&table, file, 4, 3000).await;
        table.release(file).await;
        assert_eq!(seen(&table, number, other).await, (3, 2000));
    });
}

#[test]
fn a_start_that_lost_a_write_cannot_commit() {
    with_file(async |table, number, [file, other]| {
        table.begin_atomic(file, Until::Commit).await.unwrap();
        put(&table, file, 2, 2000).await;
        // The kernel hands on what the program has written, through whichever open file.
        let lost = table.write(other, 1 << 60, &[2; 100], From::Pages, false).await;
        assert_eq!(lost.map(|(written, _)| written), Err(Errno::EFBIG));
        assert_eq!(table.commit(file).await, Err(Errno::EIO));
        assert_eq!(seen(&table, number, file).await, (1, 1000));
        table.begin_atomic(file, Until::Commit).await.unwrap();
        put(&table, file, 3, 2000).await;
        table.commit(file).await.unwrap();
        assert_eq!(seen(&table, number, file).await, (3, 2000));
        // After a cut of the power only the second half would be there.
        table.begin_atomic(file, Until::Commit).await.unwrap();
        let files = table.open_files();
        table.release(file).await;
        table.release(other).await;
        table.reopen(files).await;
        put(&table, file, 4, 2000).await;
        assert_eq!(table.commit(file).await, Err(Errno::EIO));
    });
}

#[test]
fn each_change_of_a_file_with_sets_of_one_write_is_released() {
    with_file(async |table, number, [file, other]| {
        table.begin_atomic(file, Until::Written).await.unwrap();
        put(&table, other, 2, 2000).await;
        assert_eq!(seen(&table, number, file).await, (2, 2000));
        let longer = SetAttr { size: Some(3000), ..SetAttr::default() };
        table.set_attr(number, longer, SetTime::Omit, SetTime::Omit).await.unwrap();
        assert_eq!(seen(&table, number, file).await, (2, 3000));
        table.allocate(other, (0, 4000), Room::Reserved { keep_size: false }, false).await.unwrap();
        assert_eq!(seen(&table, number, file).await, (2, 4000));
        table.release(file).await;
        put(&table, other, 3, 5000).await;
        table.sync(other, SyncKind::All).await.unwrap();
        assert_eq!(seen(&table, number, other).await, (3, 5000));
    });
}

/// Writes that come at once are one set after the other: together they are larger than a set. One that is refused is forgotten; it stayed,
/// and every later one was refused with it.
#[test]
fn regression_sets_of_one_write_do_not_add_up() {
    with_file(async |table, number, [file, other]| {
        table.begin_atomic(file, Until::Written).await.unwrap();
        let most = table.set_bytes_max(0);
        let written = table.write(file, 0, &vec![2; most + 5000], From::Program, false).await.unwrap().0;
        assert_eq!(written as usize, most, "as `write` may do");
        let large = vec![3; most / 2 + 4096];
        let mut writes: Vec<_> = [file, other, file]
            .into_iter()
            .map(|handle| Box::pin(table.write(handle, 0, &large, From::Direct, false)))
            .collect();
        std::future::poll_fn(|context| {
            writes.retain_mut(|write| match write.as_mut().poll(context) {
                Poll::Ready(written) => {
                    assert_eq!(written.unwrap().0 as usize, large.len());
                    false
                }
                Poll::Pending => true,
            });
            if writes.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(writes);
        assert_eq!(seen(&table, number, other).await, (3, most as u64));
        table.write(file, most as u64, &large, From::Program, false).await.unwrap();
        let size = (most + large.len()) as u64;
        let refused = table.allocate(other, (0, size), Room::Zeros { keep_size: false }, false).await;
        assert_eq!(refused.map(drop), Err(Errno::EFBIG));
        assert_eq!(seen(&table, number, file).await, (3, size));
        put(&table, other, 4, 100).await;
        table.sync(other, SyncKind::All).await.unwrap();
        assert_eq!(seen(&table, number, file).await, (4, size));
    });
}

/// Linux reads no count for pages of its own: after a part of them the rest was lost, and fsync said nothing.
#[test]
fn regression_pages_that_find_no_room_are_an_error() {
    with_file(async |table, number, [file, other]| {
        let large = vec![7; 1 << 20];
        let fill = async |from| {
            let mut at = 0;
            while let Ok((count, _)) = table.write(file, at, &large, from, false).await
                && count > 0
            {
                at += u64::from(count);
            }
            at
        };
        // So much is left that a part of a request fits.
        let full = fill(From::Program).await;
        let changes = SetAttr { size: Some(full - 300_000), ..SetAttr::default() };
        table.set_attr(number, changes, SetTime::Omit, SetTime::Omit).await.unwrap();
        table.vfs().sync_all().await.unwrap();
        table.vfs().sync_all().await.unwrap();
        let at = full.next_multiple_of(PAGE) - 303_104;
        assert_eq!(table.write(other, at, &large, From::Pages, false).await.map(drop), Err(Errno::ENOSPC));
        let (_, size) = seen(&table, number, other).await;
        assert!(size > at && size < at + (1 << 20), "a part of it fits");
    });
}

/// A power cut takes what a file withholds; what is written after it is only a part of a set. It was released as one.
#[test]
fn regression_a_set_that_spans_a_cut_is_not_released() {
    with_file(async |table, number, [file, other]| {
        for round in 0..2 {
            table.begin_atomic(file, Until::Close).await.unwrap();
            put(&table, file, 2, 2000).await;
            let files = table.open_files();
            table.release(file).await;
            table.release(other).await;
            table.reopen(files).await;
            put(&table, file, 3, 100).await;
            let synced = match round {
                0 => table.sync(other, SyncKind::Data).await,
                _ => table.sync_set(&[number], SyncKind::Data).await,
            };
            assert_eq!(synced, Err(Errno::EIO));
            assert_eq!(seen(&table, number, other).await.1, 1000, "round {round}");
            assert_eq!(table.sync_set(&[number], SyncKind::Data).await, Ok(()));
        }
        assert_eq!(seen(&table, number, other).await, (1, 1000));
        put(&table, file, 4, 100).await;
        table.sync_set(&[number], SyncKind::Data).await.unwrap();
        assert_eq!(seen(&table, number, other).await, (4, 1000));
    });
}

#[test]
fn a_set_of_files_releases_nothing_of_what_another_program_has_started() {
    with_file(async |table, number, [file, other]| {
        table.begin_atomic(other, Until::Close).await.unwrap();
        table.begin_atomic(file, Until::Commit).await.unwrap();
        put(&table, file, 2, 2000).await;
        assert_eq!(table.sync_set(&[number], SyncKind::All).await, Err(Errno::EBUSY));
        assert_eq!(seen(&table, number, other).await, (2, 1000));
        table.abort(file).await.unwrap();
        assert_eq!(seen(&table, number, other).await, (1, 1000));
        table.sync_set(&[number], SyncKind::All).await.unwrap();
    });
}

#[test]
fn set_group_id_without_execution_by_the_group_stays() {
    let modes = [0o644, 0o4755, 0o2755, 0o6755, 0o2745, 0o6745];
    assert_eq!(modes.map(without_set_id), [0o644, 0o755, 0o755, 0o755, 0o2745, 0o2745]);
}

#[test]
fn a_listing_is_of_when_its_reading_began() {
    let mut stack = stack();
    let (port, handle) = (stack.port(), stack.handle());
    let done = stack.block_on(async move {
        let table = mounted(port, handle, None).await;
        for name in [b"a", b"b", b"c"] {
            table.make(&CALLER, ROOT, name, Kind::File, 0o600).await.unwrap();
        }
        let dir = table.open(ROOT, How { reads: true, writes: false, direct: false }).await.unwrap();
        let first = table.listing(dir, true).await.unwrap();
        assert_eq!(first.len(), 3);
        table.remove(&CALLER, ROOT, b"b", false).await.unwrap();
        assert_eq!(table.listing(dir, false).await.unwrap(), first);
        let gone = first.iter().find(|entry| &*entry.name == b"b").unwrap();
        assert_eq!(table.entry(ROOT, gone).await, Err(Errno::ENOENT));
        assert_eq!(table.listing(dir, true).await.unwrap().len(), 2);
        table.clear().await;
        table.vfs().unmount().await.unwrap();
    });
    assert_eq!(done, Some(()));
}

#[test]
fn names_are_those_under_which_the_kernel_was_told() {
    let mut stack = stack();
    let (port, handle) = (stack.port(), stack.handle());
    let done = stack.block_on(async move {
        let table = mounted(port, handle, None).await;
        let file = table.make(&CALLER, ROOT, b"file", Kind::File, 0o600).await.unwrap();
        let dir = table.make(&CALLER, ROOT, b"dir", Kind::Directory, 0o700).await.unwrap();
        let (number, dir) = (table.number(file.ino), table.number(dir.ino));
        let names = |of: NodeId| -> Vec<Name> { table.told().0[&of.0].names.iter().cloned().collect() };
        table.link(&CALLER, number, dir, b"second").await.unwrap();
        assert_eq!(names(number).len(), 2);
        table.rename(&CALLER, (ROOT, b"file"), (dir, b"third"), RenameMode::Replace).await.unwrap();
        assert_eq!(names(number), [(dir.0, b"second"[..].into()), (dir.0, b"third"[..].into())]);
        let other = table.make(&CALLER, ROOT, b"other", Kind::File, 0o600).await.unwrap();
        table.rename(&CALLER, (ROOT, b"other"), (dir, b"third"), RenameMode::Exchange).await.unwrap();
        assert_eq!(names(table.number(other.ino)), [(dir.0, b"third"[..].into())]);
        assert_eq!(names(number), [(1, b"other"[..].into()), (dir.0, b"second"[..].into())]);
    });
    assert_eq!(done, Some(()));
}

#[test]
fn after_a_cut_the_kernel_knows_what_was_synced_and_nothing_is_open() {
    let mut first = stack();
    let (port, handle) = (first.port(), first.handle());
    let told = first.block_on(async move {
        let table = mounted(port, handle, None).await;
        let (synced, file) = table.create(&CALLER, ROOT, b"synced", 0o600, (true, WRITES)).await.unwrap();
        table.sync(file, SyncKind::All).await.unwrap();
        let lost = table.make(&CALLER, ROOT, b"lost", Kind::File, 0o600).await.unwrap();
        let generation = table.generation(&synced);
        (table.told(), file, table.number(synced.ino), table.number(lost.ino), generation)
    });
    let (told, file, synced, lost, generation) = told.unwrap();
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    let (mut second, _) = first.cut(options, flashweir_sim::live::Tear::Likeliest);
    let (port, handle) = (second.port(), second.handle());
    let done = second.block_on(async move {
        let table = mounted(port, handle, Some(told)).await;
        assert_eq!(table.read(file, 0, &mut [0], false).await, Err(Errno::EIO));
        let attr = table.attr(synced).await.unwrap();
        assert_ne!(table.generation(&attr), generation, "who had it open would go on with it");
        assert_eq!(table.attr(lost).await, Err(Errno::ESTALE));
        let open = table.open(synced, WRITES).await.unwrap();
        assert!(open > file);
        // The number may be that of another file now.
        let new = table.make(&CALLER, ROOT, b"new", Kind::File, 0o600).await.unwrap();
        assert!(table.attr(table.number(new.ino)).await.is_ok());
        table.clear().await;
        table.vfs().unmount().await.unwrap();
    });
    assert_eq!(done, Some(()));
}

/// Runs two tasks side by side to their ends; the first one begins first.
async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (Box::pin(one), Box::pin(other));
    let mut done = [false; 2];
    std::future::poll_fn(|cx| {
        done[0] = done[0] || one.as_mut().poll(cx).is_ready();
        done[1] = done[1] || other.as_mut().poll(cx).is_ready();
        if done == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A process was killed in the middle of a write: the kernel closes its file while the write still waits for the device. What it had started
/// became durable with the next sync by anybody; and a file each of whose writes is a set of its own kept what others wrote later.
#[test]
fn regression_a_file_is_closed_when_its_last_task_ends() {
    for until in [Until::Commit, Until::Written] {
        with_file(async move |table, number, [file, other]| {
            table.begin_atomic(file, until).await.unwrap();
            if until == Until::Commit {
                put(&table, file, 2, 2000).await;
            }
            let write = async {
                // A part of a page behind the end of what is in memory, so that the device is asked for it.
                table.vfs().sync_all().await.unwrap();
                put(&table, file, 3, 500).await;
            };
            let held = table.file(file).unwrap();
            let write = async {
                write.await;
                drop(held);
            };
            both(write, table.release(file)).await;
            assert_eq!(table.read(file, 0, &mut [0], false).await, Err(Errno::EIO), "it is closed");
            assert!(!table.vfs().is_atomic(table.ino(number).unwrap()), "{until:?}");
            let left = if until == Until::Commit { 1 } else { 3 };
            assert_eq!(seen(&table, number, other).await, (left, 1000));
            // Others' writes are withheld no longer.
            put(&table, other, 4, 1000).await;
            table.vfs().sync_all().await.unwrap();
            assert!(!table.vfs().has_withheld(table.ino(number).unwrap()));
            assert_eq!(seen(&table, number, other).await, (4, 1000));
        });
    }
}

/// `lseek` on a fresh descriptor, or one that was opened again after a cut.
#[test]
fn a_listing_may_begin_anywhere() {
    let mut stack = stack();
    let (port, handle) = (stack.port(), stack.handle());
    let done = stack.block_on(async move {
        let table = mounted(port, handle, None).await;
        for name in [b"a", b"b", b"c"] {
            let (_, file) = table.create(&CALLER, ROOT, name, 0o600, (true, WRITES)).await.unwrap();
            table.release(file).await;
        }
        let dir = table.open(ROOT, How { writes: false, ..WRITES }).await.unwrap();
        assert_eq!(table.listing(dir, false).await.unwrap().len(), 3);
    });
    assert_eq!(done, Some(()));
}
