//! Messages of other threads to the world of a mount, and the queues that carry them.
//!
//! Place in the data flow: the kernel's front end, the control socket and test rigs send; [`super::world`] takes.
//!
//! Invariant: a queue is bounded, and a message that the world does not take any more is dropped, not waited for.

use super::bell::Bell;
use super::kernel::{Inlet, Notifier};
use super::lazyfs::Command;
use super::table::Table;
use crate::control::{Ask, Reply};
use flashweir_fs::vfs::Fs;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Maximum number of messages that wait for the world; further senders wait.
pub(super) const QUEUE_MAX: usize = 1024;

/// The job of a request.
pub(super) type Job<F> = Box<dyn FnOnce(Rc<Table<F>>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Order of a request among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing: it is done in its order.
    Own,
    /// It only looks: a thread waits for the answer, and nothing changes by it.
    Looks,
    /// It only tidies up, and no thread waits for it: it runs when no other request waits, but before the next request that may change
    /// something.
    Tidies,
}

/// Messages of other threads to the world.
pub(super) enum Message<F: Fs> {
    /// A request.
    Job(Turn, Job<F>),
    /// The kernel has forgotten inodes: number, and how often it had been told of it. It tidies up.
    Forget(Vec<(u64, u64)>),
    /// The kernel listens here, and asks there.
    Kernel(Notifier, Own<F>),
    /// A request on the control socket.
    Ask(Ask, SyncSender<Reply>),
    /// A test rig for LazyFS asks.
    Lazy(Command, SyncSender<String>),
    /// The kernel has dropped the pages from before a power cut.
    Invalidated,
    /// The mount has ended.
    End,
}

/// Requests that the world reads by itself.
pub(super) struct Own<F: Fs> {
    pub(super) inlet: Inlet,
    /// Messages that requests become at once.
    queue: Receiver<Message<F>>,
}

impl<F: Fs> Own<F> {
    /// Returns the requests of an inlet; `inlet` makes it, with a handler that sends the messages of requests.
    pub(super) fn new(inlet: impl FnOnce(Queue<F>) -> Inlet) -> Self {
        let (messages, queue) = sync_channel(QUEUE_MAX);
        Self { inlet: inlet(Queue { messages, bell: None }), queue }
    }

    /// The message of the next request, if there is one; an error at the end of the mount.
    pub(super) fn next(&mut self) -> io::Result<Option<Message<F>>> {
        while self.inlet.take()? {
            if let Ok(message) = self.queue.try_recv() {
                return Ok(Some(message));
            }
            // It was answered at once.
        }
        Ok(None)
    }
}

/// Sending end of the world's messages.
pub(super) struct Queue<F: Fs> {
    pub(super) messages: SyncSender<Message<F>>,
    /// Wakes the world; absent where it sends to itself.
    pub(super) bell: Option<Arc<Bell>>,
}

impl<F: Fs> Clone for Queue<F> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), bell: self.bell.clone() }
    }
}

impl<F: Fs> Queue<F> {
    /// Sends, unless the world has ended: then the message is dropped.
    pub(super) fn send(&self, message: Message<F>) {
        if self.messages.send(message).is_ok()
            && let Some(bell) = &self.bell
        {
            bell.ring();
        }
    }
}

/// Sends messages to the world, for code that does not know its format.
pub(super) trait Post: Send + Sync {
    fn ask(&self, ask: Ask, reply: SyncSender<Reply>);
    fn lazy(&self, command: Command, reply: SyncSender<String>);
    fn end(&self);
}

impl<F: Fs> Post for Queue<F> {
    fn ask(&self, ask: Ask, reply: SyncSender<Reply>) {
        self.send(Message::Ask(ask, reply));
    }
    fn lazy(&self, command: Command, reply: SyncSender<String>) {
        self.send(Message::Lazy(command, reply));
    }
    fn end(&self) {
        self.send(Message::End);
    }
}
