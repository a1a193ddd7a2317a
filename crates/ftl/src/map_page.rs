//! The format of a translation page (device-metadata §11): encoding, and decoding with checks.

use crate::sealed::Frame;
use flashweir_core::Ppa;

/// Bytes of a translation page before the first entry.
const HEADER_BYTES: usize = 32;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;
const FRAME: Frame = Frame {
    magic: u32::from_le_bytes(*b"FWTP"),
    version: 1,
    header_bytes: HEADER_BYTES,
    count_at: 24,
    item_bytes: ENTRY_BYTES,
};

/// Most mapping units that a translation page of `page_bytes` can map.
pub fn entries_max(page_bytes: u64) -> u32 {
    (page_bytes as usize).saturating_sub(HEADER_BYTES).div_euclid(ENTRY_BYTES) as u32
}

/// Place of a unit's version, and its sequence number; `None` if the unit is not mapped.
pub type Entry = Option<(Ppa, u64)>;

/// One state of a translation page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPageImage {
    /// Number of the translation page: which part of the map it holds.
    pub page: u32,
    /// Number of this state; a later state of any page has a higher number.
    pub number: u64,
    pub entries: Vec<Entry>,
}

/// Encodes a page, without the zeros to its end.
pub fn encode(image: &MapPageImage) -> Vec<u8> {
    let mut bytes = FRAME.begin(image.entries.len());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&u64::from(image.page).to_le_bytes());
    bytes.extend_from_slice(&image.number.to_le_bytes());
    bytes.extend_from_slice(&(image.entries.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for entry in &image.entries {
        let (place, seq) = entry.map_or((0, 0), |(ppa, seq)| (ppa.0 + 1, seq));
        bytes.extend_from_slice(&place.to_le_bytes());
        bytes.extend_from_slice(&seq.to_le_bytes());
    }
    FRAME.seal(&mut bytes);
    bytes
}

/// Decodes a page; `None` if it is not a complete, intact translation page of this version.
pub fn decode(bytes: &[u8]) -> Option<MapPageImage> {
    let (fields, count) = FRAME.open(bytes)?;
    let entry = |nth: usize| {
        let at = HEADER_BYTES + nth * ENTRY_BYTES;
        let (place, seq) = (fields.u64_at(at)?, fields.u64_at(at + 8)?);
        Some(place.checked_sub(1).map(|ppa| (Ppa(ppa), seq)))
    };
    let entries = (0..count).map(entry).collect::<Option<Vec<_>>>()?;
    Some(MapPageImage { page: u32::try_from(fields.u64_at(8)?).ok()?, number: fields.u64_at(16)?, entries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> MapPageImage {
        let entries = vec![Some((Ppa(0), 7)), None, Some((Ppa(1 << 50), 1 << 47))];
        MapPageImage { page: 9, number: 1 << 40, entries }
    }

    #[test]
    fn a_translation_page_is_read_back() {
        let bytes = encode(&sample());
        assert_eq!(bytes.len(), HEADER_BYTES + 3 * ENTRY_BYTES);
        assert_eq!(decode(&bytes), Some(sample()));
    }

    #[test]
    fn each_flipped_bit_of_a_translation_page_is_noticed() {
        let bytes = encode(&sample());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let mut with_magic = b"FWTP\x01\x00\x00\x00".to_vec();
            with_magic.extend(bytes);
            prop_assert_eq!(decode(&with_magic), None);
        }
    }
}
