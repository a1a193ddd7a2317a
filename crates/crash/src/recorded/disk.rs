//! The disk on which calls are made again, and the states in which a power cut may leave it.
//!
//! Place in the data flow: [`super::states`] plays a recording on it. For most formats it is the model device of the contract
//! ([`flashweir_sim::model_port`]), for those on append segments a disk of them in memory, of which a cut leaves a prefix of each segment.
//!
//! Invariant: a state depends on the calls, the position of the cut and its number, and on nothing else.
//!
//! Deliberately absent: tags, order and torn operations. `weir crash files --on device` has them.

use crate::files::Effort;
use crate::files::Format;
use crate::files::allowed;
use crate::files::appended::{choice, replayed};
use crate::files::segments::Recorder;
use crate::files::setup::SEGMENT_BLOCKS;
use crate::files::volume::{Disk as _, written};
use flashweir_contract::{Contents, CrashState};
use flashweir_core::Lpn;
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_fs::port::{Block, BlockPort, Segments};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Number of states up to which all of them are taken.
const ALL_MAX: u64 = 128;

/// See the module.
pub(super) enum Disk {
    Model(ModelPort),
    Segments(Appended),
}

/// A disk of append segments.
pub(super) struct Appended {
    before: Segments,
    recorder: Recorder,
    /// The disk after some of its changes, for the next position.
    at: RefCell<(u32, Segments)>,
}

impl Appended {
    fn new(before: Segments) -> Self {
        Self { recorder: Recorder::new(before.clone()), at: RefCell::new((0, before.clone())), before }
    }

    /// Calls `look` with the disk as it is after this number of changes.
    fn at<T>(&self, cut: u32, look: impl FnOnce(&Segments) -> T) -> T {
        let mut at = self.at.borrow_mut();
        if at.0 > cut {
            *at = (0, self.before.clone());
        }
        let changes = self.recorder.changes.borrow();
        replayed(&at.1, &changes[at.0 as usize..cut as usize]);
        at.0 = cut;
        look(&at.1)
    }
}

/// A state after a cut.
pub(super) enum State {
    Model(CrashState),
    Segments(Choice),
}

/// Which of its states each segment has.
#[derive(Clone, Copy)]
pub(super) enum Choice {
    /// One of all combinations.
    Nth(u64),
    /// Drawn.
    Drawn(u32),
}

impl Choice {
    fn of(self, cut: u32) -> impl FnMut(u64) -> u64 {
        let (mut left, draw) = match self {
            Self::Nth(nth) => (nth, None),
            Self::Drawn(draw) => (0, Some(draw)),
        };
        let mut drawn = choice(draw.unwrap_or(0), mix(u64::from(cut)));
        move |states| {
            if draw.is_some() {
                return drawn(states);
            }
            let one = left % states;
            left /= states;
            one
        }
    }

    /// All combinations if there are few, else some; the first one loses most, the last one least.
    fn all(disk: &Segments, seed: u64, effort: &Effort) -> Vec<Self> {
        let mut combinations = 1u64;
        disk.woken_hash(|states| {
            combinations = combinations.saturating_mul(states);
            0
        });
        if combinations <= ALL_MAX {
            return (0..combinations).map(Self::Nth).collect();
        }
        // Zero keeps nothing, one everything.
        let drawn = |draw: u32| (mix(seed) as u32).wrapping_add(draw).max(2);
        [0].into_iter().chain((0..effort.draws).map(drawn)).chain([1]).map(Self::Drawn).collect()
    }
}

impl Disk {
    /// A disk with these contents, all durable, of which one SHARE takes up to this number of blocks if the format needs that. Of append
    /// segments what is not there was never written.
    pub(super) fn with_contents(
        format: Format,
        contents: &Arc<Contents>,
        blocks: u64,
        share_blocks_max: u32,
    ) -> Self {
        if !format.appends() {
            let (policy, contents) = (format.device_kind().policy(), Arc::clone(contents));
            let port = ModelPort::with_contents(policy, contents, blocks, FlushMode::Flush);
            return Self::Model(port.with_share_blocks_max(share_blocks_max));
        }
        let segments = (blocks / u64::from(SEGMENT_BLOCKS)) as u32;
        let content = |block: Block| contents.get(&Lpn(block.0)).cloned();
        Self::Segments(Appended::new(Segments::with_contents(segments, SEGMENT_BLOCKS, content)))
    }

    /// Runs a task until it is ready; returns `None` if it waits for something that never happens.
    pub(super) fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T> {
        match self {
            Self::Model(port) => port.run(task),
            Self::Segments(disk) => disk.recorder.run(task),
        }
    }

    /// Tells the position in the disk's log.
    pub(super) fn position(&self) -> Rc<dyn Fn() -> u32> {
        match self {
            Self::Model(port) => {
                let port = port.clone();
                Rc::new(move || port.position().0)
            }
            Self::Segments(disk) => {
                let changes = Rc::clone(&disk.recorder.changes);
                Rc::new(move || changes.borrow().len() as u32)
            }
        }
    }

    /// What is on it now.
    pub(super) fn contents(&self) -> Contents {
        match self {
            Self::Model(port) => port.contents(),
            Self::Segments(disk) => written(disk.recorder.disk()),
        }
    }

    /// Positions up to `end` at which a cut may leave another state than at the one before.
    pub(super) fn positions(&self, end: u32) -> Vec<u32> {
        match self {
            Self::Model(port) => allowed::positions(&port.log(), end),
            Self::Segments(_) => (0..=end).collect(),
        }
    }

    /// States after a cut, some of them drawn by the seed, with the hashes of their images.
    pub(super) fn states_at(&self, cut: u32, seed: u64, effort: &Effort) -> Vec<(u64, State)> {
        match self {
            Self::Model(port) => {
                let states = allowed::states_at(port, cut, mix(seed), effort).into_iter();
                states.map(|(image, state)| (image, State::Model(state))).collect()
            }
            Self::Segments(disk) => disk.at(cut, |now| {
                let all = Choice::all(now, seed, effort).into_iter();
                all.map(|choice| (now.woken_hash(choice.of(cut)), State::Segments(choice))).collect()
            }),
        }
    }

    /// The disk as it wakes up in a state after a cut.
    pub(super) fn woken(&self, cut: u32, state: &State) -> Self {
        match (self, state) {
            (Self::Model(port), State::Model(state)) => Self::Model(port.woken(state)),
            (Self::Segments(disk), State::Segments(choice)) => {
                Self::Segments(Appended::new(disk.at(cut, |now| now.woken(choice.of(cut)))))
            }
            _ => unreachable!("a state is of its own disk"),
        }
    }
}
