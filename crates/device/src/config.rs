//! What a device is made of: typed, validated once, with errors that name key, value and range.

use crate::geometry::Geometry;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_ftl::{GcPolicy, Striping};
use serde::{Deserialize, Serialize};

/// A whole device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Name, as reports show it.
    pub name: String,
    /// One line on what the device stands for, and where the parameters come from.
    #[serde(default)]
    pub source: String,
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

/// Map, allocation, collection, wear.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FtlConfig {
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

/// How the epochs of a stream persist in their order (barriers §2.2, contract §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersistPolicy {
    /// The device knows no ordered commands.
    #[default]
    None,
    /// An epoch is written when all earlier ones of its stream are on the medium.
    InOrderWriteBack,
    /// Everything is written at once, and counts when a record in the map log says that its epochs are complete.
    Transactional,
    /// Everything is written at once; recovery counts the members of each epoch and discards what follows an incomplete
    /// one.
    InOrderRecovery,
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

/// A key of the configuration whose value is wrong.
fn bad<T>(key: &str, value: impl std::fmt::Display, expected: &str) -> Result<T, String> {
    Err(format!("{key} = {value}: expected {expected}"))
}

fn within(key: &str, value: u32, low: u32, high: u32) -> Result<(), String> {
    if (low..=high).contains(&value) { Ok(()) } else { bad(key, value, &format!("{low} to {high}")) }
}

fn fraction(key: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { bad(key, value, "0 to 1") }
}

