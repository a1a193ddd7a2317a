//! A device behind its link, for requests that come from outside: from a socket, or from a recording of one.
//!
//! Place in the data flow: a front end submits commands with their arrival times and takes out finished ones; this
//! module decides nothing about time. A caller that passes a wall clock to [`Live::advance`] runs the device in real
//! time, one that passes the time of the next event runs it in virtual time.
//!
//! Invariants: all events up to the time of a submission are executed before it, so the device's behaviour is a
//! function of the submissions and their times, however often `advance` was called in between; each command finishes
//! exactly once.
//!
//! Deliberately absent: clocks, sockets, bytes of any protocol.

use crate::engine::{Answer, Engine, Host, Nothing};
use crate::timeline::{Findings, Timeline};
use flashweir_core::{Command, Duration, Instant, Op};
use flashweir_device::{Device, DeviceOptions, Recovery, RecoveryReport};
use flashweir_host::Chain;

pub use crate::engine::Tear;

/// A command whose completion has reached the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The caller's token of the command.
    pub token: u64,
    /// Time of the submission.
    pub submitted: Instant,
    /// Time at which the host has the completion.
    pub at: Instant,
    /// Outcome of the command.
    pub result: Answer,
}

impl Host for Vec<Finished> {
    fn completed(&mut self, at: Instant, token: u64, submitted: Instant, result: Answer) {
        self.push(Finished { token, submitted, at, result });
    }
}

/// One device and one link.
#[derive(Debug)]
pub struct Live {
    engine: Engine<Nothing>,
}

impl Live {
    /// Makes a device that has just woken up, at virtual time zero.
    pub fn new(mut device: Device) -> Self {
        device.forgo_digest();
        Self { engine: Engine::new(device, Chain::new()) }
    }

    /// Returns the time of the last event.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// Returns the time of the next event.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.engine.peek()
    }

    /// Returns the number of unfinished commands.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.engine.device()
    }

    /// Returns a hash over all events and their times: equal for equal submissions at equal times.
    pub fn trace_hash(&self) -> u64 {
        self.engine.hash()
    }

    /// Traces all following events with the timeline that `make` returns; no command may be in flight.
    pub fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        self.engine.trace(make);
    }

    /// Ends the trace begun by [`Self::trace`], at the time of the last event.
    pub fn end_trace(&mut self) -> Option<Findings> {
        self.engine.end_trace()
    }

    /// Submits an operation at `at`, or now if `at` has passed. Queue numbers beyond the link's wrap around.
    pub fn submit(
        &mut self,
        at: Instant,
        queue: u16,
        op: Op,
        fua: bool,
        token: u64,
        finished: &mut Vec<Finished>,
    ) {
        let mut command = Command::new(token, op);
        (command.queue, command.fua) = (queue, fua);
        self.submit_command(at, command, finished);
    }

    /// Submits a command at `at`, or now if `at` has passed. Its id is the token with which it finishes.
    pub fn submit_command(&mut self, at: Instant, mut command: Command, finished: &mut Vec<Finished>) {
        self.engine.advance(at, finished);
        command.queue %= self.engine.queues();
        let now = at.max(self.engine.now());
        self.engine.submit(now, now, command, 0, finished);
    }

    /// Executes all events up to and including `until`.
    pub fn advance(&mut self, until: Instant, finished: &mut Vec<Finished>) {
        self.engine.advance(until, finished);
    }

    /// Executes the next event; returns false if there is none.
    pub fn step(&mut self, finished: &mut Vec<Finished>) -> bool {
        self.engine.step(finished)
    }

    /// Cuts the power at `at`, up to which all events were executed, and brings the device back: unfinished commands
    /// are lost, with everything that the device had not made durable. The new device begins at virtual time zero and
    /// is ready after the report's time. Panics if the device keeps no metadata or no contents, so that nothing could
    /// be recovered.
    pub fn cut(self, at: Instant, options: DeviceOptions, tear: Tear) -> (Self, RecoveryReport) {
        let media = self.engine.cut_media(at, tear);
        let config = self.device().config().clone();
        drop(self);
        let (device, report) = Recovery::begin(&config, options, media).finish();
        (Self::new(device), report)
    }

    /// Shuts the device down in order: its commands are finished and flushed.
    pub fn shut_down(self) -> Device {
        self.engine.shut_down()
    }

    /// Returns the time from the beginning until now.
    pub fn elapsed(&self) -> Duration {
        self.now().since(Instant::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Data, Lba, Lpn};
    use flashweir_device::Torn;

    /// On a half-duplex link with a deep queue, a flush arrives before the data of writes that were submitted earlier.
    #[test]
    fn what_was_in_flight_at_a_clean_end_is_flushed() {
        let mut config = flashweir_device::presets::preset("sata-mlc").unwrap();
        config.geometry.blocks_per_plane = 16;
        config.ftl.over_provisioning = 0.4;
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut live = Live::new(Device::new(config.clone(), options));
        let mut finished = Vec::new();
        for number in 0..16 {
            let op = Op::Write { lba: Lba(number * 512), blocks: 512, data: Data::Pattern(number + 1) };
            live.submit(Instant::ZERO, 0, op, false, number, &mut finished);
        }
        let device = live.shut_down();
        let media = device.cut(Instant::from_nanos(u64::MAX >> 1), |_| Torn::Damaged);
        let (back, _) = Recovery::begin(&config, options, media).finish();
        for unit in 0..16 * 64 {
            let (now, then) = (back.peek(Lpn(unit)), device.peek(Lpn(unit)));
            assert!(now.is_some() && now == then, "unit {unit}");
        }
    }
}
