//! `weir threads`: a host FTL on real threads, as a disk of real programs.

use crate::devices::size;
use crate::error::{Failure, Outcome, say};
use crate::json::{self, Kind};
use crate::listen::ListenArgs;
use crate::options::ShapeArgs;
use crate::output::print;
use crate::progress::Bar;
use crate::top::control_of;
use crate::values::{bound, whole};
use clap::{Args, ValueEnum};
use flashweir_core::Bytes;
use flashweir_core::units::LBA_BYTES;
use flashweir_serve::nbd::{Config, Export, Limits};
use flashweir_serve::parallel::{ParallelConfig, ParallelServer};
use flashweir_threads::content::UNIT_BYTES;
use flashweir_threads::{Assembly, Disk, Geometry, Medium, OpenError, STEPS, ZoneShape};
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Share of the medium that a new disk keeps from its users, if no other is given, percent.
const SPARE: u32 = 11;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir threads --memory 1GiB                                   NBD at 127.0.0.1:10809, gone when the server ends
  weir threads disk.weir --create 8GiB --unix /tmp/disk.sock   in a new file
  weir threads disk.weir --unix /tmp/disk.sock                 the same disk again, with everything that was flushed
  weir threads /dev/sdx --create 100GiB                        on a block device that begins and ends with zeros, or has empty zones
  weir threads --memory 1GiB --ftl pblk                        Linux's pblk: one ring, one map lock, one pool

QBLKe has a ring and a writer for each CPU, and a thread serves each connection: more connections, more CPUs. No flash
latency is added to that of the memory, the file or the block device; I/O to the latter two goes through io_uring. docs/host-ftl.md
says what is durable when. A write of less than 4 KiB first reads the rest of the block. Ctrl-C ends it cleanly; any other end loses what
was not flushed. For a simulated open-channel device, with flash timing: weir serve qblke --host-ftl qblke.")]
pub(crate) struct ThreadsArgs {
    /// File or block device that has the disk
    #[arg(value_name = "FILE", required_unless_present = "memory", conflicts_with = "memory")]
    file: Option<PathBuf>,
    /// Make a disk of this size
    #[arg(long, value_name = "SIZE", value_parser = bound, conflicts_with = "memory")]
    create: Option<Bytes>,
    /// Destroy what a block device has
    #[arg(long, requires = "create", conflicts_with = "memory")]
    overwrite: bool,
    /// Serve a disk whose records were damaged since it was closed: some of it reads as zeros, or as it was before
    #[arg(long, conflicts_with_all = ["create", "memory"])]
    accept_damage: bool,
    /// Disk of this size in memory
    #[arg(long, value_name = "SIZE", value_parser = bound)]
    memory: Option<Bytes>,
    /// Share of the medium that a new disk keeps from its users, percent [default: 11]
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u32>(1, 90))]
    spare: Option<u32>,
    /// FTL: a step on the way from pblk to QBLKe; each step includes those before it
    #[arg(long, value_enum, default_value_t = Ftl::Qblke)]
    ftl: Ftl,
    /// Number of CPUs that have a ring of their own [default: all CPUs]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 128))]
    cpus: Option<u32>,
    #[command(flatten)]
    listen: ListenArgs,
    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// Socket for `weir cut` [default: the first Unix socket with .control appended, or none]
    #[arg(long, value_name = "PATH", help_heading = "Where clients connect")]
    control: Option<PathBuf>,
    /// Keep what was overwritten until its successor is durable, so that `weir cut --seed N` can take back any of it
    #[arg(long, conflicts_with = "memory")]
    worst: bool,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<u32>(1, 1024))]
    connections: u32,
    /// Drop a client that stalls for this many seconds in the middle of a message
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole::<u32>(1, 86_400))]
    patience: u32,
    /// Microseconds after a request in which a connection's thread does not sleep
    #[arg(long, value_name = "µs", default_value_t = 50, value_parser = whole::<u32>(0, 1_000_000))]
    spin: u32,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "output")]
    quiet: bool,
}

/// Steps from pblk to QBLKe (open-channel §9.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ftl {
    /// One ring, one lock around the map, lines of the device, one pool, windows
    Pblk,
    /// A ring for each CPU
    Rings,
    /// A map of atomic words
    Map,
    /// Lines of a channel
    Lines,
    /// A pool for each thread
    Pool,
    /// The limiter by scores
    Qblke,
}

impl Ftl {
    fn assembly(self) -> (&'static str, Assembly) {
        STEPS[self as usize]
    }
}

