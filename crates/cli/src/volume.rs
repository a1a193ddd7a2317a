//! `weir volume`: disks that are kept in a directory, made, looked at and checked.

use crate::devices::{resolve_disk, size};
use crate::error::{Failure, Outcome};
use crate::json::{self, Kind};
use crate::options::ShapeArgs;
use crate::output::print;
use crate::progress::Bar;
use crate::run::host_ftl_name;
use crate::values::capacity;
use crate::values::whole;
use clap::{Args, Subcommand};
use flashweir_core::Bytes;
use flashweir_core::units::LBA_BYTES;
use flashweir_device::config::{BufferMode, DeviceConfig};
use flashweir_device::geometry::Geometry;
use flashweir_host::HostFtlConfig;
use flashweir_serve::volume::{self, Checked, Info, Problem, Volume, VolumeError};
use flashweir_sim::host_ftl::capacity_lbas;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume with a device fresh from the factory
    Create(CreateArgs),
    /// Describe a volume: device, wear, how full, closed or not
    Info(LookArgs),
    /// Read everything in a volume and try a recovery, without changing it; exit code 1 if something is wrong
    Check(LookArgs),
    /// Bring a volume of an older version of weir to the present format
    Upgrade(UpgradeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir volume create disk --device consumer-tlc-nvme
  weir volume create disk --device sata-mlc --capacity 100GiB
  weir volume create disk --device my.toml --set buffer.mode=write-through --seed 7
  weir volume create disk --device qblke --host-ftl qblke,rings=4      a host FTL above an open channel
  weir serve disk                                  serves it

A volume is a directory that holds the medium of one device: contents, out-of-band areas, wear, and the device's own \
metadata. It takes room on the host as it fills. Whatever ends the server (a stop, kill -9, a full disk), the device \
recovers at the next opening as from a power cut: what its contract promises is there.")]
pub(crate) struct CreateArgs {
    /// The directory; it is empty or does not exist yet
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// A preset (see `weir device list`) or a device file
    #[arg(long, short, value_name = "PRESET|FILE.toml")]
    device: String,
    /// Set a key of the device, as in buffer.capacity=64MiB; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Put a host FTL above a device with an open channel: an assembly (pblk, qblke, pblk-as-released or qblke-as-released), and keys behind it, as in qblke,rings=4; the volume keeps it
    #[arg(long, value_name = "ASSEMBLY,KEY=VALUE")]
    host_ftl: Option<String>,
    /// Bytes that the host sees, as in 100GiB; planes get more or fewer blocks [default: the device's own]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    capacity: Option<Bytes>,
    /// Seed of the device's own randomness: factory bad blocks, failures
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir volume info disk
  weir volume info disk --output json
  weir volume check disk && weir serve disk")]
pub(crate) struct LookArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    shape: ShapeArgs,
    /// No progress; errors are still printed
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  weir volume upgrade disk && weir serve disk

Contents stay where they are; the out-of-band areas are written anew beside the old ones, which takes room on the host for that long \
(it is refused where there is none), and then the new ones count at once. Whatever ends the command (Ctrl-C, kill -9, a full \
disk), the volume is the old one, and the upgrade can be run again, or the new one. A volume that was not closed is \
upgraded as it is, and its device recovers at the next opening. One that is damaged, or in use, is refused.")]
pub(crate) struct UpgradeArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// No progress; errors are still printed
    #[arg(long, short)]
    quiet: bool,
}

/// `weir volume`.
pub(crate) fn command(command: &VolumeCommand, cancel: &AtomicBool) -> Outcome {
    match command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::Info(args) => {
            let info = look(args, cancel, volume::info)?;
            print(&if args.shape.is_json() {
                json::pretty(Kind::Volume, &info_json(args, &info))?
            } else {
                info_lines(args, &info)
            })
        }
        VolumeCommand::Upgrade(args) => upgrade(args, cancel),
        VolumeCommand::Check(args) => {
            let checked = look(args, cancel, volume::check)?;
            print(&if args.shape.is_json() {
                json::pretty(Kind::VolumeCheck, &check_json(args, &checked))?
            } else {
                check_lines(&checked)
            })?;
            match checked.problems.len() {
                0 => Ok(()),
                1 => Err(Failure::Run(format!("{} is damaged: 1 problem", args.directory.display()))),
                many => {
                    Err(Failure::Run(format!("{} is damaged: {many} problems", args.directory.display())))
                }
            }
        }
    }
}

