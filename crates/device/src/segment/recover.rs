//! Recovery of the append namespace: the log, then the first page of each block that it does not name, then the ends of segments that
//! were being written; and the checkpoint with which the new boot begins.
//!
//! Invariants: what a segment shows is the longest run of its pages, from the front, that are whole and of its generation, and behind it
//! the units that the log has of the next page; nothing is written over before the new checkpoint is complete.

use super::ftl::AppendFtl;
use super::table::{GAP, NO_BLOCK, Open, Page, Segments, Slot, Unit};
use crate::config::{AppendMode, DeviceConfig};
use crate::cx::Cx;
use crate::firmware::{DeviceOptions, Plan, boot};
use crate::flash::plan::{Step, duration};
use crate::flash::{Media, Owner, PageState, RecoveryReport, SaveArea};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Payload};
use flashweir_ftl::segment_records::{GroupKind, SegmentRecord, SegmentTable, decode};
use flashweir_ftl::{BlockId, BlockState, PlaneId};
use std::collections::BTreeMap;

/// Sequence numbers that each boot leaves out, so that what an earlier boot lost has none of a later one.
const BOOT_GAP: u64 = 1 << 20;

/// One group of the log, as far as it was found.
#[derive(Debug)]
struct Group {
    kind: GroupKind,
    region: usize,
    boot: u32,
    total: u32,
    pages: BTreeMap<u32, Vec<SegmentRecord>>,
}

/// Units of the end of a segment that the log has.
#[derive(Debug)]
struct Tail {
    region: usize,
    /// Number of the page in its region.
    nth: u32,
    segment: u32,
    /// Number of the first unit.
    first: u32,
    units: Vec<(u64, Payload)>,
}

impl Tail {
    /// Whether it is of the generation that the deallocation with this sequence number began.
    fn is_after(&self, trimmed_at: u64) -> bool {
        self.units.first().is_some_and(|(seq, _)| *seq > trimmed_at)
    }
}

/// What the medium holds of the log.
#[derive(Debug, Default)]
struct Found {
    groups: BTreeMap<u64, Group>,
    tails: Vec<Tail>,
    /// Pages that were read, by station.
    reads: Vec<u64>,
    /// The newest sequence number.
    seq: u64,
}

/// What was read, and what becomes of it step by step.
#[derive(Debug)]
pub(crate) struct Reading {
    found: Found,
    table: SegmentTable,
    /// The region with the newest complete checkpoint.
    live: usize,
    /// Blocks by segment and lane, of segments for which the log has no list.
    lists: BTreeMap<u32, BTreeMap<u32, BlockId>>,
}

impl Reading {
    /// The newest sequence number so far.
    pub(crate) fn seq(&self) -> u64 {
        self.found.seq
    }

    /// Pages that were read, by station.
    pub(crate) fn reads(&self) -> &[u64] {
        &self.found.reads
    }
}

