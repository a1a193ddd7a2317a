//! A target in the manner of SCSI: it serves what it holds in an order that its tester chooses, as far as attributes (or
//! overlaps) let it. Served means: the data are transferred and can be read back.

use crate::{Epoch, Offer, TaskAttribute};
use flashweir_core::{Command, CommandId, Data, Done, Op, Order, Payload};
use std::collections::BTreeMap;

/// Blocks in a mapping unit; every range of the tests is whole units.
pub(super) const UNIT: u64 = 8;

/// What the target keeps apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Task attributes, as SAM says.
    Attributes,
    /// Epochs by number and size: commands are served as they come, and persist epoch by epoch.
    Epochs,
}

#[derive(Clone, Debug)]
struct Task {
    command: Command,
    attribute: TaskAttribute,
    epoch: Option<Epoch>,
}

#[derive(Clone, Debug)]
pub(super) struct Target {
    keeps: Keeps,
    /// In the order of their arrival.
    tasks: Vec<Task>,
    /// Served, not answered.
    answers: Vec<(CommandId, Done)>,
    memory: BTreeMap<u64, Payload>,
    /// Served, not persistent.
    buffer: Vec<(Option<Epoch>, Vec<u64>)>,
    /// Commands served of each epoch, and how many there are.
    epochs: BTreeMap<(u16, u64), (u32, Option<u32>)>,
    /// How many barriers of each stream have arrived.
    barriers: BTreeMap<u16, u64>,
    /// Units that reached the medium, in that order: identity of the content.
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
            buffer: Vec::new(),
            epochs: BTreeMap::new(),
            barriers: BTreeMap::new(),
            written: Vec::new(),
            epoch_of: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, offer: Offer) {
        let Offer { command, attribute, epoch } = offer;
        if let Some(stream) = command.stream {
            let barriers = self.barriers.entry(stream.0).or_default();
            if let Op::Write { data: Data::Units(payloads), .. } = &command.op {
                self.epoch_of.extend(payloads.iter().map(|payload| (payload.identity(), *barriers)));
            }
            *barriers += u64::from(command.order == Some(Order::Barrier));
        }
        self.tasks.push(Task { command, attribute, epoch });
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
            apart && !earlier.iter().any(|before| touch(&before.command.op, &task.command.op))
        };
        (0..self.tasks.len()).filter(may).collect()
    }

    /// Serves one of them.
    pub(super) fn serve(&mut self, at: usize) -> CommandId {
        let Task { command, epoch, .. } = self.tasks.remove(at);
        let range = units(&command.op).map(|(range, _)| range);
        let done = match &command.op {
            Op::Write { data: Data::Units(payloads), .. } => {
                for (unit, payload) in range.expect("a write has a range").zip(payloads.iter()) {
                    self.memory.insert(unit, payload.clone());
                }
                self.buffer.push((epoch, payloads.iter().map(Payload::identity).collect()));
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
        self.persist(epoch);
        command.id
    }

    /// Moves from the buffer to the medium what may go there, after a member of an epoch was served.
    fn persist(&mut self, epoch: Option<Epoch>) {
        if let Some(epoch) = epoch {
            let (served, members) = self.epochs.entry((epoch.stream.0, epoch.number)).or_default();
            *served += 1;
            *members = members.or(epoch.members);
        }
        let is_over = |stream, number| {
            self.epochs.get(&(stream, number)).is_some_and(|&(served, members)| members == Some(served))
        };
        let may_go = |epoch: &Option<Epoch>| match (self.keeps, epoch) {
            (Keeps::Epochs, Some(epoch)) => (0..epoch.number).all(|number| is_over(epoch.stream.0, number)),
            _ => true,
        };
        self.buffer.sort_by_key(|(epoch, _)| epoch.map(|epoch| epoch.number));
        let (go, stay) = std::mem::take(&mut self.buffer).into_iter().partition(|(epoch, _)| may_go(epoch));
        self.buffer = stay;
        let go: Vec<(Option<Epoch>, Vec<u64>)> = go;
        self.written.extend(go.into_iter().flat_map(|(_, contents)| contents));
    }

    /// What can never persist, since an epoch before it is not over.
    pub(super) fn stuck(&self) -> usize {
        self.buffer.len()
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
