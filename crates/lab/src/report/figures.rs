//! The figures, and what each of them shows of the results.
//!
//! Place in the data flow: runs come in, [`Figure`]s of finished panels go out, which [`super::page`] lays out.
//!
//! A colour is a device and a panel a workload; if there is only one device, a colour is a workload, and workloads
//! share panels. Several seeds are shown as their mean, with a band from the smallest to the largest value.
//!
//! Invariant: missing data are reported in words; no panel is empty.

use super::bars::{self, Bar, Group};
use super::contents::{CLOSED_FORM, Curves, Report};
use super::heat::{Block, Heat, SHADES};
use super::lines::{Axis, Line, Panel, Point};
use super::scale::Unit;

use crate::results::{estimate, groups};
use flashweir_sim::measure::{
    Axis as TimeAxis, Course, DEPTH_LEVELS, Distribution, JOBS_MAX, JobResult, KINDS, Percentile, Requests,
    RunResult, kind_name,
};
use flashweir_sim::request::Kind;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

/// Most columns of a line, about one for two pixels; more would not be visible.
const COLUMNS: usize = 150;
/// Most columns of write amplification; in shorter columns it would show the batches of programs.
const RATIO_COLUMNS: usize = 50;
/// Most columns of a heat map.
const HEAT_COLUMNS: usize = 150;
/// Number of the first colour of a figure that has its own colours; a multiple of the number of combinations of colour and dashes.
const OWN_COLOURS: usize = 1024;
/// Most bins of the histogram of erases.
const WEAR_BINS: u64 = 40;

/// A figure: panels with a heading and a caption.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) id: Cow<'static, str>,
    pub(super) heading: String,
    pub(super) caption: String,
    /// Key of its colours and shades: class and meaning.
    pub(super) key: Vec<(String, String)>,
    /// SVG of each panel; empty if `caption` says all there is.
    pub(super) panels: Vec<String>,
}

/// Runs that are compared, by colour and panel.
#[derive(Debug)]
pub(super) struct Study<'a> {
    /// Name of each colour.
    pub(super) variants: Vec<String>,
    /// Name of each panel; one empty name if all share a panel.
    facets: Vec<String>,
    cells: Vec<Cell<'a>>,
    colours_are_devices: bool,
}

/// Contents of a panel of requests.
#[derive(Clone, Debug)]
struct Part {
    facet: usize,
    /// Name of the job; `None` is all jobs.
    job: Option<String>,
    kind: Kind,
}

/// Value of a column of requests, by the column's number and length.
type Value<'a> = dyn Fn(&Requests, usize, f64) -> Option<f64> + 'a;

/// Runs of one device and one workload.
#[derive(Debug)]
struct Cell<'a> {
    variant: usize,
    facet: usize,
    runs: Vec<&'a RunResult>,
}

