//! What the out-of-band area of a unit says, and units on their way to the medium (`specs/device-metadata.md`).

use flashweir_core::{Lpn, Payload};
use flashweir_ftl::recovery::Member;

/// Whose content a physical unit holds, as its out-of-band area says (`specs/device-metadata.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Filler of a page that was not full.
    Pad,
    /// A logical page.
    Lpn(Lpn),
    /// A page of the device's own metadata.
    Meta,
}

const META: u64 = 3 << 62;
const LPN: u64 = 1 << 62;

impl Owner {
    #[inline]
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::Pad => 0,
            Self::Lpn(lpn) => LPN | lpn.0,
            Self::Meta => META,
        }
    }

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        match word >> 62 {
            0 => Self::Pad,
            1 => Self::Lpn(Lpn(word & (LPN - 1))),
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
