//! The state of a host FTL, which [`target`](super::target), [`collect`](super::collect) and [`recover`](super::recover) change.

use super::config::{HostFtlConfig, Layout};
use super::lines::{LineId, Lines};
use super::map::HostMap;
use super::metrics::HostFtlMetrics;
use super::passage::Passages;
use super::recent::Recent;
use super::ring::{Position, Ring};
use super::streams::{Orders, Place};
use super::tasks::{Ask, Task};
use super::threads::Threads;
use super::turns::Turns;
use flashweir_core::command::Tag;
use flashweir_core::oob::{Member, OobRecord, Owner};
use flashweir_core::{Command, DeviceError, Instant, Lba, Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::limiter::{Scores, Windows};
use flashweir_ftl::line_pages::{LineEnd, LineStart, OrderPage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A write or TRIM that is not wholly in rings.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) token: u64,
    pub(super) first: Lpn,
    pub(super) units: u64,
    /// Units that are in rings.
    pub(super) done: u64,
    /// Contents; none for a TRIM.
    pub(super) data: Option<Vec<Payload>>,
    pub(super) tags: [Tag; 2],
    pub(super) fua: bool,
    pub(super) order: Place,
    /// Positions up to which rings have to be durable before the answer to a deallocation with FUA.
    pub(super) targets: Vec<Position>,
    /// Entries of a write with FUA.
    pub(super) entries: Vec<Position>,
    /// Tries of its thread in a row during which nothing was under way that could have made room.
    pub(super) vain_tries: u32,
}

/// A request that waits until each of these rings is durable up to its position, and these entries are.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) token: u64,
    pub(super) targets: Vec<Position>,
    pub(super) entries: BTreeSet<Position>,
}

#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) lba: Lba,
    pub(super) data: Vec<Payload>,
    pub(super) left: u32,
    /// Units that were in rings.
    pub(super) from_rings: u64,
    pub(super) has_contents: bool,
    pub(super) error: Option<DeviceError>,
}

