//! Power cuts below SQLite: its promises are checked on a file system on our device, whose power is cut between and in the operations of
//! the medium.
//!
//! Place in the data flow: a [`Case`] executes its transactions once, on a volume that has been in use; after each turn of the stack
//! [`Cuts`] collects the media that a power cut may leave. Each medium that is chosen is recovered by the device, mounted, and opened by
//! SQLite, whose integrity check has to pass. [`explore`] does that for many cases.
//!
//! What is judged: the rows are exactly those after some number of whole transactions. That number is not less than the number of reported
//! commits, except for those that [`Plan::losses_max`] allows to be lost, and not more than had begun. Some databases are used further, and
//! have to be right after that, too.
//!
//! Invariants: the answer is a function of the configuration, whatever the number of threads; databases on volumes that read alike
//! are opened once.
//!
//! Deliberately absent: cuts of recoveries, which the laboratory of file systems makes.
#![forbid(unsafe_code)]

use crate::host::{Guest, HostOptions};
use crate::order::{JournalMode, OrderMode, Plan, PlantedBug};
use crate::workload::{
    self, BEGUN, Changes, ENDED, Mix, Rows, SqliteError, Statements, WorkloadOptions, body,
};
use flashweir_core::Duration;
use flashweir_core::random::{RandomStream, mix};
use flashweir_crash::files::below;
use flashweir_crash::files::cuts::{Cuts, image_of};
use flashweir_crash::files::setup::Setup;
use flashweir_crash::files::volume::{Base, mount};
use flashweir_crash::files::{Format, On};
use flashweir_fs::ext4::Journaling;
use flashweir_fs::vfs::Creds;
use flashweir_sim::stack::{FlushMode, Stack};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Volumes on which cases begin, and devices below them: kinds of them take turns.
const BASES: u64 = 6;
/// Turns of one case at most.
const TURNS_MAX: u32 = 20_000_000;
/// One database in so many is used on.
const EXERCISE_EVERY: u64 = 4;
/// Transactions that it then does.
const EXERCISE: u64 = 4;

/// Configuration of an exploration.
#[derive(Clone, Debug)]
pub struct CrashConfig {
    /// The file system. Barriers need one with order in the place of waiting.
    pub format: Format,
    /// The disk below it; the model devices do not work here.
    pub on: On,
    /// Treatment of flushes by the host.
    pub mode: FlushMode,
    /// How SQLite keeps its promises, and perhaps a bug.
    pub plan: Plan,
    /// Cases at most.
    pub count: Option<u64>,
    /// Cuts to make, at least, if there are so many cases.
    pub cuts: Option<u64>,
    /// Media of one case at most.
    pub states_each: usize,
    /// Transactions of a case.
    pub transactions: u64,
    /// The seed of the first case; the others follow.
    pub seed: u64,
    /// Cases at once.
    pub jobs: usize,
    /// Stop after this many violations.
    pub violations_max: usize,
}

impl CrashConfig {
    /// Whether the file system can do what the plan wants of it. Errors: why not.
    pub fn check(&self) -> Result<(), String> {
        if !self.on.is_simulated() {
            return Err(format!("on {}: expected {}", self.on.name(), On::SIMULATED.join(", ")));
        }
        let refused = |why| format!("on {} with format {}: {why}", self.on.name(), self.format.name());
        self.on.check(self.format).map_err(refused)?;
        let Format { journaling, shares, .. } = self.format;
        let has_sets = shares || self.format.is_ext4() && journaling == Journaling::Journal;
        let checked = self.plan.check(self.format.is_dual(), has_sets);
        checked.map_err(|why| format!("{why}, not {}", self.format.name()))
    }
}

/// Planted bugs, each where it has to be found: with which journal, which syncs as barriers, and which file system.
pub const MUTANTS: [(PlantedBug, JournalMode, OrderMode, Format); 8] = [
    (PlantedBug::NoJournalSync, JournalMode::Persist, OrderMode::None, Format::EXT4),
    (PlantedBug::NoJournalSync, JournalMode::Persist, OrderMode::All, Format::EXT4_DUAL),
    (PlantedBug::NoDatabaseSync, JournalMode::Delete, OrderMode::None, Format::EXT4),
    (PlantedBug::NoDatabaseSync, JournalMode::Wal, OrderMode::Durable, Format::EXT4_DUAL),
    (PlantedBug::LazyCommit, JournalMode::Wal, OrderMode::Durable, Format::EXT4_DUAL),
    (PlantedBug::DataBarriers, JournalMode::Truncate, OrderMode::Durable, Format::EXT4_DUAL),
    (PlantedBug::NoDatabaseSync, JournalMode::BatchAtomic, OrderMode::None, Format::EXT4_SDJ),
    (PlantedBug::LooseSet, JournalMode::BatchAtomic, OrderMode::None, Format::F2FS_SSC),
];

