//! fio job files whose jobs read and write files of a file system instead of a device.
//!
//! Place in the data flow: the options about files are taken out of the sections; the remaining ones are parsed as for
//! a device as large as all files of the job, one after the other; `on_files` runs the result.
//!
//! Invariants: files of one job are equally long; an address of a request determines file and offset. An engine that keeps one request
//! in flight has depth 1.
//!
//! Deliberately absent: `opendir`, formats of names, skewed orders of files.

use super::error::{Fault, FioError};
use super::parse::{Section, expanded, sections};
use super::resolve::{SYNCHRONOUS, jobs_of};
use super::spec::{Direction, Distribution, JobSpec, Parts, Service};
use super::value::{self, KbBase};
use flashweir_core::Bytes;
use flashweir_core::units::LBA_BYTES;
use flashweir_sim::measure::LogSpec;

/// A job and its files.
#[derive(Clone, Debug, PartialEq)]
pub struct FileJob {
    /// Description of the job. Addresses count from the beginning of the first file.
    pub spec: JobSpec,
    /// Paths of its files.
    pub files: Vec<String>,
    /// Length of each file.
    pub file_bytes: u64,
    /// Whether I/O bypasses the page cache.
    pub is_direct: bool,
    /// Whether files have contents before the job begins, even if it only writes.
    pub overwrites: bool,
    /// Whether the files are atomic: a flush is a commit of all of them together.
    pub is_atomic: bool,
}

/// The jobs of a job file on files.
#[derive(Clone, Debug, PartialEq)]
pub struct FileJobs {
    /// All jobs in the order of the file, with the clones of a section next to each other.
    pub jobs: Vec<FileJob>,
    /// Requests of the file that are not honoured, one line each.
    pub warnings: Vec<String>,
}

/// Options about files, as far as they were parsed.
#[derive(Clone, Debug, Default)]
struct Draft {
    directory: String,
    filename: Option<String>,
    nrfiles: Option<u64>,
    filesize: Option<u64>,
    size: Option<u64>,
    is_direct: bool,
    overwrites: bool,
    is_atomic: bool,
    engine: Option<String>,
    service: Option<Service>,
    base: KbBase,
}

/// Parses a job file whose jobs use files. `file` is its name in messages.
///
/// # Errors
/// The first fault in the file, or the first option that cannot be simulated, with its line.
pub fn parse_job_file_on_files(file: &str, text: &str) -> Result<FileJobs, FioError> {
    let place = |(line, fault)| FioError { file: file.to_owned(), line, fault: Box::new(fault) };
    let text = expanded(text, &|name| std::env::var(name).ok()).map_err(place)?;
    let mut sections = sections(&text).map_err(place)?;
    let mut global = Draft::default();
    let mut drafts = Vec::new();
    for section in &mut sections {
        let mut draft = global.clone();
        for entry in section.entries.iter().filter(|entry| entry.name == "kb_base") {
            draft.base = if entry.value == Some("1000") { KbBase::Decimal } else { KbBase::Binary };
        }
        draft.apply(section).map_err(place)?;
        if section.is_global() {
            global = draft.clone();
        } else if let Err(reason) = draft.bytes() {
            let fault = Fault::Conflict { section: section.name.into(), reason: reason.to_owned() };
            return Err(place((section.line, fault)));
        }
        drafts.push(draft);
    }
    // Sections of defaults need no capacity.
    let capacities: Vec<Bytes> = drafts.iter().map(|draft| Bytes(draft.bytes().unwrap_or(0))).collect();
    let (specs, mut warnings) = jobs_of(file, &sections, &capacities)?;
    let mut jobs = Vec::new();
    for (section, spec) in specs {
        let conflict = |reason| {
            let name = sections[section].name.to_owned();
            place((sections[section].line, Fault::Conflict { section: name, reason }))
        };
        jobs.push(drafts[section].job(sections[section].name, spec).map_err(conflict)?);
    }
    for FileJob { spec, .. } in &mut jobs {
        let left_out = [
            ("verify", spec.verify.take().is_some()),
            ("steadystate", spec.steady.take().is_some()),
            ("write_bw_log, write_lat_log and write_iops_log", spec.log.is_wanted()),
        ];
        for (option, _) in left_out.iter().filter(|(_, is_set)| *is_set) {
            warnings.push(format!("{file}: [{}] {option} of a job on files: ignored", spec.name));
        }
        spec.log = LogSpec::default();
    }
    for job in jobs.iter_mut().filter(|job| job.spec.iodepth > 1 && !job.is_direct) {
        warnings.push(format!("{file}: [{}] buffered I/O keeps one request in flight", job.spec.name));
        job.spec.iodepth = 1;
    }
    Ok(FileJobs { jobs, warnings })
}

