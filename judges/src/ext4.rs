//! `cargo xtask ext4-judges`: the ext4 format, judged from outside: by the tools of the format, and by the Linux kernel.
//!
//! Place: `ci` runs all of them; `ext4-judges NAME` runs one. The kernel of this machine mounts volumes through loop
//! devices; the example `tree` of `flashweir-fs` fills them and lists their files, and our code lists those of the image.
//!
//! Invariant: a judge is never skipped; if something that it needs is missing, it fails and names it.

use crate::disk::Mount;
use crate::judge::{Finding, Judge, Judges};
use crate::place::Place;
use crate::program::{run as program, run_failing};
use crate::random::Random;
use crate::tree;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

/// The judges of the format.
pub const JUDGES: Judges = Judges { subject: "ext4", all: &ALL };

/// All of them, in the order of CI.
const ALL: [Judge; 10] = [
    ("made", "e2fsck on volumes that we made", made),
    ("theirs", "volumes that mkfs.ext4 made are read and good, or refused by name", theirs),
    ("kernel-ours", "we make it, Linux fills it, we read, check and encode it", kernel_ours),
    ("kernel-theirs", "mkfs.ext4 makes it, Linux fills it, we read, check and encode it", kernel_theirs),
    ("kernel-wide", "Linux makes large directories, we walk and search them", kernel_wide),
    ("kernel-cut", "Linux is cut off, we replay what it and e2fsck replay", kernel_cut),
    ("ours", "we change volumes of mkfs.ext4 in turn with Linux, e2fsck and Linux judge them", ours),
    ("our-cut", "we are cut off, Linux and e2fsck replay what we replay", our_cut),
    ("broken", "bytes are changed at random, our check finds what e2fsck finds", broken),
    ("logs", "debugfs writes logs, we replay what e2fsck replays", logs),
];

/// Makes an empty volume with these options of `mke2fs`, separated by spaces.
fn make(place: &Place, image: &str, size: &str, options: &str) -> Result<(), String> {
    let _ = std::fs::remove_file(image);
    program(place, &["truncate", "-s", size, image])?;
    let options: Vec<&str> = options.split_whitespace().collect();
    program(place, &[&["mke2fs", "-q", "-F"], options.as_slice(), &[image]].concat()).map(drop)
}

/// Runs `weir` with arguments, separated by spaces; returns its output.
fn weir(place: &Place, line: &str) -> Finding {
    let weir = tree::built("weir");
    let args: Vec<&str> = std::iter::once(weir.as_str()).chain(line.split_whitespace()).collect();
    program(place, &args)
}

/// Checks that neither e2fsck nor our check finds anything.
fn is_good(place: &Place, image: &str) -> Result<(), String> {
    program(place, &["e2fsck", "-fn", image])?;
    weir(place, &format!("fsck {image}")).map(drop)
}

fn made(place: &Place) -> Finding {
    let image = place.path("made.img");
    let volumes = [
        "--size 8MiB",
        "--size 16MiB --label small",
        "--size 100MiB --reserved 0",
        "--size 1MiB -O ^has_journal",
        "--size 132MiB -J 64MiB",
        "--size 1000000KiB -O ^metadata_csum -O ^flex_bg",
        "--size 1GiB",
        "--size 3GiB -O uninit_bg -O ^64bit -i 4096",
        "--size 5GiB -O ^flex_bg -J 1GiB -O ^dir_index",
        "--size 20GiB -O ^sparse_super -N 20000",
        "--size 1TiB",
        "--size 12TiB -i 1048576",
    ];
    for volume in volumes {
        weir(place, &format!("mkfs ext4 {image} --force {volume}"))?;
        is_good(place, &image).map_err(|error| format!("{volume}: {error}"))?;
    }
    Ok(format!("{} volumes of 1 MiB to 12 TiB", volumes.len()))
}

fn kernel_ours(place: &Place) -> Finding {
    let sets = [
        "--label ours",
        "-O ^metadata_csum",
        "-O uninit_bg -O ^64bit -O ^flex_bg",
        "-O ^has_journal -O ^dir_index",
        "-O ^huge_file -O ^dir_nlink -O ^sparse_super -J 4MiB -i 4096",
    ];
    let image = place.path("ours.img");
    let mut names = 0;
    for options in sets {
        weir(place, &format!("mkfs ext4 {image} --force --size 512MiB {options}"))?;
        names += filled(place, &image).map_err(|error| format!("{options}: {error}"))?;
    }
    Ok(format!("{names} names in {} kinds of volumes, each with its bytes and attributes", sets.len()))
}

