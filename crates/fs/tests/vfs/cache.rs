//! The page cache: what is read, what stays, what is read ahead.

use crate::bed::{Bed, cache_of};
use flashweir_core::{Duration, Payload};
use flashweir_fs::memfs::{Faults, MemFs};
use flashweir_fs::vfs::*;

const PAGE: u64 = 4096;
const MS: Duration = Duration::from_millis(1);

async fn file_of(vfs: &Vfs<MemFs>, name: &str, pages: u64) -> File<MemFs> {
    let root = vfs.process(Creds::ROOT);
    let file = root.open(name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
    if pages > 0 {
        // Past the cache, so that nothing of it is in memory.
        let direct = root.open(name, OpenFlags::WRITE.direct(), 0).await.unwrap();
        assert_eq!(direct.write(Source::pattern(1, pages * PAGE)).await, Ok(pages * PAGE));
        direct.close().await.unwrap();
    }
    file
}

async fn read_page(file: &File<MemFs>, page: u64) {
    assert_eq!(file.pread(page * PAGE, Sink::nowhere(PAGE)).await, Ok(PAGE));
}

#[test]
fn a_page_is_read_once() {
    let mut bed = Bed::small(MS, CacheConfig { readahead_pages: 0, ..cache_of(100) });
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = file_of(&vfs, "/f", 50).await;
        for _ in 0..3 {
            for page in [7, 3, 9] {
                read_page(&file, page).await;
            }
        }
        assert_eq!(vfs.fs().counts().read_pages, 3);
        let metrics = vfs.metrics();
        assert_eq!((metrics.read_miss_pages, metrics.read_hit_pages), (3, 6));
        // A page that is overwritten as a whole is not read, nor one beyond the end.
        file.pwrite(20 * PAGE, Source::pattern(2, PAGE)).await.unwrap();
        file.pwrite(60 * PAGE + 5, Source::bytes(b"x")).await.unwrap();
        assert_eq!(vfs.fs().counts().read_pages, 3);
        // One that is overwritten in part is.
        file.pwrite(21 * PAGE + 5, Source::bytes(b"x")).await.unwrap();
        assert_eq!(vfs.fs().counts().read_pages, 4);
        // A closed file stays in memory.
        file.close().await.unwrap();
        let file = file_of(&vfs, "/f", 0).await;
        read_page(&file, 7).await;
        assert_eq!(vfs.fs().counts().read_pages, 4);
        file.close().await.unwrap();
    });
}

#[test]
fn two_readers_of_a_page_read_it_once() {
    let mut bed = Bed::small(MS, CacheConfig { readahead_pages: 0, ..cache_of(100) });
    let vfs = bed.vfs.clone();
    let file = bed.run(async move { file_of(&vfs, "/f", 50).await });
    for _ in 0..5 {
        let vfs = bed.vfs.clone();
        bed.executor.spawn(async move {
            let file = file_of(&vfs, "/f", 0).await;
            read_page(&file, 5).await;
            file.close().await.unwrap();
        });
    }
    bed.pass(MS * 20);
    assert_eq!(bed.vfs.fs().counts().read_pages, 1);
    drop(file);
}

#[test]
fn the_cache_keeps_its_size_and_forgets_closed_files() {
    let mut bed = Bed::small(Duration::ZERO, cache_of(64));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        for name in 0..50 {
            let file = file_of(&vfs, &format!("/{name}"), 20).await;
            for page in 0..20 {
                read_page(&file, page).await;
            }
            file.close().await.unwrap();
            assert!(vfs.cached_pages() <= 64);
        }
        assert_eq!(vfs.cached_pages(), 64);
        assert_eq!(vfs.metrics().evicted_pages, 50 * 20 - 64);
    });
    // Tasks that read ahead have used the files until now.
    bed.pass(MS);
    let text = format!("{:?}", bed.vfs);
    let inodes: u32 = text.split("inodes: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert_eq!(inodes, 4, "64 pages of files of 20: {text}");
}

