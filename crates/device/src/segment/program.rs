//! Pages on their way to the flash: each plane has one queue, and one program at a time.
//!
//! Invariants: pages of one lane are queued in the order of their numbers; a page whose program failed is the next one of its lane.

use super::job::{Job, Op as NandOp};
use super::moving::Why;
use super::table::{GAP, Page, Segments, Slot, Wait};
use crate::config::AppendMode;
use crate::cx::Cx;
use crate::flash::{Class, OpKind, Owner, Purpose, UnitImage};
use crate::planted::PlantedBug;
use flashweir_core::Payload;

impl Segments {
    /// Queues the pages of a segment that may be programmed.
    pub(super) fn offer<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        if !self.open.contains_key(&segment) {
            return;
        }
        match self.mode {
            AppendMode::Sequential => self.offer_in_order(cx, segment),
            AppendMode::WriteOnce => self.offer_complete(cx, segment),
        }
    }

    fn offer_in_order<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let complete = self.states[segment as usize].pointer / self.per_page;
        loop {
            let open = &self.open[&segment];
            let queued = open.pages.iter().rposition(|page| *page != Page::Waiting);
            let page = open.first + queued.map_or(0, |nth| nth as u32 + 1);
            if page >= complete || open.is_lost {
                return;
            }
            if !self.may_go(cx, segment, page) {
                self.blocked.insert(segment);
                return;
            }
            self.queue_page(cx, segment, page);
        }
    }

    /// In write-once mode: pages that are complete, or whose gaps are filled because someone waits for what is behind them. While a
    /// unit came too late for its page, nothing behind it is queued that was accepted later, because it must not persist without it.
    fn offer_complete<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let (lanes, per_page) = (self.lanes, self.per_page as usize);
        let open = &self.open[&segment];
        if open.is_lost {
            return;
        }
        let mut late_since = u64::MAX;
        let mut held_up = vec![false; lanes as usize];
        let mut ready = Vec::new();
        for (nth, state) in open.pages.iter().enumerate() {
            let page = open.first + nth as u32;
            let lane = &mut held_up[(page % lanes) as usize];
            let units = open.slots.range(nth * per_page..(nth + 1) * per_page);
            let held = units.clone().filter_map(Slot::held);
            let late = held.clone().filter(|unit| unit.is_late).map(|unit| unit.seq);
            late_since = late.min().unwrap_or(u64::MAX).min(late_since);
            if *state != Page::Waiting || *lane {
                continue;
            }
            let is_complete = held.clone().count() == per_page;
            let is_forced = page * self.per_page < open.forced;
            let is_behind = held.map(|unit| unit.seq).max().is_some_and(|newest| newest >= late_since);
            if !is_complete && !is_forced || is_behind {
                *lane = true;
                continue;
            }
            if !self.may_go(cx, segment, page) {
                self.blocked.insert(segment);
                *lane = true;
                continue;
            }
            ready.push(page);
        }
        for page in ready {
            self.queue_page(cx, segment, page);
        }
        if self.open[&segment].late > 0 {
            self.mend(cx, segment);
        }
    }

    /// Whether no unit of the page has to wait for an earlier epoch.
    fn may_go<J: Copy>(&self, cx: &Cx<J>, segment: u32, page: u32) -> bool {
        let units = page * self.per_page..(page + 1) * self.per_page;
        let mut members = units.filter_map(|unit| self.slot(segment, unit)?.held()?.member);
        cx.has_planted(PlantedBug::BarrierIgnored) || members.all(|member| self.streams.may_go(member))
    }

    fn queue_page<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32, page: u32) {
        let plane = self.plane_of(&cx.geometry, segment, page);
        let open = self.open.get_mut(&segment).expect("a page is of the open part");
        let nth = (page - open.first) as usize;
        open.pages[nth] = Page::Queued;
        self.queue_of(plane).waiting.push_back((segment, page));
        self.to_pump.insert(plane);
    }

    /// Begins the programs that can begin.
    pub(super) fn pump<J: Copy>(&mut self, cx: &mut Cx<J>) {
        while let Some(plane) = self.to_pump.pop_first() {
            if self.queue_of(plane).busy.is_some() {
                continue;
            }
            let queue = &self.planes[plane.0 as usize];
            let may_begin = |(segment, page): &(u32, u32)| {
                let open = &self.open[segment];
                let (lane, at) = self.place(*segment, *page);
                let moved = self.moves.get(&plane).is_some_and(|moved| {
                    moved.order.segment == *segment && moved.order.lane == lane && !self.moves_blindly(cx)
                });
                let waits = queue.moves.iter().any(|order| order.segment == *segment && order.lane == lane);
                let is_ready =
                    open.after <= self.log.durable || cx.has_planted(PlantedBug::NextGenerationEarly);
                is_ready
                    && open.moving == 0
                    && !moved
                    && !waits
                    && !open.is_lost
                    && !self.erasing.contains_key(&at.block)
            };
            let Some(nth) = queue.waiting.iter().position(may_begin) else { continue };
            let (segment, page) = self.queue_of(plane).waiting.remove(nth).expect("it was found");
            self.queue_of(plane).busy = Some((segment, page));
            let at = self.place(segment, page).1;
            let job = Job::Program { segment, page };
            let bytes = cx.geometry.page_bytes();
            self.out.push(cx.given((OpKind::Program, Class::Placed), at, bytes, (Purpose::HostData, job)));
        }
    }

    /// The units that the program of a page puts on the medium. Those that came when the page had left are not among them; a gap says whose
    /// it is, and by its number in which generation it was left.
    pub(super) fn page_image(&self, segment: u32, page: u32, images: &mut Vec<UnitImage>) {
        let since = self.states[segment as usize].trimmed_at + 1;
        for unit in page * self.per_page..(page + 1) * self.per_page {
            let held = self.slot(segment, unit).and_then(Slot::held).filter(|held| !held.is_late);
            images.push(match held {
                Some(held) => self.unit_image(segment, unit, held.seq, held.payload.clone()),
                None => self.unit_image(segment, unit | GAP, since, Payload::Zero),
            });
        }
    }

    pub(super) fn unit_image(&self, segment: u32, unit: u32, seq: u64, payload: Payload) -> UnitImage {
        let owner = Owner::Seg { segment: Self::id(segment), offset: unit };
        UnitImage { owner, seq, member: None, payload }
    }

    pub(super) fn program_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp, segment: u32, page: u32) {
        self.queue_of(op.plane).busy = None;
        self.to_pump.insert(op.plane);
        if cx.flash.random.chance(cx.config.faults.program_fail) {
            cx.metrics.program_failures += 1;
            cx.flash.media.spoil(op.at, 0, op.at.page);
            self.queue_of(op.plane).waiting.push_front((segment, page));
            self.order_move(cx, segment, page % self.lanes, op.at.page, Why::Failed);
            return;
        }
        let mut images = Vec::new();
        self.page_image(segment, page, &mut images);
        cx.metrics.pages_programmed += 1;
        let is_gap =
            |image: &&UnitImage| matches!(image.owner, Owner::Seg { offset, .. } if offset & GAP != 0);
        let filler = images.iter().filter(is_gap).count() as u64;
        cx.metrics.filler_units += filler;
        cx.metrics.user_units_programmed += u64::from(self.per_page) - filler;
        cx.flash.media.program(op.at, 0, images.into_iter());
        let open = self.open.get_mut(&segment).expect("its page was not durable");
        let nth = (page - open.first) as usize;
        open.pages[nth] = Page::Programmed;
        let per_page = self.per_page as usize;
        let mut stored = 0;
        for slot in open.slots.range_mut(nth * per_page..(nth + 1) * per_page) {
            if let Slot::Held(unit) = slot
                && !unit.is_late
            {
                *slot = Slot::Stored(unit.member);
                stored += 1;
            }
        }
        if !open.is_lost {
            self.used -= stored;
        }
        self.advance(cx, segment);
        if self.open.get(&segment).is_some_and(|open| open.late > 0) {
            self.mend(cx, segment);
        }
    }

    /// Notes what has become durable of a segment, and ends what waited for it.
    pub(super) fn advance<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let upto = self.durable(segment);
        let per_page = self.per_page;
        let open = self.open.get_mut(&segment).expect("something of it was not durable");
        if upto >= open.forced {
            open.forced = 0;
        }
        let mut settled = Vec::new();
        // Behind a unit that came late, others may be durable: they were accepted before it, and recovery passes the gap.
        let there = open.pages.iter().take_while(|page| **page == Page::Programmed).count();
        for slot in open.slots.range_mut(..there * per_page as usize) {
            if let Slot::Stored(member) = slot {
                settled.extend(member.take());
            }
        }
        // Pages without a gap leave the open part.
        while open.pages.front() == Some(&Page::Programmed)
            && (open.first + 1) * per_page <= upto
            && open.slots.range(..per_page as usize).all(|slot| matches!(slot, Slot::Stored(_)))
        {
            open.pages.pop_front();
            open.slots.drain(..per_page as usize);
            open.first += 1;
        }
        if open.first * per_page == self.units {
            self.open.remove(&segment);
            self.log.add_sealed(segment, cx.front.seq);
        }
        let mut is_epoch_over = false;
        for member in settled {
            is_epoch_over |= self.streams.settle(member);
        }
        if is_epoch_over {
            self.unblock(cx);
        }
        self.end_waits(cx, segment, upto);
    }

    /// Offers again what waited for an epoch.
    pub(super) fn unblock<J: Copy>(&mut self, cx: &mut Cx<J>) {
        for segment in std::mem::take(&mut self.blocked) {
            self.offer(cx, segment);
        }
    }

    fn end_waits<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32, upto: u32) {
        let is_over = |wait: &Wait| wait.segment == segment && wait.upto <= upto;
        while let Some(at) = self.waits.iter().position(is_over) {
            let wait = self.waits.remove(at);
            self.part_done(cx, wait.command);
        }
    }

    /// Has everything below `upto` written: the last page of the segment in part, to the log (sequential mode), or gaps filled
    /// (write-once mode).
    pub(super) fn force<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32, upto: u32) {
        let last = self.states[segment as usize].pointer / self.per_page;
        let complete = last * self.per_page;
        let Some(open) = self.open.get_mut(&segment) else { return };
        match self.mode {
            AppendMode::Sequential => {
                let (page, logged) = open.tail;
                if upto > complete && (page != last || upto > complete + logged) {
                    self.log.want_tail(segment);
                }
            }
            AppendMode::WriteOnce => {
                open.forced = open.forced.max(upto);
                self.offer(cx, segment);
            }
        }
    }

    /// In write-once mode: fills the gaps in front of what is in the buffer, if a command waits for room, or for an earlier epoch whose
    /// members may lie behind gaps of other segments.
    pub(super) fn evict<J: Copy>(&mut self, cx: &mut Cx<J>) {
        let waits_for_room = self.queue.front().is_some_and(|queued| queued.is_ready);
        let waits_for_epochs = !self.blocked.is_empty() && !self.waits.is_empty();
        if self.mode == AppendMode::Sequential || !(waits_for_room || waits_for_epochs) {
            return;
        }
        for segment in self.volatile() {
            let pointer = self.states[segment as usize].pointer;
            self.force(cx, segment, pointer);
        }
    }
}
