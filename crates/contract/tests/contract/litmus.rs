//! The litmus tests from both sides (crash-laboratory §3.8): the oracle accepts exactly the allowed states, the model
//! device shows exactly these.

use flashweir_contract::program::{run, unit_count};
use flashweir_contract::{
    Content, Exploration, LITMUS, Litmus, ModelDevice, Observed, Oracle, Outcome, Policy, Value,
};
use flashweir_core::{Lpn, Payload};
use std::collections::BTreeSet;

fn initial(lpn: Lpn) -> Payload {
    Payload::Tag(5_000 + lpn.0)
}

fn initial_content(lpn: Lpn) -> Content {
    Content::from(&initial(lpn))
}

/// Returns the model device after the program, on aged media.
fn play(litmus: &Litmus, policy: Policy) -> ModelDevice {
    let mut device = ModelDevice::new(policy, 8, 64);
    let steps = litmus.steps();
    for lpn in 0..unit_count(&steps) as u64 {
        device.age(Lpn(lpn), initial(Lpn(lpn)));
    }
    run(&steps, &mut device);
    device
}

/// Returns all combinations of the initial content, zeros and the values 1 to 3.
fn combinations(units: usize) -> Vec<Vec<Value>> {
    let values = [Value::Initial, Value::Zero, Value::Number(1), Value::Number(2), Value::Number(3)];
    let mut all = vec![Vec::new()];
    for _ in 0..units {
        all = all.iter().flat_map(|prefix| values.map(|v| [&prefix[..], &[v]].concat())).collect();
    }
    all
}

#[test]
fn the_oracle_accepts_exactly_what_is_allowed() {
    let mut judged = 0;
    for litmus in LITMUS {
        let units = unit_count(&litmus.steps());
        let allowed: BTreeSet<_> = litmus.allowed().into_iter().collect();
        for kind in litmus.kinds {
            let device = play(litmus, kind.policy());
            let mut oracle = Oracle::new(kind.policy());
            for state in combinations(units) {
                let observed =
                    |lpn: Lpn| Observed::Content(state[lpn.0 as usize].content(lpn, initial_content(lpn)));
                let verdict = oracle.check(device.log(), device.log().position(), observed);
                let name = litmus.name;
                assert_eq!(
                    verdict.is_legal(),
                    allowed.contains(&state),
                    "{name} {kind:?} {state:?} {verdict:?}"
                );
                judged += 1;
            }
        }
    }
    println!("{} litmus tests, {judged} states", LITMUS.len());
}

#[test]
fn the_model_device_shows_exactly_what_is_allowed() {
    for litmus in LITMUS {
        for kind in litmus.kinds {
            let device = play(litmus, kind.policy());
            let mut shown = BTreeSet::new();
            for state in device.legal_states(Exploration::default()) {
                let woken = device.after(&state);
                let observed = |lpn: Lpn| Observed::Content(Content::from(&woken.read(lpn)));
                match litmus.judge(Lpn(0), initial_content, observed) {
                    Outcome::Allowed(state) => shown.insert(state),
                    other => panic!("{} {kind:?}: {other:?} {state:?}", litmus.name),
                };
            }
            assert_eq!(shown.len(), litmus.allowed().len(), "{} {kind:?}: {shown:?}", litmus.name);
        }
    }
}
