//! Order in the place of waiting, as far as file systems share it (barriers §6).
//!
//! Place in the data flow: a file system that is mounted in [`CommitMode::DualMode`] writes everything in order in one stream,
//! waits for dispatch only, and makes data durable later, when a task waits for that.
//!
//! Deliberately absent: what has to be in an epoch before what. Each file system knows its own.

use crate::port::{BlockPort, PortError, Remap, Share, Ticket, Write};
use crate::vfs::{Errno, Event};
use flashweir_core::DeviceError;
use flashweir_core::command::StreamId;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// How what a file system commits (transactions, nodes of a synced file, checkpoints) comes to the disk in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitMode {
    /// By waiting: for each part to be on the disk before the next one, and for flushes between them.
    #[default]
    Legacy,
    /// By barriers, as BarrierFS: parts are dispatched one after the other, and a flush comes when a task waits for durability
    /// (barriers §6.8). The disk has to keep the order of streams.
    DualMode,
}

impl CommitMode {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::DualMode => "dual",
        }
    }
}

/// The stream of everything that a file system orders.
pub(crate) const STREAM: StreamId = StreamId(0);

/// Whether a disk keeps order: it takes a barrier of no length.
pub(crate) async fn is_kept(port: &dyn BlockPort) -> bool {
    port.barrier(STREAM).completed().await.is_ok()
}

/// Error number that a caller gets for a failed request.
pub(crate) fn errno_of(error: &PortError) -> Errno {
    match error {
        PortError::Device(DeviceError::ReadOnly) => Errno::EROFS,
        _ => Errno::EIO,
    }
}

/// Waits until all have been answered. Errors: what the first one that failed says.
pub(crate) async fn answers(tickets: impl IntoIterator<Item = Ticket>) -> Result<(), Errno> {
    let mut result = Ok(());
    for ticket in tickets {
        result = result.and(answer(ticket).await);
    }
    result
}

/// Waits until a request has been answered.
pub(crate) async fn answer(ticket: Ticket) -> Result<(), Errno> {
    ticket.completed().await.map(drop).map_err(|error| errno_of(&error))
}

/// Does by reading and writing what a SHARE was to do, which the disk has refused for this reason: it had no room for its copies, say. The
/// caller knows that nothing was ordered behind it.
pub(crate) async fn copied(
    port: &dyn BlockPort,
    share: &Share,
    reason: Errno,
    submit: impl Fn(Write) -> Ticket,
) -> Result<(), Errno> {
    for &Remap { dst, src, count } in &share.remaps {
        // The reason of a disk that works no more is the first one.
        let contents = port.read(src, count).completed().await.map_err(|_| reason)?;
        answer(submit(Write { tags: share.tags, ..Write::new(dst, contents.into_vec()) })).await?;
    }
    Ok(())
}

/// Requests of one call that are dispatched without being waited for; several may ask what became of them.
#[derive(Debug)]
pub(crate) struct Dispatched {
    phase: RefCell<Phase>,
    changes: Event,
}

#[derive(Debug)]
enum Phase {
    /// Not all of them were submitted.
    Begun,
    Dispatched(Vec<Ticket>),
    /// A caller waits for the answers.
    Asked,
    Answered(Result<(), Errno>),
}

impl Dispatched {
    fn in_phase(phase: Phase) -> Rc<Self> {
        Rc::new(Self { phase: RefCell::new(phase), changes: Event::default() })
    }

    /// These, which were dispatched.
    pub(crate) fn new(tickets: Vec<Ticket>) -> Rc<Self> {
        Self::in_phase(Phase::Dispatched(tickets))
    }

    /// The requests that [`Self::dispatch`] will get.
    pub(crate) fn begin() -> Rc<Self> {
        Self::in_phase(Phase::Begun)
    }

    /// Waits until all are dispatched.
    pub(crate) async fn dispatch(&self, tickets: Vec<Ticket>) {
        for ticket in &tickets {
            ticket.dispatched().await;
        }
        self.phase.replace(Phase::Dispatched(tickets));
        self.changes.notify();
    }

    /// Waits until the device has answered.
    pub(crate) async fn completed(&self) -> Result<(), Errno> {
        self.changes.until(|| !matches!(*self.phase.borrow(), Phase::Begun)).await;
        // The first caller collects the answers for all.
        let phase = self.phase.replace(Phase::Asked);
        let Phase::Dispatched(tickets) = phase else {
            self.phase.replace(phase);
            self.changes.until(|| self.answer().is_some()).await;
            return self.answer().expect("there is one");
        };
        let result = answers(tickets).await;
        self.phase.replace(Phase::Answered(result));
        self.changes.notify();
        result
    }

    fn answer(&self) -> Option<Result<(), Errno>> {
        match *self.phase.borrow() {
            Phase::Answered(result) => Some(result),
            _ => None,
        }
    }

    /// Whether the device has answered all, so that no caller has to wait in [`Self::completed`].
    pub(crate) fn has_ended(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Begun | Phase::Asked => false,
            Phase::Dispatched(tickets) => tickets.iter().all(Ticket::is_complete),
            Phase::Answered(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Executor, Instant};

    #[test]
    fn a_call_has_ended_when_all_its_requests_are_answered_whoever_waits() {
        let mut executor = Executor::new();
        let ((first, one), (second, two)) = (Ticket::new(), Ticket::new());
        let call = Dispatched::begin();
        assert!(!call.has_ended(), "nothing was submitted");
        let begun = Rc::clone(&call);
        executor.spawn(async move { begun.dispatch(vec![one, two]).await });
        executor.run_ready(Instant::ZERO);
        assert!(!call.has_ended(), "its requests are not dispatched");
        first.dispatched();
        second.dispatched();
        executor.run_ready(Instant::ZERO);
        assert!(!call.has_ended(), "they are not answered");
        let answers = Rc::new(RefCell::new(0));
        for _ in 0..2 {
            let (asked, answers) = (Rc::clone(&call), Rc::clone(&answers));
            executor.spawn(async move {
                asked.completed().await.unwrap();
                *answers.borrow_mut() += 1;
            });
        }
        executor.run_ready(Instant::ZERO);
        assert!(!call.has_ended(), "two tasks wait for answers that have not come");
        first.complete(Ok(Box::default()));
        executor.run_ready(Instant::ZERO);
        assert!(!call.has_ended() && *answers.borrow() == 0, "one answer has not come");
        second.complete(Ok(Box::default()));
        executor.run_ready(Instant::ZERO);
        assert!(call.has_ended());
        assert_eq!(*answers.borrow(), 2);
    }
}
