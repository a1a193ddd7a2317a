//! Victim selection: which block GC collects.

use crate::blocks::{BlockId, Blocks, PlaneId};
use flashweir_core::random::RandomStream;
use serde::{Deserialize, Serialize};

/// How garbage collection chooses its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GcPolicy {
    /// Fewest valid units.
    Greedy,
    /// Greatest `age · (1 − u) / 2u` (Rosenblum and Ousterhout); age counts in closed blocks.
    CostBenefit,
    /// Fewest valid units among d random blocks.
    #[serde(alias = "random-greedy")]
    DChoices,
    /// The block that was closed first.
    Fifo,
}

/// Chooses victims in one plane at a time.
#[derive(Clone, Debug)]
pub struct VictimPicker {
    policy: GcPolicy,
    choices: u32,
    random: RandomStream,
}

impl VictimPicker {
    /// `choices` is the d of [`GcPolicy::DChoices`].
    pub fn new(policy: GcPolicy, choices: u32, seed: u64) -> Self {
        Self { policy, choices, random: RandomStream::new(seed, "gc-victim") }
    }

    /// The victim in `plane`, or `None` if no closed block has anything to reclaim. Ties go to the lowest
    /// block number.
    pub fn pick(&mut self, blocks: &Blocks, plane: PlaneId) -> Option<BlockId> {
        let keys = blocks.keys_of(plane);
        let first = blocks.of_plane(plane).start;
        let full = blocks.units_per_block();
        let at = match self.policy {
            GcPolicy::Greedy => least(keys, full)?,
            GcPolicy::Fifo => (0..keys.len())
                .filter(|&i| keys[i] < full)
                .min_by_key(|&i| blocks.closed_at(BlockId(first + i as u32)))?,
            GcPolicy::CostBenefit => self.cost_benefit(blocks, keys, first)?,
            GcPolicy::DChoices => self.d_choices(keys, full)?,
        };
        Some(BlockId(first + at as u32))
    }

    /// The block of `plane` with the fewest valid units, whatever the policy.
    pub fn emptiest(blocks: &Blocks, plane: PlaneId) -> Option<BlockId> {
        let at = least(blocks.keys_of(plane), blocks.units_per_block())?;
        Some(BlockId(blocks.of_plane(plane).start + at as u32))
    }

    fn cost_benefit(&self, blocks: &Blocks, keys: &[u32], first: u32) -> Option<usize> {
        let full = f64::from(blocks.units_per_block());
        let mut best: Option<(f64, usize)> = None;
        for (i, &key) in keys.iter().enumerate() {
            if key >= blocks.units_per_block() {
                continue;
            }
            let u = f64::from(key) / full;
            let age = (blocks.closings() - blocks.closed_at(BlockId(first + i as u32))) as f64;
            let score = if key == 0 { f64::INFINITY } else { age * (1.0 - u) / (2.0 * u) };
            if best.is_none_or(|(top, _)| score > top) {
                best = Some((score, i));
            }
        }
        best.map(|(_, i)| i)
    }

    /// Draws until d blocks were seen that GC may choose; a plane with few of them falls back to all.
    fn d_choices(&mut self, keys: &[u32], full: u32) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut seen = 0;
        for _ in 0..self.choices * 8 {
            let i = self.random.below(keys.len() as u64) as usize;
            if keys[i] > full {
                continue;
            }
            seen += 1;
            if best.is_none_or(|b| keys[i] < keys[b]) {
                best = Some(i);
            }
            if seen == self.choices {
                break;
            }
        }
        best.filter(|&b| keys[b] < full).or_else(|| least(keys, full))
    }
}

/// Position of the least key below `full`.
fn least(keys: &[u32], full: u32) -> Option<usize> {
    let least = keys.iter().copied().min()?;
    if least >= full {
        return None;
    }
    keys.iter().position(|&key| key == least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Ppa;

    /// Four closed blocks of four units with 3, 1, 4 and 2 valid ones, closed in the order 2, 0, 1, 3.
    fn blocks() -> Blocks {
        let mut blocks = Blocks::new(1, 6, 4);
        for _ in 0..4 {
            blocks.open(PlaneId(0), false);
        }
        for (block, valid) in [(2, 4), (0, 3), (1, 1), (3, 2)] {
            (0..valid).for_each(|u| blocks.set_valid(Ppa(block * 4 + u)));
            blocks.close(BlockId(block as u32));
        }
        blocks
    }

    #[test]
    fn each_policy_picks_its_block() {
        let blocks = blocks();
        let pick = |policy| VictimPicker::new(policy, 3, 1).pick(&blocks, PlaneId(0));
        assert_eq!(pick(GcPolicy::Greedy), Some(BlockId(1)));
        assert_eq!(pick(GcPolicy::Fifo), Some(BlockId(0)), "block 2 is older but has nothing to reclaim");
        // Ages 4, 3, 2, 1 in the order of closing: 3·¼/1.5 = 0.5, 2·¾/0.5 = 3, 1·½/1 = 0.5.
        assert_eq!(pick(GcPolicy::CostBenefit), Some(BlockId(1)));
        assert!(pick(GcPolicy::DChoices).is_some());
    }

    #[test]
    fn nothing_to_reclaim_is_said() {
        let mut blocks = Blocks::new(1, 4, 2);
        let block = blocks.open(PlaneId(0), false).unwrap();
        blocks.set_valid(Ppa(0));
        blocks.set_valid(Ppa(1));
        blocks.close(block);
        for policy in [GcPolicy::Greedy, GcPolicy::Fifo, GcPolicy::CostBenefit, GcPolicy::DChoices] {
            assert_eq!(VictimPicker::new(policy, 2, 1).pick(&blocks, PlaneId(0)), None);
        }
    }
}
