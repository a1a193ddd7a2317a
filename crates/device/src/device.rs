//! The SSD as one state machine: `handle(now, input, effects)`.
//!
//! Place in the data flow: commands arrive from the link ([`crate::front`]), writes go into the buffer
//! ([`crate::write`]) and from there to write frontiers ([`crate::space`]), reads find the newest version
//! ([`crate::read`]), collection makes room ([`crate::collect`]), the map log makes deallocations durable
//! ([`crate::log`]), and [`crate::nand`] decides when all of that happens. [`crate::power`] cuts the power
//! and recovers.
//!
//! Invariants: each accepted command completes exactly once; a write is visible to reads from its acceptance
//! on; the old place of a page stays valid until the new version is programmed, and until the record is
//! logged if it was deallocated (spec 6.4).
//!
//! Deliberately absent: a clock, threads, I/O.

use crate::buffer::Buffer;
use crate::collect::Collection;
use crate::config::{BufferMode, DeviceConfig, Metadata, PersistPolicy};
use crate::geometry::{Geometry, StationId};
use crate::job::Job;
use crate::log::MapLog;
use crate::media::{Media, Overflow, StoreError, UnitImage};
use crate::metrics::{DeviceMetrics, NandMetrics};
use crate::nand::{Machine, NandEvent, OpId};
use crate::order::Streams;
use crate::planted::PlantedBug;
use crate::range_flush::VolatileTrim;
use crate::slab::Slab;
use crate::space::Space;
use crate::tags::Owners;
use crate::trace::Traced;
use flashweir_core::random::Stream;
use flashweir_core::{Command, CommandId, Completion, DeviceError, Done, Duration, Instant, Lpn, Payload};
use flashweir_ftl::{BlockId, Map, PlaneId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// A moment that the device asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The NAND machine's.
    Nand(NandEvent),
    /// The buffer memory has taken the data of a command, or given them.
    BufferMemory {
        /// Number of the command in the device.
        command: u32,
    },
}

/// What the device wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Call [`Device::event`] at this instant.
    At(Instant, Event),
    /// A command that changes something has its place in the order of all (spec 6.1).
    Accepted {
        /// The host's name for it.
        id: CommandId,
        /// Its sequence number.
        seq: u64,
    },
    /// Send this to the host.
    Complete(Completion),
}

/// A command between arrival and completion.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) command: Command,
    pub(crate) seq: u64,
    /// Parts that have not ended: units, reads, the log.
    pub(crate) left: u32,
    /// Next unit of a write or deallocation to be accepted.
    pub(crate) next: u64,
    pub(crate) error: Option<DeviceError>,
    pub(crate) data: Vec<Payload>,
}

/// A FLUSH that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFlush {
    pub(crate) command: u32,
    /// It covers every version up to this sequence number; 0 of a range flush, which waits for chosen ones.
    pub(crate) upto: u64,
    /// Units that are not durable yet.
    pub(crate) units_left: u32,
    /// It waits for the log up to this sequence number; 0 is not at all.
    pub(crate) trims_upto: u64,
}

/// The SSD.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) config: DeviceConfig,
    pub(crate) geometry: Geometry,
    pub(crate) media: Media,
    pub(crate) nand: Machine<Job>,
    pub(crate) map: Map,
    pub(crate) space: Space,
    pub(crate) buffer: Buffer,
    pub(crate) commands: Slab<Active>,
    /// Commands that change something and wait for a slot, in order.
    pub(crate) admission: VecDeque<u32>,
    pub(crate) admitting: bool,
    pub(crate) flushes: Vec<PendingFlush>,
    pub(crate) collections: Vec<Collection>,
    pub(crate) log: MapLog,
    pub(crate) orders: Streams,
    pub(crate) metrics: DeviceMetrics,
    pub(crate) random: Stream,
    pub(crate) seq: u64,
    pub(crate) memory_free_at: Instant,
    pub(crate) read_only: bool,
    pub(crate) background: bool,
    /// Dirty units above which writing in the background begins, and at which it ends.
    pub(crate) high_water_units: u32,
    pub(crate) low_water_units: u32,
    pub(crate) collection_waste_pages: u32,
    /// Pages whose newest version could not be written after it was accepted, and what owned it. Reads of them fail, and so does
    /// each FLUSH of them, not only the first: one that succeeds promises all that completed before (spec 8.1).
    pub(crate) lost: BTreeMap<Lpn, Owners>,
    /// Deallocations that a range flush may have to wait for, in order.
    pub(crate) volatile_trims: VecDeque<VolatileTrim>,
    /// Planes that can neither write nor make room.
    pub(crate) dead_planes: Vec<bool>,
    /// Collections of each plane since the last one for wear-levelling.
    pub(crate) collections_since_wear: Vec<u32>,
    /// Planes that are short of blocks and had nothing to collect when they looked.
    pub(crate) starved: Vec<bool>,
    /// Starved planes in which a unit became invalid since.
    pub(crate) recheck: Vec<PlaneId>,
    /// Blocks that failed and are to be emptied.
    pub(crate) failing: Vec<BlockId>,
    /// Planes that lost so many blocks that they cannot hold their share any more.
    pub(crate) bad_blocks_of_plane: Vec<u32>,
    /// Where static striping looks for the next idle station of dynamic allocation.
    pub(crate) station_turn: u32,
    pub(crate) planted: Option<PlantedBug>,
    /// Pages of word lines that are not complete, by plane and frontier.
    pub(crate) open_wordlines: Vec<[Vec<u32>; 2]>,
    finished: Vec<OpId>,
    /// Room for what a page write puts on the medium.
    pub(crate) images: Vec<UnitImage>,
    starts_later: bool,
    to_start: Vec<StationId>,
}

