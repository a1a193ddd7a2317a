//! The default text output of blkparse: `  8,0    3        1     0.000000000   697  Q  WS 223490 + 8 [kjournald]`, that
//! is device, CPU, sequence number, seconds, process, action, RWBS and the details of the action.
//!
//! One request causes an event for each stage that it passes; exactly one stage is replayed. Queueing (Q) is a request
//! of the file system; issue (D) is a request that the driver sent after merging.
//!
//! RWBS is an optional F (flush before), the operation, and flags: F (FUA), A (readahead), S (synchronous), M
//! (metadata), U (atomic); blkparse before 2011 wrote B for a barrier, which is a flush before and FUA. A request
//! without a size only flushes. Readahead, synchronous and metadata are advice to the block layer, so they do not reach
//! the device.
//!
//! Skipped: events of other stages, messages (`m N`), pass-through commands, the lines before the events
//! (`Input file ... added`) and the statistics after them.

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{block_range, time};
use flashweir_sim::request::Kind;
use serde::{Deserialize, Serialize};

const COLUMNS: &str = "major,minor cpu sequence seconds pid action RWBS [sector + blocks] [process]";

/// The stage of a request that is replayed. Completion is not among them: it does not tell when the request started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Queued by the layer above.
    Q,
    /// Inserted into the scheduler.
    I,
    /// Issued to the driver.
    D,
}

impl Action {
    const ALL: [Self; 3] = [Self::Q, Self::I, Self::D];

    const fn letter(self) -> char {
        match self {
            Self::Q => 'Q',
            Self::I => 'I',
            Self::D => 'D',
        }
    }

    fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| text.len() == 1 && text.starts_with(action.letter()))
    }

    /// Returns the stage to replay of a trace that begins with `lines`: Q, or D if the trace was taken below the queue.
    pub(super) fn first_of(lines: &[&str]) -> Self {
        let has = |action: Self| {
            lines.iter().any(|line| line.split_ascii_whitespace().nth(5).and_then(Self::of) == Some(action))
        };
        if !has(Self::Q) && has(Self::D) { Self::D } else { Self::Q }
    }
}

/// Decoded RWBS of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Letters {
    preflush: bool,
    /// `None` for N: no operation that moves or discards data.
    kind: Option<Kind>,
    fua: bool,
}

/// Parses events of one stage.
pub(super) struct Blkparse {
    action: Action,
    seen: [u64; Action::ALL.len()],
    in_statistics: bool,
}

impl Blkparse {
    pub(super) fn new(action: Action) -> Self {
        Self { action, seen: [0; Action::ALL.len()], in_statistics: false }
    }

    /// Returns the problem of a trace without the chosen stage, with the stages that it has.
    pub(super) fn no_action(&self) -> Problem {
        let seen = Action::ALL.into_iter().zip(self.seen).filter(|(_, count)| *count > 0);
        Problem::NoAction {
            wanted: self.action.letter(),
            seen: seen.map(|(action, count)| (action.letter(), count)).collect(),
        }
    }

