//! The streams of a host FTL as data: epochs of the host and of the FTL, and what the record on the medium says of them.
//!
//! Place in the data flow: [`order`](super::order) has the rules, and changes it with rings and lines.
//!
//! Invariant: an epoch of the host enters rings when all earlier ones of its stream are wholly in them, so the number of members of an epoch
//! is known when the first one of the next enters.

use super::config::Layout;
use flashweir_core::command::StreamId;
use flashweir_core::oob::Member;
use flashweir_core::{Command, DeviceError, Op, Order, Ppa};
use flashweir_ftl::epochs::Stream;
use flashweir_ftl::line_pages::{OrderPage, OrderRecord};
use flashweir_ftl::recovery::{MEMBERS_MAX, UNKNOWN_DISTANCE};
use std::collections::{BTreeMap, VecDeque};

/// A member in a ring whose program has ended: ring, position and place.
pub(super) type Programmed = (usize, u64, Ppa);

/// A request's stream, and the number of its epoch there as the host counts.
pub(super) type Place = Option<(StreamId, u64)>;

/// A stream.
#[derive(Clone, Debug)]
pub(super) struct Ordered {
    /// Epochs of the FTL: those that are not complete, and the open one.
    pub(super) epochs: Stream,
    /// Number of the host's epoch that new requests join.
    arriving: u64,
    /// Number of the host's epoch whose requests may enter rings.
    entering: u64,
    /// Requests that are not wholly in rings, of each of the host's epochs from that one on.
    outside: VecDeque<u64>,
    /// Number of epochs that were closed.
    closed: u64,
    /// Members on the medium that are not stable, by epoch.
    programmed: BTreeMap<u32, Vec<Programmed>>,
}

impl Default for Ordered {
    fn default() -> Self {
        let (epochs, programmed) = (Stream::default(), BTreeMap::new());
        Self { epochs, arriving: 0, entering: 0, outside: VecDeque::from([0]), closed: 0, programmed }
    }
}

impl Ordered {
    /// Closes the open epoch, if it has members. It is complete at once if all of them are on the medium.
    pub(super) fn close(&mut self) {
        self.closed += u64::from(self.epochs.close());
        let stable = self.settle();
        debug_assert!(stable.is_empty(), "members become stable with a program");
    }

    /// Leaves epochs behind that are complete; returns the members that are stable now.
    fn settle(&mut self) -> Vec<Programmed> {
        let mut stable = Vec::new();
        loop {
            stable.extend(self.programmed.remove(&self.epochs.base()).unwrap_or_default());
            let is_complete = self.epochs.epochs.len() > 1 && self.epochs.epochs[0].left == 0;
            if !is_complete {
                return stable;
            }
            self.epochs.epochs.pop_front();
        }
    }

    /// Opens the next of the host's epochs to rings, as long as the one before is wholly in them.
    fn go_on(&mut self) {
        while self.outside.len() > 1 && self.outside[0] == 0 {
            self.outside.pop_front();
            self.entering += 1;
            self.close();
        }
    }
}

/// A record on its way to the medium.
#[derive(Clone, Debug)]
pub(super) struct Writing {
    pub(super) ring: usize,
    /// Whether the ring was told to write it, though it may not fill a page.
    pub(super) is_kicked: bool,
    pub(super) left: usize,
    pub(super) places: Vec<Ppa>,
    pub(super) complete: BTreeMap<StreamId, u32>,
}

/// The streams of a host FTL, and the record that its recovery reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    pub(super) streams: BTreeMap<StreamId, Ordered>,
    /// Stream and number of the epoch of each request that has arrived and was not submitted.
    arrived: BTreeMap<u64, (StreamId, u64)>,
    /// As in [`OrderRecord`].
    pub(super) horizon: u64,
    pub(super) discarded: Vec<(u64, u64)>,
    /// What the newest durable record says.
    pub(super) recorded: BTreeMap<StreamId, u32>,
    /// Where it is.
    pub(super) places: Vec<Ppa>,
    pub(super) writing: Option<Writing>,
    /// A record has to be written.
    pub(super) is_wanted: bool,
    /// The numbers of epochs begin anew when the next record is durable; until then no member enters a ring.
    pub(super) is_restarting: bool,
    /// Something waits for the next record.
    pub(super) is_urgent: bool,
    /// Epochs of a stream after which numbers begin anew.
    epochs_max: u32,
    /// Streams of which a record has room for the last complete epoch.
    streams_max: usize,
}

