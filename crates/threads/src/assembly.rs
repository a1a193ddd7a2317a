//! Which parts an FTL is made of, and the numbers that follow from a device's shape.
//!
//! Each step from pblk to QBLKe is a switch of its own (open-channel §9.5).

use flashweir_ftl::limiter::Marks;

/// Parts of an FTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Assembly {
    /// A ring for each CPU, in the place of one.
    pub rings_per_cpu: bool,
    /// A map of atomic words, and readers without locks, in the place of one lock around the map and readers that take the ring's.
    pub map_is_atomic: bool,
    /// Lines of a channel, in the place of those of the device.
    pub channel_lines: bool,
    /// A slab of descriptors for each worker, in the place of one pool behind a lock.
    pub pool_per_cpu: bool,
    /// Scores in the place of windows.
    pub scores: bool,
}

/// Linux's, with one of everything.
pub const PBLK: Assembly = Assembly {
    rings_per_cpu: false,
    map_is_atomic: false,
    channel_lines: false,
    pool_per_cpu: false,
    scores: false,
};

/// The paper's.
pub const QBLKE: Assembly = Assembly {
    rings_per_cpu: true,
    map_is_atomic: true,
    channel_lines: true,
    pool_per_cpu: true,
    scores: true,
};

/// The steps between them, in the paper's order; each has those before it.
pub const STEPS: [(&str, Assembly); 6] = [
    ("pblk", PBLK),
    ("rings", Assembly { rings_per_cpu: true, ..PBLK }),
    ("map", Assembly { rings_per_cpu: true, map_is_atomic: true, ..PBLK }),
    ("lines", Assembly { pool_per_cpu: false, scores: false, ..QBLKE }),
    ("pool", Assembly { scores: false, ..QBLKE }),
    ("qblke", QBLKE),
];

/// Shape of a device, and what the host makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Geometry {
    /// Channels.
    pub channels: u32,
    /// Dies of a channel.
    pub dies_per_channel: u32,
    /// Blocks of a die, over all of its planes.
    pub blocks_per_die: u32,
    /// Programs that fill a block.
    pub programs_per_block: u32,
    /// Units of 4 KiB that one program takes, on all planes of a die.
    pub units_per_program: u32,
    /// Logical units.
    pub user_units: u64,
    /// CPUs that have a ring each, where rings are for each CPU.
    pub cpus: u32,
    /// Handles at most at a time.
    pub workers: u32,
}

/// A number that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeometryError(pub String);

impl std::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GeometryError {}

/// Units of a program of the devices that are made here.
const PROGRAM_UNITS: u32 = 16;

/// A device with fewer units is small: 128 MiB.
const SMALL_UNITS: u64 = 1 << 15;

/// Entries of the ring of a device at least; a quarter, where it has several. Shuttle's disks are so small that GC begins after some writes.
const RING_ENTRIES: u32 = if cfg!(shuttle) { 16 } else { 128 };

/// Places of a request at most.
pub(crate) const REQUEST_UNITS: u64 = 64;

