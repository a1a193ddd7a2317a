//! The ranges of commands in mapping units.

use crate::geometry::Geometry;
use flashweir_core::{Lba, Op};

/// The mapping units that a range touches, and whether it covers its first and last unit only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) partial_first: bool,
    pub(crate) partial_last: bool,
}

impl Span {
    #[inline]
    pub(crate) fn new(lba: Lba, blocks: u32, geometry: &Geometry) -> Self {
        let (first, rest_first) = geometry.unit_of(lba);
        let (end, rest_last) = geometry.unit_of(Lba(lba.0 + u64::from(blocks)));
        Self {
            first: first.0,
            end: end.0 + u64::from(rest_last > 0),
            partial_first: rest_first > 0,
            partial_last: rest_last > 0,
        }
    }

    #[inline]
    pub(crate) fn is_partial(&self, unit: u64) -> bool {
        (self.partial_first && unit == self.first) || (self.partial_last && unit + 1 == self.end)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        (self.end - self.first) as u32
    }
}

/// The range of sectors that a command names, if it names one.
pub(crate) fn range(op: &Op) -> Option<(Lba, u32)> {
    match op {
        Op::Read { lba, blocks }
        | Op::Write { lba, blocks, .. }
        | Op::WriteZeroes { lba, blocks }
        | Op::Trim { lba, blocks } => Some((*lba, *blocks)),
        _ => None,
    }
}
