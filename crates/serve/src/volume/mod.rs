//! A volume: the medium of one device in a directory (`specs/volume.md`).
//!
//! Place in the data flow: below the device. [`Volume::open`] gives a device whose medium is written to files whenever it changes; the
//! device knows nothing of files. What a process leaves when it ends, in whatever way, is a state that a power cut could have left, and
//! opening is the device's own recovery from it.
//!
//! Invariants: one process at a time has a volume open, and holds a lock; nothing is written before everything that was
//! read made sense; after the first write that fails nothing more is written.
//!
//! Deliberately absent: a log of changes beside the device's own, and repair of damage.

mod description;
mod error;
mod format;
mod host;
mod info;
mod load;
mod opened;
mod store;
#[cfg(test)]
mod tests;
mod torn;
mod upgrade;

use description::{Description, suits};
pub use error::VolumeError;
use flashweir_core::Bytes;
use flashweir_device::flash::{BlockHealth, Media, SaveArea, Store as _};
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Geometry, Recovery, RecoveryReport};
use flashweir_host::HostFtlConfig;
use format::{Format, Sums};
use host::{DESCRIPTION, Host, HostFiles, LOCK, Part, STATE};
pub use info::{Checked, Content, Info, check, info};
pub use load::Problem;
use opened::{Opened, Read, State, options};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{FileStore, JournalEnd, Layout};
use torn::Torn;
pub use upgrade::{Upgraded, upgrade};

/// Version of the format that volumes have.
pub const FORMAT: u32 = format::VERSION;

/// A volume that is open. Dropping it is like the end of the process: the device recovers at the next opening.
#[derive(Debug)]
pub struct Volume {
    opened: Opened,
    store: Arc<Mutex<FileStore>>,
}

impl Volume {
    /// Makes a volume with a device fresh from the factory. `directory` is empty or does not exist; its parent does.
    /// The configuration was validated.
    pub fn create(directory: &Path, config: &DeviceConfig, seed: u64) -> Result<(), VolumeError> {
        Self::create_below(directory, config, None, seed)
    }

