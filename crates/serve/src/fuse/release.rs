//! Unmounts a directory.

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
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
        // Only root may do it itself.
        Err(Errno::PERM) => {
            let helper = |how| {
                let mut helper = Command::new("fusermount3");
                helper.args([how, "--"]).arg(directory);
                helper
            };
            for _ in 0..BUSY_LOOKS {
                let tried = helper("-u").stderr(Stdio::null()).status();
                if tried.is_ok_and(|status| status.success()) || !is_mount(directory) {
                    return true;
                }
                std::thread::sleep(BUSY_PAUSE);
            }
            // It says itself why it cannot.
            let _ = helper("-uz").status();
            false
        }
        // Another process was faster.
        _ => true,
    }
}

/// Whether something is mounted on a directory: then it has another device number than the directory around it.
fn is_mount(directory: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    device(directory) != device(&directory.join(".."))
}
