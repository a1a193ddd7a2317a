//! `weir explain`: where the time of one request went, or of the slowest ones beside the median and all.
//!
//! Place in the data flow: a scenario or a job file runs as under `weir run` and `weir fio`, with a
//! [`Ledger`] that follows each request; what it found becomes tables or JSON.
//!
//! Invariants: the rows of a table add up to its latency, and the indented ones to the row above them; rows that are small everywhere are
//! combined, not left out.

use crate::devices::{host_ftls, refuse_two_layers, resolve};
use crate::error::{Failure, Outcome, say, unreadable};
use crate::json;
use crate::options::{ResultArgs, StateArgs};
use crate::output::thousands;
use crate::output::{check, print_or_write, stopped};
use crate::progress::Watch;
use crate::run::{failures, load, stem, threads};
use crate::values::{fraction, whole};
use clap::{Args, ValueEnum};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Duration, Instant};
use flashweir_device::Geometry;
use flashweir_device::flash::{Op, OpKind};
use flashweir_lab::experiment::{Experiment, Wanted};
use flashweir_lab::scenario::{Scenario, Source, WorkloadConfig, read_block_layer};
use flashweir_sim::request::Kind;
use flashweir_sim::timeline::{
    ByReason, Ledger, Means, NO_ROOM, Piece, REASONS, Reason, Request, Stage, die_name, kind_name,
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Rows whose share is smaller in every column are combined.
const SHARE_MIN: f64 = 0.005;
/// Differences that are named in the sentence above a table.
const NAMED: usize = 3;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir explain job.fio --device consumer-tlc-nvme                     all, the median, the slowest 0.1 %
  weir explain job.fio --device sata-mlc --overwrite 2 --kind write --slowest 1%
  weir explain job.fio --device sata-mlc --overwrite 2 --request 4711      its timeline
  weir explain job.fio --device sata-mlc --block-layer deadline,depth=8    what the block layer takes of it
  weir explain job.fio --device qblke --host-ftl pblk --fill 0.1           what the host FTL takes of it
  weir explain scenarios/first-look.toml --output json

The state of the device, --seed, --device, --block-layer and --host-ftl are for job files: a scenario has its own.

The same run as under `weir fio` or `weir run`, with every nanosecond of every request accounted for. Where a request has \
several parts, the chain that ended last counts: what it waited for, back to its arrival. Rows add up to the latency. \
`die busy with` says what the die did instead; `plane out of room` is host data that wait for garbage collection; below \
`admission` are the stages of the page that made room in the buffer. Requests that a block layer has merged share the rows of \
their command. Below a host FTL a request has the rows of the one command whose completion decided its answer.")]
pub(crate) struct ExplainArgs {
    /// A scenario, or a fio job file with --device
    #[arg(value_name = "SCENARIO.toml|JOBFILE")]
    file: PathBuf,
    /// Explain this request, by its number in the order of submission, from 0
    #[arg(long, value_name = "N", conflicts_with_all = ["slowest", "kind"], value_parser = whole::<u64>(0, u64::MAX))]
    request: Option<u64>,
    /// The part of the requests that counts as the slowest
    #[arg(long, value_name = "PERCENT", default_value = "0.1%", value_parser = fraction)]
    slowest: f64,
    /// Only this kind of request
    #[arg(long, value_enum)]
    kind: Option<KindArg>,
    /// For a job file: a preset (see `weir device list`) or a device file; may be given several times
    #[arg(long, short, value_name = "PRESET|FILE.toml")]
    device: Vec<String>,
    /// Set a key of every device, or of the scenario; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// For a job file: seed of all randomness [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX))]
    seed: Option<u64>,
    #[command(flatten)]
    state: StateArgs,
    /// For a job file: put a block layer between the jobs and the device: a scheduler (none, deadline or cfq), knobs, or
    /// both, as in deadline,depth=8
    #[arg(long, value_name = "SCHEDULER,KEY=VALUE", help_heading = "Host")]
    block_layer: Option<String>,
    /// For a job file: put a host FTL above each device with an open channel: an assembly (pblk, qblke, pblk-as-released or
    /// qblke-as-released), and keys behind it, as in qblke,rings=4
    #[arg(long, value_name = "ASSEMBLY,KEY=VALUE", help_heading = "Host")]
    host_ftl: Option<String>,
    #[command(flatten)]
    results: ResultArgs,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    Read,
    Write,
    Trim,
    WriteZeroes,
    Share,
    Flush,
}

impl KindArg {
    fn kind(self) -> Kind {
        match self {
            Self::Read => Kind::Read,
            Self::Write => Kind::Write,
            Self::Trim => Kind::Trim,
            Self::WriteZeroes => Kind::WriteZeroes,
            Self::Share => Kind::Share,
            Self::Flush => Kind::Flush,
        }
    }
}

/// `weir explain`.
pub(crate) fn command(args: &ExplainArgs, cancel: &AtomicBool) -> Outcome {
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let scenario = scenario(args)?;
    refuse_two_layers(&scenario, "weir explain")?;
    let experiment = Experiment::new(scenario).map_err(Failure::usage)?;
    let cells = experiment.cells().len();
    if args.request.is_some() && cells != 1 {
        return Err(Failure::Usage(format!(
            "--request names a request of one run and this scenario has {cells}: expected one device, one workload and \
             one seed"
        )));
    }
    if !args.results.quiet {
        experiment.warnings().iter().for_each(|warning| say(format!("warning: {warning}")));
    }
    let only = args.kind.map(KindArg::kind);
    let watch = Watch::new(&experiment, args.results.quiet);
    let wanted = |_| Wanted { perfetto: None, ledger: Some(Ledger::new(only, args.request)) };
    let outcomes =
        experiment.run_traced(threads(args.results.jobs), cancel, &|report| watch.report(report), &wanted);
    watch.finish();
    let in_part = outcomes.iter().flatten().filter(|(outcome, _)| outcome.stopped).count();
    let through = outcomes.iter().flatten().count() - in_part;
    let is_stopped = through < cells;
    let mut text = String::new();
    let mut runs = Vec::new();
    let begun = outcomes.iter().enumerate().filter_map(|(cell, outcome)| Some((cell, outcome.as_ref()?)));
    for (cell, (outcome, findings)) in begun {
        let ledger = findings.as_ref().and_then(|findings| findings.ledger.as_ref());
        let ledger = ledger.expect("each run was asked for a ledger");
        let run = Run { experiment: &experiment, cell, ledger, tail: args.slowest };
        match (args.request, args.results.shape.is_json()) {
            (Some(number), json) => {
                let Some(request) = ledger.found() else {
                    // It may have come later.
                    if is_stopped {
                        return Err(Failure::Interrupted);
                    }
                    return Err(Failure::Usage(format!(
                        "--request {number}: there is none with this number: {} requests completed, counted from 0",
                        thousands(outcome.requests)
                    )));
                };
                if json {
                    runs.push(run.head(request_json(request)));
                } else {
                    text += &run.request(request);
                }
            }
            (None, true) => runs.push(run.json()),
            (None, false) => text += &run.report(),
        }
    }
    if args.results.shape.is_json() {
        text = json::pretty(json::Kind::Explain, &json!({ "runs": runs }))?;
    }
    if is_stopped {
        return stopped(through, cells, in_part, || Ok(text));
    }
    print_or_write(args.results.out.as_deref(), &text)?;
    failures(&experiment, outcomes.iter().flatten().map(|(outcome, _)| outcome))
}

/// The scenario, or one job file on the devices of the command line.
fn scenario(args: &ExplainArgs) -> Outcome<Scenario> {
    let file = args.file.display().to_string();
    if args.file.extension().is_some_and(|extension| extension == "toml") {
        let given = [
            ("--device", !args.device.is_empty(), "--set device.N.KEY=VALUE"),
            ("--seed", args.seed.is_some(), "--set seeds=[N]"),
            ("--precondition", args.state.precondition.is_some(), "--set precondition.mode=MODE"),
            ("--fill", args.state.fill.is_some(), "--set precondition.fill=0..1"),
            ("--overwrite", args.state.overwrite.is_some(), "--set precondition.overwrite=TIMES"),
            ("--pattern", args.state.pattern.is_some(), "--set precondition.pattern=PATTERN"),
            ("--block-layer", args.block_layer.is_some(), "--set block_layer.scheduler=SCHEDULER"),
            ("--host-ftl", args.host_ftl.is_some(), "--set host_ftl.assembly=ASSEMBLY"),
        ];
        if let Some((option, _, instead)) = given.iter().find(|(_, given, _)| *given) {
            return Err(Failure::Usage(format!(
                "{option} belongs to a job file, and {file} is a scenario: expected {instead}"
            )));
        }
        return load(&args.file, &args.set);
    }
    if args.device.is_empty() {
        return Err(Failure::Usage("missing: --device <PRESET|FILE.toml>".into()));
    }
    let text = std::fs::read_to_string(&args.file).map_err(|error| unreadable(&file, &error))?;
    let devices = resolve(&args.device, &args.set)?;
    let precondition = args.state.of(&devices)?;
    let block_layer = args.block_layer.as_ref().map(|text| read_block_layer("--block-layer", text));
    let name = stem(&args.file);
    Ok(Scenario {
        name: name.clone(),
        seeds: vec![args.seed.unwrap_or(1)],
        precondition,
        track_contents: false,
        block_layer: block_layer.transpose().map_err(Failure::usage)?,
        host_ftls: host_ftls(args.host_ftl.as_deref(), &devices)?,
        devices,
        workloads: vec![WorkloadConfig { name, source: Source::Fio { file, text } }],
    })
}

/// One run and what was found out about it.
struct Run<'a> {
    experiment: &'a Experiment,
    cell: usize,
    ledger: &'a Ledger,
    tail: f64,
}

