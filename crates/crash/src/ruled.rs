//! Worlds of devices that are judged by rules of their own, not by the oracle of the page namespace: the driver that they share.
//!
//! Place in the data flow: a host ([`Ruled`]) keeps several commands in flight at a tiny device; before each event the power is cut in every
//! way that the interrupted operations allow, the device is recovered, also with cuts inside the recovery, and the host judges what it
//! sees. At the end of a boot one of its cuts, drawn by the world's seed, is the beginning of the next.
//!
//! Invariant: a world is a function of its [`WorldSpec`].

use crate::explorer::{Counts, Fault, Found, WorldSpec, caught, combinations, cut_device};
use crate::token::{Chosen, NestedCut, Token};
use flashweir_core::{Agenda, Command, Completion, DeviceError, RandomStream};
use flashweir_device::{Device, Effect, Event, Media, Recovery, Torn};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Commands in flight at most.
const DEPTH: usize = 6;

/// A command of the present boot, for the drawing.
#[derive(Clone, Debug)]
struct Line {
    number: u64,
    text: String,
    /// Events before it was submitted, and before it was answered.
    events: [Option<u32>; 2],
    error: Option<DeviceError>,
}

/// The device of a host, and what every host has.
#[derive(Clone, Debug)]
pub(crate) struct Core<'a> {
    pub(crate) spec: &'a WorldSpec,
    pub(crate) device: Device,
    agenda: Agenda<Event>,
    pub(crate) random: RandomStream,
    /// Number of the next command.
    pub(crate) next: u64,
    pub(crate) in_flight: usize,
    events: u32,
    lines: Vec<Line>,
}

impl<'a> Core<'a> {
    /// A host of a new device; `name` is that of its random stream.
    pub(crate) fn new(spec: &'a WorldSpec, name: &str) -> Self {
        let device = Device::new(spec.config.clone(), spec.options());
        let random = RandomStream::new(spec.seed, name);
        let (agenda, lines) = (Agenda::default(), Vec::new());
        Self { spec, device, agenda, random, next: 1, in_flight: 0, events: 0, lines }
    }

    /// The same host above the device that a power loss has left.
    pub(crate) fn above(&self, device: Device) -> Self {
        let (random, agenda, lines) = (self.random.clone(), Agenda::default(), Vec::new());
        Self { spec: self.spec, device, agenda, random, next: self.next, in_flight: 0, events: 0, lines }
    }
}

/// A host with rules.
pub(crate) trait Ruled<'a>: Clone {
    /// Begins the names of its random streams.
    const NAME: &'static str;
    /// Commands of the history of a boot.
    const COMMANDS: u32;
    /// Whether the device has a recovery that writes, and so can be cut.
    const HAS_RECOVERY: bool;

    /// A host of a new device.
    fn new(spec: &'a WorldSpec) -> Self;

    fn core(&self) -> &Core<'a>;

    fn core_mut(&mut self) -> &mut Core<'a>;

    /// Chooses the next command, with a text for the drawing; `None` ends the history.
    fn choose(&mut self) -> Option<(Command, String)>;

    /// The device has given a command its place in the order of all.
    fn accepted(&mut self, number: u64);

    /// Judges the answer to a command.
    fn completed(&mut self, completion: Completion) -> Result<(), String>;

    /// Judges what a recovered device shows, and takes it over.
    fn after(&self, device: Device) -> Result<Self, String>;

    /// Whether two hosts see the same.
    fn sees_the_same(&self, other: &Self) -> bool;
}

/// A violation, and the drawing of what led to it.
pub(crate) type Violation = Box<(Found, String)>;

/// The world at the beginning of a boot.
fn reached<'a, R: Ruled<'a>>(spec: &'a WorldSpec, boot: u32, counts: &mut Counts) -> Result<R, Violation> {
    (0..boot).try_fold(R::new(spec), |host, boot| live(host, boot, R::COMMANDS, None, counts))
}

