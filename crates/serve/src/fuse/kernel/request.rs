//! Requests of the kernel: bytes to words.
//!
//! Invariant: [`Request::new`] takes any bytes. What is longer than it has to be is taken, as later kernels append fields.

use super::NodeId;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// Number for the answer.
    pub(crate) unique: u64,
    /// The inode; of operations on names the directory.
    pub(crate) node: NodeId,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Thread that waits for the answer; 0 if it is of another PID namespace, or the kernel's own.
    pub(crate) thread: u32,
    pub(crate) op: Op<'a>,
}

/// A time that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Seconds since 1970, and nanoseconds.
    At(i64, u32),
}

/// Attributes that are to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<When>,
    pub(crate) mtime: Option<When>,
    pub(crate) ctime: Option<When>,
    /// As [`Op::Write`] does.
    pub(crate) ends_set_id: bool,
    /// Open file through which they are to change.
    pub(crate) handle: Option<u64>,
}

/// The operation. Flags and modes are those of system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead_bytes_max: u32,
        features: u64,
    },
    Destroy,
    Interrupt {
        unique: u64,
    },
    /// Number, and how often it was told of it. Not answered.
    Forget(Vec<(u64, u64)>),
    Lookup {
        name: &'a [u8],
    },
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_dir: NodeId,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        of: NodeId,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
    },
    /// A file without a name.
    TemporaryFile {
        mode: u32,
        umask: u32,
        flags: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        bytes: u32,
        flags: u32,
    },
    /// `is_cached`: pages of the kernel, through any file that is open for writing. `ends_set_id`: the set-user-ID and set-group-ID bits of
    /// the file are cleared.
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        is_cached: bool,
        ends_set_id: bool,
    },
    Flush,
    Release {
        handle: u64,
    },
    Sync {
        handle: u64,
        of_data: bool,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        bytes: u32,
        with_attributes: bool,
    },
    Statistics,
    /// `ends_set_group_id`: with an access control list, the caller is not in the file's group.
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        ends_set_group_id: bool,
    },
    /// With no bytes it asks for the length.
    Xattr {
        name: &'a [u8],
        bytes: u32,
    },
    XattrNames {
        bytes: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Allocate {
        handle: u64,
        offset: u64,
        bytes: u64,
        mode: u32,
    },
    /// `copy_file_range`; the answer is a count of bytes.
    Copy {
        handle: u64,
        offset: u64,
        target: NodeId,
        to_handle: u64,
        to_offset: u64,
        bytes: u64,
        flags: u64,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    Ioctl {
        handle: u64,
        command: u32,
        /// What the program passes, as long as the command says.
        data: &'a [u8],
    },
    /// A request that is not known or not supported.
    Unknown(u32),
}

/// Not a request: what it was about, if that much could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) Option<u64>);

/// The remaining bytes; a read fails if there are not enough.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*taken))
    }

    fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*taken))
    }

    /// A name, which ends with a zero.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let name = self.take(end)?;
        self.0 = &self.0[1..];
        Some(name)
    }
}

// Bits of `valid` of a request to set attributes.
const SET_MODE: u32 = 1 << 0;
const SET_UID: u32 = 1 << 1;
const SET_GID: u32 = 1 << 2;
const SET_SIZE: u32 = 1 << 3;
const SET_ATIME: u32 = 1 << 4;
const SET_MTIME: u32 = 1 << 5;
const SET_HANDLE: u32 = 1 << 6;
const SET_ATIME_NOW: u32 = 1 << 7;
const SET_MTIME_NOW: u32 = 1 << 8;
const SET_CTIME: u32 = 1 << 10;
const SET_ENDS_SET_ID: u32 = 1 << 11;

/// The write is of pages that the kernel kept.
const WRITE_CACHED: u32 = 1;
const WRITE_ENDS_SET_ID: u32 = 1 << 2;

const XATTR_ENDS_SET_GROUP_ID: u32 = 1;

/// The sync is of data only.
const SYNC_DATA: u32 = 1;

/// Features continue in another word.
const FEATURES_GO_ON: u32 = 1 << 30;

