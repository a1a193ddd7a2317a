//! Lines by themselves: which one GC chooses, what is erased, which pages a program gets, and what end metadata says.

use super::{SHAPE, UNIT_BYTES, config, geometry};
use crate::ftl::config::Layout;
use crate::ftl::lines::{LineId, LineState, Lines};
use flashweir_core::oob::Owner;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::geometry::{FlashCounts, FlashGeometry};
use flashweir_ftl::line_pages::{LineEnd, LineStart};

fn layout() -> Layout {
    Layout::new(&config(), geometry(), UNIT_BYTES).expect("it is valid")
}

fn lines() -> Lines {
    Lines::new(&layout())
}

/// Makes a line one that GC may choose.
fn close(lines: &mut Lines, line: u32, valid: u32) {
    let line = lines.get_mut(LineId(line));
    (line.state, line.valid) = (LineState::Closed, valid);
}

#[test]
fn the_victim_is_the_closed_line_with_the_fewest_valid_units() {
    let mut lines = lines();
    assert_eq!(lines.victim(0), None);
    for (line, valid) in [(1, 9), (3, 5), (4, 5), (6, 20)] {
        close(&mut lines, line, valid);
    }
    for (line, state) in [(0, LineState::Open), (2, LineState::Closing), (5, LineState::Collecting)] {
        (lines.get_mut(LineId(line)).state, lines.get_mut(LineId(line)).valid) = (state, 1);
    }
    assert_eq!(lines.victim(0), Some(LineId(3)));
    lines.get_mut(LineId(3)).unstable = 1;
    assert_eq!(lines.victim(0), Some(LineId(4)), "members are counted on line 3");
    lines.get_mut(LineId(6)).has_failed = true;
    assert_eq!(lines.victim(0), Some(LineId(6)), "it is emptied first, whatever it holds");
}

#[test]
fn a_line_is_chosen_only_if_that_frees_a_program() {
    let layout = layout();
    let all = layout.data_units();
    for (valid, is_chosen) in [(all - 2, true), (all - 1, false), (all, false)] {
        let mut lines = lines();
        close(&mut lines, 1, valid);
        assert_eq!(lines.victim(0).is_some(), is_chosen, "{valid} of {all}");
        lines.get_mut(LineId(1)).has_failed = true;
        assert!(lines.victim(0).is_some());
    }
}

#[test]
fn a_free_line_is_erased_if_none_is_clean() {
    let mut lines = lines();
    assert_eq!(lines.to_erase(0), None);
    for line in lines.ids().collect::<Vec<_>>() {
        lines.get_mut(line).is_clean = false;
    }
    assert!(lines.have_room());
    lines.get_mut(LineId(0)).unstable = 1;
    assert_eq!(lines.to_erase(0), Some(LineId(1)), "members are counted on line 0");
    assert_eq!(lines.begin_erase(LineId(1)).len(), 2);
    assert_eq!((lines.to_erase(0), lines.free_count(0)), (None, 12), "one is being erased");
    lines.erased(LineId(1));
    assert_eq!((lines.to_erase(0), lines.free_count(0)), (None, 12), "and clean then");
    for line in lines.ids().collect::<Vec<_>>() {
        (lines.get_mut(line).is_clean, lines.get_mut(line).unstable) = (false, 1);
    }
    assert_eq!((lines.to_erase(0), lines.have_room()), (None, false));
}

/// Fills the open line; returns units of its pages in the order in which programs got them.
fn fill(lines: &mut Lines) -> Vec<Vec<Ppa>> {
    let mut programs = Vec::new();
    while let Some(program) = lines.take_pages(0, &[0, 0], 1) {
        assert!(!lines.get(program.line).owners.is_empty());
        programs.push(program.pages.into_iter().flat_map(|at| geometry().units_of(at)).collect());
    }
    programs
}

#[test]
fn programs_get_the_pages_of_a_line_row_by_row_and_its_end_describes_them() {
    let layout = layout();
    let mut lines = lines();
    let free = lines.free_units();
    let (at, start) = lines.open_next(0).expect("there is a free line");
    assert_eq!(lines.free_units(), free);
    assert_eq!((at, LineStart::decode(&start[0]).unwrap().line), (lines.start_page(LineId(0)), 1));
    assert!(lines.take_pages(0, &[1, 1], 1).is_none(), "all dies are busy");
    let second = lines.take_pages(0, &[1, 0], 1).expect("die 1 is idle");
    assert_eq!((second.die, second.pages[0].page), (1, 0));
    lines.get_mut(LineId(0)).programs = 0;
    let programs = fill(&mut lines);
    let units: u32 = programs.iter().map(|units| units.len() as u32).sum();
    assert_eq!(units + 2, layout.data_units());
    assert!(lines.is_full(0) && lines.free_units() == free - u64::from(layout.data_units()));
    for (nth, units) in programs.iter().enumerate() {
        let number = lines.unit_number(units[0]).unwrap();
        lines.get_mut(LineId(0)).owners[number] = (Owner::Lpn(Lpn(nth as u64)), 1 + nth as u64);
        assert_eq!(lines.unit_at(LineId(0), number), units[0]);
    }
    assert!(lines.finish(LineId(0)).is_empty(), "it has not ended");
    let id = lines.end(0).unwrap();
    assert!(lines.finish(id).is_empty(), "programs are under way");
    assert!(!lines.has_ended(id));
    lines.get_mut(id).programs = 0;
    assert!(lines.has_ended(id));
    let end = lines.finish(id);
    assert_eq!(end.iter().map(|(at, _)| *at).collect::<Vec<_>>(), lines.end_pages(id));
    let mut described = Vec::new();
    for page in end.iter().flat_map(|(_, pages)| pages) {
        let part = LineEnd::decode(page).unwrap();
        assert_eq!((part.line, part.first as usize), (1, described.len()));
        described.extend(part.units);
    }
    assert_eq!(described.len() as u32, layout.data_units() + 2, "start metadata included");
    for (nth, units) in programs.iter().enumerate() {
        let owner = (Owner::Lpn(Lpn(nth as u64)), 1 + nth as u64);
        assert_eq!(described[lines.unit_number(units[0]).unwrap()], owner);
    }
    assert_eq!(lines.get(id).state, LineState::Closing);
    assert!(lines.finish(id).is_empty());
    assert_eq!(lines.get(id).state, LineState::Closed);
}

