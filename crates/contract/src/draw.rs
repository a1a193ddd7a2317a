//! Draws a history as text, for a person who has to understand a violation.
//!
//! The drawing has one row per operation and one column per relevant LPN; below it, the violated promise is explained
//! in words.

use crate::log::{Content, Kind, Log, LogPos, NONE, OpIx, Unit, UnitIx};
use crate::oracle::{Observed, Promise, Promises, Violation};
use crate::policy::Policy;
use flashweir_core::{Lpn, Order};
use std::fmt::Write;

/// Maximum number of columns; the violation's own LPN is always among them.
const COLUMNS_MAX: usize = 8;
/// Maximum number of rows; the latest operations are shown.
const ROWS_MAX: usize = 64;

/// Draws the history up to the cut with the observations after it. `~` marks a range that begins or ends inside a unit,
/// `t` the owner of a unit or the selection of a range flush, `s` and `e` stream and epoch, and `|` a barrier. In a
/// cell, `shown` is a unit whose content is read, `over` one that a newer shown unit hides, `open` one that is absent
/// and may be, and `LOST` one that is promised and neither read nor hidden.
pub fn draw(
    log: &Log,
    upto: LogPos,
    policy: Policy,
    observed: impl Fn(Lpn) -> Observed,
    violation: Option<&Violation>,
) -> String {
    let mut out = String::new();
    let columns = columns(log, &observed, violation);
    let promises = Promises::new(log, upto, policy.durability);
    let rows: Vec<usize> = (0..log.ops().len()).filter(|&op| log.ops()[op].submitted_at.0 < upto.0).collect();
    let skipped = rows.len().saturating_sub(ROWS_MAX);
    let _ = writeln!(out, "cut at event {} of {}", upto.0, log.position().0);
    if skipped > 0 {
        let _ = writeln!(out, "({skipped} earlier operations are not drawn)");
    }
    let rows: Vec<(OpIx, String)> = rows
        .into_iter()
        .skip(skipped)
        .map(|op| OpIx(op as u32))
        .map(|op| (op, describe(log, upto, op)))
        .collect();
    let width = rows.iter().map(|(_, what)| what.len()).fold(22, usize::max);
    let _ = write!(
        out,
        "{:>5} {:>6} {:<width$} {:>9} {:<12}",
        "op", "seq", "command", "completed", "promised by"
    );
    for lpn in &columns {
        let _ = write!(out, " {:>6}", lpn.0);
    }
    out.push('\n');
    for (op, what) in rows {
        let _ = write!(out, "{:>5} ", format!("#{}", op.0));
        draw_row(&mut out, log, upto, (op, &format!("{what:<width$}")), &promises, &columns, &observed);
    }
    let _ = write!(out, "{:>1$}", "before the first:", width + 36);
    for lpn in &columns {
        let cell = if observed(*lpn) == Observed::Content(log.initial(*lpn)) { "shown" } else { "-" };
        let _ = write!(out, " {cell:>6}");
    }
    out.push('\n');
    match violation {
        None => out.push_str("legal\n"),
        Some(violation) => {
            let _ = writeln!(out, "VIOLATION: {}", violation.explain(log, &observed));
        }
    }
    out
}

fn draw_row(
    out: &mut String,
    log: &Log,
    upto: LogPos,
    (op, what): (OpIx, &str),
    promises: &Promises,
    columns: &[Lpn],
    observed: &impl Fn(Lpn) -> Observed,
) {
    let operation = log.op(op);
    let units: Vec<(usize, &Unit)> =
        log.units_before(upto).iter().enumerate().filter(|(_, unit)| unit.op == op).collect();
    let seq = units.first().map_or("-".into(), |(_, unit)| unit.seq.to_string());
    let completed = match operation.completed().filter(|(at, _)| at.0 < upto.0) {
        None => "-".into(),
        Some((at, true)) => format!("at {}", at.0),
        Some((at, false)) => format!("FAIL {}", at.0),
    };
    let promise = units.iter().find_map(|(_, unit)| promises.of(log, unit));
    let by = match promise {
        None => "-".into(),
        Some(Promise::Completion) => "completion".into(),
        Some(Promise::Fua) => "FUA".into(),
        Some(Promise::Flush(flush)) => format!("FLUSH #{}", flush.0),
        Some(Promise::RangeFlush(flush)) => format!("RFLUSH #{}", flush.0),
    };
    let _ = write!(out, "{seq:>6} {what} {completed:>9} {by:<12}");
    for lpn in columns {
        let cell = units.iter().find(|(_, unit)| unit.lpn == *lpn).map_or(".", |(index, unit)| {
            let seen = observed(*lpn);
            let hidden = |newer: &Unit| newer.lpn == *lpn && Observed::Content(newer.content) == seen;
            if seen == Observed::Content(unit.content) {
                "shown"
            } else if log.units_before(upto)[index + 1..].iter().any(hidden) {
                "over"
            } else if promises.of(log, unit).is_some() {
                "LOST"
            } else {
                "open"
            }
        });
        let _ = write!(out, " {cell:>6}");
    }
    out.push('\n');
}

