//! The configuration of a device: typed, validated once, with errors that name key, value and range.

use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_ftl::{GcPolicy, Striping};
use serde::{Deserialize, Serialize};

pub use flashweir_ftl::epochs::PersistPolicy;

/// A whole device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Name, as shown in reports.
    pub name: String,
    /// One line that says what the device stands for and where the parameters come from.
    #[serde(default)]
    pub source: String,
    /// The kind of firmware.
    #[serde(default, skip_serializing_if = "FirmwareKind::is_page")]
    pub firmware: FirmwareKind,
    /// Counts and sizes of the medium.
    pub geometry: GeometryConfig,
    /// Times of the medium.
    pub timing: TimingConfig,
    /// Map, allocation, garbage collection and wear-levelling.
    #[serde(default)]
    pub ftl: FtlConfig,
    /// Segments.
    #[serde(default, skip_serializing_if = "AppendConfig::is_default")]
    pub append: AppendConfig,
    /// The open channel.
    #[serde(default, skip_serializing_if = "OpenConfig::is_default")]
    pub open: OpenConfig,
    /// The write buffer.
    #[serde(default)]
    pub buffer: BufferConfig,
    /// Streams and epochs.
    #[serde(default)]
    pub order: OrderConfig,
    /// Faults of the medium.
    #[serde(default)]
    pub faults: FaultConfig,
    /// The link to the host.
    #[serde(default = "LinkConfig::nvme")]
    pub link: LinkConfig,
}

/// The firmware of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirmwareKind {
    /// Page-mapped: the map is in the device, and hosts see sectors.
    #[default]
    Page,
    /// Append: a map of whole blocks and no GC; hosts write segments in order and deallocate them (append-segments §3).
    Append,
    /// Page-mapped and append at once, on one pool of blocks (append-segments §3.10): hosts see sectors in one namespace and segments in
    /// another.
    PageAndAppend,
    /// Open channel: no map; hosts see physical units and erase blocks themselves (open-channel §6).
    OpenChannel,
}

impl FirmwareKind {
    /// Whether a page namespace is all that hosts see.
    pub fn is_page(&self) -> bool {
        *self == Self::Page
    }

    /// Whether hosts see a page namespace.
    pub fn has_pages(&self) -> bool {
        matches!(self, Self::Page | Self::PageAndAppend)
    }

    /// Whether hosts see an append namespace.
    pub fn has_segments(&self) -> bool {
        matches!(self, Self::Append | Self::PageAndAppend)
    }
}

/// Counts and sizes of the medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometryConfig {
    /// Channels (buses).
    pub channels: u32,
    /// Chips on each channel ("ways").
    pub chips_per_channel: u32,
    /// Dies in each chip.
    pub dies_per_chip: u32,
    /// Planes in each die.
    pub planes_per_die: u32,
    /// Erase blocks in each plane.
    pub blocks_per_plane: u32,
    /// Pages in each block.
    pub pages_per_block: u32,
    /// Data bytes of a page.
    pub page_bytes: Bytes,
    /// Bytes of a mapping unit; a page holds a whole number of them.
    #[serde(default = "default_unit")]
    pub unit_bytes: Bytes,
}

fn default_unit() -> Bytes {
    Bytes::kib(4)
}

/// Bits per cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    /// One bit; each word line is one page.
    Slc,
    /// Two bits; pages 2k and 2k + 1 share a word line.
    Mlc,
    /// Three bits.
    Tlc,
    /// Four bits.
    Qlc,
}

impl Cell {
    /// Pages that share one word line.
    pub fn pages_per_wordline(self) -> u32 {
        match self {
            Self::Slc => 1,
            Self::Mlc => 2,
            Self::Tlc => 3,
            Self::Qlc => 4,
        }
    }
}

/// One time for all pages, or one for each page of a word line (LSB, CSB, MSB …).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PageTimes {
    /// The same for all.
    Same(Duration),
    /// By position in the word line.
    Each(Vec<Duration>),
}

impl PageTimes {
    /// Returns these times, each longer by `fraction`.
    pub fn longer_by(&self, fraction: f64) -> Self {
        let longer =
            |time: &Duration| Duration::from_nanos((time.as_nanos() as f64 * (1.0 + fraction)) as u64);
        match self {
            Self::Same(time) => Self::Same(longer(time)),
            Self::Each(times) => Self::Each(times.iter().map(longer).collect()),
        }
    }

