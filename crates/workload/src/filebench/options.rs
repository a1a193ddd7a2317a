//! Options that the caller of a model sets.

use flashweir_core::Duration;

/// Options that the caller of a model sets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the run, in results and in the names of its random streams. Concurrent runs need different names.
    pub name: String,
    /// Seed of the random streams.
    pub seed: u64,
    /// Run time that replaces the file's own.
    pub runtime: Option<Duration>,
    /// Length of an interval of the series.
    pub interval: Duration,
    /// Ramp time at the start that does not count; the run time begins after it.
    pub ramp: Duration,
    /// Whether every flowop bypasses the page cache. Random numbers of bytes are then rounded up to pages.
    pub is_direct: bool,
    /// Whether every file that a flowop may write is opened as an atomic file: an fsync is an atomic commit of what was written to it.
    pub is_atomic: bool,
    /// CPU time of one step of `hog`, which writes to one address in memory. An estimate: three cycles of a 3 GHz CPU.
    pub hog_step: Duration,
}

impl Options {
    /// Makes options for a run of this name and seed, with the file's run time, in intervals of a second.
    pub fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            seed,
            runtime: None,
            interval: Duration::from_secs(1),
            ramp: Duration::ZERO,
            is_direct: false,
            is_atomic: false,
            hog_step: Duration::from_nanos(1),
        }
    }
}
