//! fio under power cuts: its verifying writes through a [`Tap`], a cut that ends it, and what its blocks say about
//! themselves afterwards.
//!
//! Two judges, of which the second does not know the first: the contract's oracle on the record of the tap, and the
//! headers that fio's `verify=crc32c` puts before each interval. By those each interval is one whole version with a
//! valid checksum, at its own place, and at least as new as what the last completed flush covered.
//!
//! Layout of a header of fio 3.33, little-endian: u16 magic, u16 kind of checksum, u32 bytes, u64 seed, u64 offset,
//! u32 and u32 seconds and nanoseconds of the write, u16 thread, u16 number, u32 checksum of what is before, u32
//! checksum of what follows. Both checksums are CRC-32C without the last inversion.

use super::campaign::{Counts, Cutter, Target, read_region};
use super::record::{Failure, FailureKind, Record};
use super::tap::{Tap, Tapped};
use crate::clock::{Clock, Speed};
use crate::control::CutOrder;
use crate::nbd::wire::command;
use flashweir_contract::{DeviceKind, Durability};
use flashweir_core::random::RandomStream;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bytes under one header.
pub const INTERVAL: u64 = 4096;
const MAGIC: u16 = 0xacca;
const CRC32C: u16 = 5;
const CRC_AT: usize = 36;
const DATA_CRC_AT: usize = 40;
const DATA_AT: usize = 44;

/// When a version was written: its header's seconds, nanoseconds and number. Grows within one run of fio.
type Age = (u32, u32, u16);

/// The age in the header of one interval at byte `offset` of the disk; `None` for zeros.
///
/// # Errors
/// It is neither zeros nor one whole version that belongs there.
pub fn check_header(bytes: &[u8], offset: u64) -> Result<Option<Age>, Failure> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let wrong = |kind, what: String| Err(Failure::new(kind, format!("bytes at {offset}: {what}")));
    if (u16_at(0), u16_at(2)) != (MAGIC, CRC32C) || u32_at(CRC_AT) != !crc32c::crc32c(&bytes[..CRC_AT]) {
        return wrong(FailureKind::Corrupt, "no header of fio with a valid checksum".into());
    }
    if u64_at(16) != offset {
        return wrong(FailureKind::Misdirected, format!("a version of the bytes at {}", u64_at(16)));
    }
    if u64::from(u32_at(4)) != INTERVAL || u32_at(DATA_CRC_AT) != !crc32c::crc32c(&bytes[DATA_AT..]) {
        return wrong(FailureKind::Shorn, "the data are not those of their header".into());
    }
    Ok(Some((u32_at(24), u32_at(28), u16_at(34))))
}

/// How new an interval has to be at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floor {
    /// This version, which a request with this number wrote, a newer one, or zeros if a TRIM was asked for after it.
    Version(Age, u64),
    /// Zeros, or a version newer than this one, which was trimmed; any version, if it is not known which.
    Trimmed(Option<Age>),
}

/// How new each interval has to be at least, according to its header.
#[derive(Debug, Default)]
struct Floors {
    at_completion: bool,
    writes: BTreeMap<u64, Vec<(u64, Option<Age>)>>,
    /// Number of the last TRIM that was asked for of each interval.
    trims: BTreeMap<u64, u64>,
    /// State after the answered writes and trims, by the order of their answers.
    answered: Vec<(u64, Option<Age>, u64)>,
    /// Open flushes, and how many answers each covers.
    flushes: BTreeMap<u64, usize>,
    covered: usize,
    floors: BTreeMap<u64, Floor>,
}

impl Floors {
    fn new(kind: DeviceKind) -> Self {
        Self { at_completion: kind.policy().durability == Durability::AtCompletion, ..Self::default() }
    }

    fn watch(&mut self, tapped: Tapped<'_>) -> Result<(), Failure> {
        match tapped {
            Tapped::Asked(id, ask, data) => match ask.command {
                command::WRITE => {
                    let mut parts = Vec::new();
                    for (offset, bytes) in
                        (ask.offset..).step_by(INTERVAL as usize).zip(data.chunks(INTERVAL as usize))
                    {
                        parts.push((offset, check_header(bytes, offset)?));
                    }
                    self.writes.insert(id, parts);
                }
                command::TRIM => {
                    let range = (ask.offset..ask.offset + u64::from(ask.length)).step_by(INTERVAL as usize);
                    self.trims.extend(range.clone().map(|offset| (offset, id)));
                    self.writes.insert(id, range.map(|offset| (offset, None)).collect());
                }
                command::FLUSH => {
                    self.flushes.insert(id, self.answered.len());
                }
                _ => {}
            },
            Tapped::Answered(id, _) => {
                let parts = self.writes.remove(&id).unwrap_or_default();
                self.answered.extend(parts.into_iter().map(|(offset, age)| (offset, age, id)));
                let covers = self.flushes.remove(&id).unwrap_or_default();
                let covers = if self.at_completion { self.answered.len() } else { covers };
                while self.covered < covers {
                    let (offset, age, id) = self.answered[self.covered];
                    let floor = match (age, self.floors.get(&offset)) {
                        (Some(age), _) => Floor::Version(age, id),
                        (None, Some(Floor::Version(trimmed, _))) => Floor::Trimmed(Some(*trimmed)),
                        (None, Some(Floor::Trimmed(trimmed))) => Floor::Trimmed(*trimmed),
                        (None, None) => Floor::Trimmed(None),
                    };
                    self.floors.insert(offset, floor);
                    self.covered += 1;
                }
            }
        }
        Ok(())
    }

