//! Every subset of units of tiny histories, computed directly from the definition of contract §3.1, against the oracle
//! on every candidate observation and against the enumeration of legal states.

use crate::history::{Event, History, RawOp, Shape};
use flashweir_contract::{
    Content, DeviceKind, Durability, Exploration, Kind, LegalStates, LogPos, Observed, Oracle, Policy,
    RangeFlushed,
};
use flashweir_core::{Lpn, RandomStream};
use std::collections::BTreeSet;

/// A unit, with the properties that the definition refers to.
#[derive(Clone, Copy, Debug)]
struct RawUnit {
    op: usize,
    lpn: u64,
    content: u64,
    /// Stream and epoch; empty epochs count here, which changes no comparison.
    epoch: Option<(u16, u32)>,
    promised: bool,
    /// Whether a range flush promises it.
    in_range: bool,
    /// Whether a range flush promises it that had completed before the next unit of no stream on this LPN was submitted.
    in_range_itself: bool,
}

fn raw_units(history: &History, upto: usize, policy: Policy) -> Vec<RawUnit> {
    let events = &history.events[..upto];
    let at = |event: Event| events.iter().position(|&e| e == event);
    let flushed = |number: usize, is_flush: &dyn Fn(&RawOp) -> bool| {
        let Some(done) = at(Event::Complete(number)) else { return false };
        history.ops.iter().enumerate().any(|(other, op)| {
            is_flush(op)
                && at(Event::Complete(other)).is_some()
                && at(Event::Submit(other)).is_some_and(|submitted| done < submitted)
        })
    };
    let promised = |number: usize| {
        let is_promise = policy.durability == Durability::AtCompletion || history.ops[number].fua;
        (at(Event::Complete(number)).is_some() && is_promise) || flushed(number, &|op| op.kind == Kind::Flush)
    };
    let in_range = |number: usize, lpn: u64| {
        let tag = history.ops[number].tag;
        let selects = |op: &RawOp| op.selected.contains(&lpn) || (tag != 0 && tag == op.tag);
        flushed(number, &|op| op.kind == Kind::RangeFlush && selects(op))
    };
    let mut barriers = [0; 2];
    let mut units = Vec::new();
    for event in events {
        let Event::Accept(number) = *event else { continue };
        let op = &history.ops[number];
        let epoch = op.stream.map(|(stream, _)| (stream, barriers[usize::from(stream)]));
        units.extend(op.units.iter().map(|&(lpn, content)| RawUnit {
            op: number,
            lpn,
            content,
            epoch,
            promised: promised(number),
            in_range: in_range(number, lpn),
            in_range_itself: false,
        }));
        if let Some((stream, true)) = op.stream {
            barriers[usize::from(stream)] += 1;
        }
    }
    for index in 0..units.len() {
        let RawUnit { op, lpn, .. } = units[index];
        let orderless = units[index + 1..].iter().find(|unit| unit.lpn == lpn && unit.epoch.is_none());
        let Some(replaced) = orderless.map(|unit| at(Event::Submit(unit.op))) else {
            units[index].in_range_itself = units[index].in_range;
            continue;
        };
        let tag = history.ops[op].tag;
        let selects = |op: &RawOp| op.selected.contains(&lpn) || (tag != 0 && tag == op.tag);
        let done = at(Event::Complete(op));
        units[index].in_range_itself = history.ops.iter().enumerate().any(|(number, flush)| {
            let [submitted, completed] = [Event::Submit(number), Event::Complete(number)].map(at);
            let is_before = |a: Option<usize>, b: Option<usize>| a.zip(b).is_some_and(|(a, b)| a < b);
            flush.kind == Kind::RangeFlush
                && selects(flush)
                && is_before(done, submitted)
                && is_before(completed, replaced)
        });
    }
    units
}

/// Returns the legal states by definition: the contents of all LPNs.
fn legal(history: &History, upto: usize, policy: Policy) -> BTreeSet<Vec<u64>> {
    let units = raw_units(history, upto, policy);
    let before = |a: &RawUnit, b: &RawUnit| {
        let epochs =
            policy.ordered && matches!((a.epoch, b.epoch), (Some((s, i)), Some((t, j))) if s == t && i < j);
        epochs || (policy.atomic && a.op == b.op && history.ops[a.op].atomic)
    };
    let mut states = BTreeSet::new();
    for set in 0u32..1 << units.len() {
        let has = |index: usize| set & (1 << index) != 0;
        let closed = (0..units.len()).filter(|&b| has(b)).all(|b| {
            let needs = |&a: &usize| before(&units[a], &units[b]);
            (0..units.len()).filter(needs).all(has)
        });
        let kept = (0..units.len()).all(|index| {
            let newer = |&other: &usize| other >= index && units[other].lpn == units[index].lpn;
            let or_newer = (0..units.len()).filter(newer).any(has);
            let itself = policy.range_flushed == RangeFlushed::Itself && units[index].in_range_itself;
            (!units[index].promised && !itself || has(index)) && (!units[index].in_range || or_newer)
        });
        if closed && kept {
            let mut state = history.initial.clone();
            for (index, unit) in units.iter().enumerate() {
                if has(index) {
                    state[unit.lpn as usize] = unit.content;
                }
            }
            states.insert(state);
        }
    }
    states
}

