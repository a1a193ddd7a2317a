//! Checking of a volume, read-only: what each table says must be what a walk over all inodes finds.
//!
//! The inode tables are read from their beginning to what was ever used; each inode in use gives the blocks that it has,
//! a directory also its names. Afterwards names are compared with inodes, and bitmaps and counts with what was found.
//! Where the journal has to be replayed, the volume is checked as it will be then.
//!
//! Invariants: every problem has a name of its own kind and one line that says where. A broken part is reported and the
//! check goes on beside it; it ends because no block is taken twice.
//!
//! Deliberately absent: repair.

mod blocks;
mod directory;
mod groups;
mod map;
#[cfg(test)]
mod tests;

use super::error::{Error, Result};
use super::layout::inode::{BASE_BYTES, Inode, flags};
use super::layout::superblock::{Feature, state};
use super::layout::xattr::{self, XattrBlock};
use super::layout::{Addr, Geometry, Group, Ino, extent};
use super::volume::Volume;
use crate::boxed::Boxed;
use crate::format::{Kind, tell, u16_at, u32_at, unless_port};
use crate::port::BlockPort;
use crate::xattrs::{Xattr, value};
use blocks::{Blocks, Map};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub use crate::format::Problem;

/// Number of blocks that are read at once.
const READ_BLOCKS: u64 = 64;
/// Most blocks of a volume that is checked, since a bit is kept for each block in use.
const BLOCKS_MAX: u64 = 1 << 32;
/// Offset in the superblock of the inode of project quotas.
const PROJECT_QUOTA_AT: usize = 0x26c;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first 1,000 problems.
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub problems_untold: u64,
    /// Whether the volume was unmounted.
    pub is_clean: bool,
    /// Whether the superblock records earlier errors.
    pub has_errors_noted: bool,
    /// Number of blocks of which the journal has a newer version; the volume was checked with these.
    pub journal_blocks: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Inodes that wait to be freed or truncated.
    pub orphans: u64,
    /// Blocks of contents, those of directories included.
    pub data_blocks: u64,
    /// Blocks in use that are not contents.
    pub metadata_blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, name: &'static str, what: String) {
        tell(&mut self.problems, &mut self.problems_untold, name, what);
    }
}

/// Checks a volume. Errors: there is no volume that could be checked, or the port fails.
pub fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Report>> {
    Box::pin(look(port))
}

async fn look(port: Rc<dyn BlockPort>) -> Result<Report> {
    let (volume, problems) = Volume::open_broken(port).await?;
    let geometry = *volume.geometry();
    if geometry.blocks_count > BLOCKS_MAX {
        return Err(Error::Refused(format!(
            "{} blocks; the check knows at most {BLOCKS_MAX}",
            geometry.blocks_count
        )));
    }
    let superblock = volume.superblock();
    let report = Report {
        is_clean: volume.is_clean(),
        has_errors_noted: superblock.state & state::ERRORS != 0,
        journal_blocks: volume.overlay().len() as u64,
        ..Report::default()
    };
    let mut hidden = BTreeSet::new();
    if superblock.features.has(Feature::ORPHAN_FILE) {
        hidden.insert(superblock.orphan_file);
    }
    if superblock.features.has(Feature::PROJECT) && superblock.features.has(Feature::QUOTA) {
        hidden.insert(Ino(u32_at(&superblock.raw[..], PROJECT_QUOTA_AT)));
    }
    let mut checker = Checker {
        blocks: Blocks::new(&geometry),
        geometry,
        volume,
        lost_tables: BTreeSet::new(),
        hidden,
        orphans: BTreeSet::new(),
        inodes: BTreeMap::new(),
        names: Vec::new(),
        xattr_blocks: BTreeMap::new(),
        report,
    };
    for problem in problems {
        checker.problem(problem.name, problem.what);
    }
    checker.copies().await?;
    checker.superblock();
    checker.tables();
    checker.journal().await;
    match unless_port(checker.volume.orphans().await)? {
        Ok(orphans) => checker.orphans = orphans.into_iter().collect(),
        Err(what) => checker.problem("orphan", what),
    }
    checker.inodes().await?;
    checker.names();
    checker.reach();
    checker.links();
    checker.xattr_references();
    checker.groups().await?;
    Ok(checker.report)
}

