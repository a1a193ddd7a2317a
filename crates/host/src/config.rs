//! Configuration of the block layer, typed and validated once.

use crate::task::TaskAttribute;
use flashweir_core::Duration;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// Configuration of a block layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// Scheduler: picks the request that is sent next.
    pub scheduler: Scheduler,
    /// How a request of a later epoch waits for an earlier one.
    pub epochs: Epochs,
    /// Side that keeps the order on the way to the medium.
    pub dispatch: Dispatch,
    /// Number of device queues that this layer fills; more than one only with [`Dispatch::MultiQueue`].
    pub queues: u16,
    /// Number of commands that the device holds in each queue.
    pub depth: u32,
    /// Largest merged request, in sectors of 512 bytes; 0 disables merging. Linux 3.16, the paper's kernel, has 1,024.
    pub merge_blocks_max: u32,
    /// Delay after which a request that found no room at the device is offered again; Linux 3.16 has 3 ms for SCSI.
    pub retry_after: Duration,
    /// Whether a completion triggers the next offer at once, as in Linux while the device holds a command. If false,
    /// only the timer does (as the paper's text reads).
    pub retry_on_completion: bool,
    /// Task attribute of flushes. A flush covers what has completed, so it may overtake the commands that the device
    /// holds.
    pub flush: TaskAttribute,
}

impl Default for HostConfig {
    /// The paper's block layer on a SCSI queue, with the epochs of barriers §4.6.
    fn default() -> Self {
        Self {
            scheduler: Scheduler::None,
            epochs: Epochs::Counted,
            dispatch: Dispatch::OrderPreserving,
            queues: 1,
            depth: 32,
            merge_blocks_max: 1024,
            retry_after: Duration::from_millis(3),
            retry_on_completion: true,
            flush: TaskAttribute::Simple,
        }
    }
}

/// Scheduler: picks the next of the requests that may leave. Deserialized from its name, with the parameters of Linux,
/// or from a table of parameters under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// First in, first out.
    None,
    /// By address, in batches of reads or writes; an expired request starts the next batch.
    Deadline(DeadlineConfig),
    /// Submitters take turns, each for a slice of time.
    Cfq(CfqConfig),
}

/// Parameters of the deadline scheduler; the defaults are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadlineConfig {
    /// Age at which a read goes first among reads when a batch begins.
    pub read_expire: Duration,
    /// Age at which a write or discard goes first when a batch begins.
    pub write_expire: Duration,
    /// Number of requests in a batch of one direction.
    pub fifo_batch: u32,
    /// Number of read batches that may go before waiting writes.
    pub writes_starved: u32,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        Self {
            read_expire: Duration::from_millis(500),
            write_expire: Duration::from_secs(5),
            fifo_batch: 16,
            writes_starved: 2,
        }
    }
}

/// Parameters of the scheduler by submitter; the defaults are Linux's for synchronous requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CfqConfig {
    /// Time slice of one submitter while others wait.
    pub slice: Duration,
    /// Age at which a request goes first among those of its submitter.
    pub expire: Duration,
}

impl Default for CfqConfig {
    fn default() -> Self {
        Self { slice: Duration::from_millis(100), expire: Duration::from_millis(125) }
    }
}

/// How an ordered request waits for earlier epochs of its stream. In both variants, the last request of an epoch to
/// leave carries the barrier, and orderless requests pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Epochs {
    /// The paper's scheme: a barrier closes the queue. A later request is set aside as it is; it enters, merges and
    /// begins to age when the queue opens.
    Closing,
    /// The scheme of barriers §4.6: the queue takes every request together with the number of its epoch; requests merge
    /// and age from the beginning.
    Counted,
}

/// Side that keeps epochs apart between the queue and the medium. Deserialized from its name, where `legacy` waits for
/// a flush, or from `{ legacy = WAIT }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// The device, by the barrier and the ORDERED attribute of its command (barriers §4.2); the host never waits.
    OrderPreserving,
    /// The device, by the epoch's number and size that come with each command. The host orders nothing: a request goes
    /// to the queue of its submitter, and a later epoch may leave before an earlier one.
    MultiQueue,
    /// The host, by waiting; the device gets plain commands and need not support order.
    Legacy(Wait),
}

/// The event that the host awaits between two epochs, with a device that keeps no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// The device has taken the data: order of transfer, not of persistence.
    Transfer,
    /// The device has answered: sufficient where an answered write survives a power cut.
    Completion,
    /// The device has answered and then flushed: the practice before barriers (barriers §1.4).
    TransferAndFlush,
}

