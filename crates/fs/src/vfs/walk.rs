//! Path resolution: from a path to a directory, a name and the inode to which it refers.
//!
//! Invariant: every directory on the path was searchable when it was passed. The result may have changed when the caller takes a
//! lock; a caller that changes names looks up the last name again.

use super::rights::{self, Wish};
use super::state::Vfs;
use super::types::*;
use super::{Errno, Fs};
use std::borrow::Cow;

/// Longest path in bytes, without the terminating zero of C.
pub const PATH_BYTES_MAX: usize = 4095;

/// Most symbolic links that are followed on one path.
pub const SYMLINKS_MAX: u32 = 40;

/// Treatment of the last name of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// It is looked up; a symbolic link is followed.
    Follow,
    /// It is looked up.
    NoFollow,
    /// It is not looked up: the caller does that under the lock of the directory.
    Name,
}

/// Result of resolving a path.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The directory that the last name is in.
    pub(crate) dir: Ino,
    /// The last name of the path.
    pub(crate) name: LastName,
    /// The inode; `None` if it was not looked up or does not exist.
    pub(crate) node: Option<Attr>,
    /// Whether the path ends with a slash, so that only a directory may be meant.
    pub(crate) is_dir_wanted: bool,
}

/// The last name of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastName {
    /// A name.
    Name(Box<[u8]>),
    /// There is no name: the path is that of the root.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

impl Place {
    fn itself(attr: Attr, name: LastName) -> Self {
        Self { dir: attr.ino, name, node: Some(attr), is_dir_wanted: true }
    }
}

/// The first name, the rest of the path after the slashes, and whether there was a slash.
fn split(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    let (name, rest) = path.split_at(end);
    let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
    (name, &rest[slashes..], slashes > 0)
}

impl<F: Fs> Vfs<F> {
    /// Walks along `path` from `start` (or from the root, if the path begins with a slash).
    pub(crate) async fn walk(&self, creds: &Creds, start: Ino, path: &[u8], last: Last) -> Result<Place> {
        check_path(path)?;
        let begin = if path[0] == b'/' { self.0.fs.root() } else { start };
        let mut current = self.0.fs.getattr(begin).await?;
        let mut path = Cow::Borrowed(path);
        let mut at = path.iter().take_while(|&&byte| byte == b'/').count();
        let (mut symlinks, mut components) = (0, 0);
        let place = loop {
            let (name, rest, has_slash) = split(&path[at..]);
            if name.is_empty() {
                break Place::itself(current, LastName::Root);
            }
            components += 1;
            if !current.kind.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            rights::check(creds, &current, Wish::EXECUTE)?;
            let is_last = rest.is_empty();
            let next_at = path.len() - rest.len();
            if name == b"." || name == b".." {
                let is_up = name == b"..";
                if is_up {
                    let parent = self.0.fs.parent(current.ino).await?;
                    current = self.0.fs.getattr(parent).await?;
                }
                if is_last {
                    break Place::itself(current, if is_up { LastName::DotDot } else { LastName::Dot });
                }
                at = next_at;
                continue;
            }
            if name.len() > self.0.limits.name_bytes_max {
                return Err(Errno::ENAMETOOLONG);
            }
            let here = |node| Place {
                dir: current.ino,
                name: LastName::Name(name.into()),
                node,
                is_dir_wanted: has_slash,
            };
            if is_last && last == Last::Name {
                break here(None);
            }
            let node = match self.lookup_in(current.ino, name).await {
                Err(Errno::ENOENT) if is_last => break here(None),
                found => found?,
            };
            // A slash at the end asks for the target of the link.
            let is_followed = !is_last || has_slash || last == Last::Follow;
            if node.kind.is_symlink() && is_followed {
                symlinks += 1;
                if symlinks > SYMLINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let mut next = self.0.fs.readlink(node.ino).await?.into_vec();
                if has_slash {
                    next.push(b'/');
                }
                // The target and the path are limited each by itself.
                next.extend_from_slice(rest);
                if next[0] == b'/' {
                    current = self.0.fs.getattr(self.0.fs.root()).await?;
                }
                at = next.iter().take_while(|&&byte| byte == b'/').count();
                path = Cow::Owned(next);
                continue;
            }
            if is_last {
                if has_slash && !node.kind.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                break here(Some(node));
            }
            current = node;
            at = next_at;
        };
        self.charge_components(components).await;
        Ok(place)
    }

    /// Walks along a path that has to lead to an existing inode.
    pub(crate) async fn find(&self, creds: &Creds, start: Ino, path: &[u8], last: Last) -> Result<Attr> {
        self.walk(creds, start, path, last).await?.node.ok_or(Errno::ENOENT)
    }

    pub(crate) async fn lookup_in(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let inode = self.inode(dir);
        let _lock = inode.lock.shared().await;
        self.0.fs.lookup(dir, name).await
    }
}

fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    // No name contains a zero byte, so the path leads nowhere.
    if path.contains(&0) { Err(Errno::EINVAL) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_slashes() {
        assert_eq!(split(b"a//b/"), (&b"a"[..], &b"b/"[..], true));
        assert_eq!(split(b"b/"), (&b"b"[..], &b""[..], true));
        assert_eq!(split(b"c"), (&b"c"[..], &b""[..], false));
        assert_eq!(split(b""), (&b""[..], &b""[..], false));
    }
}
