//! Faults as LazyFS takes them: commands on a FIFO, and the faults that file operations trigger.
//!
//! Place in the data flow: lines of the FIFO become [`Command`]s; a mount asks [`Faults`] before and after each operation whether the power
//! is cut now, and which parts of unsynced writes are on the disk afterwards.
//!
//! The forms are those of LazyFS (its documentation, and what its parser takes): fields after `::` in any order, a crash by a regular
//! expression on paths, `occurrence` where older versions have it, `return` where newer ones do. A fault is for one path.
//!
//! Deliberately absent: I/O; `snapshot` and `sync-pages`, which copy files of LazyFS's backing directory.

use regex_lite::Regex;
use std::fmt;
use std::path::{Path, PathBuf};

/// LazyFS's name of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Removing a name.
    Unlink,
    /// Setting the size.
    Truncate,
    /// Making durable.
    Fsync,
    /// Writing.
    Write,
    /// Making a file.
    Create,
    /// Asking for rights.
    Access,
    /// Opening.
    Open,
    /// Reading.
    Read,
    /// Renaming: two paths.
    Rename,
    /// A hard link: two paths.
    Link,
    /// A symbolic link: two paths.
    Symlink,
}

impl Operation {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Unlink, "unlink"),
        (Self::Truncate, "truncate"),
        (Self::Fsync, "fsync"),
        (Self::Write, "write"),
        (Self::Create, "create"),
        (Self::Access, "access"),
        (Self::Open, "open"),
        (Self::Read, "read"),
        (Self::Rename, "rename"),
        (Self::Link, "link"),
        (Self::Symlink, "symlink"),
    ];

    fn has_two_paths(self) -> bool {
        matches!(self, Self::Rename | Self::Link | Self::Symlink)
    }
}

/// When a crash happens, relative to its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// Before the operation.
    Before,
    /// After it.
    After,
}

/// A line of the FIFO.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Forget what was not synced.
    ClearCache,
    /// Write what was not synced.
    Checkpoint,
    /// How full the cache is.
    Usage,
    /// Report of unsynced data.
    Report,
    /// The commands.
    Help,
    /// Something for later.
    Fault(Fault),
}

/// A fault that waits for its operation.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The power fails before or after an operation on a path.
    Crash {
        /// Before or after.
        timing: Timing,
        /// Which operation.
        operation: Operation,
        /// Pattern of its path, or of its first path.
        from: Option<Regex>,
        /// Pattern of its second path.
        to: Option<Regex>,
    },
    /// Parts of one write are on the disk, and the power fails.
    TornOp {
        /// Its path.
        file: String,
        /// Parts into which it is torn.
        parts: Parts,
        /// Which parts stay, from 1.
        persist: Vec<usize>,
        /// Which write to the file, from 1.
        occurrence: u32,
        /// The write is answered before the power goes.
        returns: bool,
    },
    /// Some of several writes in a row, with no sync in between, are on the disk, and the power goes.
    TornSeq {
        /// Their path.
        file: String,
        /// Which writes stay, from 1.
        persist: Vec<usize>,
        /// Which row of writes, from 1.
        occurrence: u32,
        /// The last write is answered before the power goes.
        returns: bool,
    },
}

impl Fault {
    /// The file as the mount names it, where the command had the directory of the mount, or LazyFS's root, before it.
    pub(super) fn below(mut self, roots: &[PathBuf]) -> Self {
        if let Self::TornOp { file, .. } | Self::TornSeq { file, .. } = &mut self {
            let path = Path::new(&*file);
            let below = roots.iter().find_map(|root| path.strip_prefix(root).ok()).unwrap_or(path);
            *file = format!("/{}", below.to_string_lossy().trim_start_matches('/'));
        }
        self
    }
}

/// Parts into which a write is torn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    /// Into so many equal parts; the last one takes what is left.
    Equal(usize),
    /// Into parts of these lengths, which are that of the write together.
    Bytes(Vec<usize>),
}

/// Why a line of the FIFO is none: what was wrong, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadCommand(String);

impl fmt::Display for BadCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadCommand {}

type Result<T> = std::result::Result<T, BadCommand>;

fn bad<T>(what: impl Into<String>) -> Result<T> {
    Err(BadCommand(what.into()))
}

