//! Volumes on a disk in memory that refuses whatever append segments refuse, used at random, with power cuts.

use super::{AlfsOptions, Options, check, mkfs, mount};
use crate::f2fs::F2fs;
use crate::f2fs::layout::Nid;
use crate::f2fs::layout::node::{self, Footer};
use crate::f2fs::write::{Flushing, PlantedBug};
use crate::port::{
    BLOCK_BYTES, Block, BlockPort, PortError, Request, Segments, Ticket, block_on, bytes_of, payload_of,
};
use crate::vfs::{DirtyPage, Errno, Fs, Kind, NewAcls, NewNode, SyncKind, Timestamp, WriteCause};
use flashweir_core::command::SegmentId;
use flashweir_core::{Address, DeviceError, Lba, Payload, RandomStream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

const PAGE: u64 = BLOCK_BYTES as u64;
const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanos: 0 };

/// A file: the version of each page (0 is a hole), and those that a sync has promised.
#[derive(Clone, Debug, Default)]
struct Known {
    now: Vec<u64>,
    promised: Option<Vec<u64>>,
}

impl Known {
    fn promise(&mut self) {
        self.promised = Some(self.now.clone());
    }
}

struct User {
    fs: F2fs,
    files: BTreeMap<Vec<u8>, Known>,
    version: u64,
}

type Done = Result<(), Errno>;

impl User {
    fn open(disk: &Rc<Segments>, options: AlfsOptions) -> Result<F2fs, String> {
        block_on(mount(Rc::clone(disk) as Rc<dyn BlockPort>, options)).map_err(|error| error.to_string())
    }

    fn write(&mut self, name: &[u8], first: u64, pages: u64) -> Done {
        self.version += 1;
        let version = self.version;
        let root = self.fs.root();
        if !self.files.contains_key(name) {
            let acls = NewAcls::default();
            let new = NewNode { kind: Kind::File, mode: 0o600, uid: 0, gid: 0, now: NOW, acls };
            block_on(self.fs.create(root, name, &new))?;
            self.files.insert(name.to_vec(), Known::default());
        }
        let ino = block_on(self.fs.lookup(root, name))?.ino;
        block_on(self.fs.hold(ino))?;
        block_on(self.fs.reserve(ino, (first * PAGE, (first + pages) * PAGE)))?;
        let now = &mut self.files.get_mut(name).expect("it was made").now;
        now.resize(now.len().max((first + pages) as usize), 0);
        now[first as usize..(first + pages) as usize].fill(version);
        self.fs.wrote(ino, (first + pages) * PAGE, NOW);
        let page = |index| DirtyPage { index, payload: Payload::Tag(version << 20 | index) };
        let pages: Vec<DirtyPage> = (first..first + pages).map(page).collect();
        block_on(self.fs.write_pages(ino, &pages, WriteCause::Background))?;
        block_on(self.fs.release(ino))
    }

    fn fsync(&mut self, name: &[u8]) -> Done {
        let ino = block_on(self.fs.lookup(self.fs.root(), name))?.ino;
        block_on(self.fs.fsync(ino, SyncKind::All))?;
        self.files.get_mut(name).expect("it is there").promise();
        Ok(())
    }

    fn sync(&mut self) -> Done {
        block_on(self.fs.sync())?;
        self.files.values_mut().for_each(Known::promise);
        Ok(())
    }

    fn unlink(&mut self, name: &[u8]) -> Done {
        // Even if the power fails meanwhile it may be gone.
        self.files.get_mut(name).expect("it is there").promised = None;
        block_on(self.fs.unlink(self.fs.root(), name, NOW))?;
        self.files.remove(name);
        Ok(())
    }

