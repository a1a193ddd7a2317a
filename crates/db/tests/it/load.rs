//! Bulk loading.

use crate::bed::{Bed, small};
use flashweir_db::{Config, DbError};

#[test]
fn a_loaded_tree_is_complete_in_order_and_can_be_changed() {
    for (rows, page_bytes) in
        [(0u32, 4096), (1, 4096), (20, 4096), (5_000, 4096), (90_000, 4096), (30_000, 16_384)]
    {
        let mut bed = Bed::new();
        let config = Config { page_bytes, pool_bytes: 128 * u64::from(page_bytes), ..small() };
        let db = bed.create(config.clone());
        bed.run(async move {
            let tree = db.create_tree("rows").await.unwrap();
            let mut loader = db.load(tree).await.unwrap();
            for row in 0..rows {
                loader
                    .add(&row.to_be_bytes(), &row.to_le_bytes().repeat(1 + row as usize % 20))
                    .await
                    .unwrap();
            }
            if rows > 0 {
                let again = (rows - 1).to_be_bytes();
                assert_eq!(loader.add(&again, b"").await, Err(DbError::Duplicate));
            }
            assert_eq!(loader.finish().await.unwrap(), u64::from(rows));
            let report = db.check().await.unwrap();
            assert!(report.is_good(), "{rows}: {report:?}");
            assert_eq!((report.rows["rows"], report.lost_pages), (rows.into(), 0));
            let mut trx = db.begin().await.unwrap();
            for row in (0..rows).step_by(7) {
                trx.delete(tree, &row.to_be_bytes()).await.unwrap();
            }
            for row in rows..rows + 300 {
                trx.insert(tree, &row.to_be_bytes(), b"new").await.unwrap();
            }
            trx.commit().await.unwrap();
            db.close().await.unwrap();
        });
        let (db, _) = bed.open(config).unwrap();
        bed.run(async move {
            let tree = db.tree("rows").unwrap();
            let seen = db.scan(tree, &[], None, usize::MAX).await.unwrap();
            assert_eq!(seen.len() as u32, rows - rows.div_ceil(7) + 300);
            for (key, value) in seen {
                let row = u32::from_be_bytes(key.try_into().unwrap());
                if row < rows {
                    assert_eq!(value, row.to_le_bytes().repeat(1 + row as usize % 20));
                } else {
                    assert_eq!(value, b"new");
                }
            }
            assert!(db.check().await.unwrap().is_good());
            let refused = db.load(tree).await.err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), Some("tree `rows`: expected an empty one to load"));
        });
    }
}