#[test]
fn hot_pages_survive_a_scan() {
    let mut bed = Bed::small(Duration::ZERO, CacheConfig { readahead_pages: 0, ..cache_of(64) });
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let hot = file_of(&vfs, "/hot", 8).await;
        let cold = file_of(&vfs, "/cold", 1000).await;
        for page in 0..1000 {
            read_page(&cold, page).await;
            read_page(&hot, page % 8).await;
        }
        assert_eq!(vfs.fs().counts().read_pages, 1008);
        hot.close().await.unwrap();
        cold.close().await.unwrap();
    });
}

#[test]
fn a_sequential_reader_finds_its_pages_and_a_random_one_reads_no_more() {
    let mut bed = Bed::small(MS, CacheConfig { readahead_pages: 32, ..cache_of(1000) });
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = file_of(&vfs, "/f", 400).await;
        let begun = handle.now();
        for page in 0..400 {
            read_page(&file, page).await;
            // The reader takes as long for a page as the disk.
            handle.sleep_until(handle.now() + MS).await;
        }
        let counts = vfs.fs().counts();
        assert_eq!(counts.read_pages, 400);
        assert!(counts.reads <= 20, "{counts:?}");
        let took = handle.now().since(begun);
        assert!(took <= MS * 440, "reading and using overlap: {took:?}");
        assert!(vfs.metrics().readahead_pages >= 380, "{:?}", vfs.metrics());
        file.close().await.unwrap();

        let file = file_of(&vfs, "/g", 400).await;
        let before = vfs.fs().counts().read_pages;
        for page in [200, 100, 300, 17, 250] {
            read_page(&file, page).await;
        }
        assert_eq!(vfs.fs().counts().read_pages - before, 5);
        file.close().await.unwrap();
    });
}

#[test]
fn a_failed_read_is_told_and_leaves_nothing_behind() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = file_of(&vfs, "/f", 50).await;
        vfs.fs().set_faults(Faults { reads: Some(Errno::EIO), ..Faults::default() });
        assert_eq!(file.pread(0, Sink::nowhere(PAGE)).await, Err(Errno::EIO));
        assert_eq!(file.pwrite(5, Source::bytes(b"part of a page")).await, Err(Errno::EIO));
        assert_eq!(file.truncate(5).await, Err(Errno::EIO));
        assert_eq!(file.size(), 50 * PAGE);
        assert_eq!((vfs.cached_pages(), vfs.dirty_pages()), (0, 0));
        vfs.fs().set_faults(Faults::default());
        read_page(&file, 0).await;
        // What is in memory is still given when the disk fails behind it: a short read.
        vfs.fs().set_faults(Faults { reads: Some(Errno::EIO), ..Faults::default() });
        let pages = vfs.cached_pages();
        assert_eq!(file.pread(0, Sink::nowhere(50 * PAGE)).await, Ok(pages * PAGE));
        file.close().await.unwrap();
    });
}

/// A power cut can leave bytes behind the end of a file: a shorter size got to the disk before the page that was cut off
/// in the middle. They never show, whatever makes the file longer.
#[test]
fn bytes_behind_the_end_never_show() {
    const SIZE: u64 = 2 * PAGE + 100;
    for way in 0..5 {
        for reads_first in [false, true] {
            let mut bed = Bed::small(MS, CacheConfig { readahead_pages: 0, ..cache_of(32) });
            let vfs = bed.vfs.clone();
            bed.run(async move {
                let file = file_of(&vfs, "/f", 3).await;
                file.close().await.unwrap();
                let ino = vfs.process(Creds::ROOT).stat("/f", Follow::Yes).await.unwrap().ino;
                vfs.fs().setattr(ino, &SetAttr { size: Some(SIZE), ..SetAttr::default() }).await.unwrap();
                let file = file_of(&vfs, "/f", 0).await;
                assert_eq!(file.size(), SIZE);
                if reads_first {
                    read_to_end(&file, 2 * PAGE, 100).await;
                }
                match way {
                    0 => file.truncate(2 * PAGE + 200).await.unwrap(),
                    1 => file.truncate(10 * PAGE).await.unwrap(),
                    2 => drop(file.pwrite(3 * PAGE, Source::zeros(1)).await.unwrap()),
                    3 => file.allocate(0, 5 * PAGE, false).await.unwrap(),
                    _ => {
                        let direct = vfs.process(Creds::ROOT).open("/f", OpenFlags::WRITE.direct(), 0).await;
                        assert_eq!(direct.unwrap().pwrite(3 * PAGE, Source::zeros(PAGE)).await, Ok(PAGE));
                    }
                }
                // Everything leaves memory.
                vfs.sync_all().await.unwrap();
                let other = file_of(&vfs, "/other", 40).await;
                for page in 0..40 {
                    read_page(&other, page).await;
                }
                let tail = read_to_end(&file, SIZE, 10 * PAGE).await;
                assert!(!tail.is_empty() && tail.iter().all(|&byte| byte == 0), "way {way}");
                other.close().await.unwrap();
                file.close().await.unwrap();
            });
        }
    }
}

