//! Destage: which versions leave the buffer and when, and how they become pages that wait for the machine.

use super::buffer::Superseded;
use super::frontier::PageUnit;
use super::ftl::{Cx, PageFtl};
use super::job::Job;
use super::map_cache::Who;
use super::work::Due;
use crate::config::Allocation;
use crate::flash::{Frontier, Placer};
use crate::front::Span;
use crate::geometry::StationId;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::PlaneId;

/// The first and the last unit of a range, as far as the range covers them only in part.
pub(super) fn ends_of(span: &Span) -> impl Iterator<Item = u64> + use<> {
    let (span, last) = (*span, span.end - 1);
    let ends = [Some(span.first), (last != span.first).then_some(last)];
    ends.into_iter().flatten().filter(move |unit| span.is_partial(*unit))
}

impl PageFtl {
    /// The plane to which striping assigns a logical page.
    #[inline]
    pub(super) fn plane_for(&self, cx: &Cx, lpn: Lpn) -> PlaneId {
        if cx.config.ftl.allocation == Allocation::Dynamic {
            return PlaneId(0);
        }
        let page = cx.geometry.striped_page(lpn);
        cx.geometry.plane_at(cx.config.ftl.striping.place(page, cx.geometry.dimensions()))
    }

    /// Puts the version in a dirty slot on a page. A page that is full or urgent is released by [`Self::release_pages`].
    pub(super) fn place(&mut self, cx: &mut Cx, slot: u32, urgent: bool) {
        self.buffer.choose(slot);
        self.join_page(cx, slot, urgent);
    }

    fn join_page(&mut self, cx: &mut Cx, slot: u32, urgent: bool) {
        let version = self.buffer.slot(slot);
        let hidden = version.superseded == Superseded::Hidden;
        let frontier = Frontier::User(version.handle);
        let unit = PageUnit { lpn: version.lpn, seq: version.seq, slot, hidden, source: Ppa(0) };
        let plane = self.plane_for(cx, unit.lpn);
        let at = self.space.filling_at(plane, frontier);
        let page = match self.space.filling[at] {
            Some(page) => page,
            None => self.space.new_page(plane, frontier),
        };
        self.buffer.slot_mut(slot).page = page;
        let full = cx.geometry.units_per_page as usize;
        let write = &mut self.space.pages[page as usize];
        write.units.push(unit);
        write.urgent |= urgent;
        let is_full = write.units.len() == full;
        if is_full || urgent {
            self.space.to_release.push(page);
        }
        self.space.filling[at] = (!is_full).then_some(page);
    }

    /// Releases full and urgent pages to the machine, oldest first: what an epoch replaces is kept until the earlier ones are stable.
    pub(super) fn release_pages(&mut self, cx: &mut Cx) {
        while !self.space.to_release.is_empty() {
            let mut pages = std::mem::take(&mut self.space.to_release);
            pages.drain(..).for_each(|page| self.release_page(cx, page));
            // Its memory is used again, unless releasing pages has made others full.
            if self.space.to_release.is_empty() {
                self.space.to_release = pages;
                return;
            }
        }
    }

    pub(super) fn release_page(&mut self, cx: &mut Cx, page: u32) {
        let write = &mut self.space.pages[page as usize];
        if std::mem::replace(&mut write.queued, true) {
            return;
        }
        self.space.queued_pages += 1;
        match self.map_cache.is_some() {
            true => self.want_map(Who::Page(page)),
            false => self.hand_over(cx, page),
        }
    }

    /// Gives a page to the machine, or to the shared queue of dynamic allocation.
    pub(super) fn hand_over(&mut self, cx: &mut Cx, page: u32) {
        let plane = self.space.pages[page as usize].plane;
        if self.dead_planes[plane.0 as usize] {
            self.fail_page(cx, page);
        } else if cx.config.ftl.allocation == Allocation::Dynamic {
            self.space.push_shared(page);
            if !self.start_idle_station(cx) && self.space.has_placement() {
                (0..cx.geometry.planes()).map(PlaneId).for_each(|plane| self.want_block(cx, plane, page));
            }
        } else {
            self.want_block(cx, plane, page);
            let station = cx.flash.machine.push(self.space.op(page));
            self.promote(cx, page, plane);
            cx.start(station, &mut self.space);
        }
    }

    /// Where there are several handles, a page may need a block although no program has ended that could have begun GC.
    fn want_block(&mut self, cx: &Cx, plane: PlaneId, page: u32) {
        if self.space.has_placement() {
            let frontier = self.space.pages[page as usize].frontier;
            if self.space.offer(&cx.flash.blocks, plane, frontier).is_none() {
                self.work.collect(plane);
            }
        }
    }

    /// Moves a page of host data for which a range flush waits before those for which none waits.
    pub(super) fn promote(&mut self, cx: &mut Cx, page: u32, plane: PlaneId) {
        if !self.space.pages[page as usize].first {
            return;
        }
        if cx.config.ftl.allocation == Allocation::Dynamic {
            self.space.promote_shared(page);
        } else {
            let pages = &self.space.pages;
            let is_first = |job| matches!(job, Job::UserPage(other) if pages[other as usize].first);
            cx.flash.machine.promote_program(plane, |job| job == Job::UserPage(page), is_first);
        }
    }

    /// Wakes the next idle station for work from the shared queue; the stations of the channels take turns. Returns whether there was
    /// one.
    fn start_idle_station(&mut self, cx: &mut Cx) -> bool {
        let is_fit = |station| cx.flash.machine.is_idle(station) && self.has_room(cx, station);
        let found = cx.flash.machine.resting(self.station_turn).find(|&(_, station)| is_fit(station));
        let Some((nth, station)) = found else { return false };
        cx.flash.machine.wake(station);
        cx.start(station, &mut self.space);
        self.station_turn = (nth + 1) % cx.geometry.stations();
        true
    }

    /// Whether at least one plane of the station has room for the next page of the shared queue.
    fn has_room(&self, cx: &Cx, station: StationId) -> bool {
        let planes = cx.geometry.planes_per_station();
        let mut planes = (station.0 * planes..(station.0 + 1) * planes).map(PlaneId);
        let frontier = self.space.next_shared();
        planes.any(|plane| self.space.offer(&cx.flash.blocks, plane, frontier).is_some())
    }

    /// There is room in the buffer, at the machine or on the medium: what waits for room may proceed.
    #[inline]
    pub(super) fn note_room(&mut self, cx: &Cx) {
        let waits = !cx.front.admission.is_empty();
        if waits || self.background || self.buffer.dirty() > self.high_water_units {
            self.work.set(Due::Destage);
        }
        if waits {
            self.work.set(Due::Admit);
        }
    }

    /// Writes dirty units: in the background down to the low-water mark, and whatever is urgent.
    pub(super) fn destage(&mut self, cx: &mut Cx) {
        if self.buffer.dirty() > self.high_water_units {
            self.background = true;
        }
        let pages_max = 2 * cx.geometry.planes() as usize;
        let low = self.low_water_units;
        while self.background && self.space.queued_pages < pages_max {
            let blocked = !cx.front.admission.is_empty() && !self.buffer.has_room();
            if self.buffer.dirty() <= low && !blocked {
                self.background = false;
                break;
            }
            let Some(slot) = self.buffer.oldest() else { break };
            self.place(cx, slot, false);
            self.release_pages(cx);
        }
        let blocked = !cx.front.admission.is_empty() && !self.buffer.has_room();
        if blocked && self.space.queued_pages == 0 {
            self.complete_epochs(cx);
            self.space.release_held();
            self.work.complete_all_wordlines();
        }
        self.release_pages(cx);
    }
}
