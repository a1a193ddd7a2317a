//! A medium in memory: what is left after the power was cut.
//!
//! Programs of a block take place in the order of its pages, erases when nothing else is under way. A unit counts as written when its
//! out-of-band record is there, which is the last thing that a program puts down; a program that loses its power leaves some units.
//!
//! Deliberately absent: time. A program takes as long as a copy.

use crate::assembly::Geometry;
use crate::content::{Content, Unit};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Backoff, Ordering};
use flashweir_core::{Lpn, Ppa};

/// The power is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PowerLost;

/// Who owns a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The content of a logical unit.
    Unit(Lpn),
    /// A logical unit that is deallocated by this record.
    Trim(Lpn),
    /// Nobody: it fills up a program.
    Pad,
}

impl Owner {
    /// As the out-of-band area has it; 0 is a unit that was not written.
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Unit(lpn) => lpn.0 << 2 | 1,
            Self::Trim(lpn) => lpn.0 << 2 | 2,
            Self::Pad => 3,
        }
    }

    fn unpack(record: u64) -> Option<Self> {
        match record & 3 {
            1 => Some(Self::Unit(Lpn(record >> 2))),
            2 => Some(Self::Trim(Lpn(record >> 2))),
            3 => Some(Self::Pad),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Record {
    owner: AtomicU64,
    seq: AtomicU64,
}

/// The medium.
#[derive(Debug)]
pub struct Medium {
    geometry: Geometry,
    units: Box<[Content]>,
    records: Box<[Record]>,
    /// Next program of each block.
    next: Box<[AtomicU32]>,
    /// Number of the opening of each block's line, which its first program records.
    openings: Box<[AtomicU64]>,
    is_off: AtomicBool,
}

impl Medium {
    /// An erased medium.
    pub fn new(geometry: Geometry) -> Self {
        let units = geometry.physical_units();
        Self {
            geometry,
            units: (0..units).map(|_| Content::default()).collect(),
            records: (0..units).map(|_| Record::default()).collect(),
            next: (0..geometry.blocks()).map(|_| AtomicU32::new(0)).collect(),
            openings: (0..geometry.blocks()).map(|_| AtomicU64::new(0)).collect(),
            is_off: AtomicBool::new(false),
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Cuts the power: every operation that is not over fails.
    pub(crate) fn power_off(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }

    /// Nothing is under way any more.
    pub(crate) fn power_on(&self) {
        self.is_off.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    fn power(&self) -> Result<(), PowerLost> {
        if self.is_off() { Err(PowerLost) } else { Ok(()) }
    }

    /// First unit of a program.
    pub(crate) fn ppa(&self, block: u32, program: u32) -> Ppa {
        let programs = u64::from(block) * u64::from(self.geometry.programs_per_block) + u64::from(program);
        Ppa(programs * u64::from(self.geometry.units_per_program))
    }

    pub(crate) fn block_of(&self, ppa: Ppa) -> u32 {
        (ppa.0 / self.geometry.block_units()) as u32
    }

    /// Programs the units from `ppa` on, after all earlier programs of the block. `list` has owner and number of each unit; `content`
    /// has the content, if there is one; `opening` is the number of the line's opening.
    pub(crate) fn program<'a>(
        &self,
        ppa: Ppa,
        list: &Content,
        opening: u64,
        content: impl Fn(u32) -> Option<&'a Content>,
    ) -> Result<(), PowerLost> {
        let block = self.block_of(ppa);
        let program = (ppa.0 % self.geometry.block_units()) as u32 / self.geometry.units_per_program;
        let next = &self.next[block as usize];
        let mut backoff = Backoff::default();
        while next.load(Ordering::Acquire) != program {
            self.power()?;
            backoff.wait();
        }
        self.power()?;
        self.openings[block as usize].store(opening, Ordering::Release);
        for at in 0..self.geometry.units_per_program {
            self.power()?;
            let unit = (ppa.0 + u64::from(at)) as usize;
            let record = &self.records[unit];
            assert_eq!(record.owner.load(Ordering::Relaxed), 0, "unit {unit} is programmed twice");
            if let Some(content) = content(at) {
                self.units[unit].copy(content);
            }
            record.seq.store(list.word(2 * at as usize + 1), Ordering::Relaxed);
            record.owner.store(list.word(2 * at as usize), Ordering::Release);
        }
        next.store(program + 1, Ordering::Release);
        Ok(())
    }

    /// Copies a unit. What is read is what was programmed if the line is held.
    pub(crate) fn read(&self, ppa: Ppa, unit: &mut Unit) -> Result<(), PowerLost> {
        self.power()?;
        self.units[ppa.0 as usize].read(unit);
        Ok(())
    }

    /// The same into a buffer.
    pub(crate) fn read_to(&self, ppa: Ppa, buffer: &Content) -> Result<(), PowerLost> {
        self.power()?;
        buffer.copy(&self.units[ppa.0 as usize]);
        Ok(())
    }

    /// Owner and number of a unit, if it was written.
    pub(crate) fn record(&self, ppa: Ppa) -> Option<(Owner, u64)> {
        let record = &self.records[ppa.0 as usize];
        let owner = Owner::unpack(record.owner.load(Ordering::Acquire))?;
        Some((owner, record.seq.load(Ordering::Relaxed)))
    }

    /// Number of the opening of a unit's line.
    pub(crate) fn opening(&self, ppa: Ppa) -> u64 {
        self.openings[self.block_of(ppa) as usize].load(Ordering::Acquire)
    }

    /// Whether a block takes programs from the first one on.
    pub(crate) fn is_erased(&self, block: u32) -> bool {
        let mut units = (0..self.geometry.block_units()).map(|at| self.ppa(block, 0).0 + at);
        self.next[block as usize].load(Ordering::Acquire) == 0
            && units.all(|unit| self.record(Ppa(unit)).is_none())
    }

    /// Erases a block.
    pub(crate) fn erase(&self, block: u32) -> Result<(), PowerLost> {
        let first = self.ppa(block, 0).0;
        for unit in first..first + self.geometry.block_units() {
            self.power()?;
            self.records[unit as usize].owner.store(0, Ordering::Release);
        }
        self.next[block as usize].store(0, Ordering::Release);
        Ok(())
    }
}