    /// Checks that the contents are at least as new.
    fn check(&self, now: &[u8], region: &Range<u64>) -> Result<(), Failure> {
        let offsets = (region.start..region.end).step_by(INTERVAL as usize);
        for (offset, bytes) in offsets.zip(now.chunks_exact(INTERVAL as usize)) {
            let age = check_header(bytes, offset)?;
            let is_lost = match (self.floors.get(&offset), age) {
                (Some(Floor::Version(floor, _)), Some(age)) => age < *floor,
                (Some(Floor::Version(_, id)), None) => self.trims.get(&offset).is_none_or(|trim| trim < id),
                (Some(Floor::Trimmed(Some(trimmed))), Some(age)) => age <= *trimmed,
                (Some(Floor::Trimmed(_)) | None, _) => false,
            };
            if is_lost {
                let (version, floor) =
                    (age.map_or("zeros".into(), |age| format!("{age:?}")), self.floors[&offset]);
                let what = format!("bytes at {offset}: {version}, where a flush covered {floor:?}");
                return Err(Failure::new(FailureKind::Lost, what));
            }
        }
        Ok(())
    }
}

/// A running fio, which is killed when this is dropped.
struct Running(Child);

/// File of the scratch directory for fio's error messages.
const COMPLAINTS: &str = "fio.err";

impl Running {
    fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs fio on `target` and cuts its power, `cuts` times. `scratch` is a directory for a socket. The region begins with
/// the first byte of the disk: fio 3.33 adds its offset twice to the writes of a `randtrimwrite`.
///
/// # Errors
/// The contract was broken, the server does not answer, or fio cannot be run.
pub fn run(
    target: &Target,
    region: &Range<u64>,
    unit: u64,
    seed: u64,
    cuts: u32,
    scratch: &Path,
) -> Result<Counts, Failure> {
    let mut random = RandomStream::new(seed, "live-fio");
    let mut counts = Counts::default();
    let now = read_region(target, region, true)?;
    let mut record = Record::new(target.kind, region.clone(), unit, unit, now);
    for cut in 0..cuts {
        boot(target, &mut record, unit, &mut random, scratch, &mut counts).map_err(|failure| {
            let what = format!("{} (fio, seed {seed}, cut {cut}, {:?})", failure.what, target.kind);
            Failure { what, ..failure }
        })?;
    }
    Ok(counts)
}

fn start(
    scratch: &Path,
    socket: &Path,
    export: &str,
    region: &Range<u64>,
    unit: u64,
    random: &mut RandomStream,
) -> Result<Running, Failure> {
    let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
    let rw = ["randwrite", "write", "randrw", "randtrimwrite"][one_of(&[0, 0, 1, 2, 3]) as usize];
    let (depth, sync) = (one_of(&[1, 4, 16, 32]), one_of(&[0, 1, 8, 32]));
    let bs = one_of(&[1, 1, 2, 4, 16]) * unit;
    let seed = random.next_u64() >> 1;
    let options = [
        "--name=cut".to_owned(),
        "--ioengine=nbd".into(),
        format!("--uri=nbd+unix:///{export}?socket={}", socket.display()),
        format!("--rw={rw}"),
        format!("--bs={bs}"),
        format!("--iodepth={depth}"),
        format!("--fsync={sync}"),
        format!("--offset={}", region.start),
        format!("--size={}", region.end - region.start),
        format!("--randseed={seed}"),
        "--verify=crc32c".into(),
        format!("--verify_interval={INTERVAL}"),
        "--do_verify=0".into(),
        "--verify_state_save=0".into(),
        "--serialize_overlap=1".into(),
        "--time_based".into(),
        "--runtime=60".into(),
    ];
    let complaints = scratch.join(COMPLAINTS);
    let mut fio = Command::new("fio");
    let fio = fio.args(options).stdin(Stdio::null()).stdout(Stdio::null());
    File::create(complaints)
        .and_then(|complaints| fio.stderr(complaints).spawn())
        .map(Running)
        .map_err(|error| Failure::new(FailureKind::Server, format!("fio cannot be started: {error}")))
}

fn boot(
    target: &Target,
    record: &mut Record,
    unit: u64,
    random: &mut RandomStream,
    scratch: &Path,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let socket = scratch.join("tap.sock");
    let server = |what: String| Failure::new(FailureKind::Server, what);
    let mut tap = Tap::bind(&socket, &target.socket).map_err(|error| server(format!("tap: {error}")))?;
    let mut fio = start(scratch, &socket, &target.export, &record.region(), unit, random)?;
    let mut floors = Floors::new(target.kind);
    let most = 1 + random.below(2_000);
    let cut_after = 1 + random.below(most);
    let seed = random.chance(0.5).then(|| random.next_u64()).filter(|_| target.draws);
    let order =
        CutOrder { export: Some(target.export.clone()), seed, eio: false, off_ns: random.below(1_000_000) };
    let clock = Clock::new(Speed::Max);
    let (mut asked, mut answered, mut moved) = (0, 0, clock.wall());
    let mut cutter = None;
    let mut wrong = None;
    while !fio.has_ended() {
        let mut watch = |tapped: Tapped<'_>| {
            match &tapped {
                Tapped::Asked(..) => asked += 1,
                Tapped::Answered(..) => answered += 1,
            }
            moved = clock.wall();
            if let Err(failure) = floors.watch(tapped) {
                wrong.get_or_insert(failure);
            }
        };
        tap.turn(record, Duration::from_millis(5), &mut watch)?;
        if answered >= cut_after && cutter.is_none() {
            cutter = Some(Cutter::ask(target, order.clone()));
        }
        if clock.wall() > moved + target.patience {
            return Err(server(format!("nothing moves since {:.1} s", target.patience.as_secs_f64())));
        }
    }
    if let Some(failure) = wrong {
        return Err(Failure::new(FailureKind::Unjudged, format!("fio wrote something else: {failure}")));
    }
    let Some(cutter) = cutter else {
        let complaints = std::fs::read_to_string(scratch.join(COMPLAINTS)).unwrap_or_default();
        let said = complaints.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(server(format!("fio ended by itself after {answered} requests: {said}")));
    };
    cutter.finish()?;
    drop(tap);
    let region = record.region();
    let now = read_region(target, &region, random.chance(0.5))?;
    floors.check(&now, &region)?;
    let judged = record.judge(&now)?;
    counts.add(&Counts {
        cuts: 1,
        drawn: u64::from(seed.is_some()),
        requests: asked,
        answered,
        in_flight: judged.in_flight,
        promised: judged.promised,
        older: judged.older,
        units: judged.units,
        ..Counts::default()
    });
    record.restart(now, unit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::replies::Ask;

    /// An interval at byte 8192 as fio writes it in this second.
    fn version(second: u32) -> Vec<u8> {
        let mut bytes = vec![7; INTERVAL as usize];
        bytes[..DATA_AT].fill(0);
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..4].copy_from_slice(&CRC32C.to_le_bytes());
        bytes[4..8].copy_from_slice(&(INTERVAL as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&8192_u64.to_le_bytes());
        bytes[24..28].copy_from_slice(&second.to_le_bytes());
        let header = !crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..DATA_CRC_AT].copy_from_slice(&header.to_le_bytes());
        let data = !crc32c::crc32c(&bytes[DATA_AT..]);
        bytes[DATA_CRC_AT..DATA_AT].copy_from_slice(&data.to_le_bytes());
        bytes
    }

