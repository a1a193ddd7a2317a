//! Source of the device of a mount, and destination of its contents at the end.
//!
//! A volume's medium is on the host's disk at all times. An image is read into a fresh device before the mount and
//! written back at the end, into room beside it that was reserved before ([`super::keep`]).
//!
//! Invariant: a file or directory is in one mount at a time, but for images that are only read; its lock is held until the end.

use super::keep::{Room, directory_of};
use crate::memory::MemoryBound;
use crate::volume::Volume;
use flashweir_contract::Contents;
use flashweir_core::{Lpn, Payload};
use flashweir_device::config::{DeviceConfig, FirmwareKind};
use flashweir_device::{Device, DeviceOptions, RecoveryReport};
use flashweir_fs::port::{BLOCK_BYTES, Block, BlockPort, Image, SegmentImage, Write, bytes_of};
use flashweir_fs::{Kind, NewVolume};
use flashweir_host::HostConfig;
use flashweir_sim::host_ftl::Disk;
use flashweir_sim::live::Tear;
use flashweir_sim::stack::{FlushMode, Port, Stack};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The medium of a mount.
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
        /// Reserve room for what is written back.
        reserve: bool,
        /// Bytes of contents in memory; others are in a file without a name beside the image. `None` is all.
        memory_bytes: Option<u64>,
    },
    /// A volume in a directory ([`crate::volume`]), with its device.
    Volume(PathBuf),
    /// In memory.
    Memory(Memory),
}

/// A disk in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Name of its contents, for people.
    pub name: PathBuf,
    /// The device, which has room for `blocks`.
    pub device: Box<DeviceConfig>,
    /// Number of blocks.
    pub blocks: u64,
    /// The contents.
    pub contents: Arc<Contents>,
    /// Destination of the contents at the end.
    pub end: Option<Arc<Mutex<Contents>>>,
}

/// Blocks that are read or written at once.
const CHUNK_BLOCKS: u32 = 256;

/// A medium in use.
#[derive(Debug)]
pub(super) enum Held {
    Image(OpenImage),
    Volume(Box<Volume>),
    Memory { blocks: u64, options: DeviceOptions, end: Option<Arc<Mutex<Contents>>> },
}

/// An image whose contents are on a device.
#[derive(Debug)]
pub(super) struct OpenImage {
    path: PathBuf,
    lock: File,
    /// Blocks of the file.
    blocks: u64,
    /// Number and blocks of its segments, if it is the image of a disk of append segments.
    segments: Option<(u32, u32)>,
    options: DeviceOptions,
    /// Reserved room, for the first attempt to write it back.
    room: Option<Room>,
}

/// Error of a medium that could not be saved.
#[derive(Debug)]
pub(super) struct Unkept {
    pub(super) why: String,
    /// An image, and the device that has its contents.
    pub(super) image: Option<Box<(OpenImage, Stack)>>,
}

impl Medium {
    /// Its path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Image { path, .. } | Self::Volume(path) => path,
            Self::Memory(memory) => &memory.name,
        }
    }

    /// A stack on the medium. An image that is only read needs no permission to write, and others may read it beside. Errors are in words.
    pub(super) fn open(self, flush: FlushMode, is_read_only: bool) -> Result<(Held, Stack), String> {
        match self {
            Self::Memory(memory) => memory.open(flush),
            Self::Volume(path) => {
                let (volume, device, _) =
                    Volume::open(&path, &mut |_| {}).map_err(|error| error.to_string())?;
                let disk = Disk::recover(device, volume.host_ftl());
                let stack = stack(disk, flush).recovered();
                volume.check_recovery().map_err(|error| error.to_string())?;
                Ok((Held::Volume(Box::new(volume)), stack))
            }
            Self::Image { path, device, seed, reserve, memory_bytes } => {
                let named = |error: std::io::Error| format!("{}: {error}", path.display());
                let path = path.canonicalize().map_err(named)?;
                let lock = File::options().read(true).write(!is_read_only).open(&path).map_err(named)?;
                let locked = if is_read_only { lock.try_lock_shared() } else { lock.try_lock() };
                locked.map_err(|_| format!("{}: another process uses it", path.display()))?;
                let bytes = lock.metadata().map_err(named)?.len();
                if !path.is_file() || bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) {
                    return Err(format!("{}: expected a file of whole blocks of 4 KiB", path.display()));
                }
                let image = Source::open(&path)?;
                let options = DeviceOptions { seed, track_contents: true, planted: None };
                let mut device = Device::new(*device, options);
                if let Some(bytes) = memory_bytes {
                    let directory = directory_of(&path).to_owned();
                    MemoryBound { bytes, directory }.apply(&mut device)?;
                }
                let mut stack = stack(device.into(), flush);
                let (port, capacity) = (stack.port(), image.port().capacity_blocks());
                image.check(&path, &port)?;
                if port.capacity_blocks() < capacity {
                    let (has, needs) = (port.capacity_blocks() * BLOCK_BYTES as u64, bytes);
                    return Err(format!(
                        "{}: the image has {needs} bytes and the device {has}: expected a larger device",
                        path.display()
                    ));
                }
                // Before the image is read, so that a lack of room is reported at once.
                let blocks = bytes / BLOCK_BYTES as u64;
                let room = reserve.then(|| Room::reserve(&path, blocks)).transpose()?;
                let ranges = image.ranges(&lock).map_err(|errno| named(errno.into()))?;
                let segments = image.segments();
                let copied = stack.block_on(async move { copy(image.port(), &port, &ranges).await });
                copied.unwrap_or_else(|| Err("the device does not answer".into()))?;
                Ok((Held::Image(OpenImage { path, lock, blocks, segments, options, room }), stack))
            }
        }
    }
}

