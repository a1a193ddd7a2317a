//! From values to coordinates: scales, ticks, and numbers with units for people.
//!
//! Invariants: a scale maps its domain onto its range and clamps values outside, so that nothing is drawn
//! outside the plot; a domain is never empty; every coordinate is finite. A logarithmic scale has a positive domain.

/// Unit of the values of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A plain number.
    Number,
    /// Nanoseconds.
    Nanos,
    /// A fraction, shown in percent.
    Share,
    /// A percentile, as the negative decimal logarithm of the fraction above it.
    Tail,
}

impl Unit {
    /// Name by which the script of the page knows it.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Nanos => "nanos",
            Self::Share => "share",
            Self::Tail => "tail",
        }
    }

    /// Label of a tick, where neighbouring ticks differ by `step`; zero if there is no such step.
    pub(super) fn label(self, value: f64, step: f64) -> String {
        match self {
            Self::Number => {
                let (size, prefix) = prefix(value.abs().max(step));
                format!("{}{prefix}", decimal(value / size, step / size))
            }
            Self::Nanos => {
                let (size, name) = time_unit(value);
                format!("{} {name}", decimal(value / size, step / size))
            }
            Self::Share => format!("{} %", decimal(value * 100.0, step * 100.0)),
            Self::Tail => percentile(value),
        }
    }
}

/// Divisor and SI prefix for a number of this size.
fn prefix(size: f64) -> (f64, &'static str) {
    match size {
        s if s >= 1e9 => (1e9, " G"),
        s if s >= 1e6 => (1e6, " M"),
        s if s >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    }
}

/// Divisor and name of the unit in which a time is easy to read.
pub(super) fn time_unit(ns: f64) -> (f64, &'static str) {
    match ns {
        t if t >= 3.0 * 3600e9 => (3600e9, "h"),
        t if t >= 180e9 => (60e9, "min"),
        t if t >= 1e9 => (1e9, "s"),
        t if t >= 1e6 => (1e6, "ms"),
        t if t >= 1e3 => (1e3, "µs"),
        _ => (1.0, "ns"),
    }
}

/// A number with as many digits as steps of this size need; with three significant digits if there is no step.
pub(super) fn decimal(value: f64, step: f64) -> String {
    let digits = match step > 0.0 {
        true => (0..6).find(|digits| is_whole(step * 10f64.powi(*digits as i32))).unwrap_or(6),
        false => (2.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize,
    };
    let text = format!("{value:.digits$}");
    let short = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

fn is_whole(number: f64) -> bool {
    (number - number.round()).abs() < 1e-6 * number.abs().max(1.0) && number.round() != 0.0
}

/// `99.9` for 3.
fn percentile(tail: f64) -> String {
    let digits = (tail - 2.0).ceil().clamp(0.0, 9.0) as usize;
    format!("{:.digits$}", 100.0 * (1.0 - 10f64.powf(-tail)))
}

/// A mapping from values to coordinates.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    log: bool,
    domain: (f64, f64),
    range: (f64, f64),
}

impl Scale {
    /// A scale from zero, or below, to a round number, that includes all `values`.
    pub(super) fn linear(values: impl Iterator<Item = f64>, range: (f64, f64)) -> Self {
        let (low, high) = extent(values).unwrap_or((0.0, 1.0));
        let (low, high) = (low.min(0.0), if high > 0.0 { high } else { 1.0 });
        let step = step(high - low, 4);
        Self { log: false, domain: ((low / step).floor() * step, (high / step - 1e-9).ceil() * step), range }
    }

    /// A scale from `low` to `high` exactly.
    pub(super) fn exact(low: f64, high: f64, range: (f64, f64)) -> Self {
        Self { log: false, domain: (low, if high > low { high } else { low + 1.0 }), range }
    }

    /// A scale that includes all positive `values`; its ends are one, two or five times a power of ten.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, range: (f64, f64)) -> Self {
        let (low, high) = extent(values.filter(|v| *v > 0.0)).unwrap_or((1.0, 10.0));
        let below = rounds(low, high).filter(|v| *v <= low * (1.0 + 1e-9)).fold(0.0, f64::max);
        let above = rounds(low, high).filter(|v| *v >= high * (1.0 - 1e-9) && *v > below * 2.4);
        Self { log: true, domain: (below, above.fold(f64::MAX, f64::min)), range }
    }

    /// Coordinate of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.domain;
        let value = value.clamp(low, high);
        let share = match self.log {
            true => (value / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// About `count` ticks with their labels; those of a logarithmic scale may lack labels.
    pub(super) fn ticks(&self, unit: Unit, count: usize) -> Vec<(f64, Option<String>)> {
        let (low, high) = self.domain;
        if unit == Unit::Tail {
            // The median is between the minimum and the 90th percentile; if there are many nines, most odd ones are left out.
            let nines = if high > 6.5 {
                [1.0, 2.0, 4.0, 6.0, 8.0].as_slice()
            } else {
                &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
            };
            let all = [0.0, 2f64.log10()].into_iter().chain(nines.iter().copied());
            let shown = all.filter(|tail| *tail <= high);
            return shown.map(|tail| (tail, Some(unit.label(tail, 0.0)))).collect();
        }
        if self.log {
            let decades = (high / low).log10();
            let named = |value: f64| decades < 2.3 || is_decade(value);
            let all = rounds(low, high).filter(|v| (low * 0.999..=high * 1.001).contains(v));
            return all.map(|v| (v, named(v).then(|| unit.label(v, 0.0)))).collect();
        }
        let step = match unit {
            Unit::Nanos => {
                // Steps are round in the unit of the labels.
                let size = time_unit(high).0;
                step((high - low) / size, count) * size
            }
            _ => step(high - low, count),
        };
        let first = (low / step - 1e-9).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).map(|v| (v, Some(self.tick_label(unit, v, step)))).collect()
    }

    /// Label of a tick of a linear axis, with the prefix or unit of the end of the axis.
    fn tick_label(&self, unit: Unit, value: f64, step: f64) -> String {
        let high = self.domain.1;
        match unit {
            _ if value == 0.0 => "0".into(),
            Unit::Number => {
                let (size, prefix) = prefix(high);
                format!("{}{prefix}", decimal(value / size, step / size))
            }
            Unit::Nanos => {
                let (size, name) = time_unit(high);
                format!("{} {name}", decimal(value / size, step / size))
            }
            Unit::Share | Unit::Tail => unit.label(value, step),
        }
    }

    /// Data with which the script converts coordinates to values: kind, domain, range, unit.
    pub(super) fn data(&self, unit: Unit) -> String {
        let kind = if self.log { "log" } else { "lin" };
        let ((low, high), (from, to)) = (self.domain, self.range);
        format!("{kind} {low} {high} {from} {to} {}", unit.key())
    }
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|v| v.is_finite());
    finite
        .fold(None, |seen, v| Some(seen.map_or((v, v), |(low, high): (f64, f64)| (low.min(v), high.max(v)))))
}

