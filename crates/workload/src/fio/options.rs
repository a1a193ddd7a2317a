//! Options of one job as they are parsed: later ones override earlier ones, globals come first.
//!
//! Place in the data flow: sections (`parse`) are applied to a [`Draft`]; `resolve` turns a finished draft into a
//! [`super::JobSpec`] for a device of known size.

use super::error::Fault;
use super::known::{self, Fate};
use super::parse::{Entry, Section};
use super::spec::{Direction, Process, Sequencer, Verify};
use super::value::{self, Amount, KbBase};
use flashweir_core::Duration;
use flashweir_core::command::Handle;
use flashweir_core::units::LBA_BYTES;

/// Value of `rw`, before the mix is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One direction.
    Only(Direction),
    /// Reads and writes.
    ReadWrite,
    /// Trims, each followed by a write.
    TrimWrite,
}

/// The parsed text of a distribution; its zones have no size before the region is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Law {
    /// All addresses are equally likely.
    Uniform,
    /// `zipf:theta[:centre]`.
    Zipf(f64, Option<f64>),
    /// `pareto:h[:centre]`.
    Pareto(f64, Option<f64>),
    /// `normal:deviation[:centre]`.
    Normal(f64, Option<f64>),
    /// Percentage of the requests and size of each zone, by direction.
    Zoned([Vec<(u8, Amount)>; 3]),
}

/// All options of a job.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) name: Option<String>,
    pub(super) description: String,
    pub(super) access: Access,
    pub(super) random: bool,
    /// Number after the colon of `rw`: a count for random patterns, bytes for sequential ones.
    pub(super) modifier: i64,
    pub(super) sequencer: Sequencer,
    /// Request size by direction, in bytes.
    pub(super) bs: [u64; 3],
    /// Smallest and largest one, which counts where it is given, wherever `bs` stands.
    pub(super) range: [Option<(u64, u64)>; 3],
    pub(super) split: [Vec<(u64, u8)>; 3],
    pub(super) align: [Option<u64>; 3],
    pub(super) size: Option<Amount>,
    pub(super) io_size: Option<Amount>,
    pub(super) filesize: Option<u64>,
    pub(super) offset: Amount,
    pub(super) offset_increment: Amount,
    pub(super) offset_align: Option<u64>,
    pub(super) numjobs: u32,
    pub(super) iodepth: u32,
    pub(super) fsync: u32,
    pub(super) fdatasync: u32,
    pub(super) end_fsync: bool,
    pub(super) fsync_on_close: bool,
    pub(super) sync: bool,
    pub(super) write_fua: bool,
    pub(super) share_from: Option<Amount>,
    pub(super) places: bool,
    pub(super) handles: Vec<Handle>,
    pub(super) handles_in_turn: bool,
    pub(super) read_percent: u8,
    pub(super) runtime: Option<Duration>,
    pub(super) time_based: bool,
    pub(super) loops: u64,
    pub(super) number_ios: Option<u64>,
    pub(super) law: Law,
    pub(super) lfsr: bool,
    pub(super) norandommap: bool,
    pub(super) random_percent: [u8; 3],
    pub(super) seed: Option<u64>,
    pub(super) think: Duration,
    pub(super) think_blocks: Option<u32>,
    pub(super) think_after: Option<Duration>,
    /// Bytes per second by direction; 0 for no limit.
    pub(super) rate: [u64; 3],
    /// Requests per second by direction; 0 for no limit.
    pub(super) rate_iops: [u64; 3],
    pub(super) process: Process,
    pub(super) rate_ignore_thinktime: bool,
    pub(super) start_delay: (Duration, Duration),
    pub(super) ramp: Duration,
    pub(super) stonewall: bool,
    pub(super) group_reporting: bool,
    pub(super) new_group: bool,
    pub(super) stats: bool,
    pub(super) base: KbBase,
    pub(super) engine: Option<String>,
    /// Names of logs; an empty one stands for the job's name.
    pub(super) log_bw: Option<String>,
    pub(super) log_lat: Option<String>,
    pub(super) log_iops: Option<String>,
    pub(super) log_average: Duration,
    pub(super) log_max: bool,
    pub(super) log_offset: bool,
    pub(super) per_job_logs: bool,
    /// Whether writes go to the write pointers of zones.
    /// Whether `zonemode` is `zbd`, if it is given.
    pub(super) zoned: Option<bool>,
    /// Size of a zone that the file expects, in bytes.
    pub(super) zone_size: Option<u64>,
    pub(super) zones_open_max: u32,
    pub(super) verify: Option<Verify>,
    pub(super) do_verify: bool,
    /// Whether bandwidth counts, whether the slope counts, the limit, and whether it is in per cent.
    pub(super) steady: Option<(bool, bool, f64, bool)>,
    pub(super) steady_window: Duration,
    pub(super) steady_interval: Duration,
    pub(super) steady_ramp: Duration,
}

