//! Programs: short histories that a test, the model device or the crash laboratory runs on a device.
//!
//! A program names units by number, so that the driver chooses where on the device they lie, and contents by [`Value`],
//! so that the driver chooses the initial content of the media.
//!
//! Notation, one statement per operation, separated by `;`. Units are the letters `a` to `z`.
//!
//! | statement | meaning |
//! |---|---|
//! | `W x=1` | write value 1 to unit x and wait for the completion |
//! | `W xy=1` | one command over the neighbours x and y |
//! | `W x=1 &` | submit without waiting |
//! | `W! x=1` | with FUA |
//! | `W@1 x=2`, `W@1\| x=2` | in stream 1; the second form closes its epoch as well |
//! | `Z x`, `T x` | WRITE_ZEROES, TRIM |
//! | `W#7 x=1`, `T#7 x` | owned by tag 7 |
//! | `F`, `B@1` | FLUSH, BARRIER of stream 1 |
//! | `R xy`, `R#7`, `R#7 x` | RFLUSH of units, of what tag 7 owns, of both |
//! | `wait 2` | wait for the second operation |
//! | `cut` | the power fails; implied at the end |
//!
//! In states `x=-` is the initial content and `x=0` zeros.

use crate::log::{Content, Kind};
use flashweir_core::command::{RangeFlush, StreamId, Tag, pattern};
use flashweir_core::{Command, Data, Lba, Lpn, Op, Order};
use std::fmt;

/// The content of a unit, as a program names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// Content of the media before the program.
    Initial,
    /// Zeros.
    Zero,
    /// The pattern with this number.
    Number(u32),
}

