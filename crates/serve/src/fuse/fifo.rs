//! The FIFO of a mount: commands as test rigs write them for LazyFS.
//!
//! Place in the data flow: a thread reads lines and asks the world; errors in a line, and what the world has done, are reported on the
//! mount's own output, as LazyFS writes it to its log. When the cache was cleared, this is written to a second FIFO, if there is one.

use super::lazyfs::{COMMANDS, Command};
use super::message::Post;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest line in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// How long the world may think.
const ANSWER: Duration = Duration::from_secs(60);

/// How a mount behaves to test rigs for LazyFS.
#[derive(Clone, Debug)]
pub struct LazyFs {
    /// FIFO for commands; made if it is missing.
    pub fifo: PathBuf,
    /// FIFO for the message that the cache was cleared; made if it is missing. A write waits for a reader.
    pub completed: Option<PathBuf>,
    /// Prefix of the rig's file paths, as an alternative to the directory of the mount.
    pub root: Option<PathBuf>,
}

/// A thread that reads the FIFO.
#[derive(Debug)]
pub(super) struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn make(path: &Path) -> io::Result<()> {
    match rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o622), 0) {
        Err(rustix::io::Errno::EXIST) => {
            let stat = rustix::fs::stat(path)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => Ok(()),
                _ => Err(io::Error::other("it is no FIFO")),
            }
        }
        made => Ok(made?),
    }
}

impl Reader {
    /// Begins to read. `say` reports what commands have done.
    ///
    /// # Errors
    /// A FIFO cannot be made or opened.
    pub(super) fn begin(
        config: &LazyFs,
        post: Arc<dyn Post>,
        say: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<Self, String> {
        let named = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        make(&config.fifo).map_err(named(&config.fifo))?;
        // For both ways, so that it does not end when a writer goes.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fifo = rustix::fs::open(&config.fifo, flags, Mode::empty())
            .map_err(|errno| named(&config.fifo)(errno.into()))?;
        if let Some(completed) = &config.completed {
            make(completed).map_err(named(completed))?;
        }
        let (stop, completed) = (Arc::new(AtomicBool::new(false)), config.completed.clone());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut fifo = File::from(fifo);
            let (mut line, mut byte) = (Vec::new(), [0; 512]);
            let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            while !stopped.load(Ordering::Relaxed) {
                let mut sources = [PollFd::new(&fifo, PollFlags::IN)];
                if !poll(&mut sources, Some(&look)).is_ok_and(|ready| ready > 0) {
                    continue;
                }
                let Ok(read) = fifo.read(&mut byte) else { continue };
                for &byte in &byte[..read] {
                    if byte != b'\n' {
                        // A line that is too long is wrong anyway.
                        line.truncate(LINE_BYTES_MAX);
                        line.push(byte);
                        continue;
                    }
                    let text = String::from_utf8_lossy(&line).into_owned();
                    line.clear();
                    carry_out(&text, &*post, completed.as_deref(), &*say);
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn carry_out(line: &str, post: &dyn Post, completed: Option<&Path>, say: &dyn Fn(String)) {
    let command = match Command::parse(line) {
        Ok(Command::Help) => return say(COMMANDS.join("\n")),
        Ok(command) => command,
        Err(error) => return say(error.to_string()),
    };
    let clears = matches!(command, Command::ClearCache);
    let (sender, answer) = sync_channel(1);
    post.lazy(command, sender);
    match answer.recv_timeout(ANSWER) {
        Ok(done) => say(done),
        Err(_) => return say(format!("{line}: the mount does not answer")),
    }
    if let (true, Some(completed)) = (clears, completed) {
        let told = File::options().write(true).open(completed);
        if let Err(error) = told.and_then(|mut file| file.write_all(b"finished::clear-cache\n")) {
            say(format!("{}: {error}", completed.display()));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that waits for a reader of the second FIFO is not joined.
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let _ = thread.join();
        }
    }
}
