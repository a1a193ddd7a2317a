//! `weir mount`: a file system on a simulated device as a directory.

use crate::devices::{resolve, resolve_paged, size};
use crate::error::{Failure, Outcome, say};
use crate::files::{FlushArg, FormatOptions};
use crate::output::print;
use crate::values::{cache, kind, whole};
use clap::{Args, ValueEnum};
use flashweir_core::Bytes;
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::SegmentImage;
use flashweir_fs::vfs::{CacheConfig, MountOptions};
use flashweir_fs::{Kind, Mode};
use flashweir_serve::Speed;
use flashweir_serve::control::{self, Ask, Reply};
use flashweir_serve::fuse::{LazyFs, Medium, MountConfig, MountError, mount};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration as WallDuration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir mkfs ext4 disk.img --size 1GiB
  weir mount disk.img mnt                                in real time, on consumer-tlc-nvme
  weir mount disk.img mnt --device sata-mlc --speed max  as fast as the machine can, on another device
  weir mount vol mnt --mkfs f2fs                         a volume, on which there is no file system yet
  weir cut mnt.control                                   cuts its power; what was synced is there again
  umount mnt                                             or Ctrl-C: writes everything and ends

ext4, F2FS and ALFS are recognised. A VOLUME (`weir volume create`) has its device and is on the host's disk at all times. An \
IMAGE is read into a fresh device and written back when the mount has ended, as a new file that takes its place: until \
then the file is as before. If the command or this machine is killed, everything since the mount is lost, synced or not; a \
volume keeps what was synced.

The command stays until the directory is unmounted and ends when everything is written; only then is the image or volume \
as the programs left it. docs/mount.md says what the kernel caches, what a power cut does to open files, and what is not \
supported.")]
pub(crate) struct MountArgs {
    /// A file with a file system, or a volume
    #[arg(value_name = "IMAGE|VOLUME")]
    medium: PathBuf,
    /// Directory of the mount
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Device of an image: a preset (see `weir device list`) or a device file [default: consumer-tlc-nvme, for ALFS amf]
    #[arg(long, short, value_name = "PRESET|FILE.toml")]
    device: Option<String>,
    /// Set a key of the device, as in buffer.capacity=64MiB; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Make this file system first, if there is none
    #[arg(long, value_name = "FORMAT", value_parser = kind())]
    mkfs: Option<Kind>,
    #[command(flatten)]
    options: FormatOptions,
    /// Command that a sync becomes
    #[arg(long, value_name = "MODE", value_enum, default_value = "flush")]
    flush: FlushArg,
    /// fsync and fdatasync keep order and make nothing durable (fbarrier, fdatabarrier); needs --commit dual
    #[arg(long)]
    order_only: bool,
    /// Memory of the page cache below the kernel's
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = cache)]
    cache: CacheConfig,
    /// The kernel keeps written data until a sync, or for some seconds: many small writes are faster, but data that do not fit are not
    /// refused by write() but lost, with an error at fsync
    #[arg(long, conflicts_with_all = ["write_through", "lazyfs"])]
    write_back: bool,
    /// The kernel hands on each write at once (the default)
    #[arg(long)]
    write_through: bool,
    /// Memory for the contents of an image's device; the rest is in an unnamed file beside the image, which disappears with the command
    /// [default: all of it in memory]
    #[arg(long, value_name = "SIZE", value_parser = crate::values::bound)]
    memory: Option<Bytes>,
    /// ext4 tells the device which blocks are free, so that they take no memory; F2FS does so in any case
    /// [default: on; off with --commit dual, whose device would wait]
    #[arg(long, value_name = "SWITCH", value_enum)]
    discard: Option<Switch>,
    /// Allow access by other users; unless you are root, this needs user_allow_other in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Reserve no room beside an image for its new contents at the end
    #[arg(long)]
    no_reserve: bool,
    /// Take commands of LazyFS from this FIFO: clear-cache, crash, torn-op, torn-seq; data are written back only by syncs
    #[arg(long, value_name = "FIFO")]
    lazyfs: Option<PathBuf>,
    /// FIFO for the message that the cache was cleared
    #[arg(long, value_name = "FIFO", requires = "lazyfs")]
    lazyfs_completed: Option<PathBuf>,
    /// Prefix of file paths in commands, like LazyFS's root directory; DIR is always accepted
    #[arg(long, value_name = "PATH", requires = "lazyfs")]
    lazyfs_root: Option<PathBuf>,
    /// Refuse changes
    #[arg(long)]
    read_only: bool,
    /// How fast virtual time passes: real, max, or a factor
    #[arg(long, value_name = "SPEED", default_value = "real")]
    speed: Speed,
    /// Microseconds before a deadline, and after an answer, in which the mount does not sleep
    #[arg(long, value_name = "µs", default_value_t = 150, value_parser = whole::<u64>(0, 1_000_000))]
    spin: u64,
    /// Socket for `weir cut` and `weir top` [default: DIR.control]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Seed of all randomness of an image's device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// `weir mount`.
