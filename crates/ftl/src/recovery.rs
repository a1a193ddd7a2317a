//! Recovery as a pure fold over what was found on the medium (contract §8).
//!
//! Inputs: the newest complete checkpoint, the deallocations logged since, and the out-of-band areas of the blocks for which the
//! checkpoint does not vouch. Output: the physical unit of each logical page.
//!
//! Invariants:
//! 1. A version at or below the checkpoint's horizon counts only if the checkpoint references the same `(lpn, seq)`: discarded
//!    versions stay dead, copies made by GC stay alive.
//! 2. Among the versions that count, the highest sequence number wins; a deallocation with a higher one unmaps the page.
//! 3. A SHARE gives its destination the sequence number of the command and the content that it names (share §4). Where that
//!    content is does not depend on whether its own page still maps it, or on the horizon.
//! 4. The result depends on the set of inputs, not on their order, except that of two copies of the same version the one that was
//!    given first is chosen.

use flashweir_core::command::StreamId;
pub use flashweir_core::oob::Member;
use flashweir_core::oob::Owner;
use flashweir_core::{Lpn, Ppa};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A deallocation that reached the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRecord {
    /// First logical page.
    pub lpn: Lpn,
    /// Number of logical pages.
    pub count: u64,
    /// Sequence number of the command.
    pub seq: u64,
}

/// Identity of a content: what the out-of-band record of its unit says. Copies made by GC have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentId {
    owner: u64,
    /// Sequence number of the version that was programmed.
    pub seq: u64,
}

impl ContentId {
    /// Returns the identity of the content of a unit with this owner and sequence number.
    pub fn new(owner: Owner, seq: u64) -> Self {
        Self { owner: owner.pack(), seq }
    }

    /// Owner in the out-of-band record.
    pub fn owner(self) -> Owner {
        Owner::unpack(self.owner)
    }
}

/// What a SHARE does to one page: from then on the page has this content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The destination.
    pub lpn: Lpn,
    /// The content that was bound when the command was accepted.
    pub content: ContentId,
    /// Its place at that time, on a device whose map is on the medium: newer translation pages may hide what else names it.
    pub place: Option<Ppa>,
}

/// A SHARE that reached the log: all of its claims count, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRecord {
    /// Sequence number of the command.
    pub seq: u64,
    /// What it does to each page; no page occurs twice.
    pub claims: Arc<[Claim]>,
}

/// A command that changes the map and moves no data, so that only the log makes it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A deallocation.
    Trim(TrimRecord),
    /// A SHARE.
    Share(ShareRecord),
}

impl Change {
    /// Sequence number of the command.
    #[inline]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Trim(trim) => trim.seq,
            Self::Share(share) => share.seq,
        }
    }

    /// The claims of a SHARE.
    pub fn claims(&self) -> &[Claim] {
        match self {
            Self::Trim(_) => &[],
            Self::Share(share) => &share.claims,
        }
    }

    /// Ranges of pages that it changes: the first one and their number.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let trim = match self {
            Self::Trim(trim) => Some((trim.lpn.0, trim.count)),
            Self::Share(_) => None,
        };
        trim.into_iter().chain(self.claims().iter().map(|claim| (claim.lpn.0, 1)))
    }
}

/// One mapping of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Logical page.
    pub lpn: Lpn,
    /// Place of the page when the checkpoint was taken.
    pub ppa: Ppa,
    /// Sequence number of that version.
    pub seq: u64,
}

impl Mapping {
    /// The content of a page that shares with no other, and has not since this version.
    pub fn own_content(&self) -> ContentId {
        ContentId::new(Owner::Lpn(self.lpn), self.seq)
    }
}

/// The state of the fold.
#[derive(Clone, Debug)]
pub struct Fold {
    horizon: u64,
    /// Sequence number that the checkpoint references; 0 is none.
    vouched: Vec<u64>,
    /// Best version so far: sequence number (0 is none) and place.
    best: Vec<(u64, Ppa)>,
    /// Contents that a SHARE named, and where they were found.
    contents: BTreeMap<ContentId, Option<Ppa>>,
    /// What pages have because of a SHARE, by sequence number and page.
    claims: BTreeMap<(u64, Lpn), ContentId>,
    /// The claim by which a page has its place, as long as nothing newer comes.
    claimed: BTreeMap<Lpn, (u64, ContentId)>,
    seq_max: u64,
}

