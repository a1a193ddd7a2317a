//! The rules about segments against their definitions, on states that a random history could have left. `FLASHWEIR_SEED` varies them.

use super::super::layout::bytes::set_block_bit;
use super::super::layout::checkpoint::Flags;
use super::super::layout::summary::{Owner, Summary};
use super::super::layout::tables::SitEntry;
use super::super::layout::{Addr, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::segments::{Clock, FreeSegments, Kept, Marks};
use super::space::{Choice, Discarded};
use super::state::State;
use super::stop::Stop;
use super::tests::mounted_with as mounted;
use crate::port::Block;
use crate::vfs::{Errno, Timestamp};
use flashweir_core::{Duration, RandomStream};
use std::collections::BTreeSet;

fn random(name: &str) -> RandomStream {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("FLASHWEIR_SEED={seed}");
    RandomStream::new(seed, name)
}

/// Gives each segment that no log writes a random content, and each log a random place in its segment.
fn scramble(state: &mut State, random: &mut RandomStream) {
    let all = state.geometry.main_segments;
    for segment in (0..all).map(SegNo) {
        let index = segment.0 as usize;
        let writer = Log::ALL.into_iter().find(|log| state.logs[log.index()].cursor.segment == segment);
        let mut entry = SitEntry { mtime_s: random.below(1_000), ..SitEntry::default() };
        entry.log = match writer {
            Some(log) => log.index() as u8,
            None => random.below(Log::ALL.len() as u64) as u8,
        };
        let (end, share) = match writer {
            Some(_) => (random.below(u64::from(SEGMENT_BLOCKS)) as u32, random.unit()),
            None => (SEGMENT_BLOCKS, [0.0, 0.0, 0.01, 1.0, random.unit()][random.below(5) as usize]),
        };
        (0..end).for_each(|at| entry.set_valid(at, random.chance(share)));
        let mut kept = entry.map;
        let more = [0.0, 0.1][random.below(2) as usize];
        (0..end).filter(|_| random.chance(more)).for_each(|at| set_block_bit(&mut kept, at as usize, true));
        state.space.free.remove(segment);
        state.space.emptied.remove(&segment);
        if writer.is_none() && entry.valid == 0 {
            if kept.iter().all(|&byte| byte == 0) {
                state.space.free.insert(segment);
            } else {
                state.space.emptied.insert(segment);
            }
        }
        if let Some(log) = writer {
            let cursor = &mut state.logs[log.index()].cursor;
            (cursor.offset, cursor.fills_holes) = (end as u16, false);
        }
        let is_node = usize::from(entry.log) >= Log::HotNode.index();
        state.space.summaries.insert(segment, (0, Summary::new(is_node)));
        (state.sit[index], state.space.kept[index]) = (entry, kept);
    }
    state.space.written = state.sit.iter().map(|entry| u64::from(entry.valid)).sum();
    state.space.cleaned.clear();
    let sections = u64::from(state.sections());
    (0..random.below(4)).for_each(|_| {
        state.space.cleaned.insert(random.below(sections) as u32);
    });
}

/// Calls `check` on random states of volumes with sections of one segment and of two.
fn on_random_states(name: &str, count: u64, mut check: impl FnMut(&mut State, &mut RandomStream)) {
    let mut random = random(name);
    for segments_per_section in [1, 2] {
        let fs = mounted(96, segments_per_section);
        let mut state = fs.state.borrow_mut();
        for _ in 0..count {
            scramble(&mut state, &mut random);
            check(&mut state, &mut random);
        }
    }
}

fn is_open(state: &State, segment: SegNo) -> bool {
    state.logs.iter().any(|log| log.cursor.segment == segment)
}

/// Cleaning takes a section that has both valid blocks and holes, that no log writes, and that was not cleaned since the last checkpoint.
/// Greedy: the fewest valid blocks, if few enough to be worth it. Cost-benefit: the section with the highest benefit of Linux's
/// `get_cb_cost`, 100 (100 - used) age / (100 + used), both in per cent.
#[test]
fn victims_are_those_of_the_definition() {
    on_random_states("victims", 200, |state, random| {
        let (per, blocks) =
            (state.geometry.segments_per_section, state.geometry.segments_per_section * SEGMENT_BLOCKS);
        state.space.valid_max = random.below(u64::from(blocks) + 1) as u32;
        state.space.clock = Clock::new(random.below(1_500));
        let mut candidates = Vec::new();
        for section in 0..state.sections() {
            let (mut valid, mut time_s, mut is_out) = (0, 0, state.space.cleaned.contains(&section));
            for segment in section * per..section * per + per {
                let entry = &state.sit[segment as usize];
                (valid, time_s) = (valid + u32::from(entry.counted()), time_s + entry.mtime_s);
                is_out |= is_open(state, SegNo(segment));
            }
            if !is_out && valid != 0 && valid != blocks {
                candidates.push((section, valid, time_s / u64::from(per)));
            }
        }
        let mut greedy: Option<(u32, u32)> = None;
        for &(section, valid, _) in &candidates {
            if valid < state.space.valid_max && greedy.is_none_or(|(_, least)| valid < least) {
                greedy = Some((section, valid));
            }
        }
        assert_eq!(state.victim(Choice::Greedy), greedy.map(|(section, _)| section));
        let oldest = candidates.iter().map(|one| one.2).fold(u64::MAX, u64::min);
        let newest = candidates.iter().map(|one| one.2).fold(state.space.clock.now_s(), u64::max);
        let mut best: Option<(u32, u64)> = None;
        for &(section, valid, time_s) in &candidates {
            let used = u64::from(valid) * 100 / u64::from(blocks);
            let age = if newest == oldest { 0 } else { 100 - 100 * (time_s - oldest) / (newest - oldest) };
            let benefit = 100 * (100 - used) * age / (100 + used);
            if best.is_none_or(|(_, most)| benefit > most) {
                best = Some((section, benefit));
            }
        }
        assert_eq!(state.victim(Choice::CostBenefit), best.map(|(section, _)| section));
    });
}

/// A volume that is as new has no victim.
#[test]
fn a_new_volume_has_nothing_to_clean() {
    let fs = mounted(96, 1);
    let state = fs.state.borrow();
    assert_eq!((state.victim(Choice::Greedy), state.victim(Choice::CostBenefit)), (None, None));
    assert!(!state.has_emptied() && !state.has_many_holes() && !state.is_short(0));
}

/// More than 40 % of what users can have is not written, and less than 40 % of that is free without cleaning
/// (`has_enough_invalid_blocks` of Linux).
#[test]
fn many_holes_are_a_share_of_what_is_not_written() {
    let fs = mounted(96, 1);
    let mut state = fs.state.borrow_mut();
    let user = state.checkpoint.user_blocks;
    let over = u64::from(state.checkpoint.overprovision_segments);
    let segments: Vec<SegNo> =
        (0..state.geometry.main_segments).map(SegNo).filter(|&at| !is_open(&state, at)).collect();
    for written in [0, user / 2, user * 3 / 5 - 2, user * 3 / 5 + 2, user, user + 1] {
        state.space.written = written;
        segments.iter().for_each(|&segment| state.space.free.remove(segment));
        for free in 0..=segments.len() {
            let unwritten = user as i64 - written as i64;
            let usable = (free as i64 - over as i64).max(0) * i64::from(SEGMENT_BLOCKS);
            let expected = unwritten > user as i64 * 40 / 100 && usable < unwritten * 40 / 100;
            assert_eq!(state.has_many_holes(), expected, "{written} of {user} written, {free} segments free");
            if let Some(&segment) = segments.get(free) {
                state.space.free.insert(segment);
            }
        }
    }
}

/// Cleaning that gained nothing is not tried again before there is another section of holes, unless nearly nothing is free.
#[test]
fn hope_comes_with_a_section_of_holes() {
    let fs = mounted(96, 2);
    let mut state = fs.state.borrow_mut();
    state.note_hope();
    assert_eq!(state.space.hopeless_holes, None, "there is room");
    let free = state.space.free.sections();
    let few = Log::ALL.len() as u32 + 2;
    state.space.reserved_sections = free;
    state.note_hope();
    assert_eq!(state.space.hopeless_holes, Some(holes(&state)));
    let section = u64::from(2 * SEGMENT_BLOCKS);
    let written = holes(&state) + state.space.written;
    for (more, expected) in [(0, true), (1, true), (section - 1, true), (section, false)] {
        state.space.hopeless_holes = Some(holes(&state) - more.min(holes(&state)));
        let had = holes(&state) - state.space.hopeless_holes.unwrap();
        assert_eq!(had, more, "the volume has that many holes, {written} blocks in use");
        assert_eq!(state.is_hopeless(), expected, "{more} holes more");
    }
    state.space.hopeless_holes = Some(holes(&state));
    let mut all = (0..state.geometry.main_segments).map(SegNo);
    while state.space.free.sections() > few {
        state.space.free.remove(all.next().unwrap());
        state.space.hopeless_holes = Some(holes(&state));
        assert_eq!(state.is_hopeless(), state.space.free.sections() > few);
    }
}

/// Blocks of segments that are not free in which nothing valid is.
fn holes(state: &State) -> u64 {
    let used = (0..state.geometry.main_segments).filter(|&at| !state.space.free.contains(SegNo(at)));
    used.map(|at| u64::from(SEGMENT_BLOCKS - u32::from(state.sit[at as usize].counted()))).sum()
}

/// Roll-forward reads the log of warm nodes, and tells old ones by the checksum of the checkpoint in them, if it is there.
fn may_fill(log: Log, has_crc: bool) -> bool {
    log != Log::WarmNode || has_crc
}

/// Where a log goes on: on a free segment, as near behind its own as `FreeSegments::after` says, while there is more free than a
/// checkpoint needs; otherwise in the segment of its kind (of its own log first) that has the most blocks free to write.
#[test]
fn a_log_goes_on_where_the_definition_says() {
    on_random_states("successors", 100, |state, random| {
        state.space.reserved_sections = random.below(u64::from(state.space.free.sections()) + 3) as u32;
        let has_crc = random.chance(0.5);
        state.checkpoint.flags = Flags(if has_crc { Flags::CRC_RECOVERY } else { 0 });
        for log in Log::ALL {
            let free = state.space.free.after(state.logs[log.index()].cursor.segment);
            let mut holed: Option<(SegNo, (bool, u32))> = None;
            for segment in (0..state.geometry.main_segments).map(SegNo) {
                let entry = &state.sit[segment.0 as usize];
                let section = segment.0 / state.geometry.segments_per_section;
                let own = usize::from(entry.log) == log.index();
                let is_kind = (usize::from(entry.log) >= 3) == (log.index() >= 3);
                let holes = (0..SEGMENT_BLOCKS).filter(|&at| state.is_hole(segment, at)).count() as u32;
                let is_out = is_open(state, segment) || state.space.cleaned.contains(&section);
                let is_partly = (1..SEGMENT_BLOCKS).contains(&u32::from(entry.counted()));
                if is_partly
                    && is_kind
                    && !is_out
                    && holes > 0
                    && holed.is_none_or(|best| (own, holes) > best.1)
                {
                    holed = Some((segment, (own, holes)));
                }
            }
            let expected = match (free, holed) {
                (Some(free), _) if !state.needs_holes() || !may_fill(log, has_crc) => Some((free, false)),
                (_, Some((segment, _))) => Some((segment, true)),
                (free, None) => free.map(|free| (free, false)),
            };
            let before = state.logs[log.index()].cursor.segment;
            match (state.successor(log), expected) {
                (Ok(open), Some((segment, fills_holes))) => {
                    let first = (0..SEGMENT_BLOCKS).find(|&at| state.is_hole(segment, at)).unwrap();
                    assert_eq!(
                        (open.cursor.segment, open.cursor.fills_holes),
                        (segment, fills_holes),
                        "{log:?}"
                    );
                    assert_eq!(u32::from(open.cursor.offset), if fills_holes { first } else { 0 });
                    assert_eq!(open.summary.is_node, log.is_node());
                }
                (Err(Stop::Failed(Errno::ENOSPC)), None) => (),
                (other, expected) => panic!("{log:?} after {before}: {other:?}, expected {expected:?}"),
            }
        }
    });
}

/// The blocks that a cut could need, as the rule defines them.
#[derive(Default)]
struct Needed {
    /// Blocks of the last complete checkpoint.
    complete: BTreeSet<Addr>,
    /// Blocks that were written since the last checkpoint began.
    since: BTreeSet<Addr>,
    /// Of the checkpoint that is being written: its blocks, and those that were written before it began.
    pending: Option<(BTreeSet<Addr>, BTreeSet<Addr>)>,
}

impl Needed {
    fn contains(&self, addr: Addr) -> bool {
        let pending = self.pending.as_ref();
        self.complete.contains(&addr)
            || self.since.contains(&addr)
            || pending.is_some_and(|(blocks, before)| blocks.contains(&addr) || before.contains(&addr))
    }
}

fn all_blocks(state: &State) -> impl Iterator<Item = (SegNo, u32, Addr)> {
    let segments = (0..state.geometry.main_segments).map(SegNo);
    let places = segments.flat_map(|segment| (0..SEGMENT_BLOCKS).map(move |at| (segment, at)));
    places.map(|(segment, at)| (segment, at, state.geometry.main_block(segment, at)))
}

fn valid_blocks(state: &State) -> BTreeSet<Addr> {
    let is_valid = |segment: SegNo, at| state.sit[segment.0 as usize].is_valid(at);
    all_blocks(state).filter(|&(segment, at, _)| is_valid(segment, at)).map(|(.., addr)| addr).collect()
}

type Ranges = Vec<(Block, u32)>;

/// What may be discarded with a checkpoint: every block that becomes free, none that is valid, nothing that could be written meanwhile.
fn check_freed(
    state: &State,
    ranges: &[(Block, u32)],
    least: u32,
    freed: &BTreeSet<Addr>,
    valid: &BTreeSet<Addr>,
) {
    let mut inside = BTreeSet::new();
    for &(start, blocks) in ranges {
        assert!(blocks >= least, "a range of {blocks} blocks, where {least} are worth it");
        inside.extend((start.0..start.0 + u64::from(blocks)).map(|block| Addr(block as u32)));
    }
    assert!(inside.is_disjoint(valid), "a valid block would be discarded");
    assert!(least > 1 || freed.is_subset(&inside), "a block that becomes free is left out");
    for &addr in &inside {
        let (segment, offset) = state.geometry.place_of(addr).unwrap();
        assert!(!state.is_hole(segment, offset), "{addr:?} could be written before it is discarded");
    }
}

/// A block is written again only when it is not valid, neither the complete checkpoint nor the one that is being written has it, and it was
/// not written since: and then it may be.
#[test]
fn blocks_are_free_when_no_checkpoint_needs_them() {
    let mut random = random("blocks");
    for round in 0..12 {
        let fs = mounted(96, 1 + round % 2);
        let mut state = fs.state.borrow_mut();
        if round > 3 {
            // Logs fill holes.
            state.space.reserved_sections = state.space.free.sections();
        }
        let mut needed = Needed { complete: valid_blocks(&state), ..Needed::default() };
        let mut pending: Option<(Vec<Kept>, Ranges)> = None;
        let mut live: Vec<Addr> = Vec::new();
        for step in 0..4_000 {
            if random.chance(0.01) {
                if let Some((kept, ranges)) = pending.take() {
                    state.forget(kept, &Discarded { ranges, ..Discarded::default() });
                    needed.complete = needed.pending.take().expect("one was begun").0;
                    continue;
                }
                let (valid, kept) = (valid_blocks(&state), state.keep_valid());
                let freed = needed.complete.union(&needed.since).filter(|addr| !valid.contains(addr));
                let freed = freed.copied().collect();
                let least = [1, 16][random.below(2) as usize];
                let is_discarding = random.chance(0.5);
                let ranges = if is_discarding { state.freed_ranges(&kept, least) } else { Vec::new() };
                if is_discarding {
                    check_freed(&state, &ranges, least, &freed, &valid);
                }
                needed.pending = Some((valid, std::mem::take(&mut needed.since)));
                pending = Some((kept, ranges));
            } else if live.is_empty() || random.chance(0.55) {
                let log = Log::ALL[random.below(3) as usize];
                let cursor = state.logs[log.index()].cursor;
                assert!(state.is_hole(cursor.segment, cursor.offset.into()), "the next block is a hole");
                let Ok(addr) = state.allocate(log, Owner::default()) else { continue };
                assert!(!needed.contains(addr), "round {round}, step {step}: a cut could need {addr:?}");
                needed.since.insert(addr);
                live.push(addr);
            } else {
                let addr = live.swap_remove(random.below(live.len() as u64) as usize);
                state.release_block(addr);
            }
            if step % 256 == 0 && pending.is_none() {
                let valid = valid_blocks(&state);
                for (segment, at, addr) in all_blocks(&state) {
                    let is_free = !needed.contains(addr) && !valid.contains(&addr);
                    assert_eq!(state.is_hole(segment, at), is_free, "round {round}, step {step}: {addr:?}");
                }
            }
        }
        drop(state);
        fs.audit().unwrap();
    }
}

/// A block that moves keeps its age: the time of a segment is the average over its blocks.
#[test]
fn the_time_of_a_segment_is_the_average_of_its_blocks() {
    let fs = mounted(64, 1);
    let mut state = fs.state.borrow_mut();
    state.space.clock = Clock::new(1_000);
    let segment = state.logs[Log::ColdData.index()].cursor.segment.0 as usize;
    assert_eq!((state.sit[segment].mtime_s, state.sit[segment].valid), (0, 0), "it is new");
    state.allocate_aged(Log::ColdData, Owner::default(), Some(400)).unwrap();
    assert_eq!(state.sit[segment].mtime_s, 400);
    state.allocate_aged(Log::ColdData, Owner::default(), Some(200)).unwrap();
    assert_eq!(state.sit[segment].mtime_s, (400 + 200) / 2);
    let addr = state.allocate(Log::ColdData, Owner::default()).unwrap();
    assert_eq!(state.sit[segment].mtime_s, (2 * 300 + 1_000) / 3);
    state.release_block(addr);
    assert_eq!(state.sit[segment].mtime_s, (3 * 533 + 1_000) / 4);
}

/// A log whose next blocks are free goes on in its segment after a roll-forward; one in whose way recovered blocks are goes around them,
/// and leaves the segment only when it is full.
#[test]
fn a_log_leaves_its_segment_only_when_it_is_full() {
    let fs = mounted(64, 1);
    let mut state = fs.state.borrow_mut();
    let cursors: Vec<_> = state.logs.iter().map(|log| log.cursor).collect();
    state.dodge().unwrap();
    assert_eq!(state.logs.iter().map(|log| log.cursor).collect::<Vec<_>>(), cursors, "nothing is in the way");
    let log = Log::WarmData;
    let cursor = cursors[log.index()];
    let keep = |state: &mut State, offsets: std::ops::Range<u32>| {
        offsets.for_each(|at| state.keep_block(state.geometry.main_block(cursor.segment, at)));
    };
    let next = u32::from(cursor.offset);
    keep(&mut state, next + 10..next + 20);
    state.dodge().unwrap();
    let now = state.logs[log.index()].cursor;
    assert_eq!((now.segment, now.offset, now.fills_holes), (cursor.segment, cursor.offset, true));
    keep(&mut state, next..next + 10);
    state.dodge().unwrap();
    let now = state.logs[log.index()].cursor;
    assert_eq!((now.segment, u32::from(now.offset)), (cursor.segment, next + 20));
    // While it fills holes only the next block counts.
    keep(&mut state, next + 21..SEGMENT_BLOCKS);
    state.dodge().unwrap();
    assert_eq!(state.logs[log.index()].cursor, now);
    keep(&mut state, next + 20..next + 21);
    state.dodge().unwrap();
    let now = state.logs[log.index()].cursor;
    assert_ne!(now.segment, cursor.segment);
    assert_eq!((now.offset, now.fills_holes), (0, false));
}

/// Roll-forward keeps a block of a free segment: nothing is allocated there before a checkpoint has forgotten it.
#[test]
fn a_segment_with_a_block_that_is_kept_is_not_free() {
    let fs = mounted(64, 1);
    let mut state = fs.state.borrow_mut();
    let segment = state.space.free.after(SegNo(0)).unwrap();
    let addr = state.geometry.main_block(segment, 7);
    state.keep_block(addr);
    assert!(!state.space.free.contains(segment) && state.space.emptied.contains(&segment));
    assert!((0..SEGMENT_BLOCKS).all(|at| state.is_hole(segment, at) == (at != 7)));
    let kept = state.keep_valid();
    state.forget(kept, &Discarded::default());
    assert!(state.space.free.contains(segment) && !state.space.emptied.contains(&segment));
}

/// A checkpoint makes room of the sections that were cleaned; one that is being cleaned then stays marked, so nothing is written in place
/// there.
#[test]
fn a_section_is_cleaned_across_a_checkpoint() {
    let fs = mounted(64, 1);
    let mut state = fs.state.borrow_mut();
    let log = Log::WarmData;
    let cursor = state.logs[log.index()].cursor;
    let addr = state.allocate(log, Owner::default()).unwrap();
    assert!(state.may_write_over(addr));
    let section = state.section_of(cursor.segment);
    state.space.cleaned = BTreeSet::from([section, section + 1]);
    state.space.cleaning = Some(section);
    assert!(!state.may_write_over(addr));
    state.keep_valid();
    assert_eq!(state.space.cleaned, BTreeSet::from([section]));
    assert!(!state.may_write_over(addr));
    state.space.cleaning = None;
    state.keep_valid();
    assert!(state.may_write_over(addr));
    state.release_block(addr);
    assert!(!state.may_write_over(addr), "it is not valid");
}

/// Free segments against a plain set: how many sections are wholly free, and where a log goes on.
#[test]
fn free_segments_are_a_set_with_a_count_of_sections() {
    let mut random = random("free segments");
    for per in [1, 2, 3] {
        let fs = mounted(192, per);
        let geometry = fs.state.borrow().geometry;
        let (sections, all) = (geometry.main_segments / per, geometry.main_segments / per * per);
        let (mut free, mut set) = (FreeSegments::new(&geometry), BTreeSet::new());
        for _ in 0..3_000 {
            let segment = random.below(u64::from(all)) as u32;
            if random.chance(0.5) {
                free.insert(SegNo(segment));
                set.insert(segment);
            } else {
                free.remove(SegNo(segment));
                set.remove(&segment);
            }
            let is_whole = |section: u32| (section * per..section * per + per).all(|at| set.contains(&at));
            let whole: Vec<u32> = (0..sections).filter(|&section| is_whole(section)).collect();
            assert_eq!(free.sections(), whole.len() as u32);
            assert_eq!(free.segments(), set.len() as u32);
            assert_eq!(free.contains(SegNo(segment)), set.contains(&segment));
            let last = random.below(u64::from(all)) as u32;
            // In its section; then in the first section behind it that is free, going round; then in any segment behind it.
            let behind = |start: u32| (start..all).chain(0..start.min(all));
            let expected = match !(last + 1).is_multiple_of(per) && set.contains(&(last + 1)) {
                true => Some(last + 1),
                false => behind(last + 1)
                    .find(|at| at % per == 0 && whole.contains(&(at / per)))
                    .or_else(|| behind(last + 1).find(|at| set.contains(at))),
            };
            assert_eq!(free.after(SegNo(last)), expected.map(SegNo), "after {last} of {set:?}");
        }
    }
}

#[test]
fn marks_are_a_set() {
    let mut random = random("marks");
    let (mut marks, mut set) = (Marks::new(40), BTreeSet::new());
    for _ in 0..2_000 {
        let segment = SegNo(random.below(40) as u32);
        marks.insert(segment);
        set.insert(segment);
        assert_eq!((marks.len(), marks.sorted()), (set.len(), set.iter().copied().collect()));
        if random.chance(0.1) {
            assert_eq!(marks.take(), std::mem::take(&mut set).into_iter().collect::<Vec<_>>());
        }
    }
}

/// The clock of a volume counts the seconds of all its mounts, and never goes back; idle is no change for so long.
#[test]
fn the_clock_counts_the_time_of_all_mounts() {
    let at = |seconds| Timestamp { seconds, ..Timestamp::default() };
    let mut clock = Clock::new(500);
    assert_eq!(clock.now_s(), 500);
    clock.advance(at(1_000));
    assert_eq!(clock.now_s(), 500);
    clock.tick(at(1_010));
    assert_eq!(clock.now_s(), 510);
    assert!(!clock.is_idle(at(1_014), Duration::from_secs(5)));
    assert!(clock.is_idle(at(1_015), Duration::from_secs(5)));
    assert_eq!(clock.now_s(), 515);
    clock.advance(at(900));
    assert_eq!(clock.now_s(), 515, "the caller's clock went back");
    clock.tick(at(900));
    assert!(!clock.is_idle(at(1_019), Duration::from_secs(5)), "a change counts from the latest time");
}

/// Numbers of nodes that were freed come first, after the checkpoint from which on they can be used again. Until then nobody looks at them:
/// each new file once looked at all numbers above the lowest one.
#[test]
fn the_lowest_number_that_was_freed_is_used_again() {
    let fs = mounted(64, 1);
    let nids: Vec<Nid> = {
        let mut state = fs.state.borrow_mut();
        let nids: Vec<Nid> = (0..4).map(|_| state.new_inode(0o100_644).unwrap()).collect();
        for nid in [nids[2], nids[0], nids[1], nids[3]] {
            state.free_node(nid, nid).unwrap();
        }
        assert_eq!(state.next_nid, Nid(nids[3].0 + 1));
        nids
    };
    crate::port::block_on(fs.checkpoint()).unwrap();
    assert_eq!(fs.state.borrow().next_nid, nids[0]);
}
