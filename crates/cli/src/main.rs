//! `weir`: the simulator on the command line.
//!
//! Place in the data flow: arguments become scenarios, experiments and imports of the laboratory; results become
//! text and files. It reads a clock for progress and real time only; nothing of that reaches a result.
//!
//! Invariants: an error is one line on stderr and an exit code; files appear whole or not at all; a reader that
//! goes away ends the program quietly; no panic reaches a user as one.
#![deny(unsafe_code)]

mod args;
mod check;
mod crash;
mod crash_files;
mod crash_sqlite;
mod devices;
mod error;
mod explain;
mod files;
mod filesystem;
mod images;
mod import;
mod json;
mod kernel;
mod listen;
mod made_by;
mod manual;
mod memory;
mod mount;
mod options;
mod output;
mod perfetto;
mod pool;
mod progress;
mod report;
mod reproduce;
mod run;
mod serve;
mod sqlite;
mod threads;
mod top;
mod trace;
mod usage;
mod values;
mod volume;
mod waf;

use args::{Cli, Command};
use clap::CommandFactory as _;
use error::{Failure, Outcome, say};
use made_by::marked;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    install_panic_hook();
    let outcome = match Cli::read() {
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
        Command::Files(args) => files::command(args, cancel),
        Command::Sqlite(args) => sqlite::command(args, cancel),
        Command::Replay(args) => run::replay(args, cancel),
        Command::Trace(command) => trace::command(command),
        Command::Device(command) => devices::command(command),
        Command::Import(command) => import::command(command),
        Command::Explain(args) => explain::command(args, cancel),
        Command::Waf(args) => waf::command(args, cancel),
        Command::Reproduce(args) => reproduce::command(args, cancel),
        Command::Serve(args) => serve::serve(args, cancel),
        Command::Threads(args) => threads::command(args, cancel),
        Command::Volume(command) => volume::command(command, cancel),
        Command::Mkfs(command) => filesystem::mkfs(command),
        Command::Fsck(args) => filesystem::fsck(args),
        Command::Mount(args) => mount::command(args, cancel),
        Command::Check(args) => in_crash_laboratory(|| check::command(args, cancel)),
        Command::Cut(args) => serve::cut(args),
        Command::Save(args) => mount::save(args),
        Command::Top(args) => top::command(args, cancel),
        Command::Rerun(args) => serve::rerun(args),
        Command::Completions(args) => manual::completions(args, Cli::command()),
        Command::Man(args) => manual::man(args, Cli::command()),
        Command::Crash(args) => in_crash_laboratory(|| crash::command(args, cancel)),
    }
}

/// Set while a panic may be what the crash laboratory looks for: an assertion of a simulated device, which the
/// laboratory catches and reports as a violation.
static PANICS_ARE_CAUGHT: AtomicBool = AtomicBool::new(false);

/// Runs the crash laboratory, in which panics unwind quietly; an uncaught one is a bug of ours after all.
fn in_crash_laboratory(work: impl FnOnce() -> Outcome) -> Outcome {
    PANICS_ARE_CAUGHT.store(cfg!(panic = "unwind"), Ordering::Relaxed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    PANICS_ARE_CAUGHT.store(false, Ordering::Relaxed);
    outcome.unwrap_or_else(|payload| Err(Failure::Run(bug(payload.as_ref(), ""))))
}

/// The line about a bug of ours.
fn bug(payload: &(dyn std::any::Any + Send), place: &str) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let arguments: Vec<String> = output::arguments().collect();
    let case = flashweir_crash::current_case();
    let case = case.map_or(String::new(), |case| format!("; weir crash --replay '{}'", marked(&case)));
    let files = flashweir_crash::files::campaign::current_case();
    let case = files.map_or(case, |case| format!("; weir crash files --replay '{}'", marked(&case)));
    format!(
        "this is a bug of the simulator, please report this line: version {}{place}: {message}: weir {}{case}",
        args::VERSION,
        arguments.join(" ")
    )
}

/// A panic is a bug of ours. The user gets a line to report, and the exit code of a failed run.
fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        if PANICS_ARE_CAUGHT.load(Ordering::Relaxed) {
            return;
        }
        let place = info.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
        say(bug(info.payload(), &place));
        std::process::exit(1);
    }));
}

/// Ctrl-C asks the work to stop; a second one does not wait for it. Wrappers such as `timeout` send the same signal
/// twice at once, which counts as one.
fn install_cancel() -> Outcome<Arc<AtomicBool>> {
    const SAME_PRESS: Duration = Duration::from_millis(300);
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let mut first: Option<Instant> = None;
    ctrlc::set_handler(move || {
        flag.store(true, Ordering::Relaxed);
        if first.get_or_insert_with(Instant::now).elapsed() > SAME_PRESS {
            std::process::exit(i32::from(Failure::Interrupted.report()));
        }
    })
    .map_err(|error| Failure::Run(format!("Ctrl-C cannot be handled: {error}")))?;
    Ok(cancel)
}
