//! `weir serve`, `weir cut` and `weir rerun`: simulated devices as disks of real programs.

use crate::devices::{resolve_disk, size};
use crate::error::{Failure, Outcome, say};
use crate::json::{self, Kind};
use crate::listen::ListenArgs;
use crate::made_by::commit;
use crate::options::{PreconditionArg, ShapeArgs, TraceArgs, given, state};
use crate::output::{check, print};
use crate::perfetto::TimelineFile;
use crate::progress::Bar;
use crate::top;
use crate::top::control_of;
use crate::values::{span, whole};
use clap::Args;
use flashweir_core::Bytes;
use flashweir_core::units::LBA_BYTES;
use flashweir_device::config::DeviceConfig;
use flashweir_device::{Device, DeviceOptions, MODEL};
use flashweir_host::HostFtlConfig;
use flashweir_serve::control::{self, Ask, CutOrder, DiskStatus, Reply, Status};
use flashweir_serve::nbd::{Config, Export, Limits};
use flashweir_serve::recording::{self, Header};
use flashweir_serve::volume::Volume;
use flashweir_serve::{Clock, Disk, MemoryBound, ServeError, Server, ServerConfig, Speed};
use flashweir_sim::host_ftl::Disk as Below;
use flashweir_sim::precondition::Precondition;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration as WallDuration;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir serve consumer-tlc-nvme                           NBD at 127.0.0.1:10809, in real time
  weir serve sata-mlc --unix /tmp/disk.sock              on a unix socket; `weir cut /tmp/disk.sock` cuts its power
  weir serve a=sata-mlc b=mobile-ufs --tcp 127.0.0.1:0   two exports, on a free port
  weir serve consumer-tlc-nvme --speed max               as fast as the machine can, its whole FTL at work
  weir serve qblke --host-ftl qblke,rings=4              a host FTL above an open channel, a ring for each connection up to four
  weir serve my.toml --speed 0.1 --record session.rec    ten times slower; `weir rerun session.rec` runs it again

Then, for instance:
  nbdinfo 'nbd+unix:///?socket=/tmp/disk.sock'
  fio --name=j --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/disk.sock' --rw=randread --bs=4k --iodepth=16
  nbdfuse mnt/disk --unix /tmp/disk.sock

A request is answered when the simulated device would have answered it. Missed deadlines are measured: the
summary at the end, and `weir serve --top`, show how late answers were. The tag, stream and barrier of a
write and the range flush have no place in NBD; they come with other front ends.")]
pub(crate) struct ServeArgs {
    /// Disks to serve: a preset, a device file or a volume; with several, as NAME=DISK
    #[arg(value_name = "[NAME=]PRESET|FILE.toml|VOLUME", required = true)]
    exports: Vec<String>,
    #[command(flatten)]
    listen: ListenArgs,
    /// Socket for `weir cut` and `weir top` [default: the first Unix socket with .control appended, or one among the temporary files]
    #[arg(long, value_name = "PATH", help_heading = "Where clients connect")]
    control: Option<PathBuf>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<u32>(1, 4096))]
    connections: u32,
    /// Drop a client that stalls for this many seconds in the middle of a message
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole::<u32>(1, 86_400))]
    patience: u32,
    /// How fast virtual time passes: real, max, or a factor
    #[arg(long, value_name = "SPEED", default_value = "real")]
    speed: Speed,
    /// Microseconds before a deadline, and after a request, in which the server does not sleep
    #[arg(long, value_name = "µs", default_value_t = 150, value_parser = whole::<u32>(0, 1_000_000))]
    spin: u32,
    /// Memory for the contents of a device in memory; the rest is in an unnamed file in $TMPDIR, which disappears with the server [default:
    /// all of it in memory]
    #[arg(long, value_name = "SIZE", value_parser = crate::values::bound)]
    memory: Option<Bytes>,
    /// Set a key of every device, as in buffer.capacity=64MiB; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Put a host FTL above each device in memory that has an open channel: an assembly (pblk, qblke, pblk-as-released or qblke-as-released), and keys behind it, as in
    /// qblke,rings=4; a volume has its own
    #[arg(long, value_name = "ASSEMBLY,KEY=VALUE")]
    host_ftl: Option<String>,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How a device in memory gets its state
    #[arg(long, value_enum, default_value_t = PreconditionArg::None, help_heading = "State of the device")]
    precondition: PreconditionArg,
    /// Fraction of the capacity that is written once, in order [default: 1]
    #[arg(long, value_name = "0..1", help_heading = "State of the device")]
    fill: Option<f64>,
    /// How often that part is then overwritten, at random [default: 0]
    #[arg(long, value_name = "TIMES", help_heading = "State of the device")]
    overwrite: Option<f64>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Record the clients' requests with their times; `weir rerun FILE` runs them again in virtual time
    #[arg(long, value_name = "FILE", conflicts_with = "worst")]
    record: Option<PathBuf>,
    /// Keep every version that no flush covers, so that `weir cut --seed N` can draw any state that the contract allows
    #[arg(long)]
    worst: bool,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Watch it on the terminal: see `weir top`
    #[arg(long, conflicts_with_all = ["quiet", "output"])]
    top: bool,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "output")]
    quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir cut /tmp/disk.sock                      the likeliest outcome: the buffer is lost, what was programmed is torn
  weir cut /tmp/disk.sock --seed 7             outcomes drawn by a seed; with `weir serve --worst` any legal state
  weir cut /tmp/disk.sock --eio --off 2s       clients stay connected and get EIO for two seconds
  weir cut mnt.control                         a mount (`weir mount`): its file system recovers in its place

