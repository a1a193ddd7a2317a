//! The power goes, and comes back.
//!
//! A cut leaves the medium, with what was in the cells torn as the caller decides. Recovery reads it
//! (a pure fold, [`flashweir_ftl::recovery`]), then writes in a few steps: survivors of planes that are short, and a
//! new checkpoint. A cut between or inside these steps leaves a medium from which recovery begins anew.
//!
//! Invariants: no step destroys what the fold needed before the new checkpoint is complete; only after the
//! last step does the device take commands.

use crate::buffer::Superseded;
use crate::config::{DeviceConfig, PersistPolicy};
use crate::device::{Device, DeviceOptions};
use crate::geometry::{Geometry, PageAddr};
use crate::job::Job;
use crate::log::program_meta_page;
use crate::media::{Media, Owner, PageState, SaveArea, Torn, UnitImage};
use crate::meta_format::{GroupKind, PageHeader, Record, decode};
use crate::nand::{Frontier, Interrupted, OpKind, Placer, wordline_start};
use crate::planted::PlantedBug;
use crate::read::LOST;
use flashweir_core::{Duration, Instant, Lpn, Payload, Ppa};
use flashweir_ftl::recovery::{EpochFold, Fold, Mapping, Member, TrimRecord};
use flashweir_ftl::{BlockId, MapWord, PlaneId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sequence numbers and block openings of a new boot begin so far above those that were found: more than can
/// have been given to versions of which nothing can be read.
const BOOT_GAP: u64 = 1 << 24;

impl Device {
    /// Programs and erases that are in the cells at `now`; a cut tears each of them.
    pub fn interrupted(&self, now: Instant) -> Vec<Interrupted> {
        self.nand.interrupted(now)
    }

    /// What is left if the power goes at `now`; `torn` says how each interrupted operation stands. Where the medium
    /// has a store, the cut happens there: this device must not be used after it.
    pub fn cut(&self, now: Instant, mut torn: impl FnMut(&Interrupted) -> Torn) -> Media {
        let mut left = self.media.clone();
        for interrupted in self.nand.interrupted(now) {
            self.tear(&mut left, &interrupted, torn(&interrupted));
        }
        if self.is_protected() {
            let save = self.save();
            let empty = save.units.is_empty() && save.trims.is_empty();
            left.set_save_area((!empty).then_some(save));
        }
        left
    }

    /// Leaves on `media` what an interrupted operation leaves.
    fn tear(&self, media: &mut Media, interrupted: &Interrupted, torn: Torn) {
        let op = self.nand.op(interrupted.id);
        let is_meta = matches!(op.job, Job::MetaPage(_));
        let opened = if is_meta { 0 } else { self.space.opened(op.at.block) };
        match (op.kind, torn) {
            (_, Torn::Absent) | (OpKind::Read, _) => {}
            (OpKind::Erase, Torn::Damaged) => media.tear_erase(op.at.block),
            (OpKind::Erase, Torn::Done) => media.erase(op.at.block),
            (OpKind::Program, Torn::Damaged) => {
                let paired = self.config.faults.paired_page_loss && !is_meta;
                let from =
                    if paired { wordline_start(self.config.timing.cell, op.at.page) } else { op.at.page };
                media.spoil(op.at, opened, from);
            }
            (OpKind::Program, Torn::Done) => match op.job {
                Job::UserPage(page) | Job::GcPage(page) => {
                    let mut images = Vec::new();
                    self.page_images(page, &mut images);
                    media.program(op.at, opened, images.into_iter());
                }
                Job::MetaPage(i) => {
                    let (group, image) = self.log.image(i);
                    program_meta_page(media, op.at, group, image);
                }
                _ => media.program(op.at, opened, std::iter::empty()),
            },
        }
    }

    /// Where the medium has a store: the capacitor protects the buffer as it is now.
    fn begin_journal(&mut self) {
        if self.media.is_stored() && self.is_protected() {
            let area = self.save();
            self.media.begin_journal(&area);
        }
    }

    /// Brings to the store what was accepted since the last call, before anybody is told.
    pub(crate) fn commit_saved(&mut self) {
        if self.media.commit_saved() {
            self.begin_journal();
        }
    }

    /// What the capacitor saves: every version that is not on the medium and still counts. The record of a
    /// deallocation that superseded a version may be durable already, so the version is not saved.
    fn save(&self) -> SaveArea {
        let all = self.has_planted(PlantedBug::DeadVersionSaved);
        let live = self.buffer.iter().filter(|(_, slot)| all || slot.superseded == Superseded::No);
        let units = live.map(|(_, slot)| (slot.lpn, slot.seq, slot.payload.clone()));
        let trims = self.log.unlogged_trims().filter(|_| !self.has_planted(PlantedBug::SaveForgetsTrims));
        SaveArea { units: units.collect(), trims: trims.collect() }
    }
}

/// What the last deallocation says about its epoch.
fn set_member(trims: &mut [FoundTrim], member: &Member) {
    if let Some(trim) = trims.last_mut() {
        trim.1 = Some(*member);
    }
}

/// One thing that recovery writes.
#[derive(Clone, Debug)]
enum Step {
    Erase(BlockId),
    Program { at: PageAddr, opened: u64, units: Vec<UnitImage> },
    ProgramMeta { at: PageAddr, group: u64, image: Arc<[u8]> },
}

/// A metadata group as it was found.
#[derive(Debug)]
struct Group {
    kind: GroupKind,
    region: usize,
    total: u32,
    boot: u32,
    pages: BTreeMap<u32, Vec<Record>>,
}

/// What recovery did and how long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Pages read: metadata, the first page of each block, and blocks that no checkpoint vouches for.
    pub pages_read: u64,
    /// Pages and erases written.
    pub steps: u64,
    /// Mapping units found.
    pub units: u64,
    /// Time: reads of all stations in parallel, then the steps one after the other.
    pub time: Duration,
}