/// A row of a table: a stage, or a reason within one.
struct Row {
    name: String,
    indented: bool,
    ns: [f64; 3],
}

impl Run<'_> {
    fn title(&self) -> String {
        self.experiment.cell_name(self.cell)
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(&self.experiment.scenario().devices[self.experiment.cells()[self.cell].device])
    }

    /// Tables of every kind of request.
    fn report(&self) -> String {
        let mut text = String::new();
        for kind in self.ledger.kinds() {
            let [Some(all), Some(median), Some(tail)] = [
                self.ledger.all(Some(kind)),
                self.ledger.median(Some(kind)),
                self.ledger.tail(Some(kind), self.tail),
            ] else {
                continue;
            };
            let _ = writeln!(text, "{}: {}", self.title(), kind_name(kind));
            let _ = writeln!(text, "{}\n", sentence(&median, &tail));
            text += &table(&[all, median, tail], self.tail);
            text.push('\n');
        }
        if text.is_empty() {
            return format!("{}: no request completed that counts\n", self.title());
        }
        let slowest: Vec<String> = self
            .ledger
            .slowest()
            .iter()
            .map(|r| format!("{} ({}, {} µs)", r.number, kind_name(r.asked.kind), micros(latency(r))))
            .collect();
        let _ = writeln!(text, "slowest requests, for --request N: {}\n", slowest.join(", "));
        text
    }

    /// The timeline of one request.
    fn request(&self, request: &Request) -> String {
        let geometry = self.geometry();
        let Request { number, asked, from, until, pieces, .. } = request;
        let mut text = format!("{}: request {}\n", self.title(), thousands(*number));
        let fua = if asked.fua { " with FUA" } else { "" };
        let what = match asked.kind {
            Kind::Flush => "flush".to_owned(),
            kind => format!(
                "{}{fua} of {} bytes at LBA {}",
                kind_name(kind),
                thousands(u64::from(asked.blocks) * LBA_BYTES),
                asked.lba.0
            ),
        };
        let failed = if request.failed { "; it failed" } else { "" };
        let total = until.since(*from);
        let _ = writeln!(
            text,
            "{what} on queue {}, from {} ms on: {} µs{failed}\n",
            asked.queue,
            decimals(from.as_nanos() as f64 / 1e6, 3),
            micros(total)
        );
        let _ =
            writeln!(text, "{:>12} {:>12} {:>12} {:>5}  where and for what", "from µs", "to µs", "µs", "%");
        let mut stage = None;
        let no_room = |piece: &Piece| matches!(piece.reason, Reason::NoRoom(_));
        for together in pieces.chunk_by(|a, b| a.stage == b.stage && no_room(a) && no_room(b)) {
            let (piece, until) = (&together[0], together[together.len() - 1].until);
            if stage != Some(piece.stage) {
                stage = Some(piece.stage);
                if piece.reason != Reason::Itself {
                    let _ = writeln!(text, "{:46}{}", "", heading(piece.stage));
                }
            }
            let name = match piece.reason {
                Reason::Itself => piece.stage.name().to_owned(),
                _ => format!("  {}", described(piece, &geometry)),
            };
            let at = |instant: Instant| micros(instant.since(*from));
            let length = until.since(piece.from);
            let _ = writeln!(
                text,
                "{:>12} {:>12} {:>12} {:>5}  {name}",
                at(piece.from),
                at(until),
                micros(length),
                percent(length.as_nanos() as f64, total.as_nanos() as f64)
            );
            if piece.stage == Stage::Behind {
                text += &parts(&request.behind, total, "of which they waited");
            } else if no_room(piece) {
                let mut by = [0; REASONS];
                for piece in together {
                    by[piece.reason.index()] += piece.length().as_nanos();
                }
                text += &parts(&by, total, "of which");
            }
        }
        let _ = writeln!(text, "{:>12} {:>12} {:>12} {:>5}  latency", "", "", micros(total), "100%");
        text
    }

    fn head(&self, mut of: Map<String, Value>) -> Value {
        let run = self.experiment.cells()[self.cell];
        let scenario = self.experiment.scenario();
        of.insert("device".into(), scenario.devices[run.device].name.clone().into());
        of.insert("workload".into(), scenario.workloads[run.workload].name.clone().into());
        of.insert("seed".into(), run.seed.into());
        Value::Object(of)
    }

    fn json(&self) -> Value {
        let kinds = self.ledger.kinds().into_iter().map(|kind| {
            let means = |means: Option<Means>| means.map_or(Value::Null, |means| means_json(&means));
            json!({
                "kind": kind_name(kind),
                "all": means(self.ledger.all(Some(kind))),
                "median": means(self.ledger.median(Some(kind))),
                "slowest": means(self.ledger.tail(Some(kind), self.tail)),
            })
        });
        let kinds: Vec<Value> = kinds.collect();
        let slowest: Vec<Map<String, Value>> = self.ledger.slowest().iter().map(request_json).collect();
        let of = [
            ("slowest_fraction".to_owned(), json!(self.tail)),
            ("kinds".to_owned(), kinds.into()),
            ("slowest_requests".to_owned(), json!(slowest)),
        ];
        self.head(of.into_iter().collect())
    }
}

