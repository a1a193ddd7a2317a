//! The reading half of a recovery: metadata pages, blocks for which no checkpoint vouches, and the fold over both.
//!
//! Deliberately absent: writing, which [`super::recover`] plans.

use super::map_pages::map_page_at;
use crate::config::{DeviceConfig, PersistPolicy};
use crate::firmware::DeviceOptions;
use crate::flash::{Media, Owner, PageState};
use crate::geometry::{Geometry, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::map_page::Entry;
use flashweir_ftl::map_records::{GroupKind, PageHeader, Record, decode};
use flashweir_ftl::recovery::{EpochFold, Fold, Mapping, Member, TrimRecord};
use std::collections::{BTreeMap, BTreeSet};

/// Distance by which the sequence numbers and block openings of a new boot exceed those that were found: more than can have been
/// given to versions that cannot be read.
pub(super) const BOOT_GAP: u64 = 1 << 24;

/// Sets the place in an epoch of the last deallocation.
fn set_member(trims: &mut [FoundTrim], member: &Member) {
    if let Some(trim) = trims.last_mut() {
        trim.1 = Some(*member);
    }
}

/// A metadata group that was found.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    pub(super) region: usize,
    pub(super) total: u32,
    pub(super) boot: u32,
    pub(super) pages: BTreeMap<u32, Vec<Record>>,
}

/// A unit as a summary names it: its number in the block, page, sequence number, place in an epoch.
type SummaryUnit = (u32, Lpn, u64, Option<Member>);

/// Units of full blocks, by block and number of its opening.
type Summaries = BTreeMap<(BlockId, u64), Vec<SummaryUnit>>;

/// A deallocation and its place in an epoch.
type FoundTrim = (TrimRecord, Option<Member>);

/// The record before a record that describes its subject further.
enum Before {
    Nothing,
    Trim,
    Unit((BlockId, u64)),
}

