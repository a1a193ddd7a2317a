//! A target in the manner of SCSI: it serves what it holds in an order that its tester chooses, as far as attributes (or
//! overlaps) let it. Served means: the data are transferred and can be read back.

use crate::{Offer, TaskAttribute};
use flashweir_core::command::StreamId;
use flashweir_core::{Command, CommandId, Data, Done, Op, Order, Payload};
use std::collections::BTreeMap;

/// Blocks in a mapping unit; every range of the tests is whole units.
pub(super) const UNIT: u64 = 8;

/// What the target keeps apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Task attributes, as SAM says.
    Attributes,
    /// Epochs by number and size: what belongs to a later one waits until all of the earlier ones were served.
    Epochs,
}

#[derive(Clone, Debug)]
struct Task {
    command: Command,
    attribute: TaskAttribute,
}

#[derive(Clone, Debug)]
pub(super) struct Target {
    keeps: Keeps,
    /// In the order of their arrival.
    tasks: Vec<Task>,
    /// Served, not answered.
    answers: Vec<(CommandId, Done)>,
    memory: BTreeMap<u64, Payload>,
    /// Of each stream, the epoch that is served, and how many of its commands were.
    epochs: BTreeMap<StreamId, (u32, u32)>,
    /// How many barriers of each stream have arrived.
    barriers: BTreeMap<u16, u64>,
    /// Units that were written, in that order: identity of the content.
    pub(super) written: Vec<u64>,
    /// By identity of the content, how many barriers of its stream had arrived before.
    pub(super) epoch_of: BTreeMap<u64, u64>,
}

/// Units of a range, and whether they change.
fn units(op: &Op) -> Option<(std::ops::Range<u64>, bool)> {
    let (lba, blocks, changes) = match op {
        Op::Read { lba, blocks } => (lba, blocks, false),
        Op::Write { lba, blocks, .. } | Op::Trim { lba, blocks } => (lba, blocks, true),
        _ => return None,
    };
    Some((lba.0 / UNIT..(lba.0 + u64::from(*blocks)) / UNIT, changes))
}

fn touch(a: &Op, b: &Op) -> bool {
    match (units(a), units(b)) {
        (Some((a, writes)), Some((b, also))) => (writes || also) && a.start < b.end && b.start < a.end,
        _ => false,
    }
}

impl Target {
    pub(super) fn new(keeps: Keeps) -> Self {
        Self {
            keeps,
            tasks: Vec::new(),
            answers: Vec::new(),
            memory: BTreeMap::new(),
            epochs: BTreeMap::new(),
            barriers: BTreeMap::new(),
            written: Vec::new(),
            epoch_of: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, offer: Offer) {
        let Offer { command, attribute, .. } = offer;
        if let Some(stream) = command.stream {
            let barriers = self.barriers.entry(stream.0).or_default();
            if let Op::Write { data: Data::Units(payloads), .. } = &command.op {
                self.epoch_of.extend(payloads.iter().map(|payload| (payload.identity(), *barriers)));
            }
            *barriers += u64::from(command.order == Some(Order::Barrier));
        }
        self.tasks.push(Task { command, attribute });
    }

    /// Tasks that may be served now. Simple ones on the same blocks keep their order (SAM: restricted reordering).
    pub(super) fn eligible(&self) -> Vec<usize> {
        let may = |at: &usize| {
            let (task, earlier) = (&self.tasks[*at], &self.tasks[..*at]);
            let apart = match task.attribute {
                TaskAttribute::HeadOfQueue => true,
                TaskAttribute::Ordered => earlier.is_empty(),
                TaskAttribute::Simple => {
                    earlier.iter().all(|before| before.attribute != TaskAttribute::Ordered)
                }
            };
            let apart = apart && (self.keeps == Keeps::Attributes || self.is_its_turn(&task.command));
            apart && !earlier.iter().any(|before| touch(&before.command.op, &task.command.op))
        };
        (0..self.tasks.len()).filter(may).collect()
    }

    /// Serves one of them.
    pub(super) fn serve(&mut self, at: usize) -> CommandId {
        let command = self.tasks.remove(at).command;
        let range = units(&command.op).map(|(range, _)| range);
        let done = match &command.op {
            Op::Write { data: Data::Units(payloads), .. } => {
                for (unit, payload) in range.expect("a write has a range").zip(payloads.iter()) {
                    self.memory.insert(unit, payload.clone());
                }
                self.written.extend(payloads.iter().map(Payload::identity));
                Done::Ok
            }
            Op::Trim { .. } => {
                range.expect("a trim has a range").for_each(|unit| drop(self.memory.remove(&unit)));
                Done::Ok
            }
            Op::Read { .. } => {
                Done::Data(range.expect("a read has a range").map(|unit| self.at(unit)).collect())
            }
            Op::Flush | Op::Barrier => Done::Ok,
            other => unreachable!("no program asks for {other:?}"),
        };
        self.answers.push((command.id, done));
        if let Some((stream, epoch)) = command.stream.zip(command.epoch) {
            let (current, served) = self.epochs.entry(stream).or_default();
            match epoch.members {
                None => *served += 1,
                Some(_) => (*current, *served) = (*current + 1, 0),
            }
        }
        command.id
    }

    /// Whether a command's epoch has come, and of a barrier, whether all other members were served.
    fn is_its_turn(&self, command: &Command) -> bool {
        let Some((stream, epoch)) = command.stream.zip(command.epoch) else { return true };
        let &(current, served) = self.epochs.get(&stream).unwrap_or(&(0, 0));
        epoch.number == current && epoch.members.is_none_or(|members| members == served + 1)
    }

    pub(super) fn at(&self, unit: u64) -> Payload {
        self.memory.get(&unit).cloned().unwrap_or_default()
    }

    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    pub(super) fn answer(&mut self, at: usize) -> (CommandId, Done) {
        self.answers.remove(at)
    }
}
