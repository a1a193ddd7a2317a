//! A block layer or a chain of layers, a target, and a record of what both did, which is then checked.
//!
//! Expectations about a request come from the program; its effect is read from the contents that reached the target.

use super::target::{Keeps, Target, UNIT};
use crate::{BlockLayer, Chain, Dispatch, Effect, HostConfig, Input, TaskAttribute, Wait};
use flashweir_core::command::StreamId;
use flashweir_core::{
    Command, CommandId, Data, DeviceError, Done, Duration, Instant, Lba, Op, Order, Payload,
};
use std::collections::{BTreeMap, BTreeSet};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Write,
    Read,
    Trim,
    Flush,
    Barrier,
}

/// One request of a program; its token is its index in the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) what: What,
    pub(super) unit: u64,
    pub(super) units: u64,
    pub(super) order: Option<(u16, Order)>,
    pub(super) submitter: u16,
}

impl Ask {
    pub(super) const fn write(unit: u64, order: Option<(u16, Order)>) -> Self {
        Self { what: What::Write, unit, units: 1, order, submitter: 0 }
    }

    pub(super) fn command(&self, token: u64) -> Command {
        let (lba, blocks) = (Lba(self.unit * UNIT), (self.units * UNIT) as u32);
        let data = Data::Units((0..self.units).map(|unit| Payload::Tag(content(token, unit))).collect());
        let op = match self.what {
            What::Write => Op::Write { lba, blocks, data },
            What::Read => Op::Read { lba, blocks },
            What::Trim => Op::Trim { lba, blocks },
            What::Flush => Op::Flush,
            What::Barrier => Op::Barrier,
        };
        let (stream, order) = self.order.map(|(stream, order)| (StreamId(stream), order)).unzip();
        Command { stream, order, ..Command::new(token, op) }
    }
}

/// Identity of the content of one unit of a request.
const fn content(token: u64, unit: u64) -> u64 {
    (token + 1) << 8 | unit
}

const fn token_of(content: u64) -> u64 {
    (content >> 8) - 1
}

#[derive(Clone, Debug)]
pub(super) struct Rig {
    pub(super) layers: Chain,
    /// Dispatch of the layer next to the target.
    dispatch: Dispatch,
    pub(super) target: Target,
    pub(super) now: Instant,
    pub(super) program: Vec<Ask>,
    pub(super) submitted: usize,
    effects: Vec<Effect>,
    wakes: BTreeSet<Instant>,
    /// Last event of each token: 1 dispatched, 2 transferred, 3 completed.
    moments: BTreeMap<u64, u8>,
    answers: BTreeMap<u64, Done>,
    /// Tokens in the order in which their commands left.
    pub(super) left: Vec<u64>,
    wrong: Vec<String>,
    /// Whether commands may fail; if so, only answers are checked.
    pub(super) may_fail: bool,
    failed: u32,
    /// Legacy: tokens transferred, answered by the device (a layer in between may hold the answer back), and covered by
    /// a flush that was sent after that answer.
    served: BTreeSet<u64>,
    finished: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    flushes: BTreeMap<CommandId, BTreeSet<u64>>,
    tokens: BTreeMap<CommandId, Vec<u64>>,
}

impl Rig {
    pub(super) fn new(config: HostConfig, program: Vec<Ask>) -> Self {
        let dispatch = config.dispatch;
        Self::on(Chain::new().above(BlockLayer::new(config, UNIT)), dispatch, program)
    }

