//! What a device asks of whoever drives it.

use crate::flash::NandEvent;
use flashweir_core::{CommandId, Completion, Instant};

/// A moment that the device asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The NAND machine's.
    Nand(NandEvent),
    /// The buffer memory has taken the data of a command, or given them.
    BufferMemory {
        /// Number of the command in the device.
        command: u32,
    },
}

/// What the device wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Call [`crate::Device::event`] at this instant.
    At(Instant, Event),
    /// A command that changes something has its place in the order of all (contract §1.1).
    Accepted {
        /// The host's name for it.
        id: CommandId,
        /// Its sequence number.
        seq: u64,
    },
    /// Send this to the host.
    Complete(Completion),
}
