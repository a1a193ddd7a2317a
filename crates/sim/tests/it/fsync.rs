//! fsync of F2FS on the model device: after a cut, in every state that the contract allows, what was synced is there,
//! no file shows another file's data, and the volume is consistent.
//!
//! Each write of a file creates a version with a byte value of its own, so that each byte found identifies its file and
//! version.

use flashweir_contract::{DeviceKind, Exploration, LogPos};
use flashweir_core::{Payload, RandomStream};
use flashweir_fs::f2fs::write::PlantedBug;
use flashweir_fs::f2fs::{self, F2fs, F2fsMetrics, F2fsOptions, Flushing, InPlace};
use flashweir_fs::port::{BLOCK_BYTES, BlockPort, block_on, bytes_of};
use flashweir_fs::vfs::{
    Attr, DirtyPage, Errno, Fs, Ino, Kind, NewAcls, NewNode, RenameMode, SetAttr, SyncKind, Timestamp,
    WriteCause,
};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const PAGE: u64 = BLOCK_BYTES as u64;
const VOLUME_BLOCKS: u64 = 64 << 8;
const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanos: 0 };

type Name = (Ino, String);

/// Content of a file at one time: `bytes` times `byte` from `File::base` on.
#[derive(Clone, Copy, Debug)]
struct Version {
    byte: u8,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct File {
    ino: Ino,
    /// Differs when the number is reused by another file.
    generation: u32,
    base: u64,
    versions: Vec<Version>,
    /// Index of the version that was synced last.
    synced: Option<usize>,
    /// Names under which it may be found: the synced name and those that it had since; the last is the present one.
    names: Vec<Name>,
    has_name: bool,
    /// Pages that no write has sent to the disk.
    unwritten: BTreeSet<u64>,
}

impl File {
    fn name(&self) -> &Name {
        self.names.last().expect("a file was created with a name")
    }

    fn now(&self) -> Version {
        *self.versions.last().expect("it is created empty")
    }
}

/// A mounted volume and its expected contents.
struct Host {
    fs: F2fs,
    files: Vec<File>,
    dirs: Vec<Ino>,
    bytes: u8,
}

fn run<T>(what: impl Future<Output = Result<T, Errno>>) -> T {
    block_on(what).unwrap()
}

fn node(kind: Kind) -> NewNode {
    NewNode { kind, mode: 0o600, uid: 0, gid: 0, now: NOW, acls: NewAcls::default() }
}

impl Host {
    fn create(&mut self, random: &mut RandomStream) {
        let dir = self.dirs[random.below(self.dirs.len() as u64) as usize];
        let name = (dir, format!("n{}", random.below(6)));
        if self.files.iter().any(|file| file.has_name && *file.name() == name) {
            return;
        }
        let Attr { ino, generation, .. } = run(self.fs.create(dir, name.1.as_bytes(), &node(Kind::File)));
        run(self.fs.hold(ino));
        // Positions within the inode, across its end, and across the end of the second direct node.
        let base = [0, 0, 870, 873 + 2 * 1018 - 2][random.below(4) as usize] * PAGE;
        let empty = Version { byte: 0, bytes: 0 };
        self.files.push(File {
            ino,
            generation,
            base,
            versions: vec![empty],
            synced: None,
            names: vec![name],
            has_name: true,
            unwritten: BTreeSet::new(),
        });
    }

    fn write(&mut self, at: usize, random: &mut RandomStream) {
        self.bytes = self.bytes.checked_add(1).expect("a byte for each version");
        // Every second version fits into the inode.
        let most = if self.bytes.is_multiple_of(2) { 3000 } else { 6 * PAGE };
        let version = Version { byte: self.bytes, bytes: 1 + random.below(6 * PAGE) % most };
        let file = &mut self.files[at];
        let (ino, end) = (file.ino, file.base + version.bytes);
        if version.bytes < file.now().bytes {
            run(self.fs.setattr(ino, &SetAttr { size: Some(end), ..SetAttr::default() }));
        }
        file.versions.push(version);
        let pages = file.base / PAGE..end.div_ceil(PAGE);
        run(self.fs.reserve(ino, (file.base, end)));
        self.fs.wrote(ino, end, NOW);
        file.unwritten = pages.collect();
        let now = file.unwritten.iter().copied().filter(|_| random.below(4) > 0).collect();
        self.write_pages(at, now, WriteCause::Background);
    }

