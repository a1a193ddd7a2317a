//! `cargo xtask mutants`: how many of the bugs that rules make are found by CI's suites.
//!
//! Place: it finds mutants ([`rules`]) in the durability paths ([`layers`]), builds all of them into one program ([`copy`]), draws some
//! ([`draw`]), tries them ([`run`]) and looks up the explanations of survivors ([`survivors`]).
//!
//! Invariant: all survivors count except equivalent ones; score = found / (drawn − equivalent).
//!
//! Deliberately absent: mutants made by hand. Those are planted bugs, which have names in the crates.

mod again;
mod copy;
mod draw;
mod layers;
mod rules;
mod run;
mod survivors;

use copy::Copy;
use draw::Drawn;
use flashweir_judges::host::{seed, target_dir};
use layers::{GOLDEN, LAYERS, Suite};
use run::Outcome;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;
use survivors::Reason;

/// Default number of mutants.
const COUNT: usize = 80;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) count: usize,
    /// Only this layer; `None` is all layers.
    layer: Option<String>,
    only: Vec<u32>,
    show: Option<u32>,
    list: bool,
    /// Number of mutants that the evidence has as found, to be tried again by the suites that found them.
    again: Option<usize>,
    /// Limit of the time that the suites of a layer take without a mutant.
    limit: Option<Duration>,
    /// Only suites whose names contain this; empty is all.
    suites: String,
}

impl Plan {
    /// The command that does the same again.
    fn again_line(&self) -> String {
        let mut line = format!("cargo xtask mutants --seed {} --count {}", self.seed, self.count);
        let _ = self.layer.iter().try_for_each(|layer| write!(line, " --layer {layer}"));
        let _ = self.only.iter().try_for_each(|id| write!(line, " --only {id}"));
        let _ = self.limit.iter().try_for_each(|limit| write!(line, " --suites-seconds {}", limit.as_secs()));
        if !self.suites.is_empty() {
            let _ = write!(line, " --suites '{}'", self.suites);
        }
        line
    }
}

const USAGE: &str = "usage: cargo xtask mutants [--count N] [--seed S] [--layer NAME] [--suites-seconds N] [--suites NAME] \
                     [--only ID]... [--show ID] [--list] [--again N]";

/// Runs the command.
pub(crate) fn command(args: &[&str]) -> Result<bool, String> {
    let plan = plan(args)?;
    if let Some(id) = plan.show {
        return show(id);
    }
    if plan.list {
        return list(&plan);
    }
    if let Some(count) = plan.again {
        return again(plan.seed, count);
    }
    println!("seed {} (again: {})", plan.seed, plan.again_line());
    let mut prepared = prepare(&plan)?;
    let outcomes = prepared.run(&plan, &BTreeSet::new(), |_| Ok(()))?;
    let (mutants, report) = report(&outcomes)?;
    let path = copy::dir().join("mutants.json");
    let content = json!({ "seed": plan.seed, "mutants": mutants, "sums": report.sums });
    std::fs::write(&path, format!("{content:#}\n"))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{}\nJSON: {}", report.text, path.strip_prefix(target_dir()).unwrap_or(&path).display());
    Ok(report.unexplained == 0)
}

fn plan(args: &[&str]) -> Result<Plan, String> {
    let mut plan = Plan { count: COUNT, ..Plan::default() };
    let mut given = None;
    let mut args = args.iter();
    while let Some(&option) = args.next() {
        if option == "--list" {
            plan.list = true;
            continue;
        }
        let known =
            ["--count", "--seed", "--layer", "--suites-seconds", "--suites", "--only", "--show", "--again"];
        if !known.contains(&option) {
            return Err(format!("unknown option {option:?}\n\n{USAGE}"));
        }
        let value = *args.next().ok_or_else(|| format!("{option} needs a value\n\n{USAGE}"))?;
        let number =
            || value.parse::<u64>().map_err(|_| format!("{option} cannot be {value:?}: expected a number"));
        let id = || {
            let id = number()?;
            u32::try_from(id)
                .map_err(|_| format!("{option} cannot be {value:?}: expected a number below 2^32"))
        };
        match option {
            "--count" => plan.count = number()? as usize,
            "--again" => plan.again = Some(number()? as usize),
            "--seed" => given = Some(number()?),
            "--suites-seconds" => plan.limit = Some(Duration::from_secs(number()?)),
            "--suites" => plan.suites = value.into(),
            "--only" => plan.only.push(id()?),
            "--show" => plan.show = Some(id()?),
            _ => {
                if !LAYERS.iter().any(|layer| layer.name == value) {
                    let known = LAYERS.map(|layer| layer.name).join(", ");
                    return Err(format!("--layer cannot be {value:?}: expected one of {known}"));
                }
                plan.layer = Some(value.into());
            }
        }
    }
    plan.seed = given.map_or_else(seed, Ok)?;
    Ok(plan)
}

