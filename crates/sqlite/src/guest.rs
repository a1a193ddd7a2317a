//! The thread of SQLite, and its rendezvous with the world's thread.
//!
//! Place in the data flow: [`crate::interface`] turns what SQLite asks for into a [`Call`]; [`Client::call`] sends it and blocks.
//! A task of the world ([`crate::host`]) blocks in [`Link::next`] while SQLite works, does the call in virtual time, and answers.
//!
//! Invariants: either the world works or one SQLite, never both: virtual time stands still while SQLite works. When the world
//! is gone (a power cut drops the task) each call fails at once, so SQLite gives up, and the link waits for the end of its
//! thread. SQLite's random numbers between two calls are a function of the seed and of how many calls there were.
#![forbid(unsafe_code)]

use crate::locks::{Locks, Owner, Region};
use flashweir_core::{Duration, Instant, RandomStream};
use flashweir_fs::vfs::Errno;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Calls of SQLite to the world.
#[derive(Debug)]
pub(crate) enum Call {
    Open {
        path: String,
        opening: Opening,
    },
    Close {
        file: Owner,
    },
    Read {
        file: Owner,
        offset: u64,
        len: usize,
    },
    Write {
        file: Owner,
        offset: u64,
        bytes: Vec<u8>,
    },
    Truncate {
        file: Owner,
        size: u64,
    },
    Sync {
        file: Owner,
    },
    /// What is written to the file from here on is a set, until it is released or forgotten.
    BeginSet {
        file: Owner,
    },
    ReleaseSet {
        file: Owner,
    },
    ForgetSet {
        file: Owner,
    },
    Size {
        file: Owner,
    },
    Delete {
        path: String,
        syncs_dir: bool,
    },
    Exists {
        path: String,
    },
    Sleep(Duration),
    Compute(Duration),
    Mark(u64),
}

/// Kind of a file that SQLite opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Database,
    Journal,
    Wal,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) kind: FileKind,
    pub(crate) creates: bool,
    pub(crate) is_exclusive: bool,
    pub(crate) writes: bool,
}

/// Answer of the world.
#[derive(Debug)]
pub(crate) enum Value {
    Nothing,
    File(Owner),
    Bytes(Vec<u8>),
    Number(u64),
}

/// An answer with the virtual time of the world.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) now: Instant,
    pub(crate) result: Result<Value, Errno>,
}

/// Held by the running SQLite among those of all worlds in this process: they share one source of random numbers.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The world of this thread's SQLite.
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// An open file, as far as SQLite's thread has to know it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) path: String,
    /// It goes when it is closed.
    pub(crate) is_temporary: bool,
    /// Memory that SQLite has pointers to.
    pub(crate) regions: BTreeMap<usize, Region>,
}

/// SQLite's side of the rendezvous.
#[derive(Debug)]
pub(crate) struct Client {
    calls: Sender<Call>,
    answers: Receiver<Answer>,
    now: Instant,
    /// Civil time at which virtual time is zero, in milliseconds since 1970.
    epoch_ms: i64,
    random: RandomStream,
    seed_random: fn(u64),
    turn: Option<MutexGuard<'static, ()>>,
    pub(crate) locks: Locks,
    pub(crate) files: BTreeMap<Owner, OpenFile>,
    pub(crate) temporary: u64,
    /// Whether SQLite may write sets.
    pub(crate) has_sets: bool,
}

impl Client {
    /// Asks the world, and waits. `EIO` when it is gone.
    pub(crate) fn call(&mut self, call: Call) -> Result<Value, Errno> {
        self.turn = None;
        let answer = self.calls.send(call).ok().and_then(|()| self.answers.recv().ok());
        self.begin_turn();
        let Some(answer) = answer else { return Err(Errno::EIO) };
        self.now = answer.now;
        answer.result
    }

    /// SQLite works from here on, with random numbers of its world.
    fn begin_turn(&mut self) {
        self.turn = Some(turn());
        (self.seed_random)(self.random.next_u64());
    }

    /// Civil time in milliseconds since 1970.
    pub(crate) fn civil_ms(&self) -> i64 {
        self.epoch_ms + (self.now.as_nanos() / 1_000_000) as i64
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.random.next_u64()
    }
}

/// Does something with this thread's client; `None` on a thread that has none.
pub(crate) fn with_client<T>(work: impl FnOnce(&mut Client) -> T) -> Option<T> {
    CLIENT.with(|client| client.borrow_mut().as_mut().map(work))
}

