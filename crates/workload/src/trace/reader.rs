//! Converts lines to records: chooses the format and the device, and keeps the order of time.
//!
//! Place in the data flow: [`Reader`] is an iterator that holds one line; [`Trace`] collects its records.
//!
//! Invariants: after an error or the end a reader yields no more records; without `sort` the yielded times never go
//! back; each request is either yielded or counted as skipped.

use super::blkparse::Blkparse;
use super::error::shorten;
use super::fio::Fio;
use super::input::open;
use super::msr::Msr;
use super::text::Lines;
use super::{Action, Devices, Format, Parser, Problem, ReadOptions, Record, TraceError, detect};
use flashweir_core::Duration;
use flashweir_sim::request::Kind;
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;
use std::path::Path;

/// Number of lines at the beginning that are searched for the format and the stage of a blkparse trace.
const LOOK_AHEAD_LINES: usize = 1_000;

/// A record and its line number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Line number, from 1.
    pub line: u64,
    /// Record of the line.
    pub record: Record,
}

/// Reads the records of a trace, one line at a time.
pub struct Reader<R> {
    file: String,
    lines: Lines<R>,
    format: Format,
    parser: Parser,
    devices: Devices,
    sort: bool,
    tolerance: Duration,
    limit: u64,
    state: Progress,
}

/// State of a reader, apart from its input.
#[derive(Default)]
struct Progress {
    /// The device that is replayed, if it is a single one.
    chosen: Option<String>,
    requests: BTreeMap<String, u64>,
    yielded: u64,
    skipped: u64,
    latest: Duration,
    backwards: u64,
    over: bool,
    /// Whether a line that is not blank was read.
    has_begun: bool,
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reader = f.debug_struct("Reader");
        reader.field("file", &self.file).field("format", &self.format).field("devices", &self.devices);
        reader.field("yielded", &self.state.yielded).finish_non_exhaustive()
    }
}

impl<R: BufRead> Reader<R> {
    /// Begins to read `input`, which is called `file` in messages. Fails if the format is neither given nor
    /// recognisable from the first line.
    pub fn new(file: &str, input: R, options: &ReadOptions) -> Result<Self, TraceError> {
        let mut lines = Lines::new(input);
        let format = match options.format {
            Some(format) => format,
            None => sniff(&mut lines).map_err(|(line, problem)| problem.at(file, line))?,
        };
        let parser = match format {
            Format::Mqsim => Parser::Mqsim,
            Format::Disksim => Parser::Disksim,
            Format::Msr => Parser::Msr(Msr::default()),
            Format::Alibaba => Parser::Alibaba,
            Format::Tencent => Parser::Tencent,
            Format::Blkparse => {
                let action = options.action;
                let action = action.unwrap_or_else(|| Action::first_of(&lines.look_ahead(LOOK_AHEAD_LINES)));
                Parser::Blkparse(Blkparse::new(action))
            }
            Format::FioIolog => Parser::Fio(Fio::default()),
        };
        let devices = options.device.clone().unwrap_or_else(|| format.devices());
        let chosen = match &devices {
            Devices::Only(device) => Some(device.clone()),
            Devices::First | Devices::All => None,
        };
        Ok(Self {
            file: file.to_owned(),
            lines,
            format,
            parser,
            devices,
            sort: options.sort,
            tolerance: options.tolerance,
            limit: options.limit.unwrap_or(u64::MAX),
            state: Progress { chosen, ..Progress::default() },
        })
    }

    /// Returns the format, given or detected.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the device whose requests are yielded; `None` if it is all of them, or none was seen yet.
    pub fn device(&self) -> Option<&str> {
        self.state.chosen.as_deref()
    }

    /// Returns the number of requests of each device so far, including skipped ones.
    pub fn requests(&self) -> &BTreeMap<String, u64> {
        &self.state.requests
    }

    /// Returns the number of skipped requests of other devices so far.
    pub fn skipped(&self) -> u64 {
        self.state.skipped
    }

    /// Returns the number of requests so far that were earlier than one before them.
    pub fn backwards(&self) -> u64 {
        self.state.backwards
    }

    /// Returns the next record of the chosen devices.
    fn advance(&mut self) -> Result<Option<Entry>, Problem> {
        let Self { lines, parser, devices, state, .. } = self;
        if state.yielded == self.limit {
            return if state.yielded == 0 { Err(Problem::Empty) } else { Ok(None) };
        }
        while let Some((line, text)) = lines.next()? {
            let is_header = |header: &str| text.starts_with(header);
            if text.trim().is_empty() {
                continue;
            }
            if !std::mem::replace(&mut state.has_begun, true) && parser.header().is_some_and(is_header) {
                continue;
            }
            let Some(parsed) = parser.parse(text)? else {
                continue;
            };
            if !state.takes(devices, parsed.device) {
                state.skipped += 1;
                continue;
            }
            let mut record = parsed.record;
            if record.at < state.latest {
                state.backwards += 1;
                let by = state.latest.saturating_sub(record.at);
                if !self.sort {
                    if by > self.tolerance {
                        return Err(Problem::Backwards { by, tolerance: self.tolerance });
                    }
                    record.at = state.latest;
                }
            }
            state.latest = state.latest.max(record.at);
            state.yielded += 1;
            return Ok(Some(Entry { line, record }));
        }
        if state.yielded > 0 { Ok(None) } else { Err(self.nothing()) }
    }

