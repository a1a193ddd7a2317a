//! `weir mkfs` and `weir fsck`: file systems in image files.

use crate::devices::size;
use crate::error::{Failure, Outcome};
use crate::json;
use crate::options::ShapeArgs;
use crate::output::{print, temporary};
use crate::values::whole;
use crate::values::{percent, uuid, volume_size};
use clap::{Args, Subcommand};
use flashweir_core::Bytes;
use flashweir_fs::format::{Error, Format, Problem, Time};
use flashweir_fs::port::{BLOCK_BYTES, Block, BlockPort, Image, block_on, bytes_of};
use flashweir_fs::{ext4, f2fs};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

#[derive(Debug, Subcommand)]
pub(crate) enum MkfsCommand {
    /// Make an empty F2FS volume in a new image file
    F2fs(F2fsArgs),
    /// Make an empty ext4 volume in a new image file
    Ext4(Ext4Args),
}

/// What every volume needs.
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
    /// Identity of the volume, 32 hexadecimal digits [default: random]
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
    /// Per cent of the main area that cleaning has for itself [default: what leaves users most]
    #[arg(long, short, value_name = "PERCENT", value_parser = percent)]
    overprovision: Option<u32>,
    /// Segments of 2 MiB in a section, the unit of cleaning
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, 1024))]
    segments_per_section: u32,
    /// Sections in a zone; the logs begin in zones of their own
    #[arg(long, short = 'z', value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1, 1024))]
    sections_per_zone: u32,
    /// Switch on an optional part of the format; may be given often
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
    /// Inodes, at least
    #[arg(long, short = 'N', value_name = "N", value_parser = whole::<u32>(1, u32::MAX.into()))]
    inodes: Option<u32>,
    /// Per cent of the volume that only the superuser may take
    #[arg(long, short = 'm', value_name = "PERCENT", default_value_t = 5, value_parser = whole::<u32>(0, 50))]
    reserved: u32,
    /// Size of the journal, as in 64MiB [default: by size, 4MiB to 1GiB]
    #[arg(long, short = 'J', value_name = "SIZE", value_parser = volume_size)]
    journal_size: Option<Bytes>,
    /// Switch an optional part of the format, off with ^ before its name; may be given often
    #[arg(long, short = 'O', value_name = "NAME")]
    feature: Vec<String>,
    /// Start of the hashes of names, 32 hexadecimal digits [default: random]
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    hash_seed: Option<[u8; 16]>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir fsck disk.img
  weir fsck disk.img --output json

F2FS and ext4 are recognised. Nothing is written. Every name is followed from the root, every table is held against what \
was found: reachability, addresses, bitmaps, checksums, hashes of names, links, counts. Each problem is one line that \
begins with the name of its kind. Of F2FS what was written by fsync after the last checkpoint is not looked at; ext4 is \
checked as it is when its journal has been replayed.

Exit codes: 0 nothing is wrong, 1 the volume is damaged, 2 there is no volume or it has what is not supported.")]
pub(crate) struct FsckArgs {
    /// An image file or a block device with an F2FS or ext4 volume
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// An identity that no other volume has (version 4 of RFC 9562).
fn random_uuid() -> Outcome<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    let source = "/dev/urandom";
    let read = std::fs::File::open(source).and_then(|mut file| file.read_exact(&mut bytes));
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
    }
}

/// Whoever makes a file system owns its root directory, and can use it without being root.
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
        options.add_feature(name).map_err(|error| failure(&volume.image, &error))?;
    }
    options.check().map_err(|error| failure(&volume.image, &error))?;
    volume.make(|image| Ok(f2fs_line(&block_on(f2fs::mkfs(image, &options))?)))
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
        journal_blocks: args
            .journal_size
            .map(|size| u32::try_from(size.0 / BLOCK_BYTES as u64).unwrap_or(u32::MAX)),
        before: ext4::Before::Zeros,
        root_owner: caller(),
        ..ext4::Options::new(volume.blocks())
    };
    for name in &args.feature {
        options.set_feature(name).map_err(|error| failure(&volume.image, &error))?;
    }
    options.check().map_err(|error| failure(&volume.image, &error))?;
    volume.make(|image| Ok(ext4_line(&block_on(ext4::mkfs(image, &options))?)))
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

    /// Makes the volume in a new file, which has its name when it is whole. `mkfs` gives its description.
    fn make<F: Format>(&self, mkfs: impl FnOnce(&Image) -> Result<String, Error<F>>) -> Outcome {
        let (path, shown) = (&self.image, self.image.display());
        let part = Part(temporary(path, "part"));
        let made = Image::create(&part.0, self.blocks()).map_err(Error::from);
        let volume = made.and_then(|image| mkfs(&image)).map_err(|error| failure(path, &error))?;
        std::fs::rename(&part.0, path)
            .map_err(|error| Failure::Run(format!("{shown} cannot be written: {error}")))?;
        print(&format!("{shown}: {volume}; weir fsck {shown}\n"))
    }
}

