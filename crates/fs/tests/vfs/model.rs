//! Random operations against vectors of bytes: whatever is mixed (buffered and direct I/O, holes, truncation, eviction,
//! write-back, several tasks), a file reads as it was written.

use crate::bed::{Bed, cache_of};
use flashweir_core::command::pattern;
use flashweir_core::executor::Handle;
use flashweir_core::{Duration, Lpn, Payload, RandomStream};
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;
use proptest::prelude::*;
use std::rc::Rc;

/// Pages of the cache: fewer than the files have.
const CACHE_PAGES: u64 = 32;

/// No file gets longer.
const FILE_BYTES_MAX: u64 = 40 * 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Bytes(u8),
    Pattern(u64),
    Zeros,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write { at: u64, len: u64, content: Content, direct: bool },
    Append { len: u64, content: Content },
    Read { at: u64, len: u64, direct: bool },
    Truncate { size: u64 },
    Punch { at: u64, len: u64 },
    Allocate { at: u64, len: u64 },
    Sync,
    SyncAll,
    Barrier,
    Pass { ms: u64 },
    Reopen,
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        (1u8..=255).prop_map(Content::Bytes),
        (0u64..1_000_000).prop_map(Content::Pattern),
        Just(Content::Zeros),
    ]
}

/// Places: near the beginning and near borders of pages more often than elsewhere.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..3 * 4096,
        (0u64..30, -2i64..3).prop_map(|(page, by)| (page * 4096).saturating_add_signed(by)),
        (0u64..30).prop_map(|page| page * 4096),
        0u64..30 * 4096,
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..200, (1u64..9).prop_map(|pages| pages * 4096), 1u64..30_000]
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    let write = |direct| {
        (place(), length(), content()).prop_map(move |(at, len, content)| Action::Write {
            at,
            len,
            content,
            direct,
        })
    };
    let read = |direct| (place(), length()).prop_map(move |(at, len)| Action::Read { at, len, direct });
    prop_oneof![
        6 => write(false),
        3 => write(true),
        2 => (length(), content()).prop_map(|(len, content)| Action::Append { len, content }),
        4 => read(false),
        2 => read(true),
        2 => place().prop_map(|size| Action::Truncate { size }),
        1 => (place(), length()).prop_map(|(at, len)| Action::Punch { at, len }),
        1 => (place(), length()).prop_map(|(at, len)| Action::Allocate { at, len }),
        1 => Just(Action::Sync),
        1 => Just(Action::SyncAll),
        1 => Just(Action::Barrier),
        1 => (1u64..40_000).prop_map(|ms| Action::Pass { ms }),
        1 => Just(Action::Reopen),
    ]
}

/// The bytes that a content stands for at a place.
fn bytes_of(content: Content, at: u64, len: u64) -> Vec<u8> {
    match content {
        Content::Bytes(byte) => (0..len).map(|i| byte.wrapping_add((i / 7) as u8)).collect(),
        Content::Zeros => vec![0; len as usize],
        Content::Pattern(operation) => {
            let (first, end) = (at / 4096, (at + len).div_ceil(4096));
            let mut all = vec![0; ((end - first) * 4096) as usize];
            for (page, bytes) in (first..end).zip(all.chunks_mut(4096)) {
                Payload::Tag(pattern(operation, Lpn(page))).expand(bytes);
            }
            let from = (at - first * 4096) as usize;
            all[from..from + len as usize].to_vec()
        }
    }
}

/// A range as direct I/O needs it.
fn align(at: u64, len: u64) -> (u64, u64) {
    (at / 512 * 512, (len / 512 + 1) * 512)
}

struct Model {
    bytes: Vec<u8>,
}

impl Model {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at as usize..end].copy_from_slice(bytes);
    }

    fn read(&self, at: u64, len: u64) -> &[u8] {
        let size = self.bytes.len() as u64;
        let (at, end) = (at.min(size), (at + len).min(size));
        &self.bytes[at as usize..end as usize]
    }
}

fn flags(direct: bool) -> OpenFlags {
    let flags = OpenFlags::READ_WRITE.create();
    if direct { flags.direct() } else { flags }
}

