//! What is wrong with a job file: where it stands, and enough data to say it in one line.

use flashweir_core::Bytes;
use std::fmt;

/// A job file that cannot run, with the place of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioError {
    /// Name of the job file, as the caller gave it.
    pub file: String,
    /// Line of the fault, from 1; 0 if it concerns the file as a whole.
    pub line: u32,
    /// What is wrong there.
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
    /// An environment variable that cannot stand in a value.
    Variable {
        /// As written.
        text: String,
        /// What is wrong with it.
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
        /// The section it stands in.
        section: String,
        /// The most similar valid name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// An option of fio that would change the requests in a way that is not modelled.
    Refused {
        /// The option.
        option: String,
        /// The section it stands in.
        section: String,
        /// Why.
        reason: &'static str,
    },
    /// A value that the option does not take.
    Value {
        /// The option.
        option: String,
        /// The section it stands in.
        section: String,
        /// The value as written; empty if it is missing.
        value: String,
        /// What would have been valid.
        expected: String,
    },
    /// A region that does not lie on the device.
    Beyond {
        /// The section.
        section: String,
        /// First byte of the region.
        offset: Bytes,
        /// Bytes in the region, if the job gives them.
        size: Option<Bytes>,
        /// Bytes on the device.
        capacity: Bytes,
    },
    /// Options that are valid alone and contradict each other.
    Conflict {
        /// The section.
        section: String,
        /// What contradicts what.
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
