//! Errors with the names of POSIX, and the numbers that Linux gives them.

use std::fmt;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)+) => {
        /// Why an operation failed. The names are those of POSIX; what each means is its message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(clippy::upper_case_acronyms)]
        pub enum Errno { $(#[doc = $text] $name = $number),+ }

        impl Errno {
            /// Every error, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The symbol, such as `ENOENT`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// Description in words.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input or output error";
    ENXIO = 6, "no such device, or nothing at this offset";
    E2BIG = 7, "value too long";
    EBADF = 9, "the file is not open for this";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "in use";
    EEXIST = 17, "file exists";
    EXDEV = 18, "on different file systems";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files";
    ENOTTY = 25, "the file does not know this request";
    ETXTBSY = 26, "the file is being executed";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "not seekable";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "out of range";
    ENAMETOOLONG = 36, "name too long";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "not supported";
    ESTALE = 116, "the file is gone";
    EUCLEAN = 117, "the file system is damaged";
    EDQUOT = 122, "quota exceeded";
}

impl Errno {
    /// The number that Linux gives it, for FUSE and C callers.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.message())
    }
}
impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_distinct() {
        for pair in Errno::ALL.windows(2) {
            assert!(pair[0].number() < pair[1].number(), "{pair:?}");
        }
        assert_eq!(Errno::ENOSPC.to_string(), "ENOSPC: no space left");
        assert_eq!(Errno::ENOTEMPTY.number(), 39);
    }
}
