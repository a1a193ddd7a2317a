//! Numbers of the NBD protocol and the layouts of its messages. All integers on the wire are big-endian.
//!
//! Deliberately absent: what the messages mean; that is `negotiate.rs` and `transmit.rs`.

/// First eight bytes of a server.
pub const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second eight bytes of a server, and first of each option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// First eight bytes of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First four bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First four bytes of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag, server and client: options have replies.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag, server and client: no 124 zeros after `NBD_OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Numbers of options.
pub mod option {
    /// Choose an export and go; the only option without a reply of its own.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and go.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use headers with 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    /// The option is not known or not supported.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option is known and not allowed here.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option's data are wrong, or it comes out of order.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server stops.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name that the server uses.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum and preferred block size, largest payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod export_flag {
    /// Always there.
    pub const HAS_FLAGS: u16 = 1;
    /// Nothing can be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is there.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag FUA is there.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is there.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE ZEROES is there.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag DF is there.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA hold for all connections to an export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is there.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag FAST ZERO is there.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Numbers of commands.
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range.
    pub const WRITE: u16 = 1;
    /// Go, without a reply.
    pub const DISC: u16 = 2;
    /// Make what was answered durable.
    pub const FLUSH: u16 = 3;
    /// Deallocate a range.
    pub const TRIM: u16 = 4;
    /// A hint that a range will be read.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Allocation of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    /// Answer when it is durable.
    pub const FUA: u16 = 1;
    /// Zeros have to stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail if it is not faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of a structured reply.
pub mod chunk {
    /// Nothing more follows.
    pub const NONE: u16 = 0;
    /// Content of a range.
    pub const OFFSET_DATA: u16 = 1;
    /// A range of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
    /// Flag of the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
}

/// The metadata context that says what is allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Our number for it.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// State of an extent: not allocated.
pub const STATE_HOLE: u32 = 1;
/// State of an extent: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// Longest string of the protocol, bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an option without its data.
pub const OPTION_BYTES: usize = 16;
/// Bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk of a structured reply without its payload.
pub const CHUNK_BYTES: usize = 20;

/// An error as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: the export cannot be written.
    Perm = 1,
    /// EIO: the device failed.
    Io = 5,
    /// ENOMEM: out of memory.
    NoMem = 12,
    /// EINVAL: the request is wrong.
    Inval = 22,
    /// ENOSPC: a write beyond the end, or no room.
    NoSpc = 28,
    /// EOVERFLOW: too large for one chunk.
    Overflow = 75,
    /// ENOTSUP: not supported, or not fast.
    NotSup = 95,
    /// ESHUTDOWN: the server stops.
    Shutdown = 108,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Has to be [`REQUEST_MAGIC`].
    pub magic: u32,
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u32,
}

impl RequestHeader {
    /// Takes the header apart.
    #[inline]
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Self {
        Self {
            magic: be32(bytes, 0),
            flags: be16(bytes, 4),
            command: be16(bytes, 6),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            length: be32(bytes, 24),
        }
    }

    /// Puts the header together, as a client does.
    pub fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&self.magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Two bytes at `at`; the caller knows that they are there.
#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes at `at`; the caller knows that they are there.
#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes at `at`; the caller knows that they are there.
#[inline]
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