/// Where an inode had the address of a fragment, which no volume has.
const FRAGMENT_AT: usize = 0x70;

/// Blocks that a map of addresses reaches: direct ones, and those behind one, two and three indirect blocks.
fn mapped_blocks_max(block_bytes: u64) -> u64 {
    let fan_out = block_bytes / 4;
    12 + fan_out + fan_out.pow(2) + fan_out.pow(3)
}

/// An inode that is in use.
#[derive(Debug)]
struct Found {
    links: u16,
    kind: Option<Kind>,
    /// Whether it has an index of names.
    has_index: bool,
    /// Number of names that refer to the inode.
    names: u32,
    /// Number of directories among the names in it.
    subdirectories: u32,
    /// The directory that has the first name found.
    parent: Option<Ino>,
    /// The inode to which its `..` refers.
    dots: Option<Ino>,
}

/// A name of a directory.
#[derive(Debug)]
struct Name {
    directory: Ino,
    ino: Ino,
    /// Kind of the inode according to the entry.
    kind: Option<Kind>,
}

struct Checker {
    volume: Volume,
    geometry: Geometry,
    /// The blocks that were found.
    blocks: Blocks,
    /// Groups whose tables are at impossible places: their inodes are not checked, and nothing is read twice.
    lost_tables: BTreeSet<Group>,
    /// Inodes other than the reserved ones that must not have a name.
    hidden: BTreeSet<Ino>,
    orphans: BTreeSet<Ino>,
    inodes: BTreeMap<Ino, Found>,
    names: Vec<Name>,
    /// References that blocks of attributes count, and the number of references that was found.
    xattr_blocks: BTreeMap<Addr, (Option<u32>, u32)>,
    report: Report,
}

impl Checker {
    fn problem(&mut self, name: &'static str, what: String) {
        self.report.add(name, what);
    }

    /// Checks fields of the superblock without which the volume can be used.
    fn superblock(&mut self) {
        let superblock = self.volume.superblock();
        let (reserved, all) = (superblock.reserved_blocks, superblock.blocks_count);
        let extra = [0x15c, 0x15e].map(|at| u16_at(&superblock.raw[..], at));
        let most = self.geometry.inode_bytes - BASE_BYTES as u16;
        if reserved > all / 2 {
            self.problem(
                "superblock",
                format!("{reserved} of {all} blocks are reserved, expected at most half"),
            );
        }
        for (name, bytes) in ["s_min_extra_isize", "s_want_extra_isize"].into_iter().zip(extra) {
            if bytes > most && most > 0 {
                self.problem("superblock", format!("{name} is {bytes}, expected 0 to {most}"));
            }
        }
    }

    fn is_reserved(&self, ino: Ino) -> bool {
        ino.0 < self.geometry.first_ino && ino != Ino::ROOT
    }

    /// Whether an inode is not expected to be found by names.
    fn is_hidden(&self, ino: Ino) -> bool {
        self.is_reserved(ino) || self.hidden.contains(&ino)
    }

    /// Marks blocks of the volume as used by this owner; returns false if one of them has another owner.
    fn take(&mut self, addr: Addr, blocks: u64, owner: &dyn std::fmt::Display) -> bool {
        match self.blocks.take(addr, blocks, &self.geometry) {
            None => true,
            Some(shared) => {
                self.problem("block-shared", format!("block {shared} has another owner beside {owner}"));
                false
            }
        }
    }

