//! Conservation, asserted at the end of every run: no request, page or erase is lost or invented.

use super::buffer::Place;
use super::frontier::page_of;
use super::ftl::{Cx, PageFtl};
use super::map_pages::map_page_at;
use super::pending::PendingFlush;
use crate::flash::Frontier;
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Op, Ppa};
use flashweir_ftl::map_log::Pin;
use flashweir_ftl::{BlockId, BlockState};
use std::collections::BTreeSet;

impl PageFtl {
    /// Panics if an account does not balance, which is a bug of the simulator. The device may have writes in its buffer, but no
    /// command in flight.
    pub(super) fn audit_accounts(&self, cx: &Cx) {
        assert!(self.flushes.is_empty(), "commands wait");
        let valid = cx.flash.blocks.audit();
        let (mut direct, mut shared) = (0, 0);
        for (lpn, word) in self.map.iter() {
            let mut place = self.buffer.place(word);
            if let Place::Slot(slot) = place {
                assert_eq!(self.buffer.slot(slot).lpn, lpn, "a slot of the chain belongs to its page");
                place = self.buffer.bottom(word);
            }
            match place {
                Place::Nowhere | Place::Slot(_) => {}
                Place::Unit(_) => direct += 1,
                Place::Shared(vpid) => {
                    shared += 1;
                    let owners = self.virtual_pages.page(vpid).owners();
                    assert!(owners.iter().any(|(owner, _)| *owner == lpn), "a page is an owner of its unit");
                }
            }
        }
        self.virtual_pages.audit();
        let (virtual_pages, owners) = self.virtual_pages.used();
        let given_up = self.log.pinned().filter(|pin| matches!(pin, Pin::Owner { .. })).count();
        assert_eq!(owners, shared + given_up, "an owner has its unit, or has given it up");
        // Checked from the medium's side, so that memory is read in order: each valid unit is the one that the map names.
        let units = u64::from(cx.geometry.units_per_block());
        let mut named = 0;
        for block in cx.flash.blocks.ids().filter(|block| cx.flash.blocks.valid(*block) > 0) {
            let first = u64::from(block.0) * units;
            let valid = (first..first + units).map(Ppa).filter(|ppa| cx.flash.blocks.is_valid(*ppa));
            named += valid.filter(|ppa| self.is_named(cx, *ppa)).count() as u64;
        }
        assert_eq!(
            direct + virtual_pages as u64,
            named,
            "each mapped unit is valid and belongs to its pages"
        );
        let pinned = self.log.pinned().count() - given_up;
        let kept = (pinned + self.orders.kept()) as u64;
        assert_eq!(valid, named + kept, "valid units are mapped, pinned or kept");
        let survivors: u32 = self.collections.iter().map(|c| c.moves()).sum();
        let gc_pages = self.space.pages.iter().filter(|p| p.frontier == Frontier::Gc && p.queued).count();
        assert!(survivors > 0 || gc_pages == 0 || cx.flash.machine.in_flight() > 0, "survivors are lost");
        self.audit_blocks(cx);
        self.audit_map(cx);
    }

    /// Where the map is on the medium: checks that every entry that is not noted as changed is the same on the medium and in
    /// memory.
    fn audit_map(&self, cx: &Cx) {
        let Some(cache) = &self.map_cache else { return };
        // The effects of a planted bug are for the host to find.
        if cx.planted.is_some() {
            return;
        }
        cache.audit();
        cache.area.audit();
        let mut named = 0;
        for page in cache.page_numbers() {
            let Some(place) = cache.page(page).place else {
                let changed: BTreeSet<Lpn> = cache.changed(page).collect();
                let unnoted = cache
                    .units_of(page)
                    .map(Lpn)
                    .find(|lpn| self.entry(cx, *lpn).is_some() && !changed.contains(lpn));
                assert_eq!(unnoted, None, "a unit is mapped and nothing says so");
                continue;
            };
            named += 1;
            let at = cx.geometry.page_of(place).0;
            assert_eq!(cache.area.owner(at), Some(page), "the directory names pages of the map");
            if cx.flash.media.tracks_contents() {
                let image =
                    map_page_at(&cx.flash.media, &cx.geometry, at).expect("a translation page can be read");
                assert_eq!(
                    (image.page, image.number),
                    (page, cache.page(page).number),
                    "the directory names this state"
                );
                let changed: BTreeSet<Lpn> = cache.changed(page).collect();
                for (unit, entry) in cache.units_of(page).zip(image.entries) {
                    let is_same = changed.contains(&Lpn(unit)) || entry == self.entry(cx, Lpn(unit));
                    assert!(is_same, "translation page {page} has an old place of unit {unit}");
                }
            }
        }
        assert_eq!(
            cache.area.valid_total(),
            named + self.log.olds() as u64,
            "valid translation pages are named or old"
        );
    }

