//! The block port: the one thing that a file system sees of a disk.
//!
//! Place in the data flow: a file system submits a [`Request`] and gets a [`Ticket`], on which the stages of the request ([`Moment`]) can
//! be awaited. Below is either a stack in virtual time (block layer, link, device), which keeps the [`Progress`] of each request, or an
//! [`Image`], which has done everything before it returns.
//!
//! Invariants:
//! 1. The unit is a [`Block`] of 4,096 bytes, whatever the blocks of the command set are.
//! 2. A request that was submitted is answered once, even if its ticket is no longer awaited; dropping a ticket cancels nothing. A power
//!    cut destroys the executor's tasks, and tickets with them.
//! 3. The stages of a request come in the order of [`Moment`]; a later one includes the earlier ones.
//! 4. Requests are submitted in the order of the calls of [`BlockPort::submit`]. Nothing else is ordered, except for what
//!    `order` asks of a stream and what flushes promise.
//!
//! A disk may consist of append segments ([`BlockPort::segment_blocks`]): a block is written once between two discards of its segment, and
//! only at the write pointer; a discard is of one whole segment. Such a disk is an [`AppendPort`]; the place of an append comes with its
//! answer ([`Ticket::appended`]). [`Sequencer`] brings writes of several tasks into the order of their blocks.
//!
//! Deliberately absent: caching, merging, retries, and any knowledge of what a block is for.

mod image;
mod segment_image;
mod segment_rules;
mod segments;
mod sequencer;

pub use image::{Image, block_on};
pub use segment_image::SegmentImage;
pub use segments::Segments;
pub use sequencer::Sequencer;

use flashweir_core::command::{Handle, SegmentId, StreamId, Tag};
use flashweir_core::{Contents, DeviceError, Order, Payload};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Bytes in a block of the port.
pub const BLOCK_BYTES: usize = 4096;

/// The content of one block as bytes.
pub type BlockBytes = [u8; BLOCK_BYTES];

/// The number of a block of [`BLOCK_BYTES`] bytes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

/// A request of a file system to a disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Read `count` blocks from `block` on; the answer has one payload for each.
    Read { block: Block, count: u32 },
    /// Write.
    Write(Write),
    /// Make everything that completed before durable.
    Flush,
    /// Make a chosen part of what completed before durable.
    RangeFlush(Selection),
    /// The contents of these blocks are needed no more; they may read as zeros or as before.
    Discard { block: Block, count: u32, order: InOrder },
    /// Closes the open epoch of a stream (barriers §3.2).
    Barrier(StreamId),
    /// Blocks take over the contents that others have now: all of them or none after a power cut, durable with the next flush
    /// (share §2). At most [`BlockPort::share_blocks_max`] blocks.
    Share(Share),
    /// Where a segment is written next ([`Ticket::reported`]); of a disk with append segments.
    Report(SegmentId),
}

/// Blocks that take over the contents of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Which ones; no block changes twice.
    pub remaps: Vec<Remap>,
    /// Owners of the blocks that change, for range flushes; 0 is none.
    pub tags: [Tag; 2],
    /// Its part in the order of a stream.
    pub order: InOrder,
}

impl Share {
    /// Adds a block, to the last range if it continues that one.
    pub fn add(&mut self, dst: Block, src: Block) {
        match self.remaps.last_mut() {
            Some(last)
                if last.dst.0 + u64::from(last.count) == dst.0
                    && last.src.0 + u64::from(last.count) == src.0 =>
            {
                last.count += 1;
            }
            _ => self.remaps.push(Remap { dst, src, count: 1 }),
        }
    }
}

/// Blocks from `dst` on that take over the contents of those from `src` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// The first block that changes.
    pub dst: Block,
    /// The first one whose content it gets.
    pub src: Block,
    /// Number of blocks.
    pub count: u32,
}

/// The order domain of a request and its part in the open epoch there; `None` is orderless.
pub type InOrder = Option<(StreamId, Order)>;

/// A write of consecutive blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The first block.
    pub block: Block,
    /// One content for each block.
    pub payloads: Contents,
    /// Owners of these blocks, for range flushes; 0 is none.
    pub tags: [Tag; 2],
    /// Its part in the order of a stream.
    pub order: InOrder,
    /// Complete only when durable.
    pub fua: bool,
    /// Placement handle, below [`BlockPort::handles`].
    pub handle: Handle,
}

impl Write {
    /// An orderless write without owners of one or more blocks.
    pub fn new(block: Block, payloads: impl Into<Contents>) -> Self {
        let payloads = payloads.into();
        Self { block, payloads, tags: [Tag(0); 2], order: None, fua: false, handle: Handle::default() }
    }
}

