//! The FTL without time: the same frontiers, victims and map, driven unit by unit.
//!
//! Used to bring a device into a steady state at once, and to measure write amplification alone.
//!
//! Invariant: between two calls no flash page is partly filled and nothing is in flight.

use super::buffer::Place;
use super::content::LOST;
use super::frontier::page_of;
use super::ftl::{Cx, PageFtl};
use crate::config::Allocation;
use crate::flash::{Frontier, Owner, Placer, UnitImage};
use crate::geometry::PageAddr;
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::{BlockId, MapWord, PlaneId};
use std::sync::Arc;

/// Writes units without taking virtual time. [`UnitWriter::finish`] programs the units that still wait.
#[derive(Debug)]
pub(crate) struct UnitWriter {
    /// Units that wait for their page to be full, by plane.
    user: Vec<Vec<(Lpn, Payload)>>,
    turn: u32,
}

impl UnitWriter {
    /// Begins on a firmware whose buffer is empty.
    pub(crate) fn new(ftl: &PageFtl, cx: &Cx) -> Self {
        assert_eq!(ftl.buffer.used(), 0, "time stands still only for a quiet device");
        assert!(ftl.log.pinned().next().is_none(), "deallocations are durable before time stands still");
        // A collection would take a version that an epoch keeps for the newest one.
        assert_eq!(ftl.orders.kept(), 0, "epochs are complete before time stands still");
        Self { user: vec![Vec::new(); cx.geometry.planes() as usize], turn: 0 }
    }

    /// Writes one logical page.
    #[inline]
    pub(crate) fn write(&mut self, ftl: &mut PageFtl, cx: &mut Cx, lpn: Lpn, payload: Payload) {
        cx.metrics.host_units_written += 1;
        let plane = match cx.config.ftl.allocation {
            Allocation::Static => ftl.plane_for(cx, lpn),
            Allocation::Dynamic => {
                let units = cx.geometry.units_per_page;
                if self.turn.is_multiple_of(units) {
                    self.skip_full_planes(ftl, cx);
                }
                let plane = PlaneId(self.turn / units % cx.geometry.planes());
                self.turn = self.turn.wrapping_add(1);
                plane
            }
        };
        if cx.geometry.units_per_page == 1 {
            program(ftl, cx, plane, Frontier::USER, std::iter::once(Unit::New(lpn, payload)));
            return;
        }
        self.user[plane.index()].push((lpn, payload));
        if self.user[plane.index()].len() == cx.geometry.units_per_page as usize {
            self.program_waiting(ftl, cx, plane);
        }
    }

    /// Goes on to the next plane that takes host data, as the shared queue does: valid units are not spread evenly over the planes.
    #[inline]
    fn skip_full_planes(&mut self, ftl: &mut PageFtl, cx: &mut Cx) {
        let (units, planes) = (cx.geometry.units_per_page, cx.geometry.planes());
        for _ in 0..planes {
            let plane = PlaneId(self.turn / units % planes);
            make_room(ftl, cx, plane);
            if ftl.space.offer(&cx.flash.blocks, plane, Frontier::USER).is_some() {
                return;
            }
            self.turn = self.turn.wrapping_add(units);
        }
    }

    fn program_waiting(&mut self, ftl: &mut PageFtl, cx: &mut Cx, plane: PlaneId) {
        let mut units = std::mem::take(&mut self.user[plane.index()]);
        program(
            ftl,
            cx,
            plane,
            Frontier::USER,
            units.drain(..).map(|(lpn, payload)| Unit::New(lpn, payload)),
        );
        self.user[plane.index()] = units;
    }

    /// Pads the pages that are not full, and completes word lines whose later pages could destroy earlier ones.
    pub(crate) fn finish(mut self, ftl: &mut PageFtl, cx: &mut Cx) {
        for plane in 0..self.user.len() {
            if !self.user[plane].is_empty() {
                self.program_waiting(ftl, cx, PlaneId(plane as u32));
            }
        }
        if cx.config.faults.paired_page_loss {
            let pages = cx.config.timing.cell.pages_per_wordline();
            for plane in (0..self.user.len() as u32).map(PlaneId) {
                for frontier in ftl.space.all_frontiers() {
                    while ftl.space.next_page(plane, frontier).is_some_and(|page| page % pages != 0) {
                        program(ftl, cx, plane, frontier, std::iter::empty());
                    }
                }
            }
        }
        write_map(ftl, cx);
    }
}

