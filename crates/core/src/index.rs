//! A vector indexed by a newtype, so that a die number can never address a channel.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A newtype over a small integer that can index an [`IndexVec`].
pub trait Idx: Copy {
    /// Returns the position as a plain number.
    fn index(self) -> usize;
    /// Returns the newtype for a position.
    fn from_index(index: usize) -> Self;
}

/// Declares newtypes over `u32` that serve as indices.
#[macro_export]
macro_rules! index_type {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
        impl $crate::index::Idx for $name {
            #[inline]
            fn index(self) -> usize { self.0 as usize }
            #[inline]
            fn from_index(index: usize) -> Self { Self(index as u32) }
        }
    )+};
}

/// `Vec<T>` indexed by `I`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexVec<I, T> {
    items: Vec<T>,
    index: PhantomData<fn(I)>,
}

impl<I: Idx, T> IndexVec<I, T> {
    /// Makes a vector of `len` items, each from its index.
    pub fn from_fn(len: usize, make: impl FnMut(I) -> T) -> Self {
        let items = (0..len).map(I::from_index).map(make).collect();
        Self { items, index: PhantomData }
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Iterates over the items in index order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Iterates over the items in index order, mutably.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Iterates over pairs of index and item, in index order.
    pub fn enumerate(&self) -> impl Iterator<Item = (I, &T)> {
        self.items.iter().enumerate().map(|(i, item)| (I::from_index(i), item))
    }

    /// Returns the items as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<I: Idx, T> Index<I> for IndexVec<I, T> {
    type Output = T;
    #[inline]
    fn index(&self, index: I) -> &T {
        &self.items[index.index()]
    }
}

impl<I: Idx, T> IndexMut<I> for IndexVec<I, T> {
    #[inline]
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.items[index.index()]
    }
}
