//! The jobs of the open channel's operations.

/// The firmware's name for an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Reads units of one page.
    Read {
        /// The command's number in the device.
        command: u32,
    },
    /// Programs one page.
    Program {
        /// The command's number in the device.
        command: u32,
        /// Position in the command's list of addresses of the page's first unit.
        first: u32,
    },
    /// Erases one block.
    Erase {
        /// The command's number in the device.
        command: u32,
    },
}
