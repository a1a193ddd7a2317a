//! A SCSI-like target: it serves its commands in an order that the tester chooses, as far as attributes (or overlaps)
//! allow. Served means that the data are transferred and can be read back.

use crate::{Offer, TaskAttribute};
use flashweir_core::command::StreamId;
use flashweir_core::{Command, CommandId, Data, Done, Op, Order, Payload};
use std::collections::BTreeMap;

/// Sectors in a mapping unit; every range of the tests consists of whole units.
pub(super) const UNIT: u64 = 8;

/// The ordering rule of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Task attributes, as defined by SAM.
    Attributes,
    /// Epochs by number and size: commands of a later epoch wait until all earlier ones were served.
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
    /// Tasks in the order of their arrival.
    tasks: Vec<Task>,
    /// Answers of served commands that are not delivered yet.
    answers: Vec<(CommandId, Done)>,
    memory: BTreeMap<u64, Payload>,
    /// Per stream, the epoch that is being served and the number of its commands served so far.
    epochs: BTreeMap<StreamId, (u32, u32)>,
    /// Number of barriers of each stream that have arrived.
    barriers: BTreeMap<u16, u64>,
    /// Identities of written units, in the order of the writes.
    pub(super) written: Vec<u64>,
    /// Number of barriers of the stream that had arrived before each content, by its identity.
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

    /// Returns the tasks that may be served now. Simple ones on the same sectors keep their order (SAM: restricted
    /// reordering).
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

    /// Serves one of the tasks.
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

    /// Whether a command's epoch is being served, and for a barrier, whether all other members were served.
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