/// Whether a file that is not empty is there.
pub(crate) fn exists(path: &str) -> bool {
    let answer = with_client(|client| client.call(Call::Exists { path: path.to_owned() }));
    matches!(answer, Some(Ok(Value::Number(1))))
}

/// Virtual time, for work on the thread of SQLite.
#[derive(Debug)]
pub struct Clock(PhantomData<*const ()>);

impl Clock {
    /// The instant; it moves while SQLite waits for the world.
    pub fn now(&self) -> Instant {
        with_client(|client| client.now).unwrap_or(Instant::ZERO)
    }

    /// The program computes for so long, on one of the CPUs of the host.
    pub fn compute(&self, span: Duration) {
        if span != Duration::ZERO {
            // Without a world there is no time either.
            let _ = with_client(|client| client.call(Call::Compute(span)));
        }
    }

    /// Tells the world how far the work has come; this takes no time.
    pub fn mark(&self, number: u64) {
        let _ = with_client(|client| client.call(Call::Mark(number)));
    }
}

/// The world's side of the rendezvous.
#[derive(Debug)]
pub(crate) struct Link<T> {
    ends: Option<(Receiver<Call>, Sender<Answer>)>,
    thread: Option<JoinHandle<T>>,
}

/// Arguments with which a thread of SQLite begins.
pub(crate) struct Beginning {
    pub(crate) now: Instant,
    pub(crate) epoch_seconds: i64,
    pub(crate) random: RandomStream,
    pub(crate) locks: Locks,
    /// Makes the interface known to SQLite; may be called again.
    pub(crate) register: fn(),
    /// Seeds SQLite's own random numbers.
    pub(crate) seed_random: fn(u64),
    /// Whether SQLite may write sets.
    pub(crate) has_sets: bool,
}

impl<T: Send + 'static> Link<T> {
    /// Begins the work on a thread of its own. The world has to wait in [`Self::next`] at once.
    pub(crate) fn begin(beginning: Beginning, work: impl FnOnce(&Clock) -> T + Send + 'static) -> Self {
        let (calls, world_calls) = channel();
        let (world_answers, answers) = channel();
        let thread = std::thread::Builder::new().name("sqlite".into()).spawn(move || {
            let Beginning { now, epoch_seconds, random, locks, register, seed_random, has_sets } = beginning;
            register();
            let mut client = Client {
                calls,
                answers,
                now,
                epoch_ms: epoch_seconds * 1000,
                random,
                seed_random,
                turn: None,
                locks,
                files: BTreeMap::new(),
                temporary: 0,
                has_sets,
            };
            client.begin_turn();
            CLIENT.set(Some(client));
            let result = work(&Clock(PhantomData));
            // The channels close, and the turn ends.
            CLIENT.set(None);
            result
        });
        let thread = thread.expect("the host has room for a thread");
        Self { ends: Some((world_calls, world_answers)), thread: Some(thread) }
    }

    /// Waits while SQLite works: for its next call, or for the end of the work.
    pub(crate) fn next(&mut self) -> Result<Call, T> {
        if let Some((calls, _)) = &self.ends
            && let Ok(call) = calls.recv()
        {
            return Ok(call);
        }
        self.ends = None;
        let thread = self.thread.take().expect("the work ends once");
        Err(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Answers the call.
    pub(crate) fn answer(&self, answer: Answer) {
        if let Some((_, answers)) = &self.ends {
            // A thread that has gone is seen at the next call.
            let _ = answers.send(answer);
        }
    }
}

impl<T> Drop for Link<T> {
    /// The world is gone: closed channels tell SQLite, which ends.
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // What it still gives, or a panic of it, belongs to the world that is gone.
            let _ = thread.join();
        }
    }
}

/// One kind of call of SQLite: on which file or for what, and what it became.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Phase {
    /// Such as `journal`.
    pub what: &'static str,
    /// Such as `fdatasync`.
    pub call: &'static str,
}

/// How often, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseStats {
    /// Calls.
    pub calls: u64,
    /// Their time together, in virtual nanoseconds.
    pub total_ns: u64,
    /// The longest one.
    pub max_ns: u64,
}

/// The calls of a SQLite.
pub type Phases = BTreeMap<Phase, PhaseStats>;