    /// The time of page `page` of a block.
    #[inline]
    pub fn of(&self, page: u32) -> Duration {
        match self {
            Self::Same(time) => *time,
            Self::Each(times) => times[page as usize % times.len()],
        }
    }
}

/// Times of the medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingConfig {
    /// Bits per cell.
    pub cell: Cell,
    /// Array time of a read.
    pub read: PageTimes,
    /// Array time of a program.
    pub program: PageTimes,
    /// Array time of an erase.
    pub erase: Duration,
    /// Bytes per second on a channel.
    pub bus_bytes_per_s: u64,
    /// Bus time of the command and address cycles of a read, a program, an erase.
    #[serde(default)]
    pub command: [Duration; 3],
    /// Additional bus time for each further plane of a multi-plane read, program, erase.
    #[serde(default)]
    pub command_next_plane: [Duration; 3],
    /// Who gets a free channel if both data and commands wait for it.
    #[serde(default)]
    pub bus_order: BusOrder,
    /// Whether planes of one die may work on the same page offset at once.
    #[serde(default = "yes")]
    pub multi_plane: bool,
    /// Whether dies of one chip work independently; otherwise a chip takes one command at a time.
    #[serde(default = "yes")]
    pub die_interleaving: bool,
    /// Suspend, with which a read interrupts a program or an erase; `None` if the flash has none.
    #[serde(default)]
    pub suspend: Option<SuspendConfig>,
}

fn yes() -> bool {
    true
}

/// What goes first on a channel for which both wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusOrder {
    /// Data that were read, as in MQSim. The dies of a channel then tend to read in step: none begins anew before all have sent.
    #[default]
    DataFirst,
    /// Commands: a die reads while others send, so a channel whose dies read enough is always in use.
    CommandsFirst,
}

/// Program and erase suspend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspendConfig {
    /// Whether reads interrupt programs.
    pub program: bool,
    /// Whether reads interrupt erases.
    pub erase: bool,
    /// Time from the suspend command until the die takes the read.
    pub latency: Duration,
    /// Most interruptions of one operation, so that it ends.
    pub max_per_operation: u32,
}

/// How a page write finds its plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// To the plane that striping gives.
    Static,
    /// To the next idle die.
    Dynamic,
}

/// The metadata that the device keeps on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// Map checkpoints and a log: the device recovers from a power cut.
    Log,
    /// Nothing: an ideal map that costs nothing and does not survive (for comparison with simulators).
    None,
}

/// Where the map from logical to physical units is kept while the device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Translation {
    /// All of it is in the memory of the device.
    #[default]
    Resident,
    /// On the medium, in translation pages; the memory of the device holds some of them (DFTL).
    DemandCached,
}

impl Translation {
    fn is_resident(&self) -> bool {
        *self == Self::Resident
    }
}

/// What the miss of a translation page holds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Miss {
    /// All commands behind it, whatever they ask for (append-segments §7.2).
    #[default]
    HoldsAll,
    /// Only the command, or the page of host data, that misses.
    HoldsOwn,
}

/// The cache of a map that is on the medium. Not used where the map is resident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DemandConfig {
    /// Fraction of all translation pages that the cache holds, above 0 and at most 1; at least one page.
    pub cached: f64,
    /// Mapping units that one translation page maps; a translation page is one flash page.
    pub entries: u32,
    /// What a miss holds up.
    pub miss: Miss,
}

impl Default for DemandConfig {
    fn default() -> Self {
        Self { cached: 0.2, entries: 128, miss: Miss::HoldsAll }
    }
}

impl DemandConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Map, allocation, garbage collection and wear-levelling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FtlConfig {
    /// Whether the map is resident or cached on demand.
    #[serde(skip_serializing_if = "Translation::is_resident")]
    pub translation: Translation,
    /// The cache, where the map is cached on demand.
    #[serde(skip_serializing_if = "DemandConfig::is_default")]
    pub demand: DemandConfig,
    /// Whether allocation is static or dynamic.
    pub allocation: Allocation,
    /// Order of the dimensions under static allocation.
    pub striping: Striping,
    /// Fraction of the physical capacity that the host does not see.
    pub over_provisioning: f64,
    /// Garbage collection.
    pub gc: GcConfig,
    /// Wear-levelling.
    pub wear: WearConfig,
    /// Whether the map survives a power cut.
    pub metadata: Metadata,
    /// SHARE.
    #[serde(skip_serializing_if = "ShareConfig::is_default")]
    pub share: ShareConfig,
    /// Placement by hosts (NVMe FDP).
    #[serde(skip_serializing_if = "PlacementConfig::is_default")]
    pub placement: PlacementConfig,
}

