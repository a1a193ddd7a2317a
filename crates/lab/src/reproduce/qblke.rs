//! Studies of the QBLKe paper (open-channel §9): a host FTL above an open channel, from pblk to QBLKe one technique after the other.
//!
//! The costs of CPUs and locks are those that `docs/evidence/smp-costs.json` was measured with; the study `hand-over` varies the one
//! that decides.

use super::study::{Scale, Study, micros, run_scenario};
use flashweir_core::Duration;
use flashweir_host::Costs;
use flashweir_sim::measure::{Percentile, RunResult};
use flashweir_sim::request::Kind;

pub(super) const STUDIES: &[Study] =
    &[WRITES, HAND_OVER, SLOWER_HOST, READS, READS_SLOWER_HOST, GC_CHANNELS, TENANTS];

/// Host FTLs of the study `writes`: pblk, and one technique more in each, in the paper's order (open-channel §9.5), all as released; then both repaired.
const STEPS: [&str; 8] = [
    PBLK,
    "assembly = 'pblk-as-released', rings = 32, full = 'wait'",
    "assembly = 'pblk-as-released', rings = 32, full = 'wait', map = 'apart'",
    QBLK,
    "assembly = 'qblke-as-released', rings = 32, limits = 'windows', reads_first = false",
    QBLKE,
    "assembly = 'pblk'",
    "assembly = 'qblke', rings = 32",
];
const PBLK: &str = "assembly = 'pblk-as-released'";
const QBLK: &str =
    "assembly = 'qblke-as-released', rings = 32, pool = 'lock', limits = 'windows', reads_first = false";
const QBLKE: &str = "assembly = 'qblke-as-released', rings = 32";

const WRITES: Study = Study {
    name: "writes",
    what: "random writes of 4 KiB by so many jobs of depth 2 on 32 CPUs to the paper's device, which is empty: from pblk to QBLKe one technique \
           after the other, and both repaired",
    missing: "the paper's host, a virtual machine whose device is emulated on the same CPUs: costs are those of our machine's threads; its 30 \
              seconds: 100 ms, at the full scale 10 s",
    parameter: "jobs",
    names: &[],
    metrics: &[
        ("mb_s", "MB/s written"),
        (
            "ring_share",
            "percent of CPU time at locks of rings, with spinning and with what a holder waits for the lock of the map",
        ),
        ("map_share", "percent of CPU time at the lock of the map"),
        ("pool_share", "percent of CPU time at the lock of the pool"),
        ("cpus_busy", "CPUs at work, in the mean"),
        ("p99_us", "99th percentile of a write, µs"),
    ],
    variants: &["pblk", "+ rings", "+ map", "QBLK", "+ pool", "QBLKe", "pblk, repaired", "QBLKe, repaired"],
    points: |_| vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    measure: |variant, x, seed, scale| writes(STEPS[variant], x as u32, seed, scale),
};

const HAND_OVER: Study = Study {
    name: "hand-over",
    what: "the study `writes` with 32 jobs, where the hand-over of a lock between two CPUs costs so many times what was measured",
    parameter: "times the measured hand-over",
    points: |_| vec![0.5, 1.0, 2.0],
    variants: &["pblk", "QBLKe"],
    measure: |variant, x, seed, scale| {
        let ns = (Costs::default().hand_over.as_nanos() as f64 * x).round();
        let ftl = format!("{}, costs = {{ hand_over = '{ns}ns' }}", [PBLK, QBLKE][variant]);
        writes(&ftl, 32, seed, scale)
    },
    ..WRITES
};

const SLOWER_HOST: Study = Study {
    name: "slower-host",
    what: "the study `writes` with 32 jobs, where everything costs so many times what was measured: the paper's host is a virtual machine of 32 \
           CPUs whose device is emulated beside it",
    parameter: "times all measured costs",
    points: |_| vec![1.0, 4.0, 16.0],
    variants: &["pblk", "QBLK", "QBLKe"],
    measure: |variant, x, seed, scale| {
        let ftl = format!("{}, costs = {{ {} }}", [PBLK, QBLK, QBLKE][variant], times(x));
        writes(&ftl, 32, seed, scale)
    },
    ..WRITES
};