/// The difference between tail and median, in a sentence.
fn sentence(median: &Means, tail: &Means) -> String {
    let more = tail.latency_ns - median.latency_ns;
    if more <= 0.01 * median.latency_ns {
        return "The slowest are as fast as the median.".into();
    }
    let mut parts: Vec<(f64, String)> = Vec::new();
    for stage in Stage::ALL {
        for reason in Reason::all() {
            let name = match (stage, reason) {
                (_, Reason::Itself) => stage.name().to_owned(),
                // A full plane is one reason, whether it holds up the first of the queue or those behind it.
                (_, Reason::NoRoom(_)) => NO_ROOM.to_owned(),
                (Stage::Flash, _) => reason.name(),
                _ => format!("{} ({})", stage.name(), reason.name()),
            };
            let ns = tail.reason(stage, reason) - median.reason(stage, reason);
            match parts.iter_mut().find(|(_, known)| *known == name) {
                Some(known) => known.0 += ns,
                None => parts.push((ns, name)),
            }
        }
    }
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named = parts.iter().take(NAMED).filter(|(ns, _)| *ns >= 0.05 * more);
    let named: Vec<String> =
        named.map(|(ns, name)| format!("{name} +{} µs", decimals(ns / 1e3, 1))).collect();
    let times = match tail.latency_ns / median.latency_ns {
        times if times.is_finite() => format!("{} × the median, ", decimals(times, 1)),
        // A host FTL whose CPUs take no time answers from memory at once.
        _ => String::new(),
    };
    format!("The slowest take {times}+{} µs, most of it: {}.", decimals(more / 1e3, 1), named.join("; "))
}

