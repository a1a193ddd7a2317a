//! The bits of a volume's files (`specs/volume.md`): checked views and what they may hold.
//!
//! Invariants: each record carries its own place, so that a misdirected one is noticed; a record whose checksum is wrong is classified by
//! its last bytes, which are written last: old ones mean that a write was interrupted, new ones that the record was damaged afterwards.
//! Bytes without a meaning are zero, and a record in which they are not is no record: they belong to what a newer program writes, which
//! `volume.toml` names.

use flashweir_core::command::StreamId;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_device::flash::{BlockHealth, Owner, Saved};
use flashweir_ftl::recovery::{Claim, ContentId, Member, ShareRecord, TrimRecord};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Version of the format that is written.
pub(crate) const VERSION: u32 = 2;
/// Version of the journal's records, which both formats have.
const JOURNAL_VERSION: u64 = 1;

/// How the pages' records are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Read, and never written.
    One,
    /// Format of new volumes.
    Two,
}

impl Format {
    /// The format with this version, if there is one.
    pub(crate) const fn of(version: u64) -> Option<Self> {
        match version {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }

    /// Its version.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => VERSION,
        }
    }

    /// Bytes that a unit has in its page's record.
    const fn unit_bytes(self) -> usize {
        match self {
            Self::One => 32,
            Self::Two => 64,
        }
    }
}

/// Bytes of one of the two slots of a block.
pub(crate) const SLOT_BYTES: usize = 32;
/// Bytes of the fixed part of a journal record.
pub(crate) const JOURNAL_BYTES: usize = 48;

const PAGE_HEADER_BYTES: usize = 40;
const TRAILER_BYTES: usize = 8;
const BLOCK_MAGIC: [u8; 4] = *b"FWVB";
const PAGE_MAGIC: [u8; 4] = *b"FWVP";
const JOURNAL_MAGIC: [u8; 4] = *b"FWVJ";

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..at + 2].try_into().map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// State of the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// Never written.
    Blank,
    /// Whole.
    Whole(T),
    /// A write was interrupted.
    Torn,
    /// It was whole once.
    Damaged,
}

/// One slot of a block: the number of the change, and what it made of the block.
pub(crate) fn encode_slot(block: u32, change: u32, health: BlockHealth) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    put(&mut slot, 0, BLOCK_MAGIC);
    put(&mut slot, 8, block.to_le_bytes());
    put(&mut slot, 12, change.to_le_bytes());
    put(&mut slot, 16, health.erases.to_le_bytes());
    slot[20] = u8::from(health.bad) | u8::from(health.erase_torn) << 1;
    put(&mut slot, 28, (change + 1).to_le_bytes());
    let crc = crc32c::crc32c(&slot[8..28]);
    put(&mut slot, 4, crc.to_le_bytes());
    slot
}

/// A change whose content is whole; whether its last bytes were written too. `None` if it is not, or damaged.
fn decode_slot(slot: &[u8], block: u32, parity: u32) -> Option<(u32, BlockHealth, bool)> {
    let (change, flags) = (u32_at(slot, 12), slot[20]);
    let whole = slot[..4] == BLOCK_MAGIC
        && crc32c::crc32c(&slot[8..28]) == u32_at(slot, 4)
        && u32_at(slot, 8) == block
        && change & 1 == parity
        && flags < 4;
    let health = BlockHealth { erases: u32_at(slot, 16), bad: flags & 1 != 0, erase_torn: flags & 2 != 0 };
    if !whole {
        return None;
    }
    // The last bytes go from those of the change before the last one to this one's.
    let (old, new) = (change.saturating_sub(1).to_le_bytes(), (change + 1).to_le_bytes());
    let is_prefix =
        |written: usize| slot[28..28 + written] == new[..written] && slot[28 + written..] == old[written..];
    match slot[28..] == new {
        true => Some((change, health, true)),
        false => (change > 0 && (0..4).any(is_prefix)).then_some((change, health, false)),
    }
}

