//! Devices by name or by file, with keys set on the command line; `weir device`.

use crate::error::{Failure, Outcome, unreadable};
use crate::json;
use crate::options::DeviceCommand;
use crate::output::print;
use flashweir_core::units::LBA_BYTES;
use flashweir_device::config::{
    AppendMode, BufferMode, DeviceConfig, FirmwareKind, OpenVersion, PersistPolicy, PointerMove,
    RangeFlushSupport,
};
use flashweir_device::geometry::Geometry;
use flashweir_device::presets;
use flashweir_fs::Kind;
use flashweir_fs::port::BLOCK_BYTES;
use flashweir_host::HostFtlConfig;
use flashweir_lab::scenario::{Fault, Scenario, read_device, read_devices, read_host_ftl};
use flashweir_sim::host_ftl::check_host_ftl;
use flashweir_workload::spelling::nearest;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// The same devices for a command that needs sectors that can be written in place.
pub(crate) fn resolve_paged(devices: &[String], set: &[String]) -> Outcome<Vec<DeviceConfig>> {
    let all = resolve(devices, set)?;
    for (index, config) in all.iter().enumerate() {
        let place = format!("device {index} ({})", config.name);
        config.check_page_namespace().map_err(|error| Failure::Usage(format!("{place}: {error}")))?;
    }
    Ok(all)
}

/// One device for a disk that is served or kept: with sectors that can be written in place, or an open channel below a host FTL.
pub(crate) fn resolve_disk(
    device: &str,
    set: &[String],
    host_ftl: Option<&str>,
) -> Outcome<(DeviceConfig, Option<HostFtlConfig>)> {
    let all = resolve(&[device.to_owned()], set)?;
    let ftl = host_ftls(host_ftl, &all)?.remove(0);
    for config in all.iter().filter(|_| ftl.is_none()) {
        let checked = match config.firmware {
            FirmwareKind::OpenChannel => config.check_jobs(),
            _ => config.check_page_namespace(),
        };
        checked.map_err(|error| Failure::Usage(format!("device 0 ({}): {error}", config.name)))?;
    }
    Ok((all.into_iter().next().expect("one device was asked for"), ftl))
}

/// The devices for a file system, and the host FTL above each: of append segments if it is for those, and with sectors that can be
/// written in place otherwise.
pub(crate) fn resolve_for(
    kind: Kind,
    devices: &[String],
    set: &[String],
    host_ftl: Option<&str>,
) -> Outcome<Vec<(DeviceConfig, Option<HostFtlConfig>)>> {
    let all = resolve(devices, set)?;
    let name = kind.name();
    for config in &all {
        let has_segments = config.firmware == FirmwareKind::Append;
        let device = &config.name;
        if kind.appends() && !has_segments {
            return Err(Failure::Usage(format!(
                "--format {name} needs a device of append segments, and {device} has none: expected --device amf, or --format \
                 f2fs or ext4"
            )));
        }
        if !kind.appends() && has_segments {
            return Err(Failure::Usage(format!(
                "--format {name} writes over sectors, and {device} has append segments: expected --format alfs, or another \
                 --device"
            )));
        }
    }
    let ftls = host_ftls(host_ftl, &all)?;
    for (config, ftl) in all.iter().zip(&ftls) {
        let device = &config.name;
        if !kind.appends() && ftl.is_none() {
            config.check_jobs().map_err(|error| Failure::Usage(format!("{device}: {error}")))?;
        }
        if ftl.is_some() && config.geometry.unit_bytes.0 > BLOCK_BYTES as u64 {
            return Err(Failure::Usage(format!(
                "{device}: geometry.unit_bytes = {}: expected at most 4KiB: a host FTL takes whole mapping units, and file systems \
                 write blocks of 4 KiB",
                config.geometry.unit_bytes
            )));
        }
    }
    Ok(all.into_iter().zip(ftls).collect())
}

