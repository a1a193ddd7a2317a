//! A device that keeps the contract and nothing more (contract §3, crash-laboratory §3.4): after a cut it shows any
//! legal state.
//!
//! Place in the data flow: a file-system or application test submits [`Command`]s and gets completions; at a cut it
//! takes the legal states one after the other and continues with the device that woke up in each.
//!
//! Invariants: reads show the newest accepted content; the log holds exactly what was accepted, so the oracle can judge
//! any other device's states by this log.
//!
//! Deliberately absent: time, and every command that this crate's contract does not cover; such commands are answered
//! with `NotSupported`. Ordered writes are accepted also by a kind that keeps no order, because litmus tests run one
//! program on all kinds.

use crate::log::{Content, Kind, Log, LogPos, OpIx, Submission};
use crate::policy::Policy;
use crate::program::{Request, Target};
use crate::states::{CrashState, Exploration, LegalStates};
use flashweir_core::command::{SharePair, check_range, pattern};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Command, CommandId, Completion, Data, DeviceError, Done, Lba, Lpn, Op, Order, Payload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of mapping units; unmapped units are absent.
pub type Contents = BTreeMap<Lpn, Payload>;

/// Contents that replace earlier ones; `None` is unmapped.
type Changes = BTreeMap<Lpn, Option<Payload>>;

/// The model device.
#[derive(Clone, Debug)]
pub struct ModelDevice {
    policy: Policy,
    unit_blocks: u32,
    capacity_units: u64,
    log: Log,
    seq: u64,
    /// Durable contents, shared between devices, so that waking a device up costs only the differences; unmapped units
    /// are absent.
    base: Arc<Contents>,
    /// Durable contents before the first operation, where they differ from `base`.
    durable: Changes,
    /// Contents that a read shows, where they differ from `base`.
    newest: Changes,
    /// Content that each unit of the log leaves; `None` is unmapped.
    payloads: Vec<Option<Payload>>,
    hold: bool,
    held: Vec<(OpIx, Completion)>,
}

impl ModelDevice {
    /// Makes an empty device of `capacity_units` mapping units of `unit_blocks` sectors of 512 bytes.
    pub fn new(policy: Policy, unit_blocks: u32, capacity_units: u64) -> Self {
        Self::with_contents(policy, unit_blocks, capacity_units, Arc::default())
    }

    /// Makes a device that has just woken up with these contents.
    pub fn with_contents(policy: Policy, unit_blocks: u32, capacity_units: u64, base: Arc<Contents>) -> Self {
        assert!(unit_blocks > 0, "a mapping unit has blocks");
        Self {
            policy,
            unit_blocks,
            capacity_units,
            log: Log::new(),
            seq: 0,
            base,
            durable: Changes::new(),
            newest: Changes::new(),
            payloads: Vec::new(),
            hold: false,
            held: Vec::new(),
        }
    }

    /// Gives a unit durable content, to age the media (crash-laboratory §3.5). Allowed only before the first operation.
    pub fn age(&mut self, lpn: Lpn, payload: Payload) {
        assert!(self.log.row(lpn).is_none(), "{lpn:?} is in use already");
        self.newest.insert(lpn, Some(payload.clone()));
        self.durable.insert(lpn, Some(payload));
    }