/// Means of a kind: all, median, tail.
fn table(means: &[Means; 3], tail: f64) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for stage in Stage::ALL {
        let total = [0, 1, 2].map(|i| means[i].stage(stage));
        if total.iter().all(|ns| *ns == 0.0) {
            continue;
        }
        rows.push(Row { name: stage.name().into(), indented: false, ns: total });
        let mut small = Row { name: "other".into(), indented: true, ns: [0.0; 3] };
        let mut parts = Vec::new();
        for reason in Reason::all().filter(|reason| *reason != Reason::Itself) {
            let ns = [0, 1, 2].map(|i| means[i].reason(stage, reason));
            if (0..3).any(|i| ns[i] >= SHARE_MIN * means[i].latency_ns) {
                parts.push(Row { name: reason.name(), indented: true, ns });
            } else {
                (0..3).for_each(|i| small.ns[i] += ns[i]);
            }
        }
        // What is largest in the tail comes first.
        parts.sort_by(|a, b| b.ns[2].total_cmp(&a.ns[2]));
        rows.extend(parts);
        rows.extend((small.ns.iter().any(|ns| *ns >= 50.0)).then_some(small));
    }
    let mut text = format!("{:44}", "mean µs and share");
    for title in ["all".to_owned(), "median tenth".into(), format!("slowest {} %", tail * 100.0)] {
        let _ = write!(text, "{title:>20}");
    }
    text.push('\n');
    let mut line = |name: &str, cells: [String; 3]| {
        let [a, b, c] = cells;
        let _ = writeln!(text, "{}", format!("{name:44}{a:>20}{b:>20}{c:>20}").trim_end());
    };
    line("requests", [0, 1, 2].map(|i| format!("{}     ", thousands(means[i].requests))));
    let cell = |ns: f64, all: f64| match ns {
        0.0 => "     ".to_owned(),
        ns => format!("{} {:>4}", decimals(ns / 1e3, 1), percent(ns, all)),
    };
    for row in rows {
        let name = if row.indented { format!("  {}", row.name) } else { row.name };
        line(&name, [0, 1, 2].map(|i| cell(row.ns[i], means[i].latency_ns)));
    }
    line("latency", [0, 1, 2].map(|i| cell(means[i].latency_ns, means[i].latency_ns)));
    text
}

