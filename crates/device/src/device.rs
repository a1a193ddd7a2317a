//! The interface of an SSD to its callers: one type, whatever firmware runs on it.
//!
//! Place in the data flow: commands arrive from the link ([`Device::command`]), and events that the device scheduled come back
//! ([`Device::event`]); both leave [`Effect`]s. A clone is an independent device.
//!
//! Deliberately absent: the behaviour of the device. Each method is one `match` that calls the code of one firmware.

use crate::both::Both;
use crate::config::{DeviceConfig, FirmwareKind};
use crate::cx::Cx;
use crate::effect::{Effect, Event};
use crate::firmware::{DeviceOptions, Firmware, Plan};
use crate::flash::plan::Step;
use crate::flash::trace::Record;
use crate::flash::{Interrupted, Media, Overflow, Owner, RecoveryReport, StoreError, Torn};
use crate::geometry::Geometry;
use crate::metrics::{DeviceMetrics, HandleCounts, NandMetrics};
use crate::open::OpenChannel;
use crate::page::{Job, PageFtl};
use crate::segment::AppendFtl;
use crate::ssd::Ssd;
use flashweir_core::command::{APPEND_NAMESPACE, OPEN_NAMESPACE, PAGE_NAMESPACE};
use flashweir_core::{Command, Duration, Instant, Lpn, Payload, Ppa};
use std::sync::{Arc, Mutex};

/// The SSD.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) kind: Kind,
}

/// An SSD with one kind of firmware.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a world has one device, and a box would cost a look at each command"
)]
pub(crate) enum Kind {
    /// Page-mapped: the map is in the device.
    Page(Ssd<PageFtl>),
    /// Segments: a map of whole blocks is in the device.
    Append(Ssd<AppendFtl>),
    /// Both at once, on one pool of blocks.
    Both(Box<Ssd<Both>>),
    /// Open channel: a host addresses physical units.
    Open(Ssd<OpenChannel>),
}

/// Evaluates the same expression for each firmware.
macro_rules! each {
    ($device:expr, $ssd:ident => $what:expr) => {
        match $device {
            Kind::Page($ssd) => $what,
            Kind::Append($ssd) => $what,
            Kind::Both($ssd) => $what,
            Kind::Open($ssd) => $what,
        }
    };
}

impl Device {
    /// Returns a device fresh from the factory. `config` has been validated.
    pub fn new(config: DeviceConfig, options: DeviceOptions) -> Self {
        let kind = match config.firmware {
            FirmwareKind::Page => Kind::Page(Ssd::new(config, options)),
            FirmwareKind::Append => Kind::Append(Ssd::new(config, options)),
            FirmwareKind::PageAndAppend => Kind::Both(Box::new(Ssd::new(config, options))),
            FirmwareKind::OpenChannel => Kind::Open(Ssd::new(config, options)),
        };
        Self { kind }
    }

    /// Reads what a power cut left on `media` and returns the device, the steps that have to be written before it takes commands,
    /// and a report.
    pub(crate) fn recover(
        config: &DeviceConfig,
        options: DeviceOptions,
        media: Media,
    ) -> (Self, Vec<Step>, RecoveryReport) {
        match config.firmware {
            FirmwareKind::Page => {
                let Plan { cx, firmware, steps, report } = PageFtl::recover(config, options, media);
                (Self { kind: Kind::Page(Ssd::of(cx, firmware)) }, steps, report)
            }
            FirmwareKind::Append => {
                let Plan { cx, firmware, steps, report } = AppendFtl::recover(config, options, media);
                (Self { kind: Kind::Append(Ssd::of(cx, firmware)) }, steps, report)
            }
            FirmwareKind::PageAndAppend => {
                let Plan { cx, firmware, steps, report } = Both::recover(config, options, media);
                (Self { kind: Kind::Both(Box::new(Ssd::of(cx, firmware))) }, steps, report)
            }
            FirmwareKind::OpenChannel => {
                let Plan { cx, firmware, steps, report } = OpenChannel::recover(config, options, media);
                (Self { kind: Kind::Open(Ssd::of(cx, firmware)) }, steps, report)
            }
        }
    }

    /// The page-mapped firmware and its context. Panics on a device without one: callers check the configuration first
    /// ([`DeviceConfig::check_page_namespace`]).
    #[inline]
    pub(crate) fn page_mapped(&mut self) -> (&mut PageFtl, &mut Cx<Job>) {
        match &mut self.kind {
            Kind::Page(ssd) => (&mut ssd.firmware, &mut ssd.cx),
            Kind::Both(ssd) => {
                let Ssd { firmware, cx, .. } = &mut **ssd;
                (&mut firmware.page, cx)
            }
            Kind::Append(_) | Kind::Open(_) => panic!("this device has no page namespace"),
        }
    }

    /// Handles a command that has arrived with its data.
    #[inline]
    pub fn command(&mut self, now: Instant, command: Command, effects: &mut Vec<Effect>) {
        each!(&mut self.kind, ssd => ssd.command(now, command, effects));
    }

