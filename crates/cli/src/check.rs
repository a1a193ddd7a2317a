//! `weir check`: any program under power cuts.
//!
//! Place in the data flow: the program works on a mount, which records the calls that change files; the laboratory makes the calls again
//! and finds the directories that a power cut may leave; each is mounted, and a command of the user judges it.
//!
//! Invariants: what is reported depends on the recording, the seed and the answers of that command, not on the number of threads;
//! at the end nothing is mounted, and all temporary files are removed.

use crate::error::{Failure, Outcome, say};
use crate::filesystem::caller;
use crate::images::{Blocks, write_image};
use crate::json;
use crate::options::{ResultArgs, Shape};
use crate::output::thousands;
use crate::output::{check, print_or_write};
use crate::progress::Bar;
use crate::run::threads;
use crate::values::time;
use crate::values::volume_size;
use crate::values::whole;
use clap::Args;
use clap::builder::PossibleValuesParser;
use flashweir_core::{Bytes, Duration};
use flashweir_crash::files::Format;
use flashweir_crash::files::setup::SEGMENT_BLOCKS;
use flashweir_crash::recorded::{
    Call, Config, Counts, Directory, Moment, Recording, Step, Wrong, directories, fresh,
};
use flashweir_device::config::DeviceConfig;
use flashweir_device::presets::preset;
use flashweir_fs::port::BLOCK_BYTES;
use flashweir_fs::vfs::{Ino, MountOptions};
use flashweir_serve::Speed;
use flashweir_serve::fuse::{Medium, Memory, MountConfig, Mounted, Recorder, mount};
use flashweir_sim::stack::FlushMode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, wait,
};
use rustix::time::Timespec;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration as WallDuration, Instant};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir check --verify './kv check {}' -- ./kv fill {}
  weir check --setup 'sqlite3 {}/db <schema.sql' --verify './verify.sh {}' --format f2fs -- ./load {}/db
  weir check --keep failing --verify './kv check {}' -- ./kv fill {}     keeps an image for each kind of failure

COMMAND runs once, on a mount at a temporary directory; {} stands for that directory (so does $WEIR_DIR). Everything that it \
does to files is recorded, repeated in virtual time on a disk that may lose whatever was not made durable, at several paces, \
and cut at each position, or at some of more than 2,000. Each directory that may be left is mounted, and the --verify command is run on it by sh: 0 is good, \
anything else is not.

What COMMAND prints is its promise: --verify gets on its standard input what had been printed when the power failed. A \
program that says `stored k1` after its fsync is held to that. Output has to be flushed (setvbuf, flush=True).

Exit codes: 0 everything is good, 1 something is not, 2 nothing could be judged. docs/check.md says what is tried, and what is not.")]
pub(crate) struct CheckArgs {
    /// Command that judges a directory after a power cut, by its exit code; {} is the directory, standard input what had been printed
    #[arg(long, value_name = "SHELL COMMAND")]
    verify: String,
    /// Command that runs first, on the empty directory; the power is never cut while it runs
    #[arg(long, value_name = "SHELL COMMAND")]
    setup: Option<String>,
    /// File system: ext4 is data=ordered, ext4-journal data=journal; f2fs-dual and ext4-dual are for disks with barriers; ext4-soj
    /// (ordered data), ext4-sdj (journalled data) and f2fs-ssc for disks with SHARE; alfs for disks of append segments, of 2 MiB here
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(Format::NAMES), default_value = "ext4")]
    format: String,
    /// Size of its disk
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = volume_size)]
    size: Bytes,
    /// Empty directory for the mount [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Random timings of the recorded calls to try, besides three fixed ones
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u32>(0, 10_000))]
    courses: u32,
    /// Maximum number of disk images to recover for each timing
    #[arg(long, value_name = "N", default_value_t = 1_500, value_parser = whole::<usize>(2, 10_000_000))]
    states: usize,
    /// Maximum number of directories that are judged
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole::<usize>(1, 10_000_000))]
    checks: usize,
    /// Time that --verify may take for each directory
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// Write an image of the disk, and what had been printed, for each kind of failure into this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    #[command(flatten)]
    results: ResultArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Number of calls that are shown before a power cut.
