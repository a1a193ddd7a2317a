//! The interface of a layer of the host: its inputs and its effects.
//!
//! Place in the data flow: requests come in as submissions, leave as offers to the layer or device below, and come back
//! from there. The block layer is one layer; a host FTL is another. A [`Chain`](crate::Chain) stacks them.
//!
//! Invariants: an offer is answered by the next input of the layer that made it; each submission is answered exactly
//! once.
//!
//! Deliberately absent: what a layer does with its requests.

use crate::task::TaskAttribute;
use flashweir_core::{Command, CommandId, DeviceError, Done, Instant};
use std::any::Any;
use std::fmt::Debug;

/// An input of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A request; its id is the caller's token. It stays until the queue is unplugged, so that requests of one instant
    /// can be merged.
    Submit {
        /// The command. A stream counts only together with an order; the layer chooses the queue.
        command: Command,
        /// Submitter: a process or thread.
        submitter: u16,
    },
    /// The submitters of this instant are done: requests may leave.
    Unplug,
    /// The layer or device below has taken the offered command.
    Accepted,
    /// The layer or device below has no room for the offered command.
    Busy,
    /// The device has transferred the data of a command.
    Transferred(CommandId),
    /// A command was answered from below.
    Completed {
        /// Id of the command.
        id: CommandId,
        /// Outcome of the command.
        result: Result<Done, DeviceError>,
    },
    /// The time of an [`Effect::At`] has come.
    Wake,
}

/// An action that a layer requests, or an event that it reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Offer a command to the layer or device below; the next input is its answer.
    Offer(Offer),
    /// The device has taken the request with this token.
    Dispatched(u64),
    /// The device has transferred the data of the request with this token.
    Transferred(u64),
    /// A request is completed.
    Completed {
        /// Token of the request.
        token: u64,
        /// Outcome of the request.
        result: Result<Done, DeviceError>,
    },
    /// Give [`Input::Wake`] at this time.
    At(Instant),
}

/// A command for the layer or device below.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The command, with an id chosen by this layer.
    pub command: Command,
    /// Its ordering among the commands that the device holds.
    pub attribute: TaskAttribute,
    /// Submitter of the command, or of its first part.
    pub submitter: u16,
}

/// A part of the host between a port and a device: a state machine without a clock or threads.
pub trait Layer: Any + Debug + Send {
    /// Handles an input. Requests that it reports as dispatched while it handles [`Input::Accepted`] went with the
    /// accepted offer.
    fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>);

    /// Whether it takes this command of the layer above now. A refused layer offers the command again, after a
    /// completion or after a delay of its own.
    fn has_room(&self, command: &Command) -> bool {
        let _ = command;
        true
    }

    /// Says for whom it waits, for messages about requests that never end.
    fn describe(&self) -> String {
        String::new()
    }

    /// Returns a boxed clone of the layer.
    fn boxed(&self) -> Box<dyn Layer>;
}
