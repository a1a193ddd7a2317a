//! Minimises a violation, makes it readable, and replays it from its token.
//!
//! Invariant: a replay does everything that the exploration did to this one medium, including all checks.

use super::devices::{host_ftl, tiny};
use super::explorer::{
    Effort, Fault, Found, WorldSpec, boot_device, boot_history, caught, contents, cut, exercise_device,
    explore_boot, observed,
};
use super::open;
use super::ruled;
use super::sim::{Misbehaviour, Sim};
use super::token::{Chosen, Token};
use super::workload::History;
use super::{append, both};
use flashweir_contract::{Content, Oracle, Verdict, Violation, draw, minimise};
use flashweir_core::Lpn;
use flashweir_device::config::FirmwareKind;
use flashweir_device::flash::{Interrupted, OpKind};
use flashweir_device::{Device, Media, Recovery, Torn};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Maximum number of explorations of one boot that the minimiser may spend.
const MINIMISE_RUNS_MAX: u32 = 300;

/// A readable violation: the fault, the way to reproduce it, and its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationReport {
    /// The fault in one line.
    pub what: String,
    /// The shortest history that was found, in the form that `weir crash --replay` takes.
    pub token: String,
    /// The history in which it was found.
    pub found_as: String,
    /// Number of operations in the shortest history.
    pub ops: u32,
    /// Drawing of the history, the cut, and the units that persisted or were lost.
    pub drawing: String,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The fault; `None` if there is none.
    pub fault: Option<Fault>,
    /// Drawing of the history, the cut, and the units that persisted or were lost.
    pub drawing: String,
}

/// Returns the world that a token names.
pub fn world_of(token: &Token) -> Result<WorldSpec, String> {
    let config = tiny(&token.device).ok_or_else(|| {
        let known: Vec<&str> = super::devices::all_names().collect();
        format!("`{}` is no tiny device: expected one of {}", token.device, known.join(", "))
    })?;
    Ok(WorldSpec { config, seed: token.seed, planted: token.planted, effort: Effort::EVERYTHING })
}

/// Replays a token exactly.
pub fn replay(token: &Token) -> Result<Replayed, String> {
    let spec = world_of(token)?;
    let ruled = match spec.config.firmware {
        _ if host_ftl(&token.device).is_some() => Some(super::host_ftl::replay(&spec, token)?),
        FirmwareKind::Page => None,
        FirmwareKind::Append => Some(ruled::replay::<append::World>(&spec, token)?),
        FirmwareKind::PageAndAppend => Some(ruled::replay::<both::World>(&spec, token)?),
        FirmwareKind::OpenChannel => Some(ruled::replay::<open::World>(&spec, token)?),
    };
    if let Some((fault, drawing)) = ruled {
        return Ok(Replayed { fault, drawing });
    }
    let device = match boot_device(&spec, token.boot) {
        Ok(device) => device,
        Err(found) => {
            let drawing = format!("boot {} before it cannot be reached\n", found.boot);
            return Ok(Replayed { fault: Some(found.fault), drawing });
        }
    };
    let history = boot_history(&spec, token.boot);
    let history = History { ops: token.ops.of(&history.ops)?, ..history };
    Ok(replay_on(&spec, device, history, token))
}

fn replay_on(spec: &WorldSpec, device: Device, history: History, token: &Token) -> Replayed {
    let mut sim = Sim::new(device, history);
    let mut fault = None;
    while sim.events() < token.cut && fault.is_none() {
        match caught(|| sim.step()) {
            Ok(true) => {}
            Ok(false) => break,
            Err(panic) => fault = Some(panic),
        }
    }
    fault = fault.or_else(|| sim.misbehaviour().cloned().map(Fault::Runtime));
    let ended = sim.events();
    let media = cut(&sim, &token.torn);
    let (after, seen) = after_cut(spec, &sim, media, token);
    fault = fault.or(after);
    if fault.is_none() && sim.events() == token.cut && caught(|| sim.step()).is_ok() {
        fault = sim.misbehaviour().cloned().map(Fault::Runtime);
    }
    let drawing = drawing(spec, &sim, token, &seen, fault.as_ref());
    let drawing = match ended < token.cut && fault.is_none() {
        true => format!(
            "the power fails at the end: the run has {ended} events, the token says {}\n{drawing}",
            token.cut
        ),
        false => drawing,
    };
    Replayed { fault, drawing }
}

