//! Commands of one stream between their arrival and the queue of acceptance.
//!
//! Place in the data flow: `front` notes a command here when it arrives, and reports when it can be accepted, which may be later (a
//! partial write reads first); commands that pass go to the queue of acceptance.
//!
//! There are two kinds of streams. Without epoch numbers, commands pass in the order of their arrival. With epoch numbers
//! ([`EpochStamp`]), which a host gives that sends the commands of a stream through several queues, they may arrive in any order:
//! the commands of one epoch pass in the order of their arrival, except that the barrier is the last one, and an epoch begins when
//! the one before it is complete (barriers §4.3, commands §3.6).
//!
//! Invariant: commands that wait here hold no room in the buffer, so a member of the oldest epoch can always be taken.

use flashweir_core::DeviceError;
use flashweir_core::command::EpochStamp;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
struct Arrival {
    /// `None` is a command that was refused and counts as a member all the same.
    command: Option<u32>,
    is_ready: bool,
    epoch: Option<EpochStamp>,
}

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A command.
    Command(u32),
    /// The end of an epoch whose barrier was refused.
    End,
}

/// The commands of one stream that wait; see the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    /// Waiting commands in the order of their arrival.
    waiting: VecDeque<Arrival>,
    /// Whether commands carry epoch numbers; the first command decides.
    are_numbered: Option<bool>,
    /// Number of the epoch whose commands pass now; the next field counts those that have passed.
    epoch: u32,
    passed: u32,
}

impl Arrivals {
    /// Whether a command with this stamp can belong to the stream.
    pub(crate) fn check(&self, epoch: Option<EpochStamp>) -> Result<(), DeviceError> {
        if self.are_numbered.is_some_and(|are_numbered| are_numbered != epoch.is_some()) {
            return Err(DeviceError::InvalidField("one stream with and without numbers of epochs"));
        }
        // Numbers wrap: a number less than half of the range behind is one of an epoch that has ended.
        let behind = epoch.map_or(0, |epoch| self.epoch.wrapping_sub(epoch.number));
        if behind != 0 && behind < 1 << 31 {
            return Err(DeviceError::InvalidField("a member of an epoch that is over"));
        }
        Ok(())
    }

    /// Notes that a command that passed its check has arrived; `None` is one that was refused for another reason and is a member
    /// all the same. Without a number such a command is noted only if it ends its epoch.
    pub(crate) fn note(&mut self, command: Option<u32>, epoch: Option<EpochStamp>) {
        self.are_numbered = Some(epoch.is_some());
        self.waiting.push_back(Arrival { command, is_ready: command.is_none(), epoch });
    }

    /// Describes what `command` waits for here, if it does.
    pub(crate) fn waits_for(&self, command: u32) -> Option<String> {
        let at = self.waiting.iter().position(|arrival| arrival.command == Some(command))?;
        let Some(epoch) = self.waiting[at].epoch else {
            return (at > 0).then(|| format!("{at} commands that arrived in its stream before"));
        };
        let (open, passed) = (self.epoch, self.passed);
        Some(match (epoch.number == open, epoch.members) {
            (false, _) => format!("epoch {open} of its stream, of which {passed} members have come"),
            (true, Some(all)) => {
                format!("the other members of its epoch {open}: {passed} of {all} have come")
            }
            (true, None) => return None,
        })
    }

    /// Notes that a command can be accepted.
    pub(crate) fn ready(&mut self, command: u32) {
        if let Some(arrival) = self.waiting.iter_mut().find(|arrival| arrival.command == Some(command)) {
            arrival.is_ready = true;
        }
    }

    /// Takes the next command that may pass.
    pub(crate) fn pass(&mut self) -> Option<Passed> {
        loop {
            let (current, passed) = (self.epoch, self.passed);
            let may_pass = |arrival: &Arrival| match arrival.epoch {
                None => true,
                Some(EpochStamp { number, members }) => {
                    number == current && members.is_none_or(|members| passed + 1 >= members)
                }
            };
            let at = self.waiting.iter().position(may_pass)?;
            if !self.waiting[at].is_ready {
                return None;
            }
            let arrival = self.waiting.remove(at).expect("it is there");
            match arrival.epoch {
                None => {}
                Some(EpochStamp { members: None, .. }) => self.passed += 1,
                Some(_) => (self.epoch, self.passed) = (current.wrapping_add(1), 0),
            }
            let is_last = arrival.epoch.is_none_or(|epoch| epoch.members.is_some());
            match arrival.command {
                Some(command) => return Some(Passed::Command(command)),
                None if is_last => return Some(Passed::End),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(number: u32) -> Option<EpochStamp> {
        Some(EpochStamp { number, members: None })
    }

    fn barrier(number: u32, members: u32) -> Option<EpochStamp> {
        Some(EpochStamp { number, members: Some(members) })
    }

    /// Commands that pass, in order, if these arrive and are all ready at once.
    fn passed(arrivals: &mut Arrivals, stamps: &[(u32, Option<EpochStamp>)]) -> Vec<u32> {
        let mut out = Vec::new();
        for &(command, stamp) in stamps {
            arrivals.check(stamp).unwrap();
            arrivals.note(Some(command), stamp);
            arrivals.ready(command);
            out.extend(std::iter::from_fn(|| arrivals.pass()).map(|passed| match passed {
                Passed::Command(command) => command,
                Passed::End => 0,
            }));
        }
        out
    }

    #[test]
    fn epochs_pass_one_after_the_other_and_barriers_last() {
        let mut arrivals = Arrivals::default();
        let stamps = [
            (1, within(1)),
            (2, barrier(0, 3)),
            (3, barrier(1, 2)),
            (4, within(0)),
            (5, within(2)),
            (6, within(0)),
            (7, within(2)),
        ];
        assert_eq!(passed(&mut arrivals, &stamps), [4, 6, 2, 1, 3, 5, 7]);
        assert!(arrivals.check(within(1)).is_err(), "it is over");
        assert!(arrivals.check(None).is_err(), "the stream has numbers");
        arrivals.check(within(2)).unwrap();
    }

    #[test]
    fn without_numbers_commands_pass_as_they_arrive() {
        let mut arrivals = Arrivals::default();
        arrivals.note(Some(1), None);
        arrivals.note(Some(2), None);
        arrivals.ready(2);
        assert_eq!(arrivals.pass(), None);
        arrivals.ready(1);
        let command = |number| Some(Passed::Command(number));
        assert_eq!([arrivals.pass(), arrivals.pass(), arrivals.pass()], [command(1), command(2), None]);
        assert!(arrivals.check(within(0)).is_err());
    }

    #[test]
    fn what_was_refused_is_a_member() {
        let mut arrivals = Arrivals::default();
        arrivals.note(None, within(0));
        assert_eq!(passed(&mut arrivals, &[(1, within(1)), (2, barrier(0, 2))]), [2, 1]);
        // The barrier of an epoch ends it, too.
        arrivals.note(None, barrier(1, 3));
        assert_eq!(passed(&mut arrivals, &[(3, within(2)), (4, within(1))]), [4, 0, 3]);
    }

    #[test]
    fn numbers_wrap() {
        let mut arrivals = Arrivals { epoch: u32::MAX, ..Arrivals::default() };
        let stamps = [(1, within(0)), (2, barrier(u32::MAX, 1))];
        assert_eq!(passed(&mut arrivals, &stamps), [2, 1]);
        assert!(arrivals.check(within(u32::MAX)).is_err());
    }
}
