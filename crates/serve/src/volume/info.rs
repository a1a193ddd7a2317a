//! Inspects a volume without changing it: its description, and whether everything in it is as it was written.
//!
//! Invariant: nothing here writes to a volume. Recovery is tried on an overlay whose writes are discarded.

use super::description::{Described, describe, description};
use super::error::VolumeError;
use super::host::{HostFiles, Part, bytes_taken};
use super::load::{Problem, page_name};
use super::opened::{Opened, Read, read_state};
use super::store::{FileStore, Layout};
use flashweir_core::index::Idx as _;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_device::flash::{
    BlockHealth, Media, PageImage, PageState, SaveArea, Saved, Store, StoreError, Stored,
};
use flashweir_device::geometry::PageAddr;
use flashweir_device::{DeviceConfig, Geometry, Recovery, UNREADABLE};
use flashweir_ftl::BlockId;
use flashweir_host::HostFtlConfig;
use flashweir_sim::host_ftl::Disk;
use flashweir_sim::live::Live;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Description of a volume.
#[derive(Debug)]
pub struct Info {
    /// Version of its format.
    pub format: u32,
    /// Firmware that runs on its medium.
    pub firmware: String,
    /// The device.
    pub config: DeviceConfig,
    /// The host FTL above it, if there is one.
    pub host_ftl: Option<HostFtlConfig>,
    /// Seed of its own randomness.
    pub seed: u64,
    /// Whether it was closed, and not opened since.
    pub clean: bool,
    /// Number of openings.
    pub opens: u64,
    /// Whether a process has it open; what follows is then not known.
    pub in_use: bool,
    /// Number of that process.
    pub process: Option<u32>,
    /// Bytes that it takes on the host, holes not counted.
    pub host_bytes: u64,
    /// Contents of the medium.
    pub content: Option<Content>,
}

/// Contents of the medium of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    /// Bytes that the host has written and not deallocated; `None` if the volume is damaged.
    pub mapped_bytes: Option<u64>,
    /// Erases of the least and of the most worn block, and of all together.
    pub erases: [u64; 3],
    /// Blocks that are marked bad.
    pub bad_blocks: u32,
    /// Blocks that hold anything.
    pub used_blocks: u32,
    /// Problems that were found without reading contents.
    pub problems: u64,
}

/// Result of a check.
#[derive(Debug)]
pub struct Checked {
    /// Faults that no end of a process explains, in the order of the files.
    pub problems: Vec<Problem>,
    /// Whether it was closed, and not opened since.
    pub clean: bool,
    /// Pages whose contents were read.
    pub pages: u64,
    /// Bytes that the host has written and not deallocated; `None` if recovery was not tried, because of problems.
    pub mapped_bytes: Option<u64>,
}

/// Describes a volume. `progress` gets the fraction that is read.
pub fn info(directory: &Path, progress: &mut dyn FnMut(f64)) -> Result<Info, VolumeError> {
    let host_bytes = || {
        bytes_taken(directory).map_err(|error| VolumeError::Io {
            directory: directory.to_owned(),
            what: "cannot be read".into(),
            error,
        })
    };
    let opened = match Opened::looked_at(directory) {
        Ok(opened) => opened,
        Err(VolumeError::InUse { process, .. }) => {
            let Described { config, host_ftl, seed, format, firmware, .. } =
                describe(directory, &description(directory)?)?;
            let state = read_state(directory)?;
            let (host_bytes, opens) = (host_bytes()?, state.opens);
            let (in_use, clean, content) = (true, state.clean, None);
            return Ok(Info {
                format: format.number(),
                firmware,
                config,
                host_ftl,
                seed,
                clean,
                opens,
                in_use,
                process,
                host_bytes,
                content,
            });
        }
        Err(error) => return Err(error),
    };
    let files = opened.files(false)?;
    let Read { loaded, save, .. } = opened.read(&files, progress)?;
    let layout = opened.layout();
    let blocks = || (0..layout.blocks).map(BlockId);
    let erases = || blocks().map(|block| u64::from(loaded.media.erases(block)));
    let mut content = Content {
        mapped_bytes: None,
        erases: [erases().min().unwrap_or(0), erases().max().unwrap_or(0), erases().sum()],
        bad_blocks: blocks().filter(|block| loaded.media.is_bad(*block)).count() as u32,
        used_blocks: loaded.blocks_used,
        problems: loaded.problems.len() as u64,
    };
    if loaded.problems.is_empty() {
        let (disk, _) = try_recovery(&opened, files, loaded.media, save);
        content.mapped_bytes = Some(mapped_bytes(&disk));
    }
    Ok(Info {
        format: opened.format.number(),
        firmware: opened.firmware,
        seed: opened.options.seed,
        clean: opened.state.clean,
        opens: opened.state.opens,
        in_use: false,
        process: None,
        host_bytes: host_bytes()?,
        content: Some(content),
        config: opened.config,
        host_ftl: opened.host_ftl,
    })
}

