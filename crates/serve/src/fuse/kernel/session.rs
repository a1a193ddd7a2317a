//! A mount from the first request to the last: negotiation of features, and the threads that read requests.
//!
//! The device does not block. One of the reading threads waits for the device, the others for that thread, so that a request wakes one of
//! them. A thread that answers requests itself may take that place; then a request wakes that thread or none.

use super::mount::Mounting;
use super::reply::{Channel, Notifier, Reply, Words};
use super::request::{Malformed, Op, Request};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The protocol that is spoken.
const MAJOR: u32 = 7;
const MINOR: u32 = 38;

/// The oldest kernel that is answered: 4.20, since which one request may have more than 32 pages.
const MINOR_MIN: u32 = 28;

/// Room for the words before the data of a write.
const ROOM_BYTES: usize = 4096;

/// Answers requests; called by several threads.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers, now or later.
    fn handle(&self, request: Request<'_>, reply: Reply);
    /// The kernel has forgotten inodes: number, and how often it had been told of each.
    fn forget(&self, forgotten: Vec<(u64, u64)>);
}

/// Features that a kernel offers and a file system wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features(u64);

impl Features {
    /// Several reads ahead at a time.
    pub(crate) const ASYNC_READ: Self = Self(1 << 0);
    /// Writes of more than a page.
    pub(crate) const BIG_WRITES: Self = Self(1 << 5);
    /// Modes of what is made come without the caller's mask, and the mask beside them.
    pub(crate) const MASKS: Self = Self(1 << 6);
    /// Listings with attributes.
    pub(crate) const LISTING_PLUS: Self = Self(1 << 13);
    /// But only where they are of use.
    pub(crate) const LISTING_PLUS_AUTO: Self = Self(1 << 14);
    /// Several direct requests of one program at a time.
    pub(crate) const ASYNC_DIRECT: Self = Self(1 << 15);
    /// The kernel keeps what is written.
    pub(crate) const WRITE_BACK: Self = Self(1 << 16);
    /// Lookups and listings in one directory side by side.
    pub(crate) const PARALLEL_DIRECTORIES: Self = Self(1 << 18);
    /// The kernel checks access control lists.
    pub(crate) const ACCESS_LISTS: Self = Self(1 << 20);
    /// The answer to the first request says how many pages one has at most.
    const PAGES_MAX: Self = Self(1 << 22);
    /// Targets of symbolic links stay.
    pub(crate) const KEEP_LINKS: Self = Self(1 << 23);
    /// Writes, new sizes and new owners say whether they end set-user-ID and set-group-ID, so that the kernel need not look
    /// before each write whether there is something to end.
    pub(crate) const ENDS_SET_ID: Self = Self(1 << 28);
    /// The long form of requests to set an extended attribute.
    pub(crate) const XATTR_FLAGS: Self = Self(1 << 29);
    const GO_ON: Self = Self(1 << 30);

    /// Both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Wishes of a mount to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) features: Features,
    pub(crate) write_bytes_max: u32,
    /// Requests for which no program waits by itself, at a time.
    pub(crate) background_max: u16,
}

/// A mount whose requests are not read yet.
#[derive(Debug)]
pub(crate) struct Attached {
    channel: Arc<Channel>,
    has_long_xattrs: bool,
    write_bytes_max: u32,
}

/// Mounts, and agrees with the kernel on what both can do.
///
/// # Errors
/// The directory cannot be mounted on, or the kernel is too old.
pub(crate) fn attach(at: &Path, how: &Mounting, wanted: Wanted) -> io::Result<Attached> {
    let channel = Channel::new(how.mount(at)?);
    let agreed = agree(&channel, wanted);
    if agreed.is_err() {
        let _ = unmount(at, UnmountFlags::DETACH);
    }
    agreed
}

