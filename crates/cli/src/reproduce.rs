//! `weir reproduce`: papers' claims, compared with the results here.

use crate::devices::table;
use crate::error::{Failure, Failures, Outcome};
use crate::json;
use crate::options::{ReproduceArgs, Shape};
use crate::output::{check, print, stopped, write};
use crate::pool::Pool;
use crate::report;
use flashweir_lab::report::{Curve, CurvePanel, Curves, Report, TextTable};
use flashweir_lab::reproduce::{self, Claim, Over, Paper, Row, SHARES, Scale, Study, Take, Verdict};
use flashweir_workload::spelling::nearest;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// A claim and what became of it.
#[derive(Debug, Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    claim: &'a Claim,
    ours: Option<f64>,
    /// Smallest and largest value over the seeds.
    spread: Option<(f64, f64)>,
    /// Where it is, if it is the largest or smallest of several.
    place: Option<String>,
    verdict: Verdict,
}

/// A study and what it measured.
#[derive(Debug, Serialize)]
struct Measured {
    study: &'static str,
    what: &'static str,
    missing: &'static str,
    parameter: &'static str,
    rows: Vec<Row>,
}

/// `weir reproduce`.
pub(crate) fn command(args: &ReproduceArgs, cancel: &AtomicBool) -> Outcome {
    let name = args.paper.as_str();
    let Some((mut paper, studies)) = reproduce::paper(name) else {
        let known: Vec<&str> = reproduce::names().collect();
        let hint = nearest(name, known.iter().copied())
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(Failure::Usage(format!(
            "PAPER cannot be `{name}`: expected one of {}{hint}",
            known.join(", ")
        )));
    };
    if let Some(path) = &args.report {
        check(path)?;
    }
    let mut studies = studies.to_vec();
    if let Some((more, with)) = flashweir_sqlite::study::of_paper(name) {
        paper.claim.extend(more.claim);
        studies.extend(with);
    }
    let studies = chosen(&studies, &args.study)?;
    paper.claim.retain(|claim| studies.iter().any(|study| study.name == claim.study));
    let scale: Scale = args.scale.into();
    let seeds = args.seeds.unwrap_or(scale.seeds());
    let pool = Pool { jobs: args.jobs, quiet: args.quiet, cancel };
    let mut measured = Vec::new();
    for study in &studies {
        let Some(rows) = measure(study, scale, seeds, pool) else { break };
        let Study { name, what, missing, parameter, .. } = *study;
        measured.push(Measured { study: name, what, missing, parameter, rows });
    }
    let through = measured.len();
    // What was not run has nothing to be judged.
    paper.claim.retain(|claim| measured.iter().any(|measured| measured.study == claim.study));
    let judged: Vec<Judged<'_>> = paper.claim.iter().map(|claim| judge(claim, &measured, &studies)).collect();
    let text = match args.shape.output {
        Shape::Table => lines(&paper, (scale, seeds), &studies, &measured, &judged),
        Shape::Json => {
            let all = serde_json::json!({
                "paper": paper.paper, "scale": scale, "seeds": seeds, "claims": judged, "studies": measured,
            });
            json::pretty(json::Kind::Reproduce, &all)?
        }
    };
    if through < studies.len() {
        return stopped(through, studies.len(), 0, || Ok(text));
    }
    let mut failed = Failures::default();
    failed.note(print(&text));
    if let Some(path) = &args.report {
        failed.note(write(path, page(&paper, (scale, seeds), &studies, &measured, &judged)));
    }
    failed.outcome()
}

/// The studies of these names, or all.
fn chosen(studies: &[Study], names: &[String]) -> Outcome<Vec<Study>> {
    let known = || studies.iter().map(|study| study.name);
    if let Some(name) = names.iter().find(|name| !known().any(|known| known == **name)) {
        let hint = nearest(name, known()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("--study cannot be `{name}`: expected one of {known}{hint}")));
    }
    let is_wanted = |study: &&Study| names.is_empty() || names.iter().any(|name| name == study.name);
    Ok(studies.iter().filter(is_wanted).copied().collect())
}

