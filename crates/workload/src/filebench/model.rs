//! A model that is ready to run: variables replaced, names resolved, units converted.

use flashweir_core::{Duration, RandomStream};

/// A workload of filebench.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Filesets.
    pub filesets: Vec<Fileset>,
    /// Processes, in the order of the file.
    pub processes: Vec<Process>,
    /// Rate of events per second that `eventlimit` and its siblings share; `None` if there is no limit.
    pub event_rate: Option<u64>,
    /// Run time, if the file sets one.
    pub runtime: Option<Duration>,
    /// Texts of `echo` and `usage`, with variables replaced.
    pub remarks: Vec<String>,
}

/// A number that is fixed or drawn anew each time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A fixed number.
    Fixed(u64),
    /// Gamma-distributed.
    Gamma(Gamma),
}

/// The gamma distribution of filebench's `cvar-gamma`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gamma {
    /// Mean, above zero.
    pub mean: f64,
    /// Shape, above zero; the scale is `mean / shape`.
    pub shape: f64,
    /// Lower bound; smaller draws are raised to it.
    pub min: f64,
    /// Upper bound; larger draws are lowered to it.
    pub max: f64,
}

impl Gamma {
    /// Makes a distribution without bounds.
    pub const fn new(mean: f64, shape: f64) -> Self {
        Self { mean, shape, min: 0.0, max: f64::INFINITY }
    }

    /// Draws a number (Marsaglia and Tsang, 2000).
    pub fn draw(&self, stream: &mut RandomStream) -> f64 {
        // A shape below one is drawn as that shape plus one, times a power of a uniform number.
        let (shape, boost) = if self.shape < 1.0 {
            (self.shape + 1.0, (1.0 - stream.unit()).powf(1.0 / self.shape))
        } else {
            (self.shape, 1.0)
        };
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        let standard = loop {
            let x = normal(stream);
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - stream.unit();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                break d * v;
            }
        };
        (standard * boost * self.mean / self.shape).clamp(self.min, self.max)
    }
}

/// Draws a normal number of mean 0 and deviation 1 (Marsaglia's polar method).
fn normal(stream: &mut RandomStream) -> f64 {
    loop {
        let (u, v) = (2.0 * stream.unit() - 1.0, 2.0 * stream.unit() - 1.0);
        let square = u * u + v * v;
        if square > 0.0 && square < 1.0 {
            return u * (-2.0 * square.ln() / square).sqrt();
        }
    }
}

impl Amount {
    /// Returns the number, or a new draw, rounded down.
    pub fn draw(&self, stream: &mut RandomStream) -> u64 {
        match self {
            Self::Fixed(value) => *value,
            Self::Gamma(gamma) => gamma.draw(stream) as u64,
        }
    }
}

/// A set of files, or a single file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fileset {
    /// Name of the fileset, and of its directory or file.
    pub name: String,
    /// Path of the directory that contains it.
    pub path: String,
    /// Whether it is a single file of this name (`define file`) instead of a tree.
    pub is_file: bool,
    /// Number of files.
    pub entries: u64,
    /// Size of each file.
    pub size: Amount,
    /// Mean number of entries of a directory, 2 or more.
    pub dir_width: u64,
    /// Shape of the gamma distributions of widths and depths; zero for no variation.
    pub dir_gamma: f64,
    /// Percentage of the files that exist at the beginning.
    pub prealloc_percent: u8,
    /// Whether existing files are used.
    pub reuse: bool,
    /// Whether files are opened for reading only.
    pub read_only: bool,
    /// Whether files are opened for writing only.
    pub write_only: bool,
}

/// A process with its threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Name of the process.
    pub name: String,
    /// Number of instances.
    pub instances: u32,
    /// Threads of each instance.
    pub threads: Vec<Thread>,
}

/// A thread: flowops that are executed one after the other, repeatedly.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Name of the thread.
    pub name: String,
    /// Number of instances in each process.
    pub instances: u32,
    /// Flowops in order.
    pub flowops: Vec<Flowop>,
}

/// One flowop.
#[derive(Clone, Debug, PartialEq)]
pub struct Flowop {
    /// Name of the flowop.
    pub name: String,
    /// Operation.
    pub op: Op,
    /// Fileset, as an index of [`Model::filesets`].
    pub fileset: Option<usize>,
    /// Number of the thread's open file.
    pub fd: usize,
    /// Number of the open file whose size `writewholefile` takes; 0 for that of `fd`.
    pub src_fd: usize,
    /// Bytes of one I/O; 0 for the whole file.
    pub iosize: Amount,
    /// Number of consecutive executions.
    pub iters: u64,
    /// Whether offsets are random.
    pub is_random: bool,
    /// Whether I/O bypasses the page cache.
    pub is_direct: bool,
    /// Whether each write is durable when it returns.
    pub is_dsync: bool,
    /// Whether it opens the next file of the fileset each time.
    pub opens_next: bool,
    /// Number of bytes at the beginning of a file that are accessed; 0 for the whole file.
    pub working_set: u64,
    /// Parameter, whose meaning depends on the [`Op`].
    pub value: Amount,
    /// Maximum lead of posts over a `semblock`.
    pub highwater: u64,
    /// Whether `sempost` waits if its lead is too large.
    pub is_blocking: bool,
    /// The flowop that it refers to, as a number in [`Model::flowops`].
    pub target: Option<usize>,
}

