//! How a case has the file system mounted, and how large its volumes are.

use super::bug::Bug;
use super::format::Format;
use flashweir_sim::stack::FlushMode;

/// With less, so few sections are free that every fsync is a checkpoint.
pub const BLOCKS: u64 = (96 << 20) / 4096;

/// A base whose seed has this bit is nearly full, and its segments have holes: room has to be made by cleaning.
pub const FULL: u64 = 1 << 62;

/// Blocks of a volume that is full. Cleaning keeps most of them for itself, and what is left is read in no time.
pub(super) const FULL_BLOCKS: u64 = (60 << 20) / 4096;

/// How a case has the file system mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Which it is.
    pub format: Format,
    /// What the host makes of flushes; the file system uses range flushes where the host does.
    pub mode: FlushMode,
    /// Seed of the base, on which options depend that must not matter.
    pub base: u64,
    /// A bug to be found.
    pub planted: Option<Bug>,
}

impl Setup {
    /// Without a bug.
    pub fn new(format: Format, mode: FlushMode, base: u64) -> Self {
        Self { format, mode, base, planted: None }
    }
}
