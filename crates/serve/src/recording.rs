//! Recordings of what clients asked for, and when: a live session becomes an input of virtual time.
//!
//! A recording begins with one line that names the format, then one line of JSON (the device, its options, its state at
//! the beginning), then records of 40 bytes, little-endian:
//!
//! | bytes | read, write, trim, zeroes, flush | cut | end |
//! |---|---|---|---|
//! | 0–7 | instant, ns since the disk's power came on | the same | the same |
//! | 8–15 | first block of 512 bytes | 0 | number of records before |
//! | 16–23 | identity of the data of a write | seed of what was torn | trace hash |
//! | 24–27 | blocks | 1 if drawn by the seed | 0 |
//! | 28–29 | queue | 0 | 0 |
//! | 30 | kind: 0 to 4 as in [`crate::stats::KINDS`] | 16 | 17 |
//! | 31 | 1 with FUA | 0 | 0 |
//! | 32–35 | 0 | 0 | 0 |
//! | 36–39 | CRC-32C of bytes 0 to 35 | the same | the same |
//!
//! Contents are not recorded, but their identities are: the device's times do not depend on contents. A server that was
//! killed leaves a recording without an end; it can be run again, with nothing to compare.

use crate::stats::Kind;
use flashweir_core::random::mix;
use flashweir_core::{Data, Instant, Lba, Op};
use flashweir_device::config::DeviceConfig;
use flashweir_device::{Device, DeviceOptions, MODEL};
use flashweir_sim::live::{Live, Tear};
use flashweir_sim::precondition::Precondition;
use flashweir_sim::timeline::{Findings, Perfetto, Timeline};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const FORMAT: &str = "FLASHWEIR-RECORDING 2";
const RECORD_BYTES: usize = 40;
const CUT: u8 = 16;
const END: u8 = 17;

/// State of the disk when the recording began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The model that was recorded ([`MODEL`]).
    pub model: u32,
    /// Commit of the program that recorded; empty if unknown.
    pub commit: String,
    /// Name of the export.
    pub export: String,
    /// Seed of the device's randomness.
    pub seed: u64,
    /// How the fresh device got its state.
    pub precondition: Precondition,
    /// The device.
    pub device: DeviceConfig,
}

impl Header {
    /// The disk at its beginning.
    pub fn device(&self) -> Device {
        let device = Device::new(self.device.clone(), self.options());
        self.precondition.apply(device, self.seed, |_| true).0
    }

    /// The device's options: it keeps contents, as every served disk does.
    pub fn options(&self) -> DeviceOptions {
        DeviceOptions { seed: self.seed, track_contents: true, planted: None }
    }
}

/// One thing that happened to the disk from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Request { at: Instant, queue: u16, kind: Kind, lba: Lba, blocks: u32, fua: bool, identity: u64 },
    Cut { at: Instant, tear: Tear },
    End { at: Instant, records: u64, hash: u64 },
}

impl Entry {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let (at, a, b, blocks, queue, kind, fua) = match self {
            Self::Request { at, queue, kind, lba, blocks, fua, identity } => {
                (at, lba.0, identity, blocks, queue, kind as u8, u8::from(fua))
            }
            Self::Cut { at, tear: Tear::Likeliest } => (at, 0, 0, 0, 0, CUT, 0),
            Self::Cut { at, tear: Tear::Drawn(seed) } => (at, 0, seed, 1, 0, CUT, 0),
            Self::End { at, records, hash } => (at, records, hash, 0, 0, END, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&at.as_nanos().to_le_bytes());
        bytes[8..16].copy_from_slice(&a.to_le_bytes());
        bytes[16..24].copy_from_slice(&b.to_le_bytes());
        bytes[24..28].copy_from_slice(&blocks.to_le_bytes());
        bytes[28..30].copy_from_slice(&queue.to_le_bytes());
        (bytes[30], bytes[31]) = (kind, fua);
        let checksum = crc32c::crc32c(&bytes[..36]);
        bytes[36..40].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if crc32c::crc32c(&bytes[..36]) != u32_at(36) {
            return None;
        }
        let (at, a, b, blocks) = (Instant::from_nanos(u64_at(0)), u64_at(8), u64_at(16), u32_at(24));
        let kind = match bytes[30] {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Trim,
            3 => Kind::Zero,
            4 => Kind::Flush,
            CUT => {
                let tear = if blocks == 1 { Tear::Drawn(b) } else { Tear::Likeliest };
                return Some(Self::Cut { at, tear });
            }
            END => return Some(Self::End { at, records: a, hash: b }),
            _ => return None,
        };
        let queue = u16::from_le_bytes([bytes[28], bytes[29]]);
        Some(Self::Request { at, queue, kind, lba: Lba(a), blocks, fua: bytes[31] != 0, identity: b })
    }
}

/// A recording being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    records: u64,
    /// Over the disks of all boots so far.
    hash: u64,
}

impl Recorder {
    /// Begins a recording; a file that is there is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        let header = serde_json::to_string(header).map_err(io::Error::other)?;
        writeln!(file, "{FORMAT}\n{header}")?;
        Ok(Self { path: path.to_owned(), file, records: 0, hash: 0 })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command is submitted at `at`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn request(&mut self, at: Instant, queue: u16, op: &Op, fua: bool) -> io::Result<()> {
        let (kind, lba, blocks, identity) = match op {
            Op::Read { lba, blocks } => (Kind::Read, *lba, *blocks, 0),
            Op::Write { lba, blocks, data } => (Kind::Write, *lba, *blocks, identity(data)),
            Op::Trim { lba, blocks } => (Kind::Trim, *lba, *blocks, 0),
            Op::WriteZeroes { lba, blocks } => (Kind::Zero, *lba, *blocks, 0),
            _ => (Kind::Flush, Lba(0), 0, 0),
        };
        self.put(Entry::Request { at, queue, kind, lba, blocks, fua, identity })
    }

