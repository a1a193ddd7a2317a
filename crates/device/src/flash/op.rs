//! Operations of the NAND machine: kind, queue, place and purpose.
//!
//! Deliberately absent: their timing, which is the machine's business.

use crate::config::Cell;
use crate::geometry::PageAddr;
use flashweir_core::command::Handle;
use flashweir_ftl::{BlockId, PlaneId};

/// An operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpId(pub(super) u32);

impl OpId {
    /// Index in a table; small, and used again after the operation has ended.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Read, program or erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Moves data from the array to the host side.
    Read,
    /// Moves data from the host side to the array.
    Program,
    /// Erases a whole block.
    Erase,
}

/// The queue in which an operation waits, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Operations on the device's own metadata.
    Meta,
    /// Reads for which a host waits.
    Read,
    /// Reads of garbage collection.
    GcRead,
    /// Programs of garbage collection.
    GcWrite,
    /// Erases.
    Erase,
    /// Programs of host data.
    Write,
    /// Programs of segments, each of a page that was named when it was queued.
    Placed,
}

/// The write frontier of a plane to which a program goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontier {
    /// Host data of a placement handle.
    User(Handle),
    /// Survivors of GC.
    Gc,
}

impl Frontier {
    /// Host data of the default handle.
    pub const USER: Self = Self::User(Handle(0));
}

/// The queues of programs that get their page when they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Host data.
    User,
    /// Survivors of GC.
    Gc,
}

/// The purpose of an operation, in terms that all firmwares share; traces and statistics of time use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A read of a host.
    HostRead {
        /// The command's number in the device.
        command: u32,
    },
    /// Reads old content for a write that covers only part of a unit.
    Merge {
        /// The command's number in the device.
        command: u32,
    },
    /// A page of host data.
    HostData,
    /// Reads a page of a GC victim.
    GcRead,
    /// Programs a page of GC survivors.
    GcCopy,
    /// Programs nothing but filler.
    Filler,
    /// Erases a GC victim.
    GcErase,
    /// An erase of a host.
    HostErase,
    /// The device's own metadata.
    Metadata,
}

/// One operation. The job is what its firmware needs to know of it; the machine carries the job and never looks at it. `Op<()>`,
/// without a job, is what code outside the firmware sees of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<J = ()> {
    /// Read, program or erase.
    pub kind: OpKind,
    /// The queue in which it waits.
    pub class: Class,
    /// The plane on which it happens.
    pub plane: PlaneId,
    /// Its page; that of a late-bound program is known once the program has begun.
    pub at: PageAddr,
    /// The write frontier of a late-bound program.
    pub frontier: Option<Frontier>,
    /// Bytes that cross the bus.
    pub bytes: u32,
    /// The purpose of the operation.
    pub purpose: Purpose,
    /// The firmware's own name for it.
    pub job: J,
}

impl<J> Op<J> {
    /// The same operation without its job.
    pub fn without_job(&self) -> Op {
        self.with_job(())
    }

    /// The same operation with another job.
    pub(crate) fn with_job<K>(&self, job: K) -> Op<K> {
        let Self { kind, class, plane, at, frontier, bytes, purpose, .. } = *self;
        Op { kind, class, plane, at, frontier, bytes, purpose, job }
    }
}

/// An operation that is in the cells when the power fails.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted {
    /// The operation.
    pub op: Op,
    /// Its id, for the caller's tables.
    pub id: OpId,
}

/// First page of the word line of `page`.
pub(crate) fn wordline_start(cell: Cell, page: u32) -> u32 {
    page - page % cell.pages_per_wordline()
}

/// A page address that is not known yet.
pub(crate) const UNBOUND: PageAddr = PageAddr { block: BlockId(u32::MAX), page: 0 };
