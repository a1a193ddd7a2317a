//! The writing half of a recovery: the survivors of planes that are short of free blocks, and the checkpoint with which the new
//! boot begins.
//!
//! Invariants: no step destroys what the fold needed before the new checkpoint is complete; a power cut between or inside the steps
//! leaves a medium from which recovery begins anew.

use super::content::LOST;
use super::frontier::page_of;
use super::ftl::{Cx, PageFtl};
use super::scan::{BOOT_GAP, Scan};
use crate::config::DeviceConfig;
use crate::firmware::{DeviceOptions, Plan, boot};
use crate::flash::plan::{Step, duration};
use crate::flash::{Frontier, Media, Owner, Placer, RecoveryReport, SaveArea, Torn, UnitImage};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::map_page::Entry;
use flashweir_ftl::map_records::GroupKind;
use flashweir_ftl::recovery::{ContentId, Fold, Mapping};
use flashweir_ftl::{BlockId, BlockState, MapWord, PlaneId};
use std::collections::{BTreeMap, BTreeSet};

/// What was found on a medium.
#[derive(Debug)]
pub(crate) struct Findings {
    fold: Fold,
    /// Region and number of the new checkpoint, and the number of the boot.
    target: usize,
    group: u64,
    nth_boot: u32,
    /// Pages that were read, by station.
    pub(crate) reads: Vec<u64>,
    openings: u64,
    directory: BTreeMap<u32, (Ppa, u64)>,
    maps: u64,
    map_entries: BTreeMap<u32, Vec<Entry>>,
    unfinished: Vec<BlockId>,
    counted: BTreeSet<BlockId>,
}