/// Where the map is on the medium: writes each translation page that changed. If there is no room while records in the log still
/// name old pages, the changes stay and are written once time runs.
fn write_map(ftl: &mut PageFtl, cx: &mut Cx) {
    let Some(cache) = &ftl.map_cache else { return };
    let pages: Vec<u32> = cache.page_numbers().filter(|page| !cache.is_clean(*page)).collect();
    for page in pages {
        let Some(at) = map_page_room(ftl, cx) else { break };
        let cache = ftl.map_cache();
        cache.number += 1;
        let number = cache.number;
        let image = ftl.map_cache.as_ref().and_then(|cache| ftl.map_image(cx, cache, page, number));
        program_map_page(ftl, cx, at, (number, image));
        cx.metrics.map_pages_written += 1;
        ftl.map_cache().forget_changes(page);
        if ftl.map_cache().page(page).is_named {
            ftl.name_map_page(cx, page, number, at);
        } else {
            move_map_page(ftl, cx, page, number, at);
        }
    }
    ftl.map_cache().is_relieved();
}

fn program_map_page(ftl: &mut PageFtl, cx: &mut Cx, at: PageAddr, (number, image): (u64, Option<Arc<[u8]>>)) {
    let image = UnitImage::meta(number, image.unwrap_or_else(|| Arc::from([])));
    cx.flash.media.program(at, 0, std::iter::once(image));
    cx.metrics.meta_units += u64::from(cx.geometry.units_per_page);
    cx.metrics.pages_programmed += 1;
    ftl.map_cache().area.programmed(at);
}

/// Moves a translation page that no record names to a new place.
fn move_map_page(ftl: &mut PageFtl, cx: &Cx, page: u32, number: u64, at: PageAddr) {
    let cache = ftl.map_cache();
    cache.area.set_valid(at, page);
    let state = cache.page_mut(page);
    state.number = number;
    if let Some(old) = state.place.replace(cx.geometry.ppa(at, 0)) {
        cache.area.set_invalid(cx.geometry.page_of(old).0);
    }
}

/// Finds a page for a translation page; runs GC on the blocks of translation pages if there is none.
fn map_page_room(ftl: &mut PageFtl, cx: &mut Cx) -> Option<PageAddr> {
    loop {
        if let Some(at) = ftl.map_cache().area.take_page() {
            return Some(at);
        }
        let area = &mut ftl.map_cache().area;
        let victim = area.victim().filter(|_| area.collection.is_none())?;
        let pages = (0..cx.geometry.pages_per_block).map(|page| PageAddr { block: victim, page });
        let owned: Vec<(PageAddr, u32)> = pages.filter_map(|at| Some((at, area.owner(at)?))).collect();
        if owned.iter().any(|(_, page)| ftl.map_cache().page(*page).is_named) {
            return None;
        }
        ftl.map_cache().area.begin_collection(victim);
        cx.metrics.map_victims += 1;
        for (source, page) in owned {
            let image = match cx.flash.media.payload(cx.geometry.ppa(source, 0)) {
                Some(Payload::Bytes(bytes)) => Some(bytes),
                _ => None,
            };
            let number = ftl.map_cache().page(page).number;
            let at = ftl.map_cache().area.take_page_for_copy().expect("GC has a block in reserve");
            program_map_page(ftl, cx, at, (number, image));
            cx.metrics.map_pages_moved += 1;
            move_map_page(ftl, cx, page, number, at);
        }
        cx.flash.media.erase(victim);
        cx.metrics.erases += 1;
        cx.flash.blocks.note_erase(victim);
        ftl.map_cache().area.erased(victim);
    }
}

/// A unit of a page that is to be programmed.
enum Unit {
    /// A version from the host.
    New(Lpn, Payload),
    /// A copy of the unit at this place, which keeps its owner and its sequence number.
    Copy(Ppa),
}