    async fn inodes(&mut self) -> Result<()> {
        for group in self.geometry.groups() {
            let used = self.used_inodes(group);
            let table = self.volume.groups()[group.0 as usize].inode_table;
            let per_block = self.geometry.block_bytes / u32::from(self.geometry.inode_bytes);
            let blocks = u64::from(used.div_ceil(per_block));
            let mut index = 0;
            for at in (0..blocks).step_by(READ_BLOCKS as usize) {
                let count = READ_BLOCKS.min(blocks - at);
                for block in self.volume.blocks(Addr(table.0 + at), count).await? {
                    for raw in block.chunks_exact(self.geometry.inode_bytes.into()) {
                        if index < used {
                            self.inode(self.geometry.ino_at(group, index), raw).await?;
                        }
                        index += 1;
                    }
                }
            }
        }
        if !self.inodes.contains_key(&Ino::ROOT) {
            self.problem("inode", "the root directory, inode 2, is not in use".into());
        }
        Ok(())
    }

    async fn inode(&mut self, ino: Ino, raw: &[u8]) -> Result<()> {
        let (mode, links) = (u16_at(raw, 0), u16_at(raw, 0x1a));
        let is_kept = self.is_reserved(ino) && (mode != 0 || ino == Ino::BAD_BLOCKS);
        if links == 0 && !is_kept && !self.orphans.contains(&ino) {
            if mode != 0 && u32_at(raw, 0x14) == 0 {
                self.problem("inode", format!("inode {ino} has no links and no time of its deletion"));
            }
            return Ok(());
        }
        let decoded = unless_port(Inode::decode(raw, ino, &self.geometry))?;
        let inode = match decoded {
            Ok(inode) => Some(inode),
            Err(what) => {
                self.problem("inode", what);
                Inode::parse(raw, ino, &self.geometry).ok()
            }
        };
        let kind = Kind::of_mode(mode);
        let has_index = inode.as_ref().is_some_and(|inode| inode.has(flags::INDEX));
        let found = Found { links, kind, has_index, names: 0, subdirectories: 0, parent: None, dots: None };
        self.inodes.insert(ino, found);
        let is_unused = [Ino::UNDELETE, Ino::EXCLUDE, Ino::REPLICA].contains(&ino);
        if kind.is_none() && !self.is_reserved(ino) || is_unused && mode != 0 {
            self.problem("inode", format!("inode {ino} has the mode {mode:#o}"));
        }
        if let Some(inode) = &inode {
            self.fields(inode, raw);
        }
        if self.orphans.contains(&ino) {
            self.report.orphans += 1;
        } else if !self.is_hidden(ino) {
            match kind {
                Some(Kind::Directory) => self.report.directories += 1,
                Some(Kind::Regular) => self.report.files += 1,
                _ => self.report.others += 1,
            }
        }
        match inode {
            Some(inode) => self.contents(&inode).await,
            None => Ok(()),
        }
    }

    /// Checks fields that have to agree with what else is known of an inode.
    fn fields(&mut self, inode: &Inode, raw: &[u8]) {
        let ino = inode.ino;
        if inode.links > 0 && inode.dtime != 0 && !self.orphans.contains(&ino) && !self.is_reserved(ino) {
            self.problem("inode", format!("inode {ino} is in use, and has a time of its deletion"));
        }
        for (name, flag, feature) in [
            ("encrypt", flags::ENCRYPT, Feature::ENCRYPT),
            ("verity", flags::VERITY, Feature::VERITY),
            ("casefold", flags::CASEFOLD, Feature::CASEFOLD),
        ] {
            if inode.has(flag) && !self.geometry.features.has(feature) {
                self.problem(
                    "inode",
                    format!("inode {ino} has the flag {name}, the volume not that feature"),
                );
            }
        }
        let fragment = u32_at(raw, FRAGMENT_AT);
        if fragment != 0 && !self.is_reserved(ino) {
            self.problem("inode", format!("inode {ino} has the fragment {fragment}, expected none"));
        }
    }

