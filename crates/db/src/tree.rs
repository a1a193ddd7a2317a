//! B+-trees: rows in leaves by their keys, branches above them.
//!
//! Place in the data flow: transactions find, insert, change and delete rows; every change is part of a
//! mini-transaction of [`Core`].
//!
//! Invariants: the root of a tree is always the same page. All leaves are on level 0. In a branch the key of a record
//! is the lowest that its child may have; the key of slot 0 is ignored, it stands for the lowest key of the branch
//! itself. A leaf or branch is never empty, except for a root that is a leaf.
//!
//! Deliberately absent: links between neighbours. A scan that reaches the end of a leaf descends again from the root,
//! which is in memory anyway; in return a split or merge changes only the path to it.

use crate::core::{Core, Halt, Step};
use crate::error::DbError;
use crate::page::{Kind, Page, PageNo, RECORD_BYTES};
use crate::redo::Op;

/// Maximum number of levels of a tree: no page has more than a quarter of the rest below it.
const LEVELS_MAX: usize = 32;

/// Position of a key, or where it would be inserted.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Branches from the root on, each with the slot of the child.
    path: Vec<(PageNo, usize)>,
    pub(crate) leaf: PageNo,
    pub(crate) slot: Result<usize, usize>,
}

/// Descends to the leaf of `key`.
pub(crate) fn find(core: &mut Core, root: PageNo, key: &[u8]) -> Step<Place> {
    let mut path = Vec::new();
    let mut number = root;
    let mut level = None;
    loop {
        let page = core.page(number)?;
        check_kind(page, number, level)?;
        level = page.level().checked_sub(1);
        if page.level() == 0 {
            let slot = page.search(key);
            return Ok(Place { path, leaf: number, slot });
        }
        let slot = page.search_child(key);
        path.push((number, slot));
        number = page.child(slot);
    }
}

fn check_kind(page: &Page, number: PageNo, level: Option<u8>) -> Step<()> {
    let is_node = page.kind() == Some(Kind::Tree) && (page.level() == 0 || page.count() > 0);
    if is_node && level.is_none_or(|level| level == page.level()) {
        return Ok(());
    }
    Err(Halt::Error(DbError::Damaged(format!("page {number} does not belong where a tree has it"))))
}

/// Returns the value of `key`.
pub(crate) fn get(core: &mut Core, root: PageNo, key: &[u8]) -> Step<Option<Vec<u8>>> {
    let place = find(core, root, key)?;
    Ok(place.slot.ok().map(|slot| core.pool.page(place.leaf).value(slot).to_vec()))
}

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// Appends the rows of one leaf from `from` on, before `end`, until `rows` has `max`. Returns the key at which to
/// continue.
pub(crate) fn scan_leaf(
    core: &mut Core,
    root: PageNo,
    from: &[u8],
    end: Option<&[u8]>,
    rows: &mut Vec<Entry>,
    max: usize,
) -> Step<Option<Vec<u8>>> {
    let place = find(core, root, from)?;
    // The lowest key to the right of the leaf: that of the lowest branch which has one.
    let fence = place.path.iter().rev().find_map(|&(number, slot)| {
        let page = core.pool.page(number);
        (slot + 1 < page.count()).then(|| page.key(slot + 1).to_vec())
    });
    let page = core.pool.page(place.leaf);
    let first = place.slot.unwrap_or_else(|slot| slot);
    for slot in first..page.count() {
        let key = page.key(slot);
        if rows.len() == max || end.is_some_and(|end| key >= end) {
            return Ok(None);
        }
        rows.push((key.to_vec(), page.value(slot).to_vec()));
    }
    Ok(fence.filter(|fence| rows.len() < max && end.is_none_or(|end| &fence[..] < end)))
}

/// Returns the maximum number of pages that a change at this position may allocate.
pub(crate) fn pages_needed(place: &Place) -> usize {
    // One for each level, and one more where the root grows.
    place.path.len() + 2
}

/// Inserts a row that does not exist; [`Core::prepare_pages`] must have been called with [`pages_needed`].
pub(crate) fn insert(core: &mut Core, place: Place, key: &[u8], value: &[u8]) {
    let slot = place.slot.expect_err("the row is not there");
    put(core, place.path, place.leaf, slot, key, value);
}

/// Replaces the value of an existing row; prepared like an insertion.
pub(crate) fn update(core: &mut Core, place: Place, value: &[u8]) {
    let slot = place.slot.expect("the row is there");
    let page = core.pool.page(place.leaf);
    let old = page.value(slot);
    if old.len() == value.len() {
        if let Some((at, end)) = difference(old, value) {
            core.apply(place.leaf, Op::Patch { slot, at, bytes: &value[at..end] });
        }
    } else if page.fits_instead(slot, value.len()) {
        core.apply(place.leaf, Op::Replace { slot, value });
    } else {
        let key = page.key(slot).to_vec();
        core.apply(place.leaf, Op::Remove { slot });
        put(core, place.path, place.leaf, slot, &key, value);
    }
}

/// Returns the range in which two values of equal length differ.
pub(crate) fn difference(old: &[u8], new: &[u8]) -> Option<(usize, usize)> {
    let differ = |(old, new): (&u8, &u8)| old != new;
    let first = old.iter().zip(new).position(differ)?;
    let last = old.iter().zip(new).rposition(differ)?;
    Some((first, last + 1))
}

/// Removes an existing row.
pub(crate) fn delete(core: &mut Core, place: Place) {
    let slot = place.slot.expect("the row is there");
    core.apply(place.leaf, Op::Remove { slot });
    shrink(core, place.path, place.leaf);
}

