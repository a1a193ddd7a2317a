//! Units on their way to the medium.

use flashweir_core::Payload;
use flashweir_core::oob::{Member, OobRecord, Owner};
use std::sync::Arc;

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

    /// A unit with this out-of-band record.
    pub(crate) fn with_record(record: OobRecord, payload: Payload) -> Self {
        let OobRecord { owner, seq, member } = record;
        Self { owner, seq, member, payload }
    }

    /// A page of metadata of the group, or translation page of the state, with this number.
    pub(crate) fn meta(number: u64, image: Arc<[u8]>) -> Self {
        Self { owner: Owner::Meta, seq: number, member: None, payload: Payload::Bytes(image) }
    }

    /// Filler.
    pub(crate) fn pad() -> Self {
        Self::without_content(Owner::Pad, 0)
    }
}
