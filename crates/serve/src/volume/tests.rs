//! Volumes whose process ends at each of its writes, whose files are damaged, and whose host is full.

use super::description::{describe, description};
use super::format::{Format, Found, PageContent, decode_page, encode_page, page_record_bytes};
use super::host::{Host, HostFiles, Part};
use super::upgrade::{Disk, upgrade_on};
use super::*;
use flashweir_contract::{Content as Identity, DeviceKind, Log, Oracle, Verdict};
use flashweir_core::random::RandomStream;
use flashweir_core::{Address, Agenda, Command, Data, DeviceError, Instant, Lba, Lpn, Op, Payload};
use flashweir_crash::devices::{names, tiny};
use flashweir_crash::explorer::{contents, kind_of, observed};
use flashweir_crash::sim::Sim;
use flashweir_crash::workload::{History, exercise, history, with_streams};
use flashweir_device::config::{Metadata, PersistPolicy};
use flashweir_device::{Effect, Event, UNREADABLE};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A directory of its own for each test, removed at the end.
struct Place(PathBuf);

static PLACES: AtomicU64 = AtomicU64::new(0);

impl Place {
    fn new() -> Self {
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-volume-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A host that stops in the middle of a call, as the end of a process does, or because it is full.
#[derive(Debug)]
struct Faulty {
    directory: PathBuf,
    files: HostFiles,
    /// Calls that still work.
    left: u64,
    /// Part of the call after those that still happens, in 256ths.
    share: u64,
}

impl Faulty {
    /// Whether this call works, in part, or not at all.
    fn works(&mut self, len: usize) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        Some(if self.left == 0 { len * self.share as usize / 256 } else { len })
    }

    fn stopped<T>() -> io::Result<T> {
        Err(io::Error::from_raw_os_error(28))
    }
}

impl Host for Faulty {
    fn write_at(&mut self, part: Part, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.works(bytes.len()) {
            Some(written) => {
                self.files.write_at(part, offset, &bytes[..written])?;
                if written < bytes.len() { Self::stopped() } else { Ok(()) }
            }
            None => Self::stopped(),
        }
    }

    fn read_at(&self, part: Part, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.files.read_at(part, offset, buffer)
    }

    fn len(&self, part: Part) -> io::Result<u64> {
        self.files.len(part)
    }

    fn clear(&mut self, part: Part) -> io::Result<()> {
        match self.works(1) {
            Some(1) => self.files.clear(part),
            _ => Self::stopped(),
        }
    }

    fn release(&mut self, part: Part, offset: u64, len: u64) {
        self.files.release(part, offset, len);
    }

