//! The drain: the one place where waiting work proceeds, in a fixed order.
//!
//! Place in the data flow: [`crate::ssd`] drains at the end of each command and event, when all operations that end at that event
//! have had their effect.
//!
//! Invariants: after each step the drain starts again at the front of the order, so a command is accepted only when everything that
//! earlier ones made possible has been done; when the drain ends, nothing can proceed ([`super::audit`] checks that in debug
//! builds).

use super::ftl::{Cx, PageFtl};
use super::work::{Due, first};

/// Most steps of one drain: a drain that does not end is a bug of the simulator.
const STEPS_MAX: u32 = 1 << 24;

impl PageFtl {
    /// Does all work that is due, until nothing is.
    pub(super) fn drain(&mut self, cx: &mut Cx) {
        let mut steps = 0;
        while let Some(due) = self.work.next() {
            steps += 1;
            assert!(steps < STEPS_MAX, "the work list never ends: {due:?}\n{}", self.describe_waits(cx));
            match due {
                Due::Collect => {
                    while let Some(plane) = first(&mut self.work.collect) {
                        self.collect_check(cx, plane);
                    }
                }
                Due::Destage => self.destage(cx),
                Due::Release => self.release_pages(cx),
                Due::Admit => self.admit(cx),
                _ => self.rarely(cx, due),
            }
        }
        self.commit_saved(cx);
    }

    /// Does work that most writes do not need. It is apart from [`Self::drain`], which each write enters twice and which is short without it.
    #[inline(never)]
    fn rarely(&mut self, cx: &mut Cx, due: Due) {
        match due {
            Due::Epochs => {
                for stream in std::mem::take(&mut self.work.streams) {
                    self.settle(cx, stream);
                }
            }
            Due::Flushes => self.check_flushes(cx),
            Due::CollectStep => {
                while let Some(plane) = first(&mut self.work.collect_step) {
                    self.collect_step(cx, plane);
                }
            }
            Due::LookUp => self.look_up(cx),
            Due::WordLines => {
                let slots = std::mem::take(&mut self.work.slots);
                let [all, awaited] = std::mem::take(&mut self.work.wordlines);
                if all || awaited {
                    self.demand_wordlines(cx, all);
                }
                self.demand_wordlines_of(cx, &slots);
            }
            Due::Log => self.pump_log(cx),
            Due::Stuck => {
                while let Some(plane) = first(&mut self.work.stuck) {
                    self.check_stuck(cx, plane);
                }
            }
            Due::Collect | Due::Destage | Due::Release | Due::Admit => unreachable!("{due:?} is frequent"),
        }
    }
}