/// A recovery under way.
#[derive(Clone, Debug)]
pub struct Recovery {
    device: Device,
    steps: Vec<Step>,
    next: usize,
    report: RecoveryReport,
}

impl Recovery {
    /// Reads the medium and plans what to write. The device kept metadata and contents.
    pub fn begin(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Self {
        assert!(media.tracks_contents(), "recovery needs a medium that keeps contents");
        Scan::new(config, options, media).plan()
    }

    /// Steps that are left.
    pub fn steps_left(&self) -> usize {
        self.steps.len() - self.next
    }

    /// Does the next step; false if there is none.
    pub fn advance(&mut self) -> bool {
        let Some(step) = self.steps.get(self.next).cloned() else { return false };
        self.next += 1;
        apply(&mut self.device.media, &step, Torn::Done);
        true
    }

    /// The medium if the power goes now, in the middle of the next step.
    pub fn cut(&self, torn: Torn) -> Media {
        let mut media = self.device.media.clone();
        if let Some(step) = self.steps.get(self.next) {
            apply(&mut media, step, torn);
        }
        if self.next > 0 && self.device.has_planted(PlantedBug::SaveClearedEarly) {
            media.set_save_area(None);
        }
        media
    }

    /// What it does and how long it takes.
    pub fn report(&self) -> RecoveryReport {
        self.report
    }

    /// Does all steps that are left; the device takes commands from then on.
    pub fn finish(mut self) -> (Device, RecoveryReport) {
        while self.advance() {}
        // From here on the capacitor covers the buffer, which holds what was saved.
        self.device.media.set_save_area(None);
        self.device.begin_journal();
        (self.device, self.report)
    }
}

fn apply(media: &mut Media, step: &Step, torn: Torn) {
    match (step, torn) {
        (_, Torn::Absent) => {}
        (Step::Erase(block), Torn::Damaged) => media.tear_erase(*block),
        (Step::Erase(block), Torn::Done) => media.erase(*block),
        (Step::Program { at, opened, .. }, Torn::Damaged) => media.spoil(*at, *opened, at.page),
        (Step::ProgramMeta { at, .. }, Torn::Damaged) => media.spoil(*at, 0, at.page),
        (Step::Program { at, opened, units }, Torn::Done) => {
            media.program(*at, *opened, units.iter().cloned())
        }
        (Step::ProgramMeta { at, group, image }, Torn::Done) => {
            program_meta_page(media, *at, *group, image.clone());
        }
    }
}

/// A unit as a summary names it: its number in the block, page, version, epoch.
type SummaryUnit = (u32, Lpn, u64, Option<Member>);

/// Units of full blocks, by block and number of its opening.
type Summaries = BTreeMap<(BlockId, u64), Vec<SummaryUnit>>;

/// A deallocation and its epoch.
type FoundTrim = (TrimRecord, Option<Member>);

/// What a record belongs to that says something about the one before it.
enum Before {
    Nothing,
    Trim,
    Unit((BlockId, u64)),
}

/// The reading half of a recovery.
#[derive(Debug)]
struct Scan<'a> {
    config: &'a DeviceConfig,
    options: DeviceOptions,
    geometry: Geometry,
    media: Media,
    groups: BTreeMap<u64, Group>,
    reads_of_station: Vec<u64>,
    openings_max: u64,
    /// Blocks that an unfinished recovery opened.
    unfinished: Vec<BlockId>,
    /// Blocks with members of epochs that a recovery which begins anew has to count again.
    counted: BTreeSet<BlockId>,
}

