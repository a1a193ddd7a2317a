//! Postmark: the work of a mail or news server on many small files, by Postmark's own scripts (append-segments §8.5).
//!
//! Place in the data flow: [`parse`] reads a script into [`Options`]; [`Postmark`] makes the files and runs the transactions
//! on a mounted file system.
//!
//! Files of a size that is drawn uniformly are created in directories. A transaction reads a file or appends to one, and creates a file or
//! deletes one; biases from 0 to 10 say how often it is the first of each two, and -1 leaves the pair out. Nothing is synced. At the end all
//! files are deleted, which is not part of the measurement.
//!
//! Invariant: what is done is a function of the options and the seed.

mod script;

pub use script::{ScriptError, parse};

use flashweir_core::RandomStream;
use flashweir_core::executor::Handle;
use flashweir_core::{Duration, Instant};
use flashweir_fs::vfs::{Errno, Fs, OpenFlags, Process, Sink, Source};
use flashweir_sim::measure::{CallRecorder, WorkloadResult};
use std::fmt;

/// What a script says; defaults are Postmark's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Smallest and largest size of a file at its creation, in bytes. No file grows beyond the largest one.
    pub size: (u64, u64),
    /// Number of files at the beginning.
    pub files: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// Number of directories; 0 is none but the one of the workload.
    pub subdirectories: u64,
    /// Bytes of one read.
    pub read_bytes: u64,
    /// Bytes of one write.
    pub write_bytes: u64,
    /// Of ten reads or appends, the number that are reads; `None` is neither.
    pub read_bias: Option<u64>,
    /// Of ten creations or deletions, the number that are creations; `None` is neither.
    pub create_bias: Option<u64>,
    /// Seed, if the script gives one.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: (500, 10_000),
            files: 500,
            transactions: 500,
            subdirectories: 0,
            read_bytes: 512,
            write_bytes: 512,
            read_bias: Some(5),
            create_bias: Some(5),
            seed: None,
        }
    }
}

/// How a script is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Name of the workload, and of its directory.
    pub name: String,
    /// Seed, unless the script gives one.
    pub seed: u64,
    /// Time before calls count.
    pub ramp: Duration,
    /// Interval of the series.
    pub interval: Duration,
    /// Ends the transactions before they are all done.
    pub runtime: Option<Duration>,
}

/// A call that failed: what it was for, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError {
    what: String,
    errno: Errno,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)
    }
}
impl std::error::Error for RunError {}

/// Names of the calls, in the order of their recorders.
const CALLS: [&str; 4] = ["read", "append", "create", "delete"];

/// A script whose files have been made.
pub struct Postmark<F: Fs> {
    process: Process<F>,
    handle: Handle,
    options: Options,
    run: RunOptions,
    random: RandomStream,
    /// Number and size of each file that is there.
    files: Vec<(u64, u64)>,
    /// Number of the next file, and of the next write.
    next: u64,
    writes: u64,
}

impl<F: Fs> fmt::Debug for Postmark<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postmark").field("name", &self.run.name).finish_non_exhaustive()
    }
}

impl<F: Fs> Postmark<F> {
    /// Makes directories and files. They are durable when this returns.
    ///
    /// # Errors
    /// A call that failed.
    pub async fn prepare(
        process: Process<F>,
        handle: Handle,
        options: Options,
        run: RunOptions,
    ) -> Result<Self, RunError> {
        let random = RandomStream::new(options.seed.unwrap_or(run.seed), &format!("postmark.{}", run.name));
        let mut postmark =
            Self { process, handle, options, run, random, files: Vec::new(), next: 0, writes: 1 };
        let top = format!("/{}", postmark.run.name);
        let directories = (0..postmark.options.subdirectories).map(|number| format!("{top}/s{number}"));
        for directory in [top.clone()].into_iter().chain(directories) {
            let made = postmark.process.mkdir(&directory, 0o777).await;
            made.map_err(|errno| RunError { what: format!("making {directory}"), errno })?;
        }
        for _ in 0..postmark.options.files {
            postmark.create().await?;
        }
        let synced = postmark.process.vfs().sync_all().await;
        synced.map_err(|errno| RunError { what: "making the files durable".into(), errno })?;
        Ok(postmark)
    }

