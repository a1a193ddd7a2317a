//! Mounting for reading: the newest checkpoint is found, and where it says that blocks of the map are.
//!
//! Place in the data flow: [`mount`] makes a [`Volume`], through which the F2FS reader and writer find everything else.
//!
//! It is a table of steps: superblock; the write pointers of both segments of packs, from which the last complete checkpoint is found
//! backwards; its pack; all blocks of places (append-segments §4.10).

use super::error::{Error, Result, corrupt};
use crate::f2fs::Volume;
use crate::f2fs::appended::layout::{self, PLACES_PER_BLOCK, Root, Superblock};
use crate::f2fs::appended::map::{Map, Places, blocks_at, is_unwritten, pointers};
use crate::f2fs::layout::checkpoint::{self, Checkpoint, Epoch, Flags};
use crate::f2fs::layout::summary::{Summary, decode_compact};
use crate::f2fs::layout::{Addr, Geometry, Nid};
use crate::port::{Block, BlockPort, bytes_of};
use std::rc::Rc;
use std::sync::Arc;

/// The first of the two superblocks that is valid.
pub(super) async fn superblock_of(port: &dyn BlockPort) -> Result<Superblock> {
    let segment_blocks = port.segment_blocks();
    if segment_blocks == 0 {
        return Err(Error::Absent(super::error::Named, "the disk has no append segments".into()));
    }
    let mut errors = Vec::new();
    for block in 0..2 {
        let answer = match port.read(Block(block), 1).completed().await {
            Ok(answer) => answer,
            Err(error) if is_unwritten(&error) => {
                let what = format!("block {block} was never written");
                errors.push(Error::Absent(super::error::Named, what));
                continue;
            }
            Err(error) => {
                errors.push(error.into());
                continue;
            }
        };
        match Superblock::decode(&bytes_of(&answer[0])) {
            Ok(superblock) if superblock.segment_blocks != segment_blocks => {
                let says = superblock.segment_blocks;
                errors.push(Error::Corrupt(format!(
                    "the volume has segments of {says} blocks, its disk of {segment_blocks}"
                )));
            }
            Ok(superblock) if superblock.blocks() > port.capacity_blocks() => {
                let (has, needs) = (port.capacity_blocks(), superblock.blocks());
                errors.push(Error::Corrupt(format!("the volume has {needs} blocks, its disk {has}")));
            }
            Ok(superblock) => return Ok(superblock),
            Err(error) => errors.push(error.into()),
        }
    }
    // What cannot be read, is broken or not supported is reported rather than the absence of the other copy.
    let absent = |error: &Error| matches!(error, Error::Absent(..));
    Err(errors.swap_remove(usize::from(absent(&errors[0]) && !absent(&errors[1]))))
}

async fn block_at(port: &dyn BlockPort, addr: Addr) -> Result<Arc<[u8]>> {
    let answer = port.read(Geometry::block(addr), 1).completed().await?;
    Ok(bytes_of(&answer[0]))
}

/// A complete checkpoint and its place.
struct Newest {
    root: Root,
    crc: u32,
    addr: Addr,
}

/// The last complete checkpoint that can be read among the first `written` blocks of a segment, and the error of a block behind it.
async fn newest_in(
    port: &dyn BlockPort,
    superblock: &Superblock,
    segment: u32,
    written: u32,
) -> Result<(Option<Newest>, Option<Error>)> {
    let first = superblock.first_block(segment).0;
    let mut unreadable = None;
    for addr in (first..first + written).rev().map(Addr) {
        let block = match block_at(port, addr).await {
            Ok(block) => block,
            Err(error) => {
                unreadable.get_or_insert(error);
                continue;
            }
        };
        if let Some(root) = Root::decode(&block, superblock) {
            let root = root?;
            if addr.0 - first + 1 < root.checkpoint.pack_blocks {
                return corrupt(format!("the pack of the checkpoint at {addr} begins before its segment"));
            }
            return Ok((Some(Newest { root, crc: Root::crc_of(&block), addr }), unreadable));
        }
    }
    Ok((None, unreadable))
}

/// The newest checkpoint of both segments of packs, and its segment. Errors: a block that cannot be read may hold a newer one. All
/// checkpoints of one segment are older than those of the other, so it cannot behind the older one of two.
async fn newest_of(port: &dyn BlockPort, superblock: &Superblock, written: &[u32]) -> Result<(u32, Newest)> {
    let mut found = Vec::new();
    for segment in 1..3 {
        let (newest, unreadable) =
            newest_in(port, superblock, segment, written[segment as usize - 1]).await?;
        match (newest, unreadable) {
            (Some(newest), unreadable) => found.push((segment, newest, unreadable)),
            (None, Some(error)) => return Err(error),
            (None, None) => (),
        }
    }
    match found.into_iter().max_by_key(|(_, newest, _)| newest.root.checkpoint.version) {
        Some((.., Some(error))) => Err(error),
        Some((segment, newest, None)) => Ok((segment, newest)),
        None => corrupt("no checkpoint is complete"),
    }
}

