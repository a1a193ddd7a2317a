//! Linux's `XFS_IOC_EXCHANGE_RANGE` (share §10.5): the structure that a program hands over, and which of our files its descriptor is.
//!
//! Place in the data flow: [`super::front`] asks; [`super::table`] exchanges.

use super::kernel::NodeId;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// `_IOW('X', 129, struct xfs_exchange_range)`.
pub(super) const IOCTL_EXCHANGE: u32 = 0x4028_5881;

/// Flags: up to the ends of both files; and make it durable.
const TO_END: u64 = 1;
const SYNCS: u64 = 2;
/// Those that Linux knows besides: only check; only what was written of the first file.
const OTHERS: u64 = 4 | 8;

/// What is to be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// The first file, as its program knows it. The second one is the file of the call.
    descriptor: i32,
    pub(super) offset: u64,
    pub(super) own_offset: u64,
    /// `None`: up to the ends of both files.
    pub(super) bytes: Option<u64>,
    pub(super) syncs: bool,
}

impl Exchange {
    /// Reads a `struct xfs_exchange_range`. `EINVAL` for flags that Linux does not know, `EOPNOTSUPP` for those that we do not have.
    pub(super) fn read(data: &[u8]) -> Result<Self, Errno> {
        let (words, []) = data.as_chunks::<8>() else { return Err(Errno::INVAL) };
        let [first, offset, own_offset, bytes, flags] = words else { return Err(Errno::INVAL) };
        let [a, b, c, d, padding @ ..] = *first;
        let number = |word: &[u8; 8]| u64::from_ne_bytes(*word);
        let flags = number(flags);
        if padding != [0; 4] || flags & !(TO_END | SYNCS | OTHERS) != 0 {
            return Err(Errno::INVAL);
        }
        if flags & OTHERS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self {
            descriptor: i32::from_ne_bytes([a, b, c, d]),
            offset: number(offset),
            own_offset: number(own_offset),
            bytes: (flags & TO_END == 0).then(|| number(bytes)),
            syncs: flags & SYNCS != 0,
        })
    }

    /// The first file, which a thread has open for reading and writing. Nothing here waits for an answer of our own mount. `EBADF` if there is
    /// no such descriptor, `EXDEV` if it is of another mount, `EOPNOTSUPP` if the thread is of another PID namespace.
    pub(super) fn first_file(&self, thread: u32, directory: &Path) -> Result<NodeId, Errno> {
        if thread == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let at = |what: &str| PathBuf::from(format!("/proc/{thread}/{what}/{}", self.descriptor));
        let text = std::fs::read_to_string(at("fdinfo")).map_err(|_| Errno::BADF)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).ok_or(Errno::BADF)?;
        // O_RDWR and not O_APPEND.
        if flags & 0o3 != 0o2 || flags & 0o2000 != 0 {
            return Err(Errno::BADF);
        }
        let known = |path: &Path| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
        let (file, mount) = (known(&at("fd")).map_err(|_| Errno::BADF)?, known(directory)?);
        match (file.stx_dev_major, file.stx_dev_minor) == (mount.stx_dev_major, mount.stx_dev_minor) {
            true => Ok(NodeId(file.stx_ino)),
            false => Err(Errno::XDEV),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    fn bytes(descriptor: i32, words: [u64; 4]) -> Vec<u8> {
        let mut bytes = descriptor.to_ne_bytes().to_vec();
        bytes.extend([0; 4]);
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_structure_of_linux_is_read() {
        let read = Exchange::read(&bytes(7, [4096, 8192, 12_288, 2]));
        let expected =
            Exchange { descriptor: 7, offset: 4096, own_offset: 8192, bytes: Some(12_288), syncs: true };
        assert_eq!(read, Ok(expected));
        assert_eq!(Exchange::read(&bytes(7, [0, 0, 9, 1])).unwrap().bytes, None);
        assert_eq!(Exchange::read(&bytes(7, [0, 0, 9, 16])), Err(Errno::INVAL));
        assert_eq!(Exchange::read(&bytes(7, [0, 0, 9, 4])), Err(Errno::OPNOTSUPP));
        let mut padded = bytes(7, [0; 4]);
        padded[5] = 1;
        assert_eq!(Exchange::read(&padded), Err(Errno::INVAL));
        for len in 0..40 {
            assert_eq!(Exchange::read(&padded[..len]), Err(Errno::INVAL));
        }
    }

    #[test]
    fn descriptors_that_are_not_of_the_mount_are_refused() {
        let thread = std::process::id();
        let directory = std::env::temp_dir();
        let exchange = |descriptor| Exchange::read(&bytes(descriptor, [0; 4])).unwrap();
        assert_eq!(exchange(9_999).first_file(thread, &directory), Err(Errno::BADF));
        assert_eq!(exchange(0).first_file(0, &directory), Err(Errno::OPNOTSUPP));
        let open = |set: fn(&mut OpenOptions) -> &mut OpenOptions, path: &Path| {
            let file = set(&mut OpenOptions::new()).open(path).unwrap();
            exchange(file.as_raw_fd()).first_file(thread, &directory)
        };
        let null = Path::new("/dev/null");
        assert_eq!(open(|it| it.read(true).write(true), null), Err(Errno::XDEV));
        assert_eq!(open(|it| it.read(true), null), Err(Errno::BADF));
        assert_eq!(open(|it| it.write(true), null), Err(Errno::BADF));
        assert_eq!(open(|it| it.read(true).append(true), null), Err(Errno::BADF));
        let own = directory.join(format!("flashweir-exchange-{thread}"));
        let number = |path: &Path| NodeId(std::fs::metadata(path).unwrap().ino());
        assert_eq!(open(|it| it.read(true).write(true).create(true), &own), Ok(number(&own)));
        std::fs::remove_file(own).unwrap();
    }
}
