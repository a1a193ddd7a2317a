//! The same story on each file system: in memory, ext4, F2FS.

use crate::bed::Bed;
use flashweir_fs::ext4::{self, Ext4};
use flashweir_fs::f2fs::{self, F2fs};
use flashweir_fs::port::{Image, block_on};
use flashweir_fs::vfs::*;
use std::rc::Rc;

const BLOCKS: u64 = 64 << 8;

/// A volume of ext4 in memory.
pub(crate) fn ext4_volume() -> Rc<Image> {
    let image = Rc::new(Image::in_memory(BLOCKS));
    block_on(ext4::mkfs(&*image, &ext4::Options::new(BLOCKS))).unwrap();
    image
}

/// A volume of F2FS in memory.
pub(crate) fn f2fs_volume() -> Rc<Image> {
    let image = Rc::new(Image::in_memory(BLOCKS));
    block_on(f2fs::mkfs(&*image, &f2fs::Options::new(BLOCKS))).unwrap();
    image
}

pub(crate) fn ext4_bed(image: &Rc<Image>, options: MountOptions) -> Bed<Ext4> {
    let fs = block_on(Ext4::mount(Rc::clone(image) as _)).unwrap();
    Bed::mount(options, |_| fs)
}

pub(crate) fn f2fs_bed(image: &Rc<Image>, options: MountOptions) -> Bed<F2fs> {
    let fs = block_on(F2fs::mount(Rc::clone(image) as _)).unwrap();
    Bed::mount(options, |_| fs)
}

/// A volume that was unmounted is good.
pub(crate) fn ext4_good(image: &Rc<Image>) {
    let report = block_on(ext4::check(Rc::clone(image) as _)).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.is_clean);
}

/// A volume that was unmounted is good.
pub(crate) fn f2fs_good(image: &Rc<Image>) {
    let report = block_on(f2fs::check(Rc::clone(image) as _)).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.is_clean);
}

/// Runs `story(vfs)`, an async function that is generic over the file system, on each of them, and checks the volumes.
macro_rules! on_each {
    ($story:ident $(, $argument:expr)*) => {
        $crate::each::on_each!(with MountOptions::default(), $story $(, $argument)*)
    };
    (with $options:expr, $story:ident $(, $argument:expr)*) => {{
        let mut bed = $crate::bed::Bed::with(MemFsConfig::default(), flashweir_core::Duration::ZERO, $options);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            $story(vfs.clone() $(, $argument)*).await;
            vfs.unmount().await.expect("everything is closed");
        });
        let image = $crate::each::ext4_volume();
        let mut bed = $crate::each::ext4_bed(&image, $options);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            $story(vfs.clone() $(, $argument)*).await;
            vfs.unmount().await.expect("everything is closed");
        });
        $crate::each::ext4_good(&image);
        let image = $crate::each::f2fs_volume();
        let mut bed = $crate::each::f2fs_bed(&image, $options);
        let vfs = bed.vfs.clone();
        bed.run(async move {
            $story(vfs.clone() $(, $argument)*).await;
            vfs.unmount().await.expect("everything is closed");
        });
        $crate::each::f2fs_good(&image);
    }};
}
pub(crate) use on_each;

/// fsync after nothing but a change of times makes these durable.
#[test]
fn fsync_keeps_times_across_a_power_loss() {
    const AT: Timestamp = Timestamp { seconds: 1_234_567, nanos: 0 };
    fn sets<F: Fs>(mut bed: Bed<F>) {
        let vfs = bed.vfs.clone();
        bed.run(async move {
            let file = vfs.process(Creds::ROOT).create("/file").await.unwrap();
            file.pwrite(0, Source::pattern(1, 5000)).await.unwrap();
            file.sync(SyncKind::All).await.unwrap();
            let mtime = SetTime::At(AT);
            vfs.set_times(&Creds::ROOT, file.ino(), SetTime::Omit, mtime).await.unwrap();
            file.sync(SyncKind::All).await.unwrap();
        });
    }
    fn has_kept<F: Fs>(mut bed: Bed<F>) {
        let vfs = bed.vfs.clone();
        let attr = bed.run(async move { vfs.process(Creds::ROOT).stat("/file", Follow::Yes).await.unwrap() });
        assert_eq!((attr.mtime, attr.size), (AT, 5000));
    }
    let image = ext4_volume();
    sets(ext4_bed(&image, MountOptions::default()));
    has_kept(ext4_bed(&image, MountOptions::default()));
    let image = f2fs_volume();
    sets(f2fs_bed(&image, MountOptions::default()));
    has_kept(f2fs_bed(&image, MountOptions::default()));
}
