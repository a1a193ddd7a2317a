//! The redo log in memory: the blocks that are being filled, and the positions up to which the log is written and
//! synced (database §4).
//!
//! Place in the data flow: a mini-transaction appends its group; a task that needs the log to be durable takes the
//! bytes that are not written yet (`log_io.rs` writes them); recovery reads blocks and extracts groups from them.
//!
//! Invariants: a position ([`Lsn`]) counts bytes of blocks, including their headers, so that it is an address in the
//! ring; it always points into the contents of a block. The log after the checkpoint is never overwritten: `lsn -
//! checkpoint` stays within the ring.

use crate::page::Lsn;
use crate::redo::Reader;

/// Size of a log block in bytes.
pub(crate) const BLOCK: u64 = 512;
/// Size of the header before its contents.
const HEAD: u64 = 12;
/// Size of the trailer after them.
const TAIL: u64 = 4;
/// Size of its contents.
const ROOM: u64 = BLOCK - HEAD - TAIL;
/// Unit of log writes in bytes, so that no page of the file has to be read for a write.
pub(crate) const UNIT: u64 = 4096;

/// Position at which the log of a new database begins.
pub(crate) const FIRST_LSN: Lsn = UNIT + HEAD;

/// Returns the position `bytes` of contents after `lsn`.
fn advance(lsn: Lsn, bytes: u64) -> Lsn {
    let into = lsn % BLOCK - HEAD + bytes;
    lsn - lsn % BLOCK + into / ROOM * BLOCK + HEAD + into % ROOM
}

/// The log (see the module).
#[derive(Debug)]
pub(crate) struct Log {
    /// Size of the ring in bytes.
    ring: u64,
    /// Number of times the database was opened; blocks of an earlier incarnation after the end do not continue the log.
    pub(crate) incarnation: u32,
    /// Position at which this incarnation began.
    pub(crate) begun: Lsn,
    /// Position of the next group.
    lsn: Lsn,
    /// Blocks from `base` on, which is a multiple of the unit; not sealed.
    blocks: Vec<u8>,
    base: Lsn,
    /// Position up to which the log is written to the file.
    pub(crate) written: Lsn,
    /// Position up to which the log is durable.
    pub(crate) synced: Lsn,
    /// Position at which recovery would begin.
    pub(crate) checkpoint: Lsn,
}

/// A part of the log that is to be written.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Position of the bytes, a multiple of the unit.
    pub(crate) base: Lsn,
    /// Sealed blocks; whole units.
    pub(crate) bytes: Vec<u8>,
    /// Position up to which the log is written after them.
    pub(crate) upto: Lsn,
}

impl Log {
    /// Makes a log that continues at `lsn`. `unit` holds the contents of the unit that contains `lsn`.
    pub(crate) fn new(ring: u64, lsn: Lsn, unit: &[u8], incarnation: u32, checkpoint: Lsn) -> Self {
        let base = lsn - lsn % UNIT;
        let mut blocks = unit.to_vec();
        blocks.resize(UNIT as usize, 0);
        // Bytes after the end are not part of the log.
        blocks[(lsn - base) as usize..].fill(0);
        Self { ring, incarnation, begun: lsn, lsn, blocks, base, written: lsn, synced: lsn, checkpoint }
    }

    /// Returns the end of the log.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Returns the number of bytes that recovery would have to read.
    pub(crate) fn age(&self) -> u64 {
        self.lsn - self.checkpoint
    }

    /// Returns how full the log is, in percent.
    pub(crate) fn full_percent(&self) -> u64 {
        self.age() * 100 / self.ring
    }

    /// Whether the log is so full that changes have to wait. The rest is for changes in progress.
    pub(crate) fn is_full(&self) -> bool {
        self.age() > self.ring / 8 * 7
    }

    /// Whether pages should be written so that the log does not get full.
    pub(crate) fn is_long(&self) -> bool {
        self.age() > self.ring / 2
    }

    /// Whether a checkpoint at `lsn` would be worth its write.
    pub(crate) fn is_worth_a_checkpoint(&self, lsn: Lsn) -> bool {
        lsn - self.checkpoint > self.ring / 16
    }

    /// Returns the lowest incarnation that a block after `lsn` may have. Blocks there that this incarnation has not
    /// written are left over from an earlier one, even if it begins exactly at `lsn`.
    pub(crate) fn least_incarnation(&self, lsn: Lsn) -> u32 {
        if lsn >= self.begun { self.incarnation } else { 0 }
    }

