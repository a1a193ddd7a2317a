//! What distinguishes tiny devices from each other, and the configuration that follows from it.
//!
//! Place in the data flow: [`super`] has a table of shapes; [`super::drawn`] draws some.

use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_device::config::{
    Allocation, AppendConfig, BufferConfig, BufferMode, BusOrder, Cell, DemandConfig, Eviction, FaultConfig,
    FirmwareKind, FtlConfig, GcConfig, GeometryConfig, Metadata, Miss, OpenConfig, OrderConfig, PageTimes,
    PersistPolicy, PlacementConfig, RangeFlushSupport, ShareConfig, SuspendConfig, TimingConfig, Translation,
    WearConfig,
};
use flashweir_device::{DeviceConfig, Geometry};
use flashweir_ftl::{GcPolicy, Striping};

/// The properties that distinguish tiny devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) mode: BufferMode,
    pub(super) cell: Cell,
    /// Number of channels, of dies on each, and of planes in each die.
    pub(super) parallel: [u32; 3],
    pub(super) blocks_per_plane: u32,
    pub(super) pages_per_block: u32,
    pub(super) unit_bytes: u64,
    pub(super) units_per_page: u64,
    pub(super) buffer_units: u64,
    pub(super) high_water: f64,
    pub(super) allocation: Allocation,
    pub(super) hot_cold: bool,
    pub(super) program_fail: f64,
    pub(super) range_flush: RangeFlushSupport,
    pub(super) order: PersistPolicy,
    pub(super) fuse_epochs: u32,
    /// Time that the buffer takes for the data of a command, in microseconds.
    pub(super) access_us: u64,
    /// Number of free erase blocks above the reserve below which a plane already starts garbage collection.
    pub(super) eager_blocks: u32,
    pub(super) erase_fail: f64,
    pub(super) endurance: u32,
    /// Difference of erase counts at which static wear-levelling begins.
    pub(super) wear_apart: u32,
    pub(super) program_us: u64,
    pub(super) habit: Habit,
    /// Block layer between the host and the device.
    pub(super) layer: Option<Layer>,
    /// For a map on the medium: units mapped per translation page, pages in the cache, and the requests that a miss
    /// blocks.
    pub(super) map: Option<(u32, u64, Miss)>,
    /// Percentage points of over-provisioning above the least that is valid.
    pub(super) spare_percent: u32,
    /// Entries in the table of virtual pages; 0 is a device without SHARE.
    pub(super) share: u32,
    /// Records of changes of the map that an NVRAM holds; 0 without one.
    pub(super) nvram: u32,
    /// Placement handles.
    pub(super) handles: u8,
    pub(super) knobs: Knobs,
}

/// What a user may set on any device, and what the rows of the table leave as it comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knobs {
    pub(super) gc: GcPolicy,
    pub(super) choices: u32,
    pub(super) preemptible: bool,
    /// Dynamic wear-levelling.
    pub(super) levels: bool,
    pub(super) factory_bad: f64,
    pub(super) eviction: Option<Eviction>,
    /// Program and erase suspend; else only devices of two bits per cell have it.
    pub(super) suspend: Option<[bool; 2]>,
    pub(super) bus_order: BusOrder,
    pub(super) multi_plane: bool,
    pub(super) die_interleaving: bool,
    pub(super) exclusive_flush: bool,
    /// Units that the capacitor saves, if not all.
    pub(super) protected_units: Option<u64>,
    pub(super) buffer_bytes_per_s: u64,
    pub(super) striping: Option<Striping>,
}

impl Knobs {
    const AS_IT_COMES: Self = Self {
        gc: GcPolicy::Greedy,
        choices: 8,
        preemptible: true,
        levels: true,
        factory_bad: 0.0,
        eviction: None,
        suspend: None,
        bus_order: BusOrder::DataFirst,
        multi_plane: true,
        die_interleaving: true,
        exclusive_flush: false,
        protected_units: None,
        buffer_bytes_per_s: 0,
        striping: None,
    };
}

/// Additional operations of a device's history, beyond those that its features call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Plain,
    /// Range flushes of up to four overlapping ranges and of up to five tags; deallocations across the ends of such
    /// ranges.
    Wide,
    /// Commands longer than the buffer, and many reads.
    Long,
    /// A stream that writes only at the beginning of each boot; its epoch stays open.
    FallsSilent,
}

/// Block layers in front of tiny devices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer {
    /// Barriers, one queue, in the order of the requests.
    Ordered,
    /// Barriers, one queue, sorted by address; a barrier closes the queue.
    Sorted,
    /// Epoch numbers with the commands, three queues.
    Queues,
    /// Waits and flushes between epochs.
    Flushes,
    /// Waits between epochs.
    Waits,
}

/// The shape of `tiny-d1`.
pub(super) const PLAIN: Shape = Shape {
    name: "tiny-d1",
    mode: BufferMode::WriteBack,
    cell: Cell::Slc,
    parallel: [2, 1, 1],
    blocks_per_plane: 14,
    pages_per_block: 8,
    unit_bytes: 512,
    units_per_page: 2,
    buffer_units: 8,
    high_water: 0.5,
    allocation: Allocation::Static,
    hot_cold: true,
    program_fail: 0.0,
    range_flush: RangeFlushSupport::None,
    order: PersistPolicy::None,
    fuse_epochs: 1,
    access_us: 0,
    eager_blocks: 1,
    erase_fail: 0.0,
    endurance: 0,
    wear_apart: 100,
    program_us: 100,
    habit: Habit::Plain,
    layer: None,
    map: None,
    spare_percent: 0,
    share: 0,
    nvram: 0,
    handles: 1,
    knobs: Knobs::AS_IT_COMES,
};