    /// Returns everything that reads show.
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::clone(&self.base);
        for (lpn, payload) in &self.newest {
            match payload {
                Some(payload) => contents.insert(*lpn, payload.clone()),
                None => contents.remove(lpn),
            };
        }
        contents
    }

    fn look<'a>(&'a self, changes: &'a Changes, lpn: Lpn) -> Option<&'a Payload> {
        changes.get(&lpn).map_or_else(|| self.base.get(&lpn), Option::as_ref)
    }

    /// With `hold`, completions from now on wait for [`ModelDevice::release`]. Reads and refusals never wait.
    pub fn hold_completions(&mut self, hold: bool) {
        self.hold = hold;
    }

    /// Accepts a command at once, or refuses it; returns `None` if its completion is held.
    pub fn submit(&mut self, command: &Command) -> Option<Completion> {
        let result = match &command.op {
            Op::Read { lba, blocks } => self.read_range(*lba, *blocks),
            _ => match self.accept(command) {
                Ok(op) => return self.finish(op, command),
                Err(error) => Err(error),
            },
        };
        Some(Completion { id: command.id, queue: command.queue, result })
    }

    /// Releases the completion of a held command.
    pub fn release(&mut self, id: CommandId) -> Option<Completion> {
        let at = self.held.iter().position(|(_, completion)| completion.id == id)?;
        let (op, completion) = self.held.remove(at);
        self.log.complete(op, true);
        Some(completion)
    }

    /// Iterates over the commands whose completions are held, in order of submission.
    pub fn held(&self) -> impl Iterator<Item = CommandId> + '_ {
        self.held.iter().map(|(_, completion)| completion.id)
    }

    /// Returns what a unit reads as now.
    pub fn read(&self, lpn: Lpn) -> Payload {
        self.look(&self.newest, lpn).cloned().unwrap_or_default()
    }

    /// Returns the log since the device woke up.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Whether a unit was written, and not deallocated since.
    pub fn has_content(&self, lpn: Lpn) -> bool {
        self.look(&self.newest, lpn).is_some()
    }

    /// Returns the rules that the device keeps.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Enumerates the states that a cut now may leave.
    pub fn legal_states(&self, exploration: Exploration) -> LegalStates<'_> {
        self.legal_states_at(self.log.position(), exploration)
    }

    /// Enumerates the states that a cut at `upto` may have left.
    pub fn legal_states_at(&self, upto: LogPos, exploration: Exploration) -> LegalStates<'_> {
        LegalStates::new(&self.log, upto, self.policy, exploration)
    }

    /// Returns the device that wakes up in `state`, one of its legal states: all of its content is durable, its log
    /// empty.
    pub fn after(&self, state: &CrashState) -> Self {
        let mut durable = self.durable.clone();
        for (lpn, unit) in state.shown(&self.log) {
            if let Some(unit) = unit {
                durable.insert(lpn, self.payloads[unit.0 as usize].clone());
            }
        }
        let (newest, base) = (durable.clone(), Arc::clone(&self.base));
        let asleep = Self::with_contents(self.policy, self.unit_blocks, self.capacity_units, base);
        Self { durable, newest, ..asleep }
    }

    fn finish(&mut self, op: OpIx, command: &Command) -> Option<Completion> {
        let completion = Completion { id: command.id, queue: command.queue, result: Ok(Done::Ok) };
        if self.hold {
            self.held.push((op, completion));
            return None;
        }
        self.log.complete(op, true);
        Some(completion)
    }

    fn accept(&mut self, command: &Command) -> Result<OpIx, DeviceError> {
        let Some(submission) = Submission::of(command) else {
            return Err(DeviceError::NotSupported("a command outside the contract of the model device"));
        };
        self.validate(command, &submission)?;
        let units = self.effects(&command.op)?;
        for (lpn, _) in &units {
            if self.log.row(*lpn).is_none() {
                let initial = self.look(&self.durable, *lpn).map_or(Content::ZERO, Content::from);
                self.log.set_initial(*lpn, initial);
            }
        }
        let submitted = self.log.submit_command(command, u64::from(self.unit_blocks));
        let op = submitted.expect("the contract knows the command");
        let content = |payload: &Option<Payload>| payload.as_ref().map_or(Content::ZERO, Content::from);
        if !matches!(submission.kind, Kind::Flush | Kind::RangeFlush) {
            self.seq += 1;
            self.log.accept(op, self.seq, units.iter().map(|(lpn, payload)| (*lpn, content(payload))));
        }
        for (lpn, payload) in units {
            self.newest.insert(lpn, payload.clone());
            self.payloads.push(payload);
        }
        Ok(op)
    }

    fn validate(&self, command: &Command, submission: &Submission) -> Result<(), DeviceError> {
        if command.order.is_some() && command.stream.is_none() {
            return Err(DeviceError::InvalidField("an order needs a stream"));
        }
        match submission.kind {
            Kind::Barrier if !self.policy.ordered => Err(DeviceError::NotSupported("BARRIER")),
            Kind::Barrier if submission.order.is_none() => {
                Err(DeviceError::InvalidField("a barrier needs a stream"))
            }
            Kind::Barrier if command.order == Some(Order::Within) => {
                Err(DeviceError::InvalidField("a barrier of no length closes an epoch"))
            }
            Kind::Share if !self.policy.atomic => Err(DeviceError::NotSupported("SHARE")),
            _ => Ok(()),
        }
    }

    /// Returns the units that a command changes, each with its whole new content.
    fn effects(&self, op: &Op) -> Result<Vec<(Lpn, Option<Payload>)>, DeviceError> {
        match op {
            Op::Write { lba, blocks, data } => {
                let bytes_expected = u64::from(*blocks) * LBA_BYTES;
                if matches!(data, Data::Bytes(bytes) if bytes.len() as u64 != bytes_expected) {
                    return Err(DeviceError::InvalidField("the data are not as long as the range"));
                }
                let unit = u64::from(self.unit_blocks);
                if let Data::Units(units) = data
                    && (!lba.0.is_multiple_of(unit) || units.len() as u64 * unit != u64::from(*blocks))
                {
                    return Err(DeviceError::InvalidField(
                        "the contents are not those of whole mapping units",
                    ));
                }
                self.overwrite(*lba, *blocks, data)
            }
            Op::WriteZeroes { lba, blocks } => self.overwrite(*lba, *blocks, &Data::Zero),
            Op::Trim { lba, blocks } => {
                self.check_range(*lba, *blocks)?;
                let unit = u64::from(self.unit_blocks);
                let whole = lba.0.div_ceil(unit)..(lba.0 + u64::from(*blocks)) / unit;
                Ok(whole.map(|lpn| (Lpn(lpn), None)).collect())
            }
            Op::Share(pairs) => self.share(pairs),
            Op::RFlush(flush) => {
                flush.check(self.capacity_blocks())?;
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn overwrite(
        &self,
        lba: Lba,
        blocks: u32,
        data: &Data,
    ) -> Result<Vec<(Lpn, Option<Payload>)>, DeviceError> {
        self.check_range(lba, blocks)?;
        let unit = u64::from(self.unit_blocks);
        let (start, end) = (lba.0, lba.0 + u64::from(blocks));
        let lpns = start / unit..end.div_ceil(unit);
        let effect = |lpn: u64| {
            let (from, to) = (start.max(lpn * unit), end.min((lpn + 1) * unit));
            let given = match data {
                Data::Zero => Payload::Zero,
                Data::Pattern(operation) => Payload::Tag(pattern(*operation, Lpn(lpn))),
                Data::Bytes(data) => {
                    let bytes = |block: u64| ((block - start) * LBA_BYTES) as usize;
                    Payload::Bytes(Arc::from(&data[bytes(from)..bytes(to)]))
                }
                Data::Units(units) => units[(lpn - start / unit) as usize].clone(),
            };
            let whole = to - from == unit;
            let payload = if whole { given } else { self.merge(Lpn(lpn), from, to, &given) };
            (Lpn(lpn), Some(payload))
        };
        Ok(lpns.map(effect).collect())
    }

    /// Returns the newest content of a unit with sectors `from..to` replaced. `given` holds bytes of these sectors
    /// only, or a pattern of the whole unit.
    fn merge(&self, lpn: Lpn, from: u64, to: u64, given: &Payload) -> Payload {
        let first_block = lpn.0 * u64::from(self.unit_blocks);
        let bytes = |block: u64| ((block - first_block) * LBA_BYTES) as usize;
        let within = bytes(from)..bytes(to);
        let mut merged = vec![0; self.unit_blocks as usize * LBA_BYTES as usize];
        self.read(lpn).expand(&mut merged);
        if let Payload::Bytes(data) = given {
            merged[within].copy_from_slice(data);
        } else {
            let mut unit = vec![0; merged.len()];
            given.expand(&mut unit);
            merged[within.clone()].copy_from_slice(&unit[within]);
        }
        Payload::Bytes(Arc::from(merged))
    }

    /// Resolves the contents of the sources, as they are at acceptance (contract §1.5).
    fn share(&self, pairs: &[SharePair]) -> Result<Vec<(Lpn, Option<Payload>)>, DeviceError> {
        let unit = u64::from(self.unit_blocks);
        let mut bound = BTreeMap::new();
        for pair in pairs {
            self.check_range(pair.dst, pair.blocks)?;
            self.check_range(pair.src, pair.blocks)?;
            if [pair.dst.0, pair.src.0, u64::from(pair.blocks)].iter().any(|n| !n.is_multiple_of(unit)) {
                return Err(DeviceError::InvalidField("SHARE works on whole mapping units"));
            }
            for offset in 0..u64::from(pair.blocks) / unit {
                let src = Lpn(pair.src.0 / unit + offset);
                let dst = Lpn(pair.dst.0 / unit + offset);
                let Some(payload) = self.look(&self.newest, src) else {
                    return Err(DeviceError::SourceUnmapped { lba: Lba(src.0 * unit) });
                };
                if bound.insert(dst, (src, payload.clone())).is_some() {
                    return Err(DeviceError::InvalidBatch { lba: Lba(dst.0 * unit) });
                }
            }
        }
        // A page that takes over its own content does not change (share §2.3).
        let changed = bound.into_iter().filter(|(dst, (src, _))| dst != src);
        Ok(changed.map(|(dst, (_, payload))| (dst, Some(payload))).collect())
    }

    fn read_range(&self, lba: Lba, blocks: u32) -> Result<Done, DeviceError> {
        self.check_range(lba, blocks)?;
        let unit = u64::from(self.unit_blocks);
        let lpns = lba.0 / unit..(lba.0 + u64::from(blocks)).div_ceil(unit);
        Ok(Done::Data(lpns.map(|lpn| self.read(Lpn(lpn))).collect()))
    }

    fn capacity_blocks(&self) -> u64 {
        self.capacity_units * u64::from(self.unit_blocks)
    }

    fn check_range(&self, lba: Lba, blocks: u32) -> Result<(), DeviceError> {
        check_range(lba, blocks, self.capacity_blocks())
    }
}

/// Runs programs with unit 0 at LPN 0; an operation is in flight until the program waits for it.
impl Target for ModelDevice {
    fn submit(&mut self, number: u32, request: &Request) {
        let command = request.command(u64::from(number), Lpn(0), self.unit_blocks);
        let hold = std::mem::replace(&mut self.hold, true);
        let refused = Self::submit(self, &command);
        assert!(refused.is_none(), "the model device refuses `{request}`: {refused:?}");
        self.hold = hold;
    }

    fn wait_for(&mut self, number: u32) {
        self.release(CommandId(u64::from(number)));
    }

    fn cut(&mut self) {}
}
