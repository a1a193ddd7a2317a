//! The crash laboratory of file systems: the bugs that it must find, and correct behaviour in which it must find none.

use flashweir_contract::{Exploration, LogPos};
use flashweir_crash::files::bug::bug_named;
use flashweir_crash::files::case::Case;
use flashweir_crash::files::explorer::{self, run};
use flashweir_crash::files::history::Violation;
use flashweir_crash::files::ops::content;
use flashweir_crash::files::setup::Setup;
use flashweir_crash::files::tree::{Body, Node, Tree};
use flashweir_crash::files::volume::{Base, recover};
use flashweir_crash::files::{
    Bug, Counts, Effort, Fault, FileCrashConfig, Format, On, Ops, Sequences, Token, ace, explore, hunt,
    replay,
};
use flashweir_device::PlantedBug as DeviceBug;
use flashweir_sim::stack::FlushMode;
use std::sync::Arc;

fn config(sequences: Sequences, count: u64) -> FileCrashConfig {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let effort = Effort { states_max: 40, exercise_every: 16, ..Effort::default() };
    FileCrashConfig { sequences, count: Some(count), seed, effort, ..FileCrashConfig::default() }
}

/// Asserts that no fault is found in `count` sequences, and that more than `least` images are recovered.
fn finds_nothing(format: Format, on: On, (sequences, count): (Sequences, u64), least: u64) {
    let config = FileCrashConfig { format, on, ..config(sequences, count) };
    let report = explore(&config, None, |_| true).unwrap();
    assert_eq!(report.violations, [], "{format:?} {on:?}");
    assert!(report.totals.recovered > least, "{report:?}");
}

/// Asserts that a bug is found in `count` sequences, is reproduced by its token, and is absent without it.
fn is_found_out(format: Format, name: &str, (sequences, count): (Sequences, u64)) {
    let planted = Some(bug_named(format, name).unwrap());
    let config = FileCrashConfig { format, seed: 1, planted, minimise: false, ..config(sequences, count) };
    let report = explore(&config, None, |_| true).unwrap();
    let [violation] = &report.violations[..] else { panic!("{format:?} {name}: {report:?}") };
    let token: Token = violation.token.parse().unwrap();
    assert!(replay(&token).unwrap().is_some(), "{token}");
    assert!(!matches!(replay(&Token { planted: None, ..token }), Ok(Some(_))), "{name}");
}

/// One sequence on a volume, with nothing planted.
fn case<'a>(base: &'a Base, on: On, mode: FlushMode, ops: &'a Ops) -> Case<'a> {
    Case { on, base, mode, planted: None, ops, effort: Effort::default(), outside: None }
}

/// Asserts that no fault is found after one sequence on a disk that answers late.
fn finds_nothing_after(base: &Base, words: &str, least: u64) {
    let ops = words.parse().unwrap();
    let case = case(base, On::Late, FlushMode::RangeFlush, &ops);
    let (counts, _, found) = explorer::explore(&case);
    assert_eq!(found, None, "{:?}", base.format);
    assert!(counts.recovered > least, "{counts:?}");
}

