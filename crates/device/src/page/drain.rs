//! The one place where everybody goes on who can, in one order.
//!
//! Place in the data flow: [`crate::ssd`] drains at the end of each command and event, when all operations of the moment have had
//! their effect.
//!
//! Invariants: after each step the drain begins anew from the front of the list, so a command is accepted only when all that
//! earlier ones set going has gone on; when it ends, nobody could go on ([`super::audit`] looks, in debug builds).

use super::ftl::{Cx, PageFtl};
use super::work::{Due, first};

/// Steps of one drain at most: a drain that does not end is a bug of ours.
const STEPS_MAX: u32 = 1 << 24;

impl PageFtl {
    /// Lets everybody go on who can, until nobody can.
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

    /// What most writes do not need; apart from [`Self::drain`], which each write enters twice and which is short without it.
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
                if std::mem::take(&mut self.work.all_wordlines) {
                    self.demand_wordlines(cx);
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