    pub(super) fn on(layers: Chain, dispatch: Dispatch, program: Vec<Ask>) -> Self {
        let keeps = match dispatch {
            Dispatch::MultiQueue => Keeps::Epochs,
            _ => Keeps::Attributes,
        };
        Self {
            layers,
            dispatch,
            target: Target::new(keeps),
            now: Instant::ZERO,
            program,
            submitted: 0,
            effects: Vec::new(),
            wakes: BTreeSet::new(),
            moments: BTreeMap::new(),
            answers: BTreeMap::new(),
            left: Vec::new(),
            wrong: Vec::new(),
            may_fail: false,
            failed: 0,
            served: BTreeSet::new(),
            finished: BTreeSet::new(),
            durable: BTreeSet::new(),
            flushes: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    /// Returns the first block layer.
    pub(super) fn layer(&self) -> &BlockLayer {
        self.layers.all().next().expect("every chain here has one")
    }

    /// Gives an input, and answers offers according to `busy`.
    pub(super) fn input(&mut self, input: Input, busy: &mut dyn FnMut() -> bool) {
        let mut effects = std::mem::take(&mut self.effects);
        self.layers.handle(self.now, input, &mut effects);
        while !effects.is_empty() {
            let mut next = Vec::new();
            let mut accepted = None;
            for effect in effects.drain(..) {
                match effect {
                    Effect::Offer(offer) if busy() => {
                        drop(offer);
                        self.layers.handle(self.now, Input::Busy, &mut next);
                    }
                    Effect::Offer(offer) => {
                        let id = offer.command.id;
                        self.check_offer(&offer.command, offer.attribute);
                        if matches!(offer.command.op, Op::Flush) {
                            self.flushes.insert(id, self.finished.clone());
                        }
                        self.target.take(offer);
                        self.tokens.insert(id, Vec::new());
                        accepted = Some(id);
                        self.layers.handle(self.now, Input::Accepted, &mut next);
                    }
                    Effect::At(at) => {
                        self.wakes.insert(at);
                    }
                    Effect::Dispatched(token) => {
                        self.reach(token, 1);
                        self.left.push(token);
                    }
                    Effect::Transferred(token) => self.reach(token, 2),
                    Effect::Completed { token, result } => {
                        self.reach(token, 3);
                        match result {
                            Ok(done) => drop(self.answers.insert(token, done)),
                            Err(_) if self.may_fail => {
                                self.failed += 1;
                                self.answers.insert(token, Done::Ok);
                            }
                            Err(error) => self.wrong.push(format!("{token}: {error}")),
                        }
                    }
                }
            }
            if let Some(id) = accepted {
                let tokens = next.iter().filter_map(|effect| match effect {
                    Effect::Dispatched(token) => Some(*token),
                    _ => None,
                });
                self.tokens.insert(id, tokens.collect());
            }
            effects = next;
        }
        self.effects = effects;
    }

    fn reach(&mut self, token: u64, moment: u8) {
        let reached = self.moments.insert(token, moment).unwrap_or(0);
        if reached >= moment {
            self.wrong.push(format!("{token} reached moment {moment} after {reached}"));
        }
    }

    /// Returns stream and epoch number of each ordered request.
    fn epoch(&self, token: u64) -> Option<(u16, u64)> {
        let ask = self.program[token as usize];
        let (stream, _) =
            ask.order.filter(|_| matches!(ask.what, What::Write | What::Trim | What::Barrier))?;
        let earlier = self.program[..token as usize].iter();
        let mut open = false;
        let mut number = 0;
        for ask in earlier.filter(|ask| ask.order.is_some_and(|order| order.0 == stream)) {
            open |= matches!(ask.what, What::Write | What::Trim);
            if open
                && matches!(ask.what, What::Write | What::Trim | What::Barrier)
                && ask.order == Some((stream, Order::Barrier))
            {
                (open, number) = (false, number + 1);
            }
        }
        Some((stream, number))
    }

    /// Checks the commands that a legacy device is sent, and that the host waited as it must.
    fn check_offer(&mut self, command: &Command, attribute: TaskAttribute) {
        let Dispatch::Legacy(wait) = self.dispatch else { return };
        if command.stream.is_some() || command.order.is_some() || attribute != TaskAttribute::Simple {
            self.wrong.push(format!("a legacy device is sent an order: {command:?}"));
        }
        let Op::Write { data: Data::Units(payloads), .. } = &command.op else { return };
        let Some((stream, number)) = self.epoch(token_of(payloads[0].identity())) else { return };
        for token in 0..self.submitted as u64 {
            let is_before = self.epoch(token).is_some_and(|epoch| epoch.0 == stream && epoch.1 < number);
            let is_waited_for = match wait {
                Wait::Transfer => self.served.contains(&token),
                Wait::Completion => self.finished.contains(&token),
                Wait::TransferAndFlush => self.durable.contains(&token),
            };
            // Refused requests never leave, so no request waits for them.
            if !self.may_fail
                && is_before
                && self.program[token as usize].what == What::Write
                && !is_waited_for
            {
                self.wrong.push(format!("{payloads:?} leaves without a wait for {token}"));
            }
        }
    }

    pub(super) fn submit(&mut self) {
        let token = self.submitted as u64;
        let ask = self.program[self.submitted];
        self.submitted += 1;
        self.input(Input::Submit { command: ask.command(token), submitter: ask.submitter }, &mut || false);
    }

    pub(super) fn serve(&mut self, at: usize, tell: bool, busy: &mut dyn FnMut() -> bool) {
        let id = self.target.serve(at);
        self.served.extend(&self.tokens[&id]);
        if tell {
            self.input(Input::Transferred(id), busy);
        }
    }

    pub(super) fn fail(&mut self, at: usize, busy: &mut dyn FnMut() -> bool) {
        let (id, _) = self.target.answer(at);
        self.flushes.remove(&id);
        self.input(Input::Completed { id, result: Err(DeviceError::ReadOnly) }, busy);
    }

    pub(super) fn answer(&mut self, at: usize, busy: &mut dyn FnMut() -> bool) {
        let (id, done) = self.target.answer(at);
        self.finished.extend(&self.tokens[&id]);
        if let Some(covered) = self.flushes.remove(&id) {
            self.durable.extend(covered);
        }
        self.input(Input::Completed { id, result: Ok(done) }, busy);
    }

    /// Advances time to the next instant that the layer asked for; returns false if there is none.
    pub(super) fn wake(&mut self, busy: &mut dyn FnMut() -> bool) -> bool {
        let Some(at) = self.wakes.pop_first() else { return false };
        self.now = self.now.max(at);
        self.input(Input::Wake, busy);
        true
    }

    pub(super) fn pass(&mut self, span: Duration, busy: &mut dyn FnMut() -> bool) {
        let until = self.now + span;
        while self.wakes.first().is_some_and(|&at| at <= until) {
            self.wake(busy);
        }
        self.now = until;
    }

    pub(super) fn is_done(&self) -> bool {
        self.submitted == self.program.len() && self.answers.len() == self.submitted
    }

    /// Checks everything that was promised.
    pub(super) fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.first() {
            return Err(wrong.clone());
        }
        if !self.is_done() {
            let lost = (0..self.submitted as u64).find(|token| !self.answers.contains_key(token));
            return Err(format!("{lost:?} was never answered"));
        }
        for layer in self.layers.all::<BlockLayer>() {
            let (metrics, left) = (layer.metrics(), layer.leftovers());
            if metrics.submitted != metrics.completed || left > 0 {
                return Err(format!("{left} things are left: {metrics:?}"));
            }
        }
        if self.layers.leftovers() > 0 {
            return Err(format!("something is left between layers: {:?}", self.layers));
        }
        if self.failed > 0 {
            return Ok(());
        }
        self.judge_order()?;
        self.judge_contents()
    }

    /// Transfers never reorder two epochs of a stream, and barriers lie exactly between them.
    fn judge_order(&self) -> Result<(), String> {
        let mut last: BTreeMap<u16, u64> = BTreeMap::new();
        let mut of_epoch: BTreeMap<(u16, u64), u64> = BTreeMap::new();
        for &content in &self.target.written {
            let Some((stream, number)) = self.epoch(token_of(content)) else { continue };
            let reached = last.entry(stream).or_default();
            if number < *reached {
                return Err(format!(
                    "{} of epoch {number} is served after epoch {reached}",
                    token_of(content)
                ));
            }
            *reached = number;
            if self.dispatch == Dispatch::OrderPreserving {
                let seen = self.target.epoch_of[&content];
                if *of_epoch.entry((stream, number)).or_insert(seen) != seen {
                    return Err(format!("a barrier within epoch {number} of stream {stream}"));
                }
            }
        }
        let pairs = of_epoch.iter().zip(of_epoch.iter().skip(1));
        for ((&(stream, number), seen), (&(other, later), next)) in pairs {
            if stream == other && seen >= next {
                return Err(format!("no barrier between epochs {number} and {later} of stream {stream}"));
            }
        }
        Ok(())
    }

    /// Reads and the final contents equal those of the program executed in order.
    fn judge_contents(&self) -> Result<(), String> {
        let mut memory: BTreeMap<u64, Payload> = BTreeMap::new();
        for (token, ask) in self.program.iter().enumerate() {
            let token = token as u64;
            for unit in 0..ask.units {
                let at = ask.unit + unit;
                match ask.what {
                    What::Write => drop(memory.insert(at, Payload::Tag(content(token, unit)))),
                    What::Trim => drop(memory.remove(&at)),
                    What::Flush | What::Barrier => {}
                    What::Read => {
                        let expected = memory.get(&at).cloned().unwrap_or_default();
                        let Done::Data(units) = &self.answers[&token] else {
                            return Err(format!("read {token} has no data"));
                        };
                        if units.len() as u64 != ask.units || units[unit as usize] != expected {
                            return Err(format!(
                                "read {token}: unit {unit} of {units:?}, expected {expected:?}"
                            ));
                        }
                    }
                }
            }
        }
        match (0..64).find(|unit| self.target.at(*unit) != memory.get(unit).cloned().unwrap_or_default()) {
            Some(unit) => Err(format!("unit {unit} ends as {:?}", self.target.at(unit))),
            None => Ok(()),
        }
    }
}
