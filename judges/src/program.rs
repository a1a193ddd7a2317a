//! Programs that judges start, each with a time limit and its output in a file.
//!
//! Invariant: a started program is killed when its guard is dropped.

use crate::host::ADMIN_PATH;
use crate::place::Place;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time for a tool; on a busy machine each takes a few seconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Interval at which a program is polled.
const LOOK: Duration = Duration::from_millis(5);

/// A running program.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    line: String,
    output: PathBuf,
}

impl Program {
    /// Starts a program; all of its output goes into a file of the place.
    pub(crate) fn start(place: &Place, args: &[&str]) -> Result<Self, String> {
        let (program, rest) = args.split_first().expect("a program has a name");
        let line = args.join(" ");
        let output = place.new_output(program, &line)?;
        let file = File::options().append(true).open(&output);
        let file = file.and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = file.map_err(|error| format!("{}: {error}", output.display()))?;
        let mut command = Command::new(program);
        command.args(rest).stdin(Stdio::null()).stdout(out).stderr(err);
        // fio leaves files in its working directory.
        command.current_dir(place.dir());
        let path = std::env::var("PATH").unwrap_or_default();
        // The output of tools is compared in English.
        command.env("PATH", format!("{path}:{ADMIN_PATH}")).env("LC_ALL", "C");
        // User-Mode Linux keeps its memory in a file there, which must be on an in-memory file system.
        command.env("TMPDIR", "/dev/shm");
        let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        Ok(Self { child, line, output })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if start.elapsed() < limit => sleep(LOOK),
                Ok(None) => return Err(format!("{}: no end after {} s", self.short_line(), limit.as_secs())),
                Err(error) => return Err(format!("{}: {error}", self.short_line())),
            }
        }
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        // A process that waits for a disk that is gone may not end, so the wait is short.
        let _ = self.wait(Duration::from_secs(5));
    }

    /// An error of this program, with its error message or its last line.
    fn error(&self, what: &str) -> String {
        let output = self.output();
        let complains = |line: &&str| {
            let line = line.to_lowercase();
            ["error", "fail", "invalid", "wrong"].iter().any(|word| line.contains(word))
        };
        let said = output.lines().find(complains).or(output.lines().last()).unwrap_or("it said nothing");
        format!("{} {what}: {}", self.short_line(), said.trim())
    }

    /// The command, shortened for people.
    fn short_line(&self) -> String {
        const LENGTH: usize = 100;
        match self.line.char_indices().nth(LENGTH) {
            Some((end, _)) => format!("{}…", &self.line[..end]),
            None => self.line.clone(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

/// Runs a program that has to succeed; returns its output.
pub(crate) fn run(place: &Place, args: &[&str]) -> Result<String, String> {
    let mut program = Program::start(place, args)?;
    let status = program.wait(LIMIT)?;
    if status.success() { Ok(program.output()) } else { Err(program.error(&format!("ended with {status}"))) }
}

/// Runs a program that has to fail by itself; returns its output.
pub(crate) fn run_failing(place: &Place, args: &[&str]) -> Result<String, String> {
    let mut program = Program::start(place, args)?;
    let status = program.wait(LIMIT)?;
    match status.code() {
        Some(0) => Err(program.error("succeeded but was to fail")),
        Some(_) => Ok(program.output()),
        None => Err(program.error(&format!("ended with {status}"))),
    }
}

/// Waits until something is true, for up to 20 seconds.
pub(crate) fn wait_until(
    what: &str,
    mut is_true: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let start = Instant::now();
    while !is_true()? {
        if start.elapsed() > Duration::from_secs(20) {
            return Err(format!("{what} did not come about within 20 s"));
        }
        sleep(LOOK);
    }
    Ok(())
}
