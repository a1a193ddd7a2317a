//! Operations on files, each written as one word: `rename:A/foo:B/bar`.
//!
//! Place in the data flow: generators make them, tokens carry them, [`Runner`] executes them on a mounted file system:
//! on the one that is to be cut, and on the one in memory that gives the expected result.
//!
//! Invariants: written data identify the operation and the position: each 8 bytes hold the operation's number and their
//! offset in the file, so that bytes of another operation, file or position are recognised. Paths have no leading
//! slash.
//!
//! A word followed by `&` is executed by another task: `fsync:A/foo&`. The reference executes everything in the order
//! of the words, so an operation that would change the meaning of such a word waits for it first
//! ([`Op::has_to_wait_for`]).
//!
//! Deliberately absent: two tasks that change the same file or the same names at once; no order of theirs would be the
//! correct one.

use super::tree::{Body, Node, Tree, xattrs};
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_core::{Duration, Lpn};
use flashweir_fs::vfs::{
    Acl, AclEntry, AclKind, Barrier, Creds, Errno, File, Follow, Fs, Ino, OpenFlags, Process, RenameMode,
    Sink, Source, SyncKind, Vfs, Who, XattrMode,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

/// Time that [`Op::WriteBack`] waits: longer than dirty pages stay in memory.
const WRITE_BACK: Duration = Duration::from_secs(40);
/// Polling interval of [`Op::Wait`].
const POLL: Duration = Duration::from_micros(100);
/// Maximum length of one operation, and the maximum offset that it reaches, in bytes.
const BYTES_MAX: u64 = 1 << 26;
/// Maximum number of users in an access control list, so that two lists and attributes fit in every format.
const USERS_MAX: u64 = 60;

/// An operation. Offsets and lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// Creates a file, or empties an existing one.
    Creat(String),
    /// Creates a directory.
    Mkdir(String),
    /// Writes through the page cache; creates the file if it does not exist.
    Write(String, u64, u64),
    /// Writes at the end of the file.
    Append(String, u64),
    /// Writes directly, past the page cache.
    Direct(String, u64, u64),
    /// Writes through a handle with `O_SYNC`; creates the file if it does not exist.
    SyncWrite(String, u64, u64),
    /// The same with `O_DSYNC`.
    DsyncWrite(String, u64, u64),
    /// Copies a range of the first file to a place in the second one (`copy_file_range`).
    Copy(String, u64, u64, String, u64),
    /// Allocates a range; the file grows to its end.
    Allocate(String, u64, u64),
    /// Allocates a range without changing the length.
    AllocateKeep(String, u64, u64),
    /// Punches a hole.
    Punch(String, u64, u64),
    /// Changes the length.
    Truncate(String, u64),
    /// Renames, replacing the target if it exists.
    Rename(String, String),
    /// Exchanges two names.
    Exchange(String, String),
    /// Creates a hard link.
    Link(String, String),
    /// Creates a symbolic link that holds the first path.
    Symlink(String, String),
    /// Removes a name.
    Unlink(String),
    /// Removes an empty directory.
    Rmdir(String),
    /// Removes the file or directory of this name.
    Remove(String),
    /// Sets the attribute `user.NAME` to a value of this many bytes.
    SetXattr(String, String, u64),
    /// Removes the attribute `user.NAME`.
    RemoveXattr(String, String),
    /// Sets the access list to one with this many users, and with it the permission bits; without users, these express
    /// it completely.
    SetAcl(String, u64),
    /// Sets the default list of a directory; with no users, removes it.
    SetDefaultAcl(String, u64),
    /// Changes the permission bits, and with them the access list.
    Chmod(String, u16),
    /// Changes the owner, and the group of the same number.
    Chown(String, u64),
    /// Creates a file without a name in the file system of a directory, and keeps it open.
    Nameless(String),
    /// Gives the last held file a further name, or its first one.
    LinkHeld(String),
    /// Opens the file and keeps it open.
    Hold(String),
    /// Writes at the end of each held file, whether it still has a name or not.
    AppendHeld(u64),
    /// Makes each held file durable.
    FsyncHeld,
    /// Opens the file as atomic and keeps it open: what is written to it is withheld.
    Atomic(String),
    /// Makes what the held atomic files withhold durable, all of it at once.
    Syncv,
    /// Closes all held files.
    Release,
    /// Closes the file held last; the same file may also be held open elsewhere.
    ReleaseLast,
    /// Makes a file or a directory durable.
    Fsync(String),
    /// Makes the data of a file durable, and its size.
    Fdatasync(String),
    /// Orders a file or a directory before all later changes.
    Fbarrier(String),
    /// Orders the data of a file before all later changes.
    Fdatabarrier(String),
    /// Makes everything durable.
    Sync,
    /// Closes all held files, unmounts the volume, and mounts it again.
    Remount,
    /// Another task executes it, and the sequence continues meanwhile.
    Aside(Box<Op>),
    /// Waits until other tasks have finished; the end of a sequence does so, too.
    Wait,
    /// Lets this many microseconds pass.
    Pause(u64),
    /// Lets time pass until dirty pages are written back.
    WriteBack,
}

