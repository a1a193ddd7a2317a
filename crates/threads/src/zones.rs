//! The zones of a zoned block device, or of a file that keeps their rules for tests.
//!
//! A zone is written from its start on, and erased as a whole. A block of the medium has one; the first zone has the superblock. Zones have
//! numbers from the first one on that is no conventional zone.
//!
//! Deliberately absent: zone append, whose answers say where data are only after it is too late for a record that names its own place;
//! conventional zones, as most disks with shingled tracks have before the others.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Bytes of a sector of Linux.
const SECTOR: u64 = 512;

/// Zones that one report asks for.
const REPORT_MAX: usize = 256;

/// What a zone of Linux says about itself (`struct blk_zone`); lengths in sectors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    start: u64,
    len: u64,
    write_pointer: u64,
    kind: u8,
    condition: u8,
    unused: [u8; 6],
    capacity: u64,
    reserved: [u64; 3],
}

/// The kind of a zone without a write pointer (`enum blk_zone_type`).
const CONVENTIONAL: u8 = 1;

/// Conditions of a zone (`enum blk_zone_cond`).
mod condition {
    pub(super) const READ_ONLY: u8 = 13;
    pub(super) const FULL: u8 = 14;
    pub(super) const OFFLINE: u8 = 15;
}

/// `struct blk_zone_report`.
#[repr(C)]
#[derive(Debug)]
struct Report {
    sector: u64,
    zones: u32,
    /// The kernel says by 1 that it knows capacities.
    flags: u32,
    list: [Zone; REPORT_MAX],
}

/// `struct blk_zone_range`.
#[repr(C)]
#[derive(Debug)]
struct Range {
    sector: u64,
    sectors: u64,
}

/// An ioctl of block devices, by direction (1 to the kernel, 2 from it), number and size of its argument (linux/blkzoned.h).
const fn request(direction: u64, number: u64, size: u64) -> u64 {
    direction << 30 | size << 16 | 0x12 << 8 | number
}

const REPORT_ZONES: u64 = request(3, 130, 16);
const RESET_ZONE: u64 = request(1, 131, 16);
const ZONE_SECTORS: u64 = request(2, 132, 4);
const ZONES: u64 = request(2, 133, 4);
const FINISH_ZONE: u64 = request(1, 136, 16);

pub(crate) fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Shape of a zoned device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneShape {
    /// Zones that are written in order, one after the other.
    pub count: u32,
    /// Bytes from the start of one to the start of the next.
    pub zone_bytes: u64,
    /// Bytes that each takes at least.
    pub capacity: u64,
    /// Zones that may have been written and not be full at a time; `None` without a limit.
    pub active_max: Option<u32>,
}

impl ZoneShape {
    /// The shape of a block device; `None` of anything else, and of a block device without zones.
    ///
    /// # Errors
    /// The system's reason.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        if !is_block_device(path) {
            return Ok(None);
        }
        let file = File::open(path)?;
        Ok(Zones::of_device(&file)?.map(|zones| zones.shape))
    }
}

#[derive(Debug)]
enum Way {
    Device(File),
    /// Bytes written in each zone, 8 bytes a zone, in a file beside the zones.
    File(File),
}

/// Zones.
#[derive(Debug)]
pub(crate) struct Zones {
    pub(crate) shape: ZoneShape,
    /// Conventional zones before them.
    before: u32,
    way: Way,
}

fn ioctl<T>(file: &File, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request has the argument that the kernel knows, and the kernel writes no further than that.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where a file that keeps the rules of zones has their write pointers.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".zones");
    name.into()
}

impl Zones {
    /// Zones of a block device; `None` if it has none.
    pub(crate) fn of_device(file: &File) -> io::Result<Option<Self>> {
        let (mut sectors, mut count) = (0u32, 0u32);
        match ioctl(file, ZONE_SECTORS, &mut sectors).and_then(|()| ioctl(file, ZONES, &mut count)) {
            Ok(()) if count > 0 && sectors > 0 => {}
            // A kernel without zones does not know the request.
            Ok(()) => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return Ok(None),
            Err(error) => return Err(error),
        }
        let zone_bytes = u64::from(sectors) * SECTOR;
        let shape = ZoneShape { count, zone_bytes, capacity: zone_bytes, active_max: active_max(file)? };
        let mut zones = Self { shape, before: 0, way: Way::Device(file.try_clone()?) };
        let all = zones.report(0..count)?;
        zones.before = all.iter().take_while(|zone| zone.kind == CONVENTIONAL).count() as u32;
        // The last one may be shorter than the others, and is left out then.
        let is_one = |zone: &&Zone| zone.kind != CONVENTIONAL && zone.len == u64::from(sectors);
        let ours: Vec<&Zone> = all.iter().skip(zones.before as usize).take_while(is_one).collect();
        if ours.is_empty() {
            return Ok(None);
        }
        zones.shape.count = ours.len() as u32;
        zones.shape.capacity = ours.iter().map(|zone| zone.capacity * SECTOR).min().unwrap_or(0);
        Ok(Some(zones))
    }

