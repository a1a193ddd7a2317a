//! Static striping: which plane a logical flash page belongs to.
//!
//! The order of the four letters says which dimension varies fastest: C channel, W way (chip), D die,
//! P plane. `CWDP` puts neighbours on different channels first (as MQSim does by default).

use flashweir_core::Divisor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Channel,
    Way,
    Die,
    Plane,
}

/// A permutation of channel, way, die, plane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Striping([Dimension; 4]);

impl Default for Striping {
    fn default() -> Self {
        Self([Dimension::Channel, Dimension::Way, Dimension::Die, Dimension::Plane])
    }
}

impl Striping {
    /// The plane of flash page `index`, as `(channel, way, die, plane)`, for these counts.
    #[inline]
    pub fn place(self, index: u64, counts: &[Divisor; 4]) -> [u32; 4] {
        let mut rest = index;
        let mut place = [0; 4];
        for dimension in self.0 {
            let at = dimension as usize;
            let (quotient, at_dimension) = counts[at].div_rem(rest);
            (place[at], rest) = (at_dimension as u32, quotient);
        }
        place
    }
}

impl fmt::Display for Striping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for dimension in self.0 {
            f.write_str(match dimension {
                Dimension::Channel => "C",
                Dimension::Way => "W",
                Dimension::Die => "D",
                Dimension::Plane => "P",
            })?;
        }
        Ok(())
    }
}
impl fmt::Debug for Striping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Striping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error =
            || format!("`{text}` is not a striping: expected a permutation of the letters C, W, D and P");
        let mut order = Vec::new();
        for letter in text.chars() {
            let dimension = match letter.to_ascii_uppercase() {
                'C' => Dimension::Channel,
                'W' => Dimension::Way,
                'D' => Dimension::Die,
                'P' => Dimension::Plane,
                _ => return Err(error()),
            };
            if order.contains(&dimension) {
                return Err(error());
            }
            order.push(dimension);
        }
        order.try_into().map(Self).map_err(|_| error())
    }
}

impl Serialize for Striping {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Striping {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_permutation_is_a_bijection() {
        let counts = [3, 2, 2, 4].map(Divisor::new);
        for text in ["CWDP", "PDWC", "WCPD", "dpcw"] {
            let striping: Striping = text.parse().unwrap();
            assert_eq!(striping.to_string(), text.to_ascii_uppercase());
            let mut seen: Vec<_> = (0..48).map(|i| striping.place(i, &counts)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 48);
        }
        assert_eq!("CWDP".parse::<Striping>().unwrap().place(1, &counts), [1, 0, 0, 0]);
        assert_eq!("PDWC".parse::<Striping>().unwrap().place(1, &counts), [0, 0, 0, 1]);
        for text in ["CWD", "CWDD", "CWDX", "CWDPC", ""] {
            assert!(text.parse::<Striping>().is_err());
        }
    }
}
