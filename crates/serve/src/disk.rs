//! One served disk: a simulated device, its power, and the requests of all clients that wait for it.
//!
//! Place in the data flow: the server hands requests in and takes answers out; [`Live`] decides when they are due.
//!
//! Invariants: each request gets one answer, or its client is dropped; nothing is answered while the power is off but
//! with an error where a cut asked for that; after a cut the device is the one that its own recovery gave back.
//!
//! Deliberately absent: sockets and clocks. Time is an argument.

use crate::memory::GiveBack;
use crate::nbd::{Command, EXTENT_UNITS_MAX, EXTENTS_MAX, Errno, Extent, Request, Token};
use crate::recording::{Header, Recorder};
use crate::stats::{Kind, Stats};
use crate::versions::Versions;
use crate::volume::{Volume, VolumeError};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Data, DeviceError, Done, Duration, Instant, Lba, Lpn, Op, Payload};
use flashweir_device::config::Metadata;
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, RecoveryReport};
use flashweir_host::HostFtl;
use flashweir_sim::host_ftl::Disk as Below;
use flashweir_sim::live::{Finished, Live, Tear};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A connection, by its place and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId {
    pub(crate) place: u32,
    pub(crate) generation: u32,
}

/// Answer to a client's request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Done,
    Failed(Errno, String),
    /// Mapping units that cover the range, of `unit_bytes` each; the first `skip` bytes are not of the range.
    Data {
        units: Box<[Payload]>,
        skip: usize,
        unit_bytes: usize,
        length: usize,
    },
    Extents(Vec<Extent>),
}

/// A request that the device works on.
#[derive(Debug)]
struct Pending {
    client: ClientId,
    token: Token,
    offset: u64,
    length: u32,
    kind: Kind,
    fua: bool,
    /// Of a flush: number of the last completion that it covers.
    covers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    /// The power is off until this instant of the server's clock. Requests fail, or they wait.
    Off {
        until: Instant,
        fail: bool,
    },
}

/// What a power cut does to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCut {
    /// Their connections are closed.
    Drop,
    /// Requests in flight, and those that come while the power is off, fail with EIO.
    Fail,
}

/// Why a disk cannot continue.
#[derive(Debug)]
pub enum DiskError {
    /// The recording cannot be written.
    Recording(io::Error),
    /// The volume cannot be written; what the host's disk has is recoverable.
    Volume(String),
    /// The volume is damaged, so that its recovery was not whole.
    Damaged(String),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recording(error) => write!(f, "the recording cannot be written: {error}"),
            Self::Damaged(error) => error.fmt(f),
            Self::Volume(error) => {
                write!(f, "{error}; the volume keeps everything that was acknowledged before")
            }
        }
    }
}
impl std::error::Error for DiskError {}

/// One served disk.
#[derive(Debug)]
pub struct Disk {
    name: String,
    live: Option<Live>,
    options: DeviceOptions,
    /// Instant of the server's clock at which the device's time began.
    origin: Instant,
    power: Power,
    follows_clock: bool,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    held: Vec<(ClientId, u16, Request)>,
    finished: Vec<Finished>,
    stats: Stats,
    recorder: Option<Recorder>,
    versions: Option<Versions>,
    volume: Option<Volume>,
    cuts: u64,
    give_back: GiveBack,
}

impl Disk {
    /// A disk called `name` on a device that has just woken up and keeps contents.
    pub fn new(name: &str, device: Device, options: DeviceOptions) -> Self {
        Self::above(name, device.into(), options)
    }

    /// The same on a device that may have a host FTL above it. If that has to recover, it has done so when this returns.
    pub fn above(name: &str, disk: Below, options: DeviceOptions) -> Self {
        assert!(disk.device.media().tracks_contents(), "a served device keeps contents");
        Self {
            name: name.to_owned(),
            live: Some(Live::above(disk)),
            options,
            origin: Instant::ZERO,
            power: Power::On,
            follows_clock: true,
            pending: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            finished: Vec::new(),
            stats: Stats::default(),
            recorder: None,
            versions: None,
            volume: None,
            cuts: 0,
            give_back: GiveBack::default(),
        }
    }

