//! Answers and notices to the kernel: words to bytes, and which requests are still to be answered.

use super::NodeId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Interval at which interrupted threads that wait are checked.
const KILLED_LOOK: Duration = Duration::from_millis(100);

/// Interval at which the end is checked for otherwise.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// Bit of SIGKILL in a mask of signals.
const SIGKILL_BIT: u64 = 1 << 8;

// Codes of notices.
const FORGET_PAGES: i32 = 2;
const FORGET_NAME: i32 = 3;

/// A request that was read and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    /// Thread that waits; 0 if it is of another PID namespace, or the kernel's own.
    thread: u32,
    /// Whether the thread has got a signal. The kernel reports that once, whatever signals follow.
    is_interrupted: bool,
}

/// The device, and the requests that were read from it and not answered.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) device: File,
    open: Mutex<BTreeMap<u64, Asked>>,
    /// A request was interrupted, or the mount has ended.
    interrupted: Condvar,
    has_ended: AtomicBool,
    /// Held by the thread that waits for requests.
    waits: Mutex<()>,
    /// Whether another thread waits for requests: the reading threads do not, until it leaves.
    is_taken: Mutex<bool>,
    left: Condvar,
}

impl Channel {
    pub(super) fn new(device: File) -> Arc<Self> {
        Arc::new(Self {
            device,
            open: Mutex::default(),
            interrupted: Condvar::new(),
            has_ended: AtomicBool::new(false),
            waits: Mutex::default(),
            is_taken: Mutex::default(),
            left: Condvar::new(),
        })
    }

    /// Takes the place of the waiting thread; false if it is taken. A thread that waits already leaves with the next request.
    pub(super) fn take_place(&self) -> bool {
        !std::mem::replace(&mut *self.is_taken(), true)
    }

    /// Lets the reading threads wait again.
    pub(super) fn leave_place(&self) {
        *self.is_taken() = false;
        self.left.notify_one();
    }

    fn is_taken(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().expect("nobody panics with it")
    }