/// The conversation that the kernel begins.
fn agree(channel: &Arc<Channel>, wanted: Wanted) -> io::Result<Attached> {
    let mut buffer = vec![0; wanted.write_bytes_max as usize + ROOM_BYTES];
    loop {
        let Some(bytes) = read(&channel.device, &mut buffer)? else {
            channel.wait()?;
            continue;
        };
        let Ok(request) = Request::new(bytes, false) else { continue };
        let reply = channel.admit(request.unique, request.thread);
        let Op::Init { major, minor, readahead_bytes_max, features } = request.op else {
            reply.error(Errno::IO);
            continue;
        };
        if major > MAJOR {
            // It asks again, as we would have it.
            reply.bytes(&greeting(readahead_bytes_max, Features(0), wanted));
            continue;
        }
        if major < MAJOR || minor < MINOR_MIN {
            reply.error(Errno::PROTO);
            let why =
                format!("the kernel speaks FUSE {major}.{minor}, expected {MAJOR}.{MINOR_MIN} or later");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let features = Features(wanted.features.and(Features::PAGES_MAX).and(Features::GO_ON).0 & features);
        reply.bytes(&greeting(readahead_bytes_max, features, wanted));
        return Ok(Attached {
            channel: Arc::clone(channel),
            has_long_xattrs: features.has(Features::XATTR_FLAGS),
            write_bytes_max: wanted.write_bytes_max,
        });
    }
}

/// Our answer to the first request.
fn greeting(readahead_bytes_max: u32, features: Features, wanted: Wanted) -> [u8; 64] {
    let mut words = Words::new();
    words.u32(MAJOR).u32(MINOR).u32(readahead_bytes_max).u32(features.0 as u32);
    // Programs wait when three quarters of the background are in use.
    words.u16(wanted.background_max).u16(wanted.background_max / 4 * 3).u32(wanted.write_bytes_max);
    // Times are in nanoseconds.
    let pages = (wanted.write_bytes_max as usize / rustix::param::page_size()).max(1);
    words.u32(1).u16(pages as u16).u16(0);
    words.u32((features.0 >> 32) as u32);
    words.bytes()
}

/// Reads the next request, if there is one; the error at the end is [`Errno::NODEV`].
fn read<'a>(mut device: &File, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    loop {
        match device.read(buffer) {
            Ok(count) => return Ok(Some(&buffer[..count])),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return Ok(None),
                // A request that was interrupted while it was read; the next one will do.
                Some(Errno::NOENT | Errno::INTR) => {}
                _ => return Err(error),
            },
        }
    }
}

/// The source of requests: the device.
pub(crate) struct Inlet {
    channel: Arc<Channel>,
    has_long_xattrs: bool,
    buffer: Vec<u8>,
    handler: Arc<dyn Handler>,
}

impl Inlet {
    /// Hands the next request on; returns false if there is none now.
    ///
    /// # Errors
    /// The mount has ended.
    pub(crate) fn take(&mut self) -> io::Result<bool> {
        let Some(bytes) = read(&self.channel.device, &mut self.buffer)? else { return Ok(false) };
        dispatch(&self.channel, &*self.handler, Request::new(bytes, self.has_long_xattrs));
        Ok(true)
    }

    /// Takes the place of the threads that wait for the device, unless it is taken.
    pub(crate) fn hold(&self) -> Option<Place> {
        self.channel.take_place().then(|| Place(Arc::clone(&self.channel)))
    }
}

/// The place of the reading threads at the device; they get it back when this is dropped.
pub(crate) struct Place(Arc<Channel>);

impl Place {
    /// Descriptor that is readable when there is a request, or the mount has ended.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.0.device.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave_place();
    }
}

/// Threads that read requests.
#[derive(Debug)]
pub(crate) struct Session {
    channel: Arc<Channel>,
    threads: Vec<JoinHandle<()>>,
    /// Releases threads that are killed.
    watch: JoinHandle<()>,
}