/// `weir threads`.
pub(crate) fn command(args: &ThreadsArgs, cancel: &AtomicBool) -> Outcome {
    let endpoints = args.listen.endpoints(args.control.as_ref())?;
    let (keys, tls) = args.listen.tls()?;
    let (name, assembly) = args.ftl.assembly();
    let made = args.create.and(args.file.as_ref()).filter(|file| file.symlink_metadata().is_err());
    // A file that is made goes again where its disk is not served after all.
    let taken_back = |failure: Failure| {
        made.iter().for_each(|file| drop(std::fs::remove_file(file)));
        failure
    };
    let medium = medium(args, assembly)?;
    let medium = if args.worst { medium.keeps_before() } else { medium };
    let medium = if args.accept_damage { medium.accepts_damage() } else { medium };
    let (geometry, is_uring) = (*medium.geometry(), medium.is_uring());
    if is_uring == Some(false) {
        say("io_uring is not available here: programs and reads are calls that block");
    }
    let mut bar = Bar::new(args.quiet);
    let disk = Disk::open_watched(assembly, Arc::new(medium), &mut |fraction| {
        bar.set(fraction, || "reads records".into());
        !cancel.load(Ordering::Relaxed)
    });
    bar.clear();
    let disk = disk.map_err(|error| {
        taken_back(match (error, &args.file) {
            (OpenError::Stopped, _) => Failure::Interrupted,
            (error @ OpenError::Damaged, Some(file)) => {
                Failure::Run(format!("{}: {error}; --accept-damage serves it as it is", file.display()))
            }
            (error @ OpenError::NoLine, Some(file)) => {
                Failure::Usage(format!("{}: {name}: {error}", file.display()))
            }
            (error, Some(file)) => Failure::Run(format!("{}: {error}", file.display())),
            (error, None) => Failure::run(error),
        })
    })?;
    let recovered = disk.metrics().recovery_reads;
    let export = Export {
        name: args.export.clone(),
        description: format!("{name} on threads"),
        size: geometry.user_units * UNIT_BYTES as u64,
        read_only: false,
        least_block: LBA_BYTES as u32,
        preferred_block: UNIT_BYTES as u32,
    };
    let nbd = Config::new(vec![export], tls, Limits::default())
        .map_err(|error| taken_back(Failure::usage(error)))?;
    let config = ParallelConfig {
        endpoints,
        control: args.control.clone().or_else(|| args.listen.unix.first().map(|path| control_of(path))),
        keys,
        patience: Duration::from_secs(args.patience.into()),
        spin: Duration::from_micros(args.spin.into()),
        say,
    };
    let server = ParallelServer::bind(config, nbd, disk, assembly);
    let mut server = server.map_err(|error| taken_back(Failure::run(error)))?;
    if !args.quiet {
        print(&match args.shape.is_json() {
            true => json::line(
                Kind::ThreadsReady,
                &serde_json::json!({
                    "ftl": name, "size": geometry.user_units * UNIT_BYTES as u64, "cpus": geometry.cpus,
                    "medium": medium_name(args, is_uring), "recovered_units": recovered, "clients": server.addresses(),
                }),
            )?,
            false => greeting(args, name, &geometry, is_uring, recovered, &server),
        })?;
    }
    server.run(cancel).map_err(Failure::run)?;
    let metrics = server.metrics();
    let (connections, dropped) = server.connections();
    if args.shape.is_json() {
        let value =
            serde_json::json!({ "connections": connections, "dropped": dropped, "counters": metrics });
        return print(&json::line(Kind::Threads, &value)?);
    }
    if !args.quiet {
        let mut text = format!("\n{connections} connections, {dropped} refused or dropped\n\n");
        let Ok(serde_json::Value::Object(counters)) = serde_json::to_value(metrics) else {
            unreachable!("counters are an object")
        };
        for (counter, value) in counters {
            let _ = writeln!(text, "{:<20} {value:>14}", counter.replace('_', " "));
        }
        print(&text)?;
    }
    Ok(())
}

fn medium_name(args: &ThreadsArgs, is_uring: Option<bool>) -> String {
    match (&args.file, is_uring) {
        (Some(file), Some(true)) => format!("{}, io_uring", file.display()),
        (Some(file), _) => format!("{}, blocking calls", file.display()),
        (None, _) => "memory".into(),
    }
}

