//! What the barrier paper says of SQLite (barriers §7.7), measured with SQLite itself.
//!
//! Place in the data flow: [`of_paper`] adds claims and studies to those of [`flashweir_lab::reproduce`], which cannot know SQLite.
//!
//! Invariants and what is absent: those of [`flashweir_lab::reproduce`].
#![forbid(unsafe_code)]

use crate::order::{JournalMode, OrderMode, Plan, Synchronous};
use crate::run::{Setup, run};
use crate::workload::{Mix, WorkloadOptions};
use flashweir_core::Duration;
use flashweir_fs::ext4::Ext4Options;
use flashweir_fs::order::CommitMode;
use flashweir_fs::vfs::{HostCosts, MountOptions};
use flashweir_lab::reproduce::{Paper, RATE_CALLS_MIN, Scale, Study, barrier_device, micros};
use flashweir_sim::measure::Percentile;
use flashweir_sim::stack::FlushMode;

const ON_UFS: Study = Study {
    name: "sqlite-itself-ufs",
    what: "SQLite itself, inserts of one row of 100 bytes by one connection, synchronous=FULL. EXT4-DR: ext4 with ordered data, each sync \
           fdatasync; BFS-DR: in dual mode, all syncs but the one that makes the commit durable are barriers; EXT4-OD: EXT4-DR mounted \
           without barriers; BFS-OD: all are barriers. On barrier-ufs",
    missing: "the paper's devices are products, ours guesses fitted to its mean fsync (presets §1.9); its version of SQLite, its rows, and its \
              phone with its other I/O. SQLite's own CPU time is left out: only its calls cost some (those of `phone`, on barrier-850 of \
              `server`). With EXT4-OD the order is a lie",
    parameter: "journal (1 delete, 2 truncate, 3 persist, 4 WAL)",
    names: &[],
    metrics: &[
        ("transactions", "transactions/s"),
        ("transaction_mean_us", "mean of a transaction, µs"),
        ("transaction_p999_us", "99.9th percentile of a transaction, µs"),
        ("flushes_per_transaction", "flushes for each transaction"),
        ("syncs_per_transaction", "calls of fdatasync and fsync for each transaction"),
        ("barriers_per_transaction", "calls of fdatabarrier and fbarrier for each transaction"),
    ],
    variants: &["EXT4-DR", "BFS-DR", "EXT4-OD", "BFS-OD"],
    points: |_| vec![1.0, 2.0, 3.0, 4.0],
    measure: |variant, x, seed, scale| inserts(("barrier-ufs", "phone"), variant, x, seed, scale),
};

const ON_PLAIN: Study = Study {
    name: "sqlite-itself-plain",
    what: "the study `sqlite-itself-ufs` on barrier-850",
    measure: |variant, x, seed, scale| inserts(("barrier-850", "server"), variant, x, seed, scale),
    ..ON_UFS
};

const STUDIES: &[Study] = &[ON_UFS, ON_PLAIN];

/// Claims and studies that SQLite adds to a paper.
pub fn of_paper(name: &str) -> Option<(Paper, &'static [Study])> {
    let text = (name == "barrier").then_some(include_str!("../claims/barrier.toml"))?;
    Some((toml::from_str(text).expect("a test reads the file of claims"), STUDIES))
}

fn inserts((device, costs): (&str, &str), variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let (commit_mode, barrier, order) = [
        (CommitMode::Legacy, true, OrderMode::None),
        (CommitMode::DualMode, true, OrderMode::Durable),
        (CommitMode::Legacy, false, OrderMode::None),
        (CommitMode::DualMode, true, OrderMode::All),
    ][variant];
    let (journal_mode, _) = JournalMode::ALL[x as usize - 1];
    // The buffer is full before anything is measured, where flushes let it fill.
    let (ramp, time) = match scale {
        Scale::Quick => (Duration::from_millis(300), Duration::from_millis(500)),
        Scale::Full => (Duration::from_secs(1), Duration::from_secs(5)),
    };
    let setup = Setup {
        device: barrier_device(device, commit_mode),
        host_ftl: None,
        flush: FlushMode::Flush,
        mode: Ext4Options { commit_mode, barrier, ..Ext4Options::default() }.into(),
        mount: MountOptions {
            costs: HostCosts::preset(costs).expect("it comes with the program"),
            ..MountOptions::default()
        },
        plan: Plan { journal_mode, synchronous: Synchronous::Full, order, planted: None },
        workload: WorkloadOptions {
            mix: Mix::Insert,
            transactions: u64::MAX / 4,
            ramp,
            runtime: Some(time),
            ..WorkloadOptions::default()
        },
        seed,
        interval: Duration::from_millis(100),
    };
    let result = run(&setup, &mut || true).expect("the device has room").expect("nobody stops it");
    let total = result.workload.sum(&[]);
    let count = total.calls as f64;
    let each = |name: &str| result.metrics[name] as f64 / count;
    vec![
        if total.calls < RATE_CALLS_MIN { f64::NAN } else { result.transactions_per_s() },
        total.latency.summary.mean_ns / 1e3,
        micros(&total.latency, Percentile::P99_9),
        result.totals.flushes as f64 / count,
        each("vfs.syncs"),
        each("vfs.barriers"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_names_what_its_study_measures() {
        let (paper, studies) = of_paper("barrier").unwrap();
        assert_eq!(paper.check(studies), Ok(()));
        assert!(of_paper("rflush").is_none());
    }

    /// With a journal that persists: four syncs and that of the directory.
    #[test]
    fn transactions_wait_as_their_variant_says() {
        let about = |value: f64, expected: f64| (value - expected).abs() <= 0.05;
        let transactions = ON_UFS.variants.iter().enumerate().map(|(variant, name)| {
            let values = (ON_UFS.measure)(variant, 3.0, 1, Scale::Quick);
            let (flushes, syncs, barriers) = match *name {
                "EXT4-DR" => (4.0, 5.0, 0.0),
                "BFS-DR" => (1.0, 1.0, 4.0),
                "EXT4-OD" => (0.0, 5.0, 0.0),
                _ => (0.0, 0.0, 5.0),
            };
            assert!(
                values[3] >= flushes - 0.05 && (flushes > 0.0) == (values[3] > 0.5),
                "{name}: {values:?}"
            );
            assert!(about(values[4], syncs) && about(values[5], barriers), "{name}: {values:?}");
            values[0]
        });
        let transactions: Vec<f64> = transactions.collect();
        let [waits, durable, lies, ordered] = transactions[..] else { panic!("{transactions:?}") };
        assert!(waits < durable && durable < ordered && waits < lies, "{transactions:?}");
    }
}
