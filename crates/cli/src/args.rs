//! The command line as types: what can be said, and the help that teaches it.

use crate::check::CheckArgs;
use crate::crash_sqlite::CrashSqliteArgs;
use crate::explain::ExplainArgs;
use crate::files::FilesArgs;
use crate::filesystem::{FsckArgs, MkfsCommand};
use crate::manual::{CompletionsArgs, ManArgs};
use crate::mount::{MountArgs, SaveArgs};
use crate::serve::{CutArgs, RerunArgs, ServeArgs};
use crate::sqlite::SqliteArgs;
use crate::top::TopArgs;
use crate::volume::VolumeCommand;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use flashweir_core::{Duration, Instant};
use flashweir_crash::files::Format as FileSystem;
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_workload::trace::{Action, Devices, Fit, Format, ReadOptions, ReplayConfig, Timing};
use std::path::PathBuf;

/// Version and commit, as in `0.1.0 (abc1234 2026-11-23)`; see `build.rs`.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("WEIR_COMMIT"));

/// A simulator of flash storage: devices, workloads and power cuts in virtual time.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version = VERSION,
    max_term_width = 100,
    after_help = "Examples:
  weir device list                                     the devices that come with the program
  weir fio job.fio --device consumer-tlc-nvme          a fio job file on one of them
  weir fio job.fio --device sata-mlc --device my.toml --set ftl.gc.policy=fifo
  weir run scenarios/first-look.toml                   four devices under three workloads
  weir files varmail --device rflush --flush rflush    filebench on F2FS, syncs by range flush
  weir sqlite --device barrier-850 --order none,durable  SQLite, and syncs that only order
  weir replay tpcc.trace --device mqsim-default --fit wrap
  weir explain job.fio --device sata-mlc               where the time of the slowest 0.1 % went
  weir waf --policy greedy,fifo                        write amplification beside theory
  weir crash --states 100000                           power cuts at every moment
  weir reproduce rflush                                a paper's claims, and ours beside them
  weir serve consumer-tlc-nvme --unix /tmp/disk.sock   a disk for other programs, to be cut
  weir volume create disk --device sata-mlc            a disk that is kept in a directory
  weir mkfs ext4 disk.img --size 1GiB                  ext4 or F2FS in a file; weir fsck checks it
  weir mount disk.img mnt                              a directory for other programs, to be cut

Time is virtual: the same seed gives the same bytes, on any machine and with any number of --jobs.
Results go to stdout; warnings, progress and the speed of the simulator to stderr.
Exit codes: 0 done, 1 a run failed, 2 the command line or a file is wrong, 130 stopped."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What the command line says.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&of_any_sign(Self::command()).try_get_matches()?)
    }
}

/// The same command line, where `--seed -1` has a value that is out of range and is no unknown option `-1`.
fn of_any_sign(command: clap::Command) -> clap::Command {
    let takes = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    let command = command.mut_args(|arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(of_any_sign)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario: devices × workloads × seeds
    Run(RunArgs),
    /// Run a fio job file on one device or several
    Fio(FioArgs),
    /// Run workloads on the files of a file system on a device
    Files(FilesArgs),
    /// Run SQLite itself on a file system on a device
    Sqlite(SqliteArgs),
    /// Replay a trace on one device or several
    Replay(ReplayArgs),
    /// Look at traces
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Look at devices: presets and device files
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Import the files of other simulators
    #[command(subcommand)]
    Import(ImportCommand),
    /// Say where the time of requests went: queue, link, bus, die, collection, flush
    Explain(ExplainArgs),
    /// Measure write amplification alone, beside the closed forms
    Waf(WafArgs),
    /// Run what papers claim, and say which of it comes out here
    Reproduce(ReproduceArgs),
    /// Serve simulated devices as disks of real programs, over NBD
    Serve(ServeArgs),
    /// Make, look at and check volumes: disks that are kept in a directory
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Make a file system in an image file
    #[command(subcommand)]
    Mkfs(MkfsCommand),
    /// Check the file system in an image file, without changing it; exit code 1 if something is wrong
    Fsck(FsckArgs),
    /// Mount the file system of an image or a volume on a simulated device, by FUSE
    Mount(MountArgs),
    /// Run a program on a mount, and look at what it finds again after a power cut at any moment
    Check(CheckArgs),
    /// Cut the power of a disk that is being served, or of a mount
    Cut(CutArgs),
    /// Have a mount write its image elsewhere, which has ended and found no room for it
    Save(SaveArgs),
    /// Watch a running server
    Top(TopArgs),
    /// Run a recording of `weir serve` again in virtual time
    Rerun(RerunArgs),
    /// Cut the power of tiny devices at every moment and judge what is left
    Crash(CrashArgs),
    /// Print what a shell needs to complete commands and options
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
}

/// What every command has that runs something.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Write the results to this file instead of stdout; it appears whole or not at all
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// Write the time series of every job to this file: a line per interval and kind of request
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a page with figures to this file: HTML that needs no network, variants side by side
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// No warnings, no progress, no line about speed; errors are still said
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Worlds that run at once; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// How many work, and what becomes of what they find.
#[derive(Debug, Args)]
pub(crate) struct ResultArgs {
    /// What runs at once; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Write the results to this file instead of stdout; it appears whole or not at all
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// No warnings, no progress, no line about speed; errors are still said
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// A time line for Perfetto.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Write a time line for Perfetto (ui.perfetto.dev) to this file: tracks for each queue, channel, die, flush and
    /// collection, in virtual time; docs/perfetto.md says what they show
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) perfetto: Option<PathBuf>,
    /// The part of the run in that file, as in 10ms..12.5ms [default: from the start until it has 300,000 events]
    #[arg(long, value_name = "START..END", help_heading = "Output", requires = "perfetto", value_parser = window)]
    pub(crate) perfetto_window: Option<(Instant, Instant)>,
}

