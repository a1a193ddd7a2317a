//! fsx: random operations on one file, each compared with the expected content, by itself and with power cuts.
//!
//! Invariant: runs in CI are short; `FLASHWEIR_FSX_OPERATIONS` and `FLASHWEIR_FSX_CUTS` set the lengths of others.

use super::mounted::{ALL_FORMATS, END, Mount, image, is_good, suite};
use crate::host::count_or;
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, wait_until};
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

/// All operations of fsx, the cheap ones more often.
const ALL_OPERATIONS: &str = "[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 10.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 5.0
punch_hole = 5.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 5.0
";

/// Mean time of an operation beyond which a run counts as hung.
const OPERATION: Duration = Duration::from_millis(12);

/// Most operations of a run. fsx 0.3.2 forgets to unmap some pages, on any file system; a run ends before there are 65,530 maps, Linux's
/// limit for a process, and before they make each truncation slow.
const OPERATIONS_MAX: u64 = 20_000;

/// Most runs of fsx for one cut, because one may end by itself before it.
const CUT_TRIES: u64 = 8;

/// Signal for an access to a memory map without a page.
const SIGBUS: i32 = 7;

/// Runs fsx to its end; returns false if it ended by itself before.
fn run(place: &Place, config: &str, operations: u64, seed: u64, file: &str) -> Result<bool, String> {
    let suite = suite("fsx", "0.3.2")?;
    let (count, seed, dir) = (operations.to_string(), seed.to_string(), place.dir().display().to_string());
    let line = [&suite, "-q", "-f", config, "-N", &count, "-S", &seed, "-P", &dir, file];
    let mut program = Program::start(place, &line)?;
    let status = program.wait(OPERATION * u32::try_from(operations).unwrap_or(u32::MAX))?;
    let said = program.output();
    match status.success() {
        true => Ok(true),
        false if ended_itself(&said) => Ok(false),
        false => Err(format!("fsx ended with {status}: {}", said.trim())),
    }
}

/// Whether fsx ended by itself: sometimes it calls posix_fallocate for no bytes, which POSIX calls invalid, and ends at the error.
fn ended_itself(said: &str) -> bool {
    let last = said.lines().rfind(|line| line.contains("fsx] "));
    let is_empty =
        last.is_some_and(|last| last.contains(" POSIX_FALLOCATE ") && last.contains(" 0x0 bytes)"));
    is_empty && said.contains("does not support posix_fallocate")
}