pub(crate) fn command(args: &MountArgs, cancel: &AtomicBool) -> Outcome {
    let medium = medium(args)?;
    let control = args.control.clone().unwrap_or_else(|| crate::top::control_of(&plain(&args.directory)));
    let (options, flush, order_only) = (args.options.clone(), args.flush, args.order_only);
    let discard = args.discard;
    let config = MountConfig {
        directory: args.directory.clone(),
        flush: args.flush.mode(),
        choose: Box::new(move |kind, device, host_ftl| {
            let chosen = options.mode(kind, order_only, &[flush]);
            let chosen =
                chosen.and_then(|mode| options.check_device((device, host_ftl), &[flush]).map(|()| mode));
            let chosen = chosen.and_then(|mode| with_discard(mode, discard));
            chosen.map_err(|failure| failure.line())
        }),
        make: args.mkfs,
        mount: MountOptions {
            cache: match args.lazyfs {
                Some(_) => args.cache.clone().without_write_back(),
                None => args.cache.clone(),
            },
            read_only: args.read_only,
            syncs_order: args.order_only,
            ..MountOptions::default()
        },
        speed: args.speed,
        spin: WallDuration::from_micros(args.spin),
        control: Some(control.clone()),
        write_through: !args.write_back,
        recorder: None,
        lazyfs: args.lazyfs.clone().map(|fifo| LazyFs {
            fifo,
            completed: args.lazyfs_completed.clone(),
            root: args.lazyfs_root.clone(),
        }),
        say: Arc::new(say),
        allow_other: args.allow_other,
        give_back: Some(crate::memory::give_back),
    };
    let mounted = mount(config, medium).map_err(failure)?;
    if !args.quiet {
        print(&format!(
            "{} on {}, {}, speed {}, at {}\ncontrol: {}\n",
            mounted.format,
            mounted.device,
            size(mounted.bytes),
            args.speed,
            args.directory.display(),
            control.display()
        ))?;
        if !args.medium.is_dir() && !args.read_only {
            print(&format!(
                "{} is written when the mount ends: kill -9 would lose everything until then, synced or not. A volume keeps what \
                 was synced: weir volume create --help\n",
                args.medium.display()
            ))?;
        }
    }
    let busy = || {
        say(format!("{} is in use; the mount ends when the last file is closed", args.directory.display()))
    };
    mounted.wait(cancel, &mut { busy }).map_err(failure)
}

fn failure(error: MountError) -> Failure {
    match error {
        MountError::Wrong(why) => Failure::Usage(why),
        MountError::Failed(why) => Failure::Run(why),
    }
}

/// Sets the treatment of freed blocks.
fn with_discard(mut mode: Mode, asked: Option<Switch>) -> Outcome<Mode> {
    if asked == Some(Switch::Off) && mode.kind != Kind::Ext4 {
        return Err(Failure::Usage(format!("--discard off needs ext4, not {}", mode.kind.name())));
    }
    let is_dual = mode.ext4.commit_mode == CommitMode::DualMode;
    mode.ext4.discard = asked.map_or(!is_dual, |switch| switch == Switch::On);
    Ok(mode)
}

/// A directory without the slash at its end, to which a suffix can be appended.
fn plain(directory: &Path) -> PathBuf {
    directory.components().collect()
}

fn medium(args: &MountArgs) -> Outcome<Medium> {
    if !args.medium.is_dir() {
        let has_segments = matches!(SegmentImage::open(&args.medium, false), Ok(Some(_)));
        if args.mkfs == Some(Kind::Alfs) && !has_segments {
            let shown = args.medium.display();
            return Err(Failure::Usage(format!(
                "--mkfs alfs: {shown} has no segments; expected what weir mkfs alfs {shown} --size SIZE makes, without --mkfs"
            )));
        }
        let usual = if has_segments { "amf" } else { "consumer-tlc-nvme" };
        let asked = [args.device.clone().unwrap_or_else(|| usual.to_owned())];
        // Whether segments fit is seen when the image is read.
        let mut devices = match has_segments {
            true => resolve(&asked, &args.set)?,
            false => resolve_paged(&asked, &args.set)?,
        };
        let device = Box::new(devices.remove(0));
        let reserve = !args.read_only && !args.no_reserve;
        let memory_bytes = args.memory.map(|memory| memory.0);
        let (path, seed) = (args.medium.clone(), args.seed);
        return Ok(Medium::Image { path, device, seed, reserve, memory_bytes });
    }
    if args.memory.is_some() {
        return Err(Failure::Usage(format!(
            "--memory is for images: what is on the volume {} is on the host's disk",
            args.medium.display()
        )));
    }
    let given = [("--device", args.device.is_some()), ("--set", !args.set.is_empty())];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::Usage(format!(
            "{option} is for images: the volume {} has its own device",
            args.medium.display()
        )));
    }
    Ok(Medium::Volume(args.medium.clone()))
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  weir save mnt.control /elsewhere/disk.img

A mount that has ended but cannot write its image, because the host's disk is full, says so, keeps its device in memory and retries \
every few seconds. This command makes it write the image to another place, and then the mount ends.")]
pub(crate) struct SaveArgs {
    /// The control socket of the mount
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// The image, a new file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// `weir save`.
pub(crate) fn save(args: &SaveArgs) -> Outcome {
    // The mount may be in another directory.
    let file = std::path::absolute(&args.file).map_err(Failure::usage)?;
    match control::ask(&args.socket, &Ask::Save(file)).map_err(Failure::run)? {
        Reply::Saved => print(&format!("everything is in {}\n", args.file.display())),
        _ => Err(Failure::Run("the mount gave an unexpected answer".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without discards the contents of removed files stay in memory on an ext4 mount's device.
    #[test]
    fn ext4_discards_unless_its_device_would_wait() {
        let of = |commit_mode, asked| {
            with_discard(Mode::from(Kind::Ext4).committing(commit_mode), asked).unwrap().ext4.discard
        };
        assert!(of(CommitMode::Legacy, None) && of(CommitMode::DualMode, Some(Switch::On)));
        assert!(!of(CommitMode::DualMode, None) && !of(CommitMode::Legacy, Some(Switch::Off)));
        let refused = with_discard(Kind::F2fs.into(), Some(Switch::Off)).map(drop).unwrap_err();
        assert_eq!(refused.line(), "--discard off needs ext4, not f2fs");
        assert!(with_discard(Kind::F2fs.into(), Some(Switch::On)).is_ok());
    }
}
