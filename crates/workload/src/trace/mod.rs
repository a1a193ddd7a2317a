//! Traces of real systems: parses them in the formats in which they are published, summarises them, and replays them on
//! a simulated device.
//!
//! Place in the data flow: [`Reader`] converts lines of any format into [`Record`]s one by one; [`TraceInfo`]
//! summarises them in one pass; [`Trace`] keeps them for [`Replay`], which is a workload. [`print()`] writes them out.
//!
//! Memory: reading holds one line; a summary also holds the sets of accessed pages. A replay holds 32 bytes per request
//! and never the text: the whole trace is checked before the simulation begins (a bad line after three simulated hours
//! would be too late), it can be sorted and repeated, and the worlds of a sweep share one copy.
//!
//! Invariants: an error names file, line, the offending text and what was expected; a trace without requests is an
//! error; records are in order of time, if necessary after the sorting that the caller asked for; the same bytes give
//! the same records on every machine.
//!
//! Deliberately absent: scaling of addresses to a smaller device, which would tear sequential runs and overlaps apart.

mod alibaba;
mod blkparse;
mod disksim;
mod error;
mod fio;
mod format;
mod info;
mod input;
mod mqsim;
mod msr;
mod pages;
mod prefill;
mod print;
mod reader;
mod record;
mod replay;
mod tencent;
#[cfg(test)]
mod tests;
mod text;
mod zoned;

pub use blkparse::Action;
pub use error::{Problem, TraceError};
pub use format::{Devices, Format};
pub use info::TraceInfo;
pub use prefill::prefill;
pub use print::print;
pub use reader::{Entry, Reader, Trace};
pub use record::Record;
pub use replay::{Fit, Replay, ReplayConfig, Timing};
pub use zoned::Zoned;

use flashweir_core::Duration;
use record::Parsed;
use serde::{Deserialize, Serialize};

/// Returns the format of a trace that begins with `lines`, judged by the shape of the first line that is not blank. The
/// contents of the fields are left to the parser of the format, whose messages are better.
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

/// Options for reading a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadOptions {
    /// The format; detected if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The devices; the format's default if absent (all for mqsim, the first one for all others).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Devices>,
    /// The stage of a blkparse trace; Q if absent, or D if the beginning has no Q.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// Sort by time (in memory) instead of refusing a trace that is out of order.
    pub sort: bool,
    /// How far time may go back without `sort`; a request that goes back less is moved to the time of the one before
    /// it.
    pub tolerance: Duration,
    /// Maximum number of requests of the chosen devices that are read.
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

/// The parser of a format, with its state between lines.
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
    /// Parses one line; returns `None` if it holds no request.
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

    /// Returns the line of column names with which some copies of a trace begin.
    fn header(&self) -> Option<&'static str> {
        match self {
            Self::Msr(_) => Some("Timestamp,Hostname"),
            Self::Alibaba => Some("device_id,opcode"),
            Self::Tencent => Some("Timestamp,Offset"),
            _ => None,
        }
    }
}
