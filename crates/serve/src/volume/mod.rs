//! A volume: the medium of one device in a directory (`specs/volume.md`).
//!
//! Place in the data flow: below the device. [`Volume::open`] gives a device whose medium writes itself to files at the
//! moment at which it changes; the device knows nothing of files. What a process leaves when it ends, in whatever way,
//! is a state that a power cut could have left, and opening is the device's own recovery from it.
//!
//! Invariants: one process at a time has a volume open, and holds a lock; nothing is written before everything that was
//! read made sense; after the first write that fails nothing more is written.
//!
//! Deliberately absent: a log of changes beside the device's own, and repair of damage.

mod format;
mod host;
mod info;
mod load;
mod store;
#[cfg(test)]
mod tests;
mod torn;
mod upgrade;

use flashweir_core::Bytes;
use flashweir_device::config::Metadata;
use flashweir_device::flash::{BlockHealth, Media, SaveArea, Store as _};
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Geometry, Recovery, RecoveryReport};
use format::Format;
use host::{Host, HostFiles, Part, STATE};
pub use info::{Checked, Content, Info, check, info};
pub use load::Problem;
use load::{Loaded, load, load_journal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{FileStore, JournalEnd, Layout};
use torn::Torn;
pub use upgrade::{Upgraded, upgrade};

/// Version of the format that volumes have.
pub const FORMAT: u32 = format::VERSION;

/// The file that makes a directory a volume.
const DESCRIPTION: &str = "volume.toml";
/// The file that is locked; it holds the number of the process.
const LOCK: &str = "lock";

/// Why a volume could not be used.
#[derive(Debug)]
pub enum VolumeError {
    /// There is nothing at this path.
    Missing(PathBuf),
    /// The directory is none of ours.
    NotAVolume(PathBuf),
    /// A volume is to be made where something is already.
    NotEmpty(PathBuf),
    /// A volume is to be made in a directory that does not exist.
    Homeless(PathBuf),
    /// A volume is to be made where a file is.
    NotADirectory(PathBuf),
    /// The volume was made by a newer version of the program.
    Newer { directory: PathBuf, version: u64 },
    /// The volume has an older format, which is read and not written.
    Older { directory: PathBuf, version: u64 },
    /// The volume has something on its medium that this program does not know.
    Unknown { directory: PathBuf, what: String },
    /// There is too little room on the host's disk to upgrade the volume.
    NoRoom { directory: PathBuf, needed: Bytes, free: Bytes },
    /// The upgrade was told to stop. The volume is as before.
    Stopped(PathBuf),
    /// Another process has it open.
    InUse { directory: PathBuf, process: Option<u32> },
    /// Files are not what they were.
    Damaged { directory: PathBuf, problem: Problem, more: usize },
    /// The device cannot be kept in a volume.
    Unsuitable(String),
    /// The host's file system refused something.
    Io { directory: PathBuf, what: String, error: io::Error },
    /// The device was not at rest, or had not been flushed, when the volume was closed.
    Unflushed(PathBuf),
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{}: there is no such directory", path.display()),
            Self::NotAVolume(path) => {
                write!(f, "{} is not a volume: it has no {DESCRIPTION}", path.display())
            }
            Self::NotEmpty(path) => {
                write!(f, "{} is not empty: expected an empty directory, or a new name", path.display())
            }
            Self::Homeless(path) => {
                let parent = path.parent().unwrap_or(path).display();
                write!(f, "{} cannot be made: there is no directory {parent}", path.display())
            }
            Self::NotADirectory(path) => {
                let shown = path.display();
                write!(f, "{shown} is not a directory: expected an empty directory, or a new name")
            }
            Self::Newer { directory, version } => write!(
                f,
                "{}: the volume has format {version}, and this program knows formats up to {}",
                directory.display(),
                format::VERSION
            ),
            Self::Older { directory, version } => write!(
                f,
                "{0}: the volume has format {version}, and this program writes format {1}: weir volume upgrade {0}",
                directory.display(),
                format::VERSION
            ),
            Self::Unknown { directory, what } => write!(f, "{}: {what}", directory.display()),
            Self::NoRoom { directory, needed, free } => write!(
                f,
                "{}: the upgrade needs {needed} on the host's disk beside what is there, and {free} are free",
                directory.display()
            ),
            Self::Stopped(path) => write!(f, "{}: stopped; the volume is as before", path.display()),
            Self::InUse { directory, process } => {
                let by = process.map_or(String::new(), |process| format!(" {process}"));
                write!(f, "{} is in use by process{by}", directory.display())
            }
            Self::Damaged { directory, problem, more } => {
                write!(f, "{}: {problem}", directory.display())?;
                if *more > 0 {
                    write!(f, ", and {more} more; weir volume check lists them")?;
                }
                Ok(())
            }
            Self::Unsuitable(reason) => f.write_str(reason),
            Self::Io { directory, what, error } => write!(f, "{}: {what}: {error}", directory.display()),
            Self::Unflushed(path) => {
                write!(f, "{} is not closed: its device was not flushed", path.display())
            }
        }
    }
}
impl std::error::Error for VolumeError {}

