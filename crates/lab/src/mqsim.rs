//! Import of MQSim's XML files: a device configuration from its `ssdconfig.xml`, and fio jobs or replays
//! from its workload file, so that a study made with MQSim can continue here.
//!
//! Every known key is treated in one of three ways: it is imported; it is not modelled, and a warning names key,
//! value and reason, unless the value changes nothing here; or its value has no counterpart, and an error names
//! key, value, what was expected and the line. The conversion of times uses MQSim's own constants for NV-DDR2 and
//! PCIe, so that latencies at queue depth 1 are MQSim's.
//!
//! Deliberately absent: MQSim's address generator (requests have the same distribution, not the same sequence),
//! its cached map, and flows confined to some of the planes.

use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_device::config::{
    Allocation, AppendConfig, BufferConfig, BufferMode, BusOrder, Cell, DeviceConfig, Eviction, FaultConfig,
    FirmwareKind, FtlConfig, GcConfig, GeometryConfig, Metadata, OpenConfig, PageTimes, RangeFlushSupport,
    TimingConfig, WearConfig,
};
use flashweir_device::geometry::Geometry;
use flashweir_ftl::{GcPolicy, Striping};
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_workload::spelling::{nearest, quoted};
use std::fmt::Write as _;

/// MQSim's `Device_Level_Data_Caching_Mode`, which is in the workload file and changes the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Writes complete when they are on the medium.
    #[default]
    Off,
    /// Writes complete in DRAM and go to the medium at once (MQSim's cache keeps only data that are rewritten).
    Write,
}

/// The workloads of an MQSim workload file.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedWorkload {
    /// Scenarios, which MQSim would run one after the other.
    pub scenarios: Vec<ImportedScenario>,
    /// Caching with which to import the device, see [`import_device_with`].
    pub caching: Caching,
}

/// One `IO_Scenario`, whose flows run at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedScenario {
    /// A fio job file with one job for each synthetic flow, if there are any.
    pub fio: Option<String>,
    /// Traces to replay.
    pub replays: Vec<ImportedReplay>,
    /// State of MQSim's device when the flows begin.
    pub precondition: Precondition,
}

impl ImportedScenario {
    /// Options of `weir fio` and `weir replay` for the state of the device.
    pub fn state(&self) -> String {
        state_options(&self.precondition)
    }

    /// A command line that runs the flows, whose jobs are in the file `job`, on `device`.
    pub fn command(&self, job: &str, device: &str) -> String {
        format!("weir fio {} --device {} {}", quoted(job), quoted(device), self.state())
    }

    /// Command lines that replay the traces on `device`, a preset or a device file. Addresses wrap as they do in MQSim.
    pub fn replay_commands(&self, device: &str) -> Vec<String> {
        let line = |replay: &ImportedReplay| {
            let ImportedReplay { file, repeat } = replay;
            let repeat = if *repeat > 1 { format!(" --repeat {repeat}") } else { String::new() };
            let (file, device, state) = (quoted(file), quoted(device), self.state());
            format!("weir replay {file} --device {device} --format mqsim --fit wrap{repeat} {state}")
        };
        self.replays.iter().map(line).collect()
    }
}

fn state_options(state: &Precondition) -> String {
    if state.mode == Mode::None {
        return "--precondition none".into();
    }
    let mut options = format!("--fill {}", state.fill);
    if state.overwrite > 0.0 {
        let pattern = if state.pattern == Pattern::Random { "random" } else { "sequential" };
        let _ = write!(options, " --overwrite {} --pattern {pattern}", state.overwrite);
    }
    options
}

/// A flow that replays a trace in MQSim's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedReplay {
    /// Path of the trace, as in the XML.
    pub file: String,
    /// Number of times that the whole trace is replayed.
    pub repeat: u32,
}

/// Imports a device with its write cache off.
///
/// # Errors
/// The first key that is missing or whose value has no counterpart.
pub fn import_device(xml: &str) -> Result<(DeviceConfig, Vec<String>), String> {
    import_device_with(xml, Caching::Off)
}

