//! Volumes that were made here, whole and broken.

use super::*;
use crate::port::{Block, BlockPort, Image, Write, block_on, bytes_of};
use flashweir_core::Payload;
use std::rc::Rc;

fn made(options: &Options) -> Rc<Image> {
    let image = Image::in_memory(options.blocks);
    block_on(mkfs(&image, options)).unwrap();
    Rc::new(image)
}

/// A volume of 64 MiB, small enough to break it thousands of times.
fn small() -> Options {
    Options { uuid: *b"flashweir tests!", label: "weir \u{1f30a}".into(), ..Options::new(64 << 8) }
}

#[test]
fn a_new_volume_has_an_empty_root_and_is_good() {
    let mut featured = small();
    for name in Options::FEATURES {
        featured.add_feature(name).unwrap();
    }
    let zones = Options { segments_per_section: 2, sections_per_zone: 2, ..Options::new(256 << 8) };
    let large = Options::new(1 << 28);
    for options in
        [small(), featured, zones, Options { overprovision: Some(700), ..Options::new(1 << 18) }, large]
    {
        let image = made(&options);
        let volume = block_on(Volume::mount(Rc::clone(&image) as _)).unwrap();
        assert_eq!(volume.superblock().label, options.label);
        assert!(volume.is_clean());
        let root = block_on(volume.root()).unwrap();
        let names: Vec<_> =
            block_on(volume.read_dir(&root)).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [b".".to_vec(), b"..".to_vec()]);
        assert_eq!(block_on(volume.lookup(&root, b"..")).unwrap().unwrap().ino, Nid::ROOT);
        assert_eq!(block_on(volume.lookup(&root, b"nothing")).unwrap(), None);
        let report = block_on(check(image)).unwrap();
        assert_eq!(report.problems, []);
        assert_eq!((report.directories, report.nodes, report.data_blocks), (1, 1, 1));
    }
}

#[test]
fn a_volume_is_a_function_of_its_options() {
    let image = made(&small());
    let bytes = image.to_bytes().unwrap();
    // Nothing that the disk held before can be read.
    let dirty = Image::from_bytes(&vec![0xa5; bytes.len()]);
    block_on(mkfs(&dirty, &small())).unwrap();
    let main = block_on(Volume::mount(image as _)).unwrap().superblock().main.0 as usize * 4096;
    assert!(dirty.to_bytes().unwrap()[..main] == bytes[..main]);
    assert_eq!(block_on(check(Rc::new(dirty))).unwrap().problems, []);
}

