//! What is wrong with a scenario or a device file: where it stands, and enough data to say it in one line.

use std::fmt;

/// A file that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The file, as the caller named it.
    pub file: String,
    /// What is wrong in it.
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
        /// From 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A file that is named in it, or the file itself, cannot be read.
    Read {
        /// The file.
        path: String,
        /// Where it is named.
        place: String,
        /// What the system says.
        reason: String,
    },
    /// A key that has no meaning in its place.
    Unknown {
        /// With dots, from the place on.
        key: String,
        /// Where it stands.
        place: String,
        /// The known key that is spelled most like it.
        nearest: Option<String>,
        /// The known keys next to it.
        known: Vec<String>,
    },
    /// A key that must be there.
    Missing {
        /// With dots, from the place on.
        key: String,
        /// Where it is missing.
        place: String,
        /// What it holds.
        expected: String,
    },
    /// A value of the wrong type or out of the choice.
    Value {
        /// With dots, from the place on.
        key: String,
        /// Where it stands.
        place: String,
        /// As TOML writes it.
        value: String,
        /// The choice that is spelled most like it.
        nearest: Option<String>,
        /// What would have been valid.
        expected: String,
    },
    /// A device preset that does not exist.
    Preset {
        /// The name as written.
        name: String,
        /// Where it is asked for.
        place: String,
        /// The preset that is spelled most like it.
        nearest: Option<String>,
    },
    /// A `key=value` of the command line that does not fit.
    Override {
        /// As given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// All values are of their types, and together they make no sense.
    Invalid {
        /// Where.
        place: String,
        /// What is wrong, with key and value.
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

/// The suggestion, or `otherwise` without one.
fn hint(f: &mut fmt::Formatter<'_>, nearest: Option<&str>, otherwise: &str) -> fmt::Result {
    match nearest {
        Some(nearest) => write!(f, "; did you mean `{nearest}`? "),
        None => f.write_str(otherwise),
    }
}

impl std::error::Error for ScenarioError {}
