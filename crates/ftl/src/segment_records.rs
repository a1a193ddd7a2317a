//! The records of the log of segments (append-segments §3.6, device-metadata §12): which blocks a segment has, and when it was
//! deallocated.
//!
//! Place in the data flow: the firmware of an append namespace writes them in groups; recovery folds them ([`SegmentTable`]).
//!
//! Invariant: a block list is complete: a segment that has blocks has one for each lane.

use crate::BlockId;
use crate::log_page;
pub use crate::log_page::{GroupKind, PageHeader, records_per_page};
use flashweir_core::command::SegmentId;

const MAGIC: u32 = u32::from_le_bytes(*b"FWSG");
/// Blocks that one record names.
const BLOCKS: u32 = 4;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRecord {
    /// Begins a checkpoint: all segments follow that were ever written.
    Checkpoint {
        /// Sequence number of the newest command at that time.
        seq: u64,
        /// Number of pages of units that follow the group and belong to the checkpoint.
        tails: u32,
    },
    /// State of a segment: in a checkpoint, or at its first write.
    Segment {
        /// Number of the segment.
        segment: SegmentId,
        /// Number of its deallocations.
        generation: u32,
        /// Sequence number of the last one; units with a lower number are not of this generation.
        trimmed_at: u64,
        /// Whether it has blocks, which follow in [`Self::Blocks`].
        has_blocks: bool,
        /// Whether it is full, and all of it durable.
        is_sealed: bool,
    },
    /// Blocks of four lanes of the segment before it.
    Blocks([BlockId; BLOCKS as usize]),
    /// A deallocation.
    Trim {
        /// Number of the segment.
        segment: SegmentId,
        /// Its generation from then on.
        generation: u32,
        /// Sequence number of the command.
        seq: u64,
    },
    /// A segment is full, and all of it is durable.
    Sealed {
        /// Number of the segment.
        segment: SegmentId,
        /// Sequence number of the newest command at that time.
        seq: u64,
    },
    /// The contents of one block of a segment are in another one.
    Moved {
        /// Number of the segment.
        segment: SegmentId,
        /// Lane of the block.
        lane: u32,
        /// The new block.
        block: BlockId,
    },
}

const HAS_BLOCKS: u64 = 1 << 32;
const IS_SEALED: u64 = 1 << 33;
const VALUE: u64 = (1 << 56) - 1;

impl SegmentRecord {
    /// Most records that describe one segment with so many lanes.
    pub const fn of_segment(lanes: u32) -> u32 {
        1 + lanes.div_ceil(BLOCKS)
    }

    /// The records that describe a segment; `blocks` is empty if it has none.
    pub fn describe(
        segment: SegmentId,
        (generation, trimmed_at): (u32, u64),
        is_sealed: bool,
        blocks: &[BlockId],
    ) -> impl Iterator<Item = Self> + '_ {
        let has_blocks = !blocks.is_empty();
        let lists = blocks.chunks(BLOCKS as usize).map(|some| {
            Self::Blocks(std::array::from_fn(|nth| some.get(nth).copied().unwrap_or(BlockId(u32::MAX))))
        });
        let head = Self::Segment { segment, generation, trimmed_at, has_blocks, is_sealed };
        std::iter::once(head).chain(lists)
    }

    fn words(self) -> [u64; 3] {
        let first = |kind: u64, value: u64| kind << 56 | (value & VALUE);
        match self {
            Self::Checkpoint { seq, tails } => [first(1, 0), seq, u64::from(tails)],
            Self::Segment { segment, generation, trimmed_at, has_blocks, is_sealed } => {
                let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
                let flags = flag(has_blocks, HAS_BLOCKS) | flag(is_sealed, IS_SEALED);
                [first(2, u64::from(segment.0)), trimmed_at, u64::from(generation) | flags]
            }
            Self::Blocks([a, b, c, d]) => {
                let pair = |a: BlockId, b: BlockId| u64::from(a.0) | u64::from(b.0) << 32;
                [first(3, 0), pair(a, b), pair(c, d)]
            }
            Self::Trim { segment, generation, seq } => {
                [first(4, u64::from(segment.0)), seq, u64::from(generation)]
            }
            Self::Sealed { segment, seq } => [first(5, u64::from(segment.0)), seq, 0],
            Self::Moved { segment, lane, block } => {
                [first(6, u64::from(segment.0)), u64::from(lane), u64::from(block.0)]
            }
        }
    }

    fn of([first, a, b]: [u64; 3]) -> Option<Self> {
        let value = first & VALUE;
        let segment = SegmentId(value as u32);
        let block = |word: u64, shift: u32| BlockId((word >> shift) as u32);
        Some(match first >> 56 {
            1 => Self::Checkpoint { seq: a, tails: u32::try_from(b).ok()? },
            2 => Self::Segment {
                segment,
                generation: b as u32,
                trimmed_at: a,
                has_blocks: b & HAS_BLOCKS != 0,
                is_sealed: b & IS_SEALED != 0,
            },
            3 => Self::Blocks([block(a, 0), block(a, 32), block(b, 0), block(b, 32)]),
            4 => Self::Trim { segment, generation: b as u32, seq: a },
            5 => Self::Sealed { segment, seq: a },
            6 => Self::Moved { segment, lane: u32::try_from(a).ok()?, block: block(b, 0) },
            _ => return None,
        })
    }
}

