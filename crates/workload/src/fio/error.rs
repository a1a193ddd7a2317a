//! Faults of a job file: the position, and enough data for a message of one line.

use flashweir_core::Bytes;
use std::fmt;

/// A job file that cannot run, with the position of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioError {
    /// Name of the job file, as the caller gave it.
    pub file: String,
    /// Line of the fault, from 1; 0 if it concerns the file as a whole.
    pub line: u32,
    /// The fault.
    pub fault: Box<Fault>,
}

/// The kinds of fault in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A section header without its closing bracket or without a name.
    Header {
        /// The line as written.
        text: String,
    },
    /// An option before the first section.
    Outside {
        /// The line as written.
        text: String,
    },
    /// The file defines no job.
    NoJobs,
    /// An environment variable that is not allowed in a value.
    Variable {
        /// As written.
        text: String,
        /// Reason why it is not allowed.
        problem: &'static str,
    },
    /// A directive that needs more than this file.
    Directive {
        /// The directive.
        name: &'static str,
    },
    /// No option of fio has this name.
    Unknown {
        /// The name as written.
        option: String,
        /// Section that contains it.
        section: String,
        /// The most similar valid name, if there is one.
        nearest: Option<&'static str>,
    },
    /// An option of fio that would change the requests in a way that is not modelled.
    Refused {
        /// The option.
        option: String,
        /// Section that contains it.
        section: String,
        /// Reason of the refusal.
        reason: &'static str,
    },
    /// A value that the option does not accept.
    Value {
        /// The option.
        option: String,
        /// Section that contains it.
        section: String,
        /// The value as written; empty if it is missing.
        value: String,
        /// Description of valid values.
        expected: String,
    },
    /// A region that does not lie on the device.
    Beyond {
        /// The section.
        section: String,
        /// First byte of the region.
        offset: Bytes,
        /// Size of the region, if the job gives it.
        size: Option<Bytes>,
        /// Capacity of the device.
        capacity: Bytes,
    },
    /// Options that are valid separately but contradict each other.
    Conflict {
        /// The section.
        section: String,
        /// Description of the contradiction.
        reason: String,
    },
}

impl fmt::Display for FioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.fault),
            line => write!(f, "{}:{line}: {}", self.file, self.fault),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { text } => {
                write!(f, "`{text}` is not a section header: expected a name in brackets, as in [writer]")
            }
            Self::Outside { text } => write!(f, "`{text}` stands outside of any section"),
            Self::NoJobs => write!(f, "no job is defined: expected a section such as [writer]"),
            Self::Variable { text, problem } => write!(f, "`{text}` {problem}"),
            Self::Directive { name } => write!(f, "`{name}` is not supported in job files"),
            Self::Unknown { option, section, nearest } => {
                write!(f, "unknown option `{option}` in [{section}]")?;
                nearest.map_or(Ok(()), |nearest| write!(f, "; did you mean `{nearest}`?"))
            }
            Self::Refused { option, section, reason } => {
                write!(f, "option `{option}` in [{section}] is not supported: {reason}")
            }
            Self::Value { option, section, value, expected } if value.is_empty() => {
                write!(f, "option `{option}` in [{section}] needs a value: expected {expected}")
            }
            Self::Value { option, section, value, expected } => {
                write!(f, "option `{option}` in [{section}] cannot be `{value}`: expected {expected}")
            }
            Self::Beyond { section, offset, size: Some(size), capacity } => write!(
                f,
                "[{section}] reaches beyond the device: offset {offset} and size {size} on {capacity}"
            ),
            Self::Beyond { section, offset, size: None, capacity } => {
                write!(f, "[{section}] begins beyond the device: offset {offset} on {capacity}")
            }
            Self::Conflict { section, reason } => write!(f, "[{section}]: {reason}"),
        }
    }
}

impl std::error::Error for FioError {}
