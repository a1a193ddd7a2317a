//! The litmus tests of the contract on the simulated SSD, from both sides (crash-laboratory §3.8): whatever the
//! variant, timing, cut and torn operation, no forbidden state is ever observed, and the allowed states that some
//! variant reaches are counted. The model device of the contract reaches those that no variant reaches.
//!
//! On a device without streams, streams are dropped from programs of tests that say that streams mean nothing.

use super::devices::tiny;
use super::explorer::{WorldSpec, caught, combinations, contents, cut, kind_of, observed};
use super::sim::Sim;
use super::workload::{History, HostOp, Operands, Verb};
use flashweir_contract::program::{Request, Target, run, unit_count};
use flashweir_contract::{
    Content, DeviceKind, Exploration, Kind, LITMUS, Litmus, ModelDevice, Observed, Outcome, Value,
};
use flashweir_core::random::{RandomStream, mix};
use flashweir_core::{Bytes, Duration, Lpn, Payload};
use flashweir_device::config::{Allocation, Eviction, PersistPolicy, RangeFlushSupport};
use flashweir_device::{Device, DeviceConfig, FastForward, PlantedBug, Recovery};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The result of one litmus test on one kind of device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LitmusResult {
    /// Name of the test.
    pub name: String,
    /// Kind of device.
    pub kind: String,
    /// Number of states that the contract allows.
    pub allowed: u32,
    /// … of which the number that a variant of the SSD reached.
    pub reached: u32,
    /// Allowed states that no variant reached.
    pub missed: Vec<String>,
    /// … of which the number that the model device reaches.
    pub model: u32,
    /// Number of distinct media recovered.
    pub states: u64,
    /// A forbidden state that was observed: variant, delay, cut and the values read.
    pub forbidden: Option<String>,
}

/// Kinds of device that the SSD implements, with the tiny devices on which their tests run.
const DEVICES: [(DeviceKind, [&str; 3]); 4] = [
    (DeviceKind::D0, ["tiny-d0", "tiny-d0-mlc", "tiny-d0-dynamic"]),
    (DeviceKind::D1, ["tiny-d1", "tiny-d1-mlc", "tiny-d1-partial"]),
    (DeviceKind::D2, ["tiny-d2", "tiny-d2-mlc", "tiny-d2-dynamic"]),
    (DeviceKind::D3, ["tiny-d3", "tiny-d3-write-back", "tiny-d3-transactional"]),
];

/// Delays between two steps of a program, in nanoseconds.
const DELAYS_NS: [u32; 4] = [0, 15_000, 90_000, 1_000_000];
/// LPN of unit 0 of a program: at the beginning of a page and in the middle of one.
const BASES: [u64; 2] = [8, 9];

/// Runs every litmus test of the contract that applies to D0, D1, D2 or D3.
pub fn litmus(planted: Option<PlantedBug>) -> Vec<LitmusResult> {
    let mut results = Vec::new();
    for test in LITMUS {
        for (kind, names) in DEVICES.iter().filter(|(kind, _)| test.kinds.contains(kind)) {
            results.push(run_test(test, *kind, names, planted));
        }
    }
    results
}

fn run_test(test: &Litmus, kind: DeviceKind, names: &[&str], planted: Option<PlantedBug>) -> LitmusResult {
    let mut reached = BTreeSet::new();
    let mut states = 0;
    let mut forbidden = None;
    let known = |name| {
        let mut config = tiny(name).expect("the table names tiny devices");
        config.buffer.range_flush = RangeFlushSupport::Selective;
        config
    };
    for config in names.iter().flat_map(|name| variants(&known(name))) {
        assert_eq!(kind_of(&config), kind, "a variant is of the same kind");
        let spec = WorldSpec {
            config,
            seed: 1,
            planted: planted.map(Into::into),
            effort: super::Effort::EVERYTHING,
        };
        let start = aged(&spec);
        for (prelude, delay_ns, base) in timings(&spec.config) {
            let mut driver = Driver {
                sim: Sim::new(start.clone(), idle()),
                delay_ns,
                prelude,
                base,
                ordered: spec.config.order.policy != PersistPolicy::None,
                numbers: BTreeMap::new(),
            };
            run(&test.steps(), &mut driver);
            match observe(test, &spec, driver, &mut reached) {
                Ok(seen) => states += seen,
                Err(what) => forbidden = forbidden.or(Some(what)),
            }
        }
    }
    let allowed = test.allowed();
    let show = |state: &Vec<Value>| state.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    let missed = allowed.iter().enumerate().filter(|(i, _)| !reached.contains(i)).map(|(_, s)| show(s));
    LitmusResult {
        name: test.name.into(),
        kind: format!("{kind:?}"),
        allowed: allowed.len() as u32,
        reached: reached.len() as u32,
        missed: missed.collect(),
        model: model_reaches(test, kind).difference(&reached).count() as u32,
        states,
        forbidden,
    }
}

