//! The context of a firmware: the parts of an SSD that every firmware has, and the current instant.
//!
//! Place in the data flow: [`crate::ssd`] sets the instant at each command and event; the firmware reads it, pushes operations,
//! completes commands and leaves effects here.
//!
//! Invariants: a command completes once; no new operation begins at a die before all operations that ended at the same event have
//! had their effect.
//!
//! Deliberately absent: state that only one firmware has.

use crate::config::{BufferMode, DeviceConfig, Metadata};
use crate::effect::{Effect, Event};
use crate::flash::trace::{Traced, Tracer};
use crate::flash::{Class, Flash, Op, OpKind, Placer, Purpose};
use crate::front::{Front, Span};
use crate::geometry::{Geometry, PageAddr, StationId};
use crate::metrics::DeviceMetrics;
use crate::planted::PlantedBug;
use flashweir_core::command::StreamId;
use flashweir_core::{Command, Completion, Done, Instant, Lba, Lpn};

/// The context; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Cx<J> {
    pub(crate) now: Instant,
    /// Effects of the current command or event, in order.
    pub(crate) effects: Vec<Effect>,
    pub(crate) config: DeviceConfig,
    pub(crate) geometry: Geometry,
    pub(crate) metrics: DeviceMetrics,
    pub(crate) front: Front,
    pub(crate) flash: Flash<J>,
    pub(crate) planted: Option<PlantedBug>,
    /// Whether stations that could begin an operation are collected in `to_start` instead.
    pub(crate) starts_later: bool,
    pub(crate) to_start: Vec<StationId>,
}

impl<J: Copy> Cx<J> {
    /// Returns a context at instant zero, without commands.
    pub(crate) fn new(
        config: DeviceConfig,
        geometry: Geometry,
        flash: Flash<J>,
        planted: Option<PlantedBug>,
    ) -> Self {
        let front = Front::new(&config);
        Self {
            now: Instant::ZERO,
            effects: Vec::new(),
            geometry,
            metrics: DeviceMetrics::default(),
            front,
            flash,
            planted,
            starts_later: false,
            to_start: Vec::new(),
            config,
        }
    }

    /// The tracer, which is off unless asked for.
    #[inline]
    pub(crate) fn trace(&mut self) -> &mut Tracer {
        &mut self.flash.machine.trace
    }

    /// Whether erase blocks of this device may fail or wear out.
    #[inline]
    pub(crate) fn may_lose_blocks(&self) -> bool {
        let faults = &self.config.faults;
        faults.program_fail > 0.0 || faults.erase_fail > 0.0 || faults.endurance > 0
    }

    /// Lets the channel of `station` begin the operations that it can.
    #[inline]
    pub(crate) fn start(&mut self, station: StationId, placer: &mut impl Placer<J>) {
        if self.starts_later {
            self.to_start.push(station);
            return;
        }
        let effects = &mut self.effects;
        let mut schedule = |at, event| effects.push(Effect::At(at, Event::Nand(event)));
        self.flash.machine.start(self.now, station, (&mut self.flash.blocks, placer), &mut schedule);
    }

    /// Queues an operation at its die, which begins it as soon as it can.
    #[inline]
    pub(crate) fn push(&mut self, op: Op<J>, placer: &mut impl Placer<J>) {
        let station = self.flash.machine.push(op);
        self.start(station, placer);
    }

    /// Returns an operation on the given page, or on its block; `bytes` cross the bus.
    #[inline]
    pub(crate) fn given<K>(
        &self,
        (kind, class): (OpKind, Class),
        at: PageAddr,
        bytes: u32,
        (purpose, job): (Purpose, K),
    ) -> Op<K> {
        let plane = self.geometry.plane_of(at.block);
        Op { kind, class, plane, at, frontier: None, bytes, purpose, job }
    }

    /// The instant at which the buffer memory will have moved `bytes` of a command; `None` if that takes no time.
    #[inline]
    pub(crate) fn memory_access(&mut self, command: u32, bytes: u64) -> Option<Instant> {
        let (from, until) = self.front.memory_access(self.now, &self.config.buffer, bytes)?;
        self.trace().record(|| Traced::Memory { command, from, until });
        Some(until)
    }

    /// Gives a command its sequence number when its first part is accepted; returns the number.
    pub(crate) fn accept(&mut self, at: u32) -> u64 {
        let Front { commands, seq, .. } = &mut self.front;
        let active = commands.get_mut(at);
        if active.seq == 0 {
            *seq += 1;
            (active.seq, active.left) = (*seq, 1);
            self.effects.push(Effect::Accepted { id: active.command.id, seq: *seq });
        }
        active.seq
    }

    /// The next sequence number.
    #[inline]
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.front.seq += 1;
        self.front.seq
    }

    /// Completes a command.
    pub(crate) fn complete(&mut self, command: u32) {
        let active = self.front.commands.get_mut(command);
        let done = match active.data.is_empty() {
            true => Done::Ok,
            false => Done::Data(std::mem::take(&mut active.data).into_boxed_slice()),
        };
        self.answer(command, done);
    }

    /// Completes a command with this answer, or with its error if it has failed.
    pub(crate) fn answer(&mut self, command: u32, done: Done) {
        let active = self.front.commands.get_mut(command);
        self.metrics.completions += 1;
        let failed = active.error.is_some();
        self.flash.machine.trace.record(|| Traced::Completed { command, failed });
        let result = match active.error.take() {
            Some(error) => {
                self.metrics.errors += 1;
                Err(error)
            }
            None => Ok(done),
        };
        let Command { id, queue, .. } = active.command;
        self.front.commands.remove(command);
        self.effects.push(Effect::Complete(Completion { id, queue, result }));
    }

    /// One part of a command has ended; completes the command if it was the last one.
    pub(crate) fn part_done(&mut self, command: u32) {
        let active = self.front.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            self.complete(command);
        }
    }

    /// The stream that a command belongs to; `None` on a device that keeps no order.
    #[inline]
    pub(crate) fn stream_of(&self, command: u32) -> Option<StreamId> {
        self.front.stream_of(command)
    }

    /// The mapping units of a range.
    #[inline]
    pub(crate) fn span(&self, lba: Lba, blocks: u32) -> Span {
        Span::new(lba, blocks, &self.geometry)
    }

    /// The first sector of a unit, for errors.
    pub(crate) fn lba(&self, lpn: Lpn) -> Lba {
        self.geometry.lba_of(lpn)
    }

    /// Whether deallocations and maps must survive a power cut.
    pub(crate) fn keeps_metadata(&self) -> bool {
        self.config.ftl.metadata == Metadata::Log
    }

    /// Whether a FLUSH has nothing to do because the capacitor covers the whole buffer.
    pub(crate) fn is_protected(&self) -> bool {
        self.config.buffer.mode == BufferMode::PowerLossProtected && self.config.completion_is_durable()
    }

    /// Whether changes of the map are durable in an NVRAM before their records are on the flash.
    pub(crate) fn has_nvram(&self) -> bool {
        self.config.ftl.share.nvram_records > 0
    }

    pub(crate) fn has_planted(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }
}
