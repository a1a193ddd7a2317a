//! A job that is ready to run: all defaults filled in, all units converted, all ranges checked.
//!
//! Invariants: sizes and addresses are in sectors of 512 bytes; the region lies on the device and holds at least one
//! request of every size that the job can issue; percentages add up.

use flashweir_core::command::Handle;
use flashweir_core::{Duration, Lba};
use flashweir_sim::measure::LogSpec;

/// The direction of a request that counts as I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Deallocations.
    Trim,
}

impl Direction {
    /// All directions, in the order in which fio lists values.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];
}

/// The directions that a job uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One direction.
    Only(Direction),
    /// Reads with this percentage, else writes.
    ReadWrite {
        /// Share of reads from 0 to 100.
        read_percent: u8,
    },
    /// Each range is trimmed, then written.
    TrimWrite,
}

impl Mix {
    /// Whether requests of `direction` occur.
    pub fn uses(self, direction: Direction) -> bool {
        match self {
            Self::Only(only) => only == direction,
            Self::ReadWrite { .. } => direction != Direction::Trim,
            Self::TrimWrite => direction != Direction::Read,
        }
    }
}

/// The sequence of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// One after the other, with a gap (or a step back) of a fixed number of sectors between requests.
    Sequential {
        /// Sectors between the end of a request and the next one.
        gap_blocks: i64,
    },
    /// Random addresses, each of which begins a run of requests.
    Random {
        /// Number of requests in a run, at least 1.
        run: u32,
    },
}

/// The rule for requests within a run after its first address, and for sequential requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequencer {
    /// Continue after the last request.
    Sequential,
    /// Stay at the same address.
    Identical,
}

/// The sizes of requests in one direction, in sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// A single size.
    Fixed(u32),
    /// A multiple of the smallest size, up to the largest; all are equally likely. If the largest is no multiple, it is as likely as the
    /// rest of the way to it is long.
    Range {
        /// The smallest size.
        min: u32,
        /// The largest size.
        max: u32,
    },
    /// Sizes with a percentage each; the percentages add up to 100.
    Split(Vec<(u32, u8)>),
}

impl Sizes {
    /// Returns the smallest size.
    pub fn min_blocks(&self) -> u32 {
        match self {
            Self::Fixed(blocks) => *blocks,
            Self::Range { min, .. } => *min,
            Self::Split(parts) => parts.iter().map(|(blocks, _)| *blocks).min().unwrap_or(1),
        }
    }

    /// Returns the largest size.
    pub fn max_blocks(&self) -> u32 {
        match self {
            Self::Fixed(blocks) => *blocks,
            Self::Range { max, .. } => *max,
            Self::Split(parts) => parts.iter().map(|(blocks, _)| *blocks).max().unwrap_or(1),
        }
    }

    /// Whether all sizes are multiples of `unit` sectors.
    pub fn are_multiples_of(&self, unit: u64) -> bool {
        let is_multiple = |blocks: u32| u64::from(blocks).is_multiple_of(unit);
        match self {
            Self::Fixed(blocks) => is_multiple(*blocks),
            // The sizes of a range are multiples of its smallest one.
            Self::Range { min, .. } => is_multiple(*min),
            Self::Split(parts) => parts.iter().all(|(blocks, _)| is_multiple(*blocks)),
        }
    }
}

/// The probability distribution of the addresses of a region.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// All addresses are equally likely.
    Uniform,
    /// The address of rank `k` has a probability proportional to `k^-theta`; ranks are scattered.
    Zipf {
        /// The exponent, above 0 and not 1.
        theta: f64,
        /// Position of the most likely address in the region (0 to 1); random if absent.
        centre: Option<f64>,
    },
    /// Self-similar: a fraction `h` of the addresses gets a fraction `1 - h` of the requests; scattered.
    Pareto {
        /// The fraction, between 0 and 1.
        h: f64,
        /// Position of the most likely address in the region (0 to 1); random if absent.
        centre: Option<f64>,
    },
    /// Bell-shaped around a centre; addresses beyond one end of the region wrap around to the other.
    Normal {
        /// Standard deviation in per cent of the region.
        deviation_percent: f64,
        /// Position of the centre from 0 to 1.
        centre: f64,
    },
    /// Consecutive zones, each uniform inside.
    Zoned(Vec<Zone>),
}

/// A zone of the region of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Percentage of the requests that go to the zone.
    pub access_percent: u8,
    /// First sector, counted from the start of the region.
    pub first: u64,
    /// Number of sectors.
    pub blocks: u64,
}

/// The rate limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the depth allows.
    Unlimited,
    /// Bytes per second, above zero.
    BytesPerSecond(u64),
}

/// Distribution of the due times of rate-limited requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// At equal intervals.
    Linear,
    /// At exponentially distributed intervals.
    Poisson,
}

/// A pause after some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Think {
    /// Length of the pause, above zero.
    pub pause: Duration,
    /// Number of requests between two pauses, at least 1; `u32::MAX` if only time counts.
    pub every: u32,
    /// Time after which a pause is due even if fewer requests were issued.
    pub after: Option<Duration>,
}