The device comes back by its own recovery, with what its contract preserves and nothing else. Requests wait until it is
back, or for as long as --off says; its recovery time is part of that. Where connections stay, as with --eio, the next
flush of each fails as well if the device's buffer is volatile: what was answered before may be gone.")]
pub(crate) struct CutArgs {
    /// The control socket of a server or a mount, or the unix socket that a server serves
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// Which export [default: all]
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
    /// Draw the outcome of each interrupted operation; on threads with `weir threads --worst`
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Answer EIO instead of closing connections
    #[arg(long)]
    eio: bool,
    /// How long the power stays off: virtual time, or on threads time of the wall clock
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    off: flashweir_core::Duration,
    #[command(flatten)]
    shape: ShapeArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A recording holds every request of the clients of `weir serve --record FILE`, with its instant, and
every power cut. Run again in virtual time, the device does the same at the same instants: the trace
hashes are equal. So --perfetto shows what the device did for real programs."
)]
pub(crate) struct RerunArgs {
    /// A file of `weir serve --record`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// `weir serve`.
pub(crate) fn serve(args: &ServeArgs, cancel: &AtomicBool) -> Outcome {
    let endpoints = args.listen.endpoints(args.control.as_ref())?;
    let (keys, tls) = args.listen.tls()?;
    let disks = disks(args, cancel)?;
    let exports = disks.iter().map(|disk| export(disk, args.read_only)).collect();
    let nbd = match Config::new(exports, tls, Limits::default()) {
        Ok(nbd) => nbd,
        Err(error) => return Err(closed(disks, Failure::usage(error))),
    };
    let control = args.control.clone().unwrap_or_else(|| match args.listen.unix.first() {
        Some(path) => control_of(path),
        None => std::env::temp_dir().join(format!("weir-{}.control", std::process::id())),
    });
    let config = ServerConfig {
        endpoints,
        control: Some(control.clone()),
        clock: Clock::new(args.speed),
        keys,
        connections_max: args.connections as usize,
        patience: WallDuration::from_secs(args.patience.into()),
        spin: WallDuration::from_micros(args.spin.into()),
        give_back: Some(crate::memory::give_back),
        say,
    };
    let mut server = Server::bind(config, nbd, disks).map_err(Failure::run)?;
    let top = args.top && std::io::stdout().is_terminal();
    if !args.quiet && !top {
        print(&match args.shape.is_json() {
            true => json::line(Kind::ServeReady, &ready(&server, args.speed, &control))?,
            false => greeting(&server, args.speed, &control),
        })?;
    }
    let ended = if top { watched(&mut server, &control, cancel) } else { server.run(cancel) };
    let mut ended = ended.map_err(Failure::run);
    let status = server.status();
    let (connections, dropped) = server.connections();
    for disk in server.into_disks() {
        let closed = disk.shut_down().map_err(Failure::run);
        ended = ended.and(closed);
    }
    ended?;
    if args.shape.is_json() {
        return print(&json::line(Kind::Serve, &status)?);
    }
    if !args.quiet {
        print(&summary(&status, connections, dropped))?;
    }
    Ok(())
}

fn disks(args: &ServeArgs, cancel: &AtomicBool) -> Outcome<Vec<Disk>> {
    if args.record.is_some() && args.exports.len() > 1 {
        return Err(Failure::Usage("--record records one export; serve the others by another server".into()));
    }
    let mut disks = Vec::new();
    match opened(args, cancel, &mut disks) {
        Ok(()) => Ok(disks),
        Err(failure) => Err(closed(disks, failure)),
    }
}

/// Ends disks to which nobody has written, since the server does not start: their volumes stay closed.
fn closed(disks: Vec<Disk>, failure: Failure) -> Failure {
    disks.into_iter().for_each(|disk| drop(disk.shut_down()));
    failure
}

fn opened(args: &ServeArgs, cancel: &AtomicBool, disks: &mut Vec<Disk>) -> Outcome {
    for export in &args.exports {
        let (name, target) = match export.split_once('=') {
            Some((name, target)) => (Some(name), target),
            None => (None, export.as_str()),
        };
        let path = Path::new(target);
        if path.is_dir() {
            disks.push(on_volume(args, name, path)?);
            continue;
        }
        if is_image(path) {
            return Err(Failure::Usage(format!(
                "{target} is an image and no device: expected a preset, a device file or a volume; weir mount {target} DIR \
                 mounts its file system"
            )));
        }
        let precondition = state(args.precondition, args.fill, args.overwrite, None)?;
        let (config, host_ftl) = resolve_disk(target, &args.set, args.host_ftl.as_deref())?;
        let name = name.map_or_else(|| config.name.clone(), str::to_owned);
        disks.push(in_memory(args, &name, config, host_ftl, precondition, cancel)?);
    }
    Ok(())
}

/// Whether a file is not text, by its beginning.
fn is_image(path: &Path) -> bool {
    let mut begin = Vec::new();
    let file = std::fs::File::open(path).ok().filter(|_| path.is_file());
    file.is_some_and(|file| file.take(4096).read_to_end(&mut begin).is_ok() && begin.contains(&0))
}

fn on_volume(args: &ServeArgs, name: Option<&str>, directory: &Path) -> Outcome<Disk> {
    let shown = directory.display();
    let refuse = |option: &str| {
        Err(Failure::Usage(format!("{option} is for devices in memory: the volume {shown} has its own")))
    };
    if !args.set.is_empty() {
        return refuse("--set");
    }
    if args.host_ftl.is_some() {
        return refuse("--host-ftl");
    }
    if args.precondition != PreconditionArg::None {
        return refuse("--precondition");
    }
    if let Some(option) = given(args.fill, args.overwrite, None) {
        return refuse(option);
    }
    if args.memory.is_some() {
        return Err(Failure::Usage(format!(
            "--memory is for devices in memory: what is on the volume {shown} is on the host's disk"
        )));
    }
    if args.record.is_some() {
        return Err(Failure::Usage(format!(
            "--record needs a device in memory: a recording begins with a fresh device, which the volume {shown} is not"
        )));
    }
    let (volume, device, report) =
        Volume::open(directory, &mut |_| {}).map_err(|error| crate::volume::failure(&error))?;
    if !volume.was_clean() && !args.quiet {
        say(format!(
            "{shown} was not closed; its device recovered: {} pages read, {} written, {} units found",
            report.pages_read, report.steps, report.units
        ));
    }
    let name = name.map_or_else(|| volume.config().name.clone(), str::to_owned);
    let disk = Disk::on_volume(&name, volume, device);
    let mut disk = disk.map_err(|error| crate::volume::failure(&error))?;
    if let Some(ftl) = disk.host_ftl().filter(|_| !args.quiet) {
        say(format!(
            "{shown}: its host FTL recovered in {:.3} ms of virtual time: {} reads, {} units found; the map takes {}",
            disk.time_ns() as f64 / 1e6,
            ftl.metrics().recovery_reads,
            ftl.mapped_units(),
            size(ftl.map_bytes())
        ));
    }
    if args.worst {
        disk.keep_versions();
    }
    Ok(disk)
}

fn in_memory(
    args: &ServeArgs,
    name: &str,
    config: DeviceConfig,
    host_ftl: Option<HostFtlConfig>,
    precondition: Precondition,
    cancel: &AtomicBool,
) -> Outcome<Disk> {
    if args.record.is_some() && host_ftl.is_some() {
        return Err(Failure::Usage(
            "--record cannot record a host FTL: expected a device with pages, such as qblke-page".into(),
        ));
    }
    let options = DeviceOptions { seed: args.seed, track_contents: true, planted: None };
    let device = Device::new(config.clone(), options);
    let below = Below::new(device, host_ftl.as_ref());
    let mut bar = Bar::new(args.quiet);
    let progress = |fraction: f64| {
        bar.set(fraction, || format!("{name}: preconditioning"));
        !cancel.load(Ordering::Relaxed)
    };
    let (mut below, finished) = precondition.apply_to(below, args.seed, progress);
    bar.clear();
    if !finished {
        return Err(Failure::Interrupted);
    }
    if let Some(memory) = args.memory {
        let bound = MemoryBound { bytes: memory.0, directory: std::env::temp_dir() };
        bound.apply(&mut below.device).map_err(Failure::Run)?;
    }
    let mut disk = Disk::above(name, below, options);
    if let Some(path) = &args.record {
        check(path)?;
        let header = Header {
            model: MODEL,
            commit: commit().into(),
            export: name.into(),
            seed: args.seed,
            precondition,
            device: config,
        };
        disk.record(path, &header).map_err(|error| {
            Failure::Run(format!("{}: the recording cannot be written: {error}", path.display()))
        })?;
    }
    if args.worst {
        disk.keep_versions();
    }
    Ok(disk)
}

fn export(disk: &Disk, read_only: bool) -> Export {
    let geometry = disk.device().geometry();
    Export {
        name: disk.name().to_owned(),
        description: format!("simulated SSD, {}", disk.device().config().name),
        size: disk.size(),
        read_only,
        least_block: match disk.host_ftl() {
            Some(_) => geometry.unit_bytes as u32,
            None => LBA_BYTES as u32,
        },
        preferred_block: (geometry.unit_bytes as u32).max(LBA_BYTES as u32),
    }
}

/// Runs the server with the live view beside it.
fn watched(server: &mut Server, control: &Path, cancel: &AtomicBool) -> Result<(), ServeError> {
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // The view asks the control socket as any other program would; if it cannot, the disk is served nevertheless.
        scope.spawn(move || top::show(control, cancel, &has_ended));
        let outcome = server.run(cancel);
        drop(ended);
        outcome
    })
}

