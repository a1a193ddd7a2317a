//! What the operations of the open channel do when they have ended.

/// The firmware's name for an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Units of one page.
    Read {
        /// The command's number in the device.
        command: u32,
    },
    /// One page.
    Program {
        /// The command's number in the device.
        command: u32,
        /// Which of its places is the first one of the page.
        first: u32,
    },
    /// One block.
    Erase {
        /// The command's number in the device.
        command: u32,
    },
}
