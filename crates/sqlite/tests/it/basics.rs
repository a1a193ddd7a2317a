//! SQLite works, in virtual time and deterministically.

use flashweir_core::Duration;
use flashweir_device::config::PersistPolicy;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::ext4::{self, Before, Ext4, Ext4Options};
use flashweir_fs::f2fs::{self, F2fs, F2fsOptions};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::BlockPort;
use flashweir_fs::vfs::{Creds, Fs, HostCosts, MountOptions, Vfs};
use flashweir_host::HostConfig;
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sqlite::order::{JournalMode, OrderMode, Plan, Synchronous};
use flashweir_sqlite::{Clock, Guest, HostOptions, Phases, VFS};
use rusqlite::{Connection, OpenFlags};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

fn stack() -> Stack {
    let mut config = preset("barrier-850").unwrap();
    config.geometry.channels = 2;
    config.geometry.blocks_per_plane = 64;
    config.order.policy = PersistPolicy::InOrderRecovery;
    let device = Device::new(config, DeviceOptions { seed: 1, track_contents: true, planted: None });
    Stack::with_block_layer(device, FlushMode::Flush, HostConfig::default())
}

fn mount_options() -> MountOptions {
    MountOptions { costs: HostCosts::preset("server").unwrap(), ..MountOptions::default() }
}

/// Runs a program on a new volume; gives what it gives, the hash of what the device did, and the calls.
fn on_ext4<T: Send + 'static>(
    plan: Plan,
    work: impl FnOnce(&Clock) -> T + Send + 'static,
) -> (T, u64, Phases) {
    let mut stack = stack();
    let (port, handle) = (Rc::new(stack.port()), stack.handle());
    let done = stack.block_on(async move {
        let volume = ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
        ext4::mkfs(&*port, &volume).await.unwrap();
        let commit_mode =
            if plan.order == OrderMode::None { CommitMode::Legacy } else { CommitMode::DualMode };
        let options = Ext4Options { commit_mode, ..Ext4Options::default() };
        let fs = Ext4::mount_with(port, options).await.unwrap();
        in_guest(Vfs::mount(fs, handle.clone(), mount_options()).unwrap(), handle, plan, work).await
    });
    let (value, phases) = done.unwrap();
    (value, stack.trace_hash(), phases)
}

async fn in_guest<F: Fs, T: Send + 'static>(
    vfs: Vfs<F>,
    handle: flashweir_core::executor::Handle,
    plan: Plan,
    work: impl FnOnce(&Clock) -> T + Send + 'static,
) -> (T, Phases) {
    let options = HostOptions { plan, seed: 7, epoch_seconds: 1_000_000_000 };
    let guest = Guest::new(vfs.process(Creds::ROOT), handle, options);
    let value = guest.run(work).await;
    (value, guest.take_phases())
}

fn open(plan: Plan) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let db = Connection::open_with_flags_and_vfs("/db", flags, VFS).unwrap();
    let mode: String = db
        .query_row(&format!("PRAGMA journal_mode={}", plan.journal_mode.pragma()), [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, plan.journal_mode.pragma());
    db.execute_batch(&format!("PRAGMA synchronous={}", plan.synchronous.name())).unwrap();
    db
}

/// Some transactions, one of them rolled back, and what the database says in the end.
fn program(plan: Plan) -> impl FnOnce(&Clock) -> (Vec<i64>, u64) {
    move |clock| {
        let mut db = open(plan);
        db.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)").unwrap();
        let begun = clock.now();
        for id in 0..40 {
            db.execute("INSERT INTO t VALUES (?1, zeroblob(3000))", [id]).unwrap();
        }
        let transaction = db.transaction().unwrap();
        transaction.execute("DELETE FROM t", []).unwrap();
        transaction.rollback().unwrap();
        db.execute("DELETE FROM t WHERE id < 10", []).unwrap();
        db.execute("UPDATE t SET body = randomblob(2000) WHERE id = 20", []).unwrap();
        db.close().unwrap();
        let db = open(plan);
        let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        let mut ids = db.prepare("SELECT id FROM t ORDER BY id").unwrap();
        let ids = ids.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        (ids, clock.now().since(begun).as_nanos())
    }
}

