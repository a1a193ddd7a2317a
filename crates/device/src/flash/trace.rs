//! The tracer: records of what the device does and when, from which tools outside of the device make traces and statistics.
//!
//! Place in the data flow: hooks in the device and in its NAND machine call [`Tracer::record`]; the driver of the device turns the
//! tracer on ([`crate::Device::set_tracing`]) and takes the records after each command or event ([`crate::Device::take_trace`]).
//!
//! The position of a record names its cause: the records after [`Traced::Arrived`], [`Traced::MemoryDone`] or [`Traced::Finished`],
//! up to the next of these three, happened because of it.
//!
//! Invariants: tracing changes no answer and no instant; without it each hook is one branch that is never taken, and nothing is
//! allocated; the records of one device are in the order of time.
//!
//! Deliberately absent: what the host saw (the link is not the device's), text, and any limit: records accumulate until they are
//! taken.

use super::op::{Op, OpId};
use crate::geometry::{PageAddr, StationId};
use flashweir_core::{CommandId, Duration, Instant};
use flashweir_ftl::{BlockId, PlaneId};

/// Kinds of writes of the map log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWork {
    /// A group of records.
    Group,
    /// Blocks of the other region are erased for a checkpoint.
    Erase,
    /// A checkpoint.
    Checkpoint,
}

/// One action of the device.
#[derive(Clone, Copy, Debug)]
pub enum Traced {
    /// A command has arrived with its data. `command` is its number in the device until it completes; then the number is used
    /// again.
    Arrived {
        /// Its number in the device.
        command: u32,
        /// The host's id of the command.
        id: CommandId,
    },
    /// The buffer memory has moved the data of a command.
    MemoryDone {
        /// Its number in the device.
        command: u32,
    },
    /// An operation has ended, or was given up before it began. Its number is free from here on.
    Finished {
        /// Its number in the machine.
        op: OpId,
    },
    /// The buffer memory will move data of a command.
    Memory {
        /// Its number in the device.
        command: u32,
        /// The instant at which the transfer begins; other commands go first.
        from: Instant,
        /// The instant at which the transfer ends.
        until: Instant,
    },
    /// A command that changes state joins the queue of acceptance.
    Enqueued {
        /// Its number in the device.
        command: u32,
    },
    /// All parts of the command were accepted, and it left the queue. Comes after [`Traced::Completed`] if acceptance completed the
    /// command.
    Admitted {
        /// Its number in the device.
        command: u32,
    },
    /// An accepted command waits for durability: a FLUSH, FUA, or any write of a write-through device.
    Waits {
        /// Its number in the device.
        command: u32,
        /// Mapping units that are not durable.
        units: u32,
        /// Whether it waits for the map log.
        log: bool,
    },
    /// A command has completed.
    Completed {
        /// Its number in the device.
        command: u32,
        /// Whether it completed with an error.
        failed: bool,
    },
    /// An operation waits at its die. `op` is its number until it has finished; then the number is used again.
    Queued {
        /// Its number in the machine.
        op: OpId,
        /// The operation; a late-bound program has no page yet.
        what: Op,
    },
    /// A command with this operation begins; operations of several planes begin together, with one record each.
    Issued {
        /// Its number in the machine.
        op: OpId,
        /// Address of its page.
        at: PageAddr,
        /// Bytes that cross the bus.
        bytes: u32,
        /// Number of operations in the command, in the record of the first one; 0 in the others.
        planes: u8,
        /// Time for which command and data hold the bus.
        bus: Duration,
        /// Time for which the array then works, if it is not suspended.
        array: Duration,
    },
    /// The data of a read begin to cross the bus.
    Output {
        /// Its number in the machine.
        op: OpId,
        /// When the transfer ends.
        until: Instant,
    },
    /// The array of a station is being stopped for a read.
    Suspended {
        /// The station.
        station: StationId,
        /// The instant at which the array has stopped.
        until: Instant,
    },
    /// The array continues the operation that was suspended.
    Resumed {
        /// The station.
        station: StationId,
        /// The instant at which the operation will have ended.
        until: Instant,
    },
    /// GC has chosen a victim; its collection ends with the erase of the block.
    Victim {
        /// The plane that is collected.
        plane: PlaneId,
        /// The victim.
        block: BlockId,
        /// Number of mapping units that have to be moved.
        valid: u32,
    },
    /// The map log begins to write or to erase.
    Log {
        /// What it writes.
        work: LogWork,
        /// Number of pages, or of blocks if it erases.
        count: u32,
    },
    /// The write of the map log is durable.
    LogDone,
    /// A plane has room for host data from now on, or has none: there is no free block for them, or GC holds them back.
    Room {
        /// The plane.
        plane: PlaneId,
        /// Whether there is room.
        room: bool,
    },
}

/// A record with its instant.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The instant.
    pub at: Instant,
    /// The action.
    pub what: Traced,
}

#[derive(Clone, Debug, Default)]
struct Log {
    now: Instant,
    records: Vec<Record>,
    /// Planes whose room may have changed since the last check.
    touched: Vec<PlaneId>,
    /// Whether each plane had room for host data at the last check.
    room: Vec<bool>,
}

/// The tracer of one device; off unless asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer {
    log: Option<Box<Log>>,
}

impl Tracer {
    /// Sets the instant of the records that follow.
    #[inline]
    pub(crate) fn moment(&mut self, now: Instant) {
        if let Some(log) = &mut self.log {
            log.now = now;
        }
    }

    /// Adds a record if the tracer is on.
    #[inline]
    pub(crate) fn record(&mut self, what: impl FnOnce() -> Traced) {
        if let Some(log) = &mut self.log {
            log.add_made(what);
        }
    }

    /// Notes that the room of `plane` may change during this command or event.
    #[inline]
    pub(crate) fn touch(&mut self, plane: PlaneId) {
        if let Some(log) = &mut self.log {
            log.touched.push(plane);
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Turns the tracer on or off. The next check for room covers all `planes`.
    pub(crate) fn set(&mut self, on: bool, planes: u32) {
        let fresh = || Log {
            room: vec![true; planes as usize],
            touched: (0..planes).map(PlaneId).collect(),
            ..Log::default()
        };
        self.log = on.then(|| Box::new(fresh()));
    }

    /// Hands out the records since the last call, oldest first.
    pub(crate) fn take(&mut self, each: impl FnMut(&Record)) {
        if let Some(log) = &mut self.log {
            log.records.iter().for_each(each);
            log.records.clear();
        }
    }

    /// Records, at the end of a command or event, which of the touched planes have gained or lost room.
    #[cold]
    pub(crate) fn look_for_room(&mut self, has_room: impl Fn(PlaneId) -> bool) {
        let Some(log) = &mut self.log else { return };
        for plane in std::mem::take(&mut log.touched) {
            let room = has_room(plane);
            if std::mem::replace(&mut log.room[plane.0 as usize], room) != room {
                log.add(Traced::Room { plane, room });
            }
        }
    }
}

impl Log {
    /// Out of line with the making of the record, which would lie on the path of every command.
    #[cold]
    #[inline(never)]
    fn add_made(&mut self, make: impl FnOnce() -> Traced) {
        self.add(make());
    }

    #[cold]
    fn add(&mut self, what: Traced) {
        self.records.push(Record { at: self.now, what });
    }
}