/// Explores all boots of a world.
pub(crate) fn explore_world<'a, R: Ruled<'a>>(spec: &'a WorldSpec) -> (Counts, Option<Found>) {
    let mut counts = Counts { worlds: 1, ..Counts::default() };
    let found = reached::<R>(spec, spec.effort.boots, &mut counts).err().map(|violation| violation.0);
    (counts, found)
}

/// Does again what a token says: the fault, if there is one, and the drawing.
///
/// # Errors
/// The token names operations that are not the first ones of the history, or a cut of a recovery that the device does not have.
pub(crate) fn replay<'a, R: Ruled<'a>>(
    spec: &'a WorldSpec,
    token: &Token,
) -> Result<(Option<Fault>, String), String> {
    let limit = match &token.ops {
        Chosen::All => R::COMMANDS,
        Chosen::Some(ops) if ops.iter().copied().eq(0..ops.len() as u32) => ops.len() as u32,
        Chosen::Some(_) => return Err(format!("`{}`: expected the first commands, such as 0-7", token.ops)),
    };
    if !R::HAS_RECOVERY && !token.nested.is_empty() {
        return Err("an open channel has no recovery that could be cut".into());
    }
    let mut counts = Counts::default();
    let host = reached::<R>(spec, token.boot, &mut counts)
        .and_then(|host| live(host, token.boot, limit, Some(token), &mut counts));
    Ok(match host {
        Ok(host) if host.core().events < token.cut => (None, "the history ends before the cut\n".into()),
        Ok(host) => (None, drawing(host.core(), &token.torn, None)),
        Err(violation) => (Some(violation.0.fault), violation.1),
    })
}

/// The least number of first commands of the boot after which a fault of the same sort is found, as a token.
pub(crate) fn shortest<'a, R: Ruled<'a>>(spec: &'a WorldSpec, found: &Found) -> Option<Token> {
    let mut counts = Counts::default();
    let host = reached::<R>(spec, found.boot, &mut counts).ok()?;
    (1..=R::COMMANDS).find_map(|limit| {
        let (other, _) = *live(host.clone(), found.boot, limit, None, &mut counts).err()?;
        let is_alike = other.fault.resembles(&found.fault);
        is_alike.then(|| other.token(spec, Chosen::Some((0..limit).collect())))
    })
}

/// Turns a broken rule and a failed assertion of the device into a fault.
pub(crate) fn held<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, Fault> {
    caught(work)?.map_err(Fault::Rule)
}

