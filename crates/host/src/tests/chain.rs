//! Chains of layers in front of the same target and the same checks: one block layer, two, and one with a non-sorting
//! layer above or below.

use super::programs::{config, drive, pick, program, seed};
use super::rig::Rig;
use super::target::UNIT;
use crate::{BlockLayer, Chain, Dispatch, Effect, HostConfig, Input, Layer, Offer, TaskAttribute};
use flashweir_core::{Command, CommandId, Done, Duration, Instant, Order, Payload, RandomStream};
use std::collections::{BTreeMap, VecDeque};

const RUNS: u64 = 1_000;

/// A layer that takes up to `room` requests and passes them on one after the other, in order.
#[derive(Clone, Debug)]
struct Pass {
    room: usize,
    queue: VecDeque<(Command, u16)>,
    /// Tokens of commands that the layer below has.
    below: BTreeMap<u64, u64>,
    names: u64,
    is_plugged: bool,
    is_offered: bool,
    /// Whether it was refused and waits for a completion or a timer.
    is_stalled: bool,
}

impl Pass {
    fn new(room: usize) -> Self {
        Self {
            room,
            queue: VecDeque::new(),
            below: BTreeMap::new(),
            names: 0,
            is_plugged: false,
            is_offered: false,
            is_stalled: false,
        }
    }
}

impl Layer for Pass {
    fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        let is_answer = matches!(input, Input::Accepted | Input::Busy);
        assert_eq!(is_answer, std::mem::take(&mut self.is_offered), "{input:?}");
        match input {
            Input::Submit { command, submitter } => {
                assert!(self.queue.len() < self.room, "it has no room");
                self.is_plugged = true;
                self.queue.push_back((command, submitter));
            }
            Input::Unplug => self.is_plugged = false,
            Input::Accepted => {
                let (command, _) = self.queue.pop_front().expect("it was offered");
                self.below.insert(self.names, command.id.0);
                self.names += 1;
                effects.push(Effect::Dispatched(command.id.0));
            }
            Input::Busy => {
                self.is_stalled = true;
                effects.push(Effect::At(now + Duration::from_millis(1)));
            }
            Input::Transferred(id) => effects.push(Effect::Transferred(self.below[&id.0])),
            Input::Completed { id, result } => {
                self.is_stalled = false;
                let token = self.below.remove(&id.0).expect("a command is answered once");
                effects.push(Effect::Completed { token, result });
            }
            Input::Wake => self.is_stalled = false,
        }
        if let (Some((command, submitter)), false, false) =
            (self.queue.front(), self.is_plugged, self.is_stalled)
        {
            self.is_offered = true;
            let attribute = match command.order {
                Some(Order::Barrier) => TaskAttribute::Ordered,
                _ => TaskAttribute::Simple,
            };
            let command = Command { id: CommandId(self.names), ..command.clone() };
            effects.push(Effect::Offer(Offer { command, attribute, submitter: *submitter }));
        }
    }

    fn has_room(&self, _: &Command) -> bool {
        self.queue.len() < self.room
    }

    fn boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

/// Returns a chain of `kind` and the dispatch of its last block layer.
fn chain(kind: &str, draw: &mut RandomStream) -> (Chain, Dispatch) {
    let block = |config: &HostConfig| BlockLayer::new(config.clone(), UNIT);
    let single = |draw: &mut RandomStream| loop {
        // Only the last layer may fill several queues.
        let config = config(draw);
        if config.dispatch != Dispatch::MultiQueue {
            return config;
        }
    };
    let room = pick(draw, &[1, 3, 1000]);
    match kind {
        "pass above" => {
            let config = config(draw);
            (Chain::new().above(Pass::new(usize::MAX)).above(block(&config)), config.dispatch)
        }
        "pass below" => {
            let config = single(draw);
            (Chain::new().above(block(&config)).above(Pass::new(room)), config.dispatch)
        }
        _ => {
            let (first, mut second) = (single(draw), config(draw));
            let is_plain = matches!(first.dispatch, Dispatch::Legacy(_));
            if is_plain {
                second.flush = TaskAttribute::Simple;
            }
            let dispatch = if is_plain { first.dispatch } else { second.dispatch };
            let chain = Chain::new().above(block(&first));
            let chain = if kind == "two" { chain } else { chain.above(Pass::new(room)) };
            (chain.above(block(&second)), dispatch)
        }
    }
}

