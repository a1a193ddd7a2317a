//! Units on their way to the medium, with their out-of-band data.

use flashweir_core::Payload;
use flashweir_core::oob::{Member, OobRecord, Owner};
use std::sync::Arc;

/// One unit to be programmed.
#[derive(Clone, Debug)]
pub struct UnitImage {
    /// Owner of the content.
    pub owner: Owner,
    /// Sequence number of the version.
    pub seq: u64,
    /// Place in the order of a stream, if the unit has one.
    pub member: Option<Member>,
    /// The content; ignored where contents are not tracked.
    pub payload: Payload,
}

impl UnitImage {
    /// Returns a unit for a medium that does not keep contents.
    pub fn without_content(owner: Owner, seq: u64) -> Self {
        Self { owner, seq, member: None, payload: Payload::Zero }
    }

    /// Returns a unit with this out-of-band record.
    pub(crate) fn with_record(record: OobRecord, payload: Payload) -> Self {
        let OobRecord { owner, seq, member } = record;
        Self { owner, seq, member, payload }
    }

    /// Returns a page of metadata; `number` is that of its group, or of the state of a translation page.
    pub(crate) fn meta(number: u64, image: Arc<[u8]>) -> Self {
        Self { owner: Owner::Meta, seq: number, member: None, payload: Payload::Bytes(image) }
    }

    /// Returns a unit of filler.
    pub(crate) fn pad() -> Self {
        Self::without_content(Owner::Pad, 0)
    }
}