/// The seed of a device's own randomness, beside the world's.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Seed of the world.
    pub seed: u64,
    /// Keep contents, so that reads return data.
    pub track_contents: bool,
    /// A bug to be found by the crash laboratory.
    pub planted: Option<PlantedBug>,
}

impl Device {
    /// A device fresh from the factory. The configuration was validated.
    pub fn new(config: DeviceConfig, options: DeviceOptions) -> Self {
        let geometry = Geometry::new(&config);
        let mut factory = Stream::new(options.seed, "factory");
        // The regions of metadata are laid out over good blocks, and no plane has more bad ones than the
        // fraction says, as vendors guarantee.
        let meta: BTreeSet<BlockId> = (0..2).flat_map(|region| geometry.meta_blocks(region)).collect();
        let bad_max = geometry.factory_bad_max();
        let mut bad_of_plane = vec![0; geometry.planes() as usize];
        let mut bad = Vec::new();
        for block in (0..geometry.blocks()).map(BlockId) {
            let of_plane = &mut bad_of_plane[geometry.plane_of(block).0 as usize];
            let drawn = factory.chance(config.faults.factory_bad);
            if drawn && *of_plane < bad_max && !meta.contains(&block) {
                *of_plane += 1;
                bad.push(block);
            }
        }
        let media = Media::new(&config, options.track_contents, &bad);
        Self::on_medium(config, options, media)
    }

    /// A device with an empty map on `media`; [`crate::power`] fills it after a cut.
    pub(crate) fn on_medium(config: DeviceConfig, options: DeviceOptions, media: Media) -> Self {
        let geometry = Geometry::new(&config);
        let mut space = Space::new(&config, &geometry, options.seed);
        for region in 0..2 {
            geometry.meta_blocks(region).for_each(|block| space.blocks.reserve_meta(block));
        }
        let mut bad_blocks_of_plane = vec![0; geometry.planes() as usize];
        for block in space.blocks.ids().filter(|block| media.is_bad(*block)) {
            bad_blocks_of_plane[geometry.plane_of(block).0 as usize] += 1;
            if space.blocks.state(block) == flashweir_ftl::BlockState::Free {
                space.blocks.retire(block);
            }
        }
        let units = (config.buffer.capacity.0 / geometry.unit_bytes) as u32;
        let planes = geometry.planes() as usize;
        let policy = if config.keeps_epochs() { config.order.policy } else { PersistPolicy::None };
        let mut timing = config.timing.clone();
        if config.order.penalty > 0.0 {
            timing.program = timing.program.longer_by(config.order.penalty);
        }
        Self {
            nand: Machine::new(&geometry, &timing, config.ftl.gc.preemptible),
            map: Map::new(geometry.user_units),
            buffer: Buffer::new(units, config.buffer.eviction),
            commands: Slab::default(),
            admission: VecDeque::new(),
            admitting: false,
            flushes: Vec::new(),
            collections: (0..planes).map(|_| Collection::default()).collect(),
            log: MapLog::new(&config, &geometry),
            orders: Streams::new(policy, geometry.counted_members_max() as usize),
            metrics: DeviceMetrics::default(),
            random: Stream::new(options.seed, "device-faults"),
            seq: 0,
            memory_free_at: Instant::ZERO,
            read_only: false,
            background: false,
            high_water_units: (f64::from(units) * config.buffer.high_water) as u32,
            low_water_units: (f64::from(units) * config.buffer.low_water) as u32,
            collection_waste_pages: Geometry::collection_waste_pages(&config),
            lost: BTreeMap::new(),
            volatile_trims: VecDeque::new(),
            dead_planes: vec![false; planes],
            collections_since_wear: vec![0; planes],
            starved: vec![false; planes],
            recheck: Vec::new(),
            failing: Vec::new(),
            bad_blocks_of_plane,
            station_turn: 0,
            planted: options.planted,
            open_wordlines: vec![[Vec::new(), Vec::new()]; planes],
            finished: Vec::new(),
            images: Vec::new(),
            starts_later: false,
            to_start: Vec::new(),
            space,
            media,
            geometry,
            config,
        }
    }