/// They are gone from the disk before the file grows, not only from memory: the length may get there, and the page not. A direct write once made
/// the file longer while the page waited, changed in memory; and an append began in that page.
#[test]
fn regression_bytes_behind_the_end_leave_the_disk_before_the_file_grows() {
    const SIZE: u64 = 2 * PAGE + 100;
    for way in 0..4 {
        let mut bed = Bed::small(MS, CacheConfig { readahead_pages: 0, ..cache_of(32) });
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let file = file_of(&vfs, "/f", 3).await;
            file.close().await.unwrap();
            let root = vfs.process(Creds::ROOT);
            let ino = root.stat("/f", Follow::Yes).await.unwrap().ino;
            vfs.fs().setattr(ino, &SetAttr { size: Some(SIZE), ..SetAttr::default() }).await.unwrap();
            let file = file_of(&vfs, "/f", 0).await;
            match way {
                0 => drop(file.pwrite(SIZE, Source::bytes(b"appended")).await.unwrap()),
                1 => drop(file.pwrite(2 * PAGE, Source::pattern(7, 2 * PAGE)).await.unwrap()),
                _ => {
                    file.pwrite(2 * PAGE + 50, Source::bytes(b"dirty")).await.unwrap();
                    let direct = root.open("/f", OpenFlags::WRITE.direct(), 0).await.unwrap();
                    let at = if way == 2 { 3 } else { 9 } * PAGE;
                    assert_eq!(direct.pwrite(at, Source::pattern(7, PAGE)).await, Ok(PAGE));
                    direct.close().await.unwrap();
                }
            }
            let mut page = [Payload::Zero];
            vfs.fs().read_pages(ino, 2, &mut page).await.unwrap();
            let mut bytes = vec![1; PAGE as usize];
            page[0].expand(&mut bytes);
            assert!(bytes[100..].iter().all(|&byte| byte == 0), "way {way}");
            file.close().await.unwrap();
        });
    }
}

async fn read_to_end(file: &File<MemFs>, at: u64, len_max: u64) -> Vec<u8> {
    let mut bytes = vec![1; len_max as usize];
    let read = file.pread(at, Sink::bytes(&mut bytes)).await.unwrap();
    bytes.truncate(read as usize);
    bytes
}

/// Synthetic contents stay eight bytes a page, all the way.
#[test]
fn patterns_are_never_expanded() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = file_of(&vfs, "/f", 0).await;
        file.pwrite(0, Source::pattern(9, 3 * PAGE)).await.unwrap();
        file.pwrite(5 * PAGE, Source::zeros(PAGE)).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        let mut pages = vec![Payload::Zero; 6];
        vfs.fs().read_pages(file.ino(), 0, &mut pages).await.unwrap();
        assert!(pages[..3].iter().all(|page| matches!(page, Payload::Tag(_))), "{pages:?}");
        assert_eq!(pages[3..], [Payload::Zero, Payload::Zero, Payload::Zero]);
        assert_eq!(file.attr().await.unwrap().blocks_512, 32, "a hole takes no room");
        file.close().await.unwrap();
    });
}