/// Linux fills a volume, then changes a part of it; each time we find what it finds, and no fault. Returns the number of names.
fn filled(place: &Place, image: &str) -> Result<usize, String> {
    let mut names = 0;
    for step in ["fill", "churn"] {
        let mount = mount(place, image, "rw")?;
        let dir = format!("{}/files", mount.dir());
        program(place, &["mkdir", "-p", &dir])?;
        program(place, &[&tree::program(), step, &dir, &place.seed().to_string()])?;
        mount.unmount()?;
        is_good(place, image).map_err(|error| format!("{step}: {error}"))?;
        let listed = listed(place, image)?;
        let at = |error: String| format!("{step}: {error}");
        names += tree::same(place, image, &listed).map_err(at)?;
        program(place, &[&tree::program(), "encode", image]).map_err(at)?;
    }
    Ok(names)
}

/// Mounts a volume so that reads do not change the listed times.
fn mount<'a>(place: &'a Place, image: &str, options: &str) -> Result<Mount<'a>, String> {
    Mount::of_file(place, "ext4", &format!("noatime,{options}"), image)
}

/// Files that Linux finds in the directory `files` of a volume.
fn listed(place: &Place, image: &str) -> Finding {
    let mount = mount(place, image, "rw")?;
    let listed = program(place, &[&tree::program(), "list", &format!("{}/files", mount.dir())])?;
    mount.unmount()?;
    Ok(listed)
}

fn theirs(place: &Place) -> Finding {
    let image = place.path("theirs.img");
    let good = [
        ("2M", "-t ext4"),
        ("64M", "-t ext4"),
        ("300M", "-t ext4 -b 1024 -m 0 -L label"),
        ("1G", "-t ext4 -b 2048 -O inline_data"),
        ("2G", "-t ext4 -O ^flex_bg,^64bit"),
        ("8G", "-t ext4 -g 8192 -b 1024 -i 65536"),
        ("40G", "-t ext4 -N 100000"),
        ("1T", "-t ext4 -E lazy_itable_init=1"),
        ("100M", "-t ext4 -O quota,project"),
        ("100M", "-t ext4 -O verity,stable_inodes,orphan_file,fast_commit,large_dir,metadata_csum_seed"),
        ("100M", "-t ext2 -r 0"),
    ];
    for (size, options) in good {
        make(place, &image, size, options)?;
        let list = tree::list_image(&image).map_err(|error| format!("{size} {options}: {error}"))?;
        if list.lines().count() != 2 || !list.contains("/lost+found Directory") {
            return Err(format!("{size} {options}: expected lost+found, found {list:?}"));
        }
        is_good(place, &image).map_err(|error| format!("{size} {options}: {error}"))?;
    }
    let refused = [
        ("-t ext4 -O bigalloc", "bigalloc"),
        ("-t ext4 -O encrypt", "encrypt"),
        ("-t ext4 -O casefold", "casefold"),
        ("-t ext4 -O ea_inode", "ea_inode"),
        ("-t ext4 -O meta_bg,^resize_inode", "meta_bg"),
        ("-t ext4 -O mmp", "mmp"),
        ("-O journal_dev", "journal_dev"),
        ("-t ext4 -b 65536", "blocks of 65536 bytes"),
    ];
    for (options, name) in refused {
        make(place, &image, "256M", options)?;
        let said = run_failing(place, &[&tree::program(), "list-image", &image])?;
        if !said.contains("Refused(") || !said.contains(name) {
            return Err(format!("a volume with {options}: {}", said.trim()));
        }
        let said = run_failing(place, &[&tree::built("weir"), "fsck", &image])?;
        if !said.contains("this ext4 volume uses ") || !said.contains(name) {
            return Err(format!("a volume with {options}: {}", said.trim()));
        }
    }
    Ok(format!("{} volumes are read, {} are refused by name", good.len(), refused.len()))
}

