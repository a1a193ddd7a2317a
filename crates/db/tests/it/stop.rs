//! Errors of the file system, and files of other databases or of none.

use crate::bed::{Bed, small};
use flashweir_db::{Config, Db, DbError, DoubleWrite};
use flashweir_fs::memfs::Faults;
use flashweir_fs::vfs::{Errno, Follow};

#[test]
fn a_log_that_cannot_be_written_stops_the_engine() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    let fs = bed.fs.clone();
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        let mut trx = db.begin().await.unwrap();
        trx.insert(tree, b"a", b"1").await.unwrap();
        trx.commit().await.unwrap();
        let mut trx = db.begin().await.unwrap();
        trx.insert(tree, b"b", b"2").await.unwrap();
        fs.set_faults(Faults { syncs: Some(Errno::EIO), ..Faults::default() });
        let failure = Err(DbError::File { what: "syncing /db/log-0".into(), errno: Errno::EIO });
        assert_eq!(trx.commit().await, failure);
        fs.set_faults(Faults::default());
        assert_eq!(db.get(tree, b"a").await.map(drop), failure, "it does not know what is durable");
        assert_eq!(db.begin().await.map(drop), failure);
    });
    let (db, recovery) = bed.open(small()).unwrap();
    assert!(recovery.groups > 0, "{recovery:?}");
    bed.run(async move {
        let tree = db.tree("rows").unwrap();
        assert_eq!(db.get(tree, b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
        assert!(db.check().await.unwrap().is_good());
        db.close().await.unwrap();
    });
}

/// Whoever waited for a row when the engine stopped waited for ever, and kept the engine.
#[test]
fn regression_a_stopped_engine_lets_nobody_wait_for_a_row() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    let (fs, handle) = (bed.fs.clone(), bed.handle());
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        let mut first = db.begin().await.unwrap();
        first.insert(tree, b"a", b"1").await.unwrap();
        let (sender, waited) = flashweir_core::executor::oneshot();
        let other = db.clone();
        handle.spawn(async move {
            let mut second = other.begin().await.unwrap();
            drop(sender.send(second.update(tree, b"a", b"2").await));
        });
        handle.yield_now().await;
        fs.set_faults(Faults { syncs: Some(Errno::EIO), ..Faults::default() });
        let failure = DbError::File { what: "syncing /db/log-0".into(), errno: Errno::EIO };
        assert_eq!(db.create_tree("others").await, Err(failure.clone()));
        assert_eq!(waited.await.unwrap(), Err(failure.clone()));
        assert_eq!(first.commit().await, Err(failure));
        let mut third = Err(DbError::Closed);
        if let Ok(mut trx) = db.begin().await {
            third = trx.update(tree, b"a", b"3").await;
        }
        assert!(third.is_err());
        fs.set_faults(Faults::default());
    });
}

/// Logs are as long as configured from the beginning, whatever the pieces are in which they are filled: no commit extends a file.
#[test]
fn files_of_a_new_database_have_their_lengths() {
    let mut bed = Bed::new();
    let config = Config { log_file_bytes: (2 << 20) + 8192, double_write: DoubleWrite::On, ..small() };
    let doubled = u64::from(config.batch_pages) * u64::from(config.page_bytes);
    drop(bed.create(config.clone()));
    let process = bed.process();
    bed.run(async move {
        let lengths =
            [("log-0", config.log_file_bytes), ("log-1", config.log_file_bytes), ("double-write", doubled)];
        for (name, bytes) in lengths {
            assert_eq!(process.stat(format!("/db/{name}"), Follow::Yes).await.unwrap().size, bytes, "{name}");
        }
    });
}

/// A database that was made without an area for double writes gets one when it is opened with one, and uses it.
#[test]
fn a_double_write_area_is_made_when_it_is_asked_for() {
    let mut bed = Bed::new();
    drop(bed.create(Config { double_write: DoubleWrite::Off, ..small() }));
    let process = bed.process();
    // Databases of before there was an area have no file for it.
    bed.run(async move { process.unlink("/db/double-write").await }).unwrap();
    let (db, _) = bed.open(Config { double_write: DoubleWrite::On, ..small() }).unwrap();
    let process = bed.process();
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        let mut trx = db.begin().await.unwrap();
        trx.insert(tree, b"a", b"1").await.unwrap();
        trx.commit().await.unwrap();
        db.close().await.unwrap();
        let area = process.stat("/db/double-write", Follow::Yes).await.unwrap();
        assert!(area.size > 0, "pages were written there before their places");
    });
}

