//! A block that cleaning has moved and that has not arrived at its new place.

use super::super::layout::Addr;
use flashweir_core::Payload;

/// Where its content is.
#[derive(Clone, Debug)]
pub(super) enum Moving {
    /// In memory: it is being written.
    Content(Payload),
    /// At its old place: a SHARE is under way.
    From(Addr),
}
