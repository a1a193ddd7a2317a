//! The suites, which are run on one mutant after the other.
//!
//! Place: it starts the programs of [`super::copy`] with the suites of [`super::layers`].
//!
//! Invariants: the suites of its layer that reach its site try a mutant until one fails; those that found most come first. A suite that
//! does not reach the site does the same as without the mutant. A suite that fails without a mutant ends everything.
//!
//! Deliberately absent: reasons why a suite fails; CI would see an exit code other than 0, and no more.

use super::copy::{Copy, dir, source};
use super::draw::{Drawn, Random};
use super::layers::{GOLDEN, LAYERS, Layer, Suite};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Number of jobs that run at once.
const JOBS: usize = 2;

/// A suite hangs if it takes [`HANG_TIMES`] times its CPU time without a mutant, and [`HANG`]; other builds on the machine do not
/// affect this.
const HANG_TIMES: u32 = 5;
const HANG: Duration = Duration::from_secs(20);

/// A suite that waits for something that never happens takes no CPU time: it hangs after this many times that limit by the clock.
const WAIT_TIMES: u32 = 10;

/// Memory limit of a suite, so that a mutant does not use up that of the machine.
const MEMORY_KIB: u64 = 6 << 20;

/// Run of a suite that passed without a mutant.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    pub(crate) suite: Suite,
    /// CPU time.
    pub(crate) time: Duration,
    /// Mutants whose sites it reaches.
    pub(crate) reached: BTreeSet<u32>,
}

/// Outcome of a mutant.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) drawn: Drawn,
    /// Name of the suite that found it, and its message.
    pub(crate) killed: Option<(String, String)>,
    pub(crate) seconds: f64,
    /// Number of suites that reach its site.
    pub(crate) suites: usize,
}

/// End of a program.
enum End {
    /// It passed, after this CPU time.
    Passed(Duration),
    Failed(String),
    /// It was killed at its limit.
    Late(String),
}

/// Runs the suites of these layers whose names contain `named` without a mutant. With a limit, only as many of each layer run as fit into
/// it, drawn by the seed; one that exceeds the time that is left is left out.
pub(crate) fn baselines(
    copy: &Copy,
    seed: u64,
    layers: &[&str],
    limit: Option<Duration>,
    named: &str,
) -> Result<BTreeMap<&'static str, Vec<Baseline>>, String> {
    let known: Mutex<Vec<Baseline>> = Mutex::new(Vec::new());
    let layers: Vec<&Layer> = LAYERS.iter().filter(|layer| layers.contains(&layer.name)).collect();
    let ran = in_parallel(&layers, |worker, layer| {
        let mut suites = layer.suites_named(named);
        if limit.is_some() {
            Random::new(seed).shuffle(&mut suites);
            // Tests are short, so they come first.
            suites.sort_by_key(|suite| matches!(suite, Suite::Weir(_)));
        }
        let mut chosen: Vec<Baseline> = Vec::new();
        let mut left = limit;
        for suite in suites {
            let before = known.lock().expect(CALM).iter().find(|one| one.suite == suite).cloned();
            let one = match before {
                Some(one) => Some(one),
                None => baseline(copy, seed, worker, &suite, left)?,
            };
            let Some(one) = one else { continue };
            left = left.map(|left| left.saturating_sub(one.time));
            known.lock().expect(CALM).push(one.clone());
            chosen.push(one);
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
        }
        let seconds = chosen.iter().map(|one| one.time.as_secs_f64()).sum::<f64>();
        println!("   {}: {} suites pass without a mutant, {seconds:.0} s", layer.name, chosen.len());
        Ok((layer.name, chosen))
    });
    ran.into_iter().collect()
}

/// No code here panics while it holds a lock.
const CALM: &str = "no one panics with a lock";

/// Runs a suite without a mutant; `None` if it exceeds a limit.
fn baseline(
    copy: &Copy,
    seed: u64,
    worker: usize,
    suite: &Suite,
    limit: Option<Duration>,
) -> Result<Option<Baseline>, String> {
    let list = dir().join(format!("reached-{worker}"));
    let _ = std::fs::remove_file(&list);
    let most = limit.unwrap_or(Duration::from_secs(3600));
    let mut command = command(copy, seed, suite)?;
    command.env("FLASHWEIR_MUTANTS_REACHED", &list);
    let time = match ended(command, worker, most, most)? {
        End::Late(_) if limit.is_some() => return Ok(None),
        End::Late(why) | End::Failed(why) => {
            return Err(format!("without a mutant, {} fails: {why}", suite.name()));
        }
        End::Passed(time) => time,
    };
    let text = std::fs::read_to_string(&list).unwrap_or_default();
    let reached = text.lines().filter_map(|line| line.parse().ok()).collect();
    Ok(Some(Baseline { suite: suite.clone(), time, reached }))
}

