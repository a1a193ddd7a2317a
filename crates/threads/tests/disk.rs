//! Whole disks on threads, with an oracle.

mod oracle;

use flashweir_core::Lpn;
use flashweir_threads::content::{WORDS, unit_to_bytes};
use flashweir_threads::{Assembly, Disk, Fault, Geometry, Handle, Medium, OpenError, PBLK, QBLKE, STEPS};
use oracle::{Oracle, Random, content, judge, settle, work, write_of};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two channels of two dies, 34 lines of the device; GC begins soon. Miri gets fewer requests.
const TINY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 2,
    blocks_per_die: 34,
    programs_per_block: 8,
    units_per_program: 4,
    user_units: 3_300,
    cpus: 2,
    workers: 4,
};

/// Where a medium is.
#[derive(Clone, Copy)]
enum On<'a> {
    Memory,
    File(&'a Path),
    /// In a file that keeps the rules of a zoned device.
    Zones(&'a Path),
}

impl On<'_> {
    fn erased(self, geometry: Geometry) -> Arc<Medium> {
        Arc::new(match self {
            Self::Memory => Medium::new(geometry),
            Self::File(path) => Medium::create(path, geometry, 7, false).unwrap().keeps_before(),
            Self::Zones(path) => {
                // More than a block takes, so that its zone has to be finished.
                let units = geometry.block_units() + u64::from(geometry.programs_per_block) + 3;
                Medium::create_zoned_file(path, geometry, 7, units * 4096).unwrap().keeps_before()
            }
        })
    }

    /// What a power cut leaves: of what was not durable, in a file, any part.
    fn after_a_cut(self, medium: Arc<Medium>, seed: u64) -> Arc<Medium> {
        let (Self::File(path) | Self::Zones(path)) = self else { return medium };
        let mut random = Random(seed);
        let loses = random.below(4);
        medium.lose(|| random.below(4) < loses).unwrap();
        if seed.is_multiple_of(2) {
            return medium;
        }
        let (cpus, workers) = (medium.geometry().cpus, medium.geometry().workers);
        // A file is one medium's at a time.
        drop(medium);
        Arc::new(Medium::open(path, cpus, workers).unwrap().keeps_before())
    }
}

fn lives(name: &str, assembly: Assembly, on: On<'_>, geometry: Geometry, lives: u64, count: u64) -> u64 {
    const THREADS: u64 = 3;
    let mut oracle = Oracle::new(geometry.user_units, lives * THREADS * count * 2);
    let mut medium = on.erased(geometry);
    let mut erased = 0;
    for life in 0..lives {
        let mut disk = Disk::open_medium(assembly, medium).unwrap();
        judge(&mut oracle, &disk, &format!("{name}, recovery {life}"));
        let handles: Vec<Handle> = (0..THREADS).map(|_| disk.handle().unwrap()).collect();
        let is_cut = life % 8 != 7;
        let left = std::thread::scope(|scope| {
            let oracle = &oracle;
            let threads: Vec<_> = (0..THREADS)
                .zip(handles)
                .map(|(at, handle)| scope.spawn(move || work(oracle, handle, life * 100 + at, count)))
                .collect();
            if is_cut {
                // At some write of this life, whatever the threads are at.
                let when = oracle.life + THREADS * count / 3 + life * 37 % count;
                while oracle.next.load(Ordering::SeqCst) < when && threads.iter().any(|t| !t.is_finished()) {
                    std::thread::yield_now();
                }
            } else {
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                settle(&disk);
            }
            erased += disk.metrics().lines_erased;
            if is_cut {
                return disk.cut();
            }
            disk.seal().unwrap();
            disk.close()
        });
        medium = on.after_a_cut(left, life);
    }
    let disk = Disk::open_medium(assembly, medium).unwrap();
    judge(&mut oracle, &disk, &format!("{name}, the last recovery"));
    erased
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_assembly_keeps_its_promises_over_power_cuts() {
    if cfg!(miri) {
        for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
            let geometry = Geometry { blocks_per_die: 8, user_units: 60, ..TINY };
            lives(name, assembly, On::Memory, geometry, 1, 40);
        }
        return;
    }
    for (name, assembly) in STEPS {
        let erased = lives(name, assembly, On::Memory, TINY, 40, 250);
        assert!(erased > 10, "{name}: GC has erased {erased} lines");
    }
}

