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

use crate::engine::{Answer, Engine, Host, Nothing, layers_of};
use crate::host_ftl::Disk;
use crate::timeline::{Findings, Timeline};
use flashweir_core::{Command, Duration, Instant, Lpn, Op, Payload};
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, Recovery, RecoveryReport};
use flashweir_host::HostFtl;
use std::collections::BTreeMap;

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

/// One device and one link, and the host FTL above them if there is one.
#[derive(Debug)]
pub struct Live {
    engine: Engine<Nothing>,
    /// Time of the last event.
    now: Instant,
    /// Above a host FTL: unanswered commands, and when each was submitted.
    asked: BTreeMap<u64, Instant>,
}

impl Live {
    /// Makes a device that has just woken up, at virtual time zero.
    pub fn new(device: Device) -> Self {
        Self::above(device.into())
    }

    /// Makes a disk that has just woken up, at virtual time zero. A host FTL that has to recover has done so at [`Self::now`].
    pub fn above(disk: Disk) -> Self {
        let (mut device, layers) = layers_of(disk, None);
        device.forgo_digest();
        let mut live =
            Self { engine: Engine::new(device, layers), now: Instant::ZERO, asked: BTreeMap::new() };
        if live.engine.has_layers() {
            live.engine.begin(Instant::ZERO, &mut ());
            while live.host_ftl().is_some_and(|ftl| !ftl.is_ready()) {
                live.now = live.engine.turn(&mut ()).expect("a host FTL recovers by its reads");
            }
        }
        live
    }

    /// Returns the time of the last event.
    pub fn now(&self) -> Instant {
        self.now.max(self.engine.now())
    }

    /// Returns the time of the next event.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        match self.engine.next_wake() {
            Some(wake) => Some(self.engine.peek().map_or(wake, |next| next.min(wake))),
            None => self.engine.peek(),
        }
    }

    /// Returns the number of unfinished commands.
    #[inline]
    pub fn in_flight(&self) -> usize {
        if self.engine.has_layers() { self.asked.len() } else { self.engine.in_flight() }
    }

    /// The host FTL, if there is one.
    pub fn host_ftl(&self) -> Option<&HostFtl> {
        self.engine.host_ftl()
    }

    /// Counters of the device, as they are for those above a host FTL.
    pub fn metrics(&self) -> DeviceMetrics {
        self.engine.metrics()
    }

    /// Sectors that commands may name.
    pub fn capacity_lbas(&self) -> u64 {
        self.engine.capacity_lbas()
    }

    /// The content that a read of this unit would return now; `None` if it was never written or is deallocated. It takes no time.
    pub fn peek(&self, lpn: Lpn) -> Option<Payload> {
        let device = self.device();
        let Some(ftl) = self.host_ftl() else { return device.peek(lpn) };
        match ftl.find(lpn)? {
            Ok(payload) => Some(payload),
            Err(place) => device.media().payload(device.geometry().open_unit(place)),
        }
    }

    /// Whether a unit has content.
    pub fn is_mapped(&self, lpn: Lpn) -> bool {
        self.host_ftl().map_or_else(|| self.device().is_mapped(lpn), |ftl| ftl.find(lpn).is_some())
    }

    /// Whether what was written is durable when the write completes, without a FLUSH.
    pub fn completion_is_durable(&self) -> bool {
        self.host_ftl().is_none() && self.device().config().completion_is_durable()
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
        self.advance(at, finished);
        let submitter = command.queue;
        command.queue %= self.engine.queues();
        let now = at.max(self.now());
        if !self.engine.has_layers() {
            return self.engine.submit(now, now, command, submitter, finished);
        }
        self.asked.insert(command.id.0, now);
        let first = finished.len();
        self.engine.submit(now, now, command, submitter, finished);
        self.engine.deliver(now, finished);
        self.date(finished, first);
    }

    /// Executes all events up to and including `until`.
    pub fn advance(&mut self, until: Instant, finished: &mut Vec<Finished>) {
        if !self.engine.has_layers() {
            return self.engine.advance(until, finished);
        }
        while self.next().is_some_and(|next| next <= until) && self.step(finished) {}
    }

    /// Executes the next event; returns false if there is none.
    pub fn step(&mut self, finished: &mut Vec<Finished>) -> bool {
        if !self.engine.has_layers() {
            return self.engine.step(finished);
        }
        let first = finished.len();
        let Some(now) = self.engine.turn(finished) else { return false };
        self.now = now;
        self.date(finished, first);
        true
    }

    /// Layers do not know when a command was submitted.
    fn date(&mut self, finished: &mut [Finished], first: usize) {
        for finished in &mut finished[first..] {
            finished.submitted = self.asked.remove(&finished.token).expect("a command finishes once");
        }
    }

    /// Cuts the power at `at`, up to which all events were executed, and brings the device back: unfinished commands
    /// are lost, with everything that the device had not made durable. The new device begins at virtual time zero and
    /// is ready after the report's time. Panics if the device keeps no metadata or no contents, so that nothing could
    /// be recovered.
    pub fn cut(self, at: Instant, options: DeviceOptions, tear: Tear) -> (Self, RecoveryReport) {
        let media = self.engine.cut_media(at, tear);
        let config = self.device().config().clone();
        let host_ftl = self.host_ftl().map(|ftl| ftl.config().clone());
        drop(self);
        let (device, mut report) = Recovery::begin(&config, options, media).finish();
        let live = Self::above(Disk::recover(device, host_ftl.as_ref()));
        if let Some(ftl) = live.host_ftl() {
            report.time += live.elapsed();
            report.pages_read += ftl.metrics().recovery_reads;
            report.units += ftl.mapped_units();
        }
        (live, report)
    }

    /// Shuts the disk down in order: its commands are finished and flushed.
    pub fn shut_down(mut self) -> Device {
        if self.engine.has_layers() {
            let mut finished = Vec::new();
            while self.in_flight() > 0 && self.step(&mut finished) {}
        }
        let now = self.now();
        self.engine.shut_down(now)
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
