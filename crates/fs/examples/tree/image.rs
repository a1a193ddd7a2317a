//! Lists what a volume in an image holds, in whichever format it is.

use super::{BLOCK, Line, Outcome, add_block, for_programs, hash};
use flashweir_core::Payload;
use flashweir_fs::format::{Kind, Time};
use flashweir_fs::port::{Image, block_on, bytes_of};
use flashweir_fs::{ext4, f2fs};
use std::error::Error;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A volume of a format.
trait Tree {
    type Inode;

    fn root(&self) -> Result<Self::Inode>;
    fn kind(inode: &Self::Inode) -> Option<Kind>;
    /// Names and inodes. What a walk finds, a search must find too.
    fn children(&self, inode: &Self::Inode) -> Result<Vec<(Vec<u8>, Self::Inode)>>;
    fn link(&self, inode: &Self::Inode) -> Result<Vec<u8>>;
    fn content(&self, inode: &Self::Inode) -> Result<u64>;
    /// A line without contents.
    fn line(&self, inode: &Self::Inode, kind: Kind) -> Result<Line>;
}

/// One line for each name.
pub(super) fn list(image: &Path, lines: &mut Vec<String>) -> Outcome {
    let port = Rc::new(Image::open(image, false)?);
    match block_on(ext4::Volume::mount(Rc::clone(&port) as Rc<_>)) {
        Err(ext4::Error::Absent(..)) => walk(&block_on(f2fs::Volume::mount(port))?, lines),
        volume => walk(&volume?, lines),
    }
}

/// Writes what the log of an ext4 volume holds to its places.
pub(super) fn replay(image: &Path) -> Outcome {
    let recovered = block_on(ext4::recover(Rc::new(Image::open(image, true)?)))?;
    println!("{recovered:?}");
    Ok(())
}

/// What the log of an ext4 volume holds, and whether a copy of the image, where others replayed it, has each of its blocks.
pub(super) fn replayed(image: &Path, copy: Option<&Path>) -> Outcome {
    let volume = block_on(ext4::Volume::mount(Rc::new(Image::open(image, false)?)))?;
    let copy = copy.map(std::fs::File::open).transpose()?;
    let orphans = block_on(volume.orphans())?.len();
    let Some(journal) = volume.journal() else { return Err("expected a journal".into()) };
    let bytes = u64::from(volume.geometry().block_bytes);
    for (addr, block) in &journal.replayed.blocks {
        let Some(copy) = &copy else { break };
        let mut theirs = vec![0; block.len()];
        copy.read_exact_at(&mut theirs, addr.0 * bytes)?;
        // A replay of a log changes the superblock too.
        if addr.0 > 1024 / bytes && theirs[..] != block[..] {
            return Err(format!("block {addr} of the log is not what others have replayed").into());
        }
    }
    println!(
        "checksums {:?} transactions: {} blocks: {} revoked: {} orphans: {orphans}",
        journal.superblock.format().checksums,
        journal.replayed.transactions,
        journal.replayed.blocks.len(),
        journal.replayed.revoked.len()
    );
    Ok(())
}

fn walk<T: Tree>(tree: &T, lines: &mut Vec<String>) -> Outcome {
    let mut todo = vec![(tree.root()?, Vec::new())];
    while let Some((inode, name)) = todo.pop() {
        let kind = T::kind(&inode).ok_or("a mode without a kind")?;
        let mut line = tree.line(&inode, kind)?;
        match kind {
            Kind::Directory => {
                for (child, inode) in tree.children(&inode)? {
                    todo.push((inode, [&name[..], b"/", &child].concat()));
                }
            }
            Kind::Regular => line.content = tree.content(&inode)?,
            Kind::Symlink => line.content = hash(0, &tree.link(&inode)?),
            Kind::CharDevice | Kind::BlockDevice => line.size = 0,
            Kind::Fifo | Kind::Socket => (),
        }
        if !matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            line.device = (0, 0);
        }
        lines.push(line.text(&name));
    }
    Ok(())
}

fn time(time: Time) -> (i64, u32) {
    (time.seconds, time.nanos)
}

/// What system calls add for contents that stand in the inode.
fn inline_sectors(size: u64) -> u64 {
    size.div_ceil(512)
}

impl Tree for f2fs::Volume {
    type Inode = f2fs::Inode;

    fn root(&self) -> Result<f2fs::Inode> {
        Ok(block_on(self.root())?)
    }

    fn kind(inode: &f2fs::Inode) -> Option<Kind> {
        Some(inode.kind())
    }

    fn children(&self, inode: &f2fs::Inode) -> Result<Vec<(Vec<u8>, f2fs::Inode)>> {
        let mut children = Vec::new();
        for entry in block_on(self.read_dir(inode))?.into_iter().filter(|entry| !entry.is_dot()) {
            let found = block_on(self.lookup(inode, &entry.name))?;
            if found.as_ref() != Some(&entry) {
                return Err(format!("a search for {entry:?} finds {found:?}").into());
            }
            let child = block_on(self.inode(entry.ino))?;
            children.push((entry.name, child));
        }
        Ok(children)
    }

    fn link(&self, inode: &f2fs::Inode) -> Result<Vec<u8>> {
        Ok(block_on(self.read_link(inode))?)
    }