impl<'a> Study<'a> {
    pub(super) fn new(runs: &'a [RunResult]) -> Self {
        let (mut devices, mut workloads) = (Vec::new(), Vec::new());
        for run in runs {
            position(&mut devices, &run.device);
            position(&mut workloads, &run.workload);
        }
        let colours_are_devices = devices.len() > 1;
        let cell = |group: Vec<&'a RunResult>| {
            let (device, workload) =
                (position(&mut devices, &group[0].device), position(&mut workloads, &group[0].workload));
            let (variant, facet) = if colours_are_devices { (device, workload) } else { (workload, 0) };
            Cell { variant, facet, runs: group }
        };
        let cells = groups(runs).into_iter().map(cell).collect();
        let (variants, facets) = if colours_are_devices {
            let several = workloads.len() > 1;
            (devices, if several { workloads } else { vec![String::new()] })
        } else {
            (workloads, vec![String::new()])
        };
        Self { variants, facets, cells, colours_are_devices }
    }

    /// Colour of the row of a table with these names.
    pub(super) fn variant(&self, device: &str, workload: &str) -> Option<usize> {
        let name = if self.colours_are_devices { device } else { workload };
        self.variants.iter().position(|variant| variant == name)
    }

    /// Whether virtual time passed in any run.
    pub(super) fn has_time(&self) -> bool {
        self.cells.iter().flat_map(|cell| &cell.runs).any(|run| run.virtual_time_ns > 0)
    }

    pub(super) fn has_seeds(&self) -> bool {
        self.cells.iter().any(|cell| cell.runs.len() > 1)
    }

    fn of_facet(&self, facet: usize) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(move |cell| cell.facet == facet)
    }

    fn courses(&self) -> impl Iterator<Item = &Course> {
        self.cells.iter().flat_map(|cell| &cell.runs).filter_map(|run| run.course.as_deref())
    }

    /// Jobs of a facet that are shown apart; `None` is all jobs together, if each run has one or there are too many.
    fn jobs(&self, facet: usize) -> Vec<Option<String>> {
        let runs = || self.of_facet(facet).flat_map(|cell| &cell.runs);
        let mut names = Vec::new();
        for job in runs().flat_map(|run| &run.jobs) {
            position(&mut names, &job.name);
        }
        let are_apart = runs().any(|run| run.jobs.len() > 1) && names.len() <= JOBS_MAX;
        if are_apart { names.into_iter().map(Some).collect() } else { vec![None] }
    }

    /// Every combination of facet, job and kind of which a request completed.
    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for facet in 0..self.facets.len() {
            for job in self.jobs(facet) {
                for kind in KINDS {
                    let mut cells = self.of_facet(facet);
                    if cells.any(|cell| cell.jobs(job.as_deref()).any(|job| job.kind(kind).is_some())) {
                        parts.push(Part { facet, job: job.clone(), kind });
                    }
                }
            }
        }
        parts
    }

    /// Whether jobs of one run share a line because there are too many.
    fn has_crowd(&self) -> bool {
        (0..self.facets.len()).any(|facet| {
            let mut runs = self.of_facet(facet).flat_map(|cell| &cell.runs);
            self.jobs(facet) == [None] && runs.any(|run| run.jobs.len() > 1)
        })
    }

    /// A panel of a part over time.
    fn part_panel(&self, part: &Part, rest: &str, y: Axis, value: &Value<'_>) -> Panel {
        let Part { facet, job, kind } = part;
        let title = [job.as_deref().unwrap_or(""), kind_name(*kind), rest];
        let title: Vec<&str> = title.into_iter().filter(|word| !word.is_empty()).collect();
        let of = |course: &Course| requests(course, job.as_deref(), *kind, value);
        let mut panel = self.panel(*facet, &title.join(" · "), y, &of);
        // The course of a run of one job has no list of jobs: the run itself names the job.
        let has_job = |line: &Line| {
            self.of_facet(*facet)
                .any(|cell| cell.variant == line.variant && cell.jobs(job.as_deref()).next().is_some())
        };
        panel.lines.retain(has_job);
        panel
    }

    fn title(&self, facet: usize, rest: &str) -> String {
        let parts = [self.facets[facet].as_str(), rest];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
    }

    /// A panel with a line for each variant of a facet.
    fn panel(&self, facet: usize, title: &str, y: Axis, value: &dyn Fn(&Course) -> Vec<Point>) -> Panel {
        let lines = self.of_facet(facet).map(|cell| cell.line(value)).collect();
        let cells = || self.of_facet(facet).flat_map(|cell| &cell.runs);
        let starts = || cells().flat_map(|run| &run.jobs).map(|job| job.start_ns);
        // A ramp is shown if all jobs share it.
        let ramp = starts().max().filter(|last| starts().all(|start| start == *last)).unwrap_or(0);
        let is_time = self.courses().all(|course| course.axis == TimeAxis::VirtualTime);
        let ramp = if is_time { ramp as f64 } else { 0.0 };
        Panel { title: self.title(facet, title), x: self.time(), y, lines, ramp }
    }

    fn time(&self) -> Axis {
        match self.courses().next().map(|course| course.axis) {
            Some(TimeAxis::HostUnits) => axis("mapping units written by the host", Unit::Number, &[0.0]),
            _ => axis("virtual time", Unit::Nanos, &[0.0]),
        }
    }

    /// Panels of all facets that have something to show; `alone` is the title of a panel without a name.
    fn panels(&self, alone: &str, y: &Axis, value: &dyn Fn(&Course) -> Vec<Point>) -> Vec<Panel> {
        let title = |facet: usize| if self.facets[facet].is_empty() { alone } else { "" };
        let panels = (0..self.facets.len()).map(|f| self.panel(f, title(f), y.clone(), value));
        panels.filter(|panel| !panel.is_empty()).collect()
    }
}

impl Cell<'_> {
    /// A value over time: the first seed gives the columns, at which the others are looked up.
    fn line(&self, value: &dyn Fn(&Course) -> Vec<Point>) -> Line {
        let seeds: Vec<Vec<Point>> =
            self.runs.iter().filter_map(|run| run.course.as_deref()).map(value).collect();
        Line { variant: self.variant, name: String::new(), secondary: false, points: together(&seeds) }
    }

    fn name(&self) -> String {
        format!("{} · {}", self.runs[0].device, self.runs[0].workload)
    }

    /// Jobs of this name in all runs, or all jobs.
    fn jobs<'s>(&'s self, name: Option<&'s str>) -> impl Iterator<Item = &'s JobResult> {
        let jobs = self.runs.iter().flat_map(|run| &run.jobs);
        jobs.filter(move |job| name.is_none_or(|name| job.name == name))
    }

    fn distribution(&self, job: Option<&str>, kinds: &[Kind]) -> Vec<Distribution> {
        let of = |run: &&RunResult| {
            let jobs = run.jobs.iter().filter(|one| job.is_none_or(|name| one.name == name));
            let kinds = jobs.flat_map(|job| kinds.iter().filter_map(|kind| job.kind(*kind)));
            kinds.fold(Distribution::default(), |sum, one| sum.merge(&one.lat))
        };
        self.runs.iter().map(of).filter(|latency| latency.summary.count > 0).collect()
    }
}