    /// Runs the transactions.
    ///
    /// # Errors
    /// A call that failed.
    pub async fn run(&mut self) -> Result<WorkloadResult, RunError> {
        let start = self.handle.now() + self.run.ramp;
        let deadline = self.run.runtime.map_or(Instant::MAX, |runtime| start.saturating_add(runtime));
        let mut recorders = CALLS.map(|_| CallRecorder::new(start, self.run.interval));
        let mut ended_early = None;
        for done in 0..self.options.transactions {
            if self.handle.now() >= deadline {
                ended_early = Some(format!("{done} of {} transactions were done", self.options.transactions));
                break;
            }
            for call in self.transaction() {
                let began = self.handle.now();
                let bytes = match call {
                    0 => self.read().await?,
                    1 => self.append().await?,
                    2 => self.create().await?,
                    _ => self.delete().await?,
                };
                let Some(bytes) = bytes else { continue };
                let now = self.handle.now();
                if (now > start || began == start) && now <= deadline {
                    recorders[call].record(bytes, began, now);
                }
            }
        }
        let end = self.handle.now().min(deadline).max(start);
        Ok(WorkloadResult {
            name: self.run.name.clone(),
            seed: self.options.seed.unwrap_or(self.run.seed),
            start_ns: start.as_nanos(),
            end_ns: end.as_nanos(),
            interval_ns: self.run.interval.as_nanos(),
            ended_early,
            calls: recorders
                .into_iter()
                .zip(CALLS)
                .map(|(recorder, name)| recorder.finish(name, name, true, end))
                .collect(),
        })
    }

    /// Deletes all files, as Postmark does at its end; it is not measured.
    ///
    /// # Errors
    /// A call that failed.
    pub async fn clean_up(mut self) -> Result<(), RunError> {
        while !self.files.is_empty() {
            self.delete().await?;
        }
        Ok(())
    }

    /// The calls of a transaction, by their indices in [`CALLS`].
    fn transaction(&mut self) -> Vec<usize> {
        let pairs = [(self.options.read_bias, 0), (self.options.create_bias, 2)];
        let mut calls = Vec::new();
        for (bias, first) in pairs {
            if let Some(bias) = bias {
                calls.push(first + usize::from(self.random.below(10) >= bias));
            }
        }
        calls
    }

    fn path(&self, number: u64) -> String {
        match self.options.subdirectories {
            0 => format!("/{}/{number}", self.run.name),
            directories => format!("/{}/s{}/{number}", self.run.name, number % directories),
        }
    }

    /// Index of a file at random; `None` if there is none.
    fn any(&mut self) -> Option<usize> {
        let count = self.files.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    async fn create(&mut self) -> Result<Option<u64>, RunError> {
        let (least, most) = self.options.size;
        let (number, size) = (self.next, least + self.random.below(most - least + 1));
        self.next += 1;
        self.write(number, 0, size, OpenFlags::WRITE.create()).await?;
        self.files.push((number, size));
        Ok(Some(size))
    }

    async fn append(&mut self) -> Result<Option<u64>, RunError> {
        let Some(at) = self.any() else { return Ok(None) };
        let ((number, size), most) = (self.files[at], self.options.size.1);
        if size >= most {
            return Ok(None);
        }
        let bytes = 1 + self.random.below(most - size);
        self.write(number, size, bytes, OpenFlags::WRITE).await?;
        self.files[at].1 += bytes;
        Ok(Some(bytes))
    }

    /// Writes a part of a file, piece by piece.
    async fn write(&mut self, number: u64, from: u64, bytes: u64, flags: OpenFlags) -> Result<(), RunError> {
        let path = self.path(number);
        let failed = |errno| RunError { what: format!("writing {path}"), errno };
        let file = self.process.open(&path, flags, 0o666).await.map_err(failed)?;
        let end = from + bytes;
        let mut at = from;
        while at < end {
            let piece = self.options.write_bytes.min(end - at);
            let written = file.pwrite(at, Source::pattern(self.writes, piece)).await.map_err(failed)?;
            self.writes += 1;
            at += written;
        }
        file.close().await.map_err(failed)
    }

    async fn read(&mut self) -> Result<Option<u64>, RunError> {
        let Some(at) = self.any() else { return Ok(None) };
        let (number, size) = self.files[at];
        let path = self.path(number);
        let failed = |errno| RunError { what: format!("reading {path}"), errno };
        let file = self.process.open(&path, OpenFlags::READ, 0).await.map_err(failed)?;
        let mut at = 0;
        while at < size {
            at += file.pread(at, Sink::nowhere(self.options.read_bytes)).await.map_err(failed)?.max(1);
        }
        file.close().await.map_err(failed)?;
        Ok(Some(size))
    }

    async fn delete(&mut self) -> Result<Option<u64>, RunError> {
        let Some(at) = self.any() else { return Ok(None) };
        let (number, _) = self.files.swap_remove(at);
        let path = self.path(number);
        let gone = self.process.unlink(&path).await;
        gone.map_err(|errno| RunError { what: format!("deleting {path}"), errno })?;
        Ok(Some(0))
    }
}
