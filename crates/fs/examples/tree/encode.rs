//! Whether each structure of an ext4 volume that was decoded and is encoded again gives the bytes that others wrote.

use super::Outcome;
use flashweir_fs::ext4::layout::extent::{Entries, Node, Place};
use flashweir_fs::ext4::layout::group::{GroupDesc, block_bitmap_checksum, inode_bitmap_checksum};
use flashweir_fs::ext4::layout::inode::flags;
use flashweir_fs::ext4::layout::journal::{BlockKind, Header};
use flashweir_fs::ext4::layout::xattr::XattrBlock;
use flashweir_fs::ext4::layout::{Addr, Superblock, dirent, htree};
use flashweir_fs::ext4::{Inode, Kind, Volume};
use flashweir_fs::port::{Image, block_on};
use std::error::Error;
use std::path::Path;
use std::rc::Rc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Counts of structures, by name.
struct Encoder {
    volume: Volume,
    counts: std::collections::BTreeMap<&'static str, u64>,
}

pub(super) fn encode(image: &Path) -> Outcome {
    let volume = block_on(Volume::mount(Rc::new(Image::open(image, false)?)))?;
    let mut encoder = Encoder { volume, counts: Default::default() };
    encoder.superblock()?;
    encoder.groups()?;
    encoder.journal()?;
    encoder.inodes()?;
    println!("{:?}", encoder.counts);
    Ok(())
}

impl Encoder {
    fn block(&self, addr: Addr) -> Result<Vec<u8>> {
        Ok(block_on(self.volume.block(addr))?.to_vec())
    }

