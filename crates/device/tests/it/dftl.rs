//! A map on the medium with a cache of translation pages (DFTL): reads return what a map in memory says, whatever the cache; and
//! hits and misses are counted.

use crate::harness::{Host, random_config};
use flashweir_core::command::{StreamId, pattern};
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Lba, Lpn, Op, Order, Payload};
use flashweir_device::config::{
    Allocation, BufferMode, DeviceConfig, Metadata, Miss, PersistPolicy, Translation,
};
use flashweir_device::flash::{BlockHealth, PageImage, SaveArea, Saved, Store, Stored};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions, FastForward, Geometry, Recovery, Torn};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A random device with a map on the medium; `cached` of its pages, or all, fit into the cache.
fn mapped(seed: u64, cached: Option<u64>, miss: Miss) -> DeviceConfig {
    let mut config = random_config(seed, 0.0);
    config.ftl.translation = Translation::DemandCached;
    config.ftl.demand.entries = [3, 8, 64][(seed % 3) as usize];
    config.ftl.demand.miss = miss;
    config.geometry.blocks_per_plane += 16;
    while let Err(error) = config.validate() {
        config.ftl.over_provisioning += 0.01;
        assert!(config.ftl.over_provisioning < 0.85, "seed {seed}: {error}");
    }
    with_cache(config, cached)
}

fn with_cache(mut config: DeviceConfig, cached: Option<u64>) -> DeviceConfig {
    let pages = Geometry::new(&config).map_pages;
    config.ftl.demand.cached = cached.map_or(1.0, |cached| ((cached as f64 + 0.5) / pages as f64).min(1.0));
    config
}

/// A small write-through device with one unit in a page, without random choices.
fn plain(cached: u64, miss: Miss) -> DeviceConfig {
    let mut config = preset("amf-dftl").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.blocks_per_plane, g.pages_per_block) = (2, 1, 64, 16);
    config.ftl.allocation = Allocation::Static;
    config.ftl.over_provisioning = 0.3;
    config.ftl.demand.entries = 16;
    config.ftl.demand.miss = miss;
    config.ftl.gc.start_below_blocks = 4;
    config.buffer.mode = BufferMode::WriteThrough;
    config.buffer.capacity = Bytes::kib(64);
    let config = with_cache(config, Some(cached));
    config.validate().unwrap();
    config
}

fn fill(host: &mut Host, units: u64) {
    host.rest();
    let mut forward = FastForward::new(&mut host.device);
    for lpn in 0..units {
        forward.write(Lpn(lpn), Payload::Tag(pattern(1 << 40, Lpn(lpn))));
        host.expected[lpn as usize] = pattern(1 << 40, Lpn(lpn));
    }
    forward.finish();
    host.device.audit();
}

fn read(host: &mut Host, lpn: u64, units: u64) -> u64 {
    let per_unit = host.device.geometry().lbas_per_unit;
    host.submit(Op::Read { lba: Lba(lpn * per_unit), blocks: (units * per_unit) as u32 }, false)
}

/// A power cut now, when everything is durable: the newest version of each unit is found again, and the device works on.
fn comes_back(host: &Host, what: &str) {
    let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    let (device, _) = Recovery::begin(host.device.config(), options, media).finish();
    for (lpn, &expected) in (0..).zip(&host.expected) {
        let content = device.peek(Lpn(lpn)).map_or(0, |payload| payload.identity());
        assert_eq!(content, expected, "{what}: unit {lpn} after a recovery");
    }
    device.audit();
}

fn torture(config: &DeviceConfig, seed: u64, steps: u64) -> Host {
    let mut host = Host::new(config, seed);
    let units = host.expected.len() as u64;
    let mut r = RandomStream::new(seed, "commands");
    host.write_all();
    for step in 0..steps {
        let (len, depth) = (1 + r.below(6).min(units - 1), r.below(16));
        let lpn = if r.below(2) == 0 { r.below(units) } else { r.below(units.div_ceil(8)) }.min(units - len);
        if config.order.policy != PersistPolicy::None {
            let (stream, ends) = (r.below(3) as u16, r.below(4) == 0);
            host.order = (r.below(4) > 0)
                .then_some((StreamId(stream), if ends { Order::Barrier } else { Order::Within }));
        }
        match r.below(100) {
            0..60 => host.write(lpn, len, r.below(20) == 0),
            60..68 => host.trim(lpn, len, r.below(2) == 0),
            68..71 => drop(host.submit(Op::Flush, false)),
            _ => drop(read(&mut host, lpn, len)),
        }
        host.wait(depth);
        if step % 400 == 399 {
            host.order = None;
            host.submit(Op::Flush, false);
            let what = format!("seed {seed}, step {step}, {config:?}");
            host.check(&what);
            comes_back(&host, &what);
            let lpn = r.below(units);
            read(&mut host, lpn, 1);
            host.wait(0);
            assert_eq!(host.data[0].identity(), host.expected[lpn as usize], "{what}: unit {lpn} is read");
        }
    }
    assert_eq!(host.errors, 0, "seed {seed}");
    host
}

