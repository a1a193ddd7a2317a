//! `weir`: the simulator on the command line.
//!
//! Place in the data flow: arguments become scenarios, experiments and imports of the laboratory; results become
//! text and files. This is the only crate that reads a clock, and nothing that it reads reaches a result.
//!
//! Invariants: an error is one line on stderr and an exit code; files appear whole or not at all; a reader that
//! goes away ends the program quietly; no panic reaches a user as one.
#![forbid(unsafe_code)]

mod args;
mod devices;
mod error;
mod import;
mod output;
mod progress;
mod run;
mod trace;
mod usage;
mod waf;

use args::{Cli, Command};
use clap::Parser as _;
use error::{Failure, Outcome, say};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn main() -> ExitCode {
    install_panic_hook();
    let outcome = match Cli::try_parse() {
        Ok(cli) => install_cancel().and_then(|cancel| dispatch(&cli.command, &cancel)),
        Err(error) => usage::explain(&error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report()),
    }
}

fn dispatch(command: &Command, cancel: &AtomicBool) -> Outcome {
    match command {
        Command::Run(args) => run::run(args, cancel),
        Command::Fio(args) => run::fio(args, cancel),
        Command::Replay(args) => run::replay(args, cancel),
        Command::Trace(command) => trace::command(command),
        Command::Device(command) => devices::command(command),
        Command::Import(command) => import::command(command),
        Command::Waf(args) => waf::command(args, cancel),
    }
}

/// A panic is a bug of ours. The user gets a line to report, and the exit code of a failed run.
fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let place = info.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        say(format!(
            "this is a bug of the simulator, please report this line: version {}{place}: {message}: weir {}",
            env!("CARGO_PKG_VERSION"),
            arguments.join(" ")
        ));
        std::process::exit(1);
    }));
}

/// Ctrl-C asks the work to stop; a second one does not wait for it.
fn install_cancel() -> Outcome<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|error| Failure::Run(format!("Ctrl-C cannot be handled: {error}")))?;
    Ok(cancel)
}
