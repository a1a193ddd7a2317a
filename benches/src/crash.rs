//! Distinct media that the crash laboratory recovers and judges, per CPU second: one thread, all tiny devices.

use crate::cpu;
use flashweir_crash::devices::{names, tiny};
use flashweir_crash::explorer::{Counts, Effort, WorldSpec, explore_world};

/// Distinct media of one run at least.
const STATES: u64 = 100_000;

pub(crate) fn states() -> Result<Vec<(&'static str, f64)>, String> {
    let configs: Vec<_> = names().filter_map(tiny).collect();
    let mut counts = Counts::default();
    let before = cpu::seconds()?;
    for seed in 1.. {
        for config in &configs {
            let spec = WorldSpec { config: config.clone(), seed, planted: None, effort: Effort::EVERYTHING };
            let (world, found) = explore_world(&spec);
            if let Some(found) = found {
                return Err(format!("{} seed {seed}: {found:?}", config.name));
            }
            counts.add(&world);
        }
        if counts.distinct >= STATES {
            break;
        }
    }
    let time = cpu::seconds()? - before;
    Ok(vec![
        ("states_per_cpu_s", counts.distinct as f64 / time),
        ("distinct_states", counts.distinct as f64),
        ("judged", counts.judged as f64),
        ("cpu_s", time),
    ])
}
