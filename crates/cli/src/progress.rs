//! Progress on a terminal, the wall clock and the processor's clock.
//!
//! Invariant: nothing here reaches a result; without a terminal, or under two seconds, nothing is drawn.

use flashweir_lab::experiment::{Experiment, Report, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs that end sooner than this show nothing.
const SILENCE: Duration = Duration::from_secs(2);
/// Positions of a bar; a bar is drawn with fewer characters than this.
const STEPS: u64 = 10_000;

/// Characters of the message beside a bar.
const MESSAGE_CHARS_MAX: usize = 34;

/// One bar that appears when it has waited long enough.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Whether the user is to see anything at all.
    wanted: bool,
    shown: bool,
    /// Whether it has left its beginning.
    moves: bool,
    begun: Instant,
}

fn style(has_rest: bool) -> ProgressStyle {
    let template = match has_rest {
        true => "{bar:16} {percent:>3} %  {elapsed}, {eta} left  {msg}",
        false => "{bar:16} {percent:>3} %  {elapsed}  {msg}",
    };
    ProgressStyle::with_template(template).expect("the templates are fixed").progress_chars("█▌░")
}

impl Bar {
    /// A bar that has not appeared.
    pub(crate) fn new(quiet: bool) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::hidden()).with_style(style(false));
        Self {
            bar,
            wanted: !quiet && std::io::stderr().is_terminal(),
            shown: false,
            moves: false,
            begun: Instant::now(),
        }
    }

    /// Moves the bar; `message` is called only if the bar is visible.
    pub(crate) fn set(&mut self, fraction: f64, message: impl FnOnce() -> String) {
        if !self.wanted || self.begun.elapsed() < SILENCE {
            return;
        }
        if !self.shown {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        // A line as wide as the terminal would wrap when Ctrl-C is echoed behind it, and could not be taken away.
        let message = message();
        let short: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
        self.bar.set_message(if short.len() < message.len() { format!("{short}…") } else { short });
        let position = (fraction.clamp(0.0, 1.0) * STEPS as f64) as u64;
        // As long as no cell is done, the remaining time is unknown.
        if position > 0 && !std::mem::replace(&mut self.moves, true) {
            self.bar.set_style(style(true));
        }
        self.bar.set_position(position);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// State of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    fraction: f64,
    preparing: bool,
    running: bool,
    /// The worker's processor time when the stage began.
    since: Duration,
}

#[derive(Debug)]
struct State {
    bar: Bar,
    cells: Vec<Cell>,
    done: usize,
    preparing_cpu: Duration,
    running_cpu: Duration,
}

/// Watches an experiment.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    experiment: &'a Experiment,
    begun: Instant,
    state: Mutex<State>,
}

/// Cost of an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    /// Processor time of bringing devices into their state, and of running worlds.
    pub(crate) preparing: Duration,
    pub(crate) running: Duration,
}

/// Processor time of this thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl<'a> Watch<'a> {
    /// Begins to watch.
    pub(crate) fn new(experiment: &'a Experiment, quiet: bool) -> Self {
        let cells = vec![Cell::default(); experiment.cells().len()];
        let state = State {
            bar: Bar::new(quiet),
            cells,
            done: 0,
            preparing_cpu: Duration::ZERO,
            running_cpu: Duration::ZERO,
        };
        Self { experiment, begun: Instant::now(), state: Mutex::new(state) }
    }

    /// Takes a report of a worker, on its thread.
    pub(crate) fn report(&self, report: Report) {
        let Ok(mut state) = self.state.lock() else { return };
        let now = thread_cpu();
        let State { bar, cells, done, preparing_cpu, running_cpu } = &mut *state;
        let cell = &mut cells[report.cell];
        let spent = now.saturating_sub(cell.since);
        match report.stage {
            Stage::Preparing if !cell.preparing => {
                (cell.preparing, cell.since) = (true, now);
            }
            Stage::Preparing => {
                *preparing_cpu += spent;
                cell.since = now;
            }
            Stage::Running if !cell.running => {
                (cell.preparing, cell.running, cell.since) = (false, true, now);
            }
            Stage::Running | Stage::Done => {
                *running_cpu += spent;
                cell.since = now;
            }
        }
        cell.fraction = match report.stage {
            Stage::Preparing => 0.0,
            Stage::Running => report.fraction.unwrap_or(0.0),
            Stage::Done => 1.0,
        };
        if report.stage == Stage::Done {
            cell.running = false;
            *done += 1;
        }
        let fraction = cells.iter().map(|cell| cell.fraction).sum::<f64>() / cells.len() as f64;
        bar.set(fraction, || {
            let name = self.experiment.cell_name(report.cell);
            let what = if report.stage == Stage::Preparing { "preparing " } else { "" };
            match (cells.len(), report.fraction) {
                (1, None) => format!("{what}{name}, no end known"),
                (1, _) => format!("{what}{name}"),
                (all, _) => format!("{done} of {all} done: {what}{name}"),
            }
        });
    }

    /// Ends the watch.
    pub(crate) fn finish(self) -> Cost {
        let wall = self.begun.elapsed();
        let state = self.state.into_inner().expect("a worker that panics ends the program");
        state.bar.clear();
        Cost { wall, preparing: state.preparing_cpu, running: state.running_cpu }
    }
}