    /// Handles an event that the device scheduled and that is due now.
    #[inline]
    pub fn event(&mut self, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        each!(&mut self.kind, ssd => ssd.event(now, event, effects));
    }

    /// The configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        each!(&self.kind, ssd => &ssd.cx.config)
    }

    /// Counts and address conversions.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        each!(&self.kind, ssd => &ssd.cx.geometry)
    }

    /// Most mapping units that one SHARE may name; 0 if the device has no such command.
    pub fn share_units_max(&self) -> u32 {
        let share = &self.config().ftl.share;
        if share.pages == 0 { 0 } else { share.batch }
    }

    /// The medium.
    #[inline]
    pub fn media(&self) -> &Media {
        each!(&self.kind, ssd => &ssd.cx.flash.media)
    }

    #[inline]
    pub(crate) fn media_mut(&mut self) -> &mut Media {
        each!(&mut self.kind, ssd => &mut ssd.cx.flash.media)
    }

    /// Returns the error with which the medium's store failed, if it did. From then on the medium in memory is ahead of what the
    /// store would give back, so no completion may reach a host any more.
    #[inline]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.media().store_error()
    }

    /// Counters since the device was made.
    pub fn metrics(&self) -> &DeviceMetrics {
        each!(&self.kind, ssd => &ssd.cx.metrics)
    }

    /// Counters of one namespace since the device was made; `None` if the device does not have it.
    pub fn namespace_metrics(&self, ns: u16) -> Option<DeviceMetrics> {
        match (&self.kind, ns) {
            (Kind::Page(ssd), PAGE_NAMESPACE) => Some(ssd.cx.metrics),
            (Kind::Append(ssd), APPEND_NAMESPACE) => Some(ssd.cx.metrics),
            (Kind::Both(ssd), _) => ssd.firmware.metrics_of(&ssd.cx, ns),
            (Kind::Open(ssd), OPEN_NAMESPACE) => Some(ssd.cx.metrics),
            _ => None,
        }
    }

    /// Counters of the NAND machine since the device was made.
    pub fn nand_metrics(&self) -> &NandMetrics {
        each!(&self.kind, ssd => ssd.cx.flash.machine.metrics())
    }

    /// Time that each station was busy.
    pub fn station_busy(&self) -> Vec<Duration> {
        each!(&self.kind, ssd => ssd.cx.flash.machine.station_busy().collect())
    }

    /// Time that each channel was busy.
    pub fn channel_busy(&self) -> Vec<Duration> {
        each!(&self.kind, ssd => ssd.cx.flash.machine.channel_busy().collect())
    }

    /// Time that each station was busy until `now`, at which no event is overdue.
    pub fn station_busy_until(&self, now: Instant) -> Vec<Duration> {
        each!(&self.kind, ssd => ssd.cx.flash.machine.station_busy_until(now).collect())
    }

    /// Time that each channel was busy until `now`, at which no event is overdue.
    pub fn channel_busy_until(&self, now: Instant) -> Vec<Duration> {
        each!(&self.kind, ssd => ssd.cx.flash.machine.channel_busy_until(now).collect())
    }

    /// Number of commands between arrival and completion.
    pub fn commands_in_flight(&self) -> usize {
        each!(&self.kind, ssd => ssd.cx.front.commands.len())
    }

    /// Whether the device has no command and no flash operation under way.
    pub fn is_quiet(&self) -> bool {
        each!(&self.kind, ssd => ssd.is_quiet())
    }

    /// Whether the device holds something that a power cut would lose: versions in a buffer that nothing protects, or
    /// deallocations that are not in the log.
    pub fn is_volatile(&self) -> bool {
        each!(&self.kind, ssd => ssd.firmware.is_volatile(&ssd.cx))
    }

    /// Whether the device takes no more writes because it lacks spare blocks.
    pub fn is_read_only(&self) -> bool {
        each!(&self.kind, ssd => ssd.cx.front.read_only)
    }

    /// Whether the newest version of this unit was accepted but could not be written; reads and flushes of the unit fail.
    pub fn has_lost(&self, lpn: Lpn) -> bool {
        each!(&self.kind, ssd => ssd.firmware.has_lost(lpn))
    }

    /// Begins to fetch the state of a logical page from memory, for a command that will arrive soon.
    #[inline]
    pub fn prefetch(&self, lpn: Lpn) {
        each!(&self.kind, ssd => ssd.firmware.prefetch(lpn));
    }

    /// Begins to fetch the state that `event` needs, if it is the next event.
    #[inline]
    pub fn prefetch_for(&self, event: Event) {
        each!(&self.kind, ssd => ssd.firmware.prefetch_for(&ssd.cx, event));
    }

    /// Whether a logical page is mapped.
    pub fn is_mapped(&self, lpn: Lpn) -> bool {
        each!(&self.kind, ssd => ssd.firmware.is_mapped(lpn))
    }

    /// Number of slots of the buffer, of slots in use and of dirty slots; in mapping units.
    pub fn buffer_use(&self) -> [u64; 3] {
        each!(&self.kind, ssd => ssd.firmware.buffer_use())
    }

    /// Number of physical units that SHARE has given to several pages; the table has room for `ftl.share.pages`.
    pub fn virtual_pages(&self) -> u64 {
        each!(&self.kind, ssd => ssd.firmware.virtual_pages())
    }

    /// Free blocks per plane: the least, and the mean over the planes.
    pub fn free_blocks(&self) -> (u64, f64) {
        each!(&self.kind, ssd => ssd.cx.flash.free_blocks())
    }

    /// Erase counts of the blocks that are in use: least, mean, largest.
    pub fn wear(&self) -> (u64, f64, u64) {
        each!(&self.kind, ssd => ssd.cx.flash.wear())
    }

    /// Bounds the memory that contents may take; see [`Media::bound_memory`].
    pub fn bound_memory(&mut self, memory_bytes: u64, overflow: Arc<Mutex<dyn Overflow>>) {
        self.media_mut().bound_memory(memory_bytes, overflow);
    }

    /// Stops hashing contents; see [`Media::forgo_digest`].
    pub fn forgo_digest(&mut self) {
        self.media_mut().forgo_digest();
    }

    /// Sets the clock of a quiet device to zero, so that it can be used in another world.
    pub fn reset_clock(&mut self) {
        each!(&mut self.kind, ssd => ssd.reset_clock());
    }

    /// The content that a read of `lpn` would return now. For checks: it takes no virtual time.
    pub fn peek(&self, lpn: Lpn) -> Option<Payload> {
        each!(&self.kind, ssd => ssd.firmware.content(&ssd.cx, lpn))
    }

    /// The content that a read of this unit of the append namespace would return now; `None` if it was not written, or the device has no
    /// such namespace. For checks: it takes no virtual time.
    pub fn peek_segments(&self, unit: Lpn) -> Option<Payload> {
        match &self.kind {
            Kind::Append(ssd) => ssd.firmware.segments.content(&ssd.cx, unit),
            Kind::Both(ssd) => ssd.firmware.segments.content(&ssd.cx, unit),
            Kind::Page(_) | Kind::Open(_) => None,
        }
    }

    /// Owner of a physical unit, for reports.
    pub fn owner(&self, ppa: Ppa) -> Option<Owner> {
        self.media().oob(ppa).map(|(owner, _)| owner)
    }

    /// Bytes of memory in use for the device's state: map, blocks, medium.
    pub fn memory_bytes(&self) -> u64 {
        each!(&self.kind, ssd => {
            let flash = &ssd.cx.flash;
            ssd.firmware.memory_bytes() + flash.blocks.memory_bytes() + flash.media.memory_bytes()
        })
    }

    /// Bytes of the block lists of segments, and of the rest that is kept of each segment; `None` without an append namespace.
    pub fn segment_map_bytes(&self) -> Option<[u64; 2]> {
        match &self.kind {
            Kind::Append(ssd) => Some(ssd.firmware.segments.map_bytes()),
            Kind::Both(ssd) => Some(ssd.firmware.segments.map_bytes()),
            Kind::Page(_) | Kind::Open(_) => None,
        }
    }

    /// Counters of the placement handles, by number; none without placement.
    pub fn handle_counts(&self) -> &[HandleCounts] {
        match &self.kind {
            Kind::Page(ssd) => ssd.firmware.handle_counts(),
            Kind::Both(ssd) => ssd.firmware.page.handle_counts(),
            Kind::Append(_) | Kind::Open(_) => &[],
        }
    }

    /// Programs and erases that are in the cells at `now`; a power cut tears each of them.
    pub fn interrupted(&self, now: Instant) -> Vec<Interrupted> {
        each!(&self.kind, ssd => ssd.cx.flash.machine.interrupted(now))
    }

    /// The medium after a power cut at `now`; `torn` decides the state in which each interrupted operation is left. Where the
    /// medium has a store, the cut happens there: this device must not be used after it.
    pub fn cut(&self, now: Instant, torn: impl FnMut(&Interrupted) -> Torn) -> Media {
        each!(&self.kind, ssd => ssd.cut(now, torn))
    }

    /// Called when all steps that a recovery planned are written.
    pub(crate) fn recovered(&mut self) {
        each!(&mut self.kind, ssd => ssd.firmware.recovered(&mut ssd.cx));
    }

    /// Panics if an account does not balance, which is a bug of the simulator. The device may have writes in its buffer, but no
    /// command in flight.
    pub fn audit(&self) {
        each!(&self.kind, ssd => ssd.audit());
    }

    /// Describes what each command, stream and plane waits for, one per line.
    pub fn describe(&self) -> String {
        each!(&self.kind, ssd => ssd.firmware.describe(&ssd.cx))
    }

    /// Turns the tracer on or off; a clone of the device has a tracer of its own. When turned on, it records for every plane
    /// whether there is room.
    pub fn set_tracing(&mut self, on: bool) {
        each!(&mut self.kind, ssd => ssd.set_tracing(on));
    }

    /// Hands out the records since the last call, oldest first. There are none without [`Self::set_tracing`].
    pub fn take_trace(&mut self, each: impl FnMut(&Record)) {
        each!(&mut self.kind, ssd => ssd.cx.trace().take(each));
    }
}
