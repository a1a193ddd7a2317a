//! Checking of a volume, read-only: what each table says must be what a walk from the root finds.
//!
//! The walk follows names to inodes, inodes to nodes, nodes to blocks, and takes each of them once. Afterwards the NAT, the
//! SIT, the summaries and the counts of the checkpoint are compared with what was found.
//!
//! Invariants: every problem has a name of its own kind and one line that says where. A broken part is reported and the
//! walk goes on beside it; it ends because no node and no block is followed twice.
//!
//! Deliberately absent: repair; and what was written after the last checkpoint, which a mount for writing recovers.

use super::appended::map::is_unwritten;
use super::chain::synced;
use super::error::{Error, Result};
use super::layout::dentry::{self, Entry, LEVELS_MAX, Slots};
use super::layout::node::{self, Extent, Footer, INODE_WORDS, Inode, Kind, NODE_WORDS, inline};
use super::layout::summary::Owner;
use super::layout::tables::{NatEntry, SitEntry};
use super::layout::{Addr, Log, Nid, SEGMENT_BLOCKS, SegNo, Superblock, xattr};
use super::volume::Volume;
use crate::boxed::Boxed;
pub use crate::format::Problem;
use crate::format::{tell, unless_port};
use crate::port::{BLOCK_BYTES, Block, BlockPort, bytes_of};
use crate::xattrs::Xattr;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first 1,000 problems.
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub problems_untold: u64,
    /// Whether the volume was unmounted.
    pub is_clean: bool,
    /// Number of files that fsync wrote after the checkpoint. They were not checked; a mount for writing recovers them.
    pub synced_files: u64,
    /// Version of the checkpoint that was checked.
    pub checkpoint: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Inodes without a name that wait to be freed.
    pub orphans: u64,
    /// Nodes, inodes included.
    pub nodes: u64,
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks that are reserved and were never written.
    pub reserved_blocks: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn add(&mut self, name: &'static str, what: String) {
        tell(&mut self.problems, &mut self.problems_untold, name, what);
    }
}

/// Checks a volume. Errors: it cannot be mounted, or the port fails.
pub fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Report>> {
    Box::pin(look(port))
}

async fn look(port: Rc<dyn BlockPort>) -> Result<Report> {
    check_volume(Volume::mount(port).await?).await
}

/// Checks a volume that was mounted for reading.
pub(crate) async fn check_volume(volume: Volume) -> Result<Report> {
    let mut checker = Checker {
        nat: volume.nat_entries().await?,
        sit: volume.sit_entries().await?,
        used: vec![0; (volume.geometry().main_blocks() / 64) as usize],
        owners: Vec::new(),
        nodes: BTreeSet::new(),
        inodes: BTreeMap::new(),
        todo: Vec::new(),
        report: Report {
            is_clean: volume.is_clean(),
            synced_files: synced(&volume.chain(false).await?).len() as u64,
            checkpoint: volume.checkpoint().version,
            ..Report::default()
        },
        volume,
    };
    if checker.volume.node_map().is_none() {
        checker.superblocks().await?;
    }
    checker.walk().await?;
    checker.links();
    checker.tables();
    checker.summaries().await?;
    checker.counts();
    Ok(checker.report)
}

/// An inode that was found, and the number of its names.
#[derive(Debug)]
struct Found {
    names: u32,
    links: u32,
    is_directory: bool,
    is_orphan: bool,
}

/// An inode to which an entry refers.
#[derive(Debug)]
struct Reference {
    ino: Nid,
    /// Its kind according to its entry.
    kind: Option<Kind>,
    /// The directory with the name.
    parent: Nid,
    is_orphan: bool,
}

struct Checker {
    volume: Volume,
    nat: BTreeMap<Nid, NatEntry>,
    sit: Vec<SitEntry>,
    /// A bit for each block of the main area that was found in use.
    used: Vec<u64>,
    /// Address and owner of each of these blocks, and whether it is a node.
    owners: Vec<(Addr, Owner, bool)>,
    nodes: BTreeSet<Nid>,
    inodes: BTreeMap<Nid, Found>,
    todo: Vec<Reference>,
    report: Report,
}

impl Checker {
    fn problem(&mut self, name: &'static str, what: String) {
        self.report.add(name, what);
    }

