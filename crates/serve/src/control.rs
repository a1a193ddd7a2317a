//! The control socket: how `weir cut` and live views reach a running server. One line of JSON asks, one line answers.
//!
//! Invariant: a line of a client is at most 64 KiB long; a client that sends more is dropped.

use crate::disk::OnCut;
use crate::stats::{KindStatus, Percentiles};
use flashweir_device::{Device, DeviceMetrics};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest line of a client, bytes.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Requests on the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// Cut the power.
    Cut(CutOrder),
    /// Report the status of the server.
    Status,
    /// End the server in order.
    Stop,
    /// Write the image of a mount that has ended, and could not be written where it was, to this new file.
    Save(PathBuf),
}

/// Parameters of a power cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutOrder {
    /// Name of the disk's export; all disks if absent.
    pub export: Option<String>,
    /// Draws what was torn, and where versions are kept which of them come back; absent is the likeliest.
    pub seed: Option<u64>,
    /// Clients get EIO instead of a closed connection.
    pub eio: bool,
    /// Least virtual time without power, ns; recovery may take longer.
    pub off_ns: u64,
}

impl CutOrder {
    pub(crate) fn on_cut(&self) -> OnCut {
        if self.eio { OnCut::Fail } else { OnCut::Drop }
    }
}

/// Effect of a power cut on one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CutDone {
    /// Name of the disk's export.
    pub export: String,
    /// Requests that were lost with the power.
    pub requests_lost: u64,
    /// Connections that were closed.
    pub connections_dropped: u64,
    /// Pages that the recovery read.
    pub pages_read: u64,
    /// Pages and erases that the recovery wrote.
    pub steps: u64,
    /// Mapping units that it found.
    pub units: u64,
    /// Virtual time that it took, ns; on threads time of the wall clock.
    pub recovery_ns: u64,
    /// The disk is on threads, without virtual time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_threads: bool,
}

/// Status of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Wall time since it began, ns.
    pub uptime_ns: u64,
    /// `real`, `max`, or a factor.
    pub speed: String,
    /// Connections of clients.
    pub connections: u64,
    /// Each disk.
    pub disks: Vec<DiskStatus>,
}

/// Status of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its export.
    pub export: String,
    /// Name of its device's configuration.
    pub device: String,
    /// Whether its power is on.
    pub on: bool,
    /// Power cuts so far.
    pub cuts: u64,
    /// Size in bytes.
    pub size: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests by kind.
    pub kinds: Vec<KindStatus>,
    /// How much later than the model's completions answers were queued, ns.
    pub misses_ns: Percentiles,
    /// Buffer: slots, slots in use, dirty slots.
    pub buffer: [u64; 3],
    /// Free blocks: least and mean over the planes.
    pub free_blocks: (u64, f64),
    /// Units that the host wrote, that were programmed for it, that GC moved, and filler and metadata.
    pub units: [u64; 4],
    /// SHARE: remapped units, those that were copied because the table was full, and entries of the table in use and in all; all 0
    /// on a device without the command.
    #[serde(default)]
    pub shares: [u64; 4],
    /// Erases since the power came on; least, mean and largest erase count of a block.
    pub erases: u64,
    /// Erase counts of blocks: least, mean, largest.
    pub wear: (u64, f64, u64),
    /// Virtual time since the power came on, ns.
    pub time_ns: u64,
    /// Busy virtual time of each die, ns.
    pub die_busy_ns: Vec<u64>,
}

impl DiskStatus {
    /// Status of a device, under the name of its export, with the size and the counters that clients see.
    pub(crate) fn of(export: &str, device: &Device, size: u64, metrics: &DeviceMetrics) -> Self {
        Self {
            export: export.to_owned(),
            device: device.config().name.clone(),
            size,
            buffer: device.buffer_use(),
            free_blocks: device.free_blocks(),
            units: [
                metrics.host_units_written,
                metrics.user_units_programmed,
                metrics.gc_units_moved,
                metrics.filler_units + metrics.meta_units,
            ],
            shares: [
                metrics.host_units_shared,
                metrics.share_copies,
                device.virtual_pages(),
                u64::from(device.config().ftl.share.pages),
            ],
            erases: metrics.erases,
            wear: device.wear(),
            die_busy_ns: device.station_busy().into_iter().map(|busy| busy.as_nanos()).collect(),
            ..Self::default()
        }
    }
}

/// Answers of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The power was cut.
    Cut(Vec<CutDone>),
    /// The status.
    Status(Status),
    /// The server is stopping.
    Stopping,
    /// The image was written.
    Saved,
    /// The request failed, for this reason.
    Error(String),
}

/// Why a server could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlError(String);

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ControlError {}

/// Asks the server behind the control socket `path`.
///
/// # Errors
/// No server listens there, it does not answer within 60 seconds and a hundred times the time for which the power is to be off, since virtual
/// time may be slow, or it refuses.
pub fn ask(path: &Path, ask: &Ask) -> Result<Reply, ControlError> {
    let name = path.display();
    let failed = |what: &str, error: std::io::Error| ControlError(format!("{name}: {what}: {error}"));
    let mut stream = UnixStream::connect(path)
        .map_err(|error| failed("no server answers on this control socket", error))?;
    let off_ns = if let Ask::Cut(order) = ask { order.off_ns } else { 0 };
    let off = Duration::from_nanos(off_ns).saturating_mul(100);
    let timeout = Duration::from_secs(60).saturating_add(off);
    stream.set_read_timeout(Some(timeout)).map_err(|error| failed("cannot be used", error))?;
    let line = serde_json::to_string(ask).expect("a question is JSON");
    // In one piece: a server may wait for each.
    stream.write_all(format!("{line}\n").as_bytes()).map_err(|error| failed("cannot be written", error))?;
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).map_err(|error| failed("no answer", error))?;
    if line.starts_with(b"NBDMAGIC") {
        return Err(ControlError(format!(
            "{name}: an NBD socket without a control socket beside it: expected the server's control socket (--control)"
        )));
    }
    let line = String::from_utf8_lossy(&line);
    let reply = serde_json::from_str(&line)
        .map_err(|_| ControlError(format!("{name}: no answer of a server: {:?}", line.trim_end())))?;
    match reply {
        Reply::Error(why) => Err(ControlError(why)),
        reply => Ok(reply),
    }
}