pub(super) fn judge(place: &Place) -> Finding {
    let operations = count_or("FLASHWEIR_FSX_OPERATIONS", 10_000)?;
    let config = place.write("fsx.toml", ALL_OPERATIONS.as_bytes())?;
    let seed = place.seed();
    let options = ["", "--write-back"];
    let runs = ALL_FORMATS.into_iter().flat_map(|format| options.map(|options| (format, options)));
    for (format, options) in runs {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, &format!("--speed max --cache 512KiB {options}"))?;
        let mut left = operations;
        for seed in seed.. {
            let count = OPERATIONS_MAX.min(left);
            let is_done = run(place, &config, count, seed, &mount.path("file"))
                .map_err(|error| format!("{format} {options}, seed {seed}: {error}"))?;
            left -= if is_done { count } else { 0 };
            if left == 0 {
                break;
            }
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    Ok(format!("{operations} operations in each of {} mounts", options.len() * ALL_FORMATS.len()))
}

/// A file that was synced after fsx had finished on it, with its content.
struct Kept {
    name: String,
    content: Vec<u8>,
}

/// Runs fsx to its end, syncs its file, and cuts the power in the middle of another fsx; then the same again on the recovered file
/// system, or on a new mount of the image after the formats' checks.
pub(super) fn cuts(place: &Place) -> Finding {
    let cuts = count_or("FLASHWEIR_FSX_CUTS", 6)?;
    const OPERATIONS: u64 = 1500;
    let config = place.write("fsx.toml", ALL_OPERATIONS.as_bytes())?;
    // A file that is opened again after the cut is rightly another one, and its size may differ.
    let endless = ALL_OPERATIONS.replace("close_open = 1.0", "close_open = 0.0");
    // fsx 0.3.2 waits for the bytes of its sendfile before it checks for an error: it hangs if a cut prevents them.
    let endless = endless.replace("sendfile = 1.0", "sendfile = 0.0");
    let endless = place.write("endless.toml", format!("nosizechecks = true\n{endless}").as_bytes())?;
    let mut looked_at = 0;
    for format in ALL_FORMATS {
        let image = image(place, format)?;
        // The cache is small, so that all layers have work when the power is cut.
        let mounted = || Mount::new(place, &image, "--speed max --cache 512KiB");
        let mut mount = mounted()?;
        let mut kept: Vec<Kept> = Vec::new();
        for cut in 0..cuts {
            let seed = place.seed() + cut;
            let at = |error: String| format!("{format}, cut {cut}, seed {seed}: {error}");
            let name = format!("kept-{}", cut % 8);
            kept.retain(|old| old.name != name);
            run(place, &config, OPERATIONS, seed, &mount.path(&name)).map_err(at)?;
            kept.push(synced(&mount, name).map_err(at)?);
            // If one ended by itself, it saw no cut, and another takes its place.
            let mut others = (0..CUT_TRIES).map(|other| seed + other * 1_000);
            let cut_in = |seed| cut_below(place, &mount, &endless, seed).transpose();
            others.find_map(cut_in).unwrap_or_else(|| Err("each fsx ended by itself".into())).map_err(at)?;
            looked_at += all_there(&mount, &kept).map_err(at)?;
            if cut % 2 == 1 {
                mount.unmount()?;
                is_good(place, format, &image).map_err(at)?;
                mount = mounted()?;
                looked_at += all_there(&mount, &kept).map_err(at)?;
            }
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    Ok(format!("{} cuts, {looked_at} synced files looked at", cuts * ALL_FORMATS.len() as u64))
}

/// Makes a file and its name durable.
fn synced(mount: &Mount<'_>, name: String) -> Result<Kept, String> {
    let named = |error: std::io::Error| format!("{name}: {error}");
    let content = std::fs::read(mount.path(&name)).map_err(named)?;
    File::open(mount.path(&name)).and_then(|file| file.sync_all()).map_err(named)?;
    File::open(&mount.dir).and_then(|dir| dir.sync_all()).map_err(named)?;
    Ok(Kept { name, content })
}

/// Cuts the power while fsx works on a file; fsx must see the cut and no other fault. `None` if it had ended by itself.
fn cut_below(place: &Place, mount: &Mount<'_>, config: &str, seed: u64) -> Result<Option<()>, String> {
    let (suite, dir, file) =
        (suite("fsx", "0.3.2")?, place.dir().display().to_string(), mount.path(&format!("cut-{seed}")));
    let line = [&suite, "-q", "-f", config, "-S", &seed.to_string(), "-P", &dir, &file];
    let mut fsx = Program::start(place, &line)?;
    wait_until("a file of fsx", || {
        Ok(!fsx.is_running() || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0))
    })?;
    std::thread::sleep(Duration::from_millis(20 + seed.wrapping_mul(7919) % 400));
    mount.cut(seed)?;
    let status = fsx.wait(END)?;
    let said = fsx.output();
    let is_cut = !ended_itself(&said);
    // Linux splits calls; one of which a part was done before the cut returns a short count, at which fsx ends.
    let in_part = said.contains("short write") || said.contains("short read");
    let sees_cut = in_part
        || status.signal() == Some(SIGBUS)
        || said.contains("Input/output error")
        || said.contains("EIO");
    if status.success() || said.contains("miscompare") || (is_cut && !sees_cut) {
        return Err(format!("fsx under a cut ended with {status}: {}", said.trim()));
    }
    // What has survived can be read and removed.
    match std::fs::read(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Ok(_) => std::fs::remove_file(&file).map_err(|error| format!("{file}: {error}"))?,
        Err(error) => return Err(format!("{file}: {error}")),
    }
    Ok(is_cut.then_some(()))
}

/// Checks that all synced files are there, byte by byte; returns their number.
fn all_there(mount: &Mount<'_>, kept: &[Kept]) -> Result<usize, String> {
    for Kept { name, content } in kept {
        let found = std::fs::read(mount.path(name)).map_err(|error| format!("{name}: {error}"))?;
        if found != *content {
            let differs = found.iter().zip(content).position(|(found, expected)| found != expected);
            return Err(format!(
                "{name} has {} bytes, expected {}; the first difference is at {differs:?}",
                found.len(),
                content.len()
            ));
        }
    }
    Ok(kept.len())
}
