//! `weir crash sqlite`: power cuts below SQLite on the command line.

use crate::devices::table;
use crate::error::{Failure, Outcome, say};
use crate::json;
use crate::options::{ResultArgs, Shape};
use crate::output::thousands;
use crate::output::{check, print_or_write};
use crate::progress::Bar;
use crate::run::threads;
use crate::sqlite::{JournalArg, OrderArg, SyncArg};
use crate::values::whole;
use clap::Args;
use flashweir_crash::files::token::mode_named;
use flashweir_crash::files::{Format, On};
use flashweir_sqlite::crash::{CrashConfig, CrashReport, MUTANTS, explore};
use flashweir_sqlite::order::{Plan, PlantedBug, Synchronous};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Cuts if nothing else is asked for.
const CUTS: u64 = 1_000;
/// Cases in which a planted bug has to be found.
const HUNT_CASES: u64 = 60;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir crash sqlite --journal delete,truncate,persist,wal
  weir crash sqlite --format ext4-dual --order durable,all --journal persist,wal --cuts 10000
  weir crash sqlite --format ext4-sdj --journal batch-atomic
  weir crash sqlite --format f2fs --on host-ftl --journal wal
  weir crash sqlite --mutants

Each case does some transactions with SQLite itself on a volume that has been in use, on a small device that is cut between and in the \
operations of its medium. What each cut leaves is recovered by the device and the file system; then SQLite opens the database, whose \
rows have to be those after some number of whole transactions: no fewer than had been committed, as far as the mode promises that, and \
no more than had begun.")]
pub(crate) struct CrashSqliteArgs {
    /// File system; barriers need f2fs-dual or ext4-dual
    #[arg(long, value_name = "FORMAT", value_parser = Format::NAMES, default_value = "ext4")]
    format: String,
    /// Disk below it: the simulated device by itself, below a block layer, or with an open channel below a host FTL
    #[arg(long, value_name = "DEVICE", value_parser = On::SIMULATED, default_value = "device")]
    on: String,
    /// SQLite's journal_mode; several are explored one after the other
    #[arg(long, value_name = "MODE", value_enum, value_delimiter = ',', default_value = "delete")]
    journal: Vec<JournalArg>,
    /// SQLite's synchronous; several are explored one after the other
    #[arg(long, value_name = "LEVEL", value_enum, value_delimiter = ',', default_value = "full")]
    sync: Vec<SyncArg>,
    /// Which of SQLite's syncs become barriers; several are explored one after the other
    #[arg(long, value_name = "WHICH", value_enum, value_delimiter = ',', default_value = "none")]
    order: Vec<OrderArg>,
    /// Number of cuts for each combination [default: 1000 without --count]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    cuts: Option<u64>,
    /// Stop after this many cases
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    count: Option<u64>,
    /// Most cuts of one case
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = whole::<u64>(1, 1_000_000))]
    cuts_each: u64,
    /// Transactions of a case
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = whole::<u64>(1, 100_000))]
    transactions: u64,
    /// Command for each flush of the host: FLUSH, range flushes (f2fs), or nothing at all
    #[arg(long, value_name = "MODE", value_parser = ["flush", "rflush", "noflush"], default_value = "rflush")]
    flush: String,
    /// Seed of the first case
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, 1_000_000))]
    violations: usize,
    /// Plant this bug in the treatment of syncs
    #[arg(long, value_name = "BUG", value_parser = ["no-journal-sync", "no-database-sync", "lazy-commit", "data-barriers", "loose-set"])]
    planted: Option<String>,
    /// Plant each known bug in turn and count those that are found
    #[arg(long, conflicts_with_all = ["planted", "format", "journal", "sync", "order", "cuts", "count"])]
    mutants: bool,
    #[command(flatten)]
    results: ResultArgs,
}

/// Result with one plan.
#[derive(Debug, Serialize)]
struct Explored {
    format: Format,
    plan: Plan,
    flush: &'static str,
    #[serde(flatten)]
    report: CrashReport,
}

/// `weir crash sqlite`.
pub(crate) fn command(args: &CrashSqliteArgs, cancel: &AtomicBool) -> Outcome {
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let configs = if args.mutants { mutants(args)? } else { configs(args)? };
    let (begun, mut bar) = (Instant::now(), Bar::new(args.results.quiet));
    let (mut all, count) = (Vec::new(), configs.len());
    for (at, config) in configs.iter().enumerate() {
        let report = explore(config, &mut |report| {
            let share = |done: u64, all: Option<u64>| all.map_or(0.0, |all| done as f64 / all as f64);
            let part = share(report.totals.made, config.cuts).max(share(report.totals.cases, config.count));
            bar.set((at as f64 + part.min(1.0)) / count as f64, || {
                let made = thousands(report.totals.made);
                format!("{}: {made} cuts, {} violations", name_of(config), report.violations.len())
            });
            !cancel.load(Ordering::Relaxed)
        });
        let (format, plan, flush) = (config.format, config.plan, config.mode.name());
        // Options and configurations have been checked.
        all.push(Explored { format, plan, flush, report: report.map_err(Failure::Run)? });
        if cancel.load(Ordering::Relaxed) {
            break;
        }
    }
    bar.clear();
    let text = match args.results.shape.output {
        Shape::Json => json::pretty(json::Kind::CrashSqlite, &serde_json::json!({ "runs": all }))?,
        Shape::Table => shown(args, &all),
    };
    print_or_write(args.results.out.as_deref(), &text)?;
    let made: u64 = all.iter().map(|explored| explored.report.totals.made).sum();
    if !args.results.quiet {
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        let speed = thousands((made as f64 / seconds) as u64);
        say(format!("{} cuts in {seconds:.1} s, {speed} per second", thousands(made)));
    }
    // What was found until then is not lost.
    if cancel.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    let found = all.iter().filter(|explored| !explored.report.violations.is_empty()).count();
    match (args.mutants, found) {
        (true, found) if found < count => {
            Err(Failure::Run(format!("{} of {count} planted bugs were not found", count - found)))
        }
        (true, _) | (false, 0) => Ok(()),
        (false, found) => Err(Failure::Run(format!("violations in {found} of {count} modes"))),
    }
}

