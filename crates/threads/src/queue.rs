//! One thread's way to a file or block device: an io_uring of its own.
//!
//! Where the kernel has none for us (an old one, or a container whose filter refuses it) each operation is a call that blocks; who
//! measures asks [`Queue::is_uring`].
//!
//! Invariant: a buffer that was handed over belongs to the kernel until its operation has ended. So a queue waits for all of its
//! operations before it goes, and units that are written outlive it: that is what `'a` says.

use crate::content::{Content, UNIT_BYTES};
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// An operation that is under way, with what the kernel looks at meanwhile.
struct Slot {
    vectors: Box<[libc::iovec]>,
    bytes: usize,
    way: Way,
    offset: u64,
    /// Who asked; `None` while the slot is free.
    tag: Option<u64>,
}

// SAFETY: the pointers in it are for the kernel; no thread follows them.
unsafe impl Send for Slot {}

impl Slot {
    /// Does the rest of an operation that ended early, as those through the page cache may.
    fn rest(&self, file: &File, mut done: usize) -> io::Result<()> {
        while done < self.bytes {
            let (vector, skip) = (&self.vectors[done / UNIT_BYTES], done % UNIT_BYTES);
            let (fd, left, at) =
                (file.as_raw_fd(), UNIT_BYTES - skip, (self.offset + done as u64) as libc::off_t);
            // SAFETY: the unit stays where it is until the operation has ended, and the kernel alone follows the pointer.
            let count = unsafe {
                let from = vector.iov_base.byte_add(skip);
                match self.way {
                    Way::Read => libc::pread(fd, from, left, at),
                    Way::Write => libc::pwrite(fd, from, left, at),
                }
            };
            match count {
                0 => return Err(io::Error::from_raw_os_error(libc::EIO)),
                count if count < 0 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                count => done += count as usize,
            }
        }
        Ok(())
    }
}

/// A queue.
pub(crate) struct Queue<'a> {
    ring: Option<IoUring>,
    file: Arc<File>,
    slots: Box<[Slot]>,
    under_way: usize,
    /// Operations that have ended and were not asked for yet.
    ended: Vec<(u64, io::Result<()>)>,
    units: PhantomData<&'a Content>,
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

/// What an operation does with its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

impl<'a> Queue<'a> {
    /// A queue for `depth` operations at a time.
    pub(crate) fn new(file: Arc<File>, depth: usize) -> Self {
        let slot = |_| Slot { vectors: Box::default(), bytes: 0, way: Way::Read, offset: 0, tag: None };
        Self {
            ring: IoUring::new(depth as u32).ok(),
            file,
            slots: (0..depth).map(slot).collect(),
            under_way: 0,
            ended: Vec::new(),
            units: PhantomData,
        }
    }

    /// Whether operations go through io_uring.
    pub(crate) fn is_uring(&self) -> bool {
        self.ring.is_some()
    }