/// Counts of the exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Cases.
    pub cases: u64,
    /// Transactions of these.
    pub transactions: u64,
    /// Situations in which the power may fail.
    pub cuts: u64,
    /// States of the medium that these may leave.
    pub allowed: u64,
    /// Cuts that were made: media brought back.
    pub made: u64,
    /// Databases opened, each on a volume that reads unlike all others of its case.
    pub opened: u64,
    /// Databases that had to be rolled back, or whose log had to be read: a journal or log that is not empty was there.
    pub recovered: u64,
    /// Databases used on.
    pub exercised: u64,
    /// Verdicts.
    pub judged: u64,
    /// Most transactions that a cut took back although they were committed.
    pub lost_max: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        let Self { cases, transactions, cuts, allowed, made, opened, recovered, exercised, judged, lost_max } =
            *other;
        self.cases += cases;
        self.transactions += transactions;
        self.cuts += cuts;
        self.allowed += allowed;
        self.made += made;
        self.opened += opened;
        self.recovered += recovered;
        self.exercised += exercised;
        self.judged += judged;
        self.lost_max = self.lost_max.max(lost_max);
    }
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// In one line.
    pub what: String,
    /// The seed of the case, which shows it again.
    pub seed: u64,
    /// The turn after which the power failed; none if nothing had to fail for it.
    pub cut: Option<u32>,
}

/// Result of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashReport {
    /// Counts of the exploration.
    pub totals: Counts,
    /// Violations that were found.
    pub violations: Vec<Violation>,
}

/// One case.
#[derive(Clone, Debug)]
struct Case {
    base: Arc<Base>,
    on: On,
    mode: FlushMode,
    plan: Plan,
    options: WorkloadOptions,
    seed: u64,
    states_max: usize,
}

/// Explores cases. `progress` hears the counts after each one and says whether to go on.
///
/// # Errors
/// The configuration cannot be; a volume cannot be made.
pub fn explore(
    config: &CrashConfig,
    progress: &mut dyn FnMut(&CrashReport) -> bool,
) -> Result<CrashReport, String> {
    config.check()?;
    let bases: Mutex<BTreeMap<u64, Arc<Base>>> = Mutex::default();
    // Where no transaction waits for durability the larger buffer takes all of a case, so that cuts show nothing.
    let is_durable = config.plan.losses_max().is_some();
    let base_of = |seed: u64| {
        let kind = if is_durable { seed % BASES } else { 2 * (seed % (BASES / 2)) };
        let mut bases = bases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = bases.get(&kind) {
            return Ok(Arc::clone(base));
        }
        let base = Arc::new(Base::make(config.format, kind)?);
        bases.insert(kind, Arc::clone(&base));
        Ok::<_, String>(base)
    };
    let mut report = CrashReport::default();
    let mut next = 0;
    while config.count.is_none_or(|count| next < count) {
        let wave = (config.jobs.max(1) as u64).min(config.count.map_or(u64::MAX, |count| count - next));
        let done: Vec<Result<_, String>> = std::thread::scope(|scope| {
            let cases: Vec<_> = (next..next + wave)
                .map(|number| {
                    let base_of = &base_of;
                    scope.spawn(move || {
                        let seed = config.seed.wrapping_add(number);
                        Ok(Case::new(config, base_of(seed)?, seed).explore())
                    })
                })
                .collect();
            cases
                .into_iter()
                .map(|case| case.join().unwrap_or_else(|_| Err("a case panicked".into())))
                .collect()
        });
        next += wave;
        for result in done {
            let (counts, violation) = result?;
            report.totals.add(&counts);
            report.violations.extend(violation);
            let is_enough = config.cuts.is_some_and(|cuts| report.totals.made >= cuts)
                || report.violations.len() >= config.violations_max;
            if !progress(&report) || is_enough {
                return Ok(report);
            }
        }
    }
    Ok(report)
}

/// Progress over time: the turn after which the work had come so far ([`crate::Clock::mark`]).
#[derive(Debug, Default)]
struct History(Vec<(u32, u64)>);

impl History {
    /// The last mark that was there after a turn.
    fn mark(&self, turn: u32) -> u64 {
        let at = self.0.partition_point(|(of, _)| *of <= turn);
        at.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// Transactions committed then.
    fn committed(&self, turn: u32) -> u64 {
        self.mark(turn) / 2
    }

    /// Transactions begun.
    fn begun(&self, turn: u32) -> u64 {
        self.mark(turn).div_ceil(2)
    }
}

/// Contents of a database, as SQLite finds them.
#[derive(Clone, Debug)]
struct Found {
    rows: Rows,
    /// A journal or log was there before.
    is_recovered: bool,
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    format!("an assertion: {text}")
}

/// Turns an assertion into what is wrong.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(text_of(panic.as_ref())))
}