/// CI's share: see [`mod@again`].
pub(crate) fn again(seed: u64, count: usize) -> Result<bool, String> {
    println!("seed {seed} (again: cargo xtask mutants --seed {seed} --again {count})");
    again::command(seed, count, |outcome| println!("   {}", said(outcome)))
}

/// Prints everything about one mutant of the checkout.
fn show(id: u32) -> Result<bool, String> {
    let all = draw::all(&copy::find()?, &BTreeSet::new());
    let one = all.iter().find(|drawn| drawn.id == id);
    let one =
        one.ok_or_else(|| format!("--show cannot be {id}: there are mutants from 1 to {}", all.len()))?;
    println!(
        "{}\n\n{}\n→ {}\n\n{}",
        one.line(),
        one.mutant.original,
        one.mutant.mutated,
        survivors::blank(one)
    );
    Ok(true)
}

/// Prints all mutants, and their number in each layer and operator.
fn list(plan: &Plan) -> Result<bool, String> {
    let all = draw::all(&copy::find()?, &BTreeSet::new());
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for one in all.iter().filter(|one| plan.layer.as_ref().is_none_or(|layer| layer == one.layer)) {
        println!("{}", one.line());
        *counts.entry((one.layer, one.mutant.operator.name())).or_default() += 1;
    }
    for ((layer, operator), count) in counts {
        println!("{layer:<12} {operator:<18} {count:>6}");
    }
    Ok(true)
}

/// The built copy and its suites.
#[derive(Debug)]
pub(crate) struct Prepared {
    copy: Copy,
    drawn: Vec<Drawn>,
    baselines: BTreeMap<&'static str, Vec<run::Baseline>>,
    pub(crate) mutants: usize,
}

/// Builds the copy, draws mutants, and runs the suites without a mutant.
pub(crate) fn prepare(plan: &Plan) -> Result<Prepared, String> {
    let files = copy::find()?;
    let wanted: Option<BTreeSet<&str>> = (!plan.only.is_empty()).then(|| {
        let is_of = |file: &&copy::File| {
            let ids = file.first..file.first + file.mutants.all.len() as u32;
            plan.only.iter().any(|id| ids.contains(id))
        };
        files.iter().filter(is_of).map(|file| file.layer).collect()
    });
    let is_wanted = |name: &str| match (&wanted, &plan.layer) {
        (Some(wanted), _) => wanted.contains(name),
        (None, Some(layer)) => layer == name,
        (None, None) => true,
    };
    let layers: Vec<&str> = LAYERS.iter().map(|layer| layer.name).filter(|name| is_wanted(name)).collect();
    let of_layers = LAYERS.iter().filter(|layer| layers.contains(&layer.name));
    let suites: Vec<Suite> = of_layers.flat_map(|layer| layer.suites_named(&plan.suites)).collect();
    if suites.is_empty() {
        let suites = &plan.suites;
        return Err(format!(
            "--suites cannot be {suites:?}: no suite of {} has such a name",
            layers.join(", ")
        ));
    }
    let count: usize = files.iter().map(|file| file.mutants.all.len()).sum();
    println!("   {count} mutants in {} files", files.len());
    let copy = Copy::build(files, &layers, plan.seed, &suites)?;
    let all = draw::all(&copy.files, &copy.refused);
    println!("   {} do not compile and are left out", copy.refused.len());
    let drawn = if plan.only.is_empty() {
        draw::draw(&all, &layers, plan.seed, plan.count)
    } else {
        all.iter().filter(|drawn| plan.only.contains(&drawn.id)).cloned().collect()
    };
    let baselines = run::baselines(&copy, plan.seed, &layers, plan.limit, &plan.suites)?;
    Ok(Prepared { copy, drawn, baselines, mutants: all.len() })
}

impl Prepared {
    /// Tries the drawn mutants except those that were tried before.
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        before: &BTreeSet<u32>,
        mut told: impl FnMut(&Outcome) -> Result<(), String> + Send,
    ) -> Result<Vec<Outcome>, String> {
        self.drawn.retain(|drawn| !before.contains(&drawn.id));
        let count = self.drawn.len();
        let mut done = 0;
        run::try_all(&self.copy, plan.seed, &self.baselines, &self.drawn, |outcome| {
            done += 1;
            println!("   {done} of {count} {}", said(outcome));
            told(outcome)
        })
    }
}

fn said(outcome: &Outcome) -> String {
    let line = outcome.drawn.line();
    match &outcome.killed {
        Some((suite, why)) => format!("{line}\n       found in {:.1} s by {suite}: {why}", outcome.seconds),
        None => format!(
            "{line}\n       SURVIVED {} suites that come to it, {:.1} s",
            outcome.suites, outcome.seconds
        ),
    }
}