impl Op {
    /// Whether it promises durability.
    pub fn is_persistence(&self) -> bool {
        matches!(
            self,
            Self::Fsync(_)
                | Self::Fdatasync(_)
                | Self::Sync
                | Self::Syncv
                | Self::Remount
                | Self::FsyncHeld
                | Self::Wait
        )
    }

    /// Returns the operation, executed by another task.
    #[must_use]
    pub fn aside(self) -> Self {
        Self::Aside(Box::new(self))
    }

    /// Returns the operation itself, whichever task executes it.
    pub fn plain(&self) -> &Self {
        match self {
            Self::Aside(op) => op.plain(),
            op => op,
        }
    }

    /// Whether it concerns files that it names, and needs no held file.
    pub(super) fn is_of_paths(&self) -> bool {
        !self.paths().is_empty()
            && !matches!(
                self,
                Self::Hold(_) | Self::Atomic(_) | Self::Nameless(_) | Self::LinkHeld(_) | Self::Aside(_)
            )
    }

    /// Returns the paths that it names.
    pub(super) fn paths(&self) -> Vec<&str> {
        match self {
            Self::Creat(path)
            | Self::Mkdir(path)
            | Self::Write(path, ..)
            | Self::Append(path, _)
            | Self::Direct(path, ..)
            | Self::SyncWrite(path, ..)
            | Self::DsyncWrite(path, ..)
            | Self::Allocate(path, ..)
            | Self::AllocateKeep(path, ..)
            | Self::Punch(path, ..)
            | Self::Truncate(path, _)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Remove(path)
            | Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, _)
            | Self::SetAcl(path, _)
            | Self::SetDefaultAcl(path, _)
            | Self::Chmod(path, _)
            | Self::Chown(path, _)
            | Self::Nameless(path)
            | Self::LinkHeld(path)
            | Self::Hold(path)
            | Self::Atomic(path)
            | Self::Fsync(path)
            | Self::Fdatasync(path)
            | Self::Fbarrier(path)
            | Self::Fdatabarrier(path) => vec![path],
            Self::Rename(from, to)
            | Self::Exchange(from, to)
            | Self::Link(from, to)
            | Self::Symlink(from, to)
            | Self::Copy(from, _, _, to, _) => vec![from, to],
            Self::Aside(op) => op.paths(),
            Self::AppendHeld(_)
            | Self::FsyncHeld
            | Self::Syncv
            | Self::Release
            | Self::ReleaseLast
            | Self::Sync
            | Self::Remount
            | Self::Wait
            | Self::Pause(_)
            | Self::WriteBack => Vec::new(),
        }
    }

    /// The file that it makes durable or orders, and how.
    fn promised(&self) -> Option<(&str, Promised)> {
        Some(match self {
            Self::Fsync(file) => (file, Promised::Durable(SyncKind::All)),
            Self::Fdatasync(file) => (file, Promised::Durable(SyncKind::Data)),
            Self::Fbarrier(file) => (file, Promised::Ordered(Barrier::All)),
            Self::Fdatabarrier(file) => (file, Promised::Ordered(Barrier::Data)),
            _ => return None,
        })
    }

    /// Returns what it means for concurrent operations, given the trees before and after it.
    fn reach(&self, before: &Tree, after: &Tree) -> Reach {
        let op = self.plain();
        let mut nodes = BTreeSet::new();
        let mut changes_names = false;
        for path in op.paths() {
            let places = [before, after]
                .map(|tree| (tree.find(path), tree.opened(path).and_then(|at| tree.find(&at))));
            changes_names |= places[0].0 != places[1].0;
            nodes.extend(places.into_iter().flat_map(|(name, file)| [name, file]).flatten());
            let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            nodes.extend([before, after].into_iter().filter_map(|tree| tree.find(dir)));
        }
        let effect = match op {
            Self::Pause(_) | Self::Wait | Self::WriteBack => Effect::None,
            Self::Sync
            | Self::Syncv
            | Self::Fsync(_)
            | Self::Fdatasync(_)
            | Self::Fbarrier(_)
            | Self::Fdatabarrier(_) => Effect::Promise,
            _ if changes_names => Effect::Names,
            _ => Effect::Data,
        };
        Reach { effect, nodes: (!op.paths().is_empty()).then_some(nodes) }
    }

    /// Whether it must wait until another task has finished `other`, because the meaning of one depends on the other;
    /// each comes with the trees before and after it.
    pub(super) fn has_to_wait_for(&self, trees: [&Tree; 2], other: &Self, others: [&Tree; 2]) -> bool {
        let (this, other) = (self.reach(trees[0], trees[1]), other.reach(others[0], others[1]));
        let meet = match (&this.nodes, &other.nodes) {
            (Some(this), Some(other)) => !this.is_disjoint(other),
            _ => true,
        };
        match (this.effect, other.effect) {
            (Effect::None, _) | (_, Effect::None) => false,
            // A promise is about the contents at its beginning, and its file is open by then.
            (_, Effect::Promise) => false,
            (_, Effect::Data | Effect::Names) => meet,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Creat(_) => "creat",
            Self::Mkdir(_) => "mkdir",
            Self::Write(..) => "write",
            Self::Append(..) => "append",
            Self::Direct(..) => "direct",
            Self::SyncWrite(..) => "swrite",
            Self::DsyncWrite(..) => "dwrite",
            Self::Copy(..) => "copy",
            Self::Allocate(..) => "falloc",
            Self::AllocateKeep(..) => "fallocK",
            Self::Punch(..) => "punch",
            Self::Truncate(..) => "truncate",
            Self::Rename(..) => "rename",
            Self::Exchange(..) => "exchange",
            Self::Link(..) => "link",
            Self::Symlink(..) => "symlink",
            Self::Unlink(_) => "unlink",
            Self::Rmdir(_) => "rmdir",
            Self::Remove(_) => "remove",
            Self::SetXattr(..) => "setxattr",
            Self::RemoveXattr(..) => "rmxattr",
            Self::SetAcl(..) => "setacl",
            Self::SetDefaultAcl(..) => "defacl",
            Self::Chmod(..) => "chmod",
            Self::Chown(..) => "chown",
            Self::Nameless(_) => "tmpfile",
            Self::LinkHeld(_) => "linkheld",
            Self::Hold(_) => "hold",
            Self::Atomic(_) => "atomic",
            Self::Syncv => "syncv",
            Self::AppendHeld(_) => "heldappend",
            Self::FsyncHeld => "heldfsync",
            Self::Release => "release",
            Self::ReleaseLast => "releaselast",
            Self::Fsync(_) => "fsync",
            Self::Fdatasync(_) => "fdatasync",
            Self::Fbarrier(_) => "fbarrier",
            Self::Fdatabarrier(_) => "fdatabarrier",
            Self::Sync => "sync",
            Self::Remount => "remount",
            Self::Aside(op) => op.name(),
            Self::Wait => "wait",
            Self::Pause(_) => "pause",
            Self::WriteBack => "writeback",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Aside(op) = self {
            return write!(f, "{op}&");
        }
        f.write_str(self.name())?;
        match self {
            Self::Creat(path)
            | Self::Mkdir(path)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Remove(path)
            | Self::Hold(path)
            | Self::Atomic(path)
            | Self::Nameless(path)
            | Self::LinkHeld(path)
            | Self::Fsync(path)
            | Self::Fdatasync(path)
            | Self::Fbarrier(path)
            | Self::Fdatabarrier(path) => write!(f, ":{path}"),
            Self::Write(path, at, len)
            | Self::Direct(path, at, len)
            | Self::SyncWrite(path, at, len)
            | Self::DsyncWrite(path, at, len)
            | Self::Allocate(path, at, len)
            | Self::AllocateKeep(path, at, len)
            | Self::Punch(path, at, len) => write!(f, ":{path}:{at}+{len}"),
            Self::Append(path, len)
            | Self::Truncate(path, len)
            | Self::Chown(path, len)
            | Self::SetAcl(path, len)
            | Self::SetDefaultAcl(path, len) => write!(f, ":{path}:{len}"),
            Self::Copy(from, at, len, to, to_at) => write!(f, ":{from}:{at}+{len}:{to}:{to_at}"),
            Self::Chmod(path, mode) => write!(f, ":{path}:{mode:o}"),
            Self::Rename(from, to)
            | Self::Exchange(from, to)
            | Self::Link(from, to)
            | Self::Symlink(from, to) => {
                write!(f, ":{from}:{to}")
            }
            Self::SetXattr(path, name, len) => write!(f, ":{path}:{name}:{len}"),
            Self::RemoveXattr(path, name) => write!(f, ":{path}:{name}"),
            Self::AppendHeld(len) | Self::Pause(len) => write!(f, ":{len}"),
            Self::FsyncHeld
            | Self::Syncv
            | Self::Release
            | Self::ReleaseLast
            | Self::Sync
            | Self::Remount
            | Self::Aside(_)
            | Self::Wait
            | Self::WriteBack => Ok(()),
        }
    }
}

