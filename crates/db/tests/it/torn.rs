//! Pages that a power cut left half written.

use crate::bed::{Bed, small};
use flashweir_db::{Config, Db, DbError, DoubleWrite, Tree};
use flashweir_fs::memfs::MemFs;
use flashweir_fs::vfs::{OpenFlags, Process, Sink, Source};

const PAGE: usize = 16_384;

async fn data_file(process: &Process<MemFs>) -> Vec<u8> {
    let file = process.open("/db/data", OpenFlags::READ, 0).await.unwrap();
    let mut bytes = vec![0; file.size() as usize];
    file.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
    bytes
}

async fn set_all(db: &Db<MemFs>, tree: Tree, round: u8) {
    let mut trx = db.begin().await.unwrap();
    for row in 0..200u16 {
        let key = row.to_be_bytes();
        if round == 1 {
            trx.insert(tree, &key, &[round; 400]).await.unwrap();
        } else {
            trx.update(tree, &key, &[round; 400]).await.unwrap();
        }
    }
    trx.commit().await.unwrap();
}

/// Restores the second half of each page that the last batch wrote in place, as if a cut had interrupted that batch
/// before the data file was synced. Returns the number of these pages.
fn tear(bed: &mut Bed, config: &Config) -> usize {
    let db = bed.create(config.clone());
    let process = bed.process();
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        set_all(&db, tree, 1).await;
        db.flush().await.unwrap();
        let old = data_file(&process).await;
        set_all(&db, tree, 2).await;
        db.close().await.unwrap();
        let new = data_file(&process).await;
        let file = process.open("/db/data", OpenFlags::READ_WRITE, 0).await.unwrap();
        let mut torn = 0;
        for (page, (old, new)) in old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate() {
            if old[PAGE / 2..] != new[PAGE / 2..] {
                let second_half = (page * PAGE + PAGE / 2) as u64;
                file.pwrite(second_half, Source::bytes(&old[PAGE / 2..])).await.unwrap();
                torn += 1;
            }
        }
        file.close().await.unwrap();
        torn
    })
}

fn config(double_write: DoubleWrite) -> Config {
    let page_bytes = PAGE as u32;
    Config { page_bytes, pool_bytes: 128 * 16_384, double_write, batch_pages: 64, ..small() }
}

#[test]
fn torn_pages_come_back_from_the_double_write_area() {
    let mut bed = Bed::new();
    let torn = tear(&mut bed, &config(DoubleWrite::On));
    assert!(torn >= 5, "{torn}");
    let (db, recovery) = bed.open(config(DoubleWrite::On)).unwrap();
    assert_eq!(recovery.pages_mended, torn as u64);
    bed.run(async move {
        assert!(db.check().await.unwrap().is_good());
        let rows = db.scan(db.tree("rows").unwrap(), &[], None, usize::MAX).await.unwrap();
        assert!(rows.len() == 200 && rows.iter().all(|(_, value)| value == &[2; 400]));
    });
}

/// A load writes pages whose numbers are not durable yet. A cut leaves some of them half written, their numbers are given out again,
/// and recovery met them when a group of the log made them anew.
#[test]
fn regression_a_page_that_the_log_makes_may_be_torn_before() {
    let mut bed = Bed::new();
    let db = bed.create(config(DoubleWrite::On));
    let process = bed.process();
    bed.run(async move {
        let tree = db.create_tree("rows").await.unwrap();
        db.flush().await.unwrap();
        set_all(&db, tree, 1).await;
        let file = process.open("/db/data", OpenFlags::READ_WRITE, 0).await.unwrap();
        let bytes = data_file(&process).await;
        let mut left = 0;
        for page in 0..64 {
            let first = page * PAGE;
            if bytes.get(first..first + PAGE).is_none_or(|page| page.iter().all(|byte| *byte == 0)) {
                file.pwrite(first as u64, Source::bytes(&[0xAB; PAGE / 2])).await.unwrap();
                left += 1;
            }
        }
        assert!(left > 10);
        file.close().await.unwrap();
    });
    let (db, recovery) = bed.open(config(DoubleWrite::On)).unwrap();
    assert!(recovery.groups > 0);
    bed.run(async move {
        assert!(db.check().await.unwrap().is_good());
        let rows = db.scan(db.tree("rows").unwrap(), &[], None, usize::MAX).await.unwrap();
        assert!(rows.len() == 200 && rows.iter().all(|(_, value)| value == &[1; 400]));
    });
}

/// Planted: no double-write area for pages larger than one atomic unit.
#[test]
fn without_it_torn_pages_are_found_and_not_believed() {
    let mut bed = Bed::new();
    assert!(tear(&mut bed, &config(DoubleWrite::Off)) >= 5);
    match bed.open(config(DoubleWrite::Off)) {
        Err(error) => assert!(matches!(error, DbError::Damaged(_)), "{error}"),
        Ok((db, _)) => bed.run(async move {
            let report = db.check().await.unwrap();
            assert!(report.faults.iter().any(|fault| fault.contains("torn")), "{report:?}");
        }),
    }
}
