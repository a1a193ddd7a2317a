//! Pages and segments on one pool of blocks: contents, blocks that change sides, exhaustion, counters, power cuts.

use crate::harness::random_config;
use flashweir_core::command::{APPEND_NAMESPACE, OPEN_NAMESPACE, PAGE_NAMESPACE, SegmentId, pattern};
use flashweir_core::random::RandomStream;
use flashweir_core::{Agenda, Bytes, Command, Data, DeviceError, Done, Lba, Lpn, Op, Payload};
use flashweir_device::config::{Allocation, AppendMode, BufferMode, EraseTime, FirmwareKind, OrderConfig};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Effect, Event, Recovery, Torn};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;

/// Four ways, 24 blocks of eight pages of one unit of 4 KiB; six segments of 32 units.
fn config() -> DeviceConfig {
    let mut config = preset("amf-page").unwrap();
    config.firmware = FirmwareKind::PageAndAppend;
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.blocks_per_plane, g.pages_per_block) = (2, 2, 24, 8);
    (config.append.segments, config.append.spare_blocks) = (6, 2);
    config.ftl.allocation = Allocation::Static;
    config.ftl.over_provisioning = 0.5;
    config.buffer.capacity = Bytes::kib(128);
    config
}

/// A host of both namespaces, which knows what each holds once all of its commands are answered.
#[derive(Debug)]
struct Host {
    device: Device,
    agenda: Agenda<Event>,
    pages: Vec<u64>,
    segments: Vec<Vec<u64>>,
    in_flight: u64,
    next: u64,
    errors: Vec<DeviceError>,
}