const CALLS_SHOWN: usize = 8;
/// Maximum number of unsynced changes that are shown.
const PENDING_SHOWN: usize = 6;
/// Interval at which cancellation is checked while a process runs.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Result of a check.
#[derive(Debug, Serialize)]
struct Report {
    format: &'static str,
    calls: usize,
    printed_bytes: u64,
    courses: u64,
    positions: u64,
    cuts: u64,
    states: u64,
    recovered: u64,
    states_left_out: u64,
    directories: usize,
    judged: usize,
    directories_left_out: usize,
    failures: Vec<Failed>,
}

/// Directories on which the check says the same.
#[derive(Debug, Serialize)]
struct Failed {
    says: String,
    directories: usize,
    /// The first of them: calls that had ended, and whether the next had begun.
    calls_ended: usize,
    in_next: bool,
    course: String,
    printed_bytes: u64,
    printed_last: String,
    calls: Vec<String>,
    not_synced: Vec<String>,
    kept: Option<PathBuf>,
}

/// `weir check`.
pub(crate) fn command(args: &CheckArgs, cancel: &AtomicBool) -> Outcome {
    // 1 is kept for what --verify says no to.
    let report = checked(args, cancel).map_err(|failure| match failure {
        Failure::Run(why) => Failure::Usage(why),
        other => other,
    })?;
    match report.failures.len() {
        0 => Ok(()),
        kinds => {
            let count: usize = report.failures.iter().map(|failed| failed.directories).sum();
            let (of, kinds) = (report.judged, plural(kinds, "kind of failure", "kinds of failure"));
            Err(Failure::Run(format!("--verify rejected {count} of {of} directories: {kinds}")))
        }
    }
}

/// Records, cuts, judges, and prints the report.
fn checked(args: &CheckArgs, cancel: &AtomicBool) -> Outcome<Report> {
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    if let Some(path) = &args.keep {
        let failed = |error| Failure::Usage(format!("--keep {}: cannot be made: {error}", path.display()));
        std::fs::create_dir_all(path).map_err(failed)?;
    }
    let format = Format::named(&args.format).expect("clap lets no other pass");
    let mut bench = Bench::begin(args, format)?;
    let blocks = blocks_of(args.size, format);
    let before = fresh(format, blocks, caller())
        .map_err(|why| Failure::Usage(format!("--size {}: {why}", args.size)))?;
    let mut before = Arc::new(before);
    if let Some(setup) = &args.setup {
        before = bench.changed(before, None, |bench| bench.setup(setup, cancel))?;
    }
    let path = bench.printed.clone();
    let recorder = Recorder::new(move || std::fs::metadata(&path).map_or(0, |found| found.len()));
    let program = |bench: &Bench<'_>| bench.program(cancel);
    let end = bench.changed(Arc::clone(&before), Some(recorder.clone()), program)?;
    bench.text = std::fs::read(&bench.printed).map_err(Failure::run)?;
    let printed = bench.text.len() as u64;
    let (steps, share_blocks_max) = (recorder.take(), bench.device.ftl.share.batch);
    if steps.iter().any(|step| step.printed.max(step.printed_after) > printed) {
        let why =
            "COMMAND began its output anew: expected a program that does not open its standard output again";
        return Err(Failure::Usage(why.into()));
    }
    let recording = Arc::new(Recording { before, blocks, share_blocks_max, steps, printed });
    if recording.steps.is_empty() {
        let why = "COMMAND changed nothing in the directory: expected {} or $WEIR_DIR to be where it works";
        return Err(Failure::Usage(why.into()));
    }
    if let Some(said) = bench.judged(end, printed, cancel)? {
        let what = "--verify rejects what COMMAND left even without a power cut";
        return Err(Failure::Usage(format!("{what}: {said}")));
    }
    let mut bar = Bar::new(args.results.quiet);
    let config = Config {
        format,
        drawn: args.courses,
        states_max: args.states,
        seed: args.seed,
        threads: threads(args.results.jobs),
    };
    let found = directories(&recording, &config, |fraction| {
        bar.set(fraction / 2.0, || "states of the disk".into());
        !cancel.load(Ordering::Relaxed)
    });
    let (counts, found) = found.map_err(|wrong| match wrong {
        Wrong::Stopped => Failure::Interrupted,
        Wrong::Again(why) => {
            Failure::Run(format!("the recorded calls cannot be replayed one after the other: {why}"))
        }
        Wrong::Recovery(why) => {
            Failure::Run(format!("this is a bug of the simulator, please report it: {why}"))
        }
    })?;
    let report = judge(&bench, &recording, counts, &found, &mut bar, cancel)?;
    bar.clear();
    let text = match args.results.shape.output {
        Shape::Table => report.table(),
        Shape::Json => json::pretty(json::Kind::Check, &report)?,
    };
    print_or_write(args.results.out.as_deref(), &text)?;
    // What was found until then is not lost.
    if cancel.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(report) }
}