impl Fold {
    /// An empty fold for `units` logical pages.
    pub fn new(units: u64, horizon: u64) -> Self {
        let units = units as usize;
        Self {
            horizon,
            vouched: vec![0; units],
            best: vec![(0, Ppa(0)); units],
            contents: BTreeMap::new(),
            claims: BTreeMap::new(),
            claimed: BTreeMap::new(),
            seq_max: horizon,
        }
    }

    /// Adds what a page has because of a SHARE with sequence number `seq`. All claims must be given first.
    pub fn claim(&mut self, claim: Claim, seq: u64) {
        self.seq_max = self.seq_max.max(seq);
        if claim.lpn.0 < self.best.len() as u64 {
            self.contents.insert(claim.content, None);
            self.claims.insert((seq, claim.lpn), claim.content);
        }
    }

    fn note_place(&mut self, content: ContentId, ppa: Ppa) {
        if let Some(place) = self.contents.get_mut(&content) {
            place.get_or_insert(ppa);
        }
    }

    /// Whether a SHARE gave this page the version with this number.
    pub fn is_claimed(&self, lpn: Lpn, seq: u64) -> bool {
        self.claims.contains_key(&(seq, lpn))
    }

    /// Adds a mapping of the checkpoint. `trusted` is the content of its unit if its block was closed before the checkpoint and not
    /// opened since, so that the unit is known to be there. Of a claimed version that is not always the content that the claim names:
    /// GC gives the page's own identity to a unit that nobody shares any more.
    pub fn checkpoint(&mut self, mapping: Mapping, trusted: Option<ContentId>) {
        let Some(vouched) = self.vouched.get_mut(mapping.lpn.0 as usize) else { return };
        *vouched = mapping.seq;
        self.seq_max = self.seq_max.max(mapping.seq);
        if let Some(content) = trusted {
            self.note_place(content, mapping.ppa);
            if content == mapping.own_content() {
                self.offer(mapping);
            }
        }
    }

    /// Adds a unit that was found on the medium, as a content that a SHARE may have named. The order in which units are given
    /// decides between copies.
    pub fn found_content(&mut self, content: ContentId, ppa: Ppa) {
        self.seq_max = self.seq_max.max(content.seq);
        self.note_place(content, ppa);
    }

    /// Gives the pages of all claims the places of their contents. All units must have been given before. A content that was not
    /// found is not needed: something newer is durable on each page that had it.
    pub fn settle_claims(&mut self) {
        for ((seq, lpn), content) in std::mem::take(&mut self.claims) {
            let Some(Some(place)) = self.contents.get(&content) else { continue };
            let best = &mut self.best[lpn.0 as usize];
            if seq >= best.0 {
                *best = (seq, *place);
                self.claimed.insert(lpn, (seq, content));
            }
        }
    }

    /// The content that a page has because of a SHARE; `None` if it has its own.
    pub fn content_of(&self, lpn: Lpn) -> Option<ContentId> {
        let (seq, content) = self.claimed.get(&lpn)?;
        (*seq == self.seq_of(lpn)).then_some(*content)
    }

    /// Adds a version that was found on the medium. All mappings of the checkpoint must have been given before.
    pub fn found(&mut self, version: Mapping) {
        let Some(&vouched) = self.vouched.get(version.lpn.0 as usize) else { return };
        self.seq_max = self.seq_max.max(version.seq);
        if version.seq > self.horizon || version.seq == vouched {
            self.offer(version);
        }
    }

    fn offer(&mut self, version: Mapping) {
        let best = &mut self.best[version.lpn.0 as usize];
        if version.seq > best.0 {
            *best = (version.seq, version.ppa);
        }
    }

