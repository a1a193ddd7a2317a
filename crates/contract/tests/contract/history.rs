//! Raw histories: events as plain data, without any of the log's indices, and their recording in a log.

use flashweir_contract::{Content, Kind, Log, LogPos, Observed, OpIx, Selection, Submission};
use flashweir_core::command::{StreamId, Tag};
use flashweir_core::{CommandId, Lpn, Order, RandomStream};
use std::ops::Range;

/// One operation as the generator made it.
#[derive(Clone, Debug)]
pub(crate) struct RawOp {
    pub(crate) kind: Kind,
    pub(crate) fua: bool,
    pub(crate) atomic: bool,
    /// Stream, and whether the operation closes its epoch.
    pub(crate) stream: Option<(u16, bool)>,
    pub(crate) units: Vec<(u64, u64)>,
    /// Owner of the units, or the owner that a range flush selects; 0 is none.
    pub(crate) tag: u64,
    /// LPNs that a range flush selects.
    pub(crate) selected: Range<u64>,
}

/// An event of the operation of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Submit(usize),
    Accept(usize),
    Complete(usize),
    Fail(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) initial: Vec<u64>,
    pub(crate) ops: Vec<RawOp>,
    pub(crate) events: Vec<Event>,
}

/// Parameters of the generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) lpns: u64,
    pub(crate) ops: usize,
    pub(crate) units: usize,
    /// Number of nonzero values from which contents are drawn; 0 gives each unit its own content.
    pub(crate) values: u64,
}

impl History {
    pub(crate) fn random(random: &mut RandomStream, shape: Shape) -> Self {
        let initial = (0..shape.lpns)
            .map(|lpn| if shape.values == 0 { 1_000 + lpn } else { [0, 1, 9][random.below(3) as usize] })
            .collect();
        let mut history = Self { initial, ops: Vec::new(), events: Vec::new() };
        let mut units = 0;
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        // Enough draws for most operations to get through their three events.
        for _ in 0..shape.ops * 4 {
            match random.below(4) {
                0 | 1 if history.ops.len() < shape.ops => {
                    let number = history.ops.len();
                    let op = random_op(random, shape, &mut units);
                    history.events.push(Event::Submit(number));
                    let flushes = matches!(op.kind, Kind::Flush | Kind::RangeFlush);
                    if random.chance(0.7) && !flushes {
                        history.events.push(Event::Accept(number));
                        running.push(number);
                    } else if flushes {
                        running.push(number);
                    } else {
                        waiting.push(number);
                    }
                    history.ops.push(op);
                }
                2 if !waiting.is_empty() => {
                    let number = waiting.remove(random.below(waiting.len() as u64) as usize);
                    history.events.push(Event::Accept(number));
                    running.push(number);
                }
                3 if !running.is_empty() => {
                    let number = running.remove(random.below(running.len() as u64) as usize);
                    let failed = random.chance(0.08);
                    history.events.push(if failed { Event::Fail(number) } else { Event::Complete(number) });
                }
                _ => {}
            }
        }
        history
    }

    /// Returns the log of the history, as a driver would have recorded it.
    pub(crate) fn log(&self) -> Log {
        let mut log = Log::new();
        for (lpn, &content) in self.initial.iter().enumerate() {
            log.set_initial(Lpn(lpn as u64), Content(content));
        }
        let mut index = vec![OpIx(u32::MAX); self.ops.len()];
        for (at, event) in self.events.iter().enumerate() {
            match *event {
                Event::Submit(number) => {
                    let op = &self.ops[number];
                    let role = |closes| if closes { Order::Barrier } else { Order::Within };
                    index[number] = log.submit(Submission {
                        fua: op.fua,
                        atomic: op.atomic,
                        order: op.stream.map(|(stream, closes)| (StreamId(stream), role(closes))),
                        tags: [Tag(0), Tag(if op.kind == Kind::RangeFlush { 0 } else { op.tag })],
                        ..Submission::new(CommandId(number as u64), op.kind)
                    });
                    if op.kind == Kind::RangeFlush {
                        let tags = if op.tag == 0 { Vec::new() } else { vec![Tag(op.tag)] };
                        log.select(index[number], Selection { units: vec![op.selected.clone()], tags });
                    }
                }
                Event::Accept(number) => {
                    let units = self.ops[number].units.iter().map(|&(lpn, c)| (Lpn(lpn), Content(c)));
                    log.accept(index[number], at as u64, units);
                }
                Event::Complete(number) => log.complete(index[number], true),
                Event::Fail(number) => log.complete(index[number], false),
            }
        }
        assert_eq!(log.position(), LogPos(self.events.len() as u32));
        log
    }

    /// Returns the contents that could be observed on `lpn`: every content it ever had, zeros, and one that was never
    /// written.
    pub(crate) fn candidates(&self, lpn: u64) -> Vec<Observed> {
        let mut contents = vec![0, self.initial[lpn as usize], 77];
        for op in &self.ops {
            contents.extend(op.units.iter().filter(|(at, _)| *at == lpn).map(|(_, content)| *content));
        }
        contents.sort_unstable();
        contents.dedup();
        let mut observed: Vec<_> = contents.into_iter().map(|c| Observed::Content(Content(c))).collect();
        observed.push(Observed::Unreadable);
        observed
    }

    /// Returns every combination of candidates, one observation per LPN.
    pub(crate) fn observations(&self) -> Vec<Vec<Observed>> {
        let mut all = vec![Vec::new()];
        for lpn in 0..self.initial.len() as u64 {
            let candidates = self.candidates(lpn);
            let extend = |prefix: &Vec<Observed>| {
                let prefix = prefix.clone();
                candidates.iter().map(move |&c| [&prefix[..], &[c]].concat()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(extend).collect();
        }
        all
    }
}

fn random_op(random: &mut RandomStream, shape: Shape, units: &mut usize) -> RawOp {
    let kinds = [Kind::Write, Kind::Write, Kind::Write, Kind::WriteZeroes, Kind::Trim, Kind::Share];
    let mut kind = match random.below(10) {
        0 => Kind::Flush,
        1 => Kind::RangeFlush,
        2 => Kind::Barrier,
        _ => kinds[random.below(6) as usize],
    };
    if *units >= shape.units && !matches!(kind, Kind::Flush | Kind::RangeFlush | Kind::Barrier) {
        kind = Kind::Flush;
    }
    let tag = random.below(3);
    let mut op =
        RawOp { kind, fua: false, atomic: false, stream: None, units: Vec::new(), tag, selected: 0..0 };
    if kind == Kind::RangeFlush && random.chance(0.6) {
        let first = random.below(shape.lpns);
        op.selected = first..first + 1 + random.below(shape.lpns - first);
    }
    if matches!(kind, Kind::Flush | Kind::RangeFlush) {
        return op;
    }
    if random.chance(0.6) || kind == Kind::Barrier {
        let stream = random.below(2) as u16;
        op.stream = Some((stream, kind == Kind::Barrier || random.chance(0.4)));
    }
    if kind == Kind::Barrier {
        return op;
    }
    op.fua = random.chance(0.15);
    op.atomic = kind == Kind::Share || random.chance(0.15);
    let room = (shape.units - *units).min(3) as u64;
    let len = (random.below(room) + 1).min(shape.lpns);
    let first = random.below(shape.lpns - len + 1);
    for lpn in first..first + len {
        *units += 1;
        let content = match kind {
            Kind::WriteZeroes | Kind::Trim => 0,
            _ if shape.values == 0 => *units as u64,
            _ => random.below(shape.values + 1),
        };
        op.units.push((lpn, content));
    }
    op
}