fn kernel_theirs(place: &Place) -> Finding {
    // Options of mke2fs, and a tool that changes the volume afterwards.
    let sets: [(&str, &[&str]); 18] = [
        ("-t ext4", &[]),
        ("-t ext4 -b 1024", &[]),
        ("-t ext4 -b 2048 -O inline_data", &[]),
        ("-t ext4 -O inline_data -I 512", &[]),
        ("-t ext4 -I 128", &[]),
        ("-t ext4 -O ^64bit", &[]),
        ("-t ext4 -O ^extent,^64bit", &[]),
        ("-t ext4 -b 1024 -O ^extent,^64bit", &[]),
        ("-t ext4 -O ^metadata_csum", &[]),
        ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", &[]),
        ("-t ext4 -O ^has_journal", &[]),
        ("-t ext4 -O ^dir_index,^filetype", &[]),
        ("-t ext4 -b 1024 -O ^flex_bg,^sparse_super,^resize_inode", &[]),
        ("-t ext4 -b 1024 -O large_dir,orphan_file,metadata_csum_seed,sparse_super2,fast_commit", &[]),
        ("-t ext4", &["tune2fs", "-E", "hash_alg=tea"]),
        // This sets the hash of unsigned bytes.
        ("-t ext4", &["debugfs", "-w", "-R", "set_super_value flags 2"]),
        ("-t ext3 -b 1024", &["tune2fs", "-E", "hash_alg=legacy"]),
        ("-t ext2", &[]),
    ];
    let image = place.path("theirs.img");
    let mut names = 0;
    for (options, tool) in sets {
        make(place, &image, "512M", options)?;
        if !tool.is_empty() {
            program(place, &[tool, &[image.as_str()]].concat())?;
        }
        names += filled(place, &image).map_err(|error| format!("{options} {tool:?}: {error}"))?;
    }
    Ok(format!("{names} names in {} kinds of volumes, each with its bytes and attributes", sets.len()))
}

/// We write a volume, then Linux does, then we again.
fn ours(place: &Place) -> Finding {
    let sets: [(&str, &[&str]); 10] = [
        ("-t ext4 -b 4096", &[]),
        ("-t ext4 -b 4096 -J size=4", &[]),
        ("-t ext4 -b 4096 -O ^metadata_csum,uninit_bg", &[]),
        ("-t ext4 -b 4096 -O ^metadata_csum,^64bit,^flex_bg -I 128", &[]),
        ("-t ext4 -b 4096 -O ^dir_index", &[]),
        ("-t ext4 -b 4096 -O ^filetype", &[]),
        ("-t ext4 -b 4096 -g 8192 -N 20000", &[]),
        ("-t ext4 -b 4096 -O ^dir_nlink,^large_file,^huge_file,^extra_isize -I 512", &[]),
        ("-t ext4 -b 4096 -E lazy_itable_init=1,lazy_journal_init=1 -O metadata_csum_seed,orphan_file", &[]),
        // Its root and its journal have block maps.
        ("-t ext3 -b 4096", &["tune2fs", "-O", "extent"]),
    ];
    let image = place.path("ours.img");
    let seed = place.seed().to_string();
    let mut names = 0;
    for (options, tool) in sets {
        let at = |error: String| format!("{options} {tool:?}: {error}");
        make(place, &image, "600M", options)?;
        if !tool.is_empty() {
            program(place, &[tool, &[image.as_str()]].concat())?;
        }
        for round in 0..2 {
            if round == 1 {
                let mount = mount(place, &image, "rw").map_err(at)?;
                let dir = format!("{}/files/linux", mount.dir());
                program(place, &["mkdir", &dir])?;
                program(place, &[&tree::program(), "fill", &dir, &seed])?;
                program(place, &[&tree::program(), "churn", &dir, &seed])?;
                mount.unmount()?;
            }
            program(place, &[&tree::program(), "write", &image, &format!("{}", place.seed() + round)])
                .map_err(at)?;
            program(place, &["e2fsck", "-fn", &image]).map_err(at)?;
            let listed = listed(place, &image).map_err(at)?;
            names += tree::same(place, &image, &listed).map_err(at)?;
        }
    }
    Ok(format!("{names} names in {} kinds of volumes", sets.len()))
}