/// Imports a device for a workload with this caching. The strings are warnings.
///
/// # Errors
/// The first key that is missing or whose value has no counterpart.
pub fn import_device_with(xml: &str, caching: Caching) -> Result<(DeviceConfig, Vec<String>), String> {
    let document = parse(xml, "Execution_Parameter_Set")?;
    let root = document.root_element();
    let mut warnings = Vec::new();
    let mut host = Keys::of(child(root, "Host_Parameter_Set")?, &[])?;
    let device_node = child(root, "Device_Parameter_Set")?;
    let mut device = Keys::of(device_node, &["Flash_Parameter_Set"])?;
    let mut flash = Keys::of(child(device_node, "Flash_Parameter_Set")?, &[])?;
    check_kind(&mut device)?;
    // It concerns the workload: see [`is_preconditioned`].
    device.flag("Enabled_Preconditioning")?;
    let geometry = geometry(&mut device, &mut flash)?;
    let config = DeviceConfig {
        name: "mqsim-import".into(),
        source: "imported from MQSim's configuration".into(),
        timing: timing(&mut device, &mut flash)?,
        ftl: ftl(&mut device, &geometry, &mut warnings)?,
        append: AppendConfig::default(),
        open: OpenConfig::default(),
        buffer: buffer(&mut device, &geometry, caching)?,
        order: flashweir_device::config::OrderConfig::default(),
        faults: FaultConfig::default(),
        link: link(&mut host, &mut device)?,
        firmware: FirmwareKind::Page,
        geometry,
    };
    for (keys, known) in [(host, &HOST_IGNORED[..]), (device, &DEVICE_IGNORED), (flash, &FLASH_IGNORED)] {
        keys.finish(known, &mut warnings)?;
    }
    config.validate().map_err(|error| format!("the imported device is not valid: {error}"))?;
    warnings.extend(config.collection_never_stops(1.0));
    Ok((config, warnings))
}

/// Whether MQSim preconditions the device of this file to a steady state before the flows begin.
///
/// # Errors
/// The key is missing, or neither true nor false.
pub fn is_preconditioned(xml: &str) -> Result<bool, String> {
    let document = parse(xml, "Execution_Parameter_Set")?;
    let device = child(document.root_element(), "Device_Parameter_Set")?;
    Keys::of(device, &["Flash_Parameter_Set"])?.flag("Enabled_Preconditioning")
}