    /// The same below a host FTL, if there is one: a device with an open channel needs it.
    pub fn create_below(
        directory: &Path,
        config: &DeviceConfig,
        host_ftl: Option<&HostFtlConfig>,
        seed: u64,
    ) -> Result<(), VolumeError> {
        suits(config, host_ftl)?;
        let io = |what: String| move |error| VolumeError::Io { directory: directory.to_owned(), what, error };
        let new = match std::fs::read_dir(directory) {
            Ok(mut entries) => match entries.next() {
                Some(_) => return Err(VolumeError::NotEmpty(directory.to_owned())),
                None => false,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir(directory).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => VolumeError::Homeless(directory.to_owned()),
                    _ => io("cannot be made".into())(error),
                })?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(VolumeError::NotADirectory(directory.to_owned()));
            }
            Err(error) => return Err(io("cannot be used".into())(error)),
        };
        // Whoever makes this file makes the volume; another one that found the directory empty, too, changes nothing.
        File::create_new(directory.join(LOCK)).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => VolumeError::NotEmpty(directory.to_owned()),
            _ => io(format!("{LOCK} cannot be made"))(error),
        })?;
        Self::fill(directory, config, host_ftl, seed).inspect_err(|_| remove(directory, new))
    }

    fn fill(
        directory: &Path,
        config: &DeviceConfig,
        host_ftl: Option<&HostFtlConfig>,
        seed: u64,
    ) -> Result<(), VolumeError> {
        let io = |what: String| move |error| VolumeError::Io { directory: directory.to_owned(), what, error };
        let stored = |error: flashweir_device::flash::StoreError| io(error.what)(error.error);
        let text = Description::text(config, host_ftl, seed)?;
        let layout = Layout::new(&Geometry::new(config), Format::Two);
        let host = HostFiles::create(directory, layout.lens())
            .map_err(|(part, error)| io(format!("{} cannot be made", part.name()))(error))?;
        let device = Device::new(config.clone(), options(seed));
        let changes = vec![0; layout.blocks as usize];
        // The first journal that is begun has number 1 and is in the first file.
        let before = JournalEnd { which: 1, epoch: 0, len: 0 };
        let mut store =
            FileStore::new(Box::new(host), (layout, Sums::Xxh3), changes, before, config.buffer.capacity.0);
        let media = device.media();
        store
            .format(|block| BlockHealth { bad: media.is_bad(block), ..BlockHealth::default() })
            .map_err(stored)?;
        store.begin_journal(&SaveArea::default()).map_err(stored)?;
        let host = store.host();
        host.sync().map_err(io("cannot be written".into()))?;
        host.replace_state(&State { clean: true, opens: 0 }.text())
            .map_err(io(format!("{STATE} cannot be written")))?;
        File::create(directory.join(LOCK)).map_err(io(format!("{LOCK} cannot be made")))?;
        host::replace(directory, DESCRIPTION, &text).map_err(io(format!("{DESCRIPTION} cannot be written")))
    }

    /// Opens a volume: rebuilds the medium from its files and runs the device's recovery to its end. `progress` gets
    /// the fraction that is read.
    pub fn open(
        directory: &Path,
        progress: &mut dyn FnMut(f64),
    ) -> Result<(Self, Device, RecoveryReport), VolumeError> {
        Self::open_on(directory, progress, |host| Box::new(host))
    }

    fn open_on(
        directory: &Path,
        progress: &mut dyn FnMut(f64),
        host: impl FnOnce(HostFiles) -> Box<dyn Host>,
    ) -> Result<(Self, Device, RecoveryReport), VolumeError> {
        let mut opened = Opened::of(directory)?;
        opened.is_of_this_format()?;
        opened.claim()?;
        let files = opened.files(true)?;
        let Read { loaded, save, journal } = opened.read(&files, progress)?;
        opened.refuse(loaded.problems)?;
        let written = (opened.layout(), opened.sums);
        let capacity = opened.config.buffer.capacity.0;
        let store = FileStore::new(host(files), written, loaded.changes, journal, capacity);
        let store = Arc::new(Mutex::new(store));
        let volume = Self { opened, store };
        let mut media = loaded.media;
        media.attach(volume.store.clone());
        media.set_save_area(save);
        // So far nothing was written: recovery reads first, and what it reads must make sense.
        let recovery = Recovery::begin(&volume.opened.config, volume.opened.options, media);
        let problems = info::damage_in_metadata(&volume.lock(), &Geometry::new(&volume.opened.config));
        volume.opened.refuse(problems)?;
        volume.begin_boot(&loaded.torn)?;
        let (device, report) = recovery.finish();
        match device.store_error() {
            Some(error) => Err(volume.opened.io(error.what.clone())(clone_error(&error.error))),
            None => Ok((volume, device, report)),
        }
    }

    /// Marks the volume as not clean, and completes what the last process left half-done.
    fn begin_boot(&self, torn: &[Torn]) -> Result<(), VolumeError> {
        let mut store = self.lock();
        let state = State { clean: false, opens: self.opened.state.opens + 1 };
        store
            .host()
            .replace_state(&state.text())
            .map_err(self.opened.io(format!("{STATE} cannot be written")))?;
        // What an upgrade left that ended between its last two steps.
        upgrade::remove_old(&self.opened.directory);
        torn.iter()
            .try_for_each(|torn| store.heal(*torn))
            .map_err(|error| self.opened.io(error.what)(error.error))
    }

    fn lock(&self) -> MutexGuard<'_, FileStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets damage that was found so far: what the next recovery finds counts.
    pub(crate) fn forget_damage(&self) {
        self.lock().forget_damage();
    }

    /// Checks that the recovery which has ended could read what it needs. Otherwise it would have taken damaged pages for interrupted ones,
    /// and brought older contents back.
    ///
    /// # Errors
    /// Pages of the device's metadata are damaged, or pages that its host FTL read.
    pub(crate) fn check_recovery(&self) -> Result<(), VolumeError> {
        let store = self.lock();
        let problems = match self.host_ftl() {
            Some(_) => store.damage().iter().map(info::problem_of).collect(),
            None => info::damage_in_metadata(&store, &Geometry::new(&self.opened.config)),
        };
        self.opened.refuse(problems)
    }

    /// Brings the device back on what a power cut of it left ([`Device::cut`]). The device before the cut must not be
    /// used after it.
    pub fn recover(&self, media: Media) -> (Device, RecoveryReport) {
        Recovery::begin(&self.opened.config, self.opened.options, media).finish()
    }

    /// A stop with notice: waits for the host's disk and marks the volume as clean. The device was flushed and rests, as
    /// `Live::shut_down` of the laboratory leaves it; one that does not, or that holds what would be lost, is refused, and
    /// the volume stays as after the end of a process.
    pub fn close(self, device: &Device) -> Result<(), VolumeError> {
        if let Some(error) = device.store_error() {
            return Err(self.opened.io(error.what.clone())(clone_error(&error.error)));
        }
        if !device.is_quiet() || device.is_volatile() {
            return Err(VolumeError::Unflushed(self.opened.directory.clone()));
        }
        let mut store = self.lock();
        // It may end where a process ended. In a volume that was closed nothing does.
        store.drop_old_journal().map_err(self.opened.io("cannot be written".into()))?;
        store.host().sync().map_err(self.opened.io("cannot be written".into()))?;
        let state = State { clean: true, opens: self.opened.state.opens + 1 };
        store
            .host()
            .replace_state(&state.text())
            .map_err(self.opened.io(format!("{STATE} cannot be written")))
    }

    /// Waits until the host's disk has everything that the device has on its medium. Without it a volume survives the
    /// end of the process, not the end of the host.
    pub fn sync(&self) -> Result<(), VolumeError> {
        self.lock().host().sync().map_err(self.opened.io("cannot be written".into()))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.opened.directory
    }

    /// Configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        &self.opened.config
    }

    /// Configuration of the host FTL above the device, if there is one.
    pub fn host_ftl(&self) -> Option<&HostFtlConfig> {
        self.opened.host_ftl.as_ref()
    }

    /// Seed of the device's own randomness, and that contents are kept.
    pub fn options(&self) -> DeviceOptions {
        self.opened.options
    }

    /// Whether it had been closed before this opening.
    pub fn was_clean(&self) -> bool {
        self.opened.state.clean
    }
}