#[test]
fn a_line_with_a_failure_gets_no_end() {
    let mut lines = lines();
    lines.open_next(0);
    lines.take_pages(0, &[0, 0], 1).unwrap();
    let block = lines.block(LineId(0), 1);
    lines.failed(LineId(0), block);
    assert_eq!((lines.open[0], lines.get(LineId(0)).state), (None, LineState::Closing));
    lines.get_mut(LineId(0)).programs = 0;
    assert!(lines.finish(LineId(0)).is_empty());
    assert_eq!((lines.get(LineId(0)).state, lines.victim(0)), (LineState::Closed, Some(LineId(0))));
    // The next one that is opened has all of its blocks, and this one is without the bad one once it is erased.
    lines.open_next(0);
    assert_eq!((lines.open[0], lines.get(LineId(1)).columns.len()), (Some(LineId(1)), 2));
    lines.failed(LineId(0), block);
    assert_eq!(lines.open[0], Some(LineId(1)), "a failure of another line ends it not");
    lines.begin_erase(LineId(0));
    lines.erased(LineId(0));
    for _ in 0..11 {
        lines.end(0);
        lines.open_next(0);
    }
    assert_eq!((lines.open[0], &lines.get(LineId(0)).columns), (Some(LineId(0)), &vec![0]));
    assert_eq!(lines.first_block(LineId(0)), lines.block(LineId(0), 0));
    assert_eq!(lines.blocks(LineId(0)).count(), 2);
}

/// A line whose good blocks have no room for data is out of use.
#[test]
fn a_line_without_good_blocks_is_passed_over() {
    let mut lines = lines();
    for column in 0..2 {
        let block = lines.block(LineId(0), column);
        lines.erase_failed(block);
    }
    lines.open_next(0).expect("others are good");
    assert_eq!((lines.open[0], lines.get(LineId(0)).state), (Some(LineId(1)), LineState::Retired));
    assert_eq!((lines.get(LineId(1)).number, lines.free_count(0)), (1, 10));
}

#[test]
fn what_a_recovery_finds_is_closed_free_or_goes_on() {
    let mut lines = lines();
    lines.found(LineId(2), Some(&LineStart { line: 7, left_out: vec![0] }));
    lines.found(LineId(3), None);
    lines.found(LineId(4), Some(&LineStart { line: 5, left_out: Vec::new() }));
    let line = |line| lines.get(LineId(line));
    assert_eq!((line(2).age(), &line(2).columns), (7, &vec![1]));
    assert_eq!((line(3).age(), &line(3).columns), (u64::MAX, &vec![0, 1]));
    assert_eq!(lines.free_count(0), 9);
    lines.get_mut(LineId(3)).valid = 1;
    let owners = vec![(Owner::Pad, 0); 32];
    lines.resume(LineId(4), vec![2, 1], owners.clone());
    assert_eq!((lines.open[0], lines.get(LineId(4)).state), (Some(LineId(4)), LineState::Open));
    assert_eq!(lines.get(LineId(4)).owners.len(), 32);
    lines.free_empty();
    assert_eq!((lines.free_count(0), lines.get(LineId(2)).state), (10, LineState::Free));
    assert_eq!(lines.get(LineId(3)).state, LineState::Closed);
    assert_eq!(lines.get(LineId(4)).state, LineState::Open);
    // Where a page of end metadata is there already none can describe the rest.
    let data = |line: &Lines| line.end_pages(LineId(4))[0].page;
    let last = data(&lines);
    for (next, is_described) in [([last, last], true), ([8, 8], false)] {
        lines.resume(LineId(4), next.to_vec(), owners.clone());
        assert_eq!(!lines.get(LineId(4)).owners.is_empty(), is_described, "{next:?}");
    }
    lines.end(0);
    lines.open_next(0).unwrap();
    let open = lines.open[0].expect("one is open");
    assert_eq!(lines.get(open).number, 8, "numbers go on behind the greatest");
}

/// Planes of a die are programmed together, up to the pages of end metadata.
#[test]
fn planes_of_a_die_program_together() {
    let shape = FlashCounts { planes_per_die: 2, ..SHAPE };
    let layout = Layout::new(&config(), FlashGeometry::new(shape), UNIT_BYTES).expect("it is valid");
    let mut lines = Lines::new(&layout);
    lines.open_next(0);
    let end = lines.end_pages(LineId(0));
    let mut pages = Vec::new();
    while let Some(program) = lines.take_pages(0, &[0, 0], 1) {
        assert!(
            program
                .pages
                .iter()
                .all(|at| layout.die_of(at.block) == program.die && at.page == program.pages[0].page)
        );
        pages.push(program.pages);
    }
    assert!(pages.iter().flatten().all(|at| !end.contains(at)));
    let units: usize = pages.iter().map(Vec::len).sum();
    assert_eq!(units as u32 * 2, layout.data_units());
    // One page stands alone beside the start, and one beside the end.
    assert_eq!(pages.iter().filter(|pages| pages.len() == 1).count(), 2);
}