/// Heading of a stage in a timeline.
fn heading(stage: Stage) -> &'static str {
    match stage {
        Stage::BufferFull => "admission: buffer full until this made room",
        Stage::LogFull => "admission: map log full until this made room",
        Stage::Durable => "flush wait: what became durable last",
        Stage::Merge => "old content of a unit that is written in part",
        Stage::Flash => "flash: the page that came last",
        stage => stage.name(),
    }
}

/// A piece in words, with its place.
fn described(piece: &Piece, geometry: &Geometry) -> String {
    let mut text = match piece.reason {
        Reason::NoRoom(_) => NO_ROOM.to_owned(),
        reason => reason.name(),
    };
    if piece.others > 1 {
        let _ = write!(text, " × {}", piece.others);
    }
    if let Some(Op { plane, at, kind, .. }) = piece.op {
        let die = die_name(geometry, geometry.station(plane));
        let _ = write!(text, ", {die}");
        if matches!(piece.reason, Reason::NoRoom(_)) {
            let _ = write!(text, " plane {}", plane.0 % geometry.planes_per_station());
        }
        if matches!(piece.reason, Reason::Array(_)) {
            let _ = write!(text, " plane {} block {}", plane.0 % geometry.planes_per_station(), at.block.0);
            if kind != OpKind::Erase {
                let _ = write!(text, " page {}", at.page);
            }
        }
    }
    text
}