/// An image that is read.
enum Source {
    Plain(Image),
    Segments(SegmentImage),
}

impl Source {
    fn open(path: &Path) -> Result<Self, String> {
        let segments = SegmentImage::open(path, false).map_err(|error| error.to_string())?;
        match segments {
            Some(segments) => Ok(Self::Segments(segments)),
            None => Ok(Self::Plain(Image::open(path, false).map_err(|error| error.to_string())?)),
        }
    }

    fn port(&self) -> &dyn BlockPort {
        match self {
            Self::Plain(image) => image,
            Self::Segments(image) => image,
        }
    }

    fn segments(&self) -> Option<(u32, u32)> {
        match self {
            Self::Plain(_) => None,
            Self::Segments(image) => Some((image.segments(), image.segment_blocks())),
        }
    }

    /// Whether a device has such blocks.
    fn check(&self, path: &Path, port: &Port) -> Result<(), String> {
        let (has, needs) = (port.segment_blocks(), self.port().segment_blocks());
        let mib = |blocks: u32| format!("append segments of {} MiB", blocks / 256);
        let said = |blocks: u32| if blocks == 0 { "no append segments".into() } else { mib(blocks) };
        match has == needs {
            true => Ok(()),
            false => {
                Err(format!("{}: it has {}, and the device has {}", path.display(), said(needs), said(has)))
            }
        }
    }

    /// Ranges of blocks with contents: first and end.
    fn ranges(&self, file: &File) -> Result<Vec<(u64, u64)>, Errno> {
        match self {
            Self::Plain(image) => data_of(file, image.capacity_blocks()),
            Self::Segments(image) => {
                let firsts = (0u64..).step_by(image.segment_blocks() as usize);
                let written = firsts.zip(image.written()).filter(|(_, written)| *written > 0);
                Ok(written.map(|(first, written)| (first, first + u64::from(written))).collect())
            }
        }
    }
}

