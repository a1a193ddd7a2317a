//! A medium in a file or on a block device, which stays when the process ends.
//!
//! ```text
//! │ superblock │ openings that were erased, 8 bytes a block │ program │ program │ … │ seal │      units of 4 KiB
//!                                                           └─ units, record ─┘
//! ```
//!
//! The record is the program's out-of-band area: owner and number of each unit, the opening of its line, the number of the program in the
//! order of all, and checksums. Devices that are written in the place of erasing have old programs in erased blocks. Those do not count:
//! their openings are not above the one that the second part has for the block.
//!
//! What is written is durable after a sync. Three things wait for one: a FLUSH or FUA request, an erase, since copies of what it
//! destroys have to be durable, and the use of what was erased. Each record says which programs were durable when it was written, so that a
//! recovery reads the contents of the others only, to see whether they are whole.
//!
//! Whoever closes the volume in order seals it: the seal is a sum over all records and openings. Opening breaks it. A volume that is not as
//! it was sealed was damaged meanwhile, which no power cut does. Without a seal a record that is damaged is one of a program that was torn.
//!
//! On a zoned device the superblock has the first zone and each block another one. Programs of a block are written one after the other, at
//! the write pointer, and an erase resets zones, so there are no old programs, and nothing is noted about openings. A zone that takes no
//! more programs is finished. There is no place for a seal.
//!
//! Deliberately absent: any repair. The first operation that fails ends the medium's life in this process, as a power cut would.

use crate::assembly::Geometry;
use crate::content::{Content, UNIT_BYTES, WORDS};
use crate::fault::OpenError;
use crate::queue::Queue;
use crate::sync::{Alone, Arc, AtomicU64, Mutex, Ordering};
use crate::zones::{Zones, is_block_device};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use twox_hash::XxHash3_64;

/// "Flashweir threads 1"; on a machine of the other byte order it is another number.
const MAGIC: u64 = 0x31_5f_73_64_72_68_74_66;

/// Word of the superblock that is 1 if the volume has a place for a seal.
const HAS_SEAL: usize = 9;

/// Words of a record, after two for each unit.
mod record {
    pub(super) const OPENING: usize = super::WORDS - 6;
    /// Number of the program.
    pub(super) const PROGRAM: usize = super::WORDS - 5;
    /// Programs with a smaller number were durable.
    pub(super) const DURABLE: usize = super::WORDS - 4;
    /// The volume's number.
    pub(super) const VOLUME: usize = super::WORDS - 3;
    /// Checksum of the units.
    pub(super) const UNITS: usize = super::WORDS - 2;
    /// Checksum of the record.
    pub(super) const RECORD: usize = super::WORDS - 1;
}

/// Programs that are not durable.
#[derive(Debug, Default)]
struct Programs {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// What was written where, before it is durable: for tests, which take it back.
type Before = Mutex<Vec<(u64, u64, Vec<u8>)>>;

/// A file.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) file: Arc<File>,
    geometry: Geometry,
    volume: u64,
    zones: Option<Zones>,
    /// Openings that are void, as the file has them; none with zones.
    void: Box<[Content]>,
    /// Sum of each block's records.
    sums: Box<[AtomicU64]>,
    /// The file has a place for a seal.
    has_seal: bool,
    accepts_damage: bool,
    programs: Mutex<Programs>,
    /// Programs that have ended and erases.
    changes: Alone<AtomicU64>,
    /// How many of them are durable.
    synced: Mutex<u64>,
    /// Programs with a smaller number are durable.
    durable: Alone<AtomicU64>,
    before: Option<Before>,
    padding: Content,
}

/// A program that a recovery has found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) block: u32,
    pub(crate) program: u32,
    pub(crate) opening: u64,
    /// Checksum of the record.
    sum: u64,
    /// Owner and number of each unit.
    pub(crate) list: Content,
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A sum of units. A CRC would not do: it is the same for every content that ends with its own CRC, as blocks of file systems and databases
/// do, and so for what was there before a power cut and what came afterwards.
fn checksum<'a>(units: impl Iterator<Item = &'a Content>) -> u64 {
    let mut sum = 0;
    for unit in units {
        sum = XxHash3_64::oneshot_with_seed(sum, &unit.bytes());
    }
    sum
}

