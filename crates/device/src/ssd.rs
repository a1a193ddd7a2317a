//! One SSD as a state machine, for any firmware: commands and events come in, effects go out, and the power may fail at any
//! instant.
//!
//! Invariants: each accepted command completes exactly once; no new operation begins before all operations that end at the same
//! event have had their effect.
//!
//! Deliberately absent: a clock, threads, I/O, and the meaning of commands.

use crate::config::DeviceConfig;
use crate::cx::Cx;
use crate::effect::{Effect, Event};
use crate::firmware::{DeviceOptions, Firmware, boot};
use crate::flash::trace::Traced;
use crate::flash::{
    Frontier, Interrupted, Media, NandEvent, OpId, OpKind, Placer, Purpose, Torn, factory_media,
    wordline_start,
};
use crate::geometry::Geometry;
use flashweir_core::{Command, Instant};

/// A firmware and the context that it works on.
#[derive(Clone, Debug)]
pub(crate) struct Ssd<F: Firmware> {
    pub(crate) cx: Cx<F::Job>,
    pub(crate) firmware: F,
    finished: Vec<OpId>,
}

impl<F: Firmware> Ssd<F> {
    /// Returns a device fresh from the factory. `config` has been validated.
    pub(crate) fn new(config: DeviceConfig, options: DeviceOptions) -> Self {
        let geometry = Geometry::new(&config);
        let origin = (options.seed, options.track_contents);
        let media = factory_media(&config, &geometry, origin, &F::reserved(&geometry));
        let (cx, firmware) = boot(config, options, media);
        Self::of(cx, firmware)
    }

    /// Returns a device with this context and firmware.
    pub(crate) fn of(cx: Cx<F::Job>, firmware: F) -> Self {
        Self { cx, firmware, finished: Vec::new() }
    }

    /// Begins the handling of one command or event at `now`.
    #[inline]
    fn enter(&mut self, now: Instant) {
        debug_assert!(self.cx.effects.is_empty(), "effects of the last event were handed out");
        self.cx.now = now;
        self.cx.trace().moment(now);
    }

    /// Ends the handling of one command or event: moves its effects to the caller, which has usually taken those of the last one.
    #[inline]
    fn leave(&mut self, effects: &mut Vec<Effect>) {
        self.trace_room();
        if effects.is_empty() {
            std::mem::swap(&mut self.cx.effects, effects);
        } else {
            effects.append(&mut self.cx.effects);
        }
    }

    /// Handles a command that has arrived with its data. Never inlined, nor is [`Self::event`]: hosts have one loop for all firmwares.
    #[inline(never)]
    pub(crate) fn command(&mut self, now: Instant, command: Command, effects: &mut Vec<Effect>) {
        self.enter(now);
        let cx = &mut self.cx;
        cx.metrics.commands += 1;
        let verdict = self.firmware.check(cx, &command);
        let id = command.id;
        let at = cx.front.insert(command);
        cx.trace().record(|| Traced::Arrived { command: at, id });
        match verdict {
            Ok(()) => self.firmware.arrive(cx, at),
            Err(error) => {
                cx.front.commands.get_mut(at).error = Some(error);
                self.firmware.refused(cx, at);
                cx.complete(at);
            }
        }
        self.firmware.go_on(&mut self.cx);
        self.leave(effects);
    }

    /// Handles an event that the device scheduled and that is due now.
    #[inline(never)]
    pub(crate) fn event(&mut self, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.enter(now);
        match event {
            Event::Nand(event) => self.nand_event(event),
            Event::BufferMemory { command } => {
                self.cx.trace().record(|| Traced::MemoryDone { command });
                self.firmware.memory_done(&mut self.cx, command);
                self.firmware.go_on(&mut self.cx);
            }
        }
        self.leave(effects);
    }

