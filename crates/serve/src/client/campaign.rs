//! Power cuts of a running server under load, each judged by the contract.
//!
//! A boot: connect, run a load of random character, ask the control socket for a power cut at a random time, see the connections end or
//! requests fail, connect again, read the whole region, ask the oracle. What is there then is what the next boot begins with.
//!
//! Invariant: a reply counts only if it belongs to the time before the cut. Where connections are closed, a reply
//! that arrived was sent before. Where requests fail instead, a request may reach the server when the power is back
//! already: it was done then, on whatever the cut had left, so from the request for the cut on nothing is submitted any more and no reply
//! is a promise. Such a boot is judged at the grain of sectors, and flushed before its contents count as durable.

use super::connection::{Client, ClientError, wait_for};
use super::record::{Failure, FailureKind, Record};
use super::replies::Ask;
use super::stamp::stamp;
use super::workload::Workload;
use crate::clock::{Clock, Speed};
use crate::control::{self, Ask as Question, CutDone, CutOrder, Reply as Answer};
use crate::nbd::wire::{Errno, command};
use flashweir_contract::DeviceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// A running server and what is expected of it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Unix socket of the server.
    pub socket: PathBuf,
    /// Control socket of the server whose power is cut.
    pub control: PathBuf,
    /// Name of the disk's export.
    pub export: String,
    /// Kind of that disk, which decides what it promises.
    pub kind: DeviceKind,
    /// Longest time for which the server may be silent.
    pub patience: Duration,
    /// What a power cut takes can be drawn by a seed.
    pub draws: bool,
}

/// Parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all decisions of the client.
    pub seed: u64,
    /// Number of power cuts.
    pub cuts: u32,
    /// Bytes of the disk that are used, whole mapping units.
    pub region: Range<u64>,
    /// Judge at the grain of sectors of 512 bytes, and let requests in flight share mapping units; otherwise mapping units are the
    /// grain.
    pub blocks: bool,
    /// Most requests before a cut.
    pub requests_max: u64,
    /// Fraction of the cuts that answer EIO.
    pub eio: f64,
}

/// Counts of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Power cuts, each followed by a judgement.
    pub cuts: u64,
    /// Number of these cuts that answered EIO instead of closing connections.
    pub eio: u64,
    /// Cuts whose outcome was drawn by a seed.
    pub drawn: u64,
    /// Judgements after two cuts, the second one before the power was back or soon after.
    pub twice: u64,
    /// Requests that were submitted.
    pub requests: u64,
    /// Requests that were answered before the cut.
    pub answered: u64,
    /// Writes, trims, zeroes and flushes that were in flight at a cut.
    pub in_flight: u64,
    /// Operations that the contract promised, and that were there.
    pub promised: u64,
    /// Units that legally did not show the newest write.
    pub older: u64,
    /// Units that were compared.
    pub units: u64,
}

impl Counts {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.eio += other.eio;
        self.drawn += other.drawn;
        self.twice += other.twice;
        self.requests += other.requests;
        self.answered += other.answered;
        self.in_flight += other.in_flight;
        self.promised += other.promised;
        self.older += other.older;
        self.units += other.units;
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(FailureKind::Server, error.to_string())
    }
}

/// A thread that asks for a power cut while the load is running.
#[derive(Debug)]
pub(super) struct Cutter(JoinHandle<Result<Vec<CutDone>, String>>);

