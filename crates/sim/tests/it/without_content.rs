//! Pages that read as zeros because the disk has no content there, as after an image was read whose blocks of zeros were left out. SHARE
//! refuses them as sources: copies of files failed, and on F2FS the volume with them.

use crate::database::completed;
use flashweir_contract::{Contents, DeviceKind};
use flashweir_core::Payload;
use flashweir_fs::f2fs::{CleanBy, F2fsOptions};
use flashweir_fs::port::{BlockPort, bytes_of};
use flashweir_fs::vfs::{Creds, Fs, MountOptions, OpenFlags, Sink, Source, SyncKind, Vfs};
use flashweir_fs::{Kind, Mode, NewVolume};
use flashweir_sim::model_port::ModelPort;
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::mount_on;
use std::rc::Rc;
use std::sync::Arc;

const BLOCKS: u64 = (64 << 20) / 4096;
const PAGE: usize = 4096;
/// Pages of the file, of which every third one is zeros.
const PAGES: usize = 30;

fn content() -> Vec<u8> {
    (0..PAGES * PAGE).map(|at| if (at / PAGE).is_multiple_of(3) { 0 } else { (at / PAGE) as u8 }).collect()
}

async fn mounted(port: ModelPort, handle: flashweir_core::executor::Handle, mode: &Mode) -> Vfs<impl Fs> {
    let fs = mount_on(Rc::new(port), FlushMode::Flush, mode).await.unwrap();
    Vfs::mount(fs, handle, MountOptions::default()).unwrap()
}

fn modes() -> [(&'static str, Mode); 3] {
    let ssc = F2fsOptions { clean_by: CleanBy::Share, ..F2fsOptions::default() };
    [("ext4", Kind::Ext4.into()), ("f2fs", Kind::F2fs.into()), ("f2fs-ssc", ssc.into())]
}

/// A volume with a file, on a disk that has no content where blocks are zeros.
fn reloaded(mode: &Mode) -> ModelPort {
    let port = ModelPort::new(DeviceKind::D4.policy(), BLOCKS, FlushMode::Flush);
    let (first, mode) = (port.clone(), mode.clone());
    completed(|handle| async move {
        mode.kind.mkfs(&first, &NewVolume::new(first.capacity_blocks())).await.unwrap();
        let vfs = mounted(first, handle, &mode).await;
        let process = vfs.process(Creds::ROOT);
        let file = process.open("/file", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
        file.pwrite(0, Source::bytes(&content())).await.unwrap();
        file.sync(SyncKind::All).await.unwrap();
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
    });
    let is_zero = |payload: &Payload| bytes_of(payload).iter().all(|&byte| byte == 0);
    let contents: Contents = port.contents().into_iter().filter(|(_, payload)| !is_zero(payload)).collect();
    let port =
        ModelPort::with_contents(DeviceKind::D4.policy(), Arc::new(contents), BLOCKS, FlushMode::Flush);
    port.with_share_blocks_max(64)
}

#[test]
fn regression_a_copy_of_pages_without_content_is_made() {
    for (name, mode) in modes() {
        let port = reloaded(&mode);
        let shown = completed(|handle| async move {
            let vfs = mounted(port, handle, &mode).await;
            let process = vfs.process(Creds::ROOT);
            let from = process.open("/file", OpenFlags::READ_WRITE, 0).await.unwrap();
            let to = process.open("/copy", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
            let len = (PAGES * PAGE) as u64;
            let mut done = 0;
            while done < len {
                done += vfs.copy_range((&from, done), (&to, done), len - done).await.unwrap();
            }
            to.sync(SyncKind::All).await.unwrap();
            let mut bytes = vec![9; PAGES * PAGE];
            assert_eq!(to.pread(0, Sink::bytes(&mut bytes)).await, Ok(len));
            for file in [from, to] {
                file.close().await.unwrap();
            }
            vfs.unmount().await.unwrap();
            bytes
        });
        assert!(shown == content(), "{name}");
    }
}

#[test]
fn regression_pages_without_content_are_exchanged() {
    for (name, mode) in modes() {
        let port = reloaded(&mode);
        let (shown, other) = completed(|handle| async move {
            let vfs = mounted(port, handle, &mode).await;
            let process = vfs.process(Creds::ROOT);
            let from = process.open("/file", OpenFlags::READ_WRITE, 0).await.unwrap();
            let to = process.open("/other", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
            to.pwrite(0, Source::bytes(&[7; PAGES * PAGE])).await.unwrap();
            vfs.exchange((&from, 0), (&to, 0), (PAGES * PAGE) as u64).await.unwrap();
            let (mut bytes, mut other) = (vec![9; PAGES * PAGE], vec![9; PAGES * PAGE]);
            to.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
            from.pread(0, Sink::bytes(&mut other)).await.unwrap();
            for file in [from, to] {
                file.close().await.unwrap();
            }
            vfs.unmount().await.unwrap();
            (bytes, other)
        });
        assert!(shown == content() && other == [7; PAGES * PAGE], "{name}");
    }
}
