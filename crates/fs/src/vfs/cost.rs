//! CPU time of a call on the host, as virtual time.
//!
//! Place in the data flow: each call of the vfs charges its own cost to the host's CPUs (`core::cpus`) once, and once more if it had to
//! wait for the disk, and sleeps until that time has passed.
//!
//! Deliberately absent: the CPU time of background write-back and of the file system's own work.

use flashweir_core::Duration;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// CPU time of the host, and its CPUs. [`HostCosts::ZERO`] has no time and no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostCosts {
    /// Entering and leaving the kernel, with the lookup of file and arguments; once for each call.
    pub syscall: Duration,
    /// Looking up one name of a path.
    pub path_component: Duration,
    /// Finding one page in the page cache, or inserting it.
    pub page_hit: Duration,
    /// Copying between application and page cache, in picoseconds for each byte. Direct I/O copies nothing.
    pub copy_ps_per_byte: u64,
    /// Building a request for the disk: file system, block layer, driver; once for each call that waits.
    pub io_path: Duration,
    /// One interrupt; once for each call that waits.
    pub interrupt: Duration,
    /// One switch of context; twice for each call that waits, away and back.
    pub context_switch: Duration,
    /// Number of CPUs; work that finds none free waits for one. With `None` each task has a CPU of its own.
    pub cpus: Option<NonZeroU32>,
}

/// A named set of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostPreset {
    /// Name.
    pub name: &'static str,
    /// Source of its values.
    pub source: &'static str,
    /// The values.
    pub costs: HostCosts,
}

impl HostCosts {
    /// Calls take no time.
    pub const ZERO: Self = Self {
        syscall: Duration::ZERO,
        path_component: Duration::ZERO,
        page_hit: Duration::ZERO,
        copy_ps_per_byte: 0,
        io_path: Duration::ZERO,
        interrupt: Duration::ZERO,
        context_switch: Duration::ZERO,
        cpus: None,
    };

    const SERVER: Self = Self {
        syscall: Duration::from_nanos(550),
        path_component: Duration::from_nanos(200),
        page_hit: Duration::from_nanos(200),
        copy_ps_per_byte: 100,
        io_path: Duration::from_nanos(2_498),
        interrupt: Duration::from_nanos(1_000),
        context_switch: Duration::from_nanos(1_300),
        cpus: NonZeroU32::new(6),
    };

    const PHONE: Self = Self {
        syscall: Duration::from_nanos(1_650),
        path_component: Duration::from_nanos(600),
        page_hit: Duration::from_nanos(600),
        copy_ps_per_byte: 300,
        io_path: Duration::from_nanos(7_494),
        interrupt: Duration::from_nanos(3_000),
        context_switch: Duration::from_nanos(3_900),
        cpus: NonZeroU32::new(8),
    };

    /// Every preset.
    pub const PRESETS: &[CostPreset] = &[
        CostPreset { name: "zero", source: "calls take no time", costs: Self::ZERO },
        CostPreset {
            name: "server",
            source: "syscall (kernel crossing 351 ns + read 199 ns) and io_path (ext4 2,006 ns + bio 379 ns + \
                     NVMe driver 113 ns): Zhong et al., XRP, OSDI 2022, table 1; context_switch: a ping-pong of two \
                     threads on one CPU, albertnetymk.github.io/2022/12/18/context_switch; 6 CPUs: the cores of the \
                     machine of the RFLUSH paper, of which it says Core i7, 3.3 GHz, 64 GB of DDR4 (range-flush §6.1), which \
                     among Intel's is the i7-5820K; that two threads share a core is left out; the others are guesses \
                     (copy: 10 GB/s)",
            costs: Self::SERVER,
        },
        CostPreset {
            name: "phone",
            source: "guesses: three times those of `server`, 8 CPUs",
            costs: Self::PHONE,
        },
    ];

    /// The preset of this name; the error lists all names.
    pub fn preset(name: &str) -> Result<Self, String> {
        let found = Self::PRESETS.iter().find(|preset| preset.name == name);
        found.map(|preset| preset.costs).ok_or_else(|| {
            let names: Vec<&str> = Self::PRESETS.iter().map(|preset| preset.name).collect();
            format!("no host costs are called `{name}`: expected one of {}", names.join(", "))
        })
    }

    /// Cost of a call that copies `bytes` and touches `pages` of the cache.
    #[inline]
    pub const fn of_call(&self, bytes: u64, pages: u64) -> Duration {
        let copy = (bytes as u128 * self.copy_ps_per_byte as u128 / 1_000) as u64;
        Duration::from_nanos(self.syscall.as_nanos() + copy + self.page_hit.as_nanos() * pages)
    }

    /// Additional cost of a call that had to wait for the disk.
    #[inline]
    pub const fn of_wait(&self) -> Duration {
        Duration::from_nanos(
            self.io_path.as_nanos() + self.interrupt.as_nanos() + 2 * self.context_switch.as_nanos(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_add_up() {
        let server = HostCosts::preset("server").unwrap();
        assert_eq!(server.of_call(4096, 1).as_nanos(), 550 + 409 + 200);
        assert_eq!(server.of_wait().as_nanos(), 2_498 + 1_000 + 2_600);
        assert_eq!(HostCosts::preset("zero").unwrap().of_call(1 << 40, 1 << 28), Duration::ZERO);
        let error = HostCosts::preset("servr").unwrap_err();
        assert_eq!(error, "no host costs are called `servr`: expected one of zero, server, phone");
    }

    #[test]
    fn a_phone_takes_three_times_as_long_as_a_server() {
        let [_, server, phone] = HostCosts::PRESETS else { panic!("three presets") };
        assert_eq!(phone.costs.of_wait(), server.costs.of_wait() * 3);
        assert_eq!(phone.costs.of_call(8_000, 2), server.costs.of_call(8_000, 2) * 3);
    }
}
