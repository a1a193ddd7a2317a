//! Configuration of a host FTL, and the numbers that follow from it and the flash below.

use super::costs::{Costs, Shared, WhenFull};
use super::planted::PlantedHostBug;
use flashweir_core::Duration;
use flashweir_core::command::PLACES_MAX;
use flashweir_ftl::BlockId;
use flashweir_ftl::epochs::EPOCHS_MAX;
use flashweir_ftl::geometry::FlashGeometry;
use flashweir_ftl::limiter::Marks;
use flashweir_ftl::line_pages::{LineEnd, LineStart};
use serde::{Deserialize, Serialize};

/// Erase blocks that form a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lines {
    /// One of every plane of the device, as in pblk (open-channel §1.6).
    Device,
    /// One of every plane of a channel, as in QBLKe (open-channel §5.1).
    Channel,
}

/// Limiter of user data and GC data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limits {
    /// pblk's: entries of each side in the ring (open-channel §7.1).
    Windows,
    /// QBLKe's: entries of each side that were admitted in this round (open-channel §7.2).
    Scores,
}

/// Time at which the old version of a unit stops being valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Invalidation {
    /// When the new version is on the medium (contract §7).
    Deferred,
    /// When the new version is accepted, as in the released code (open-channel §8.9): a power loss may lose both.
    AtAcceptance,
}

/// Whether a TRIM is written to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trims {
    /// As a record among the data: it survives a power loss once it is durable.
    Recorded,
    /// Not at all, as in the released code (open-channel §8.10): old contents come back.
    Forgotten,
}

/// What orders the versions of a unit in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sequence {
    /// One number over all rings and groups.
    Device,
    /// The position in a ring: versions that went through two rings have no order, as in the released code (open-channel §8.8).
    Ring,
}

/// Configuration of a host FTL. [`Self::pblk`] and [`Self::qblke`] are the two assemblies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostFtlConfig {
    /// Number of rings; each submitter has one. pblk has 1, QBLKe one for each CPU.
    pub rings: u16,
    /// Entries of all rings together, in mapping units; 0 takes the released formula (open-channel §1.1, open-channel §2.2).
    pub entries: u32,
    /// Erase blocks of a line.
    pub lines: Lines,
    /// Limiter.
    pub limits: Limits,
    /// When old versions stop being valid.
    pub invalidation: Invalidation,
    /// Whether a TRIM survives a power loss.
    pub trims: Trims,
    /// What orders the versions of a unit.
    pub sequence: Sequence,
    /// Share of the blocks that the user does not see; 0.11 in the paper.
    pub over_provisioning: f64,
    /// Programs that one die has in flight at most: 1 in pblk, 8 in QBLKe.
    pub programs_per_die: u32,
    /// Reads that GC has in flight for a line: 8 in pblk, 1 in QBLKe, where each channel has a line (open-channel §5.2).
    pub gc_readers: u32,
    /// Whether GC waits for stale lines while the user has room; the released code does not, and never ends on a full device
    /// (open-channel §8.7).
    pub gc_waits: bool,
    /// Whether a group from which reads are served has one program in flight on each die (open-channel §7.7). QBLKe has this.
    pub reads_first: bool,
    /// Whether a ring writes what a range flush or FUA waits for before what nobody waits for (contract §9.7). The released code writes in
    /// the order of the ring.
    pub urgent: bool,
    /// Time after which entries that do not fill a page are padded (open-channel §4.3).
    pub pad_after: Duration,
    /// Without a write for so long, GC is not limited.
    pub user_active_for: Duration,
    /// Time after which a command that the device refused is offered again.
    pub retry_after: Duration,
    /// Queues of the link; a die's programs stay on one.
    pub queues: u16,
    /// CPUs of the host; 0 charges no time to any of them.
    pub cpus: u16,
    /// What the steps of threads cost.
    pub costs: Costs,
    /// How threads share the map.
    pub map: Shared,
    /// How threads share descriptors and buffers.
    pub pool: Shared,
    /// What a thread does while rings are full.
    pub full: WhenFull,
    /// Units of an open chunk that the device keeps back (open-channel §6.4); whoever knows the device sets it.
    #[serde(skip)]
    pub cached_units: u32,
    /// Whether a chunk takes no write while another one of it is under way (open-channel §6.2); whoever knows the device sets it.
    #[serde(skip)]
    pub one_write_per_chunk: bool,
    /// Epochs of a stream after which their numbers begin anew (contract §8.14).
    #[serde(skip, default = "epochs_max")]
    pub epochs_max: u32,
    /// A planted bug, which the crash laboratory has to find.
    #[serde(skip)]
    pub planted: Option<PlantedHostBug>,
}

