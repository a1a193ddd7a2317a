//! Programs that wait for each other, where a chunk takes one write at a time (open-channel §6.2).
//!
//! Invariant: at most one program of a block is under way, and those of a block are sent in the order in which they came.

use super::tasks::Task;
use flashweir_core::Op;
use flashweir_ftl::BlockId;
use std::collections::{BTreeSet, VecDeque};

/// A program that is not sent yet.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) op: Op,
    pub(super) queue: u32,
    pub(super) task: Task,
}

/// Whose turn it is on each block.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    busy: BTreeSet<BlockId>,
    waiting: VecDeque<Waiting>,
}

/// Blocks of a program; none of anything else.
fn blocks_of(task: &Task) -> &[BlockId] {
    match task {
        Task::Program { blocks, .. } => blocks,
        Task::Meta { block, .. } => std::slice::from_ref(block),
        _ => &[],
    }
}

impl Turns {
    /// A program comes: gives it back if it is to be sent now.
    pub(super) fn take(&mut self, program: Waiting) -> Option<Waiting> {
        self.waiting.push_back(program);
        self.next().pop()
    }

    /// A task has ended: gives the programs that are to be sent now.
    pub(super) fn ended(&mut self, task: &Task) -> Vec<Waiting> {
        if self.busy.is_empty() {
            return Vec::new();
        }
        blocks_of(task).iter().for_each(|block| {
            self.busy.remove(block);
        });
        self.next()
    }

    /// Takes out the programs on whose blocks none is under way, or waits before them.
    fn next(&mut self) -> Vec<Waiting> {
        let mut taken = self.busy.clone();
        let mut next = Vec::new();
        for program in std::mem::take(&mut self.waiting) {
            let blocks = blocks_of(&program.task);
            let is_free = !blocks.iter().any(|block| taken.contains(block));
            taken.extend(blocks);
            if is_free {
                self.busy.extend(blocks);
                next.push(program);
            } else {
                self.waiting.push_back(program);
            }
        }
        next
    }
}
