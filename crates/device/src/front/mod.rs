//! The front end of an SSD, whatever firmware runs on it: commands between arrival and completion, and the queues in which they
//! wait.
//!
//! Place in the data flow: [`crate::ssd`] puts a command here when it arrives; the firmware moves it from queue to queue and
//! completes it.
//!
//! Deliberately absent: the execution of commands.

mod arrivals;
mod check;
mod span;

pub(crate) use arrivals::{Arrivals, Passed};
pub(crate) use check::{check_handle, check_range};
pub(crate) use span::{Span, range};

use crate::config::{BufferConfig, DeviceConfig, PersistPolicy};
use crate::slab::Slab;
use flashweir_core::command::StreamId;
use flashweir_core::{Command, DeviceError, Duration, Instant, Op, Payload};
use std::collections::{BTreeMap, VecDeque};

/// A command between arrival and completion.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) command: Command,
    pub(crate) seq: u64,
    /// Number of parts that have not ended: units, reads, the log.
    pub(crate) left: u32,
    /// The next unit of a write or deallocation to be accepted.
    pub(crate) next: u64,
    pub(crate) error: Option<DeviceError>,
    pub(crate) data: Vec<Payload>,
}

/// Commands in the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Front {
    pub(crate) commands: Slab<Active>,
    /// Commands of each stream that have not reached the queue of acceptance.
    pub(crate) arrivals: BTreeMap<StreamId, Arrivals>,
    /// Whether commands of a stream are accepted in the order in which they arrived, or in that of their epoch numbers; otherwise
    /// streams are ignored.
    pub(crate) accepts_in_order: bool,
    /// Whether the device keeps epochs in order on their way to the medium, which what is protected from acceptance on needs not.
    pub(crate) keeps_order: bool,
    /// Commands that change state and wait to be accepted, in order.
    pub(crate) admission: VecDeque<u32>,
    /// The sequence number that was given last.
    pub(crate) seq: u64,
    /// Whether the device refuses writes.
    pub(crate) read_only: bool,
    memory_free_at: Instant,
}

impl Front {
    /// Returns a front end without commands.
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        Self {
            accepts_in_order: config.order.policy != PersistPolicy::None,
            keeps_order: config.keeps_epochs(),
            ..Self::default()
        }
    }

    /// Adds a command that has arrived; returns its number in the device.
    #[inline]
    pub(crate) fn insert(&mut self, command: Command) -> u32 {
        let active = Active { command, seq: 0, left: 0, next: 0, error: None, data: Vec::new() };
        self.commands.insert(active)
    }

    /// The stream that a command belongs to; `None` on a device that keeps no order.
    #[inline]
    pub(crate) fn stream_of(&self, at: u32) -> Option<StreamId> {
        self.commands.get(at).command.stream.filter(|_| self.keeps_order)
    }

    /// The stream whose order of arrival a command has to keep. A read ignores its stream (commands §2.4).
    pub(crate) fn arrives_in(&self, at: u32) -> Option<StreamId> {
        let command = &self.commands.get(at).command;
        command.stream.filter(|_| self.accepts_in_order && !matches!(command.op, Op::Read { .. }))
    }

    /// The interval in which the buffer memory moves `bytes`; `None` if that takes no time.
    #[inline]
    pub(crate) fn memory_access(
        &mut self,
        now: Instant,
        buffer: &BufferConfig,
        bytes: u64,
    ) -> Option<(Instant, Instant)> {
        if buffer.bytes_per_s == 0 && buffer.access_latency == Duration::ZERO {
            return None;
        }
        let time = buffer.access_latency + Duration::of_transfer(bytes, buffer.bytes_per_s);
        let from = self.memory_free_at.max(now);
        self.memory_free_at = from + time;
        Some((from, from + time))
    }

    /// Sets the clock of a quiet device to zero.
    pub(crate) fn reset_clock(&mut self) {
        self.memory_free_at = Instant::ZERO;
    }
}