/// A volume that cannot be used is a wrong argument, unless it was right once.
pub(crate) fn failure(error: &VolumeError) -> Failure {
    match error {
        VolumeError::Missing(_)
        | VolumeError::NotAVolume(_)
        | VolumeError::NotEmpty(_)
        | VolumeError::Homeless(_)
        | VolumeError::NotADirectory(_)
        | VolumeError::Newer { .. }
        | VolumeError::Older { .. }
        | VolumeError::Unknown { .. }
        | VolumeError::Unsuitable(_) => Failure::usage(error),
        VolumeError::Stopped(_) => Failure::Interrupted,
        VolumeError::InUse { .. }
        | VolumeError::NoRoom { .. }
        | VolumeError::Damaged { .. }
        | VolumeError::Io { .. }
        | VolumeError::Unflushed(_) => Failure::run(error),
    }
}

fn create(args: &CreateArgs) -> Outcome {
    let (mut config, host_ftl) = resolve_disk(&args.device, &args.set, args.host_ftl.as_deref())?;
    if args.capacity.is_some() && host_ftl.is_some() {
        return Err(Failure::Usage(
            "--capacity is for devices with an FTL of their own: what a host FTL leaves follows from the flash, as in --set \
             geometry.pages_per_block=64"
                .into(),
        ));
    }
    if let Some(capacity) = args.capacity {
        config = volume::with_capacity(&config, capacity)
            .map_err(|expected| Failure::Usage(format!("--capacity = {capacity}: {expected}")))?;
    }
    Volume::create_below(&args.directory, &config, host_ftl.as_ref(), args.seed)
        .map_err(|error| failure(&error))?;
    let shown = args.directory.display();
    print(&format!(
        "{shown}: {} of {}; weir serve {shown}\n",
        size(user_bytes(&config, host_ftl.as_ref())),
        config.name
    ))
}

fn upgrade(args: &UpgradeArgs, cancel: &AtomicBool) -> Outcome {
    let shown = args.directory.display();
    let mut bar = Bar::new(args.quiet);
    let upgraded = volume::upgrade(&args.directory, cancel, &mut |fraction| {
        bar.set(fraction, || shown.to_string());
    });
    bar.clear();
    let upgraded = upgraded.map_err(|error| failure(&error))?;
    if upgraded.from == volume::FORMAT {
        return print(&format!("{shown} has format {} already\n", volume::FORMAT));
    }
    let next = match upgraded.recovers {
        true => "; it was not closed, and its device recovers when it is opened",
        false => "",
    };
    print(&format!(
        "{shown}: format {} became {}, {} pages{next}\n",
        upgraded.from,
        volume::FORMAT,
        upgraded.pages
    ))
}

/// Reads a volume with a bar. Nothing is written, so Ctrl-C ends it at once.
fn look<T>(
    args: &LookArgs,
    cancel: &AtomicBool,
    work: impl FnOnce(&Path, &mut dyn FnMut(f64)) -> Result<T, VolumeError>,
) -> Outcome<T> {
    let mut bar = Bar::new(args.quiet);
    let done = work(&args.directory, &mut |fraction| {
        if cancel.load(Ordering::Relaxed) {
            bar.clear();
            std::process::exit(i32::from(Failure::Interrupted.report()));
        }
        bar.set(fraction, || args.directory.display().to_string());
    });
    bar.clear();
    done.map_err(|error| failure(&error))
}

fn user_bytes(config: &DeviceConfig, host_ftl: Option<&HostFtlConfig>) -> u64 {
    capacity_lbas(config, host_ftl).expect("the volume was checked") * LBA_BYTES
}

/// Promise of the device: its kind, its buffer, and when a write is durable.
fn promise(config: &DeviceConfig, host_ftl: Option<&HostFtlConfig>) -> [&'static str; 3] {
    if host_ftl.is_some() {
        return ["D1", "rings in the host", "a write is durable after a FLUSH"];
    }
    match (config.buffer.mode, config.completion_is_durable()) {
        (BufferMode::WriteThrough, _) => ["D0", "write-through", "a write is durable when it completes"],
        (BufferMode::PowerLossProtected, true) => {
            ["D2", "power-loss-protected", "a write is durable when it completes"]
        }
        (BufferMode::PowerLossProtected, false) => {
            ["D1", "protected in part", "a write is durable after a FLUSH"]
        }
        (BufferMode::WriteBack, _) => ["D1", "write-back", "a write is durable after a FLUSH"],
    }
}

