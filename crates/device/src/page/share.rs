//! SHARE: pages take over the contents of others, all at once, and no data move (share §2, share §3).
//!
//! Place in the data flow: like a deallocation, a SHARE waits at the head of the queue of acceptance until it can be accepted as a
//! whole, changes the map, and becomes durable with its record in the map log. Before that, in this order: the log has room, the
//! epochs before it are stable, its map entries are known, its sources are on the medium, and there is an entry in the table of
//! virtual pages for each pair or a copy of its source.
//!
//! Invariants:
//! 1. All claims of a command are in one group of the log: a power cut leaves all or none.
//! 2. The content that a durable claim names is on the medium: it was there when the claim was accepted, and has an owner until
//!    something newer is durable on each page that has it.
//! 3. What a destination had before stays until the record is durable.
//!
//! Deliberately absent: sources in the buffer as virtual pages (contract §9.15). Their versions are written first, which takes one
//! program; a SHARE of what was just flushed, which is what journals and cleaning do, never waits.

use super::buffer::{Place, Superseded};
use super::content::LOST;
use super::ftl::{Cx, PageFtl};
use super::job::Job;
use super::sharing::{Copied, CopyState, Sharing};
use super::tags::Owners;
use super::work::Due;
use crate::flash::{Owner, Purpose};
use crate::planted::PlantedBug;
use flashweir_core::command::{SharePair, check_range};
use flashweir_core::{Address, DeviceError, Lba, Lpn, Op, Ppa};
use flashweir_ftl::map_log::Pin;
use flashweir_ftl::recovery::{Change, Claim, ContentId, ShareRecord};
use flashweir_ftl::{BlockId, MapWord};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Result of one look at a SHARE.
enum Step {
    Ready,
    Waits,
    Refused(DeviceError),
}

impl PageFtl {
    /// Refuses pairs that contradict themselves or each other, or exceed the namespace; nothing has changed.
    pub(super) fn check_share(cx: &Cx, pairs: &[SharePair]) -> Result<(), DeviceError> {
        let share = &cx.config.ftl.share;
        if share.pages == 0 {
            return Err(DeviceError::NotSupported("SHARE"));
        }
        let unit = cx.geometry.lbas_per_unit;
        let mut units = 0;
        for pair in pairs {
            check_range(pair.dst, pair.blocks, cx.geometry.capacity_lbas())?;
            check_range(pair.src, pair.blocks, cx.geometry.capacity_lbas())?;
            if [pair.dst.0, pair.src.0, u64::from(pair.blocks)].iter().any(|n| !n.is_multiple_of(unit)) {
                return Err(DeviceError::InvalidField("SHARE works on whole mapping units"));
            }
            units += u64::from(pair.blocks) / unit;
        }
        if units > u64::from(share.batch) {
            return Err(DeviceError::InvalidField("a SHARE of more mapping units than ftl.share.batch"));
        }
        // By ranges, in order of their beginning: two that overlap have neighbours that do.
        let mut ranges: Vec<(u64, u64)> =
            pairs.iter().filter(|p| p.blocks > 0).map(|p| (p.dst.0, p.dst.0 + u64::from(p.blocks))).collect();
        ranges.sort_unstable();
        match ranges.windows(2).find(|two| two[1].0 < two[0].1) {
            Some(two) => Err(DeviceError::InvalidBatch { lba: Lba(two[1].0) }),
            None => Ok(()),
        }
    }

    /// Accepts a SHARE; returns true when it has left the queue, accepted or refused.
    pub(super) fn accept_share(&mut self, cx: &mut Cx, at: u32) -> bool {
        if self.log.is_congested() {
            if self.is_congested_for_good(cx) {
                self.give_up_share(cx, at);
                self.refuse_change(cx, at, DeviceError::ReadOnly);
                return true;
            }
            self.hasten_log(cx);
            return false;
        }
        if let Some(stream) = cx.stream_of(at)
            && !self.may_change(cx, stream)
        {
            return self.refuse_failed(cx, at);
        }
        let mut sharing = match self.sharing.take() {
            Some(sharing) if sharing.command == at => sharing,
            _ => Self::begin_share(cx, at),
        };
        let step = self.prepare(cx, &mut sharing);
        match step {
            Step::Ready => self.share(cx, at, &sharing),
            Step::Waits => {
                self.sharing = Some(sharing);
                return false;
            }
            Step::Refused(error) => self.refuse_share(cx, at, &sharing, error),
        }
        true
    }