/// Has each directory judged, or those until it is stopped.
fn judge(
    bench: &Bench<'_>,
    recording: &Arc<Recording>,
    counts: Counts,
    found: &[Directory],
    bar: &mut Bar,
    cancel: &AtomicBool,
) -> Outcome<Report> {
    // If there are too many, an evenly spread selection.
    let most = bench.args.checks.min(found.len());
    let mut report = Report {
        format: bench.format.name(),
        calls: recording.steps.len(),
        printed_bytes: recording.printed,
        courses: counts.courses,
        positions: counts.positions,
        cuts: counts.cuts,
        states: counts.allowed,
        recovered: counts.recovered,
        states_left_out: counts.left_out,
        directories: found.len(),
        judged: 0,
        directories_left_out: 0,
        failures: Vec::new(),
    };
    let chosen: Vec<&Directory> = (0..most).map(|at| &found[at * found.len() / most]).collect();
    report.directories_left_out = found.len() - chosen.len();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut judge = |directory: &Directory, report: &mut Report| -> Outcome {
        let contents = Arc::new(directory.contents(&recording.before));
        // The latest promise is the hardest to keep; with fewer promises there may be too much data.
        let asked = |moment: Moment| -> Outcome<Option<(Moment, String)>> {
            let said = bench.judged(Arc::clone(&contents), moment.printed, cancel)?;
            Ok(said.map(|said| (moment, said)))
        };
        let most = asked(directory.most)?;
        let is_same = directory.least.printed == directory.most.printed;
        let least = if is_same { None } else { asked(directory.least)? };
        // The earlier one is the easier to understand.
        let Some((moment, said)) = least.or(most) else { return Ok(()) };
        let kind: String = said.chars().filter(|c| !c.is_ascii_digit()).collect();
        match kinds.get(&kind) {
            Some(place) => report.failures[*place].directories += 1,
            None => {
                kinds.insert(kind, report.failures.len());
                let number = report.failures.len() + 1;
                report.failures.push(bench.failed(recording, &contents, moment, said, number)?);
            }
        }
        Ok(())
    };
    for (index, directory) in chosen.iter().enumerate() {
        bar.set(0.5 + index as f64 / chosen.len() as f64 / 2.0, || {
            format!("{index} of {} directories judged", chosen.len())
        });
        match judge(directory, &mut report) {
            Err(Failure::Interrupted) => {
                report.directories_left_out = found.len() - report.judged;
                break;
            }
            judged => judged?,
        }
        report.judged += 1;
    }
    Ok(report)
}

/// Place in which programs and checks run.
struct Bench<'a> {
    args: &'a CheckArgs,
    format: Format,
    device: DeviceConfig,
    /// Temporary directory, removed at the end.
    room: PathBuf,
    directory: PathBuf,
    printed: PathBuf,
    /// Everything that the program printed.
    text: Vec<u8>,
    said: PathBuf,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.room);
    }
}

