//! Objects with stable small numbers.

/// A growing table whose free places are used again.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Always in line: a command is large, and is written to its place without a stop on the way.
    #[inline(always)]
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(free) => {
                let place = &mut self.items[free as usize];
                assert!(place.is_none(), "a free place is empty");
                // An assignment would look once more for something to drop.
                std::mem::forget(place.replace(item));
                free
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> &T {
        self.items[at as usize].as_ref().expect("the object is there until it is taken")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        self.items[at as usize].as_mut().expect("the object is there until it is taken")
    }

    #[inline]
    pub(crate) fn remove(&mut self, at: u32) {
        let object = &mut self.items[at as usize];
        assert!(object.is_some(), "an object is removed once");
        *object = None;
        self.free.push(at);
    }

    /// All of them with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.items).filter_map(|(at, item)| item.as_ref().map(|item| (at, item)))
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
