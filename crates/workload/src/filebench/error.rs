//! Faults of a model, or of its run.

use flashweir_fs::vfs::Errno;
use std::fmt;

/// A `.f` file that cannot run, with the position of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// Line of the fault, from 1; 0 if it concerns the file as a whole.
    pub line: u32,
    /// The fault.
    pub fault: Fault,
}

/// The kinds of fault in a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An unknown word.
    Unknown {
        /// Role of the word, such as `command`, or `attribute of flowop`.
        what: String,
        /// As written.
        word: String,
        /// Known words for this role.
        known: Vec<String>,
    },
    /// Unexpected syntax.
    Syntax {
        /// As written; empty at the end of the file.
        found: String,
        /// Description of valid syntax.
        expected: String,
    },
    /// An attribute, variable or argument with an invalid value.
    Value {
        /// Name of the attribute.
        name: String,
        /// As written, with variables replaced; empty if it is missing.
        value: String,
        /// Description of valid values.
        expected: String,
    },
    /// An entity that lacks something it needs.
    Missing {
        /// The entity, such as "flowop `read`".
        entity: String,
        /// What is missing.
        needs: String,
    },
    /// Two entities of the same name.
    Twice {
        /// The entity.
        entity: String,
    },
}

impl fmt::Display for ModelError {
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
            Self::Unknown { what, word, known } if known.is_empty() => {
                write!(f, "`{word}` is not a known {what}; there is none")
            }
            Self::Unknown { what, word, known } => {
                write!(f, "`{word}` is not a known {what}: known are {}", known.join(", "))
            }
            Self::Syntax { found, expected } if found.is_empty() => {
                write!(f, "the file ends where {expected} was expected")
            }
            Self::Syntax { found, expected } => write!(f, "`{found}` stands where {expected} was expected"),
            Self::Value { name, value, expected } if value.is_empty() => {
                write!(f, "`{name}` needs a value: expected {expected}")
            }
            Self::Value { name, value, expected } => {
                write!(f, "`{name}` cannot be `{value}`: expected {expected}")
            }
            Self::Missing { entity, needs } => write!(f, "{entity} needs {needs}"),
            Self::Twice { entity } => write!(f, "{entity} is defined twice"),
        }
    }
}

impl std::error::Error for ModelError {}

/// Reason why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The files of a fileset could not be created.
    Files {
        /// The fileset.
        fileset: String,
        /// The path that failed.
        path: String,
        /// Error of the call.
        errno: Errno,
    },
    /// A call failed.
    Call {
        /// Name of the flowop.
        flowop: String,
        /// The path, if one is known.
        path: String,
        /// Error of the call.
        errno: Errno,
    },
    /// A flowop cannot do what it is asked to do.
    Flowop {
        /// Name of the flowop.
        flowop: String,
        /// Reason.
        reason: String,
    },
    /// Neither the file nor the caller sets the run time of the model.
    NoEnd,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files { fileset, path, errno } => write!(f, "fileset `{fileset}`: {path}: {errno}"),
            Self::Call { flowop, path, errno } => write!(f, "flowop `{flowop}`: {path}: {errno}"),
            Self::Flowop { flowop, reason } => write!(f, "flowop `{flowop}`: {reason}"),
            Self::NoEnd => write!(
                f,
                "the model has no end: expected `run SECONDS`, a runtime from the caller, or a finishon flowop"
            ),
        }
    }
}

impl std::error::Error for RunError {}
