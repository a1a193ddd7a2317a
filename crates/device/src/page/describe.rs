//! What the commands, streams and planes of a device wait for, as text for a human reader when a device does not proceed.

use super::ftl::{Cx, PageFtl};
use crate::flash::{Frontier, Placer};
use crate::front::Active;
use flashweir_core::Op;

impl PageFtl {
    /// Describes what each command, stream and plane waits for, one per line.
    pub(super) fn describe_waits(&self, cx: &Cx) -> String {
        let mut text = format!(
            "{} commands, {} waiting, {} flushes, buffer {} used {} dirty, {} pages queued, read-only {}\n",
            cx.front.commands.len(),
            cx.front.admission.len(),
            self.flushes.len(),
            self.buffer.used(),
            self.buffer.dirty(),
            self.space.queued_pages,
            cx.front.read_only,
        );
        text +=
            &cx.front.commands.iter().map(|(at, active)| self.waits_for(cx, at, active)).collect::<String>();
        if let Some(cache) = &self.map_cache {
            text += &format!("map: {}\n", cache.describe());
        }
        text += &self.orders.describe();
        for plane in 0..cx.geometry.planes() {
            let id = flashweir_ftl::PlaneId(plane);
            let c = &self.collections[plane as usize];
            let waits = |frontier| cx.flash.machine.has_waiting_program(id, frontier);
            let offer = |frontier| self.space.offer(&cx.flash.blocks, id, frontier);
            text += &format!(
                "plane {plane}: free {} valid {} {c:?} user waits {} gc waits {} offers {:?}\n",
                cx.flash.blocks.free_count(id),
                cx.flash
                    .blocks
                    .of_plane(id)
                    .map(|b| cx.flash.blocks.valid(flashweir_ftl::BlockId(b)))
                    .sum::<u32>(),
                self.space.user_frontiers().any(waits),
                waits(Frontier::Gc),
                self.space.user_frontiers().map(offer).collect::<Vec<_>>()
            );
        }
        text
    }

    /// Describes what a command waits for.
    fn waits_for(&self, cx: &Cx, at: u32, active: &Active) -> String {
        let command = &active.command;
        let verb = match command.op {
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Flush => "FLUSH",
            Op::RFlush(_) => "RFLUSH",
            Op::Trim { .. } | Op::WriteZeroes { .. } => "deallocation",
            Op::Share(_) => "SHARE",
            _ => "barrier",
        };
        let arrivals = command.stream.and_then(|stream| cx.front.arrivals.get(&stream));
        let pending = self.flushes.iter().find(|flush| flush.command == at);
        let place = cx.front.admission.iter().position(|other| *other == at);
        let state = if let Some(earlier) = arrivals.and_then(|arrivals| arrivals.waits_for(at)) {
            earlier
        } else if let Some(flush) = pending {
            let log = match flush.changes_upto {
                0 => String::new(),
                upto => {
                    format!(", and for the log to {upto}, of which {} is durable", self.log.durable_changes())
                }
            };
            let oldest = self.buffer.iter().filter(|(_, slot)| flush.upto == 0 || slot.seq <= flush.upto);
            let oldest = oldest.min_by_key(|(_, slot)| slot.seq).map_or(String::new(), |(_, slot)| {
                let member =
                    slot.member.map_or(String::new(), |(s, e)| format!(" of stream {} epoch {e}", s.0));
                format!(", the oldest of unit {} {:?}{member}", slot.lpn.0, slot.state)
            });
            format!("{} versions{oldest}{log}", flush.units_left)
        } else if let Some(place) = place {
            match place {
                0 => format!("room in the buffer, {} of its units are in", active.next),
                before => format!("{before} commands before it to be accepted"),
            }
        } else {
            format!("{} parts on the medium", active.left)
        };
        format!("command {} ({verb}) waits for {state}\n", command.id.0)
    }
}
