//! Access control lists of POSIX (1003.1e, draft 17), as Linux has them: what they say, their bytes for programs, and their
//! bytes on disks.
//!
//! Place in the data flow: programs give and take the first form (`system.posix_acl_access` and `system.posix_acl_default`),
//! the [`vfs`](crate::vfs) knows the rules, both formats store the second form.
//!
//! ```text
//! for programs: version 2 (u32), then entries: tag (u16), permissions (u16), number (u32; all ones where it has none)
//! on disks:     version 1 (u32), then entries: tag, permissions; named users and groups have their number behind it
//! ```
//!
//! Invariant: a list is valid: owner, named users, group, named groups, mask, others, in this order; each entry without a name occurs
//! exactly once, except the mask, which is there if there is a named entry. The same name twice is no error, as in Linux.
//!
//! Deliberately absent: permission checks by a list. The kernel decides that for mounts.

use crate::errno::Errno;
use crate::format::{u16_at, u32_at};

/// The version of the form for programs.
const WIRE_VERSION: u32 = 2;
const WIRE_ENTRY_BYTES: usize = 8;
/// The version of the form on disks.
const DISK_VERSION: u32 = 1;
const HEADER_BYTES: usize = 4;
/// The number of an entry that names no user or group.
const NOBODY: u32 = u32::MAX;

/// Which list of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclKind {
    /// The access list: the permissions on the inode itself.
    Access,
    /// The default list of a directory: inodes that are made in it inherit it.
    Default,
}

impl AclKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The attribute by which programs know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Access => "system.posix_acl_access",
            Self::Default => "system.posix_acl_default",
        }
    }

    /// The list that an attribute is.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// The attribute in both formats, as the number of its prefix; nothing is behind the prefix.
    pub(crate) const fn on_disk(self) -> (u8, &'static [u8]) {
        match self {
            Self::Access => (2, b""),
            Self::Default => (3, b""),
        }
    }
}

/// The user, group or class of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The owner.
    Owner,
    /// A user by number.
    User(u32),
    /// The group.
    Group,
    /// Another group by number.
    NamedGroup(u32),
    /// The most permissions that named users and all groups get.
    Mask,
    /// All others.
    Others,
}