pub(crate) async fn play<F: Fs>(vfs: Vfs<F>, handle: Handle, name: &'static str, actions: Vec<Action>) {
    let root = vfs.process(Creds::ROOT);
    let mut model = Model { bytes: Vec::new() };
    let mut buffered = root.open(name, flags(false), 0o644).await.unwrap();
    let direct = root.open(name, flags(true), 0o644).await.unwrap();
    let append = root.open(name, OpenFlags::WRITE.append(), 0).await.unwrap();
    for action in actions {
        let pick = |is_direct: bool| if is_direct { &direct } else { &buffered };
        match action {
            Action::Write { at, len, content, direct } => {
                let (at, len) = if direct { align(at, len) } else { (at, len) };
                let bytes = bytes_of(content, at, len);
                let source = match content {
                    Content::Bytes(_) => Source::bytes(&bytes),
                    Content::Pattern(operation) => Source::pattern(operation, len),
                    Content::Zeros => Source::zeros(len),
                };
                assert_eq!(pick(direct).pwrite(at, source).await, Ok(len));
                model.write(at, &bytes);
            }
            Action::Append { len, content } if model.bytes.len() as u64 + len <= FILE_BYTES_MAX => {
                let at = model.bytes.len() as u64;
                let bytes = bytes_of(content, at, len);
                assert_eq!(append.write(Source::bytes(&bytes)).await, Ok(len));
                model.write(at, &bytes);
            }
            Action::Append { .. } => {}
            Action::Read { at, len, direct } => {
                let (at, len) = if direct { align(at, len) } else { (at, len) };
                let mut bytes = vec![0xee; len as usize];
                let read = pick(direct).pread(at, Sink::bytes(&mut bytes)).await.unwrap();
                let expected = model.read(at, len);
                assert_eq!(read as usize, expected.len());
                assert!(bytes[..read as usize] == *expected, "{name}: {at} + {len} reads otherwise");
            }
            Action::Truncate { size } => {
                buffered.truncate(size).await.unwrap();
                model.bytes.resize(size as usize, 0);
            }
            Action::Punch { at, len } => {
                buffered.punch_hole(at, len).await.unwrap();
                let size = model.bytes.len() as u64;
                model.bytes[at.min(size) as usize..(at + len).min(size) as usize].fill(0);
            }
            Action::Allocate { at, len } => {
                buffered.allocate(at, len, false).await.unwrap();
                let size = model.bytes.len().max((at + len) as usize);
                model.bytes.resize(size, 0);
            }
            Action::Sync => {
                buffered.sync(SyncKind::All).await.unwrap();
            }
            Action::SyncAll => vfs.sync_all().await.unwrap(),
            Action::Barrier if vfs.fs().has_barriers() => buffered.barrier(Barrier::Data).await.unwrap(),
            Action::Barrier => {}
            Action::Pass { ms } => handle.sleep_until(handle.now() + Duration::from_millis(ms)).await,
            Action::Reopen => {
                buffered.close().await.unwrap();
                buffered = root.open(name, OpenFlags::READ_WRITE, 0).await.unwrap();
            }
        }
        assert_eq!(buffered.size(), model.bytes.len() as u64);
        assert_eq!(buffered.attr().await.unwrap().size, model.bytes.len() as u64);
    }
    for file in [buffered, direct, append] {
        file.close().await.unwrap();
    }
    // The file as a whole, from the cache and, after all of it was written, past it.
    for is_direct in [false, true] {
        let file = root.open(name, flags(is_direct), 0).await.unwrap();
        let mut bytes = vec![0; model.bytes.len().next_multiple_of(512)];
        let read = file.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
        assert!(bytes[..read as usize] == *model.bytes, "{name} reads otherwise at the end");
        file.close().await.unwrap();
    }
}

