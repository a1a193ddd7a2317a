//! Room for an image that is written when its mount has ended.
//!
//! Place in the data flow: [`super::medium`] reserves it before the mount and fills it at the end. The room is an unnamed file in the
//! image's directory, so a process that is killed leaves nothing behind; once it is complete and on the host's disk, it takes the place of
//! the image. A reader sees the image from before the mount, or the complete new one.
//!
//! Invariant: an image that cannot be written is not lost. The device stays in memory, and its contents can still be written elsewhere.

use crate::host_disk::{free_bytes, nameless};
use flashweir_fs::port::BLOCK_BYTES;
use rustix::fs::{AtFlags, CWD, FallocateFlags, fallocate, linkat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

/// Room for an image.
#[derive(Debug)]
pub(super) struct Room {
    file: File,
    /// Path of the file, if the host's file system has no unnamed files.
    named: Option<PathBuf>,
}

/// The directory of a file.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An unused name beside a file.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.weir", std::process::id()))
}

impl Room {
    /// Reserves room for `blocks` beside `path`. On host file systems without reservations the room may be gone later.
    ///
    /// # Errors
    /// There is too little of it, or nothing can be written there.
    pub(super) fn reserve(path: &Path, blocks: u64) -> Result<Self, String> {
        // Looked at first: a host file system may reserve all that is left before it says that it is too little.
        if free_bytes(directory_of(path)).is_ok_and(|free| free / (BLOCK_BYTES as u64) < blocks) {
            return Err(too_little(path, blocks));
        }
        let room = Self::new(path, blocks).map_err(|error| format!("{}: {error}", path.display()))?;
        match fallocate(&room.file, FallocateFlags::empty(), 0, blocks * BLOCK_BYTES as u64) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(room),
            Err(Errno::NOSPC | Errno::DQUOT) => Err(too_little(path, blocks)),
            Err(errno) => Err(format!("{}: {}", path.display(), io::Error::from(errno))),
        }
    }

    /// Returns a file for an image for which no room is reserved.
    pub(super) fn new(path: &Path, blocks: u64) -> io::Result<Self> {
        let room = match nameless(directory_of(path))? {
            Some(file) => Self { file, named: None },
            None => {
                let name = beside(path);
                let file = File::options().read(true).write(true).create(true).truncate(true).open(&name)?;
                Self { file, named: Some(name) }
            }
        };
        room.file.set_len(blocks * BLOCK_BYTES as u64)?;
        Ok(room)
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Frees ranges of blocks, first and end, in which nothing was written.
    pub(super) fn punch(&self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        for (first, end) in ranges.into_iter().filter(|(first, end)| first < end) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
            // Zeros that take room are as good.
            let _ = fallocate(&self.file, how, bytes(first), bytes(end - first));
        }
    }

    /// Makes the file durable and gives it that name.
    /// It gets the owner and the permissions of `old`.
    pub(super) fn take_place(mut self, path: &Path, old: Option<&Metadata>) -> io::Result<()> {
        if let Some(old) = old {
            // Who may write the image and is not its owner cannot give it away: it is theirs then, as with any program that replaces files.
            let _ = fchown(&self.file, Some(old.uid()), Some(old.gid()));
            self.file.set_permissions(old.permissions())?;
        }
        self.file.sync_all()?;
        let name = match &self.named {
            Some(name) => name.clone(),
            None => {
                let name = beside(path);
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, own, CWD, &name, AtFlags::SYMLINK_FOLLOW)?;
                self.named = Some(name.clone());
                name
            }
        };
        std::fs::rename(&name, path)?;
        self.named = None;
        File::open(directory_of(path))?.sync_all()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            let _ = std::fs::remove_file(name);
        }
    }
}

fn too_little(path: &Path, blocks: u64) -> String {
    let directory = directory_of(path);
    let free = free_bytes(directory).unwrap_or(0);
    format!(
        "{}: it is written anew when the mount ends, for which {} may need {} bytes, and has {free} free: expected more room, \
         a volume (weir volume create), or --no-reserve",
        path.display(),
        directory.display(),
        blocks * BLOCK_BYTES as u64
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn dir(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("weir-keep-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn names(dir: &Dir) -> Vec<String> {
        let entries = std::fs::read_dir(&dir.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn room_takes_the_place_of_an_image_when_it_is_whole() {
        let dir = dir("whole");
        let path = dir.0.join("disk.img");
        std::fs::write(&path, "before").unwrap();
        let room = Room::reserve(&path, 2).unwrap();
        room.file().write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        room.punch([(1, 2), (2, 2)]);
        room.take_place(&path, None).unwrap();
        let mut found = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!((found.len(), &found[..5]), (2 * BLOCK_BYTES, &b"after"[..]));
        assert_eq!(names(&dir), ["disk.img"]);
    }

    #[test]
    fn an_image_keeps_owner_and_permissions() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = dir("owner");
        let path = dir.0.join("disk.img");
        std::fs::write(&path, "before").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        // Only root gives files away; others keep them.
        let is_root = std::os::unix::fs::chown(&path, Some(1234), Some(4321)).is_ok();
        let old = std::fs::metadata(&path).unwrap();
        Room::reserve(&path, 2).unwrap().take_place(&path, Some(&old)).unwrap();
        let new = std::fs::metadata(&path).unwrap();
        assert_eq!((new.uid(), new.gid(), new.mode()), (old.uid(), old.gid(), old.mode()));
        assert!(!is_root || new.uid() == 1234);
    }

    #[test]
    fn room_that_is_given_up_leaves_nothing() {
        let dir = dir("given-up");
        drop(Room::reserve(&dir.0.join("disk.img"), 2).unwrap());
        assert_eq!(names(&dir), Vec::<String>::new());
    }

    #[test]
    fn room_that_is_not_there_is_refused_with_the_numbers() {
        let dir = dir("too-little");
        let more = free_bytes(&dir.0).unwrap() / BLOCK_BYTES as u64 + (1 << 18);
        let why = Room::reserve(&dir.0.join("disk.img"), more).unwrap_err();
        assert!(why.contains("disk.img") && why.contains("--no-reserve"), "{why}");
    }
}
