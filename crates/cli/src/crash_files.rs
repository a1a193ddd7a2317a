//! `weir crash files`: the crash laboratory of file systems on the command line.

use crate::args::{CrashFilesArgs, Shape};
use crate::devices::table;
use crate::error::{Failure, Outcome, say};
use crate::json;
use crate::kernel::Kernel;
use crate::output::{check, print, print_or_write};
use crate::progress::Bar;
use crate::run::{thousands, threads};
use flashweir_core::{Lpn, Payload};
use flashweir_crash::files::explorer::Outside;
use flashweir_crash::files::token::{bug_named, mode_named};
use flashweir_crash::files::tree::Tree;
use flashweir_crash::files::{
    Bug, Effort, FileCrashConfig, FileCrashReport, FileMutant, Format, On, Sequences, Token, explore, hunt,
    replay,
};
use flashweir_fs::port::{Block, BlockPort, Image, Write as BlockWrite, block_on};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Distinct images of drawn sequences if nothing else is asked for.
const STATES: u64 = 100_000;

/// Images of one sequence in the search for a planted bug if nothing else is asked for: more sequences find more.
const HUNT_STATES_EACH: usize = 40;

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
        // What was found until then counts; that nothing was found says less than it would at the end.
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
    let on = On::ALL.iter().find(|(_, name, _)| *name == args.on).map(|(on, ..)| *on);
    let format = Format::named(&args.format);
    let format = format.ok_or_else(|| Failure::Usage(format!("--format: {}", args.format)))?;
    if format.is_ext4() && *sequences == Sequences::Cleaning {
        let format = format.name();
        return Err(Failure::Usage(format!("--sequences cleaning needs --format f2fs, and it is {format}")));
    }
    let has_end = *sequences == Sequences::Seq1 || args.count.is_some();
    let effort = Effort::default();
    let states_max = args.states_each.map_or(effort.states_max, |states| states as usize);
    Ok(FileCrashConfig {
        format,
        on: on.ok_or_else(|| Failure::Usage(format!("--on: {}", args.on)))?,
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
        minimise: true,
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

/// Does again what a token says.
fn again(token: &str, is_json: bool) -> Outcome {
    let wrong = |error| Failure::Usage(format!("--replay: {error}"));
    let token: Token = token.parse().map_err(wrong)?;
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

/// What was explored.
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
    row(&format!("images that {} found good", judge_of(report.format)), totals.outside);
    if report.format.is_ext4() {
        row("images that the kernel recovered as we do", totals.replayed);
    } else {
        row("sections cleaned during sequences", totals.cleaned);
        row("blocks written into holes", totals.filled_holes);
    }
    let mut text = format!(
        "{} of {} on the {}, flushes as {}, seed {}: {}{all} sequences, violations: {}\n\n{}",
        report.sequences,
        report.format.name(),
        report.on.name(),
        report.mode,
        report.seed,
        thousands(totals.cases),
        report.violations.len(),
        table(&rows, 1)
    );
    for violation in &report.violations {
        let _ = writeln!(text, "\nviolation: {}", violation.what);
        let _ = writeln!(text, "to see it again: weir crash files --replay '{}'", violation.token);
        let _ = writeln!(text, "as it was found: weir crash files --replay '{}'", violation.found_as);
    }
    text
}

pub(crate) type Blocks = BTreeMap<Lpn, Payload>;

/// The program outside that checks a format.
fn judge_of(format: Format) -> &'static str {
    if format.is_ext4() { "e2fsck" } else { "fsck.f2fs" }
}

/// Images for other programs, each in a file of its own that is there only for one question.
pub(crate) struct Images {
    dir: PathBuf,
    next: AtomicU64,
}

impl Images {
    /// In a directory of its own, which goes with this.
    pub(crate) fn new(purpose: &str) -> Outcome<Self> {
        let dir = std::env::temp_dir().join(format!("weir-{purpose}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| Failure::Run(format!("{}: {error}", dir.display())))?;
        Ok(Self { dir, next: AtomicU64::new(0) })
    }

    /// Asks about a disk with these blocks.
    pub(crate) fn ask<T>(
        &self,
        contents: &Blocks,
        blocks: u64,
        question: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let path = self.dir.join(format!("{}.img", self.next.fetch_add(1, Ordering::Relaxed)));
        let answer = write_image(&path, contents, blocks).and_then(|()| question(&path));
        let _ = std::fs::remove_file(&path);
        answer
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What the format's own checker says.
struct Fsck {
    format: Format,
    images: Images,
}

impl Fsck {
    fn new(format: Format) -> Outcome<Self> {
        let program = judge_of(format);
        let found = Command::new(program).arg("-V").stdin(Stdio::null()).output();
        found.map_err(|error| Failure::Run(format!("--fsck-every needs {program}: {error}")))?;
        Ok(Self { format, images: Images::new("crash-files")? })
    }

    fn ask(&self, contents: &Blocks, blocks: u64) -> Result<(), String> {
        self.images.ask(contents, blocks, |path| self.check(path))
    }

    fn check(&self, path: &Path) -> Result<(), String> {
        let program = judge_of(self.format);
        let flags = if self.format.is_ext4() { "-fn" } else { "--dry-run" };
        let output = Command::new(program).arg(flags).arg(path).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let (bad, good): (&[&str], _) = match self.format.is_ext4() {
            false => (&["[Fail]", "ASSERT", "Need to fix", "FIX"], "[FSCK]"),
            // Each problem ends with a question, which is answered at once.
            true => (&["? no", "WARNING"], "Pass 5"),
        };
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

/// A file with the blocks of a disk.
pub(crate) fn write_image(path: &Path, contents: &Blocks, blocks: u64) -> Result<(), String> {
    let image = Image::create(path, blocks).map_err(|error| error.to_string())?;
    for (lpn, payload) in contents {
        let write = BlockWrite::new(Block(lpn.0), vec![payload.clone()]);
        block_on(image.write(write).completed()).map_err(|error| error.to_string())?;
    }
    Ok(())
}
