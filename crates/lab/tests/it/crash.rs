//! The crash laboratory against the simulated SSD.

use flashweir_lab::crash::devices::{names, tiny};
use flashweir_lab::crash::explorer::{Effort, WorldSpec, explore_world};

#[test]
#[ignore]
fn survey() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let only = std::env::var("DEVICE").unwrap_or_default();
    std::panic::set_hook(Box::new(|_| {}));
    for name in names().filter(|n| only.is_empty() || *n == only) {
        for seed in 0..seeds {
            let spec = WorldSpec { config: tiny(name).unwrap(), seed, planted: None, effort: Effort::default() };
            let start = std::time::Instant::now();
            let (counts, found) = explore_world(&spec);
            let s = start.elapsed().as_secs_f64();
            println!("{name} {seed}: {:.2}s {:.0}/s {counts:?}", s, counts.distinct as f64 / s);
            if let Some(found) = found {
                println!("   {found:?}");
            }
        }
    }
}
