//! Everything that a file system shows: names, kinds, sizes, contents, attributes.
//!
//! Place in the data flow: [`Tree::read`] walks a mounted file system; the oracle compares trees.
//!
//! Invariant: a tree identifies inodes by number and knows nothing of how they are stored.

use flashweir_fs::vfs::{Creds, Errno, File, Follow, Fs, Ino, Kind, OpenFlags, Process, Sink, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of names that one walk follows; a tree with more is broken.
const NAMES_MAX: usize = 100_000;
/// Maximum number of symbolic links in a chain, as in the VFS.
const LINKS_MAX: u32 = 40;
/// Maximum number of bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Kind and content of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Content of a file, as long as its size.
    File(Arc<[u8]>),
    /// Entries: the inode number of each name.
    Directory(BTreeMap<String, u64>),
    /// Target path.
    Symlink(String),
    /// A kind that no operation of this laboratory makes.
    Other,
}

impl Body {
    /// Returns the kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Directory(_) => "directory",
            Self::Symlink(_) => "symbolic link",
            Self::Other => "special file",
        }
    }
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Kind and content.
    pub body: Body,
    /// Link count that it reports.
    pub links: u32,
    /// Permission bits.
    pub mode: u16,
    /// Owning user and group.
    pub owner: (u32, u32),
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Arc<[u8]>>,
}

/// A tree of everything that a file system shows (see the module).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Inode number of the root directory.
    pub root: u64,
    /// Every inode that has a name.
    pub nodes: BTreeMap<u64, Arc<Node>>,
    /// In the reference only: open files that were created without a name and have none yet.
    pub nameless: BTreeMap<u64, Arc<Node>>,
}

/// A path that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The path.
    pub path: String,
    /// The error.
    pub errno: Errno,
}

impl Tree {
    /// Walks a mounted file system; `identify` makes the number of an inode from number and generation. Inodes equal to
    /// those in `before` share their memory. Fails with a path that cannot be read.
    pub async fn read<F: Fs>(
        vfs: &Vfs<F>,
        before: Option<&Self>,
        identify: impl Fn(u64, u32) -> u64,
    ) -> Result<Self, Unreadable> {
        let process = vfs.process(Creds::ROOT);
        let mut tree = Self::default();
        let mut todo = vec![String::new()];
        let mut names = 0;
        while let Some(path) = todo.pop() {
            let wrong = |errno| Unreadable { path: format!("{path}/"), errno };
            let shown = if path.is_empty() { "/" } else { path.as_str() };
            let attr = process.stat(shown, Follow::No).await.map_err(wrong)?;
            let number = identify(attr.ino.0, attr.generation);
            if path.is_empty() {
                tree.root = number;
            }
            if tree.nodes.contains_key(&number) {
                continue;
            }
            let body = match attr.kind {
                Kind::File => Body::File(bytes(&process, shown, attr.size).await.map_err(wrong)?),
                Kind::Symlink => {
                    let target = process.readlink(shown).await.map_err(wrong)?;
                    Body::Symlink(String::from_utf8_lossy(&target).into_owned())
                }
                Kind::Directory => {
                    let mut entries = BTreeMap::new();
                    for entry in process.list(shown).await.map_err(wrong)? {
                        let name = String::from_utf8_lossy(&entry.name).into_owned();
                        let child = format!("{path}/{name}");
                        let attr = process.stat(&child, Follow::No).await;
                        let attr = attr.map_err(|errno| Unreadable { path: child.clone(), errno })?;
                        if attr.ino != Ino(entry.ino.0) {
                            return Err(Unreadable { path: child, errno: Errno::EUCLEAN });
                        }
                        entries.insert(name, identify(attr.ino.0, attr.generation));
                        names += 1;
                        if names > NAMES_MAX {
                            return Err(Unreadable { path: child, errno: Errno::ELOOP });
                        }
                        todo.push(child);
                    }
                    Body::Directory(entries)
                }
                _ => Body::Other,
            };
            let xattrs = xattrs(&process, attr.ino).await.map_err(wrong)?;
            let owner = (attr.uid, attr.gid);
            let node = Node { body, links: attr.links, mode: attr.mode, owner, xattrs };
            let old = before.and_then(|before| before.nodes.get(&number));
            let node = old.filter(|old| ***old == node).map_or_else(|| Arc::new(node), Arc::clone);
            tree.nodes.insert(number, node);
        }
        Ok(tree)
    }

