//! A scenario: devices × workloads × seeds in one TOML file, with overrides from the command line.
//!
//! Place in the data flow: text and overrides come in, a [`Scenario`] of checked, typed parts goes out; the runner
//! makes a world from each [`Run`]. Overrides work on the TOML tree before it is typed, so every key can be
//! set.
//!
//! A device begins as a preset, a device file or nothing; keys next to it are merged over that, then those of
//! `set`, then those of the command line. Paths of files in a scenario are relative to it.
//!
//! Invariants: every device is valid; names of devices differ, and so do those of workloads; every fio job file
//! was parsed for every device; an error names its file, key and place, and what would have been valid.
//!
//! Deliberately absent: reading traces, which may be large; the runner reads them once for all devices.

mod error;
mod host_ftl;
#[cfg(test)]
mod tests;
mod tree;

pub use error::{Fault, ScenarioError};
pub use host_ftl::read_host_ftl;

use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Bytes, Duration};
use flashweir_device::config::{DeviceConfig, FirmwareKind, Translation};
use flashweir_device::presets;
use flashweir_host::{HostConfig, HostFtlConfig};
use flashweir_sim::check_block_layer;
use flashweir_sim::host_ftl::{capacity_lbas, check_above, check_host_ftl};
use flashweir_sim::precondition::Precondition;
use flashweir_workload::fio::parse_job_file;
use flashweir_workload::spelling::nearest;
use flashweir_workload::trace::{Action, Devices, Fit, Format, ReadOptions, ReplayConfig, Timing};
use serde::{Deserialize, Deserializer};
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use tree::shape;

/// Devices × workloads × seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name of the scenario, for reports.
    pub name: String,
    /// Seeds of the repetitions; there is at least one, and all differ.
    pub seeds: Vec<u64>,
    /// Preconditioning of each device before the workload.
    pub precondition: Precondition,
    /// Whether devices store what was written, so that it can be compared.
    pub track_contents: bool,
    /// The block layer between jobs and devices, if there is one.
    pub block_layer: Option<HostConfig>,
    /// Devices, which are valid and have different names.
    pub devices: Vec<DeviceConfig>,
    /// The host FTL above each device; none above those beyond the end of the list.
    pub host_ftls: Vec<Option<HostFtlConfig>>,
    /// Workloads, which have different names.
    pub workloads: Vec<WorkloadConfig>,
}

/// One world of a scenario, by position in its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position in [`Scenario::devices`].
    pub device: usize,
    /// Position in [`Scenario::workloads`].
    pub workload: usize,
    /// The seed.
    pub seed: u64,
}

impl Scenario {
    /// All worlds: workload by workload, device by device, seed by seed.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.workloads.len()).flat_map(move |workload| {
            (0..self.devices.len())
                .flat_map(move |device| self.seeds.iter().map(move |&seed| Run { device, workload, seed }))
        })
    }

    /// The host FTL above a device, by its position in the list.
    pub fn host_ftl(&self, device: usize) -> Option<&HostFtlConfig> {
        self.host_ftls.get(device)?.as_ref()
    }

    /// Reads the scenario `path`. An override is `key=value` with a dotted key: `seeds=5`,
    /// `device.0.ftl.gc.policy=fifo`, `device.*.buffer.capacity=64MiB`.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ScenarioError> {
        let file = path.display().to_string();
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| error.to_string());
        let text = read(path).map_err(|reason| {
            let place = "the scenario".into();
            ScenarioError::new(&file, Fault::Read { path: file.clone(), place, reason })
        })?;
        Self::parse(&file, &text, overrides, &read)
    }

    /// Reads the scenario `text`, which messages call `file`, to which its paths are relative; `read` returns
    /// the text of other files.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn parse(
        file: &str,
        text: &str,
        overrides: &[String],
        read: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ScenarioError> {
        let base = Path::new(file).parent().unwrap_or(Path::new("")).to_owned();
        Reader { file, base, read }.scenario(text, overrides)
    }
}

/// Reads a device from the text of a device file, which messages call `file`.
///
/// # Errors
/// The first fault, with its place.
pub fn read_device(file: &str, text: &str) -> Result<DeviceConfig, ScenarioError> {
    let at = |fault| ScenarioError::new(file, fault);
    let table = syntax(file, text)?;
    let config: DeviceConfig = tree::read(&table, &device_shape(), "the device").map_err(at)?;
    config.validate().map_err(|reason| at(Fault::Invalid { place: "the device".into(), reason }))?;
    Ok(config)
}

