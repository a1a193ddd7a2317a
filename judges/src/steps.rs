//! Steps with names, times and a summary.

use std::process::Command;
use std::time::{Duration, Instant};

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed, with a note.
    Passed(String),
    Failed(String),
    /// It was not run, for this reason, and counts as neither passed nor failed.
    Skipped(String),
}

/// Steps so far.
#[derive(Debug)]
pub struct Steps {
    begun: Instant,
    done: Vec<(String, Verdict, Duration)>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { begun: Instant::now(), done: Vec::new() }
    }
}

impl Steps {
    /// Runs a step; returns false if it failed. A failure does not stop the steps that follow.
    pub fn step(&mut self, name: &str, run: impl FnOnce() -> Verdict) -> bool {
        println!("── {name}");
        let start = Instant::now();
        let verdict = run();
        self.ended(name, verdict, start.elapsed())
    }

    /// A step that ran beside others has ended; its name is printed only now.
    pub(crate) fn ended_beside(&mut self, name: &str, verdict: Verdict, time: Duration) {
        println!("── {name}");
        self.ended(name, verdict, time);
    }

    fn ended(&mut self, name: &str, verdict: Verdict, time: Duration) -> bool {
        match &verdict {
            Verdict::Passed(note) => println!("   passed in {:.1} s{}", time.as_secs_f64(), dashed(note)),
            Verdict::Failed(why) => println!("   FAILED in {:.1} s{}", time.as_secs_f64(), dashed(why)),
            Verdict::Skipped(why) => println!("   not run: {why}"),
        }
        let passed = !matches!(verdict, Verdict::Failed(_));
        self.done.push((name.into(), verdict, time));
        passed
    }

    /// Prints the summary; returns whether no step failed.
    pub fn summary(&self) -> bool {
        println!("\n── summary");
        for (name, verdict, time) in &self.done {
            let (word, note) = match verdict {
                Verdict::Passed(note) => ("passed", note),
                Verdict::Failed(why) => ("FAILED", why),
                Verdict::Skipped(why) => ("not run", why),
            };
            let note = note.lines().next().unwrap_or_default();
            println!("{word:>8} {:>7.1} s  {name}{}", time.as_secs_f64(), dashed(note));
        }
        let count = |wanted: fn(&Verdict) -> bool| self.done.iter().filter(|(_, v, _)| wanted(v)).count();
        let passed = count(|v| matches!(v, Verdict::Passed(_)));
        let failed = count(|v| matches!(v, Verdict::Failed(_)));
        println!("{:>8} {:>7.1} s  in all", "", self.begun.elapsed().as_secs_f64());
        println!("{passed} passed, {failed} failed");
        // Again at the very end: what shortens a long log keeps its last lines.
        for (name, verdict, _) in &self.done {
            if let Verdict::Failed(why) = verdict {
                println!("{:>8} {name}{}", "FAILED", dashed(why));
            }
        }
        failed == 0
    }
}

fn dashed(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(": {note}") }
}

/// Runs a program with its output shown.
pub fn show(command: &mut Command) -> Verdict {
    match command.status() {
        Ok(status) if status.success() => Verdict::Passed(String::new()),
        Ok(status) => Verdict::Failed(format!("{} ended with {status}", line(command))),
        Err(error) => Verdict::Failed(format!("{}: {error}", line(command))),
    }
}

/// Runs a program and returns its standard output; prints all output if it fails.
pub fn take(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", line(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    print!("{text}");
    print!("{}", String::from_utf8_lossy(&output.stderr));
    Err(format!("{} ended with {}", line(command), output.status))
}

/// The command as typed.
pub fn line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_string();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}