/// A key that is not modelled: its name, the value that asks for what happens here anyway (then there is no warning), the reason.
type Ignored = (&'static str, &'static str, &'static str);

const HOST_IGNORED: [Ignored; 3] = [
    ("SATA_Processing_Delay", "", "it has no effect on NVMe devices, in MQSim too"),
    ("Enable_ResponseTime_Logging", "false", "results always have a timeline"),
    ("ResponseTime_Logging_Period_Length", "", "results always have a timeline"),
];

const DEVICE_IGNORED: [Ignored; 15] = [
    ("Seed", "", "randomness comes from the seed of the run"),
    ("Queue_Fetch_Size", "", "the device takes commands as they come"),
    ("Caching_Mechanism", "", "the buffer has one mechanism"),
    ("Data_Cache_Sharing_Mode", "", "the buffer is shared"),
    ("Data_Cache_DRAM_Row_Size", "", "the buffer's memory has a rate and a latency, no rows"),
    ("Data_Cache_DRAM_tRP", "", "the buffer's memory has a rate and a latency, no rows"),
    ("Ideal_Mapping_Table", "true", "the map is always in memory, a lookup costs nothing"),
    ("CMT_Capacity", "", "the map is always in memory, a lookup costs nothing"),
    ("CMT_Sharing_Mode", "", "the map is always in memory, a lookup costs nothing"),
    ("Transaction_Scheduling_Policy", "PRIORITY_OUT_OF_ORDER", "the scheduler is this simulator's own"),
    ("Use_Copyback_for_GC", "false", "pages that GC moves pass over the channel"),
    ("GC_Hard_Threshold", "", "GC is scheduled in this simulator's own way"),
    ("Preferred_suspend_erase_time_for_read", "", "operations are not suspended; see timing.suspend"),
    ("Preferred_suspend_erase_time_for_write", "", "operations are not suspended; see timing.suspend"),
    ("Preferred_suspend_write_time_for_read", "", "operations are not suspended; see timing.suspend"),
];

const FLASH_IGNORED: [Ignored; 6] = [
    ("CMD_Suspension_Support", "NONE", "operations are not suspended; see timing.suspend"),
    ("Suspend_Erase_Time", "", "operations are not suspended; see timing.suspend"),
    ("Suspend_Program_Time", "", "operations are not suspended; see timing.suspend"),
    ("Block_PE_Cycles_Limit", "", "blocks do not wear out; see faults.endurance"),
    ("Page_Metadat_Capacity", "", "spare bytes do not cost time, in MQSim too"),
    ("Page_Metadata_Capacity", "", "spare bytes do not cost time, in MQSim too"),
];

const FLOW_IGNORED: [Ignored; 2] = [
    ("Priority_Class", "HIGH", "all flows have the same priority"),
    ("Seed", "", "randomness comes from the seed of the run"),
];

/// Checks that the device is of a kind that has a counterpart.
fn check_kind(device: &mut Keys<'_>) -> Result<(), String> {
    device.one_of("Memory_Type", &["FLASH"])?;
    device.one_of("HostInterface_Type", &["NVME"])?;
    device.one_of("Address_Mapping", &["PAGE_LEVEL"])?;
    device.one_of("Flash_Comm_Protocol", &["NVDDR2"])?;
    Ok(())
}

fn geometry(device: &mut Keys<'_>, flash: &mut Keys<'_>) -> Result<GeometryConfig, String> {
    let page_bytes = Bytes(u64::from(flash.whole("Page_Capacity", 512, 65_536)?));
    Ok(GeometryConfig {
        channels: device.whole("Flash_Channel_Count", 1, 256)?,
        chips_per_channel: device.whole("Chip_No_Per_Channel", 1, 64)?,
        dies_per_chip: flash.whole("Die_No_Per_Chip", 1, 16)?,
        planes_per_die: flash.whole("Plane_No_Per_Die", 1, 8)?,
        blocks_per_plane: flash.whole("Block_No_Per_Plane", 4, 65_536)?,
        pages_per_block: flash.whole("Page_No_Per_Block", 2, 16_384)?,
        page_bytes,
        // MQSim maps whole pages.
        unit_bytes: page_bytes,
    })
}

/// Times of the medium, with the times that MQSim's NV-DDR2 channel adds (ns): 290 = tCS + 6 tWC + tWB + tRR
/// for a read, 361 = tCS + 6 tWC + tADL + tWPST + tWPSTH + tWB for a program, 220 = tCS + 4 tWC + tWB for
/// an erase.
fn timing(device: &mut Keys<'_>, flash: &mut Keys<'_>) -> Result<TimingConfig, String> {
    /// Time from the end of an array read until ready/busy shows it.
    const READY_NS: u64 = 20;
    let cell = match flash.one_of("Flash_Technology", &["SLC", "MLC", "TLC"])? {
        "SLC" => Cell::Slc,
        "MLC" => Cell::Mlc,
        _ => Cell::Tlc,
    };
    // MQSim charges floor(1000 / rate) ns for each beat of the channel.
    let rate = device.whole("Channel_Transfer_Rate", 1, 1000)?;
    let width = device.whole("Flash_Channel_Width", 1, 8)?;
    let ns_per_beat = u64::from(1000 / rate);
    let ns = Duration::from_nanos;
    Ok(TimingConfig {
        cell,
        read: page_times(flash, "Page_Read_Latency", cell, READY_NS)?,
        program: page_times(flash, "Page_Program_Latency", cell, 0)?,
        erase: ns(flash.whole("Block_Erase_Latency", 1, u32::MAX)?.into()),
        bus_bytes_per_s: (1_000_000_000 * u64::from(width)).div_ceil(ns_per_beat),
        command: [ns(290), ns(361), ns(220)],
        command_next_plane: [ns(650), ns(816), ns(700)],
        bus_order: BusOrder::DataFirst,
        multi_plane: true,
        die_interleaving: false,
        suspend: None,
    })
}

fn page_times(flash: &mut Keys<'_>, prefix: &str, cell: Cell, extra_ns: u64) -> Result<PageTimes, String> {
    let mut all = Vec::new();
    for position in ["LSB", "CSB", "MSB"] {
        let time = flash.whole(&format!("{prefix}_{position}"), 1, u32::MAX)?;
        all.push(Duration::from_nanos(u64::from(time) + extra_ns));
    }
    let used = match cell {
        Cell::Slc => vec![all[0]],
        Cell::Mlc => vec![all[0], all[2]],
        Cell::Tlc | Cell::Qlc => all,
    };
    let same = used.iter().all(|time| *time == used[0]);
    Ok(if same { PageTimes::Same(used[0]) } else { PageTimes::Each(used) })
}

fn ftl(
    device: &mut Keys<'_>,
    geometry: &GeometryConfig,
    warnings: &mut Vec<String>,
) -> Result<FtlConfig, String> {
    /// MQSim's GC works on at most this many victims of a plane at once and starts at the latest when this many blocks are free; with
    /// fewer free blocks in a plane, user writes to it stop.
    const HOLD_BLOCKS: u32 = 10;
    let scheme = device.text("Plane_Allocation_Scheme")?;
    let striping: Striping =
        scheme.value.parse().map_err(|_| scheme.wrong("a permutation of the letters C, W, D and P"))?;
    let over_provisioning = device.real("Overprovisioning_Ratio", 0.0, 0.9)?;
    let blocks = geometry.blocks_per_plane;
    let spare = (f64::from(blocks) * over_provisioning) as u32;
    let reserve_blocks = HOLD_BLOCKS.min(spare.saturating_sub(3)).max(1);
    if reserve_blocks < HOLD_BLOCKS {
        warnings.push(format!(
            "Overprovisioning_Ratio = {over_provisioning} leaves {spare} spare blocks in a plane, where MQSim \
             stops user writes below {HOLD_BLOCKS} free ones for good; here they stop below {reserve_blocks}"
        ));
    }
    let threshold = (device.real("GC_Exec_Threshold", 0.0, 1.0)? * f64::from(blocks)) as u32;
    let (policy, choices) =
        match device.one_of("GC_Block_Selection_Policy", &["GREEDY", "RGA", "RANDOM", "RANDOM_P", "FIFO"])? {
            "GREEDY" => (GcPolicy::Greedy, blocks.ilog2()),
            "FIFO" => (GcPolicy::Fifo, blocks.ilog2()),
            "RGA" => (GcPolicy::DChoices, blocks.ilog2()),
            _ => (GcPolicy::DChoices, 1),
        };
    let dynamic = device.flag("Dynamic_Wearleveling_Enabled")?;
    let level = device.flag("Static_Wearleveling_Enabled")?;
    let threshold_erases = device.whole("Static_Wearleveling_Threshold", 1, u32::MAX)?;
    Ok(FtlConfig {
        allocation: Allocation::Static,
        striping,
        over_provisioning,
        gc: GcConfig {
            policy,
            choices,
            hot_cold: true,
            preemptible: device.flag("Preemptible_GC_Enabled")?,
            start_below_blocks: threshold.max(HOLD_BLOCKS).max(reserve_blocks + 1),
            reserve_blocks,
        },
        wear: WearConfig { dynamic, static_threshold: if level { threshold_erases } else { 0 } },
        metadata: Metadata::None,
        ..FtlConfig::default()
    })
}

/// In MQSim's write cache at most one page for each plane waits for the medium; further writes wait outside the cache.
fn buffer(
    device: &mut Keys<'_>,
    geometry: &GeometryConfig,
    caching: Caching,
) -> Result<BufferConfig, String> {
    let capacity = Bytes(u64::from(device.whole("Data_Cache_Capacity", 1, u32::MAX)?));
    let rate = u64::from(device.whole("Data_Cache_DRAM_Data_Rate", 1, 1_000_000)?);
    let burst = u64::from(device.whole("Data_Cache_DRAM_Data_Busrt_Size", 1, 1024)?);
    let row_to_column = device.whole("Data_Cache_DRAM_tRCD", 0, 1_000_000)?;
    let column = device.whole("Data_Cache_DRAM_tCL", 0, 1_000_000)?;
    let off = BufferConfig {
        mode: BufferMode::WriteThrough,
        capacity,
        high_water: 0.0,
        low_water: 0.0,
        eviction: Eviction::Lru,
        bytes_per_s: 0,
        access_latency: Duration::ZERO,
        protected: None,
        range_flush: RangeFlushSupport::None,
        exclusive_flush: false,
    };
    let g = geometry;
    let planes = g.channels * g.chips_per_channel * g.dies_per_chip * g.planes_per_die;
    Ok(match caching {
        Caching::Off => off,
        Caching::Write => BufferConfig {
            mode: BufferMode::WriteBack,
            capacity: capacity.min(Bytes(u64::from(planes) * g.page_bytes.0)),
            bytes_per_s: 2 * burst * rate * 1_000_000,
            access_latency: Duration::from_nanos(u64::from(row_to_column) + u64::from(column)),
            ..off
        },
    })
}

/// The link, as MQSim has it: packets with a payload of at most 128 bytes and 28 bytes around it, and messages of 2
/// (doorbell), 72 (command) and 16 bytes (completion) in a packet each; a fetch request has 32 bytes in all. A
/// command costs the doorbell of the last completion, its own doorbell, the fetch request, and the command itself.
fn link(host: &mut Keys<'_>, device: &mut Keys<'_>) -> Result<LinkConfig, String> {
    let lane_bytes_per_ns = host.real("PCIe_Lane_Bandwidth", 0.001, 1000.0)?;
    let lanes = host.whole("PCIe_Lane_Count", 1, 64)?;
    let queue_depth = device.whole("IO_Queue_Depth", 1, 65_536)?;
    let bytes_per_s = (lane_bytes_per_ns * f64::from(lanes) * 1e9 * 128.0 / 156.0).ceil();
    let ns = |wire_bytes: u32| f64::from(wire_bytes.div_ceil(lanes)) / lane_bytes_per_ns;
    let bytes_in = |ns: f64| (ns * bytes_per_s / 1e9) as u32;
    Ok(LinkConfig {
        queues: 1,
        queue_depth,
        bytes_per_s: bytes_per_s as u64,
        half_duplex: false,
        command_bytes: bytes_in(2.0 * ns(30) + ns(100)),
        completion_bytes: bytes_in(ns(44)),
        submit_latency: Duration::from_nanos(ns(32).round() as u64),
        complete_latency: Duration::ZERO,
    })
}

/// Imports the workloads of a file for `device`. The strings are warnings.
///
/// # Errors
/// The first key that is missing or whose value has no counterpart.
pub fn import_workload(
    xml: &str,
    device: &DeviceConfig,
    preconditioned: bool,
) -> Result<(ImportedWorkload, Vec<String>), String> {
    const FLOWS: [&str; 2] = ["IO_Flow_Parameter_Set_Synthetic", "IO_Flow_Parameter_Set_Trace_Based"];
    let document = parse(xml, "MQSim_IO_Scenarios")?;
    let mut warnings = Vec::new();
    let mut scenarios = Vec::new();
    let mut caching = None;
    for scenario in elements(document.root_element()) {
        expect_name(scenario, &["IO_Scenario"])?;
        let flows: Vec<_> = elements(scenario).collect();
        if flows.len() > 1 {
            warnings.push(format!(
                "{} flows share the device: each gets an equal part of the addresses",
                flows.len()
            ));
            if flows.iter().any(|flow| flow.has_tag_name(FLOWS[1])) {
                warnings.push(
                    "a trace beside other flows is not modelled: it becomes a run of its own, over all addresses".into(),
                );
            }
        }
        let capacity = Geometry::new(device).capacity_lbas();
        let share = Share { device, blocks: capacity / flows.len().max(1) as u64 };
        let mut state = State::new(preconditioned, flows.len());
        let mut fio = String::new();
        let mut replays = Vec::new();
        for (index, flow) in flows.iter().enumerate() {
            expect_name(*flow, &FLOWS)?;
            let mut keys = Keys::of(*flow, &[])?;
            let mode = caching_mode(&mut keys)?;
            if caching.is_some_and(|other| other != mode) {
                return Err(
                    "flows differ in Device_Level_Data_Caching_Mode: expected the same for all".into()
                );
            }
            caching = Some(mode);
            share.check_planes(&mut keys, &mut warnings)?;
            state.add(index, &mut keys, &mut warnings)?;
            if flow.has_tag_name(FLOWS[0]) {
                fio.push_str(&share.job(index, &mut keys, &mut warnings)?);
            } else {
                replays.push(replay(&mut keys, &mut warnings)?);
            }
            keys.finish(&FLOW_IGNORED, &mut warnings)?;
        }
        if flows.is_empty() {
            return Err(format!("IO_Scenario has no flow: expected {} (line {})", FLOWS[0], line(scenario)));
        }
        let precondition = state.precondition();
        let fio = (!fio.is_empty()).then(|| {
            format!(
                "; From scenario {} of an MQSim workload file, whose device begins as with {}.\n{fio}",
                scenarios.len() + 1,
                state_options(&precondition)
            )
        });
        scenarios.push(ImportedScenario { fio, replays, precondition });
    }
    let caching = caching.ok_or("MQSim_IO_Scenarios has no scenario: expected IO_Scenario")?;
    Ok((ImportedWorkload { scenarios, caching }, warnings))
}

fn caching_mode(keys: &mut Keys<'_>) -> Result<Caching, String> {
    Ok(match keys.one_of("Device_Level_Data_Caching_Mode", &["TURNED_OFF", "WRITE_CACHE"])? {
        "TURNED_OFF" => Caching::Off,
        _ => Caching::Write,
    })
}

fn replay(keys: &mut Keys<'_>, warnings: &mut Vec<String>) -> Result<ImportedReplay, String> {
    keys.one_of("Time_Unit", &["NANOSECOND"])?;
    let file = keys.text("File_Path")?.value.to_owned();
    let repeat = keys.whole("Relay_Count", 1, 1_000_000)?;
    let percentage = keys.whole("Percentage_To_Be_Executed", 1, 100)?;
    if percentage < 100 {
        warnings.push(format!(
            "Percentage_To_Be_Executed = {percentage} is not modelled: limit the replay by hand"
        ));
    }
    Ok(ImportedReplay { file, repeat })
}

/// State of MQSim's device before the flows of a scenario, in fractions of the capacity.
#[derive(Debug)]
struct State {
    preconditioned: bool,
    flows: usize,
    /// Fraction of the device that has to be written beforehand, from its beginning.
    fill: f64,
    /// Whether a flow writes.
    writes: bool,
    writes_at_random: bool,
}

impl State {
    /// Overwrites, in multiples of the filled part, that bring the device's GC to a steady state.
    const OVERWRITE: f64 = 2.0;

    fn new(preconditioned: bool, flows: usize) -> Self {
        Self { preconditioned, flows, fill: 0.0, writes: false, writes_at_random: false }
    }

    /// Takes a flow into account, which has one of `flows` equal parts of the addresses.
    fn add(&mut self, index: usize, keys: &mut Keys<'_>, warnings: &mut Vec<String>) -> Result<(), String> {
        let occupied = keys.whole("Initial_Occupancy_Percentage", 0, 100)?;
        let (reads, part, random) = match keys.peek("Read_Percentage") {
            Some(reads) => {
                let part = keys.peek("Working_Set_Percentage").and_then(|part| part.parse().ok());
                (reads != "0", part.unwrap_or(100), keys.peek("Address_Distribution") != Some("STREAMING"))
            }
            // A trace may read and write anywhere.
            None => (true, 100, true),
        };
        let writes = keys.peek("Read_Percentage") != Some("100");
        self.writes |= writes;
        self.writes_at_random |= writes && random;
        if !self.preconditioned && occupied > 0 {
            warnings.push(format!(
                "Initial_Occupancy_Percentage = {occupied} has no effect, in MQSim too: Enabled_Preconditioning is false"
            ));
        }
        let filled = match (self.preconditioned, reads) {
            // MQSim maps a page that was never written when it is first read.
            (true, true) => occupied.max(part),
            (true, false) => occupied,
            (false, true) => part,
            (false, false) => return Ok(()),
        };
        let end = (index as f64 + f64::from(filled) / 100.0) / self.flows as f64;
        if filled > 0 {
            self.fill = self.fill.max(end);
        }
        Ok(())
    }

    fn precondition(&self) -> Precondition {
        let mode = if self.fill > 0.0 { Mode::Instant } else { Mode::None };
        let overwrite = if self.preconditioned && self.writes { Self::OVERWRITE } else { 0.0 };
        let pattern = if self.writes_at_random { Pattern::Random } else { Pattern::Sequential };
        // With the precision of the command line.
        Precondition { mode, fill: (self.fill * 1e4).round() / 1e4, overwrite, pattern }
    }
}

/// The part of a device that belongs to one flow.
#[derive(Debug)]
struct Share<'a> {
    device: &'a DeviceConfig,
    blocks: u64,
}