/// Mounts a volume for reading. Returns also how many blocks are written in each segment of packs and of the map, from segment 1 on.
/// Errors: there is no volume, it is corrupt, or it has what is not supported.
pub(super) async fn mount(port: Rc<dyn BlockPort>) -> Result<(Volume, Vec<u32>)> {
    let superblock = superblock_of(&*port).await?;
    let mut written = pointers(&*port, 1..3).await?;
    let (segment, Newest { root, crc, addr }) = newest_of(&*port, &superblock, &written).await?;
    let refused = root.checkpoint.flags.refused();
    if !refused.is_empty() {
        return Err(Error::Refused(format!("the checkpoint flag {}", refused.join(", "))));
    }
    let pack = Addr(addr.0 + 1 - root.checkpoint.pack_blocks);
    let (orphans, summaries) = read_pack(&*port, &root.checkpoint, pack).await?;
    let entries = read_places(&*port, &superblock, root.timb, superblock.entry_blocks()).await?;
    let usage = read_places(&*port, &superblock, root.usage, superblock.usage_blocks()).await?;
    let ring = pointers(&*port, superblock.map()).await?;
    let map = Map {
        cursor: continued(&superblock, root.cursor, &ring)?,
        used: ring.iter().map(|written| *written > 0).collect(),
        pack: (segment, written[segment as usize - 1]),
        other_pack: written[2 - segment as usize],
        entries,
        usage,
        superblock,
    };
    let epoch = Epoch::of(&root.checkpoint, crc);
    written.extend(ring);
    Ok((Volume::appended(port, map, root.checkpoint, epoch, orphans, summaries), written))
}

/// Where the map goes on: blocks of a checkpoint that did not get complete may be behind the place that the last one says. Errors: less is
/// written there.
fn continued(superblock: &Superblock, (segment, offset): (u32, u32), ring: &[u32]) -> Result<(u32, u32)> {
    let written = ring[(segment - superblock.map().start) as usize];
    if offset > written {
        return corrupt(format!(
            "{offset} blocks of the map are in segment {segment} according to the checkpoint, and {written} are written"
        ));
    }
    Ok((segment, written))
}

/// Orphans, and summaries of the data logs.
async fn read_pack(
    port: &dyn BlockPort,
    checkpoint: &Checkpoint,
    pack: Addr,
) -> Result<(Vec<Nid>, [Summary; 3])> {
    let places: Vec<Addr> = (pack.0..pack.0 + checkpoint.pack_blocks - 1).map(Addr).collect();
    let blocks = blocks_at(port, &places).await?;
    let (lists, summaries) = blocks.split_at(checkpoint.summary_start as usize);
    let mut orphans = Vec::new();
    if checkpoint.flags.has(Flags::ORPHANS) {
        for block in lists {
            orphans.extend(checkpoint::decode_orphans(block)?);
        }
    }
    Ok((orphans, decode_compact(&summaries.concat(), &checkpoint.cursors)?))
}

/// Places of the blocks of a table. Errors: a place outside of the map.
async fn read_places(
    port: &dyn BlockPort,
    superblock: &Superblock,
    roots: Vec<Addr>,
    count: u32,
) -> Result<Places> {
    let map = superblock.first_block(superblock.map().start)..superblock.first_block(superblock.map().end);
    let check = |place: Addr| match place == Addr::NULL || map.contains(&place) {
        true => Ok(place),
        false => {
            corrupt(format!("a block of the map is at {place}, outside of {} to {}", map.start, map.end))
        }
    };
    roots.iter().try_for_each(|root| check(*root).map(drop))?;
    let mut blocks = Vec::with_capacity((roots.len() as u32 * PLACES_PER_BLOCK) as usize);
    for block in blocks_at(port, &roots).await? {
        for place in layout::places(&block) {
            blocks.push(check(place)?);
        }
    }
    blocks.truncate(count as usize);
    Ok(Places { blocks, roots })
}

#[cfg(test)]
mod tests {
    use super::super::mkfs::{Options, mkfs};
    use super::*;
    use crate::port::{Segments, block_on};
    use flashweir_core::command::SegmentId;

    /// A power cut had left two blocks of a checkpoint in the next segment of the map, and the full one before it was taken for that.
    #[test]
    fn regression_a_full_segment_of_the_map_is_not_the_next_one() {
        let disk = Segments::in_memory(64, 512);
        let superblock = block_on(mkfs(&disk, &Options::new(64 * 512))).unwrap();
        let first = superblock.map().start;
        let mut ring = vec![0; superblock.map_segments as usize];
        (ring[0], ring[1]) = (512, 2);
        assert_eq!(continued(&superblock, (first, 500), &ring).unwrap(), (first, 512));
        assert!(continued(&superblock, (first + 1, 3), &ring).is_err(), "nothing could be written there");
        let map = Map {
            entries: Places::default(),
            usage: Places::default(),
            cursor: (first, 512),
            used: ring.iter().map(|written| *written > 0).collect(),
            pack: (1, 2),
            other_pack: 0,
            superblock,
        };
        assert_eq!(map.dead_segments(), [SegmentId(first + 1)], "what no checkpoint knows is discarded");
    }
}
