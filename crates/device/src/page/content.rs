//! The content that a host would read now.

use super::buffer::Place;
use super::ftl::{Cx, PageFtl};
use crate::flash::UNREADABLE;
use flashweir_core::{Lpn, Payload};

/// The content of such a page. A copy of it has the same content, so that no error turns into data when it is moved.
pub(super) const LOST: Payload = Payload::Tag(UNREADABLE);

impl PageFtl {
    /// The newest content of a unit; `None` if it is unmapped.
    pub(super) fn newest(&self, cx: &Cx, lpn: Lpn) -> Option<Payload> {
        match self.newest_place(lpn) {
            Place::Nowhere | Place::Shared(_) => None,
            Place::Slot(slot) => Some(self.buffer.slot(slot).payload.clone()),
            // An unreadable page is data loss; no operation writes this marker as a pattern.
            Place::Unit(ppa) => Some(cx.flash.media.payload(ppa).unwrap_or(LOST)),
        }
    }
}
