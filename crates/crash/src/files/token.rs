//! The line that replays a cut of a file system: what it is on, flush mode, base, operations, cut, image, cut of the recovery.
//!
//! `f2fs@rflush@14@creat:A/foo,fsync:A/foo@c31@00c0ffee00c0ffee@n12-0123456789abcdef`: the base of seed 14, a cut before event
//! 31 that left the image with this hash, and a cut of its recovery before event 12. A fault before any cut has `c-`.
//! `ext4` in place of `f2fs` is another file system; `f2fs-on-device` is the same on the simulated device, where an event is a turn of the whole stack.
//! The name of a planted bug may follow. Parts that there are not are left out.

use super::explorer::{Case, Found};
use super::format::Format;
use super::ops::Ops;
use super::volume::{Base, FULL};
use flashweir_device::PlantedBug as DeviceBug;
use flashweir_fs::{ext4, f2fs};
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a file system is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// Any device that keeps the contract: after a cut, any state that it allows.
    #[default]
    Model,
    /// The same, whose answers come late and not in the order of the requests: several of them are under way.
    Late,
    /// Our simulated device, cut between and in its operations, and brought back by its own recovery.
    Device,
}

impl On {
    /// All, with their names and what the file system's name has behind it in a token.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Model, "model", ""),
        (Self::Late, "late", "-on-late"),
        (Self::Device, "device", "-on-device"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, _)| name)
    }

    fn suffix(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(.., suffix)| suffix)
    }
}

/// A bug that is planted somewhere below the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In F2FS.
    F2fs(f2fs::write::PlantedBug),
    /// In ext4.
    Ext4(ext4::PlantedBug),
    /// In the device.
    Device(DeviceBug),
}

/// Bugs of the device that break what F2FS relies on and nothing that a plain FLUSH gives. The others are found by the
/// laboratory of devices.
const DEVICE_BUGS: [DeviceBug; 2] = [DeviceBug::TagsReplaced, DeviceBug::EarlyRangeFlush];

impl Bug {
    /// All that a file system has to be tested with, its own first.
    pub fn all(format: Format) -> Vec<Self> {
        match format {
            Format::F2fs | Format::F2fsDual => {
                let own = f2fs::write::PlantedBug::ALL.into_iter().map(|(bug, _)| bug);
                let own = own.filter(|bug| bug.is_of(format.commit_mode())).map(Self::F2fs);
                let device = DEVICE_BUGS.into_iter().filter(|_| !format.is_dual()).map(Self::Device);
                own.chain(device).collect()
            }
            Format::Ext4 | Format::Ext4Journal | Format::Ext4Dual => {
                let own = ext4::PlantedBug::ALL.into_iter().map(|(bug, _)| bug);
                own.filter(|bug| bug.is_of(format.journaling(), format.commit_mode()))
                    .map(Self::Ext4)
                    .collect()
            }
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        fn of<T: PartialEq>(all: &[(T, &'static str)], bug: &T) -> &'static str {
            all.iter().find(|(known, _)| known == bug).map_or("", |(_, name)| name)
        }
        match self {
            Self::F2fs(bug) => of(&f2fs::write::PlantedBug::ALL, &bug),
            Self::Ext4(bug) => of(&ext4::PlantedBug::ALL, &bug),
            Self::Device(bug) => of(&DeviceBug::ALL, &bug),
        }
    }

    /// The one that is in the device.
    pub fn in_device(bug: Option<Self>) -> Option<DeviceBug> {
        match bug {
            Some(Self::Device(bug)) => Some(bug),
            _ => None,
        }
    }
}

/// Everything that a replay needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Which file system.
    pub format: Format,
    /// What the file system is on.
    pub on: On,
    /// What the host makes of flushes.
    pub mode: FlushMode,
    /// Seed of the base.
    pub base: u64,
    /// What is done.
    pub ops: Ops,
    /// Events before the cut; none for a fault before any.
    pub cut: Option<u32>,
    /// Hash of the image that it left.
    pub image: u64,
    /// The same of a cut of the recovery.
    pub nested: Option<(u32, u64)>,
    /// The bug that was planted.
    pub planted: Option<Bug>,
}

/// Names of flush modes.
pub const MODES: [(FlushMode, &str); 3] =
    [(FlushMode::Flush, "flush"), (FlushMode::RangeFlush, "rflush"), (FlushMode::NoFlush, "noflush")];

/// The name of a flush mode.
pub fn mode_name(mode: FlushMode) -> &'static str {
    MODES.iter().find(|(known, _)| *known == mode).map_or("", |(_, name)| name)
}

/// The flush mode of a name.
pub fn mode_named(name: &str) -> Result<FlushMode, String> {
    let found = MODES.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode);
    found.ok_or_else(|| format!("`{name}` is no flush mode: expected flush, rflush or noflush"))
}

/// The planted bug of a name.
pub fn bug_named(format: Format, name: &str) -> Result<Bug, String> {
    let all = Bug::all(format);
    all.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| {
        let known: Vec<&str> = all.into_iter().map(Bug::name).collect();
        format!("`{name}` is no planted bug of {}: expected one of {}", format.name(), known.join(", "))
    })
}

