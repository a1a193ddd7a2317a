//! The FTL without time: the same frontiers, victims and map, driven unit by unit.
//!
//! Used to bring a device into a steady state at once, and to measure write amplification alone.
//!
//! Invariant: between two calls no page is half filled and nothing is in flight.

use crate::config::Allocation;
use crate::device::Device;
use crate::geometry::PageAddr;
use crate::media::{Owner, UnitImage};
use crate::nand::{Frontier, Placer};
use crate::read::LOST;
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::{BlockId, MapWord, PlaneId};

/// Writes units outside of time. Finish it to get the device back.
#[derive(Debug)]
pub struct FastForward<'a> {
    device: &'a mut Device,
    /// Units that wait for their page to be full, by plane.
    user: Vec<Vec<(Lpn, Payload)>>,
    turn: u32,
}

impl<'a> FastForward<'a> {
    /// Begins on a quiet device.
    pub fn new(device: &'a mut Device) -> Self {
        assert!(device.is_quiet() && device.buffer.used() == 0, "time stands still only for a quiet device");
        let planes = device.geometry.planes() as usize;
        Self { device, user: vec![Vec::new(); planes], turn: 0 }
    }

    /// The device as it is now, up to the units that wait for their page to be full.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Writes one logical page.
    #[inline]
    pub fn write(&mut self, lpn: Lpn, payload: Payload) {
        self.device.metrics.host_units_written += 1;
        let plane = match self.device.config.ftl.allocation {
            Allocation::Static => self.device.plane_for(lpn),
            Allocation::Dynamic => {
                let units = self.device.geometry.units_per_page;
                let plane = PlaneId(self.turn / units % self.device.geometry.planes());
                self.turn = self.turn.wrapping_add(1);
                plane
            }
        };
        if self.device.geometry.units_per_page == 1 {
            self.program(plane, Frontier::User, std::iter::once((lpn, None, payload)));
            return;
        }
        self.user[plane.index()].push((lpn, payload));
        if self.user[plane.index()].len() == self.device.geometry.units_per_page as usize {
            self.program_waiting(plane);
        }
    }

    fn program_waiting(&mut self, plane: PlaneId) {
        let mut units = std::mem::take(&mut self.user[plane.index()]);
        self.program(plane, Frontier::User, units.drain(..).map(|(lpn, payload)| (lpn, None, payload)));
        self.user[plane.index()] = units;
    }

    /// Pads what waits, and completes word lines whose later pages could destroy earlier ones.
    pub fn finish(mut self) {
        for plane in 0..self.user.len() {
            if !self.user[plane].is_empty() {
                self.program_waiting(PlaneId(plane as u32));
            }
        }
        if self.device.config.faults.paired_page_loss {
            let pages = self.device.config.timing.cell.pages_per_wordline();
            for plane in (0..self.user.len() as u32).map(PlaneId) {
                for frontier in [Frontier::User, Frontier::Gc] {
                    while self.device.space.next_page(plane, frontier).is_some_and(|page| page % pages != 0) {
                        self.program(plane, frontier, std::iter::empty());
                    }
                }
            }
        }
    }

    /// Programs one page; a unit with a source is a copy and keeps its version.
    #[inline]
    fn program(
        &mut self,
        plane: PlaneId,
        frontier: Frontier,
        units: impl Iterator<Item = (Lpn, Option<Ppa>, Payload)>,
    ) {
        if frontier == Frontier::User {
            self.make_room(plane);
        }
        let device = &mut *self.device;
        let at = device.space.bind(plane, frontier);
        device.space.program_ended(plane, frontier);
        if at.page == 0 {
            device.media.set_opened(at.block, device.space.opened(at.block));
        }
        let mut count = 0;
        for (lpn, source, payload) in units {
            let ppa = device.geometry.ppa(at, count);
            count += 1;
            let seq = match source {
                Some(source) => device.media.oob(source).map_or(0, |(_, seq)| seq),
                None => device.next_seq(),
            };
            device.media.append(at.block, UnitImage { owner: Owner::Lpn(lpn), seq, member: None, payload });
            if let MapWord::Direct(old) = device.map.replace(lpn, MapWord::Direct(ppa)) {
                device.space.blocks.set_invalid(old);
            }
            device.space.blocks.set_valid(ppa);
        }
        let units_per_page = device.geometry.units_per_page;
        for _ in count..units_per_page {
            device.media.append(at.block, UnitImage::pad());
        }
        match frontier {
            Frontier::User => device.metrics.user_units_programmed += u64::from(count),
            Frontier::Gc => device.metrics.gc_units_moved += u64::from(count),
        }
        device.metrics.filler_units += u64::from(units_per_page - count);
        device.metrics.pages_programmed += 1;
        if at.page + 1 == device.geometry.pages_per_block {
            device.space.blocks.close(at.block);
        }
    }

    /// Collects until the plane has as many free blocks as the configuration wants, or none can be gained: what
    /// collections leave unused in pages of several units must not be moved for ever.
    #[inline]
    fn make_room(&mut self, plane: PlaneId) {
        let wanted = self.device.config.ftl.gc.start_below_blocks;
        while self.device.space.blocks.free_count(plane) < wanted {
            let Some(victim) = self.device.gainful(plane) else { break };
            self.collect(plane, victim);
        }
    }

    fn collect(&mut self, plane: PlaneId, victim: BlockId) {
        self.device.space.blocks.collect(victim);
        self.device.metrics.gc_victims += 1;
        let units_per_page = self.device.geometry.units_per_page as usize;
        let first = self.device.geometry.ppa(PageAddr { block: victim, page: 0 }, 0).0;
        let mut page: Vec<(Lpn, Option<Ppa>, Payload)> = Vec::with_capacity(units_per_page);
        let mut left = self.device.space.blocks.valid(victim);
        for ppa in (first..first + u64::from(self.device.geometry.units_per_block())).map(Ppa) {
            if left == 0 {
                break;
            }
            if !self.device.space.blocks.is_valid(ppa) {
                continue;
            }
            left -= 1;
            let Some((Owner::Lpn(lpn), _)) = self.device.media.oob(ppa) else {
                unreachable!("a valid unit belongs to a logical page")
            };
            let payload = match self.device.media.tracks_contents() {
                true => self.device.media.payload(ppa).unwrap_or(LOST),
                false => Payload::Zero,
            };
            page.push((lpn, Some(ppa), payload));
            if page.len() == units_per_page {
                self.program(plane, Frontier::Gc, page.drain(..));
            }
        }
        if !page.is_empty() {
            self.program(plane, Frontier::Gc, page.drain(..));
        }
        self.device.media.erase(victim);
        self.device.metrics.erases += 1;
        self.device.space.blocks.release(victim);
    }
}