/// A span of virtual time; what is missing on one side has no limit there.
fn window(text: &str) -> Result<(Instant, Instant), String> {
    let expected = || "expected START..END in virtual time, as in 10ms..12.5ms, 1s.. or ..500us".to_owned();
    let (from, until) = text.split_once("..").ok_or_else(expected)?;
    let at = |text: &str, missing: Instant| match text.trim() {
        "" => Ok(missing),
        text => text.parse::<Duration>().map(|after| Instant::ZERO + after),
    };
    let (from, until) = (at(from, Instant::ZERO)?, at(until, Instant::MAX)?);
    if from < until { Ok((from, until)) } else { Err(format!("it ends before it begins; {}", expected())) }
}

/// A whole number in a range.
pub(crate) fn whole<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX => format!("expected a whole number of {least} or more"),
            _ => format!("expected a whole number from {least} to {most}"),
        })
    }
}

/// A number of things of which there is one at least and which nobody wants too many of.
pub(crate) fn positive() -> impl Fn(&str) -> Result<u32, String> + Clone {
    whole(1, 100_000)
}

/// A real number.
pub(crate) fn real(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
        .ok_or_else(|| "expected a number such as 0.5".to_owned())
}

/// The shape of what `weir run` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunOutput {
    /// Tables for people
    #[value(alias = "normal")]
    Table,
    /// One object with everything that was measured: {"runs": [...]}
    Json,
    /// The JSON of fio, for exactly one device, workload and seed
    FioJson,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir run scenarios/first-look.toml
  weir run scenarios/first-look.toml --seeds 5                   repeats, with 95 % confidence intervals
  weir run s.toml --set 'device.*.ftl.gc.policy=fifo'            one key of every device
  weir run s.toml --set device.0.buffer.capacity=64MiB --set precondition.overwrite=2
  weir run s.toml --output json --out results.json --csv series.csv
  weir run s.toml --perfetto trace.json --perfetto-window 1s..1.01s       ten milliseconds of every run
  weir run s.toml --report figures.html                          a page with figures, for a browser

A scenario in short:
  name = \"my question\"
  precondition = { mode = \"instant\", fill = 1.0, overwrite = 1.0 }
  [[device]]
  preset = \"consumer-tlc-nvme\"
  [[workload]]
  fio = \"job.fio\"")]
pub(crate) struct RunArgs {
    /// The scenario file
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: PathBuf,
    /// Set a key of the scenario; may be given often. Device keys are device.N.KEY or device.*.KEY
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Repeat everything with the seeds 1 to N, short for --set seeds=N
    #[arg(long, value_name = "N", value_parser = positive())]
    pub(crate) seeds: Option<u32>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs<RunOutput>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The shape of what `weir fio` and `weir replay` print; fio's own name for a table is understood, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FioOutput {
    /// Tables for people
    #[value(alias = "normal")]
    Table,
    /// The JSON of fio; with several devices one object with everything: {"runs": [...]}
    #[value(alias = "fio-json")]
    Json,
}

