//! What the steps of a host FTL cost a CPU, and which of its data its threads share (open-channel §9.5, open-channel §10.6).
//!
//! The figures of [`Costs::default`] are medians of micro-benchmarks on real threads; `docs/evidence/smp-costs.json` names the
//! machine. None of them was chosen by looking at a result.

use flashweir_core::Duration;
use serde::{Deserialize, Serialize};

/// How threads share the map, or the pool of descriptors and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shared {
    /// One spin lock for all, as in pblk.
    Lock,
    /// Without a lock that CPUs share: words of the map change atomically, each CPU has a pool of its own. As in QBLKe.
    Apart,
}

/// What a thread does when the rings take no more data of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It yields and tries again, as in pblk: each try takes the ring's lock (open-channel §1.2).
    Retry,
    /// It waits until there is room, as in QBLKe (open-channel §2.4).
    Wait,
}

/// Costs of single steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A job's own work for a request.
    pub application: Duration,
    /// System calls that submit a request and fetch its answer.
    pub system: Duration,
    /// Wake-up of a sleeping thread.
    pub wake: Duration,
    /// A turn of the scheduler, for a thread that yields.
    pub turn: Duration,
    /// Acquisition and release of a spin lock that this CPU held last.
    pub lock: Duration,
    /// What is added if another CPU held it last.
    pub hand_over: Duration,
    /// Access to a cache line that another CPU changed last.
    pub line: Duration,
    /// Change of a word of the map.
    pub change: Duration,
    /// Lookup of a word of the map.
    pub lookup: Duration,
    /// Copy of 4 KiB.
    pub copy: Duration,
    /// Taking and returning a descriptor of a pool.
    pub pool: Duration,
}

impl Default for Costs {
    fn default() -> Self {
        let ns = Duration::from_nanos;
        Self {
            application: ns(198), // fio's null engine: CPU time of a request, `fio --ioengine=null --bs=4k --rw=randwrite`
            system: ns(689),      // libaio_read_4k less the zeros that it writes: read_4k less system_call
            wake: ns(2_014),      // half of wake_and_back_one_cpu
            turn: ns(356),        // yield
            lock: ns(5),          // lock_uncontended
            hand_over: ns(17),    // lock_hand_over
            line: ns(16),         // map_exchange_one_line
            change: ns(187),      // map_exchange_cold
            lookup: ns(182),      // map_load_cold
            copy: ns(296),        // copy_4k_cold
            pool: ns(1),          // pool_own; a lock is charged as a lock
        }
    }
}