/// Programs one page.
#[inline]
fn program(
    ftl: &mut PageFtl,
    cx: &mut Cx,
    plane: PlaneId,
    frontier: Frontier,
    units: impl Iterator<Item = Unit>,
) {
    if frontier != Frontier::Gc {
        make_room(ftl, cx, plane);
    }
    let at = ftl.space.bind(&mut cx.flash.blocks, plane, frontier);
    ftl.space.program_ended(plane, frontier);
    if at.page == 0 {
        cx.flash.media.set_opened(at.block, ftl.space.opened(at.block));
    }
    let mut count = 0;
    for unit in units {
        let ppa = cx.geometry.ppa(at, count);
        count += 1;
        let (lpn, source, image) = match unit {
            Unit::New(lpn, payload) => {
                let (owner, seq) = (Owner::Lpn(lpn), cx.next_seq());
                (lpn, None, UnitImage { owner, seq, member: None, payload })
            }
            Unit::Copy(source) => {
                let (lpn, image) = copy_of(cx, source);
                (lpn, Some(source), image)
            }
        };
        cx.flash.media.append(at.block, image);
        cx.flash.blocks.set_valid(ppa);
        if let Some(source) = source
            && let Some(vpid) = ftl.virtual_pages.at(source)
        {
            cx.flash.blocks.set_invalid(source);
            ftl.virtual_pages.moved(vpid, ppa);
            let owners: Vec<Lpn> =
                ftl.virtual_pages.page(vpid).owners().iter().map(|(lpn, _)| *lpn).collect();
            owners.into_iter().for_each(|lpn| ftl.place_changed(lpn));
            continue;
        }
        match ftl.buffer.place(ftl.map.replace(lpn, MapWord::Direct(ppa))) {
            Place::Nowhere => {}
            Place::Slot(_) => unreachable!("the buffer of a quiet device is empty"),
            Place::Unit(old) => cx.flash.blocks.set_invalid(old),
            Place::Shared(vpid) => {
                let since = ftl.virtual_pages.owner_since(vpid, lpn, u64::MAX);
                ftl.release_owner(cx, vpid, lpn, since);
            }
        }
        ftl.place_changed(lpn);
    }
    let units_per_page = cx.geometry.units_per_page;
    for _ in count..units_per_page {
        cx.flash.media.append(at.block, UnitImage::pad());
    }
    match frontier {
        Frontier::User(_) => cx.metrics.user_units_programmed += u64::from(count),
        Frontier::Gc => cx.metrics.gc_units_moved += u64::from(count),
    }
    cx.metrics.filler_units += u64::from(units_per_page - count);
    cx.metrics.pages_programmed += 1;
    if at.page + 1 == cx.geometry.pages_per_block {
        cx.flash.blocks.close(at.block);
    }
}

/// The page that a valid unit belongs to, and a copy of the unit.
#[inline]
fn copy_of(cx: &Cx, source: Ppa) -> (Lpn, UnitImage) {
    let media = &cx.flash.media;
    let named = media.oob(source).and_then(|(owner, seq)| Some((owner, seq, page_of(owner)?.0)));
    let (owner, seq, lpn) = named.expect("a valid unit belongs to a logical page");
    let payload = match media.tracks_contents() {
        true => media.payload(source).unwrap_or(LOST),
        false => Payload::Zero,
    };
    (lpn, UnitImage { owner, seq, member: None, payload })
}

/// Runs GC until the plane has as many free blocks as the configuration wants, or no victim gains any: with pages of several units
/// a collection leaves some unused, and without that limit they would be collected for ever.
#[inline]
fn make_room(ftl: &mut PageFtl, cx: &mut Cx, plane: PlaneId) {
    let wanted = cx.config.ftl.gc.start_below_blocks;
    while cx.flash.blocks.free_count(plane) < wanted {
        let Some(victim) = ftl.gainful(cx, plane) else { break };
        collect(ftl, cx, plane, victim);
    }
}

fn collect(ftl: &mut PageFtl, cx: &mut Cx, plane: PlaneId, victim: BlockId) {
    cx.flash.blocks.collect(victim);
    cx.metrics.gc_victims += 1;
    let units_per_page = cx.geometry.units_per_page as usize;
    let first = cx.geometry.ppa(PageAddr { block: victim, page: 0 }, 0).0;
    let mut page: Vec<Ppa> = Vec::with_capacity(units_per_page);
    let mut left = cx.flash.blocks.valid(victim);
    for ppa in (first..first + u64::from(cx.geometry.units_per_block())).map(Ppa) {
        if left == 0 {
            break;
        }
        if !cx.flash.blocks.is_valid(ppa) {
            continue;
        }
        left -= 1;
        page.push(ppa);
        if left == 0 || page.len() == units_per_page {
            program(ftl, cx, plane, Frontier::Gc, page.iter().copied().map(Unit::Copy));
            page.clear();
        }
    }
    cx.flash.media.erase(victim);
    cx.metrics.erases += 1;
    cx.flash.blocks.release(victim);
    ftl.trimmed[victim.index()] = 0;
}
