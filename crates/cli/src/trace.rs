//! `weir trace info`: the summary of a trace.

use crate::error::{Failure, Outcome};
use crate::json::{self, Kind};
use crate::options::{ReadArgs, TraceCommand};
use crate::output::print;
use crate::output::thousands;
use flashweir_workload::trace::TraceInfo;
use std::fmt::Write as _;
use std::path::Path;

/// Devices of a trace that are listed.
const DEVICES_MAX: usize = 12;

/// `weir trace`.
pub(crate) fn command(command: &TraceCommand) -> Outcome {
    let TraceCommand::Info { trace, read, shape } = command;
    let info = summary(trace, read)?;
    print(&if shape.is_json() { json::pretty(Kind::Trace, &info)? } else { lines(&info) })
}

fn summary(trace: &Path, read: &ReadArgs) -> Outcome<TraceInfo> {
    TraceInfo::open(trace, &read.options(true)).map_err(Failure::usage)
}

/// Bytes in MB, with one digit.
fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn lines(info: &TraceInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:14}{value}");
    };
    line("trace", info.file.clone());
    line("format", info.format.to_string());
    let device = info.device.as_deref().unwrap_or("all");
    match info.devices.len() {
        0 | 1 => line("device", device.to_owned()),
        all => line("device", format!("{device}, of {all}; --trace-device chooses another one or `all`")),
    }
    let seconds = info.duration.as_secs_f64();
    line("requests", thousands(info.requests));
    line("duration", format!("{seconds:.3} s"));
    if seconds > 0.0 {
        line("rate", format!("{:.1} requests per second", info.requests as f64 / seconds));
    }
    for (name, count, bytes) in [
        ("reads", info.reads, info.read_bytes),
        ("writes", info.writes, info.write_bytes),
        ("trims", info.trims, info.trim_bytes),
        ("shares", info.shares, info.share_bytes),
    ] {
        if count > 0 {
            let share = count as f64 * 100.0 / info.requests as f64;
            let mean = bytes as f64 / count as f64 / 1024.0;
            line(name, format!("{} ({share:.1} %), {}, {mean:.1} KiB each", thousands(count), mb(bytes)));
        }
    }
    for (name, count) in
        [("flushes", info.flushes), ("preflushes", info.preflushes), ("FUA writes", info.fua)]
    {
        if count > 0 {
            line(name, thousands(count));
        }
    }
    line(
        "footprint",
        format!("{}, of which {} are written", mb(info.footprint().0), mb(info.written_pages * 4096)),
    );
    line("device size", format!("{} at least, or `--fit wrap`", mb(info.end_bytes)));
    if info.unaligned > 0 {
        line("unaligned", format!("{} requests are not whole pages of 4 KiB", thousands(info.unaligned)));
    }
    if info.backwards > 0 {
        line("out of order", format!("{} requests; a replay may need `--sort`", thousands(info.backwards)));
    }
    if info.devices.len() > 1 {
        text.push_str("\ndevices of the trace\n");
        let mut devices: Vec<_> = info.devices.iter().collect();
        devices.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (name, count) in devices.iter().take(DEVICES_MAX) {
            let _ = writeln!(text, "  {name:12}{:>16} requests", thousands(**count));
        }
        if devices.len() > DEVICES_MAX {
            let _ = writeln!(text, "  and {} more", devices.len() - DEVICES_MAX);
        }
    }
    text
}
