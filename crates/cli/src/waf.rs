//! `weir waf`: write amplification alone, without time, beside the closed forms.

use crate::devices::{resolve_paged, table};
use crate::error::{Failure, Failures, Outcome};
use crate::json;
use crate::options::{Shape, WafArgs};
use crate::output::{check, print, stopped, write};
use crate::pool::Pool;
use crate::report;
use flashweir_core::random::RandomStream;
use flashweir_core::{Instant, Lpn, Payload};
use flashweir_device::config::DeviceConfig;
use flashweir_device::geometry::Geometry;
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, FastForward};
use flashweir_ftl::{GcPolicy, theory};
use flashweir_lab::report::{CLOSED_FORM, Curve, CurvePanel, Curves, Report};
use flashweir_sim::measure::{DeviceTotals, MetricValue, RunResult, Sampler, Snapshot};
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Writes between two looks at the clock and at Ctrl-C.
const STEP: u64 = 1 << 16;
/// The write amplification of a device that has settled is the same in both halves of the measurement, up to this share.
const DRIFT_MAX: f64 = 0.02;
/// Spare factors to measure where none is given.
const SPARES: [f64; 3] = [0.1, 0.2, 0.3];

/// One line of the table.
#[derive(Debug, Serialize)]
struct Point {
    device: String,
    policy: GcPolicy,
    over_provisioning: f64,
    /// User units over the units of the blocks that can hold data.
    utilisation: f64,
    measured: f64,
    /// The second half of what was measured over the first, less one.
    drift: f64,
    /// Whether that is within [`DRIFT_MAX`].
    settled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_form: Option<f64>,
}

/// A line of the table and, for a report, the course of the run.
type Measured = (Point, Option<RunResult>);

/// `weir waf`.
pub(crate) fn command(args: &WafArgs, cancel: &AtomicBool) -> Outcome {
    for (key, value) in [("--settle", args.settle), ("--measure", args.measure)] {
        if !(0.0..=1000.0).contains(&value) || (key == "--measure" && value == 0.0) {
            return Err(Failure::Usage(format!(
                "{key} cannot be `{value}`: expected {} and at most 1000",
                if key == "--measure" { "more than 0" } else { "at least 0" }
            )));
        }
    }
    if let Some(path) = &args.report {
        check(path)?;
    }
    let configs = configs(args)?;
    let name = |at: usize| {
        let ftl = &configs[at].ftl;
        format!("{}, over-provisioning {}", policy_name(ftl.gc.policy), ftl.over_provisioning)
    };
    let pool = Pool { jobs: args.jobs, quiet: args.quiet, cancel };
    let measured = pool.all(configs.len(), name, |at, step| measure(&configs[at], args, step));
    let (points, runs): (Vec<Point>, Vec<_>) = measured.into_iter().flatten().unzip();
    let text = || match args.shape.output {
        Shape::Table => Ok(lines(&points)),
        Shape::Json => json::pretty(json::Kind::Waf, &serde_json::json!({ "points": points })),
    };
    if points.len() < configs.len() {
        return stopped(points.len(), configs.len(), 0, text);
    }
    let text = text()?;
    let mut failed = Failures::default();
    failed.note(print(&text));
    if let Some(path) = &args.report {
        let runs: Vec<_> = runs.into_iter().flatten().collect();
        failed.note(page(args, &configs, &points, &runs).and_then(|page| write(path, page)));
    }
    failed.outcome()
}

/// A device for each policy and over-provisioning.
fn configs(args: &WafArgs) -> Outcome<Vec<DeviceConfig>> {
    let policies = match args.policy.as_slice() {
        [] => vec!["greedy".to_owned(), "fifo".to_owned()],
        policies => policies.to_vec(),
    };
    let spares = match args.over_provisioning.as_slice() {
        [] => SPARES.to_vec(),
        spares => spares.to_vec(),
    };
    let mut configs = Vec::new();
    for policy in &policies {
        for spare in &spares {
            let mut set = args.set.clone();
            set.push(format!("ftl.gc.policy=\"{policy}\""));
            set.push(format!("ftl.over_provisioning={spare:?}"));
            let config = resolve_paged(std::slice::from_ref(&args.device), &set)?.remove(0);
            let utilisation = utilisation(&config);
            if !(0.0..0.995).contains(&utilisation) {
                return Err(Failure::Usage(format!(
                    "--over-provisioning cannot be {spare} on {}: {:.1} of the {} blocks of a plane are spare, and \
                     ftl.gc.start_below_blocks = {} of them are kept free: expected more of the one or less of the \
                     other",
                    config.name,
                    Geometry::new(&config).spare_blocks_per_plane_min(),
                    config.geometry.blocks_per_plane,
                    config.ftl.gc.start_below_blocks
                )));
            }
            configs.push(config);
        }
    }
    Ok(configs)
}

