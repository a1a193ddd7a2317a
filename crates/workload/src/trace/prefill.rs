//! Fills a device with the contents that a trace assumes.

use super::Record;
use flashweir_core::command::pattern;
use flashweir_core::{Lpn, Payload};
use flashweir_device::{Device, FastForward};
use flashweir_sim::request::Kind;
use std::collections::BTreeSet;

/// Writes, in no virtual time, every page that a trace reads or a SHARE of it takes over and the device does not hold: such data
/// were written before it began. MQSim also treats such pages as written.
pub fn prefill(device: &mut Device, records: &[Record]) {
    let (per_unit, units) = (device.geometry().lbas_per_unit, device.geometry().user_units);
    let needed = records.iter().filter_map(|record| match record.kind {
        Kind::Read => Some((record.lba.0, record.end())),
        Kind::Share => Some((record.source.0, record.source.0 + u64::from(record.blocks))),
        _ => None,
    });
    let pages = needed.flat_map(|(first, end)| first / per_unit..end.div_ceil(per_unit));
    let pages: BTreeSet<u64> = pages.map(|page| page % units).collect();
    let missing: Vec<Lpn> = pages.into_iter().map(Lpn).filter(|lpn| !device.is_mapped(*lpn)).collect();
    let mut forward = FastForward::new(device);
    for lpn in missing {
        forward.write(lpn, Payload::Tag(pattern(0, lpn)));
    }
    forward.finish();
}