    /// A disk called `name` on the device of an open volume.
    ///
    /// # Errors
    /// A recovery, of the device or of its host FTL, could not read everything.
    pub fn on_volume(name: &str, volume: Volume, device: Device) -> Result<Self, VolumeError> {
        let below = Below::recover(device, volume.host_ftl());
        let mut disk = Self::above(name, below, volume.options());
        volume.check_recovery()?;
        disk.volume = Some(volume);
        Ok(disk)
    }

    /// Keeps every version that a cut could legally bring back, for cuts that draw one. Costs a lookup for each
    /// written unit.
    pub fn keep_versions(&mut self) {
        self.versions = Some(Versions::default());
    }

    /// Records what clients ask for.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record(&mut self, path: &Path, header: &Header) -> io::Result<()> {
        self.recorder = Some(Recorder::create(path, header)?);
        Ok(())
    }

    /// Has memory given back that contents do not need any more; gives what users have to know.
    pub(crate) fn look_at_memory(&mut self, give_back: Option<fn()>) -> Option<String> {
        let device = self.live.as_ref()?.device();
        self.give_back.look(device, give_back)
    }

    /// Its name: that of its export.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.live().device()
    }

    /// The host FTL, if there is one.
    pub fn host_ftl(&self) -> Option<&HostFtl> {
        self.live().host_ftl()
    }

    /// Bytes that clients see.
    pub fn size(&self) -> u64 {
        self.live().capacity_lbas() * LBA_BYTES
    }

    /// Counters of the device, as they are for clients.
    pub(crate) fn metrics(&self) -> DeviceMetrics {
        self.live().metrics()
    }

    /// Whether what was answered is durable without a flush.
    pub(crate) fn completion_is_durable(&self) -> bool {
        self.live().completion_is_durable()
    }

    /// Statistics since the server began.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Virtual time since the power came on, ns.
    pub fn time_ns(&self) -> u64 {
        self.live().now().as_nanos()
    }

    /// Power cuts so far.
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Requests that the device works on, and those that wait for the power.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len() + self.held.len()
    }

    /// Whether the device works on a request of a client at this place, even if that client is gone.
    pub(crate) fn owes(&self, place: u32) -> bool {
        self.pending.iter().flatten().any(|pending| pending.client.place == place)
    }

    /// A client is gone: its requests that wait for the power are dropped.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.held.retain(|(holder, ..)| *holder != client);
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        self.power == Power::On
    }

    /// Why a cut of its power cannot be survived; `None` if it can.
    pub fn why_no_cut(&self) -> Option<String> {
        let config = self.device().config();
        (config.ftl.metadata == Metadata::None && self.host_ftl().is_none()).then(|| {
            format!(
                "{}: the device keeps no metadata (ftl.metadata = \"none\"), so it cannot come back after a cut",
                config.name
            )
        })
    }

    fn live(&self) -> &Live {
        self.live.as_ref().expect("a disk has a device except inside a cut")
    }

    fn live_mut(&mut self) -> &mut Live {
        self.live.as_mut().expect("a disk has a device except inside a cut")
    }

    /// Whether the device follows the server's clock; otherwise it has a time of its own, as fast as possible.
    pub(crate) fn follow_clock(&mut self, follows: bool) {
        self.follows_clock = follows;
    }

    /// The device's time at an instant of the server's clock. While the power is off, the device has none that passes.
    fn time(&self, clock: Instant) -> Instant {
        if self.follows_clock && self.power == Power::On {
            Instant::ZERO + clock.saturating_since(self.origin)
        } else {
            self.live().now()
        }
    }

    /// Instant of the next event, on the server's clock.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.power {
            Power::Off { until, .. } => Some(until),
            Power::On if self.follows_clock => {
                self.live().next().map(|next| self.origin + next.since(Instant::ZERO))
            }
            Power::On => None,
        }
    }

    /// Takes a request of a client.
    pub(crate) fn request(
        &mut self,
        clock: Instant,
        client: ClientId,
        queue: u16,
        request: Request,
        answers: &mut Vec<Answer>,
    ) -> Result<(), DiskError> {
        match self.power {
            Power::Off { fail: true, .. } => {
                let asked = (client, request.token, kind_of(&request.command));
                answers.push(self.refused(asked, "the device's power is off"));
                return Ok(());
            }
            Power::Off { fail: false, .. } => {
                self.held.push((client, queue, request));
                return Ok(());
            }
            Power::On => {}
        }
        let Request { token, offset, length, command } = request;
        let (lba, blocks) = (Lba(offset / LBA_BYTES), (u64::from(length) / LBA_BYTES) as u32);
        let kind = kind_of(&command);
        let (op, fua) = match command {
            Command::Read => (Op::Read { lba, blocks }, false),
            Command::Write { data, fua } => (Op::Write { lba, blocks, data: Data::Bytes(data) }, fua),
            Command::Trim { fua } => (Op::Trim { lba, blocks }, fua),
            Command::WriteZeroes { fua, no_hole: false, .. } => (Op::WriteZeroes { lba, blocks }, fua),
            Command::WriteZeroes { fast: true, .. } => {
                let why = "zeros that stay allocated are written, which is not fast".into();
                answers.push(Answer { client, token, body: Body::Failed(Errno::NotSup, why) });
                return Ok(());
            }
            Command::WriteZeroes { fua, .. } => (Op::Write { lba, blocks, data: Data::Zero }, fua),
            Command::Flush => (Op::Flush, false),
            // The device has no read cache; there is nothing that would make a later read faster.
            Command::Cache => {
                answers.push(Answer { client, token, body: Body::Done });
                return Ok(());
            }
            Command::BlockStatus { one } => {
                let body = Body::Extents(self.extents(offset, length, one));
                answers.push(Answer { client, token, body });
                return Ok(());
            }
        };
        let kind = kind.expect("what no device sees was answered");
        let at = self.time(clock);
        if let Some(recorder) = &mut self.recorder {
            recorder.request(at, queue, &op, fua).map_err(DiskError::Recording)?;
        }
        let units = self.units(offset, length);
        let mut covers = 0;
        if let Some(versions) = &mut self.versions {
            let live = self.live.as_ref().expect("the power is on");
            match kind {
                Kind::Read => {}
                Kind::Flush => covers = versions.flush_covers(),
                Kind::Write | Kind::Trim | Kind::Zero => {
                    versions.submitted(units, |lpn| live.peek(lpn).unwrap_or_default());
                }
            }
        }
        let pending = Pending { client, token, offset, length, kind, fua, covers };
        let place = match self.free.pop() {
            Some(place) => {
                self.pending[place as usize] = Some(pending);
                place
            }
            None => {
                self.pending.push(Some(pending));
                self.pending.len() as u32 - 1
            }
        };
        let live = self.live.as_mut().expect("the power is on");
        live.submit(at, queue, op, fua, u64::from(place), &mut self.finished);
        Ok(())
    }

    /// The answer to a request that the device lost, or never saw, with its power.
    fn refused(&mut self, (client, token, kind): (ClientId, Token, Option<Kind>), why: &str) -> Answer {
        if let Some(kind) = kind {
            self.stats.failed(kind);
        }
        Answer { client, token, body: Body::Failed(Errno::Io, why.into()) }
    }

    fn units(&self, offset: u64, length: u32) -> std::ops::Range<u64> {
        let unit = self.device().geometry().unit_bytes;
        offset / unit..(offset + u64::from(length)).div_ceil(unit)
    }

    /// Allocated and free extents of a range, from its begin, or of its first part; only the first if `one` is set.
    fn extents(&self, offset: u64, length: u32, one: bool) -> Vec<Extent> {
        let (live, unit) = (self.live(), self.device().geometry().unit_bytes);
        let end = (offset + u64::from(length)).min(offset + EXTENT_UNITS_MAX * unit);
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < end {
            let lpn = Lpn(at / unit);
            let next = ((lpn.0 + 1) * unit).min(end);
            let hole = !live.is_mapped(lpn);
            let part = (next - at) as u32;
            let is_full = extents.len() == if one { 1 } else { EXTENTS_MAX };
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += part,
                Some(_) if is_full => break,
                _ => extents.push(Extent { length: part, hole, zero: hole }),
            }
            at = next;
        }
        extents
    }

    /// Lets everything happen up to `clock`, and takes the answers out. Where the device has a time of its own,
    /// everything happens that clients wait for.
    pub(crate) fn advance(&mut self, clock: Instant, answers: &mut Vec<Answer>) -> Result<(), DiskError> {
        if let Power::Off { until, .. } = self.power {
            if clock < until {
                return Ok(());
            }
            self.power_on(clock, answers)?;
        }
        let at = self.time(clock);
        let live = self.live.as_mut().expect("the power is on");
        if self.follows_clock {
            live.advance(at, &mut self.finished);
        } else {
            while live.in_flight() > 0 && live.step(&mut self.finished) {}
        }
        match live.device().store_error() {
            // Nothing that has finished since is answered: it may not be where it should.
            Some(error) => Err(DiskError::Volume(error.to_string())),
            None => Ok(()),
        }
    }

    /// Whether something has finished and was not taken out yet.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Takes out what has finished; `queued` is when, for the statistics.
    pub(crate) fn answer(&mut self, queued: Instant, factor: f64, answers: &mut Vec<Answer>) {
        if self.finished.is_empty() {
            return;
        }
        let queued = self.time(queued);
        let mut finished = std::mem::take(&mut self.finished);
        for Finished { token: place, submitted, at, result } in finished.drain(..) {
            let pending = self.pending[place as usize].take().expect("a request finishes once");
            self.free.push(place as u32);
            let (bytes, is_error) = (u64::from(pending.length), result.is_err());
            self.stats.answered(pending.kind, bytes, is_error, submitted, at, queued, factor);
            self.note_version(&pending, is_error);
            let body = self.body(&pending, result);
            answers.push(Answer { client: pending.client, token: pending.token, body });
        }
        self.finished = finished;
    }

    fn note_version(&mut self, pending: &Pending, is_error: bool) {
        let units = self.units(pending.offset, pending.length);
        let Some(versions) = &mut self.versions else { return };
        let live = self.live.as_ref().expect("the power is on");
        match pending.kind {
            Kind::Read => {}
            Kind::Flush if is_error => {}
            Kind::Flush => versions.flushed(pending.covers),
            Kind::Write | Kind::Trim | Kind::Zero if is_error => versions.failed(units),
            Kind::Write | Kind::Trim | Kind::Zero => {
                let durable = pending.fua || live.completion_is_durable();
                versions.completed(units, durable, |lpn| live.peek(lpn).unwrap_or_default());
            }
        }
    }

    fn body(&self, pending: &Pending, result: Result<Done, DeviceError>) -> Body {
        match result {
            Ok(Done::Data(units)) => {
                let unit_bytes = self.device().geometry().unit_bytes;
                let skip = (pending.offset % unit_bytes) as usize;
                Body::Data { units, skip, unit_bytes: unit_bytes as usize, length: pending.length as usize }
            }
            Ok(_) => Body::Done,
            Err(error) => {
                let errno = match error {
                    DeviceError::ReadOnly => Errno::Perm,
                    DeviceError::OutOfRange { .. }
                    | DeviceError::InvalidField(_)
                    | DeviceError::Misaligned { .. } => Errno::Inval,
                    DeviceError::NotSupported(_) => Errno::NotSup,
                    _ => Errno::Io,
                };
                Body::Failed(errno, error.to_string())
            }
        }
    }

    /// Cuts the power at `clock`. The device recovers, and is there again after `off`, or after the time that its
    /// recovery takes if that is longer.
    pub(crate) fn cut(
        &mut self,
        clock: Instant,
        tear: Tear,
        on_cut: OnCut,
        off: Duration,
        answers: &mut Vec<Answer>,
    ) -> Result<RecoveryReport, DiskError> {
        self.advance(clock, answers)?;
        let at = self.time(clock);
        if let Some(recorder) = &mut self.recorder {
            let live = self.live.as_mut().expect("a disk has a device");
            // A rerun executes all events of this instant.
            live.advance(at, &mut self.finished);
            recorder.cut(at, tear, live.trace_hash()).map_err(DiskError::Recording)?;
        }
        let live = self.live.take().expect("a disk has a device");
        if let Some(volume) = &self.volume {
            volume.forget_damage();
        }
        let (live, report) = live.cut(at, self.options, tear);
        self.live = Some(live);
        if let Some(volume) = &self.volume {
            volume.check_recovery().map_err(|error| DiskError::Damaged(error.to_string()))?;
        }
        if let Some(error) = self.live().device().store_error() {
            return Err(DiskError::Volume(error.to_string()));
        }
        self.cuts += 1;
        self.bring_back(tear);
        self.finished.clear();
        let mut all_lost = Vec::new();
        for place in 0..self.pending.len() {
            if let Some(lost) = self.pending[place].take() {
                self.free.push(place as u32);
                all_lost.push((lost.client, lost.token, Some(lost.kind)));
            }
        }
        // Requests that waited for the power since an earlier cut are lost with this one.
        let held = self.held.drain(..);
        all_lost.extend(held.map(|(client, _, request)| (client, request.token, kind_of(&request.command))));
        if on_cut == OnCut::Fail {
            answers.extend(all_lost.into_iter().map(|lost| self.refused(lost, "the device lost its power")));
        }
        let recovery = if self.follows_clock { report.time } else { Duration::ZERO };
        let until = clock.saturating_add(off.max(recovery));
        self.power = Power::Off { until, fail: on_cut == OnCut::Fail };
        Ok(report)
    }

    /// Puts onto the medium what the seed draws among the legal states.
    fn bring_back(&mut self, tear: Tear) {
        let Some(versions) = self.versions.replace(Versions::default()) else {
            self.versions = None;
            return;
        };
        let Tear::Drawn(seed) = tear else { return };
        let blocks = self.device().geometry().lbas_per_unit as u32;
        let unit_bytes = self.device().geometry().unit_bytes as usize;
        let mut finished = Vec::new();
        let live = self.live_mut();
        for (number, (lpn, version)) in (0..).zip(versions.draw(seed)) {
            let Some(version) = version else { continue };
            if live.peek(lpn).unwrap_or_default().identity() == version.identity() {
                continue;
            }
            let lba = Lba(lpn.0 * u64::from(blocks));
            let op = match version {
                Payload::Zero => Op::WriteZeroes { lba, blocks },
                version => {
                    let mut bytes = vec![0; unit_bytes];
                    version.expand(&mut bytes);
                    Op::Write { lba, blocks, data: Data::Bytes(Arc::from(bytes)) }
                }
            };
            live.submit(live.now(), 0, op, false, number, &mut finished);
        }
        // A flush covers what has completed; on the link it could overtake a write.
        while live.in_flight() > 0 && live.step(&mut finished) {}
        live.submit(live.now(), 0, Op::Flush, false, u64::MAX, &mut finished);
        while live.in_flight() > 0 && live.step(&mut finished) {}
    }

    fn power_on(&mut self, clock: Instant, answers: &mut Vec<Answer>) -> Result<(), DiskError> {
        self.power = Power::On;
        // What recovery wrote took its own time; from here on the device's time goes with the clock.
        let spent = self.live().now().since(Instant::ZERO);
        self.origin = Instant::from_nanos(clock.as_nanos().saturating_sub(spent.as_nanos()));
        for (client, queue, request) in std::mem::take(&mut self.held) {
            self.request(clock, client, queue, request, answers)?;
        }
        Ok(())
    }

    /// Ends the disk in order: what it was given is finished and flushed, its volume is closed.
    ///
    /// # Errors
    /// The recording or the volume cannot be ended; the volume is recoverable nevertheless.
    pub fn shut_down(mut self) -> Result<(), DiskError> {
        let mut live = self.live.take().expect("a disk has a device");
        if let Some(recorder) = self.recorder.take() {
            // As at a cut.
            live.advance(live.now(), &mut self.finished);
            recorder.finish(live.now(), live.trace_hash()).map_err(DiskError::Recording)?;
        }
        match self.volume.take() {
            Some(volume) => {
                volume.close(&live.shut_down()).map_err(|error| DiskError::Volume(error.to_string()))
            }
            None => Ok(()),
        }
    }
}

