//! Operations of the NAND machine: what they are, whom they serve, and what is said of them.
//!
//! Deliberately absent: when they happen, which is the machine's business.

use crate::config::Cell;
use crate::geometry::PageAddr;
use flashweir_ftl::{BlockId, PlaneId};

/// An operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpId(pub(super) u32);

impl OpId {
    /// Its place in a table; small, and used again after the operation has ended.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Read, program or erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Array to host.
    Read,
    /// Host to array.
    Program,
    /// A whole block.
    Erase,
}

/// Which queue an operation waits in, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The device's own metadata.
    Meta,
    /// Reads that a host waits for.
    Read,
    /// Reads of garbage collection.
    GcRead,
    /// Programs of garbage collection.
    GcWrite,
    /// Erases.
    Erase,
    /// Programs of host data.
    Write,
}

/// Which write frontier of a plane a program goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontier {
    /// Host data.
    User,
    /// Survivors of collection.
    Gc,
}

/// What an operation is for, in words that all firmwares share; pictures and sums of time are made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A host reads.
    HostRead {
        /// The command's number in the device.
        command: u32,
    },
    /// Old content for a write that covers part of a unit.
    Merge {
        /// The command's number in the device.
        command: u32,
    },
    /// A page of host data.
    HostData,
    /// A victim of collection is read.
    GcRead,
    /// A page of survivors of collection.
    GcCopy,
    /// Nothing but filler.
    Filler,
    /// A victim of collection is erased.
    GcErase,
    /// A host erases.
    HostErase,
    /// The device's own metadata.
    Metadata,
}

/// One operation. What its firmware needs to know of it is the job, which the machine carries and never looks at; without one, it
/// is what others are told of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<J = ()> {
    /// Read, program or erase.
    pub kind: OpKind,
    /// Its queue.
    pub class: Class,
    /// Where it happens.
    pub plane: PlaneId,
    /// Its page; of a program, known from its begin on unless it was given.
    pub at: PageAddr,
    /// The frontier of a program that is bound late.
    pub frontier: Option<Frontier>,
    /// Bytes that cross the bus.
    pub bytes: u32,
    /// What it is for.
    pub purpose: Purpose,
    /// The firmware's own name for it.
    pub job: J,
}

impl<J> Op<J> {
    /// The same operation without its job.
    pub fn without_job(&self) -> Op {
        let Self { kind, class, plane, at, frontier, bytes, purpose, .. } = *self;
        Op { kind, class, plane, at, frontier, bytes, purpose, job: () }
    }
}

/// An operation that is in the cells when the power goes.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted {
    /// The operation.
    pub op: Op,
    /// Its name, for the caller's tables.
    pub id: OpId,
}

/// First page of the word line of `page`.
pub(crate) fn wordline_start(cell: Cell, page: u32) -> u32 {
    page - page % cell.pages_per_wordline()
}

/// A page address that is not known yet.
pub(crate) const UNBOUND: PageAddr = PageAddr { block: BlockId(u32::MAX), page: 0 };
