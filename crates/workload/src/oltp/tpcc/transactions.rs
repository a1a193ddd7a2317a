//! The five kinds of transactions (clauses 2.4 to 2.8).

use super::draw::nurand;
use super::load::{history_row, line_row, order_row};
use super::rows::*;
use super::{Shared, date};
use crate::oltp::connections::{self, Mix};
use flashweir_core::{Instant, RandomStream};
use flashweir_db::{DbError, Result, Transaction, Tree};
use flashweir_fs::vfs::Fs;
use std::collections::BTreeSet;

/// Share of each kind in percent (clause 5.2.3).
const SHARES: [u64; 5] = [45, 43, 4, 4, 4];

/// Identification of a customer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Number(u16),
    LastName(u16),
}

/// One line of a new order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Number of the item; `None` for one that does not exist.
    item: Option<u32>,
    supply: u16,
    quantity: u8,
}

/// Input of a transaction.
#[derive(Clone, Debug)]
pub(super) enum Input {
    NewOrder { district: District, customer: u16, lines: Vec<Line> },
    Payment { district: District, of: District, who: Who, amount: i64 },
    OrderStatus { district: District, who: Who },
    Delivery { warehouse: u16, carrier: u8 },
    StockLevel { district: District, threshold: i64 },
}

impl<F: Fs> Shared<F> {
    fn draw_who(&self, stream: &mut RandomStream) -> Who {
        let customers = u64::from(self.options.scale.customers);
        if stream.below(100) < 60 {
            Who::LastName(nurand(stream, 255, self.constants.last_run, customers.min(1000)) as u16)
        } else {
            Who::Number(nurand(stream, 1023, self.constants.customer, customers) as u16)
        }
    }

    /// Draws another warehouse than `home`, if there is one.
    fn draw_remote(&self, stream: &mut RandomStream, home: u16) -> u16 {
        let count = self.options.scale.warehouses;
        if count == 1 {
            return home;
        }
        let other = stream.below(u64::from(count) - 1) as u16;
        if other < home { other } else { other + 1 }
    }

    fn draw_new_order(&self, stream: &mut RandomStream, district: District) -> Input {
        let scale = &self.options.scale;
        let customer = nurand(stream, 1023, self.constants.customer, scale.customers.into()) as u16;
        let fails = stream.below(100) == 0;
        let mut lines: Vec<Line> = (0..5 + stream.below(11))
            .map(|_| Line {
                item: Some(nurand(stream, 8191, self.constants.item, scale.items.into()) as u32),
                supply: if stream.below(100) == 0 {
                    self.draw_remote(stream, district.0)
                } else {
                    district.0
                },
                quantity: 1 + stream.below(10) as u8,
            })
            .collect();
        if let (true, Some(last)) = (fails, lines.last_mut()) {
            last.item = None;
        }
        Input::NewOrder { district, customer, lines }
    }
}

impl<F: Fs> Mix for Shared<F> {
    type Input = Input;

    fn kinds(&self) -> &'static [&'static str] {
        &["new-order", "payment", "order-status", "delivery", "stock-level"]
    }

    fn draw(&self, stream: &mut RandomStream, connection: u32) -> (usize, Input) {
        let mut rest = stream.below(100);
        let mut kind = 0;
        while rest >= SHARES[kind] {
            rest -= SHARES[kind];
            kind += 1;
        }
        let home = (connection % u32::from(self.options.scale.warehouses)) as u16;
        let district = District(home, stream.below(10) as u8);
        let input = match kind {
            0 => self.draw_new_order(stream, district),
            1 => {
                // With a single warehouse, the remote customer still has another district (clause 2.5.1.2).
                let of = match stream.below(100) {
                    0..85 => district,
                    _ => District(self.draw_remote(stream, home), stream.below(10) as u8),
                };
                let amount = 100 + stream.below(499_901) as i64;
                Input::Payment { district, of, who: self.draw_who(stream), amount }
            }
            2 => Input::OrderStatus { district, who: self.draw_who(stream) },
            3 => Input::Delivery { warehouse: home, carrier: 1 + stream.below(10) as u8 },
            // A terminal has a fixed district for these (clause 2.8.1.1).
            _ => {
                let own = connection / u32::from(self.options.scale.warehouses) % 10;
                Input::StockLevel {
                    district: District(home, own as u8),
                    threshold: 10 + stream.below(11) as i64,
                }
            }
        };
        (kind, input)
    }

    async fn perform(&self, input: &Input) -> Result<Option<Instant>> {
        let mut trx = self.db.begin().await?;
        let done = match input {
            Input::NewOrder { district, customer, lines } => {
                self.new_order(&mut trx, *district, *customer, lines).await
            }
            Input::Payment { district, of, who, amount } => {
                self.payment(&mut trx, *district, *of, *who, *amount).await.map(|()| true)
            }
            Input::OrderStatus { district, who } => {
                self.order_status(&trx, *district, *who).await.map(|()| true)
            }
            Input::Delivery { warehouse, carrier } => {
                self.delivery(&mut trx, *warehouse, *carrier).await.map(|()| true)
            }
            Input::StockLevel { district, threshold } => {
                self.stock_level(&trx, *district, *threshold).await.map(|_| true)
            }
        };
        connections::end(trx, done, &self.handle).await
    }
}

