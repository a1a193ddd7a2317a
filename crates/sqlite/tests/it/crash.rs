//! What SQLite promises survives power cuts, and bugs in the mapping of its syncs are found.

use flashweir_crash::files::{Format, On};
use flashweir_sim::stack::FlushMode;
use flashweir_sqlite::crash::{CrashConfig, CrashReport, MUTANTS, explore};
use flashweir_sqlite::order::{JournalMode, OrderMode, Plan, Synchronous};
use std::collections::BTreeMap;

fn config(format: Format, plan: Plan) -> CrashConfig {
    CrashConfig {
        format,
        on: On::Device,
        mode: FlushMode::RangeFlush,
        plan,
        count: Some(2),
        cuts: None,
        states_each: 16,
        transactions: 12,
        seed: 1,
        jobs: 1,
        violations_max: 1,
    }
}

fn explored(config: &CrashConfig) -> CrashReport {
    explore(config, &mut |_| true).unwrap()
}

#[test]
fn what_is_committed_is_there_after_cuts() {
    let (mut seed, mut opened, mut recovered) = (0, 0, BTreeMap::new());
    for (format, orders) in [
        (Format::EXT4, &[OrderMode::None][..]),
        (Format::F2FS, &[OrderMode::None]),
        (Format::EXT4_DUAL, &[OrderMode::Durable, OrderMode::All]),
        (Format::F2FS_DUAL, &[OrderMode::Durable, OrderMode::All]),
    ] {
        for order in orders {
            for (journal_mode, synchronous) in [
                (JournalMode::Delete, Synchronous::Full),
                (JournalMode::Delete, Synchronous::Extra),
                (JournalMode::Persist, Synchronous::Full),
                (JournalMode::Wal, Synchronous::Full),
                (JournalMode::Wal, Synchronous::Normal),
            ] {
                let plan = Plan { journal_mode, synchronous, order: *order, planted: None };
                // One volume for each.
                seed += 1;
                let report = explored(&CrashConfig { count: Some(1), seed, ..config(format, plan) });
                assert_eq!(report.violations, [], "{format:?} {plan:?}");
                // Where a buffer takes everything, cuts show little.
                assert!(report.totals.made > 1, "{format:?} {plan:?}: {report:?}");
                opened += report.totals.opened;
                *recovered.entry(journal_mode.name()).or_insert(0) += report.totals.recovered;
            }
        }
    }
    assert!(opened > 200, "{opened} databases");
    // What SQLite did not end before the cut it rolled back, or read from its log, on our files.
    assert!(recovered.values().all(|count| *count > 10), "{recovered:?}");
}

/// A transaction is a set of an atomic file: no journal that a cut could leave, none to roll back.
#[test]
fn a_transaction_without_a_journal_is_there_as_a_whole() {
    let mut opened = 0;
    for (seed, format) in (40..).zip([
        Format::EXT4_JOURNAL,
        Format::EXT4_SOJ,
        Format::EXT4_SDJ,
        Format::F2FS_SSC,
        Format::F2FS_SSC_DUAL,
    ]) {
        let plan = Plan { journal_mode: JournalMode::BatchAtomic, ..Plan::default() };
        let report = explored(&CrashConfig { count: Some(1), seed, ..config(format, plan) });
        assert_eq!(report.violations, [], "{format:?}");
        assert_eq!(report.totals.recovered, 0, "{format:?}");
        opened += report.totals.opened;
    }
    assert!(opened > 40, "{opened} databases");
}

#[test]
fn a_report_repeats_with_any_number_of_threads() {
    let plan = Plan { journal_mode: JournalMode::Wal, order: OrderMode::All, ..Plan::default() };
    let one = config(Format::EXT4_DUAL, plan);
    let two = CrashConfig { jobs: 2, ..one.clone() };
    assert_eq!(explored(&one), explored(&two));
}

#[test]
fn planted_bugs_are_found() {
    for (planted, journal_mode, order, format) in MUTANTS {
        let plan = Plan { journal_mode, synchronous: Synchronous::Full, order, planted: Some(planted) };
        let hunt = CrashConfig { count: Some(40), states_each: 40, ..config(format, plan) };
        let report = explored(&hunt);
        assert_eq!(report.violations.len(), 1, "{plan:?}: {report:?}");
    }
}

/// Found by cuts: F2FS keeps a short file in its inode, and fdatabarrier ordered the blocks of such a journal, of which there are none. So
/// the header that makes it count came after the database that it was to undo.
#[test]
fn a_journal_inside_its_inode_is_ordered() {
    let plan = Plan { order: OrderMode::Durable, ..Plan::default() };
    let case = CrashConfig {
        count: Some(1),
        seed: 1019,
        transactions: 24,
        states_each: 60,
        ..config(Format::F2FS_DUAL, plan)
    };
    let report = explored(&case);
    assert_eq!(report.violations, []);
    assert!(report.totals.opened > 20, "{report:?}");
}
