//! Cuts of a stack while it runs: collects the media that a cut after each turn may leave, and draws some of them.
//!
//! Place in the data flow: the driver of a [`Stack`] passes it to [`Cuts::look`] after each turn; afterwards [`awake`]
//! brings the device back with each chosen medium.
//!
//! Invariants: the choice is a function of the run; consecutive turns with the same medium and operations in progress
//! form one situation.

use super::bug::Bug;
use super::ops::PlaceHash;
use super::setup::{BLOCKS, SEGMENT_BLOCKS};
use super::volume::{Base, base_hash};
use crate::explorer::{cell_hash, combinations};
use flashweir_contract::{Content, DeviceKind};
use flashweir_core::random::mix;
use flashweir_core::{Bytes, Instant, Lpn, Payload, RandomStream};
use flashweir_device::config::{AppendMode, PersistPolicy, RangeFlushSupport};
use flashweir_device::flash::Interrupted;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, FastForward, Media, Recovery, Torn};
use flashweir_fs::port::{Block, BlockPort as _, Write};
use flashweir_sim::stack::{FlushMode, Stack};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Returns the device of a base: small, and full. For odd seeds it is the emulator of the RFLUSH paper, whose buffer
/// holds a whole sequence and whose pages hold one unit, so that no other data are written beside the requested ones.
/// For even seeds it is a phone's device, with a buffer that overflows, a link that takes time, several units per page,
/// and word lines that a cut destroys as a whole. Where the file system relies on order, the device keeps epochs in one
/// of the three ways, and has more spare blocks, because versions that an epoch may still need cannot be
/// garbage-collected. For a file system that uses SHARE it has that, too.
fn config(base: &Base) -> DeviceConfig {
    use PersistPolicy::{InOrderRecovery, InOrderWriteBack, Transactional};
    if base.format.appends() {
        return segments(base.seed);
    }
    let is_phone = base.seed.is_multiple_of(2);
    let is_ordered = base.format.device_kind() >= DeviceKind::D3;
    let name = if is_phone { "mobile-ufs" } else { "rflush" };
    let mut config = preset(name).expect("it is among the presets");
    let geometry = &mut config.geometry;
    (geometry.channels, geometry.chips_per_channel, geometry.planes_per_die) = (2, 1, 1);
    geometry.pages_per_block = if is_phone { 24 } else { 64 };
    config.buffer.capacity = if is_phone { Bytes::kib(256) } else { Bytes::mib(4) };
    config.buffer.range_flush = RangeFlushSupport::Selective;
    config.ftl.over_provisioning = if is_ordered { 0.3 } else { 0.15 };
    if is_ordered {
        config.order.policy = [InOrderRecovery, Transactional, InOrderWriteBack][(base.seed % 3) as usize];
    }
    if base.format.shares {
        // Of three devices one has a table that is soon full, so that it copies.
        config.ftl.share.pages = if base.seed.is_multiple_of(3) { 12 } else { 4096 };
    }
    config.faults.paired_page_loss = is_phone;
    let block_bytes = u64::from(geometry.pages_per_block) * geometry.page_bytes.0;
    let blocks = (BLOCKS * 4096) as f64 / (1.0 - config.ftl.over_provisioning) / block_bytes as f64;
    config.geometry.blocks_per_plane = (blocks / 2.0).ceil() as u32 + 1;
    config
}

/// Returns the card of the AMF paper, as small as the volume. For odd seeds a page holds one unit, as there; for even ones two, so that
/// tails of segments are kept in its log, and one of three devices takes any unwritten sector.
fn segments(seed: u64) -> DeviceConfig {
    let mut config = preset("amf").expect("it is among the presets");
    let has_tails = seed.is_multiple_of(2);
    let geometry = &mut config.geometry;
    (geometry.channels, geometry.chips_per_channel) = (2, 2);
    if has_tails {
        (geometry.page_bytes, geometry.pages_per_block) = (Bytes::kib(8), 64);
    }
    config.append.mode = if seed.is_multiple_of(3) { AppendMode::WriteOnce } else { AppendMode::Sequential };
    config.append.segments = (BLOCKS / u64::from(SEGMENT_BLOCKS)) as u32;
    config.append.spare_blocks = 4;
    config.geometry.blocks_per_plane = config.append.segments + 12;
    config.buffer.capacity = Bytes::mib(1);
    config.validate().expect("such a device is valid");
    config
}

/// Returns the medium of a base on a device of segments, all of which were written and deallocated before.
fn segment_medium(base: &Base) -> Media {
    let device = Device::new(config(base), options(None));
    let mut stack = Stack::with_digest(device, FlushMode::Flush);
    let (port, contents, seed) = (stack.port(), Arc::clone(&base.contents), base.seed);
    let filled = stack.block_on(async move {
        for segment in (0..BLOCKS).step_by(SEGMENT_BLOCKS as usize) {
            let junk: Vec<Payload> = (0..32).map(|at| Payload::Tag(mix(seed ^ (segment + at)))).collect();
            port.write(Write::new(Block(segment), junk)).completed().await?;
        }
        port.flush().completed().await?;
        for segment in (0..BLOCKS).step_by(SEGMENT_BLOCKS as usize) {
            port.discard(Block(segment), SEGMENT_BLOCKS).completed().await?;
        }
        for (unit, content) in &*contents {
            port.write(Write::new(Block(unit.0), vec![content.clone()])).completed().await?;
        }
        port.flush().completed().await
    });
    filled.expect("it ends").expect("a fresh device takes a volume");
    let now = stack.cut_instant();
    stack.with_device(|device| device.cut(now, |_| Torn::Absent))
}

fn options(planted: Option<Bug>) -> DeviceOptions {
    DeviceOptions { seed: 1, track_contents: true, planted: Bug::in_device(planted) }
}