/// Checks one history at one cut; returns the number of observations judged by content and by identity.
fn check(history: &History, upto: usize, policy: Policy, oracle: &mut Oracle) -> (u64, u64) {
    let log = history.log();
    let at = LogPos(upto as u32);
    let legal = legal(history, upto, policy);
    let (mut judged, mut identified) = (0, 0);
    for observation in history.observations() {
        let observed = |lpn: Lpn| observation[lpn.0 as usize];
        let contents: Option<Vec<u64>> = observation
            .iter()
            .map(|seen| match seen {
                Observed::Content(content) => Some(content.0),
                Observed::Unreadable => None,
            })
            .collect();
        let expected = contents.is_some_and(|contents| legal.contains(&contents));
        let verdict = oracle.check(&log, at, observed);
        assert_eq!(
            verdict.is_legal(),
            expected,
            "{policy:?} {history:#?} cut at {upto}, {observation:?}: {verdict:?}"
        );
        judged += 1;
        if let Some(by_identity) = oracle.check_by_identity(&log, at, observed) {
            assert_eq!(by_identity, expected, "by identity: {policy:?} {history:#?} cut at {upto}");
            identified += 1;
        }
    }
    let states = LegalStates::new(&log, at, policy, Exploration::default());
    assert!(states.is_exhaustive());
    let mut shown = BTreeSet::new();
    for state in states {
        let contents = |lpn| state.content(&log, Lpn(lpn)).0;
        let contents = (0..history.initial.len() as u64).map(contents).collect();
        assert!(shown.insert(contents), "a state is shown once");
    }
    assert_eq!(shown, legal, "enumeration: {policy:?} {history:#?} cut at {upto}");
    (judged, identified)
}

/// Runs `histories` histories of one shape on all kinds of device, cut at every position.
fn sweep(name: &str, histories: u32, shape: Shape) -> (u64, u64) {
    let mut random = RandomStream::new(1, name);
    let policies: Vec<Policy> = DeviceKind::ALL
        .map(DeviceKind::policy)
        .into_iter()
        .chain([
            Policy { durability: Durability::AtCompletion, ordered: true, ..DeviceKind::D4.policy() },
            Policy { ordered: false, ..DeviceKind::D4.policy() },
            Policy { range_flushed: RangeFlushed::Itself, ..DeviceKind::D3.policy() },
            Policy { range_flushed: RangeFlushed::Itself, ..DeviceKind::D4.policy() },
        ])
        .collect();
    let mut total = (0, 0);
    for round in 0..histories {
        let history = History::random(&mut random, shape);
        let policy = policies[round as usize % policies.len()];
        let mut oracle = Oracle::new(policy);
        for upto in 0..=history.events.len() {
            let (judged, identified) = check(&history, upto, policy, &mut oracle);
            total.0 += judged;
            total.1 += identified;
        }
    }
    println!("{name}: {} observations judged, {} of them also by identity", total.0, total.1);
    total
}

#[test]
fn oracle_and_enumeration_agree_with_the_definition_on_equal_contents() {
    let (judged, _) = sweep("equal contents", 3_000, Shape { lpns: 2, ops: 8, units: 8, values: 2 });
    assert!(judged > 255_914, "{judged}");
}

#[test]
fn oracle_and_enumeration_agree_with_the_definition_on_distinct_contents() {
    let (judged, identified) =
        sweep("distinct contents", 1_000, Shape { lpns: 2, ops: 7, units: 8, values: 0 });
    assert!(judged > 200_000 && identified > 100_000, "{judged} {identified}");
}

#[test]
fn oracle_and_enumeration_agree_with_the_definition_on_three_units() {
    let (judged, _) = sweep("three units", 1_000, Shape { lpns: 3, ops: 7, units: 7, values: 2 });
    assert!(judged > 255_914, "{judged}");
}

/// The contract allows every state that Flashweir's own device may show, and more.
#[test]
fn the_contract_of_a_range_flush_is_weaker_than_what_our_device_keeps() {
    let weak = DeviceKind::D3.policy();
    let strong = Policy { range_flushed: RangeFlushed::Itself, ..weak };
    let mut random = RandomStream::new(5, "two strengths");
    let mut more = 0;
    for _ in 0..3_000 {
        let history = History::random(&mut random, Shape { lpns: 2, ops: 8, units: 8, values: 0 });
        let at = history.events.len();
        let (allowed, kept) = (legal(&history, at, weak), legal(&history, at, strong));
        assert!(kept.is_subset(&allowed), "{history:#?}");
        more += u32::from(allowed.len() > kept.len());
    }
    assert!(more > 0, "no history tells them apart");
}

#[test]
fn the_candidates_hold_every_legal_state() {
    let mut random = RandomStream::new(3, "candidates");
    for _ in 0..100 {
        let history = History::random(&mut random, Shape { lpns: 2, ops: 6, units: 6, values: 2 });
        let observations: BTreeSet<_> = history.observations().into_iter().collect();
        for state in legal(&history, history.events.len(), DeviceKind::D4.policy()) {
            let seen: Vec<_> = state.into_iter().map(|c| Observed::Content(Content(c))).collect();
            assert!(observations.contains(&seen));
        }
    }
}
