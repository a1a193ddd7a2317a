//! Addresses and sizes as newtypes. Only the device's geometry converts between physical addresses.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes of a sector, the addressing unit of the command set.
pub const LBA_BYTES: u64 = 512;

/// Logical block address of the command set, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lba(pub u64);

/// Logical page number: number of a mapping unit (4 KiB unless configured otherwise), the unit in which the device
/// maps, persists and is judged after a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lpn(pub u64);

/// Physical address of one mapping unit on the medium. Dense numbering by erase block:
/// `((block * pages_per_block) + page) * units_per_page + unit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ppa(pub u64);

/// An order domain: barriers delimit the epochs of one stream (contract §1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A segment of the append namespace (append-segments §1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// An address in the address space of the command that names it (commands §1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A sector of the page namespace.
    Lba(Lba),
    /// A sector of an append segment.
    Seg {
        /// The segment.
        segment: SegmentId,
        /// Offset within the segment, in sectors.
        offset: u32,
    },
    /// A physical unit of the open channel.
    Ppa(Ppa),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lba(lba) => write!(f, "sector {}", lba.0),
            Self::Seg { segment, offset } => write!(f, "sector {offset} of segment {}", segment.0),
            Self::Ppa(ppa) => write!(f, "physical unit {}", ppa.0),
        }
    }
}

/// A size in bytes. Parses `4KiB`, `32 MiB`, `1GiB`, `512`; prints the largest unit in which the value is exact.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Makes a size of `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// Makes a size of `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// Makes a size of `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift)
            .unwrap_or((0, "B"));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let per: u64 = match unit.trim() {
            "" | "B" => 1,
            "KiB" | "K" | "k" => 1 << 10,
            "MiB" | "M" | "m" => 1 << 20,
            "GiB" | "G" | "g" => 1 << 30,
            "TiB" | "T" | "t" => 1 << 40,
            "KB" | "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => {
                return Err(format!(
                    "`{text}` is not a size: expected a number with B, KiB, MiB, GiB or TiB, as in 4KiB"
                ));
            }
        };
        let number: u64 = number.replace('_', "").parse().map_err(|_| {
            format!("`{text}` is not a size: expected a whole number with a unit, as in 4KiB")
        })?;
        number.checked_mul(per).map(Self).ok_or_else(|| format!("`{text}` is not a size: larger than 16 EiB"))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"4KiB\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Bytes, E> {
                u64::try_from(n)
                    .map(Bytes)
                    .map_err(|_| E::custom(format!("`{n}` is not a size: it is negative")))
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Bytes, E> {
                Ok(Bytes(n))
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// Whether a count is 0: fields that are added to configurations are not written then, so that these stay what they were.
pub fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, n) in [("4KiB", 4096), ("512", 512), ("1 GiB", 1 << 30), ("333MB", 333_000_000), ("0", 0)]
        {
            let size: Bytes = text.parse().unwrap();
            assert_eq!(size.0, n, "{text}");
            assert_eq!(size.to_string().parse::<Bytes>().unwrap(), size);
        }
        for text in ["", "KiB", "4 XiB", "-3KiB", "4.5KiB", "99999999999TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