impl Orders {
    pub(super) fn new(epochs_max: u32, layout: &Layout) -> Self {
        let streams_max = OrderPage::items_max(layout.unit_bytes) * pages_max(layout) / 2;
        Self { epochs_max, streams_max, ..Self::default() }
    }

    /// Checks what a command says about order.
    pub(super) fn check(&self, command: &Command, is_kept: bool) -> Result<(), DeviceError> {
        let Command { stream, order, epoch, .. } = command;
        let is_barrier = command.op == Op::Barrier;
        let is_ordered = stream.is_some() || order.is_some() || epoch.is_some() || is_barrier;
        match (is_ordered, stream) {
            (false, _) => Ok(()),
            _ if !is_kept => Err(DeviceError::NotSupported("ordered commands where rings have no order")),
            _ if epoch.is_some() => Err(DeviceError::NotSupported("numbers of epochs above a host FTL")),
            (_, None) => Err(DeviceError::InvalidField("an order needs a stream")),
            _ if is_barrier && *order == Some(Order::Within) => {
                Err(DeviceError::InvalidField("a barrier of no length closes an epoch"))
            }
            (_, Some(stream)) => match self.streams.get(stream) {
                Some(Ordered { epochs, .. }) if epochs.failed => Err(DeviceError::StreamFailed(*stream)),
                None if self.streams.len() >= self.streams_max => {
                    Err(DeviceError::NotSupported("so many streams above a host FTL with rings of this size"))
                }
                _ => Ok(()),
            },
        }
    }

    /// A stream that lost a member: whoever waits for durability is told.
    pub(super) fn failed(&self) -> Option<StreamId> {
        let failed = self.streams.iter().find(|(_, stream)| stream.epochs.failed);
        failed.map(|(id, _)| *id)
    }

    /// A request has arrived, and finds its place in its stream.
    pub(super) fn arrive(&mut self, command: &Command) {
        let is_change = matches!(command.op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Trim { .. });
        let is_barrier = command.op == Op::Barrier;
        let Some(id) = command.stream.filter(|_| is_change || is_barrier) else { return };
        let stream = self.streams.entry(id).or_default();
        if is_change {
            self.arrived.insert(command.id.0, (id, stream.arriving));
            *stream.outside.back_mut().expect("one epoch is open") += 1;
        }
        if is_barrier || command.order == Some(Order::Barrier) {
            stream.arriving += 1;
            stream.outside.push_back(0);
            stream.go_on();
        }
    }

    /// The place of a request that is submitted.
    pub(super) fn take_arrived(&mut self, token: u64) -> Place {
        self.arrived.remove(&token)
    }

    /// Whether a request of this epoch of the host may enter rings: all earlier ones of its stream are in them.
    pub(super) fn may_enter(&self, place: Place) -> Result<bool, DeviceError> {
        let Some((id, epoch)) = place else { return Ok(true) };
        let stream = &self.streams[&id];
        match stream.epochs.failed {
            true => Err(DeviceError::StreamFailed(id)),
            false => Ok(stream.entering == epoch && !self.is_restarting && !self.is_worn()),
        }
    }

    /// A request is wholly in rings, or was `refused`, so that nothing of its stream that is later may count.
    pub(super) fn entered(&mut self, place: Place, is_refused: bool) {
        let Some((id, epoch)) = place else { return };
        let stream = self.streams.get_mut(&id).expect("it has arrived");
        stream.epochs.failed |= is_refused;
        stream.outside[(epoch - stream.entering) as usize] -= 1;
        stream.go_on();
    }

