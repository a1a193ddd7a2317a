//! The states that a power cut may leave of a program's work.
//!
//! A recording is replayed on a [`Disk`] that may show after a cut everything that a disk may show that keeps its promises. It is replayed
//! at several paces ([`Course`]), because the host's write-backs and commits depend on the time that passes between the calls.
//!
//! Place in the data flow: each drawn image is recovered by a mount; its visible contents are one [`Directory`].

use super::calls::{Call, Player, Step};
use super::disk::Disk;
use super::look::digest;
use crate::files::Effort;
use crate::files::Format;
use crate::files::explorer::choose;
use crate::files::sequence::begin;
use flashweir_contract::Contents;
use flashweir_core::random::mix;
use flashweir_core::{Duration, Lpn, Payload, RandomStream};
use flashweir_fs::port::BlockPort;
use flashweir_fs::vfs::{CacheConfig, MountOptions, Timestamp, Vfs};
use flashweir_fs::{AnyFs, NewVolume};
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::mount_on;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size of the page cache in bytes.
const CACHE_BYTES: u64 = 256 << 20;
/// Longer than ext4 waits until it commits, and shorter than dirty pages stay in memory.
const COMMITTED: Duration = Duration::from_secs(6);
/// Longer than dirty pages stay in memory.
const WRITTEN_BACK: Duration = Duration::from_secs(40);
/// Numbers out of ten calls in a drawn course after which the journal is committed, and after which everything is
/// synced.
const DRAWN_COMMITTED: u64 = 2;
const DRAWN_SYNCED: u64 = 1;
/// Maximum number of legal states examined at one position.
const STATES_AT_MAX: usize = 600;
/// Maximum number of positions of a course that are examined.
const POSITIONS_MAX: usize = 2_000;

/// Recording of a program's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Contents of the unmounted disk before.
    pub before: Arc<Contents>,
    /// Size of the disk in blocks.
    pub blocks: u64,
    /// Most blocks of one SHARE of the disk, if it has that.
    pub share_blocks_max: u32,
    /// Calls of the program, in the order in which they ended.
    pub steps: Vec<Step>,
    /// Number of bytes that it had printed at its end.
    pub printed: u64,
}

/// Bytes that had been printed, at least, at moments of a recording. Calls of several threads overlap, so the numbers of one call say
/// something about those that ended later, too.
struct Printed {
    /// When each call began, and at the end of all.
    begun: Vec<u64>,
    /// When each call had ended.
    ended: Vec<u64>,
}

impl Printed {
    fn new(recording: &Recording) -> Self {
        let (mut most, mut begun, mut ended) = (0, Vec::new(), Vec::new());
        for step in &recording.steps {
            most = step.printed.max(most);
            begun.push(most);
            most = step.printed_after.max(most);
            ended.push(most);
        }
        begun.push(recording.printed.max(most));
        Self { begun, ended }
    }
}

/// Scope of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// File system and its mode.
    pub format: Format,
    /// Number of drawn courses, beside the fixed ones.
    pub drawn: u32,
    /// Maximum number of images of a course that are recovered.
    pub states_max: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of threads.
    pub threads: usize,
}

/// The passing of time between the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Course {
    /// Calls follow each other at once.
    Busy,
    /// After each call the journal is committed, as it is after some seconds.
    Committed,
    /// After each call everything is written back, as it is after half a minute, and then synced, as another process
    /// may do.
    Synced,
    /// After some calls one of the two happens.
    Drawn(u64),
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("no time passes between the calls"),
            Self::Committed => f.write_str("6 s pass after each call"),
            Self::Synced => f.write_str("40 s pass after each call, and everything is synced"),
            Self::Drawn(seed) => {
                write!(f, "after some calls 6 s pass, after some 40 s and a sync (draw {seed})")
            }
        }
    }
}

impl Course {
    fn all(config: &Config) -> Vec<Self> {
        let first = config.seed.wrapping_mul(1_000);
        let drawn = (0..u64::from(config.drawn)).map(|draw| Self::Drawn(first.wrapping_add(draw)));
        [Self::Busy, Self::Committed, Self::Synced].into_iter().chain(drawn).collect()
    }

    /// Returns the idle time after a call, and whether everything is synced then.
    fn pause(self, step: usize) -> (Duration, bool) {
        match self {
            Self::Busy => (Duration::ZERO, false),
            Self::Committed => (COMMITTED, false),
            Self::Synced => (WRITTEN_BACK, true),
            Self::Drawn(seed) => match RandomStream::new(mix(seed) ^ step as u64, "pauses").below(10) {
                draw if draw < DRAWN_SYNCED => (WRITTEN_BACK, true),
                draw if draw < DRAWN_SYNCED + DRAWN_COMMITTED => (COMMITTED, false),
                _ => (Duration::ZERO, false),
            },
        }
    }
}