    /// Returns the reason why there was no request at all.
    fn nothing(&self) -> Problem {
        if let (Devices::Only(wanted), false) = (&self.devices, self.state.requests.is_empty()) {
            let seen = self.state.requests.iter().map(|(device, count)| (device.clone(), *count));
            return Problem::NoDevice { wanted: shorten(wanted), seen: seen.collect() };
        }
        match &self.parser {
            Parser::Blkparse(blkparse) => blkparse.no_action(),
            _ => Problem::Empty,
        }
    }
}

impl Progress {
    /// Counts a request of `device`; returns whether it is yielded.
    fn takes(&mut self, devices: &Devices, device: &str) -> bool {
        match self.requests.get_mut(device) {
            Some(count) => *count += 1,
            None => {
                self.requests.insert(device.to_owned(), 1);
            }
        }
        match (&self.chosen, devices) {
            (Some(chosen), _) => chosen == device,
            (None, Devices::First) => {
                self.chosen = Some(device.to_owned());
                true
            }
            (None, Devices::All | Devices::Only(_)) => true,
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state.over {
            return None;
        }
        let entry = self.advance();
        self.state.over = !matches!(entry, Ok(Some(_)));
        entry
            .map_err(|problem| {
                let whole = matches!(
                    problem,
                    Problem::Empty
                        | Problem::NoAction { .. }
                        | Problem::NoDevice { .. }
                        | Problem::Read { .. }
                );
                problem.at(&self.file, if whole { 0 } else { self.lines.number() })
            })
            .transpose()
    }
}

/// Detects the format from the first meaningful line.
fn sniff<R: BufRead>(lines: &mut Lines<R>) -> Result<Format, (u64, Problem)> {
    if let Some(format) = detect(&lines.look_ahead(LOOK_AHEAD_LINES)) {
        return Ok(format);
    }
    loop {
        match lines.next() {
            Ok(Some((_, text))) if text.trim().is_empty() => {}
            Ok(Some((line, text))) => return Err((line, Problem::Unknown { text: shorten(text.trim()) })),
            Ok(None) => return Err((0, Problem::Empty)),
            Err(problem) => return Err((lines.number(), problem)),
        }
    }
}

/// A trace in memory: its requests in order of time, ready to be replayed.
#[derive(PartialEq, Eq)]
pub struct Trace {
    pub(super) file: String,
    pub(super) records: Vec<Record>,
    /// The request that reaches furthest, with its line.
    pub(super) furthest: Entry,
    /// The largest request that is not a trim, with its line.
    pub(super) largest: Entry,
    format: Format,
    device: Option<String>,
    devices: usize,
    skipped: u64,
    backwards: u64,
    sorted: bool,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut trace = f.debug_struct("Trace");
        trace.field("file", &self.file).field("format", &self.format).field("device", &self.device);
        trace.field("requests", &self.records.len()).finish_non_exhaustive()
    }
}

impl Trace {
    /// Reads all of `input`, which is called `file` in messages.
    pub fn load<R: BufRead>(file: &str, input: R, options: &ReadOptions) -> Result<Self, TraceError> {
        let mut reader = Reader::new(file, input, options)?;
        let mut records = Vec::new();
        let nowhere = Entry { line: 0, record: Record::flush(Duration::ZERO) };
        let (mut furthest, mut largest) = (nowhere, nowhere);
        for entry in &mut reader {
            let entry = entry?;
            let record = entry.record;
            if record.reach() > furthest.record.reach() {
                furthest = entry;
            }
            if record.kind != Kind::Trim && record.blocks > largest.record.blocks {
                largest = entry;
            }
            records.push(record);
        }
        let sorted = options.sort && reader.backwards() > 0;
        if sorted {
            // The sort is stable: requests of the same time stay in the order of the trace.
            records.sort_by_key(|record| record.at);
        }
        records.shrink_to_fit();
        Ok(Self {
            file: file.to_owned(),
            records,
            furthest,
            largest,
            format: reader.format(),
            device: reader.device().map(str::to_owned),
            devices: reader.requests().len(),
            skipped: reader.skipped(),
            backwards: reader.backwards(),
            sorted,
        })
    }

    /// Reads the file at `path`.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::load(&path.display().to_string(), open(path)?, options)
    }

    /// Returns the name of the trace in messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the format, given or detected.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the device; `None` for all.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns the requests in order of time. There is at least one.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the sector after the last one that any request accesses: the number of sectors that a device must have.
    pub fn end(&self) -> u64 {
        self.furthest.record.reach()
    }

    /// Returns the time from the first request to the last.
    pub fn duration(&self) -> Duration {
        let [first, .., last] = self.records.as_slice() else {
            return Duration::ZERO;
        };
        last.at.saturating_sub(first.at)
    }

    /// Returns warnings for the person who replays the trace, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let (Some(device), 1..) = (&self.device, self.skipped) {
            warnings.push(format!(
                "{}: only device `{}` is replayed; {} requests of {} other devices are skipped",
                self.file,
                shorten(device),
                self.skipped,
                self.devices - 1
            ));
        } else if self.device.is_none() && self.devices > 1 {
            warnings.push(format!(
                "{}: the requests of {} devices share one address space",
                self.file, self.devices
            ));
        }
        if self.backwards > 0 {
            let done =
                if self.sorted { "the trace is sorted" } else { "they are moved up to the one before" };
            warnings.push(format!(
                "{}: {} requests are earlier than one before them; {done}",
                self.file, self.backwards
            ));
        }
        warnings
    }
}