impl Share<'_> {
    /// Warns if a flow is confined to some of the planes: here it always uses all.
    fn check_planes(&self, keys: &mut Keys<'_>, warnings: &mut Vec<String>) -> Result<(), String> {
        let g = &self.device.geometry;
        for (key, count) in [
            ("Channel_IDs", g.channels),
            ("Chip_IDs", g.chips_per_channel),
            ("Die_IDs", g.dies_per_chip),
            ("Plane_IDs", g.planes_per_die),
        ] {
            let list = keys.text(key)?;
            let expected = format!("a list of numbers from 0 to {}", count - 1);
            let mut ids = Vec::new();
            for id in list.value.split(',') {
                let id = id.trim().parse().ok().filter(|id: &u32| *id < count);
                ids.push(id.ok_or_else(|| list.wrong(&expected))?);
            }
            ids.sort_unstable();
            ids.dedup();
            if ids.len() < count as usize {
                warnings.push(format!("{key} = {} is not modelled: a flow uses all {count}", list.value));
            }
        }
        Ok(())
    }

    /// A synthetic flow as a job.
    fn job(&self, index: usize, keys: &mut Keys<'_>, warnings: &mut Vec<String>) -> Result<String, String> {
        keys.one_of("Request_Size_Distribution", &["FIXED"])?;
        keys.skip("Variance_Request_Size");
        let bs = u64::from(keys.whole("Average_Request_Size", 1, 65_536)?) * LBA_BYTES;
        let part = keys.whole("Working_Set_Percentage", 1, 100)?;
        let size = self.blocks * u64::from(part) / 100 * LBA_BYTES / bs * bs;
        if size == 0 {
            return Err(format!(
                "Working_Set_Percentage = {part}: expected room for a request of {bs} bytes in it; the flow has {} blocks",
                self.blocks
            ));
        }
        let reads = keys.whole("Read_Percentage", 0, 100)?;
        let mut job = format!("[flow{index}]\n{}bs={bs}\n", directions(reads, keys)?);
        let aligned = keys.flag("Generated_Aligned_Addresses")?;
        let unit = keys.whole("Address_Alignment_Unit", 1, 65_536)?;
        let align = if aligned { u64::from(unit) * LBA_BYTES } else { LBA_BYTES };
        if align != bs {
            let _ = writeln!(job, "blockalign={align}");
        }
        if index > 0 {
            let first = index as u64 * self.blocks * LBA_BYTES;
            let _ = writeln!(job, "offset={}", first - first % align);
        }
        let _ = writeln!(job, "size={size}\n; MQSim draws addresses with replacement.\nnorandommap");
        job.push_str(&pace(reads, keys, warnings)?);
        let stop_ns = keys.whole_u64("Stop_Time")?;
        let requests = keys.whole_u64("Total_Requests_To_Generate")?;
        if stop_ns == 0 && requests == 0 {
            return Err("Stop_Time and Total_Requests_To_Generate are both 0: one must end the flow".into());
        }
        if stop_ns > 0 {
            let time = match stop_ns % 1_000_000_000 {
                0 => (stop_ns / 1_000_000_000).to_string(),
                _ => format!("{}us", stop_ns.div_ceil(1000)),
            };
            let _ = writeln!(job, "runtime={time}\ntime_based");
        }
        if requests > 0 {
            let _ = writeln!(job, "number_ios={requests}");
            if stop_ns == 0 {
                // Otherwise a job ends when it has moved as much as its working set has.
                let _ = writeln!(job, "io_size={}", requests.saturating_mul(bs));
            }
        }
        Ok(job)
    }
}

