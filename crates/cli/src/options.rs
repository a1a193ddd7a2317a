//! Options that several commands have, and those of commands that have no file of their own for them.
//!
//! Place: below the commands, which know them, and above [`crate::values`].

use crate::error::{Failure, Outcome};
use crate::values::{action, format, positive, real, timing, trace_device, whole, window};
use clap::{Args, Subcommand, ValueEnum};
use flashweir_core::Instant;
use flashweir_device::config::{DeviceConfig, FirmwareKind};
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_workload::trace::{Action, Devices, Fit, Format, ReadOptions, ReplayConfig, Timing};
use std::path::PathBuf;

/// Options of every command that runs something.
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
    /// No warnings, no progress, no line about speed; errors are still printed
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Simulations that run in parallel; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// Number of threads, and destination of the results.
#[derive(Debug, Args)]
pub(crate) struct ResultArgs {
    /// Threads that run at once; results do not depend on it [default: one for each processor]
    #[arg(long, short, value_name = "N", value_parser = positive())]
    pub(crate) jobs: Option<u32>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Write the results to this file instead of stdout; it appears whole or not at all
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// No warnings, no progress, no line about speed; errors are still printed
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// A timeline for Perfetto.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Write a timeline for Perfetto (ui.perfetto.dev) to this file: tracks for each queue, channel, die, flush and garbage collection, in
    /// virtual time; docs/perfetto.md explains them
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) perfetto: Option<PathBuf>,
    /// The part of the run in that file, as in 10ms..12.5ms [default: from the start until it has 300,000 events]
    #[arg(long, value_name = "START..END", help_heading = "Output", requires = "perfetto", value_parser = window)]
    pub(crate) perfetto_window: Option<(Instant, Instant)>,
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
    /// Set a key of the scenario; may be given several times. Device keys are device.N.KEY or device.*.KEY
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

/// Devices, and their state.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// A preset (see `weir device list`) or a device file; may be given several times
    #[arg(long, short, value_name = "PRESET|FILE.toml", required = true)]
    pub(crate) device: Vec<String>,
    /// Set a key of every device, as in ftl.gc.policy=fifo; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Put a block layer between the workload and the device: a scheduler (none, deadline or cfq), knobs, or both, as in
    /// deadline,depth=8
    #[arg(long, value_name = "SCHEDULER,KEY=VALUE", help_heading = "Host")]
    pub(crate) block_layer: Option<String>,
    /// Put a host FTL above each device with an open channel: an assembly (pblk, qblke, pblk-as-released or qblke-as-released), and keys behind it, as in qblke,rings=4
    #[arg(long, value_name = "ASSEMBLY,KEY=VALUE", help_heading = "Host")]
    pub(crate) host_ftl: Option<String>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs<FioOutput>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The state of devices when a workload begins.
#[derive(Debug, Args)]
#[command(next_help_heading = "State of the device")]
pub(crate) struct StateArgs {
    /// How the device gets its state before the workload [default: instant; none for devices with segments]
    #[arg(long, value_enum)]
    pub(crate) precondition: Option<PreconditionArg>,
    /// Fraction of the capacity that is written once, in order [default: 1]
    #[arg(long, value_name = "0..1", value_parser = real)]
    pub(crate) fill: Option<f64>,
    /// How often that part is then overwritten [default: 0]
    #[arg(long, value_name = "TIMES", value_parser = real)]
    pub(crate) overwrite: Option<f64>,
    /// The order of the overwrites [default: random]
    #[arg(long, value_enum)]
    pub(crate) pattern: Option<PatternArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreconditionArg {
    /// Fresh from the factory; reads of it touch no flash
    None,
    /// Filled as writes would have filled it, in no virtual time
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
    /// The laboratory's value for it.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::None => Mode::None,
            Self::Instant => Mode::Instant,
            Self::AgeByWriting => Mode::AgeByWriting,
        }
    }
}

/// The state that devices get if nothing is said: full, and empty where they have segments, which a host fills itself.
fn default_precondition(devices: &[DeviceConfig]) -> PreconditionArg {
    let has_segments = |device: &DeviceConfig| device.firmware == FirmwareKind::Append;
    if devices.iter().any(has_segments) { PreconditionArg::None } else { PreconditionArg::Instant }
}

impl StateArgs {
    /// The state that is asked for of these devices. Errors: a value without meaning, or one that has no effect.
    pub(crate) fn of(&self, devices: &[DeviceConfig]) -> Outcome<Precondition> {
        let Self { precondition, fill, overwrite, pattern } = *self;
        let given = given(fill, overwrite, pattern);
        if let Some(device) = devices.iter().find(|device| device.firmware == FirmwareKind::Append)
            && let Some(option) = given
        {
            let name = &device.name;
            return Err(Failure::Usage(format!(
                "{option} has no meaning for {name}, whose segments are empty until a job writes them: expected no {option}"
            )));
        }
        let mode = precondition.unwrap_or_else(|| default_precondition(devices));
        state(mode, fill, overwrite, pattern)
    }
}