    /// Zones of a file, if it has some.
    pub(crate) fn of_file(path: &Path, zone_bytes: u64) -> io::Result<Self> {
        let side = File::options().read(true).write(true).open(beside(path))?;
        let count = u32::try_from(side.metadata()?.len() / 8).unwrap_or(u32::MAX);
        let shape = ZoneShape { count, zone_bytes, capacity: zone_bytes, active_max: None };
        Ok(Self { shape, before: 0, way: Way::File(side) })
    }

    /// Gives a file so many empty zones.
    pub(crate) fn create_file(path: &Path, count: u32, zone_bytes: u64) -> io::Result<Self> {
        std::fs::write(beside(path), vec![0; count as usize * 8])?;
        Self::of_file(path, zone_bytes)
    }

    /// First byte of a zone.
    pub(crate) fn start(&self, zone: u32) -> u64 {
        u64::from(self.before + zone) * self.shape.zone_bytes
    }

    fn report(&self, zones: std::ops::Range<u32>) -> io::Result<Vec<Zone>> {
        let Way::Device(file) = &self.way else { unreachable!("a file reports by itself") };
        let mut all: Vec<Zone> = Vec::new();
        while all.len() < zones.len() {
            let first = zones.start + all.len() as u32;
            let wanted = (zones.len() - all.len()).min(REPORT_MAX);
            let mut report = Box::new(Report {
                sector: self.start(first) / SECTOR,
                zones: wanted as u32,
                flags: 0,
                list: [Zone::default(); REPORT_MAX],
            });
            ioctl(file, REPORT_ZONES, &mut *report)?;
            let got = (report.zones as usize).min(wanted);
            if got == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("zone {first} is not reported"),
                ));
            }
            let has_capacities = report.flags & 1 != 0;
            all.extend(report.list[..got].iter().map(|&zone| Zone {
                capacity: if has_capacities { zone.capacity } else { zone.len },
                ..zone
            }));
        }
        Ok(all)
    }

    /// Bytes that were written in each of these zones; a finished one has all.
    pub(crate) fn written(&self, zones: std::ops::Range<u32>) -> io::Result<Vec<u64>> {
        if let Way::File(side) = &self.way {
            let mut bytes = vec![0; zones.len() * 8];
            side.read_exact_at(&mut bytes, u64::from(zones.start) * 8)?;
            return Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect());
        }
        let first = zones.start;
        let written = |(number, zone): (u32, &Zone)| match zone.condition {
            condition::OFFLINE | condition::READ_ONLY => {
                let what = format!("zone {number} is offline or read-only");
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            condition::FULL => Ok(zone.capacity * SECTOR),
            _ => Ok((zone.write_pointer - zone.start) * SECTOR),
        };
        (first..).zip(&self.report(zones)?).map(written).collect()
    }

    fn change(&self, request: u64, zone: u32, written: u64) -> io::Result<()> {
        match &self.way {
            Way::Device(file) => {
                let sectors = self.shape.zone_bytes / SECTOR;
                ioctl(file, request, &mut Range { sector: self.start(zone) / SECTOR, sectors })
            }
            Way::File(side) => side.write_all_at(&written.to_le_bytes(), u64::from(zone) * 8),
        }
    }

    /// Erases a zone.
    pub(crate) fn reset(&self, zone: u32) -> io::Result<()> {
        self.change(RESET_ZONE, zone, 0)
    }

    /// Ends a zone, so that it is active no longer.
    pub(crate) fn finish(&self, zone: u32) -> io::Result<()> {
        self.change(FINISH_ZONE, zone, self.shape.capacity)
    }

    /// Notes a write in a zone of a file. A device refuses what is not at the write pointer; so does this.
    pub(crate) fn write(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let Way::File(side) = &self.way else { return Ok(()) };
        let zone = (offset / self.shape.zone_bytes) as u32;
        let written = offset - self.start(zone);
        if self.written(zone..zone + 1)? != [written] {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        side.write_all_at(&(written + bytes).to_le_bytes(), u64::from(zone) * 8)
    }

    /// Whether [`Self::take_back`] does anything.
    pub(crate) fn can_take_back(&self) -> bool {
        matches!(self.way, Way::File(_))
    }

    /// Takes back what a zone of a file has from a byte on.
    pub(crate) fn take_back(&self, offset: u64) -> io::Result<()> {
        let Way::File(side) = &self.way else { return Ok(()) };
        let zone = (offset / self.shape.zone_bytes) as u32;
        let written = (offset - self.start(zone)).min(self.written(zone..zone + 1)?[0]);
        side.write_all_at(&written.to_le_bytes(), u64::from(zone) * 8)
    }
}

/// The limit of active zones, or that of open ones, of a device or of the one that a partition is of.
fn active_max(file: &File) -> io::Result<Option<u32>> {
    let number = file.metadata()?.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let limit = |name: &str| {
        let places =
            ["queue", "../queue"].map(|queue| format!("/sys/dev/block/{major}:{minor}/{queue}/{name}"));
        let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
        text.trim().parse::<u32>().ok().filter(|&limit| limit > 0)
    };
    Ok([limit("max_active_zones"), limit("max_open_zones")].into_iter().flatten().min())
}
