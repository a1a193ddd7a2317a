//! The medium: what survives a power cut, and nothing else.
//!
//! Invariants: pages of a block are programmed in order and once between erases; a clone shares all blocks until one of the two
//! changes them, so a snapshot for a power cut costs a few reference counts.
//!
//! Assumptions about the medium: an interrupted program leaves an unreadable page (its error is detected),
//! and where `paired_page_loss` is on, so do the earlier pages of its word line; an interrupted erase leaves
//! a block of which nothing can be read; a page that was never programmed is recognised as such.
//!
//! Where a [`Store`] is attached, it is told of each change of the medium when the change happens, and contents live there instead
//! of in memory; owners, versions and wear, on which decisions depend, are in memory either way. After the first error of the store
//! it is told nothing more, so it holds a state that the medium was in.
//!
//! Where an [`Overflow`] is attached instead, contents stay in memory up to a bound, and further contents go to the overflow, which
//! does not outlive the process.
//!
//! Deliberately absent: time. [`super::machine`] decides when an operation begins and ends.

use super::column::{Column, Payloads};
use super::oob::UnitImage;
use super::store::{
    BlockHealth, Overflow, PageImage, SaveArea, Saved, SharedStore, Store, StoreError, Stored,
};
use crate::config::DeviceConfig;
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::index::Idx;
use flashweir_core::oob::{Member, OobRecord, Owner};
use flashweir_core::open::BlockMark;
use flashweir_core::random::mix;
use flashweir_core::{Payload, Ppa};
use flashweir_ftl::BlockId;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// State in which a power cut leaves an operation that it interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    /// The operation had not touched the cells.
    Absent,
    /// The operation was interrupted in the cells.
    Damaged,
    /// The operation had finished, but its end was not reported.
    Done,
}

/// Result of reading a page.
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
    owners: Column,
    seqs: Column,
    /// Members of epochs, by unit; shorter than the other lists if the last units are not members.
    members: Vec<Option<Member>>,
    payloads: Payloads,
    /// Bytes of each unit whose content is in the overflow, else 0; shorter than the other lists if the last units are not there.
    overflown: Vec<u32>,
    unreadable_pages: Vec<u32>,
    /// An erase was interrupted: no page can be read.
    erase_torn: bool,
}

impl BlockMedia {
    /// Adds the out-of-band data of the next unit of a block that takes `capacity` units.
    #[inline]
    fn push(&mut self, capacity: u32, owner: u64, seq: u64, member: Option<Member>) {
        if member.is_some() {
            self.push_member(member);
        }
        self.owners.push(capacity, owner);
        self.seqs.push(capacity, seq);
        self.written += 1;
        assert!(self.written <= capacity, "a block takes {capacity} units");
    }

    /// Apart from [`Self::push`], because few units are members.
    #[inline(never)]
    fn push_member(&mut self, member: Option<Member>) {
        self.members.resize(self.written as usize, None);
        self.members.push(member);
    }
}

/// Bytes of memory that a content owns.
#[inline]
fn own_bytes(payload: &Payload) -> u64 {
    match payload {
        Payload::Bytes(bytes) => bytes.len() as u64,
        Payload::Zero | Payload::Tag(_) => 0,
    }
}

/// Wear and fate of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Wear {
    erases: u32,
    mark: BlockMark,
}

/// A bound for contents in memory, and the overflow for contents beyond it. Clones of a medium share the overflow, and only one of
/// them may be changed from then on.
#[derive(Clone, Debug)]
struct Bound {
    memory_bytes: u64,
    overflow: Arc<Mutex<dyn Overflow>>,
    /// The first error; after it, contents beyond the bound stay in memory.
    failure: Arc<OnceLock<StoreError>>,
    overflown_bytes: u64,
}

impl Bound {
    fn lock(&self) -> MutexGuard<'_, dyn Overflow + 'static> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the overflow has taken a content.
    fn take(&mut self, held_bytes: u64, at: Ppa, bytes: &[u8]) -> bool {
        if held_bytes + bytes.len() as u64 <= self.memory_bytes || self.failure.get().is_some() {
            return false;
        }
        let taken = self.lock().write(at, bytes).map_err(|error| self.failure.set(error)).is_ok();
        self.overflown_bytes += if taken { bytes.len() as u64 } else { 0 };
        taken
    }