    fn write_pages(&mut self, at: usize, pages: BTreeSet<u64>, cause: WriteCause) {
        let file = &mut self.files[at];
        let (version, base) = (file.now(), file.base);
        let pages: Vec<DirtyPage> = pages
            .into_iter()
            .map(|index| {
                let bytes = (base + version.bytes - index * PAGE).min(PAGE) as usize;
                let mut content = vec![0; BLOCK_BYTES];
                content[..bytes].fill(version.byte);
                DirtyPage { index, payload: Payload::Bytes(content.into()) }
            })
            .collect();
        for page in &pages {
            file.unwritten.remove(&page.index);
        }
        if !pages.is_empty() {
            run(self.fs.write_pages(file.ino, &pages, cause));
        }
    }

    fn sync(&mut self, at: usize, kind: SyncKind) {
        let pages = self.files[at].unwritten.clone();
        self.write_pages(at, pages, WriteCause::Sync);
        run(self.fs.fsync(self.files[at].ino, kind));
        let file = &mut self.files[at];
        file.synced = Some(file.versions.len() - 1);
        file.names = vec![file.name().clone()];
    }

    fn unlink(&mut self, at: usize) {
        let file = &mut self.files[at];
        let (dir, name) = file.name().clone();
        run(self.fs.unlink(dir, name.as_bytes(), NOW));
        file.has_name = false;
        run(self.fs.release(file.ino));
    }

    fn rename(&mut self, at: usize, random: &mut RandomStream) {
        let from = self.files[at].name().clone();
        let to = (self.dirs[random.below(self.dirs.len() as u64) as usize], format!("n{}", random.below(6)));
        if from == to {
            return;
        }
        let replaced = self.files.iter().position(|file| file.has_name && *file.name() == to);
        run(self.fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), RenameMode::Replace, NOW));
        if let Some(replaced) = replaced {
            self.files[replaced].has_name = false;
            run(self.fs.release(self.files[replaced].ino));
        }
        self.files[at].names.push(to);
    }

    fn step(&mut self, random: &mut RandomStream) {
        let named: Vec<usize> = (0..self.files.len()).filter(|&at| self.files[at].has_name).collect();
        let Some(&at) = named.get(random.below(named.len().max(1) as u64) as usize) else {
            return self.create(random);
        };
        match random.below(20) {
            0..=3 => self.create(random),
            4..=9 => self.write(at, random),
            10..=13 => self.sync(at, SyncKind::All),
            14 | 15 => self.sync(at, SyncKind::Data),
            16 => self.unlink(at),
            17 | 18 => self.rename(at, random),
            _ if self.dirs.len() < 4 => {
                let name = format!("dir-{}", self.dirs.len());
                self.dirs
                    .push(run(self.fs.create(self.dirs[0], name.as_bytes(), &node(Kind::Directory))).ino);
            }
            _ => run(self.fs.sync()),
        }
    }
}

/// Returns the content of a file from `base` on.
fn content(fs: &F2fs, attr: &Attr, base: u64) -> Vec<u8> {
    let size = attr.size.saturating_sub(base);
    let mut pages = vec![Payload::Zero; size.div_ceil(PAGE) as usize];
    run(fs.read_pages(attr.ino, base / PAGE, &mut pages));
    let mut bytes: Vec<u8> = pages.iter().flat_map(|page| bytes_of(page).to_vec()).collect();
    bytes.truncate(size as usize);
    bytes
}

