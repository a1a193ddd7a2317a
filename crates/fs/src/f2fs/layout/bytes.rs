//! Little-endian fields, bitmaps and the checksum of the format.
//!
//! Invariant: an offset is a constant of the layout or was checked by the code that computed it; these functions panic beyond the
//! end of a slice, as slices do.

pub(crate) use crate::format::{array_at, put, set_slot_bit, slot_bit, u16_at, u32_at, u64_at};

/// A bit of a bitmap of blocks: version bitmaps and valid maps count from the highest bit of each byte.
pub(crate) fn block_bit(map: &[u8], bit: usize) -> bool {
    map.get(bit / 8).is_some_and(|byte| byte & (0x80 >> (bit % 8)) != 0)
}

/// Sets a bit of a bitmap of blocks.
pub(crate) fn set_block_bit(map: &mut [u8], bit: usize, value: bool) {
    let mask = 0x80 >> (bit % 8);
    let byte = &mut map[bit / 8];
    *byte = if value { *byte | mask } else { *byte & !mask };
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// CRC-32 with the reflected polynomial 0xEDB88320, started with `seed` and not inverted at the end. Structures take
/// the magic number as the seed.
pub(crate) fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| CRC_TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32_without_its_inversions() {
        assert_eq!(!crc32(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(crc32(7, b"1234"), b"56789"), crc32(7, b"123456789"));
    }

    #[test]
    fn bitmaps_of_blocks_and_of_slots_count_from_opposite_ends() {
        let mut map = [0; 2];
        set_block_bit(&mut map, 1, true);
        set_slot_bit(&mut map, 9, true);
        assert_eq!(map, [0x40, 0x02]);
        assert!(block_bit(&map, 1) && slot_bit(&map, 9) && !block_bit(&map, 0) && !slot_bit(&map, 99));
        set_block_bit(&mut map, 1, false);
        set_slot_bit(&mut map, 9, false);
        assert_eq!(map, [0, 0]);
    }
}