    pub(super) fn parse<'a>(&mut self, text: &'a str) -> Result<Option<Parsed<'a>>, Problem> {
        if self.in_statistics || (text.starts_with("Input file ") && text.ends_with(" added")) {
            return Ok(None);
        }
        if (text.starts_with("CPU") || text.starts_with("Total (")) && text.trim_end().ends_with("):") {
            self.in_statistics = true;
            return Ok(None);
        }
        let mut fields = text.split_ascii_whitespace();
        let mut head = [""; 7];
        for (found, slot) in head.iter_mut().enumerate() {
            *slot = fields.next().ok_or(Problem::Columns { found, columns: COLUMNS })?;
        }
        let [device, _cpu, _sequence, at, _pid, action, letters] = head;
        if !is_device(device) {
            return Err(Problem::field(device, "a device", "major,minor such as 8,0"));
        }
        let at_time = time(at, 1_000_000_000, "seconds such as 0.000000000")?;
        let Some(action) = Action::of(action) else {
            return Ok(None);
        };
        self.seen[action as usize] += 1;
        if action != self.action {
            return Ok(None);
        }
        let range = match (fields.next(), fields.next(), fields.next()) {
            (None, ..) => None,
            // Only a process, whose name may contain anything, or the time that the previous stage took.
            (Some(rest), ..) if rest.starts_with('[') || rest.starts_with('(') => None,
            (Some(lba), Some("+"), Some(size)) => Some((lba, size)),
            // A pass-through command: a number of bytes, and the command itself in hexadecimal if it was kept.
            (Some(_), Some(data), _) if data.starts_with('(') => return Ok(None),
            (Some(bytes), Some(rest), _) if bytes.parse::<u64>().is_ok() && rest.starts_with('[') => {
                return Ok(None);
            }
            (Some(rest), ..) => {
                return Err(Problem::field(rest, "a range", "sector + blocks, or the process in brackets"));
            }
        };
        let decoded = decode(letters)?;
        let Some((lba, size)) = range else {
            let record = Record::flush(at_time);
            let flushes = decoded.preflush || (decoded.fua && decoded.kind.is_some());
            return Ok(flushes.then_some(Parsed { device, record }));
        };
        let Some(kind) = decoded.kind else {
            return Err(Problem::field(letters, "an RWBS with a size", "R, W or D with flags"));
        };
        let (lba, blocks) = block_range(lba, size)?;
        let fua = decoded.fua && kind == Kind::Write;
        let record = Record { preflush: decoded.preflush, fua, ..Record::new(at_time, kind, lba, blocks) };
        Ok(Some(Parsed { device, record }))
    }
}

/// Whether the text has the form `major,minor`.
pub(super) fn is_device(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| digits(major) && digits(minor))
}

/// Decodes RWBS. `F` alone, `FF` and `FN` are pure flushes.
fn decode(text: &str) -> Result<Letters, Problem> {
    let bad = || Problem::field(text, "an RWBS", "[F] and one of R, W, D, N, then flags of F, A, S, M");
    let (preflush, rest) = match text.strip_prefix('F') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut letters = rest.chars();
    let kind = match letters.next() {
        Some('R') => Some(Kind::Read),
        Some('W') => Some(Kind::Write),
        Some('D') => Some(Kind::Trim),
        Some('N') => None,
        Some('F') if preflush => None,
        None if preflush => None,
        Some('Z') => return Err(Problem::field(text, "an RWBS", "a command that is not about zones")),
        _ => return Err(bad()),
    };
    let mut decoded = Letters { preflush, kind, fua: false };
    for letter in letters {
        match letter {
            'F' => decoded.fua = true,
            'B' => (decoded.preflush, decoded.fua) = (true, true),
            'A' | 'S' | 'M' | 'U' => {}
            // A secure erase is `DE`.
            'E' if kind == Some(Kind::Trim) => {}
            _ => return Err(bad()),
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_decoded() {
        let read = Some(Kind::Read);
        let write = Some(Kind::Write);
        for (text, preflush, kind, fua) in [
            ("R", false, read, false),
            ("RA", false, read, false),
            ("RSM", false, read, false),
            ("W", false, write, false),
            ("WS", false, write, false),
            ("WFS", false, write, true),
            ("FWS", true, write, false),
            ("FWFS", true, write, true),
            ("FWFSM", true, write, true),
            ("WB", true, write, true),
            ("WSU", false, write, false),
            ("D", false, Some(Kind::Trim), false),
            ("DE", false, Some(Kind::Trim), false),
            ("DS", false, Some(Kind::Trim), false),
            ("F", true, None, false),
            ("FF", true, None, false),
            ("FN", true, None, false),
            ("FFS", true, None, false),
            ("N", false, None, false),
        ] {
            assert_eq!(decode(text).unwrap(), Letters { preflush, kind, fua }, "{text}");
        }
        for text in ["", "X", "S", "WX", "WE", "ZA", "WW"] {
            assert!(decode(text).is_err(), "{text}");
        }
    }
}
