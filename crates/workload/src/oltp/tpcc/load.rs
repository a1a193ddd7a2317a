//! The tables at the beginning (clause 4.3.3).
//!
//! Invariant: the contents of a row depend on the seed and on its key, so each table is made separately, in the order
//! of its keys.

use super::draw::{Constants, nurand};
use super::options::{Scale, TpccOptions};
use super::rows::*;
use super::tables::Tables;
use flashweir_core::RandomStream;
use flashweir_core::random::mix;
use flashweir_db::{Db, Result, Tree};
use flashweir_fs::vfs::Fs;

/// Date of everything before the run.
const LOADED: i64 = 1;

/// Payment of each customer before the run, in cents.
const FIRST_PAYMENT: i64 = 10_00;

/// One order in the initial tables.
#[derive(Clone, Copy)]
struct Order {
    number: u32,
    customer: u16,
    lines: u8,
    is_new: bool,
}

/// Returns the orders of a district: one per customer, in random order; the last three of ten are not delivered yet.
fn orders(seed: u64, scale: &Scale, district: District) -> Vec<Order> {
    let count = usize::from(scale.customers);
    let mut stream = RandomStream::new(seed, &format!("tpcc.orders.{}.{}", district.0, district.1));
    let mut customers: Vec<u16> = (0..scale.customers).collect();
    for place in (1..count).rev() {
        customers.swap(place, stream.below(place as u64 + 1) as usize);
    }
    let order = |(place, customer): (usize, u16)| Order {
        number: place as u32 + 1,
        customer,
        lines: 5 + stream.below(11) as u8,
        is_new: place >= count - count * 3 / 10,
    };
    customers.into_iter().enumerate().map(order).collect()
}

fn districts(scale: &Scale) -> impl Iterator<Item = District> + use<> {
    (0..scale.warehouses).flat_map(|warehouse| (0..10).map(move |district| District(warehouse, district)))
}

/// Loads every table. Returns the number of rows in the history.
pub(super) async fn load<F: Fs>(
    db: &Db<F>,
    tables: &Tables,
    options: &TpccOptions,
    constants: &Constants,
) -> Result<u64> {
    let (scale, seed) = (&options.scale, options.run.seed);
    items(db, tables.item, scale, seed).await?;
    stock(db, tables.stock, scale, seed).await?;
    warehouses(db, tables, scale, seed).await?;
    customers(db, tables, scale, seed, constants).await?;
    let history = history(db, tables.history, scale).await?;
    all_orders(db, tables, scale, seed).await?;
    Ok(history)
}

async fn items<F: Fs>(db: &Db<F>, tree: Tree, scale: &Scale, seed: u64) -> Result<()> {
    let mut stream = RandomStream::new(seed, "tpcc.items");
    let mut loader = db.load(tree).await?;
    for item in 0..scale.items {
        let key = item.to_be_bytes();
        let mut row = filled(bytes::ITEM, &key, item.into());
        I_PRICE.set(&mut row, 100 + stream.below(9_901) as i64);
        loader.add(&key, &row).await?;
    }
    loader.finish().await.map(drop)
}

async fn stock<F: Fs>(db: &Db<F>, tree: Tree, scale: &Scale, seed: u64) -> Result<()> {
    let mut stream = RandomStream::new(seed, "tpcc.stock");
    let mut loader = db.load(tree).await?;
    for warehouse in 0..scale.warehouses {
        for item in 0..scale.items {
            let key = stock_key(warehouse, item);
            let mut row = filled(bytes::STOCK, &key, u64::from(warehouse) << 32 | u64::from(item));
            S_QUANTITY.set(&mut row, 10 + stream.below(91) as i64);
            for field in [S_YTD, S_ORDERS, S_REMOTE] {
                field.set(&mut row, 0);
            }
            loader.add(&key, &row).await?;
        }
    }
    loader.finish().await.map(drop)
}

async fn warehouses<F: Fs>(db: &Db<F>, tables: &Tables, scale: &Scale, seed: u64) -> Result<()> {
    let of_district = FIRST_PAYMENT * i64::from(scale.customers);
    let mut loader = db.load(tables.warehouse).await?;
    for warehouse in 0..scale.warehouses {
        let key = warehouse.to_be_bytes();
        let mut row = filled(bytes::WAREHOUSE, &key, mix(seed) ^ u64::from(warehouse));
        W_YTD.set(&mut row, 10 * of_district);
        loader.add(&key, &row).await?;
    }
    loader.finish().await?;
    let mut loader = db.load(tables.district).await?;
    for district in districts(scale) {
        let key = district.key();
        let mut row = filled(bytes::DISTRICT, &key, u64::from(district.0) << 8 | u64::from(district.1));
        D_YTD.set(&mut row, of_district);
        D_NEXT_O_ID.set(&mut row, i64::from(scale.customers) + 1);
        loader.add(&key, &row).await?;
    }
    loader.finish().await.map(drop)
}

