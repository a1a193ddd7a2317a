//! Access control lists through the vfs.

use crate::each::*;
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list in the form for programs: `u` owner, `u1` user 1, `g` group, `g1` group 1, `m` mask, `o` others.
fn wire(text: &str) -> Vec<u8> {
    let entry = |word: &str| {
        let (who, permissions) = word.split_once(':').unwrap();
        let number = who[1..].parse().ok();
        let who = match (&who[..1], number) {
            ("u", None) => Who::Owner,
            ("u", Some(number)) => Who::User(number),
            ("g", None) => Who::Group,
            ("g", Some(number)) => Who::NamedGroup(number),
            ("m", _) => Who::Mask,
            _ => Who::Others,
        };
        AclEntry { who, permissions: permissions.parse().unwrap() }
    };
    Acl::new(text.split(' ').map(entry).collect()).unwrap().to_wire()
}

async fn set<F: Fs>(who: &Process<F>, path: &str, name: &str, value: &[u8]) -> Result<()> {
    who.setxattr(path, name, value, XattrMode::Set, Follow::Yes).await
}

async fn get<F: Fs>(who: &Process<F>, path: &str, name: &str) -> Result<Vec<u8>> {
    who.getxattr(path, name, Follow::Yes).await.map(Into::into)
}

async fn mode<F: Fs>(who: &Process<F>, path: &str) -> u16 {
    who.stat(path, Follow::No).await.unwrap().mode
}

async fn names<F: Fs>(who: &Process<F>, path: &str) -> Vec<String> {
    let names = who.listxattr(path, Follow::Yes).await.unwrap();
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

async fn set_and_change<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    root.create("/f").await.unwrap().close().await.unwrap();
    assert_eq!(get(&root, "/f", ACCESS).await, Err(Errno::ENODATA));
    assert_eq!(root.removexattr("/f", ACCESS, Follow::Yes).await, Ok(()), "as in Linux");
    let list = wire("u:6 u1000:7 g:4 m:7 o:0");
    set(&root, "/f", ACCESS, &list).await.unwrap();
    assert_eq!(get(&root, "/f", ACCESS).await.unwrap(), list);
    assert_eq!((mode(&root, "/f").await, names(&root, "/f").await), (0o670, vec![ACCESS.to_owned()]));
    // The group's bits are the mask.
    root.chmod("/f", 0o2751).await.unwrap();
    assert_eq!(get(&root, "/f", ACCESS).await.unwrap(), wire("u:7 u1000:7 g:4 m:5 o:1"));
    set(&root, "/f", "user.x", b"y").await.unwrap();
    let mut both = names(&root, "/f").await;
    both.sort();
    assert_eq!(both, [ACCESS, "user.x"]);
    // A list that says no more than permission bits is these.
    set(&root, "/f", ACCESS, &wire("u:6 g:4 o:4")).await.unwrap();
    assert_eq!((mode(&root, "/f").await, get(&root, "/f", ACCESS).await), (0o2644, Err(Errno::ENODATA)));
    assert_eq!(names(&root, "/f").await, ["user.x"]);
    // One that is removed leaves them as they are.
    set(&root, "/f", ACCESS, &list).await.unwrap();
    root.removexattr("/f", ACCESS, Follow::Yes).await.unwrap();
    assert_eq!((mode(&root, "/f").await, get(&root, "/f", ACCESS).await), (0o2670, Err(Errno::ENODATA)));
    set(&root, "/f", ACCESS, &list).await.unwrap();
    set(&root, "/f", ACCESS, &[]).await.unwrap();
    assert_eq!(get(&root, "/f", ACCESS).await, Err(Errno::ENODATA));
    // A mask without names is kept.
    set(&root, "/f", ACCESS, &wire("u:6 g:7 m:1 o:0")).await.unwrap();
    assert_eq!(mode(&root, "/f").await, 0o2610);
    // The set-user bit that a write takes away leaves the list as it is.
    let user = vfs.process(Creds::user(0, 0));
    root.chmod("/f", 0o4666).await.unwrap();
    let list = wire("u:6 g:7 m:6 o:6");
    assert_eq!(get(&user, "/f", ACCESS).await.unwrap(), list);
    let file = vfs.process(Creds::user(7, 7)).open("/f", OpenFlags::WRITE, 0).await.unwrap();
    file.pwrite(0, Source::bytes(b"x")).await.unwrap();
    file.close().await.unwrap();
    assert_eq!((mode(&root, "/f").await, get(&root, "/f", ACCESS).await.unwrap()), (0o666, list));
}