/// The moment of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Number of calls that had ended.
    pub ended: usize,
    /// Whether the next one had begun.
    pub in_next: bool,
    /// Number of bytes that the program had printed.
    pub printed: u64,
    /// Course of time.
    pub course: Course,
}

/// A directory that a power cut may leave.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Hash of its visible contents.
    pub digest: u64,
    /// Contents of a disk that shows it, where they differ from those before the recording; `None` where nothing is any more.
    changes: BTreeMap<Lpn, Option<Payload>>,
    /// The first moment at which the least had been printed.
    pub least: Moment,
    /// The first moment at which the most had been printed.
    pub most: Moment,
}

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of courses of time.
    pub courses: u64,
    /// Number of positions of the disk's log at which the power could be cut.
    pub positions: u64,
    /// … of which the number at which it was cut.
    pub cuts: u64,
    /// Number of drawn states that the disk may be in there.
    pub allowed: u64,
    /// Number of images among them that were not recovered because there were more than [`Config::states_max`]. An
    /// image that is allowed at several positions counts once.
    pub left_out: u64,
    /// Number of different images that were recovered.
    pub recovered: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.courses += other.courses;
        self.positions += other.positions;
        self.cuts += other.cuts;
        self.allowed += other.allowed;
        self.left_out += other.left_out;
        self.recovered += other.recovered;
    }
}

/// Reason why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The calls cannot be replayed: they depend on the order of calls of several threads.
    Again(String),
    /// A recovery fails: a bug of ours.
    Recovery(String),
    /// The caller stopped the exploration.
    Stopped,
}

/// Returns the contents of a fresh file system on a disk of `blocks` blocks, whose root belongs to a user and group.
///
/// # Errors
/// A message for the user if there is no room for a file system.
pub fn fresh(format: Format, blocks: u64, root_owner: (u32, u32)) -> Result<Contents, String> {
    let mut disk = Disk::with_contents(format, &Arc::default(), blocks, 0);
    let made = disk.run(move |disk, _| async move {
        let new = NewVolume::new(blocks).owned_by(root_owner);
        format.kind.mkfs(&*disk, &new).await.map(drop).map_err(|error| error.to_string())
    });
    made.unwrap_or_else(|| Err("it waits for ever".into()))?;
    Ok(disk.contents())
}

/// Mounts a file system as [`Format`] says. Errors are messages for the user.
async fn mount(disk: Rc<dyn BlockPort>, format: Format) -> Result<AnyFs, String> {
    mount_on(disk, FlushMode::Flush, &format.into()).await.map_err(|error| error.to_string())
}

fn options() -> MountOptions {
    MountOptions { cache: CacheConfig::of_bytes(CACHE_BYTES), ..MountOptions::default() }
}

/// Positions in the log of the disk at which a call began and ended.
#[derive(Clone, Copy, Debug)]
struct Span {
    begun: u32,
    ended: u32,
}

/// One replay of the recording.
struct Run {
    disk: Disk,
    printed: Printed,
    spans: Vec<Span>,
    end: u32,
}

fn play(recording: &Arc<Recording>, format: Format, course: Course) -> Result<Run, Wrong> {
    let mut disk =
        Disk::with_contents(format, &recording.before, recording.blocks, recording.share_blocks_max);
    let spans = Rc::new(RefCell::new(Vec::new()));
    let (noted, log, calls) = (Rc::clone(&spans), disk.position(), Arc::clone(recording));
    let played = disk.run(move |disk, handle| async move {
        let fs = mount(disk, format).await.map_err(Wrong::Recovery)?;
        let vfs = Vfs::mount(fs, handle.clone(), options());
        let vfs = vfs.map_err(|error| Wrong::Recovery(error.to_string()))?;
        begin(&vfs).await.map_err(|errno| Wrong::Recovery(format!("the first checkpoint: {errno:?}")))?;
        let mut player = Player::new(vfs.clone());
        for (index, step) in calls.steps.iter().enumerate() {
            let begun = log();
            let made = player.apply(&step.call).await;
            made.map_err(|errno| Wrong::Again(format!("call {}, {}: {errno}", index + 1, step.shown)))?;
            noted.borrow_mut().push(Span { begun, ended: log() });
            let (pause, is_synced) = course.pause(index);
            handle.sleep_until(handle.now() + pause).await;
            if is_synced {
                vfs.sync_all().await.map_err(|errno| Wrong::Recovery(format!("sync: {errno}")))?;
            }
        }
        Ok(log())
    });
    let end = played.unwrap_or_else(|| Err(Wrong::Recovery("it waits for ever".into())))?;
    let spans = spans.take();
    Ok(Run { disk, printed: Printed::new(recording), spans, end })
}

