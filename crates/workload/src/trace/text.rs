//! Lines and fields: the part that all formats share.
//!
//! Invariants: a line is held only while it is parsed, apart from the few at the beginning that the detection examines;
//! a line without an end (in a binary file) is refused after [`LINE_BYTES_MAX`] bytes; numbers are parsed without
//! floating point, so that a time is the same on every machine.

use super::Problem;
use flashweir_core::{Duration, Lba, units::LBA_BYTES};
use std::collections::VecDeque;
use std::io::{BufRead, Read};

/// Maximum length of a line in bytes. Real ones have at most a few hundred bytes, most of them in a file name.
pub(super) const LINE_BYTES_MAX: usize = 4096;

/// The first address that cannot be expressed in bytes.
const LBA_END: u64 = u64::MAX / LBA_BYTES;

/// Reads lines, with look-ahead.
pub(super) struct Lines<R> {
    input: R,
    ahead: VecDeque<Result<Vec<u8>, Problem>>,
    current: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, ahead: VecDeque::new(), current: Vec::new(), number: 0 }
    }

    /// Returns the number of the last line read, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next lines without consuming them, up to `count`. Lines that are not text are left out: they are
    /// checked when they are read.
    pub(super) fn look_ahead(&mut self, count: usize) -> Vec<&str> {
        while self.ahead.len() < count && !matches!(self.ahead.back(), Some(Err(_))) {
            let mut line = Vec::new();
            match fill(&mut self.input, &mut line) {
                Ok(true) => self.ahead.push_back(Ok(line)),
                Ok(false) => break,
                Err(problem) => self.ahead.push_back(Err(problem)),
            }
        }
        let lines = self.ahead.iter().take(count).filter_map(|line| line.as_ref().ok());
        lines.filter_map(|line| std::str::from_utf8(line).ok()).collect()
    }

    /// Returns the number and the text of the next line, or `None` at the end of the trace.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &str)>, Problem> {
        match self.ahead.pop_front() {
            Some(line) => {
                self.number += 1;
                self.current = line?;
            }
            None => {
                self.number += 1;
                if !fill(&mut self.input, &mut self.current)? {
                    self.number -= 1;
                    return Ok(None);
                }
            }
        }
        let text = std::str::from_utf8(&self.current).map_err(|_| Problem::NotText)?;
        Ok(Some((self.number, text)))
    }
}

/// Reads one line into `line`; returns false at the end.
fn fill(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, Problem> {
    line.clear();
    // One byte for the end of the line and one for a carriage return.
    let mut bounded = input.take(LINE_BYTES_MAX as u64 + 2);
    let bytes =
        bounded.read_until(b'\n', line).map_err(|error| Problem::Read { message: error.to_string() })?;
    for end in [b'\n', b'\r'] {
        if line.last() == Some(&end) {
            line.pop();
        }
    }
    if line.len() > LINE_BYTES_MAX {
        return Err(Problem::TooLong { bytes_max: LINE_BYTES_MAX });
    }
    Ok(bytes > 0)
}

/// Returns exactly `N` fields.
pub(super) fn columns<'a, const N: usize>(
    mut fields: impl Iterator<Item = &'a str>,
    columns: &'static str,
) -> Result<[&'a str; N], Problem> {
    let mut row = [""; N];
    let mut found = 0;
    for (slot, field) in row.iter_mut().zip(&mut fields) {
        *slot = field;
        found += 1;
    }
    found += fields.count();
    if found == N { Ok(row) } else { Err(Problem::Columns { found, columns }) }
}

/// Parses a whole number without a sign.
pub(super) fn number(text: &str, what: &'static str) -> Result<u64, Problem> {
    const EXPECTED: &str = "a whole number";
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Problem::field(text, what, EXPECTED));
    }
    text.parse().map_err(|_| Problem::field(text, what, "a whole number below 2^64"))
}

/// Parses a decimal number of units of `unit_ns` as a time, rounded down to nanoseconds.
pub(super) fn time(text: &str, unit_ns: u64, expected: &'static str) -> Result<Duration, Problem> {
    let bad = || Problem::field(text, "a time", expected);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let mut ns = u128::from(whole) * u128::from(unit_ns);
    // No digit after the eighteenth affects the nanoseconds.
    let fraction = &fraction[..fraction.len().min(18)];
    if !fraction.is_empty() {
        let part: u64 = fraction.parse().map_err(|_| bad())?;
        ns += u128::from(part) * u128::from(unit_ns) / 10u128.pow(fraction.len() as u32);
    }
    u64::try_from(ns).map(Duration::from_nanos).map_err(|_| bad())
}

/// Parses an address and a size in sectors as a valid range.
pub(super) fn block_range(lba: &str, size: &str) -> Result<(Lba, u32), Problem> {
    let first = number(lba, "an address")?;
    let blocks = number(size, "a size")?;
    range(first, blocks, lba, size)
}

/// Parses an address and a size in bytes as a valid range. Both must be whole sectors: a device can do nothing smaller,
/// and rounding would hide that the trace was taken above a page cache.
pub(super) fn byte_range(offset: &str, size: &str) -> Result<(Lba, u32), Problem> {
    let first = number(offset, "an offset")?;
    if !first.is_multiple_of(LBA_BYTES) {
        return Err(Problem::field(offset, "an offset", "a multiple of 512 bytes"));
    }
    let bytes = number(size, "a size")?;
    if !bytes.is_multiple_of(LBA_BYTES) {
        return Err(Problem::field(size, "a size", "a multiple of 512 bytes"));
    }
    range(first / LBA_BYTES, bytes / LBA_BYTES, offset, size)
}

fn range(first: u64, blocks: u64, lba: &str, size: &str) -> Result<(Lba, u32), Problem> {
    let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0);
    let blocks = blocks.ok_or_else(|| Problem::field(size, "a size", "1 to 2^32 - 1 blocks of 512 bytes"))?;
    if first >= LBA_END || first + u64::from(blocks) > LBA_END {
        return Err(Problem::field(lba, "an address", "one whose last byte is below 2^64"));
    }
    Ok((Lba(first), blocks))
}
