//! Jobs of a fio job file on a mounted file system, in virtual time.
//!
//! Place in the data flow: [`prepare`] makes the files; [`run`] polls each [`FioJob`], lets a [`Worker`] that calls a
//! [`File`] execute each request, and fills a [`Recorder`] for each job.
//!
//! Invariants: the jobs of a stonewall group run concurrently, groups one after the other; a flush is an fsync of the file whose turn it
//! is, and the last one of every file (an fdatasync if the job asks for no more); with atomic files each flush is one commit of all of
//! them; a request that reaches beyond its file is cut off at the file's end.

use super::files::FileJob;
use super::job::FioJob;
use super::spec::{Direction, Mix};
use crate::filebench::tree::make_path;
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Duration, Instant};
use flashweir_fs::vfs::{Errno, File, Fs, OpenFlags, Process, Sink, Source, SyncKind, Vfs};
use flashweir_sim::measure::{JobResult, Recorder};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

/// Reason why jobs on files failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileJobError {
    /// A call on a file failed.
    Call {
        /// Name of the job.
        job: String,
        /// Path of the file.
        path: String,
        /// Error of the call.
        errno: Errno,
    },
    /// Requests of the job take no virtual time, so the job would never end.
    Timeless {
        /// Name of the job.
        job: String,
    },
    /// Atomic files are asked for, and the file system has none.
    NoAtomicFiles {
        /// Name of the job.
        job: String,
    },
    /// A kind of request that files do not support.
    Trim {
        /// Name of the job.
        job: String,
    },
}

impl fmt::Display for FileJobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { job, path, errno } => write!(f, "[{job}]: {path}: {errno}"),
            Self::Timeless { job } => {
                write!(f, "[{job}]: requests take no virtual time; mount with host costs, or on a device")
            }
            Self::NoAtomicFiles { job } => write!(
                f,
                "[{job}]: `atomic_files` needs a file system with atomic files: expected ext4 that journals data, or either \
                 format on a device with SHARE"
            ),
            Self::Trim { job } => write!(f, "[{job}]: `rw` cannot trim files: expected reads and writes"),
        }
    }
}

impl std::error::Error for FileJobError {}

/// Number of requests completed at one instant after which time is considered to stand still.
const TIMELESS_REQUESTS_MAX: u32 = 100_000;
/// Number of bytes written at once when files are made.
const CHUNK_BYTES: u64 = 1 << 20;

/// Makes the files of all jobs durable: with contents if they are read or overwritten, else with the required length
/// only. Existing files of sufficient length are left as they are.
pub async fn prepare<F: Fs>(process: &Process<F>, jobs: &[FileJob]) -> Result<(), FileJobError> {
    for (number, job) in jobs.iter().enumerate() {
        let failed = |path: &str, errno| FileJobError::Call {
            job: job.spec.name.clone(),
            path: path.to_owned(),
            errno,
        };
        if job.spec.mix.uses(Direction::Trim) {
            return Err(FileJobError::Trim { job: job.spec.name.clone() });
        }
        if job.is_atomic && !process.vfs().fs().has_sets() {
            return Err(FileJobError::NoAtomicFiles { job: job.spec.name.clone() });
        }
        let has_contents = job.overwrites || job.spec.mix != Mix::Only(Direction::Write);
        for path in &job.files {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            make_path(process, directory).await.map_err(|(path, errno)| failed(&path, errno))?;
            let made = make_file(process, path, job.file_bytes, has_contents, number as u64).await;
            made.map_err(|errno| failed(path, errno))?;
        }
    }
    let synced = process.vfs().sync_all().await;
    let first = jobs.first().map(|job| job.spec.name.clone()).unwrap_or_default();
    synced.map_err(|errno| FileJobError::Call { job: first, path: "sync".to_owned(), errno })
}