/// The same above a file, of which a power cut leaves any part of what was not durable.
#[test]
#[cfg_attr(miri, ignore = "it has no io_uring")]
fn a_file_keeps_promises_over_power_cuts() {
    let scratch = Scratch::new("cuts");
    for (name, assembly) in STEPS {
        let path = scratch.0.join(name);
        let erased = lives(name, assembly, On::File(&path), TINY, 12, 250);
        assert!(erased > 10, "{name}: GC has erased {erased} lines");
    }
}

/// The same on zones, which are written in order and lose their ends.
#[test]
#[cfg_attr(miri, ignore = "it has no io_uring")]
fn zones_keep_promises_over_power_cuts() {
    let scratch = Scratch::new("zones");
    for (name, assembly) in STEPS {
        let path = scratch.0.join(name);
        let erased = lives(name, assembly, On::Zones(&path), TINY, 12, 250);
        assert!(erased > 10, "{name}: GC has erased {erased} lines");
    }
}

/// Random overwrites with the paper's over-provisioning, several times the size of the device.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn random_overwrites_go_on_for_ever() {
    let geometry = Geometry { blocks_per_die: 64, ..TINY }.over_provisioned(11);
    for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
        let disk = Disk::open(assembly, geometry).unwrap();
        let handles: Vec<Handle> = (0..2).map(|_| disk.handle().unwrap()).collect();
        let units = geometry.user_units;
        std::thread::scope(|scope| {
            for (at, mut handle) in (1..).zip(handles) {
                scope.spawn(move || {
                    let mut random = Random(at);
                    for lpn in (at - 1) * units / 2..at * units / 2 {
                        handle.write(Lpn(lpn), &[[lpn; WORDS]], false).unwrap();
                    }
                    for write in 0..2 * units {
                        handle.write(Lpn(random.below(units)), &[[write; WORDS]], false).unwrap();
                    }
                });
            }
        });
        let mut handle = disk.handle().unwrap();
        handle.flush().unwrap();
        let metrics = disk.metrics();
        assert_eq!(metrics.user_units, 5 * units, "{name}");
        assert!(metrics.lines_erased > 50 && metrics.gc_units > 0, "{name}: {metrics:?}");
        let in_all = metrics.user_units + metrics.gc_units - metrics.dropped_copies + metrics.padded_units;
        // Found here: a writer that looked at entries which GC was filling counted each look as a kick, and filled programs up with
        // padding, until GC gained nothing and a device with room was full.
        assert!(10 * metrics.padded_units < metrics.programmed_units, "{name}: {metrics:?}");
        // GC may be at work.
        assert!(in_all.abs_diff(metrics.programmed_units) <= 512, "{name}: {metrics:?}");
        drop(handle);
        disk.audit();
    }
}

/// Lines of channels that were used leave blocks free here and there: where no line of the device is, an FTL that needs one says so at once.
/// It was opened, and no write ever ended.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn regression_lines_of_another_kind_are_refused_or_work() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut medium = Arc::new(Medium::new(TINY));
        let mut random = Random(seed);
        for assembly in [QBLKE, PBLK, QBLKE] {
            let disk = match Disk::open_medium(assembly, medium.clone()) {
                Err(OpenError::NoLine) if assembly == PBLK => {
                    refused += 1;
                    continue;
                }
                other => other.unwrap(),
            };
            let mut handle = disk.handle().unwrap();
            for lpn in 0..TINY.user_units {
                handle.write(Lpn(lpn), &[[lpn; WORDS]], false).unwrap();
            }
            for write in 0..TINY.user_units / 2 * (1 + seed % 4) {
                handle.write(Lpn(random.below(TINY.user_units)), &[[write; WORDS]], false).unwrap();
            }
            handle.flush().unwrap();
            drop(handle);
            medium = disk.close();
        }
    }
    println!("{refused} refused");
    assert!(refused > 0, "{refused} refused");
}