/// User units over the units that can hold data: blocks of metadata, blocks that GC keeps free and the empty part of write frontiers
/// cannot.
fn utilisation(config: &DeviceConfig) -> f64 {
    let geometry = Geometry::new(config);
    let user =
        geometry.user_units as f64 / f64::from(geometry.planes()) / f64::from(geometry.units_per_block());
    // A write frontier is half empty on average.
    let frontiers = 0.5 + 0.5 * f64::from(u8::from(config.ftl.gc.hot_cold));
    let kept_free = f64::from(config.ftl.gc.start_below_blocks - 1) + frontiers;
    let holding = user + geometry.spare_blocks_per_plane_min() - kept_free;
    if holding <= 0.0 { f64::INFINITY } else { user / holding }
}

/// Settles a device and measures it; `None` if `step` says to stop.
fn measure(config: &DeviceConfig, args: &WafArgs, step: &mut dyn FnMut(f64) -> bool) -> Option<Measured> {
    let options = DeviceOptions { seed: args.seed, track_contents: false, planted: None };
    let mut device = Device::new(config.clone(), options);
    let units = device.geometry().user_units;
    let mut random = RandomStream::new(args.seed, "waf");
    let settle = (units as f64 * args.settle) as u64;
    let count = (units as f64 * args.measure).max(1.0) as u64;
    let total = units + settle + count;
    let mut sampler =
        args.report.is_some().then(|| Sampler::over_host_units(Snapshot::of(&device, Instant::ZERO)));
    let mut sample_at = sampler.as_ref().map_or(u64::MAX, Sampler::due);
    let mut write = |device: &mut Device, from: u64, count: u64, next: &mut dyn FnMut(u64) -> u64| {
        let mut forward = FastForward::new(device);
        for i in 0..count {
            if from + i == sample_at
                && let Some(sampler) = &mut sampler
            {
                sampler.sample(Snapshot::of(forward.device(), Instant::ZERO));
                sample_at = sampler.due();
            }
            forward.write(Lpn(next(i)), Payload::Zero);
            if i % STEP == 0 && !step((from + i) as f64 / total as f64) {
                return false;
            }
        }
        forward.finish();
        true
    };
    let mut uniform = |_| random.below(units);
    let settled = write(&mut device, 0, units, &mut |i| i) && write(&mut device, units, settle, &mut uniform);
    let (before, half) = (*device.metrics(), count / 2);
    if !settled || !write(&mut device, units + settle, half, &mut uniform) {
        return None;
    }
    let middle = *device.metrics();
    if !write(&mut device, units + settle + half, count - half, &mut uniform) {
        return None;
    }
    let metrics = device.metrics().since(&before);
    let waf_of =
        |metrics: &DeviceMetrics| programmed(metrics) as f64 / metrics.host_units_written.max(1) as f64;
    let (first, second) = (waf_of(&middle.since(&before)), waf_of(&device.metrics().since(&middle)));
    let drift = if first > 0.0 { second / first - 1.0 } else { 0.0 };
    let point = Point {
        device: config.name.clone(),
        policy: config.ftl.gc.policy,
        over_provisioning: config.ftl.over_provisioning,
        utilisation: utilisation(config),
        measured: waf_of(&metrics),
        drift,
        settled: drift.abs() <= DRIFT_MAX,
        closed_form: closed_form(config),
    };
    let run = sampler.map(|sampler| {
        let mut run = run_result(&point, args.seed, &metrics, &device);
        run.course = Some(Box::new(sampler.finish(total, Snapshot::of(&device, Instant::ZERO), &device)));
        run
    });
    Some((point, run))
}

/// The measurements, in the form that the report needs.
fn run_result(point: &Point, seed: u64, metrics: &DeviceMetrics, device: &Device) -> RunResult {
    let unit_bytes = device.geometry().unit_bytes;
    let mut run = RunResult {
        device: format!("{}, spare {}", policy_name(point.policy), point.over_provisioning),
        workload: "uniformly random writes".into(),
        seed,
        totals: DeviceTotals {
            host_written_bytes: metrics.host_units_written * unit_bytes,
            nand_written_bytes: programmed(metrics) * unit_bytes,
            erases: metrics.erases,
            gc_units_moved: metrics.gc_units_moved,
            flushes: 0,
        },
        ..RunResult::default()
    };
    // Closed forms know no metadata.
    run.add_metrics("device", &DeviceMetrics { meta_units: 0, ..*metrics }.list());
    if let Some(closed_form) = point.closed_form {
        run.metrics.insert(CLOSED_FORM.into(), MetricValue::Ratio(closed_form));
    }
    run
}

