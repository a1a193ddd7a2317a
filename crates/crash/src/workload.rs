//! Random histories for tiny devices, with hot spots so that versions pile up, every kind of command, partial units,
//! and several commands in flight.
//!
//! Invariant: a history depends only on seed, boot and device, and a sublist of it is a history.

use flashweir_core::command::{Handle, RangeFlush, SharePair, StreamId, Tag};
use flashweir_core::random::RandomStream;
use flashweir_core::{Command, Data, Lba, Op, Order};
use flashweir_device::Geometry;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Write a pattern.
    Write,
    /// WRITE ZEROES.
    Zeroes,
    /// TRIM.
    Trim,
    /// FLUSH.
    Flush,
    /// RFLUSH of the range, of the tags, or of both.
    RangeFlush,
    /// A zero-length barrier.
    Barrier,
    /// SHARE of pairs.
    Share,
    /// READ; checked against the model.
    Read,
}

/// One operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOp {
    /// Kind of the operation.
    pub verb: Verb,
    /// First sector of 512 bytes.
    pub lba: u64,
    /// Number of sectors.
    pub blocks: u32,
    /// Force unit access.
    pub fua: bool,
    /// Number of the pattern that a write writes; unique in the world.
    pub pattern: u64,
    /// Think time of the host before the submission, in nanoseconds.
    pub delay_ns: u32,
    /// Owners of its units, or the owners that a range flush selects; 0 is none.
    pub tags: [u64; 2],
    /// Its stream and its role in the open epoch.
    pub order: Option<(StreamId, Order)>,
    /// Further operands of a range flush or a SHARE.
    pub more: Operands,
    /// Placement handle of a write.
    pub handle: u8,
}

/// What a range flush selects beyond the first range and the first two tags, and the pairs of a SHARE; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// Ranges: first sector, number of sectors.
    pub ranges: [(u64, u32); 3],
    /// Tags.
    pub tags: [u64; 3],
    /// First sector of the destination, of the source, number of sectors.
    pub pairs: [(u64, u64, u32); 4],
}

impl Operands {
    /// The pairs of a SHARE.
    pub fn pairs(&self) -> impl Iterator<Item = SharePair> + use<> {
        let pairs = self.pairs.into_iter().filter(|(_, _, blocks)| *blocks > 0);
        pairs.map(|(dst, src, blocks)| SharePair { dst: Lba(dst), src: Lba(src), blocks })
    }
}

impl HostOp {
    /// Returns the command, with the id `id`.
    pub fn command(&self, id: u64) -> Command {
        let (lba, blocks) = (Lba(self.lba), self.blocks);
        let op = match self.verb {
            Verb::Write => Op::Write { lba, blocks, data: Data::Pattern(self.pattern) },
            Verb::Zeroes => Op::WriteZeroes { lba, blocks },
            Verb::Trim => Op::Trim { lba, blocks },
            Verb::Flush => Op::Flush,
            Verb::RangeFlush => Op::RFlush(Box::new(RangeFlush {
                ranges: [(self.lba, blocks)]
                    .into_iter()
                    .chain(self.more.ranges)
                    .filter(|(_, blocks)| *blocks > 0)
                    .map(|(lba, blocks)| (Lba(lba), blocks))
                    .collect(),
                tags: self.tags.into_iter().chain(self.more.tags).filter(|tag| *tag != 0).map(Tag).collect(),
                segments: Vec::new(),
            })),
            Verb::Barrier => Op::Barrier,
            Verb::Share => Op::Share(self.more.pairs().collect()),
            Verb::Read => Op::Read { lba, blocks },
        };
        let mut command = Command::new(id, op);
        command.fua = self.fua;
        if self.verb == Verb::Write {
            command.handle = Handle(self.handle);
        }
        (command.stream, command.order) = self.order.unzip();
        if self.verb != Verb::RangeFlush {
            command.tags = self.tags.map(Tag);
        }
        command
    }
}

/// A history: operations and the maximum number of them in flight at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Operations, in order of submission.
    pub ops: Vec<HostOp>,
    /// Maximum number of commands in flight.
    pub depth: usize,
}