impl Attached {
    /// Returns a way to notify the kernel.
    pub(crate) fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.channel))
    }

    /// A way for requests to `handler`.
    pub(crate) fn inlet(&self, handler: Arc<dyn Handler>) -> Inlet {
        Inlet {
            channel: Arc::clone(&self.channel),
            has_long_xattrs: self.has_long_xattrs,
            buffer: vec![0; self.write_bytes_max as usize + ROOM_BYTES],
            handler,
        }
    }

    /// Begins to read, in so many threads.
    ///
    /// # Errors
    /// There are no more threads.
    pub(crate) fn begin(self, handler: impl Handler, threads: usize) -> io::Result<Session> {
        let handler: Arc<dyn Handler> = Arc::new(handler);
        let threads = (0..threads).map(|at| {
            let mut inlet = self.inlet(Arc::clone(&handler));
            std::thread::Builder::new().name(format!("requests-{at}")).spawn(move || {
                // The kernel's errors at the end say no more than that it is the end.
                while let Ok(is_taken) = inlet.take() {
                    if !is_taken && inlet.channel.wait().is_err() {
                        break;
                    }
                }
            })
        });
        let (threads, channel) = (threads.collect::<io::Result<_>>()?, Arc::clone(&self.channel));
        let watch =
            std::thread::Builder::new().name("killed".into()).spawn(move || channel.watch_killed())?;
        Ok(Session { channel: self.channel, threads, watch })
    }
}

fn dispatch(channel: &Arc<Channel>, handler: &dyn Handler, request: Result<Request<'_>, Malformed>) {
    match request {
        Ok(Request { unique, op: Op::Interrupt { unique: of }, .. }) => channel.interrupt(unique, of),
        Ok(Request { op: Op::Forget(forgotten), .. }) => handler.forget(forgotten),
        Ok(request) => {
            let reply = channel.admit(request.unique, request.thread);
            handler.handle(request, reply);
        }
        Err(Malformed(Some(unique))) => channel.admit(unique, 0).error(Errno::IO),
        Err(Malformed(None)) => {}
    }
}

impl Session {
    /// Waits until it is unmounted.
    pub(crate) fn join(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
        self.channel.end();
        let _ = self.watch.join();
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::bytes;
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Noted(Mutex<Vec<(u64, u64)>>);

    impl Handler for Noted {
        fn handle(&self, _request: Request<'_>, reply: Reply) {
            reply.ok();
        }
        fn forget(&self, forgotten: Vec<(u64, u64)>) {
            self.0.lock().unwrap().extend(forgotten);
        }
    }

    #[test]
    fn an_inlet_takes_what_is_there_and_does_not_wait() {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let channel = Channel::new(File::from(OwnedFd::from(ours)));
        let attached = Attached { channel, has_long_xattrs: true, write_bytes_max: 4096 };
        let noted = Arc::new(Noted::default());
        let mut inlet = attached.inlet(noted.clone());
        assert!(!inlet.take().unwrap());
        kernel.send(&bytes(2, &[&3_u64.to_ne_bytes()])).unwrap();
        attached.channel.wait().unwrap();
        assert!(inlet.take().unwrap());
        assert!(!inlet.take().unwrap());
        assert_eq!(*noted.0.lock().unwrap(), [(5, 3)]);
    }

    #[test]
    fn one_waits_for_the_device() {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        let channel = Channel::new(File::from(OwnedFd::from(ours)));
        let attached = Attached { channel, has_long_xattrs: true, write_bytes_max: 4096 };
        let inlet = attached.inlet(Arc::new(Noted::default()));
        let held = inlet.hold().unwrap();
        assert!(inlet.hold().is_none());
        // A request wakes none of the threads as long as the place is taken.
        kernel.send(&bytes(2, &[&3_u64.to_ne_bytes()])).unwrap();
        let (woken, is_woken) = std::sync::mpsc::channel();
        let waiting = Arc::clone(&attached.channel);
        let thread = std::thread::spawn(move || {
            waiting.wait().unwrap();
            woken.send(()).unwrap();
        });
        assert!(is_woken.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        drop(held);
        is_woken.recv().unwrap();
        thread.join().unwrap();
        assert!(inlet.hold().is_some());
    }
}
