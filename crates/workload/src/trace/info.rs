//! The summary of a trace, in one pass over it.
//!
//! Memory: that of the two sets of pages of 4 KiB that the trace reads and writes ([`super::pages`]), nothing per request.

use super::input::open;
use super::pages::PageSet;
use super::{Format, ReadOptions, Reader, TraceError};
use flashweir_core::{Bytes, Duration, units::LBA_BYTES};
use flashweir_sim::request::Kind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// The unit in which the footprint is counted.
const PAGE_BYTES: u64 = 4096;
const PAGE_BLOCKS: u64 = PAGE_BYTES / LBA_BYTES;

/// What a trace holds. Everything but `devices` is about the chosen devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceInfo {
    /// The name of the trace.
    pub file: String,
    /// Its format.
    pub format: Format,
    /// Requests of each device of the trace.
    pub devices: BTreeMap<String, u64>,
    /// The device that is summed up; `None` if there are all.
    pub device: Option<String>,
    /// Requests; one with a flush before it counts once.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims.
    pub trims: u64,
    /// Requests that only flush.
    pub flushes: u64,
    /// Requests that flush before they do something else.
    pub preflushes: u64,
    /// Writes that complete only when they are durable.
    pub fua: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes trimmed.
    pub trim_bytes: u64,
    /// From the earliest request to the latest.
    pub duration: Duration,
    /// Different pages of 4 KiB that are read or written, in part or as a whole.
    pub footprint_pages: u64,
    /// Different pages of 4 KiB that are written, in part or as a whole.
    pub written_pages: u64,
    /// The byte behind the last that any request touches: the smallest device that holds the trace.
    pub end_bytes: u64,
    /// Requests that do not begin or end at a page.
    pub unaligned: u64,
    /// Requests that are earlier than one before them. If there are some, a replay may have to sort.
    pub backwards: u64,
}

impl TraceInfo {
    /// Sums up `input`, which messages call `file`. The order of time is counted, not demanded.
    pub fn of<R: BufRead>(file: &str, input: R, options: &ReadOptions) -> Result<Self, TraceError> {
        let options = ReadOptions { sort: true, ..options.clone() };
        let mut reader = Reader::new(file, input, &options)?;
        let mut info = Self::empty(file, reader.format());
        let (mut touched, mut written) = (PageSet::default(), PageSet::default());
        let (mut earliest, mut latest) = (Duration::MAX, Duration::ZERO);
        for entry in &mut reader {
            let record = entry?.record;
            earliest = earliest.min(record.at);
            latest = latest.max(record.at);
            let bytes = u64::from(record.blocks) * LBA_BYTES;
            let pages = record.lba.0 / PAGE_BLOCKS..record.end().div_ceil(PAGE_BLOCKS);
            info.requests += 1;
            info.preflushes += u64::from(record.preflush);
            info.fua += u64::from(record.fua);
            info.end_bytes = info.end_bytes.max(record.end() * LBA_BYTES);
            let aligned = record.lba.0.is_multiple_of(PAGE_BLOCKS) && bytes.is_multiple_of(PAGE_BYTES);
            info.unaligned += u64::from(!aligned);
            match record.kind {
                Kind::Read => {
                    info.reads += 1;
                    info.read_bytes += bytes;
                    touched.insert(pages);
                }
                Kind::Write | Kind::WriteZeroes => {
                    info.writes += 1;
                    info.write_bytes += bytes;
                    written.insert(pages);
                }
                Kind::Trim => {
                    info.trims += 1;
                    info.trim_bytes += bytes;
                }
                Kind::Flush => info.flushes += 1,
            }
        }
        info.duration = latest.saturating_sub(earliest);
        info.written_pages = written.len();
        info.footprint_pages = touched.union_len(&written);
        info.device = reader.device().map(str::to_owned);
        info.devices = reader.requests().clone();
        info.backwards = reader.backwards();
        Ok(info)
    }

    /// Sums up the file at `path`.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::of(&path.display().to_string(), open(path)?, options)
    }

    /// The footprint as a size.
    pub fn footprint(&self) -> Bytes {
        Bytes(self.footprint_pages * PAGE_BYTES)
    }

    fn empty(file: &str, format: Format) -> Self {
        Self {
            file: file.to_owned(),
            format,
            devices: BTreeMap::new(),
            device: None,
            requests: 0,
            reads: 0,
            writes: 0,
            trims: 0,
            flushes: 0,
            preflushes: 0,
            fua: 0,
            read_bytes: 0,
            write_bytes: 0,
            trim_bytes: 0,
            duration: Duration::ZERO,
            footprint_pages: 0,
            written_pages: 0,
            end_bytes: 0,
            unaligned: 0,
            backwards: 0,
        }
    }
}