/// The kind in the statistics; `None` for what no device sees.
fn kind_of(command: &Command) -> Option<Kind> {
    match command {
        Command::Read => Some(Kind::Read),
        Command::Write { .. } => Some(Kind::Write),
        Command::Trim { .. } => Some(Kind::Trim),
        Command::WriteZeroes { .. } => Some(Kind::Zero),
        Command::Flush => Some(Kind::Flush),
        Command::Cache | Command::BlockStatus { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Bytes;

    /// A device with a volatile buffer behind a link on which a flush overtakes data.
    fn disk() -> Disk {
        let mut config = flashweir_device::presets::preset("sata-mlc").unwrap();
        config.geometry.channels = 2;
        config.geometry.chips_per_channel = 1;
        config.geometry.blocks_per_plane = 24;
        config.geometry.pages_per_block = 32;
        config.ftl.over_provisioning = 0.4;
        config.buffer.capacity = Bytes(1 << 20);
        config.validate().unwrap();
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut disk = Disk::new("disk", Device::new(config, options), options);
        disk.keep_versions();
        disk
    }

    fn contents(disk: &Disk) -> Vec<u64> {
        (0..64).map(|lpn| disk.device().peek(Lpn(lpn)).unwrap_or_default().identity()).collect()
    }

    /// Found by live cuts: versions that a cut had drawn were gone after the next cut, and newer ones were back.
    #[test]
    fn what_a_drawn_cut_brings_back_survives_the_next_cut() {
        let mut differ = 0;
        for seed in 0..20 {
            let mut disk = disk();
            let mut finished = Vec::new();
            for round in 1..=4u8 {
                for lpn in 0..64 {
                    let data = Data::Bytes(Arc::from(vec![round; 4096]));
                    let versions = disk.versions.as_mut().unwrap();
                    let live = disk.live.as_mut().unwrap();
                    versions.submitted(lpn..lpn + 1, |lpn| live.device().peek(lpn).unwrap_or_default());
                    let op = Op::Write { lba: Lba(lpn * 8), blocks: 8, data };
                    live.submit(live.now(), 0, op, false, 0, &mut finished);
                    while live.in_flight() > 0 && live.step(&mut finished) {}
                    versions
                        .completed(lpn..lpn + 1, false, |lpn| live.device().peek(lpn).unwrap_or_default());
                }
            }
            finished.clear();
            let (mut clock, mut answers) = (disk.live().now(), Vec::new());
            disk.cut(clock, Tear::Drawn(seed), OnCut::Drop, Duration::ZERO, &mut answers).unwrap();
            let first = contents(&disk);
            differ += first.iter().collect::<std::collections::BTreeSet<_>>().len();
            clock += Duration::from_millis(seed);
            disk.cut(clock, Tear::Likeliest, OnCut::Drop, Duration::ZERO, &mut answers).unwrap();
            assert_eq!(contents(&disk), first, "seed {seed}");
        }
        assert!(differ > 60, "several versions were drawn");
    }
}
