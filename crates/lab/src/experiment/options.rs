//! Options of a job as text, with the names and units of fio, for readers of fio's JSON.
//!
//! A job file can say one thing in many ways; here there is one. Options with their default value are left out
//! except for those that readers look for: `rw`, `bs`, `iodepth`, `numjobs` and `size`.

use flashweir_core::Duration;
use flashweir_core::units::LBA_BYTES;
use flashweir_sim::measure::LogSpec;
use flashweir_workload::fio::{
    Direction, Distribution, JobSpec, Mix, Process, Rate, Sequencer, Sizes, Verify, Walk, Zone,
};
use flashweir_workload::trace::{Fit, ReplayConfig, Timing, Trace};
use std::collections::BTreeMap;

/// Options of a fio job.
pub(super) fn options(spec: &JobSpec) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        options.insert(name.to_owned(), value);
    };
    set("name", spec.name.clone());
    set("rw", access(spec));
    set("iodepth", spec.iodepth.to_string());
    set("numjobs", spec.numjobs.to_string());
    set("size", size(spec.region.blocks * LBA_BYTES));
    let (name, value) = sizes(spec);
    set(name, value);
    if !spec.description.is_empty() {
        set("description", spec.description.clone());
    }
    if spec.region.first.0 > 0 {
        set("offset", size(spec.region.first.0 * LBA_BYTES));
    }
    if let Mix::ReadWrite { read_percent } = spec.mix {
        set("rwmixread", read_percent.to_string());
    }
    addresses(spec, &mut set);
    ends(spec, &mut set);
    pace(spec, &mut set);
    let flags =
        [("end_fsync", spec.end_fsync), ("write_fua", spec.fua), ("group_reporting", spec.group_reporting)];
    for (name, _) in flags.into_iter().filter(|(_, on)| *on) {
        set(name, "1".into());
    }
    for (name, every) in [("fsync", spec.fsync), ("fdatasync", spec.fdatasync)] {
        if every > 0 {
            set(name, every.to_string());
        }
    }
    if let Some(verify) = spec.verify {
        set("verify", if verify == Verify::Compare { "meta" } else { "null" }.into());
    }
    logs(&spec.log, &mut set);
    if let Some(steady) = &spec.steady {
        let percent = if steady.is_percent { "%" } else { "" };
        let slope = if steady.is_slope { "_slope" } else { "" };
        let what = if steady.is_bandwidth { "bw" } else { "iops" };
        set("steadystate", format!("{what}{slope}:{}{percent}", steady.limit));
        set("steadystate_duration", time(steady.window));
        if steady.interval != Duration::from_secs(1) {
            set("steadystate_check_interval", time(steady.interval));
        }
        if steady.ramp > Duration::ZERO {
            set("steadystate_ramp_time", time(steady.ramp));
        }
    }
    if let Some(sources) = spec.share_from {
        set("share_from", size(sources.0 * LBA_BYTES));
    }
    if let Some(seed) = spec.seed {
        set("randseed", seed.to_string());
    }
    options
}

fn logs(log: &LogSpec, set: &mut impl FnMut(&str, String)) {
    let names =
        [("write_bw_log", &log.bandwidth), ("write_lat_log", &log.latency), ("write_iops_log", &log.iops)];
    for (option, name) in names {
        if let Some(name) = name {
            set(option, name.clone());
        }
    }
    if log.average > Duration::ZERO {
        set("log_avg_msec", (log.average.as_nanos() / 1_000_000).to_string());
    }
    for (option, value) in [("log_offset", log.has_offset), ("log_max_value", log.is_max)] {
        if value {
            set(option, "1".into());
        }
    }
    if log.number.is_none() {
        set("per_job_logs", "0".into());
    }
}