/// Keys and values of all costs, so many times what was measured.
fn times(factor: f64) -> String {
    let costs = toml::Table::try_from(Costs::default()).expect("costs are a table");
    let ns = |cost: &toml::Value| {
        let cost: Duration = cost.as_str().unwrap_or_default().parse().expect("a cost is a time");
        (cost.as_nanos() as f64 * factor).round()
    };
    let keys: Vec<String> = costs.iter().map(|(key, cost)| format!("{key} = '{}ns'", ns(cost))).collect();
    keys.join(", ")
}

const READS: Study = Study {
    name: "reads",
    what: "random reads of 4 KiB by so many jobs of depth 16 on 32 CPUs, of what was written before, without a limit of the link, which FEMU has \
           not: the locks of map and pool taken away one by one",
    missing: "the paper's depth, which is not known; its host, as in `writes`",
    parameter: "jobs",
    names: &[],
    metrics: &[
        ("kiops", "thousand reads/s"),
        ("map_share", "percent of CPU time at the lock of the map, spinning included"),
        ("pool_share", "percent of CPU time at the lock of the pool"),
        ("p99_us", "99th percentile of a read, µs"),
    ],
    variants: &["pblk", "map", "pool", "map and pool"],
    points: |_| vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    measure: |variant, x, seed, scale| reads(variant, x as u32, 1.0, seed, scale),
};

const READS_SLOWER_HOST: Study = Study {
    name: "reads-slower-host",
    what: "the study `reads` with 32 jobs, where everything costs so many times what was measured",
    parameter: "times all measured costs",
    points: |_| vec![1.0, 4.0, 16.0],
    measure: |variant, x, seed, scale| reads(variant, 32, x, seed, scale),
    ..READS
};

fn reads(variant: usize, jobs: u32, slower: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let keys = ["", ", map = 'apart'", ", pool = 'apart'", ", map = 'apart', pool = 'apart'"][variant];
    let costs = times(slower);
    let ftl =
        format!("assembly = 'pblk-as-released', rings = 32, full = 'wait', costs = {{ {costs} }}{keys}");
    let ms = if scale == Scale::Quick { 100 } else { 2_000 };
    let fio = format!(
        "[global]\nsize=1g\n[fill]\nrw=write\nbs=256k\niodepth=64\nstats=0\n[sync]\nstonewall\nrw=write\nbs=4k\nsize=4k\nfsync=1\nstats=0\n\
         [measured]\nstonewall\nrw=randread\nbs=4k\niodepth=16\nnumjobs={jobs}\ngroup_reporting\ntime_based\nruntime={ms}ms\n"
    );
    let run = Cell { fio, link: false, ..Cell::new(ftl, scale, seed) }.run();
    vec![
        run.per_s(Kind::Read) / 1e3,
        run.lock_share("map"),
        run.lock_share("pool"),
        run.percentile(Kind::Read, Percentile::P99),
    ]
}

const GC_CHANNELS: Study = Study {
    name: "gc-channels",
    what: "random writes of 4 KiB over 89 % of a device with so many channels, as the paper's 51 of 57 GB, until \
           1.6 times as much was written; CPUs cost nothing",
    missing: "how the paper aged its device: ours is filled once, in order",
    parameter: "channels",
    names: &[],
    metrics: &[
        ("moves_per_freed", "units moved for each unit that GC freed"),
        ("waf", "units programmed for each unit written"),
        ("mb_s", "MB/s written"),
    ],
    variants: &["device lines", "channel lines"],
    points: |_| vec![8.0, 16.0, 32.0, 64.0],
    measure: |variant, x, seed, scale| {
        let lines = ["device", "channel"][variant];
        let readers = [8, 1][variant];
        let ftl =
            format!("assembly = 'qblke-as-released', rings = 8, lines = '{lines}', gc_readers = {readers}");
        let fio = "[global]\nsize=89%\n[fill]\nrw=write\nbs=256k\niodepth=64\nstats=0\n\
                   [age]\nstonewall\nrw=randwrite\nbs=4k\niodepth=8\nnumjobs=8\nio_size=10%\nstats=0\n\
                   [measured]\nstonewall\nrw=randwrite\nbs=4k\niodepth=8\nnumjobs=8\nio_size=10%\ngroup_reporting\n";
        let pages = pages(scale) / 2;
        let cell =
            Cell { cpus: 0, channels: x as u32, pages, fio: fio.into(), ..Cell::new(ftl, scale, seed) };
        let run = cell.run();
        vec![run.of_ftl("moves_per_freed_unit"), run.of_ftl("waf"), run.mb_s(Kind::Write)]
    },
};

