use super::draw::nurand;
use super::rows::{D_YTD, District};
use super::transactions::Input;
use super::*;
use crate::oltp::RunOptions;
use crate::oltp::connections::Mix;
use crate::oltp::testing::on_mem_fs;
use flashweir_core::RandomStream;
use flashweir_db::{Config, CpuCosts};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::{Creds, MountOptions, Vfs};
use flashweir_sim::stack::{FlushMode, Stack};

fn options(seed: u64) -> TpccOptions {
    TpccOptions {
        scale: Scale { warehouses: 2, items: 500, customers: 60 },
        run: RunOptions { connections: 8, runtime: Duration::from_secs(2), ..RunOptions::new("t", seed) },
        db: Config {
            pool_bytes: 4 << 20,
            log_file_bytes: 1 << 20,
            transactions_max: 16,
            ..Config::default()
        },
    }
}

/// Loads and runs the mix over in-memory files on a disk that takes 20 µs per page.
fn run(options: TpccOptions) -> (WorkloadResult, Vec<String>, flashweir_db::DbMetrics, [i64; 2]) {
    let (mut stack, process) = on_mem_fs();
    let handle = stack.handle();
    let task = async move {
        process.mkdir("/tpcc", 0o755).await.unwrap();
        let tpcc = Tpcc::prepare(&process, handle, "/tpcc", options).await.unwrap();
        assert_eq!(tpcc.check().await.unwrap(), [""; 0]);
        let before = tpcc.db().metrics();
        let result = tpcc.run().await.unwrap();
        let metrics = tpcc.db().metrics().since(&before);
        let report = tpcc.db().check().await.unwrap();
        assert!(report.is_good(), "{report:?}");
        let rows = |name: &str| report.rows[name] as i64;
        // One row of history for each payment since loading, one order for each new order.
        let made = [rows("orders") - 2 * 10 * 60, rows("history") - 2 * 10 * 60];
        assert_eq!(rows("orders"), rows("order_customer"));
        let faults = tpcc.check().await.unwrap();
        (result, faults, metrics, made)
    };
    stack.block_on(task).expect("the run comes to its end")
}

#[test]
fn the_mix_has_its_shares_and_leaves_consistent_tables() {
    let (result, faults, metrics, [orders, payments]) = run(options(1));
    assert_eq!(faults, [""; 0]);
    let total = result.sum(&[]).calls;
    assert!(total > 2000, "{result:?}");
    for (kind, share) in [("new-order", 45), ("payment", 43), ("order-status", 4), ("delivery", 4)] {
        let calls = result.call(kind).unwrap().calls;
        let expected = total * share / 100;
        // Four standard deviations of a binomial distribution, and the transactions in progress at the end.
        let slack = 4 * expected.isqrt() + 8;
        assert!(calls.abs_diff(expected) <= slack, "{kind}: {calls}, expected {expected}");
    }
    // 1 % of new orders was rolled back; those that ended after the time are in the tables and do not count.
    let new_orders = result.call("new-order").unwrap().calls as i64;
    let rolled_back = new_orders + 8 - orders;
    assert!((1..=8 + new_orders / 25).contains(&rolled_back), "{new_orders} calls, {orders} orders");
    assert!((0..=8).contains(&(payments - result.call("payment").unwrap().calls as i64)));
    // Synchronous ends: those of all writing kinds, except rolled-back transactions and deliveries that found nothing.
    let writing = ["new-order", "payment", "delivery"].map(|kind| result.call(kind).unwrap().calls);
    let commits = result.call("commit").unwrap().calls;
    assert!(
        commits < writing.iter().sum() && commits > writing[0] * 9 / 10 + writing[1],
        "{commits}, {writing:?}"
    );
    assert!(metrics.rollbacks > 0 && metrics.log_syncs < metrics.commits, "{metrics:?}");
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let short = |seed| {
        let mut options = options(seed);
        options.run.runtime = Duration::from_millis(300);
        run(options)
    };
    let first = short(5);
    assert_eq!((&first.0, &first.2), (&short(5).0, &short(5).2));
    assert_ne!(first.0, short(6).0);
}