    /// Waits until there is a request, or the mount has ended.
    pub(super) fn wait(&self) -> io::Result<()> {
        let _waits = self.waits.lock().expect("nobody panics with it");
        drop(self.left.wait_while(self.is_taken(), |is_taken| *is_taken));
        match poll(&mut [PollFd::new(&self.device, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Asked>> {
        self.open.lock().expect("nobody panics with it")
    }

    /// Notes that the request of a thread was read.
    pub(super) fn admit(self: &Arc<Self>, unique: u64, thread: u32) -> Reply {
        self.open().insert(unique, Asked { thread, is_interrupted: false });
        Reply { channel: Arc::clone(self), unique: Some(unique), unheard: None }
    }

    /// The kernel says that the thread behind `of` has got a signal. Only a thread that is being killed is released
    /// ([`Self::release_killed`]): any other one would see EINTR from calls that no local file system interrupts.
    pub(super) fn interrupt(&self, unique: u64, of: u64) {
        let is_known = match self.open().get_mut(&of) {
            Some(asked) => {
                asked.is_interrupted = true;
                true
            }
            None => false,
        };
        match is_known {
            true => self.interrupted.notify_all(),
            // Another thread is about to admit it, or it has been answered: then the kernel does not know it any more.
            false => self.write(unique, -Errno::AGAIN.raw_os_error(), &[]),
        }
    }

    /// Answers the interrupted requests of threads that are being killed, so that they can end while the work goes on.
    /// `is_killed` says which are.
    fn release_killed(&self, is_killed: impl Fn(u32) -> bool) {
        let mut open = self.open();
        let is_of_killed = |asked: &Asked| asked.is_interrupted && is_killed(asked.thread);
        let killed: Vec<u64> =
            open.iter().filter(|(_, asked)| is_of_killed(asked)).map(|(unique, _)| *unique).collect();
        for unique in killed {
            open.remove(&unique);
            self.write(unique, -Errno::INTR.raw_os_error(), &[]);
        }
    }

    /// Releases threads that are killed while they wait, until the mount has ended. A thread may be killed long after the one signal that
    /// the kernel reports, so interrupted threads are checked repeatedly.
    pub(super) fn watch_killed(&self) {
        loop {
            let open = self.open();
            if self.has_ended.load(Ordering::Relaxed) {
                return;
            }
            let is_quiet = !open.values().any(|asked| asked.is_interrupted);
            let pause = if is_quiet { IDLE_LOOK } else { KILLED_LOOK };
            drop(self.interrupted.wait_timeout(open, pause));
            self.release_killed(is_killed);
        }
    }

    /// The mount has ended: no further request comes.
    pub(super) fn end(&self) {
        let open = self.open();
        self.has_ended.store(true, Ordering::Relaxed);
        self.interrupted.notify_all();
        drop(open);
    }

    /// Writes an answer, or a notice, whose number is 0. After the end of the mount the kernel refuses them.
    fn write(&self, unique: u64, code: i32, body: &[&[u8]]) {
        let _ = self.write_checked(unique, code, body);
    }

    fn write_checked(&self, unique: u64, code: i32, body: &[&[u8]]) -> io::Result<()> {
        let body_bytes: usize = body.iter().map(|part| part.len()).sum();
        let mut header = [0; 16];
        header[..4].copy_from_slice(&(16 + body_bytes as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let (first, second) = (body.first().copied().unwrap_or(&[]), body.get(1).copied().unwrap_or(&[]));
        debug_assert!(body.len() <= 2);
        // All at once, or not at all.
        (&self.device)
            .write_vectored(&[IoSlice::new(&header), IoSlice::new(first), IoSlice::new(second)])
            .map(drop)
    }
}

/// Whether a thread is being killed, or is gone. Linux gives SIGKILL to every thread of a process that ends, whatever ends it.
fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_sigkill(&status),
        // It is gone, or /proc hides it from us: then the kernel refuses signals to it, too, but for another reason.
        Err(_) => {
            Pid::from_raw(thread as i32).is_some_and(|thread| test_kill_process(thread) == Err(Errno::SRCH))
        }
    }
}

/// Whether SIGKILL is pending, by the text of `/proc/PID/status`.
fn has_sigkill(status: &str) -> bool {
    let pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    pending.fold(0, |all, mask| all | mask) & SIGKILL_BIT != 0
}

/// The reply to one request.
pub(crate) struct Reply {
    channel: Arc<Channel>,
    /// Nothing when it was answered.
    unique: Option<u64>,
    /// Called if no thread waits for the answer any more.
    unheard: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({:?})", self.unique)
    }
}

impl Reply {
    /// Whether a thread still waits for the answer: work for a killed thread need not begin.
    pub(crate) fn is_awaited(&self) -> bool {
        let unique = self.unique.expect("it is not answered");
        self.channel.open().contains_key(&unique)
    }

    /// Sends the answer. Returns whether a thread received it.
    fn send(&mut self, code: i32, body: &[&[u8]]) -> bool {
        match self.unique.take() {
            Some(unique) if self.channel.open().remove(&unique).is_some() => {
                self.channel.write(unique, code, body);
                true
            }
            Some(_) => {
                if let Some(unheard) = self.unheard.take() {
                    unheard();
                }
                false
            }
            None => false,
        }
    }

    /// Sets what is done if the answer comes when no thread waits for it any more: the kernel knows nothing of the change then.
    pub(crate) fn or_unheard(&mut self, unheard: impl FnOnce() + Send + 'static) {
        self.unheard = Some(Box::new(unheard));
    }

    /// Answers that it is done.
    pub(crate) fn ok(mut self) {
        self.send(0, &[]);
    }

    /// Answers with this error.
    pub(crate) fn error(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    /// Answers with these bytes.
    pub(crate) fn bytes(mut self, bytes: &[u8]) {
        self.send(0, &[bytes]);
    }

    /// Answers with an entry; returns false if no thread waits any more, so that the kernel does not know the entry.
    pub(crate) fn entry(mut self, entry: &Entry) -> bool {
        self.send(0, &[&entry.encode()])
    }

    pub(crate) fn attributes(self, attributes: &Attributes, valid: Duration) {
        let mut words = Words::<104>::new();
        words.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
        attributes.encode(&mut words);
        self.bytes(&words.bytes());
    }

    /// Answers with an open file; returns false if no thread waits any more, so that the kernel never closes it.
    pub(crate) fn opened(mut self, handle: u64, flags: OpenFlags) -> bool {
        self.send(0, &[&opened(handle, flags)])
    }

    /// Answers with both; returns false if no thread waits any more.
    pub(crate) fn created(mut self, entry: &Entry, handle: u64, flags: OpenFlags) -> bool {
        self.send(0, &[&entry.encode(), &opened(handle, flags)])
    }

    /// Answers with a number of bytes that were written or can be read.
    pub(crate) fn count(self, bytes: u32) {
        let mut words = Words::<8>::new();
        words.u32(bytes).u32(0);
        self.bytes(&words.bytes());
    }

    /// Answers with an offset in a file.
    pub(crate) fn place(self, offset: u64) {
        self.bytes(&offset.to_ne_bytes());
    }

    /// Answers an ioctl with a number.
    pub(crate) fn ioctl_number(self, number: u32) {
        let mut words = Words::<20>::new();
        words.u32(0).u32(0).u64(0).u32(number);
        self.bytes(&words.bytes());
    }

    /// Answers an ioctl without data.
    pub(crate) fn ioctl(self, result: i32) {
        let mut words = Words::<16>::new();
        words.u32(result as u32).u32(0).u64(0);
        self.bytes(&words.bytes());
    }

    pub(crate) fn statistics(self, of: &Statistics) {
        let mut words = Words::<80>::new();
        words.u64(of.blocks).u64(of.blocks_free).u64(of.blocks_available).u64(of.inodes).u64(of.inodes_free);
        words.u32(of.block_bytes).u32(of.name_bytes_max).u32(of.block_bytes);
        self.bytes(&words.bytes());
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), &[]);
    }
}

/// Instructions to the kernel for an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenFlags(u32);

impl OpenFlags {
    /// Pages stay from one opening to the next.
    pub(crate) const KEEP_PAGES: Self = Self(1 << 1);
    /// Direct writes go side by side.
    pub(crate) const PARALLEL_WRITES: Self = Self(1 << 6);

    /// Both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn opened(handle: u64, flags: OpenFlags) -> [u8; 16] {
    let mut words = Words::<16>::new();
    words.u64(handle).u32(flags.0).u32(0);
    words.bytes()
}

/// Attributes of an inode; `mode` with its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) node: u64,
    pub(crate) bytes: u64,
    pub(crate) blocks_512: u64,
    /// Seconds since 1970, and nanoseconds.
    pub(crate) atime: (i64, u32),
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) block_bytes: u32,
}