impl Host {
    fn new(config: &DeviceConfig, seed: u64) -> Self {
        config.validate().unwrap_or_else(|e| panic!("{e}\n{config:?}"));
        let device = Device::new(config.clone(), DeviceOptions { seed, track_contents: true, planted: None });
        let geometry = device.geometry();
        let (pages, segments) = (geometry.user_units as usize, geometry.append.segments as usize);
        Self {
            device,
            agenda: Agenda::default(),
            pages: vec![0; pages],
            segments: vec![Vec::new(); segments],
            in_flight: 0,
            next: 1,
            errors: Vec::new(),
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Option<Result<Done, DeviceError>> {
        let mut answer = None;
        for effect in effects {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, event),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) => {
                    self.in_flight -= 1;
                    self.errors.extend(completion.result.as_ref().err().cloned());
                    answer = Some(completion.result);
                }
            }
        }
        answer
    }

    fn submit(&mut self, ns: u16, op: Op) -> Option<Result<Done, DeviceError>> {
        let command = Command { ns, ..Command::new(self.next, op) };
        self.next += 1;
        self.in_flight += 1;
        let mut effects = Vec::new();
        self.device.command(self.agenda.now(), command, &mut effects);
        self.carry_out(effects)
    }

    fn step(&mut self) -> Option<Option<Result<Done, DeviceError>>> {
        let (now, event) = self.agenda.pop()?;
        let mut effects = Vec::new();
        self.device.event(now, event, &mut effects);
        Some(self.carry_out(effects))
    }

    /// Handles events until at most `left` commands are under way.
    fn wait(&mut self, left: u64) {
        while self.in_flight > left {
            assert!(self.step().is_some(), "commands are lost\n{}", self.device.describe());
        }
    }

    fn rest(&mut self) {
        while self.step().is_some() {}
    }

    /// The answer to a command on a device without others.
    fn run(&mut self, ns: u16, op: Op) -> Result<Done, DeviceError> {
        let mut answer = self.submit(ns, op);
        while answer.is_none() {
            answer = self.step().unwrap_or_else(|| panic!("no answer\n{}", self.device.describe()));
        }
        answer.unwrap()
    }

    fn per_unit(&self) -> u64 {
        self.device.geometry().lbas_per_unit
    }

    fn write(&mut self, lpn: u64, units: u64) {
        let (id, per_unit) = (self.next, self.per_unit());
        let (lba, blocks) = (Lba(lpn * per_unit), (units * per_unit) as u32);
        self.submit(PAGE_NAMESPACE, Op::Write { lba, blocks, data: Data::Pattern(id) });
        for unit in lpn..lpn + units {
            self.pages[unit as usize] = pattern(id, Lpn(unit));
        }
    }

    fn trim(&mut self, lpn: u64, units: u64) {
        let per_unit = self.per_unit();
        let (lba, blocks) = (Lba(lpn * per_unit), (units * per_unit) as u32);
        self.submit(PAGE_NAMESPACE, Op::Trim { lba, blocks });
        self.pages[lpn as usize..(lpn + units) as usize].fill(0);
    }

    /// Number of a unit of a segment in the namespace.
    fn unit(&self, segment: usize, nth: usize) -> Lpn {
        Lpn((segment * self.device.geometry().append.units as usize + nth) as u64)
    }

    /// Appends so many units, or as many as there is room for.
    fn append(&mut self, segment: usize, units: usize) {
        let first = self.segments[segment].len();
        let units = units.min(self.device.geometry().append.units as usize - first);
        let id = self.next;
        let contents = (first..first + units).map(|nth| pattern(id, self.unit(segment, nth)));
        let contents: Vec<u64> = contents.collect();
        self.segments[segment].extend(contents);
        let blocks = (units as u64 * self.per_unit()) as u32;
        let segment = SegmentId(segment as u32);
        self.submit(APPEND_NAMESPACE, Op::SegAppend { segment, blocks, data: Data::Pattern(id) });
    }

    fn trim_segment(&mut self, segment: usize) {
        self.segments[segment].clear();
        self.submit(APPEND_NAMESPACE, Op::SegTrim { segment: SegmentId(segment as u32) });
    }

    fn flush_both(&mut self) {
        for ns in [PAGE_NAMESPACE, APPEND_NAMESPACE] {
            self.submit(ns, Op::Flush);
        }
    }

    /// The first place at which a device does not hold what was written.
    fn mismatch(&self, device: &Device) -> Option<String> {
        let identity = |payload: Option<Payload>| payload.as_ref().map(Payload::identity);
        for (lpn, expected) in self.pages.iter().enumerate() {
            let found = identity(device.peek(Lpn(lpn as u64))).unwrap_or(0);
            if found != *expected {
                return Some(format!("page {lpn}: {found:x} where {expected:x} was written"));
            }
        }
        for (segment, contents) in self.segments.iter().enumerate() {
            for nth in 0..device.geometry().append.units as usize {
                let found = identity(device.peek_segments(self.unit(segment, nth)));
                if found != contents.get(nth).copied() {
                    return Some(format!("segment {segment}, unit {nth}: {found:x?}"));
                }
            }
        }
        None
    }

    fn check(&mut self, what: &str) {
        self.wait(0);
        self.device.audit();
        assert_eq!(self.mismatch(&self.device), None, "{what}");
    }

    /// The device after a power cut now.
    fn after_cut(&self, torn: Torn) -> Device {
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let media = self.device.cut(self.agenda.now(), |_| torn);
        Recovery::begin(self.device.config(), options, media).finish().0
    }

    /// The namespace whose data the first page of each block holds, if any.
    fn owners(&self) -> Vec<Option<u16>> {
        use flashweir_core::oob::Owner;
        let geometry = self.device.geometry();
        let first = |block| geometry.ppa(PageAddr { block: BlockId(block), page: 0 }, 0);
        let namespace = |block| match self.device.owner(first(block))? {
            Owner::Lpn(_) | Owner::Vpid(_) => Some(PAGE_NAMESPACE),
            Owner::Seg { .. } => Some(APPEND_NAMESPACE),
            Owner::Pad | Owner::Meta => None,
        };
        (0..geometry.blocks()).map(namespace).collect()
    }
}

/// A device of any shape with two namespaces, as full as it may be.
fn random_both(seed: u64, fault: f64) -> DeviceConfig {
    let mut config = random_config(seed, fault);
    let mut r = RandomStream::new(seed, "both");
    config.firmware = FirmwareKind::PageAndAppend;
    config.ftl.allocation = Allocation::Static;
    config.order = OrderConfig::default();
    config.faults.paired_page_loss = false;
    if config.buffer.mode == BufferMode::PowerLossProtected {
        config.buffer.mode = BufferMode::WriteBack;
    }
    let page = config.geometry.page_bytes.0;
    config.buffer.capacity = Bytes(config.buffer.capacity.0.max(4 * page));
    let planes =
        flashweir_device::Geometry::new(&DeviceConfig { firmware: FirmwareKind::Page, ..config.clone() })
            .planes();
    let narrow = planes > 1 && planes.is_multiple_of(2) && r.below(3) == 0;
    let append = &mut config.append;
    append.lanes = if narrow { planes / 2 } else { 0 };
    append.segments = (1 + r.below(5) as u32) * if narrow { 2 } else { 1 };
    append.spare_blocks = 2 + r.below(3) as u32;
    append.mode = [AppendMode::Sequential, AppendMode::WriteOnce][r.below(2) as usize];
    append.static_threshold = [0, 3, 100][r.below(3) as usize];
    append.buffer_share = [0.3, 0.5, 0.7][r.below(3) as usize];
    config.ftl.over_provisioning = 0.05;
    while config.validate().is_err() {
        config.ftl.over_provisioning += 0.03;
        if config.ftl.over_provisioning > 0.7 {
            config.ftl.over_provisioning = 0.05;
            config.geometry.blocks_per_plane += 4;
        }
    }
    config
}

