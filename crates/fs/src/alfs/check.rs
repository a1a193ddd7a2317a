//! Checking of a volume, read-only: the walk and the tables of [F2FS](mod@crate::f2fs::check), and the map.

use super::error::Result;
use super::find;
use crate::boxed::Boxed;
use crate::f2fs::appended::layout::Superblock;
use crate::f2fs::appended::map::{Map, is_unwritten, pointers};
use crate::f2fs::appended::missing;
use crate::f2fs::check::{Report, check_volume};
use crate::f2fs::layout::Addr;
use crate::port::{Block, BlockPort, bytes_of};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Checks a volume. Errors: it cannot be mounted, or the port fails.
pub fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Report>> {
    Box::pin(look(port))
}

async fn look(port: Rc<dyn BlockPort>) -> Result<Report> {
    let (volume, _) = find::mount(Rc::clone(&port)).await?;
    let map = volume.node_map().expect("it was mounted as such").clone();
    let (sit, superblock) = (volume.sit_entries().await?, &map.superblock);
    let written = pointers(&*port, superblock.map().end..superblock.segments).await?;
    let missing: Vec<String> = missing(volume.geometry(), volume.checkpoint(), &sit, &written).collect();
    let mut report = check_volume(volume).await?;
    missing.into_iter().for_each(|what| report.add("unwritten", what));
    superblocks(&*port, &map.superblock, &mut report).await?;
    places(&*port, &map, &mut report).await?;
    Ok(report)
}

async fn superblocks(port: &dyn BlockPort, superblock: &Superblock, report: &mut Report) -> Result<()> {
    for block in 0..2 {
        let what = match port.read(Block(block), 1).completed().await {
            Ok(answer) => match Superblock::decode(&bytes_of(&answer[0])) {
                Ok(copy) if copy == *superblock => continue,
                Ok(_) => format!("the two copies differ, in block {block}"),
                Err(error) => format!("the copy in block {block}: {error}"),
            },
            Err(error) if is_unwritten(&error) => format!("the copy in block {block} was never written"),
            Err(error) => format!("the copy in block {block} cannot be read: {error}"),
        };
        report.add("superblock", what);
    }
    Ok(())
}

/// Whether the blocks of the map are written, and each of them has one place.
async fn places(port: &dyn BlockPort, map: &Map, report: &mut Report) -> Result<()> {
    let Superblock { segment_blocks, .. } = map.superblock;
    let ring = map.superblock.map();
    let written = pointers(port, ring.clone()).await?;
    let mut seen: BTreeMap<Addr, String> = BTreeMap::new();
    for (name, places) in [
        ("block of entries", &map.entries.blocks),
        ("TIMB block", &map.entries.roots),
        ("usage block", &map.usage.blocks),
        ("block of usage places", &map.usage.roots),
    ] {
        for (index, &place) in places.iter().enumerate().filter(|(_, place)| **place != Addr::NULL) {
            let (segment, offset) = (place.0 / segment_blocks, place.0 % segment_blocks);
            if offset >= written[(segment - ring.start) as usize] {
                report.add("map-unwritten", format!("{name} {index} is at {place}, which is not written"));
            }
            if let Some(other) = seen.insert(place, format!("{name} {index}")) {
                report.add("map-twice", format!("{name} {index} is at {place}, where {other} is"));
            }
        }
    }
    Ok(())
}