/// What a volume keeps of its geometry, and the bytes of a zone, 0 without zones. CPUs and workers are the process's.
fn numbers(geometry: &Geometry, zones: Option<&Zones>) -> [u64; 7] {
    [
        geometry.channels.into(),
        geometry.dies_per_channel.into(),
        geometry.blocks_per_die.into(),
        geometry.programs_per_block.into(),
        geometry.units_per_program.into(),
        geometry.user_units,
        zones.map_or(0, |zones| zones.shape.zone_bytes),
    ]
}

/// Bytes of a block: units and records.
fn block_bytes(geometry: &Geometry) -> u64 {
    let units = u64::from(geometry.programs_per_block) * (u64::from(geometry.units_per_program) + 1);
    units * UNIT_BYTES as u64
}

/// Refuses a device with too few zones for a geometry, too small ones, or with too few that may be written at a time.
fn suits(zones: &Zones, geometry: &Geometry) -> io::Result<()> {
    let (shape, wanted) = (zones.shape, geometry.blocks() + 1);
    if shape.count < wanted {
        return Err(invalid(format!("the device has {} whole zones, expected {wanted}", shape.count)));
    }
    let bytes = block_bytes(geometry);
    if shape.capacity < bytes {
        return Err(invalid(format!(
            "a zone of the device takes {} bytes, expected {bytes}",
            shape.capacity
        )));
    }
    // Each die's block in the open line, and the one before, whose last program may be under way.
    let active = 2 * geometry.dies();
    match shape.active_max {
        Some(most) if most < active => {
            Err(invalid(format!("{most} zones of the device may be active at a time, expected {active}")))
        }
        _ => Ok(()),
    }
}

/// Opens for direct input and output, or through the page cache where the file system has no other way; for nobody else meanwhile.
fn open(path: &Path, is_new: bool) -> io::Result<File> {
    let is_device = is_block_device(path);
    // A block device that is mounted is not given out with this flag.
    let own = if is_device { OFlags::EXCL } else { OFlags::empty() };
    let flags = |more: OFlags| (own | more).bits() as i32;
    let mut options = File::options();
    options.read(true).write(true).create_new(is_new);
    let direct = options.clone().custom_flags(flags(OFlags::DIRECT)).open(path);
    let file = match direct {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            // Where the flag is refused, the file may have been made.
            options.create_new(false).create(is_new).custom_flags(flags(OFlags::empty())).open(path)?
        }
        other => other?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process has it"))
        }
        other => Ok(other.map(|()| file)?),
    }
}

/// Bytes of a file or block device.
fn length(mut file: &File) -> io::Result<u64> {
    file.seek(io::SeekFrom::End(0))
}

/// Whether a block device has anything in its first or last MiB, where file systems and arrays of disks have their names.
fn has_content(file: &File, bytes: u64) -> io::Result<bool> {
    let unit = UNIT_BYTES as u64;
    let (units, ends) = (bytes / unit, (1 << 20) / unit);
    let mut places: Vec<u64> = (0..units.min(ends)).chain(units.saturating_sub(ends)..units).collect();
    places.dedup();
    let contents: Vec<Content> = places.iter().map(|_| Content::default()).collect();
    let reads = places.iter().zip(&contents).map(|(place, content)| (place * unit, content));
    Queue::new(Arc::new(file.try_clone()?), 32).read_all(reads)?;
    Ok(contents.iter().any(|content| content.bytes() != [0; UNIT_BYTES]))
}

impl Store {
    fn void_units(geometry: &Geometry) -> u64 {
        u64::from(geometry.blocks()).div_ceil(WORDS as u64)
    }

    fn offset(&self, block: u32, program: u32) -> u64 {
        if let Some(zones) = &self.zones {
            let units = u64::from(program) * (u64::from(self.geometry.units_per_program) + 1);
            return zones.start(1 + block) + units * UNIT_BYTES as u64;
        }
        let programs = u64::from(block) * u64::from(self.geometry.programs_per_block) + u64::from(program);
        let before = 1 + Self::void_units(&self.geometry);
        (before + programs * (u64::from(self.geometry.units_per_program) + 1)) * UNIT_BYTES as u64
    }

