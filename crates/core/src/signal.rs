//! A notification between tasks of one executor.
//!
//! Invariant: a waiter checks its condition again after each wake-up; a notification says only that something changed.

use crate::executor::{Sender, oneshot};
use std::cell::RefCell;
use std::fmt;

/// A list of waiting tasks; a notification wakes all of them.
#[derive(Default)]
pub struct Signal(RefCell<Vec<Sender<()>>>);

impl Signal {
    /// Waits until the next notification.
    pub async fn wait(&self) {
        let (sender, receiver) = oneshot();
        self.0.borrow_mut().push(sender);
        // The signal outlives its waiters, so the sender is not dropped unused.
        let _ = receiver.await;
    }

    /// Wakes every task that waits now, in the order in which they began to wait.
    pub fn notify(&self) {
        for sender in self.0.take() {
            // A waiter may have been dropped meanwhile; then there is nothing to wake.
            let _ = sender.send(());
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signal({} wait)", self.0.borrow().len())
    }
}