/// Units programmed, without metadata.
fn programmed(metrics: &DeviceMetrics) -> u64 {
    metrics.user_units_programmed + metrics.gc_units_moved + metrics.filler_units
}

/// The page with figures.
fn page(args: &WafArgs, configs: &[DeviceConfig], points: &[Point], runs: &[RunResult]) -> Outcome<String> {
    let mut curves: Vec<Curve> = Vec::new();
    let mut policies: Vec<GcPolicy> = Vec::new();
    for point in points {
        if policies.contains(&point.policy) {
            continue;
        }
        policies.push(point.policy);
        let mut of_policy: Vec<&Point> = points.iter().filter(|other| other.policy == point.policy).collect();
        of_policy.sort_by(|a, b| a.over_provisioning.total_cmp(&b.over_provisioning));
        let name = policy_name(point.policy).to_owned();
        let measured = of_policy.iter().map(|p| (p.over_provisioning, p.measured)).collect();
        curves.push(Curve { name: name.clone(), points: measured, is_reference: false });
        let theory: Vec<_> =
            of_policy.iter().filter_map(|p| Some((p.over_provisioning, p.closed_form?))).collect();
        if !theory.is_empty() {
            curves.push(Curve { name: format!("{name}, closed form"), points: theory, is_reference: true });
        }
    }
    let has_theory = curves.iter().any(|curve| curve.is_reference);
    let note = format!(
        "the FTL without time: {} capacities of uniformly random writes to settle, then {} measured; seed {}",
        args.settle, args.measure, args.seed
    );
    // The devices differ in what is varied only; each is shown as it was run.
    let mut devices = report::devices(configs)?;
    devices.iter_mut().zip(runs).for_each(|(text, run)| text.name.clone_from(&run.device));
    Ok(Report {
        title: format!("Write amplification of {}", configs[0].name),
        notes: vec![note],
        command: report::command(),
        runs,
        tables: Vec::new(),
        curves: vec![Curves {
            title: "Write amplification by spare factor".into(),
            caption: "Units programmed per unit written, metadata left out, over the capacities that were measured."
                .into(),
            parameter: "over-provisioning".into(),
            is_logarithmic: false,
            panels: vec![CurvePanel {
                title: if has_theory { "measured, and closed form (dashed)" } else { "measured" }.into(),
                result: "units programmed per unit written".into(),
                curves,
            }],
        }],
        devices,
        workloads: Vec::new(),
    }
    .html())
}

/// The theoretical value; there is none for cost-benefit.
fn closed_form(config: &DeviceConfig) -> Option<f64> {
    let (rho, units) = (utilisation(config), Geometry::new(config).units_per_block());
    match config.ftl.gc.policy {
        GcPolicy::Fifo => Some(theory::fifo(rho)),
        GcPolicy::Greedy => Some(theory::greedy(rho, units)),
        GcPolicy::DChoices => Some(theory::d_choices(rho, units, f64::from(config.ftl.gc.choices))),
        GcPolicy::CostBenefit => None,
    }
}

fn policy_name(policy: GcPolicy) -> &'static str {
    match policy {
        GcPolicy::Greedy => "greedy",
        GcPolicy::CostBenefit => "cost-benefit",
        GcPolicy::DChoices => "d-choices",
        GcPolicy::Fifo => "fifo",
    }
}

fn lines(points: &[Point]) -> String {
    let head = ["device", "policy", "over-provisioning", "utilisation", "WAF", "closed form", "difference"];
    let mut rows = vec![head.map(str::to_owned)];
    for point in points {
        let theory = |show: &dyn Fn(f64) -> String| point.closed_form.map_or("-".to_owned(), show);
        rows.push([
            point.device.clone(),
            policy_name(point.policy).to_owned(),
            format!("{:.3}", point.over_provisioning),
            format!("{:.3}", point.utilisation),
            format!("{:.3}", point.measured),
            theory(&|theory| format!("{theory:.3}")),
            theory(&|theory| format!("{:+.1} %", (point.measured / theory - 1.0) * 100.0)),
        ]);
    }
    let mut text = table(&rows, 2);
    for point in points.iter().filter(|point| !point.settled) {
        text.push_str(&format!(
            "{}, over-provisioning {:.3}: not settled, the second half of the measurement is {:+.1} % against the first: expected a \
             larger --settle\n",
            policy_name(point.policy),
            point.over_provisioning,
            100.0 * point.drift
        ));
    }
    text
}