    /// Bytes of a volume before its seal.
    fn bytes(geometry: &Geometry) -> u64 {
        (1 + Self::void_units(geometry)) * UNIT_BYTES as u64
            + u64::from(geometry.blocks()) * block_bytes(geometry)
    }

    fn of(file: File, geometry: Geometry, volume: u64, zones: Option<Zones>, has_seal: bool) -> Self {
        Self {
            file: Arc::new(file),
            geometry,
            volume,
            zones,
            void: (0..Self::void_units(&geometry)).map(|_| Content::default()).collect(),
            sums: (0..geometry.blocks()).map(|_| AtomicU64::new(0)).collect(),
            has_seal,
            accepts_damage: false,
            programs: Mutex::default(),
            changes: Alone(AtomicU64::new(0)),
            synced: Mutex::new(0),
            durable: Alone(AtomicU64::new(0)),
            before: None,
            padding: Content::default(),
        }
    }

    /// Makes a volume. A file is new and gets all of its room at once, where the file system can do that; a block device begins and ends with a MiB of zeros,
    /// or has empty zones, unless its content is to be destroyed. `zone_bytes` makes a file that keeps the rules of zones.
    ///
    /// # Errors
    /// The file is there already, the block device has content or does not suit, or the system's reason.
    pub(crate) fn create(
        path: &Path,
        geometry: Geometry,
        volume: u64,
        destroys: bool,
        zone_bytes: Option<u64>,
    ) -> io::Result<Self> {
        let is_device = is_block_device(path);
        let file = open(path, !is_device)?;
        let made = Self::make((path, file), is_device, geometry, volume, destroys, zone_bytes);
        if made.is_err() && !is_device {
            // The file is this call's: it was opened as a new one.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn make(
        (path, file): (&Path, File),
        is_device: bool,
        geometry: Geometry,
        volume: u64,
        destroys: bool,
        zone_bytes: Option<u64>,
    ) -> io::Result<Self> {
        let zones = match zone_bytes {
            Some(bytes) => Some(Zones::create_file(path, geometry.blocks() + 1, bytes)?),
            None if is_device => Zones::of_device(&file)?,
            None => None,
        };
        let bytes = Self::bytes(&geometry) + UNIT_BYTES as u64;
        if let Some(zones) = &zones {
            suits(zones, &geometry)?;
            let all = 0..geometry.blocks() + 1;
            let written = zones.written(all.clone())?;
            if !destroys && written.iter().any(|&bytes| bytes > 0) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the block device has content"));
            }
            all.zip(written).filter(|&(_, bytes)| bytes > 0).try_for_each(|(zone, _)| zones.reset(zone))?;
            if !is_device {
                file.set_len(zones.start(zones.shape.count))?;
            }
        } else if is_device {
            let has = length(&file)?;
            if has < bytes {
                return Err(invalid(format!("the block device has {has} bytes, expected {bytes}")));
            }
            if !destroys && has_content(&file, has)? {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the block device has content"));
            }
        } else {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
                other => other?,
            }
        }
        let has_seal = zones.is_none();
        let store = Self::of(file, geometry, volume, zones, has_seal);
        let superblock = Content::default();
        superblock.set_word(0, MAGIC);
        superblock.set_word(1, volume);
        for (at, number) in (2..).zip(numbers(&geometry, store.zones.as_ref())) {
            superblock.set_word(at, number);
        }
        if is_device && store.zones.is_none() {
            // What is there could pass for openings that were erased.
            let (mut queue, chunk) = (Queue::new(store.file.clone(), 1), [&store.padding; 64]);
            let mut at = 1;
            while at < 1 + Self::void_units(&geometry) {
                let count = (1 + Self::void_units(&geometry) - at).min(chunk.len() as u64);
                queue.write_all(at * UNIT_BYTES as u64, &chunk[..count as usize])?;
                at += count;
            }
            queue.write_all(Self::bytes(&geometry), &[&store.padding])?;
        }
        superblock.set_word(HAS_SEAL, has_seal.into());
        superblock.set_word(WORDS - 1, checksum([&superblock].into_iter()));
        let mut queue = Queue::new(store.file.clone(), 1);
        let begin = store.zones.as_ref().map_or(0, |zones| zones.start(0));
        store.wrote(begin, 1)?;
        queue.write_all(begin, &[&superblock])?;
        if let Some(zones) = &store.zones {
            zones.finish(0)?;
        }
        store.file.sync_all()?;
        if !is_device {
            // The name is durable when its directory is.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(store)
    }