impl Geometry {
    /// Dies of the device.
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.dies() * self.blocks_per_die
    }

    /// Units of a block.
    pub fn block_units(&self) -> u64 {
        u64::from(self.programs_per_block) * u64::from(self.units_per_program)
    }

    /// Units on the medium.
    pub fn physical_units(&self) -> u64 {
        u64::from(self.blocks()) * self.block_units()
    }

    /// A device for `user_units`, with so many percent of the medium kept from the user: eight channels of a die each, of a small device two, programs of
    /// 64 KiB, and blocks of up to 16 MiB, so small that each channel has 64 where it can.
    ///
    /// # Errors
    /// It would be too small or too large.
    pub fn for_units(user_units: u64, percent: u64, cpus: u32, workers: u32) -> Result<Self, GeometryError> {
        let channels = if user_units < SMALL_UNITS { 2 } else { 8 };
        let of_a_channel = user_units * 100 / (100 - percent) / u64::from(channels * PROGRAM_UNITS);
        let programs = (of_a_channel / 64).clamp(8, 256).next_power_of_two() as u32;
        Self::shaped((user_units, percent), (channels, programs), cpus, workers)
    }

    /// A device for `user_units` on zones of `capacity` bytes, one for each block and so many programs in each as it takes, of which at most
    /// `active_max` may be written at a time.
    ///
    /// # Errors
    /// It would be too small or too large.
    pub fn for_zones(
        (user_units, percent): (u64, u64),
        (capacity, active_max): (u64, Option<u32>),
        cpus: u32,
        workers: u32,
    ) -> Result<Self, GeometryError> {
        // A unit more for the record.
        let programs = capacity / (u64::from(PROGRAM_UNITS + 1) * 4096);
        // The zone that is being written, and the one before it, whose last program may be under way.
        let channels = active_max.map_or(8, |most| most / 2).min(8);
        if programs == 0 || channels == 0 {
            let active = active_max.map_or("any number".into(), |most| most.to_string());
            return Err(GeometryError(format!(
                "zones of {capacity} bytes, {active} active: expected 69632 bytes and 2 at least"
            )));
        }
        Self::shaped((user_units, percent), (channels, programs.min(1 << 16) as u32), cpus, workers)
    }

    /// A device for `user_units`, with as many blocks as that takes.
    fn shaped(
        (user_units, percent): (u64, u64),
        (channels, programs): (u32, u32),
        cpus: u32,
        workers: u32,
    ) -> Result<Self, GeometryError> {
        let of_a_channel = user_units * 100 / (100 - percent) / u64::from(channels * PROGRAM_UNITS);
        let blocks = of_a_channel.div_ceil(programs.into()).max(2);
        let too_many = || {
            GeometryError(format!(
                "{user_units} units: expected fewer, because a channel would have {blocks} blocks"
            ))
        };
        let mut geometry = Self {
            channels,
            dies_per_channel: 1,
            blocks_per_die: u32::try_from(blocks).map_err(|_| too_many())?,
            programs_per_block: programs,
            units_per_program: PROGRAM_UNITS,
            user_units,
            cpus,
            workers,
        };
        geometry.check_numbers()?;
        // A small device keeps more, for lines under way.
        while !STEPS.iter().all(|&(_, assembly)| geometry.check_lasting(assembly).is_ok()) {
            geometry.blocks_per_die += 1;
            geometry.check_numbers()?;
        }
        Ok(geometry)
    }

    /// The same device with a part of the medium, in percent, kept from the user.
    pub fn over_provisioned(self, percent: u64) -> Self {
        Self { user_units: self.physical_units() * (100 - percent) / 100, ..self }
    }

    /// Entries of each ring (open-channel §1.1, open-channel §2.2).
    pub(crate) fn rings(&self, assembly: Assembly) -> Vec<u32> {
        let all = (8 * self.units_per_program * self.dies()).next_power_of_two().max(RING_ENTRIES);
        match assembly.rings_per_cpu {
            false => vec![all],
            true => vec![
                (all / self.cpus).max(RING_ENTRIES / 4).max(2 * self.units_per_program);
                self.cpus as usize
            ],
        }
    }

    /// Groups of lines.
    pub(crate) fn groups(&self, assembly: Assembly) -> u32 {
        if assembly.channel_lines { self.channels } else { 1 }
    }

    /// Units of a line.
    pub(crate) fn line_units(&self, assembly: Assembly) -> u64 {
        u64::from(self.dies() / self.groups(assembly)) * self.block_units()
    }

    /// Units that are kept for what is in the rings, what fills up programs, the copies of a victim, and the rest of each open line, which
    /// a power loss takes: with less room the user waits.
    pub(crate) fn gate(&self, assembly: Assembly) -> u64 {
        let rings = self.rings(assembly);
        let entries: u64 = rings.iter().map(|&entries| u64::from(entries)).sum();
        let lines = u64::from(self.groups(assembly)) + 1;
        lines * self.line_units(assembly)
            + entries
            + rings.len() as u64 * u64::from(self.units_per_program) * 4
    }

    /// Numbers of a group's limiter (open-channel §7.2).
    pub(crate) fn marks(&self, assembly: Assembly) -> Marks {
        let groups = self.groups(assembly);
        let line = self.dies() / groups;
        let entries: u32 = self.rings(assembly).iter().sum();
        let spare = (self.physical_units() - self.user_units) / self.block_units() / u64::from(groups);
        let high = (spare as u32).saturating_sub(line).max(line + 1);
        Marks { budget: entries / groups, high, reserve: line }
    }

    /// Whether an FTL can run on it.
    ///
    /// # Errors
    /// The number that cannot be.
    pub fn check(&self, assembly: Assembly) -> Result<(), GeometryError> {
        self.check_numbers()?;
        let (kept, all) = (self.gate(assembly) + self.line_units(assembly), self.physical_units());
        let most = all.saturating_sub(kept);
        if self.user_units == 0 || self.user_units > most {
            let units = self.user_units;
            return Err(GeometryError(format!(
                "user_units {units}: expected 1 to {most}, because {kept} of {all} are kept for lines under way and rings"
            )));
        }
        Ok(())
    }

    /// Whether there is always something to collect where there is no room, however evenly stale units are spread: GC leaves a line alone that
    /// gains less than a program.
    fn leaves_victims(&self, assembly: Assembly) -> bool {
        let (all, line) = (self.physical_units(), self.line_units(assembly));
        let stale = all / line * u64::from(self.units_per_program - 1);
        self.user_units + self.gate(assembly) + line + stale <= all
    }

    /// Whether an FTL can run on it for ever: GC finds something to collect, however evenly overwrites are spread.
    ///
    /// # Errors
    /// The number that cannot be.
    pub fn check_lasting(&self, assembly: Assembly) -> Result<(), GeometryError> {
        self.check(assembly)?;
        match self.leaves_victims(assembly) {
            true => Ok(()),
            false => Err(GeometryError(format!(
                "user_units {}: overwrites that are spread evenly would leave GC nothing to collect",
                self.user_units
            ))),
        }
    }

    /// Checks each number by itself.
    pub(crate) fn check_numbers(&self) -> Result<(), GeometryError> {
        let numbers = [
            ("channels", self.channels, 1, 1 << 10),
            ("dies_per_channel", self.dies_per_channel, 1, 1 << 10),
            ("blocks_per_die", self.blocks_per_die, 2, 1 << 20),
            ("programs_per_block", self.programs_per_block, 1, 1 << 16),
            ("units_per_program", self.units_per_program, 1, 64),
            ("cpus", self.cpus, 1, 128),
            ("workers", self.workers, 1, 1 << 10),
        ];
        for (name, number, least, most) in numbers {
            if !(least..=most).contains(&number) {
                return Err(GeometryError(format!("{name} {number}: expected {least} to {most}")));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_on_zones_writes_no_more_of_them_than_it_may() {
        let on = |units, active| Geometry::for_zones((units, 11), (1077 << 20, active), 2, 8);
        for (active, channels) in [(None, 8), (Some(14), 7), (Some(16), 8), (Some(2), 1)] {
            let geometry = on(100 << 18, active).unwrap();
            assert_eq!((geometry.channels, geometry.programs_per_block), (channels, 16218));
            assert!(STEPS.iter().all(|(_, assembly)| geometry.check(*assembly).is_ok()), "{geometry:?}");
            assert!(geometry.physical_units() * 89 / 100 >= geometry.user_units);
        }
        let refused = |units, active| on(units, active).unwrap_err().0;
        assert_eq!(
            refused(100 << 18, Some(1)),
            "zones of 1129316352 bytes, 1 active: expected 69632 bytes and 2 at least"
        );
    }

    /// A small disk that was made for two CPUs and opened with 16: its rings took what GC needs, and overwrites made it full for good.
    #[test]
    fn regression_more_cpus_do_not_take_what_gc_needs() {
        let made = Geometry::for_units(64 << 8, 11, 2, 8).unwrap();
        let with = |cpus| Geometry { cpus, ..made };
        assert_eq!(made.check_lasting(QBLKE), Ok(()));
        assert_eq!(with(16).check(QBLKE), Ok(()));
        let error = with(16).check_lasting(QBLKE).unwrap_err();
        assert!(error.0.contains("would leave GC nothing to collect"), "{error}");
    }
}