/// Options of a replay of a trace.
pub(super) fn replay_options(trace: &Trace, config: &ReplayConfig) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        options.insert(name.to_owned(), value);
    };
    set("trace", trace.file().to_owned());
    set("format", trace.format().to_string());
    let timing = match config.timing {
        Timing::Original => "original".to_owned(),
        Timing::Scaled(factor) => format!("scaled={factor}"),
        Timing::Closed(depth) => format!("closed={depth}"),
    };
    set("timing", timing);
    if let Some(device) = trace.device() {
        set("trace-device", device.to_owned());
    }
    if config.fit == Fit::Wrap {
        set("fit", "wrap".into());
    }
    if config.repeat > 1 {
        set("repeat", config.repeat.to_string());
    }
    options
}

fn access(spec: &JobSpec) -> String {
    let random = matches!(spec.walk, Walk::Random { .. });
    let word = match (spec.mix, random) {
        (Mix::Only(Direction::Read), false) => "read",
        (Mix::Only(Direction::Read), true) => "randread",
        (Mix::Only(Direction::Write), false) => "write",
        (Mix::Only(Direction::Write), true) => "randwrite",
        (Mix::Only(Direction::Trim), false) => "trim",
        (Mix::Only(Direction::Trim), true) => "randtrim",
        (Mix::ReadWrite { .. }, false) => "rw",
        (Mix::ReadWrite { .. }, true) => "randrw",
        (Mix::TrimWrite, false) => "trimwrite",
        (Mix::TrimWrite, true) => "randtrimwrite",
    };
    match spec.walk {
        Walk::Random { run: 1 } | Walk::Sequential { gap_blocks: 0 } => word.to_owned(),
        Walk::Random { run } => format!("{word}:{run}"),
        Walk::Sequential { gap_blocks } => {
            let sign = if gap_blocks < 0 { "-" } else { "" };
            format!("{word}:{sign}{}", size(gap_blocks.unsigned_abs() * LBA_BYTES))
        }
    }
}

/// Numbers of the directions that the job uses.
fn used(spec: &JobSpec) -> impl Iterator<Item = usize> + '_ {
    Direction::ALL
        .into_iter()
        .filter(|direction| spec.mix.uses(*direction))
        .map(|direction| direction as usize)
}

/// One value if all directions in use share it, otherwise one for each, separated as in fio.
fn triple(spec: &JobSpec, one: impl Fn(usize) -> String) -> String {
    let mut values = used(spec).map(&one);
    let first = values.next().unwrap_or_default();
    if values.all(|value| value == first) { first } else { [0, 1, 2].map(one).join(",") }
}

fn sizes(spec: &JobSpec) -> (&'static str, String) {
    let blocks = |blocks: u32| size(u64::from(blocks) * LBA_BYTES);
    let is = |wanted: fn(&Sizes) -> bool| used(spec).any(|d| wanted(&spec.sizes[d]));
    if is(|sizes| matches!(sizes, Sizes::Split(_))) {
        let one = |d: usize| match &spec.sizes[d] {
            Sizes::Split(parts) => {
                let parts: Vec<_> =
                    parts.iter().map(|(size, share)| format!("{}/{share}", blocks(*size))).collect();
                parts.join(":")
            }
            other => format!("{}/100", blocks(other.min_blocks())),
        };
        return ("bssplit", triple(spec, one));
    }
    if is(|sizes| matches!(sizes, Sizes::Range { .. })) {
        let one = |d: usize| {
            let sizes = &spec.sizes[d];
            format!("{}-{}", blocks(sizes.min_blocks()), blocks(sizes.max_blocks()))
        };
        return ("bsrange", triple(spec, one));
    }
    ("bs", triple(spec, |d| blocks(spec.sizes[d].min_blocks())))
}