    /// Opens a volume.
    ///
    /// # Errors
    /// It is none, or the system's reason.
    pub(crate) fn open(path: &Path, (cpus, workers): (u32, u32)) -> io::Result<Self> {
        let file = open(path, false)?;
        let is = length(&file)?;
        if is < UNIT_BYTES as u64 {
            return Err(invalid("too short for a volume of threads".into()));
        }
        let of_device = if is_block_device(path) { Zones::of_device(&file)? } else { None };
        let begin = of_device.as_ref().map_or(0, |zones| zones.start(0));
        let file = Arc::new(file);
        let superblock = Content::default();
        Queue::new(file.clone(), 1).read_all([(begin, &superblock)].into_iter())?;
        let sum = superblock.word(WORDS - 1);
        superblock.set_word(WORDS - 1, 0);
        if superblock.word(0) != MAGIC || sum != checksum([&superblock].into_iter()) {
            return Err(invalid("no volume of threads: its first 4 KiB are something else".into()));
        }
        let word = |at: usize| superblock.word(at);
        let number = |at: usize| {
            u32::try_from(word(at))
                .map_err(|_| invalid(format!("number {at} of the geometry is {}", word(at))))
        };
        let geometry = Geometry {
            channels: number(2)?,
            dies_per_channel: number(3)?,
            blocks_per_die: number(4)?,
            programs_per_block: number(5)?,
            units_per_program: number(6)?,
            user_units: word(7),
            cpus,
            workers,
        };
        geometry.check_numbers().map_err(|error| invalid(error.0))?;
        let file = Arc::into_inner(file).expect("the queue is gone");
        let zones = match word(8) {
            bytes if bytes > 0 && !is_block_device(path) => Some(Zones::of_file(path, bytes)?),
            _ => of_device,
        };
        let zone_bytes = zones.as_ref().map_or(0, |zones| zones.shape.zone_bytes);
        if zone_bytes != word(8) {
            let wanted = word(8);
            return Err(invalid(format!(
                "zones of {zone_bytes} bytes, expected those of {wanted} that it was made on"
            )));
        }
        // Volumes that were made without a place for it go on without.
        let has_seal = word(HAS_SEAL) == 1;
        let wanted = Self::bytes(&geometry) + if has_seal { UNIT_BYTES as u64 } else { 0 };
        match &zones {
            Some(zones) => suits(zones, &geometry)?,
            None if is < wanted => return Err(invalid(format!("{is} bytes long, expected {wanted}"))),
            None => {}
        }
        Ok(Self::of(file, geometry, word(1), zones, has_seal))
    }

    /// Keeps what can be taken back. A zoned device has no way to do that.
    pub(crate) fn keeps_before(&mut self) {
        if self.zones.as_ref().is_none_or(Zones::can_take_back) {
            self.before = Some(Before::default());
        }
    }

    /// Opens it although it is not as it was sealed.
    pub(crate) fn accept_damage(&mut self) {
        self.accepts_damage = true;
    }

