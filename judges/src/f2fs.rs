//! `cargo xtask f2fs-judges`: the F2FS format, judged from outside: by the tools of the format, and by the Linux kernel.
//!
//! Place: `ci` runs all of them; `f2fs-judges NAME` runs one. A kernel fills a volume with the example `tree` of
//! `flashweir-fs`, which also lists the files, by system calls or from the image as our code reads it.
//!
//! Invariant: a judge is never skipped; if something that it needs is missing, it fails and names it.

use crate::judge::{Finding, Judge, Judges};
use crate::place::Place;
use crate::program::{run as program, run_failing};
use crate::tree::{self, built};
use crate::uml;

/// The judges of the format.
pub const JUDGES: Judges = Judges { subject: "F2FS", all: &ALL };

/// All of them, in the order of CI.
const ALL: [Judge; 8] = [
    ("made", "fsck.f2fs on volumes that we made", made),
    ("theirs", "our check on volumes that mkfs.f2fs made, and what is refused", theirs),
    ("kernel-theirs", "mkfs.f2fs makes it, Linux fills it, we read it", kernel_theirs),
    ("kernel-ours", "we make it, Linux fills it, we read it", kernel_ours),
    ("kernel-written", "we make it and fill it, Linux reads it, and changes it", kernel_written),
    ("kernel-cut", "Linux is cut off with orphans, we read the last checkpoint", kernel_cut),
    ("kernel-synced", "Linux syncs files and is cut off, we recover them", kernel_synced),
    ("ours-synced", "we sync files and are cut off, Linux and we recover them", ours_synced),
];

/// Runs `weir` with arguments; returns its output.
fn weir(place: &Place, args: &[&str]) -> Finding {
    program(place, &[&[built("weir").as_str()], args].concat())
}

/// Checks that `fsck.f2fs` finds nothing to repair.
pub(crate) fn fsck(place: &Place, image: &str) -> Result<(), String> {
    let said = program(place, &["fsck.f2fs", "--dry-run", image])?;
    let bad = said
        .lines()
        .find(|line| ["[Fail]", "ASSERT", "Need to fix", "FIX"].iter().any(|word| line.contains(word)));
    match bad {
        Some(line) => Err(format!("fsck.f2fs: {}", line.trim())),
        None if said.contains("[FSCK]") => Ok(()),
        None => Err(format!("fsck.f2fs checked nothing: {}", said.trim())),
    }
}

fn made(place: &Place) -> Finding {
    let all = "-O extra_attr -O flexible_inline_xattr -O inode_checksum -O inode_crtime -O sb_checksum";
    let volumes = [
        "--size 44MiB".to_string(),
        "--size 64MiB --label small".to_string(),
        "--size 100MiB --overprovision 60".to_string(),
        format!("--size 512MiB {all}"),
        "--size 1000000KiB -O inode_checksum".to_string(),
        "--size 2GiB -s 4 -z 2 --overprovision 8.5".to_string(),
        "--size 4GiB -s 8 -O sb_checksum".to_string(),
        "--size 100GiB".to_string(),
        "--size 1TiB -s 2".to_string(),
    ];
    let image = place.path("made.img");
    for volume in &volumes {
        let line = format!("mkfs f2fs {image} --force {volume}");
        weir(place, &line.split(' ').collect::<Vec<_>>())?;
        fsck(place, &image).map_err(|error| format!("{volume}: {error}"))?;
        weir(place, &["fsck", &image])?;
    }
    Ok(format!("{} volumes of 44 MiB to 1 TiB", volumes.len()))
}

fn theirs(place: &Place) -> Finding {
    let all = "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found";
    let image = place.path("theirs.img");
    let make = |size: &str, options: &[&str]| {
        let _ = std::fs::remove_file(&image);
        program(place, &["truncate", "-s", size, &image])?;
        program(place, &[&["mkfs.f2fs", "-q", "-f"], options, &[image.as_str()]].concat())
    };
    let good: [(&str, &[&str]); 6] = [
        ("64M", &[]),
        ("300M", &["-l", "label", "-o", "20"]),
        ("1G", &["-O", all]),
        ("2G", &["-s", "4", "-z", "2"]),
        ("3G", &["-i", "-O", "sb_checksum,extra_attr"]),
        ("40G", &["-a", "1"]),
    ];
    for (size, options) in good {
        make(size, options)?;
        weir(place, &["fsck", &image]).map_err(|error| format!("{size} {options:?}: {error}"))?;
    }
    let refused = [
        ("encrypt", "encrypt"),
        ("extra_attr,project_quota", "project_quota"),
        ("extra_attr,quota", "quota"),
        ("extra_attr,verity", "verity"),
        ("extra_attr,compression", "compression"),
        ("ro", "ro"),
    ];
    for (features, name) in refused {
        make("128M", &["-O", features])?;
        let said = run_failing(place, &[&built("weir"), "fsck", &image])?;
        if !said.contains("this F2FS volume uses the feature ") || !said.contains(&format!("{name}, ")) {
            return Err(format!("a volume with {features}: {}", said.trim()));
        }
    }
    Ok(format!("{} volumes are good, {} are refused by name", good.len(), refused.len()))
}

