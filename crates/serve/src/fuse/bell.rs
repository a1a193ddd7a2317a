//! Wakes the world, which sleeps until there is a message or a request of the kernel.
//!
//! Invariant: a sender rings after it has sent, and the world looks for messages between [`Bell::prepare`] and [`Bell::sleep`]; so one of
//! them sees the other. A ring while the world stays awake after all causes one unnecessary wake-up.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Bell {
    counter: OwnedFd,
    is_asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { counter, is_asleep: AtomicBool::new(false) })
    }

    /// Wakes the world for a message, if it sleeps.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::SeqCst) {
            // A counter that is full wakes, too.
            let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
        }
    }

    /// Called before the world sleeps.
    pub(super) fn prepare(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called when the world does not sleep any more.
    pub(super) fn end(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.counter, &mut [0_u8; 8]);
    }

    /// Sleeps until the bell rings or `device` is ready, no longer than `most`. Returns whether `device` is ready.
    pub(super) fn sleep(&self, device: Option<BorrowedFd<'_>>, most: Duration) -> bool {
        let most = Timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
        let of_bell = || PollFd::new(&self.counter, PollFlags::IN);
        let of_device = device.map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN));
        let count = 1 + usize::from(of_device.is_some());
        let mut waits = [of_bell(), of_device.unwrap_or_else(of_bell)];
        let woken = poll(&mut waits[..count], Some(&most));
        self.is_asleep.store(false, Ordering::SeqCst);
        if woken.is_err() || !waits[0].revents().is_empty() {
            self.clear();
        }
        count > 1 && woken.is_ok() && !waits[1].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn who_rings_wakes_and_leaves_nothing_behind() {
        let bell = Arc::new(Bell::new().unwrap());
        bell.ring();
        bell.prepare();
        assert!(!bell.sleep(None, Duration::from_millis(1)), "nobody has rung since");
        for _ in 0..100 {
            bell.prepare();
            let other = Arc::clone(&bell);
            let thread = std::thread::spawn(move || other.ring());
            assert!(!bell.sleep(None, LONG));
            thread.join().unwrap();
        }
        // One that rang in vain does not keep it awake.
        bell.prepare();
        bell.ring();
        bell.end();
        bell.prepare();
        bell.sleep(None, LONG);
        assert!(rustix::io::read(&bell.counter, &mut [0_u8; 8]).is_err(), "the counter is zero again");
    }

    #[test]
    fn a_device_that_is_ready_wakes() {
        let bell = Bell::new().unwrap();
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        kernel.send(b"request").unwrap();
        bell.prepare();
        assert!(bell.sleep(Some(std::os::fd::AsFd::as_fd(&ours)), LONG));
        bell.prepare();
        bell.ring();
        assert!(bell.sleep(Some(std::os::fd::AsFd::as_fd(&ours)), LONG));
    }
}