    fn read(&self, at: Ppa, len: u32) -> Option<Payload> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len as usize).collect();
        let buffer = Arc::get_mut(&mut bytes).expect("it is not shared yet");
        let read = self.lock().read(at, buffer).map_err(|error| self.failure.set(error));
        read.ok().map(|()| Payload::Bytes(bytes))
    }
}

#[derive(Clone, Debug)]
struct Backing {
    store: SharedStore,
    /// The first error; after it, the store is told nothing more.
    failure: Arc<OnceLock<StoreError>>,
    /// Units of the page that is being programmed.
    page: Vec<UnitImage>,
    /// What the capacitor has to protect and the store has not been told.
    saved: Vec<Saved>,
}

impl Backing {
    fn lock(&self) -> MutexGuard<'_, dyn Store + 'static> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell<T>(&self, change: impl FnOnce(&mut dyn Store) -> Stored<T>) -> Option<T> {
        if self.failure.get().is_some() {
            return None;
        }
        change(&mut *self.lock()).map_err(|error| self.failure.set(error)).ok()
    }

    fn commit_saved(&mut self) -> bool {
        if self.saved.is_empty() {
            return false;
        }
        let saved = std::mem::take(&mut self.saved);
        self.tell(|store| store.journal(&saved)).unwrap_or(false)
    }
}

/// The medium of one device. With a store, clones share it, and only one of them may be changed from then on.
#[derive(Clone, Debug)]
pub struct Media {
    blocks: Vec<Option<Arc<BlockMedia>>>,
    wear: Vec<Wear>,
    /// Whether contents of each block may own memory, so that only such blocks are looked at to free it.
    holds_bytes: Vec<bool>,
    save_area: Option<Arc<SaveArea>>,
    digest: u64,
    /// Whether the digest follows contents; see [`Self::forgo_digest`].
    digests: bool,
    /// Whether any page or block was ever left unreadable; until then reads need not check.
    damaged: bool,
    units_per_page: u32,
    units_per_block: u32,
    track_contents: bool,
    backing: Option<Box<Backing>>,
    /// Bytes of memory that contents own.
    held_bytes: u64,
    bound: Option<Box<Bound>>,
}

impl Media {
    /// A medium fresh from the factory; `bad` blocks are marked.
    pub fn new(config: &DeviceConfig, track_contents: bool, bad: &[BlockId]) -> Self {
        let geometry = Geometry::new(config);
        let blocks = geometry.blocks() as usize;
        let mut wear = vec![Wear::default(); blocks];
        for block in bad {
            wear[block.index()].mark = BlockMark::FactoryBad;
        }
        Self {
            blocks: vec![None; blocks],
            wear,
            holds_bytes: vec![false; blocks],
            save_area: None,
            digest: 0,
            digests: track_contents,
            damaged: false,
            units_per_page: geometry.units_per_page,
            units_per_block: geometry.units_per_block(),
            track_contents,
            backing: None,
            held_bytes: 0,
            bound: None,
        }
    }

    /// Keeps up to `memory_bytes` of contents in memory from now on, and further contents in `overflow`. The medium must not be
    /// compared with another one afterwards ([`Self::forgo_digest`]).
    pub fn bound_memory(&mut self, memory_bytes: u64, overflow: Arc<Mutex<dyn Overflow>>) {
        assert!(self.track_contents && self.backing.is_none(), "there are contents in memory");
        self.forgo_digest();
        let failure = Arc::default();
        self.bound = Some(Box::new(Bound { memory_bytes, overflow, failure, overflown_bytes: 0 }));
    }

    /// Bytes of contents in memory, and in the overflow.
    #[inline]
    pub fn held_bytes(&self) -> (u64, u64) {
        (self.held_bytes, self.bound.as_ref().map_or(0, |bound| bound.overflown_bytes))
    }

    /// The first error of the overflow. From then on all contents stay in memory, and contents that are in the overflow may be
    /// lost.
    pub fn overflow_error(&self) -> Option<&StoreError> {
        self.bound.as_ref().and_then(|bound| bound.failure.get())
    }