impl<'a> Request<'a> {
    /// Decodes the bytes of one read from the device. `long_xattrs`: as agreed by [`super::Features::XATTR_FLAGS`].
    pub(crate) fn new(bytes: &'a [u8], long_xattrs: bool) -> Result<Self, Malformed> {
        let mut left = Bytes(bytes);
        let unique = (|| {
            let (len, code) = (left.u32()?, left.u32()?);
            Some((len, code, left.u64()?))
        })();
        let Some((len, code, unique)) = unique else { return Err(Malformed(None)) };
        let rest = || {
            let node = NodeId(left.u64()?);
            let (uid, gid, thread) = (left.u32()?, left.u32()?, left.u32()?);
            // How many extensions of eight bytes follow; nothing that was agreed has any.
            left.u32()?;
            if len as usize != bytes.len() {
                return None;
            }
            let op = Op::new(code, node, left, long_xattrs)?;
            Some(Self { unique, node, uid, gid, thread, op })
        };
        rest().ok_or(Malformed(Some(unique)))
    }
}

impl<'a> Op<'a> {
    fn new(code: u32, node: NodeId, mut left: Bytes<'a>, long_xattrs: bool) -> Option<Self> {
        let left = &mut left;
        Some(match code {
            1 => Self::Lookup { name: left.name()? },
            2 => Self::Forget(vec![(node.0, left.u64()?)]),
            3 => Self::GetAttributes,
            4 => Self::SetAttributes(SetAttributes::new(left)?),
            5 => Self::ReadLink,
            6 => Self::Symlink { name: left.name()?, target: left.name()? },
            8 => {
                let (mode, device, umask, _) = (left.u32()?, left.u32()?, left.u32()?, left.u32()?);
                Self::MakeNode { mode, umask, device, name: left.name()? }
            }
            9 => Self::MakeDirectory { mode: left.u32()?, umask: left.u32()?, name: left.name()? },
            10 => Self::Unlink { name: left.name()? },
            11 => Self::RemoveDirectory { name: left.name()? },
            12 => {
                let new_dir = NodeId(left.u64()?);
                Self::Rename { new_dir, flags: 0, name: left.name()?, new_name: left.name()? }
            }
            13 => Self::Link { of: NodeId(left.u64()?), name: left.name()? },
            14 => Self::Open { flags: left.u32()? },
            15 => {
                let (handle, offset, bytes) = (left.u64()?, left.u64()?, left.u32()?);
                left.take(12)?;
                Self::Read { handle, offset, bytes, flags: left.u32()? }
            }
            16 => {
                let (handle, offset, bytes, how) = (left.u64()?, left.u64()?, left.u32()?, left.u32()?);
                let (_owner, flags, _) = (left.u64()?, left.u32()?, left.u32()?);
                let data = left.take(bytes as usize)?;
                let (is_cached, ends_set_id) = (how & WRITE_CACHED != 0, how & WRITE_ENDS_SET_ID != 0);
                Self::Write { handle, offset, data, flags, is_cached, ends_set_id }
            }
            17 => Self::Statistics,
            18 | 29 => Self::Release { handle: left.u64()? },
            20 | 30 => Self::Sync { handle: left.u64()?, of_data: left.u32()? & SYNC_DATA != 0 },
            21 => {
                let (bytes, flags) = (left.u32()?, left.u32()?);
                let more = if long_xattrs { Some((left.u32()?, left.u32()?)) } else { None };
                let ends_set_group_id = more.is_some_and(|(more, _)| more & XATTR_ENDS_SET_GROUP_ID != 0);
                Self::SetXattr {
                    flags,
                    ends_set_group_id,
                    name: left.name()?,
                    value: left.take(bytes as usize)?,
                }
            }
            22 => {
                let (bytes, _) = (left.u32()?, left.u32()?);
                Self::Xattr { bytes, name: left.name()? }
            }
            23 => Self::XattrNames { bytes: left.u32()? },
            24 => Self::RemoveXattr { name: left.name()? },
            25 => Self::Flush,
            26 => {
                let (major, minor, readahead_bytes_max) = (left.u32()?, left.u32()?, left.u32()?);
                let features = left.u32()?;
                let more = if features & FEATURES_GO_ON == 0 { 0 } else { left.u32()? };
                let features = u64::from(features) | u64::from(more) << 32;
                Self::Init { major, minor, readahead_bytes_max, features }
            }
            27 => Self::OpenDirectory,
            28 | 44 => {
                let (handle, offset, bytes) = (left.u64()?, left.u64()?, left.u32()?);
                Self::ReadDirectory { handle, offset, bytes, with_attributes: code == 44 }
            }
            35 => {
                let (flags, mode, umask, _) = (left.u32()?, left.u32()?, left.u32()?, left.u32()?);
                Self::Create { flags, mode, umask, name: left.name()? }
            }
            36 => Self::Interrupt { unique: left.u64()? },
            38 => Self::Destroy,
            39 => {
                let (handle, _flags, command) = (left.u64()?, left.u32()?, left.u32()?);
                let (_address, bytes, _room) = (left.u64()?, left.u32()?, left.u32()?);
                Self::Ioctl { handle, command, data: left.take(bytes as usize)? }
            }
            42 => {
                let (count, _) = (left.u32()?, left.u32()?);
                if (left.0.len() / 16) < count as usize {
                    return None;
                }
                let forgotten = (0..count).map(|_| Some((left.u64()?, left.u64()?)));
                Self::Forget(forgotten.collect::<Option<_>>()?)
            }
            43 => {
                let (handle, offset, bytes) = (left.u64()?, left.u64()?, left.u64()?);
                Self::Allocate { handle, offset, bytes, mode: left.u32()? }
            }
            45 => {
                let (new_dir, flags, _) = (NodeId(left.u64()?), left.u32()?, left.u32()?);
                Self::Rename { new_dir, flags, name: left.name()?, new_name: left.name()? }
            }
            47 => {
                let (handle, offset, target) = (left.u64()?, left.u64()?, NodeId(left.u64()?));
                let (to_handle, to_offset, bytes) = (left.u64()?, left.u64()?, left.u64()?);
                Self::Copy { handle, offset, target, to_handle, to_offset, bytes, flags: left.u64()? }
            }
            46 => Self::Seek { handle: left.u64()?, offset: left.u64()?, whence: left.u32()? },
            51 => {
                let (flags, mode, umask, _) = (left.u32()?, left.u32()?, left.u32()?, left.u32()?);
                Self::TemporaryFile { flags, mode, umask }
            }
            other => Self::Unknown(other),
        })
    }
}