/// `volume.toml`, the part that is the volume's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format: u32,
    /// In words, because TOML has no number that holds all seeds.
    seed: String,
    /// What runs on the medium. Format 1 does not say it: there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    firmware: Option<String>,
    /// What a program has to know beyond format and firmware.
    #[serde(default)]
    needs: Vec<String>,
    device: DeviceConfig,
}

/// What can be read in each description from format 2 on, whatever else stands there.
#[derive(Debug, Deserialize)]
struct Heading {
    firmware: String,
    #[serde(default)]
    needs: Vec<String>,
}

/// The page-mapped FTL, the firmware of this program.
const FIRMWARE: &str = "page-mapped";

impl Description {
    /// The text of the file that describes a volume of the present format.
    fn text(config: &DeviceConfig, seed: u64) -> Result<String, VolumeError> {
        let description = Self {
            format: format::VERSION,
            seed: seed.to_string(),
            firmware: Some(FIRMWARE.to_owned()),
            needs: Vec::new(),
            device: config.clone(),
        };
        let text = toml::to_string(&description).map_err(|error| {
            VolumeError::Unsuitable(format!("the device cannot be written down: {error}"))
        })?;
        let heading =
            "# A volume of weir. It is checked against the last line, so that no edit goes unnoticed.\n";
        Ok(format::seal(&format!("{heading}{text}")))
    }
}

/// What a description says.
struct Described {
    config: DeviceConfig,
    seed: u64,
    format: Format,
    firmware: String,
}

/// `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// It was closed, and nobody has opened it since.
    clean: bool,
    /// How often it was opened.
    opens: u64,
}

impl State {
    fn text(self) -> String {
        format::seal(&toml::to_string(&self).expect("two plain values"))
    }
}

