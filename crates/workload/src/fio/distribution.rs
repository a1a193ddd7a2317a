//! Random addresses: permutations that visit each address once, and fio's skewed distributions.
//!
//! Invariants: a generator for `n` addresses returns addresses below `n`; equal streams give equal addresses; nothing
//! is allocated after construction.
//!
//! The uniform case uses integers only. The skewed ones use `ln`, `exp` and `powf`, whose last bit depends on the
//! platform.

use super::spec::{Distribution, Zone};
use flashweir_core::random::{RandomStream, mix};

/// Rounds of a permutation: enough that consecutive inputs give unrelated results.
const ROUNDS: usize = 3;

/// A keyed bijection on `0..len`, which mixes within the next power of two and repeats until the result is in range.
/// Less than half of the numbers are out of range, so this takes two steps on average.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    len: u64,
    mask: u64,
    shift: u32,
    keys: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// Makes the permutation of `0..len` that belongs to `key`; `len` must not be zero.
    pub(crate) fn new(len: u64, key: u64) -> Self {
        assert!(len > 0, "an empty range has no permutation");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mask = if bits == u64::BITS { u64::MAX } else { (1 << bits) - 1 };
        let keys = std::array::from_fn(|round| {
            let key = mix(key.wrapping_add(round as u64));
            (mix(key) | 1, mix(!key))
        });
        Self { len, mask, shift: bits.div_ceil(2).max(1), keys }
    }

    /// Performs one step on `0..=mask`. Odd factors, sums and shifted exclusive ors are each invertible there.
    #[inline]
    fn step(&self, mut x: u64) -> u64 {
        for (factor, summand) in self.keys {
            x = x.wrapping_mul(factor).wrapping_add(summand) & self.mask;
            x ^= x >> self.shift;
        }
        x
    }

    /// Returns the image of `x`, which must be below the length.
    #[inline]
    pub(crate) fn at(&self, x: u64) -> u64 {
        debug_assert!(x < self.len);
        let mut x = self.step(x);
        while x >= self.len {
            x = self.step(x);
        }
        x
    }
}

/// Visits each of `0..len` once per pass, in a different order each time.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    order: Permutation,
    next: u64,
}

impl Sweep {
    /// Makes a sweep over `0..len`; each pass takes its key from `stream`.
    pub(super) fn new(len: u64, stream: &mut RandomStream) -> Self {
        Self { order: Permutation::new(len, stream.next_u64()), next: 0 }
    }

    /// Returns the next address.
    #[inline]
    pub(super) fn next(&mut self, stream: &mut RandomStream) -> u64 {
        if self.next == self.order.len {
            *self = Self::new(self.order.len, stream);
        }
        let address = self.order.at(self.next);
        self.next += 1;
        address
    }
}

/// Ranks `1..=n` with a likelihood proportional to `rank^-theta`: rejection-inversion after W. Hörmann and
/// G. Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions" (1996).
/// It is exact and needs no sum over all ranks.
#[derive(Clone, Debug)]
pub(crate) struct ZipfRanks {
    n: f64,
    theta: f64,
    area_first: f64,
    area_last: f64,
    shortcut: f64,
}

impl ZipfRanks {
    /// Number of tries after which a rank is accepted unconditionally; each fails with a probability below one half.
    const TRIES_MAX: u32 = 64;

    pub(crate) fn new(n: u64, theta: f64) -> Self {
        let mut ranks = Self { n: n as f64, theta, area_first: 0.0, area_last: 0.0, shortcut: 0.0 };
        ranks.area_first = ranks.area(1.5) - 1.0;
        ranks.area_last = ranks.area(ranks.n + 0.5);
        ranks.shortcut = 2.0 - ranks.area_inverse(ranks.area(2.5) - ranks.height(2.0));
        ranks
    }

    fn height(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// Integral of the height from 1 to `x`, computed with `expm1` because `theta` may be close to 1.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        let y = (1.0 - self.theta) * log;
        if y.abs() < 1e-8 { log * (1.0 + y / 2.0) } else { y.exp_m1() / y * log }
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.theta)).max(-1.0);
        let log = if t.abs() < 1e-8 { area * (1.0 - t / 2.0) } else { t.ln_1p() / t * area };
        log.exp()
    }

    /// Draws the next rank, from 1.
    #[inline]
    pub(crate) fn next(&self, stream: &mut RandomStream) -> u64 {
        let mut rank = 1.0;
        for _ in 0..Self::TRIES_MAX {
            let area = self.area_last + stream.unit() * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.shortcut || area >= self.area(rank + 0.5) - self.height(rank) {
                break;
            }
        }
        rank as u64
    }
}

/// Positions of the likely addresses of a scattered distribution.
#[derive(Clone, Debug)]
pub(super) struct Scatter {
    order: Permutation,
    shift: u64,
}

impl Scatter {
    fn new(n: u64, key: u64, centre: Option<f64>) -> Self {
        let order = Permutation::new(n, key);
        let shift = match centre {
            None => 0,
            Some(centre) => {
                let centre = ((centre * n as f64) as u64).min(n - 1);
                ((u128::from(centre) + u128::from(n - order.at(0))) % u128::from(n)) as u64
            }
        };
        Self { order, shift }
    }

