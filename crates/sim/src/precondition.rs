//! Brings a device into a given state before a measurement.
//!
//! `instant` drives the FTL's own decisions without time (see [`flashweir_device::FastForward`]); `age-by-writing`
//! sends the same writes through link, buffer and NAND. Both leave the same kind of state; a test compares their write
//! amplification.

use crate::host_ftl::Disk;
use crate::request::{Kind, Request};
use crate::workload::{Step, Workload};
use crate::world::{JobSetup, World};
use flashweir_core::command::Handle;
use flashweir_core::random::RandomStream;
use flashweir_core::{Duration, Instant, Lba, Lpn, Payload};
use flashweir_device::{Device, FastForward};
use serde::{Deserialize, Serialize};

/// Units of a write that fills a disk with a host FTL.
const FILL_UNITS: u32 = 32;

/// Method of preconditioning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// None: a new device.
    #[default]
    None,
    /// Instantly, in no virtual time.
    Instant,
    /// By ordinary writes, in virtual time.
    AgeByWriting,
}

/// The order of the overwrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Uniform random.
    #[default]
    Random,
    /// Ascending.
    Sequential,
}

/// The state to reach: a fraction `fill` of the capacity written once in ascending order, then `overwrite` times that
/// amount written again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Precondition {
    /// Method.
    pub mode: Mode,
    /// Fraction of the capacity that is written, from its beginning.
    pub fill: f64,
    /// Amount of overwrites, in multiples of the filled part.
    pub overwrite: f64,
    /// Order of the overwrites.
    pub pattern: Pattern,
}

impl Default for Precondition {
    fn default() -> Self {
        Self { mode: Mode::None, fill: 1.0, overwrite: 2.0, pattern: Pattern::Random }
    }
}

impl Precondition {
    /// Checks the ranges; the error names key, value and range.
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.fill) {
            return Err(format!("precondition.fill = {}: expected 0 to 1", self.fill));
        }
        if !(0.0..=100.0).contains(&self.overwrite) {
            return Err(format!("precondition.overwrite = {}: expected 0 to 100", self.overwrite));
        }
        Ok(())
    }

    /// Brings a fresh device into the state. `progress` gets the fraction done and may stop the work by returning
    /// false, after which the device must not be used.
    pub fn apply(&self, device: Device, seed: u64, progress: impl FnMut(f64) -> bool) -> (Device, bool) {
        match self.mode {
            Mode::None => (device, true),
            Mode::Instant => self.instantly(device, seed, progress),
            Mode::AgeByWriting => self.by_writing(device, seed, progress),
        }
    }

    /// The same for a disk. A host FTL gets its state by writes in virtual time in both modes, since it has no other way to one.
    pub fn apply_to(&self, disk: Disk, seed: u64, progress: impl FnMut(f64) -> bool) -> (Disk, bool) {
        match &disk.host_ftl {
            None => {
                let (device, finished) = self.apply(disk.device, seed, progress);
                (device.into(), finished)
            }
            Some(_) if self.mode == Mode::None => (disk, true),
            Some(ftl) => {
                let units = ftl.layout().user_units;
                // Large writes while they are in order cost few events.
                self.through(disk, units, FILL_UNITS, seed, progress)
            }
        }
    }

    fn writes(&self, units: u64, seed: u64) -> Writes {
        let filled = ((units as f64 * self.fill) as u64).min(units);
        let total = filled + (filled as f64 * self.overwrite) as u64;
        Writes {
            random: RandomStream::new(seed, "precondition"),
            filled,
            total,
            next: 0,
            pattern: self.pattern,
        }
    }

    fn instantly(
        &self,
        mut device: Device,
        seed: u64,
        mut progress: impl FnMut(f64) -> bool,
    ) -> (Device, bool) {
        let writes = self.writes(device.geometry().user_units, seed);
        let total = writes.total;
        let mut forward = FastForward::new(&mut device);
        let mut finished = true;
        for (i, lpn) in writes.enumerate() {
            forward.write(lpn, Payload::Tag(flashweir_core::command::pattern(i as u64, lpn)));
            if (i + 1) % (1 << 20) == 0 && !progress(i as f64 / total as f64) {
                finished = false;
                break;
            }
        }
        forward.finish();
        (device, finished)
    }

    fn by_writing(&self, device: Device, seed: u64, progress: impl FnMut(f64) -> bool) -> (Device, bool) {
        let units = device.geometry().user_units;
        let (disk, finished) = self.through(device.into(), units, 1, seed, progress);
        (disk.device, finished)
    }

    /// Writes through the link, where those in order have up to `run` units.
    fn through(
        &self,
        disk: Disk,
        units: u64,
        run: u32,
        seed: u64,
        mut progress: impl FnMut(f64) -> bool,
    ) -> (Disk, bool) {
        let geometry = disk.device.geometry();
        let writes = self.writes(units, seed);
        let (filled, total) = (writes.filled as f64, writes.total.max(1) as f64);
        let depth = geometry.stations() * 4;
        let blocks = geometry.lbas_per_unit as u32;
        let workload = Ageing { writes, blocks, run, depth, in_flight: 0 };
        let setup = JobSetup { stats: false, ..JobSetup::new("ageing", workload) };
        let mut world = World::above(disk, None, vec![setup], Duration::from_secs(1));
        let run = f64::from(run);
        // Overwrites have one unit each.
        let units = |requests: f64| {
            if requests * run < filled { requests * run } else { filled + requests - filled / run }
        };
        let finished = world.run(|p| progress((units(p.requests as f64) / total).min(1.0)));
        (world.settle(), finished)
    }
}

/// The sequence of logical pages to write.
#[derive(Debug)]
struct Writes {
    random: RandomStream,
    filled: u64,
    total: u64,
    next: u64,
    pattern: Pattern,
}

impl Iterator for Writes {
    type Item = Lpn;

    #[inline]
    fn next(&mut self) -> Option<Lpn> {
        if self.next == self.total {
            return None;
        }
        let nth = self.next;
        self.next += 1;
        Some(Lpn(match self.pattern {
            _ if nth < self.filled => nth,
            Pattern::Sequential => nth % self.filled,
            Pattern::Random => self.random.below(self.filled),
        }))
    }
}

impl Writes {
    /// The next write: its first unit, and how many follow each other, at most `run`.
    fn next_run(&mut self, run: u32) -> Option<(Lpn, u32)> {
        let first = self.next()?;
        let in_order = self.filled.saturating_sub(self.next);
        let more = in_order.min(u64::from(run) - 1);
        self.next += more;
        Some((first, 1 + more as u32))
    }
}

#[derive(Debug)]
struct Ageing {
    writes: Writes,
    blocks: u32,
    /// Units of a write at most.
    run: u32,
    depth: u32,
    in_flight: u32,
}

impl Workload for Ageing {
    fn poll(&mut self, now: Instant) -> Step {
        if self.in_flight == self.depth {
            return Step::Blocked;
        }
        match self.writes.next_run(self.run) {
            None => Step::Done,
            Some((lpn, units)) => {
                self.in_flight += 1;
                Step::Submit(Request {
                    kind: Kind::Write,
                    lba: Lba(lpn.0 * u64::from(self.blocks)),
                    blocks: units * self.blocks,
                    source: Lba(0),
                    fua: false,
                    handle: Handle(0),
                    intended: now,
                    token: 0,
                })
            }
        }
    }

    fn completed(&mut self, _now: Instant, _token: u32) {
        self.in_flight -= 1;
    }
}
