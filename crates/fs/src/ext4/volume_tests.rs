//! Tests with a small volume, built by hand, that has everything which can be read; whole and broken.

use super::layout::dirent::{self, Entry};
use super::layout::extent::{Entries, Extent, Index, Node};
use super::layout::group::{GroupDesc, empty_inode_bitmap};
use super::layout::htree::{self, Hash};
use super::layout::inode::flags;
use super::layout::journal::{Commit, JournalSuperblock, Tag, incompat};
use super::layout::xattr::{self, XattrBlock};
use super::*;
use crate::port::{Block, BlockPort, Image, PortError, Request, Ticket, Write, block_on, bytes_of};
use crate::xattrs::Xattr;
use flashweir_core::Payload;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of a block.
const BYTES: usize = 1024;
const BLOCKS: u64 = 1024;
const BITMAPS: u64 = 3;
const TABLE: u64 = 5;
const ROOT_BLOCK: u64 = 21;
const INDEXED: Ino = Ino(12);
const EXTENTS: Ino = Ino(13);
const ADDRESSES: Ino = Ino(14);
const INLINE: Ino = Ino(15);
const INLINE_DIR: Ino = Ino(16);
const FAST_LINK: Ino = Ino(17);
const SLOW_LINK: Ino = Ino(18);
/// The blocks of the indexed directory: root, node, leaves.
const INDEX: [u64; 5] = [30, 31, 32, 33, 34];
const EXTENT_NODE: u64 = 40;
/// The blocks of addresses: indirect, double indirect and its only child.
const ADDRESS_BLOCKS: [u64; 3] = [50, 51, 52];
const XATTRS: u64 = 60;
const JOURNAL: u64 = 100;
const JOURNAL_BLOCKS: u32 = 32;
/// Address of contents.
const CONTENT: u64 = 200;

struct Made {
    superblock: Superblock,
    geometry: Geometry,
    bytes: Vec<u8>,
}

fn user(name: &str, bytes: usize) -> Xattr {
    Xattr { index: 1, name: name.into(), value: vec![b'v'; bytes] }
}

fn extent(first: u32, blocks: u16, addr: u64) -> Extent {
    Extent { first, blocks, addr: Addr(addr), is_unwritten: false }
}

impl Made {
    fn new(features: &[Feature]) -> Self {
        let all = [
            Feature::HAS_JOURNAL,
            Feature::RECOVER,
            Feature::FILETYPE,
            Feature::EXTENT,
            Feature::INLINE_DATA,
            Feature::DIR_INDEX,
            Feature::WIDE,
        ];
        let superblock = Superblock {
            inodes_count: 64,
            blocks_count: BLOCKS,
            first_data_block: 1,
            blocks_per_group: 8192,
            clusters_per_group: 8192,
            inodes_per_group: 64,
            first_ino: 11,
            inode_bytes: 256,
            desc_bytes: 64,
            checksum_type: 1,
            hash_seed: [1, 2, 3, 4],
            journal_ino: Ino::JOURNAL,
            features: Features::of(&[&all[..], features].concat()),
            ..Superblock::blank()
        };
        let geometry = superblock.geometry();
        let mut made = Self { superblock, geometry, bytes: vec![0; BLOCKS as usize * BYTES] };
        made.metadata();
        made.root();
        made.indexed();
        made.files();
        made.journal();
        made
    }

    fn put(&mut self, addr: u64, bytes: &[u8]) {
        self.bytes[addr as usize * BYTES..][..bytes.len()].copy_from_slice(bytes);
    }

    fn metadata(&mut self) {
        let mut desc = GroupDesc {
            block_bitmap: Addr(BITMAPS),
            inode_bitmap: Addr(BITMAPS + 1),
            inode_table: Addr(TABLE),
            ..GroupDesc::default()
        };
        let blocks = desc.uninitialised_block_bitmap(Group(0), &self.geometry);
        let inodes = empty_inode_bitmap(&self.geometry);
        desc.set_bitmap_checksums(&self.geometry, &blocks, &inodes);
        self.put(BITMAPS, &blocks);
        self.put(BITMAPS + 1, &inodes);
        self.put(2, &desc.encode(Group(0), &self.geometry));
        self.put(1, &self.superblock.encode());
    }

    fn inode(&self, ino: Ino, mode: u16, size: u64) -> Inode {
        let mut inode = Inode::new(ino, mode, &self.geometry);
        (inode.links, inode.size, inode.generation) = (1, size, ino.0);
        inode
    }