    fn compare(
        &mut self,
        what: &'static str,
        place: impl std::fmt::Debug,
        ours: &[u8],
        theirs: &[u8],
    ) -> Outcome {
        *self.counts.entry(what).or_default() += 1;
        match ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
            None if ours.len() == theirs.len() => Ok(()),
            at => Err(format!("{what} {place:?} differs at byte {at:?}").into()),
        }
    }

    fn superblock(&mut self) -> Outcome {
        let bytes = self.volume.geometry().block_bytes as usize;
        let raw = self.block(Addr(1024 / bytes as u64))?[1024 % bytes..][..1024].to_vec();
        let encoded = Superblock::decode(raw[..].try_into()?)?.encode();
        self.compare("superblock", 0, &encoded, &raw)
    }

    fn groups(&mut self) -> Outcome {
        let geometry = *self.volume.geometry();
        for group in geometry.groups() {
            let (addr, at) = geometry.desc_place(group);
            let raw = self.block(addr)?[at..at + usize::from(geometry.desc_bytes)].to_vec();
            let desc = GroupDesc::decode(&raw, group, &geometry)?;
            self.compare("group", group, &desc.encode(group, &geometry), &raw)?;
            let (blocks, inodes) =
                (block_on(self.volume.block_bitmap(group))?, block_on(self.volume.inode_bitmap(group))?);
            if geometry.has_checksums() {
                let ours =
                    [block_bitmap_checksum(&geometry, &blocks), inode_bitmap_checksum(&geometry, &inodes)];
                let theirs = [desc.block_bitmap_checksum, desc.inode_bitmap_checksum];
                // Bitmaps that were never written have no checksum yet.
                if ours != theirs && desc.flags & 3 == 0 {
                    return Err(format!("bitmaps of group {group}: {ours:x?}, expected {theirs:x?}").into());
                }
            }
        }
        Ok(())
    }

    fn journal(&mut self) -> Outcome {
        let Some(journal) = self.volume.journal().cloned() else { return Ok(()) };
        let format = journal.superblock.format();
        let end = journal.inode.size / u64::from(format.block_bytes);
        let mut index = 0;
        while index < end {
            let run = block_on(self.volume.run(&journal.inode, index))?;
            let addr = run.addr.ok_or("a hole in the journal")?;
            for at in 0..run.blocks.min(end - index) {
                let raw = self.block(Addr(addr.0 + at))?;
                let Some(Header { kind, sequence }) = Header::decode(&raw) else { continue };
                let (what, encoded) = match kind {
                    BlockKind::Superblock1 | BlockKind::Superblock2 => {
                        let encoded = journal.superblock.encode();
                        self.compare("journal superblock", 0, &encoded, &raw[..1024])?;
                        continue;
                    }
                    BlockKind::Descriptor => {
                        ("descriptor", format.descriptor(sequence, &format.tags(&raw), &[0; 16]))
                    }
                    BlockKind::Revoke => {
                        ("revoke block", format.revoke_block(sequence, &format.revokes(&raw)?))
                    }
                    BlockKind::Commit => ("commit block", format.commit_block(&format.commit(&raw))),
                };
                self.compare(what, index + at, &encoded, &raw)?;
            }
            index += run.blocks;
        }
        Ok(())
    }

    fn inodes(&mut self) -> Outcome {
        let geometry = *self.volume.geometry();
        for group in geometry.groups() {
            let bitmap = block_on(self.volume.inode_bitmap(group))?;
            let table = self.volume.groups()[group.0 as usize].inode_table;
            for index in
                (0..geometry.inodes_per_group).filter(|at| bitmap[*at as usize / 8] >> (at % 8) & 1 == 1)
            {
                let ino = geometry.ino_at(group, index);
                let (block, at) = geometry.table_place(index);
                let raw = self.block(Addr(table.0 + u64::from(block)))?;
                let raw = &raw[at..at + usize::from(geometry.inode_bytes)];
                if raw.iter().all(|&byte| byte == 0) {
                    continue;
                }
                let inode = Inode::decode(raw, ino, &geometry)?;
                self.compare("inode", ino, &inode.encode(&geometry), raw)?;
                if !inode.has(flags::INLINE_DATA) {
                    if inode.has(flags::EXTENTS) {
                        self.extents(&inode)?;
                    }
                    if inode.kind() == Some(Kind::Directory) {
                        self.directory(&inode)?;
                    }
                }
                self.xattrs(&inode)?;
            }
        }
        Ok(())
    }

    fn extents(&mut self, inode: &Inode) -> Outcome {
        let geometry = *self.volume.geometry();
        let seed = inode.seed(&geometry);
        let root = Node::decode_root(&inode.block, &geometry)?;
        let (mut room, mut theirs) = (inode.block, inode.block);
        root.encode_root(&mut room);
        clear_unused(&root, &mut theirs);
        self.compare("extent root", inode.ino, &room, &theirs)?;
        let mut open: Vec<(Place, Node)> = vec![(root.root_place(), root)];
        while let Some((place, node)) = open.pop() {
            let Entries::Index(children) = &node.entries else { continue };
            for (at, child) in children.iter().enumerate() {
                let place = node.child_place(at, &place);
                let mut raw = self.block(child.child)?;
                let node = Node::decode(&raw, &place, seed, &geometry)?;
                let mut ours = raw.clone();
                // The checksum is over what is unused too.
                clear_unused(&node, &mut raw);
                let end = if raw == ours { raw.len() } else { 12 + 12 * node.len() };
                node.encode(&mut ours, seed, &geometry);
                self.compare("extent node", child.child, &ours[..end], &raw[..end])?;
                open.push((place, node));
            }
        }
        Ok(())
    }

    fn directory(&mut self, inode: &Inode) -> Outcome {
        let geometry = *self.volume.geometry();
        let seed = inode.seed(&geometry);
        let is_indexed = inode.has(flags::INDEX);
        for index in 0..inode.size / u64::from(geometry.block_bytes) {
            let run = block_on(self.volume.run(inode, index))?;
            let raw = self.block(run.addr.ok_or("a hole in a directory")?)?;
            let place = (inode.ino, index);
            let mut ours = raw.clone();
            // What is behind the last entry of an index is left over from others.
            let compare_index = |this: &mut Self, what, ours: &[u8], end: usize, tail: usize| {
                this.compare(what, place, &ours[..end], &raw[..end])?;
                // So may be the first half of the tail, over which the checksum goes.
                match geometry.has_checksums() && raw[tail..tail + 4] == [0; 4] {
                    true => this.compare(what, place, &ours[tail..], &raw[tail..]),
                    false => Ok(()),
                }
            };
            if is_indexed && index == 0 {
                let root = htree::Root::decode(&raw, seed, &geometry)?;
                root.encode(&mut ours, seed, &geometry);
                let tail = 0x20 + 8 * htree::root_limit(&geometry);
                compare_index(self, "index root", &ours, 0x20 + 8 * root.entries.len(), tail)?;
            } else if let (true, Ok(entries)) = (is_indexed, htree::decode_node(&raw, seed, &geometry)) {
                htree::encode_node(&entries, &mut ours, seed, &geometry);
                let tail = 8 + 8 * htree::node_limit(&geometry);
                compare_index(self, "index node", &ours, 8 + 8 * entries.len(), tail)?;
            } else {
                dirent::put_tail(&mut ours, seed, &geometry);
                let end = dirent::room_bytes(&geometry);
                for record in dirent::records(&raw[..end], &geometry) {
                    let record = record?;
                    dirent::put_record(&mut ours, record.at, record.bytes, record.entry.as_ref(), &geometry);
                    // What is behind a name is left over from others.
                    let used = record.entry.as_ref().map_or(6, |entry| 8 + entry.name.len());
                    let range = record.at..record.at + used;
                    self.compare("entry", place, &ours[range.clone()], &raw[range])?;
                }
                self.compare("directory tail", place, &ours[end..], &raw[end..])?;
            }
        }
        Ok(())
    }

    fn xattrs(&mut self, inode: &Inode) -> Outcome {
        let addr = inode.xattr_block;
        if addr == Addr::NULL {
            return Ok(());
        }
        let geometry = *self.volume.geometry();
        let raw = self.block(addr)?;
        let block = XattrBlock::decode(&raw, addr, &geometry)?;
        let ours = block.encode(addr, &geometry).ok_or("extended attributes do not fit again")?;
        // Values may stand in another order. The hash is of all entries in their order.
        self.compare("extended attributes", addr, &ours[..16], &raw[..16])?;
        match XattrBlock::decode(&ours, addr, &geometry)? == block {
            true => Ok(()),
            false => Err(format!("extended attributes at {addr} are not the same").into()),
        }
    }
}

/// The last two bytes of a child's entry are left over from others.
fn clear_unused(node: &Node, room: &mut [u8]) {
    if let Entries::Index(children) = &node.entries {
        for at in 1..=children.len() {
            room[12 * at + 10..12 * at + 12].fill(0);
        }
    }
}