fn judge<'a>(claim: &'a Claim, measured: &[Measured], studies: &[Study]) -> Judged<'a> {
    let rows = measured.iter().find(|measured| measured.study == claim.study).map(|measured| &measured.rows);
    let study = studies.iter().find(|study| study.name == claim.study);
    let value = rows.and_then(|rows| claim.value(rows));
    let place = value.as_ref().and_then(|value| value.place.as_ref()).map(|(x, over)| {
        let point = study.map_or_else(|| x.to_string(), |study| study.point(*x));
        over.iter().fold(point, |point, over| format!("{point}, {over}"))
    });
    let ours = value.as_ref().map(|value| value.value);
    Judged { claim, ours, spread: value.map(|value| value.spread), place, verdict: claim.verdict(ours) }
}

/// A claim's value here, with the spread over the seeds and its place.
fn ours(judged: &Judged<'_>) -> String {
    let Some(value) = judged.ours else { return "-".into() };
    let spread = judged.spread.filter(|(least, most)| least < most);
    let spread =
        spread.map_or(String::new(), |(least, most)| format!(" [{} to {}]", number(least), number(most)));
    let place = judged.place.as_ref().map_or(String::new(), |place| format!(" ({place})"));
    format!("{}{spread}{place}", number(value))
}

/// All runs of a study; `None` if the user stopped it.
fn measure(study: &Study, scale: Scale, seeds: u32, pool: Pool<'_>) -> Option<Vec<Row>> {
    let runs = study.runs(scale, seeds);
    let name = |_| format!("study `{}`", study.name);
    let results = pool.all(runs.len(), name, |at, _| Some(study.run(runs[at], scale)));
    let results: Vec<_> = results.into_iter().collect::<Option<_>>()?;
    Some(study.rows(scale, seeds, &results))
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => crate::output::thousands(value.round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A value of a study's parameter, for people.
fn point(study: &Study, x: f64) -> String {
    match study.names {
        [] => number(x).trim_end_matches(".00").to_owned(),
        _ => study.point(x),
    }
}

/// The compared quantity, in words.
fn quantity(claim: &Claim, study: Option<&Study>) -> String {
    let over = claim.over.as_ref().map_or(String::new(), |over| format!(" / {}", over.names().join(", ")));
    let parameter = study.map_or("", |study| study.parameter);
    let is_named = study.is_some_and(|study| !study.names.is_empty());
    let point = |x: f64| study.map_or_else(|| x.to_string(), |study| study.point(x));
    let take = match claim.take {
        Take::Mean => "in the mean",
        Take::Most => "most",
        Take::Least => "least",
    };
    let at = match (claim.at, claim.over_at) {
        (None, _) => format!("{take} over {parameter}"),
        (Some(at), Some(over_at)) => format!("at {} over that at {}", point(at), point(over_at)),
        (Some(at), None) if is_named => format!("at {}", point(at)),
        (Some(at), None) => format!("at {at} {parameter}"),
    };
    let take = match claim.over {
        Some(Over::Each(_)) if claim.at.is_some() => format!(", {take}"),
        _ => String::new(),
    };
    format!("{} {}{over} {at}{take}", claim.metric, claim.of)
}

fn lines(
    paper: &Paper,
    (scale, seeds): (Scale, u32),
    studies: &[Study],
    measured: &[Measured],
    judged: &[Judged<'_>],
) -> String {
    let mut text = format!("{}, {}\n", paper.paper, extent(scale, seeds));
    for (known, study) in studies.iter().zip(measured) {
        text.push_str(&format!("\n{}: {}\nmissing: {}\n\n", study.study, study.what, study.missing));
        let metrics = || known.metrics.iter().map(|(name, _)| *name);
        let head = [study.parameter, ""].into_iter().chain(metrics()).map(str::to_owned);
        let mut rows: Vec<Vec<String>> = vec![head.collect()];
        for row in &study.rows {
            let mut cells = vec![point(known, row.x), row.variant.to_owned()];
            cells.extend(
                metrics().map(|name| row.metrics.get(name).map_or(String::new(), |value| number(*value))),
            );
            rows.push(cells);
        }
        text.push_str(&table(&rows, 2));
    }
    let mut rows =
        vec![["claim", "figure", "quantity", "paper", "ours", "band", "verdict"].map(str::to_owned)];
    for one in judged {
        let Judged { claim, verdict, .. } = one;
        let study = studies.iter().find(|study| study.name == claim.study);
        rows.push([
            claim.id.clone(),
            claim.figure.clone(),
            quantity(claim, study),
            claim.paper.clone(),
            ours(one),
            claim.band(),
            verdict.to_string(),
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows, 7));
    let reproduced = judged.iter().filter(|judged| judged.verdict == Verdict::Reproduced).count();
    text.push_str(&format!("\n{reproduced} of {} claims inside their bands\n", judged.len()));
    text
}

/// How much was run.
fn extent(scale: Scale, seeds: u32) -> String {
    let scale = match scale {
        Scale::Quick => "quick",
        Scale::Full => "full",
    };
    match seeds {
        1 => format!("scale {scale}, one seed"),
        _ => format!("scale {scale}, medians of {seeds} seeds"),
    }
}

/// The figure of a study on the paper's axes, if it has one.
fn shares((study, measured): (&Study, &Measured)) -> Option<Curves> {
    let figure = SHARES.iter().find(|figure| figure.study == study.name)?;
    let mut curves = Vec::new();
    for (variant, points) in figure.curves(&measured.rows) {
        let theirs = points.iter().map(|&(x, _)| (x, (figure.paper.1)(x))).collect();
        curves.push(Curve { name: variant.to_owned(), points, is_reference: false });
        if variant == figure.paper.0 {
            curves.push(Curve { name: "the paper's fit".into(), points: theirs, is_reference: true });
        }
    }
    Some(Curves {
        title: figure.title.to_owned(),
        caption: format!("Study `{}`, each variant against the first, {}.", study.name, study.variants[0]),
        parameter: figure.axis.to_owned(),
        is_logarithmic: true,
        panels: vec![CurvePanel { title: "share of it".into(), result: "%".into(), curves }],
    })
}

/// A study's parameter, with the names of its values if they are numbered.
fn numbered(study: &Study) -> String {
    if study.names.is_empty() {
        return study.parameter.to_owned();
    }
    let names: Vec<String> =
        (1..).zip(study.names).map(|(number, name)| format!("{number} {name}")).collect();
    format!("{}: {}", study.parameter, names.join(", "))
}

/// A page with the figures of the studies, one panel for each metric, in the paper's form: the variants over the parameter.
fn page(
    paper: &Paper,
    (scale, seeds): (Scale, u32),
    studies: &[Study],
    measured: &[Measured],
    judged: &[Judged<'_>],
) -> String {
    let notes = vec![extent(scale, seeds)];
    let claims = TextTable {
        title: "Claims".into(),
        columns: vec!["claim", "figure", "", "quantity", "paper", "ours", "band", "verdict"],
        rows: judged
            .iter()
            .map(|one| {
                let Judged { claim, verdict, .. } = one;
                vec![
                    claim.id.clone(),
                    claim.figure.clone(),
                    claim.text.clone(),
                    quantity(claim, studies.iter().find(|study| study.name == claim.study)),
                    claim.paper.clone(),
                    ours(one),
                    claim.band(),
                    verdict.to_string(),
                ]
            })
            .collect(),
    };
    let figures = studies.iter().zip(measured).map(|(study, measured)| {
        let is_logarithmic = study.names.is_empty() && measured.rows.iter().all(|row| row.x > 0.0);
        let gaps =
            if is_logarithmic { " A curve has a gap where its value is 0 or was not measured." } else { "" };
        let panel = |&(metric, title): &(&str, &str)| CurvePanel {
            title: title.to_owned(),
            result: metric.to_owned(),
            curves: study
                .variants
                .iter()
                .map(|variant| {
                    let rows = measured.rows.iter().filter(|row| row.variant == *variant);
                    let points =
                        rows.map(|row| (row.x, *row.metrics.get(metric).unwrap_or(&f64::NAN))).collect();
                    Curve { name: (*variant).to_owned(), points, is_reference: false }
                })
                .collect(),
        };
        Curves {
            title: format!("Study `{}`", study.name),
            caption: format!("{}. Missing: {}.{gaps}", study.what, study.missing),
            parameter: numbered(study),
            is_logarithmic,
            panels: study.metrics.iter().map(panel).collect(),
        }
    });
    Report {
        title: paper.paper.clone(),
        notes,
        command: report::command(),
        tables: vec![claims],
        curves: studies.iter().zip(measured).filter_map(shares).chain(figures).collect(),
        ..Report::default()
    }
    .html()
}
