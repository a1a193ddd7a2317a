//! Recordings of programs, cut: the states that they may leave, compared with the promises of the calls.

use flashweir_core::Lpn;
use flashweir_crash::files::Format;
use flashweir_crash::files::setup::{BLOCKS, SEGMENT_BLOCKS, Setup};
use flashweir_crash::files::tree::{Body, Tree};
use flashweir_crash::files::volume::recover;
use flashweir_crash::recorded::{Call, Config, Directory, Recording, Step, directories, fresh};
use flashweir_fs::port::{Block, Segments};
use flashweir_fs::vfs::{Creds, Ino, Kind, RenameMode, SyncKind};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use std::rc::Rc;
use std::sync::Arc;

const CALLER: Creds = Creds::checked(0, 0);

/// Makes a recording of calls, each with the number of bytes printed before it.
fn recording(format: Format, calls: Vec<(u64, Call)>) -> Arc<Recording> {
    let before = Arc::new(fresh(format, BLOCKS, (0, 0)).unwrap());
    let step = |(printed, call): (u64, Call)| Step { shown: format!("{call:?}"), call, printed };
    Arc::new(Recording { before, blocks: BLOCKS, steps: calls.into_iter().map(step).collect(), printed: 100 })
}

fn root(format: Format) -> Ino {
    Ino(if format.is_ext4() { 2 } else { 3 })
}

fn make(format: Format, name: &str, made: u64) -> Call {
    Call::Make {
        creds: CALLER,
        dir: root(format),
        name: name.as_bytes().into(),
        kind: Kind::File,
        permissions: 0o644,
        made: Ino(made),
    }
}

fn write(ino: u64, byte: u8) -> Call {
    Call::Write { ino: Ino(ino), offset: 0, bytes: vec![byte; 5_000].into(), direct: false }
}

/// A file replaces another one, either correctly or without a sync of its content.
fn replacing(format: Format, is_synced: bool) -> Arc<Recording> {
    let root = root(format);
    let sync = |ino| Call::Sync { ino, kind: SyncKind::All };
    let rename = Call::Rename {
        creds: CALLER,
        from: (root, b"new"[..].into()),
        to: (root, b"file"[..].into()),
        mode: RenameMode::Replace,
    };
    let mut calls = vec![(0, make(format, "file", 901)), (0, write(901, b'1')), (0, sync(Ino(901)))];
    calls.extend([(0, sync(root)), (10, make(format, "new", 902)), (10, write(902, b'2'))]);
    calls.extend(is_synced.then(|| (10, sync(Ino(902)))));
    calls.extend([(10, rename), (10, sync(root))]);
    recording(format, calls)
}

fn config(format: Format) -> Config {
    Config { format, drawn: 2, states_max: 300, seed: 7, threads: 2 }
}

fn tree_of(recording: &Recording, format: Format, directory: &Directory) -> Tree {
    let contents = Arc::new(directory.contents(&recording.before));
    let setup = Setup::new(format, FlushMode::Flush, 2);
    if format.appends() {
        let content = |block: Block| contents.get(&Lpn(block.0)).cloned();
        let segments = (BLOCKS / u64::from(SEGMENT_BLOCKS)) as u32;
        return recover(&mut Rc::new(Segments::with_contents(segments, SEGMENT_BLOCKS, content)), setup)
            .unwrap();
    }
    let policy = format.device_kind().policy();
    let mut port = ModelPort::with_contents(policy, contents, BLOCKS, FlushMode::Flush);
    recover(&mut port, setup).unwrap()
}

/// Returns first byte and length of the file, and whether all its bytes are equal.
fn content(tree: &Tree) -> Option<(u8, usize, bool)> {
    match &tree.nodes[&tree.find("file")?].body {
        Body::File(bytes) => {
            let first = bytes.first().copied().unwrap_or(0);
            Some((first, bytes.len(), bytes.iter().all(|byte| *byte == first)))
        }
        _ => None,
    }
}

#[test]
fn a_file_that_is_replaced_the_right_way_is_the_old_one_or_the_new_one() {
    for format in
        [Format::EXT4, Format::EXT4_JOURNAL, Format::EXT4_DUAL, Format::F2FS, Format::F2FS_DUAL, Format::ALFS]
    {
        let recording = replacing(format, true);
        let (counts, found) = directories(&recording, &config(format), |_| true).unwrap();
        assert!(counts.recovered > 20 && counts.courses == 5, "{format:?}: {counts:?}");
        let mut seen = Vec::new();
        for directory in &found {
            let file = content(&tree_of(&recording, format, directory));
            seen.push(file);
            match (directory.most.printed, file) {
                (100, Some((b'2', 5_000, true))) | (10, Some((b'1' | b'2', 5_000, true))) | (0, _) => {}
                (printed, file) => panic!("{format:?}: {file:?} after {printed} were printed: {directory:?}"),
            }
        }
        let has = |byte| seen.contains(&Some((byte, 5_000, true)));
        assert!(seen.contains(&None) && has(b'1') && has(b'2'), "{format:?}: {seen:?}");
    }
}

#[test]
fn a_missing_sync_before_a_rename_is_found() {
    for format in [Format::EXT4, Format::F2FS, Format::ALFS] {
        let recording = replacing(format, false);
        let (_, found) = directories(&recording, &config(format), |_| true).unwrap();
        let is_lost = |directory: &&Directory| {
            let file = content(&tree_of(&recording, format, directory));
            directory.most.printed == 100 && file != Some((b'2', 5_000, true))
        };
        let lost = found.iter().filter(is_lost).count();
        assert!(lost > 0, "{format:?}: {} directories", found.len());
    }
}

#[test]
fn what_is_found_does_not_depend_on_the_number_of_threads() {
    let recording = replacing(Format::EXT4, false);
    let of = |threads| {
        let config = Config { threads, ..config(Format::EXT4) };
        let (counts, found) = directories(&recording, &config, |_| true).unwrap();
        let found: Vec<_> = found.into_iter().map(|found| (found.digest, found.least, found.most)).collect();
        (counts, found)
    };
    assert_eq!(of(1), of(3));
}

#[test]
fn a_file_that_is_in_use_lives_without_a_name() {
    for format in [Format::EXT4, Format::F2FS, Format::ALFS] {
        let root = root(format);
        let remove = Call::Remove { creds: CALLER, dir: root, name: b"gone"[..].into(), of_dir: false };
        // The inode number is reused, as file systems do.
        let again = [(1, make(format, "file", 901)), (1, write(901, b'7'))];
        let mut calls = vec![(0, make(format, "gone", 901)), (0, write(901, b'1')), (0, remove)];
        calls.extend([(0, write(901, b'2')), (0, Call::Forget { ino: Ino(901) })]);
        calls.extend(again);
        calls.push((1, Call::Sync { ino: Ino(901), kind: SyncKind::All }));
        let recording = recording(format, calls);
        let (_, found) = directories(&recording, &config(format), |_| true).unwrap();
        let last = found.iter().find(|found| found.most.printed == 100).unwrap();
        assert_eq!(content(&tree_of(&recording, format, last)), Some((b'7', 5_000, true)), "{format:?}");
    }
}

#[test]
fn calls_that_cannot_be_made_again_are_said() {
    let calls = vec![(0, make(Format::EXT4, "file", 901)), (0, make(Format::EXT4, "file", 902))];
    let wrong = directories(&recording(Format::EXT4, calls), &config(Format::EXT4), |_| true).unwrap_err();
    assert!(
        matches!(&wrong, flashweir_crash::recorded::Wrong::Again(why) if why.contains("call 2")),
        "{wrong:?}"
    );
}
