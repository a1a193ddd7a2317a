//! A disk of append segments in memory, for tests and tools. It answers at once, refuses whatever append segments refuse
//! (append-segments §2), and can lose its power.
//!
//! Invariants: blocks of a segment are written in order, each once between two discards; a flush makes everything that was answered durable, a
//! write with FUA its segment up to itself, a range flush that of each range up to its end. After a power cut each segment has a prefix of what it had, at least what was durable; a discard is done or not.

use super::segment_rules::Rules;
use super::{Answer, Block, BlockPort, Request, Selection, Ticket};
use flashweir_core::random::mix;
use flashweir_core::{DeviceError, Payload};
use std::cell::{Cell, RefCell};

/// Blocks of a segment between two discards.
#[derive(Clone, Debug, Default)]
struct Generation {
    blocks: Vec<Payload>,
    /// For each block, a hash of it and those before it.
    hashes: Vec<u64>,
    /// Number of blocks that are durable.
    durable: usize,
}

impl Generation {
    fn push(&mut self, payload: Payload) {
        let before = self.hashes.last().copied().unwrap_or(0);
        self.hashes.push(mix(before ^ payload.identity()).wrapping_add(1));
        self.blocks.push(payload);
    }

    /// The first blocks, all of them durable.
    fn prefix(&self, count: usize) -> Self {
        let (blocks, hashes) = (self.blocks[..count].to_vec(), self.hashes[..count].to_vec());
        Self { blocks, hashes, durable: count }
    }
}

/// A segment: what it holds, and generations that a power cut may bring back because their discards are not durable.
#[derive(Clone, Debug, Default)]
struct Segment {
    older: Vec<Generation>,
    now: Generation,
}

impl Segment {
    /// Makes the discards before durable, and the first blocks as far as they are written.
    fn make_durable(&mut self, upto: usize) {
        self.older.clear();
        self.now.durable = self.now.durable.max(upto.min(self.now.blocks.len()));
    }

    /// States that the segment may have after a power cut: a generation, and how many of its blocks.
    fn states(&self) -> impl Iterator<Item = (&Generation, usize)> {
        let generations = self.older.iter().chain([&self.now]);
        generations.flat_map(|one| (one.durable..=one.blocks.len()).map(move |kept| (one, kept)))
    }
}

/// See the module. A clone is another disk.
#[derive(Clone, Debug)]
pub struct Segments {
    segment_blocks: u32,
    segments: RefCell<Vec<Segment>>,
    /// Requests that have changed something.
    changes: Cell<u64>,
    /// Changes after which there is no power.
    power_off_after: Cell<Option<u64>>,
}

impl Segments {
    /// An empty disk.
    pub fn in_memory(segments: u32, segment_blocks: u32) -> Self {
        let segments = RefCell::new(vec![Segment::default(); segments as usize]);
        Self { segment_blocks, segments, changes: Cell::new(0), power_off_after: Cell::new(None) }
    }

    /// Number of requests so far that have changed something.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Lets the power fail after this number of changes: later requests are refused.
    pub fn power_off_after(&self, changes: u64) {
        self.power_off_after.set(Some(changes));
    }

    /// A disk on which these blocks are written and durable: of each segment those from its first one on.
    pub fn with_contents(
        segments: u32,
        segment_blocks: u32,
        content: impl Fn(Block) -> Option<Payload>,
    ) -> Self {
        let disk = Self::in_memory(segments, segment_blocks);
        for (segment, first) in
            disk.segments.borrow_mut().iter_mut().zip((0u64..).step_by(segment_blocks as usize))
        {
            let blocks = (first..first + u64::from(segment_blocks)).map_while(|block| content(Block(block)));
            blocks.for_each(|payload| segment.now.push(payload));
            segment.now.durable = segment.now.blocks.len();
        }
        disk
    }