/// Options of the addresses of requests.
fn addresses(spec: &JobSpec, set: &mut impl FnMut(&str, String)) {
    let random = matches!(spec.walk, Walk::Random { .. });
    if spec.sequencer == Sequencer::Identical {
        set("rw_sequencer", "identical".into());
    }
    if !random {
        return;
    }
    if used(spec).any(|d| spec.align_blocks[d] != spec.sizes[d].min_blocks()) {
        set("blockalign", triple(spec, |d| size(u64::from(spec.align_blocks[d]) * LBA_BYTES)));
    }
    let uniform = used(spec).all(|d| spec.distribution[d] == Distribution::Uniform);
    if !uniform {
        set("random_distribution", law(spec));
    } else if !spec.random_map {
        set("norandommap", "1".into());
    }
    if used(spec).any(|d| spec.random_percent[d] != 100) {
        set("percentage_random", triple(spec, |d| spec.random_percent[d].to_string()));
    }
}

fn law(spec: &JobSpec) -> String {
    let central = |centre: &Option<f64>| centre.map_or(String::new(), |centre| format!(":{centre}"));
    let zones = |zones: &[Zone]| {
        let zones = zones
            .iter()
            .map(|zone| format!("{}/{}", zone.access_percent, size(zone.blocks * LBA_BYTES)))
            .collect::<Vec<_>>();
        zones.join(":")
    };
    let first = used(spec).next().unwrap_or(0);
    match &spec.distribution[first] {
        Distribution::Uniform => "random".into(),
        Distribution::Zipf { theta, centre } => format!("zipf:{theta}{}", central(centre)),
        Distribution::Pareto { h, centre } => format!("pareto:{h}{}", central(centre)),
        Distribution::Normal { deviation_percent, centre } => format!("normal:{deviation_percent}:{centre}"),
        Distribution::Zoned(_) => {
            let one = |d: usize| match &spec.distribution[d] {
                Distribution::Zoned(parts) => zones(parts),
                _ => String::new(),
            };
            format!("zoned_abs:{}", triple(spec, one))
        }
    }
}

/// Options of the job's begin and end.
fn ends(spec: &JobSpec, set: &mut impl FnMut(&str, String)) {
    let limits = &spec.limits;
    match limits.blocks {
        None if limits.runtime.is_some() => set("time_based", "1".into()),
        Some(blocks) if blocks != spec.region.blocks => set("io_size", size(blocks * LBA_BYTES)),
        _ => {}
    }
    if let Some(requests) = limits.requests {
        set("number_ios", requests.to_string());
    }
    if let Some(runtime) = limits.runtime {
        set("runtime", time(runtime));
    }
    if spec.ramp > Duration::ZERO {
        set("ramp_time", time(spec.ramp));
    }
    let (least, most) = spec.start_delay;
    if most > Duration::ZERO {
        let value = if least == most { time(least) } else { format!("{}-{}", time(least), time(most)) };
        set("startdelay", value);
    }
}

/// Options that delay requests.
fn pace(spec: &JobSpec, set: &mut impl FnMut(&str, String)) {
    if used(spec).any(|d| spec.rate[d] != Rate::Unlimited) {
        let one = |d: usize| match spec.rate[d] {
            Rate::Unlimited => String::new(),
            Rate::BytesPerSecond(rate) => size(rate),
        };
        set("rate", triple(spec, one));
        if spec.process == Process::Poisson {
            set("rate_process", "poisson".into());
        }
    }
    if let Some(think) = spec.think {
        set("thinktime", time(think.pause));
        if think.every != u32::MAX && think.every != 1 {
            set("thinktime_blocks", think.every.to_string());
        }
        if let Some(after) = think.after {
            set("thinktime_iotime", time(after));
        }
        if spec.rate_ignore_thinktime {
            set("rate_ignore_thinktime", "1".into());
        }
    }
}

/// A size in the largest unit that divides it; `k` is 1024.
fn size(bytes: u64) -> String {
    let units = [(40, "t"), (30, "g"), (20, "m"), (10, "k")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// A time with its unit, rounded up to microseconds, the finest unit of fio.
fn time(time: Duration) -> String {
    let us = time.as_nanos().div_ceil(1_000);
    match us {
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}