/// Makes a file of so many bytes, or completes one that is shorter: with contents, or with its length only. It is not synced.
///
/// # Errors
/// A call that failed.
pub async fn make_file<F: Fs>(
    process: &Process<F>,
    path: &str,
    bytes: u64,
    has_contents: bool,
    operation: u64,
) -> Result<(), Errno> {
    let file = process.open(path, OpenFlags::WRITE.create(), 0o644).await?;
    let mut at = file.size();
    if !has_contents && at < bytes {
        match file.allocate(0, bytes, false).await {
            Err(Errno::EOPNOTSUPP) => file.truncate(bytes).await?,
            allocated => allocated?,
        }
        at = bytes;
    }
    while at < bytes {
        let written = file.pwrite(at, Source::pattern(operation, (bytes - at).min(CHUNK_BYTES))).await?;
        if written == 0 {
            return Err(Errno::ENOSPC);
        }
        at += written;
    }
    file.close().await
}

/// Returns the time from which a job is measured that is started at `start`.
pub fn measured_from(job: &FileJob, start: Instant, seed: u64) -> Instant {
    FioJob::new(job.spec.clone(), seed).start_after_delay(start).saturating_add(job.spec.ramp)
}

/// Runs the jobs and returns the results in their order. `interval` is that of the series. When a stonewall group starts, `begins` gets the
/// time from which the first of its jobs with statistics is measured.
///
/// # Errors
/// The first call that failed, after all jobs have come to rest.
pub async fn run<F: Fs>(
    process: &Process<F>,
    handle: &Handle,
    jobs: &[FileJob],
    seed: u64,
    interval: Duration,
    begins: &dyn Fn(Instant),
) -> Result<Vec<JobResult>, FileJobError> {
    let groups: BTreeSet<u32> = jobs.iter().map(|job| job.spec.stonewall_group).collect();
    let results: Rc<RefCell<BTreeMap<usize, JobResult>>> = Rc::default();
    let failure = Rc::new(RefCell::new(None));
    for group in groups {
        let counted = jobs.iter().filter(|job| job.spec.stonewall_group == group && job.spec.stats);
        counted.map(|job| measured_from(job, handle.now(), seed)).min().into_iter().for_each(begins);
        let running = Rc::new(Cell::new(0));
        let ended = Rc::new(Signal::default());
        for (number, job) in jobs.iter().enumerate().filter(|(_, job)| job.spec.stonewall_group == group) {
            running.set(running.get() + 1);
            let (job, process, handle) = (job.clone(), process.clone(), handle.clone());
            let (running, ended) = (Rc::clone(&running), Rc::clone(&ended));
            let (results, failure) = (Rc::clone(&results), Rc::clone(&failure));
            handle.clone().spawn(async move {
                match run_job(&job, &process, &handle, seed, interval).await {
                    Ok(result) => {
                        results.borrow_mut().insert(number, result);
                    }
                    Err(error) => {
                        failure.borrow_mut().get_or_insert(error);
                    }
                }
                running.set(running.get() - 1);
                ended.notify();
            });
        }
        while running.get() > 0 {
            ended.wait().await;
        }
        if let Some(failure) = failure.take() {
            return Err(failure);
        }
    }
    Ok(results.take().into_values().collect())
}

/// Number of bytes transferred, or the index of the file that failed and the error.
type Moved = Result<u64, (usize, Errno)>;

/// A request, the time of its submission, and its result.
type Finished = (Request, Instant, Moved);

/// State that the requests of a job share.
struct Shared<F: Fs> {
    files: Vec<(String, File<F>)>,
    file_bytes: u64,
    sync: SyncKind,
    /// Where atomic files are committed together.
    commits: Option<Vfs<F>>,
    finished: RefCell<Vec<Finished>>,
    /// Waker of the job, while it waits for a request to finish.
    waiting: RefCell<Option<Waker>>,
    /// Workers without a request.
    idle: RefCell<Vec<Rc<Worker>>>,
}

/// A task that executes one request after the other. A task per request would cost more than the request itself: the
/// state of a call through all layers is large.
#[derive(Default)]
struct Worker(RefCell<Told>);