/// Plans the writes after a scan.
pub(super) fn plan(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<PageFtl> {
    let (findings, media) = read(config, options, media);
    let (mut cx, mut firmware) = boot::<PageFtl>(config.clone(), options, media);
    let (steps, report) = rebuild(&mut cx, &mut firmware, findings);
    Plan { cx, firmware, steps, report }
}

/// Reads a medium, and gives it back.
pub(crate) fn read(config: &DeviceConfig, options: DeviceOptions, media: Media) -> (Findings, Media) {
    let mut scan = Scan::new(config, options, media);
    scan.read_metadata();
    let (fold, checkpoint) = scan.fold();
    let group = scan.groups.keys().next_back().map_or(1, |last| last + 1);
    let nth_boot = scan.groups.values().map(|g| g.boot).max().unwrap_or(1) + 1;
    // The newest complete checkpoint and its log stay until the new checkpoint is complete.
    let live_region = checkpoint.map(|n| scan.groups[&n].region).unwrap_or(0);
    let target =
        if scan.has_planted(PlantedBug::RecoveryNotIdempotent) { live_region } else { live_region ^ 1 };
    let findings = Findings {
        fold,
        target,
        group,
        nth_boot,
        reads: scan.reads_of_station,
        openings: scan.openings_max + BOOT_GAP,
        directory: scan.directory,
        maps: scan.maps,
        map_entries: scan.map_entries,
        unfinished: scan.unfinished,
        counted: scan.counted,
    };
    (findings, scan.media)
}

/// Puts what was found into an empty firmware, and plans what is to be written. Blocks of the pool that hold anything are pages' from then
/// on; those of another namespace have left it before, and its newest sequence number is known.
pub(crate) fn rebuild(cx: &mut Cx, ftl: &mut PageFtl, found: Findings) -> (Vec<Step>, RecoveryReport) {
    let Findings { fold, target, group, reads, directory, map_entries, .. } = found;
    let save = cx.flash.media.save_area().cloned();
    let mut report = RecoveryReport { pages_read: reads.iter().sum(), ..RecoveryReport::default() };
    restore(ftl, cx, &fold);
    restore_map_pages(ftl, cx, &directory, found.maps);
    ftl.space.openings = found.openings;
    let mut steps = Vec::new();
    erase_garbage(cx, &found.unfinished, &found.counted, &mut steps);
    let seq_saved = save.iter().flat_map(|s| s.units.iter().map(|(_, seq, _)| *seq)).max().unwrap_or(0);
    let victims = collect_short(ftl, cx, &mut steps);
    cx.front.seq = cx.front.seq.max(fold.seq_max()).max(seq_saved) + BOOT_GAP;
    ftl.orders.begin_boot(cx.front.seq);
    ftl.log.boot = found.nth_boot;
    write_checkpoint(ftl, cx, (target, group), &map_entries, &mut steps);
    if let Some(save) = &save {
        restore_saved(ftl, cx, save, &fold);
    }
    for victim in victims {
        cx.flash.blocks.release(victim);
        steps.push(Step::Erase(victim));
    }
    erase_old_map_pages(ftl, cx, &mut steps);
    report.units = fold.mappings().count() as u64;
    report.steps = steps.len() as u64;
    report.time = duration(&cx.config, &cx.geometry, &reads, &steps);
    for plane in 0..cx.geometry.planes() {
        ftl.space.close_frontiers(&mut cx.flash.blocks, PlaneId(plane));
        ftl.check_spare(cx, PlaneId(plane));
        ftl.work.collect(PlaneId(plane));
    }
    (steps, report)
}

/// Fills the map and the account of blocks with what was found; every block that holds anything is closed.
fn restore(ftl: &mut PageFtl, cx: &mut Cx, fold: &Fold) {
    for block in cx.flash.blocks.ids() {
        let erases = cx.flash.media.erases(block);
        let used = match cx.has_planted(PlantedBug::TakenBeforeErased) {
            true => cx.flash.media.pages_written(block) > 0,
            false => cx.flash.media.is_used(block),
        };
        let is_data = cx.flash.blocks.state(block) == BlockState::Free;
        cx.flash.blocks.restore(block, erases, used && is_data);
    }
    // Places that some page has because of a SHARE, and all pages that have them.
    let claimed = |mapping: &Mapping| fold.content_of(mapping.lpn).is_some();
    let mut shared: BTreeMap<Ppa, Vec<(Lpn, u64)>> =
        fold.mappings().filter(claimed).map(|mapping| (mapping.ppa, Vec::new())).collect();
    for mapping in fold.mappings() {
        if let Some(owners) = shared.get_mut(&mapping.ppa) {
            owners.push((mapping.lpn, mapping.seq));
            continue;
        }
        ftl.map.replace(mapping.lpn, MapWord::Direct(mapping.ppa));
        // Two logical pages have the same place only if a planted bug brought back an old mapping.
        if cx.planted.is_none() || !cx.flash.blocks.is_valid(mapping.ppa) {
            cx.flash.blocks.set_valid(mapping.ppa);
        }
    }
    for (ppa, owners) in shared {
        cx.flash.blocks.set_valid(ppa);
        let (owner, seq) = cx.flash.media.oob(ppa).expect("the unit was found");
        if let [(lpn, since)] = owners[..]
            && page_of(owner).is_some_and(|(named, hidden)| named == lpn && (hidden || seq == since))
        {
            ftl.map.replace(lpn, MapWord::Direct(ppa));
            continue;
        }
        let vpid = ftl.virtual_pages.add(ppa, ContentId::new(owner, seq));
        for (lpn, since) in owners {
            ftl.virtual_pages.add_owner(vpid, lpn, since);
            ftl.map.replace(lpn, MapWord::Shared(vpid));
        }
    }
}

/// Takes over the places of translation pages; blocks that hold any are full, and the cache is empty.
fn restore_map_pages(ftl: &mut PageFtl, cx: &Cx, directory: &BTreeMap<u32, (Ppa, u64)>, maps: u64) {
    let Some(cache) = &mut ftl.map_cache else { return };
    let newest = directory.values().map(|(_, number)| *number).max().unwrap_or(0);
    cache.number = newest.max(maps) + BOOT_GAP;
    for (&page, &(ppa, number)) in directory {
        cache.area.set_valid(cx.geometry.page_of(ppa).0, page);
        let state = cache.page_mut(page);
        (state.place, state.number, state.is_named) = (Some(ppa), number, true);
    }
    cache.area.close_all();
}

/// Notes each unit for which its translation page and the result of the scan differ as changed.
fn note_changes(ftl: &mut PageFtl, cx: &Cx, map_entries: &BTreeMap<u32, Vec<Entry>>) {
    let Some(cache) = &ftl.map_cache else { return };
    let said = |lpn: Lpn| {
        let page = cache.page_of(lpn);
        let nth = (lpn.0 - cache.units_of(page).start) as usize;
        map_entries.get(&page).and_then(|entries| *entries.get(nth)?)
    };
    let units = (0..cx.geometry.user_units).map(Lpn);
    let changed: Vec<Lpn> = units.filter(|lpn| said(*lpn) != ftl.entry(cx, *lpn)).collect();
    changed.into_iter().for_each(|lpn| ftl.place_changed(lpn));
}

/// Erases the blocks whose translation pages are not needed any more, after the checkpoint that says so.
fn erase_old_map_pages(ftl: &PageFtl, cx: &Cx, steps: &mut Vec<Step>) {
    let Some(cache) = &ftl.map_cache else { return };
    for block in cache.area.block_ids().filter(|block| cache.area.valid(*block) == 0) {
        if cx.flash.media.is_used(block) {
            steps.push(Step::Erase(block));
        }
    }
}

/// Erases blocks without a valid unit where a plane is short of free ones, and those of an unfinished recovery. Their units were
/// superseded or discarded, so a later recovery does not miss them, unless it has to count members of epochs: blocks with such
/// members are left to [`collect_short`], whose victims are erased when the checkpoint is complete.
fn erase_garbage(cx: &mut Cx, unfinished: &[BlockId], counted: &BTreeSet<BlockId>, steps: &mut Vec<Step>) {
    let enough = cx.config.ftl.gc.start_below_blocks;
    for block in cx.flash.blocks.ids() {
        let plane = cx.geometry.plane_of(block);
        let blocks = &mut cx.flash.blocks;
        let empty = blocks.state(block) == BlockState::Closed && blocks.valid(block) == 0;
        let garbage = empty && !counted.contains(&block);
        if garbage && (blocks.free_count(plane) < enough || unfinished.contains(&block)) {
            blocks.collect(block);
            blocks.release(block);
            steps.push(Step::Erase(block));
        }
    }
}

/// Puts what the capacitor saved back into the buffer: only the newest version of each page, in the order of acceptance. These get
/// new sequence numbers above the horizon of the new checkpoint. The capacitor saves them again at the next power cut, so nothing
/// needs to be programmed before the device takes commands.
fn restore_saved(ftl: &mut PageFtl, cx: &mut Cx, save: &SaveArea, fold: &Fold) {
    let mut newest: BTreeMap<Lpn, (u64, &Payload)> = BTreeMap::new();
    for (lpn, seq, payload) in &save.units {
        let entry = newest.entry(*lpn).or_insert((*seq, payload));
        if *seq >= entry.0 {
            *entry = (*seq, payload);
        }
    }
    newest.retain(|lpn, (seq, _)| {
        let trimmed =
            save.trims.iter().any(|t| (t.lpn.0..t.lpn.0 + t.count).contains(&lpn.0) && t.seq > *seq);
        // Not what the map's place holds now: a survivor's is planned and not yet programmed.
        !trimmed && *seq > fold.seq_of(*lpn)
    });
    let mut units: Vec<(u64, Lpn, &Payload)> =
        newest.into_iter().map(|(lpn, (seq, payload))| (seq, lpn, payload)).collect();
    units.sort_unstable_by_key(|(seq, lpn, _)| (*seq, *lpn));
    for (_, lpn, payload) in units {
        let seq = cx.next_seq();
        let slot = ftl.buffer.insert(lpn, seq, payload.clone(), ftl.map.get(lpn));
        ftl.map.replace(lpn, ftl.buffer.word(slot));
    }
}

/// Plans the program of one page of survivors.
fn program(ftl: &mut PageFtl, cx: &mut Cx, plane: PlaneId, units: &[Survivor], steps: &mut Vec<Step>) {
    let frontier = Frontier::Gc;
    ftl.space.offer(&cx.flash.blocks, plane, frontier).expect("a plane keeps free blocks in reserve");
    let at = ftl.space.bind(&mut cx.flash.blocks, plane, frontier);
    ftl.space.program_ended(plane, frontier);
    for (survivor, unit) in units.iter().zip(0..) {
        let ppa = cx.geometry.ppa(at, unit);
        cx.flash.blocks.set_invalid(survivor.source);
        cx.flash.blocks.set_valid(ppa);
        match ftl.virtual_pages.at(survivor.source) {
            Some(vpid) => ftl.virtual_pages.moved(vpid, ppa),
            None => _ = ftl.map.replace(survivor.lpn, MapWord::Direct(ppa)),
        }
    }
    let image = |survivor: &Survivor| UnitImage {
        owner: survivor.owner,
        seq: survivor.seq,
        member: None,
        payload: survivor.payload.clone(),
    };
    let opened = ftl.space.opened(at.block);
    steps.push(Step::Program { at, opened, units: units.iter().map(image).collect() });
}

/// Collects victims in planes that are short of free blocks, so that power cuts in quick succession, before GC has had its time,
/// never use up a plane. Returns the victims, which are to be erased once the checkpoint is complete.
fn collect_short(ftl: &mut PageFtl, cx: &mut Cx, steps: &mut Vec<Step>) -> Vec<BlockId> {
    let enough = cx.config.ftl.gc.start_below_blocks;
    let pages_per_block = cx.geometry.pages_per_block;
    let mut victims = Vec::new();
    for plane in (0..cx.geometry.planes()).map(PlaneId) {
        let mut gained = 0;
        while cx.flash.blocks.free_count(plane) + gained < enough {
            let room_open = ftl.space.next_page(plane, Frontier::Gc).map_or(0, |next| pages_per_block - next);
            let room = room_open + cx.flash.blocks.free_count(plane) * pages_per_block;
            let Some(victim) = ftl.gainful(cx, plane) else { break };
            let pages = cx.flash.blocks.valid(victim).div_ceil(cx.geometry.units_per_page);
            if pages > room {
                break;
            }
            cx.flash.blocks.collect(victim);
            let survivors = survivors(cx, victim);
            for page in survivors.chunks(cx.geometry.units_per_page as usize) {
                program(ftl, cx, plane, page, steps);
            }
            victims.push(victim);
            gained += 1;
        }
    }
    victims
}

/// A valid unit of a victim.
struct Survivor {
    lpn: Lpn,
    owner: Owner,
    seq: u64,
    payload: Payload,
    source: Ppa,
}

/// The valid units of a block.
fn survivors(cx: &Cx, block: BlockId) -> Vec<Survivor> {
    let first = cx.geometry.ppa(PageAddr { block, page: 0 }, 0).0;
    let units = (first..first + u64::from(cx.geometry.units_per_block())).map(Ppa);
    let valid = units.filter(|ppa| cx.flash.blocks.is_valid(*ppa));
    valid
        .filter_map(|source| {
            let (owner, seq) = cx.flash.media.oob(source)?;
            let (lpn, _) = page_of(owner)?;
            let payload = cx.flash.media.payload(source).unwrap_or(LOST);
            Some(Survivor { lpn, owner, seq, payload, source })
        })
        .collect()
}

/// Plans the checkpoint with which the new boot begins.
fn write_checkpoint(
    ftl: &mut PageFtl,
    cx: &mut Cx,
    (target, group): (usize, u64),
    map_entries: &BTreeMap<u32, Vec<Entry>>,
    steps: &mut Vec<Step>,
) {
    for block in cx.geometry.meta_blocks(target as u32) {
        if cx.flash.media.is_used(block) {
            steps.push(Step::Erase(block));
        }
    }
    let mut after = cx.flash.media.sketch();
    steps.iter().for_each(|step| step.apply(&mut after, Torn::Done));
    let resurrect = cx.has_planted(PlantedBug::Resurrection);
    let horizon = if resurrect { 0 } else { cx.front.seq };
    if resurrect {
        ftl.space.openings = 0;
    }
    let before = std::mem::replace(&mut cx.flash.media, after);
    note_changes(ftl, cx, map_entries);
    let records = ftl.checkpoint_records(cx, horizon, Vec::new());
    cx.flash.media = before;
    ftl.log.note_checkpoint(&records);
    let images = ftl.log.pages(GroupKind::Checkpoint, group, &records);
    let pages = images.len() as u32;
    for (i, image) in images.into_iter().enumerate() {
        let units = vec![UnitImage::meta(group, image)];
        steps.push(Step::Program { at: ftl.log.page_at(target, i as u32), opened: 0, units });
    }
    ftl.log.resume(target, pages, group + 1, ftl.log.boot, cx.front.seq);
}
