//! The summary of a trace, computed in one pass.
//!
//! Memory: the two sets of 4 KiB pages that the trace reads and writes ([`super::pages`]), nothing per request.

use super::input::open;
use super::pages::PageSet;
use super::{Format, ReadOptions, Reader, Record, TraceError};
use flashweir_core::{Bytes, Duration, units::LBA_BYTES};
use flashweir_sim::request::Kind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// Unit of the footprint, in bytes.
const PAGE_BYTES: u64 = 4096;
const PAGE_BLOCKS: u64 = PAGE_BYTES / LBA_BYTES;

/// Summary of a trace. All fields but `devices` refer to the chosen devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceInfo {
    /// Name of the trace.
    pub file: String,
    /// Format of the trace.
    pub format: Format,
    /// Number of requests of each device of the trace.
    pub devices: BTreeMap<String, u64>,
    /// Device that is summarised; `None` for all.
    pub device: Option<String>,
    /// Number of requests; one with a flush before it counts once.
    pub requests: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of trims.
    pub trims: u64,
    /// Number of remaps (SHARE).
    pub shares: u64,
    /// Number of requests that only flush.
    pub flushes: u64,
    /// Number of requests with a flush before them.
    pub preflushes: u64,
    /// Number of writes that complete only when they are durable (FUA).
    pub fua: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes trimmed.
    pub trim_bytes: u64,
    /// Bytes that took over other contents.
    pub share_bytes: u64,
    /// Time from the earliest request to the latest.
    pub duration: Duration,
    /// Number of different 4 KiB pages that are read, written, or named by a SHARE, in part or as a whole.
    pub footprint_pages: u64,
    /// Number of different 4 KiB pages that are written, in part or as a whole.
    pub written_pages: u64,
    /// End of the last byte that any request accesses: the smallest device capacity that holds the trace.
    pub end_bytes: u64,
    /// Number of requests that do not begin or end at a page boundary.
    pub unaligned: u64,
    /// Number of requests that are earlier than one before them. If there are any, a replay may have to sort.
    pub backwards: u64,
}

impl TraceInfo {
    /// Summarises `input`, which is called `file` in messages. Requests out of order are counted, not refused.
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
            info.end_bytes = info.end_bytes.max(record.reach() * LBA_BYTES);
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
                Kind::Share => {
                    info.shares += 1;
                    info.share_bytes += bytes;
                    touched.insert(pages);
                    let source = Record { lba: record.source, ..record };
                    touched.insert(source.lba.0 / PAGE_BLOCKS..source.end().div_ceil(PAGE_BLOCKS));
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

    /// Summarises the file at `path`.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::of(&path.display().to_string(), open(path)?, options)
    }

    /// Returns the footprint as a size.
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
            shares: 0,
            flushes: 0,
            preflushes: 0,
            fua: 0,
            read_bytes: 0,
            write_bytes: 0,
            trim_bytes: 0,
            share_bytes: 0,
            duration: Duration::ZERO,
            footprint_pages: 0,
            written_pages: 0,
            end_bytes: 0,
            unaligned: 0,
            backwards: 0,
        }
    }
}
