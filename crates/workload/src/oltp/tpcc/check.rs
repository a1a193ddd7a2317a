//! The consistency conditions of clause 3.3.2 that this mix can violate: 1 to 7 and 9 (8 follows from 1 and 9).

use super::options::Scale;
use super::rows::*;
use super::tables::Tables;
use crate::oltp::each;
use flashweir_db::{Db, Result};
use flashweir_fs::vfs::Fs;
use std::collections::BTreeMap;

/// Sums over the tables for a district.
#[derive(Default)]
struct Sums {
    ytd: i64,
    next_order: i64,
    orders: u64,
    order_max: u32,
    undelivered: u64,
    lines_said: i64,
    new_orders: u64,
    new_min: u32,
    new_max: u32,
    lines: i64,
    undelivered_lines: u64,
    paid: i64,
    /// Number of lines that each order claims, and whether it has a carrier.
    said: BTreeMap<u32, (i64, bool)>,
}

/// Returns the violated conditions, each once.
pub(super) async fn check<F: Fs>(db: &Db<F>, tables: &Tables, scale: &Scale) -> Result<Vec<String>> {
    let mut sums: BTreeMap<District, Sums> = BTreeMap::new();
    let mut faults = Vec::new();
    each(db, tables.district, |(key, row)| {
        let sums = sums.entry(District::of(key)).or_default();
        (sums.ytd, sums.next_order) = (D_YTD.get(row), D_NEXT_O_ID.get(row));
    })
    .await?;
    let known = usize::from(scale.warehouses) * 10;
    if sums.len() != known {
        faults.push(format!("{} districts: expected {known}", sums.len()));
    }
    each(db, tables.order, |(key, row)| {
        let sums = sums.entry(District::of(key)).or_default();
        let number = number_at(key, 3);
        sums.orders += 1;
        sums.order_max = sums.order_max.max(number);
        sums.lines_said += O_LINES.get(row);
        sums.undelivered += u64::from(O_CARRIER.get(row) == 0);
        sums.said.insert(number, (O_LINES.get(row), O_CARRIER.get(row) != 0));
    })
    .await?;
    each(db, tables.new_order, |(key, _)| {
        let sums = sums.entry(District::of(key)).or_default();
        let number = number_at(key, 3);
        sums.new_min = if sums.new_orders == 0 { number } else { sums.new_min.min(number) };
        sums.new_max = sums.new_max.max(number);
        sums.new_orders += 1;
        if sums.said.get(&number).is_none_or(|&(_, has_carrier)| has_carrier) {
            faults
                .push(format!("3.3.2.5: new order {number} of {:?} is delivered or none", District::of(key)));
        }
    })
    .await?;
    each(db, tables.order_line, |(key, row)| {
        let sums = sums.entry(District::of(key)).or_default();
        sums.lines += 1;
        let number = number_at(key, 3);
        let Some((left, has_carrier)) = sums.said.get_mut(&number) else {
            faults
                .push(format!("3.3.2.6: a line of order {number} of {:?}, which is none", District::of(key)));
            return;
        };
        *left -= 1;
        if *has_carrier != (OL_DELIVERED.get(row) != 0) {
            sums.undelivered_lines += 1;
        }
    })
    .await?;
    each(db, tables.history, |(_, row)| {
        let district = District(H_WAREHOUSE.get(row) as u16, H_DISTRICT.get(row) as u8);
        sums.entry(district).or_default().paid += H_AMOUNT.get(row);
    })
    .await?;
    let mut of_warehouses: BTreeMap<u16, i64> = BTreeMap::new();
    for (district, sums) in &sums {
        *of_warehouses.entry(district.0).or_default() += sums.ytd;
        let mut expect = |clause: &str, what: &str, left: i64, right: i64| {
            if left != right {
                faults.push(format!("{clause}: {what} of {district:?}: {left} is not {right}"));
            }
        };
        expect("3.3.2.2", "next order - 1 and highest order", sums.next_order - 1, sums.order_max.into());
        if sums.new_orders > 0 {
            expect("3.3.2.2", "highest order and new order", sums.order_max.into(), sums.new_max.into());
            let span = i64::from(sums.new_max - sums.new_min) + 1;
            expect("3.3.2.3", "span and count of new orders", span, sums.new_orders as i64);
        }
        expect("3.3.2.4", "lines that orders say and lines", sums.lines_said, sums.lines);
        expect(
            "3.3.2.5",
            "orders without carrier and new orders",
            sums.undelivered as i64,
            sums.new_orders as i64,
        );
        let wrong = sums.said.values().filter(|(left, _)| *left != 0).count();
        expect("3.3.2.6", "orders with other lines than they say", wrong as i64, 0);
        expect("3.3.2.7", "lines delivered apart from their order", sums.undelivered_lines as i64, 0);
        expect("3.3.2.9", "year to date and payments", sums.ytd, sums.paid);
        expect("3.3.2.2", "orders and the highest one", sums.orders as i64, sums.order_max.into());
    }
    each(db, tables.warehouse, |(key, row)| {
        let warehouse = u16::from_be_bytes([key[0], key[1]]);
        let (ytd, districts) = (W_YTD.get(row), of_warehouses.get(&warehouse).copied().unwrap_or(0));
        if ytd != districts {
            faults.push(format!(
                "3.3.2.1: warehouse {warehouse}: {ytd} is not {districts}, the sum of its districts"
            ));
        }
    })
    .await?;
    Ok(faults)
}
