//! A chain of layers on top of each other, which acts as one layer towards those above and below.
//!
//! Place in the data flow: a submission to the chain goes to its first layer. The offer of a layer is a submission to
//! the next one, with the offered command's id as its token; the offers of the last layer are the chain's. Answers,
//! notices of transferred data and refusals go the other way.
//!
//! Invariants:
//! 1. Each layer sees what it would see above a device: the answer to an offer before anything else, and the
//!    submissions of an instant before it is unplugged.
//! 2. Inputs from below are delivered before anything new goes down.
//! 3. A request of the chain is dispatched when the device has taken the command that contains it, not when the next
//!    layer has. If the request is answered before that, it is not dispatched any more.
//! 4. A chain of one layer behaves exactly as that layer.
//!
//! Deliberately absent: an empty chain does nothing at all. Its owner gives commands to the device directly, so nothing
//! is copied and no layer is called.

use crate::layer::{Effect, Input, Layer, Offer};
use flashweir_core::{CommandId, Instant};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A layer and the state at its edges.
#[derive(Debug)]
struct Stage {
    layer: Box<dyn Layer>,
    /// Inputs from below, held back until the layer's own offer is answered.
    inputs: VecDeque<Input>,
    /// Whether its offer is still unanswered.
    is_waiting: bool,
    /// An offer that the layer below has not examined yet.
    offer: Option<Offer>,
    /// Whether requests have arrived since it was last unplugged.
    is_plugged: bool,
    /// Tokens of requests that became part of a command which the layer below has taken and the device has not, by that
    /// command's id.
    held: BTreeMap<u64, Vec<u64>>,
    /// The inverse of `held`: the command of each token.
    held_by: BTreeMap<u64, u64>,
}

impl Clone for Stage {
    fn clone(&self) -> Self {
        Self {
            layer: self.layer.boxed(),
            inputs: self.inputs.clone(),
            is_waiting: self.is_waiting,
            offer: self.offer.clone(),
            is_plugged: self.is_plugged,
            held: self.held.clone(),
            held_by: self.held_by.clone(),
        }
    }
}

/// A chain of layers; the first one is the host's side.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    stages: Vec<Stage>,
    /// Times at which layers want to be called.
    wakes: BTreeSet<(Instant, usize)>,
    /// Effects of the layer that is being called; empty in between.
    said: Vec<Effect>,
    /// Whether submitters of this instant may still submit.
    is_plugged: bool,
}

impl Chain {
    /// Says for whom each layer waits.
    pub fn describe(&self) -> String {
        self.stages.iter().map(|stage| stage.layer.describe() + "\n").collect()
    }

    /// Returns a chain without layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the chain with one more layer below the others.
    #[must_use]
    pub fn above(mut self, layer: impl Layer) -> Self {
        self.stages.push(Stage {
            layer: Box::new(layer),
            inputs: VecDeque::new(),
            is_waiting: false,
            offer: None,
            is_plugged: false,
            held: BTreeMap::new(),
            held_by: BTreeMap::new(),
        });
        self
    }

    /// Whether there is no layer: then commands go to the device directly, and nothing is handled here.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Iterates over the layers of this type.
    pub fn all<L: Layer>(&self) -> impl Iterator<Item = &L> {
        self.stages.iter().filter_map(|stage| (&*stage.layer as &dyn Any).downcast_ref())
    }

    /// Returns the first layer of this type.
    pub fn find_mut<L: Layer>(&mut self) -> Option<&mut L> {
        self.stages.iter_mut().find_map(|stage| (&mut *stage.layer as &mut dyn Any).downcast_mut())
    }

    /// Takes the last layer out of the chain, which is not used any more. Panics if it is of another type (a bug of the caller).
    pub fn into_last<L: Layer>(mut self) -> L {
        let last: Box<dyn Any> = self.stages.pop().expect("a chain with a layer").layer;
        *last.downcast().expect("a layer of this type")
    }