    /// The disk as it wakes up after a power cut. For each segment `choose` gets the number of states that it may have, and returns which
    /// one it has: 0 loses most.
    pub fn woken(&self, mut choose: impl FnMut(u64) -> u64) -> Self {
        let wake = |segment: &Segment| {
            let (generation, kept) = nth(segment, &mut choose);
            Segment { older: Vec::new(), now: generation.prefix(kept) }
        };
        let segments = RefCell::new(self.segments.borrow().iter().map(wake).collect());
        let Self { segment_blocks, .. } = *self;
        Self { segment_blocks, segments, changes: Cell::new(0), power_off_after: Cell::new(None) }
    }

    /// A hash of the contents with which it would wake up.
    pub fn woken_hash(&self, mut choose: impl FnMut(u64) -> u64) -> u64 {
        self.segments.borrow().iter().fold(1, |hash, segment| {
            let (generation, kept) = nth(segment, &mut choose);
            mix(hash ^ kept.checked_sub(1).map_or(0, |last| generation.hashes[last]))
        })
    }

    /// Number of segments whose state a power cut would not decide by itself.
    pub fn undecided(&self) -> usize {
        self.segments.borrow().iter().filter(|segment| segment.states().nth(1).is_some()).count()
    }

    /// Contents of all segments, from the first block of each on.
    pub fn contents(&self) -> Vec<Vec<Payload>> {
        self.segments.borrow().iter().map(|segment| segment.now.blocks.clone()).collect()
    }

    fn rules(&self) -> Rules {
        let segments = self.segments.borrow().len() as u32;
        Rules { segments, segment_blocks: self.segment_blocks }
    }

    /// Number of blocks that are written in a segment.
    fn pointer(&self, segment: usize) -> u32 {
        self.segments.borrow()[segment].now.blocks.len() as u32
    }

    fn change(&self) -> Result<(), DeviceError> {
        if self.power_off_after.get().is_some_and(|last| self.changes.get() >= last) {
            return Err(DeviceError::NotSupported("anything without power"));
        }
        self.changes.set(self.changes.get() + 1);
        Ok(())
    }

    fn answer(&self, request: Request) -> Answer {
        let rules = self.rules();
        match request {
            Request::Read { block, count } => {
                rules.check(block, count.into())?;
                let segments = self.segments.borrow();
                let read = |block: u64| {
                    let (segment, offset, at) = rules.place(Block(block));
                    let found = segments[segment].now.blocks.get(offset as usize).cloned();
                    found.ok_or(DeviceError::NotWritten { at }.into())
                };
                (block.0..block.0 + u64::from(count)).map(read).collect()
            }
            Request::Write(write) => {
                let count = write.payloads.len() as u64;
                let segment = rules.check_write(write.block, count, |segment| self.pointer(segment))?;
                self.change()?;
                let segment = &mut self.segments.borrow_mut()[segment];
                write.payloads.iter().for_each(|payload| segment.now.push(payload.clone()));
                if write.fua {
                    segment.make_durable(usize::MAX);
                }
                Ok(Box::default())
            }
            Request::Flush => {
                self.change()?;
                self.segments.borrow_mut().iter_mut().for_each(|segment| segment.make_durable(usize::MAX));
                Ok(Box::default())
            }
            Request::RangeFlush(Selection { tags, .. }) if !tags.is_empty() => {
                Err(DeviceError::NotSupported("owners of segments").into())
            }
            Request::RangeFlush(Selection { ranges, .. }) => {
                ranges.iter().try_for_each(|(block, count)| rules.check(*block, (*count).into()))?;
                self.change()?;
                for last in ranges.iter().flat_map(|(block, count)| block.0..block.0 + u64::from(*count)) {
                    let (segment, offset, _) = rules.place(Block(last));
                    self.segments.borrow_mut()[segment].make_durable(offset as usize + 1);
                }
                Ok(Box::default())
            }
            Request::Discard { block, count, .. } => {
                let segment = rules.check_discard(block, count)?;
                self.change()?;
                let segment = &mut self.segments.borrow_mut()[segment];
                if !segment.now.blocks.is_empty() {
                    let old = std::mem::take(&mut segment.now);
                    segment.older.push(old);
                }
                Ok(Box::default())
            }
            Request::Barrier(_) => Err(DeviceError::NotSupported("ordered commands").into()),
            Request::Share(_) => Err(DeviceError::NotSupported("SHARE of segments").into()),
            Request::Report(_) => unreachable!("it is answered where its ticket is made"),
        }
    }
}

