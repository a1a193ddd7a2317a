//! Traces of real systems: reading them in the formats in which they are published, summarising them and
//! replaying them on a simulated device.
//!
//! Place in the data flow: [`Reader`] turns lines of any format into [`Record`]s as they come; [`TraceInfo`]
//! sums them up in one pass; [`Trace`] keeps them for [`Replay`], which is a workload. [`print()`] writes
//! them again.
//!
//! Memory: reading and summarising hold one line. A replay holds 24 bytes per request and never the text:
//! the whole trace is judged before the simulation begins (a bad line after three simulated hours would
//! be too late), it can be sorted and repeated, and the worlds of a sweep share one copy.
//!
//! Invariants: an error names file, line, the offending text and what was expected; a trace without
//! requests is an error; records are in order of time unless the caller asked to sort them, and then they
//! are after sorting; the same bytes give the same records on every machine.
//!
//! Deliberately absent: decompression (a pipe does it) and scaling of addresses to a smaller device, which
//! would tear sequential runs and overlaps apart.

mod alibaba;
mod blkparse;
mod disksim;
mod error;
mod fio;
mod info;
mod input;
mod mqsim;
mod msr;
mod pages;
mod prefill;
mod print;
mod reader;
mod replay;
mod tencent;
#[cfg(test)]
mod tests;
mod text;

pub use blkparse::Action;
pub use error::{Problem, TraceError};
pub use info::TraceInfo;
pub use prefill::prefill;
pub use print::print;
pub use reader::{Entry, Reader, Trace};
pub use replay::{Fit, Replay, ReplayConfig, Timing};

use flashweir_core::{Duration, Lba};
use flashweir_sim::request::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// MQSim: time in ns, blocks, 1 is a read.
    Mqsim,
    /// DiskSim: as MQSim, but the time is a decimal number of ms and the type a hexadecimal set of flags.
    Disksim,
    /// Microsoft Research Cambridge.
    Msr,
    /// Alibaba's block traces of 2020.
    Alibaba,
    /// Tencent's block storage traces of 2018.
    Tencent,
    /// The text output of blkparse.
    Blkparse,
    /// fio's log of requests, version 2 or 3.
    FioIolog,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Mqsim, Self::Disksim, Self::Msr, Self::Alibaba, Self::Tencent, Self::Blkparse, Self::FioIolog];

    /// The name by which a format is asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mqsim => "mqsim",
            Self::Disksim => "disksim",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Blkparse => "blkparse",
            Self::FioIolog => "fio-iolog",
        }
    }

    /// The names of all formats in a sentence.
    pub fn names() -> String {
        let names = Self::ALL.map(Self::name);
        let (last, first) = names.split_last().expect("there are formats");
        format!("{} or {last}", first.join(", "))
    }

    /// Which devices a trace of this format means if nobody chooses.
    pub const fn devices(self) -> Devices {
        match self {
            Self::Mqsim => Devices::All,
            _ => Devices::First,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("`{text}` is not a trace format: expected {}", Self::names()))
    }
}

/// The format of a trace that begins with `lines`, judged by the shape of the first line that is not
/// blank. What the fields hold is left to the format itself, whose messages are better.
pub fn detect(lines: &[&str]) -> Option<Format> {
    let line = lines.iter().map(|line| line.trim()).find(|line| !line.is_empty())?;
    if line.starts_with("fio version ") {
        return Some(Format::FioIolog);
    }
    if line.starts_with("Input file ") {
        return Some(Format::Blkparse);
    }
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    if words.len() >= 7 && blkparse::is_device(words[0]) {
        return Some(Format::Blkparse);
    }
    let fields: Vec<&str> = line.split(',').collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match (words.len(), fields.len()) {
        (1, 7) => Some(Format::Msr),
        (1, 5) if fields[0] == "device_id" => Some(Format::Alibaba),
        (1, 5) if fields[0] == "Timestamp" || is_number(fields[1]) => Some(Format::Tencent),
        (1, 5) if is_number(fields[0]) => Some(Format::Alibaba),
        (5, 1) if words[0].contains('.') => Some(Format::Disksim),
        (5, 1) if is_number(words[0]) => Some(Format::Mqsim),
        _ => None,
    }
}

/// Which devices of a trace are replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Devices {
    /// The first that has a request. Others are counted and skipped.
    First,
    /// All, on one address space: right only where the addresses were one space before.
    All,
    /// The one with this name: a number, `usr_0` (msr), `8,0` (blkparse) or a file name (fio-iolog).
    Only(String),
}

/// How a trace is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadOptions {
    /// The format; detected if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The devices; what the format means if absent (all for mqsim, the first for all others).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Devices>,
    /// The stage of a blkparse trace; Q if absent, or D if the beginning has no Q.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// Sort by time (in memory) instead of refusing a trace that is out of order.
    pub sort: bool,
    /// How far time may go back without `sort`; what goes back less is moved up to the request before it.
    pub tolerance: Duration,
    /// Read this many requests of the chosen devices at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            format: None,
            device: None,
            action: None,
            sort: false,
            tolerance: Duration::from_millis(1),
            limit: None,
        }
    }
}

/// One request of a trace, in 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it started, since whatever the trace counts from.
    pub at: Duration,
    /// First block of 512 bytes; 0 for a flush.
    pub lba: Lba,
    /// Number of blocks; 0 for a flush.
    pub blocks: u32,
    /// What it does.
    pub kind: Kind,
    /// A flush goes before it, and it starts when that is complete.
    pub preflush: bool,
    /// It completes only when it is durable.
    pub fua: bool,
}

const _: () = assert!(size_of::<Record>() == 24);

impl Record {
    /// A request without flags.
    pub const fn new(at: Duration, kind: Kind, lba: Lba, blocks: u32) -> Self {
        Self { at, lba, blocks, kind, preflush: false, fua: false }
    }

    /// A flush and nothing else.
    pub const fn flush(at: Duration) -> Self {
        Self::new(at, Kind::Flush, Lba(0), 0)
    }

    /// The block behind the last.
    pub const fn end(&self) -> u64 {
        self.lba.0 + self.blocks as u64
    }
}

/// A record and the device that it goes to, as a line says it.
struct Parsed<'a> {
    device: &'a str,
    record: Record,
}

/// The format of a trace with what it remembers from line to line.
enum Parser {
    Mqsim,
    Disksim,
    Msr(msr::Msr),
    Alibaba,
    Tencent,
    Blkparse(blkparse::Blkparse),
    Fio(fio::Fio),
}

impl Parser {
    /// Reads one line; `None` if it holds no request.
    fn parse<'a>(&'a mut self, text: &'a str) -> Result<Option<Parsed<'a>>, Problem> {
        match self {
            Self::Mqsim => mqsim::parse(text).map(Some),
            Self::Disksim => disksim::parse(text).map(Some),
            Self::Msr(msr) => msr.parse(text).map(Some),
            Self::Alibaba => alibaba::parse(text).map(Some),
            Self::Tencent => tencent::parse(text).map(Some),
            Self::Blkparse(blkparse) => blkparse.parse(text),
            Self::Fio(fio) => fio.parse(text),
        }
    }

    /// The line of column names that some copies of a trace begin with.
    fn header(&self) -> Option<&'static str> {
        match self {
            Self::Msr(_) => Some("Timestamp,Hostname"),
            Self::Alibaba => Some("device_id,opcode"),
            Self::Tencent => Some("Timestamp,Offset"),
            _ => None,
        }
    }
}
