//! An open volume, under its lock: description, state, and the files of its medium.
//!
//! Invariant: a process that holds one is the only one that has the volume.

use super::description::{Described, describe, description};
use super::error::{VolumeError, damaged};
use super::format::{self, Format, Sums};
use super::host::{Host, HostFiles, LOCK, Part, STATE};
use super::load::{Loaded, Problem, load, load_journal};
use super::store::{JournalEnd, Layout};
use flashweir_device::flash::{Media, SaveArea};
use flashweir_device::{DeviceConfig, DeviceOptions, Geometry};
use flashweir_host::HostFtlConfig;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Whether it was closed, and not opened since.
    pub(super) clean: bool,
    /// Number of openings.
    pub(super) opens: u64,
}

impl State {
    pub(super) fn text(self) -> String {
        format::seal(&toml::to_string(&self).expect("two plain values"))
    }
}

/// A volume's description, and the lock that holds it open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) directory: PathBuf,
    pub(super) lock: File,
    pub(super) format: Format,
    pub(super) sums: Sums,
    pub(super) firmware: String,
    pub(super) config: DeviceConfig,
    pub(super) host_ftl: Option<HostFtlConfig>,
    pub(super) options: DeviceOptions,
    pub(super) state: State,
}

impl Opened {
    /// Locks a volume and reads what was written about it.
    pub(super) fn of(directory: &Path) -> Result<Self, VolumeError> {
        Self::locked(directory, File::try_lock)
    }

    /// The same for those who only look: there may be several.
    pub(super) fn looked_at(directory: &Path) -> Result<Self, VolumeError> {
        Self::locked(directory, File::try_lock_shared)
    }

    fn locked(
        directory: &Path,
        take: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<Self, VolumeError> {
        let io = |what: String| move |error| VolumeError::Io { directory: directory.to_owned(), what, error };
        let text = description(directory)?;
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        let lock = how.open(directory.join(LOCK)).map_err(io(format!("{LOCK} cannot be opened")))?;
        match take(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let process = process_of(&lock, &directory.join(LOCK));
                return Err(VolumeError::InUse { directory: directory.to_owned(), process });
            }
            Err(TryLockError::Error(error)) => return Err(io(format!("{LOCK} cannot be locked"))(error)),
        }
        let Described { config, host_ftl, seed, format, firmware, sums } = describe(directory, &text)?;
        let state = read_state(directory)?;
        let (directory, options) = (directory.to_owned(), options(seed));
        Ok(Self { directory, lock, format, sums, firmware, config, host_ftl, options, state })
    }

    /// An error if it has to be upgraded first.
    pub(super) fn is_of_this_format(&self) -> Result<(), VolumeError> {
        match self.format {
            Format::Two => Ok(()),
            Format::One => Err(VolumeError::Older { directory: self.directory.clone(), version: 1 }),
        }
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::new(&Geometry::new(&self.config), self.format)
    }

    /// Writes this process's number into the lock.
    pub(super) fn claim(&mut self) -> Result<(), VolumeError> {
        let written = self.lock.set_len(0).and_then(|()| writeln!(&self.lock, "{}", std::process::id()));
        written.map_err(self.io(format!("{LOCK} cannot be written")))
    }

    pub(super) fn io(&self, what: String) -> impl FnOnce(io::Error) -> VolumeError + use<> {
        let directory = self.directory.clone();
        move |error| VolumeError::Io { directory, what, error }
    }

    pub(super) fn files(&self, write: bool) -> Result<HostFiles, VolumeError> {
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
    pub(super) fn read(&self, host: &dyn Host, progress: &mut dyn FnMut(f64)) -> Result<Read, VolumeError> {
        let layout = self.layout();
        let media = Media::new(&self.config, true, &[]);
        let clean = self.state.clean;
        let mut loaded =
            load(host, &layout, media, clean, progress).map_err(self.io("cannot be read".into()))?;
        let journal = load_journal(host, clean).map_err(self.io("the journal cannot be read".into()))?;
        let (save, journal) = match journal {
            Ok((area, end)) => {
                let empty = area.is_empty();
                ((!empty).then_some(area), end)
            }
            Err(problem) => {
                loaded.problems.push(problem);
                (None, JournalEnd::default())
            }
        };
        Ok(Read { loaded, save, journal })
    }

    /// Returns an error if there are problems.
    pub(super) fn refuse(&self, problems: Vec<Problem>) -> Result<(), VolumeError> {
        let more = problems.len().saturating_sub(1);
        match problems.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(VolumeError::Damaged { directory: self.directory.clone(), problem, more }),
        }
    }
}

/// Contents of a volume's files.
pub(super) struct Read {
    pub(super) loaded: Loaded,
    pub(super) save: Option<SaveArea>,
    pub(super) journal: JournalEnd,
}

pub(super) fn read_state(directory: &Path) -> Result<State, VolumeError> {
    let bytes = std::fs::read(directory.join(STATE)).map_err(|error| {
        let what = format!("{STATE} cannot be read");
        VolumeError::Io { directory: directory.to_owned(), what, error }
    })?;
    let text = std::str::from_utf8(&bytes).ok().and_then(format::unseal);
    let state = text.and_then(|text| toml::from_str(text).ok());
    state.ok_or_else(|| damaged(directory, STATE, "wrong checksum"))
}

/// Number of the process that has the lock, as it wrote it there. Who only looks writes none: a number of one that does not have the file open is
/// that of a server that has ended.
fn process_of(mut lock: &File, path: &Path) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    let process: u32 = text.trim().parse().ok()?;
    let path = path.canonicalize().ok()?;
    match std::fs::read_dir(format!("/proc/{process}/fd")) {
        Ok(files) => {
            let is_it = |link: io::Result<PathBuf>| link.is_ok_and(|target| target == path);
            files.flatten().any(|file| is_it(std::fs::read_link(file.path()))).then_some(process)
        }
        // Of another user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(process),
        Err(_) => None,
    }
}

pub(super) fn options(seed: u64) -> DeviceOptions {
    DeviceOptions { seed, track_contents: true, planted: None }
}