/// A new tree is durable when the call returns, so the call fails where nothing can be made durable.
#[test]
fn a_tree_is_made_durable_or_not_at_all() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    let fs = bed.fs.clone();
    bed.run(async move {
        fs.set_faults(Faults { syncs: Some(Errno::EIO), ..Faults::default() });
        let made = db.create_tree("rows").await;
        assert_eq!(made, Err(DbError::File { what: "syncing /db/log-0".into(), errno: Errno::EIO }));
        fs.set_faults(Faults::default());
    });
}

#[test]
fn what_was_not_committed_is_rolled_back_by_the_next_open() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    let held = bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        let mut trx = db.begin().await.unwrap();
        for row in 0..500u32 {
            trx.insert(tree, &row.to_be_bytes(), &[7; 100]).await.unwrap();
        }
        trx.commit().await.unwrap();
        let mut open = db.begin().await.unwrap();
        for row in 0..500u32 {
            match row % 3 {
                0 => open.delete(tree, &row.to_be_bytes()).await.unwrap(),
                1 => open.update(tree, &row.to_be_bytes(), &[8; 200]).await.unwrap(),
                _ => open.insert(tree, &(1000 + row).to_be_bytes(), &[9; 50]).await.unwrap(),
            }
        }
        // All of its pages reach the disk.
        db.flush().await.unwrap();
        open
    });
    let (db, recovery) = bed.open(small()).unwrap();
    assert_eq!(recovery.rolled_back, 1);
    bed.run(async move {
        let tree = db.tree("rows").unwrap();
        let rows = db.scan(tree, &[], None, usize::MAX).await.unwrap();
        assert_eq!(rows.len(), 500);
        assert!(rows.iter().all(|(_, value)| value == &[7; 100]));
        let report = db.check().await.unwrap();
        assert!(report.is_good() && report.lost_pages == 0, "{report:?}");
    });
    std::mem::forget(held);
}

#[test]
fn what_is_not_the_database_is_refused() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    bed.run(async move { db.close().await.unwrap() });
    let refused = |bed: &mut Bed, config: Config| bed.open(config).map(drop).unwrap_err().to_string();
    assert_eq!(
        refused(&mut bed, Config { page_bytes: 8192, pool_bytes: 1 << 20, ..small() }),
        "page_bytes is 8192: expected 4096, with which the database was made"
    );
    assert_eq!(
        refused(&mut bed, Config { transactions_max: 7, ..small() }),
        "transactions_max is 7: expected 8, with which the database was made"
    );
    let (process, handle) = (bed.process(), bed.handle());
    let twice = bed.run(async move { Db::create(&process, handle, "/db", small()).await.map(drop) });
    assert_eq!(twice.unwrap_err().to_string(), "opening /db/data: EEXIST: file exists");
    let process = bed.process();
    bed.run(async move { process.truncate("/db/log-0", 0).await.unwrap() });
    assert_eq!(
        refused(&mut bed, small()),
        "damaged: the log has no checkpoint: it is not that of a database"
    );
}

/// The file system in memory has no atomic files.
#[test]
fn atomic_files_are_asked_for_where_there_are_some() {
    let mut bed = Bed::new();
    let (process, handle) = (bed.process(), bed.handle());
    let config = Config { double_write: DoubleWrite::Atomic, ..small() };
    let made = bed.run(async move { Db::create(&process, handle, "/", config).await.map(drop) });
    let expected = "double_write cannot be `atomic`: expected a file system with atomic files: ext4 that journals data, or \
                    either format where it uses SHARE";
    assert_eq!(made.unwrap_err().to_string(), expected);
}

#[test]
fn values_are_within_their_bounds() {
    let mut bed = Bed::new();
    let db = bed.create(small());
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        let mut trx = db.begin().await.unwrap();
        let error = trx.insert(tree, b"k", &[0; 1000]).await.unwrap_err();
        assert_eq!(error.to_string(), "a row of 1001 bytes: expected at most 999");
        trx.insert(tree, b"k", &[0; 998]).await.unwrap();
        trx.delete(tree, b"k").await.unwrap();
        trx.rollback().await.unwrap();
        let error = db.create_tree("rows").await.unwrap_err();
        assert_eq!(error.to_string(), "tree `rows`: expected a name that is not taken");
        assert_eq!(db.tree("x").unwrap_err().to_string(), "tree `x`: expected one that was made");
    });
}
