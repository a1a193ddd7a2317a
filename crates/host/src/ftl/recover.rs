//! Recovery: what a power loss left on the medium becomes map and lines (open-channel §1.7, contract §8).
//!
//! A line with intact start and end metadata is read from these alone. Every other line is read page by page up to the first that was
//! never written; a torn page holds nothing that was promised. Of all versions of a unit the one with the largest sequence number
//! counts, a deallocation like a write. GC's copies have the number of what they copy; the original counts as long as it is there, so
//! that a line which took nothing but copies is free again, however often the power fails during GC.
//!
//! Where the device keeps back the last units of open chunks, these chunks are padded first, so that all of them can be read.
//!
//! Of each stream the members of complete epochs count, and those of the first one that is not. What is discarded stays discarded: a
//! record of it is durable before the FTL answers anything ([`order`](super::order)).
//!
//! Invariant: nothing is erased that a repeated recovery needs, so one that is cut off is simply repeated.

use super::collect::ranges_of;
use super::lines::LineId;
use super::map::Word;
use super::planted::PlantedHostBug;
use super::state::{FoundLine, FoundUnit, HostFtl, Recovery, TrimRecord};
use super::streams::newest;
use super::target::units_of;
use super::tasks::{Ask, Task};
use flashweir_core::command::Units;
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::{ChunkReport, ChunkState, OpenError};
use flashweir_core::{DeviceError, Done, Lpn, Op, Payload, Ppa};
use flashweir_ftl::geometry::PageAddr;
use flashweir_ftl::line_pages::{LineEnd, LineStart, OrderPage, TrimPage};
use flashweir_ftl::recovery::EpochFold;
use std::collections::{BTreeMap, BTreeSet};

/// Reads under way at most.
const READS_MAX: usize = 64;
/// Chunks that one report names.
const CHUNKS_AT_ONCE: u32 = 64;

impl Recovery {
    /// Begins with the first question.
    pub(super) fn begin(&mut self, ftl: &mut HostFtl) {
        self.lines = ftl.lines.ids().map(|_| FoundLine::default()).collect();
        match ftl.recent.is_needless() {
            true => self.begin_lines(ftl),
            false => self.waiting.push_back(Ask::Geometry),
        }
        self.go_on(ftl);
    }

    /// Asks for the start metadata of each line.
    fn begin_lines(&mut self, ftl: &HostFtl) {
        self.are_lines_read = true;
        self.waiting = ftl.lines.ids().map(Ask::Start).collect();
    }

    /// Begins to pad the chunks that are open, so that the device gives back what was written to them.
    fn pad(&mut self, ftl: &mut HostFtl, first: u32, chunks: &[ChunkReport]) {
        for (chunk, report) in (first..).zip(chunks) {
            if report.state == ChunkState::Open {
                self.reading += 1;
                let page = ftl.layout.flash.units_per_page;
                let units = ftl.config.cached_units.next_multiple_of(page).max(page);
                let end = report.units.min(report.pointer + units);
                let ppas = (report.pointer..end).map(|unit| Ppa(report.first.0 + u64::from(unit)));
                let ppas: Vec<Ppa> = ppas.collect();
                ftl.metrics_mut().padded_units += ppas.len() as u64;
                ftl.metrics_mut().programmed_units += ppas.len() as u64;
                let die = ftl.layout.die_of(ftl.layout.flash.page_of(report.first).0.block);
                let op = ftl.write(ppas, Vec::new(), Vec::new());
                ftl.send(op, die, Task::Recover(Ask::Pad { chunk }));
            }
        }
    }

    fn go_on(&mut self, ftl: &mut HostFtl) {
        while self.reading < READS_MAX
            && let Some(ask) = self.waiting.pop_front()
        {
            self.reading += 1;
            ftl.metrics_mut().recovery_reads += 1;
            let flash = &ftl.layout.flash;
            let page = |at: PageAddr| flash.units_of(at).collect::<Vec<_>>();
            let ppas = match ask {
                Ask::Geometry => {
                    ftl.send(Op::OpenGeometry, 0, Task::Recover(ask));
                    continue;
                }
                Ask::Chunks { first, count } => {
                    ftl.send(Op::ChunkReport { first, count }, 0, Task::Recover(ask));
                    continue;
                }
                Ask::Pad { .. } => unreachable!("padding follows a report at once"),
                Ask::Start(line) => page(PageAddr { block: ftl.lines.block(line, 0), page: 0 }),
                Ask::End(line, at) => page(ftl.lines.end_pages(line)[at]),
                Ask::Page(line, column, number) => {
                    page(PageAddr { block: ftl.lines.block(line, column), page: number })
                }
                Ask::Record(ppa, _) => vec![ppa],
            };
            ftl.read(&ppas, Task::Recover(ask));
        }
    }