fn greeting(server: &Server, speed: Speed, control: &Path) -> String {
    let mut text = String::new();
    for disk in server.status().disks {
        let _ = writeln!(
            text,
            "export `{}`: {}, {:.2} GB, speed {speed}",
            disk.export,
            disk.device,
            disk.size as f64 / 1e9
        );
    }
    for address in server.addresses() {
        let _ = writeln!(text, "clients: {address}");
    }
    let _ = writeln!(text, "control: {}", control.display());
    text
}

/// The greeting for programs, with the addresses of the server.
fn ready(server: &Server, speed: Speed, control: &Path) -> serde_json::Value {
    let export = |disk: &DiskStatus| serde_json::json!({ "export": disk.export, "device": disk.device, "size": disk.size });
    serde_json::json!({
        "exports": server.status().disks.iter().map(export).collect::<Vec<_>>(),
        "speed": speed.to_string(),
        "clients": server.addresses(),
        "control": control.display().to_string(),
    })
}

fn summary(status: &Status, connections: u64, dropped: u64) -> String {
    let mut text = format!(
        "\nserved for {:.1} s, {connections} connections, {dropped} refused or dropped\n",
        status.uptime_ns as f64 / 1e9
    );
    for disk in &status.disks {
        text.push_str(&disk_summary(disk, &status.speed));
    }
    text
}

