//! FLUSH: everything that was accepted before becomes durable.

use super::buffer::Superseded;
use super::ftl::{Cx, PageFtl};
use super::pending::PendingFlush;
use super::work::Due;
use crate::flash::trace::Traced;
use crate::flash::{SaveArea, Saved};
use crate::planted::PlantedBug;
use flashweir_core::DeviceError;
use flashweir_ftl::map_log::Writing;
use flashweir_ftl::recovery::Change;

impl PageFtl {
    /// Accepts a FLUSH: everything accepted before it becomes urgent.
    pub(super) fn accept_flush(&mut self, cx: &mut Cx, at: u32) {
        let upto = cx.accept(at);
        cx.metrics.flushes += 1;
        if !cx.is_protected() {
            cx.metrics.flush_units_forced += u64::from(self.buffer.dirty());
            self.demand_all(cx);
            self.write_all(cx);
            self.settle_all();
        }
        // Versions that were lost, before or just now.
        self.report_lost(cx, at, |_, _| true);
        if let Some(stream) = self.orders.failed() {
            cx.front.commands.get_mut(at).error.get_or_insert(DeviceError::StreamFailed(stream));
        }
        if !cx.is_protected() {
            let units_left = self.buffer.used() - self.orders.stuck();
            let mut flush = PendingFlush { command: at, upto, units_left, changes_upto: 0 };
            if self.log.last_change() > self.log.durable_changes() {
                flush.changes_upto = self.log.last_change();
                self.want_log();
            }
            if cx.has_planted(PlantedBug::LostTrim) {
                flush.changes_upto = 0;
            }
            if cx.has_planted(PlantedBug::EarlyFlush) {
                (flush.units_left, flush.changes_upto) = (0, 0);
            }
            if flush.units_left > 0 || flush.changes_upto > 0 {
                let (units, log) = (flush.units_left, flush.changes_upto > 0);
                cx.trace().record(|| Traced::Waits { command: at, units, log });
                self.flushes.push(flush);
                self.work.set(Due::Log);
                return;
            }
        }
        cx.part_done(at);
    }

    /// Sends every dirty unit to the medium.
    pub(super) fn write_all(&mut self, cx: &mut Cx) {
        while let Some(slot) = self.buffer.oldest() {
            self.place(cx, slot, true);
        }
        self.space.release_held();
        self.work.set(Due::Release);
        self.work.complete_all_wordlines();
    }

    /// Completes every FLUSH that has nothing left to wait for.
    pub(super) fn check_flushes(&mut self, cx: &mut Cx) {
        let durable = self.log.durable_changes();
        while let Some(done) =
            self.flushes.iter().position(|f| f.units_left == 0 && f.changes_upto <= durable)
        {
            let flush = self.flushes.remove(done);
            cx.part_done(flush.command);
            if cx.config.buffer.exclusive_flush {
                self.work.set(Due::Admit);
            }
        }
    }

    /// Tells the store what was accepted since the last call, before any completion is reported.
    #[inline]
    pub(super) fn commit_saved(&mut self, cx: &mut Cx) {
        if cx.flash.media.commit_saved() {
            self.begin_journal(cx);
        }
    }

    /// Where the medium has a store: tells it what the capacitor or an NVRAM protects now.
    pub(super) fn begin_journal(&mut self, cx: &mut Cx) {
        if cx.flash.media.is_stored() && (cx.is_protected() || cx.has_nvram()) {
            let area = self.save(cx);
            cx.flash.media.begin_journal(&area);
        }
    }

    /// What the capacitor saves: every version that is not on the medium and still counts. If a deallocation superseded a version,
    /// its record may be durable already, so the version is not saved. Without a capacitor: what the NVRAM holds.
    pub(super) fn save(&self, cx: &Cx) -> SaveArea {
        let mut area = SaveArea::default();
        if !cx.is_protected() {
            let forgotten = match self.log.writing {
                Writing::Group { changes_upto, .. } if cx.has_planted(PlantedBug::NvramClearedEarly) => {
                    changes_upto
                }
                _ => 0,
            };
            let held = self.log.in_nvram().filter(|change| change.seq() > forgotten);
            held.for_each(|change| area.add(Saved::of(change)));
            return area;
        }
        let all = cx.has_planted(PlantedBug::DeadVersionSaved);
        let live = self.buffer.iter().filter(|(_, slot)| all || slot.superseded == Superseded::No);
        live.for_each(|(_, slot)| area.add(Saved::Unit(slot.lpn, slot.seq, slot.payload.clone())));
        let forgets_trims = cx.has_planted(PlantedBug::SaveForgetsTrims);
        let is_saved = |change: &&Change| !(forgets_trims && matches!(change, Change::Trim(_)));
        self.log.unlogged().filter(is_saved).for_each(|change| area.add(Saved::of(change)));
        area
    }
}