/// Options of the read share and the addresses.
fn directions(reads: u32, keys: &mut Keys<'_>) -> Result<String, String> {
    let hot = keys.whole("Percentage_of_Hot_Region", 0, 100)?;
    let distribution =
        keys.one_of("Address_Distribution", &["RANDOM_UNIFORM", "RANDOM_HOTCOLD", "STREAMING"])?;
    let rand = if distribution == "STREAMING" { "" } else { "rand" };
    let mut options = match reads {
        0 => format!("rw={rand}write\n"),
        100 => format!("rw={rand}read\n"),
        _ => format!("rw={rand}rw\nrwmixread={reads}\n"),
    };
    if distribution == "RANDOM_HOTCOLD" {
        if !(1..=99).contains(&hot) {
            return Err(format!("Percentage_of_Hot_Region = {hot}: expected 1 to 99 with RANDOM_HOTCOLD"));
        }
        // MQSim sends all but H % of the requests to the first H % of the addresses.
        let _ = writeln!(options, "random_distribution=zoned:{}/{hot}:{hot}/{}", 100 - hot, 100 - hot);
    }
    Ok(options)
}

/// Options of the pace of requests.
fn pace(reads: u32, keys: &mut Keys<'_>, warnings: &mut Vec<String>) -> Result<String, String> {
    let generator = keys.one_of("Synthetic_Generator_Type", &["QUEUE_DEPTH", "BANDWIDTH"])?;
    let depth = keys.whole("Average_No_of_Reqs_in_Queue", 0, 65_535)?;
    let intensity = keys.whole_u64("Intensity")?;
    if generator == "QUEUE_DEPTH" {
        return match depth {
            0 => Err("Average_No_of_Reqs_in_Queue = 0: expected 1 to 65535 with QUEUE_DEPTH".into()),
            _ => Ok(format!("iodepth={depth}\n")),
        };
    }
    if intensity == 0 {
        return Err("Intensity = 0: expected bytes per second above 0 with BANDWIDTH".into());
    }
    warnings.push(
        "Synthetic_Generator_Type = BANDWIDTH becomes rate= with iodepth=1024, not an open loop".into(),
    );
    // A rate is one of each direction.
    let rate = match reads {
        0 | 100 => intensity.to_string(),
        _ => {
            let of_reads = (u128::from(intensity) * u128::from(reads) / 100) as u64;
            format!("{},{}", of_reads.max(1), (intensity - of_reads).max(1))
        }
    };
    Ok(format!("iodepth=1024\nrate={rate}\nrate_process=poisson\n"))
}