/// Mean of several seeds at the columns of the first one.
fn together(seeds: &[Vec<Point>]) -> Vec<Point> {
    let [first, others @ ..] = seeds else { return Vec::new() };
    let mean = |point: &Point| {
        let middle = (point.from + point.to) / 2.0;
        let value_at = |points: &Vec<Point>| {
            let after = points.partition_point(|other| other.from <= middle);
            points[..after].last().filter(|other| other.to >= middle).and_then(|other| other.value)
        };
        let values: Vec<f64> = point.value.into_iter().chain(others.iter().filter_map(value_at)).collect();
        Point { from: point.from, to: point.to, ..mean_and_spread(&values) }
    };
    first.iter().map(mean).collect()
}

/// A point whose place is still to be set; a single value has no spread.
fn mean_and_spread(values: &[f64]) -> Point {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let greatest = values.iter().copied().fold(f64::MIN, f64::max);
    let spread = (values.len() > 1).then_some((least, greatest));
    Point { from: 0.0, to: 0.0, value: estimate(values).map(|e| e.mean), spread }
}

fn position(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|other| other == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

fn axis(label: &str, unit: Unit, holds: &[f64]) -> Axis {
    Axis { label: label.to_owned(), unit, log: false, holds: holds.to_vec() }
}

/// Value of each group of columns of a course.
fn columns(course: &Course, most: usize, value: impl Fn(Range<usize>, f64) -> Option<f64>) -> Vec<Point> {
    let groups = course.groups(most);
    let point = |(columns, span): (Range<usize>, Range<u64>)| {
        let (from, to) = (span.start as f64, span.end as f64);
        Point { from, to, value: value(columns, to - from), spread: None }
    };
    groups.into_iter().map(point).collect()
}

fn sum(numbers: &[u64], columns: &Range<usize>) -> f64 {
    numbers[columns.clone()].iter().sum::<u64>() as f64
}

/// Value of each column of one kind of request, of one job if the course keeps jobs apart.
fn requests(course: &Course, job: Option<&str>, kind: Kind, value: &Value<'_>) -> Vec<Point> {
    let of_job = job.and_then(|name| course.jobs.iter().find(|job| job.name == name));
    let all = of_job.map_or(&course.requests, |job| &job.requests);
    let Some(requests) = all.iter().find(|requests| requests.kind == kind) else {
        return Vec::new();
    };
    let point = |(i, span): (usize, Range<u64>)| {
        let (from, to) = (span.start as f64, span.end as f64);
        Point { from, to, value: value(requests, i, to - from), spread: None }
    };
    course.request_columns().into_iter().enumerate().map(point).collect()
}

/// All figures, in their order. Runs that were not sampled have fewer.
pub(super) fn all(report: &Report<'_>, study: &Study<'_>) -> Vec<Figure> {
    let mut figures: Vec<Figure> = (1..).zip(&report.curves).map(parameter).collect();
    if report.runs.is_empty() {
        return figures;
    }
    let (has_time, is_sampled) = (study.has_time(), study.courses().next().is_some());
    if has_time && is_sampled {
        figures.push(throughput(study));
    }
    if has_time {
        figures.push(curve(study));
    }
    if has_time && is_sampled {
        figures.push(latency(study));
    }
    if has_time {
        figures.push(depth(study));
    }
    if has_time && is_sampled {
        figures.push(in_flight(study));
    }
    for figure in figures.iter_mut().filter(|figure| figure.panels.is_empty()) {
        figure.caption = "No request was measured.".into();
    }
    let of_jobs = |figure: &&mut Figure| ["throughput", "percentiles", "latency"].contains(&&*figure.id);
    for figure in figures.iter_mut().filter(of_jobs).filter(|_| study.has_crowd()) {
        let _ = write!(figure.caption, " More than {JOBS_MAX} jobs are shown as one.");
    }
    figures.push(amplification_total(study));
    if is_sampled {
        figures.extend([amplification(study), collection(study)]);
        if has_time {
            figures.extend([buffer(study), utilisation(study)]);
        }
        figures.push(wear(study));
    }
    // Without data this figure would repeat the one before it.
    figures.retain(|figure| figure.id != "wafs" || !figure.panels.is_empty());
    figures
}

/// The figure before the tables: curves against the parameter, outcome of the jobs, or write amplification.
pub(super) fn headline(report: &Report<'_>, study: &Study<'_>, figures: &mut Vec<Figure>) -> Option<Figure> {
    if report.curves.is_empty() && study.has_time() {
        return Some(outcome(study)).filter(|figure| !figure.panels.is_empty());
    }
    let at = figures.iter().position(|figure| !figure.panels.is_empty())?;
    Some(figures.remove(at))
}

/// A value with three significant digits.
fn short(unit: Unit, value: f64) -> String {
    let step = if value == 0.0 { 1.0 } else { 10f64.powf(value.abs().log10().floor() - 2.0) };
    unit.label((value / step).round() * step, step)
}

/// Throughput of each job, and the 99th percentile of its latency.
fn outcome(study: &Study<'_>) -> Figure {
    const IO: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Trim, Kind::WriteZeroes, Kind::Share];
    let kinds = || study.cells.iter().flat_map(|cell| cell.jobs(None)).flat_map(|job| &job.kinds);
    let io = || kinds().filter(|kind| IO.contains(&kind.kind));
    let (count, bytes) =
        (io().map(|kind| kind.requests).sum::<u64>(), io().map(|kind| kind.bytes).sum::<u64>());
    let is_large = bytes / count.max(1) >= 64 << 10;
    let rate = |cell: &Cell<'_>, job: Option<&str>| -> Vec<f64> {
        let of = |run: &&RunResult| {
            let jobs = run.jobs.iter().filter(|one| job.is_none_or(|name| one.name == name));
            // All together: in the time from the first to the last, for they need not run at once.
            let all = job.is_none().then(|| JobResult::merge(&run.jobs)).flatten();
            let jobs = if let Some(all) = &all { vec![all] } else { jobs.collect() };
            let kinds = jobs
                .iter()
                .flat_map(|job| IO.into_iter().filter_map(move |kind| Some((job, job.kind(kind)?))));
            kinds.map(|(job, kind)| if is_large { job.bytes_per_s(kind) / 1e6 } else { job.iops(kind) }).sum()
        };
        cell.runs.iter().map(of).filter(|rate: &f64| *rate > 0.0).collect()
    };
    let p99 = |cell: &Cell<'_>, job: Option<&str>| -> Vec<f64> {
        let seeds = cell.distribution(job, &IO);
        seeds.iter().filter_map(|all| Some(all.percentile_ns(Percentile::P99)? as f64)).collect()
    };
    let panel = |title: &str, unit: Unit, values: &dyn Fn(&Cell<'_>, Option<&str>) -> Vec<f64>| {
        let mut groups = Vec::new();
        for facet in 0..study.facets.len() {
            let mut bars = Vec::new();
            for job in study.jobs(facet) {
                bars.extend(study.of_facet(facet).filter_map(|cell| {
                    let mean = estimate(&values(cell, job.as_deref()))?;
                    let variant = &study.variants[cell.variant];
                    let spread =
                        mean.half_width.map_or(String::new(), |half| format!(" ±{}", short(unit, half)));
                    Some(Bar {
                        variant: cell.variant,
                        name: job.as_ref().map_or(variant.clone(), |job| format!("{job}, {variant}")),
                        parts: vec![mean.mean],
                        label: format!("{}{spread}", short(unit, mean.mean)),
                        half_width: mean.half_width,
                        reference: None,
                    })
                }));
            }
            groups.push(Group { heading: study.facets[facet].clone(), bars });
        }
        groups.retain(|group| !group.bars.is_empty());
        (!groups.is_empty()).then(|| bars::svg(title, &groups, "k", &[title]))
    };
    let rate_name = if is_large { "MB/s" } else { "requests per second" };
    let panels =
        [panel(rate_name, Unit::Number, &rate), panel("99th percentile of latency", Unit::Nanos, &p99)];
    Figure {
        id: "headline".into(),
        heading: "At a glance".into(),
        caption: format!(
            "Left {rate_name}; right the latency that one request in a hundred exceeds. Without flushes."
        ),
        key: Vec::new(),
        panels: panels.into_iter().flatten().collect(),
    }
}

