//! How something is mounted.

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

/// How something is mounted.
pub struct MountConfig {
    /// Where.
    pub directory: PathBuf,
    /// What becomes of syncs.
    pub flush: FlushMode,
    /// How each format is mounted.
    pub choose: Choose,
    /// A file system is made first, where there is none.
    pub make: Option<Kind>,
    /// Page cache and host costs; its civil time is set at the mount.
    pub mount: MountOptions,
    /// How fast virtual time passes.
    pub speed: Speed,
    /// How long the world does not sleep before a deadline, and after an answer, if there are two processors.
    pub spin: Duration,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The kernel hands on each write at once instead of keeping it.
    pub write_through: bool,
    /// Where changes are noted.
    pub recorder: Option<Recorder>,
    /// Where test rigs for LazyFS write, and who is told what came of it.
    pub lazyfs: Option<LazyFs>,
    /// See there.
    pub say: Arc<dyn Fn(String) + Send + Sync>,
    /// Other users than the one who mounts may use it; anybody but root needs `user_allow_other` in `/etc/fuse.conf` for that.
    pub allow_other: bool,
    /// Has the process give freed memory back to the system.
    pub give_back: Option<fn()>,
}

impl MountConfig {
    /// What the mount is called in answers.
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
