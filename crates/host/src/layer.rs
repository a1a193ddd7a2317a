//! What a layer of the host is: what can happen to it, and what it wants done.
//!
//! Place in the data flow: requests come in as submissions, leave as offers to what is below, and come back from there. The
//! block layer is one; a translation layer on the host is another. A [`Chain`](crate::Chain) puts them on top of each other.
//!
//! Invariants: an offer is answered by the next input of the layer that made it; each submission is answered exactly once.
//!
//! Deliberately absent: what a layer does with requests.

use crate::task::TaskAttribute;
use flashweir_core::{Command, CommandId, DeviceError, Done, Instant};
use std::any::Any;
use std::fmt::Debug;

/// What happens to a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A request; its id is the caller's token. It stays until the queue is unplugged, so that requests of one instant
    /// can be merged.
    Submit {
        /// What to do. A stream counts only together with an order, and the queue is chosen here.
        command: Command,
        /// Who asks: a process, a thread.
        submitter: u16,
    },
    /// The submitters of this instant are done: requests may leave.
    Unplug,
    /// What is below has taken the offered command.
    Accepted,
    /// What is below has no room for the offered command.
    Busy,
    /// The device has taken the data of a command.
    Transferred(CommandId),
    /// A command was answered from below.
    Completed {
        /// Which one.
        id: CommandId,
        /// What became of it.
        result: Result<Done, DeviceError>,
    },
    /// An instant of [`Effect::At`] has come.
    Wake,
}

/// What a layer wants done, or tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Offer a command to what is below; the next input is its answer.
    Offer(Offer),
    /// The request with this token has left: the device has it.
    Dispatched(u64),
    /// Its data have been taken.
    Transferred(u64),
    /// It is done.
    Completed {
        /// Which one.
        token: u64,
        /// What became of it.
        result: Result<Done, DeviceError>,
    },
    /// Say [`Input::Wake`] at this instant.
    At(Instant),
}

/// A command for what is below.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The command; its id is this layer's.
    pub command: Command,
    /// Its place among what the device holds.
    pub attribute: TaskAttribute,
    /// Who asked for it, or for the first part of it.
    pub submitter: u16,
}

/// A part of the host between a port and a device: a state machine without clock and threads.
pub trait Layer: Any + Debug + Send {
    /// Does what an input asks for. What it says is dispatched while it learns that an offer was accepted went with that offer.
    fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>);

    /// Whether it takes this command of a layer above it now. Who was refused offers it again, after a completion or a time of
    /// its own.
    fn has_room(&self, command: &Command) -> bool {
        let _ = command;
        true
    }

    /// Another one in the same state.
    fn boxed(&self) -> Box<dyn Layer>;
}
