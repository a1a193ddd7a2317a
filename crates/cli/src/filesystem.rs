//! `weir mkfs` and `weir fsck`: file systems in image files.

use crate::devices::{size, table};
use crate::error::{Failure, Outcome, say};
use crate::json;
use crate::options::ShapeArgs;
use crate::output::{print, temporary, thousands};
use crate::values::whole;
use crate::values::{journal_blocks, percent, segment_blocks, uuid, volume_size};
use clap::{Args, Subcommand};
use flashweir_core::Bytes;
use flashweir_fs::format::{Problem, Time};
use flashweir_fs::kind::{AnyError, Checked, Described};
use flashweir_fs::port::{BLOCK_BYTES, BlockPort, Image, PortError, SegmentImage, block_on};
use flashweir_fs::{Kind, NewVolume, alfs, ext4, f2fs};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

#[derive(Debug, Subcommand)]
pub(crate) enum MkfsCommand {
    /// Make an empty F2FS volume in a new image file
    F2fs(F2fsArgs),
    /// Make an empty ext4 volume in a new image file
    Ext4(Ext4Args),
    /// Make an empty ALFS volume in a new image of a disk of append segments
    Alfs(AlfsArgs),
}

/// Options of every volume.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// The image file; it must not exist yet
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size of the volume, as in 1GiB
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    size: Bytes,
    /// Name of the volume
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    label: String,
    /// UUID of the volume, 32 hexadecimal digits [default: random]
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    uuid: Option<[u8; 16]>,
    /// Time of the root directory, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u64>(0, i64::MAX as u64))]
    time: Option<u64>,
    /// Replace a file that exists
    #[arg(long, short)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir mkfs f2fs disk.img --size 1GiB
  weir mkfs f2fs disk.img --size 8GiB --label scratch --segments-per-section 2 --overprovision 7
  weir mkfs f2fs disk.img --size 1GiB --feature inode_checksum --feature inode_crtime
  weir fsck disk.img                               checks it
  mount -t f2fs -o loop disk.img /mnt              where the kernel has F2FS

The format is that of Linux: its kernel mounts the image, and fsck.f2fs checks it. The file is sparse; it takes room as \
it fills. docs/f2fs.md says what of the format is read and written here.

Features: extra_attr, flexible_inline_xattr, inode_checksum, inode_crtime, sb_checksum.")]
pub(crate) struct F2fsArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Over-provisioned part of the main area, in per cent, which makes cleaning cheap [default: what leaves users most]
    #[arg(long, short, value_name = "PERCENT", value_parser = percent)]
    overprovision: Option<u32>,
    /// Segments of 2 MiB in a section, the unit of cleaning
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, 1024))]
    segments_per_section: u32,
    /// Sections in a zone; the logs begin in zones of their own
    #[arg(long, short = 'z', value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, 1024))]
    sections_per_zone: u32,
    /// Switch on an optional part of the format; may be given several times
    #[arg(long, short = 'O', value_name = "NAME")]
    feature: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir mkfs ext4 disk.img --size 1GiB
  weir mkfs ext4 disk.img --size 8GiB --label scratch --reserved 1 --journal-size 256MiB
  weir mkfs ext4 disk.img --size 1GiB --inode-ratio 4096 --feature ^64bit
  weir mkfs ext4 disk.img --size 4MiB --feature ^has_journal
  weir fsck disk.img                               checks it
  mount -o loop disk.img /mnt                      Linux mounts it

The format is that of Linux: its kernel mounts the image, and e2fsck checks it. Journal and number of inodes are those \
that mke2fs would choose. The file is sparse; it takes room as it fills. docs/ext4.md says what of the format is read and \
written here.

Features, all on but uninit_bg, off with ^ before the name: has_journal, dir_index, 64bit, flex_bg, sparse_super, \
huge_file, dir_nlink, uninit_bg (instead of metadata_csum), metadata_csum.")]
pub(crate) struct Ext4Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Bytes of the volume for each inode [default: by size, mostly 16384]
    #[arg(long, short, value_name = "BYTES", value_parser = whole::<u32>(4096, 67_108_864), conflicts_with = "inodes")]
    inode_ratio: Option<u32>,
    /// Least number of inodes
    #[arg(long, short = 'N', value_name = "N", value_parser = whole::<u32>(1, u32::MAX.into()))]
    inodes: Option<u32>,
    /// Per cent of the volume that only the superuser may take
    #[arg(long, short = 'm', value_name = "PERCENT", default_value_t = 5, value_parser = whole::<u32>(0, 50))]
    reserved: u32,
    /// Size of the journal, as in 64MiB [default: by size, 4MiB to 1GiB]
    #[arg(long, short = 'J', value_name = "SIZE", value_parser = journal_blocks)]
    journal_size: Option<u32>,
    /// Switch an optional part of the format, off with ^ before its name; may be given several times
    #[arg(long, short = 'O', value_name = "NAME")]
    feature: Vec<String>,
    /// Seed of the hashes of names, 32 hexadecimal digits [default: random]
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    hash_seed: Option<[u8; 16]>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir mkfs alfs disk.img --size 1GiB
  weir mkfs alfs disk.img --size 16GiB --segment-size 16MiB --overprovision 5
  weir fsck disk.img                               checks it