impl<'a> Bench<'a> {
    fn begin(args: &'a CheckArgs, format: Format) -> Outcome<Self> {
        // What programs leave running becomes a child of ours, so that it can be killed.
        set_child_subreaper(Some(getpid())).map_err(Failure::run)?;
        let room = std::env::temp_dir().join(format!("weir-check-{}", std::process::id()));
        let directory = match &args.dir {
            Some(directory) => {
                let wrong = |why: String| Failure::Usage(format!("--dir {}: {why}", directory.display()));
                let entries = std::fs::read_dir(directory).map_err(|error| wrong(error.to_string()))?.count();
                if entries > 0 {
                    return Err(wrong("expected an empty directory".into()));
                }
                directory.canonicalize().map_err(|error| wrong(error.to_string()))?
            }
            None => room.join("mnt"),
        };
        for made in [&room, &directory] {
            let failed = |error| Failure::Run(format!("{}: cannot be made: {error}", made.display()));
            std::fs::create_dir_all(made).map_err(failed)?;
        }
        let (printed, said) = (room.join("printed"), room.join("said"));
        let device = device(format, args.size);
        Ok(Self { args, format, device, room, directory, printed, text: Vec::new(), said })
    }

    /// Mounts a disk with these contents and runs `work` on it; the disk's contents afterwards go to `end`.
    fn on_mount<T>(
        &self,
        contents: Arc<Blocks>,
        end: Option<Arc<Mutex<Blocks>>>,
        recorder: Option<Recorder>,
        work: impl FnOnce(&Self) -> Outcome<T>,
    ) -> Outcome<T> {
        let memory = Memory {
            name: "check".into(),
            device: Box::new(self.device.clone()),
            blocks: blocks_of(self.args.size, self.format),
            contents,
            end,
        };
        let mode = flashweir_fs::Mode::from(self.format);
        let config = MountConfig {
            directory: self.directory.clone(),
            flush: FlushMode::Flush,
            choose: Box::new(move |_, _, _| Ok(mode.clone())),
            make: None,
            mount: MountOptions::default(),
            speed: Speed::Max,
            spin: WallDuration::ZERO,
            control: None,
            write_through: true,
            recorder,
            lazyfs: None,
            say: Arc::new(say),
            allow_other: false,
            give_back: Some(crate::memory::give_back),
        };
        let mounted = mount(config, Medium::Memory(memory)).map_err(Failure::run)?;
        let done = work(self);
        let ended = Self::unmount(mounted);
        let done = done?;
        ended?;
        Ok(done)
    }

    /// Contents of a disk with these contents after `work` on a mount of it.
    fn changed(
        &self,
        contents: Arc<Blocks>,
        recorder: Option<Recorder>,
        work: impl FnOnce(&Self) -> Outcome,
    ) -> Outcome<Arc<Blocks>> {
        let end = Arc::<Mutex<Blocks>>::default();
        self.on_mount(contents, Some(Arc::clone(&end)), recorder, work)?;
        let contents = std::mem::take(&mut *end.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Arc::new(contents))
    }

    /// See [`Self::verify`], on a mount of a disk with these contents.
    fn judged(&self, contents: Arc<Blocks>, printed: u64, cancel: &AtomicBool) -> Outcome<Option<String>> {
        self.on_mount(contents, None, None, |bench| bench.verify(printed, cancel))
    }

    fn unmount(mounted: Mounted) -> Outcome {
        let mut is_busy = false;
        let ended = mounted.wait(&AtomicBool::new(true), &mut || is_busy = true);
        if is_busy {
            say("something was left running that has files open in the directory");
        }
        ended.map_err(Failure::run)
    }

    /// A command with the directory in its arguments.
    fn shell(&self, text: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(text.replace("{}", &self.directory.display().to_string()));
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.env("WEIR_DIR", &self.directory).env("WEIR_PRINTED", &self.printed).process_group(0);
    }

    fn setup(&self, text: &str, cancel: &AtomicBool) -> Outcome {
        let mut command = self.shell(text);
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        let child = command.spawn().map_err(|error| Failure::Run(format!("sh: {error}")))?;
        match ended(child, None, cancel)? {
            Some(status) if status.success() => Ok(()),
            status => Err(Failure::Usage(format!("--setup failed: {}", shown(status)))),
        }
    }