impl<'a> Scan<'a> {
    fn new(config: &'a DeviceConfig, options: DeviceOptions, media: Media) -> Self {
        let geometry = Geometry::new(config);
        let reads_of_station = vec![0; geometry.stations() as usize];
        let groups = BTreeMap::new();
        let (openings_max, unfinished) = (0, Vec::new());
        let counted = BTreeSet::new();
        Self { config, options, geometry, media, groups, reads_of_station, openings_max, unfinished, counted }
    }

    fn note_read(&mut self, block: BlockId) {
        let station = self.geometry.station(self.geometry.plane_of(block));
        self.reads_of_station[station.0 as usize] += 1;
    }

    fn has_planted(&self, bug: PlantedBug) -> bool {
        self.options.planted == Some(bug)
    }

    /// Step 1: every metadata page of both regions.
    fn read_metadata(&mut self) {
        for region in 0..2 {
            for block in self.geometry.meta_blocks(region) {
                for page in 0..self.media.pages_written(block) {
                    self.note_read(block);
                    let ppa = self.geometry.ppa(PageAddr { block, page }, 0);
                    let Some(Payload::Bytes(bytes)) = self.media.payload(ppa) else { continue };
                    let Some((header, records)) = decode(&bytes) else { continue };
                    let PageHeader { kind, boot, group, index, total } = header;
                    let region = region as usize;
                    let fresh = || Group { kind, region, total, boot, pages: BTreeMap::new() };
                    self.groups.entry(group).or_insert_with(fresh).pages.insert(index, records);
                }
            }
        }
    }

