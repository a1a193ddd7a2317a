//! Calls that change a file system, recorded at its mount, and their replay on another one.
//!
//! Invariant: inodes are named by their numbers at the time of the recording. On a file system that begins with the
//! same contents, existing inodes have the same numbers; the numbers of new ones are translated.

use flashweir_fs::vfs::{
    Access, AclKind, Barrier, Creds, Errno, File, Fs, Ino, Kept, Kind, OpenFlags, RenameMode, Result,
    SetAttr, Source, SyncKind, Vfs, XattrMode,
};
use std::collections::BTreeMap;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creates an inode, which got the number `made`.
    Make { creds: Creds, dir: Ino, name: Box<[u8]>, kind: Kind, permissions: u16, made: Ino },
    /// Creates a file without a name, which got the number `made`.
    MakeNameless { creds: Creds, dir: Ino, permissions: u16, exclusive: bool, made: Ino },
    /// Creates a symbolic link, which got the number `made`.
    Symlink { creds: Creds, dir: Ino, name: Box<[u8]>, target: Box<[u8]>, made: Ino },
    /// Creates a hard link to an inode.
    Link { creds: Creds, ino: Ino, dir: Ino, name: Box<[u8]> },
    /// Removes a name.
    Remove { creds: Creds, dir: Ino, name: Box<[u8]>, of_dir: bool },
    /// Renames.
    Rename { creds: Creds, from: (Ino, Box<[u8]>), to: (Ino, Box<[u8]>), mode: RenameMode },
    /// Changes attributes or the size.
    SetAttr { ino: Ino, changes: SetAttr },
    /// Writes, past the page cache if `direct`.
    Write { ino: Ino, offset: u64, bytes: Box<[u8]>, direct: bool },
    /// Changes the allocation of a range of a file.
    Allocate { ino: Ino, offset: u64, len: u64, room: Room },
    /// Sets an access control list.
    SetAcl { ino: Ino, kind: AclKind, value: Box<[u8]>, clears_setgid: bool },
    /// Sets an extended attribute.
    SetXattr { ino: Ino, name: Box<[u8]>, value: Box<[u8]>, mode: XattrMode },
    /// Removes an extended attribute.
    RemoveXattr { ino: Ino, name: Box<[u8]> },
    /// Copies a range by SHARE.
    Copy { from: (Ino, u64), to: (Ino, u64), bytes: u64 },
    /// Exchanges two ranges of the same length.
    Exchange { one: (Ino, u64), other: (Ino, u64), bytes: u64 },
    /// Makes an inode durable; what it withholds as an atomic file is released before, unless only a commit may do that.
    Sync { ino: Ino, kind: SyncKind, releases: bool },
    /// Orders an inode's changes before later ones, with the same choice.
    Barrier { ino: Ino, kind: Barrier, releases: bool },
    /// An open file, by a number of its own, makes the inode withhold what is written to it (share §7).
    BeginAtomic { open: u64, ino: Ino },
    /// This open file does so no longer.
    EndAtomic { open: u64 },
    /// What was written through open files of these numbers becomes durable in one transaction.
    SyncSet { opens: Box<[u64]>, kind: SyncKind },
    /// What the inode withholds is released, and durable with the next sync.
    Release { ino: Ino },
    /// What the inode of this open file withholds is forgotten.
    Abort { open: u64 },
    /// The inode is not in use any more: without names it is gone.
    Forget { ino: Ino },
}

/// New state of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Space is allocated.
    Reserved { keep_size: bool },
    /// The range becomes a hole.
    Hole,
    /// The range becomes zeros.
    Zeros { keep_size: bool },
}

impl Room {
    /// Applies it to a range of a file.
    ///
    /// # Errors
    /// Those of the file.
    pub async fn make<F: Fs>(self, file: &File<F>, offset: u64, len: u64) -> Result<()> {
        match self {
            Self::Reserved { keep_size } => file.allocate(offset, len, keep_size).await,
            Self::Hole => file.punch_hole(offset, len).await,
            Self::Zeros { keep_size } => file.zero_range(offset, len, keep_size).await,
        }
    }
}

