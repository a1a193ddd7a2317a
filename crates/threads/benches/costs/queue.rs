//! The kernel's queue of asynchronous reads, which the standard library does not have.

use std::io::Error;

/// A request of `io_submit`, as the kernel's header has it for little-endian machines.
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_file: u32,
}

/// An answer of `io_getevents`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

/// Reads of 4 KiB through the kernel's queue, as fio's libaio does them.
pub(crate) struct Queue {
    context: u64,
    file: std::fs::File,
    buffer: Vec<u8>,
}

impl Queue {
    pub(crate) fn new(path: &str) -> Result<Self, String> {
        let file = std::fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
        let mut context = 0_u64;
        // SAFETY: the kernel writes the number of the new queue to `context`, which lives.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) };
        match result {
            0 => Ok(Self { context, file, buffer: vec![0; 4096] }),
            _ => Err(format!("io_setup: {}", Error::last_os_error())),
        }
    }

    /// Reads once: one call to submit, one to have the answer.
    pub(crate) fn read(&mut self) -> Result<(), String> {
        use std::os::fd::AsRawFd;
        const READ: u16 = 0;
        let request = Request {
            data: 0,
            key: 0,
            flags: 0,
            operation: READ,
            priority: 0,
            file: self.file.as_raw_fd() as u32,
            buffer: self.buffer.as_mut_ptr() as u64,
            bytes: self.buffer.len() as u64,
            offset: 0,
            reserved: 0,
            more_flags: 0,
            event_file: 0,
        };
        let mut answer = Answer { data: 0, request: 0, result: 0, second_result: 0 };
        let list = [&raw const request];
        // SAFETY: one request is submitted, which names memory of the buffer; buffer, request and answer outlive the second call, which
        // waits until the kernel has answered.
        let (submitted, answered) = unsafe {
            (
                libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_ptr()),
                libc::syscall(libc::SYS_io_getevents, self.context, 1, 1, &raw mut answer, 0),
            )
        };
        match (submitted, answered, answer.result) {
            (1, 1, 4096) => Ok(()),
            other => Err(format!("io_submit, io_getevents, bytes: {other:?}: {}", Error::last_os_error())),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue is ours, and has no request.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// A call that does nothing.
pub(crate) fn nothing() {
    // SAFETY: it has no arguments and no effect.
    unsafe { libc::syscall(libc::SYS_getppid) };
}