/// What a call promises about a file.
#[derive(Clone, Copy)]
enum Promised {
    Durable(SyncKind),
    Ordered(Barrier),
}

/// Effect of an operation on the meaning of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing.
    None,
    /// It makes existing contents durable, or orders them.
    Promise,
    /// It changes the content of a file.
    Data,
    /// It changes names.
    Names,
}

/// The effect, and the files and directories concerned (see [`Op::reach`]); `None` stands for all.
struct Reach {
    effect: Effect,
    nodes: Option<BTreeSet<u64>>,
}

/// Words of a sequence, as [`FromStr`] of [`Ops`] parses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ops(pub Vec<Op>);

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, op) in self.0.iter().enumerate() {
            write!(f, "{}{op}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Ops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').filter(|word| !word.is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{word}`: expected {what}");
        if let Some(word) = word.strip_suffix('&') {
            let op: Self = word.parse()?;
            let is_for_others = op.is_of_paths() || op == Self::Sync;
            return is_for_others
                .then(|| op.aside())
                .ok_or_else(|| wrong("`&` behind a sync, or behind an operation on paths"));
        }
        let mut fields = word.split(':');
        let name = fields.next().unwrap_or_default();
        let fields: Vec<&str> = fields.collect();
        let path = |index: usize| {
            let path = fields.get(index).filter(|path| !path.is_empty() && !path.contains('@'));
            path.map(|path| (*path).to_owned()).ok_or_else(|| wrong("a path such as A/foo"))
        };
        let number = |text: &str| text.parse().ok().filter(|&n: &u64| n <= BYTES_MAX);
        let bytes = |index: usize| {
            let bytes = fields.get(index).and_then(|text| number(text));
            bytes.ok_or_else(|| wrong("a number of bytes up to 64 MiB"))
        };
        let range = |index: usize| {
            let range = fields.get(index).and_then(|text| text.split_once('+'));
            let range = range.and_then(|(at, len)| Some((number(at)?, number(len)?)));
            range.ok_or_else(|| wrong("a range such as 4096+100 within 64 MiB"))
        };
        let users = |index: usize| {
            let users = fields.get(index).and_then(|text| text.parse().ok());
            users.filter(|users| *users <= USERS_MAX).ok_or_else(|| wrong("a number of users up to 60"))
        };
        let mode = |index: usize| {
            let mode = fields.get(index).and_then(|text| u16::from_str_radix(text, 8).ok());
            mode.filter(|mode| *mode <= 0o777).ok_or_else(|| wrong("permission bits such as 640"))
        };
        let (op, expected) = match name {
            "creat" => (Self::Creat(path(0)?), 1),
            "mkdir" => (Self::Mkdir(path(0)?), 1),
            "unlink" => (Self::Unlink(path(0)?), 1),
            "rmdir" => (Self::Rmdir(path(0)?), 1),
            "remove" => (Self::Remove(path(0)?), 1),
            "setacl" => (Self::SetAcl(path(0)?, users(1)?), 2),
            "defacl" => (Self::SetDefaultAcl(path(0)?, users(1)?), 2),
            "chmod" => (Self::Chmod(path(0)?, mode(1)?), 2),
            "chown" => (Self::Chown(path(0)?, bytes(1)?), 2),
            "tmpfile" => (Self::Nameless(path(0)?), 1),
            "linkheld" => (Self::LinkHeld(path(0)?), 1),
            "hold" => (Self::Hold(path(0)?), 1),
            "atomic" => (Self::Atomic(path(0)?), 1),
            "syncv" => (Self::Syncv, 0),
            "fsync" => (Self::Fsync(path(0)?), 1),
            "fdatasync" => (Self::Fdatasync(path(0)?), 1),
            "fbarrier" => (Self::Fbarrier(path(0)?), 1),
            "fdatabarrier" => (Self::Fdatabarrier(path(0)?), 1),
            "write" => (Self::Write(path(0)?, range(1)?.0, range(1)?.1), 2),
            "direct" => (Self::Direct(path(0)?, range(1)?.0, range(1)?.1), 2),
            "swrite" => (Self::SyncWrite(path(0)?, range(1)?.0, range(1)?.1), 2),
            "dwrite" => (Self::DsyncWrite(path(0)?, range(1)?.0, range(1)?.1), 2),
            "copy" => (Self::Copy(path(0)?, range(1)?.0, range(1)?.1, path(2)?, bytes(3)?), 4),
            "falloc" => (Self::Allocate(path(0)?, range(1)?.0, range(1)?.1), 2),
            "fallocK" => (Self::AllocateKeep(path(0)?, range(1)?.0, range(1)?.1), 2),
            "punch" => (Self::Punch(path(0)?, range(1)?.0, range(1)?.1), 2),
            "append" => (Self::Append(path(0)?, bytes(1)?), 2),
            "truncate" => (Self::Truncate(path(0)?, bytes(1)?), 2),
            "rename" => (Self::Rename(path(0)?, path(1)?), 2),
            "exchange" => (Self::Exchange(path(0)?, path(1)?), 2),
            "link" => (Self::Link(path(0)?, path(1)?), 2),
            "symlink" => (Self::Symlink(path(0)?, path(1)?), 2),
            "setxattr" => (Self::SetXattr(path(0)?, path(1)?, bytes(2)?), 3),
            "rmxattr" => (Self::RemoveXattr(path(0)?, path(1)?), 2),
            "heldappend" => (Self::AppendHeld(bytes(0)?), 1),
            "heldfsync" => (Self::FsyncHeld, 0),
            "release" => (Self::Release, 0),
            "releaselast" => (Self::ReleaseLast, 0),
            "sync" => (Self::Sync, 0),
            "remount" => (Self::Remount, 0),
            "wait" => (Self::Wait, 0),
            "pause" => (Self::Pause(bytes(0)?), 1),
            "writeback" => (Self::WriteBack, 0),
            _ => {
                return Err(wrong("an operation such as creat:A/foo, write:A/foo:0+4096, fsync:A/foo, sync"));
            }
        };
        match fields.len() == expected {
            true => Ok(op),
            false => Err(wrong(&format!("{expected} fields after {name}"))),
        }
    }
}

