//! State of the mode with order in the place of waiting: epochs, and requests on their way to the disk.

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
    /// Epochs that ended.
    pub(super) epochs: Cell<u64>,
    /// Writes of data that got their places and are not all submitted, by number, with their files.
    pub(super) placing: RefCell<BTreeMap<u64, Nid>>,
    /// Calls that were dispatched and that the device may not have answered, with their files.
    pub(super) under_way: RefCell<Vec<(Nid, Rc<Dispatched>)>>,
    /// Files of which something was dispatched that may not be durable, with the number of what was dispatched last.
    pub(super) volatile: RefCell<BTreeMap<Nid, u64>>,
    pub(super) dispatches: Cell<u64>,
    /// Files of which a page has another place than the nodes that were dispatched say.
    pub(super) moved: RefCell<BTreeSet<Nid>>,
    /// The last checkpoint that is known to be durable.
    pub(super) durable: Cell<u64>,
    /// Flushes that several share.
    pub(super) flushes_begun: Cell<u64>,
    pub(super) flushes_ended: Cell<u64>,
    pub(super) is_flushing: Cell<bool>,
}