    pub(crate) fn has_before(&self) -> bool {
        self.before.is_some()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Reads what is there, and makes it durable. Nothing is under way. `progress` gets the fraction that is read; where it says no, nothing
    /// has been changed. Returns whether each block was written since it was erased, where it has a zone that says so.
    ///
    /// # Errors
    /// It was stopped, it is not as it was sealed, or the system's reason.
    pub(crate) fn load(
        &self,
        progress: &mut dyn FnMut(f64) -> bool,
        mut each: impl FnMut(Found),
    ) -> Result<Option<Vec<bool>>, OpenError> {
        self.file.sync_data()?;
        if let Some(before) = &self.before {
            before.lock().expect("nobody panics with it").clear();
        }
        let mut queue = Queue::new(self.file.clone(), 32);
        let written = match &self.zones {
            Some(zones) => zones.written(1..self.geometry.blocks() + 1)?,
            None => {
                let at = |unit: usize| ((1 + unit) * UNIT_BYTES) as u64;
                queue.read_all(self.void.iter().enumerate().map(|(unit, content)| (at(unit), content)))?;
                vec![u64::MAX; self.geometry.blocks() as usize]
            }
        };
        let seal = self.read_seal(&mut queue)?;
        self.sums.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
        let mut each = |found: Found| {
            self.sums[found.block as usize].fetch_add(found.sum, Ordering::Relaxed);
            each(found);
        };
        // Programs of which it is not known yet whether they were durable; few, since any record may say it.
        let mut open = Vec::new();
        let (mut next, mut durable) = (0, 0);
        let units = u64::from(self.geometry.units_per_program) * UNIT_BYTES as u64;
        for block in 0..self.geometry.blocks() {
            if !progress(f64::from(block) / f64::from(self.geometry.blocks())) {
                return Err(OpenError::Stopped);
            }
            // What is behind a zone's write pointer is not read: not all devices answer that.
            let programs = written[block as usize] / (units + UNIT_BYTES as u64);
            let programs = programs.min(self.geometry.programs_per_block.into());
            let records: Vec<Content> = (0..programs).map(|_| Content::default()).collect();
            queue
                .read_all((0..).zip(&records).map(|(at, record)| (self.offset(block, at) + units, record)))?;
            for (program, list) in (0..).zip(records) {
                let sum = list.word(record::RECORD);
                if self.is_record(&list) && list.word(record::OPENING) > self.void(block) {
                    next = list.word(record::PROGRAM).max(next);
                    durable = list.word(record::DURABLE).max(durable);
                    open.push(Found { block, program, opening: list.word(record::OPENING), sum, list });
                } else if self.zones.is_some() {
                    break;
                }
            }
            let is_durable = |found: &mut Found| found.list.word(record::PROGRAM) < durable;
            open.extract_if(.., is_durable).for_each(&mut each);
        }
        let contents: Vec<Content> =
            (0..self.geometry.units_per_program).map(|_| Content::default()).collect();
        let mut torn = Vec::new();
        for found in open {
            let first = self.offset(found.block, found.program);
            queue.read_all((0..).zip(&contents).map(|(at, unit)| (first + at * UNIT_BYTES as u64, unit)))?;
            if checksum(contents.iter()) == found.list.word(record::UNITS) {
                each(found);
            } else if self.zones.is_some() {
                // Its record was written after its units.
                let (block, program) = (found.block, found.program);
                return Err(OpenError::File(invalid(format!(
                    "program {program} in zone {}: units that its record is not of",
                    1 + block
                ))));
            } else {
                torn.push(first + units);
            }
        }
        if let Some(sum) = seal {
            if sum != self.sum() && !self.accepts_damage {
                return Err(OpenError::Damaged);
            }
            queue.write_all(Self::bytes(&self.geometry), &[&self.padding])?;
        }
        // Later records will say that these numbers were durable. Until here nothing was changed: the volume may have been refused.
        for record in torn {
            queue.write_all(record, &[&self.padding])?;
        }
        self.settle(&mut queue, &written)?;
        self.file.sync_data()?;
        *self.programs.lock().expect("nobody panics with it") =
            Programs { next: next + 1, under_way: BTreeSet::new() };
        self.durable.store(next + 1, Ordering::Release);
        // `settle` writes to no zone that was empty.
        Ok(self.zones.as_ref().map(|_| written.iter().map(|&bytes| bytes > 0).collect()))
    }

    /// A sum over all records and openings that were erased.
    fn sum(&self) -> u64 {
        let all = (0..).zip(&self.sums).map(|(block, sum)| [sum.load(Ordering::Acquire), self.void(block)]);
        all.flatten().fold(self.volume, |sum, word| XxHash3_64::oneshot_with_seed(sum, &word.to_le_bytes()))
    }

    /// A seal of this sum.
    fn seal_of(&self, sum: u64) -> Content {
        let seal = Content::default();
        for (at, word) in (0..).zip([MAGIC, self.volume, sum]) {
            seal.set_word(at, word);
        }
        seal.set_word(WORDS - 1, checksum([&seal].into_iter()));
        seal
    }

    /// The sum of a seal that is whole.
    fn read_seal(&self, queue: &mut Queue<'_>) -> io::Result<Option<u64>> {
        if !self.has_seal {
            return Ok(None);
        }
        let seal = Content::default();
        queue.read_all([(Self::bytes(&self.geometry), &seal)].into_iter())?;
        let sum = seal.word(2);
        Ok((seal.bytes() == self.seal_of(sum).bytes()).then_some(sum))
    }

    /// Closes the volume: says what it holds, once everything has ended and nothing follows.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn seal(&self) -> io::Result<()> {
        // What ended last may be covered by no sync that was asked for.
        self.file.sync_data()?;
        if let Some(before) = &self.before {
            before.lock().expect("nobody panics with it").clear();
        }
        if self.has_seal {
            let seal = self.seal_of(self.sum());
            Queue::new(self.file.clone(), 1).write_all(Self::bytes(&self.geometry), &[&seal])?;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Finishes zones that were being written: a line that was open takes no more data. The first program that is not there becomes one of
    /// zeros, which ends the zone's programs, whatever the device shows of the rest.
    fn settle(&self, queue: &mut Queue<'_>, written: &[u64]) -> io::Result<()> {
        let Some(zones) = &self.zones else { return Ok(()) };
        let program = (u64::from(self.geometry.units_per_program) + 1) * UNIT_BYTES as u64;
        let is_active = |&(_, &bytes): &(u32, &u64)| bytes > 0 && bytes < zones.shape.capacity;
        for (zone, &bytes) in (1..).zip(written).filter(is_active) {
            let units = (program - bytes % program).div_ceil(UNIT_BYTES as u64);
            if bytes < block_bytes(&self.geometry)
                && bytes + units * UNIT_BYTES as u64 <= zones.shape.capacity
            {
                let offset = zones.start(zone) + bytes;
                self.wrote(offset, units as usize)?;
                queue.write_all(offset, &vec![&self.padding; units as usize])?;
            }
            zones.finish(zone)?;
        }
        Ok(())
    }

    /// Whether each block takes one program after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.zones.is_some()
    }

    /// Notes that units are written, where a file keeps the rules of zones.
    fn wrote(&self, offset: u64, units: usize) -> io::Result<()> {
        match &self.zones {
            Some(zones) => zones.write(offset, (units * UNIT_BYTES) as u64),
            None => Ok(()),
        }
    }

    fn is_record(&self, list: &Content) -> bool {
        let sum = list.word(record::RECORD);
        list.set_word(record::RECORD, 0);
        list.word(record::VOLUME) == self.volume && checksum([list].into_iter()) == sum
    }

    /// The last opening of a block that was erased.
    pub(crate) fn void(&self, block: u32) -> u64 {
        self.void[block as usize / WORDS].word(block as usize % WORDS)
    }

    /// Begins a program. `list` has owner and number of each unit, and room for the rest.
    pub(crate) fn program<'a>(
        &'a self,
        queue: &mut Queue<'a>,
        tag: u64,
        (block, program): (u32, u32),
        list: &'a Content,
        opening: u64,
        content: impl Fn(u32) -> Option<&'a Content>,
    ) -> io::Result<u64> {
        let mut units: Vec<&Content> =
            (0..self.geometry.units_per_program).map(|at| content(at).unwrap_or(&self.padding)).collect();
        let number = {
            let mut programs = self.programs.lock().expect("nobody panics with it");
            let number = programs.next;
            programs.next += 1;
            programs.under_way.insert(number);
            number
        };
        for at in 2 * units.len()..WORDS {
            list.set_word(at, 0);
        }
        list.set_word(record::OPENING, opening);
        list.set_word(record::PROGRAM, number);
        list.set_word(record::DURABLE, self.durable.load(Ordering::Acquire));
        list.set_word(record::VOLUME, self.volume);
        list.set_word(record::UNITS, checksum(units.iter().copied()));
        let sum = checksum([list].into_iter());
        list.set_word(record::RECORD, sum);
        self.sums[block as usize].fetch_add(sum, Ordering::AcqRel);
        units.push(list);
        let offset = self.offset(block, program);
        self.keep_before(number, offset, units.len());
        self.wrote(offset, units.len())?;
        queue.write(tag, offset, &units);
        Ok(number)
    }

