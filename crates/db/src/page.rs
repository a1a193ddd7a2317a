//! A page: header, slots, records (database §3).
//!
//! Place in the data flow: trees and undo chains consist of pages; only [`Op`](crate::redo::Op)s change them, in normal
//! operation and in recovery.
//!
//! Invariants: slots point to records that do not overlap; equal changes in equal order give a page equal bytes, on
//! which redo relies.
//!
//! Deliberately absent: I/O, and any knowledge of trees.

/// Number of a page: the number of its data file in the upper 8 bits, its place in that file in the others.
pub(crate) type PageNo = u32;

/// Number of a data file.
pub(crate) type FileNo = u8;

/// Maximum number of pages of a data file.
pub(crate) const FILE_PAGES_MAX: u32 = 1 << 24;

/// Returns the head of a data file: its first page.
pub(crate) const fn head_of(file: FileNo) -> PageNo {
    (file as u32) << FILE_PAGES_MAX.trailing_zeros()
}

/// Returns the head of the data file of a page.
pub(crate) const fn head_for(number: PageNo) -> PageNo {
    number - index_of(number)
}

/// Returns the data file of a page.
pub(crate) const fn file_of(number: PageNo) -> FileNo {
    (number >> FILE_PAGES_MAX.trailing_zeros()) as FileNo
}

/// Returns the place of a page in its data file.
pub(crate) const fn index_of(number: PageNo) -> u32 {
    number % FILE_PAGES_MAX
}

/// A position in the redo log.
pub(crate) type Lsn = u64;

/// Size of the header before the slots, in bytes.
pub(crate) const HEADER_BYTES: usize = 40;

/// Overhead of a record in bytes: its header before the key, and its slot.
pub(crate) const RECORD_BYTES: usize = 4 + 2;

const CHECKSUM: usize = 0;
const NUMBER: usize = 4;
const LSN: usize = 8;
const KIND: usize = 16;
const LEVEL: usize = 17;
const COUNT: usize = 18;
const NEXT: usize = 20;
const PAGES: usize = 24;
const HEAP: usize = 28;
const GARBAGE: usize = 30;

/// Purpose of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unused.
    Free = 0,
    /// Rows, or, above level 0, references to child pages.
    Tree = 1,
    /// Undo records of a transaction.
    Undo = 2,
    /// The first page of a data file, with the list of its free pages; that of file 0 has the names of trees.
    Head = 3,
}

impl Kind {
    pub(crate) fn of(byte: u8) -> Option<Self> {
        [Self::Free, Self::Tree, Self::Undo, Self::Head].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// A page in memory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({}, level {}, {} records)", self.number(), self.level(), self.count())
    }
}

impl Page {
    /// Makes a page that was never written: zeros.
    pub(crate) fn blank(page_bytes: usize) -> Self {
        Self { bytes: vec![0; page_bytes].into() }
    }

    pub(crate) fn of(kind: Kind, level: u8, number: PageNo, page_bytes: usize) -> Self {
        let mut page = Self::blank(page_bytes);
        page.init(kind, level, number);
        page
    }

