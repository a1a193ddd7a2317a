//! `weir crash`: the crash laboratory on the command line.

use crate::crash_files::CrashFilesArgs;
use crate::crash_sqlite::CrashSqliteArgs;
use crate::devices::table;
use crate::error::{Failure, Outcome, say};
use crate::json;
use crate::made_by::{marked, unmarked};
use crate::options::ResultArgs;
use crate::options::Shape;
use crate::output::thousands;
use crate::output::{check, print, print_or_write, stopped};
use crate::progress::Bar;
use crate::run::threads;
use crate::values::whole;
use crate::{crash_files, crash_sqlite};
use clap::{Args, Subcommand};
use flashweir_crash::devices::{all_names, drawn_name, tiny};
use flashweir_crash::{
    Bug, Counts, CrashConfig, CrashReport, Mutant, MutationScore, Token, ViolationReport, describe, explore,
    replay,
};
use flashweir_workload::spelling::nearest;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Distinct states at most until a planted bug must have been found. Over twelve seeds the one that hid best took 34,000 in the mean, so
/// one that takes this many is not looked for in the right place.
const MUTANT_STATES: u64 = 1_000_000;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir crash --states 100000              every tiny device, cut at every event
  weir crash --device tiny-d1 --seed 7
  weir crash --drawn 50 --worlds 2        fifty devices with features that a seed combines
  weir crash --mutants                    would it find a bug? plants every known one in turn
  weir crash --planted early-flush        one of them, drawn
  weir crash --replay TOKEN               the line that a violation prints
  weir crash files                        a file system instead of a device: see weir crash files --help

Tiny devices run random histories; their power is cut at every event, also inside of recoveries, and what is left is \
recovered and checked against the contract. A violation is minimised and drawn, and ends the command with exit code 1.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CrashArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    /// A tiny device, as in tiny-d1, or all whose names begin alike, as in 'tiny-d4*'; may be given several times [default: all]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) device: Vec<String>,
    /// Number of devices whose features are chosen at random by the seed; the first of seed 7 is tiny-drawn-7 [default: 0]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = whole::<u64>(0, 1_000_000))]
    #[arg(conflicts_with_all = ["mutants", "planted"])]
    pub(crate) drawn: u64,
    /// Worlds for each device, with three random histories each; every 200 of them bring one deep world of some 40,000 states
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 1_000_000))]
    pub(crate) worlds: Option<u64>,
    /// Approximate limit of distinct states for a world that is not deep; devices with segments or an open channel have no such limit,
    /// unless they are below a host FTL [default: 2000]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    #[arg(conflicts_with_all = ["mutants", "planted"])]
    pub(crate) states_each: Option<u64>,
    /// Stop after this many distinct states [default without --worlds: 100000]; with --mutants and --planted at most this many for each bug
    /// [default: 1000000]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) states: Option<u64>,
    /// Seed of the first world of each device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    /// Plant each known bug in turn and count those that are found
    #[arg(long, conflicts_with = "planted")]
    pub(crate) mutants: bool,
    /// Plant this bug
    #[arg(long, value_name = "BUG")]
    pub(crate) planted: Option<String>,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, 1_000_000))]
    pub(crate) violations: usize,
    /// Print a violation as it was found, without minimising it
    #[arg(long)]
    pub(crate) no_minimise: bool,
    /// Reproduce the failure of this token, and draw it
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["mutants", "planted", "device", "drawn"])]
    pub(crate) replay: Option<String>,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CrashCommand {
    /// Cut the power of a file system: sequences of operations on files, every state that the device may leave
    Files(CrashFilesArgs),
    /// Cut the power below SQLite: committed transactions must be there, and the database must be good
    Sqlite(CrashSqliteArgs),
}

/// `weir crash`.
pub(crate) fn command(args: &CrashArgs, cancel: &AtomicBool) -> Outcome {
    match &args.command {
        Some(CrashCommand::Files(args)) => return crash_files::command(args, cancel),
        Some(CrashCommand::Sqlite(args)) => return crash_sqlite::command(args, cancel),
        None => {}
    }
    if let Some(token) = &args.replay {
        return again(token, args.results.shape.is_json());
    }
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let config = config(args)?;
    if args.mutants { mutants(args, &config, cancel) } else { campaign(args, &config, cancel) }
}