    /// Steps 2 to 4: checkpoint, log, blocks that nobody vouches for.
    fn fold(&mut self) -> (Fold, Option<u64>) {
        let complete = |group: &Group| group.pages.len() as u32 == group.total;
        let checkpoint = self
            .groups
            .iter()
            .rev()
            .find(|(_, g)| g.kind == GroupKind::Checkpoint && complete(g))
            .map(|(n, _)| *n);
        let mut horizon = 0;
        let mut openings = 0;
        let mut open = Vec::new();
        let mut mappings = Vec::new();
        let mut trims: Vec<FoundTrim> = Vec::new();
        let mut epochs = EpochFold::default();
        for record in checkpoint.iter().flat_map(|n| self.groups[n].pages.values().flatten()) {
            match record {
                Record::Checkpoint { horizon: h, openings: o } => (horizon, openings) = (*h, *o),
                Record::Open(block) => open.push(*block),
                Record::Mapping(mapping) => mappings.push(*mapping),
                Record::Trim(trim) => trims.push((*trim, None)),
                Record::Member(member) => set_member(&mut trims, member),
                Record::Complete { stream, epoch } => epochs.complete(*stream, *epoch),
                Record::Summary { .. } | Record::Unit { .. } => {}
            }
        }
        self.openings_max = openings;
        let region = checkpoint.map_or(0, |n| self.groups[&n].region);
        let believe_torn = self.has_planted(PlantedBug::TornLogGroup);
        let log: Vec<Record> = self
            .groups
            .iter()
            .filter(|(n, g)| g.kind == GroupKind::Log && g.region == region && **n > checkpoint.unwrap_or(0))
            .filter(|(_, g)| complete(g) || believe_torn)
            .flat_map(|(_, g)| g.pages.values().flatten().copied())
            .collect();
        let mut summaries: Summaries = BTreeMap::new();
        let mut before = Before::Nothing;
        for record in log {
            match record {
                Record::Trim(trim) => {
                    trims.push((trim, None));
                    before = Before::Trim;
                }
                Record::Summary { block, opened, .. } => {
                    before = Before::Unit((block, opened));
                    summaries.insert((block, opened), Vec::new());
                }
                Record::Unit { unit, lpn, seq } => {
                    if let Before::Unit(key) = before
                        && let Some(units) = summaries.get_mut(&key)
                    {
                        units.push((unit, lpn, seq, None));
                    }
                }
                Record::Member(member) => match before {
                    Before::Nothing => {}
                    Before::Trim => set_member(&mut trims, &member),
                    Before::Unit(key) => {
                        if let Some(unit) = summaries.get_mut(&key).and_then(|units| units.last_mut()) {
                            unit.3 = Some(member);
                        }
                    }
                },
                Record::Complete { stream, epoch } => epochs.complete(stream, epoch),
                Record::Mapping(_) | Record::Checkpoint { .. } | Record::Open(_) => {}
            }
        }
        let mut fold = Fold::new(self.geometry.user_units, horizon);
        let trusted = self.classify(openings, &open);
        for mapping in mappings {
            let block = self.geometry.block_of(mapping.ppa).0;
            fold.checkpoint(mapping, trusted.get(block.0 as usize).copied().unwrap_or(false));
        }
        // In the order of their opening, so that of a survivor and its source the source is chosen: what an
        // interrupted collection had copied is garbage, and no cut costs a plane its free blocks.
        let mut untrusted: Vec<(u64, BlockId)> = (0..self.geometry.blocks())
            .map(BlockId)
            .filter(|block| !trusted[block.0 as usize] && !self.unfinished.contains(block))
            .filter(|block| !self.media.is_bad(*block))
            .filter_map(|block| Some((self.media.opened(block).filter(|opened| *opened > 0)?, block)))
            .collect();
        untrusted.sort_unstable();
        let mut found = Vec::new();
        for (opened, block) in untrusted {
            self.find_in_block(block, opened, &summaries, &mut found);
        }
        for (version, member) in &found {
            if let Some(member) = member.filter(|_| version.seq > horizon) {
                epochs.found(&member, version.seq, version.lpn.0);
                self.counted.insert(self.geometry.block_of(version.ppa).0);
            }
        }
        for (trim, member) in &trims {
            if let Some(member) = member.filter(|_| trim.seq > horizon) {
                epochs.found(&member, trim.seq, u64::MAX);
            }
        }
        let limits = match self.config.order.policy {
            PersistPolicy::Transactional => epochs.by_record(),
            _ => epochs.by_count(),
        };
        let unchecked = self.has_planted(PlantedBug::OrderUnchecked);
        for (version, member) in found {
            match member.filter(|_| version.seq > horizon) {
                Some(member) if !limits.admit(&member) && !unchecked => fold.discarded(version.seq),
                _ => fold.found(version),
            }
        }
        if let Some(save) = self.media.save_area() {
            trims.extend(save.trims.iter().map(|trim| (*trim, None)));
        }
        trims.into_iter().for_each(|(trim, _)| fold.trim(trim));
        (fold, checkpoint)
    }

