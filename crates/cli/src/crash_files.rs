//! `weir crash files`: the crash laboratory of file systems on the command line.

use crate::devices::table;
use crate::error::{Failure, Outcome, say};
use crate::images::{Blocks, Images};
use crate::json;
use crate::kernel::Kernel;
use crate::made_by::{marked, unmarked};
use crate::options::ResultArgs;
use crate::options::Shape;
use crate::output::thousands;
use crate::output::{check, print, print_or_write};
use crate::progress::Bar;
use crate::run::threads;
use crate::values::whole;
use clap::Args;
use flashweir_crash::files::bug::bug_named;
use flashweir_crash::files::case::Outside;
use flashweir_crash::files::token::mode_named;
use flashweir_crash::files::tree::Tree;
use flashweir_crash::files::{
    Bug, Effort, FileCrashConfig, FileCrashReport, FileMutant, Format, On, Sequences, Token, explore, hunt,
    replay,
};
use flashweir_fs::Kind;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Default number of distinct images of random sequences.
const STATES: u64 = 100_000;

/// Default number of images of one sequence in the search for a planted bug: more sequences find more.
const HUNT_STATES_EACH: usize = 40;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir crash files                                     every sequence of one operation, after ACE
  weir crash files --sequences seq-2 --states 100000   drawn ones of two operations
  weir crash files --sequences random --count 500      longer ones
  weir crash files --on device --sequences random --count 100   on the simulated device, cut in its operations
  weir crash files --on host-ftl --sequences random --count 100   the same with an open channel, below a host FTL
  weir crash files --flush noflush                     what happens if nothing is ever flushed: must fail
  weir crash files --format ext4                       the same on ext4
  weir crash files --sequences reuse --on late --count 200   blocks change owners, requests are under way
  weir crash files --sequences tasks --on late --count 200   two tasks at once
  weir crash files --fsck-every 100                    fsck.f2fs (or e2fsck) looks at some of the recovered images
  weir crash files --mutants                           would it find a bug? plants every known one in turn
  weir crash files --replay TOKEN                      the line that a violation prints