const TENANTS: Study = Study {
    name: "tenants",
    what: "a reader of depth 1 beside a writer of depth 32 that has GC at work, both of 4 KiB, random, over 89 % of the device",
    missing: "the paper's tenants, which are not known",
    parameter: "reader",
    names: &["beside the writer"],
    metrics: &[
        ("read_p50_us", "median of a read, µs"),
        ("read_p99_us", "99th percentile of a read, µs"),
        ("read_p999_us", "99.9th percentile of a read, µs"),
        ("write_mb_s", "MB/s written"),
        ("write_p99_us", "99th percentile of a write, µs"),
    ],
    variants: &["windows", "scores", "windows, reads first", "scores, reads first"],
    points: |_| vec![1.0],
    measure: |variant, _, seed, scale| {
        let (limits, first) = (["windows", "scores"][variant % 2], variant >= 2);
        let ftl =
            format!("assembly = 'qblke-as-released', rings = 32, limits = '{limits}', reads_first = {first}");
        let ms = if scale == Scale::Quick { 1_000 } else { 10_000 };
        let fio = format!(
            "[global]\nsize=89%\n[fill]\nrw=write\nbs=256k\niodepth=64\nstats=0\n\
             [age]\nstonewall\nrw=randwrite\nbs=4k\niodepth=32\nnumjobs=4\nio_size=10%\nstats=0\n\
             [writer]\nstonewall\nrw=randwrite\nbs=4k\niodepth=32\ntime_based\nruntime={ms}ms\n\
             [reader]\nrw=randread\nbs=4k\niodepth=1\ntime_based\nruntime={ms}ms\n"
        );
        let run = Cell { pages: pages(scale) / 2, fio, ..Cell::new(ftl, scale, seed) }.run();
        let read = |percentile| run.percentile(Kind::Read, percentile);
        vec![
            read(Percentile::P50),
            read(Percentile::P99),
            read(Percentile::P99_9),
            run.mb_s(Kind::Write),
            run.percentile(Kind::Write, Percentile::P99),
        ]
    },
};

/// Pages of a block: the paper's, or an eighth; studies with GC have half of that.
fn pages(scale: Scale) -> u32 {
    match scale {
        Scale::Quick => 64,
        Scale::Full => 512,
    }
}

fn writes(ftl: &str, jobs: u32, seed: u64, scale: Scale) -> Vec<f64> {
    let (ramp, ms) = if scale == Scale::Quick { (20, 100) } else { (1_000, 10_000) };
    let fio = format!(
        "[measured]\nrw=randwrite\nbs=4k\nsize=89%\niodepth=2\nnumjobs={jobs}\ngroup_reporting\ntime_based\nramp_time={ramp}ms\n\
         runtime={ms}ms\n"
    );
    let run = Cell { fio, ..Cell::new(ftl.into(), scale, seed) }.run();
    let share = |lock| run.lock_share(lock);
    vec![
        run.mb_s(Kind::Write),
        share("ring"),
        share("map"),
        share("pool"),
        run.cpus_busy(),
        run.percentile(Kind::Write, Percentile::P99),
    ]
}

/// A run of jobs on a host FTL above the paper's device.
struct Cell {
    ftl: String,
    cpus: u32,
    channels: u32,
    pages: u32,
    fio: String,
    seed: u64,
    /// Whether the link is the preset's; otherwise it takes no time to transfer data.
    link: bool,
}