/// The names of the commands, for `help`.
pub(super) const COMMANDS: [&str; 8] = [
    "lazyfs::clear-cache",
    "lazyfs::cache-checkpoint",
    "lazyfs::display-cache-usage",
    "lazyfs::unsynced-data-report",
    "lazyfs::help",
    "lazyfs::crash::timing=before|after::op=OPERATION::from_rgx=REGEX[::to_rgx=REGEX]",
    "lazyfs::torn-op::file=PATH::parts=N|parts_bytes=N,…::persist=N,…[::occurrence=N][::return=true|false]",
    "lazyfs::torn-seq::op=write::file=PATH::persist=N,…[::occurrence=N][::return=true|false]",
];

/// The fields of a command; each is taken once.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn new(text: &'a str) -> Result<Self> {
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for field in text.split("::").filter(|field| !field.is_empty()) {
            let Some((key, value)) = field.split_once('=') else {
                return bad(format!("{field}: expected KEY=VALUE"));
            };
            if fields.iter().any(|(known, _)| *known == key) {
                return bad(format!("{key} is given twice"));
            }
            fields.push((key, value));
        }
        Ok(Self(fields))
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.remove(at).1)
    }

    fn file(&mut self) -> Result<String> {
        match self.take("file") {
            Some(file) if !file.is_empty() => Ok(file.to_owned()),
            _ => bad("expected file=PATH"),
        }
    }

    /// Numbers from 1, with commas between them.
    fn numbers(&mut self, key: &str) -> Result<Option<Vec<usize>>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let numbers = text.split(',').map(|number| number.trim().parse().ok().filter(|number| *number > 0));
        match numbers.collect() {
            Some(numbers) => Ok(Some(numbers)),
            None => bad(format!("{key}={text}: expected numbers from 1 with commas between them")),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<usize>> {
        match self.numbers(key)?.as_deref() {
            None => Ok(None),
            Some([number]) => Ok(Some(*number)),
            Some(_) => bad(format!("{key}: expected one number")),
        }
    }

    fn persist(&mut self) -> Result<Vec<usize>> {
        let mut persist =
            self.numbers("persist")?.ok_or_else(|| BadCommand("expected persist=N,…".into()))?;
        persist.sort_unstable();
        persist.dedup();
        Ok(persist)
    }

    fn occurrence(&mut self) -> Result<u32> {
        Ok(self.number("occurrence")?.map_or(1, |number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn returns(&mut self) -> Result<bool> {
        match self.take("return") {
            None | Some("true" | "True") => Ok(true),
            Some("false" | "False") => Ok(false),
            Some(other) => bad(format!("return={other}: expected true or false")),
        }
    }

    fn regex(&mut self, key: &str) -> Result<Option<Regex>> {
        match self.take(key) {
            None | Some("" | "none") => Ok(None),
            // Not a regular expression, but what people write for any path.
            Some("*") => Ok(Some(Regex::new("").expect("nothing is a regular expression"))),
            Some(text) => match Regex::new(text) {
                Ok(regex) => Ok(Some(regex)),
                Err(error) => bad(format!("{key}={text}: {error}")),
            },
        }
    }

    fn end(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => bad(format!("{key} is no field of this command")),
        }
    }
}

impl Command {
    /// Reads a line, with or without its end. Errors: what is wrong with it.
    pub(super) fn parse(line: &str) -> Result<Self> {
        let line = line.trim_end_matches(['\n', '\r', '\0']).trim();
        let Some(rest) = line.strip_prefix("lazyfs::") else {
            return bad(format!("{line:?}: expected a command such as {}", COMMANDS[0]));
        };
        let (name, rest) = rest.split_once("::").unwrap_or((rest, ""));
        let mut fields = Fields::new(rest)?;
        let command = match name {
            "clear-cache" => Self::ClearCache,
            "cache-checkpoint" => Self::Checkpoint,
            "display-cache-usage" => Self::Usage,
            "unsynced-data-report" => Self::Report,
            "help" => Self::Help,
            "crash" => Self::Fault(crash(&mut fields)?),
            "torn-op" => Self::Fault(torn_op(&mut fields)?),
            "torn-seq" => Self::Fault(torn_seq(&mut fields)?),
            _ => return bad(format!("{name:?} is no command: expected one of {}", COMMANDS.join("; "))),
        };
        fields.end()?;
        Ok(command)
    }
}

fn crash(fields: &mut Fields<'_>) -> Result<Fault> {
    let timing = match fields.take("timing") {
        Some("before") => Timing::Before,
        Some("after") => Timing::After,
        other => return bad(format!("timing={}: expected before or after", other.unwrap_or_default())),
    };
    let name = fields.take("op").unwrap_or_default();
    let Some((operation, _)) = Operation::ALL.into_iter().find(|(_, known)| *known == name) else {
        let names: Vec<&str> = Operation::ALL.iter().map(|(_, name)| *name).collect();
        return bad(format!("op={name}: expected one of {}", names.join(", ")));
    };
    let (from, to) = (fields.regex("from_rgx")?, fields.regex("to_rgx")?);
    match (&from, &to, operation.has_two_paths()) {
        (None, None, true) => bad(format!("{name}: expected from_rgx, to_rgx or both")),
        (None, _, false) => bad(format!("{name}: expected from_rgx")),
        (_, Some(_), false) => bad(format!("{name} has one path: expected no to_rgx")),
        _ => Ok(Fault::Crash { timing, operation, from, to }),
    }
}

fn torn_op(fields: &mut Fields<'_>) -> Result<Fault> {
    let parts = match (fields.number("parts")?, fields.numbers("parts_bytes")?) {
        (Some(parts), None) => Parts::Equal(parts),
        (None, Some(bytes)) => Parts::Bytes(bytes),
        _ => return bad("expected either parts=N or parts_bytes=N,…"),
    };
    let count = match &parts {
        Parts::Equal(count) => *count,
        Parts::Bytes(bytes) => bytes.len(),
    };
    let persist = fields.persist()?;
    if let Some(beyond) = persist.iter().find(|part| **part > count) {
        return bad(format!("persist={beyond}: there are {count} parts"));
    }
    let (file, occurrence, returns) = (fields.file()?, fields.occurrence()?, fields.returns()?);
    Ok(Fault::TornOp { file, parts, persist, occurrence, returns })
}

fn torn_seq(fields: &mut Fields<'_>) -> Result<Fault> {
    match fields.take("op") {
        Some("write") => {}
        other => return bad(format!("op={}: expected write", other.unwrap_or_default())),
    }
    let (persist, file) = (fields.persist()?, fields.file()?);
    Ok(Fault::TornSeq { file, persist, occurrence: fields.occurrence()?, returns: fields.returns()? })
}

/// Unsynced bytes that are on the disk after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The path.
    pub(super) file: String,
    /// Offset in the file.
    pub(super) offset: u64,
    /// The bytes.
    pub(super) bytes: Vec<u8>,
}

/// A power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crash {
    /// Whether the operation is answered before the crash.
    pub(super) returns: bool,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Writes so far: all of them (torn-op), or in this row (torn-seq).
    writes: usize,
    /// Rows of two writes and more so far.
    rows: u32,
    /// The first write of a row, until it is known whether there is a second.
    first: Option<Kept>,
}

