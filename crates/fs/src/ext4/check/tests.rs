//! Tests with a volume that has some of everything, whole and broken.

use super::super::layout::dirent::{self, Entry};
use super::super::layout::extent::{Entries, Extent, Index, Node, Place};
use super::super::layout::group::GroupDesc;
use super::super::layout::htree;
use super::super::layout::inode::{Inode, flags};
use super::super::layout::superblock::{BYTES, Superblock};
use super::super::layout::xattr::XattrBlock;
use super::super::layout::{Addr, Geometry, Group, Ino};
use super::super::{Before, Options, mkfs};
use super::*;
use crate::format::{array_at, put, set_slot_bit, u16_at};
use crate::port::{Block, Image, Write, block_on, bytes_of};
use flashweir_core::Payload;

/// First block behind those of a new volume.
const ROOM_AT: u64 = 3000;
const FILE: Ino = Ino(12);
const SHARED: [Ino; 2] = [Ino(13), Ino(14)];
const SLOW_LINK: Ino = Ino(15);
const DIRECTORY: Ino = Ino(18);
const CHILD: Ino = Ino(19);
const OLD_FILE: Ino = Ino(20);
const LAST: Ino = Ino(20);
const NAMES: u32 = 60;

/// A volume in memory, and functions that change it.
struct Bench {
    image: Rc<Image>,
    superblock: Superblock,
    geometry: Geometry,
    next: u64,
}

impl Bench {
    fn new(features: &[&str]) -> Self {
        let mut options = Options {
            before: Before::Zeros,
            uuid: *b"flashweir tests!",
            hash_seed: [1, 2, 3, 4],
            ..Options::new(4096)
        };
        features.iter().for_each(|name| options.set_feature(name).unwrap());
        let image = Rc::new(Image::in_memory(options.blocks));
        let superblock = block_on(mkfs(&*image, &options)).unwrap();
        let geometry = superblock.geometry();
        let mut bench = Self { image, superblock, geometry, next: ROOM_AT };
        bench.fill();
        bench.settle();
        bench
    }

    fn block(&self, addr: Addr) -> Vec<u8> {
        let answer = block_on(self.image.read(Block(addr.0), 1).completed()).unwrap();
        bytes_of(&answer[0]).to_vec()
    }

    fn put_block(&self, addr: Addr, content: &[u8]) {
        let payload = Payload::Bytes(content.into());
        block_on(self.image.write(Write::new(Block(addr.0), vec![payload])).completed()).unwrap();
    }

    fn desc(&self) -> GroupDesc {
        GroupDesc::parse(&self.block(Addr(1))[..usize::from(self.geometry.desc_bytes)])
    }

    fn change_desc(&self, change: impl FnOnce(&mut GroupDesc)) {
        let mut desc = self.desc();
        change(&mut desc);
        let mut block = self.block(Addr(1));
        put(&mut block, 0, &desc.encode(Group(0), &self.geometry));
        self.put_block(Addr(1), &block);
    }

    fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut block = self.block(Addr(0));
        let mut superblock = Superblock::decode(&array_at(&block, BYTES)).unwrap();
        change(&mut superblock);
        put(&mut block, BYTES, &superblock.encode());
        self.put_block(Addr(0), &block);
    }

    fn place(&self, ino: Ino) -> (Addr, usize) {
        let (_, index) = self.geometry.place_of_inode(ino).unwrap();
        let (block, at) = self.geometry.table_place(index);
        (Addr(self.desc().inode_table.0 + u64::from(block)), at)
    }

    fn inode(&self, ino: Ino) -> Inode {
        let (addr, at) = self.place(ino);
        Inode::parse(&self.block(addr)[at..], ino, &self.geometry).unwrap()
    }

    fn put_inode(&self, inode: &Inode) {
        let (addr, at) = self.place(inode.ino);
        let mut block = self.block(addr);
        put(&mut block, at, &inode.encode(&self.geometry));
        self.put_block(addr, &block);
    }

    fn change_inode(&self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        self.put_inode(&inode);
    }

    fn new_block(&mut self) -> Addr {
        self.next += 1;
        Addr(self.next - 1)
    }

    fn new_inode(&self, ino: Ino, kind: Kind, links: u16, blocks: u64) -> Inode {
        let mut inode = Inode::new(ino, kind.mode_bits() | 0o644, &self.geometry);
        inode.links = links;
        inode.flags = flags::EXTENTS;
        inode.set_sectors(8 * blocks, &self.geometry);
        Node::empty_root().encode_root(&mut inode.block);
        inode
    }

    fn put_leaf(&self, addr: Addr, mut block: Vec<u8>, ino: Ino) {
        dirent::put_tail(&mut block, self.inode(ino).seed(&self.geometry), &self.geometry);
        self.put_block(addr, &block);
    }

    fn leaf(entries: &[Entry], first: Option<(Ino, Ino)>, geometry: &Geometry) -> Vec<u8> {
        let mut block = match first {
            Some((ino, parent)) => dirent::first_block(ino, parent, geometry),
            None => dirent::empty_block(geometry),
        };
        let room = dirent::room_bytes(geometry);
        for entry in entries {
            dirent::insert(&mut block[..room], entry, geometry).unwrap().unwrap();
        }
        block
    }

    /// Gives an inode one extent of `blocks` blocks; returns its address.
    fn run(&mut self, inode: &mut Inode, blocks: u16) -> Addr {
        let addr = Addr(self.next);
        self.next += u64::from(blocks);
        let extents = vec![Extent { first: 0, blocks, addr, is_unwritten: false }];
        Node { entries: Entries::Leaf(extents), ..Node::empty_root() }.encode_root(&mut inode.block);
        inode.size = 4096 * u64::from(blocks);
        addr
    }

    fn fill(&mut self) {
        let geometry = self.geometry;
        // A file of ten extents below a node.
        let node_at = self.new_block();
        let mut file = self.new_inode(FILE, Kind::Regular, 1 + NAMES as u16, 11);
        let extents: Vec<Extent> = (0..10)
            .map(|at| Extent { first: 2 * at, blocks: 1, addr: self.new_block(), is_unwritten: at == 9 })
            .collect();
        let child = Node { max: 340, entries: Entries::Leaf(extents), ..Node::empty_root() };
        let mut block = vec![0; 4096];
        child.encode(&mut block, file.seed(&geometry), &geometry);
        self.put_block(node_at, &block);
        let entries = Entries::Index(vec![Index { first: 0, child: node_at }]);
        Node { depth: 1, entries, ..Node::empty_root() }.encode_root(&mut file.block);
        file.size = 70_000;
        self.put_inode(&file);
        // Two files that share a block of attributes.
        let shared = self.new_block();
        let xattr = Xattr { index: 1, name: b"name".to_vec(), value: b"value".to_vec() };
        let block = XattrBlock { references: 2, xattrs: vec![xattr] }.encode(shared, &geometry).unwrap();
        self.put_block(shared, &block);
        for ino in SHARED {
            let mut inode = self.new_inode(ino, Kind::Regular, 1, 1);
            inode.xattr_block = shared;
            self.put_inode(&inode);
        }
        let mut link = self.new_inode(SLOW_LINK, Kind::Symlink, 1, 1);
        let addr = self.run(&mut link, 1);
        link.size = 100;
        self.put_inode(&link);
        self.put_block(addr, &[[b'x'; 100].to_vec(), vec![0; 3996]].concat());
        let mut link = self.new_inode(Ino(16), Kind::Symlink, 1, 0);
        (link.flags, link.size) = (0, 3);
        link.block = [0; 60];
        link.block[..3].copy_from_slice(b"abc");
        self.put_inode(&link);
        let mut device = self.new_inode(Ino(17), Kind::CharDevice, 1, 0);
        (device.flags, device.block) = (0, [0; 60]);
        device.set_device(1, 3);
        self.put_inode(&device);
        self.fill_directories();
        // A file with addresses, one of them in an indirect block.
        let mut old = self.new_inode(OLD_FILE, Kind::Regular, 1, 3);
        (old.flags, old.block) = (0, [0; 60]);
        let [data, table, behind] = [(); 3].map(|()| self.new_block());
        old.set_word(1, data.0 as u32);
        old.set_word(12, table.0 as u32);
        let mut block = vec![0; 4096];
        put(&mut block, 8, &(behind.0 as u32).to_le_bytes());
        self.put_block(table, &block);
        old.size = 15 * 4096;
        self.put_inode(&old);
    }

    /// Makes a directory with an index and one in it; everything gets a name in the root.
    fn fill_directories(&mut self) {
        let geometry = self.geometry;
        let mut child = self.new_inode(CHILD, Kind::Directory, 2, 1);
        let addr = self.run(&mut child, 1);
        self.put_inode(&child);
        self.put_leaf(addr, Self::leaf(&[], Some((CHILD, DIRECTORY)), &geometry), CHILD);

        let mut entries: Vec<Entry> =
            (0..NAMES).map(|at| Entry::new(format!("n{at}").as_bytes(), FILE, Kind::Regular)).collect();
        entries.push(Entry::new(b"child", CHILD, Kind::Directory));
        let seed = self.superblock.hash_seed;
        let hash = |entry: &Entry| htree::Hash::HalfMd4.of_name(&entry.name, &seed, false).0;
        entries.sort_by_key(hash);
        let (low, high) = entries.split_at(30);
        let mut directory = self.new_inode(DIRECTORY, Kind::Directory, 3, 4);
        let addr = self.run(&mut directory, 4);
        directory.flags |= flags::INDEX;
        self.put_inode(&directory);
        let seed = directory.seed(&geometry);
        let mut block = vec![0; 4096];
        let tops = vec![htree::Entry { hash: 0, block: 1 }];
        let root = htree::Root {
            ino: DIRECTORY,
            parent: Ino::ROOT,
            hash: htree::Hash::HalfMd4,
            levels: 1,
            entries: tops,
        };
        root.encode(&mut block, seed, &geometry);
        self.put_block(addr, &block);
        let leaves = [htree::Entry { hash: 0, block: 2 }, htree::Entry { hash: hash(&high[0]), block: 3 }];
        htree::encode_node(&leaves, &mut block, seed, &geometry);
        self.put_block(Addr(addr.0 + 1), &block);
        self.put_leaf(Addr(addr.0 + 2), Self::leaf(low, None, &geometry), DIRECTORY);
        self.put_leaf(Addr(addr.0 + 3), Self::leaf(high, None, &geometry), DIRECTORY);

        let entry = |name: &str, ino: u32, kind| Entry::new(name.as_bytes(), Ino(ino), kind);
        self.change_inode(Ino::ROOT, |root| root.links = 4);
        let entries = [
            entry("lost+found", 11, Kind::Directory),
            entry("file", FILE.0, Kind::Regular),
            entry("a", SHARED[0].0, Kind::Regular),
            entry("b", SHARED[1].0, Kind::Regular),
            entry("slow", SLOW_LINK.0, Kind::Symlink),
            entry("fast", 16, Kind::Symlink),
            entry("null", 17, Kind::CharDevice),
            entry("directory", DIRECTORY.0, Kind::Directory),
            entry("old", OLD_FILE.0, Kind::Regular),
        ];
        let block = Self::leaf(&entries, Some((Ino::ROOT, Ino::ROOT)), &geometry);
        self.put_leaf(self.contents(Ino::ROOT), block, Ino::ROOT);
    }

    /// Writes the bitmaps and counts that fit the contents.
    fn settle(&mut self) {
        let geometry = self.geometry;
        let desc = self.desc();
        let mut blocks = self.block(desc.block_bitmap);
        let mut inodes = self.block(desc.inode_bitmap);
        (ROOM_AT..self.next).for_each(|bit| set_slot_bit(&mut blocks, bit as usize, true));
        (0..LAST.0).for_each(|bit| set_slot_bit(&mut inodes, bit as usize, true));
        self.put_block(desc.block_bitmap, &blocks);
        self.put_block(desc.inode_bitmap, &inodes);
        let (taken, added) = ((self.next - ROOM_AT) as u32, LAST.0 - Ino::FIRST.0);
        self.change_desc(|desc| {
            desc.free_blocks -= taken;
            desc.free_inodes -= added;
            desc.directories += 2;
            if geometry.features.has_group_checksums() {
                desc.unused_inodes -= added;
            }
            desc.set_bitmap_checksums(&geometry, &blocks, &inodes);
        });
        self.change_superblock(|superblock| {
            superblock.free_blocks -= u64::from(taken);
            superblock.free_inodes -= added;
        });
    }

    /// Address of the first block of a file with one extent.
    fn contents(&self, ino: Ino) -> Addr {
        let root = Node::decode_root(&self.inode(ino).block, &self.geometry).unwrap();
        match root.entries {
            Entries::Leaf(extents) => extents[0].addr,
            Entries::Index(children) => children[0].child,
        }
    }

    fn change_root(&self, change: impl FnOnce(&mut [u8])) {
        let addr = self.contents(Ino::ROOT);
        let mut block = self.block(addr);
        let room = dirent::room_bytes(&self.geometry);
        change(&mut block[..room]);
        self.put_leaf(addr, block, Ino::ROOT);
    }

    /// Offset of a name in the root directory.
    fn record(&self, room: &[u8], name: &str) -> usize {
        dirent::find(room, name.as_bytes(), &self.geometry).unwrap().unwrap().at
    }

    fn change_block(&self, addr: Addr, change: impl FnOnce(&mut [u8])) {
        let mut block = self.block(addr);
        change(&mut block);
        self.put_block(addr, &block);
    }

    fn problems(&self) -> Vec<Problem> {
        block_on(check(Rc::clone(&self.image) as _)).unwrap().problems
    }
}