fn plans() -> impl Iterator<Item = Plan> {
    let modes = |(journal_mode, _)| Synchronous::ALL.map(move |(synchronous, _)| (journal_mode, synchronous));
    let orders = |(journal_mode, synchronous)| {
        OrderMode::ALL.map(move |(order, _)| Plan { journal_mode, synchronous, order, planted: None })
    };
    JournalMode::ALL.into_iter().flat_map(modes).flat_map(orders)
}

/// Whether a log is synced before a checkpoint although each commit has synced it already.
fn has_checkpoint_syncs(plan: Plan) -> bool {
    plan.journal_mode == JournalMode::Wal && plan.synchronous != Synchronous::Normal
}

#[test]
fn every_journal_works_in_virtual_time_and_repeats() {
    for plan in plans() {
        let ((ids, span), hash, phases) = on_ext4(plan, program(plan));
        assert_eq!(ids, (10..40).collect::<Vec<i64>>(), "{plan:?}");
        assert!(span > 1_000_000, "{plan:?}: time passes, {span} ns");
        for (phase, stats) in &phases {
            let (max, total) = (stats.max_ns, stats.total_ns);
            assert!(max <= total && total <= max * stats.calls, "{phase:?} {stats:?}");
        }
        // Before a log goes to its places it is synced once more where it may not have been, and not as a commit is.
        let checkpoints = phases.iter().filter(|(phase, _)| phase.what == "log before checkpoint");
        let syncs: u64 = checkpoints.map(|(_, stats)| stats.calls).sum();
        assert_eq!(syncs > 0, has_checkpoint_syncs(plan), "{plan:?}: {phases:?}");
        let again = on_ext4(plan, program(plan));
        assert_eq!(((ids, span), hash, phases), again, "{plan:?}");
    }
}

/// Worlds that run at once have random numbers of their own, although SQLite has one generator for all of its threads.
#[test]
fn worlds_do_not_disturb_each_other() {
    let plan = Plan::default();
    let work = move |_: &Clock| {
        let db = open(plan);
        db.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)").unwrap();
        for _ in 0..50 {
            db.execute("INSERT INTO t (body) VALUES (randomblob(20000))", []).unwrap();
        }
        let mut bodies = db.prepare("SELECT body FROM t ORDER BY id").unwrap();
        let bodies = bodies.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
        bodies.map(Result::unwrap).collect::<Vec<_>>()
    };
    let (alone, hash, _) = on_ext4(plan, work);
    let worlds: Vec<_> = (0..6).map(|_| std::thread::spawn(move || on_ext4(plan, work))).collect();
    for world in worlds {
        let (bodies, its_hash, _) = world.join().unwrap();
        assert!(bodies == alone, "a world has random numbers of another one");
        assert_eq!(its_hash, hash);
    }
}

#[test]
fn sqlite_sees_virtual_time_and_seeded_random_numbers() {
    let plan = Plan::default();
    let work = move |clock: &Clock| {
        let db = open(plan);
        let now =
            |db: &Connection| -> i64 { db.query_row("SELECT unixepoch()", [], |row| row.get(0)).unwrap() };
        let before = now(&db);
        clock.compute(Duration::from_secs(3));
        let random: i64 = db.query_row("SELECT random()", [], |row| row.get(0)).unwrap();
        (before, now(&db), random)
    };
    let ((before, after, random), ..) = on_ext4(plan, work);
    assert_eq!((before, after), (1_000_000_000, 1_000_000_003));
    assert_eq!(on_ext4(plan, work).0.2, random);
}

#[test]
fn sqlite_works_on_f2fs() {
    for order in [OrderMode::None, OrderMode::Durable, OrderMode::All] {
        for journal_mode in [JournalMode::Delete, JournalMode::Wal] {
            let plan = Plan { journal_mode, order, ..Plan::default() };
            let mut stack = stack();
            let (port, handle) = (Rc::new(stack.port()), stack.handle());
            let done = stack.block_on(async move {
                f2fs::mkfs(&*port, &f2fs::Options::new(port.capacity_blocks())).await.unwrap();
                let commit_mode =
                    if order == OrderMode::None { CommitMode::Legacy } else { CommitMode::DualMode };
                let options = F2fsOptions { commit_mode, ..F2fsOptions::default() };
                let fs = F2fs::mount_with(port, options).await.unwrap();
                let vfs = Vfs::mount(fs, handle.clone(), mount_options()).unwrap();
                in_guest(vfs, handle, plan, program(plan)).await
            });
            assert_eq!(done.unwrap().0.0, (10..40).collect::<Vec<i64>>(), "{plan:?}");
        }
    }
}