/// Returns the reason why a content cannot be that of a file of which `versions` may be seen, the first of which was
/// synced.
fn wrong(content: &[u8], versions: &[Version]) -> Option<String> {
    if !versions.iter().any(|version| version.bytes == content.len() as u64) {
        return Some(format!("it has {} bytes", content.len()));
    }
    let covers = |version: &Version, at: usize| (at as u64) < version.bytes;
    let bad = content.iter().enumerate().find(|&(at, &byte)| match byte {
        0 => versions.iter().all(|version| covers(version, at)),
        byte => !versions.iter().any(|version| version.byte == byte && covers(version, at)),
    });
    bad.map(|(at, byte)| format!("its byte {at} of {} is {byte}", content.len()))
}

/// Returns the fault of a volume after a cut: `before` was promised, and everything up to `after` may be seen.
fn judge(port: ModelPort, before: &[File], after: &[File], options: &F2fsOptions) -> Result<(), String> {
    let port: Rc<dyn BlockPort> = Rc::new(port);
    let fs =
        block_on(F2fs::mount_with(Rc::clone(&port), options.clone())).map_err(|error| error.to_string())?;
    let mut seen: BTreeMap<Name, Option<Attr>> = BTreeMap::new();
    for (at, file) in after.iter().enumerate() {
        let promised = before.get(at).and_then(|file| file.synced);
        let mut names = file.names.clone();
        names.extend(before.get(at).iter().flat_map(|file| file.names.clone()));
        let versions = &file.versions[promised.unwrap_or(0)..];
        let mut why = format!("file {at} is nowhere");
        let mut is_there = false;
        for name in names {
            let found = seen
                .entry(name.clone())
                .or_insert_with(|| block_on(fs.lookup(name.0, name.1.as_bytes())).ok());
            let Some(attr) = found else { continue };
            if (attr.ino, attr.generation) != (file.ino, file.generation) {
                continue;
            }
            match wrong(&content(&fs, attr, file.base), versions) {
                None => is_there = true,
                Some(what) => why = format!("file {at} at {name:?}: {what}; it may be {versions:?}"),
            }
        }
        let was_held = before.get(at).is_none_or(|file| file.has_name) && file.has_name;
        if !is_there && (promised.is_some() && was_held || !why.ends_with("nowhere")) {
            return Err(why);
        }
    }
    let report = block_on(f2fs::check(port)).map_err(|error| error.to_string())?;
    if report.is_good() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
}

/// Counts of a campaign.
#[derive(Debug, Default)]
struct Seen {
    states: u64,
    nested: u64,
    counts: F2fsMetrics,
}

