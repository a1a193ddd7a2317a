//! Virtual time: an instant is nanoseconds since the world began, a duration is nanoseconds.
//!
//! Deliberately absent: `now()`. Only the command line reads a clock; everywhere else time is an argument.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

/// A point in virtual time, in nanoseconds since the world began.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes a duration of `ns` nanoseconds.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// Makes a duration of `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }
    /// Makes a duration of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
    /// Makes a duration of `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }
    /// Returns the duration in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Returns the duration in microseconds as a real number, for display.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }
    /// Returns the duration in seconds as a real number, for display and rates.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// Returns the time that `bytes` take at `bytes_per_s`, rounded up; zero if the rate is zero (unlimited).
    pub const fn of_transfer(bytes: u64, bytes_per_s: u64) -> Self {
        if bytes_per_s == 0 {
            return Self(0);
        }
        Self((bytes as u128 * 1_000_000_000).div_ceil(bytes_per_s as u128) as u64)
    }
    /// Returns the sum, or the longest time if that is longer.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero if `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Instant {
    /// Beginning of the world.
    pub const ZERO: Self = Self(0);
    /// An instant later than any event.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes the instant `ns` nanoseconds after the world began.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// Returns the nanoseconds since the world began.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Returns the time since `earlier`; panics if `earlier` is later (a bug of ours).
    pub fn since(self, earlier: Self) -> Duration {
        Duration(self.0.checked_sub(earlier.0).expect("`since` takes an earlier instant"))
    }
    /// Returns the time since `earlier`, or zero if that is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
    /// Returns the sum, at most [`Instant::MAX`].
    pub const fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.0 + span.0)
    }
}
impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        self.0 += span.0;
    }
}
impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0 - span.0)
    }
}
impl Add for Duration {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}
impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}
impl Mul<u64> for Duration {
    type Output = Self;
    #[inline]
    fn mul(self, times: u64) -> Self {
        Self(self.0 * times)
    }
}
impl Div<u64> for Duration {
    type Output = Self;
    fn div(self, by: u64) -> Self {
        Self(self.0 / by)
    }
}
impl std::iter::Sum for Duration {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|d| d.0).sum())
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for Duration {
    /// Prints the largest unit in which the value is exact, so that it can be read back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (per, unit) = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")]
            .into_iter()
            .find(|(per, _)| self.0 != 0 && self.0.is_multiple_of(*per))
            .unwrap_or((1, "ns"));
        write!(f, "{}{unit}", self.0 / per)
    }
}
impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

impl std::str::FromStr for Duration {
    type Err = String;

    /// Parses `75us`, `1.3 ms`, `400ns`, `2s`; a unit is required, so that a reader need not guess it.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let per: u64 = match unit.trim() {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => {
                return Err(format!(
                    "`{text}` is not a duration: expected a number with ns, us, ms or s, as in 75us"
                ));
            }
        };
        let bad = |_| format!("`{text}` is not a duration: `{number}` is not a number");
        let number = number.replace('_', "");
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        let mut ns = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(bad)? }.checked_mul(per);
        if !fraction.is_empty() {
            if fraction.len() > 9 {
                return Err(format!("`{text}` is not a duration: more than nine digits after the point"));
            }
            let part = fraction.parse::<u64>().map_err(bad)? * per;
            let scale = 10u64.pow(fraction.len() as u32);
            ns = ns.and_then(|ns| ns.checked_add(part / scale));
        } else if whole.is_empty() {
            return Err(format!("`{text}` is not a duration: the number is missing"));
        }
        ns.map(Self).ok_or_else(|| format!("`{text}` is not a duration: more than 584 years"))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed() {
        for (text, ns) in
            [("75us", 75_000), ("1.3 ms", 1_300_000), ("0.5us", 500), ("2s", 2_000_000_000), ("7ns", 7)]
        {
            let d: Duration = text.parse().unwrap();
            assert_eq!(d.as_nanos(), ns, "{text}");
            assert_eq!(d.to_string().parse::<Duration>().unwrap(), d);
        }
        for text in ["75", "us", "1..2us", "75 hours", "99999999999s", "1.0000000001s"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    #[test]
    fn transfers_round_up() {
        assert_eq!(Duration::of_transfer(8192, 333_000_000).as_nanos(), 24_601);
        assert_eq!(Duration::of_transfer(8192, 0), Duration::ZERO);
    }
}
