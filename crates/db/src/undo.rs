//! Undo: the changes that a transaction has to revert if it does not commit (database §6).
//!
//! Place in the data flow: each change of a row is one mini-transaction that also appends a record here. Rollback, in
//! normal operation and after a cut, takes records from the end and applies the opposite, each together with the
//! removal of its record in one mini-transaction. So after a cut a rollback continues where it was.
//!
//! Invariants: each transaction has a slot, and the slot has one page of its own. When that is full, further pages form
//! a stack after it: `next` of the slot's page is the newest. A slot whose page is empty and alone has no transaction
//! with changes, so a commit is one mini-transaction: the page is emptied, and the stack is moved to the free pages as
//! a whole.

use crate::core::{Core, HEAD_PAGE, Step};
use crate::error::DbError;
use crate::page::{Kind, PageNo, file_of};
use crate::redo::{Op, Reader};
use crate::tree;

/// Returns the page of a slot.
pub(crate) fn page_of(slot: u32) -> PageNo {
    HEAD_PAGE + 1 + slot
}

/// The operation that reverts a change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opposite {
    /// Delete the row, which was inserted.
    Delete,
    /// Insert the row again with its deleted value.
    Insert(Vec<u8>),
    /// Restore the old value.
    Update(Vec<u8>),
    /// Restore the old bytes at this offset of the value.
    Patch(usize, Vec<u8>),
}

/// A change of a row that can be reverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undo {
    pub(crate) tree: PageNo,
    pub(crate) key: Vec<u8>,
    pub(crate) opposite: Opposite,
}

impl Undo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 32);
        let tag = match &self.opposite {
            Opposite::Delete => 1,
            Opposite::Insert(_) => 2,
            Opposite::Update(_) => 3,
            Opposite::Patch(..) => 4,
        };
        out.push(tag);
        out.extend_from_slice(&self.tree.to_le_bytes());
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.key);
        match &self.opposite {
            Opposite::Delete => {}
            Opposite::Insert(value) | Opposite::Update(value) => out.extend_from_slice(value),
            Opposite::Patch(at, bytes) => {
                out.extend_from_slice(&(*at as u16).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (tag, tree, key_bytes) = (reader.u8()?, reader.u32()?, reader.u16()?);
        let key = reader.take(key_bytes)?.to_vec();
        let opposite = match tag {
            1 => Opposite::Delete,
            2 => Opposite::Insert(reader.0.to_vec()),
            3 => Opposite::Update(reader.0.to_vec()),
            4 => Opposite::Patch(reader.u16()?, reader.0.to_vec()),
            _ => return None,
        };
        Some(Self { tree, key, opposite })
    }
}

/// Overhead of an undo record beside key and value, in bytes.
pub(crate) const UNDO_BYTES: usize = 9;

/// Returns the page at the end of a slot's records.
fn top(core: &mut Core, slot: u32) -> Step<PageNo> {
    let head = page_of(slot);
    let next = core.page(head)?.next();
    let top = if next == 0 { head } else { next };
    core.page(top)?;
    Ok(top)
}

/// Ensures that a record can be appended without waiting, and that `further` pages of this tree can be allocated besides.
pub(crate) fn prepare(core: &mut Core, slot: u32, tree: PageNo, further: usize) -> Step<()> {
    top(core, slot)?;
    if file_of(tree) == file_of(HEAD_PAGE) {
        return core.prepare_pages(&[(HEAD_PAGE, further + 1)]);
    }
    core.prepare_pages(&[(HEAD_PAGE, 1), (tree, further)])
}

/// Appends a record. Returns the page if it is the first one of the stack.
pub(crate) fn append(core: &mut Core, slot: u32, undo: &Undo) -> Step<Option<PageNo>> {
    let (head, end) = (page_of(slot), top(core, slot)?);
    let value = undo.encode();
    let page = core.pool.page(end);
    if page.fits(0, value.len()) {
        core.apply(end, Op::Insert { slot: page.count(), key: &[], value: &value });
        return Ok(None);
    }
    let next = core.pool.page(head).next();
    let new = core.allocate(head, Kind::Undo, 0);
    core.apply(new, Op::SetNext { next });
    core.apply(head, Op::SetNext { next: new });
    core.apply(new, Op::Insert { slot: 0, key: &[], value: &value });
    Ok((next == 0).then_some(new))
}

/// Forgets all records, since the transaction is committed. `bottom` is the first page of the stack, if there is one.
/// This is a complete mini-transaction; returns the end of its group.
pub(crate) fn forget(core: &mut Core, slot: u32, bottom: Option<PageNo>) -> Step<u64> {
    let head = page_of(slot);
    let stack = core.page(head)?.next();
    if let Some(bottom) = bottom {
        core.page(bottom)?;
    }
    core.page(HEAD_PAGE)?;
    core.begin()?;
    if let Some(bottom) = bottom {
        let next = core.pool.page(HEAD_PAGE).next();
        core.apply(bottom, Op::SetNext { next });
        core.apply(HEAD_PAGE, Op::SetNext { next: stack });
    }
    core.apply(head, Op::Init { kind: Kind::Undo, level: 0 });
    Ok(core.end())
}

/// Reverts the last change of the slot's transaction, as one mini-transaction; returns false if there is none.
pub(crate) fn take_back(core: &mut Core, slot: u32) -> Step<bool> {
    let (head, end) = (page_of(slot), top(core, slot)?);
    let page = core.pool.page(end);
    let Some(last) = page.count().checked_sub(1) else { return Ok(false) };
    let damaged = || DbError::Damaged(format!("record {last} of undo page {end}"));
    let undo = Undo::decode(page.value(last)).ok_or_else(damaged)?;
    let place = tree::find(core, undo.tree, &undo.key)?;
    if place.slot.is_ok() == matches!(undo.opposite, Opposite::Insert(_)) {
        return Err(damaged().into());
    }
    core.prepare_pages(&[(undo.tree, tree::pages_needed(&place))])?;
    core.begin()?;
    core.apply(end, Op::Remove { slot: last });
    if end != head && last == 0 {
        let next = core.pool.page(end).next();
        core.apply(head, Op::SetNext { next });
        core.free(end);
    }
    match undo.opposite {
        Opposite::Delete => tree::delete(core, place),
        Opposite::Insert(value) => tree::insert(core, place, &undo.key, &value),
        Opposite::Update(value) => tree::update(core, place, &value),
        Opposite::Patch(at, bytes) => {
            let slot = place.slot.expect("it was looked at above");
            core.apply(place.leaf, Op::Patch { slot, at, bytes: &bytes });
        }
    }
    core.end();
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let opposites = [
            Opposite::Delete,
            Opposite::Insert(b"row".to_vec()),
            Opposite::Update(Vec::new()),
            Opposite::Patch(700, b"ab".to_vec()),
        ];
        for opposite in opposites {
            let undo = Undo { tree: 70_000, key: b"key".to_vec(), opposite };
            assert_eq!(Undo::decode(&undo.encode()), Some(undo));
        }
        assert_eq!(Undo::decode(&[9, 0, 0, 0, 0, 0, 0]), None);
    }
}
