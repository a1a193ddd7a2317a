//! Rules of room that few volumes come to.

use super::super::layout::checkpoint::ORPHANS_PER_BLOCK;
use super::super::layout::{Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::super::{Options, mkfs};
use super::F2fs;
use super::area::PACK_OTHERS;
use super::by_nid::DirtyNodes;
use super::state::State;
use crate::port::{Image, block_on};
use std::rc::Rc;

fn mounted(mib: u64) -> F2fs {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    block_on(F2fs::mount(image)).unwrap()
}

/// Free sections become so many.
fn set_free(state: &mut State, sections: u32) {
    let mut all = (0..state.geometry.main_segments).map(SegNo);
    while state.space.free.sections() > sections {
        state.space.free.remove(all.next().expect("there are more"));
    }
}

/// What a checkpoint would write has to fit into what is free beside what cleaning needs: whole sections of it into sections, and the
/// rest into another one, or into what the open segments still have (`has_not_enough_free_secs` of Linux).
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

/// Inodes without names stand in the pack, which has a segment.
#[test]
fn a_pack_has_room_for_all_inodes_without_names() {
    let fs = mounted(64);
    let mut state = fs.state.borrow_mut();
    for payload in [0, 1, 200, SEGMENT_BLOCKS / 2] {
        state.area.payload = payload;
        let blocks = (SEGMENT_BLOCKS - payload - PACK_OTHERS) as usize;
        assert_eq!(state.area.nameless_max(), blocks * ORPHANS_PER_BLOCK, "as many as there is room for");
    }
}
