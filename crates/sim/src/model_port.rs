//! A block port onto the contract's model device: after a power cut it may show any state that the contract allows, not
//! only those that Flashweir's own FTL happens to produce (crash-laboratory §3.4).
//!
//! Place in the data flow: a file system runs on it as on a device; a test cuts at any position of the log and
//! continues with each port that may wake up there.
//!
//! Invariants: a request is answered before `submit` returns, so code that waits only for the port is finished at its
//! first poll; the log holds exactly the requests, in their order.
//!
//! A [`LatePort`] delays its answers, so that several requests are in flight.
//!
//! Deliberately absent: time of the device itself.

use crate::stack::{FlushMode, LBAS, answer, command, read_range};
use flashweir_contract::{Contents, CrashState, Exploration, LegalStates, Log, LogPos, ModelDevice, Policy};
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_core::{CommandId, Duration, Lpn};
use flashweir_fs::port::{BLOCK_BYTES, Block, BlockPort, Request, Ticket};
use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A port onto a model device. Clones are ports onto the same device.
#[derive(Clone)]
pub struct ModelPort {
    device: Rc<RefCell<ModelDevice>>,
    blocks: u64,
    mode: FlushMode,
    share_blocks_max: u32,
}

/// Most blocks of one SHARE of a model device, unless it is told otherwise: few, so that file systems send several.
const SHARE_BLOCKS_MAX: u32 = 8;

impl fmt::Debug for ModelPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelPort({} blocks)", self.blocks)
    }
}

impl ModelPort {
    /// Makes an empty device of `blocks` blocks that keeps `policy`.
    pub fn new(policy: Policy, blocks: u64, mode: FlushMode) -> Self {
        Self::on(ModelDevice::new(policy, LBAS as u32, blocks), blocks, mode)
    }

    /// Makes a device of `blocks` blocks that has just woken up with these contents.
    pub fn with_contents(policy: Policy, contents: Arc<Contents>, blocks: u64, mode: FlushMode) -> Self {
        Self::on(ModelDevice::with_contents(policy, LBAS as u32, blocks, contents), blocks, mode)
    }

    fn on(device: ModelDevice, blocks: u64, mode: FlushMode) -> Self {
        Self { device: Rc::new(RefCell::new(device)), blocks, mode, share_blocks_max: SHARE_BLOCKS_MAX }
    }

    /// Sets the most blocks of one SHARE.
    pub fn with_share_blocks_max(self, share_blocks_max: u32) -> Self {
        Self { share_blocks_max, ..self }
    }

    /// Returns the log since the device woke up.
    pub fn log(&self) -> Ref<'_, Log> {
        Ref::map(self.device.borrow(), ModelDevice::log)
    }

    /// Returns the present position in the log: that of a cut now.
    pub fn position(&self) -> LogPos {
        self.device.borrow().log().position()
    }

    /// Returns everything that reads show.
    pub fn contents(&self) -> Contents {
        self.device.borrow().contents()
    }

    /// Passes the states that the contract allows after a cut at `upto` to `look`.
    pub fn with_states<T>(
        &self,
        upto: LogPos,
        exploration: Exploration,
        look: impl FnOnce(&Log, LegalStates<'_>) -> T,
    ) -> T {
        let device = self.device.borrow();
        look(device.log(), device.legal_states_at(upto, exploration))
    }

    /// Returns a port onto the device that wakes up in `state`.
    pub fn woken(&self, state: &CrashState) -> Self {
        Self::on(self.device.borrow().after(state), self.blocks, self.mode)
    }

    /// Calls `wake` with a port onto each device that may wake up after a cut at `upto`, until a call fails. The first
    /// value is the number of devices; the second says whether they were all that the contract allows.
    ///
    /// # Errors
    /// The error of `wake`.
    pub fn after_cut<E>(
        &self,
        upto: LogPos,
        exploration: Exploration,
        mut wake: impl FnMut(Self) -> Result<(), E>,
    ) -> Result<(u64, bool), E> {
        let device = self.device.borrow();
        let states = device.legal_states_at(upto, exploration);
        let all = states.is_exhaustive();
        let mut count = 0;
        for state in states {
            count += 1;
            wake(Self::on(device.after(&state), self.blocks, self.mode))?;
        }
        Ok((count, all))
    }
}

impl BlockPort for ModelPort {
    fn capacity_blocks(&self) -> u64 {
        self.blocks
    }

    fn share_blocks_max(&self) -> u32 {
        if self.device.borrow().policy().atomic { self.share_blocks_max } else { 0 }
    }

    fn has_content(&self, block: Block) -> bool {
        self.device.borrow().has_content(Lpn(block.0))
    }

    fn submit(&self, request: Request) -> Ticket {
        let range = read_range(&request);
        let Some(command) = command(request, self.mode, true) else {
            return Ticket::done(Ok(Box::default()));
        };
        let completion = self.device.borrow_mut().submit(&command).expect("no completion is held");
        Ticket::done(answer(completion.result, range, BLOCK_BYTES))
    }
}

/// A port that answers after a delay, not in the order of the requests. A request is dispatched, and its data are
/// taken, at once; a flush does not cover requests that are unanswered.
#[derive(Debug)]
pub struct LatePort {
    port: ModelPort,
    handle: Handle,
    /// Number of requests so far.
    requests: Cell<u64>,
    /// Number of the host's present operation, and the number of requests made before it.
    phase: Rc<Cell<u64>>,
    since: Cell<(u64, u64)>,
}