/// The two slots of a block: number and result of the last change that is finished, and whether the write of another was
/// interrupted; if only its last bytes are missing, the result is that of the other. `None` if they were damaged.
pub(crate) fn decode_block(slots: &[u8], block: u32) -> Option<(u32, BlockHealth, bool)> {
    let (even, odd) = slots.split_at(SLOT_BYTES);
    match (decode_slot(even, block, 0), decode_slot(odd, block, 1)) {
        (Some(a), Some(b)) if a.0 == b.0 + 1 => last_of_two(a, b),
        (Some(a), Some(b)) if b.0 == a.0 + 1 => last_of_two(b, a),
        (Some((0, health, true)), None) if is_blank(odd) => Some((0, health, false)),
        (Some((change, health, true)), None) => torn_slot(change, health, odd),
        (None, Some((change, health, true))) => torn_slot(change, health, even),
        _ => None,
    }
}

fn last_of_two(
    (change, health, finished): (u32, BlockHealth, bool),
    (before, _, before_finished): (u32, BlockHealth, bool),
) -> Option<(u32, BlockHealth, bool)> {
    before_finished.then_some(if finished { (change, health, false) } else { (before, health, true) })
}

/// One slot is whole; the other is what an interrupted write of the next change left, or damaged.
fn torn_slot(change: u32, health: BlockHealth, other: &[u8]) -> Option<(u32, BlockHealth, bool)> {
    // Its last bytes are still those of the change before the whole one, or of none.
    let old = u32_at(other, 28) == change;
    old.then_some((change, health, true))
}

/// A unit as the out-of-band area has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitRecord {
    pub(crate) owner: Owner,
    pub(crate) seq: u64,
    pub(crate) member: Option<Member>,
    pub(crate) content: ContentRecord,
}

/// Place of the content of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentRecord {
    Zero,
    Tag(u64),
    /// In `data`, at the unit's place: length and checksum.
    Bytes {
        len: u32,
        sum: Sum,
    },
}

impl ContentRecord {
    /// Zeros need no place, whatever form they come in.
    pub(crate) fn of(payload: &Payload, sums: Sums) -> Self {
        match payload {
            Payload::Zero => Self::Zero,
            Payload::Tag(tag) => Self::Tag(*tag),
            Payload::Bytes(bytes) if is_blank(bytes) => Self::Zero,
            Payload::Bytes(bytes) => Self::Bytes { len: bytes.len() as u32, sum: sums.of(bytes) },
        }
    }
}

/// Which checksum a volume writes for contents: `volume.toml` says so (volume §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// Of volumes that do not need `xxh3`.
    Crc32c,
    /// Of new volumes: a CRC is the same for all contents that end with their own.
    Xxh3,
}

impl Sums {
    fn of(self, bytes: &[u8]) -> Sum {
        match self {
            Self::Crc32c => Sum::Crc32c(crc32c::crc32c(bytes)),
            Self::Xxh3 => Sum::Xxh3(XxHash3_64::oneshot(bytes)),
        }
    }
}

/// Checksum of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Crc32c(u32),
    Xxh3(u64),
}

impl Sum {
    /// Whether it is that of these bytes.
    pub(crate) fn is_of(self, bytes: &[u8]) -> bool {
        let sums = match self {
            Self::Crc32c(_) => Sums::Crc32c,
            Self::Xxh3(_) => Sums::Xxh3,
        };
        sums.of(bytes) == self
    }
}

/// The out-of-band area of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRecord {
    /// Number of the page on the medium.
    pub(crate) page: u64,
    /// Number of the block's opening.
    pub(crate) opened: u64,
    /// Erases that the block had seen.
    pub(crate) erases: u32,
    pub(crate) state: PageContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageContent {
    Units(Vec<UnitRecord>),
    /// It cannot be read, nor can the pages of its block from `lost_from` on.
    Unreadable {
        lost_from: u32,
    },
}

/// Bytes of the out-of-band area of a page of `units` units.
pub(crate) fn page_record_bytes(format: Format, units: u32) -> usize {
    PAGE_HEADER_BYTES + units as usize * format.unit_bytes() + TRAILER_BYTES
}

