//! Where the device of a mount comes from, and what becomes of its contents at the end.
//!
//! A volume's medium is on the host's disk at each moment. An image is read into a fresh device before the mount and
//! written back at the end, into a file beside it that then takes its place: whoever looks at the image sees the state of
//! before the mount or that of its end.
//!
//! Invariant: a file or directory is in one mount at a time; its lock is held until the end.

use crate::volume::Volume;
use flashweir_contract::Contents;
use flashweir_core::{Lpn, Payload};
use flashweir_device::config::DeviceConfig;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::port::{BLOCK_BYTES, Block, BlockPort, Image, Write, bytes_of};
use flashweir_fs::{ext4, f2fs};
use flashweir_host::HostConfig;
use flashweir_lab::stack::{FlushMode, Port, Stack};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What is mounted.
#[derive(Clone, Debug)]
pub enum Medium {
    /// A file-system image in a file, read into a fresh device and written back at the end.
    Image {
        /// The file.
        path: PathBuf,
        /// The device.
        device: Box<DeviceConfig>,
        /// Seed of the device's randomness.
        seed: u64,
    },
    /// A volume in a directory ([`crate::volume`]), with its device.
    Volume(PathBuf),
    /// In memory.
    Memory(Memory),
}

/// A disk in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// What it holds, for people.
    pub name: PathBuf,
    /// The device, on which `blocks` have room.
    pub device: Box<DeviceConfig>,
    /// How many there are.
    pub blocks: u64,
    /// What they hold.
    pub contents: Arc<Contents>,
    /// Where they come to at the end.
    pub end: Option<Arc<Mutex<Contents>>>,
}

/// The format of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatKind {
    /// F2FS.
    F2fs,
    /// ext4.
    Ext4,
}

/// Blocks that are read or written at once.
const CHUNK_BLOCKS: u32 = 256;

/// A medium in use.
#[derive(Debug)]
pub(super) enum Held {
    Image { path: PathBuf, lock: File, blocks: u64, options: DeviceOptions },
    Volume(Box<Volume>),
    Memory { blocks: u64, options: DeviceOptions, end: Option<Arc<Mutex<Contents>>> },
}

impl Medium {
    /// Its path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Image { path, .. } | Self::Volume(path) => path,
            Self::Memory(memory) => &memory.name,
        }
    }

    /// A stack on the medium. Errors are in words.
    pub(super) fn open(self, flush: FlushMode) -> Result<(Held, Stack), String> {
        match self {
            Self::Memory(memory) => memory.open(flush),
            Self::Volume(path) => {
                let (volume, device, _) =
                    Volume::open(&path, &mut |_| {}).map_err(|error| error.to_string())?;
                Ok((Held::Volume(Box::new(volume)), stack(device, flush)))
            }
            Self::Image { path, device, seed } => {
                let named = |error: std::io::Error| format!("{}: {error}", path.display());
                let path = path.canonicalize().map_err(named)?;
                let lock = File::options().read(true).write(true).open(&path).map_err(named)?;
                lock.try_lock().map_err(|_| format!("{}: somebody else uses it", path.display()))?;
                let bytes = lock.metadata().map_err(named)?.len();
                if !path.is_file() || bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) {
                    return Err(format!("{}: expected a file of whole blocks of 4 KiB", path.display()));
                }
                let image = Image::open(&path, false).map_err(|error| error.to_string())?;
                let options = DeviceOptions { seed, track_contents: true, planted: None };
                let mut stack = stack(Device::new(*device, options), flush);
                let (port, blocks) = (stack.port(), image.capacity_blocks());
                if port.capacity_blocks() < blocks {
                    let (has, needs) = (port.capacity_blocks() * BLOCK_BYTES as u64, bytes);
                    return Err(format!(
                        "{}: the image has {needs} bytes and the device {has}: expected a larger device",
                        path.display()
                    ));
                }
                let ranges = data_of(&lock, blocks).map_err(|errno| named(errno.into()))?;
                let copied = stack.block_on(async move { copy(&image, &port, &ranges).await });
                copied.unwrap_or_else(|| Err("the device does not answer".into()))?;
                Ok((Held::Image { path, lock, blocks, options }, stack))
            }
        }
    }
}