impl Default for Draft {
    /// fio's defaults.
    fn default() -> Self {
        Self {
            name: None,
            description: String::new(),
            access: Access::Only(Direction::Read),
            random: false,
            modifier: 0,
            sequencer: Sequencer::Sequential,
            bs: [4096; 3],
            range: [None; 3],
            split: [const { Vec::new() }; 3],
            align: [None; 3],
            size: None,
            io_size: None,
            filesize: None,
            offset: Amount::Bytes(0),
            offset_increment: Amount::Bytes(0),
            offset_align: None,
            numjobs: 1,
            iodepth: 1,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            fsync_on_close: false,
            sync: false,
            write_fua: false,
            share_from: None,
            places: false,
            handles: Vec::new(),
            handles_in_turn: false,
            read_percent: 50,
            runtime: None,
            time_based: false,
            loops: 1,
            number_ios: None,
            law: Law::Uniform,
            lfsr: false,
            norandommap: false,
            random_percent: [100; 3],
            seed: None,
            think: Duration::ZERO,
            think_blocks: None,
            think_after: None,
            rate: [0; 3],
            rate_iops: [0; 3],
            process: Process::Linear,
            rate_ignore_thinktime: false,
            start_delay: (Duration::ZERO, Duration::ZERO),
            ramp: Duration::ZERO,
            stonewall: false,
            group_reporting: false,
            new_group: false,
            stats: true,
            base: KbBase::Binary,
            engine: None,
            log_bw: None,
            log_lat: None,
            log_iops: None,
            log_average: Duration::ZERO,
            log_max: false,
            log_offset: false,
            per_job_logs: true,
            zoned: None,
            zone_size: None,
            zones_open_max: 0,
            verify: None,
            do_verify: true,
            steady: None,
            steady_window: Duration::ZERO,
            steady_interval: Duration::from_secs(1),
            steady_ramp: Duration::ZERO,
        }
    }
}

/// Description of valid values, for an invalid one.
type Expected = String;
/// Whether the name belongs to a group of options.
type Applied = Result<bool, Expected>;

/// Largest request size in bytes; beyond it the arithmetic of rates would not be exact.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