macro_rules! ops {
    ($($variant:ident = $name:literal, $touches:literal, $text:literal;)+) => {
        /// Operation of a flowop.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $(#[doc = $text] $variant),+ }

        impl Op {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns its name in the language.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Whether it calls the file system and counts in the total.
            pub const fn touches_files(self) -> bool {
                match self { $(Self::$variant => $touches),+ }
            }
        }
    };
}

ops! {
    CreateFile = "createfile", true, "Makes a file of the set that does not exist, and opens it.";
    OpenFile = "openfile", true, "Opens a file that exists.";
    CloseFile = "closefile", true, "Closes an open file.";
    DeleteFile = "deletefile", true, "Removes a file that exists and is not open.";
    StatFile = "statfile", true, "Asks for the attributes of a file.";
    Fsync = "fsync", true, "Makes an open file durable.";
    Read = "read", true, "Reads at the position, or at random.";
    ReadWholeFile = "readwholefile", true, "Reads a file from its beginning to its end.";
    Write = "write", true, "Writes at the position, or at random.";
    WriteWholeFile = "writewholefile", true, "Writes as many bytes as the file shall have.";
    AppendFile = "appendfile", true, "Writes at the end.";
    AppendFileRand = "appendfilerand", true, "Writes at the end, from nothing to one byte less than `iosize`.";
    AioWrite = "aiowrite", true, "Begins a write at random; its time lasts until it is done.";
    AioWait = "aiowait", false, "Waits for all writes that the thread began.";
    SemBlock = "semblock", false, "Waits until it got `value` posts.";
    SemPost = "sempost", false, "Gives `value` posts to each instance of the target.";
    Hog = "hog", false, "Keeps the CPU busy for `value` steps.";
    Delay = "delay", false, "Sleeps for `value` seconds.";
    EventLimit = "eventlimit", false, "Waits for an event.";
    OpsLimit = "opslimit", false, "Waits for as many events as there were calls.";
    IopsLimit = "iopslimit", false, "Waits for as many events as there were reads and writes.";
    BwLimit = "bwlimit", false, "Waits for as many events as there were MiB read and written.";
    FinishOnCount = "finishoncount", false, "Ends the run after `value` calls.";
    FinishOnBytes = "finishonbytes", false, "Ends the run after more than `value` bytes.";
}

impl Model {
    /// Whether any flowop makes an open file durable.
    pub fn syncs(&self) -> bool {
        self.flowops().any(|(_, _, flowop)| flowop.op == Op::Fsync)
    }

    /// Iterates over all flowops, numbered from 0, with process and thread.
    pub fn flowops(&self) -> impl Iterator<Item = (&Process, &Thread, &Flowop)> {
        self.processes.iter().flat_map(|process| {
            process
                .threads
                .iter()
                .flat_map(move |thread| thread.flowops.iter().map(move |f| (process, thread, f)))
        })
    }

    /// Returns the number of threads of all processes.
    pub fn thread_count(&self) -> u64 {
        let of = |process: &Process| -> u64 {
            let threads: u64 = process.threads.iter().map(|thread| u64::from(thread.instances)).sum();
            threads * u64::from(process.instances)
        };
        self.processes.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of the draws; the standard error of both is below half a per cent here.
    #[test]
    fn gamma_numbers_have_their_mean_and_variance() {
        for (mean, shape) in [(131_072.0, 1.5), (20.0, 0.5), (1.0, 4.0)] {
            let mut stream = RandomStream::new(7, "gamma");
            let gamma = Gamma::new(mean, shape);
            let drawn: Vec<f64> = (0..200_000).map(|_| gamma.draw(&mut stream)).collect();
            let found = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance = drawn.iter().map(|x| (x - found).powi(2)).sum::<f64>() / drawn.len() as f64;
            assert!((found / mean - 1.0).abs() < 0.02, "{found} for {mean}");
            assert!((variance * shape / mean / mean - 1.0).abs() < 0.04, "{variance} for {mean}, {shape}");
        }
        let bounded = Gamma { min: 10.0, max: 20.0, ..Gamma::new(15.0, 1.0) };
        let mut stream = RandomStream::new(7, "gamma");
        assert!((0..1000).all(|_| (10.0..=20.0).contains(&bounded.draw(&mut stream))));
    }
}
