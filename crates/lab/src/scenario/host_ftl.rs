//! A host FTL in a scenario or on a command line: an assembly, and keys that differ from it.
//!
//! Place in the data flow: tables and options come in, a [`HostFtlConfig`] goes out, which is checked against each device later.
//!
//! Invariant: what is not said is what the assembly has; all queues of the link are used unless a number is given.

use super::error::Fault;
use super::tree::{self, shape};
use flashweir_host::HostFtlConfig;
use flashweir_workload::spelling::nearest;
use serde::Deserialize;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// A host FTL with every key.
pub(super) const SHAPE: &str = "assembly = 'pblk'\nrings = 1\nentries = 0\nlines = 'device'\nlimits = 'windows'
invalidation = 'deferred'\nover_provisioning = 0.11\nprograms_per_die = 1\npad_after = '2s'\nuser_active_for = '5s'
retry_after = '100us'\nqueues = 1\ntrims = 'recorded'\nsequence = 'device'\ngc_readers = 1\ngc_waits = true\nurgent = true\nreads_first = false\ncpus = 0\nmap = 'lock'
pool = 'lock'\nfull = 'retry'\ncosts.application = '1ns'\ncosts.system = '1ns'
costs.wake = '1ns'\ncosts.turn = '1ns'\ncosts.lock = '1ns'\ncosts.hand_over = '1ns'\ncosts.line = '1ns'
costs.change = '1ns'\ncosts.lookup = '1ns'\ncosts.copy = '1ns'\ncosts.pool = '1ns'";

/// Names of the assemblies.
const ASSEMBLIES: [&str; 4] = ["pblk", "qblke", "pblk-as-released", "qblke-as-released"];
/// Rings of QBLKe if no number is given. A ring belongs to a CPU, and a world has none.
const QBLKE_RINGS: u16 = 8;

/// Reads a host FTL from the text of an option called `option`: an assembly, and keys with values behind it, with commas in between, as
/// in `qblke,rings=4`.
///
/// # Errors
/// The first fault, and what would have been valid.
pub fn read_host_ftl(option: &str, text: &str) -> Result<HostFtlConfig, Fault> {
    let mut parts = text.split(',').map(str::trim);
    let assembly = parts.next().unwrap_or_default();
    let (mut table, mut seen) = (Table::new(), BTreeSet::new());
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            let reason = format!("`{part}` has no value: expected KEY=VALUE, as in rings=4");
            return Err(Fault::Invalid { place: option.to_owned(), reason });
        };
        let path: Vec<&str> = key.trim().split('.').collect();
        if !seen.insert(key.trim()) {
            let reason = format!("`{}` is given twice: expected one value", key.trim());
            return Err(Fault::Invalid { place: option.to_owned(), reason });
        }
        tree::set_path(&mut table, &path, &tree::command_line_value(value.trim()))
            .map_err(|reason| Fault::Invalid { place: option.to_owned(), reason })?;
    }
    let base =
        base(assembly).ok_or_else(|| wrong("the assembly", option, format!("`{assembly}`"), assembly))?;
    tree::check_keys(&table, &keys(), &[], option)?;
    tree::read::<HostFtlConfig>(&table, &keys(), option)?;
    Ok(merged(base, table))
}

/// Reads the table `host_ftl` of a place.
pub(super) fn of_table(table: &Table, place: &str) -> Result<HostFtlConfig, Fault> {
    #[derive(Deserialize)]
    struct Keyed {
        #[serde(rename = "host_ftl")]
        _typed: HostFtlConfig,
    }
    let keyed = |table: Table| Table::from_iter([("host_ftl".to_owned(), Value::Table(table))]);
    tree::check_keys(&keyed(table.clone()), &keyed(shape(SHAPE)), &[], place)?;
    let mut table = table.clone();
    let base = match table.remove("assembly") {
        Some(Value::String(name)) => {
            base(&name).ok_or_else(|| wrong("host_ftl.assembly", place, format!("\"{name}\""), &name))?
        }
        Some(value) => return Err(wrong("host_ftl.assembly", place, value.to_string(), "")),
        None => {
            let (key, place) = ("host_ftl.assembly".into(), place.into());
            return Err(Fault::Missing { key, place, expected: tree::one_of(&ASSEMBLIES) });
        }
    };
    tree::read::<Keyed>(&keyed(table.clone()), &keyed(keys()), place)?;
    Ok(merged(base, table))
}

/// All keys but that of the assembly.
fn keys() -> Table {
    let mut keys = shape(SHAPE);
    keys.remove("assembly");
    keys
}

fn base(assembly: &str) -> Option<HostFtlConfig> {
    let base = match assembly {
        "pblk" => HostFtlConfig::pblk(),
        "qblke" => HostFtlConfig::qblke(QBLKE_RINGS),
        "pblk-as-released" => HostFtlConfig::pblk().as_released(),
        "qblke-as-released" => HostFtlConfig::qblke(QBLKE_RINGS).as_released(),
        _ => return None,
    };
    Some(HostFtlConfig { queues: 0, ..base })
}

fn wrong(key: &str, place: &str, value: String, name: &str) -> Fault {
    Fault::Value {
        key: key.to_owned(),
        place: place.to_owned(),
        value,
        nearest: nearest(name, ASSEMBLIES).map(str::to_owned),
        expected: tree::one_of(&ASSEMBLIES),
    }
}

/// The base with other keys, each of which has the type that it must have.
fn merged(base: HostFtlConfig, over: Table) -> HostFtlConfig {
    let mut table = Table::try_from(base).expect("every configuration is a TOML table");
    tree::merge(&mut table, over);
    HostFtlConfig::deserialize(table).expect("each key was read alone")
}