impl Attributes {
    fn encode<const N: usize>(&self, words: &mut Words<N>) {
        let times = [self.atime, self.mtime, self.ctime];
        words.u64(self.node).u64(self.bytes).u64(self.blocks_512);
        for time in times {
            words.u64(time.0 as u64);
        }
        for time in times {
            words.u32(time.1);
        }
        words.u32(self.mode).u32(self.links).u32(self.uid).u32(self.gid);
        words.u32(self.device).u32(self.block_bytes).u32(0);
    }
}

/// The inode of a name, and the time for which the kernel may cache it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) attributes: Attributes,
    pub(crate) generation: u64,
    pub(crate) name_valid: Duration,
    pub(crate) attributes_valid: Duration,
}

impl Entry {
    fn encode(&self) -> [u8; 128] {
        let mut words = Words::new();
        words.u64(self.attributes.node).u64(self.generation);
        words.u64(self.name_valid.as_secs()).u64(self.attributes_valid.as_secs());
        words.u32(self.name_valid.subsec_nanos()).u32(self.attributes_valid.subsec_nanos());
        self.attributes.encode(&mut words);
        words.bytes()
    }
}

/// Statistics of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) block_bytes: u32,
    pub(crate) name_bytes_max: u32,
}

/// Entries of a directory, as many as there is room for.
#[derive(Debug)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    pub(crate) fn new(bytes_max: u32) -> Self {
        Self { bytes: Vec::new(), bytes_max: bytes_max as usize }
    }

    /// Adds an entry, behind which reading goes on at `next`; false if there is no room. `mode`: its type.
    pub(crate) fn add(&mut self, node: NodeId, next: u64, mode: u32, name: &[u8]) -> bool {
        self.add_with(&[], node, next, mode, name)
    }

    /// Adds an entry with its attributes.
    pub(crate) fn add_entry(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let attributes = &entry.attributes;
        self.add_with(&entry.encode(), NodeId(attributes.node), next, attributes.mode, name)
    }

    /// Adds an entry whose attributes cannot be read. The kernel takes no more than the name from it.
    pub(crate) fn add_unread(&mut self, node: NodeId, next: u64, mode: u32, name: &[u8]) -> bool {
        self.add_with(&Entry::default().encode(), node, next, mode, name)
    }

    fn add_with(&mut self, first: &[u8], node: NodeId, next: u64, mode: u32, name: &[u8]) -> bool {
        let bytes = (first.len() + 24 + name.len()).next_multiple_of(8);
        if self.bytes.len() + bytes > self.bytes_max {
            return false;
        }
        let end = self.bytes.len() + bytes;
        self.bytes.extend_from_slice(first);
        let mut words = Words::<24>::new();
        words.u64(node.0).u64(next).u32(name.len() as u32).u32(mode >> 12 & 0o17);
        self.bytes.extend_from_slice(&words.bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// Answers with the listing; returns false if no thread waits any more.
    pub(crate) fn send(&self, mut reply: Reply) -> bool {
        reply.send(0, &[&self.bytes])
    }
}

/// Numbers one behind the other; what is not set is zero.
pub(super) struct Words<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Words<N> {
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.put(&number.to_ne_bytes())
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.put(&number.to_ne_bytes())
    }

    pub(super) fn bytes(&self) -> [u8; N] {
        self.bytes
    }
}