/// The reading half of a recovery.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    pub(super) config: &'a DeviceConfig,
    pub(super) options: DeviceOptions,
    pub(super) geometry: Geometry,
    pub(super) media: Media,
    pub(super) groups: BTreeMap<u64, Group>,
    pub(super) reads_of_station: Vec<u64>,
    pub(super) openings_max: u64,
    /// Blocks that an unfinished recovery opened.
    pub(super) unfinished: Vec<BlockId>,
    /// Blocks with members of epochs that another recovery would have to count again.
    pub(super) counted: BTreeSet<BlockId>,
    /// Places of translation pages, and the numbers of their states.
    pub(super) directory: BTreeMap<u32, (Ppa, u64)>,
    /// Translation pages that the log names.
    pub(super) logged_pages: BTreeSet<u32>,
    /// Entries of the translation pages.
    pub(super) map_entries: BTreeMap<u32, Vec<Entry>>,
    /// Number of the newest translation page that the checkpoint knows of.
    pub(super) maps: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn new(config: &'a DeviceConfig, options: DeviceOptions, media: Media) -> Self {
        let geometry = Geometry::new(config);
        let reads_of_station = vec![0; geometry.stations() as usize];
        let groups = BTreeMap::new();
        let (openings_max, unfinished) = (0, Vec::new());
        let counted = BTreeSet::new();
        let (directory, map_entries, maps) = (BTreeMap::new(), BTreeMap::new(), 0);
        Self {
            config,
            options,
            geometry,
            media,
            groups,
            reads_of_station,
            openings_max,
            unfinished,
            counted,
            directory,
            logged_pages: BTreeSet::new(),
            map_entries,
            maps,
        }
    }

    fn note_read(&mut self, block: BlockId) {
        let station = self.geometry.station(self.geometry.plane_of(block));
        self.reads_of_station[station.0 as usize] += 1;
    }

    pub(super) fn has_planted(&self, bug: PlantedBug) -> bool {
        self.options.planted == Some(bug)
    }

    /// Step 1: reads every metadata page of both regions.
    pub(super) fn read_metadata(&mut self) {
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

    /// Steps 2 to 4: the checkpoint, the log, and the blocks for which no checkpoint vouches.
    pub(super) fn fold(&mut self) -> (Fold, Option<u64>) {
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
        let mut entries: Vec<(Lpn, Entry)> = Vec::new();
        let mut trims: Vec<FoundTrim> = Vec::new();
        let mut epochs = EpochFold::default();
        for record in checkpoint.iter().flat_map(|n| self.groups[n].pages.values().flatten()) {
            match record {
                Record::Checkpoint { horizon: h, openings: o, maps } => {
                    (horizon, openings, self.maps) = (*h, *o, *maps);
                }
                Record::Open(block) => open.push(*block),
                Record::Mapping(Mapping { lpn, ppa, seq }) => entries.push((*lpn, Some((*ppa, *seq)))),
                Record::Gone(lpn) => entries.push((*lpn, None)),
                Record::MapPage { page, ppa, number } => _ = self.directory.insert(*page, (*ppa, *number)),
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
                Record::MapPage { page, ppa, number } => {
                    self.directory.insert(page, (ppa, number));
                    self.logged_pages.insert(page);
                }
                Record::Mapping(_) | Record::Gone(_) | Record::Checkpoint { .. } | Record::Open(_) => {}
            }
        }
        let mut fold = Fold::new(self.geometry.user_units, horizon);
        let trusted = self.classify(openings, &open);
        for mapping in self.mappings(entries) {
            let block = self.geometry.block_of(mapping.ppa).0;
            fold.checkpoint(mapping, trusted.get(block.0 as usize).copied().unwrap_or(false));
        }
        // In the order of their opening, so that of a survivor and its source the source is chosen: copies of an interrupted
        // collection are garbage, and no power cut costs a plane its free blocks.
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

    /// The mappings according to the map: the entries of the checkpoint, and the translation pages where there are any. An entry of
    /// the checkpoint is newer than a state of its page that was made before the checkpoint, and older than one that was made after
    /// it.
    fn mappings(&mut self, entries: Vec<(Lpn, Entry)>) -> Vec<Mapping> {
        let mapping = |(lpn, entry): (Lpn, Entry)| entry.map(|(ppa, seq)| Mapping { lpn, ppa, seq });
        if self.geometry.map_pages == 0 {
            return entries.into_iter().filter_map(mapping).collect();
        }
        for (page, (ppa, number)) in std::mem::take(&mut self.directory) {
            let at = self.geometry.page_of(ppa).0;
            self.note_read(at.block);
            let image = map_page_at(&self.media, &self.geometry, at);
            if let Some(image) = image.filter(|image| (image.page, image.number) == (page, number)) {
                self.directory.insert(page, (ppa, number));
                self.map_entries.insert(page, image.entries);
            }
        }
        let per_page = u64::from(self.geometry.map_entries);
        let mut pages = self.map_entries.clone();
        for (lpn, entry) in entries {
            let page = (lpn.0 / per_page) as u32;
            let is_taken_for_newer =
                self.has_planted(PlantedBug::MovedMapPageTakenForNewer) && self.logged_pages.contains(&page);
            let is_newer = self.directory.get(&page).is_some_and(|(_, number)| *number > self.maps);
            if is_newer || is_taken_for_newer {
                continue;
            }
            let of_page = pages.entry(page).or_insert_with(|| vec![None; per_page as usize]);
            if let Some(place) = of_page.get_mut((lpn.0 % per_page) as usize) {
                *place = entry;
            }
        }
        let units = pages
            .into_iter()
            .flat_map(|(page, entries)| (u64::from(page) * per_page..).map(Lpn).zip(entries));
        units.filter_map(mapping).collect()
    }

    /// Decides for which blocks the checkpoint vouches: those that were closed before it was taken and not opened since.
    ///
    /// Everything that an unfinished recovery wrote is a copy of data that are still in the save area or elsewhere on the medium,
    /// so its blocks are set aside: a recovery that is cut again and again takes the same blocks each time.
    fn classify(&mut self, openings: u64, open: &[BlockId]) -> Vec<bool> {
        let mut trusted = Vec::with_capacity(self.geometry.blocks() as usize);
        for block in (0..self.geometry.blocks()).map(BlockId) {
            self.note_read(block);
            let opened = self.media.opened(block).unwrap_or(0);
            // A block that became bad was emptied before; what can still be read from it is elsewhere too.
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

    /// Adds every version in a block for which no checkpoint vouches: from its summary, or page by page.
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
}