    /// Which blocks the checkpoint vouches for: closed before it was taken and not opened since.
    ///
    /// What an unfinished recovery wrote is a copy of what is in the save area or elsewhere on the medium still,
    /// so its blocks are set aside: a recovery that is cut again and again takes the same blocks each time.
    fn classify(&mut self, openings: u64, open: &[BlockId]) -> Vec<bool> {
        let mut trusted = Vec::with_capacity(self.geometry.blocks() as usize);
        for block in (0..self.geometry.blocks()).map(BlockId) {
            self.note_read(block);
            let opened = self.media.opened(block).unwrap_or(0);
            // A block that became bad was emptied before; what it still shows lives elsewhere.
            let bad = self.media.is_bad(block);
            trusted.push(opened > 0 && opened <= openings && !open.contains(&block) && !bad);
            if opened > openings + BOOT_GAP / 2 {
                self.unfinished.push(block);
            } else {
                self.openings_max = self.openings_max.max(opened);
            }
        }
        trusted
    }

    /// Every version in a block that has to be looked at: from its summary, or page by page.
    fn find_in_block(
        &mut self,
        block: BlockId,
        opened: u64,
        summaries: &Summaries,
        found: &mut Vec<(Mapping, Option<Member>)>,
    ) {
        let first = self.geometry.ppa(PageAddr { block, page: 0 }, 0).0;
        let believed = match self.has_planted(PlantedBug::StaleSummary) {
            true => summaries.range((block, 0)..=(block, opened)).next_back().map(|(_, units)| units),
            false => summaries.get(&(block, opened)),
        };
        if let Some(units) = believed {
            let version = |&(unit, lpn, seq, member): &SummaryUnit| {
                (Mapping { lpn, ppa: Ppa(first + u64::from(unit)), seq }, member)
            };
            found.extend(units.iter().map(version));
            return;
        }
        for page in 0..self.media.pages_written(block) {
            self.note_read(block);
            let at = PageAddr { block, page };
            if self.media.page_state(at) != PageState::Good {
                continue;
            }
            for unit in 0..self.geometry.units_per_page {
                let ppa = self.geometry.ppa(at, unit);
                if let Some((Owner::Lpn(lpn), seq)) = self.media.oob(ppa) {
                    found.push((Mapping { lpn, ppa, seq }, self.media.member(ppa)));
                }
            }
        }
    }

    fn plan(mut self) -> Recovery {
        self.read_metadata();
        let (fold, checkpoint) = self.fold();
        let group = self.groups.keys().next_back().map_or(1, |last| last + 1);
        let boot = self.groups.values().map(|g| g.boot).max().unwrap_or(1) + 1;
        // The newest complete checkpoint and its log stay until the new one is complete.
        let live_region = checkpoint.map(|n| self.groups[&n].region).unwrap_or(0);
        let target =
            if self.has_planted(PlantedBug::RecoveryNotIdempotent) { live_region } else { live_region ^ 1 };
        let save = self.media.save_area().cloned();
        let reads = self.reads_of_station.clone();
        let openings = self.openings_max + BOOT_GAP;
        let mut device = Device::on_medium(self.config.clone(), self.options, self.media);
        let mut report = RecoveryReport { pages_read: reads.iter().sum(), ..RecoveryReport::default() };
        restore(&mut device, &fold);
        device.space.openings = openings;
        let mut steps = Vec::new();
        erase_garbage(&mut device, &self.unfinished, &self.counted, &mut steps);
        let seq_saved = save.iter().flat_map(|s| s.units.iter().map(|(_, seq, _)| *seq)).max().unwrap_or(0);
        let victims = collect_short(&mut device, &mut steps);
        device.seq = fold.seq_max().max(seq_saved) + BOOT_GAP;
        device.orders.begin_boot(device.seq);
        device.log.boot = boot;
        write_checkpoint(&mut device, target, group, &mut steps);
        if let Some(save) = &save {
            restore_saved(&mut device, save);
        }
        for victim in victims {
            device.space.blocks.release(victim);
            steps.push(Step::Erase(victim));
        }
        report.units = fold.mappings().count() as u64;
        report.steps = steps.len() as u64;
        report.time = duration(&device, &reads, &steps);
        for plane in 0..device.geometry.planes() {
            device.space.close_frontiers(PlaneId(plane));
            device.check_spare(PlaneId(plane));
            device.recheck.push(PlaneId(plane));
        }
        Recovery { device, steps, next: 0, report }
    }
}