/// Upper bits of each 8-byte word that is written.
const MARK: u64 = 0xf1a5;

/// Returns the bytes that operation `number` writes at `at`.
pub fn content(number: usize, at: u64, len: u64) -> Vec<u8> {
    let word = |offset: u64| ((MARK << 48) | ((number as u64 + 1) << 32) | (offset / 8)).to_le_bytes();
    (at..at + len).map(|offset| word(offset)[(offset % 8) as usize]).collect()
}

/// Returns the access control list that operation `number` sets, with `users` users; the lists of different operations
/// differ.
fn list(number: usize, users: u64) -> Option<Acl> {
    let bits = |shift: u32| (number as u16).wrapping_mul(5) >> shift & 0o7;
    let named = (0..users).map(|user| (Who::User(1_000 + user as u32), bits(user as u32 % 3)));
    let mask = (users > 0).then_some((Who::Mask, bits(0)));
    let entries = [(Who::Owner, 6)].into_iter().chain(named).chain([(Who::Group, bits(3))]);
    let entries = entries.chain(mask).chain([(Who::Others, bits(0))]);
    Acl::new(entries.map(|(who, permissions)| AclEntry { who, permissions }).collect())
}

/// Describes the origin of 8 bytes of a file.
pub fn origin(word: &[u8]) -> String {
    let mut bytes = [0; 8];
    let len = word.len().min(8);
    bytes[..len].copy_from_slice(&word[..len]);
    match u64::from_le_bytes(bytes) {
        0 => "zeros".into(),
        word if word >> 48 == MARK => {
            format!(
                "bytes that operation {} wrote at {}",
                ((word >> 32) & 0xffff) - 1,
                (word & 0xffff_ffff) * 8
            )
        }
        word => format!("bytes {word:#x}, which no operation wrote"),
    }
}

