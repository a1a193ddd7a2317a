//! What the caller of a model decides.

use flashweir_core::Duration;

/// What the caller of a model decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the run, in results and in the names of its random streams. Runs side by side have different names.
    pub name: String,
    /// Seed of the random streams.
    pub seed: u64,
    /// Takes the place of the file's own time.
    pub runtime: Option<Duration>,
    /// Length of an interval of the series.
    pub interval: Duration,
    /// Time at the start that does not count; the time of the run begins after it.
    pub ramp: Duration,
    /// Every flowop goes past the page cache. What filebench would draw as any number of bytes is rounded up to pages then.
    pub is_direct: bool,
    /// CPU time of one step of `hog`, which writes to one place in memory. A guess: three cycles of a 3 GHz CPU.
    pub hog_step: Duration,
}

impl Options {
    /// A run of this name and seed, for as long as the file says, in intervals of a second.
    pub fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            seed,
            runtime: None,
            interval: Duration::from_secs(1),
            ramp: Duration::ZERO,
            is_direct: false,
            hog_step: Duration::from_nanos(1),
        }
    }
}
