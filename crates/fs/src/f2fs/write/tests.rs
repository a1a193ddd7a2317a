//! Tests of rules about free space, and about the pace of cleaning, that few volumes reach.

use super::super::layout::checkpoint::ORPHANS_PER_BLOCK;
use super::super::layout::node::{Footer, NODE_WORDS, inline};
use super::super::layout::summary::Summary;
use super::super::layout::tables::{NatEntry, SitEntry};
use super::super::layout::{Addr, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::super::{Options, check, mkfs};
use super::area::PACK_OTHERS;
use super::by_nid::DirtyNodes;
use super::checkpoint::is_indirect;
use super::fs::LINKS_MAX;
use super::state::State;
use super::stop::Stop;
use super::{CommitMode, F2fs, F2fsOptions, check_tables};
use crate::engine::Nodes as _;
use crate::port::{BLOCK_BYTES, Image, block_on};
use crate::vfs::{
    Barrier, DirtyPage, Errno, Fs, Ino, Kind, NewAcls, NewNode, SetAttr, SyncKind, Timestamp, WriteCause,
};
use flashweir_core::{Duration, Payload};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

fn mounted(mib: u64) -> F2fs {
    mounted_with(mib, 1)
}

/// A new volume with so many segments in a section.
pub(super) fn mounted_with(mib: u64, segments_per_section: u32) -> F2fs {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options { segments_per_section, ..Options::new(mib << 8) })).unwrap();
    block_on(F2fs::mount(image)).unwrap()
}

/// Changes the state so that this number of sections is free.
fn set_free(state: &mut State, sections: u32) {
    let mut all = (0..state.geometry.main_segments).map(SegNo);
    while state.space.free.sections() > sections {
        state.space.free.remove(all.next().expect("there are more"));
    }
}

/// The blocks that a checkpoint would write have to fit into the space that is free beside that for cleaning: whole sections of
/// them into sections, and the rest into another one, or into the room that the open segments still have
/// (`has_not_enough_free_secs` of Linux).
#[test]
fn cleaning_comes_first_where_a_checkpoint_would_not_fit() {
    let fs = mounted(96);
    let mut state = fs.state.borrow_mut();
    let reserved = state.space.reserved_sections;
    let rests = [0, 1, 300, SEGMENT_BLOCKS - 1];
    for free in (reserved..reserved + 6).rev() {
        set_free(&mut state, free);
        for nodes in rests.into_iter().flat_map(|rest| [rest, SEGMENT_BLOCKS + rest]) {
            state.dirty = DirtyNodes::default();
            for nid in 0..nodes {
                state.dirty.insert((Nid(100), Nid(1_000 + nid)));
            }
            for entries in rests {
                state.blocks_dirty = (0..u64::from(entries)).map(|index| (Nid(100), index)).collect();
                for (node_room, entry_room) in [(512, 512), (200, 512), (512, 200), (200, 200)] {
                    for log in Log::ALL {
                        let room = if log.is_node() { node_room } else { entry_room };
                        state.logs[log.index()].cursor.offset = (SEGMENT_BLOCKS - room) as u16;
                    }
                    let whole = nodes / SEGMENT_BLOCKS + reserved;
                    let (rest, is_tight) =
                        (nodes % SEGMENT_BLOCKS, nodes % SEGMENT_BLOCKS > node_room || entries > entry_room);
                    let most = whole + u32::from(rest > 0) + u32::from(entries > 0);
                    let expected = free <= whole || free <= most && is_tight;
                    let case = (free, nodes, entries, node_room, entry_room);
                    assert_eq!(state.is_short(0), expected, "{case:?}, {reserved} are reserved");
                }
            }
        }
    }
}

/// Inodes without names are listed in the pack, which has one segment.
#[test]
fn a_pack_has_room_for_all_inodes_without_names() {
    let fs = mounted(64);
    let mut state = fs.state.borrow_mut();
    for payload in [0, 1, 200, SEGMENT_BLOCKS / 2] {
        state.area.set_payload(payload);
        let blocks = (SEGMENT_BLOCKS - payload - PACK_OTHERS) as usize;
        assert_eq!(state.area.nameless_max(), blocks * ORPHANS_PER_BLOCK, "as many as there is room for");
    }
}