/// The faults that wait for their operation.
#[derive(Debug, Default)]
pub(super) struct Faults {
    armed: Vec<Armed>,
    kept: Vec<Kept>,
}

impl Faults {
    /// Adds a fault. Errors: the file has one of this kind already.
    pub(super) fn arm(&mut self, fault: Fault) -> Result<()> {
        let taken = self.armed.iter().any(|armed| match (&armed.fault, &fault) {
            (Fault::TornOp { file: old, .. }, Fault::TornOp { file, .. })
            | (Fault::TornSeq { file: old, .. }, Fault::TornSeq { file, .. }) => old == file,
            _ => false,
        });
        if taken {
            return bad("the file has a fault of this kind already");
        }
        self.armed.push(Armed { fault, writes: 0, rows: 0, first: None });
        Ok(())
    }

    /// Whether no fault waits.
    pub(super) fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// Whether the power fails before or after an operation on these paths.
    pub(super) fn crashes(&self, at: Timing, done: Operation, paths: (&str, Option<&str>)) -> bool {
        self.armed.iter().any(|armed| {
            let Fault::Crash { timing, operation, from, to } = &armed.fault else { return false };
            let fits = |regex: &Option<Regex>, path: Option<&str>| {
                regex.as_ref().is_none_or(|regex| path.is_some_and(|path| regex.is_match(path)))
            };
            (*timing, *operation) == (at, done) && fits(from, Some(paths.0)) && fits(to, paths.1)
        })
    }

