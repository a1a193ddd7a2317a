//! Offer of a server: exports, limits, TLS. Shared by all sessions.
//!
//! Invariants: names are unique and short enough for the wire; sizes are whole sectors. A [`Config`] that exists is
//! valid.

use super::wire::{STRING_BYTES_MAX, export_flag};
use flashweir_core::units::LBA_BYTES;
use std::fmt;

/// Smallest block that requests are aligned to, bytes: the device's LBA.
pub(super) const BLOCK_BYTES_MIN: u32 = LBA_BYTES as u32;
/// Largest payload of a read or write, bytes.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// One disk that clients can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name by which clients ask for it, up to 4,096 bytes.
    pub name: String,
    /// A text for people, up to 4,096 bytes; may be empty.
    pub description: String,
    /// Size in bytes; a multiple of 512.
    pub size: u64,
    /// Refuses what would change it.
    pub read_only: bool,
    /// Block size of the smallest write, bytes: a sector, or a mapping unit where parts of one cannot be written. A power of two, 512 to
    /// `preferred_block`.
    pub least_block: u32,
    /// Block size that clients should prefer, bytes: the device's mapping unit. A power of two, 512 to 32 MiB.
    pub preferred_block: u32,
}

impl Export {
    /// The transmission flags, with or without structured replies.
    pub(super) fn flags(&self, structured: bool) -> u16 {
        use export_flag::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
        flags |= if self.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
        if structured {
            flags |= SEND_DF;
        }
        flags
    }
}

/// Whether clients speak TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// `NBD_OPT_STARTTLS` is refused.
    #[default]
    Off,
    /// Clients choose.
    Offered,
    /// Every option but `NBD_OPT_STARTTLS` and `NBD_OPT_ABORT` is refused before TLS.
    Required,
}

/// Bounds on the server's memory for one connection. While one of these is reached, a session takes no further
/// request; so requests exceed them by one at most, and output by the answers of the requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait for their answer.
    pub requests: usize,
    /// Bytes that those requests brought or will be answered with.
    pub request_bytes: u64,
    /// Bytes of answers that the client has not taken yet.
    pub output_bytes: usize,
}

impl Default for Limits {
    /// 1,024 requests of 64 MiB, and 1 MiB of output.
    fn default() -> Self {
        Self { requests: 1024, request_bytes: 64 << 20, output_bytes: 1 << 20 }
    }
}

/// Offer of a server.
#[derive(Clone, Debug)]
pub struct Config {
    exports: Vec<Export>,
    tls: TlsMode,
    limits: Limits,
}

impl Config {
    /// A server of `exports`; the one with the empty name, or else the first one, is the default export.
    ///
    /// # Errors
    /// There is no export, a name is used twice, or a value is out of its range.
    pub fn new(exports: Vec<Export>, tls: TlsMode, limits: Limits) -> Result<Self, ConfigError> {
        if exports.is_empty() {
            return Err(ConfigError("a server needs at least one export".into()));
        }
        for (index, export) in exports.iter().enumerate() {
            let Export { name, description, size, least_block, preferred_block, .. } = export;
            let wrong = |what: String| Err(ConfigError(format!("export '{name:.80}': {what}")));
            for (key, text) in [("name", name), ("description", description)] {
                if text.len() > STRING_BYTES_MAX {
                    return wrong(format!(
                        "{key} has {} bytes; up to {STRING_BYTES_MAX} are possible",
                        text.len()
                    ));
                }
            }
            if exports[..index].iter().any(|other| other.name == *name) {
                return wrong("the name is used twice; each export needs its own".into());
            }
            if size % u64::from(BLOCK_BYTES_MIN) != 0 || *size > i64::MAX as u64 {
                return wrong(format!(
                    "size = {size}; it must be a multiple of {BLOCK_BYTES_MIN} below 2^63"
                ));
            }
            if !preferred_block.is_power_of_two()
                || !(BLOCK_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(preferred_block)
            {
                return wrong(format!(
                    "preferred_block = {preferred_block}; it must be a power of two from {BLOCK_BYTES_MIN} to \
                     {PAYLOAD_BYTES_MAX}"
                ));
            }
            if !least_block.is_power_of_two() || !(BLOCK_BYTES_MIN..=*preferred_block).contains(least_block) {
                return wrong(format!(
                    "least_block = {least_block}; it must be a power of two from {BLOCK_BYTES_MIN} to {preferred_block}"
                ));
            }
        }
        for (key, value) in [
            ("requests", limits.requests as u64),
            ("request_bytes", limits.request_bytes),
            ("output_bytes", limits.output_bytes as u64),
        ] {
            if value == 0 {
                return Err(ConfigError(format!("limit {key} = 0; it must be at least 1")));
            }
        }
        Ok(Self { exports, tls, limits })
    }

    /// The exports, in the order of their indices.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Whether clients speak TLS.
    pub fn tls(&self) -> TlsMode {
        self.tls
    }

    /// Bounds on the server's memory for one connection.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Index of the export of that name; names are bytes on the wire.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let found = self.exports.iter().position(|export| export.name.as_bytes() == name);
        if name.is_empty() { found.or(Some(0)) } else { found }
    }
}

/// Why a [`Config`] cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            size: 1 << 20,
            read_only: false,
            least_block: 512,
            preferred_block: 4096,
        }
    }

    fn error(exports: Vec<Export>) -> String {
        Config::new(exports, TlsMode::Off, Limits::default()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(error(vec![]), "a server needs at least one export");
        assert_eq!(
            error(vec![export("a"), export("a")]),
            "export 'a': the name is used twice; each export needs its own"
        );
        assert_eq!(
            error(vec![Export { size: 513, ..export("a") }]),
            "export 'a': size = 513; it must be a multiple of 512 below 2^63"
        );
        assert_eq!(
            error(vec![Export { preferred_block: 3000, ..export("a") }]),
            "export 'a': preferred_block = 3000; it must be a power of two from 512 to 33554432"
        );
        assert_eq!(
            error(vec![Export { least_block: 8192, ..export("a") }]),
            "export 'a': least_block = 8192; it must be a power of two from 512 to 4096"
        );
        assert_eq!(
            error(vec![Export { description: "d".repeat(4097), ..export("a") }]),
            "export 'a': description has 4097 bytes; up to 4096 are possible"
        );
        let limits = Limits { requests: 0, ..Limits::default() };
        let wrong = Config::new(vec![export("a")], TlsMode::Off, limits).unwrap_err();
        assert_eq!(wrong.to_string(), "limit requests = 0; it must be at least 1");
    }

    #[test]
    fn the_default_export_is_the_nameless_or_the_first() {
        let config = |names: &[&str]| {
            Config::new(names.iter().map(|name| export(name)).collect(), TlsMode::Off, Limits::default())
                .unwrap()
        };
        assert_eq!(config(&["a", "b"]).find(b""), Some(0));
        assert_eq!(config(&["a", ""]).find(b""), Some(1));
        assert_eq!(config(&["a", "b"]).find(b"b"), Some(1));
        assert_eq!(config(&["a", "b"]).find(b"c"), None);
    }
}
