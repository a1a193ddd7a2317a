//! Out-of-band records: what a physical unit stores about itself, beside its content (`specs/device-metadata.md`,
//! contract §8.1).
//!
//! Place: a device's own firmware writes them, and so does a host FTL that has the physical addresses; recovery of
//! either reads nothing else.

use crate::units::{Lpn, SegmentId, StreamId};

/// Owner of the content of a physical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Padding of a page that was not full.
    Pad,
    /// A logical page.
    Lpn(Lpn),
    /// A copy for a logical page, which counts only by the record of the SHARE that names it (share §4.5).
    Vpid(u64),
    /// A unit of an append segment (append-segments §3).
    Seg {
        /// Number of the segment, at most 29 bits.
        segment: SegmentId,
        /// Number of the unit within the segment.
        offset: u32,
    },
    /// A page of metadata.
    Meta,
}

const LPN: u64 = 1 << 62;
const VPID: u64 = 2 << 62;
/// Numbers of shared pages and segments have 61 bits.
const SEG: u64 = VPID | 1 << 61;
const META: u64 = 3 << 62;

impl Owner {
    /// Encodes the owner as one word: 62 bits for a logical page's number, 61 for a shared page's, 29 for a segment's.
    #[inline]
    pub fn pack(self) -> u64 {
        match self {
            Self::Pad => 0,
            Self::Lpn(lpn) => LPN | lpn.0,
            Self::Vpid(vpid) => {
                debug_assert!(vpid < 1 << 61, "shared page {vpid} has a number of 61 bits");
                VPID | vpid
            }
            Self::Seg { segment, offset } => {
                debug_assert!(segment.0 < 1 << 29, "segment {} has a number of 29 bits", segment.0);
                SEG | u64::from(segment.0) << 32 | u64::from(offset)
            }
            Self::Meta => META,
        }
    }

    /// Decodes a word of [`Self::pack`].
    #[inline]
    pub fn unpack(word: u64) -> Self {
        match word >> 61 {
            0 | 1 => Self::Pad,
            2 | 3 => Self::Lpn(Lpn(word & (LPN - 1))),
            4 => Self::Vpid(word & ((SEG ^ VPID) - 1)),
            5 => Self::Seg { segment: SegmentId((word >> 32) as u32 & ((1 << 29) - 1)), offset: word as u32 },
            _ => Self::Meta,
        }
    }

    /// Whether the numbers fit into one word.
    pub fn fits(self) -> bool {
        match self {
            Self::Pad | Self::Meta => true,
            Self::Lpn(lpn) => lpn.0 < LPN,
            Self::Vpid(vpid) => vpid < 1 << 61,
            Self::Seg { segment, .. } => segment.0 < 1 << 29,
        }
    }
}

/// What an ordered version or deallocation says about the epochs of its stream (contract §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Stream it belongs to.
    pub stream: StreamId,
    /// Its epoch in that stream, counted from 1 in each boot.
    pub epoch: u32,
    /// Number of members of the previous epoch.
    pub previous: u16,
    /// Number of epochs from the last complete one, at the time of the write, to its own; 255 if the number does not fit.
    pub distance: u8,
    /// Whether an orderless version replaced a member in the buffer: it counts as that member and depends on nothing.
    pub orderless: bool,
}

/// The out-of-band record of one physical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OobRecord {
    /// Owner of the content.
    pub owner: Owner,
    /// Sequence number of the version.
    pub seq: u64,
    /// Its place in the order of a stream, if it was ordered.
    pub member: Option<Member>,
}

impl OobRecord {
    /// Size of a record on the medium and on the link, in bytes.
    pub const BYTES: u64 = 32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_owner_is_read_back(number in any::<u64>(), offset in any::<u32>()) {
            let segment = SegmentId(number as u32 >> 3);
            let owners = [
                Owner::Pad,
                Owner::Lpn(Lpn(number >> 2)),
                Owner::Vpid(number >> 3),
                Owner::Seg { segment, offset },
                Owner::Meta,
            ];
            for owner in owners {
                prop_assert!(owner.fits());
                prop_assert_eq!(Owner::unpack(owner.pack()), owner);
            }
            prop_assert!(!Owner::Lpn(Lpn(number | 1 << 63)).fits());
        }
    }
}
