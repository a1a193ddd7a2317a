//! The command line as types: all commands and options, with their help.
//!
//! Place: the options of a command are in the command's own file or in [`crate::options`]; here they come together. No command depends on
//! this file.

use crate::check::CheckArgs;
use crate::crash::CrashArgs;
use crate::explain::ExplainArgs;
use crate::files::FilesArgs;
use crate::filesystem::{FsckArgs, MkfsCommand};
use crate::manual::{CompletionsArgs, ManArgs};
use crate::mount::{MountArgs, SaveArgs};
use crate::options::{
    DeviceCommand, FioArgs, ImportCommand, ReplayArgs, ReproduceArgs, RunArgs, TraceCommand, WafArgs,
};
use crate::serve::{CutArgs, RerunArgs, ServeArgs};
use crate::sqlite::SqliteArgs;
use crate::threads::ThreadsArgs;
use crate::top::TopArgs;
use crate::volume::VolumeCommand;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

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
  weir sqlite --device barrier-850 --order none,durable  SQLite, its ordering-only syncs as barriers
  weir replay tpcc.trace --device mqsim-default --fit wrap
  weir explain job.fio --device sata-mlc               where the time of the slowest 0.1 % went
  weir waf --policy greedy,fifo                        write amplification beside theory
  weir crash --states 100000                           power cuts at every event
  weir reproduce rflush                                a paper's claims beside our results
  weir serve consumer-tlc-nvme --unix /tmp/disk.sock   a disk for other programs, with power cuts
  weir volume create disk --device sata-mlc            a disk that is kept in a directory
  weir mkfs ext4 disk.img --size 1GiB                  ext4 or F2FS in a file; weir fsck checks it
  weir mount disk.img mnt                              a mount for other programs, with power cuts

Time is virtual: the same seed gives the same bytes, on any machine and with any number of --jobs.
Results go to stdout; warnings, progress and the speed of the simulator to stderr.
Exit codes: 0 done, 1 a run failed, 2 the command line or a file is wrong, 130 stopped."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line.
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
    /// Show traces
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Show devices: presets and device files
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Import the files of other simulators
    #[command(subcommand)]
    Import(ImportCommand),
    /// Show where the time of requests went: queue, link, bus, die, garbage collection, flush
    Explain(ExplainArgs),
    /// Measure write amplification alone, compared with the closed forms
    Waf(WafArgs),
    /// Run the experiments of papers, and compare the results with the papers' claims
    Reproduce(ReproduceArgs),
    /// Serve simulated devices as disks for real programs, over NBD
    Serve(ServeArgs),
    /// Serve a host FTL on real threads as a disk, in memory, in a file or on a block device, over NBD
    Threads(ThreadsArgs),
    /// Make, show and check volumes: disks that are kept in a directory
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Make a file system in an image file
    #[command(subcommand)]
    Mkfs(MkfsCommand),
    /// Check the file system in an image file, without changing it; exit code 1 if something is wrong
    Fsck(FsckArgs),
    /// Mount the file system of an image or a volume on a simulated device, over FUSE
    Mount(MountArgs),
    /// Run a program on a mount, and check what it would find after a power cut at any point
    Check(CheckArgs),
    /// Cut the power of a disk that is being served, or of a mount
    Cut(CutArgs),
    /// Write the image of a mount that ended but had no room for it to another place
    Save(SaveArgs),
    /// Watch a running server
    Top(TopArgs),
    /// Run a recording of `weir serve` again in virtual time
    Rerun(RerunArgs),
    /// Cut the power of tiny devices at every event and judge what is left
    Crash(CrashArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
}
