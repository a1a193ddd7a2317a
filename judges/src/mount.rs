//! `cargo xtask mount-judges`: third-party programs and test suites on file systems mounted by `weir mount`, with power cuts
//! among them, and the formats' checkers afterwards.
//!
//! Place: `ci` runs all of them; `mount-judges NAME` runs one. They need root, `/dev/fuse`, and two test suites, which cargo
//! installs in the target directory.
//!
//! Invariant: a judge is never skipped; if something that it needs is missing, it fails and names it.

mod batch;
mod check;
mod coherence;
mod fsx;
mod interrupts;
mod lazyfs;
mod mounted;
mod nameless;
mod project;
mod room;

use crate::host::root;
use crate::judge::{Finding, Judge, Judges};
use crate::place::Place;
use crate::program::{Program, run as program, wait_until};
use crate::tree::built;
use mounted::{ALL_FORMATS, END, FORMATS, Mount, image, is_good, number_in, suite, synced};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

/// The judges of mounts.
pub const JUDGES: Judges = Judges { subject: "mount", all: &ALL };

/// All of them, in the order of CI.
const ALL: [Judge; 20] = [
    ("programs", "cp, git, dd and sqlite3 work, the formats' checkers find nothing", programs),
    ("project", "a project is cloned, built and tested, before and after a power cut", project::judge),
    ("cuts", "what was synced is there after cuts, what was open is not", cuts),
    ("kept", "volumes keep what was synced when the mount is killed, images are as before", kept),
    ("room", "an image for which there is no room is refused, or saved elsewhere", room::judge),
    ("without-root", "mount, cut and check need no root", room::without_root),
    (
        "interrupts",
        "no signal but SIGKILL is seen by a call, and nothing acknowledged is lost",
        interrupts::judge,
    ),
    (
        "coherence",
        "direct writes, blocks, set-ID bits and limits as on a local file system",
        coherence::judge,
    ),
    ("nameless", "O_TMPFILE, access lists, data and holes, before and after power cuts", nameless::judge),
    ("barriers", "the example in C: a page is never newer than its log", barriers),
    ("copies", "cp by SHARE: equal, also when the table is full, and apart afterwards", copies),
    ("atomic-files", "the example in C: two files change together or not at all", atomic_files),
    ("exchanges", "the example in C: a file that changes as a whole, by an exchange of ranges", exchanges),
    ("batch-atomic", "SQLite without a rollback journal, where it can be, under power cuts", batch::judge),
    (
        "databases",
        "sqlite3, MariaDB with and without doublewrite, and RocksDB have after cuts what they acknowledged",
        databases,
    ),
    ("check", "weir check finds the sync that an example lacks, and nothing where it is", check::judge),
    ("lazyfs", "a test rig for LazyFS finds what it expects", lazyfs::judge),
    ("pjdfstest", "the rules of POSIX, by pjdfstest", pjdfstest),
    ("fsx", "random operations on one file, by fsx", fsx::judge),
    ("fsx-cuts", "fsx and power cuts in turn: what was synced is there, to the byte", fsx::cuts),
];

/// Work of programs; `$1` is the directory, `$2` a tree of files.
const WORK: &str = r#"
set -e
cd "$1"
cp -a "$2" copy
diff -r "$2" copy
git init -q repository
cp -r copy repository/
(cd repository && git add -A && git -c user.name=judge -c user.email=judge@localhost commit -qm first && git fsck && test -z "$(git status --short)")
dd if=/dev/urandom of=direct bs=64k count=100 oflag=direct status=none
test "$(dd if=direct bs=64k iflag=direct status=none | md5sum)" = "$(md5sum < direct)"
for mode in delete wal; do
  sqlite3 "$mode.db" "pragma journal_mode=$mode; create table t(a, b); with recursive n(a) as (select 1 union all select a+1 from n where a<1000) insert into t select a, hex(randomblob(100)) from n; update t set b=b||'x' where a%7=0;" > said
  test "$(sqlite3 "$mode.db" 'pragma integrity_check; select count(*) from t')" = "ok