/// A part of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First sector.
    pub first: Lba,
    /// Number of sectors.
    pub blocks: u64,
}

/// Conditions that end a job; the first one met counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of sectors to transfer; `None` if only the time counts.
    pub blocks: Option<u64>,
    /// Number of requests to issue.
    pub requests: Option<u64>,
    /// Run time after the ramp.
    pub runtime: Option<Duration>,
}

/// Treatment of the written data after all writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Read them back and compare them.
    Compare,
    /// Only read them back.
    Read,
}

/// Criterion by which a job counts as steady, which ends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Whether bandwidth in bytes per second counts instead of requests per second.
    pub is_bandwidth: bool,
    /// Whether the slope of a line through the values counts instead of the largest deviation from their mean.
    pub is_slope: bool,
    /// Limit that the criterion must stay below.
    pub limit: f64,
    /// Whether the limit is in per cent of the mean.
    pub is_percent: bool,
    /// Length of the rolling window.
    pub window: Duration,
    /// Time between two values.
    pub interval: Duration,
    /// Time at the start that is not examined.
    pub ramp: Duration,
}

/// Order in which a job serves its files (`file_service_type`). A turn is so many requests and flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The files take turns.
    RoundRobin(u32),
    /// Each turn is that of a file at random.
    Random(u32),
    /// Each file until nothing of it is left.
    Sequential,
}

/// Several files of the same length, one after the other in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Number of files.
    pub count: u32,
    /// Order of their turns.
    pub service: Service,
}

/// Placement handles of a job with `fdp=1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The handles, at least one.
    pub handles: Vec<Handle>,
    /// Whether writes take them in turn; otherwise each draws one.
    pub in_turn: bool,
}

/// Zones of a job with `zonemode=zbd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneRules {
    /// Size of a zone that the file names, in sectors; the device decides.
    pub blocks: Option<u64>,
    /// Zones that may be written in part at a time; 0 is what the device allows.
    pub open_max: u32,
}

/// One job of a job file; clones made by `numjobs` are separate jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Name of the section, or the `name` option.
    pub name: String,
    /// Value of the `description` option, empty if absent.
    pub description: String,
    /// Number of the clone within its section, from 0.
    pub clone: u32,
    /// Number of clones, itself included.
    pub numjobs: u32,
    /// Name of the job's random streams, unique in the file.
    pub stream: String,
    /// Stonewall group, from 0: jobs of one group run together, groups one after the other (`stonewall`).
    pub stonewall_group: u32,
    /// Reporting group, from 0; `stonewall` and `new_group` begin one.
    pub report_group: u32,
    /// Whether the job is reported as part of its group rather than alone.
    pub group_reporting: bool,
    /// Whether the results of the job count at all.
    pub stats: bool,
    /// Directions of the requests.
    pub mix: Mix,
    /// Sequence of addresses.
    pub walk: Walk,
    /// Rule within runs.
    pub sequencer: Sequencer,
    /// Rules of zones, if writes go to their write pointers.
    pub zones: Option<ZoneRules>,
    /// Region of the device.
    pub region: Region,
    /// Files in the region; `None` is one file, or the device.
    pub parts: Option<Parts>,
    /// Request sizes by direction.
    pub sizes: [Sizes; 3],
    /// Alignment of random addresses by direction, in sectors.
    pub align_blocks: [u32; 3],
    /// Whether each pass visits every address once; only with a single size and uniform addresses.
    pub random_map: bool,
    /// Distribution of addresses by direction.
    pub distribution: [Distribution; 3],
    /// Percentage of random addresses by direction; the others are sequential.
    pub random_percent: [u8; 3],
    /// Maximum number of requests in flight.
    pub iodepth: u32,
    /// Number of writes after which a flush follows; 0 for none.
    pub fsync: u32,
    /// As `fsync`, with a counter of its own.
    pub fdatasync: u32,
    /// Whether the job ends with a flush.
    pub end_fsync: bool,
    /// Force unit access: writes complete only when durable.
    pub fua: bool,
    /// Placement of the writes; `None` without hints.
    pub placement: Option<Placement>,
    /// The job's writes are remaps (SHARE): each range takes over the content of the range at the same distance from this sector
    /// as its own from the beginning of the region.
    pub share_from: Option<Lba>,
    /// Conditions that end the job.
    pub limits: Limits,
    /// Ramp time at the start that does not count.
    pub ramp: Duration,
    /// Range of the random delay before the job starts.
    pub start_delay: (Duration, Duration),
    /// Pauses.
    pub think: Option<Think>,
    /// Rate limits by direction.
    pub rate: [Rate; 3],
    /// Distribution of the due times of rate-limited requests.
    pub process: Process,
    /// Whether pauses shift the schedule of rate-limited requests instead of being caught up.
    pub rate_ignore_thinktime: bool,
    /// Seed that replaces the world's seed.
    pub seed: Option<u64>,
    /// Verification after the writes.
    pub verify: Option<Verify>,
    /// Logs to be kept.
    pub log: LogSpec,
    /// Criterion of a steady state that ends the job.
    pub steady: Option<Steady>,
}