impl Run {
    /// Returns the first and the last moment of a cut at this position of the log. Calls that write nothing, and what is printed between
    /// calls, leave the position as it is.
    fn moments(&self, course: Course, position: u32) -> [Moment; 2] {
        let ended = self.spans.partition_point(|span| span.ended < position);
        let in_next = self.spans.get(ended).is_some_and(|span| span.begun < position);
        let printed = match (in_next, ended) {
            (true, _) => self.printed.begun[ended],
            (false, 0) => 0,
            (false, _) => self.printed.ended[ended - 1],
        };
        let first = Moment { ended, in_next, printed, course };
        let begun = self.spans.partition_point(|span| span.begun <= position);
        let ended = self.spans.partition_point(|span| span.ended <= position).min(begun);
        let in_next = begun > ended;
        let printed = self.printed.begun[if in_next { ended } else { begun }];
        [first, Moment { ended, in_next, printed, course }]
    }
}

/// Returns the hash of what a mount that recovers a disk shows.
fn recover(disk: &mut Disk, format: Format, named: &Arc<BTreeSet<Timestamp>>) -> Result<u64, Wrong> {
    let named = Arc::clone(named);
    let recovered = disk.run(move |disk, handle| async move {
        let fs = mount(disk, format).await?;
        let vfs = Vfs::mount(fs, handle, options()).map_err(|error| error.to_string())?;
        let seen = digest(&vfs, &named).await?;
        vfs.unmount().await.map_err(|errno| format!("unmount: {errno}"))?;
        Ok(seen)
    });
    recovered.unwrap_or_else(|| Err("recovery waits for ever".into())).map_err(Wrong::Recovery)
}

/// Returns the times that calls of a recording have named.
fn times_named(recording: &Recording) -> BTreeSet<Timestamp> {
    let changes = recording.steps.iter().filter_map(|step| match &step.call {
        Call::SetAttr { changes, .. } => Some(changes),
        _ => None,
    });
    changes.flat_map(|changes| [changes.atime, changes.mtime]).flatten().collect()
}

/// Results of one course.
type OfCourse = Result<(Counts, BTreeMap<u64, Directory>), Wrong>;

/// Explores one course. `go_on` gets the number of images recovered since its last call, and returns whether to continue.
fn of_course(
    recording: &Arc<Recording>,
    config: &Config,
    course: Course,
    go_on: &dyn Fn(u64) -> bool,
) -> OfCourse {
    let run = play(recording, config.format, course)?;
    let (disk, effort) = (&run.disk, Effort { draws: 40, ..Effort::default() });
    // At the end of a call there is nothing new on the disk, but what it promised counts from there on.
    let ends = run.spans.iter().flat_map(|span| [span.begun, span.ended]).filter(|at| *at <= run.end);
    let ends: BTreeSet<u32> = ends.collect();
    let cuts: BTreeSet<u32> = disk.positions(run.end).into_iter().chain(ends.iter().copied()).collect();
    // Of many positions, uses those at the ends of calls and some of the others.
    let stride = (cuts.len() / POSITIONS_MAX + 1) as u64;
    let positions = cuts.len() as u64;
    let is_used =
        |cut: &u32| ends.contains(cut) || mix(u64::from(*cut) ^ mix(config.seed)).is_multiple_of(stride);
    let cuts: Vec<u32> = cuts.into_iter().filter(is_used).collect();
    let mut counts = Counts { courses: 1, positions, cuts: cuts.len() as u64, ..Counts::default() };
    let (mut by_cut, mut images) = (Vec::new(), BTreeSet::new());
    for &cut in &cuts {
        if !go_on(0) {
            return Err(Wrong::Stopped);
        }
        let mut states = disk.states_at(cut, config.seed, &effort);
        counts.allowed += states.len() as u64;
        images.extend(states.iter().map(|(image, _)| *image));
        if states.len() > STATES_AT_MAX {
            // Those that keep nothing and everything come first and those at random last; of the others some are kept.
            let drawn = states.split_off(states.len() - effort.draws as usize);
            states[2..].sort_unstable_by_key(|(image, _)| mix(image ^ config.seed));
            states.truncate(STATES_AT_MAX - drawn.len());
            states.extend(drawn);
        }
        by_cut.push((cut, states));
    }
    choose(&mut by_cut, config.seed, config.states_max);
    let named = Arc::new(times_named(recording));
    let mut digests: BTreeMap<u64, u64> = BTreeMap::new();
    let mut directories: BTreeMap<u64, Directory> = BTreeMap::new();
    for (cut, states) in by_cut {
        let [least, most] = run.moments(course, cut);
        for (image, state) in states {
            let known = digests.get(&image).copied();
            let seen = match known {
                Some(seen) => seen,
                None => {
                    if !go_on(1) {
                        return Err(Wrong::Stopped);
                    }
                    let seen = recover(&mut disk.woken(cut, &state), config.format, &named)?;
                    counts.recovered += 1;
                    digests.insert(image, seen);
                    seen
                }
            };
            let changes = || {
                let now = disk.woken(cut, &state).contents();
                let gone =
                    recording.before.keys().filter(|lpn| !now.contains_key(lpn)).map(|lpn| (*lpn, None));
                let mut changes: BTreeMap<Lpn, Option<Payload>> = gone.collect();
                let new = now.into_iter().filter(|(lpn, content)| recording.before.get(lpn) != Some(content));
                changes.extend(new.map(|(lpn, content)| (lpn, Some(content))));
                changes
            };
            let directory = directories.entry(seen).or_insert_with(|| Directory {
                digest: seen,
                changes: changes(),
                least,
                most,
            });
            directory.meet(least, most);
        }
    }
    counts.left_out = images.len() as u64 - counts.recovered;
    Ok((counts, directories))
}