/// Reads a block layer from the text of an option called `option`: a scheduler, keys with values, or both, with commas in between,
/// as in `deadline,depth=8`.
///
/// # Errors
/// The first fault, and what would have been valid.
pub fn read_block_layer(option: &str, text: &str) -> Result<HostConfig, Fault> {
    let mut table = Table::new();
    for (at, part) in text.split(',').map(str::trim).enumerate() {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), tree::command_line_value(value.trim())),
            None if at == 0 => ("scheduler", Value::String(part.to_owned())),
            None => {
                let reason = format!("`{part}` has no value: expected KEY=VALUE, as in depth=8");
                return Err(Fault::Invalid { place: option.to_owned(), reason });
            }
        };
        if table.insert(key.to_owned(), value).is_some() {
            let reason = format!("`{key}` is given twice: expected one value");
            return Err(Fault::Invalid { place: option.to_owned(), reason });
        }
    }
    let config: HostConfig = tree::read(&table, &shape(BLOCK_LAYER_SHAPE), option)?;
    let invalid = |reason: String| Fault::Invalid { place: option.to_owned(), reason };
    config.validate().map_err(|reason| invalid(reason.replace("block_layer.", "")))?;
    Ok(config)
}

/// Reads the devices of the scenario `text`, of which no workload is needed, with the keys of `overrides`.
///
/// # Errors
/// The first fault, with its place.
pub fn read_devices(
    text: &str,
    overrides: &[String],
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<Vec<DeviceConfig>, ScenarioError> {
    let at = |fault| ScenarioError::new("", fault);
    let overrides: Vec<Override<'_>> =
        overrides.iter().map(|text| Override::parse(text)).collect::<Result<_, _>>().map_err(at)?;
    let mut top = syntax("", text)?;
    for change in overrides.iter().filter(|change| change.in_device().is_none()) {
        tree::set_path(&mut top, &change.path, &change.value).map_err(|reason| at(change.fault(reason)))?;
    }
    let entries = list(&mut top, "device", "preset = \"rflush\"").map_err(at)?;
    let (devices, host_ftls) =
        Reader { file: "", base: PathBuf::new(), read }.devices(entries, &overrides, None)?;
    if host_ftls.iter().any(Option::is_some) {
        let reason =
            "a host FTL is no key of a device here: expected --host-ftl, as in --host-ftl qblke,rings=4"
                .into();
        return Err(at(Fault::Invalid { place: "--set host_ftl".into(), reason }));
    }
    differ("devices", devices.iter().map(|device| device.name.as_str())).map_err(at)?;
    Ok(devices)
}

/// A workload with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// Name in reports.
    pub name: String,
    /// Source of its requests.
    pub source: Source,
}

/// Source of the requests of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A fio job file.
    Fio {
        /// Name of the file in messages.
        file: String,
        /// Text of the file.
        text: String,
    },
    /// A trace.
    Trace {
        /// Path of the file, relative to the working directory.
        file: PathBuf,
        /// Options for reading it.
        read: ReadOptions,
        /// Options of its replay.
        replay: ReplayConfig,
    },
}

/// The top level of a scenario without its lists.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    #[serde(default = "one_seed", deserialize_with = "seeds")]
    seeds: Vec<u64>,
    #[serde(default)]
    precondition: Precondition,
    #[serde(default)]
    track_contents: bool,
    block_layer: Option<HostConfig>,
    host_ftl: Option<Table>,
}

const HEAD_SHAPE: &str = "name = 'x'\nseeds = [1, 2, 3]\ntrack_contents = false
precondition = { mode = 'none', fill = 0.9, overwrite = 2.0, pattern = 'random' }
[block_layer]\n";

/// A block layer with every key, which is appended to [`HEAD_SHAPE`].
const BLOCK_LAYER_SHAPE: &str =
    "scheduler = 'none'\nepochs = 'counted'\ndispatch = 'order-preserving'\nqueues = 1