    async fn contents(&mut self, inode: &Inode) -> Result<()> {
        if inode.ino == Ino::RESIZE {
            return self.resize_inode(inode).await;
        }
        let has_map = match inode.kind() {
            _ if inode.has(flags::INLINE_DATA) => false,
            Some(Kind::Regular | Kind::Directory) | None => true,
            Some(Kind::Symlink) => !inode.is_fast_link(),
            Some(_) => false,
        };
        let mut map = Map::default();
        if has_map {
            map = if inode.has(flags::EXTENTS) {
                self.extents(inode).await?
            } else {
                self.addresses(inode).await?
            };
        }
        let mut blocks = map.blocks;
        if self.xattrs(inode).await? {
            blocks += 1;
        }
        let sectors = blocks * u64::from(self.geometry.block_bytes / 512);
        if map.is_whole && sectors != inode.sectors(&self.geometry) && inode.ino != Ino::BAD_BLOCKS {
            let (ino, says) = (inode.ino, inode.sectors(&self.geometry));
            self.problem("inode-blocks", format!("inode {ino} counts {says} sectors, found {sectors}"));
        }
        self.size(inode, &map);
        match inode.kind() {
            Some(Kind::Directory) => self.directory(inode, &map).await,
            Some(Kind::Symlink) => self.link(inode, &map).await,
            _ => Ok(()),
        }
    }

    /// Checks extended attributes; returns whether a block has to be counted for them.
    async fn xattrs(&mut self, inode: &Inode) -> Result<bool> {
        let ino = inode.ino;
        match unless_port(xattr::decode_in_inode(inode.xattr_room()))? {
            Ok(xattrs) => {
                self.acls(ino, &xattrs);
                self.inline(inode, &xattrs).await?;
            }
            Err(what) => self.problem("xattr", format!("inode {ino}: {what}")),
        }
        let addr = inode.xattr_block;
        if addr == Addr::NULL {
            return Ok(false);
        }
        if !self.geometry.is_data(addr, 1) {
            self.problem("address", format!("inode {ino} has attributes at {addr}, outside of the volume"));
            return Ok(false);
        }
        if let Some((_, found)) = self.xattr_blocks.get_mut(&addr) {
            *found += 1;
            return Ok(true);
        }
        let owner = format!("the attributes of inode {ino}");
        if !self.take(addr, 1, &owner) {
            return Ok(true);
        }
        let block = self.volume.block(addr).await?;
        let counted = match unless_port(XattrBlock::decode(&block, addr, &self.geometry))? {
            Ok(decoded) => {
                if !decoded.has_right_hashes(&block) {
                    self.problem("xattr", format!("an attribute in block {addr} has a wrong hash"));
                }
                self.acls(ino, &decoded.xattrs);
                Some(decoded.references)
            }
            Err(what) => {
                self.problem("xattr", format!("inode {ino}: {what}"));
                None
            }
        };
        self.xattr_blocks.insert(addr, (counted, 1));
        Ok(true)
    }

    fn acls(&mut self, ino: Ino, xattrs: &[Xattr]) {
        for kind in xattrs.iter().filter_map(Xattr::broken_acl) {
            self.problem("xattr", format!("inode {ino}: {} is no access control list", kind.name()));
        }
    }

    fn xattr_references(&mut self) {
        for (addr, (counted, found)) in std::mem::take(&mut self.xattr_blocks) {
            if counted.is_some_and(|counted| counted != found) {
                let counted = counted.unwrap_or_default();
                self.problem(
                    "xattr-references",
                    format!("block {addr} of attributes counts {counted} references, found {found}"),
                );
            }
        }
    }