/// Placement handles, by which hosts say which data belong together (commands §4.14).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementConfig {
    /// Number of handles, each with a write frontier of its own in each plane; 1 is a device without placement.
    pub handles: u8,
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self { handles: 1 }
    }
}

impl PlacementConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl FtlConfig {
    /// Blocks of a plane that may be open at a time: one of each handle, and one of GC if it has a frontier of its own.
    pub(crate) fn open_blocks(&self) -> u32 {
        u32::from(self.placement.handles) + u32::from(self.gc.hot_cold)
    }
}

/// Most owners of all virtual pages together, for each virtual page that the table can hold (share §3.9).
pub const OWNERS_PER_PAGE: usize = 2;

/// SHARE, the command by which pages take over the contents of others (share §2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareConfig {
    /// Most units that are shared at a time; 0 is a device without the command. Twice as many pages may have them. Where the table is
    /// full, the device copies, or refuses what a checkpoint could not name.
    pub pages: u32,
    /// Most mapping units that one command remaps.
    pub batch: u32,
    /// Records that an NVRAM beside the flash holds, 24 bytes each: changes of the map are durable in it when they are accepted, and go to
    /// the flash page by page, or when it is full. A SHARE takes one and one for each unit (with a demand-cached map two), a
    /// deallocation one. 0: none ([share §4.4](../../../specs/share.md#4-remap-log)).
    #[serde(skip_serializing_if = "flashweir_core::is_zero")]
    pub nvram_records: u32,
}

impl Default for ShareConfig {
    fn default() -> Self {
        Self { pages: 0, batch: 512, nvram_records: 0 }
    }
}

impl ShareConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for FtlConfig {
    fn default() -> Self {
        Self {
            translation: Translation::Resident,
            demand: DemandConfig::default(),
            allocation: Allocation::Static,
            striping: Striping::default(),
            over_provisioning: 0.11,
            gc: GcConfig::default(),
            wear: WearConfig::default(),
            metadata: Metadata::Log,
            share: ShareConfig::default(),
            placement: PlacementConfig::default(),
        }
    }
}

/// Garbage collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GcConfig {
    /// How victims are chosen.
    pub policy: GcPolicy,
    /// The d of the d-choices policy.
    pub choices: u32,
    /// Whether the survivors of GC get a write frontier of their own.
    pub hot_cold: bool,
    /// Whether GC and host writes take turns on a die. Then a plane that collects takes host writes at the pace at which GC gains
    /// room, so that they never stop for a whole block. Otherwise GC goes first whenever it has work.
    pub preemptible: bool,
    /// GC of a plane starts when the plane has fewer free blocks than this, as long as GC gains room.
    pub start_below_blocks: u32,
    /// Free blocks of each plane that only GC may use.
    pub reserve_blocks: u32,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            policy: GcPolicy::Greedy,
            choices: 8,
            hot_cold: true,
            preemptible: true,
            start_below_blocks: 4,
            reserve_blocks: 2,
        }
    }
}

/// Wear-levelling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WearConfig {
    /// Whether a block that is opened is the least worn free one.
    pub dynamic: bool,
    /// Moves the data of the least worn block when it lags the most worn one by more erases than this; 0 is off.
    pub static_threshold: u32,
}

impl Default for WearConfig {
    fn default() -> Self {
        Self { dynamic: true, static_threshold: 100 }
    }
}

/// Which sectors of a segment may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppendMode {
    /// The next one, as in a zone of NVMe ZNS.
    Sequential,
    /// Any that was not written since the last deallocation, as in the paper.
    WriteOnce,
}

/// When blocks of a deallocated segment are erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EraseTime {
    /// As soon as the record of the deallocation is durable.
    Background,
    /// When another segment gets the block.
    FirstWrite,
}