impl Directory {
    /// Returns the contents of a disk that shows it; `before` are the contents before the recording.
    pub fn contents(&self, before: &Contents) -> Contents {
        let mut contents = before.clone();
        for (lpn, content) in &self.changes {
            match content {
                Some(content) => drop(contents.insert(*lpn, content.clone())),
                None => drop(contents.remove(lpn)),
            }
        }
        contents
    }

    /// Adds further moments at which it may be observed.
    fn meet(&mut self, least: Moment, most: Moment) {
        if least.printed < self.least.printed {
            self.least = least;
        }
        if most.printed > self.most.printed {
            self.most = most;
        }
    }
}

/// State that the threads share.
struct Shared<P> {
    next: usize,
    ended: BTreeMap<usize, OfCourse>,
    recovered: u64,
    stop: bool,
    progress: P,
}

impl<P> Shared<P> {
    /// Returns the index of the next course.
    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns each directory that a power cut may leave, in the order in which they are first found; nothing else depends
/// on the number of threads. `progress` gets the fraction that is done, and returns whether to continue.
///
/// # Errors
/// See [`Wrong`].
pub fn directories(
    recording: &Arc<Recording>,
    config: &Config,
    progress: impl FnMut(f64) -> bool + Send,
) -> Result<(Counts, Vec<Directory>), Wrong> {
    let courses = Course::all(config);
    let expected = (courses.len() * config.states_max).max(1) as f64;
    let shared = Shared { next: 0, ended: BTreeMap::new(), recovered: 0, stop: false, progress };
    let shared = Mutex::new(shared);
    let go_on = |recovered: u64| {
        let mut shared = lock(&shared);
        shared.recovered += recovered;
        let courses_ended = shared.ended.len() as f64 / courses.len() as f64;
        let part = (shared.recovered as f64 / expected).max(courses_ended).min(1.0);
        shared.stop |= !(shared.progress)(part);
        !shared.stop
    };
    let work = || {
        loop {
            // The lock is released before the course begins.
            let index = lock(&shared).take();
            let Some(course) = courses.get(index) else { break };
            let ended = of_course(recording, config, *course, &go_on);
            lock(&shared).ended.insert(index, ended);
        }
    };
    std::thread::scope(|scope| {
        (1..config.threads.min(courses.len())).for_each(|_| {
            scope.spawn(work);
        });
        work();
    });
    let ended = shared.into_inner().unwrap_or_else(PoisonError::into_inner).ended;
    let mut counts = Counts::default();
    let mut all: Vec<Directory> = Vec::new();
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    for result in ended.into_values() {
        let (of_course, directories) = result?;
        counts.add(&of_course);
        let mut directories: Vec<Directory> = directories.into_values().collect();
        directories.sort_by_key(|directory| (directory.most, directory.digest));
        for directory in directories {
            match places.get(&directory.digest) {
                Some(place) => all[*place].meet(directory.least, directory.most),
                None => {
                    places.insert(directory.digest, all.len());
                    all.push(directory);
                }
            }
        }
    }
    Ok((counts, all))
}