    /// Returns an inode, with or without a name.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(&number).or_else(|| self.nameless.get(&number)).map(|node| &**node)
    }

    /// Returns the tree with inodes that equal those of another tree sharing its memory.
    #[must_use]
    pub fn sharing(mut self, other: Option<&Self>) -> Self {
        for (number, node) in &mut self.nodes {
            if let Some(same) = other.and_then(|other| other.nodes.get(number)).filter(|same| *same == node) {
                *node = Arc::clone(same);
            }
        }
        self
    }

    /// Returns the entries of a directory; `None` if it is no directory or does not exist.
    pub fn entries(&self, dir: u64) -> Option<&BTreeMap<String, u64>> {
        match self.nodes.get(&dir).map(|node| &node.body) {
            Some(Body::Directory(entries)) => Some(entries),
            _ => None,
        }
    }

    /// Returns the inode that a name in a directory refers to.
    pub fn bound(&self, dir: u64, name: &str) -> Option<u64> {
        self.entries(dir)?.get(name).copied()
    }

    /// Iterates over every name: directory, name, inode.
    pub fn names(&self) -> impl Iterator<Item = (u64, &str, u64)> {
        let entries = self.nodes.iter().filter_map(|(&dir, node)| match &node.body {
            Body::Directory(entries) => Some((dir, entries)),
            _ => None,
        });
        entries.flat_map(|(dir, entries)| entries.iter().map(move |(name, &node)| (dir, name.as_str(), node)))
    }

    /// Returns the inode at a path.
    pub fn find(&self, path: &str) -> Option<u64> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.root, |dir, name| self.bound(dir, name))
    }

    /// Returns the path that opening `path` leads to, after symbolic links at its end. Links on the way, and targets
    /// that do not lie below the link's directory, are not followed.
    pub fn opened(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let Body::Symlink(target) = &self.nodes[&self.find(&path)?].body else { return Some(path) };
            let dir = path.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
            path = format!("{dir}{target}");
        }
        None
    }

    /// Returns a path of an inode, for messages.
    pub fn path_of(&self, node: u64) -> String {
        let mut path = String::new();
        let mut at = node;
        for _ in 0..64 {
            if at == self.root {
                return if path.is_empty() { "/".into() } else { path };
            }
            let Some((dir, name, _)) = self.names().find(|&(_, _, child)| child == at) else { break };
            path = format!("/{name}{path}");
            at = dir;
        }
        format!("(no name){path}")
    }

    /// Describes the first difference; `pairs` maps the numbers of `self` to those of `other`.
    pub fn difference(&self, other: &Self, pairs: &BTreeMap<u64, u64>) -> Option<String> {
        for (number, ours) in &self.nodes {
            let path = self.path_of(*number);
            let Some(theirs) = pairs.get(number).and_then(|number| other.nodes.get(number)) else {
                return Some(format!("{path} is not there"));
            };
            if let (Body::Directory(ours), Body::Directory(theirs)) = (&ours.body, &theirs.body) {
                let ours: BTreeMap<&String, Option<&u64>> =
                    ours.iter().map(|(name, number)| (name, pairs.get(number))).collect();
                let theirs: BTreeMap<&String, Option<&u64>> =
                    theirs.iter().map(|(name, number)| (name, Some(number))).collect();
                if ours != theirs {
                    return Some(format!("{path} has other names: expected {ours:?}, found {theirs:?}"));
                }
            } else if ours.body != theirs.body {
                return Some(format!("{path} ({}) has another content or kind", ours.body.kind()));
            }
            if ours.xattrs != theirs.xattrs {
                return Some(format!("{path} has other extended attributes"));
            }
            let counts = |node: &Node| (node.links, node.mode, node.owner);
            if counts(ours) != counts(theirs) {
                let (ours, theirs) = (counts(ours), counts(theirs));
                return Some(format!("{path} has links, mode and owner {theirs:?}, expected {ours:?}"));
            }
        }
        (self.nodes.len() != other.nodes.len())
            .then(|| format!("{} inodes have names, expected {}", other.nodes.len(), self.nodes.len()))
    }
}

/// Returns the extended attributes of an inode.
pub(super) async fn xattrs<F: Fs>(
    process: &Process<F>,
    ino: Ino,
) -> Result<BTreeMap<String, Arc<[u8]>>, Errno> {
    let (vfs, creds) = (process.vfs(), process.creds());
    let mut xattrs = BTreeMap::new();
    for name in vfs.xattr_names_of(creds, ino).await? {
        let value = vfs.xattr_of(creds, ino, &name).await?;
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), Arc::from(value));
    }
    Ok(xattrs)
}

/// Reads so many bytes of a file from `at` on. `EIO` if it ends before.
pub(crate) async fn read_whole<F: Fs>(file: &File<F>, at: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match file.pread(at + done as u64, Sink::bytes(&mut bytes[done..])).await? {
            0 => return Err(Errno::EIO),
            more => done += more as usize,
        }
    }
    Ok(())
}

async fn bytes<F: Fs>(process: &Process<F>, path: &str, size: u64) -> Result<Arc<[u8]>, Errno> {
    if size > FILE_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    let file = process.open(path, OpenFlags::READ, 0).await?;
    let mut bytes = vec![0; size as usize];
    let result = read_whole(&file, 0, &mut bytes).await;
    file.close().await?;
    result.map(|()| bytes.into())
}

/// Returns the bytes of a file.
pub(super) fn file(node: &Node) -> Option<&[u8]> {
    match &node.body {
        Body::File(bytes) => Some(bytes),
        _ => None,
    }
}
