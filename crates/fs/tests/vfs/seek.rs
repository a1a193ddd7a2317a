//! `SEEK_DATA` and `SEEK_HOLE`.

use crate::bed::cache_of;
use crate::disk::page;
use crate::each::*;
use flashweir_core::RandomStream;
use flashweir_fs::memfs::MemFsConfig;
use flashweir_fs::vfs::*;
use proptest::prelude::*;

/// Where the parts of a file are that have data.
async fn parts<F: Fs>(file: &File<F>) -> Vec<(u64, u64)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    loop {
        match file.seek(Seek::Data(at)).await {
            Ok(data) => {
                let hole = file.seek(Seek::Hole(data)).await.unwrap();
                assert!(data >= at && hole > data, "{at} {data} {hole}");
                parts.push((data, hole));
                at = hole;
                if at >= file.size() {
                    return parts;
                }
            }
            Err(errno) => {
                assert_eq!(errno, Errno::ENXIO);
                return parts;
            }
        }
    }
}

async fn tell<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    let file = root.open("/f", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
    for to in [Seek::Data(0), Seek::Hole(0)] {
        assert_eq!(file.seek(to).await, Err(Errno::ENXIO), "it is empty");
    }
    file.truncate(100_000).await.unwrap();
    assert_eq!(file.seek(Seek::Data(0)).await, Err(Errno::ENXIO));
    assert_eq!((file.seek(Seek::Hole(7)).await, file.seek(Seek::Hole(99_999)).await), (Ok(7), Ok(99_999)));
    assert_eq!(file.seek(Seek::Hole(100_000)).await, Err(Errno::ENXIO));
    // Ends of a punch within pages of a hole.
    file.punch_hole(100, 9_000).await.unwrap();
    assert_eq!(file.seek(Seek::Data(0)).await, Err(Errno::ENXIO), "zeros in a hole became data");
    // In memory only, and then on the disk.
    file.pwrite(5000, Source::bytes(&[1; 100])).await.unwrap();
    file.pwrite(8 * 4096, Source::bytes(&page(8, 1))).await.unwrap();
    for _ in 0..2 {
        assert_eq!(parts(&file).await, [(4096, 8192), (8 * 4096, 9 * 4096)]);
        assert_eq!(
            (file.seek(Seek::Data(5001)).await, file.seek(Seek::Hole(5001)).await),
            (Ok(5001), Ok(8192))
        );
        assert_eq!(file.seek(Seek::Current(0)).await, Ok(8192), "the position went along");
        file.sync(SyncKind::All).await.unwrap();
    }
    // Room that was never written is a hole, until it is.
    file.allocate(16 * 4096, 4 * 4096, false).await.unwrap();
    assert_eq!(parts(&file).await, [(4096, 8192), (8 * 4096, 9 * 4096)]);
    file.pwrite(17 * 4096, Source::bytes(&page(17, 1))).await.unwrap();
    for _ in 0..2 {
        assert_eq!(parts(&file).await, [(4096, 8192), (8 * 4096, 9 * 4096), (17 * 4096, 18 * 4096)]);
        file.sync(SyncKind::All).await.unwrap();
    }
    file.punch_hole(4096, 4096).await.unwrap();
    // The end of the file in the middle of a page of data.
    file.truncate(17 * 4096 + 9).await.unwrap();
    assert_eq!(parts(&file).await, [(8 * 4096, 9 * 4096), (17 * 4096, 17 * 4096 + 9)]);
    assert_eq!(file.seek(Seek::Hole(17 * 4096 + 8)).await, Ok(17 * 4096 + 9));
    file.close().await.unwrap();
    // A small one, that may be in its inode.
    let file = root.create("/small").await.unwrap();
    file.pwrite(0, Source::bytes(b"small")).await.unwrap();
    for _ in 0..2 {
        assert_eq!(parts(&file).await, [(0, 5)]);
        file.sync(SyncKind::All).await.unwrap();
    }
    file.truncate(10_000).await.unwrap();
    assert_eq!(parts(&file).await, [(0, 4096)]);
    file.close().await.unwrap();
    let dir = root.open("/", OpenFlags::READ, 0).await.unwrap();
    assert_eq!(dir.seek(Seek::Data(0)).await, Err(Errno::EINVAL));
    dir.close().await.unwrap();
}