    /// A file is written to: returns whether the power fails with that. [`Self::take_kept`] then has what remains.
    pub(super) fn written(&mut self, path: &str, offset: u64, bytes: &[u8]) -> Option<Crash> {
        let whole = || Kept { file: path.to_owned(), offset, bytes: bytes.to_owned() };
        for armed in &mut self.armed {
            match &armed.fault {
                Fault::TornOp { file, parts, persist, occurrence, returns } if file == path => {
                    armed.writes += 1;
                    let parts =
                        (armed.writes == *occurrence as usize).then(|| parts.of(bytes.len())).flatten();
                    if let Some(parts) = parts {
                        self.kept.extend(persist.iter().map(|part| {
                            let range = parts[part - 1].clone();
                            let offset = offset + range.start as u64;
                            Kept { file: path.to_owned(), offset, bytes: bytes[range].to_owned() }
                        }));
                        return Some(Crash { returns: *returns });
                    }
                }
                Fault::TornSeq { file, persist, occurrence, returns } if file == path => {
                    armed.writes += 1;
                    armed.rows += u32::from(armed.writes == 2);
                    if armed.writes == 1 {
                        armed.first = persist.contains(&1).then(whole);
                        continue;
                    }
                    if armed.rows != *occurrence {
                        continue;
                    }
                    self.kept.extend(armed.first.take());
                    if persist.contains(&armed.writes) {
                        self.kept.push(whole());
                    }
                    if armed.writes >= *persist.last().expect("there is one") {
                        return Some(Crash { returns: *returns });
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// A file was synced, which ends a row of writes.
    pub(super) fn synced(&mut self, path: &str) {
        for armed in &mut self.armed {
            if matches!(&armed.fault, Fault::TornSeq { file, .. } if file == path) {
                (armed.writes, armed.first) = (0, None);
            }
        }
    }

    /// Remaining parts of unsynced writes, in their order.
    pub(super) fn take_kept(&mut self) -> Vec<Kept> {
        std::mem::take(&mut self.kept)
    }
}

impl Parts {
    /// The parts of a write; nothing if they are not its length together, which tears nothing.
    fn of(&self, bytes: usize) -> Option<Vec<std::ops::Range<usize>>> {
        let lengths = match self {
            Self::Equal(count) => {
                let each = bytes / count;
                (0..*count).map(|part| if part + 1 == *count { bytes - part * each } else { each }).collect()
            }
            Self::Bytes(lengths) => lengths.clone(),
        };
        let mut at = 0;
        let ranges = lengths.iter().map(|length| {
            at += length;
            at - length..at
        });
        let ranges: Vec<_> = ranges.collect();
        (at == bytes).then_some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> Fault {
        match Command::parse(line) {
            Ok(Command::Fault(fault)) => fault,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn commands_are_read_as_lazyfs_writes_them() {
        assert!(matches!(Command::parse("lazyfs::clear-cache\n"), Ok(Command::ClearCache)));
        assert!(matches!(Command::parse("lazyfs::cache-checkpoint\0"), Ok(Command::Checkpoint)));
        assert!(matches!(Command::parse("lazyfs::display-cache-usage"), Ok(Command::Usage)));
        assert!(matches!(Command::parse("lazyfs::unsynced-data-report"), Ok(Command::Report)));
        assert!(matches!(Command::parse("lazyfs::help"), Ok(Command::Help)));
        fault("lazyfs::crash::timing=after::op=write::from_rgx=*");
        fault("lazyfs::crash::timing=before::op=rename::to_rgx=CURRENT");
        fault("lazyfs::torn-op::file=/data.mdb::persist=1,3::parts=3::occurrence=5");
        fault("lazyfs::torn-seq::op=write::file=/data.mdb::persist=1,4::occurrence=2::return=False");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, expected) in [
            ("clear-cache", "expected a command such as lazyfs::clear-cache"),
            ("lazyfs::clear-cash", "is no command"),
            ("lazyfs::crash::timing=now::op=write::from_rgx=a", "timing=now: expected before or after"),
            ("lazyfs::crash::timing=after::op=mkdir::from_rgx=a", "op=mkdir: expected one of unlink"),
            ("lazyfs::crash::timing=after::op=write", "expected from_rgx"),
            ("lazyfs::crash::timing=after::op=write::from_rgx=a::to_rgx=b", "has one path"),
            ("lazyfs::crash::timing=after::op=write::from_rgx=(", "from_rgx=("),
            ("lazyfs::torn-op::file=a::persist=1", "expected either parts=N or parts_bytes"),
            ("lazyfs::torn-op::file=a::parts=2::persist=3", "there are 2 parts"),
            ("lazyfs::torn-op::file=a::parts=2::persist=0", "expected numbers from 1"),
            ("lazyfs::torn-op::parts=2::persist=1", "expected file=PATH"),
            ("lazyfs::torn-seq::op=read::file=a::persist=1", "op=read: expected write"),
            ("lazyfs::torn-seq::op=write::file=a::persist=1::colour=red", "colour is no field"),
            ("lazyfs::torn-seq::op=write::file=a::file=b::persist=1", "file is given twice"),
        ] {
            let error = Command::parse(line).expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn a_crash_waits_for_its_operation_and_path() {
        let mut faults = Faults::default();
        faults.arm(fault("lazyfs::crash::timing=before::op=fsync::from_rgx=wal$")).unwrap();
        faults.arm(fault("lazyfs::crash::timing=after::op=rename::to_rgx=CURRENT")).unwrap();
        assert!(faults.crashes(Timing::Before, Operation::Fsync, ("/db/x.wal", None)));
        assert!(!faults.crashes(Timing::After, Operation::Fsync, ("/db/x.wal", None)));
        assert!(!faults.crashes(Timing::Before, Operation::Fsync, ("/db/x.wal.old", None)));
        assert!(!faults.crashes(Timing::Before, Operation::Write, ("/db/x.wal", None)));
        assert!(faults.crashes(Timing::After, Operation::Rename, ("/tmp", Some("/CURRENT"))));
        assert!(!faults.crashes(Timing::After, Operation::Rename, ("/CURRENT", Some("/old"))));
    }

    #[test]
    fn files_are_below_the_mount() {
        let roots = [PathBuf::from("/mnt/x"), PathBuf::from("/srv/root/")];
        for (given, expected) in [("/mnt/x/a/b", "/a/b"), ("/srv/root/a", "/a"), ("/a", "/a"), ("a", "/a")] {
            match fault(&format!("lazyfs::torn-op::file={given}::parts=1::persist=1")).below(&roots) {
                Fault::TornOp { file, .. } => assert_eq!(file, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    fn kept(faults: &mut Faults) -> Vec<(u64, Vec<u8>)> {
        faults.take_kept().into_iter().map(|kept| (kept.offset, kept.bytes)).collect()
    }

    #[test]
    fn a_write_is_torn_into_parts() {
        let mut faults = Faults::default();
        faults.arm(fault("lazyfs::torn-op::file=/f::parts=3::persist=1,3::occurrence=2")).unwrap();
        faults.arm(fault("lazyfs::torn-op::file=/f::parts=3::persist=1")).unwrap_err();
        assert_eq!(faults.written("/f", 0, b"first"), None);
        assert_eq!(faults.written("/g", 0, b"other"), None);
        assert_eq!(faults.written("/f", 10, b"abcdefgh"), Some(Crash { returns: true }));
        assert_eq!(kept(&mut faults), [(10, b"ab".to_vec()), (14, b"efgh".to_vec())]);
        let mut faults = Faults::default();
        faults.arm(fault("lazyfs::torn-op::file=/f::parts_bytes=1,4::persist=2::return=false")).unwrap();
        assert_eq!(faults.written("/f", 0, b"abcde"), Some(Crash { returns: false }));
        assert_eq!(kept(&mut faults), [(1, b"bcde".to_vec())]);
        faults = Faults::default();
        faults.arm(fault("lazyfs::torn-op::file=/f::parts_bytes=1,4::persist=2")).unwrap();
        assert_eq!(faults.written("/f", 0, b"of another length"), None);
    }

    #[test]
    fn some_writes_of_a_row_stay() {
        let mut faults = Faults::default();
        faults.arm(fault("lazyfs::torn-seq::op=write::file=/f::persist=1,3::occurrence=2")).unwrap();
        assert_eq!(faults.written("/f", 0, b"a"), None);
        // One write is no row.
        faults.synced("/f");
        for write in [b"b", b"c", b"d", b"e"] {
            assert_eq!(faults.written("/f", 1, write), None);
        }
        faults.synced("/f");
        assert_eq!(faults.written("/f", 2, b"f"), None);
        assert_eq!(faults.written("/f", 3, b"g"), None);
        assert_eq!(faults.written("/f", 4, b"h"), Some(Crash { returns: true }));
        assert_eq!(kept(&mut faults), [(2, b"f".to_vec()), (4, b"h".to_vec())]);
    }

    #[test]
    fn the_first_write_alone_stays_when_the_second_comes() {
        let mut faults = Faults::default();
        faults.arm(fault("lazyfs::torn-seq::op=write::file=/f::persist=1")).unwrap();
        assert_eq!(faults.written("/f", 0, b"a"), None);
        assert_eq!(faults.written("/f", 5, b"b"), Some(Crash { returns: true }));
        assert_eq!(kept(&mut faults), [(0, b"a".to_vec())]);
    }
}
