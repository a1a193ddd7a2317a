//! The medium on files: each change becomes valid by one write.
//!
//! Invariants: contents are written before the record that names them, so a reader that sees the record sees the contents;
//! a record is written once between two erases of its block; an erase is one write of a slot that was not in use.

use super::format::{
    ContentRecord, Format, Found, JournalRecord, PageContent, PageRecord, SLOT_BYTES, Sums, UnitRecord,
    decode_page, encode_journal, encode_page, encode_slot, page_record_bytes,
};
use super::host::{Host, Part};
use super::torn::Torn;
use flashweir_core::Payload;
use flashweir_device::Geometry;
use flashweir_device::flash::{BlockHealth, PageImage, SaveArea, Saved, Store, StoreError, Stored};
use flashweir_device::geometry::PageAddr;
use flashweir_ftl::BlockId;
use std::io;
use std::sync::Arc;

/// Layout of the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) blocks: u32,
    pub(crate) pages_per_block: u32,
    pub(crate) units_per_page: u32,
    pub(crate) unit_bytes: u64,
}

impl Layout {
    pub(crate) fn new(geometry: &Geometry, format: Format) -> Self {
        Self {
            format,
            blocks: geometry.blocks(),
            pages_per_block: geometry.pages_per_block,
            units_per_page: geometry.units_per_page,
            unit_bytes: geometry.unit_bytes,
        }
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.units_per_page) * self.unit_bytes
    }

    pub(crate) fn record_bytes(&self) -> usize {
        page_record_bytes(self.format, self.units_per_page)
    }

    /// The file of the pages' records.
    pub(crate) fn oob(&self) -> Part {
        Part::Oob(self.format)
    }

    pub(crate) fn page(&self, at: PageAddr) -> u64 {
        u64::from(at.block.0) * u64::from(self.pages_per_block) + u64::from(at.page)
    }

    pub(crate) fn slots_offset(block: BlockId) -> u64 {
        u64::from(block.0) * 2 * SLOT_BYTES as u64
    }

    /// Lengths of all files of a volume as it is made.
    pub(crate) fn lens(&self) -> [u64; 5] {
        let pages = u64::from(self.blocks) * u64::from(self.pages_per_block);
        let slots = u64::from(self.blocks) * 2 * SLOT_BYTES as u64;
        [slots, pages * self.record_bytes() as u64, pages * self.page_bytes(), 0, 0]
    }

    /// Reads a unit of a page that its block's erases say is there; the reason if that cannot be.
    pub(crate) fn read_unit(
        &self,
        host: &dyn Host,
        at: PageAddr,
        unit: u32,
        erases: u32,
    ) -> Result<Payload, String> {
        let failed = |part: Part, error: io::Error| format!("{}: {error}", part.name());
        let mut bytes = vec![0; self.record_bytes()];
        let offset = self.page(at) * bytes.len() as u64;
        host.read_at(self.oob(), offset, &mut bytes).map_err(|error| failed(self.oob(), error))?;
        let record = match decode_page(self.format, &bytes, self.page(at), erases, self.units_per_page) {
            Found::Whole(record) if record.erases == erases => record,
            _ => return Err("oob: not the record that was there".into()),
        };
        let PageContent::Units(units) = record.state else { return Err("oob: unreadable".into()) };
        match units[unit as usize].content {
            ContentRecord::Zero => Ok(Payload::Zero),
            ContentRecord::Tag(tag) => Ok(Payload::Tag(tag)),
            ContentRecord::Bytes { len, sum } => {
                let within = u64::from(unit) * self.unit_bytes;
                if within + u64::from(len) > self.page_bytes() {
                    return Err("oob: a content longer than its page".into());
                }
                let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len as usize).collect();
                let buffer = Arc::get_mut(&mut bytes).expect("it is not shared yet");
                let offset = self.page(at) * self.page_bytes() + within;
                host.read_at(Part::Data, offset, buffer).map_err(|error| failed(Part::Data, error))?;
                match sum.is_of(&bytes) {
                    true => Ok(Payload::Bytes(bytes)),
                    false => Err("data: wrong checksum".into()),
                }
            }
        }
    }
}

