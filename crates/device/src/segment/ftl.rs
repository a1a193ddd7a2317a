//! The firmware of a device with nothing but segments, put together.

use super::job::Job;
use super::table::Segments;
use crate::flash::{Frontier, Op, Placer};
use crate::geometry::PageAddr;
use flashweir_ftl::{Blocks, PlaneId};

/// The context of this firmware.
pub(super) type Cx = crate::cx::Cx<Job>;

/// The firmware.
#[derive(Clone, Debug)]
pub(crate) struct AppendFtl {
    pub(crate) segments: Segments,
    pub(super) placer: Unplaced,
}

/// The placer of a device all of whose programs have their page when they are queued.
#[derive(Clone, Debug)]
pub(crate) struct Unplaced;

impl Placer<Job> for Unplaced {
    fn offer(&self, _: &Blocks, _: PlaneId, _: Frontier) -> Option<u32> {
        None
    }

    fn bind(&mut self, _: &mut Blocks, _: PlaneId, _: Frontier) -> PageAddr {
        unreachable!("no program asks for a page")
    }

    fn pull(&mut self, _: &Blocks, _: std::ops::Range<u32>) -> Option<Op<Job>> {
        None
    }

    fn pull_beside(&mut self, _: &Blocks, _: PlaneId, _: u32) -> Option<Op<Job>> {
        None
    }

    fn seal(&mut self, _: Job) -> u32 {
        unreachable!("no program asks for a page")
    }
}