#[test]
fn every_cache_gives_what_a_map_in_memory_gives() {
    let (mut merges, mut victims, mut moved) = (0, 0, 0);
    for seed in 0..48 {
        let miss = [Miss::HoldsAll, Miss::HoldsOwn][(seed / 3 % 2) as usize];
        for cached in [Some(1), Some(2), Some(7), None] {
            let host = torture(&mapped(seed, cached, miss), seed, 1_200);
            let metrics = host.device.metrics();
            merges += metrics.map_merges;
            victims += metrics.map_victims;
            moved += metrics.map_pages_moved;
            assert!(metrics.map_misses > 0 && metrics.map_hits > 0, "seed {seed}");
        }
    }
    println!("{merges} merges, {victims} blocks of translation pages collected, {moved} pages moved");
    assert!(merges > 100 && victims > 100 && moved > 100);
}

#[test]
fn a_deallocation_of_everything_passes_a_cache_of_one_page() {
    for miss in [Miss::HoldsAll, Miss::HoldsOwn] {
        let mut host = Host::new(&plain(1, miss), 1);
        let units = host.expected.len() as u64;
        fill(&mut host, units);
        let before = *host.device.metrics();
        host.trim(0, units, false);
        // Commands behind the deallocation, and reads at the same time, do not wait for ever.
        host.write(units / 2, 1, false);
        read(&mut host, 3, 40);
        host.submit(Op::Flush, false);
        host.check("all but one unit is gone");
        comes_back(&host, "all but one unit is gone");
        let counted = host.device.metrics().since(&before);
        let pages = host.device.geometry().map_pages;
        assert!(counted.map_pages_read >= pages, "{pages} pages each had to be read");
        assert_eq!((counted.host_trims, counted.host_units_trimmed), (1, units));
        assert_eq!(host.errors, 0);
    }
}

/// Loads and changes move a page to the end of the cache; lookups that hit do not (append-segments §7.2).
#[test]
fn hits_and_misses_are_those_of_a_list() {
    for (miss, cached) in [(Miss::HoldsAll, 1), (Miss::HoldsOwn, 2), (Miss::HoldsAll, 5), (Miss::HoldsOwn, 9)]
    {
        let mut host = Host::new(&plain(cached, miss), 1);
        // So little that no GC runs.
        let units = host.expected.len() as u64 / 3;
        fill(&mut host, units);
        let before = *host.device.metrics();
        let mut list: VecDeque<u64> = VecDeque::new();
        let (mut hits, mut misses, mut dirty, mut written) = (0, 0, Vec::new(), 0);
        let mut r = RandomStream::new(7, "looks");
        for _ in 0..400 {
            let lpn = r.below(units);
            let page = lpn / 16;
            let is_write = r.below(5) == 0;
            if list.contains(&page) {
                hits += 1;
            } else {
                misses += 1;
                if list.len() as u64 == cached {
                    let gone = list.pop_front().unwrap();
                    written += u64::from(dirty.contains(&gone));
                    dirty.retain(|page| *page != gone);
                }
                list.push_back(page);
            }
            if is_write {
                host.write(lpn, 1, false);
                list.retain(|other| *other != page);
                list.push_back(page);
                dirty.push(page);
            } else {
                read(&mut host, lpn, 1);
            }
            host.wait(0);
        }
        let counted = host.device.metrics().since(&before);
        assert_eq!(counted.gc_victims, 0);
        let found = [counted.map_hits, counted.map_misses, counted.map_pages_read, counted.map_pages_written];
        assert_eq!(found, [hits, misses, misses, written], "cache of {cached}");
        host.check("the contents are right");
    }
}

