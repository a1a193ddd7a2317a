//! Errors of a trace or of its replay: one type, whose context is data.
//!
//! Invariant: each message names the file, the line if there is one, the offending text and what was expected instead,
//! so that a trace of a million lines can be repaired without a search.

use super::format::Format;
use flashweir_core::{Bytes, Duration};
use std::fmt;

/// Maximum number of characters of an offending field in a message; binary files have fields of any length.
const SHOWN_CHARS_MAX: usize = 60;

/// Maximum number of devices in a message.
const SHOWN_DEVICES_MAX: usize = 8;

/// A problem at a line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Name of the trace, as the caller gave it.
    pub file: String,
    /// Line number, counted from 1; 0 for the whole trace.
    pub line: u64,
    /// The problem.
    pub problem: Problem,
}

/// A problem of a trace or of its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A field has an invalid value.
    Field {
        /// Text of the field.
        text: String,
        /// Meaning of the field, with its article.
        what: &'static str,
        /// Description of valid values.
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
        /// Difference to the request before.
        by: Duration,
        /// Tolerance.
        tolerance: Duration,
    },
    /// A line is longer than any line of a trace.
    TooLong {
        /// Maximum length of a line in bytes.
        bytes_max: usize,
    },
    /// A line is not UTF-8.
    NotText,
    /// The trace has no request.
    Empty,
    /// None of the events has the action to replay.
    NoAction {
        /// The action to replay.
        wanted: char,
        /// Numbers of events of the other actions that could be replayed.
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
        /// Text of the line.
        text: String,
    },
    /// The trace cannot be read.
    Read {
        /// Message of the operating system.
        message: String,
    },
    /// The request that reaches furthest ends beyond the device.
    Beyond {
        /// First sector of the request.
        first: u64,
        /// Sector after its last one.
        end: u64,
        /// Capacity of the device in sectors.
        capacity: u64,
    },
    /// A request is larger than the device.
    TooLarge {
        /// Length of the request in sectors.
        blocks: u32,
        /// Capacity of the device in sectors.
        capacity: u64,
    },
    /// A request that zones do not allow.
    Zone {
        /// Number of the request in the trace, from 1.
        number: u64,
        /// Its first sector.
        lba: u64,
        /// Reason, and what was expected.
        why: String,
    },
    /// A setting is out of its range.
    Setting {
        /// Key of the setting.
        key: &'static str,
        /// Value of the setting.
        value: String,
        /// Description of the range.
        expected: &'static str,
    },
}

impl Problem {
    /// Makes the problem of a field with an invalid value.
    pub(super) fn field(text: &str, what: &'static str, expected: &'static str) -> Self {
        Self::Field { text: shorten(text), what, expected }
    }

    /// Returns the error of this problem at a line of a file.
    pub(super) fn at(self, file: &str, line: u64) -> TraceError {
        TraceError { file: file.to_owned(), line, problem: self }
    }
}

/// Returns the beginning of `text`, with control characters made visible.
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

/// Converts sectors to a size.
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
            Self::Zone { number, lba, why } => {
                write!(f, "request {number}, at sector {lba}, does not fit zones: {why}")
            }
            Self::Setting { key, value, expected } => write!(f, "{key} = {value}: expected {expected}"),
        }
    }
}

/// Lists the first few devices with their numbers of requests.
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