impl Draft {
    /// Takes the options about files out of the section.
    fn apply(&mut self, section: &mut Section<'_>) -> Result<(), (u32, Fault)> {
        let name = section.name;
        let mut failed = None;
        section.entries.retain(|entry| {
            let bad = |expected: &str| Fault::Value {
                option: entry.name.to_owned(),
                section: name.to_owned(),
                value: entry.value.unwrap_or("").to_owned(),
                expected: expected.to_owned(),
            };
            match self.set(entry.name, entry.value) {
                Ok(is_about_files) => !is_about_files,
                Err(expected) => {
                    failed.get_or_insert((entry.line, bad(expected)));
                    true
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Sets an option; returns whether it concerns only files.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool, &'static str> {
        let base = self.base;
        const SIZE: &str = "a multiple of 512 bytes above 0, such as 1g";
        let text = value.unwrap_or("");
        let flag = || match value {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(_) => Err("0 or 1"),
        };
        let bytes =
            || value::size(text, base).filter(|&n| n > 0 && n % LBA_BYTES == 0 && n < 1 << 50).ok_or(SIZE);
        match name {
            "directory" if text.is_empty() => return Err("a directory"),
            "directory" => self.directory = text.to_owned(),
            "filename" if text.split(':').any(str::is_empty) => return Err("names separated by colons"),
            "filename" => self.filename = Some(text.to_owned()),
            "nrfiles" | "nr_files" => {
                let number = value::integer(text).filter(|n| (1..=1 << 20).contains(n));
                self.nrfiles = Some(number.ok_or("a whole number from 1 to 1048576")?);
            }
            "filesize" => self.filesize = Some(bytes()?),
            "direct" => self.is_direct = flag()?,
            "buffered" => self.is_direct = !flag()?,
            "overwrite" => self.overwrites = flag()?,
            "atomic_files" => self.is_atomic = flag()?,
            "file_service_type" => {
                self.service = Some(
                    service(text)
                        .ok_or("roundrobin, random or sequential; the first two with :N requests")?,
                );
            }
            // This option also matters to the parser of the remaining ones.
            "ioengine" => {
                self.engine = Some(text.to_owned());
                return Ok(false);
            }
            "size" => {
                self.size = Some(bytes()?);
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn file_count(&self) -> u64 {
        match &self.filename {
            Some(names) => names.split(':').count() as u64,
            None => self.nrfiles.unwrap_or(1),
        }
    }

    /// Returns the length of each file.
    fn file_bytes(&self) -> Option<u64> {
        let part = |size: u64| size / self.file_count() / LBA_BYTES * LBA_BYTES;
        self.filesize.or(self.size.map(part)).filter(|&bytes| bytes > 0)
    }

    /// Returns the total length of all files, or the reason why there is none.
    fn bytes(&self) -> Result<u64, &'static str> {
        let file_bytes = self.file_bytes().ok_or("files need a length: `size` or `filesize` in bytes")?;
        let all = file_bytes.saturating_mul(self.file_count());
        match self.size {
            Some(size) if self.filesize.is_none() && size != all => {
                Err("`size` is not a multiple of 512 bytes for each of its files")
            }
            _ => Ok(all),
        }
    }

    /// Makes a job on files of one on a device; the error is a reason why it cannot be.
    fn job(&self, section: &str, mut spec: JobSpec) -> Result<FileJob, String> {
        let file_bytes = self.file_bytes().unwrap_or(LBA_BYTES);
        if spec.zones.is_some() {
            return Err("`zonemode=zbd` needs a device with segments; a file has no zones".into());
        }
        if spec.placement.is_some() {
            return Err("`fdp=1` needs a device; the file system places what is in files".into());
        }
        if spec.share_from.is_some() {
            return Err("`share_from` needs a device; a file shares blocks by copy_file_range".into());
        }
        if self.is_atomic && !spec.mix.uses(Direction::Write) {
            return Err("`atomic_files` needs a job that writes".into());
        }
        if self.is_atomic && spec.fua {
            return Err(
                "`sync` makes each write durable at once, and `atomic_files` withholds it until an fsync"
                    .into(),
            );
        }
        if self.is_atomic && spec.fsync == 0 && spec.fdatasync == 0 {
            return Err(
                "`atomic_files` withholds what is written until an fsync: expected `fsync` or `fdatasync`"
                    .into(),
            );
        }
        if self.file_count() > 1 {
            self.divide(&mut spec, file_bytes / LBA_BYTES)?;
        }
        let directory = self.directory.trim_end_matches('/');
        let path = |name: &str| match name.starts_with('/') {
            true => name.to_owned(),
            false => format!("{directory}/{name}"),
        };
        let files = match &self.filename {
            Some(names) => names.split(':').map(path).collect(),
            // Clones of a job have their own files; the names are fio's.
            None => (0..self.file_count()).map(|n| path(&format!("{section}.{}.{n}", spec.clone))).collect(),
        };
        let is_synchronous = self.engine.as_deref().is_none_or(|engine| SYNCHRONOUS.contains(&engine));
        if is_synchronous {
            spec.iodepth = 1;
        }
        let Self { is_direct, overwrites, is_atomic, .. } = *self;
        Ok(FileJob { spec, files, file_bytes, is_direct, overwrites, is_atomic })
    }

    /// Divides the region of a job among its files.
    fn divide(&self, spec: &mut JobSpec, file_blocks: u64) -> Result<(), String> {
        let directions = || Direction::ALL.into_iter().filter(|d| spec.mix.uses(*d)).map(|d| d as usize);
        let least = directions().map(|d| u64::from(spec.sizes[d].min_blocks())).min().unwrap_or(1);
        let most = directions().map(|d| u64::from(spec.sizes[d].max_blocks())).max().unwrap_or(1);
        let count = self.file_count();
        if spec.region.first.0 != 0 || spec.region.blocks + least <= count * file_blocks {
            return Err("with several files, `offset` and a `size` that is smaller than all of them are not supported".into());
        }
        if most > file_blocks {
            let (file, request) = (Bytes(file_blocks * LBA_BYTES), Bytes(most * LBA_BYTES));
            return Err(format!("each of its files has {file}, less than its request of {request}"));
        }
        if spec.distribution.iter().any(|law| matches!(law, Distribution::Zoned(_))) {
            return Err("zones of several files are not supported; give each job one file".into());
        }
        if spec.limits.blocks == Some(spec.region.blocks) {
            // The end of a file that no request reaches counts in none of them.
            let rest = if least == most { file_blocks % least } else { 0 };
            spec.limits.blocks = Some(count * (file_blocks - rest));
        }
        spec.region.blocks = count * file_blocks;
        let count = u32::try_from(count).expect("the number of files is checked when it is read");
        spec.parts = Some(Parts { count, service: self.service.unwrap_or(Service::RoundRobin(1)) });
        Ok(())
    }
}

/// Reads an order of files as fio writes it: `roundrobin:4` changes after four requests.
fn service(text: &str) -> Option<Service> {
    let (name, every) = text.split_once(':').map_or((text, None), |(name, every)| (name, Some(every)));
    let every = match every {
        None => 1,
        Some(every) => value::integer(every).and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0)?,
    };
    match name {
        "roundrobin" => Some(Service::RoundRobin(every)),
        "random" => Some(Service::Random(every)),
        "sequential" => Some(Service::Sequential),
        _ => None,
    }
}
