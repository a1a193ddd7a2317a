//! Counters, with the names of the host FTL in virtual time where they mean the same.

use crate::sync::{Alone, AtomicU64, Ordering};
use serde::Serialize;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters since the FTL began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct ThreadsMetrics {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// Counters of one thread, which alone changes them.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Count,)+
        }

        impl ThreadsMetrics {
            /// Adds what all threads have counted.
            pub(crate) fn sum(all: &[Alone<Counters>]) -> Self {
                let mut sum = Self::default();
                for counters in all {
                    $(sum.$name += counters.$name.0.load(Ordering::Relaxed);)+
                }
                sum
            }

            /// Adds the counters of a later life of the disk.
            pub fn add(&mut self, later: &Self) {
                $(self.$name += later.$name;)+
            }
        }
    };
}

counters! {
    /// Read requests.
    reads,
    /// Write requests.
    writes,
    /// TRIM requests.
    trims,
    /// FLUSH requests.
    flushes,
    /// Units that reads found in a ring.
    ring_hits,
    /// Units of the user that entered rings.
    user_units,
    /// Units that GC copied into rings.
    gc_units,
    /// Units that fill up programs.
    padded_units,
    /// All units of all programs.
    programmed_units,
    /// Lines that GC chose.
    lines_collected,
    /// Lines that were erased.
    lines_erased,
    /// Out-of-band records that a recovery read.
    recovery_reads,
    /// Tries of users that found their ring full, and another one too.
    busy_rings,
    /// Tries of users that the limiter sent back.
    limited,
    /// Tries of users that found no room on the medium.
    gated,
    /// Copies of GC that came too late.
    dropped_copies,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}