impl Draft {
    /// Applies all options of `section`, in order. `file` names the job file in warnings.
    pub(super) fn apply(
        &mut self,
        section: &Section<'_>,
        file: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), (u32, Fault)> {
        // The meaning of `k` is determined first, because sizes in earlier lines depend on it as well.
        let (base, rest): (Vec<&Entry<'_>>, Vec<_>) =
            section.entries.iter().partition(|entry| entry.name == "kb_base");
        for entry in base.into_iter().chain(rest) {
            self.apply_entry(section.name, entry, file, warnings).map_err(|fault| (entry.line, fault))?;
        }
        Ok(())
    }

    fn apply_entry(
        &mut self,
        section: &str,
        entry: &Entry<'_>,
        file: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), Fault> {
        let Entry { line, name, value } = *entry;
        let mut warn = |text: &str| warnings.push(format!("{file}:{line}: {text}"));
        match known::fate(name) {
            None => {
                let nearest = known::nearest(name);
                return Err(Fault::Unknown { option: name.into(), section: section.into(), nearest });
            }
            Some(Fate::Meaningless) => {
                warn(&format!("`{name}` in [{section}] has no meaning on a simulated device and is ignored"));
            }
            Some(Fate::Ignored(reason)) => warn(&format!("`{name}` in [{section}] is ignored: {reason}")),
            Some(Fate::Refused(harmless, reason)) => {
                if value.is_none_or(|value| value != harmless) {
                    return Err(Fault::Refused { option: name.into(), section: section.into(), reason });
                }
            }
            Some(Fate::Supported(canonical)) => {
                self.set(canonical, value).map_err(|mut expected| {
                    let value = value.unwrap_or("").to_owned();
                    if value::is_inverted(&value, self.base) {
                        expected.push_str(
                            "; units with `i` count in powers of 1000, as in fio with kb_base=1024",
                        );
                    }
                    Fault::Value { option: name.into(), section: section.into(), value, expected }
                })?;
                match (canonical, value) {
                    ("ioengine", _) => warn(&format!(
                        "`{name}` in [{section}] has no meaning on a simulated device and is ignored"
                    )),
                    ("randrepeat" | "allrandrepeat", Some("0")) => warn(&format!(
                        "`{name}=0` in [{section}] is ignored: the seed of the world decides whether runs differ"
                    )),
                    ("bs" | "bsrange" | "bssplit" | "size" | "io_size" | "offset", Some(value))
                        if value::is_inverted(value, self.base) =>
                    {
                        warn(&format!("`{value}` counts in powers of 1000, as in fio with kb_base=1024"));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Sets the option with the canonical name `option`.
    pub(super) fn set(&mut self, option: &str, value: Option<&str>) -> Result<(), Expected> {
        if self.set_flag(option, value)? {
            return Ok(());
        }
        let value = value.unwrap_or("");
        let known = self.set_pattern(option, value)?
            || self.set_sizes(option, value)?
            || self.set_extent(option, value)?
            || self.set_limit(option, value)?
            || self.set_random(option, value)?
            || self.set_log(option, value)?
            || self.set_steady(option, value)?
            || self.set_pace(option, value)?;
        assert!(known, "`{option}` is listed as supported and has no setter");
        Ok(())
    }

    /// Sets an option that is true if it has no value.
    fn set_flag(&mut self, option: &str, value: Option<&str>) -> Applied {
        let field = match option {
            "norandommap" => &mut self.norandommap,
            "time_based" => &mut self.time_based,
            "stonewall" => &mut self.stonewall,
            "group_reporting" => &mut self.group_reporting,
            "new_group" => &mut self.new_group,
            _ => return Ok(false),
        };
        *field = value.map_or(Ok(true), flag)?;
        Ok(true)
    }

    /// Sets the name of the job or its directions.
    fn set_pattern(&mut self, option: &str, value: &str) -> Applied {
        match option {
            "name" if value.is_empty() => return Err("a name".into()),
            "name" => self.name = Some(value.into()),
            "description" => self.description = value.into(),
            "rw" => self.set_rw(value)?,
            "rw_sequencer" => {
                self.sequencer = choice(
                    value,
                    &[("sequential", Sequencer::Sequential), ("identical", Sequencer::Identical)],
                )?;
            }
            "rwmixread" => self.read_percent = percent(value)?,
            "rwmixwrite" => self.read_percent = 100 - percent(value)?,
            "stats" => self.stats = flag(value)?,
            "ioengine" => self.set_engine(value)?,
            "kb_base" => self.base = choice(value, &[("1024", KbBase::Binary), ("1000", KbBase::Decimal)])?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_rw(&mut self, value: &str) -> Result<(), Expected> {
        const EXPECTED: &str = "read, write, trim, rw, trimwrite, randread, randwrite, randtrim, randrw or \
                                randtrimwrite, with an offset modifier as in randread:8 or write:4k if wanted";
        let (name, modifier) = value.split_once(':').map_or((value, None), |(n, m)| (n, Some(m)));
        let (random, plain) = name.strip_prefix("rand").map_or((false, name), |plain| (true, plain));
        self.access = match plain {
            "read" => Access::Only(Direction::Read),
            "write" => Access::Only(Direction::Write),
            "trim" => Access::Only(Direction::Trim),
            "rw" => Access::ReadWrite,
            "readwrite" if !random => Access::ReadWrite,
            "trimwrite" => Access::TrimWrite,
            _ => return Err(EXPECTED.into()),
        };
        self.random = random;
        self.modifier = match modifier {
            None => i64::from(random),
            Some(text) if random => value::integer(text)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .map(i64::from)
                .ok_or("a count of requests above 0 after the colon, as in randread:8")?,
            Some(text) => {
                let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
                value::size(digits, self.base)
                    .and_then(|n| i64::try_from(n).ok())
                    .filter(|n| n % LBA_BYTES as i64 == 0)
                    .map(|n| sign * n)
                    .ok_or("a multiple of 512 bytes after the colon, as in write:4k or read:-8k")?
            }
        };
        Ok(())
    }

    /// Accepts engines that perform I/O on a device; others cannot be ignored.
    fn set_engine(&mut self, value: &str) -> Result<(), Expected> {
        const OTHER: [&str; 11] = [
            "cpuio",
            "net",
            "netsplice",
            "ftruncate",
            "filecreate",
            "filestat",
            "filedelete",
            "exec",
            "falloc",
            "e4defrag",
            "dircreate",
        ];
        if value.is_empty() || OTHER.contains(&value) {
            return Err("an engine that reads and writes a device, such as libaio or io_uring".into());
        }
        self.engine = Some(value.into());
        Ok(())
    }

    /// Sets request sizes and alignment.
    fn set_sizes(&mut self, option: &str, value: &str) -> Applied {
        const BS: &str = "a multiple of 512 bytes up to 1g, such as 4k, or up to three with commas for reads, \
                          writes and trims";
        const RANGE: &str = "two multiples of 512 bytes up to 1g, as in 4k-64k";
        let base = self.base;
        let one = move |text: &str| value::size(text, base).filter(|n| is_request(*n));
        match option {
            "bs" => overlay(&mut self.bs, value::triple(value, one).ok_or(BS)?),
            "bsrange" => {
                let values = value::triple(value, |t| value::range(t, one)).ok_or(RANGE)?;
                overlay(&mut self.range, values.map(|value| value.map(Some)));
            }
            "blockalign" => {
                let values = value::triple(value, one).ok_or(BS)?;
                overlay(&mut self.align, values.map(|value| value.map(Some)));
            }
            "bssplit" => {
                const SPLIT: &str =
                    "sizes with percentages, as in 4k/60:64k/40, each a multiple of 512 bytes";
                let parts = value::triple(value, |t| {
                    shares(t, |entry| {
                        let (size, share) = entry.split_once('/').unwrap_or((entry, ""));
                        Some((one(size)?, share))
                    })
                })
                .ok_or(SPLIT)?;
                if parts.iter().flatten().any(|parts| total(parts) != 100) {
                    return Err("percentages that add up to 100".into());
                }
                overlay(&mut self.split, parts);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Smallest and largest request size of a direction, in bytes.
    pub(super) fn sizes_of(&self, direction: usize) -> (u64, u64) {
        self.range[direction].unwrap_or((self.bs[direction], self.bs[direction]))
    }

    /// Sets the region of the device.
    fn set_extent(&mut self, option: &str, value: &str) -> Applied {
        let amount = value::amount(value, self.base);
        match option {
            "size" | "io_size" => {
                let amount = amount.filter(|a| !matches!(a, Amount::Bytes(0) | Amount::Percent(0)));
                let amount = amount.ok_or("a size above 0 such as 1g, or 1% to 100%")?;
                *(if option == "size" { &mut self.size } else { &mut self.io_size }) = Some(amount);
            }
            "filesize" => {
                let size = amount.and_then(|amount| match amount {
                    Amount::Bytes(bytes) if bytes > 0 && bytes % LBA_BYTES == 0 => Some(bytes),
                    _ => None,
                });
                self.filesize = Some(size.ok_or("one multiple of 512 bytes above 0 such as 1g")?);
            }
            "offset" | "offset_increment" | "share_from" => {
                let amount = amount.filter(|a| !matches!(a, Amount::Bytes(n) if n % LBA_BYTES != 0));
                let amount = amount.ok_or("a multiple of 512 bytes such as 1g, or 0% to 100%")?;
                match option {
                    "offset" => self.offset = amount,
                    "offset_increment" => self.offset_increment = amount,
                    _ => self.share_from = Some(amount),
                }
            }
            "offset_align" => {
                let align = value::size(value, self.base).filter(|n| n % LBA_BYTES == 0);
                self.offset_align =
                    Some(align.ok_or("a multiple of 512 bytes such as 1m")?).filter(|n| *n > 0);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets limits and durability.
    fn set_limit(&mut self, option: &str, value: &str) -> Applied {
        match option {
            "numjobs" => self.numjobs = count(value, 1, 1 << 16)?,
            "iodepth" => self.iodepth = count(value, 1, 1 << 20)?,
            "fsync" => self.fsync = count(value, 0, u32::MAX)?,
            "fdatasync" => self.fdatasync = count(value, 0, u32::MAX)?,
            "end_fsync" => self.end_fsync = flag(value)?,
            "fsync_on_close" => self.fsync_on_close = flag(value)?,
            "verify" => self.verify = verify(value)?,
            "do_verify" => self.do_verify = flag(value)?,
            "writefua" => self.write_fua = flag(value)?,
            "sync" => {
                self.sync = choice(
                    value,
                    &[("none", false), ("0", false), ("sync", true), ("1", true), ("dsync", true)],
                )?;
            }
            "fdp" => self.places = flag(value)?,
            "dataplacement" => self.places = choice(value, &[("none", false), ("fdp", true)])?,
            "fdp_pli" | "plids" => {
                let one = |id: &str| count(id.trim(), 0, u32::from(Handle::COUNT_MAX) - 1).ok();
                let ids = value.split(',').map(|id| Some(Handle(one(id)? as u8))).collect::<Option<_>>();
                self.handles =
                    ids.ok_or_else(|| format!("numbers from 0 to {}, as in 0,2", Handle::COUNT_MAX - 1))?;
            }
            "fdp_pli_select" | "plid_select" => {
                self.handles_in_turn = choice(value, &[("random", false), ("roundrobin", true)])?;
            }
            "zonemode" => self.zoned = Some(choice(value, &[("none", false), ("zbd", true)])?),
            "zonesize" => {
                let size = value::size(value, self.base).filter(|n| n % LBA_BYTES == 0);
                self.zone_size = Some(size.ok_or("a multiple of 512 bytes such as 16m")?).filter(|n| *n > 0);
            }
            "max_open_zones" => self.zones_open_max = count(value, 0, u32::MAX)?,
            "runtime" => self.runtime = Some(seconds(value)?).filter(|span| *span > Duration::ZERO),
            "ramp_time" => self.ramp = seconds(value)?,
            "startdelay" => {
                let one = |text: &str| value::time(text, 1_000_000_000);
                let span = one(value).map(|span| (span, span)).or_else(|| value::range(value, one));
                self.start_delay = span.ok_or("a time such as 5 or 500ms, or a range such as 1-3")?;
            }
            "loops" => self.loops = u64::from(count(value, 1, u32::MAX)?),
            "number_ios" => {
                let number = value::size(value, self.base).ok_or("a count such as 100000 or 100k")?;
                self.number_ios = Some(number).filter(|number| *number > 0);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets options about randomness.
    fn set_random(&mut self, option: &str, value: &str) -> Applied {
        match option {
            "random_distribution" => self.law = law(value, self.base)?,
            "random_generator" => {
                self.lfsr = choice(value, &[("tausworthe", false), ("lfsr", true), ("tausworthe64", false)])?;
            }
            "percentage_random" => {
                let values = value::triple(value, |t| percent(t).ok());
                overlay(&mut self.random_percent, values.ok_or("percentages from 0 to 100")?);
            }
            "randseed" => self.seed = Some(value::integer(value).ok_or("a whole number")?),
            "randrepeat" | "allrandrepeat" => {
                flag(value)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets options about logs.
    fn set_log(&mut self, option: &str, value: &str) -> Applied {
        match option {
            // Without a value, a name that was given before is kept, as in fio.
            "write_bw_log" | "write_lat_log" | "write_iops_log" => {
                let name = match option {
                    "write_bw_log" => &mut self.log_bw,
                    "write_lat_log" => &mut self.log_lat,
                    _ => &mut self.log_iops,
                };
                if name.is_none() || !value.is_empty() {
                    *name = Some(value.into());
                }
            }
            "log_avg_msec" => {
                let ms = value::integer(value).filter(|ms| *ms <= 86_400_000);
                self.log_average =
                    Duration::from_millis(ms.ok_or("milliseconds such as 500, or 0 for every request")?);
            }
            "log_max_value" => self.log_max = flag(value)?,
            "log_offset" => self.log_offset = flag(value)?,
            "per_job_logs" => self.per_job_logs = flag(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the criterion of a steady state.
    fn set_steady(&mut self, option: &str, value: &str) -> Applied {
        const EXPECTED: &str =
            "iops, iops_slope, bw or bw_slope with a limit above 0, as in iops:5%, bw_slope:0.3% or bw:10m";
        match option {
            "steadystate" => {
                let (name, limit) = value.split_once(':').ok_or(EXPECTED)?;
                let (what, slope) = name.strip_suffix("_slope").map_or((name, false), |what| (what, true));
                let is_bandwidth = choice(what, &[("iops", false), ("bw", true)]).map_err(|_| EXPECTED)?;
                let percent = limit.trim().strip_suffix('%');
                let number = match percent {
                    Some(percent) => percent.trim().parse().ok(),
                    None if is_bandwidth => value::size(limit, self.base).map(|bytes| bytes as f64),
                    None => limit.trim().parse().ok(),
                };
                let number =
                    number.filter(|number: &f64| number.is_finite() && *number > 0.0).ok_or(EXPECTED)?;
                self.steady = Some((is_bandwidth, slope, number, percent.is_some()));
            }
            "steadystate_duration" => self.steady_window = seconds(value)?,
            "steadystate_ramp_time" => self.steady_ramp = seconds(value)?,
            "steadystate_check_interval" => {
                let interval = seconds(value)?;
                if interval < Duration::from_millis(1) {
                    return Err("1ms or more".into());
                }
                self.steady_interval = interval;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets rates and pauses.
    fn set_pace(&mut self, option: &str, value: &str) -> Applied {
        let base = self.base;
        match option {
            "thinktime" => {
                self.think = value::time(value, 1_000).ok_or("a time such as 100 (microseconds) or 2ms")?;
            }
            "thinktime_blocks" => self.think_blocks = Some(count(value, 1, u32::MAX)?),
            // A pause is due after this number of requests, and no more are issued before it, so issued and completed
            // requests are the same here.
            "thinktime_blocks_type" => choice(value, &[("complete", ()), ("issue", ())])?,
            "thinktime_iotime" => self.think_after = Some(seconds(value)?).filter(|t| *t > Duration::ZERO),
            "rate" => {
                const EXPECTED: &str = "bytes per second such as 100m, or up to three with commas";
                overlay(&mut self.rate, value::triple(value, |t| value::size(t, base)).ok_or(EXPECTED)?);
            }
            "rate_iops" => {
                const EXPECTED: &str = "requests per second such as 20k, or up to three with commas";
                overlay(&mut self.rate_iops, value::triple(value, |t| value::size(t, base)).ok_or(EXPECTED)?);
            }
            "rate_process" => {
                self.process = choice(value, &[("linear", Process::Linear), ("poisson", Process::Poisson)])?;
            }
            "rate_ignore_thinktime" => self.rate_ignore_thinktime = flag(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses a verification mode. The kinds of header differ only in CPU work, which is not modelled.
fn verify(value: &str) -> Result<Option<Verify>, Expected> {
    const HEADERS: [&str; 18] = [
        "md5",
        "crc64",
        "crc32c",
        "crc32c-intel",
        "crc32",
        "crc16",
        "crc7",
        "xxhash",
        "sha512",
        "sha256",
        "sha1",
        "sha3-224",
        "sha3-256",
        "sha3-384",
        "sha3-512",
        "meta",
        "pattern",
        "pattern_hdr",
    ];
    match value {
        "none" | "0" => Ok(None),
        "null" => Ok(Some(Verify::Read)),
        header if HEADERS.contains(&header) => Ok(Some(Verify::Compare)),
        _ => Err(format!("none, null, {}", HEADERS.join(", "))),
    }
}

fn is_request(bytes: u64) -> bool {
    bytes > 0 && bytes <= REQUEST_BYTES_MAX && bytes.is_multiple_of(LBA_BYTES)
}

/// Replaces the entries that have a new value.
fn overlay<T>(old: &mut [T; 3], new: [Option<T>; 3]) {
    for (old, new) in old.iter_mut().zip(new) {
        if let Some(new) = new {
            *old = new;
        }
    }
}

fn flag(value: &str) -> Result<bool, Expected> {
    choice(value, &[("0", false), ("1", true)])
}

fn percent(value: &str) -> Result<u8, Expected> {
    let number = value::integer(value).filter(|n| *n <= 100).and_then(|n| u8::try_from(n).ok());
    number.ok_or_else(|| "a percentage from 0 to 100".into())
}

fn seconds(value: &str) -> Result<Duration, Expected> {
    value::time(value, 1_000_000_000).ok_or_else(|| value::TIME.into())
}

fn count(value: &str, min: u32, max: u32) -> Result<u32, Expected> {
    let number = value::integer(value).and_then(|n| u32::try_from(n).ok());
    number.filter(|n| (min..=max).contains(n)).ok_or_else(|| format!("a whole number from {min} to {max}"))
}

fn choice<T: Copy>(value: &str, options: &[(&str, T)]) -> Result<T, Expected> {
    options.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
        let (last, first) = names.split_last().expect("a choice has at least one option");
        format!("{} or {last}", first.join(", "))
    })
}

/// Parses parts separated by colons, each with an optional percentage. The rest of 100 is shared evenly among the parts
/// without a percentage, the first of them getting the remainder.
fn shares<T>(text: &str, one: impl Fn(&str) -> Option<(T, &str)>) -> Option<Vec<(T, u8)>> {
    let mut parts: Vec<(T, Option<u8>)> = Vec::new();
    for entry in text.split(':') {
        let (what, share) = one(entry.trim())?;
        let share = if share.is_empty() { None } else { Some(percent(share).ok()?) };
        parts.push((what, share));
    }
    let given: u32 = parts.iter().filter_map(|(_, share)| *share).map(u32::from).sum();
    let open = parts.iter().filter(|(_, share)| share.is_none()).count() as u32;
    let left = 100u32.saturating_sub(given);
    let mut spare = if open > 0 { left % open } else { 0 };
    let filled = parts.into_iter().map(|(what, share)| {
        let share = share.unwrap_or_else(|| {
            let share = left / open + std::mem::take(&mut spare);
            u8::try_from(share).expect("a share of 100 fits a byte")
        });
        (what, share)
    });
    Some(filled.collect())
}

fn total<T>(parts: &[(T, u8)]) -> u32 {
    parts.iter().map(|(_, share)| u32::from(*share)).sum()
}

/// Parses a value of `random_distribution`.
fn law(text: &str, base: KbBase) -> Result<Law, Expected> {
    let (name, rest) = text.split_once([':', '=']).map_or((text, None), |(n, rest)| (n, Some(rest)));
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
    let pair = |default: f64| -> Option<(f64, Option<f64>)> {
        let Some(rest) = rest else { return Some((default, None)) };
        let (input, centre) = rest.split_once(':').map_or((rest, None), |(i, c)| (i, Some(c)));
        let centre = match centre {
            Some(centre) => Some(number(centre).filter(|c| (0.0..=1.0).contains(c))?),
            None => None,
        };
        Some((number(input)?, centre))
    };
    match name {
        "random" if rest.is_none() => Ok(Law::Uniform),
        "zipf" => match pair(1.1) {
            Some((theta, centre)) if theta > 0.0 && theta != 1.0 => Ok(Law::Zipf(theta, centre)),
            _ => Err("zipf:theta with theta above 0 and not 1, and a centre from 0 to 1 if wanted".into()),
        },
        "pareto" => match pair(0.2) {
            Some((h, centre)) if h > 0.0 && h < 1.0 => Ok(Law::Pareto(h, centre)),
            _ => Err("pareto:h with h between 0 and 1, and a centre from 0 to 1 if wanted".into()),
        },
        "normal" => match pair(0.0) {
            Some((dev, centre)) if (0.0..100.0).contains(&dev) => Ok(Law::Normal(dev, centre)),
            _ => Err("normal:deviation from 0 to below 100, and a centre from 0 to 1 if wanted".into()),
        },
        "zoned" | "zoned_abs" => zones(name == "zoned_abs", rest.unwrap_or(""), base),
        _ => {
            Err("random, zipf:theta, pareto:h, normal:deviation, zoned:60/10:40/90 or zoned_abs:60/1g:40/9g"
                .into())
        }
    }
}

/// Parses the zones of a distribution: percentage of the requests, then size.
fn zones(absolute: bool, text: &str, base: KbBase) -> Result<Law, Expected> {
    let zone = |entry: &str| -> Option<(u8, Option<Amount>)> {
        let (access, size) = entry.trim().split_once('/')?;
        let access = percent(access).ok()?;
        let size = match (size, absolute) {
            ("", _) => None,
            (size, true) => Some(Amount::Bytes(value::size(size, base).filter(|n| n % LBA_BYTES == 0)?)),
            (size, false) => Some(Amount::Percent(percent(size).ok()?)),
        };
        Some((access, size))
    };
    let list = |text: &str| -> Option<Vec<(u8, Amount)>> {
        let zones: Vec<_> = text.split(':').map(zone).collect::<Option<_>>()?;
        let given = zones.iter().filter_map(|(_, size)| match size {
            Some(Amount::Percent(p)) => Some(u32::from(*p)),
            _ => None,
        });
        let left = 100u32.checked_sub(given.sum())?;
        let open = zones.iter().filter(|(_, size)| size.is_none()).count() as u32;
        if open > 0 && (absolute || left < open) {
            return None;
        }
        let fill = |size: Option<Amount>| size.unwrap_or_else(|| Amount::Percent((left / open) as u8));
        Some(zones.into_iter().map(|(access, size)| (access, fill(size))).collect())
    };
    let values = value::triple(text, list).ok_or_else(|| {
        let sizes = if absolute { "60/1g:40/9g" } else { "60/10:40/90" };
        format!("zones of requests and sizes in per cent or bytes, as in {sizes}")
    })?;
    let mut by_direction = [const { Vec::new() }; 3];
    overlay(&mut by_direction, values);
    // A direction without zones of its own takes those of the first direction that has some.
    let first = by_direction.iter().find(|zones| !zones.is_empty()).cloned().unwrap_or_default();
    for zones in by_direction.iter_mut().filter(|zones| zones.is_empty()) {
        zones.clone_from(&first);
    }
    let whole =
        |zones: &Vec<(u8, Amount)>| zones.iter().map(|(access, _)| u32::from(*access)).sum::<u32>() == 100;
    if !by_direction.iter().all(whole) {
        return Err("zones whose percentages of requests add up to 100".into());
    }
    Ok(Law::Zoned(by_direction))
}