/// The first of these options that is given.
pub(crate) fn given(
    fill: Option<f64>,
    overwrite: Option<f64>,
    pattern: Option<PatternArg>,
) -> Option<&'static str> {
    let options =
        [("--fill", fill.is_some()), ("--overwrite", overwrite.is_some()), ("--pattern", pattern.is_some())];
    options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
}

/// The state that options ask for. Errors: a value without meaning, or one that has no effect.
pub(crate) fn state(
    mode: PreconditionArg,
    fill: Option<f64>,
    overwrite: Option<f64>,
    pattern: Option<PatternArg>,
) -> Outcome<Precondition> {
    if let (PreconditionArg::None, Some(option)) = (mode, given(fill, overwrite, pattern)) {
        return Err(Failure::Usage(format!(
            "{option} needs a device that was written to: expected --precondition instant or age-by-writing"
        )));
    }
    let precondition = Precondition {
        mode: mode.mode(),
        fill: fill.unwrap_or(1.0),
        overwrite: overwrite.unwrap_or(0.0),
        pattern: pattern.unwrap_or(PatternArg::Random).pattern(),
    };
    // On the command line the keys are options.
    precondition.validate().map_err(|error| Failure::Usage(error.replace("precondition.", "--")))?;
    Ok(precondition)
}

impl PatternArg {
    /// The pattern for it.
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
  weir fio job.fio --device qblke --host-ftl qblke,rings=4 --fill 0.1       a host FTL above an open channel

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
    /// Read at most this many requests
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

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir replay tpcc.trace --device mqsim-default --fit wrap
  weir replay prxy_0.csv --device consumer-tlc-nvme --timing scaled=0.1   ten times as fast
  weir replay tencent.csv --device sata-mlc --trace-device 1063 --timing closed=32
  zcat web.csv.gz | weir replay /dev/stdin --device sata-mlc --limit 1000000

Under `original` and `scaled` timing a request starts when the trace says, and its latency counts from there, also if \
the device is not able to keep up. Under `closed` the times of the trace are ignored.")]
pub(crate) struct ReplayArgs {
    /// The trace, which may be compressed by gzip or zstd; `-` is standard input
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

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Sum up a trace: requests, bytes, footprint, duration
    Info {
        /// The trace, which may be compressed by gzip or zstd; `-` is standard input
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        #[command(flatten)]
        read: ReadArgs,
        #[command(flatten)]
        shape: ShapeArgs,
    },
}

/// The format of a command's results; the same option everywhere, and `table` is always one of its values.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ShapeArgs<S: ValueEnum + Clone + Send + Sync + 'static = Shape> {
    /// Output format
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
    /// List the presets
    List(ShapeArgs),
    /// Print a preset's TOML, with the source of every value: a starting point for your own device file
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
        /// MQSim's workload file; its caching mode is applied to the device
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
  weir waf --device amf-page --over-provisioning 0.07,0.15,0.28 --set ftl.gc.hot_cold=false

The FTL alone is driven, without timing, by uniformly random writes of one mapping unit. It writes --settle times the capacity \
to reach a steady state, then --measure times the capacity while write amplification is measured. The closed form beside it leaves \
out the blocks of each plane that are kept free (fifo: Desnoyers; greedy and d-choices: Van Houdt's mean field).")]
pub(crate) struct WafArgs {
    /// A preset (see `weir device list`) or a device file
    #[arg(long, short, value_name = "PRESET|FILE.toml", default_value = "amf-page")]
    pub(crate) device: String,
    /// Set a key of the device, as in ftl.gc.choices=4; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Victim policy: greedy, cost-benefit, d-choices or fifo; may be given several times [default: greedy, fifo]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Over-provisioning, a fraction; may be given several times [default: 0.1, 0.2, 0.3]
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
    /// No progress; errors are still printed
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// Scale of a paper's set-up.
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
  weir reproduce share --study sysbench               databases that must not be torn: figure 4 of SHARE
  weir reproduce rflush --output json

A claim counts as reproduced if our result is inside its band; results outside are shown, too. Each study
says which parts of the paper's set-up are missing. Times come from a model, so claims are ratios.")]
pub(crate) struct ReproduceArgs {
    /// The paper: rflush, barrier, share, amf or qblke
    #[arg(value_name = "PAPER")]
    pub(crate) paper: String,
    /// Only this study and its claims; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) study: Vec<String>,
    /// Scale of the paper's set-up
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
    /// No progress; errors are still printed
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}