/// Returns the medium of a base on a device that has been overwritten completely more than once.
pub fn medium(base: &Base) -> Media {
    let make = || {
        let mut device = Device::new(config(base), options(None));
        let units = device.geometry().user_units;
        assert!(units >= BLOCKS, "the device has {units} units");
        let mut random = RandomStream::new(base.seed, "ageing of a device");
        let mut fill = FastForward::new(&mut device);
        let content = |unit| base.contents.get(&Lpn(unit)).cloned().unwrap_or_default();
        for unit in 0..units {
            fill.write(Lpn(unit), Payload::Tag(mix(base.seed ^ unit)));
        }
        for unit in 0..units {
            fill.write(Lpn(unit), content(unit));
        }
        for _ in 0..units {
            let unit = random.below(units);
            fill.write(Lpn(unit), content(unit));
        }
        fill.finish();
        device.cut(Instant::ZERO, |_| Torn::Absent)
    };
    let made = || if base.format.appends() { segment_medium(base) } else { make() };
    base.medium.get_or_init(made).clone()
}

/// Returns the device that wakes up with a medium. Panics where an assertion of the device fails, which is a fault to
/// be found.
pub fn awake(base: &Base, planted: Option<Bug>, media: Media) -> Device {
    let (device, _) = Recovery::begin(&config(base), options(planted), media).finish();
    device.audit();
    device
}

/// Returns the hash of what a device reads as, computed as [`explorer`](super::explorer) hashes images.
pub fn image_of(base: &Base, device: &Device) -> u64 {
    let mut hash = PlaceHash::default();
    let zero = Payload::default();
    for lpn in (0..BLOCKS).map(Lpn) {
        let (before, now) = (base.contents.get(&lpn).unwrap_or(&zero), device.peek(lpn).unwrap_or_default());
        let is_shared = match (before, &now) {
            (Payload::Bytes(a), Payload::Bytes(b)) => Arc::ptr_eq(a, b),
            (a, b) => a == b,
        };
        if !is_shared {
            hash.add(lpn, Content::from(&now).0);
            hash.remove(lpn, Content::from(before).0);
        }
    }
    base_hash(base).wrapping_add(hash.0)
}

/// The state in which the power fails: the medium, and the operations in progress.
pub(super) struct Situation {
    key: u64,
    cells: Vec<Interrupted>,
    now: Instant,
}

impl Situation {
    /// Takes the situation of a device; `salt` stands for the medium.
    pub(super) fn new(device: &Device, now: Instant, salt: u64) -> Self {
        let cells = device.interrupted(now);
        let key = cells.iter().fold(mix(salt), |hash, cell| mix(hash ^ cell_hash(cell)));
        Self { key, cells, now }
    }

    /// Returns the ways in which the operations in progress may be torn.
    pub(super) fn torn(&self) -> Vec<Vec<Torn>> {
        combinations(&self.cells, &mut RandomStream::new(self.key, "torn operations"))
    }

    pub(super) fn media(&self, device: &Device, torn: &[Torn]) -> Media {
        let mut next = torn.iter();
        device.cut(self.now, |_| next.next().copied().unwrap_or(Torn::Absent))
    }
}

/// The cuts of a run.
#[derive(Debug)]
pub struct Cuts {
    states_max: usize,
    /// First turn of each situation.
    firsts: Vec<u32>,
    last_key: Option<u64>,
    allowed: u64,
    /// The media with the lowest ranks, by rank, situation, and index of the torn variant.
    chosen: BTreeMap<(u64, usize, usize), Media>,
}

impl Cuts {
    /// Makes a collection of at most `states_max` media.
    pub fn new(states_max: usize) -> Self {
        Self { states_max, firsts: Vec::new(), last_key: None, allowed: 0, chosen: BTreeMap::new() }
    }

    /// Examines a stack after `turn` turns. The media before the first turn and after the last are always chosen.
    pub fn look(&mut self, turn: u32, stack: &Stack, is_last: bool) {
        let now = stack.cut_instant();
        stack.with_device(|device| {
            let situation = Situation::new(device, now, device.media().digest());
            let is_old = self.last_key.replace(situation.key) == Some(situation.key);
            if is_old && !is_last {
                return;
            }
            self.firsts.push(turn);
            let torn = situation.torn();
            self.allowed += torn.len() as u64;
            for (index, torn) in torn.iter().enumerate() {
                let is_end = index == 0 && (turn == 0 || is_last);
                let rank = if is_end { 0 } else { mix(situation.key ^ index as u64).max(1) };
                let key = (rank, self.firsts.len() - 1, index);
                let is_wanted = self.chosen.last_key_value().is_none_or(|(last, _)| key < *last);
                if is_wanted || self.chosen.len() < self.states_max {
                    self.chosen.insert(key, situation.media(device, torn));
                }
                if self.chosen.len() > self.states_max {
                    self.chosen.pop_last();
                }
            }
        });
    }

    /// Returns the number of situations so far.
    pub fn situations(&self) -> u64 {
        self.firsts.len() as u64
    }

    /// Returns the number of media that these may leave.
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Returns the chosen media, each with the turns after which a cut may leave it; `end` is the last turn.
    pub fn into_media(self, end: u32) -> Vec<(Range<u32>, Media)> {
        let mut media: Vec<(usize, usize, Media)> =
            self.chosen.into_iter().map(|((_, situation, torn), media)| (situation, torn, media)).collect();
        media.sort_by_key(|&(situation, torn, _)| (situation, torn));
        let firsts = self.firsts;
        let turns =
            |situation: usize| firsts[situation]..firsts.get(situation + 1).copied().unwrap_or(end + 1);
        media.into_iter().map(|(situation, _, media)| (turns(situation), media)).collect()
    }
}