/// What SQLite asks for in its modes, and what becomes of it (docs/sqlite.md has the table).
#[test]
fn syncs_are_those_of_the_protocol() {
    use JournalMode::{Delete, Persist, Truncate, Wal};
    use Synchronous::{Extra, Full, Normal};
    const COUNT: u64 = 10;
    for (journal_mode, synchronous, expected) in [
        (Delete, Normal, "database 1, directory 1, journal 1"),
        (Delete, Full, "database 1, directory 1, journal 2"),
        (Delete, Extra, "database 1, directory 2, journal 2"),
        (Truncate, Normal, "database 1, directory 1, journal 1"),
        (Truncate, Full, "database 1, directory 1, journal 2, journal's end 1"),
        (Persist, Normal, "database 1, directory 1, journal 1, journal's end 1"),
        (Persist, Full, "database 1, directory 1, journal 2, journal's end 1"),
        (Wal, Normal, ""),
        (Wal, Full, "log 1"),
    ] {
        for (order, _) in OrderMode::ALL {
            let plan = Plan { journal_mode, synchronous, order, planted: None };
            let mut stack = stack();
            let (port, handle) = (Rc::new(stack.port()), stack.handle());
            let done = stack.block_on(async move {
                let volume =
                    ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
                ext4::mkfs(&*port, &volume).await.unwrap();
                let options = Ext4Options { commit_mode: CommitMode::DualMode, ..Ext4Options::default() };
                let fs = Ext4::mount_with(port, options).await.unwrap();
                let vfs = Vfs::mount(fs, handle.clone(), mount_options()).unwrap();
                let options = HostOptions { plan, seed: 7, epoch_seconds: 0 };
                let guest = Guest::new(vfs.process(Creds::ROOT), handle, options);
                guest
                    .run(move |_| {
                        let db = open(plan);
                        db.execute_batch(
                            "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (0, 0)",
                        )
                        .unwrap();
                        for v in 0..3 {
                            db.execute("UPDATE t SET v = ?1", [v]).unwrap();
                        }
                        db.close().unwrap();
                    })
                    .await;
                drop(guest.take_phases());
                guest
                    .run(move |_| {
                        let db = open(plan);
                        for v in 0..COUNT as i64 {
                            db.execute("UPDATE t SET v = ?1", [v]).unwrap();
                        }
                        // The process dies: nothing is closed.
                        std::mem::forget(db);
                    })
                    .await;
                guest.take_phases()
            });
            let phases = done.unwrap();
            let mut seen: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
            for (phase, stats) in &phases {
                if ["fdatasync", "fsync", "fbarrier", "fdatabarrier"].contains(&phase.call) {
                    *seen.entry(phase.what).or_default() += stats.calls;
                }
            }
            // What a file's beginning needs is done once.
            let each: Vec<String> = seen
                .iter()
                .filter(|(_, count)| **count >= COUNT)
                .map(|(what, count)| format!("{what} {}", count / COUNT))
                .collect();
            assert_eq!(each.join(", "), expected, "{plan:?}: {phases:?}");
            let waits =
                |call: &str| phases.iter().any(|(phase, stats)| phase.call == call && stats.calls >= COUNT);
            match order {
                OrderMode::None => assert!(!waits("fbarrier") && !waits("fdatabarrier"), "{phases:?}"),
                OrderMode::Durable => assert_eq!(waits("fdatasync") || waits("fsync"), !expected.is_empty()),
                OrderMode::All => assert!(!waits("fdatasync") && !waits("fsync"), "{phases:?}"),
            }
        }
    }
}

