//! Closed forms for write amplification under uniform random writes.
//!
//! Sources: FIFO (LRU) GC after Desnoyers, "Analytic modeling of SSD write performance" (SYSTOR 2012), and Robinson; greedy GC
//! after Bux and Iliadis (Performance Evaluation 2010) and Van Houdt's mean field (SIGMETRICS 2013), of which greedy is the limit
//! of many choices.

/// Write amplification of FIFO GC; `utilisation` is user units over physical units.
///
/// A unit of a block that is collected again after `1/utilisation · A⁻¹` user turn-overs survives with probability `v = exp(−(1 −
/// v) / utilisation)`, and `A = 1 / (1 − v)`.
pub fn fifo(utilisation: f64) -> f64 {
    assert!(utilisation > 0.0 && utilisation < 1.0, "utilisation {utilisation} is outside (0, 1)");
    let mut survivors = 0.5_f64;
    for _ in 0..10_000 {
        survivors = (-(1.0 - survivors) / utilisation).exp();
    }
    1.0 / (1.0 - survivors)
}

/// Write amplification of greedy GC for blocks of `units` units, from the mean field of the d-choices policy as d grows: in the
/// limit all blocks at victim choice have at least `m` valid units, and the drift equations of the occupancy close. Solved by
/// iterating the occupancy of blocks in time until it is stationary.
///
/// The state is the distribution of valid units over closed blocks. Between two collections `(units − v)` user writes each
/// invalidate a random valid unit.
pub fn greedy(utilisation: f64, units: u32) -> f64 {
    d_choices(utilisation, units, f64::INFINITY)
}

/// Write amplification of d-choices GC (Van Houdt 2013); `d = ∞` is greedy.
pub fn d_choices(utilisation: f64, units: u32, d: f64) -> f64 {
    assert!(utilisation > 0.0 && utilisation < 1.0, "utilisation {utilisation} is outside (0, 1)");
    let b = units as usize;
    // w[i]: fraction of blocks with i valid units. Start: all as full as the mean allows.
    let mut w = vec![0.0; b + 1];
    let mean = utilisation * f64::from(units);
    let low = mean.floor() as usize;
    w[low + 1] = mean - low as f64;
    w[low] = 1.0 - w[low + 1];
    let dt = 0.2 / f64::from(units);
    let mut amplification = 0.0;
    for step in 0..400_000 {
        let p = victim_distribution(&w, d);
        let survivors: f64 = p.iter().enumerate().map(|(i, p)| i as f64 * p).sum();
        // One collection per unit of time; each frees (b − survivors) units, which user writes fill, and each user write
        // invalidates one of the `mean` valid units per block, chosen uniformly.
        let writes = f64::from(units) - survivors;
        let mut next = w.clone();
        for i in 0..=b {
            next[i] -= dt * p[i];
            let leave = dt * writes * i as f64 / mean;
            next[i] -= leave * w[i];
            if i > 0 {
                next[i - 1] += leave * w[i];
            }
        }
        next[b] += dt;
        // The explicit step may undershoot where greedy empties a state; the deficit is taken from the next fuller state.
        let mut debt = 0.0;
        for entry in &mut next {
            *entry -= debt;
            debt = 0.0;
            if *entry < 0.0 {
                debt = -*entry;
                *entry = 0.0;
            }
        }
        let before = amplification;
        amplification = f64::from(units) / writes;
        w = next;
        if step > 2_000 && step % 1_000 == 0 && (amplification - before).abs() < 1e-12 {
            break;
        }
    }
    amplification
}

/// Probability that the victim has i valid units.
fn victim_distribution(w: &[f64], d: f64) -> Vec<f64> {
    if d.is_infinite() {
        let mut p = vec![0.0; w.len()];
        // Greedy takes the emptiest blocks; what one time step takes is a thin slice, spread over the lowest
        // occupied states until it is covered.
        let slice = 0.2 / (w.len() - 1) as f64;
        let mut left = slice;
        for (i, &mass) in w.iter().enumerate() {
            let take = mass.min(left);
            p[i] = take / slice;
            left -= take;
            if left <= 0.0 {
                break;
            }
        }
        return p;
    }
    let mut p = vec![0.0; w.len()];
    let mut tail: f64 = w.iter().sum();
    for (i, &mass) in w.iter().enumerate() {
        let rest = (tail - mass).max(0.0);
        p[i] = tail.powf(d) - rest.powf(d);
        tail = rest;
    }
    p
}
