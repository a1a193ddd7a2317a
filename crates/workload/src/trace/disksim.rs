//! DiskSim's default ASCII trace: `time_ms device lba size flags`. The columns are those of MQSim, but the time is a
//! decimal number of milliseconds and the flags are hexadecimal: bit 0 is a read (in both formats 1 reads and 0
//! writes), the others say how the process waits, which is invisible to a device.
//!
//! Reference: The DiskSim Simulation Environment Version 4.0 Reference Manual, "Input: ASCII traces".

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{block_range, columns, number, time};
use flashweir_sim::request::Kind;

const COLUMNS: &str = "time_ms device lba size flags";
const READ: u32 = 1;

pub(super) fn parse(text: &str) -> Result<Parsed<'_>, Problem> {
    let [at, device, lba, size, flags] = columns(text.split_ascii_whitespace(), COLUMNS)?;
    let at = time(at, 1_000_000, "milliseconds such as 12.345678")?;
    number(device, "a device")?;
    let (lba, blocks) = block_range(lba, size)?;
    let hex = flags.strip_prefix("0x").unwrap_or(flags);
    let known = (!hex.starts_with('+')).then(|| u32::from_str_radix(hex, 16).ok()).flatten();
    let bits = known.ok_or_else(|| Problem::field(flags, "a set of flags", "a hexadecimal number"))?;
    let kind = if bits & READ != 0 { Kind::Read } else { Kind::Write };
    Ok(Parsed { device, record: Record::new(at, kind, lba, blocks) })
}
