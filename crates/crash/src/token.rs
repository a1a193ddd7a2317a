//! A token: one line that replays a cut, with device, seed, boot, operations, cut, torn operations, nested cuts and
//! bug.
//!
//! `tiny-d1/17/2/0-3,7/c143/ad/2d+0f/early-flush`: device `tiny-d1`, seed 17, boot 2, operations 0 to 3 and 7 of its
//! history (`all` stands for every one), cut before event 143 with the first interrupted operation absent and the
//! second damaged, then recovery cut in its step 2 (damaged) and the next recovery in its step 0 (finished), on a
//! device with the planted bug `early-flush`. Empty lists are `-`; without a bug the last part is left out.

use super::bug::Bug;
use flashweir_device::Torn;
use std::fmt;
use std::str::FromStr;

/// Selection of operations of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// All operations.
    All,
    /// The operations with these numbers, in ascending order.
    Some(Vec<u32>),
}

/// A cut inside a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedCut {
    /// Step of the recovery that is in progress.
    pub step: u32,
    /// State in which that step is interrupted.
    pub torn: Torn,
}

/// Everything that a replay needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Name of the tiny device.
    pub device: String,
    /// Seed of the world.
    pub seed: u64,
    /// Number of power cycles before this boot.
    pub boot: u32,
    /// Operations of the last boot.
    pub ops: Chosen,
    /// Number of events handled before the power failed.
    pub cut: u32,
    /// State of each interrupted operation.
    pub torn: Vec<Torn>,
    /// Cuts of recoveries, one inside the other.
    pub nested: Vec<NestedCut>,
    /// The planted bug.
    pub planted: Option<Bug>,
}

fn letter(torn: Torn) -> char {
    match torn {
        Torn::Absent => 'a',
        Torn::Damaged => 'd',
        Torn::Done => 'f',
    }
}

fn torn(letter: char) -> Result<Torn, String> {
    match letter {
        'a' => Ok(Torn::Absent),
        'd' => Ok(Torn::Damaged),
        'f' => Ok(Torn::Done),
        _ => Err(format!("`{letter}`: expected a (absent), d (damaged) or f (finished)")),
    }
}

impl Chosen {
    /// The operations of a history that are selected.
    ///
    /// # Errors
    /// Names an operation that the history does not have.
    pub(crate) fn of<T: Copy>(&self, history: &[T]) -> Result<Vec<T>, String> {
        let Self::Some(list) = self else { return Ok(history.to_vec()) };
        let known = history.len();
        let find = |op: &u32| {
            history.get(*op as usize).copied().ok_or(format!("operation {op}: the history has {known}"))
        };
        list.iter().map(find).collect()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}/c{}/", self.device, self.seed, self.boot, self.ops, self.cut)?;
        let torn: String = self.torn.iter().map(|t| letter(*t)).collect();
        f.write_str(if torn.is_empty() { "-" } else { &torn })?;
        let nested: Vec<String> =
            self.nested.iter().map(|cut| format!("{}{}", cut.step, letter(cut.torn))).collect();
        write!(f, "/{}", if nested.is_empty() { "-".into() } else { nested.join("+") })?;
        match self.planted {
            None => Ok(()),
            Some(bug) => write!(f, "/{}", bug.name()),
        }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Some(ops) = self else { return f.write_str("all") };
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &op in ops {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == op => *last = op,
                _ => runs.push((op, op)),
            }
        }
        let text = |&(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let runs: Vec<String> = runs.iter().map(text).collect();
        f.write_str(if runs.is_empty() { "-".into() } else { runs.join(",") }.as_str())
    }
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}`: expected {what}"))
}

/// Maximum number of operations that a token may name; a history is never longer.
const OPS_MAX: u32 = 1 << 16;

impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::All),
            "-" => return Ok(Self::Some(Vec::new())),
            _ => {}
        }
        let mut ops: Vec<u32> = Vec::new();
        for run in text.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last): (u32, u32) =
                (number(first, "an operation's number")?, number(last, "an operation's number")?);
            if first > last || last >= OPS_MAX || ops.last().is_some_and(|before| *before >= first) {
                return Err(format!("`{run}`: expected ascending runs such as 0-3,7 below {OPS_MAX}"));
            }
            ops.extend(first..=last);
        }
        Ok(Self::Some(ops))
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.trim().split('/').collect();
        let (&[device, seed, boot, ops, cut, cells, nested], bug) = match fields.split_first_chunk::<7>() {
            Some((first, rest)) if rest.len() <= 1 => (first, rest.first()),
            _ => return Err(format!("`{text}`: expected device/seed/boot/ops/cCUT/torn/nested[/bug]")),
        };
        let cut = cut.strip_prefix('c').ok_or_else(|| format!("`{cut}`: expected c and a number"))?;
        let cells = if cells == "-" { "" } else { cells };
        let nested_cut = |text: &str| {
            let letter = text.chars().next_back().ok_or("expected nested cuts such as 2d+0f")?;
            let step = &text[..text.len() - letter.len_utf8()];
            Ok::<_, String>(NestedCut { step: number(step, "a step")?, torn: torn(letter)? })
        };
        Ok(Self {
            device: device.into(),
            seed: number(seed, "a seed")?,
            boot: number(boot, "a boot")?,
            ops: ops.parse()?,
            cut: number(cut, "a number of events")?,
            torn: cells.chars().map(torn).collect::<Result<_, _>>()?,
            nested: match nested {
                "-" => Vec::new(),
                cuts => cuts.split('+').map(nested_cut).collect::<Result<_, _>>()?,
            },
            planted: bug.map(|name| Bug::named(name)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_and_printed() {
        for text in [
            "tiny-d1/17/2/0-3,7/c143/ad/2d+0f/early-flush",
            "tiny-d2-mlc/0/0/all/c0/-/-",
            "tiny-d0/18446744073709551615/1/-/c9/f/0a",
        ] {
            assert_eq!(text.parse::<Token>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "",
            "a/1/2",
            "d/x/0/all/c0/-/-",
            "d/1/0/3-1/c0/-/-",
            "d/1/0/1,1/c0/-/-",
            "d/1/0/all/0/-/-",
            "d/1/0/all/c0/x/-",
            "d/1/0/all/c0/-/d",
            "d/1/0/all/c0/-/-/no-bug",
            "d/1/0/all/c0/-/-/lost-trim/x",
            "d/1/0/0-4000000000/c0/-/-",
            "d/1/0/all/c0/-/1é",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
    }
}