Each sequence runs on a small volume that has been in use. The power is cut at every write and flush; every state \
that the contract of the device allows there (all of them while few blocks are undecided, then a choice) is recovered by a \
mount, checked, read, and compared with what fsync, fdatasync, sync and rename promise: docs/file-crash.md. A violation is \
minimised, and ends the command with exit code 1. On a simulated device (--on device, layer or host-ftl) the power is cut between and in \
the operations of its flash, and the device recovers first.")]
pub(crate) struct CrashFilesArgs {
    /// File system: ext4 is data=ordered, ext4-journal data=journal; f2fs-dual and ext4-dual are for disks with barriers; ext4-soj
    /// (ordered data), ext4-sdj (journalled data) and f2fs-ssc for disks with SHARE; alfs for disks of append segments
    #[arg(long, value_name = "FORMAT", value_parser = Format::NAMES, default_value = "f2fs")]
    pub(crate) format: String,
    /// Family of sequences: all of one operation, random ones of two, longer random ones, those on a nearly full volume, those in which
    /// blocks change owners, those with files without names and access lists, those over files in many parts, those of two tasks at once, those
    /// over atomic files (sets; only with journalled data or SHARE), or those in which files are copied into each other
    #[arg(long, short, value_name = "KIND", value_parser = Sequences::NAMES, default_value = "seq-1")]
    pub(crate) sequences: String,
    /// Stop after this many sequences [default: all of seq-1; of others as many as --states takes]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) count: Option<u64>,
    /// Stop after this many distinct images [default: seq-1 has an end; 100000 for others without --count]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) states: Option<u64>,
    /// Most images that are recovered for one sequence
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 1_000_000))]
    pub(crate) states_each: Option<u64>,
    /// Seed of the volumes and of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    /// Device below the file system: any device that keeps the contract, one whose answers come late, or the simulated one, cut in its
    /// operations: by itself, below a block layer, or with an open channel below a host FTL
    #[arg(long, value_name = "DEVICE", value_parser = On::NAMES, default_value = "model")]
    pub(crate) on: String,
    /// Command for each flush of the host: FLUSH, range flushes, or nothing at all
    #[arg(long, value_name = "MODE", value_parser = ["flush", "rflush", "noflush"], default_value = "rflush")]
    pub(crate) flush: String,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, 1_000_000))]
    pub(crate) violations: usize,
    /// Print a violation as it was found, without searching for fewer operations that show it
    #[arg(long)]
    pub(crate) no_minimise: bool,
    /// Plant each known bug of the file system in turn and count those that are found
    #[arg(long, conflicts_with_all = ["planted", "sequences", "states", "fsck_every", "kernel_every"])]
    pub(crate) mutants: bool,
    /// Plant this bug
    #[arg(long, value_name = "BUG")]
    pub(crate) planted: Option<String>,
    /// Reproduce the failure of this token
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["sequences", "count", "states", "fsck_every", "kernel_every", "mutants", "planted"])]
    pub(crate) replay: Option<String>,
    /// Check one recovered image in N also by fsck.f2fs or `e2fsck -fn`, which has to be installed
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) fsck_every: Option<u64>,
    /// ext4: mount one image in N also by the Linux of this machine before our recovery; it replays the journal and has to show what we do.
    /// As root
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) kernel_every: Option<u64>,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// `weir crash files`.
pub(crate) fn command(args: &CrashFilesArgs, cancel: &AtomicBool) -> Outcome {
    if let Some(token) = &args.replay {
        return again(token, args.results.shape.is_json());
    }
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let config = config(args)?;
    if args.mutants {
        return mutants(args, &config, cancel);
    }
    let judge = args.fsck_every.map(|_| Fsck::new(config.format)).transpose()?;
    let ask =
        |contents: &Blocks, blocks: u64| judge.as_ref().map_or(Ok(()), |judge| judge.ask(contents, blocks));
    let kernel = args.kernel_every.map(|_| Kernel::new(config.format)).transpose()?;
    let replay = |contents: &Blocks, blocks: u64, tree: &Tree| {
        kernel.as_ref().map_or(Ok(false), |kernel| kernel.replay(contents, blocks, tree))
    };
    let outside = Outside {
        checker: args.fsck_every.map(|every| (every, &ask as _)),
        recoverer: args.kernel_every.map(|every| (every, &replay as _)),
    };
    let (begun, mut bar) = (Instant::now(), Bar::new(args.results.quiet));
    let report = explore(&config, Some(outside), |progress| {
        bar.set(progress.fraction, || {
            let (sequences, images) = (thousands(progress.sequences), thousands(progress.distinct));
            format!("{sequences} sequences, {images} images, {} violations", progress.violations)
        });
        !cancel.load(Ordering::Relaxed)
    });
    bar.clear();
    let report = report.map_err(Failure::usage)?;
    let text = match args.results.shape.output {
        Shape::Json => json::pretty(json::Kind::CrashFiles, &report)?,
        Shape::Table => shown(&report),
    };
    if cancel.load(Ordering::Relaxed) {
        // Findings until then count; an empty result says less than it would at the end.
        print(&text)?;
        return Err(Failure::Interrupted);
    }
    print_or_write(args.results.out.as_deref(), &text)?;
    if !args.results.quiet {
        let (seconds, images) = (begun.elapsed().as_secs_f64().max(1e-9), report.totals.recovered);
        let speed = thousands((images as f64 / seconds) as u64);
        say(format!("{} images recovered in {seconds:.1} s, {speed} per second", thousands(images)));
    }
    match report.violations.len() {
        0 => Ok(()),
        1 => Err(Failure::Run("1 violation".into())),
        many => Err(Failure::Run(format!("{many} violations"))),
    }
}