/// The tiny devices that a name or `tiny-d4*` stands for; the name itself if there are none.
fn devices_named(name: &str) -> Vec<String> {
    let start = name.strip_suffix('*');
    let all = all_names().filter(|device| start.is_some_and(|start| device.starts_with(start)));
    let all: Vec<String> = all.map(String::from).collect();
    if all.is_empty() { vec![name.into()] } else { all }
}

fn config(args: &CrashArgs) -> Outcome<CrashConfig> {
    let named: Vec<String> = args.device.iter().flat_map(|name| devices_named(name)).collect();
    if let Some(name) = named.iter().find(|name| tiny(name).is_none()) {
        let hint =
            nearest(name, all_names()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let known: Vec<_> = all_names().collect();
        return Err(Failure::Usage(format!(
            "--device cannot be `{name}`: expected one of {}, tiny-drawn-N, or how some begin, as in `tiny-d4*`{hint}",
            known.join(", ")
        )));
    }
    let planted = args.planted.as_deref().map(|name| {
        Bug::named(name).map_err(|_| {
            let bugs = || Bug::all().map(|(_, name)| name);
            let hint =
                nearest(name, bugs()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let known: Vec<_> = bugs().collect();
            Failure::Usage(format!(
                "--planted cannot be `{name}`: expected one of {}{hint}",
                known.join(", ")
            ))
        })
    });
    let drawn = (0..args.drawn).map(|number| drawn_name(args.seed.wrapping_add(number)));
    let config = CrashConfig {
        devices: named.into_iter().chain(drawn).collect(),
        seed: args.seed,
        states: match (args.states, args.worlds) {
            (None, None) if args.mutants || args.planted.is_some() => Some(MUTANT_STATES),
            (None, None) => CrashConfig::default().states,
            (states, _) => states,
        },
        worlds_each: args.worlds,
        states_each: args.states_each.or(CrashConfig::default().states_each),
        jobs: threads(args.results.jobs),
        violations_max: args.violations,
        minimise: !args.no_minimise,
        ..CrashConfig::default()
    };
    Ok(match planted.transpose()? {
        // Looked for as `--mutants` does, and drawn.
        Some(bug) => {
            let CrashConfig { minimise, violations_max, .. } = config;
            CrashConfig { minimise, violations_max, ..config.with_planted(bug) }
        }
        None => config,
    })
}

/// Does again what a token says.
fn again(token: &str, is_json: bool) -> Outcome {
    let wrong = |error| Failure::Usage(format!("--replay: {error}"));
    let token: Token = unmarked(token).and_then(str::parse).map_err(wrong)?;
    let replayed = replay(&token).map_err(wrong)?;
    let violation = replayed.fault.as_ref().map(describe);
    print(&match (is_json, &violation) {
        (true, violation) => {
            let content = serde_json::json!({ "drawing": replayed.drawing, "violation": violation });
            json::pretty(json::Kind::CrashReplay, &content)?
        }
        (false, None) => format!("{}\nnothing is wrong\n", replayed.drawing),
        (false, Some(_)) => format!("{}\n", replayed.drawing),
    })?;
    match violation {
        None => Ok(()),
        Some(violation) => Err(Failure::Run(format!("violation: {violation}"))),
    }
}

/// Explores, with a bar. `None` if it was stopped.
fn watched(
    config: &CrashConfig,
    bar: &mut Bar,
    cancel: &AtomicBool,
    message: &(dyn Fn(u64, usize) -> String + Sync),
) -> Outcome<CrashReport> {
    let report = explore(config, |progress| {
        bar.set(progress.fraction, || message(progress.worlds, progress.violations));
        !cancel.load(Ordering::Relaxed)
    });
    report.map_err(Failure::usage)
}

fn campaign(args: &CrashArgs, config: &CrashConfig, cancel: &AtomicBool) -> Outcome {
    let (begun, mut bar) = (Instant::now(), Bar::new(args.results.quiet));
    let report = watched(config, &mut bar, cancel, &|worlds, violations| {
        format!("{worlds} worlds, {violations} violations")
    })?;
    bar.clear();
    let text = match args.results.shape.output {
        Shape::Json => json::pretty(json::Kind::Crash, &report)?,
        Shape::Table => {
            let mut text = counts(&report);
            for violation in &report.violations {
                text.push_str(&drawn(violation));
            }
            text
        }
    };
    if cancel.load(Ordering::Relaxed) {
        // What was found until then counts; that nothing was found says less than it would at the end.
        print(&text)?;
        return Err(Failure::Interrupted);
    }
    print_or_write(args.results.out.as_deref(), &text)?;
    speed(args, report.totals.distinct, begun);
    match report.violations.len() {
        0 => Ok(()),
        1 => Err(Failure::Run("1 violation of the contract".into())),
        many => Err(Failure::Run(format!("{many} violations of the contract"))),
    }
}

fn mutants(args: &CrashArgs, config: &CrashConfig, cancel: &AtomicBool) -> Outcome {
    let (begun, mut bar) = (Instant::now(), Bar::new(args.results.quiet));
    let mut score = MutationScore::default();
    for (bug, name) in Bug::all() {
        let report = watched(&config.with_planted(bug), &mut bar, cancel, &|worlds, _| {
            format!("{name}: {worlds} worlds")
        })?;
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        score.mutants.push(Mutant {
            bug: name.to_owned(),
            worlds: report.totals.worlds,
            distinct: report.totals.distinct,
            killed_by: report.violations.into_iter().next(),
        });
    }
    bar.clear();
    let (killed, all) = (score.killed(), score.mutants.len());
    let text = match args.results.shape.output {
        Shape::Json => json::pretty(json::Kind::CrashMutants, &score)?,
        Shape::Table => {
            let mut rows = vec![["planted bug", "found as", "worlds", "states"].map(str::to_owned)];
            rows.extend(score.mutants.iter().map(|mutant| {
                // The message of a hang continues with what waits for what.
                let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
                let found =
                    mutant.killed_by.as_ref().map_or("NOT FOUND".to_owned(), |by| first_line(&by.what));
                [mutant.bug.clone(), found, thousands(mutant.worlds), thousands(mutant.distinct)]
            }));
            format!("{}\nmutation score {killed} / {all}\n", table(&rows, 2))
        }
    };
    if cancel.load(Ordering::Relaxed) {
        return stopped(all, Bug::all().count(), 0, || Ok(text));
    }
    print_or_write(args.results.out.as_deref(), &text)?;
    speed(args, score.mutants.iter().map(|mutant| mutant.distinct).sum(), begun);
    match all - killed {
        0 => Ok(()),
        left => Err(Failure::Run(format!("{left} of {all} planted bugs were not found"))),
    }
}

fn speed(args: &CrashArgs, states: u64, begun: Instant) {
    if !args.results.quiet {
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        say(format!(
            "{} distinct states in {seconds:.1} s, {} per second",
            thousands(states),
            thousands((states as f64 / seconds) as u64)
        ));
    }
}

/// Explored states, device by device, and what was left out.
fn counts(report: &CrashReport) -> String {
    let head = [
        "device",
        "worlds",
        "histories",
        "cuts",
        "distinct",
        "in recovery",
        "verdicts",
        "events left out",
        "exercised",
    ];
    let row = |name: &str, counts: &Counts| {
        let left_out = 100 * counts.moments_left_out / counts.moments.max(1);
        let Counts { worlds, histories, states, distinct, distinct_nested, judged, exercised, .. } = *counts;
        let numbers = [worlds, histories, states, distinct, distinct_nested, judged].map(thousands);
        let [a, b, c, d, e, f] = numbers;
        [name.to_owned(), a, b, c, d, e, f, format!("{left_out} %"), thousands(exercised)]
    };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.devices.iter().map(|(name, counts)| row(name, counts).to_vec()));
    rows.push(row("all", &report.totals).to_vec());
    let planted = report.planted.as_ref().map_or(String::new(), |bug| format!(" with the bug {bug}"));
    let [deep, deep_states] = report.deep.map(thousands);
    format!(
        "worlds{planted}: {}, {deep} of them deep with {deep_states} states; violations: {}\n\n{}",
        thousands(report.totals.worlds),
        report.violations.len(),
        table(&rows, 1)
    )
}

fn drawn(violation: &ViolationReport) -> String {
    let mut text = format!("\nviolation: {}\n", violation.what);
    // What was not made smaller has no drawing either.
    if !violation.drawing.is_empty() {
        let drawing = violation.drawing.trim_end();
        let _ = writeln!(text, "shortest history ({} operations):\n{drawing}", violation.ops);
        let _ = writeln!(text, "to see it again: weir crash --replay '{}'", marked(&violation.token));
    }
    let _ = writeln!(text, "as it was found: weir crash --replay '{}'", marked(&violation.found_as));
    text
}