impl DeviceConfig {
    /// Checks every key; the error names the key, its value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_geometry()?;
        self.validate_timing()?;
        self.validate_buffer()?;
        self.validate_order()?;
        self.link.validate()?;
        for (key, value) in [
            ("faults.factory_bad", self.faults.factory_bad),
            ("faults.program_fail", self.faults.program_fail),
            ("faults.erase_fail", self.faults.erase_fail),
        ] {
            if !(0.0..=0.5).contains(&value) {
                return bad(key, value, "0 to 0.5");
            }
        }
        self.validate_space()
    }

    fn validate_geometry(&self) -> Result<(), String> {
        let g = &self.geometry;
        within("geometry.channels", g.channels, 1, 256)?;
        within("geometry.chips_per_channel", g.chips_per_channel, 1, 64)?;
        within("geometry.dies_per_chip", g.dies_per_chip, 1, 16)?;
        within("geometry.planes_per_die", g.planes_per_die, 1, 8)?;
        within("geometry.blocks_per_plane", g.blocks_per_plane, 4, 65_536)?;
        within("geometry.pages_per_block", g.pages_per_block, 2, 16_384)?;
        let stations = g.chips_per_channel * g.dies_per_chip;
        if stations > 64 {
            return bad(
                "geometry.chips_per_channel × dies_per_chip",
                stations,
                "at most 64 dies on a channel",
            );
        }
        let (page, unit) = (g.page_bytes.0, g.unit_bytes.0);
        if !unit.is_multiple_of(LBA_BYTES) || !(512..=65_536).contains(&unit) {
            return bad("geometry.unit_bytes", g.unit_bytes, "a multiple of 512 bytes, 512 B to 64 KiB");
        }
        if page == 0 || !page.is_multiple_of(unit) || page / unit > 16 {
            return bad("geometry.page_bytes", g.page_bytes, "1 to 16 whole mapping units");
        }
        let blocks = u64::from(g.channels)
            * u64::from(stations)
            * u64::from(g.planes_per_die)
            * u64::from(g.blocks_per_plane);
        if blocks > u64::from(u32::MAX / 2) {
            return bad("geometry", format!("{blocks} blocks"), "at most 2,147,483,647 blocks");
        }
        Ok(())
    }

    fn validate_timing(&self) -> Result<(), String> {
        let t = &self.timing;
        for (key, times) in [("timing.read", &t.read), ("timing.program", &t.program)] {
            if let PageTimes::Each(each) = times
                && each.len() != t.cell.pages_per_wordline() as usize
            {
                let expected =
                    format!("one time or {} (one for each page of a word line)", t.cell.pages_per_wordline());
                return bad(key, format!("{} times", each.len()), &expected);
            }
        }
        if t.bus_bytes_per_s == 0 {
            return bad("timing.bus_bytes_per_s", 0, "1 or more");
        }
        if !self.geometry.pages_per_block.is_multiple_of(t.cell.pages_per_wordline())
            && self.faults.paired_page_loss
        {
            return bad(
                "geometry.pages_per_block",
                self.geometry.pages_per_block,
                "a multiple of the pages of a word line, because faults.paired_page_loss is on",
            );
        }
        Ok(())
    }

    fn validate_buffer(&self) -> Result<(), String> {
        let b = &self.buffer;
        fraction("buffer.high_water", b.high_water)?;
        fraction("buffer.low_water", b.low_water)?;
        if b.low_water > b.high_water {
            return bad(
                "buffer.low_water",
                b.low_water,
                &format!("at most buffer.high_water = {}", b.high_water),
            );
        }
        let page = self.geometry.page_bytes;
        if b.capacity.0 < page.0 {
            return bad("buffer.capacity", b.capacity, &format!("at least one page of {page}"));
        }
        if b.capacity.0 / self.geometry.unit_bytes.0 > 1 << 30 {
            return bad("buffer.capacity", b.capacity, "at most 2^30 mapping units");
        }
        Ok(())
    }

    fn validate_order(&self) -> Result<(), String> {
        let order = &self.order;
        if !(0.0..=1.0).contains(&order.penalty) {
            return bad("order.penalty", order.penalty, "0 to 1");
        }
        within("order.fuse_epochs", order.fuse_epochs, 1, 1 << 20)?;
        if order.fuse_epochs > 1 && order.policy != PersistPolicy::Transactional {
            return bad("order.fuse_epochs", order.fuse_epochs, "1, unless order.policy = \"transactional\"");
        }
        let needs_log = order.policy == PersistPolicy::Transactional;
        if needs_log && self.ftl.metadata == Metadata::None {
            return Err(
                "order.policy = \"transactional\": expected ftl.metadata = \"log\", which holds its records"
                    .into(),
            );
        }
        if order.policy != PersistPolicy::None && self.buffer.mode == BufferMode::WriteThrough {
            return Err("order.policy: expected \"none\" where buffer.mode = \"write-through\", which has nothing to order".into());
        }
        Ok(())
    }

    /// Whether epochs have to be kept in order: a device that loses nothing at a cut does so without effort.
    pub fn keeps_epochs(&self) -> bool {
        let protected = self.buffer.mode == BufferMode::PowerLossProtected && self.completion_is_durable();
        self.order.policy != PersistPolicy::None && !protected
    }

    fn validate_space(&self) -> Result<(), String> {
        let f = &self.ftl;
        if !(0.0..=0.9).contains(&f.over_provisioning) {
            return bad("ftl.over_provisioning", f.over_provisioning, "0 to 0.9");
        }
        within("ftl.gc.choices", f.gc.choices, 1, 1024)?;
        within("ftl.gc.reserve_blocks", f.gc.reserve_blocks, 1, 1024)?;
        if f.gc.start_below_blocks <= f.gc.reserve_blocks {
            let expected = format!("more than ftl.gc.reserve_blocks = {}", f.gc.reserve_blocks);
            return bad("ftl.gc.start_below_blocks", f.gc.start_below_blocks, &expected);
        }
        // A victim without anything to reclaim must fit behind what an earlier one left unused.
        let waste = Geometry::collection_waste_pages(self);
        let reserve = 1 + u32::from(waste > 0) + u32::from(self.faults.program_fail > 0.0);
        if f.gc.reserve_blocks < reserve {
            return bad(
                "ftl.gc.reserve_blocks",
                f.gc.reserve_blocks,
                &format!(
                    "at least {reserve}: pages of several units, shared word lines and failing programs need one each"
                ),
            );
        }
        let geometry = Geometry::new(self);
        let wasted =
            f64::from(self.geometry.blocks_per_plane * waste) / f64::from(self.geometry.pages_per_block);
        // What is not stable keeps what it replaces, and planes may have twice their share of it.
        let kept = match self.keeps_epochs() && self.order.policy != PersistPolicy::InOrderWriteBack {
            true => 2 * self.buffer.capacity.0 / geometry.unit_bytes + geometry.counted_members_max(),
            false => 0,
        };
        let share = 2.0_f64.min(f64::from(geometry.planes())) / f64::from(geometry.planes());
        let kept = kept as f64 / f64::from(geometry.units_per_block()) * share;
        let needed = f64::from(f.gc.reserve_blocks + 2 + u32::from(f.gc.hot_cold)) + wasted + kept;
        let spare = geometry.spare_blocks_per_plane_min();
        if spare < needed {
            let epochs = if kept > 0.0 { " and epochs" } else { "" };
            return bad(
                "ftl.over_provisioning",
                f.over_provisioning,
                &format!(
                    "enough for {needed:.1} spare blocks in each plane of {} (reserve, frontiers, one to collect, \
                     and what collections{epochs} leave unused); this leaves {spare:.1} after metadata and bad blocks",
                    self.geometry.blocks_per_plane
                ),
            );
        }
        Ok(())
    }

    /// What is wrong with collection once so much of the capacity (0 to 1) holds data: it keeps more blocks of a plane free
    /// than are left, so it never stops, whatever victims are full of. `None` if the spare blocks suffice.
    pub fn collection_never_stops(&self, fill: f64) -> Option<String> {
        let geometry = Geometry::new(self);
        let spare = geometry.spare_blocks_per_plane_min();
        let data =
            geometry.user_units as f64 / f64::from(geometry.planes()) / f64::from(geometry.units_per_block());
        let (blocks, wanted) = (geometry.blocks_per_plane, self.ftl.gc.start_below_blocks);
        let left = spare + data * (1.0 - fill);
        if left >= f64::from(wanted) {
            return None;
        }
        let fill_max = ((spare + data - f64::from(wanted)) / data).max(0.0);
        Some(format!(
            "ftl.gc.start_below_blocks = {wanted} of {blocks}: with {:.0} % of the capacity written, {:.1} blocks of each \
             plane hold data and {left:.1} are left, so collection never stops and moves nearly full blocks; expected \
             at most {:.0}, more ftl.over_provisioning, or at most {:.0} % written",
            fill * 100.0,
            data * fill,
            left.floor().max(0.0),
            (fill_max * 100.0).floor(),
        ))
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
