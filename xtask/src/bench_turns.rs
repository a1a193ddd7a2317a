//! What benches beside a rival have in common: both take turns, so that what the machine does meanwhile hits all, and the middle
//! one of the turns counts.

/// The middle one of an odd number of turns.
pub(crate) fn median(mut turns: Vec<f64>) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}
