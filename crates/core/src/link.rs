//! The link between host and device: queue pairs with a depth, transfer times, a cost per command.
//!
//! Place in the data flow: the world asks the link when a command arrives at the device and when a completion arrives
//! at the host, and schedules those events. A power cut in between loses the command.
//!
//! Model: each direction is one server that moves bytes in the order of the requests (both directions are the same
//! server where the link is half duplex). A fixed latency per command and per completion is added on top and overlaps
//! with other transfers.

use crate::command::Command;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Shape and speed of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Number of queue pairs.
    pub queues: u16,
    /// Maximum number of commands in flight in each queue pair.
    pub queue_depth: u32,
    /// Bytes per second in each direction; 0 is unlimited.
    pub bytes_per_s: u64,
    /// Whether both directions share the bandwidth.
    pub half_duplex: bool,
    /// Size of a command on the wire, in bytes.
    pub command_bytes: u32,
    /// Size of a completion on the wire, in bytes.
    pub completion_bytes: u32,
    /// Time from the doorbell until the device has decoded the command, without the transfers.
    pub submit_latency: Duration,
    /// Time from the posted completion until the host has seen it, without the transfers.
    pub complete_latency: Duration,
}

impl LinkConfig {
    /// NVMe over four lanes of PCIe 3 (3.938 GB/s after 128b/130b coding), many queues.
    pub fn nvme() -> Self {
        Self {
            queues: 64,
            queue_depth: 1024,
            bytes_per_s: 3_938_000_000,
            half_duplex: false,
            command_bytes: 64,
            completion_bytes: 16,
            submit_latency: Duration::from_nanos(600),
            complete_latency: Duration::from_nanos(400),
        }
    }

    /// SATA 3 with NCQ: one queue of 32, 600 MB/s after 8b/10b coding, half duplex.
    pub fn sata() -> Self {
        Self {
            queues: 1,
            queue_depth: 32,
            bytes_per_s: 600_000_000,
            half_duplex: true,
            command_bytes: 28,
            completion_bytes: 8,
            submit_latency: Duration::from_micros(5),
            complete_latency: Duration::from_micros(3),
        }
    }

    /// UFS 2.0, two lanes HS-G3: one queue of 32, 1,166 MB/s in each direction.
    pub fn ufs() -> Self {
        Self {
            queues: 1,
            queue_depth: 32,
            bytes_per_s: 1_166_000_000,
            half_duplex: false,
            command_bytes: 32,
            completion_bytes: 32,
            submit_latency: Duration::from_micros(4),
            complete_latency: Duration::from_micros(4),
        }
    }

    /// A link without any cost and with one deep queue.
    pub fn ideal() -> Self {
        Self {
            queues: 1,
            queue_depth: 65_535,
            bytes_per_s: 0,
            half_duplex: false,
            command_bytes: 0,
            completion_bytes: 0,
            submit_latency: Duration::ZERO,
            complete_latency: Duration::ZERO,
        }
    }

    /// Returns the preset called `name`.
    pub fn preset(name: &str) -> Option<Self> {
        Some(match name {
            "nvme" => Self::nvme(),
            "sata" => Self::sata(),
            "ufs" => Self::ufs(),
            "ideal" => Self::ideal(),
            _ => return None,
        })
    }

    /// Names of the presets.
    pub const PRESETS: [&'static str; 4] = ["nvme", "sata", "ufs", "ideal"];

    /// Checks the ranges; the error names key, value and range.
    pub fn validate(&self) -> Result<(), String> {
        if self.queues == 0 {
            return Err("link.queues = 0: expected 1 to 65535".into());
        }
        if self.queue_depth == 0 || self.queue_depth > 65_536 {
            return Err(format!("link.queue_depth = {}: expected 1 to 65536", self.queue_depth));
        }
        Ok(())
    }
}

/// State of the link of one device.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    in_flight: Vec<u32>,
    /// Time at which each direction becomes free: down, up.
    free_at: [Instant; 2],
    /// Length of the last transfer in each direction and the time it took, which saves a division for equal lengths.
    transfers: [(u64, Duration); 2],
}

impl Link {
    /// Returns an idle link.
    pub fn new(config: LinkConfig) -> Self {
        let in_flight = vec![0; usize::from(config.queues)];
        Self { config, in_flight, free_at: [Instant::ZERO; 2], transfers: [(0, Duration::ZERO); 2] }
    }

    /// Returns shape and speed.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Whether `queue` can take one more command.
    pub fn has_room(&self, queue: u16) -> bool {
        self.in_flight[usize::from(queue)] < self.config.queue_depth
    }

    /// Puts `command` on its submission queue; returns the time at which it and its data have arrived at the device.
    /// The queue must have room.
    #[inline]
    pub fn submit(&mut self, now: Instant, command: &Command) -> Instant {
        let in_flight = &mut self.in_flight[usize::from(command.queue)];
        assert!(*in_flight < self.config.queue_depth, "queue {} is full", command.queue);
        *in_flight += 1;
        let bytes = u64::from(self.config.command_bytes) + command.bytes_down();
        self.transfer(0, now, bytes) + self.config.submit_latency
    }

    /// Sends a completion with `bytes` of data up; returns the time at which the host has it.
    #[inline]
    pub fn complete(&mut self, now: Instant, bytes: u64) -> Instant {
        let bytes = u64::from(self.config.completion_bytes) + bytes;
        self.transfer(1, now, bytes) + self.config.complete_latency
    }

    /// Frees the slot of a command of `queue` once the host has taken its completion.
    #[inline]
    pub fn release(&mut self, queue: u16) {
        let in_flight = &mut self.in_flight[usize::from(queue)];
        *in_flight = in_flight.checked_sub(1).expect("each completion ends one command of its queue");
    }

    #[inline]
    fn transfer(&mut self, direction: usize, now: Instant, bytes: u64) -> Instant {
        let server = if self.config.half_duplex { 0 } else { direction };
        let last = &mut self.transfers[direction];
        if last.0 != bytes {
            *last = (bytes, Duration::of_transfer(bytes, self.config.bytes_per_s));
        }
        let done = self.free_at[server].max(now) + last.1;
        self.free_at[server] = done;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Data, Op};
    use crate::units::Lba;

    fn write(blocks: u32) -> Command {
        Command::new(0, Op::Write { lba: Lba(0), blocks, data: Data::Zero })
    }

    #[test]
    fn transfers_of_one_direction_queue_up() {
        let mut link = Link::new(LinkConfig { bytes_per_s: 1_000_000_000, ..LinkConfig::ideal() });
        let first = link.submit(Instant::ZERO, &write(8));
        let second = link.submit(Instant::ZERO, &write(8));
        assert_eq!(first.as_nanos(), 4096);
        assert_eq!(second.as_nanos(), 8192);
        assert_eq!(link.complete(Instant::ZERO, 4096).as_nanos(), 4096, "the other direction is free");
    }

    #[test]
    fn half_duplex_shares_the_wire() {
        let config = LinkConfig { bytes_per_s: 1_000_000_000, half_duplex: true, ..LinkConfig::ideal() };
        let mut link = Link::new(config);
        link.submit(Instant::ZERO, &write(8));
        assert_eq!(link.complete(Instant::ZERO, 4096).as_nanos(), 8192);
    }

    #[test]
    fn depth_is_counted_per_queue() {
        let mut link = Link::new(LinkConfig { queue_depth: 1, queues: 2, ..LinkConfig::ideal() });
        link.submit(Instant::ZERO, &write(8));
        assert!(!link.has_room(0) && link.has_room(1));
        link.release(0);
        assert!(link.has_room(0));
    }
}
