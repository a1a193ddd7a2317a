//! Streams and barriers over rings: recovery in order, with no extra writes (contract §8).
//!
//! ```text
//!  arrives   ─► number of the host's epoch ─► ring, epoch by epoch ─► program, whenever ─► on the medium
//!                                                                                              │ all earlier epochs are, too
//!                                                                                              ▼
//!                                                                       stable: it counts, an older version stops to
//! ```
//!
//! Place in the data flow: [`admit`](super::admit) asks [`streams`](super::streams) which request may enter a ring, [`target`](super::target)
//! what a program says of its members and which entries it has made stable, [`recover`](super::recover) sets what it found. Here is when a
//! line's members are counted out, and the record of streams.
//!
//! Invariants:
//! 1. Members enter rings epoch by epoch, so the number of members of an epoch is known when the first one of the next enters.
//! 2. A member on the medium is stable when every member of every earlier epoch of its stream is there. Until then its ring keeps it, its
//!    line is neither collected nor erased, and an older version of its unit stays valid.
//! 3. A line with members is erased, or described by end metadata, only when a durable record says that their epochs are complete: nobody
//!    can count them afterwards.
//!
//! Deliberately absent: epochs with numbers of the host's ([`EpochStamp`](flashweir_core::command::EpochStamp)), which only a host without
//! one place that all requests pass needs.

use super::lines::LineId;
use super::planted::PlantedHostBug;
use super::ring::{Change, Entry, Ring, State};
use super::state::HostFtl;
use super::streams::{Writing, pages_max};
use flashweir_core::Ppa;
use flashweir_core::command::{StreamId, Tag};
use flashweir_ftl::epochs::Stream;
use flashweir_ftl::line_pages::{OrderPage, OrderRecord};
use std::collections::BTreeMap;

impl HostFtl {
    /// Whether nobody has to count members on this line, now or after a power loss. If somebody has to, it sees to it that nobody will.
    pub(super) fn is_counted_out(&mut self, line: LineId) -> bool {
        let members = &self.lines.get(line).members;
        if members.is_empty() || self.has_planted(PlantedHostBug::MembersErasedUncounted) {
            return true;
        }
        // Numbers that begin anew say nothing about members that are on the medium.
        if self.orders.is_restarting {
            return false;
        }
        let is_behind = |says: &BTreeMap<StreamId, u32>, (id, epoch): (&StreamId, &u32)| {
            says.get(id).is_none_or(|complete| complete < epoch)
        };
        if !members.iter().any(|member| is_behind(&self.orders.recorded, member)) {
            return true;
        }
        let mut are_complete = true;
        for (id, epoch) in members {
            let stream = self.orders.streams.get_mut(id).expect("it has members");
            // An epoch that the host never closes would keep the line for ever (contract §8.11).
            if stream.epochs.open == *epoch {
                stream.close();
            }
            are_complete &= stream.epochs.base() > *epoch;
        }
        if are_complete && members.iter().any(|member| is_behind(self.orders.says(), member)) {
            self.orders.is_wanted = true;
        }
        false
    }

    /// GC waits for a line whose members have to be counted out: what that needs goes first. `is_first` is true once for each line.
    pub(super) fn hurry_counting_out(&mut self, line: LineId, is_first: bool) {
        self.orders.is_urgent = true;
        if is_first {
            self.hurry(&self.members_up_to(&self.lines.get(line).members));
        }
        let waiting = self.orders.writing.as_mut().filter(|writing| !writing.is_kicked);
        if let Some(writing) = waiting {
            writing.is_kicked = true;
            let ring = writing.ring;
            self.kick(ring);
        }
    }

    /// Begins the numbers of epochs anew, if a stream has used up its own and no member is under way; returns whether anything changed.
    pub(super) fn restart_epochs(&mut self) -> bool {
        if !self.orders.is_worn() || self.orders.is_restarting {
            return false;
        }
        if self.orders.is_under_way() || self.orders.writing.is_some() {
            (0..self.rings.len()).for_each(|ring| self.kick(ring));
            return false;
        }
        self.orders.horizon = self.seq;
        for stream in self.orders.streams.values_mut() {
            stream.epochs = Stream { failed: stream.epochs.failed, ..Stream::default() };
        }
        (self.orders.is_wanted, self.orders.is_urgent, self.orders.is_restarting) = (true, true, true);
        true
    }