/// Shortest delay of an answer, largest random addition to it, and the addition for a few answers.
const ANSWER_NANOS_MIN: u64 = 20_000;
const ANSWER_NANOS_MORE: u64 = 100_000;
const ANSWER_NANOS_RARE: u64 = 400_000;
const RARE: u64 = 8;

impl LatePort {
    /// Makes a port onto the same device; time is that of the executor. The delay of an answer depends on `phase` and
    /// on the number of the request within the phase, so that an operation meets the same delays whatever other
    /// operations precede it.
    pub fn new(port: ModelPort, handle: Handle, phase: Rc<Cell<u64>>) -> Self {
        Self { port, handle, requests: Cell::new(0), since: Cell::new((phase.get(), 0)), phase }
    }

    /// Returns the delay of the answer to request `number`.
    fn delay(&self, number: u64) -> Duration {
        if self.since.get().0 != self.phase.get() {
            self.since.set((self.phase.get(), number));
        }
        let (phase, first) = self.since.get();
        let drawn = mix(phase ^ mix(number - first));
        let rare = if drawn.is_multiple_of(RARE) { ANSWER_NANOS_RARE } else { 0 };
        Duration::from_nanos(ANSWER_NANOS_MIN + rare + drawn / RARE % ANSWER_NANOS_MORE)
    }
}

impl BlockPort for LatePort {
    fn capacity_blocks(&self) -> u64 {
        self.port.blocks
    }

    fn share_blocks_max(&self) -> u32 {
        self.port.share_blocks_max()
    }

    fn has_content(&self, block: Block) -> bool {
        self.port.has_content(block)
    }

    fn submit(&self, request: Request) -> Ticket {
        let range = read_range(&request);
        let Some(mut command) = command(request, self.port.mode, true) else {
            return Ticket::done(Ok(Box::default()));
        };
        let number = self.requests.get();
        self.requests.set(number + 1);
        command.id = CommandId(number);
        let device = Rc::clone(&self.port.device);
        let completion = {
            let mut device = device.borrow_mut();
            device.hold_completions(true);
            let completion = device.submit(&command);
            device.hold_completions(false);
            completion
        };
        let (progress, ticket) = Ticket::new();
        progress.transferred();
        let (handle, at) = (self.handle.clone(), self.handle.now() + self.delay(number));
        self.handle.spawn(async move {
            handle.sleep_until(at).await;
            let completion = completion.or_else(|| device.borrow_mut().release(CommandId(number)));
            let completion = completion.expect("it was held");
            progress.complete(answer(completion.result, range, BLOCK_BYTES));
        });
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_contract::DeviceKind;
    use flashweir_core::Payload;
    use flashweir_core::command::Tag;
    use flashweir_fs::f2fs;
    use flashweir_fs::port::{Block, Selection, Write, block_on};
    use std::collections::BTreeSet;

    fn number(port: &ModelPort, block: u64) -> u64 {
        let answer = block_on(port.read(Block(block), 1).completed()).unwrap();
        answer[0].identity()
    }

    fn put(port: &ModelPort, block: u64, number: u64, tag: u64) {
        let write =
            Write { tags: [Tag(tag), Tag(0)], ..Write::new(Block(block), vec![Payload::Tag(number)]) };
        block_on(port.write(write).completed()).unwrap();
    }

    #[test]
    fn each_legal_state_wakes_up_once() {
        let port = ModelPort::new(DeviceKind::D1.policy(), 64, FlushMode::RangeFlush);
        put(&port, 1, 11, 7);
        put(&port, 2, 12, 8);
        let before = port.position();
        block_on(port.range_flush(Selection { ranges: Vec::new(), tags: vec![Tag(7)] }).completed()).unwrap();
        put(&port, 1, 21, 7);
        let seen = |upto: LogPos| {
            let mut seen = BTreeSet::new();
            let count = port.after_cut(upto, Exploration::default(), |woken| {
                seen.insert((number(&woken, 1), number(&woken, 2)));
                Ok::<_, ()>(())
            });
            assert_eq!(count, Ok((seen.len() as u64, true)));
            seen
        };
        assert_eq!(seen(before), BTreeSet::from([(0, 0), (11, 0), (0, 12), (11, 12)]));
        assert_eq!(seen(port.position()), BTreeSet::from([(11, 0), (11, 12), (21, 0), (21, 12)]));
        assert_eq!(number(&port, 1), 21, "the device itself goes on");
    }

    /// Whatever state a cut leaves before mkfs has ended, nothing panics; after its last flush every state is good.
    #[test]
    fn an_f2fs_is_good_in_every_state_after_its_flush() {
        let blocks = (64 << 20) / BLOCK_BYTES as u64;
        let port = ModelPort::new(DeviceKind::D1.policy(), blocks, FlushMode::RangeFlush);
        block_on(f2fs::mkfs(&port, &f2fs::Options::new(blocks))).unwrap();
        block_on(port.flush().completed()).unwrap();
        let end = port.position();
        let exploration = Exploration { random_draws: 40, ..Exploration::default() };
        let (mut good, mut bad) = (0, 0);
        for upto in (0..=end.0).step_by(7).chain([end.0]).map(LogPos) {
            port.after_cut(upto, Exploration { seed: upto.0.into(), ..exploration }, |woken| {
                match block_on(f2fs::check(Rc::new(woken))) {
                    Ok(report) if report.is_good() => good += 1,
                    Ok(_) | Err(_) if upto != end => bad += 1,
                    other => return Err(format!("{other:?}")),
                }
                Ok(())
            })
            .unwrap();
        }
        assert!(good > 0 && bad > 10, "{good} good, {bad} not");
    }
}