depth = 32\nmerge_blocks_max = 1024\nretry_after = '3ms'\nretry_on_completion = true\nflush = 'simple'";

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A list of seeds, or a number n for the seeds 1 to n.
fn seeds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let expected = ": expected a number from 1 to 100000, or a list of different seeds such as [1, 2, 3]";
    let error = || serde::de::Error::custom(expected);
    let number = |value: &Value| value.as_integer().and_then(|number| u64::try_from(number).ok());
    match Value::deserialize(deserializer)? {
        Value::Array(list) => {
            let seeds: Vec<u64> = list.iter().map(number).collect::<Option<_>>().ok_or_else(error)?;
            let mut different = seeds.clone();
            different.sort_unstable();
            different.dedup();
            if seeds.is_empty() || different.len() < seeds.len() { Err(error()) } else { Ok(seeds) }
        }
        value => match number(&value) {
            Some(count @ 1..=100_000) => Ok((1..=count).collect()),
            _ => Err(error()),
        },
    }
}

/// A `[[workload]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadKeys {
    name: Option<String>,
    fio: Option<String>,
    fio_inline: Option<String>,
    trace: Option<TraceKeys>,
}

/// The table `trace` of a workload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceKeys {
    file: String,
    format: Option<Format>,
    device: Option<String>,
    action: Option<Action>,
    #[serde(default)]
    sort: bool,
    tolerance: Option<Duration>,
    limit: Option<u64>,
    #[serde(default)]
    timing: Timing,
    #[serde(default)]
    fit: Fit,
    repeat: Option<u32>,
}

const WORKLOAD_SHAPE: &str = "name = 'x'\nfio = 'x.fio'\nfio_inline = '[x]'\n[trace]\nfile = 'x.trace'
format = 'mqsim'\ndevice = 'first'\naction = 'Q'\nsort = false\ntolerance = '1ms'\nlimit = 1\ntiming = 'original'
fit = 'refuse'\nrepeat = 1";

/// Keys of a `[[device]]` that are not keys of a device.
const DEVICE_EXTRA: [&str; 4] = ["preset", "file", "set", "host_ftl"];

/// A device with every key.
fn device_shape() -> Table {
    let mut config = presets::preset("datacenter-tlc-plp-nvme").expect("the preset exists");
    config.buffer.protected = Some(Bytes::mib(1));
    // Page-mapped devices, those with a resident map, those without SHARE, NVRAM, placement, segments or an open
    // channel leave these keys out.
    config.firmware = FirmwareKind::OpenChannel;
    (config.append.segments, config.append.buffer_share) = (1, 0.25);
    config.open.cached_units = 1;
    (config.faults.chunk_goes_on, config.faults.refresh) = (1.0, 1.0);
    config.ftl.translation = Translation::DemandCached;
    config.ftl.demand.cached = 0.5;
    (config.ftl.share.pages, config.ftl.share.nvram_records) = (1, 1);
    config.ftl.placement.handles = 2;
    Table::try_from(config).expect("every configuration is a TOML table")
}

fn syntax(file: &str, text: &str) -> Result<Table, ScenarioError> {
    text.parse().map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
        let message = error.message().replace('\n', ", ");
        ScenarioError::new(file, Fault::Syntax { line, message })
    })
}

/// `device 0 (rflush)`.
fn place(what: &str, index: usize, name: Option<&str>) -> String {
    name.map_or_else(|| format!("{what} {index}"), |name| format!("{what} {index} ({name})"))
}

/// A `key=value` of the command line.
struct Override<'a> {
    text: &'a str,
    path: Vec<&'a str>,
    value: Value,
}

impl<'a> Override<'a> {
    fn parse(text: &'a str) -> Result<Self, Fault> {
        let bad = |reason: &str| Fault::Override { text: text.to_owned(), reason: reason.to_owned() };
        let (key, value) = text.split_once('=').ok_or_else(|| bad("expected key=value, as in seeds=5"))?;
        let path: Vec<&str> = key.trim().split('.').collect();
        if path.iter().any(|part| part.is_empty()) {
            return Err(bad("a part of the key is empty"));
        }
        Ok(Self { text, path, value: tree::command_line_value(value.trim()) })
    }

    /// Index of the device and key in it, if the override applies to a device that is put together.
    fn in_device(&self) -> Option<(&str, &[&str])> {
        match self.path.as_slice() {
            ["device", index, rest @ ..] if !matches!(rest, [] | ["preset" | "file" | "set", ..]) => {
                Some((index, rest))
            }
            _ => None,
        }
    }

    fn fault(&self, reason: String) -> Fault {
        Fault::Override { text: self.text.to_owned(), reason }
    }
}

/// A device that was put together and not yet typed.
struct DeviceTree {
    place: String,
    table: Table,
}