/// One boot of so many commands, cut before each event and at its end; gives the host after one of the cuts. If a cut is `asked` for it is
/// the only one, and the host is given as it was there.
pub(crate) fn live<'a, R: Ruled<'a>>(
    mut host: R,
    boot: u32,
    commands: u32,
    asked: Option<&Token>,
    counts: &mut Counts,
) -> Result<R, Violation> {
    counts.histories += 1;
    let spec = host.core().spec;
    let stream = |what: &str| RandomStream::new(spec.seed, &format!("{}-{what}-{boot}", R::NAME));
    let [mut carry, mut tears, mut nested] = ["carry", "tears", "nested"].map(stream);
    host.core_mut().random = stream("boot");
    let (mut left, mut chosen, mut offers) = (commands, None, 0);
    let mut known = BTreeSet::new();
    let violation = |host: &R, torn: &[Torn], nested: &[NestedCut], fault| {
        let drawing = drawing(host.core(), torn, Some(&fault));
        let (cut, torn, nested) = (host.core().events, torn.to_vec(), nested.to_vec());
        Box::new((Found { fault, boot, cut, torn, nested }, drawing))
    };
    loop {
        while left > 0 && host.core().in_flight < DEPTH {
            left -= 1;
            held(|| submit(&mut host)).map_err(|fault| violation(&host, &[], &[], fault))?;
        }
        let next = host.core().agenda.peek();
        if next.is_none() {
            held(|| check_end(host.core())).map_err(|fault| violation(&host, &[], &[], fault))?;
        }
        let now = next.unwrap_or_else(|| host.core().agenda.now());
        counts.moments += 1;
        let torn = match asked {
            None => combinations(&host.core().device.interrupted(now), &mut tears),
            Some(token) if token.cut == host.core().events => vec![token.torn.clone()],
            Some(_) => Vec::new(),
        };
        for torn in torn {
            // What is interrupted may be what the medium forbids, so that the cut itself fails.
            let media = caught(|| cut_device(&host.core().device, now, &torn))
                .map_err(|fault| violation(&host, &torn, &[], fault))?;
            counts.states += 1;
            counts.judged += 1;
            let is_new = known.insert(media.digest());
            counts.distinct += u64::from(is_new);
            let after = held(|| wake(&host, &media)).map_err(|fault| violation(&host, &torn, &[], fault))?;
            let cuts = match asked {
                Some(token) => token.nested.clone(),
                None if R::HAS_RECOVERY && is_new => nested_cuts(spec, media.clone(), &mut nested),
                None => Vec::new(),
            };
            if !cuts.is_empty() {
                let again = held(|| wake_again(&host, &after, media, &cuts, &mut known));
                let found = again.map_err(|fault| violation(&host, &torn, &cuts, fault))?;
                counts.states += cuts.len() as u64;
                counts.distinct += found;
                counts.distinct_nested += found;
            }
            if asked.is_some() {
                return Ok(host);
            }
            offers += 1;
            if carry.below(offers) == 0 {
                chosen = Some(after);
            }
        }
        let Some((now, event)) = host.core_mut().agenda.pop() else { return Ok(chosen.unwrap_or(host)) };
        host.core_mut().events += 1;
        counts.events += 1;
        let done = held(|| {
            let mut effects = Vec::new();
            host.core_mut().device.event(now, event, &mut effects);
            carry_out(&mut host, effects)
        });
        done.map_err(|fault| violation(&host, &[], &[], fault))?;
    }
}

fn submit<'a, R: Ruled<'a>>(host: &mut R) -> Result<(), String> {
    let Some((command, text)) = host.choose() else { return Ok(()) };
    let core = host.core_mut();
    core.next = command.id.0 + 1;
    core.in_flight += 1;
    let events = [Some(core.events), None];
    core.lines.push(Line { number: command.id.0, text, events, error: None });
    let mut effects = Vec::new();
    core.device.command(core.agenda.now(), command, &mut effects);
    carry_out(host, effects)
}

fn carry_out<'a, R: Ruled<'a>>(host: &mut R, effects: Vec<Effect>) -> Result<(), String> {
    for effect in effects {
        match effect {
            Effect::At(at, event) => host.core_mut().agenda.at(at, event),
            Effect::Accepted { id, .. } => host.accepted(id.0),
            Effect::Complete(completion) => {
                let core = host.core_mut();
                core.in_flight -= 1;
                let (number, now) = (completion.id.0, core.events);
                if let Some(line) = core.lines.iter_mut().find(|line| line.number == number) {
                    line.events[1] = Some(now);
                    line.error = completion.result.as_ref().err().cloned();
                }
                host.completed(completion)?;
            }
        }
    }
    Ok(())
}

/// Every command has been answered, and the device holds to its invariants.
fn check_end(core: &Core<'_>) -> Result<(), String> {
    if core.in_flight > 0 {
        return Err(format!("commands never complete\n{}", core.device.describe()));
    }
    core.device.audit();
    Ok(())
}

/// Recovers a medium and judges what it shows.
fn wake<'a, R: Ruled<'a>>(host: &R, media: &Media) -> Result<R, String> {
    let spec = host.core().spec;
    let (device, _) = Recovery::begin(&spec.config, spec.options(), media.clone()).finish();
    device.audit();
    host.after(device)
}