/// Nodes are numbered as the tree is walked: the inode, two direct ones, two indirect ones with theirs, and the double indirect one
/// with its indirect ones and theirs.
#[test]
fn indirect_nodes_are_known_by_their_offsets() {
    let with_direct = |nodes: &mut Vec<bool>| {
        nodes.push(true);
        nodes.extend([false; NODE_WORDS as usize]);
    };
    let mut nodes = vec![false; 3];
    with_direct(&mut nodes);
    with_direct(&mut nodes);
    nodes.push(true);
    for _ in 0..3 {
        with_direct(&mut nodes);
    }
    for (offset, expected) in (0..).zip(nodes) {
        assert_eq!(is_indirect(offset), expected, "node {offset}");
    }
    assert!(!is_indirect(Footer::XATTR_OFFSET));
}

/// The count of links has 32 bits, one of which is not used.
#[test]
fn a_directory_has_only_so_many_directories() {
    let fs = mounted(64);
    let root = fs.root();
    let node = |kind| NewNode {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        now: Timestamp::default(),
        acls: NewAcls::default(),
    };
    let make = |name: &'static [u8], kind| block_on(fs.create(root, name, &node(kind)));
    make(b"first", Kind::Directory).unwrap();
    fs.state.borrow_mut().inode_mut(Nid(root.0 as u32)).unwrap().links = LINKS_MAX - 1;
    make(b"last", Kind::Directory).unwrap();
    assert_eq!(make(b"one more", Kind::Directory).unwrap_err(), Errno::EMLINK);
    make(b"file", Kind::File).unwrap();
}

/// A checkpoint waits for the writes that began before it.
#[test]
fn writes_have_numbers_of_their_own() {
    let fs = mounted(64);
    let [first, second] = [(); 2].map(|()| fs.begin_write(Nid(5)));
    assert!(first < second);
    assert!(fs.writes_before(second) && !fs.writes_before(first));
}

/// Writing in place, and the effort of cleaning, depend on the utilization.
#[test]
fn utilization_is_a_share_of_what_users_can_have() {
    let fs = mounted(64);
    let mut state = fs.state.borrow_mut();
    let all = state.checkpoint.user_blocks;
    for (valid, expected) in [(0, 0), (all / 4 - 1, 24), (all / 4, 25), (all, 100)] {
        state.valid_blocks = valid;
        assert_eq!(state.utilization(), expected, "{valid} of {all}");
    }
    state.checkpoint.user_blocks = 0;
    state.valid_blocks = 0;
    assert_eq!(state.utilization(), 0, "a volume without room for users");
}

/// Segments that are half valid, whose blocks no node refers to: cleaning one moves nothing.
fn half_full(fs: &F2fs, count: usize) {
    let mut state = fs.state.borrow_mut();
    let segments: Vec<SegNo> =
        (0..state.geometry.main_segments).map(SegNo).filter(|&at| state.space.free.contains(at)).collect();
    for &segment in &segments[..count] {
        state.space.free.remove(segment);
        let entry = &mut state.sit[segment.0 as usize];
        (0..SEGMENT_BLOCKS / 2).for_each(|at| entry.set_valid(at, true));
        state.space.loaded_summary(segment, Summary::new(false));
    }
}

