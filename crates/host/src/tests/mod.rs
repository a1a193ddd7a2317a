//! The block layer in front of an independent target: random programs, every history of tiny ones, planted mistakes.

mod chain;
mod every_history;
mod merging;
mod programs;
mod rig;
mod target;
mod waiting;

use crate::{BlockLayer, Effect, Input, Offer};
use flashweir_core::{Done, Instant};

/// Gives an input to a layer whose device takes everything; returns the commands it took and the other effects.
fn give(layer: &mut BlockLayer, now: Instant, input: Input) -> (Vec<Offer>, Vec<Effect>) {
    let (mut effects, mut offers, mut others) = (Vec::new(), Vec::new(), Vec::new());
    layer.handle(now, input, &mut effects);
    while !effects.is_empty() {
        for effect in std::mem::take(&mut effects) {
            match effect {
                Effect::Offer(offer) => {
                    offers.push(offer);
                    layer.handle(now, Input::Accepted, &mut effects);
                }
                other => others.push(other),
            }
        }
    }
    (offers, others)
}

/// Makes the device's answer to a command.
fn done(offer: &Offer) -> Input {
    Input::Completed { id: offer.command.id, result: Ok(Done::Ok) }
}
