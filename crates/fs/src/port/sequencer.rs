//! Writes to append segments in the order of their blocks, whatever the order in which they are submitted.
//!
//! Place in the data flow: between a file system, whose tasks give blocks their places one after the other but submit them when they have
//! collected a few, and a disk that takes a segment's blocks only at its write pointer.
//!
//! Invariants: a write that comes early is kept until those before it in its segment have been submitted, and then goes at once; its ticket
//! is that of any request. Whoever gives a block its place submits it, whatever happens in between, or all later writes of the segment wait
//! for ever.

use super::{Block, BlockPort, Progress, Request, Ticket, Write};
use flashweir_core::command::SegmentId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
#[derive(Debug)]
pub struct Sequencer {
    port: Rc<dyn BlockPort>,
    /// The block that is submitted next in each segment that was written, if it is not the first one.
    next: RefCell<BTreeMap<u64, u64>>,
    /// Writes that came early, by their first blocks.
    early: RefCell<BTreeMap<u64, (Write, Progress)>>,
}

impl Sequencer {
    /// Orders what goes to a disk of append segments in which nothing is written yet; see [`Self::continue_at`].
    pub fn new(port: Rc<dyn BlockPort>) -> Self {
        Self { port, next: RefCell::default(), early: RefCell::default() }
    }

    /// Sets the block of a segment that is written next.
    pub fn continue_at(&self, segment: SegmentId, offset: u32) {
        let first = u64::from(segment.0) * u64::from(self.port.segment_blocks());
        self.next.borrow_mut().insert(segment.0.into(), first + u64::from(offset));
    }

    /// Number of writes that wait for others.
    pub fn waiting(&self) -> usize {
        self.early.borrow().len()
    }

    fn segment_of(&self, block: Block) -> u64 {
        block.0 / u64::from(self.port.segment_blocks())
    }

    fn write_in_order(&self, write: Write) -> Ticket {
        let segment = self.segment_of(write.block);
        let first = segment * u64::from(self.port.segment_blocks());
        let next = self.next.borrow().get(&segment).copied().unwrap_or(first);
        if write.block.0 > next {
            let (progress, ticket) = Ticket::new();
            let before = self.early.borrow_mut().insert(write.block.0, (write, progress));
            debug_assert!(before.is_none(), "a block is written once");
            return ticket;
        }
        let mut next = write.block.0 + write.payloads.len() as u64;
        let ticket = self.port.write(write);
        loop {
            let early = self.early.borrow_mut().remove(&next);
            let Some((write, progress)) = early.filter(|(write, _)| self.segment_of(write.block) == segment)
            else {
                break;
            };
            next += write.payloads.len() as u64;
            self.port.write(write).hand_to(progress);
        }
        self.next.borrow_mut().insert(segment, next);
        ticket
    }
}

impl BlockPort for Sequencer {
    fn capacity_blocks(&self) -> u64 {
        self.port.capacity_blocks()
    }

    fn segment_blocks(&self) -> u32 {
        self.port.segment_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        match request {
            Request::Write(write) => self.write_in_order(write),
            Request::Discard { block, count, order } => {
                self.next.borrow_mut().remove(&self.segment_of(block));
                self.port.submit(Request::Discard { block, count, order })
            }
            other => self.port.submit(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Segments, block_on};
    use super::*;
    use flashweir_core::Payload;

    #[test]
    fn early_writes_wait_for_those_before_them() {
        let disk = Rc::new(Segments::in_memory(2, 8));
        let port = Sequencer::new(Rc::clone(&disk) as Rc<dyn BlockPort>);
        let write = |block: u64, count: u64| {
            let payloads: Vec<_> = (block..block + count).map(|at| Payload::Tag(at + 1)).collect();
            port.write(Write::new(Block(block), payloads))
        };
        let (late, other) = (write(5, 3), write(8, 1));
        let middle = write(3, 2);
        assert!(other.is_complete() && !late.is_complete() && !middle.is_complete());
        assert_eq!(port.waiting(), 2);
        assert!(write(0, 3).is_complete() && middle.is_complete() && late.is_complete());
        assert_eq!((block_on(late.completed()), port.waiting()), (Ok(Box::default()), 0));
        let read = block_on(port.read(Block(0), 8).completed()).unwrap();
        assert_eq!(read.iter().map(Payload::identity).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
        assert_eq!(block_on(port.report(SegmentId(0)).reported()), Ok(8));
        block_on(port.discard(Block(0), 8).completed()).unwrap();
        assert!(block_on(write(0, 1).completed()).is_ok(), "a segment begins anew after a discard");
    }
}