impl SetAttributes {
    fn new(left: &mut Bytes<'_>) -> Option<Self> {
        let (valid, _) = (left.u32()?, left.u32()?);
        let (handle, size, _owner) = (left.u64()?, left.u64()?, left.u64()?);
        let seconds = [left.u64()? as i64, left.u64()? as i64, left.u64()? as i64];
        let nanos = [left.u32()?, left.u32()?, left.u32()?];
        let (mode, _, uid, gid) = (left.u32()?, left.u32()?, left.u32()?, left.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let time = |at: usize, set: u32, now: u32| match has(set) {
            false => Some(None),
            true if has(now) => Some(Some(When::Now)),
            true => (nanos[at] < 1_000_000_000).then_some(Some(When::At(seconds[at], nanos[at]))),
        };
        Some(Self {
            mode: has(SET_MODE).then_some(mode),
            uid: has(SET_UID).then_some(uid),
            gid: has(SET_GID).then_some(gid),
            size: has(SET_SIZE).then_some(size),
            atime: time(0, SET_ATIME, SET_ATIME_NOW)?,
            mtime: time(1, SET_MTIME, SET_MTIME_NOW)?,
            ctime: time(2, SET_CTIME, 0)?,
            ends_set_id: has(SET_ENDS_SET_ID),
            handle: has(SET_HANDLE).then_some(handle),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A request as the kernel writes it: the header, then words and names.
    pub(in super::super) fn bytes(code: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let mut bytes = Vec::new();
        for word in [40 + body.len() as u32, code] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [22_u64, 5] {
            bytes.extend(word.to_ne_bytes());
        }
        // Credentials, and no extensions.
        for word in [1000_u32, 100, 4711, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn longs<const N: usize>(words: [u64; N]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn op<'a>(bytes: &'a [u8]) -> Op<'a> {
        let request = Request::new(bytes, true).unwrap();
        assert_eq!((request.unique, request.node), (22, NodeId(5)));
        assert_eq!((request.uid, request.gid), (1000, 100));
        request.op
    }

    #[test]
    fn requests_say_what_the_header_of_linux_says() {
        assert_eq!(op(&bytes(1, &[b"name\0"])), Op::Lookup { name: b"name" });
        assert_eq!(op(&bytes(2, &[&longs([3])])), Op::Forget(vec![(5, 3)]));
        let forgotten = [words([2, 0]), longs([7, 1, 8, 2])].concat();
        assert_eq!(op(&bytes(42, &[&forgotten])), Op::Forget(vec![(7, 1), (8, 2)]));
        let read = [longs([9, 4096]), words([512, 0]), longs([0]), words([0o40000, 0])].concat();
        assert_eq!(
            op(&bytes(15, &[&read])),
            Op::Read { handle: 9, offset: 4096, bytes: 512, flags: 0o40000 }
        );
        let write = [longs([9, 4096]), words([4, 1]), longs([0]), words([1, 0])].concat();
        assert_eq!(
            op(&bytes(16, &[&write, b"data"])),
            Op::Write {
                handle: 9,
                offset: 4096,
                data: b"data",
                flags: 1,
                is_cached: true,
                ends_set_id: false
            }
        );
        assert_eq!(op(&bytes(20, &[&longs([9]), &words([1, 0])])), Op::Sync { handle: 9, of_data: true });
        assert_eq!(op(&bytes(30, &[&longs([9]), &words([0, 0])])), Op::Sync { handle: 9, of_data: false });
        let new_dir = NodeId(6);
        assert_eq!(
            op(&bytes(45, &[&longs([6]), &words([2, 0]), b"old\0new\0"])),
            Op::Rename { name: b"old", new_dir, new_name: b"new", flags: 2 }
        );
        assert_eq!(op(&bytes(6, &[b"name\0target\0"])), Op::Symlink { name: b"name", target: b"target" });
        assert_eq!(
            op(&bytes(35, &[&words([0o2, 0o100_644, 0o22, 0]), b"new\0"])),
            Op::Create { name: b"new", mode: 0o100_644, umask: 0o22, flags: 0o2 }
        );
        assert_eq!(
            op(&bytes(51, &[&words([0o2, 0o100_600, 0o22, 0]), b"\0"])),
            Op::TemporaryFile { mode: 0o100_600, umask: 0o22, flags: 0o2 }
        );
        assert_eq!(op(&bytes(36, &[&longs([20])])), Op::Interrupt { unique: 20 });
        assert_eq!(
            op(&bytes(46, &[&longs([9, 100]), &words([3, 0])])),
            Op::Seek { handle: 9, offset: 100, whence: 3 }
        );
        assert_eq!(
            op(&bytes(39, &[&longs([9]), &words([0, 0x5701]), &longs([0, 0])])),
            Op::Ioctl { handle: 9, command: 0x5701, data: &[] }
        );
        assert_eq!(
            op(&bytes(47, &[&longs([9, 10, 11, 12, 13, 14, 0])])),
            Op::Copy {
                handle: 9,
                offset: 10,
                target: NodeId(11),
                to_handle: 12,
                to_offset: 13,
                bytes: 14,
                flags: 0
            }
        );
        let with_data =
            bytes(39, &[&longs([9]), &words([0, 0x4004_5705]), &longs([1]), &words([3, 0]), b"abcd"]);
        assert_eq!(op(&with_data), Op::Ioctl { handle: 9, command: 0x4004_5705, data: b"abc" });
        let short = bytes(39, &[&longs([9]), &words([0, 0x4004_5705]), &longs([1]), &words([5, 0]), b"abcd"]);
        assert_eq!(Request::new(&short, true), Err(Malformed(Some(22))));
        assert_eq!(op(&bytes(4095, &[])), Op::Unknown(4095));
    }

    #[test]
    fn an_attribute_is_set_if_its_bit_says_so() {
        let body = |valid: u32, nanos: u32| {
            let first = [words([valid, 0]), longs([9, 4096, 0, 11, -12_i64 as u64, 13])].concat();
            [first, words([nanos, 2, 3, 0o600, 0, 1, 2, 0])].concat()
        };
        assert_eq!(op(&bytes(4, &[&body(0, 1)])), Op::SetAttributes(SetAttributes::default()));
        let all = SetAttributes {
            mode: Some(0o600),
            uid: Some(1),
            gid: Some(2),
            size: Some(4096),
            atime: Some(When::Now),
            mtime: Some(When::At(-12, 2)),
            ctime: Some(When::At(13, 3)),
            ends_set_id: true,
            handle: None,
        };
        assert_eq!(op(&bytes(4, &[&body(0b1100_1011_1111, 1)])), Op::SetAttributes(all));
        // No second has so many nanoseconds.
        let wrong = bytes(4, &[&body(1 << 4, 1_000_000_000)]);
        assert_eq!(Request::new(&wrong, true), Err(Malformed(Some(22))));
    }

    #[test]
    fn an_extended_attribute_comes_in_the_form_that_was_agreed() {
        let expected =
            |ends_set_group_id| Op::SetXattr { name: b"user.a", value: b"x", flags: 1, ends_set_group_id };
        let (long, short) = (words([1, 1, 1, 0]), words([1, 1]));
        let (long, short) = (bytes(21, &[&long, b"user.a\0x"]), bytes(21, &[&short, b"user.a\0x"]));
        assert_eq!(Request::new(&long, true).unwrap().op, expected(true));
        assert_eq!(Request::new(&short, false).unwrap().op, expected(false));
    }

    #[test]
    fn features_go_on_in_a_second_word_where_the_first_says_so() {
        let init = |features| words([7, 45, 131_072, features, 1]);
        let of = |features| match op(&bytes(26, &[&init(features)])) {
            Op::Init { major: 7, minor: 45, readahead_bytes_max: 131_072, features } => features,
            other => panic!("{other:?}"),
        };
        assert_eq!(of(3), 3);
        assert_eq!(of(3 | 1 << 30), 3 | 1 << 30 | 1 << 32);
    }

    #[test]
    fn what_is_cut_short_is_malformed() {
        let write = [longs([9, 4096]), words([4, 1]), longs([0]), words([1, 0])].concat();
        for whole in [bytes(16, &[&write, b"data"]), bytes(1, &[b"name\0"]), bytes(36, &[&longs([20])])] {
            assert!(Request::new(&whole, true).is_ok());
            for len in 0..whole.len() {
                let expected = Malformed((len >= 16).then_some(22));
                assert_eq!(Request::new(&whole[..len], true), Err(expected), "{len} of {whole:?}");
                let mut short = whole[..len].to_vec();
                if len >= 4 {
                    short[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                    assert_eq!(Request::new(&short, true), Err(expected), "{len} of {whole:?}");
                }
            }
        }
        // A count that no request has room for.
        let many = bytes(42, &[&words([u32::MAX, 0]), &longs([7, 1])]);
        assert_eq!(Request::new(&many, true), Err(Malformed(Some(22))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(code in 0_u32..60, body: Vec<u8>, wrong in 0_u32..64, long: bool) {
            let mut bytes = bytes(code, &[&body]);
            let _ = Request::new(&bytes, long);
            let len = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
            bytes[..4].copy_from_slice(&(len ^ wrong).to_ne_bytes());
            let request = Request::new(&bytes, long);
            prop_assert!(wrong == 0 || request == Err(Malformed(Some(22))));
            let _ = Request::new(&body, long);
        }
    }
}
