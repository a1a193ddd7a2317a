//! A device with an agenda, and a host that knows what it wrote.

use flashweir_core::command::{EpochStamp, Handle, StreamId, Tag, pattern};
use flashweir_core::random::RandomStream;
use flashweir_core::{
    Agenda, Bytes, Command, Data, DeviceError, Done, Duration, Lba, Lpn, Op, Order, Payload,
};
use flashweir_device::config::{
    Allocation, BufferMode, Cell, DeviceConfig, Eviction, GeometryConfig, PageTimes, PersistPolicy,
    SuspendConfig,
};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions, Effect, Event, Recovery, Torn};
use flashweir_ftl::GcPolicy;

/// A host with its device; `expected` is the content of each logical page after all commands have completed.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) device: Device,
    pub(crate) agenda: Agenda<Event>,
    pub(crate) expected: Vec<u64>,
    pub(crate) completed: u64,
    pub(crate) errors: u64,
    /// Id and error of each command that failed.
    pub(crate) failures: Vec<(u64, DeviceError)>,
    /// Stream, and position in its epoch, of the commands that are submitted next, if they have any.
    pub(crate) order: Option<(StreamId, Order)>,
    /// Placement handle of the writes that are submitted next.
    pub(crate) handle: Handle,
    /// Epoch number of the commands that are submitted next, if they have one.
    pub(crate) epoch: Option<EpochStamp>,
    /// Ids of the commands in the order of their completion.
    pub(crate) answered: Vec<u64>,
    /// Data of the last read that completed.
    pub(crate) data: Vec<Payload>,
    /// Ids of the commands in the order of their acceptance.
    pub(crate) accepted: Vec<u64>,
    next: u64,
}