/// Which devices, and in which state.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// A preset (see `weir device list`) or a device file; may be given often
    #[arg(long, short, value_name = "PRESET|FILE.toml", required = true)]
    pub(crate) device: Vec<String>,
    /// Set a key of every device, as in ftl.gc.policy=fifo; may be given often
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    /// How the device gets its state before the workload
    #[arg(long, value_enum, default_value_t = PreconditionArg::Instant, help_heading = "State of the device")]
    pub(crate) precondition: PreconditionArg,
    /// Fraction of the capacity that is written once, in order
    #[arg(long, value_name = "0..1", default_value_t = 1.0, help_heading = "State of the device", value_parser = real)]
    pub(crate) fill: f64,
    /// How often that part is then overwritten
    #[arg(long, value_name = "TIMES", default_value_t = 0.0, help_heading = "State of the device", value_parser = real)]
    pub(crate) overwrite: f64,
    /// The order of the overwrites
    #[arg(long, value_enum, default_value_t = PatternArg::Random, help_heading = "State of the device")]
    pub(crate) pattern: PatternArg,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs<FioOutput>,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreconditionArg {
    /// Fresh from the factory; reads of it touch no flash
    None,
    /// Placed as writing would have placed it, in no time
    Instant,
    /// Written in virtual time, which takes longer to simulate
    AgeByWriting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PatternArg {
    /// Uniformly random addresses
    Random,
    /// Rising addresses
    Sequential,
}

impl PreconditionArg {
    /// What the laboratory calls it.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::None => Mode::None,
            Self::Instant => Mode::Instant,
            Self::AgeByWriting => Mode::AgeByWriting,
        }
    }
}

impl DeviceArgs {
    /// The state that is asked for.
    pub(crate) fn precondition(&self) -> Precondition {
        let mode = self.precondition.mode();
        Precondition { mode, fill: self.fill, overwrite: self.overwrite, pattern: self.pattern.pattern() }
    }
}

impl PatternArg {
    /// What it stands for.
    pub(crate) fn pattern(self) -> Pattern {
        match self {
            Self::Random => Pattern::Random,
            Self::Sequential => Pattern::Sequential,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir fio job.fio --device consumer-tlc-nvme
  weir fio job.fio --device sata-mlc --device my.toml               side by side
  weir fio job.fio --device rflush --set buffer.mode=write-through
  weir fio job.fio --device sata-mlc --overwrite 2                  a device that has been in use
  weir fio job.fio --device sata-mlc --output json --out fio.json        for fio-plot
  weir fio job.fio --device sata-mlc --report figures.html

The device is full before the job starts, as fio's files are laid out before it reads them. Job files are fio's own: \
sections, [global], stonewall, numjobs, runtime and so on; what has no meaning on a simulated device is warned about.")]
pub(crate) struct FioArgs {
    /// The job file
    #[arg(value_name = "JOBFILE")]
    pub(crate) job_file: PathBuf,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// How a trace is read.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Format of the trace [default: told from its first line]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub(crate) format: Option<Format>,
    /// Which device of the trace: a name, `first` or `all` [default: all for mqsim, else first]
    #[arg(long, value_name = "NAME", value_parser = trace_device)]
    pub(crate) trace_device: Option<Devices>,
    /// Stage of a blkparse trace: Q (queued), I (inserted) or D (issued) [default: Q, or D without a Q]
    #[arg(long, value_name = "LETTER", value_parser = action)]
    pub(crate) action: Option<Action>,
    /// Read so many requests at most
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) limit: Option<u64>,
}

impl ReadArgs {
    pub(crate) fn options(&self, sort: bool) -> ReadOptions {
        ReadOptions {
            format: self.format,
            device: self.trace_device.clone(),
            action: self.action,
            sort,
            limit: self.limit,
            ..ReadOptions::default()
        }
    }
}

fn format(text: &str) -> Result<Format, String> {
    Format::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
        let nearest = flashweir_workload::spelling::nearest(text, Format::ALL.map(Format::name));
        let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
        format!("expected {}{hint}", Format::names())
    })
}

fn trace_device(text: &str) -> Result<Devices, String> {
    Ok(match text {
        "first" => Devices::First,
        "all" => Devices::All,
        name => Devices::Only(name.to_owned()),
    })
}