fn kernel_theirs(place: &Place) -> Finding {
    let features = "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found";
    let mut names = 0;
    for options in [&["-l", "plain"][..], &["-O", features, "-s", "2"]] {
        let image = place.path("theirs.img");
        let _ = std::fs::remove_file(&image);
        program(place, &["truncate", "-s", "512M", &image])?;
        program(place, &[&["mkfs.f2fs", "-q", "-f"], options, &[image.as_str()]].concat())?;
        names += filled(place, &image)?;
    }
    Ok(format!("{names} names, each with its bytes and attributes"))
}

fn kernel_ours(place: &Place) -> Finding {
    let image = place.path("ours.img");
    let mut names = 0;
    for options in [&["--label", "ours"][..], &["-s", "2", "-O", "inode_checksum", "-O", "inode_crtime"]] {
        weir(place, &[&["mkfs", "f2fs", &image, "--force", "--size", "512MiB"], options].concat())?;
        names += filled(place, &image)?;
    }
    Ok(format!("{names} names, each with its bytes and attributes"))
}

/// Linux fills a volume, then changes a part of it; each time we find what it finds. Returns the number of names.
fn filled(place: &Place, image: &str) -> Result<usize, String> {
    let tree = tree::program();
    let mut names = 0;
    for step in ["fill", "churn"] {
        let work = format!("{tree} {step} /run/disk/files {}", place.seed());
        let listed =
            listed(place, image, &format!("mkdir -p /run/disk/files && {work}"), "umount /run/disk")?;
        fsck(place, image)?;
        weir(place, &["fsck", image])?;
        names += tree::same(place, image, &listed)?;
    }
    Ok(names)
}

/// Runs a command on the mounted volume, then lists the tree by system calls; `end` is the last command on the volume.
fn listed(place: &Place, image: &str, work: &str, end: &str) -> Finding {
    const ROOM: usize = 8 << 20;
    let tree = tree::program();
    // Reads must not change the listed times.
    let mount = "mount -t f2fs -o noatime /dev/ubda /run/disk";
    let list = place.write("list", &[0; ROOM])?;
    let work = format!(
        "mkdir -p /run/disk && {mount} && {work} && {tree} list /run/disk/files > /run/list && {end} && \
         dd if=/run/list of=/dev/ubdb bs=1M conv=notrunc"
    );
    uml::boot(place, &[image, &list], &work)?;
    let bytes = std::fs::read(&list).map_err(|error| format!("{list}: {error}"))?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Linux reads what we have written and changes it, and we read the result.
fn kernel_written(place: &Place) -> Finding {
    let image = place.path("written.img");
    let tree = tree::program();
    let mut names = 0;
    let features = ["-O", "inode_checksum", "-O", "inode_crtime", "-O", "flexible_inline_xattr", "-s", "2"];
    for options in [&["--label", "written"][..], &features] {
        weir(place, &[&["mkfs", "f2fs", &image, "--force", "--size", "512MiB"], options].concat())?;
        for round in 0..2_u64 {
            program(place, &[&tree, "write", &image, &(place.seed() + round).to_string()])?;
            fsck(place, &image)?;
            weir(place, &["fsck", &image])?;
            let listed = listed(place, &image, "true", "umount /run/disk")?;
            names += tree::same(place, &image, &listed)?;
            let change = "rm -r /run/disk/files/*/zero && cp -r /run/disk/files /run/disk/copied && rm -r /run/disk/copied && \
                 for name in /run/disk/files/*/few-*; do mkdir -p $name/more || exit; done && \
                 for name in /run/disk/files/*/size-*; do echo more >> $name || exit; done";
            let listed = self::listed(place, &image, change, "umount /run/disk")?;
            fsck(place, &image)?;
            weir(place, &["fsck", &image])?;
            names += tree::same(place, &image, &listed)?;
        }
    }
    Ok(format!("{names} names, each with its bytes and attributes"))
}

/// Three files without names are open at the power cut. The last checkpoint has them as orphans.
fn kernel_cut(place: &Place) -> Finding {
    let image = place.path("cut.img");
    weir(place, &["mkfs", "f2fs", &image, "--size", "512MiB"])?;
    let tree = tree::program();
    let work = format!(
        "mkdir -p /run/disk/files && {tree} fill /run/disk/files {} && \
         for number in 1 2 3; do echo gone > /run/disk/open-$number; done && \
         exec 7</run/disk/open-1 8</run/disk/open-2 9</run/disk/open-3 && rm /run/disk/open-* && sync",
        place.seed()
    );
    let listed = listed(place, &image, &work, "true")?;
    let said = weir(place, &["fsck", &image])?;
    if !said.contains("not unmounted") || !said.contains(" 3 orphans") {
        return Err(format!("expected 3 orphans of a volume that was not unmounted: {}", said.trim()));
    }
    let names = tree::same(place, &image, &listed)?;
    Ok(format!("{names} names, 3 orphans"))
}

/// Files of a list whose last change was synced.
fn synced_lines(list: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("/files")).collect();
    if lines.is_empty() {
        lines = list.lines().collect();
    }
    lines.retain(|line| line.starts_with("/synced-"));
    lines.sort_unstable();
    lines
}