/// The devices of a command line: each a preset or a file, every one with the keys of `set`.
pub(crate) fn resolve(devices: &[String], set: &[String]) -> Outcome<Vec<DeviceConfig>> {
    let renamed = set.iter().any(|change| change.starts_with("device.") && change.contains(".name="));
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].contains(device) && !renamed {
            return Err(Failure::Usage(format!(
                "--device {device} is given twice: expected different devices, or a name for one of them as in \
                 --set device.{at}.name=other"
            )));
        }
    }
    let mut text = String::new();
    for device in devices {
        let key = if presets::text(device).is_some() { "preset" } else { "file" };
        if key == "file" && !looks_like_file(device) {
            return Err(unknown_preset(device));
        }
        let _ = writeln!(text, "[[device]]\n{key} = {}", toml::Value::String(device.clone()));
    }
    let overrides: Vec<String> = set
        .iter()
        .map(|change| match change.starts_with("device.") {
            true => change.clone(),
            false => format!("device.*.{change}"),
        })
        .collect();
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| error.to_string());
    read_devices(&text, &overrides, &read).map_err(|error| {
        let inside = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
        Failure::Usage(match *error.fault {
            Fault::Syntax { line, message } => format!("{}:{line}: {message}", error.file),
            Fault::Read { path, reason, .. } => format!("{path}: cannot be read: {reason}"),
            Fault::Override { text, reason } => {
                let text = text.strip_prefix("device.*.").unwrap_or(&text).to_owned();
                Fault::Override { text, reason }.to_string()
            }
            Fault::Invalid { place, reason } if place == "the scenario" => reason,
            fault => format!("{inside}{fault}"),
        })
    })
}

/// The host FTL of an option above each of these devices: above every open channel, and above no other. Without the option a device on
/// which no job can run is refused.
pub(crate) fn host_ftls(
    option: Option<&str>,
    devices: &[DeviceConfig],
) -> Outcome<Vec<Option<HostFtlConfig>>> {
    let config = option.map(|text| read_host_ftl("--host-ftl", text)).transpose().map_err(Failure::usage)?;
    let above = |device: &DeviceConfig| match (&config, device.firmware) {
        (Some(config), FirmwareKind::OpenChannel) => {
            let checked = check_host_ftl(config, device);
            checked.map_err(|reason| Failure::Usage(reason.replace("host_ftl.", "--host-ftl ")))?;
            Ok(Some(config.clone()))
        }
        _ => Ok(None),
    };
    let all = devices.iter().map(above).collect::<Outcome<Vec<_>>>()?;
    if config.is_some() && all.iter().all(Option::is_none) {
        return Err(Failure::Usage(
            "--host-ftl needs a device with an open channel: expected one, as in --device qblke".into(),
        ));
    }
    Ok(all)
}

/// Refuses what follows requests in time through a block layer and a host FTL, of which it can follow one.
pub(crate) fn refuse_two_layers(scenario: &Scenario, what: &str) -> Outcome {
    let channel = scenario.devices.iter().find(|device| device.firmware == FirmwareKind::OpenChannel);
    let (Some(device), Some(_)) = (channel, &scenario.block_layer) else { return Ok(()) };
    Err(Failure::Usage(format!(
        "{what} follows requests through a block layer or through a host FTL, which {} needs: expected no block layer, or a device with \
         pages, such as qblke-page",
        device.name
    )))
}

fn looks_like_file(name: &str) -> bool {
    name.ends_with(".toml") || name.contains(std::path::MAIN_SEPARATOR) || Path::new(name).is_file()
}

fn unknown_preset(name: &str) -> Failure {
    let hint =
        nearest(name, presets::names()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    let names: Vec<_> = presets::names().collect();
    Failure::Usage(format!(
        "`{name}` is neither a preset nor a device file{hint}{} Presets: {}",
        if hint.is_empty() { "." } else { "" },
        names.join(", ")
    ))
}

/// `weir device`.
pub(crate) fn command(command: &DeviceCommand) -> Outcome {
    match command {
        DeviceCommand::List(shape) => {
            let all = presets::all();
            print(&if shape.is_json() { described(&all)? } else { list() })
        }
        DeviceCommand::Show { name } => match presets::text(name) {
            Some(text) => print(text),
            None => Err(unknown_preset(name)),
        },
        DeviceCommand::Check { file, shape } => {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file).map_err(|error| unreadable(&name, &error))?;
            let config = read_device(&name, &text).map_err(Failure::usage)?;
            print(&match shape.is_json() {
                true => described(&[config])?,
                false => format!("{name}: valid\n\n{}", describe(&config)),
            })
        }
    }
}

/// A size with one digit after the point, in binary units.
pub(crate) fn size(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib >= 1.0 { format!("{gib:.1} GiB") } else { format!("{:.1} MiB", gib * 1024.0) }
}

fn user_bytes(config: &DeviceConfig) -> u64 {
    Geometry::new(config).capacity_lbas() * LBA_BYTES
}