    fn u16(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }
    fn set_u16(&mut self, at: usize, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX));
        self.bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }
    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    pub(crate) fn number(&self) -> PageNo {
        self.u32(NUMBER)
    }
    pub(crate) fn lsn(&self) -> Lsn {
        u64::from_le_bytes(std::array::from_fn(|i| self.bytes[LSN + i]))
    }
    pub(crate) fn set_lsn(&mut self, lsn: Lsn) {
        self.bytes[LSN..LSN + 8].copy_from_slice(&lsn.to_le_bytes());
    }
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::of(self.bytes[KIND])
    }
    pub(crate) fn level(&self) -> u8 {
        self.bytes[LEVEL]
    }
    /// Returns the number of records.
    pub(crate) fn count(&self) -> usize {
        self.u16(COUNT)
    }
    /// Returns the next page of a chain; 0 is none. In a head, the first free page.
    pub(crate) fn next(&self) -> PageNo {
        self.u32(NEXT)
    }
    pub(crate) fn set_next(&mut self, next: PageNo) {
        self.set_u32(NEXT, next);
    }
    /// Returns, for a head, the number of pages of its data file that are or were in use.
    pub(crate) fn pages(&self) -> u32 {
        self.u32(PAGES)
    }
    pub(crate) fn set_pages(&mut self, pages: u32) {
        self.set_u32(PAGES, pages);
    }

    /// Empties the page.
    pub(crate) fn init(&mut self, kind: Kind, level: u8, number: PageNo) {
        let lsn = self.lsn();
        self.bytes.fill(0);
        self.set_lsn(lsn);
        self.set_u32(NUMBER, number);
        (self.bytes[KIND], self.bytes[LEVEL]) = (kind as u8, level);
        self.set_u16(HEAP, self.bytes.len());
    }

    // The checksum.

    /// Sets the checksum, so that the page can be written.
    pub(crate) fn seal(&mut self) {
        let sum = crc32c::crc32c(&self.bytes[CHECKSUM + 4..]);
        self.set_u32(CHECKSUM, sum);
    }

    /// Whether the checksum is correct and the page has this number.
    pub(crate) fn is_sound(&self, number: PageNo) -> bool {
        self.u32(CHECKSUM) == crc32c::crc32c(&self.bytes[CHECKSUM + 4..]) && self.number() == number
    }

    /// Whether the page was never written.
    pub(crate) fn is_blank(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == 0)
    }

    // Records.

    /// Returns the room for the records of a page of this size, including slots, in bytes.
    pub(crate) const fn room_of(page_bytes: usize) -> usize {
        page_bytes - HEADER_BYTES
    }

    /// Returns the maximum length of key and value together, so that four records fit into a page and splits always
    /// help.
    pub(crate) const fn row_bytes_max(page_bytes: usize) -> usize {
        Self::room_of(page_bytes) / 4 - RECORD_BYTES
    }

    fn offset(&self, slot: usize) -> usize {
        debug_assert!(slot < self.count());
        self.u16(HEADER_BYTES + 2 * slot)
    }

    /// Returns the offsets of key, value and end.
    fn parts(&self, slot: usize) -> (usize, usize, usize) {
        let at = self.offset(slot);
        let (key, value) = (self.u16(at), self.u16(at + 2));
        (at + 4, at + 4 + key, at + 4 + key + value)
    }

    pub(crate) fn key(&self, slot: usize) -> &[u8] {
        let (key, value, _) = self.parts(slot);
        &self.bytes[key..value]
    }

    pub(crate) fn value(&self, slot: usize) -> &[u8] {
        let (_, value, end) = self.parts(slot);
        &self.bytes[value..end]
    }

    /// Returns the page that a record of a branch refers to.
    pub(crate) fn child(&self, slot: usize) -> PageNo {
        let value = self.value(slot);
        u32::from_le_bytes(std::array::from_fn(|i| value[i]))
    }

    /// Returns the number of bytes that a record occupies, including its slot.
    pub(crate) fn record_bytes(&self, slot: usize) -> usize {
        let (key, _, end) = self.parts(slot);
        end - key + RECORD_BYTES
    }

    /// Returns the number of free bytes, contiguous or not.
    pub(crate) fn free_bytes(&self) -> usize {
        self.gap() + self.u16(GARBAGE)
    }

    fn gap(&self) -> usize {
        self.u16(HEAP) - HEADER_BYTES - 2 * self.count()
    }

    /// Whether a record of these lengths fits.
    pub(crate) fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        key_bytes + value_bytes + RECORD_BYTES <= self.free_bytes()
    }

    /// Whether the record would still fit with a value of this length.
    pub(crate) fn fits_instead(&self, slot: usize, value_bytes: usize) -> bool {
        value_bytes <= self.value(slot).len() + self.free_bytes()
    }

    /// Returns the slot of `key`, or the one where it would be inserted.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Returns, in a branch, the slot whose child covers `key`. The key of slot 0 is ignored; it stands for the lowest
    /// one.
    pub(crate) fn search_child(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (1, self.count());
        while low < high {
            let middle = (low + high) / 2;
            if self.key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low - 1
    }

    /// Adds a record, for which there must be room.
    pub(crate) fn insert(&mut self, slot: usize, key: &[u8], value: &[u8]) {
        debug_assert!(slot <= self.count() && self.fits(key.len(), value.len()));
        let bytes = 4 + key.len() + value.len();
        if self.gap() < bytes + 2 {
            self.compact();
        }
        let (count, at) = (self.count(), self.u16(HEAP) - bytes);
        self.set_u16(at, key.len());
        self.set_u16(at + 2, value.len());
        self.bytes[at + 4..at + 4 + key.len()].copy_from_slice(key);
        self.bytes[at + 4 + key.len()..at + bytes].copy_from_slice(value);
        let first = HEADER_BYTES + 2 * slot;
        self.bytes.copy_within(first..HEADER_BYTES + 2 * count, first + 2);
        self.set_u16(first, at);
        self.set_u16(COUNT, count + 1);
        self.set_u16(HEAP, at);
    }

    pub(crate) fn remove(&mut self, slot: usize) {
        let (count, garbage) = (self.count(), self.record_bytes(slot) - 2);
        let first = HEADER_BYTES + 2 * slot;
        self.bytes.copy_within(first + 2..HEADER_BYTES + 2 * count, first);
        self.set_u16(COUNT, count - 1);
        self.set_u16(GARBAGE, self.u16(GARBAGE) + garbage);
    }

    /// Removes the records from `slot` on.
    pub(crate) fn truncate(&mut self, slot: usize) {
        let garbage: usize = (slot..self.count()).map(|slot| self.record_bytes(slot) - 2).sum();
        self.set_u16(COUNT, slot);
        self.set_u16(GARBAGE, self.u16(GARBAGE) + garbage);
    }

    /// Replaces the value of a record; there must be room.
    pub(crate) fn replace(&mut self, slot: usize, value: &[u8]) {
        let (_, at, end) = self.parts(slot);
        if end - at == value.len() {
            self.bytes[at..end].copy_from_slice(value);
            return;
        }
        let key = self.key(slot).to_vec();
        self.remove(slot);
        self.insert(slot, &key, value);
    }

    /// Overwrites bytes of a value.
    pub(crate) fn patch(&mut self, slot: usize, at: usize, bytes: &[u8]) {
        let (_, value, end) = self.parts(slot);
        assert!(value + at + bytes.len() <= end, "a patch is inside of its value");
        self.bytes[value + at..value + at + bytes.len()].copy_from_slice(bytes);
    }

    /// Moves the records together at the end of the page.
    fn compact(&mut self) {
        let old = self.bytes.clone();
        let old = Self { bytes: old };
        let mut at = self.bytes.len();
        for slot in 0..self.count() {
            let (key, _, end) = old.parts(slot);
            let record = &old.bytes[key - 4..end];
            at -= record.len();
            self.bytes[at..at + record.len()].copy_from_slice(record);
            self.set_u16(HEADER_BYTES + 2 * slot, at);
        }
        self.set_u16(HEAP, at);
        self.set_u16(GARBAGE, 0);
    }

    /// Returns a description of the fault in the page's structure, if there is one.
    pub(crate) fn fault(&self) -> Option<String> {
        let (count, heap, len) = (self.count(), self.u16(HEAP), self.bytes.len());
        if self.kind().is_none() {
            return Some(format!("its kind is {}", self.bytes[KIND]));
        }
        if heap > len || HEADER_BYTES + 2 * count > heap {
            return Some(format!("{count} slots end behind the records, which begin at {heap}"));
        }
        let mut used = 0;
        for slot in 0..count {
            let at = self.u16(HEADER_BYTES + 2 * slot);
            if at < heap || at + 4 > len || at + 4 + self.u16(at) + self.u16(at + 2) > len {
                return Some(format!("record {slot} at {at} is not between {heap} and {len}"));
            }
            used += 4 + self.u16(at) + self.u16(at + 2);
        }
        (used + self.u16(GARBAGE) != len - heap).then(|| {
            format!("records of {used} bytes and {} of garbage are not {}", self.u16(GARBAGE), len - heap)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;

    #[test]
    fn a_page_is_a_sorted_list() {
        let mut stream = RandomStream::new(3, "page");
        let mut page = Page::of(Kind::Tree, 0, 7, 4096);
        let mut list: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for step in 0..20_000u32 {
            let key = (stream.below(200) as u16).to_be_bytes().to_vec();
            let value = vec![step as u8; stream.below(120) as usize];
            let found = list.binary_search_by(|(other, _)| other.cmp(&key));
            assert_eq!(page.search(&key), found);
            match (found, stream.below(4)) {
                (Ok(slot), 0) => {
                    page.remove(slot);
                    list.remove(slot);
                }
                (Ok(slot), _) if page.fits_instead(slot, value.len()) => {
                    page.replace(slot, &value);
                    list[slot].1 = value;
                }
                (Err(slot), _) if page.fits(key.len(), value.len()) => {
                    page.insert(slot, &key, &value);
                    list.insert(slot, (key, value));
                }
                _ if stream.below(20) == 0 => {
                    let slot = stream.below(list.len() as u64 + 1) as usize;
                    page.truncate(slot);
                    list.truncate(slot);
                }
                _ => {}
            }
            assert_eq!(page.fault(), None, "step {step}");
            assert_eq!(page.count(), list.len());
            let used: usize = list.iter().map(|(key, value)| key.len() + value.len() + RECORD_BYTES).sum();
            assert_eq!(page.free_bytes(), Page::room_of(4096) - used);
        }
        for (slot, (key, value)) in list.iter().enumerate() {
            assert_eq!((page.key(slot), page.value(slot)), (&key[..], &value[..]));
        }
    }

    #[test]
    fn a_changed_bit_shows() {
        let mut page = Page::of(Kind::Tree, 0, 7, 4096);
        page.insert(0, b"key", b"value");
        page.seal();
        assert!(page.is_sound(7) && !page.is_sound(8));
        for byte in [0, 5, 39, 41, 4095] {
            page.bytes_mut()[byte] ^= 4;
            assert!(!page.is_sound(7), "byte {byte}");
            page.bytes_mut()[byte] ^= 4;
        }
    }
}
