//! A disk of append segments in memory whose changes are recorded.
//!
//! Place in the data flow: [`super::volume`] makes volumes on it, [`super::appended`] cuts them.

use super::setup::{BLOCKS, SEGMENT_BLOCKS};
use flashweir_fs::port::{BlockPort, Request, Segments, Ticket};
use std::cell::RefCell;
use std::rc::Rc;

/// A disk that records what changes it. A clone is the same disk.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    disk: Rc<Segments>,
    pub(crate) changes: Rc<RefCell<Vec<Request>>>,
}

impl Recorder {
    pub(crate) fn new(disk: Segments) -> Self {
        Self { disk: Rc::new(disk), changes: Rc::default() }
    }

    pub(crate) fn disk(&self) -> &Segments {
        &self.disk
    }
}

impl BlockPort for Recorder {
    fn capacity_blocks(&self) -> u64 {
        self.disk.capacity_blocks()
    }

    fn segment_blocks(&self) -> u32 {
        self.disk.segment_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        if !matches!(request, Request::Read { .. } | Request::Report(_)) {
            self.changes.borrow_mut().push(request.clone());
        }
        self.disk.submit(request)
    }
}

/// Returns an empty disk.
pub(crate) fn empty() -> Segments {
    Segments::in_memory((BLOCKS / u64::from(SEGMENT_BLOCKS)) as u32, SEGMENT_BLOCKS)
}
