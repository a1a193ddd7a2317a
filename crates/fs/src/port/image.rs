//! Ports that answer at once: a disk in memory, and a disk image in a sparse file. For tools and tests.
//!
//! Invariants: an unwritten block reads as zeros and takes no room. A request has been done when `submit` returns, so
//! a future that waits for nothing but an image is ready at its first poll ([`block_on`]).
//!
//! Deliberately absent: durability. A flush of a file is a flush of the host's; memory has none.

use super::{Answer, BLOCK_BYTES, Block, BlockPort, PortError, Remap, Request, Ticket, bytes_of};
use flashweir_core::command::OutOfRange;
use flashweir_core::{Address, DeviceError, Lba, Payload};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Blocks that are moved between a file and memory at once.
const CHUNK_BLOCKS: u32 = 256;
/// Most blocks of one SHARE of a disk in memory.
const SHARE_BLOCKS_MAX: u32 = 512;

#[derive(Debug)]
enum Store {
    Memory(RefCell<BTreeMap<u64, Payload>>),
    File { file: File, name: String },
}

/// A disk in memory or in a file.
#[derive(Debug)]
pub struct Image {
    blocks: u64,
    store: Store,
}

impl Image {
    /// A disk of zeros in memory.
    pub fn in_memory(blocks: u64) -> Self {
        Self { blocks, store: Store::Memory(RefCell::default()) }
    }

    /// A disk in memory with these bytes; the last block is filled up with zeros.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut store = BTreeMap::new();
        for (block, content) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if content.iter().any(|&byte| byte != 0) {
                let mut whole = vec![0; BLOCK_BYTES];
                whole[..content.len()].copy_from_slice(content);
                store.insert(block as u64, Payload::Bytes(whole.into()));
            }
        }
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u64;
        Self { blocks, store: Store::Memory(RefCell::new(store)) }
    }

    /// Opens the image in a file or on a block device. Errors: what the host says, with the path.
    pub fn open(path: &Path, writable: bool) -> Result<Self, PortError> {
        let name = path.display().to_string();
        let fail = |error: io::Error| PortError::Image(format!("{name}: {error}"));
        let file = OpenOptions::new().read(true).write(writable).open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(PortError::Image(format!("{name}: is a directory, expected an image file")));
        }
        // The end of a block device is found by seeking; its metadata have no length.
        let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(fail)?;
        Ok(Self { blocks: bytes / BLOCK_BYTES as u64, store: Store::File { file, name } })
    }

    /// A new sparse file of zeros; one that exists is made empty. Errors: what the host says, with the path.
    pub fn create(path: &Path, blocks: u64) -> Result<Self, PortError> {
        let name = path.display().to_string();
        let fail = |error: io::Error| PortError::Image(format!("{name}: {error}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(path).map_err(fail)?;
        file.set_len(blocks * BLOCK_BYTES as u64).map_err(fail)?;
        Ok(Self { blocks, store: Store::File { file, name } })
    }

    /// A file that is open for reading and writing; `name` is for errors.
    pub fn of_file(file: File, name: String, blocks: u64) -> Self {
        Self { blocks, store: Store::File { file, name } }
    }

    /// The whole content. For small images.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PortError> {
        let mut bytes = Vec::new();
        for block in 0..self.blocks {
            for payload in self.read_blocks(Block(block), 1)? {
                bytes.extend_from_slice(&bytes_of(&payload));
            }
        }
        Ok(bytes)
    }

    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Read { block, count } => {
                self.check(block, u64::from(count))?;
                self.read_blocks(block, count).map(Vec::into_boxed_slice)
            }
            Request::Write(write) => {
                self.check(write.block, write.payloads.len() as u64)?;
                self.write_blocks(write.block, &write.payloads)
            }
            Request::Flush | Request::RangeFlush(_) => self.flush_file(),
            Request::Barrier(_) => Ok(Box::default()),
            Request::Discard { block, count, .. } => {
                self.check(block, u64::from(count))?;
                self.forget(block, count)
            }
            Request::Share(share) => self.remap(&share.remaps),
            Request::Report(_) => Err(DeviceError::NotSupported("append segments").into()),
        }
    }

    fn check(&self, block: Block, count: u64) -> Result<(), PortError> {
        if block.0.checked_add(count).is_some_and(|end| end <= self.blocks) {
            return Ok(());
        }
        let per_block = BLOCK_BYTES as u64 / flashweir_core::units::LBA_BYTES;
        Err(PortError::Device(DeviceError::from(OutOfRange {
            at: Address::Lba(Lba(block.0.saturating_mul(per_block))),
            count: u32::try_from(count.saturating_mul(per_block)).unwrap_or(u32::MAX),
            capacity: self.blocks * per_block,
        })))
    }

    fn read_blocks(&self, block: Block, count: u32) -> Result<Vec<Payload>, PortError> {
        let range = block.0..block.0 + u64::from(count);
        match &self.store {
            Store::Memory(store) => {
                let store = store.borrow();
                Ok(range.map(|block| store.get(&block).cloned().unwrap_or_default()).collect())
            }
            Store::File { file, name } => {
                let mut payloads = Vec::with_capacity(count as usize);
                for first in range.clone().step_by(CHUNK_BLOCKS as usize) {
                    let blocks = (range.end - first).min(u64::from(CHUNK_BLOCKS)) as usize;
                    let mut bytes = vec![0; blocks * BLOCK_BYTES];
                    file.read_exact_at(&mut bytes, first * BLOCK_BYTES as u64).map_err(|error| {
                        PortError::Image(format!("{name}: read of block {first}: {error}"))
                    })?;
                    payloads.extend(bytes.chunks(BLOCK_BYTES).map(|bytes| Payload::Bytes(Arc::from(bytes))));
                }
                Ok(payloads)
            }
        }
    }

    fn write_blocks(&self, block: Block, payloads: &[Payload]) -> Answer {
        match &self.store {
            Store::Memory(store) => {
                let mut store = store.borrow_mut();
                for (block, payload) in (block.0..).zip(payloads.iter().cloned()) {
                    match payload {
                        Payload::Zero => drop(store.remove(&block)),
                        other => drop(store.insert(block, other)),
                    }
                }
            }
            Store::File { file, name } => {
                let first = block.0 * BLOCK_BYTES as u64;
                let mut bytes = Vec::with_capacity(payloads.len() * BLOCK_BYTES);
                for payload in payloads {
                    bytes.extend_from_slice(&bytes_of(payload));
                }
                file.write_all_at(&bytes, first).map_err(|error| {
                    PortError::Image(format!("{name}: write of block {}: {error}", block.0))
                })?;
            }
        }
        Ok(Box::default())
    }

    fn flush_file(&self) -> Answer {
        if let Store::File { file, name } = &self.store {
            file.sync_data().map_err(|error| PortError::Image(format!("{name}: {error}")))?;
        }
        Ok(Box::default())
    }

    /// Copies all sources before any destination changes. A file has no such command.
    fn remap(&self, remaps: &[Remap]) -> Answer {
        if matches!(self.store, Store::File { .. }) {
            return Err(DeviceError::NotSupported("SHARE").into());
        }
        let mut bound = Vec::with_capacity(remaps.len());
        for &Remap { dst, src, count } in remaps {
            self.check(dst, u64::from(count))?;
            self.check(src, u64::from(count))?;
            bound.push((dst, self.read_blocks(src, count)?));
        }
        for (dst, payloads) in bound {
            self.write_blocks(dst, &payloads)?;
        }
        Ok(Box::default())
    }

    /// Memory gives its room back; a file keeps its contents, which a discard allows.
    fn forget(&self, block: Block, count: u32) -> Answer {
        if let Store::Memory(store) = &self.store {
            let mut store = store.borrow_mut();
            for block in block.0..block.0 + u64::from(count) {
                store.remove(&block);
            }
        }
        Ok(Box::default())
    }
}