/// Returns the history of one boot of a world.
pub fn history(geometry: &Geometry, seed: u64, boot: u32, ops: usize) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-history-{boot}"));
    let per_unit = geometry.lbas_per_unit;
    let units = geometry.user_units;
    let depth = 1 + random.below(8) as usize;
    let hot_units = 4 + random.below(12);
    let hot_from = random.below(units - hot_units);
    let flush_share = [0.03, 0.1, 0.2][random.below(3) as usize];
    let trim_share = [0.05, 0.15, 0.3][random.below(3) as usize];
    let fua_share = [0.0, 0.1, 0.3][random.below(3) as usize];
    let partial_share = if per_unit > 1 { 0.15 } else { 0.0 };
    let ops = (0..ops).map(|number| {
        let hot = random.chance(0.6);
        let unit = if hot { hot_from + random.below(hot_units) } else { random.below(units) };
        let length = 1 + random.below(4).min(units - 1 - unit);
        let (mut lba, mut blocks) = (unit * per_unit, length * per_unit);
        if random.chance(partial_share) {
            let skip = random.below(per_unit);
            let cut = random.below(per_unit);
            lba += skip;
            blocks = (blocks - skip).saturating_sub(cut).max(1);
        }
        let dice = random.unit();
        let verb = if dice < flush_share {
            Verb::Flush
        } else if dice < flush_share + trim_share {
            if random.chance(0.3) { Verb::Zeroes } else { Verb::Trim }
        } else if dice > 0.97 {
            Verb::Read
        } else {
            Verb::Write
        };
        let fua = matches!(verb, Verb::Write | Verb::Zeroes | Verb::Trim) && random.chance(fua_share);
        let delay_ns = if random.chance(0.5) { 0 } else { random.below(60_000) as u32 };
        let pattern = seed << 24 | u64::from(boot) << 16 | number as u64;
        HostOp {
            verb,
            lba,
            blocks: blocks as u32,
            fua,
            pattern,
            delay_ns,
            tags: [0; 2],
            order: None,
            more: Operands::default(),
            handle: 0,
        }
    });
    History { ops: ops.collect(), depth }
}

/// Adapts a history to a device with range flush: most writes and deallocations get owners, few enough to share pages,
/// and most FLUSHes become range flushes. Without a FLUSH, nothing waits for unselected writes.
pub fn with_range_flushes(mut history: History, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-range-flush-{boot}"));
    let tags_max = 2 + random.below(8);
    let flush_share = [0.0, 0.2, 0.5][random.below(3) as usize];
    for op in &mut history.ops {
        let mut tag = |share: f64| if random.chance(share) { 1 + random.below(tags_max) } else { 0 };
        match op.verb {
            Verb::Write | Verb::Zeroes | Verb::Trim => op.tags = [tag(0.8), tag(0.3)],
            Verb::Flush => {
                let tags = [tag(0.7), tag(0.3)];
                if random.chance(flush_share) {
                    continue;
                }
                op.verb = Verb::RangeFlush;
                op.tags = tags;
                // The range that a write in its place would have had.
                if tags != [0; 2] && random.chance(0.6) {
                    op.blocks = 0;
                }
            }
            Verb::Share | Verb::Read | Verb::RangeFlush | Verb::Barrier => {}
        }
    }
    history
}

/// Adapts a history to a device with barriers: most operations that change something belong to one of a few streams,
/// and some of them end an epoch. FLUSHes are fewer, so that epochs pile up.
pub fn with_streams(mut history: History, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-streams-{boot}"));
    let streams = 1 + random.below(3);
    let ordered_share = [0.5, 0.8, 1.0][random.below(3) as usize];
    let barrier_share = [0.02, 0.1, 0.3, 0.6][random.below(4) as usize];
    // Streams may fall silent, so that garbage collection meets their remains.
    let until = history.ops.len() / [1, 2, 3, 4][random.below(4) as usize];
    let empty_share = [0.0, 0.05][random.below(2) as usize];
    for op in &mut history.ops[..until] {
        let stream = StreamId(1 + random.below(streams) as u16);
        let barrier = random.chance(barrier_share);
        match op.verb {
            Verb::Write if random.chance(empty_share) => {
                (op.verb, op.blocks, op.fua, op.tags) = (Verb::Barrier, 0, false, [0; 2]);
                op.order = Some((stream, Order::Barrier));
            }
            Verb::Write | Verb::Zeroes | Verb::Trim | Verb::Share if random.chance(ordered_share) => {
                op.order = Some((stream, if barrier { Order::Barrier } else { Order::Within }));
            }
            _ => {}
        }
    }
    history
}