/// A call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The call.
    pub call: Call,
    /// Description in words, with paths.
    pub shown: String,
    /// Number of bytes that the program had printed before the call was made.
    pub printed: u64,
    /// Number of bytes that it had printed when the call had ended: threads print meanwhile.
    pub printed_after: u64,
}

/// Replays recorded calls.
pub(super) struct Player<F: Fs> {
    vfs: Vfs<F>,
    /// Numbers of the inodes created since, by their numbers in the recording.
    numbers: BTreeMap<Ino, Ino>,
    kept: BTreeMap<Ino, Kept<F>>,
    /// Open files, by inode and whether they bypass the page cache.
    files: BTreeMap<(Ino, bool), File<F>>,
    /// Files that are open as atomic, by the number in the recording.
    atomic: BTreeMap<u64, File<F>>,
}

impl<F: Fs> Player<F> {
    pub(super) fn new(vfs: Vfs<F>) -> Self {
        let (numbers, kept) = (BTreeMap::new(), BTreeMap::new());
        Self { vfs, numbers, kept, files: BTreeMap::new(), atomic: BTreeMap::new() }
    }

    fn number(&self, recorded: Ino) -> Ino {
        self.numbers.get(&recorded).copied().unwrap_or(recorded)
    }

    async fn file(&mut self, recorded: Ino, direct: bool) -> Result<&File<F>> {
        let key = (recorded, direct);
        if !self.files.contains_key(&key) {
            let ino = self.number(recorded);
            let is_dir = self.vfs.attr_of(ino).await?.kind.is_dir();
            let access = if is_dir { Access::Read } else { Access::ReadWrite };
            let flags = OpenFlags { access, ..OpenFlags::default() };
            let flags = if direct { flags.direct() } else { flags };
            let file = self.vfs.open_inode(&Creds::checked(0, 0), ino, flags).await?;
            self.files.insert(key, file);
        }
        self.files.get(&key).ok_or(Errno::EIO)
    }

    /// The files of two inodes, through the page cache.
    async fn both(&mut self, one: Ino, other: Ino) -> Result<[&File<F>; 2]> {
        for recorded in [one, other] {
            self.file(recorded, false).await?;
        }
        let opened = |recorded| self.files.get(&(recorded, false)).ok_or(Errno::EIO);
        Ok([opened(one)?, opened(other)?])
    }

    fn atomic(&self, open: u64) -> Result<&File<F>> {
        self.atomic.get(&open).ok_or(Errno::EIO)
    }

    async fn made(&mut self, recorded: Ino, made: Ino) -> Result<()> {
        let kept = self.vfs.keep(made).await?;
        // The number may have belonged to another inode, which is gone.
        self.numbers.retain(|_, ino| *ino != made);
        self.numbers.insert(recorded, made);
        self.kept.insert(recorded, kept);
        Ok(())
    }

    /// An inode that is about to lose a name is kept until it is forgotten, as the kernel does.
    async fn keep_named(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let Ok(attr) = self.vfs.lookup_name(dir, name).await else { return Ok(()) };
        let recorded = self.numbers.iter().find(|(_, ino)| **ino == attr.ino);
        let recorded = recorded.map_or(attr.ino, |(recorded, _)| *recorded);
        if !self.kept.contains_key(&recorded) {
            self.kept.insert(recorded, self.vfs.keep(attr.ino).await?);
        }
        Ok(())
    }