async fn customers<F: Fs>(
    db: &Db<F>,
    tables: &Tables,
    scale: &Scale,
    seed: u64,
    constants: &Constants,
) -> Result<()> {
    let mut stream = RandomStream::new(seed, "tpcc.customers");
    let names = u64::from(scale.customers).min(1000);
    let mut rows = db.load(tables.customer).await?;
    let mut index = db.load(tables.customer_name).await?;
    for district in districts(scale) {
        let mut keys = Vec::new();
        for customer in 0..scale.customers {
            let key = district.customer(customer);
            let mut row = filled(bytes::CUSTOMER, &key, stream.next_u64());
            C_BALANCE.set(&mut row, -FIRST_PAYMENT);
            C_YTD_PAYMENT.set(&mut row, FIRST_PAYMENT);
            C_PAYMENT_CNT.set(&mut row, 1);
            C_DELIVERY_CNT.set(&mut row, 0);
            C_CREDIT.set(&mut row, i64::from(stream.below(10) == 0));
            rows.add(&key, &row).await?;
            // Each name occurs at least once (clause 4.3.3.1).
            let last = match u64::from(customer) {
                customer if customer < names => customer,
                _ => nurand(&mut stream, 255, constants.last_load, names),
            };
            keys.push(district.name(last as u16, stream.next_u64() as u32, customer));
        }
        keys.sort_unstable();
        for key in keys {
            index.add(&key, &[]).await?;
        }
    }
    rows.finish().await?;
    index.finish().await.map(drop)
}

async fn history<F: Fs>(db: &Db<F>, tree: Tree, scale: &Scale) -> Result<u64> {
    let mut loader = db.load(tree).await?;
    let mut number = 0u64;
    for district in districts(scale) {
        for _ in 0..scale.customers {
            loader.add(&number.to_be_bytes(), &history_row(number, district, FIRST_PAYMENT)).await?;
            number += 1;
        }
    }
    loader.finish().await
}

/// Makes a row of the history.
pub(super) fn history_row(number: u64, district: District, amount: i64) -> Vec<u8> {
    let mut row = filled(bytes::HISTORY, &number.to_be_bytes(), number);
    H_WAREHOUSE.set(&mut row, district.0.into());
    H_DISTRICT.set(&mut row, district.1.into());
    H_AMOUNT.set(&mut row, amount);
    row
}

async fn all_orders<F: Fs>(db: &Db<F>, tables: &Tables, scale: &Scale, seed: u64) -> Result<()> {
    let mut stream = RandomStream::new(seed, "tpcc.lines");
    let mut rows = db.load(tables.order).await?;
    let mut index = db.load(tables.order_customer).await?;
    let mut new = db.load(tables.new_order).await?;
    let mut lines = db.load(tables.order_line).await?;
    for district in districts(scale) {
        let orders = orders(seed, scale, district);
        for order in &orders {
            let key = district.order(order.number);
            let mut row = order_row(&key, order.customer, order.lines, LOADED);
            O_CARRIER.set(&mut row, if order.is_new { 0 } else { 1 + stream.below(10) as i64 });
            rows.add(&key, &row).await?;
            if order.is_new {
                new.add(&key, &filled(bytes::NEW_ORDER, &key, 0)).await?;
            }
            for line in 0..order.lines {
                let key = district.line(order.number, line);
                let item = stream.below(scale.items.into()) as u32;
                let amount = if order.is_new { 1 + stream.below(999_999) as i64 } else { 0 };
                let mut row = line_row(&key, item, district.0, 5, amount);
                OL_DELIVERED.set(&mut row, if order.is_new { 0 } else { LOADED });
                lines.add(&key, &row).await?;
            }
        }
        let mut keys: Vec<Vec<u8>> =
            orders.iter().map(|order| district.order_of(order.customer, order.number)).collect();
        keys.sort_unstable();
        for key in keys {
            index.add(&key, &[]).await?;
        }
    }
    for loader in [rows, index, new, lines] {
        loader.finish().await?;
    }
    Ok(())
}

/// Makes a row of an undelivered order.
pub(super) fn order_row(key: &[u8], customer: u16, lines: u8, entry: i64) -> Vec<u8> {
    let mut row = filled(bytes::ORDER, key, 0);
    O_CUSTOMER.set(&mut row, customer.into());
    O_CARRIER.set(&mut row, 0);
    O_LINES.set(&mut row, lines.into());
    O_ENTRY.set(&mut row, entry);
    row
}

/// Makes a line of an undelivered order.
pub(super) fn line_row(key: &[u8], item: u32, supply: u16, quantity: u8, amount: i64) -> Vec<u8> {
    let mut row = filled(bytes::ORDER_LINE, key, item.into());
    OL_ITEM.set(&mut row, item.into());
    OL_SUPPLY.set(&mut row, supply.into());
    OL_DELIVERED.set(&mut row, 0);
    OL_AMOUNT.set(&mut row, amount);
    OL_QUANTITY.set(&mut row, quantity.into());
    row
}