The image is that of a disk on which each segment is written from its beginning to its end: the blocks, and behind them \
how many of each segment are written. Segments of a device are as large as the blocks of all its ways together: 16 MiB on \
--device amf, the default here. docs/alfs.md describes the format.

Features: extra_attr, flexible_inline_xattr, inode_checksum, inode_crtime.")]
pub(crate) struct AlfsArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Size of a segment, a multiple of 2 MiB
    #[arg(long, short = 'S', value_name = "SIZE", default_value = "16MiB", value_parser = segment_blocks)]
    segment_size: u32,
    /// Over-provisioned part of the main area, in per cent, which makes cleaning cheap [default: what leaves users most]
    #[arg(long, short, value_name = "PERCENT", value_parser = percent)]
    overprovision: Option<u32>,
    /// Switch on an optional part of the format; may be given several times
    #[arg(long, short = 'O', value_name = "NAME")]
    feature: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir fsck disk.img
  weir fsck disk.img --output json
  weir fsck disk.img --segments        with ALFS: the report of the disk's segments

F2FS, ext4 and ALFS are recognised. Nothing is written. Every name is followed from the root, every table is compared with what \
was found: reachability, addresses, bitmaps, checksums, hashes of names, links, counts. Each problem is one line that \
begins with the name of its kind. On F2FS and ALFS, data that fsync wrote after the last checkpoint are not checked; ext4 is \
checked in the state after a replay of its journal.

Exit codes: 0 nothing is wrong, 1 the volume is damaged, 2 there is no volume or it has what is not supported.")]
pub(crate) struct FsckArgs {
    /// An image file or a block device with an F2FS, ext4 or ALFS volume
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Also list the append segments: write pointer, valid blocks and purpose of each (ALFS)
    #[arg(long)]
    segments: bool,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// An identity that no other volume has (version 4 of RFC 9562).
fn random_uuid() -> Outcome<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    let source = "/dev/urandom";
    let read = File::open(source).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::Run(format!("{source}: {error}; --uuid gives the identity")))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// `weir mkfs`.
pub(crate) fn mkfs(command: &MkfsCommand) -> Outcome {
    match command {
        MkfsCommand::F2fs(args) => mkfs_f2fs(args),
        MkfsCommand::Ext4(args) => mkfs_ext4(args),
        MkfsCommand::Alfs(args) => mkfs_alfs(args),
    }
}

/// The user who makes a file system owns its root directory, and can use it without being root.
pub(crate) fn caller() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

fn mkfs_f2fs(args: &F2fsArgs) -> Outcome {
    let volume = &args.volume;
    volume.check_name()?;
    let mut options = f2fs::Options {
        label: volume.label.clone(),
        uuid: volume.uuid.map_or_else(random_uuid, Ok)?,
        overprovision: args.overprovision,
        segments_per_section: args.segments_per_section,
        sections_per_zone: args.sections_per_zone,
        time: volume.time(),
        root_owner: caller(),
        ..f2fs::Options::new(volume.blocks())
    };
    for name in &args.feature {
        options.add_feature(name).map_err(|error| failure(&volume.image, error))?;
    }
    options.check().map_err(|error| failure(&volume.image, error))?;
    volume.make(Kind::F2fs, NewVolume { f2fs: options, ..NewVolume::new(0) })
}