/// Reads the medium, and plans what is to be written.
pub(super) fn plan(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<AppendFtl> {
    assert!(media.tracks_contents(), "recovery needs a medium that keeps contents");
    let (mut cx, mut firmware) = boot::<AppendFtl>(config.clone(), options, media);
    let segments = &mut firmware.segments;
    let mut reading = read(&cx, segments);
    for block in cx.flash.blocks.ids() {
        let erases = cx.flash.media.erases(block);
        cx.flash.blocks.restore(block, erases, false);
    }
    claim(&mut cx, segments, &mut reading);
    claim_owned(&mut cx, segments, &mut reading);
    let steps = finish(&mut cx, segments, &mut reading);
    let report = RecoveryReport {
        pages_read: reading.reads().iter().sum(),
        steps: steps.len() as u64,
        units: segments.units_found(),
        time: duration(&cx.config, &cx.geometry, reading.reads(), &steps),
    };
    Plan { cx, firmware, steps, report }
}

/// Reads the log.
pub(crate) fn read<J: Copy>(cx: &Cx<J>, segments: &Segments) -> Reading {
    let mut found = read_log(cx, segments);
    let checkpoint = newest_checkpoint(cx, &found);
    let live = checkpoint.map_or(0, |number| found.groups[&number].region);
    let table = fold(cx, segments, &found, checkpoint);
    found.seq = found.seq.max(table.seq);
    Reading { found, table, live, lists: BTreeMap::new() }
}

/// Finds the ends of segments in their blocks, and plans the checkpoint with which the new boot begins. Lanes without a block get a free one.
pub(crate) fn finish<J: Copy>(cx: &mut Cx<J>, segments: &mut Segments, reading: &mut Reading) -> Vec<Step> {
    let Reading { found, live, lists, .. } = reading;
    let live = *live;
    fill_lanes(cx, segments, std::mem::take(lists));
    for segment in 0..segments.states.len() as u32 {
        find_end(cx, segments, segment, live, found);
    }
    if cx.is_protected() {
        let save = cx.flash.media.save_area().cloned().unwrap_or_default();
        restore_saved(cx, segments, &save, found);
    }
    cx.front.seq = cx.front.seq.max(found.seq + BOOT_GAP);
    let group = found.groups.keys().next_back().map_or(1, |last| last + 1);
    let nth_boot = found.groups.values().map(|group| group.boot).max().unwrap_or(1) + 1;
    let target = if cx.has_planted(PlantedBug::RecoveryNotIdempotent) { live } else { live ^ 1 };
    write_checkpoint(cx, segments, (target, group, nth_boot))
}

fn count_read<J: Copy>(cx: &Cx<J>, found: &mut Found, block: BlockId, pages: u64) {
    found.reads[cx.geometry.station(cx.geometry.plane_of(block)).index()] += pages;
}

fn read_log<J: Copy>(cx: &Cx<J>, segments: &Segments) -> Found {
    let mut found = Found { reads: vec![0; cx.geometry.stations() as usize], ..Found::default() };
    let media = &cx.flash.media;
    for region in 0..2 {
        let blocks = segments.log.regions[region].clone();
        let pages = blocks.len() as u32 * cx.geometry.pages_per_block;
        for (nth, at) in (0..pages).map(|nth| (nth, segments.log.page_at(region, nth))) {
            if media.page_state(at) != PageState::Good {
                continue;
            }
            count_read(cx, &mut found, at.block, 1);
            let units = cx.geometry.units_of(at);
            let units = units.filter_map(|ppa| Some((media.oob(ppa)?, media.payload(ppa)?)));
            let units: Vec<((Owner, u64), Payload)> = units.collect();
            match units.first() {
                Some(((Owner::Meta, _), Payload::Bytes(bytes))) => {
                    let Some((header, records)) = decode(bytes) else { continue };
                    let group = found.groups.entry(header.group).or_insert_with(|| Group {
                        kind: header.kind,
                        region,
                        boot: header.boot,
                        total: header.total,
                        pages: BTreeMap::new(),
                    });
                    group.pages.insert(header.index, records);
                }
                Some(((Owner::Seg { segment, offset }, _), _)) => {
                    let (segment, first) = (segment.0, *offset);
                    let of_segment = units.into_iter().filter(|((owner, _), _)| *owner != Owner::Pad);
                    let units: Vec<(u64, Payload)> =
                        of_segment.map(|((_, seq), payload)| (seq, payload)).collect();
                    found.seq = units.iter().map(|(seq, _)| *seq).max().unwrap_or(0).max(found.seq);
                    found.tails.push(Tail { region, nth, segment, first, units });
                }
                _ => {}
            }
        }
    }
    found
}

/// Whether all pages of a group are there, and those of units that belong to it.
fn is_whole<J: Copy>(cx: &Cx<J>, found: &Found, group: &Group) -> bool {
    let first = group.pages.get(&0).and_then(|records| records.first());
    let tails = match first {
        Some(SegmentRecord::Checkpoint { tails, .. }) => *tails,
        _ => 0,
    };
    // A checkpoint begins its region.
    let is_its =
        |tail: &&Tail| tail.region == group.region && (group.total..group.total + tails).contains(&tail.nth);
    let has_tails = found.tails.iter().filter(is_its).count() as u32 == tails;
    group.pages.len() as u32 == group.total && has_tails || cx.has_planted(PlantedBug::TornLogGroup)
}

fn newest_checkpoint<J: Copy>(cx: &Cx<J>, found: &Found) -> Option<u64> {
    let whole = found.groups.iter().filter(|(_, group)| is_whole(cx, found, group));
    whole.filter(|(_, group)| group.kind == GroupKind::Checkpoint).map(|(number, _)| *number).next_back()
}

fn fold<J: Copy>(cx: &Cx<J>, segments: &Segments, found: &Found, checkpoint: Option<u64>) -> SegmentTable {
    let mut table = SegmentTable::new(segments.states.len() as u32);
    let since = checkpoint.unwrap_or(0);
    for (_, group) in found.groups.range(since..).filter(|(_, group)| is_whole(cx, found, group)) {
        let records: Vec<SegmentRecord> = group.pages.values().flatten().copied().collect();
        table.fold(&records, segments.lanes);
    }
    table
}

/// Takes over the lists of blocks that the log has, and takes these blocks out of the pool.
pub(crate) fn claim<J: Copy>(cx: &mut Cx<J>, segments: &mut Segments, reading: &mut Reading) {
    let mut named = vec![false; cx.geometry.blocks() as usize];
    for (segment, logged) in (0..).zip(&reading.table.segments) {
        let state = &mut segments.states[segment as usize];
        (state.generation, state.trimmed_at) = (logged.generation, logged.trimmed_at);
        // A sealed segment needs no look at its blocks.
        state.pointer = if logged.is_sealed { segments.units } else { 0 };
        for (lane, block) in (0..).zip(&logged.blocks) {
            segments.set_block(segment, lane, *block);
            named[block.index()] = true;
        }
    }
    let is_claimed = |block: &BlockId| named[block.index()] && !cx.flash.media.is_bad(*block);
    let claimed: Vec<BlockId> = cx.flash.blocks.ids().filter(is_claimed).collect();
    cx.flash.blocks.claim(&claimed);
}

/// A segment for which the log has no list gets the blocks of the pool that say that they are its own.
pub(crate) fn claim_owned<J: Copy>(cx: &mut Cx<J>, segments: &mut Segments, reading: &mut Reading) {
    let Reading { found, live, lists, .. } = reading;
    let mut owned: BTreeMap<(u32, u32), (u32, BlockId)> = BTreeMap::new();
    for block in cx.flash.blocks.ids() {
        let is_free = cx.flash.blocks.state(block) == BlockState::Free;
        if !is_free || cx.flash.media.pages_written(block) == 0 {
            continue;
        }
        count_read(cx, found, block, 1);
        let Some((segment, lane)) = owner_of(cx, segments, block, found) else { continue };
        if !segments.has_blocks(segment) {
            let rows = good_rows(cx, segments, (segment, lane), block, found);
            let best = owned.entry((segment, lane)).or_insert((rows, block));
            if rows > best.0 {
                *best = (rows, block);
            }
        }
    }
    cx.flash.blocks.claim(&owned.values().map(|(_, block)| *block).collect::<Vec<_>>());
    for ((segment, lane), (_, block)) in owned {
        lists.entry(segment).or_default().insert(lane, block);
    }
    // A segment of which the log has the first units, and the flash nothing.
    for tail in found.tails.iter().filter(|tail| tail.region == *live) {
        let is_new = tail.is_after(segments.states[tail.segment as usize].trimmed_at);
        if is_new && !segments.has_blocks(tail.segment) {
            lists.entry(tail.segment).or_default();
        }
    }
}

/// Gives each segment without a list the blocks that were found for it, and free ones for its other lanes.
fn fill_lanes<J: Copy>(
    cx: &mut Cx<J>,
    segments: &mut Segments,
    lists: BTreeMap<u32, BTreeMap<u32, BlockId>>,
) {
    for (segment, list) in lists {
        let planes = cx.geometry.segment_planes(segment).to_vec();
        for (lane, plane) in (0..).zip(planes) {
            let block = list.get(&lane).copied().unwrap_or_else(|| take_or_bad(cx, plane));
            segments.set_block(segment, lane, block);
        }
    }
}

/// A free block of a plane. Where there is none, the block that the lane had has gone bad: a bad one stands for it, which is replaced, or lost,
/// when the segment is written.
fn take_or_bad<J: Copy>(cx: &mut Cx<J>, plane: PlaneId) -> BlockId {
    let bad = |block: &BlockId| cx.flash.media.is_bad(*block);
    let of_plane = cx.flash.blocks.of_plane(plane).map(BlockId).find(bad);
    cx.flash.blocks.take(plane, false).or(of_plane).expect("a plane without a free block has a bad one")
}

/// The segment and lane that the first page of a block names, if it is of the present generation.
fn owner_of<J: Copy>(
    cx: &Cx<J>,
    segments: &Segments,
    block: BlockId,
    found: &mut Found,
) -> Option<(u32, u32)> {
    let first = PageAddr { block, page: 0 };
    let units =
        (0..cx.geometry.units_per_page).filter_map(|nth| cx.flash.media.oob(cx.geometry.ppa(first, nth)));
    let named = units.filter_map(|(owner, seq)| match owner {
        Owner::Seg { segment, offset } => Some((segment.0, offset & !GAP, seq)),
        _ => None,
    });
    let (segment, unit, seq) = { named }.next()?;
    found.seq = found.seq.max(seq);
    let state = segments.states.get(segment as usize)?;
    let page = unit / segments.per_page;
    let lane = page % segments.lanes;
    let fits = page < segments.lanes
        && cx.geometry.segment_planes(segment)[lane as usize] == cx.geometry.plane_of(block);
    let is_new = seq > state.trimmed_at || cx.has_planted(PlantedBug::StaleGenerationTaken);
    (fits && is_new).then_some((segment, lane))
}

/// Number of pages at the front of a block that are whole and of the segment's generation.
fn good_rows<J: Copy>(
    cx: &Cx<J>,
    segments: &Segments,
    (segment, lane): (u32, u32),
    block: BlockId,
    found: &mut Found,
) -> u32 {
    let media = &cx.flash.media;
    let written = if media.erase_torn(block) { 0 } else { media.pages_written(block) };
    if cx.has_planted(PlantedBug::TornTailTrusted) {
        return written;
    }
    let since = match cx.has_planted(PlantedBug::StaleGenerationTaken) {
        true => 0,
        false => segments.states[segment as usize].trimmed_at,
    };
    let mut newest = 0;
    let is_good = |row: &u32| {
        let first = (row * segments.lanes + lane) * segments.per_page;
        let at = PageAddr { block, page: *row };
        (0..segments.per_page).all(|nth| match media.oob(cx.geometry.ppa(at, nth)) {
            Some((owner, seq)) => {
                newest = seq.max(newest);
                let of = |offset: u32| Owner::Seg { segment: Segments::id(segment), offset };
                let is_gap = owner == of((first + nth) | GAP) && segments.mode == AppendMode::WriteOnce;
                seq > since && (is_gap || owner == of(first + nth))
            }
            None => false,
        })
    };
    let rows = (0..written).take_while(is_good).count() as u32;
    found.seq = found.seq.max(newest);
    rows
}

/// Finds the end of a segment that was being written.
fn find_end<J: Copy>(cx: &Cx<J>, segments: &mut Segments, segment: u32, live: usize, found: &mut Found) {
    if !segments.has_blocks(segment) || segments.states[segment as usize].pointer == segments.units {
        return;
    }
    let lanes = segments.lanes;
    let mut rows = Vec::new();
    for lane in 0..lanes {
        let block = segments.block(segment, lane);
        // A search by halves for the last page that was written, and a look at it.
        let pages = u64::from(cx.geometry.pages_per_block.ilog2()) + 1;
        count_read(cx, found, block, pages);
        rows.push(good_rows(cx, segments, (segment, lane), block, found));
    }
    let all = cx.geometry.pages_per_block * lanes;
    let end = (0..all).find(|page| page / lanes >= rows[(page % lanes) as usize]).unwrap_or(all);
    let media = &cx.flash.media;
    let mut torn = Vec::new();
    for lane in 0..lanes {
        let block = segments.block(segment, lane);
        // Pages of this lane in front of the end.
        let kept = (end + lanes - 1 - lane) / lanes;
        if media.pages_written(block) > kept || media.erase_torn(block) || media.is_bad(block) {
            torn.push((lane, kept));
        }
    }
    let per_page = segments.per_page;
    let mut open = Open { torn, ..Open::new(0) };
    let is_gap = |unit: u32| {
        let at = segments.place(segment, unit / per_page).1;
        let owner = media.oob(cx.geometry.ppa(at, unit % per_page)).map(|(owner, _)| owner);
        matches!(owner, Some(Owner::Seg { offset, .. }) if offset & GAP != 0)
    };
    let mut pointer = end * per_page;
    if segments.mode == AppendMode::WriteOnce {
        while pointer > 0 && is_gap(pointer - 1) {
            pointer -= 1;
        }
        let whole = |page: &u32| (page * per_page..(page + 1) * per_page).all(|unit| !is_gap(unit));
        open.first = (0..end).take_while(whole).count() as u32;
        let slots = (open.first * per_page..end * per_page)
            .map(|unit| if is_gap(unit) { Slot::Empty } else { Slot::Stored(None) });
        open.slots = slots.collect();
        open.pages = (open.first..end).map(|_| Page::Programmed).collect();
    } else {
        open.first = end;
    }
    segments.states[segment as usize].pointer = pointer;
    if open.first * per_page == segments.units {
        return;
    }
    segments.open.insert(segment, open);
    if segments.mode == AppendMode::Sequential {
        restore_tail(cx, segments, segment, live, found);
    }
}

/// Puts the units behind the last page into the buffer, as far as the log has them.
fn restore_tail<J: Copy>(cx: &Cx<J>, segments: &mut Segments, segment: u32, live: usize, found: &Found) {
    let state = segments.states[segment as usize];
    let page = state.pointer / segments.per_page;
    let is_it = |tail: &&Tail| {
        let is_there = tail.region == live && tail.segment == segment;
        is_there && tail.first == page * segments.per_page && tail.is_after(state.trimmed_at)
    };
    let Some(tail) = found.tails.iter().filter(is_it).max_by_key(|tail| tail.units.len()) else { return };
    if cx.has_planted(PlantedBug::LoggedTailForgotten) {
        return;
    }
    for ((seq, payload), unit) in tail.units.iter().zip(tail.first..) {
        segments.hold(segment, unit, Unit::new(*seq, payload.clone(), None));
    }
    let open = segments.open.get_mut(&segment).expect("it was just opened");
    open.tail = (page, tail.units.len() as u32);
}

/// Takes over what the capacitor saved: deallocations, and then units, as far as they follow what is on the flash.
fn restore_saved<J: Copy>(cx: &mut Cx<J>, segments: &mut Segments, save: &SaveArea, found: &mut Found) {
    for trim in &save.trims {
        let segment = segments.split(trim.lpn).0;
        found.seq = found.seq.max(trim.seq);
        if trim.seq <= segments.states[segment as usize].trimmed_at {
            continue;
        }
        for block in segments.blocks_of(segment).to_vec() {
            if !cx.flash.media.is_bad(block) {
                cx.flash.blocks.give_back(block);
            }
        }
        (0..segments.lanes).for_each(|lane| segments.set_block(segment, lane, NO_BLOCK));
        if let Some(open) = segments.open.remove(&segment) {
            segments.used -= segments.used_by(&open);
        }
        let state = &mut segments.states[segment as usize];
        (state.generation, state.trimmed_at, state.pointer) = (state.generation + 1, trim.seq, 0);
    }
    let mut units: BTreeMap<Lpn, (u64, Payload)> = BTreeMap::new();
    for (lpn, seq, payload) in &save.units {
        found.seq = found.seq.max(*seq);
        if *seq > segments.states[segments.split(*lpn).0 as usize].trimmed_at {
            units.insert(*lpn, (*seq, payload.clone()));
        }
    }
    // Pages that were on the flash while one in front of them was not.
    for segment in segments.open.keys().copied().collect::<Vec<_>>() {
        units.extend(behind_the_end(cx, segments, segment, found));
    }
    for (lpn, (seq, payload)) in units {
        let (segment, unit) = segments.split(lpn);
        let pointer = segments.states[segment as usize].pointer;
        let follows = segments.mode == AppendMode::WriteOnce || unit == pointer;
        if !follows || segments.is_written(segment, unit) {
            continue;
        }
        if !segments.has_blocks(segment) {
            for (lane, plane) in (0..).zip(cx.geometry.segment_planes(segment).to_vec()) {
                let block = take_or_bad(cx, plane);
                segments.set_block(segment, lane, block);
            }
            let media = &cx.flash.media;
            let is_used = |lane: &u32| {
                let block = segments.block(segment, *lane);
                media.is_used(block) || media.is_bad(block)
            };
            let torn = (0..segments.lanes).filter(is_used).map(|lane| (lane, 0)).collect();
            segments.open.insert(segment, Open { torn, ..Open::new(0) });
        }
        segments.hold(segment, unit, Unit::new(seq, payload, None));
        segments.wakes = true;
    }
}

/// Units of whole pages behind the end of a segment.
fn behind_the_end<J: Copy>(
    cx: &Cx<J>,
    segments: &Segments,
    segment: u32,
    found: &mut Found,
) -> Vec<(Lpn, (u64, Payload))> {
    let mut units = Vec::new();
    for (lane, kept) in segments.open[&segment].torn.clone() {
        let block = segments.block(segment, lane);
        for row in kept..good_rows(cx, segments, (segment, lane), block, found) {
            let first = (row * segments.lanes + lane) * segments.per_page;
            for (unit, nth) in (first..).zip(0..segments.per_page) {
                let ppa = cx.geometry.ppa(PageAddr { block, page: row }, nth);
                if let Some((Owner::Seg { offset, .. }, seq)) = cx.flash.media.oob(ppa)
                    && offset & GAP == 0
                {
                    let payload = cx.flash.media.payload(ppa).unwrap_or_default();
                    units.push((segments.lpn(segment, unit), (seq, payload)));
                }
            }
        }
    }
    units
}

/// Plans the checkpoint with which the new boot begins.
fn write_checkpoint<J: Copy>(
    cx: &Cx<J>,
    segments: &mut Segments,
    (target, group, boot): (usize, u64, u32),
) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in &segments.log.regions[target] {
        if cx.flash.media.is_used(*block) {
            steps.push(Step::Erase(*block));
        }
    }
    segments.log.resume(target, 0, group + 1, boot);
    let pages = segments.checkpoint(cx, group);
    for (page, nth) in pages.iter().zip(0..) {
        let at = segments.log.page_at(target, nth);
        steps.push(Step::Program { at, opened: 0, units: page.units() });
    }
    segments.log.resume(target, pages.len() as u32, group + 1, boot);
    steps
}