impl Shape {
    /// Returns the device with the least valid over-provisioning, so that garbage collection is frequent.
    pub(super) fn config(&self) -> DeviceConfig {
        self.valid_config().expect("enough over-provisioning makes it valid")
    }

    /// The same; `None` if no over-provisioning makes it valid.
    pub(super) fn valid_config(&self) -> Option<DeviceConfig> {
        let with = |percent: u32| self.config_with(f64::from(percent) / 100.0);
        let least = (40..90).find(|percent| with(*percent).validate().is_ok())?;
        let mut config = with(least + self.spare_percent);
        config.validate().ok()?;
        if let Some((_, cached, _)) = self.map {
            let share = (cached as f64 + 0.5) / Geometry::new(&config).map_pages as f64;
            config.ftl.demand.cached = share.min(1.0);
        }
        Some(config)
    }

    /// Whether erase blocks fail.
    pub(super) fn wears_out(&self) -> bool {
        self.program_fail > 0.0 || self.erase_fail > 0.0 || self.endurance > 0
    }

    pub(super) fn config_with(&self, over_provisioning: f64) -> DeviceConfig {
        let [channels, dies_per_chip, planes_per_die] = self.parallel;
        let page_bytes = self.unit_bytes * self.units_per_page;
        let us = Duration::from_micros;
        let knobs = &self.knobs;
        let reserve_blocks = 2 + u32::from(self.wears_out());
        let program = match self.cell {
            Cell::Slc => PageTimes::Same(us(self.program_us)),
            cell => PageTimes::Each((1..=u64::from(cell.pages_per_wordline())).map(|i| us(60 * i)).collect()),
        };
        let (entries, _, miss) = self.map.unwrap_or((1, 0, Miss::HoldsAll));
        DeviceConfig {
            name: self.name.into(),
            source: "made for the crash laboratory".into(),
            firmware: FirmwareKind::Page,
            geometry: GeometryConfig {
                channels,
                chips_per_channel: 1,
                dies_per_chip,
                planes_per_die,
                blocks_per_plane: self.blocks_per_plane,
                pages_per_block: self.pages_per_block,
                page_bytes: Bytes(page_bytes),
                unit_bytes: Bytes(self.unit_bytes),
            },
            timing: TimingConfig {
                cell: self.cell,
                read: PageTimes::Same(us(20)),
                program,
                erase: us(350),
                bus_bytes_per_s: 100_000_000,
                command: [Duration::from_nanos(300); 3],
                command_next_plane: [Duration::from_nanos(300); 3],
                bus_order: knobs.bus_order,
                multi_plane: knobs.multi_plane,
                die_interleaving: knobs.die_interleaving,
                suspend: knobs.suspend.or((self.cell == Cell::Mlc).then_some([true; 2])).map(
                    |[program, erase]| SuspendConfig { program, erase, latency: us(5), max_per_operation: 2 },
                ),
            },
            ftl: FtlConfig {
                translation: if self.map.is_some() {
                    Translation::DemandCached
                } else {
                    Translation::Resident
                },
                allocation: self.allocation,
                striping: knobs.striping.unwrap_or_default(),
                over_provisioning,
                gc: GcConfig {
                    policy: knobs.gc,
                    choices: knobs.choices,
                    preemptible: knobs.preemptible,
                    hot_cold: self.hot_cold,
                    start_below_blocks: reserve_blocks + self.eager_blocks,
                    reserve_blocks,
                },
                wear: WearConfig { static_threshold: self.wear_apart, dynamic: knobs.levels },
                metadata: Metadata::Log,
                demand: DemandConfig { entries, miss, ..DemandConfig::default() },
                share: ShareConfig { pages: self.share, batch: 64, nvram_records: self.nvram },
                placement: PlacementConfig { handles: self.handles },
            },
            append: AppendConfig::default(),
            open: OpenConfig::default(),
            buffer: BufferConfig {
                mode: self.mode,
                capacity: Bytes(self.buffer_units * self.unit_bytes),
                high_water: self.high_water,
                low_water: self.high_water / 2.0,
                eviction: knobs.eviction.unwrap_or(if self.hot_cold {
                    Eviction::Fifo
                } else {
                    Eviction::Lru
                }),
                range_flush: self.range_flush,
                access_latency: us(self.access_us),
                exclusive_flush: knobs.exclusive_flush,
                protected: knobs.protected_units.map(|units| Bytes(units * self.unit_bytes)),
                bytes_per_s: knobs.buffer_bytes_per_s,
            },
            order: OrderConfig {
                policy: self.order,
                fuse_epochs: self.fuse_epochs,
                ..OrderConfig::default()
            },
            faults: FaultConfig {
                program_fail: self.program_fail,
                erase_fail: self.erase_fail,
                endurance: self.endurance,
                factory_bad: knobs.factory_bad,
                paired_page_loss: self.cell != Cell::Slc,
                ..FaultConfig::default()
            },
            link: LinkConfig::nvme(),
        }
    }
}