#[test]
fn transactions_cost_cpu_time() {
    let mean = |costs| {
        let mut options = options(2);
        options.run.connections = 1;
        options.run.runtime = Duration::from_millis(500);
        options.db.costs = costs;
        let (result, ..) = run(options);
        result.call("new-order").unwrap().latency.summary.mean_ns
    };
    let (free, costs) = (mean(CpuCosts::ZERO), mean(CpuCosts::default()));
    // A warehouse, a district twice, a customer, three insertions; four for each of ten lines; 10 µs each.
    assert!((400_000.0..620_000.0).contains(&(costs - free)), "{free} and {costs}");
}

#[test]
fn what_contradicts_the_conditions_is_found() {
    let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let mut stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
    let vfs =
        Vfs::mount(MemFs::new(MemFsConfig::default()), stack.handle(), MountOptions::default()).unwrap();
    let (process, handle) = (vfs.process(Creds::ROOT), stack.handle());
    let task = async move {
        process.mkdir("/tpcc", 0o755).await.unwrap();
        let tpcc = Tpcc::prepare(&process, handle, "/tpcc", options(1)).await.unwrap();
        let (db, tables) = (tpcc.db(), tpcc.shared.tables);
        let district = District(1, 3);
        let mut trx = db.begin().await.unwrap();
        let mut row = trx.lock(tables.district, &district.key()).await.unwrap().unwrap();
        D_YTD.add(&mut row, 5);
        trx.update(tables.district, &district.key(), &row).await.unwrap();
        trx.delete(tables.order_line, &district.line(60, 0)).await.unwrap();
        trx.delete(tables.new_order, &district.order(55)).await.unwrap();
        trx.commit().await.unwrap();
        tpcc.check().await.unwrap()
    };
    let faults = stack.block_on(task).unwrap();
    let clauses: Vec<&str> = faults.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    assert_eq!(clauses, ["3.3.2.3", "3.3.2.4", "3.3.2.5", "3.3.2.6", "3.3.2.9", "3.3.2.1"], "{faults:?}");
}

/// Clauses 2.5.1.2 and 2.8.1.1 with one warehouse: remote customers are of any district, and a terminal asks only for
/// the stock of its own district.
#[test]
fn inputs_follow_the_standard() {
    let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let mut stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
    let vfs =
        Vfs::mount(MemFs::new(MemFsConfig::default()), stack.handle(), MountOptions::default()).unwrap();
    let (process, handle) = (vfs.process(Creds::ROOT), stack.handle());
    let task = async move {
        process.mkdir("/tpcc", 0o755).await.unwrap();
        let mut options = options(1);
        options.scale.warehouses = 1;
        let tpcc = Tpcc::prepare(&process, handle, "/tpcc", options).await.unwrap();
        let mut stream = RandomStream::new(1, "inputs");
        let (mut stock_levels, mut payments, mut elsewhere) = (0, 0u32, 0u32);
        for draw in 0..20_000u32 {
            match tpcc.shared.draw(&mut stream, draw % 16).1 {
                Input::StockLevel { district, .. } => {
                    assert_eq!(u32::from(district.1), draw % 16 % 10);
                    stock_levels += 1;
                }
                Input::Payment { district, of, .. } => {
                    assert_eq!(of.0, 0);
                    payments += 1;
                    elsewhere += u32::from(of.1 != district.1);
                }
                _ => {}
            }
        }
        (stock_levels, f64::from(elsewhere) / f64::from(payments))
    };
    let (stock_levels, elsewhere) = stack.block_on(task).unwrap();
    assert!(stock_levels > 700, "{stock_levels}");
    // 15 %, of which a tenth draws the same district by chance.
    assert!((0.12..0.15).contains(&elsewhere), "{elsewhere}");
}

#[test]
fn options_out_of_range_are_named() {
    let scale = Scale { warehouses: 0, ..Scale::of_warehouses(1) };
    assert_eq!(scale.validate().unwrap_err().to_string(), "warehouses is 0: expected 1 to 60000");
}

#[test]
fn keys_are_drawn_by_the_law_of_the_standard() {
    let mut stream = RandomStream::new(1, "nurand");
    let mut counts = vec![0u32; 3000];
    for _ in 0..300_000 {
        counts[nurand(&mut stream, 1023, 77, 3000) as usize] += 1;
    }
    // The OR of two numbers has more ones: some keys are far likelier than the mean of 100.
    let (most, least) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
    assert!(most > 500 && least < 20, "{most} {least}");
    for seed in 0..50 {
        let constants = Constants::new(seed, "x");
        assert!((65..=119).contains(&constants.last_load.abs_diff(constants.last_run)));
    }
}