#[test]
fn file_cuts_keep_promises() {
    for (sequences, mode) in [
        (Sequences::Random, FlushMode::RangeFlush),
        (Sequences::Random, FlushMode::Flush),
        (Sequences::Seq2, FlushMode::RangeFlush),
    ] {
        let config = FileCrashConfig { mode, ..config(sequences, 8) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{sequences:?}, {mode:?}");
        assert!(report.totals.recovered > 150 && report.totals.nested > 10, "{report:?}");
    }
}

/// Promises hold on ext4 with ordered data.
#[test]
fn file_cuts_of_ext4_keep_promises() {
    let effort = Effort { states_max: 40, nested_every: 8, ..Effort::default() };
    for (sequences, count) in [(Sequences::Seq1, 24), (Sequences::Seq2, 12), (Sequences::Random, 8)] {
        let config = FileCrashConfig { format: Format::EXT4, effort, ..config(sequences, count) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{sequences:?}");
        assert!(report.totals.recovered > 150 && report.totals.nested > 10, "{report:?}");
    }
}

/// Promises hold where blocks change owners, also while several requests are in flight.
#[test]
fn file_cuts_keep_promises_where_blocks_are_used_again() {
    for (format, on) in [
        (Format::F2FS, On::Model),
        (Format::F2FS, On::Late),
        (Format::EXT4, On::Model),
        (Format::EXT4, On::Late),
    ] {
        finds_nothing(format, on, (Sequences::Reuse, 4), 60);
    }
}

/// Promises hold for files created without a name, and for access control lists with the modes that they change.
#[test]
fn file_cuts_keep_promises_of_nameless_files_and_lists() {
    for (format, on) in [
        (Format::F2FS, On::Model),
        (Format::F2FS_DUAL, On::Late),
        (Format::EXT4, On::Model),
        (Format::EXT4_DUAL, On::Late),
        (Format::EXT4_JOURNAL, On::Model),
    ] {
        finds_nothing(format, on, (Sequences::Nameless, 12), 100);
    }
}

/// Promises hold for files of so many extents that their maps have nodes below the inode.
#[test]
fn file_cuts_keep_promises_of_files_in_parts() {
    for (format, on) in [
        (Format::F2FS, On::Late),
        (Format::EXT4, On::Model),
        (Format::EXT4, On::Late),
        (Format::EXT4_DUAL, On::Late),
    ] {
        finds_nothing(format, on, (Sequences::Trees, 4), 40);
    }
}

/// File systems that forget orphans are detected.
#[test]
fn nameless_files_that_are_forgotten_are_found_out() {
    for (format, name) in [(Format::F2FS, "forgotten-orphans"), (Format::EXT4, "no-orphans")] {
        is_found_out(format, name, (Sequences::Nameless, 40));
    }
}

/// Violations of the journal's protection against blocks that change owners, and against late data, are detected.
#[test]
fn ext4_that_forgets_who_had_a_block_is_found_out() {
    for (name, on) in
        [("no-revoke", On::Model), ("early-discard-of-freed", On::Model), ("unordered-data", On::Late)]
    {
        let planted = Some(bug_named(Format::EXT4, name).unwrap());
        let config = FileCrashConfig {
            format: Format::EXT4,
            on,
            seed: 1,
            planted,
            minimise: false,
            ..config(Sequences::Reuse, 40)
        };
        let report = explore(&config, None, |_| true).unwrap();
        let [violation] = &report.violations[..] else { panic!("{name}: {report:?}") };
        let token: Token = violation.token.parse().unwrap();
        assert!(replay(&token).unwrap().is_some(), "{token}");
        assert!(!matches!(replay(&Token { planted: None, ..token }), Ok(Some(_))), "{name}");
    }
}

/// With journalled data each write is seen wholly or not at all, and dual-mode journaling keeps the order of barriers.
#[test]
fn file_cuts_of_ext4_keep_versions_and_order() {
    for (format, on, sequences) in [
        (Format::EXT4_JOURNAL, On::Model, Sequences::Seq2),
        (Format::EXT4_JOURNAL, On::Late, Sequences::Reuse),
        (Format::EXT4_DUAL, On::Model, Sequences::Seq2),
        (Format::EXT4_DUAL, On::Late, Sequences::Random),
        (Format::EXT4_DUAL, On::Late, Sequences::Reuse),
    ] {
        let config = FileCrashConfig { format, on, ..config(sequences, 8) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{format:?} {on:?} {sequences:?}");
        assert!(report.totals.recovered > 150, "{report:?}");
    }
}

/// Checkpoints of ext4 and cleaning of F2FS by SHARE keep the promises, on any device with that command and on ours.
#[test]
fn file_cuts_keep_promises_with_share() {
    for (format, on, sequences) in [
        (Format::EXT4_SOJ, On::Model, Sequences::Seq2),
        (Format::EXT4_SOJ, On::Late, Sequences::Reuse),
        (Format::EXT4_SDJ, On::Model, Sequences::Reuse),
        (Format::EXT4_SDJ, On::Late, Sequences::Random),
        (Format::EXT4_SDJ_DUAL, On::Model, Sequences::Seq2),
        (Format::EXT4_SDJ_DUAL, On::Late, Sequences::Random),
        (Format::EXT4_SOJ, On::Device, Sequences::Random),
        (Format::EXT4_SDJ_DUAL, On::Device, Sequences::Random),
        (Format::F2FS_SSC, On::Late, Sequences::Cleaning),
    ] {
        let config = FileCrashConfig { count: Some(3), ..with_share(format, on, sequences) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{format:?} {on:?} {sequences:?}");
        assert!(report.totals.recovered > 10, "{report:?}");
    }
}

fn with_share(format: Format, on: On, sequences: Sequences) -> FileCrashConfig {
    let count = if on == On::Device || sequences == Sequences::Cleaning { 3 } else { 8 };
    let states_max = if sequences == Sequences::Cleaning { 8 } else { 30 };
    let effort = Effort { states_max, nested_every: 4, ..Effort::default() };
    FileCrashConfig { format, on, effort, ..config(sequences, count) }
}

/// The test above tries what it is about: the file systems share blocks. Only these sequences are known to do so; others that are drawn
/// may be too short for a checkpoint, or need no cleaning.
#[test]
fn sequences_of_the_first_seed_share_blocks() {
    for (format, on, sequences) in [
        (Format::EXT4_SOJ, On::Late, Sequences::Reuse),
        (Format::EXT4_SDJ, On::Model, Sequences::Reuse),
        (Format::EXT4_SDJ_DUAL, On::Model, Sequences::Seq2),
        (Format::F2FS_SSC, On::Late, Sequences::Cleaning),
    ] {
        let config = FileCrashConfig { seed: 1, ..with_share(format, on, sequences) };
        let report = explore(&config, None, |_| true).unwrap();
        assert!(report.totals.shared_blocks > 0, "{format:?} {on:?} {sequences:?}: {report:?}");
    }
}

/// Two-sided: old data under new attributes can be seen where data are ordered, with SHARE or without, and cannot where they are
/// journalled (share §9.10).
#[test]
fn litmus_old_data_under_new_metadata() {
    let ops: Ops =
        "write:A/foo:0+9000,fsync:A/foo,write:A/foo:0+9000,chmod:A/foo:600,write:B/bar:0+100,fsync:B/bar"
            .parse()
            .unwrap();
    for (format, expected) in [
        (Format::EXT4, true),
        (Format::EXT4_SOJ, true),
        (Format::EXT4_JOURNAL, false),
        (Format::EXT4_SDJ, false),
        (Format::EXT4_SDJ_DUAL, false),
    ] {
        let base = Base::make(format, 6).unwrap();
        let case = case(&base, On::Model, FlushMode::Flush, &ops);
        let mut ran = run(&case).unwrap();
        ran.history.has_versions = true;
        let exploration =
            Exploration { exhaustive_atoms_max: 4, pairs: false, random_draws: 16, ..Exploration::default() };
        let (mut states, mut is_seen) = (0, false);
        for cut in (0..ran.end).step_by(3).chain([ran.end]) {
            let woken = ran.port.after_cut(LogPos(cut), exploration, |port| {
                states += 1;
                let tree =
                    recover(&mut port.clone(), Setup::new(format, FlushMode::Flush, base.seed)).unwrap();
                match ran.history.judge(cut.into(), &tree) {
                    Ok(()) => Ok(()),
                    Err(Violation::Version(_)) => {
                        is_seen = true;
                        Ok(())
                    }
                    Err(other) => Err(other),
                }
            });
            woken.unwrap_or_else(|violation| panic!("{format:?} at {cut}: {violation:?}"));
        }
        assert_eq!((is_seen, states > 50), (expected, true), "{format:?}: {states} states");
    }
}

/// What atomic files withhold is there as a whole or not at all, and a set with one file in another transaction is found out.
#[test]
fn file_cuts_keep_sets_whole() {
    for (format, on, count) in [
        (Format::EXT4_JOURNAL, On::Model, 5),
        (Format::EXT4_SDJ, On::Late, 5),
        (Format::EXT4_SDJ_DUAL, On::Late, 5),
        (Format::EXT4_SDJ_DUAL, On::Device, 2),
        (Format::EXT4_SOJ, On::Late, 4),
        (Format::F2FS_SSC, On::Late, 4),
        (Format::F2FS_SSC_DUAL, On::Late, 4),
    ] {
        finds_nothing(format, on, (Sequences::Sets, count), 20);
    }
    for format in [Format::EXT4_SDJ, Format::EXT4_SDJ_DUAL] {
        is_found_out(format, "left-out-of-set", (Sequences::Sets, 40));
    }
    let refused = FileCrashConfig { format: Format::EXT4, ..config(Sequences::Sets, 1) };
    let refused = explore(&refused, None, |_| true).unwrap_err();
    assert_eq!(
        refused,
        concat!(
            "sets on ext4: expected a file system that journals data or has SHARE: ",
            "ext4-journal, ext4-soj, ext4-sdj, ext4-sdj-dual, f2fs-ssc, f2fs-ssc-dual"
        )
    );
}

/// Copies by SHARE are durable as written data are, and shared blocks go their own ways afterwards.
#[test]
fn file_cuts_keep_promises_of_copies() {
    for (format, on, count) in [
        (Format::EXT4_SOJ, On::Model, 4),
        (Format::EXT4_SOJ, On::Late, 4),
        (Format::F2FS_SSC, On::Late, 4),
        (Format::F2FS_SSC_DUAL, On::Late, 4),
        (Format::F2FS_SSC, On::Device, 2),
        (Format::EXT4, On::Model, 4),
    ] {
        finds_nothing(format, on, (Sequences::Copies, count), 12);
    }
}

/// Two-sided: a program's transaction over two files that another file's fsync, or the commit every 5 s, cuts in two can be seen by
/// half with SDJ, and cannot with SADJ (share §7.3).
#[test]
fn litmus_chopped_transaction() {
    for format in [Format::EXT4_SDJ, Format::EXT4_SDJ_DUAL] {
        for between in ["write:A/old:0+100,fsync:A/old", "writeback"] {
            for is_atomic in [false, true] {
                let (open, commit) = match is_atomic {
                    true => ("atomic:A/foo,atomic:B/bar,", "syncv"),
                    false => ("", "fsync:A/foo,fsync:B/bar"),
                };
                let words = format!(
                    "write:A/foo:0+9000,write:B/bar:0+9000,sync,{open}write:A/foo:0+9000,{between},write:B/bar:0+9000,{commit}"
                );
                let is_seen = is_chopped(format, &words.parse().unwrap());
                assert_eq!(is_seen, !is_atomic, "{format:?}: {words}");
            }
        }
    }
}

/// Whether after some cut one of the two files is as the last write left it, and the other one as before.
fn is_chopped(format: Format, ops: &Ops) -> bool {
    let base = Base::make(format, 6).unwrap();
    let case = case(&base, On::Model, FlushMode::Flush, ops);
    let ran = run(&case).unwrap();
    let last = |path: &str| {
        let wrote =
            |op: &flashweir_crash::files::ops::Op| op.to_string().starts_with(&format!("write:{path}:"));
        let number = ops.0.iter().rposition(wrote).unwrap();
        content(number, 0, 9_000)
    };
    let newest = ["A/foo", "B/bar"].map(|path| (path, last(path)));
    let exploration =
        Exploration { exhaustive_atoms_max: 4, pairs: false, random_draws: 16, ..Exploration::default() };
    let (mut states, mut is_seen) = (0, false);
    for cut in (0..ran.end).step_by(2).chain([ran.end]) {
        let woken = ran.port.after_cut(LogPos(cut), exploration, |port| {
            states += 1;
            let tree = recover(&mut port.clone(), Setup::new(format, FlushMode::Flush, base.seed)).unwrap();
            let is_new = newest.each_ref().map(|(path, bytes)| {
                let node = tree.find(path).and_then(|node| tree.nodes.get(&node));
                matches!(node.map(|node| &node.body), Some(Body::File(found)) if **found == bytes[..])
            });
            is_seen |= is_new[0] != is_new[1];
            ran.history.judge(cut.into(), &tree)
        });
        woken.unwrap_or_else(|violation| panic!("{format:?} at {cut}: {violation:?}"));
    }
    assert!(states > 30, "{states} states");
    is_seen
}

/// Found by `weir crash files --format ext4-sdj-dual`: pages of one write were handed to the journal in two calls, because one of them
/// was still on its way from an earlier fbarrier.
#[test]
fn regression_pages_of_one_write_are_in_one_transaction() {
    let words = "write:A/old:0+5000,fbarrier:A/old,write:A/old:4096+20000,sync";
    finds_nothing_after(&Base::make(Format::EXT4_SDJ_DUAL, 154).unwrap(), words, 10);
}

/// Bugs of checkpoints and cleaning by SHARE, each with the sequences that reveal it.
#[test]
fn wrong_uses_of_share_are_found_out() {
    for (format, name, sequences) in [
        // A victim is discarded before the checkpoint that names the new places.
        (Format::F2FS_SSC, "early-discard", Sequences::Cleaning),
        (Format::EXT4_SOJ, "pair-after-revoke", Sequences::Reuse),
        (Format::EXT4_SOJ, "older-pair", Sequences::Random),
        (Format::EXT4_SOJ, "tail-before-share", Sequences::Random),
        (Format::EXT4_SDJ_DUAL, "forgotten-conflicts", Sequences::Random),
    ] {
        is_found_out(format, name, (sequences, 60));
    }
}

/// F2FS that orders instead of waiting keeps its promises, and the order of barriers.
#[test]
fn file_cuts_of_f2fs_keep_order() {
    for (on, sequences, mode) in [
        (On::Model, Sequences::Seq1, FlushMode::Flush),
        (On::Model, Sequences::Seq2, FlushMode::RangeFlush),
        (On::Late, Sequences::Random, FlushMode::Flush),
        (On::Late, Sequences::Reuse, FlushMode::RangeFlush),
    ] {
        let count = if sequences == Sequences::Seq1 { 24 } else { 8 };
        let config = FileCrashConfig { format: Format::F2FS_DUAL, on, mode, ..config(sequences, count) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{on:?} {sequences:?}");
        assert!(report.totals.recovered > 100, "{report:?}");
    }
}

/// The loss of each order that F2FS relies on in this mode is detected.
#[test]
fn f2fs_that_loses_an_order_is_found_out() {
    for name in [
        "no-metadata-flush",
        "no-data-flush",
        "orderless-data",
        "open-nodes",
        "lost-barrier",
        "forgotten-moves",
    ] {
        let format = Format::F2FS_DUAL;
        is_found_out(format, name, (Sequences::Seq1, 60));
    }
}

/// Bugs of the journal that need few sequences, each with the sequences that reveal it.
#[test]
fn ext4_whose_journal_has_bugs_is_found_out() {
    for (format, name, sequences) in [
        (Format::EXT4, "no-barriers", Sequences::Seq1),
        (Format::EXT4, "trusted-old-commits", Sequences::Seq1),
        (Format::EXT4_JOURNAL, "split-writes", Sequences::Seq1),
        (Format::EXT4_DUAL, "lazy-commit", Sequences::Seq1),
        (Format::EXT4_DUAL, "no-flush-before-commit", Sequences::Seq1),
        (Format::EXT4_DUAL, "unordered-data", Sequences::Seq1),
    ] {
        is_found_out(format, name, (sequences, 60));
    }
}

/// Found by `weir crash files`: a commit came between a direct write beyond the end of a file and the update of its
/// size.
#[test]
fn regression_a_direct_write_is_not_behind_the_end_of_its_file() {
    for format in [Format::EXT4, Format::EXT4_DUAL, Format::EXT4_JOURNAL] {
        for seed in [24, 25] {
            let base = Base::make(format, seed).unwrap();
            let words = "write:A/foo:8000+20000,sync&,unlink:A/foo,creat:A/foo,direct:A/foo:4096+4096";
            finds_nothing_after(&base, words, 20);
        }
    }
}

/// A file is cut in a page whose end was punched before, and is zeros in memory only: what was there came back when the file was longer again.
#[test]
fn regression_what_was_punched_and_cut_off_stays_zeros() {
    for format in [Format::F2FS, Format::EXT4, Format::EXT4_DUAL, Format::EXT4_JOURNAL] {
        let base = Base::make(format, 3).unwrap();
        let words = "write:A/foo:0+4096,sync,punch:A/foo:100+3996,truncate:A/foo:100,truncate:A/foo:5000,creat:A/bar,fsync:A/bar,sync";
        finds_nothing_after(&base, words, 10);
    }
}

/// Found by sqlite3 on a mount: fdatasync of a directory made nothing durable, so the journal that sqlite3 had deleted
/// came back.
#[test]
fn regression_fdatasync_of_a_directory_keeps_its_names() {
    for format in [Format::F2FS, Format::EXT4, Format::EXT4_DUAL, Format::EXT4_JOURNAL] {
        let base = Base::make(format, 3).unwrap();
        let words =
            "write:A/foo:0+100,fsync:A/foo,fsync:A,unlink:A/foo,fdatasync:A,write:B/bar:0+100,fsync:B/bar";
        finds_nothing_after(&base, words, 10);
    }
}

/// Found by MariaDB on a mount: the first write to an allocated block changes only the extent tree, and a change below
/// the tree's root was not noticed by any sync, so the block was zeros again.
#[test]
fn regression_a_sync_commits_what_makes_a_block_written() {
    for format in [Format::EXT4, Format::EXT4_DUAL] {
        let base = Base::make(format, 5).unwrap();
        // Every other block, so that the extents do not fit in the inode.
        let apart: Vec<String> = (0..8).map(|at| format!("direct:A/foo:{}+4096", 8192 * at)).collect();
        let words = format!(
            "creat:A/foo,falloc:A/foo:0+65536,{},sync,direct:A/foo:12288+4096,fdatasync:A/foo,\
             direct:A/foo:28672+4096,fsync:A/foo",
            apart.join(",")
        );
        finds_nothing_after(&base, &words, 10);
    }
}

/// Found by `weir crash files --sequences tasks`: an fbarrier passed its pages to the task that waits for the answer,
/// under the number of another batch, so a sync that waited for the first batch assumed that a page was written
/// although it had changed meanwhile.
#[test]
fn regression_a_sync_waits_for_pages_that_a_barrier_has_under_way() {
    // The first fbarrier makes the second one wait for the answer to its own transaction.
    let words = "write:A/foo:0+100,fbarrier:A/foo,write:A/bar:0+9000,fbarrier:A/bar&,write:A/bar:0+4096,sync";
    for (format, seed) in [(Format::EXT4_DUAL, 8), (Format::EXT4_DUAL, 9), (Format::F2FS_DUAL, 8)] {
        finds_nothing_after(&Base::make(format, seed).unwrap(), words, 10);
    }
}

/// Found by the test above: a write beside an fbarrier was written out with the fbarrier's pages, and was judged as if
/// it came after the fbarrier.
#[test]
fn regression_what_runs_beside_a_barrier_is_not_later_than_it() {
    let words = "write:A/bar:0+100,fbarrier:A/bar,write:A/bar:0+9000,fbarrier:A/bar&,write:A/bar:0+4096,sync";
    finds_nothing_after(&Base::make(Format::EXT4_DUAL, 7).unwrap(), words, 10);
}

/// Found by `weir crash files --sequences tasks`: a sync beside an fdatasync began to write a page again while the
/// fdatasync waited for its first write, and the flush of the fdatasync did not wait for the second write.
#[test]
fn regression_an_fdatasync_waits_for_pages_that_a_sync_takes_meanwhile() {
    let words = "write:A/foo:0+12288,sync,write:A/foo:4096+100,sync&,write:A/foo:4096+100,fdatasync:A/foo";
    for format in [Format::EXT4_DUAL, Format::F2FS_DUAL] {
        finds_nothing_after(&Base::make(format, 207).unwrap(), words, 10);
    }
}

/// An fsync that needed no checkpoint when it began may need one when its data are durable, because its file has another name by then, or none.
/// Recovery deleted the old file whose name it had taken; or it gave a deleted file its name back, which by then belonged to a synced one.
#[test]
fn regression_a_name_changes_while_an_fsync_makes_data_durable() {
    for format in [Format::F2FS, Format::F2FS_DUAL] {
        let base = Base::make(format, 1).unwrap();
        for pause in [40, 300] {
            let begin = format!("write:A/new:0+40000,fsync:A/new&,pause:{pause}");
            for end in ["rename:A/old:A/moved,rename:A/new:A/old", "exchange:A/new:A/old"] {
                finds_nothing_after(&base, &format!("{begin},{end},wait"), 10);
            }
            let again = "unlink:A/new,write:A/new:0+100,fsync:A/new,wait";
            finds_nothing_after(&base, &format!("{begin},{again}"), 10);
        }
    }
}

/// Found by `weir crash files --sequences sets`: an fsync that waited for a checkpoint went by a later one, which was made for another
/// file and does not flush what is written in place.
#[test]
fn regression_a_checkpoint_for_others_leaves_what_is_written_in_place() {
    let words = "write:A/foo:0+8292,write:A/bar:0+8292,atomic:A/foo,write:B/bar:0+9000,fsync:B/bar,\
                 fallocK:A/foo:0+100,write:B/bar:0+100,fsync:B/bar&,syncv";
    finds_nothing_after(&Base::make(Format::F2FS_SSC, 5).unwrap(), words, 10);
}

/// ext4 without flushes is detected as well.
#[test]
fn ext4_without_flushes_is_found_out() {
    let config = FileCrashConfig {
        format: Format::EXT4,
        mode: FlushMode::NoFlush,
        minimise: false,
        ..config(Sequences::Random, 6)
    };
    let report = explore(&config, None, |_| true).unwrap();
    let [violation] = &report.violations[..] else { panic!("{report:?}") };
    let token: Token = violation.token.parse().unwrap();
    assert_eq!(token.format, Format::EXT4);
    assert!(replay(&token).unwrap().is_some(), "{token}");
}

/// Promises hold through the simulated device, cut inside its operations.
#[test]
fn file_cuts_of_the_whole_stack_keep_promises() {
    let effort = Effort { states_max: 24, nested_every: 4, ..Effort::default() };
    // One seed may draw sequences that leave little new: what has been looked at is counted over both kinds.
    let mut totals = Counts::default();
    for (sequences, count) in [(Sequences::Random, 4), (Sequences::Seq2, 4)] {
        let config = FileCrashConfig { on: On::Device, effort, ..config(sequences, count) };
        let report = explore(&config, None, |_| true).unwrap();
        assert_eq!(report.violations, [], "{sequences:?}");
        totals.add(&report.totals);
    }
    assert!(totals.recovered > 20 && totals.nested > 0 && totals.allowed > 500, "{totals:?}");
}

/// Promises hold on append segments: in memory with any prefix of each segment, and on the simulated device.
#[test]
fn file_cuts_of_append_segments_keep_promises() {
    for (on, sequences, count) in [
        (On::Model, Sequences::Random, 12),
        (On::Model, Sequences::Reuse, 12),
        (On::Model, Sequences::Tasks, 12),
        (On::Device, Sequences::Random, 3),
    ] {
        // Three short sequences may have few cuts that leave anything new.
        let least = if on == On::Device { 10 } else { 50 };
        finds_nothing(Format::ALFS, on, (sequences, count), least);
    }
}

#[test]
fn alfs_that_discards_early_or_does_not_wait_is_found_out() {
    for (name, sequences) in [
        ("early-discard", Sequences::Cleaning),
        ("no-flush-before-last-block", Sequences::Random),
        ("no-data-flush", Sequences::Random),
    ] {
        is_found_out(Format::ALFS, name, (sequences, 60));
    }
}

/// Where the contract requires the tags of two versions of a block, a device that keeps only the newer tags is
/// detected.
#[test]
fn tags_that_are_replaced_are_found() {
    let effort = Effort { states_max: 16, nested_every: 0, exercise_every: 0, ..Effort::default() };
    let config = FileCrashConfig { effort, ..config(Sequences::Seq1, 12) };
    let config = FileCrashConfig { seed: 1, ..config };
    let mutant = hunt(&config, Bug::Device(DeviceBug::TagsReplaced), |_| true).unwrap();
    let killed_by = mutant.killed_by.expect("it is found");
    let token: Token = killed_by.token.parse().unwrap();
    let fault = replay(&token).unwrap();
    assert!(matches!(fault, Some(Fault::Violation(Violation::Content(_)))), "{fault:?}");
    // Without the bug, there is no such image, or it has no fault.
    assert!(!matches!(replay(&Token { planted: None, ..token }), Ok(Some(_))));
}

/// Without any flush nothing is promised to survive, and the laboratory reports violations; each token reproduces its
/// violation.
#[test]
fn a_stack_without_flushes_is_found_out() {
    let config =
        FileCrashConfig { mode: FlushMode::NoFlush, violations_max: 2, ..config(Sequences::Random, 6) };
    let report = explore(&config, None, |_| true).unwrap();
    assert_eq!(report.violations.len(), 2);
    for violation in &report.violations {
        for token in [&violation.token, &violation.found_as] {
            let token: Token = token.parse().unwrap();
            assert!(replay(&token).unwrap().is_some(), "{token}");
        }
        let token: Token = violation.token.parse().unwrap();
        let found_as: Token = violation.found_as.parse().unwrap();
        assert!(token.ops.0.len() <= found_as.ops.0.len().min(12), "{token} is short");
    }
}

#[test]
fn file_cuts_do_not_depend_on_threads() {
    let of = |jobs| explore(&FileCrashConfig { jobs, ..config(Sequences::Seq2, 5) }, None, |_| true).unwrap();
    assert_eq!(of(1), of(3));
}

#[test]
fn every_bounded_sequence_runs_as_the_reference_does() {
    let base = Base::make(Format::F2FS, 5).unwrap();
    for ops in ace::seq1().iter().step_by(7) {
        let case = case(&base, On::Model, FlushMode::Flush, ops);
        run(&case).unwrap_or_else(|fault| panic!("{ops}: {fault:?}"));
    }
}

/// Found by `weir crash files`: the laboratory did not know the file that it had made through a dangling link.
#[test]
fn a_file_that_is_made_through_a_dangling_link_is_known() {
    for words in
        ["symlink:A/D/bar:second,write:second:0+20000,sync", "symlink:A/D/bar:second,creat:second,sync"]
    {
        verdict(words, |_| ()).unwrap_or_else(|violation| panic!("{words}: {violation:?}"));
    }
}

/// The oracle mistook a file that is deleted last for a new one, whose pages may be zeros.
#[test]
fn bytes_of_a_file_that_is_being_deleted_are_judged() {
    // The resulting image contains the file again.
    let there = "write:A/foo:0+9000,sync,creat:B/foo";
    let mut base_and_run = None;
    verdict_unsynced(there, |tree| base_and_run = Some(tree.clone())).unwrap();
    let with_file = base_and_run.unwrap();
    let found = verdict(&format!("{there},unlink:A/foo"), |tree| {
        *tree = with_file.clone();
        bytes(tree, "A/foo", |bytes| bytes[..4096].fill(0));
    });
    assert!(matches!(found, Err(Violation::Content(_))), "{found:?}");
    verdict(&format!("{there},unlink:A/foo"), |tree| *tree = with_file.clone()).unwrap();
}

/// Returns the verdict on the state in which everything of a sequence persisted, after `change`.
fn verdict(words: &str, change: impl FnOnce(&mut Tree)) -> Result<(), Violation> {
    verdict_at(words, |end, _| end, change)
}

/// Returns the verdict with a sync at the end that had not begun at the cut, so that the contents are not promised.
fn verdict_unsynced(words: &str, change: impl FnOnce(&mut Tree)) -> Result<(), Violation> {
    verdict_at(&format!("{words},sync"), |_, last_begun| last_begun, change)
}

fn verdict_at(
    words: &str,
    cut: impl FnOnce(u64, u64) -> u64,
    change: impl FnOnce(&mut Tree),
) -> Result<(), Violation> {
    verdict_in(Format::F2FS, words, cut, change)
}

fn verdict_in(
    format: Format,
    words: &str,
    cut: impl FnOnce(u64, u64) -> u64,
    change: impl FnOnce(&mut Tree),
) -> Result<(), Violation> {
    let base = Base::make(format, 4).unwrap();
    let ops: Ops = words.parse().unwrap();
    let case = case(&base, On::Model, FlushMode::Flush, &ops);
    let run = run(&case).unwrap();
    let mut tree = recover(&mut run.port.clone(), Setup::new(format, FlushMode::Flush, base.seed)).unwrap();
    let cut = cut(u64::from(run.end), run.history.steps.last().unwrap().begun);
    run.history.judge(cut, &tree).unwrap();
    change(&mut tree);
    run.history.judge(cut, &tree)
}

fn node<'a>(tree: &'a mut Tree, path: &str) -> &'a mut Node {
    let number = tree.find(path).unwrap_or_else(|| panic!("{path} is there"));
    Arc::make_mut(tree.nodes.get_mut(&number).unwrap())
}

fn bytes(tree: &mut Tree, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let body = &mut node(tree, path).body;
    let Body::File(file) = body else { panic!("{path} is a file") };
    let mut changed = file.to_vec();
    change(&mut changed);
    *body = Body::File(changed.into());
}

fn unname(tree: &mut Tree, dir: &str, name: &str) -> u64 {
    let Body::Directory(entries) = &mut node(tree, dir).body else { panic!("{dir} is a directory") };
    entries.remove(name).unwrap()
}

fn forget(tree: &mut Tree, dir: &str, name: &str) {
    let number = unname(tree, dir, name);
    tree.nodes.remove(&number);
}

#[test]
fn what_was_synced_must_be_there() {
    let words = "write:A/foo:0+9000,setxattr:A/foo:x:10,fsync:A/foo";
    let of = |change: fn(&mut Tree)| verdict(words, change);
    assert_eq!(of(|_| {}), Ok(()));
    assert!(matches!(of(|tree| forget(tree, "A", "foo")), Err(Violation::Name(_))));
    assert!(matches!(of(|tree| bytes(tree, "A/foo", |file| file.truncate(8_000))), Err(Violation::Size(_))));
    assert!(matches!(of(|tree| bytes(tree, "A/foo", |file| file.push(0))), Err(Violation::Size(_))));
    assert!(matches!(of(|tree| bytes(tree, "A/foo", |file| file[8_999] = 0)), Err(Violation::Content(_))));
    assert!(matches!(
        of(|tree| bytes(tree, "A/foo", |file| file[..4_096].fill(0))),
        Err(Violation::Content(_))
    ));
    assert!(matches!(of(|tree| node(tree, "A/foo").xattrs.clear()), Err(Violation::Xattr(_))));
    assert!(matches!(of(|tree| node(tree, "A/foo").mode = 0), Err(Violation::Inode(_))));
    assert!(matches!(of(|tree| node(tree, "A/foo").links = 2), Err(Violation::Inode(_))));
    // Another file, which existed from the beginning.
    assert!(matches!(of(|tree| forget(tree, "B", "old")), Err(Violation::Name(_))));
    assert!(matches!(of(|tree| bytes(tree, "A/old", |file| file[0] ^= 1)), Err(Violation::Content(_))));
    let link = |tree: &mut Tree| node(tree, "link").body = Body::Symlink("elsewhere".into());
    assert!(matches!(of(link), Err(Violation::Inode(_))));
}

#[test]
fn what_was_not_synced_may_be_old_or_new_and_nothing_else() {
    let words = "write:A/foo:0+9000,sync,write:A/foo:0+4096,append:A/foo:5000";
    let of = |change: fn(&mut Tree)| verdict_unsynced(words, change);
    let old = |file: &mut Vec<u8>| {
        file[..4_096].copy_from_slice(&content(0, 0, 4_096));
    };
    assert_eq!(verdict_unsynced(words, |tree| bytes(tree, "A/foo", old)), Ok(()));
    assert_eq!(of(|tree| bytes(tree, "A/foo", |file| file.truncate(9_000))), Ok(()));
    assert!(matches!(of(|tree| bytes(tree, "A/foo", |file| file.truncate(9_001))), Err(Violation::Size(_))));
    assert!(matches!(
        of(|tree| bytes(tree, "A/foo", |file| file[..4_096].fill(0))),
        Err(Violation::Content(_))
    ));
    let others = |file: &mut Vec<u8>| {
        file[..4_096].copy_from_slice(&content(77, 0, 4_096));
    };
    assert!(matches!(
        verdict_unsynced(words, |tree| bytes(tree, "A/foo", others)),
        Err(Violation::Content(_))
    ));
    assert!(matches!(of(|tree| forget(tree, "A", "foo")), Err(Violation::Name(_))));
}

#[test]
fn a_rename_is_whole() {
    let words = "write:A/foo:0+100,write:B/foo:0+200,sync,rename:A/foo:B/foo";
    let both = |tree: &mut Tree| {
        let number = tree.find("B/foo").unwrap();
        let Body::Directory(entries) = &mut node(tree, "A").body else { panic!("a directory") };
        entries.insert("foo".into(), number);
        node(tree, "B/foo").links = 2;
    };
    let found = verdict_unsynced(words, both);
    assert!(matches!(found, Err(Violation::Rename(_))), "{found:?}");
    let words = "write:A/foo:0+100,sync,rename:A/foo:B/foo";
    assert!(matches!(
        verdict_unsynced(words, |tree| forget(tree, "B", "foo")),
        Err(Violation::Vanished(_) | Violation::Rename(_))
    ));
}

#[test]
fn what_is_gone_for_good_stays_away() {
    let words = "write:A/foo:0+100,sync,link:A/foo:B/foo,unlink:A/foo,fsync:A";
    let back = |tree: &mut Tree| {
        let number = tree.find("B/foo").unwrap();
        let Body::Directory(entries) = &mut node(tree, "A").body else { panic!("a directory") };
        entries.insert("foo".into(), number);
        node(tree, "B/foo").links = 2;
    };
    assert!(matches!(verdict(words, back), Err(Violation::Name(_))));
    let stranger = |tree: &mut Tree| {
        let number = tree.find("A/old").unwrap();
        let Body::Directory(entries) = &mut node(tree, "B").body else { panic!("a directory") };
        entries.insert("stranger".into(), number);
        node(tree, "A/old").links = 3;
    };
    assert!(matches!(verdict("sync", stranger), Err(Violation::Name(_))));
}

/// The rule was not applied if anything else had happened between.
#[test]
fn regression_a_barrier_orders_pages_beside_other_changes() {
    let words = "write:A/foo:0+4096,sync,write:A/foo:0+4096,write:B/foo:0+100,pause:1000,fdatabarrier:A/foo,\
                 write:B/bar:0+100,fsync:B/bar";
    let older: fn(&mut Tree) =
        |tree| bytes(tree, "A/foo", |file| file.copy_from_slice(&content(0, 0, 4_096)));
    let of = |words: &str, change: fn(&mut Tree)| verdict_in(Format::F2FS_DUAL, words, |end, _| end, change);
    let found = of(words, older);
    assert!(matches!(found, Err(Violation::Order(_))), "{found:?}");
    // A change of the file itself that is no overwriting ends what is known of its pages.
    assert_eq!(of(&words.replace("write:B/foo:0+100", "punch:A/foo:0+4096"), |_| ()), Ok(()));
}

/// fsync promises every name of a file, and so the directories of all of them.
#[test]
fn regression_fsync_promises_the_directories_of_other_names() {
    let lost = |tree: &mut Tree| {
        forget(tree, "", "C");
        node(tree, "A/old").links -= 1;
        node(tree, "").links -= 1;
    };
    let found = verdict("mkdir:C,link:A/old:C/l,fsync:A/old", lost);
    assert!(matches!(found, Err(Violation::Vanished(_))), "{found:?}");
}

/// An inode number that was used again may not show what its earlier file held, in a file system that gives out the lowest.
#[test]
fn regression_a_number_that_was_used_again_shows_its_last_file() {
    let words = "write:A/x:0+4096,fsync:A/x,unlink:A/x,write:A/y:0+4096,fsync:A/y";
    let mut numbers = Vec::new();
    let mut number_of = |words: &str, path: &str| {
        let note = |tree: &mut Tree| numbers.extend(tree.find(path));
        verdict_in(Format::EXT4, words, |end, _| end, note).unwrap();
    };
    number_of("write:A/x:0+4096,fsync:A/x", "A/x");
    number_of(words, "A/y");
    assert_eq!(numbers[0], numbers[1], "the number is used again");
    let earlier = |tree: &mut Tree| bytes(tree, "A/y", |file| file.copy_from_slice(&content(0, 0, 4_096)));
    let found = verdict_in(Format::EXT4, words, |end, _| end, earlier);
    assert!(matches!(found, Err(Violation::Content(_))), "{found:?}");
}

/// What fsync promised of a nameless file holds once the file has a name.
#[test]
fn what_was_synced_without_a_name_must_be_there_with_one() {
    let words = "tmpfile:A,heldappend:9000,heldfsync,linkheld:A/foo";
    let of = |change: fn(&mut Tree)| verdict_unsynced(words, change);
    assert_eq!(of(|_| {}), Ok(()));
    assert_eq!(of(|tree| forget(tree, "A", "foo")), Ok(()), "the name is not promised");
    assert!(matches!(of(|tree| bytes(tree, "A/foo", |file| file.truncate(0))), Err(Violation::Size(_))));
    let zeros = |tree: &mut Tree| bytes(tree, "A/foo", |file| file[..4_096].fill(0));
    assert!(matches!(of(zeros), Err(Violation::Content(_))));
    assert!(matches!(of(|tree| node(tree, "A/foo").links = 0), Err(Violation::Inode(_))));
    // Without the fsync the file may be empty.
    let words = "tmpfile:A,heldappend:9000,linkheld:A/foo";
    assert_eq!(verdict_unsynced(words, |tree| bytes(tree, "A/foo", |file| file.truncate(0))), Ok(()));
}

/// Permission bits and access list change in one step.
#[test]
fn a_mode_and_its_list_are_of_one_moment() {
    const LIST: &str = "system.posix_acl_access";
    let words = "write:A/foo:0+100,setacl:A/foo:2,sync,chmod:A/foo:607";
    let list_of = |words: &str| {
        let mut list = None;
        verdict_unsynced(words, |tree| list = node(tree, "A/foo").xattrs.get(LIST).cloned()).unwrap();
        list.unwrap()
    };
    let (old, new) = (list_of("write:A/foo:0+100,setacl:A/foo:2"), list_of(words));
    assert_ne!(old, new);
    let half = |tree: &mut Tree| {
        node(tree, "A/foo").xattrs.insert(LIST.into(), Arc::clone(&old));
    };
    assert!(matches!(verdict_unsynced(words, half), Err(Violation::Inode(_))));
    let no_list = |tree: &mut Tree| node(tree, "A/foo").xattrs.clear();
    assert!(matches!(verdict_unsynced(words, no_list), Err(Violation::Inode(_))));
}

/// fdatasync promises data, size, and that the file is found, but no attributes.
#[test]
fn fdatasync_promises_less_than_fsync() {
    let words = "write:A/foo:0+100,sync,setxattr:A/foo:x:10,append:A/foo:5000,fdatasync:A/foo";
    assert_eq!(verdict(words, |tree| node(tree, "A/foo").xattrs.clear()), Ok(()));
    assert!(matches!(
        verdict(words, |tree| bytes(tree, "A/foo", |file| file.truncate(100))),
        Err(Violation::Size(_))
    ));
    let words = words.replace("fdatasync", "fsync");
    assert!(matches!(verdict(&words, |tree| node(tree, "A/foo").xattrs.clear()), Err(Violation::Xattr(_))));
}

#[test]
fn a_replay_names_what_there_is_not() {
    let with = |text: &str| replay(&text.parse::<Token>().unwrap());
    assert!(with("f2fs@flush@2@creat:foo,sync@c9999@0000000000000000").unwrap_err().contains("events"));
    assert!(with("f2fs@flush@2@creat:foo,sync@c1@0000000000000000").unwrap_err().contains("no state"));
    assert_eq!(with("f2fs@flush@2@creat:foo,sync@c-"), Ok(None::<Fault>));
}

/// A sync through a link applies to its target, not to the link: the oracle assumed that the name of the link was
/// durable.
#[test]
fn regression_a_sync_through_a_link_promises_nothing_of_the_link() {
    let words = "write:B/bar:4096+4096,symlink:B/bar:old,fsync:old";
    let without_file = |tree: &mut Tree| {
        assert_eq!(tree.find("old"), None);
        let Body::Directory(entries) = &mut node(tree, "B").body else { panic!("a directory") };
        let gone = entries.remove("bar").unwrap();
        tree.nodes.remove(&gone);
    };
    assert!(matches!(verdict(words, without_file), Err(Violation::Name(_))));
    let token = "f2fs-on-device@rflush@35041564@write:B/bar:4096+4096,symlink:B/bar:old,fsync:old@c2227@1faca78f1dd09cbc";
    assert_eq!(replay(&token.parse::<Token>().unwrap()), Ok(None));
}
