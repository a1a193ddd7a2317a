//! What is in each segment of the disk: the report of a host that places all by itself.

use super::error::Result;
use super::find;
use crate::boxed::Boxed;
use crate::f2fs::appended::layout::MAP_AT;
use crate::f2fs::appended::map::pointers;
use crate::f2fs::layout::{Log, SEGMENT_BLOCKS, SegNo};
use crate::port::BlockPort;
use std::rc::Rc;

/// Purpose of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The superblock and its copy.
    Superblock,
    /// Checkpoints.
    Packs,
    /// The inode map and the usage of segments.
    Map,
    /// Data or nodes of this log; `None` if the segment is free.
    Main(Option<Log>),
}

impl Purpose {
    /// A word or two.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Packs => "checkpoints",
            Self::Map => "map",
            Self::Main(None) => "free",
            Self::Main(Some(Log::HotData)) => "hot data",
            Self::Main(Some(Log::WarmData)) => "warm data",
            Self::Main(Some(Log::ColdData)) => "cold data",
            Self::Main(Some(Log::HotNode)) => "hot nodes",
            Self::Main(Some(Log::WarmNode)) => "warm nodes",
            Self::Main(Some(Log::ColdNode)) => "cold nodes",
        }
    }
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: u32,
    /// Its purpose.
    pub purpose: Purpose,
    /// Number of blocks that are written: the write pointer.
    pub written: u32,
    /// Number of blocks that the last checkpoint names; `None` for superblock and checkpoints.
    pub valid: Option<u32>,
    /// Whether a log of the last checkpoint writes it.
    pub is_open: bool,
}

/// Lists the segments of a volume, and returns the number of blocks of each. Errors: it cannot be mounted, or the port fails.
pub fn segments(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<(u32, Vec<Segment>)>> {
    Box::pin(list(port))
}

async fn list(port: Rc<dyn BlockPort>) -> Result<(u32, Vec<Segment>)> {
    let (volume, _) = find::mount(Rc::clone(&port)).await?;
    let map = volume.node_map().expect("it was mounted as such");
    let (superblock, blocks) = (&map.superblock, map.superblock.segment_blocks);
    let written = pointers(&*port, 0..superblock.segments).await?;
    let usage = volume.sit_entries().await?;
    let tables = [&map.entries.blocks, &map.entries.roots, &map.usage.blocks, &map.usage.roots];
    let mut in_map = vec![0; superblock.segments as usize];
    for place in tables.into_iter().flatten() {
        if let Some(count) = in_map.get_mut((place.0 / blocks) as usize) {
            *count += 1;
        }
    }
    let parts = blocks / SEGMENT_BLOCKS;
    let describe = |number: u32| {
        let (written, ring) = (written[number as usize], superblock.map());
        let meta = |purpose, valid| Segment { number, purpose, written, valid, is_open: false };
        match number {
            0 => meta(Purpose::Superblock, None),
            number if number < MAP_AT => meta(Purpose::Packs, None),
            number if number < ring.end => meta(Purpose::Map, Some(in_map[number as usize])),
            number => {
                let first = (number - ring.end) * parts;
                let open = (first..first + parts).find_map(|part| volume.log_at(SegNo(part)));
                let entries = usage.iter().skip(first as usize).take(parts as usize);
                let used = entries.clone().find(|entry| entry.valid > 0).map(|entry| usize::from(entry.log));
                let log = open.map(|(log, _)| log).or_else(|| Log::ALL.get(used?).copied());
                let valid = entries.map(|entry| u32::from(entry.valid)).sum();
                let purpose = Purpose::Main(log);
                Segment { number, purpose, written, valid: Some(valid), is_open: open.is_some() }
            }
        }
    };
    Ok((blocks, (0..superblock.segments).map(describe).collect()))
}
