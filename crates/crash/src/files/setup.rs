//! The mount setup of a case, and the sizes of its volumes.

use super::bug::Bug;
use super::format::Format;
use flashweir_sim::stack::FlushMode;

/// Size of a volume in blocks. On a smaller one so few sections are free that every fsync makes a checkpoint.
pub const BLOCKS: u64 = (96 << 20) / 4096;

/// Blocks of an append segment.
pub const SEGMENT_BLOCKS: u32 = 512;

/// Bit in the seed of a base that makes it nearly full, with holes in its segments, so that space must be freed by
/// cleaning.
pub const FULL: u64 = 1 << 62;

/// Size of a full volume in blocks. Cleaning reserves most of them, and the rest is read quickly.
pub(super) const FULL_BLOCKS: u64 = (60 << 20) / 4096;

/// The mount setup of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// File system.
    pub format: Format,
    /// Flush mode of the host; the file system uses range flushes if the host does.
    pub mode: FlushMode,
    /// Seed of the base; options that must not matter depend on it.
    pub base: u64,
    /// Planted bug to be found.
    pub planted: Option<Bug>,
}

impl Setup {
    /// Makes a setup without a bug.
    pub fn new(format: Format, mode: FlushMode, base: u64) -> Self {
        Self { format, mode, base, planted: None }
    }
}
