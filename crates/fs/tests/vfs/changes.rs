//! Random changes of files, beside a model of what the files hold.

use flashweir_core::RandomStream;
use flashweir_fs::vfs::*;
use std::collections::BTreeMap;

/// What files hold, by name.
pub(crate) type Model = BTreeMap<String, Vec<u8>>;

/// Makes, changes, renames and removes files on a file system and in the model.
pub(crate) async fn random_changes<F: Fs>(
    vfs: &Vfs<F>,
    random: &mut RandomStream,
    model: &mut Model,
    count: u32,
) {
    let root = vfs.process(Creds::ROOT);
    for _ in 0..count {
        let name = format!("/d{}/{}", random.below(3), "n".repeat(1 + random.below(60) as usize));
        match random.below(10) {
            0..=5 => {
                let file = root.create(&name).await.unwrap();
                let content = model.entry(name).or_default();
                content.clear();
                let at = random.below(3) * random.below(5_000_000);
                let bytes: Vec<u8> = (0..random.below(40_000)).map(|_| random.below(256) as u8).collect();
                file.pwrite(at, Source::bytes(&bytes)).await.unwrap();
                if !bytes.is_empty() {
                    content.resize(at as usize, 0);
                    content.extend_from_slice(&bytes);
                }
                if random.below(8) == 0 {
                    file.sync(SyncKind::All).await.unwrap();
                }
                file.close().await.unwrap();
            }
            6 => {
                let size = random.below(100_000);
                if let Some(content) = model.get_mut(&name) {
                    root.truncate(&name, size).await.unwrap();
                    content.resize(size as usize, 0);
                }
            }
            7 | 8 => {
                let there = model.remove(&name).is_some();
                assert_eq!(root.unlink(&name).await.is_ok(), there, "{name}");
            }
            _ => {
                let to = format!("/d{}/moved-{}", random.below(3), random.below(50));
                let content = model.remove(&name);
                let renamed = root.rename(&name, &to, RenameMode::Replace).await;
                assert_eq!(renamed.is_ok(), content.is_some(), "{name} {to}: {renamed:?}");
                model.extend(content.map(|content| (to, content)));
            }
        }
    }
}

/// Every file of the model holds what it should.
pub(crate) async fn compare<F: Fs>(vfs: &Vfs<F>, model: &Model) {
    let root = vfs.process(Creds::ROOT);
    for (name, content) in model {
        let file =
            root.open(name, OpenFlags::READ, 0).await.unwrap_or_else(|errno| panic!("{name}: {errno:?}"));
        let mut bytes = vec![0; content.len() + 1];
        let mut read = 0;
        while let Ok(more @ 1..) = file.pread(read as u64, Sink::bytes(&mut bytes[read..])).await {
            read += more as usize;
        }
        assert_eq!(read, content.len(), "{name}");
        assert!(bytes[..read] == content[..], "{name}");
        file.close().await.unwrap();
    }
}