/// Reads one scenario.
struct Reader<'a> {
    file: &'a str,
    base: PathBuf,
    read: &'a dyn Fn(&Path) -> Result<String, String>,
}

impl Reader<'_> {
    fn scenario(&self, text: &str, overrides: &[String]) -> Result<Scenario, ScenarioError> {
        let mut top = syntax(self.file, text)?;
        let at = |fault| ScenarioError::new(self.file, fault);
        let overrides: Vec<Override<'_>> =
            overrides.iter().map(|text| Override::parse(text)).collect::<Result<_, _>>().map_err(at)?;
        for change in overrides.iter().filter(|change| change.in_device().is_none()) {
            tree::set_path(&mut top, &change.path, &change.value)
                .map_err(|reason| at(change.fault(reason)))?;
        }
        let head_shape = shape(&format!("{HEAD_SHAPE}{BLOCK_LAYER_SHAPE}\n[host_ftl]\n{}", host_ftl::SHAPE));
        tree::check_keys(&top, &head_shape, &["device", "workload"], "the scenario").map_err(at)?;
        let devices = list(&mut top, "device", "preset = \"rflush\"").map_err(at)?;
        let workloads = list(&mut top, "workload", "fio = \"job.fio\"").map_err(at)?;
        let head: Head = tree::read(&top, &head_shape, "the scenario").map_err(at)?;
        check_mode(&top).map_err(at)?;
        let invalid = |reason| at(Fault::Invalid { place: "the scenario".into(), reason });
        head.precondition.validate().map_err(invalid)?;
        let (devices, host_ftls) = self.devices(devices, &overrides, head.host_ftl.as_ref())?;
        for (device, ftl) in devices.iter().zip(&host_ftls) {
            let at = |reason| invalid(format!("{reason} (on device {})", device.name));
            let checked = match ftl {
                Some(ftl) => check_host_ftl(ftl, device).map(|_| ()),
                None => device.check_jobs(),
            };
            checked.map_err(at)?;
            if let Some(layer) = &head.block_layer {
                check_block_layer(layer, &device.link).map_err(at)?;
                ftl.iter().try_for_each(|_| check_above(layer)).map_err(at)?;
            }
        }
        let workloads = workloads
            .iter()
            .enumerate()
            .map(|(index, keys)| self.workload(index, keys, &devices, &host_ftls))
            .collect::<Result<Vec<_>, _>>()
            .map_err(at)?;
        differ("devices", devices.iter().map(|device| device.name.as_str())).map_err(at)?;
        differ("workloads", workloads.iter().map(|workload| workload.name.as_str())).map_err(at)?;
        let Head { name, seeds, precondition, track_contents, block_layer, .. } = head;
        Ok(Scenario { name, seeds, precondition, track_contents, block_layer, devices, host_ftls, workloads })
    }

    /// Devices, and the host FTL above each: its own, with what is not said there from `above`, which is that of every open channel.
    fn devices(
        &self,
        entries: Vec<Table>,
        overrides: &[Override<'_>],
        above: Option<&Table>,
    ) -> Result<(Vec<DeviceConfig>, Vec<Option<HostFtlConfig>>), ScenarioError> {
        let at = |fault| ScenarioError::new(self.file, fault);
        let shape = device_shape();
        let mut trees = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            trees.push(self.device(index, entry, &shape)?);
        }
        for change in overrides {
            let Some((index, path)) = change.in_device() else { continue };
            let fault = |reason| at(change.fault(reason));
            for at in tree::indices("device", index, trees.len()).map_err(fault)? {
                tree::set_path(&mut trees[at].table, path, &change.value).map_err(fault)?;
            }
        }
        let typed = trees.into_iter().map(|DeviceTree { place, mut table }| {
            let own = match table.remove("host_ftl") {
                Some(Value::Table(own)) => Some(own),
                Some(value) => {
                    return Err(Fault::Value {
                        key: "host_ftl".into(),
                        place,
                        value: value.to_string(),
                        nearest: None,
                        expected: "a table, as in { assembly = \"pblk\" }".into(),
                    });
                }
                None => None,
            };
            let config: DeviceConfig = tree::read(&table, &shape, &place)?;
            config.validate().map_err(|reason| Fault::Invalid { place: place.clone(), reason })?;
            let has_channel = config.firmware == FirmwareKind::OpenChannel;
            let mut keys = above.filter(|_| has_channel || own.is_some()).cloned();
            if let Some(own) = own {
                tree::merge(keys.get_or_insert_default(), own);
            }
            let host_ftl = keys.map(|keys| host_ftl::of_table(&keys, &place)).transpose()?;
            Ok((config, host_ftl))
        });
        let (devices, host_ftls): (Vec<_>, Vec<_>) =
            typed.collect::<Result<Vec<_>, _>>().map_err(at)?.into_iter().unzip();
        if above.is_some() && host_ftls.iter().all(Option::is_none) {
            let reason =
                "host_ftl: none of the devices has an open channel: expected one, as the preset qblke".into();
            return Err(at(Fault::Invalid { place: "the scenario".into(), reason }));
        }
        Ok((devices, host_ftls))
    }

    /// Puts a device together from its base, its own keys and its `set`.
    fn device(&self, index: usize, mut entry: Table, shape: &Table) -> Result<DeviceTree, ScenarioError> {
        let at = |fault| ScenarioError::new(self.file, fault);
        let word = |key: &str| entry.get(key).and_then(Value::as_str);
        let label = word("name").or(word("preset")).or(word("file"));
        let place = place("device", index, label);
        tree::check_keys(&entry, shape, &DEVICE_EXTRA, &place).map_err(at)?;
        let mut texts = [None, None];
        for (text, key) in texts.iter_mut().zip(["preset", "file"]) {
            *text = match entry.remove(key) {
                Some(Value::String(text)) => Some(text),
                Some(value) => return Err(at(text_expected(key, &place, &value))),
                None => None,
            };
        }
        let mut table = match texts {
            [Some(preset), None] => self.preset(&preset, &place).map_err(at)?,
            [None, Some(file)] => self.device_file(&file, shape, &place)?,
            [None, None] => Table::new(),
            [Some(_), Some(_)] => {
                let reason = "has both `preset` and `file`: expected one of them".into();
                return Err(at(Fault::Invalid { place, reason }));
            }
        };
        let set = entry.remove("set");
        tree::merge(&mut table, entry);
        if let Some(set) = set {
            apply_set(&mut table, &set, &place).map_err(at)?;
        }
        Ok(DeviceTree { place, table })
    }

    fn preset(&self, name: &str, place: &str) -> Result<Table, Fault> {
        match presets::text(name) {
            Some(text) => Ok(shape(text)),
            None => Err(Fault::Preset {
                name: name.to_owned(),
                place: place.to_owned(),
                nearest: nearest(name, presets::names()).map(str::to_owned),
            }),
        }
    }

    /// Tree of a device file, whose unknown keys are reported with the file's name.
    fn device_file(&self, name: &str, shape: &Table, place: &str) -> Result<Table, ScenarioError> {
        let text = self.text(name, place).map_err(|fault| ScenarioError::new(self.file, fault))?;
        let table = syntax(name, &text)?;
        tree::check_keys(&table, shape, &[], "the device")
            .map_err(|fault| ScenarioError::new(name, fault))?;
        Ok(table)
    }

    fn text(&self, name: &str, place: &str) -> Result<String, Fault> {
        (self.read)(&self.base.join(name)).map_err(|reason| Fault::Read {
            path: name.to_owned(),
            place: place.to_owned(),
            reason,
        })
    }

    fn workload(
        &self,
        index: usize,
        keys: &Table,
        devices: &[DeviceConfig],
        host_ftls: &[Option<HostFtlConfig>],
    ) -> Result<WorkloadConfig, Fault> {
        let place = place("workload", index, keys.get("name").and_then(Value::as_str));
        let keys: WorkloadKeys = tree::read(keys, &shape(WORKLOAD_SHAPE), &place)?;
        let invalid = |reason: String| Fault::Invalid { place: place.clone(), reason };
        let stem = |file: &str| Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let (source, name) = match (keys.fio, keys.fio_inline, keys.trace) {
            (Some(file), None, None) => {
                let text = self.text(&file, &place)?;
                let name = stem(&file);
                (Source::Fio { file, text }, name)
            }
            (None, Some(text), None) => {
                (Source::Fio { file: format!("{} (workload {index})", self.file), text }, None)
            }
            (None, None, Some(trace)) => {
                let name = stem(&trace.file);
                (self.trace(trace).map_err(invalid)?, name)
            }
            (fio, inline, trace) => {
                let given = [fio.is_some(), inline.is_some(), trace.is_some()];
                let count = if given.contains(&true) { "more than one" } else { "none" };
                return Err(invalid(format!(
                    "has {count} of `fio`, `fio_inline` and `trace`: expected exactly one"
                )));
            }
        };
        if let Source::Fio { file, text } = &source {
            for (device, ftl) in devices.iter().zip(host_ftls) {
                let blocks = capacity_lbas(device, ftl.as_ref()).map_err(invalid)?;
                parse_job_file(file, text, Bytes(blocks * LBA_BYTES))
                    .map_err(|error| invalid(format!("on device {}: {error}", device.name)))?;
            }
        }
        let name = keys.name.or(name).unwrap_or_else(|| format!("workload {index}"));
        Ok(WorkloadConfig { name, source })
    }

    fn trace(&self, keys: TraceKeys) -> Result<Source, String> {
        let defaults = ReadOptions::default();
        let replay = ReplayConfig { timing: keys.timing, fit: keys.fit, repeat: keys.repeat.unwrap_or(1) };
        replay.validate().map_err(|problem| problem.to_string())?;
        let device = keys.device.map(|device| match device.as_str() {
            "first" => Devices::First,
            "all" => Devices::All,
            _ => Devices::Only(device),
        });
        let read = ReadOptions {
            format: keys.format,
            device,
            action: keys.action,
            sort: keys.sort,
            tolerance: keys.tolerance.unwrap_or(defaults.tolerance),
            limit: keys.limit,
        };
        Ok(Source::Trace { file: self.base.join(keys.file), read, replay })
    }
}