/// After a power cut of ours, Linux, e2fsck and our own recovery find the files that we synced.
fn our_cut(place: &Place) -> Finding {
    let (image, copy) = (place.path("our-cut.img"), place.path("our-cut-copy.img"));
    let mut names = 0;
    for options in
        ["-t ext4 -b 4096", "-t ext4 -b 4096 -O ^metadata_csum,^64bit", "-t ext4 -b 4096 -J size=4"]
    {
        let at = |error: String| format!("{options}: {error}");
        make(place, &image, "512M", options)?;
        program(place, &[&tree::program(), "write", &image, &place.seed().to_string()]).map_err(at)?;
        for round in 0..3 {
            let seed = format!("{}", place.seed() + round);
            let tree = tree::program();
            let mut words = vec![tree.as_str(), "sync-image", &image, &seed, "cut"];
            words.extend((round == 1).then_some("data=journal"));
            program(place, &words).map_err(at)?;
            program(place, &["cp", "--sparse=always", &image, &copy])?;
            program(place, &["e2fsck", "-y", "-E", "journal_only", &copy]).map_err(at)?;
            program(place, &["e2fsck", "-fn", &copy]).map_err(at)?;
            program(place, &["cp", "--sparse=always", &image, &copy])?;
            let listed = listed(place, &copy).map_err(at)?;
            program(place, &["e2fsck", "-fn", &copy]).map_err(at)?;
            names += tree::same(place, &image, &listed).map_err(at)?;
            program(place, &[&tree::program(), "recover", &image]).map_err(at)?;
            program(place, &["e2fsck", "-fn", &image]).map_err(at)?;
            names += tree::same(place, &image, &listed).map_err(at)?;
        }
    }
    Ok(format!("{names} names"))
}

/// Directories whose index has a level below the root, and with `large_dir` two. A block of 1 KiB has room for three of
/// these names; Linux refuses further ones, at worst near 20,000, where the root is full and there may be no second level.
fn kernel_wide(place: &Place) -> Finding {
    let image = place.path("wide.img");
    let mut all = 0;
    for (features, count) in [("dir_index", 15_000), ("large_dir", 60_000), ("^metadata_csum", 15_000)] {
        make(place, &image, "512M", &format!("-t ext4 -b 1024 -N 80000 -O {features}"))?;
        let mount = mount(place, &image, "rw")?;
        let dir = format!("{}/files", mount.dir());
        program(place, &["mkdir", &dir])?;
        for number in 0..count {
            let path = format!("{dir}/{}-{number}", "n".repeat(240));
            File::create(&path).map_err(|error| format!("{path}: {error}"))?;
        }
        mount.unmount()?;
        let listed = listed(place, &image)?;
        all += tree::same(place, &image, &listed).map_err(|error| format!("{features}: {error}"))?;
    }
    Ok(format!("{all} names"))
}

/// The number after a word.
fn number_after(text: &str, word: &str) -> Result<u64, String> {
    let digits = text
        .split(word)
        .nth(1)
        .map(|rest| rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("no {word:?} in {:?}", text.trim()))
}

/// Compares our replay with what e2fsck writes into a copy. Returns a description of the log.
fn replayed(place: &Place, image: &str) -> Finding {
    let copy = place.path("replayed.img");
    program(place, &["cp", "--sparse=always", image, &copy])?;
    program(place, &["e2fsck", "-y", "-E", "journal_only", &copy])?;
    program(place, &[&tree::program(), "replayed", image, &copy])
}

/// After our replay of a log, e2fsck finds no fault in the volume, and Linux finds what we find. Returns the number of names.
fn written(place: &Place, image: &str) -> Result<usize, String> {
    program(place, &[&tree::program(), "replay", image])?;
    program(place, &["e2fsck", "-fn", image])?;
    let listed = listed(place, image)?;
    tree::same(place, image, &listed)
}

