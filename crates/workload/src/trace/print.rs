//! Prints records as text of a format, so that a trace can be converted and a generated load can be passed to other
//! simulators.

use super::{Format, Record};
use flashweir_core::units::LBA_BYTES;
use flashweir_sim::request::Kind;
use std::io::{self, ErrorKind, Write};

/// Writes `records` of one device. Times are rounded down to the unit of the format. A record that the format cannot
/// express (only blkparse supports FUA and a flush before a request; only blkparse and fio-iolog support flushes and
/// trims, and only fio-iolog a SHARE, by an action of ours) is an error of kind [`ErrorKind::InvalidInput`].
///
/// The device must have the form that the format expects: a number, `usr_0`, `8,0` or a file name.
pub fn print(
    out: &mut impl Write,
    format: Format,
    device: &str,
    records: impl IntoIterator<Item = Record>,
) -> io::Result<()> {
    if format == Format::FioIolog {
        writeln!(out, "fio version 3 iolog\n0 {device} add\n0 {device} open")?;
    }
    for (i, record) in records.into_iter().enumerate() {
        if record.kind == Kind::WriteZeroes || ((record.fua || record.preflush) && format != Format::Blkparse)
        {
            return Err(inexpressible(format, &record));
        }
        match format {
            Format::Blkparse => blkparse(out, device, i as u64 + 1, &record)?,
            Format::FioIolog => fio(out, device, &record)?,
            _ => row(out, format, device, &record)?,
        }
    }
    Ok(())
}

fn inexpressible(format: Format, record: &Record) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("{format} cannot express {record:?}"))
}

/// Writes a row of one of the formats with only reads and writes.
fn row(out: &mut impl Write, format: Format, device: &str, record: &Record) -> io::Result<()> {
    let Record { lba, blocks, .. } = *record;
    let (is_read, word, letter) = match record.kind {
        Kind::Read => (true, "Read", 'R'),
        Kind::Write => (false, "Write", 'W'),
        Kind::Trim | Kind::WriteZeroes | Kind::Share | Kind::Flush => {
            return Err(inexpressible(format, record));
        }
    };
    let ns = record.at.as_nanos();
    let (lba, offset, size) = (lba.0, lba.0 * LBA_BYTES, u64::from(blocks) * LBA_BYTES);
    match format {
        Format::Mqsim => writeln!(out, "{ns} {device} {lba} {blocks} {}", u8::from(is_read)),
        Format::Disksim => {
            let (ms, rest) = (ns / 1_000_000, ns % 1_000_000);
            writeln!(out, "{ms}.{rest:06} {device} {lba} {blocks} {}", u8::from(is_read))
        }
        Format::Msr => {
            let (host, disk) = device.rsplit_once('_').unwrap_or((device, "0"));
            writeln!(out, "{},{host},{disk},{word},{offset},{size},0", ns / 100)
        }
        Format::Alibaba => writeln!(out, "{device},{letter},{offset},{size},{}", ns / 1_000),
        Format::Tencent => {
            writeln!(out, "{},{lba},{blocks},{},{device}", ns / 1_000_000_000, u8::from(!is_read))
        }
        Format::Blkparse | Format::FioIolog => unreachable!("they have functions of their own"),
    }
}

fn blkparse(out: &mut impl Write, device: &str, sequence: u64, record: &Record) -> io::Result<()> {
    let operation = match record.kind {
        Kind::Read => "R",
        Kind::Write => "W",
        Kind::Trim => "D",
        Kind::Flush => "FN",
        Kind::WriteZeroes | Kind::Share => return Err(inexpressible(Format::Blkparse, record)),
    };
    if record.kind == Kind::Flush && (record.preflush || record.fua) {
        return Err(inexpressible(Format::Blkparse, record));
    }
    let letters =
        format!("{}{operation}{}", if record.preflush { "F" } else { "" }, if record.fua { "F" } else { "" });
    let ns = record.at.as_nanos();
    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    write!(out, "{device:>7}  0 {sequence:8} {seconds:5}.{rest:09}     0  Q {letters:>3} ")?;
    match record.kind {
        Kind::Flush => writeln!(out, "[weir]"),
        _ => writeln!(out, "{} + {} [weir]", record.lba.0, record.blocks),
    }
}

fn fio(out: &mut impl Write, device: &str, record: &Record) -> io::Result<()> {
    let action = match record.kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Trim => "trim",
        Kind::Flush => "sync",
        Kind::Share => "share",
        Kind::WriteZeroes => return Err(inexpressible(Format::FioIolog, record)),
    };
    let (offset, length) = (record.lba.0 * LBA_BYTES, u64::from(record.blocks) * LBA_BYTES);
    write!(out, "{} {device} {action} {offset} {length}", record.at.as_nanos() / 1_000)?;
    match record.kind {
        Kind::Share => writeln!(out, " {}", record.source.0 * LBA_BYTES),
        _ => writeln!(out),
    }
}