/// A file that is removed unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What cannot be a volume is a wrong argument, unless it is one that was damaged.
fn failure<F: Format>(image: &Path, error: &Error<F>) -> Failure {
    let line = format!("{}: {error}", image.display());
    match error {
        Error::Corrupt(_) | Error::Port(_) => Failure::Run(line),
        Error::Absent(..) | Error::Refused(_) | Error::Option(_) => Failure::Usage(line),
    }
}

/// A name and features, for the description of a volume.
fn described(format: &str, bytes: u64, label: &str, features: &[String]) -> String {
    let label = match label {
        "" => String::new(),
        label => format!(" called {label:?}"),
    };
    let features = if features.is_empty() { String::new() } else { format!(" with {}", features.join(", ")) };
    format!("{format} of {}{label}{features}", size(bytes))
}

fn f2fs_line(superblock: &f2fs::Superblock) -> String {
    let features: Vec<String> = superblock.features.names().iter().map(ToString::to_string).collect();
    described("F2FS", superblock.block_count * BLOCK_BYTES as u64, &superblock.label, &features)
}

fn ext4_line(superblock: &ext4::Superblock) -> String {
    let bytes = superblock.blocks_count * u64::from(superblock.geometry().block_bytes);
    let mut names = superblock.features.names();
    // What every volume of today has says nothing of this one.
    let usual = ext4::Options::new(0).features.names();
    let lacks: Vec<String> =
        usual.iter().filter(|name| !names.contains(name)).map(|name| format!("^{name}")).collect();
    names.retain(|name| !usual.contains(name) && name != ext4::Feature::RECOVER.name);
    names.extend(lacks);
    described("ext4", bytes, &superblock.label_text(), &names)
}

/// What was found in an image.
struct Checked {
    problems: Vec<Problem>,
    untold: u64,
    /// Lines about the volume.
    text: String,
    json: Map<String, Value>,
}

impl Checked {
    /// Too broken to be looked at: the one problem that there is.
    fn broken(what: String) -> Self {
        let problems = vec![Problem { name: "mount", what }];
        Self { problems, untold: 0, text: String::new(), json: Map::new() }
    }
}

/// `weir fsck`.
pub(crate) fn fsck(args: &FsckArgs) -> Outcome {
    let (path, shown) = (&args.image, args.image.display());
    // A file that cannot be opened is a wrong argument; one that cannot be read on is a failed run.
    let image = Rc::new(Image::open(path, false).map_err(Failure::usage)?);
    let checked = match fsck_f2fs(&image) {
        Err(absent @ Error::Absent(..)) => match fsck_ext4(&image) {
            Err(Error::Absent(_, why)) => {
                return Err(Failure::Usage(format!("{shown}: {absent}; nor an ext4 volume: {why}")));
            }
            checked => checked.map_err(|error| failure(path, &error))?,
        },
        checked => checked.map_err(|error| failure(path, &error))?,
    };
    print(&if args.shape.is_json() { json_text(path, &checked)? } else { lines(&checked) })?;
    match checked.problems.len() as u64 + checked.untold {
        0 => Ok(()),
        1 => Err(Failure::Run(format!("{shown} is damaged: 1 problem"))),
        many => Err(Failure::Run(format!("{shown} is damaged: {many} problems"))),
    }
}