/// The power fails again and again while a full device collects: lines of copies alone are free again, so there is always a way on.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn power_cuts_during_gc_leave_room_for_gc() {
    for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
        let mut medium = Arc::new(Medium::new(TINY));
        for life in 0..25 {
            let disk = Disk::open_medium(assembly, medium).unwrap();
            let mut handle = disk.handle().unwrap();
            medium = std::thread::scope(|scope| {
                let writer = scope.spawn(move || {
                    let mut random = Random(life);
                    while handle.write(Lpn(random.below(TINY.user_units)), &[[life; WORDS]], false).is_ok() {}
                });
                let begin = std::time::Instant::now();
                let least = if life == 0 { 60 } else { 1 + life % 3 };
                while disk.metrics().lines_erased < least {
                    assert!(begin.elapsed().as_secs() < 60, "{name}: life {life} erases nothing");
                    std::thread::yield_now();
                }
                let medium = disk.cut();
                writer.join().unwrap();
                medium
            });
        }
    }
}

/// A trim is on the medium like a write, and is moved by GC.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn deallocated_units_stay_zeros() {
    for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
        let disk = Disk::open(assembly, TINY).unwrap();
        let mut handle = disk.handle().unwrap();
        for lpn in 0..TINY.user_units {
            handle.write(Lpn(lpn), &[[7; WORDS]], false).unwrap();
        }
        handle.trim(Lpn(100), 200, false).unwrap();
        let mut random = Random(1);
        for _ in 0..4 * TINY.user_units {
            let lpn = 300 + random.below(TINY.user_units - 300);
            handle.write(Lpn(lpn), &[[8; WORDS]], false).unwrap();
        }
        handle.flush().unwrap();
        assert!(disk.metrics().lines_erased > 30, "{name}");
        drop(handle);
        let disk = Disk::open_medium(assembly, disk.cut()).unwrap();
        let mut handle = disk.handle().unwrap();
        let mut units = vec![[1; WORDS]; 300];
        handle.read(Lpn(0), &mut units).unwrap();
        assert!(units[..100].iter().all(|unit| *unit == [7; WORDS]), "{name}");
        assert!(units[100..].iter().all(|unit| *unit == [0; WORDS]), "{name}");
    }
}

/// Threads write their own sectors of the same units, while GC moves them: no write takes another one back.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn sectors_of_a_unit_are_written_side_by_side() {
    const SECTOR: usize = 512;
    for (name, assembly) in STEPS {
        let disk = Disk::open(assembly, TINY).unwrap();
        let mut fill = disk.handle().unwrap();
        for lpn in 0..TINY.user_units {
            fill.write(Lpn(lpn), &[[0; WORDS]], false).unwrap();
        }
        drop(fill);
        let handles: Vec<Handle> = (0..3).map(|_| disk.handle().unwrap()).collect();
        let last: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let work = |(at, mut handle): (usize, Handle)| {
                scope.spawn(move || {
                    let mut random = Random(at as u64);
                    let mut last = vec![0; 8];
                    for write in 1..3_000 {
                        let lpn = random.below(8);
                        let byte = (write % 250 + 1) as u8;
                        let fua = random.below(100) == 0;
                        let ticket = handle.submit_part(Lpn(lpn), at * SECTOR, &[byte; SECTOR], fua);
                        ticket.unwrap().wait().unwrap();
                        last[lpn as usize] = byte;
                        let other = 8 + random.below(TINY.user_units - 8);
                        handle.write(Lpn(other), &[[1; WORDS]], false).unwrap();
                    }
                    last
                })
            };
            let threads: Vec<_> = handles.into_iter().enumerate().map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut handle = disk.handle().unwrap();
        handle.flush().unwrap();
        drop(handle);
        disk.audit();
        assert!(disk.metrics().lines_erased > 0, "{name}");
        let disk = Disk::open_medium(assembly, disk.cut()).unwrap();
        let mut handle = disk.handle().unwrap();
        for lpn in 0..8 {
            let mut unit = [[0; WORDS]];
            handle.read(Lpn(lpn), &mut unit).unwrap();
            let bytes = unit_to_bytes(&unit[0]);
            for (at, last) in last.iter().enumerate() {
                let sector = &bytes[at * SECTOR..(at + 1) * SECTOR];
                assert!(sector.iter().all(|byte| *byte == last[lpn as usize]), "{name}: unit {lpn}, {at}");
            }
        }
    }
}

