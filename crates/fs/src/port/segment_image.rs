//! An image of a disk of append segments in a sparse file: the blocks, then how many of each segment are written, and last a block that
//! says so.
//!
//! ```text
//! ┌─ segments × segment blocks ─┬─ a u32 for each segment, whole blocks ─┬─ "weir segments", version, sizes, checksum ─┐
//! ```
//!
//! Place in the data flow: tools read and write volumes in it; it answers at once. It refuses whatever append segments refuse.
//!
//! Invariants: numbers of written blocks reach the file with a flush; a block beyond them counts as never written.

use super::segment_rules::Rules;
use super::{Answer, BLOCK_BYTES, Block, BlockPort, PortError, Request, Ticket, bytes_of};
use flashweir_core::random::mix;
use flashweir_core::{DeviceError, Payload};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 13] = b"weir segments";
const VERSION: u32 = 1;
const VERSION_AT: usize = 16;
const SEGMENT_BLOCKS_AT: usize = 20;
const SEGMENTS_AT: usize = 24;
const CHECKSUM_AT: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct SegmentImage {
    file: File,
    name: String,
    segment_blocks: u32,
    /// Number of blocks that are written, by segment.
    written: RefCell<Vec<u32>>,
}

/// The number at `at`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn failed(name: &str, error: io::Error) -> PortError {
    PortError::Image(format!("{name}: {error}"))
}

fn table_of(written: &[u32]) -> Vec<u8> {
    let mut table: Vec<u8> = written.iter().flat_map(|count| count.to_le_bytes()).collect();
    table.resize(table.len().next_multiple_of(BLOCK_BYTES), 0);
    table
}

fn checksum(table: &[u8]) -> u32 {
    table.chunks_exact(4).fold(1, |sum, word| mix(sum ^ u64::from(u32_at(word, 0)))) as u32
}

impl SegmentImage {
    /// Size of the file in blocks.
    pub fn file_blocks(segments: u32, segment_blocks: u32) -> u64 {
        let table = (u64::from(segments) * 4).div_ceil(BLOCK_BYTES as u64);
        u64::from(segments) * u64::from(segment_blocks) + table + 1
    }

    /// A new sparse file in which nothing is written; one that exists is made empty. Errors: what the host says, with the path.
    pub fn create(path: &Path, segments: u32, segment_blocks: u32) -> Result<Self, PortError> {
        let name = path.display().to_string();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(path);
        Self::new(file.map_err(|error| failed(&name, error))?, name, segments, segment_blocks)
    }

    /// The same in a file that is open for reading and writing; `name` is for errors.
    pub fn new(file: File, name: String, segments: u32, segment_blocks: u32) -> Result<Self, PortError> {
        let bytes = Self::file_blocks(segments, segment_blocks) * BLOCK_BYTES as u64;
        file.set_len(bytes).map_err(|error| failed(&name, error))?;
        let image = Self { file, name, segment_blocks, written: RefCell::new(vec![0; segments as usize]) };
        image.store().map(|()| image)
    }