async fn be_refused<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    let owner = vfs.process(Creds::user(1000, 1000));
    let other = vfs.process(Creds::user(1001, 1001));
    root.create("/f").await.unwrap().close().await.unwrap();
    root.chown("/f", Some(1000), Some(50), Follow::Yes).await.unwrap();
    root.symlink("/f", "/link").await.unwrap();
    let list = wire("u:6 u1:7 g:4 m:7 o:0");
    assert_eq!(set(&other, "/f", ACCESS, &list).await, Err(Errno::EPERM));
    assert_eq!(set(&other, "/f", ACCESS, &[]).await, Err(Errno::EPERM));
    assert_eq!(set(&owner, "/f", DEFAULT, &list).await, Err(Errno::EACCES));
    assert_eq!(set(&owner, "/f", DEFAULT, &[]).await, Ok(()));
    assert_eq!(get(&owner, "/f", DEFAULT).await, Err(Errno::ENODATA));
    assert_eq!(set(&root, "/f", ACCESS, &list[..list.len() - 8]).await, Err(Errno::EINVAL));
    assert_eq!(set(&root, "/f", ACCESS, &[1, 0, 0, 0]).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&root, "/f", "system.posix_acl", b"x").await, Err(Errno::EOPNOTSUPP));
    for name in [ACCESS, DEFAULT] {
        let on_link = root.setxattr("/link", name, &list, XattrMode::Set, Follow::No).await;
        assert_eq!(on_link, Err(Errno::EOPNOTSUPP));
        assert_eq!(root.getxattr("/link", name, Follow::No).await, Err(Errno::EOPNOTSUPP));
    }
    // All users may read.
    root.chmod("/f", 0o2755).await.unwrap();
    let list = wire("u:7 u1:7 g:5 m:5 o:5");
    // The owner is not in the file's group; only root and the group's members keep the set-group bit.
    set(&owner, "/f", ACCESS, &list).await.unwrap();
    assert_eq!((mode(&root, "/f").await, get(&other, "/f", ACCESS).await.unwrap()), (0o755, list.clone()));
    root.chmod("/f", 0o2755).await.unwrap();
    let member = vfs.process(Creds { groups: vec![50], ..Creds::user(1000, 1000) });
    set(&member, "/f", ACCESS, &list).await.unwrap();
    assert_eq!(mode(&root, "/f").await, 0o2755);
    // Front ends say it themselves.
    let ino = root.stat("/f", Follow::Yes).await.unwrap().ino;
    let checked = Creds::checked(1000, 1000);
    vfs.set_acl_of(&checked, ino, AclKind::Access, &list, false).await.unwrap();
    assert_eq!(mode(&root, "/f").await, 0o2755);
    vfs.set_acl_of(&checked, ino, AclKind::Access, &list, true).await.unwrap();
    assert_eq!(mode(&root, "/f").await, 0o755);
}

async fn inherit<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT).with_umask(0o077);
    root.mkdir("/d", 0o777).await.unwrap();
    assert_eq!(mode(&root, "/d").await, 0o700, "without a list the mask counts");
    let list = wire("u:7 u1000:7 g:5 m:7 o:5");
    set(&root, "/d", DEFAULT, &list).await.unwrap();
    assert_eq!((mode(&root, "/d").await, get(&root, "/d", ACCESS).await), (0o700, Err(Errno::ENODATA)));
    root.open("/d/f", OpenFlags::WRITE.create(), 0o666).await.unwrap().close().await.unwrap();
    assert_eq!(mode(&root, "/d/f").await, 0o664, "the mask of the caller does not count");
    assert_eq!(get(&root, "/d/f", ACCESS).await.unwrap(), wire("u:6 u1000:7 g:5 m:6 o:4"));
    assert_eq!(get(&root, "/d/f", DEFAULT).await, Err(Errno::ENODATA));
    root.mkdir("/d/sub", 0o750).await.unwrap();
    assert_eq!(get(&root, "/d/sub", ACCESS).await.unwrap(), wire("u:7 u1000:7 g:5 m:5 o:0"));
    assert_eq!(get(&root, "/d/sub", DEFAULT).await.unwrap(), list);
    root.mknod("/d/sub/pipe", Kind::Fifo, 0o600).await.unwrap();
    assert_eq!(get(&root, "/d/sub/pipe", ACCESS).await.unwrap(), wire("u:6 u1000:7 g:5 m:0 o:0"));
    root.symlink("f", "/d/link").await.unwrap();
    assert_eq!(mode(&root, "/d/link").await, 0o777);
    assert!(root.listxattr("/d/link", Follow::No).await.unwrap().is_empty());
    let file = root.open_nameless("/d", OpenFlags::READ_WRITE, 0o666).await.unwrap();
    assert_eq!(file.attr().await.unwrap().mode, 0o664);
    root.link_inode(file.ino(), "/d/linked").await.unwrap();
    assert_eq!(get(&root, "/d/linked", ACCESS).await.unwrap(), wire("u:6 u1000:7 g:5 m:6 o:4"));
    file.close().await.unwrap();
    // A default list that says no more than permission bits makes no access list.
    set(&root, "/d", DEFAULT, &wire("u:7 g:5 o:1")).await.unwrap();
    root.create("/d/plain").await.unwrap().close().await.unwrap();
    assert_eq!(
        (mode(&root, "/d/plain").await, get(&root, "/d/plain", ACCESS).await),
        (0o640, Err(Errno::ENODATA))
    );
    root.removexattr("/d", DEFAULT, Follow::Yes).await.unwrap();
    root.create("/d/masked").await.unwrap().close().await.unwrap();
    assert_eq!(mode(&root, "/d/masked").await, 0o600);
    // By number, as a front end does it.
    set(&root, "/d", DEFAULT, &list).await.unwrap();
    let dir = root.stat("/d", Follow::Yes).await.unwrap().ino;
    let creds = Creds::checked(5, 5).with_umask(0o077);
    let made = vfs.make_node(&creds, dir, b"by-number", Kind::File, 0o666).await.unwrap();
    assert_eq!((made.mode, made.uid), (0o664, 5));
    let made = vfs.make_node(&creds, vfs.root(), b"by-number", Kind::File, 0o666).await.unwrap();
    assert_eq!(made.mode, 0o600);
}