fn figure(id: &'static str, heading: &str, caption: &str, panels: impl IntoIterator<Item = Panel>) -> Figure {
    let panels = panels.into_iter().filter(|panel| !panel.is_empty()).map(|panel| panel.svg()).collect();
    Figure {
        id: id.into(),
        heading: heading.to_owned(),
        caption: caption.to_owned(),
        key: Vec::new(),
        panels,
    }
}

/// A figure against a parameter, with colours of its own, which the page's legend does not switch.
fn parameter((number, curves): (u32, &Curves)) -> Figure {
    let mut key: Vec<(String, String)> = Vec::new();
    let axis = |label: &str, holds: &[f64]| match curves.is_logarithmic {
        true => Axis { log: true, ..axis(label, Unit::Number, &[]) },
        false => axis(label, Unit::Number, holds),
    };
    let panels: Vec<Panel> = curves
        .panels
        .iter()
        .map(|panel| {
            let (mut colour, mut lines) = (0, Vec::new());
            for curve in &panel.curves {
                if !curve.is_reference {
                    let entry = (super::lines::looks(OWN_COLOURS + colour), curve.name.clone());
                    if !key.contains(&entry) {
                        key.push(entry);
                    }
                    colour += 1;
                }
                let has_place = |y: &f64| y.is_finite() && (!curves.is_logarithmic || *y > 0.0);
                let point = |&(x, y): &(f64, f64)| Point {
                    from: x,
                    to: x,
                    value: Some(y).filter(has_place),
                    spread: None,
                };
                lines.push(Line {
                    variant: OWN_COLOURS + colour.max(1) - 1,
                    name: curve.name.clone(),
                    secondary: curve.is_reference,
                    points: curve.points.iter().map(point).collect(),
                });
            }
            let (x, y) = (axis(&curves.parameter, &[]), axis(&panel.result, &[0.0]));
            Panel { title: panel.title.clone(), x, y, lines, ramp: 0.0 }
        })
        .collect();
    let id = if number == 1 { "parameter".into() } else { format!("parameter-{number}").into() };
    Figure { key, id, ..figure("", &curves.title, &curves.caption, panels) }
}

