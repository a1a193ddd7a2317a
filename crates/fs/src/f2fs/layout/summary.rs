//! Summaries: for each block of a segment, its owner. Cleaning finds owners by them.
//!
//! The summary of a segment is in the SSA; that of a segment that is being written is in the checkpoint pack,
//! with the NAT's journal in that of the hot data log and the SIT's in that of the cold data log. Compact summaries are
//! both journals and, without gaps but for the ends of blocks, the entries of the three data logs.

use super::bytes::{crc32, put, u16_at, u32_at};
use super::checkpoint::Cursor;
use super::tables::JOURNAL_BYTES;
use super::{Log, MAGIC, Nid, SEGMENT_BLOCKS};
use crate::f2fs::error::{Result, corrupt};
use crate::port::{BLOCK_BYTES, BlockBytes};

const ENTRY_BYTES: usize = 7;
const JOURNAL_AT: usize = ENTRY_BYTES * SEGMENT_BLOCKS as usize;
const FOOTER_AT: usize = BLOCK_BYTES - 5;

/// The owner of a block: the node that refers to it, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The node that refers to the block; for the block of a node, the node's own number.
    pub nid: Nid,
    /// The version of that node's NAT entry.
    pub version: u8,
    /// Index of the address in that node.
    pub offset: u16,
}

impl Owner {
    fn decode(bytes: &[u8]) -> Self {
        Self { nid: Nid(u32_at(bytes, 0)), version: bytes[4], offset: u16_at(bytes, 5) }
    }

    fn encode(self, bytes: &mut [u8]) {
        put(bytes, 0, &self.nid.0.to_le_bytes());
        bytes[4] = self.version;
        put(bytes, 5, &self.offset.to_le_bytes());
    }
}

/// The summary of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whether the blocks are nodes.
    pub is_node: bool,
    /// The owner of each block.
    pub owners: Vec<Owner>,
    /// The journal: of the NAT, of the SIT, or unused.
    pub journal: [u8; JOURNAL_BYTES],
}

impl Summary {
    /// Returns a summary without owners.
    pub fn new(is_node: bool) -> Self {
        Self { is_node, owners: vec![Owner::default(); SEGMENT_BLOCKS as usize], journal: [0; JOURNAL_BYTES] }
    }

    /// Decodes a summary block.
    pub fn decode(block: &[u8]) -> Self {
        let mut journal = [0; JOURNAL_BYTES];
        journal.copy_from_slice(&block[JOURNAL_AT..JOURNAL_AT + JOURNAL_BYTES]);
        let owners = block[..JOURNAL_AT].chunks_exact(ENTRY_BYTES).map(Owner::decode).collect();
        Self { is_node: block[FOOTER_AT] == 1, owners, journal }
    }

    /// Encodes a summary block.
    pub fn encode(&self) -> BlockBytes {
        let mut block = [0; BLOCK_BYTES];
        for (owner, room) in self.owners.iter().zip(block[..JOURNAL_AT].chunks_exact_mut(ENTRY_BYTES)) {
            owner.encode(room);
        }
        put(&mut block, JOURNAL_AT, &self.journal);
        block[FOOTER_AT] = u8::from(self.is_node);
        let crc = crc32(MAGIC, &block[..FOOTER_AT + 1]);
        put(&mut block, FOOTER_AT + 1, &crc.to_le_bytes());
        block
    }
}

/// Number of owners of a log in compact summaries: all where the log fills holes, or those of written blocks.
fn compact_owners(cursor: Cursor) -> usize {
    if cursor.fills_holes {
        SEGMENT_BLOCKS as usize
    } else {
        usize::from(cursor.offset).min(SEGMENT_BLOCKS as usize)
    }
}

/// Number of blocks that the compact summaries of three data logs take.
pub fn compact_blocks(cursors: &[Cursor; 6]) -> u32 {
    let owners: usize = cursors[..3].iter().map(|cursor| compact_owners(*cursor)).sum();
    let in_first = (FOOTER_AT - 2 * JOURNAL_BYTES) / ENTRY_BYTES;
    1 + owners.saturating_sub(in_first).div_ceil(FOOTER_AT / ENTRY_BYTES) as u32
}