/// Damage to a file between two lives is not taken for a torn program, whose units were never there.
#[test]
#[cfg_attr(miri, ignore = "it needs files")]
fn what_was_damaged_since_it_was_closed_is_said() {
    use std::os::unix::fs::FileExt as _;
    let scratch = Scratch::new("damaged");
    let path = scratch.0.join("disk");
    let open = |accepts: bool| {
        let medium = Medium::open(&path, TINY.cpus, TINY.workers).unwrap();
        Disk::open_medium(QBLKE, Arc::new(if accepts { medium.accepts_damage() } else { medium }))
    };
    let flip = |place: u64| {
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], place).unwrap();
    };
    let shows = |disk: &Disk| {
        let (mut handle, mut unit) = (disk.handle().unwrap(), [[0; WORDS]]);
        let mut newest = |lpn| {
            handle.read(Lpn(lpn), &mut unit).unwrap();
            write_of(lpn, &unit[0])
        };
        (0..TINY.user_units).filter(|&lpn| newest(lpn) == lpn + 1).count() as u64
    };
    let mut disk =
        Disk::open_medium(QBLKE, Arc::new(Medium::create(&path, TINY, 7, false).unwrap())).unwrap();
    let mut handle = disk.handle().unwrap();
    // Twice, so that lines were erased.
    for _ in 0..2 {
        for lpn in 0..TINY.user_units {
            handle.write(Lpn(lpn), &[content(lpn, lpn + 1)], false).unwrap();
        }
    }
    handle.flush().unwrap();
    drop(handle);
    assert!(disk.metrics().lines_erased > 0);
    disk.seal().unwrap();
    drop(disk);
    // The superblock, a unit of openings, then programs of four units and a record.
    let programs = u64::from(TINY.blocks() * TINY.programs_per_block);
    let record = |program: u64| (2 + 5 * program + 4) * 4096;
    for place in (0..programs).step_by(37).map(record).chain([4096, 4096 + 8 * 100]) {
        flip(place);
        // A program of a block that was erased since, or that was never there, is nobody's.
        match open(false) {
            Err(OpenError::Damaged) => {}
            Err(other) => panic!("byte {place}: {other}"),
            Ok(mut disk) => {
                assert_eq!(shows(&disk), TINY.user_units, "byte {place}");
                disk.seal().unwrap();
            }
        }
        flip(place);
    }
    let mut disk = open(false).unwrap();
    assert_eq!(shows(&disk), TINY.user_units, "nothing was changed by who was refused");
    disk.seal().unwrap();
    drop(disk);
    // Which units of a program GC has copied elsewhere is up to the threads: now and then all of them.
    let mut places = (0..programs).map(record);
    let left = loop {
        let place = places.next().expect("some program has what is nowhere else");
        flip(place);
        if !matches!(open(false), Err(OpenError::Damaged)) {
            flip(place);
            open(false).unwrap().seal().unwrap();
            continue;
        }
        let mut disk = open(true).unwrap();
        let left = shows(&disk);
        disk.seal().unwrap();
        if left < TINY.user_units {
            break left;
        }
    };
    assert!(left >= TINY.user_units - 4, "{left}: a program at most is lost");
    // It is as it was closed.
    assert_eq!(shows(&open(false).unwrap()), left);
    // No seal is left by who did not close it.
    flip(places.next().unwrap());
    assert!(open(false).is_ok());
}

