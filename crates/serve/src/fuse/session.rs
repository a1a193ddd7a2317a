//! A mount from its beginning to its end: the world's thread, the kernel's session, and the control socket.

use super::Choose;
use super::control::Listener;
use super::fifo::{LazyFs, Reader};
use super::front::{Front, wanted};
use super::kernel::{Mounting, Session, attach};
use super::medium::{FormatKind, Medium};
use super::recorder::Recorder;
use super::stale::Teller;
use super::world::{self, Message, Own, Post, Queue};
use crate::clock::Speed;
use flashweir_fs::vfs::{Fs, MountOptions};
use flashweir_sim::stack::FlushMode;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that take requests from the kernel.
const THREADS: usize = 4;

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// How often it is looked whether a busy directory is free after all.
const BUSY_LOOKS: u32 = 10;

/// How something is mounted.
pub struct MountConfig {
    /// Where.
    pub directory: PathBuf,
    /// What becomes of syncs.
    pub flush: FlushMode,
    /// How each format is mounted.
    pub choose: Choose,
    /// A file system is made first, where there is none.
    pub make: Option<FormatKind>,
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

/// Why something cannot be mounted, or did not end in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountError {
    /// What is to be mounted, or where, is wrong.
    Wrong(String),
    /// The mount did not go on, or end, as it should.
    Failed(String),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}
impl std::error::Error for MountError {}

/// Begins the kernel's session.
type Start = Box<dyn FnOnce(&Path, &Mounting) -> io::Result<Session> + Send>;

/// A world that can be mounted.
pub(super) struct Ready {
    post: Arc<dyn Post>,
    start: Start,
    format: &'static str,
    device: String,
    bytes: u64,
}

impl Ready {
    pub(super) fn new<F: Fs>(
        queue: Queue<F>,
        format: &'static str,
        device: String,
        bytes: u64,
        writes_back: bool,
    ) -> Self {
        let post: Arc<dyn Post> = Arc::new(queue.clone());
        let start: Start = Box::new(move |directory, how| {
            let attached = attach(directory, how, wanted(writes_back))?;
            let notifier = attached.notifier();
            let teller = Teller::begin(&notifier).inspect_err(|_| {
                release(directory);
            })?;
            let front = |queue: Queue<F>, later| Front {
                queue,
                later,
                notifier: notifier.clone(),
                teller: teller.clone(),
            };
            let own = Own::new(|own| attached.inlet(Arc::new(front(own, queue.clone()))));
            // The world is there until it is told of the end.
            queue.send(Message::Kernel(notifier.clone(), own));
            attached.begin(front(queue.clone(), queue), THREADS).inspect_err(|_| {
                release(directory);
            })
        });
        Self { post, start, format, device, bytes }
    }
}

/// Something that is mounted.
pub struct Mounted {
    directory: PathBuf,
    session: Session,
    post: Arc<dyn Post>,
    world: JoinHandle<Result<(), String>>,
    control: Option<Listener>,
    fifo: Option<Reader>,
    /// Name of the format.
    pub format: &'static str,
    /// Name of the device.
    pub device: String,
    /// Size of the device in bytes.
    pub bytes: u64,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mounted({} at {})", self.format, self.directory.display())
    }
}

/// Mounts `medium`: when this returns, programs can use it.
///
/// # Errors
/// There is no file system of ours, it is used by somebody else, or the kernel refuses.
pub fn mount(config: MountConfig, medium: Medium) -> Result<Mounted, MountError> {
    let wrong = |path: &Path, why: String| MountError::Wrong(format!("{}: {why}", path.display()));
    let directory =
        config.directory.canonicalize().map_err(|error| wrong(&config.directory, error.to_string()))?;
    if !directory.is_dir() {
        return Err(wrong(&directory, "expected a directory to mount on".into()));
    }
    let listener = match &config.control {
        Some(path) => Some(Listener::bind(path).map_err(|error| MountError::Wrong(error.to_string()))?),
        None => None,
    };
    let path = medium.path().to_owned();
    let is_read_only = config.mount.read_only;
    let lazyfs = config.lazyfs.clone();
    let (say, allow_other) = (Arc::clone(&config.say), config.allow_other);
    let (sender, ready) = channel();
    let world = std::thread::Builder::new()
        .name("world".into())
        .spawn(move || world::run(config, medium, &sender))
        .map_err(|error| MountError::Failed(error.to_string()))?;
    let ready = ready.recv().unwrap_or_else(|_| Err("the world ended before it began".into()));
    let Ready { post, start, format, device, bytes } = ready.map_err(MountError::Wrong)?;
    let source = path.display().to_string();
    let how = Mounting { source, kind: "weir", read_only: is_read_only, allow_other };
    match start(&directory, &how) {
        Ok(session) => {
            let control = listener.map(|listener| listener.serve(Arc::clone(&post)));
            let fifo = lazyfs.map(|lazyfs| Reader::begin(&lazyfs, Arc::clone(&post), say)).transpose();
            let (fifo, error) = match fifo {
                Ok(fifo) => (fifo, None),
                Err(error) => (None, Some(error)),
            };
            let mounted = Mounted { directory, session, post, world, control, fifo, format, device, bytes };
            match error {
                None => Ok(mounted),
                Some(error) => {
                    mounted.wait(&AtomicBool::new(true), &mut || ())?;
                    Err(MountError::Wrong(error))
                }
            }
        }
        Err(error) => {
            post.end();
            let _ = world.join();
            Err(MountError::Failed(format!("{}: cannot be mounted: {error}", directory.display())))
        }
    }
}

impl Mounted {
    /// Waits until somebody unmounts it, or unmounts it when `stop` is set; then everything is written and the medium kept.
    /// `busy` is told if programs still have files open: the mount ends with the last of them.
    ///
    /// # Errors
    /// Not everything could be written, or the medium not be kept.
    pub fn wait(self, stop: &AtomicBool, busy: &mut dyn FnMut()) -> Result<(), MountError> {
        let Self { directory, session, post, world, control, fifo, .. } = self;
        let (ended, has_ended) = channel();
        std::thread::spawn(move || {
            session.join();
            let _ = ended.send(());
        });
        let mut is_asked = false;
        loop {
            if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_asked, true) && !release(&directory)
            {
                busy();
            }
            if has_ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        post.end();
        let kept = world.join().unwrap_or_else(|_| Err("the world ended by a bug of ours".into()));
        drop((control, fifo));
        kept.map_err(MountError::Failed)
    }
}

/// Unmounts; false if somebody has something open, and it disappears when that is closed. A process that has just ended may
/// still have its files open for a moment.
fn release(directory: &Path) -> bool {
    let mut tried = unmount(directory, UnmountFlags::empty());
    for _ in 0..BUSY_LOOKS {
        if tried != Err(Errno::BUSY) {
            break;
        }
        std::thread::sleep(LOOK);
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
        // Somebody else was faster.
        _ => true,
    }
}