/// Returns the fault of the recovered device, if any, and what it reads as.
fn after_cut(spec: &WorldSpec, sim: &Sim, media: Media, token: &Token) -> (Option<Fault>, Vec<Content>) {
    let wake = |media: Media| caught(|| Recovery::begin(&spec.config, spec.options(), media).finish().0);
    let mut device = match wake(media.clone()) {
        Ok(device) => device,
        Err(fault) => return (Some(fault), Vec::new()),
    };
    let straight = contents(&device).to_vec();
    let mut oracle = Oracle::new(spec.policy());
    let position = sim.log().position();
    if let Verdict::Violation(violation) = oracle.check(sim.log(), position, |lpn| observed(&straight, lpn)) {
        return (Some(Fault::Contract(violation)), straight);
    }
    let mut media = media;
    for nested in &token.nested {
        let walk = caught(|| {
            let mut walk = Recovery::begin(&spec.config, spec.options(), media.clone());
            (0..nested.step).for_each(|_| {
                walk.advance();
            });
            walk.cut(nested.torn)
        });
        media = match walk {
            Ok(media) => media,
            Err(fault) => return (Some(fault), straight),
        };
        device = match wake(media.clone()) {
            Ok(device) => device,
            Err(fault) => return (Some(fault), straight),
        };
        let again = contents(&device).to_vec();
        if let Some(differs) = (0..again.len()).find(|&i| again[i] != straight[i]) {
            return (Some(Fault::NotIdempotent { lpn: Lpn(differs as u64) }), again);
        }
    }
    let works = caught(|| device.audit()).and_then(|()| exercise_device(device, spec.seed));
    (works.err(), straight)
}

/// Minimises a fault and draws it.
pub fn report(spec: &WorldSpec, found: &Found) -> ViolationReport {
    let found_as = found.token(spec, Chosen::All);
    let token = shortest(spec, found).unwrap_or_else(|| found_as.clone());
    let replayed = replay(&token).unwrap_or_else(|error| Replayed { fault: None, drawing: error });
    let ops = match &token.ops {
        Chosen::All => super::explorer::OPS,
        Chosen::Some(ops) => ops.len() as u32,
    };
    ViolationReport {
        what: describe(&found.fault),
        token: token.to_string(),
        found_as: found_as.to_string(),
        ops,
        drawing: replayed.drawing,
    }
}

/// Returns the shortest list of operations after which exploration finds a fault of the same sort.
fn shortest(spec: &WorldSpec, found: &Found) -> Option<Token> {
    match spec.config.firmware {
        _ if host_ftl(&spec.config.name).is_some() => return super::host_ftl::shortest(spec, found),
        FirmwareKind::Page => {}
        FirmwareKind::Append => return ruled::shortest::<append::World>(spec, found),
        FirmwareKind::PageAndAppend => return ruled::shortest::<both::World>(spec, found),
        FirmwareKind::OpenChannel => return ruled::shortest::<open::World>(spec, found),
    }
    let start = boot_device(spec, found.boot).ok()?;
    let history = boot_history(spec, found.boot);
    let needs_exercise = matches!(found.fault, Fault::Runtime(_)) && !found.torn.is_empty();
    let effort = Effort {
        nested_depth: found.nested.len() as u32,
        // A shorter history is explored completely, however few of the original states were.
        nested_every: 1,
        events_every: 1,
        states_max: None,
        exercise_every: if needs_exercise { 4 } else { 0 },
        ..spec.effort
    };
    let spec = WorldSpec { effort, ..spec.clone() };
    let explore = |ops: &[u32]| -> Option<Found> {
        let ops = ops.iter().map(|op| history.ops[*op as usize]).collect();
        let history = History { ops, depth: history.depth };
        let (_, result) = explore_boot(&spec, found.boot, start.clone(), history);
        result.err().filter(|other| other.fault.resembles(&found.fault))
    };
    let all: Vec<u32> = (0..history.ops.len() as u32).collect();
    explore(&all)?;
    let mut runs = 0;
    let best = minimise(&all, |ops| {
        runs += 1;
        runs <= MINIMISE_RUNS_MAX && explore(ops).is_some()
    });
    Some(explore(&best)?.token(&spec, Chosen::Some(best)))
}