fn info_lines(args: &LookArgs, info: &Info) -> String {
    let [kind, buffer, durable] = promise(&info.config, info.host_ftl.as_ref());
    let capacity = user_bytes(&info.config, info.host_ftl.as_ref());
    let mut lines = vec![
        ("volume", args.directory.display().to_string()),
        ("device", format!("{}, seed {}", info.config.name, info.seed)),
        ("capacity", format!("{} ({capacity} bytes)", size(capacity))),
        ("kind", format!("{kind}, {buffer}: {durable}")),
        ("format", format(info)),
        ("state", state(info)),
        ("opened", format!("{} times", info.opens)),
    ];
    if let Some(host_ftl) = &info.host_ftl {
        lines.insert(2, ("host FTL", host_ftl_name(host_ftl)));
    }
    if let Some(content) = &info.content {
        let blocks = Geometry::new(&info.config).blocks();
        let used = match content.mapped_bytes {
            Some(mapped) => {
                let share = mapped as f64 * 100.0 / capacity as f64;
                format!("{} written and not deallocated ({share:.1} %)", size(mapped))
            }
            None => format!("not known: {} problems, weir volume check lists them", content.problems),
        };
        let [least, most, all] = content.erases;
        let mean = all as f64 / f64::from(blocks);
        lines.push(("used", used));
        lines.push(("wear", format!("{least} to {most} erases a block, {mean:.1} on average")));
        lines.push((
            "blocks",
            format!(
                "{blocks}, of which {} hold something and {} are bad",
                content.used_blocks, content.bad_blocks
            ),
        ));
    }
    lines.push(("on the host", size(info.host_bytes)));
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:12} {value}");
    }
    text
}

fn format(info: &Info) -> String {
    let old = if info.format < volume::FORMAT { ", an old one: weir volume upgrade" } else { "" };
    format!("{}, firmware {}{old}", info.format, info.firmware)
}

fn state(info: &Info) -> String {
    match (info.in_use, info.clean) {
        (true, _) => match info.process {
            Some(process) => format!("in use by process {process}"),
            None => "in use by another process".to_owned(),
        },
        (false, true) => "closed".to_owned(),
        (false, false) => "not closed: the device recovers as from a power cut when it is opened".to_owned(),
    }
}

fn info_json(args: &LookArgs, info: &Info) -> Value {
    let [kind, buffer, _] = promise(&info.config, info.host_ftl.as_ref());
    let content = info.content.as_ref().map(|content| {
        let [least, most, all] = content.erases;
        json!({
            "mapped_bytes": content.mapped_bytes,
            "erases": { "min": least, "max": most, "total": all },
            "used_blocks": content.used_blocks,
            "bad_blocks": content.bad_blocks,
            "problems": content.problems,
        })
    });
    json!({
        "volume": args.directory.display().to_string(),
        "format": info.format,
        "firmware": info.firmware,
        "device": info.config.name,
        "seed": info.seed,
        "capacity_bytes": user_bytes(&info.config, info.host_ftl.as_ref()),
        "host_ftl": info.host_ftl,
        "kind": kind,
        "buffer": buffer,
        "blocks": Geometry::new(&info.config).blocks(),
        "clean": info.clean,
        "opens": info.opens,
        "in_use": info.in_use,
        "process": info.process,
        "host_bytes": info.host_bytes,
        "content": content,
    })
}

fn check_lines(checked: &Checked) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        let _ = writeln!(text, "{problem}");
    }
    let ended = if checked.clean { "closed" } else { "not closed" };
    let recovered = match checked.mapped_bytes {
        Some(mapped) => format!("recovery finds {} of the host", size(mapped)),
        None => "recovery was not tried".to_owned(),
    };
    let found = match checked.problems.len() {
        0 => "no problems".to_owned(),
        1 => "1 problem".to_owned(),
        many => format!("{many} problems"),
    };
    let _ = writeln!(text, "{found}: {} pages read, {ended}, {recovered}", checked.pages);
    text
}

fn check_json(args: &LookArgs, checked: &Checked) -> Value {
    let problem =
        |problem: &Problem| json!({ "file": problem.file, "place": problem.place, "what": problem.what });
    json!({
        "volume": args.directory.display().to_string(),
        "clean": checked.clean,
        "pages_read": checked.pages,
        "mapped_bytes": checked.mapped_bytes,
        "problems": checked.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}