/// What was written about a volume, and who has it open.
#[derive(Debug)]
struct Opened {
    directory: PathBuf,
    lock: File,
    format: Format,
    firmware: String,
    config: DeviceConfig,
    options: DeviceOptions,
    state: State,
}

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
        suits(config)?;
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
        Self::fill(directory, config, seed).inspect_err(|_| remove(directory, new))
    }

    fn fill(directory: &Path, config: &DeviceConfig, seed: u64) -> Result<(), VolumeError> {
        let io = |what: String| move |error| VolumeError::Io { directory: directory.to_owned(), what, error };
        let stored = |error: flashweir_device::flash::StoreError| io(error.what)(error.error);
        let text = Description::text(config, seed)?;
        let layout = Layout::new(&Geometry::new(config), Format::Two);
        let host = HostFiles::create(directory, layout.lens())
            .map_err(|(part, error)| io(format!("{} cannot be made", part.name()))(error))?;
        let device = Device::new(config.clone(), options(seed));
        let changes = vec![0; layout.blocks as usize];
        // The first journal that is begun has number 1 and is in the first file.
        let before = JournalEnd { which: 1, epoch: 0, len: 0 };
        let mut store = FileStore::new(Box::new(host), layout, changes, before, config.buffer.capacity.0);
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
        let layout = opened.layout();
        let capacity = opened.config.buffer.capacity.0;
        let store = FileStore::new(host(files), layout, loaded.changes, journal, capacity);
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

    /// From here on the volume is not clean; what the last process left half-done is done in full.
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

    /// What the device is made of.
    pub fn config(&self) -> &DeviceConfig {
        &self.opened.config
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

fn options(seed: u64) -> DeviceOptions {
    DeviceOptions { seed, track_contents: true, planted: None }
}

fn clone_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Whether a device can be kept in a volume.
fn suits(config: &DeviceConfig) -> Result<(), VolumeError> {
    if config.ftl.metadata == Metadata::None {
        return Err(VolumeError::Unsuitable(format!(
            "ftl.metadata = none of {}: expected log, because a volume is recovered from what the device keeps on flash",
            config.name
        )));
    }
    Ok(())
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

/// What the files of a volume say.
struct Read {
    loaded: Loaded,
    save: Option<SaveArea>,
    journal: JournalEnd,
}

impl Opened {
    /// Locks a volume and reads what was written about it.
    fn of(directory: &Path) -> Result<Self, VolumeError> {
        let io = |what: String| move |error| VolumeError::Io { directory: directory.to_owned(), what, error };
        let text = description(directory)?;
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        let lock = how.open(directory.join(LOCK)).map_err(io(format!("{LOCK} cannot be opened")))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let process = process_of(&lock);
                return Err(VolumeError::InUse { directory: directory.to_owned(), process });
            }
            Err(TryLockError::Error(error)) => return Err(io(format!("{LOCK} cannot be locked"))(error)),
        }
        let Described { config, seed, format, firmware } = describe(directory, &text)?;
        let state = read_state(directory)?;
        let (directory, options) = (directory.to_owned(), options(seed));
        Ok(Self { directory, lock, format, firmware, config, options, state })
    }

    /// An error if it has to be upgraded first.
    fn is_of_this_format(&self) -> Result<(), VolumeError> {
        match self.format {
            Format::Two => Ok(()),
            Format::One => Err(VolumeError::Older { directory: self.directory.clone(), version: 1 }),
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(&Geometry::new(&self.config), self.format)
    }

    /// Says in the lock who has it.
    fn claim(&mut self) -> Result<(), VolumeError> {
        let written = self.lock.set_len(0).and_then(|()| writeln!(&self.lock, "{}", std::process::id()));
        written.map_err(self.io(format!("{LOCK} cannot be written")))
    }

    fn io(&self, what: String) -> impl FnOnce(io::Error) -> VolumeError + use<> {
        let directory = self.directory.clone();
        move |error| VolumeError::Io { directory, what, error }
    }

    fn files(&self, write: bool) -> Result<HostFiles, VolumeError> {
        let files = HostFiles::open(&self.directory, self.format, write)
            .map_err(|(part, error)| self.io(format!("{} cannot be opened", part.name()))(error))?;
        let lens = self.layout().lens();
        for (part, expected) in Part::all(self.format).into_iter().zip(lens).take(3) {
            let len = files.len(part).map_err(self.io(format!("{} cannot be read", part.name())))?;
            if len != expected {
                let what = format!("{len} bytes: expected {expected}");
                let problem = Problem { file: part.name(), place: String::new(), what };
                return self.refuse(vec![problem]).map(|()| files);
            }
        }
        Ok(files)
    }

    /// Reads everything but contents.
    fn read(&self, host: &dyn Host, progress: &mut dyn FnMut(f64)) -> Result<Read, VolumeError> {
        let layout = self.layout();
        let media = Media::new(&self.config, true, &[]);
        let clean = self.state.clean;
        let mut loaded =
            load(host, &layout, media, clean, progress).map_err(self.io("cannot be read".into()))?;
        let journal = load_journal(host, clean).map_err(self.io("the journal cannot be read".into()))?;
        let (save, journal) = match journal {
            Ok((area, end)) => {
                let empty = area.units.is_empty() && area.trims.is_empty();
                ((!empty).then_some(area), end)
            }
            Err(problem) => {
                loaded.problems.push(problem);
                (None, JournalEnd::default())
            }
        };
        Ok(Read { loaded, save, journal })
    }

    /// An error if there are problems.
    fn refuse(&self, problems: Vec<Problem>) -> Result<(), VolumeError> {
        let more = problems.len().saturating_sub(1);
        match problems.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(VolumeError::Damaged { directory: self.directory.clone(), problem, more }),
        }
    }
}

/// The text of `volume.toml`.
fn description(directory: &Path) -> Result<String, VolumeError> {
    std::fs::read_to_string(directory.join(DESCRIPTION)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if !directory.exists() => VolumeError::Missing(directory.to_owned()),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            VolumeError::NotAVolume(directory.to_owned())
        }
        io::ErrorKind::InvalidData => damaged(directory, DESCRIPTION, "not a text"),
        _ => {
            let what = format!("{DESCRIPTION} cannot be read");
            VolumeError::Io { directory: directory.to_owned(), what, error }
        }
    })
}