    /// Handles an input, as [`Layer::handle`] does. Panics if there is no layer, or if an offer has not been answered
    /// (bugs of the caller).
    pub fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        if let [only] = &mut self.stages[..] {
            return only.layer.handle(now, input, effects);
        }
        let last = self.stages.len().checked_sub(1).expect("an empty chain is not asked");
        let is_answer = matches!(input, Input::Accepted | Input::Busy);
        assert_eq!(
            is_answer, self.stages[last].is_waiting,
            "an offer is answered by the next input: {input:?}"
        );
        match input {
            Input::Submit { .. } => {
                self.is_plugged = true;
                self.give(now, 0, input, effects);
            }
            Input::Unplug => {
                self.is_plugged = false;
                self.stages[0].is_plugged = false;
                self.give(now, 0, input, effects);
            }
            Input::Accepted | Input::Busy => {
                self.stages[last].is_waiting = false;
                self.give(now, last, input, effects);
            }
            Input::Transferred(_) | Input::Completed { .. } => self.give(now, last, input, effects),
            Input::Wake => {
                while let Some((at, stage)) = self.wakes.pop_first() {
                    if at > now {
                        self.wakes.insert((at, stage));
                        break;
                    }
                    self.stages[stage].inputs.push_back(Input::Wake);
                }
            }
        }
        self.run(now, effects);
    }

    /// Wakes all layers, whether they want to be called or not: one that has to recover begins. Panics if there is no layer (a bug of the
    /// caller).
    pub fn wake_all(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if let [only] = &mut self.stages[..] {
            return only.layer.handle(now, Input::Wake, effects);
        }
        for stage in &mut self.stages {
            stage.inputs.push_back(Input::Wake);
        }
        self.run(now, effects);
    }

    /// Handles the inputs of layers until none is left.
    fn run(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some((stage, input)) = self.next(now, effects) {
            self.give(now, stage, input, effects);
        }
        let last = self.stages.last_mut().expect("an empty chain is not asked");
        effects.extend(last.offer.take().map(Effect::Offer));
    }

    /// Returns the next input of a layer: inputs from below first, then offers that go down, and last the unplugging of
    /// a layer.
    fn next(&mut self, now: Instant, effects: &mut Vec<Effect>) -> Option<(usize, Input)> {
        if let Some(at) = self.stages.iter().position(|stage| !stage.is_waiting && !stage.inputs.is_empty()) {
            return Some((at, self.stages[at].inputs.pop_front()?));
        }
        let is_ready = |stages: &[Stage]| stages[0].offer.is_some() && !stages[1].is_waiting;
        if let Some(at) = self.stages.windows(2).position(is_ready) {
            let offer = self.stages[at].offer.take()?;
            self.stages[at].is_waiting = false;
            if !self.stages[at + 1].layer.has_room(&offer.command) {
                return Some((at, Input::Busy));
            }
            assert!(offer.command.epoch.is_none(), "several queues are filled by the last layer only");
            let id = offer.command.id.0;
            // The layer may continue at once: its next offer waits here until this one is submitted.
            self.stages[at].layer.handle(now, Input::Accepted, &mut self.said);
            let dispatched = self.said.extract_if(.., |effect| matches!(effect, Effect::Dispatched(_)));
            let token = |effect| if let Effect::Dispatched(token) = effect { Some(token) } else { None };
            let tokens: Vec<u64> = dispatched.filter_map(token).collect();
            let stage = &mut self.stages[at];
            stage.held_by.extend(tokens.iter().map(|&token| (token, id)));
            stage.held.insert(id, tokens);
            self.hear(at, effects);
            self.stages[at + 1].is_plugged = true;
            return Some((at + 1, Input::Submit { command: offer.command, submitter: offer.submitter }));
        }
        if self.is_plugged {
            return None;
        }
        let at = self.stages.iter().position(|stage| !stage.is_waiting && stage.is_plugged)?;
        self.stages[at].is_plugged = false;
        Some((at, Input::Unplug))
    }

    /// Passes an input to a layer, or keeps it while the layer's offer is unanswered.
    fn give(&mut self, now: Instant, at: usize, input: Input, effects: &mut Vec<Effect>) {
        let stage = &mut self.stages[at];
        if stage.is_waiting {
            return stage.inputs.push_back(input);
        }
        stage.layer.handle(now, input, &mut self.said);
        self.hear(at, effects);
    }

    /// Passes on the effects of a layer.
    fn hear(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let mut said = std::mem::take(&mut self.said);
        for effect in said.drain(..) {
            match effect {
                Effect::Offer(offer) => {
                    self.stages[at].is_waiting = true;
                    self.stages[at].offer = Some(offer);
                }
                Effect::Dispatched(token) => self.dispatched(at, token, effects),
                Effect::Transferred(token) => {
                    self.let_go(at, token);
                    match at.checked_sub(1) {
                        Some(above) => {
                            self.dispatched_below(above, token, effects);
                            self.stages[above].inputs.push_back(Input::Transferred(CommandId(token)));
                        }
                        None => effects.push(Effect::Transferred(token)),
                    }
                }
                Effect::Completed { token, result } => {
                    self.let_go(at, token);
                    match at.checked_sub(1) {
                        Some(above) => {
                            self.dispatched_below(above, token, effects);
                            let id = CommandId(token);
                            self.stages[above].inputs.push_back(Input::Completed { id, result });
                        }
                        None => effects.push(Effect::Completed { token, result }),
                    }
                }
                Effect::At(instant) => {
                    self.wakes.insert((instant, at));
                    effects.push(Effect::At(instant));
                }
            }
        }
        self.said = said;
    }

    /// Reports that the device has taken a request of a layer.
    fn dispatched(&mut self, at: usize, token: u64, effects: &mut Vec<Effect>) {
        match at.checked_sub(1) {
            Some(above) => self.dispatched_below(above, token, effects),
            None => effects.push(Effect::Dispatched(token)),
        }
    }

    /// Reports that the device has taken the requests that a layer had put into a command, once it has taken that
    /// command.
    fn dispatched_below(&mut self, at: usize, id: u64, effects: &mut Vec<Effect>) {
        for token in self.stages[at].held.remove(&id).unwrap_or_default() {
            self.stages[at].held_by.remove(&token);
            self.dispatched(at, token, effects);
        }
    }

    /// Forgets a held request whose data are transferred or which is answered, since both imply that it was dispatched.
    fn let_go(&mut self, at: usize, token: u64) {
        let stage = &mut self.stages[at];
        if let Some(id) = stage.held_by.remove(&token)
            && let Some(tokens) = stage.held.get_mut(&id)
        {
            tokens.retain(|&held| held != token);
        }
    }

    /// Returns the number of things that wait between layers; zero when all requests are answered.
    #[cfg(test)]
    pub(crate) fn leftovers(&self) -> usize {
        let of_stage = |stage: &Stage| {
            let edges = stage.inputs.len() + usize::from(stage.offer.is_some() || stage.is_waiting);
            edges + stage.held.len() + stage.held_by.len()
        };
        self.stages.iter().map(of_stage).sum()
    }
}
