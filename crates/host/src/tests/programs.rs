//! Random programs over several streams, with every scheduler and kind of dispatch, against a target that serves simple
//! commands at random and is busy at random. `FLASHWEIR_SEED` varies them.

use super::rig::{Ask, Rig, What};
use crate::block_layer::Planted;
use crate::{
    BlockLayer, CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, Input, Scheduler, TaskAttribute,
    Wait,
};
use flashweir_core::{Duration, Order, RandomStream};

const RUNS: u64 = 3_000;

pub(super) fn seed() -> u64 {
    std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

pub(super) fn pick<T: Copy>(draw: &mut RandomStream, of: &[T]) -> T {
    of[draw.below(of.len() as u64) as usize]
}

pub(super) fn program(draw: &mut RandomStream) -> Vec<Ask> {
    let streams = 1 + draw.below(3);
    let places = pick(draw, &[6, 20, 60]);
    let kinds = [What::Write, What::Write, What::Write, What::Write, What::Read, What::Read, What::Trim];
    let mut last = Ask::write(0, None);
    let mut one = |draw: &mut RandomStream| {
        // Half of the requests resemble the previous one and are adjacent to it, so that merges occur.
        let alike = draw.chance(0.5) && last.units > 0;
        let what = match () {
            () if alike => last.what,
            () if draw.chance(0.1) => pick(draw, &[What::Flush, What::Barrier]),
            () => pick(draw, &kinds),
        };
        let units = if matches!(what, What::Flush | What::Barrier) { 0 } else { 1 + draw.below(3) };
        let unit = match () {
            () if alike && draw.chance(0.5) => last.unit.saturating_sub(units),
            () if alike => (last.unit + last.units) % places,
            () => draw.below(places),
        };
        let stream = draw.below(streams) as u16;
        let order = match () {
            () if what == What::Barrier => Some((stream, Order::Barrier)),
            () if alike && draw.chance(0.8) => last.order,
            () if draw.chance(0.6) => {
                Some((stream, if draw.chance(0.3) { Order::Barrier } else { Order::Within }))
            }
            () => None,
        };
        last = Ask { what, unit, units, order, submitter: draw.below(3) as u16 };
        last
    };
    (0..1 + draw.below(60)).map(|_| one(draw)).collect()
}

pub(super) fn config(draw: &mut RandomStream) -> HostConfig {
    let dispatch = pick(
        draw,
        &[
            Dispatch::OrderPreserving,
            Dispatch::OrderPreserving,
            Dispatch::MultiQueue,
            Dispatch::Legacy(Wait::Transfer),
            Dispatch::Legacy(Wait::Completion),
            Dispatch::Legacy(Wait::TransferAndFlush),
        ],
    );
    let deadline = DeadlineConfig { fifo_batch: 1 + draw.below(16) as u32, ..DeadlineConfig::default() };
    let cfq = CfqConfig { slice: Duration::from_micros(1 + draw.below(100)), ..CfqConfig::default() };
    HostConfig {
        scheduler: pick(draw, &[Scheduler::None, Scheduler::Deadline(deadline), Scheduler::Cfq(cfq)]),
        epochs: pick(draw, &[Epochs::Closing, Epochs::Counted]),
        dispatch,
        queues: if dispatch == Dispatch::MultiQueue { 1 + draw.below(3) as u16 } else { 1 },
        depth: pick(draw, &[1, 2, 4, 32]),
        merge_blocks_max: pick(draw, &[0, 32, 1024]),
        retry_after: Duration::from_millis(3),
        retry_on_completion: draw.chance(0.5),
        flush: match dispatch {
            Dispatch::Legacy(_) | Dispatch::MultiQueue => TaskAttribute::Simple,
            _ => pick(draw, &[TaskAttribute::Simple, TaskAttribute::HeadOfQueue, TaskAttribute::Ordered]),
        },
    }
}

/// Runs one random program in which a fraction `failing` of the commands fails; the error says what was wrong.
fn run(seed: u64, number: u64, planted: Option<Planted>, failing: f64) -> Result<Rig, String> {
    let mut draw = RandomStream::new(seed, &format!("block layer {number}"));
    let (config, program) = (config(&mut draw), program(&mut draw));
    let context = format!("FLASHWEIR_SEED={seed}, run {number}, {config:?}");
    let mut rig = Rig::new(config, program);
    rig.layers.find_mut::<BlockLayer>().expect("there is one").planted = planted;
    drive(&mut rig, &mut draw, (seed, number), failing).map_err(|wrong| format!("{context}: {wrong}"))?;
    Ok(rig)
}

/// Drives a rig through its program to the end, at random, and checks it.
pub(super) fn drive(
    rig: &mut Rig,
    draw: &mut RandomStream,
    (seed, number): (u64, u64),
    failing: f64,
) -> Result<(), String> {
    let busy_part = pick(draw, &[0.0, 0.3, 0.8]);
    let mut busy_draw = RandomStream::new(seed, &format!("busy {number}"));
    let mut busy = || busy_draw.chance(busy_part);
    rig.may_fail = failing > 0.0;
    for _ in 0..40_000 {
        if rig.is_done() {
            break;
        }
        let eligible = rig.target.eligible();
        match draw.below(5) {
            0 | 1 if rig.submitted < rig.program.len() => rig.submit(),
            2 if !eligible.is_empty() => {
                let at = pick(draw, &eligible);
                let tell = draw.chance(0.8);
                rig.serve(at, tell, &mut busy);
            }
            3 if rig.target.answers() > 0 => {
                let at = draw.below(rig.target.answers() as u64) as usize;
                if draw.chance(failing) {
                    rig.fail(at, &mut busy);
                } else {
                    rig.answer(at, &mut busy);
                }
            }
            4 if draw.chance(0.2) => rig.pass(Duration::from_millis(draw.below(5)), &mut busy),
            4 => rig.input(Input::Unplug, &mut busy),
            _ => rig.pass(Duration::from_nanos(100), &mut busy),
        }
    }
    rig.judge().map_err(|wrong| format!("{wrong}\n{:#?}", rig.program))
}

#[test]
fn epochs_keep_their_order_and_every_request_is_answered_once() {
    let seed = seed();
    let mut total = [0; 7];
    for number in 0..RUNS {
        let rig = run(seed, number, None, 0.0).unwrap_or_else(|wrong| panic!("{wrong}"));
        let m = rig.layer().metrics();
        let counts = [
            m.back_merges,
            m.front_merges,
            m.busy,
            m.barriers_sent,
            m.epoch_waits,
            m.overlap_waits,
            m.flushes,
        ];
        total.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(total.iter().all(|&count| count > RUNS / 5), "the programs reach little: {total:?}");
}

#[test]
fn a_device_that_fails_leaves_no_request_unanswered() {
    let mut refused = 0;
    for number in 0..RUNS {
        let rig = run(seed(), number, None, 0.1).unwrap_or_else(|wrong| panic!("{wrong}"));
        refused += rig.layer().metrics().refused;
    }
    assert!(refused > RUNS / 5, "few streams fail: {refused}");
}

/// A check that cannot fail proves nothing.
#[test]
fn planted_mistakes_are_found() {
    for planted in [
        Planted::ForgetBarrier,
        Planted::IgnoreEpochs,
        Planted::MergeAcrossEpochs,
        Planted::IgnoreOverlaps,
        Planted::AnswerOne,
        Planted::SkipFlush,
        Planted::KeepNoPlace,
    ] {
        let found = (0..RUNS).find(|&number| run(seed(), number, Some(planted), 0.0).is_err());
        println!("{planted:?} in run {found:?}");
        assert!(found.is_some(), "{planted:?} is not found in {RUNS} runs");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    for number in 0..20 {
        let [first, second] = [0, 1].map(|_| run(7, number, None, 0.0).unwrap());
        assert_eq!((&first.left, &first.target.written), (&second.left, &second.target.written));
        assert_eq!(first.layer().metrics(), second.layer().metrics());
    }
}
