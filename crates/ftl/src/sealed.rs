//! The frame that all formats of the device's own pages share: magic and version first, a checksum in the last four bytes of the
//! header, and after it as many items as the header says (device-metadata §3, device-metadata §11).

/// What distinguishes the pages of one format.
pub(crate) struct Frame {
    pub(crate) magic: u32,
    pub(crate) version: u16,
    /// Bytes before the first item; the last four of them are the checksum.
    pub(crate) header_bytes: usize,
    /// Offset of the number of items in the header.
    pub(crate) count_at: usize,
    pub(crate) item_bytes: usize,
}

impl Frame {
    /// Returns the beginning of a page with `items` items.
    pub(crate) fn begin(&self, items: usize) -> Vec<u8> {
        let mut page = Vec::with_capacity(self.header_bytes + items * self.item_bytes);
        page.extend_from_slice(&self.magic.to_le_bytes());
        page.extend_from_slice(&self.version.to_le_bytes());
        page
    }

    /// Sets the checksum of a page that is otherwise complete and has zeros in its place.
    pub(crate) fn seal(&self, page: &mut [u8]) {
        let crc = crc32c::crc32c(page);
        page[self.header_bytes - 4..self.header_bytes].copy_from_slice(&crc.to_le_bytes());
    }

    /// The used part of a page, and the number of its items; `None` if it is not a complete, intact page of this format.
    pub(crate) fn open<'a>(&self, page: &'a [u8]) -> Option<(Fields<'a>, usize)> {
        let fields = Fields(page);
        if fields.u32_at(0)? != self.magic || fields.u16_at(4)? != self.version {
            return None;
        }
        let count = fields.u32_at(self.count_at)? as usize;
        let used = page.get(..self.header_bytes.checked_add(count.checked_mul(self.item_bytes)?)?)?;
        let mut crc = crc32c::crc32c(&used[..self.header_bytes - 4]);
        crc = crc32c::crc32c_append(crc, &[0; 4]);
        crc = crc32c::crc32c_append(crc, &used[self.header_bytes..]);
        (crc == fields.u32_at(self.header_bytes - 4)?).then_some((Fields(used), count))
    }
}

/// Little-endian numbers of a page by their offsets; `None` behind its end.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    pub(crate) fn u16_at(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    pub(crate) fn u32_at(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub(crate) fn u64_at(self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
}