    fn content(&self, inode: &f2fs::Inode) -> Result<u64> {
        let mut content = 0;
        if !inode.has_addresses() {
            let bytes = block_on(self.read(inode, 0, inode.size as usize))?;
            return Ok(add_block(content, 0, &bytes));
        }
        let end = inode.size.div_ceil(BLOCK);
        let mut index = 0;
        while index < end {
            let count = (end - index).min(4096) as u32;
            let blocks = (index..).zip(block_on(self.read_blocks(inode, index, count))?);
            // A hole of millions of blocks adds nothing.
            for (index, payload) in blocks.filter(|(_, payload)| *payload != Payload::Zero) {
                let bytes = (inode.size - index * BLOCK).min(BLOCK) as usize;
                content = add_block(content, index, &bytes_of(&payload)[..bytes]);
            }
            index += u64::from(count);
        }
        Ok(content)
    }

    fn line(&self, inode: &f2fs::Inode, kind: Kind) -> Result<Line> {
        let is_inline = !inode.has_addresses() && matches!(kind, Kind::Regular | Kind::Directory);
        let xattrs = block_on(self.xattrs(inode))?;
        Ok(Line {
            kind,
            mode: u32::from(inode.mode & 0o7777),
            uid: inode.uid,
            gid: inode.gid,
            links: inode.links,
            size: inode.size,
            sectors: 8 * (inode.blocks - 1) + if is_inline { inline_sectors(inode.size) } else { 0 },
            device: inode.device(),
            times: [inode.atime, inode.mtime, inode.ctime].map(time),
            content: 0,
            xattrs: xattrs
                .into_iter()
                .filter_map(|xattr| Some((xattr.full_name(&f2fs::layout::xattr::PREFIXES)?, xattr.value)))
                .map(for_programs)
                .collect(),
        })
    }
}

impl Tree for ext4::Volume {
    type Inode = ext4::Inode;

    fn root(&self) -> Result<ext4::Inode> {
        Ok(block_on(self.root())?)
    }

    fn kind(inode: &ext4::Inode) -> Option<Kind> {
        inode.kind()
    }

    fn children(&self, inode: &ext4::Inode) -> Result<Vec<(Vec<u8>, ext4::Inode)>> {
        let mut children = Vec::new();
        let is_indexed = inode.has(ext4::layout::inode::flags::INDEX);
        for entry in block_on(self.read_dir(inode))?.into_iter().filter(|entry| !entry.is_dot()) {
            // Without an index a search is a walk.
            if is_indexed {
                let found = block_on(self.lookup(inode, &entry.name))?;
                if found.as_ref() != Some(&entry) {
                    return Err(format!("a search for {entry:?} finds {found:?}").into());
                }
            }
            let child = block_on(self.inode(entry.ino))?;
            if entry.kind.is_some() && entry.kind != child.kind() {
                return Err(format!("{entry:?} leads to {:?}", child.kind()).into());
            }
            children.push((entry.name, child));
        }
        Ok(children)
    }

    fn link(&self, inode: &ext4::Inode) -> Result<Vec<u8>> {
        Ok(block_on(self.read_link(inode))?)
    }

    fn content(&self, inode: &ext4::Inode) -> Result<u64> {
        let mut content = 0;
        if inode.has(ext4::layout::inode::flags::INLINE_DATA) {
            let bytes = block_on(self.read(inode, 0, inode.size as usize))?;
            return Ok(add_block(content, 0, &bytes));
        }
        let per_block = u64::from(self.geometry().block_bytes);
        let mut at = 0;
        while at < inode.size {
            let run = block_on(self.run(inode, at / per_block))?;
            let run_end = (at / per_block + run.blocks) * per_block;
            if run.addr.is_none() && run_end / BLOCK > at / BLOCK {
                // To the last block of the list's size that the run does not fill.
                at = run_end / BLOCK * BLOCK;
                continue;
            }
            let end = inode.size.min(run_end.next_multiple_of(BLOCK)).min(at + 4096 * BLOCK);
            let bytes = block_on(self.read(inode, at, (end - at) as usize))?;
            for (index, block) in (at / BLOCK..).zip(bytes.chunks(BLOCK as usize)) {
                content = add_block(content, index, block);
            }
            at = end;
        }
        Ok(content)
    }

    fn line(&self, inode: &ext4::Inode, kind: Kind) -> Result<Line> {
        // Those of directories are not added.
        let is_inline = inode.has(ext4::layout::inode::flags::INLINE_DATA) && kind == Kind::Regular;
        let xattrs = block_on(self.xattrs(inode))?;
        Ok(Line {
            kind,
            mode: u32::from(inode.mode & 0o7777),
            uid: inode.uid,
            gid: inode.gid,
            links: u32::from(inode.links),
            size: inode.size,
            sectors: inode.sectors(self.geometry()) + if is_inline { inline_sectors(inode.size) } else { 0 },
            device: inode.device(),
            times: [inode.atime, inode.mtime, inode.ctime].map(time),
            content: 0,
            xattrs: xattrs
                .into_iter()
                .filter_map(|xattr| Some((xattr.full_name(&ext4::layout::xattr::PREFIXES)?, xattr.value)))
                .map(for_programs)
                .collect(),
        })
    }
}
