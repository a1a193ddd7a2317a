//! What the kernel says about this process.

/// CPU seconds of all threads so far, user and system.
pub(crate) fn seconds() -> Result<f64, String> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(|error| format!("/proc/self/task: {error}"))?;
    let mut nanoseconds = 0;
    for task in tasks.flatten() {
        let path = task.path().join("schedstat");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds += first.ok_or_else(|| format!("{}: no time in {text:?}", path.display()))?;
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// The largest resident size so far, in bytes.
pub(crate) fn peak_resident_bytes() -> Result<f64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    Ok(kib.ok_or("no VmHWM in /proc/self/status")? * 1024.0)
}
