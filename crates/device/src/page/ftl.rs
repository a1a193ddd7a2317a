//! The state of the page-mapped firmware, put together.

use super::buffer::Buffer;
use super::collection::Collection;
use super::frontier::Space;
use super::job::Job;
use super::map_cache::MapCache;
use super::pending::{PendingFlush, VolatileChange};
use super::sharing::Sharing;
use super::tags::Owners;
use super::virtual_pages::VirtualPages;
use super::work::Work;
use crate::config::PersistPolicy;
use crate::flash::UnitImage;
use crate::geometry::Geometry;
use crate::metrics::HandleCounts;
use flashweir_core::Lpn;
use flashweir_ftl::epochs::Streams;
use flashweir_ftl::map_log::MapLog;
use flashweir_ftl::{BlockId, Map};
use std::collections::{BTreeMap, VecDeque};

/// The context of this firmware.
pub(crate) type Cx = crate::cx::Cx<Job>;

/// The page-mapped firmware.
#[derive(Clone, Debug)]
pub(crate) struct PageFtl {
    pub(super) map: Map,
    /// Cache of the map, where the map is on the medium.
    pub(super) map_cache: Option<Box<MapCache>>,
    /// Units that several pages share.
    pub(super) virtual_pages: VirtualPages,
    /// The SHARE that is accepted next, as far as it is prepared.
    pub(super) sharing: Option<Box<Sharing>>,
    pub(crate) space: Space,
    pub(super) buffer: Buffer,
    pub(super) flushes: Vec<PendingFlush>,
    pub(super) collections: Vec<Collection>,
    pub(super) log: MapLog,
    pub(super) orders: Streams,
    pub(super) background: bool,
    /// Number of dirty units above which background writing begins; the next field is where it ends.
    pub(super) high_water_units: u32,
    pub(super) low_water_units: u32,
    pub(super) collection_waste_pages: u32,
    /// Pages whose newest version was accepted but could not be written, with its owners. Every read of such a page fails, and so
    /// does every FLUSH that covers it, not only the first: a FLUSH that succeeds promises everything that completed before
    /// (contract §4.1).
    pub(super) lost: BTreeMap<Lpn, Owners>,
    /// Deallocations and SHAREs that a range flush may have to wait for, in order.
    pub(super) volatile_changes: VecDeque<VolatileChange>,
    /// Planes that can neither write nor make room.
    pub(super) dead_planes: Vec<bool>,
    /// Number of collections of each plane since the last one for wear-levelling.
    pub(super) collections_since_wear: Vec<u32>,
    /// Planes that are short of blocks and had no victim when they last looked.
    pub(super) starved: Vec<bool>,
    /// Units of each block that a TRIM gave up since its erase, or since the power came back; statistics only.
    pub(super) trimmed: Vec<u32>,
    /// Work that may be due.
    pub(super) work: Work,
    /// Blocks that failed and are to be emptied.
    pub(super) failing: Vec<BlockId>,
    /// Number of the station from which dynamic allocation looks for the next idle one.
    pub(super) station_turn: u32,
    /// Pages on word lines that are not complete, by plane and frontier.
    pub(super) open_wordlines: Vec<Vec<Vec<u32>>>,
    /// Whether word lines were left to pages of the shared queue that other planes may have taken meanwhile: as in [`Work::wordlines`].
    pub(super) wordlines_left: [bool; 2],
    /// Reused memory for the units of a page write.
    pub(super) images: Vec<UnitImage>,
}

impl PageFtl {
    pub(crate) fn handle_counts(&self) -> &[HandleCounts] {
        &self.space.counts
    }

    /// A firmware with an empty map; recovery fills it after a cut.
    pub(super) fn empty(cx: &Cx, seed: u64) -> Self {
        let (config, geometry) = (&cx.config, &cx.geometry);
        let units = config.buffer_units()[0];
        let planes = geometry.planes() as usize;
        let regions = [0, 1].map(|region| geometry.meta_blocks(region).collect());
        let policy = if config.keeps_epochs() { config.order.policy } else { PersistPolicy::None };
        let space = Space::new(config, geometry, seed);
        Self {
            map: Map::new(geometry.user_units),
            map_cache: (geometry.map_pages > 0).then(|| Box::new(MapCache::new(config, geometry))),
            virtual_pages: VirtualPages::new(config.ftl.share.pages),
            sharing: None,
            wordlines_left: [false; 2],
            open_wordlines: vec![vec![Vec::new(); space.streams()]; planes],
            space,
            buffer: Buffer::new(units, config.buffer.eviction),
            flushes: Vec::new(),
            collections: (0..planes).map(|_| Collection::default()).collect(),
            log: MapLog::new(
                regions,
                geometry.pages_per_block,
                config.geometry.page_bytes.0,
                config.ftl.share.nvram_records as usize,
            ),
            orders: Streams::new(policy, geometry.counted_members_max() as usize),
            background: false,
            high_water_units: (f64::from(units) * config.buffer.high_water) as u32,
            low_water_units: (f64::from(units) * config.buffer.low_water) as u32,
            collection_waste_pages: Geometry::collection_waste_pages(config),
            lost: BTreeMap::new(),
            volatile_changes: VecDeque::new(),
            dead_planes: vec![false; planes],
            collections_since_wear: vec![0; planes],
            starved: vec![false; planes],
            trimmed: vec![0; geometry.blocks() as usize],
            work: Work::default(),
            failing: Vec::new(),
            station_turn: 0,
            images: Vec::new(),
        }
    }
}