fn throughput(study: &Study<'_>) -> Figure {
    let panel = |part: Part| {
        // Large requests are counted in bytes, small ones by number.
        let all = || study.of_facet(part.facet).flat_map(|cell| cell.jobs(part.job.as_deref()));
        let of_kind = || all().filter_map(|job| job.kind(part.kind));
        let (count, bytes): (u64, u64) =
            (of_kind().map(|k| k.requests).sum(), of_kind().map(|k| k.bytes).sum());
        let large = bytes / count.max(1) >= 64 << 10;
        let y = axis(if large { "MB/s" } else { "IOPS" }, Unit::Number, &[0.0]);
        study.part_panel(&part, "", y, &|requests, i, span| {
            let amount = if large { requests.bytes[i] as f64 / 1e6 } else { requests.count[i] as f64 };
            (span > 0.0).then(|| amount * 1e9 / span)
        })
    };
    let panels = study.parts().into_iter().map(panel);
    figure(
        "throughput",
        "Throughput over time",
        "Requests that completed in each column of virtual time, ramps included.",
        panels,
    )
}

fn latency(study: &Study<'_>) -> Figure {
    let mut panels = Vec::new();
    for part in study.parts() {
        let mut row = ["p50", "p99", "p99.9"].map(|name| {
            let numbers = |requests: &Requests, i: usize| match name {
                "p50" => requests.p50_ns[i],
                "p99" => requests.p99_ns[i],
                _ => requests.p99_9_ns[i],
            };
            let y = Axis { log: true, ..axis("latency", Unit::Nanos, &[]) };
            study.part_panel(&part, name, y, &|requests, i, _| {
                (requests.count[i] > 0).then(|| numbers(requests, i) as f64)
            })
        });
        // The three panels share the range of an axis.
        let all: Vec<f64> = row.iter().flat_map(Panel::values).collect();
        row.iter_mut().for_each(|panel| panel.y.holds.clone_from(&all));
        panels.extend(row);
    }
    figure(
        "latency",
        "Latency over time",
        "Percentiles of the requests that completed in each column of virtual time, from the intended start to \
         completion; in a column of fewer than 1000 requests p99.9 is the largest.",
        panels,
    )
}

fn curve(study: &Study<'_>) -> Figure {
    /// Number of points for each factor of ten.
    const STEPS: f64 = 20.0;
    let panel = |Part { facet, job, kind }: Part| {
        let line = |cell: &Cell<'_>| {
            let seeds = cell.distribution(job.as_deref(), &[kind]);
            let fewest = seeds.iter().map(|latency| latency.summary.count).min().unwrap_or(0) as f64;
            // The nearest rank; if at most one request is above it, the slowest request.
            let slower_at = |tail: f64, latency: &Distribution| {
                let count = latency.summary.count;
                let above = (count as f64 * 10f64.powf(-tail) * (1.0 + 1e-9)) as u64;
                let rank = if above <= 1 { count } else { (count - above.min(count)).max(1) };
                latency.bins.at_rank(rank).map(|ns| ns.min(latency.summary.max_ns) as f64)
            };
            let point = |tail: f64| {
                let values: Vec<f64> = seeds.iter().filter_map(|latency| slower_at(tail, latency)).collect();
                Point { from: tail, to: tail, ..mean_and_spread(&values) }
            };
            let end = fewest.max(1.0).log10();
            let tails = (0..).map(|step| f64::from(step) / STEPS).take_while(|tail| *tail < end);
            let points = tails.chain([end]).map(point).collect();
            Line { variant: cell.variant, name: String::new(), secondary: false, points }
        };
        let lines = study.of_facet(facet).map(line).collect();
        let x = axis("percentile of requests", Unit::Tail, &[0.0]);
        let y = Axis { log: true, ..axis("latency", Unit::Nanos, &[]) };
        let job = job.as_deref().unwrap_or("");
        let title = study.title(facet, [job, kind_name(kind)].join(" · ").trim_start_matches(" · "));
        Panel { title, x, y, lines, ramp: 0.0 }
    };
    let panels = study.parts().into_iter().map(panel);
    figure(
        "percentiles",
        "Latency by percentile",
        "All measured requests of a run in virtual time, against the share that took longer, both on logarithmic \
         axes; each curve ends at the slowest request.",
        panels,
    )
}