/// Tries each mutant; `told` gets each outcome.
pub(crate) fn try_all(
    copy: &Copy,
    seed: u64,
    baselines: &BTreeMap<&'static str, Vec<Baseline>>,
    mutants: &[Drawn],
    told: impl FnMut(&Outcome) -> Result<(), String> + Send,
) -> Result<Vec<Outcome>, String> {
    let (told, records) = (Mutex::new(told), Mutex::default());
    let all = in_parallel(&mutants.iter().collect::<Vec<_>>(), |worker, drawn| {
        let outcome = try_one(copy, seed, worker, &baselines[drawn.layer], drawn, &records)?;
        (told.lock().expect(CALM))(&outcome)?;
        Ok(outcome)
    });
    all.into_iter().collect()
}

/// Tries each mutant by the suite beside it.
pub(crate) fn try_again(
    copy: &Copy,
    seed: u64,
    pairs: &[(Drawn, Suite)],
    told: impl Fn(&Outcome) + Sync,
) -> Result<Vec<Outcome>, String> {
    let suites: BTreeMap<String, &Suite> = pairs.iter().map(|(_, suite)| (suite.name(), suite)).collect();
    let ran = in_parallel(&suites.into_values().collect::<Vec<_>>(), |worker, suite| {
        let baseline = baseline(copy, seed, worker, suite, None)?;
        Ok((suite.name(), baseline))
    });
    let baselines: BTreeMap<String, Option<Baseline>> = ran.into_iter().collect::<Result<_, String>>()?;
    let all = in_parallel(&pairs.iter().collect::<Vec<_>>(), |worker, (drawn, suite)| {
        let suites: Vec<Baseline> = baselines[&suite.name()].iter().cloned().collect();
        let outcome = try_one(copy, seed, worker, &suites, drawn, &Mutex::default())?;
        told(&outcome);
        Ok(outcome)
    });
    all.into_iter().collect()
}

/// For each suite, the number of mutants that it tried and the number that it found.
type Records = Mutex<BTreeMap<String, (u32, u32)>>;

/// Suites that reach the mutant, those first that found most in the least time. Golden records come last, so that they find only what
/// nothing else finds.
fn in_turn<'a>(suites: &'a [Baseline], drawn: &Drawn, records: &Records) -> Vec<&'a Baseline> {
    let records = records.lock().expect(CALM);
    let price = |one: &Baseline| {
        let (tried, found) = records.get(&one.suite.name()).copied().unwrap_or_default();
        one.time.as_secs_f64() * f64::from(tried + 2) / f64::from(found + 1)
    };
    let mut reaching: Vec<_> = suites.iter().filter(|suite| suite.reached.contains(&drawn.id)).collect();
    reaching.sort_by(|a, b| {
        let last = a.suite.is_golden().cmp(&b.suite.is_golden());
        last.then(price(a).total_cmp(&price(b)))
    });
    reaching
}

fn try_one(
    copy: &Copy,
    seed: u64,
    worker: usize,
    suites: &[Baseline],
    drawn: &Drawn,
    records: &Records,
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let mut killed = None;
    let reaching = in_turn(suites, drawn, records);
    for baseline in &reaching {
        let most = baseline.time * HANG_TIMES + HANG;
        let mut command = command(copy, seed, &baseline.suite)?;
        command.env("FLASHWEIR_MUTANT", drawn.id.to_string());
        let found = match ended(command, worker, most, most * WAIT_TIMES)? {
            End::Failed(why) | End::Late(why) => Some(why),
            End::Passed(_) => None,
        };
        let mut records = records.lock().expect(CALM);
        let record = records.entry(baseline.suite.name()).or_default();
        *record = (record.0 + 1, record.1 + u32::from(found.is_some()));
        if let Some(why) = found {
            killed = Some((baseline.suite.name(), why));
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Outcome { drawn: drawn.clone(), killed, seconds, suites: reaching.len() })
}

/// Command of a suite, with limited memory.
fn command(copy: &Copy, seed: u64, suite: &Suite) -> Result<Command, String> {
    let (program, directory, args): (&Path, PathBuf, Vec<String>) = match suite {
        Suite::Weir(args) => {
            let mut args: Vec<String> = args.split(' ').map(String::from).collect();
            args.extend(["--jobs".into(), "1".into(), "--seed".into(), seed.to_string()]);
            (&copy.weir, source(), args)
        }
        Suite::Tests(tests) => {
            let key = (tests.package.to_string(), tests.target.to_string());
            let program = copy.tests.get(&key).ok_or_else(|| format!("{} was not built", suite.name()))?;
            let package = tests.package.strip_prefix("flashweir-").unwrap_or(tests.package);
            let mut args = vec!["--test-threads".into(), "1".into()];
            args.extend((!tests.filter.is_empty()).then(|| tests.filter.to_string()));
            if !suite.is_golden() {
                args.extend(["--skip".into(), GOLDEN.into()]);
            }
            (program, source().join("crates").join(package), args)
        }
    };
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"")]).arg(program).args(args);
    command.current_dir(directory).stdin(Stdio::null());
    command.env("FLASHWEIR_SEED", seed.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
    command.env_remove("FLASHWEIR_MUTANT").env_remove("FLASHWEIR_MUTANTS_REACHED");
    Ok(command)
}

