//! Recordings of programs, cut: the states that they may leave, compared with the promises of the calls.

use flashweir_core::Lpn;
use flashweir_crash::files::Format;
use flashweir_crash::files::setup::{BLOCKS, SEGMENT_BLOCKS, Setup};
use flashweir_crash::files::tree::{Body, Tree};
use flashweir_crash::files::volume::recover;
use flashweir_crash::recorded::{Call, Config, Directory, Recording, Step, directories, fresh};
use flashweir_fs::port::{Block, Segments};
use flashweir_fs::vfs::{Creds, Ino, Kind, RenameMode, SetAttr, SyncKind, Timestamp};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use std::rc::Rc;
use std::sync::Arc;

const CALLER: Creds = Creds::checked(0, 0);

/// Makes a recording of calls, each with the number of bytes printed before it.
fn recording(format: Format, calls: Vec<(u64, Call)>) -> Arc<Recording> {
    let before = Arc::new(fresh(format, BLOCKS, (0, 0)).unwrap());
    let step = |(printed, call): (u64, Call)| Step {
        shown: format!("{call:?}"),
        call,
        printed,
        printed_after: printed,
    };
    let steps = calls.into_iter().map(step).collect();
    Arc::new(Recording { before, blocks: BLOCKS, share_blocks_max: 64, steps, printed: 100 })
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

fn sync(ino: Ino) -> Call {
    Call::Sync { ino, kind: SyncKind::All, releases: true }
}

/// A file replaces another one, either correctly or without a sync of its content.
fn replacing(format: Format, is_synced: bool) -> Arc<Recording> {
    let root = root(format);
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

fn content(tree: &Tree) -> Option<(u8, usize, bool)> {
    content_of(tree, "file")
}

/// Returns first byte and length of a file, and whether all its bytes are equal.
fn content_of(tree: &Tree, name: &str) -> Option<(u8, usize, bool)> {
    match &tree.nodes[&tree.find(name)?].body {
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
        calls.push((1, sync(Ino(901))));
        let recording = recording(format, calls);
        let (_, found) = directories(&recording, &config(format), |_| true).unwrap();
        let last = found.iter().find(|found| found.most.printed == 100).unwrap();
        assert_eq!(content(&tree_of(&recording, format, last)), Some((b'7', 5_000, true)), "{format:?}");
    }
}

/// Formats with atomic files: one that journals data, one that shares them out of the journal, and two that share them from a
/// place of their own.
const WITH_SETS: [Format; 4] = [Format::EXT4_JOURNAL, Format::EXT4_SDJ, Format::EXT4_SOJ, Format::F2FS_SSC];

/// Two files of two pages, durable with '0' and '1' in them, and changed by `calls`.
fn of_two_files(format: Format, calls: impl IntoIterator<Item = (u64, Call)>) -> Arc<Recording> {
    let files = [("left", 901, b'0'), ("right", 902, b'1')];
    let made = files.into_iter().flat_map(|(name, ino, byte)| {
        [make(format, name, ino), write(ino, byte), sync(Ino(ino)), sync(root(format))]
    });
    recording(format, made.map(|call| (0, call)).chain(calls).collect())
}

/// The first bytes of both files in each directory that may be there once both were made.
fn both_in_each(recording: &Arc<Recording>, format: Format) -> Vec<(u64, [u8; 2])> {
    let (_, found) = directories(recording, &config(format), |_| true).unwrap();
    let made = found.iter().filter(|directory| directory.most.printed > 0);
    let of = |directory: &Directory| {
        let tree = tree_of(recording, format, directory);
        ["left", "right"].map(|name| match content_of(&tree, name) {
            Some((byte, 5_000, true)) => byte,
            torn => panic!("{format:?}: {name} has {torn:?}: {:?}", directory.most),
        })
    };
    made.map(|directory| (directory.most.printed, of(directory))).collect()
}

#[test]
fn files_that_are_committed_together_change_together() {
    for format in WITH_SETS {
        let begin = [901, 902].map(|ino| Call::BeginAtomic { open: ino, ino: Ino(ino) });
        let written = |byte| [write(901, byte), write(902, byte)];
        let commit = Call::SyncSet { opens: [901, 902].into(), kind: SyncKind::Data };
        let abort = [901, 902].map(|open| Call::Abort { open });
        let end = [901, 902].map(|open| Call::EndAtomic { open });
        let first = begin.into_iter().chain(written(b'2')).chain([commit.clone()]).map(|call| (10, call));
        let second = written(b'3').into_iter().chain(abort).chain(written(b'4')).chain([commit]).chain(end);
        let recording = of_two_files(format, first.chain(second.map(|call| (20, call))));
        let seen = both_in_each(&recording, format);
        for (printed, bytes) in &seen {
            let allowed: &[[u8; 2]] = match printed {
                0..20 => &[*b"01", *b"22"],
                20..100 => &[*b"22", *b"44"],
                _ => &[*b"44"],
            };
            assert!(allowed.contains(bytes), "{format:?}: {seen:?}");
        }
        for wanted in [*b"01", *b"22", *b"44"] {
            assert!(seen.iter().any(|(_, bytes)| *bytes == wanted), "{format:?}: {seen:?}");
        }
    }
}

#[test]
fn a_sync_beside_a_commit_that_is_to_come_releases_nothing() {
    for format in WITH_SETS {
        let begin = Call::BeginAtomic { open: 1, ino: Ino(901) };
        let held = Call::Sync { ino: Ino(901), kind: SyncKind::All, releases: false };
        let calls = [begin.clone(), write(901, b'2'), held, sync(root(format))];
        let seen = both_in_each(&of_two_files(format, calls.map(|call| (10, call))), format);
        assert!(seen.iter().all(|(_, bytes)| bytes == b"01"), "{format:?}: {seen:?}");
        let calls = [begin, write(901, b'2'), Call::Release { ino: Ino(901) }, sync(Ino(901))];
        let seen = both_in_each(&of_two_files(format, calls.map(|call| (10, call))), format);
        assert!(seen.contains(&(100, *b"21")), "{format:?}: {seen:?}");
    }
}

#[test]
fn files_that_exchange_their_contents_do_so_at_once() {
    for format in WITH_SETS {
        let exchange = Call::Exchange { one: (Ino(901), 0), other: (Ino(902), 0), bytes: 5_000 };
        let calls = [exchange, sync(Ino(902))];
        let seen = both_in_each(&of_two_files(format, calls.map(|call| (10, call))), format);
        assert!(seen.iter().all(|(_, bytes)| [*b"01", *b"10"].contains(bytes)), "{format:?}: {seen:?}");
        assert!(seen.contains(&(100, *b"10")), "{format:?}: {seen:?}");
    }
}

#[test]
fn a_copy_is_there_once_it_is_synced() {
    for format in [Format::EXT4_SDJ, Format::EXT4_SOJ, Format::F2FS_SSC] {
        let calls = [Call::Copy { from: (Ino(901), 0), to: (Ino(902), 0), bytes: 5_000 }, sync(Ino(902))];
        let recording = of_two_files(format, calls.map(|call| (10, call)));
        let (_, found) = directories(&recording, &config(format), |_| true).unwrap();
        let last = found.iter().find(|found| found.most.printed == 100).unwrap();
        let copy = content_of(&tree_of(&recording, format, last), "right");
        assert_eq!(copy, Some((b'0', 5_000, true)), "{format:?}");
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

/// A file whose time, owner or size is all that a call changes: what is durable after the fsync is another directory than before. Found
/// here: `touch -d` and `chown` were judged on the image from before them, with what the program had printed after their fsync; names that
/// are no UTF-8, and files of more than 256 MiB, ended the check.
#[test]
fn regression_owners_times_and_sizes_make_directories() {
    let year_2020 = Timestamp { seconds: 1_577_836_800, nanos: 0 };
    let long = SetAttr { size: Some(1 << 30), ..SetAttr::default() };
    for changes in [
        SetAttr { mtime: Some(year_2020), ..SetAttr::default() },
        SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() },
        long,
    ] {
        let root = root(Format::EXT4);
        let mut calls = vec![(0, make(Format::EXT4, "file", 901)), (0, sync(Ino(901))), (0, sync(root))];
        let Call::Make { creds, dir, kind, permissions, .. } = make(Format::EXT4, "", 0) else {
            unreachable!()
        };
        let name = b"caf\xe9"[..].into();
        calls.push((0, Call::Make { creds, dir, name, kind, permissions, made: Ino(902) }));
        calls.extend([(0, sync(Ino(902))), (0, sync(root))]);
        calls.extend([(0, Call::SetAttr { ino: Ino(901), changes }), (10, sync(Ino(901)))]);
        let (_, found) =
            directories(&recording(Format::EXT4, calls), &config(Format::EXT4), |_| true).unwrap();
        let after = found.iter().filter(|directory| directory.most.printed == 100).count();
        assert_eq!(after, 1, "{changes:?}: {found:?}");
        assert!(found.iter().any(|directory| directory.most.printed == 10), "{changes:?}");
    }
}

/// Threads print while another one's call is under way: what was printed when that had ended is promised from then on.
#[test]
fn what_threads_print_counts_when_a_call_has_ended() {
    let format = Format::EXT4;
    let mut calls = vec![(0, make(format, "file", 901)), (0, write(901, b'1')), (0, sync(Ino(901)))];
    calls.extend([(0, make(format, "other", 902)), (0, sync(root(format)))]);
    let mut recording = Recording::clone(&recording(format, calls));
    recording.steps[2].printed_after = 60;
    let recording = Arc::new(recording);
    let (_, found) = directories(&recording, &config(format), |_| true).unwrap();
    let tree = |directory: &Directory| tree_of(&recording, format, directory);
    let before = found.iter().filter(|directory| tree(directory).find("other").is_none());
    assert_eq!(before.map(|directory| directory.most.printed).max(), Some(60));
}

/// Of more undecided blocks than there are states at a cut, random subsets are tried, too.
#[test]
fn regression_many_blocks_are_lost_in_any_combination() {
    const PAGES: usize = 400;
    let format = Format::EXT4;
    let all = |byte| Call::Write {
        ino: Ino(901),
        offset: 0,
        bytes: vec![byte; PAGES * 4096].into(),
        direct: false,
    };
    let calls = [make(format, "file", 901), all(b'1'), sync(Ino(901)), all(b'2'), sync(Ino(901))];
    let recording = recording(format, calls.map(|call| (0, call)).into());
    let (_, found) = directories(&recording, &Config { drawn: 0, ..config(format) }, |_| true).unwrap();
    let changes = found.iter().map(|directory| match tree_of(&recording, format, directory) {
        tree if tree.find("file").is_none() => 0,
        tree => match &tree.nodes[&tree.find("file").unwrap()].body {
            Body::File(bytes) => {
                bytes.chunks(4096).collect::<Vec<_>>().windows(2).filter(|two| two[0] != two[1]).count()
            }
            _ => 0,
        },
    });
    let most = changes.max();
    assert!(most > Some(PAGES / 4), "{most:?} of {} directories", found.len());
}