    /// Adds a logged deallocation. All versions must have been given before, and claims settled.
    pub fn trim(&mut self, trim: TrimRecord) {
        self.seq_max = self.seq_max.max(trim.seq);
        let end = (trim.lpn.0.saturating_add(trim.count)).min(self.best.len() as u64);
        for lpn in trim.lpn.0.min(end)..end {
            let best = &mut self.best[lpn as usize];
            if best.0 < trim.seq {
                *best = (0, Ppa(0));
            }
        }
    }

    /// Notes a version that was found but does not count, so that its number is not given again.
    pub fn discarded(&mut self, seq: u64) {
        self.seq_max = self.seq_max.max(seq);
    }

    /// The highest sequence number seen.
    pub fn seq_max(&self) -> u64 {
        self.seq_max
    }

    /// Sequence number of the version to which a page is mapped; 0 if it is not.
    pub fn seq_of(&self, lpn: Lpn) -> u64 {
        self.best.get(lpn.0 as usize).map_or(0, |(seq, _)| *seq)
    }

    /// Every mapped page, in order.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        let pages = self.best.iter().enumerate().filter(|(_, (seq, _))| *seq != 0);
        pages.map(|(lpn, &(seq, ppa))| Mapping { lpn: Lpn(lpn as u64), ppa, seq })
    }
}

/// A distance that was too large to be stored.
pub const UNKNOWN_DISTANCE: u8 = u8::MAX;
/// Most members of one epoch.
pub const MEMBERS_MAX: u32 = u16::MAX as u32;

#[derive(Clone, Debug, Default)]
struct FoundEpoch {
    /// Sequence number and unit of each member, so that a copy counts only once.
    members: BTreeSet<(u64, u64)>,
    previous: u16,
}

#[derive(Clone, Debug, Default)]
struct FoundStream {
    /// All epochs up to this one were complete.
    watermark: u32,
    epochs: BTreeMap<u32, FoundEpoch>,
}

/// Decides which members of streams count: those of complete epochs, and of the first epoch that is not complete. Only members of
/// this boot may be given, which are above the horizon.
#[derive(Clone, Debug, Default)]
pub struct EpochFold {
    streams: BTreeMap<StreamId, FoundStream>,
}

impl EpochFold {
    /// Adds a record that says that all epochs up to `epoch` are complete.
    pub fn complete(&mut self, stream: StreamId, epoch: u32) {
        let watermark = &mut self.streams.entry(stream).or_default().watermark;
        *watermark = (*watermark).max(epoch);
    }

    /// Adds a member that was found; `unit` distinguishes the units of one command.
    pub fn found(&mut self, member: &Member, seq: u64, unit: u64) {
        let stream = self.streams.entry(member.stream).or_default();
        if member.distance != UNKNOWN_DISTANCE {
            stream.watermark = stream.watermark.max(member.epoch.saturating_sub(u32::from(member.distance)));
        }
        let epoch = stream.epochs.entry(member.epoch).or_default();
        epoch.members.insert((seq, unit));
        epoch.previous = member.previous;
    }

    /// The last epoch of each stream whose members count, by counting the members of each (in-order recovery).
    pub fn by_count(&self) -> EpochLimits {
        let limit = |stream: &FoundStream| {
            let mut epoch = stream.watermark + 1;
            while stream.epochs.range(epoch + 1..).next().is_some() {
                let found = stream.epochs.get(&epoch).map_or(0, |epoch| epoch.members.len());
                match stream.epochs.get(&(epoch + 1)) {
                    Some(next) if usize::from(next.previous) == found => epoch += 1,
                    _ => break,
                }
            }
            epoch
        };
        EpochLimits(self.streams.iter().map(|(id, stream)| (*id, limit(stream))).collect())
    }

    /// The last epoch of each stream whose members count, by the records alone (transactional write-back).
    pub fn by_record(&self) -> EpochLimits {
        EpochLimits(self.streams.iter().map(|(id, stream)| (*id, stream.watermark)).collect())
    }
}

/// The last epoch of each stream whose members count.
#[derive(Clone, Debug, Default)]
pub struct EpochLimits(BTreeMap<StreamId, u32>);

