//! The Linux of this machine as a judge: it mounts a volume whose power was cut, and replays its journal.
//!
//! Place in the data flow: `weir crash files --kernel-every` asks it about images before our recovery, and compares its result with ours.
//!
//! Invariant: a volume without the mark that its journal has to be replayed does not count, and the mark is gone after the mount:
//! e2fsck says nothing about a journal that was not replayed.

use crate::error::{Failure, Outcome};
use crate::images::{Blocks, Images};
use flashweir_crash::files::Format;
use flashweir_crash::files::tree::{Body, Node, Tree};
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// See the module.
pub(crate) struct Kernel {
    images: Images,
}

impl Kernel {
    pub(crate) fn new(format: Format) -> Outcome<Self> {
        if !format.is_ext4() {
            let name = format.name();
            return Err(Failure::Usage(format!("--kernel-every needs --format ext4, not {name}")));
        }
        let loops = said(Command::new("losetup").arg("-f"));
        loops.map_err(|why| Failure::Run(format!("--kernel-every needs root and a loop device: {why}")))?;
        Ok(Self { images: Images::new("kernel")? })
    }

    /// Whether there was a journal to replay; then Linux shows what `tree` has, and leaves a good volume. Errors: it does not.
    pub(crate) fn replay(&self, contents: &Blocks, blocks: u64, tree: &Tree) -> Result<bool, String> {
        self.images.ask(contents, blocks, |image| replayed(image, &image.with_extension("mnt"), tree))
    }
}

fn replayed(image: &Path, dir: &Path, tree: &Tree) -> Result<bool, String> {
    if !needs_recovery(image)? {
        return Ok(false);
    }
    fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    said(Command::new("mount").args(["-o", "loop,noatime"]).arg(image).arg(dir))?;
    let same = compare(dir, tree, tree.root);
    unmount(dir)?;
    let _ = fs::remove_dir(dir);
    same.map_err(|what| format!("Linux: {what}"))?;
    if needs_recovery(image)? {
        return Err("Linux left the journal as it was".into());
    }
    said(Command::new("e2fsck").arg("-fn").arg(image))?;
    Ok(true)
}

/// Another program that inspects every new mount may have a file open for a short time.
#[expect(clippy::disallowed_methods, reason = "it waits for a program of the machine, not in a simulation")]
fn unmount(dir: &Path) -> Result<(), String> {
    let mut result = Ok(());
    for _ in 0..50 {
        result = said(Command::new("umount").arg(dir)).map(drop);
        if result.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    result
}

fn needs_recovery(image: &Path) -> Result<bool, String> {
    Ok(said(Command::new("dumpe2fs").arg("-h").arg(image))?.contains("needs_recovery"))
}

/// Output of a program that succeeds.
fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} ended with {}: {}", output.status, text.trim()))
        }
    }
}

/// Compares the files below a path with our tree: kinds, names, bytes, targets, permissions, link counts.
fn compare(path: &Path, tree: &Tree, number: u64) -> Result<(), String> {
    let wrong = |what: String| format!("{}: {what}", tree.path_of(number));
    let io = |error: std::io::Error| wrong(error.to_string());
    let meta = fs::symlink_metadata(path).map_err(io)?;
    let node: &Node = &tree.nodes[&number];
    same("permissions", meta.permissions().mode() & 0o7777, u32::from(node.mode) & 0o7777).map_err(wrong)?;
    same("links", meta.nlink(), u64::from(node.links)).map_err(wrong)?;
    let kind = |is: fn(&Metadata) -> bool| same(node.body.kind(), is(&meta), true).map_err(wrong);
    match &node.body {
        Body::File(bytes) => {
            kind(Metadata::is_file)?;
            let theirs = fs::read(path).map_err(io)?;
            same("size", theirs.len(), bytes.len()).map_err(wrong)?;
            match theirs.iter().zip(bytes.iter()).position(|(theirs, ours)| theirs != ours) {
                Some(at) => Err(wrong(format!("byte {at} differs from ours"))),
                None => Ok(()),
            }
        }
        Body::Symlink(target) => {
            kind(Metadata::is_symlink)?;
            let theirs = fs::read_link(path).map_err(io)?;
            same("target", theirs.to_string_lossy().as_ref(), target.as_str()).map_err(wrong)
        }
        Body::Directory(entries) => {
            kind(Metadata::is_dir)?;
            let mut names = Vec::new();
            for entry in fs::read_dir(path).map_err(io)? {
                names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
            }
            names.sort_unstable();
            same("names", names, entries.keys().cloned().collect()).map_err(wrong)?;
            entries.iter().try_for_each(|(name, &entry)| compare(&path.join(name), tree, entry))
        }
        Body::Other => Ok(()),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, theirs: T, ours: T) -> Result<(), String> {
    if theirs == ours { Ok(()) } else { Err(format!("{what}: {theirs:?}, with our recovery {ours:?}")) }
}
