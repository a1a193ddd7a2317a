//! The checksums of the format: CRC-32C of metadata, CRC-16 of group descriptors of older volumes, and the CRC-32 of the
//! first journal checksums. None is inverted at its end, so that one can be the seed of the next.

use super::Ino;

/// Initial value of checksums that have no seed of their own.
pub const START: u32 = !0;

/// CRC-32C that continues from `seed`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The seed of checksums of an inode: of itself, its extent blocks and its directory blocks.
pub fn inode_seed(volume_seed: u32, ino: Ino, generation: u32) -> u32 {
    crc32c(crc32c(volume_seed, &ino.0.to_le_bytes()), &generation.to_le_bytes())
}

/// CRC-16 with the reflected polynomial 0xA001.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 == 1 { 0xa001 ^ (crc >> 1) } else { crc >> 1 })
    })
}

const BIG_ENDIAN_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 1 { 0x04c1_1db7 ^ (crc << 1) } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// CRC-32 with the polynomial 0x04C11DB7, highest bit first.
pub fn crc32_big_endian(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        BIG_ENDIAN_TABLE[((crc >> 24) ^ u32::from(byte)) as usize & 0xff] ^ (crc << 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue_of_crcs() {
        let text = b"123456789";
        assert_eq!(!crc32c(START, text), 0xe306_9283);
        assert_eq!(crc32c(crc32c(START, b"1234"), b"56789"), crc32c(START, text));
        assert_eq!(crc16(0, text), 0xbb3d);
        assert_eq!(crc16(!0, text), 0x4b37);
        assert_eq!(crc32_big_endian(!0, text), 0x0376_e6e7);
    }
}