impl Cutter {
    pub(super) fn ask(target: &Target, order: CutOrder) -> Self {
        let control = target.control.clone();
        Self(std::thread::spawn(move || match control::ask(&control, &Question::Cut(order)) {
            Ok(Answer::Cut(done)) => Ok(done),
            Ok(other) => Err(format!("a cut was answered with {other:?}")),
            Err(error) => Err(error.to_string()),
        }))
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn finish(self) -> Result<Vec<CutDone>, Failure> {
        let done = self.0.join().map_err(|_| "the thread that asked for it ended".to_owned());
        done.and_then(|done| done)
            .map_err(|why| Failure::new(FailureKind::Server, format!("weir cut: {why}")))
    }
}

/// Cuts the power of `target` as often as planned.
///
/// # Errors
/// The contract was broken, or the server does not answer.
pub fn run(target: &Target, plan: &Plan) -> Result<Counts, Failure> {
    let mut campaign = Campaign::begin(target, plan)?;
    for cut in 0..plan.cuts {
        campaign.boot().map_err(|failure| {
            let what = format!("{} (seed {}, cut {cut}, {:?})", failure.what, plan.seed, target.kind);
            Failure { what, ..failure }
        })?;
    }
    Ok(campaign.counts)
}

/// Reads a region. Waits while a device whose power is off answers with errors.
pub(super) fn read_region(
    target: &Target,
    region: &Range<u64>,
    structured: bool,
) -> Result<Vec<u8>, Failure> {
    let clock = Clock::new(Speed::Max);
    loop {
        let mut client = Client::connect(&target.socket, &target.export, structured, target.patience)?;
        match client.read_range(region.start, region.end - region.start, target.patience)? {
            Ok(now) => return Ok(now),
            Err(errno) if clock.wall() > target.patience => {
                let what = format!("bytes {region:?} cannot be read: error {errno}");
                return Err(Failure::new(FailureKind::Unreadable, what));
            }
            Err(_) => wait_for(&[], Duration::from_millis(5)).map_err(ClientError::from)?,
        }
    }
}

struct Campaign<'a> {
    target: &'a Target,
    plan: &'a Plan,
    grain: u64,
    record: Record,
    workload: Workload,
    counts: Counts,
}

impl<'a> Campaign<'a> {
    fn begin(target: &'a Target, plan: &'a Plan) -> Result<Self, Failure> {
        let client = Client::connect(&target.socket, &target.export, true, target.patience)?;
        let [least, unit, _] = client.facts().blocks.map(u64::from);
        drop(client);
        let grain = if plan.blocks { super::stamp::BLOCK as u64 } else { unit };
        let now = read_region(target, &plan.region, true)?;
        Ok(Self {
            target,
            plan,
            grain,
            record: Record::new(target.kind, plan.region.clone(), unit, grain, now),
            workload: Workload::new(plan.seed, plan.region.clone(), unit).in_blocks_of(least),
            counts: Counts::default(),
        })
    }

    fn order(&mut self) -> CutOrder {
        let random = self.workload.random();
        let seed = random.chance(0.5).then(|| random.next_u64()).filter(|_| self.target.draws);
        let eio = random.chance(self.plan.eio);
        let off_ns = if random.chance(0.5) { random.below(3_000_000) } else { 0 };
        CutOrder { export: Some(self.target.export.clone()), seed, eio, off_ns }
    }

    fn boot(&mut self) -> Result<(), Failure> {
        let order = self.order();
        if order.eio && !self.plan.blocks {
            let now = self.record.shown().to_vec();
            self.record.restart(now, super::stamp::BLOCK as u64);
        }
        self.load(&order)?;
        if self.workload.random().chance(0.1) {
            let again = CutOrder { eio: false, ..self.order() };
            Cutter::ask(self.target, again).finish()?;
            self.counts.twice += 1;
        }
        if order.eio {
            self.flush()?;
        }
        let structured = self.workload.random().chance(0.5);
        let now = read_region(self.target, &self.plan.region, structured)?;
        let judged = self.record.judge(&now)?;
        self.counts.cuts += 1;
        self.counts.eio += u64::from(order.eio);
        self.counts.drawn += u64::from(order.seed.is_some());
        self.counts.in_flight += judged.in_flight;
        self.counts.promised += judged.promised;
        self.counts.older += judged.older;
        self.counts.units += judged.units;
        self.record.restart(now, self.grain);
        Ok(())
    }

