//! Division by a number that is known long before it is used, such as the counts of a geometry.
//!
//! Most of these numbers are powers of two, for which a division is a shift; all others use the ordinary division.

/// A divisor with its shift worked out in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    value: u64,
    /// Logarithm to base 2 if the value is a power of two; [`NO_SHIFT`] otherwise.
    shift: u32,
}

const NO_SHIFT: u32 = u32::MAX;

impl Divisor {
    /// Returns the divisor `value`, which must not be zero.
    pub const fn new(value: u64) -> Self {
        assert!(value > 0, "nothing is divided by zero");
        Self { value, shift: if value.is_power_of_two() { value.trailing_zeros() } else { NO_SHIFT } }
    }

    /// Returns the divisor as a plain number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.value
    }

    /// Returns the quotient, rounded down.
    #[inline]
    pub const fn div(self, number: u64) -> u64 {
        if self.shift == NO_SHIFT { number / self.value } else { number >> self.shift }
    }

    /// Returns quotient and remainder.
    #[inline]
    pub const fn div_rem(self, number: u64) -> (u64, u64) {
        let quotient = self.div(number);
        (quotient, number - quotient * self.value)
    }

    /// Returns quotient and remainder of a 32-bit number; the divisor must fit into 32 bits.
    #[inline]
    pub const fn div_rem_u32(self, number: u32) -> (u32, u32) {
        let (quotient, rest) = self.div_rem(number as u64);
        (quotient as u32, rest as u32)
    }

    /// Returns the quotient of a 32-bit number.
    #[inline]
    pub const fn div_u32(self, number: u32) -> u32 {
        self.div(number as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn divides_as_the_operator_does(number: u64, value in 1..u64::MAX, exponent in 0..64u32) {
            for value in [value, value >> (exponent % 64), 1 << exponent].into_iter().filter(|value| *value > 0) {
                prop_assert_eq!(Divisor::new(value).div_rem(number), (number / value, number % value));
            }
        }
    }
}