/// Returns the allowed states that the model device of the contract reaches.
fn model_reaches(test: &Litmus, kind: DeviceKind) -> BTreeSet<usize> {
    let steps = test.steps();
    let initial = |lpn: Lpn| Payload::Tag(mix(lpn.0 + 77));
    let mut device = ModelDevice::new(kind.policy(), 8, 64);
    for lpn in (0..unit_count(&steps) as u64).map(Lpn) {
        device.age(lpn, initial(lpn));
    }
    run(&steps, &mut device);
    let shown = device.legal_states(Exploration::default()).filter_map(|state| {
        let woken = device.after(&state);
        let seen = |lpn: Lpn| Observed::Content(Content::from(&woken.read(lpn)));
        match test.judge(Lpn(0), |lpn| Content::from(&initial(lpn)), seen) {
            Outcome::Allowed(state) => Some(state),
            Outcome::Forbidden(_) | Outcome::Unlisted => None,
        }
    });
    shown.collect()
}

/// Returns variants of the device: more or less eager to write, with other evictions, and with little and slow memory.
fn variants(config: &DeviceConfig) -> Vec<DeviceConfig> {
    let mut list = Vec::new();
    for (high, low, eviction) in
        [(0.0, 0.0, Eviction::Fifo), (0.4, 0.2, Eviction::Lru), (1.0, 0.9, Eviction::Fifo)]
    {
        let mut variant = config.clone();
        (variant.buffer.high_water, variant.buffer.low_water, variant.buffer.eviction) =
            (high, low, eviction);
        list.push(variant);
    }
    let mut small = list[0].clone();
    small.buffer.capacity = Bytes(config.geometry.page_bytes.0);
    small.buffer.access_latency = Duration::from_micros(8);
    list.push(small.clone());
    small.geometry.page_bytes = small.geometry.unit_bytes;
    small.buffer.capacity = small.geometry.unit_bytes;
    small.ftl.allocation = Allocation::Static;
    small.ftl.over_provisioning = 0.85;
    list.push(small);
    for variant in &list {
        assert_eq!(variant.validate(), Ok(()), "a variant is valid");
    }
    list
}

/// Returns combinations of the number of deallocations before each one of the program, the time between steps, and the
/// LPN of unit 0. That many deallocations nearly fill a page of the device's log, so that the next one makes the device
/// write the log without a flush.
fn timings(config: &DeviceConfig) -> impl Iterator<Item = (u32, u32, Lpn)> + use<> {
    let records_per_page = ((config.geometry.page_bytes.0 - 48) / 24) as u32;
    let preludes = [0, records_per_page - 1];
    preludes.into_iter().flat_map(|prelude| {
        DELAYS_NS.into_iter().flat_map(move |delay| BASES.map(|base| (prelude, delay, Lpn(base))))
    })
}

fn idle() -> History {
    History { ops: Vec::new(), depth: 0 }
}

/// Returns a device on which everything was written, some of it twice, and which has woken up once.
fn aged(spec: &WorldSpec) -> Device {
    let mut device = Device::new(spec.config.clone(), spec.options());
    let units = device.geometry().user_units;
    let mut fill = FastForward::new(&mut device);
    for unit in (0..units).chain(0..units / 3) {
        fill.write(Lpn(unit), Payload::Tag(mix(unit + 77)));
    }
    fill.finish();
    let media = device.media().clone();
    Recovery::begin(&spec.config, spec.options(), media).finish().0
}