/// Both namespaces at once at some queue depth; checks everything now and then, also after a power cut. Returns whether the device is
/// worn out.
fn torture(seed: u64, steps: u64, fault: f64) -> bool {
    let config = random_both(seed, fault);
    let mut host = Host::new(&config, seed);
    let mut r = RandomStream::new(seed, "commands");
    let (pages, segments) = (host.pages.len() as u64, host.segments.len() as u64);
    let all = host.device.geometry().append.units as usize;
    for lpn in 0..pages {
        host.write(lpn, 1);
        host.wait(8);
    }
    for step in 0..steps {
        let (len, depth) = (1 + r.below(4).min(pages - 1), r.below(16));
        let lpn = r.below(pages).min(pages - len);
        let segment = r.below(segments) as usize;
        match r.below(20) {
            0..8 => host.write(lpn, len),
            8 => host.trim(lpn, len),
            9..16 if host.segments[segment].len() < all => host.append(segment, len as usize),
            9..17 => host.trim_segment(segment),
            17 => host.flush_both(),
            _ => _ = host.submit(PAGE_NAMESPACE, Op::Read { lba: Lba(0), blocks: 1 }),
        }
        host.wait(depth);
        if step % 400 == 399 {
            host.wait(0);
            if host.device.is_read_only() {
                host.rest();
                host.device.audit();
                return true;
            }
            host.check(&format!("seed {seed}, step {step}, {config:?}"));
            if fault == 0.0 {
                host.flush_both();
                host.wait(0);
                for torn in [Torn::Absent, Torn::Damaged] {
                    let after = host.after_cut(torn);
                    after.audit();
                    assert_eq!(host.mismatch(&after), None, "after a cut, seed {seed}, step {step}");
                }
            }
        }
        if fault > 0.0 && host.device.is_read_only() {
            host.wait(0);
            host.rest();
            host.device.audit();
            return true;
        }
    }
    assert!(host.errors.is_empty() || fault > 0.0, "{:?}, seed {seed}", host.errors);
    false
}

#[test]
fn devices_of_every_shape_keep_what_both_namespaces_were_given() {
    for seed in 0..100 {
        eprintln!("seed {seed}");
        torture(seed, 2_000, 0.0);
    }
}

/// Where blocks fail until there are too few, the device refuses writes in either namespace, and every command is answered.
#[test]
fn failing_blocks_end_in_a_device_that_only_reads() {
    let worn = (1_000..1_060).filter(|seed| torture(*seed, 4_000, 0.004)).count();
    assert!(worn > 10, "{worn} of 60 devices wore out");
}

/// Pages fill what segments have not, and give it back when segments come; trimmed segments go to pages.
#[test]
fn blocks_change_sides() {
    let mut host = Host::new(&config(), 1);
    let pages = host.pages.len() as u64;
    let count = |host: &Host, ns| host.owners().iter().filter(|owner| **owner == Some(ns)).count();
    // Rewrites fill the pool with old versions before GC begins.
    for nth in 0..3 * pages {
        host.write(nth * 7 % pages, 1);
        host.wait(8);
    }
    host.flush_both();
    host.check("pages");
    let before = host.owners();
    let of_pages = count(&host, PAGE_NAMESPACE);
    let own = host.device.geometry().blocks_per_plane * 4 - 4 * 8;
    assert!(of_pages > own as usize / 2, "{of_pages} blocks hold pages");
    for segment in 0..6 {
        host.append(segment, 32);
    }
    host.flush_both();
    host.check("segments");
    assert_eq!(count(&host, APPEND_NAMESPACE), 24, "six segments of four blocks");
    let taken = before.iter().zip(host.owners());
    let taken = taken.filter(|pair| *pair == (&Some(PAGE_NAMESPACE), Some(APPEND_NAMESPACE))).count();
    assert!(taken > 0, "blocks of pages went to segments");
    let before = host.owners();
    for segment in 0..6 {
        host.trim_segment(segment);
    }
    host.flush_both();
    for nth in 0..6 * pages {
        host.write(nth * 5 % pages, 1);
        host.wait(8);
    }
    host.flush_both();
    host.check("pages again");
    let given = before.iter().zip(host.owners());
    let given = given.filter(|pair| *pair == (&Some(APPEND_NAMESPACE), Some(PAGE_NAMESPACE))).count();
    assert!(given > 0, "blocks of segments went to pages");
}

