//! The formats, and the one place that knows all of them.
//!
//! Place in the data flow: commands, laboratories and mounts hold a [`Kind`], or a [`Mode`] where it matters how a volume is mounted.
//! [`Kind::format`] gives what the folder of the format does ([`Volumes`]); what is mounted is an [`AnyFs`].
//!
//! A new format is a folder that implements [`Volumes`] and [`Mounted`](crate::Mounted), a variant of [`Kind`] with its line in
//! [`Kind::format`], and a field for its options in [`Mode`] and [`NewVolume`].

use crate::alfs::{self, AlfsOptions};
use crate::any::AnyFs;
use crate::boxed::Boxed;
use crate::ext4::{self, Ext4Options};
use crate::f2fs::{self, F2fsOptions, Flushing};
use crate::format::Error;
use crate::order::CommitMode;
use crate::port::BlockPort;
use crate::volumes::Volumes;
pub use crate::volumes::{AnyError, Checked, Described, Fact};
use std::rc::Rc;

/// Which format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// F2FS.
    #[default]
    F2fs,
    /// ext4.
    Ext4,
    /// ALFS, for disks of append segments.
    Alfs,
}

/// A format, and how a volume of it is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// The format.
    pub kind: Kind,
    /// How F2FS is mounted.
    pub f2fs: F2fsOptions,
    /// How ext4 is.
    pub ext4: Ext4Options,
    /// How ALFS is.
    pub alfs: AlfsOptions,
}

/// Options of a new volume, for each format.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Options for F2FS.
    pub f2fs: f2fs::Options,
    /// Options for ext4.
    pub ext4: ext4::Options,
    /// Options for ALFS.
    pub alfs: alfs::Options,
}

