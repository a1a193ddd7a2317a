//! The format of a metadata page (`specs/device-metadata.md`): encoding, decoding with checks, and the records that it may hold.

use crate::BlockId;
use crate::log_page;
pub use crate::log_page::{GroupKind, HEADER_BYTES, PageHeader, RECORD_BYTES, records_per_page};
use crate::recovery::{Claim, ContentId, Mapping, Member, TrimRecord};
use flashweir_core::command::StreamId;
use flashweir_core::oob::Owner;
use flashweir_core::{Lpn, Ppa};

const MAGIC: u32 = u32::from_le_bytes(*b"FWMP");

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A deallocation.
    Trim(TrimRecord),
    /// One mapping of a checkpoint.
    Mapping(Mapping),
    /// A block is full: its opening, and how many unit records follow.
    Summary { block: BlockId, opened: u64, units: u64 },
    /// One unit of the block whose summary this belongs to.
    Unit {
        unit: u32,
        lpn: Lpn,
        seq: u64,
        /// Whether it is a copy that counts only by the record of its SHARE (share §4.5).
        hidden: bool,
    },
    /// Begins a checkpoint: everything up to the horizon is in it, and it does not vouch for blocks that were opened later or are
    /// named as open.
    Checkpoint {
        horizon: u64,
        openings: u64,
        /// Number of the newest translation page at that time.
        maps: u64,
    },
    /// A block that was open when the checkpoint was taken.
    Open(BlockId),
    /// The unit or deallocation in the record before is a member of an epoch.
    Member(Member),
    /// All epochs of a stream up to this one are complete.
    Complete { stream: StreamId, epoch: u32 },
    /// Place of a translation page, and the number of its state there.
    MapPage { page: u32, ppa: Ppa, number: u64 },
    /// In a checkpoint: the unit is not mapped, whatever its translation page says.
    Gone(Lpn),
    /// Begins a SHARE, whose claims follow.
    Share { seq: u64, claims: u64 },
    /// One page of the SHARE to which this belongs, and its content; the place has a record of its own.
    Claim(Claim),
    /// Place of the content of the claim in the record before.
    At(Ppa),
    /// In a checkpoint: the page of the mapping in the record before has its content because of a SHARE.
    Content(ContentId),
}

/// A unit of a summary that is hidden.
const HIDDEN: u64 = 1 << 32;

const VALUE: u64 = (1 << 56) - 1;

impl Record {
    fn words(self) -> [u64; 3] {
        let first = |kind: u64, value: u64| kind << 56 | (value & VALUE);
        match self {
            Self::Trim(trim) => [first(1, trim.count), trim.lpn.0, trim.seq],
            Self::Mapping(m) => [first(2, m.ppa.0), m.lpn.0, m.seq],
            Self::Summary { block, opened, units } => [first(3, u64::from(block.0)), opened, units],
            Self::Unit { unit, lpn, seq, hidden } => {
                [first(4, u64::from(unit) | if hidden { HIDDEN } else { 0 }), lpn.0, seq]
            }
            Self::Checkpoint { horizon, openings, maps } => [first(5, maps), horizon, openings],
            Self::Open(block) => [first(6, u64::from(block.0)), 0, 0],
            Self::Member(m) => {
                let counts =
                    u64::from(m.previous) | u64::from(m.distance) << 16 | u64::from(m.orderless) << 24;
                [first(7, u64::from(m.stream.0)), m.epoch.into(), counts]
            }
            Self::Complete { stream, epoch } => [first(8, u64::from(stream.0)), epoch.into(), 0],
            Self::MapPage { page, ppa, number } => [first(9, u64::from(page)), ppa.0, number],
            Self::Gone(lpn) => [first(10, 0), lpn.0, 0],
            Self::Share { seq, claims } => [first(11, claims), seq, 0],
            Self::Claim(Claim { lpn, content, .. }) => {
                [first(12, lpn.0), content.owner().pack(), content.seq]
            }
            Self::Content(content) => [first(13, 0), content.owner().pack(), content.seq],
            Self::At(place) => [first(14, 0), place.0, 0],
        }
    }