// Kinds of owner, as in the out-of-band area of a device of flash. Segments (3) and what a host keeps on an open channel
// (4) have their places; this program has no firmware that writes them.
const OWNER_FILLER: u8 = 0;
const OWNER_LPN: u8 = 1;
const OWNER_SHARED: u8 = 2;
const OWNER_META: u8 = 7;

const FLAG_MEMBER: u16 = 1 << 0;
const FLAG_ORDERLESS: u16 = 1 << 1;

/// Writes the record of a page into `out`, which has its length.
pub(crate) fn encode_page(record: &PageRecord, out: &mut [u8]) {
    out.fill(0);
    put(out, 0, PAGE_MAGIC);
    put(out, 8, record.page.to_le_bytes());
    put(out, 16, record.opened.to_le_bytes());
    put(out, 24, record.erases.to_le_bytes());
    match &record.state {
        PageContent::Unreadable { lost_from } => {
            out[28] = 2;
            put(out, 32, lost_from.to_le_bytes());
        }
        PageContent::Units(units) => {
            out[28] = 1;
            out[29] = units.len() as u8;
            let places = out[PAGE_HEADER_BYTES..].chunks_exact_mut(Format::Two.unit_bytes());
            units.iter().zip(places).for_each(|(unit, place)| encode_unit(unit, place));
        }
    }
    let end = out.len() - TRAILER_BYTES;
    put(out, end, (u64::from(record.erases) + 1).to_le_bytes());
    let crc = crc32c::crc32c(&out[8..end]);
    put(out, 4, crc.to_le_bytes());
}

fn encode_unit(unit: &UnitRecord, out: &mut [u8]) {
    let (kind, number) = match unit.owner {
        Owner::Pad => (OWNER_FILLER, 0),
        Owner::Lpn(lpn) => (OWNER_LPN, lpn.0),
        Owner::Meta => (OWNER_META, 0),
        Owner::Vpid(number) => (OWNER_SHARED, number),
        Owner::Seg { .. } => {
            unreachable!(
                "a volume is of a firmware that this format reads, and none of those writes {:?}",
                unit.owner
            )
        }
    };
    let (content, len, value) = match unit.content {
        ContentRecord::Zero => (0, 0, 0),
        ContentRecord::Tag(tag) => (1, 0, tag),
        ContentRecord::Bytes { len, sum: Sum::Crc32c(crc) } => (2, len, u64::from(crc)),
        ContentRecord::Bytes { len, sum: Sum::Xxh3(hash) } => (3, len, hash),
    };
    out[0] = kind;
    out[1] = content;
    put(out, 4, u32::to_le_bytes(len));
    put(out, 8, u64::to_le_bytes(value));
    put(out, 16, u64::to_le_bytes(number));
    put(out, 24, unit.seq.to_le_bytes());
    if let Some(member) = unit.member {
        let flags = FLAG_MEMBER | if member.orderless { FLAG_ORDERLESS } else { 0 };
        put(out, 2, flags.to_le_bytes());
        put(out, 32, u32::from(member.stream.0).to_le_bytes());
        put(out, 36, member.epoch.to_le_bytes());
        put(out, 40, member.previous.to_le_bytes());
        out[42] = member.distance;
    }
}

/// Reads the record of page `page` of a block that has seen `erases` erases.
pub(crate) fn decode_page(
    format: Format,
    bytes: &[u8],
    page: u64,
    erases: u32,
    units: u32,
) -> Found<PageRecord> {
    if is_blank(bytes) {
        return Found::Blank;
    }
    match decode_whole_page(format, bytes, page, units) {
        Some(record) => Found::Whole(record),
        None if u64_at(bytes, bytes.len() - TRAILER_BYTES) == u64::from(erases) + 1 => Found::Damaged,
        None => Found::Torn,
    }
}