    /// Appends a group; returns its start and end.
    pub(crate) fn append(&mut self, group: &[u8]) -> (Lsn, Lsn) {
        let start = self.lsn;
        self.put(&(group.len() as u32).to_le_bytes());
        self.put(group);
        assert!(self.age() + UNIT <= self.ring, "changes wait while the log is full");
        (start, self.lsn)
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (BLOCK - TAIL - self.lsn % BLOCK) as usize;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            let at = (self.lsn - self.base) as usize;
            if self.blocks.len() < at + now.len() + TAIL as usize {
                self.blocks.resize(self.blocks.len() + UNIT as usize, 0);
            }
            self.blocks[at..at + now.len()].copy_from_slice(now);
            self.lsn = advance(self.lsn, now.len() as u64);
            bytes = rest;
        }
    }

    /// Returns the unwritten part of the log, sealed; `None` if everything is written.
    pub(crate) fn unwritten(&self) -> Option<Chunk> {
        if self.written == self.lsn {
            return None;
        }
        let first = (self.written - self.written % UNIT - self.base) as usize;
        let end = ((self.lsn - self.base).div_ceil(UNIT) * UNIT) as usize;
        let mut bytes = self.blocks[first..end.min(self.blocks.len())].to_vec();
        bytes.resize(end - first, 0);
        let base = self.base + first as u64;
        for (index, block) in bytes.chunks_exact_mut(BLOCK as usize).enumerate() {
            let begin = base + index as u64 * BLOCK;
            let used = self.lsn.saturating_sub(begin + HEAD).min(ROOM);
            // Blocks that were full when the log was opened stay as they are: with a new incarnation, the first write, if it is torn,
            // would end the log before them.
            let is_old = begin + BLOCK <= self.begun;
            if used > 0 && !is_old {
                seal(block, begin, used as usize, self.incarnation);
            }
        }
        Some(Chunk { base, bytes, upto: self.lsn })
    }

    /// Records that a chunk was written.
    pub(crate) fn note_written(&mut self, upto: Lsn) {
        self.written = self.written.max(upto);
        let keep = (self.written - self.written % UNIT - self.base) as usize;
        self.blocks.drain(..keep.min(self.blocks.len()));
        self.base += keep as u64;
    }
}

/// Sets header and checksum of a block.
fn seal(block: &mut [u8], begin: Lsn, used: usize, incarnation: u32) {
    block[0..4].copy_from_slice(&((begin / BLOCK) as u32).to_le_bytes());
    block[4..8].copy_from_slice(&incarnation.to_le_bytes());
    block[8..12].copy_from_slice(&(used as u32).to_le_bytes());
    let end = block.len() - TAIL as usize;
    let sum = crc32c::crc32c(&block[..end]);
    block[end..].copy_from_slice(&sum.to_le_bytes());
}

/// A block as it was read.
struct Found<'a> {
    incarnation: u32,
    contents: &'a [u8],
}

fn open(block: &[u8], begin: Lsn) -> Option<Found<'_>> {
    let end = block.len() - TAIL as usize;
    let mut reader = Reader(block);
    let (number, incarnation, used) = (reader.u32()?, reader.u32()?, reader.u32()? as usize);
    let sum = Reader(&block[end..]).u32()?;
    let is_good = sum == crc32c::crc32c(&block[..end])
        && number == (begin / BLOCK) as u32
        && (1..=ROOM as usize).contains(&used);
    is_good.then(|| Found { incarnation, contents: &block[HEAD as usize..HEAD as usize + used] })
}

