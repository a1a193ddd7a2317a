//! The laboratory of devices with pages and segments on one pool of blocks (crash-laboratory §1, append-segments §3.10): histories of
//! both namespaces at once, with every power loss in them.
//!
//! Place in the data flow: [`crate::ruled`] drives the host. Commands of segments are those of [`crate::append`], whose log judges segments;
//! the contract's [`Oracle`] judges pages. Neither namespace promises anything of the other, so each is judged by itself.
//!
//! Deliberately absent: streams, which such a device does not keep, and writes to parts of a unit, which other tiny devices have.

use crate::append;
use crate::explorer::{WorldSpec, observed};
use crate::ruled::{Core, Ruled};
use flashweir_contract::policy::{Durability, Policy, RangeFlushed};
use flashweir_contract::{Content, Log, OpIx, Oracle, Verdict};
use flashweir_core::command::{RangeFlush, pattern};
use flashweir_core::{Command, Completion, Data, DeviceError, Done, Lba, Lpn, Op, RandomStream};
use flashweir_device::config::{BufferMode, RangeFlushSupport};
use flashweir_device::{Device, DeviceConfig};
use std::collections::BTreeMap;

/// Longest write, in mapping units.
const UNITS_MAX: u64 = 4;

/// A command under way.
#[derive(Clone, Debug)]
struct Flying {
    op: Option<OpIx>,
    /// What it makes of which units.
    changes: Vec<(Lpn, Content)>,
    /// Contents of which a read may return one.
    allowed: Option<Vec<Content>>,
}

/// What a host knows of the page namespace.
#[derive(Clone, Debug)]
struct Pages {
    log: Log,
    flying: BTreeMap<u64, Flying>,
    /// Content of each unit once everything accepted has taken effect; before that, the content before the last change, and the number of
    /// the command that made this change.
    model: Vec<Content>,
    before: Vec<(Content, u64)>,
    /// Sequence number of the last command that was accepted; the log wants them in order.
    seq: u64,
    /// A device that is worn out has reported that it lost something.
    has_lost_writes: bool,
    shown: Vec<Content>,
}

/// A host of a device with both namespaces.
#[derive(Clone, Debug)]
pub(crate) struct World<'a> {
    segments: append::World<'a>,
    pages: Pages,
}

/// What a device shows of its pages.
fn show(device: &Device) -> Vec<Content> {
    let units = device.geometry().user_units;
    (0..units).map(|unit| Content::from(&device.peek(Lpn(unit)).unwrap_or_default())).collect()
}

/// What such a device promises.
fn policy(config: &DeviceConfig) -> Policy {
    let durability = match config.buffer.mode {
        BufferMode::WriteThrough => Durability::AtCompletion,
        BufferMode::WriteBack | BufferMode::PowerLossProtected => Durability::AtFlush,
    };
    Policy { durability, range_flushed: RangeFlushed::OrNewer, ordered: false, atomic: false }
}

impl Pages {
    fn new(device: &Device) -> Self {
        let shown = show(device);
        let mut log = Log::new();
        for (unit, content) in (0..).zip(&shown) {
            log.set_initial(Lpn(unit), *content);
        }
        Self {
            log,
            flying: BTreeMap::new(),
            model: shown.clone(),
            before: shown.iter().map(|content| (*content, 0)).collect(),
            seq: 0,
            has_lost_writes: false,
            shown,
        }
    }

    /// Chooses a command with this number.
    fn choose(
        &mut self,
        number: u64,
        config: &DeviceConfig,
        random: &mut RandomStream,
        per_unit: u64,
    ) -> (Command, String) {
        let units = self.model.len() as u64;
        let len = (1 + random.below(UNITS_MAX)).min(units);
        // A few units get most of the writes, so that blocks differ in what is left of them.
        let span = if random.below(3) == 0 { units } else { (units / 3).max(len) };
        let first = random.below(span).min(units - len);
        let (lba, blocks) = (Lba(first * per_unit), (len * per_unit) as u32);
        let all = move |content: fn(u64, Lpn) -> Content| -> Vec<(Lpn, Content)> {
            (first..first + len).map(|unit| (Lpn(unit), content(number, Lpn(unit)))).collect()
        };
        let has_ranges = config.buffer.range_flush == RangeFlushSupport::Selective;
        let (op, changes, text) = match random.below(20) {
            0..12 => {
                let changes = all(|number, lpn| Content(pattern(number, lpn)));
                (
                    Op::Write { lba, blocks, data: Data::Pattern(number) },
                    changes,
                    format!("write {first}: {len}"),
                )
            }
            12 => {
                (Op::WriteZeroes { lba, blocks }, all(|_, _| Content::ZERO), format!("zeroes {first}: {len}"))
            }
            13 | 14 => (Op::Trim { lba, blocks }, all(|_, _| Content::ZERO), format!("TRIM {first}: {len}")),
            15 | 16 => (Op::Flush, Vec::new(), "FLUSH of pages".to_string()),
            17 if has_ranges => {
                let flush = RangeFlush { ranges: vec![(lba, blocks)], ..RangeFlush::default() };
                (Op::RFlush(Box::new(flush)), Vec::new(), format!("RFLUSH {first}: {len}"))
            }
            _ => {
                let blocks = per_unit as u32;
                (Op::Read { lba, blocks }, Vec::new(), format!("read {first}"))
            }
        };
        let allowed = matches!(op, Op::Read { .. }).then(|| self.allowed(first as usize));
        let fua = !changes.is_empty() && random.below(8) == 0;
        let command = Command { fua, ..Command::new(number, op) };
        let op = self.log.submit_command(&command, per_unit);
        self.flying.insert(number, Flying { op, changes, allowed });
        (command, if fua { format!("{text}, FUA") } else { text })
    }