/// Groups of bars, one for each facet.
fn bar_groups(study: &Study<'_>, bar: &dyn Fn(&Cell<'_>) -> Option<Bar>) -> Vec<Group> {
    let group = |facet: usize| {
        let bars: Vec<Bar> = study.of_facet(facet).filter_map(bar).collect();
        Group { heading: study.facets[facet].clone(), bars }
    };
    (0..study.facets.len()).map(group).filter(|group| !group.bars.is_empty()).collect()
}

fn depth(study: &Study<'_>) -> Figure {
    const LEVELS: [&str; DEPTH_LEVELS] = ["1", "2–3", "4–7", "8–15", "16–31", "32–63", "64 or more"];
    let bar = |cell: &Cell<'_>| {
        let mut levels = [0u64; DEPTH_LEVELS];
        for job in cell.runs.iter().flat_map(|run| &run.jobs) {
            levels.iter_mut().zip(job.depth_levels).for_each(|(sum, level)| *sum += level);
        }
        let all: u64 = levels.iter().sum();
        let most = (0..DEPTH_LEVELS).max_by_key(|level| levels[*level]).unwrap_or(0);
        (all > 0).then(|| Bar {
            variant: cell.variant,
            name: study.variants[cell.variant].clone(),
            parts: levels.iter().map(|level| *level as f64 / all as f64).collect(),
            label: format!(
                "{}: {:.0} %",
                LEVELS[most].replace(" or more", "+"),
                levels[most] as f64 * 100.0 / all as f64
            ),
            half_width: None,
            reference: None,
        })
    };
    let groups = bar_groups(study, &bar);
    let key = LEVELS.iter().enumerate().map(|(i, level)| (format!("q{i}"), (*level).to_owned())).collect();
    Figure {
        id: "depth".into(),
        heading: "Queue depth".into(),
        caption:
            "Measured requests by how many of their job were in flight when they were submitted, themselves \
                  included; the number is the most frequent depth."
                .into(),
        key,
        panels: if groups.is_empty() {
            Vec::new()
        } else {
            vec![bars::svg("queue depth", &groups, "q", &LEVELS)]
        },
    }
}

fn in_flight(study: &Study<'_>) -> Figure {
    let value = |course: &Course| {
        columns(course, COLUMNS, |columns, span| {
            (span > 0.0).then(|| sum(&course.in_flight_ns, &columns) / span)
        })
    };
    let panels = study.panels("all requests", &axis("requests", Unit::Number, &[0.0]), &value);
    figure(
        "inflight",
        "Requests in flight",
        "Mean over each column of virtual time, over all jobs, waiting for room in a queue included.",
        panels,
    )
}

fn programmed(course: &Course) -> [&[u64]; 4] {
    [&course.user_units, &course.gc_units, &course.filler_units, &course.meta_units]
}

fn amplification_total(study: &Study<'_>) -> Figure {
    const PARTS: [&str; 4] = ["host data", "GC", "filler", "metadata"];
    let bar = |cell: &Cell<'_>| {
        let of = |run: &&RunResult| {
            let metric = |name: &str| run.metrics.get(name).map_or(0.0, |metric| metric.as_f64());
            // A device below a host FTL counts what that writes.
            let (host, parts) = if run.metrics.contains_key("host_ftl.user_units") {
                let names = ["user_programmed_units", "gc_units", "padded_units", "meta_units"];
                let parts = names.map(|name| metric(&format!("host_ftl.{name}")));
                (metric("host_ftl.user_units"), parts)
            } else {
                let names = ["user_units_programmed", "gc_units_moved", "filler_units", "meta_units"];
                let parts = names.map(|name| metric(&format!("device.{name}")));
                (metric("device.host_units_written"), parts)
            };
            (host > 0.0).then(|| parts.map(|units| units / host))
        };
        let seeds: Vec<[f64; 4]> = cell.runs.iter().filter_map(of).collect();
        let totals: Vec<f64> = seeds.iter().map(|parts| parts.iter().sum()).collect();
        let total = estimate(&totals)?;
        let part = |i: usize| seeds.iter().map(|parts| parts[i]).sum::<f64>() / seeds.len() as f64;
        let spread = total.half_width.map_or(String::new(), |half| format!(" ±{half:.3}"));
        Some(Bar {
            variant: cell.variant,
            name: study.variants[cell.variant].clone(),
            parts: (0..4).map(part).collect(),
            label: format!("{:.3}{spread}", total.mean),
            half_width: total.half_width,
            reference: cell.runs[0].metrics.get(CLOSED_FORM).map(|value| value.as_f64()),
        })
    };
    let groups = bar_groups(study, &bar);
    let has_reference = groups.iter().flat_map(|group| &group.bars).any(|bar| bar.reference.is_some());
    let mut key: Vec<(String, String)> =
        PARTS.iter().enumerate().map(|(i, part)| (format!("p{i}"), (*part).to_owned())).collect();
    if has_reference {
        key.push(("reference".into(), "closed form".into()));
    }
    let (caption, panels) = if groups.is_empty() {
        ("The host wrote nothing.", Vec::new())
    } else {
        (
            "Mapping units programmed for each unit that the host wrote, in the whole run; where there is no time, after \
             the device had settled.",
            vec![bars::svg("write amplification", &groups, "p", &PARTS)],
        )
    };
    let key = if panels.is_empty() { Vec::new() } else { key };
    Figure { id: "waf".into(), heading: "Write amplification".into(), caption: caption.into(), key, panels }
}

