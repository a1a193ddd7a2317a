//! Histories too large for brute force: the enumeration against the oracle, identity against content.

use crate::history::{History, Shape};
use flashweir_contract::{Content, DeviceKind, Exploration, LegalStates, Observed, Oracle};
use flashweir_core::{Lpn, RandomStream};
use proptest::prelude::*;
use std::cell::Cell;

const SHAPE: Shape = Shape { lpns: 12, ops: 40, units: 60, values: 0 };

fn kinds() -> impl Strategy<Value = DeviceKind> {
    prop::sample::select(DeviceKind::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Every enumerated state is legal, at any cut, also where the enumeration is not exhaustive.
    #[test]
    fn enumerated_states_are_legal(seed: u64, kind in kinds(), cut in 0.0..1.0f64, values in 0u64..3) {
        let shape = Shape { values, ..SHAPE };
        let history = History::random(&mut RandomStream::new(seed, "larger"), shape);
        let log = history.log();
        let upto = flashweir_contract::LogPos((cut * f64::from(log.position().0 + 1)) as u32);
        let mut oracle = Oracle::new(kind.policy());
        let exploration = Exploration { exhaustive_atoms_max: 8, random_draws: 50, seed, ..Exploration::default() };
        for state in LegalStates::new(&log, upto, kind.policy(), exploration).take(400) {
            let verdict = oracle.check(&log, upto, |lpn| state.observed(&log, lpn));
            prop_assert!(verdict.is_legal(), "{verdict:?} {state:?}");
        }
    }

    /// Where each content identifies its unit, both oracles agree, on legal states and on disturbed ones.
    #[test]
    fn identity_and_content_agree(seed: u64, kind in kinds(), disturbances in 0usize..4) {
        let mut random = RandomStream::new(seed, "identity");
        let history = History::random(&mut random, SHAPE);
        let log = history.log();
        let upto = log.position();
        let mut oracle = Oracle::new(kind.policy());
        let exploration = Exploration { exhaustive_atoms_max: 4, random_draws: 10, seed, ..Exploration::default() };
        let compared = Cell::new(0);
        for state in LegalStates::new(&log, upto, kind.policy(), exploration).take(100) {
            let mut seen: Vec<Observed> = (0..SHAPE.lpns).map(|lpn| state.observed(&log, Lpn(lpn))).collect();
            for _ in 0..disturbances {
                let lpn = random.below(SHAPE.lpns);
                let candidates = history.candidates(lpn);
                seen[lpn as usize] = candidates[random.below(candidates.len() as u64) as usize];
            }
            let observed = |lpn: Lpn| seen[lpn.0 as usize];
            if let Some(by_identity) = oracle.check_by_identity(&log, upto, observed) {
                prop_assert_eq!(by_identity, oracle.check(&log, upto, observed).is_legal());
                compared.set(compared.get() + 1);
            }
        }
    }
}

/// Beyond the exhaustive bound, the states with few atoms missing or present are all enumerated.
#[test]
fn few_missing_and_few_present_are_complete() {
    use flashweir_contract::{Kind, Log, Submission};
    use flashweir_core::CommandId;
    let mut log = Log::new();
    for lpn in 0..20 {
        let op = log.submit(Submission::new(CommandId(lpn), Kind::Write));
        log.accept(op, lpn, [(Lpn(lpn), Content(lpn + 1))]);
    }
    let exploration = Exploration { random_draws: 0, ..Exploration::default() };
    let states = LegalStates::new(&log, log.position(), DeviceKind::D1.policy(), exploration);
    assert!(!states.is_exhaustive());
    let mut by_present = [0; 21];
    for state in states {
        by_present[state.shown(&log).filter(|(_, unit)| unit.is_some()).count()] += 1;
    }
    assert_eq!((by_present[0], by_present[1], by_present[2]), (1, 20, 190));
    assert_eq!((by_present[18], by_present[19], by_present[20]), (190, 20, 1));
    assert_eq!(by_present[3..18], [0; 15]);
}