    /// What was asked and answered, one after the other: `w3` writes version 3, `t` trims, `f` flushes, `?` asks a TRIM without an answer.
    #[test]
    fn a_flush_sets_a_floor_below_which_nothing_may_fall() {
        for (asked, found, expected) in [
            ("w3 f", 3, false),
            ("w3 f", 2, true),
            // Zeros are older, too, unless somebody asked for them.
            ("w3 f", 0, true),
            ("w3 f ?", 0, false),
            ("w3", 0, false),
            ("w3 f t", 3, false),
            ("w3 f t f", 0, false),
            ("w3 f t f", 3, true),
            ("w3 f t f w4", 4, false),
            // The TRIM was before what was flushed.
            ("w3 f t f w4 f", 0, true),
            ("w3 f t w4", 0, false),
            ("w3 f t f t f", 3, true),
            ("t f", 3, false),
        ] {
            let mut floors = Floors::new(DeviceKind::D1);
            for (id, word) in (0..).zip(asked.split(' ')) {
                let (command, data) = match word.as_bytes() {
                    [b'w', digit] => (command::WRITE, version(u32::from(digit - b'0'))),
                    b"f" => (command::FLUSH, Vec::new()),
                    _ => (command::TRIM, Vec::new()),
                };
                let ask = Ask { command, flags: 0, offset: 8192, length: INTERVAL as u32 };
                floors.watch(Tapped::Asked(id, &ask, &data)).unwrap();
                if word != "?" {
                    floors.watch(Tapped::Answered(id, &ask)).unwrap();
                }
            }
            let now = if found == 0 { vec![0; INTERVAL as usize] } else { version(found) };
            let judged = floors.check(&now, &(8192..8192 + INTERVAL));
            let is_lost = judged.as_ref().is_err_and(|failure| failure.kind == FailureKind::Lost);
            assert_eq!(is_lost, expected, "{asked}, then {found}: {judged:?}");
        }
    }
}
