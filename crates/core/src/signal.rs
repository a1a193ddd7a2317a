//! Waiting for something that tasks of one executor tell each other.
//!
//! Invariant: who waits looks again at what he waits for; a notification says only that something changed.

use crate::executor::{Sender, oneshot};
use std::cell::RefCell;
use std::fmt;

/// Wakes all who wait.
#[derive(Default)]
pub struct Signal(RefCell<Vec<Sender<()>>>);

impl Signal {
    /// Until the next notification.
    pub async fn wait(&self) {
        let (sender, receiver) = oneshot();
        self.0.borrow_mut().push(sender);
        // The signal outlives those who wait for it, so the sender is not dropped unused.
        let _ = receiver.await;
    }

    /// Wakes all who wait now, in the order in which they came.
    pub fn notify(&self) {
        for sender in self.0.take() {
            // Who was dropped while he waited does not mind.
            let _ = sender.send(());
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signal({} wait)", self.0.borrow().len())
    }
}