const SETS: [&[&str]; 4] =
    [&[], &["^metadata_csum"], &["uninit_bg", "^64bit", "^flex_bg"], &["^has_journal", "^64bit"]];

#[test]
fn a_volume_with_some_of_everything_is_good() {
    for features in SETS {
        let bench = Bench::new(features);
        let report = block_on(check(Rc::clone(&bench.image) as _)).unwrap();
        assert_eq!(report.problems, [], "{features:?}");
        assert!(report.is_clean && report.is_good());
        assert_eq!((report.directories, report.files, report.others, report.orphans), (4, 4, 3, 0));
        assert_eq!(report.free_blocks, bench.superblock.free_blocks - (bench.next - ROOM_AT));
        let volume = block_on(Volume::mount(Rc::clone(&bench.image) as _)).unwrap();
        let directory = block_on(volume.inode(DIRECTORY)).unwrap();
        assert_eq!(block_on(volume.lookup(&directory, b"n7")).unwrap().unwrap().ino, FILE);
    }
}

#[test]
fn planted_damage_of_each_kind_is_found() {
    type Damage = fn(&Bench);
    let damages: [(&str, &str, Damage); 57] = [
        ("group", "the checksum of group 0", |it| it.change_block(Addr(1), |block| block[0x3c] ^= 1)),
        ("group-count", "free blocks", |it| it.change_desc(|desc| desc.free_blocks += 1)),
        ("group-count", "free inodes", |it| it.change_desc(|desc| desc.free_inodes -= 1)),
        ("group-count", "2 directories, found 4", |it| it.change_desc(|desc| desc.directories = 2)),
        ("superblock-count", "free blocks", |it| it.change_superblock(|sb| sb.free_blocks += 1)),
        ("superblock-count", "free inodes", |it| it.change_superblock(|sb| sb.free_inodes += 1)),
        ("journal", "copy of the journal's inode", |it| {
            it.change_superblock(|sb| sb.journal_blocks[3] += 1);
        }),
        ("journal", "nothing to replay", |it| {
            it.change_block(it.contents(Ino::JOURNAL), |block| block[0x1f] = 7);
        }),
        ("journal", "is not its superblock", |it| {
            it.change_block(it.contents(Ino::JOURNAL), |block| block[0] = 0);
        }),
        ("journal", "is a hole", |it| it.change_inode(Ino::JOURNAL, |inode| inode.size += 4096)),
        ("block-bitmap", "the checksum of the block bitmap", |it| {
            it.change_block(it.desc().block_bitmap, |block| block[500] ^= 1);
        }),
        ("block-missing", "calls block 3001 free", |it| {
            it.change_block(it.desc().block_bitmap, |block| set_slot_bit(block, 3001, false));
        }),
        ("block-unused", "calls block 4000 taken", |it| {
            it.change_block(it.desc().block_bitmap, |block| set_slot_bit(block, 4000, true));
        }),
        ("block-bitmap", "bit 4100 of group 0 is free", |it| {
            it.change_block(it.desc().block_bitmap, |block| set_slot_bit(block, 4100, false));
        }),
        ("inode-bitmap", "the checksum of the inode bitmap", |it| {
            it.change_block(it.desc().inode_bitmap, |block| block[7] ^= 1);
        }),
        ("inode-missing", "calls inode 12 free", |it| {
            it.change_block(it.desc().inode_bitmap, |block| set_slot_bit(block, 11, false));
        }),
        ("inode-unused", "calls inode 31 taken", |it| {
            it.change_block(it.desc().inode_bitmap, |block| set_slot_bit(block, 30, true));
        }),
        ("inode", "the checksum of inode 12", |it| {
            let (addr, at) = it.place(FILE);
            it.change_block(addr, |block| block[at + 2] ^= 1);
        }),
        ("inode", "no time of its deletion", |it| it.change_inode(Ino(17), |inode| inode.links = 0)),
        ("inode", "has the mode 0", |it| it.change_inode(Ino(17), |inode| inode.mode = 0)),
        ("inode", "root directory", |it| it.change_inode(Ino::ROOT, |inode| inode.links = 0)),
        ("inode-blocks", "counts 0 sectors, found 88", |it| it.change_inode(FILE, |inode| inode.blocks = 0)),
        ("inode-size", "inode 12 has 9000 bytes", |it| it.change_inode(FILE, |inode| inode.size = 9000)),
        ("inode-size", "inode 18 has 4096 bytes", |it| it.change_inode(DIRECTORY, |inode| inode.size = 4096)),
        ("link", "link 15 has 99 bytes", |it| it.change_inode(SLOW_LINK, |inode| inode.size = 99)),
        ("extent", "an extent node begins with", |it| it.change_inode(FILE, |inode| inode.block[0] = 0)),
        ("extent", "block 3000", |it| it.change_block(it.contents(FILE), |block| block[2] = 200)),
        ("extent", "begins with block 1 of the file, its index says 0", |it| {
            let (seed, at) = (it.inode(FILE).seed(&it.geometry), it.contents(FILE));
            let (mut block, place) = (it.block(at), Place { depth: 0, range: 0..u64::from(u32::MAX) });
            let mut leaf = Node::decode(&block, &place, seed, &it.geometry).unwrap();
            let Entries::Leaf(extents) = &mut leaf.entries else { panic!("a leaf") };
            extents[0].first = 1;
            leaf.encode(&mut block, seed, &it.geometry);
            it.put_block(at, &block);
        }),
        ("address", "inode 20 has its block 1", |it| {
            it.change_inode(OLD_FILE, |inode| inode.set_word(1, 70_000));
        }),
        ("block-shared", "beside inode 20", |it| it.change_inode(OLD_FILE, |inode| inode.set_word(1, 3000))),
        ("block-shared", "beside inode 20", |it| it.change_inode(OLD_FILE, |inode| inode.set_word(1, 2))),
        ("address", "has attributes at 99999", |it| {
            it.change_inode(SHARED[0], |inode| inode.xattr_block = Addr(99_999));
        }),
        ("xattr", "has no extended attributes", |it| {
            it.change_block(it.inode(SHARED[0]).xattr_block, |block| block[0] = 1);
        }),
        ("xattr", "inode 13: system.posix_acl_access is no access control list", |it| {
            let list = Xattr { index: 2, name: Vec::new(), value: vec![1, 0, 0, 0, 1, 0] };
            let (addr, geometry) = (it.inode(SHARED[0]).xattr_block, it.geometry);
            let block = XattrBlock { references: 2, xattrs: vec![list] };
            it.put_block(addr, &block.encode(addr, &geometry).unwrap());
        }),
        ("xattr-references", "counts 2 references, found 1", |it| {
            it.change_inode(SHARED[1], |inode| {
                inode.xattr_block = Addr::NULL;
                inode.blocks = 0;
            });
        }),
        ("entry", "which is not in use", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                put(room, at, &50_u32.to_le_bytes());
            });
        }),
        ("entry", "leads to inode 9", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                put(room, at, &9_u32.to_le_bytes());
            });
        }),
        ("entry-type", "inode 20 is Some(Regular)", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                room[at + 7] = 2;
            });
        }),
        ("entry-twice", "has the name \"b\" twice", |it| {
            it.change_root(|room| {
                let at = it.record(room, "a");
                room[at + 8] = b'b';
            });
        }),
        ("directory-dots", "entry 1 of directory 2", |it| it.change_root(|room| room[21] = b'x')),
        ("directory-dots", "`..` of directory 19 is 2", |it| {
            let addr = it.contents(CHILD);
            let mut block = it.block(addr);
            put(&mut block, 12, &2_u32.to_le_bytes());
            it.put_leaf(addr, block, CHILD);
        }),
        ("directory-names", "directory 19", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                put(room, at, &CHILD.0.to_le_bytes());
            });
        }),
        ("unreachable", "directory 18 has no way", |it| {
            it.change_root(|room| {
                let at = it.record(room, "directory");
                dirent::remove(room, at, &it.geometry).unwrap();
            });
        }),
        ("unreachable", "inode 20 has no name", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                dirent::remove(room, at, &it.geometry).unwrap();
            });
        }),
        ("links", "inode 18 counts 7 links, found 3", |it| {
            it.change_inode(DIRECTORY, |inode| inode.links = 7);
        }),
        ("links", "inode 19 counts 1 links, found 2", |it| it.change_inode(CHILD, |inode| inode.links = 1)),
        ("inode-size", "expected at most", |it| it.change_inode(FILE, |inode| inode.size = u64::MAX << 8)),
        ("inode-size", "expected at most", |it| it.change_inode(OLD_FILE, |inode| inode.size = 1 << 43)),
        ("inode", "inode 12 is in use", |it| it.change_inode(FILE, |inode| inode.dtime = 1_600_000_000)),
        ("inode", "inode 9 has the mode", |it| it.change_inode(Ino::EXCLUDE, |inode| inode.mode = 0o100_644)),
        ("inode", "has the flag casefold", |it| {
            it.change_inode(FILE, |inode| inode.flags |= flags::CASEFOLD)
        }),
        ("inode", "has the fragment 7", |it| {
            it.change_inode(FILE, |inode| put(&mut inode.raw, 0x70, &7_u32.to_le_bytes()));
        }),
        ("entry-type", "\"..\" of directory 2 says", |it| it.change_root(|room| room[19] = 1)),
        ("entry-type", "says None", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                room[at + 7] = 0x11;
            });
        }),
        ("superblock", "4000 of 4096 blocks are reserved", |it| {
            it.change_superblock(|sb| sb.reserved_blocks = 4000);
        }),
        ("unreachable", "inode 20 has no name", |it| {
            it.change_root(|room| {
                let at = it.record(room, "old");
                room[at..at + 4].fill(0);
            });
            it.change_superblock(|sb| sb.last_orphan = OLD_FILE);
        }),
        ("orphan", "orphan 20 has 1 names", |it| {
            it.change_inode(OLD_FILE, |inode| inode.links = 0);
            it.change_superblock(|sb| sb.last_orphan = OLD_FILE);
        }),
    ];
    for (name, what, damage) in damages {
        let bench = Bench::new(&[]);
        damage(&bench);
        let problems = bench.problems();
        assert!(
            problems.iter().any(|problem| problem.name == name && problem.what.contains(what)),
            "{name}: {what}: {problems:#?}"
        );
    }
}