/// Blocks of a line that is being erased.
#[derive(Clone, Debug)]
pub(super) struct Erasing {
    pub(super) line: LineId,
    /// Blocks whose erase has not begun.
    pub(super) waiting: VecDeque<BlockId>,
    pub(super) left: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Limiter {
    Windows(Windows),
    Scores(Scores),
}

/// A record of deallocated units that still says something.
#[derive(Clone, Debug)]
pub(super) struct TrimRecord {
    pub(super) seq: u64,
    /// Units of which it is the newest durable version.
    pub(super) live: u64,
    pub(super) ranges: Vec<(u64, u64)>,
}

/// A host FTL.
#[derive(Clone, Debug)]
pub struct HostFtl {
    pub(super) config: HostFtlConfig,
    pub(super) layout: Layout,
    pub(super) map: HostMap,
    pub(super) rings: Vec<Ring>,
    pub(super) lines: Lines,
    pub(super) limiter: Limiter,
    pub(super) trims: BTreeMap<Ppa, TrimRecord>,
    pub(super) orders: Orders,
    /// Lines without end metadata whose programs have ended.
    pub(super) unfinished: BTreeSet<LineId>,
    pub(super) recent: Recent,
    pub(super) seq: u64,
    /// Number of the newest version that a recovery found.
    pub(super) first_seq: u64,
    pub(super) queued: Vec<VecDeque<Queued>>,
    /// The entry of each ring whose closure was made urgent last.
    pub(super) hurried: Vec<u64>,
    /// Ring that is tried when a submitter's own is full.
    pub(super) other_ring: usize,
    pub(super) waiters: Vec<Waiter>,
    pub(super) reads: BTreeMap<u64, Reading>,
    pub(super) tasks: BTreeMap<u64, Task>,
    pub(super) next_id: u64,
    /// Commands to be offered: reads go first.
    pub(super) out: [VecDeque<Command>; 2],
    pub(super) turns: Turns,
    pub(super) offered: Option<Command>,
    pub(super) is_stalled: bool,
    /// Programs in flight on each die.
    pub(super) programs: Vec<u32>,
    /// The slot of time in which each group last had a read of the user that missed the rings (open-channel §7.7).
    pub(super) last_read: Vec<Option<u64>>,
    pub(super) collecting: Vec<Option<Collecting>>,
    pub(super) erasing: Vec<Erasing>,
    /// Group that the next program tries first.
    pub(super) turn: usize,
    /// Ring that is drained first.
    pub(super) drained: usize,
    /// Counts visits to groups that collect (open-channel §4.3).
    pub(super) wheel: u64,
    pub(super) now: Instant,
    pub(super) user_was_active: Option<Instant>,
    /// Whether the request that was looked at last needs a line that GC has to free.
    pub(super) user_waits_for_space: bool,
    /// Whether a request found no room while nothing was under way that could have made some.
    pub(super) user_is_stuck: bool,
    /// Time at which the entries of each ring are padded.
    pub(super) pad_at: Vec<Option<Instant>>,
    /// Time of a wake-up that was asked for since GC waits for the user's inactivity.
    pub(super) inactive_at: Option<Instant>,
    pub(super) recovery: Option<Box<Recovery>>,
    /// The recovery has discarded versions, and nothing may happen before that is on the medium.
    pub(super) is_opening: bool,
    /// Nowhere to write what the recovery has discarded: nothing is written in this boot.
    pub(super) is_read_only: bool,
    /// Requests that came before the end of the recovery.
    pub(super) early: VecDeque<(Command, u16)>,
    /// The threads on the host's CPUs, if their time counts.
    pub(super) threads: Option<Box<Threads>>,
    /// Time of the last wake-up that was asked for on their account.
    pub(super) armed: Option<Instant>,
    /// Answers that wait for a CPU.
    pub(super) answers_held: usize,
    pub(super) metrics: HostFtlMetrics,
    /// What timelines are told, if there is one.
    pub(super) passages: Passages,
}

/// A line that is being emptied.
#[derive(Clone, Debug)]
pub(super) struct Collecting {
    pub(super) line: LineId,
    /// Units that were valid at the beginning and are not read yet.
    pub(super) todo: VecDeque<Ppa>,
    /// Reads under way.
    pub(super) reads: usize,
    /// What was read and is not in a ring yet.
    pub(super) copies: VecDeque<(Ppa, OobRecord, Payload)>,
    /// Whether rings were told to write the last copies, though they may not fill a page.
    pub(super) is_kicked: bool,
    /// Whether members were made urgent whose epochs keep the line.
    pub(super) is_hurried: bool,
}

impl Collecting {
    /// Whether it will bring copies into a ring.
    pub(super) fn has_copies(&self) -> bool {
        self.reads > 0 || !(self.todo.is_empty() && self.copies.is_empty())
    }
}

/// What was read of a line.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundLine {
    pub(super) start: Option<LineStart>,
    pub(super) end: BTreeMap<usize, Vec<LineEnd>>,
    pub(super) ends_left: usize,
    /// Pages of each column up to the first that was never written; empty if the line was not read page by page.
    pub(super) written: Vec<u32>,
    /// Columns with a torn page: the device takes no more programs there (open-channel §6.9).
    pub(super) torn: Vec<u32>,
    pub(super) units: Vec<FoundUnit>,
}

/// A unit that a recovery found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundUnit {
    pub(super) ppa: Ppa,
    pub(super) owner: Owner,
    pub(super) seq: u64,
    /// Unknown where end metadata describes the unit: it counts then, and is counted by nobody.
    pub(super) member: Option<Member>,
}

/// A recovery under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    /// Whether chunks are padded where that is needed, and lines are being read.
    pub(super) are_lines_read: bool,
    pub(super) lines: Vec<FoundLine>,
    pub(super) trims: BTreeMap<Ppa, (u64, Vec<(u64, u64)>)>,
    pub(super) orders: Vec<(Ppa, OrderPage)>,
    pub(super) waiting: VecDeque<Ask>,
    pub(super) reading: usize,
}