fn fsck_f2fs(image: &Rc<Image>) -> f2fs::Result<Checked> {
    let report = match block_on(f2fs::check(Rc::clone(image) as Rc<dyn BlockPort>)) {
        Err(Error::Corrupt(what)) => return Ok(Checked::broken(what)),
        report => report?,
    };
    let superblock = (0..2).find_map(|block| {
        let content = block_on(image.read(Block(block), 1).completed()).ok()?;
        f2fs::Superblock::decode(&bytes_of(&content[0])).ok()
    });
    let mut text = String::new();
    if let Some(superblock) = superblock {
        let state = if report.is_clean { "unmounted" } else { "not unmounted" };
        let _ = writeln!(text, "{}, {state}, checkpoint {}", f2fs_line(&superblock), report.checkpoint);
        if report.synced_files > 0 {
            let files = report.synced_files;
            let _ = writeln!(text, "{files} files were synced after it, which a mount for writing recovers");
        }
    }
    let f2fs::Report { directories, files, others, orphans, nodes, data_blocks, reserved_blocks, .. } =
        report;
    let _ = writeln!(
        text,
        "{directories} directories, {files} files, {others} others, {orphans} orphans; {nodes} nodes, {data_blocks} blocks \
         of data, {reserved_blocks} reserved"
    );
    let json = object(json!({
        "format": "f2fs",
        "clean": report.is_clean,
        "synced_files": report.synced_files,
        "checkpoint": report.checkpoint,
        "directories": directories,
        "files": files,
        "others": others,
        "orphans": orphans,
        "nodes": nodes,
        "data_blocks": data_blocks,
        "reserved_blocks": reserved_blocks,
    }));
    Ok(Checked { problems: report.problems, untold: report.problems_untold, text, json })
}

fn fsck_ext4(image: &Rc<Image>) -> ext4::Result<Checked> {
    let report = match block_on(ext4::check(Rc::clone(image) as Rc<dyn BlockPort>)) {
        Err(Error::Corrupt(what)) => return Ok(Checked::broken(what)),
        report => report?,
    };
    let content = block_on(image.read(Block(0), 1).completed())?;
    let raw = bytes_of(&content[0])[1024..2048].try_into().expect("1,024 bytes");
    let superblock = ext4::Superblock::decode(&raw)?;
    let mut text = String::new();
    let state = if report.is_clean { "unmounted" } else { "not unmounted" };
    let _ = writeln!(text, "{}, {state}", ext4_line(&superblock));
    if report.journal_blocks > 0 {
        let blocks = report.journal_blocks;
        let _ =
            writeln!(text, "checked with {blocks} blocks of its journal, which a mount for writing replays");
    }
    if report.has_errors_noted {
        let _ = writeln!(text, "somebody noted that it had errors");
    }
    let ext4::Report {
        directories, files, others, orphans, data_blocks, metadata_blocks, free_blocks, ..
    } = report;
    let _ = writeln!(
        text,
        "{directories} directories, {files} files, {others} others, {orphans} orphans; {data_blocks} blocks of data, \
         {metadata_blocks} of metadata, {free_blocks} free"
    );
    let json = object(json!({
        "format": "ext4",
        "clean": report.is_clean,
        "errors_noted": report.has_errors_noted,
        "journal_blocks": report.journal_blocks,
        "directories": directories,
        "files": files,
        "others": others,
        "orphans": orphans,
        "data_blocks": data_blocks,
        "metadata_blocks": metadata_blocks,
        "free_blocks": free_blocks,
    }));
    Ok(Checked { problems: report.problems, untold: report.problems_untold, text, json })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn lines(checked: &Checked) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        let _ = writeln!(text, "{problem}");
    }
    if checked.untold > 0 {
        let _ = writeln!(text, "and {} more problems", checked.untold);
    }
    text + &checked.text
}

fn json_text(path: &Path, checked: &Checked) -> Outcome<String> {
    let problem = |problem: &Problem| json!({ "name": problem.name, "what": problem.what });
    let mut map = object(json!({
        "image": path.display().to_string(),
        "problems": checked.problems.iter().map(problem).collect::<Vec<_>>(),
        "problems_untold": checked.untold,
    }));
    map.extend(checked.json.clone());
    json::pretty(json::Kind::Fsck, &map)
}
