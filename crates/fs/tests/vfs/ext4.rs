//! The vfs over ext4 volumes: the same scripts as over memory, and after each one a volume that is good.

use crate::bed::Bed;
use crate::posix::TOPICS;
use crate::script::Script;
use flashweir_core::Stream;
use flashweir_fs::ext4::{Ext4, Options, mkfs};
use flashweir_fs::port::{Image, block_on};
use flashweir_fs::vfs::*;
use std::collections::BTreeMap;
use std::rc::Rc;

fn volume(mib: u64) -> Rc<Image> {
    let image = Rc::new(Image::in_memory(mib << 8));
    block_on(mkfs(&*image, &Options::new(mib << 8))).unwrap();
    image
}

fn mounted(image: &Rc<Image>) -> Bed<Ext4> {
    let fs = block_on(Ext4::mount(Rc::clone(image) as _)).unwrap();
    Bed::mount(MountOptions::default(), |_| fs)
}

/// Everything is as it should be.
fn good(image: &Rc<Image>) {
    let Ok(directory) = std::env::var("E2FSCK_DIR") else { return };
    let name = std::thread::current().name().unwrap_or("x").replace(':', "-");
    let path = format!("{directory}/{name}.img");
    std::fs::write(&path, image.to_bytes().unwrap()).unwrap();
    let output = std::process::Command::new("e2fsck").args(["-fn", &path]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let clean = text.lines().filter(|line| !line.starts_with("Pass ") && !line.is_empty()).count() == 1;
    assert!(output.status.success() && clean, "{text}");
}

#[test]
fn posix() {
    for (topic, script) in TOPICS {
        println!("{topic}");
        // The largest file of this format is smaller than that of memory.
        let mut script = script.replace("\\0", "\0");
        for below in 0..3 {
            let (memory, ours) = ((16_u64 << 40) + 1 - below, 17_592_186_040_321 - below);
            script = script.replace(&memory.to_string(), &ours.to_string());
        }
        let (memory, ours) = ((16_u64 << 40) - 2, 17_592_186_040_318_u64);
        script = script.replace(&memory.to_string(), &ours.to_string());
        // A value has to fit into a node.
        let script: Vec<&str> = script.lines().filter(|line| !line.contains("user.long")).collect();
        let script = script.join("\n");
        let image = volume(64);
        let mut bed = mounted(&image);
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        bed.run(async move {
            Script::run(vfs.clone(), handle, &script).await;
            vfs.unmount().await.expect("everything is closed and can be written");
        });
        good(&image);
    }
}

/// What files hold, by name.
type Model = BTreeMap<String, Vec<u8>>;

async fn random_changes(vfs: &Vfs<Ext4>, random: &mut Stream, model: &mut Model, count: u32) {
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

async fn compare(vfs: &Vfs<Ext4>, model: &Model) {
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

#[test]
fn random_changes_survive_mounts() {
    let image = volume(256);
    let mut model = Model::new();
    for round in 0..6 {
        let mut bed = mounted(&image);
        let vfs = bed.vfs.clone();
        let mut random = Stream::new(round, "ext4 changes");
        model = bed.run(async move {
            let root = vfs.process(Creds::ROOT);
            for dir in 0..3 {
                let made = root.mkdir(&format!("/d{dir}"), 0o755).await;
                assert_eq!(made.is_ok(), round == 0);
            }
            compare(&vfs, &model).await;
            random_changes(&vfs, &mut random, &mut model, 400).await;
            compare(&vfs, &model).await;
            vfs.unmount().await.unwrap();
            model
        });
        good(&image);
    }
}

/// Many names in one directory, so that it has several levels.
#[test]
fn thousands_of_names() {
    let image = volume(128);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..4000 {
            root.symlink(&format!("target {number}"), &format!("/name-{number}")).await.unwrap();
        }
        for number in (0..4000).step_by(3) {
            root.unlink(&format!("/name-{number}")).await.unwrap();
        }
        vfs.unmount().await.unwrap();
    });
    good(&image);
    let mut bed = mounted(&image);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        for number in 0..4000 {
            let found = root.readlink(&format!("/name-{number}")).await;
            let expected = format!("target {number}").into_bytes();
            assert_eq!(found.ok().as_deref(), (number % 3 != 0).then_some(&expected[..]), "{number}");
        }
        vfs.unmount().await.unwrap();
    });
}