    /// A member enters a ring; returns its epoch.
    pub(super) fn join(&mut self, place: Place) -> Option<(StreamId, u32)> {
        let (id, _) = place?;
        let stream = self.streams.get_mut(&id).expect("it has arrived");
        if stream.epochs.epochs.back().is_some_and(|open| open.members == MEMBERS_MAX) {
            stream.close();
        }
        let epochs = &mut stream.epochs;
        let open = epochs.epochs.back_mut().expect("one epoch is open");
        (open.members, open.left) = (open.members + 1, open.left + 1);
        Some((id, epochs.open))
    }

    /// What the record beside a member's content says.
    pub(super) fn member(&self, member: Option<(StreamId, u32)>, is_uncounted: bool) -> Option<Member> {
        let (id, epoch) = member?;
        let epochs = &self.streams[&id].epochs;
        let (base, previous) = (epochs.base(), epochs.epochs[(epoch - epochs.base()) as usize].previous);
        let distance = (epoch + 1 - base).min(u32::from(UNKNOWN_DISTANCE)) as u8;
        let previous = if is_uncounted { 0 } else { previous };
        Some(Member { stream: id, epoch, previous, distance, orderless: false })
    }

    /// A program of a member has ended; returns the members that are stable now.
    pub(super) fn programmed(&mut self, (id, epoch): (StreamId, u32), it: Programmed) -> Vec<Programmed> {
        let stream = self.streams.get_mut(&id).expect("it has members");
        stream.epochs.epoch(epoch).left -= 1;
        stream.programmed.entry(epoch).or_default().push(it);
        stream.settle()
    }

    /// Number of epochs that were closed.
    pub(super) fn closed(&self) -> u64 {
        self.streams.values().map(|stream| stream.closed).sum()
    }

    /// Whether any member is in a ring and not stable.
    pub(super) fn is_under_way(&self) -> bool {
        self.streams.values().any(|stream| stream.epochs.epochs.iter().any(|epoch| epoch.left > 0))
    }

    /// Whether a stream has used up its numbers of epochs (contract §8.14).
    pub(super) fn is_worn(&self) -> bool {
        self.streams.values().any(|stream| stream.epochs.open >= self.epochs_max)
    }

    /// What the newest record says, durable or not.
    pub(super) fn says(&self) -> &BTreeMap<StreamId, u32> {
        self.writing.as_ref().map_or(&self.recorded, |writing| &writing.complete)
    }

    /// One line in words of each stream that waits.
    pub(super) fn describe(&self) -> String {
        let streams = self.streams.iter().filter(|(_, stream)| stream.epochs.epochs[0].members > 0);
        let line = |(id, Ordered { epochs, entering, outside, .. }): (&StreamId, &Ordered)| {
            let (base, left, members) = (epochs.base(), epochs.epochs[0].left, epochs.epochs[0].members);
            format!(
                "; stream {}: epoch {base} waits for {left} of {members} members, open {}, the host's epoch {entering} for {} requests",
                id.0, epochs.open, outside[0]
            )
        };
        streams.map(line).collect()
    }
}

/// Pages that a record may have: it enters one ring at once.
pub(super) fn pages_max(layout: &Layout) -> usize {
    layout.ring_entries as usize / 2
}

/// Complete records among these pages: the newest one with its places.
pub(super) fn newest(pages: &[(Ppa, OrderPage)]) -> Option<(OrderRecord, Vec<Ppa>)> {
    let mut records: BTreeMap<u64, BTreeMap<u32, (Ppa, &OrderPage)>> = BTreeMap::new();
    for (ppa, page) in pages {
        records.entry(page.number).or_default().insert(page.part, (*ppa, page));
    }
    let is_whole = |parts: &&BTreeMap<u32, (Ppa, &OrderPage)>| {
        parts.values().next().is_some_and(|(_, page)| page.parts as usize == parts.len())
    };
    let parts = records.values().rev().find(is_whole)?;
    let mut all = OrderRecord::default();
    for (_, page) in parts.values() {
        all.horizon = page.record.horizon;
        all.complete.extend(&page.record.complete);
        all.discarded.extend(&page.record.discarded);
    }
    Some((all, parts.values().map(|(ppa, _)| *ppa).collect()))
}
