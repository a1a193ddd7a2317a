//! Faults of a scenario or a device file, with their place and enough data for a message of one line.

use std::fmt;

/// A file that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The file, as the caller named it.
    pub file: String,
    /// The fault.
    pub fault: Box<Fault>,
}

impl ScenarioError {
    pub(super) fn new(file: &str, fault: Fault) -> Self {
        Self { file: file.to_owned(), fault: Box::new(fault) }
    }
}

/// The kinds of fault. A place reads like `device 0 (rflush)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is not TOML.
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// The file, or one that it names, cannot be read.
    Read {
        /// The file.
        path: String,
        /// Place of its name.
        place: String,
        /// Message of the system.
        reason: String,
    },
    /// A key is unknown in its place.
    Unknown {
        /// Dotted key, relative to the place.
        key: String,
        /// Place of the key.
        place: String,
        /// The known key that is spelled most like it.
        nearest: Option<String>,
        /// The known keys next to it.
        known: Vec<String>,
    },
    /// A required key is missing.
    Missing {
        /// Dotted key, relative to the place.
        key: String,
        /// Place at which it is missing.
        place: String,
        /// Kind of its value.
        expected: String,
    },
    /// A value has the wrong type or is none of the choices.
    Value {
        /// Dotted key, relative to the place.
        key: String,
        /// Place of the key.
        place: String,
        /// Value in the syntax of TOML.
        value: String,
        /// The choice that is spelled most like it.
        nearest: Option<String>,
        /// Values that would have been valid.
        expected: String,
    },
    /// A device preset does not exist.
    Preset {
        /// The name as written.
        name: String,
        /// Place that asks for it.
        place: String,
        /// The preset that is spelled most like it.
        nearest: Option<String>,
    },
    /// A `key=value` of the command line does not fit.
    Override {
        /// Text as given.
        text: String,
        /// The reason.
        reason: String,
    },
    /// All values have the right types, and together they make no sense.
    Invalid {
        /// Place.
        place: String,
        /// The reason, with key and value.
        reason: String,
    },
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.fault {
            Fault::Syntax { line, message } => write!(f, "{}:{line}: {message}", self.file),
            fault => write!(f, "{}: {fault}", self.file),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { message, .. } => f.write_str(message),
            Self::Read { path, place, reason } => write!(f, "cannot read `{path}` for {place}: {reason}"),
            Self::Unknown { key, place, nearest, known } => {
                write!(f, "unknown key `{key}` in {place}")?;
                hint(f, nearest.as_deref(), ". ")?;
                write!(f, "Known keys: {}", known.join(", "))
            }
            Self::Missing { key, place, expected } => {
                write!(f, "`{key}` is missing in {place}: expected {expected}")
            }
            Self::Value { key, place, value, nearest: None, expected } => {
                write!(f, "`{key}` in {place} cannot be {value}: expected {expected}")
            }
            Self::Value { key, place, value, nearest, expected } => {
                write!(f, "`{key}` in {place} cannot be {value}")?;
                hint(f, nearest.as_deref(), ". ")?;
                write!(f, "Expected {expected}")
            }
            Self::Preset { name, place, nearest } => {
                write!(f, "unknown preset `{name}` in {place}")?;
                hint(f, nearest.as_deref(), ". ")?;
                let names: Vec<_> = flashweir_device::presets::names().collect();
                write!(f, "Presets: {}", names.join(", "))
            }
            Self::Override { text, reason } => write!(f, "--set {text}: {reason}"),
            Self::Invalid { place, reason } => write!(f, "{place}: {reason}"),
        }
    }
}

/// Writes the suggestion, or `otherwise` without one.
fn hint(f: &mut fmt::Formatter<'_>, nearest: Option<&str>, otherwise: &str) -> fmt::Result {
    match nearest {
        Some(nearest) => write!(f, "; did you mean `{nearest}`? "),
        None => f.write_str(otherwise),
    }
}

impl std::error::Error for ScenarioError {}