/// The pace of `gc_thread_func` of Linux: a turn that finds the disk in use waits a step longer, one that cleans a step longer too, or a
/// step shorter where there are many holes, between the least and the most; where nothing is worth it, cleaning sleeps until there are
/// new holes.
#[test]
fn cleaning_in_the_background_keeps_its_pace() {
    let fs = mounted(96);
    let times = fs.options.background.clone().expect("it is the default");
    let (least, most, long) = (times.sleep_min, times.sleep_max, times.sleep_without_victim);
    assert!(least + least == most && most < long, "the steps below are those of the defaults");
    let at = |seconds| Timestamp { seconds, ..Timestamp::default() };
    let turn = |seconds| block_on(fs.clean_in_background(at(seconds)));
    let cleaned = || fs.state.borrow().metrics.cleaned_background;
    let change = |seconds| fs.state.borrow_mut().space.clock.tick(at(seconds));

    assert_eq!(turn(0), None, "there are no holes");
    fs.has_new_holes.set(true);
    change(100);
    assert_eq!(turn(100), Some(least), "writers come first");
    assert_eq!((turn(101), turn(102), turn(103)), (Some(most), Some(most), Some(most)), "the disk is in use");
    assert_eq!(cleaned(), 0);

    half_full(&fs, 5);
    for busy in [&fs.is_cleaning, &fs.is_checkpointing] {
        busy.set(true);
        assert_eq!((turn(200), cleaned()), (Some(most), 0));
        busy.set(false);
    }
    let number = fs.begin_write(Nid(0));
    assert_eq!((turn(200), cleaned()), (Some(most), 0), "data are being written");
    fs.end_placing(number);
    fs.end_write(number);

    fs.sleep.set(Some(least));
    assert_eq!((turn(210), cleaned()), (Some(most), 1), "there is enough free space");
    set_free(&mut fs.state.borrow_mut(), 8);
    assert!(fs.state.borrow().has_many_holes());
    assert_eq!((turn(220), cleaned()), (Some(least), 2), "there are many holes");
    assert_eq!((turn(230), cleaned()), (Some(least), 3), "there is no less");

    // Once more after a long sleep.
    fs.sleep.set(Some(long));
    assert_eq!((turn(240), cleaned()), (Some(most), 4));
    let sections = fs.state.borrow().sections();
    fs.state.borrow_mut().space.cleaned.extend(0..sections);
    assert_eq!((turn(250), fs.has_new_holes.get()), (None, false), "nothing is worth it");
    assert_eq!((turn(260), fs.sleep.get()), (None, Some(long)));
    fs.has_new_holes.set(true);
    assert_eq!(turn(270), Some(long));
    change(270);
    assert_eq!(turn(271), Some(long), "the disk is in use");
}

/// A checkpoint is made where none was for the interval, and the background comes back when the next thing is due.
#[test]
fn checkpoints_in_the_background_come_when_they_are_due() {
    let fs = mounted(64);
    let at = |seconds| Timestamp { seconds, ..Timestamp::default() };
    let interval = Duration::from_secs(60);
    let turn = |seconds| block_on(fs.checkpoint_in_background(at(seconds), interval));
    let seconds = Duration::from_secs;
    let begun = || fs.checkpoints_begun.get();
    let first = begun();
    let make = |name: &'static [u8], seconds| {
        let (kind, now) = (Kind::File, at(seconds));
        let node = NewNode { kind, mode: 0o644, uid: 0, gid: 0, now, acls: NewAcls::default() };
        block_on(fs.create(fs.root(), name, &node)).unwrap();
    };
    assert_eq!(turn(1_000), seconds(60), "the first look begins the interval");
    make(b"one", 1_010);
    assert_eq!(turn(1_010), seconds(50));
    assert_eq!((turn(1_059), begun()), (seconds(1), first));
    assert_eq!((turn(1_060), begun()), (seconds(60), first + 1), "a checkpoint is due");
    make(b"two", 1_070);
    block_on(fs.checkpoint()).unwrap();
    assert_eq!((turn(1_120), begun()), (seconds(60), first + 2), "one was made in between");
    make(b"three", 1_130);
    assert_eq!((turn(1_180), begun()), (seconds(60), first + 3));
}

fn file(fs: &F2fs, name: &'static [u8]) -> Nid {
    let (kind, now) = (Kind::File, Timestamp::default());
    let node = NewNode { kind, mode: 0o644, uid: 0, gid: 0, now, acls: NewAcls::default() };
    Nid(block_on(fs.create(fs.root(), name, &node)).unwrap().ino.0 as u32)
}

/// While an fsync waits, another task may move contents out of the inode: they are in no block yet, and the inode does not have them any
/// more. The fsync has to begin again; it made a hole durable.
#[test]
fn regression_an_inode_is_not_synced_before_what_was_inline() {
    let fs = mounted(64);
    let ino = file(&fs, b"inline");
    block_on(fs.checkpoint()).unwrap();
    let mut state = fs.state.borrow_mut();
    let inode = state.inode_mut(ino).unwrap();
    inode.inline_bytes_mut()[..5].copy_from_slice(b"hello");
    (inode.inline, inode.size) = (inode.inline | inline::DATA | inline::DATA_EXIST, 5);
    state.make_blocks(ino).unwrap();
    assert!(!state.link(ino, SyncKind::All).unwrap());
    state.place_blocks(ino).unwrap();
    assert!(state.link(ino, SyncKind::All).unwrap());
}

