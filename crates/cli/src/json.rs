//! JSON documents: their kinds and versions.
//!
//! Place in the data flow: every command that was asked for `--output json` hands its results over here; nothing else writes
//! JSON to standard output.
//!
//! Invariants: a document is an object whose first key is `schema`, with the kind of document and its version; a version rises when a
//! reader of the previous one could go wrong (docs/output.md), so kinds and versions are together here.

use crate::error::{Failure, Outcome};
use serde::Serialize;

/// Kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Check,
    Crash,
    CrashFiles,
    CrashFilesMutants,
    CrashFilesReplay,
    CrashMutants,
    CrashReplay,
    CrashSqlite,
    Cut,
    Devices,
    Explain,
    Files,
    Fio,
    Fsck,
    Reproduce,
    Rerun,
    Runs,
    Serve,
    ServeReady,
    Sqlite,
    Status,
    Threads,
    ThreadsReady,
    Trace,
    Volume,
    VolumeCheck,
    Waf,
}

/// Head of a document.
#[derive(Clone, Copy, Debug, Serialize)]
struct Schema {
    kind: &'static str,
    version: u32,
}

impl Kind {
    fn schema(self) -> Schema {
        let (kind, version) = match self {
            Self::Check => ("check", 1),
            Self::Crash => ("crash", 2),
            Self::CrashFiles => ("crash-files", 1),
            Self::CrashFilesMutants => ("crash-files-mutants", 1),
            Self::CrashFilesReplay => ("crash-files-replay", 1),
            Self::CrashMutants => ("crash-mutants", 1),
            Self::CrashReplay => ("crash-replay", 1),
            Self::CrashSqlite => ("crash-sqlite", 1),
            Self::Cut => ("cut", 1),
            Self::Devices => ("devices", 1),
            Self::Explain => ("explain", 1),
            Self::Files => ("files", 1),
            Self::Fio => ("fio", 1),
            Self::Fsck => ("fsck", 1),
            Self::Reproduce => ("reproduce", 1),
            Self::Rerun => ("rerun", 1),
            Self::Runs => ("runs", 1),
            Self::Serve => ("serve", 1),
            Self::ServeReady => ("serve-ready", 1),
            Self::Sqlite => ("sqlite", 1),
            Self::Status => ("status", 1),
            Self::Threads => ("threads", 1),
            Self::ThreadsReady => ("threads-ready", 1),
            Self::Trace => ("trace", 1),
            Self::Volume => ("volume", 1),
            Self::VolumeCheck => ("volume-check", 1),
            Self::Waf => ("waf", 1),
        };
        Schema { kind, version }
    }
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: Schema,
    #[serde(flatten)]
    content: &'a T,
}

/// A document over several lines, for commands that print one and end. `content` is an object.
pub(crate) fn pretty(kind: Kind, content: &impl Serialize) -> Outcome<String> {
    let document = Document { schema: kind.schema(), content };
    Ok(serde_json::to_string_pretty(&document).map_err(Failure::run)? + "\n")
}

/// A document on one line, for commands whose output is a stream or is read line by line.
pub(crate) fn line(kind: Kind, content: &impl Serialize) -> Outcome<String> {
    let document = Document { schema: kind.schema(), content };
    Ok(serde_json::to_string(&document).map_err(Failure::run)? + "\n")
}