    #[inline]
    fn at(&self, rank: u64) -> u64 {
        let address = self.order.at(rank);
        let room = self.order.len - address;
        if self.shift < room { address + self.shift } else { self.shift - room }
    }
}

/// A zone in units of aligned addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    first: u64,
    len: u64,
}

/// Draws aligned addresses from `0..n` by one of fio's distributions.
#[derive(Clone, Debug)]
pub(super) enum Picker {
    /// All addresses are equally likely.
    Uniform { n: u64 },
    /// Zipf's law.
    Zipf { ranks: ZipfRanks, scatter: Scatter },
    /// `n * u^power`.
    Pareto { n: u64, power: f64, scatter: Scatter },
    /// Bell-shaped; `deviation` is in addresses.
    Normal { n: u64, centre: u64, deviation: u64 },
    /// A table with one entry for each per cent of the requests.
    Zoned(Box<[Span; 100]>),
}

impl Picker {
    /// Makes a picker among `n` addresses of `align` sectors each. `key` determines the scattering; equal keys share
    /// hot addresses.
    pub(super) fn new(law: &Distribution, n: u64, align: u64, key: u64) -> Self {
        match law {
            Distribution::Uniform => Self::Uniform { n },
            Distribution::Zipf { theta, centre } => {
                Self::Zipf { ranks: ZipfRanks::new(n, *theta), scatter: Scatter::new(n, key, *centre) }
            }
            Distribution::Pareto { h, centre } => {
                let power = h.ln() / (1.0 - h).ln();
                Self::Pareto { n, power, scatter: Scatter::new(n, key, *centre) }
            }
            Distribution::Normal { deviation_percent, centre } => Self::Normal {
                n,
                centre: ((centre * n as f64) as u64).min(n - 1),
                deviation: ((n as f64 * deviation_percent / 100.0).ceil() as u64).min(n / 2),
            },
            Distribution::Zoned(zones) => Self::Zoned(Box::new(percent_table(zones, n, align))),
        }
    }

    /// Draws the next address.
    #[inline]
    pub(super) fn next(&self, stream: &mut RandomStream) -> u64 {
        match self {
            Self::Uniform { n } => stream.below(*n),
            Self::Zipf { ranks, scatter } => scatter.at(ranks.next(stream) - 1),
            Self::Pareto { n, power, scatter } => {
                let rank = (*n as f64 * stream.unit().powf(*power)) as u64;
                scatter.at(rank.min(n - 1))
            }
            Self::Normal { n, centre, deviation } => bell(stream, *n, *centre, *deviation),
            Self::Zoned(table) => {
                let span = table[stream.below(100) as usize];
                span.first + stream.below(span.len)
            }
        }
    }
}

/// Draws a number around `centre` with standard deviation `deviation`, modulo `n`: the sum of twelve uniform 16-bit
/// numbers has a standard deviation of 2^16 and needs only integers.
#[inline]
fn bell(stream: &mut RandomStream, n: u64, centre: u64, deviation: u64) -> u64 {
    let mut sum = 0i128;
    for _ in 0..3 {
        let word = stream.next_u64();
        for part in 0..4 {
            sum += i128::from((word >> (16 * part)) & 0xffff);
        }
    }
    // Twice the mean is 12 times 65,535, so the distance is computed in halves.
    let distance = ((2 * sum - 12 * 0xffff) * i128::from(deviation)) >> 17;
    (i128::from(centre) + distance).rem_euclid(i128::from(n)) as u64
}