/// On a file system with atomic files a transaction is one set and one sync; without, SQLite falls back to its journal, which the
/// tests of every journal see.
#[test]
fn a_set_takes_the_place_of_the_journal() {
    const COUNT: i64 = 10;
    let plan = Plan { journal_mode: JournalMode::BatchAtomic, ..Plan::default() };
    let mut stack = stack();
    let (port, handle) = (Rc::new(stack.port()), stack.handle());
    let phases = stack.block_on(async move {
        let volume = ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
        ext4::mkfs(&*port, &volume).await.unwrap();
        let options = Ext4Options { journaling: ext4::Journaling::Journal, ..Ext4Options::default() };
        let fs = Ext4::mount_with(port, options).await.unwrap();
        let vfs = Vfs::mount(fs, handle.clone(), mount_options()).unwrap();
        let ((ids, _), _) = in_guest(vfs.clone(), handle.clone(), plan, program(plan)).await;
        assert_eq!(ids, (10..40).collect::<Vec<i64>>());
        let work = move |_: &Clock| {
            let db = open(plan);
            for id in 0..COUNT {
                db.execute("UPDATE t SET body = zeroblob(100) WHERE id = 10 + ?1", [id]).unwrap();
            }
        };
        in_guest(vfs, handle, plan, work).await.1
    });
    let phases = phases.unwrap();
    let calls = |what: &str, call: &str| {
        let of = |(phase, _): &(&flashweir_sqlite::Phase, _)| phase.what == what && phase.call == call;
        phases.iter().find(of).map_or(0, |(_, stats)| stats.calls)
    };
    assert_eq!(calls("database", "release of a set"), COUNT as u64, "{phases:?}");
    assert_eq!(calls("database", "fdatasync"), COUNT as u64, "{phases:?}");
    assert!(phases.keys().all(|phase| phase.what == "database"), "{phases:?}");
}

/// Two connections of one world share locks and the index of the log; one of them waits while the other writes.
#[test]
fn two_connections_work_side_by_side() {
    for journal_mode in [JournalMode::Persist, JournalMode::Wal] {
        let plan = Plan { journal_mode, ..Plan::default() };
        let mut stack = stack();
        let (port, handle) = (Rc::new(stack.port()), stack.handle());
        let guest = stack.block_on(async move {
            let volume =
                ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
            ext4::mkfs(&*port, &volume).await.unwrap();
            let fs = Ext4::mount_with(port, Ext4Options::default()).await.unwrap();
            let vfs = Vfs::mount(fs, handle.clone(), mount_options()).unwrap();
            let options = HostOptions { plan, seed: 7, epoch_seconds: 0 };
            let guest = Guest::new(vfs.process(Creds::ROOT), handle, options);
            guest.run(move |_| open(plan).execute_batch("CREATE TABLE t (who, v)").unwrap()).await;
            guest
        });
        let guest = guest.unwrap();
        let programs: Vec<_> = (0..2)
            .map(|who: i64| {
                let guest = guest.clone();
                stack.spawn_for(async move {
                    guest
                        .run(move |_| {
                            let db = open(plan);
                            db.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                            for v in 0..30i64 {
                                db.execute("INSERT INTO t VALUES (?1, ?2)", [who, v]).unwrap();
                            }
                            db.query_row("SELECT count(*) FROM t WHERE who = ?1", [who], |row| row.get(0))
                                .unwrap()
                        })
                        .await
                })
            })
            .collect();
        while !programs.iter().all(|program| program.is_set()) {
            assert!(stack.turn());
        }
        let counts: Vec<i64> = programs.iter().filter_map(|program| program.take()).collect();
        assert_eq!(counts, [30, 30], "{journal_mode:?}");
        let all = stack.block_on(async move {
            guest
                .run(move |_| -> i64 {
                    let db = open(plan);
                    db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
                })
                .await
        });
        assert_eq!(all, Some(60));
    }
}

/// The power fails while SQLite waits for a sync: its thread ends, and touches nothing.
#[test]
fn a_cut_ends_the_thread() {
    let plan = Plan::default();
    let mut stack = stack();
    let (port, handle) = (Rc::new(stack.port()), stack.handle());
    let seen = Arc::new(Mutex::new(None));
    let told = Arc::clone(&seen);
    let slot = stack.spawn_for(async move {
        let volume = ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
        ext4::mkfs(&*port, &volume).await.unwrap();
        let fs = Ext4::mount_with(port, Ext4Options::default()).await.unwrap();
        let vfs = Vfs::mount(fs, handle.clone(), mount_options()).unwrap();
        in_guest(vfs, handle, plan, move |_| {
            let db = open(plan);
            db.execute_batch("CREATE TABLE t (v)").unwrap();
            loop {
                if let Err(error) = db.execute("INSERT INTO t VALUES (1)", []) {
                    *told.lock().unwrap() = Some(error.sqlite_error_code());
                    break;
                }
            }
        })
        .await
    });
    for _ in 0..20_000 {
        assert!(stack.turn() && !slot.is_set());
    }
    assert_eq!(*seen.lock().unwrap(), None);
    drop(stack);
    assert_eq!(*seen.lock().unwrap(), Some(Some(rusqlite::ErrorCode::SystemIoFailure)));
}