/// One element whose children are keys.
#[derive(Debug)]
struct Keys<'a> {
    section: &'a str,
    line: u32,
    values: Vec<Value<'a>>,
    /// Names that were looked up, for suggestions.
    asked: Vec<String>,
}

/// A key with its value and line.
#[derive(Clone, Copy, Debug)]
struct Value<'a> {
    key: &'a str,
    value: &'a str,
    line: u32,
}

impl Value<'_> {
    fn wrong(&self, expected: &str) -> String {
        format!("{} = {}: expected {expected} (line {})", self.key, self.value, self.line)
    }
}

impl<'a> Keys<'a> {
    fn of(node: roxmltree::Node<'a, 'a>, sections: &[&str]) -> Result<Self, String> {
        let mut values: Vec<Value<'a>> = Vec::new();
        for child in elements(node) {
            let key = child.tag_name().name();
            if sections.contains(&key) {
                continue;
            }
            let value = Value { key, value: child.text().unwrap_or("").trim(), line: line(child) };
            if values.iter().any(|other| other.key == key) {
                return Err(format!(
                    "{key} stands twice in {} (line {})",
                    node.tag_name().name(),
                    value.line
                ));
            }
            values.push(value);
        }
        Ok(Self { section: node.tag_name().name(), line: line(node), values, asked: Vec::new() })
    }