fn action(text: &str) -> Result<Action, String> {
    let value = toml::Value::String(text.to_owned());
    value.try_into().map_err(|_| "expected Q, I or D".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir replay tpcc.trace --device mqsim-default --fit wrap
  weir replay prxy_0.csv --device consumer-tlc-nvme --timing scaled=0.1   ten times as fast
  weir replay tencent.csv --device sata-mlc --trace-device 1063 --timing closed=32
  zcat web.csv.gz | weir replay /dev/stdin --device sata-mlc --limit 1000000

Under `original` and `scaled` timing a request starts when the trace says, and its latency counts from there, also if \
the device is not able to keep up. Under `closed` the times of the trace are ignored.")]
pub(crate) struct ReplayArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// When requests start: original, scaled=FACTOR (0.5 is twice as fast) or closed=DEPTH
    #[arg(long, value_name = "TIMING", default_value = "original", value_parser = timing)]
    pub(crate) timing: Timing,
    /// What happens to requests beyond the end of the device
    #[arg(long, value_enum, default_value_t = FitArg::Refuse)]
    pub(crate) fit: FitArg,
    /// How often the trace is replayed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, u64::from(u32::MAX)))]
    pub(crate) repeat: u32,
    /// Sort the trace by time instead of refusing one that is out of order
    #[arg(long)]
    pub(crate) sort: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitArg {
    /// The replay is refused
    Refuse,
    /// Addresses wrap around
    Wrap,
}

impl ReplayArgs {
    pub(crate) fn config(&self) -> ReplayConfig {
        let fit = match self.fit {
            FitArg::Refuse => Fit::Refuse,
            FitArg::Wrap => Fit::Wrap,
        };
        ReplayConfig { timing: self.timing, fit, repeat: self.repeat }
    }
}

fn timing(text: &str) -> Result<Timing, String> {
    let expected =
        || "expected original, scaled=FACTOR as in scaled=0.5, or closed=DEPTH as in closed=32".to_owned();
    let timing = match text.split_once('=') {
        None if text == "original" => Timing::Original,
        Some(("scaled", factor)) => Timing::Scaled(factor.parse().map_err(|_| expected())?),
        Some(("closed", depth)) => Timing::Closed(depth.parse().map_err(|_| expected())?),
        _ => return Err(expected()),
    };
    let config = ReplayConfig { timing, ..ReplayConfig::default() };
    config.validate().map(|()| timing).map_err(|problem| problem.to_string())
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Sum up a trace: requests, bytes, footprint, duration
    Info {
        /// The trace
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        #[command(flatten)]
        read: ReadArgs,
        #[command(flatten)]
        shape: ShapeArgs,
    },
}

/// What a command prints its results as; the same option everywhere, and `table` is one of its shapes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ShapeArgs<S: ValueEnum + Clone + Send + Sync + 'static = Shape> {
    /// What to print
    #[arg(
        long,
        alias = "output-format",
        value_name = "SHAPE",
        default_value = "table",
        value_enum,
        help_heading = "Output"
    )]
    pub(crate) output: S,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Tables and lines for people
    #[value(alias = "normal")]
    Table,
    /// JSON for programs; docs/output.md says what all documents have in common
    Json,
}