    /// Whether the record that is wanted has a place in a ring and on the medium.
    pub(super) fn can_record_order(&self) -> bool {
        let items = self.orders.discarded.len();
        items <= OrderPage::items_max(self.layout.unit_bytes) * pages_max(&self.layout) / 2
            && self.lines.have_room()
    }

    /// Brings the pages of a record into a ring, if one is wanted; returns whether anything changed.
    pub(super) fn write_order_record(&mut self) -> bool {
        if !self.orders.is_wanted || self.orders.writing.is_some() {
            return false;
        }
        let streams = self.orders.streams.iter();
        let complete: BTreeMap<StreamId, u32> = streams
            .map(|(id, stream)| (*id, stream.epochs.base() - 1))
            .filter(|(_, epoch)| *epoch > 0)
            .collect();
        let record = OrderRecord {
            horizon: self.orders.horizon,
            complete: complete.iter().map(|(id, epoch)| (*id, *epoch)).collect(),
            discarded: match self.has_planted(PlantedHostBug::DiscardedComeBack) {
                true => Vec::new(),
                false => self.orders.discarded.clone(),
            },
        };
        let pages = record.pages(self.seq + 1, self.layout.unit_bytes);
        let has_room = |ring: &Ring| ring.room() + ring.sync - ring.published >= pages.len() as u64;
        let Some(ring) = self.rings.iter().position(has_room) else { return false };
        self.make_room(ring, pages.len() as u64);
        self.orders.is_wanted = false;
        self.orders.writing = Some(Writing {
            ring,
            is_kicked: self.orders.is_urgent,
            left: pages.len(),
            places: Vec::new(),
            complete,
        });
        self.metrics_mut().order_records += 1;
        for page in pages {
            let (change, seq) = (Change::Order(page.encode()), self.next_seq());
            let (tags, before) = ([Tag(0); 2], Vec::new());
            self.metrics_mut().meta_units += 1;
            let (is_gc, member, state) = (false, None, State::Filled);
            self.rings[ring].push(Entry { change, seq, tags, is_gc, member, state, before });
        }
        if self.orders.is_urgent {
            self.kick(ring);
        }
        true
    }

    /// A page of a record is on the medium. When all are, the record before it is stale.
    pub(super) fn order_page_persisted(&mut self, ppa: Ppa) {
        let writing = self.orders.writing.as_mut().expect("a record is on its way");
        writing.places.push(ppa);
        writing.left -= 1;
        if writing.left == 0 {
            let Writing { places, complete, .. } = self.orders.writing.take().expect("it was there");
            self.orders.is_urgent = self.orders.is_wanted && self.orders.is_urgent;
            self.orders.recorded = complete;
            if std::mem::take(&mut self.orders.is_restarting) {
                self.lines.forget_members();
            }
            for old in std::mem::replace(&mut self.orders.places, places) {
                self.lines.set_invalid(old);
            }
        }
    }

    /// Pages of records that count as valid.
    pub(super) fn order_places(&self) -> impl Iterator<Item = Ppa> {
        let writing = self.orders.writing.iter().flat_map(|writing| writing.places.iter());
        self.orders.places.iter().chain(writing).copied()
    }

    /// Whether the newest record is durable and no newer one is asked for.
    pub(super) fn is_order_recorded(&self) -> bool {
        !self.orders.is_wanted && self.orders.writing.is_none()
    }

    /// GC has met a page of a record: a newer one takes its place, which may be on its way already.
    pub(super) fn renew_order_record(&mut self, ppa: Ppa) {
        let is_newest = self.orders.writing.as_ref().is_none_or(|writing| writing.places.contains(&ppa));
        self.orders.is_wanted |= is_newest;
        self.orders.is_urgent = true;
    }
}
