//! Values of the command line: parsers of options' texts, and their error messages.
//!
//! Invariant: an error says what would have been valid, with an example.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use flashweir_core::{Bytes, Duration, Instant};
use flashweir_fs::Kind;
use flashweir_fs::ext4::mkfs::{JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN};
use flashweir_fs::port::BLOCK_BYTES;
use flashweir_fs::vfs::CacheConfig;
use flashweir_workload::trace::{Action, Devices, Format, ReplayConfig, Timing};
use std::num::IntErrorKind;

/// A whole number in a range.
pub(crate) fn whole<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX if !is_too_large(text) => format!("expected a whole number of {least} or more"),
            _ => format!("expected a whole number from {least} to {most}"),
        })
    }
}

fn is_too_large(text: &str) -> bool {
    text.parse::<u64>().is_err_and(|error| *error.kind() == IntErrorKind::PosOverflow)
}

/// A number from 1 to a reasonable maximum.
pub(crate) fn positive() -> impl Fn(&str) -> Result<u32, String> + Clone {
    whole(1, 100_000)
}

/// A real number.
pub(crate) fn real(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
        .ok_or_else(|| "expected a number such as 0.5".to_owned())
}

/// A fraction in percent.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    number
        .filter(|number| *number > 0.0 && *number <= 100.0)
        .map(|number| number / 100.0)
        .ok_or_else(|| "expected more than 0% and at most 100%, as in 0.1%".to_owned())
}

/// Hundredths of a per cent.
pub(crate) fn percent(text: &str) -> Result<u32, String> {
    let part = text.parse().ok().map(|percent: f64| (percent * 100.0).round());
    let part = part.filter(|part| (1.0..=9500.0).contains(part));
    part.map(|part| part as u32).ok_or_else(|| "expected 0.01 to 95".to_owned())
}

/// Longest time that can be given: sums of a few are still times.
const TIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A length of virtual time.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    text.parse().map_err(|_| "expected a time such as 500ms or 10s".to_owned()).and_then(bounded)
}

/// A length of virtual time that something is measured for.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    time(text).and_then(
        |time| if time > Duration::ZERO { Ok(time) } else { Err("expected more than 0".to_owned()) },
    )
}

/// A length of virtual time, as long as one may wait for.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    text.parse().map_err(|_| "expected a time such as 500ms or 2s".to_owned()).and_then(bounded)
}

fn bounded(time: Duration) -> Result<Duration, String> {
    if time <= TIME_MAX { Ok(time) } else { Err("expected at most ten years".to_owned()) }
}

/// A span of virtual time; what is missing on one side has no limit there.
pub(crate) fn window(text: &str) -> Result<(Instant, Instant), String> {
    let expected = || "expected START..END in virtual time, as in 10ms..12.5ms, 1s.. or ..500us".to_owned();
    let (from, until) = text.split_once("..").ok_or_else(expected)?;
    let at = |text: &str, missing: Instant| match text.trim() {
        "" => Ok(missing),
        text => text.parse::<Duration>().map(|after| Instant::ZERO + after),
    };
    let (from, until) = (at(from, Instant::ZERO)?, at(until, Instant::MAX)?);
    if from < until { Ok((from, until)) } else { Err(format!("it ends before it begins; {}", expected())) }
}

/// Blocks of a journal whose size is given.
pub(crate) fn journal_blocks(text: &str) -> Result<u32, String> {
    let blocks = volume_size(text).ok().and_then(|size| u32::try_from(size.0 / BLOCK_BYTES as u64).ok());
    blocks.filter(|blocks| (JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(blocks)).ok_or_else(|| {
        let [least, most] = [JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX].map(|blocks| blocks / 256);
        format!("expected a multiple of 4096 bytes from {least}MiB to {most}MiB, such as 128MiB")
    })
}

/// The size of a volume: whole blocks.
pub(crate) fn volume_size(text: &str) -> Result<Bytes, String> {
    let size =
        text.parse().ok().filter(|size: &Bytes| size.0 > 0 && size.0.is_multiple_of(BLOCK_BYTES as u64));
    size.ok_or_else(|| "expected a multiple of 4096 bytes, such as 1GiB".to_owned())
}

/// Blocks of an append segment whose size is given.
pub(crate) fn segment_blocks(text: &str) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    let is_fit = |size: &Bytes| (1..=MOST).contains(&size.0) && size.0.is_multiple_of(2 << 20);
    let size = text.parse().ok().filter(is_fit);
    let blocks = size.map(|size| (size.0 / BLOCK_BYTES as u64) as u32);
    blocks.ok_or_else(|| "expected a multiple of 2MiB up to 1GiB, such as 16MiB".to_owned())
}

/// The capacity of a device.
pub(crate) fn capacity(text: &str) -> Result<Bytes, String> {
    let size = text.parse().ok().filter(|size: &Bytes| size.0 > 0);
    size.ok_or_else(|| "expected a size such as 100GiB".to_owned())
}

/// How much memory contents may take.
pub(crate) fn bound(text: &str) -> Result<Bytes, String> {
    const LEAST: u64 = 1 << 20;
    let size: Bytes = text.parse()?;
    if size.0 < LEAST { Err("expected a size from 1MiB on, such as 1GiB".to_owned()) } else { Ok(size) }
}

/// The size of a page cache.
pub(crate) fn cache(text: &str) -> Result<CacheConfig, String> {
    let expected = || "expected a size from 128KiB to 8TiB, such as 1GiB".to_owned();
    let size: Bytes = text.parse().map_err(|_| expected())?;
    let cache = CacheConfig::of_bytes(size.0);
    if (128 << 10..=8 << 40).contains(&size.0) { Ok(cache) } else { Err(expected()) }
}

/// The identity of a volume.
pub(crate) fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|digit| *digit != '-')
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes = digits.filter(|digits| digits.len() == 32).map(|digits| {
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        bytes.try_into().expect("16 pairs")
    });
    bytes.ok_or_else(|| "expected 32 hexadecimal digits, with or without dashes".to_owned())
}

/// A format of traces, by its name.
pub(crate) fn format(text: &str) -> Result<Format, String> {
    Format::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
        let nearest = flashweir_workload::spelling::nearest(text, Format::ALL.map(Format::name));
        let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
        format!("expected {}{hint}", Format::names())
    })
}

/// A format of file systems, by its name.
pub(crate) fn kind() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::name))
        .map(|name| Kind::named(&name).expect("it is one of the names"))
}

/// Which devices of a trace are meant.
pub(crate) fn trace_device(text: &str) -> Result<Devices, String> {
    Ok(match text {
        "first" => Devices::First,
        "all" => Devices::All,
        name => Devices::Only(name.to_owned()),
    })
}

/// Which action of a trace of blkparse is a request.
pub(crate) fn action(text: &str) -> Result<Action, String> {
    let value = toml::Value::String(text.to_owned());
    value.try_into().map_err(|_| "expected Q, I or D".to_owned())
}

/// When requests of a trace begin.
pub(crate) fn timing(text: &str) -> Result<Timing, String> {
    let expected =
        || "expected original, scaled=FACTOR as in scaled=0.5, or closed=DEPTH as in closed=32".to_owned();
    let timing = match text.split_once('=') {
        None if text == "original" => Timing::Original,
        Some(("scaled", factor)) => Timing::Scaled(factor.parse().map_err(|_| expected())?),
        Some(("closed", depth)) => Timing::Closed(depth.parse().map_err(|_| expected())?),
        _ => return Err(expected()),
    };
    let config = ReplayConfig { timing, ..ReplayConfig::default() };
    config.validate().map(|()| timing).map_err(|problem| problem.to_string())
}
