//! The medium: what survives a power cut, and nothing else.
//!
//! Invariants: pages of a block are programmed in order and once between erases; a clone shares all blocks
//! until one of the two changes them, so that a snapshot for a power cut costs a few reference counts.
//!
//! Assumptions about the medium: an interrupted program leaves an unreadable page (its error is detected),
//! and where `paired_page_loss` is on, so do the earlier pages of its word line; an interrupted erase leaves
//! a block of which nothing can be read; a page that was never programmed is recognised as such.
//!
//! Deliberately absent: time. The operation's begin and end are moments of [`crate::nand`].

use crate::config::DeviceConfig;
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::index::Idx;
use flashweir_core::random::mix;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::TrimRecord;
use std::sync::Arc;

/// Whose content a physical unit holds, as its out-of-band area says (`specs/device-metadata.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Filler of a page that was not full.
    Pad,
    /// A logical page.
    Lpn(Lpn),
    /// A page of the device's own metadata.
    Meta,
}

const META: u64 = 3 << 62;
const LPN: u64 = 1 << 62;

impl Owner {
    #[inline]
    fn pack(self) -> u64 {
        match self {
            Self::Pad => 0,
            Self::Lpn(lpn) => LPN | lpn.0,
            Self::Meta => META,
        }
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        match word >> 62 {
            0 => Self::Pad,
            1 => Self::Lpn(Lpn(word & (LPN - 1))),
            _ => Self::Meta,
        }
    }
}

/// One unit to be programmed.
#[derive(Clone, Debug)]
pub struct UnitImage {
    /// Whose content it is.
    pub owner: Owner,
    /// Sequence number of the version.
    pub seq: u64,
    /// The content; ignored where contents are not tracked.
    pub payload: Payload,
}

impl UnitImage {
    /// For a medium that does not keep contents.
    pub fn without_content(owner: Owner, seq: u64) -> Self {
        Self { owner, seq, payload: Payload::Zero }
    }
}

/// How an operation stood when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    /// It had not touched the cells.
    Absent,
    /// It was interrupted.
    Damaged,
    /// It had finished, but nobody was told.
    Done,
}

/// What a page gives when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Not programmed since the last erase.
    Erased,
    /// Readable.
    Good,
    /// Uncorrectable.
    Unreadable,
}

#[derive(Clone, Debug, Default)]
struct BlockMedia {
    /// Units programmed so far.
    written: u32,
    /// Number of the opening, as each page's out-of-band area carries it.
    opened: u64,
    owners: Vec<u64>,
    seqs: Vec<u64>,
    payloads: Vec<Payload>,
    unreadable_pages: Vec<u32>,
    /// An erase was interrupted: nothing can be read.
    erase_torn: bool,
}

/// Wear and fate of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Wear {
    erases: u32,
    bad: bool,
}

/// What the capacitor saved at the last cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaveArea {
    /// Dirty units: page, sequence number, content.
    pub units: Vec<(Lpn, u64, Payload)>,
    /// Deallocations that were not in the log.
    pub trims: Vec<TrimRecord>,
}

/// The medium of one device.
#[derive(Clone, Debug)]
pub struct Media {
    blocks: Vec<Option<Arc<BlockMedia>>>,
    wear: Vec<Wear>,
    save_area: Option<Arc<SaveArea>>,
    digest: u64,
    /// Pages or blocks were ever left unreadable; while none was, reads need not look.
    damaged: bool,
    units_per_page: u32,
    units_per_block: u32,
    track_contents: bool,
}

impl Media {
    /// A medium fresh from the factory; `bad` blocks are marked.
    pub fn new(config: &DeviceConfig, track_contents: bool, bad: &[BlockId]) -> Self {
        let geometry = Geometry::new(config);
        let blocks = geometry.blocks() as usize;
        let mut wear = vec![Wear::default(); blocks];
        for block in bad {
            wear[block.index()].bad = true;
        }
        Self {
            blocks: vec![None; blocks],
            wear,
            save_area: None,
            digest: 0,
            damaged: false,
            units_per_page: geometry.units_per_page,
            units_per_block: geometry.units_per_block(),
            track_contents,
        }
    }

    /// Whether contents are kept.
    pub fn tracks_contents(&self) -> bool {
        self.track_contents
    }

    /// A hash of everything on the medium; equal media have equal digests. Kept only where contents are.
    pub fn digest(&self) -> u64 {
        match &self.save_area {
            None => self.digest,
            Some(save) => {
                save.units.iter().fold(mix(self.digest), |hash, (lpn, seq, payload)| {
                    mix(hash ^ lpn.0 ^ seq.rotate_left(20) ^ payload.identity().rotate_left(40))
                }) ^ save.trims.iter().fold(1, |hash, trim| mix(hash ^ trim.lpn.0 ^ trim.seq.rotate_left(32)))
            }
        }
    }

