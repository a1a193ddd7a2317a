//! Commands of every kind with any fields, on tiny devices of each firmware: the same host as in `fuzz/`, with decisions from a seed.

pub(crate) mod stranger;

use flashweir_core::RandomStream;
use stranger::{Answered, Draw};

/// Decisions from a random stream, for so many rounds.
struct Drawn {
    random: RandomStream,
    left: u32,
}

impl Draw for Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn is_over(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// `FLASHWEIR_SEED` varies the commands.
#[test]
fn any_commands_are_carried_out_once_or_refused_without_effect() {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for config in stranger::configs() {
        println!("{} FLASHWEIR_SEED={seed}", config.name);
        let random = RandomStream::new(seed, &format!("strange commands, {}", config.name));
        let mut draw = Drawn { random, left: 250 };
        let Answered { done, refused } = stranger::run(stranger::device(&config), &mut draw);
        assert!(done > 20 && refused > 20, "{}: {done} carried out, {refused} refused", config.name);
    }
}
