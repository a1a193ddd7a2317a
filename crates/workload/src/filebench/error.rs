//! What is wrong with a model, or with its run.

use flashweir_fs::vfs::Errno;
use std::fmt;

/// A `.f` file that cannot run, with the place of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// Line of the fault, from 1; 0 if it concerns the file as a whole.
    pub line: u32,
    /// What is wrong there.
    pub fault: Fault,
}

/// The kinds of fault in a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A word that is not one of those that are known here.
    Unknown {
        /// What it would have been, such as `command`, or `attribute of flowop`.
        what: String,
        /// As written.
        word: String,
        /// Those that are known.
        known: Vec<String>,
    },
    /// Something else than what has to stand here.
    Syntax {
        /// As written; empty at the end of the file.
        found: String,
        /// What would have been valid.
        expected: String,
    },
    /// An attribute, variable or argument with a value that it cannot have.
    Value {
        /// The attribute.
        name: String,
        /// As written, variables replaced; empty if it is missing.
        value: String,
        /// What would have been valid.
        expected: String,
    },
    /// An entity without something that it needs.
    Missing {
        /// The entity, such as "flowop `read`".
        entity: String,
        /// What it needs.
        needs: String,
    },
    /// Two entities of one name.
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

/// Why a run came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The files of a fileset could not be made.
    Files {
        /// The fileset.
        fileset: String,
        /// The path that failed.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// A call failed.
    Call {
        /// The flowop.
        flowop: String,
        /// The path, if one is known.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// A flowop cannot do what it is told.
    Flowop {
        /// The flowop.
        flowop: String,
        /// Why.
        reason: String,
    },
    /// Neither the file nor the caller says how long the model runs.
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
