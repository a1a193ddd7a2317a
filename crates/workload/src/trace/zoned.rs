//! A trace on a device of segments, which are zones to it: what a host of a zoned device did.
//!
//! Place in the data flow: wraps a [`Replay`] between it and the world. [`Zoned::new`] goes through the whole trace before the simulation
//! begins and refuses what zones do not allow.
//!
//! Rules: a write lies in one zone and begins at its write pointer, or at its start, which resets the zone first if it holds something, as
//! a host does that writes a zone again; a deallocation covers one whole zone, and resets it. Reads go where they want, and the device
//! says if nothing was written there.
//!
//! Invariants: requests reach the device in the order of the trace; a zone is reset only while no request is in flight in it, and no write
//! follows before the reset has completed.
//!
//! Deliberately absent: flushes before a request, which would let writes behind it overtake it, and addresses that wrap.

use super::replay::{Fit, Replay, ReplayConfig};
use super::{Problem, Trace, TraceError};
use flashweir_core::{Duration, Instant, Lba};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Token of a reset; a replay's own tokens are smaller.
const RESET: u32 = u32::MAX;

/// A request that waits for its zone.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    /// Whether the zone has been reset for it.
    has_room: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Zoned {
    replay: Replay,
    blocks: u64,
    /// Write pointer of each zone, in sectors from its start.
    pointers: Vec<u64>,
    /// Zones of each request in flight, first and last, and whether it resets them.
    flights: BTreeMap<u32, (u64, u64, bool)>,
    waiting: Option<Waiting>,
    is_resetting: bool,
}

impl Zoned {
    /// Makes a replay of a trace on `count` zones of `blocks` sectors, which take writes of multiples of `unit` sectors.
    ///
    /// # Errors
    /// Those of [`Replay::new`]; the first request that zones do not allow.
    pub fn new(
        trace: Arc<Trace>,
        config: &ReplayConfig,
        (count, blocks, unit): (u32, u64, u64),
    ) -> Result<Self, TraceError> {
        let replay = Replay::new(Arc::clone(&trace), config, u64::from(count) * blocks)?;
        let refused = |problem: Problem| Err(problem.at(trace.file(), 0));
        if config.fit == Fit::Wrap {
            let (key, value) = ("fit", "wrap".to_owned());
            return refused(Problem::Setting { key, value, expected: "`refuse`: zones are not cut up" });
        }
        let mut pointers = vec![0; count as usize];
        // A later round finds what the first one left; after two of them nothing new can happen.
        for _ in 0..config.repeat.min(2) {
            for (number, record) in (1..).zip(trace.records()) {
                let zone = record.lba.0 / blocks;
                let offset = record.lba.0 % blocks;
                let wrong = |why: String| Problem::Zone { number, lba: record.lba.0, why };
                let is_whole = u64::from(record.blocks) == blocks && offset == 0;
                match record.kind {
                    _ if record.preflush => return refused(wrong("expected no flush before it".into())),
                    Kind::Write => {
                        let pointer: &mut u64 = &mut pointers[zone as usize];
                        let (end, length) = (offset + u64::from(record.blocks), u64::from(record.blocks));
                        if !length.is_multiple_of(unit) || end > blocks {
                            return refused(wrong(format!(
                                "{length} sectors: expected a multiple of {unit} within one zone of {blocks}"
                            )));
                        }
                        if offset != 0 && offset != *pointer {
                            let start = zone * blocks;
                            return refused(wrong(match *pointer {
                                0 => format!("nothing is written in its zone: expected sector {start}"),
                                at => format!(
                                    "expected sector {}, the write pointer of its zone, or {start}, its start",
                                    start + at
                                ),
                            }));
                        }
                        *pointer = end;
                    }
                    Kind::Trim if !is_whole => {
                        return refused(wrong(format!(
                            "it deallocates {} sectors: expected one whole zone of {blocks}",
                            record.blocks
                        )));
                    }
                    Kind::Trim => pointers[zone as usize] = 0,
                    Kind::Read | Kind::Flush => {}
                    _ => {
                        return refused(wrong("expected reads, writes, flushes and resets of zones".into()));
                    }
                }
            }
        }
        pointers.fill(0);
        Ok(Self { replay, blocks, pointers, flights: BTreeMap::new(), waiting: None, is_resetting: false })
    }

    fn zones(&self, request: &Request) -> (u64, u64) {
        let last = (request.lba.0 + u64::from(request.blocks)).max(1) - 1;
        (request.lba.0 / self.blocks, last / self.blocks)
    }

    /// Whether no request is in flight in a zone, or none that resets it.
    fn is_quiet(&self, zone: u64, only_resets: bool) -> bool {
        self.flights
            .values()
            .all(|(first, last, is_reset)| !(*first..=*last).contains(&zone) || (only_resets && !is_reset))
    }

    /// Submits the request that waits, or what has to come before it.
    fn submit(&mut self, Waiting { request, has_room }: Waiting) -> Step {
        let (zone, last) = self.zones(&request);
        let pointer = self.pointers[zone as usize];
        let is_again = request.kind == Kind::Write && request.lba.0.is_multiple_of(self.blocks);
        let needs_reset = is_again && pointer > 0 && !has_room;
        let only_resets = !needs_reset && request.kind != Kind::Trim;
        if !(zone..=last).all(|zone| self.is_quiet(zone, only_resets)) {
            return Step::Blocked;
        }
        if needs_reset {
            self.is_resetting = true;
            self.waiting = Some(Waiting { request, has_room: true });
            let (lba, blocks) = (Lba(zone * self.blocks), self.blocks as u32);
            return Step::Submit(Request {
                kind: Kind::Trim,
                lba,
                blocks,
                fua: false,
                token: RESET,
                ..request
            });
        }
        self.waiting = None;
        match request.kind {
            Kind::Write => {
                self.pointers[zone as usize] = request.lba.0 % self.blocks + u64::from(request.blocks);
            }
            Kind::Trim => self.pointers[zone as usize] = 0,
            _ => {}
        }
        self.flights.insert(request.token, (zone, last, request.kind == Kind::Trim));
        Step::Submit(request)
    }
}