    /// Takes an answer; returns whether the recovery has ended.
    pub(super) fn answered(
        &mut self,
        ftl: &mut HostFtl,
        ask: Ask,
        result: Result<Done, DeviceError>,
    ) -> bool {
        self.reading -= 1;
        match (ask, result) {
            (Ask::Geometry, Ok(Done::Geometry(geometry))) => {
                let all = geometry.groups * geometry.parallel_units * geometry.chunks;
                let part = |first| Ask::Chunks { first, count: CHUNKS_AT_ONCE.min(all - first) };
                self.waiting.extend((0..all).step_by(CHUNKS_AT_ONCE as usize).map(part));
            }
            (Ask::Chunks { first, .. }, Ok(Done::Chunks(chunks))) => self.pad(ftl, first, &chunks),
            // A chunk may go on behind a program that failed.
            (Ask::Pad { chunk }, Err(_)) => self.waiting.push_back(Ask::Chunks { first: chunk, count: 1 }),
            (Ask::Geometry | Ask::Chunks { .. } | Ask::Pad { .. }, _) => {}
            (ask, result) => self.take_read(ftl, ask, units_of(result)),
        }
        self.go_on(ftl);
        if self.reading == 0 && !self.are_lines_read {
            self.begin_lines(ftl);
            self.go_on(ftl);
        }
        let is_done = self.reading == 0;
        if is_done {
            self.build(ftl);
        }
        is_done
    }

    fn take_read(&mut self, ftl: &mut HostFtl, ask: Ask, result: Result<Units, DeviceError>) {
        match ask {
            Ask::Geometry | Ask::Chunks { .. } | Ask::Pad { .. } => {}
            Ask::Start(line) => {
                let start = result.ok().and_then(|units| LineStart::decode(bytes_of(units.data.first()?)?));
                match start.filter(|start| start.left_out.first() != Some(&0)) {
                    Some(start) => self.started(ftl, line, start),
                    None => self.scan(ftl, line),
                }
            }
            Ask::End(line, at) => {
                let units = result.map(|units| units.data).unwrap_or_default();
                let parts = units.iter().filter_map(|unit| LineEnd::decode(bytes_of(unit)?)).collect();
                let found = &mut self.lines[line.0 as usize];
                found.end.insert(at, parts);
                found.ends_left -= 1;
                if found.ends_left == 0 {
                    self.ended(ftl, line);
                }
            }
            Ask::Page(line, column, page) => self.page_read(ftl, line, [column, page], result),
            Ask::Record(ppa, seq) => {
                if let Some(page) = result.ok().as_ref().and_then(|units| bytes_of(units.data.first()?)) {
                    self.take_record(ppa, seq, page);
                }
            }
        }
    }

    /// Takes a record of deallocations or of streams; returns whether the page is one.
    fn take_record(&mut self, ppa: Ppa, seq: u64, page: &[u8]) -> bool {
        if let Some(trim) = TrimPage::decode(page) {
            self.trims.insert(ppa, (seq, trim.ranges));
        } else if let Some(order) = OrderPage::decode(page) {
            self.orders.push((ppa, order));
        } else {
            return false;
        }
        true
    }

    /// A line has intact start metadata.
    fn started(&mut self, ftl: &mut HostFtl, line: LineId, start: LineStart) {
        ftl.lines.found(line, Some(&start));
        let found = &mut self.lines[line.0 as usize];
        found.start = Some(start);
        found.ends_left = ftl.lines.end_pages(line).len();
        self.waiting.extend((0..found.ends_left).map(|at| Ask::End(line, at)));
    }

    /// All end metadata of a line was read, as far as there is any.
    fn ended(&mut self, ftl: &mut HostFtl, line: LineId) {
        let found = &mut self.lines[line.0 as usize];
        let number = found.start.as_ref().map(|start| start.line);
        let is_trusting = ftl.has_planted(PlantedHostBug::TornEndTrusted);
        let mut units: Vec<(Owner, u64)> = Vec::new();
        for part in found.end.values().flatten() {
            let fits = Some(part.line) == number && part.first as usize == units.len();
            if fits || is_trusting {
                units.extend(&part.units);
            }
        }
        let columns = ftl.lines.get(line).columns.len() as u32;
        let pages = columns * ftl.layout.flash.pages_per_block - ftl.layout.end_pages;
        let wanted = (pages * ftl.layout.flash.units_per_page) as usize;
        if units.len() != wanted && (units.is_empty() || !is_trusting) {
            return self.scan(ftl, line);
        }
        for (number, (owner, seq)) in units.into_iter().enumerate() {
            let ppa = ftl.lines.unit_at(line, number);
            found.units.push(FoundUnit { ppa, owner, seq, member: None });
            if owner == Owner::Meta && seq > 0 {
                self.waiting.push_back(Ask::Record(ppa, seq));
            }
        }
    }

