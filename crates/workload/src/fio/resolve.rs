//! Converts a job file, given the size of a device, into jobs that can run on it.
//!
//! Invariant: every difference in behaviour from fio causes an error or a warning.

use super::error::{Fault, FioError};
use super::options::{Access, Draft, Law};
use super::parse::{Section, expanded, sections};
use super::spec::{
    Direction, Distribution, JobSpec, Limits, Mix, Placement, Rate, Region, Sizes, Steady, Think, Verify,
    Walk, Zone, ZoneRules,
};
use super::value::Amount;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Bytes, Duration, Lba};
use flashweir_sim::measure::LogSpec;
use std::collections::BTreeMap;

/// The jobs of a job file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// All jobs in the order of the file, with the clones of a section next to each other.
    pub jobs: Vec<JobSpec>,
    /// Requests of the file that are not honoured, one line each, with file and line number.
    pub warnings: Vec<String>,
}

/// Engines of fio that keep one request in flight whatever the depth.
pub(super) const SYNCHRONOUS: [&str; 8] =
    ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "sg", "splice"];

/// Parses a job file for a device of `capacity` bytes. `file` is its name in messages.
///
/// # Errors
/// The first fault in the file, or the first option that cannot be simulated, with its line.
pub fn parse_job_file(file: &str, text: &str, capacity: Bytes) -> Result<JobFile, FioError> {
    let place = |(line, fault)| FioError { file: file.to_owned(), line, fault: Box::new(fault) };
    let text = expanded(text, &|name| std::env::var(name).ok()).map_err(place)?;
    let sections = sections(&text).map_err(place)?;
    let capacity = Bytes(capacity.0 - capacity.0 % LBA_BYTES);
    let (jobs, warnings) = jobs_of(file, &sections, &vec![capacity; sections.len()])?;
    Ok(JobFile { jobs: jobs.into_iter().map(|(_, job)| job).collect(), warnings })
}

/// Jobs with the index of their section, and warnings.
type JobsOfSections = (Vec<(usize, JobSpec)>, Vec<String>);

/// Returns the jobs of the sections, each section on a device of its own size.
pub(super) fn jobs_of(
    file: &str,
    sections: &[Section<'_>],
    capacities: &[Bytes],
) -> Result<JobsOfSections, FioError> {
    let place = |(line, fault)| FioError { file: file.to_owned(), line, fault: Box::new(fault) };
    let mut warnings = Vec::new();
    let mut jobs = Vec::new();
    let mut global = Draft::default();
    let mut numbering = Numbering::default();
    for (number, (section, capacity)) in sections.iter().zip(capacities).enumerate() {
        if section.is_global() {
            global.apply(section, file, &mut warnings).map_err(place)?;
            continue;
        }
        let mut draft = global.clone();
        draft.apply(section, file, &mut warnings).map_err(place)?;
        let resolver = Resolver { draft: &draft, section, capacity: capacity.0, file };
        let at_header = |fault| place((section.line, fault));
        resolver.warn(&mut warnings);
        numbering.enter_section(&draft);
        for clone in 0..draft.numjobs {
            let mut job = resolver.job(clone).map_err(at_header)?;
            numbering.number(&mut job);
            jobs.push((number, job));
        }
    }
    if jobs.is_empty() {
        return Err(place((0, Fault::NoJobs)));
    }
    Ok((jobs, warnings))
}

/// Numbering of the groups of jobs.
#[derive(Debug, Default)]
struct Numbering {
    jobs: u32,
    stonewall_group: u32,
    report_group: u32,
    /// Number of sections seen by name, so that sections of the same name draw different random numbers.
    namesakes: BTreeMap<String, u32>,
}

impl Numbering {
    /// Enters a section. A stonewall stands before the first clone of its section and begins both kinds of group.
    fn enter_section(&mut self, draft: &Draft) {
        if self.jobs > 0 {
            self.stonewall_group += u32::from(draft.stonewall);
            self.report_group += u32::from(draft.stonewall || draft.new_group);
        }
    }

    fn number(&mut self, job: &mut JobSpec) {
        self.jobs += 1;
        job.log.number = job.log.number.map(|_| self.jobs);
        job.stonewall_group = self.stonewall_group;
        job.report_group = self.report_group;
        let key = format!("{}.{}", job.name, job.clone);
        let seen = self.namesakes.entry(key.clone()).or_insert(0);
        job.stream = if *seen == 0 { key } else { format!("{key}#{seen}") };
        *seen += 1;
    }
}

/// A section during its conversion to jobs.
struct Resolver<'a> {
    draft: &'a Draft,
    section: &'a Section<'a>,
    capacity: u64,
    file: &'a str,
}