    fn skip(&mut self, key: &str) {
        self.asked.push(key.to_owned());
        self.values.retain(|value| value.key != key);
    }

    /// Value of a key, which is not taken out.
    fn peek(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|value| value.key == key).map(|value| value.value)
    }

    fn text(&mut self, key: &str) -> Result<Value<'a>, String> {
        self.asked.push(key.to_owned());
        match self.values.iter().position(|value| value.key == key) {
            Some(at) => Ok(self.values.remove(at)),
            None => {
                let near = nearest(key, self.values.iter().map(|value| value.key));
                let hint = near.map_or(String::new(), |near| format!("; is `{near}` meant to be it?"));
                Err(format!("{key} is missing in {} (line {}){hint}", self.section, self.line))
            }
        }
    }

    fn one_of(&mut self, key: &str, valid: &[&'static str]) -> Result<&'static str, String> {
        let value = self.text(key)?;
        let found = valid.iter().find(|valid| **valid == value.value);
        found.copied().ok_or_else(|| value.wrong(&valid.join(" or ")))
    }

    fn flag(&mut self, key: &str) -> Result<bool, String> {
        Ok(self.one_of(key, &["true", "false"])? == "true")
    }

    fn whole(&mut self, key: &str, low: u32, high: u32) -> Result<u32, String> {
        let value = self.text(key)?;
        let number = value.value.parse().ok().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| value.wrong(&format!("a whole number from {low} to {high}")))
    }

    fn whole_u64(&mut self, key: &str) -> Result<u64, String> {
        let value = self.text(key)?;
        value.value.parse().map_err(|_| value.wrong("a whole number"))
    }

    fn real(&mut self, key: &str, low: f64, high: f64) -> Result<f64, String> {
        let value = self.text(key)?;
        let number = value.value.parse().ok().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| value.wrong(&format!("a number from {low} to {high}")))
    }

    /// Treats the keys that are left: they are known and not modelled, or mistakes.
    fn finish(self, ignored: &[Ignored], warnings: &mut Vec<String>) -> Result<(), String> {
        for value in &self.values {
            let Some((key, silent, reason)) = ignored.iter().find(|(key, ..)| *key == value.key) else {
                let known = self.asked.iter().map(String::as_str).chain(ignored.iter().map(|(key, ..)| *key));
                let near = nearest(value.key, known);
                let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                return Err(format!(
                    "unknown key {} in {} (line {}){hint}",
                    value.key, self.section, value.line
                ));
            };
            if value.value != *silent {
                warnings.push(format!("{key} = {} is not modelled: {reason}", value.value));
            }
        }
        Ok(())
    }
}

