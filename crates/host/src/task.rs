//! The attribute of a task: what the device's queue may do with a command.
//!
//! Place in the data flow: the configuration names the one of flushes, the block layer gives one to each command that it offers.

use serde::{Deserialize, Serialize};

/// The attribute of a task in the device's queue (SCSI Architecture Model).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskAttribute {
    /// In any order with other simple ones.
    #[default]
    Simple,
    /// After everything that came before it, and before everything that comes after.
    Ordered,
    /// Before everything.
    HeadOfQueue,
}
