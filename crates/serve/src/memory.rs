//! Memory of contents: its bound, and the return of freed memory.
//!
//! Place in the data flow: the device keeps contents in memory ([`flashweir_device::Media`]). With a bound, contents that come when that
//! memory is full go to an unnamed file, each at its own place there; what is deallocated, overwritten or erased becomes a hole again. What
//! is freed in memory stays with the allocator of the process until it is told to give it back.
//!
//! Invariant: a hole is punched before its place is written again. Units are released one by one while their block lasts, so
//! those may wait for each other; a whole block may be programmed again at once, so it does not wait.

use crate::host_disk::nameless;
use flashweir_core::Ppa;
use flashweir_device::Device;
use flashweir_device::flash::{Overflow, StoreError, Stored};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Number of units that wait to become holes together; neighbours are merged.
const WAITING_MAX: usize = 4096;
/// Bytes that are freed before the process returns memory to the system.
const FREED_BYTES_MIN: u64 = 64 << 20;

/// A bound for the memory of contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// Bytes that stay in memory.
    pub bytes: u64,
    /// Directory of the file for the other units.
    pub directory: PathBuf,
}

impl MemoryBound {
    /// Bounds the memory of a device that has no contents yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn apply(&self, device: &mut Device) -> Result<(), String> {
        let file = unnamed(&self.directory)
            .map_err(|error| format!("a file for contents in {}: {error}", self.directory.display()))?;
        let overflow = OverflowFile::new(file, device.geometry().unit_bytes);
        device.bound_memory(self.bytes, Arc::new(Mutex::new(overflow)));
        Ok(())
    }
}