fn check(actions: [Vec<Action>; 2], time_per_page: Duration) {
    let mut bed = Bed::small(time_per_page, cache_of(CACHE_PAGES));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    let [first, second] = actions;
    let ended = Rc::new(());
    for (name, actions) in [("/a", first), ("/b", second)] {
        let (vfs, handle, ended) = (vfs.clone(), handle.clone(), Rc::clone(&ended));
        bed.executor.spawn(async move {
            play(vfs, handle, name, actions).await;
            drop(ended);
        });
    }
    let before_end = vfs.clone();
    bed.run(async move {
        while Rc::strong_count(&ended) > 1 {
            handle.sleep_until(handle.now() + Duration::from_millis(10)).await;
        }
        before_end.unmount().await.unwrap();
    });
    assert!(vfs.cached_pages() <= CACHE_PAGES + 256, "the cache grew to {}", vfs.cached_pages());
    assert_eq!(vfs.dirty_pages(), 0);
    assert_eq!(vfs.fs().used_pages(), {
        // What is on the disk is what the attributes say.
        let fs = vfs.fs().clone();
        bed.run(async move {
            let mut blocks = 0;
            for name in [&b"a"[..], b"b"] {
                blocks += fs.lookup(fs.root(), name).await.unwrap().blocks_512;
            }
            blocks / 8
        })
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Two files at the same time, on a disk that takes no time.
    #[test]
    fn files_read_as_written(a in prop::collection::vec(action(), 1..60), b in prop::collection::vec(action(), 1..60)) {
        check([a, b], Duration::ZERO);
    }

    /// The same where each page takes time, so that tasks, read-ahead and write-back overlap.
    #[test]
    fn files_read_as_written_slowly(a in prop::collection::vec(action(), 1..60), b in prop::collection::vec(action(), 1..60)) {
        check([a, b], Duration::from_micros(300));
    }

    /// Several tasks write to parts of one file that are their own but share pages; nothing gets lost.
    #[test]
    fn tasks_share_pages(seed: u64) {
        share_pages(seed);
    }
}

/// Bytes that belong to one task.
const PART: u64 = 1500;

fn share_pages(seed: u64) {
    const TASKS: u64 = 6;
    const PARTS: u64 = 60;
    let mut bed = Bed::small(Duration::from_micros(200), cache_of(CACHE_PAGES));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    let ended = Rc::new(());
    for task in 0..TASKS {
        let (vfs, handle, ended) = (vfs.clone(), handle.clone(), Rc::clone(&ended));
        bed.executor.spawn(async move {
            let mut random = RandomStream::new(seed, &format!("task {task}"));
            let root = vfs.process(Creds::ROOT);
            let file = root.open("/shared", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
            for round in 0..3u8 {
                let mut parts: Vec<u64> = (0..PARTS).filter(|part| part % TASKS == task).collect();
                while !parts.is_empty() {
                    let part = parts.swap_remove(random.below(parts.len() as u64) as usize);
                    let bytes = vec![round * 50 + task as u8 + 1; PART as usize];
                    assert_eq!(file.pwrite(part * PART, Source::bytes(&bytes)).await, Ok(PART));
                    match random.below(6) {
                        0 => file.sync(SyncKind::Data).await.unwrap(),
                        1 => {
                            handle
                                .sleep_until(handle.now() + Duration::from_micros(random.below(5_000)))
                                .await
                        }
                        2 => {
                            let mut read = vec![0; PART as usize];
                            file.pread(part * PART, Sink::bytes(&mut read)).await.unwrap();
                            assert_eq!(read, bytes, "task {task} does not read what it wrote");
                        }
                        _ => {}
                    }
                }
            }
            file.close().await.unwrap();
            drop(ended);
        });
    }
    bed.run(async move {
        while Rc::strong_count(&ended) > 1 {
            handle.sleep_until(handle.now() + Duration::from_millis(10)).await;
        }
        vfs.sync_all().await.unwrap();
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/shared", OpenFlags::READ.direct(), 0).await.unwrap();
        let mut all = vec![0; (PARTS * PART) as usize];
        all.resize(all.len().next_multiple_of(512), 0);
        assert_eq!(file.pread(0, Sink::bytes(&mut all)).await, Ok(PARTS * PART));
        for part in 0..PARTS {
            let expected = 100 + (part % TASKS) as u8 + 1;
            let bytes = &all[(part * PART) as usize..((part + 1) * PART) as usize];
            assert!(bytes.iter().all(|&byte| byte == expected), "part {part} lost a write");
        }
        file.close().await.unwrap();
    });
}

/// Room that runs out in the middle: what is written is right, and errors come from write, not from write-back.
#[test]
fn room_runs_out_at_write() {
    let config = MemFsConfig { pages: 50, ..MemFsConfig::default() };
    let options = MountOptions { cache: cache_of(200), ..MountOptions::default() };
    let mut bed = Bed::with(config, Duration::from_micros(10), options);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/f", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        assert_eq!(file.pwrite(0, Source::pattern(1, 48 * 4096)).await, Ok(48 * 4096));
        assert_eq!(file.pwrite(48 * 4096, Source::pattern(1, 5 * 4096)).await, Ok(2 * 4096), "a short write");
        assert_eq!(file.pwrite(50 * 4096, Source::pattern(1, 100)).await, Err(Errno::ENOSPC));
        assert_eq!(
            file.pwrite(3 * 4096, Source::pattern(2, 4096)).await,
            Ok(4096),
            "an overwrite needs none"
        );
        let direct = root.open("/f", OpenFlags::READ_WRITE.direct(), 0).await.unwrap();
        assert_eq!(direct.pwrite(60 * 4096, Source::pattern(1, 8192)).await, Err(Errno::ENOSPC));
        assert_eq!(direct.pwrite(4 * 4096, Source::pattern(3, 8192)).await, Ok(8192));
        assert_eq!(vfs.statfs().await.unwrap().pages_free, 0);
        file.sync(SyncKind::All).await.expect("everything that was taken has room");
        file.truncate(40 * 4096 + 1).await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().pages_free, 9);
        assert_eq!(direct.pwrite(41 * 4096, Source::pattern(1, 20 * 4096)).await, Ok(9 * 4096));
        file.punch_hole(0, 4096).await.unwrap();
        assert_eq!(file.pwrite(50 * 4096, Source::pattern(1, 1)).await, Ok(1));
        let mut pages = Vec::new();
        assert_eq!(file.pread(0, Sink::payloads(6 * 4096, &mut pages)).await, Ok(6 * 4096));
        let tag = |operation, page| Payload::Tag(pattern(operation, Lpn(page)));
        assert_eq!(pages, [Payload::Zero, tag(1, 1), tag(1, 2), tag(2, 3), tag(3, 4), tag(3, 5)]);
        file.close().await.unwrap();
        direct.close().await.unwrap();
        root.unlink("/f").await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().pages_free, 50);
        vfs.unmount().await.unwrap();
    });
}