    /// Opens the image in a file; `None` if it is of another kind. Errors: what the host says, or that the image contradicts itself, with
    /// the path.
    pub fn open(path: &Path, writable: bool) -> Result<Option<Self>, PortError> {
        let name = path.display().to_string();
        let fail = |error: io::Error| failed(&name, error);
        let file = OpenOptions::new().read(true).write(writable).open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        let bytes = metadata.len();
        if !metadata.is_file() || bytes < BLOCK_BYTES as u64 || !bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Ok(None);
        }
        let mut head = [0; BLOCK_BYTES];
        file.read_exact_at(&mut head, bytes - BLOCK_BYTES as u64).map_err(fail)?;
        if head[..MAGIC.len()] != MAGIC[..] {
            return Ok(None);
        }
        let wrong = |what: String| PortError::Image(format!("{name}: {what}"));
        let (version, segment_blocks, segments) =
            (u32_at(&head, VERSION_AT), u32_at(&head, SEGMENT_BLOCKS_AT), u32_at(&head, SEGMENTS_AT));
        if version != VERSION {
            return Err(wrong(format!("an image of segments of version {version}, expected {VERSION}")));
        }
        let blocks = Self::file_blocks(segments, segment_blocks);
        if segment_blocks == 0 || blocks.checked_mul(BLOCK_BYTES as u64) != Some(bytes) {
            return Err(wrong(format!(
                "{segments} segments of {segment_blocks} blocks do not fit {bytes} bytes"
            )));
        }
        let first = u64::from(segments) * u64::from(segment_blocks) * BLOCK_BYTES as u64;
        let mut table = vec![0; (bytes - BLOCK_BYTES as u64 - first) as usize];
        file.read_exact_at(&mut table, first).map_err(fail)?;
        if checksum(&table) != u32_at(&head, CHECKSUM_AT) {
            return Err(wrong("the checksum of the numbers of written blocks is wrong".into()));
        }
        let written: Vec<u32> =
            table.chunks_exact(4).take(segments as usize).map(|word| u32_at(word, 0)).collect();
        if let Some(segment) = written.iter().position(|count| *count > segment_blocks) {
            let count = written[segment];
            return Err(wrong(format!("segment {segment} has {count} written blocks of {segment_blocks}")));
        }
        Ok(Some(Self { file, name, segment_blocks, written: RefCell::new(written) }))
    }

    /// Number of segments.
    pub fn segments(&self) -> u32 {
        self.written.borrow().len() as u32
    }

    /// Number of blocks that are written, by segment.
    pub fn written(&self) -> Vec<u32> {
        self.written.borrow().clone()
    }

    fn store(&self) -> Result<(), PortError> {
        let table = table_of(&self.written.borrow());
        let mut head = [0; BLOCK_BYTES];
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        for (at, word) in [
            (VERSION_AT, VERSION),
            (SEGMENT_BLOCKS_AT, self.segment_blocks),
            (SEGMENTS_AT, self.segments()),
            (CHECKSUM_AT, checksum(&table)),
        ] {
            head[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let first = self.capacity_blocks() * BLOCK_BYTES as u64;
        let stored = self.file.write_all_at(&table, first);
        let stored = stored.and_then(|()| self.file.write_all_at(&head, first + table.len() as u64));
        stored.and_then(|()| self.file.sync_data()).map_err(|error| failed(&self.name, error))
    }

    fn rules(&self) -> Rules {
        Rules { segments: self.segments(), segment_blocks: self.segment_blocks }
    }

    fn pointer(&self, segment: usize) -> u32 {
        self.written.borrow()[segment]
    }

    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Read { block, count } => {
                self.rules().check(block, count.into())?;
                (block.0..block.0 + u64::from(count)).map(|block| self.read_block(Block(block))).collect()
            }
            Request::Write(write) => {
                let count = write.payloads.len() as u64;
                let segment =
                    self.rules().check_write(write.block, count, |segment| self.pointer(segment))?;
                let bytes: Vec<u8> =
                    write.payloads.iter().flat_map(|payload| bytes_of(payload).to_vec()).collect();
                let written = self.file.write_all_at(&bytes, write.block.0 * BLOCK_BYTES as u64);
                written.map_err(|error| failed(&self.name, error))?;
                self.written.borrow_mut()[segment] += count as u32;
                if write.fua { self.store().map(|()| Box::default()) } else { Ok(Box::default()) }
            }
            Request::Flush | Request::RangeFlush(_) => self.store().map(|()| Box::default()),
            Request::Discard { block, count, .. } => {
                let segment = self.rules().check_discard(block, count)?;
                self.written.borrow_mut()[segment] = 0;
                Ok(Box::default())
            }
            Request::Barrier(_) => Err(DeviceError::NotSupported("ordered commands").into()),
            Request::Share(_) => Err(DeviceError::NotSupported("SHARE of segments").into()),
            Request::Report(_) => unreachable!("it is answered where its ticket is made"),
        }
    }

    fn read_block(&self, block: Block) -> Result<Payload, PortError> {
        let (segment, offset, at) = self.rules().place(block);
        if offset >= self.pointer(segment) {
            return Err(DeviceError::NotWritten { at }.into());
        }
        let mut bytes = vec![0; BLOCK_BYTES];
        let read = self.file.read_exact_at(&mut bytes, block.0 * BLOCK_BYTES as u64);
        read.map_err(|error| failed(&self.name, error))?;
        Ok(Payload::Bytes(Arc::from(bytes)))
    }
}

impl BlockPort for SegmentImage {
    fn capacity_blocks(&self) -> u64 {
        self.rules().capacity_blocks()
    }

    fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    fn submit(&self, request: Request) -> Ticket {
        match request {
            Request::Report(segment) => self.rules().report(segment, |segment| self.pointer(segment)),
            other => Ticket::done(self.answer(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::block_on;
    use super::*;
    use crate::alfs::{self, AlfsOptions};
    use std::rc::Rc;

    #[test]
    fn a_volume_in_a_file_is_there_again() {
        let dir = std::env::temp_dir().join(format!("flashweir-segments-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk.img");
        let image = SegmentImage::create(&path, 48, 512).unwrap();
        block_on(alfs::mkfs(&image, &alfs::Options::new(48 * 512))).unwrap();
        drop(image);
        for _ in 0..2 {
            let image: Rc<dyn BlockPort> = Rc::new(SegmentImage::open(&path, true).unwrap().unwrap());
            let fs = block_on(alfs::mount(Rc::clone(&image), AlfsOptions::default())).unwrap();
            block_on(crate::vfs::Fs::sync(&fs)).unwrap();
            block_on(crate::vfs::Fs::unmount(&fs)).unwrap();
            assert_eq!(block_on(alfs::check(image)).unwrap().problems, []);
        }
        // A file without the last block is none.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(SegmentImage::file_blocks(48, 512) * BLOCK_BYTES as u64 - BLOCK_BYTES as u64).unwrap();
        assert!(SegmentImage::open(&path, false).unwrap().is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
