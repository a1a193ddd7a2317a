//! From format 1 to format 2 (volume §7).
//!
//! Only the pages' records differ. They are written into a file of their own beside the old one; then the description is
//! replaced, which is the one step that counts; then the old records are removed. Slots, journals and contents stay as
//! and where they are.
//!
//! Invariants: nothing that format 1 reads is changed before the description is; whenever the process ends, the volume
//! is the old one, and the upgrade can be run again, or the new one; either holds the same.
//!
//! Deliberately absent: recovery. What an interrupted write left is carried over and is the device's to recover from.

use super::description::Description;
use super::error::VolumeError;
use super::format::{Format, Found, PageContent, PageRecord, encode_page};
use super::host::DESCRIPTION;
use super::host::{Host as _, Part};
use super::load::{Loaded, decode_pages};
use super::opened::{Opened, Read};
use super::store::Layout;
use super::torn::Torn;
use flashweir_core::Bytes;
use flashweir_device::Geometry;
use flashweir_ftl::BlockId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// Version of the format before; the present version if there was nothing to do.
    pub from: u32,
    /// Pages whose records were rewritten.
    pub pages: u64,
    /// Whether it was not closed, so that its device recovers at the next opening.
    pub recovers: bool,
}

/// The host's disk, as an upgrade sees it.
pub(super) trait Disk {
    /// Bytes that are free for us.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;

    /// Asked before each change of a file, which has `len` bytes, or 1: how much of it happens.
    fn allow(&mut self, len: usize) -> io::Result<usize>;
}

/// The real one.
#[derive(Debug)]
struct RealDisk;

impl Disk for RealDisk {
    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        crate::host_disk::free_bytes(directory)
    }

    fn allow(&mut self, len: usize) -> io::Result<usize> {
        Ok(len)
    }
}

/// Brings a volume to the present format. `progress` gets the fraction that is done; where `stop` is set the volume stays
/// what it was.
pub fn upgrade(
    directory: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(f64),
) -> Result<Upgraded, VolumeError> {
    upgrade_on(directory, stop, progress, &mut RealDisk)
}

/// Removes the records of format 1 from a volume of format 2.
pub(super) fn remove_old(directory: &Path) {
    let _ = std::fs::remove_file(directory.join(Part::Oob(Format::One).name()));
}

pub(super) fn upgrade_on(
    directory: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(f64),
    disk: &mut dyn Disk,
) -> Result<Upgraded, VolumeError> {
    let mut opened = Opened::of(directory)?;
    let (from, recovers) = (opened.format.number(), !opened.state.clean);
    if opened.format == Format::Two {
        remove_old(directory);
        return Ok(Upgraded { from, pages: 0, recovers });
    }
    opened.claim()?;
    let files = opened.files(false)?;
    let Read { mut loaded, .. } = opened.read(&files, &mut |done| progress(done * 0.5))?;
    opened.refuse(std::mem::take(&mut loaded.problems))?;
    let (old, new) = (opened.layout(), Layout::new(&Geometry::new(&opened.config), Format::Two));
    let needed = bytes_needed(&new, &loaded);
    let free = disk.free_bytes(directory).map_err(opened.io("the host's disk cannot be asked".into()))?;
    if needed > free {
        let (directory, needed, free) = (directory.to_owned(), Bytes(needed), Bytes(free));
        return Err(VolumeError::NoRoom { directory, needed, free });
    }
    let text = Description::text(&opened.config, opened.host_ftl.as_ref(), opened.options.seed)?;
    let name = new.oob().name();
    let part = format!("{DESCRIPTION}.part");
    let written = (|| {
        let mut step = |fraction: f64| {
            progress(0.5 + 0.5 * fraction);
            if stop.load(Ordering::Relaxed) {
                Err(VolumeError::Stopped(directory.to_owned()))
            } else {
                Ok(())
            }
        };
        let failed = |name: &str| opened.io(format!("{name} cannot be written"));
        let file = create(directory, name, new.lens()[1], disk).map_err(failed(name))?;
        let mut records = vec![0; old.record_bytes() * old.pages_per_block as usize];
        let mut pages = 0;
        for block in (0..old.blocks).map(BlockId) {
            step(f64::from(block.0) / f64::from(old.blocks))?;
            records.fill(0);
            let offset = u64::from(block.0) * records.len() as u64;
            files.read_at(old.oob(), offset, &mut records).map_err(opened.io("oob cannot be read".into()))?;
            let (bytes, count) = records_of(&records, &old, &new, block, &loaded);
            let offset = u64::from(block.0) * u64::from(new.pages_per_block) * new.record_bytes() as u64;
            write(&file, offset, &bytes, disk).map_err(failed(name))?;
            pages += count;
        }
        file.sync_all().map_err(failed(name))?;
        let description = create(directory, &part, 0, disk).map_err(failed(DESCRIPTION))?;
        write(&description, 0, text.as_bytes(), disk)
            .and_then(|()| description.sync_all())
            .and_then(|()| File::open(directory)?.sync_all())
            .map_err(failed(DESCRIPTION))?;
        step(1.0)?;
        let rename = |_| std::fs::rename(directory.join(&part), directory.join(DESCRIPTION));
        disk.allow(1).and_then(rename).map_err(failed(DESCRIPTION))?;
        Ok(pages)
    })();
    let pages = match written {
        Ok(pages) => pages,
        Err(error) => {
            for name in [name, &part] {
                if disk.allow(1).is_ok() {
                    let _ = std::fs::remove_file(directory.join(name));
                }
            }
            return Err(error);
        }
    };
    // From here on it is a volume of format 2. Its description is on the host's disk before the old records are gone.
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(opened.io("cannot be written".into()))?;
    if disk.allow(1).is_ok() {
        remove_old(directory);
    }
    Ok(Upgraded { from, pages, recovers })
}