    /// Reads a line page by page.
    fn scan(&mut self, ftl: &mut HostFtl, line: LineId) {
        let found = &mut self.lines[line.0 as usize];
        found.written = vec![0; ftl.layout.columns as usize];
        self.waiting.extend((0..ftl.layout.columns).map(|column| Ask::Page(line, column, 0)));
    }

    fn page_read(
        &mut self,
        ftl: &HostFtl,
        line: LineId,
        [column, page]: [u32; 2],
        result: Result<Units, DeviceError>,
    ) {
        match result {
            Err(DeviceError::NotWritten { .. }) => return,
            // The last pages of a chunk that goes on are what the recovery has padded it with.
            Err(DeviceError::Open { what: OpenError::TooRecent, .. }) => {}
            Err(_) => self.lines[line.0 as usize].torn.push(column),
            Ok(Units { data, records, .. }) => {
                let at = PageAddr { block: ftl.lines.block(line, column), page };
                for (unit, record) in (0..).zip(&records) {
                    let ppa = ftl.layout.flash.ppa(at, unit);
                    let content = data.get(unit as usize).and_then(bytes_of);
                    let is_meta = record.owner == Owner::Meta;
                    let is_record =
                        is_meta && content.is_some_and(|content| self.take_record(ppa, record.seq, content));
                    let found = &mut self.lines[line.0 as usize];
                    if is_meta && !is_record && page == 0 {
                        // A block that could not be erased may hold an older one.
                        let known = found.start.as_ref().map_or(0, |start| start.line);
                        let start = content.and_then(LineStart::decode);
                        let is_first =
                            |start: &LineStart| (0..).find(|at| !start.left_out.contains(at)) == Some(column);
                        found.start = start
                            .filter(|start| start.line > known && is_first(start))
                            .or(found.start.take());
                    }
                    let OobRecord { owner, seq, member } = *record;
                    found.units.push(FoundUnit { ppa, owner, seq, member });
                }
            }
        }
        self.lines[line.0 as usize].written[column as usize] = page + 1;
        if page + 1 < ftl.layout.flash.pages_per_block {
            self.waiting.push_back(Ask::Page(line, column, page + 1));
        }
    }

    /// Everything was read.
    fn build(&mut self, ftl: &mut HostFtl) {
        let mut resumed: BTreeMap<usize, LineId> = BTreeMap::new();
        for id in ftl.lines.ids() {
            let found = &self.lines[id.0 as usize];
            if !found.written.is_empty() {
                let is_empty = found.written.iter().all(|&pages| pages == 0);
                if is_empty {
                    // An erase of it may have been interrupted.
                    ftl.lines.get_mut(id).is_clean = false;
                    continue;
                }
                ftl.lines.found(id, found.start.as_ref());
                self.forget_left_out(ftl, id);
                let found = &self.lines[id.0 as usize];
                let group = ftl.lines.group_of(id);
                let is_newer = |other: &LineId| ftl.lines.get(*other).number < ftl.lines.get(id).number;
                if found.start.is_some() && resumed.get(&group).is_none_or(is_newer) {
                    resumed.insert(group, id);
                }
            }
        }
        let discarded = self.find_order(ftl);
        self.find_versions(ftl, &discarded);
        for &id in resumed.values() {
            let found = &self.lines[id.0 as usize];
            let columns = ftl.lines.get(id).columns.clone();
            let per_block = ftl.layout.flash.pages_per_block;
            let next = |&column: &u32| {
                if found.torn.contains(&column) { per_block } else { found.written[column as usize] }
            };
            let next: Vec<u32> = columns.iter().map(next).collect();
            let mut owners =
                vec![(Owner::Pad, 0); columns.len() * ftl.layout.flash.units_per_block() as usize];
            for &FoundUnit { ppa, owner, seq, .. } in &found.units {
                if let Some(number) = ftl.lines.unit_number(ppa) {
                    owners[number] = (owner, seq);
                }
            }
            // Where pages are missing nothing can describe the line.
            if !found.torn.is_empty() {
                owners.clear();
            }
            ftl.lines.resume(id, next, owners);
        }
        ftl.lines.free_empty();
    }

    /// Forgets what is in blocks that a line leaves out: they were not erased when it was opened, all of it was superseded by then, and the
    /// line's end metadata will not have it.
    fn forget_left_out(&mut self, ftl: &HostFtl, id: LineId) {
        let found = &mut self.lines[id.0 as usize];
        if found.start.as_ref().is_none_or(|start| start.left_out.is_empty()) {
            return;
        }
        let is_of_line = |ppa: Ppa| ftl.lines.unit_number(ppa).is_some();
        let is_here = |ppa: Ppa| ftl.lines.line_of(ppa).0 == id;
        found.units.retain(|unit| is_of_line(unit.ppa));
        self.trims.retain(|&ppa, _| !is_here(ppa) || is_of_line(ppa));
        self.orders.retain(|&(ppa, _)| !is_here(ppa) || is_of_line(ppa));
    }