/// Returns the zones as a table over the per cents of the requests. A zone holds the addresses that begin in it.
fn percent_table(zones: &[Zone], n: u64, align: u64) -> [Span; 100] {
    let mut table = [Span { first: 0, len: n }; 100];
    let mut filled = 0;
    for zone in zones {
        let first = zone.first.div_ceil(align).min(n - 1);
        let end = (zone.first + zone.blocks).div_ceil(align).clamp(first + 1, n);
        let until = filled + usize::from(zone.access_percent);
        table[filled..until].fill(Span { first, len: end - first });
        filled = until;
    }
    assert!(filled == 100, "the percentages of zones are checked when they are read");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_bijections() {
        for len in [1u64, 2, 3, 4, 5, 7, 8, 9, 31, 100, 1000, 4096, 4097, 65_535] {
            let order = Permutation::new(len, len ^ 77);
            let mut seen = vec![false; len as usize];
            for x in 0..len {
                let y = order.at(x) as usize;
                assert!(!std::mem::replace(&mut seen[y], true), "{len}: {y} twice");
            }
        }
    }

    #[test]
    fn sweeps_cover_everything_in_new_orders_without_pattern() {
        let mut stream = RandomStream::new(1, "sweep");
        let mut sweep = Sweep::new(10_000, &mut stream);
        let passes: Vec<Vec<u64>> =
            (0..2).map(|_| (0..10_000).map(|_| sweep.next(&mut stream)).collect()).collect();
        assert_ne!(passes[0], passes[1]);
        for mut pass in passes {
            // Steps between neighbours fall equally into ten classes: chi-square with 9 degrees of freedom, whose 0.999
            // quantile is 27.9.
            let mut classes = [0u32; 10];
            for pair in pass.windows(2) {
                classes[((pair[1] + 10_000 - pair[0]) % 10_000 / 1000) as usize] += 1;
            }
            let chi2: f64 = classes.iter().map(|&c| (f64::from(c) - 999.9).powi(2) / 999.9).sum();
            assert!(chi2 < 27.9, "{classes:?}");
            pass.sort_unstable();
            assert!(pass.into_iter().eq(0..10_000));
        }
    }

    #[test]
    fn zipf_matches_theory() {
        const DRAWS: u32 = 400_000;
        for theta in [0.5, 0.99, 1.2, 2.5] {
            let n = 1000u64;
            let ranks = ZipfRanks::new(n, theta);
            let mut stream = RandomStream::new(3, "zipf");
            let mut counts = vec![0u32; n as usize + 1];
            for _ in 0..DRAWS {
                counts[ranks.next(&mut stream) as usize] += 1;
            }
            let sum: f64 = (1..=n).map(|k| (k as f64).powf(-theta)).sum();
            // Chi-square over ranks with a sufficient expected count, the rest in one class.
            let (mut chi2, mut classes, mut tail) = (0.0, 0.0, (0.0, 0.0));
            for k in 1..=n {
                let expected = f64::from(DRAWS) * (k as f64).powf(-theta) / sum;
                let seen = f64::from(counts[k as usize]);
                if expected >= 10.0 {
                    chi2 += (seen - expected).powi(2) / expected;
                    classes += 1.0;
                } else {
                    tail = (tail.0 + expected, tail.1 + seen);
                }
            }
            if tail.0 >= 10.0 {
                chi2 += (tail.1 - tail.0).powi(2) / tail.0;
            }
            // The 0.999 quantile of chi-square in the normal approximation.
            let bound = classes + 3.1 * (2.0f64 * classes).sqrt() + 10.0;
            assert!(chi2 < bound, "theta {theta}: {chi2} against {bound}");
        }
    }

    /// Returns the fraction of the requests that goes to each address.
    fn frequencies(law: &Distribution, n: u64) -> Vec<f64> {
        let picker = Picker::new(law, n, 1, 42);
        let mut stream = RandomStream::new(5, "law");
        let mut counts = vec![0u32; n as usize];
        for _ in 0..200_000 {
            counts[picker.next(&mut stream) as usize] += 1;
        }
        counts.into_iter().map(|c| f64::from(c) / 200_000.0).collect()
    }

    #[test]
    fn pareto_is_self_similar() {
        let mut shares = frequencies(&Distribution::Pareto { h: 0.2, centre: None }, 1000);
        shares.sort_by(|a, b| b.total_cmp(a));
        // A fifth of the addresses gets four fifths of the requests, and so on within that fifth.
        for (count, share) in [(200, 0.8), (40, 0.64)] {
            let got: f64 = shares[..count].iter().sum();
            assert!((got - share).abs() < 0.01, "{count}: {got}");
        }
    }

    #[test]
    fn the_bell_has_its_centre_and_deviation() {
        for (deviation, centre) in [(5.0, 0.5), (10.0, 0.4)] {
            let shares = frequencies(&Distribution::Normal { deviation_percent: deviation, centre }, 1000);
            let mean: f64 = shares.iter().enumerate().map(|(x, p)| x as f64 * p).sum();
            let variance: f64 = shares.iter().enumerate().map(|(x, p)| (x as f64 - mean).powi(2) * p).sum();
            assert!((mean - 1000.0 * centre).abs() < 2.0, "{mean}");
            assert!((variance.sqrt() - 10.0 * deviation).abs() < 1.0, "{}", variance.sqrt());
        }
        let still = frequencies(&Distribution::Normal { deviation_percent: 0.0, centre: 0.25 }, 1000);
        assert_eq!(still[250], 1.0);
    }

    #[test]
    fn zones_get_their_shares() {
        let zone = |access_percent, first, blocks| Zone { access_percent, first, blocks };
        let law = Distribution::Zoned(vec![zone(60, 0, 100), zone(30, 100, 200), zone(10, 300, 700)]);
        let shares = frequencies(&law, 1000);
        for (range, share) in [(0..100, 0.6), (100..300, 0.3), (300..1000, 0.1)] {
            let got: f64 = shares[range.clone()].iter().sum();
            assert!((got - share).abs() < 0.005, "{range:?}: {got}");
            assert!(shares[range].iter().all(|p| *p > 0.0));
        }
    }

    #[test]
    fn the_centre_is_the_most_likely_address() {
        for law in [
            Distribution::Zipf { theta: 1.5, centre: Some(0.25) },
            Distribution::Pareto { h: 0.1, centre: Some(0.25) },
        ] {
            let shares = frequencies(&law, 1000);
            let top = (0..1000).max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
            assert_eq!(top, Some(250), "{law:?}");
        }
    }
}
