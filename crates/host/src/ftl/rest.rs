//! A host FTL at rest: between two runs, and what its owner has to know of it.
//!
//! Place in the data flow: whoever owns an FTL asks here; requests go through [`target`](super::target).
//!
//! Invariant: an FTL is put aside only when it waits for nothing from below.

use super::config::HostFtlConfig;
use super::passage::FtlPassage;
use super::state::HostFtl;
use super::threads::Threads;
use flashweir_core::{Instant, Lpn};

impl HostFtl {
    /// Notes the passages of all following requests.
    pub fn keep_passages(&mut self) {
        self.passages.keep();
    }

    /// Takes the passage of a request that was answered.
    pub fn take_passage(&mut self, token: u64) -> Option<FtlPassage> {
        self.passages.take(token)
    }

    /// Whether no command of it is under way or to be offered, and no request waits.
    pub fn is_at_rest(&self) -> bool {
        let is_empty = self.tasks.is_empty() && self.reads.is_empty() && self.waiters.is_empty();
        is_empty
            && self.offered.is_none()
            && self.out.iter().all(|queue| queue.is_empty())
            && self.queued.iter().all(|queue| queue.is_empty())
            && self.recovery.is_none()
            && self.threads.as_ref().is_none_or(|threads| threads.next().is_none())
    }

    /// Begins a new time at zero, for another run on the same device. Panics if it is not at rest.
    pub fn reset_clock(&mut self) {
        assert!(self.is_at_rest(), "a host FTL that waits is put aside: {}", self.describe());
        self.now = Instant::ZERO;
        self.user_was_active = None;
        self.is_stalled = false;
        self.pad_at.fill(None);
        self.last_read.fill(None);
        (self.inactive_at, self.armed) = (None, None);
        self.threads = Threads::new(&self.config, self.layout.unit_sectors);
    }

    /// Its configuration.
    pub fn config(&self) -> &HostFtlConfig {
        &self.config
    }

    /// Data units of a line whose blocks are all good.
    pub fn line_units(&self) -> u64 {
        u64::from(self.layout.data_units())
    }

    /// Units that have content.
    pub fn mapped_units(&self) -> u64 {
        (0..self.layout.user_units).filter(|&unit| self.find(Lpn(unit)).is_some()).count() as u64
    }

    /// Bytes of memory that the map takes: a word for each unit.
    pub fn map_bytes(&self) -> u64 {
        self.layout.user_units * 8
    }
}
