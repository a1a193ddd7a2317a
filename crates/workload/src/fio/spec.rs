//! A job that is ready to run: all defaults filled in, all units converted, all ranges checked.
//!
//! Invariants: sizes and addresses are in 512-byte blocks; the region lies on the device and holds at least
//! one request of every size that the job can make; percentages add up.

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
    /// All of them, in the order in which fio lists values.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];
}

/// Which directions a job uses.
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

/// How addresses follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// One after the other, with a gap (or a step back) of so many blocks between requests.
    Sequential {
        /// Blocks between the end of a request and the next one.
        gap_blocks: i64,
    },
    /// At random; each random address begins a run of requests.
    Random {
        /// Requests in a run, at least 1.
        run: u32,
    },
}

/// What a run of requests does after its first address, and what sequential requests do at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequencer {
    /// Goes on behind the last request.
    Sequential,
    /// Stays at the same address.
    Identical,
}

/// The sizes of requests in one direction, in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Always the same.
    Fixed(u32),
    /// A multiple of the smallest one up to the largest, all equally likely.
    Range {
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// Sizes with a percentage each; the percentages add up to 100.
    Split(Vec<(u32, u8)>),
}

impl Sizes {
    /// The smallest size.
    pub fn min_blocks(&self) -> u32 {
        match self {
            Self::Fixed(blocks) => *blocks,
            Self::Range { min, .. } => *min,
            Self::Split(parts) => parts.iter().map(|(blocks, _)| *blocks).min().unwrap_or(1),
        }
    }

    /// The largest size.
    pub fn max_blocks(&self) -> u32 {
        match self {
            Self::Fixed(blocks) => *blocks,
            Self::Range { max, .. } => *max,
            Self::Split(parts) => parts.iter().map(|(blocks, _)| *blocks).max().unwrap_or(1),
        }
    }
}

/// How likely the addresses of a region are.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// The address of rank `k` has a likelihood proportional to `k^-theta`; ranks are scattered.
    Zipf {
        /// The exponent, above 0 and not 1.
        theta: f64,
        /// Where in the region (0 to 1) the most likely address lies; at random if absent.
        centre: Option<f64>,
    },
    /// Self-similar: a share `h` of the addresses gets a share `1 - h` of the requests; scattered.
    Pareto {
        /// The share, between 0 and 1.
        h: f64,
        /// Where in the region (0 to 1) the most likely address lies; at random if absent.
        centre: Option<f64>,
    },
    /// A bell around a centre; what falls out of the region comes in at its other end.
    Normal {
        /// Standard deviation in per cent of the region.
        deviation_percent: f64,
        /// The centre from 0 to 1.
        centre: f64,
    },
    /// Consecutive zones, uniform inside: percentage of the requests, first block, blocks.
    Zoned(Vec<Zone>),
}

/// A part of the region of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Percentage of the requests that go there.
    pub access_percent: u8,
    /// First block, counted from the start of the region.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// The pace that one direction keeps at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the depth allows.
    Unlimited,
    /// Bytes per second, above zero.
    BytesPerSecond(u64),
}

/// When rated requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// At even distances.
    Linear,
    /// At exponentially distributed distances.
    Poisson,
}

/// A pause after some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Think {
    /// Length of the pause, above zero.
    pub pause: Duration,
    /// Requests between two pauses, at least 1; `u32::MAX` if only time counts.
    pub every: u32,
    /// Time after which a pause is due even if fewer requests were made.
    pub after: Option<Duration>,
}

/// A part of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First block.
    pub first: Lba,
    /// Number of blocks.
    pub blocks: u64,
}

/// When a job ends, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks to transfer; `None` if only the time counts.
    pub blocks: Option<u64>,
    /// Requests to make.
    pub requests: Option<u64>,
    /// Time after the ramp.
    pub runtime: Option<Duration>,
}

/// What a job does with what it has written, when all is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Reads it back and compares it.
    Compare,
    /// Only reads it back.
    Read,
}

/// When a job counts as steady, which ends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Bandwidth in bytes per second counts, not requests per second.
    pub is_bandwidth: bool,
    /// The slope of a line through the values counts, not the largest distance from their mean.
    pub is_slope: bool,
    /// What it has to stay below.
    pub limit: f64,
    /// The limit is in per cent of the mean.
    pub is_percent: bool,
    /// Length of the rolling window.
    pub window: Duration,
    /// Time between two values.
    pub interval: Duration,
    /// Time at the start that is not looked at.
    pub ramp: Duration,
}

/// One job of a job file; clones made by `numjobs` are jobs of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Name of the section, or the `name` option.
    pub name: String,
    /// The `description` option, empty if absent.
    pub description: String,
    /// Which clone of its section this is, from 0.
    pub clone: u32,
    /// How many clones there are, itself included.
    pub numjobs: u32,
    /// Name of the job's randomness, unique in the file.
    pub stream: String,
    /// Jobs of one group run together, groups one after the other, from 0 (`stonewall`).
    pub stonewall_group: u32,
    /// Number of the reporting group, from 0; `stonewall` and `new_group` begin one.
    pub report_group: u32,
    /// Whether the job is reported as part of its group rather than alone.
    pub group_reporting: bool,
    /// Whether the results of the job count at all.
    pub stats: bool,
    /// Directions.
    pub mix: Mix,
    /// Addresses.
    pub walk: Walk,
    /// What runs do.
    pub sequencer: Sequencer,
    /// Where.
    pub region: Region,
    /// Request sizes by direction.
    pub sizes: [Sizes; 3],
    /// Alignment of random addresses by direction, in blocks.
    pub align_blocks: [u32; 3],
    /// Every address once per pass; only with one size, and with uniform addresses.
    pub random_map: bool,
    /// Likelihood of addresses by direction.
    pub distribution: [Distribution; 3],
    /// Share of random addresses by direction, the others are sequential.
    pub random_percent: [u8; 3],
    /// Requests in flight at most.
    pub iodepth: u32,
    /// A flush after so many writes; 0 for none.
    pub fsync: u32,
    /// As `fsync`, counted on its own.
    pub fdatasync: u32,
    /// A flush at the end.
    pub end_fsync: bool,
    /// Writes complete only when durable.
    pub fua: bool,
    /// When to end.
    pub limits: Limits,
    /// Time at the start that does not count.
    pub ramp: Duration,
    /// The job waits at first for a time between these two.
    pub start_delay: (Duration, Duration),
    /// Pauses.
    pub think: Option<Think>,
    /// Paces by direction.
    pub rate: [Rate; 3],
    /// How rated requests are spaced.
    pub process: Process,
    /// Pauses move the schedule of rated requests instead of being caught up.
    pub rate_ignore_thinktime: bool,
    /// Takes the place of the world's seed.
    pub seed: Option<u64>,
    /// Reads back what was written.
    pub verify: Option<Verify>,
    /// Logs.
    pub log: LogSpec,
    /// Ends the job when it is steady.
    pub steady: Option<Steady>,
}
