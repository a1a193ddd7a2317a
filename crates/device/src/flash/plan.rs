//! The writes of a recovery: a list of steps; the power may fail again between and inside them.

use super::media::{Media, Torn};
use super::oob::UnitImage;
use crate::config::DeviceConfig;
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::Duration;
use flashweir_ftl::BlockId;

/// One step of a recovery.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Erase(BlockId),
    Program { at: PageAddr, opened: u64, units: Vec<UnitImage> },
}

impl Step {
    /// Executes the step, or leaves what an interrupted step leaves.
    pub(crate) fn apply(&self, media: &mut Media, torn: Torn) {
        match (self, torn) {
            (_, Torn::Absent) => {}
            (Self::Erase(block), Torn::Damaged) => media.tear_erase(*block),
            (Self::Erase(block), Torn::Done) => media.erase(*block),
            (Self::Program { at, opened, .. }, Torn::Damaged) => media.spoil(*at, *opened, at.page),
            (Self::Program { at, opened, units }, Torn::Done) => {
                media.program(*at, *opened, units.iter().cloned());
            }
        }
    }
}

/// Result of a recovery: its reads, its writes and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Pages read: metadata, the first page of each block, and blocks that no checkpoint vouches for.
    pub pages_read: u64,
    /// Number of steps: pages programmed and blocks erased.
    pub steps: u64,
    /// Mapping units found.
    pub units: u64,
    /// Time: reads of all stations in parallel, then the steps one after the other.
    pub time: Duration,
}

/// Reads of all stations run in parallel, one page after the other in each; the steps follow in order.
pub(crate) fn duration(
    config: &DeviceConfig,
    geometry: &Geometry,
    reads: &[u64],
    steps: &[Step],
) -> Duration {
    let timing = &config.timing;
    let transfer = Duration::of_transfer(geometry.unit_bytes, timing.bus_bytes_per_s);
    let page_read = timing.command[0] + timing.read.of(0) + transfer;
    let page_bytes = geometry.unit_bytes * u64::from(geometry.units_per_page);
    let page_program = timing.command[1] + Duration::of_transfer(page_bytes, timing.bus_bytes_per_s);
    let step_time = |step: &Step| match step {
        Step::Erase(_) => timing.command[2] + timing.erase,
        Step::Program { at, .. } => page_program + timing.program.of(at.page),
    };
    let longest = reads.iter().copied().max().unwrap_or(0);
    page_read * longest + steps.iter().map(step_time).sum()
}
