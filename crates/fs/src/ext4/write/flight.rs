//! A transaction on its way to the disk in dual mode.

use super::super::layout::Addr;
use crate::order::Dispatched;
use std::rc::Rc;

/// A transaction that was dispatched and is not durable.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) tid: u64,
    /// Its blocks, in order.
    pub(super) addrs: Vec<Addr>,
    pub(super) requests: Rc<Dispatched>,
}