    /// Compares the size of an inode with the blocks that it has.
    fn size(&mut self, inode: &Inode, map: &Map) {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let (ino, size) = (inode.ino, inode.size);
        let wrong = match inode.kind() {
            _ if !map.is_whole || inode.has(flags::INLINE_DATA) => None,
            Some(Kind::Regular) => {
                // Blocks behind the end that are allocated and were never written are allowed.
                let written = map.extents.iter().rev().find(|extent| !extent.is_unwritten);
                let last = written.map_or(0, |extent| extent.end() - 1);
                let most = match inode.has(flags::EXTENTS) {
                    true => Geometry::FILE_BLOCKS_MAX,
                    false => mapped_blocks_max(block_bytes),
                };
                if size > most * block_bytes {
                    Some(format!("expected at most {most} blocks"))
                } else {
                    (size < last * block_bytes && !inode.has(flags::VERITY))
                        .then(|| format!("block {last} is written"))
                }
            }
            Some(Kind::Directory) => {
                let blocks = map.extents.last().map_or(0, extent::Extent::end);
                (size != blocks * block_bytes || size == 0).then(|| format!("{blocks} blocks"))
            }
            Some(Kind::CharDevice | Kind::BlockDevice | Kind::Fifo | Kind::Socket) => {
                (size != 0).then(|| "expected none".to_string())
            }
            Some(Kind::Symlink) | None => None,
        };
        if let Some(why) = wrong {
            self.problem("inode-size", format!("inode {ino} has {size} bytes, {why}"));
        }
        let is_journal = self.volume.journal().is_some_and(|journal| journal.inode.ino == ino);
        if is_journal && map.is_whole {
            let mut next = 0;
            for extent in &map.extents {
                if u64::from(extent.first) == next && !extent.is_unwritten {
                    next = extent.end();
                }
            }
            if next * block_bytes < size {
                self.problem("journal", format!("block {next} of the journal is a hole"));
            }
        }
    }

    /// Checks the target of a symbolic link: text as long as its size says.
    async fn link(&mut self, inode: &Inode, map: &Map) -> Result<()> {
        if inode.has(flags::INLINE_DATA) || !map.is_whole {
            return Ok(());
        }
        let content = match map.extents.first() {
            None => inode.block.to_vec(),
            Some(extent) => self.volume.block(extent.addr).await?.to_vec(),
        };
        let length = content.iter().position(|&byte| byte == 0).map(|length| length as u64);
        if length != Some(inode.size) || inode.size == 0 {
            let (ino, size) = (inode.ino, inode.size);
            self.problem("link", format!("link {ino} has {size} bytes, which are not those of its text"));
        }
        Ok(())
    }

    /// Checks inline contents, which need an attribute if they do not fit into `i_block`.
    async fn inline(&mut self, inode: &Inode, xattrs: &[Xattr]) -> Result<()> {
        if !inode.has(flags::INLINE_DATA) {
            return Ok(());
        }
        let rest = value(xattrs, xattr::INLINE_DATA).unwrap_or_default();
        let (ino, size, room) = (inode.ino, inode.size, inode.block.len() + rest.len());
        if !self.geometry.features.has(Feature::INLINE_DATA) {
            self.problem("inode", format!("inode {ino} has inline contents, the volume no inline_data"));
        }
        if size > room as u64 {
            self.problem("inode-size", format!("inode {ino} has {size} bytes inline, room for {room}"));
        }
        if inode.kind() == Some(Kind::Directory) {
            self.inline_directory(inode, rest);
        }
        Ok(())
    }

    /// Compares names with the inodes to which they refer.
    fn names(&mut self) {
        let has_types = self.geometry.features.has(Feature::FILETYPE);
        for Name { directory, ino, kind } in std::mem::take(&mut self.names) {
            let Some(found) = self.inodes.get_mut(&ino) else {
                self.problem(
                    "entry",
                    format!("a name in directory {directory} leads to inode {ino}, which is not in use"),
                );
                continue;
            };
            found.names += 1;
            let (is, had) = (found.kind, found.parent);
            if is == Some(Kind::Directory) {
                found.parent.get_or_insert(directory);
                if let Some(parent) = self.inodes.get_mut(&directory) {
                    parent.subdirectories += 1;
                }
                if let Some(other) = had {
                    self.problem(
                        "directory-names",
                        format!("directory {ino} has a name in directory {other} and one in {directory}"),
                    );
                }
            }
            if has_types && kind != is {
                self.problem(
                    "entry-type",
                    format!("inode {ino} is {is:?}, its name in directory {directory} says {kind:?}"),
                );
            }
        }
    }