#[test]
fn options_that_make_no_volume() {
    let fails = |options: Options| match block_on(mkfs(&Image::in_memory(options.blocks), &options)) {
        Err(Error::Option(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(fails(Options::new(20 << 8)).contains("20 MiB are too small"));
    assert!(
        fails(Options { segments_per_section: 0, ..small() })
            .contains("0 segments per section: expected 1 to 1024")
    );
    assert!(fails(Options { segments_per_section: 9, ..small() }).contains("too small for zones of 18 MiB"));
    assert!(fails(Options { overprovision: Some(9501), ..small() }).contains("95.01 %: expected 0.01 to 95"));
    assert!(fails(Options { label: "x".repeat(512), ..small() }).contains("more than 511 characters"));
    assert!(fails(Options { blocks: 1 << 40, ..small() }).contains("at most 8 TiB"));
    let unknown = small().add_feature("compression").unwrap_err().to_string();
    assert!(unknown.contains("no feature \"compression\"") && unknown.contains("sb_checksum"), "{unknown}");
    let short = block_on(mkfs(&Image::in_memory(5), &small())).unwrap_err().to_string();
    assert_eq!(short, "a volume of 16384 blocks on a disk of 5");
}

/// Overwrites bytes of a block.
fn patch(image: &Image, block: u64, at: usize, bytes: &[u8]) {
    let content = block_on(image.read(Block(block), 1).completed()).unwrap();
    let mut content = bytes_of(&content[0]).to_vec();
    content[at..at + bytes.len()].copy_from_slice(bytes);
    block_on(image.write(Write::new(Block(block), vec![Payload::Bytes(content.into())])).completed())
        .unwrap();
}

#[test]
fn what_is_no_volume_or_not_supported_is_refused_with_its_name() {
    let mount = |image: &Rc<Image>| {
        block_on(Volume::mount(Rc::clone(image) as _)).map(|_| ()).unwrap_err().to_string()
    };
    let empty = Rc::new(Image::in_memory(100));
    assert_eq!(
        mount(&empty),
        "not an F2FS volume: the superblock begins with 0x00000000, expected 0xf2f52010"
    );
    let image = made(&small());
    patch(&image, 0, 1024, &[0; 4]);
    assert_eq!(block_on(Volume::mount(Rc::clone(&image) as _)).unwrap().superblock().label, small().label);
    let report = block_on(check(Rc::clone(&image) as _)).unwrap();
    assert_eq!(report.problems.iter().map(|problem| problem.name).collect::<Vec<_>>(), ["superblock"]);
    for (bits, name) in
        [(0x2000_u32, "compression"), (1, "encrypt"), (2, "blkzoned"), (0x1080, "quota, casefold")]
    {
        patch(&image, 1, 1024 + 2180, &bits.to_le_bytes());
        assert_eq!(
            mount(&image),
            format!("this F2FS volume uses the feature {name}, which is not supported")
        );
    }
    patch(&image, 1, 1024 + 2180, &[0; 4]);
    patch(&image, 1, 1024 + 2201, b"/dev/second");
    assert!(mount(&image).contains("several devices"));
    patch(&image, 1, 1024 + 2201, &[0; 11]);
    patch(&image, 1, 1024 + 36, &u64::MAX.to_le_bytes());
    assert!(mount(&image).contains("the volume has 18446744073709551615 blocks, its disk 16384"));
    let image = made(&small());
    for pack in [512, 1024] {
        patch(&image, pack, 0, &[9]);
    }
    assert!(mount(&image).contains("no checkpoint pack is valid"));
}

/// Mounts, walks and reads everything, and ignores errors.
fn walk(image: &Rc<Image>) -> usize {
    let Ok(volume) = block_on(Volume::mount(Rc::clone(image) as _)) else { return 0 };
    let Ok(root) = block_on(volume.root()) else { return 1 };
    let mut seen = 2;
    let entries = block_on(volume.read_dir(&root)).unwrap_or_default();
    for entry in entries.iter().take(100) {
        seen += usize::from(block_on(volume.lookup(&root, &entry.name)).is_ok());
        if let Ok(inode) = block_on(volume.inode(entry.ino)) {
            seen += block_on(volume.read(&inode, 0, 1 << 20)).unwrap_or_default().len();
            seen += block_on(volume.xattrs(&inode)).unwrap_or_default().len();
        }
    }
    seen + usize::from(block_on(check(Rc::clone(image) as _)).is_ok_and(|report| report.is_good()))
}

#[test]
fn no_byte_of_the_metadata_can_make_it_panic() {
    let image = made(&small());
    let geometry = *block_on(Volume::mount(Rc::clone(&image) as _)).unwrap().geometry();
    let root = geometry.main_block(layout::SegNo(0), 0).0;
    let data = geometry.main_block(layout::SegNo(3), 0).0;
    let nat = geometry.nat_block(0, false).0;
    // Superblock, checkpoint, summaries, NAT, root inode, root entries.
    for block in [1, 512, 513, 514, nat, root, data].map(u64::from) {
        let content = bytes_of(&block_on(image.read(Block(block), 1).completed()).unwrap()[0]);
        if block == 1 {
            patch(&image, 0, 1024, &[0; 4]);
        }
        for at in 0..4096 {
            // Bytes that have a meaning, and some of those that have none.
            if content[at] == 0 && at % 37 != 0 && !(1024..1124).contains(&at) && at > 200 {
                continue;
            }
            for value in [0xff, content[at] ^ 1, 0x80, 0] {
                patch(&image, block, at, &[value]);
                walk(&image);
            }
            patch(&image, block, at, &content[at..at + 1]);
        }
        patch(&image, 0, 1024, &layout::MAGIC.to_le_bytes());
    }
    assert_eq!(walk(&image), walk(&made(&small())));
}

#[test]
fn no_checkpoint_whose_checksum_is_right_can_make_it_panic() {
    let image = made(&small());
    let content = bytes_of(&block_on(image.read(Block(512), 1).completed()).unwrap()[0]);
    let last = 512 + u64::from(layout::bytes::u32_at(&content, 136)) - 1;
    let mut seen = 0;
    for at in (0..200).chain([4091]) {
        for value in [0, 1, 0x7f, 0x80, 0xff, content[at] ^ 4] {
            let mut changed: [u8; 4096] = content[..].try_into().unwrap();
            changed[at] = value;
            // If the checksum is at another offset, its value has to change.
            let crc_at = (layout::bytes::u32_at(&changed, 164) as usize).clamp(192, 4092);
            let front = layout::bytes::crc32(layout::MAGIC, &changed[..crc_at]);
            let crc = if crc_at < 4092 { layout::bytes::crc32(front, &changed[crc_at + 4..]) } else { front };
            changed[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
            for block in [512, last] {
                patch(&image, block, 0, &changed);
            }
            seen += usize::from(walk(&image) > 0);
        }
    }
    assert!(seen > 300, "most of them are mounted, of {seen}");
}

#[test]
fn problems_have_names() {
    let geometry = *block_on(Volume::mount(made(&small()) as _)).unwrap().geometry();
    let block_of = |addr: layout::Addr| u64::from(addr.0);
    let root = block_of(geometry.main_block(layout::SegNo(0), 0));
    let data = block_of(geometry.main_block(layout::SegNo(3), 0));
    let nat = block_of(geometry.nat_block(0, false));
    let address = |addr: layout::Addr| addr.0.to_le_bytes();
    let cases: [(u64, usize, &[u8], &[&str]); 10] = [
        (root, 12, &[9], &["links"]),
        (root, 24, &[9], &["inode-blocks"]),
        (root, 0, &[0, 0], &["inode"]),
        (root, 360, &address(layout::Addr(5)), &["address"]),
        (root, 360, &address(geometry.main_block(layout::SegNo(0), 0)), &["block-shared"]),
        (root, 4072, &[8], &["node-footer"]),
        (data, 30, &[1], &[]),
        (data, 30 + 4, &[4], &["directory-dots"]),
        (nat, 9 * 4 + 5, &[1, 2], &["nat-unreachable"]),
        (513, 1014, &[7], &["summary"]),
    ];
    for (block, at, bytes, expected) in cases {
        let image = made(&small());
        patch(&image, block, at, bytes);
        let report = block_on(check(Rc::clone(&image) as _)).unwrap();
        let names: Vec<_> = report.problems.iter().map(|problem| problem.name).collect();
        assert!(expected.iter().all(|name| names.contains(name)), "{block} {at}: {names:?}");
        assert_eq!(names.is_empty(), expected.is_empty(), "{block} {at}: {:?}", report.problems);
    }
}