/// open-channel §8.7: with too little to collect, writes are refused; what is there stays readable.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn a_full_device_refuses_writes() {
    for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
        let mut geometry = TINY;
        geometry.user_units = geometry.physical_units();
        let medium = Arc::new(Medium::new(geometry));
        let disk = Disk::open_unchecked(assembly, medium).unwrap();
        let mut handle = disk.handle().unwrap();
        let fault = (0..).find_map(|at| {
            let lpn = at % geometry.user_units;
            handle.write(Lpn(lpn), &[content(lpn, 1)], false).err()
        });
        assert_eq!(fault, Some(Fault::Full), "{name}");
        let mut unit = [[0; WORDS]];
        handle.read(Lpn(5), &mut unit).unwrap();
        assert_eq!(unit[0], content(5, 1));
        handle.flush().unwrap();
    }
}

#[test]
fn geometries_that_cannot_be_are_refused() {
    let error = Disk::open(PBLK, Geometry { user_units: 1 << 20, ..TINY }).unwrap_err();
    assert!(error.to_string().starts_with("user_units 1048576: expected 1 to "), "{error}");
    let error = Disk::open(QBLKE, Geometry { cpus: 0, ..TINY }).unwrap_err();
    assert_eq!(error.to_string(), "cpus 0: expected 1 to 128");
    let disk = Disk::open(QBLKE, TINY).unwrap();
    let mut handle = disk.handle().unwrap();
    let fault = handle.write(Lpn(TINY.user_units - 1), &[[0; WORDS]; 2], false);
    assert_eq!(fault, Err(Fault::OutOfRange(Lpn(TINY.user_units))));
}

/// Overwrites that are spread evenly leave each line a little to gain, and none enough for GC: a small disk was full with all of its spare unused.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn regression_evenly_spread_overwrites_do_not_make_a_disk_full() {
    for (name, assembly) in [("pblk", PBLK), ("qblke", QBLKE)] {
        let geometry = Geometry::for_units(8192, 11, 2, 2).unwrap();
        let disk = Disk::open(assembly, geometry).unwrap();
        let mut handle = disk.handle().unwrap();
        let rounds = std::iter::once((0, 1)).chain((0..30).map(|round| (round * 7 % 10, 10)));
        for (first, stride) in rounds {
            for lpn in (first..geometry.user_units).step_by(stride) {
                let written = handle.write(Lpn(lpn), &[[lpn; WORDS]], false).map(drop);
                assert_eq!(written, Ok(()), "{name}: unit {lpn} of those from {first} on");
            }
        }
    }
}

/// Four users overwrite a full disk and take room as soon as GC makes it, so GC sees none from one line to the next. It took that for going
/// round in circles: the disk was full, for good. Most runs of the old code failed here.
#[test]
#[cfg_attr(miri, ignore = "it fills a device")]
fn regression_users_who_take_all_room_at_once_do_not_make_a_disk_full() {
    let geometry = Geometry::for_units(2048, 11, 2, 5).unwrap();
    let disk = Disk::open(PBLK, geometry).unwrap();
    let units = geometry.user_units;
    let mut handle = disk.handle().unwrap();
    for lpn in 0..units {
        handle.write(Lpn(lpn), &[[lpn; WORDS]], false).unwrap();
    }
    let left = AtomicU64::new(60_000);
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let (mut handle, left) = (disk.handle().unwrap(), &left);
            scope.spawn(move || {
                let mut random = Random(seed);
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let count = match random.below(10) {
                        0..6 => 1,
                        6..9 => 1 + random.below(32),
                        _ => {
                            handle.flush().unwrap();
                            continue;
                        }
                    };
                    let content = vec![[seed; WORDS]; count as usize];
                    handle.write(Lpn(random.below(units - count)), &content, false).unwrap();
                }
            });
        }
    });
    drop(handle);
    disk.audit();
}