/// Between the removal of a file's last name and its end nobody can open it: its number goes to another file.
#[test]
fn regression_a_file_that_is_being_freed_cannot_be_opened() {
    let fs = mounted(64);
    let (gone, held) = (file(&fs, b"gone"), file(&fs, b"held"));
    let at = |nid: Nid| Ino(nid.0.into());
    block_on(fs.hold(at(held))).unwrap();
    for name in [b"gone", b"held"] {
        let _ = fs.state.borrow_mut().unlink(Nid::ROOT, name, Timestamp::default()).unwrap();
    }
    assert_eq!(block_on(fs.hold(at(gone))).unwrap_err(), Errno::ESTALE);
    // Whoever has it open may open it again.
    block_on(fs.hold(at(held))).unwrap();
}

/// A checkpoint for others leaves pages that are written in place, but its pack may have a new length of their file. Of the page in which the
/// file ends more is visible then, and the power failed before the zeros that were written there became durable.
#[test]
fn regression_any_checkpoint_flushes_the_page_in_which_a_file_ends() {
    let fs = mounted(64);
    let (nid, at) = (file(&fs, b"file"), |index| DirtyPage { index, payload: Payload::Zero });
    let ino = Ino(nid.0.into());
    block_on(fs.reserve(ino, (0, 2 * BLOCK_BYTES as u64))).unwrap();
    block_on(fs.write_pages(ino, &[at(0), at(1)], WriteCause::Sync)).unwrap();
    let size = SetAttr { size: Some(BLOCK_BYTES as u64 + 100), ..SetAttr::default() };
    block_on(fs.setattr(ino, &size)).unwrap();
    block_on(fs.checkpoint()).unwrap();
    for (index, is_left) in [(1, false), (0, true)] {
        block_on(fs.write_pages(ino, &[at(index)], WriteCause::DataSync)).unwrap();
        assert_eq!(fs.in_place_since.get().is_some(), is_left, "page {index}");
    }
    assert_eq!(fs.state.borrow().metrics.in_place_pages, 2);
}

/// What tables say is checked before anything is written by them.
#[test]
fn tables_that_contradict_themselves_are_refused() {
    let fs = mounted(64);
    let state = fs.state.borrow();
    let mut nat = BTreeMap::from([(Nid(5), NatEntry { version: 0, ino: Nid(5), addr: Addr::NEW })]);
    check_tables(&state.geometry, &state.sit, &nat, std::iter::empty()).unwrap();
    let refused = |sit: &[SitEntry], nat: &BTreeMap<Nid, NatEntry>| {
        check_tables(&state.geometry, sit, nat, std::iter::empty()).unwrap_err().to_string()
    };
    for damage in [
        (|entry: &mut SitEntry| entry.valid += 1) as fn(&mut SitEntry),
        |entry| entry.map[63] ^= 1,
        |entry| entry.log = 6,
    ] {
        let mut sit = state.sit.clone();
        damage(&mut sit[3]);
        assert!(refused(&sit, &nat).contains("segment 3 of log"), "{}", refused(&sit, &nat));
    }
    for nid in [state.geometry.nid_end(), Nid(u32::MAX)] {
        nat.insert(nid, NatEntry { version: 0, ino: nid, addr: Addr::NEW });
        assert!(refused(&state.sit, &nat).contains("has an entry"));
        nat.remove(&nid);
        // One that is freed in the NAT's journal: its block of the NAT would be written.
        assert!(check_tables(&state.geometry, &state.sit, &nat, [nid].into_iter()).is_err());
    }
}