impl Case {
    fn new(config: &CrashConfig, base: Arc<Base>, seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "case of sqlite");
        let mut one_of = |values: &[u32]| values[random.below(values.len() as u64) as usize];
        let options = WorkloadOptions {
            mix: Mix::Mixed,
            transactions: config.transactions,
            ramp: Duration::ZERO,
            runtime: None,
            rows: u64::from(one_of(&[0, 10, 60])),
            // Some rows need several pages.
            row_bytes: one_of(&[40, 200, 900, 6_000]),
            page_bytes: one_of(&[1_024, 4_096, 4_096, 8_192]),
            // Several checkpoints in a case.
            checkpoint_pages: one_of(&[10, 25, 1_000]),
            compute: Duration::ZERO,
        };
        Self {
            base,
            on: config.on,
            mode: config.mode,
            plan: config.plan,
            options,
            seed,
            states_max: config.states_each,
        }
    }

    fn explore(&self) -> (Counts, Option<Violation>) {
        let mut counts = Counts { cases: 1, transactions: self.options.transactions, ..Counts::default() };
        let violation =
            self.judge(&mut counts).err().map(|(cut, what)| Violation { what, seed: self.seed, cut });
        (counts, violation)
    }

    fn judge(&self, counts: &mut Counts) -> Result<(), (Option<u32>, String)> {
        let (history, cuts, end) = caught(|| self.drive()).map_err(|what| (None, what))?;
        (counts.cuts, counts.allowed) = (cuts.situations(), cuts.allowed());
        let mut states = BTreeMap::new();
        let mut changes = Changes::new(&self.options, self.seed);
        states.insert(changes.rows().clone(), 0);
        for number in 1..=self.options.transactions {
            changes.step();
            states.insert(changes.rows().clone(), number);
        }
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for (turns, media) in cuts.into_media(end) {
            let wrong = |what| (Some(turns.start), what);
            counts.made += 1;
            let woken = caught(|| Ok(below::wake(&self.base, self.on, self.mode, None, media)));
            let stack = woken.map_err(wrong)?;
            let image = image_of(&self.base, &stack);
            let there = match seen.get(&image) {
                Some(there) => *there,
                None => {
                    let is_used = mix(image).is_multiple_of(EXERCISE_EVERY);
                    let (found, there) = caught(|| self.open(stack, &states, is_used)).map_err(wrong)?;
                    counts.opened += 1;
                    counts.exercised += u64::from(is_used);
                    counts.recovered += u64::from(found.is_recovered);
                    seen.insert(image, there);
                    there
                }
            };
            // The same can be seen after each of these turns, so the strictest promise counts.
            let (committed, begun) = (history.committed(turns.end - 1), history.begun(turns.start));
            counts.judged += 1;
            let lost = committed.saturating_sub(there);
            counts.lost_max = counts.lost_max.max(lost);
            if self.plan.losses_max().is_some_and(|most| lost > most) {
                return Err(wrong(format!("{committed} transactions were committed, and {there} are there")));
            }
            if there > begun {
                return Err(wrong(format!("{begun} transactions had begun, and {there} are there")));
            }
        }
        Ok(())
    }

    /// How the volume is mounted.
    fn setup(&self) -> Setup {
        Setup::new(self.base.format, self.mode, self.base.seed)
    }

    /// Does the transactions. Gives what happened when, the cuts, and the last turn.
    fn drive(&self) -> Result<(History, Cuts, u32), String> {
        let mut stack = below::begin(&self.base, self.on, self.mode, None);
        let (port, handle, setup) = (Rc::new(stack.port()), stack.handle(), self.setup());
        let host = HostOptions { plan: self.plan, seed: self.seed, epoch_seconds: 0 };
        let (plan, options, seed) = (self.plan, self.options, self.seed);
        let guest = stack.block_on(async move {
            let vfs = mount(port, handle.clone(), setup).await?;
            let guest = Guest::new(vfs.process(Creds::ROOT), handle, host);
            let made = guest.run(move |_| workload::prepare(&plan, &options, seed)).await;
            made.map_err(|error| error.to_string())?;
            vfs.sync_all().await.map_err(|errno| errno.to_string())?;
            Ok::<_, String>(guest)
        });
        let guest = guest.ok_or("the preparation waits for ever")??;
        let (turn, history) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(History::default())));
        let (now, told) = (Rc::clone(&turn), Rc::clone(&history));
        guest.on_mark(move |mark| match mark {
            BEGUN | ENDED => {}
            mark => told.borrow_mut().0.push((now.get(), mark)),
        });
        let interval = Duration::from_secs(1);
        let running = stack.spawn_for(async move {
            guest.run(move |clock| workload::work(clock, &plan, &options, seed, interval).map(drop)).await
        });
        let mut cuts = Cuts::new(self.states_max);
        cuts.look(0, &stack, false);
        // To the end of closing the database: the last checkpoint of a log, and its deletion.
        loop {
            turn.set(turn.get() + 1);
            if turn.get() == TURNS_MAX || !stack.turn() {
                return Err("SQLite waits for ever".into());
            }
            let result = running.take();
            cuts.look(turn.get(), &stack, result.is_some());
            if let Some(result) = result {
                result.map_err(|SqliteError(what)| what)?;
                break;
            }
        }
        drop(stack);
        Ok((history.take(), cuts, turn.get()))
    }

    /// Mounts the volume of a disk, has SQLite check the database, and perhaps use it. Returns its contents, and the number of
    /// transactions after which the database was in that state.
    fn open(
        &self,
        mut stack: Stack,
        states: &BTreeMap<Rows, u64>,
        is_used: bool,
    ) -> Result<(Found, u64), String> {
        let (port, handle, setup) = (Rc::new(stack.port()), stack.handle(), self.setup());
        let plan = Plan { planted: None, ..self.plan };
        let host = HostOptions { plan, seed: self.seed ^ 1 << 32, epoch_seconds: 0 };
        let (options, seed) = (self.options, self.seed);
        let guest = stack.block_on(async move {
            let vfs = mount(port, handle.clone(), setup).await?;
            Ok::<_, String>(Guest::new(vfs.process(Creds::ROOT), handle, host))
        });
        let guest = guest.ok_or("the mount waits for ever")?.map_err(|what| format!("mount: {what}"))?;
        let other = guest.clone();
        let found = stack.block_on(async move { guest.run(move |_| look(&plan, &options)).await });
        let found = found.ok_or("SQLite waits for ever")?.map_err(|error| error.to_string())?;
        let there = *states.get(&found.rows).ok_or_else(|| {
            let newest = found.rows.iter().map(|(_, writer)| *writer).max().unwrap_or(0);
            format!("{} rows, the newest of transaction {newest}, never were together", found.rows.len())
        })?;
        if is_used {
            let used =
                stack.block_on(async move { other.run(move |_| go_on(&plan, &options, seed, there)).await });
            used.ok_or("SQLite waits for ever after recovery")?
                .map_err(|error| format!("afterwards: {error}"))?;
        }
        Ok((found, there))
    }
}