/// Decodes compact summaries of the three data logs. Errors: more entries than the blocks have room for.
pub fn decode_compact(blocks: &[u8], cursors: &[Cursor; 6]) -> Result<[Summary; 3]> {
    let needed = compact_blocks(cursors) as usize * BLOCK_BYTES;
    if blocks.len() < needed {
        return corrupt(format!("compact summaries need {needed} bytes, there are {}", blocks.len()));
    }
    let mut summaries = [Summary::new(false), Summary::new(false), Summary::new(false)];
    summaries[Log::HotData.index()].journal.copy_from_slice(&blocks[..JOURNAL_BYTES]);
    summaries[Log::ColdData.index()].journal.copy_from_slice(&blocks[JOURNAL_BYTES..2 * JOURNAL_BYTES]);
    let mut place = Place { at: 2 * JOURNAL_BYTES };
    for (summary, cursor) in summaries.iter_mut().zip(cursors) {
        for owner in summary.owners.iter_mut().take(compact_owners(*cursor)) {
            let at = place.next();
            *owner = Owner::decode(&blocks[at..at + ENTRY_BYTES]);
        }
    }
    Ok(summaries)
}

/// Encodes compact summaries of the three data logs.
pub fn encode_compact(summaries: [&Summary; 3], cursors: &[Cursor; 6]) -> Vec<BlockBytes> {
    let mut bytes = vec![0; compact_blocks(cursors) as usize * BLOCK_BYTES];
    put(&mut bytes, 0, &summaries[Log::HotData.index()].journal);
    put(&mut bytes, JOURNAL_BYTES, &summaries[Log::ColdData.index()].journal);
    let mut place = Place { at: 2 * JOURNAL_BYTES };
    for (summary, cursor) in summaries.iter().zip(cursors) {
        for owner in summary.owners.iter().take(compact_owners(*cursor)) {
            let at = place.next();
            owner.encode(&mut bytes[at..at + ENTRY_BYTES]);
        }
    }
    bytes.chunks(BLOCK_BYTES).map(|block| block.try_into().expect("whole blocks")).collect()
}

/// Position while walking over the entries of compact summaries: no entry reaches into the room of a block's footer.
struct Place {
    at: usize,
}

impl Place {
    fn next(&mut self) -> usize {
        if self.at % BLOCK_BYTES + ENTRY_BYTES > FOOTER_AT {
            self.at = self.at.next_multiple_of(BLOCK_BYTES);
        }
        let at = self.at;
        self.at += ENTRY_BYTES;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(is_node: bool, first: u32) -> Summary {
        let mut summary = Summary::new(is_node);
        for (index, owner) in summary.owners.iter_mut().enumerate() {
            *owner = Owner { nid: Nid(first + index as u32), version: index as u8, offset: index as u16 };
        }
        summary
    }

    #[test]
    fn a_summary_there_and_back() {
        for is_node in [false, true] {
            let summary = summary(is_node, 9);
            assert_eq!(Summary::decode(&summary.encode()), summary);
        }
    }

    #[test]
    fn compact_summaries_there_and_back() {
        for (offsets, blocks) in
            [([0, 0, 0], 1), ([1, 2, 3], 1), ([200, 239, 0], 1), ([200, 240, 0], 2), ([512, 511, 0], 2)]
        {
            let mut cursors = [Cursor::default(); 6];
            let mut summaries = [summary(false, 0), summary(false, 1000), summary(false, 2000)];
            summaries[0].journal = [7; JOURNAL_BYTES];
            summaries[2].journal = [8; JOURNAL_BYTES];
            for ((cursor, summary), offset) in cursors.iter_mut().zip(&mut summaries).zip(offsets) {
                cursor.offset = offset;
                summary.owners[usize::from(offset)..].fill(Owner::default());
            }
            let encoded = encode_compact([&summaries[0], &summaries[1], &summaries[2]], &cursors);
            assert_eq!(encoded.len(), blocks, "{offsets:?}");
            let read = decode_compact(&encoded.concat(), &cursors).unwrap();
            assert_eq!(read, summaries);
        }
        let cursors = [Cursor { fills_holes: true, ..Cursor::default() }; 6];
        assert_eq!(compact_blocks(&cursors), 3);
        assert!(decode_compact(&[0; 4096], &cursors).is_err());
    }
}