    /// What a read of a unit may return: while the last change is under way, a part of it may not have been accepted yet.
    fn allowed(&self, unit: usize) -> Vec<Content> {
        let (before, by) = self.before[unit];
        let is_certain = !self.flying.contains_key(&by);
        let both = [Some(self.model[unit]), (!is_certain).then_some(before)];
        both.into_iter().flatten().collect()
    }

    fn accepted(&mut self, number: u64) {
        let Some(Flying { op: Some(op), changes, .. }) = self.flying.get(&number) else { return };
        self.seq += 1;
        for (lpn, content) in changes {
            let unit = lpn.0 as usize;
            self.before[unit] = (self.model[unit], number);
            self.model[unit] = *content;
        }
        self.log.accept(*op, self.seq, changes.iter().copied());
    }

    fn completed(
        &mut self,
        number: u64,
        result: &Result<Done, DeviceError>,
        is_worn_out: bool,
    ) -> Result<(), String> {
        let Some(Flying { op, allowed, .. }) = self.flying.remove(&number) else {
            return Err(format!("command {number} completes twice"));
        };
        if let Some(op) = op {
            self.log.complete(op, result.is_ok());
        }
        match (result, allowed) {
            (Err(DeviceError::ReadOnly), _) if is_worn_out => {}
            (Err(DeviceError::WriteFault { .. } | DeviceError::Uncorrectable { .. }), _) if is_worn_out => {
                self.has_lost_writes = true;
            }
            (Err(error), _) => return Err(format!("command {number}: {error}")),
            (Ok(Done::Data(data)), Some(allowed)) => {
                let found = Content::from(&data[0]);
                if !allowed.contains(&found) && !self.has_lost_writes {
                    return Err(format!("command {number} reads {found:?} where {allowed:?} is there"));
                }
            }
            (Ok(Done::Ok), None) => {}
            (Ok(done), _) => return Err(format!("command {number}: {done:?}")),
        }
        Ok(())
    }

    fn check(&self, device: &Device) -> Result<(), String> {
        let shown = show(device);
        let mut oracle = Oracle::new(policy(device.config()));
        match oracle.check(&self.log, self.log.position(), |lpn| observed(&shown, lpn)) {
            Verdict::Legal => Ok(()),
            Verdict::Violation(violation) => Err(format!("pages: {violation:?}")),
        }
    }
}

impl<'a> Ruled<'a> for World<'a> {
    const NAME: &'static str = "both";
    const COMMANDS: u32 = 96;
    const HAS_RECOVERY: bool = true;

    fn new(spec: &'a WorldSpec) -> Self {
        let segments = append::World::new(spec);
        let pages = Pages::new(&segments.core().device);
        Self { segments, pages }
    }

    fn core(&self) -> &Core<'a> {
        self.segments.core()
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        self.segments.core_mut()
    }

    fn choose(&mut self) -> Option<(Command, String)> {
        let core = self.segments.core_mut();
        if core.device.is_read_only() {
            return None;
        }
        if core.random.below(2) == 0 {
            return self.segments.choose();
        }
        let per_unit = core.device.geometry().lbas_per_unit;
        Some(self.pages.choose(core.next, &core.spec.config, &mut core.random, per_unit))
    }

    fn accepted(&mut self, number: u64) {
        match self.pages.flying.contains_key(&number) {
            true => self.pages.accepted(number),
            false => self.segments.accepted(number),
        }
    }

    fn completed(&mut self, completion: Completion) -> Result<(), String> {
        let number = completion.id.0;
        if !self.pages.flying.contains_key(&number) {
            return self.segments.completed(completion);
        }
        let core = self.segments.core();
        let faults = &core.spec.config.faults;
        let may_fail = faults.program_fail > 0.0 || faults.erase_fail > 0.0 || faults.endurance > 0;
        let is_worn_out = may_fail && core.device.is_read_only();
        self.pages.completed(number, &completion.result, is_worn_out)
    }

    fn after(&self, device: Device) -> Result<Self, String> {
        self.pages.check(&device)?;
        let segments = self.segments.after(device)?;
        let pages = Pages::new(&segments.core().device);
        Ok(Self { segments, pages })
    }

    fn sees_the_same(&self, other: &Self) -> bool {
        self.segments.sees_the_same(&other.segments) && self.pages.shown == other.pages.shown
    }
}
