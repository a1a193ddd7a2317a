//! A file system on a simulated device as a directory of this machine, by FUSE.
//!
//! ```text
//! programs ─ kernel ─► front (threads of `kernel`) ─ one bounded queue ─► world (one thread)
//!                                                                     table ─► vfs ─► F2FS, ext4 ─► block layer ─► device
//! ```
//!
//! Place in the data flow: the kernel keeps names, attributes and pages of its own and asks for what it does not have;
//! `front` makes a job of each request, with its reply inside; `world` runs the jobs as tasks beside those of the file
//! system and makes virtual time follow the wall clock. `table` has the kernel's view: inodes, names, open files. `medium` is the source
//! and destination of the device's contents; `control` serves `weir cut`, `fifo` serves test rigs for LazyFS, `lazyfs` parses their
//! commands, and `faults` applies these to requests; `recorder` records changes.
//!
//! Invariants:
//! 1. The whole state of the file system belongs to one thread; other threads hold only the queue.
//! 2. Each request is answered once: by its task, with EINTR if the thread that waits is killed first, or with EIO when the task is dropped
//!    because the power was cut.
//! 3. After a cut nothing that was open before answers anything but EIO, and the kernel keeps no page, name or attribute
//!    from before it.
//!
//! Deliberately absent: rights (the kernel checks them) and locks of files (they are the kernel's, too).

mod bell;
mod config;
mod control;
mod exchange;
mod faults;
mod fifo;
mod front;
mod keep;
mod kernel;
mod lazyfs;
mod medium;
mod message;
mod ready;
mod recorder;
mod release;
mod session;
mod stale;
mod table;
mod world;

pub use config::MountConfig;
pub use fifo::LazyFs;
pub use medium::{Medium, Memory};
pub use recorder::Recorder;
pub use session::{MountError, Mounted, mount};

use flashweir_device::DeviceConfig;
use flashweir_fs::{Kind, Mode};
use flashweir_host::HostFtlConfig;

/// How a volume of a kind is mounted on a device, below a host FTL if there is one; or why it cannot be, in words for the command line.
pub type Choose = Box<dyn Fn(Kind, &DeviceConfig, Option<&HostFtlConfig>) -> Result<Mode, String> + Send>;
