//! The page-mapped firmware: a map of every mapping unit, a write buffer, write frontiers, GC, and a map log.
//!
//! The path of a write: [`accept`] puts it into the [`buffer`], [`destage`] onto pages, the machine programs these where
//! [`frontier`] has room, and [`programmed`] makes them durable and enters them in the map. [`mod@read`] finds the newest version;
//! [`gc`] makes room; [`share`] lets pages share a unit; [`log`] makes
//! deallocations and SHAREs durable; [`order`] keeps epochs; where the map is on the medium, [`look_up`]
//! finds its pages in a cache and [`map_pages`] moves them; [`flush`] and [`range_flush`] wait for what they cover; [`scan`] and
//! [`recover`] run after a power cut. [`lending`] gives blocks to an append namespace on the same pool.
//!
//! Code that makes other work possible notes it in [`work`], and [`drain`] does that work.
//!
//! Invariants: a write is visible to reads from its acceptance on; the old place of a page stays valid until the new version is
//! programmed, and until the record is logged if the page was deallocated (contract §7.1).
//!
//! Modules of data (`buffer`, `tags`, `collection`, `pending`, `frontier`, `work`, `map_cache`, `map_area`, `virtual_pages`, `sharing`) import no sibling that
//! acts; modules that act import [`ftl`], where all of the state is put together.

mod accept;
mod audit;
mod buffer;
mod collection;
mod content;
mod describe;
mod destage;
mod drain;
mod failing;
mod fastforward;
mod firmware;
mod flush;
mod frontier;
mod ftl;
mod gc;
mod job;
mod lending;
mod log;
mod look_up;
mod map_area;
mod map_cache;
mod map_pages;
mod order;
mod pending;
mod programmed;
mod range_flush;
mod read;
mod recover;
mod scan;
mod share;
mod sharing;
mod tags;
mod virtual_pages;
mod work;

pub(crate) use fastforward::UnitWriter;
pub(crate) use frontier::Space;
pub(crate) use ftl::{Cx, PageFtl};
pub(crate) use job::Job;
pub(crate) use recover::{read, rebuild};