/// The state of a segment that `choose` takes among those that it may have.
fn nth<'a>(segment: &'a Segment, choose: &mut impl FnMut(u64) -> u64) -> (&'a Generation, usize) {
    let states = segment.states().count() as u64;
    let chosen = if states > 1 { choose(states) } else { 0 };
    segment.states().nth(chosen as usize).expect("there is one more than the last")
}

impl BlockPort for Segments {
    fn capacity_blocks(&self) -> u64 {
        self.rules().capacity_blocks()
    }

    fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    fn submit(&self, request: Request) -> Ticket {
        match request {
            Request::Report(segment) => self.rules().report(segment, |segment| self.pointer(segment)),
            other => Ticket::done(self.answer(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Write, block_on};
    use super::*;
    use flashweir_core::command::{SegmentId, Tag};
    use std::collections::BTreeSet;

    fn put(disk: &Segments, block: u64, number: u64) -> Answer {
        block_on(disk.write(Write::new(Block(block), vec![Payload::Tag(number)])).completed())
    }

    #[test]
    fn a_segment_is_written_in_order_and_once() {
        let disk = Segments::in_memory(2, 2);
        let error = |answer: Answer| answer.unwrap_err().to_string();
        assert_eq!(
            error(put(&disk, 1, 1)),
            "write out of order at sector 8 of segment 0: the write pointer is 0"
        );
        put(&disk, 0, 1).unwrap();
        put(&disk, 1, 2).unwrap();
        assert!(error(put(&disk, 0, 3)).starts_with("write out of order"));
        assert!(error(block_on(disk.read(Block(2), 1).completed())).ends_with("never written"));
        assert!(error(block_on(disk.discard(Block(0), 1).completed())).contains("a part"));
        assert_eq!(block_on(disk.report(SegmentId(0)).reported()), Ok(2));
        block_on(disk.discard(Block(0), 2).completed()).unwrap();
        assert_eq!(block_on(disk.report(SegmentId(0)).reported()), Ok(0));
        assert!(block_on(disk.read(Block(4), 1).completed()).is_err());
    }

    /// A cut leaves a prefix of a generation, and no generation that a flush has seen the end of.
    #[test]
    fn a_power_cut_leaves_prefixes() {
        let disk = Segments::in_memory(1, 4);
        put(&disk, 0, 1).unwrap();
        block_on(disk.flush().completed()).unwrap();
        put(&disk, 1, 2).unwrap();
        block_on(disk.discard(Block(0), 4).completed()).unwrap();
        put(&disk, 0, 3).unwrap();
        let shown = |disk: &Segments| {
            let states = (0..).map_while(|state| {
                let mut count = 1;
                let woken = disk.woken(|states| {
                    count = states;
                    state.min(states - 1)
                });
                (state < count).then(|| woken.contents()[0].iter().map(Payload::identity).collect::<Vec<_>>())
            });
            states.collect::<BTreeSet<_>>()
        };
        assert_eq!(shown(&disk), BTreeSet::from([vec![1], vec![1, 2], vec![], vec![3]]));
        block_on(disk.flush().completed()).unwrap();
        assert_eq!(shown(&disk), BTreeSet::from([vec![3]]));
    }

    #[test]
    fn a_range_flush_makes_prefixes_durable() {
        let disk = Segments::in_memory(2, 4);
        (0..3).chain(4..7).for_each(|block| drop(put(&disk, block, block + 1)));
        let least = || disk.woken(|_| 0).contents().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(least(), [0, 0]);
        let selection = Selection { ranges: vec![(Block(1), 1)], tags: Vec::new() };
        block_on(disk.range_flush(selection).completed()).unwrap();
        assert_eq!(least(), [2, 0], "a block and what stands in front of it");
        let by_owner = Selection { tags: vec![Tag(1)], ..Selection::default() };
        assert!(block_on(disk.range_flush(by_owner).completed()).is_err());
    }
}