    /// Operations that may begin now.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() - self.under_way
    }

    /// Begins to write units one after the other from a byte on. Nobody changes them until the operation has ended.
    pub(crate) fn write(&mut self, tag: u64, offset: u64, units: &[&'a Content]) {
        // SAFETY: units live as long as the queue.
        unsafe { self.begin(Way::Write, tag, offset, units) };
    }

    /// Reads a unit each from a byte on, and waits for all of them.
    ///
    /// # Errors
    /// The first operation that failed.
    pub(crate) fn read_all<'b>(&mut self, reads: impl Iterator<Item = (u64, &'b Content)>) -> io::Result<()> {
        let mut result = Ok(());
        for (offset, unit) in reads {
            if self.room() == 0 {
                result = result.and(self.wait_all());
            }
            // SAFETY: this function waits for all operations before it returns, and what it checks in between always holds.
            unsafe { self.begin(Way::Read, 0, offset, &[unit]) };
        }
        result.and(self.wait_all())
    }

    /// Writes units one after the other from a byte on, and waits for that.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn write_all(&mut self, offset: u64, units: &[&Content]) -> io::Result<()> {
        // SAFETY: as in `read_all`.
        unsafe { self.begin(Way::Write, 0, offset, units) };
        self.wait_all()
    }

    fn wait_all(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while self.under_way > 0 || !self.ended.is_empty() {
            self.completed(true, |_, ended| {
                if result.is_ok() {
                    result = ended;
                }
            });
        }
        result
    }

    /// Begins an operation.
    ///
    /// # Safety
    /// The units stay where they are until the operation has ended.
    unsafe fn begin(&mut self, way: Way, tag: u64, offset: u64, units: &[&Content]) {
        let Some(ring) = &mut self.ring else {
            return self.ended.push((tag, blocking(&self.file, way, offset, units)));
        };
        let number = self.slots.iter().position(|slot| slot.tag.is_none()).expect("who asks looks for room");
        let slot = &mut self.slots[number];
        let vector = |unit: &&Content| libc::iovec { iov_base: unit.as_ptr().cast(), iov_len: UNIT_BYTES };
        slot.vectors = units.iter().map(vector).collect();
        (slot.bytes, slot.tag) = (units.len() * UNIT_BYTES, Some(tag));
        (slot.way, slot.offset) = (way, offset);
        let (fd, count) = (types::Fd(self.file.as_raw_fd()), units.len() as u32);
        let entry = match way {
            Way::Read => opcode::Readv::new(fd, slot.vectors.as_ptr(), count).offset(offset).build(),
            Way::Write => opcode::Writev::new(fd, slot.vectors.as_ptr(), count).offset(offset).build(),
        };
        // SAFETY: units are the caller's care. The vectors stay where they are until the operation has ended: the slot is not used
        // before, and a queue waits for its operations before it is dropped. Units are atomic words, which the kernel may write.
        let pushed = unsafe { ring.submission().push(&entry.user_data(number as u64)) };
        pushed.expect("as many entries as slots");
        self.under_way += 1;
        // An error is the call's; the operation stays in the queue for the next one.
        let _ = ring.submit();
    }

    /// Gives each operation that has ended; with `wait` there is at least one, if any is under way.
    pub(crate) fn completed(&mut self, wait: bool, mut each: impl FnMut(u64, io::Result<()>)) {
        if let Some(ring) = &mut self.ring {
            if !ring.submission().is_empty() {
                // The system lacked something when they were submitted.
                let _ = ring.submit();
            }
            while wait && self.under_way > 0 && self.ended.is_empty() && ring.completion().is_empty() {
                match ring.submit_and_wait(1) {
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                    // The system lacks something for now. What is under way ends nonetheless.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)) => {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    Err(error) => panic!("io_uring_enter: {error}"),
                    Ok(_) => {}
                }
            }
            for entry in ring.completion() {
                let slot = &mut self.slots[entry.user_data() as usize];
                let tag = slot.tag.take().expect("an operation ends once");
                self.under_way -= 1;
                let ended = match entry.result() {
                    error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                    count if count as usize == slot.bytes => Ok(()),
                    count => slot.rest(&self.file, count as usize),
                };
                self.ended.push((tag, ended));
            }
        }
        for (tag, ended) in self.ended.drain(..) {
            each(tag, ended);
        }
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        while self.under_way > 0 {
            self.completed(true, |_, _| {});
        }
    }
}

fn blocking(file: &File, way: Way, offset: u64, units: &[&Content]) -> io::Result<()> {
    let mut bytes = Aligned([0; UNIT_BYTES]);
    for (at, unit) in units.iter().enumerate() {
        let offset = offset + (at * UNIT_BYTES) as u64;
        match way {
            Way::Read => {
                file.read_exact_at(&mut bytes.0, offset)?;
                unit.set_bytes(&bytes.0);
            }
            Way::Write => {
                bytes.0 = unit.bytes();
                file.write_all_at(&bytes.0, offset)?;
            }
        }
    }
    Ok(())
}

/// Memory as O_DIRECT wants it.
#[repr(align(4096))]
struct Aligned([u8; UNIT_BYTES]);
