//! Requests that wait or are at the device, and the rules of merging.
//!
//! Invariant: the parts of a merged request are sorted by sector and leave no gap; each part is one submission and gets
//! its own answer.

use flashweir_core::command::{Handle, StreamId, Tag};
use flashweir_core::{Command, Data, Done, Instant, Lba, Op, Order};

/// Kind of a request that can be merged with its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    Write,
    WriteZeroes,
    Trim,
}

/// Representation of the data of a write. Different forms are not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Zero,
    Pattern(u64),
    Bytes,
    Units,
}

/// Properties that two requests must share in order to be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) kind: Kind,
    pub(crate) ns: u16,
    /// Device queue, or the submitter where submitters are served in turn.
    pub(crate) owner: u16,
    /// Stream and epoch; `None` for an orderless request.
    pub(crate) epoch: Option<(StreamId, u64)>,
    pub(crate) tags: [Tag; 2],
    pub(crate) handle: Handle,
    pub(crate) fua: bool,
    pub(crate) form: Form,
}

/// One submission within a request.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) token: u64,
    pub(crate) seq: u64,
    pub(crate) lba: u64,
    /// Length in sectors; 0 for a part without an address, such as a barrier that travels with this request.
    pub(crate) blocks: u32,
    /// Time at which it was merged into a waiting request; `None` if the request is its own.
    pub(crate) joined: Option<Instant>,
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for an earlier epoch, or for requests on the same sectors.
    Held,
    /// In the scheduler.
    Ready,
    /// Taken from the scheduler, not yet taken by the device.
    Leaving,
    /// Taken by the device.
    Taken { transferred: bool },
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The first command submitted; its operation is rebuilt when it leaves.
    pub(crate) command: Command,
    pub(crate) class: Option<Class>,
    /// Stream and epoch.
    pub(crate) member: Option<(StreamId, u64)>,
    /// Number of its first submission.
    pub(crate) seq: u64,
    pub(crate) parts: Vec<Part>,
    /// Data of a merged write, in the order of parts.
    pub(crate) data: Vec<Data>,
    pub(crate) lane: u16,
    pub(crate) submitter: u16,
    pub(crate) since: Instant,
    pub(crate) state: State,
    /// Time at which it entered the scheduler.
    pub(crate) ready: Instant,
    /// Time at which it was first offered to the device.
    pub(crate) offered: Instant,
    /// Whether it waits for an earlier epoch of its stream.
    pub(crate) epoch_held: bool,
    /// Number of requests on the same sectors that must leave first.
    pub(crate) blockers: u32,
    /// Requests on the same sectors that wait for this one.
    pub(crate) blocks: Vec<u32>,
    /// For a flush of the host's own: the stream whose epoch it settles.
    pub(crate) settles: Option<StreamId>,
}

impl Request {
    /// Returns first sector and number of sectors; `None` without an address.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        self.class?;
        let blocks = self.parts.iter().map(|part| u64::from(part.blocks)).sum();
        Some((self.parts[0].lba, blocks))
    }

    /// Calls `each` for every range that the request touches, with the number of the submission, the first sector, the
    /// number of sectors and whether the range changes.
    pub(crate) fn for_ranges(&self, mut each: impl FnMut(u64, u64, u64, bool)) {
        if let Op::Share(pairs) = &self.command.op {
            for pair in pairs {
                each(self.seq, pair.src.0, pair.blocks.into(), false);
                each(self.seq, pair.dst.0, pair.blocks.into(), true);
            }
        } else if let Some(class) = self.class {
            for part in &self.parts {
                each(part.seq, part.lba, part.blocks.into(), class.kind != Kind::Read);
            }
        }
    }

    /// Merges a request of the same class that ends where this one begins, or begins where this one ends.
    pub(crate) fn join(&mut self, now: Instant, mut other: Self) {
        other.parts.iter_mut().for_each(|part| part.joined = part.joined.or(Some(now)));
        if self.data.is_empty()
            && let Op::Write { data, .. } = &self.command.op
        {
            self.data.push(data.clone());
        }
        let data = match other.command.op {
            Op::Write { data, .. } => Some(data),
            _ => None,
        };
        if other.parts[0].lba < self.parts[0].lba {
            self.parts.splice(0..0, other.parts);
            self.data.splice(0..0, data);
        } else {
            self.parts.extend(other.parts);
            self.data.extend(data);
        }
    }

    /// Rebuilds the command's operation to cover all its parts.
    pub(crate) fn form(&mut self) {
        let (Some((first, blocks)), true) = (self.range(), self.parts.len() > 1) else { return };
        let (lba, blocks) = (Lba(first), u32::try_from(blocks).expect("a merged request has a limit"));
        self.command.op = match &self.command.op {
            Op::Read { .. } => Op::Read { lba, blocks },
            Op::WriteZeroes { .. } => Op::WriteZeroes { lba, blocks },
            Op::Trim { .. } => Op::Trim { lba, blocks },
            _ if self.data.is_empty() => return,
            _ => Op::Write { lba, blocks, data: concatenated(std::mem::take(&mut self.data)) },
        };
    }
}