impl Memory {
    fn open(self, flush: FlushMode) -> Result<(Held, Stack), String> {
        let Self { device, blocks, contents, end, .. } = self;
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut stack = stack(Device::new(*device, options), flush);
        let port = stack.port();
        let written = stack.block_on(async move {
            for (Lpn(block), content) in contents.iter().filter(|(_, content)| **content != Payload::Zero) {
                port.write(Write::new(Block(*block), vec![content.clone()]))
                    .completed()
                    .await
                    .map_err(|e| e.to_string())?;
            }
            Ok::<_, String>(())
        });
        written.unwrap_or_else(|| Err("the device does not answer".into()))?;
        Ok((Held::Memory { blocks, options, end }, stack))
    }
}

/// What the blocks of a device hold.
fn contents_of(stack: &mut Stack, blocks: u64) -> Result<Contents, String> {
    let (port, ranges) = (stack.port(), stack.with_device(|device| data_on(device, blocks)));
    let read = stack.block_on(async move {
        let mut contents = Contents::new();
        for block in ranges.into_iter().flat_map(|(first, end)| first..end) {
            let read = port.read(Block(block), 1).completed().await.map_err(|error| error.to_string())?;
            if read[0] != Payload::Zero {
                contents.insert(Lpn(block), read[0].clone());
            }
        }
        Ok(contents)
    });
    read.unwrap_or_else(|| Err("the device does not answer".into()))
}

/// A stack as a host has it: a block layer above the device.
fn stack(device: Device, flush: FlushMode) -> Stack {
    Stack::with_block_layer(device, flush, HostConfig::default())
}

/// The ranges of blocks of a file that are no holes: first and end.
fn data_of(file: &File, blocks: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let data = match seek(file, SeekFrom::Data(at)) {
            // No data until the end.
            Err(Errno::NXIO) => return Ok(ranges),
            data => data?,
        };
        at = seek(file, SeekFrom::Hole(data))?;
        ranges.push((data / BLOCK_BYTES as u64, at.div_ceil(BLOCK_BYTES as u64).min(blocks)));
    }
}

/// The ranges of the first `blocks` of a device that are mapped.
fn data_on(device: &Device, blocks: u64) -> Vec<(u64, u64)> {
    let unit_bytes = device.geometry().unit_bytes;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for block in 0..blocks {
        let bytes = block * BLOCK_BYTES as u64;
        let mut units = bytes / unit_bytes..(bytes + BLOCK_BYTES as u64).div_ceil(unit_bytes);
        if !units.any(|unit| device.is_mapped(Lpn(unit))) {
            continue;
        }
        match ranges.last_mut() {
            Some((_, end)) if *end == block => *end += 1,
            _ => ranges.push((block, block + 1)),
        }
    }
    ranges
}

/// Copies what is not zero in ranges of blocks.
async fn copy(from: &dyn BlockPort, to: &dyn BlockPort, ranges: &[(u64, u64)]) -> Result<(), String> {
    for &(first, end) in ranges {
        let mut at = first;
        while at < end {
            let count = u64::from(CHUNK_BLOCKS).min(end - at) as u32;
            let contents =
                from.read(Block(at), count).completed().await.map_err(|error| error.to_string())?;
            let mut run: Vec<Payload> = Vec::new();
            for (place, content) in (at..).zip(contents.into_vec().into_iter().map(Some).chain([None])) {
                let is_zero = content.as_ref().is_none_or(|content| {
                    *content == Payload::Zero || bytes_of(content)[..] == [0; BLOCK_BYTES][..]
                });
                if let Some(content) = content.filter(|_| !is_zero) {
                    run.push(content);
                } else if !run.is_empty() {
                    let first = Block(place - run.len() as u64);
                    let write = Write::new(first, std::mem::take(&mut run));
                    to.write(write).completed().await.map_err(|error| error.to_string())?;
                }
            }
            at += u64::from(count);
        }
    }
    to.flush().completed().await.map(drop).map_err(|error| error.to_string())
}