/// Data far apart, each behind another node of the file's map.
async fn leap<F: Fs>(vfs: Vfs<F>) {
    let root = vfs.process(Creds::ROOT);
    let file = root.open("/f", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
    let pages: Vec<u64> = vec![3, 900, 1_900, 2_900, 4_500, 1 << 20, 2_078_000, 3_200_000, 1 << 23, 1 << 28];
    for &at in &pages {
        file.pwrite(at * 4096, Source::bytes(&page(at, 1))).await.unwrap();
    }
    for _ in 0..2 {
        let expected: Vec<(u64, u64)> = pages.iter().map(|at| (at * 4096, (at + 1) * 4096)).collect();
        assert_eq!(parts(&file).await, expected);
        file.sync(SyncKind::All).await.unwrap();
    }
    file.close().await.unwrap();
}

#[test]
fn data_and_holes_are_told() {
    on_each!(tell);
}

#[test]
fn data_far_apart_are_found() {
    on_each!(leap);
}

const PAGES: u64 = 40;

/// Random changes against a list of the pages that were written and neither punched nor cut off since.
async fn compare<F: Fs>(vfs: Vfs<F>, seed: u64) {
    let root = vfs.process(Creds::ROOT);
    let mut random = RandomStream::new(seed, "seeks");
    let file = root.open("/f", OpenFlags::READ_WRITE.create(), 0o600).await.unwrap();
    let mut has_data = vec![false; PAGES as usize + 8];
    let mut size = 0;
    for round in 0..80 {
        let at = random.below(PAGES);
        let count = 1 + random.below(6).min(PAGES - at);
        let (from, to) = (at as usize, (at + count) as usize);
        match random.below(9) {
            0 | 1 => {
                for at in at..at + count {
                    file.pwrite(at * 4096, Source::bytes(&page(at, round))).await.unwrap();
                }
                has_data[from..to].fill(true);
                size = size.max((at + count) * 4096);
            }
            2 => {
                file.pwrite(at * 4096 + 100, Source::bytes(&[7; 9])).await.unwrap();
                has_data[from] = true;
                size = size.max(at * 4096 + 109);
            }
            3 => {
                file.allocate(at * 4096, count * 4096, true).await.unwrap();
            }
            4 => {
                file.punch_hole(at * 4096, count * 4096).await.unwrap();
                has_data[from..to].fill(false);
            }
            5 => {
                size = at * 4096 + random.below(2) * 77;
                file.truncate(size).await.unwrap();
                has_data[size.div_ceil(4096) as usize..].fill(false);
            }
            6 => file.sync(SyncKind::Data).await.unwrap(),
            7 => vfs.sync_all().await.unwrap(),
            _ => {
                let direct = root.open("/f", OpenFlags::WRITE.direct(), 0).await.unwrap();
                direct.pwrite(at * 4096, Source::bytes(&page(at, round))).await.unwrap();
                direct.close().await.unwrap();
                has_data[from] = true;
                size = size.max((at + 1) * 4096);
            }
        }
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for at in (0..size.div_ceil(4096)).filter(|at| has_data[*at as usize]) {
            let (begin, end) = (at * 4096, ((at + 1) * 4096).min(size));
            match expected.last_mut() {
                Some(last) if last.1 == begin => last.1 = end,
                _ => expected.push((begin, end)),
            }
        }
        assert_eq!(parts(&file).await, expected, "round {round}, size {size}");
        let at = random.below(size + 2);
        let next = |wanted: bool| {
            let is_wanted = |place: &u64| has_data[(*place / 4096) as usize] == wanted;
            std::iter::once(at).chain((at / 4096 + 1..=PAGES + 6).map(|page| page * 4096)).find(is_wanted)
        };
        let data = next(true).filter(|place| *place < size).ok_or(Errno::ENXIO);
        let hole = next(false).map(|place| place.min(size)).filter(|_| at < size).ok_or(Errno::ENXIO);
        assert_eq!(
            (file.seek(Seek::Data(at)).await, file.seek(Seek::Hole(at)).await),
            (data, hole),
            "from {at}"
        );
    }
    file.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// With a cache that all fits into, and with one from which pages are evicted.
    #[test]
    fn seeks_agree_with_a_list(seed: u64) {
        on_each!(compare, seed);
        on_each!(with MountOptions { cache: cache_of(32), ..MountOptions::default() }, compare, seed);
    }
}