/// Describes a fault in one line.
pub fn describe(fault: &Fault) -> String {
    match fault {
        Fault::Rule(what) => what.clone(),
        Fault::Contract(Violation::LostPromise { .. }) => "a promised version was lost".into(),
        Fault::Contract(Violation::Impossible { lpn, .. }) => {
            format!("unit {} reads as something that never was its content", lpn.0)
        }
        Fault::Contract(Violation::Unreadable { lpn }) => format!("unit {} cannot be read", lpn.0),
        Fault::Contract(Violation::BrokenOrder { lpn, .. }) => {
            format!("unit {} persisted without what comes before it", lpn.0)
        }
        Fault::NotIdempotent { lpn } => {
            format!("unit {} reads differently after a recovery that was cut", lpn.0)
        }
        Fault::Runtime(Misbehaviour::WrongRead { op, lpn }) => {
            format!("operation {op} read wrong data from unit {}", lpn.0)
        }
        Fault::Runtime(Misbehaviour::Failed { op, error }) => format!("operation {op} failed: {error}"),
        Fault::Runtime(Misbehaviour::Overtaken { op, by }) => {
            format!("operation {by} was accepted before {op}, which had arrived in the same stream before")
        }
        Fault::Runtime(Misbehaviour::Wedged { in_flight, state }) => {
            format!("{in_flight} commands never complete: {state}")
        }
        Fault::Runtime(Misbehaviour::Restless) => "the device never comes to rest".into(),
        Fault::Runtime(Misbehaviour::WrongAtRest { lpn }) => {
            format!("unit {} holds wrong data at rest", lpn.0)
        }
        Fault::Panic(message) => format!("assertion: {message}"),
    }
}

fn drawing(spec: &WorldSpec, sim: &Sim, token: &Token, seen: &[Content], fault: Option<&Fault>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} seed {} boot {}", token.device, token.seed, token.boot);
    let now = sim.cut_instant();
    let _ = writeln!(out, "power cut before event {} at {now:?}", sim.events());
    let mut torn = token.torn.iter();
    for cell in sim.device().interrupted(now) {
        let stood = match torn.next() {
            None | Some(Torn::Absent) => "had not begun",
            Some(Torn::Damaged) => "was interrupted",
            Some(Torn::Done) => "had finished",
        };
        let _ = writeln!(out, "  {} {stood}", describe_cell(&cell));
    }
    for nested in &token.nested {
        let _ = writeln!(out, "  recovery cut in step {}: {:?}", nested.step, nested.torn);
    }
    if !seen.is_empty() {
        let violation = match fault {
            Some(Fault::Contract(violation)) => Some(violation),
            _ => None,
        };
        let position = sim.log().position();
        out += &draw(sim.log(), position, spec.policy(), |lpn| observed(seen, lpn), violation);
    }
    if let Some(fault) = fault {
        let _ = writeln!(out, "{}", describe(fault));
    }
    out
}

fn describe_cell(cell: &Interrupted) -> String {
    let kind = match cell.op.kind {
        OpKind::Read => "read",
        OpKind::Program => "program",
        OpKind::Erase => "erase",
    };
    format!("{kind} of block {} page {} ({:?})", cell.op.at.block.0, cell.op.at.page, cell.op.job)
}
