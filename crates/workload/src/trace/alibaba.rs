//! Alibaba's block traces of January 2020 (Li et al., IISWC 2020; github.com/alibaba/block-traces):
//! `device_id,opcode,offset,length,timestamp`, the opcode R or W, offset and length in bytes, the time in
//! microseconds since 1970.

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{byte_range, columns, number, time};
use flashweir_sim::request::Kind;

const COLUMNS: &str = "device_id,opcode,offset,length,timestamp";

pub(super) fn parse(text: &str) -> Result<Parsed<'_>, Problem> {
    let [device, kind, offset, length, at] = columns(text.split(','), COLUMNS)?;
    number(device, "a device")?;
    let kind = match kind {
        "R" => Kind::Read,
        "W" => Kind::Write,
        _ => return Err(Problem::field(kind, "an opcode", "R or W")),
    };
    let (lba, blocks) = byte_range(offset, length)?;
    let at = time(at, 1_000, "microseconds")?;
    Ok(Parsed { device, record: Record::new(at, kind, lba, blocks) })
}