    #[inline]
    fn unit_digest(at: u64, owner: u64, seq: u64, payload: &Payload) -> u64 {
        mix(mix(mix(at ^ owner.rotate_left(7)) ^ seq) ^ payload.identity())
    }

    fn block_mut(&mut self, block: BlockId) -> &mut BlockMedia {
        Arc::make_mut(self.blocks[block.index()].get_or_insert_with(Arc::default))
    }

    /// Programs one page: `units` and, where they are fewer than a page holds, filler. Panics if the page is
    /// not the next one of its block (a bug of ours).
    pub fn program(&mut self, at: PageAddr, opened: u64, units: impl Iterator<Item = UnitImage>) {
        self.begin(at, opened);
        let mut count = 0;
        for unit in units {
            self.append(at.block, unit);
            count += 1;
        }
        for _ in count..self.units_per_page {
            self.append(at.block, UnitImage { owner: Owner::Pad, seq: 0, payload: Payload::Zero });
        }
    }

    fn begin(&mut self, at: PageAddr, opened: u64) {
        let first = at.page * self.units_per_page;
        let media = self.block_mut(at.block);
        assert!(!media.erase_torn, "block {} needs an erase", at.block.0);
        assert_eq!(media.written, first, "pages of block {} are programmed in order", at.block.0);
        media.opened = opened;
    }

    /// Programs the next unit of a block, as [`Self::program`] does for a page.
    #[inline]
    pub fn append(&mut self, block: BlockId, unit: UnitImage) {
        let (track, capacity) = (self.track_contents, self.units_per_block as usize);
        let at = u64::from(block.0) * capacity as u64;
        let media = self.block_mut(block);
        let owner = unit.owner.pack();
        if media.written == 0 {
            media.owners.reserve_exact(capacity);
            media.seqs.reserve_exact(capacity);
        }
        let offset = u64::from(media.written);
        media.owners.push(owner);
        media.seqs.push(unit.seq);
        media.written += 1;
        assert!(media.written as usize <= capacity, "block {} is full", block.0);
        if track {
            let digest = Self::unit_digest(at + offset, owner, unit.seq, &unit.payload);
            media.payloads.push(unit.payload);
            self.digest = self.digest.wrapping_add(digest);
        }
    }

    /// A block is about to get its first unit, outside of [`Self::program`].
    pub fn set_opened(&mut self, block: BlockId, opened: u64) {
        self.block_mut(block).opened = opened;
    }

    /// Leaves an unreadable page where a program was interrupted or failed; `wordline_from` is the first
    /// page that is lost with it.
    pub fn spoil(&mut self, at: PageAddr, opened: u64, wordline_from: u32) {
        self.damaged = true;
        self.program(at, opened, std::iter::empty());
        let media = self.block_mut(at.block);
        let mut spoiled = 0u64;
        for page in wordline_from..=at.page {
            if !media.unreadable_pages.contains(&page) {
                media.unreadable_pages.push(page);
                spoiled = spoiled.wrapping_add(mix(mix(u64::from(at.block.0) << 32 | u64::from(page)) ^ 1));
            }
        }
        self.digest = self.digest.wrapping_add(spoiled);
    }

    /// Erases a block.
    pub fn erase(&mut self, block: BlockId) {
        self.forget(block);
        self.wear[block.index()].erases += 1;
    }

    /// Leaves a block of which nothing can be read: an erase was interrupted.
    pub fn tear_erase(&mut self, block: BlockId) {
        self.damaged = true;
        self.forget(block);
        let hash = mix(u64::from(block.0) ^ 0xdead_b10c);
        self.block_mut(block).erase_torn = true;
        self.digest = self.digest.wrapping_add(hash);
        self.wear[block.index()].erases += 1;
    }

    fn forget(&mut self, block: BlockId) {
        if self.track_contents {
            self.digest = self.digest.wrapping_sub(self.block_digest(block));
        }
        if let Some(shared) = &mut self.blocks[block.index()] {
            match Arc::get_mut(shared) {
                Some(media) => {
                    media.written = 0;
                    media.owners.clear();
                    media.seqs.clear();
                    media.payloads.clear();
                    media.unreadable_pages.clear();
                    media.erase_torn = false;
                }
                None => self.blocks[block.index()] = None,
            }
        }
    }

