use super::*;
use crate::oltp::testing::on_mem_fs;
use flashweir_core::Duration;
use flashweir_db::{CheckReport, DbMetrics};

fn options(seed: u64, millis: u64) -> LinkBenchOptions {
    LinkBenchOptions {
        nodes: 3000,
        run: RunOptions {
            connections: 8,
            runtime: Duration::from_millis(millis),
            ..RunOptions::new("l", seed)
        },
        // Less memory than the size of the graph, so that pages are read.
        db: Config {
            page_bytes: 4096,
            pool_bytes: 1 << 20,
            log_file_bytes: 1 << 20,
            transactions_max: 16,
            ..Config::default()
        },
    }
}

/// Loads and runs the mix over in-memory files on a disk that takes 20 µs per page.
fn run(options: LinkBenchOptions) -> (WorkloadResult, DbMetrics, CheckReport) {
    let (mut stack, process) = on_mem_fs();
    let handle = stack.handle();
    let task = async move {
        process.mkdir("/graph", 0o755).await.unwrap();
        let graph = LinkBench::prepare(&process, handle.clone(), "/graph", options.clone()).await.unwrap();
        assert_eq!(graph.check().await.unwrap(), [""; 0]);
        let before = graph.db().metrics();
        let result = graph.run().await.unwrap();
        let metrics = graph.db().metrics().since(&before);
        assert_eq!(graph.check().await.unwrap(), [""; 0]);
        let report = graph.db().check().await.unwrap();
        assert!(report.is_good(), "{report:?}");
        // After a restart the mix continues.
        let config = graph.db().config().clone();
        let LinkBench { shared, .. } = graph;
        let db = Rc::into_inner(shared).unwrap().db;
        db.close().await.unwrap();
        let (db, _) = Db::open(&process, handle.clone(), "/graph", config).await.unwrap();
        let graph = LinkBench::attach(db, handle, options).await.unwrap();
        graph.run().await.unwrap();
        assert_eq!(graph.check().await.unwrap(), [""; 0]);
        (result, metrics, report)
    };
    stack.block_on(task).expect("the run comes to its end")
}

#[test]
fn the_mix_has_its_shares_and_leaves_a_consistent_graph() {
    let (result, metrics, report) = run(options(1, 2000));
    let total = result.sum(&[]).calls;
    assert!(total > 5000, "{result:?}");
    let shares = [507, 129, 90, 80, 74, 49, 30, 26, 10, 5].into_iter().zip(&result.calls);
    for (per_mille, call) in shares {
        let expected = total * per_mille / 1000;
        let slack = 4 * expected.isqrt() + 16;
        assert!(call.calls.abs_diff(expected) <= slack, "{}: {}, expected {expected}", call.name, call.calls);
    }
    assert!(metrics.page_reads > 500 && metrics.page_writes > 100, "{metrics:?}");
    assert_eq!(report.rows["linktable"], report.rows["id1_type"]);
    let added = result.call("add_node").unwrap().calls as i64;
    let deleted = result.call("delete_node").unwrap().calls as i64;
    // Deletions are uniform, so some nodes are chosen twice.
    let gone = 3000.0 * (1.0 - (-deleted as f64 / 3000.0).exp());
    let nodes = report.rows["nodetable"] as i64 - 3000;
    assert!((nodes as f64 - (added as f64 - gone)).abs() < 50.0, "{added} {deleted} {nodes}");
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let first = run(options(5, 200));
    assert_eq!(first, run(options(5, 200)));
    assert_ne!(first.0, run(options(6, 200)).0);
}

#[test]
fn options_out_of_range_are_named() {
    let error = options(1, 1).check().and(LinkBenchOptions::new("l", 1, 5).check()).unwrap_err();
    assert_eq!(error.to_string(), "nodes is 5: expected 100 to 4294967296");
}