/// All segments and all pages full at once: rewriting either goes on for ever.
#[test]
fn neither_namespace_starves_the_other() {
    for mode in [BufferMode::WriteBack, BufferMode::WriteThrough] {
        let mut config = config();
        config.ftl.over_provisioning = 0.05;
        while config.validate().is_err() {
            config.ftl.over_provisioning += 0.01;
        }
        config.buffer.mode = mode;
        let mut host = Host::new(&config, 1);
        let pages = host.pages.len() as u64;
        for nth in 0..20 * pages {
            host.write(nth * 7 % pages, 1);
            let segment = (nth / 4) as usize % 6;
            match host.segments[segment].len() {
                32 => host.trim_segment(segment),
                _ => host.append(segment, 8),
            }
            host.wait(6);
        }
        host.check("both are full");
        assert!(host.errors.is_empty(), "{:?}", host.errors);
    }
}

#[test]
fn wear_levelling_sees_all_blocks() {
    let mut host = Host::new(&config(), 1);
    let pages = host.pages.len() as u64;
    for round in 0..200u64 {
        // Segments are rewritten far more often than pages.
        for segment in 0..6 {
            host.trim_segment(segment);
            host.append(segment, 32);
        }
        for nth in 0..8 {
            host.write((round * 8 + nth) % pages, 1);
        }
        host.wait(0);
    }
    host.check("worn");
    let (least, mean, most) = host.device.wear();
    assert!(mean > 10.0, "{mean} erases of a block");
    // Metadata blocks keep their place and are erased as often as the logs are rewritten, so the bound is for the others.
    assert!(most as f64 <= 4.0 * mean, "{least} to {most} erases, {mean} on average");
}

#[test]
fn commands_go_to_the_namespace_that_they_name() {
    let mut host = Host::new(&config(), 1);
    let segment = SegmentId(0);
    let (lba, blocks) = (Lba(0), 8);
    let write = Op::Write { lba, blocks, data: Data::Zero };
    let append = Op::SegAppend { segment, blocks, data: Data::Zero };
    let lacks = |what| Err(DeviceError::NotSupported(what));
    assert_eq!(host.run(APPEND_NAMESPACE, write.clone()), lacks("writes to sectors in place"));
    assert_eq!(host.run(PAGE_NAMESPACE, append.clone()), lacks("append-only segments"));
    assert!(matches!(host.run(OPEN_NAMESPACE, write.clone()), Err(DeviceError::InvalidField(_))));
    assert_eq!(host.run(PAGE_NAMESPACE, write), Ok(Done::Ok));
    assert_eq!(host.run(APPEND_NAMESPACE, append), Ok(Done::Appended { offset: 0 }));
    let read = |lba| Op::Read { lba, blocks: 8 };
    assert_eq!(host.run(PAGE_NAMESPACE, read(Lba(8))), Ok(Done::Data([Payload::Zero].into())));
    assert!(matches!(host.run(APPEND_NAMESPACE, read(Lba(8))), Err(DeviceError::NotWritten { .. })));
    let end = Lba(host.device.geometry().capacity_lbas());
    assert!(matches!(host.run(PAGE_NAMESPACE, read(end)), Err(DeviceError::OutOfRange(_))));
    let end = Lba(6 * host.device.geometry().segment_lbas());
    assert!(matches!(host.run(APPEND_NAMESPACE, read(end)), Err(DeviceError::OutOfRange(_))));
}

#[test]
fn counters_are_those_of_their_namespace() {
    let mut host = Host::new(&config(), 1);
    for lpn in 0..10 {
        host.write(lpn, 2);
    }
    host.append(1, 32);
    host.append(2, 3);
    host.trim_segment(1);
    host.flush_both();
    host.submit(APPEND_NAMESPACE, Op::Read { lba: Lba(0), blocks: 8 });
    host.submit(APPEND_NAMESPACE, Op::Trim { lba: Lba(0), blocks: 8 });
    host.wait(0);
    host.rest();
    let pages = host.device.namespace_metrics(PAGE_NAMESPACE).unwrap();
    let segments = host.device.namespace_metrics(APPEND_NAMESPACE).unwrap();
    assert_eq!(host.device.namespace_metrics(OPEN_NAMESPACE), None);
    let counts = |m: &flashweir_device::DeviceMetrics| {
        [m.commands, m.completions, m.errors, m.host_writes, m.host_units_written, m.flushes, m.host_trims]
    };
    assert_eq!(counts(&pages), [11, 11, 0, 10, 20, 1, 0]);
    assert_eq!(counts(&segments), [6, 6, 2, 2, 35, 1, 1]);
    assert_eq!(pages.since(&pages), host.device.metrics().since(&pages).since(&segments));
}