fn amplification(study: &Study<'_>) -> Figure {
    let value = |course: &Course| {
        // Where hardly anything is written, the ratio says nothing.
        let least = course.host_units.iter().sum::<u64>() as f64 / (20.0 * RATIO_COLUMNS as f64);
        columns(course, RATIO_COLUMNS, |columns, _| {
            let host = sum(&course.host_units, &columns);
            let all: f64 = programmed(course).iter().map(|units| sum(units, &columns)).sum();
            (host > least).then(|| all / host)
        })
    };
    let panels = study.panels(
        "write amplification",
        &axis("units programmed per unit written", Unit::Number, &[0.0, 1.0]),
        &value,
    );
    let over =
        if panels.iter().any(|panel| panel.x.unit == Unit::Nanos) { "virtual time" } else { "host writes" };
    let caption = format!(
        "The same ratio in each column of {over}; what is buffered in one column and programmed in the next raises \
         the next."
    );
    figure("wafs", &format!("Write amplification over {over}"), &caption, panels)
}

fn collection(study: &Study<'_>) -> Figure {
    let moved = |course: &Course| {
        let is_time = course.axis == TimeAxis::VirtualTime;
        columns(course, COLUMNS, |columns, span| {
            let units = sum(&course.gc_units, &columns);
            let amount = if is_time { units * course.unit_bytes as f64 * 1e3 } else { units };
            (span > 0.0).then(|| amount / span)
        })
    };
    let erased = |course: &Course| {
        let scale = if course.axis == TimeAxis::VirtualTime { 1e9 } else { 1e3 };
        columns(course, COLUMNS, |columns, span| {
            (span > 0.0).then(|| sum(&course.erases, &columns) * scale / span)
        })
    };
    let free = |course: &Course| {
        columns(course, COLUMNS, |columns, _| {
            let last = columns.end - 1;
            Some(course.free_blocks[last] as f64 / course.planes.max(1) as f64)
        })
    };
    let is_time = study.courses().all(|course| course.axis == TimeAxis::VirtualTime);
    let (moved_unit, erased_unit) = if is_time {
        ("MB/s", "erases per second")
    } else {
        ("units per unit written", "erases per 1000 units")
    };
    let works = |course: &Course| course.gc_units.iter().chain(course.erases.iter()).any(|n| *n > 0);
    let mut panels = Vec::new();
    for facet in 0..study.facets.len() {
        let busy = study
            .of_facet(facet)
            .flat_map(|cell| &cell.runs)
            .any(|run| run.course.as_deref().is_some_and(works));
        let number = |label: &str| axis(label, Unit::Number, &[0.0]);
        if busy {
            panels.push(study.panel(facet, "data moved", number(moved_unit), &moved));
            panels.push(study.panel(facet, "blocks erased", number(erased_unit), &erased));
            panels.push(study.panel(facet, "free blocks of a plane, mean", number("blocks"), &free));
        }
    }
    let over = if is_time { "virtual time" } else { "host writes" };
    let caption = match panels.is_empty() {
        true => "Garbage collection did not run: no data moved, no block was erased.".to_owned(),
        false => {
            format!(
                "The work of garbage collection in each column of {over}, and the free blocks at its end."
            )
        }
    };
    figure("gc", "Garbage collection", &caption, panels)
}

fn buffer(study: &Study<'_>) -> Figure {
    let value = |course: &Course| {
        let capacity = course.buffer_capacity_units as f64;
        columns(course, COLUMNS, |columns, _| {
            (capacity > 0.0).then(|| course.buffer_used_units[columns.end - 1] as f64 / capacity)
        })
    };
    let wrote = |panel: &Panel| panel.values().any(|value| value > 0.0);
    let panels =
        study.panels("write buffer", &axis("of its capacity in use", Unit::Share, &[0.0, 1.0]), &value);
    let panels: Vec<Panel> = panels.into_iter().filter(wrote).collect();
    let caption = match panels.is_empty() {
        true => "No write buffer ever held anything.",
        false => {
            "Data in the write buffer at the end of each column of virtual time; panels without any are left out."
        }
    };
    figure("buffer", "Write buffer", caption, panels)
}

