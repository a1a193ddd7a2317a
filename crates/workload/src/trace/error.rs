//! What can be wrong with a trace or with the wish to replay it: one error, whose context is data.
//!
//! Invariant: each message names the file, the line where there is one, the offending text and what was
//! expected instead, so that a trace of a million lines can be repaired without a search.

use super::format::Format;
use flashweir_core::{Bytes, Duration};
use std::fmt;

/// Characters of an offending field that a message shows; binary files have fields of any length.
const SHOWN_CHARS_MAX: usize = 60;

/// Devices that a message lists.
const SHOWN_DEVICES_MAX: usize = 8;

/// A problem at a place in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Name of the trace, as the caller gave it.
    pub file: String,
    /// Line, counted from 1; 0 where the whole trace is meant.
    pub line: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A field does not hold what its column promises.
    Field {
        /// The field.
        text: String,
        /// What it should be, with its article.
        what: &'static str,
        /// The values that it may have.
        expected: &'static str,
    },
    /// A line has too few or too many fields.
    Columns {
        /// Number of fields.
        found: usize,
        /// The columns of the format.
        columns: &'static str,
    },
    /// Time goes back further than the tolerance.
    Backwards {
        /// How far.
        by: Duration,
        /// How far it may.
        tolerance: Duration,
    },
    /// A line is longer than any line of a trace.
    TooLong {
        /// The longest line in bytes.
        bytes_max: usize,
    },
    /// A line is not UTF-8.
    NotText,
    /// There is nothing to replay.
    Empty,
    /// None of the events has the action to replay.
    NoAction {
        /// The action to replay.
        wanted: char,
        /// How many events have which of the actions that could be replayed.
        seen: Vec<(char, u64)>,
    },
    /// No request goes to the chosen device.
    NoDevice {
        /// The chosen device.
        wanted: String,
        /// Requests of each device.
        seen: Vec<(String, u64)>,
    },
    /// The first line belongs to no known format.
    Unknown {
        /// The line.
        text: String,
    },
    /// The trace cannot be read.
    Read {
        /// What the operating system says.
        message: String,
    },
    /// The request that reaches furthest reaches beyond the device.
    Beyond {
        /// Its first block.
        first: u64,
        /// The block behind its last.
        end: u64,
        /// Blocks of the device.
        capacity: u64,
    },
    /// A request is larger than the device.
    TooLarge {
        /// Its blocks.
        blocks: u32,
        /// Blocks of the device.
        capacity: u64,
    },
    /// A setting is out of its range.
    Setting {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The range.
        expected: &'static str,
    },
}

impl Problem {
    /// A field that does not hold what it should.
    pub(super) fn field(text: &str, what: &'static str, expected: &'static str) -> Self {
        Self::Field { text: shorten(text), what, expected }
    }

    /// The problem at a line of a file.
    pub(super) fn at(self, file: &str, line: u64) -> TraceError {
        TraceError { file: file.to_owned(), line, problem: self }
    }
}

/// The beginning of `text`, with control characters made visible.
pub(super) fn shorten(text: &str) -> String {
    let mut short = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == SHOWN_CHARS_MAX {
            short.push('…');
            break;
        }
        if c.is_control() {
            short.extend(c.escape_default());
        } else {
            short.push(c);
        }
    }
    short
}

/// Blocks as a size.
fn size(blocks: u64) -> Bytes {
    Bytes(blocks.saturating_mul(flashweir_core::units::LBA_BYTES))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { text, what, expected } => write!(f, "`{text}` is not {what}: expected {expected}"),
            Self::Columns { found, columns } => write!(f, "{found} fields: expected `{columns}`"),
            Self::Backwards { by, tolerance } => write!(
                f,
                "time goes back by {by}, which is more than the tolerance of {tolerance}: expected a trace \
                 in order of time, or the option `sort`"
            ),
            Self::TooLong { bytes_max } => {
                write!(f, "the line is too long: expected at most {bytes_max} bytes of text")
            }
            Self::NotText => f.write_str("the line is not text: expected UTF-8"),
            Self::Empty => f.write_str("no requests: expected at least one"),
            Self::NoAction { wanted, seen } => {
                write!(f, "no requests with action {wanted}: expected at least one")?;
                for (i, (action, count)) in seen.iter().enumerate() {
                    write!(f, "{} {count} with action {action}", if i == 0 { "; there are" } else { "," })?;
                }
                Ok(())
            }
            Self::NoDevice { wanted, seen } => {
                write!(f, "no requests of device `{wanted}`: expected one of ")?;
                list(f, seen)
            }
            Self::Unknown { text } => {
                write!(f, "`{text}` is not a line of a known format: expected {}", Format::names())
            }
            Self::Read { message } => write!(f, "cannot be read: {message}"),
            Self::Beyond { first, end, capacity } => write!(
                f,
                "blocks {first}..{end} reach beyond the device, which has {capacity} blocks ({}): expected \
                 a device of at least {}, or the fit `wrap`",
                size(*capacity),
                size(*end)
            ),
            Self::TooLarge { blocks, capacity } => write!(
                f,
                "a request of {blocks} blocks does not fit on the device: expected at most {capacity}"
            ),
            Self::Setting { key, value, expected } => write!(f, "{key} = {value}: expected {expected}"),
        }
    }
}

/// The first few devices with their requests.
fn list(f: &mut fmt::Formatter<'_>, seen: &[(String, u64)]) -> fmt::Result {
    for (i, (device, count)) in seen.iter().take(SHOWN_DEVICES_MAX).enumerate() {
        write!(f, "{}`{device}` ({count})", if i == 0 { "" } else { ", " })?;
    }
    match seen.len().saturating_sub(SHOWN_DEVICES_MAX) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for TraceError {}