/// Result of a file system of any format.
pub type Result<T> = std::result::Result<T, AnyError>;

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F2fs, Self::Ext4, Self::Alfs];

    /// The functions of the format.
    fn format(self) -> &'static dyn Dispatch {
        const F2FS: Of<f2fs::Named> =
            Of { new: |new| &new.f2fs, options: |mode| &mode.f2fs, options_mut: |mode| &mut mode.f2fs };
        const EXT4: Of<ext4::Named> =
            Of { new: |new| &new.ext4, options: |mode| &mode.ext4, options_mut: |mode| &mut mode.ext4 };
        const ALFS: Of<alfs::Named> =
            Of { new: |new| &new.alfs, options: |mode| &mode.alfs, options_mut: |mode| &mut mode.alfs };
        match self {
            Self::F2fs => &F2FS,
            Self::Ext4 => &EXT4,
            Self::Alfs => &ALFS,
        }
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        self.format().name()
    }

    /// Usual spelling of its name.
    pub fn title(self) -> &'static str {
        self.format().title()
    }

    /// The one that users call so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether a mount of it makes use of range flushes.
    pub fn has_range_flushes(self) -> bool {
        self.format().has_range_flushes()
    }

    /// Whether it is for disks of append segments, and only for those.
    pub fn appends(self) -> bool {
        self.format().appends()
    }

    /// Whether a disk can have such a volume. Errors: what kind of disk it is, and what fits instead.
    fn fits(self, port: &dyn BlockPort) -> Result<()> {
        let title = self.title();
        match (self.appends(), port.segment_blocks() > 0) {
            (true, false) => Err(AnyError::refused(format!(
                "{title} is for disks of append segments, and this one has none: f2fs and ext4 fit it"
            ))),
            (false, true) => Err(AnyError::refused(format!(
                "{title} writes over blocks, and this disk consists of append segments: alfs fits it"
            ))),
            _ => Ok(()),
        }
    }

    /// The format of the volume that a disk has, be it broken.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn find(port: &dyn BlockPort) -> Result<std::result::Result<Self, AnyError>> {
        let mut reasons = Vec::new();
        // The last one first: F2FS has a second superblock, which another format may have left there.
        for kind in Self::ALL.into_iter().rev().filter(|kind| kind.fits(port).is_ok()) {
            match kind.format().find(port).await? {
                None => return Ok(Ok(kind)),
                Some(reason) => reasons.insert(0, reason),
            }
        }
        Ok(Err(AnyError::refused(format!("not {}", reasons.join("; nor ")))))
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// The options make none, or what the disk says.
    pub fn mkfs<'a>(self, port: &'a dyn BlockPort, new: &'a NewVolume) -> Boxed<'a, Result<Described>> {
        match self.fits(port) {
            Ok(()) => self.format().mkfs(port, new),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Checks a volume that is not mounted.
    ///
    /// # Errors
    /// There is no volume, it has what is not supported, or what the disk says.
    pub fn check(self, port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>> {
        match self.fits(&*port) {
            Ok(()) => self.format().check(port),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

impl Mode {
    /// Mounts a volume, which recovers it.
    ///
    /// # Errors
    /// There is no volume, it has what is not supported or is corrupt, or what the disk says.
    pub fn mount(&self, port: Rc<dyn BlockPort>) -> Boxed<'static, Result<AnyFs>> {
        match self.kind.fits(&*port) {
            Ok(()) => self.kind.format().mount(port, self),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// How what is committed is kept in its order.
    pub fn commit_mode(&self) -> CommitMode {
        self.kind.format().commit_mode(self)
    }

    /// The same with another order.
    pub fn committing(mut self, commit_mode: CommitMode) -> Self {
        for kind in Kind::ALL {
            kind.format().set_commit_mode(&mut self, commit_mode);
        }
        self
    }

    /// The same where the host hands on range flushes, or has none.
    pub fn with_range_flushes(mut self, has_some: bool) -> Self {
        match has_some {
            true => (self.f2fs.fsync, self.alfs.fsync) = (Flushing::RangeFlush, Flushing::RangeFlush),
            false => {
                (self.f2fs.fsync, self.f2fs.checkpoint) = (Flushing::Flush, Flushing::Flush);
                self.alfs.fsync = Flushing::Flush;
            }
        }
        self
    }

    /// Format and modes, for people.
    pub fn describe(&self) -> String {
        format!("{} {}", self.kind.name(), self.kind.format().describe(self))
    }

    /// Names of the bugs that can be planted in this mode.
    pub fn bugs(&self) -> Vec<&'static str> {
        self.kind.format().bugs(self)
    }

    /// Plants a bug by its name, if the format has it.
    pub fn plant(&mut self, name: &str) {
        self.kind.format().plant(self, name);
    }
}

impl From<Kind> for Mode {
    fn from(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }
}

impl From<F2fsOptions> for Mode {
    fn from(f2fs: F2fsOptions) -> Self {
        Self { f2fs, ..Kind::F2fs.into() }
    }
}

impl From<Ext4Options> for Mode {
    fn from(ext4: Ext4Options) -> Self {
        Self { ext4, ..Kind::Ext4.into() }
    }
}

impl From<AlfsOptions> for Mode {
    fn from(alfs: AlfsOptions) -> Self {
        Self { alfs, ..Kind::Alfs.into() }
    }
}

impl NewVolume {
    /// One of so many blocks with the usual options.
    pub fn new(blocks: u64) -> Self {
        Self {
            f2fs: f2fs::Options::new(blocks),
            ext4: ext4::Options::new(blocks),
            alfs: alfs::Options::new(blocks),
        }
    }

    /// The same, with this user and group for the root directory.
    pub fn owned_by(mut self, owner: (u32, u32)) -> Self {
        (self.f2fs.root_owner, self.ext4.root_owner, self.alfs.root_owner) = (owner, owner, owner);
        self
    }
}

/// [`Volumes`] of which only the kind is known.
trait Dispatch {
    fn name(&self) -> &'static str;
    fn title(&self) -> &'static str;
    fn has_range_flushes(&self) -> bool;
    fn appends(&self) -> bool;
    /// Nothing if there is such a volume, or why there is none: `an F2FS volume: …`.
    fn find<'a>(&'a self, port: &'a dyn BlockPort) -> Boxed<'a, Result<Option<String>>>;
    fn mkfs<'a>(&self, port: &'a dyn BlockPort, new: &'a NewVolume) -> Boxed<'a, Result<Described>>;
    fn mount(&self, port: Rc<dyn BlockPort>, mode: &Mode) -> Boxed<'static, Result<AnyFs>>;
    fn check(&self, port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>>;
    fn commit_mode(&self, mode: &Mode) -> CommitMode;
    fn set_commit_mode(&self, mode: &mut Mode, commit_mode: CommitMode);
    fn describe(&self, mode: &Mode) -> String;
    fn bugs(&self, mode: &Mode) -> Vec<&'static str>;
    fn plant(&self, mode: &mut Mode, name: &str);
}

/// Accessors of the options of a format.
struct Of<F: Volumes> {
    new: fn(&NewVolume) -> &F::New,
    options: fn(&Mode) -> &F::Options,
    options_mut: fn(&mut Mode) -> &mut F::Options,
}

impl<F: Volumes> Dispatch for Of<F> {
    fn name(&self) -> &'static str {
        F::KEY
    }

    fn title(&self) -> &'static str {
        F::NAME
    }

    fn has_range_flushes(&self) -> bool {
        F::HAS_RANGE_FLUSHES
    }

    fn appends(&self) -> bool {
        F::APPENDS
    }

    fn find<'a>(&'a self, port: &'a dyn BlockPort) -> Boxed<'a, Result<Option<String>>> {
        Box::pin(async move {
            match F::superblock(port).await {
                Err(Error::Absent(_, why)) => Ok(Some(format!("{} {} volume: {why}", F::ARTICLE, F::NAME))),
                Err(error @ Error::Port(_)) => Err(error.into()),
                _ => Ok(None),
            }
        })
    }

    fn mkfs<'a>(&self, port: &'a dyn BlockPort, new: &'a NewVolume) -> Boxed<'a, Result<Described>> {
        let new = (self.new)(new);
        Box::pin(async move { Ok(F::described(&F::mkfs(port, new).await?)) })
    }

    fn mount(&self, port: Rc<dyn BlockPort>, mode: &Mode) -> Boxed<'static, Result<AnyFs>> {
        let options = (self.options)(mode).clone();
        Box::pin(async move { Ok(AnyFs::new(F::mount(port, options).await?)) })
    }

    fn check(&self, port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>> {
        Box::pin(async move {
            match F::check(port).await {
                Err(Error::Corrupt(what)) => Ok(Checked::broken(what)),
                checked => Ok(checked?),
            }
        })
    }

    fn commit_mode(&self, mode: &Mode) -> CommitMode {
        F::commit_mode(&mut (self.options)(mode).clone()).copied().unwrap_or_default()
    }

    fn set_commit_mode(&self, mode: &mut Mode, commit_mode: CommitMode) {
        if let Some(known) = F::commit_mode((self.options_mut)(mode)) {
            *known = commit_mode;
        }
    }

    fn describe(&self, mode: &Mode) -> String {
        F::describe((self.options)(mode))
    }

    fn bugs(&self, mode: &Mode) -> Vec<&'static str> {
        let options = (self.options)(mode);
        F::BUGS.iter().filter(|(bug, _)| F::can_show(*bug, options)).map(|(_, name)| *name).collect()
    }

    fn plant(&self, mode: &mut Mode, name: &str) {
        let bug = F::BUGS.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug);
        *F::planted((self.options_mut)(mode)) = bug;
    }
}