fn utilisation(study: &Study<'_>) -> Figure {
    let panel = |cell: &Cell<'_>| {
        let run = cell.runs[0];
        let course = run.course.as_deref()?;
        let groups = course.groups(HEAT_COLUMNS);
        let last = groups.last()?.1.end;
        let edges = groups.iter().map(|(_, span)| span.start).chain([last]).map(|at| at as f64).collect();
        let row = |busy: &flashweir_sim::measure::Numbers| {
            let share = |(columns, span): &(Range<usize>, Range<u64>)| {
                sum(busy, columns) / (span.end - span.start).max(1) as f64
            };
            groups.iter().map(share).collect::<Vec<f64>>()
        };
        let block = |name, busy: &[flashweir_sim::measure::Numbers], least: f64, most: f64| Block {
            name,
            rows: busy.iter().map(row).collect(),
            height: (busy.len() as f64 * 4.0).clamp(least, most),
        };
        let mean = |busy: &[flashweir_sim::measure::Numbers]| {
            let all: u64 = busy.iter().flat_map(|numbers| numbers.iter()).sum();
            all as f64 * 100.0 / busy.len().max(1) as f64 / last.max(1) as f64
        };
        Some(Heat {
            variant: cell.variant,
            title: cell.name(),
            subtitle: format!(
                "dies busy {:.0} %, channels {:.0} % of the time",
                mean(&course.station_busy_ns),
                mean(&course.channel_busy_ns)
            ),
            x: study.time(),
            edges,
            blocks: vec![
                block("die", &course.station_busy_ns, 60.0, 128.0),
                block("chan.", &course.channel_busy_ns, 16.0, 40.0),
            ],
        })
    };
    let panels: Vec<String> = study.cells.iter().filter_map(panel).map(|heat| heat.svg()).collect();
    let shades = (0..=SHADES).map(|shade| (format!("h{shade}"), String::new()));
    let word = |text: &str| (String::new(), text.to_owned());
    let key = std::iter::once(word("idle")).chain(shades).chain([word("always busy")]).collect();
    let seed = if study.has_seeds() { ", of the first seed" } else { "" };
    Figure {
        id: "heat".into(),
        heading: "Use of dies and channels".into(),
        caption: format!(
            "A row is a die (a chip, where its dies do not interleave) or a channel, in the order of their numbers, \
             channel by channel; a shade is the part of each column of virtual time in which it worked{seed}."
        ),
        key,
        panels,
    }
}

fn wear(study: &Study<'_>) -> Figure {
    let panel = |facet: usize| {
        let bins = || {
            let runs = study.of_facet(facet).flat_map(|cell| &cell.runs);
            runs.filter_map(|run| run.course.as_deref()).flat_map(|course| course.wear.iter())
        };
        let low = bins().map(|(erases, _)| erases).min()?;
        let high = bins().map(|(erases, _)| erases).max()?;
        let size = (high - low + 1).div_ceil(WEAR_BINS).max(1);
        let line = |cell: &Cell<'_>| {
            let histogram = |run: &&RunResult| {
                let wear = &run.course.as_deref()?.wear;
                let all = wear.count().max(1) as f64;
                let bin = |at: u64| {
                    let inside = wear.iter().filter(|(erases, _)| (at..at + size).contains(erases));
                    let share = inside.map(|(_, blocks)| blocks).sum::<u64>() as f64 / all;
                    // The bin of a count is centred on it.
                    let (from, to) = (at as f64 - 0.5, (at + size) as f64 - 0.5);
                    Point { from, to, value: Some(share), spread: None }
                };
                Some((low..=high).step_by(size as usize).map(bin).collect())
            };
            let seeds: Vec<Vec<Point>> = cell.runs.iter().filter_map(histogram).collect();
            Line { variant: cell.variant, name: String::new(), secondary: false, points: together(&seeds) }
        };
        let lines = study.of_facet(facet).map(line).collect();
        let x = axis("erases of a block", Unit::Number, &[low as f64 - 0.5, high as f64 + 0.5]);
        let y = axis("of good blocks", Unit::Share, &[0.0]);
        let title =
            if study.facets[facet].is_empty() { "blocks by their erases" } else { &study.facets[facet] };
        (high > 0).then(|| Panel { title: title.to_owned(), x, y, lines, ramp: 0.0 })
    };
    let panels: Vec<Panel> = (0..study.facets.len()).filter_map(panel).collect();
    let caption = match panels.is_empty() {
        true => "No block was ever erased.",
        false => {
            "How often the good blocks of each device had been erased at the end, before the run included; factory \
             bad blocks are left out."
        }
    };
    figure("wear", "Wear", caption, panels)
}