fn disk_summary(disk: &DiskStatus, speed: &str) -> String {
    let cuts = if disk.cuts == 1 { "1 power cut".to_owned() } else { format!("{} power cuts", disk.cuts) };
    let mut text = format!("\nexport `{}` ({}), {cuts}\n", disk.export, disk.device);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let line = |text: &mut String, cells: [String; 10]| {
        let widths = [6, 12, 7, 10, 11, 10, 10, 12, 10, 10];
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(text, "{cell:>width$}");
        }
        text.push('\n');
    };
    let heads =
        ["kind", "requests", "errors", "MB", "model p50", "p99", "p99.9", "server p50", "p99", "p99.9"];
    line(&mut text, heads.map(str::to_owned));
    for kind in &disk.kinds {
        line(
            &mut text,
            [
                kind.kind.clone(),
                kind.requests.to_string(),
                kind.errors.to_string(),
                format!("{:.1}", kind.bytes as f64 / 1e6),
                us(kind.model_ns.p50),
                us(kind.model_ns.p99),
                us(kind.model_ns.p999),
                us(kind.server_ns.p50),
                us(kind.server_ns.p99),
                us(kind.server_ns.p999),
            ],
        );
    }
    if speed == "max" {
        text.push_str("latencies are virtual: answers were queued as soon as they were computed\n");
    } else {
        let misses = &disk.misses_ns;
        let _ = writeln!(
            text,
            "µs of the wall clock; answers were late by p50 {}, p99 {}, p99.9 {}, max {}",
            us(misses.p50),
            us(misses.p99),
            us(misses.p999),
            us(misses.max)
        );
    }
    text
}