/// Result of an operation: the inode that it made, with its generation, or the error.
pub type Made = Result<Option<(u64, u32)>, Errno>;

/// Executes operations on one mounted file system.
pub struct Runner<F: Fs> {
    process: Process<F>,
    handle: Handle,
    held: Vec<File<F>>,
    /// Held files that were created without a name and have none yet.
    nameless: BTreeSet<Ino>,
    /// Number of operations in progress in other tasks.
    aside: Rc<Cell<usize>>,
    /// Whether this is the reference, which withholds nothing: before a cut, that cannot be seen.
    is_reference: bool,
}

impl<F: Fs> fmt::Debug for Runner<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({} held)", self.held.len())
    }
}

impl<F: Fs> Runner<F> {
    /// Makes a runner on this mount, as root.
    pub fn new(vfs: &Vfs<F>, handle: Handle) -> Self {
        let (held, nameless) = (Vec::new(), BTreeSet::new());
        let process = vfs.process(Creds::ROOT);
        Self { process, handle, held, nameless, aside: Rc::default(), is_reference: false }
    }

    /// Makes the runner of the reference.
    pub(super) fn reference(vfs: &Vfs<F>, handle: Handle) -> Self {
        Self { is_reference: true, ..Self::new(vfs, handle) }
    }

    /// Returns the calling process.
    pub fn process(&self) -> &Process<F> {
        &self.process
    }