impl Scheduler {
    /// Returns its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deadline(_) => "deadline",
            Self::Cfq(_) => "cfq",
        }
    }
}

/// An enumeration some of whose variants take parameters.
trait Choice: Sized {
    /// Names of the variants.
    const NAMES: &'static [&'static str];

    /// Returns the variant of this known name with its default parameters.
    fn plain(name: &str) -> Option<Self>;

    /// Returns the variant of this name with the parameters that `map` holds.
    fn with<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error>;
}

impl Choice for Scheduler {
    const NAMES: &'static [&'static str] = &["none", "deadline", "cfq"];

    fn plain(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "deadline" => Some(Self::Deadline(DeadlineConfig::default())),
            "cfq" => Some(Self::Cfq(CfqConfig::default())),
            _ => None,
        }
    }

    fn with<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error> {
        match name {
            "deadline" => map.next_value().map(|figures| Some(Self::Deadline(figures))),
            "cfq" => map.next_value().map(|figures| Some(Self::Cfq(figures))),
            _ => Ok(None),
        }
    }
}

impl Choice for Dispatch {
    const NAMES: &'static [&'static str] = &["order-preserving", "multi-queue", "legacy"];

    fn plain(name: &str) -> Option<Self> {
        match name {
            "order-preserving" => Some(Self::OrderPreserving),
            "multi-queue" => Some(Self::MultiQueue),
            "legacy" => Some(Self::Legacy(Wait::TransferAndFlush)),
            _ => None,
        }
    }

    fn with<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error> {
        match name {
            "legacy" => map.next_value().map(|wait| Some(Self::Legacy(wait))),
            _ => Ok(None),
        }
    }
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Choice> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", T::NAMES.join(", "))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        T::plain(name).ok_or_else(|| E::unknown_variant(name, T::NAMES))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let name: String = map.next_key()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let choice = T::with(&name, &mut map)?.ok_or_else(|| A::Error::unknown_variant(&name, T::NAMES))?;
        match map.next_key::<String>()? {
            Some(other) => Err(A::Error::unknown_variant(&other, T::NAMES)),
            None => Ok(choice),
        }
    }
}

impl<'de> Deserialize<'de> for Scheduler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Dispatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl HostConfig {
    /// Checks the ranges; an error names key, value and range.
    pub fn validate(&self) -> Result<(), String> {
        let range = |name: &str, value: u64, least: u64, most: u64| match value {
            value if (least..=most).contains(&value) => Ok(()),
            value => Err(format!("block_layer.{name} = {value}: expected {least} to {most}")),
        };
        let queues = if self.dispatch == Dispatch::MultiQueue { u16::MAX.into() } else { 1 };
        range("queues", self.queues.into(), 1, queues)?;
        range("depth", self.depth.into(), 1, 65_536)?;
        if self.dispatch == Dispatch::MultiQueue && self.flush != TaskAttribute::Simple {
            return Err(
                "block_layer.flush: expected simple, as there is no order between the queues of multi-queue"
                    .into(),
            );
        }
        if self.retry_after == Duration::ZERO {
            return Err("block_layer.retry_after = 0ns: expected more than nothing".into());
        }
        match self.scheduler {
            Scheduler::Deadline(figures) => {
                range("scheduler.deadline.fifo_batch", figures.fifo_batch.into(), 1, u32::MAX.into())
            }
            Scheduler::None | Scheduler::Cfq(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_range() {
        let good = HostConfig::default();
        assert_eq!(good.validate(), Ok(()));
        let bad = HostConfig { queues: 2, ..good.clone() };
        assert_eq!(bad.validate(), Err("block_layer.queues = 2: expected 1 to 1".into()));
        assert_eq!(HostConfig { dispatch: Dispatch::MultiQueue, ..bad }.validate(), Ok(()));
        assert!(
            HostConfig { depth: 0, ..good.clone() }.validate().unwrap_err().contains("block_layer.depth = 0")
        );
        assert!(HostConfig { retry_after: Duration::ZERO, ..good.clone() }.validate().is_err());
        let none = DeadlineConfig { fifo_batch: 0, ..DeadlineConfig::default() };
        assert!(HostConfig { scheduler: Scheduler::Deadline(none), ..good }.validate().is_err());
    }
}
