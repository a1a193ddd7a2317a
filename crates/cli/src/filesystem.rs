//! `weir mkfs` and `weir fsck`: file systems in image files.

use crate::args::whole;
use crate::devices::size;
use crate::error::{Failure, Outcome};
use crate::output::{print, temporary};
use clap::{Args, Subcommand, ValueEnum};
use flashweir_core::Bytes;
use flashweir_fs::f2fs::{self, Error, Options, Problem, Report, Superblock, Time};
use flashweir_fs::port::{BLOCK_BYTES, BlockPort, Image, block_on, bytes_of};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

#[derive(Debug, Subcommand)]
pub(crate) enum MkfsCommand {
    /// Make an empty F2FS volume in a new image file
    F2fs(F2fsArgs),
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
    /// The image file; it must not exist yet
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size of the volume, as in 1GiB
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    size: Bytes,
    /// Name of the volume
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    label: String,
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
  weir fsck disk.img
  weir fsck disk.img --output json

Nothing is written. Every name is followed from the root, every table is held against what was found: reachability, node \
addresses, valid blocks, summaries, hashes of names, links, counts. Each problem is one line that begins with the name of \
its kind. What was written by fsync after the last checkpoint is not looked at.

Exit codes: 0 nothing is wrong, 1 the volume is damaged, 2 there is no volume or it has what is not supported.")]
pub(crate) struct FsckArgs {
    /// An image file or a block device with an F2FS volume
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// What to print
    #[arg(long, value_name = "SHAPE", default_value = "table")]
    output: FsckOutput,
    /// Short for --output json
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FsckOutput {
    /// Lines for people
    Table,
    /// One JSON object
    Json,
}

fn volume_size(text: &str) -> Result<Bytes, String> {
    let size =
        text.parse().ok().filter(|size: &Bytes| size.0 > 0 && size.0.is_multiple_of(BLOCK_BYTES as u64));
    size.ok_or_else(|| "expected a multiple of 4096 bytes, such as 1GiB".to_owned())
}

/// Hundredths of a per cent.
fn percent(text: &str) -> Result<u32, String> {
    let part = text.parse().ok().map(|percent: f64| (percent * 100.0).round());
    let part = part.filter(|part| (1.0..=9500.0).contains(part));
    part.map(|part| part as u32).ok_or_else(|| "expected 0.01 to 95".to_owned())
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|digit| *digit != '-')
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes = digits.filter(|digits| digits.len() == 32).map(|digits| {
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        bytes.try_into().expect("16 pairs")
    });
    bytes.ok_or_else(|| "expected 32 hexadecimal digits, with or without dashes".to_owned())
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
    let MkfsCommand::F2fs(args) = command;
    let (path, shown) = (&args.image, args.image.display());
    crate::output::check(path)?;
    if path.exists() && !args.force {
        return Err(Failure::Usage(format!("{shown} exists: expected a new name, or --force to replace it")));
    }
    if path.exists() && !path.is_file() {
        return Err(Failure::Usage(format!("{shown} is no file: expected the name of an image file")));
    }
    let mut options = Options {
        label: args.label.clone(),
        uuid: args.uuid.map_or_else(random_uuid, Ok)?,
        overprovision: args.overprovision,
        segments_per_section: args.segments_per_section,
        sections_per_zone: args.sections_per_zone,
        ..Options::new(args.size.0 / BLOCK_BYTES as u64)
    };
    for name in &args.feature {
        options.add_feature(name).map_err(|error| failure(path, &error))?;
    }
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    options.time = Time { seconds: args.time.unwrap_or_else(now) as i64, nanos: 0 };

