//! What the out-of-band area of a unit says, and units on their way to the medium (`specs/device-metadata.md`).

use flashweir_core::command::SegmentId;
use flashweir_core::{Lpn, Payload};
use flashweir_ftl::recovery::Member;

/// Whose content a physical unit holds, as its out-of-band area says (`specs/device-metadata.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Filler of a page that was not full.
    Pad,
    /// A logical page.
    Lpn(Lpn),
    /// A page that several logical pages share, by its number among those (share §3).
    Vpid(u64),
    /// A unit of an append segment (append-segments §3).
    Seg {
        /// The segment; 29 bits have room.
        segment: SegmentId,
        /// The unit's number in it.
        offset: u32,
    },
    /// A page of the device's own metadata.
    Meta,
}

const LPN: u64 = 1 << 62;
const VPID: u64 = 2 << 62;
/// Shared pages and segments have 61 bits.
const SEG: u64 = VPID | 1 << 61;
const META: u64 = 3 << 62;

impl Owner {
    #[inline]
    pub(super) fn pack(self) -> u64 {
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

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        match word >> 61 {
            0 | 1 => Self::Pad,
            2 | 3 => Self::Lpn(Lpn(word & (LPN - 1))),
            4 => Self::Vpid(word & ((SEG ^ VPID) - 1)),
            5 => Self::Seg { segment: SegmentId((word >> 32) as u32 & ((1 << 29) - 1)), offset: word as u32 },
            _ => Self::Meta,
        }
    }
}

/// One unit to be programmed.
#[derive(Clone, Debug)]
pub struct UnitImage {
    /// Whose content it is.
    pub owner: Owner,
    /// Sequence number of the version.
    pub seq: u64,
    /// Its place in the order of a stream, if it has one.
    pub member: Option<Member>,
    /// The content; ignored where contents are not tracked.
    pub payload: Payload,
}

impl UnitImage {
    /// For a medium that does not keep contents.
    pub fn without_content(owner: Owner, seq: u64) -> Self {
        Self { owner, seq, member: None, payload: Payload::Zero }
    }

    /// Filler.
    pub(crate) fn pad() -> Self {
        Self::without_content(Owner::Pad, 0)
    }
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
                prop_assert_eq!(Owner::unpack(owner.pack()), owner);
            }
        }
    }
}