fn mkfs_ext4(args: &Ext4Args) -> Outcome {
    let volume = &args.volume;
    volume.check_name()?;
    let seed = args.hash_seed.map_or_else(random_uuid, Ok)?;
    let word = |at: usize| u32::from_le_bytes(seed[4 * at..4 * at + 4].try_into().expect("four bytes"));
    let mut options = ext4::Options {
        label: volume.label.clone(),
        uuid: volume.uuid.map_or_else(random_uuid, Ok)?,
        hash_seed: [word(0), word(1), word(2), word(3)],
        time: volume.time(),
        inode_ratio: args.inode_ratio,
        inodes: args.inodes,
        reserved_percent: args.reserved,
        journal_blocks: args.journal_size,
        before: ext4::Before::Zeros,
        root_owner: caller(),
        ..ext4::Options::new(volume.blocks())
    };
    for name in &args.feature {
        options.set_feature(name).map_err(|error| failure(&volume.image, error))?;
    }
    options.check().map_err(|error| failure(&volume.image, error))?;
    volume.make(Kind::Ext4, NewVolume { ext4: options, ..NewVolume::new(0) })
}

fn mkfs_alfs(args: &AlfsArgs) -> Outcome {
    let volume = &args.volume;
    volume.check_name()?;
    let segments = volume.blocks() / u64::from(args.segment_size);
    let blocks = segments * u64::from(args.segment_size);
    let mut options = alfs::Options {
        label: volume.label.clone(),
        uuid: volume.uuid.map_or_else(random_uuid, Ok)?,
        overprovision: args.overprovision,
        time: volume.time(),
        root_owner: caller(),
        ..alfs::Options::new(blocks)
    };
    for name in &args.feature {
        options.add_feature(name).map_err(|error| failure(&volume.image, error))?;
    }
    options.check(args.segment_size).map_err(|error| failure(&volume.image, error))?;
    let create = |path: &Path| {
        let segments = u32::try_from(segments).expect("options that were checked make so many");
        let image = SegmentImage::create(path, segments, args.segment_size)?;
        Ok(Box::new(image) as Box<dyn BlockPort>)
    };
    volume.make_in(Kind::Alfs, NewVolume { alfs: options, ..NewVolume::new(0) }, create)
}

impl VolumeArgs {
    fn blocks(&self) -> u64 {
        self.size.0 / BLOCK_BYTES as u64
    }

    fn time(&self) -> Time {
        let now =
            || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Time { seconds: self.time.unwrap_or_else(now) as i64, nanos: 0 }
    }

    /// Whether the file may be written.
    fn check_name(&self) -> Outcome {
        let (path, shown) = (&self.image, self.image.display());
        crate::output::check(path)?;
        if path.exists() && !self.force {
            return Err(Failure::Usage(format!(
                "{shown} exists: expected a new name, or --force to replace it"
            )));
        }
        if path.exists() && !path.is_file() {
            return Err(Failure::Usage(format!("{shown} is no file: expected the name of an image file")));
        }
        Ok(())
    }

    /// Makes the volume in a new file, which has its name when it is whole.
    fn make(&self, kind: Kind, new: NewVolume) -> Outcome {
        let create = |path: &Path| Ok(Box::new(Image::create(path, self.blocks())?) as Box<dyn BlockPort>);
        self.make_in(kind, new, create)
    }

    fn make_in(
        &self,
        kind: Kind,
        new: NewVolume,
        create: impl FnOnce(&Path) -> Result<Box<dyn BlockPort>, PortError>,
    ) -> Outcome {
        let (path, shown) = (&self.image, self.image.display());
        // A mount would replace the new volume by its own at its end.
        let replaced = path.is_file().then(|| File::open(path).ok()).flatten();
        if replaced.as_ref().is_some_and(is_mounted) {
            return Err(Failure::Run(format!("{shown}: another process uses it")));
        }
        let part = Part(temporary(path, "part"));
        let image = create(&part.0).map_err(|error| Failure::Run(format!("{shown}: {error}")))?;
        let made = block_on(kind.mkfs(&*image, &new)).map_err(|error| failure(path, error))?;
        std::fs::rename(&part.0, path)
            .map_err(|error| Failure::Run(format!("{shown} cannot be written: {error}")))?;
        print(&format!("{shown}: {}; weir fsck {shown}\n", described(kind, &made)))
    }
}

