//! The bits of a translation page (device-metadata §11): a checked view and its entries.

use crate::geometry::{MAP_ENTRY_BYTES, MAP_HEADER_BYTES};
use flashweir_core::Ppa;

const MAGIC: u32 = u32::from_le_bytes(*b"FWTP");
const VERSION: u16 = 1;

/// Where the version of a unit is, and its sequence number; `None` is nowhere.
pub(super) type Entry = Option<(Ppa, u64)>;

/// One state of a translation page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MapPageImage {
    /// Which part of the map it is.
    pub(super) page: u32,
    /// Number of this state; a later one of any page has a higher number.
    pub(super) number: u64,
    pub(super) entries: Vec<Entry>,
}

/// Writes a page; zeros to its end are left out.
pub(super) fn encode(image: &MapPageImage) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAP_HEADER_BYTES + image.entries.len() * MAP_ENTRY_BYTES);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
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
    let crc = crc32c::crc32c(&bytes);
    bytes[MAP_HEADER_BYTES - 4..MAP_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads a page; `None` if it is not a whole, intact translation page of this version.
pub(super) fn decode(bytes: &[u8]) -> Option<MapPageImage> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if u32_at(0)? != MAGIC || u16_at(4)? != VERSION {
        return None;
    }
    let count = u32_at(24)? as usize;
    let used = bytes.get(..MAP_HEADER_BYTES.checked_add(count.checked_mul(MAP_ENTRY_BYTES)?)?)?;
    let mut crc = crc32c::crc32c(&used[..MAP_HEADER_BYTES - 4]);
    crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc = crc32c::crc32c_append(crc, &used[MAP_HEADER_BYTES..]);
    if crc != u32_at(MAP_HEADER_BYTES - 4)? {
        return None;
    }
    let entry = |nth: usize| {
        let at = MAP_HEADER_BYTES + nth * MAP_ENTRY_BYTES;
        let (place, seq) = (u64_at(at)?, u64_at(at + 8)?);
        Some(place.checked_sub(1).map(|ppa| (Ppa(ppa), seq)))
    };
    let entries = (0..count).map(entry).collect::<Option<Vec<_>>>()?;
    Some(MapPageImage { page: u32::try_from(u64_at(8)?).ok()?, number: u64_at(16)?, entries })
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
        assert_eq!(bytes.len(), MAP_HEADER_BYTES + 3 * MAP_ENTRY_BYTES);
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
