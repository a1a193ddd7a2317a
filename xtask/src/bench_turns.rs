//! Common part of comparisons with a rival: they take turns, so that other load on the machine affects all, and the median of the
//! turns counts.

/// Median of an odd number of turns.
pub(crate) fn median(mut turns: Vec<f64>) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}