impl ShapeArgs {
    /// Whether programs are to read it.
    pub(crate) fn is_json(self) -> bool {
        self.output == Shape::Json
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// The presets in a table
    List(ShapeArgs),
    /// The text of a preset, with the source of every value; a start for a device file of your own
    Show {
        /// Name of the preset
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Check a device file
    Check {
        /// The file
        #[arg(value_name = "FILE.toml")]
        file: PathBuf,
        #[command(flatten)]
        shape: ShapeArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// MQSim's ssdconfig.xml, and its workload file
    #[command(after_help = "Examples:
  weir import mqsim ssdconfig.xml > my-device.toml
  weir import mqsim ssdconfig.xml --workload workload.xml -o imported/")]
    Mqsim {
        /// MQSim's device configuration
        #[arg(value_name = "SSDCONFIG.xml")]
        config: PathBuf,
        /// MQSim's workload file; its caching mode is taken over into the device
        #[arg(long, value_name = "W.xml", requires = "out_dir")]
        workload: Option<PathBuf>,
        /// Write device.toml and fio jobs into this directory instead of the device to stdout
        #[arg(short, long = "out-dir", value_name = "DIR")]
        out_dir: Option<PathBuf>,
        /// No warnings about keys that are not modelled
        #[arg(long, short)]
        quiet: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir waf
  weir waf --device rflush --policy greedy,fifo,d-choices
  weir waf --device amf --over-provisioning 0.07,0.15,0.28 --set ftl.gc.hot_cold=false

The FTL of the device runs without time under uniformly random writes of one mapping unit until --settle times its capacity \
is written; then write amplification is measured over --measure capacities. The closed form beside it takes the blocks \
of a plane without those that are kept free (fifo: Desnoyers; greedy and d-choices: mean field of Van Houdt).")]
pub(crate) struct WafArgs {
    /// A preset (see `weir device list`) or a device file
    #[arg(long, short, value_name = "PRESET|FILE.toml", default_value = "amf")]
    pub(crate) device: String,
    /// Set a key of the device, as in ftl.gc.choices=4; may be given often
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Victim policy: greedy, cost-benefit, d-choices or fifo; may be given often [default: greedy, fifo]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Over-provisioning, a fraction; may be given often [default: 0.1, 0.2, 0.3]
    #[arg(long, alias = "op", value_name = "0..0.9", value_delimiter = ',', value_parser = real)]
    pub(crate) over_provisioning: Vec<f64>,
    /// Devices that are measured at once; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    /// Capacities to write before measuring
    #[arg(long, value_name = "TIMES", default_value_t = 3.0, value_parser = real)]
    pub(crate) settle: f64,
    /// Capacities to write while measuring
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = real)]
    pub(crate) measure: f64,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Write a page with figures to this file: HTML that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// No progress; errors are still said
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// How much of a paper's set-up is run.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScaleArg {
    /// Small enough for seconds
    Quick,
    /// The paper's sizes
    Full,
}

impl From<ScaleArg> for flashweir_lab::reproduce::Scale {
    fn from(scale: ScaleArg) -> Self {
        match scale {
            ScaleArg::Quick => Self::Quick,
            ScaleArg::Full => Self::Full,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir reproduce rflush                               in minutes
  weir reproduce rflush --study threads               its figures 2 and 3, in seconds
  weir reproduce rflush --scale full --report r.html  the paper's sizes, with the figures
  weir reproduce rflush --output json

A claim has a band in which it counts as reproduced; what falls outside is shown like the rest. Each study
says what of the paper's set-up is missing. Times come from a model, so claims are ratios.")]
pub(crate) struct ReproduceArgs {
    /// The paper: rflush or barrier
    #[arg(value_name = "PAPER")]
    pub(crate) paper: String,
    /// Only this study and its claims; may be given often [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) study: Vec<String>,
    /// How much of the paper's set-up is run
    #[arg(long, value_name = "SCALE", default_value = "quick")]
    pub(crate) scale: ScaleArg,
    /// Seeds of each run, of which the median is shown [default: 1 of the quick scale, 5 of the full one]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub(crate) seeds: Option<u32>,
    /// Runs at once; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Write a page with figures to this file: HTML that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// No progress; errors are still said
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir crash --states 100000              every tiny device, cut at every event
  weir crash --device tiny-d1 --seed 7
  weir crash --mutants                    would it find a bug? plants every known one in turn
  weir crash --planted early-flush        one of them, drawn
  weir crash --replay TOKEN               the line that a violation prints
  weir crash files                        a file system instead of a device: see weir crash files --help

Tiny devices run random histories; their power is cut at every event, also inside of recoveries, and what is left is \
recovered and held against the contract. A violation is made small and drawn, and ends the command with exit code 1.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CrashArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    /// A tiny device, as in tiny-d1; may be given often [default: all]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) device: Vec<String>,
    /// Worlds of each device, each with three random histories and at most some 2,000 states; for 200 of them there is a deep one
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 1_000_000))]
    pub(crate) worlds: Option<u64>,
    /// Stop after so many distinct states [default without --worlds: 100000]; with --mutants and --planted at most so many for each bug
    /// [default: 1000000]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) states: Option<u64>,
    /// Seed of the first world of each device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    /// Plant each known bug in turn and count those that are found
    #[arg(long, conflicts_with = "planted")]
    pub(crate) mutants: bool,
    /// Plant this bug
    #[arg(long, value_name = "BUG")]
    pub(crate) planted: Option<String>,
    /// Stop after so many violations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, 1_000_000))]
    pub(crate) violations: usize,
    /// Do again what this token says, and draw it
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["mutants", "planted", "device"])]
    pub(crate) replay: Option<String>,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CrashCommand {
    /// Cut the power of a file system: sequences of operations on files, every state that the device may leave
    Files(CrashFilesArgs),
    /// Cut the power below SQLite: what it said was committed is there, and its database is good
    Sqlite(CrashSqliteArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir crash files                                     every sequence of one operation, after ACE
  weir crash files --sequences seq-2 --states 100000   drawn ones of two operations
  weir crash files --sequences random --count 500      longer ones
  weir crash files --on device --sequences random --count 100   on the simulated device, cut in its operations
  weir crash files --flush noflush                     what happens if nothing is ever flushed: must fail
  weir crash files --format ext4                       the same on ext4
  weir crash files --sequences reuse --on late --count 200   blocks change owners, requests are under way
  weir crash files --sequences tasks --on late --count 200   two tasks at once
  weir crash files --fsck-every 100                    fsck.f2fs (or e2fsck) looks at some of the recovered images
  weir crash files --mutants                           would it find a bug? plants every known one in turn
  weir crash files --replay TOKEN                      the line that a violation prints

Each sequence is done on a small volume that has been in use. The power is cut at every write and flush; every state \
that the contract of the device allows there (all of them while few blocks are undecided, then a choice) is recovered by a \
mount, checked, read, and held against what fsync, fdatasync, sync and rename promise: docs/file-crash.md. A violation is \
made small, and ends the command with exit code 1. On the simulated device (--on device) the power is cut between and in the \
operations of its flash, and the device recovers first.")]
pub(crate) struct CrashFilesArgs {
    /// Which file system; ext4 has its data ordered, ext4-journal in its journal; f2fs-dual and ext4-dual are for disks with barriers
    #[arg(long, value_name = "FORMAT", value_parser = FileSystem::NAMES, default_value = "f2fs")]
    pub(crate) format: String,
    /// Which sequences: all of one operation, drawn ones of two, random ones, those on a nearly full volume, those in which blocks change owners, those with files without names and access lists, those over files in many parts, or those of two tasks at once
    #[arg(long, short, value_name = "KIND", value_parser = ["seq-1", "seq-2", "random", "cleaning", "reuse", "nameless", "trees", "tasks"], default_value = "seq-1")]
    pub(crate) sequences: String,
    /// Stop after so many sequences [default: all of seq-1; of others as many as --states takes]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) count: Option<u64>,
    /// Stop after so many distinct images [default: seq-1 has an end; 100000 for others without --count]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) states: Option<u64>,
    /// Images that are recovered for one sequence, at most
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, 1_000_000))]
    pub(crate) states_each: Option<u64>,
    /// Seed of the volumes and of what is drawn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    /// What the file system is on: any device that keeps the contract, one whose answers come late, or the simulated one, cut in its operations
    #[arg(long, value_name = "VOLUME", value_parser = ["model", "late", "device"], default_value = "model")]
    pub(crate) on: String,
    /// What the host makes of flushes: FLUSH for each, range flushes, or nothing at all
    #[arg(long, value_name = "MODE", value_parser = ["flush", "rflush", "noflush"], default_value = "rflush")]
    pub(crate) flush: String,
    /// Stop after so many violations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1, 1_000_000))]
    pub(crate) violations: usize,
    /// Plant each known bug of the file system in turn and count those that are found
    #[arg(long, conflicts_with_all = ["planted", "sequences", "states", "fsck_every", "kernel_every"])]
    pub(crate) mutants: bool,
    /// Plant this bug
    #[arg(long, value_name = "BUG")]
    pub(crate) planted: Option<String>,
    /// Do again what this token says
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["sequences", "count", "states", "fsck_every", "kernel_every", "mutants", "planted"])]
    pub(crate) replay: Option<String>,
    /// One recovered image in so many is also checked by fsck.f2fs or `e2fsck -fn`, which has to be installed
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) fsck_every: Option<u64>,
    /// ext4: one image in so many is also mounted by the Linux of this machine before our recovery; it replays the journal and has
    /// to show what we do. As root
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    pub(crate) kernel_every: Option<u64>,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}
