//! `--perfetto FILE`: the timelines of all runs in one file.
//!
//! Place in the data flow: each run (or boot of a recorded session) writes its events into a part of its own beside the
//! file, whichever thread it is on; at the end the parts are joined in the order of the runs.
//!
//! Invariants: the file appears whole or not at all; parts are removed whatever happens; nothing of the size of the
//! file is held in memory.

use crate::error::{Failure, Outcome, say};
use crate::options::TraceArgs;
use crate::output::thousands;
use crate::output::{check, in_place, resolved, temporary};
use flashweir_core::Instant;
use flashweir_lab::experiment::{Experiment, Wanted};
use flashweir_sim::timeline::{EVENTS_MAX, Findings, HEAD, Limits, Perfetto, TAIL, Written};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Events that each run may have at least, if several share the file.
const EVENTS_MIN: u64 = 10_000;
/// Boots of a recording that share the events of a file; a recording with more of them makes a larger file.
const BOOTS: usize = 4;

/// A file in the making.
#[derive(Debug)]
pub(crate) struct TimelineFile<'a> {
    args: &'a TraceArgs,
    /// Parts and names of the runs; empty if no file is wanted.
    runs: Vec<(PathBuf, String)>,
    /// Runs that share the events of the file.
    shares: usize,
}

impl<'a> TimelineFile<'a> {
    /// The file that is asked for, if any.
    pub(crate) fn new(args: &'a TraceArgs, experiment: &Experiment) -> Outcome<Self> {
        let mut runs = Vec::new();
        if let Some(path) = &args.perfetto {
            check(path)?;
            let cells = experiment.cells().len();
            let name = |cell| if cells == 1 { String::new() } else { experiment.cell_name(cell) };
            runs.extend((0..cells).map(|cell| (temporary(path, &format!("{cell}.part")), name(cell))));
        }
        Ok(Self { args, shares: runs.len().max(1), runs })
    }

    /// The file of a recorded session, if one is asked for. Its runs are the boots, which come one by one.
    pub(crate) fn of_boots(args: &'a TraceArgs) -> Outcome<Self> {
        args.perfetto.as_deref().map_or(Ok(()), check)?;
        Ok(Self { args, runs: Vec::new(), shares: BOOTS })
    }

    /// Options of the next boot's timeline.
    pub(crate) fn boot(&mut self) -> Option<Perfetto> {
        let path = self.args.perfetto.as_ref()?;
        let number = self.runs.len();
        self.runs.push((temporary(path, &format!("{number}.part")), format!("boot {}", number + 1)));
        self.wanted(number).perfetto
    }

    fn limits(&self) -> Limits {
        match self.args.perfetto_window {
            Some((from, until)) => Limits { from, until, events: u64::MAX },
            None => {
                let events = (EVENTS_MAX / self.shares as u64).max(EVENTS_MIN);
                Limits { events, ..Limits::default() }
            }
        }
    }

    /// Options of a run's timeline.
    pub(crate) fn wanted(&self, cell: usize) -> Wanted {
        let perfetto = self.runs.get(cell).map(|(path, name)| {
            let part = Part { path: path.clone(), file: None };
            Perfetto::new(Box::new(part), self.limits(), cell, name)
        });
        Wanted { perfetto, ledger: None }
    }

    /// Joins the parts and says what the file does not show.
    pub(crate) fn finish<'f>(self, findings: impl Iterator<Item = &'f Findings>, quiet: bool) -> Outcome {
        let Some(path) = &self.args.perfetto else { return Ok(()) };
        let written: Vec<&Written> = findings.filter_map(|findings| findings.perfetto.as_ref()).collect();
        let failed =
            |error: &io::Error| Failure::Run(format!("{} cannot be written: {error}", path.display()));
        if let Some(error) = written.iter().find_map(|written| written.error.as_ref()) {
            return Err(failed(error));
        }
        self.join(path).map_err(|error| failed(&error))?;
        if !quiet {
            let events: u64 = written.iter().map(|written| written.events).sum();
            let cut = written.iter().filter(|written| written.cut).map(|written| written.until).min();
            say(match cut {
                Some(until) => format!(
                    "{}: {} events, cut at {} of virtual time; --perfetto-window START..END shows another part",
                    path.display(),
                    thousands(events),
                    millis(until)
                ),
                None => format!("{}: {} events, for ui.perfetto.dev", path.display(), thousands(events)),
            });
        }
        Ok(())
    }

    fn join(&self, path: &Path) -> io::Result<()> {
        let is_file = !in_place(path);
        let path = &resolved(path);
        let whole = if is_file { temporary(path, "part") } else { path.to_owned() };
        let _guard = Removed(is_file.then_some(&whole));
        // Behind what was printed to the same file, as to /dev/stdout.
        let mut how = File::options();
        how.create(true).write(true).truncate(is_file).append(!is_file);
        let mut out = BufWriter::new(how.open(&whole)?);
        out.write_all(HEAD.as_bytes())?;
        for (part, _) in &self.runs {
            io::copy(&mut File::open(part)?, &mut out)?;
        }
        out.write_all(TAIL.as_bytes())?;
        out.flush()?;
        if is_file { std::fs::rename(&whole, path) } else { Ok(()) }
    }
}

impl Drop for TimelineFile<'_> {
    fn drop(&mut self) {
        for (part, _) in &self.runs {
            let _ = std::fs::remove_file(part);
        }
    }
}

/// A temporary file that goes away unless it was renamed.
struct Removed<'a>(Option<&'a PathBuf>);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A file that comes into being with its first byte.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(File::create(&self.path)?)),
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

fn millis(at: Instant) -> String {
    format!("{:.3} ms", at.as_nanos() as f64 / 1e6)
}