/// Encodes a page, without the zeros behind the last record.
pub fn encode(header: &PageHeader, records: &[SegmentRecord]) -> Vec<u8> {
    log_page::encode(MAGIC, header, records.iter().map(|record| record.words()))
}

/// Decodes a page; `None` if it is not a complete, intact page of this log.
pub fn decode(page: &[u8]) -> Option<(PageHeader, Vec<SegmentRecord>)> {
    log_page::decode(MAGIC, page, SegmentRecord::of)
}

/// What the log says of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedSegment {
    /// Number of its deallocations.
    pub generation: u32,
    /// Sequence number of the last one.
    pub trimmed_at: u64,
    /// Whether it is full, and all of it durable.
    pub is_sealed: bool,
    /// One block for each lane, or none.
    pub blocks: Vec<BlockId>,
}

/// What the log says of all segments: the fold of its records, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentTable {
    /// State of each segment.
    pub segments: Vec<LoggedSegment>,
    /// The newest sequence number that a record names.
    pub seq: u64,
}

impl SegmentTable {
    /// The state of a new device.
    pub fn new(segments: u32) -> Self {
        Self { segments: vec![LoggedSegment::default(); segments as usize], seq: 0 }
    }

    /// Takes over the records of one group. `lanes` is the number of blocks of a segment. Records that name a segment or a lane that
    /// is not there are ignored: they are not of this device.
    pub fn fold(&mut self, records: &[SegmentRecord], lanes: u32) {
        // The segment whose blocks follow.
        let mut listing: Option<usize> = None;
        for record in records {
            if let (SegmentRecord::Blocks(blocks), Some(at)) = (record, listing) {
                let list = &mut self.segments[at].blocks;
                let room = lanes as usize - list.len();
                list.extend(blocks.iter().take(room));
                continue;
            }
            listing = None;
            match *record {
                SegmentRecord::Checkpoint { seq, .. } => self.seq = self.seq.max(seq),
                SegmentRecord::Segment { segment, generation, trimmed_at, has_blocks, is_sealed } => {
                    if let Some(state) = self.segments.get_mut(segment.0 as usize) {
                        let blocks = Vec::new();
                        *state = LoggedSegment { generation, trimmed_at, is_sealed, blocks };
                        listing = has_blocks.then_some(segment.0 as usize);
                    }
                    self.seq = self.seq.max(trimmed_at);
                }
                SegmentRecord::Blocks(_) => {}
                SegmentRecord::Trim { segment, generation, seq } => {
                    if let Some(state) = self.segments.get_mut(segment.0 as usize) {
                        *state = LoggedSegment { generation, trimmed_at: seq, ..LoggedSegment::default() };
                    }
                    self.seq = self.seq.max(seq);
                }
                SegmentRecord::Sealed { segment, seq } => {
                    if let Some(state) = self.segments.get_mut(segment.0 as usize) {
                        state.is_sealed = true;
                    }
                    self.seq = self.seq.max(seq);
                }
                SegmentRecord::Moved { segment, lane, block } => {
                    let state = self.segments.get_mut(segment.0 as usize);
                    if let Some(place) = state.and_then(|state| state.blocks.get_mut(lane as usize)) {
                        *place = block;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = SegmentRecord> {
        let segment = (0..1u32 << 29).prop_map(SegmentId);
        let block = any::<u32>().prop_map(BlockId);
        prop_oneof![
            (any::<u64>(), any::<u32>()).prop_map(|(seq, tails)| SegmentRecord::Checkpoint { seq, tails }),
            (segment.clone(), any::<u32>(), any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
                |(segment, generation, trimmed_at, has_blocks, is_sealed)| SegmentRecord::Segment {
                    segment,
                    generation,
                    trimmed_at,
                    has_blocks,
                    is_sealed,
                }
            ),
            prop::array::uniform4(block.clone()).prop_map(SegmentRecord::Blocks),
            (segment.clone(), any::<u32>(), any::<u64>())
                .prop_map(|(segment, generation, seq)| SegmentRecord::Trim { segment, generation, seq }),
            (segment.clone(), any::<u64>()).prop_map(|(segment, seq)| SegmentRecord::Sealed { segment, seq }),
            (segment, any::<u32>(), block).prop_map(|(segment, lane, block)| SegmentRecord::Moved {
                segment,
                lane,
                block
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_page_is_read_back(records in prop::collection::vec(record(), 0..40), group in any::<u64>()) {
            let header = PageHeader { kind: GroupKind::Log, boot: 2, group, index: 1, total: 3 };
            let page = encode(&header, &records);
            prop_assert_eq!(decode(&page), Some((header, records)));
            prop_assert_eq!(crate::map_records::decode(&page), None);
        }

        /// What a checkpoint says of a table is the table, whatever the number of lanes.
        #[test]
        fn a_described_table_is_the_table(
            states in prop::collection::vec((any::<u32>(), any::<u64>(), any::<bool>(), any::<bool>()), 1..20),
            lanes in 1..11u32,
        ) {
            let block = |segment: usize, lane: u32| BlockId(segment as u32 * 100 + lane);
            let mut table = SegmentTable::new(states.len() as u32);
            for (at, (generation, trimmed_at, is_sealed, has_blocks)) in states.iter().enumerate() {
                let count = if *has_blocks { lanes } else { 0 };
                table.segments[at] = LoggedSegment {
                    generation: *generation,
                    trimmed_at: *trimmed_at,
                    is_sealed: *is_sealed,
                    blocks: (0..count).map(|lane| block(at, lane)).collect(),
                };
                table.seq = table.seq.max(*trimmed_at);
            }
            let records: Vec<SegmentRecord> = (0..).map(SegmentId).zip(&table.segments).flat_map(|(id, s)| {
                SegmentRecord::describe(id, (s.generation, s.trimmed_at), s.is_sealed, &s.blocks)
            }).collect();
            let mut folded = SegmentTable::new(states.len() as u32);
            folded.fold(&records, lanes);
            prop_assert_eq!(folded, table);
        }
    }

    #[test]
    fn records_change_one_segment_each() {
        let mut table = SegmentTable::new(3);
        let blocks: Vec<BlockId> = (10..15).map(BlockId).collect();
        let first: Vec<SegmentRecord> =
            SegmentRecord::describe(SegmentId(1), (0, 0), false, &blocks).collect();
        assert_eq!(first.len() as u32, SegmentRecord::of_segment(5));
        table.fold(&first, 5);
        let moved = SegmentRecord::Moved { segment: SegmentId(1), lane: 4, block: BlockId(90) };
        let of_another = SegmentRecord::Moved { segment: SegmentId(0), lane: 0, block: BlockId(90) };
        let [sealed, far] =
            [1, 7].map(|segment| SegmentRecord::Sealed { segment: SegmentId(segment), seq: 9 });
        table.fold(&[moved, of_another, sealed, far], 5);
        assert_eq!(table.segments[1].blocks, [10, 11, 12, 13, 90].map(BlockId));
        assert!(table.segments[1].is_sealed && table.segments[0] == LoggedSegment::default());
        table.fold(&[SegmentRecord::Trim { segment: SegmentId(1), generation: 1, seq: 44 }], 5);
        let trimmed = LoggedSegment { generation: 1, trimmed_at: 44, ..LoggedSegment::default() };
        assert_eq!((&table.segments[1], table.seq), (&trimmed, 44));
    }
}
