//! Trace formats by name.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// MQSim: time in ns, sectors, 1 is a read.
    Mqsim,
    /// DiskSim: as MQSim, but the time is a decimal number of ms and the type a hexadecimal set of flags.
    Disksim,
    /// Microsoft Research Cambridge.
    Msr,
    /// Alibaba's block traces of 2020.
    Alibaba,
    /// Tencent's block storage traces of 2018.
    Tencent,
    /// The text output of blkparse.
    Blkparse,
    /// fio's log of requests, version 2 or 3.
    FioIolog,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 7] =
        [Self::Mqsim, Self::Disksim, Self::Msr, Self::Alibaba, Self::Tencent, Self::Blkparse, Self::FioIolog];

    /// Returns the name by which a format is chosen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mqsim => "mqsim",
            Self::Disksim => "disksim",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Blkparse => "blkparse",
            Self::FioIolog => "fio-iolog",
        }
    }

    /// Returns the names of all formats as part of a sentence.
    pub fn names() -> String {
        let names = Self::ALL.map(Self::name);
        let (last, first) = names.split_last().expect("there are formats");
        format!("{} or {last}", first.join(", "))
    }

    /// Returns the devices of a trace that are replayed by default.
    pub const fn devices(self) -> Devices {
        match self {
            Self::Mqsim => Devices::All,
            _ => Devices::First,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("`{text}` is not a trace format: expected {}", Self::names()))
    }
}

/// Selection of the devices that are replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Devices {
    /// The first device with a request. Others are counted and skipped.
    First,
    /// All devices, in one address space: correct only where the addresses formed one space before.
    All,
    /// The device with this name: a number, `usr_0` (msr), `8,0` (blkparse) or a file name (fio-iolog).
    Only(String),
}