    fn program(&self, cancel: &AtomicBool) -> Outcome {
        let directory = self.directory.as_os_str();
        let mut words = self.args.command.iter().map(|word| match word.to_str() {
            Some(text) => OsString::from(text.replace("{}", &directory.to_string_lossy())),
            None => word.clone(),
        });
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(words);
        self.prepare(&mut command);
        let printed = File::options().create(true).append(true).open(&self.printed).map_err(Failure::run)?;
        command.stdin(Stdio::null()).stdout(printed);
        let wrong = |error| Failure::Usage(format!("{}: {error}", program.to_string_lossy()));
        let child = command.spawn().map_err(wrong)?;
        match ended(child, None, cancel)? {
            Some(status) if status.success() => Ok(()),
            // No bug was found: nothing could be checked.
            status => Err(Failure::Usage(format!("COMMAND failed, expected exit code 0: {}", shown(status)))),
        }
    }

    /// The first `printed` bytes of the output.
    fn until(&self, printed: u64) -> &[u8] {
        &self.text[..(printed as usize).min(self.text.len())]
    }

    /// The check's objection to the mounted directory when `printed` bytes had been printed; `None` if it is good.
    fn verify(&self, printed: u64, cancel: &AtomicBool) -> Outcome<Option<String>> {
        let promised = self.room.join("promised");
        std::fs::write(&promised, self.until(printed)).map_err(Failure::run)?;
        let said = File::create(&self.said).map_err(Failure::run)?;
        let mut command = self.shell(&self.args.verify);
        command.env("WEIR_PRINTED", &promised).stdin(File::open(&promised).map_err(Failure::run)?);
        command.stderr(said.try_clone().map_err(Failure::run)?).stdout(said);
        let child = command.spawn().map_err(|error| Failure::Run(format!("sh: {error}")))?;
        let timeout = WallDuration::from_nanos(self.args.timeout.as_nanos());
        let status = ended(child, Some(timeout), cancel)?;
        if status.is_some_and(|status| status.success()) {
            return Ok(None);
        }
        let text = std::fs::read(&self.said).map_err(Failure::run)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        // The directory is another one each time.
        let last = last.replace(&self.directory.display().to_string(), "{}");
        Ok(Some(format!("{}: {}", shown(status), last.trim())))
    }

    /// Report of the first directory of a kind of failure.
    fn failed(
        &self,
        recording: &Recording,
        contents: &Blocks,
        moment: Moment,
        says: String,
        number: usize,
    ) -> Outcome<Failed> {
        let printed = self.until(moment.printed);
        let last = String::from_utf8_lossy(printed);
        let last = last.lines().next_back().unwrap_or_default().to_owned();
        let until = moment.ended + usize::from(moment.in_next);
        let begin = until.saturating_sub(CALLS_SHOWN);
        let calls = &recording.steps[begin..until];
        let kept = self.args.keep.as_ref().map(|keep| {
            let path = keep.join(format!("{number}.img"));
            let segment_blocks = if self.format.appends() { SEGMENT_BLOCKS } else { 0 };
            write_image(&path, contents, recording.blocks, segment_blocks).map_err(Failure::Run)?;
            std::fs::write(keep.join(format!("{number}.printed")), printed).map_err(Failure::run)?;
            Ok::<_, Failure>(path)
        });
        Ok(Failed {
            says,
            directories: 1,
            calls_ended: moment.ended,
            in_next: moment.in_next,
            course: moment.course.to_string(),
            printed_bytes: moment.printed,
            printed_last: last,
            calls: (begin + 1..).zip(calls).map(|(at, step)| format!("{at:>5}  {}", step.shown)).collect(),
            not_synced: not_synced(&recording.steps[..moment.ended]),
            kept: kept.transpose()?,
        })
    }
}

/// Blocks of a disk of this size, which has whole segments if it has any.
fn blocks_of(size: Bytes, format: Format) -> u64 {
    let blocks = size.0 / BLOCK_BYTES as u64;
    if format.appends() { blocks - blocks % u64::from(SEGMENT_BLOCKS) } else { blocks }
}