impl Cell {
    /// The paper's set-up without a job.
    fn new(ftl: String, scale: Scale, seed: u64) -> Self {
        Self { ftl, cpus: 32, channels: 32, pages: pages(scale), fio: String::new(), seed, link: true }
    }

    /// The scenario that `weir run` runs as well.
    fn scenario(&self) -> String {
        let Self { ftl, cpus, channels, pages, fio, seed, link } = self;
        let link = if *link { "" } else { ", \"link.bytes_per_s\" = 0" };
        format!(
            "name = 'qblke'\nseeds = [{seed}]\nprecondition = {{ mode = 'none' }}\nhost_ftl = {{ {ftl}, cpus = {cpus} }}\n\
             [[device]]\npreset = 'qblke'\nset = {{ \"geometry.channels\" = {channels}, \"geometry.pages_per_block\" = {pages}{link} }}\n\
             [[workload]]\nname = 'jobs'\nfio_inline = '''\n{fio}'''\n"
        )
    }

    fn run(&self) -> Measured {
        Measured(run_scenario(&self.scenario()))
    }
}

/// The result of a cell.
struct Measured(RunResult);

impl Measured {
    fn per_s(&self, kind: Kind) -> f64 {
        self.0.jobs.iter().filter_map(|job| Some(job.iops(job.kind(kind)?))).sum()
    }

    fn mb_s(&self, kind: Kind) -> f64 {
        self.per_s(kind) * 4096.0 / 1e6
    }

    /// Percentile of the latencies of a kind, in µs.
    fn percentile(&self, kind: Kind, percentile: Percentile) -> f64 {
        let kind = self.0.jobs.iter().find_map(|job| job.kind(kind));
        kind.map_or(f64::NAN, |kind| micros(&kind.lat, percentile))
    }

    /// A counter or ratio of the host FTL.
    fn of_ftl(&self, name: &str) -> f64 {
        self.0.metrics.get(&format!("host_ftl.{name}")).map_or(f64::NAN, |value| value.as_f64())
    }

    /// Percent of CPU time at locks of a kind, spinning included.
    fn lock_share(&self, lock: &str) -> f64 {
        let [spin, held] = ["spin", "held"].map(|what| self.of_ftl(&format!("{lock}_{what}_ns")));
        100.0 * (spin + held) / self.of_ftl("cpu_busy_ns")
    }

    /// CPUs at work, in the mean over the run.
    fn cpus_busy(&self) -> f64 {
        self.of_ftl("cpu_busy_ns") / (self.0.virtual_time_ns - self.0.counted_from_ns) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number of jobs that the device does not limit: what limits them is the host.
    fn on_slow_host(ftl: &str) -> Vec<f64> {
        writes(&format!("{ftl}, costs = {{ {} }}", times(16.0)), 16, 1, Scale::Quick)
    }

    #[test]
    fn pblks_threads_spin_and_qblkes_do_not() {
        let [pblk, qblke] = [PBLK, QBLKE].map(on_slow_host);
        assert!(pblk[1] > 50.0 && qblke[1] < 20.0, "share of the ring's lock: {pblk:?} {qblke:?}");
        assert!(qblke[0] > 1.5 * pblk[0], "MB/s: {pblk:?} {qblke:?}");
    }

    /// Each technique takes its lock away, and nothing else that counts here.
    #[test]
    fn each_step_takes_a_lock_away() {
        let [rings, map, pool] = [1, 2, 4].map(|step| on_slow_host(STEPS[step]));
        assert!(rings[2] > 5.0 && map[2] == 0.0, "lock of the map: {rings:?} {map:?}");
        assert!(map[3] > 0.0 && pool[3] == 0.0, "lock of the pool: {map:?} {pool:?}");
    }

    #[test]
    fn costs_multiply() {
        let twice: toml::Table = toml::from_str(&format!("a = {{ {} }}", times(2.0))).unwrap();
        assert_eq!(twice["a"]["copy"].as_str(), Some("592ns"));
        assert_eq!(twice["a"].as_table().unwrap().len(), 11);
    }
}