    /// Finds which members of streams count; returns the numbers of versions that are dead. If members were found that anyone may count
    /// again, a record of that is wanted.
    fn find_order(&self, ftl: &mut HostFtl) -> BTreeSet<u64> {
        let (known, places) = newest(&self.orders).unwrap_or_default();
        places.iter().for_each(|&ppa| ftl.lines.set_valid(ppa));
        ftl.orders.places = places;
        let is_new = |unit: &&FoundUnit| unit.member.is_some() && unit.seq > known.horizon;
        let mut fold = EpochFold::default();
        known.complete.iter().for_each(|&(stream, epoch)| fold.complete(stream, epoch));
        for unit in self.lines.iter().flat_map(|line| &line.units).filter(is_new) {
            fold.found(unit.member.as_ref().expect("a member"), unit.seq, 0);
        }
        let limits = fold.by_count();
        let was_discarded = |seq: u64| {
            let behind = known.discarded.partition_point(|&(first, _)| first <= seq);
            known.discarded[..behind].last().is_some_and(|&(first, count)| seq - first < count)
        };
        let (mut discarded, mut seq_max, mut has_new) = (BTreeSet::new(), 0, !known.complete.is_empty());
        for (id, line) in ftl.lines.ids().zip(&self.lines) {
            for unit in &line.units {
                seq_max = seq_max.max(unit.seq);
                let is_new = is_new(&unit);
                has_new |= is_new;
                let counts = unit.member.is_none_or(|member| limits.admit(&member));
                if is_new && !counts || was_discarded(unit.seq) {
                    discarded.insert(unit.seq);
                }
                if is_new {
                    // A repeated recovery counts it.
                    ftl.lines.get_mut(id).unstable = 1;
                }
            }
        }
        ftl.orders.horizon = if has_new { seq_max } else { known.horizon };
        ftl.orders.discarded = ranges_of(discarded.iter().copied());
        (ftl.orders.is_wanted, ftl.orders.is_urgent) = (has_new, has_new);
        discarded
    }

    /// Finds the newest version of each unit.
    fn find_versions(&mut self, ftl: &mut HostFtl, discarded: &BTreeSet<u64>) {
        let mut best = vec![(0, 0, Word::Empty); ftl.layout.user_units as usize];
        let mut offer = |lpn: u64, seq: u64, line: u64, word: Word| {
            if let Some(best) = best.get_mut(lpn as usize)
                && (seq > best.0 || seq == best.0 && line < best.1)
            {
                *best = (seq, line, word);
            }
        };
        for id in ftl.lines.ids() {
            let number = ftl.lines.get(id).age();
            for &FoundUnit { ppa, owner, seq, .. } in &self.lines[id.0 as usize].units {
                ftl.seq = ftl.seq.max(seq);
                if let Owner::Lpn(lpn) = owner
                    && !discarded.contains(&seq)
                {
                    offer(lpn.0, seq, number, Word::Place(ppa));
                }
            }
        }
        ftl.first_seq = ftl.seq;
        self.trims.retain(|_, (seq, _)| !discarded.contains(seq));
        for (&ppa, (seq, ranges)) in &self.trims {
            let number = ftl.lines.get(ftl.lines.line_of(ppa).0).age();
            for lpn in ranges.iter().flat_map(|&(first, count)| first..first.saturating_add(count)) {
                offer(lpn, *seq, number, Word::Trimmed(ppa));
            }
        }
        for (lpn, (_, _, word)) in (0..).map(Lpn).zip(best) {
            ftl.map.exchange(lpn, word);
            match word {
                Word::Place(ppa) => ftl.lines.set_valid(ppa),
                Word::Trimmed(ppa) => {
                    let (seq, ranges) = &self.trims[&ppa];
                    let record = || TrimRecord { seq: *seq, live: 0, ranges: ranges.clone() };
                    ftl.trims.entry(ppa).or_insert_with(record).live += 1;
                }
                Word::Empty | Word::Cached(_) => {}
            }
        }
        let records: Vec<Ppa> = ftl.trims.keys().copied().collect();
        records.into_iter().for_each(|ppa| ftl.lines.set_valid(ppa));
    }
}

/// The bytes of a content that has some.
fn bytes_of(payload: &Payload) -> Option<&[u8]> {
    match payload {
        Payload::Bytes(bytes) => Some(bytes),
        Payload::Zero | Payload::Tag(_) => None,
    }
}