    /// What the device is made of.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Counts and address conversions.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The medium.
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// Why the medium's store failed, if it did. From then on the medium in memory is ahead of what would be found
    /// there again, so no completion may reach a host any more.
    #[inline]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.media.store_error()
    }

    /// What was counted since the device was made.
    pub fn metrics(&self) -> &DeviceMetrics {
        &self.metrics
    }

    /// What the NAND machine counted since the device was made.
    pub fn nand_metrics(&self) -> &NandMetrics {
        self.nand.metrics()
    }

    /// Time that each station was busy.
    pub fn station_busy(&self) -> Vec<Duration> {
        self.nand.station_busy().collect()
    }

    /// Time that each channel was busy.
    pub fn channel_busy(&self) -> Vec<Duration> {
        self.nand.channel_busy().collect()
    }

    /// Time that each station was busy until `now`, at which no event is overdue.
    pub fn station_busy_until(&self, now: Instant) -> Vec<Duration> {
        self.nand.station_busy_until(now).collect()
    }

    /// Time that each channel was busy until `now`, at which no event is overdue.
    pub fn channel_busy_until(&self, now: Instant) -> Vec<Duration> {
        self.nand.channel_busy_until(now).collect()
    }

    /// Commands between arrival and completion.
    pub fn commands_in_flight(&self) -> usize {
        self.commands.len()
    }

    /// Whether the device has nothing left to do on its own.
    pub fn is_quiet(&self) -> bool {
        self.commands.len() == 0 && self.nand.in_flight() == 0
    }

    /// Whether the device holds something that a power cut would lose: versions in a buffer that nothing protects, or
    /// deallocations that are not in the log.
    pub fn is_volatile(&self) -> bool {
        !self.is_protected() && (self.buffer.used() > 0 || self.log.last_trim() > self.log.durable_trims())
    }

    /// Whether the device takes no more writes because it lacks spare blocks.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the newest version of this unit was accepted and could not be written, as reads and flushes of it say.
    pub fn has_lost(&self, lpn: Lpn) -> bool {
        self.lost.contains_key(&lpn)
    }

    /// Begins to fetch the state of a logical page from memory, for a command that will arrive soon.
    #[inline]
    pub fn prefetch(&self, lpn: Lpn) {
        self.map.prefetch(lpn);
    }

    /// The same for an event that comes next, if nothing else comes before.
    #[inline]
    pub fn prefetch_for(&self, event: Event) {
        let Event::Nand(NandEvent::Array { station, .. }) = event else { return };
        for op in self.nand.working(station) {
            let op = self.nand.op(op);
            if let Job::UserPage(page) = op.job {
                for unit in &self.space.pages[page as usize].units {
                    self.map.prefetch(unit.lpn);
                    self.buffer.prefetch(unit.slot);
                }
                self.space.blocks.prefetch(self.geometry.ppa(op.at, 0));
                self.media.prefetch(op.at.block);
            }
        }
    }

    /// Whether a logical page holds anything.
    pub fn is_mapped(&self, lpn: Lpn) -> bool {
        lpn.0 < self.map.len() && self.map.get(lpn) != flashweir_ftl::MapWord::Unmapped
    }

    /// Slots of the buffer, slots in use, dirty slots; in mapping units.
    pub fn buffer_use(&self) -> [u64; 3] {
        [self.buffer.capacity(), self.buffer.used(), self.buffer.dirty()].map(u64::from)
    }

    /// Free blocks of a plane: the least, and the mean over the planes.
    pub fn free_blocks(&self) -> (u64, f64) {
        let counts = (0..self.geometry.planes()).map(|plane| self.space.blocks.free_count(PlaneId(plane)));
        let (least, sum) = counts.fold((u32::MAX, 0), |(least, sum), n| (least.min(n), sum + n));
        (u64::from(least), f64::from(sum) / f64::from(self.geometry.planes()))
    }

    /// Erase counts of the blocks that are in use: least, mean, largest.
    pub fn wear(&self) -> (u64, f64, u64) {
        let good = self.space.blocks.ids().filter(|block| !self.media.is_bad(*block));
        let (mut least, mut most, mut sum, mut count) = (u32::MAX, 0, 0u64, 0u64);
        for erases in good.map(|block| self.media.erases(block)) {
            (least, most) = (least.min(erases), most.max(erases));
            (sum, count) = (sum + u64::from(erases), count + 1);
        }
        (u64::from(least), sum as f64 / count.max(1) as f64, u64::from(most))
    }

    /// Bounds the memory of contents; see [`Media::bound_memory`].
    pub fn bound_memory(&mut self, memory_bytes: u64, overflow: Arc<Mutex<dyn Overflow>>) {
        self.media.bound_memory(memory_bytes, overflow);
    }

    /// Contents are not hashed any more; see [`Media::forgo_digest`].
    pub fn forgo_digest(&mut self) {
        self.media.forgo_digest();
    }

    /// Sets the clock of a quiet device to zero, for its use in another world.
    pub fn reset_clock(&mut self) {
        assert!(self.is_quiet(), "the device still works\n{}", self.describe());
        self.nand.reset_clock();
        self.memory_free_at = Instant::ZERO;
    }

    /// The content that a read of `lpn` would return now; for checks, costs no time.
    pub fn peek(&self, lpn: Lpn) -> Option<Payload> {
        self.content(lpn)
    }

    /// A moment that the device asked for has come.
    pub fn event(&mut self, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.nand.trace.moment(now);
        match event {
            Event::Nand(event) => {
                let mut finished = std::mem::take(&mut self.finished);
                let station = self.nand.handle(event, &mut finished);
                // Nothing new begins before all operations of the moment have had their effect.
                self.starts_later = true;
                for op in finished.drain(..) {
                    self.operation_done(now, op, effects);
                }
                self.finished = finished;
                self.starts_later = false;
                if let Some(station) = station {
                    self.start(now, station, effects);
                }
                while let Some(station) = self.to_start.pop() {
                    self.start(now, station, effects);
                }
            }
            Event::BufferMemory { command } => self.memory_done(now, command, effects),
        }
        self.trace_room();
    }

    fn operation_done(&mut self, now: Instant, id: OpId, effects: &mut Vec<Effect>) {
        let op = self.nand.take(id);
        self.nand.trace.touch(op.plane);
        match op.job {
            Job::HostRead { command } => self.host_read_done(&op, command, effects),
            Job::Modify { command } => self.modify_done(now, command, effects),
            Job::GcRead => self.gc_read_done(now, &op, effects),
            Job::UserPage(page) | Job::GcPage(page) => self.page_done(now, &op, page, effects),
            Job::Filler => self.filler_done(now, &op, effects),
            Job::GcErase => self.gc_erase_done(now, &op, effects),
            Job::MetaPage(page) => self.meta_page_done(now, &op, page, effects),
            Job::MetaErase => self.meta_erase_done(now, &op, effects),
        }
        let faults = &self.config.faults;
        if faults.program_fail > 0.0 || faults.erase_fail > 0.0 || faults.endurance > 0 {
            match self.orders.is_used() {
                // What one plane lost may be what another one keeps.
                true => (0..self.geometry.planes()).for_each(|p| self.check_stuck(now, PlaneId(p), effects)),
                false => self.check_stuck(now, op.plane, effects),
            }
        }
    }

    /// Lets the channel of `station` begin what it can.
    #[inline]
    pub(crate) fn start(&mut self, now: Instant, station: StationId, effects: &mut Vec<Effect>) {
        if self.starts_later {
            self.to_start.push(station);
            return;
        }
        let mut schedule = |at, event| effects.push(Effect::At(at, Event::Nand(event)));
        self.nand.start(now, station, &mut self.space, &mut schedule);
    }

    /// Completes a command.
    pub(crate) fn complete(&mut self, command: u32, effects: &mut Vec<Effect>) {
        let active = self.commands.get_mut(command);
        self.metrics.completions += 1;
        self.nand.trace.record(|| Traced::Completed { command, failed: active.error.is_some() });
        let result = match active.error.take() {
            Some(error) => {
                self.metrics.errors += 1;
                Err(error)
            }
            None if active.data.is_empty() => Ok(Done::Ok),
            None => Ok(Done::Data(std::mem::take(&mut active.data).into_boxed_slice())),
        };
        let Command { id, queue, .. } = active.command;
        self.commands.remove(command);
        effects.push(Effect::Complete(Completion { id, queue, result }));
    }

    /// One part of a command has ended.
    pub(crate) fn part_done(&mut self, command: u32, effects: &mut Vec<Effect>) {
        let active = self.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            self.complete(command, effects);
        }
    }

    /// Whether deallocations and maps must survive a cut.
    pub(crate) fn keeps_metadata(&self) -> bool {
        self.config.ftl.metadata == Metadata::Log
    }

    /// Whether a FLUSH has nothing to do because the capacitor covers the whole buffer.
    pub(crate) fn is_protected(&self) -> bool {
        self.config.buffer.mode == BufferMode::PowerLossProtected && self.config.completion_is_durable()
    }

    /// Bytes of memory in use for the device's state: map, blocks, medium.
    pub fn memory_bytes(&self) -> u64 {
        self.map.memory_bytes() + self.space.blocks.memory_bytes() + self.media.memory_bytes()
    }

    /// The next sequence number.
    #[inline]
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub(crate) fn has_planted(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }
}
