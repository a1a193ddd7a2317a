//! The mount by inodes, as a front end uses it whose callers' rights were checked.

use crate::bed::Bed;
use flashweir_core::{Duration, Instant};
use flashweir_fs::vfs::*;

/// A user without any right by the bits of a mode, whose access the kernel has checked.
const CALLER: Creds = Creds::checked(7, 8);

#[test]
fn what_is_made_belongs_to_the_caller_and_needs_no_right() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.root();
        vfs.set_attr_of(root, &SetAttr { mode: Some(0), ..SetAttr::default() }).await.unwrap();
        let file = vfs.make_node(&CALLER, root, b"file", Kind::File, 0o600).await.unwrap();
        assert_eq!((file.uid, file.gid, file.mode), (7, 8, 0o600));
        assert_eq!(vfs.lookup_name(root, b"file").await, Ok(file));
        assert_eq!(vfs.make_node(&CALLER, root, b"file", Kind::File, 0).await, Err(Errno::EEXIST));
        let device = vfs.make_node(&CALLER, root, b"null", Kind::CharDevice(259), 0o666).await.unwrap();
        assert_eq!(device.kind, Kind::CharDevice(259));
        let dir = vfs.make_node(&CALLER, root, b"dir", Kind::Directory, 0o700).await.unwrap();
        assert_eq!(vfs.lookup_name(dir.ino, b"..").await.map(|attr| attr.ino), Ok(root));
        let link = vfs.make_symlink(&CALLER, dir.ino, b"link", b"../file").await.unwrap();
        assert_eq!(vfs.target_of(link.ino).await.as_deref(), Ok(&b"../file"[..]));
        assert_eq!(vfs.target_of(file.ino).await, Err(Errno::EINVAL));
        assert_eq!(vfs.link_name(&CALLER, file.ino, dir.ino, b"other").await.map(|attr| attr.links), Ok(2));
        let to = (dir.ino, &b"link"[..]);
        let rename = vfs.rename_name(&CALLER, (root, b"null"), to, RenameMode::NoReplace).await;
        assert_eq!(rename, Err(Errno::EEXIST));
        vfs.rename_name(&CALLER, (root, b"null"), to, RenameMode::Exchange).await.unwrap();
        assert_eq!(vfs.lookup_name(root, b"null").await.map(|attr| attr.kind), Ok(Kind::Symlink));
        assert_eq!(vfs.remove_name(&CALLER, root, b"dir", false).await, Err(Errno::EISDIR));
        assert_eq!(vfs.remove_name(&CALLER, root, b"dir", true).await, Err(Errno::ENOTEMPTY));
        for name in [&b"."[..], b"..", b""] {
            assert_eq!(vfs.remove_name(&CALLER, root, name, true).await, Err(Errno::EINVAL));
        }
        let long = vec![b'n'; vfs.limits().name_bytes_max + 1];
        assert_eq!(vfs.lookup_name(root, &long).await, Err(Errno::ENAMETOOLONG));
    });
}

/// The kernel still knows an inode whose last name is gone: it stays unchanged until the kernel forgets it.
#[test]
fn a_kept_inode_outlives_its_names() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.root();
        let file = vfs.make_node(&CALLER, root, b"file", Kind::File, 0o600).await.unwrap();
        let kept = vfs.keep(file.ino).await.unwrap();
        let open = vfs.open_inode(&CALLER, file.ino, OpenFlags::READ_WRITE).await.unwrap();
        open.pwrite(0, Source::bytes(b"still there")).await.unwrap();
        open.close().await.unwrap();
        vfs.remove_name(&CALLER, root, b"file", false).await.unwrap();
        let attr = vfs.attr_of(file.ino).await.unwrap();
        assert_eq!((attr.links, attr.size), (0, 11));
        let open = vfs.open_inode(&CALLER, file.ino, OpenFlags::READ).await.unwrap();
        let mut bytes = [0; 11];
        assert_eq!(open.pread(0, Sink::bytes(&mut bytes)).await, Ok(11));
        assert_eq!(&bytes, b"still there");
        open.close().await.unwrap();
        kept.end().await.unwrap();
        assert_eq!(vfs.attr_of(file.ino).await.map(|attr| attr.size), Err(Errno::ESTALE));
        assert_eq!(vfs.keep(file.ino).await.map(drop), Err(Errno::ESTALE));
        vfs.unmount().await.unwrap();
    });
}

#[test]
fn a_mount_is_busy_while_something_is_kept() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let kept = vfs.keep(vfs.root()).await.unwrap();
        assert_eq!(vfs.unmount().await, Err(Errno::EBUSY));
        kept.end().await.unwrap();
        vfs.unmount().await.unwrap();
    });
}

#[test]
fn attributes_are_set_as_somebody_has_decided() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.root();
        let file = vfs.make_node(&CALLER, root, b"file", Kind::File, 0o6755).await.unwrap();
        let open = vfs.open_inode(&CALLER, file.ino, OpenFlags::READ_WRITE).await.unwrap();
        open.pwrite(0, Source::bytes(&[1; 5000])).await.unwrap();
        // The kernel has looked after the privileges already.
        assert_eq!(vfs.attr_of(file.ino).await.map(|attr| attr.mode), Ok(0o6755));
        let ctime = Timestamp { seconds: 5, nanos: 6 };
        let changes = SetAttr { size: Some(4500), uid: Some(3), ctime: Some(ctime), ..SetAttr::default() };
        let attr = vfs.set_attr_of(file.ino, &changes).await.unwrap();
        assert_eq!((attr.size, attr.uid, attr.ctime), (4500, 3, ctime));
        vfs.set_attr_of(file.ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).await.unwrap();
        let mut bytes = [9; 600];
        assert_eq!(open.pread(4400, Sink::bytes(&mut bytes)).await, Ok(600));
        assert!(bytes[..100].iter().all(|&byte| byte == 1) && bytes[100..].iter().all(|&byte| byte == 0));
        let of_dir = vfs.set_attr_of(root, &SetAttr { size: Some(0), ..SetAttr::default() }).await;
        assert_eq!(of_dir, Err(Errno::EISDIR));
        open.close().await.unwrap();
    });
}

#[test]
fn civil_time_goes_on_from_where_it_was_set() {
    let mut bed = Bed::new();
    let vfs = bed.vfs.clone();
    bed.pass(Duration::from_secs(100));
    vfs.set_civil(Timestamp { seconds: 1_000_000, nanos: 999_999_999 });
    bed.pass(Duration::from_nanos(2));
    assert_eq!(bed.now(), Instant::ZERO + Duration::from_nanos(100_000_000_002));
    assert_eq!(bed.vfs.timestamp(), Timestamp { seconds: 1_000_001, nanos: 1 });
}
