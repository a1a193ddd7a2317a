//! The placer of the open channel: each program gets the page that its host named.

use super::job::Job;
use crate::flash::{Frontier, Op, Placer};
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::index::Idx;
use flashweir_ftl::{Blocks, PlaneId};
use std::collections::VecDeque;

/// Pages that were accepted and whose program has not begun, in order for each plane.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    waiting: Vec<VecDeque<PageAddr>>,
    page_bytes: u32,
}

impl Places {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { waiting: vec![VecDeque::new(); geometry.planes() as usize], page_bytes: geometry.page_bytes() }
    }

    /// Adds a page that was accepted.
    pub(super) fn push(&mut self, plane: PlaneId, at: PageAddr) {
        self.waiting[plane.index()].push_back(at);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }
}

impl Placer<Job> for Places {
    fn offer(&self, _: &Blocks, plane: PlaneId, _: Frontier) -> Option<u32> {
        self.waiting[plane.index()].front().map(|at| at.page)
    }

    fn bind(&mut self, _: &mut Blocks, plane: PlaneId, _: Frontier) -> PageAddr {
        self.waiting[plane.index()].pop_front().expect("a page was accepted for each program")
    }

    fn pull(&mut self, _: &Blocks, _: std::ops::Range<u32>) -> Option<Op<Job>> {
        None
    }

    fn pull_beside(&mut self, _: &Blocks, _: PlaneId, _: u32) -> Option<Op<Job>> {
        None
    }

    fn seal(&mut self, _: Job) -> u32 {
        self.page_bytes
    }
}