fn name_of(config: &CrashConfig) -> String {
    let Plan { journal_mode, synchronous, order, .. } = config.plan;
    let (format, on) = (config.format.name(), config.on.name());
    format!("{format} on {on} {} {} {}", journal_mode.name(), synchronous.name(), order.name())
}

fn base_config(args: &CrashSqliteArgs, format: Format, plan: Plan) -> Outcome<CrashConfig> {
    Ok(CrashConfig {
        format,
        on: On::named(&args.on).ok_or_else(|| Failure::Usage(format!("--on: {}", args.on)))?,
        mode: mode_named(&args.flush).map_err(Failure::Usage)?,
        plan,
        count: args.count,
        cuts: args.cuts.or(args.count.is_none().then_some(CUTS)),
        states_each: args.cuts_each as usize,
        transactions: args.transactions,
        seed: args.seed,
        jobs: threads(args.results.jobs),
        violations_max: args.violations,
    })
}

fn configs(args: &CrashSqliteArgs) -> Outcome<Vec<CrashConfig>> {
    let format = Format::named(&args.format);
    let format = format.ok_or_else(|| Failure::Usage(format!("--format: {}", args.format)))?;
    let bug = |name: &str| PlantedBug::ALL.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug);
    let planted = args.planted.as_deref().and_then(bug);
    let mut configs = Vec::new();
    for journal in &args.journal {
        for sync in &args.sync {
            for order in &args.order {
                let (journal_mode, synchronous) = (journal.mode(), sync.synchronous());
                if let Some((bug, Err(need))) =
                    planted.map(|bug| (bug, bug.check(journal_mode, order.mode())))
                {
                    return Err(Failure::Usage(format!(
                        "--planted {} needs {need}: without, it changes nothing",
                        bug.name()
                    )));
                }
                let plan = Plan { journal_mode, synchronous, order: order.mode(), planted };
                let config = base_config(args, format, plan)?;
                config.check().map_err(|why| Failure::Usage(format!("--{why}")))?;
                configs.push(config);
            }
        }
    }
    Ok(configs)
}

fn mutants(args: &CrashSqliteArgs) -> Outcome<Vec<CrashConfig>> {
    let config = |(planted, journal_mode, order, format)| {
        let plan = Plan { journal_mode, synchronous: Synchronous::Full, order, planted: Some(planted) };
        let config = base_config(args, format, plan)?;
        Ok(CrashConfig { count: Some(HUNT_CASES), cuts: None, ..config })
    };
    MUTANTS.into_iter().map(config).collect()
}

/// Summary of the exploration.
fn shown(args: &CrashSqliteArgs, all: &[Explored]) -> String {
    let head = [
        "format",
        "journal_mode",
        "synchronous",
        "order",
        "planted bug",
        "cuts",
        "databases",
        "used on",
        "lost, most",
        "violations",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for Explored { format, plan, report, .. } in all {
        rows.push([
            format.name().to_owned(),
            plan.journal_mode.name().to_owned(),
            plan.synchronous.name().to_owned(),
            plan.order.name().to_owned(),
            plan.planted.map_or("", PlantedBug::name).to_owned(),
            thousands(report.totals.made),
            thousands(report.totals.opened),
            thousands(report.totals.exercised),
            thousands(report.totals.lost_max),
            thousands(report.violations.len() as u64),
        ]);
    }
    let mut text = table(&rows, 5);
    for Explored { format, plan, report, flush } in all {
        for violation in &report.violations {
            let _ = writeln!(text, "\nviolation: {}", violation.what);
            let planted = plan.planted.map_or(String::new(), |bug| format!(" --planted {}", bug.name()));
            let _ = writeln!(
                text,
                "to see it again: weir crash sqlite --format {} --on {} --journal {} --sync {} --order {} --flush {} --transactions {} \
                 --cuts-each {} --count 1 --seed {}{planted}",
                format.name(),
                args.on,
                plan.journal_mode.name(),
                plan.synchronous.name(),
                plan.order.name(),
                flush.to_lowercase(),
                args.transactions,
                args.cuts_each,
                violation.seed
            );
        }
    }
    text
}
