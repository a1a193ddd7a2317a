//! Events and effects: what a device asks of its driver.

use crate::flash::NandEvent;
use flashweir_core::{CommandId, Completion, Instant};

/// An event that the device schedules for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An event of the NAND machine.
    Nand(NandEvent),
    /// The buffer memory has moved the data of a command.
    BufferMemory {
        /// Number of the command in the device.
        command: u32,
    },
}

/// A request of the device to its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Call [`crate::Device::event`] at this instant.
    At(Instant, Event),
    /// A command that changes state has its place in the order of all such commands (contract §1.1).
    Accepted {
        /// The host's id of the command.
        id: CommandId,
        /// Sequence number of the command.
        seq: u64,
    },
    /// Send this to the host.
    Complete(Completion),
}