fn decode_whole_page(format: Format, bytes: &[u8], page: u64, units: u32) -> Option<PageRecord> {
    let end = bytes.len() - TRAILER_BYTES;
    let whole = bytes[..4] == PAGE_MAGIC
        && crc32c::crc32c(&bytes[8..end]) == u32_at(bytes, 4)
        && u64_at(bytes, 8) == page;
    let reserved = [&bytes[30..32], &bytes[36..40]];
    if !whole || format == Format::Two && !reserved.into_iter().all(is_blank) {
        return None;
    }
    let state = match (bytes[28], bytes[29]) {
        (1, count) if u32::from(count) == units => {
            let places = bytes[PAGE_HEADER_BYTES..end].chunks_exact(format.unit_bytes());
            let decode = match format {
                Format::One => decode_old_unit,
                Format::Two => decode_unit,
            };
            PageContent::Units(places.map(decode).collect::<Option<_>>()?)
        }
        (2, 0) => PageContent::Unreadable { lost_from: u32_at(bytes, 32) },
        _ => return None,
    };
    Some(PageRecord { page, opened: u64_at(bytes, 16), erases: u32_at(bytes, 24), state })
}

fn decode_unit(bytes: &[u8]) -> Option<UnitRecord> {
    let (len, value) = (u32_at(bytes, 4), u64_at(bytes, 8));
    let content = match bytes[1] {
        0 if len == 0 && value == 0 => ContentRecord::Zero,
        1 if len == 0 => ContentRecord::Tag(value),
        2 => ContentRecord::Bytes { len, sum: Sum::Crc32c(u32::try_from(value).ok()?) },
        3 => ContentRecord::Bytes { len, sum: Sum::Xxh3(value) },
        _ => return None,
    };
    let owner = match (bytes[0], u64_at(bytes, 16)) {
        (OWNER_FILLER, 0) => Owner::Pad,
        (OWNER_LPN, lpn) => Owner::Lpn(Lpn(lpn)),
        (OWNER_SHARED, number) => Owner::Vpid(number),
        (OWNER_META, 0) => Owner::Meta,
        _ => return None,
    };
    let flags = u16_at(bytes, 2);
    let member = match flags {
        0 if is_blank(&bytes[32..43]) => None,
        flags if flags & FLAG_MEMBER != 0 && flags & !(FLAG_MEMBER | FLAG_ORDERLESS) == 0 => Some(Member {
            stream: StreamId(u16::try_from(u32_at(bytes, 32)).ok()?),
            epoch: u32_at(bytes, 36),
            previous: u16_at(bytes, 40),
            distance: bytes[42],
            orderless: flags & FLAG_ORDERLESS != 0,
        }),
        _ => return None,
    };
    let unit = UnitRecord { owner, seq: u64_at(bytes, 24), member, content };
    is_blank(&bytes[43..64]).then_some(unit)
}

/// A unit of format 1, which has no place for members of epochs.
fn decode_old_unit(bytes: &[u8]) -> Option<UnitRecord> {
    const OWNER_VALUE: u64 = (1 << 62) - 1;
    let kind = u32_at(bytes, 24);
    let content = match (kind >> 30, kind & ((1 << 30) - 1)) {
        (0, 0) => ContentRecord::Zero,
        (1, 0) => ContentRecord::Tag(u64_at(bytes, 16)),
        (2, len) => ContentRecord::Bytes { len, sum: Sum::Crc32c(u32_at(bytes, 28)) },
        _ => return None,
    };
    let word = u64_at(bytes, 0);
    let owner = match (word >> 62, word & OWNER_VALUE) {
        (0, 0) => Owner::Pad,
        (1, lpn) => Owner::Lpn(Lpn(lpn)),
        (3, 0) => Owner::Meta,
        _ => return None,
    };
    Some(UnitRecord { owner, seq: u64_at(bytes, 8), member: None, content })
}

/// One record of the capacitor's journal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JournalRecord {
    /// First of a file.
    Begin,
    /// The buffer's contents at the time when the file was begun are complete.
    Complete,
    /// Something that was accepted.
    Saved(Saved),
}

/// Bytes of a claim of a SHARE: page, owner and sequence number of its content, and one more than its place, or 0.
const CLAIM_BYTES: usize = 32;