/// `weir cut`.
pub(crate) fn cut(args: &CutArgs) -> Outcome {
    let order =
        CutOrder { export: args.export.clone(), seed: args.seed, eio: args.eio, off_ns: args.off.as_nanos() };
    let beside = control_of(&args.socket);
    let socket = if beside.exists() { &beside } else { &args.socket };
    let reply = control::ask(socket, &Ask::Cut(order)).map_err(Failure::run)?;
    let Reply::Cut(done) = reply else {
        return Err(Failure::Run("the server gave an unexpected answer".into()));
    };
    if args.shape.is_json() {
        return print(&json::line(Kind::Cut, &serde_json::json!({ "cuts": done }))?);
    }
    let mut text = String::new();
    for cut in done {
        // An export may have no name.
        let name = if cut.export.is_empty() { "the disk".into() } else { format!("`{}`", cut.export) };
        let _ = writeln!(
            text,
            "{name} lost its power: {} requests and {} connections with it; recovery read {} pages, wrote {}, found {} \
             units, and took {:.3} ms{}",
            cut.requests_lost,
            cut.connections_dropped,
            cut.pages_read,
            cut.steps,
            cut.units,
            cut.recovery_ns as f64 / 1e6,
            if cut.on_threads { "" } else { " of virtual time" }
        );
    }
    print(&text)
}

/// `weir rerun`.
pub(crate) fn rerun(args: &RerunArgs) -> Outcome {
    let mut timeline = TimelineFile::of_boots(&args.trace)?;
    let (header, rerun) = recording::rerun(&args.file, &mut || timeline.boot()).map_err(Failure::usage)?;
    timeline.finish(rerun.findings.iter(), args.shape.is_json())?;
    if args.shape.is_json() {
        let value = serde_json::json!({
            "device": header.device.name, "requests": rerun.requests, "cuts": rerun.cuts,
            "time_ns": rerun.time_ns, "hash": rerun.hash, "recorded_hash": rerun.recorded_hash,
        });
        print(&json::line(Kind::Rerun, &value)?)?;
    } else {
        print(&format!(
            "{}: {} requests and {} power cuts on {}, trace hash {:016x}\n",
            args.file.display(),
            rerun.requests,
            rerun.cuts,
            header.device.name,
            rerun.hash
        ))?;
    }
    match rerun.recorded_hash {
        Some(recorded) if recorded != rerun.hash => Err(Failure::Run(format!(
            "{}: the device did something else than when it was recorded (trace hash {recorded:016x})",
            args.file.display()
        ))),
        Some(_) => Ok(()),
        None => {
            say(format!(
                "{}: the recording has no end, as its server was killed; there is nothing to compare with",
                args.file.display()
            ));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_the_summary_stand_apart() {
        let text = disk_summary(&DiskStatus { cuts: 1, ..DiskStatus::default() }, "real");
        assert!(text.contains("1 power cut\n"), "{text}");
        assert!(text.contains("  model p50 ") && text.contains("  server p50 "), "{text}");
    }
}
