//! Stamps of the sectors of a write: their address and the operation that wrote them, with a checksum, so that a wrong sector identifies
//! its own failure (crash-laboratory §3.6).
//!
//! Layout of a block of 512 bytes, little-endian: 0 magic, 8 its number on the disk, 16 operation, 24 filling that
//! depends on both, 508 CRC-32C of everything before. The filling is not linear, so that no checksum over several
//! blocks cancels (crash-laboratory §3.6).

use flashweir_core::random::mix;

/// Bytes of a block: the smallest that a client can write.
pub const BLOCK: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"weircuts");
const CRC_AT: usize = BLOCK - 4;

/// Decoded content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Zeros.
    Zero,
    /// A whole stamp.
    Stamp {
        /// The block that it was written for.
        block: u64,
        /// The operation that wrote it.
        op: u64,
    },
    /// Anything else.
    Garbage,
}

/// Fills `bytes`, whole blocks that belong at block `first` of the disk, with the stamp of `op`.
pub fn stamp(bytes: &mut [u8], first: u64, op: u64) {
    for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&block.to_le_bytes());
        bytes[16..24].copy_from_slice(&op.to_le_bytes());
        let seed = mix(mix(op) ^ block.rotate_left(32));
        for (i, word) in (0..).zip(bytes[24..CRC_AT].chunks_mut(8)) {
            word.copy_from_slice(&mix(seed ^ i).to_le_bytes()[..word.len()]);
        }
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Decodes the content of a sector.
pub fn shown(block: &[u8]) -> Shown {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    if block.iter().all(|byte| *byte == 0) {
        Shown::Zero
    } else if word(0) == MAGIC && crc32c::crc32c(&block[..CRC_AT]).to_le_bytes() == block[CRC_AT..] {
        Shown::Stamp { block: word(8), op: word(16) }
    } else {
        Shown::Garbage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_says_where_it_belongs_and_whose_it_is() {
        let mut bytes = [0; 3 * BLOCK];
        assert_eq!(shown(&bytes[..BLOCK]), Shown::Zero);
        stamp(&mut bytes, 70, 9);
        assert_eq!(shown(&bytes[2 * BLOCK..]), Shown::Stamp { block: 72, op: 9 });
        bytes[100] ^= 1;
        assert_eq!(shown(&bytes[..BLOCK]), Shown::Garbage);
    }
}