/// Sets the dotted keys of `set` in a device. A table is merged, so that `set.buffer = { … }` changes only
/// the keys that it names.
fn apply_set(device: &mut Table, set: &Value, place: &str) -> Result<(), Fault> {
    let Value::Table(set) = set else {
        return Err(Fault::Value {
            key: "set".into(),
            place: place.to_owned(),
            value: set.to_string(),
            nearest: None,
            expected: "a table of dotted keys, as in { \"ftl.gc.policy\" = \"fifo\" }".into(),
        });
    };
    for (key, value) in set {
        match (value, device.get_mut(key)) {
            (Value::Table(over), Some(Value::Table(base))) => tree::merge(base, over.clone()),
            _ => {
                let path: Vec<&str> = key.split('.').collect();
                tree::set_path(device, &path, value).map_err(|reason| Fault::Invalid {
                    place: place.to_owned(),
                    reason: format!("set `{key}`: {reason}"),
                })?;
            }
        }
    }
    Ok(())
}

fn text_expected(key: &str, place: &str, value: &Value) -> Fault {
    Fault::Value {
        key: key.to_owned(),
        place: place.to_owned(),
        value: value.to_string(),
        nearest: None,
        expected: "text in quotes".into(),
    }
}

/// Takes a list of tables, which must not be empty, out of the scenario.
fn list(top: &mut Table, key: &str, example: &str) -> Result<Vec<Table>, Fault> {
    let expected = format!("one or more tables such as [[{key}]] {example}");
    let wrong = |value: String| Fault::Value {
        key: key.to_owned(),
        place: "the scenario".into(),
        value,
        nearest: None,
        expected: expected.clone(),
    };
    match top.remove(key) {
        Some(Value::Array(list)) if !list.is_empty() => {
            let tables = list.into_iter().map(|element| match element {
                Value::Table(table) => Ok(table),
                element => Err(wrong(format!("a list with {element}"))),
            });
            tables.collect()
        }
        Some(Value::Table(_)) => Err(wrong("a table".into())),
        Some(value) => Err(wrong(value.to_string())),
        None => Err(Fault::Missing { key: key.to_owned(), place: "the scenario".into(), expected }),
    }
}

/// Checks that a precondition has a mode: one that only has numbers would do nothing.
fn check_mode(top: &Table) -> Result<(), Fault> {
    match top.get("precondition") {
        Some(Value::Table(table)) if !table.contains_key("mode") => Err(Fault::Missing {
            key: "precondition.mode".into(),
            place: "the scenario".into(),
            expected: "none, instant or age-by-writing".into(),
        }),
        _ => Ok(()),
    }
}

fn differ<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Fault> {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if seen.contains(&name) {
            let reason = format!("two {what} are called `{name}`: give one of them another `name`");
            return Err(Fault::Invalid { place: "the scenario".into(), reason });
        }
        seen.push(name);
    }
    Ok(())
}