/// The last order given to a worker.
#[derive(Default)]
enum Told {
    #[default]
    Nothing,
    /// No order; the worker waits.
    Waits(Waker),
    /// Execute a request with this content.
    Work(Request, u64),
    /// End.
    Over,
}

impl Worker {
    fn tell(&self, told: Told) {
        if let Told::Waits(waker) = self.0.replace(told) {
            waker.wake();
        }
    }

    /// Returns the next request and its content; `None` at the end.
    async fn told(&self) -> Option<(Request, u64)> {
        poll_fn(|context| match self.0.take() {
            Told::Work(request, content) => Poll::Ready(Some((request, content))),
            Told::Over => Poll::Ready(None),
            Told::Nothing | Told::Waits(_) => {
                self.0.replace(Told::Waits(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

async fn run_job<F: Fs>(
    job: &FileJob,
    process: &Process<F>,
    handle: &Handle,
    seed: u64,
    interval: Duration,
) -> Result<JobResult, FileJobError> {
    let name = || job.spec.name.clone();
    let failed = |path: &str, errno| FileJobError::Call { job: name(), path: path.to_owned(), errno };
    let flags = match job.spec.mix {
        Mix::Only(Direction::Read) => OpenFlags::READ,
        _ => OpenFlags::READ_WRITE,
    };
    let flags = if job.is_direct { flags.direct() } else { flags };
    let flags = if job.spec.fua { flags.sync(SyncKind::All) } else { flags };
    let flags = if job.is_atomic { flags.atomic() } else { flags };
    let mut files = Vec::new();
    for path in &job.files {
        let file = process.open(path, flags, 0).await.map_err(|errno| failed(path, errno))?;
        files.push((path.clone(), file));
    }
    let only_data = job.spec.fdatasync > 0 && job.spec.fsync == 0;
    let shared = Rc::new(Shared {
        files,
        file_bytes: job.file_bytes,
        sync: if only_data { SyncKind::Data } else { SyncKind::All },
        commits: job.is_atomic.then(|| process.vfs().clone()),
        finished: RefCell::default(),
        waiting: RefCell::default(),
        idle: RefCell::default(),
    });
    let start = handle.now();
    let mut work = FioJob::new(job.spec.clone(), seed);
    let mut recorder: Option<Recorder> = None;
    let begin = |work: &FioJob, now: Instant| {
        let begun = work.began().unwrap_or(start).saturating_add(job.spec.ramp);
        Recorder::new(begun.min(now), interval)
    };
    let mut in_flight = 0;
    let mut failure = None;
    let mut finished = Vec::new();
    let (mut operation, mut still) = (0, (start, 0));
    loop {
        let now = handle.now();
        let step = if failure.is_some() { Step::Done } else { work.poll(now) };
        match step {
            Step::Submit(request) => {
                in_flight += 1;
                operation += 1;
                if work.measured(now) {
                    recorder.get_or_insert_with(|| begin(&work, now)).submitted_at_depth(in_flight);
                }
                let content = operation ^ flashweir_core::random::mix(seed);
                let idle = shared.idle.borrow_mut().pop();
                let worker = idle.unwrap_or_else(|| {
                    let worker = Rc::new(Worker::default());
                    handle.spawn(carry_out(Rc::downgrade(&shared), handle.clone(), Rc::clone(&worker)));
                    worker
                });
                worker.tell(Told::Work(request, content));
                continue;
            }
            Step::Done if in_flight == 0 => break,
            Step::Wait(at) => wait(&shared, handle, Some(at)).await,
            Step::Done | Step::Blocked => wait(&shared, handle, None).await,
        }
        let now = handle.now();
        std::mem::swap(&mut finished, &mut *shared.finished.borrow_mut());
        for (request, submitted, result) in finished.drain(..) {
            in_flight -= 1;
            still = if still.0 == now { (now, still.1 + 1) } else { (now, 0) };
            match result {
                Ok(bytes) => {
                    if work.measured(now) {
                        let began = request.intended.min(submitted);
                        let recorder = recorder.get_or_insert_with(|| begin(&work, now));
                        recorder.record(request.kind, bytes, began, submitted, now);
                    }
                }
                Err((file, errno)) => {
                    failure.get_or_insert_with(|| failed(&shared.files[file].0, errno));
                }
            }
            work.completed(now, request.token);
        }
        if still.1 > TIMELESS_REQUESTS_MAX {
            failure.get_or_insert(FileJobError::Timeless { job: name() });
        }
    }
    let end = handle.now();
    // All requests are done, so the job is the only owner of the files.
    if let Some(shared) = Rc::into_inner(shared) {
        shared.idle.take().iter().for_each(|worker| worker.tell(Told::Over));
        for (path, file) in shared.files {
            let closed = file.close().await;
            if let Err(errno) = closed {
                failure.get_or_insert(failed(&path, errno));
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let options = BTreeMap::from([
        ("direct".to_owned(), u8::from(job.is_direct).to_string()),
        ("nrfiles".to_owned(), job.files.len().to_string()),
        ("iodepth".to_owned(), job.spec.iodepth.to_string()),
    ]);
    let options = match job.is_atomic {
        true => options.into_iter().chain([("atomic_files".to_owned(), "1".to_owned())]).collect(),
        false => options,
    };
    let recorder = recorder.unwrap_or_else(|| Recorder::new(end, interval));
    Ok(recorder.finish(&job.spec.name, options, end))
}

/// Waits until a request finishes, or until the given time.
async fn wait<F: Fs>(shared: &Shared<F>, handle: &Handle, until: Option<Instant>) {
    if !shared.finished.borrow().is_empty() {
        return;
    }
    let mut timer = pin!(handle.sleep_until(until.unwrap_or(Instant::MAX)));
    poll_fn(|context| {
        let is_time = until.is_some() && timer.as_mut().poll(context).is_ready();
        if is_time || !shared.finished.borrow().is_empty() {
            return Poll::Ready(());
        }
        shared.waiting.replace(Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
    shared.waiting.take();
}

/// The task of a worker. The job owns the shared state, which exists as long as a request is in flight.
async fn carry_out<F: Fs>(shared: Weak<Shared<F>>, handle: Handle, worker: Rc<Worker>) {
    while let Some((request, content)) = worker.told().await {
        let Some(shared) = shared.upgrade() else { return };
        let submitted = handle.now();
        let result = call(&shared, &request, content).await;
        shared.finished.borrow_mut().push((request, submitted, result));
        shared.idle.borrow_mut().push(Rc::clone(&worker));
        if let Some(job) = shared.waiting.take() {
            job.wake();
        }
    }
}

async fn call<F: Fs>(shared: &Shared<F>, request: &Request, content: u64) -> Moved {
    let at = request.lba.0 * LBA_BYTES;
    let (number, offset) = ((at / shared.file_bytes) as usize, at % shared.file_bytes);
    if let (Kind::Flush, Some(vfs)) = (request.kind, &shared.commits) {
        let files: Vec<&File<F>> = shared.files.iter().map(|(_, file)| file).collect();
        return vfs.syncv(&files, shared.sync).await.map(|()| 0).map_err(|errno| (0, errno));
    }
    if request.kind == Kind::Flush {
        // The end of the last file stands for all of them.
        let files = if number < shared.files.len() { number..number + 1 } else { 0..shared.files.len() };
        for file in files {
            shared.files[file].1.sync(shared.sync).await.map_err(|errno| (file, errno))?;
        }
        return Ok(0);
    }
    let bytes = (u64::from(request.blocks) * LBA_BYTES).min(shared.file_bytes - offset);
    let file = &shared.files[number].1;
    let done = match request.kind {
        Kind::Read => file.pread(offset, Sink::nowhere(bytes)).await,
        Kind::Write => file.pwrite(offset, Source::pattern(content, bytes)).await,
        Kind::Trim | Kind::WriteZeroes | Kind::Share | Kind::Flush => Err(Errno::EOPNOTSUPP),
    };
    done.map_err(|errno| (number, errno))
}