/// The selection of a range flush: the union of its selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Ranges of blocks, at most 256.
    pub ranges: Vec<(Block, u32)>,
    /// Owners, at most 16.
    pub tags: Vec<Tag>,
}

impl Selection {
    /// What belongs to these owners.
    pub fn of_owners(tags: impl Into<Vec<Tag>>) -> Self {
        Self { ranges: Vec::new(), tags: tags.into() }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortError {
    /// The device's error; its addresses are sectors of 512 bytes.
    Device(DeviceError),
    /// Error of an image's file: path or range, and reason.
    Image(String),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Image(why) => f.write_str(why),
        }
    }
}
impl std::error::Error for PortError {}
impl From<DeviceError> for PortError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// Answer of a request: the contents of a read, nothing for other requests; or the reason of the failure.
pub type Answer = Result<Box<[Payload]>, PortError>;

/// The stages of a request, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// The host has handed it to the device, and nothing that is submitted from now on goes before it.
    Dispatched,
    /// The device has taken the data: the host's memory is free again.
    Transferred,
    /// The device has answered.
    Completed,
}

/// A disk, as a file system sees it.
pub trait BlockPort: fmt::Debug {
    /// Size in blocks.
    fn capacity_blocks(&self) -> u64;

    /// Most blocks of one SHARE; 0 if the disk has no such command, or not for single blocks.
    fn share_blocks_max(&self) -> u32 {
        0
    }

    /// Whether a block has a content, which another one can take over by a SHARE: one that nobody wrote, or that was discarded, reads as zeros
    /// and has none (share §2.2). Of a block that is being written either answer is right.
    fn has_content(&self, block: Block) -> bool {
        let _ = block;
        true
    }

    /// Number of placement handles (commands §4.14); 1 without placement.
    fn handles(&self) -> u8 {
        1
    }

    /// Blocks of an append segment; 0 if blocks may be written in any order, and over again.
    fn segment_blocks(&self) -> u32 {
        0
    }

    /// Hands a request over; it is under way when this returns.
    fn submit(&self, request: Request) -> Ticket;

    /// Submits a read.
    fn read(&self, block: Block, count: u32) -> Ticket {
        self.submit(Request::Read { block, count })
    }

    /// Submits a write.
    fn write(&self, write: Write) -> Ticket {
        self.submit(Request::Write(write))
    }

    /// Submits a flush of everything.
    fn flush(&self) -> Ticket {
        self.submit(Request::Flush)
    }

    /// Submits a flush of a part.
    fn range_flush(&self, selection: Selection) -> Ticket {
        self.submit(Request::RangeFlush(selection))
    }

    /// Submits an orderless discard.
    fn discard(&self, block: Block, count: u32) -> Ticket {
        self.submit(Request::Discard { block, count, order: None })
    }

    /// Submits a barrier of no length.
    fn barrier(&self, stream: StreamId) -> Ticket {
        self.submit(Request::Barrier(stream))
    }

    /// Asks where a segment is written next.
    fn report(&self, segment: SegmentId) -> Ticket {
        self.submit(Request::Report(segment))
    }

    /// Submits a SHARE.
    fn share(&self, share: Share) -> Ticket {
        self.submit(Request::Share(share))
    }
}

/// A disk that also has append segments (commands §5).
pub trait AppendPort: BlockPort {
    /// Submits an append to a segment, orderless and without owners; [`Ticket::appended`] returns its place.
    fn append(&self, segment: SegmentId, payloads: Contents) -> Ticket;
}

#[derive(Debug, Default)]
struct State {
    reached: Option<Moment>,
    answer: Option<Answer>,
    /// First block in the segment, of an append that was answered; or the write pointer that was asked for.
    offset: Option<u32>,
    /// What reaches the same stages, if nobody waits for this request itself.
    follower: Option<Progress>,
    /// Waker of the first waiting task, which is usually the only one, and the stage for which it waits.
    waker: Option<(Moment, Waker)>,
    /// Wakers of the others, in the order in which they came.
    wakers: Vec<(Moment, Waker)>,
}

/// The file system's end of a request.
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped cannot say that it failed"]
pub struct Ticket {
    state: Rc<RefCell<State>>,
}

/// The disk's end of a request: it reports which stages were reached.
#[derive(Debug)]
pub struct Progress {
    state: Rc<RefCell<State>>,
}

