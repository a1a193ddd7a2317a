//! The effects of transactions that are visible to others, and commits that share a sync.

use crate::bed::{Bed, small};
use flashweir_core::Duration;
use flashweir_core::signal::Signal;
use flashweir_db::{CommitMode, Config, Db, DbError, Tree};
use flashweir_fs::memfs::MemFs;
use std::cell::Cell;
use std::rc::Rc;

/// Runs tasks concurrently, to their end.
fn side_by_side<T: Future<Output = ()> + 'static>(bed: &mut Bed, tasks: Vec<T>) {
    let (left, done) = (Rc::new(Cell::new(tasks.len())), Rc::new(Signal::default()));
    for task in tasks {
        let (left, done) = (Rc::clone(&left), Rc::clone(&done));
        bed.handle().spawn(async move {
            task.await;
            left.set(left.get() - 1);
            done.notify();
        });
    }
    bed.run(async move {
        while left.get() > 0 {
            done.wait().await;
        }
    });
}

async fn add(db: Db<MemFs>, tree: Tree, key: Vec<u8>, times: u64) {
    for _ in 0..times {
        let mut trx = db.begin().await.unwrap();
        let value = trx.lock(tree, &key).await.unwrap().unwrap();
        let sum = u64::from_le_bytes(value.try_into().unwrap()) + 1;
        trx.update(tree, &key, &sum.to_le_bytes()).await.unwrap();
        trx.commit().await.unwrap();
    }
}

fn counters(bed: &mut Bed, config: Config, keys: u8) -> (Db<MemFs>, Tree) {
    let db = bed.create(config);
    let made = db.clone();
    let tree = bed.run(async move {
        let tree = made.create_tree("counters").await.unwrap();
        let mut trx = made.begin().await.unwrap();
        for key in 0..keys {
            trx.insert(tree, &[key], &0u64.to_le_bytes()).await.unwrap();
        }
        trx.commit().await.unwrap();
        tree
    });
    (db, tree)
}

#[test]
fn a_transaction_knows_whether_it_changed_anything() {
    let mut bed = Bed::new();
    let (db, tree) = counters(&mut bed, small(), 1);
    bed.run(async move {
        let mut trx = db.begin().await.unwrap();
        assert!(trx.lock(tree, &[0]).await.unwrap().is_some());
        assert!(!trx.has_changes(), "a lock is no change");
        trx.update(tree, &[0], &7u64.to_le_bytes()).await.unwrap();
        assert!(trx.has_changes());
        trx.commit().await.unwrap();
    });
}

#[test]
fn no_addition_is_lost() {
    let mut bed = Bed::new();
    let costs = flashweir_db::CpuCosts::default();
    let (db, tree) = counters(&mut bed, Config { costs, ..small() }, 1);
    let tasks = (0..8).map(|_| add(db.clone(), tree, vec![0], 50)).collect();
    side_by_side(&mut bed, tasks);
    assert!(db.metrics().lock_waits > 0);
    let sum = bed.run(async move { db.get(tree, &[0]).await.unwrap().unwrap() });
    assert_eq!(sum, 400u64.to_le_bytes());
}

/// Eight tasks with rows of their own: while one sync runs, seven wait for the next one together.
#[test]
fn commits_share_syncs_of_the_log() {
    for (mode, syncs) in [(CommitMode::Sync, 80..140), (CommitMode::Write, 0..3), (CommitMode::Lazy, 0..3)] {
        let mut bed = Bed::new();
        let (db, tree) = counters(&mut bed, Config { commit: mode, ..small() }, 8);
        let before = db.metrics();
        let tasks = (0..8).map(|key| add(db.clone(), tree, vec![key], 50)).collect();
        side_by_side(&mut bed, tasks);
        let metrics = db.metrics().since(&before);
        assert_eq!(metrics.commits, 400);
        assert!(syncs.contains(&metrics.log_syncs), "{mode:?}: {metrics:?}");
        match mode {
            CommitMode::Lazy => assert!(metrics.log_writes < 3, "{metrics:?}"),
            _ => assert!(metrics.log_writes >= 50, "{metrics:?}"),
        }
    }
}

#[test]
fn without_waiting_commits_are_synced_within_a_second() {
    let mut bed = Bed::new();
    let (db, tree) = counters(&mut bed, Config { commit: CommitMode::Lazy, ..small() }, 1);
    let handle = bed.handle();
    bed.run(async move {
        add(db.clone(), tree, vec![0], 1).await;
        let before = db.metrics().log_syncs;
        handle.sleep_until(handle.now() + Duration::from_millis(1_100)).await;
        assert_eq!(db.metrics().log_syncs, before + 1);
    });
}

#[test]
fn a_circle_of_waits_ends_with_one_victim() {
    let mut bed = Bed::new();
    let (db, tree) = counters(&mut bed, small(), 2);
    let victims = Rc::new(Cell::new(0));
    let both = |first: u8, second: u8| {
        let (db, victims, handle) = (db.clone(), Rc::clone(&victims), bed.handle());
        async move {
            let mut trx = db.begin().await.unwrap();
            trx.update(tree, &[first], &1u64.to_le_bytes()).await.unwrap();
            handle.sleep_until(handle.now() + Duration::from_millis(1)).await;
            match trx.update(tree, &[second], &2u64.to_le_bytes()).await {
                Ok(()) => trx.commit().await.unwrap(),
                Err(DbError::Deadlock) => {
                    victims.set(victims.get() + 1);
                    trx.rollback().await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    let tasks = vec![both(0, 1), both(1, 0)];
    side_by_side(&mut bed, tasks);
    assert_eq!((victims.get(), db.metrics().deadlocks), (1, 1));
    let rows = bed.run(async move { db.scan(tree, &[], None, 9).await.unwrap() });
    let mut values: Vec<u8> = rows.iter().map(|(_, value)| value[0]).collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2], "the other one did all of its work");
}

#[test]
fn scans_have_bounds() {
    let mut bed = Bed::new();
    let (db, tree) = counters(&mut bed, small(), 200);
    bed.run(async move {
        let keys = async |from: &[u8], end: Option<&[u8]>, max| {
            let rows = db.scan(tree, from, end, max).await.unwrap();
            rows.iter().map(|(key, _)| key[0]).collect::<Vec<u8>>()
        };
        assert_eq!(keys(&[10], Some(&[13]), 99).await, [10, 11, 12]);
        assert_eq!(keys(&[10], None, 2).await, [10, 11]);
        assert_eq!(keys(&[10, 0], Some(&[12]), 9).await, [11]);
        assert_eq!(keys(&[198], None, 9).await, [198, 199]);
        assert_eq!(keys(&[200], None, 9).await, [0u8; 0]);
        assert_eq!(keys(&[5], None, 0).await, [0u8; 0]);
    });
}