    /// Keeps contents in `store` from now on, and tells it each change. The contents that are on the medium must be in the store
    /// already.
    pub fn attach(&mut self, store: SharedStore) {
        assert!(self.track_contents, "a store keeps contents");
        let failure = Arc::default();
        self.backing = Some(Box::new(Backing { store, failure, page: Vec::new(), saved: Vec::new() }));
    }

    /// Whether a store is attached.
    #[inline]
    pub fn is_stored(&self) -> bool {
        self.backing.is_some()
    }

    /// The first error of the store. From then on the medium in memory is ahead of it.
    #[inline]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.backing.as_ref().and_then(|backing| backing.failure.get())
    }

    /// A copy without contents and without the store, with which the effect of changes can be planned.
    pub(crate) fn sketch(&self) -> Self {
        Self { track_contents: false, backing: None, bound: None, ..self.clone() }
    }

    /// Takes over the health of a block that has no pages yet from a store, which is attached afterwards.
    pub fn restore_block(&mut self, block: BlockId, health: BlockHealth) {
        let mark = if health.bad { BlockMark::GrownBad } else { BlockMark::Good };
        self.wear[block.index()] = Wear { erases: health.erases, mark };
        if health.erase_torn {
            self.damaged = true;
            self.block_mut(block).erase_torn = true;
        }
    }

    /// Takes over the next page of a block from a store: owner, sequence number and place in an epoch of each unit.
    pub fn restore_page(
        &mut self,
        at: PageAddr,
        opened: u64,
        units: impl Iterator<Item = (Owner, u64, Option<Member>)>,
    ) {
        let capacity = self.units_per_block;
        let media = self.begin(at, opened);
        units.for_each(|(owner, seq, member)| media.push(capacity, owner.pack(), seq, member));
    }

    /// Takes over the next page of a block, which cannot be read; the pages from `lost_from` on are lost with it.
    pub fn restore_spoilt(&mut self, at: PageAddr, opened: u64, lost_from: u32) {
        self.damaged = true;
        self.restore_page(at, opened, (0..self.units_per_page).map(|_| (Owner::Pad, 0, None)));
        let media = self.block_mut(at.block);
        media.unreadable_pages.retain(|page| *page < lost_from);
        media.unreadable_pages.extend(lost_from..=at.page);
    }

    /// Notes something that the capacitor has to protect, for [`Self::commit_saved`].
    pub(crate) fn note_saved(&mut self, saved: Saved) {
        if let Some(backing) = &mut self.backing {
            backing.saved.push(saved);
        }
    }

    /// Tells the store what was noted; returns whether the store asks for [`Self::begin_journal`].
    #[inline]
    pub(crate) fn commit_saved(&mut self) -> bool {
        self.backing.as_deref_mut().is_some_and(Backing::commit_saved)
    }

    /// Tells the store everything that the capacitor protects now, in place of all that it was told before.
    pub(crate) fn begin_journal(&mut self, area: &SaveArea) {
        if let Some(backing) = &mut self.backing {
            backing.tell(|store| store.begin_journal(area));
        }
    }

    fn health(&self, block: BlockId) -> BlockHealth {
        let Wear { erases, mark } = self.wear[block.index()];
        BlockHealth { erases, bad: mark.is_bad(), erase_torn: self.erase_torn(block) }
    }

    /// Whether contents are kept.
    pub fn tracks_contents(&self) -> bool {
        self.track_contents
    }

    /// Stops hashing contents, which saves a pass over every byte where media are never compared. [`Self::digest`] must not be used
    /// afterwards.
    pub fn forgo_digest(&mut self) {
        self.digests = false;
    }

    /// A newer version of a unit is durable, so no recovery chooses this one and its content is not needed any more. Where media
    /// are not compared, the content is freed, so that a device in memory holds what its host sees and not everything that was ever
    /// written. A copy of the same version is not newer: recovery may choose either.
    #[inline]
    pub fn give_up_content(&mut self, ppa: Ppa) {
        if self.digests || !self.track_contents || self.backing.is_some() {
            return;
        }
        let (block, unit) = self.split(ppa);
        if !self.holds_bytes[block] {
            return;
        }
        let Some(media) = self.blocks[block].as_mut().and_then(Arc::get_mut) else { return };
        if let Some(payload) = media.payloads.any_mut().get_mut(unit as usize) {
            self.held_bytes -= own_bytes(payload);
            *payload = Payload::Zero;
        }
        if let (Some(bound), Some(len @ 1..)) = (&mut self.bound, media.overflown.get_mut(unit as usize)) {
            bound.overflown_bytes -= u64::from(std::mem::take(len));
            bound.lock().release(ppa, 1);
        }
    }

    /// A hash of everything on the medium; equal media have equal digests. Kept only where contents are in memory.
    pub fn digest(&self) -> u64 {
        debug_assert!(self.digests || !self.track_contents, "the digest was given up");
        match &self.save_area {
            None => self.digest,
            Some(save) => {
                save.units.iter().fold(mix(self.digest), |hash, (lpn, seq, payload)| {
                    mix(hash ^ lpn.0 ^ seq.rotate_left(20) ^ payload.identity().rotate_left(40))
                }) ^ save.trims.iter().fold(1, |hash, trim| mix(hash ^ trim.lpn.0 ^ trim.seq.rotate_left(32)))
                    ^ save.shares.iter().fold(0, |hash, share| {
                        share.claims.iter().fold(mix(hash ^ share.seq), |hash, claim| {
                            let content = claim.content.owner().pack() ^ claim.content.seq.rotate_left(32);
                            mix(mix(hash ^ claim.lpn.0) ^ content)
                        })
                    })
            }
        }
    }

    #[inline]
    fn unit_digest(at: u64, owner: u64, seq: u64, payload: &Payload) -> u64 {
        mix(mix(mix(at ^ owner.rotate_left(7)) ^ seq) ^ payload.identity())
    }

    fn member_digest(member: Option<Member>) -> u64 {
        member.map_or(0, |m| {
            let counts = u64::from(m.previous) << 16 | u64::from(m.distance) << 8 | u64::from(m.orderless);
            mix(mix(u64::from(m.epoch) << 32 | u64::from(m.stream.0)) ^ counts)
        })
    }

    /// Begins to fetch what a program of the block's next page needs.
    #[inline]
    pub(crate) fn prefetch(&self, block: BlockId) {
        if let Some(media) = &self.blocks[block.index()] {
            flashweir_core::prefetch(&media.owners);
            flashweir_core::prefetch(&media.payloads);
            flashweir_core::prefetch(&media.erase_torn);
        }
    }

    fn block_mut(&mut self, block: BlockId) -> &mut BlockMedia {
        Arc::make_mut(self.blocks[block.index()].get_or_insert_with(Arc::default))
    }

    /// Programs one page with `units`, and with filler where they are fewer than a page holds. Panics if the page is not the next
    /// one of its block, which is a bug of the simulator.
    pub fn program(&mut self, at: PageAddr, opened: u64, units: impl Iterator<Item = UnitImage>) {
        let (units_per_page, capacity, tracks) =
            (self.units_per_page, self.units_per_block, self.track_contents);
        let media = self.begin(at, opened);
        let mut count = 0;
        if !tracks {
            for unit in units {
                media.push(capacity, unit.owner.pack(), unit.seq, unit.member);
                count += 1;
            }
            (count..units_per_page).for_each(|_| media.push(capacity, Owner::Pad.pack(), 0, None));
            return;
        }
        for unit in units {
            self.append(at.block, unit);
            count += 1;
        }
        for _ in count..units_per_page {
            self.append(at.block, UnitImage::pad());
        }
    }

    /// Begins a program of the next page of a block.
    fn begin(&mut self, at: PageAddr, opened: u64) -> &mut BlockMedia {
        let first = at.page * self.units_per_page;
        let media = self.block_mut(at.block);
        assert!(!media.erase_torn, "block {} needs an erase", at.block.0);
        assert_eq!(media.written, first, "pages of block {} are programmed in order", at.block.0);
        media.opened = opened;
        media
    }

    /// Programs the next unit of a block; [`Self::program`] does so for a page. Contents are apart, so that where none are kept
    /// nothing of them is in the loops of those who program.
    #[inline]
    pub fn append(&mut self, block: BlockId, unit: UnitImage) {
        let media = Arc::make_mut(self.blocks[block.index()].get_or_insert_with(Arc::default));
        media.push(self.units_per_block, unit.owner.pack(), unit.seq, unit.member);
        if self.track_contents {
            self.append_content(block, unit);
        }
    }

    /// Adds the content of the unit that was pushed last.
    #[inline(never)]
    fn append_content(&mut self, block: BlockId, unit: UnitImage) {
        if self.backing.is_some() {
            return self.store(block, unit);
        }
        let (capacity, digests) = (self.units_per_block, self.digests);
        let media = Arc::make_mut(self.blocks[block.index()].get_or_insert_with(Arc::default));
        let offset = u64::from(media.written - 1);
        let at = u64::from(block.0) * u64::from(capacity) + offset;
        let digest = digests.then(|| {
            let digest = Self::unit_digest(at, unit.owner.pack(), unit.seq, &unit.payload);
            digest ^ Self::member_digest(unit.member)
        });
        let bytes = own_bytes(&unit.payload);
        if bytes > 0 {
            self.holds_bytes[block.index()] = true;
            if let (Some(bound), Payload::Bytes(content)) = (&mut self.bound, &unit.payload)
                && bound.take(self.held_bytes, Ppa(at), content)
            {
                media.overflown.resize(offset as usize, 0);
                media.overflown.push(content.len() as u32);
                media.payloads.push(capacity, Payload::Zero);
                return;
            }
        }
        self.held_bytes += bytes;
        media.payloads.push(capacity, unit.payload);
        self.digest = self.digest.wrapping_add(digest.unwrap_or(0));
    }

    /// Collects the unit that was pushed last; the store gets its page when the page is complete.
    #[cold]
    fn store(&mut self, block: BlockId, unit: UnitImage) {
        let erases = self.wear[block.index()].erases;
        let (opened, written) =
            self.blocks[block.index()].as_ref().map_or((0, 0), |media| (media.opened, media.written));
        let units_per_page = self.units_per_page;
        let Some(backing) = &mut self.backing else { return };
        backing.page.push(unit);
        if written.is_multiple_of(units_per_page) {
            let units = std::mem::take(&mut backing.page);
            let at = PageAddr { block, page: written / units_per_page - 1 };
            backing.tell(|store| store.program(&PageImage { at, erases, opened, units: &units }));
            backing.page = units;
            backing.page.clear();
        }
    }

    /// Sets the number of a block's opening before the block gets its first unit by [`Self::append`].
    pub fn set_opened(&mut self, block: BlockId, opened: u64) {
        self.block_mut(block).opened = opened;
    }

    /// Leaves an unreadable page where a program was interrupted or failed; the pages from `wordline_from` on are lost with it.
    pub fn spoil(&mut self, at: PageAddr, opened: u64, wordline_from: u32) {
        self.damaged = true;
        match &self.backing {
            None => self.program(at, opened, std::iter::empty()),
            Some(backing) => {
                let erases = self.wear[at.block.index()].erases;
                backing.tell(|store| store.spoil(at, erases, opened, wordline_from));
                self.restore_page(at, opened, (0..self.units_per_page).map(|_| (Owner::Pad, 0, None)));
            }
        }
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
        self.tell_erased(block);
    }

    fn tell_erased(&self, block: BlockId) {
        if let Some(backing) = &self.backing {
            backing.tell(|store| store.erase(block, self.health(block)));
        }
    }

    /// An erase was interrupted: leaves a block of which nothing can be read.
    pub fn tear_erase(&mut self, block: BlockId) {
        self.damaged = true;
        self.forget(block);
        let hash = mix(u64::from(block.0) ^ 0xdead_b10c);
        self.block_mut(block).erase_torn = true;
        self.digest = self.digest.wrapping_add(hash);
        self.wear[block.index()].erases += 1;
        self.tell_erased(block);
    }

    fn forget(&mut self, block: BlockId) {
        if std::mem::take(&mut self.holds_bytes[block.index()]) {
            self.forget_bytes(block);
        }
        if self.digests && self.backing.is_none() {
            self.digest = self.digest.wrapping_sub(self.block_digest(block));
        }
        if let Some(shared) = &mut self.blocks[block.index()] {
            match Arc::get_mut(shared) {
                Some(media) => {
                    media.written = 0;
                    media.owners.clear();
                    media.seqs.clear();
                    media.members.clear();
                    media.payloads.clear();
                    media.overflown.clear();
                    media.unreadable_pages.clear();
                    media.erase_torn = false;
                }
                None => self.blocks[block.index()] = None,
            }
        }
    }

    /// Frees the room of the contents of a block that is being erased.
    fn forget_bytes(&mut self, block: BlockId) {
        let Some(media) = &self.blocks[block.index()] else { return };
        self.held_bytes -= media.payloads.iter().map(|payload| own_bytes(&payload)).sum::<u64>();
        if let (Some(bound), false) = (&mut self.bound, media.overflown.is_empty()) {
            bound.overflown_bytes -= media.overflown.iter().map(|len| u64::from(*len)).sum::<u64>();
            let units = u64::from(self.units_per_block);
            bound.lock().release(Ppa(u64::from(block.0) * units), units);
        }
    }

    fn block_digest(&self, block: BlockId) -> u64 {
        let Some(media) = &self.blocks[block.index()] else { return 0 };
        let first = u64::from(block.0) * u64::from(self.units_per_block);
        let members = media.members.iter().copied().chain(std::iter::repeat(None));
        let units =
            media.owners.iter().zip(media.seqs.iter()).zip(media.payloads.iter()).zip(first..).zip(members);
        let units = units.fold(0u64, |sum, ((((owner, seq), payload), at), member)| {
            sum.wrapping_add(Self::unit_digest(at, owner, seq, &payload) ^ Self::member_digest(member))
        });
        let pages = media.unreadable_pages.iter().fold(0u64, |sum, page| {
            sum.wrapping_add(mix(mix(u64::from(block.0) << 32 | u64::from(*page)) ^ 1))
        });
        let torn = if media.erase_torn { mix(u64::from(block.0) ^ 0xdead_b10c) } else { 0 };
        units.wrapping_add(pages).wrapping_add(torn)
    }

    /// Number of pages of the block that were programmed since its last erase, torn pages included.
    pub fn pages_written(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].as_ref().map_or(0, |media| media.written.div_ceil(self.units_per_page))
    }

    /// Whether an erase of the block was interrupted.
    pub fn erase_torn(&self, block: BlockId) -> bool {
        self.blocks[block.index()].as_ref().is_some_and(|media| media.erase_torn)
    }

    /// Whether the block has to be erased before it is programmed.
    pub fn is_used(&self, block: BlockId) -> bool {
        self.pages_written(block) > 0 || self.erase_torn(block)
    }

    /// The state that a read of the page finds.
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

    /// Number of the block's opening, if at least one of its pages can be read.
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

    /// Owner and sequence number in the out-of-band area of a unit; `None` if it cannot be read.
    #[inline]
    pub fn oob(&self, ppa: Ppa) -> Option<(Owner, u64)> {
        let (block, unit) = self.split(ppa);
        let media = self.blocks[block].as_ref()?;
        if unit >= media.written || (self.damaged && self.is_lost(media, unit)) {
            return None;
        }
        Some((Owner::unpack(media.owners.get(unit)), media.seqs.get(unit)))
    }

    /// Whether something interrupted has left a programmed unit unreadable.
    #[cold]
    fn is_lost(&self, media: &BlockMedia, unit: u32) -> bool {
        media.erase_torn || media.unreadable_pages.contains(&(unit / self.units_per_page))
    }

    /// Place of a unit in the order of a stream; `None` if it has none or cannot be read.
    #[inline]
    pub fn member(&self, ppa: Ppa) -> Option<Member> {
        let (block, unit) = self.split(ppa);
        let member = *self.blocks[block].as_ref()?.members.get(unit as usize)?;
        member.filter(|_| self.oob(ppa).is_some())
    }

    /// The whole out-of-band record of a unit; `None` if it cannot be read.
    pub fn record(&self, ppa: Ppa) -> Option<OobRecord> {
        let (owner, seq) = self.oob(ppa)?;
        Some(OobRecord { owner, seq, member: self.member(ppa) })
    }

    /// Members of epochs in a block that can be read, with their sequence numbers.
    pub fn members(&self, block: BlockId) -> impl Iterator<Item = (Member, u64)> + '_ {
        let first = u64::from(block.0) * u64::from(self.units_per_block);
        let count = self.blocks[block.index()].as_ref().map_or(0, |media| media.members.len() as u64);
        (first..first + count).map(Ppa).filter_map(|ppa| Some((self.member(ppa)?, self.oob(ppa)?.1)))
    }

    /// Content of a unit; `None` if it cannot be read or was never written.
    #[inline]
    pub fn payload(&self, ppa: Ppa) -> Option<Payload> {
        self.oob(ppa)?;
        let (block, unit) = self.split(ppa);
        if let Some(backing) = &self.backing {
            let at = PageAddr { block: BlockId(block as u32), page: unit / self.units_per_page };
            return backing.lock().read(at, unit % self.units_per_page, self.wear[block].erases);
        }
        let media = self.blocks[block].as_ref()?;
        if let (Some(bound), Some(len @ 1..)) = (&self.bound, media.overflown.get(unit as usize)) {
            return bound.read(ppa, *len);
        }
        Some(media.payloads.get(unit).unwrap_or_default())
    }

    #[inline]
    fn split(&self, ppa: Ppa) -> (usize, u32) {
        let units = u64::from(self.units_per_block);
        ((ppa.0 / units) as usize, (ppa.0 % units) as u32)
    }

    /// Number of erases that the block has seen.
    pub fn erases(&self, block: BlockId) -> u32 {
        self.wear[block.index()].erases
    }

    /// Sum of all erases.
    pub fn erases_total(&self) -> u64 {
        self.wear.iter().map(|wear| u64::from(wear.erases)).sum()
    }

    /// Whether the block is marked bad.
    pub fn is_bad(&self, block: BlockId) -> bool {
        self.wear[block.index()].mark.is_bad()
    }

    /// The block's mark in the table of bad blocks. A store keeps of it whether the block is bad.
    pub fn mark(&self, block: BlockId) -> BlockMark {
        self.wear[block.index()].mark
    }

    /// Whether a page of the block, or all of it, was left unreadable since its last erase.
    pub fn is_damaged(&self, block: BlockId) -> bool {
        let damage = |media: &BlockMedia| media.erase_torn || !media.unreadable_pages.is_empty();
        self.damaged && self.blocks[block.index()].as_ref().is_some_and(|media| damage(media))
    }

    /// Marks a block bad, for ever.
    pub fn mark_bad(&mut self, block: BlockId) {
        if self.mark(block) == BlockMark::HostReserved {
            self.reserve_for_host(block, false);
        }
        self.wear[block.index()].mark = BlockMark::GrownBad;
        self.digest = self.digest.wrapping_add(mix(u64::from(block.0) ^ 0xbad));
        if let Some(backing) = &self.backing {
            backing.tell(|store| store.mark(block, self.health(block)));
        }
    }

    /// Notes in the table of bad blocks that the host keeps a good block for itself, or does so no longer.
    pub(crate) fn reserve_for_host(&mut self, block: BlockId, is_reserved: bool) {
        let mark = &mut self.wear[block.index()].mark;
        let hash = mix(u64::from(block.0) ^ 0x4057);
        match (*mark, is_reserved) {
            (BlockMark::Good, true) => {
                (*mark, self.digest) = (BlockMark::HostReserved, self.digest.wrapping_add(hash));
            }
            (BlockMark::HostReserved, false) => {
                (*mark, self.digest) = (BlockMark::Good, self.digest.wrapping_sub(hash));
            }
            (BlockMark::Good | BlockMark::HostReserved, _) => {}
            (BlockMark::GrownBad | BlockMark::FactoryBad, _) => unreachable!("a bad block stays bad"),
        }
    }

    /// What the capacitor saved at the last power cut, until a recovery has taken it over.
    pub fn save_area(&self) -> Option<&SaveArea> {
        self.save_area.as_deref()
    }

    /// Sets what the capacitor saved, or clears it after a recovery has taken everything over.
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
                    + media.owners.memory_bytes()
                    + media.seqs.memory_bytes()
                    + media.members.capacity() * size_of::<Option<Member>>()
                    + media.payloads.memory_bytes()
                    + media.overflown.capacity() * size_of::<u32>()
            })
            .sum();
        (blocks + self.blocks.len() * 8 + self.wear.len() * size_of::<Wear>()) as u64
    }
}