fn describe(log: &Log, upto: LogPos, op: OpIx) -> String {
    let submission = &log.op(op).submission;
    let verb = match submission.kind {
        Kind::Write => "write",
        Kind::WriteZeroes => "zeroes",
        Kind::Trim => "trim",
        Kind::Share => "share",
        Kind::Flush => "FLUSH",
        Kind::RangeFlush => "RFLUSH",
        Kind::Barrier => "barrier",
    };
    let mut text = String::from(verb);
    let mut units = log.units_before(upto).iter().filter(|unit| unit.op == op);
    let first = units.next();
    if let Some(first) = first {
        let last = units.next_back().unwrap_or(first);
        let [begins, ends] = submission.partial.map(|inside| if inside { "~" } else { "" });
        let _ = match (first.lpn, last.lpn) {
            (from, to) if from == to => write!(text, " {begins}{}{ends}", from.0),
            (from, to) => write!(text, " {begins}{}..{}{ends}", from.0, to.0),
        };
    }
    let selection = log.selection(op);
    for units in selection.iter().flat_map(|selection| &selection.units) {
        let _ = match units.end - units.start {
            1 => write!(text, " {}", units.start),
            _ => write!(text, " {}..{}", units.start, units.end - 1),
        };
    }
    let selected = selection.iter().flat_map(|selection| &selection.tags);
    let tags: Vec<String> =
        selected.chain(&submission.tags).filter(|tag| tag.0 != 0).map(|tag| tag.0.to_string()).collect();
    if !tags.is_empty() {
        let _ = write!(text, " t{}", tags.join(","));
    }
    if submission.fua {
        text.push_str(" FUA");
    }
    if let Some((stream, order)) = submission.order {
        let _ = write!(text, " s{}", stream.0);
        if let Some(unit) = first {
            let _ = write!(text, "e{}", unit.epoch);
        }
        text.push_str(if order == Order::Barrier { "|" } else { "" });
    }
    text
}

/// Returns the LPNs of the violation, then the most recently touched ones.
fn columns(log: &Log, observed: &impl Fn(Lpn) -> Observed, violation: Option<&Violation>) -> Vec<Lpn> {
    let mut columns: Vec<Lpn> = violation.map_or_else(Vec::new, |violation| violation.lpns(log));
    let suspicious = |lpn: &Lpn| observed(*lpn) == Observed::Unreadable;
    let mut touched: Vec<_> = log.places.iter().filter(|p| p.newest != NONE).collect();
    touched.sort_by_key(|place| std::cmp::Reverse(place.newest));
    let rest = touched.iter().map(|place| place.lpn);
    for lpn in rest.clone().filter(suspicious).chain(rest.clone()) {
        if columns.len() < COLUMNS_MAX && !columns.contains(&lpn) {
            columns.push(lpn);
        }
    }
    columns.sort();
    columns.dedup();
    columns
}

impl Violation {
    /// Returns the LPNs involved in the violation.
    pub fn lpns(&self, log: &Log) -> Vec<Lpn> {
        match *self {
            Self::Unreadable { lpn } | Self::Impossible { lpn, .. } => vec![lpn],
            Self::LostPromise { unit, missing, .. } => vec![log.unit(unit).lpn, log.unit(missing).lpn],
            Self::BrokenOrder { lpn, missing, .. } => vec![lpn, log.unit(missing).lpn],
        }
    }

    /// Explains the violation in words, with the operations involved.
    pub fn explain(&self, log: &Log, observed: impl Fn(Lpn) -> Observed) -> String {
        let name = |unit: UnitIx| {
            let unit = log.unit(unit);
            let id = log.op(unit.op).submission.id.0;
            format!("unit {} of operation #{} (host id {id}, seq {})", unit.lpn.0, unit.op.0, unit.seq)
        };
        let reads = |lpn: Lpn| match observed(lpn) {
            Observed::Unreadable => format!("unit {} cannot be read", lpn.0),
            Observed::Content(content) => format!("unit {} reads as {}", lpn.0, origin(log, lpn, content)),
        };
        match *self {
            Self::Unreadable { lpn } => {
                format!("{}; every unit has a durable version", reads(lpn))
            }
            Self::Impossible { lpn, .. } => {
                format!("{}, which was neither there before nor accepted", reads(lpn))
            }
            Self::LostPromise { unit, promise, missing, .. } => {
                let by = match promise {
                    Promise::Completion => "by its completion".into(),
                    Promise::Fua => "by its completion with FUA".into(),
                    Promise::Flush(flush) => format!("by FLUSH #{}", flush.0),
                    Promise::RangeFlush(flush) => format!("by RFLUSH #{}", flush.0),
                };
                let lost = format!("{} was promised {by}", name(unit));
                if missing == unit {
                    format!("{lost}, but {}", reads(log.unit(unit).lpn))
                } else {
                    let missing_lpn = log.unit(missing).lpn;
                    format!("{lost} and needs {}, but {}", name(missing), reads(missing_lpn))
                }
            }
            Self::BrokenOrder { seen, missing, torn, .. } => {
                let why = if torn { "persists only together with" } else { "comes after the epoch of" };
                let missing_lpn = log.unit(missing).lpn;
                format!("{} is seen and {why} {}, but {}", name(seen), name(missing), reads(missing_lpn))
            }
        }
    }
}

/// Describes where a content comes from.
fn origin(log: &Log, lpn: Lpn, content: Content) -> String {
    let newest = log.units_before(log.position()).iter().rfind(|u| u.lpn == lpn && u.content == content);
    match newest {
        Some(unit) => format!("operation #{} left it", unit.op.0),
        None if content == log.initial(lpn) => "it did before the first operation".into(),
        None if content == Content::ZERO => "zeros".into(),
        None => format!("{:#018x}", content.0),
    }
}