fn config(args: &CrashFilesArgs) -> Outcome<FileCrashConfig> {
    let sequences = Sequences::ALL.iter().find(|(_, name)| *name == args.sequences);
    let (sequences, _) =
        sequences.ok_or_else(|| Failure::Usage(format!("--sequences: {}", args.sequences)))?;
    let format = Format::named(&args.format);
    let format = format.ok_or_else(|| Failure::Usage(format!("--format: {}", args.format)))?;
    sequences.check(format).map_err(|why| Failure::Usage(format!("--sequences: {why}")))?;
    let on = On::named(&args.on).ok_or_else(|| Failure::Usage(format!("--on: {}", args.on)))?;
    on.check(format).map_err(|why| {
        Failure::Usage(format!("--on {} with --format {}: {why}", on.name(), format.name()))
    })?;
    let has_end = *sequences == Sequences::Seq1 || args.count.is_some();
    let effort = Effort::default();
    let states_max = args.states_each.map_or(effort.states_max, |states| states as usize);
    Ok(FileCrashConfig {
        format,
        on,
        sequences: *sequences,
        count: args.count,
        states: args.states.or((!has_end).then_some(STATES)),
        seed: args.seed,
        mode: mode_named(&args.flush).map_err(Failure::Usage)?,
        planted: args
            .planted
            .as_deref()
            .map(|name| bug_named(format, name))
            .transpose()
            .map_err(|error| Failure::Usage(format!("--planted: {error}")))?,
        jobs: threads(args.results.jobs),
        effort: Effort { states_max, ..effort },
        violations_max: args.violations,
        minimise: !args.no_minimise,
    })
}

/// Plants each bug in turn.
fn mutants(args: &CrashFilesArgs, config: &FileCrashConfig, cancel: &AtomicBool) -> Outcome {
    let bar = Mutex::new(Bar::new(args.results.quiet));
    let mut mutants: Vec<FileMutant> = Vec::new();
    let bugs: Vec<Bug> = Bug::all(config.format);
    for (index, &bug) in bugs.iter().enumerate() {
        let states_max = args.states_each.map_or(HUNT_STATES_EACH, |states| states as usize);
        let effort = Effort { states_max, ..config.effort };
        let config = FileCrashConfig { states: None, effort, ..config.clone() };
        let found = hunt(&config, bug, |progress| {
            if let Ok(mut bar) = bar.lock() {
                bar.set((index as f64 + progress.fraction) / bugs.len() as f64, || {
                    format!("{}: {} sequences", bug.name(), progress.sequences)
                });
            }
            !cancel.load(Ordering::Relaxed)
        });
        if cancel.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        mutants.push(found.map_err(Failure::usage)?);
    }
    if let Ok(bar) = bar.lock() {
        bar.clear();
    }
    let killed = mutants.iter().filter(|mutant| mutant.killed_by.is_some()).count();
    let text = match args.results.shape.output {
        Shape::Json => {
            json::pretty(json::Kind::CrashFilesMutants, &serde_json::json!({ "mutants": mutants }))?
        }
        Shape::Table => {
            let mut rows = vec![["planted bug", "found as", "by", "images"].map(str::to_owned)];
            rows.extend(mutants.iter().map(|mutant| {
                let found = mutant.killed_by.as_ref().map_or("NOT FOUND", |by| by.what.as_str());
                let found: String = found.chars().take(70).collect();
                let by = mutant.sequences.clone().unwrap_or_default();
                [mutant.bug.clone(), found, by, thousands(mutant.recovered)]
            }));
            format!("{}\nmutation score {killed} / {}\n", table(&rows, 3), mutants.len())
        }
    };
    print_or_write(args.results.out.as_deref(), &text)?;
    match mutants.len() - killed {
        0 => Ok(()),
        left => Err(Failure::Run(format!("{left} of {} planted bugs were not found", mutants.len()))),
    }
}

/// Reproduces the failure of a token.
fn again(token: &str, is_json: bool) -> Outcome {
    let wrong = |error| Failure::Usage(format!("--replay: {error}"));
    let token: Token = unmarked(token).and_then(str::parse).map_err(wrong)?;
    let fault = replay(&token).map_err(wrong)?;
    let operations = token.ops.0.iter().map(ToString::to_string);
    if is_json {
        let content = serde_json::json!({
            "operations": operations.collect::<Vec<_>>(), "violation": fault.as_ref().map(|fault| fault.what()),
        });
        print(&json::pretty(json::Kind::CrashFilesReplay, &content)?)?;
    } else {
        let lines: String = operations.enumerate().map(|(index, op)| format!("{index:>3}  {op}\n")).collect();
        print(&format!("{lines}{}", if fault.is_none() { "nothing is wrong\n" } else { "" }))?;
    }
    match fault {
        None => Ok(()),
        Some(fault) => Err(Failure::Run(format!("violation: {}", fault.what()))),
    }
}

