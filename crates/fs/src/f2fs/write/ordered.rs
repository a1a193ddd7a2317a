//! State of the mode that uses order instead of waiting: epochs, and requests on their way to the disk.

use super::super::layout::Nid;
use crate::order::Dispatched;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// State that only a mount in this mode needs.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// Whether the open epoch has members.
    pub(super) is_open: Cell<bool>,
    /// Number of epochs that ended.
    pub(super) epochs: Cell<u64>,
    /// Writes of data that have places and are not all submitted, by number, with the inode of the file.
    pub(super) placing: RefCell<BTreeMap<u64, Nid>>,
    /// Calls that were dispatched and that the device may not have answered, with the inode of the file.
    pub(super) under_way: RefCell<Vec<(Nid, Rc<Dispatched>)>>,
    /// Files with requests that were dispatched and may not be durable, with the number of the last dispatch.
    pub(super) volatile: RefCell<BTreeMap<Nid, u64>>,
    pub(super) dispatches: Cell<u64>,
    /// Files with a page at another place than the nodes say that were dispatched.
    pub(super) moved: RefCell<BTreeSet<Nid>>,
    /// The same of files whose nodes belong to a checkpoint that counts once its last block is dispatched.
    pub(super) leaving: RefCell<BTreeSet<Nid>>,
    /// Number of the last checkpoint that is known to be durable.
    pub(super) durable: Cell<u64>,
    /// Number of flushes that callers share.
    pub(super) flushes_begun: Cell<u64>,
    pub(super) flushes_ended: Cell<u64>,
    pub(super) is_flushing: Cell<bool>,
}
