//! Named random streams of one seed.
//!
//! Invariant: a stream depends only on the seed and on its name, so that a new consumer of randomness never shifts the
//! numbers that another one sees.

/// A deterministic random stream (xoshiro256**, seeded through splitmix64).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomStream {
    state: [u64; 4],
}

/// One step of splitmix64 applied to `x`: a bijective, non-linear mixing of 64 bits.
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl RandomStream {
    /// Returns the stream called `name` of the world's `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let mut key = mix(seed);
        for byte in name.bytes() {
            key = mix(key ^ u64::from(byte));
        }
        let state = std::array::from_fn(|i| mix(key.wrapping_add(i as u64)));
        Self { state }
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s1 << 17;
        let s2 = s2 ^ s0;
        let s3 = s3 ^ s1;
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ t, s3.rotate_left(45)];
        result
    }

    /// Draws uniformly from `0..bound`; `bound` must not be zero. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "an empty range has no member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws uniformly from `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability `p`. Draws nothing for 0 and 1, so that a disabled fault does not advance the
    /// stream.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        if p <= 0.0 {
            false
        } else if p >= 1.0 {
            true
        } else {
            self.unit() < p
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_independent_and_repeatable() {
        let mut a = RandomStream::new(1, "gc");
        let mut b = RandomStream::new(1, "gc");
        let mut c = RandomStream::new(1, "host");
        let first: Vec<u64> = (0..8).map(|_| a.next_u64()).collect();
        assert_eq!(first, (0..8).map(|_| b.next_u64()).collect::<Vec<_>>());
        assert_ne!(first, (0..8).map(|_| c.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn below_is_uniform() {
        let mut s = RandomStream::new(7, "dice");
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[s.below(6) as usize] += 1;
        }
        // Chi-square with 5 degrees of freedom; 20.5 is the 0.999 quantile.
        let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 20.5, "{counts:?}");
    }
}