impl Workload for Zoned {
    fn poll(&mut self, now: Instant) -> Step {
        if self.is_resetting {
            return Step::Blocked;
        }
        if let Some(waiting) = self.waiting {
            return self.submit(waiting);
        }
        match self.replay.poll(now) {
            Step::Submit(request) => {
                let waiting = Waiting { request, has_room: false };
                self.waiting = Some(waiting);
                self.submit(waiting)
            }
            step => step,
        }
    }

    fn completed(&mut self, now: Instant, token: u32) {
        if token == RESET {
            self.is_resetting = false;
            return;
        }
        self.flights.remove(&token);
        self.replay.completed(now, token);
    }

    fn planned(&self) -> Option<Duration> {
        self.replay.planned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReadOptions, Timing};
    use super::*;

    /// Zones of 64 sectors in a device that writes 8 at a time.
    const ZONES: (u32, u64, u64) = (4, 64, 8);

    /// A trace in MQSim's format: time, device, sector, sectors, and 0 for a write or 1 for a read.
    fn zoned(text: &str, config: &ReplayConfig) -> Result<Zoned, String> {
        let trace = Trace::load("z.trace", text.as_bytes(), &ReadOptions::default());
        let trace = Arc::new(trace.unwrap_or_else(|error| panic!("{error}")));
        Zoned::new(trace, config, ZONES).map_err(|error| error.to_string())
    }

    fn lines(requests: &[(u64, u64, u8)]) -> String {
        requests.iter().map(|(lba, blocks, kind)| format!("0 0 {lba} {blocks} {kind}\n")).collect()
    }

    /// What is submitted until the workload waits.
    fn submitted(zoned: &mut Zoned) -> Vec<(Kind, u64, u32)> {
        let mut all = Vec::new();
        while let Step::Submit(request) = zoned.poll(Instant::ZERO) {
            all.push((request.kind, request.lba.0, request.token));
        }
        all
    }

    #[test]
    fn a_zone_that_is_written_again_is_reset_when_it_is_quiet() {
        let text = lines(&[(0, 32, 0), (32, 32, 0), (64, 8, 0), (0, 16, 0), (16, 8, 0)]);
        let config = ReplayConfig { timing: Timing::Closed(8), ..ReplayConfig::default() };
        let mut zoned = zoned(&text, &config).unwrap();
        let first = submitted(&mut zoned);
        assert_eq!(first.iter().map(|one| one.1).collect::<Vec<_>>(), [0, 32, 64]);
        // The second write of zone 0 is still in flight.
        zoned.completed(Instant::ZERO, first[0].2);
        assert_eq!(submitted(&mut zoned), []);
        zoned.completed(Instant::ZERO, first[1].2);
        assert_eq!(submitted(&mut zoned), [(Kind::Trim, 0, RESET)]);
        zoned.completed(Instant::ZERO, RESET);
        let again = submitted(&mut zoned);
        assert_eq!(
            again.iter().map(|one| (one.0, one.1)).collect::<Vec<_>>(),
            [(Kind::Write, 0), (Kind::Write, 16)]
        );
        for token in [first[2].2, again[0].2, again[1].2] {
            zoned.completed(Instant::ZERO, token);
        }
        assert_eq!(zoned.poll(Instant::ZERO), Step::Done);
    }

    #[test]
    fn what_zones_do_not_allow_is_refused_before_the_run() {
        let refused = |requests: &[(u64, u64, u8)]| {
            zoned(&lines(requests), &ReplayConfig::default()).expect_err("zones do not allow it")
        };
        let start = "z.trace: request";
        assert_eq!(
            refused(&[(0, 8, 1), (8, 8, 0)]),
            format!(
                "{start} 2, at sector 8, does not fit zones: nothing is written in its zone: expected sector 0"
            )
        );
        assert_eq!(
            refused(&[(64, 8, 0), (80, 8, 0)]),
            format!(
                "{start} 2, at sector 80, does not fit zones: expected sector 72, the write pointer of its zone, or 64, its start"
            )
        );
        let size = "sectors: expected a multiple of 8 within one zone of 64";
        assert_eq!(refused(&[(0, 72, 0)]), format!("{start} 1, at sector 0, does not fit zones: 72 {size}"));
        assert_eq!(refused(&[(0, 4, 0)]), format!("{start} 1, at sector 0, does not fit zones: 4 {size}"));
        let wrap = ReplayConfig { fit: Fit::Wrap, ..ReplayConfig::default() };
        let error = zoned(&lines(&[(0, 8, 0)]), &wrap).expect_err("zones are not cut up");
        assert_eq!(error, "z.trace: fit = wrap: expected `refuse`: zones are not cut up");
        // The second round begins behind what the first one wrote.
        let twice = ReplayConfig { repeat: 2, ..ReplayConfig::default() };
        assert!(zoned(&lines(&[(0, 8, 0), (8, 8, 0)]), &twice).is_ok());
    }
}