/// One, two and five of every decade from below `low` to above `high`.
fn rounds(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let decades = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
    decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)))
}

fn is_decade(value: f64) -> bool {
    (value.log10() - value.log10().round()).abs() < 1e-6
}

/// The round step that divides `span` into about `count` parts.
fn step(span: f64, count: usize) -> f64 {
    let raw = span / count as f64;
    let decade = 10f64.powf(raw.log10().floor());
    let digit = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|digit| digit * decade >= raw * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale, unit: Unit, count: usize) -> Vec<String> {
        scale.ticks(unit, count).into_iter().filter_map(|(_, label)| label).collect()
    }

    #[test]
    fn linear_scales_end_at_round_numbers_above_zero() {
        let scale = |values: &[f64]| Scale::linear(values.iter().copied(), (100.0, 0.0));
        assert_eq!(labels(&scale(&[3.0, 7.1]), Unit::Number, 4), ["0", "2", "4", "6", "8"]);
        assert_eq!(labels(&scale(&[0.0, 9.0]), Unit::Number, 4), ["0", "2.5", "5", "7.5", "10"]);
        assert_eq!(labels(&scale(&[428_394.0]), Unit::Number, 4), ["0", "200 k", "400 k", "600 k"]);
        assert_eq!(labels(&scale(&[1.0]), Unit::Share, 4), ["0", "25 %", "50 %", "75 %", "100 %"]);
        // No values, zeros, and values that are not finite give a scale too.
        for values in [&[][..], &[0.0, 0.0], &[f64::NAN, f64::INFINITY]] {
            assert_eq!(scale(values).at(0.0), 100.0);
        }
        assert_eq!(scale(&[10.0]).at(1e9), 0.0, "what lies outside is clamped");
    }

    #[test]
    fn time_has_its_units() {
        let labels = |end: f64| labels(&Scale::exact(0.0, end, (0.0, 1.0)), Unit::Nanos, 6);
        assert_eq!(labels(250.1e6), ["0", "50 ms", "100 ms", "150 ms", "200 ms", "250 ms"]);
        assert_eq!(labels(1e9), ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s"]);
        assert_eq!(labels(3600e9), ["0", "10 min", "20 min", "30 min", "40 min", "50 min", "60 min"]);
        assert_eq!(labels(0.0).last().map(String::as_str), Some("1 ns"), "no time at all");
        assert_eq!(labels(7200e9 * 24.0), ["0", "10 h", "20 h", "30 h", "40 h"]);
    }

    #[test]
    fn logarithmic_scales_hold_their_values_and_no_zero() {
        for values in [&[1.0, 1e9][..], &[170.0, 190.0], &[5.0, 5.0], &[0.0, 3.0], &[1e3], &[], &[0.0]] {
            let scale = Scale::logarithmic(values.iter().copied(), (0.0, 1.0));
            for value in values.iter().filter(|value| **value > 0.0) {
                let at = scale.at(*value);
                assert!((0.0..=1.0).contains(&at), "{values:?}");
                let back = scale.domain.0 * (scale.domain.1 / scale.domain.0).powf(at);
                assert!((back / value - 1.0).abs() < 1e-9, "{value} was not clamped");
            }
            assert!(scale.domain.0 > 0.0 && scale.domain.1 > scale.domain.0 * 2.0);
            assert_eq!(scale.at(0.0), 0.0);
            assert!(labels(&scale, Unit::Nanos, 4).len() >= 2, "{values:?}");
        }
    }

    #[test]
    fn percentiles_are_told_by_their_nines() {
        let labels = |end| labels(&Scale::exact(0.0, end, (0.0, 1.0)), Unit::Tail, 6);
        assert_eq!(labels(4.2), ["0", "50", "90", "99", "99.9", "99.99"]);
        assert_eq!(labels(8.0), ["0", "50", "90", "99", "99.99", "99.9999", "99.999999"]);
    }

    #[test]
    fn numbers_have_the_digits_of_their_step() {
        assert_eq!(decimal(7.5, 2.5), "7.5");
        assert_eq!(decimal(0.3, 0.1), "0.3");
        assert_eq!(decimal(12.0, 4.0), "12");
        assert_eq!(decimal(1.0 / 3.0, 0.0), "0.333");
        assert_eq!(decimal(1234.5, 0.0), "1234");
        assert_eq!(decimal(-0.001, 0.01), "0");
    }
}
