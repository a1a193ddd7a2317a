//! The control socket of a mount: the questions of [`crate::control`], asked of the world's thread.
//!
//! Invariant: a client that sends nothing, or too much, keeps no other client waiting for longer than [`PATIENCE`].

use super::message::Post;
use crate::ServeError;
use crate::control::{Ask, LINE_BYTES_MAX, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a client may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the world may take for an answer, but for that of a cut: the power may be off for any time.
const ANSWER: Duration = Duration::from_secs(55);

/// A bound socket; it is removed at the end.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    listener: Option<UnixListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Binds `path`; a socket without a listener is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, ServeError> {
        let listener = crate::listen::bind_unix(path)?;
        Ok(Self { path: path.to_owned(), listener: Some(listener), stop: Arc::default(), thread: None })
    }

    /// Begins to listen.
    pub(super) fn serve(mut self, post: Arc<dyn Post>) -> Self {
        let stop = Arc::clone(&self.stop);
        if let Some(listener) = self.listener.take() {
            self.thread = Some(std::thread::spawn(move || {
                let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                while !stop.load(Ordering::Relaxed) {
                    let mut sources = [PollFd::new(&listener, PollFlags::IN)];
                    if !poll(&mut sources, Some(&look)).is_ok_and(|ready| ready > 0) {
                        continue;
                    }
                    if let Ok((stream, _)) = listener.accept() {
                        let post = Arc::clone(&post);
                        // A client that does not take its answer gets none, nor does one without a thread.
                        let _ = Builder::new().spawn(move || drop(answer(&stream, &*post)));
                    }
                }
            }));
        }
        self
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(stream: &UnixStream, post: &dyn Post) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut input).take(LINE_BYTES_MAX as u64).read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        let reply = match serde_json::from_str(&line) {
            Ok(ask) => {
                let ((sender, reply), is_cut) = (sync_channel(1), matches!(ask, Ask::Cut(_)));
                post.ask(ask, sender);
                let reply = if is_cut { reply.recv().ok() } else { reply.recv_timeout(ANSWER).ok() };
                reply.unwrap_or_else(|| Reply::Error("the mount does not answer".into()))
            }
            Err(error) => Reply::Error(format!("not a question that a mount knows: {error}")),
        };
        let reply = serde_json::to_string(&reply).expect("an answer is JSON");
        writeln!(&mut &*stream, "{reply}")?;
    }
}