/// An empty file that will be `len` bytes long.
fn create(directory: &Path, name: &str, len: u64, disk: &mut dyn Disk) -> io::Result<File> {
    disk.allow(1)?;
    // One is there if an upgrade was killed.
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(directory.join(name))?;
    file.set_len(len)?;
    Ok(file)
}

fn write(file: &File, offset: u64, bytes: &[u8], disk: &mut dyn Disk) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let allowed = disk.allow(bytes.len())?;
    file.write_all_at(&bytes[..allowed], offset)?;
    if allowed < bytes.len() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// Room that the new records take, in whole blocks of the host's file system. The rest of the file is a hole.
fn bytes_needed(layout: &Layout, loaded: &Loaded) -> u64 {
    const HOST_BLOCK_BYTES: u64 = 4096;
    let pages = (0..layout.blocks).map(|block| u64::from(loaded.media.pages_written(BlockId(block))));
    let bytes = pages.filter(|pages| *pages > 0).map(|pages| {
        (pages * layout.record_bytes() as u64).next_multiple_of(HOST_BLOCK_BYTES) + HOST_BLOCK_BYTES
    });
    // The description, and what a file system needs to find it all.
    bytes.sum::<u64>() + 64 * HOST_BLOCK_BYTES
}

/// The records of a block in the new format, up to the last one, and how many there are. Those from before an erase do not
/// count and are left out; what an interrupted write left is written as what it means.
fn records_of(records: &[u8], old: &Layout, new: &Layout, block: BlockId, loaded: &Loaded) -> (Vec<u8>, u64) {
    let erases = loaded.media.erases(block);
    let mut bytes = Vec::new();
    for (at, found) in decode_pages(records, old, block, erases) {
        let torn = loaded.torn.iter().find_map(|torn| match torn {
            Torn::Page(page, _, opened) if *page == at => Some(*opened),
            _ => None,
        });
        let record = match (found, torn) {
            (Found::Whole(record), _) if record.erases == erases => record,
            (Found::Torn, Some(opened)) => {
                let state = PageContent::Unreadable { lost_from: at.page };
                PageRecord { page: old.page(at), opened, erases, state }
            }
            // Pages are programmed in order, so nothing follows.
            _ => break,
        };
        let from = bytes.len();
        bytes.resize(from + new.record_bytes(), 0);
        encode_page(&record, &mut bytes[from..]);
    }
    let count = bytes.len() / new.record_bytes();
    (bytes, count as u64)
}