    /// Checks that each directory can be reached from the root, by names and by `..`, and that everything else has a name.
    fn reach(&mut self) {
        let mut reached = BTreeSet::from([Ino::ROOT]);
        let mut lost: BTreeSet<Ino> = BTreeSet::new();
        let mut problems = Vec::new();
        for (&ino, found) in &self.inodes {
            // A mount frees orphans without links, and only those.
            let is_freed = self.orphans.contains(&ino) && found.names == 0 && found.links == 0;
            if self.is_hidden(ino) || is_freed {
                continue;
            }
            if found.kind != Some(Kind::Directory) {
                if found.names == 0 {
                    problems.push(("unreachable", format!("inode {ino} has no name")));
                }
                continue;
            }
            let expected = if ino == Ino::ROOT { Some(ino) } else { found.parent };
            if let (Some(says), Some(expected)) = (found.dots, expected)
                && says != expected
            {
                problems.push((
                    "directory-dots",
                    format!("`..` of directory {ino} is {says}, expected {expected}"),
                ));
            }
            let mut path = BTreeSet::new();
            let mut at = ino;
            let is_reached = loop {
                if reached.contains(&at) {
                    break true;
                }
                if lost.contains(&at) || !path.insert(at) {
                    break false;
                }
                match self.inodes.get(&at).and_then(|found| found.parent) {
                    Some(parent) => at = parent,
                    None => break false,
                }
            };
            if !is_reached {
                problems.push(("unreachable", format!("directory {ino} has no way from the root")));
            }
            if is_reached { &mut reached } else { &mut lost }.extend(path);
        }
        problems.into_iter().for_each(|(name, what)| self.problem(name, what));
    }

    fn links(&mut self) {
        let counts_all = !self.geometry.features.has(Feature::DIR_NLINK);
        let mut problems = Vec::new();
        for (&ino, found) in &self.inodes {
            let Found { links, names, subdirectories, .. } = *found;
            if self.is_hidden(ino) {
                continue;
            }
            if links == 0 {
                if names > 0 {
                    problems.push(("orphan", format!("orphan {ino} has {names} names")));
                }
                continue;
            }
            let expected = match found.kind {
                // A directory that has had too many subdirectories keeps a link count of one.
                Some(Kind::Directory) if links == 1 && !counts_all && found.has_index => continue,
                Some(Kind::Directory) => 2 + u64::from(subdirectories),
                _ if names == 0 => continue,
                _ => names.into(),
            };
            if u64::from(links) != expected {
                problems.push(("links", format!("inode {ino} counts {links} links, found {expected}")));
            }
        }
        problems.into_iter().for_each(|(name, what)| self.problem(name, what));
    }

    /// Checks what the superblock says of the journal.
    async fn journal(&mut self) {
        let Some(journal) = self.volume.journal() else { return };
        let superblock = self.volume.superblock();
        // The log may have a newer version of the inode than the one by which it was found; a broken one was reported.
        let Ok(inode) = self.volume.inode(journal.inode.ino).await else { return };
        let copy = inode.journal_copy();
        let differs = superblock.journal_backup == 1 && superblock.journal_blocks[..15] != copy[..15];
        let start = journal.superblock.start;
        let has_log = start != 0 && !self.volume.needs_recovery();
        if differs {
            self.problem(
                "journal",
                "the superblock's copy of the journal's inode is another one".to_string(),
            );
        }
        if has_log {
            self.problem(
                "journal",
                format!("the log begins at {start}, the volume says that there is nothing to replay"),
            );
        }
    }

    /// Number of inodes of a group that were ever used.
    fn used_inodes(&self, group: Group) -> u32 {
        let desc = &self.volume.groups()[group.0 as usize];
        if self.lost_tables.contains(&group)
            || desc.has(super::layout::group::flags::INODE_UNINIT, &self.geometry)
        {
            return 0;
        }
        let unused = match self.geometry.features.has_group_checksums() {
            true => desc.unused_inodes,
            false => 0,
        };
        self.geometry.inodes_per_group.saturating_sub(unused)
    }
}