/// Opens a database, which recovers it, and reads everything.
fn look(plan: &Plan, options: &WorkloadOptions) -> Result<Found, SqliteError> {
    let is_recovered = crate::guest::exists(&format!("{}-journal", workload::DATABASE))
        || crate::guest::exists(&format!("{}-wal", workload::DATABASE));
    let db = workload::open(plan, options)?;
    let rows = checked(&db, options)?;
    db.close().map_err(|(_, error)| error)?;
    Ok(Found { rows, is_recovered })
}

/// The rows of a good database. Errors: what is wrong with it.
fn checked(db: &rusqlite::Connection, options: &WorkloadOptions) -> Result<Rows, SqliteError> {
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(SqliteError(format!("integrity_check: {}", check.lines().next().unwrap_or_default())));
    }
    let mut rows = db.prepare("SELECT id, writer, body FROM list ORDER BY id")?;
    let mut found = Rows::new();
    let mut all = rows.query([])?;
    while let Some(row) = all.next()? {
        let (id, writer): (i64, i64) = (row.get(0)?, row.get(1)?);
        let bytes: Vec<u8> = row.get(2)?;
        if bytes != body(id, writer as u64, options.row_bytes) {
            return Err(SqliteError(format!("row {id} has not what transaction {writer} wrote")));
        }
        found.push((id, writer as u64));
    }
    Ok(found)
}

/// Does the transactions that would have come next.
fn go_on(plan: &Plan, options: &WorkloadOptions, seed: u64, there: u64) -> Result<(), SqliteError> {
    let mut changes = Changes::new(options, seed);
    for _ in 0..there {
        changes.step();
    }
    let db = workload::open(plan, options)?;
    {
        let mut statements = Statements::new(&db, options)?;
        for _ in 0..EXERCISE {
            let change = changes.step();
            statements.apply(change, changes.done())?;
        }
    }
    db.close().map_err(|(_, error)| error)?;
    let db = workload::open(plan, options)?;
    match checked(&db, options)? == *changes.rows() {
        true => Ok(()),
        false => Err(SqliteError("the rows are not those of the transactions".into())),
    }
}
