//! Tencent's block storage traces of October 2018 (Zhang et al., ATC 2020; SNIA IOTTA 27917):
//! `Timestamp,Offset,Size,IOType,VolumeID`, the time in seconds since 1970, offset and size in sectors of 512 bytes,
//! type 0 is a read and 1 a write (the inverse of MQSim's).
//!
//! Times are whole seconds, so all requests of one second start together when the trace is replayed with its original
//! times.

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{block_range, columns, number, time};
use flashweir_sim::request::Kind;

const COLUMNS: &str = "Timestamp,Offset,Size,IOType,VolumeID";

pub(super) fn parse(text: &str) -> Result<Parsed<'_>, Problem> {
    let [at, offset, size, kind, device] = columns(text.split(','), COLUMNS)?;
    let at = time(at, 1_000_000_000, "seconds")?;
    let (lba, blocks) = block_range(offset, size)?;
    let kind = match kind {
        "0" => Kind::Read,
        "1" => Kind::Write,
        _ => return Err(Problem::field(kind, "a type", "0 (read) or 1 (write)")),
    };
    number(device, "a volume")?;
    Ok(Parsed { device, record: Record::new(at, kind, lba, blocks) })
}
