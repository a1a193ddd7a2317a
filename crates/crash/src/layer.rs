//! A block layer between the history of a boot and its tiny device; the contract is then checked for the host's own
//! requests.
//!
//! Place in the data flow: [`super::sim`] submits requests and passes on the device's completions; commands come back
//! with the time at which they reach the device. Commands of one queue keep their order on the way, those of two queues
//! do not.
//!
//! Invariant: the device holds at most [`DEVICE_DEPTH`] commands of each queue; offers beyond that are refused.

use flashweir_core::random::RandomStream;
use flashweir_core::{Command, CommandId, DeviceError, Done, Duration, Instant};
use flashweir_host::{BlockLayer, Effect, HostConfig, HostMetrics, Input};
use std::collections::BTreeMap;

/// Maximum number of commands of one queue on their way and in the device.
const DEVICE_DEPTH: u32 = 6;
/// Longest time from an offer to the device, in nanoseconds.
const WAY_NS: u64 = 40_000;

/// An action that the block layer requests from the simulation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wish {
    /// The command with this id reaches the device at this time.
    Arrive(Instant, CommandId),
    /// The request with this number is completed.
    Completed(u64, Result<Done, DeviceError>),
    /// Wake the layer at this time.
    Wake(Instant),
}

/// A block layer and the way to its device.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    host: BlockLayer,
    effects: Vec<Effect>,
    random: RandomStream,
    /// Number of commands on their way or in the device, per queue, and the arrival time of the last one.
    queues: BTreeMap<u16, (u32, Instant)>,
    /// Queue of each of these commands.
    held: BTreeMap<CommandId, u16>,
    /// Commands that are on their way.
    on_the_way: BTreeMap<CommandId, Command>,
}

impl Layer {
    pub(super) fn new(config: HostConfig, unit_blocks: u64, seed: u64) -> Self {
        Self {
            host: BlockLayer::new(config, unit_blocks),
            effects: Vec::new(),
            random: RandomStream::new(seed, "crash-layer"),
            queues: BTreeMap::new(),
            held: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
        }
    }

    /// Passes an input to the layer; its actions are appended to `wishes`.
    pub(super) fn input(&mut self, now: Instant, input: Input, wishes: &mut Vec<Wish>) {
        if let Input::Completed { id, .. } = &input
            && let Some(queue) = self.held.remove(id)
            && let Some((held, _)) = self.queues.get_mut(&queue)
        {
            *held -= 1;
        }
        self.host.handle(now, input, &mut self.effects);
        let mut done = 0;
        // Carrying out an effect may cause further effects, which are appended.
        while let Some(effect) = self.effects.get_mut(done) {
            done += 1;
            match std::mem::replace(effect, Effect::At(now)) {
                Effect::Offer(offer) => {
                    let (id, queue) = (offer.command.id, offer.command.queue);
                    let (held, last) = self.queues.entry(queue).or_insert((0, Instant::ZERO));
                    let answer = if *held < DEVICE_DEPTH {
                        *held += 1;
                        self.held.insert(id, queue);
                        *last = (*last).max(now + Duration::from_nanos(self.random.below(WAY_NS)));
                        wishes.push(Wish::Arrive(*last, id));
                        self.on_the_way.insert(id, offer.command);
                        Input::Accepted
                    } else {
                        Input::Busy
                    };
                    self.host.handle(now, answer, &mut self.effects);
                }
                Effect::Completed { token, result } => wishes.push(Wish::Completed(token, result)),
                Effect::At(at) => wishes.push(Wish::Wake(at)),
                Effect::Dispatched(_) | Effect::Transferred(_) => {}
            }
        }
        self.effects.clear();
    }

    /// Takes the command with this id, which reaches the device now.
    pub(super) fn take(&mut self, id: CommandId) -> Option<Command> {
        self.on_the_way.remove(&id)
    }

    pub(super) fn metrics(&self) -> &HostMetrics {
        self.host.metrics()
    }

    /// Describes in words what the layer waits for.
    pub(super) fn describe(&self) -> String {
        let (in_flight, queued) = self.host.depth();
        format!("block layer: {queued} requests queued, {in_flight} dispatched")
    }
}
