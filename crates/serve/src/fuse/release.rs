//! Unmounts a directory.

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::path::Path;
use std::time::Duration;

/// Pause before the next attempt.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Number of attempts while the directory is busy.
const BUSY_LOOKS: u32 = 10;

/// Unmounts; false if a program has files open, and then the mount disappears when these are closed. A process that has just ended may
/// still have its files open for a short time.
pub(super) fn release(directory: &Path) -> bool {
    let mut tried = unmount(directory, UnmountFlags::empty());
    for _ in 0..BUSY_LOOKS {
        if tried != Err(Errno::BUSY) {
            break;
        }
        std::thread::sleep(BUSY_PAUSE);
        tried = unmount(directory, UnmountFlags::empty());
    }
    match tried {
        Err(Errno::BUSY) => {
            let _ = unmount(directory, UnmountFlags::DETACH);
            false
        }
        Err(Errno::PERM) => {
            let by_helper =
                std::process::Command::new("fusermount3").arg("-uz").arg("--").arg(directory).status();
            by_helper.is_ok_and(|status| status.success())
        }
        // Another process was faster.
        _ => true,
    }
}