fn epochs_max() -> u32 {
    EPOCHS_MAX
}

impl Default for HostFtlConfig {
    fn default() -> Self {
        Self::pblk()
    }
}

impl HostFtlConfig {
    /// pblk, repaired: one ring, lines of the whole device, windows (open-channel §1).
    pub fn pblk() -> Self {
        Self {
            rings: 1,
            entries: 0,
            lines: Lines::Device,
            limits: Limits::Windows,
            invalidation: Invalidation::Deferred,
            trims: Trims::Recorded,
            sequence: Sequence::Device,
            over_provisioning: 0.11,
            programs_per_die: 1,
            gc_readers: 8,
            gc_waits: true,
            reads_first: false,
            urgent: true,
            pad_after: Duration::from_secs(2),
            user_active_for: Duration::from_secs(5),
            retry_after: Duration::from_micros(100),
            queues: 1,
            cpus: 0,
            costs: Costs::default(),
            map: Shared::Lock,
            pool: Shared::Lock,
            full: WhenFull::Retry,
            cached_units: 0,
            one_write_per_chunk: false,
            epochs_max: EPOCHS_MAX,
            planted: None,
        }
    }

    /// QBLKe, repaired: `rings` rings, lines of a channel, scores (open-channel §2).
    pub fn qblke(rings: u16) -> Self {
        Self {
            rings,
            lines: Lines::Channel,
            limits: Limits::Scores,
            programs_per_die: 8,
            gc_readers: 1,
            reads_first: true,
            map: Shared::Apart,
            pool: Shared::Apart,
            full: WhenFull::Wait,
            ..Self::pblk()
        }
    }

    /// Whether streams and barriers work: recovery has one order for all versions.
    pub fn keeps_order(&self) -> bool {
        self.sequence == Sequence::Device
    }

    /// The same assembly as it was released. A power loss may cost it a unit that was written again, a TRIM, and the order of what went
    /// through several rings (open-channel §8.13).
    #[must_use]
    pub fn as_released(self) -> Self {
        let (invalidation, trims) = (Invalidation::AtAcceptance, Trims::Forgotten);
        Self { invalidation, trims, sequence: Sequence::Ring, gc_waits: false, urgent: false, ..self }
    }
}

/// Numbers of a host FTL above one device.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Shape of the flash.
    pub flash: FlashGeometry,
    /// Sectors of 512 bytes in a mapping unit.
    pub unit_sectors: u64,
    /// Mapping units that the user sees.
    pub user_units: u64,
    pub(super) groups: u32,
    /// Blocks of a line: one of each plane of the group.
    pub(super) columns: u32,
    /// Lines of a group.
    pub(super) lines: u32,
    /// Pages at the end of a line that hold its end metadata.
    pub(super) end_pages: u32,
    /// Entries of each ring; a power of two.
    pub(super) ring_entries: u32,
    pub(super) marks: Marks,
    pub(super) unit_bytes: usize,
}

/// Rings at most: their number has 7 bits in a map word (open-channel §3).
pub(super) const RINGS_MAX: u16 = 128;
/// Entries of a ring at most: a slot has 24 bits in a map word.
const RING_ENTRIES_MAX: u32 = 1 << 24;
/// Lines of a group that the user never gets: one that the user fills, one that GC fills, one that it empties.
const LINES_MIN: u32 = 3;

