//! Calls of the kernel that both benches need.

#![allow(dead_code, reason = "each bench has its part of it")]

use std::collections::BTreeMap;
use std::io::Error;

/// Binds the calling thread to a CPU.
pub(crate) fn pin(cpu: usize) -> Result<(), String> {
    // SAFETY: a set of CPUs is plain bits, and zeros are the empty one; the call reads it, with its size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    match result {
        0 => Ok(()),
        _ => Err(format!("sched_setaffinity to CPU {cpu}: {}", Error::last_os_error())),
    }
}

/// Has the calling thread, and those that it starts, run before all ordinary ones; returns whether that was allowed.
pub(crate) fn prefer() -> bool {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the priority, which lives.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

/// Gives the process most of the time that others want too; returns whether that was allowed.
pub(crate) fn hurry() -> bool {
    // SAFETY: the call has numbers as its arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 }
}

/// Nanoseconds of CPU time in a thread's `schedstat`.
fn cpu_time(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Nanoseconds of CPU time of the calling thread.
pub(crate) fn my_cpu_time() -> u64 {
    cpu_time("/proc/thread-self/schedstat")
}

/// Nanoseconds of CPU time of the disk's threads, by their kind.
pub(crate) fn cpu_times() -> BTreeMap<&'static str, u64> {
    let mut times = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let path = task.path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let kind = match name.trim() {
            "collector" => "collector",
            name if name.starts_with("writer") => "writer",
            _ => continue,
        };
        *times.entry(kind).or_insert(0) += cpu_time(&path.join("schedstat").display().to_string());
    }
    times
}