/// Whether each file that was synced is as it was.
fn same_synced(what: &str, found: &str, expected: &str) -> Result<usize, String> {
    let (found, expected) = (synced_lines(found), synced_lines(expected));
    if let Some(line) = expected.iter().find(|line| !found.contains(line)) {
        let name = line.split(' ').next().unwrap_or_default();
        let instead = found.iter().find(|line| line.split(' ').next() == Some(name));
        return Err(format!("{what}: expected `{line}`, found {instead:?}"));
    }
    if expected.len() < 30 {
        Err(format!("only {} files were synced", expected.len()))
    } else {
        Ok(expected.len())
    }
}

/// Linux syncs files on a volume, and its power is cut.
fn kernel_synced(place: &Place) -> Finding {
    let (image, tree) = (place.path("synced.img"), tree::program());
    let features = "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum";
    let (mut files, mut new) = (0, 0);
    for options in [&["-l", "plain"][..], &["-O", features]] {
        let _ = std::fs::remove_file(&image);
        program(place, &["truncate", "-s", "512M", &image])?;
        program(place, &[&["mkfs.f2fs", "-q", "-f"], options, &[image.as_str()]].concat())?;
        // The second round finds the files of the first.
        for round in 0..2 {
            let seed = place.seed() + round;
            let work = format!("mkdir -p /run/disk/files && sync && {tree} sync /run/disk/files {seed}");
            let listed = listed(place, &image, &work, "true")?;
            let said = weir(place, &["fsck", &image])?;
            if !said.contains("files were synced after it") {
                return Err(format!("nothing was synced without a checkpoint: {}", said.trim()));
            }
            let recovered = program(place, &[&tree, "recover", &image])?;
            new += number_after(&recovered, "new_files: ")?;
            fsck(place, &image)?;
            weir(place, &["fsck", &image])?;
            files += same_synced("we recovered", &tree::list_image(&image)?, &listed)?;
        }
    }
    Ok(format!("{files} files, {new} of them new"))
}

/// The number after a word.
fn number_after(text: &str, word: &str) -> Result<u64, String> {
    let digits =
        text.split(word).nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("no {word:?} in {:?}", text.trim()))
}

/// We sync files on a volume, and our power is cut. Another volume with the same changes is unmounted and has the expected files.
fn ours_synced(place: &Place) -> Finding {
    let (cut, whole, tree) = (place.path("cut.img"), place.path("whole.img"), tree::program());
    let features = ["-O", "inode_checksum", "-O", "inode_crtime", "-O", "flexible_inline_xattr"];
    let mut counts = String::new();
    let mut files = 0;
    for options in [&["--label", "plain"][..], &features] {
        for image in [&cut, &whole] {
            weir(place, &[&["mkfs", "f2fs", image, "--force", "--size", "512MiB"], options].concat())?;
        }
        for round in 0..2 {
            let seed = (place.seed() + round).to_string();
            program(place, &[&tree, "sync-image", &whole, &seed, "unmount"])?;
            counts = program(place, &[&tree, "sync-image", &cut, &seed, "cut"])?;
            let expected = tree::list_image(&whole)?;
            // The checkpoint is good by itself.
            fsck(place, &cut)?;
            weir(place, &["fsck", &cut])?;
            let linux = place.path("linux.img");
            program(place, &["cp", "--sparse=always", &cut, &linux])?;
            let listed = listed(place, &linux, "true", "umount /run/disk")?;
            fsck(place, &linux)?;
            weir(place, &["fsck", &linux])?;
            files += same_synced("Linux recovered", &listed, &expected)?;
            program(place, &[&tree, "recover", &cut])?;
            fsck(place, &cut)?;
            weir(place, &["fsck", &cut])?;
            files += same_synced("we recovered", &tree::list_image(&cut)?, &expected)?;
        }
    }
    if number_after(&format!("x{counts}"), "x")? < 50 {
        return Err(format!("most fsyncs were checkpoints: {}", counts.trim()));
    }
    Ok(format!("{files} files; in the last round {}", counts.trim()))
}