/// Inserts a record into a page, which is split if it is full.
fn put(core: &mut Core, path: Vec<(PageNo, usize)>, number: PageNo, slot: usize, key: &[u8], value: &[u8]) {
    let page = core.pool.page(number);
    if page.fits(key.len(), value.len()) {
        core.apply(number, Op::Insert { slot, key, value });
        return;
    }
    core.metrics.splits += 1;
    if path.is_empty() {
        // The root keeps its page; its contents move one level down.
        let level = page.level();
        let child = core.allocate(number, Kind::Tree, level);
        move_records(core, number, 0, child);
        core.apply(number, Op::Init { kind: Kind::Tree, level: level + 1 });
        core.apply(number, Op::Insert { slot: 0, key: &[], value: &child.to_le_bytes() });
        return split(core, vec![(number, 0)], child, slot, key, value);
    }
    split(core, path, number, slot, key, value);
}

/// Splits a page that is not the root, and inserts a record into one of the halves.
fn split(
    core: &mut Core,
    mut path: Vec<(PageNo, usize)>,
    left: PageNo,
    slot: usize,
    key: &[u8],
    value: &[u8],
) {
    let page = core.pool.page(left);
    let level = page.level();
    let middle = split_point(page, slot, key.len() + value.len() + RECORD_BYTES);
    let right = core.allocate(left, Kind::Tree, level);
    // Positions count the new record at `slot`.
    if slot < middle {
        move_records(core, left, middle - 1, right);
        core.apply(left, Op::Insert { slot, key, value });
    } else {
        move_records(core, left, middle, right);
        core.apply(right, Op::Insert { slot: slot - middle, key, value });
    }
    let separator = core.pool.page(right).key(0).to_vec();
    let (parent, child_slot) = path.pop().expect("a page that is not the root has a parent");
    put(core, path, parent, child_slot + 1, &separator, &right.to_le_bytes());
}

/// Returns the number of records that stay on the left, counting the new one of `bytes` at `slot`.
fn split_point(page: &Page, slot: usize, bytes: usize) -> usize {
    let count = page.count();
    if slot == count {
        // Keys inserted in ascending order fill pages completely.
        return count;
    }
    let size = |position: usize| match position.cmp(&slot) {
        std::cmp::Ordering::Less => page.record_bytes(position),
        std::cmp::Ordering::Equal => bytes,
        std::cmp::Ordering::Greater => page.record_bytes(position - 1),
    };
    let half = (0..=count).map(size).sum::<usize>() / 2;
    let mut left = 0;
    for position in 0..count {
        left += size(position);
        if left >= half {
            return position + 1;
        }
    }
    count
}

/// Moves the records from `from` on to the end of another page.
fn move_records(core: &mut Core, source: PageNo, from: usize, target: PageNo) {
    let page = core.pool.page(source).clone();
    let base = core.pool.page(target).count();
    for slot in from..page.count() {
        let op = Op::Insert { slot: base + slot - from, key: page.key(slot), value: page.value(slot) };
        core.apply(target, op);
    }
    core.apply(source, Op::Truncate { slot: from });
}

/// After a removal: an empty page is freed, one that is half empty is merged with a neighbour that is in memory.
fn shrink(core: &mut Core, mut path: Vec<(PageNo, usize)>, number: PageNo) {
    let Some((parent, slot)) = path.pop() else {
        lower_root(core, number);
        return;
    };
    let page = core.pool.page(number);
    if page.count() == 0 {
        core.metrics.merges += 1;
        core.free(number);
        core.apply(parent, Op::Remove { slot });
        return shrink(core, path, parent);
    }
    let room = Page::room_of(core.pool.page_bytes());
    if page.free_bytes() * 2 < room {
        return;
    }
    let family = core.pool.page(parent);
    let to_right = (slot + 1 < family.count()).then_some((slot, slot + 1));
    let to_left = slot.checked_sub(1).map(|left| (left, slot));
    for (left_slot, right_slot) in [to_right, to_left].into_iter().flatten() {
        let family = core.pool.page(parent);
        let (left, right) = (family.child(left_slot), family.child(right_slot));
        if !core.pool.has(left) || !core.pool.has(right) {
            continue;
        }
        let separator = family.key(right_slot).to_vec();
        let used = |number| room - core.pool.page(number).free_bytes();
        // Some room is left, so that the next row does not split the page again.
        if used(left) + used(right) + separator.len() > room / 8 * 7 {
            continue;
        }
        core.metrics.merges += 1;
        unite(core, left, right, &separator);
        core.apply(parent, Op::Remove { slot: right_slot });
        return shrink(core, path, parent);
    }
}

/// Moves everything from `right` to `left` and frees `right`.
fn unite(core: &mut Core, left: PageNo, right: PageNo, separator: &[u8]) {
    let end = core.pool.page(left).count();
    if core.pool.page(right).level() > 0 {
        // Slot 0 of a branch may have any key; in the middle of a page, the record needs the correct one.
        let child = core.pool.page(right).child(0);
        core.apply(left, Op::Insert { slot: end, key: separator, value: &child.to_le_bytes() });
        core.apply(right, Op::Remove { slot: 0 });
    }
    move_records(core, right, 0, left);
    core.free(right);
}

/// A root with one child takes over the child's contents; one without children becomes a leaf.
fn lower_root(core: &mut Core, root: PageNo) {
    for _ in 0..LEVELS_MAX {
        let page = core.pool.page(root);
        match (page.level(), page.count()) {
            (0, _) | (_, 2..) => return,
            (_, 0) => {
                core.apply(root, Op::Init { kind: Kind::Tree, level: 0 });
                return;
            }
            (_, 1) => {
                let child = page.child(0);
                if !core.pool.has(child) {
                    return;
                }
                let level = core.pool.page(child).level();
                core.apply(root, Op::Init { kind: Kind::Tree, level });
                move_records(core, child, 0, root);
                core.free(child);
            }
        }
    }
}
