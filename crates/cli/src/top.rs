//! `weir top`, and `weir serve --top`: a running server on the terminal, twice a second.
//!
//! Place in the data flow: asks the control socket for its status; rates are differences of two answers.
//!
//! Invariant: the terminal is left as it was found, however the view ends.

use crate::error::{Failure, Outcome, say};
use crate::json;
use crate::options::ShapeArgs;
use crate::output::print;
use clap::Args;
use flashweir_serve::control::{self, Ask, DiskStatus, Reply, Status};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Time between two pictures.
const INTERVAL: Duration = Duration::from_millis(500);
/// The parts of a bar of one column.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Dies in one row.
const DIES_IN_ROW: usize = 64;

/// The control socket that belongs to a unix socket.
pub(crate) fn control_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

#[derive(Debug, Args)]
#[command(
    after_help = "Shows, for each disk: requests and bytes per second and their latency since the last picture, percentiles since
the beginning, how full the buffer is, write amplification, garbage collection, wear, free blocks, and how busy each die is; with
SHARE also the remapped units and how full the table of shared pages is.
Ctrl-C ends the view and not the server. Where the output is no terminal, one picture is printed; as JSON it is the status at one instant."
)]
pub(crate) struct TopArgs {
    /// The server's control socket, or the unix socket that it serves
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// Print one picture of half a second and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// `weir top`.
pub(crate) fn command(args: &TopArgs, cancel: &AtomicBool) -> Outcome {
    let beside = control_of(&args.socket);
    let socket = if beside.exists() { &beside } else { &args.socket };
    if args.shape.is_json() {
        return print(&json::line(json::Kind::Status, &status(socket)?)?);
    }
    if args.once || !std::io::stdout().is_terminal() {
        let before = status(socket)?;
        // No message is ever sent: this waits.
        let (_sender, never) = std::sync::mpsc::channel::<()>();
        let _ = never.recv_timeout(INTERVAL);
        return print(&picture(&before, &status(socket)?));
    }
    let (_sender, never) = std::sync::mpsc::channel();
    show(socket, cancel, &never)
}

/// Redraws until the server ends, `cancel` is set, or `ended` receives a message or loses its sender.
pub(crate) fn show(socket: &Path, cancel: &AtomicBool, ended: &Receiver<()>) -> Outcome {
    let mut before = status(socket)?;
    let screen = Screen::enter()?;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(INTERVAL) {
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        let Ok(now) = status(socket) else {
            drop(screen);
            say("the server has ended");
            return Ok(());
        };
        print(&format!("\x1b[H{}\x1b[J", clipped(&picture(&before, &now))))?;
        before = now;
    }
    Ok(())
}

/// A picture whose lines end in the clearing of what was there, cut to the terminal's size: otherwise it scrolls.
fn clipped(picture: &str) -> String {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let (rows, columns) = size.map_or((0, 0), |size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    let rows = if rows > 1 { rows - 1 } else { usize::MAX };
    let columns = if columns > 0 { columns } else { usize::MAX };
    let line = |line: &str| line.chars().take(columns).chain("\x1b[K\n".chars()).collect::<String>();
    picture.lines().take(rows).map(line).collect()
}

/// The other screen of the terminal, without a cursor.
struct Screen;

impl Screen {
    fn enter() -> Outcome<Self> {
        print("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

fn status(socket: &Path) -> Outcome<Status> {
    match control::ask(socket, &Ask::Status).map_err(Failure::run)? {
        Reply::Status(status) => Ok(status),
        _ => Err(Failure::Run(format!("{}: the server answered something else", socket.display()))),
    }
}

/// One picture: what happened between two answers.
fn picture(before: &Status, now: &Status) -> String {
    let wall_s = (now.uptime_ns.saturating_sub(before.uptime_ns)) as f64 / 1e9;
    let mut text = format!(
        "weir serve, up {}, speed {}, {} connection{}\n",
        clock(now.uptime_ns / 1_000_000_000),
        now.speed,
        now.connections,
        if now.connections == 1 { "" } else { "s" }
    );
    for disk in &now.disks {
        let old = before.disks.iter().find(|old| old.export == disk.export);
        text.push('\n');
        disk_picture(&mut text, old.unwrap_or(disk), disk, wall_s.max(1e-9));
    }
    text
}

fn clock(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn disk_picture(text: &mut String, old: &DiskStatus, disk: &DiskStatus, wall_s: f64) {
    let power = if disk.on { "on" } else { "OFF" };
    let _ = writeln!(
        text,
        "{}  ({}, {:.1} GB)  power {power}, {} cuts, {} in flight",
        disk.export,
        disk.device,
        disk.size as f64 / 1e9,
        disk.cuts,
        disk.in_flight
    );
    let _ = writeln!(
        text,
        "  {:<6}{:>12}{:>10}{:>12}   {:>12}{:>12}{:>12}{:>9}",
        "", "IOPS", "MB/s", "mean µs", "p50 µs", "p99 µs", "p99.9 µs", "errors"
    );
    for kind in &disk.kinds {
        let same = old.kinds.iter().find(|other| other.kind == kind.kind);
        let (requests, bytes, sum) = same
            .map_or((0, 0, 0.0), |old| (old.requests, old.bytes, old.server_ns.mean * old.requests as f64));
        let count = kind.requests.saturating_sub(requests);
        let mean = match count {
            0 => "–".to_owned(),
            count => {
                let sum = kind.server_ns.mean * kind.requests as f64 - sum;
                format!("{:.1}", (sum / count as f64 / 1e3).max(0.0))
            }
        };
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let _ = writeln!(
            text,
            "  {:<6}{:>12.0}{:>10.1}{:>12}   {:>12}{:>12}{:>12}{:>9}",
            kind.kind,
            count as f64 / wall_s,
            kind.bytes.saturating_sub(bytes) as f64 / 1e6 / wall_s,
            mean,
            us(kind.server_ns.p50),
            us(kind.server_ns.p99),
            us(kind.server_ns.p999),
            kind.errors
        );
    }
    let late = &disk.misses_ns;
    let _ = writeln!(
        text,
        "  late    p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs behind the model",
        late.p50 as f64 / 1e3,
        late.p99 as f64 / 1e3,
        late.max as f64 / 1e3
    );
    let [slots, used, dirty] = disk.buffer;
    let share = |part: u64| part as f64 / slots.max(1) as f64;
    let _ = writeln!(
        text,
        "  buffer  [{}] {used} of {slots} units used, {dirty} dirty",
        bar(share(used), share(dirty), 40)
    );
    let delta = |at: usize| disk.units[at].saturating_sub(old.units[at]);
    let waf = |units: [u64; 4]| match units[0] {
        0 => "–".to_owned(),
        host => format!("{:.2}", (units[1] + units[2] + units[3]) as f64 / host as f64),
    };
    let _ = writeln!(
        text,
        "  flash   WAF {} now, {} in all; {:.0} units/s moved by GC, {:.1} erases/s",
        waf([delta(0), delta(1), delta(2), delta(3)]),
        waf(disk.units),
        delta(2) as f64 / wall_s,
        disk.erases.saturating_sub(old.erases) as f64 / wall_s
    );
    let [shared, copied, used, room] = disk.shares;
    if room > 0 {
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / wall_s;
        let _ = writeln!(
            text,
            "  share   [{}] {used} of {room} pages in the table; {:.0} units/s remapped, {:.0} units/s copied",
            bar(used as f64 / room as f64, 0.0, 40),
            per_s(shared, old.shares[0]),
            per_s(copied, old.shares[1])
        );
    }
    let _ = writeln!(
        text,
        "  blocks  free per plane: least {}, mean {:.1}; erases per block: {} to {}, mean {:.2}",
        disk.free_blocks.0, disk.free_blocks.1, disk.wear.0, disk.wear.2, disk.wear.1
    );
    dies(text, old, disk);
}

/// How busy each die was, a column for each.
fn dies(text: &mut String, old: &DiskStatus, disk: &DiskStatus) {
    let span = disk.time_ns.saturating_sub(old.time_ns);
    let busy = |(i, now): (usize, &u64)| {
        let before = old.die_busy_ns.get(i).copied().unwrap_or(0);
        if span == 0 { 0.0 } else { (now.saturating_sub(before) as f64 / span as f64).min(1.0) }
    };
    let shares: Vec<f64> = disk.die_busy_ns.iter().enumerate().map(busy).collect();
    for (row, shares) in shares.chunks(DIES_IN_ROW).enumerate() {
        let bars: String = shares.iter().map(|share| EIGHTHS[(share * 8.0).round() as usize]).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let name = if row == 0 { "dies" } else { "" };
        let _ = writeln!(text, "  {name:<8}[{bars}] {:.0} % busy", mean * 100.0);
    }
}

/// A bar of `width` columns: dirty part, used part, free part.
fn bar(used: f64, dirty: f64, width: usize) -> String {
    let columns = |share: f64| (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    let (dirty, used) = (columns(dirty), columns(used).max(columns(dirty)));
    format!("{}{}{}", "█".repeat(dirty), "▒".repeat(used - dirty), "·".repeat(width - used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_serve::control::DiskStatus;
    use flashweir_serve::stats::{KindStatus, Percentiles};

    #[test]
    fn rates_are_differences() {
        let kind = |requests, mean| KindStatus {
            kind: "read".into(),
            requests,
            bytes: requests * 4096,
            server_ns: Percentiles { mean, p50: 90_000, p99: 95_000, p999: 99_000, max: 99_000 },
            ..KindStatus::default()
        };
        let disk = |requests, mean, time_ns, busy| DiskStatus {
            export: "d".into(),
            device: "model".into(),
            on: true,
            kinds: vec![kind(requests, mean)],
            buffer: [100, 50, 25],
            units: [10, 10, 5, 0],
            shares: [requests, requests / 100, 30, 40],
            time_ns,
            die_busy_ns: vec![busy, 0],
            ..DiskStatus::default()
        };
        let status =
            |uptime_ns, disk| Status { uptime_ns, speed: "real".into(), connections: 1, disks: vec![disk] };
        let before = status(1_000_000_000, disk(100, 100_000.0, 0, 0));
        let now = status(1_500_000_000, disk(200, 150_000.0, 1_000, 500));
        let text = picture(&before, &now);
        assert!(text.contains("up 0:00:01, speed real, 1 connection\n"), "{text}");
        // 100 requests in half a second; 200 × 150 − 100 × 100 µs over 100 requests.
        assert!(
            text.contains("         200       0.8       200.0           90.0        95.0        99.0"),
            "{text}"
        );
        assert!(text.contains("[██████████▒▒▒▒▒▒▒▒▒▒····················] 50 of 100 units"), "{text}");
        assert!(text.contains("WAF – now, 1.50 in all"), "{text}");
        assert!(text.contains("[▄ ] 25 % busy"), "{text}");
        let table = "▒".repeat(30) + &"·".repeat(10);
        let share =
            format!("[{table}] 30 of 40 pages in the table; 200 units/s remapped, 2 units/s copied\n");
        assert!(text.contains(&share), "{text}");
        let without =
            Status { disks: vec![DiskStatus { shares: [0; 4], ..now.disks[0].clone() }], ..now.clone() };
        assert!(!picture(&before, &without).contains("share"), "a device without SHARE has no such line");
    }
}