    options.check().map_err(|error| failure(path, &error))?;
    // The file has its name when it is whole.
    let part = Part(temporary(path, "part"));
    let made = Image::create(&part.0, options.blocks).map_err(Error::from);
    let superblock = made.and_then(|image| block_on(f2fs::mkfs(&image, &options)));
    let superblock = superblock.map_err(|error| failure(path, &error))?;
    std::fs::rename(&part.0, path)
        .map_err(|error| Failure::Run(format!("{shown} cannot be written: {error}")))?;
    let volume = f2fs_line(&superblock);
    print(&format!("{shown}: {volume}; weir fsck {shown}\n"))
}

/// A file that is removed unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What cannot be a volume is a wrong argument, unless it is one that was damaged.
fn failure(image: &Path, error: &Error) -> Failure {
    let line = format!("{}: {error}", image.display());
    match error {
        Error::Corrupt(_) | Error::Port(_) => Failure::Run(line),
        Error::Absent(..) | Error::Refused(_) | Error::Option(_) => Failure::Usage(line),
    }
}

fn f2fs_line(superblock: &Superblock) -> String {
    let label = match superblock.label.as_str() {
        "" => String::new(),
        label => format!(" called {label:?}"),
    };
    let features = superblock.features.names();
    let features = if features.is_empty() { String::new() } else { format!(" with {}", features.join(", ")) };
    format!("F2FS of {}{label}{features}", size(superblock.block_count * BLOCK_BYTES as u64))
}

/// `weir fsck`.
pub(crate) fn fsck(args: &FsckArgs) -> Outcome {
    let (path, shown) = (&args.image, args.image.display());
    // A file that cannot be opened is a wrong argument; one that cannot be read on is a failed run.
    let image = Rc::new(Image::open(path, false).map_err(Failure::usage)?);
    let report = match block_on(f2fs::check(Rc::clone(&image) as Rc<dyn BlockPort>)) {
        Ok(report) => report,
        // Too broken to be mounted: the one problem that there is.
        Err(Error::Corrupt(what)) => {
            Report { problems: vec![Problem { name: "mount", what }], ..Report::default() }
        }
        Err(error) => return Err(failure(path, &error)),
    };
    let json = args.json || args.output == FsckOutput::Json;
    print(&if json { json_text(path, &report) } else { lines(&image, &report)? })?;
    match report.problems.len() as u64 + report.problems_untold {
        0 => Ok(()),
        1 => Err(Failure::Run(format!("{shown} is damaged: 1 problem"))),
        many => Err(Failure::Run(format!("{shown} is damaged: {many} problems"))),
    }
}

fn lines(image: &Image, report: &Report) -> Outcome<String> {
    let mut text = String::new();
    for problem in &report.problems {
        let _ = writeln!(text, "{problem}");
    }
    if report.problems_untold > 0 {
        let _ = writeln!(text, "and {} more problems", report.problems_untold);
    }
    let superblock = (0..2).find_map(|block| {
        let content = block_on(image.read(flashweir_fs::port::Block(block), 1).completed()).ok()?;
        Superblock::decode(&bytes_of(&content[0])).ok()
    });
    if let Some(superblock) = superblock {
        let state = if report.is_clean { "unmounted" } else { "not unmounted" };
        let _ = writeln!(text, "{}, {state}, checkpoint {}", f2fs_line(&superblock), report.checkpoint);
        if report.synced_files > 0 {
            let files = report.synced_files;
            let _ = writeln!(text, "{files} files were synced after it, which a mount for writing recovers");
        }
    }
    let Report { directories, files, others, orphans, nodes, data_blocks, reserved_blocks, .. } = report;
    let _ = writeln!(
        text,
        "{directories} directories, {files} files, {others} others, {orphans} orphans; {nodes} nodes, {data_blocks} blocks \
         of data, {reserved_blocks} reserved"
    );
    Ok(text)
}

fn json_text(path: &Path, report: &Report) -> String {
    let problem = |problem: &Problem| json!({ "name": problem.name, "what": problem.what });
    let value: Value = json!({
        "image": path.display().to_string(),
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        "problems_untold": report.problems_untold,
        "clean": report.is_clean,
        "synced_files": report.synced_files,
        "checkpoint": report.checkpoint,
        "directories": report.directories,
        "files": report.files,
        "others": report.others,
        "orphans": report.orphans,
        "nodes": report.nodes,
        "data_blocks": report.data_blocks,
        "reserved_blocks": report.reserved_blocks,
    });
    format!("{value:#}\n")
}