/// Reads an existing row.
async fn row<F: Fs>(trx: &Transaction<F>, tree: Tree, key: &[u8]) -> Result<Vec<u8>> {
    trx.get(tree, key).await?.ok_or(DbError::NotFound)
}

/// Reads and locks an existing row, in order to change it.
async fn locked<F: Fs>(trx: &mut Transaction<F>, tree: Tree, key: &[u8]) -> Result<Vec<u8>> {
    trx.lock(tree, key).await?.ok_or(DbError::NotFound)
}

impl<F: Fs> Shared<F> {
    /// Clause 2.4. Returns false if an item does not exist, in which case the transaction has to be rolled back.
    async fn new_order(
        &self,
        trx: &mut Transaction<F>,
        district: District,
        customer: u16,
        lines: &[Line],
    ) -> Result<bool> {
        let tables = &self.tables;
        row(trx, tables.warehouse, &district.0.to_be_bytes()).await?;
        let mut district_row = locked(trx, tables.district, &district.key()).await?;
        let number = D_NEXT_O_ID.get(&district_row) as u32;
        D_NEXT_O_ID.add(&mut district_row, 1);
        trx.update(tables.district, &district.key(), &district_row).await?;
        row(trx, tables.customer, &district.customer(customer)).await?;
        let key = district.order(number);
        let entry = date(&self.handle) as i64;
        trx.insert(tables.order, &key, &order_row(&key, customer, lines.len() as u8, entry)).await?;
        trx.insert(tables.order_customer, &district.order_of(customer, number), &[]).await?;
        trx.insert(tables.new_order, &key, &filled(bytes::NEW_ORDER, &key, 0)).await?;
        for (place, line) in lines.iter().enumerate() {
            let wanted = line.item.unwrap_or(u32::MAX);
            let Some(item) = trx.get(tables.item, &wanted.to_be_bytes()).await? else { return Ok(false) };
            let stock_key = stock_key(line.supply, wanted);
            let mut stock = locked(trx, tables.stock, &stock_key).await?;
            let (quantity, ordered) = (S_QUANTITY.get(&stock), i64::from(line.quantity));
            // Clause 2.4.2.2: stock is refilled by 91 if less than 10 would be left.
            let left = quantity - ordered;
            S_QUANTITY.set(&mut stock, if left >= 10 { left } else { left + 91 });
            S_YTD.add(&mut stock, ordered);
            S_ORDERS.add(&mut stock, 1);
            S_REMOTE.add(&mut stock, i64::from(line.supply != district.0));
            trx.update(tables.stock, &stock_key, &stock).await?;
            let key = district.line(number, place as u8);
            let amount = I_PRICE.get(&item) * ordered;
            let line = line_row(&key, wanted, line.supply, line.quantity, amount);
            trx.insert(tables.order_line, &key, &line).await?;
        }
        Ok(true)
    }

    /// Returns the number of a customer; of those with one last name, the one in the middle (clause 2.5.2.2).
    async fn find(&self, trx: &Transaction<F>, district: District, who: Who) -> Result<u16> {
        let last = match who {
            Who::Number(number) => return Ok(number),
            Who::LastName(last) => last,
        };
        let (from, end) = (district.names(last), district.names(last + 1));
        let names = trx.scan(self.tables.customer_name, &from, Some(&end), usize::MAX).await?;
        let middle = names.len().div_ceil(2).checked_sub(1).ok_or(DbError::NotFound)?;
        let key = &names[middle].0;
        Ok(u16::from_be_bytes([key[key.len() - 2], key[key.len() - 1]]))
    }