fn encode_claim(claim: &Claim) -> [u8; CLAIM_BYTES] {
    let mut bytes = [0; CLAIM_BYTES];
    put(&mut bytes, 0, claim.lpn.0.to_le_bytes());
    put(&mut bytes, 8, claim.content.owner().pack().to_le_bytes());
    put(&mut bytes, 16, claim.content.seq.to_le_bytes());
    put(&mut bytes, 24, claim.place.map_or(0, |place| place.0 + 1).to_le_bytes());
    bytes
}

fn decode_claim(bytes: &[u8]) -> Claim {
    let content = ContentId::new(Owner::unpack(u64_at(bytes, 8)), u64_at(bytes, 16));
    Claim { lpn: Lpn(u64_at(bytes, 0)), content, place: u64_at(bytes, 24).checked_sub(1).map(Ppa) }
}

/// Appends a record of the journal with number `epoch`.
pub(crate) fn encode_journal(epoch: u64, record: &JournalRecord, sums: Sums, out: &mut Vec<u8>) {
    let claims: Vec<u8>;
    let (kind, lpn, seq, value, bytes): (u8, u64, u64, u64, &[u8]) = match record {
        JournalRecord::Begin => (1, 0, 0, JOURNAL_VERSION, &[]),
        JournalRecord::Complete => (2, 0, 0, 0, &[]),
        JournalRecord::Saved(Saved::Trim(trim)) => (3, trim.lpn.0, trim.seq, trim.count, &[]),
        JournalRecord::Saved(Saved::Share(share)) => {
            claims = share.claims.iter().flat_map(encode_claim).collect();
            (7, 0, share.seq, u64::from(crc32c::crc32c(&claims)), &claims)
        }
        JournalRecord::Saved(Saved::Unit(lpn, seq, payload)) => match payload {
            Payload::Zero => (4, lpn.0, *seq, 0, &[]),
            Payload::Tag(tag) => (5, lpn.0, *seq, *tag, &[]),
            Payload::Bytes(bytes) => match sums.of(bytes) {
                Sum::Crc32c(crc) => (6, lpn.0, *seq, u64::from(crc), bytes),
                Sum::Xxh3(hash) => (8, lpn.0, *seq, hash, bytes),
            },
        },
    };
    let mut header = [0; JOURNAL_BYTES];
    put(&mut header, 0, JOURNAL_MAGIC);
    put(&mut header, 8, epoch.to_le_bytes());
    header[16] = kind;
    put(&mut header, 20, (bytes.len() as u32).to_le_bytes());
    put(&mut header, 24, lpn.to_le_bytes());
    put(&mut header, 32, seq.to_le_bytes());
    put(&mut header, 40, value.to_le_bytes());
    let crc = crc32c::crc32c(&header[8..]);
    put(&mut header, 4, crc.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(bytes);
}

/// Reads the record at the beginning of `bytes`, of the journal with number `epoch` if that is known: its number, the
/// record, and its length. A file is only ever appended to, so what ends early was interrupted, and nothing else.
pub(crate) fn decode_journal(bytes: &[u8], epoch: Option<u64>) -> Found<(u64, JournalRecord, usize)> {
    let Some(header) = bytes.get(..JOURNAL_BYTES) else {
        return if bytes.is_empty() { Found::Blank } else { Found::Torn };
    };
    let found = u64_at(header, 8);
    let whole = header[..4] == JOURNAL_MAGIC
        && crc32c::crc32c(&header[8..]) == u32_at(header, 4)
        && epoch.is_none_or(|epoch| epoch == found);
    if !whole {
        return Found::Damaged;
    }
    let len = u32_at(header, 20) as usize;
    let Some(payload) = bytes[JOURNAL_BYTES..].get(..len) else { return Found::Torn };
    let (lpn, seq, value) = (Lpn(u64_at(header, 24)), u64_at(header, 32), u64_at(header, 40));
    let unit = |payload| JournalRecord::Saved(Saved::Unit(lpn, seq, payload));
    let record = match (header[16], len) {
        (1, 0) if value == JOURNAL_VERSION => JournalRecord::Begin,
        (2, 0) => JournalRecord::Complete,
        (3, 0) => JournalRecord::Saved(Saved::Trim(TrimRecord { lpn, count: value, seq })),
        (4, 0) => unit(Payload::Zero),
        (5, 0) => unit(Payload::Tag(value)),
        (6, _) if u64::from(crc32c::crc32c(payload)) == value => unit(Payload::Bytes(Arc::from(payload))),
        (8, _) if Sum::Xxh3(value).is_of(payload) => unit(Payload::Bytes(Arc::from(payload))),
        (7, _) if u64::from(crc32c::crc32c(payload)) == value && len.is_multiple_of(CLAIM_BYTES) => {
            let claims = payload.chunks_exact(CLAIM_BYTES).map(decode_claim).collect();
            JournalRecord::Saved(Saved::Share(ShareRecord { seq, claims }))
        }
        _ => return Found::Damaged,
    };
    Found::Whole((found, record, JOURNAL_BYTES + len))
}

/// Text with its checksum on a last line of its own.
pub(crate) fn seal(text: &str) -> String {
    format!("{text}# crc32c {:08x}\n", crc32c::crc32c(text.as_bytes()))
}

/// The text of a sealed one; `None` if it is not what was sealed.
pub(crate) fn unseal(sealed: &str) -> Option<&str> {
    let at = sealed.rfind("# crc32c ")?;
    (seal(&sealed[..at]) == sealed).then_some(&sealed[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn health(erases: u32) -> BlockHealth {
        BlockHealth { erases, bad: erases.is_multiple_of(3), erase_torn: erases.is_multiple_of(2) }
    }

    fn page() -> PageRecord {
        let unit = |owner, member, content| UnitRecord { owner, seq: 1 << 50, member, content };
        let bytes = |sum| ContentRecord::Bytes { len: 4096, sum };
        let member = Member {
            stream: StreamId(u16::MAX),
            epoch: 1 << 31,
            previous: 0x1234,
            distance: 0xfe,
            orderless: true,
        };
        let units = vec![
            unit(Owner::Lpn(Lpn(77)), Some(member), bytes(Sum::Xxh3(u64::MAX))),
            unit(Owner::Meta, None, ContentRecord::Tag(u64::MAX)),
            unit(Owner::Pad, None, ContentRecord::Zero),
        ];
        PageRecord { page: 9, opened: 1 << 40, erases: 3, state: PageContent::Units(units) }
    }

    fn page_bytes(record: &PageRecord) -> Vec<u8> {
        let mut bytes = vec![0xff; page_record_bytes(Format::Two, 3)];
        encode_page(record, &mut bytes);
        bytes
    }

    #[test]
    fn a_block_is_what_its_last_whole_change_made_of_it() {
        let mut slots = [0; 2 * SLOT_BYTES];
        for change in 0..5u32 {
            let before = slots;
            let at = (change & 1) as usize * SLOT_BYTES;
            let slot = encode_slot(6, change, health(change));
            for written in 1..=SLOT_BYTES {
                slots[at..at + written].copy_from_slice(&slot[..written]);
                let found = decode_block(&slots, 6);
                let torn = slots != before;
                let expected = match slots[at..at + 28] == slot[..28] {
                    true if written == SLOT_BYTES || slots[at..at + SLOT_BYTES] == slot => {
                        Some((change, health(change), false))
                    }
                    _ if change == 0 => None,
                    // The content is all there: it counts, and is written again.
                    true => Some((change - 1, health(change), true)),
                    false => Some((change - 1, health(change - 1), torn)),
                };
                assert_eq!(found, expected, "{change} {written}");
            }
        }
        assert_eq!(decode_block(&slots, 7), None, "it is another block's");
    }

    /// A write that ended inside a slot's last bytes, or just before them, was taken for a finished one. Two changes
    /// later the stale bytes were in the way: an interrupted write on top of them passed for damage.
    #[test]
    fn interrupted_writes_may_follow_each_other_in_a_slot() {
        for (first, second) in
            (1..SLOT_BYTES).flat_map(|first| (1..SLOT_BYTES).map(move |second| (first, second)))
        {
            let mut slots = [0; 2 * SLOT_BYTES];
            // Numbers at which the last bytes carry, too.
            for base in [1u32, 254, 0xfffe] {
                for change in [base - 1, base] {
                    let at = (change & 1) as usize * SLOT_BYTES;
                    slots[at..at + SLOT_BYTES].copy_from_slice(&encode_slot(6, change, health(change)));
                }
                for (change, written) in [(base + 1, first), (base + 2, SLOT_BYTES), (base + 3, second)] {
                    let at = (change & 1) as usize * SLOT_BYTES;
                    slots[at..at + written]
                        .copy_from_slice(&encode_slot(6, change, health(change))[..written]);
                    let (last, found, torn) =
                        decode_block(&slots, 6).unwrap_or_else(|| panic!("{first} {second}"));
                    assert!(found == health(change) || found == health(change - 1));
                    if torn {
                        let at = ((last + 1) & 1) as usize * SLOT_BYTES;
                        slots[at..at + SLOT_BYTES].copy_from_slice(&encode_slot(6, last + 1, found));
                        assert_eq!(decode_block(&slots, 6), Some((last + 1, found, false)));
                    } else if last < change {
                        let at = (change & 1) as usize * SLOT_BYTES;
                        slots[at..at + SLOT_BYTES].copy_from_slice(&encode_slot(6, change, found));
                    }
                }
            }
        }
    }

    #[test]
    fn each_flipped_bit_of_a_block_is_noticed() {
        for last in 0..4u32 {
            let mut slots = [0; 2 * SLOT_BYTES];
            for change in 0..=last {
                let at = (change & 1) as usize * SLOT_BYTES;
                slots[at..at + SLOT_BYTES].copy_from_slice(&encode_slot(6, change, health(change)));
            }
            for bit in 0..slots.len() * 8 {
                let mut damaged = slots;
                damaged[bit / 8] ^= 1 << (bit % 8);
                // One that looks like an interrupted write loses nothing; the other slot can then be the newest.
                if let Some((change, found, torn)) = decode_block(&damaged, 6) {
                    assert!(torn, "{last} {bit}");
                    let finished = change == last && bit / 8 / SLOT_BYTES != (last & 1) as usize;
                    assert!(finished || change + 1 == last, "{last} {bit}");
                    assert_eq!(found, health(last), "{last} {bit}");
                }
            }
        }
    }

    #[test]
    fn a_page_is_read_back_and_an_interrupted_one_is_known() {
        for record in [page(), PageRecord { state: PageContent::Unreadable { lost_from: 2 }, ..page() }] {
            let bytes = page_bytes(&record);
            assert_eq!(decode_page(Format::Two, &bytes, 9, 3, 3), Found::Whole(record.clone()));
            let older = page_bytes(&PageRecord { erases: 2, opened: 5, ..page() });
            for before in [vec![0; bytes.len()], older] {
                for written in 1..bytes.len() {
                    let mut torn = before.clone();
                    torn[..written].copy_from_slice(&bytes[..written]);
                    match decode_page(Format::Two, &torn, 9, 3, 3) {
                        Found::Torn => {}
                        Found::Whole(found) => assert!(found == record || torn == before, "{written}"),
                        found => panic!("{written}: {found:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn each_flipped_bit_of_a_page_is_damage() {
        let bytes = page_bytes(&page());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = decode_page(Format::Two, &damaged, 9, 3, 3);
            let trailer = bit / 8 >= bytes.len() - TRAILER_BYTES;
            assert_eq!(found, if trailer { Found::Whole(page()) } else { Found::Damaged }, "bit {bit}");
        }
        assert_eq!(decode_page(Format::Two, &bytes, 8, 3, 3), Found::Damaged, "it is another page's");
    }

    /// Bytes that a newer program puts there are not dropped silently.
    #[test]
    fn bytes_without_a_meaning_are_zero() {
        let bytes = page_bytes(&page());
        let second = PAGE_HEADER_BYTES + Format::Two.unit_bytes();
        let unit_reserved = (43..64).map(|at| second + at);
        let of_no_member = [2, 32, 36, 40, 42].map(|at| second + at);
        for at in [30, 31, 36, 39].into_iter().chain(unit_reserved).chain(of_no_member) {
            let mut other = bytes.clone();
            other[at] = 4;
            let end = other.len() - TRAILER_BYTES;
            let crc = crc32c::crc32c(&other[8..end]);
            put(&mut other, 4, crc.to_le_bytes());
            assert_eq!(decode_page(Format::Two, &other, 9, 3, 3), Found::Damaged, "byte {at}");
        }
        // Owners for which there is no firmware here.
        for kind in 3..=8u8 {
            let mut other = bytes.clone();
            other[PAGE_HEADER_BYTES] = kind;
            let end = other.len() - TRAILER_BYTES;
            let crc = crc32c::crc32c(&other[8..end]);
            put(&mut other, 4, crc.to_le_bytes());
            assert_eq!(decode_page(Format::Two, &other, 9, 3, 3), Found::Damaged, "owner {kind}");
        }
    }

    #[test]
    fn copies_for_a_share_and_contents_with_a_crc_are_read_back() {
        let mut with = page();
        if let PageContent::Units(units) = &mut with.state {
            units[0].owner = Owner::Vpid(77);
            units[2].content = ContentRecord::Bytes { len: 512, sum: Sum::Crc32c(5) };
        }
        assert_eq!(decode_page(Format::Two, &page_bytes(&with), 9, 3, 3), Found::Whole(with));
    }

    fn journal() -> Vec<JournalRecord> {
        let saved = |payload| JournalRecord::Saved(Saved::Unit(Lpn(5), 6, payload));
        vec![
            JournalRecord::Begin,
            saved(Payload::Zero),
            JournalRecord::Complete,
            saved(Payload::Tag(0)),
            saved(Payload::Bytes(Arc::from([1; 512]))),
            JournalRecord::Saved(Saved::Trim(TrimRecord { lpn: Lpn(1), count: 1 << 40, seq: 9 })),
            JournalRecord::Saved(Saved::Share(ShareRecord {
                seq: 10,
                claims: [3, 4]
                    .map(|lpn| Claim {
                        lpn: Lpn(lpn),
                        content: ContentId::new(Owner::Vpid(lpn), 7),
                        place: (lpn == 4).then_some(Ppa(0)),
                    })
                    .into(),
            })),
        ]
    }

    #[test]
    fn a_journal_is_read_back_up_to_where_it_ends() {
        for (record, sums) in
            journal().iter().flat_map(|record| [(record, Sums::Crc32c), (record, Sums::Xxh3)])
        {
            let mut bytes = Vec::new();
            encode_journal(7, record, sums, &mut bytes);
            assert_eq!(decode_journal(&bytes, Some(7)), Found::Whole((7, record.clone(), bytes.len())));
            assert_eq!(decode_journal(&bytes, Some(8)), Found::Damaged);
            for len in 1..bytes.len() {
                assert_eq!(decode_journal(&bytes[..len], None), Found::Torn, "{len}");
            }
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode_journal(&damaged, None), Found::Damaged, "bit {bit}");
            }
        }
    }

    #[test]
    fn sealed_text_is_as_it_was() {
        let sealed = seal("a = 1\n");
        assert_eq!(unseal(&sealed), Some("a = 1\n"));
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone().into_bytes();
            damaged[at] ^= 1;
            assert_eq!(std::str::from_utf8(&damaged).ok().and_then(unseal), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_journal(&bytes, None);
            let mut padded = bytes;
            for format in [Format::One, Format::Two] {
                padded.resize(page_record_bytes(format, 3), 1);
                let _ = decode_page(format, &padded, 0, 0, 3);
            }
            let _ = decode_block(&padded[..2 * SLOT_BYTES], 0);
        }
    }
}