impl Who {
    fn of(tag: u16, number: impl FnOnce() -> Option<u32>) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(number()?),
            0x04 => Self::Group,
            0x08 => Self::NamedGroup(number()?),
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }

    const fn tag(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User(_) => 0x02,
            Self::Group => 0x04,
            Self::NamedGroup(_) => 0x08,
            Self::Mask => 0x10,
            Self::Others => 0x20,
        }
    }

    const fn number(self) -> Option<u32> {
        match self {
            Self::User(number) | Self::NamedGroup(number) => Some(number),
            _ => None,
        }
    }
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Its user, group or class.
    pub who: Who,
    /// `rwx`, as in a mode.
    pub permissions: u16,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// A list of these entries; `None` if it is not valid.
    pub fn new(entries: Vec<AclEntry>) -> Option<Self> {
        // The entry before, which says what may follow.
        let mut before = None;
        let (mut has_names, mut has_mask) = (false, false);
        for entry in &entries {
            let is_in_place = matches!(
                (before, entry.who),
                (None, Who::Owner)
                    | (Some(Who::Owner | Who::User(_)), Who::User(_) | Who::Group)
                    | (Some(Who::Group | Who::NamedGroup(_)), Who::NamedGroup(_) | Who::Mask | Who::Others)
                    | (Some(Who::Mask), Who::Others)
            );
            if !is_in_place || entry.permissions > 0o7 || entry.who.number() == Some(NOBODY) {
                return None;
            }
            has_names |= entry.who.number().is_some();
            has_mask |= entry.who == Who::Mask;
            before = Some(entry.who);
        }
        (before == Some(Who::Others) && (has_mask || !has_names)).then_some(Self(entries))
    }

    /// The entries, in their order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// Decodes the form that programs use; `None` is a list without entries, which removes the list of a file. `EOPNOTSUPP` for another
    /// version, `EINVAL` for bytes that are no list or not a valid one.
    pub fn from_wire(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() < HEADER_BYTES {
            return Err(Errno::EINVAL);
        }
        if u32_at(bytes, 0) != WIRE_VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let entries = bytes[HEADER_BYTES..].chunks(WIRE_ENTRY_BYTES);
        if entries.len() == 0 {
            return Ok(None);
        }
        let entry = |raw: &[u8]| {
            (raw.len() == WIRE_ENTRY_BYTES).then_some(())?;
            let who = Who::of(u16_at(raw, 0), || Some(u32_at(raw, 4)))?;
            Some(AclEntry { who, permissions: u16_at(raw, 2) })
        };
        let entries: Option<Vec<AclEntry>> = entries.map(entry).collect();
        entries.and_then(Self::new).map(Some).ok_or(Errno::EINVAL)
    }

    /// The form for programs.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.who.tag().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.who.number().unwrap_or(NOBODY).to_le_bytes());
        }
        bytes
    }

    /// Decodes the form on disks; `None` for bytes that are no list or not a valid one.
    pub fn from_disk(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || u32_at(bytes, 0) != DISK_VERSION {
            return None;
        }
        let mut rest = &bytes[HEADER_BYTES..];
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (short, behind) = rest.split_at_checked(4)?;
            let who = Who::of(u16_at(short, 0), || behind.get(..4).map(|number| u32_at(number, 0)))?;
            entries.push(AclEntry { who, permissions: u16_at(short, 2) });
            rest = if who.number().is_some() { &behind[4..] } else { behind };
        }
        Self::new(entries)
    }

    /// The form on disks.
    pub fn to_disk(&self) -> Vec<u8> {
        let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.who.tag().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.who.number().into_iter().flat_map(u32::to_le_bytes));
        }
        bytes
    }

    /// Whether permission bits say all of it.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The permission bits of a file with this list: those of the group are the mask, if there is one.
    pub fn mode(&self) -> u16 {
        self.0.iter().fold(0, |mode, entry| match entry.who {
            Who::Owner => mode | entry.permissions << 6,
            Who::Group => mode | entry.permissions << 3,
            Who::Mask => mode & !0o070 | entry.permissions << 3,
            Who::Others => mode | entry.permissions,
            Who::User(_) | Who::NamedGroup(_) => mode,
        })
    }

    /// The entry that corresponds to the permission bits of the group.
    fn group_class(&self) -> Who {
        let has_mask = self.0.iter().any(|entry| entry.who == Who::Mask);
        if has_mask { Who::Mask } else { Who::Group }
    }

    fn changed(&self, change: impl Fn(AclEntry, u16) -> u16) -> Self {
        let class = self.group_class();
        let changed = |entry: &AclEntry| {
            let shift = match entry.who {
                Who::Owner => 6,
                Who::Others => 0,
                who if who == class => 3,
                _ => return *entry,
            };
            AclEntry { permissions: change(*entry, shift), ..*entry }
        };
        Self(self.0.iter().map(changed).collect())
    }

    /// The list after a chmod to `mode`.
    #[must_use]
    pub fn with_mode(&self, mode: u16) -> Self {
        self.changed(|_, shift| mode >> shift & 0o7)
    }

    /// This is a directory's default list: returns the access list of an inode that is made there with `mode`, and its permission bits.
    pub fn inherited(&self, mode: u16) -> (Self, u16) {
        let access = self.changed(|entry, shift| entry.permissions & mode >> shift);
        let bits = access.mode();
        (access, mode & !0o777 | bits)
    }
}

/// The lists that a new inode begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewAcls {
    /// If permission bits do not say all of it.
    pub access: Option<Acl>,
    /// Default list, of a new directory.
    pub default: Option<Acl>,
}