fn greeting(
    args: &ThreadsArgs,
    name: &str,
    geometry: &Geometry,
    is_uring: Option<bool>,
    recovered: u64,
    server: &ParallelServer,
) -> String {
    let rings = if args.ftl == Ftl::Pblk { 1 } else { geometry.cpus };
    let mut text = format!(
        "{name} on threads: {:.2} GB, {rings} {}, {} channels; medium: {}\n",
        (geometry.user_units * UNIT_BYTES as u64) as f64 / 1e9,
        if rings == 1 { "ring" } else { "rings" },
        geometry.channels,
        medium_name(args, is_uring)
    );
    if recovered > 0 {
        let _ = writeln!(text, "recovered: {recovered} out-of-band records");
    }
    for address in server.addresses() {
        let _ = writeln!(text, "clients: {address}");
    }
    text
}

fn medium(args: &ThreadsArgs, assembly: Assembly) -> Outcome<Medium> {
    let all = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let (cpus, workers) = (args.cpus.unwrap_or(all.min(128)), args.connections);
    let geometry = |option: &str, bytes: Bytes, zones: Option<ZoneShape>| {
        if !bytes.0.is_multiple_of(UNIT_BYTES as u64) {
            return Err(Failure::Usage(format!("{option} {}: expected a multiple of 4 KiB", bytes.0)));
        }
        let (units, spare) = (bytes.0 / UNIT_BYTES as u64, args.spare.unwrap_or(SPARE).into());
        match zones {
            None => Geometry::for_units(units, spare, cpus, workers),
            Some(ZoneShape { capacity, active_max, .. }) => {
                Geometry::for_zones((units, spare), (capacity, active_max), cpus, workers)
            }
        }
        .map_err(|error| Failure::Usage(format!("{option} {}: {error}", size(bytes.0))))
    };
    let Some(file) = &args.file else {
        let bytes = args.memory.expect("clap asks for one of both");
        let geometry = geometry("--memory", bytes, None)?;
        let wanted = geometry.physical_units().saturating_mul(UNIT_BYTES as u64);
        // What the system does not give would end the process.
        let room = usize::try_from(wanted).map(|wanted| Vec::<u8>::new().try_reserve_exact(wanted));
        return match room {
            Ok(Ok(())) => Ok(Medium::new(geometry)),
            _ => Err(Failure::Run(format!(
                "--memory {}: the system does not give {wanted} bytes",
                size(bytes.0)
            ))),
        };
    };
    let shown = file.display();
    let failed = |error: io::Error| Failure::Run(format!("{shown}: {error}"));
    let zones = if file.exists() { ZoneShape::of(file).map_err(failed)? } else { None };
    if args.worst && zones.is_some() {
        return Err(Failure::Usage(format!("--worst: {shown} has zones, which take nothing back")));
    }
    match args.create {
        Some(bytes) => {
            let volume = RandomState::new().build_hasher().finish();
            let made = Medium::create(file, geometry("--create", bytes, zones)?, volume, args.overwrite);
            made.map_err(|error| not_made(file, &error))
        }
        None => {
            let mut medium = Medium::open(file, cpus, workers).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    Failure::Usage(format!("{shown}: there is no such file; --create SIZE makes one"))
                }
                io::ErrorKind::InvalidData => {
                    Failure::Usage(format!("{shown}: {error}; expected what weir threads --create has made"))
                }
                _ => Failure::Run(format!("{shown}: {error}")),
            })?;
            if let Some(percent) = args.spare {
                return Err(Failure::Usage(format!(
                    "--spare {percent}: {shown} has its spare capacity already; expected --create SIZE with it"
                )));
            }
            let name = args.ftl.assembly().0;
            let mut cpus = cpus;
            // More CPUs than the disk has room for rings have to share them.
            while args.cpus.is_none() && cpus > 1 && medium.geometry().check_lasting(assembly).is_err() {
                cpus -= 1;
                medium = medium.with_cpus(cpus);
            }
            medium.geometry().check_lasting(assembly).map_err(|error| {
                let fewer = if cpus > 1 { "; fewer --cpus need less" } else { "" };
                Failure::Usage(format!("{shown}: {name} cannot run on it with {cpus} CPUs: {error}{fewer}"))
            })?;
            Ok(medium)
        }
    }
}

fn not_made(file: &Path, error: &io::Error) -> Failure {
    let shown = file.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists if file.is_file() => Failure::Usage(format!(
            "{shown} exists already: expected a new file, or no --create for the disk in it"
        )),
        io::ErrorKind::AlreadyExists if error.raw_os_error().is_none() => {
            Failure::Usage(format!("{shown}: {error}; --overwrite destroys it"))
        }
        io::ErrorKind::AlreadyExists => {
            Failure::Usage(format!("{shown}: expected a new file or a block device"))
        }
        io::ErrorKind::InvalidData => Failure::Usage(format!("{shown}: {error}")),
        _ => Failure::Run(format!("{shown}: {error}")),
    }
}