/// An orphan that cannot be freed kept the whole volume from being mounted for writing.
#[test]
fn regression_a_broken_orphan_does_not_refuse_the_mount() {
    let bench = Bench::new(&["^metadata_csum"]);
    bench.change_inode(FILE, |inode| inode.links = 0);
    bench.change_superblock(|superblock| superblock.last_orphan = FILE);
    bench.change_block(bench.desc().block_bitmap, |block| set_slot_bit(block, 3001, false));
    block_on(super::super::Ext4::mount(Rc::clone(&bench.image) as _)).unwrap();
}

#[test]
fn broken_indexes_are_found() {
    let damage = |change: &dyn Fn(&Bench, Addr, u32)| {
        let bench = Bench::new(&[]);
        let seed = bench.inode(DIRECTORY).seed(&bench.geometry);
        change(&bench, bench.contents(DIRECTORY), seed);
        let problems = bench.problems();
        problems.into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>().join("\n")
    };
    let node = |leaves: &[(u32, u32)]| {
        damage(&|bench, addr, seed| {
            let entries: Vec<htree::Entry> =
                leaves.iter().map(|&(hash, block)| htree::Entry { hash, block }).collect();
            bench.change_block(Addr(addr.0 + 1), |block| {
                htree::encode_node(&entries, block, seed, &bench.geometry);
            });
        })
    };
    let said = node(&[(0, 2)]);
    assert!(said.contains("directory-index: block 3 of directory 18 is not in its index"), "{said}");
    let said = node(&[(0, 2), (0xf000_0000, 3)]);
    assert!(said.contains("entry-hash: \"") && said.contains("expected 0xf0000000 to 0xffffffff"), "{said}");
    let said = node(&[(0, 2), (0x8000_0000, 2)]);
    assert!(said.contains("directory-index: block 2 in the index of directory 18 is there twice"), "{said}");
    let said = node(&[(0, 2), (0x8000_0000, 9)]);
    assert!(said.contains("directory-index: block 9 in the index of directory 18 does not exist"), "{said}");
    let said = damage(&|bench, addr, _| bench.change_block(Addr(addr.0 + 1), |block| block[9] ^= 1));
    assert!(said.contains("directory-index: directory 18, block 1: a directory's index has"), "{said}");
    let said = damage(&|bench, addr, _| bench.change_block(addr, |block| block[0x1d] ^= 1));
    assert!(said.contains("directory-index: directory 18: the first block of a directory"), "{said}");
    let said = damage(&|bench, addr, _| bench.change_block(Addr(addr.0 + 3), |block| block[4095] ^= 1));
    assert!(said.contains("directory: block 3 of directory 18: the checksum"), "{said}");
}

