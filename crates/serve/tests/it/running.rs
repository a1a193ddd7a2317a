//! A server in a thread of its own, on unix sockets in a directory of its own, and a client that does everything right.

use flashweir_contract::DeviceKind;
use flashweir_core::Bytes;
use flashweir_device::config::BufferMode;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_host::HostFtlConfig;
use flashweir_serve::client::stamp::{BLOCK, stamp};
use flashweir_serve::client::workload::Workload;
use flashweir_serve::client::{Ask, Client, Record, wait_for};
use flashweir_serve::control::{self, CutDone, CutOrder, Reply, Status};
use flashweir_serve::nbd::wire::command;
use flashweir_serve::nbd::{Config, Export, Limits, TlsMode};
use flashweir_serve::{Clock, Disk, Endpoint, Hand, Server, ServerConfig, Speed};
use flashweir_sim::host_ftl::Disk as Below;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for anything before it fails, so that a hang ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a mapping unit of the devices.
pub(crate) const UNIT: u64 = 4096;

/// What is served.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) speed: Speed,
    /// The server's time passes only by [`Running::hand`].
    pub(crate) by_hand: bool,
    pub(crate) mode: BufferMode,
    pub(crate) connections_max: usize,
    pub(crate) patience: Duration,
    pub(crate) versions: bool,
    /// A host FTL above an open channel, in the place of the device of that mode.
    pub(crate) host_ftl: Option<HostFtlConfig>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            speed: Speed::Scaled(1.0),
            by_hand: false,
            mode: BufferMode::WriteBack,
            connections_max: 64,
            patience: Duration::from_secs(2),
            versions: false,
            host_ftl: None,
        }
    }
}

impl Setup {
    /// As fast as the machine can, while time stands still but for [`Running::hand`].
    pub(crate) fn by_hand() -> Self {
        Self { speed: Speed::Max, by_hand: true, ..Self::default() }
    }
}

/// A device of 20 MiB or so.
pub(crate) fn device(mode: BufferMode) -> DeviceConfig {
    let mut config = flashweir_device::presets::preset("sata-mlc").unwrap();
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 1;
    config.geometry.blocks_per_plane = 32;
    config.geometry.pages_per_block = 32;
    config.ftl.over_provisioning = 0.35;
    config.buffer.capacity = Bytes(1 << 20);
    config.buffer.mode = mode;
    config.validate().unwrap();
    config
}

/// An open channel of 32 MiB below a host FTL.
pub(crate) fn open_channel() -> DeviceConfig {
    let mut config = flashweir_device::presets::preset("qblke").unwrap();
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 1;
    config.geometry.pages_per_block = 16;
    config.validate().unwrap();
    config
}

/// A running server with the exports `disk` and `other`.
pub(crate) struct Running {
    dir: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) hand: Hand,
    stop: Arc<AtomicBool>,
    kill: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(u64, u64), String>>>,
    mode: BufferMode,
}

impl Running {
    pub(crate) fn start(setup: &Setup) -> Self {
        let config = match setup.host_ftl {
            Some(_) => open_channel(),
            None => device(setup.mode),
        };
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let disk = |name: &str| {
            let below = Below::new(Device::new(config.clone(), options), setup.host_ftl.as_ref());
            let mut disk = Disk::above(name, below, options);
            if setup.versions {
                disk.keep_versions();
            }
            disk
        };
        Self::serve(setup, vec![disk("disk"), disk("other")])
    }

    /// A server of these disks.
    pub(crate) fn serve(setup: &Setup, disks: Vec<Disk>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("weir-it-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let (socket, control) = (dir.join("disk.sock"), dir.join("control"));
        let export = |disk: &Disk| Export {
            name: disk.name().to_owned(),
            description: String::new(),
            size: disk.size(),
            read_only: false,
            least_block: if disk.host_ftl().is_some() { UNIT as u32 } else { 512 },
            preferred_block: UNIT as u32,
        };
        let exports = disks.iter().map(export).collect();
        let nbd = Config::new(exports, TlsMode::Off, Limits::default()).unwrap();
        let hand = Hand::default();
        let config = ServerConfig {
            endpoints: vec![Endpoint::Unix(socket.clone())],
            control: Some(control.clone()),
            clock: match setup.by_hand {
                true => Clock::by_hand(hand.clone(), setup.speed),
                false => Clock::new(setup.speed),
            },
            keys: None,
            connections_max: setup.connections_max,
            patience: setup.patience,
            spin: Duration::from_micros(50),
            give_back: None,
            say: |line| panic!("{line}"),
        };
        let mut server = Server::bind(config, nbd, disks).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let kill = Arc::new(AtomicBool::new(false));
        let is_killed = Arc::clone(&kill);
        let thread = std::thread::spawn(move || {
            server.run(&told).map_err(|error| error.to_string())?;
            let counts = server.connections();
            if is_killed.load(Ordering::Relaxed) {
                return Ok(counts);
            }
            for disk in server.into_disks() {
                disk.shut_down().map_err(|error| error.to_string())?;
            }
            Ok(counts)
        });
        Self { dir, socket, control, hand, stop, kill, thread: Some(thread), mode: setup.mode }
    }

    pub(crate) fn connect(&self, export: &str) -> Client {
        Client::connect(&self.socket, export, true, PATIENCE).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        match control::ask(&self.control, &control::Ask::Status).unwrap() {
            Reply::Status(status) => status,
            other => panic!("no status: {other:?}"),
        }
    }

    pub(crate) fn cut(&self, eio: bool, off: Duration) -> CutDone {
        let export = Some("disk".to_owned());
        let order = CutOrder { export, seed: None, eio, off_ns: off.as_nanos() as u64 };
        match control::ask(&self.control, &control::Ask::Cut(order)).unwrap() {
            Reply::Cut(mut done) => done.remove(0),
            other => panic!("no cut: {other:?}"),
        }
    }

    /// Waits until the status is as it should be.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, good: impl Fn(&Status) -> bool) {
        let begin = Instant::now();
        loop {
            let status = self.status();
            if good(&status) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {status:?}");
        }
    }