/// The append namespace (append-segments §3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AppendConfig {
    /// Segments that a host sees. 0: as many as there is room for. With `firmware = "page-and-append"` it is their number that decides how
    /// much is left to the page namespace, so there it has to be given.
    pub segments: u32,
    /// Blocks of a segment, each of a plane of its own; 0 is one of each plane. Fewer than all planes make narrow segments, which take
    /// turns on the planes.
    pub lanes: u32,
    /// Which sectors may be written.
    pub mode: AppendMode,
    /// Segments that may be written in part at a time; 0 is no limit.
    pub max_open: u32,
    /// Blocks of each plane that no segment has: for blocks that go bad, and for erases that are under way. With `firmware =
    /// "page-and-append"` segments may have that many more at a time than they hold.
    pub spare_blocks: u32,
    /// When blocks are erased.
    pub erase: EraseTime,
    /// Moves the least worn block of a full segment when it lags the most worn free one by more erases than this; 0 is off.
    pub static_threshold: u32,
    /// Fraction of `buffer.capacity` that segments have where a page namespace has the rest; used with `firmware = "page-and-append"`
    /// only.
    #[serde(skip_serializing_if = "is_half")]
    pub buffer_share: f64,
}

fn is_half(fraction: &f64) -> bool {
    *fraction == 0.5
}

impl Default for AppendConfig {
    fn default() -> Self {
        Self {
            segments: 0,
            lanes: 0,
            mode: AppendMode::Sequential,
            max_open: 0,
            spare_blocks: 4,
            erase: EraseTime::Background,
            static_threshold: 100,
            buffer_share: 0.5,
        }
    }
}

impl AppendConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The generation of the interface of an open channel (open-channel §6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenVersion {
    /// OCSSD 1.2: a table of bad blocks, and a device that serves the last units of an open chunk from its memory.
    #[serde(rename = "1.2")]
    V12,
    /// OCSSD 2.0: chunks with states, copies inside of the device, and a host that serves those units.
    #[default]
    #[serde(rename = "2.0")]
    V20,
}

/// The blocks of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChunkSpan {
    /// One block.
    #[default]
    Plane,
    /// One block of each plane of a die; pages of the chunk take turns on the planes.
    Die,
}

/// When the write pointer of a chunk moves (open-channel §6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerMove {
    /// When a write is accepted, so that writes of a chunk may be under way together.
    #[default]
    Accepted,
    /// When the programs of a write have ended; until then the chunk takes no other write.
    Programmed,
}

/// The open channel (open-channel §6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenConfig {
    /// Generation of the interface.
    pub version: OpenVersion,
    /// Blocks of a chunk.
    pub chunk: ChunkSpan,
    /// Flash pages of a chunk in the smallest write. With 4 pages of 16 KiB, a device with an indirection unit of 64 KiB.
    pub write_pages: u32,
    /// Flash pages in the write that is best for speed, a multiple of `write_pages`; 0: as the smallest.
    pub write_best_pages: u32,
    /// Mapping units at the end of an open chunk that its flash does not give back (`mw_cunits`). With version 1.2 the device serves
    /// them from its memory, with version 2.0 it refuses their reads.
    pub cached_units: u32,
    /// Chunks that may be open at a time; 0 is no limit.
    pub max_open: u32,
    /// When write pointers move.
    pub pointer: PointerMove,
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl OpenConfig {
    /// OCSSD 2.0 with chunks of one block.
    pub const DEFAULT: Self = Self {
        version: OpenVersion::V20,
        chunk: ChunkSpan::Plane,
        write_pages: 1,
        write_best_pages: 0,
        cached_units: 0,
        max_open: 0,
        pointer: PointerMove::Accepted,
    };

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a completed write promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferMode {
    /// Writes complete when they are on the medium (device kind D0).
    WriteThrough,
    /// Writes complete in the buffer, which a power cut empties (D1).
    WriteBack,
    /// Writes complete in the buffer, which a capacitor saves (D2).
    PowerLossProtected,
}

/// How the device answers a range flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RangeFlushSupport {
    /// The device does not know the command.
    None,
    /// The device makes durable what was asked for, and what that depends on.
    Selective,
    /// The device makes everything durable, as for a FLUSH: what the same host would get from a device without the command.
    Whole,
}

/// Which dirty unit leaves the buffer first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The one that was written first.
    Fifo,
    /// The one that has not been rewritten for the longest time.
    Lru,
}