#[test]
fn copies_are_held_against_the_first() {
    let make = || {
        let options = Options { before: Before::Zeros, ..Options::new(66_000) };
        let image = Rc::new(Image::in_memory(options.blocks));
        block_on(mkfs(&*image, &options)).unwrap();
        image
    };
    let said = |block: u64, at: usize| {
        let image = make();
        let answer = block_on(image.read(Block(block), 1).completed()).unwrap();
        let mut content = bytes_of(&answer[0]).to_vec();
        content[at] ^= 1;
        let write = Write::new(Block(block), vec![Payload::Bytes(content.into())]);
        block_on(image.write(write).completed()).unwrap();
        let problems = block_on(check(image)).unwrap().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].to_string()
    };
    assert_eq!(block_on(check(make())).unwrap().problems, []);
    assert!(said(32768, 0x78).starts_with("superblock-copy: the copy in group 1: the superblock's checksum"));
    assert!(said(32769, 70).starts_with("group-copy: the copy of descriptors in group 1: the checksum"));
}

#[test]
fn a_table_of_two_groups_is_read_once() {
    let options = Options { before: Before::Zeros, ..Options::new(66_000) };
    let image = Rc::new(Image::in_memory(options.blocks));
    let geometry = block_on(mkfs(&*image, &options)).unwrap().geometry();
    let answer = block_on(image.read(Block(1), 1).completed()).unwrap();
    let mut content = bytes_of(&answer[0]).to_vec();
    let first = GroupDesc::parse(&content[..64]);
    let second =
        GroupDesc { inode_table: first.inode_table, flags: 0, ..GroupDesc::parse(&content[64..128]) };
    put(&mut content, 64, &GroupDesc { unused_inodes: 0, ..second }.encode(Group(1), &geometry));
    block_on(image.write(Write::new(Block(1), vec![Payload::Bytes(content.into())])).completed()).unwrap();
    let report = block_on(check(image)).unwrap();
    let what = "has another owner beside the inode table of group 1";
    assert!(report.problems.iter().any(|problem| problem.what.ends_with(what)), "{:?}", report.problems);
    assert_eq!(report.directories, 2);
}

