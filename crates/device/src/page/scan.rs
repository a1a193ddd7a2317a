//! The reading half of a recovery: metadata pages, blocks for which no checkpoint vouches, and the fold over both.
//!
//! Deliberately absent: writing, which [`super::recover`] plans.

use super::frontier::page_of;
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
use flashweir_ftl::recovery::{Change, Claim, ContentId, EpochFold, Fold, Mapping, Member, ShareRecord};
use std::collections::{BTreeMap, BTreeSet};

/// Distance by which the sequence numbers and block openings of a new boot exceed those that were found: more than can have been
/// given to versions that cannot be read.
pub(super) const BOOT_GAP: u64 = 1 << 24;

/// A metadata group that was found.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    pub(super) region: usize,
    pub(super) total: u32,
    pub(super) boot: u32,
    pub(super) pages: BTreeMap<u32, Vec<Record>>,
}

/// A unit as a summary names it: its number in the block, owner, sequence number, place in an epoch.
type SummaryUnit = (u32, Owner, u64, Option<Member>);

/// A unit that was found on the medium.
#[derive(Debug)]
struct FoundUnit {
    owner: Owner,
    seq: u64,
    ppa: Ppa,
    member: Option<Member>,
}

/// Units of full blocks, by block and number of its opening.
type Summaries = BTreeMap<(BlockId, u64), Vec<SummaryUnit>>;

/// The changes of the map that records name, each with its place in an epoch.
#[derive(Debug, Default)]
struct Changes {
    list: Vec<(Change, Option<Member>)>,
    /// The SHARE whose claims are being read: sequence number, their number, place in an epoch.
    share: Option<(u64, u64, Option<Member>)>,
    claims: Vec<Claim>,
}

impl Changes {
    /// Reads a record if it is one of a change; returns false for others. `member_of_change` says that a place in an epoch would be
    /// that of the last change.
    fn read(&mut self, record: &Record, member_of_change: bool) -> bool {
        match record {
            Record::Trim(trim) => {
                self.end_share(false);
                self.list.push((Change::Trim(*trim), None));
            }
            Record::Share { seq, claims } => {
                self.end_share(false);
                self.share = Some((*seq, *claims, None));
            }
            Record::Claim(claim) => self.claims.push(*claim),
            Record::At(place) => {
                if let Some(claim) = self.claims.last_mut() {
                    claim.place = Some(*place);
                }
            }
            Record::Member(member) if member_of_change => match (&mut self.share, self.list.last_mut()) {
                (Some(share), _) => share.2 = Some(*member),
                (None, Some(last)) => last.1 = Some(*member),
                (None, None) => {}
            },
            _ => return false,
        }
        true
    }

    /// Adds the SHARE whose claims were read if all of them are there, or in any case.
    fn end_share(&mut self, any: bool) {
        let claims = std::mem::take(&mut self.claims);
        if let Some((seq, number, member)) = self.share.take()
            && (claims.len() as u64 == number || any)
        {
            self.list.push((Change::Share(ShareRecord { seq, claims: claims.into() }), member));
        }
    }
}