fn parse<'a>(xml: &'a str, root: &str) -> Result<roxmltree::Document<'a>, String> {
    let document = roxmltree::Document::parse(xml).map_err(|error| format!("not an XML file: {error}"))?;
    expect_name(document.root_element(), &[root])?;
    Ok(document)
}

fn elements<'a>(node: roxmltree::Node<'a, 'a>) -> impl Iterator<Item = roxmltree::Node<'a, 'a>> {
    node.children().filter(roxmltree::Node::is_element)
}

fn child<'a>(node: roxmltree::Node<'a, 'a>, name: &str) -> Result<roxmltree::Node<'a, 'a>, String> {
    elements(node)
        .find(|child| child.has_tag_name(name))
        .ok_or_else(|| format!("{name} is missing in {} (line {})", node.tag_name().name(), line(node)))
}

fn expect_name(node: roxmltree::Node<'_, '_>, names: &[&str]) -> Result<(), String> {
    let name = node.tag_name().name();
    if names.contains(&name) {
        return Ok(());
    }
    Err(format!("<{name}> has no meaning here: expected <{}> (line {})", names.join("> or <"), line(node)))
}

fn line(node: roxmltree::Node<'_, '_>) -> u32 {
    node.document().text_pos_at(node.range().start).row
}

#[cfg(test)]
mod tests;
