//! MQSim's ASCII trace: `time_ns device lba size type`, addresses and sizes in sectors of 512 bytes, type 0 is a write
//! and 1 a read.
//!
//! MQSim itself ignores the device column, so all devices share one address space unless the caller
//! chooses one.

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{block_range, columns, number, time};
use flashweir_sim::request::Kind;

const COLUMNS: &str = "time_ns device lba size type";

pub(super) fn parse(text: &str) -> Result<Parsed<'_>, Problem> {
    let [at, device, lba, size, kind] = columns(text.split_ascii_whitespace(), COLUMNS)?;
    if at.contains('.') {
        return Err(Problem::field(at, "a time", "whole nanoseconds (milliseconds are the format disksim)"));
    }
    let at = time(at, 1, "whole nanoseconds")?;
    number(device, "a device")?;
    let (lba, blocks) = block_range(lba, size)?;
    let kind = match kind {
        "0" => Kind::Write,
        "1" => Kind::Read,
        _ => return Err(Problem::field(kind, "a type", "0 (write) or 1 (read)")),
    };
    Ok(Parsed { device, record: Record::new(at, kind, lba, blocks) })
}
