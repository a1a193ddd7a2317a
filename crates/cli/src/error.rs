//! How a command fails: one line for people, one exit code for scripts.
//!
//! Invariant: every failure reaches the user as a single line on stderr that begins with `weir: `.

use std::fmt;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or a file that it names is wrong; exit code 2.
    Usage(String),
    /// A run or a write failed; exit code 1.
    Run(String),
    /// The user stopped it; exit code 130, as shells have it.
    Interrupted,
    /// The reader of our output has gone; the program ends without a message.
    BrokenPipe,
}

/// Result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The command line or a file that it names is wrong.
    pub(crate) fn usage(error: impl fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// A run or a write failed.
    pub(crate) fn run(error: impl fmt::Display) -> Self {
        Self::Run(error.to_string())
    }

    /// The error, in a line.
    pub(crate) fn line(self) -> String {
        match self {
            Self::Usage(line) | Self::Run(line) => line,
            Self::Interrupted => "stopped".into(),
            Self::BrokenPipe => "the output is closed".into(),
        }
    }

    /// Says it on stderr and gives the exit code.
    pub(crate) fn report(&self) -> u8 {
        match self {
            Self::Usage(line) => {
                say(line);
                2
            }
            Self::Run(line) => {
                say(line);
                1
            }
            Self::Interrupted => {
                say("stopped before the end");
                130
            }
            Self::BrokenPipe => 0,
        }
    }
}

/// Failures of several steps that are all executed, even if others fail.
#[derive(Debug, Default)]
pub(crate) struct Failures(Option<Failure>);

impl Failures {
    /// Notes how one of them ended; of several failures the last is left for the caller to say.
    pub(crate) fn note(&mut self, outcome: Outcome) {
        let Err(failure) = outcome else { return };
        match self.0.replace(failure) {
            None => {}
            // A reader that has gone is no failure beside another.
            Some(Failure::BrokenPipe) => {}
            Some(earlier) if matches!(self.0, Some(Failure::BrokenPipe)) => self.0 = Some(earlier),
            Some(earlier) => {
                earlier.report();
            }
        }
    }

    /// The failure that was not reported yet.
    pub(crate) fn outcome(self) -> Outcome {
        self.0.map_or(Ok(()), Err)
    }
}

/// Prints a line on stderr. An error of that is ignored: it could not be reported anywhere.
pub(crate) fn say(line: impl fmt::Display) {
    use std::io::Write as _;
    let line = line.to_string().replace('\n', ", ");
    let _ = writeln!(std::io::stderr(), "weir: {line}");
}

/// A file that cannot be read.
pub(crate) fn unreadable(path: &str, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("{path}: cannot be read: {error}"))
}