/// Fills map and block account with what was found; every block that holds anything is closed.
fn restore(device: &mut Device, fold: &Fold) {
    for block in device.space.blocks.ids() {
        let erases = device.media.erases(block);
        let used = device.media.pages_written(block) > 0 || device.media.erase_torn(block);
        let is_data = device.space.blocks.state(block) == flashweir_ftl::BlockState::Free;
        device.space.blocks.restore(block, erases, used && is_data);
    }
    for mapping in fold.mappings() {
        device.map.replace(mapping.lpn, MapWord::Direct(mapping.ppa));
        device.space.blocks.set_valid(mapping.ppa);
    }
}

/// Erases blocks without a valid unit where a plane is short of free ones, and those of an unfinished recovery.
/// What is in them was superseded or discarded, so a later recovery does not miss it, unless it has to count members of
/// epochs: what holds these is left to [`collect_short`], whose victims are erased when the checkpoint is complete.
fn erase_garbage(
    device: &mut Device,
    unfinished: &[BlockId],
    counted: &BTreeSet<BlockId>,
    steps: &mut Vec<Step>,
) {
    let enough = device.config.ftl.gc.start_below_blocks;
    for block in device.space.blocks.ids() {
        let plane = device.geometry.plane_of(block);
        let blocks = &mut device.space.blocks;
        let empty = blocks.state(block) == flashweir_ftl::BlockState::Closed && blocks.valid(block) == 0;
        let garbage = empty && !counted.contains(&block);
        if garbage && (blocks.free_count(plane) < enough || unfinished.contains(&block)) {
            blocks.collect(block);
            blocks.release(block);
            steps.push(Step::Erase(block));
        }
    }
}

/// Puts what the capacitor saved back into the buffer, newest version of each page only and in the order in
/// which they were accepted. They get new numbers, above the horizon of the new checkpoint. The capacitor saves
/// them again at the next cut, so nothing needs to be programmed before the device takes commands.
fn restore_saved(device: &mut Device, save: &SaveArea) {
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
        let durable = match device.map.get(*lpn) {
            MapWord::Direct(ppa) => device.media.oob(ppa).map_or(0, |(_, seq)| seq),
            _ => 0,
        };
        !trimmed && *seq > durable
    });
    let mut units: Vec<(u64, Lpn, &Payload)> =
        newest.into_iter().map(|(lpn, (seq, payload))| (seq, lpn, payload)).collect();
    units.sort_unstable_by_key(|(seq, lpn, _)| (*seq, *lpn));
    for (_, lpn, payload) in units {
        let seq = device.next_seq();
        let slot = device.buffer.insert(lpn, seq, payload.clone(), device.map.get(lpn));
        device.map.replace(lpn, device.buffer.word(slot));
    }
}

/// Plans one page of survivors.
fn program(device: &mut Device, plane: PlaneId, units: &[(Lpn, u64, Payload)], steps: &mut Vec<Step>) {
    let frontier = Frontier::Gc;
    device.space.offer(plane, frontier).expect("a plane keeps free blocks in reserve");
    let at = device.space.bind(plane, frontier);
    device.space.program_ended(plane, frontier);
    for ((lpn, _, _), unit) in units.iter().zip(0..) {
        let ppa = device.geometry.ppa(at, unit);
        if let MapWord::Direct(old) = device.map.replace(*lpn, MapWord::Direct(ppa)) {
            device.space.blocks.set_invalid(old);
        }
        device.space.blocks.set_valid(ppa);
    }
    let image = |(lpn, seq, payload): &(Lpn, u64, Payload)| UnitImage {
        owner: Owner::Lpn(*lpn),
        seq: *seq,
        member: None,
        payload: payload.clone(),
    };
    let opened = device.space.opened(at.block);
    steps.push(Step::Program { at, opened, units: units.iter().map(image).collect() });
}