impl NewAcls {
    /// Those that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AclKind, &Acl)> {
        [(AclKind::Access, &self.access), (AclKind::Default, &self.default)]
            .into_iter()
            .filter_map(|(kind, acl)| Some((kind, acl.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry((who, permissions): (Who, u16)) -> AclEntry {
        AclEntry { who, permissions }
    }

    fn acl(entries: &[(Who, u16)]) -> Option<Acl> {
        Acl::new(entries.iter().copied().map(entry).collect())
    }

    fn named() -> Acl {
        acl(&[
            (Who::Owner, 7),
            (Who::User(1000), 6),
            (Who::Group, 5),
            (Who::NamedGroup(50), 4),
            (Who::Mask, 6),
            (Who::Others, 1),
        ])
        .unwrap()
    }

    #[test]
    fn the_order_of_tags_is_checked() {
        use Who::*;
        assert!(acl(&[(Owner, 7), (Group, 5), (Others, 0)]).unwrap().is_mode());
        assert!(!acl(&[(Owner, 7), (Group, 5), (Mask, 5), (Others, 0)]).unwrap().is_mode());
        let two = [(Owner, 7), (User(2), 1), (User(1), 1), (Group, 5), (Mask, 5), (Others, 0)];
        assert!(acl(&two).is_some(), "names are in any order");
        for wrong in [
            &[][..],
            &[(Owner, 7)],
            &[(Owner, 7), (Group, 5)],
            &[(Owner, 7), (Others, 5)],
            &[(Group, 5), (Owner, 7), (Others, 0)],
            &[(Owner, 7), (Owner, 7), (Group, 5), (Others, 0)],
            &[(Owner, 7), (Group, 5), (User(1), 1), (Mask, 5), (Others, 0)],
            &[(Owner, 7), (User(1), 1), (Group, 5), (Others, 0)],
            &[(Owner, 7), (Group, 5), (NamedGroup(1), 1), (Others, 0)],
            &[(Owner, 7), (Group, 5), (Mask, 5), (NamedGroup(1), 1), (Others, 0)],
            &[(Owner, 7), (Group, 5), (Mask, 5), (Mask, 5), (Others, 0)],
            &[(Owner, 7), (Group, 5), (Others, 0), (Others, 0)],
            &[(Owner, 8), (Group, 5), (Others, 0)],
            &[(Owner, 7), (User(u32::MAX), 1), (Group, 5), (Mask, 5), (Others, 0)],
        ] {
            assert_eq!(acl(wrong), None, "{wrong:?}");
        }
    }

    /// The bytes that Linux's setfacl gives to the kernel for `u::rwx,u:1000:rw-,g::r-x,g:50:r--,m::rw-,o::--x`, and those
    /// that its ext4 writes.
    #[test]
    fn bytes_are_those_of_linux() {
        let wire = [
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255,
            255, 8, 0, 4, 0, 50, 0, 0, 0, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 1, 0, 255, 255, 255, 255,
        ];
        assert_eq!(named().to_wire(), wire);
        assert_eq!(Acl::from_wire(&wire), Ok(Some(named())));
        let disk = [
            1, 0, 0, 0, 1, 0, 7, 0, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 5, 0, 8, 0, 4, 0, 50, 0, 0, 0, 16, 0, 6,
            0, 32, 0, 1, 0,
        ];
        assert_eq!(named().to_disk(), disk);
        assert_eq!(Acl::from_disk(&disk), Some(named()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let wire = named().to_wire();
        assert_eq!(Acl::from_wire(&[]), Ok(None));
        assert_eq!(Acl::from_wire(&wire[..4]), Ok(None));
        for (bytes, errno) in [
            (&wire[..3], Errno::EINVAL),
            (&wire[..wire.len() - 1], Errno::EINVAL),
            (&wire[..wire.len() - 8], Errno::EINVAL),
            (&[1, 0, 0, 0], Errno::EOPNOTSUPP),
            (&[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0], Errno::EINVAL),
        ] {
            assert_eq!(Acl::from_wire(bytes), Err(errno), "{bytes:?}");
        }
        let disk = named().to_disk();
        for bytes in [&[][..], &disk[..4], &disk[..14], &disk[..disk.len() - 1], &wire] {
            assert_eq!(Acl::from_disk(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn modes_and_lists() {
        assert_eq!(named().mode(), 0o761);
        let changed = named().with_mode(0o2504);
        assert_eq!(changed.mode(), 0o504);
        let group =
            |acl: &Acl| acl.entries().iter().find(|entry| entry.who == Who::Group).unwrap().permissions;
        assert_eq!(group(&changed), 5, "the mask stands for the group");
        let plain = acl(&[(Who::Owner, 7), (Who::Group, 5), (Who::Others, 0)]).unwrap();
        assert_eq!(group(&plain.with_mode(0o421)), 2);
        let (access, mode) = named().inherited(0o6644);
        assert_eq!((access.mode(), mode), (0o640, 0o6640));
        let (access, mode) = plain.inherited(0o666);
        assert_eq!((access.is_mode(), mode), (true, 0o640));
    }

    proptest! {
        /// Bytes of whatever kind are refused or mean the same again, and never more.
        #[test]
        fn bytes_there_and_back(tags in prop::collection::vec((0_u16..7, 0_u16..9, 0_u32..3), 0..9)) {
            let mut wire = WIRE_VERSION.to_le_bytes().to_vec();
            for (tag, permissions, number) in tags {
                wire.extend((1_u16 << tag).to_le_bytes());
                wire.extend(permissions.to_le_bytes());
                wire.extend(number.to_le_bytes());
            }
            if let Ok(Some(acl)) = Acl::from_wire(&wire) {
                prop_assert_eq!(Acl::from_wire(&acl.to_wire()), Ok(Some(acl.clone())));
                prop_assert_eq!(Acl::from_disk(&acl.to_disk()), Some(acl.clone()));
                prop_assert_eq!(acl.with_mode(acl.mode()), acl);
            }
        }

        /// Reading a disk never panics.
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            let whole = [&[1, 0, 0, 0][..], &bytes].concat();
            let _ = (Acl::from_disk(&whole), Acl::from_wire(&bytes));
        }
    }
}