/// The record before a record that describes its subject further.
enum Before {
    Nothing,
    Change,
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
        let mut contents: BTreeMap<(Lpn, u64), ContentId> = BTreeMap::new();
        let mut changes = Changes::default();
        let mut epochs = EpochFold::default();
        for record in checkpoint.iter().flat_map(|n| self.groups[n].pages.values().flatten()) {
            if changes.read(record, true) {
                continue;
            }
            match record {
                Record::Checkpoint { horizon: h, openings: o, maps } => {
                    (horizon, openings, self.maps) = (*h, *o, *maps);
                }
                Record::Open(block) => open.push(*block),
                Record::Mapping(Mapping { lpn, ppa, seq }) => entries.push((*lpn, Some((*ppa, *seq)))),
                Record::Content(content) => {
                    if let Some((lpn, Some((_, seq)))) = entries.last() {
                        contents.insert((*lpn, *seq), *content);
                    }
                }
                Record::Gone(lpn) => entries.push((*lpn, None)),
                Record::MapPage { page, ppa, number } => _ = self.directory.insert(*page, (*ppa, *number)),
                Record::Complete { stream, epoch } => epochs.complete(*stream, *epoch),
                Record::Summary { .. } | Record::Unit { .. } => {}
                Record::Trim(_)
                | Record::Share { .. }
                | Record::Claim(_)
                | Record::At(_)
                | Record::Member(_) => {
                    unreachable!("it is one of a change")
                }
            }
        }
        changes.end_share(false);
        self.openings_max = openings;
        let region = checkpoint.map_or(0, |n| self.groups[&n].region);
        let believe_torn = self.has_planted(PlantedBug::TornLogGroup);
        let believe_half = self.has_planted(PlantedBug::HalfShareRecovered);
        let log: Vec<Record> = self
            .groups
            .iter()
            .filter(|(n, g)| g.kind == GroupKind::Log && g.region == region && **n > checkpoint.unwrap_or(0))
            .filter(|(_, g)| complete(g) || believe_torn || believe_half)
            .flat_map(|(_, g)| g.pages.values().flatten().copied())
            .collect();
        let mut summaries: Summaries = BTreeMap::new();
        let mut before = Before::Nothing;
        for record in log {
            if changes.read(&record, matches!(before, Before::Change)) {
                before = Before::Change;
                continue;
            }
            match record {
                Record::Summary { block, opened, .. } => {
                    before = Before::Unit((block, opened));
                    summaries.insert((block, opened), Vec::new());
                }
                Record::Unit { unit, lpn, seq, hidden } => {
                    if let Before::Unit(key) = before
                        && let Some(units) = summaries.get_mut(&key)
                    {
                        let owner = if hidden { Owner::Vpid(lpn.0) } else { Owner::Lpn(lpn) };
                        units.push((unit, owner, seq, None));
                    }
                }
                Record::Member(member) => {
                    if let Before::Unit(key) = before
                        && let Some(unit) = summaries.get_mut(&key).and_then(|units| units.last_mut())
                    {
                        unit.3 = Some(member);
                    }
                }
                Record::Complete { stream, epoch } => epochs.complete(stream, epoch),
                Record::MapPage { page, ppa, number } => {
                    self.directory.insert(page, (ppa, number));
                    self.logged_pages.insert(page);
                }
                Record::Mapping(_) | Record::Content(_) | Record::Gone(_) => {}
                Record::Checkpoint { .. } | Record::Open(_) => {}
                Record::Trim(_) | Record::Share { .. } | Record::Claim(_) | Record::At(_) => {
                    unreachable!("it is one of a change")
                }
            }
        }
        changes.end_share(believe_half);
        if let Some(save) = self.media.save_area() {
            let trims = save.trims.iter().map(|trim| Change::Trim(*trim));
            let saved = trims.chain(save.shares.iter().cloned().map(Change::Share));
            // An interrupted recovery may have left a newer checkpoint, which has them, and what followed them.
            let uncovered = saved.filter(|change| change.seq() > horizon);
            changes.list.extend(uncovered.map(|change| (change, None)));
        }
        let mut fold = Fold::new(self.geometry.user_units, horizon);
        for (&(lpn, seq), &content) in &contents {
            fold.claim(Claim { lpn, content, place: None }, seq);
        }
        for (change, _) in &changes.list {
            if let Change::Share(share) = change {
                share.claims.iter().for_each(|claim| fold.claim(*claim, share.seq));
            }
        }
        for claim in changes.list.iter().flat_map(|(change, _)| change.claims()) {
            // GC moves contents, and a block that became bad then keeps what was moved.
            let may_be_there = |place: &Ppa| !self.media.is_bad(self.geometry.block_of(*place).0);
            if let Some(place) = claim.place.filter(may_be_there)
                && self.content_at(place) == Some(claim.content)
            {
                fold.found_content(claim.content, place);
            }
        }
        let trusted = self.classify(openings, &open);
        for mapping in self.mappings(entries) {
            let block = self.geometry.block_of(mapping.ppa).0;
            let is_trusted = trusted.get(block.0 as usize).copied().unwrap_or(false);
            let content = is_trusted.then(|| self.content_of(&mapping, &contents, &fold)).flatten();
            fold.checkpoint(mapping, content);
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
        for unit in &found {
            if let (Some(member), Owner::Lpn(lpn)) = (unit.member.filter(|_| unit.seq > horizon), unit.owner)
            {
                epochs.found(&member, unit.seq, lpn.0);
                self.counted.insert(self.geometry.block_of(unit.ppa).0);
            }
        }
        for (change, member) in &changes.list {
            if let Some(member) = member.filter(|_| change.seq() > horizon) {
                epochs.found(&member, change.seq(), u64::MAX);
            }
        }
        let limits = match self.config.order.policy {
            PersistPolicy::Transactional => epochs.by_record(),
            _ => epochs.by_count(),
        };
        let unchecked = self.has_planted(PlantedBug::OrderUnchecked);
        for FoundUnit { owner, seq, ppa, member } in found {
            fold.found_content(ContentId::new(owner, seq), ppa);
            let Owner::Lpn(lpn) = owner else { continue };
            match member.filter(|_| seq > horizon) {
                Some(member) if !limits.admit(&member) && !unchecked => fold.discarded(seq),
                _ => fold.found(Mapping { lpn, ppa, seq }),
            }
        }
        fold.settle_claims();
        for (change, _) in changes.list {
            match change {
                Change::Trim(trim) => fold.trim(trim),
                Change::Share(share) => fold.discarded(share.seq),
            }
        }
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

    /// The content of the unit of a mapping: what the checkpoint says, else the page's own. If a SHARE of the log gave the page this
    /// version, the unit may have either content, and is read.
    fn content_of(
        &mut self,
        mapping: &Mapping,
        contents: &BTreeMap<(Lpn, u64), ContentId>,
        fold: &Fold,
    ) -> Option<ContentId> {
        match contents.get(&(mapping.lpn, mapping.seq)) {
            Some(content) => Some(*content),
            None if fold.is_claimed(mapping.lpn, mapping.seq) => self.content_at(mapping.ppa),
            None => Some(mapping.own_content()),
        }
    }

    /// Reads what the out-of-band record of a unit says.
    fn content_at(&mut self, place: Ppa) -> Option<ContentId> {
        let at = self.geometry.page_of(place).0;
        self.note_read(at.block);
        let is_good = self.media.page_state(at) == PageState::Good;
        let record = self.media.oob(place).filter(|_| is_good)?;
        Some(ContentId::new(record.0, record.1))
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
        found: &mut Vec<FoundUnit>,
    ) {
        let first = self.geometry.ppa(PageAddr { block, page: 0 }, 0).0;
        let believed = match self.has_planted(PlantedBug::StaleSummary) {
            true => summaries.range((block, 0)..=(block, opened)).next_back().map(|(_, units)| units),
            false => summaries.get(&(block, opened)),
        };
        if let Some(units) = believed {
            let found_unit = |&(unit, owner, seq, member): &SummaryUnit| FoundUnit {
                owner,
                seq,
                ppa: Ppa(first + u64::from(unit)),
                member,
            };
            found.extend(units.iter().map(found_unit));
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
                if let Some((owner, seq)) = self.media.oob(ppa)
                    && page_of(owner).is_some()
                {
                    found.push(FoundUnit { owner, seq, ppa, member: self.media.member(ppa) });
                }
            }
        }
    }
}