impl Ticket {
    /// A ticket and the end that the port keeps.
    pub fn new() -> (Progress, Self) {
        let state = Rc::new(RefCell::new(State::default()));
        (Progress { state: Rc::clone(&state) }, Self { state })
    }

    /// A ticket of a request that is done already.
    pub fn done(answer: Answer) -> Self {
        let (progress, ticket) = Self::new();
        progress.complete(answer);
        ticket
    }

    /// Waits for a stage. A request that fails reaches all of them.
    pub async fn reached(&self, moment: Moment) {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.reached >= Some(moment) {
                return Poll::Ready(());
            }
            match &state.waker {
                None => state.waker = Some((moment, context.waker().clone())),
                Some((of, waker)) if *of == moment && waker.will_wake(context.waker()) => {}
                Some(_) => state.wakers.push((moment, context.waker().clone())),
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits until the request is on its way to the device.
    pub async fn dispatched(&self) {
        self.reached(Moment::Dispatched).await;
    }

    /// Waits until the device has taken the data.
    pub async fn transferred(&self) {
        self.reached(Moment::Transferred).await;
    }

    /// Waits for the answer to [`Request::Report`]: the number of the block in the segment that is written next. Errors: what the device
    /// said. Panics if the request was another one (a bug of ours).
    pub async fn reported(self) -> Result<u32, PortError> {
        self.appended().await
    }

    /// Lets `progress` reach whatever this request reaches.
    fn hand_to(self, progress: Progress) {
        let mut state = self.state.borrow_mut();
        match (state.reached, state.answer.take()) {
            (Some(Moment::Completed), Some(answer)) => progress.complete(answer),
            (reached, _) => {
                if let Some(moment) = reached {
                    progress.reach(moment);
                }
                state.follower = Some(progress);
            }
        }
    }

    /// Whether the answer is there.
    pub fn is_complete(&self) -> bool {
        self.state.borrow().reached == Some(Moment::Completed)
    }

    /// Waits for the answer. Errors: what the device said.
    pub async fn completed(self) -> Answer {
        self.reached(Moment::Completed).await;
        self.into_answer()
    }

    /// Waits for the answer to an append, and gives the number of its first block in the segment. Errors: what the device said.
    /// Panics if the request was another one (a bug of ours).
    pub async fn appended(self) -> Result<u32, PortError> {
        self.reached(Moment::Completed).await;
        let offset = self.state.borrow().offset;
        self.into_answer().map(|_| offset.expect("only an append is asked where it went"))
    }

    /// The answer of a request that has reached [`Moment::Completed`]; panics before (a bug of ours).
    pub(crate) fn into_answer(self) -> Answer {
        self.state
            .borrow_mut()
            .answer
            .take()
            .expect("it is complete, and who takes the answer takes the ticket")
    }
}

impl Progress {
    /// The request is on its way to the device.
    pub fn dispatched(&self) {
        self.reach(Moment::Dispatched);
    }

    /// The device has taken the data.
    pub fn transferred(&self) {
        self.reach(Moment::Transferred);
    }

    /// The device has answered.
    pub fn complete(self, answer: Answer) {
        self.answered(answer);
    }

    /// Sets the number of an append's first block in the segment. The answer follows.
    pub fn at_offset(&self, block: u32) {
        self.state.borrow_mut().offset = Some(block);
    }

    fn answered(&self, answer: Answer) {
        self.state.borrow_mut().answer = Some(answer);
        self.reach(Moment::Completed);
    }

    /// Wakes the tasks that wait for this stage. A task that waits for a later one is not woken: a poll of it goes through the calls of all
    /// layers.
    fn reach(&self, moment: Moment) {
        let mut state = self.state.borrow_mut();
        debug_assert!(state.reached <= Some(moment), "moments come in their order");
        state.reached = Some(moment);
        let first = state.waker.take_if(|(of, _)| *of <= moment);
        let has_others = !state.wakers.is_empty();
        let has_follower = state.follower.is_some();
        drop(state);
        if has_follower {
            self.lead(moment);
        }
        if let Some((_, waker)) = first {
            waker.wake();
        }
        if has_others {
            self.wake_others(moment);
        }
    }

    #[cold]
    fn lead(&self, moment: Moment) {
        let mut state = self.state.borrow_mut();
        let (follower, answer) =
            (state.follower.take(), state.answer.take_if(|_| moment == Moment::Completed));
        drop(state);
        match (follower, answer) {
            (Some(follower), Some(answer)) => follower.complete(answer),
            (Some(follower), None) => {
                follower.reach(moment);
                self.state.borrow_mut().follower = Some(follower);
            }
            (None, _) => (),
        }
    }

    #[cold]
    fn wake_others(&self, moment: Moment) {
        let mut state = self.state.borrow_mut();
        let others: Vec<_> = state.wakers.extract_if(.., |(of, _)| *of <= moment).collect();
        drop(state);
        others.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Makes tickets for one port, and reuses their memory when their owners have dropped them.
#[derive(Debug, Default)]
pub struct Tickets {
    /// Requests that were answered; the ticket of the first one is the likeliest to have been dropped.
    answered: VecDeque<Progress>,
}

/// Answered requests that are kept.
const ANSWERED_MAX: usize = 4096;

impl Tickets {
    /// As [`Ticket::new`].
    pub fn ticket(&mut self) -> (Progress, Ticket) {
        match self.answered.pop_front() {
            Some(Progress { state }) if Rc::strong_count(&state) == 1 => {
                {
                    let mut state = state.borrow_mut();
                    (state.reached, state.answer, state.offset) = (None, None, None);
                }
                (Progress { state: Rc::clone(&state) }, Ticket { state })
            }
            _ => Ticket::new(),
        }
    }

    /// As [`Progress::complete`].
    pub fn complete(&mut self, progress: Progress, answer: Answer) {
        progress.answered(answer);
        if self.answered.len() < ANSWERED_MAX {
            self.answered.push_back(progress);
        }
    }
}

/// The bytes of one content.
pub fn bytes_of(payload: &Payload) -> Arc<[u8]> {
    match payload {
        Payload::Bytes(bytes) => Arc::clone(bytes),
        other => {
            let mut bytes = vec![0; BLOCK_BYTES];
            other.expand(&mut bytes);
            bytes.into()
        }
    }
}

/// A content of these bytes; all zeros need no memory.
pub fn payload_of(bytes: &BlockBytes) -> Payload {
    if bytes.iter().all(|&byte| byte == 0) { Payload::Zero } else { Payload::Bytes(Arc::from(&bytes[..])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Executor, Instant};

    /// One task may wait for several stages of one request at a time, and is woken for each.
    #[test]
    fn a_task_waits_for_two_stages_at_once() {
        let mut executor = Executor::new();
        let seen = Rc::new(RefCell::new(None));
        let (progress, ticket) = Ticket::new();
        let notes = Rc::clone(&seen);
        executor.spawn(async move {
            let mut late = std::pin::pin!(ticket.reached(Moment::Completed));
            let mut early = std::pin::pin!(ticket.reached(Moment::Dispatched));
            let first = poll_fn(|context| {
                // Both are asked for at each turn, the later stage first.
                match (late.as_mut().poll(context), early.as_mut().poll(context)) {
                    (Poll::Ready(()), _) => Poll::Ready("completed"),
                    (_, Poll::Ready(())) => Poll::Ready("dispatched"),
                    (Poll::Pending, Poll::Pending) => Poll::Pending,
                }
            });
            let first = first.await;
            *notes.borrow_mut() = Some(first);
        });
        executor.run_ready(Instant::from_nanos(0));
        progress.dispatched();
        executor.run_ready(Instant::from_nanos(1));
        assert_eq!(*seen.borrow(), Some("dispatched"));
    }

    #[test]
    fn moments_wake_those_who_wait_for_them() {
        let mut executor = Executor::new();
        let notes = Rc::new(RefCell::new(Vec::new()));
        let (progress, ticket) = Ticket::new();
        let seen = Rc::clone(&notes);
        executor.spawn(async move {
            ticket.dispatched().await;
            seen.borrow_mut().push("dispatched".to_string());
            ticket.transferred().await;
            seen.borrow_mut().push("transferred".to_string());
            let answer = ticket.completed().await;
            seen.borrow_mut().push(format!("{answer:?}"));
        });
        executor.run_ready(Instant::from_nanos(0));
        assert!(notes.borrow().is_empty());
        progress.dispatched();
        executor.run_ready(Instant::from_nanos(1));
        assert_eq!(*notes.borrow(), ["dispatched"]);
        progress.transferred();
        executor.run_ready(Instant::from_nanos(1));
        assert_eq!(*notes.borrow(), ["dispatched", "transferred"]);
        progress.complete(Err(DeviceError::ReadOnly.into()));
        executor.run_ready(Instant::from_nanos(2));
        assert_eq!(notes.borrow()[2], "Err(Device(ReadOnly))");
        assert!(executor.is_empty());
    }

    #[test]
    fn who_waits_for_a_later_moment_sleeps_on() {
        let mut executor = Executor::new();
        let (progress, ticket) = Ticket::new();
        let ticket = Rc::new(ticket);
        for moment in [Moment::Completed, Moment::Transferred, Moment::Completed] {
            let ticket = Rc::clone(&ticket);
            executor.spawn(async move { ticket.reached(moment).await });
        }
        let mut polls = || executor.run_ready(Instant::ZERO);
        assert_eq!(polls(), 3);
        progress.dispatched();
        assert_eq!(polls(), 0);
        progress.transferred();
        assert_eq!(polls(), 1);
        progress.complete(Ok(Box::default()));
        assert_eq!(polls(), 2);
        assert!(executor.is_empty());
    }

    /// Each of several tasks that wait for one stage is woken, whichever call reports it, and a second poll by the same task adds no
    /// waiter.
    #[test]
    fn everybody_who_waits_for_one_moment_is_told() {
        let mut executor = Executor::new();
        let (progress, ticket) = Ticket::new();
        let (ticket, told) = (Rc::new(ticket), Rc::new(RefCell::new(Vec::new())));
        for (name, moment) in [
            ("first", Moment::Transferred),
            ("second", Moment::Transferred),
            ("late", Moment::Completed),
            ("third", Moment::Transferred),
        ] {
            let (ticket, told) = (Rc::clone(&ticket), Rc::clone(&told));
            executor.spawn(async move {
                ticket.reached(moment).await;
                told.borrow_mut().push(name);
            });
        }
        executor.run_ready(Instant::ZERO);
        assert!(told.borrow().is_empty());
        assert_eq!(ticket.state.borrow().wakers.len(), 3);
        progress.transferred();
        executor.run_ready(Instant::ZERO);
        assert_eq!(told.take(), ["first", "second", "third"]);
        progress.complete(Ok(Box::default()));
        executor.run_ready(Instant::ZERO);
        assert_eq!(told.take(), ["late"]);
        assert!(executor.is_empty());
    }

    #[test]
    fn a_ticket_that_is_used_again_is_as_new() {
        let mut tickets = Tickets::default();
        let mut executor = Executor::new();
        let mut kept: Vec<Ticket> = Vec::new();
        for round in 0..20 {
            let (progress, ticket) = tickets.ticket();
            assert!(kept.iter().all(|kept| !Rc::ptr_eq(&kept.state, &ticket.state)), "somebody has it");
            assert!(!ticket.is_complete());
            let waits = executor.spawn(async move { ticket.completed().await.map(drop).unwrap() });
            executor.run_ready(Instant::ZERO);
            progress.dispatched();
            assert!(executor.is_alive(waits) && !executor.has_ready());
            tickets.complete(progress, Ok(Box::default()));
            executor.run_ready(Instant::ZERO);
            assert!(!executor.is_alive(waits));
            // Some answers are never read, and some tickets are kept.
            let (progress, unread) = tickets.ticket();
            tickets.complete(progress, Err(DeviceError::ReadOnly.into()));
            if round % 2 == 0 {
                kept.push(unread);
            }
        }
        assert!(tickets.answered.len() < 20, "none was used again");
    }

    /// A ticket tells where its own append went, also one that was used before.
    #[test]
    fn an_append_tells_where_it_went() {
        let mut tickets = Tickets::default();
        for block in [7, 0] {
            let (progress, ticket) = tickets.ticket();
            progress.at_offset(block);
            tickets.complete(progress, Ok(Box::default()));
            assert_eq!(block_on(ticket.appended()), Ok(block));
        }
        let (progress, ticket) = tickets.ticket();
        assert_eq!(ticket.state.borrow().offset, None);
        tickets.complete(progress, Err(DeviceError::ReadOnly.into()));
        assert_eq!(block_on(ticket.appended()), Err(DeviceError::ReadOnly.into()));
    }

    #[test]
    fn a_request_may_complete_without_an_audience() {
        let (progress, ticket) = Ticket::new();
        drop(ticket);
        progress.transferred();
        progress.complete(Ok(Box::default()));
    }

    #[test]
    fn contents_are_the_same_bytes_in_each_form() {
        let mut bytes = [0; BLOCK_BYTES];
        assert_eq!(payload_of(&bytes), Payload::Zero);
        bytes[4095] = 1;
        assert_eq!(&bytes_of(&payload_of(&bytes))[..], &bytes[..]);
        assert_eq!(&bytes_of(&Payload::Zero)[..], &[0; BLOCK_BYTES][..]);
    }
}