    /// Executes operation `number`, and waits for it even where another task is to execute it.
    pub async fn apply(&mut self, number: usize, op: &Op) -> Made {
        let process = &self.process;
        let path = |path: &String| format!("/{path}");
        match op.plain() {
            Op::Nameless(dir) => {
                let file = process.open_nameless(path(dir), OpenFlags::READ_WRITE, 0o644).await?;
                let attr = file.attr().await?;
                self.nameless.insert(attr.ino);
                self.held.push(file);
                return Ok(Some((attr.ino.0, attr.generation)));
            }
            Op::LinkHeld(name) => {
                let ino = self.held.last().ok_or(Errno::EBADF)?.ino();
                process.link_inode(ino, path(name)).await?;
                self.nameless.remove(&ino);
            }
            Op::Hold(file) => {
                let open = match process.open(path(file), OpenFlags::READ_WRITE, 0).await {
                    Err(Errno::EISDIR) => process.open(path(file), OpenFlags::READ, 0).await?,
                    open => open?,
                };
                self.held.push(open);
            }
            Op::Atomic(file) => {
                let flags = OpenFlags::READ_WRITE;
                let flags = if self.is_reference { flags } else { flags.atomic() };
                self.held.push(process.open(path(file), flags, 0).await?);
            }
            Op::Syncv => self.syncv().await?,
            Op::AppendHeld(len) => {
                for file in &self.held {
                    let at = file.size();
                    write_all(file, at, &content(number, at, *len)).await?;
                }
            }
            Op::FsyncHeld => {
                for file in &self.held {
                    file.sync(SyncKind::All).await?;
                }
            }
            Op::ReleaseLast => {
                let file = self.held.pop().ok_or(Errno::EBADF)?;
                if self.held.iter().all(|other| other.ino() != file.ino()) {
                    self.nameless.remove(&file.ino());
                }
                file.close().await?;
            }
            Op::Release => self.release().await?,
            Op::Sync => process.vfs().sync_all().await?,
            // A remount has no other effect on files; the owner of the volume mounts it again.
            Op::Remount => {
                self.end().await?;
                self.process.vfs().sync_all().await?;
            }
            Op::Wait => self.wait().await,
            Op::Pause(micros) => self.sleep(Duration::from_micros(*micros)).await,
            Op::WriteBack => self.sleep(WRITE_BACK).await,
            op => return on_paths(process, number, op).await,
        }
        Ok(None)
    }

    async fn syncv(&self) -> Result<(), Errno> {
        let atomic: Vec<&File<F>> = self.held.iter().filter(|file| file.flags().atomic).collect();
        self.process.vfs().syncv(&atomic, SyncKind::Data).await
    }

    async fn release(&mut self) -> Result<(), Errno> {
        self.nameless.clear();
        for file in self.held.drain(..) {
            file.close().await?;
        }
        Ok(())
    }

    /// Closes the held files when all tasks have ended, so that nothing keeps the mount busy. What atomic ones withhold is made
    /// durable before, since an unmount would lose it.
    pub async fn end(&mut self) -> Result<(), Errno> {
        self.wait().await;
        self.syncv().await?;
        self.release().await
    }

    async fn sleep(&self, time: Duration) {
        self.handle.sleep_until(self.handle.now() + time).await;
    }

    /// Returns the contents of files that were created without a name and have none yet; `identify` is that of
    /// [`super::tree::Tree::read`].
    pub async fn nameless(
        &self,
        identify: impl Fn(u64, u32) -> u64,
    ) -> Result<BTreeMap<u64, Arc<Node>>, Errno> {
        let mut nodes = BTreeMap::new();
        for file in self.held.iter().filter(|file| self.nameless.contains(&file.ino())) {
            let attr = file.attr().await?;
            let mut bytes = vec![0; attr.size as usize];
            file.pread(0, Sink::bytes(&mut bytes)).await?;
            let xattrs = xattrs(&self.process, attr.ino).await?;
            let node = Node {
                body: Body::File(bytes.into()),
                links: attr.links,
                mode: attr.mode,
                owner: (attr.uid, attr.gid),
                xattrs,
            };
            nodes.insert(identify(attr.ino.0, attr.generation), Arc::new(node));
        }
        Ok(nodes)
    }

    /// Lets another task execute operation `number`; `ended` is called with its result. What makes a file durable has opened it when this
    /// returns, so that its names may change from then on.
    pub async fn begin(&mut self, number: usize, op: Op, ended: impl FnOnce(Made) + 'static) {
        let (process, aside) = (self.process.clone(), Rc::clone(&self.aside));
        aside.set(aside.get() + 1);
        let opened = match op.promised() {
            Some((file, _)) => Some(process.open(format!("/{file}"), OpenFlags::READ, 0).await),
            None => None,
        };
        self.handle.spawn(async move {
            let made = match (&op, opened) {
                (Op::Sync, _) => process.vfs().sync_all().await.map(|()| None),
                (op, Some(opened)) => keep(opened, op).await.map(|()| None),
                (op, None) => on_paths(&process, number, op).await,
            };
            ended(made);
            aside.set(aside.get() - 1);
        });
        // The operation has begun when the caller continues.
        self.handle.yield_now().await;
    }

    /// Waits for all operations begun by [`Self::begin`].
    pub async fn wait(&self) {
        while self.aside.get() > 0 {
            self.sleep(POLL).await;
        }
    }
}