/// Runs a program to its end, or until it exceeds its limit of CPU time or of time by the clock.
fn ended(mut command: Command, worker: usize, cpu: Duration, clock: Duration) -> Result<End, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", dir().display());
    let temporary = dir().join(format!("temporary-{worker}"));
    let _ = std::fs::remove_dir_all(&temporary);
    std::fs::create_dir_all(&temporary).map_err(wrong)?;
    let said = dir().join(format!("said-{worker}"));
    let file = std::fs::File::create(&said).map_err(wrong)?;
    command.env("TMPDIR", &temporary).stderr(file.try_clone().map_err(wrong)?).stdout(file);
    let mut child = command.spawn().map_err(|error| format!("sh: {error}"))?;
    let begin = Instant::now();
    let mut used = Duration::ZERO;
    let status = loop {
        used = cpu_time(child.id()).unwrap_or(used);
        match child.try_wait().map_err(|error| format!("sh: {error}"))? {
            Some(status) => break status,
            None if used > cpu || begin.elapsed() > clock => {
                let _ = child.kill();
                let _ = child.wait();
                let (used, waited) = (used.as_secs_f64(), begin.elapsed().as_secs_f64());
                return Ok(End::Late(format!("hangs: no end after {used:.0} s of CPU time, {waited:.0} s")));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    if status.success() {
        return Ok(End::Passed(used));
    }
    let text =
        std::fs::read(&said).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    Ok(End::Failed(format!("{status}: {}", telling(&text))))
}

/// CPU time of a process, user and system, from `/proc/PID/stat`, which counts hundredths of a second; `None` if that cannot be read.
fn cpu_time(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split(' ').collect();
    let [user, system] = [fields.get(12)?, fields.get(13)?].map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis((user? + system?) * 10))
}

/// The most telling line.
fn telling(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let with = |word: &str| lines.iter().position(|line| line.contains(word));
    let line = match (with("panicked at"), with("violation")) {
        (Some(at), _) => format!("{} {}", lines[at], lines.get(at + 1).unwrap_or(&"")),
        (None, Some(at)) => lines[at].into(),
        (None, None) => lines.last().copied().unwrap_or_default().into(),
    };
    line.chars().take(200).collect()
}

/// Does the work of a list, [`JOBS`] at once; returns the results in its order. After an error no more work begins.
fn in_parallel<T: Sync, R: Send>(
    list: &[&T],
    work: impl Fn(usize, &T) -> Result<R, String> + Sync,
) -> Vec<Result<R, String>> {
    let next = Mutex::new(0);
    let answers: Mutex<Vec<Option<Result<R, String>>>> = Mutex::new(list.iter().map(|_| None).collect());
    thread::scope(|scope| {
        for worker in 0..JOBS.min(list.len()) {
            let (next, answers, work) = (&next, &answers, &work);
            scope.spawn(move || {
                loop {
                    let at = {
                        let mut next = next.lock().expect(CALM);
                        *next += 1;
                        *next - 1
                    };
                    let Some(one) = list.get(at) else { return };
                    let answer = work(worker, one);
                    if answer.is_err() {
                        *next.lock().expect(CALM) = list.len();
                    }
                    answers.lock().expect(CALM)[at] = Some(answer);
                }
            });
        }
    });
    answers.into_inner().expect("no one panicked").into_iter().flatten().collect()
}