/// A file that disappears with the process: unnamed, or with a name that is removed at once.
fn unnamed(directory: &Path) -> io::Result<File> {
    if let Some(file) = nameless(directory)? {
        return Ok(file);
    }
    let path = directory.join(format!(".contents.{}.weir", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// The file, in which each unit of the medium has its place.
#[derive(Debug)]
struct OverflowFile {
    file: File,
    unit_bytes: u64,
    /// Units that are no longer needed, and are not holes yet.
    waiting: Vec<u64>,
}

impl OverflowFile {
    fn new(file: File, unit_bytes: u64) -> Self {
        Self { file, unit_bytes, waiting: Vec::new() }
    }

    fn failed(error: io::Error) -> StoreError {
        StoreError { what: "the file for contents beyond --memory".into(), error }
    }

    fn punch(&self, first: u64, count: u64) {
        let (offset, len) = (first * self.unit_bytes, count * self.unit_bytes);
        // File systems without holes keep the bytes, which are never read.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
    }

    fn punch_waiting(&mut self) {
        self.waiting.sort_unstable();
        let waiting = std::mem::take(&mut self.waiting);
        waiting.chunk_by(|unit, next| unit + 1 == *next).for_each(|run| self.punch(run[0], run.len() as u64));
    }
}

impl Overflow for OverflowFile {
    fn write(&mut self, at: Ppa, bytes: &[u8]) -> Stored {
        self.file.write_all_at(bytes, at.0 * self.unit_bytes).map_err(Self::failed)
    }

    fn read(&mut self, at: Ppa, bytes: &mut [u8]) -> Stored {
        self.file.read_exact_at(bytes, at.0 * self.unit_bytes).map_err(Self::failed)
    }

    fn release(&mut self, first: Ppa, count: u64) {
        if count == 1 {
            self.waiting.push(first.0);
            if self.waiting.len() >= WAITING_MAX {
                self.punch_waiting();
            }
            return;
        }
        self.punch_waiting();
        self.punch(first.0, count);
    }
}

/// Watches the memory of contents, and has the process return what was freed.
#[derive(Debug, Default)]
pub(crate) struct GiveBack {
    /// Bytes of contents when they were most, since memory was given back.
    peak_bytes: u64,
    is_said: bool,
}

impl GiveBack {
    /// Looks at the contents of a device, when there is time; `give_back` is what the process does. Gives what users have to know,
    /// once.
    pub(crate) fn look(&mut self, device: &Device, give_back: Option<fn()>) -> Option<String> {
        let media = device.media();
        if self.is_due(media.held_bytes().0)
            && let Some(give_back) = give_back
        {
            give_back();
        }
        let error = media.overflow_error().filter(|_| !std::mem::replace(&mut self.is_said, true))?;
        Some(format!("{error}; what comes from here on stays in memory"))
    }

    fn is_due(&mut self, held_bytes: u64) -> bool {
        self.peak_bytes = self.peak_bytes.max(held_bytes);
        let is_due = self.peak_bytes - held_bytes >= FREED_BYTES_MIN;
        if is_due {
            self.peak_bytes = held_bytes;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::random::RandomStream;
    use flashweir_core::{Agenda, Command, Data, Lba, Lpn, Op, Payload};
    use flashweir_crash::devices::{names, tiny};
    use flashweir_device::{DeviceOptions, Effect, Event, Torn};
    use std::os::unix::fs::MetadataExt as _;

    fn run(device: &mut Device, agenda: &mut Agenda<Event>, number: u64, op: Op) {
        let mut effects = Vec::new();
        device.command(agenda.now(), Command::new(number, op), &mut effects);
        loop {
            for effect in effects.drain(..) {
                if let Effect::At(at, event) = effect {
                    agenda.at(at, event);
                }
            }
            let Some((now, event)) = agenda.pop() else { return };
            device.event(now, event, &mut effects);
        }
    }

    fn content(bytes: usize, fill: u64) -> Arc<[u8]> {
        (0..bytes as u64 / 8).flat_map(|word| (fill << 16 | word | 1 << 63).to_le_bytes()).collect()
    }

    /// Random writes, deallocations, flushes and power cuts: a device with a bound shows what one without shows, keeps to its
    /// bound, and holds in memory and file together no more than the other in memory.
    #[test]
    fn a_bounded_device_is_like_one_without_a_bound() {
        for (name, seed) in names().zip(1..) {
            let config = tiny(name).unwrap();
            let options = DeviceOptions { seed, track_contents: true, planted: None };
            let mut devices = [0, 1].map(|_| Device::new(config.clone(), options));
            let bound = 16 * devices[0].geometry().unit_bytes;
            MemoryBound { bytes: bound, directory: std::env::temp_dir() }.apply(&mut devices[1]).unwrap();
            devices[0].forgo_digest();
            let mut agendas = [0, 1].map(|_| Agenda::default());
            let mut random = RandomStream::new(seed, name);
            let (units, blocks) = (devices[0].geometry().user_units, devices[0].geometry().lbas_per_unit);
            let (mut most, mut overflown) = (0, 0);
            for number in 0..6 * units {
                let lba = Lba(random.below(units) * blocks);
                let op = match random.below(40) {
                    0..4 => Op::Trim { lba, blocks: blocks as u32 },
                    4..6 => Op::Flush,
                    _ => {
                        let data = Data::Bytes(content(blocks as usize * 512, number));
                        Op::Write { lba, blocks: blocks as u32, data }
                    }
                };
                let cut = (random.below(200) == 0).then(|| random.below(3) as usize);
                for (device, agenda) in devices.iter_mut().zip(&mut agendas) {
                    run(device, agenda, number, op.clone());
                    if let Some(torn) = cut {
                        let media =
                            device.cut(agenda.now(), |_| [Torn::Absent, Torn::Damaged, Torn::Done][torn]);
                        let options = DeviceOptions { seed, track_contents: true, planted: None };
                        *device = flashweir_device::Recovery::begin(&config, options, media).finish().0;
                        *agenda = Agenda::default();
                    }
                }
                let [(held, none), (kept, beyond)] = [0, 1].map(|at| devices[at].media().held_bytes());
                assert_eq!((held, none), (kept + beyond, 0), "{name}, {number}");
                assert!(kept <= bound, "{name}, {number}: {kept} of {bound}");
                (most, overflown) = (held.max(most), beyond.max(overflown));
            }
            for unit in 0..units {
                let [a, b] = [0, 1].map(|at| devices[at].peek(Lpn(unit)));
                assert!(a == b, "{name}: unit {unit}");
            }
            assert!(overflown > 0 && most > bound, "{name}: {most}, {overflown}");
            assert!(devices[1].media().overflow_error().is_none());
        }
    }

    /// Without discards, contents of a trimmed file stay in memory permanently, and holes take room.
    #[test]
    fn what_is_deallocated_takes_no_memory_and_no_room() {
        let config = tiny("tiny-d1-partial").unwrap();
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut device = Device::new(config, options);
        let file = unnamed(&std::env::temp_dir()).unwrap();
        let shown = file.try_clone().unwrap();
        let (unit_bytes, units) = (device.geometry().unit_bytes, device.geometry().user_units);
        device.bound_memory(4 * unit_bytes, Arc::new(Mutex::new(OverflowFile::new(file, unit_bytes))));
        let mut agenda = Agenda::default();
        for unit in 0..units {
            let data = Data::Bytes(content(unit_bytes as usize, unit));
            run(&mut device, &mut agenda, unit, Op::Write { lba: Lba(8 * unit), blocks: 8, data });
        }
        run(&mut device, &mut agenda, units, Op::Flush);
        let (held, beyond) = device.media().held_bytes();
        assert!(held <= 4 * unit_bytes && held + beyond >= units * unit_bytes, "{held} {beyond}");
        assert!(shown.metadata().unwrap().blocks() * 512 >= beyond);
        assert_eq!(device.peek(Lpn(units - 1)), Some(Payload::Bytes(content(4096, units - 1))));
        run(&mut device, &mut agenda, units + 1, Op::Trim { lba: Lba(0), blocks: 8 * units as u32 });
        // Before the record is durable a cut may bring all of it back.
        run(&mut device, &mut agenda, units + 2, Op::Flush);
        let (held, beyond) = device.media().held_bytes();
        // The device's own metadata is never freed.
        let metadata = 8 * unit_bytes;
        assert!(held <= 4 * unit_bytes && beyond <= metadata, "{held} {beyond}");
        // Holes are punched when there are many, or when a block is erased: fill it again.
        for round in 0..3 * units {
            let lba = Lba(8 * (round % 4));
            let data = Data::Bytes(content(unit_bytes as usize, round));
            run(&mut device, &mut agenda, units + 3 + round, Op::Write { lba, blocks: 8, data });
        }
        let (_, beyond) = device.media().held_bytes();
        let room = shown.metadata().unwrap().blocks() * 512;
        assert!(beyond <= units / 4 * unit_bytes && room <= units / 2 * unit_bytes, "{beyond} {room}");
    }

    #[test]
    fn an_overflow_that_fails_keeps_contents_in_memory_and_says_so_once() {
        #[derive(Debug)]
        struct Full;
        impl Overflow for Full {
            fn write(&mut self, _: Ppa, _: &[u8]) -> Stored {
                Err(OverflowFile::failed(io::Error::from_raw_os_error(28)))
            }
            fn read(&mut self, _: Ppa, _: &mut [u8]) -> Stored {
                unreachable!("nothing is there")
            }
            fn release(&mut self, _: Ppa, _: u64) {}
        }
        let config = tiny("tiny-d1-partial").unwrap();
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut device = Device::new(config, options);
        device.bound_memory(4096, Arc::new(Mutex::new(Full)));
        let mut agenda = Agenda::default();
        for unit in 0..16 {
            let data = Data::Bytes(content(4096, unit));
            run(&mut device, &mut agenda, unit, Op::Write { lba: Lba(8 * unit), blocks: 8, data });
        }
        run(&mut device, &mut agenda, 16, Op::Flush);
        for unit in 0..16 {
            assert_eq!(device.peek(Lpn(unit)), Some(Payload::Bytes(content(4096, unit))));
        }
        let mut watch = GiveBack::default();
        let said = watch.look(&device, None).unwrap();
        assert_eq!(
            said,
            "the file for contents beyond --memory: No space left on device (os error 28); what comes from here on stays \
             in memory"
        );
        assert_eq!(watch.look(&device, None), None);
    }

    #[test]
    fn memory_is_given_back_when_much_was_freed() {
        let mut watch = GiveBack::default();
        let mib = 1 << 20;
        let due: Vec<bool> =
            [0, 100, 300, 250, 236, 200, 172, 500, 436].map(|held| watch.is_due(held * mib)).to_vec();
        assert_eq!(due, [false, false, false, false, true, false, true, false, true]);
    }
}