/// Executes operation `number`, which concerns paths and no held file.
async fn on_paths<F: Fs>(process: &Process<F>, number: usize, op: &Op) -> Made {
    let path = |path: &String| format!("/{path}");
    match op {
        Op::Creat(file) => {
            let is_new = process.stat(path(file), Follow::Yes).await.is_err();
            let open = process.create(path(file)).await?;
            let ino = open.ino();
            open.close().await?;
            return if is_new {
                made(process, &path(file), Follow::Yes, Some(ino.0)).await
            } else {
                Ok(None)
            };
        }
        Op::Mkdir(dir) => {
            process.mkdir(path(dir), 0o755).await?;
            return made(process, &path(dir), Follow::No, None).await;
        }
        Op::Symlink(target, link) => {
            process.symlink(target, path(link)).await?;
            return made(process, &path(link), Follow::No, None).await;
        }
        Op::Write(file, at, len) | Op::SyncWrite(file, at, len) | Op::DsyncWrite(file, at, len) => {
            let is_new = process.stat(path(file), Follow::Yes).await.is_err();
            let flags = match op {
                Op::SyncWrite(..) => OpenFlags::WRITE.create().sync(SyncKind::All),
                Op::DsyncWrite(..) => OpenFlags::WRITE.create().sync(SyncKind::Data),
                _ => OpenFlags::WRITE.create(),
            };
            let open = process.open(path(file), flags, 0o644).await?;
            let written = write_all(&open, *at, &content(number, *at, *len)).await;
            open.close().await?;
            written?;
            return if is_new { made(process, &path(file), Follow::Yes, None).await } else { Ok(None) };
        }
        Op::Append(file, len) => {
            let open = process.open(path(file), OpenFlags::WRITE, 0).await?;
            let at = open.size();
            let written = write_all(&open, at, &content(number, at, *len)).await;
            open.close().await?;
            written?;
        }
        Op::Direct(file, at, len) => {
            let open = process.open(path(file), OpenFlags::WRITE.direct(), 0).await?;
            let written = write_all(&open, *at, &content(number, *at, *len)).await;
            open.close().await?;
            written?;
        }
        Op::Copy(from, at, len, to, to_at) => {
            let source = process.open(path(from), OpenFlags::READ, 0).await?;
            let target = process.open(path(to), OpenFlags::WRITE, 0).await;
            let done = match &target {
                Ok(target) => copy_all(process.vfs(), (&source, *at), (target, *to_at), *len).await,
                Err(errno) => Err(*errno),
            };
            source.close().await?;
            if let Ok(target) = target {
                target.close().await?;
            }
            done?;
        }
        Op::Allocate(file, at, len) | Op::AllocateKeep(file, at, len) => {
            let open = process.open(path(file), OpenFlags::WRITE, 0).await?;
            let done = open.allocate(*at, *len, matches!(op, Op::AllocateKeep(..))).await;
            open.close().await?;
            done?;
        }
        Op::Punch(file, at, len) => {
            let open = process.open(path(file), OpenFlags::WRITE, 0).await?;
            let done = open.punch_hole(*at, *len).await;
            open.close().await?;
            done?;
        }
        Op::Truncate(file, size) => process.truncate(path(file), *size).await?,
        Op::Rename(from, to) => process.rename(path(from), path(to), RenameMode::Replace).await?,
        Op::Exchange(from, to) => process.rename(path(from), path(to), RenameMode::Exchange).await?,
        Op::Link(from, to) => drop(process.link(path(from), path(to)).await?),
        Op::Unlink(name) => process.unlink(path(name)).await?,
        Op::Rmdir(dir) => process.rmdir(path(dir)).await?,
        Op::Remove(name) => match process.stat(path(name), Follow::No).await?.kind.is_dir() {
            true => process.rmdir(path(name)).await?,
            false => process.unlink(path(name)).await?,
        },
        Op::SetXattr(file, name, len) => {
            let value = content(number, 0, *len);
            let name = format!("user.{name}");
            process.setxattr(path(file), name, &value, XattrMode::Set, Follow::No).await?;
        }
        Op::RemoveXattr(file, name) => {
            process.removexattr(path(file), format!("user.{name}"), Follow::No).await?;
        }
        Op::SetAcl(file, users) => {
            let list = list(number, *users).ok_or(Errno::EINVAL)?;
            let name = AclKind::Access.name();
            process.setxattr(path(file), name, &list.to_wire(), XattrMode::Set, Follow::Yes).await?;
        }
        Op::SetDefaultAcl(dir, users) => {
            let list = list(number, *users).ok_or(Errno::EINVAL)?;
            let value = if *users > 0 { list.to_wire() } else { Vec::new() };
            let name = AclKind::Default.name();
            process.setxattr(path(dir), name, &value, XattrMode::Set, Follow::Yes).await?;
        }
        Op::Chmod(file, mode) => process.chmod(path(file), *mode).await?,
        Op::Chown(file, owner) => {
            let owner = Some(*owner as u32);
            process.chown(path(file), owner, owner, Follow::Yes).await?;
        }
        Op::Fsync(file) | Op::Fdatasync(file) | Op::Fbarrier(file) | Op::Fdatabarrier(file) => {
            keep(process.open(path(file), OpenFlags::READ, 0).await, op).await?;
        }
        _ => unreachable!("{op} is not about paths alone"),
    }
    Ok(None)
}

