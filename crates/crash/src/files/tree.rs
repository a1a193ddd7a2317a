//! All that a file system shows: names, kinds, sizes, contents, attributes.
//!
//! Place in the data flow: [`Tree::read`] walks a mounted file system; the oracle holds trees against each other.
//!
//! Invariant: a tree knows inodes by number and nothing of how they are stored.

use flashweir_fs::vfs::{Creds, Errno, Follow, Fs, Ino, Kind, OpenFlags, Process, Sink, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names that one walk follows at most; a tree that has more is broken.
const NAMES_MAX: usize = 100_000;
/// Symbolic links that lead to each other at most, as in the vfs.
const LINKS_MAX: u32 = 40;
/// Bytes of a file that are read at most.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// What an inode is, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes, as many as its size.
    File(Arc<[u8]>),
    /// Names.
    Directory(BTreeMap<String, u64>),
    /// A path.
    Symlink(String),
    /// What no operation of this laboratory makes.
    Other,
}

impl Body {
    /// For messages.
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
    /// Its content.
    pub body: Body,
    /// Names that it says it has.
    pub links: u32,
    /// Permission bits.
    pub mode: u16,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Arc<[u8]>>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The root directory.
    pub root: u64,
    /// Every inode that has a name.
    pub nodes: BTreeMap<u64, Arc<Node>>,
    /// Of the reference only: files that were made without a name, are open, and have got none.
    pub nameless: BTreeMap<u64, Arc<Node>>,
}

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where.
    pub path: String,
    /// Why.
    pub errno: Errno,
}

impl Tree {
    /// Walks a mounted file system; `identify` makes the number of an inode from number and generation. What is as in
    /// `before` shares its memory. Errors: a path that cannot be read.
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
            let node = Node { body, links: attr.links, mode: attr.mode, xattrs };
            let old = before.and_then(|before| before.nodes.get(&number));
            let node = old.filter(|old| ***old == node).map_or_else(|| Arc::new(node), Arc::clone);
            tree.nodes.insert(number, node);
        }
        Ok(tree)
    }

    /// An inode, with a name or without.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(&number).or_else(|| self.nameless.get(&number)).map(|node| &**node)
    }

    /// The same; what is as in another tree shares its memory.
    #[must_use]
    pub fn sharing(mut self, other: Option<&Self>) -> Self {
        for (number, node) in &mut self.nodes {
            if let Some(same) = other.and_then(|other| other.nodes.get(number)).filter(|same| *same == node) {
                *node = Arc::clone(same);
            }
        }
        self
    }

    /// The entries of a directory; none of what is no directory or is not there.
    pub fn entries(&self, dir: u64) -> Option<&BTreeMap<String, u64>> {
        match self.nodes.get(&dir).map(|node| &node.body) {
            Some(Body::Directory(entries)) => Some(entries),
            _ => None,
        }
    }

    /// What a name in a directory refers to.
    pub fn bound(&self, dir: u64, name: &str) -> Option<u64> {
        self.entries(dir)?.get(name).copied()
    }

    /// Every name: directory, name, inode.
    pub fn names(&self) -> impl Iterator<Item = (u64, &str, u64)> {
        let entries = self.nodes.iter().filter_map(|(&dir, node)| match &node.body {
            Body::Directory(entries) => Some((dir, entries)),
            _ => None,
        });
        entries.flat_map(|(dir, entries)| entries.iter().map(move |(name, &node)| (dir, name.as_str(), node)))
    }

    /// The inode at a path.
    pub fn find(&self, path: &str) -> Option<u64> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.root, |dir, name| self.bound(dir, name))
    }

    /// Where a path leads that is opened: behind symbolic links at its end. Links on the way, and targets that do not go down
    /// from the link's directory, lead nowhere here.
    pub fn opened(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let Body::Symlink(target) = &self.nodes[&self.find(&path)?].body else { return Some(path) };
            let dir = path.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
            path = format!("{dir}{target}");
        }
        None
    }

    /// A path of an inode, for messages.
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

    /// The first difference, with the numbers of `other` as `pairs` gives them for ours.
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
            if (ours.links, ours.mode) != (theirs.links, theirs.mode) {
                let (ours, theirs) = ((ours.links, ours.mode), (theirs.links, theirs.mode));
                return Some(format!("{path} has links and mode {theirs:?}, expected {ours:?}"));
            }
        }
        (self.nodes.len() != other.nodes.len())
            .then(|| format!("{} inodes have names, expected {}", other.nodes.len(), self.nodes.len()))
    }
}

/// The extended attributes of an inode.
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

async fn bytes<F: Fs>(process: &Process<F>, path: &str, size: u64) -> Result<Arc<[u8]>, Errno> {
    if size > FILE_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    let file = process.open(path, OpenFlags::READ, 0).await?;
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    let result = loop {
        if done == bytes.len() {
            break Ok(());
        }
        match file.pread(done as u64, Sink::bytes(&mut bytes[done..])).await {
            Ok(0) => break Err(Errno::EIO),
            Ok(more) => done += more as usize,
            Err(errno) => break Err(errno),
        }
    };
    file.close().await?;
    result.map(|()| bytes.into())
}