    /// At the end of a command or event: panics if there is work that could be done but was not put on the work list.
    pub(super) fn audit_rest(&self, cx: &Cx) {
        assert!(self.work.is_empty(), "something is due");
        let durable = self.log.durable_changes();
        let ended = |flush: &PendingFlush| flush.units_left == 0 && flush.changes_upto <= durable;
        assert!(!self.flushes.iter().any(ended), "a flush waits for nothing");
        assert!(self.space.to_release.is_empty(), "a page waits for nothing");
        assert!(!self.could_destage(cx), "versions could leave the buffer");
        assert!(!self.could_log(cx), "the log could be written");
        let is_stuck = self.map_cache.as_ref().is_some_and(|cache| cache.is_stuck());
        assert!(
            !is_stuck,
            "a translation page is needed and none is on its way\n{}",
            self.describe_waits(cx)
        );
        assert!(!self.could_admit(cx), "a command could be accepted\n{}", self.describe_waits(cx));
        assert!(
            !self.orders.could_settle(),
            "epochs are complete and not stable\n{}",
            self.orders.describe()
        );
        assert!(!self.could_collect(cx), "a block that failed could be emptied");
    }

    fn could_destage(&self, cx: &Cx) -> bool {
        let pages_max = 2 * cx.geometry.planes() as usize;
        let blocked = !cx.front.admission.is_empty() && !self.buffer.has_room();
        let wanted = self.background && (self.buffer.dirty() > self.low_water_units || blocked);
        wanted && self.space.queued_pages < pages_max && self.buffer.oldest().is_some()
    }

    fn could_admit(&self, cx: &Cx) -> bool {
        let Some(&at) = cx.front.admission.front().filter(|_| !self.is_locked(cx)) else { return false };
        match cx.front.commands.get(at).command.op {
            Op::Write { .. } => self.buffer.has_room(),
            // A deallocation waits for the log, for its epoch, or for room for units that it covers in part.
            Op::Trim { .. } | Op::WriteZeroes { .. } => {
                let waits_for_map = self.map_cache.as_ref().is_some_and(|cache| cache.admit_waits);
                let waits = self.log.is_congested() || waits_for_map;
                !waits && cx.stream_of(at).is_none() && self.buffer.has_room()
            }
            Op::Share(_) => false,
            _ => true,
        }
    }

    fn could_collect(&self, cx: &Cx) -> bool {
        let is_closed = |block: &&BlockId| cx.flash.blocks.state(**block) == BlockState::Closed;
        let idle = |block: &BlockId| self.collections[cx.geometry.plane_of(*block).index()].victim.is_none();
        !self.is_map_crowded() && self.failing.iter().filter(is_closed).any(idle)
    }

    /// Whether the map names this unit for the page that owns it; a unit that cannot be read owns nothing.
    fn is_named(&self, cx: &Cx, ppa: Ppa) -> bool {
        if self.virtual_pages.at(ppa).is_some() {
            return true;
        }
        let owner = cx.flash.media.oob(ppa).and_then(|(owner, _)| page_of(owner));
        owner.is_some_and(|(lpn, _)| self.is_mapped_to(lpn, ppa))
    }

    /// No block has more valid units than it was given, a free one none, and a block for data was erased as often as the pool counts.
    fn audit_blocks(&self, cx: &Cx) {
        for block in cx.flash.blocks.ids() {
            let written =
                u64::from(cx.flash.media.pages_written(block)) * u64::from(cx.geometry.units_per_page);
            let valid = u64::from(cx.flash.blocks.valid(block));
            assert!(valid <= written, "block {} holds more valid units than it was given", block.0);
            let state = cx.flash.blocks.state(block);
            if matches!(state, BlockState::Free | BlockState::Open | BlockState::Closed) {
                let (pool, medium) = (cx.flash.blocks.erases(block), cx.flash.media.erases(block));
                assert_eq!(pool, medium, "erases of block {}", block.0);
            }
            if state == BlockState::Free && cx.flash.media.tracks_contents() {
                assert_eq!(written, 0, "free block {} is not erased", block.0);
            }
        }
        let programmed = cx.metrics.user_units_programmed
            + cx.metrics.gc_units_moved
            + cx.metrics.filler_units
            + cx.metrics.meta_units;
        let pages = cx.metrics.pages_programmed * u64::from(cx.geometry.units_per_page);
        assert_eq!(programmed, pages, "each programmed unit has a purpose");
    }
}
