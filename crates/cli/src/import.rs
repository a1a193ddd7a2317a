//! `weir import`: configurations of other simulators as device files and fio jobs.

use crate::error::{Failure, Outcome, say, unreadable};
use crate::options::ImportCommand;
use crate::output::{Files, print};
use flashweir_device::config::DeviceConfig;
use flashweir_lab::mqsim::{
    Caching, ImportedWorkload, import_device_with, import_workload, is_preconditioned,
};
use std::fmt::Write as _;
use std::path::Path;

/// `weir import`.
pub(crate) fn command(command: &ImportCommand) -> Outcome {
    let ImportCommand::Mqsim { config, workload, out_dir, quiet } = command;
    let (mut device, mut warnings, preconditioned) = device(config, Caching::Off)?;
    let mut imported = None;
    if let Some(path) = workload {
        let name = path.display().to_string();
        let xml = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
        let wrong = |error| Failure::Usage(format!("{name}: {error}"));
        let (first, _) = import_workload(&xml, &device, preconditioned).map_err(wrong)?;
        if first.caching != Caching::Off {
            (device, warnings, _) = self::device(config, first.caching)?;
        }
        let (workload, more) = import_workload(&xml, &device, preconditioned).map_err(wrong)?;
        warnings.extend(more.into_iter().map(|warning| format!("{name}: {warning}")));
        imported = Some(workload);
    }
    if !quiet {
        for warning in &warnings {
            say(format!("warning: {warning}"));
        }
    }
    let text = device_file(config, &device)?;
    match out_dir {
        None => print(&text),
        Some(directory) => write(directory, text, imported.as_ref()),
    }
}

/// The device, warnings, and whether MQSim would precondition it.
fn device(config: &Path, caching: Caching) -> Outcome<(DeviceConfig, Vec<String>, bool)> {
    let name = config.display().to_string();
    let xml = std::fs::read_to_string(config).map_err(|error| unreadable(&name, &error))?;
    let wrong = |error| Failure::Usage(format!("{name}: {error}"));
    let (mut device, warnings) = import_device_with(&xml, caching).map_err(wrong)?;
    let preconditioned = is_preconditioned(&xml).map_err(wrong)?;
    if let Some(stem) = config.file_stem() {
        device.name = stem.to_string_lossy().into_owned();
    }
    let warnings = warnings.into_iter().map(|warning| format!("{name}: {warning}")).collect();
    Ok((device, warnings, preconditioned))
}

fn device_file(config: &Path, device: &DeviceConfig) -> Outcome<String> {
    let body = toml::to_string(device).map_err(Failure::run)?;
    Ok(format!("# Imported from MQSim's {}.\n\n{body}", config.display()))
}

/// Writes the files and prints what to do with them.
fn write(directory: &Path, device: String, workload: Option<&ImportedWorkload>) -> Outcome {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::Run(format!("{} cannot be made: {error}", directory.display())))?;
    let device_path = directory.join("device.toml");
    let mut files = Files::default();
    files.add(&device_path, device);
    let mut said = format!("{}\n", device_path.display());
    let mut commands = String::new();
    for (number, scenario) in workload.iter().flat_map(|workload| &workload.scenarios).enumerate() {
        if let Some(job) = &scenario.fio {
            let path = directory.join(format!("scenario-{}.fio", number + 1));
            let _ = writeln!(said, "{}", path.display());
            let command = scenario.command(&path.display().to_string(), &device_path.display().to_string());
            let _ = writeln!(commands, "  {command}");
            files.add(path, job.as_str());
        }
        for command in scenario.replay_commands(&device_path.display().to_string()) {
            let _ = writeln!(commands, "  {command}");
        }
    }
    files.write()?;
    if !commands.is_empty() {
        let _ = write!(said, "\nTo run it:\n{commands}");
    }
    print(&said)
}