/// Executes an operation that makes a file durable, or keeps its order, on that file.
async fn keep<F: Fs>(opened: Result<File<F>, Errno>, op: &Op) -> Result<(), Errno> {
    let open = opened?;
    let done = match op.promised() {
        Some((_, Promised::Durable(kind))) => open.sync(kind).await,
        Some((_, Promised::Ordered(kind))) => open.barrier(kind).await,
        None => Ok(()),
    };
    open.close().await?;
    done
}

/// Returns the inode at a path that was just made.
async fn made<F: Fs>(process: &Process<F>, path: &str, follow: Follow, ino: Option<u64>) -> Made {
    let attr = process.stat(path, follow).await?;
    debug_assert!(ino.is_none_or(|ino| ino == attr.ino.0), "nobody else is at work on this path");
    Ok(Some((attr.ino.0, attr.generation)))
}

async fn write_all<F: Fs>(file: &File<F>, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let more = file.pwrite(at + done as u64, Source::bytes(&bytes[done..])).await?;
        if more == 0 {
            return Err(Errno::EIO);
        }
        done += more as usize;
    }
    Ok(())
}

/// Copies as cp does, until the source ends.
async fn copy_all<F: Fs>(
    vfs: &Vfs<F>,
    (from, at): (&File<F>, u64),
    (to, to_at): (&File<F>, u64),
    len: u64,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match vfs.copy_range((from, at + done), (to, to_at + done), len - done).await? {
            0 => break,
            more => done += more,
        }
    }
    Ok(())
}

/// A hash of contents by position that does not depend on the order in which they are added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlaceHash(pub(super) u64);

impl PlaceHash {
    pub(super) fn add(&mut self, lpn: Lpn, identity: u64) {
        self.0 = self.0.wrapping_add(part(lpn, identity));
    }

    pub(super) fn remove(&mut self, lpn: Lpn, identity: u64) {
        self.0 = self.0.wrapping_sub(part(lpn, identity));
    }
}

fn part(lpn: Lpn, identity: u64) -> u64 {
    mix(mix(identity) ^ lpn.0.rotate_left(40))
}

/// Maps inode numbers of one file system to those of another, where the same operation made both.
pub type Pairs = BTreeMap<u64, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_printed() {
        let text = "creat:A/foo,mkdir:A/C,write:A/foo:0+4096,append:A/foo:100,direct:A/foo:4096+4096,copy:A/foo:0+5000:B/bar:100,swrite:A/foo:0+100,dwrite:A/foo:0+100,exchange:A/foo:B/bar,chown:A/foo:7,\
                    falloc:A/foo:0+8192,fallocK:A/foo:8192+100,punch:A/foo:1+2,truncate:A/foo:0,rename:A/foo:B/bar,\
                    link:B/bar:x,symlink:x:y,unlink:x,rmdir:A/C,remove:y,setxattr:B/bar:u:100,rmxattr:B/bar:u,\
                    setacl:B/bar:3,defacl:A:1,chmod:B/bar:640,tmpfile:A,linkheld:A/new,\
                    hold:B/bar,atomic:B/bar,syncv,heldappend:100,heldfsync,releaselast,release,sync&,wait,remount,pause:60,fsync:A/foo&,write:A/foo:0+100&,fsync:B/bar,fdatasync:B/bar,fbarrier:B/bar,fdatabarrier:B/bar,sync,writeback";
        assert_eq!(text.parse::<Ops>().unwrap().to_string(), text);
    }

    #[test]
    fn mistakes_are_named() {
        for word in [
            "",
            "x",
            "creat",
            "creat:",
            "creat:a:b",
            "write:a:1",
            "copy:a:1+2:b",
            "write:a:1+999999999",
            "sync:a",
            "append:a:-1",
            "setacl:a:61",
            "chmod:a:888",
            "tmpfile",
            "wait&",
            "remount&",
            "hold:A/foo&",
            "atomic:A/foo&",
            "syncv:A/foo",
            "sync&&",
            "pause",
        ] {
            let error = word.parse::<Op>().unwrap_err();
            assert!(error.contains("expected") && error.contains(word), "{error}");
        }
    }

    #[test]
    fn bytes_tell_where_they_are_from() {
        let bytes = content(7, 4093, 30);
        assert_eq!(origin(&bytes[3..]), "bytes that operation 7 wrote at 4096");
        assert_eq!(origin(&[0; 8]), "zeros");
        assert_eq!(origin(&[0x77; 8]), "bytes 0x7777777777777777, which no operation wrote");
    }
}