/// Runs one history with cuts in it.
fn campaign(seed: u64, options: &F2fsOptions, cuts: u64) -> Result<Seen, String> {
    let mut random = RandomStream::new(seed, "fsync");
    let port = ModelPort::new(DeviceKind::D1.policy(), VOLUME_BLOCKS, FlushMode::RangeFlush);
    block_on(f2fs::mkfs(&port, &f2fs::Options::new(VOLUME_BLOCKS))).unwrap();
    block_on(port.flush().completed()).unwrap();
    let fs = block_on(F2fs::mount_with(Rc::new(port.clone()), options.clone())).unwrap();
    let root = fs.root();
    let mut host = Host { fs, files: Vec::new(), dirs: vec![root], bytes: 0 };
    // Positions between operations, each with the promises that hold there.
    let mut history = vec![(port.position(), host.files.clone())];
    for _ in 0..150 {
        host.step(&mut random);
        history.push((port.position(), host.files.clone()));
    }
    let mut seen = Seen { counts: host.fs.metrics(), ..Seen::default() };
    let (first, last) = (history[0].0.0, port.position().0);
    let exploration =
        Exploration { exhaustive_atoms_max: 5, random_draws: 6, seed, ..Exploration::default() };
    for cut in 0..cuts {
        let upto = LogPos(first + random.below(u64::from(last - first) + 1) as u32);
        let next = history.iter().position(|(end, _)| *end >= upto).expect("a cut within the history");
        let after = &history[next].1;
        let before = if history[next].0 == upto { after } else { &history[next - 1].1 };
        let exploration = Exploration { seed: seed ^ cut, ..exploration };
        let (mut states, mut nested) = (0, 0);
        // Many states differ little, so only some are checked.
        let mut some = 0;
        let mut is_chosen = |first: u64, every: u64| {
            some += 1;
            some <= first || some % every == 0
        };
        port.after_cut(upto, exploration, |woken| {
            if !is_chosen(8, 17) {
                return Ok(());
            }
            states += 1;
            judge(woken.clone(), before, after, options)
                .map_err(|why| format!("seed {seed}, {upto:?}: {why}"))?;
            // The power fails again during recovery.
            if cut % 4 == 0 {
                let again = LogPos(random.below(u64::from(woken.position().0) + 1) as u32);
                let few = Exploration { exhaustive_atoms_max: 2, random_draws: 2, seed: cut, pairs: false };
                let mut left = 4;
                woken.after_cut(again, few, |woken| {
                    if left == 0 {
                        return Ok(());
                    }
                    (left, nested) = (left - 1, nested + 1);
                    judge(woken, before, after, options)
                        .map_err(|why| format!("seed {seed}, {upto:?}, then {again:?}: {why}"))
                })?;
            }
            Ok::<_, String>(())
        })?;
        seen.states += states;
        seen.nested += nested;
    }
    Ok(seen)
}

fn options(fsync: Flushing, checkpoint: Flushing, planted: Option<PlantedBug>) -> F2fsOptions {
    F2fsOptions { fsync, checkpoint, planted, ..F2fsOptions::default() }
}

#[test]
fn what_was_synced_survives() {
    use Flushing::{Flush, RangeFlush};
    for (fsync, checkpoint) in [(Flush, Flush), (RangeFlush, RangeFlush), (RangeFlush, Flush)] {
        for seed in 0..2 {
            let seen = campaign(seed, &options(fsync, checkpoint, None), 24)
                .unwrap_or_else(|why| panic!("{fsync:?}, {checkpoint:?}: {why}"));
            assert!(seen.counts.fsyncs_by_nodes > 10 && seen.counts.fsyncs_by_checkpoint > 3, "{seen:?}");
            assert!(seen.states > 100 && seen.nested > 20, "{seen:?}");
        }
    }
}

#[test]
fn what_was_synced_by_checkpoints_survives() {
    let checkpoints = F2fsOptions {
        fastboot: true,
        in_place: InPlace { force: true, ..InPlace::default() },
        ..options(Flushing::RangeFlush, Flushing::RangeFlush, None)
    };
    for seed in 0..4 {
        let seen = campaign(seed, &checkpoints, 24).unwrap_or_else(|why| panic!("{why}"));
        assert!(seen.counts.fsyncs_by_nodes == 0 && seen.counts.fsyncs_by_checkpoint > 10, "{seen:?}");
        assert!(seen.counts.in_place_pages > 10 && seen.states > 100, "{seen:?}");
    }
    let planted = F2fsOptions { planted: Some(PlantedBug::NoFileInCheckpoint), ..checkpoints };
    let why = (0..4).find_map(|seed| campaign(seed, &planted, 24).err()).expect("a synced page is lost");
    assert!(why.contains("file "), "{why}");
}

#[test]
fn leaving_out_the_metadata_half_of_the_pair_is_found() {
    let planted = options(Flushing::RangeFlush, Flushing::RangeFlush, Some(PlantedBug::NoMetadataFlush));
    let why = (0..4).find_map(|seed| campaign(seed, &planted, 24).err()).expect("a synced file is lost");
    assert!(why.contains("file "), "{why}");
}