impl Host {
    pub(crate) fn new(config: &DeviceConfig, seed: u64) -> Self {
        config.validate().unwrap_or_else(|e| panic!("{e}\n{config:?}"));
        let device = Device::new(config.clone(), DeviceOptions { seed, track_contents: true, planted: None });
        let units = device.geometry().user_units as usize;
        Self {
            device,
            agenda: Agenda::default(),
            expected: vec![0; units],
            completed: 0,
            errors: 0,
            failures: Vec::new(),
            order: None,
            handle: Handle(0),
            epoch: None,
            answered: Vec::new(),
            data: Vec::new(),
            accepted: Vec::new(),
            next: 1,
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, event),
                Effect::Accepted { id, .. } => self.accepted.push(id.0),
                Effect::Complete(completion) => {
                    self.completed += 1;
                    self.answered.push(completion.id.0);
                    match completion.result {
                        Ok(Done::Data(data)) => self.data = data.into_vec(),
                        Ok(_) => {}
                        Err(error) => {
                            self.errors += 1;
                            self.failures.push((completion.id.0, error));
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn submit(&mut self, op: Op, fua: bool) -> u64 {
        self.submit_tagged(op, fua, [0; 2])
    }

    pub(crate) fn submit_tagged(&mut self, op: Op, fua: bool, tags: [u64; 2]) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut command = Command::new(id, op);
        if matches!(command.op, Op::Write { .. }) {
            command.handle = self.handle;
        }
        command.fua = fua;
        command.tags = tags.map(Tag);
        (command.stream, command.order) = self.order.unzip();
        command.epoch = self.epoch;
        let mut effects = Vec::new();
        self.device.command(self.agenda.now(), command, &mut effects);
        self.carry_out(effects);
        id
    }

    /// Handles events until the device schedules no more.
    pub(crate) fn rest(&mut self) {
        while let Some((now, event)) = self.agenda.pop() {
            let mut effects = Vec::new();
            self.device.event(now, event, &mut effects);
            self.carry_out(effects);
        }
    }

    /// Handles events until all but `left` of the submitted commands have completed.
    pub(crate) fn wait(&mut self, left: u64) {
        let mut moments = 0;
        while self.next - 1 - self.completed > left {
            moments += 1;
            assert!(
                moments < 1_000_000,
                "no end of it\n{}\n{:?}",
                self.device.describe(),
                self.device.metrics()
            );
            let Some((now, event)) = self.agenda.pop() else {
                panic!("requests are lost\n{}", self.device.describe());
            };
            let mut effects = Vec::new();
            self.device.event(now, event, &mut effects);
            self.carry_out(effects);
        }
    }

    /// Writes each unit once.
    pub(crate) fn write_all(&mut self) {
        for lpn in 0..self.expected.len() as u64 {
            self.write(lpn, 1, false);
            self.wait(8);
        }
    }

    pub(crate) fn write(&mut self, lpn: u64, units: u64, fua: bool) {
        self.write_tagged(lpn, units, fua, [0; 2]);
    }

    pub(crate) fn write_tagged(&mut self, lpn: u64, units: u64, fua: bool, tags: [u64; 2]) {
        let per_unit = self.device.geometry().lbas_per_unit;
        let id = self.next;
        let op = Op::Write {
            lba: Lba(lpn * per_unit),
            blocks: (units * per_unit) as u32,
            data: Data::Pattern(id),
        };
        self.submit_tagged(op, fua, tags);
        for unit in lpn..lpn + units {
            self.expected[unit as usize] = pattern(id, Lpn(unit));
        }
    }

    pub(crate) fn trim(&mut self, lpn: u64, units: u64, zeroes: bool) {
        let per_unit = self.device.geometry().lbas_per_unit;
        let (lba, blocks) = (Lba(lpn * per_unit), (units * per_unit) as u32);
        self.submit(if zeroes { Op::WriteZeroes { lba, blocks } } else { Op::Trim { lba, blocks } }, false);
        self.expected[lpn as usize..(lpn + units) as usize].fill(0);
    }

    /// The first page that does not hold what was written last: number, content, expected content.
    pub(crate) fn mismatch(&self) -> Option<(usize, u64, u64)> {
        self.expected.iter().enumerate().find_map(|(lpn, &expected)| {
            let content = self.device.peek(Lpn(lpn as u64)).as_ref().map_or(0, Payload::identity);
            (content != expected).then_some((lpn, content, expected))
        })
    }

    /// Whether each page, after a power cut now, holds what was written last.
    pub(crate) fn survivors(&self, units: u64) -> Vec<bool> {
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let media = self.device.cut(self.agenda.now(), |_| Torn::Absent);
        let (device, _) = Recovery::begin(self.device.config(), options, media).finish();
        let there = |unit: u64| device.peek(Lpn(unit)).map_or(0, |payload| payload.identity());
        (0..units).map(|unit| there(unit) == self.expected[unit as usize]).collect()
    }

    pub(crate) fn check(&mut self, what: &str) {
        self.wait(0);
        self.device.audit();
        assert_eq!(self.mismatch(), None, "{what}");
    }
}

/// A host that gives a device one command after the other, in one namespace.
#[derive(Debug)]
pub(crate) struct OneByOne {
    pub(crate) device: Device,
    pub(crate) agenda: Agenda<Event>,
    namespace: u16,
    next: u64,
}

impl OneByOne {
    pub(crate) fn new(config: DeviceConfig, namespace: u16) -> Self {
        config.validate().unwrap();
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        Self { device: Device::new(config, options), agenda: Agenda::default(), namespace, next: 1 }
    }

    /// Submits the command to the device; returns the answer if there is one at once.
    pub(crate) fn submit(&mut self, command: Command) -> Option<Result<Done, DeviceError>> {
        let mut effects = Vec::new();
        self.device.command(self.agenda.now(), command, &mut effects);
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Option<Result<Done, DeviceError>> {
        let mut answer = None;
        for effect in effects {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, event),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) => answer = Some(completion.result),
            }
        }
        answer
    }

    /// A command with the next number.
    pub(crate) fn open(&mut self, op: Op) -> Command {
        self.next += 1;
        Command { ns: self.namespace, ..Command::new(self.next, op) }
    }

    /// Handles events until the device schedules no more; returns the last answer, if there is one.
    pub(crate) fn rest(&mut self) -> Option<Result<Done, DeviceError>> {
        let mut answer = None;
        while let Some((now, event)) = self.agenda.pop() {
            let mut effects = Vec::new();
            self.device.event(now, event, &mut effects);
            answer = self.carry_out(effects).or(answer);
        }
        answer
    }

    /// The answer to a command on a quiet device.
    pub(crate) fn run(&mut self, op: Op) -> Result<Done, DeviceError> {
        let command = self.open(op);
        self.run_command(command)
    }

    /// The same, of a command with flags.
    pub(crate) fn run_command(&mut self, command: Command) -> Result<Done, DeviceError> {
        let at_once = self.submit(command);
        let answer = self.rest().or(at_once);
        self.device.audit();
        answer.expect("a command completes")
    }
}

/// A small device whose parameters are all drawn at random.
pub(crate) fn random_config(seed: u64, fault: f64) -> DeviceConfig {
    let mut r = RandomStream::new(seed, "config");
    let mut pick = |n: u64| r.below(n);
    let mut config = preset("mqsim-small-ideal").unwrap();
    let cell = [Cell::Slc, Cell::Mlc, Cell::Tlc][pick(3) as usize];
    let wordline = cell.pages_per_wordline();
    let units_per_page = [1, 1, 2, 4][pick(4) as usize];
    config.geometry = GeometryConfig {
        channels: 1 + pick(3) as u32,
        chips_per_channel: 1 + pick(2) as u32,
        dies_per_chip: 1 + pick(2) as u32,
        planes_per_die: 1 + pick(2) as u32,
        blocks_per_plane: 16 + pick(12) as u32,
        pages_per_block: wordline * (4 + pick(5) as u32),
        page_bytes: Bytes(4096 * units_per_page),
        unit_bytes: Bytes::kib(4),
    };
    config.timing.cell = cell;
    config.timing.program = if pick(2) == 0 {
        PageTimes::Same(Duration::from_micros(500))
    } else {
        PageTimes::Each((0..wordline).map(|i| Duration::from_micros(300 * u64::from(i + 1))).collect())
    };
    config.timing.multi_plane = pick(2) == 0;
    config.timing.die_interleaving = pick(2) == 0;
    config.timing.suspend = (pick(2) == 0).then_some(SuspendConfig {
        program: true,
        erase: true,
        latency: Duration::from_micros(20),
        max_per_operation: 3,
    });
    let ftl = &mut config.ftl;
    ftl.allocation = if pick(2) == 0 { Allocation::Static } else { Allocation::Dynamic };
    ftl.metadata = flashweir_device::config::Metadata::Log;
    ftl.gc.policy =
        [GcPolicy::Greedy, GcPolicy::CostBenefit, GcPolicy::DChoices, GcPolicy::Fifo][pick(4) as usize];
    ftl.gc.hot_cold = pick(2) == 0;
    ftl.gc.preemptible = pick(2) == 0;
    ftl.gc.reserve_blocks = 2 + pick(2) as u32 + u32::from(fault > 0.0);
    ftl.gc.start_below_blocks = ftl.gc.reserve_blocks + 1 + pick(2) as u32;
    ftl.wear.dynamic = pick(2) == 0;
    ftl.wear.static_threshold = [0, 5, 100][pick(3) as usize];
    ftl.over_provisioning = 0.05;
    config.buffer.mode =
        [BufferMode::WriteThrough, BufferMode::WriteBack, BufferMode::PowerLossProtected][pick(3) as usize];
    let g = &config.geometry;
    let planes = g.channels * g.chips_per_channel * g.dies_per_chip * g.planes_per_die;
    let pages_max = u64::from(planes * g.pages_per_block).min(16);
    config.buffer.capacity = Bytes(g.page_bytes.0 * (1 + pick(pages_max)));
    config.buffer.high_water = [0.0, 0.5, 0.9][pick(3) as usize];
    config.buffer.low_water = config.buffer.high_water * 0.9;
    config.buffer.eviction = if pick(2) == 0 { Eviction::Fifo } else { Eviction::Lru };
    config.faults.paired_page_loss = pick(2) == 0;
    (config.faults.program_fail, config.faults.erase_fail) = (fault, fault);
    if config.buffer.mode != BufferMode::WriteThrough {
        use PersistPolicy::{InOrderRecovery, InOrderWriteBack, None, Transactional};
        config.order.policy = [None, InOrderWriteBack, Transactional, InOrderRecovery][pick(4) as usize];
        if config.order.policy == Transactional {
            config.order.fuse_epochs = [1, 3, 1000][pick(3) as usize];
        }
    }
    fill(config)
}

/// The device with the least over-provisioning that passes validation: as full as it may be.
pub(crate) fn fill(mut config: DeviceConfig) -> DeviceConfig {
    config.ftl.over_provisioning = 0.05;
    while config.validate().is_err() {
        config.ftl.over_provisioning += 0.01;
        if config.ftl.over_provisioning > 0.85 {
            config.ftl.over_provisioning = 0.05;
            config.geometry.blocks_per_plane += 8;
        }
    }
    config
}
