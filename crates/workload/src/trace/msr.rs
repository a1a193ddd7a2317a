//! The block traces of Microsoft Research Cambridge (Narayanan et al., FAST 2008; SNIA IOTTA 388):
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`. The time is a Windows file time (units of 100 ns
//! since 1601), offset and size are in bytes; the response time of the original disk is checked but not replayed. A
//! device is named like its file: `usr_0` is disk 0 of host `usr`.

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{byte_range, columns, number};
use flashweir_core::Duration;
use flashweir_sim::request::Kind;
use std::fmt::Write;

const COLUMNS: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
const TICK_NS: u64 = 100;

/// Keeps the text of the device's name, so that a line needs no allocation.
#[derive(Default)]
pub(super) struct Msr {
    device: String,
}

impl Msr {
    pub(super) fn parse(&mut self, text: &str) -> Result<Parsed<'_>, Problem> {
        let [at, host, disk, kind, offset, size, response] = columns(text.split(','), COLUMNS)?;
        let ticks = number(at, "a time")?;
        let ns = ticks.checked_mul(TICK_NS);
        let ns =
            ns.ok_or_else(|| Problem::field(at, "a time", "a Windows file time before the year 2185"))?;
        if host.is_empty() {
            return Err(Problem::field(host, "a host", "a name"));
        }
        number(disk, "a disk")?;
        let kind = match kind {
            "Read" => Kind::Read,
            "Write" => Kind::Write,
            _ => return Err(Problem::field(kind, "a type", "Read or Write")),
        };
        let (lba, blocks) = byte_range(offset, size)?;
        number(response, "a response time")?;
        self.device.clear();
        write!(self.device, "{host}_{disk}").expect("a string takes all that is written");
        Ok(Parsed { device: &self.device, record: Record::new(Duration::from_nanos(ns), kind, lba, blocks) })
    }
}