/// A mutant and its outcome as JSON.
pub(crate) fn outcome_json(outcome: &Outcome) -> Value {
    let drawn = &outcome.drawn;
    json!({
        "id": drawn.id, "layer": drawn.layer, "operator": drawn.mutant.operator.name(), "file": drawn.file,
        "line": drawn.mutant.line, "function": drawn.mutant.function, "original": drawn.mutant.original,
        "mutated": drawn.mutant.mutated, "nth": drawn.nth,
        "found_by": outcome.killed.as_ref().map(|(suite, _)| suite),
        "said": outcome.killed.as_ref().map(|(_, why)| why), "seconds": (outcome.seconds * 10.0).round() / 10.0,
        "suites_that_reach_it": outcome.suites,
    })
}

/// Adds their explanations to survivors.
pub(crate) fn explain(mutants: &mut [Value]) -> Result<(), String> {
    let explained = survivors::read()?;
    for mutant in mutants.iter_mut().filter(|mutant| mutant["found_by"].is_null()) {
        let written = explained.iter().find(|entry| entry.is_of(mutant));
        mutant["reason"] = json!(written.map(|entry| entry.reason.name()));
        mutant["why"] = json!(written.map(|entry| &entry.why));
    }
    Ok(())
}

/// Report of all mutants.
pub(crate) struct Report {
    pub(crate) text: String,
    pub(crate) sums: Value,
    /// Number of survivors without an explanation.
    pub(crate) unexplained: usize,
}

/// Outcomes as JSON and a report of them, with an entry to complete for each unexplained survivor.
fn report(outcomes: &[Outcome]) -> Result<(Vec<Value>, Report), String> {
    let mut all: Vec<Value> = outcomes.iter().map(outcome_json).collect();
    explain(&mut all)?;
    let mut report = sums(&all);
    for (outcome, mutant) in outcomes.iter().zip(&all) {
        if mutant["found_by"].is_null() && mutant["reason"].is_null() {
            report.text += &format!("\n# {}\n{}", outcome.drawn.line(), survivors::blank(&outcome.drawn));
        }
    }
    Ok((all, report))
}

/// Counts by layer, with scores.
pub(crate) fn sums(all: &[Value]) -> Report {
    let mut text = format!(
        "{:<12} {:>6} {:>6} {:>10} {:>10} {:>12} {:>5} {:>11} {:>7}\n",
        "layer", "drawn", "found", "by records", "equivalent", "out of reach", "hole", "unexplained", "score"
    );
    let count = |layer: Option<&str>| {
        let of_it = || all.iter().filter(move |one| layer.is_none_or(|layer| one["layer"] == layer));
        let found = of_it().filter(|one| !one["found_by"].is_null()).count();
        let golden = |one: &&Value| one["found_by"].as_str().is_some_and(|suite| suite.ends_with(GOLDEN));
        let by_records = of_it().filter(golden).count();
        let reason = |name: &str| of_it().filter(|one| one["reason"] == name).count();
        let [equivalent, out, hole] =
            [Reason::Equivalent, Reason::OutOfReach, Reason::Hole].map(|r| reason(r.name()));
        let drawn = of_it().count();
        (drawn, found, by_records, equivalent, out, hole, drawn - found - equivalent - out - hole)
    };
    let score =
        |found: usize, drawn: usize, equivalent: usize| found as f64 / (drawn - equivalent).max(1) as f64;
    let mut layers = serde_json::Map::new();
    let names = LAYERS.iter().map(|layer| Some(layer.name)).chain([None]);
    let mut unexplained_all = 0;
    let mut sums = json!({});
    for name in names {
        let (drawn, found, by_records, equivalent, out, hole, unexplained) = count(name);
        if drawn == 0 {
            continue;
        }
        let part = score(found, drawn, equivalent);
        let counts = json!({
            "drawn": drawn, "found": found, "found_by_records_alone": by_records, "equivalent": equivalent, "out_of_reach": out, "hole": hole,
            "unexplained": unexplained, "score": (part * 1000.0).round() / 1000.0,
        });
        text += &format!(
            "{:<12} {drawn:>6} {found:>6} {by_records:>10} {equivalent:>10} {out:>12} {hole:>5} {unexplained:>11} {:>5.1} %\n",
            name.unwrap_or("all"),
            part * 100.0
        );
        match name {
            Some(name) => drop(layers.insert(name.into(), counts)),
            None => (unexplained_all, sums) = (unexplained, counts),
        }
    }
    sums["layers"] = Value::Object(layers);
    Report { text, sums, unexplained: unexplained_all }
}

/// Plan of the evidence.
pub(crate) fn evidence_plan(seed: u64, count: usize) -> Plan {
    Plan { seed, count, ..Plan::default() }
}