    pub(super) async fn apply(&mut self, call: &Call) -> Result<()> {
        let vfs = self.vfs.clone();
        match call {
            Call::Make { creds, dir, name, kind, permissions, made } => {
                let attr = vfs.make_node(creds, self.number(*dir), name, *kind, *permissions).await?;
                self.made(*made, attr.ino).await
            }
            Call::MakeNameless { creds, dir, permissions, exclusive, made } => {
                let flags =
                    OpenFlags { access: Access::ReadWrite, exclusive: *exclusive, ..OpenFlags::default() };
                let file = vfs.open_nameless_in(creds, self.number(*dir), flags, *permissions).await?;
                self.made(*made, file.attr().await?.ino).await?;
                file.close().await
            }
            Call::Symlink { creds, dir, name, target, made } => {
                let attr = vfs.make_symlink(creds, self.number(*dir), name, target).await?;
                self.made(*made, attr.ino).await
            }
            Call::Link { creds, ino, dir, name } => {
                vfs.link_name(creds, self.number(*ino), self.number(*dir), name).await.map(drop)
            }
            Call::Remove { creds, dir, name, of_dir } => {
                let dir = self.number(*dir);
                self.keep_named(dir, name).await?;
                vfs.remove_name(creds, dir, name, *of_dir).await
            }
            Call::Rename { creds, from, to, mode } => {
                let (from_dir, to_dir) = (self.number(from.0), self.number(to.0));
                self.keep_named(to_dir, &to.1).await?;
                vfs.rename_name(creds, (from_dir, &from.1), (to_dir, &to.1), *mode).await
            }
            Call::SetAttr { ino, changes } => vfs.set_attr_of(self.number(*ino), changes).await.map(drop),
            Call::Write { ino, offset, bytes, direct } => {
                let written = self.file(*ino, *direct).await?.pwrite(*offset, Source::bytes(bytes)).await?;
                if written == bytes.len() as u64 { Ok(()) } else { Err(Errno::ENOSPC) }
            }
            Call::Allocate { ino, offset, len, room } => {
                room.make(self.file(*ino, false).await?, *offset, *len).await
            }
            Call::SetAcl { ino, kind, value, clears_setgid } => {
                let ino = self.number(*ino);
                vfs.set_acl_of(&Creds::checked(0, 0), ino, *kind, value, *clears_setgid).await
            }
            Call::SetXattr { ino, name, value, mode } => {
                let ino = self.number(*ino);
                vfs.set_xattr_of(&Creds::checked(0, 0), ino, name, value, *mode).await
            }
            Call::RemoveXattr { ino, name } => {
                vfs.remove_xattr_of(&Creds::checked(0, 0), self.number(*ino), name).await
            }
            Call::Copy { from: (from, offset), to: (to, to_offset), bytes } => {
                let [from, to] = self.both(*from, *to).await?;
                let mut done = 0;
                while done < *bytes {
                    let (from, to) = ((from, offset + done), (to, to_offset + done));
                    match vfs.copy_range(from, to, bytes - done).await? {
                        0 => return Err(Errno::EIO),
                        copied => done += copied,
                    }
                }
                Ok(())
            }
            Call::Exchange { one: (one, offset), other: (other, other_offset), bytes } => {
                let [one, other] = self.both(*one, *other).await?;
                vfs.exchange((one, *offset), (other, *other_offset), *bytes).await
            }
            Call::Sync { ino, kind, releases } => {
                self.file(*ino, false).await?.sync_as(*kind, *releases).await
            }
            Call::Barrier { ino, kind, releases } => {
                self.file(*ino, false).await?.barrier_as(*kind, *releases).await
            }
            Call::BeginAtomic { open, ino } => {
                let (creds, flags) = (Creds::checked(0, 0), OpenFlags::READ_WRITE.atomic());
                let file = vfs.open_inode(&creds, self.number(*ino), flags).await?;
                self.atomic.insert(*open, file);
                Ok(())
            }
            Call::EndAtomic { open } => match self.atomic.remove(open) {
                Some(file) => file.close().await,
                None => Err(Errno::EIO),
            },
            Call::SyncSet { opens, kind } => {
                let set: Vec<&File<F>> =
                    opens.iter().map(|open| self.atomic(*open)).collect::<Result<_>>()?;
                vfs.syncv(&set, *kind).await
            }
            Call::Release { ino } => self.file(*ino, false).await?.release().await,
            Call::Abort { open } => self.atomic(*open)?.abort().await,
            Call::Forget { ino } => {
                for direct in [false, true] {
                    if let Some(file) = self.files.remove(&(*ino, direct)) {
                        file.close().await?;
                    }
                }
                if let Some(kept) = self.kept.remove(ino) {
                    kept.end().await?;
                }
                Ok(())
            }
        }
    }
}