#[test]
fn an_orphan_is_good_and_a_loop_of_them_is_not() {
    let bench = Bench::new(&[]);
    bench.change_superblock(|superblock| superblock.last_orphan = OLD_FILE);
    let report = block_on(check(Rc::clone(&bench.image) as _)).unwrap();
    assert_eq!((report.problems, report.orphans, report.is_clean), (vec![], 1, false));
    bench.change_inode(OLD_FILE, |inode| inode.dtime = OLD_FILE.0);
    let problems = bench.problems();
    assert!(problems[0].to_string().starts_with("orphan: inode 20 is twice"), "{problems:?}");
}

/// A sequence of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn broken_volumes_never_panic_nor_loop() {
    for (seed, features) in (1..).zip(SETS) {
        let bench = Bench::new(features);
        let table = bench.desc().inode_table;
        let known = [Addr(0), Addr(1), bench.desc().block_bitmap, bench.desc().inode_bitmap, table];
        let mut blocks: Vec<Addr> = known.to_vec();
        blocks.extend([Addr(table.0 + 1), bench.contents(Ino::ROOT)]);
        if !features.contains(&"^has_journal") {
            blocks.push(bench.contents(Ino::JOURNAL));
        }
        blocks.extend((ROOM_AT..bench.next).map(Addr));
        blocks.retain(|addr| bench.block(*addr).iter().any(|&byte| byte != 0));
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
        for _ in 0..if cfg!(debug_assertions) { 1500 } else { 20_000 } {
            let mut before = Vec::new();
            for _ in 0..=random.below(3) {
                let addr = blocks[random.below(blocks.len() as u64) as usize];
                before.push((addr, bench.block(addr)));
                let mut block = bench.block(addr);
                // Mostly bytes of 16-bit fields that are not zero, because most zeros are not in use.
                let mut at = random.below(4096) as usize;
                while block[at] == 0 && u16_at(&block, at & !1) == 0 && random.below(50) > 0 {
                    at = random.below(4096) as usize;
                }
                block[at] = match random.below(4) {
                    0 => block[at] ^ 1 << random.below(8),
                    1 => 0xff,
                    2 => 0,
                    _ => random.below(256) as u8,
                };
                bench.put_block(addr, &block);
            }
            let _ = block_on(check(Rc::clone(&bench.image) as _));
            before.iter().rev().for_each(|(addr, block)| bench.put_block(*addr, block));
        }
        assert_eq!(bench.problems(), []);
    }
}