/// Of random reads of ten sixteenths of the device, 1 − 0.2 · 16 / 10 miss: the paper measured 67 % (append-segments §7.2).
#[test]
fn random_reads_miss_as_often_as_in_the_paper() {
    let mut config = preset("amf-dftl").unwrap();
    (config.geometry.channels, config.geometry.chips_per_channel) = (1, 1);
    config.geometry.blocks_per_plane = 512;
    config.ftl.gc.start_below_blocks = 10;
    let mut host = Host::new(&config, 1);
    let units = host.expected.len() as u64;
    fill(&mut host, units);
    let mut r = RandomStream::new(1, "reads");
    let mut looks = |host: &mut Host, count: u64| {
        for _ in 0..count {
            read(host, r.below(units * 10 / 16), 1);
            host.wait(0);
        }
    };
    looks(&mut host, 3_000);
    let before = *host.device.metrics();
    looks(&mut host, 20_000);
    let counted = host.device.metrics().since(&before);
    let share = counted.map_misses as f64 / (counted.map_misses + counted.map_hits) as f64;
    println!("{share:.3} of the lookups miss");
    assert!((share - 0.68).abs() < 0.02, "{share}");
}

#[test]
fn a_miss_holds_up_all_or_only_its_own_command() {
    for (miss, is_overtaken) in [(Miss::HoldsAll, false), (Miss::HoldsOwn, true)] {
        let mut host = Host::new(&plain(2, miss), 1);
        fill(&mut host, 200);
        read(&mut host, 0, 1);
        host.wait(0);
        // The first read has to fetch a page of the map, the second one finds its page in the cache.
        let (misses, hits) = (read(&mut host, 100, 1), read(&mut host, 1, 1));
        host.wait(0);
        let at = |id| host.answered.iter().position(|other| *other == id).unwrap();
        assert_eq!(at(hits) < at(misses), is_overtaken, "{miss:?}");
    }
}

/// A full device that is overwritten at random: GC of data and GC of translation pages go on beside one another.
#[test]
fn a_full_device_collects_data_and_translation_pages() {
    for miss in [Miss::HoldsAll, Miss::HoldsOwn] {
        let mut config = plain(3, miss);
        config.buffer.mode = BufferMode::WriteBack;
        config.ftl.over_provisioning = 0.05;
        while config.validate().is_err() {
            config.ftl.over_provisioning += 0.01;
        }
        let mut host = Host::new(&with_cache(config, Some(3)), 1);
        let units = host.expected.len() as u64;
        fill(&mut host, units);
        let mut r = RandomStream::new(3, "overwrites");
        for _ in 0..6 * units {
            host.write(r.below(units), 1, false);
            host.wait(16);
        }
        host.submit(Op::Flush, false);
        host.check("a full device");
        comes_back(&host, "a full device");
        let metrics = host.device.metrics();
        println!("{metrics:?}");
        assert!(metrics.gc_victims > 100 && metrics.map_victims > 100 && metrics.map_pages_moved > 0);
        assert!(metrics.map_merges > 0 && metrics.map_pages_written > 100);
    }
}

/// A store in memory. While it fails, the first read of every second translation page finds it damaged.
#[derive(Debug)]
struct Forgetful {
    pages: BTreeMap<(BlockId, u32), Vec<Payload>>,
    /// Translation pages that were read since they were programmed.
    was_read: BTreeSet<(BlockId, u32)>,
    fails: Arc<AtomicBool>,
    reads: u64,
}

impl Store for Forgetful {
    fn program(&mut self, page: &PageImage<'_>) -> Stored {
        let at = (page.at.block, page.at.page);
        self.was_read.remove(&at);
        self.pages.insert(at, page.units.iter().map(|unit| unit.payload.clone()).collect());
        Ok(())
    }

    fn spoil(&mut self, _: PageAddr, _: u32, _: u64, _: u32) -> Stored {
        Ok(())
    }

    fn erase(&mut self, _: BlockId, _: BlockHealth) -> Stored {
        Ok(())
    }

    fn mark(&mut self, _: BlockId, _: BlockHealth) -> Stored {
        Ok(())
    }

