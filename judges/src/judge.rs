//! Outside judges: programs and kernels that know nothing of this project, as steps of CI or one by one.
//!
//! Invariant: a judge is never skipped; if something that it needs is missing, it fails and names it.

use crate::builds::{BUILD, weir_builds};
use crate::host::seed;
use crate::packages;
use crate::place::Place;
use crate::steps::{Steps, Verdict, show};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Finding of a judge: a line of counts, or a fault.
pub type Finding = Result<String, String>;

/// A judge: its name, what it shows, and its function.
pub(crate) type Judge = (&'static str, &'static str, fn(&Place) -> Finding);

/// Judges of one subject.
#[derive(Clone, Copy, Debug)]
pub struct Judges {
    /// Name of the subject, with which their steps begin.
    pub(crate) subject: &'static str,
    /// All of them, in the order of CI.
    pub(crate) all: &'static [Judge],
}

impl Judges {
    /// Runs all as steps of CI, after everything is built.
    pub fn steps(&self, steps: &mut Steps, seed: u64) {
        self.call_all(steps, seed, &[]);
    }

    /// Runs all judges of some subjects as steps of CI, two at once: each of them keeps one CPU busy.
    pub fn steps_of(subjects: &[Self], steps: &mut Steps, seed: u64) {
        let all =
            subjects.iter().flat_map(|subject| subject.all.iter().map(|judge| (subject.subject, judge)));
        let (left, steps) = (Mutex::new(all), Mutex::new(steps));
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let some = || {
            while let Some((subject, (name, what, judge))) = next() {
                let start = Instant::now();
                let verdict = verdict(subject, name, seed, *judge);
                let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
                steps.ended_beside(&format!("{subject}, {name}: {what}"), verdict, start.elapsed());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(some);
            some();
        });
    }

    /// Builds the programs and runs the named judges, or all.
    pub fn run(&self, names: &[&str]) -> Result<bool, String> {
        for name in names {
            if !self.all.iter().any(|judge| judge.0 == *name) {
                let known: Vec<String> =
                    self.all.iter().map(|(name, what, _)| format!("  {name:<14} {what}")).collect();
                return Err(format!("no judge {name:?}; there are\n{}", known.join("\n")));
            }
        }
        let seed = seed()?;
        println!("seed {seed}");
        let mut all = Steps::default();
        all.step("Debian packages", || match packages::install_missing() {
            Ok(note) => Verdict::Passed(note),
            Err(why) => Verdict::Failed(why),
        });
        if all.step(BUILD, || show(&mut weir_builds(seed))) {
            self.call_all(&mut all, seed, names);
        }
        Ok(all.summary())
    }

    fn call_all(&self, steps: &mut Steps, seed: u64, names: &[&str]) {
        let chosen = self.all.iter().filter(|judge| names.is_empty() || names.contains(&judge.0));
        for (name, what, judge) in chosen {
            let subject = self.subject;
            steps.step(&format!("{subject}, {name}: {what}"), || verdict(subject, name, seed, *judge));
        }
    }
}

fn verdict(subject: &str, name: &str, seed: u64, judge: fn(&Place) -> Finding) -> Verdict {
    match call(subject, name, seed, judge) {
        Ok(counts) => Verdict::Passed(counts),
        Err(why) => Verdict::Failed(why),
    }
}

/// Runs one judge in a directory of its own, which is removed afterwards.
fn call(subject: &str, name: &str, seed: u64, judge: fn(&Place) -> Finding) -> Finding {
    let place = Place::new(&format!("{subject}-{name}"), seed)?;
    let finding = judge(&place);
    if finding.is_err() {
        place.show_log();
    }
    match (finding, place.leftovers()) {
        (Ok(_), Some(left)) => Err(format!("it left behind: {left}")),
        (finding, _) => finding,
    }
}