/// Whether a mount uses an image; a lock that is taken here lasts as long as the file is open.
fn is_mounted(image: &File) -> bool {
    matches!(image.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// A file that is removed unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file that cannot be a volume is a wrong argument, unless it is a damaged volume.
fn failure(image: &Path, error: impl Into<AnyError>) -> Failure {
    let error = error.into();
    let line = format!("{}: {error}", image.display());
    if error.is_damage { Failure::Run(line) } else { Failure::Usage(line) }
}

/// A name and features, for the description of a volume.
fn described(kind: Kind, volume: &Described) -> String {
    let label = match &volume.label[..] {
        "" => String::new(),
        label => format!(" called {label:?}"),
    };
    let features = match &volume.features[..] {
        [] => String::new(),
        features => format!(" with {}", features.join(", ")),
    };
    format!("{} of {}{label}{features}", kind.title(), size(volume.bytes))
}

/// `weir fsck`.
pub(crate) fn fsck(args: &FsckArgs) -> Outcome {
    let (path, shown) = (&args.image, args.image.display());
    // A file that cannot be opened is a wrong argument; one that cannot be read on is a failed run.
    let image: Rc<dyn BlockPort> = match SegmentImage::open(path, false).map_err(Failure::usage)? {
        Some(segments) => Rc::new(segments),
        None => Rc::new(Image::open(path, false).map_err(Failure::usage)?),
    };
    if File::open(path).is_ok_and(|file| is_mounted(&file)) {
        say(format!("{shown} is mounted: this is what it held before"));
    }
    let kind = block_on(Kind::find(&*image)).and_then(|found| found).map_err(|error| failure(path, error))?;
    if args.segments && kind != Kind::Alfs {
        let kind = kind.title();
        return Err(Failure::Usage(format!("--segments: {shown} is {kind}, which has none: expected ALFS")));
    }
    let checked = block_on(kind.check(Rc::clone(&image))).map_err(|error| failure(path, error))?;
    let listed = args.segments.then(|| block_on(alfs::segments(image)));
    let listed = listed.transpose().map_err(|error| failure(path, error))?;
    print(&match args.shape.is_json() {
        true => json_text(path, kind, &checked, listed.as_ref())?,
        false => lines(kind, &checked) + &listed.as_ref().map(segment_lines).unwrap_or_default(),
    })?;
    match checked.problems.len() as u64 + checked.problems_untold {
        0 => Ok(()),
        1 => Err(Failure::Run(format!("{shown} is damaged: 1 problem"))),
        many => Err(Failure::Run(format!("{shown} is damaged: {many} problems"))),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn lines(kind: Kind, checked: &Checked) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        let _ = writeln!(text, "{problem}");
    }
    if checked.problems_untold > 0 {
        let _ = writeln!(text, "and {} more problems", checked.problems_untold);
    }
    if let Some((volume, state)) = &checked.volume {
        let _ = writeln!(text, "{}, {state}", described(kind, volume));
    }
    for line in &checked.lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Blocks of a segment, and the segments.
type Listed = (u32, Vec<alfs::Segment>);

fn segment_lines((blocks, segments): &Listed) -> String {
    let mut rows = vec![["segment", "state", "written", "valid", "purpose"].map(str::to_owned)];
    rows.extend(segments.iter().map(|segment| {
        let valid = segment.valid.map_or_else(|| "-".into(), |valid| thousands(valid.into()));
        let (number, written) = (segment.number.to_string(), thousands(segment.written.into()));
        [number, state_of(segment, *blocks).into(), written, valid, segment.purpose.name().into()]
    }));
    format!("\n{}blocks of 4 KiB, {} in a segment\n", table(&rows, 0), thousands((*blocks).into()))
}

/// A segment's state, in the words of zoned devices.
fn state_of(segment: &alfs::Segment, blocks: u32) -> &'static str {
    match segment.written {
        0 => "empty",
        written if written == blocks => "full",
        _ if segment.is_open => "open",
        _ => "closed",
    }
}

fn json_text(path: &Path, kind: Kind, checked: &Checked, listed: Option<&Listed>) -> Outcome<String> {
    let problem = |problem: &Problem| json!({ "name": problem.name, "what": problem.what });
    let mut map = object(json!({
        "image": path.display().to_string(),
        "problems": checked.problems.iter().map(problem).collect::<Vec<_>>(),
        "problems_untold": checked.problems_untold,
    }));
    // A volume that is too broken to be looked at has nothing to tell.
    if !checked.facts.is_empty() {
        map.insert("format".into(), kind.name().into());
    }
    map.extend(checked.facts.iter().map(|(name, fact)| ((*name).to_owned(), json!(fact))));
    if let Some((blocks, segments)) = listed {
        let segment = |segment: &alfs::Segment| {
            json!({
                "segment": segment.number, "state": state_of(segment, *blocks), "written_blocks": segment.written,
                "valid_blocks": segment.valid, "purpose": segment.purpose.name(),
            })
        };
        map.insert("segment_blocks".into(), json!(blocks));
        map.insert("segments".into(), segments.iter().map(segment).collect());
    }
    json::pretty(json::Kind::Fsck, &map)
}