/// The system whose device this is, or with whose commands.
fn system(config: &DeviceConfig) -> &'static str {
    let is_ordered = config.order.policy != PersistPolicy::None || config.order.penalty > 0.0;
    match config.firmware {
        FirmwareKind::Append => "segments",
        FirmwareKind::PageAndAppend => "pages, segments",
        FirmwareKind::OpenChannel => match config.open.version {
            OpenVersion::V12 => "open channel 1.2",
            OpenVersion::V20 => "open channel 2.0",
        },
        FirmwareKind::Page if config.ftl.share.pages > 0 => "SHARE",
        FirmwareKind::Page if config.ftl.placement.handles > 1 => "placement",
        FirmwareKind::Page if is_ordered => "barriers",
        FirmwareKind::Page if config.buffer.range_flush != RangeFlushSupport::None => "range flush",
        FirmwareKind::Page => "-",
    }
}

fn promise(config: &DeviceConfig) -> &'static str {
    match config.buffer.mode {
        BufferMode::WriteThrough => "write-through",
        BufferMode::WriteBack => "write-back",
        BufferMode::PowerLossProtected => "power-loss-protected",
    }
}

/// Devices with all their keys.
fn described(devices: &[DeviceConfig]) -> Outcome<String> {
    #[derive(Serialize)]
    struct Device<'a> {
        capacity_bytes: u64,
        #[serde(flatten)]
        config: &'a DeviceConfig,
    }
    let of = |config| Device { capacity_bytes: user_bytes(config), config };
    let all: Vec<_> = devices.iter().map(of).collect();
    json::pretty(json::Kind::Devices, &serde_json::json!({ "devices": all }))
}

/// The presets in a table.
fn list() -> String {
    let mut rows = vec![
        ["name", "system", "cell", "cache", "capacity", "channels × dies", "planes", "page", "link MB/s"]
            .map(str::to_owned),
    ];
    for config in presets::all() {
        let geometry = Geometry::new(&config);
        rows.push([
            config.name.clone(),
            system(&config).to_owned(),
            format!("{:?}", config.timing.cell).to_uppercase(),
            match config.firmware {
                FirmwareKind::OpenChannel => "-",
                _ => promise(&config),
            }
            .to_owned(),
            size(user_bytes(&config)),
            format!("{} × {}", geometry.channels(), geometry.dies() / geometry.channels()),
            config.geometry.planes_per_die.to_string(),
            config.geometry.page_bytes.to_string(),
            match config.link.bytes_per_s {
                0 => "-".to_owned(),
                rate => (rate / 1_000_000).to_string(),
            },
        ]);
    }
    let mut text = table(&rows, 4);
    text.push_str("\nWhere the values come from: weir device show NAME\n");
    text
}