/// A node whose inode cannot be read stays where it is: no checkpoint could place it.
#[test]
fn regression_cleaning_leaves_nodes_of_inodes_that_it_cannot_read() {
    let fs = mounted(64);
    let nid = file(&fs, b"file");
    let pages: Vec<DirtyPage> = (0..1_000).map(|index| DirtyPage { index, payload: Payload::Zero }).collect();
    block_on(fs.reserve(Ino(nid.0.into()), (0, 1_000 * BLOCK_BYTES as u64))).unwrap();
    block_on(fs.write_pages(Ino(nid.0.into()), &pages, WriteCause::Sync)).unwrap();
    block_on(fs.checkpoint()).unwrap();
    let mut state = fs.state.borrow_mut();
    let below = state.inode(nid).unwrap().node(0);
    let addr = state.nat[&below].addr;
    state.inodes.remove(&nid);
    assert!(matches!(state.move_node(addr, below), Err(Stop::Inode(of)) if of == nid));
    assert_eq!(state.dirty.range((nid, below)..=(nid, below)).next(), None);
}

/// A directory that was removed while it is open has neither a parent nor links.
#[test]
fn a_removed_directory_that_is_open_is_no_problem() {
    let image = Rc::new(Image::in_memory(64 << 8));
    block_on(mkfs(&*image, &Options::new(64 << 8))).unwrap();
    let fs = block_on(F2fs::mount(Rc::clone(&image) as _)).unwrap();
    let (kind, now) = (Kind::Directory, Timestamp::default());
    let node = NewNode { kind, mode: 0o755, uid: 0, gid: 0, now, acls: NewAcls::default() };
    let dir = block_on(fs.create(fs.root(), b"dir", &node)).unwrap().ino;
    block_on(fs.hold(dir)).unwrap();
    block_on(fs.rmdir(fs.root(), b"dir", now)).unwrap();
    block_on(fs.checkpoint()).unwrap();
    let report = block_on(check(image)).unwrap();
    assert_eq!((report.problems, report.orphans), (Vec::new(), 1));
}

/// A hole is punched into a sparse file by its nodes and not page by page: this would take hours.
#[test]
fn a_hole_in_a_large_sparse_file_is_punched_at_once() {
    let fs = mounted(64);
    let ino = file(&fs, b"sparse");
    let pages = 1_000_000_000;
    let mut state = fs.state.borrow_mut();
    state.inode_mut(ino).unwrap().size = pages * 4096;
    for index in [0, 1, 5_000_000, pages - 1] {
        state.reserve(ino, index).unwrap();
    }
    state.free_blocks(ino, (1, pages)).unwrap();
    let is_there = |state: &mut State, index| state.address(ino, index).unwrap() != Addr::NULL;
    assert!(is_there(&mut state, 0));
    assert!([1, 5_000_000, pages - 1].into_iter().all(|index| !is_there(&mut state, index)));
}

/// The nodes of a checkpoint count once its last block is dispatched, which waits for cleaning and other writes that have places. Until then
/// fdatabarrier once took a page of theirs for found, and a page that was overwritten in place behind it could be newer after a power cut.
#[test]
fn regression_fdatabarrier_waits_for_a_checkpoint_that_is_not_dispatched() {
    let image = Rc::new(Image::in_memory(64 << 8));
    block_on(mkfs(&*image, &Options::new(64 << 8))).unwrap();
    let options = F2fsOptions { commit_mode: CommitMode::DualMode, ..F2fsOptions::default() };
    let fs = block_on(F2fs::mount_with(image, options)).unwrap();
    let nid = file(&fs, b"file");
    let ino = Ino(nid.0.into());
    let page = |index| DirtyPage { index, payload: Payload::Tag(index + 1) };
    let write = || block_on(fs.write_pages(ino, &[page(0)], WriteCause::Background)).unwrap();
    block_on(fs.reserve(ino, (0, 4096))).unwrap();
    write();
    fs.wrote(ino, 4096, Timestamp::default());
    block_on(fs.sync()).unwrap();
    write();
    assert!(fs.ordered.moved.borrow().contains(&nid), "it went to another place");
    let cleaning = fs.begin_write(Nid(0));
    let mut context = Context::from_waker(Waker::noop());
    let mut sync = pin!(fs.sync());
    assert!(sync.as_mut().poll(&mut context).is_pending());
    let mut barrier = pin!(fs.barrier(ino, &[], Barrier::Data));
    assert!(barrier.as_mut().poll(&mut context).is_pending(), "nothing that counts leads to the page");
    fs.end_write(cleaning);
    assert!(sync.as_mut().poll(&mut context).is_ready());
    assert!(barrier.as_mut().poll(&mut context).is_ready());
}
