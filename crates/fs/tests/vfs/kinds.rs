//! Volumes of which only the kind is known.

use flashweir_fs::order::CommitMode;
use flashweir_fs::port::{Block, BlockPort, Image, Segments, Write, block_on};
use flashweir_fs::vfs::Fs as _;
use flashweir_fs::{Kind, Mode, Mounted as _, NewVolume};
use std::rc::Rc;

const BLOCKS: u64 = 128 << 8;

/// An empty disk in memory that fits a format.
fn disk(kind: Kind, blocks: u64) -> Rc<dyn BlockPort> {
    match kind.appends() {
        true => Rc::new(Segments::in_memory((blocks / 512) as u32, 512)),
        false => Rc::new(Image::in_memory(blocks)),
    }
}

#[test]
fn a_volume_is_found_made_mounted_and_checked_by_its_kind() {
    for kind in Kind::ALL {
        assert_eq!(Kind::named(kind.name()), Some(kind));
        let image = disk(kind, BLOCKS);
        let found = || block_on(Kind::find(&*image)).unwrap();
        let none = found().unwrap_err();
        assert!(!none.is_damage);
        let why = none.to_string();
        match kind.appends() {
            true => assert!(why.starts_with("not an ALFS volume: "), "{why}"),
            false => assert!(
                why.starts_with("not an F2FS volume: ") && why.contains("; nor an ext4 volume: "),
                "{why}"
            ),
        }
        let new = NewVolume::new(BLOCKS).owned_by((7, 8));
        let made = block_on(kind.mkfs(&*image, &new)).unwrap();
        assert_eq!(found(), Ok(kind));
        let fs = block_on(Mode::from(kind).mount(Rc::clone(&image))).unwrap();
        assert_eq!((fs.name(), fs.audit()), (kind.name(), Ok(())));
        let root = block_on(fs.getattr(fs.root())).unwrap();
        assert_eq!((root.uid, root.gid), (7, 8));
        assert!(fs.metrics().iter().any(|metric| metric.name == "written_pages"));
        assert_eq!((fs.metric("written_pages"), fs.metric("no such counter")), (0, 0));
        assert_eq!(fs.journal_blocks_left().is_some(), kind != Kind::F2fs);
        block_on(fs.unmount()).unwrap();
        let checked = block_on(kind.check(image)).unwrap();
        assert_eq!(checked.problems, []);
        assert!((1..BLOCKS).contains(&checked.used_blocks));
        assert_eq!(checked.volume.map(|(volume, _)| volume), Some(made));
    }
}

/// F2FS has its superblock twice, and another program that makes a volume may leave the second one.
#[test]
fn what_an_older_volume_left_does_not_count() {
    let image = Image::in_memory(BLOCKS);
    let new = NewVolume::new(BLOCKS);
    block_on(Kind::F2fs.mkfs(&image, &new)).unwrap();
    let second = block_on(image.read(Block(1), 1).completed()).unwrap();
    block_on(Kind::Ext4.mkfs(&image, &new)).unwrap();
    block_on(image.write(Write::new(Block(1), second.into_vec())).completed()).unwrap();
    assert_eq!(block_on(Kind::find(&image)).unwrap(), Ok(Kind::Ext4));
}

#[test]
fn a_broken_volume_has_one_problem() {
    for kind in Kind::ALL {
        let image = disk(kind, BLOCKS);
        block_on(kind.mkfs(&*image, &NewVolume::new(BLOCKS))).unwrap();
        // The volume is larger than its disk.
        let short = disk(kind, BLOCKS / 2);
        let superblocks = block_on(image.read(Block(0), 2).completed()).unwrap();
        block_on(short.write(Write::new(Block(0), superblocks.into_vec())).completed()).unwrap();
        assert_eq!(block_on(Kind::find(&*short)).unwrap(), Ok(kind));
        let checked = block_on(kind.check(Rc::clone(&short))).unwrap();
        assert_eq!((checked.problems.len(), checked.problems[0].name), (1, "mount"));
        assert_eq!((checked.volume, checked.facts), (None, vec![]));
        assert!(block_on(Mode::from(kind).mount(short)).unwrap_err().is_damage);
    }
}

#[test]
fn modes_say_what_they_are_and_take_their_bugs_only() {
    for (kind, name) in [(Kind::F2fs, "f2fs dual"), (Kind::Ext4, "ext4 ordered dual")] {
        let mode = Mode::from(kind).committing(CommitMode::DualMode);
        assert_eq!((mode.commit_mode(), &mode.describe()[..]), (CommitMode::DualMode, name));
        let bugs = mode.bugs();
        assert!(
            bugs.len() > 5 && bugs != Mode::from(kind).bugs(),
            "some bugs are those of one mode: {bugs:?}"
        );
        for bug in bugs {
            let mut planted = mode.clone();
            planted.plant(bug);
            assert_ne!(planted, mode, "{bug}");
            planted.plant("no such bug");
            assert_eq!(planted, mode);
        }
    }
}

/// A disk of append segments has no other format than ALFS, and ALFS is on no other disk: one sentence says what fits.
#[test]
fn formats_and_disks_that_do_not_fit_are_refused() {
    let said = |kind: Kind, disk: &Rc<dyn BlockPort>| {
        let new = NewVolume::new(BLOCKS);
        let errors = [
            block_on(kind.mkfs(&**disk, &new)).map(drop).unwrap_err(),
            block_on(kind.check(Rc::clone(disk))).map(drop).unwrap_err(),
            block_on(Mode::from(kind).mount(Rc::clone(disk))).map(drop).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| !error.is_damage && *error == errors[0]), "{errors:?}");
        errors[0].to_string()
    };
    let (segments, sectors) = (disk(Kind::Alfs, BLOCKS), disk(Kind::Ext4, BLOCKS));
    assert_eq!(
        said(Kind::Alfs, &sectors),
        "ALFS is for disks of append segments, and this one has none: f2fs and ext4 fit it"
    );
    for kind in [Kind::F2fs, Kind::Ext4] {
        let title = kind.title();
        let expected =
            format!("{title} writes over blocks, and this disk consists of append segments: alfs fits it");
        assert_eq!(said(kind, &segments), expected);
    }
}