/// Part of an inode in the kernel's cache that is out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// Its attributes.
    Attributes,
    /// These and the pages of a range, which is not empty.
    Range { offset: u64, bytes: u64 },
    /// These and all pages.
    Pages,
}

/// Tells the kernel what is not so any more. It may wait for answers before it takes a notice.
#[derive(Clone, Debug)]
pub(crate) struct Notifier(pub(super) Arc<Channel>);

impl Notifier {
    /// The pages of an inode, and its attributes.
    ///
    /// # Errors
    /// The kernel does not know it.
    pub(crate) fn forget_pages(&self, node: NodeId) -> io::Result<()> {
        self.forget_inode(node, Stale::Pages)
    }

    /// Tells the kernel to drop the `stale` part of an inode.
    ///
    /// # Errors
    /// The kernel does not know it.
    pub(crate) fn forget_inode(&self, node: NodeId, stale: Stale) -> io::Result<()> {
        let mut words = Words::<24>::new();
        let (offset, bytes) = match stale {
            Stale::Attributes => (-1_i64 as u64, 0),
            Stale::Range { offset, bytes } => (offset, bytes),
            // From its beginning to its end.
            Stale::Pages => (0, 0),
        };
        words.u64(node.0).u64(offset).u64(bytes);
        self.0.write_checked(0, FORGET_PAGES, &[&words.bytes()])
    }

