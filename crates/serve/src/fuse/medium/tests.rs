//! Volumes whose files are damaged while they are in use, and images that are only read.

use super::*;
use flashweir_core::Bytes;
use flashweir_core::random::RandomStream;
use flashweir_crash::devices::tiny;
use flashweir_device::presets::preset;
use flashweir_host::HostFtlConfig;
use std::os::unix::fs::FileExt as _;

/// A directory, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-medium-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes blocks in a drawn order, with a flush after every fourth.
fn write_some(stack: &mut Stack, random: &mut RandomStream) {
    let port = stack.port();
    let blocks: Vec<Block> = (0..80).map(|_| Block(random.below(port.capacity_blocks()))).collect();
    let written = stack.block_on(async move {
        for (number, block) in blocks.into_iter().enumerate() {
            let content = Payload::Bytes(vec![number as u8 + 1; BLOCK_BYTES].into());
            port.write(Write::new(block, vec![content])).completed().await?;
            if number % 4 == 3 {
                port.flush().completed().await?;
            }
        }
        Ok::<_, flashweir_fs::port::PortError>(())
    });
    written.unwrap().unwrap();
}

/// The power fails under a mount, once with sound files and once after everything in the host's file of contents was damaged: recovery must
/// not take that for what the cut left.
#[test]
fn a_cut_under_a_mount_tells_of_damage_that_its_recovery_met() {
    let mut open = preset("qblke").unwrap();
    (open.geometry.channels, open.geometry.chips_per_channel, open.geometry.pages_per_block) = (2, 1, 16);
    open.validate().unwrap();
    let ftl = |ftl| Some(HostFtlConfig { queues: 0, ..ftl });
    let cases = [
        ("tiny-d1", tiny("tiny-d1").unwrap(), None),
        ("tiny-dftl", tiny("tiny-dftl").unwrap(), None),
        ("pblk", open.clone(), ftl(HostFtlConfig::pblk())),
        ("qblke", open, ftl(HostFtlConfig::qblke(2))),
    ];
    for (name, config, host_ftl) in cases {
        let place = Place::new(name);
        let directory = place.0.join("v");
        Volume::create_below(&directory, &config, host_ftl.as_ref(), 1).unwrap();
        let (held, mut stack) = Medium::Volume(directory.clone()).open(FlushMode::Flush, false).unwrap();
        let mut random = RandomStream::new(1, "medium");
        write_some(&mut stack, &mut random);
        let (mut stack, _, recovered) = held.cut(stack, Tear::Likeliest);
        assert_eq!(recovered, Ok(()), "{name}: nothing is damaged");
        write_some(&mut stack, &mut random);
        let data = File::options().write(true).open(directory.join("data")).unwrap();
        let len = data.metadata().unwrap().len();
        data.write_all_at(&vec![0x5a; len as usize], 0).unwrap();
        let (_, _, recovered) = held.cut(stack, Tear::Likeliest);
        let why = recovered.expect_err(name);
        assert!(why.contains("wrong checksum"), "{name}: {why}");
    }
}

#[test]
fn an_image_that_is_only_read_is_shared_with_readers_and_not_with_writers() {
    let place = Place::new("image");
    let path = place.0.join("image");
    File::create(&path).unwrap().set_len(Bytes::mib(4).0).unwrap();
    let medium = || Medium::Image {
        path: path.clone(),
        device: Box::new(preset("mobile-ufs").unwrap()),
        seed: 1,
        reserve: false,
        memory_bytes: None,
    };
    let one = medium().open(FlushMode::Flush, true).unwrap();
    let other = medium().open(FlushMode::Flush, true).unwrap();
    let refused = medium().open(FlushMode::Flush, false).unwrap_err();
    assert!(refused.ends_with("another process uses it"), "{refused}");
    drop((one, other));
    let writer = medium().open(FlushMode::Flush, false).unwrap();
    let refused = medium().open(FlushMode::Flush, true).unwrap_err();
    assert!(refused.ends_with("another process uses it"), "{refused}");
    drop(writer);
}
