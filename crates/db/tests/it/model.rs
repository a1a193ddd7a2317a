//! Random work compared with a map in memory: several tasks, transactions that commit, roll back or are dropped, a pool
//! that is too small, a log that wraps around.

use crate::bed::{Bed, small};
use flashweir_core::RandomStream;
use flashweir_db::{Config, DataIo, Db, DbError, DoubleWrite, Tree};
use flashweir_fs::memfs::MemFs;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

type Model = Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>>;

const TASKS: u64 = 6;
const KEYS: u64 = 4000;

fn key_of(number: u64) -> Vec<u8> {
    // Lengths differ, and the order does not follow the numbers.
    let mut key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes().to_vec();
    key.extend(vec![b'k'; (number % 40) as usize]);
    key
}

/// Runs one transaction of task `task`, which has keys of its own, so that the model knows the committed state.
async fn transaction(db: &Db<MemFs>, tree: Tree, model: &Model, stream: &mut RandomStream, task: u64) {
    let mut trx = db.begin().await.unwrap();
    let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
    let shrinks = stream.chance(0.4);
    for _ in 0..1 + stream.below(60) {
        let key = key_of(stream.below(KEYS) * TASKS + task);
        let before = match changes.get(&key) {
            Some(change) => change.clone(),
            None => model.borrow().get(&key).cloned(),
        };
        assert_eq!(trx.lock(tree, &key).await.unwrap(), before);
        let mut value = vec![stream.below(250) as u8; stream.below(400) as usize];
        match before {
            None => {
                assert_eq!(trx.update(tree, &key, &value).await, Err(DbError::NotFound));
                assert_eq!(trx.delete(tree, &key).await, Err(DbError::NotFound));
                if shrinks {
                    continue;
                }
                trx.insert(tree, &key, &value).await.unwrap();
                changes.insert(key, Some(value));
            }
            Some(_) if stream.chance(if shrinks { 0.9 } else { 0.2 }) => {
                trx.delete(tree, &key).await.unwrap();
                changes.insert(key, None);
            }
            Some(old) => {
                assert_eq!(trx.insert(tree, &key, &value).await, Err(DbError::Duplicate));
                if stream.chance(0.5) {
                    value = old.clone();
                    if let Some(byte) = value.last_mut() {
                        *byte ^= 1;
                    }
                }
                trx.update(tree, &key, &value).await.unwrap();
                changes.insert(key, Some(value));
            }
        }
    }
    match stream.below(10) {
        0 => trx.rollback().await.unwrap(),
        1 => drop(trx),
        _ => {
            trx.commit().await.unwrap();
            for (key, change) in changes {
                match change {
                    Some(value) => model.borrow_mut().insert(key, value),
                    None => model.borrow_mut().remove(&key),
                };
            }
        }
    }
}

async fn work(db: Db<MemFs>, tree: Tree, model: Model, seed: u64, task: u64, count: u64) {
    let mut stream = RandomStream::new(seed, &format!("model.{task}"));
    for _ in 0..count {
        transaction(&db, tree, &model, &mut stream, task).await;
    }
}

/// Returns all rows of the tree.
async fn contents(db: &Db<MemFs>, tree: Tree) -> Vec<flashweir_db::Row> {
    db.scan(tree, &[], None, usize::MAX).await.unwrap()
}

fn run(config: Config, seed: u64, rounds: u64) {
    let mut bed = Bed::new();
    let mut db = bed.create(config.clone());
    let model = Model::default();
    let mut tree = {
        let db = db.clone();
        bed.run(async move { db.create_tree("rows").await.unwrap() })
    };
    for round in 0..rounds {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| work(db.clone(), tree, Rc::clone(&model), seed + round, task, 40))
            .collect();
        let left = Rc::new(std::cell::Cell::new(tasks.len()));
        let done = Rc::new(flashweir_core::signal::Signal::default());
        for task in tasks {
            let (left, done) = (Rc::clone(&left), Rc::clone(&done));
            bed.handle().spawn(async move {
                task.await;
                left.set(left.get() - 1);
                done.notify();
            });
        }
        let wanted: Vec<_> = {
            let (left, db, model) = (Rc::clone(&left), db.clone(), Rc::clone(&model));
            bed.run(async move {
                while left.get() > 0 {
                    done.wait().await;
                }
                db.close().await.unwrap();
                model.borrow().clone().into_iter().collect()
            })
        };
        let (opened, recovery) = bed.open(config.clone()).unwrap();
        assert_eq!((recovery.groups, recovery.rolled_back, recovery.pages_mended), (0, 0, 0), "{recovery:?}");
        db = opened;
        tree = db.tree("rows").unwrap();
        let db = db.clone();
        let (seen, report) = bed.run(async move { (contents(&db, tree).await, db.check().await.unwrap()) });
        assert!(report.is_good(), "{report:?}");
        assert_eq!((report.rows["rows"], report.lost_pages), (wanted.len() as u64, 0));
        assert_eq!(seen, wanted, "seed {seed}, round {round}");
    }
    let metrics = db.metrics();
    assert!(metrics.page_reads > 100, "the pool is too small for everything: {metrics:?}");
}

#[test]
fn the_engine_is_a_map_with_transactions() {
    for (seed, page_bytes) in [(1, 4096), (2, 4096), (3, 16_384)] {
        let pool_bytes = 128 * u64::from(page_bytes);
        run(Config { page_bytes, pool_bytes, ..small() }, seed, 4);
    }
}

#[test]
fn it_is_the_same_map_however_pages_are_written() {
    for (seed, double_write) in [(4, DoubleWrite::Off), (5, DoubleWrite::Fast), (6, DoubleWrite::On)] {
        let data_io = DataIo::Buffered;
        run(Config { double_write, data_io, ..small() }, seed, 2);
        run(Config { double_write, file_per_table: true, io_capacity: 1000, ..small() }, seed, 2);
    }
}

#[test]
fn the_same_seed_takes_the_same_time() {
    let time = || {
        let mut bed = Bed::new();
        let db = bed.create(small());
        let metrics = {
            let db = db.clone();
            bed.run(async move {
                let tree = db.create_tree("rows").await.unwrap();
                work(db.clone(), tree, Model::default(), 9, 0, 60).await;
                db.metrics()
            })
        };
        (bed.now(), metrics)
    };
    assert_eq!(time(), time());
}
