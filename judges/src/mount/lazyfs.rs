//! Commands of LazyFS through the FIFO of a mount, as a test rig sends them.

use super::mounted::{END, FORMATS, Mount, image, is_good, synced};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;

const KILL: i32 = 9;

/// A mount whose FIFO is open.
struct Rig<'a> {
    mount: Mount<'a>,
    fifo: File,
    completed: String,
}

impl<'a> Rig<'a> {
    fn new(place: &'a Place, image: &str) -> Result<Self, String> {
        let (fifo, completed) = (place.path("faults"), place.path("faults-completed"));
        let options =
            format!("--speed max --lazyfs {fifo} --lazyfs-completed {completed} --lazyfs-root /rig");
        let mount = Mount::new(place, image, &options)?;
        let fifo = File::options().write(true).open(&fifo).map_err(|error| format!("{fifo}: {error}"))?;
        Ok(Self { mount, fifo, completed })
    }

    fn order(&self, command: &str) -> Result<(), String> {
        (&self.fifo)
            .write_all(format!("{command}\n").as_bytes())
            .map_err(|error| format!("{command}: {error}"))
    }

    /// Clears the cache: all earlier commands are executed, and unsynced data are lost.
    fn clear_cache(&self) -> Result<(), String> {
        self.order("lazyfs::clear-cache")?;
        let mut line = String::new();
        // It is read to its end: a reader that opens it again before the mount has closed it finds no writer and no data.
        let told = File::open(&self.completed).and_then(|mut file| file.read_to_string(&mut line));
        told.map_err(|error| format!("{}: {error}", self.completed))?;
        match line.as_str() {
            "finished::clear-cache\n" => Ok(()),
            other => Err(format!("the second FIFO says {other:?}")),
        }
    }

    /// Checks that the mount has killed itself, as LazyFS does.
    fn ends_killed(mut self, place: &Place) -> Result<(), String> {
        let status = self.mount.program.wait(END)?;
        if status.signal() != Some(KILL) {
            return Err(format!("the mount ended with {status}, expected to be killed"));
        }
        program(place, &["umount", "-l", &self.mount.dir]).map(drop)
    }
}

fn expect(what: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy;
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {:?}, expected {:?}", text(found), text(expected))),
    }
}

fn read(mount: &Mount<'_>, name: &str) -> Result<Vec<u8>, String> {
    std::fs::read(mount.path(name)).map_err(|error| format!("{name}: {error}"))
}

/// Mounts the image again without a FIFO and checks a file.
fn is_left(place: &Place, image: &str, name: &str, expected: &[u8]) -> Result<(), String> {
    let mount = Mount::new(place, image, "--speed max")?;
    expect(name, &read(&mount, name)?, expected)?;
    mount.unmount()
}

pub(super) fn judge(place: &Place) -> Finding {
    for format in FORMATS {
        let image = image(place, format)?;
        let found = clearing(place, &image)
            .and_then(|()| torn_op(place, &image))
            .and_then(|()| torn_seq(place, &image))
            .and_then(|()| crash(place, &image))
            .and_then(|()| is_good(place, format, &image));
        found.map_err(|error| format!("{format}: {error}"))?;
    }
    Ok("clear-cache, torn-op, torn-seq and crash on both formats".into())
}

/// Unsynced data are lost, descriptors stay open, and the kernel keeps no page.
fn clearing(place: &Place, image: &str) -> Result<(), String> {
    let rig = Rig::new(place, image)?;
    let file = synced(&rig.mount, "cleared", b"synced")?;
    let lost = file.write_all_at(b"LOST and longer", 0);
    lost.and_then(|()| std::fs::write(rig.mount.path("never"), "synced"))
        .map_err(|error| error.to_string())?;
    expect("before", &read(&rig.mount, "cleared")?, b"LOST and longer")?;
    rig.clear_cache()?;
    let mut bytes = [0; 16];
    let length = file.read_at(&mut bytes, 0).map_err(|error| format!("an open file: {error}"))?;
    expect("an open file", &bytes[..length], b"synced")?;
    expect("after", &read(&rig.mount, "cleared")?, b"synced")?;
    if std::fs::metadata(rig.mount.path("never")).is_ok() {
        return Err("a file that was not synced is there".into());
    }
    let written = file.write_all_at(b" more", 6).and_then(|()| file.sync_all());
    written.map_err(|error| format!("an open file: {error}"))?;
    rig.order("lazyfs::no-command")?;
    rig.clear_cache()?;
    expect("once more", &read(&rig.mount, "cleared")?, b"synced more")?;
    drop(file);
    rig.mount.unmount()
}

fn torn_op(place: &Place, image: &str) -> Result<(), String> {
    let rig = Rig::new(place, image)?;
    let file = synced(&rig.mount, "torn", b"------")?;
    rig.order("lazyfs::torn-op::file=/rig/torn::parts=3::persist=1,3::return=false")?;
    rig.clear_cache()?;
    if file.write_all_at(b"abcdef", 0).is_ok() {
        return Err("a torn write is answered".into());
    }
    drop(file);
    rig.ends_killed(place)?;
    is_left(place, image, "torn", b"ab--ef")
}

fn torn_seq(place: &Place, image: &str) -> Result<(), String> {
    let rig = Rig::new(place, image)?;
    let file = synced(&rig.mount, "row", b"------")?;
    rig.order(&format!("lazyfs::torn-seq::op=write::file={}::persist=1,3", rig.mount.path("row")))?;
    rig.clear_cache()?;
    for (at, part) in (0..).step_by(2).zip([b"ab", b"cd", b"ef"]) {
        file.write_all_at(part, at).map_err(|error| format!("a write of a row: {error}"))?;
    }
    // The last write was answered; the next call is not.
    let _ = file.sync_all();
    drop(file);
    rig.ends_killed(place)?;
    is_left(place, image, "row", b"ab--ef")
}

fn crash(place: &Place, image: &str) -> Result<(), String> {
    let rig = Rig::new(place, image)?;
    drop(synced(&rig.mount, "new", b"newer")?);
    drop(synced(&rig.mount, "current", b"older")?);
    rig.order("lazyfs::crash::timing=before::op=rename::to_rgx=current")?;
    rig.clear_cache()?;
    if std::fs::rename(rig.mount.path("new"), rig.mount.path("current")).is_ok() {
        return Err("an operation before which the power failed is answered".into());
    }
    rig.ends_killed(place)?;
    is_left(place, image, "current", b"older")
}