impl Resolver<'_> {
    fn conflict<T>(&self, reason: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::Conflict { section: self.section.name.to_owned(), reason: reason.into() })
    }

    /// Warns about each difference from what a reader of the file may expect.
    fn warn(&self, warnings: &mut Vec<String>) {
        let draft = self.draft;
        let mut warn = |text: String| {
            warnings.push(format!("{}:{}: [{}] {text}", self.file, self.section.line, self.section.name));
        };
        if draft.time_based && draft.runtime.is_none() {
            warn("`time_based` has no effect without `runtime`".into());
        }
        if draft.time_based && draft.runtime.is_some() && draft.number_ios.is_some() {
            warn("`number_ios` has no effect with `time_based`".into());
        }
        if let Some(engine) = draft.engine.as_deref()
            && SYNCHRONOUS.contains(&engine)
            && draft.iodepth > 1
        {
            warn(format!(
                "ioengine={engine} would keep one request in flight in fio; here iodepth={} counts",
                draft.iodepth
            ));
        }
        if draft.verify.is_some() && draft.do_verify && draft.loops > 1 {
            warn("`verify` reads back once, after all loops".into());
        }
        if draft.steady.is_some() && draft.steady_window == Duration::ZERO {
            warn("`steadystate` has no effect without `steadystate_duration`".into());
        }
        if draft.steady.is_some() && draft.group_reporting && draft.numjobs > 1 {
            warn("`steadystate` judges each job alone, also with `group_reporting`".into());
        }
        let sizes = self.sizes();
        let uniform = draft.law == Law::Uniform;
        if draft.random && uniform && !draft.norandommap && !self.one_size(&sizes) {
            warn("has several block sizes: random addresses may repeat within a pass".into());
        }
        if draft.random && uniform && !draft.norandommap && self.is_aligned(&sizes) {
            warn("`blockalign` is not the block size: random addresses may repeat within a pass".into());
        }
        if draft.random && !uniform && draft.modifier > 1 {
            warn("only the first address of each run follows `random_distribution`".into());
        }
    }

    fn mix(&self) -> Mix {
        match self.draft.access {
            Access::Only(direction) => Mix::Only(direction),
            Access::ReadWrite => Mix::ReadWrite { read_percent: self.draft.read_percent },
            Access::TrimWrite => Mix::TrimWrite,
        }
    }

    fn sizes(&self) -> [Sizes; 3] {
        let blocks = |bytes: u64| u32::try_from(bytes / LBA_BYTES).expect("a request is at most 1 GiB");
        std::array::from_fn(|d| match (self.draft.split[d].as_slice(), self.draft.sizes_of(d)) {
            ([], (min, max)) if min == max => Sizes::Fixed(blocks(min)),
            ([], (min, max)) => Sizes::Range { min: blocks(min), max: blocks(max) },
            ([(only, 100)], _) => Sizes::Fixed(blocks(*only)),
            (split, _) => Sizes::Split(split.iter().map(|(size, share)| (blocks(*size), *share)).collect()),
        })
    }

    /// Whether `blockalign` differs from the smallest request, which ends the map of what was drawn.
    fn is_aligned(&self, sizes: &[Sizes; 3]) -> bool {
        let min_bytes = |d: usize| u64::from(sizes[d].min_blocks()) * LBA_BYTES;
        self.draft.align.iter().enumerate().any(|(d, align)| align.is_some_and(|align| align != min_bytes(d)))
    }

    /// Whether all requests have the same size.
    fn one_size(&self, sizes: &[Sizes; 3]) -> bool {
        let mix = self.mix();
        let mut used = Direction::ALL.into_iter().filter(|d| mix.uses(*d)).map(|d| &sizes[d as usize]);
        let first = used.next();
        matches!(first, Some(Sizes::Fixed(_))) && used.all(|other| Some(other) == first)
    }

    /// Returns the smallest and the largest size that occurs, in bytes.
    fn extremes(&self, sizes: &[Sizes; 3]) -> (u64, u64) {
        let mix = self.mix();
        let used = || Direction::ALL.into_iter().filter(|d| mix.uses(*d)).map(|d| &sizes[d as usize]);
        let min = used().map(Sizes::min_blocks).min().unwrap_or(1);
        let max = used().map(Sizes::max_blocks).max().unwrap_or(1);
        (u64::from(min) * LBA_BYTES, u64::from(max) * LBA_BYTES)
    }

    /// Returns start and length of the region in bytes.
    fn extent(&self, clone: u32, min_bytes: u64) -> Result<(u64, u64), Fault> {
        let section = self.section.name.to_owned();
        let capacity = self.capacity;
        let share = |percent: u8| (u128::from(capacity) * u128::from(percent) / 100) as u64;
        let align = self.draft.offset_align.unwrap_or(min_bytes);
        // Percentages round up to the next boundary, so that neighbouring regions never overlap.
        let distance = |amount: Amount| match amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => share(percent).next_multiple_of(align),
        };
        let increment = distance(self.draft.offset_increment).checked_mul(u64::from(clone));
        let start = increment.and_then(|n| n.checked_add(distance(self.draft.offset))).unwrap_or(u64::MAX);
        let beyond = |size: Option<u64>| {
            let (size, capacity) = (size.map(Bytes), Bytes(capacity));
            Fault::Beyond { section: section.clone(), offset: Bytes(start), size, capacity }
        };
        if start >= capacity {
            return Err(beyond(None));
        }
        let rest = capacity - start;
        // The file limits what the job may access; a smaller `size` limits how much it transfers.
        let size = self.draft.filesize.map(Amount::Bytes).or(self.draft.size);
        let length = match size {
            None => rest,
            Some(Amount::Bytes(bytes)) if bytes > rest => return Err(beyond(Some(bytes))),
            Some(Amount::Bytes(bytes)) => bytes,
            Some(Amount::Percent(percent)) => {
                let length = share(percent).min(rest);
                length - length % min_bytes
            }
        };
        Ok((start, length))
    }

    fn job(&self, clone: u32) -> Result<JobSpec, Fault> {
        let draft = self.draft;
        let sizes = self.sizes();
        let mix = self.mix();
        let (min_bytes, max_bytes) = self.extremes(&sizes);
        let (start, length) = self.extent(clone, min_bytes)?;
        if length < max_bytes {
            let (length, max) = (Bytes(length), Bytes(max_bytes));
            return self.conflict(format!("its region of {length} is smaller than its request of {max}"));
        }
        let one_size = self.one_size(&sizes);
        // A tail shorter than the only request size is never reached.
        let usable = if one_size { length - length % min_bytes } else { length };
        let region = Region { first: Lba(start / LBA_BYTES), blocks: usable / LBA_BYTES };
        let aligned = self.is_aligned(&sizes);
        let uniform = draft.law == Law::Uniform;
        Ok(JobSpec {
            name: self.name(),
            description: draft.description.clone(),
            clone,
            numjobs: draft.numjobs,
            stream: String::new(),
            stonewall_group: 0,
            report_group: 0,
            group_reporting: draft.group_reporting,
            stats: draft.stats,
            mix,
            walk: self.walk(region)?,
            sequencer: draft.sequencer,
            zones: self.zone_rules()?,
            region,
            parts: None,
            align_blocks: std::array::from_fn(|d| match draft.align[d] {
                Some(bytes) => (bytes / LBA_BYTES) as u32,
                None => sizes[d].min_blocks(),
            }),
            random_map: draft.random && uniform && one_size && !aligned && (draft.lfsr || !draft.norandommap),
            distribution: self.distribution(region)?,
            sizes,
            random_percent: draft.random_percent,
            iodepth: draft.iodepth,
            fsync: draft.fsync,
            fdatasync: draft.fdatasync,
            end_fsync: draft.end_fsync || draft.fsync_on_close,
            fua: draft.sync || draft.write_fua,
            placement: self.placement()?,
            share_from: self.share_from(region)?,
            limits: self.limits(usable)?,
            ramp: draft.ramp,
            start_delay: draft.start_delay,
            think: self.think(),
            rate: self.rates(min_bytes)?,
            process: draft.process,
            rate_ignore_thinktime: draft.rate_ignore_thinktime,
            seed: draft.seed,
            verify: self.verify()?,
            log: self.log(),
            steady: self.steady()?,
        })
    }

    fn placement(&self) -> Result<Option<Placement>, Fault> {
        let handles = self.draft.handles.clone();
        match self.draft.places {
            false => Ok(None),
            true if handles.is_empty() => {
                self.conflict("`fdp=1` needs the handles of this job: expected `fdp_pli=0,1` or the like")
            }
            true => Ok(Some(Placement { handles, in_turn: self.draft.handles_in_turn })),
        }
    }

    /// Returns the first sector of the sources of a job whose writes are remaps. A clone's sources move with its region.
    fn share_from(&self, region: Region) -> Result<Option<Lba>, Fault> {
        let (draft, capacity) = (self.draft, self.capacity);
        let Some(from) = draft.share_from else { return Ok(None) };
        if !self.mix().uses(Direction::Write) {
            return self.conflict("`share_from` makes remaps of writes, and the job writes nothing");
        }
        let is_zoned = draft.zoned == Some(true);
        if is_zoned || draft.places || draft.verify.is_some() {
            let other = if is_zoned { "zonemode=zbd" } else { "fdp=1" };
            let other = if draft.verify.is_some() { "verify" } else { other };
            return self.conflict(format!("`share_from` writes no data: expected no `{other}` beside it"));
        }
        // As an offset, a percentage rounds up to the next boundary.
        let align = draft.offset_align.unwrap_or(self.extremes(&self.sizes()).0);
        let bytes = |amount: Amount| match amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(p) => {
                ((u128::from(capacity) * u128::from(p) / 100) as u64).next_multiple_of(align)
            }
        };
        let moved = region.first.0.saturating_sub(bytes(draft.offset) / LBA_BYTES);
        let first = (bytes(from) / LBA_BYTES).saturating_add(moved);
        let size = |blocks: u64| Bytes(blocks.saturating_mul(LBA_BYTES));
        if first.checked_add(region.blocks).is_none_or(|end| end > capacity / LBA_BYTES) {
            return self.conflict(format!(
                "the sources of `share_from` reach beyond the device: offset {} and size {} on {}",
                size(first),
                size(region.blocks),
                Bytes(capacity)
            ));
        }
        if first.abs_diff(region.first.0) < region.blocks {
            return self.conflict(format!(
                "the sources of `share_from`, {} from {} on, overlap the region of the job, which begins at {}",
                size(region.blocks),
                size(first),
                size(region.first.0)
            ));
        }
        Ok(Some(Lba(first)))
    }

    fn zone_rules(&self) -> Result<Option<ZoneRules>, Fault> {
        if self.draft.zoned != Some(true) {
            if self.draft.zone_size.is_some() && self.draft.zoned.is_none() {
                return self.conflict(
                    "`zonesize` without `zonemode` means `zonemode=strided`, which is not modelled: expected `zonemode=zbd` or `none`",
                );
            }
            return Ok(None);
        }
        if self.mix() == Mix::TrimWrite || self.mix().uses(Direction::Trim) {
            return self
                .conflict("`zonemode=zbd` deallocates whole zones by itself: expected reads and writes");
        }
        if self.draft.verify.is_some() {
            return self.conflict("`verify` of what was written at write pointers is not modelled");
        }
        let blocks = self.draft.zone_size.map(|bytes| bytes / LBA_BYTES);
        Ok(Some(ZoneRules { blocks, open_max: self.draft.zones_open_max }))
    }

    fn walk(&self, region: Region) -> Result<Walk, Fault> {
        if self.draft.random {
            let run = u32::try_from(self.draft.modifier).expect("`rw` checks the length of runs");
            return Ok(Walk::Random { run });
        }
        let gap_blocks = self.draft.modifier / LBA_BYTES as i64;
        if gap_blocks.unsigned_abs() >= region.blocks {
            return self.conflict("the offset modifier of `rw` is not smaller than the region");
        }
        Ok(Walk::Sequential { gap_blocks })
    }

    fn limits(&self, region_bytes: u64) -> Result<Limits, Fault> {
        let draft = self.draft;
        let once = match draft.io_size.or(draft.filesize.and(draft.size)) {
            None => region_bytes,
            Some(Amount::Bytes(bytes)) if draft.io_size.is_none() => bytes.min(region_bytes),
            Some(Amount::Bytes(bytes)) => bytes,
            Some(Amount::Percent(p)) => (u128::from(region_bytes) * u128::from(p) / 100) as u64,
        };
        // Every block is transferred twice where a trim and a write share it.
        let pairs = u64::from(draft.access == Access::TrimWrite) + 1;
        let bytes = once.checked_mul(draft.loops).and_then(|bytes| bytes.checked_mul(pairs));
        let Some(bytes) = bytes else { return self.conflict("`loops` times the size exceeds 16 EiB") };
        let endless = draft.time_based && draft.runtime.is_some();
        Ok(Limits {
            blocks: (!endless).then_some(bytes.div_ceil(LBA_BYTES)),
            // As in fio, a time-based job ends only by its run time.
            requests: draft
                .number_ios
                .filter(|_| !endless)
                .map(|requests| requests.saturating_mul(draft.loops)),
            runtime: draft.runtime,
        })
    }

    fn verify(&self) -> Result<Option<Verify>, Fault> {
        let Some(verify) = self.draft.verify.filter(|_| self.draft.do_verify) else { return Ok(None) };
        match self.mix() {
            Mix::TrimWrite => self.conflict("`verify` of what is trimmed in between is not modelled"),
            mix if !mix.uses(Direction::Write) => {
                self.conflict("`verify` reads back what the job itself has written, and it writes nothing")
            }
            _ => Ok(Some(verify)),
        }
    }

    /// Returns the specification of the logs; the numbering supplies the number in their names.
    fn log(&self) -> LogSpec {
        let draft = self.draft;
        let named = |name: &Option<String>| {
            let name = name.as_ref()?;
            Some(if name.is_empty() { self.name() } else { name.clone() })
        };
        LogSpec {
            bandwidth: named(&draft.log_bw),
            latency: named(&draft.log_lat),
            iops: named(&draft.log_iops),
            average: draft.log_average,
            is_max: draft.log_max,
            has_offset: draft.log_offset,
            number: draft.per_job_logs.then_some(0),
        }
    }

    fn steady(&self) -> Result<Option<Steady>, Fault> {
        let draft = self.draft;
        let Some((is_bandwidth, is_slope, limit, is_percent)) = draft.steady else { return Ok(None) };
        let Draft { steady_window: window, steady_interval: interval, steady_ramp: ramp, .. } = *draft;
        if window == Duration::ZERO {
            return Ok(None);
        }
        if window.as_nanos() / interval.as_nanos() < 2 {
            return self.conflict("`steadystate_duration` is shorter than two `steadystate_check_interval`");
        }
        Ok(Some(Steady { is_bandwidth, is_slope, limit, is_percent, window, interval, ramp }))
    }

    fn name(&self) -> String {
        self.draft.name.clone().unwrap_or_else(|| self.section.name.to_owned())
    }

    fn think(&self) -> Option<Think> {
        let draft = self.draft;
        // By default requests are counted; if only a time is given, only the time counts.
        let every = draft.think_blocks.unwrap_or(if draft.think_after.is_some() { u32::MAX } else { 1 });
        (draft.think > Duration::ZERO).then_some(Think {
            pause: draft.think,
            every,
            after: draft.think_after,
        })
    }

    fn rates(&self, min_bytes: u64) -> Result<[Rate; 3], Fault> {
        let draft = self.draft;
        if draft.rate.iter().any(|r| *r > 0) && draft.rate_iops.iter().any(|r| *r > 0) {
            return self.conflict("`rate` and `rate_iops` exclude one another");
        }
        let mut rates = [Rate::Unlimited; 3];
        for (d, rate) in rates.iter_mut().enumerate() {
            let smallest = match (draft.split[d].as_slice(), draft.sizes_of(d)) {
                ([], (min, _)) => min,
                (split, _) => split.iter().map(|(size, _)| *size).min().unwrap_or(min_bytes),
            };
            let bytes = draft.rate[d].max(draft.rate_iops[d].saturating_mul(smallest));
            if bytes > 0 {
                *rate = Rate::BytesPerSecond(bytes.min(1 << 62));
            }
        }
        Ok(rates)
    }

    fn distribution(&self, region: Region) -> Result<[Distribution; 3], Fault> {
        let law = &self.draft.law;
        let mut laws = [const { Distribution::Uniform }; 3];
        for (d, slot) in laws.iter_mut().enumerate() {
            *slot = match law {
                Law::Uniform => Distribution::Uniform,
                Law::Zipf(theta, centre) => Distribution::Zipf { theta: *theta, centre: *centre },
                Law::Pareto(h, centre) => Distribution::Pareto { h: *h, centre: *centre },
                Law::Normal(deviation_percent, centre) => Distribution::Normal {
                    deviation_percent: *deviation_percent,
                    centre: centre.unwrap_or(0.5),
                },
                Law::Zoned(zones) => Distribution::Zoned(self.zones(&zones[d], region)?),
            };
        }
        Ok(laws)
    }

    /// Lays the zones one after the other into the region.
    fn zones(&self, zones: &[(u8, Amount)], region: Region) -> Result<Vec<Zone>, Fault> {
        let mut before = 0u128;
        let mut placed = Vec::new();
        let whole = u128::from(region.blocks);
        for (access_percent, size) in zones {
            // Sums rather than sizes are divided, so that the zones fill the region without gaps.
            let (start, end, unit) = match size {
                Amount::Percent(percent) => (before, before + u128::from(*percent), 100),
                Amount::Bytes(bytes) => (before, before + u128::from(bytes / LBA_BYTES), whole),
            };
            before = end;
            let (first, last) = (whole * start / unit, whole * end / unit);
            if last > whole {
                return self.conflict(format!(
                    "the zones of `random_distribution` exceed its region of {}",
                    Bytes(region.blocks * LBA_BYTES)
                ));
            }
            let zone =
                Zone { access_percent: *access_percent, first: first as u64, blocks: (last - first) as u64 };
            let smallest = self.extremes(&self.sizes()).1 / LBA_BYTES;
            if zone.access_percent > 0 && zone.blocks < smallest {
                return self.conflict("a zone of `random_distribution` is smaller than a request");
            }
            if zone.access_percent > 0 {
                placed.push(zone);
            }
        }
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::known;

    const GIB: u64 = 1 << 30;

    fn parse(text: &str) -> Result<JobFile, String> {
        parse_job_file("job.fio", text, Bytes(GIB)).map_err(|error| error.to_string())
    }

    fn one(options: &str) -> JobSpec {
        parse(&format!("[w]\n{options}")).unwrap_or_else(|error| panic!("{error}")).jobs.remove(0)
    }

    #[test]
    fn bad_options_are_named_with_line_and_remedy() {
        let size = "a size above 0 such as 1g, or 1% to 100%";
        let bs = "a multiple of 512 bytes up to 1g, such as 4k, or up to three with commas for reads, writes \
                  and trims";
        let span = "a time such as 10, 10s or 500ms";
        let zipf = "zipf:theta with theta above 0 and not 1, and a centre from 0 to 1 if wanted";
        let cannot = |option: &str, value: &str, expected: &str| {
            format!("job.fio:2: option `{option}` in [w] cannot be `{value}`: expected {expected}")
        };
        let table = [
            ("bs=700", cannot("bs", "700", bs)),
            (
                "bs=4kib",
                cannot("bs", "4kib", bs)
                    + "; units with `i` count in powers of 1000, as in fio with kb_base=1024",
            ),
            ("blocksize=4x", cannot("blocksize", "4x", bs)),
            ("bs=1,2,3,4", cannot("bs", "1,2,3,4", bs)),
            ("bs=2g", cannot("bs", "2g", bs)),
            ("bsrange=4k", cannot("bsrange", "4k", "two multiples of 512 bytes up to 1g, as in 4k-64k")),
            ("bssplit=4k/50:8k/60", cannot("bssplit", "4k/50:8k/60", "percentages that add up to 100")),
            (
                "bssplit=4k/x",
                cannot(
                    "bssplit",
                    "4k/x",
                    "sizes with percentages, as in 4k/60:64k/40, each a multiple of 512 bytes",
                ),
            ),
            ("size=0", cannot("size", "0", size)),
            ("size=101%", cannot("size", "101%", size)),
            ("io_limit=-1", cannot("io_limit", "-1", size)),
            ("offset=100", cannot("offset", "100", "a multiple of 512 bytes such as 1g, or 0% to 100%")),
            ("iodepth=0", cannot("iodepth", "0", "a whole number from 1 to 1048576")),
            ("numjobs=two", cannot("numjobs", "two", "a whole number from 1 to 65536")),
            ("fsync=-1", cannot("fsync", "-1", "a whole number from 0 to 4294967295")),
            ("rwmixread=101", cannot("rwmixread", "101", "a percentage from 0 to 100")),
            ("runtime=1.5", cannot("runtime", "1.5", span)),
            ("ramp_time=3 weeks", cannot("ramp_time", "3 weeks", span)),
            ("thinktime=5x", cannot("thinktime", "5x", "a time such as 100 (microseconds) or 2ms")),
            ("sync=2", cannot("sync", "2", "none, 0, sync, 1 or dsync")),
            ("time_based=yes", cannot("time_based", "yes", "0 or 1")),
            (
                "rate=fast",
                cannot("rate", "fast", "bytes per second such as 100m, or up to three with commas"),
            ),
            ("rate_process=even", cannot("rate_process", "even", "linear or poisson")),
            ("random_distribution=zipf:1", cannot("random_distribution", "zipf:1", zipf)),
            ("random_distribution=zipf:1.2:2", cannot("random_distribution", "zipf:1.2:2", zipf)),
            (
                "random_distribution=zoned:60/10:30/90",
                cannot(
                    "random_distribution",
                    "zoned:60/10:30/90",
                    "zones whose percentages of requests add up to 100",
                ),
            ),
            (
                "random_distribution=zoned:60/50:40/60",
                cannot(
                    "random_distribution",
                    "zoned:60/50:40/60",
                    "zones of requests and sizes in per cent or bytes, as in 60/10:40/90",
                ),
            ),
            (
                "rw=write:100",
                cannot(
                    "rw",
                    "write:100",
                    "a multiple of 512 bytes after the colon, as in write:4k or read:-8k",
                ),
            ),
            (
                "rw=randread:0",
                cannot("rw", "randread:0", "a count of requests above 0 after the colon, as in randread:8"),
            ),
            (
                "ioengine=cpuio",
                cannot(
                    "ioengine",
                    "cpuio",
                    "an engine that reads and writes a device, such as libaio or io_uring",
                ),
            ),
            ("size", format!("job.fio:2: option `size` in [w] needs a value: expected {size}")),
            ("iodept=3", "job.fio:2: unknown option `iodept` in [w]; did you mean `iodepth`?".into()),
            ("RW=read", "job.fio:2: unknown option `RW` in [w]; did you mean `rw`?".into()),
            ("quux=3", "job.fio:2: unknown option `quux` in [w]".into()),
            ("zonemode=strided", cannot("zonemode", "strided", "none or zbd")),
            ("dataplacement=streams", cannot("dataplacement", "streams", "none or fdp")),
            ("fdp_pli=0,32", cannot("fdp_pli", "0,32", "numbers from 0 to 31, as in 0,2")),
            (
                "fdp=1",
                "job.fio:1: [w]: `fdp=1` needs the handles of this job: expected `fdp_pli=0,1` or the like"
                    .into(),
            ),
            ("share_from=100", cannot("share_from", "100", "a multiple of 512 bytes such as 1g, or 0% to 100%")),
            (
                "share_from=0",
                "job.fio:1: [w]: `share_from` makes remaps of writes, and the job writes nothing".into(),
            ),
            (
                "atomic_files=1",
                "job.fio:2: option `atomic_files` in [w] is not supported: a device has no files; `weir files` runs jobs on some"
                    .into(),
            ),
            ("include other.fio", "job.fio:2: `include` is not supported in job files".into()),
        ];
        for (line, message) in table {
            assert_eq!(parse(&format!("[w]\n{line}\n")).unwrap_err(), message, "{line}");
        }
    }

    #[test]
    fn bad_files_and_jobs_are_refused() {
        let table = [
            ("", "job.fio: no job is defined: expected a section such as [writer]"),
            ("[global]\nbs=4k", "job.fio: no job is defined: expected a section such as [writer]"),
            ("bs=4k\n[w]", "job.fio:1: `bs=4k` stands outside of any section"),
            ("[w", "job.fio:1: `[w` is not a section header: expected a name in brackets, as in [writer]"),
            (
                "\n[w]\noffset=512m\nsize=600m",
                "job.fio:2: [w] reaches beyond the device: offset 512MiB and size 600MiB on 1GiB",
            ),
            ("[w]\noffset=1g", "job.fio:1: [w] begins beyond the device: offset 1GiB on 1GiB"),
            (
                "[w]\nnumjobs=3\nsize=256m\noffset_increment=400m",
                "job.fio:1: [w] reaches beyond the device: offset 800MiB and size 256MiB on 1GiB",
            ),
            ("[w]\nsize=4k\nbs=8k", "job.fio:1: [w]: its region of 4KiB is smaller than its request of 8KiB"),
            (
                "[w]\nrw=write\nsize=64m\nshare_from=32m",
                "job.fio:1: [w]: the sources of `share_from`, 64MiB from 32MiB on, overlap the region of the job, \
                 which begins at 0B",
            ),
            (
                "[w]\nrw=write\nsize=64m\nshare_from=1g",
                "job.fio:1: [w]: the sources of `share_from` reach beyond the device: offset 1GiB and size 64MiB on \
                 1GiB",
            ),
            (
                "[w]\nrw=write\nsize=64m\nshare_from=512m\nverify=md5",
                "job.fio:1: [w]: `share_from` writes no data: expected no `verify` beside it",
            ),
            ("[w]\nrate=1m\nrate_iops=5", "job.fio:1: [w]: `rate` and `rate_iops` exclude one another"),
            (
                "[w]\nrw=write:1m\nsize=1m",
                "job.fio:1: [w]: the offset modifier of `rw` is not smaller than the region",
            ),
            (
                "[w]\nrandom_distribution=zoned_abs:60/1g:40/1g",
                "job.fio:1: [w]: the zones of `random_distribution` exceed its region of 1GiB",
            ),
        ];
        for (text, message) in table {
            assert_eq!(parse(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn every_supported_option_has_a_setter() {
        for name in known::supported_names() {
            // An unlisted name would panic; whether the value is valid does not matter here.
            let _ = Draft::default().set(name, Some("1"));
        }
    }

    #[test]
    fn globals_apply_to_the_jobs_below_them() {
        let file = parse(
            "[global]\nbs=8k\niodepth=4\n[a]\n[global]\nbs=16k\n[b]\niodepth=2\n[globals too]\nrw=write\n[c]\nbs=,4k\n",
        )
        .unwrap();
        let seen: Vec<_> =
            file.jobs.iter().map(|j| (j.name.as_str(), j.sizes[0].min_blocks(), j.iodepth, j.mix)).collect();
        let (read, write) = (Mix::Only(Direction::Read), Mix::Only(Direction::Write));
        assert_eq!(seen, [("a", 16, 4, read), ("b", 32, 2, read), ("c", 32, 4, write)]);
        assert_eq!(file.jobs[2].sizes[1], Sizes::Fixed(8));
        assert_eq!(file.warnings, [""; 0]);
    }

    #[test]
    fn stonewalls_and_clones_are_numbered() {
        let file = parse(
            "[a]\nnumjobs=2\noffset_increment=10%\nsize=64m\n[b]\nnew_group\n[c]\nstonewall\nnumjobs=2\n\
             group_reporting\n[a]\nwait_for_previous=1\n",
        )
        .unwrap();
        let seen: Vec<_> =
            file.jobs.iter().map(|j| (j.stream.as_str(), j.stonewall_group, j.report_group)).collect();
        assert_eq!(
            seen,
            [("a.0", 0, 0), ("a.1", 0, 0), ("b.0", 0, 1), ("c.0", 1, 2), ("c.1", 1, 2), ("a.0#1", 2, 3)]
        );
        let tenth = (GIB / 10).next_multiple_of(4096) / 512;
        assert_eq!((file.jobs[0].region.first.0, file.jobs[1].region.first.0), (0, tenth));
    }

    #[test]
    fn regions_and_limits_are_resolved() {
        let whole = one("rw=randread");
        assert_eq!((whole.region.blocks, whole.limits.blocks), (GIB / 512, Some(GIB / 512)));
        assert!(whole.random_map);
        let rest = one("offset=25%\nio_size=1m\nloops=3");
        assert_eq!((rest.region.first.0, rest.region.blocks), (GIB / 2048, GIB / 512 / 4 * 3));
        assert_eq!(rest.limits.blocks, Some(3 * 2048));
        assert_eq!(one("size=50%\noffset=75%").region.blocks, GIB / 2048);
        assert_eq!(one("time_based\nruntime=2m").limits.blocks, None);
        assert_eq!(one("time_based\nruntime=2m\nnumber_ios=5").limits.requests, None);
        assert_eq!(one("time_based\nruntime=2m").limits.runtime, Some(Duration::from_secs(120)));
        assert_eq!(one("bs=4kib\nsize=4k\nbs=8kib\nsize=512k\nkb_base=1000").region.blocks, 992);
        assert_eq!(one("rwmixwrite=30\nrw=randrw").mix, Mix::ReadWrite { read_percent: 70 });
        assert_eq!(one("bssplit=4k/50:8k/:16k/").sizes[2], Sizes::Split(vec![(8, 50), (16, 25), (32, 25)]));
        assert_eq!(
            one("rate_iops=100,,").rate,
            [Rate::BytesPerSecond(409_600), Rate::Unlimited, Rate::Unlimited]
        );
    }

    #[test]
    fn the_random_map_needs_one_size_and_uniform_addresses() {
        for (options, map) in [
            ("rw=randrw", true),
            ("rw=randrw\nbs=4k,8k", false),
            ("rw=randread\nbs=4k,8k", true),
            ("rw=randread\nnorandommap", false),
            ("rw=randread\nnorandommap\nrandom_generator=lfsr", true),
            ("rw=randread\nrandom_distribution=zipf", false),
            ("rw=randread\nbssplit=4k/50:8k/50", false),
            ("rw=randread\nba=8k", false),
            ("rw=read", false),
        ] {
            assert_eq!(one(options).random_map, map, "{options}");
        }
    }

    #[test]
    fn what_is_left_out_is_warned_about() {
        let text = "[global]\nioengine=psync\ndirect=1\n[w]\niodepth=8\nverify_fatal=1\nrandrepeat=0\nsize=4mib\n\
                    rw=randrw\nbs=4k,8k\ntime_based\nzonemode=none\n";
        assert_eq!(
            parse(text).unwrap().warnings,
            [
                "job.fio:2: `ioengine` in [global] has no meaning on a simulated device and is ignored",
                "job.fio:3: `direct` in [global] has no meaning on a simulated device and is ignored",
                "job.fio:6: `verify_fatal` in [w] is ignored: contents are compared whole, whatever their header and form",
                "job.fio:7: `randrepeat=0` in [w] is ignored: the seed of the world decides whether runs differ",
                "job.fio:8: `4mib` counts in powers of 1000, as in fio with kb_base=1024",
                "job.fio:4: [w] `time_based` has no effect without `runtime`",
                "job.fio:4: [w] ioengine=psync would keep one request in flight in fio; here iodepth=8 counts",
                "job.fio:4: [w] has several block sizes: random addresses may repeat within a pass",
            ]
        );
    }

    #[test]
    fn the_examples_are_valid_and_complete() {
        for (text, jobs, groups) in [
            (include_str!("../../../../examples/randwrite.fio"), 1, 1),
            (include_str!("../../../../examples/mixed.fio"), 5, 3),
            (include_str!("../../../../examples/host-ftl.fio"), 8, 2),
        ] {
            let file = parse(text).unwrap();
            assert_eq!(file.jobs.len(), jobs);
            assert_eq!(file.jobs.last().map(|job| job.stonewall_group), Some(groups - 1));
        }
    }
}
