//! Write-back in virtual time: when pages are written, how long writers wait, and which callers get errors.

use crate::bed::{Bed, cache_of};
use flashweir_core::{Duration, Instant};
use flashweir_fs::memfs::{Faults, MemFs};
use flashweir_fs::vfs::*;
use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;

const PAGE: u64 = 4096;
const MS: Duration = Duration::from_millis(1);

async fn open(vfs: &Vfs<MemFs>, name: &str) -> File<MemFs> {
    let flags = OpenFlags::READ_WRITE.create();
    vfs.process(Creds::ROOT).open(name, flags, 0o644).await.expect("the file can be opened")
}

fn fail_writes(vfs: &Vfs<MemFs>, errno: Option<Errno>) {
    vfs.fs().set_faults(Faults { writes: errno, ..Faults::default() });
}

#[test]
fn pages_are_written_when_they_are_old() {
    let mut bed = Bed::small(Duration::from_micros(10), cache_of(1000));
    let vfs = bed.vfs.clone();
    let file = bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, 10 * PAGE)).await.unwrap();
        file
    });
    bed.pass(Duration::from_secs(29));
    assert_eq!(bed.vfs.fs().counts().written_pages, 0);
    // Ages are looked at every 5 s.
    bed.pass(Duration::from_secs(7));
    assert_eq!(bed.vfs.fs().counts().written_pages, 10);
    assert_eq!((bed.vfs.dirty_pages(), bed.vfs.metrics().background_written_pages), (0, 10));
    assert_eq!(bed.vfs.fs().counts().writes, 3, "batches of four pages");
    drop(file);
}

#[test]
fn an_idle_mount_sets_no_timer() {
    let mut bed = Bed::small(Duration::from_micros(10), cache_of(100));
    bed.pass(MS);
    assert_eq!(bed.executor.next_timer(), None);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        file.close().await.unwrap();
    });
    assert!(bed.executor.next_timer().is_some());
    bed.pass(Duration::from_secs(40));
    assert_eq!((bed.executor.next_timer(), bed.vfs.dirty_pages()), (None, 0));
    // And again, also when another task has cleaned everything in between.
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        file.close().await.unwrap();
    });
    bed.pass(Duration::from_secs(40));
    assert_eq!((bed.executor.next_timer(), bed.vfs.dirty_pages()), (None, 0));
    let vfs = bed.vfs.clone();
    bed.run(async move { vfs.unmount().await.unwrap() });
    assert!(bed.executor.is_empty(), "write-back goes on after the unmount");
}

#[test]
fn a_mount_that_is_dropped_leaves_no_task() {
    let mut bed = Bed::new();
    bed.pass(MS);
    let Bed { mut executor, vfs, .. } = bed;
    assert_eq!(executor.len(), 1);
    drop(vfs);
    executor.run_ready(Instant::ZERO + MS);
    assert!(executor.is_empty());
}

#[test]
fn many_pages_are_written_at_once() {
    let mut bed = Bed::small(Duration::from_micros(10), cache_of(100));
    let vfs = bed.vfs.clone();
    let file = bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, 50 * PAGE)).await.unwrap();
        file
    });
    bed.pass(Duration::from_secs(1));
    assert_eq!(bed.vfs.fs().counts().written_pages, 0, "50 pages are not above the background limit");
    bed.run(async move {
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        file.close().await.unwrap();
    });
    bed.pass(Duration::from_secs(1));
    assert!(bed.vfs.dirty_pages() <= 50, "{} pages are dirty", bed.vfs.dirty_pages());
    assert!(bed.vfs.fs().counts().written_pages >= 1);
}

/// A writer that is faster than the disk gets to the hard limit and from there on goes at the disk's pace.
#[test]
fn writers_wait_at_the_hard_limit() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    let highest = Rc::new(Cell::new(0));
    let seen = Rc::clone(&highest);
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        for _ in 0..1000 {
            file.write(Source::pattern(1, PAGE)).await.unwrap();
            seen.set(seen.get().max(vfs.dirty_pages()));
        }
        file.close().await.unwrap();
    });
    assert_eq!(highest.get(), 75);
    let elapsed = bed.now().as_nanos() / 1_000_000;
    // 1,000 pages at 1 ms, less the 75 that are left in memory, and up to a batch.
    assert!((921..=930).contains(&elapsed), "{elapsed} ms");
    let metrics = bed.vfs.metrics();
    assert!(metrics.throttled_waits > 100, "{metrics:?}");
    let waited_ms = metrics.throttled_ns / 1_000_000;
    assert!((915..=elapsed).contains(&waited_ms), "{metrics:?}");
}