    fn of([first, a, b]: [u64; 3]) -> Option<Self> {
        let value = first & VALUE;
        Some(match first >> 56 {
            1 => Self::Trim(TrimRecord { count: value, lpn: Lpn(a), seq: b }),
            2 => Self::Mapping(Mapping { ppa: Ppa(value), lpn: Lpn(a), seq: b }),
            3 => Self::Summary { block: BlockId(value as u32), opened: a, units: b },
            4 => Self::Unit { unit: value as u32, lpn: Lpn(a), seq: b, hidden: value & HIDDEN != 0 },
            5 => Self::Checkpoint { horizon: a, openings: b, maps: value },
            6 => Self::Open(BlockId(value as u32)),
            7 => Self::Member(Member {
                stream: StreamId(u16::try_from(value).ok()?),
                epoch: u32::try_from(a).ok()?,
                previous: b as u16,
                distance: (b >> 16) as u8,
                orderless: b >> 24 & 1 == 1,
            }),
            8 => {
                Self::Complete { stream: StreamId(u16::try_from(value).ok()?), epoch: u32::try_from(a).ok()? }
            }
            9 => Self::MapPage { page: u32::try_from(value).ok()?, ppa: Ppa(a), number: b },
            10 => Self::Gone(Lpn(a)),
            11 => Self::Share { claims: value, seq: a },
            12 => {
                let content = ContentId::new(Owner::unpack(a), b);
                Self::Claim(Claim { lpn: Lpn(value), content, place: None })
            }
            13 => Self::Content(ContentId::new(Owner::unpack(a), b)),
            14 => Self::At(Ppa(a)),
            _ => return None,
        })
    }
}

/// Encodes a page, without the zeros behind the last record.
pub fn encode(header: &PageHeader, records: &[Record]) -> Vec<u8> {
    log_page::encode(MAGIC, header, records.iter().map(|record| record.words()))
}

/// Decodes a page; `None` if it is not a complete, intact metadata page of this version.
pub fn decode(page: &[u8]) -> Option<(PageHeader, Vec<Record>)> {
    log_page::decode(MAGIC, page, Record::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> (PageHeader, Vec<Record>) {
        let header = PageHeader { kind: GroupKind::Checkpoint, boot: 3, group: 1 << 40, index: 2, total: 5 };
        let records = vec![
            Record::Checkpoint { horizon: 77, openings: 9, maps: 1 << 30 },
            Record::Open(BlockId(4)),
            Record::Mapping(Mapping { lpn: Lpn(1 << 40), ppa: Ppa(1 << 50), seq: 12 }),
            Record::Trim(TrimRecord { lpn: Lpn(3), count: 1 << 36, seq: 13 }),
            Record::Summary { block: BlockId(7), opened: 8, units: 1 },
            Record::Unit { unit: 5, lpn: Lpn(6), seq: 7, hidden: false },
            Record::Unit { unit: u32::MAX, lpn: Lpn(6), seq: 7, hidden: true },
            Record::Member(Member {
                stream: StreamId(9),
                epoch: 1 << 23,
                previous: 65_535,
                distance: 255,
                orderless: true,
            }),
            Record::Complete { stream: StreamId(65_535), epoch: 3 },
            Record::MapPage { page: u32::MAX, ppa: Ppa(1 << 60), number: 1 << 33 },
            Record::Gone(Lpn(1 << 41)),
            Record::Share { seq: 1 << 50, claims: 2 },
            Record::Claim(Claim {
                lpn: Lpn(1 << 41),
                content: ContentId::new(Owner::Lpn(Lpn(1 << 42)), 9),
                place: None,
            }),
            Record::Claim(Claim {
                lpn: Lpn(5),
                content: ContentId::new(Owner::Vpid(1 << 42), 9),
                place: None,
            }),
            Record::Content(ContentId::new(Owner::Vpid(3), 1 << 40)),
            Record::At(Ppa(1 << 55)),
        ];
        (header, records)
    }

    #[test]
    fn a_page_is_read_back() {
        let (header, records) = sample();
        let page = encode(&header, &records);
        assert_eq!(page.len(), HEADER_BYTES + 16 * RECORD_BYTES);
        assert_eq!(decode(&page), Some((header, records)));
    }

    #[test]
    fn each_flipped_bit_is_noticed() {
        let (header, records) = sample();
        let page = encode(&header, &records);
        for bit in 0..page.len() * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
        for len in 0..page.len() {
            assert_eq!(decode(&page[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let mut with_magic = b"FWMP\x01\x00\x01\x00".to_vec();
            with_magic.extend(bytes);
            prop_assert_eq!(decode(&with_magic), None);
        }
    }
}