    /// A client that verifies what it reads, on the other export, until it is told to stop.
    pub(crate) fn good_client(&self) -> Good {
        let kind = match self.mode {
            BufferMode::WriteBack => DeviceKind::D1,
            BufferMode::WriteThrough => DeviceKind::D0,
            BufferMode::PowerLossProtected => DeviceKind::D2,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, done) = channel();
        let (socket, told) = (self.socket.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || good(&socket, "other", 0..4 << 20, kind, &told, &tell));
        Good { stop, done, thread }
    }

    /// Lets so much of the server's time pass, in parts that a client which works does not notice.
    #[track_caller]
    pub(crate) fn pass(&self, span: Duration, good: &Good) {
        for _ in 0..4 {
            self.hand.advance(span / 4);
            good.works(8);
        }
    }

    /// Asks it to stop, as a signal would.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends it without a word to its disks, as the end of the process does: what is in memory is gone.
    pub(crate) fn kill(self) {
        self.kill.store(true, Ordering::Relaxed);
    }

    /// Stops it, as a signal would; gives the numbers of connections and of refused or dropped ones.
    pub(crate) fn stop(mut self) -> (u64, u64) {
        self.ask_to_stop();
        self.thread.take().unwrap().join().expect("the server does not panic").unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server does not panic").unwrap();
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A good client at work.
pub(crate) struct Good {
    stop: Arc<AtomicBool>,
    /// A message for each answer.
    done: Receiver<()>,
    thread: JoinHandle<Result<(), String>>,
}

impl Good {
    /// Waits for so many answers from now on. It goes on without them if the client has failed, which [`Self::end`] tells.
    pub(crate) fn works(&self, answers: usize) {
        while self.done.try_recv().is_ok() {}
        let _ = (0..answers).try_for_each(|_| self.done.recv());
    }

    /// Sees it get on, and ends it: nothing that it did went wrong.
    #[track_caller]
    pub(crate) fn end(self) {
        self.works(50);
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a good client does not panic").unwrap();
    }
}

fn good(
    socket: &Path,
    export: &str,
    region: Range<u64>,
    kind: DeviceKind,
    stop: &AtomicBool,
    done: &Sender<()>,
) -> Result<(), String> {
    let mut client = Client::connect(socket, export, true, PATIENCE).map_err(|error| error.to_string())?;
    let now = client.read_range(region.start, region.end - region.start, PATIENCE);
    let now = now.map_err(|error| error.to_string())?.map_err(|errno| format!("error {errno}"))?;
    let mut record = Record::new(kind, region.clone(), UNIT, BLOCK as u64, now);
    let mut workload = Workload::new(7, region, UNIT);
    let mood = workload.mood();
    let mut names = std::collections::BTreeMap::new();
    let mut moved = Instant::now();
    while !stop.load(Ordering::Relaxed) || record.in_flight() > 0 {
        if record.in_flight() < 4 && !stop.load(Ordering::Relaxed) {
            let ask = workload.next(&mood);
            if record.is_free(&ask) {
                let mut data = Vec::new();
                if ask.command == command::WRITE {
                    data.resize(ask.length as usize, 0);
                    stamp(&mut data, ask.offset / BLOCK as u64, record.next_id());
                }
                let id = record.submit(&ask, &data);
                names.insert(client.send(ask, &data), id);
                continue;
            }
        }
        client.pump();
        while let Some(reply) = client.reply().map_err(|error| error.to_string())? {
            let id = names.remove(&reply.cookie).ok_or("a reply to nothing")?;
            record.complete(id, &reply.result).map_err(|failure| failure.to_string())?;
            // The test may have ended.
            let _ = done.send(());
            moved = Instant::now();
        }
        if let Some(why) = client.gone() {
            return Err(format!("the good client was dropped: {why}"));
        }
        if moved.elapsed() > PATIENCE {
            return Err("the good client waits for ever".into());
        }
        wait_for(&[&client], Duration::from_millis(5)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A request.
pub(crate) fn ask(command: u16, offset: u64, length: u32) -> Ask {
    Ask { command, flags: 0, offset, length }
}