    /// One thing at random. `room` says how many pages are to be in use.
    fn step(&mut self, random: &mut RandomStream, room: u64) -> Done {
        let names: Vec<Vec<u8>> = self.files.keys().cloned().collect();
        let any = |random: &mut RandomStream| names[random.below(names.len() as u64) as usize].clone();
        let used: u64 = self.files.values().map(|known| known.now.len() as u64).sum();
        match random.below(100) {
            0..=24 if !names.is_empty() => {
                let name = any(random);
                let (first, pages) =
                    (random.below(self.files[&name].now.len() as u64 + 1), 1 + random.below(40));
                self.write(&name, first, pages)
            }
            25..=54 if used < room => {
                let long = if random.below(8) == 0 { 1_500 } else { 60 };
                self.write(format!("f{}", random.below(10_000)).as_bytes(), 0, 1 + random.below(long))
            }
            55..=84 if !names.is_empty() => self.fsync(&any(random)),
            85..=89 => self.sync(),
            _ if !names.is_empty() && (used > room / 2 || random.below(4) == 0) => self.unlink(&any(random)),
            _ => Ok(()),
        }
    }

    /// What a mount after a power cut shows has to be what was promised, or newer; then it is all that is there. `gone` are names that
    /// were deleted, which may be back.
    fn judge(&mut self, gone: &BTreeSet<Vec<u8>>, what: &str) {
        let mut entries = Vec::new();
        block_on(self.fs.readdir(self.fs.root(), crate::vfs::Cookie::START, &mut entries, usize::MAX))
            .unwrap();
        let mut found = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.name[0] != b'.') {
            let known = self.files.get(&entry.name[..]).cloned();
            assert!(known.is_some() || gone.contains(&entry.name[..]), "{what}: {:?} is new", entry.name);
            let promised = known.and_then(|known| known.promised).unwrap_or_default();
            let pages = block_on(self.fs.getattr(entry.ino)).unwrap().size.div_ceil(PAGE) as usize;
            assert!(
                pages >= promised.len(),
                "{what}: {pages} of {} pages of {:?}",
                promised.len(),
                entry.name
            );
            let mut contents = vec![Payload::Zero; pages];
            block_on(self.fs.hold(entry.ino)).unwrap();
            block_on(self.fs.read_pages(entry.ino, 0, &mut contents)).unwrap();
            block_on(self.fs.release(entry.ino)).unwrap();
            let mut now = Vec::new();
            for (index, content) in contents.iter().enumerate() {
                let tag = match content {
                    Payload::Zero => index as u64,
                    Payload::Tag(tag) => *tag,
                    other => panic!("{what}: page {index} of {:?} is {other:?}", entry.name),
                };
                let least = promised.get(index).copied().unwrap_or(0);
                let (page, version) = (tag & 0xf_ffff, tag >> 20);
                assert_eq!(page, index as u64, "{what}: another page of {:?}", entry.name);
                assert!(
                    (least..=self.version).contains(&version),
                    "{what}: page {index} of {:?} has version {version}, expected {least} or more",
                    entry.name
                );
                now.push(version);
            }
            found.insert(entry.name.to_vec(), Known { now, promised: None });
        }
        for (name, known) in &self.files {
            assert!(known.promised.is_none() || found.contains_key(name), "{what}: {name:?} is lost");
        }
        self.files = found;
    }
}