    /// Clause 2.5: a customer of `of` pays in `district`.
    async fn payment(
        &self,
        trx: &mut Transaction<F>,
        district: District,
        of: District,
        who: Who,
        amount: i64,
    ) -> Result<()> {
        let tables = &self.tables;
        let key = district.0.to_be_bytes();
        let mut warehouse = locked(trx, tables.warehouse, &key).await?;
        W_YTD.add(&mut warehouse, amount);
        trx.update(tables.warehouse, &key, &warehouse).await?;
        let key = district.key();
        let mut district_row = locked(trx, tables.district, &key).await?;
        D_YTD.add(&mut district_row, amount);
        trx.update(tables.district, &key, &district_row).await?;
        let number = self.find(trx, of, who).await?;
        let key = of.customer(number);
        let mut customer = locked(trx, tables.customer, &key).await?;
        C_BALANCE.add(&mut customer, -amount);
        C_YTD_PAYMENT.add(&mut customer, amount);
        C_PAYMENT_CNT.add(&mut customer, 1);
        if C_CREDIT.get(&customer) == 1 {
            // A customer with bad credit gets the payment recorded in front of earlier records (clause 2.5.2.2).
            let mut note = key.clone();
            note.extend_from_slice(&district.key());
            note.extend_from_slice(&amount.to_le_bytes());
            let data = &mut customer[C_DATA.0..C_DATA.0 + C_DATA.1];
            data.copy_within(..C_DATA.1 - note.len(), note.len());
            data[..note.len()].copy_from_slice(&note);
        }
        trx.update(tables.customer, &key, &customer).await?;
        let number = self.history.get();
        self.history.set(number + 1);
        trx.insert(tables.history, &number.to_be_bytes(), &history_row(number, district, amount)).await
    }

    /// Clause 2.6.
    async fn order_status(&self, trx: &Transaction<F>, district: District, who: Who) -> Result<()> {
        let tables = &self.tables;
        let customer = self.find(trx, district, who).await?;
        row(trx, tables.customer, &district.customer(customer)).await?;
        let from = district.customer(customer);
        let newest = trx.scan(tables.order_customer, &from, None, 1).await?;
        let Some((key, _)) = newest.first().filter(|(key, _)| key.starts_with(&from)) else {
            return Err(DbError::NotFound);
        };
        let number = !number_at(key, from.len());
        // The order may belong to a transaction that is rolled back meanwhile.
        if trx.get(tables.order, &district.order(number)).await?.is_some() {
            let (from, end) = (district.order(number), district.order(number + 1));
            trx.scan(tables.order_line, &from, Some(&end), usize::MAX).await?;
        }
        Ok(())
    }

    /// Clause 2.7: the oldest new order of each district.
    async fn delivery(&self, trx: &mut Transaction<F>, warehouse: u16, carrier: u8) -> Result<()> {
        let tables = &self.tables;
        for district in (0..10).map(|district| District(warehouse, district)) {
            let Some(number) = self.take_new_order(trx, district).await? else { continue };
            let key = district.order(number);
            let mut order = locked(trx, tables.order, &key).await?;
            O_CARRIER.set(&mut order, carrier.into());
            trx.update(tables.order, &key, &order).await?;
            let end = district.order(number + 1);
            let mut sum = 0;
            for (key, mut line) in trx.scan(tables.order_line, &key, Some(&end), usize::MAX).await? {
                sum += OL_AMOUNT.get(&line);
                OL_DELIVERED.set(&mut line, date(&self.handle) as i64);
                trx.update(tables.order_line, &key, &line).await?;
            }
            let key = district.customer(O_CUSTOMER.get(&order) as u16);
            let mut customer = locked(trx, tables.customer, &key).await?;
            C_BALANCE.add(&mut customer, sum);
            C_DELIVERY_CNT.add(&mut customer, 1);
            trx.update(tables.customer, &key, &customer).await?;
        }
        Ok(())
    }

    /// Removes the oldest new order of a district, if there is one. Returns its number.
    async fn take_new_order(&self, trx: &mut Transaction<F>, district: District) -> Result<Option<u32>> {
        let tree = self.tables.new_order;
        loop {
            let oldest = trx.scan(tree, &district.key(), None, 1).await?;
            let Some((key, _)) = oldest.into_iter().find(|(key, _)| District::of(key) == district) else {
                return Ok(None);
            };
            // During the wait, another transaction may have taken the order or rolled back its insertion.
            if trx.lock(tree, &key).await?.is_some() {
                trx.delete(tree, &key).await?;
                return Ok(Some(number_at(&key, 3)));
            }
        }
    }

    /// Clause 2.8: returns the number of items of the last 20 orders that are below the threshold.
    async fn stock_level(&self, trx: &Transaction<F>, district: District, threshold: i64) -> Result<usize> {
        let tables = &self.tables;
        let next = D_NEXT_O_ID.get(&row(trx, tables.district, &district.key()).await?) as u32;
        let (from, end) = (district.order(next.saturating_sub(20)), district.order(next));
        let lines = trx.scan(tables.order_line, &from, Some(&end), usize::MAX).await?;
        let items: BTreeSet<u32> = lines.iter().map(|(_, line)| OL_ITEM.get(line) as u32).collect();
        let mut short = 0;
        for item in items {
            let stock = row(trx, tables.stock, &stock_key(district.0, item)).await?;
            short += usize::from(S_QUANTITY.get(&stock) < threshold);
        }
        Ok(short)
    }
}
