//! A mount from its beginning to its end: the world's thread, the kernel's session, and the control socket.

use super::config::MountConfig;
use super::control::Listener;
use super::fifo::Reader;
use super::kernel::{Mounting, Session};
use super::medium::Medium;
use super::message::Post;
use super::ready::Ready;
use super::release::release;
use super::world;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which the end is checked for.
const LOOK: Duration = Duration::from_millis(50);

/// Why something cannot be mounted, or did not end in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountError {
    /// The medium or the directory of the mount is wrong.
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

/// A mounted directory.
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
/// There is no file system of ours, it is in use, or the kernel refuses.
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
    /// Waits until it is unmounted, or unmounts it when `stop` is set; then everything is written and the medium saved. `busy` is called if
    /// programs still have files open: the mount ends with the last of them.
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