    fn replace_state(&mut self, text: &str) -> io::Result<()> {
        match self.works(1) {
            // As the real one, without waiting for the disk.
            Some(1) => {
                let part = self.directory.join("state.part");
                std::fs::write(&part, text).and_then(|()| std::fs::rename(part, self.directory.join(STATE)))
            }
            _ => Self::stopped(),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const NEVER: u64 = u64::MAX;

fn open_until(directory: &Path, left: u64, share: u64) -> Result<(Volume, Device), VolumeError> {
    let faulty = |files| Faulty { directory: directory.to_owned(), files, left, share };
    let opened = Volume::open_on(directory, &mut |_| {}, |files| Box::new(faulty(files)));
    opened.map(|(volume, device, _)| (volume, device))
}

fn open(directory: &Path) -> (Volume, Device) {
    open_until(directory, NEVER, 0).unwrap()
}

/// Holds what the device shows against what was done.
fn judge(log: &Log, device: &Device, case: &str) {
    assert_eq!(verdict(log, device), Verdict::Legal, "{case}");
}

fn verdict(log: &Log, device: &Device) -> Verdict {
    let contents = contents(device);
    let policy = kind_of(device.config()).policy();
    Oracle::new(policy).check(log, log.position(), |lpn| observed(&contents, lpn))
}

/// Takes the epochs out of the records of a volume, as format 1 never had them.
fn forget_epochs(directory: &Path, layout: &Layout) {
    let path = directory.join(layout.oob().name());
    let mut records = std::fs::read(&path).unwrap();
    for (page, bytes) in (0..).zip(records.chunks_mut(layout.record_bytes())) {
        let units = layout.units_per_page;
        let Found::Whole(mut record) = decode_page(layout.format, bytes, page, 0, units) else { continue };
        if let PageContent::Units(units) = &mut record.state {
            units.iter_mut().for_each(|unit| unit.member = None);
        }
        encode_page(&record, bytes);
    }
    std::fs::write(path, records).unwrap();
}

/// A history of a boot; with epochs where the device keeps them.
fn history_of(config: &DeviceConfig, seed: u64, boot: u32, ops: usize) -> History {
    let history = history(&Geometry::new(config), seed, boot, ops);
    if config.keeps_epochs() { with_streams(history, seed, boot) } else { history }
}

/// Runs histories on a volume whose process ends again and again, and judges it after each.
fn live_and_die(name: &str, seed: u64, boots: u32) -> u64 {
    let mut random = RandomStream::new(seed, name);
    let place = Place::new();
    let directory = place.join("v");
    let config = tiny(name).unwrap();
    Volume::create(&directory, &config, seed).unwrap();
    let mut last: Option<Log> = None;
    let mut deaths = 0;
    for boot in 0..boots {
        let case = format!("{name}, seed {seed}, boot {boot}");
        let found = check(&directory, &mut |_| {}).unwrap();
        assert_eq!(found.problems, [], "{case}");
        // Deaths while it is opened follow each other, then one comes while it is in use.
        let left = match random.below(3) {
            0 => 1 + random.below(12),
            1 => 20 + random.below(60),
            _ => 50 + random.below(1500),
        };
        let (_volume, device) = match open_until(&directory, left, random.below(256)) {
            Ok(opened) => opened,
            Err(VolumeError::Io { .. }) => {
                deaths += 1;
                continue;
            }
            Err(error) => panic!("{case}: {error}"),
        };
        if let Some(log) = &last {
            judge(log, &device, &case);
        }
        let history = match random.below(4) {
            0 => exercise(device.geometry(), seed + u64::from(boot)),
            _ => history_of(&config, seed, boot, 150),
        };
        let mut sim = Sim::new(device, history);
        while sim.device().store_error().is_none() && sim.misbehaviour().is_none() && sim.step() {}
        last = Some(sim.log().clone());
        match sim.device().store_error() {
            Some(_) => deaths += 1,
            // A device whose programs fail may come to its end.
            None if sim.device().is_read_only() && config.faults.program_fail > 0.0 => break,
            None => assert_eq!(sim.misbehaviour(), None, "{case}"),
        }
    }
    let (_volume, device) = open(&directory);
    if let Some(log) = &last {
        judge(log, &device, &format!("{name}, seed {seed}, at the end"));
    }
    deaths
}

/// A process that ends inside of a journal leaves it torn, which is right as long as nothing says that the volume was closed. The next process
/// that closed it said so, and the volume was refused for good.
#[test]
fn regression_a_volume_is_opened_that_was_closed_after_a_death_in_its_journal() {
    let is_protected = |name: &&str| kind_of(&tiny(name).unwrap()) == DeviceKind::D2;
    let mut deaths = 0;
    for name in names().filter(is_protected).take(2) {
        for left in (3..150).step_by(7) {
            let place = Place::new();
            let directory = place.join("v");
            let config = tiny(name).unwrap();
            Volume::create(&directory, &config, left).unwrap();
            if let Ok((_volume, device)) = open_until(&directory, left, 100) {
                let history = exercise(device.geometry(), left);
                let mut sim = Sim::new(device, history);
                while sim.device().store_error().is_none() && sim.misbehaviour().is_none() && sim.step() {}
                deaths += u32::from(sim.device().store_error().is_some());
            }
            let (volume, mut device) = open(&directory);
            Runner::default().shut_down(&mut device);
            volume.close(&device).unwrap();
            drop(open(&directory));
        }
    }
    assert!(deaths > 20, "{deaths}");
}

#[test]
fn the_process_may_end_at_each_write() {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let worlds = std::env::var("FLASHWEIR_DEATHS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    println!("FLASHWEIR_SEED={seed}");
    for name in names() {
        let deaths: u64 = (0..worlds).map(|world| live_and_die(name, seed + 1000 * world, 8)).sum();
        println!("{name}: {deaths} deaths");
        assert!(deaths > worlds, "{name}: {deaths}");
    }
}

/// A device on files refused ordered commands: the records had no place for epochs, without which recovery counts no members and accepts a
/// later epoch whose predecessors are lost.
#[test]
fn epochs_are_in_order_after_a_process_ends_at_any_write() {
    let mut needed = 0;
    for (name, seed) in names().filter(|name| tiny(name).unwrap().keeps_epochs()).zip(1..) {
        let config = tiny(name).unwrap();
        let place = Place::new();
        let [original, directory, without] = ["v", "w", "x"].map(|name| place.join(name));
        Volume::create(&original, &config, seed).unwrap();
        let mut members = 0;
        for left in 1.. {
            copy_volume(&original, &directory);
            let case = format!("{name}, seed {seed}, {left} writes");
            let (_volume, device) = match open_until(&directory, left, left * 37 % 256) {
                Ok(opened) => opened,
                Err(VolumeError::Io { .. }) => continue,
                Err(error) => panic!("{case}: {error}"),
            };
            let mut sim = Sim::new(device, history_of(&config, seed, 0, 60));
            while sim.device().store_error().is_none() && sim.misbehaviour().is_none() && sim.step() {}
            let (log, ended) = (sim.log().clone(), sim.device().store_error().is_none());
            drop((_volume, sim));
            copy_volume(&directory, &without);
            forget_epochs(&without, &Layout::new(&Geometry::new(&config), Format::Two));
            needed += u64::from(verdict(&log, &open(&without).1) != Verdict::Legal);
            let (_volume, device) = open(&directory);
            judge(&log, &device, &case);
            let media = device.media();
            let blocks = (0..Geometry::new(&config).blocks()).map(flashweir_ftl::BlockId);
            members = blocks.map(|block| media.members(block).count()).sum::<usize>().max(members);
            if ended {
                break;
            }
        }
        // Written back in order, they can be told from the contents alone.
        let has_none = config.order.policy == PersistPolicy::InOrderWriteBack;
        assert_eq!(members == 0, has_none, "{name}: {members}");
    }
    println!("{needed} states would be wrong without the epochs");
    assert!(needed > 50, "{needed}");
}

/// A volume with a past, half of it in real bytes; what a host reads from it.
fn volume_with_past(directory: &Path, name: &str, clean: bool) -> Arc<[Identity]> {
    let config = tiny(name).unwrap();
    let geometry = Geometry::new(&config);
    Volume::create(directory, &config, 7).unwrap();
    let (volume, device) = open(directory);
    let mut sim = Sim::new(device, exercise(&geometry, 3));
    assert_eq!(sim.run(), None);
    drop((volume, sim));
    let (volume, mut device) = open_until(directory, if clean { NEVER } else { 70 }, 100).unwrap();
    let mut run = Runner::default();
    for unit in (0..geometry.user_units).filter(|unit| unit % 2 == 0) {
        let (lba, blocks) = (geometry.lba_of(Lpn(unit)), geometry.lbas_per_unit as u32);
        let data = bytes(blocks as usize, unit);
        run.command(&mut device, Op::Write { lba, blocks, data }).unwrap();
    }
    if clean {
        run.shut_down(&mut device);
        volume.close(&device).unwrap();
        return contents(&device);
    }
    assert!(device.store_error().is_some(), "{name}: more than 70 writes");
    drop((volume, device));
    let copy = directory.with_extension("copy");
    copy_volume(directory, &copy);
    contents(&open(&copy).1)
}

fn copy_volume(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for (name, clean) in [
        ("tiny-d1", true),
        ("tiny-d2", false),
        ("tiny-d2", true),
        ("tiny-d1-partial", false),
        ("tiny-d0", true),
        ("tiny-dftl", true),
    ] {
        let place = Place::new();
        let (original, copy) = (place.join("v"), place.join("w"));
        let expected = volume_with_past(&original, name, clean);
        let (mut refused, mut lost, mut harmless) = (0, 0, 0);
        for file in ["volume.toml", "state", "blocks", "oob-2", "data", "capacitor-0", "capacitor-1"] {
            let len = std::fs::metadata(original.join(file)).unwrap().len();
            let mut random = RandomStream::new(len, file);
            for _ in 0..if len == 0 { 0 } else { 40 } {
                copy_volume(&original, &copy);
                let (at, bit) = (random.below(len), random.below(8));
                let mut bytes = std::fs::read(copy.join(file)).unwrap();
                bytes[at as usize] ^= 1 << bit;
                std::fs::write(copy.join(file), bytes).unwrap();
                let case = format!("{name}, clean {clean}: bit {bit} of byte {at} of {file}");
                match open_until(&copy, NEVER, 0) {
                    Err(VolumeError::Damaged { .. } | VolumeError::Newer { .. }) => refused += 1,
                    Err(error) => panic!("{case}: {error}"),
                    Ok((_volume, device)) => {
                        let found = contents(&device);
                        let mut flawed = false;
                        for (lpn, (found, expected)) in found.iter().zip(expected.iter()).enumerate() {
                            let is_lost = *found == Identity(UNREADABLE);
                            assert!(found == expected || is_lost, "{case}: unit {lpn}");
                            flawed |= is_lost;
                        }
                        if flawed { lost += 1 } else { harmless += 1 }
                    }
                }
            }
        }
        println!("{name}, clean {clean}: {refused} refused, {lost} lost a unit, {harmless} harmless");
        assert!(refused > 40 && lost > 0, "{name}: {refused} refused, {lost} lost");
    }
}

#[test]
fn a_lost_unit_is_an_error_that_copies_do_not_hide() {
    let place = Place::new();
    let directory = place.join("v");
    let config = tiny("tiny-d1-partial").unwrap();
    Volume::create(&directory, &config, 1).unwrap();
    let (volume, mut device) = open(&directory);
    let mut run = Runner::default();
    for lba in (0..device.geometry().capacity_lbas()).step_by(8) {
        assert!(
            run.command(&mut device, Op::Write { lba: Lba(lba), blocks: 8, data: bytes(8, lba) }).is_ok()
        );
    }
    run.shut_down(&mut device);
    volume.close(&device).unwrap();
    // Every content is damaged; the records are not.
    let mut data = std::fs::read(directory.join("data")).unwrap();
    let layout = Layout::new(&Geometry::new(&config), Format::Two);
    let meta: Vec<u32> = (0..2).flat_map(|r| Geometry::new(&config).meta_blocks(r)).map(|b| b.0).collect();
    let block_bytes = layout.page_bytes() as usize * layout.pages_per_block as usize;
    for (block, bytes) in
        data.chunks_mut(block_bytes).enumerate().filter(|(b, _)| !meta.contains(&(*b as u32)))
    {
        bytes.chunks_mut(4096).for_each(|unit| unit[block] ^= 1);
    }
    std::fs::write(directory.join("data"), data).unwrap();
    let found = check(&directory, &mut |_| {}).unwrap();
    assert!(found.problems.len() as u64 >= Geometry::new(&config).user_units, "{}", found.problems.len());
    let (_volume, mut device) = open(&directory);
    let mut run = Runner::default();
    let uncorrectable = |lba| Err(DeviceError::Uncorrectable { at: Address::Lba(Lba(lba)) });
    assert_eq!(run.command(&mut device, Op::Read { lba: Lba(32), blocks: 8 }).map(drop), uncorrectable(32));
    let part = |lba| Op::Write { lba: Lba(lba), blocks: 1, data: bytes(1, 5) };
    assert_eq!(run.command(&mut device, part(33)).map(drop), uncorrectable(32));
    // Nothing of a command is done that would keep a part of it.
    let more = |zero| match zero {
        true => Op::WriteZeroes { lba: Lba(36), blocks: 12 },
        false => Op::Write { lba: Lba(36), blocks: 12, data: bytes(12, 5) },
    };
    for zero in [false, true] {
        assert_eq!(run.command(&mut device, more(zero)).map(drop), uncorrectable(32));
        let behind = run.command(&mut device, Op::Read { lba: Lba(40), blocks: 8 });
        assert_eq!(behind.map(drop), uncorrectable(40), "{zero}: the rest of it was written");
    }
    assert_eq!(run.command(&mut device, Op::Read { lba: Lba(32), blocks: 8 }).map(drop), uncorrectable(32));
    // Half of the units become good again, often enough for the others to be moved.
    for round in 0..12 {
        for lba in (0..device.geometry().capacity_lbas()).step_by(8).filter(|lba| lba / 16 % 2 == 0) {
            let write = Op::Write { lba: Lba(lba), blocks: 8, data: bytes(8, lba + round) };
            assert_eq!(run.command(&mut device, write).map(drop), Ok(()));
        }
    }
    assert!(device.metrics().gc_units_moved > 0);
    for lba in (0..device.geometry().capacity_lbas()).step_by(8) {
        let read = run.command(&mut device, Op::Read { lba: Lba(lba), blocks: 8 });
        match lba / 16 % 2 {
            0 => {
                let Data::Bytes(expected) = bytes(8, lba + 11) else { unreachable!() };
                assert_eq!(read.unwrap(), [Payload::Bytes(expected)]);
            }
            _ => assert_eq!(read.map(drop), uncorrectable(lba)),
        }
    }
}

/// A unit of 4 KiB that ends with its own CRC-32C, as blocks of file systems and databases do.
fn sealed(fill: u8) -> Data {
    let mut unit = vec![fill; 4092];
    unit.extend_from_slice(&crc32c::crc32c(&unit).to_le_bytes());
    Data::Bytes(unit.into())
}

/// Writes sealed units of one fill, puts units of another in their places in `data`, and says whether reads notice.
fn notices_other_sealed_contents(directory: &Path) -> bool {
    let write = |fill| Op::Write { lba: Lba(0), blocks: 8, data: sealed(fill) };
    let (volume, mut device) = open(directory);
    let mut run = Runner::default();
    run.command(&mut device, write(1)).unwrap();
    run.shut_down(&mut device);
    volume.close(&device).unwrap();
    let (Data::Bytes(before), Data::Bytes(after)) = (sealed(1), sealed(2)) else { unreachable!() };
    let mut data = std::fs::read(directory.join("data")).unwrap();
    let places: Vec<_> = data.chunks_mut(4096).filter(|unit| **unit == *before).collect();
    assert!(!places.is_empty(), "its content is in the file");
    places.into_iter().for_each(|unit| unit.copy_from_slice(&after));
    std::fs::write(directory.join("data"), data).unwrap();
    let (volume, mut device) = open(directory);
    let mut run = Runner::default();
    let read = run.command(&mut device, Op::Read { lba: Lba(0), blocks: 8 });
    // What is written again is whole again, with either checksum.
    run.command(&mut device, write(3)).unwrap();
    run.shut_down(&mut device);
    volume.close(&device).unwrap();
    let (_volume, mut device) = open(directory);
    let Data::Bytes(expected) = sealed(3) else { unreachable!() };
    let again = Runner::default().command(&mut device, Op::Read { lba: Lba(0), blocks: 8 });
    assert_eq!(again, Ok(vec![Payload::Bytes(expected)]));
    read == Err(DeviceError::Uncorrectable { at: Address::Lba(Lba(0)) })
}

/// CRC-32C is the same for all contents that end with their own: one in the place of another passed for whole.
#[test]
fn regression_a_sealed_content_in_the_place_of_another_is_damage() {
    let place = Place::new();
    let (directory, config) = (place.join("v"), tiny("tiny-d1-partial").unwrap());
    Volume::create(&directory, &config, 1).unwrap();
    assert!(notices_other_sealed_contents(&directory));
    // A volume that was made before there was another checksum goes on with its own, which notices nothing.
    let directory = place.join("w");
    Volume::create(&directory, &config, 1).unwrap();
    let text = std::fs::read_to_string(directory.join(DESCRIPTION)).unwrap();
    let older = format::unseal(&text).unwrap().replace("needs = [\"xxh3\"]", "needs = []");
    std::fs::write(directory.join(DESCRIPTION), format::seal(&older)).unwrap();
    assert!(!notices_other_sealed_contents(&directory));
}

fn bytes(blocks: usize, fill: u64) -> Data {
    let words = (0..blocks as u64 * 64).flat_map(|word| (fill << 16 | word | 1 << 63).to_le_bytes());
    Data::Bytes(words.collect())
}

/// Gives a device one command after the other.
#[derive(Default)]
struct Runner {
    now: Instant,
    agenda: Agenda<Event>,
    commands: u64,
}

impl Runner {
    fn command(&mut self, device: &mut Device, op: Op) -> Result<Vec<Payload>, DeviceError> {
        let mut effects = Vec::new();
        let command = Command::new(self.commands, op);
        let id = command.id;
        self.commands += 1;
        device.command(self.now, command, &mut effects);
        loop {
            let mut result = None;
            for effect in effects.drain(..) {
                match effect {
                    Effect::At(at, event) => self.agenda.at(at, event),
                    Effect::Complete(completion) if completion.id == id => result = Some(completion.result),
                    Effect::Complete(_) | Effect::Accepted { .. } => {}
                }
            }
            if let Some(result) = result {
                return result.map(|done| match done {
                    flashweir_core::Done::Data(data) => data.into_vec(),
                    _ => Vec::new(),
                });
            }
            let (now, event) = self.agenda.pop().expect("a command completes");
            self.now = now;
            device.event(now, event, &mut effects);
        }
    }

    /// Flushes, and waits until the device is idle.
    fn shut_down(mut self, device: &mut Device) {
        self.command(device, Op::Flush).unwrap();
        let mut effects = Vec::new();
        while let Some((now, event)) = self.agenda.pop() {
            device.event(now, event, &mut effects);
            for effect in effects.drain(..) {
                if let Effect::At(at, event) = effect {
                    self.agenda.at(at, event);
                }
            }
        }
    }
}

#[test]
fn a_stop_with_notice_loses_nothing() {
    for name in names() {
        let place = Place::new();
        let directory = place.join("v");
        let config = tiny(name).unwrap();
        Volume::create(&directory, &config, 1).unwrap();
        let lbas = Geometry::new(&config).lbas_per_unit as u32;
        for boot in 0..4u64 {
            let (volume, mut device) = open(&directory);
            assert!(volume.was_clean());
            let mut run = Runner::default();
            for unit in 0..device.geometry().user_units {
                let lba = Lba(unit * u64::from(lbas));
                if boot > 0 {
                    let Data::Bytes(expected) = bytes(lbas as usize, unit + boot - 1) else { unreachable!() };
                    let read = run.command(&mut device, Op::Read { lba, blocks: lbas });
                    assert_eq!(read.unwrap(), [Payload::Bytes(expected)], "{name}: unit {unit}");
                }
                let data = bytes(lbas as usize, unit + boot);
                run.command(&mut device, Op::Write { lba, blocks: lbas, data }).unwrap();
            }
            run.shut_down(&mut device);
            volume.close(&device).unwrap();
            let info = info(&directory, &mut |_| {}).unwrap();
            assert!(info.clean && info.opens == boot + 1);
            let mapped = info.content.unwrap().mapped_bytes;
            assert_eq!(mapped, Some(Geometry::new(&config).capacity_lbas() * 512), "{name}");
        }
    }
}

#[test]
fn a_full_host_is_named_and_the_volume_is_there_when_it_is_not_full_any_more() {
    for name in ["tiny-d0", "tiny-d1", "tiny-d2"] {
        let place = Place::new();
        let directory = place.join("v");
        let config = tiny(name).unwrap();
        Volume::create(&directory, &config, 1).unwrap();
        let (volume, device) = open_until(&directory, 90, 128).unwrap();
        let mut sim = Sim::new(device, exercise(&Geometry::new(&config), 5));
        while sim.device().store_error().is_none() {
            assert!(sim.step(), "{name}: more than 90 writes");
        }
        let said = sim.device().store_error().unwrap().to_string();
        assert!(said.ends_with(" cannot be written: No space left on device (os error 28)"), "{said}");
        let (log, device) = (sim.log().clone(), sim.device().clone());
        let error = volume.close(&device).unwrap_err();
        assert!(matches!(error, VolumeError::Io { .. }), "{error}");
        drop(sim);
        let (volume, device) = open(&directory);
        assert!(!volume.was_clean());
        judge(&log, &device, name);
    }
}

#[test]
fn a_live_cut_is_one_on_files_too() {
    for (name, seed) in names().zip(1..) {
        let place = Place::new();
        let directory = place.join("v");
        let config = tiny(name).unwrap();
        Volume::create(&directory, &config, seed).unwrap();
        let mut random = RandomStream::new(seed, name);
        let (volume, mut device) = open(&directory);
        for boot in 0..6 {
            let mut sim = Sim::new(device, history_of(&config, seed, boot, 120));
            for _ in 0..100 + random.below(1500) {
                sim.step();
            }
            let torn = [
                flashweir_device::Torn::Absent,
                flashweir_device::Torn::Damaged,
                flashweir_device::Torn::Done,
            ];
            let media = sim.device().cut(sim.cut_instant(), |_| torn[random.below(3) as usize]);
            let log = sim.log().clone();
            drop(sim);
            device = volume.recover(media).0;
            assert!(device.store_error().is_none());
            judge(&log, &device, &format!("{name}, boot {boot}"));
        }
        let before = contents(&device);
        drop((volume, device));
        assert_eq!(check(&directory, &mut |_| {}).unwrap().problems, [], "{name}");
        let (_volume, device) = open(&directory);
        assert_eq!(contents(&device), before, "{name}");
    }
}

#[test]
fn who_may_not_open_is_told_why() {
    let place = Place::new();
    let directory = place.join("v");
    let said = |error: VolumeError| error.to_string().replace(&*place.0.to_string_lossy(), "");
    let opened = |path: &Path| match Volume::open(path, &mut |_| {}) {
        Ok(_) => "opened".to_owned(),
        Err(error) => said(error),
    };
    let config = tiny("tiny-d1").unwrap();
    assert_eq!(opened(&directory), "/v: there is no such directory");
    std::fs::create_dir(&directory).unwrap();
    assert_eq!(opened(&directory), "/v is not a volume: it has no volume.toml");
    Volume::create(&directory, &config, 1).unwrap();
    assert_eq!(
        said(Volume::create(&directory, &config, 1).unwrap_err()),
        "/v is not empty: expected an empty directory, or a new name"
    );
    let held = open(&directory);
    let process = std::process::id();
    assert_eq!(opened(&directory), format!("/v is in use by process {process}"));
    let shown = info(&directory, &mut |_| {}).unwrap();
    assert!(shown.in_use && shown.process == Some(process) && shown.content.is_none());
    let (volume, mut device) = held;
    Runner::default().command(&mut device, Op::Write { lba: Lba(0), blocks: 1, data: bytes(1, 1) }).unwrap();
    assert_eq!(said(volume.close(&device).unwrap_err()), "/v is not closed: its device was not flushed");
    drop(device);
    assert_eq!(opened(&directory), "opened");
    for file in ["blocks", "oob-2", "data"] {
        let len = std::fs::metadata(directory.join(file)).unwrap().len();
        let handle = OpenOptions::new().write(true).open(directory.join(file)).unwrap();
        handle.set_len(len - 1).unwrap();
        assert_eq!(opened(&directory), format!("/v: {file}: {} bytes: expected {len}", len - 1));
        handle.set_len(len).unwrap();
    }
    let text = std::fs::read_to_string(directory.join(DESCRIPTION)).unwrap();
    let rewrite = |text: &str| std::fs::write(directory.join(DESCRIPTION), text).unwrap();
    rewrite(&text.replace("format = 2", "format = 9"));
    assert_eq!(opened(&directory), "/v: the volume has format 9, and this program knows formats up to 2");
    // What a newer program may write into a volume of this format.
    let unsealed = format::unseal(&text).unwrap();
    let newer = unsealed.replace("\"page-mapped\"", "\"segment\"").replace("[device]", "[device]\nnovel = 1");
    rewrite(&format::seal(&newer));
    assert_eq!(
        opened(&directory),
        "/v: the volume holds the firmware \"segment\", and this program knows \"page-mapped\" and \"open-channel\": it takes a newer one"
    );
    rewrite(&format::seal(&unsealed.replace("\"page-mapped\"", "\"open-channel\"")));
    assert_eq!(opened(&directory), "/v: volume.toml: the firmware is another than that of its host FTL");
    rewrite(&format::seal(
        &unsealed.replace("\"xxh3\"", "\"xxh3\", \"share\"").replace("[device]", "[device]\nnovel = 1"),
    ));
    assert_eq!(
        opened(&directory),
        "/v: the volume needs \"share\", which this program does not know: it takes a newer one"
    );
    rewrite(&format::seal(&unsealed.replace("format = 2\n", "")));
    assert_eq!(opened(&directory), "/v: volume.toml: no format");
    rewrite(&text.replace("channels = 2", "channels = 3"));
    assert_eq!(opened(&directory), "/v: volume.toml: wrong checksum");
    rewrite(&text);
    std::fs::remove_file(directory.join("oob-2")).unwrap();
    assert_eq!(opened(&directory), "/v: oob-2 cannot be opened: No such file or directory (os error 2)");
    let mut ideal = config;
    ideal.ftl.metadata = Metadata::None;
    let refused = said(Volume::create(&place.join("w"), &ideal, 1).unwrap_err());
    assert!(refused.starts_with("ftl.metadata = none of tiny-d1: expected log"), "{refused}");
    assert!(!place.join("w").exists());
}

#[test]
fn capacities_are_met_from_above() {
    let has_map_log = |c: &DeviceConfig| c.firmware.is_page() && c.ftl.metadata == Metadata::Log;
    let mut met = 0;
    for config in flashweir_device::presets::all().into_iter().filter(has_map_log) {
        let stripe = {
            let geometry = Geometry::new(&config);
            u64::from(geometry.planes()) * u64::from(geometry.units_per_page) * geometry.unit_bytes
        };
        for mib in [700, 8 << 10, 20 << 10, 33_333] {
            let wanted = Bytes::mib(mib);
            let sized = match with_capacity(&config, wanted) {
                Ok(sized) => sized,
                Err(error) => {
                    assert!(error.starts_with("expected at "), "{}: {error}", config.name);
                    continue;
                }
            };
            sized.validate().unwrap();
            let capacity = Geometry::new(&sized).capacity_lbas() * 512;
            met += 1;
            assert!(capacity >= wanted.0 && capacity < wanted.0 + stripe, "{}: {capacity}", config.name);
        }
        assert!(with_capacity(&config, Bytes(1)).unwrap_err().starts_with("expected at least "));
        assert!(with_capacity(&config, Bytes(1 << 60)).unwrap_err().starts_with("expected at most "));
    }
    assert!(met > 30, "{met}");
}

#[test]
fn contents_are_on_the_host_and_not_in_memory() {
    let place = Place::new();
    let directory = place.join("v");
    let config = tiny("tiny-d1-partial").unwrap();
    Volume::create(&directory, &config, 1).unwrap();
    let empty = host::bytes_taken(&directory).unwrap();
    let (_volume, mut device) = open(&directory);
    let mut run = Runner::default();
    let before = device.memory_bytes();
    let units = device.geometry().user_units;
    for unit in 0..units {
        run.command(&mut device, Op::Write { lba: Lba(8 * unit), blocks: 8, data: bytes(8, unit) }).unwrap();
    }
    run.command(&mut device, Op::Flush).unwrap();
    let grown = device.memory_bytes() - before;
    assert!(grown < units * 128, "{grown} bytes for {units} units");
    let taken = host::bytes_taken(&directory).unwrap() - empty;
    assert!(taken >= units * 4096, "{taken}");
    assert_eq!(page_record_bytes(Format::Two, 1), 112);
}

/// A process that writes to the given volume, prints what was acknowledged, and is killed.
#[test]
fn child() {
    let Ok(directory) = std::env::var("FLASHWEIR_TEST_VOLUME") else { return };
    let (_volume, mut device, _) = Volume::open(Path::new(&directory), &mut |_| {}).unwrap();
    let flushes = !device.config().completion_is_durable();
    let units = device.geometry().user_units;
    let blocks = device.geometry().lbas_per_unit as u32;
    let mut run = Runner::default();
    let mut out = io::stdout();
    for number in 0u64.. {
        let unit = number * 7919 % units;
        let lba = Lba(unit * u64::from(blocks));
        run.command(&mut device, Op::Write { lba, blocks, data: bytes(blocks as usize, number) }).unwrap();
        if flushes && number % 4 == 3 {
            run.command(&mut device, Op::Flush).unwrap();
        }
        if let Some(error) = device.store_error() {
            writeln!(out, "stopped: {error}").unwrap();
            return;
        }
        if !flushes || number % 4 == 3 {
            writeln!(out, "acknowledged {number}").unwrap();
            out.flush().unwrap();
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    use std::io::BufRead as _;
    for (name, rounds) in [("tiny-d0", 3), ("tiny-d1", 3), ("tiny-d2", 3)] {
        let place = Place::new();
        let directory = place.join("v");
        Volume::create(&directory, &tiny(name).unwrap(), 1).unwrap();
        for round in 0..rounds {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "volume::tests::child", "--nocapture", "--test-threads=1"])
                .env("FLASHWEIR_TEST_VOLUME", &directory)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
            let number = |line: &str| line.split_once("acknowledged ")?.1.parse::<u64>().ok();
            let mut last = lines
                .by_ref()
                .find_map(|line| number(&line.unwrap()).filter(|number| *number > 300 + 217 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            last = lines.map_while(Result::ok).filter_map(|line| number(&line)).last().or(last);
            let last = last.expect("the process wrote for a while");
            let (_volume, device) = open(&directory);
            let units = device.geometry().user_units;
            for number in last.saturating_sub(units - 1)..=last {
                let Some(Payload::Bytes(found)) = device.peek(Lpn(number * 7919 % units)) else {
                    panic!("{name}: {number} of {last} is lost");
                };
                let found = u64::from_le_bytes(found[..8].try_into().unwrap()) << 1 >> 17;
                let same = found % units == number % units;
                assert!(same && found >= number, "{name}: {found} instead of {number} of {last}");
            }
        }
    }
}

/// Volumes of format 1, as the last program with that format left them; `fixtures/README.md` says how they were made.
const OLD_VOLUMES: [(&str, &[u8], bool); 5] = [
    ("clean", include_bytes!("fixtures/clean.gz"), true),
    ("page-torn", include_bytes!("fixtures/page-torn.gz"), false),
    ("erase-torn", include_bytes!("fixtures/erase-torn.gz"), false),
    ("capacitor", include_bytes!("fixtures/capacitor.gz"), false),
    ("ordered-device", include_bytes!("fixtures/ordered-device.gz"), false),
];

/// Unpacks a volume: of each file a line with name and length, then its bytes. The last one says what the host's units
/// hold.
fn unpack(packed: &[u8], directory: &Path) -> Vec<Payload> {
    std::fs::create_dir_all(directory).unwrap();
    let mut whole = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut whole).unwrap();
    let mut rest = &whole[..];
    let mut expected = String::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        let (name, len) = line.split_once(' ').unwrap();
        let (content, after) = rest[end + 1..].split_at(len.parse().unwrap());
        match name {
            "expected" => expected = String::from_utf8(content.to_vec()).unwrap(),
            _ => std::fs::write(directory.join(name), content).unwrap(),
        }
        rest = after;
    }
    let of_line = |line: &str| match line.split(' ').collect::<Vec<_>>()[1..] {
        ["zeros"] => Payload::Zero,
        ["tag", tag] => Payload::Tag(u64::from_str_radix(tag, 16).unwrap()),
        ["bytes", blocks, fill] => {
            let Data::Bytes(bytes) = bytes(blocks.parse().unwrap(), fill.parse().unwrap()) else {
                unreachable!()
            };
            Payload::Bytes(bytes)
        }
        _ => panic!("{line}"),
    };
    expected.lines().map(of_line).collect()
}

fn shown(device: &Device) -> Vec<Payload> {
    (0..device.geometry().user_units).map(|unit| device.peek(Lpn(unit)).unwrap_or_default()).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const NEW_NAMES: [&str; 7] = ["blocks", "capacitor-0", "capacitor-1", "data", "lock", "oob-2", "state"];

#[test]
fn old_volumes_are_looked_at_upgraded_and_hold_what_was_written() {
    let go_on = AtomicBool::new(false);
    for (name, packed, clean) in OLD_VOLUMES {
        let place = Place::new();
        let directory = place.join("v");
        let expected = unpack(packed, &directory);
        let refused = Volume::open(&directory, &mut |_| {}).unwrap_err().to_string();
        let shown_path = directory.display();
        let wanted = "the volume has format 1, and this program writes format 2: weir volume upgrade";
        assert_eq!(refused, format!("{shown_path}: {wanted} {shown_path}"));
        assert_eq!(check(&directory, &mut |_| {}).unwrap().problems, [], "{name}");
        let before = info(&directory, &mut |_| {}).unwrap();
        assert_eq!((before.format, before.clean), (1, clean), "{name}");
        assert_eq!(before.firmware, "page-mapped");
        let done = upgrade(&directory, &go_on, &mut |_| {}).unwrap();
        assert!(done.from == 1 && done.pages > 100 && done.recovers != clean, "{name}: {done:?}");
        let mut names = NEW_NAMES.map(str::to_owned).to_vec();
        names.push(DESCRIPTION.to_owned());
        assert_eq!(names_in(&directory), names, "{name}");
        assert_eq!(check(&directory, &mut |_| {}).unwrap().problems, [], "{name}");
        let after = info(&directory, &mut |_| {}).unwrap();
        assert_eq!((after.format, after.clean, after.opens), (2, clean, before.opens), "{name}");
        assert_eq!(after.content, before.content, "{name}");
        let again = upgrade(&directory, &go_on, &mut |_| {}).unwrap();
        assert_eq!((again.from, again.pages), (2, 0), "{name}");
        for _ in 0..2 {
            let (_volume, device) = open(&directory);
            assert!(shown(&device) == expected, "{name}");
        }
    }
}

/// A disk on which an upgrade ends at one of its changes, and nothing works any more.
struct Ends {
    /// Changes that still work.
    left: u64,
    share: u64,
    free: u64,
}

impl Disk for Ends {
    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free)
    }

    fn allow(&mut self, len: usize) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.left -= 1;
        Ok(if self.left == 0 && len > 1 { len * self.share as usize / 256 } else { len })
    }
}

#[test]
fn an_upgrade_may_end_at_each_of_its_changes() {
    let go_on = AtomicBool::new(false);
    for (name, packed, _) in OLD_VOLUMES {
        let place = Place::new();
        let (original, copy) = (place.join("v"), place.join("w"));
        let expected = unpack(packed, &original);
        let (mut old, mut new) = (0, 0);
        for left in 0.. {
            copy_volume(&original, &copy);
            let mut disk = Ends { left, share: left * 37 % 256, free: u64::MAX };
            let ended = upgrade_on(&copy, &go_on, &mut |_| {}, &mut disk);
            match describe(&copy, &description(&copy).unwrap()).unwrap().format {
                Format::One => {
                    assert!(ended.is_err(), "{name}, {left}");
                    old += 1;
                    assert_eq!(check(&copy, &mut |_| {}).unwrap().problems, [], "{name}, {left}");
                    // All that format 1 reads is as it was.
                    for file in names_in(&original).into_iter().filter(|file| file != LOCK) {
                        let read = |directory: &Path| std::fs::read(directory.join(&file)).unwrap();
                        assert!(read(&original) == read(&copy), "{name}, {left}: {file}");
                    }
                    upgrade(&copy, &go_on, &mut |_| {}).unwrap();
                }
                Format::Two => new += 1,
            }
            let (volume, device) = open(&copy);
            assert!(shown(&device) == expected, "{name}, {left}");
            assert!(!names_in(&copy).contains(&"oob".to_owned()), "{name}, {left}");
            drop((volume, device));
            if disk.left > 0 {
                break;
            }
        }
        println!("{name}: {old} times the old one, {new} times the new one");
        assert!(old > 10 && new > 1, "{name}: {old} {new}");
    }
}

#[test]
fn an_upgrade_that_cannot_be_made_leaves_the_old_volume() {
    let place = Place::new();
    let directory = place.join("v");
    unpack(OLD_VOLUMES[0].1, &directory);
    let before = names_in(&directory);
    let text = |error: VolumeError| error.to_string().replace(&*place.0.to_string_lossy(), "");
    let go_on = AtomicBool::new(false);
    let try_on = |stop: &AtomicBool, mut disk: Ends| {
        let ended = upgrade_on(&directory, stop, &mut |_| {}, &mut disk);
        let unchanged: Vec<String> = names_in(&directory).into_iter().filter(|name| name != "lock").collect();
        assert_eq!(unchanged, before.iter().filter(|name| *name != "lock").cloned().collect::<Vec<_>>());
        text(ended.unwrap_err())
    };
    let room = |free| Ends { left: u64::MAX, share: 0, free };
    let said = try_on(&go_on, room(1 << 10));
    assert!(
        said.starts_with("/v: the upgrade needs ")
            && said.ends_with(" on the host's disk beside what is there, and 1KiB are free"),
        "{said}"
    );
    assert_eq!(try_on(&AtomicBool::new(true), room(u64::MAX)), "/v: stopped; the volume is as before");
    // Full in the middle after all: what was written is given back.
    struct Full(u64);
    impl Disk for Full {
        fn free_bytes(&self, _: &Path) -> io::Result<u64> {
            Ok(u64::MAX)
        }
        fn allow(&mut self, len: usize) -> io::Result<usize> {
            self.0 += 1;
            if len > 1 && self.0 > 8 { Err(io::Error::from_raw_os_error(28)) } else { Ok(len) }
        }
    }
    let full = upgrade_on(&directory, &go_on, &mut |_| {}, &mut Full(0)).unwrap_err();
    assert_eq!(text(full), "/v: oob-2 cannot be written: No space left on device (os error 28)");
    assert!(!directory.join("oob-2").exists());
    // Damage is carried nowhere.
    let mut records = std::fs::read(directory.join("oob")).unwrap();
    records[100] ^= 1;
    std::fs::write(directory.join("oob"), &records).unwrap();
    let damaged = try_on(&go_on, room(u64::MAX));
    assert!(damaged.starts_with("/v: oob, block 0, page 1: "), "{damaged}");
    records[100] ^= 1;
    std::fs::write(directory.join("oob"), records).unwrap();
    let lock = File::open(directory.join(LOCK)).unwrap();
    lock.lock().unwrap();
    let in_use = text(upgrade(&directory, &go_on, &mut |_| {}).unwrap_err());
    assert!(in_use.starts_with("/v is in use by process"), "{in_use}");
    drop(lock);
    upgrade(&directory, &go_on, &mut |_| {}).unwrap();
}
