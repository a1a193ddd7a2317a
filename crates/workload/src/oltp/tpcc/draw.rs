//! The distribution by which keys are drawn (clause 2.1.6).

use flashweir_core::RandomStream;

/// Constants of the distribution by which keys are drawn (clause 2.1.6).
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants {
    pub(super) last_load: u64,
    pub(super) last_run: u64,
    pub(super) customer: u64,
    pub(super) item: u64,
}

impl Constants {
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let mut stream = RandomStream::new(seed, &format!("tpcc.{name}.constants"));
        let last_load = stream.below(256);
        // Clause 2.1.6.1: the two differ by 65 to 119, but neither by 96 nor by 112.
        let last_run = loop {
            let other = stream.below(256);
            let delta = last_load.abs_diff(other);
            if (65..=119).contains(&delta) && delta != 96 && delta != 112 {
                break other;
            }
        };
        Self { last_load, last_run, customer: stream.below(1024), item: stream.below(8192) }
    }
}

/// Draws `NURand(a, 0, count - 1)` with constant `c`: a number below `count` (clause 2.1.6).
pub(super) fn nurand(stream: &mut RandomStream, a: u64, c: u64, count: u64) -> u64 {
    ((stream.below(a + 1) | stream.below(count)) + c) % count
}