#[test]
fn several_writers_wait_together_and_all_go_on() {
    let mut bed = Bed::small(MS, cache_of(100));
    let done = Rc::new(Cell::new(0));
    let mut highest = 0;
    for task in 0..10 {
        let (vfs, done) = (bed.vfs.clone(), Rc::clone(&done));
        bed.executor.spawn(async move {
            let file = open(&vfs, &format!("/{task}")).await;
            for _ in 0..40 {
                file.write(Source::pattern(task, PAGE)).await.unwrap();
            }
            file.close().await.unwrap();
            done.set(done.get() + 1);
        });
    }
    for _ in 0..400 {
        bed.pass(MS);
        highest = highest.max(bed.vfs.dirty_pages());
    }
    assert_eq!(done.get(), 10);
    assert!((70..=75).contains(&highest), "{highest}");
}

/// Large writes are throttled in parts, even where one of them is larger than the limit.
#[test]
fn a_write_larger_than_the_limit_ends() {
    let mut bed = Bed::small(MS, cache_of(40));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        assert_eq!(file.write(Source::pattern(1, 500 * PAGE)).await, Ok(500 * PAGE));
        assert!(vfs.dirty_pages() <= 30, "{}", vfs.dirty_pages());
        // The test does not wait for pages to get old.
        assert!(handle.now() <= Instant::ZERO + MS * 500, "{:?}", handle.now());
        file.close().await.unwrap();
    });
}

/// fsync waits for what was dirty when it began, not for what comes meanwhile.
#[test]
fn fsync_beside_a_writer_has_an_end() {
    let mut bed = Bed::small(MS, cache_of(1000));
    let stop = Rc::new(Cell::new(false));
    let (vfs, handle, stopped) = (bed.vfs.clone(), bed.handle.clone(), Rc::clone(&stop));
    bed.executor.spawn(async move {
        let file = open(&vfs, "/f").await;
        let mut at = 0;
        while !stopped.get() {
            file.pwrite(at % 100 * PAGE, Source::pattern(at, PAGE)).await.unwrap();
            at += 1;
            handle.sleep_until(handle.now() + Duration::from_micros(100)).await;
        }
        file.close().await.unwrap();
    });
    bed.pass(MS * 20);
    let vfs = bed.vfs.clone();
    let begun = bed.now();
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.sync(SyncKind::All).await.unwrap();
        stop.set(true);
        file.close().await.unwrap();
    });
    let took = bed.now().since(begun);
    // At most 100 pages were dirty; each of them is written at most twice.
    assert!(took <= MS * 300, "{took:?}");
}

#[test]
fn a_page_that_changes_while_it_is_written_is_written_again() {
    let mut bed = Bed::small(MS * 10, cache_of(100));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.pwrite(0, Source::bytes(b"old")).await.unwrap();
        let (syncing, other) = (Rc::new(Cell::new(true)), vfs.clone());
        let ended = Rc::clone(&syncing);
        handle.spawn(async move {
            let file = open(&other, "/f").await;
            file.sync(SyncKind::All).await.unwrap();
            file.close().await.unwrap();
            ended.set(false);
        });
        handle.sleep_until(handle.now() + MS * 5).await;
        assert_eq!(vfs.fs().counts().written_pages, 0, "the write is under way");
        let before = handle.now();
        file.pwrite(0, Source::bytes(b"new")).await.unwrap();
        assert_eq!(handle.now(), before, "the writer does not wait for the page");
        while syncing.get() {
            handle.sleep_until(handle.now() + MS).await;
        }
        // The sync began before the second write and need not cover it.
        assert_eq!(vfs.dirty_pages(), 1);
        file.sync(SyncKind::All).await.unwrap();
        assert_eq!(vfs.dirty_pages(), 0);
        let mut page = [flashweir_core::Payload::Zero];
        vfs.fs().read_pages(file.ino(), 0, &mut page).await.unwrap();
        let flashweir_core::Payload::Bytes(bytes) = &page[0] else { panic!("bytes were written") };
        assert_eq!(&bytes[..4], b"new\0");
        file.close().await.unwrap();
    });
}