    /// A program has ended.
    ///
    /// # Errors
    /// The system's reason, if its zone cannot be finished.
    pub(crate) fn ended(&self, number: u64, (block, program): (u32, u32)) -> io::Result<()> {
        if let Some(zones) = &self.zones
            && program + 1 == self.geometry.programs_per_block
            && block_bytes(&self.geometry) < zones.shape.capacity
        {
            zones.finish(1 + block)?;
        }
        self.programs.lock().expect("nobody panics with it").under_way.remove(&number);
        self.changes.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Byte of a unit.
    pub(crate) fn offset_of(&self, (block, program): (u32, u32), unit: u32) -> u64 {
        self.offset(block, program) + u64::from(unit) * UNIT_BYTES as u64
    }

    /// Makes durable what has ended. One call serves all who asked before it began.
    ///
    /// # Errors
    /// The system's reason. Nothing is known of what was to become durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let wanted = self.changes.load(Ordering::Acquire);
        let mut synced = self.synced.lock().expect("nobody panics with it");
        if *synced >= wanted {
            return Ok(());
        }
        let changes = self.changes.load(Ordering::Acquire);
        let (next, under_way) = {
            let programs = self.programs.lock().expect("nobody panics with it");
            (programs.next, programs.under_way.clone())
        };
        self.file.sync_data()?;
        *synced = changes;
        self.durable.fetch_max(under_way.first().copied().unwrap_or(next), Ordering::AcqRel);
        if let Some(before) = &self.before {
            let is_late = |number: &u64| *number >= next || under_way.contains(number);
            before.lock().expect("nobody panics with it").retain(|(number, ..)| is_late(number));
        }
        Ok(())
    }