fn clone_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Removes what a volume that could not be made has left.
fn remove(directory: &Path, new: bool) {
    let names = Part::all(Format::Two).map(Part::name).into_iter().chain([STATE, LOCK, DESCRIPTION]);
    for name in names {
        let _ = std::fs::remove_file(directory.join(name));
    }
    if new {
        let _ = std::fs::remove_dir(directory);
    }
}

/// The device `config` with `capacity` bytes for the host, rounded up to whole stripes: as many blocks in each plane as
/// its over-provisioning asks for, and more where those would not leave enough spare ones.
pub fn with_capacity(config: &DeviceConfig, capacity: Bytes) -> Result<DeviceConfig, String> {
    const BLOCKS: std::ops::RangeInclusive<u32> = 4..=65_536;
    const OVER_PROVISIONING_MAX: f64 = 0.9;
    let sized = |blocks_per_plane: u32, over_provisioning: f64| {
        let mut sized = config.clone();
        sized.geometry.blocks_per_plane = blocks_per_plane;
        sized.ftl.over_provisioning = over_provisioning;
        sized
    };
    let bytes_of = |config: &DeviceConfig| {
        let geometry = Geometry::new(config);
        geometry.user_units * geometry.unit_bytes
    };
    let is_valid = |config: &DeviceConfig| config.validate().is_ok();
    let own = config.ftl.over_provisioning;
    let geometry = Geometry::new(config);
    let stripe = u64::from(geometry.planes()) * u64::from(geometry.units_per_page);
    let units = capacity.0.div_ceil(geometry.unit_bytes).div_ceil(stripe) * stripe;
    let enough = BLOCKS.filter(|blocks| bytes_of(&sized(*blocks, own)) / geometry.unit_bytes >= units);
    for blocks in enough {
        let physical = Geometry::new(&sized(blocks, own)).physical_units();
        // Half a unit more than is asked for, so that rounding down gives what is asked for.
        let over_provisioning = 1.0 - (units as f64 + 0.5) / physical as f64;
        if over_provisioning > OVER_PROVISIONING_MAX {
            break;
        }
        let sized = sized(blocks, over_provisioning.max(0.0));
        if is_valid(&sized) {
            return Ok(sized);
        }
    }
    let mut least = BLOCKS.map(|blocks| sized(blocks, OVER_PROVISIONING_MAX)).filter(is_valid);
    match least.next().map(|least| bytes_of(&least)).filter(|least| capacity.0 < *least) {
        Some(least) => Err(format!("expected at least {} for {}", Bytes(least), config.name)),
        None => {
            let most = BLOCKS.rev().map(|blocks| sized(blocks, own)).find(is_valid);
            let most = most.map_or(0, |most| bytes_of(&most));
            Err(format!("expected at most {} for {}", Bytes(most), config.name))
        }
    }
}
