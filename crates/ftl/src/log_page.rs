//! The pages of the device's logs: records of three words, in groups that count only as a whole (device-metadata §3).
//!
//! Deliberately absent: the meaning of records, which differs from log to log.

use crate::sealed::Frame;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 48;
/// Bytes of one record.
pub const RECORD_BYTES: usize = 24;

/// The frame of the pages of the log with this magic.
fn frame(magic: u32) -> Frame {
    Frame { magic, version: 1, header_bytes: HEADER_BYTES, count_at: 28, item_bytes: RECORD_BYTES }
}

/// The kind of a group of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    Log,
    Checkpoint,
}

/// The group to which a page belongs, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    pub kind: GroupKind,
    pub boot: u32,
    /// Number of the group; a later group has a higher one.
    pub group: u64,
    /// Position of this page in its group.
    pub index: u32,
    /// Number of pages of the group, which counts only if all are there.
    pub total: u32,
}

/// Number of records that fit into one page.
pub fn records_per_page(page_bytes: u64) -> usize {
    (page_bytes as usize - HEADER_BYTES) / RECORD_BYTES
}

/// Encodes a page, without the zeros behind the last record.
pub(crate) fn encode(
    magic: u32,
    header: &PageHeader,
    records: impl ExactSizeIterator<Item = [u64; 3]>,
) -> Vec<u8> {
    let frame = frame(magic);
    let mut page = frame.begin(records.len());
    let kind: u16 = match header.kind {
        GroupKind::Log => 1,
        GroupKind::Checkpoint => 2,
    };
    page.extend_from_slice(&kind.to_le_bytes());
    page.extend_from_slice(&header.boot.to_le_bytes());
    page.extend_from_slice(&header.index.to_le_bytes());
    page.extend_from_slice(&header.group.to_le_bytes());
    page.extend_from_slice(&header.total.to_le_bytes());
    page.extend_from_slice(&(records.len() as u32).to_le_bytes());
    page.extend_from_slice(&[0; 12]);
    page.extend_from_slice(&[0; 4]);
    for word in records.flatten() {
        page.extend_from_slice(&word.to_le_bytes());
    }
    frame.seal(&mut page);
    page
}

/// Decodes a page whose records `of` reads; `None` if it is not a complete, intact page of this log.
pub(crate) fn decode<R>(
    magic: u32,
    page: &[u8],
    of: impl Fn([u64; 3]) -> Option<R>,
) -> Option<(PageHeader, Vec<R>)> {
    let (fields, count) = frame(magic).open(page)?;
    let kind = match fields.u16_at(6)? {
        1 => GroupKind::Log,
        2 => GroupKind::Checkpoint,
        _ => return None,
    };
    let header = PageHeader {
        kind,
        boot: fields.u32_at(8)?,
        index: fields.u32_at(12)?,
        group: fields.u64_at(16)?,
        total: fields.u32_at(24)?,
    };
    let words = |i: usize| {
        let at = HEADER_BYTES + i * RECORD_BYTES;
        Some([fields.u64_at(at)?, fields.u64_at(at + 8)?, fields.u64_at(at + 16)?])
    };
    let records = (0..count).map(|i| of(words(i)?)).collect::<Option<Vec<_>>>()?;
    Some((header, records))
}