    /// Makes durable what was done after the power came back.
    fn flush(&mut self) -> Result<(), Failure> {
        let clock = Clock::new(Speed::Max);
        let Target { socket, export, patience, .. } = self.target;
        let mut client = Client::connect(socket, export, false, *patience)?;
        let ask = Ask { command: command::FLUSH, ..Ask::default() };
        while client.call(ask.clone(), &[], *patience)?.result.is_err() {
            if clock.wall() > *patience {
                return Err(Failure::new(FailureKind::Refused, "no flush succeeds after a power cut"));
            }
            wait_for(&[], Duration::from_millis(5)).map_err(ClientError::from)?;
        }
        Ok(())
    }

    /// Loads the server until it has lost its power.
    fn load(&mut self, order: &CutOrder) -> Result<(), Failure> {
        let mood = self.workload.mood();
        let count = 1 + self.workload.random().below(3);
        let mut clients = Vec::new();
        for _ in 0..count {
            let structured = self.workload.random().chance(0.5);
            clients.push(Client::connect(
                &self.target.socket,
                &self.target.export,
                structured,
                self.target.patience,
            )?);
        }
        let mut names = vec![BTreeMap::new(); clients.len()];
        let most = 1 + self.workload.random().below(self.plan.requests_max);
        let cut_after = self.workload.random().below(most);
        let pause = Duration::from_micros(self.workload.random().below(2_000));
        let clock = Clock::new(Speed::Max);
        let (mut answered, mut cut_at, mut cutter) = (0, None, None::<Cutter>);
        let mut moved = clock.wall();
        loop {
            // Nothing is submitted that could reach the device after a cut that leaves connections open.
            if cutter.is_none() || !order.eio {
                for _ in 0..mood.depth {
                    if self.record.in_flight() >= mood.depth {
                        break;
                    }
                    let ask = self.workload.next(&mood);
                    if !self.record.is_free(&ask) {
                        continue;
                    }
                    let mut data = Vec::new();
                    if ask.command == command::WRITE {
                        data.resize(ask.length as usize, 0);
                        stamp(&mut data, ask.offset / super::stamp::BLOCK as u64, self.record.next_id());
                    }
                    let at = self.workload.random().below(count) as usize;
                    let id = self.record.submit(&ask, &data);
                    self.counts.requests += 1;
                    names[at].insert(clients[at].send(ask, &data), id);
                }
            }
            for (client, names) in clients.iter_mut().zip(&mut names) {
                client.pump();
                while let Some(reply) = client.reply()? {
                    moved = clock.wall();
                    let id = names.remove(&reply.cookie).expect("replies are to requests in flight");
                    let may_fail = reply.result.is_ok() || reply.result == Err(Errno::Io as u32);
                    if cutter.is_some() && order.eio && may_fail {
                        self.record.fail(id);
                    } else {
                        self.record.complete(id, &reply.result)?;
                        answered += 1;
                    }
                }
            }
            if answered >= cut_after && cut_at.is_none() {
                cut_at = Some(clock.wall() + pause);
            }
            if cut_at.is_some_and(|at| clock.wall() >= at) && cutter.is_none() {
                cutter = Some(Cutter::ask(self.target, order.clone()));
            }
            let gone = clients.iter().filter(|client| client.gone().is_some()).count();
            match &cutter {
                None if gone > 0 => {
                    let why = clients.iter().find_map(Client::gone).unwrap_or_default();
                    return Err(ClientError::Gone(why.to_owned()).into());
                }
                Some(_) if gone == clients.len() && !order.eio => break,
                Some(cutter) if cutter.is_done() && order.eio && self.record.in_flight() == 0 => break,
                _ if clock.wall() > moved + self.target.patience => {
                    return Err(ClientError::Silent(self.target.patience).into());
                }
                _ => {}
            }
            let left = cut_at.map_or(Duration::from_millis(20), |at| at.saturating_sub(clock.wall()));
            let left = if cutter.is_some() { Duration::from_millis(1) } else { left };
            wait_for(&clients.iter().collect::<Vec<_>>(), left).map_err(ClientError::from)?;
        }
        self.counts.answered += answered;
        cutter.expect("the power was cut").finish()?;
        Ok(())
    }
}
