//! Numbers, sizes and times in fio's notation.
//!
//! The unit prefixes follow fio's behaviour: with `kb_base=1024` (the default) `4k` is 4096 and `4kib` is 4000; with
//! `kb_base=1000` it is the other way round.

use super::expression::evaluate;
use flashweir_core::Duration;

/// Meaning of the prefix `k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KbBase {
    /// `k` is 1024 and `kib` is 1000.
    #[default]
    Binary,
    /// `k` is 1000 and `kib` is 1024.
    Decimal,
}

/// A size in bytes or a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// Bytes.
    Bytes(u64),
    /// A percentage of a quantity that the option defines.
    Percent(u8),
}

/// Description of a valid time in seconds, for messages.
pub(super) const TIME: &str = "a time such as 10, 10s or 500ms";

/// Splits digits (decimal, or hexadecimal after `0x`) from the suffix that follows them.
fn digits(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let (radix, body) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(body) => (16, body),
        None => (10, text),
    };
    let end = body.find(|c: char| !c.is_digit(radix)).unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    Some((u64::from_str_radix(number, radix).ok()?, suffix.trim()))
}

/// Whether the text is an expression: as in fio, one that begins with a parenthesis.
fn is_expression(text: &str) -> bool {
    text.trim_start().starts_with('(')
}

/// Parses a whole number without a suffix.
pub(super) fn integer(text: &str) -> Option<u64> {
    if is_expression(text) {
        return evaluate(text, &|suffix| suffix.is_empty().then_some(1));
    }
    digits(text).filter(|(_, suffix)| suffix.is_empty()).map(|(number, _)| number)
}

/// Parses a size in bytes.
pub(super) fn size(text: &str, base: KbBase) -> Option<u64> {
    if is_expression(text) {
        return evaluate(text, &|suffix| size_factor(suffix, base));
    }
    let (number, suffix) = digits(text)?;
    number.checked_mul(size_factor(suffix, base)?)
}

/// Returns the factor of the suffix of a size.
fn size_factor(suffix: &str, base: KbBase) -> Option<u64> {
    let suffix = suffix.to_ascii_lowercase();
    let (plain, other) = match base {
        KbBase::Binary => (1024u64, 1000u64),
        KbBase::Decimal => (1000, 1024),
    };
    let letter = suffix.chars().next().unwrap_or('b');
    let power = "bkmgtp".find(letter)? as u32;
    let factor = match suffix.get(1..).unwrap_or("") {
        "" => plain,
        "i" | "b" if power > 0 => plain,
        "ib" if power > 0 => other,
        _ => return None,
    };
    factor.checked_pow(power)
}

/// Whether the text uses a suffix whose meaning is surprising: `kib` and the like are powers of 1000 by default.
pub(super) fn is_inverted(text: &str, base: KbBase) -> bool {
    base == KbBase::Binary && text.trim_end().to_ascii_lowercase().ends_with("ib")
}

/// Parses a size or a percentage from 0 to 100.
pub(super) fn amount(text: &str, base: KbBase) -> Option<Amount> {
    match text.trim().strip_suffix('%') {
        Some(number) => {
            integer(number).filter(|p| *p <= 100).and_then(|p| u8::try_from(p).ok()).map(Amount::Percent)
        }
        None => size(text, base).map(Amount::Bytes),
    }
}

/// Parses a time; `unit_ns` is the unit of a number without suffix. In an expression that unit is microseconds, as in
/// fio.
pub(super) fn time(text: &str, unit_ns: u64) -> Option<Duration> {
    let ns = if is_expression(text) {
        evaluate(text, &|suffix| time_factor(suffix, 1_000))
    } else {
        let (number, suffix) = digits(text)?;
        number.checked_mul(time_factor(suffix, unit_ns)?)
    };
    ns.map(Duration::from_nanos)
}

/// Returns the nanoseconds of a suffix of a time.
fn time_factor(suffix: &str, unit_ns: u64) -> Option<u64> {
    Some(match suffix.to_ascii_lowercase().as_str() {
        "" => unit_ns,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        "d" => 86_400 * 1_000_000_000,
        _ => return None,
    })
}