/// Concatenates data of one form.
fn concatenated(mut data: Vec<Data>) -> Data {
    match data[0] {
        Data::Zero | Data::Pattern(_) => data.swap_remove(0),
        Data::Bytes(_) => {
            let all = data.iter().flat_map(|part| match part {
                Data::Bytes(bytes) => &bytes[..],
                _ => unreachable!("forms of a class are alike"),
            });
            Data::Bytes(all.copied().collect::<Vec<u8>>().into())
        }
        Data::Units(_) => {
            let all = data.iter().flat_map(|part| match part {
                Data::Units(units) => &units[..],
                _ => unreachable!("forms of a class are alike"),
            });
            Data::Units(all.cloned().collect())
        }
    }
}

/// Returns kind, form, first sector and length of a command; `None` for a command without sectors or with several
/// ranges.
pub(crate) fn placed(command: &Command) -> Option<(Kind, Form, u64, u32)> {
    let (kind, form, lba, blocks) = match &command.op {
        Op::Read { lba, blocks } => (Kind::Read, Form::Zero, lba, blocks),
        Op::WriteZeroes { lba, blocks } => (Kind::WriteZeroes, Form::Zero, lba, blocks),
        Op::Trim { lba, blocks } => (Kind::Trim, Form::Zero, lba, blocks),
        Op::Write { lba, blocks, data } => {
            let form = match data {
                Data::Zero => Form::Zero,
                Data::Pattern(operation) => Form::Pattern(*operation),
                Data::Bytes(_) => Form::Bytes,
                Data::Units(_) => Form::Units,
            };
            (Kind::Write, form, lba, blocks)
        }
        _ => return None,
    };
    (*blocks > 0).then_some((kind, form, lba.0, *blocks))
}

/// Returns the stream and role of a command. Reads and flushes change nothing and have none (barriers §3.3).
pub(crate) fn in_order(command: &Command) -> Option<(StreamId, Order)> {
    match &command.op {
        Op::Flush | Op::RFlush(_) => None,
        op if op.only_reads() => None,
        _ => command.stream.zip(command.order),
    }
}

/// Returns the answer to one part of a read: the mapping units that it touches, out of those of the whole read.
pub(crate) fn share_of(done: &Done, whole_lba: u64, part: &Part, unit_blocks: u64) -> Done {
    match done {
        // A device that keeps no contents answers with none.
        Done::Data(units) if part.blocks > 0 && !units.is_empty() => {
            let first = part.lba / unit_blocks - whole_lba / unit_blocks;
            let end = (part.lba + u64::from(part.blocks)).div_ceil(unit_blocks) - whole_lba / unit_blocks;
            Done::Data(units[first as usize..end as usize].into())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Payload;
    use std::sync::Arc;

    /// A host FTL above a device that keeps no contents answers a read without them, and merged ones once panicked for that.
    #[test]
    fn regression_parts_of_a_read_without_contents_have_none() {
        let part = Part { token: 0, seq: 0, lba: 16, blocks: 8, joined: None };
        assert_eq!(share_of(&Done::Data([].into()), 0, &part, 8), Done::Data([].into()));
    }

    #[test]
    fn a_part_of_a_read_gets_its_own_units() {
        let units: Vec<Payload> = (0..4).map(Payload::Tag).collect();
        let done = Done::Data(units.into());
        let part = |lba, blocks| Part { token: 0, seq: 0, lba, blocks, joined: None };
        let tags = |part: &Part| match share_of(&done, 12, part, 8) {
            Done::Data(units) => units.iter().map(Payload::identity).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        // Units of 8 sectors: the whole read began in the middle of unit 1.
        assert_eq!(tags(&part(12, 4)), [0]);
        assert_eq!(tags(&part(12, 5)), [0, 1]);
        assert_eq!(tags(&part(23, 10)), [1, 2, 3]);
        assert_eq!(share_of(&Done::Ok, 12, &part(12, 4), 8), Done::Ok);
    }

    #[test]
    fn data_of_one_form_are_joined() {
        let units = |tag| Data::Units([Payload::Tag(tag)].into_iter().collect());
        assert_eq!(
            concatenated(vec![units(1), units(2)]),
            Data::Units(vec![Payload::Tag(1), Payload::Tag(2)].into())
        );
        let bytes = |byte| Data::Bytes(Arc::from([byte; 2]));
        assert_eq!(concatenated(vec![bytes(1), bytes(2)]), Data::Bytes(Arc::from([1, 1, 2, 2])));
        assert_eq!(concatenated(vec![Data::Pattern(3), Data::Pattern(3)]), Data::Pattern(3));
    }
}
