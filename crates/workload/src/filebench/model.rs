//! A model that is ready to run: variables replaced, names resolved, units converted.

use flashweir_core::{Duration, RandomStream};

/// A workload of filebench.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Files.
    pub filesets: Vec<Fileset>,
    /// Processes, in the order of the file.
    pub processes: Vec<Process>,
    /// Events per second that `eventlimit` and its siblings share; `None` if there is no limit.
    pub event_rate: Option<u64>,
    /// How long it runs, if the file says so.
    pub runtime: Option<Duration>,
    /// What the file says of itself (`echo` and `usage`), variables replaced.
    pub remarks: Vec<String>,
}

/// A number, or one drawn anew each time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Always this.
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
    /// What is drawn below is drawn as this.
    pub min: f64,
    /// What is drawn above is drawn as this.
    pub max: f64,
}

impl Gamma {
    /// Without bounds.
    pub const fn new(mean: f64, shape: f64) -> Self {
        Self { mean, shape, min: 0.0, max: f64::INFINITY }
    }

    /// Draws one (Marsaglia and Tsang, 2000).
    pub fn draw(&self, stream: &mut RandomStream) -> f64 {
        // Shapes below one are drawn as the next higher shape, times a power of a uniform number.
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

/// A normal number of mean 0 and deviation 1 (Marsaglia's polar method).
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
    /// The number, or a new one, rounded down.
    pub fn draw(&self, stream: &mut RandomStream) -> u64 {
        match self {
            Self::Fixed(value) => *value,
            Self::Gamma(gamma) => gamma.draw(stream) as u64,
        }
    }
}

/// Files, or one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fileset {
    /// Its name, and that of its directory or file.
    pub name: String,
    /// The directory in which it lies.
    pub path: String,
    /// One file of this name (`define file`) instead of a tree.
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
    /// Files that are there already are used.
    pub reuse: bool,
    /// Opened for reading only.
    pub read_only: bool,
    /// Opened for writing only.
    pub write_only: bool,
}

/// Threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub instances: u32,
    /// Its threads.
    pub threads: Vec<Thread>,
}

/// Flowops that are carried out one after the other, again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// How many there are in each process.
    pub instances: u32,
    /// What it does.
    pub flowops: Vec<Flowop>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Flowop {
    /// Its name.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// Which files, as an index of [`Model::filesets`].
    pub fileset: Option<usize>,
    /// Which open file of the thread.
    pub fd: usize,
    /// The open file whose size `writewholefile` takes; 0 for that of `fd`.
    pub src_fd: usize,
    /// Bytes of an I/O; 0 for the whole file.
    pub iosize: Amount,
    /// How often it is done in a row.
    pub iters: u64,
    /// At random offsets.
    pub is_random: bool,
    /// Past the page cache.
    pub is_direct: bool,
    /// Each write is durable when it returns.
    pub is_dsync: bool,
    /// Each time the next file of the fileset.
    pub opens_next: bool,
    /// Bytes at the beginning of a file that are read and written; 0 for the whole file.
    pub working_set: u64,
    /// What [`Op`] says.
    pub value: Amount,
    /// By how much posts may be ahead of a `semblock`.
    pub highwater: u64,
    /// `sempost` waits if it is too far ahead.
    pub is_blocking: bool,
    /// Which flowop is meant, as that flowop's number in [`Model::flowops`].
    pub target: Option<usize>,
}

macro_rules! ops {
    ($($variant:ident = $name:literal, $touches:literal, $text:literal;)+) => {
        /// What a flowop does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $(#[doc = $text] $variant),+ }

        impl Op {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in the language.
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
    DeleteFile = "deletefile", true, "Removes a file that exists and that nobody has open.";
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
    /// All flowops, numbered from 0, with process and thread.
    pub fn flowops(&self) -> impl Iterator<Item = (&Process, &Thread, &Flowop)> {
        self.processes.iter().flat_map(|process| {
            process
                .threads
                .iter()
                .flat_map(move |thread| thread.flowops.iter().map(move |f| (process, thread, f)))
        })
    }

    /// Threads of all processes.
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

    /// Mean and variance of what is drawn; the standard error of both is below a half per cent here.
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
