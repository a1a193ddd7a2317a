//! Blocks in memory, by their addresses.
//!
//! Every page that is written asks for the blocks of its extent tree. These lie side by side, so a small tree finds a row of neighbours,
//! and an index finds the block in the row.

use super::super::layout::Addr;
use std::collections::BTreeMap;
use std::ops::Index;

/// Number of neighbours in a row.
const ROW: u64 = 64;

type Row<T> = Box<[Option<T>]>;

/// A map from addresses of blocks.
#[derive(Debug)]
pub(super) struct ByAddr<T>(BTreeMap<u64, Row<T>>);

impl<T> Default for ByAddr<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> ByAddr<T> {
    #[inline]
    pub(super) fn get(&self, addr: &Addr) -> Option<&T> {
        self.0.get(&(addr.0 / ROW))?[(addr.0 % ROW) as usize].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, addr: &Addr) -> Option<&mut T> {
        self.0.get_mut(&(addr.0 / ROW))?[(addr.0 % ROW) as usize].as_mut()
    }

    pub(super) fn contains_key(&self, addr: &Addr) -> bool {
        self.get(addr).is_some()
    }

    fn place(&mut self, addr: Addr) -> &mut Option<T> {
        let row = self.0.entry(addr.0 / ROW).or_insert_with(|| (0..ROW).map(|_| None).collect());
        &mut row[(addr.0 % ROW) as usize]
    }

    /// Inserts a value; returns the one that was there.
    pub(super) fn insert(&mut self, addr: Addr, value: T) -> Option<T> {
        self.place(addr).replace(value)
    }

    /// Inserts a value unless there is one.
    pub(super) fn insert_new(&mut self, addr: Addr, value: T) {
        self.place(addr).get_or_insert(value);
    }

    pub(super) fn remove(&mut self, addr: &Addr) -> Option<T> {
        self.0.get_mut(&(addr.0 / ROW))?[(addr.0 % ROW) as usize].take()
    }
}

impl<T> Index<&Addr> for ByAddr<T> {
    type Output = T;

    fn index(&self, addr: &Addr) -> &T {
        self.get(addr).expect("it is in memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::random::RandomStream;

    #[test]
    fn it_is_a_map() {
        let (mut table, mut model) = (ByAddr::default(), BTreeMap::new());
        let mut random = RandomStream::new(1, "by_addr");
        for number in 0..10_000 {
            let addr = Addr(random.below(300) << random.below(30));
            match random.below(4) {
                0 => assert_eq!(table.insert(addr, number), model.insert(addr, number)),
                1 => {
                    table.insert_new(addr, number);
                    model.entry(addr).or_insert(number);
                }
                2 => assert_eq!(table.remove(&addr), model.remove(&addr)),
                _ => assert_eq!(table.get_mut(&addr), model.get_mut(&addr)),
            }
            assert_eq!(table.get(&addr), model.get(&addr));
            assert_eq!(table.contains_key(&addr), model.contains_key(&addr));
        }
    }
}