/// The same, where the recovery is cut, and the recovery from that, and so on; what is seen must not depend on it. Returns how many of
/// the media are not known yet.
fn wake_again<'a, R: Ruled<'a>>(
    host: &R,
    straight: &R,
    mut media: Media,
    cuts: &[NestedCut],
    known: &mut BTreeSet<u64>,
) -> Result<u64, String> {
    let spec = host.core().spec;
    let mut found = 0;
    for cut in cuts {
        let mut recovery = Recovery::begin(&spec.config, spec.options(), media);
        (0..cut.step).for_each(|_| {
            recovery.advance();
        });
        media = recovery.cut(cut.torn);
        found += u64::from(known.insert(media.digest()));
        match straight.sees_the_same(&wake(host, &media)?) {
            true => {}
            false => return Err("a recovery that was cut leads to another state".into()),
        }
    }
    Ok(found)
}

/// Draws cuts of a recovery, one inside the other; mostly none.
fn nested_cuts(spec: &WorldSpec, media: Media, random: &mut RandomStream) -> Vec<NestedCut> {
    let every = u64::from(spec.effort.nested_every);
    if spec.effort.nested_depth == 0 || every > 1 && random.below(every) != 0 {
        return Vec::new();
    }
    let Ok(recovery) = caught(|| Recovery::begin(&spec.config, spec.options(), media)) else {
        return Vec::new();
    };
    let steps = recovery.steps_left() as u64;
    let depth = 1 + random.below(u64::from(spec.effort.nested_depth));
    let cut = |_| {
        let step = random.below(steps + 1) as u32;
        let torn = [Torn::Absent, Torn::Damaged, Torn::Done][random.below(3) as usize];
        NestedCut { step, torn: if u64::from(step) == steps { Torn::Absent } else { torn } }
    };
    (0..depth).map(cut).collect()
}

/// The commands of the boot, and what the cut left of those under way.
fn drawing(core: &Core<'_>, torn: &[Torn], fault: Option<&Fault>) -> String {
    let mut text = String::new();
    for Line { number, text: what, events: [begun, ended], error } in &core.lines {
        let _ = write!(text, "{number:>5}  {what:<34} event {:>4} ", begun.unwrap_or_default());
        let _ = match (ended, error) {
            (Some(at), None) => writeln!(text, "to {at:>4}"),
            (Some(at), Some(error)) => writeln!(text, "to {at:>4}: {error}"),
            (None, _) => writeln!(text, "  under way"),
        };
    }
    let _ = write!(text, "power loss after {} events", core.events);
    let words = torn.iter().map(|torn| match torn {
        Torn::Absent => "absent",
        Torn::Damaged => "damaged",
        Torn::Done => "finished",
    });
    let words: Vec<&str> = words.collect();
    let _ = match words.is_empty() {
        true => writeln!(text),
        false => writeln!(text, "; interrupted operations: {}", words.join(", ")),
    };
    if let Some(Fault::Rule(what)) = fault {
        let _ = writeln!(text, "{what}");
    }
    text
}

/// Executes commands one after the other, each to its end; for tests of hosts.
#[cfg(test)]
pub(crate) fn quiet<'a, R: Ruled<'a>>(spec: &'a WorldSpec, commands: u32) -> R {
    let mut host = R::new(spec);
    for _ in 0..commands {
        submit(&mut host).unwrap();
        while let Some((now, event)) = host.core_mut().agenda.pop() {
            let mut effects = Vec::new();
            host.core_mut().device.event(now, event, &mut effects);
            carry_out(&mut host, effects).unwrap();
        }
    }
    assert_eq!(host.core().in_flight, 0);
    host
}

/// The medium of a device after a power loss between two operations; for tests of hosts.
#[cfg(test)]
pub(crate) fn medium(core: &Core<'_>) -> Media {
    cut_device(&core.device, core.agenda.now(), &[])
}