/// Which journal counts, and how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalEnd {
    pub(crate) which: usize,
    pub(crate) epoch: u64,
    pub(crate) len: u64,
}

/// The medium of one volume on files.
#[derive(Debug)]
pub(crate) struct FileStore {
    host: Box<dyn Host>,
    layout: Layout,
    sums: Sums,
    /// Changes that each block has seen.
    changes: Vec<u32>,
    journal: JournalEnd,
    /// Length of the journal at which a new one begins.
    journal_bytes_max: u64,
    bytes: Vec<u8>,
    record: Vec<u8>,
    /// Units that could not be read, with the reason.
    damage: Vec<(PageAddr, u32, String)>,
}

/// Most damaged units that are remembered.
const DAMAGE_MAX: usize = 1000;

impl FileStore {
    /// `buffer_bytes` is the most that the capacitor protects.
    pub(crate) fn new(
        host: Box<dyn Host>,
        (layout, sums): (Layout, Sums),
        changes: Vec<u32>,
        journal: JournalEnd,
        buffer_bytes: u64,
    ) -> Self {
        assert_eq!(layout.format, Format::Two, "older formats are read only");
        let record = vec![0; layout.record_bytes()];
        let journal_bytes_max = (4 * buffer_bytes).max(16 << 10);
        let (bytes, damage) = (Vec::new(), Vec::new());
        Self { host, layout, sums, changes, journal, journal_bytes_max, bytes, record, damage }
    }

    /// Writes the records that every block begins with.
    pub(crate) fn format(&mut self, health: impl Fn(BlockId) -> BlockHealth) -> Stored {
        let mut slots = Vec::with_capacity(self.changes.len() * 2 * SLOT_BYTES);
        for block in (0..self.layout.blocks).map(BlockId) {
            slots.extend_from_slice(&encode_slot(block.0, 0, health(block)));
            slots.extend_from_slice(&[0; SLOT_BYTES]);
        }
        write(&mut *self.host, Part::Blocks, 0, &slots)
    }

    pub(crate) fn host(&mut self) -> &mut dyn Host {
        &mut *self.host
    }

    /// Pages that could not be read so far.
    pub(crate) fn damage(&self) -> &[(PageAddr, u32, String)] {
        &self.damage
    }

    /// Forgets them.
    pub(crate) fn forget_damage(&mut self) {
        self.damage.clear();
    }

    /// Empties the journal of which nothing counts any more.
    pub(crate) fn drop_old_journal(&mut self) -> io::Result<()> {
        self.host.clear(Part::Journal(self.journal.which ^ 1))
    }

    /// Finishes what an interrupted write left, so that the next one is the only one again.
    pub(crate) fn heal(&mut self, torn: Torn) -> Stored {
        match torn {
            Torn::Block(block, health) => self.change(block, health),
            Torn::Page(at, erases, opened) => self.spoil(at, erases, opened, at.page),
        }
    }

    fn change(&mut self, block: BlockId, health: BlockHealth) -> Stored {
        let change = &mut self.changes[block.0 as usize];
        *change += 1;
        let slot = encode_slot(block.0, *change, health);
        let offset = Layout::slots_offset(block) + u64::from(*change & 1) * SLOT_BYTES as u64;
        write(&mut *self.host, Part::Blocks, offset, &slot)
    }

    fn put_record(&mut self, at: PageAddr, record: &PageRecord) -> Stored {
        encode_page(record, &mut self.record);
        let offset = record.page * self.record.len() as u64;
        debug_assert_eq!(self.layout.page(at), record.page);
        write(&mut *self.host, self.layout.oob(), offset, &self.record)
    }
}

fn write(host: &mut dyn Host, part: Part, offset: u64, bytes: &[u8]) -> Stored {
    host.write_at(part, offset, bytes)
        .map_err(|error| StoreError { what: format!("{} cannot be written", part.name()), error })
}