/// Composition of a piece.
fn parts(by: &ByReason, total: Duration, what: &str) -> String {
    let mut parts: Vec<(u64, Reason)> =
        Reason::all().map(|reason| (by[reason.index()], reason)).filter(|(ns, _)| *ns > 0).collect();
    parts.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
    let mut text = String::new();
    for (ns, reason) in parts {
        let share = percent(ns as f64, total.as_nanos() as f64);
        let length = micros(Duration::from_nanos(ns));
        let _ = writeln!(text, "{:>38} {share:>5}      {what}: {}", length, reason.name());
    }
    text
}

fn latency(request: &Request) -> Duration {
    request.until.since(request.from)
}

fn means_json(means: &Means) -> Value {
    let mut stages = Map::new();
    for stage in Stage::ALL.into_iter().filter(|stage| means.stage(*stage) > 0.0) {
        let reasons = Reason::all().filter(|reason| means.reason(stage, *reason) > 0.0);
        let reasons: Map<String, Value> =
            reasons.map(|reason| (reason.name(), means.reason(stage, reason).into())).collect();
        stages.insert(stage.name().into(), json!({ "ns": means.stage(stage), "reasons_ns": reasons }));
    }
    json!({ "requests": means.requests, "latency_ns": means.latency_ns, "stages": stages })
}

fn request_json(request: &Request) -> Map<String, Value> {
    let Request { number, asked, from, .. } = request;
    let pieces: Vec<Value> = request
        .pieces
        .iter()
        .map(|piece| {
            let mut of = json!({
                "stage": piece.stage.name(),
                "reason": piece.reason.name(),
                "from_ns": piece.from.since(*from).as_nanos(),
                "until_ns": piece.until.since(*from).as_nanos(),
            });
            if let Some(op) = piece.op {
                of["plane"] = op.plane.0.into();
                of["other_commands"] = piece.others.into();
            }
            if let (Some(op), Reason::Array(_)) = (piece.op, piece.reason) {
                of["block"] = op.at.block.0.into();
                of["page"] = op.at.page.into();
            }
            of
        })
        .collect();
    let by = &request.behind;
    let behind = Reason::all().filter(|reason| by[reason.index()] > 0);
    let behind: Map<String, Value> =
        behind.map(|reason| (reason.name(), by[reason.index()].into())).collect();
    let Value::Object(of) = json!({
        "request": number,
        "kind": kind_name(asked.kind),
        "queue": asked.queue,
        "lba": asked.lba.0,
        "bytes": u64::from(asked.blocks) * LBA_BYTES,
        "fua": asked.fua,
        "failed": request.failed,
        "started_ns": from.as_nanos(),
        "latency_ns": latency(request).as_nanos(),
        "pieces": pieces,
        "behind_waited_ns": behind,
    }) else {
        unreachable!("an object was written")
    };
    of
}

/// A duration in microseconds with one digit, or all of them if it is shorter than one.
fn micros(time: Duration) -> String {
    let digits = if (1..1000).contains(&time.as_nanos()) { 3 } else { 1 };
    decimals(time.as_nanos() as f64 / 1e3, digits)
}

/// A number with commas and some digits behind the point.
fn decimals(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    match text.split_once('.') {
        Some((whole, rest)) => match whole.parse() {
            Ok(whole) => format!("{}.{rest}", thousands(whole)),
            Err(_) => text,
        },
        None => text,
    }
}

fn percent(part: f64, all: f64) -> String {
    if part == 0.0 || all == 0.0 {
        return String::new();
    }
    match part / all * 100.0 {
        share if share < 0.5 => "<1%".into(),
        share => format!("{share:.0}%"),
    }
}