fn damaged(directory: &Path, file: &'static str, what: &str) -> VolumeError {
    let problem = Problem { file, place: String::new(), what: what.to_owned() };
    VolumeError::Damaged { directory: directory.to_owned(), problem, more: 0 }
}

/// What a description says. Its version is looked at first, then what runs on the medium: each says what the rest means.
fn describe(directory: &Path, text: &str) -> Result<Described, VolumeError> {
    let version = text.lines().find_map(|line| line.strip_prefix("format = ")?.trim().parse::<u64>().ok());
    if let Some(version) = version.filter(|version| *version > u64::from(format::VERSION)) {
        return Err(VolumeError::Newer { directory: directory.to_owned(), version });
    }
    let damaged = |what: &str| damaged(directory, DESCRIPTION, what);
    let text = format::unseal(text).ok_or_else(|| damaged("wrong checksum"))?;
    let format = version.and_then(Format::of).ok_or_else(|| damaged("no format"))?;
    if format == Format::Two {
        let heading: Heading = toml::from_str(text).map_err(|error| damaged(error.message()))?;
        knows(&heading).map_err(|what| VolumeError::Unknown { directory: directory.to_owned(), what })?;
    }
    let description: Description = toml::from_str(text).map_err(|error| damaged(error.message()))?;
    description.device.validate().map_err(|reason| damaged(&reason))?;
    let seed = description.seed.parse().map_err(|_| damaged("the seed is not a number"))?;
    suits(&description.device)?;
    let firmware = description.firmware.unwrap_or_else(|| FIRMWARE.to_owned());
    Ok(Described { config: description.device, seed, format, firmware })
}

/// Whether this program can run what is on the medium; what it cannot, in words.
fn knows(heading: &Heading) -> Result<(), String> {
    if heading.firmware != FIRMWARE {
        return Err(format!(
            "the volume holds the firmware {:?}, and this program knows {FIRMWARE:?}: it takes a newer one",
            heading.firmware
        ));
    }
    match heading.needs.first() {
        Some(need) => {
            Err(format!("the volume needs {need:?}, which this program does not know: it takes a newer one"))
        }
        None => Ok(()),
    }
}

fn read_state(directory: &Path) -> Result<State, VolumeError> {
    let bytes = std::fs::read(directory.join(STATE)).map_err(|error| {
        let what = format!("{STATE} cannot be read");
        VolumeError::Io { directory: directory.to_owned(), what, error }
    })?;
    let text = std::str::from_utf8(&bytes).ok().and_then(format::unseal);
    let state = text.and_then(|text| toml::from_str(text).ok());
    state.ok_or_else(|| damaged(directory, STATE, "wrong checksum"))
}

/// The process that says it has the lock.
fn process_of(mut lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
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