    fn put_inode(&mut self, inode: &Inode) {
        let (_, index) = self.geometry.place_of_inode(inode.ino).unwrap();
        let (block, at) = self.geometry.table_place(index);
        let raw = inode.encode(&self.geometry);
        let start = (TABLE as usize + block as usize) * BYTES + at;
        self.bytes[start..start + raw.len()].copy_from_slice(&raw);
    }

    fn with_extents(&self, ino: Ino, mode: u16, size: u64, extents: Vec<Extent>) -> Inode {
        let mut inode = self.inode(ino, mode, size);
        inode.flags |= flags::EXTENTS;
        Node { entries: Entries::Leaf(extents), ..Node::empty_root() }.encode_root(&mut inode.block);
        inode
    }

    /// A block of the root directory with these names.
    fn root_block(&self, names: &[(&str, Ino, Kind)]) -> Vec<u8> {
        let mut block = dirent::first_block(Ino::ROOT, Ino::ROOT, &self.geometry);
        let end = dirent::room_bytes(&self.geometry);
        for (name, ino, kind) in names {
            let entry = Entry::new(name.as_bytes(), *ino, *kind);
            dirent::insert(&mut block[..end], &entry, &self.geometry).unwrap().unwrap();
        }
        let root = self.inode(Ino::ROOT, 0o040_755, 0);
        dirent::put_tail(&mut block, root.seed(&self.geometry), &self.geometry);
        block
    }