1000"
done
rm -r copy/*
mv repository moved
ln moved/.git/HEAD head
ln -s head link
test "$(cat link)" = "$(cat moved/.git/HEAD)"
"#;

fn programs(place: &Place) -> Finding {
    let mounts = [
        ("ext4", "--speed max"),
        ("ext4", "--speed 20 --journal-mode journal --device sata-mlc"),
        ("ext4", "--speed max --commit dual --device barrier-850 --write-back"),
        ("f2fs", "--speed max"),
        ("f2fs", "--speed real --cache 1MiB"),
        ("f2fs", "--speed max --commit dual --device barrier-850"),
        ("f2fs", "--speed max --flush rflush --device rflush"),
        ("alfs", "--speed max"),
        ("alfs", "--speed real --cache 1MiB --flush rflush"),
    ];
    let tree = root().join("crates/fs/src").display().to_string();
    for (format, options) in mounts {
        let found = || {
            let image = image(place, format)?;
            let mount = Mount::new(place, &image, options)?;
            program(place, &["sh", "-c", WORK, "sh", &mount.dir, &tree])?;
            mount.unmount()?;
            is_good(place, format, &image)?;
            // Everything is there after a new mount.
            let mount = Mount::new(place, &image, options)?;
            program(place, &["git", "-C", &mount.path("moved"), "fsck"])?;
            program(place, &["diff", "-r", &tree, &mount.path("moved/copy")])?;
            mount.unmount()
        };
        found().map_err(|error: String| format!("{format} {options}: {error}"))?;
    }
    Ok(format!("{} mounts", mounts.len()))
}

fn cuts(place: &Place) -> Finding {
    const CUTS: u64 = 8;
    const FILES: u64 = 20;
    let content = |cut: u64, file: u64| format!("cut {cut}, file {file}\n").repeat(1 + 400 * file as usize);
    let mut count = 0;
    for format in ALL_FORMATS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, "--speed max")?;
        for cut in 0..CUTS {
            let mut open = Vec::new();
            for file in 0..FILES {
                open.push(synced(&mount, &format!("{cut}-{file}"), content(cut, file).as_bytes())?);
            }
            // Unsynced data may be lost, and a file must not stay longer in the kernel than on the disk.
            for (at, file) in open.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
                file.write_all_at(b"not synced", 1 << 20).map_err(|error| format!("{at}: {error}"))?;
            }
            mount.cut(place.seed() + cut)?;
            let mut byte = [0];
            for file in &open {
                let told =
                    [file.read_at(&mut byte, 0).err(), file.sync_all().err(), file.write_at(&byte, 0).err()];
                if told.iter().any(|error| error.as_ref().and_then(std::io::Error::raw_os_error) != Some(5)) {
                    return Err(format!(
                        "{format}, cut {cut}: an old descriptor says {told:?}, expected EIO"
                    ));
                }
            }
            for (cut, file) in (0..=cut).flat_map(|cut| (0..FILES).map(move |file| (cut, file))) {
                let (name, expected) = (format!("{cut}-{file}"), content(cut, file));
                let mut found = Vec::new();
                let read =
                    File::open(mount.path(&name)).and_then(|mut opened| opened.read_to_end(&mut found));
                read.map_err(|error| format!("{format}, {name}: {error}"))?;
                // The unsynced write may be durable nevertheless.
                if !found.starts_with(expected.as_bytes()) || (file % 3 != 0 && found.len() != expected.len())
                {
                    return Err(format!(
                        "{format}: {name} has {} bytes, expected {}",
                        found.len(),
                        expected.len()
                    ));
                }
                count += 1;
            }
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    Ok(format!("{} cuts, {count} files looked at", CUTS * ALL_FORMATS.len() as u64))
}

fn kept(place: &Place) -> Finding {
    for format in FORMATS {
        let volume = place.path(&format!("{format}-volume"));
        let create = ["volume", "create", &volume, "--device", "consumer-tlc-nvme", "--capacity", "1GiB"];
        program(place, &[&[built("weir").as_str()], &create[..]].concat())?;
        let mount = Mount::new(place, &volume, &format!("--speed max --mkfs {format}"))?;
        drop(synced(&mount, "synced", b"it is there")?);
        mount.kill()?;
        let mount = Mount::new(place, &volume, "--speed max")?;
        let there = std::fs::read(mount.path("synced")).map_err(|error| format!("{format}: {error}"))?;
        if there != b"it is there" {
            return Err(format!("{format}: another content: {there:?}"));
        }
        std::fs::write(mount.path("closed"), "it is, too").map_err(|error| error.to_string())?;
        mount.unmount()?;
        let mount = Mount::new(place, &volume, "--speed max")?;
        let there = std::fs::read(mount.path("closed")).map_err(|error| format!("{format}: {error}"))?;
        if there != b"it is, too" {
            return Err(format!("{format}: another content: {there:?}"));
        }
        mount.unmount()?;
        program(place, &[&built("weir"), "volume", "check", &volume])?;
        image_is_kept(place, format)?;
    }
    Ok("killed and unmounted, both formats".into())
}

/// Checks that an image changes only when a mount has ended in order, and not if that mount was read-only.
fn image_is_kept(place: &Place, format: &str) -> Result<(), String> {
    let image = image(place, format)?;
    let content = || std::fs::read(&image).map_err(|error| format!("{image}: {error}"));
    let before = content()?;
    let mount = Mount::new(place, &image, "--speed max")?;
    drop(synced(&mount, "synced", b"on the device")?);
    mount.kill()?;
    if content()? != before {
        return Err(format!("{format}: a mount that was killed has changed its image"));
    }
    let mount = Mount::new(place, &image, "--speed max --read-only")?;
    let refused = std::fs::write(mount.path("refused"), "").err().and_then(|error| error.raw_os_error());
    mount.unmount()?;
    if (refused, content()? == before) != (Some(30), true) {
        return Err(format!(
            "{format}, read-only: a write says {refused:?}, expected EROFS, and the same image"
        ));
    }
    let mount = Mount::new(place, &image, "--speed max")?;
    std::fs::write(mount.path("written"), "kept").map_err(|error| error.to_string())?;
    mount.unmount()?;
    if content()? == before {
        return Err(format!("{format}: what was written is not in the image"));
    }
    is_good(place, format, &image)
}

/// A device whose buffer fills quickly, so that some data are kept and others lost.
const BARRIERS: &str = "--speed real --commit dual --device barrier-850 --set buffer.capacity=1MiB";

fn barriers(place: &Place) -> Finding {
    const CUTS: u64 = 4;
    let source = |name: &str| root().join(name).display().to_string();
    let (example, include) = (place.path("barrier"), format!("-I{}", source("include")));
    program(
        place,
        &["cc", "-Wall", "-Wextra", "-Werror", "-o", &example, &source("examples/barrier.c"), &include],
    )?;
    let mut records = 0;
    for format in FORMATS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, BARRIERS)?;
        for cut in 0..CUTS {
            let (log, page) = (mount.path(&format!("log-{cut}")), mount.path(&format!("page-{cut}")));
            let records_log = synced(&mount, &format!("log-{cut}"), &[0; 256 << 10])?;
            drop(synced(&mount, &format!("page-{cut}"), &[0; 4096])?);
            let mut rounds = Program::start(place, &[&example, &log, &page, "1000000000"])?;
            // Some rounds are complete when the power is cut.
            let (mut record, last) = ([0; 8], 8 * (600 + 300 * cut));
            wait_until("rounds of the example", || {
                let read = records_log.read_exact_at(&mut record, last);
                read.map(|()| record != [0; 8]).map_err(|error| format!("{log}: {error}"))
            })?;
            mount.cut(place.seed() + cut)?;
            let status = rounds.wait(END)?;
            if status.success() || !rounds.output().contains("Input/output error") {
                return Err(format!("{format}: the example saw no cut: {}", rounds.output().trim()));
            }
            let said = program(place, &[&example, "--check", &log, &page])?;
            records += number_in(&said);
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    if records == 0 {
        return Err("no cut left a record: nothing was shown".into());
    }
    Ok(format!("{} cuts, {records} records survived", CUTS * 2))
}

/// A device whose table of shared pages holds half of the copy.
const SHARING: &str = "--speed max --device share-960evo --set ftl.share.pages=8192";

fn copies(place: &Place) -> Finding {
    const BYTES: usize = 64 << 20;
    let mut written = Vec::new();
    for format in FORMATS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, SHARING)?;
        let content: Vec<u8> =
            (0..BYTES as u64 / 8).flat_map(|word| (word ^ place.seed()).to_le_bytes()).collect();
        drop(synced(&mount, "source", &content)?);
        let (source, target) = (mount.path("source"), mount.path("target"));
        let units = || units_of(place, &mount);
        let before = units()?;
        program(place, &["cp", &source, &target])?;
        program(place, &["sync", &target])?;
        written.push(format!("{format} {}", units()? - before));
        program(place, &["cmp", &source, &target])?;
        // Both go their own ways, and the power is cut.
        let changed =
            std::fs::OpenOptions::new().write(true).open(&source).map_err(|error| error.to_string())?;
        changed.write_all_at(&[7; 9000], 5000).map_err(|error| error.to_string())?;
        changed.sync_all().map_err(|error| error.to_string())?;
        drop(changed);
        mount.cut(place.seed())?;
        let read = |path: &str| std::fs::read(path).map_err(|error| format!("{path}: {error}"));
        let (mut expected, found) = (content, read(&target)?);
        if found != expected {
            return Err(format!("{format}: the copy is not what was copied"));
        }
        expected[5000..14_000].fill(7);
        if read(&source)? != expected {
            return Err(format!("{format}: the source is not as it was synced"));
        }
        std::fs::remove_file(&source).map_err(|error| error.to_string())?;
        program(place, &["sync", "-f", &target])?;
        expected[5000..14_000].copy_from_slice(&found[5000..14_000]);
        if read(&target)? != expected {
            return Err(format!("{format}: the copy went with its source"));
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    Ok(format!("pages that the host wrote of 16,384: {}", written.join(", ")))
}

/// Units that the host has written to the device of a mount.
fn units_of(place: &Place, mount: &Mount<'_>) -> Result<u64, String> {
    let control = mount.control();
    let said = program(place, &[&built("weir"), "top", &control, "--once", "--output", "json"])?;
    let status: serde_json::Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
    let units = status.pointer("/disks/0/units/0").and_then(serde_json::Value::as_u64);
    units.ok_or_else(|| format!("weir top says {said}"))
}

fn atomic_files(place: &Place) -> Finding {
    whole_under_cuts(place, "transfer", "fatomic: Operation not supported")
}

fn exchanges(place: &Place) -> Finding {
    whole_under_cuts(place, "exchange", "fexchange: Inappropriate ioctl for device")
}

/// Runs an example in C on two files while the power is cut, on every kind of mount that has sets. It goes by rounds, of which a cut leaves
/// the last one wholly or not at all. Where there are none it fails with `refusal`.
fn whole_under_cuts(place: &Place, name: &str, refusal: &str) -> Finding {
    const CUTS: u64 = 3;
    let source = |name: &str| root().join(name).display().to_string();
    let (example, include) = (place.path(name), format!("-I{}", source("include")));
    let text = source(&format!("examples/{name}.c"));
    program(place, &["cc", "-Wall", "-Wextra", "-Werror", "-o", &example, &text, &include])?;
    let mut rounds = 0;
    for (format, options) in [
        ("ext4", "--speed real --journal-mode journal"),
        ("ext4", "--speed real --journal-mode journal --device share-960evo --checkpoint share"),
        ("ext4", "--speed real --journal-mode journal --write-back --device barrier-850 --commit dual"),
        ("ext4", "--speed real --device share-960evo --checkpoint share"),
        ("f2fs", "--speed real --device share-960evo --write-back"),
    ] {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, options)?;
        for cut in 0..CUTS {
            let (left, right) = (mount.path(&format!("left-{cut}")), mount.path(&format!("right-{cut}")));
            program(place, &[&example, &left, &right, "5"])?;
            let mut running = Program::start(place, &[&example, &left, &right, "1000000000"])?;
            // Other files are made durable meanwhile, and their commits release nothing of the two.
            for other in 0..20 + 10 * cut {
                drop(synced(&mount, &format!("other-{other}"), &[1; 5000])?);
            }
            mount.cut(place.seed() + cut)?;
            let status = running.wait(END)?;
            if status.success() || !running.output().contains("Input/output error") {
                return Err(format!("{options}: the example saw no cut: {}", running.output().trim()));
            }
            let said = program(place, &[&example, "--check", &left, &right])?;
            rounds += number_in(&said);
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    if rounds <= 4 * 5 * CUTS {
        return Err(format!("{rounds} rounds survived: no more than before the cuts"));
    }
    let image = image(place, "f2fs")?;
    let mount = Mount::new(place, &image, "--speed max")?;
    let mut refused = Program::start(place, &[&example, &mount.path("left"), &mount.path("right"), "1"])?;
    let status = refused.wait(END)?;
    if status.success() || !refused.output().contains(refusal) {
        return Err(format!("f2fs: expected `{refusal}`, found {}", refused.output().trim()));
    }
    mount.unmount()?;
    Ok(format!("{} cuts, {rounds} rounds survived", CUTS * 5))
}

/// Number of power cuts under each database.
const DATABASE_CUTS: u64 = 2;

fn databases(place: &Place) -> Finding {
    let setting = |name: &str, value: &str| format!("{name}={value}");
    let mut runs = 0;
    for format in FORMATS {
        for (script, journal) in [
            ("sqlite3", "wal"),
            ("sqlite3", "delete"),
            ("sqlite3", "persist"),
            ("mariadb", ""),
            ("mariadb", "none"),
            ("rocksdb", ""),
        ] {
            let script =
                root().join("examples/databases").join(script).with_extension("sh").display().to_string();
            let settings = [
                setting("WEIR", &built("weir")),
                setting("FORMAT", format),
                setting("JOURNAL", journal),
                setting("ATOMIC", if journal == "none" { "1" } else { "" }),
                setting("CUTS", &DATABASE_CUTS.to_string()),
                setting("SEED", &(place.seed() % 1_000_000 + runs).to_string()),
                setting("TMPDIR", &place.dir().display().to_string()),
            ];
            let line: Vec<&str> = ["env"]
                .into_iter()
                .chain(settings.iter().map(String::as_str))
                .chain(["bash", &script])
                .collect();
            program(place, &line)?;
            runs += 1;
        }
    }
    Ok(format!("{} cuts", runs * DATABASE_CUTS))
}

/// Configuration as in docs/posix.md: two users that every Debian has, and timestamps with the granularity of the kernel's ticks.
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// Makes a directory with a `mount` that calls no helper: if libfuse is installed, its `mount.fuse` takes a remount of `fuse.weir`
/// for a call of a program `weir`.
fn without_helpers(place: &Place) -> Result<String, String> {
    let dir = place.make_dir("no-helpers")?;
    let mount = place.write("no-helpers/mount", b"#!/bin/sh\nexec /bin/mount -i \"$@\"\n")?;
    program(place, &["chmod", "755", &mount])?;
    Ok(dir)
}

fn pjdfstest(place: &Place) -> Finding {
    let suite = suite("pjdfstest", "0.2.2")?;
    let config = place.write("pjdfstest.toml", PJDFSTEST.as_bytes())?;
    // Among the others these tests fail on any file system: an earlier one leaves a file open, which prevents a read-only remount.
    let remounts = PJDFSTEST.replace("allow_remount = false", "allow_remount = true");
    let remounts = place.write("remounts.toml", remounts.as_bytes())?;
    let no_helpers = without_helpers(place)?;
    let first_on_path = r#"PATH="$0:$PATH" exec "$@""#;
    let other = place.make_dir("other")?;
    // Some rules concern files on another file system.
    program(place, &["mount", "-t", "tmpfs", "other", &other])?;
    let mut said = String::new();
    for format in ALL_FORMATS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, "--speed max --allow-other")?;
        let output = program(place, &[&suite, "-c", &config, "-p", &mount.dir, "-s", &other])?;
        let line =
            ["sh", "-c", first_on_path, &no_helpers, &suite, "-c", &remounts, "-p", &mount.dir, "erofs"];
        let read_only = program(place, &line)?;
        let summary =
            output.lines().find(|line| line.starts_with("Summary: ")).unwrap_or("no summary").to_owned();
        let is_right = summary.starts_with("Summary: 0 failed, 14 skipped, 384 passed");
        mount.unmount()?;
        is_good(place, format, &image)?;
        if !read_only.contains("Summary: 0 failed, 0 skipped, 13 passed") {
            return Err(format!("{format}: not all rules of read-only file systems: {}", read_only.trim()));
        }
        if !is_right {
            return Err(format!("{format}: {summary}, expected 0 failed, 14 skipped, 384 passed"));
        }
        said = summary;
    }
    program(place, &["umount", &other])?;
    Ok(format!("all three formats: {}, and 13 by themselves", said.trim_start_matches("Summary: ")))
}