/// A small device of append segments.
fn device_of_segments(size: Bytes) -> DeviceConfig {
    let mut config = preset("amf").expect("it is among the presets");
    let geometry = &mut config.geometry;
    // One block of each of four ways is a segment.
    let pages = u64::from(SEGMENT_BLOCKS) * BLOCK_BYTES as u64 / geometry.page_bytes.0;
    (geometry.channels, geometry.chips_per_channel) = (2, 2);
    geometry.pages_per_block = (pages / 4) as u32;
    config.append.segments = (size.0 / (pages * geometry.page_bytes.0)) as u32;
    config.geometry.blocks_per_plane = config.append.segments + config.append.spare_blocks + 1;
    config
}

/// A small device with room for a file system of this size.
fn device(format: Format, size: Bytes) -> DeviceConfig {
    if format.appends() {
        return device_of_segments(size);
    }
    let name = if format.is_dual() { "barrier-850" } else { "mobile-ufs" };
    let mut config = preset(name).expect("it is among the presets");
    if format.shares {
        config.ftl.share = preset("share-960evo").expect("it is among the presets").ftl.share;
    }
    let geometry = &mut config.geometry;
    (geometry.channels, geometry.chips_per_channel, geometry.planes_per_die) = (2, 1, 1);
    config.ftl.over_provisioning = 0.3;
    let block_bytes = u64::from(geometry.pages_per_block) * geometry.page_bytes.0;
    let blocks = size.0 as f64 / (1.0 - config.ftl.over_provisioning) / block_bytes as f64;
    config.geometry.blocks_per_plane = (blocks / 2.0).ceil() as u32 + 16;
    config
}

/// Waits for the end of a process, and kills what it leaves running; nothing if it took too long, and then it is killed, too.
fn ended(
    mut child: Child,
    timeout: Option<WallDuration>,
    cancel: &AtomicBool,
) -> Outcome<Option<ExitStatus>> {
    let begun = Instant::now();
    let group = Pid::from_child(&child);
    let process = pidfd_open(group, PidfdFlags::empty()).map_err(Failure::run)?;
    loop {
        // Readable when it has ended; a signal to us only wakes up earlier.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK));
        if let Some(status) = child.try_wait().map_err(Failure::run)? {
            let _ = kill_process_group(group, Signal::KILL);
            kill_children();
            return Ok(Some(status));
        }
        let is_late = timeout.is_some_and(|timeout| begun.elapsed() > timeout);
        let is_stopped = cancel.load(Ordering::Relaxed);
        if is_late || is_stopped {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().map_err(Failure::run)?;
            kill_children();
            return if is_stopped { Err(Failure::Interrupted) } else { Ok(None) };
        }
    }
}

/// Kills all children, which have left their group, and theirs, which become ours.
fn kill_children() {
    let ours = getpid().as_raw_nonzero().to_string();
    // Its parent is the second field behind the name, which is in brackets and may have any bytes.
    let is_child = |pid: &str| {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)) == Some(&*ours)
    };
    loop {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().filter(|pid| is_child(pid)).and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // Waits for one; an error says that there is none.
        if wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

fn shown(status: Option<ExitStatus>) -> String {
    match status {
        None => "it took longer than --timeout".into(),
        Some(status) => match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        },
    }
}

