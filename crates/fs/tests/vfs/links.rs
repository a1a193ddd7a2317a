//! Symbolic links of every length that a path may have: inside of the inode, and in a block of their own.

use crate::each::*;
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;

async fn links_of_all_lengths<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    for bytes in [1, 59, 60, 200, 3_000, 4_000, 4_095] {
        let (target, path) = ("x".repeat(bytes), format!("/to-{bytes}"));
        root.symlink(&target, &path).await.unwrap();
        assert_eq!(&*root.readlink(&path).await.unwrap(), target.as_bytes(), "{bytes} bytes");
        assert_eq!(root.stat(&path, Follow::No).await.unwrap().size, bytes as u64);
    }
    vfs.sync_all().await.unwrap();
    for bytes in [60, 4_000] {
        root.unlink(format!("/to-{bytes}")).await.unwrap();
    }
}

#[test]
fn links_say_what_they_were_made_with() {
    on_each!(links_of_all_lengths);
}