impl Layout {
    /// Returns the numbers of this FTL above this flash.
    ///
    /// # Errors
    /// Names the key, its value, and what would have been valid.
    pub fn new(config: &HostFtlConfig, flash: FlashGeometry, unit_bytes: usize) -> Result<Self, String> {
        if !(1..=RINGS_MAX).contains(&config.rings) {
            return Err(format!("host_ftl.rings = {}: expected 1 to {RINGS_MAX}", config.rings));
        }
        if !(config.over_provisioning > 0.0 && config.over_provisioning < 0.9) {
            let value = config.over_provisioning;
            return Err(format!("host_ftl.over_provisioning = {value}: expected above 0 and below 0.9"));
        }
        let counts = [
            ("programs_per_die", config.programs_per_die == 0),
            ("queues", config.queues == 0),
            ("gc_readers", config.gc_readers == 0),
        ];
        if let Some((key, _)) = counts.into_iter().find(|&(_, is_zero)| is_zero) {
            return Err(format!("host_ftl.{key} = 0: expected at least 1"));
        }
        if config.cpus > 0 && config.full == WhenFull::Retry && config.costs.turn == Duration::ZERO {
            return Err("host_ftl.costs.turn = 0ns: expected more than nothing where host_ftl.full = \"retry\": threads that find no room \
                        would try again for ever"
                .into());
        }
        if config.retry_after == Duration::ZERO {
            return Err("host_ftl.retry_after = 0ns: expected more than nothing".into());
        }
        let recent = config.cached_units.next_multiple_of(flash.units_per_page);
        if recent as usize > PLACES_MAX {
            return Err(format!(
                "open.cached_units = {}: expected at most {PLACES_MAX} below a host FTL, in whole write units",
                config.cached_units
            ));
        }
        let groups = match config.lines {
            Lines::Device => 1,
            Lines::Channel => flash.channels(),
        };
        let (columns, lines) = (flash.planes() / groups, flash.blocks_per_plane);
        let described = match LineEnd::units_max(unit_bytes) {
            0..4 => {
                return Err(format!("a mapping unit of {unit_bytes} bytes: a host FTL needs at least 96"));
            }
            units => units as u32,
        };
        let pages = columns * flash.pages_per_block;
        let end_pages = pages.div_ceil(described + 1);
        if pages < end_pages + 2 || LineStart::left_out_max(unit_bytes) < columns as usize {
            return Err(format!("a line of {pages} pages has no room for its metadata and data"));
        }
        let sectors = flash.units_per_page * flash.planes_per_die();
        let luns = flash.dies();
        let all = match config.entries {
            0 if config.rings == 1 => (8 * sectors * luns).next_power_of_two().max(128),
            0 => (8 * sectors * luns).max(32 * u32::from(config.rings)),
            entries => entries,
        };
        let ring_entries = (all / u32::from(config.rings)).max(1);
        let ring_entries = 1 << ring_entries.ilog2();
        if ring_entries < 2 * sectors || ring_entries > RING_ENTRIES_MAX {
            let (entries, rings) = (config.entries, u64::from(config.rings));
            let least = u64::from((2 * sectors).next_power_of_two()) * rings;
            let most = u64::from(RING_ENTRIES_MAX) * rings;
            return Err(format!(
                "host_ftl.entries = {entries}: expected {least} to {most}; a ring, of which there {}, holds two programs of a die",
                if rings == 1 { "is 1".into() } else { format!("are {rings}") }
            ));
        }
        // The paper counts blocks of a LUN with all of its planes as one (open-channel §7.6).
        let blocks_per_line = columns / flash.planes_per_die();
        let blocks = blocks_per_line * lines;
        let spare = (f64::from(blocks) * config.over_provisioning).ceil() as u32;
        let data_pages = u64::from(pages - end_pages - 1);
        let spare_lines = spare / blocks_per_line;
        if spare_lines < LINES_MIN || spare_lines >= lines {
            return Err(format!(
                "host_ftl.over_provisioning = {}: expected at least {:.3} here, {LINES_MIN} of {lines} lines",
                config.over_provisioning,
                f64::from(LINES_MIN) / f64::from(lines)
            ));
        }
        let user_pages = data_pages * u64::from(groups) * u64::from(lines)
            - (data_pages * u64::from(groups) * u64::from(spare)).div_ceil(u64::from(blocks_per_line));
        let reserve = blocks_per_line;
        let marks = Marks {
            budget: (ring_entries * u32::from(config.rings) / groups).max(1),
            reserve,
            high: spare.saturating_sub(1 + blocks_per_line).max(reserve + 1),
        };
        let unit_sectors = unit_bytes as u64 / flashweir_core::units::LBA_BYTES;
        let user_units = user_pages * u64::from(flash.units_per_page);
        Ok(Self {
            flash,
            unit_sectors,
            user_units,
            groups,
            columns,
            lines,
            end_pages,
            ring_entries,
            marks,
            unit_bytes,
        })
    }

    /// Die of a block.
    pub(super) fn die_of(&self, block: BlockId) -> u32 {
        self.flash.die(self.flash.plane_of(block)).0
    }

    /// Pages of a line.
    pub(super) fn pages(&self) -> u32 {
        self.columns * self.flash.pages_per_block
    }

    /// Units of a line that hold data.
    pub(super) fn data_units(&self) -> u32 {
        (self.pages() - self.end_pages - 1) * self.flash.units_per_page
    }

    /// Units that a program of all planes of a die takes.
    pub(super) fn program_units(&self) -> u32 {
        self.flash.units_per_page * self.flash.planes_per_die()
    }

    /// Paper's blocks in a line: one for each die.
    pub(super) fn blocks_per_line(&self) -> u32 {
        self.columns / self.flash.planes_per_die()
    }
}