/// Columns of text: the first `left` to the left, the others to the right.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R], left: usize) -> String {
    let mut widths = Vec::new();
    for row in rows.iter().map(AsRef::as_ref) {
        widths.resize(row.len().max(widths.len()), 0);
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
    }
    let mut text = String::new();
    for row in rows.iter().map(AsRef::as_ref) {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let _ = match column < left {
                true => write!(line, "{gap}{cell:width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What a host sees of segments.
fn segments(config: &DeviceConfig, geometry: &Geometry) -> String {
    let shape = geometry.append;
    let bytes = u64::from(shape.units) * geometry.unit_bytes;
    let rule = match config.append.mode {
        AppendMode::Sequential => "each sector at the write pointer",
        AppendMode::WriteOnce => "each sector once, in any order",
    };
    let open = match config.append.max_open {
        0 => "any number of them open".to_owned(),
        limit => format!("at most {limit} of them open"),
    };
    let per_plane = config.geometry.blocks_per_plane;
    let capacity = format!(
        "{}: {} segments of {}, {open}",
        size(bytes * u64::from(shape.segments)),
        shape.segments,
        size(bytes)
    );
    let (firmware, name, spare) = match config.firmware {
        FirmwareKind::PageAndAppend => (
            "page-and-append: a map of pages, and segments with a map of blocks, on one pool of blocks",
            "namespace 1",
            format!(
                "a plane gives segments at most {} of its {per_plane} blocks, and pages the rest and what segments do not use",
                shape.blocks_per_plane_max
            ),
        ),
        _ => {
            let of_segments = shape.segments * shape.lanes / geometry.planes();
            let spare = geometry.segment_blocks_per_plane(0) - of_segments;
            (
                "append: segments, a map of blocks, no GC",
                "capacity",
                format!("{spare} of {per_plane} blocks in a plane"),
            )
        }
    };
    let pool = if config.firmware.has_pages() { "pool" } else { "spare" };
    let mut text = String::new();
    for (name, value) in [
        ("firmware", firmware.to_owned()),
        (name, capacity),
        ("segment", format!("{} blocks, one of each of as many planes; {rule}", shape.lanes)),
        ("map", format!("{} bytes of block lists", u64::from(shape.segments) * u64::from(shape.lanes) * 4)),
        (pool, spare),
    ] {
        let _ = writeln!(text, "{name:12}{value}");
    }
    text
}

/// What a host sees of an open channel.
fn open_channel(config: &DeviceConfig, geometry: &Geometry) -> String {
    let (open, physical) = (&config.open, geometry.physical_units() * geometry.unit_bytes);
    let bytes = |units: u32| size(u64::from(units) * geometry.unit_bytes);
    let version = match open.version {
        OpenVersion::V12 => "OCSSD 1.2",
        OpenVersion::V20 => "OCSSD 2.0",
    };
    let limit = match open.max_open {
        0 => "any number of them open".to_owned(),
        limit => format!("at most {limit} of them open"),
    };
    let pointer = match open.pointer {
        PointerMove::Accepted => "when a write is accepted",
        PointerMove::Programmed => "when a write is programmed",
    };
    let write_kib = u64::from(open.write_pages * geometry.units_per_page) * geometry.unit_bytes / 1024;
    let served = match open.version {
        OpenVersion::V12 => "the device serves from its memory",
        OpenVersion::V20 => "cannot be read",
    };
    let mut text = String::new();
    for (name, value) in [
        (
            "firmware",
            format!("open-channel, {version}: {} for a host with an FTL of its own", size(physical)),
        ),
        (
            "chunks",
            format!(
                "{} parallel units of {} chunks of {}, {limit}",
                geometry.parallel_units(),
                geometry.blocks_per_plane,
                bytes(geometry.chunk_units())
            ),
        ),
        ("write", format!("whole units of {write_kib} KiB; the write pointer moves {pointer}")),
        ("recent", format!("the last {} units of an open chunk {served}", open.cached_units)),
    ] {
        let _ = writeln!(text, "{name:12}{value}");
    }
    text
}

/// Description of a device, in a few lines.
fn describe(config: &DeviceConfig) -> String {
    let (geometry, g) = (Geometry::new(config), &config.geometry);
    let physical = geometry.physical_units() * geometry.unit_bytes;
    // Over-provisioning is of what segments beside pages leave.
    let lent = u64::from(geometry.append.blocks_per_plane_max) * u64::from(geometry.planes());
    let lent = lent * u64::from(geometry.units_per_block()) * geometry.unit_bytes;
    let lines = [
        ("name", config.name.clone()),
        ("source", config.source.clone()),
        (
            if config.firmware.is_page() { "capacity" } else { "namespace 0" },
            format!(
                "{} of {} ({:.1} % over-provisioned)",
                size(user_bytes(config)),
                size(physical - lent),
                config.ftl.over_provisioning * 100.0
            ),
        ),
        (
            "parallelism",
            format!(
                "{} channels × {} chips × {} dies × {} planes",
                g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die
            ),
        ),
        ("block", format!("{} pages of {}, mapped by {}", g.pages_per_block, g.page_bytes, g.unit_bytes)),
        (
            "spare",
            format!(
                "{:.1} of {} blocks in a plane; GC begins below {} free ones",
                geometry.spare_blocks_per_plane_min(),
                g.blocks_per_plane,
                config.ftl.gc.start_below_blocks
            ),
        ),
        ("cache", format!("{}, {}", promise(config), config.buffer.capacity)),
    ];
    let is_shown = |name: &str| match config.firmware {
        FirmwareKind::Page | FirmwareKind::PageAndAppend => true,
        FirmwareKind::Append => !matches!(name, "namespace 0" | "spare"),
        // An open channel has the whole flash, and nothing in front of it.
        FirmwareKind::OpenChannel => !matches!(name, "namespace 0" | "spare" | "cache"),
    };
    let mut text = String::new();
    match config.firmware {
        FirmwareKind::Page => {}
        FirmwareKind::Append | FirmwareKind::PageAndAppend => text.push_str(&segments(config, &geometry)),
        FirmwareKind::OpenChannel => {
            text.push_str(&open_channel(config, &geometry));
        }
    }
    for (name, value) in lines.iter().filter(|(name, value)| !value.is_empty() && is_shown(name)) {
        let _ = writeln!(text, "{name:12}{value}");
    }
    text
}