/// Uses a volume over many boots, each of which ends with a power cut at a random change. Returns how often something was cleaned.
fn boots(seed: u64, segments: u32, segment_blocks: u32, options: &AlfsOptions, fill: f64) -> u64 {
    let mut random = RandomStream::new(seed, "power cuts of append segments");
    let mut disk = Rc::new(Segments::in_memory(segments, segment_blocks));
    let blocks = disk.capacity_blocks();
    block_on(mkfs(&*disk, &Options::new(blocks))).unwrap();
    let (mut files, mut gone, mut version) = (BTreeMap::new(), BTreeSet::new(), 0);
    let mut cleaned = 0;
    for boot in 0..12 {
        let what = format!("seed {seed}, boot {boot}");
        if random.below(3) == 0 && boot > 0 {
            // A recovery that is cut.
            disk.power_off_after(random.below(60));
            drop(User::open(&disk, options.clone()));
            disk = Rc::new(disk.woken(|states| random.below(states)));
        }
        let fs = User::open(&disk, options.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut user = User { fs, files, version };
        user.judge(&gone, &what);
        user.fs.audit().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        let room = (block_on(user.fs.statfs()).unwrap().pages as f64 * fill) as u64;
        let power = disk.changes() + random.below(1_500);
        disk.power_off_after(power);
        gone = BTreeSet::new();
        let ended = (0..600).find_map(|_| {
            let names: Vec<_> = user.files.keys().cloned().collect();
            let done = user.step(&mut random, room);
            for name in names.iter().filter(|name| !user.files.contains_key(*name)) {
                gone.insert(name.clone());
            }
            match done {
                Ok(()) => user.fs.audit().err().map(|wrong| panic!("{what}: {wrong}")),
                Err(Errno::ENOSPC) => None,
                Err(errno) if disk.changes() >= power => Some(errno),
                Err(errno) => panic!("{what}: {errno:?} with power"),
            }
        });
        cleaned += user.fs.metrics().cleaned_foreground + user.fs.map_metrics().unwrap().cleaned_map_segments;
        (files, version) = (user.files, user.version);
        if ended.is_none() && disk.changes() < power && random.below(2) == 0 {
            disk.power_off_after(u64::MAX);
            block_on(user.fs.unmount()).unwrap_or_else(|errno| panic!("{what}: unmount: {errno:?}"));
            let report = block_on(check(Rc::clone(&disk) as _)).unwrap();
            assert_eq!(report.problems, [], "{what}");
            files.values_mut().for_each(Known::promise);
            disk = Rc::new(disk.woken(|states| states - 1));
        } else {
            disk = Rc::new(disk.woken(|states| random.below(states)));
            let report =
                block_on(check(Rc::clone(&disk) as _)).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(report.problems, [], "{what}, before recovery");
        }
    }
    cleaned
}

#[test]
fn a_new_volume_is_good() {
    for (segments, segment_blocks) in [(60, 512), (64, 1024)] {
        let disk = Rc::new(Segments::in_memory(segments, segment_blocks));
        let blocks = disk.capacity_blocks();
        block_on(mkfs(&*disk, &Options::new(blocks))).unwrap();
        let report = block_on(check(Rc::clone(&disk) as _)).unwrap();
        assert_eq!((report.problems, report.directories, report.is_clean), (vec![], 1, true));
        // A second volume on the same disk.
        block_on(mkfs(&*disk, &Options::new(blocks))).unwrap();
        let fs = block_on(mount(Rc::clone(&disk) as _, AlfsOptions::default())).unwrap();
        block_on(fs.unmount()).unwrap();
        assert_eq!(block_on(check(disk as _)).unwrap().problems, []);
    }
}

#[test]
fn nothing_promised_is_lost_by_power_cuts() {
    let first: u64 = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    println!("FLASHWEIR_SEED={first}");
    let cleaned: u64 = (first..first + 20).map(|seed| boots_of(seed, None)).sum();
    assert!(cleaned > 50, "{cleaned} segments were cleaned");
}

/// Options by the seed; some volumes are filled until nothing more fits.
fn boots_of(seed: u64, planted: Option<PlantedBug>) -> u64 {
    let fsync = if seed.is_multiple_of(3) { Flushing::RangeFlush } else { Flushing::Flush };
    let options = AlfsOptions { fsync_checkpoints: seed % 4 == 3, fsync, planted, ..AlfsOptions::default() };
    let (segments, segment_blocks) = if seed.is_multiple_of(2) { (64, 512) } else { (64, 1024) };
    let fill = if seed % 5 == 4 { 1.5 } else { 0.9 };
    boots(seed, segments, segment_blocks, &options, fill)
}

/// The log of nodes has reached the end of its segment, and the next one was discarded by the last checkpoint, which a power cut undoes: what is
/// there are nodes of an earlier use of it. Nothing but a node is written in each round, so the size of the file is its version.
#[test]
fn a_roll_forward_does_not_take_a_stale_generation() {
    let disk = Rc::new(Segments::in_memory(64, 512));
    block_on(mkfs(&*disk, &Options::new(disk.capacity_blocks()))).unwrap();
    // A file with inline contents has no size beyond them.
    let options = |planted| AlfsOptions { inline_data: false, planted, ..AlfsOptions::default() };
    let fs = User::open(&disk, options(None)).unwrap();
    let acls = NewAcls::default();
    let new = NewNode { kind: Kind::File, mode: 0o600, uid: 0, gid: 0, now: NOW, acls };
    let ino = block_on(fs.create(fs.root(), b"file", &new)).unwrap().ino;
    block_on(fs.hold(ino)).unwrap();
    block_on(fs.fsync(ino, SyncKind::All)).unwrap();
    let pointer = |segment| block_on(disk.report(SegmentId(segment)).reported());
    let full = || (0..64).filter(|segment| pointer(*segment) == Ok(512)).count();
    let found = |planted| {
        let woken = Rc::new(disk.woken(|_| 0));
        let fs = User::open(&woken, options(planted))?;
        let found = block_on(fs.lookup(fs.root(), b"file")).map_err(|errno| format!("{errno:?}"))?;
        Ok::<_, String>(found.size)
    };
    // The segments behind the first checkpoint were never written; then the log comes to those that it has discarded.
    let (mut size, mut full_before, mut is_found) = (4096, 0, false);
    while !is_found {
        size += 1;
        assert!(size < 50_000, "the log came to no segment that was discarded");
        fs.wrote(ino, size, NOW);
        block_on(fs.fsync(ino, SyncKind::All)).unwrap();
        if fs.metrics().discarded_blocks > 0 && full() > full_before {
            assert_eq!(found(None), Ok(size));
            is_found = found(Some(PlantedBug::StaleGeneration)) != Ok(size);
        }
        full_before = full();
    }
}

/// Makes files of so many blocks until the volume is full.
fn fill(user: &mut User, round: u64, pages: u64) {
    for file in 0u64.. {
        let name = format!("{round}-{file}");
        if let Err(errno) = user.write(name.as_bytes(), 0, pages) {
            assert_eq!(errno, Errno::ENOSPC, "round {round}, file {file}");
            user.files.remove(name.as_bytes());
            return;
        }
    }
}

/// Removes one file in `every`, and syncs.
fn thin_out(user: &mut User, round: u64, every: u64, random: &mut RandomStream) {
    let names: Vec<Vec<u8>> = user.files.keys().cloned().collect();
    for name in names.into_iter().filter(|_| random.below(every) == 0) {
        user.unlink(&name).unwrap_or_else(|errno| panic!("round {round}: {errno:?} for a removal"));
    }
    user.sync().unwrap_or_else(|errno| panic!("round {round}: {errno:?} for a sync"));
}

fn small_files() -> AlfsOptions {
    AlfsOptions { inline_data: false, background: None, ..AlfsOptions::default() }
}

/// Cleaning dirties an inode for each file that it moves. On a full volume of files of one block their nodes once took the segments that the
/// checkpoint needed, and from then on nothing could be written, not even a removal.
#[test]
fn regression_a_full_volume_of_small_files_can_be_emptied() {
    for (every, pages, seed) in [(8, 1, 3), (4, 2, 6)] {
        let disk = Rc::new(Segments::in_memory(64, 512));
        block_on(mkfs(&*disk, &Options::new(disk.capacity_blocks()))).unwrap();
        let fs = User::open(&disk, small_files()).unwrap();
        let mut user = User { fs, files: BTreeMap::new(), version: 0 };
        let mut random = RandomStream::new(seed, "a volume of small files");
        for round in 0..7 {
            fill(&mut user, round, pages);
            thin_out(&mut user, round, every, &mut random);
        }
    }
}

/// A disk that cannot read some blocks any more, until they are discarded.
#[derive(Debug)]
struct Worn {
    disk: Rc<Segments>,
    /// The first block of data that was written.
    data: Cell<Option<Block>>,
    lost: RefCell<Range<u64>>,
}

impl BlockPort for Worn {
    fn capacity_blocks(&self) -> u64 {
        self.disk.capacity_blocks()
    }

    fn segment_blocks(&self) -> u32 {
        self.disk.segment_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        let mut lost = self.lost.borrow_mut();
        match &request {
            Request::Write(write) if matches!(write.payloads[0], Payload::Tag(_)) => {
                self.data.set(self.data.get().or(Some(write.block)));
                self.disk.submit(request)
            }
            Request::Discard { block, .. } if lost.contains(&block.0) => {
                *lost = 0..0;
                self.disk.submit(request)
            }
            Request::Read { block, count }
                if block.0 < lost.end && lost.start < block.0 + u64::from(*count) =>
            {
                let at = Address::Lba(Lba(block.0 * 8));
                Ticket::done(Err(PortError::Device(DeviceError::Uncorrectable { at })))
            }
            _ => self.disk.submit(request),
        }
    }
}

/// Once every second request for room got the error of a block that it had nothing to do with.
#[test]
fn regression_cleaning_leaves_what_it_cannot_read() {
    let disk = Rc::new(Segments::in_memory(64, 512));
    block_on(mkfs(&*disk, &Options::new(disk.capacity_blocks()))).unwrap();
    let worn = Rc::new(Worn { disk, data: Cell::default(), lost: RefCell::new(0..0) });
    let fs = block_on(mount(Rc::clone(&worn) as Rc<dyn BlockPort>, small_files())).unwrap();
    let mut user = User { fs, files: BTreeMap::new(), version: 0 };
    let mut random = RandomStream::new(1, "a worn volume");
    fill(&mut user, 0, 8);
    thin_out(&mut user, 0, 3, &mut random);
    let cleaned = user.fs.metrics().cleaned_foreground;
    let segment = worn.data.get().unwrap().0 / 512;
    *worn.lost.borrow_mut() = segment * 512..(segment + 1) * 512;
    for round in 1..4 {
        fill(&mut user, round, 8);
        thin_out(&mut user, round, 3, &mut random);
    }
    assert!(user.fs.metrics().cleaned_foreground > cleaned + 8, "segments were cleaned");
    assert!(user.fs.unreadable_sections() > 0, "cleaning met some of them");
}

/// A volume after a power cut: a synced file whose direct nodes no checkpoint has.
fn synced_file() -> Segments {
    let disk = Rc::new(Segments::in_memory(64, 512));
    block_on(mkfs(&*disk, &Options::new(disk.capacity_blocks()))).unwrap();
    let fs = User::open(&disk, small_files()).unwrap();
    let mut user = User { fs, files: BTreeMap::new(), version: 0 };
    user.write(b"file", 0, 1).unwrap();
    user.sync().unwrap();
    user.write(b"file", 0, 1_500).unwrap();
    user.fsync(b"file").unwrap();
    disk.woken(|states| states - 1)
}

/// The disk with other bytes in the first direct node of a file, wherever it was written.
fn with_node(disk: &Segments, change: impl Fn(&mut [u8])) -> Rc<Segments> {
    let mut contents = disk.contents();
    let mut changed = 0;
    for payload in contents.iter_mut().flatten() {
        let mut bytes = bytes_of(payload).to_vec();
        let footer = Footer::decode(&bytes);
        if matches!(payload, Payload::Bytes(_)) && footer.offset == 1 && footer.checkpoint != 0 {
            change(&mut bytes);
            *payload = payload_of(bytes[..].try_into().unwrap());
            changed += 1;
        }
    }
    assert_eq!(changed, 1, "the file was synced once");
    rebuilt(&contents)
}

fn rebuilt(contents: &[Vec<Payload>]) -> Rc<Segments> {
    let at = |block: Block| contents[block.0 as usize / 512].get(block.0 as usize % 512).cloned();
    Rc::new(Segments::with_contents(contents.len() as u32, 512, at))
}

/// Once a mount took any number, and ended in a panic, without memory, or with a file that had lost what was synced.
#[test]
fn regression_a_synced_node_with_an_impossible_number_is_refused() {
    let disk = synced_file();
    let fs = User::open(&with_node(&disk, |_| ()), small_files()).unwrap();
    assert!(fs.recovered().nodes > 1);
    for nid in [0, 1, 3, 31 << 10, 1 << 20, u32::MAX] {
        let numbered =
            with_node(&disk, |bytes| Footer { nid: Nid(nid), ..Footer::decode(bytes) }.encode(bytes));
        let error = User::open(&numbered, small_files()).map(drop).unwrap_err();
        assert!(error.contains("has the number"), "{nid}: {error}");
    }
}

/// Once such a block became one of zeros, or the mount waited for ever.
#[test]
fn regression_a_synced_node_that_names_blocks_never_written_is_refused() {
    let disk = synced_file();
    let written = |segment: u32| disk.contents()[segment as usize].len() as u32;
    let open = (8..64).find(|&segment| (1..510).contains(&written(segment))).unwrap();
    let unwritten = (8..64).find(|&segment| written(segment) == 0).unwrap();
    for addr in [open * 512 + written(open), unwritten * 512] {
        let wrong = with_node(&disk, |bytes| node::set_word(bytes, 7, addr));
        let error = User::open(&wrong, small_files()).map(drop).unwrap_err();
        assert!(error.contains("which was never written"), "{addr}: {error}");
    }
}

/// Once one block that cannot be read refused a volume that needs nothing of it.
#[test]
fn regression_blocks_that_nobody_needs_may_be_unreadable() {
    let disk = Rc::new(Segments::in_memory(64, 512));
    block_on(mkfs(&*disk, &Options::new(disk.capacity_blocks()))).unwrap();
    let fs = User::open(&disk, small_files()).unwrap();
    let mut user = User { fs, files: BTreeMap::new(), version: 0 };
    let mut before = disk.contents();
    while disk.contents()[2].is_empty() {
        before = disk.contents();
        user.write(b"file", 0, 1).unwrap();
        user.sync().unwrap();
    }
    // The power failed before the discard of the old segment of packs.
    let mut contents = disk.contents();
    contents[1] = before[1].clone();
    let mounted = |lost: Range<u64>| {
        let port = Worn { disk: rebuilt(&contents), data: Cell::default(), lost: RefCell::new(lost) };
        let port: Rc<dyn BlockPort> = Rc::new(port);
        let checked = block_on(check(Rc::clone(&port)));
        let problems = checked.map(|report| report.problems).map_err(|error| error.to_string());
        (problems, block_on(mount(port, small_files())).map(drop).map_err(|error| error.to_string()))
    };
    let ends = [1, 2].map(|segment: u64| segment * 512 + contents[segment as usize].len() as u64 - 1);
    assert_eq!(mounted(ends[0]..ends[0] + 1), (Ok(vec![]), Ok(())), "the older segment of packs");
    let (problems, is_mounted) = mounted(0..1);
    assert_eq!(is_mounted, Ok(()), "a copy of the superblock");
    assert!(problems.unwrap()[0].what.contains("block 0 cannot be read"));
    for needed in [ends[1]..ends[1] + 1, 512..1024, 0..2] {
        let (problems, is_mounted) = mounted(needed.clone());
        assert!(problems.is_err() && is_mounted.unwrap_err().contains("ncorrectable"), "{needed:?}");
    }
}