impl Store for FileStore {
    fn program(&mut self, page: &PageImage<'_>) -> Stored {
        let number = self.layout.page(page.at);
        let first = number * self.layout.page_bytes();
        let mut units = Vec::with_capacity(page.units.len());
        // Contents that lie side by side go into one write.
        let mut from = first;
        self.bytes.clear();
        for (unit, at) in page.units.iter().zip((first..).step_by(self.layout.unit_bytes as usize)) {
            let content = ContentRecord::of(&unit.payload, self.sums);
            units.push(UnitRecord { owner: unit.owner, seq: unit.seq, member: unit.member, content });
            let (ContentRecord::Bytes { .. }, Payload::Bytes(bytes)) = (content, &unit.payload) else {
                continue;
            };
            if at != from + self.bytes.len() as u64 {
                if !self.bytes.is_empty() {
                    write(&mut *self.host, Part::Data, from, &self.bytes)?;
                    self.bytes.clear();
                }
                from = at;
            }
            self.bytes.extend_from_slice(bytes);
        }
        if !self.bytes.is_empty() {
            write(&mut *self.host, Part::Data, from, &self.bytes)?;
        }
        let state = PageContent::Units(units);
        let record = PageRecord { page: number, opened: page.opened, erases: page.erases, state };
        self.put_record(page.at, &record)
    }

    fn spoil(&mut self, at: PageAddr, erases: u32, opened: u64, lost_from: u32) -> Stored {
        let state = PageContent::Unreadable { lost_from };
        self.put_record(at, &PageRecord { page: self.layout.page(at), opened, erases, state })
    }

    fn erase(&mut self, block: BlockId, health: BlockHealth) -> Stored {
        self.change(block, health)?;
        let bytes = u64::from(self.layout.pages_per_block) * self.layout.page_bytes();
        self.host.release(Part::Data, u64::from(block.0) * bytes, bytes);
        Ok(())
    }

    fn mark(&mut self, block: BlockId, health: BlockHealth) -> Stored {
        self.change(block, health)
    }

    fn read(&mut self, at: PageAddr, unit: u32, erases: u32) -> Option<Payload> {
        match self.layout.read_unit(&*self.host, at, unit, erases) {
            Ok(payload) => Some(payload),
            Err(reason) => {
                if self.damage.len() < DAMAGE_MAX {
                    self.damage.push((at, unit, reason));
                }
                None
            }
        }
    }

    fn journal(&mut self, entries: &[Saved]) -> Stored<bool> {
        self.bytes.clear();
        for entry in entries {
            let record = JournalRecord::Saved(entry.clone());
            encode_journal(self.journal.epoch, &record, self.sums, &mut self.bytes);
        }
        write(&mut *self.host, Part::Journal(self.journal.which), self.journal.len, &self.bytes)?;
        self.journal.len += self.bytes.len() as u64;
        Ok(self.journal.len > self.journal_bytes_max)
    }

    fn begin_journal(&mut self, area: &SaveArea) -> Stored {
        let epoch = self.journal.epoch + 1;
        self.bytes.clear();
        let mut put = |record: JournalRecord| encode_journal(epoch, &record, self.sums, &mut self.bytes);
        put(JournalRecord::Begin);
        for (lpn, seq, payload) in &area.units {
            put(JournalRecord::Saved(Saved::Unit(*lpn, *seq, payload.clone())));
        }
        area.trims.iter().for_each(|trim| put(JournalRecord::Saved(Saved::Trim(*trim))));
        area.shares.iter().for_each(|share| put(JournalRecord::Saved(Saved::Share(share.clone()))));
        put(JournalRecord::Complete);
        let which = self.journal.which ^ 1;
        let part = Part::Journal(which);
        self.host
            .clear(part)
            .map_err(|error| StoreError { what: format!("{} cannot be written", part.name()), error })?;
        write(&mut *self.host, part, 0, &self.bytes)?;
        self.journal = JournalEnd { which, epoch, len: self.bytes.len() as u64 };
        self.bytes = Vec::new();
        Ok(())
    }
}
