//! Reasons why a thread of a model ends: the thread reports one, the run reacts to it.

use super::error::RunError;

/// Reason why a thread ends.
#[derive(Debug)]
pub(super) enum Halt {
    /// The run is over.
    Over,
    /// No file of the kind that a flowop needs exists: the work is done.
    NoFile(String),
    /// An error occurred.
    Failed(RunError),
}