#[test]
fn layers_on_top_of_each_other_answer_once_and_keep_epochs() {
    for kind in ["pass above", "pass below", "two", "three"] {
        let (mut busy, mut merges) = (0, 0);
        for number in 0..RUNS {
            let mut draw = RandomStream::new(seed(), &format!("chain {kind} {number}"));
            let (layers, dispatch) = chain(kind, &mut draw);
            let context = format!("FLASHWEIR_SEED={}, {kind} {number}, {layers:?}", seed());
            let mut rig = Rig::on(layers, dispatch, program(&mut draw));
            let failing = if number % 4 == 0 { 0.1 } else { 0.0 };
            drive(&mut rig, &mut draw, (seed(), number), failing)
                .unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            busy += rig.layer().metrics().busy;
            merges += rig.layer().metrics().back_merges;
        }
        assert!(busy > RUNS / 5 && merges > RUNS / 5, "{kind}: {busy} refusals, {merges} merges");
    }
}

/// A chain of one layer has exactly the effects of its layer.
#[test]
fn a_chain_of_one_is_its_layer() {
    for number in 0..200 {
        let mut draw = RandomStream::new(seed(), &format!("chain of one {number}"));
        let (config, program) = (config(&mut draw), program(&mut draw));
        let mut layer = BlockLayer::new(config.clone(), UNIT);
        let mut chain = Chain::new().above(BlockLayer::new(config, UNIT));
        let (mut now, mut below, mut submitted) = (Instant::ZERO, Vec::new(), 0);
        let mut next = None;
        for _ in 0..400 {
            let input = next.take().unwrap_or_else(|| match draw.below(4) {
                0 | 1 if submitted < program.len() => {
                    submitted += 1;
                    let ask = program[submitted - 1];
                    Input::Submit { command: ask.command(submitted as u64 - 1), submitter: ask.submitter }
                }
                2 if !below.is_empty() => {
                    let (id, units) = below.swap_remove(draw.below(below.len() as u64) as usize);
                    let data = Done::Data(vec![Payload::Zero; units].into());
                    Input::Completed { id, result: Ok(if units > 0 { data } else { Done::Ok }) }
                }
                3 => Input::Wake,
                _ => Input::Unplug,
            });
            let mut said = [Vec::new(), Vec::new()];
            layer.handle(now, input.clone(), &mut said[0]);
            chain.handle(now, input, &mut said[1]);
            assert_eq!(said[0], said[1], "FLASHWEIR_SEED={}, run {number}", seed());
            if let Some(Effect::Offer(offer)) = said[0].last() {
                let is_taken = draw.chance(0.7);
                if is_taken {
                    let units = match offer.command.op {
                        flashweir_core::Op::Read { blocks, .. } => blocks as usize / UNIT as usize,
                        _ => 0,
                    };
                    below.push((offer.command.id, units));
                }
                next = Some(if is_taken { Input::Accepted } else { Input::Busy });
            }
            now += Duration::from_micros(draw.below(2000));
        }
        assert_eq!(chain.all::<BlockLayer>().next().map(BlockLayer::metrics), Some(layer.metrics()));
        assert!(Chain::new().is_empty() && !chain.is_empty());
    }
}

/// A request is dispatched when the device has the last layer's command, not when the layer below has it.
#[test]
fn a_request_is_dispatched_when_the_device_has_it() {
    let config = HostConfig::default();
    let layer = || BlockLayer::new(config.clone(), UNIT);
    let mut chain = Chain::new().above(layer()).above(layer());
    let write = super::rig::Ask::write(0, None).command(7);
    let mut said = Vec::new();
    let mut tell = |input| {
        said.clear();
        chain.handle(Instant::ZERO, input, &mut said);
        said.clone()
    };
    assert_eq!(tell(Input::Submit { command: write, submitter: 4 }), []);
    let offered = tell(Input::Unplug);
    let [Effect::Offer(offer)] = &offered[..] else { panic!("{offered:?}") };
    assert_eq!(offer.submitter, 4);
    assert!(matches!(tell(Input::Busy)[..], [Effect::At(_)]), "both layers have it, the device has not");
    let offered = tell(Input::Wake);
    assert!(offered.is_empty(), "it is too early: {offered:?}");
    let mut later = Vec::new();
    let at = Instant::ZERO + config.retry_after;
    chain.handle(at, Input::Wake, &mut later);
    assert!(matches!(later[..], [Effect::Offer(_)]), "{later:?}");
    later.clear();
    chain.handle(at, Input::Accepted, &mut later);
    assert_eq!(later, [Effect::Dispatched(7)]);
}