#[test]
fn a_failed_write_is_reported_once_to_each_open_file() {
    let mut bed = Bed::small(Duration::from_micros(10), cache_of(100));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let (a, b) = (open(&vfs, "/f").await, open(&vfs, "/f").await);
        a.write(Source::pattern(1, PAGE)).await.unwrap();
        fail_writes(&vfs, Some(Errno::EIO));
        assert_eq!(a.sync(SyncKind::All).await, Err(Errno::EIO));
        assert_eq!(vfs.dirty_pages(), 1, "a failed write cleans nothing");
        // It is still failing, which is a new error.
        assert_eq!(a.sync(SyncKind::Data).await, Err(Errno::EIO));
        fail_writes(&vfs, None);
        assert_eq!(a.sync(SyncKind::All).await, Ok(()), "the page is dirty, so it is tried again");
        assert_eq!((vfs.dirty_pages(), vfs.fs().counts().written_pages), (0, 1));
        assert_eq!(b.sync(SyncKind::All).await, Err(Errno::EIO), "this file was not told");
        assert_eq!(b.sync(SyncKind::All).await, Ok(()));
        let c = open(&vfs, "/f").await;
        assert_eq!(c.sync(SyncKind::All).await, Ok(()), "somebody was told before this was opened");
        for file in [a, b, c] {
            file.close().await.unwrap();
        }
        assert_eq!(vfs.metrics().failed_pages, 2);
    });
}

#[test]
fn an_error_that_nobody_was_told_of_waits_for_the_next_opener() {
    let mut bed = Bed::small(Duration::from_micros(10), cache_of(100));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        file.close().await.unwrap();
        fail_writes(&vfs, Some(Errno::ENOSPC));
    });
    bed.pass(Duration::from_secs(32));
    assert_eq!(bed.vfs.metrics().failed_pages, 1, "background write-back tried");
    let vfs = bed.vfs.clone();
    bed.run(async move {
        fail_writes(&vfs, None);
        let file = open(&vfs, "/f").await;
        assert_eq!(file.sync(SyncKind::All).await, Err(Errno::ENOSPC));
        assert_eq!(file.sync(SyncKind::All).await, Ok(()));
        assert_eq!(vfs.fs().counts().written_pages, 1);
        file.close().await.unwrap();
    });
}

#[test]
fn a_failed_flush_is_reported_to_everybody() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let (a, b) = (open(&vfs, "/f").await, open(&vfs, "/f").await);
        vfs.fs().set_faults(Faults { syncs: Some(Errno::EIO), ..Faults::default() });
        assert_eq!(a.sync(SyncKind::All).await, Err(Errno::EIO));
        vfs.fs().set_faults(Faults::default());
        assert_eq!(a.sync(SyncKind::All).await, Ok(()));
        assert_eq!(b.sync(SyncKind::All).await, Err(Errno::EIO));
        assert_eq!(b.sync(SyncKind::All).await, Ok(()));
    });
}

/// When nothing can be written, writers at the limit are told instead of waiting for ever.
#[test]
fn a_dead_disk_stops_writers_with_an_error() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        fail_writes(&vfs, Some(Errno::EIO));
        let file = open(&vfs, "/f").await;
        let mut written = 0;
        let error = loop {
            match file.write(Source::pattern(1, PAGE)).await {
                Ok(_) => written += 1,
                Err(errno) => break errno,
            }
            assert!(written < 1000, "nobody stops the writer");
        };
        assert_eq!((error, written), (Errno::EIO, 75));
        // The disk is not asked again each time.
        let failed = vfs.metrics().failed_pages;
        for _ in 0..50 {
            assert_eq!(file.write(Source::pattern(1, PAGE)).await, Err(Errno::EIO));
        }
        assert_eq!(vfs.metrics().failed_pages, failed);
        fail_writes(&vfs, None);
        assert_eq!(vfs.sync_all().await, Ok(()));
        assert_eq!(file.write(Source::pattern(1, PAGE)).await, Ok(PAGE));
        assert_eq!(file.sync(SyncKind::All).await, Err(Errno::EIO), "earlier failures are reported");
        assert_eq!(file.sync(SyncKind::All).await, Ok(()));
        file.close().await.unwrap();
    });
}

