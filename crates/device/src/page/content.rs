//! What a host would read now.

use super::buffer::Place;
use super::ftl::{Cx, PageFtl};
use flashweir_core::{Lpn, Payload};

/// Identity of the content of a page that should be readable and is not.
pub const UNREADABLE: u64 = 0xbad0_bad0_bad0_bad0;

/// The content of such a page. A copy of it is one as well, so that no error turns into data on its way.
pub(super) const LOST: Payload = Payload::Tag(UNREADABLE);

impl PageFtl {
    /// The newest content of a unit; `None` if it is unmapped.
    pub(super) fn newest(&self, cx: &Cx, lpn: Lpn) -> Option<Payload> {
        match self.buffer.place(self.map.get(lpn)) {
            Place::Nowhere => None,
            Place::Slot(slot) => Some(self.buffer.slot(slot).payload.clone()),
            Place::Unit(ppa) => {
                // An unreadable page is data loss; the marker is no pattern of any operation.
                Some(cx.flash.media.payload(ppa).unwrap_or(LOST))
            }
        }
    }
}