    async fn superblocks(&mut self) -> Result<()> {
        for block in 0..2 {
            let answer = self.volume.port().read(Block(block), 1).completed().await?;
            match Superblock::decode(&bytes_of(&answer[0])) {
                Ok(superblock) if superblock == *self.volume.superblock() => (),
                Ok(_) => self.problem("superblock", format!("the two copies differ, in block {block}")),
                Err(error) => self.problem("superblock", format!("the copy in block {block}: {error}")),
            }
        }
        Ok(())
    }

    async fn walk(&mut self) -> Result<()> {
        let root = self.volume.superblock().root;
        self.todo.push(Reference { ino: root, kind: Some(Kind::Directory), parent: root, is_orphan: false });
        for ino in self.volume.orphans().to_vec() {
            self.todo.push(Reference { ino, kind: None, parent: Nid(0), is_orphan: true });
        }
        while let Some(reference) = self.todo.pop() {
            self.reference(&reference).await?;
        }
        Ok(())
    }

    async fn reference(&mut self, reference: &Reference) -> Result<()> {
        let ino = reference.ino;
        if let Some(found) = self.inodes.get_mut(&ino) {
            found.names += 1;
            if found.is_directory {
                let parent = reference.parent;
                self.problem(
                    "directory-names",
                    format!("directory {ino} has another name in directory {parent}"),
                );
            }
            return Ok(());
        }
        let Some(block) = self.node(ino, ino, 0).await? else {
            let parent = reference.parent;
            self.problem("entry", format!("a name in directory {parent} leads to {ino}, which is no inode"));
            return Ok(());
        };
        let superblock = self.volume.superblock();
        let decoded = Inode::decode(block, superblock.features, superblock.inode_checksum_seed());
        let inode = match unless_port(decoded)? {
            Ok(inode) => inode,
            Err(what) => {
                self.problem("inode", what);
                return Ok(());
            }
        };
        let kind = inode.kind();
        if reference.kind.is_some_and(|named| named != kind) {
            let (named, parent) = (reference.kind, reference.parent);
            self.problem(
                "entry-type",
                format!("inode {ino} is {kind:?}, its name in {parent} says {named:?}"),
            );
        }
        let found = Found {
            names: u32::from(!reference.is_orphan),
            links: inode.links,
            is_directory: kind == Kind::Directory,
            is_orphan: reference.is_orphan,
        };
        self.inodes.insert(ino, found);
        match kind {
            _ if reference.is_orphan => self.report.orphans += 1,
            Kind::Directory => self.report.directories += 1,
            Kind::Regular => self.report.files += 1,
            _ => self.report.others += 1,
        }
        self.contents(&inode, reference).await
    }

    /// Reads a node and checks its footer; returns `None` and notes a problem if it is not the expected node.
    async fn node(&mut self, nid: Nid, ino: Nid, offset: u32) -> Result<Option<Arc<[u8]>>> {
        let Some(entry) = self.nat.get(&nid).copied() else {
            self.problem("node", format!("node {nid} of inode {ino} is not in the NAT"));
            return Ok(None);
        };
        if !self.nodes.insert(nid) {
            self.problem("node-shared", format!("node {nid} is met again, as node {offset} of inode {ino}"));
            return Ok(None);
        }
        if entry.ino != ino {
            self.problem(
                "nat-owner",
                format!("the NAT gives node {nid} to inode {}, expected {ino}", entry.ino),
            );
        }
        let owner = Owner { nid, version: entry.version, offset: 0 };
        if !self.take(entry.addr, owner, true) {
            return Ok(None);
        }
        let Some(block) = self.block(&format!("node {nid}"), entry.addr).await? else { return Ok(None) };
        let footer = Footer::decode(&block);
        if (footer.nid, footer.ino, footer.offset) != (nid, ino, offset) {
            self.problem(
                "node-footer",
                format!(
                    "block {} says that it is node {} (number {} of inode {}), expected node {nid} (number {offset} of \
                     inode {ino})",
                    entry.addr, footer.nid, footer.offset, footer.ino
                ),
            );
            return Ok(None);
        }
        self.report.nodes += 1;
        Ok(Some(block))
    }

