//! Task attributes: how the device's queue may reorder a command.
//!
//! Place in the data flow: the configuration sets the attribute of flushes; the block layer gives one to each command
//! that it offers.

use serde::{Deserialize, Serialize};

/// The attribute of a task in the device's queue (SCSI Architecture Model).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskAttribute {
    /// In any order among other simple tasks.
    #[default]
    Simple,
    /// After everything that arrived before it, and before everything that arrives after it.
    Ordered,
    /// Before everything else.
    HeadOfQueue,
}