fn plural(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Changes since the last sync, a line for each file and name.
fn not_synced(steps: &[Step]) -> Vec<String> {
    /// An inode, or a name in it; the empty name stands for its attributes.
    type Changed<'a> = (Ino, Option<&'a [u8]>);
    let mut pending: BTreeMap<Changed<'_>, (usize, &str)> = BTreeMap::new();
    // Inodes of files that are open as atomic.
    let mut atomic: BTreeMap<u64, Ino> = BTreeMap::new();
    for (number, step) in (1..).zip(steps) {
        let changed = match &step.call {
            Call::Write { ino, .. }
            | Call::Allocate { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::SetAcl { ino, .. } => Some((*ino, None)),
            Call::SetAttr { ino, changes } => Some((*ino, changes.size.is_none().then_some(&b""[..]))),
            Call::MakeNameless { made, .. } => Some((*made, None)),
            Call::Make { dir, name, .. }
            | Call::Symlink { dir, name, .. }
            | Call::Link { dir, name, .. }
            | Call::Remove { dir, name, .. } => Some((*dir, Some(&**name))),
            Call::Rename { from, to: (dir, name), .. } => {
                pending.insert((from.0, Some(&*from.1)), (number, step.shown.as_str()));
                Some((*dir, Some(&**name)))
            }
            Call::Exchange { one: (one, _), other: (other, _), .. } => {
                pending.insert((*one, None), (number, step.shown.as_str()));
                Some((*other, None))
            }
            Call::Copy { to: (ino, _), .. } => Some((*ino, None)),
            // What a commit is to release is still in memory.
            Call::Sync { releases: false, .. } => None,
            Call::Sync { ino, .. } => {
                pending.retain(|(of, _), _| of != ino);
                None
            }
            Call::SyncSet { opens, .. } => {
                let synced: Vec<Ino> = opens.iter().filter_map(|open| atomic.get(open).copied()).collect();
                pending.retain(|(of, _), _| !synced.contains(of));
                None
            }
            Call::BeginAtomic { open, ino } => {
                atomic.insert(*open, *ino);
                None
            }
            Call::Abort { open } => {
                let aborted = atomic.get(open).copied();
                pending.retain(|(of, name), _| name.is_some() || Some(*of) != aborted);
                None
            }
            Call::Barrier { .. } | Call::Release { .. } | Call::EndAtomic { .. } | Call::Forget { .. } => {
                None
            }
        };
        if let Some(changed) = changed {
            pending.insert(changed, (number, step.shown.as_str()));
        }
    }
    let mut pending: Vec<(usize, &str)> = pending.into_values().collect();
    pending.sort_unstable();
    // A rename between directories waits for both.
    pending.dedup();
    let newest = pending.split_off(pending.len().saturating_sub(PENDING_SHOWN));
    newest.into_iter().map(|(number, shown)| format!("{shown} (call {number})")).collect()
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "recorded: {} calls, {} bytes printed, on {}\n",
            thousands(self.calls as u64),
            thousands(self.printed_bytes),
            self.format
        );
        let positions = match self.positions == self.cuts {
            true => thousands(self.cuts),
            false => format!("{} of {}", thousands(self.cuts), thousands(self.positions)),
        };
        let _ = writeln!(
            text,
            "cut: {} timings, {positions} positions, {} states of the disk; images recovered: {}, left out (--states): {}; \
             different directories: {}",
            self.courses,
            thousands(self.states),
            thousands(self.recovered),
            thousands(self.states_left_out),
            thousands(self.directories as u64)
        );
        let left_out = match self.directories_left_out {
            0 => String::new(),
            left => format!(", left out (--checks): {}", thousands(left as u64)),
        };
        let failed: usize = self.failures.iter().map(|failed| failed.directories).sum();
        let _ = writeln!(
            text,
            "judged: {}, not good: {}{left_out}",
            thousands(self.judged as u64),
            thousands(failed as u64)
        );
        for (number, failed) in (1..).zip(&self.failures) {
            let more = match failed.directories {
                1 => String::new(),
                all => format!(" ({all} directories like this)"),
            };
            let _ = writeln!(text, "\n{number}. {}{more}", failed.says);
            let when = match failed.in_next {
                true => format!("in call {}", failed.calls_ended + 1),
                false => format!("after call {}", failed.calls_ended),
            };
            let _ = writeln!(text, "   The power failed {when} of {}; {}.", self.calls, failed.course);
            let promised = match failed.printed_bytes {
                0 => "nothing".to_owned(),
                bytes => format!("{bytes} bytes, the last line `{}`", failed.printed_last),
            };
            let _ = writeln!(text, "   It had printed {promised}.");
            for call in &failed.calls {
                let _ = writeln!(text, "   {call}");
            }
            if !failed.not_synced.is_empty() {
                let _ = writeln!(text, "   Not synced since: {}.", failed.not_synced.join("; "));
            }
            if let Some(kept) = &failed.kept {
                let _ = writeln!(text, "   Kept: {}", kept.display());
            }
        }
        text
    }
}