/// Lists so long that they leave the inode, and attributes beside them.
async fn grow<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    root.mkdir("/d", 0o755).await.unwrap();
    for users in [1, 20, 100, 200, 10] {
        let named: Vec<String> = (0..users).map(|user| format!("u{user}:{} ", user % 8)).collect();
        let list = wire(&format!("u:7 {}g:5 m:7 o:0", named.concat()));
        set(&root, "/d", DEFAULT, &list).await.unwrap();
        let file = format!("/d/{users}");
        root.create(&file).await.unwrap().close().await.unwrap();
        assert_eq!(get(&root, &file, ACCESS).await.unwrap().len(), list.len());
        set(&root, &file, "user.name", b"value").await.unwrap();
        root.chmod(&file, 0o600).await.unwrap();
        let masked = get(&root, &file, ACCESS).await.unwrap();
        assert_eq!(Acl::from_wire(&masked).unwrap().unwrap().mode(), 0o600);
        assert_eq!(get(&root, &file, "user.name").await.unwrap(), b"value");
        set(&root, &file, ACCESS, &[]).await.unwrap();
        assert_eq!(names(&root, &file).await, ["user.name"]);
    }
    // Both lists of a directory together need more than an inode has, on a disk.
    let named: Vec<String> = (0..400).map(|user| format!("u{user}:7 ")).collect();
    let list = wire(&format!("u:7 {}g:5 m:7 o:0", named.concat()));
    set(&root, "/d", DEFAULT, &list).await.unwrap();
    let made = root.mkdir("/d/both", 0o755).await;
    assert!(matches!(made, Ok(_) | Err(Errno::ENOSPC)), "{made:?}");
    assert_eq!(root.stat("/d/both", Follow::No).await.is_ok(), made.is_ok());
}

#[test]
fn lists_are_set_and_change_with_modes() {
    on_each!(set_and_change);
}

#[test]
fn lists_are_refused() {
    on_each!(be_refused);
}

#[test]
fn lists_are_inherited() {
    on_each!(inherit);
}

#[test]
fn lists_leave_the_inode() {
    on_each!(grow);
}

/// Lists are there after a mount.
#[test]
fn lists_survive_mounts() {
    async fn write<F: Fs>(vfs: Vfs<F>) {
        let root = vfs.process(Creds::ROOT);
        root.mkdir("/d", 0o755).await.unwrap();
        set(&root, "/d", DEFAULT, &wire("u:7 u1:1 g:5 g2:2 m:7 o:0")).await.unwrap();
        let file = root.create("/d/f").await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        set(&root, "/d/f", ACCESS, &wire("u:6 u3:1 g:5 m:7 o:0")).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        file.close().await.unwrap();
    }
    async fn look<F: Fs>(vfs: Vfs<F>) {
        let root = vfs.process(Creds::ROOT);
        assert_eq!(get(&root, "/d", DEFAULT).await.unwrap(), wire("u:7 u1:1 g:5 g2:2 m:7 o:0"));
        assert_eq!(get(&root, "/d/f", ACCESS).await.unwrap(), wire("u:6 u3:1 g:5 m:7 o:0"));
        assert_eq!(mode(&root, "/d/f").await, 0o670);
        vfs.unmount().await.unwrap();
    }
    // What was synced is there without an unmount.
    let image = ext4_volume();
    let mut bed = ext4_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    bed.run(write(vfs));
    let mut bed = ext4_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    bed.run(look(vfs));
    ext4_good(&image);
    let image = f2fs_volume();
    let mut bed = f2fs_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    bed.run(write(vfs));
    let mut bed = f2fs_bed(&image, MountOptions::default());
    let vfs = bed.vfs.clone();
    bed.run(look(vfs));
    f2fs_good(&image);
}
