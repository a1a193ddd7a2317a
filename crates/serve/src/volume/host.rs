//! The host's file system as a volume uses it: a few files, written in place.
//!
//! Invariants: when a write has returned, its bytes outlive the process; a write that fails or is interrupted has
//! changed a prefix of its range at most.
//!
//! Deliberately absent: waiting for the host's disk, except in `sync`. What a crash of the host itself leaves is found
//! by the checksums and is not repaired.

use super::format::Format;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The files that are written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Two slots for each block.
    Blocks,
    /// Out-of-band area of each page. Each format has a name of its own for it, so that both can be there.
    Oob(Format),
    /// Content of each page.
    Data,
    /// The capacitor's journals, of which one counts.
    Journal(usize),
}

impl Part {
    /// All files of a volume.
    pub(crate) const fn all(format: Format) -> [Self; 5] {
        [Self::Blocks, Self::Oob(format), Self::Data, Self::Journal(0), Self::Journal(1)]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Oob(Format::One) => "oob",
            Self::Oob(Format::Two) => "oob-2",
            Self::Data => "data",
            Self::Journal(0) => "capacitor-0",
            Self::Journal(_) => "capacitor-1",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Blocks => 0,
            Self::Oob(_) => 1,
            Self::Data => 2,
            Self::Journal(which) => 3 + which,
        }
    }
}

/// Name of the file that says whether the volume was closed.
pub(crate) const STATE: &str = "state";
/// The file that makes a directory a volume.
pub(super) const DESCRIPTION: &str = "volume.toml";
/// The file that is locked; it holds the number of the process.
pub(super) const LOCK: &str = "lock";

/// Services of the host that a volume needs.
pub(crate) trait Host: Debug + Send {
    /// Writes all of `bytes`.
    fn write_at(&mut self, part: Part, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads until `buffer` is full or the file ends; says how much that was.
    fn read_at(&self, part: Part, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Bytes of a file.
    fn len(&self, part: Part) -> io::Result<u64>;

    /// Makes a file empty.
    fn clear(&mut self, part: Part) -> io::Result<()>;

    /// The range is not needed any more and may read as zeros.
    fn release(&mut self, part: Part, offset: u64, len: u64);

    /// Replaces the state file, which is then the old one or the new one.
    fn replace_state(&mut self, text: &str) -> io::Result<()>;

    /// Waits until the host's disk has everything.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real one.
#[derive(Debug)]
pub(crate) struct HostFiles {
    directory: PathBuf,
    files: Vec<File>,
}

impl HostFiles {
    /// Opens the files of a volume, which are there.
    pub(crate) fn open(directory: &Path, format: Format, write: bool) -> Result<Self, (Part, io::Error)> {
        let open = |part: Part| {
            let file = OpenOptions::new().read(true).write(write).open(directory.join(part.name()));
            file.map_err(|error| (part, error))
        };
        let files = Part::all(format).into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { directory: directory.to_owned(), files })
    }

    /// Makes the files of a volume, which are not there, with these lengths; they read as zeros and take no room.
    pub(crate) fn create(directory: &Path, lens: [u64; 5]) -> Result<Self, (Part, io::Error)> {
        let create = |(part, len): (Part, u64)| {
            let path = directory.join(part.name());
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
            file.and_then(|file| file.set_len(len).map(|()| file)).map_err(|error| (part, error))
        };
        let files = Part::all(Format::Two).into_iter().zip(lens).map(create).collect::<Result<_, _>>()?;
        Ok(Self { directory: directory.to_owned(), files })
    }

    fn file(&self, part: Part) -> &File {
        &self.files[part.index()]
    }
}

impl Host for HostFiles {
    fn write_at(&mut self, part: Part, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(part).write_all_at(bytes, offset)
    }

    fn read_at(&self, part: Part, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file(part).read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn len(&self, part: Part) -> io::Result<u64> {
        Ok(self.file(part).metadata()?.len())
    }

    fn clear(&mut self, part: Part) -> io::Result<()> {
        self.file(part).set_len(0)
    }

    #[cfg(target_os = "linux")]
    fn release(&mut self, part: Part, offset: u64, len: u64) {
        use rustix::fs::{FallocateFlags, fallocate};
        // File systems without holes keep the bytes, which are never read.
        let _ =
            fallocate(self.file(part), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
    }

    #[cfg(not(target_os = "linux"))]
    fn release(&mut self, _: Part, _: u64, _: u64) {}

    fn replace_state(&mut self, text: &str) -> io::Result<()> {
        replace(&self.directory, STATE, text)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_all)
    }
}

/// Writes a file beside its place and renames it.
pub(crate) fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    let temporary = directory.join(format!("{name}.part"));
    let mut file = File::create(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, directory.join(name))) {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

/// Bytes that a directory's files take on the host, holes not counted.
pub(crate) fn bytes_taken(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}