    fn block_digest(&self, block: BlockId) -> u64 {
        let Some(media) = &self.blocks[block.index()] else { return 0 };
        let first = u64::from(block.0) * u64::from(self.units_per_block);
        let units = media.owners.iter().zip(&media.seqs).zip(&media.payloads).zip(first..);
        let units = units.fold(0u64, |sum, (((owner, seq), payload), at)| {
            sum.wrapping_add(Self::unit_digest(at, *owner, *seq, payload))
        });
        let pages = media.unreadable_pages.iter().fold(0u64, |sum, page| {
            sum.wrapping_add(mix(mix(u64::from(block.0) << 32 | u64::from(*page)) ^ 1))
        });
        let torn = if media.erase_torn { mix(u64::from(block.0) ^ 0xdead_b10c) } else { 0 };
        units.wrapping_add(pages).wrapping_add(torn)
    }

    /// Pages of the block that were programmed since its last erase; a torn page counts.
    pub fn pages_written(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].as_ref().map_or(0, |media| media.written.div_ceil(self.units_per_page))
    }

    /// Whether an erase of the block was interrupted.
    pub fn erase_torn(&self, block: BlockId) -> bool {
        self.blocks[block.index()].as_ref().is_some_and(|media| media.erase_torn)
    }

    /// What a read of the page gives.
    pub fn page_state(&self, at: PageAddr) -> PageState {
        match &self.blocks[at.block.index()] {
            Some(media) if media.erase_torn => PageState::Unreadable,
            Some(media) if at.page * self.units_per_page < media.written => {
                if media.unreadable_pages.contains(&at.page) {
                    PageState::Unreadable
                } else {
                    PageState::Good
                }
            }
            _ => PageState::Erased,
        }
    }

    /// Number of the block's opening, if any of its pages can be read.
    pub fn opened(&self, block: BlockId) -> Option<u64> {
        let media = self.blocks[block.index()].as_ref()?;
        let pages = media.written.div_ceil(self.units_per_page);
        let readable = !media.erase_torn && media.unreadable_pages.len() < pages as usize;
        readable.then_some(media.opened)
    }

    /// Whether a programmed page can be read.
    #[inline]
    pub fn is_readable(&self, at: PageAddr) -> bool {
        !self.damaged || self.page_state(at) == PageState::Good
    }

    /// Out-of-band owner and sequence number of a unit that can be read.
    #[inline]
    pub fn oob(&self, ppa: Ppa) -> Option<(Owner, u64)> {
        let (block, unit) = self.split(ppa);
        let media = self.blocks[block].as_ref()?;
        let page = unit / self.units_per_page;
        if unit >= media.written || media.erase_torn || media.unreadable_pages.contains(&page) {
            return None;
        }
        Some((Owner::unpack(media.owners[unit as usize]), media.seqs[unit as usize]))
    }

    /// Content of a unit; `None` if it cannot be read or was never written.
    #[inline]
    pub fn payload(&self, ppa: Ppa) -> Option<Payload> {
        self.oob(ppa)?;
        let (block, unit) = self.split(ppa);
        let media = self.blocks[block].as_ref()?;
        Some(media.payloads.get(unit as usize).cloned().unwrap_or_default())
    }

    #[inline]
    fn split(&self, ppa: Ppa) -> (usize, u32) {
        let units = u64::from(self.units_per_block);
        ((ppa.0 / units) as usize, (ppa.0 % units) as u32)
    }

    /// Erases that the block has seen.
    pub fn erases(&self, block: BlockId) -> u32 {
        self.wear[block.index()].erases
    }

    /// Sum of all erases.
    pub fn erases_total(&self) -> u64 {
        self.wear.iter().map(|wear| u64::from(wear.erases)).sum()
    }

    /// Whether the block is marked bad.
    pub fn is_bad(&self, block: BlockId) -> bool {
        self.wear[block.index()].bad
    }

    /// Marks a block bad, for ever.
    pub fn mark_bad(&mut self, block: BlockId) {
        self.wear[block.index()].bad = true;
        self.digest = self.digest.wrapping_add(mix(u64::from(block.0) ^ 0xbad));
    }

    /// What the capacitor saved at the last cut and no recovery has taken over yet.
    pub fn save_area(&self) -> Option<&SaveArea> {
        self.save_area.as_deref()
    }

    /// The capacitor saves, or a recovery that took everything over clears.
    pub fn set_save_area(&mut self, save: Option<SaveArea>) {
        self.save_area = save.map(Arc::new);
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> u64 {
        let blocks: usize = self
            .blocks
            .iter()
            .flatten()
            .map(|media| {
                size_of::<BlockMedia>()
                    + 16
                    + media.owners.capacity() * 8
                    + media.seqs.capacity() * 8
                    + media.payloads.capacity() * size_of::<Payload>()
            })
            .sum();
        (blocks + self.blocks.len() * 8 + self.wear.len() * size_of::<Wear>()) as u64
    }
}
