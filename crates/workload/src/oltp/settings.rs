//! Options of mixes as words of a command line.

use super::linkbench::LinkBenchOptions;
use super::sysbench::{Script, SysbenchOptions};
use super::tpcc::TpccOptions;
use super::{OltpError, RunOptions};
use crate::spelling::nearest;
use flashweir_core::Bytes;
use flashweir_db::{CommitMode, Config, DoubleWrite};

/// The option that a word sets.
enum Target<'a> {
    U16(&'a mut u16),
    U32(&'a mut u32),
    U64(&'a mut u64),
    Size32(&'a mut u32),
    Size(&'a mut u64),
    Switch(&'a mut bool),
    Commit(&'a mut CommitMode),
    DoubleWrite(&'a mut DoubleWrite),
}

impl Target<'_> {
    /// Sets the option; the error describes valid values.
    fn set(self, value: &str) -> Result<(), &'static str> {
        fn number<T: std::str::FromStr>(value: &str) -> Result<T, &'static str> {
            value.replace('_', "").parse().map_err(|_| "a whole number in range")
        }
        let size = || value.parse::<Bytes>().map_err(|_| "a size, as in 64MiB");
        match self {
            Self::U16(target) => *target = number(value)?,
            Self::U32(target) => *target = number(value)?,
            Self::U64(target) => *target = number(value)?,
            Self::Size32(target) => *target = u32::try_from(size()?.0).map_err(|_| "a size below 4GiB")?,
            Self::Size(target) => *target = size()?.0,
            Self::Switch(target) => *target = value.parse().map_err(|_| "true or false")?,
            Self::Commit(target) => {
                *target = match value {
                    "sync" => CommitMode::Sync,
                    "write" => CommitMode::Write,
                    "lazy" => CommitMode::Lazy,
                    _ => return Err("sync, write or lazy"),
                }
            }
            Self::DoubleWrite(target) => {
                *target = match value {
                    "on" | "true" => DoubleWrite::On,
                    "off" | "false" => DoubleWrite::Off,
                    "fast" => DoubleWrite::Fast,
                    "atomic" => DoubleWrite::Atomic,
                    _ => return Err("on, off, fast or atomic"),
                }
            }
        }
        Ok(())
    }
}

/// Returns the settings that all mixes have.
fn common<'a>(run: &'a mut RunOptions, db: &'a mut Config) -> Vec<(&'static str, Target<'a>)> {
    vec![
        ("connections", Target::U32(&mut run.connections)),
        ("pool", Target::Size(&mut db.pool_bytes)),
        ("page", Target::Size32(&mut db.page_bytes)),
        ("log_file", Target::Size(&mut db.log_file_bytes)),
        ("log_files", Target::U32(&mut db.log_files)),
        ("log_fsync", Target::Switch(&mut db.log_fsync)),
        ("file_per_table", Target::Switch(&mut db.file_per_table)),
        ("double_write", Target::DoubleWrite(&mut db.double_write)),
        ("batch", Target::U32(&mut db.batch_pages)),
        ("io_capacity", Target::U32(&mut db.io_capacity)),
        ("commit", Target::Commit(&mut db.commit)),
    ]
}

/// The words as a list that ends with "or".
fn any_of(words: &[&str]) -> String {
    match words {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

fn apply(mut targets: Vec<(&'static str, Target<'_>)>, set: &[(&str, &str)]) -> Result<(), OltpError> {
    for &(key, value) in set {
        let wrong =
            |expected: String| OltpError::Setting { key: key.to_owned(), value: value.to_owned(), expected };
        let Some(at) = targets.iter().position(|(known, _)| *known == key) else {
            if set.iter().filter(|(other, _)| *other == key).count() > 1 {
                return Err(wrong("each setting once at most".to_owned()));
            }
            let known: Vec<&'static str> = targets.iter().map(|(known, _)| *known).collect();
            let meant = nearest(key, known.iter().copied());
            return Err(OltpError::UnknownSetting { key: key.to_owned(), meant, known: any_of(&known) });
        };
        targets.remove(at).1.set(value).map_err(|expected| wrong(expected.to_owned()))?;
    }
    Ok(())
}

impl TpccOptions {
    /// Makes options with one warehouse and the engine's defaults, except for the settings: `warehouses`, `items`,
    /// `customers`, and those of the engine: `connections`, `pool`, `page`, `log_file`, `log_files`, `log_fsync`,
    /// `file_per_table`, `double_write`, `batch`, `io_capacity`, `commit`.
    ///
    /// # Errors
    /// The first setting that is unknown, occurs twice, or has an invalid value.
    pub fn of_settings(set: &[(&str, &str)]) -> Result<Self, OltpError> {
        let mut options = Self::new("tpcc", 0, 1);
        let scale = &mut options.scale;
        let mut targets = vec![
            ("warehouses", Target::U16(&mut scale.warehouses)),
            ("items", Target::U32(&mut scale.items)),
            ("customers", Target::U16(&mut scale.customers)),
        ];
        targets.extend(common(&mut options.run, &mut options.db));
        apply(targets, set)?;
        options.check()?;
        Ok(options)
    }
}

impl LinkBenchOptions {
    /// Makes options with 100,000 nodes and the engine's defaults, except for the settings: `nodes`, and the engine's
    /// settings of [`TpccOptions::of_settings`].
    ///
    /// # Errors
    /// The first setting that is unknown, occurs twice, or has an invalid value.
    pub fn of_settings(set: &[(&str, &str)]) -> Result<Self, OltpError> {
        let mut options = Self::new("linkbench", 0, 100_000);
        let mut targets = vec![("nodes", Target::U64(&mut options.nodes))];
        targets.extend(common(&mut options.run, &mut options.db));
        apply(targets, set)?;
        options.check()?;
        Ok(options)
    }
}

impl SysbenchOptions {
    /// Makes options for one table of 10,000 rows, as in sysbench, and the engine's defaults, except for the settings:
    /// `tables`, `rows`, and the engine's settings of [`TpccOptions::of_settings`].
    ///
    /// # Errors
    /// The first setting that is unknown, occurs twice, or has an invalid value.
    pub fn of_settings(script: Script, set: &[(&str, &str)]) -> Result<Self, OltpError> {
        let mut options = Self::new(script.name(), 0, script);
        let mut targets =
            vec![("tables", Target::U32(&mut options.tables)), ("rows", Target::U64(&mut options.rows))];
        targets.extend(common(&mut options.run, &mut options.db));
        apply(targets, set)?;
        options.check()?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_options() {
        let set = [("warehouses", "3"), ("pool", "64MiB"), ("page", "4KiB"), ("commit", "write")];
        let options = TpccOptions::of_settings(&set).unwrap();
        assert_eq!((options.scale.warehouses, options.db.pool_bytes), (3, 64 << 20));
        assert_eq!((options.db.page_bytes, options.db.commit), (4096, CommitMode::Write));
        let options =
            LinkBenchOptions::of_settings(&[("nodes", "5_000"), ("double_write", "false")]).unwrap();
        assert_eq!((options.nodes, options.db.double_write), (5000, DoubleWrite::Off));
        let set = [("tables", "4"), ("double_write", "atomic"), ("file_per_table", "true"), ("batch", "120")];
        let options = SysbenchOptions::of_settings(Script::ReadWrite, &set).unwrap();
        assert_eq!((options.tables, options.rows, options.db.batch_pages), (4, 10_000, 120));
        assert!(options.db.file_per_table && options.db.double_write == DoubleWrite::Atomic);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |set: &[(&str, &str)]| LinkBenchOptions::of_settings(set).unwrap_err().to_string();
        let known = "expected nodes, connections, pool, page, log_file, log_files, log_fsync, file_per_table, double_write, \
             batch, io_capacity or commit";
        assert_eq!(error(&[("warehouses", "1")]), format!("unknown setting `warehouses`: {known}"));
        let meant = format!("unknown setting `node`: {known}; did you mean `nodes`?");
        assert_eq!(error(&[("node", "1")]), meant);
        let twice = error(&[("nodes", "1000"), ("nodes", "2000")]);
        assert_eq!(twice, "nodes cannot be `2000`: expected each setting once at most");
        assert_eq!(error(&[("commit", "x")]), "commit cannot be `x`: expected sync, write or lazy");
        assert_eq!(
            error(&[("double_write", "no")]),
            "double_write cannot be `no`: expected on, off, fast or atomic"
        );
        assert_eq!(error(&[("pool", "big")]), "pool cannot be `big`: expected a size, as in 64MiB");
        assert_eq!(error(&[("nodes", "5")]), "nodes is 5: expected 100 to 4294967296");
        assert_eq!(error(&[("page", "5000")]), "page_bytes is 5000: expected 4096, 8192 or 16384");
    }
}
