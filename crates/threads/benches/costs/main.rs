//! What the parts of a host FTL cost on this machine, in nanoseconds, on pinned threads: one JSON document (open-channel §10.6).
//!
//! Place: `cargo xtask smp-costs` runs it and keeps the answer. The cost model of virtual time takes its costs from there.
//!
//! Many short rounds, because other programs may run at the same time: the lower quartile is what a quiet machine has.

#[path = "../kernel/mod.rs"]
mod kernel;
mod queue;

use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::host_word::Word;
use flashweir_ftl::limiter::Marks;
use flashweir_threads::content::{Content, Unit, WORDS};
use flashweir_threads::limiter::{SharedScores, SharedWindows};
use flashweir_threads::map::AtomicMap;
use flashweir_threads::pool::Pool;
use flashweir_threads::spin::SpinLock;
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: usize = 61;

fn main() {
    match measure() {
        Ok(answer) => println!("{answer:#}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

/// Nanoseconds of an operation, round by round.
struct Rounds(Vec<f64>);

impl Rounds {
    fn json(mut self, what: &str) -> Value {
        self.0.sort_by(f64::total_cmp);
        let at = |part: f64| (self.0[((self.0.len() - 1) as f64 * part) as usize] * 100.0).round() / 100.0;
        json!({ "what": what, "rounds": self.0.len(), "min": at(0.0), "quartile": at(0.25), "median": at(0.5), "max": at(1.0) })
    }

    /// Less what something else costs that was measured beside it, by its lower quartile.
    fn less(self, other: f64) -> Self {
        Self(self.0.into_iter().map(|ns| ns - other).collect())
    }

    fn quartile(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 4]
    }
}

/// One thread on CPU 0 does `count` operations in each round.
fn alone(count: u64, mut operation: impl FnMut(u64)) -> Rounds {
    let mut round = || {
        let begin = Instant::now();
        (0..count).for_each(&mut operation);
        begin.elapsed().as_nanos() as f64 / count as f64
    };
    round();
    Rounds((0..ROUNDS).map(|_| round()).collect())
}

/// Two threads on two CPUs do `count` operations each, at the same time; nanoseconds of an operation of one of them.
///
/// A pair of rounds counts if both took about as long: where a thread lost its CPU, the other one was alone.
fn together<T: Send>(count: u64, states: [T; 2], operation: impl Fn(&mut T, u64) + Sync) -> Rounds {
    const PAIRS: u32 = 6 * ROUNDS as u32;
    let (ready, begun) = (AtomicU32::new(0), AtomicU32::new(0));
    let results: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let work = |(cpu, mut state): (usize, T)| {
            let (operation, ready, begun) = (&operation, &ready, &begun);
            scope.spawn(move || {
                kernel::pin(cpu).expect("two CPUs");
                // The other one begins on this CPU.
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < 2 {
                    std::thread::yield_now();
                }
                let round = |number: u32| {
                    // Both begin within one hand-over of a cache line.
                    begun.fetch_add(1, Ordering::AcqRel);
                    while begun.load(Ordering::Acquire) < (number + 1) * 2 {
                        std::hint::spin_loop();
                    }
                    let begin = Instant::now();
                    (0..count).for_each(|at| operation(&mut state, at));
                    begin.elapsed().as_nanos() as f64 / count as f64
                };
                (0..PAIRS).map(round).collect()
            })
        };
        let threads: Vec<_> = states.into_iter().enumerate().map(work).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let pairs = results[0].iter().zip(&results[1]).skip(1);
    let kept = pairs.filter(|(a, b)| (*a - *b).abs() < 0.1 * a.max(**b)).map(|(a, b)| (a + b) / 2.0);
    Rounds(kept.collect())
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    #[inline]
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

fn randoms() -> [Random; 2] {
    [Random(0x1234_5678_9abc_def1), Random(0xfedc_ba98_7654_3211)]
}

const MAP_WORDS: u64 = 128 * 1024 * 1024 / 8;

fn measure() -> Result<Value, String> {
    kernel::pin(0)?;
    kernel::pin(1).map_err(|error| format!("two CPUs are needed: {error}"))?;
    kernel::pin(0)?;
    let has_priority = kernel::prefer();
    let mut costs = serde_json::Map::new();
    let mut note = |name: &str, rounds: Rounds, what: &str| {
        let value = rounds.json(what);
        eprintln!("{name:<34} {:>10} ns  ({} to {})", value["quartile"], value["min"], value["max"]);
        costs.insert(name.into(), value);
    };
    locks(&mut note);
    copies(&mut note);
    map(&mut note);
    counters(&mut note);
    pools(&mut note);
    limiters(&mut note);
    kernels(&mut note)?;
    let not_measured = [
        "the kernel's block layer: allocation of requests, hardware queues, interrupts, completions",
        "more than two CPUs, two sockets, and what a hypervisor adds when it takes a CPU away",
        "work on the device",
    ];
    Ok(json!({
        "unit": "nanoseconds for an operation of one thread",
        "how": format!(
            "{ROUNDS} rounds after one that warms up, with two threads up to {} of which those count in which both took as long within 10 %; threads pinned to CPU 0 and CPU 1; lower quartile, median, minimum and maximum of the rounds", 6 * ROUNDS
        ),
        "real_time_priority": has_priority,
        "costs": costs,
        "not_measured": not_measured,
    }))
}

type Note<'a> = &'a mut dyn FnMut(&str, Rounds, &str);

fn locks(note: Note<'_>) {
    let lock = SpinLock::new(0_u64);
    let uncontended = alone(20_000, |_| *lock.lock() += 1);
    let base = uncontended.quartile();
    note(
        "lock_uncontended",
        uncontended,
        "take and give back a spin lock that no other CPU wants, its line in the own cache",
    );
    // In the order of arrival the lock changes hands at each acquisition, so a pair of operations is two hand-overs.
    let each = || together(20_000, [(), ()], |(), _| *lock.lock() += 1);
    let acquisitions = |rounds: Rounds| Rounds(rounds.0.into_iter().map(|ns| ns / 2.0).collect());
    let contended = acquisitions(each());
    let hand_over = acquisitions(each()).less(base);
    note(
        "lock_contended_acquisition",
        contended,
        "time from one acquisition to the next when two CPUs want a spin lock all the time, empty critical section",
    );
    note(
        "lock_hand_over",
        hand_over,
        "the same less lock_uncontended: what it costs that the lock changes its CPU",
    );
}

fn copies(note: Note<'_>) {
    const UNITS: u64 = 16 * 1024;
    let pool: Vec<Unit> = (0..UNITS).map(|at| [at; WORDS]).collect();
    let shared: Vec<Content> = (0..UNITS).map(|_| Content::default()).collect();
    let mut ring: Vec<Unit> = vec![[0; WORDS]; 256];
    let [mut random, _] = randoms();
    let rounds =
        alone(1_000, |at| ring[at as usize % 256].copy_from_slice(&pool[random.below(UNITS) as usize]));
    note("copy_4k_cold", rounds, "memcpy of 4 KiB out of a random unit of 64 MiB into a ring of 1 MiB");
    let rounds = alone(1_000, |at| ring[at as usize % 256].copy_from_slice(&pool[at as usize % 64]));
    note("copy_4k_warm", rounds, "memcpy of 4 KiB out of one of 64 units into a ring of 1 MiB");
    black_box(&ring);
    let slots: Vec<Content> = (0..256).map(|_| Content::default()).collect();
    let rounds = alone(1_000, |at| slots[at as usize % 256].write(&pool[random.below(UNITS) as usize]));
    note("copy_4k_words_cold", rounds, "the same from 64 MiB, by relaxed atomic words, as our rings copy");
    let mut unit = [0; WORDS];
    let rounds = alone(1_000, |_| {
        shared[random.below(UNITS) as usize].read(&mut unit);
        black_box(&unit);
    });
    note(
        "copy_4k_words_out_cold",
        rounds,
        "4 KiB out of a random unit of 64 MiB of atomic words into one warm unit, as our reads copy",
    );
}

fn map(note: Note<'_>) {
    let map = AtomicMap::new(MAP_WORDS, false);
    for lpn in 0..MAP_WORDS {
        map.exchange(Lpn(lpn), Word::Place(Ppa(0)));
    }
    let [mut random, _] = randoms();
    let mut sum = 0;
    let rounds = alone(20_000, |_| sum ^= random.below(MAP_WORDS));
    let base = rounds.quartile();
    note("loop", rounds, "a random number: part of each cost of the map, and taken off there");
    black_box(sum);
    let place = |at| Word::Place(Ppa(at));
    // Addresses depend on the word before them, so that operations do not overlap.
    let mut chain = 0;
    let old = |lpn: u64| match map.exchange(Lpn(lpn), place(0)) {
        Word::Place(Ppa(word)) => word,
        _ => 1,
    };
    let rounds = alone(4_000, |_| chain = old((random.below(MAP_WORDS) + chain) % MAP_WORDS));
    note(
        "map_exchange_cold",
        rounds.less(base),
        "atomic exchange of a random word of 128 MiB, one after the other",
    );
    let rounds = alone(20_000, |_| chain = old((random.below(512) + chain) % 512));
    note(
        "map_exchange_warm",
        rounds.less(base),
        "atomic exchange of a random word of 4 KiB that no other CPU uses",
    );
    let both = together(20_000, randoms(), |random, at| {
        black_box(map.exchange(Lpn(random.below(512)), place(at)));
    });
    note(
        "map_exchange_shared",
        both.less(base),
        "the same while another CPU does it too, in the same 64 cache lines",
    );
    let both = together(20_000, randoms(), |random, at| {
        black_box(map.exchange(Lpn(random.below(8)), place(at)));
    });
    note("map_exchange_one_line", both.less(base), "the same in one cache line");
    for lpn in 0..MAP_WORDS {
        map.exchange(Lpn(lpn), place(0));
    }
    let rounds = alone(4_000, |_| {
        let lpn = Lpn((random.below(MAP_WORDS) + chain) % MAP_WORDS);
        assert!(map.replace(lpn, place(0), place(0)).is_ok());
        if let Word::Place(Ppa(word)) = map.get(lpn) {
            chain = word;
        }
    });
    let what = "compare and swap of a random word of 128 MiB that succeeds, one after the other";
    note("map_publish_cold", rounds.less(base), what);
    let rounds = alone(20_000, |_| assert!(map.replace(Lpn(random.below(512)), place(0), place(0)).is_ok()));
    note("map_publish_warm", rounds.less(base), "compare and swap of a random word of 4 KiB that succeeds");
    let rounds = alone(4_000, |_| {
        if let Word::Place(Ppa(word)) = map.get(Lpn((random.below(MAP_WORDS) + chain) % MAP_WORDS)) {
            chain = word;
        }
    });
    note("map_load_cold", rounds.less(base), "load of a random word of 128 MiB, one after the other");
    let rounds = alone(20_000, |_| {
        if let Word::Place(Ppa(word)) = map.get(Lpn((random.below(512) + chain) % 512)) {
            chain = word;
        }
    });
    note("map_load_warm", rounds.less(base), "load of a random word of 4 KiB, one after the other");
    black_box(chain);
}

fn counters(note: Note<'_>) {
    let counter = AtomicU64::new(0);
    let rounds = alone(20_000, |_| {
        counter.fetch_add(1, Ordering::AcqRel);
    });
    note("add_uncontended", rounds, "atomic addition, as for the next sequence number, without another CPU");
    let rounds = together(20_000, [(), ()], |(), _| {
        counter.fetch_add(1, Ordering::AcqRel);
    });
    note("add_shared", rounds, "the same while another CPU does it too");
}

fn pools(note: Note<'_>) {
    for (name, is_shared, what) in [
        ("pool_own", false, "take an item of the own slab and give it back"),
        (
            "pool_locked",
            true,
            "take an item of the one pool and give it back: its lock twice, without another CPU",
        ),
    ] {
        let (pool, mut ends) = Pool::new(2, 64, is_shared);
        let end = &mut ends[0];
        let rounds = alone(20_000, |_| {
            let lease = end.take(&pool).expect("a free item");
            end.give(lease);
        });
        note(name, rounds, what);
        let name = format!("{name}_both");
        let [first, second] = <[_; 2]>::try_from(ends).expect("two workers");
        let rounds = together(20_000, [first, second], |end, _| {
            let lease = end.take(&pool).expect("a free item");
            end.give(lease);
        });
        note(&name, rounds, &format!("{what}; another CPU does it too"));
    }
    let (pool, mut ends) = Pool::new(1, 64, false);
    let rounds = alone(20_000, |_| drop(ends[0].take(&pool).expect("a free item")));
    note(
        "pool_remote",
        rounds,
        "take an item of the own slab and give it back by the list of many producers, its line in the own cache",
    );
}

fn limiters(note: Note<'_>) {
    // Both sides always have room: what is measured is an admission that succeeds.
    let marks = Marks { budget: u32::MAX / 4, high: 10, reserve: 4 };
    let scores = SharedScores::new(marks, &[7]);
    let rounds = alone(10_000, |_| assert!(scores.admit_user(1, true, false)));
    note("scores_admit", rounds, "admission of a request by scores while GC runs, without another CPU");
    let rounds = together(10_000, [(), ()], |(), _| assert!(scores.admit_user(1, true, false)));
    note("scores_admit_both", rounds, "the same while another CPU does it too");
    let rounds = alone(20_000, |_| assert!(black_box(&scores).admit_user(1, false, false)));
    note("scores_admit_no_gc", rounds, "the same while GC does not run");
    let windows = SharedWindows::new(Marks { budget: 8192, high: 448, reserve: 128 }, 448);
    let rounds = alone(20_000, |_| {
        assert!(windows.admit_user(1));
        windows.left(1, 0);
    });
    note(
        "windows_admit_and_leave",
        rounds,
        "admission by windows, and the entry's leaving, without another CPU",
    );
    let rounds = together(20_000, [(), ()], |(), _| {
        assert!(windows.admit_user(1));
        windows.left(1, 0);
    });
    note("windows_admit_and_leave_both", rounds, "the same while another CPU does it too");
}

fn kernels(note: Note<'_>) -> Result<(), String> {
    note("system_call", alone(5_000, |_| queue::nothing()), "a system call that does nothing");
    let mut queue = queue::Queue::new("/dev/zero")?;
    queue.read()?;
    let rounds = alone(2_000, |_| queue.read().expect("a read"));
    note(
        "libaio_read_4k",
        rounds,
        "io_submit and io_getevents of a read of 4 KiB of /dev/zero, whose zeros are written by the CPU",
    );
    let mut file = std::fs::File::open("/dev/zero").map_err(|error| error.to_string())?;
    let mut buffer = vec![0; 4096];
    let rounds = alone(2_000, |_| {
        std::io::Read::read_exact(&mut file, &mut buffer).expect("a read");
    });
    note(
        "read_4k",
        rounds,
        "the same as one read call: what io_submit and io_getevents add is the difference",
    );
    note(
        "yield",
        alone(5_000, |_| std::thread::yield_now()),
        "sched_yield, where no other thread of ours wants the CPU",
    );
    note(
        "wake_and_back_two_cpus",
        there_and_back(1),
        "a sleeping thread of another CPU is woken and wakes this one, which sleeps: two wake-ups (futex)",
    );
    note(
        "wake_and_back_one_cpu",
        there_and_back(0),
        "the same on one CPU: two wake-ups and two changes of threads",
    );
    note(
        "wake_call",
        wake_call(),
        "the call that wakes a sleeping thread of another CPU, for its caller (with two readings of the clock)",
    );
    Ok(())
}

fn there_and_back(cpu: usize) -> Rounds {
    let (turn, main) = (AtomicU32::new(0), std::thread::current());
    const COUNT: u32 = 200;
    std::thread::scope(|scope| {
        let (turn, main) = (&turn, &main);
        let other = scope.spawn(move || {
            kernel::pin(cpu).expect("two CPUs");
            for at in 0..COUNT * (ROUNDS as u32 + 1) {
                while turn.load(Ordering::Acquire) != at * 2 + 1 {
                    std::thread::park();
                }
                turn.store(at * 2 + 2, Ordering::Release);
                main.unpark();
            }
        });
        let other = other.thread();
        let mut at = 0;
        alone(u64::from(COUNT), |_| {
            turn.store(at * 2 + 1, Ordering::Release);
            other.unpark();
            while turn.load(Ordering::Acquire) != at * 2 + 2 {
                std::thread::park();
            }
            at += 1;
        })
    })
}

fn wake_call() -> Rounds {
    let (turn, is_ready, is_done) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            kernel::pin(1).expect("two CPUs");
            is_ready.store(true, Ordering::Release);
            while !is_done.load(Ordering::Acquire) {
                std::thread::park();
                turn.fetch_add(1, Ordering::AcqRel);
            }
        });
        while !is_ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let round = || {
            const COUNT: u32 = 100;
            let mut sum = 0;
            for _ in 0..COUNT {
                let seen = turn.load(Ordering::Acquire);
                let pause = Instant::now();
                while pause.elapsed().as_micros() < 30 {
                    std::hint::spin_loop();
                }
                let begin = Instant::now();
                other.thread().unpark();
                sum += begin.elapsed().as_nanos();
                while turn.load(Ordering::Acquire) == seen {
                    std::hint::spin_loop();
                }
            }
            sum as f64 / f64::from(COUNT)
        };
        let rounds = Rounds((0..ROUNDS).map(|_| round()).collect());
        is_done.store(true, Ordering::Release);
        other.thread().unpark();
        rounds
    })
}
