//! Tells the kernel which of its cached data of an inode are out of date, before the request that changed them is answered.
//!
//! Place in the data flow: [`super::front`] hands an answer to a [`Teller`] where the kernel's cached data would otherwise stay wrong:
//!
//! * a direct write, of a file of which the kernel keeps pages. Linux drops them before the write, and after it only if the
//!   write was synchronous: a buffered read in between brings the old bytes back permanently;
//! * set-user-ID and set-group-ID bits that a write or fallocate ended: the kernel checks rights by the mode that it keeps;
//! * the block count of a file that grew as the kernel wrote its pages out, which the kernel does not consider.
//!
//! Invariants:
//! 1. No notice is given by the world's thread: before the kernel takes one it may wait for pages, and so for the world.
//! 2. Attributes have a thread of their own, which never waits for pages. The answer to a write of kept pages is not held up by a notice:
//!    the thread that drops pages waits for that answer.

use super::kernel::{NodeId, Notifier, Stale};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

type Then = Box<dyn FnOnce() + Send>;

struct Notice {
    node: NodeId,
    stale: Stale,
    then: Then,
}

/// See the module. Its threads end with the last clone.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    attributes: Sender<Notice>,
    pages: Sender<Notice>,
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Notice({:?}, {:?})", self.node, self.stale)
    }
}

impl Teller {
    /// Begins to tell a kernel.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn begin(notifier: &Notifier) -> io::Result<Self> {
        let begin = |name: &str| {
            let (sender, notices) = channel();
            let notifier = notifier.clone();
            Builder::new().name(name.into()).spawn(move || tell_all(&notifier, &notices)).map(|_| sender)
        };
        Ok(Self { attributes: begin("stale-attributes")?, pages: begin("stale-pages")? })
    }

    /// Tells the kernel, then calls `then`.
    pub(super) fn tell(&self, node: NodeId, stale: Stale, then: impl FnOnce() + Send + 'static) {
        let queue = match stale {
            Stale::Attributes => &self.attributes,
            Stale::Range { .. } | Stale::Pages => &self.pages,
        };
        // After the end of the mount no kernel listens, and no request waits for the remaining notices.
        let _ = queue.send(Notice { node, stale, then: Box::new(then) });
    }
}

fn tell_all(notifier: &Notifier, notices: &Receiver<Notice>) {
    for Notice { node, stale, then } in notices {
        // What the kernel does not know any more it does not keep.
        let _ = notifier.forget_inode(node, stale);
        then();
    }
}
