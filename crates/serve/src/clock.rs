//! The wall clock, and the only place of this crate that reads it. A test may move the time by [`Hand`] instead.
//!
//! Virtual time is wall time since the server began, times a factor. The server reads it once for each turn and passes it on, so that
//! everything in a turn happens at one instant.

use flashweir_core::Instant;
use flashweir_fs::vfs::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration as WallDuration;
use std::time::Instant as WallInstant;

/// Speed of virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// This many virtual seconds in a second of the wall clock; 1 is real time.
    Scaled(f64),
    /// As fast as the machine can: a request is answered as soon as its completion is computed.
    Max,
}

impl Speed {
    /// Slowest and fastest scale.
    const SCALES: std::ops::RangeInclusive<f64> = 1e-4..=1e4;
}

impl std::str::FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "real" => return Ok(Self::Scaled(1.0)),
            "max" => return Ok(Self::Max),
            _ => {}
        }
        let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
        match number.filter(|number| Self::SCALES.contains(number)) {
            Some(number) => Ok(Self::Scaled(number)),
            None => Err("expected real, max, or a factor from 0.0001 to 10000 such as 0.1 or 10x".into()),
        }
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scaled(1.0) => f.write_str("real"),
            Self::Scaled(factor) => write!(f, "{factor}x"),
            Self::Max => f.write_str("max"),
        }
    }
}

/// Civil time as the kernel stamps files with it: that of its last tick.
pub(crate) fn civil_time() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { seconds: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// Time that passes only by [`Hand::advance`]; clones move together.
#[derive(Clone, Debug, Default)]
pub struct Hand(Arc<AtomicU64>);

impl Hand {
    /// Lets `span` pass.
    pub fn advance(&self, span: WallDuration) {
        self.0.fetch_add(span.as_nanos() as u64, Ordering::SeqCst);
    }

    /// The time that has passed.
    pub fn passed(&self) -> WallDuration {
        WallDuration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Source of a clock's time.
#[derive(Clone, Debug)]
enum Source {
    Machine { origin: WallInstant },
    Hand(Hand),
}

/// A clock that starts when it is created.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    speed: Speed,
}

impl Clock {
    /// A clock of the machine that begins now.
    pub fn new(speed: Speed) -> Self {
        Self { source: Source::Machine { origin: WallInstant::now() }, speed }
    }

    /// A clock that stands still until `hand` advances.
    pub fn by_hand(hand: Hand, speed: Speed) -> Self {
        Self { source: Source::Hand(hand), speed }
    }

    /// Speed of the clock.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Virtual seconds in a second of the wall clock; 1 where virtual time does not follow the wall clock.
    pub fn factor(&self) -> f64 {
        match self.speed {
            Speed::Scaled(factor) => factor,
            Speed::Max => 1.0,
        }
    }

    /// Wall time since the clock began.
    #[inline]
    pub fn wall(&self) -> WallDuration {
        match &self.source {
            Source::Machine { origin } => origin.elapsed(),
            Source::Hand(hand) => hand.passed(),
        }
    }

    /// Virtual time at the wall-clock time `wall`.
    #[inline]
    pub fn virtual_at(&self, wall: WallDuration) -> Instant {
        let ns = wall.as_nanos() as u64;
        match self.speed {
            Speed::Scaled(factor) if factor != 1.0 => Instant::from_nanos((ns as f64 * factor) as u64),
            _ => Instant::from_nanos(ns),
        }
    }

    /// Wall time in which `span` of virtual time passes.
    pub fn wall_of(&self, span: flashweir_core::Duration) -> WallDuration {
        WallDuration::from_nanos((span.as_nanos() as f64 / self.factor()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_and_written() {
        assert_eq!("real".parse(), Ok(Speed::Scaled(1.0)));
        assert_eq!("10x".parse(), Ok(Speed::Scaled(10.0)));
        assert_eq!("0.1".parse(), Ok(Speed::Scaled(0.1)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for wrong in ["", "fast", "0", "-1", "nan", "1e9"] {
            let _ = wrong.parse::<Speed>().unwrap_err();
        }
        for text in ["real", "10x", "max"] {
            assert_eq!(text.parse::<Speed>().unwrap().to_string(), text);
        }
    }
}