/// The image of a mounted volume is copied while synced changes are in its journal.
fn kernel_cut(place: &Place) -> Finding {
    // Options of mke2fs and of the mount, and the checksums of the journal.
    let sets = [
        ("-t ext4 -b 4096", "rw", "V3"),
        ("-t ext4 -b 1024 -O orphan_file", "data=journal", "V3"),
        ("-t ext4 -O ^metadata_csum,^64bit", "journal_checksum,data=journal", "V1"),
        ("-t ext4 -b 4096", "data=writeback,journal_async_commit", "V3"),
        ("-t ext3 -b 1024", "rw", "None"),
    ];
    let (image, cut) = (place.path("whole.img"), place.path("cut.img"));
    let (mut names, mut transactions, mut revoked) = (0, 0, 0);
    for (options, mounted, checksums) in sets {
        let at = |error: String| format!("{options}, {mounted}: {error}");
        make(place, &image, "256M", options)?;
        // Only syncs commit, so that the image does not change while it is copied.
        let mount = mount(place, &image, &format!("commit=600,{mounted}")).map_err(at)?;
        let dir = format!("{}/files", mount.dir());
        let seed = place.seed().to_string();
        program(place, &["mkdir", &dir])?;
        program(place, &[&tree::program(), "fill", &dir, &seed])?;
        program(place, &["sync", "-f", &dir])?;
        program(place, &[&tree::program(), "churn", &dir, &seed])?;
        program(place, &["sync", &format!("{dir}/big")])?;
        program(place, &["cp", "--sparse=always", &image, &cut])?;
        // e2fsck deletes orphans, so there must be none at first.
        let said = replayed(place, &cut).map_err(at)?;
        if !said.contains(&format!("checksums {checksums} ")) || number_after(&said, "orphans:")? != 0 {
            return Err(at(format!("expected checksums {checksums} and no orphan: {}", said.trim())));
        }
        revoked += number_after(&said, "revoked:")?;
        let ours = place.path("ours.img");
        program(place, &["cp", "--sparse=always", &cut, &ours])?;
        let open = cut_off(&dir).map_err(|error| at(error.to_string()))?;
        program(place, &["cp", "--sparse=always", &image, &cut])?;
        drop(open);
        mount.unmount()?;
        // Our replay leaves a volume without faults. We only read an orphan file, so it is left out.
        if !options.contains("orphan_file") {
            names += written(place, &ours).map_err(at)?;
        }
        program(place, &[&tree::program(), "encode", &cut]).map_err(at)?;
        let said = program(place, &[&tree::program(), "replayed", &cut]).map_err(at)?;
        if number_after(&said, "orphans:")? != 1 {
            return Err(at(format!("expected an orphan: {}", said.trim())));
        }
        transactions += number_after(&said, "transactions:")?;
        let theirs = place.path("theirs.img");
        program(place, &["cp", "--sparse=always", &cut, &theirs])?;
        weir(place, &format!("fsck {cut}")).map_err(at)?;
        let listed = listed(place, &theirs)?;
        if listed.contains("/never-synced") || !listed.contains("/synced") {
            return Err(at("the cut is not where it is expected".into()));
        }
        names += tree::same(place, &cut, &listed).map_err(at)?;
    }
    if revoked == 0 {
        return Err("nothing was revoked".into());
    }
    Ok(format!("{names} names from {transactions} transactions, {revoked} blocks revoked"))
}

/// Makes an orphan that is open, a synced file whose blocks begin like those of the journal, and a name that is not
/// synced, for a cut to find.
fn cut_off(dir: &str) -> std::io::Result<File> {
    let open = File::create(format!("{dir}/open"))?;
    std::fs::remove_file(format!("{dir}/open"))?;
    let mut synced = File::create(format!("{dir}/synced"))?;
    let mut bytes = vec![7; 20_000];
    for start in (0..bytes.len()).step_by(1024) {
        bytes[start..start + 4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    }
    synced.write_all(&bytes)?;
    synced.sync_all()?;
    std::fs::create_dir(format!("{dir}/never-synced"))?;
    Ok(open)
}

/// Changes single bytes of a volume without checksums, one at a time, and asks both checks. If only e2fsck misses a change, Linux
/// may refuse it; changes that only we miss are counted.
fn broken(place: &Place) -> Finding {
    const CHANGES: usize = 120;
    let image = place.path("broken.img");
    let (mut found, mut missed) = (0, Vec::new());
    for options in [
        "-t ext4 -b 1024 -N 2048 -O ^metadata_csum",
        "-t ext4 -b 1024 -N 2048 -O ^extent,^64bit,^metadata_csum",
    ] {
        make(place, &image, "32M", options)?;
        let mount = mount(place, &image, "rw")?;
        let dir = format!("{}/files", mount.dir());
        small_tree(&dir).map_err(|error| format!("{dir}: {error}"))?;
        mount.unmount()?;
        is_good(place, &image)?;
        let whole = std::fs::read(&image).map_err(|error| format!("{image}: {error}"))?;
        let mut random = Random::new(place.seed(), 7);
        let places: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] != 0).collect();
        let file = File::options().write(true).open(&image).map_err(|error| format!("{image}: {error}"))?;
        for _ in 0..CHANGES {
            // A zero byte beside one that is not zero is as likely.
            let at = places[random.below(places.len() as u64) as usize] ^ random.below(2) as usize;
            let byte = [0, 0xff, whole[at] ^ 1 << random.below(8)][random.below(3) as usize];
            let put =
                |byte: u8| file.write_all_at(&[byte], at as u64).map_err(|error| format!("{image}: {error}"));
            put(byte)?;
            let theirs = ended(place, &["e2fsck", "-fn", &image], &[0, 4, 8, 12])?;
            let ours = ended(place, &[&tree::built("weir"), "fsck", &image], &[0, 1, 2])?;
            if theirs {
                found += 1;
                if !ours {
                    missed.push(format!("byte {at:#x} {:#x} as {byte:#x}", whole[at]));
                }
            }
            put(whole[at])?;
        }
    }
    if found < CHANGES / 10 || missed.len() * 20 > found {
        return Err(format!(
            "of {found} changes that e2fsck finds we miss {}: {}",
            missed.len(),
            missed.join(", ")
        ));
    }
    Ok(format!("{} changes, e2fsck finds {found}, of which we miss {}", 2 * CHANGES, missed.len()))
}