impl BlockPort for Image {
    fn capacity_blocks(&self) -> u64 {
        self.blocks
    }

    fn share_blocks_max(&self) -> u32 {
        match self.store {
            Store::Memory(_) => SHARE_BLOCKS_MAX,
            Store::File { .. } => 0,
        }
    }

    fn submit(&self, request: Request) -> Ticket {
        Ticket::done(self.answer(request))
    }
}

/// Runs code that waits for nothing but an [`Image`]. Panics if it waits for something else (a bug of ours).
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("an image answers at once, and there is nothing else to wait for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Selection, Write, payload_of};

    /// Each request once, and what can be seen of it.
    fn exercise(image: &Image) {
        let content = |byte| payload_of(&[byte; BLOCK_BYTES]);
        block_on(async {
            let write = Write::new(Block(3), vec![content(1), Payload::Zero, content(2)]);
            image.write(write).completed().await.unwrap();
            let read = image.read(Block(2), 5).completed().await.unwrap();
            let first: Vec<u8> = read.iter().map(|payload| bytes_of(payload)[0]).collect();
            assert_eq!(first, [0, 1, 0, 2, 0]);
            image.flush().completed().await.unwrap();
            image.range_flush(Selection::default()).completed().await.unwrap();
            image.discard(Block(3), 1).completed().await.unwrap();
            for (block, count) in [(8, 1), (7, 2), (u64::MAX, 2)] {
                let error = image.read(Block(block), count).completed().await.unwrap_err();
                assert!(matches!(error, PortError::Device(DeviceError::OutOfRange { .. })), "{error}");
            }
            let beyond = Write::new(Block(8), vec![content(1)]);
            assert!(image.write(beyond).completed().await.is_err());
        });
    }

    #[test]
    fn memory() {
        let image = Image::in_memory(8);
        exercise(&image);
        let bytes = image.to_bytes().unwrap();
        assert_eq!(bytes.len(), 8 * BLOCK_BYTES);
        assert_eq!(Image::from_bytes(&bytes).to_bytes().unwrap(), bytes);
    }

    #[test]
    fn a_file() {
        let path = std::env::temp_dir().join(format!("flashweir-image-{}", std::process::id()));
        exercise(&Image::create(&path, 8).unwrap());
        let image = Image::open(&path, false).unwrap();
        assert_eq!(image.capacity_blocks(), 8);
        let written = block_on(image.write(Write::new(Block(0), vec![Payload::Zero])).completed());
        assert!(written.unwrap_err().to_string().contains("write of block 0"));
        std::fs::remove_file(&path).unwrap();
        let error = Image::open(&path, false).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
