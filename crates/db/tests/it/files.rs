//! A data file for each table.

use crate::bed::{Bed, small};
use flashweir_db::{Config, Db, DbError, Tree};
use flashweir_fs::memfs::{Faults, MemFs};
use flashweir_fs::vfs::{Errno, Follow, Process};

fn config() -> Config {
    Config { file_per_table: true, ..small() }
}

async fn pages_of(process: &Process<MemFs>, name: &str) -> u64 {
    process.stat(format!("/db/{name}"), Follow::Yes).await.unwrap().size / 4096
}

async fn fill(db: &Db<MemFs>, tree: Tree, rows: u32) {
    let mut trx = db.begin().await.unwrap();
    for row in 0..rows {
        trx.insert(tree, &row.to_be_bytes(), &[7; 400]).await.unwrap();
    }
    trx.commit().await.unwrap();
}

#[test]
fn a_table_and_its_index_share_a_file_of_their_own() {
    let mut bed = Bed::new();
    let db = bed.create(config());
    let process = bed.process();
    bed.run(async move {
        let first = db.create_tree("first").await.unwrap();
        let second = db.create_tree("second").await.unwrap();
        fill(&db, second, 300).await;
        db.flush().await.unwrap();
        let (of_first, of_second) = (pages_of(&process, "data-1").await, pages_of(&process, "data-2").await);
        assert!(of_first <= 2 && of_second > 30, "{of_first} and {of_second}");
        let index = db.create_index("index of first", first).await.unwrap();
        fill(&db, index, 300).await;
        db.close().await.unwrap();
        assert!(pages_of(&process, "data-1").await > 30);
        assert_eq!(process.stat("/db/data-3", Follow::Yes).await.unwrap_err(), Errno::ENOENT);
    });
    // What a table frees is used again by it. Trees of before are where they were, also without the option.
    let (db, _) = bed.open(small()).unwrap();
    let process = bed.process();
    bed.run(async move {
        let report = db.check().await.unwrap();
        assert!(report.is_good() && report.lost_pages == 0, "{report:?}");
        let trees = ["first", "second", "index of first"].map(|name| (name.to_owned(), report.rows[name]));
        assert_eq!(trees.map(|(_, rows)| rows), [0, 300, 300]);
        let second = db.tree("second").unwrap();
        let before = pages_of(&process, "data-2").await;
        let mut trx = db.begin().await.unwrap();
        for row in 0..300u32 {
            trx.delete(second, &row.to_be_bytes()).await.unwrap();
        }
        trx.commit().await.unwrap();
        assert!(db.check().await.unwrap().free_pages > 30);
        fill(&db, second, 300).await;
        let third = db.create_tree("third").await.unwrap();
        fill(&db, third, 10).await;
        db.close().await.unwrap();
        assert!(pages_of(&process, "data-2").await <= before + 1);
        assert_eq!(process.stat("/db/data-3", Follow::Yes).await.unwrap_err(), Errno::ENOENT);
    });
}

/// A call that failed after it had made the file leaves it to the next one.
#[test]
fn a_file_that_was_left_behind_is_used() {
    let mut bed = Bed::new();
    let db = bed.create(config());
    let (process, fs) = (bed.process(), bed.fs.clone());
    bed.run(async move {
        fs.set_faults(Faults { syncs: Some(Errno::EIO), ..Faults::default() });
        let failure = db.create_tree("rows").await.unwrap_err();
        assert_eq!(failure, DbError::File { what: "syncing /db/data-1".into(), errno: Errno::EIO });
        fs.set_faults(Faults::default());
        assert_eq!(pages_of(&process, "data-1").await, 0);
    });
    for name in ["rows", "further"] {
        let (db, _) = bed.open(config()).unwrap();
        let process = bed.process();
        bed.run(async move {
            assert!(db.check().await.unwrap().is_good());
            let tree = db.create_tree(name).await.unwrap();
            fill(&db, tree, 100).await;
            let report = db.check().await.unwrap();
            assert!(report.is_good() && report.rows[name] == 100, "{report:?}");
            db.close().await.unwrap();
            assert!(pages_of(&process, if name == "rows" { "data-1" } else { "data-2" }).await > 10);
        });
    }
}

#[test]
fn there_are_at_most_255_of_them() {
    let mut bed = Bed::new();
    let config = Config { page_bytes: 16_384, pool_bytes: 128 * 16_384, ..config() };
    let db = bed.create(config.clone());
    bed.run(async move {
        for number in 0..255 {
            db.create_tree(&format!("t{number}")).await.unwrap();
        }
        let refused = db.create_tree("another").await.unwrap_err();
        assert_eq!(refused.to_string(), "tree `another`: expected at most 255 data files");
        let last = db.tree("t254").unwrap();
        fill(&db, db.create_index("index", last).await.unwrap(), 100).await;
        db.close().await.unwrap();
    });
    let (db, _) = bed.open(config).unwrap();
    bed.run(async move {
        let report = db.check().await.unwrap();
        assert!(report.is_good() && report.rows.len() == 256 && report.rows["index"] == 100, "{report:?}");
    });
}

/// Pages are written each second, long before the log is half full.
#[test]
fn pages_are_written_ahead() {
    let mut bed = Bed::new();
    let db = bed.create(Config { io_capacity: 200, ..config() });
    let handle = bed.handle();
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        fill(&db, tree, 500).await;
        assert_eq!(db.metrics().page_writes, 0);
        let later = handle.now() + flashweir_core::Duration::from_secs(5);
        handle.sleep_until(later).await;
        let metrics = db.metrics();
        assert!(
            metrics.adaptive_writes > 10 && metrics.page_writes == metrics.adaptive_writes,
            "{metrics:?}"
        );
        db.close().await.unwrap();
    });
}