    fn begin_share(cx: &Cx, at: u32) -> Box<Sharing> {
        let Op::Share(pairs) = &cx.front.commands.get(at).command.op else { unreachable!("a SHARE") };
        let unit = cx.geometry.lbas_per_unit;
        let of_pair = |pair: &SharePair| {
            let (dst, src) = (pair.dst.0 / unit, pair.src.0 / unit);
            (0..u64::from(pair.blocks) / unit).map(move |i| (Lpn(dst + i), Lpn(src + i)))
        };
        let pairs = pairs.iter().flat_map(of_pair).collect();
        Box::new(Sharing { command: at, pairs, looked: 0, copies: Vec::new(), decided: false })
    }

    /// Does what has to be done before a SHARE can be accepted, as far as that is possible now.
    fn prepare(&mut self, cx: &mut Cx, sharing: &mut Sharing) -> Step {
        let pairs = Arc::clone(&sharing.pairs);
        while sharing.looked < 2 * pairs.len() {
            let (dst, src) = pairs[sharing.looked / 2];
            let lpn = if sharing.looked.is_multiple_of(2) { src } else { dst };
            if !self.may_look_at(cx, sharing.command, lpn) {
                return Step::Waits;
            }
            sharing.looked += 1;
        }
        if !sharing.decided {
            match self.hasten_sources(cx, &pairs) {
                Step::Ready => {}
                step => return step,
            }
            if !self.decide_copies(cx, sharing) {
                return Step::Waits;
            }
            sharing.decided = true;
        }
        self.go_on_copying(cx, sharing)
    }

    /// Makes the versions of the sources durable; refuses a SHARE of which one has no content, or none that can be read.
    fn hasten_sources(&mut self, cx: &mut Cx, pairs: &[(Lpn, Lpn)]) -> Step {
        let mut slots = Vec::new();
        for &(_, src) in pairs {
            if self.lost.contains_key(&src) {
                return Step::Refused(DeviceError::Uncorrectable { at: Address::Lba(cx.lba(src)) });
            }
            match self.buffer.place(self.map.get(src)) {
                Place::Nowhere => return Step::Refused(DeviceError::SourceUnmapped { lba: cx.lba(src) }),
                Place::Slot(slot) => {
                    let version = self.buffer.slot(slot);
                    if version.stuck {
                        let at = Address::Lba(cx.lba(src));
                        let stream = version.member.map(|(stream, _)| DeviceError::StreamFailed(stream));
                        return Step::Refused(stream.unwrap_or(DeviceError::WriteFault { at }));
                    }
                    slots.push(slot);
                }
                Place::Unit(_) | Place::Shared(_) => {}
            }
        }
        if slots.is_empty() {
            return Step::Ready;
        }
        self.hasten_closure(cx, &slots);
        Step::Waits
    }

    /// Finds the pairs for which the table of virtual pages has no room, and begins to copy their sources; copies of which a checkpoint could
    /// not name the contents fail (device-metadata §10). Returns false if a checkpoint has to come first.
    fn decide_copies(&mut self, cx: &mut Cx, sharing: &mut Sharing) -> bool {
        sharing.copies.clear();
        let (mut pages, mut owners) = (0, 0);
        let mut new: BTreeSet<Lpn> = BTreeSet::new();
        for &(dst, src) in sharing.pairs.iter().filter(|(dst, src)| dst != src) {
            let is_new = matches!(self.map.get(src), MapWord::Direct(_)) && !new.contains(&src);
            // A page that becomes virtual has its own page as an owner, too.
            let more = (pages + usize::from(is_new), owners + 1 + usize::from(is_new));
            if self.virtual_pages.has_room(more.0, more.1) {
                (pages, owners) = more;
                if is_new {
                    new.insert(src);
                }
                continue;
            }
            sharing.copies.push(Copied { dst, src, seq: 0, state: CopyState::Reading });
        }
        if !sharing.copies.is_empty() {
            let mappings = cx.geometry.user_units + cx.geometry.map_pages;
            // Where the map is on the medium, a claim has a record of its place.
            let records = cx.config.ftl.share.batch as usize * if cx.geometry.map_pages > 0 { 2 } else { 1 };
            let Some(has_room) = self.log.has_room_for_contents(mappings, sharing.pairs.len(), records)
            else {
                sharing.copies.clear();
                self.work.set(Due::Log);
                return false;
            };
            if !has_room {
                sharing.copies.iter_mut().for_each(|copy| copy.state = CopyState::Failed);
                return true;
            }
        }
        for (nth, copy) in sharing.copies.iter().enumerate() {
            cx.metrics.share_copies += 1;
            let ppa = self.medium(self.map.get(copy.src)).expect("the source is on the medium");
            let purpose = Purpose::Merge { command: sharing.command };
            self.push_read(cx, ppa, 1, (purpose, Job::ShareRead { nth: nth as u32 }));
        }
        true
    }

