//! Extended attributes, as both formats have them: a prefix with a number, the rest of the name, a value.
//!
//! Place in the data flow: each format reads and writes lists of them with its own bytes and its own [`Prefixes`]; here is what
//! calls do to such a list. Access control lists are among them.

use crate::acl::{Acl, AclKind, NewAcls};
use crate::vfs::{Errno, Result, XattrMode};

/// The prefixes that a format knows, with their numbers. Of those that a name begins with, the first counts.
pub type Prefixes = [(u8, &'static str)];

/// The number of a prefix, and the name behind it.
pub type Name<'a> = (u8, &'a [u8]);

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// The number of the prefix of its name.
    pub index: u8,
    /// The name behind the prefix.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Xattr {
    fn new((index, name): Name<'_>, value: Vec<u8>) -> Self {
        Self { index, name: name.to_vec(), value }
    }

    fn has(&self, name: Name<'_>) -> bool {
        (self.index, &self.name[..]) == name
    }

    /// Its whole name, as programs know it; `None` if the prefix is unknown.
    pub fn full_name(&self, prefixes: &Prefixes) -> Option<Vec<u8>> {
        let (_, prefix) = prefixes.iter().find(|(index, _)| *index == self.index)?;
        Some([prefix.as_bytes(), &self.name].concat())
    }

    /// The access control list that it should be and is not, if so.
    pub(crate) fn broken_acl(&self) -> Option<AclKind> {
        let kind = AclKind::ALL.into_iter().find(|kind| self.has(kind.on_disk()))?;
        Acl::from_disk(&self.value).is_none().then_some(kind)
    }
}

/// A whole name, as programs know it, in its parts; `EOPNOTSUPP` if its prefix is unknown.
pub(crate) fn split<'a>(name: &'a [u8], prefixes: &Prefixes) -> Result<Name<'a>> {
    let rest = |(index, prefix): &(u8, &str)| Some((*index, name.strip_prefix(prefix.as_bytes())?));
    prefixes.iter().find_map(rest).ok_or(Errno::EOPNOTSUPP)
}

/// The whole names, sorted, without those whose prefixes are unknown.
pub(crate) fn names(xattrs: &[Xattr], prefixes: &Prefixes) -> Vec<Box<[u8]>> {
    let names = xattrs.iter().filter_map(|xattr| xattr.full_name(prefixes));
    let mut names: Vec<Box<[u8]>> = names.map(Vec::into_boxed_slice).collect();
    names.sort_unstable();
    names
}

/// The value of an attribute.
pub(crate) fn value<'a>(xattrs: &'a [Xattr], name: Name<'_>) -> Option<&'a [u8]> {
    xattrs.iter().find(|xattr| xattr.has(name)).map(|xattr| &xattr.value[..])
}

/// Replaces an attribute, which keeps its place in the list, or removes it; says whether it was different.
pub(crate) fn replace(xattrs: &mut Vec<Xattr>, name: Name<'_>, value: Option<Vec<u8>>) -> bool {
    let there = xattrs.iter().position(|xattr| xattr.has(name));
    if there.map(|at| &xattrs[at].value) == value.as_ref() {
        return false;
    }
    let range = there.map_or(xattrs.len()..xattrs.len(), |at| at..at + 1);
    xattrs.splice(range, value.map(|value| Xattr::new(name, value)));
    true
}

/// Does what a program asks for: without a value, the attribute is removed. `EEXIST` and `ENODATA` as `mode` has it.
pub(crate) fn change(
    xattrs: &mut Vec<Xattr>,
    name: Name<'_>,
    new: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    match (value(xattrs, name), mode) {
        (Some(_), XattrMode::Create) => return Err(Errno::EEXIST),
        (None, XattrMode::Replace) => return Err(Errno::ENODATA),
        _ => (),
    }
    replace(xattrs, name, new.map(<[u8]>::to_vec));
    Ok(())
}

/// An access control list; `EUCLEAN` if it is none.
pub(crate) fn acl(xattrs: &[Xattr], kind: AclKind) -> Result<Option<Acl>> {
    let value = value(xattrs, kind.on_disk());
    value.map(|value| Acl::from_disk(value).ok_or(Errno::EUCLEAN)).transpose()
}

/// Those that a new inode begins with.
pub(crate) fn of_new(acls: &NewAcls) -> Vec<Xattr> {
    acls.iter().map(|(kind, acl)| Xattr::new(kind.on_disk(), acl.to_disk())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIXES: [(u8, &str); 4] =
        [(1, "user."), (2, "system.posix_acl_access"), (6, "security."), (7, "system.")];

    #[test]
    fn names_have_prefixes() {
        assert_eq!(split(b"user.colour", &PREFIXES), Ok((1, &b"colour"[..])));
        assert_eq!(split(b"system.posix_acl_access", &PREFIXES), Ok((2, &b""[..])));
        assert_eq!(split(b"system.data", &PREFIXES), Ok((7, &b"data"[..])));
        assert_eq!(split(b"nothing", &PREFIXES), Err(Errno::EOPNOTSUPP));
        let xattrs =
            [(7, &b"data"[..]), (5, b"unknown"), (6, b"selinux")].map(|name| Xattr::new(name, vec![]));
        assert_eq!(names(&xattrs, &PREFIXES), [&b"security.selinux"[..], b"system.data"].map(Box::from));
    }

    #[test]
    fn what_is_replaced_keeps_its_place() {
        let of = |list: &[(&str, &str)]| -> Vec<Xattr> {
            list.iter()
                .map(|(name, value)| Xattr::new((1, name.as_bytes()), value.as_bytes().to_vec()))
                .collect()
        };
        let mut xattrs = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let mut change = |name: &str, value: Option<&str>, mode| {
            let changed = change(&mut xattrs, (1, name.as_bytes()), value.map(str::as_bytes), mode);
            changed.map(|()| xattrs.clone())
        };
        assert_eq!(change("b", Some("4"), XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(change("d", Some("4"), XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(change("d", None, XattrMode::Replace), Err(Errno::ENODATA));
        let all = [("a", "1"), ("b", "4"), ("c", "3"), ("d", "5")];
        assert_eq!(change("b", Some("4"), XattrMode::Replace), Ok(of(&all[..3])));
        assert_eq!(change("d", Some("5"), XattrMode::Create), Ok(of(&all)));
        assert_eq!(change("a", None, XattrMode::Replace), Ok(of(&all[1..])));
        assert!(
            !replace(&mut xattrs, (1, b"b"), Some(b"4".to_vec())) && !replace(&mut xattrs, (1, b"a"), None)
        );
        assert!(replace(&mut xattrs, (1, b"b"), None));
        assert_eq!((value(&xattrs, (1, b"b")), value(&xattrs, (1, b"c"))), (None, Some(&b"3"[..])));
    }
}
