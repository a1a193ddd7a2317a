//! Keys and rows: fixed fields at fixed offsets, and padding to the row length that the standard gives (clause 1.2.1,
//! including the key).
//!
//! Amounts are in cents.

use flashweir_core::random::mix;

/// Length of a row in bytes, including the key, by table.
pub(super) mod bytes {
    pub(crate) const WAREHOUSE: usize = 89;
    pub(crate) const DISTRICT: usize = 95;
    pub(crate) const CUSTOMER: usize = 655;
    pub(crate) const HISTORY: usize = 46;
    pub(crate) const ORDER: usize = 24;
    pub(crate) const NEW_ORDER: usize = 8;
    pub(crate) const ORDER_LINE: usize = 54;
    pub(crate) const STOCK: usize = 306;
    pub(crate) const ITEM: usize = 82;
}

/// A number in a row: its offset and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field(usize, usize);

impl Field {
    /// Returns its value; signed.
    pub(super) fn get(self, row: &[u8]) -> i64 {
        let mut value = [0; 8];
        value[..self.1].copy_from_slice(&row[self.0..self.0 + self.1]);
        let unused = 64 - 8 * self.1 as u32;
        i64::from_le_bytes(value) << unused >> unused
    }

    pub(super) fn set(self, row: &mut [u8], value: i64) {
        row[self.0..self.0 + self.1].copy_from_slice(&value.to_le_bytes()[..self.1]);
    }

    pub(super) fn add(self, row: &mut [u8], value: i64) {
        let sum = self.get(row) + value;
        self.set(row, sum);
    }
}

pub(super) const W_YTD: Field = Field(0, 8);
pub(super) const D_YTD: Field = Field(0, 8);
pub(super) const D_NEXT_O_ID: Field = Field(8, 8);
pub(super) const C_BALANCE: Field = Field(0, 8);
pub(super) const C_YTD_PAYMENT: Field = Field(8, 8);
pub(super) const C_PAYMENT_CNT: Field = Field(16, 4);
pub(super) const C_DELIVERY_CNT: Field = Field(20, 4);
/// 1 stands for bad credit.
pub(super) const C_CREDIT: Field = Field(24, 1);
/// The first byte of `C_DATA`, and its length.
pub(super) const C_DATA: (usize, usize) = (120, 500);
pub(super) const H_WAREHOUSE: Field = Field(0, 4);
pub(super) const H_DISTRICT: Field = Field(4, 1);
pub(super) const H_AMOUNT: Field = Field(8, 8);
pub(super) const O_CUSTOMER: Field = Field(0, 2);
/// 0 stands for none yet.
pub(super) const O_CARRIER: Field = Field(2, 1);
pub(super) const O_LINES: Field = Field(3, 1);
pub(super) const O_ENTRY: Field = Field(4, 8);
pub(super) const OL_ITEM: Field = Field(0, 4);
pub(super) const OL_SUPPLY: Field = Field(4, 4);
/// 0 stands for not yet.
pub(super) const OL_DELIVERED: Field = Field(8, 8);
pub(super) const OL_AMOUNT: Field = Field(16, 4);
pub(super) const OL_QUANTITY: Field = Field(20, 1);
pub(super) const S_QUANTITY: Field = Field(0, 2);
pub(super) const S_YTD: Field = Field(2, 4);
pub(super) const S_ORDERS: Field = Field(6, 4);
pub(super) const S_REMOTE: Field = Field(10, 4);
pub(super) const I_PRICE: Field = Field(0, 4);

/// Makes a row of `row_bytes` bytes without its key, with padding that depends only on `identity`.
pub(super) fn filled(row_bytes: usize, key: &[u8], identity: u64) -> Vec<u8> {
    let mut row = vec![0; row_bytes.saturating_sub(key.len())];
    let mut word = mix(identity);
    for chunk in row.chunks_mut(8) {
        word = mix(word);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    row
}

/// A district: warehouse from 0, district from 0 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct District(pub(super) u16, pub(super) u8);

impl District {
    pub(super) fn key(self) -> Vec<u8> {
        let mut key = self.0.to_be_bytes().to_vec();
        key.push(self.1);
        key
    }

    fn with(self, rest: &[u8]) -> Vec<u8> {
        let mut key = self.key();
        key.extend_from_slice(rest);
        key
    }

    pub(super) fn customer(self, customer: u16) -> Vec<u8> {
        self.with(&customer.to_be_bytes())
    }

    /// Key of a customer among those with one last name, in the order of their first names.
    pub(super) fn name(self, last: u16, first: u32, customer: u16) -> Vec<u8> {
        let mut key = self.names(last);
        key.extend_from_slice(&first.to_be_bytes());
        key.extend_from_slice(&customer.to_be_bytes());
        key
    }

    /// Prefix of all customers with this last name.
    pub(super) fn names(self, last: u16) -> Vec<u8> {
        self.with(&last.to_be_bytes())
    }

    /// Key of orders and new orders.
    pub(super) fn order(self, order: u32) -> Vec<u8> {
        self.with(&order.to_be_bytes())
    }

    /// Key of a customer's orders, the newest first.
    pub(super) fn order_of(self, customer: u16, order: u32) -> Vec<u8> {
        let mut key = self.customer(customer);
        key.extend_from_slice(&(!order).to_be_bytes());
        key
    }

    pub(super) fn line(self, order: u32, line: u8) -> Vec<u8> {
        let mut key = self.order(order);
        key.push(line);
        key
    }

    /// Returns the district of a key that begins with one.
    pub(super) fn of(key: &[u8]) -> Self {
        Self(u16::from_be_bytes([key[0], key[1]]), key[2])
    }
}

/// Returns the four bytes from `at` on, as a number.
pub(super) fn number_at(key: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| key[at + i]))
}

pub(super) fn stock_key(warehouse: u16, item: u32) -> Vec<u8> {
    let mut key = warehouse.to_be_bytes().to_vec();
    key.extend_from_slice(&item.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_signed_and_stay_apart() {
        let mut row = filled(bytes::CUSTOMER, &District(1, 2).customer(3), 7);
        assert_eq!(row.len(), 650);
        C_BALANCE.set(&mut row, -1000);
        C_YTD_PAYMENT.set(&mut row, 5);
        C_BALANCE.add(&mut row, -1);
        assert_eq!((C_BALANCE.get(&row), C_YTD_PAYMENT.get(&row)), (-1001, 5));
        S_QUANTITY.set(&mut row, -3);
        assert_eq!(S_QUANTITY.get(&row), -3);
        assert!(C_DATA.0 + C_DATA.1 <= row.len());
    }

    #[test]
    fn keys_sort_as_they_mean() {
        let district = District(1, 2);
        assert!(district.order_of(5, 9) < district.order_of(5, 8));
        assert!(district.order(255) < district.order(256));
        assert!(district.line(7, 15) < district.line(8, 1));
        assert!(district.name(3, u32::MAX, 9) < district.names(4));
        assert_eq!(District::of(&district.line(7, 15)), district);
        assert_eq!(number_at(&district.line(7, 15), 3), 7);
    }
}