impl EpochLimits {
    /// Whether a member counts.
    pub fn admit(&self, member: &Member) -> bool {
        member.orderless || self.0.get(&member.stream).is_some_and(|limit| member.epoch <= *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(epoch: u32, previous: u16, distance: u8) -> Member {
        Member { stream: StreamId(1), epoch, previous, distance, orderless: false }
    }

    #[test]
    fn what_follows_an_incomplete_epoch_is_discarded() {
        let mut fold = EpochFold::default();
        fold.found(&member(1, 0, 1), 1, 0);
        fold.found(&member(2, 1, 2), 2, 0);
        fold.found(&member(4, 3, 4), 9, 0);
        let limits = fold.by_count();
        let admitted: Vec<u32> = (1..=4).filter(|epoch| limits.admit(&member(*epoch, 0, 0))).collect();
        assert_eq!(admitted, [1, 2]);
        // A copy is not a second member.
        fold.found(&member(2, 1, 2), 2, 0);
        fold.found(&member(3, 1, 3), 3, 0);
        fold.found(&member(3, 1, 3), 3, 1);
        assert!(fold.by_count().admit(&member(3, 1, 3)) && !fold.by_count().admit(&member(4, 3, 4)));
        fold.found(&member(3, 1, 3), 4, 7);
        assert!(fold.by_count().admit(&member(4, 3, 4)), "three members are what the fourth epoch remembers");
    }

    #[test]
    fn epochs_at_or_below_the_watermark_need_no_members() {
        let mut fold = EpochFold::default();
        fold.found(&member(300, 7, UNKNOWN_DISTANCE), 900, 0);
        assert!(!fold.by_count().admit(&member(300, 7, UNKNOWN_DISTANCE)));
        fold.complete(StreamId(1), 299);
        assert!(fold.by_count().admit(&member(300, 7, UNKNOWN_DISTANCE)));
        fold.found(&member(302, 5, 2), 950, 0);
        assert!(!fold.by_count().admit(&member(302, 5, 2)), "nothing of epoch 301 was found");
        assert!(!fold.by_record().admit(&member(301, 1, 1)), "a record has to say so");
        let replaced = Member { orderless: true, ..member(999, 1, 1) };
        assert!(fold.by_count().admit(&replaced) && fold.by_record().admit(&replaced));
    }

    fn version(lpn: u64, seq: u64, ppa: u64) -> Mapping {
        Mapping { lpn: Lpn(lpn), ppa: Ppa(ppa), seq }
    }

    #[test]
    fn discarded_versions_stay_dead_and_copies_stay_alive() {
        let mut fold = Fold::new(4, 100);
        fold.checkpoint(version(0, 50, 7), None);
        fold.found(version(0, 80, 9));
        fold.found(version(0, 50, 11));
        fold.found(version(1, 60, 12));
        assert_eq!(fold.mappings().collect::<Vec<_>>(), [version(0, 50, 11)]);
    }

    #[test]
    fn a_claimed_page_with_a_unit_of_its_own_is_a_source_by_its_own_identity() {
        let shared = ContentId::new(Owner::Lpn(Lpn(2)), 40);
        let mut fold = Fold::new(4, 0);
        fold.claim(Claim { lpn: Lpn(0), content: shared, place: None }, 50);
        fold.claim(Claim { lpn: Lpn(1), content: version(0, 50, 7).own_content(), place: None }, 60);
        fold.checkpoint(version(0, 50, 7), Some(version(0, 50, 7).own_content()));
        fold.settle_claims();
        assert_eq!(fold.mappings().collect::<Vec<_>>(), [version(0, 50, 7), version(1, 60, 7)]);
        assert_eq!(fold.content_of(Lpn(0)), None, "its unit is its own");
    }

    #[test]
    fn the_highest_version_wins_and_trims_kill_older_ones() {
        let mut fold = Fold::new(4, 0);
        for v in [version(0, 3, 30), version(0, 5, 50), version(1, 4, 40), version(2, 9, 90)] {
            fold.found(v);
        }
        fold.trim(TrimRecord { lpn: Lpn(1), count: 10, seq: 6 });
        assert_eq!(fold.mappings().collect::<Vec<_>>(), [version(0, 5, 50), version(2, 9, 90)]);
        assert_eq!(fold.seq_max(), 9);
    }
}
