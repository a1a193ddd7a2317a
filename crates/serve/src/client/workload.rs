//! Random requests: the load between two power cuts. The load of each boot has a random character, so that some cuts fall into floods of
//! small writes, others behind a flush or into deallocations.

use super::replies::Ask;
use super::stamp::BLOCK;
use crate::nbd::wire::{command, command_flag};
use flashweir_core::random::RandomStream;
use std::ops::Range;

/// Character of the load of a boot.
#[derive(Clone, Debug)]
pub struct Mood {
    /// Most requests in flight.
    pub depth: usize,
    flush: f64,
    fua: f64,
    trim: f64,
    zeroes: f64,
    read: f64,
    unaligned: f64,
    hot: Range<u64>,
    blocks_max: u64,
}

/// Draws requests for a region.
#[derive(Debug)]
pub struct Workload {
    random: RandomStream,
    /// Blocks of the region.
    region: Range<u64>,
    unit_blocks: u64,
    /// What changes something has whole multiples of so many blocks.
    least_blocks: u64,
}

impl Workload {
    /// Requests in `region`, bytes, of a device with mapping units of `unit` bytes.
    pub fn new(seed: u64, region: Range<u64>, unit: u64) -> Self {
        let block = BLOCK as u64;
        let random = RandomStream::new(seed, "live-workload");
        Self {
            random,
            region: region.start / block..region.end / block,
            unit_blocks: unit / block,
            least_blocks: 1,
        }
    }

    /// The same for an export whose smallest write has so many bytes.
    #[must_use]
    pub fn in_blocks_of(self, least: u64) -> Self {
        Self { least_blocks: least / BLOCK as u64, ..self }
    }

    /// The random stream, for the driver of the load.
    pub fn random(&mut self) -> &mut RandomStream {
        &mut self.random
    }

    /// The mood of the next boot.
    pub fn mood(&mut self) -> Mood {
        let random = &mut self.random;
        let mut one_of = |values: [f64; 3]| values[random.below(3) as usize];
        let (flush, fua, trim) =
            (one_of([0.0, 0.02, 0.1]), one_of([0.0, 0.05, 0.3]), one_of([0.0, 0.05, 0.2]));
        let (zeroes, read, unaligned) =
            (one_of([0.0, 0.05, 0.1]), one_of([0.0, 0.1, 0.3]), one_of([0.0, 0.3, 0.8]));
        let depth = [1, 4, 16, 48][random.below(4) as usize];
        let blocks = self.region.end - self.region.start;
        let hot_blocks = (blocks / [2, 16, 128][random.below(3) as usize]).max(8 * self.unit_blocks);
        let hot_from = self.region.start + random.below(blocks - hot_blocks + 1);
        let blocks_max = [4, 16, 64, 512][random.below(4) as usize] * self.unit_blocks;
        let hot = hot_from..hot_from + hot_blocks;
        Mood { depth, flush, fua, trim, zeroes, read, unaligned, hot, blocks_max: blocks_max.min(hot_blocks) }
    }

    /// The next request.
    pub fn next(&mut self, mood: &Mood) -> Ask {
        let random = &mut self.random;
        let mut dice = random.unit();
        let mut is = |share: f64| {
            dice -= share;
            dice < 0.0
        };
        let command = if is(mood.flush) {
            return Ask { command: command::FLUSH, ..Ask::default() };
        } else if is(mood.trim) {
            command::TRIM
        } else if is(mood.zeroes) {
            command::WRITE_ZEROES
        } else if is(mood.read) {
            command::READ
        } else {
            command::WRITE
        };
        let area = if random.chance(0.7) { &mood.hot } else { &self.region };
        // Small lengths are frequent, large ones possible.
        let longest = 1 + random.below(mood.blocks_max);
        let length = 1 + random.below(longest);
        let (mut from, mut blocks) = (area.start + random.below(area.end - area.start), length);
        if !random.chance(mood.unaligned) {
            from = from / self.unit_blocks * self.unit_blocks;
            blocks = blocks.next_multiple_of(self.unit_blocks);
        }
        if command != command::READ {
            from = from / self.least_blocks * self.least_blocks;
            blocks = blocks.next_multiple_of(self.least_blocks);
        }
        from = from.max(self.region.start);
        blocks = blocks.min(self.region.end - from);
        let mut flags = 0;
        if command != command::READ && random.chance(mood.fua) {
            flags |= command_flag::FUA;
        }
        if command == command::WRITE_ZEROES && random.chance(0.3) {
            flags |= command_flag::NO_HOLE;
        }
        let block = BLOCK as u64;
        Ask { command, flags, offset: from * block, length: (blocks * block) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_in_their_region_and_every_kind_occurs() {
        let region = 1 << 20..3 << 20;
        let mut workload = Workload::new(1, region.clone(), 4096);
        let mut seen = [0; 8];
        for _ in 0..50 {
            let mood = workload.mood();
            for _ in 0..200 {
                let ask = workload.next(&mood);
                seen[usize::from(ask.command)] += 1;
                if ask.command != command::FLUSH {
                    assert!(region.start <= ask.offset && ask.length > 0, "{ask:?}");
                    assert!(ask.offset + u64::from(ask.length) <= region.end, "{ask:?}");
                }
            }
        }
        for command in [command::READ, command::WRITE, command::FLUSH, command::TRIM, command::WRITE_ZEROES] {
            assert!(seen[usize::from(command)] > 50, "{seen:?}");
        }
    }
}