    fn nand_event(&mut self, event: NandEvent) {
        let Self { cx, firmware, finished } = self;
        let station = cx.flash.machine.handle(event, finished);
        // No new operation begins before all operations that end at this event have had their effect.
        cx.starts_later = true;
        for id in finished.drain(..) {
            let op = cx.flash.machine.take(id);
            cx.trace().touch(op.plane);
            firmware.done(cx, op);
        }
        firmware.go_on(cx);
        cx.starts_later = false;
        if let Some(station) = station {
            cx.start(station, firmware.placer_mut());
        }
        while let Some(station) = cx.to_start.pop() {
            cx.start(station, firmware.placer_mut());
        }
    }

    /// Whether the device has no command and no flash operation under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let waits = || self.cx.flash.machine.in_flight() - self.firmware.stranded(&self.cx);
        self.cx.front.commands.len() == 0 && waits() == 0
    }

    /// Sets the clock of a quiet device to zero, so that it can be used in another world.
    pub(crate) fn reset_clock(&mut self) {
        assert!(self.is_quiet(), "the device still works\n{}", self.firmware.describe(&self.cx));
        self.cx.flash.machine.reset_clock();
        self.cx.front.reset_clock();
    }

    /// The medium after a power cut at `now`; `torn` decides the state in which each interrupted operation is left.
    pub(crate) fn cut(&self, now: Instant, mut torn: impl FnMut(&Interrupted) -> Torn) -> Media {
        let mut left = self.cx.flash.media.clone();
        for interrupted in self.cx.flash.machine.interrupted(now) {
            self.tear(&mut left, &interrupted, torn(&interrupted));
        }
        if let Some(save) = self.firmware.saved(&self.cx) {
            let empty = save.is_empty();
            left.set_save_area((!empty).then_some(save));
        }
        left
    }

    /// Applies to `media` what an interrupted operation leaves behind.
    fn tear(&self, media: &mut Media, interrupted: &Interrupted, torn: Torn) {
        let op = self.cx.flash.machine.op(interrupted.id);
        match (op.kind, torn) {
            (_, Torn::Absent) | (OpKind::Read, _) => {}
            (OpKind::Erase, Torn::Damaged) => media.tear_erase(op.at.block),
            (OpKind::Erase, Torn::Done) => media.erase(op.at.block),
            (OpKind::Program, Torn::Damaged) => {
                let config = &self.cx.config;
                let paired = config.faults.paired_page_loss && op.purpose != Purpose::Metadata;
                let from = if paired { wordline_start(config.timing.cell, op.at.page) } else { op.at.page };
                media.spoil(op.at, self.firmware.opened(op), from);
            }
            (OpKind::Program, Torn::Done) => {
                let mut images = Vec::new();
                self.firmware.image(&self.cx, op, &mut images);
                media.program(op.at, self.firmware.opened(op), images.into_iter());
            }
        }
    }

    /// Panics if an account does not balance, which is a bug of the simulator. The device may have writes in its buffer, but no
    /// command in flight.
    pub(crate) fn audit(&self) {
        assert_eq!(self.cx.front.commands.len(), 0, "commands are left in the device");
        assert_eq!(self.cx.metrics.commands, self.cx.metrics.completions, "each command completes once");
        assert!(self.cx.front.admission.is_empty(), "commands wait");
        self.firmware.audit(&self.cx);
    }

    /// Turns the tracer on or off; a clone of the device has a tracer of its own.
    pub(crate) fn set_tracing(&mut self, on: bool) {
        let planes = self.cx.geometry.planes();
        self.cx.trace().set(on, planes);
        self.trace_room();
    }

    /// Records, at the end of a command or event, the planes whose room has changed.
    #[inline]
    fn trace_room(&mut self) {
        if self.cx.trace().is_on() {
            let (placer, flash) = (self.firmware.placer(), &mut self.cx.flash);
            let pool = &flash.blocks;
            flash.machine.trace.look_for_room(|plane| placer.offer(pool, plane, Frontier::USER).is_some());
        }
    }
}
