//! Configuration of a mount.

use super::Choose;
use super::fifo::LazyFs;
use super::recorder::Recorder;
use crate::clock::Speed;
use flashweir_fs::Kind;
use flashweir_fs::vfs::MountOptions;
use flashweir_sim::stack::FlushMode;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Configuration of a mount.
pub struct MountConfig {
    /// Directory of the mount.
    pub directory: PathBuf,
    /// Treatment of syncs.
    pub flush: FlushMode,
    /// How each format is mounted.
    pub choose: Choose,
    /// File system to make first, if there is none.
    pub make: Option<Kind>,
    /// Page cache and host costs; its civil time is set at the mount.
    pub mount: MountOptions,
    /// Speed of virtual time.
    pub speed: Speed,
    /// How long the world polls instead of sleeping, before a deadline and after an answer, if there are two processors.
    pub spin: Duration,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// Whether the kernel passes on each write at once instead of keeping it.
    pub write_through: bool,
    /// Recorder of changes.
    pub recorder: Option<Recorder>,
    /// FIFOs for test rigs for LazyFS.
    pub lazyfs: Option<LazyFs>,
    /// Function for messages to users.
    pub say: Arc<dyn Fn(String) + Send + Sync>,
    /// Whether users other than the one who mounts may use it; for that all users but root need `user_allow_other` in
    /// `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Function that returns freed memory of the process to the system.
    pub give_back: Option<fn()>,
}

impl MountConfig {
    /// Name of the mount in answers.
    pub(super) fn name(&self) -> String {
        self.directory.display().to_string()
    }
}

impl fmt::Debug for MountConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountConfig")
            .field("directory", &self.directory)
            .field("flush", &self.flush)
            .field("speed", &self.speed)
            .finish_non_exhaustive()
    }
}