/// Collects in planes that are short of free blocks, so that cuts that follow each other soon, before collection
/// has had its time, never use up a plane. Returns the victims, to be erased once the checkpoint is complete.
fn collect_short(device: &mut Device, steps: &mut Vec<Step>) -> Vec<BlockId> {
    let enough = device.config.ftl.gc.start_below_blocks;
    let pages_per_block = device.geometry.pages_per_block;
    let mut victims = Vec::new();
    for plane in (0..device.geometry.planes()).map(PlaneId) {
        let mut gained = 0;
        while device.space.blocks.free_count(plane) + gained < enough {
            let room_open =
                device.space.next_page(plane, Frontier::Gc).map_or(0, |next| pages_per_block - next);
            let room = room_open + device.space.blocks.free_count(plane) * pages_per_block;
            let Some(victim) = device.gainful(plane) else { break };
            let pages = device.space.blocks.valid(victim).div_ceil(device.geometry.units_per_page);
            if pages > room {
                break;
            }
            device.space.blocks.collect(victim);
            let survivors = survivors(device, victim);
            for page in survivors.chunks(device.geometry.units_per_page as usize) {
                program(device, plane, page, steps);
            }
            victims.push(victim);
            gained += 1;
        }
    }
    victims
}

/// The valid units of a block.
fn survivors(device: &Device, block: BlockId) -> Vec<(Lpn, u64, Payload)> {
    let first = device.geometry.ppa(PageAddr { block, page: 0 }, 0).0;
    let units = (first..first + u64::from(device.geometry.units_per_block())).map(Ppa);
    let valid = units.filter(|ppa| device.space.blocks.is_valid(*ppa));
    valid
        .filter_map(|ppa| match device.media.oob(ppa)? {
            (Owner::Lpn(lpn), seq) => Some((lpn, seq, device.media.payload(ppa).unwrap_or(LOST))),
            _ => None,
        })
        .collect()
}

/// Plans the checkpoint with which the new boot begins.
fn write_checkpoint(device: &mut Device, target: usize, group: u64, steps: &mut Vec<Step>) {
    for block in device.geometry.meta_blocks(target as u32) {
        if device.media.pages_written(block) > 0 || device.media.erase_torn(block) {
            steps.push(Step::Erase(block));
        }
    }
    let mut after = device.media.sketch();
    steps.iter().for_each(|step| apply(&mut after, step, Torn::Done));
    let resurrect = device.has_planted(PlantedBug::Resurrection);
    let horizon = if resurrect { 0 } else { device.seq };
    if resurrect {
        device.space.openings = 0;
    }
    let before = std::mem::replace(&mut device.media, after);
    let records = device.checkpoint_records(horizon, Vec::new());
    device.media = before;
    let images = device.log.pages(GroupKind::Checkpoint, group, &records);
    let pages = images.len() as u32;
    for (i, image) in images.into_iter().enumerate() {
        steps.push(Step::ProgramMeta { at: device.log.page_at(target, i as u32), group, image });
    }
    device.log.resume(target, pages, group + 1, device.log.boot, device.seq);
}

/// Reads of all stations run in parallel, one page after the other in each; the steps follow in order.
fn duration(device: &Device, reads: &[u64], steps: &[Step]) -> Duration {
    let timing = &device.config.timing;
    let transfer = Duration::of_transfer(device.geometry.unit_bytes, timing.bus_bytes_per_s);
    let page_read = timing.command[0] + timing.read.of(0) + transfer;
    let page_bytes = device.geometry.unit_bytes * u64::from(device.geometry.units_per_page);
    let page_program = timing.command[1] + Duration::of_transfer(page_bytes, timing.bus_bytes_per_s);
    let step_time = |step: &Step| match step {
        Step::Erase(_) => timing.command[2] + timing.erase,
        Step::Program { at, .. } | Step::ProgramMeta { at, .. } => page_program + timing.program.of(at.page),
    };
    let longest = reads.iter().copied().max().unwrap_or(0);
    page_read * longest + steps.iter().map(step_time).sum()
}