/// The format on a device; `None` if it has none of ours.
pub(super) async fn recognise(port: &Port) -> Result<Option<FormatKind>, String> {
    let content = port.read(Block(0), 1).completed().await.map_err(|error| error.to_string())?;
    let bytes = bytes_of(&content[0]);
    let raw = bytes[1024..2048].try_into().expect("1,024 bytes");
    if !matches!(ext4::Superblock::decode(raw), Err(ext4::Error::Absent(..))) {
        return Ok(Some(FormatKind::Ext4));
    }
    // F2FS has its superblock twice.
    let second = port.read(Block(1), 1).completed().await.map_err(|error| error.to_string())?;
    let is_there = |block: &[u8]| !matches!(f2fs::Superblock::decode(block), Err(f2fs::Error::Absent(..)));
    Ok((is_there(&bytes) || is_there(&bytes_of(&second[0]))).then_some(FormatKind::F2fs))
}

/// Makes a file system that fills the device.
pub(super) async fn make(port: &Port, kind: FormatKind) -> Result<(), String> {
    let blocks = port.capacity_blocks();
    match kind {
        FormatKind::F2fs => {
            f2fs::mkfs(port, &f2fs::Options::new(blocks))
                .await
                .map(drop)
                .map_err(|error| error.to_string())?;
        }
        FormatKind::Ext4 => {
            ext4::mkfs(port, &ext4::Options::new(blocks))
                .await
                .map(drop)
                .map_err(|error| error.to_string())?;
        }
    }
    port.flush().completed().await.map(drop).map_err(|error| error.to_string())
}

impl Held {
    /// Seed of the device and what it keeps.
    pub(super) fn options(&self) -> DeviceOptions {
        match self {
            Self::Image { options, .. } | Self::Memory { options, .. } => *options,
            Self::Volume(volume) => volume.options(),
        }
    }

    /// Keeps what is on the device, whose file system is not mounted any more. An image from which was only read stays as it is.
    pub(super) fn close(self, mut stack: Stack, is_read_only: bool) -> Result<(), String> {
        match self {
            Self::Image { .. } | Self::Memory { .. } if is_read_only => Ok(()),
            Self::Memory { blocks, end, .. } => {
                let Some(end) = end else { return Ok(()) };
                let contents = contents_of(&mut stack, blocks)?;
                *end.lock().unwrap_or_else(PoisonError::into_inner) = contents;
                Ok(())
            }
            Self::Volume(volume) => volume.close(&stack.shut_down()).map_err(|error| error.to_string()),
            Self::Image { path, lock, blocks, .. } => {
                let named = |error: std::io::Error| format!("{}: {error}", path.display());
                let metadata = lock.metadata().map_err(named)?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let beside = path.with_file_name(format!(".{name}.{}.weir", std::process::id()));
                let written = write_back(&mut stack, &beside, blocks)
                    .and_then(|()| {
                        std::fs::set_permissions(&beside, metadata.permissions()).map_err(named)?;
                        File::open(&beside).and_then(|file| file.sync_all()).map_err(named)?;
                        std::fs::rename(&beside, &path).map_err(named)
                    })
                    .and_then(|()| {
                        let directory = path.parent().unwrap_or(Path::new("."));
                        File::open(directory).and_then(|file| file.sync_all()).map_err(named)
                    });
                if written.is_err() {
                    let _ = std::fs::remove_file(&beside);
                }
                drop(lock);
                written
            }
        }
    }
}

fn write_back(stack: &mut Stack, path: &Path, blocks: u64) -> Result<(), String> {
    let image = Image::create(path, blocks).map_err(|error| error.to_string())?;
    let (port, ranges) = (stack.port(), stack.with_device(|device| data_on(device, blocks)));
    let copied = stack.block_on(async move { copy(&port, &image, &ranges).await });
    copied.unwrap_or_else(|| Err("the device does not answer".into()))
}