/// Extracts groups from blocks that are read one after the other.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Start of the next group.
    lsn: Lsn,
    incarnation: u32,
    /// Contents from `lsn` on.
    contents: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Scan {
    /// Makes a scan from a checkpoint; no block after it is older than the incarnation `least`.
    pub(crate) fn new(checkpoint: Lsn, least: u32) -> Self {
        Self { lsn: checkpoint, incarnation: least, contents: Vec::new(), taken: 0, ended: false }
    }

    /// Returns the start of the next group, or the end of the log when all are taken.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Whether the end of the log was found in the blocks fed.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Feeds the blocks that begin at `begin`.
    pub(crate) fn feed(&mut self, begin: Lsn, blocks: &[u8]) {
        self.contents.drain(..self.taken);
        self.taken = 0;
        for (index, block) in blocks.chunks_exact(BLOCK as usize).enumerate() {
            let at = begin + index as u64 * BLOCK;
            if self.ended {
                return;
            }
            if at + BLOCK <= self.lsn {
                continue;
            }
            let found = open(block, at).filter(|found| found.incarnation >= self.incarnation);
            let Some(found) = found else {
                self.ended = true;
                return;
            };
            self.incarnation = found.incarnation;
            // The first block may contain groups before the checkpoint.
            let skip = self.lsn.saturating_sub(at + HEAD).min(ROOM) as usize;
            self.contents.extend_from_slice(found.contents.get(skip..).unwrap_or_default());
            self.ended = found.contents.len() < ROOM as usize;
        }
    }

    /// Returns the next complete group, with its start and end.
    pub(crate) fn next_group(&mut self) -> Option<(Lsn, Lsn, Vec<u8>)> {
        let mut reader = Reader(&self.contents[self.taken..]);
        let len = reader.u32()? as usize;
        let group = reader.take(len)?.to_vec();
        let start = self.lsn;
        self.taken += 4 + len;
        self.lsn = advance(start, 4 + len as u64);
        Some((start, self.lsn, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;

    fn group(stream: &mut RandomStream) -> Vec<u8> {
        (0..stream.below(1500)).map(|_| stream.next_u64() as u8).collect()
    }

    #[test]
    fn positions_skip_heads() {
        assert_eq!(advance(12, 495), 507);
        assert_eq!(advance(12, 496), 524);
        assert_eq!(advance(507, 1), 524);
        assert_eq!(advance(500, 3 * 496), 500 + 3 * 512);
    }

    /// Writes chunks into an image of the ring, and reads the appended groups back, after the log has wrapped around.
    #[test]
    fn groups_are_read_as_they_were_written() {
        let ring = 64 << 10;
        let mut image = vec![0u8; ring as usize];
        let mut log = Log::new(ring, FIRST_LSN, &[], 1, FIRST_LSN);
        let mut stream = RandomStream::new(1, "log");
        let mut groups = Vec::new();
        for step in 0..2000 {
            let bytes = group(&mut stream);
            if log.age() > ring / 2 {
                log.checkpoint = log.lsn();
                groups.clear();
            }
            let (start, end) = log.append(&bytes);
            groups.push((start, end, bytes));
            if step % 3 == 0 {
                let chunk = log.unwritten().unwrap();
                for (unit, bytes) in chunk.bytes.chunks(UNIT as usize).enumerate() {
                    let at = ((chunk.base + unit as u64 * UNIT) % ring) as usize;
                    image[at..at + UNIT as usize].copy_from_slice(bytes);
                }
                log.note_written(chunk.upto);
                let mut scan = Scan::new(log.checkpoint, 0);
                let mut at = log.checkpoint - log.checkpoint % UNIT;
                let mut seen = Vec::new();
                while !scan.has_ended() {
                    let place = (at % ring) as usize;
                    scan.feed(at, &image[place..place + UNIT as usize]);
                    seen.extend(std::iter::from_fn(|| scan.next_group()));
                    at += UNIT;
                }
                assert_eq!(seen, groups, "step {step}");
                assert_eq!(scan.lsn(), log.lsn());
            }
        }
        assert!(log.lsn() > 10 * ring);
    }

    /// The first write of a log that was opened again gave its old blocks a new incarnation. If only the first of them reached the
    /// medium, the next reader took the others for leftovers: what had been recovered once was gone.
    #[test]
    fn regression_a_torn_first_write_leaves_the_old_log_readable() {
        let ring = 64 << 10;
        let mut old = Log::new(ring, FIRST_LSN, &[], 1, FIRST_LSN);
        let mut ends = Vec::new();
        for nth in 0..5u8 {
            ends.push(old.append(&[nth; 500]).1);
        }
        let image = old.unwritten().unwrap().bytes;
        let mut new = Log::new(ring, old.lsn(), &image[..UNIT as usize], 2, FIRST_LSN);
        new.append(&[9; 500]);
        let written = new.unwritten().unwrap().bytes;
        let blocks = written.len() / BLOCK as usize;
        for subset in 0..1u32 << blocks {
            let mut torn = image.clone();
            torn.resize(written.len().max(image.len()), 0);
            for block in (0..blocks).filter(|block| subset >> block & 1 == 1) {
                let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
                torn[range.clone()].copy_from_slice(&written[range]);
            }
            let mut scan = Scan::new(FIRST_LSN, 0);
            scan.feed(FIRST_LSN - HEAD, &torn);
            for (nth, end) in ends.iter().enumerate() {
                let (_, at, group) = scan.next_group().unwrap_or_else(|| panic!("group {nth} of {subset:b}"));
                assert_eq!((at, &group[..]), (*end, &[nth as u8; 500][..]));
            }
        }
    }

    /// Blocks of an earlier incarnation after the end of the log are not part of it.
    #[test]
    fn a_log_does_not_run_into_an_older_one() {
        let ring = 64 << 10;
        let mut old = Log::new(ring, FIRST_LSN, &[], 1, FIRST_LSN);
        let contents = vec![7; 3000];
        for _ in 0..8 {
            old.append(&contents);
        }
        let mut image = old.unwritten().unwrap().bytes;
        // A new log begins at the same position and fills exactly one block.
        let mut new = Log::new(ring, FIRST_LSN, &[], 2, FIRST_LSN);
        new.append(&[9; ROOM as usize - 4]);
        image[..BLOCK as usize].copy_from_slice(&new.unwritten().unwrap().bytes[..BLOCK as usize]);
        let mut scan = Scan::new(FIRST_LSN, 0);
        scan.feed(FIRST_LSN - HEAD, &image);
        assert_eq!(scan.next_group().unwrap().2, [9; ROOM as usize - 4]);
        assert_eq!(scan.next_group(), None);
        assert!(scan.has_ended());
        // A checkpoint at the end of the new log: the following block is intact, and not part of it either.
        let end = new.lsn();
        assert_eq!(
            (end % BLOCK, new.least_incarnation(end), new.least_incarnation(FIRST_LSN - 1)),
            (HEAD, 2, 0)
        );
        let mut scan = Scan::new(end, new.least_incarnation(end));
        scan.feed(FIRST_LSN - HEAD, &image);
        assert_eq!((scan.next_group(), scan.has_ended(), scan.lsn()), (None, true, end));
    }
}
