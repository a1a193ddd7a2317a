//! Pages of a host FTL's own on the medium: start and end metadata of lines, deallocations, and the order of streams
//! (open-channel §5.4, open-channel §5.8).
//!
//! Invariant: a page that is torn, of another format or of another line is not read; each page says which line it belongs to and
//! carries a checksum.

use crate::sealed::{Fields, Frame};
use flashweir_core::command::StreamId;
use flashweir_core::oob::{OobRecord, Owner};

const VERSION: u16 = 1;
/// Magic, version, size of an item (for alignment), items, sequence number of the line, first item, checksum.
const HEADER_BYTES: usize = 32;

const fn frame(magic: &[u8; 4], item_bytes: usize) -> Frame {
    Frame {
        magic: u32::from_le_bytes(*magic),
        version: VERSION,
        header_bytes: HEADER_BYTES,
        count_at: 8,
        item_bytes,
    }
}

/// Start metadata: the planes whose blocks the line leaves out.
const START: Frame = frame(b"FWls", 4);
/// End metadata: owner and sequence number of each unit of the line.
const END: Frame = frame(b"FWle", 16);
/// Ranges of deallocated units.
const TRIM: Frame = frame(b"FWlt", 16);
/// What a recovery knows of streams.
const ORDER: Frame = frame(b"FWlo", 16);

fn page(frame: &Frame, line: u64, first: u32, items: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut page = frame.begin(items);
    page.extend_from_slice(&(frame.item_bytes as u16).to_le_bytes());
    page.extend_from_slice(&(items as u32).to_le_bytes());
    page.extend_from_slice(&line.to_le_bytes());
    page.extend_from_slice(&first.to_le_bytes());
    page.resize(HEADER_BYTES, 0);
    write(&mut page);
    frame.seal(&mut page);
    page
}

/// The two words of an item.
fn pair(fields: Fields<'_>, nth: usize) -> Option<(u64, u64)> {
    let at = HEADER_BYTES + 16 * nth;
    Some((fields.u64_at(at)?, fields.u64_at(at + 8)?))
}

fn push_pair(page: &mut Vec<u8>, one: u64, other: u64) {
    page.extend_from_slice(&one.to_le_bytes());
    page.extend_from_slice(&other.to_le_bytes());
}

/// Start metadata of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineStart {
    /// Number of the line's opening, counted over all lines of all groups.
    pub line: u64,
    /// Positions of the blocks that the line leaves out, among those of its group.
    pub left_out: Vec<u32>,
}

impl LineStart {
    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        page(&START, self.line, 0, self.left_out.len(), |page| {
            page.extend(self.left_out.iter().flat_map(|position| position.to_le_bytes()));
        })
    }

    /// Decodes a page; `None` if it is not an intact one.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (fields, count) = START.open(page)?;
        let item = |nth| fields.u32_at(HEADER_BYTES + 4 * nth);
        Some(Self { line: fields.u64_at(12)?, left_out: (0..count).map(item).collect::<Option<_>>()? })
    }

    /// Most blocks that can be left out, in a unit of this size.
    pub fn left_out_max(unit_bytes: usize) -> usize {
        unit_bytes.saturating_sub(HEADER_BYTES) / START.item_bytes
    }
}

/// A part of a line's end metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineEnd {
    /// Number of the line's opening.
    pub line: u64,
    /// Number of the first unit described.
    pub first: u32,
    /// Owner and sequence number of each.
    pub units: Vec<(Owner, u64)>,
}

impl LineEnd {
    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        page(&END, self.line, self.first, self.units.len(), |page| {
            for (owner, seq) in &self.units {
                push_pair(page, owner.pack(), *seq);
            }
        })
    }

    /// Decodes a page; `None` if it is not an intact one.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (fields, count) = END.open(page)?;
        let item = |nth| pair(fields, nth).map(|(owner, seq)| (Owner::unpack(owner), seq));
        let units = (0..count).map(item).collect::<Option<_>>()?;
        Some(Self { line: fields.u64_at(12)?, first: fields.u32_at(20)?, units })
    }

    /// Units that one page of this size describes.
    pub fn units_max(unit_bytes: usize) -> usize {
        unit_bytes.saturating_sub(HEADER_BYTES) / END.item_bytes
    }
}

/// Deallocated ranges; the record beside the page has their sequence number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrimPage {
    /// First unit and number of units of each range.
    pub ranges: Vec<(u64, u64)>,
}

impl TrimPage {
    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        page(&TRIM, 0, 0, self.ranges.len(), |page| {
            for (first, count) in &self.ranges {
                push_pair(page, *first, *count);
            }
        })
    }

    /// Decodes a page; `None` if it is not an intact one.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (fields, count) = TRIM.open(page)?;
        let item = |nth| pair(fields, nth);
        Some(Self { ranges: (0..count).map(item).collect::<Option<_>>()? })
    }

    /// Ranges for which a page of this size has room.
    pub fn ranges_max(unit_bytes: usize) -> usize {
        unit_bytes.saturating_sub(HEADER_BYTES) / TRIM.item_bytes
    }
}

/// What a recovery has to know of the order of streams beyond what their members say (contract §8.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderRecord {
    /// Members with sequence numbers up to this one belong to earlier boots: they count as far as they are not discarded.
    pub horizon: u64,
    /// Last epoch of each stream up to which all are complete.
    pub complete: Vec<(StreamId, u32)>,
    /// First sequence number and length of each range of versions that a recovery discarded.
    pub discarded: Vec<(u64, u64)>,
}