impl Memory {
    fn open(self, flush: FlushMode) -> Result<(Held, Stack), String> {
        let Self { device, blocks, contents, end, .. } = self;
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut stack = stack(Device::new(*device, options).into(), flush);
        let port = stack.port();
        let written = stack.block_on(async move {
            let is_there = |content: &Payload| port.segment_blocks() > 0 || *content != Payload::Zero;
            for (Lpn(block), content) in contents.iter().filter(|(_, content)| is_there(content)) {
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

/// Contents of a device's blocks: those that are not zero, or on append segments those that were written.
fn contents_of(stack: &mut Stack, blocks: u64) -> Result<Contents, String> {
    let (port, ranges) = (stack.port(), stack.with_device(|device| data_on(device, blocks)));
    let read = stack.block_on(async move {
        let mut contents = Contents::new();
        for block in ranges.into_iter().flat_map(|(first, end)| first..end) {
            let read = port.read(Block(block), 1).completed().await.map_err(|error| error.to_string())?;
            if port.segment_blocks() > 0 || read[0] != Payload::Zero {
                contents.insert(Lpn(block), read[0].clone());
            }
        }
        Ok(contents)
    });
    read.unwrap_or_else(|| Err("the device does not answer".into()))
}

/// A stack as a host has it: a block layer above the device. There is none above append segments, whose writes have their order.
fn stack(disk: Disk, flush: FlushMode) -> Stack {
    let is_append = disk.device.config().firmware == FirmwareKind::Append;
    Stack::above(disk, flush, (!is_append).then(HostConfig::default))
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

/// Copies what is not zero in ranges of blocks; all of it to append segments, whose blocks have no holes between them.
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
                    to.segment_blocks() == 0
                        && (*content == Payload::Zero || bytes_of(content)[..] == [0; BLOCK_BYTES][..])
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

/// Makes a file system that fills the device.
pub(super) async fn make(port: &Port, kind: Kind) -> Result<(), String> {
    // The user who mounts can use it without being root.
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let new = NewVolume::new(port.capacity_blocks()).owned_by(owner);
    kind.mkfs(port, &new).await.map_err(|error| error.to_string())?;
    port.flush().completed().await.map(drop).map_err(|error| error.to_string())
}

impl Held {
    /// Seed of the device and what it keeps.
    pub(super) fn options(&self) -> DeviceOptions {
        match self {
            Self::Image(OpenImage { options, .. }) | Self::Memory { options, .. } => *options,
            Self::Volume(volume) => volume.options(),
        }
    }

    /// Cuts the power of the stack on it, which recovers at once. The error tells of pages of a volume that recovery needed and found
    /// damaged: it has taken them for interrupted ones, and the device may show older contents.
    pub(super) fn cut(&self, stack: Stack, tear: Tear) -> (Stack, RecoveryReport, Result<(), String>) {
        if let Self::Volume(volume) = self {
            volume.forget_damage();
        }
        let (stack, report) = stack.cut(self.options(), tear);
        match self {
            Self::Volume(volume) => {
                let stack = stack.recovered();
                let recovered = volume.check_recovery().map_err(|error| error.to_string());
                (stack, report, recovered)
            }
            Self::Image(..) | Self::Memory { .. } => (stack, report, Ok(())),
        }
    }

    /// Saves the contents of the device, whose file system is not mounted any more. An image that was only read stays as it is; one that
    /// cannot be written is returned with the reason, and nothing is lost as long as its device exists.
    pub(super) fn close(self, mut stack: Stack, is_read_only: bool) -> Result<(), Unkept> {
        let lost = |why: String| Unkept { why, image: None };
        match self {
            Self::Image(..) | Self::Memory { .. } if is_read_only => Ok(()),
            Self::Memory { blocks, end, .. } => {
                let Some(end) = end else { return Ok(()) };
                let contents = contents_of(&mut stack, blocks).map_err(lost)?;
                *end.lock().unwrap_or_else(PoisonError::into_inner) = contents;
                Ok(())
            }
            Self::Volume(volume) => volume.close(&stack.shut_down()).map_err(|error| lost(error.to_string())),
            Self::Image(mut image) => match image.write_back(&mut stack) {
                Ok(()) => Ok(()),
                Err(why) => Err(Unkept { why, image: Some(Box::new((image, stack))) }),
            },
        }
    }
}

impl OpenImage {
    /// Writes a new image in the place of the old one.
    pub(super) fn write_back(&mut self, stack: &mut Stack) -> Result<(), String> {
        let room = match self.room.take() {
            Some(room) => room,
            // It may need less room than all of it.
            None => Room::reserve(&self.path, self.blocks)
                .or_else(|_| Room::new(&self.path, self.blocks))
                .map_err(|error| format!("{}: {error}", self.path.display()))?,
        };
        self.write(stack, room, &self.path)
    }

    /// Writes the image to a file that is not there yet.
    pub(super) fn write_to(&self, stack: &mut Stack, path: &Path) -> Result<(), String> {
        if path.symlink_metadata().is_ok() {
            return Err(format!("{}: it exists, expected a new file", path.display()));
        }
        let room = Room::new(path, self.blocks).map_err(|error| format!("{}: {error}", path.display()))?;
        self.write(stack, room, path)
    }

    fn write(&self, stack: &mut Stack, room: Room, path: &Path) -> Result<(), String> {
        let named = |error: std::io::Error| format!("{}: {error}", path.display());
        let capacity =
            self.segments.map_or(self.blocks, |(segments, blocks)| u64::from(segments) * u64::from(blocks));
        let (port, ranges) = (stack.port(), stack.with_device(|device| data_on(device, capacity)));
        let holes_end = ranges.iter().map(|(first, _)| *first).chain([capacity]);
        let holes_first = [0].into_iter().chain(ranges.iter().map(|(_, end)| *end));
        let holes: Vec<(u64, u64)> = holes_first.zip(holes_end).collect();
        let file = room.file().try_clone().map_err(named)?;
        let name = path.display().to_string();
        let image = match self.segments {
            None => Source::Plain(Image::of_file(file, name, self.blocks)),
            Some((segments, blocks)) => {
                let image = SegmentImage::new(file, name, segments, blocks);
                Source::Segments(image.map_err(|error| error.to_string())?)
            }
        };
        let copied = stack.block_on(async move { copy(&port, image.port(), &ranges).await });
        copied.unwrap_or_else(|| Err("the device does not answer".into()))?;
        room.punch(holes);
        let old = self.lock.metadata().map_err(named)?;
        room.take_place(path, Some(&old)).map_err(named)
    }
}

#[cfg(test)]
mod tests;