/// Summary of the exploration.
fn shown(report: &FileCrashReport) -> String {
    let totals = &report.totals;
    let all = report.sequences_all.map_or(String::new(), |all| format!(" of {}", thousands(all)));
    let mut rows = vec![["", "count"].map(str::to_owned)];
    let mut row = |name: &str, count: u64| rows.push([name.to_owned(), thousands(count)]);
    row("operations", totals.operations);
    row("cuts", totals.cuts);
    row("states that the device may leave", totals.allowed);
    row("images recovered", totals.recovered);
    row("  in cuts of recoveries", totals.nested);
    row("  distinct over all sequences", totals.distinct);
    row("verdicts", totals.judged);
    row("volumes used after recovery", totals.exercised);
    row("  until the power failed again", totals.second_lives);
    if let Some(judge) = judge_of(report.format.kind) {
        row(&format!("images that {} found good", judge.name), totals.outside);
    }
    if report.format.is_ext4() {
        row("images that the kernel recovered as we do", totals.replayed);
    } else {
        row("sections cleaned during sequences", totals.cleaned + totals.cleaned_background);
        row("  in the background", totals.cleaned_background);
        row("blocks written into holes", totals.filled_holes);
    }
    if report.format.shares {
        row("blocks moved by SHARE during sequences", totals.shared_blocks);
    }
    let mut text = format!(
        "{} of {} on {}, flushes as {}, seed {}: {}{all} sequences, violations: {}\n\n{}",
        report.sequences,
        report.format.name(),
        report.on.described(),
        report.mode,
        report.seed,
        thousands(totals.cases),
        report.violations.len(),
        table(&rows, 1)
    );
    for violation in &report.violations {
        let _ = writeln!(text, "\nviolation: {}", violation.what);
        let _ = writeln!(text, "to see it again: weir crash files --replay '{}'", marked(&violation.token));
        let _ =
            writeln!(text, "as it was found: weir crash files --replay '{}'", marked(&violation.found_as));
    }
    text
}

/// An external program that checks a format.
struct Judge {
    name: &'static str,
    flags: &'static str,
    /// Its messages for problems, and for the parts that it has checked.
    bad: &'static [&'static str],
    good: &'static str,
}

/// The program outside that checks a format, if there is one.
fn judge_of(kind: Kind) -> Option<Judge> {
    Some(match kind {
        Kind::Alfs => return None,
        Kind::F2fs => Judge {
            name: "fsck.f2fs",
            flags: "--dry-run",
            bad: &["[Fail]", "ASSERT", "Need to fix", "FIX"],
            good: "[FSCK]",
        },
        // Each problem ends with a question, which is answered at once.
        Kind::Ext4 => Judge { name: "e2fsck", flags: "-fn", bad: &["? no", "WARNING"], good: "Pass 5" },
    })
}

/// Verdict of the format's own checker.
struct Fsck {
    judge: Judge,
    images: Images,
}

impl Fsck {
    fn new(format: Format) -> Outcome<Self> {
        let judge = judge_of(format.kind).ok_or_else(|| {
            let name = format.name();
            Failure::Usage(format!(
                "--fsck-every: no program outside checks {name}: expected --format f2fs or ext4"
            ))
        })?;
        let program = judge.name;
        let found = Command::new(program).arg("-V").stdin(Stdio::null()).output();
        found.map_err(|error| Failure::Run(format!("--fsck-every needs {program}: {error}")))?;
        Ok(Self { judge, images: Images::new("crash-files")? })
    }

    fn ask(&self, contents: &Blocks, blocks: u64) -> Result<(), String> {
        self.images.ask(contents, blocks, |path| self.check(path))
    }

    fn check(&self, path: &Path) -> Result<(), String> {
        let Judge { name: program, flags, bad, good } = self.judge;
        let output = Command::new(program).arg(flags).arg(path).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        match said.lines().find(|line| bad.iter().any(|word| line.contains(word))) {
            Some(line) => Err(format!("{program}: {}", line.trim())),
            None if !output.status.success() => {
                Err(format!("{program} ended with {}: {}", output.status, said.trim()))
            }
            None if said.contains(good) => Ok(()),
            None => Err(format!("{program} checked nothing: {}", said.trim())),
        }
    }
}