/// Adapts a history to a device with placement: most writes say where they belong.
pub fn with_handles(mut history: History, handles: u8, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-handles-{boot}"));
    for op in &mut history.ops {
        op.handle = random.below(handles.into()) as u8;
    }
    history
}

/// Adds range flushes of several ranges, some of which overlap, and of up to five tags; the operation right before one
/// is now and then a deallocation across the end of its first range.
pub fn with_wide_range_flushes(mut history: History, geometry: &Geometry, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-wide-{boot}"));
    let (units, per_unit) = (geometry.user_units, geometry.lbas_per_unit);
    for number in 0..history.ops.len() {
        if history.ops[number].verb != Verb::RangeFlush {
            continue;
        }
        let near = history.ops[number].lba;
        let op = &mut history.ops[number];
        for range in &mut op.more.ranges {
            if random.chance(0.7) {
                // Near the first range, so that they overlap or touch; with ends inside units.
                let first = (near + random.below(6 * per_unit)).saturating_sub(3 * per_unit);
                let blocks = 1 + random.below(4 * per_unit);
                *range = (first, blocks.min((units * per_unit).saturating_sub(first)) as u32);
            }
        }
        for tag in &mut op.more.tags {
            if random.chance(0.5) {
                *tag = 1 + random.below(8);
            }
        }
        if (op.blocks == 0) == (op.tags == [0; 2]) && op.blocks == 0 {
            op.blocks = per_unit as u32;
        }
        let end = near + u64::from(op.blocks);
        if number > 0 && random.chance(0.3) && end + per_unit <= units * per_unit && end >= 2 * per_unit {
            let before = &mut history.ops[number - 1];
            if matches!(before.verb, Verb::Write | Verb::Zeroes | Verb::Trim) && before.order.is_none() {
                before.verb = Verb::Trim;
                before.lba = (end / per_unit - 1) * per_unit;
                before.blocks = (2 * per_unit) as u32;
            }
        }
    }
    history
}

/// Makes one command in four as long as up to two buffers of the smallest devices, with ends inside units, and turns one operation in ten
/// into a read.
pub fn with_long_commands(mut history: History, geometry: &Geometry, seed: u64, boot: u32) -> History {
    const UNITS_MAX: u64 = 12;
    let mut random = RandomStream::new(seed, &format!("crash-long-{boot}"));
    let all = geometry.user_units * geometry.lbas_per_unit;
    for op in &mut history.ops {
        let reads = random.chance(0.1);
        if reads && op.verb == Verb::Write {
            (op.verb, op.fua, op.tags) = (Verb::Read, false, [0; 2]);
        }
        if matches!(op.verb, Verb::Write | Verb::Zeroes | Verb::Trim | Verb::Read) && random.chance(0.25) {
            let wanted = 1 + random.below(UNITS_MAX * geometry.lbas_per_unit);
            op.blocks = wanted.max(op.blocks.into()).min(all - op.lba) as u32;
        }
    }
    history
}

/// Turns some writes and deallocations into SHAREs of up to four pairs: from hot units or from anywhere, mostly to hot units, now and
/// then a swap, a chain, or so many units that the records need more than one page of the log. Deallocations become fewer, so that
/// most sources have a content.
pub fn with_shares(mut history: History, geometry: &Geometry, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-shares-{boot}"));
    let (units, per_unit) = (geometry.user_units, geometry.lbas_per_unit);
    let share = [0.1, 0.25, 0.5][random.below(3) as usize];
    let hot_units = 4 + random.below(8);
    let hot_from = random.below(units - hot_units);
    let anywhere = |random: &mut RandomStream, hot: f64| match random.chance(hot) {
        true => hot_from + random.below(hot_units),
        false => random.below(units),
    };
    for op in &mut history.ops {
        let is_many = op.verb == Verb::Trim && random.chance(0.7);
        if !(is_many || op.verb == Verb::Write && random.chance(share)) {
            continue;
        }
        let long = random.chance(0.15);
        let number = if long { 4 } else { 1 + random.below(4) };
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut last = None;
        for pair in op.more.pairs.iter_mut().take(number as usize) {
            let (mut dst, mut src) = (anywhere(&mut random, 0.7), anywhere(&mut random, 0.5));
            match last {
                // What was a source becomes a destination, and perhaps the other way round.
                Some((of_dst, of_src)) if random.chance(0.3) => {
                    dst = of_src;
                    if random.chance(0.5) {
                        src = of_dst;
                    }
                }
                _ => {}
            }
            let wanted = if long { 8 + random.below(8) } else { 1 + random.below(3) };
            let count = wanted.min(units - dst).min(units - src);
            if taken.iter().any(|(first, end)| dst < *end && *first < dst + count) {
                continue;
            }
            taken.push((dst, dst + count));
            last = Some((dst, src));
            *pair = (dst * per_unit, src * per_unit, (count * per_unit) as u32);
        }
        (op.verb, op.lba, op.blocks) = (Verb::Share, 0, 0);
        op.tags = if op.tags == [0; 2] { op.tags } else { [1 + random.below(4), 0] };
    }
    history
}