/// Parses two values separated by `-` or `:`, the smaller first.
pub(super) fn range<T: Ord>(text: &str, one: impl Fn(&str) -> Option<T>) -> Option<(T, T)> {
    let mut depth = 0;
    // A dash in an expression is a minus.
    let between = text.find(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && (c == '-' || c == ':')
    })?;
    let (low, high) = (&text[..between], &text[between + 1..]);
    let (low, high) = (one(low)?, one(high)?);
    Some(if low <= high { (low, high) } else { (high, low) })
}

/// Parses values for reads, writes and trims, separated by commas. A value that is not followed by a comma also holds
/// for the directions after it; a missing one leaves its direction unchanged.
pub(super) fn triple<T: Clone>(text: &str, one: impl Fn(&str) -> Option<T>) -> Option<[Option<T>; 3]> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 || parts.iter().all(|part| part.is_empty()) {
        return None;
    }
    let mut values: [Option<T>; 3] = [None, None, None];
    for (value, part) in values.iter_mut().zip(&parts) {
        if !part.is_empty() {
            *value = Some(one(part)?);
        }
    }
    let last = parts.len() - 1;
    for direction in last + 1..3 {
        values[direction] = values[last].clone();
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_base() {
        for (text, binary, decimal) in [
            ("4k", 4096, 4000),
            ("4K", 4096, 4000),
            ("4kb", 4096, 4000),
            ("4ki", 4096, 4000),
            ("4kiB", 4000, 4096),
            ("1m", 1 << 20, 1_000_000),
            ("0x1000", 4096, 4096),
            ("512b", 512, 512),
            ("2t", 2 << 40, 2_000_000_000_000),
        ] {
            assert_eq!(size(text, KbBase::Binary), Some(binary), "{text}");
            assert_eq!(size(text, KbBase::Decimal), Some(decimal), "{text}");
        }
        for text in ["", "k", "-4k", "4.5k", "4x", "4kk", "4bb", "99999999999t", "4 k 4"] {
            assert_eq!(size(text, KbBase::Binary), None, "{text}");
        }
    }

    #[test]
    fn expressions_stand_for_numbers() {
        assert_eq!(size("(2*1g+512)", KbBase::Binary), Some((2 << 30) + 512));
        assert_eq!(size("(4k)", KbBase::Decimal), Some(4000));
        assert_eq!(integer("(2*4)"), Some(8));
        assert_eq!(integer("(2k)"), None);
        assert_eq!(range("(8k-4k)-(2*8k)", |t| size(t, KbBase::Binary)), Some((4096, 16384)));
        // A bare number in an expression is in microseconds, whatever its unit outside one.
        assert_eq!(time("(2*500)", 1_000_000_000), Some(Duration::from_micros(1000)));
        assert_eq!(time("(2*3s)", 1), Some(Duration::from_secs(6)));
        assert_eq!(time("(1m+1s)", 1), Some(Duration::from_secs(61)));
        assert_eq!(amount("(10%4)", KbBase::Binary), Some(Amount::Bytes(2)));
    }

    #[test]
    fn times_have_units() {
        for (text, ns) in [
            ("10", 10_000_000_000),
            ("3us", 3_000),
            ("3msec", 3_000_000),
            ("2S", 2_000_000_000),
            ("1m", 60_000_000_000),
        ] {
            assert_eq!(time(text, 1_000_000_000), Some(Duration::from_nanos(ns)), "{text}");
        }
        assert_eq!(time("1d", 1).map(|d| d.as_nanos()), Some(86_400_000_000_000));
        assert_eq!(time("7", 1_000).map(|d| d.as_nanos()), Some(7_000));
        for text in ["", "1.5", "10x", "1ns", "-1", "99999999999d"] {
            assert_eq!(time(text, 1), None, "{text}");
        }
    }

    #[test]
    fn triples_spread_to_the_right() {
        let read = |text| triple(text, integer);
        assert_eq!(read("1"), Some([Some(1), Some(1), Some(1)]));
        assert_eq!(read("1,2"), Some([Some(1), Some(2), Some(2)]));
        assert_eq!(read("1,2,"), Some([Some(1), Some(2), None]));
        assert_eq!(read(",2"), Some([None, Some(2), Some(2)]));
        assert_eq!(read(",2,"), Some([None, Some(2), None]));
        assert_eq!(read("1,"), Some([Some(1), None, None]));
        assert_eq!(read(","), None);
        assert_eq!(read("1,2,3,4"), None);
        assert_eq!(range("8-4", integer), Some((4, 8)));
    }
}