impl Value {
    /// Returns the identity of this content on `lpn`, whose initial content was `initial`.
    pub fn content(self, lpn: Lpn, initial: Content) -> Content {
        match self {
            Self::Initial => initial,
            Self::Zero => Content::ZERO,
            Self::Number(number) => Content(pattern(u64::from(number), lpn)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initial => f.write_str("-"),
            Self::Zero => f.write_str("0"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Operation; never `Share`.
    pub kind: Kind,
    /// First unit; 0 for an operation without units.
    pub unit: u32,
    /// Number of units.
    pub units: u32,
    /// Value that a write writes to each unit.
    pub value: Value,
    /// Force unit access.
    pub fua: bool,
    /// Order domain and role in its epoch.
    pub order: Option<(StreamId, Order)>,
    /// Owner of a write or a deallocation, or the owner that a range flush selects; 0 is none.
    pub tag: Tag,
}

impl Request {
    /// Makes the command with id `id`, for mapping units of `unit_blocks` sectors; unit 0 of the program lies at
    /// `base`.
    pub fn command(&self, id: u64, base: Lpn, unit_blocks: u32) -> Command {
        let lba = Lba((base.0 + u64::from(self.unit)) * u64::from(unit_blocks));
        let blocks = self.units * unit_blocks;
        let op = match self.kind {
            Kind::Write => {
                let data = match self.value {
                    Value::Number(number) => Data::Pattern(u64::from(number)),
                    Value::Initial | Value::Zero => Data::Zero,
                };
                Op::Write { lba, blocks, data }
            }
            Kind::WriteZeroes => Op::WriteZeroes { lba, blocks },
            Kind::Trim => Op::Trim { lba, blocks },
            Kind::Flush => Op::Flush,
            Kind::RangeFlush => Op::RFlush(Box::new(RangeFlush {
                ranges: if blocks > 0 { vec![(lba, blocks)] } else { Vec::new() },
                tags: if self.tag.0 != 0 { vec![self.tag] } else { Vec::new() },
                segments: Vec::new(),
            })),
            Kind::Barrier => Op::Barrier,
            Kind::Share => panic!("a program has no SHARE"),
        };
        let mut command = Command::new(id, op);
        command.fua = self.fua;
        command.stream = self.order.map(|(stream, _)| stream);
        command.order = self.order.map(|(_, order)| order);
        if self.kind != Kind::RangeFlush {
            command.tags[0] = self.tag;
        }
        command
    }
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit an operation under a number that is unique in the program.
    Submit(u32, Request),
    /// Wait until the operation of this number has completed; without such an operation, do nothing.
    WaitFor(u32),
    /// The power fails.
    Cut,
}

/// A device or model that can run a program.
pub trait Target {
    /// Submits the operation.
    fn submit(&mut self, number: u32, request: &Request);
    /// Advances until the operation has completed; does nothing if it was never submitted.
    fn wait_for(&mut self, number: u32);
    /// Fails the power.
    fn cut(&mut self);
}

/// Runs the steps in order.
pub fn run(steps: &[Step], target: &mut impl Target) {
    for step in steps {
        match step {
            Step::Submit(number, request) => target.submit(*number, request),
            Step::WaitFor(number) => target.wait_for(*number),
            Step::Cut => target.cut(),
        }
    }
}

/// Parses the notation of this module.
pub fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut number = 0;
    for statement in text.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        let bad = |what: &str| format!("`{statement}`: {what}");
        if let Some(which) = statement.strip_prefix("wait ") {
            steps.push(Step::WaitFor(which.trim().parse().map_err(|_| bad("expected `wait N`"))?));
        } else if statement == "cut" {
            steps.push(Step::Cut);
        } else {
            number += 1;
            let (body, waits) = match statement.strip_suffix('&') {
                Some(body) => (body.trim(), false),
                None => (statement, true),
            };
            steps.push(Step::Submit(number, parse_request(body).map_err(|what| bad(&what))?));
            if waits {
                steps.push(Step::WaitFor(number));
            }
        }
    }
    if steps.last() != Some(&Step::Cut) {
        steps.push(Step::Cut);
    }
    Ok(steps)
}

fn parse_request(body: &str) -> Result<Request, String> {
    let (verb, operand) = body.split_once(' ').unwrap_or((body, ""));
    let kind = match verb.chars().next() {
        Some('W') => Kind::Write,
        Some('Z') => Kind::WriteZeroes,
        Some('T') => Kind::Trim,
        Some('F') => Kind::Flush,
        Some('R') => Kind::RangeFlush,
        Some('B') => Kind::Barrier,
        _ => return Err("expected W, Z, T, F, R or B".into()),
    };
    let modifiers = &verb[1..];
    let (modifiers, tag) = match modifiers.split_once('#') {
        None => (modifiers, Tag(0)),
        Some((modifiers, tag)) => match tag.parse() {
            Ok(tag) if tag > 0 => (modifiers, Tag(tag)),
            _ => return Err("expected a tag above 0 after `#`".into()),
        },
    };
    let (modifiers, fua) = match modifiers.strip_prefix('!') {
        Some(rest) => (rest, true),
        None => (modifiers, false),
    };
    let order = match modifiers.strip_prefix('@') {
        None if modifiers.is_empty() => None,
        None => return Err("expected `!` or `@` after the verb".into()),
        Some(stream) => {
            let (stream, barrier) = match stream.strip_suffix('|') {
                Some(stream) => (stream, true),
                None => (stream, kind == Kind::Barrier),
            };
            let stream = stream.parse().map_err(|_| "expected a stream number after `@`")?;
            Some((StreamId(stream), if barrier { Order::Barrier } else { Order::Within }))
        }
    };
    if kind == Kind::Barrier && order.is_none() {
        return Err("expected a stream, as in `B@1`".into());
    }
    let (names, value) = match (kind, operand.trim().split_once('=')) {
        (Kind::Write, Some((names, value))) => (names, parse_value(value)?),
        (Kind::Write, None) => return Err("expected a value, as in `W x=1`".into()),
        (_, Some(_)) => return Err("only a write has a value".into()),
        (_, None) => (operand.trim(), Value::Zero),
    };
    let has_units = match kind {
        Kind::Flush | Kind::Barrier => Some(false),
        Kind::RangeFlush if tag.0 != 0 => None,
        _ => Some(true),
    };
    if has_units.is_some_and(|has_units| has_units == names.is_empty()) {
        return Err("expected units exactly for W, Z, T, and for R without a tag".into());
    }
    let units = names.chars().map(parse_unit).collect::<Result<Vec<_>, _>>()?;
    if units.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        return Err("expected neighbours in order, as in `xy`".into());
    }
    let unit = units.first().copied().unwrap_or(0);
    Ok(Request { kind, unit, units: units.len() as u32, value, fua, order, tag })
}

fn parse_unit(name: char) -> Result<u32, String> {
    match name {
        'a'..='z' => Ok((name as u32 + 26 - 'x' as u32) % 26),
        _ => Err(format!("`{name}` is not a unit: expected a to z")),
    }
}

/// Returns the name of unit `unit`: x, y, z, a, b and so on.
pub fn unit_name(unit: u32) -> char {
    char::from(b'a' + ((unit + u32::from(b'x' - b'a')) % 26) as u8)
}

pub(crate) fn parse_value(text: &str) -> Result<Value, String> {
    match text.trim() {
        "-" => Ok(Value::Initial),
        "0" => Ok(Value::Zero),
        number => number.parse().map(Value::Number).map_err(|_| format!("`{number}` is not a value")),
    }
}

/// Parses states such as `x=1 y=-, x=0 y=2`; units that are not named keep their initial content.
pub(crate) fn parse_states(text: &str, units: usize) -> Result<Vec<Vec<Value>>, String> {
    let parse_one = |state: &str| {
        let mut values = vec![Value::Initial; units];
        for item in state.split_whitespace() {
            let (names, value) = item.split_once('=').ok_or_else(|| format!("`{item}`: expected x=1"))?;
            for name in names.chars() {
                let unit = parse_unit(name)? as usize;
                *values.get_mut(unit).ok_or_else(|| format!("`{name}` is not a unit of the program"))? =
                    parse_value(value)?;
            }
        }
        Ok(values)
    };
    text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(parse_one).collect()
}

/// Returns the number of units that the steps touch, counted from unit 0.
pub fn unit_count(steps: &[Step]) -> usize {
    let end = |step: &Step| match step {
        Step::Submit(_, request) => request.unit + request.units,
        Step::WaitFor(_) | Step::Cut => 0,
    };
    steps.iter().map(end).max().unwrap_or(0) as usize
}

/// Writes the notation of one step; the inverse of [`parse`] except for the numbers of operations.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submit(number, request) => write!(f, "{number}: {request} &"),
            Self::WaitFor(number) => write!(f, "wait {number}"),
            Self::Cut => f.write_str("cut"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            Kind::Write => 'W',
            Kind::WriteZeroes => 'Z',
            Kind::Trim => 'T',
            Kind::Share => 'S',
            Kind::Flush => 'F',
            Kind::RangeFlush => 'R',
            Kind::Barrier => 'B',
        };
        write!(f, "{verb}{}", if self.fua { "!" } else { "" })?;
        if let Some((stream, order)) = self.order {
            let closes = order == Order::Barrier && self.kind != Kind::Barrier;
            write!(f, "@{}{}", stream.0, if closes { "|" } else { "" })?;
        }
        if self.tag.0 != 0 {
            write!(f, "#{}", self.tag.0)?;
        }
        if self.units > 0 {
            f.write_str(" ")?;
            (self.unit..self.unit + self.units).try_for_each(|unit| write!(f, "{}", unit_name(unit)))?;
        }
        if self.kind == Kind::Write {
            write!(f, "={}", self.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_is_read_and_printed() {
        let text =
            "W x=1; W!@3| xyz=2 &; T y; Z za; F &; B@1; wait 2; W#7 x=1 &; R#7 &; R xy &; R#2 z &; cut";
        let steps = parse(text).unwrap();
        let printed: Vec<String> = steps.iter().map(Step::to_string).collect();
        let expected = [
            "1: W x=1 &",
            "wait 1",
            "2: W!@3| xyz=2 &",
            "3: T y &",
            "wait 3",
            "4: Z za &",
            "wait 4",
            "5: F &",
            "6: B@1 &",
            "wait 6",
            "wait 2",
            "7: W#7 x=1 &",
            "8: R#7 &",
            "9: R xy &",
            "10: R#2 z &",
            "cut",
        ];
        assert_eq!(printed, expected);
        assert_eq!(unit_count(&steps), 4);
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "X x", "W x", "W xz=1", "F x", "T x=1", "B", "W? x=1", "W X=1", "wait x", "W x=q", "T", "R",
            "R# x", "W#0 x=1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
