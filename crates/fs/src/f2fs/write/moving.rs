//! A block that cleaning has moved and that has not arrived at its new place.

use flashweir_core::Payload;

/// Where its content is.
#[derive(Clone, Debug)]
pub(super) enum Moving {
    /// In memory: it is being written.
    Content(Payload),
    /// On the disk: a SHARE is under way, and who needs the content waits for it. Its old place may be free before a reader is done.
    Disk,
}