/// Whether a program ends with a code other than 0. It is an error if it ends with none of these codes.
fn ended(place: &Place, args: &[&str], codes: &[i32]) -> Result<bool, String> {
    let output = std::process::Command::new(args[0]).args(&args[1..]).current_dir(place.path("")).output();
    let output = output.map_err(|error| format!("{}: {error}", args[0]))?;
    match output.status.code() {
        Some(code) if codes.contains(&code) => Ok(code != 0),
        _ => {
            Err(format!("{args:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

/// Makes some files of each kind, with few blocks of contents.
fn small_tree(dir: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(format!("{dir}/many"))?;
    for number in 0..200 {
        File::create(format!("{dir}/many/file-with-a-long-name-{number}"))?;
    }
    for number in 0..10 {
        std::fs::create_dir(format!("{dir}/directory-{number}"))?;
        std::fs::write(format!("{dir}/file-{number}"), vec![b'x'; 100 * number])?;
        std::fs::hard_link(format!("{dir}/file-{number}"), format!("{dir}/other-{number}"))?;
    }
    std::os::unix::fs::symlink("short", format!("{dir}/fast"))?;
    std::os::unix::fs::symlink("x".repeat(200), format!("{dir}/slow"))?;
    let holes = File::create(format!("{dir}/holes"))?;
    for number in 0..300 {
        holes.write_all_at(b"z", number * 8192)?;
    }
    holes.sync_all()
}

/// Logs of all kinds, with revoked blocks and with blocks that begin like those of the journal.
fn logs(place: &Place) -> Finding {
    let image = place.path("log.img");
    let mut bytes = vec![0; 6 * 1024];
    for (index, block) in bytes.chunks_mut(1024).enumerate() {
        block.fill(index as u8 + 1);
    }
    bytes[1024..1028].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    let content = place.write("content", &bytes)?;
    let mut kinds = 0;
    for version in ["", "-c -v 2", "-c -v 3"] {
        for features in ["64bit", "^64bit"] {
            make(place, &image, "64M", &format!("-t ext4 -b 1024 -O {features}"))?;
            let commands = format!(
                "jo {version}\njw -b 20000,20001,20002 {content}\njw -r 20000,20001\n\
                 jw -b 20001,20002,20003 {content}\njw -r 20003\njc\n"
            );
            let commands = place.write("commands", commands.as_bytes())?;
            program(place, &["debugfs", "-w", "-f", &commands, &image])?;
            let said = replayed(place, &image).map_err(|error| format!("{version:?} {features}: {error}"))?;
            let counts = ["transactions:", "blocks:", "revoked:"].map(|word| number_after(&said, word));
            if counts != [Ok(4), Ok(2), Ok(3)] {
                return Err(format!("{version:?} {features}: {}", said.trim()));
            }
            kinds += 1;
        }
    }
    Ok(format!("{kinds} kinds of logs"))
}