impl Token {
    /// Of a fault that was found in a case.
    pub fn of(case: &Case<'_>, found: &Found) -> Self {
        let Found { cut, image, nested, .. } = *found;
        let Case { on, mode, planted, .. } = *case;
        let Base { format, seed: base, .. } = *case.base;
        Self { format, on, mode, base, ops: case.ops.clone(), cut, image, nested, planted }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, full) = (self.base & !FULL, if self.base & FULL != 0 { "full-" } else { "" });
        write!(f, "{}{}@", self.format.name(), self.on.suffix())?;
        write!(f, "{}@{full}{seed}@{}@", mode_name(self.mode), self.ops)?;
        match self.cut {
            None => f.write_str("c-")?,
            Some(cut) => write!(f, "c{cut}@{:016x}", self.image)?,
        }
        self.nested.map_or(Ok(()), |(cut, image)| write!(f, "@n{cut}-{image:016x}"))?;
        self.planted.map_or(Ok(()), |bug| write!(f, "@{}", bug.name()))
    }
}

fn hash(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: expected the hash of an image, 16 hexadecimal digits");
    if text.len() != 16 {
        return Err(wrong());
    }
    u64::from_str_radix(text, 16).map_err(|_| wrong())
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}`: expected {what}"))
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.trim().split('@');
        let mut next = || {
            fields.next().ok_or_else(|| {
                format!("`{text}`: expected FORMAT@MODE@BASE@OPERATIONS@cCUT@IMAGE[@nCUT-IMAGE]")
            })
        };
        let kind = next()?;
        let kinds = Format::ALL.iter().flat_map(|format| On::ALL.iter().map(move |on| (format, on)));
        let kinds = kinds.map(|((format, name), (on, _, suffix))| (format!("{name}{suffix}"), *format, *on));
        let Some((_, format, on)) = kinds.clone().find(|(name, ..)| name == kind) else {
            let known: Vec<String> = kinds.map(|(name, ..)| name).collect();
            return Err(format!("`{kind}` is nothing that is tested: expected one of {}", known.join(", ")));
        };
        let (mode, base) = (mode_named(next()?)?, next()?);
        let (base, full) = base.strip_prefix("full-").map_or((base, 0), |seed| (seed, FULL));
        let base = number::<u64>(base, "the seed of a base")? | full;
        let (ops, cut) = (next()?.parse()?, next()?);
        let cut = cut.strip_prefix('c').ok_or_else(|| format!("`{cut}`: expected c and a number"))?;
        let mut token =
            Self { format, on, mode, base, ops, cut: None, image: 0, nested: None, planted: None };
        if cut != "-" {
            (token.cut, token.image) = (Some(number(cut, "a number of events")?), hash(next()?)?);
        }
        let mut rest = fields.peekable();
        // Bugs have names, and cuts of recoveries numbers.
        let is_nested = |text: &&str| {
            text.strip_prefix('n').is_some_and(|at| at.starts_with(|c: char| c.is_ascii_digit()))
        };
        if let Some(text) = rest.next_if(is_nested) {
            let (cut, image) = text[1..].split_once('-').unwrap_or((&text[1..], ""));
            token.nested = Some((number(cut, "a number of events")?, hash(image)?));
        }
        token.planted = rest.next().map(|name| bug_named(format, name)).transpose()?;
        match rest.next() {
            Some(more) => Err(format!("`{more}`: expected nothing more")),
            None => Ok(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_and_printed() {
        for text in [
            "f2fs@rflush@14@creat:A/foo,fsync:A/foo@c31@00c0ffee00c0ffee@n12-0123456789abcdef",
            "f2fs@flush@0@sync@c0@0000000000000000",
            "f2fs@flush@full-3@sync@c0@0000000000000000",
            "f2fs@noflush@7@@c-",
            "f2fs@rflush@7@sync@c-@no-inode",
            "f2fs-on-device@rflush@7@creat:foo,sync&,wait@c3@0000000000000001@tags-replaced",
            "f2fs@rflush@7@sync@c3@0000000000000001@n1-0000000000000000@early-reuse",
            "ext4@flush@3@sync@c-@no-revoke",
            "ext4-on-device@flush@3@sync@c-",
            "ext4-on-late@flush@3@write:foo:0+9,sync&,fsync:A@c7@0000000000000001@unordered-data",
        ] {
            assert_eq!(text.parse::<Token>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "",
            "xfs@flush@0@sync@c-",
            "ext4@flush@0@sync@c-@no-inode",
            "f2fs@lazy@0@sync@c-",
            "f2fs@flush@x@sync@c-",
            "f2fs@flush@0@sing@c-",
            "f2fs@flush@0@sync@1",
            "f2fs@flush@0@sync@c1@12",
            "f2fs@flush@0@sync@c1@000000000000000g",
            "f2fs@flush@0@sync@c1@0000000000000000@x",
            "f2fs@flush@0@sync@c1@0000000000000000@n1-0000000000000000@more",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
    }
}