/// A file that cannot be written does not keep others from being written.
#[test]
fn one_bad_file_does_not_block_the_others() {
    let mut bed = Bed::small(MS, cache_of(100));
    let vfs = bed.vfs.clone();
    let bad = bed.run(async move {
        let bad = open(&vfs, "/bad").await;
        bad.write(Source::pattern(1, 20 * PAGE)).await.unwrap();
        fail_writes(&vfs, Some(Errno::EIO));
        assert_eq!(bad.sync(SyncKind::All).await, Err(Errno::EIO));
        bad
    });
    // Background write-back fails too and puts the file off; then the disk recovers.
    bed.pass(Duration::from_secs(31));
    let vfs = bed.vfs.clone();
    bed.run(async move {
        fail_writes(&vfs, None);
        let good = open(&vfs, "/good").await;
        for _ in 0..200 {
            good.write(Source::pattern(2, PAGE)).await.unwrap();
        }
        good.close().await.unwrap();
        drop(bad);
    });
    bed.pass(Duration::from_secs(60));
    assert_eq!(bed.vfs.dirty_pages(), 0);
}

/// Only some pages cannot be written, and the others are being written already: that does not stop writers of other files.
#[test]
fn regression_writers_wait_while_pages_of_other_files_are_being_written() {
    let mut bed = Bed::small(MS, cache_of(100));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let (bad, good) = (open(&vfs, "/bad").await, open(&vfs, "/good").await);
        vfs.fs().set_faults(Faults {
            writes: Some(Errno::EIO),
            writes_of: Some(bad.ino()),
            ..Faults::default()
        });
        bad.write(Source::pattern(1, 71 * PAGE)).await.unwrap();
        // Background write-back puts the file off.
        handle.sleep_until(handle.now() + MS * 100).await;
        assert!(vfs.metrics().failed_pages > 0);
        let other = open(&vfs, "/other").await;
        let writer = vfs.clone();
        handle.spawn({
            let handle = handle.clone();
            async move {
                handle.sleep_until(handle.now() + MS).await;
                assert_eq!(writer.dirty_pages(), 75, "those of the good file are being written");
                assert_eq!(other.write(Source::pattern(3, PAGE)).await, Ok(PAGE));
                other.close().await.unwrap();
            }
        });
        good.write(Source::pattern(2, 4 * PAGE)).await.unwrap();
        good.sync(SyncKind::All).await.unwrap();
        handle.sleep_until(handle.now() + MS * 100).await;
        assert_eq!(vfs.metrics().throttled_waits, 1);
        for file in [bad, good] {
            file.close().await.unwrap();
        }
    });
}

#[test]
fn barriers_wait_for_nothing_and_errors_come_later() {
    let mut bed = Bed::small(MS, cache_of(100));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        file.write(Source::pattern(1, 10 * PAGE)).await.unwrap();
        let begun = handle.now();
        file.barrier(Barrier::Data).await.unwrap();
        assert_eq!(handle.now(), begun, "a barrier waits for no transfer");
        assert_eq!(vfs.dirty_pages(), 10, "the pages are on their way");
        file.sync(SyncKind::All).await.unwrap();
        assert_eq!(handle.now().since(begun), MS * 10);
        assert_eq!(vfs.dirty_pages(), 0);
        file.write(Source::pattern(2, PAGE)).await.unwrap();
        fail_writes(&vfs, Some(Errno::EIO));
        file.barrier(Barrier::All).await.unwrap();
        handle.sleep_until(handle.now() + MS * 2).await;
        assert_eq!(vfs.dirty_pages(), 1);
        fail_writes(&vfs, None);
        assert_eq!(file.sync(SyncKind::All).await, Err(Errno::EIO));
        assert_eq!(file.sync(SyncKind::All).await, Ok(()));
        file.close().await.unwrap();
    });
}