/// The SSD as the target of a program.
struct Driver {
    sim: Sim,
    delay_ns: u32,
    /// Number of deallocations elsewhere before each one of the program.
    prelude: u32,
    base: Lpn,
    /// Whether the device supports streams; where it does not, the tests say that they mean nothing.
    ordered: bool,
    /// The simulation's number of each operation of the program.
    numbers: BTreeMap<u32, u32>,
}

impl Driver {
    /// Deallocates units far from the program's.
    fn trim_elsewhere(&mut self, count: u32) {
        let geometry = self.sim.device().geometry();
        let (per_unit, units) = (geometry.lbas_per_unit, geometry.user_units);
        for unit in (0..u64::from(count)).map(|i| units - 1 - i % (units / 2)) {
            let (lba, blocks) = (unit * per_unit, per_unit as u32);
            let op = HostOp {
                verb: Verb::Trim,
                lba,
                blocks,
                fua: false,
                pattern: 0,
                delay_ns: 0,
                tags: [0; 2],
                order: None,
                more: Operands::default(),
                handle: 0,
            };
            let number = self.sim.submit_next(op);
            assert!(self.sim.wait_for(number), "a deallocation never completes");
        }
    }
}

impl Target for Driver {
    fn submit(&mut self, number: u32, request: &Request) {
        let per_unit = self.sim.device().geometry().lbas_per_unit;
        let verb = match request.kind {
            Kind::Write => Verb::Write,
            Kind::WriteZeroes => Verb::Zeroes,
            Kind::Trim => Verb::Trim,
            Kind::Flush => Verb::Flush,
            Kind::RangeFlush => Verb::RangeFlush,
            Kind::Barrier => Verb::Barrier,
            Kind::Share => panic!("the SSD has no {:?}", request.kind),
        };
        let pattern = match request.value {
            Value::Number(value) => u64::from(value),
            Value::Initial | Value::Zero => 0,
        };
        let op = HostOp {
            verb,
            lba: (self.base.0 + u64::from(request.unit)) * per_unit,
            blocks: request.units * per_unit as u32,
            fua: request.fua,
            pattern,
            delay_ns: self.delay_ns,
            tags: [request.tag.0, 0],
            order: request.order.filter(|_| self.ordered),
            more: Operands::default(),
            handle: 0,
        };
        if matches!(verb, Verb::Trim | Verb::Zeroes) {
            self.trim_elsewhere(self.prelude);
        }
        let at = self.sim.submit_next(op);
        self.numbers.insert(number, at);
    }

    fn wait_for(&mut self, number: u32) {
        if let Some(at) = self.numbers.get(&number) {
            assert!(self.sim.wait_for(*at), "operation {number} never completes");
        }
    }

    fn cut(&mut self) {}
}

/// Cuts at every event after the program; adds the allowed states that are observed.
fn observe(
    test: &Litmus,
    spec: &WorldSpec,
    driver: Driver,
    reached: &mut BTreeSet<usize>,
) -> Result<u64, String> {
    let Driver { mut sim, delay_ns, base, .. } = driver;
    let mut known = BTreeSet::new();
    let mut random = RandomStream::new(spec.seed, "crash-litmus");
    loop {
        for torn in combinations(&sim.device().interrupted(sim.cut_instant()), &mut random) {
            let media = cut(&sim, &torn);
            if !known.insert(media.digest()) {
                continue;
            }
            let place = || {
                format!("{} +{delay_ns} ns at {}, event {}, {torn:?}", spec.config.name, base.0, sim.events())
            };
            let woken = caught(|| Recovery::begin(&spec.config, spec.options(), media).finish().0);
            let seen = contents(&woken.map_err(|fault| format!("{}: {fault:?}", place()))?);
            let initial = |lpn: Lpn| sim.log().initial(lpn);
            match test.judge(base, initial, |lpn| observed(&seen, lpn)) {
                Outcome::Allowed(state) => {
                    reached.insert(state);
                }
                outcome => {
                    let units: Vec<Content> = seen[base.0 as usize..].iter().take(3).copied().collect();
                    return Err(format!("{}: {outcome:?}, reads {units:?}", place()));
                }
            }
        }
        if !sim.step() {
            return Ok(known.len() as u64);
        }
    }
}