/// Reads everything in a volume and tries a recovery. `progress` gets the fraction that is done.
pub fn check(directory: &Path, progress: &mut dyn FnMut(f64)) -> Result<Checked, VolumeError> {
    let opened = Opened::looked_at(directory)?;
    let files = opened.files(false)?;
    let Read { mut loaded, save, .. } = opened.read(&files, &mut |done| progress(done * 0.1))?;
    let geometry = Geometry::new(&opened.config);
    let layout = opened.layout();
    let mut pages = 0;
    for block in (0..layout.blocks).map(BlockId) {
        progress(0.1 + 0.8 * f64::from(block.0) / f64::from(layout.blocks));
        for page in 0..loaded.media.pages_written(block) {
            let at = PageAddr { block, page };
            if loaded.media.page_state(at) != PageState::Good {
                continue;
            }
            pages += 1;
            for unit in 0..layout.units_per_page {
                if let Err(reason) = layout.read_unit(&files, at, unit, loaded.media.erases(block)) {
                    loaded.problem(Part::Data, format!("{}, unit {unit}", page_name(at)), &reason);
                }
            }
        }
    }
    let mut mapped = None;
    if loaded.problems.is_empty() {
        let (disk, damage) = try_recovery(&opened, files, loaded.media, save);
        mapped = Some(mapped_bytes(&disk));
        loaded.problems.extend(damage);
        let units = disk.capacity_lbas() / geometry.lbas_per_unit;
        for unit in (0..units).filter(|unit| is_lost(&disk, Lpn(*unit))) {
            let what = "recovery finds it where it cannot be read".to_owned();
            let place = format!("unit {unit} of the host");
            loaded.problems.push(Problem { file: layout.oob().name(), place, what });
        }
    }
    progress(1.0);
    let (problems, clean) = (loaded.problems, opened.state.clean);
    Ok(Checked { problems, clean, pages, mapped_bytes: mapped })
}

fn is_lost(disk: &Live, lpn: Lpn) -> bool {
    disk.is_mapped(lpn) && disk.peek(lpn) == Some(Payload::Tag(UNREADABLE))
}

fn mapped_bytes(disk: &Live) -> u64 {
    let geometry = disk.device().geometry();
    let units = disk.capacity_lbas() / geometry.lbas_per_unit;
    (0..units).filter(|unit| disk.is_mapped(Lpn(*unit))).count() as u64 * geometry.unit_bytes
}

/// Runs the recovery of device and host FTL without changing the volume.
fn try_recovery(
    opened: &Opened,
    files: HostFiles,
    mut media: Media,
    save: Option<SaveArea>,
) -> (Live, Vec<Problem>) {
    let layout = opened.layout();
    let overlay = Overlay { files, layout, pages: BTreeMap::new(), damage: Vec::new() };
    let overlay = Arc::new(Mutex::new(overlay));
    media.attach(overlay.clone());
    media.set_save_area(save);
    let (device, _) = Recovery::begin(&opened.config, opened.options, media).finish();
    let disk = Live::above(Disk::recover(device, opened.host_ftl.as_ref()));
    let damage = overlay.lock().map(|overlay| overlay.damage.clone()).unwrap_or_default();
    (disk, damage.iter().map(problem_of).collect())
}

pub(super) fn problem_of((at, unit, reason): &(PageAddr, u32, String)) -> Problem {
    let place = format!("{}, unit {unit}", page_name(*at));
    Problem { file: Part::Data.name(), place, what: reason.clone() }
}

/// Pages of the device's own metadata, translation pages included, that could not be read. Recovery would take them for interrupted ones.
pub(super) fn damage_in_metadata(store: &FileStore, geometry: &Geometry) -> Vec<Problem> {
    let logs = (0..2).flat_map(|region| geometry.meta_blocks(region));
    let meta: BTreeSet<usize> = logs.chain(geometry.map_area()).map(|block| block.index()).collect();
    let in_meta = |damage: &&(PageAddr, u32, String)| meta.contains(&damage.0.block.index());
    store.damage().iter().filter(in_meta).map(problem_of).collect()
}

/// A store that reads files and keeps changes to itself.
#[derive(Debug)]
struct Overlay {
    files: HostFiles,
    layout: Layout,
    /// Programmed contents, by number of the unit.
    pages: BTreeMap<Ppa, Payload>,
    damage: Vec<(PageAddr, u32, String)>,
}

impl Overlay {
    fn ppa(&self, at: PageAddr, unit: u32) -> Ppa {
        Ppa(self.layout.page(at) * u64::from(self.layout.units_per_page) + u64::from(unit))
    }
}

impl Store for Overlay {
    fn program(&mut self, page: &PageImage<'_>) -> Stored {
        for (unit, image) in (0..).zip(page.units) {
            self.pages.insert(self.ppa(page.at, unit), image.payload.clone());
        }
        Ok(())
    }

    fn spoil(&mut self, _: PageAddr, _: u32, _: u64, _: u32) -> Stored {
        Ok(())
    }

    fn erase(&mut self, _: BlockId, _: BlockHealth) -> Stored {
        Ok(())
    }

    fn mark(&mut self, _: BlockId, _: BlockHealth) -> Stored {
        Ok(())
    }

    fn read(&mut self, at: PageAddr, unit: u32, erases: u32) -> Option<Payload> {
        if let Some(payload) = self.pages.get(&self.ppa(at, unit)) {
            return Some(payload.clone());
        }
        match self.layout.read_unit(&self.files, at, unit, erases) {
            Ok(payload) => Some(payload),
            Err(reason) => {
                self.damage.push((at, unit, reason));
                None
            }
        }
    }

    fn journal(&mut self, _: &[Saved]) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn begin_journal(&mut self, _: &SaveArea) -> Stored {
        Ok(())
    }
}