    const NAMES: [(&'static str, Ino, Kind); 7] = [
        ("indexed", INDEXED, Kind::Directory),
        ("extents", EXTENTS, Kind::Regular),
        ("addresses", ADDRESSES, Kind::Regular),
        ("inline", INLINE, Kind::Regular),
        ("inline-dir", INLINE_DIR, Kind::Directory),
        ("fast", FAST_LINK, Kind::Symlink),
        ("slow", SLOW_LINK, Kind::Symlink),
    ];

    fn root(&mut self) {
        let root = self.with_extents(Ino::ROOT, 0o040_755, BYTES as u64, vec![extent(0, 1, ROOT_BLOCK)]);
        self.put_inode(&root);
        let block = self.root_block(&Self::NAMES);
        self.put(ROOT_BLOCK, &block);
    }

    /// Names of the indexed directory with their hashes, in the order of the hashes.
    fn indexed_names(&self) -> Vec<(u32, String)> {
        let hash = |name: &str| Hash::HalfMd4.of_name(name.as_bytes(), &self.superblock.hash_seed, false).0;
        let mut names: Vec<_> =
            (0..30).map(|n| format!("name-{n}")).map(|name| (hash(&name), name)).collect();
        names.sort();
        names
    }

    fn indexed(&mut self) {
        let size = (INDEX.len() * BYTES) as u64;
        let mut inode = self.with_extents(INDEXED, 0o040_755, size, vec![extent(0, 5, INDEX[0])]);
        inode.flags |= flags::INDEX;
        let (geometry, seed) = (self.geometry, inode.seed(&self.geometry));
        self.put_inode(&inode);
        let names = self.indexed_names();
        // According to the index, names of one hash are in two leaves: name 10 is the last of the first leaf.
        let entry = |hash, block| htree::Entry { hash, block };
        let entries = [entry(0, 2), entry(names[9].0 | 1, 3), entry(names[20].0, 4)];
        let root = htree::Root {
            ino: INDEXED,
            parent: Ino::ROOT,
            hash: Hash::HalfMd4,
            levels: 1,
            entries: vec![entry(0, 1)],
        };
        let mut block = vec![0; BYTES];
        root.encode(&mut block, seed, &geometry);
        self.put(INDEX[0], &block);
        htree::encode_node(&entries, &mut block, seed, &geometry);
        self.put(INDEX[1], &block);
        for (leaf, names) in [(2, &names[..9]), (3, &names[9..20]), (4, &names[20..])] {
            let mut block = dirent::empty_block(&geometry);
            let end = dirent::room_bytes(&geometry);
            for (_, name) in names {
                let entry = Entry::new(name.as_bytes(), EXTENTS, Kind::Regular);
                dirent::insert(&mut block[..end], &entry, &geometry).unwrap().unwrap();
            }
            dirent::put_tail(&mut block, seed, &geometry);
            self.put(INDEX[leaf], &block);
        }
    }

    fn files(&mut self) {
        let geometry = self.geometry;
        for block in 0..20 {
            self.put(CONTENT + block, &[block as u8 + 1; BYTES]);
        }
        // Two blocks, a hole, two that were never written, one more, in a node of its own.
        let mut inode = self.inode(EXTENTS, 0o100_644, 20 * BYTES as u64 - 3);
        inode.flags |= flags::EXTENTS;
        let child = Index { first: 0, child: Addr(EXTENT_NODE) };
        Node { depth: 1, entries: Entries::Index(vec![child]), ..Node::empty_root() }
            .encode_root(&mut inode.block);
        let unwritten = Extent { is_unwritten: true, ..extent(10, 2, CONTENT + 9) };
        let extents = vec![extent(0, 2, CONTENT), unwritten, extent(19, 1, CONTENT + 5)];
        let max = layout::extent::block_entries(BYTES as u32);
        let node = Node { depth: 0, max, generation: 0, entries: Entries::Leaf(extents) };
        let mut block = vec![0; BYTES];
        node.encode(&mut block, inode.seed(&geometry), &geometry);
        self.put(EXTENT_NODE, &block);
        self.put_inode(&inode);

        let mut inode = self.inode(ADDRESSES, 0o100_644, 600 * BYTES as u64);
        for (word, addr) in [(1, CONTENT), (2, CONTENT + 1), (12, ADDRESS_BLOCKS[0]), (13, ADDRESS_BLOCKS[1])]
        {
            inode.set_word(word, addr as u32);
        }
        for (block, word, addr) in [
            (ADDRESS_BLOCKS[0], 5, CONTENT + 2),
            (ADDRESS_BLOCKS[1], 1, ADDRESS_BLOCKS[2]),
            (ADDRESS_BLOCKS[2], 7, CONTENT + 3),
        ] {
            let start = block as usize * BYTES + 4 * word;
            self.bytes[start..start + 4].copy_from_slice(&(addr as u32).to_le_bytes());
        }
        self.put_inode(&inode);

        let mut inode = self.inode(INLINE, 0o100_644, 70);
        inode.flags |= flags::INLINE_DATA;
        inode.block = [b'i'; 60];
        let (index, name) = xattr::INLINE_DATA;
        let rest = Xattr { index, name: name.to_vec(), value: vec![b'j'; 10] };
        xattr::encode_in_inode(&[rest, user("here", 8)], inode.xattr_room_mut()).unwrap();
        let block = XattrBlock { references: 1, xattrs: vec![user("there", 700)] };
        inode.xattr_block = Addr(XATTRS);
        let raw = block.encode(Addr(XATTRS), &geometry).unwrap();
        self.put(XATTRS, &raw);
        self.put_inode(&inode);

        let mut inode = self.inode(INLINE_DIR, 0o040_755, 60);
        inode.flags |= flags::INLINE_DATA;
        inode.block[..4].copy_from_slice(&Ino::ROOT.0.to_le_bytes());
        dirent::put_record(&mut inode.block[4..], 0, 56, None, &geometry);
        dirent::insert(&mut inode.block[4..], &Entry::new(b"child", INLINE, Kind::Regular), &geometry)
            .unwrap();
        self.put_inode(&inode);

        let mut inode = self.inode(FAST_LINK, 0o120_777, 8);
        inode.block[..8].copy_from_slice(b"to/there");
        self.put_inode(&inode);
        let inode = self.with_extents(SLOW_LINK, 0o120_777, 100, vec![extent(0, 1, CONTENT + 6)]);
        self.put_inode(&inode);
    }

    /// A log whose only transaction adds a name to the root directory.
    fn journal(&mut self) {
        let size = u64::from(JOURNAL_BLOCKS) * BYTES as u64;
        let inode =
            self.with_extents(Ino::JOURNAL, 0o100_600, size, vec![extent(0, JOURNAL_BLOCKS as u16, JOURNAL)]);
        self.put_inode(&inode);
        let mut superblock = JournalSuperblock::new(BYTES as u32, JOURNAL_BLOCKS);
        superblock.start = JOURNAL_BLOCKS - 1;
        if self.geometry.has_checksums() {
            superblock.incompat = incompat::CSUM_V3 | incompat::WIDE | incompat::REVOKE;
            superblock.checksum_type = 4;
        }
        let format = superblock.format();
        let block = self.root_block(&[&Self::NAMES[..], &[("replayed", INLINE, Kind::Regular)]].concat());
        let checksum = format.data_checksum(1, &block);
        let tag = Tag { addr: Addr(ROOT_BLOCK), checksum, ..Tag::default() };
        self.put(JOURNAL, &superblock.encode());
        // The log wraps around.
        self.put(JOURNAL + u64::from(superblock.start), &format.descriptor(1, &[tag], &[0; 16]));
        self.put(JOURNAL + 1, &block);
        self.put(JOURNAL + 2, &format.commit_block(&Commit { sequence: 1, ..Commit::default() }));
    }

    fn image(&self) -> Rc<Image> {
        Rc::new(Image::from_bytes(&self.bytes))
    }
}

fn kinds() -> [Made; 2] {
    [Made::new(&[]), Made::new(&[Feature::METADATA_CSUM])]
}

fn mount(image: &Rc<Image>) -> Result<Volume> {
    block_on(Volume::mount(Rc::clone(image) as _))
}

fn names(volume: &Volume, inode: &Inode) -> Vec<String> {
    let entries = block_on(volume.read_dir(inode)).unwrap();
    entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

#[test]
fn everything_is_read() {
    for made in kinds() {
        let volume = mount(&made.image()).unwrap();
        let find = |path: &str| block_on(volume.find(path.as_bytes())).unwrap().unwrap();
        let read = |path: &str| {
            let inode = find(path);
            block_on(volume.read(&inode, 0, 1 << 20)).unwrap()
        };
        let mut expected = vec![0; 20 * BYTES - 3];
        expected[..BYTES].fill(1);
        expected[BYTES..2 * BYTES].fill(2);
        expected[19 * BYTES..].fill(6);
        assert!(read("extents") == expected);
        assert!(block_on(volume.read(&find("extents"), 1500, 100)).unwrap() == [2; 100]);
        let mut expected = vec![0; 600 * BYTES];
        for (block, byte) in [(1, 1), (2, 2), (12 + 5, 3), (12 + 256 + 256 + 7, 4)] {
            expected[block * BYTES..(block + 1) * BYTES].fill(byte);
        }
        assert!(read("addresses") == expected);
        assert_eq!(read("inline"), [&[b'i'; 60][..], &[b'j'; 10]].concat());
        assert!(read("inline-dir/child") == read("inline"));
        assert_eq!(names(&volume, &find("inline-dir")), [".", "..", "child"]);
        assert_eq!(block_on(volume.read_link(&find("fast"))).unwrap(), b"to/there");
        assert_eq!(block_on(volume.read_link(&find("slow"))).unwrap(), [7; 100]);
        let xattrs = block_on(volume.xattrs(&find("inline"))).unwrap();
        assert_eq!(xattrs, [user("here", 8), user("there", 700)]);
        for bitmap in [block_on(volume.block_bitmap(Group(0))), block_on(volume.inode_bitmap(Group(0)))] {
            assert_eq!(bitmap.unwrap()[1023], 0xff);
        }
    }
}

#[test]
fn maps_say_where_files_are() {
    let made = &kinds()[1];
    let volume = mount(&made.image()).unwrap();
    let map = |ino| block_on(volume.map(&block_on(volume.inode(ino)).unwrap())).unwrap();
    let extents = map(EXTENTS);
    assert_eq!(extents.nodes, [Addr(EXTENT_NODE)]);
    let rows: Vec<_> = extents.extents.iter().map(|it| (it.first, it.blocks, it.is_unwritten)).collect();
    assert_eq!(rows, [(0, 2, false), (10, 2, true), (19, 1, false)]);
    let addresses = map(ADDRESSES);
    assert_eq!(addresses.nodes, ADDRESS_BLOCKS.map(Addr));
    let rows: Vec<_> = addresses.extents.iter().map(|it| (it.first, it.blocks, it.addr.0)).collect();
    assert_eq!(rows, [(1, 2, CONTENT), (17, 1, CONTENT + 2), (531, 1, CONTENT + 3)]);
}

#[test]
fn an_index_finds_what_a_walk_finds() {
    for made in kinds() {
        let volume = mount(&made.image()).unwrap();
        let inode = block_on(volume.inode(INDEXED)).unwrap();
        let mut walked = names(&volume, &inode);
        for name in &walked {
            let found = block_on(volume.lookup(&inode, name.as_bytes())).unwrap();
            assert!(found.is_some_and(|entry| entry.name == name.as_bytes()), "{name}");
        }
        assert_eq!(block_on(volume.lookup(&inode, b"name-30")).unwrap(), None);
        walked.sort();
        let mut expected: Vec<_> = made.indexed_names().into_iter().map(|(_, name)| name).collect();
        expected.extend([".".into(), "..".into()]);
        expected.sort();
        assert_eq!(walked, expected);
    }
}

#[test]
fn the_log_lies_over_the_disk() {
    for mut made in kinds() {
        let volume = mount(&made.image()).unwrap();
        let root = block_on(volume.root()).unwrap();
        assert_eq!(names(&volume, &root).last().unwrap(), "replayed");
        assert_eq!(volume.overlay().keys().collect::<Vec<_>>(), [&Addr(ROOT_BLOCK)]);
        let journal = volume.journal().unwrap();
        assert_eq!((journal.replayed.transactions, journal.replayed.next_sequence), (1, 3));
        assert!(!volume.is_clean());
        // Without the flag the log does not count.
        made.superblock.features.set(Feature::RECOVER, false);
        made.superblock.state = layout::superblock::state::VALID;
        made.metadata();
        let volume = mount(&made.image()).unwrap();
        assert_eq!(names(&volume, &block_on(volume.root()).unwrap()).last().unwrap(), "slow");
        assert!(volume.overlay().is_empty() && volume.is_clean());
    }
}

/// A port that fails after a number of writes.
#[derive(Debug)]
struct Cut {
    image: Rc<Image>,
    writes: Cell<u32>,
}

impl BlockPort for Cut {
    fn capacity_blocks(&self) -> u64 {
        self.image.capacity_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        if matches!(request, Request::Write(_)) {
            match self.writes.get().checked_sub(1) {
                Some(left) => self.writes.set(left),
                None => return Ticket::done(Err(PortError::Image("the power is gone".into()))),
            }
        }
        self.image.submit(request)
    }
}

#[test]
fn a_log_is_written_to_its_places_whenever_the_power_goes() {
    for made in kinds() {
        // There is a volume for each cut: the log's block, the superblock, the journal's superblock, the superblock again.
        for writes in 0..5 {
            let image = made.image();
            // This feature can only be read.
            let mut superblock = made.superblock.clone();
            superblock.features.set(Feature::INLINE_DATA, false);
            patch(&image, 1024, &superblock.encode());
            let cut = Cut { image: Rc::clone(&image), writes: Cell::new(writes) };
            let done = block_on(recover(Rc::new(cut)));
            assert_eq!(done.is_ok(), writes == 4, "{writes}");
            let found = |needs_recovery| {
                let volume = mount(&image).unwrap();
                assert_eq!(volume.needs_recovery(), needs_recovery);
                assert_eq!(names(&volume, &block_on(volume.root()).unwrap()).last().unwrap(), "replayed");
            };
            found(writes < 4);
            let recovered = block_on(recover(Rc::clone(&image) as _)).unwrap();
            assert_eq!(recovered.next_sequence, 3);
            found(false);
            let volume = mount(&image).unwrap();
            let journal = &volume.journal().unwrap().superblock;
            assert_eq!((journal.start, journal.sequence, volume.overlay().len()), (0, 3, 0));
        }
        let error = block_on(recover(made.image())).unwrap_err().to_string();
        assert!(error.contains("inline_data and is to be written"), "{error}");
    }
}

/// Overwrites bytes of an image.
fn patch(image: &Image, at: usize, bytes: &[u8]) {
    let block = Block((at / 4096) as u64);
    let mut content = bytes_of(&block_on(image.read(block, 1).completed()).unwrap()[0]).to_vec();
    content[at % 4096..][..bytes.len()].copy_from_slice(bytes);
    block_on(image.write(Write::new(block, vec![Payload::Bytes(content.into())])).completed()).unwrap();
}

#[test]
fn orphans_are_a_list_that_ends() {
    let mut made = Made::new(&[]);
    made.superblock.last_orphan = INLINE;
    let mut inode = made.inode(INLINE, 0o100_644, 0);
    inode.dtime = FAST_LINK.0;
    made.put_inode(&inode);
    made.metadata();
    assert_eq!(block_on(mount(&made.image()).unwrap().orphans()).unwrap(), [INLINE, FAST_LINK]);
    inode.dtime = INLINE.0;
    made.put_inode(&inode);
    let error = block_on(mount(&made.image()).unwrap().orphans()).unwrap_err().to_string();
    assert!(error.contains("inode 15 is twice in the list of orphans"), "{error}");
}

#[test]
fn what_is_no_volume_or_not_supported_is_refused_with_its_name() {
    let error = |image: Image| mount(&Rc::new(image)).unwrap_err().to_string();
    assert!(error(Image::in_memory(100)).contains("not an ext4 volume: the magic number"));
    assert_eq!(error(Image::in_memory(0)), "not an ext4 volume: the disk has 0 bytes");
    let made = Made::new(&[]);
    let short = error(Image::from_bytes(&made.bytes[..made.bytes.len() / 2]));
    assert!(short.contains("the volume has 1048576 bytes, its disk 524288"), "{short}");
    let change = |change: fn(&mut Superblock)| {
        let mut made = Made::new(&[]);
        change(&mut made.superblock);
        made.metadata();
        mount(&made.image()).unwrap_err().to_string()
    };
    assert!(change(|it| it.journal_ino = Ino(0)).contains("a journal on another disk"));
    assert!(change(|it| it.journal_ino = Ino(65)).contains("the journal is inode 65 of 64"));
    assert!(change(|it| it.journal_ino = FAST_LINK).contains("inode 17 of the journal is no file"));
    assert!(change(|it| it.features.set(Feature::HAS_JOURNAL, false)).contains("and there is none"));
    assert!(change(|it| it.features.set(Feature::ENCRYPT, true)).contains("the feature encrypt"));
}

/// Mounts, walks and reads everything, and ignores errors.
fn walk(image: &Rc<Image>) -> usize {
    let Ok(volume) = mount(image) else { return 0 };
    let Ok(root) = block_on(volume.root()) else { return 1 };
    let mut seen = 2 + block_on(volume.orphans()).map_or(0, |orphans| orphans.len());
    let mut todo: Vec<(Inode, u32)> = vec![(root, 0)];
    while let Some((inode, depth)) = todo.pop() {
        seen += block_on(volume.read(&inode, 0, 1 << 16)).map_or(0, |bytes| bytes.len());
        seen += block_on(volume.map(&inode)).map_or(0, |map| map.extents.len());
        seen += block_on(volume.xattrs(&inode)).map_or(0, |xattrs| xattrs.len());
        seen += block_on(volume.read_link(&inode)).map_or(0, |link| link.len());
        for entry in block_on(volume.read_dir(&inode)).unwrap_or_default().iter().take(50) {
            seen += usize::from(block_on(volume.lookup(&inode, &entry.name)).is_ok());
            if depth < 2 && !entry.is_dot() {
                todo.extend(block_on(volume.inode(entry.ino)).map(|inode| (inode, depth + 1)));
            }
        }
    }
    seen
}

#[test]
fn no_byte_of_the_metadata_can_make_it_panic() {
    let made = Made::new(&[]);
    let image = made.image();
    let whole = walk(&image);
    assert!(whole > 50_000, "{whole}");
    let mut places =
        vec![1, 2, 6, 7, 8, 9, ROOT_BLOCK, EXTENT_NODE, XATTRS, JOURNAL, JOURNAL + 31, JOURNAL + 2];
    places.extend(INDEX);
    places.extend(ADDRESS_BLOCKS);
    let mut changed = 0;
    for addr in places {
        let port = addr / 4;
        let content = bytes_of(&block_on(image.read(Block(port), 1).completed()).unwrap()[0]);
        let write = |content: &[u8]| {
            let payload = Payload::Bytes(content.into());
            block_on(image.write(Write::new(Block(port), vec![payload])).completed()).unwrap();
        };
        let start = (addr % 4) as usize * BYTES;
        for at in 0..BYTES {
            // Most zeros are not fields.
            let values = match content[start + at] {
                0 if at % 2 == 0 => &[0xff][..],
                0 => &[1],
                byte => &[0, 1, 0xff, byte ^ 0x80],
            };
            for &byte in values {
                let mut broken = content.to_vec();
                broken[start + at] = byte;
                write(&broken);
                changed += usize::from(walk(&image) != whole);
            }
        }
        write(&content);
    }
    assert!(changed > 1000, "{changed}");
    assert_eq!(walk(&image), whole);
}