    /// Reads a block; `None`, and a problem, if it was never written: append segments say so.
    async fn block(&mut self, what: &str, addr: Addr) -> Result<Option<Arc<[u8]>>> {
        match self.volume.block(addr).await {
            Err(Error::Port(error)) if is_unwritten(&error) => {
                self.problem("unwritten", format!("{what} is at {addr}, which is not written"));
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Marks a block of the main area as used by this owner; it must not have another one.
    fn take(&mut self, addr: Addr, owner: Owner, is_node: bool) -> bool {
        let nid = owner.nid;
        let Some((segment, offset)) = self.volume.geometry().place_of(addr) else {
            self.problem("address", format!("node {nid} refers to block {addr}, outside of the main area"));
            return false;
        };
        let bit = (segment.0 * SEGMENT_BLOCKS + offset) as usize;
        if self.used[bit / 64] & 1 << (bit % 64) != 0 {
            self.problem("block-shared", format!("block {addr} has another owner beside node {nid}"));
            return false;
        }
        self.used[bit / 64] |= 1 << (bit % 64);
        self.owners.push((addr, owner, is_node));
        true
    }

    async fn contents(&mut self, inode: &Inode, reference: &Reference) -> Result<()> {
        let mut blocks = 1;
        let mut data = Vec::new();
        if inode.has_addresses() {
            self.inode_data(inode, &mut blocks, &mut data).await?;
        }
        let mut room = inode.xattr_bytes().to_vec();
        if inode.xattr_nid != Nid(0)
            && let Some(block) = self.node(inode.xattr_nid, inode.nid, Footer::XATTR_OFFSET).await?
        {
            blocks += 1;
            room.extend_from_slice(&block[..xattr::NODE_BYTES]);
        }
        match unless_port(xattr::decode(&room))? {
            Ok(xattrs) => {
                for kind in xattrs.iter().filter_map(Xattr::broken_acl) {
                    let what = format!("{} is no access control list", kind.name());
                    self.problem("xattr", format!("inode {}: {what}", inode.nid));
                }
            }
            Err(what) => self.problem("xattr", format!("inode {}: {what}", inode.nid)),
        }
        if blocks != inode.blocks {
            let (nid, says) = (inode.nid, inode.blocks);
            self.problem("inode-blocks", format!("inode {nid} counts {says} blocks, found {blocks}"));
        }
        // Linux reads by it, without the nodes. Where blocks are missing, that was said.
        if inode.kind() == Kind::Regular && blocks == inode.blocks && !inode.extent.is_in(&data) {
            let (nid, Extent { index, addr, blocks }) = (inode.nid, inode.extent);
            let what = format!("{blocks} blocks from block {index} on are at {addr}, its nodes differ");
            self.problem("extent", format!("inode {nid} says that {what}"));
        }
        match inode.kind() {
            Kind::Directory => self.directory(inode, reference, &data).await?,
            Kind::Regular | Kind::Symlink if inode.has_inline(inline::DATA) => {
                let (nid, size, room) = (inode.nid, inode.size, inode.inline_bytes().len());
                if size > room as u64 {
                    self.problem(
                        "inline-size",
                        format!("inode {nid} has {size} bytes inline, room for {room}"),
                    );
                }
                if inode.address(0) != Addr::NULL {
                    let addr = inode.address(0);
                    self.problem("inline-data", format!("inode {nid} has data inline, and a block {addr}"));
                }
                let is_empty = inode.inline_bytes().iter().all(|&byte| byte == 0);
                if !inode.has_inline(inline::DATA_EXIST) && !is_empty {
                    self.problem(
                        "inline-data",
                        format!("inode {nid} has data inline and says that it has none"),
                    );
                }
            }
            _ => (),
        }
        Ok(())
    }

    /// Walks all nodes and data of an inode. `data` gets each block that has an address, with its number in the file.
    async fn inode_data(
        &mut self,
        inode: &Inode,
        blocks: &mut u64,
        data: &mut Vec<(u64, Addr)>,
    ) -> Result<()> {
        let (ino, words) = (inode.nid, u64::from(NODE_WORDS));
        let addresses = inode.address_count();
        debug_assert!(addresses <= INODE_WORDS);
        let own: Vec<Addr> = (0..addresses).map(|index| inode.address(index)).collect();
        self.addresses(ino, 0, &own, blocks, data);
        // A node, its height above data, its number in the inode, and the first block of the file that it maps.
        let first = |slot: u64| {
            u64::from(addresses)
                + [0, words, 2 * words, (2 + words) * words, (2 + 2 * words) * words][slot as usize]
        };
        let offsets = [1, 2, 3, 4 + NODE_WORDS, 5 + 2 * NODE_WORDS];
        let mut todo: Vec<(Nid, u32, u32, u64)> = (0..5)
            .map(|slot| (inode.node(slot), [0, 0, 1, 1, 2][slot], offsets[slot], first(slot as u64)))
            .filter(|(nid, ..)| *nid != Nid(0))
            .collect();
        while let Some((nid, height, offset, first)) = todo.pop() {
            let Some(block) = self.node(nid, ino, offset).await? else { continue };
            *blocks += 1;
            if height == 0 {
                let addrs: Vec<Addr> = (0..NODE_WORDS).map(|index| Addr(node::word(&block, index))).collect();
                self.addresses(nid, first, &addrs, blocks, data);
                continue;
            }
            // Number of nodes and blocks of the file below one child.
            let (nodes, mapped) = if height == 1 { (1, words) } else { (1 + NODE_WORDS, words * words) };
            for index in 0..NODE_WORDS {
                let child = Nid(node::word(&block, index));
                if child != Nid(0) {
                    let first = first + u64::from(index) * mapped;
                    todo.push((child, height - 1, offset + 1 + index * nodes, first));
                }
            }
        }
        Ok(())
    }

    /// Checks the data addresses in one node.
    fn addresses(
        &mut self,
        nid: Nid,
        first: u64,
        addrs: &[Addr],
        blocks: &mut u64,
        data: &mut Vec<(u64, Addr)>,
    ) {
        let version = self.nat.get(&nid).map_or(0, |entry| entry.version);
        for (index, &addr) in addrs.iter().enumerate() {
            match addr {
                Addr::NULL => continue,
                Addr::NEW => self.report.reserved_blocks += 1,
                addr => {
                    if !self.take(addr, Owner { nid, version, offset: index as u16 }, false) {
                        continue;
                    }
                    self.report.data_blocks += 1;
                    data.push((first + index as u64, addr));
                }
            }
            *blocks += 1;
        }
    }

    async fn directory(&mut self, inode: &Inode, reference: &Reference, data: &[(u64, Addr)]) -> Result<()> {
        let ino = inode.nid;
        // A directory that was removed while it was open: its parent is not known, and Linux sets links and size to 0.
        let is_orphan = reference.is_orphan;
        let parent = (!is_orphan).then_some(reference.parent);
        let mut names = Names::default();
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            self.entries(inode, parent, None, Slots::in_room(room.len()), room, &mut names);
        } else {
            for &(index, addr) in data {
                let what = format!("block {index} of directory {ino}");
                let Some(block) = self.block(&what, addr).await? else { continue };
                self.entries(inode, parent, Some(index), Slots::BLOCK, &block, &mut names);
            }
            let end = inode.size.div_ceil(BLOCK_BYTES as u64);
            if let Some((index, _)) = data.iter().find(|(index, _)| *index >= end && !is_orphan) {
                let size = inode.size;
                self.problem(
                    "directory-size",
                    format!("directory {ino} of {size} bytes has a block {index}"),
                );
            }
            if inode.depth > LEVELS_MAX {
                self.problem("directory-depth", format!("directory {ino} has {} levels", inode.depth));
            }
        }
        if names.dots != [1, 1] && !inode.has_inline(inline::DOTS) {
            let [own, above] = names.dots;
            self.problem(
                "directory-dots",
                format!("directory {ino} has `.` {own} times, `..` {above} times"),
            );
        }
        let expected = 2 + names.directories;
        if inode.links != expected && !is_orphan {
            self.problem("links", format!("directory {ino} counts {} links, found {expected}", inode.links));
        }
        Ok(())
    }

    /// Checks the entries in one room. `index` is the block of the directory, `None` for inline entries.
    fn entries(
        &mut self,
        dir: &Inode,
        parent: Option<Nid>,
        index: Option<u64>,
        slots: Slots,
        room: &[u8],
        names: &mut Names,
    ) {
        let ino = dir.nid;
        for entry in slots.entries(room) {
            let entry = match entry {
                Ok((slot, entry)) => {
                    if !slots.are_taken(room, slot, entry.name.len()) {
                        let name = entry.name.escape_ascii();
                        self.problem(
                            "entry",
                            format!("\"{name}\" in directory {ino} is in slots that are free"),
                        );
                    }
                    entry
                }
                Err(error) => {
                    self.problem("entry", format!("directory {ino}: {error}"));
                    continue;
                }
            };
            if entry.is_dot() {
                let is_own = entry.name == b".";
                let expected = if is_own { Some(ino) } else { parent };
                if let Some(expected) = expected.filter(|expected| *expected != entry.ino) {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    self.problem(
                        "directory-dots",
                        format!("`{name}` of directory {ino} is {}, expected {expected}", entry.ino),
                    );
                }
                names.dots[usize::from(!is_own)] += 1;
                continue;
            }
            self.entry(dir, index, &entry);
            if entry.kind == Some(Kind::Directory) {
                names.directories += 1;
            }
            self.todo.push(Reference { ino: entry.ino, kind: entry.kind, parent: ino, is_orphan: false });
            if let Some(name) = names.seen.replace(entry.name) {
                let name = name.escape_ascii().to_string();
                self.problem("entry-twice", format!("directory {ino} has the name \"{name}\" twice"));
            }
        }
    }

    fn entry(&mut self, dir: &Inode, index: Option<u64>, entry: &Entry) {
        let (ino, name) = (dir.nid, entry.name.escape_ascii().to_string());
        let hash = dentry::hash(&entry.name);
        if entry.hash != hash {
            let found = entry.hash;
            self.problem(
                "entry-hash",
                format!("\"{name}\" in directory {ino} has the hash {found:#x}, expected {hash:#x}"),
            );
        }
        if entry.kind.is_none() {
            self.problem("entry-type", format!("\"{name}\" in directory {ino} does not say what it is"));
        }
        if let Some(index) = index {
            let mut levels = 0..dir.depth.min(LEVELS_MAX);
            if !levels.any(|level| dentry::bucket(level, dir.dir_level, hash).contains(&index)) {
                self.problem(
                    "entry-bucket",
                    format!("\"{name}\" is in block {index} of directory {ino}, where no search looks"),
                );
            }
        }
    }

    fn links(&mut self) {
        let mut problems = Vec::new();
        for (ino, found) in &self.inodes {
            if found.is_orphan {
                if found.links != 0 || found.names != 0 {
                    let Found { links, names, .. } = found;
                    problems
                        .push(("orphan", format!("orphan {ino} counts {links} links and has {names} names")));
                }
            } else if !found.is_directory && found.links != found.names {
                problems.push((
                    "links",
                    format!("inode {ino} counts {} links, found {}", found.links, found.names),
                ));
            }
        }
        problems.into_iter().for_each(|(name, what)| self.problem(name, what));
    }

    fn tables(&mut self) {
        let unreachable: Vec<Nid> =
            self.nat.keys().filter(|nid| **nid > Nid::META && !self.nodes.contains(nid)).copied().collect();
        for nid in unreachable {
            let entry = self.nat[&nid];
            self.problem(
                "nat-unreachable",
                format!("node {nid} of inode {} at block {} has no way from the root", entry.ino, entry.addr),
            );
        }
        for segment in (0..self.sit.len() as u32).map(SegNo) {
            self.segment(segment);
        }
        let beyond: Vec<SegNo> = self
            .volume
            .sit_journal_segments()
            .filter(|segment| segment.0 as usize >= self.sit.len())
            .collect();
        for segment in beyond {
            self.problem(
                "sit-journal",
                format!("the SIT's journal has segment {segment} of {}", self.sit.len()),
            );
        }
        let end = self.volume.geometry().nid_end();
        let beyond: Vec<Nid> = self.volume.nat_journal_nids().filter(|nid| *nid >= end).collect();
        for nid in beyond {
            self.problem(
                "nat-journal",
                format!("the NAT's journal has node {nid}, expected one below {end}"),
            );
        }
    }

    /// Compares one entry of the SIT with what was found.
    fn segment(&mut self, segment: SegNo) {
        let entry = self.sit[segment.0 as usize].clone();
        let cursor = self.volume.log_at(segment);
        if entry.valid != entry.counted() {
            let (says, counted) = (entry.valid, entry.counted());
            self.problem(
                "sit-count",
                format!("segment {segment} counts {says} valid blocks, its map {counted}"),
            );
        }
        let is_used = |offset: u32| {
            let bit = (segment.0 * SEGMENT_BLOCKS + offset) as usize;
            self.used[bit / 64] & 1 << (bit % 64) != 0
        };
        let wrong: Vec<u32> =
            (0..SEGMENT_BLOCKS).filter(|&offset| is_used(offset) != entry.is_valid(offset)).collect();
        if let Some(&first) = wrong.first() {
            let (name, what) = match entry.is_valid(first) {
                true => ("sit-unused", "valid, which nothing refers to"),
                false => ("sit-missing", "free, which is in use"),
            };
            let addr = self.volume.geometry().main_block(segment, first);
            let more = wrong.len() - 1;
            self.problem(
                name,
                format!("segment {segment} calls block {addr} {what}; {more} more of its blocks are wrong"),
            );
        }
        if let Some((log, cursor)) = cursor {
            let next = if cursor.fills_holes {
                usize::from(entry.is_valid(u32::from(cursor.offset)))
            } else {
                (u32::from(cursor.offset)..SEGMENT_BLOCKS).filter(|offset| entry.is_valid(*offset)).count()
            };
            if next > 0 {
                let offset = cursor.offset;
                self.problem(
                    "cursor",
                    format!(
                        "the log {log:?} would write over valid blocks from {offset} of segment {segment} on"
                    ),
                );
            }
            if usize::from(entry.log) != log.index() {
                self.problem(
                    "sit-log",
                    format!("segment {segment} is of log {}, {log:?} writes it", entry.log),
                );
            }
        } else if usize::from(entry.log) >= Log::ALL.len() {
            self.problem("sit-log", format!("segment {segment} is of log {}, expected 0 to 5", entry.log));
        }
    }

    async fn summaries(&mut self) -> Result<()> {
        let mut owners = std::mem::take(&mut self.owners);
        owners.sort_unstable_by_key(|(addr, ..)| *addr);
        let mut current = None;
        for (addr, owner, is_node) in owners {
            let (segment, offset) = self.volume.geometry().place_of(addr).expect("it was taken");
            let summary = match current.take() {
                Some((known, summary)) if known == segment => summary,
                _ => {
                    let summary = match self.volume.summary(segment).await {
                        Err(Error::Port(error)) if is_unwritten(&error) => {
                            let what =
                                format!("the summary of segment {segment}, for {addr}, is not written");
                            self.problem("unwritten", what);
                            continue;
                        }
                        summary => summary?,
                    };
                    if summary.is_node != is_node {
                        let kind = |is_node| if is_node { "nodes" } else { "data" };
                        let (says, found) = (kind(summary.is_node), kind(is_node));
                        self.problem(
                            "summary-type",
                            format!("the summary of segment {segment} is of {says}, found {found}"),
                        );
                    }
                    let log = self.sit[segment.0 as usize].log;
                    if Log::ALL.get(usize::from(log)).is_some_and(|log| log.is_node() != is_node) {
                        let found = if is_node { "a node" } else { "data" };
                        self.problem(
                            "sit-log",
                            format!("segment {segment} is of log {log}, and {addr} is {found}"),
                        );
                    }
                    summary
                }
            };
            let said = summary.owners[offset as usize];
            // The version of a node is only in the NAT.
            let same = if is_node { said.nid == owner.nid } else { said == owner };
            if !same {
                self.problem(
                    "summary",
                    format!(
                        "the summary gives block {addr} to {} of node {} (version {}), expected {} of node {} (version {})",
                        said.offset, said.nid, said.version, owner.offset, owner.nid, owner.version
                    ),
                );
            }
            current = Some((segment, summary));
        }
        Ok(())
    }

    fn counts(&mut self) {
        let checkpoint = self.volume.checkpoint();
        let is_free =
            |segment: SegNo| self.sit[segment.0 as usize].valid == 0 && self.volume.log_at(segment).is_none();
        let free = (0..self.sit.len() as u32).filter(|segment| is_free(SegNo(*segment))).count() as u64;
        let Report { nodes, data_blocks, reserved_blocks, .. } = self.report;
        let counts = [
            ("valid blocks", checkpoint.valid_blocks, nodes + data_blocks + reserved_blocks),
            ("nodes", u64::from(checkpoint.valid_nodes), nodes),
            ("inodes", u64::from(checkpoint.valid_inodes), self.inodes.len() as u64),
            ("free segments", u64::from(checkpoint.free_segments), free),
        ];
        for (name, says, found) in counts {
            if says != found {
                self.problem(
                    "checkpoint-count",
                    format!("the checkpoint counts {says} {name}, found {found}"),
                );
            }
        }
    }
}

/// State of the walk over a directory's names.
#[derive(Debug, Default)]
struct Names {
    seen: BTreeSet<Vec<u8>>,
    /// Entries `.` and `..`.
    dots: [u32; 2],
    directories: u32,
}