/// Virtual time moves by the model of the host's costs, and by nothing else.
#[test]
fn calls_cost_what_the_model_says() {
    let costs = HostCosts::preset("server").unwrap();
    let options = MountOptions { costs, cache: cache_of(100), ..MountOptions::default() };
    let mut bed = Bed::with(flashweir_fs::memfs::MemFsConfig::default(), MS, options);
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let file = open(&vfs, "/f").await;
        let mut at = handle.now();
        let mut took = || {
            let span = handle.now().since(at);
            at = handle.now();
            span
        };
        file.write(Source::pattern(1, PAGE)).await.unwrap();
        assert_eq!(took(), costs.of_call(PAGE, 1));
        file.sync(SyncKind::All).await.unwrap();
        assert_eq!(took(), costs.of_call(0, 0) + MS + costs.of_wait());
        file.pread(0, Sink::nowhere(PAGE)).await.unwrap();
        assert_eq!(took(), costs.of_call(PAGE, 1), "a hit waits for nothing");
        // A read into a large buffer was charged for all of it, whatever the file held.
        assert_eq!(file.pread(0, Sink::nowhere(1 << 20)).await.unwrap(), PAGE);
        assert_eq!(took(), costs.of_call(PAGE, 1), "a read costs what it got");
        assert_eq!(file.pread(PAGE - 10, Sink::nowhere(1 << 20)).await.unwrap(), 10);
        assert_eq!(took(), costs.of_call(10, 1));
        assert_eq!(file.pread(PAGE, Sink::nowhere(1 << 20)).await.unwrap(), 0);
        assert_eq!(took(), costs.of_call(0, 0), "at the end there is nothing to copy");
        let direct = vfs.process(Creds::ROOT).open("/f", OpenFlags::READ.direct(), 0).await.unwrap();
        took();
        direct.pread(0, Sink::nowhere(PAGE)).await.unwrap();
        assert_eq!(took(), costs.of_call(0, 0) + MS + costs.of_wait(), "direct I/O copies nothing");
        direct.close().await.unwrap();
        file.close().await.unwrap();
    });
}

/// N threads of nothing but system calls on C CPUs: min(N, C) of them are at work all the time.
#[test]
fn threads_share_the_cpus() {
    for (threads, cpus, at_work) in [(1u64, 4, 1), (3, 4, 3), (8, 4, 4), (50, 6, 6), (7, 0, 7)] {
        let costs = HostCosts { cpus: NonZeroU32::new(cpus), ..HostCosts::preset("server").unwrap() };
        let options = MountOptions { costs, ..MountOptions::default() };
        let mut bed = Bed::with(flashweir_fs::memfs::MemFsConfig::default(), Duration::ZERO, options);
        let calls = Rc::new(Cell::new(0u64));
        for _ in 0..threads {
            let (vfs, calls) = (bed.vfs.clone(), Rc::clone(&calls));
            bed.executor.spawn(async move {
                loop {
                    vfs.statfs().await.unwrap();
                    calls.set(calls.get() + 1);
                }
            });
        }
        let rounds = 1_000;
        bed.pass(costs.of_call(0, 0) * rounds);
        let metrics = bed.vfs.metrics();
        assert_eq!(calls.get(), at_work * rounds, "{threads} threads on {cpus} CPUs");
        // Without a limit work counts when it is booked, and each thread has booked its next call.
        let booked = if cpus == 0 { threads } else { 0 };
        assert_eq!(metrics.cpu_busy_ns, costs.syscall.as_nanos() * (at_work * rounds + booked));
        assert_eq!(metrics.cpu_waited_ns > 0, threads > at_work);
    }
}

/// At the hard limit writers of many pages a call get the same number of pages. A writer of single pages, which is not in the queue between
/// its calls, gets at least half as many, and not one for each of their calls.
#[test]
fn throttled_writers_share_pages() {
    let cache = CacheConfig { batch_pages: 256, ..cache_of(2_000) };
    let mut bed = Bed::small(Duration::from_micros(10), cache);
    let written: Vec<Rc<Cell<u64>>> = (0..10).map(|_| Rc::default()).collect();
    for (writer, count) in written.iter().enumerate() {
        let (vfs, count) = (bed.vfs.clone(), Rc::clone(count));
        let pages = if writer == 0 { 1 } else { 128 };
        bed.executor.spawn(async move {
            let file = open(&vfs, &format!("/{writer}")).await;
            loop {
                let at = count.get() % 4_096 * PAGE;
                file.pwrite(at, Source::pattern(1, pages * PAGE)).await.unwrap();
                count.set(count.get() + pages);
            }
        });
    }
    bed.pass(Duration::from_millis(200));
    let before: Vec<u64> = written.iter().map(|count| count.get()).collect();
    bed.pass(Duration::from_millis(800));
    let share: Vec<u64> = written.iter().zip(before).map(|(count, before)| count.get() - before).collect();
    let mean = share[1..].iter().sum::<u64>() / 9;
    assert!(share[1..].iter().all(|pages| pages.abs_diff(mean) <= mean / 10), "{share:?}");
    assert!(share[0] >= mean / 2, "{share:?}");
}
