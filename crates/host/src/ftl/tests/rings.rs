//! A ring by itself: in which order entries leave, what is forced, and what a slot still names.

use crate::ftl::map::Word;
use crate::ftl::recent::Recent;
use crate::ftl::ring::{Before, Change, Entry, Ring, State};
use flashweir_core::command::Tag;
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;

fn entry(lpn: u64) -> Entry {
    Entry {
        change: Change::Write(Payload::Tag(lpn)),
        seq: lpn + 1,
        tags: [Tag(0); 2],
        is_gc: false,
        member: None,
        state: State::Filled,
        before: vec![Before { lpn: Lpn(lpn), place: Word::Empty, seq: 0 }],
    }
}

/// A ring of eight slots, of which so many are filled.
fn filled(entries: u64) -> Ring {
    let mut ring = Ring::new(0, 8);
    (0..entries).for_each(|lpn| ring.push(entry(lpn)));
    ring
}

/// Takes the next entry, as a program does.
fn take(ring: &mut Ring) -> Option<u64> {
    let position = ring.take_pending()?;
    ring.at(position).state = State::Submitted;
    Some(position)
}

#[test]
fn urgent_entries_leave_first_and_all_leave_once() {
    let mut ring = filled(6);
    assert!(!ring.is_forced());
    [3, 3, 1].into_iter().for_each(|position| ring.hurry(position));
    assert!(ring.is_forced());
    assert_eq!([take(&mut ring), take(&mut ring)], [Some(3), Some(1)]);
    assert_eq!((ring.pending(), ring.is_forced()), (4, false));
    ring.hurry(3);
    assert!(!ring.is_forced(), "it has left already");
    let rest: Vec<_> = std::iter::from_fn(|| take(&mut ring)).collect();
    assert_eq!(rest, [0, 2, 4, 5]);
    assert_eq!((ring.pending(), ring.subm, ring.is_forced()), (0, 6, false));
    ring.push(entry(6));
    assert_eq!((ring.pending(), take(&mut ring), ring.subm), (1, Some(6), 7));
}

#[test]
fn what_has_failed_leaves_before_all_others() {
    let mut ring = filled(5);
    ring.hurry(3);
    assert_eq!([take(&mut ring), take(&mut ring), take(&mut ring)], [Some(3), Some(0), Some(1)]);
    ring.failed(0);
    assert_eq!((ring.failures(), ring.pending(), ring.is_forced()), (1, 3, true));
    ring.failed(3);
    assert_eq!((ring.failures(), ring.pending(), ring.is_forced()), (1, 4, true), "it was not its turn yet");
    let rest: Vec<_> = std::iter::from_fn(|| take(&mut ring)).collect();
    assert_eq!(rest, [0, 3, 2, 4]);
    assert_eq!((ring.failures(), ring.pending(), ring.is_forced()), (0, 0, false));
}

/// An entry that was urgent and whose turn comes next is urgent again.
#[test]
fn an_urgent_entry_that_failed_is_urgent_again() {
    let mut ring = filled(3);
    ring.hurry(0);
    assert_eq!(take(&mut ring), Some(0));
    ring.failed(0);
    assert_eq!((ring.failures(), ring.pending(), ring.is_forced()), (0, 3, true));
    let rest: Vec<_> = std::iter::from_fn(|| take(&mut ring)).collect();
    assert_eq!((rest, ring.pending()), (vec![0, 1, 2], 0));
}

#[test]
fn entries_before_the_flush_point_are_forced() {
    let mut ring = filled(3);
    ring.flush_point = 2;
    for expected in [true, true, false] {
        assert_eq!(ring.is_forced(), expected);
        take(&mut ring).unwrap();
    }
}

#[test]
fn a_ring_is_durable_up_to_the_first_entry_that_is_not() {
    let mut ring = filled(4);
    ring.hurry(2);
    let _: Vec<_> = (0..3).map(|_| take(&mut ring)).collect();
    for position in [2, 0] {
        ring.at(position).state = State::Persistent;
    }
    ring.advance();
    assert_eq!((ring.sync, ring.room()), (1, 4));
    ring.at(1).state = State::Persistent;
    ring.advance();
    assert_eq!((ring.sync, ring.subm), (3, 3), "the last one has not left");
    let (slot, published) = ring.take_published();
    assert_eq!((slot, published.seq, ring.room()), (ring.slot(0), 1, 5));
    // A slot that is used again names its new entry alone.
    assert!(ring.find(slot).is_none() && ring.look_at(0).is_none() && ring.look(slot).is_none());
    (4..9).for_each(|lpn| ring.push(entry(lpn)));
    assert_eq!((ring.room(), ring.slot(8).index), (0, slot.index));
    assert!(ring.find(slot).is_none() && ring.look_at(0).is_none());
    assert_eq!(ring.look_at(8).map(|entry| entry.seq), Some(9));
    assert!(ring.look_at(9).is_none());
    let positions: Vec<u64> = ring.entries().map(|(position, _)| position).collect();
    assert_eq!(positions, (1..9).collect::<Vec<_>>());
}

/// A device that keeps two units back gives back the one before them.
#[test]
fn as_many_units_are_recent_as_the_device_keeps_back() {
    let record = OobRecord { owner: Owner::Pad, seq: 0, member: None };
    let mut recent = Recent::new(2);
    assert!(!recent.is_needless() && Recent::new(0).is_needless());
    for ppa in 0..3 {
        recent.add(BlockId(1), (Ppa(ppa), record, Payload::Tag(ppa)));
    }
    recent.add(BlockId(2), (Ppa(9), record, Payload::Tag(9)));
    let tag = |recent: &Recent, block, ppa| recent.find(BlockId(block), Ppa(ppa)).map(|unit| unit.2.clone());
    assert_eq!(
        [0, 1, 2].map(|ppa| tag(&recent, 1, ppa)),
        [None, Some(Payload::Tag(1)), Some(Payload::Tag(2))]
    );
    assert_eq!(tag(&recent, 2, 2), None);
    recent.forget(BlockId(1));
    assert_eq!([tag(&recent, 1, 2), tag(&recent, 2, 9)], [None, Some(Payload::Tag(9))]);
}

/// The originals of copies are durable, so a FLUSH does not wait for what is behind the last entry of a user.
#[test]
fn a_flush_waits_up_to_the_last_entry_of_a_user() {
    let mut ring = filled(0);
    assert_eq!(ring.end_of_users(), 0);
    ring.push(Entry { is_gc: true, ..entry(0) });
    assert_eq!(ring.end_of_users(), 0);
    ring.push(entry(1));
    ring.push(Entry { is_gc: true, ..entry(2) });
    assert_eq!(ring.end_of_users(), 2);
    for _ in 0..2 {
        let position = take(&mut ring).unwrap();
        ring.at(position).state = State::Persistent;
    }
    ring.advance();
    assert_eq!((ring.sync, ring.end_of_users()), (2, 2));
}