    /// The power is cut at `at`, the disk's trace hash being `hash`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn cut(&mut self, at: Instant, tear: Tear, hash: u64) -> io::Result<()> {
        self.hash = mix(self.hash ^ hash);
        self.put(Entry::Cut { at, tear })
    }

    /// The recording ends in order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, at: Instant, hash: u64) -> io::Result<()> {
        let hash = mix(self.hash ^ hash);
        self.put(Entry::End { at, records: self.records, hash })?;
        self.file.flush()
    }

    fn put(&mut self, entry: Entry) -> io::Result<()> {
        self.records += 1;
        self.file.write_all(&entry.to_bytes())
    }
}

fn identity(data: &Data) -> u64 {
    match data {
        Data::Zero => 0,
        Data::Pattern(operation) => *operation,
        Data::Bytes(bytes) => flashweir_core::Payload::Bytes(bytes.clone()).identity(),
        Data::Units(units) => units.iter().fold(0, |identity, unit| mix(identity ^ unit.identity())),
    }
}

/// A recording that cannot be run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingError(String);

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for RecordingError {}

/// Result of a recording that was run again.
#[derive(Debug)]
pub struct Rerun {
    /// Requests submitted.
    pub requests: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Virtual time at the end, ns since the power came on for the last time.
    pub time_ns: u64,
    /// Trace hash of this run.
    pub hash: u64,
    /// Trace hash of the recorded session; absent if it was killed.
    pub recorded_hash: Option<u64>,
    /// Findings in each traced boot.
    pub findings: Vec<Findings>,
}

/// Runs a recording again in virtual time. `perfetto` is asked at each boot for where its timeline goes, if anywhere.
///
/// # Errors
/// The file cannot be read, is no recording, or is damaged.
pub fn rerun(
    path: &Path,
    perfetto: &mut dyn FnMut() -> Option<Perfetto>,
) -> Result<(Header, Rerun), RecordingError> {
    let name = path.display();
    let wrong = |what: String| RecordingError(format!("{name}: {what}"));
    let file = File::open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut file = BufReader::new(file);
    let mut line = |limit: u64| {
        let mut line = Vec::new();
        let read = (&mut file).take(limit).read_until(b'\n', &mut line);
        read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    let format = line(64)?;
    if format != FORMAT {
        let version = format.strip_prefix("FLASHWEIR-RECORDING ");
        return Err(wrong(match version {
            Some(version) => format!("a recording of version {version:.8}; this program reads version 2"),
            None => format!("no recording: expected a first line of {FORMAT:?}"),
        }));
    }
    let header: Header = serde_json::from_str(&line(1 << 20)?)
        .map_err(|error| wrong(format!("line 2 describes no device: {error}")))?;
    if header.model != MODEL {
        return Err(wrong(format!(
            "a recording of model {} (commit {}), and this program has model {MODEL}: the device would do something else, so run it again with \
             that commit",
            header.model, header.commit
        )));
    }
    let device = &header.device;
    let suits = device.validate().and_then(|()| device.check_page_namespace());
    let suits = suits.and_then(|()| header.precondition.validate());
    suits.map_err(|error| wrong(format!("line 2: {error}")))?;
    let mut trace = |live: &mut Live| {
        if let Some(perfetto) = perfetto() {
            live.trace(|device| Timeline::new(device, Some(perfetto), None));
        }
    };
    let mut live = Live::new(header.device());
    trace(&mut live);
    let mut finished = Vec::new();
    let mut rerun =
        Rerun { requests: 0, cuts: 0, time_ns: 0, hash: 0, recorded_hash: None, findings: Vec::new() };
    let capacity = live.device().geometry().capacity_lbas();
    for number in 0u64.. {
        let mut bytes = [0; RECORD_BYTES];
        match file.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        }
        let entry = Entry::from_bytes(&bytes)
            .ok_or_else(|| wrong(format!("record {number} is damaged: its checksum or kind is wrong")))?;
        match entry {
            Entry::Request { at, queue, kind, lba, blocks, fua, identity } => {
                if lba.0.checked_add(blocks.into()).is_none_or(|end| end > capacity) {
                    return Err(wrong(format!("record {number} is beyond the end of the device")));
                }
                let op = match kind {
                    Kind::Read => Op::Read { lba, blocks },
                    Kind::Write => Op::Write { lba, blocks, data: Data::Pattern(identity) },
                    Kind::Trim => Op::Trim { lba, blocks },
                    Kind::Zero => Op::WriteZeroes { lba, blocks },
                    Kind::Flush => Op::Flush,
                };
                live.submit(at, queue, op, fua, number, &mut finished);
                rerun.requests += 1;
            }
            Entry::Cut { at, tear } => {
                live.advance(at, &mut finished);
                rerun.hash = mix(rerun.hash ^ live.trace_hash());
                rerun.findings.extend(live.end_trace());
                (live, _) = live.cut(at, header.options(), tear);
                trace(&mut live);
                rerun.cuts += 1;
            }
            Entry::End { records, .. } if records != number => {
                return Err(wrong(format!(
                    "{number} records, and its end counts {records}: some are missing"
                )));
            }
            Entry::End { at, hash, .. } => {
                live.advance(at, &mut finished);
                rerun.recorded_hash = Some(hash);
                break;
            }
        }
        finished.clear();
    }
    rerun.findings.extend(live.end_trace());
    rerun.time_ns = live.now().as_nanos();
    rerun.hash = mix(rerun.hash ^ live.trace_hash());
    Ok((header, rerun))
}