/// A FLUSH of one namespace promises nothing of the other.
#[test]
fn a_flush_covers_its_namespace() {
    for ns in [PAGE_NAMESPACE, APPEND_NAMESPACE] {
        let mut host = Host::new(&config(), 1);
        host.write(3, 1);
        // Half a page of units waits in the buffer only if a page has several; so the log has it, or nothing has.
        host.append(0, 1);
        host.wait(0);
        host.run(ns, Op::Flush).unwrap();
        let after = host.after_cut(Torn::Absent);
        match ns {
            PAGE_NAMESPACE => assert!(after.peek(Lpn(3)).is_some()),
            _ => {
                assert!(after.peek_segments(Lpn(0)).is_some());
                assert_eq!(after.peek(Lpn(3)), None, "it was in the buffer alone");
            }
        }
    }
}

/// A cut before each event, also inside of programs and erases, leaves what was flushed in either namespace.
#[test]
fn every_cut_keeps_what_was_flushed() {
    let mut host = Host::new(&config(), 3);
    let pages = host.pages.len() as u64;
    for nth in 0..2 * pages {
        host.write(nth % pages, 1);
        host.wait(4);
    }
    for segment in 0..5 {
        host.append(segment, 32);
    }
    host.flush_both();
    host.rest();
    let flushed = (host.pages.clone(), host.segments.clone());
    // From here on nothing that was flushed changes: one segment goes round, and pages are rewritten as they are.
    let contents = (0..pages).map(|lpn| host.device.peek(Lpn(lpn)).unwrap()).collect::<Vec<_>>();
    let mut round = 0;
    let mut cuts = 0;
    while cuts < 1_500 {
        while host.in_flight < 6 {
            round += 1;
            let lpn = round * 7 % pages;
            let (lba, blocks) = (Lba(lpn * 8), 8);
            let data = Data::Units(vec![contents[lpn as usize].clone()].into());
            host.submit(PAGE_NAMESPACE, Op::Write { lba, blocks, data });
            match host.segments[5].len() {
                32 => host.trim_segment(5),
                _ => host.append(5, 8),
            }
        }
        for torn in [Torn::Absent, Torn::Damaged, Torn::Done] {
            let after = host.after_cut(torn);
            after.audit();
            let now = std::mem::replace(&mut host.segments, flushed.1.clone());
            // What the sixth segment shows is its own business.
            host.segments.truncate(5);
            assert_eq!(host.mismatch(&after), None, "cut {cuts}, {torn:?}");
            host.segments = now;
        }
        cuts += 1;
        host.step().unwrap();
    }
    assert_eq!(host.pages, flushed.0);
}

#[test]
fn configurations_that_do_not_fit_or_are_not_built_have_one_clear_error() {
    type Change = fn(&mut DeviceConfig);
    let error = |change: Change| {
        let mut config = config();
        change(&mut config);
        config.validate().unwrap_err()
    };
    let too_many = error(|config| config.append.segments = 12);
    assert!(too_many.starts_with("append.segments = 12: expected fewer"), "{too_many}");
    let refused: [(Change, &str); 9] = [
        (|config| config.append.segments = 0, "append.segments = 0"),
        (|config| config.append.erase = EraseTime::FirstWrite, "append.erase"),
        (|config| config.ftl.allocation = Allocation::Dynamic, "ftl.allocation"),
        (
            |config| config.ftl.translation = flashweir_device::config::Translation::DemandCached,
            "ftl.translation",
        ),
        (|config| config.buffer.mode = BufferMode::PowerLossProtected, "buffer.mode"),
        (|config| config.order.fuse_epochs = 2, "[order]"),
        (|config| config.faults.paired_page_loss = true, "faults.paired_page_loss"),
        (|config| config.append.buffer_share = 1.0, "append.buffer_share = 1"),
        (|config| config.append.spare_blocks = 1, "append.spare_blocks = 1"),
    ];
    for (change, key) in refused {
        let said = error(change);
        assert!(said.starts_with(key) && said.contains("expected"), "{said}");
    }
}