#[test]
fn direct_io_and_the_cache_agree() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = file_of(&vfs, "/f", 20).await;
        let direct = vfs.process(Creds::ROOT).open("/f", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
        let first_of = async |file: &File<MemFs>| {
            let mut pages = Vec::new();
            file.pread(0, Sink::payloads(PAGE, &mut pages)).await.unwrap();
            pages.remove(0)
        };
        let written = first_of(&file).await;
        assert_eq!(first_of(&direct).await, written);
        // Dirty pages are written before direct reads.
        file.pwrite(0, Source::pattern(2, PAGE)).await.unwrap();
        let newer = first_of(&direct).await;
        assert_ne!(newer, written);
        assert_eq!(vfs.dirty_pages(), 0);
        // Direct writes take pages out of the cache.
        direct.pwrite(0, Source::pattern(3, PAGE)).await.unwrap();
        let newest = first_of(&file).await;
        assert_ne!(newest, newer);
        assert_eq!(first_of(&direct).await, newest);
        file.close().await.unwrap();
        direct.close().await.unwrap();
    });
}

/// Direct overwrites of one file are under way side by side; those that make it longer are not.
#[test]
fn direct_writes_within_a_file_overlap_in_time() {
    for (first_page, at_once) in [(0, 4), (100, 1)] {
        let mut bed = Bed::small(MS, cache_of(100));
        let vfs = bed.vfs.clone();
        let file = bed.run(async move { file_of(&vfs, "/f", 50).await });
        for task in 0..4 {
            let vfs = bed.vfs.clone();
            bed.executor.spawn(async move {
                let flags = OpenFlags::READ_WRITE.direct();
                let file = vfs.process(Creds::ROOT).open("/f", flags, 0).await.unwrap();
                file.pwrite((first_page + task) * PAGE, Source::pattern(task, PAGE)).await.unwrap();
                file.close().await.unwrap();
            });
        }
        bed.executor.run_ready(bed.now());
        assert_eq!(bed.vfs.fs().pages_under_way(), at_once);
        bed.pass(MS * 10);
        assert_eq!(bed.vfs.metrics().direct_written_pages, 54);
        assert_eq!(bed.vfs.fs().pages_under_way(), 0);
        drop(file);
    }
}

/// Direct writes of parts of one page go through the cache. Two at once dropped the page with what the other had written.
#[test]
fn regression_direct_writes_of_sectors_of_a_page_are_all_there() {
    for gap_us in [0, 100, 300, 900] {
        let mut bed = Bed::small(MS, cache_of(100));
        let vfs = bed.vfs.clone();
        let file = bed.run(async move { file_of(&vfs, "/f", 4).await });
        for task in 0..8u64 {
            let vfs = bed.vfs.clone();
            bed.executor.spawn(async move {
                let flags = OpenFlags::READ_WRITE.direct();
                let file = vfs.process(Creds::ROOT).open("/f", flags, 0).await.unwrap();
                file.pwrite(512 * task, Source::bytes(&[1 + task as u8; 512])).await.unwrap();
                file.close().await.unwrap();
            });
            bed.pass(Duration::from_micros(gap_us));
        }
        bed.pass(MS * 50);
        let sectors = bed.run(async move {
            let mut bytes = vec![0; 4096];
            file.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
            file.close().await.unwrap();
            bytes.chunks(512).map(|sector| sector[0]).collect::<Vec<u8>>()
        });
        assert_eq!(sectors, [1, 2, 3, 4, 5, 6, 7, 8], "{gap_us} µs apart");
    }
}

/// Direct I/O to the same page waits, by any task.
#[test]
fn direct_writes_of_a_page_wait_for_each_other() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    let file = bed.run(async move { file_of(&vfs, "/f", 50).await });
    let begun = bed.now();
    for task in 0..4 {
        let vfs = bed.vfs.clone();
        bed.executor.spawn(async move {
            let direct =
                vfs.process(Creds::ROOT).open("/f", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
            let buffered = file_of(&vfs, "/f", 0).await;
            if task == 3 {
                read_page(&buffered, 7).await;
            } else {
                direct.pwrite(7 * PAGE, Source::pattern(task, PAGE)).await.unwrap();
            }
            direct.close().await.unwrap();
            buffered.close().await.unwrap();
        });
    }
    // The file system asserts that no page is in two writes, or read while it is written.
    while bed.vfs.metrics().read_miss_pages == 0 || bed.vfs.metrics().direct_written_pages < 53 {
        bed.pass(MS);
    }
    assert!(bed.now().since(begun) >= MS * 4);
    drop(file);
}