    /// Whether copies are being made for a SHARE.
    pub(super) fn is_copying(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| !sharing.copies.is_empty())
    }

    /// There is no room for the copies beside what the destinations still have: they become garbage, and their SHARE is refused once none
    /// is being written. Returns false if there were none on the medium.
    pub(super) fn give_up_copies(&mut self, cx: &mut Cx) -> bool {
        let mut places = Vec::new();
        for copy in self.sharing.iter_mut().flat_map(|sharing| &mut sharing.copies) {
            match copy.state {
                CopyState::Written => continue,
                CopyState::Done(place) => places.push(place),
                CopyState::Reading | CopyState::Read | CopyState::Failed => {}
            }
            copy.state = CopyState::Failed;
        }
        let has_freed = !places.is_empty();
        places.into_iter().for_each(|place| self.outdate(cx, place));
        self.work.set(Due::Admit);
        has_freed
    }

    /// The source of copy `nth` of the SHARE at the head of the queue was read.
    pub(super) fn share_read_done(&mut self, nth: u32) {
        let copy = self.sharing.as_mut().and_then(|sharing| sharing.copies.get_mut(nth as usize));
        // Not a read that an earlier SHARE, refused meanwhile, had begun.
        if let Some(copy) = copy.filter(|copy| copy.state == CopyState::Reading) {
            copy.state = CopyState::Read;
        }
        self.work.set(Due::Admit);
    }

    /// Blocks with copies for a SHARE that was not accepted: a checkpoint does not name them, so it must not vouch for their blocks.
    pub(super) fn blocks_with_copies(&self, cx: &Cx) -> BTreeSet<BlockId> {
        let copies = self.sharing.iter().flat_map(|sharing| &sharing.copies);
        let block = |copy: &Copied| match copy.state {
            CopyState::Done(ppa) => Some(cx.flash.blocks.block(ppa)),
            _ => None,
        };
        copies.filter_map(block).collect()
    }

    /// The copy at this place, if it is one for a SHARE that was not accepted.
    pub(super) fn copy_at(&self, at: Ppa) -> bool {
        let mut copies = self.sharing.iter().flat_map(|sharing| &sharing.copies);
        copies.any(|copy| copy.state == CopyState::Done(at))
    }

    /// Such a copy has moved.
    pub(super) fn copy_moved(&mut self, from: Ppa, to: Ppa) {
        let copies = self.sharing.iter_mut().flat_map(|sharing| &mut sharing.copies);
        copies
            .filter(|copy| copy.state == CopyState::Done(from))
            .for_each(|copy| copy.state = CopyState::Done(to));
    }

    /// The copy of this version is durable, or lost. Nobody needs it if its SHARE was refused meanwhile.
    pub(super) fn copy_ended(&mut self, cx: &mut Cx, seq: u64, place: Option<Ppa>) {
        let mut copies = self.sharing.iter_mut().flat_map(|sharing| &mut sharing.copies);
        match copies.find(|copy| copy.seq == seq && copy.state == CopyState::Written) {
            Some(copy) => copy.state = place.map_or(CopyState::Failed, CopyState::Done),
            None => place.into_iter().for_each(|place| self.outdate(cx, place)),
        }
        self.work.set(Due::Admit);
    }

    /// The command at the head of the queue was refused: what was prepared for it, if it is a SHARE, is not needed.
    pub(super) fn give_up_share(&mut self, cx: &mut Cx, at: u32) {
        if let Some(sharing) = self.sharing.take_if(|sharing| sharing.command == at) {
            self.drop_copies(cx, &sharing);
        }
    }

    fn drop_copies(&mut self, cx: &mut Cx, sharing: &Sharing) {
        for copy in &sharing.copies {
            if let CopyState::Done(ppa) = copy.state {
                self.outdate(cx, ppa);
            }
        }
    }

    fn go_on_copying(&mut self, cx: &mut Cx, sharing: &mut Sharing) -> Step {
        let mut slots = Vec::new();
        for copy in sharing.copies.iter_mut().filter(|copy| copy.state == CopyState::Read) {
            if !self.buffer.has_room() && self.is_full_for_good() {
                copy.state = CopyState::Failed;
                continue;
            }
            if !self.buffer.has_room() {
                self.background = true;
                self.work.set(Due::Destage);
                break;
            }
            // Its own number: the command gets one when it is accepted, and may still be refused.
            copy.seq = cx.next_seq();
            let ppa = self.medium(self.map.get(copy.src)).expect("the source is on the medium");
            let payload = cx.flash.media.payload(ppa).unwrap_or(LOST);
            let slot = self.buffer.insert(copy.dst, copy.seq, payload, MapWord::Unmapped);
            self.buffer.slot_mut(slot).superseded = Superseded::Hidden;
            self.place(cx, slot, true);
            copy.state = CopyState::Written;
            slots.push(slot);
        }
        if !slots.is_empty() {
            self.work.set(Due::Release);
            self.work.complete_wordlines_of(&slots);
        }
        let under_way = |copy: &Copied| !matches!(copy.state, CopyState::Done(_) | CopyState::Failed);
        if sharing.copies.iter().any(under_way) {
            return Step::Waits;
        }
        match sharing.copies.iter().find(|copy| copy.state == CopyState::Failed) {
            Some(copy) => Step::Refused(DeviceError::WriteFault { at: Address::Lba(cx.lba(copy.dst)) }),
            None => Step::Ready,
        }
    }

    fn refuse_share(&mut self, cx: &mut Cx, at: u32, sharing: &Sharing, error: DeviceError) {
        self.drop_copies(cx, sharing);
        self.refuse_change(cx, at, error);
    }

    /// Accepts a SHARE for which everything is ready.
    fn share(&mut self, cx: &mut Cx, at: u32, sharing: &Sharing) {
        let seq = cx.accept(at);
        let stream = cx.stream_of(at);
        let mut owners = Owners::of(cx.front.commands.get(at).command.tags);
        // All sources are bound before any destination changes.
        let mut bound = Vec::with_capacity(sharing.pairs.len());
        for &(dst, src) in sharing.pairs.iter().filter(|(dst, src)| dst != src) {
            let copy = sharing.copies.iter().find(|copy| copy.dst == dst).map(|copy| (copy.state, copy.seq));
            let (word, content) = match copy {
                Some((CopyState::Done(ppa), copied)) => {
                    (MapWord::Direct(ppa), ContentId::new(Owner::Vpid(dst.0), copied))
                }
                _ => {
                    let vpid = self.make_virtual(cx, src);
                    self.virtual_pages.add_owner(vpid, dst, seq);
                    (MapWord::Shared(vpid), self.virtual_pages.page(vpid).content)
                }
            };
            let place = self.map_cache.as_ref().and_then(|_| self.medium(word));
            bound.push((Claim { lpn: dst, content, place }, word));
        }
        for (Claim { lpn, .. }, word) in &bound {
            self.unmap(cx, (*lpn, Lpn(lpn.0 + 1)), seq, &mut owners, false);
            self.map.replace(*lpn, *word);
            self.place_changed(*lpn);
        }
        cx.metrics.shares += 1;
        cx.metrics.host_units_shared += bound.len() as u64;
        if !bound.is_empty() || stream.is_some() {
            let claims: Arc<[Claim]> = bound.into_iter().map(|(claim, _)| claim).collect();
            self.record_change(cx, Change::Share(ShareRecord { seq, claims }), owners, stream);
        }
        self.end_change(cx, at);
    }

    /// The virtual page of a page whose newest version is on the medium.
    fn make_virtual(&mut self, cx: &Cx, lpn: Lpn) -> u64 {
        match self.map.get(lpn) {
            MapWord::Shared(vpid) => vpid,
            MapWord::Direct(ppa) => {
                let (owner, seq) = cx.flash.media.oob(ppa).expect("a mapped unit was programmed");
                let vpid = self.virtual_pages.add(ppa, ContentId::new(owner, seq));
                self.virtual_pages.add_owner(vpid, lpn, seq);
                self.map.replace(lpn, MapWord::Shared(vpid));
                vpid
            }
            word => unreachable!("a source is on the medium, and not {word:?}"),
        }
    }

    /// A page does not need its virtual page any more, because something newer is durable.
    pub(super) fn release_owner(&mut self, cx: &mut Cx, vpid: u64, lpn: Lpn, seq: u64) {
        let content = self.virtual_pages.page(vpid).content;
        match self.virtual_pages.take_owner(vpid, lpn, seq) {
            // Only a planted bug made it invalid before.
            Some(place) if cx.planted.is_none() || cx.flash.blocks.is_valid(place) => self.outdate(cx, place),
            Some(_) => {}
            None if cx.has_planted(PlantedBug::BoundSourceErased)
                && content == ContentId::new(Owner::Lpn(lpn), seq) =>
            {
                self.forget_unit(cx, vpid);
            }
            None => {}
        }
    }

    /// A planted bug frees a unit that has owners.
    fn forget_unit(&mut self, cx: &mut Cx, vpid: u64) {
        let place = self.virtual_pages.place(vpid);
        if cx.flash.blocks.is_valid(place) {
            self.invalidate(cx, place);
        }
    }

    /// The same, where the newer thing is a change of the map with sequence number `by`: once its record is durable.
    pub(super) fn release_owner_after_log(&mut self, cx: &mut Cx, vpid: u64, lpn: Lpn, by: u64) {
        let seq = self.virtual_pages.owner_since(vpid, lpn, by);
        if cx.has_planted(PlantedBug::VirtualPageReusedEarly) {
            return self.release_owner(cx, vpid, lpn, seq);
        }
        self.log.pin(Pin::Owner { vpid, lpn, seq });
    }

    /// Frees what a change of the map gave up, whose record is durable.
    pub(super) fn unpin(&mut self, cx: &mut Cx, pin: Pin) {
        match pin {
            Pin::Place(ppa) => self.outdate(cx, ppa),
            Pin::Owner { vpid, lpn, seq } => {
                if cx.has_planted(PlantedBug::OwnerTrimFreesPage) {
                    self.forget_unit(cx, vpid);
                }
                self.release_owner(cx, vpid, lpn, seq);
            }
        }
    }

    /// The place of a page's newest version; a unit that it shares is a unit like any other.
    #[inline]
    pub(super) fn newest_place(&self, lpn: Lpn) -> Place {
        match self.buffer.place(self.map.get(lpn)) {
            Place::Shared(vpid) => Place::Unit(self.virtual_pages.place(vpid)),
            place => place,
        }
    }

    /// The place on the medium that a map word names, below all versions in the buffer.
    #[inline]
    pub(super) fn medium(&self, word: MapWord) -> Option<Ppa> {
        match self.buffer.bottom(word) {
            Place::Nowhere | Place::Slot(_) => None,
            Place::Unit(ppa) => Some(ppa),
            Place::Shared(vpid) => Some(self.virtual_pages.place(vpid)),
        }
    }

    /// The sequence number of what a page has on the medium at `ppa`: the one in the out-of-band record, or that of the SHARE by
    /// which the page has it.
    pub(super) fn seq_at(&self, cx: &Cx, lpn: Lpn, ppa: Ppa) -> Option<u64> {
        match self.virtual_pages.at(ppa) {
            Some(vpid) => Some(self.virtual_pages.owner_since(vpid, lpn, u64::MAX)),
            None => cx.flash.media.oob(ppa).map(|(_, seq)| seq),
        }
    }
}