/// One of the pages of an [`OrderRecord`], which counts when all of them are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderPage {
    /// Number of the record: the larger, the later.
    pub number: u64,
    /// Number of the page in the record.
    pub part: u32,
    /// Pages of the record.
    pub parts: u32,
    /// What stands in this page.
    pub record: OrderRecord,
}

impl OrderRecord {
    /// The pages of this record, for units of this size: at least one.
    pub fn pages(&self, number: u64, unit_bytes: usize) -> Vec<OrderPage> {
        let room = OrderPage::items_max(unit_bytes);
        let items = self.complete.len() + self.discarded.len();
        let parts = items.div_ceil(room).max(1);
        let part = |part: usize| {
            let (from, to) = (part * room, (part + 1) * room);
            let streams = self.complete.len();
            let complete = self.complete[from.min(streams)..to.min(streams)].to_vec();
            let ranges = self.discarded.len();
            let at = |item: usize| item.saturating_sub(streams).min(ranges);
            let discarded = self.discarded[at(from)..at(to)].to_vec();
            let record = Self { horizon: self.horizon, complete, discarded };
            OrderPage { number, part: part as u32, parts: parts as u32, record }
        };
        (0..parts).map(part).collect()
    }
}

impl OrderPage {
    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        let Self { number, part, parts, record } = self;
        let items = 1 + record.complete.len() + record.discarded.len();
        page(&ORDER, *number, *part, items, |page| {
            let streams = record.complete.len() as u64;
            let head = (record.horizon, u64::from(*parts) << 32 | streams);
            let complete =
                record.complete.iter().map(|(stream, epoch)| (u64::from(stream.0), u64::from(*epoch)));
            for (one, other) in std::iter::once(head).chain(complete).chain(record.discarded.iter().copied())
            {
                push_pair(page, one, other);
            }
        })
    }

    /// Decodes a page; `None` if it is not an intact one.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (fields, count) = ORDER.open(page)?;
        let item = |nth| pair(fields, nth);
        let (horizon, numbers) = item(0)?;
        let (parts, streams) = ((numbers >> 32) as u32, numbers as u32 as usize);
        if streams >= count {
            return None;
        }
        let stream = |(stream, epoch): (u64, u64)| Some((StreamId(stream.try_into().ok()?), epoch as u32));
        let complete = (1..=streams).map(|nth| stream(item(nth)?)).collect::<Option<_>>()?;
        let discarded = (streams + 1..count).map(item).collect::<Option<_>>()?;
        let record = OrderRecord { horizon, complete, discarded };
        Some(Self { number: fields.u64_at(12)?, part: fields.u32_at(20)?, parts, record })
    }

    /// Streams and ranges together for which a page of this size has room.
    pub fn items_max(unit_bytes: usize) -> usize {
        (unit_bytes.saturating_sub(HEADER_BYTES) / ORDER.item_bytes).saturating_sub(1).max(1)
    }
}

/// The record beside a page of start or end metadata.
pub const META_RECORD: OobRecord = OobRecord { owner: Owner::Meta, seq: 0, member: None };
/// The record of padding.
pub const PAD_RECORD: OobRecord = OobRecord { owner: Owner::Pad, seq: 0, member: None };

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Lpn;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_are_read_back_and_damage_is_seen(
            line in any::<u64>(), first in any::<u32>(), units in prop::collection::vec((0..1u64 << 62, any::<u64>()), 0..30),
            bit in any::<usize>(),
        ) {
            let ranges = TrimPage { ranges: units.clone() };
            let left_out = units.iter().map(|(unit, _)| *unit as u32).collect();
            let start = LineStart { line, left_out };
            let owners = units.into_iter().map(|(lpn, seq)| (Owner::Lpn(Lpn(lpn)), seq)).collect();
            let end = LineEnd { line, first, units: owners };
            let complete = ranges.ranges.iter().map(|(stream, epoch)| (StreamId(*stream as u16), *epoch as u32));
            let order = OrderRecord { horizon: line, complete: complete.collect(), discarded: ranges.ranges.clone() };
            let parts = order.pages(line, 256);
            for part in &parts {
                prop_assert!(part.encode().len() <= 256);
                prop_assert_eq!(OrderPage::decode(&part.encode()), Some(part.clone()));
            }
            prop_assert!(parts.iter().all(|part| part.parts as usize == parts.len() && part.record.horizon == line));
            let all = parts.iter().map(|part| &part.record);
            prop_assert_eq!(all.clone().flat_map(|part| part.complete.clone()).collect::<Vec<_>>(), order.complete);
            prop_assert_eq!(all.flat_map(|part| part.discarded.clone()).collect::<Vec<_>>(), order.discarded);
            let pages = [start.encode(), end.encode(), ranges.encode(), parts[0].encode()];
            prop_assert_eq!(LineStart::decode(&pages[0]), Some(start));
            prop_assert_eq!(LineEnd::decode(&pages[1]), Some(end));
            prop_assert_eq!(TrimPage::decode(&pages[2]), Some(ranges));
            prop_assert!(LineEnd::decode(&pages[0]).is_none() && LineStart::decode(&pages[2]).is_none());
            for page in &pages {
                // A page is followed by the zeros of the rest of its unit.
                let mut unit = page.clone();
                unit.resize(1024, 0);
                let at = bit % (page.len() * 8);
                unit[at / 8] ^= 1 << (at % 8);
                prop_assert!(LineStart::decode(&unit).is_none());
                prop_assert!(LineEnd::decode(&unit).is_none());
                prop_assert!(TrimPage::decode(&unit).is_none());
                prop_assert!(OrderPage::decode(&unit).is_none());
            }
        }
    }
}
