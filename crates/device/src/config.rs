//! What a device is made of: typed, validated once, with errors that name key, value and range.

use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_ftl::{GcPolicy, Striping};
use serde::{Deserialize, Serialize};

pub use flashweir_ftl::epochs::PersistPolicy;

/// A whole device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Name, as reports show it.
    pub name: String,
    /// One line on what the device stands for, and where the parameters come from.
    #[serde(default)]
    pub source: String,
    /// What runs on it.
    #[serde(default, skip_serializing_if = "FirmwareKind::is_page")]
    pub firmware: FirmwareKind,
    /// Counts and sizes of the medium.
    pub geometry: GeometryConfig,
    /// Times of the medium.
    pub timing: TimingConfig,
    /// Map, allocation, collection, wear.
    #[serde(default)]
    pub ftl: FtlConfig,
    /// The write buffer.
    #[serde(default)]
    pub buffer: BufferConfig,
    /// Streams and epochs.
    #[serde(default)]
    pub order: OrderConfig,
    /// What goes wrong on the medium.
    #[serde(default)]
    pub faults: FaultConfig,
    /// The link to the host.
    #[serde(default = "LinkConfig::nvme")]
    pub link: LinkConfig,
}

/// What runs on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirmwareKind {
    /// A page map in the device: hosts see sectors.
    #[default]
    Page,
    /// No map: hosts see physical units and erase blocks themselves (open-channel §6).
    OpenChannel,
}

impl FirmwareKind {
    /// Whether hosts see a page namespace.
    pub fn is_page(&self) -> bool {
        *self == Self::Page
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
    /// All of them longer by `fraction`.
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
    /// Extra bus time for each further plane of a multi-plane read, program, erase.
    #[serde(default)]
    pub command_next_plane: [Duration; 3],
    /// Planes of one die may work on the same page offset at once.
    #[serde(default = "yes")]
    pub multi_plane: bool,
    /// Dies of one chip work independently; otherwise a chip takes one command at a time.
    #[serde(default = "yes")]
    pub die_interleaving: bool,
    /// A read interrupts a program or an erase.
    #[serde(default)]
    pub suspend: Option<SuspendConfig>,
}

fn yes() -> bool {
    true
}

/// Program and erase suspend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspendConfig {
    /// Reads interrupt programs.
    pub program: bool,
    /// Reads interrupt erases.
    pub erase: bool,
    /// From the suspend command until the die takes the read.
    pub latency: Duration,
    /// At most so many interruptions of one operation, so that it ends.
    pub max_per_operation: u32,
}

/// Where a page write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// To the plane that striping gives.
    Static,
    /// To the next idle die.
    Dynamic,
}

/// What the device keeps on the medium about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// Map checkpoints and a log: the device recovers from a power cut.
    Log,
    /// Nothing: an ideal map that costs nothing and does not survive (for comparison with simulators).
    None,
}

/// Where the map from logical to physical units is while the device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Translation {
    /// All of it in the memory of the device.
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

/// Whom the miss of a translation page holds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Miss {
    /// Everybody: commands behind it wait, whatever they ask for (append-segments §7.2).
    #[default]
    HoldsAll,
    /// The command, or the page of host data, that misses.
    HoldsOwn,
}

/// The cache of a map that is on the medium. It means nothing where the map is resident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DemandConfig {
    /// Part of all translation pages that the cache holds, above 0 and at most 1; one page at least.
    pub cached: f64,
    /// Mapping units that one translation page, which is one flash page, maps.
    pub entries: u32,
    /// Whom a miss holds up.
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

/// Map, allocation, collection, wear.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FtlConfig {
    /// Resident or cached on demand.
    #[serde(skip_serializing_if = "Translation::is_resident")]
    pub translation: Translation,
    /// The cache, where the map is cached on demand.
    #[serde(skip_serializing_if = "DemandConfig::is_default")]
    pub demand: DemandConfig,
    /// Static or dynamic.
    pub allocation: Allocation,
    /// Order of the dimensions under static allocation.
    pub striping: Striping,
    /// Fraction of the physical capacity that the host does not see.
    pub over_provisioning: f64,
    /// Garbage collection.
    pub gc: GcConfig,
    /// Wear-levelling.
    pub wear: WearConfig,
    /// What survives.
    pub metadata: Metadata,
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
        }
    }
}

/// Garbage collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GcConfig {
    /// How victims are chosen.
    pub policy: GcPolicy,
    /// The d of d-choices.
    pub choices: u32,
    /// Survivors get a write frontier of their own.
    pub hot_cold: bool,
    /// Collection and host writes take turns on a die, and a plane that collects takes host writes at the pace at
    /// which it gains room, so that they never stop for a whole block. Otherwise collection goes first whenever it
    /// has something to do.
    pub preemptible: bool,
    /// A plane collects when it has fewer free blocks, as long as that gains room.
    pub start_below_blocks: u32,
    /// Free blocks of each plane that only collection may use.
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
    /// Take the least worn free block.
    pub dynamic: bool,
    /// Move the least worn block's data when it lags the most worn one by more erases; 0 is off.
    pub static_threshold: u32,
}

impl Default for WearConfig {
    fn default() -> Self {
        Self { dynamic: true, static_threshold: 100 }
    }
}

/// What the buffer promises.
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

/// What the device does with a range flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RangeFlushSupport {
    /// It does not know the command.
    None,
    /// It makes durable what was asked for, and what that depends on.
    Selective,
    /// It makes everything durable, as for a FLUSH: what the same host would get from a device without the command.
    Whole,
}

/// Which dirty page is written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The one that was written first.
    Fifo,
    /// The one that was not rewritten for longest.
    Lru,
}

/// The write buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BufferConfig {
    /// What it promises.
    pub mode: BufferMode,
    /// Its size.
    pub capacity: Bytes,
    /// Background writing starts above this fraction of dirty units.
    pub high_water: f64,
    /// … and stops at this one.
    pub low_water: f64,
    /// Which dirty unit goes first.
    pub eviction: Eviction,
    /// Bytes per second of its memory; 0 is unlimited.
    pub bytes_per_s: u64,
    /// Fixed time of one access to its memory.
    pub access_latency: Duration,
    /// What the capacitor can save at a power cut; less than the capacity makes the device a D1.
    pub protected: Option<Bytes>,
    /// What it does with a range flush.
    pub range_flush: RangeFlushSupport,
    /// While a FLUSH or a range flush is under way no other command gets at the buffer, not even a read: what the one semaphore
    /// of the RFLUSH paper's released prototype does (range-flush §7.7), and nobody should want.
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
    /// How order is kept.
    pub policy: PersistPolicy,
    /// Epochs that may become one transaction, so that a page that is rewritten within them is written once (contract §6.4);
    /// 1 fuses nothing. Of `transactional` only.
    pub fuse_epochs: u32,
    /// Programs take longer by this fraction: what the barrier paper charges a device whose firmware lacks the command
    /// (barriers §2.6).
    pub penalty: f64,
}

impl Default for OrderConfig {
    fn default() -> Self {
        Self { policy: PersistPolicy::None, fuse_epochs: 1, penalty: 0.0 }
    }
}

/// What goes wrong on the medium.
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
    /// A cut during a program may destroy the pages of the same word line that were written before.
    pub paired_page_loss: bool,
}

impl DeviceConfig {
    /// Whether epochs have to be kept in order: a device that loses nothing at a cut does so without effort.
    pub fn keeps_epochs(&self) -> bool {
        let protected = self.buffer.mode == BufferMode::PowerLossProtected && self.completion_is_durable();
        self.order.policy != PersistPolicy::None && !protected
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