/// Adds a stream whose members all come at the beginning and whose epoch is never closed.
pub fn with_a_silent_stream(mut history: History) -> History {
    const SILENT: StreamId = StreamId(9);
    let written = history.ops.iter_mut().filter(|op| op.verb == Verb::Write && op.blocks > 0);
    written.take(3).for_each(|op| op.order = Some((SILENT, Order::Within)));
    history
}

/// Moves some writes directly after or before the preceding one, at the same instant and with the same role apart from
/// the barrier, so that a block layer merges them.
pub fn with_runs(mut history: History, geometry: &Geometry, seed: u64, boot: u32) -> History {
    let mut random = RandomStream::new(seed, &format!("crash-runs-{boot}"));
    let blocks_all = geometry.user_units * geometry.lbas_per_unit;
    for number in 1..history.ops.len() {
        let before = history.ops[number - 1];
        let op = &mut history.ops[number];
        if before.verb != Verb::Write || op.verb != Verb::Write || !random.chance(0.5) {
            continue;
        }
        let (behind, blocks) = (before.lba + u64::from(before.blocks), u64::from(op.blocks));
        let lba = if random.chance(0.5) { Some(behind) } else { before.lba.checked_sub(blocks) };
        if let Some(lba) = lba.filter(|lba| lba + blocks <= blocks_all) {
            (op.lba, op.delay_ns, op.fua) = (lba, 0, before.fua);
            let role = if random.chance(0.3) { Order::Barrier } else { Order::Within };
            op.order = before.order.map(|(stream, _)| (stream, role));
        }
    }
    history
}

/// Returns the exercise that proves that a recovered device still works: everything is overwritten in part, some is
/// deallocated, all is flushed.
pub fn exercise(geometry: &Geometry, seed: u64) -> History {
    let mut random = RandomStream::new(seed, "crash-exercise");
    let (units, per_unit) = (geometry.user_units, geometry.lbas_per_unit);
    let mut ops: Vec<HostOp> = (0..units)
        .step_by(4)
        .map(|unit| {
            let length = 4.min(units - unit);
            HostOp {
                verb: if random.chance(0.1) { Verb::Trim } else { Verb::Write },
                lba: unit * per_unit,
                blocks: (length * per_unit) as u32,
                fua: random.chance(0.05),
                pattern: seed << 24 | 0xff << 16 | unit,
                delay_ns: 0,
                tags: [0; 2],
                order: None,
                more: Operands::default(),
                handle: 0,
            }
        })
        .collect();
    let flush = HostOp {
        verb: Verb::Flush,
        lba: 0,
        blocks: 0,
        fua: false,
        pattern: 0,
        delay_ns: 0,
        tags: [0; 2],
        order: None,
        more: Operands::default(),
        handle: 0,
    };
    ops.push(flush);
    for number in 0..units / 2 {
        let unit = random.below(units);
        ops.push(HostOp {
            verb: Verb::Write,
            lba: unit * per_unit,
            blocks: per_unit as u32,
            fua: false,
            pattern: seed << 24 | 0xfe << 16 | number,
            delay_ns: 0,
            tags: [0; 2],
            order: None,
            more: Operands::default(),
            handle: 0,
        });
    }
    ops.push(flush);
    History { ops, depth: 4 }
}