    /// A name in a directory.
    ///
    /// # Errors
    /// The kernel does not know it.
    pub(crate) fn forget_name(&self, dir: NodeId, name: &[u8]) -> io::Result<()> {
        let mut words = Words::<16>::new();
        words.u64(dir.0).u32(name.len() as u32).u32(0);
        self.0.write_checked(0, FORGET_NAME, &[&words.bytes(), &[name, &[0]].concat()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    /// A channel, and what the kernel would get of it: number, code, body.
    struct Kernel(UnixStream);

    fn channel() -> (Arc<Channel>, Kernel) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Channel::new(File::from(OwnedFd::from(ours))), Kernel(theirs))
    }

    impl Kernel {
        fn next(&mut self) -> Option<(u64, i32, Vec<u8>)> {
            let mut header = [0; 16];
            self.0.read_exact(&mut header).ok()?;
            let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
            let mut body = vec![0; word(0) as usize - 16];
            self.0.read_exact(&mut body).unwrap();
            Some((u64::from_ne_bytes(header[8..].try_into().unwrap()), word(4) as i32, body))
        }
    }

    #[test]
    fn a_request_is_answered_once() {
        let (channel, mut kernel) = channel();
        channel.admit(2, 7).ok();
        channel.admit(4, 7).error(Errno::NOENT);
        channel.admit(6, 7).bytes(b"what is there");
        drop(channel.admit(8, 7));
        assert_eq!(kernel.next(), Some((2, 0, vec![])));
        assert_eq!(kernel.next(), Some((4, -2, vec![])));
        assert_eq!(kernel.next(), Some((6, 0, b"what is there".to_vec())));
        assert_eq!(kernel.next(), Some((8, -5, vec![])), "a reply that is dropped says EIO");
        assert_eq!(kernel.next(), None);
        assert!(channel.open().is_empty());
    }

    #[test]
    fn an_ordinary_signal_changes_no_answer() {
        let (channel, mut kernel) = channel();
        let reply = channel.admit(2, 7);
        channel.interrupt(3, 2);
        channel.release_killed(|_| false);
        assert_eq!(kernel.next(), None);
        assert!(reply.is_awaited());
        reply.ok();
        assert_eq!(kernel.next(), Some((2, 0, vec![])));
    }

    #[test]
    fn regression_the_kernel_learns_of_a_change_whose_answer_it_did_not_see() {
        let (channel, mut kernel) = channel();
        let told = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let admit = |unique| {
            let (mut reply, told) = (channel.admit(unique, 7), Arc::clone(&told));
            reply.or_unheard(move || {
                told.fetch_add(1, Ordering::Relaxed);
            });
            reply
        };
        admit(2).ok();
        assert_eq!(told.load(Ordering::Relaxed), 0);
        for unique in [4, 6] {
            let reply = admit(unique);
            channel.interrupt(unique + 1, unique);
            channel.release_killed(|thread| thread == 7);
            if unique == 4 { reply.count(1) } else { reply.error(Errno::NOSPC) }
        }
        assert_eq!(told.load(Ordering::Relaxed), 2, "what failed may have changed a part");
        let answers = std::iter::from_fn(|| kernel.next()).map(|(unique, code, _)| (unique, code));
        assert_eq!(answers.collect::<Vec<_>>(), [(2, 0), (4, -4), (6, -4)]);
    }

    #[test]
    fn who_is_killed_need_not_wait() {
        let (channel, mut kernel) = channel();
        let (killed, other, calm) = (channel.admit(2, 7), channel.admit(4, 8), channel.admit(6, 7));
        channel.interrupt(3, 2);
        channel.interrupt(5, 4);
        channel.release_killed(|thread| thread == 7);
        assert_eq!(kernel.next(), Some((2, -4, vec![])));
        assert_eq!(kernel.next(), None, "one is not killed, the other was not interrupted");
        assert!(!killed.is_awaited());
        assert!(!killed.opened(1, OpenFlags::default()), "nobody closes it");
        assert_eq!(kernel.next(), None, "it has been answered");
        // Killed some time after its only interruption.
        channel.release_killed(|thread| thread == 8);
        assert_eq!(kernel.next(), Some((4, -4, vec![])));
        drop((other, calm));
        assert_eq!(kernel.next(), Some((6, -5, vec![])));
    }

    #[test]
    fn an_interruption_that_comes_before_its_request_is_said_again() {
        let (channel, mut kernel) = channel();
        channel.interrupt(3, 2);
        assert_eq!(kernel.next(), Some((3, -11, vec![])));
        let reply = channel.admit(2, 7);
        channel.interrupt(3, 2);
        channel.release_killed(|_| true);
        assert_eq!(kernel.next(), Some((2, -4, vec![])));
        drop(reply);
        assert_eq!(kernel.next(), None);
    }

    #[test]
    fn a_thread_is_killed_if_sigkill_is_pending_or_it_is_gone() {
        let status =
            |own: &str, of_all: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{of_all}\nSigBlk:\t0\n");
        assert!(!has_sigkill(&status("0000000000000000", "0000000000004000")));
        assert!(has_sigkill(&status("0000000000000100", "0000000000000000")));
        assert!(has_sigkill(&status("0000000000000000", "0000000000000100")));
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        assert!(is_killed(gone));
    }

    fn numbers(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Two words as one.
    fn pair(low: u32, high: u32) -> u64 {
        let (low, high) = if cfg!(target_endian = "big") { (high, low) } else { (low, high) };
        u64::from(low) | u64::from(high) << 32
    }

    const FILE: Attributes = Attributes {
        node: 11,
        bytes: 12,
        blocks_512: 13,
        atime: (-14, 15),
        mtime: (16, 17),
        ctime: (18, 19),
        mode: 0o100_644,
        links: 20,
        uid: 21,
        gid: 22,
        device: 23,
        block_bytes: 24,
    };

    fn file_numbers() -> Vec<u64> {
        let times = [-14_i64 as u64, 16, 18, pair(15, 17), pair(19, 0o100_644)];
        [&[11, 12, 13][..], &times, &[pair(20, 21), pair(22, 23), pair(24, 0)]].concat()
    }

    #[test]
    fn answers_are_laid_out_as_the_header_of_linux_says() {
        let (channel, mut kernel) = channel();
        let mut body = || numbers(&kernel.next().unwrap().2);
        channel.admit(2, 7).attributes(&FILE, Duration::new(3, 4));
        assert_eq!(body(), [&[3, pair(4, 0)][..], &file_numbers()].concat());
        let (name_valid, attributes_valid) = (Duration::new(5, 6), Duration::new(7, 8));
        let entry = Entry { attributes: FILE, generation: 9, name_valid, attributes_valid };
        let entry_numbers = [&[11, 9, 5, 7, pair(6, 8)][..], &file_numbers()].concat();
        channel.admit(2, 7).entry(&entry);
        assert_eq!(body(), entry_numbers);
        let flags = OpenFlags::KEEP_PAGES.and(OpenFlags::PARALLEL_WRITES);
        channel.admit(2, 7).created(&entry, 10, flags);
        assert_eq!(body(), [&entry_numbers[..], &[10, pair(0b100_0010, 0)]].concat());
        channel.admit(2, 7).opened(10, OpenFlags::default());
        assert_eq!(body(), [10, 0]);
        channel.admit(2, 7).count(77);
        assert_eq!(body(), [pair(77, 0)]);
        channel.admit(2, 7).place(4096);
        assert_eq!(body(), [4096]);
        channel.admit(2, 7).ioctl(-1);
        assert_eq!(body(), [pair(u32::MAX, 0), 0]);
        let of = Statistics {
            blocks: 1,
            blocks_free: 2,
            blocks_available: 3,
            inodes: 4,
            inodes_free: 5,
            block_bytes: 6,
            name_bytes_max: 7,
        };
        channel.admit(2, 7).statistics(&of);
        assert_eq!(body(), [1, 2, 3, 4, 5, pair(6, 7), pair(6, 0), 0, 0, 0]);
    }

    #[test]
    fn a_listing_takes_what_there_is_room_for() {
        let (channel, mut kernel) = channel();
        let mut listing = Listing::new(71);
        assert!(listing.add(NodeId(2), 1, 0o040_000, b"."));
        assert!(listing.add(NodeId(3), 2, 0o100_000, b"eight by"));
        assert!(!listing.add(NodeId(4), 3, 0o100_000, b""), "it needs 24 bytes, and there are 7");
        listing.send(channel.admit(2, 7));
        let body = kernel.next().unwrap().2;
        assert_eq!(numbers(&body[..24]), [2, 1, pair(1, 4)]);
        assert_eq!(body[24..32], *b".\0\0\0\0\0\0\0");
        assert_eq!(numbers(&body[32..56]), [3, 2, pair(8, 8)]);
        assert_eq!(body[56..], *b"eight by");
        let mut listing = Listing::new(160);
        assert!(listing.add_entry(&Entry { attributes: FILE, ..Entry::default() }, 1, b"file"));
        assert!(!listing.add_entry(&Entry::default(), 2, b"file"));
        listing.send(channel.admit(2, 7));
        let body = kernel.next().unwrap().2;
        assert_eq!(numbers(&body[128..152]), [11, 1, pair(4, 8)]);
    }

    #[test]
    fn notices_have_no_number() {
        let (channel, mut kernel) = channel();
        let notifier = Notifier(channel);
        notifier.forget_pages(NodeId(5)).unwrap();
        notifier.forget_inode(NodeId(6), Stale::Attributes).unwrap();
        notifier.forget_inode(NodeId(6), Stale::Range { offset: 4096, bytes: 512 }).unwrap();
        notifier.forget_name(NodeId(5), b"name").unwrap();
        let (unique, code, body) = kernel.next().unwrap();
        assert_eq!((unique, code, numbers(&body)), (0, 2, vec![5, 0, 0]));
        assert_eq!(numbers(&kernel.next().unwrap().2), [6, u64::MAX, 0]);
        assert_eq!(numbers(&kernel.next().unwrap().2), [6, 4096, 512]);
        let (unique, code, body) = kernel.next().unwrap();
        assert_eq!((unique, code, numbers(&body[..16])), (0, 3, vec![5, pair(4, 0)]));
        assert_eq!(body[16..], *b"name\0");
    }
}