/// The write buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BufferConfig {
    /// What a completed write promises.
    pub mode: BufferMode,
    /// Size of the buffer.
    pub capacity: Bytes,
    /// Background writing starts above this fraction of dirty units.
    pub high_water: f64,
    /// Background writing stops at this fraction.
    pub low_water: f64,
    /// Which dirty unit leaves the buffer first.
    pub eviction: Eviction,
    /// Bytes per second of the buffer memory; 0 is unlimited.
    pub bytes_per_s: u64,
    /// Fixed time of one access to the buffer memory.
    pub access_latency: Duration,
    /// Bytes that the capacitor can save at a power cut; less than the capacity makes the device a D1.
    pub protected: Option<Bytes>,
    /// How the device answers a range flush.
    pub range_flush: RangeFlushSupport,
    /// Whether a FLUSH or a range flush keeps all other commands, even reads, from the buffer until it ends. The RFLUSH paper's
    /// released prototype does so with one semaphore (range-flush §7.7); no real device should.
    pub exclusive_flush: bool,
}

impl Default for BufferConfig {
    fn default() -> Self {
        Self {
            mode: BufferMode::WriteBack,
            capacity: Bytes::mib(32),
            high_water: 0.9,
            low_water: 0.85,
            eviction: Eviction::Fifo,
            bytes_per_s: 0,
            access_latency: Duration::ZERO,
            protected: None,
            range_flush: RangeFlushSupport::None,
            exclusive_flush: false,
        }
    }
}

/// Streams and epochs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderConfig {
    /// How the device keeps the order of epochs.
    pub policy: PersistPolicy,
    /// Number of epochs that may become one transaction, so that a page that is rewritten within them is written once
    /// (contract §6.4); 1 fuses nothing. Only for `transactional`.
    pub fuse_epochs: u32,
    /// Fraction by which programs take longer: what the barrier paper charges a device whose firmware lacks the command
    /// (barriers §2.6).
    pub penalty: f64,
}

impl Default for OrderConfig {
    fn default() -> Self {
        Self { policy: PersistPolicy::None, fuse_epochs: 1, penalty: 0.0 }
    }
}

/// Faults of the medium.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Fraction of blocks that are bad from the factory.
    pub factory_bad: f64,
    /// Probability that a program fails; the block is retired.
    pub program_fail: f64,
    /// Probability that an erase fails; the block is retired.
    pub erase_fail: f64,
    /// Erases after which a block fails; 0 is never.
    pub endurance: u32,
    /// Whether a power cut during a program may destroy the pages of the same word line that were written before.
    pub paired_page_loss: bool,
    /// Open channel: probability that a chunk goes on with its next write unit after a failed program; otherwise it is closed early.
    #[serde(skip_serializing_if = "is_zero_fraction")]
    pub chunk_goes_on: f64,
    /// Open channel: probability that the read of a page needs so much error correction that the chunk should be copied soon.
    #[serde(skip_serializing_if = "is_zero_fraction")]
    pub refresh: f64,
}

fn is_zero_fraction(value: &f64) -> bool {
    *value == 0.0
}

impl DeviceConfig {
    /// Whether epochs have to be kept in order: a device that loses nothing at a power cut keeps their order without effort.
    pub fn keeps_epochs(&self) -> bool {
        let protected = self.buffer.mode == BufferMode::PowerLossProtected && self.completion_is_durable();
        self.order.policy != PersistPolicy::None && !protected
    }

    /// Mapping units of the buffer that the page namespace has, and the append namespace.
    pub fn buffer_units(&self) -> [u32; 2] {
        let all = (self.buffer.capacity.0 / self.geometry.unit_bytes.0) as u32;
        match self.firmware {
            FirmwareKind::PageAndAppend => {
                let segments = (f64::from(all) * self.append.buffer_share) as u32;
                [all - segments.min(all), segments.min(all)]
            }
            FirmwareKind::Append => [0, all],
            FirmwareKind::Page | FirmwareKind::OpenChannel => [all, 0],
        }
    }

    /// Whether everything that completed survives a power cut without a flush.
    pub fn completion_is_durable(&self) -> bool {
        match self.buffer.mode {
            BufferMode::WriteThrough => true,
            BufferMode::WriteBack => false,
            BufferMode::PowerLossProtected => {
                self.buffer.protected.is_none_or(|protected| protected >= self.buffer.capacity)
            }
        }
    }
}
