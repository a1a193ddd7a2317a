//! The tracer: what the device does and when, as records that somebody outside turns into pictures and sums.
//!
//! Place in the data flow: hooks in the device and in its NAND machine call [`Tracer::record`]; whoever drives the
//! device turns the tracer on ([`crate::Device::set_tracing`]) and takes the records after each moment
//! ([`crate::Device::take_trace`]).
//!
//! A record names its cause by its place: what follows [`Traced::Arrived`], [`Traced::MemoryDone`] or
//! [`Traced::Finished`] happens because of it, until the next of these three.
//!
//! Invariants: tracing changes no answer and no instant; without it each hook is one branch that is never taken,
//! and nothing is allocated; records of one device are in the order of time.
//!
//! Deliberately absent: what the host saw (the link is not the device's), text, and any limit: records pile up
//! until they are taken.

use super::op::{Op, OpId};
use crate::geometry::{PageAddr, StationId};
use flashweir_core::{CommandId, Duration, Instant};
use flashweir_ftl::{BlockId, PlaneId};

/// What the map log writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWork {
    /// A group of records.
    Group,
    /// Blocks of the other region are erased for a checkpoint.
    Erase,
    /// A checkpoint.
    Checkpoint,
}

/// Something that the device did.
#[derive(Clone, Copy, Debug)]
pub enum Traced {
    /// A command has arrived with its data. `command` is its number in the device until it completes; numbers are
    /// used again.
    Arrived {
        /// Its number in the device.
        command: u32,
        /// The host's name for it.
        id: CommandId,
    },
    /// The buffer memory has moved the data of a command.
    MemoryDone {
        /// Its number in the device.
        command: u32,
    },
    /// An operation has ended, or was given up before it began. Its number is free.
    Finished {
        /// Its number in the machine.
        op: OpId,
    },
    /// The buffer memory will move data of a command.
    Memory {
        /// Its number in the device.
        command: u32,
        /// When it begins: other commands go first.
        from: Instant,
        /// When it ends.
        until: Instant,
    },
    /// A command that changes something joins the queue of those that wait to be accepted.
    Enqueued {
        /// Its number in the device.
        command: u32,
    },
    /// All of it was accepted; it left that queue. Comes after [`Traced::Completed`] if that ended it.
    Admitted {
        /// Its number in the device.
        command: u32,
    },
    /// An accepted command waits until something is durable: a FLUSH, FUA, or any write of a write-through device.
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
        /// It completed with an error.
        failed: bool,
    },
    /// An operation waits at its die. `op` is its number until it has finished; numbers are used again.
    Queued {
        /// Its number in the machine.
        op: OpId,
        /// What it is; a program that is bound late has no page yet.
        what: Op,
    },
    /// A command with this operation begins; operations of several planes begin together, one record each.
    Issued {
        /// Its number in the machine.
        op: OpId,
        /// Its page.
        at: PageAddr,
        /// Bytes that cross the bus.
        bytes: u32,
        /// Number of operations in the command, in the record of the first one; 0 in the others.
        planes: u8,
        /// How long command and data hold the bus.
        bus: Duration,
        /// How long the array then works, if it is not suspended.
        array: Duration,
    },
    /// The data of a read begin to leave over the bus.
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
        /// When it has stopped.
        until: Instant,
    },
    /// The array goes on with what was suspended.
    Resumed {
        /// The station.
        station: StationId,
        /// When it will have ended.
        until: Instant,
    },
    /// A collection has chosen its victim; it ends with the erase of the block.
    Victim {
        /// The plane that is collected.
        plane: PlaneId,
        /// The victim.
        block: BlockId,
        /// Mapping units that have to be moved.
        valid: u32,
    },
    /// The map log begins to write or to erase.
    Log {
        /// What it does.
        work: LogWork,
        /// Pages, or blocks if it erases.
        count: u32,
    },
    /// What the map log wrote is durable.
    LogDone,
    /// Host data find room in a plane from now on, or none: it has no free block for them, or collection holds
    /// them back.
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
    /// When.
    pub at: Instant,
    /// What.
    pub what: Traced,
}

#[derive(Clone, Debug, Default)]
struct Log {
    now: Instant,
    records: Vec<Record>,
    /// Planes whose room may have changed since it was last looked at.
    touched: Vec<PlaneId>,
    /// Whether host data had room in each plane.
    room: Vec<bool>,
}

/// The tracer of one device; off unless asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer {
    log: Option<Box<Log>>,
}

impl Tracer {
    /// A moment of the device begins.
    #[inline]
    pub(crate) fn moment(&mut self, now: Instant) {
        if let Some(log) = &mut self.log {
            log.now = now;
        }
    }

    /// Adds a record, if anybody wants one.
    #[inline]
    pub(crate) fn record(&mut self, what: impl FnOnce() -> Traced) {
        if let Some(log) = &mut self.log {
            log.add(what());
        }
    }

    /// The room of `plane` may change in this moment.
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

    /// Turns the tracer on or off; whoever looks for room will look at all `planes`.
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

    /// At the end of a moment: says whose room has changed, of the planes that were touched.
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
    #[cold]
    fn add(&mut self, what: Traced) {
        self.records.push(Record { at: self.now, what });
    }
}