    /// Makes void all openings of blocks up to one, durably, or resets their zones.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn erase(&self, blocks: &[(u32, u64)]) -> io::Result<()> {
        self.sync()?;
        for &(block, _) in blocks {
            self.sums[block as usize].store(0, Ordering::Release);
        }
        if let Some(zones) = &self.zones {
            blocks.iter().try_for_each(|&(block, _)| zones.reset(1 + block))?;
            self.changes.fetch_add(1, Ordering::AcqRel);
            return self.sync();
        }
        let mut units = BTreeSet::new();
        for &(block, opening) in blocks {
            let (unit, at) = (block as usize / WORDS, block as usize % WORDS);
            self.void[unit].set_word(at, opening.max(self.void[unit].word(at)));
            units.insert(unit);
        }
        let mut queue = Queue::new(self.file.clone(), 1);
        for unit in units {
            queue.write_all(((1 + unit) * UNIT_BYTES) as u64, &[&self.void[unit]])?;
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.sync()
    }

    fn keep_before(&self, number: u64, offset: u64, units: usize) {
        let Some(before) = &self.before else { return };
        let contents: Vec<Content> = (0..units).map(|_| Content::default()).collect();
        let at = |unit: u64| offset + unit * UNIT_BYTES as u64;
        Queue::new(self.file.clone(), units)
            .read_all((0..).zip(&contents).map(|(unit, content)| (at(unit), content)))
            .expect("a test's file can be read");
        let bytes = contents.iter().flat_map(Content::bytes).collect();
        before.lock().expect("nobody panics with it").push((number, offset, bytes));
    }

    /// Takes back what is not durable, for tests: of each program, those units that `lose` says; of a zone, what is behind one, too.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn lose(&self, mut lose: impl FnMut() -> bool) -> io::Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        // A sync that has begun is over first.
        let _synced = self.synced.lock().expect("nobody panics with it");
        for (_, offset, bytes) in before.lock().expect("nobody panics with it").drain(..).rev() {
            for (at, unit) in (0..).zip(bytes.as_chunks().0) {
                if lose() {
                    if let Some(zones) = &self.zones {
                        zones.take_back(offset + at * UNIT_BYTES as u64)?;
                        break;
                    }
                    let content = Content::default();
                    content.set_bytes(unit);
                    Queue::new(self.file.clone(), 1)
                        .write_all(offset + at * UNIT_BYTES as u64, &[&content])?;
                }
            }
        }
        Ok(())
    }
}