    fn read(&mut self, at: PageAddr, unit: u32, _: u32) -> Option<Payload> {
        let at = (at.block, at.page);
        let payload = self.pages[&at][unit as usize].clone();
        // Hosts write tags here, so bytes are a translation page.
        if matches!(payload, Payload::Bytes(_)) && self.fails.load(Ordering::Relaxed) {
            self.reads += 1;
            if self.was_read.insert(at) && self.reads.is_multiple_of(2) {
                return None;
            }
        }
        Some(payload)
    }

    fn journal(&mut self, _: &[Saved]) -> Stored<bool> {
        Ok(false)
    }

    fn begin_journal(&mut self, _: &SaveArea) -> Stored {
        Ok(())
    }
}

/// A store loses translation pages that a miss or GC reads. The map in memory is right, so each is written again and none is missing after a
/// power cut.
#[test]
fn translation_pages_that_a_store_lost_are_written_again() {
    for miss in [Miss::HoldsAll, Miss::HoldsOwn] {
        let mut config = plain(3, miss);
        config.ftl.over_provisioning = 0.05;
        while config.validate().is_err() {
            config.ftl.over_provisioning += 0.01;
        }
        let config = with_cache(config, Some(3));
        let mut host = Host::new(&config, 1);
        let fails = Arc::new(AtomicBool::new(true));
        let (pages, was_read) = Default::default();
        let store = Forgetful { pages, was_read, fails: Arc::clone(&fails), reads: 0 };
        let mut media = host.device.media().clone();
        media.attach(Arc::new(Mutex::new(store)));
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        host.device = Recovery::begin(&config, options, media).finish().0;
        let units = host.expected.len() as u64;
        let mut r = RandomStream::new(3, "overwrites");
        for step in 0..5 * units {
            host.write(if step < units { step } else { r.below(units) }, 1, false);
            host.wait(16);
        }
        host.submit(Op::Flush, false);
        host.wait(0);
        let metrics = host.device.metrics();
        assert!(metrics.map_pages_moved > 50 && metrics.uncorrectable_reads > 50, "{metrics:?}");
        fails.store(false, Ordering::Relaxed);
        comes_back(&host, "a store that lost translation pages");
    }
}

/// Filled, filled again at once, and used in between: changes that the filling did not write are written later.
#[test]
fn preconditioning_writes_translation_pages() {
    let mut host = Host::new(&plain(2, Miss::HoldsAll), 1);
    let units = host.expected.len() as u64;
    fill(&mut host, units);
    let pages = host.device.geometry().map_pages;
    assert_eq!(host.device.metrics().map_pages_written, pages);
    comes_back(&host, "filled once");
    fill(&mut host, units);
    comes_back(&host, "filled twice");
    for lpn in (0..units).step_by(5) {
        host.write(lpn, 1, false);
        host.wait(4);
    }
    host.submit(Op::Flush, false);
    host.check("used");
    comes_back(&host, "used");
    fill(&mut host, units / 2);
    comes_back(&host, "filled where the log names pages");
    for lpn in (0..units).step_by(3) {
        host.write(lpn, 1, false);
        host.wait(4);
    }
    host.submit(Op::Flush, false);
    host.check("used again");
    comes_back(&host, "used again");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let message = |change: &dyn Fn(&mut DeviceConfig)| {
        let mut config = preset("amf-dftl").unwrap();
        change(&mut config);
        config.validate().unwrap_err()
    };
    assert_eq!(
        message(&|config| config.ftl.demand.cached = 0.0),
        "ftl.demand.cached = 0: expected more than 0, at most 1"
    );
    assert_eq!(
        message(&|config| config.ftl.demand.cached = f64::NAN),
        "ftl.demand.cached = NaN: expected more than 0, at most 1"
    );
    assert_eq!(
        message(&|config| config.ftl.demand.entries = 255),
        "ftl.demand.entries = 255: expected 1 to 254"
    );
    assert_eq!(
        message(&|config| config.ftl.metadata = Metadata::None),
        "ftl.translation = \"demand-cached\": expected ftl.metadata = \"log\", which holds the directory of its pages"
    );
    let resident = preset("amf-page").unwrap();
    assert!(
        !toml::to_string(&resident).unwrap().contains("demand"),
        "a resident map says nothing of a cache"
    );
    let device = Device::new(resident, DeviceOptions { seed: 1, track_contents: false, planted: None });
    assert_eq!(device.geometry().map_blocks, 0);
}
