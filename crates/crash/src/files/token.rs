//! A token: one line that replays a cut of a file system, with device, flush mode, base, operations, cut, image, and
//! cut of the recovery.
//!
//! `f2fs@rflush@14@creat:A/foo,fsync:A/foo@c31@00c0ffee00c0ffee@n12-0123456789abcdef`: the base of seed 14, a cut
//! before event 31 that left the image with this hash, and a cut of its recovery before event 12. A fault before any
//! cut has `c-`. `ext4` in place of `f2fs` is another file system; `f2fs-on-device` is F2FS on the simulated device,
//! where an event is a turn of the whole stack. The name of a planted bug may follow. Absent parts are left out.

use super::bug::{Bug, bug_named};
use super::case::{Case, Found};
use super::format::Format;
use super::on::On;
use super::ops::Ops;
use super::setup::FULL;
use super::volume::Base;
use flashweir_sim::stack::FlushMode;
use std::fmt;
use std::str::FromStr;

/// Everything that a replay needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// File system.
    pub format: Format,
    /// Device below the file system.
    pub on: On,
    /// Flush mode of the host.
    pub mode: FlushMode,
    /// Seed of the base.
    pub base: u64,
    /// Operations of the sequence.
    pub ops: Ops,
    /// Number of events before the cut; `None` for a fault before any.
    pub cut: Option<u32>,
    /// Hash of the image that it left.
    pub image: u64,
    /// A cut of the recovery: number of events before it, and hash of the image that it left.
    pub nested: Option<(u32, u64)>,
    /// The bug that was planted.
    pub planted: Option<Bug>,
}

/// Names of flush modes.
pub const MODES: [(FlushMode, &str); 3] =
    [(FlushMode::Flush, "flush"), (FlushMode::RangeFlush, "rflush"), (FlushMode::NoFlush, "noflush")];

/// Returns the name of a flush mode.
pub fn mode_name(mode: FlushMode) -> &'static str {
    MODES.iter().find(|(known, _)| *known == mode).map_or("", |(_, name)| name)
}

/// Returns the flush mode of a name.
pub fn mode_named(name: &str) -> Result<FlushMode, String> {
    let found = MODES.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode);
    found.ok_or_else(|| format!("`{name}` is no flush mode: expected flush, rflush or noflush"))
}

impl Token {
    /// Makes the token of a fault that was found in a case.
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
        let kinds = kinds.map(|((format, name), (on, _))| (format!("{name}{}", on.suffix()), *format, *on));
        let Some((_, format, on)) = kinds.clone().find(|(name, ..)| name == kind) else {
            let known: Vec<String> = kinds.map(|(name, ..)| name).collect();
            return Err(format!("`{kind}` is nothing that is tested: expected one of {}", known.join(", ")));
        };
        on.check(format).map_err(|why| format!("`{kind}`: {why}"))?;
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
        // Names of bugs begin with a letter, cuts of recoveries with `n` and a digit.
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
