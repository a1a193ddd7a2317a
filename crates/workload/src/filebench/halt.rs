//! Why a thread of a model ends: the thread says it, the run draws the conclusions.

use super::error::RunError;

/// Why a thread ends.
#[derive(Debug)]
pub(super) enum Halt {
    /// The run is over.
    Over,
    /// There is no file of the kind that a flowop needs: the work is done.
    NoFile(String),
    /// Something went wrong.
    Failed(RunError),
}
