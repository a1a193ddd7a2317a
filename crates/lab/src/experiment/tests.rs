use super::*;
use flashweir_sim::precondition::{Mode, Precondition};
use flashweir_workload::trace::{Fit, ReadOptions};
use std::sync::atomic::AtomicUsize;

const SMALL: &str =
    "preset = \"mqsim-small-ideal\"\nset = { \"geometry.channels\" = 2, \"ftl.over_provisioning\" = 0.3 }\n";

/// Two small devices, two workloads and two seeds.
fn scenario() -> Scenario {
    let text = format!(
        "name = 'x'\nseeds = 2\nprecondition = {{ mode = 'instant', overwrite = 0.5 }}\n\
         [[device]]\nname = 'a'\n{SMALL}\n[[device]]\nname = 'b'\nftl.gc.policy = 'fifo'\n{SMALL}\n\
         [[workload]]\nname = 'read'\nfio_inline = '''\n[r]\nrw=randread\nbs=8k\niodepth=4\nnumber_ios=2000\n'''\n\
         [[workload]]\nname = 'write'\nfio_inline = '''\n[w]\nrw=randwrite\nbs=8k\nnumjobs=2\nnumber_ios=3000\n'''\n"
    );
    Scenario::parse("x.toml", &text, &[], &|_| Err("no files".into())).unwrap_or_else(|e| panic!("{e}"))
}

fn run(experiment: &Experiment, threads: usize) -> Vec<Outcome> {
    experiment.run(threads, &AtomicBool::new(false), &|_| ()).expect("nobody cancels")
}

#[test]
fn results_do_not_depend_on_threads() {
    let experiment = Experiment::new(scenario()).unwrap();
    let text = |threads| {
        let results: Vec<_> = run(&experiment, threads).into_iter().map(|outcome| outcome.result).collect();
        serde_json::to_string(&results).unwrap()
    };
    let one = text(1);
    assert_eq!(one, text(2));
    assert_eq!(one, text(64));
}

#[test]
fn outcomes_follow_the_cells() {
    let experiment = Experiment::new(scenario()).unwrap();
    let outcomes = run(&experiment, 3);
    assert_eq!(outcomes.len(), 8);
    for (outcome, cell) in outcomes.iter().zip(experiment.cells()) {
        let result = &outcome.result;
        assert_eq!(result.device, experiment.scenario().devices[cell.device].name);
        assert_eq!(result.workload, experiment.scenario().workloads[cell.workload].name);
        assert_eq!(result.seed, cell.seed);
        assert_eq!((outcome.errors, outcome.requests > 0), (0, true));
    }
    assert_eq!(experiment.cell_name(7), "b, write, seed 2");
    let names: Vec<_> = outcomes[4].result.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["w.0", "w.1"]);
}

#[test]
fn a_shared_state_is_the_state_of_a_cell_alone() {
    let all = run(&Experiment::new(scenario()).unwrap(), 1);
    let mut alone = scenario();
    alone.workloads.remove(0);
    let alone = run(&Experiment::new(alone).unwrap(), 1);
    assert_eq!(all[4..], alone);
}

#[test]
fn every_cell_reports_until_it_is_done() {
    let experiment = Experiment::new(scenario()).unwrap();
    let reports: Vec<Mutex<Vec<Report>>> = experiment.cells().iter().map(|_| Mutex::default()).collect();
    let observe = |report: Report| reports[report.cell].lock().unwrap().push(report);
    experiment.run(2, &AtomicBool::new(false), &observe).unwrap();
    let mut prepared = 0;
    for reports in reports {
        let reports = reports.into_inner().unwrap();
        prepared += usize::from(reports[0].stage == Stage::Preparing);
        assert_eq!(reports.last().map(|r| (r.stage, r.fraction)), Some((Stage::Done, Some(1.0))));
        assert!(reports.iter().flat_map(|r| r.fraction).all(|fraction| (0.0..=1.0).contains(&fraction)));
    }
    assert_eq!(prepared, 4, "two devices with two seeds");
}

/// Runs a job on the first device.
fn result_of(job: &str) -> RunResult {
    let mut scenario = scenario();
    scenario.workloads.truncate(1);
    scenario.workloads[0].source = Source::Fio { file: "x.fio".into(), text: job.into() };
    let experiment = Experiment::new(scenario).unwrap();
    let outcomes = experiment.run(1, &AtomicBool::new(false), &|_| ()).unwrap();
    outcomes[0].result.clone()
}

/// The delay was a part of the measured time, so rates were too low by as much.
#[test]
fn regression_a_delay_before_a_job_is_not_measured() {
    let span = |options: &str| {
        let text = format!("[r]\nrw=randread\nbs=8k\nsize=1m\ntime_based\nruntime=20ms\n{options}");
        result_of(&text).jobs[0].span_ns()
    };
    let without = span("");
    assert!(span("startdelay=1s\n").abs_diff(without) < 1_000_000, "{without}");
}

/// Writes and the reads that verified them shared the time of both, so the rates of both were too low.
#[test]
fn regression_the_time_of_a_read_back_is_not_that_of_the_writes() {
    let job = "[w]\nrw=write\nbs=8k\nsize=512k\n";
    let (alone, verified) = (result_of(job), result_of(&format!("{job}verify=md5")));
    let (alone, verified) = (&alone.jobs[0], &verified.jobs[0]);
    let [write, read] = [Kind::Write, Kind::Read].map(|kind| verified.kind(kind).unwrap());
    assert_eq!(verified.iops(write), alone.iops(alone.kind(Kind::Write).unwrap()));
    let parts = [write, read].map(|kind| verified.span_of_ns(kind));
    assert_eq!(parts.iter().sum::<u64>(), verified.span_ns());
    for kind in [write, read] {
        assert_eq!(verified.intervals(kind).map(|i| i.requests).sum::<u64>(), 64);
        assert_eq!(verified.intervals(kind).map(|i| i.length_ns).sum::<u64>(), verified.span_of_ns(kind));
    }
}

/// The counters of the device had the writes of the ramp, and of jobs whose results do not count.
#[test]
fn regression_a_ramp_is_not_in_the_counters_of_the_device() {
    let fill = "[f]\nrw=write\nbs=8k\nsize=1m\nstats=0\n";
    let job = "[w]\nstonewall\nrw=write\nbs=8k\nsize=1m\nramp_time=2ms\nruntime=5ms\ntime_based\n";
    let result = result_of(&format!("{fill}{job}"));
    let measured = &result.jobs[0];
    assert!(result.counted_from_ns >= measured.start_ns && measured.start_ns > 2_000_000);
    let bytes = measured.kind(Kind::Write).unwrap().bytes;
    let counted = result.totals.host_written_bytes;
    // Requests that were in flight at the end of the ramp are in one of the two.
    assert!(counted.abs_diff(bytes) <= 16 << 10, "{counted} {bytes}");
}

/// A job ended with its last request, so a long pause or a low rate at the end was not in its time.
#[test]
fn regression_a_pause_at_the_end_is_a_part_of_the_job() {
    let job =
        "[r]\nrw=randread\nbs=8k\nsize=1m\ntime_based\nruntime=20ms\nthinktime=15ms\nthinktime_blocks=1";
    assert_eq!(result_of(job).jobs[0].span_ns(), 20_000_000);
}

/// Each interval of a pause of a year was materialised.
#[test]
fn regression_idle_intervals_cost_nothing() {
    let job = "[r]\nrw=randread\nbs=8k\nsize=1m\nnumber_ios=3\nthinktime=200d";
    let result = result_of(job);
    let job = &result.jobs[0];
    let read = job.kind(Kind::Read).unwrap();
    let (values, idle) = job.busy_intervals(read, |interval| interval.iops());
    assert_eq!(values.len() as u64 + idle, job.span_ns() / job.interval_ns);
    assert!(idle > 1 << 20);
    assert_eq!(job.full_rates(read, 1000).len(), 1000);
    assert!(!crate::results::shortfalls(job, read).is_empty());
}

#[test]
fn cancelling_ends_the_run_without_results() {
    let mut endless = scenario();
    endless.workloads.truncate(1);
    endless.workloads[0].source = Source::Fio {
        file: "x.fio".into(),
        text: "[r]\nrw=randread\nbs=8k\ntime_based\nruntime=10d\n".into(),
    };
    let experiment = Experiment::new(endless).unwrap();
    let (cancel, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let observe = |report: Report| {
        if report.stage == Stage::Running && calls.fetch_add(1, Ordering::Relaxed) == 3 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let outcomes = experiment.run_traced(2, &cancel, &observe, &|_| Wanted::default());
    // Cells that had begun have an outcome, which says that it is incomplete.
    let begun: Vec<bool> = outcomes.iter().flatten().map(|(outcome, _)| outcome.stopped).collect();
    assert!(!begun.is_empty() && begun.iter().all(|&stopped| stopped), "{begun:?}");
    let at_once = AtomicBool::new(true);
    assert_eq!(experiment.run(2, &at_once, &|_| ()), None);
}

#[test]
fn what_does_not_fit_is_said_before_anything_runs() {
    let mut wrong = scenario();
    wrong.workloads[0].source = Source::Trace {
        file: "/nonexistent/x.trace".into(),
        read: ReadOptions::default(),
        replay: ReplayConfig::default(),
    };
    let error = Experiment::new(wrong.clone()).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/x.trace: cannot be read: "), "{error}");
    wrong.workloads[0].source = Source::Fio { file: "x.fio".into(), text: "[r]\nsize=1t\n".into() };
    let error = Experiment::new(wrong).unwrap_err().to_string();
    assert!(error.starts_with("x.fio:1: [r] reaches beyond the device: "), "{error}");
    assert!(error.ends_with(" (on device a)"), "{error}");
}

#[test]
fn a_trace_is_read_once_and_replayed_on_each_device() {
    let path = std::env::temp_dir().join(format!("flashweir-experiment-{}.trace", std::process::id()));
    let lines: String = (0..200).map(|i| format!("{} 0 {} 16 {}\n", i * 10_000, i * 16, i % 2)).collect();
    std::fs::write(&path, lines).unwrap();
    let mut scenario = scenario();
    scenario.workloads.truncate(1);
    scenario.workloads[0].source = Source::Trace {
        file: path.clone(),
        read: ReadOptions::default(),
        replay: ReplayConfig { fit: Fit::Wrap, repeat: 2, ..ReplayConfig::default() },
    };
    let experiment = Experiment::new(scenario).unwrap();
    std::fs::remove_file(&path).unwrap();
    let outcomes = run(&experiment, 2);
    assert!(outcomes.iter().all(|outcome| outcome.requests == 400));
    assert_eq!(outcomes[0].result.jobs[0].options["timing"], "original");
}

/// A device that was aged by writing is idle when its workload begins, as after instant preconditioning.
#[test]
fn ageing_by_writing_leaves_a_device_that_works() {
    let mut aged = scenario();
    aged.devices.truncate(1);
    aged.seeds.truncate(1);
    aged.precondition = Precondition { mode: Mode::AgeByWriting, ..Precondition::default() };
    let outcomes = run(&Experiment::new(aged).unwrap(), 1);
    assert!(outcomes.iter().all(|outcome| outcome.errors == 0));
}

fn specs(text: &str) -> Vec<JobSpec> {
    parse_job_file("x.fio", text, Bytes::gib(1)).unwrap_or_else(|e| panic!("{e}")).jobs
}

#[test]
fn options_are_those_of_fio() {
    for (text, expected) in [
        ("rw=randread\nbs=4096", "bs=4k iodepth=1 name=j numjobs=1 rw=randread size=1g"),
        (
            "rw=randrw:8\nrwmixread=70\nnorandommap\nruntime=1m\ntime_based\nramp_time=500ms",
            "bs=4k iodepth=1 name=j norandommap=1 numjobs=1 ramp_time=500ms runtime=60s rw=randrw:8 rwmixread=70 size=1g \
          time_based=1",
        ),
        (
            "rw=write:12k\nsize=10m\noffset=1m\nfsync=8\nend_fsync=1\nloops=2",
            "bs=4k end_fsync=1 fsync=8 io_size=20m iodepth=1 name=j numjobs=1 offset=1m rw=write:12k size=10m",
        ),
        ("rw=rw\nbs=4k,8k", "bs=4k,8k,8k iodepth=1 name=j numjobs=1 rw=rw rwmixread=50 size=1g"),
        ("rw=read:-8k\nbsrange=4k-16k", "bsrange=4k-16k iodepth=1 name=j numjobs=1 rw=read:-8k size=1g"),
        (
            "rw=randwrite\nbssplit=4k/80:16k/20\nrandom_distribution=zipf:1.2\nrate_iops=100\nrate_process=poisson",
            "bssplit=4k/80:16k/20 iodepth=1 name=j numjobs=1 random_distribution=zipf:1.2 rate=400k rate_process=poisson \
          rw=randwrite size=1g",
        ),
        (
            "rw=randtrim\nnumber_ios=7\nthinktime=3ms\nthinktime_blocks=4\nstartdelay=1-2\nrandseed=9\nblockalign=8k",
            "blockalign=8k bs=4k iodepth=1 name=j norandommap=1 number_ios=7 numjobs=1 randseed=9 rw=randtrim size=1g \
          startdelay=1s-2s thinktime=3ms thinktime_blocks=4",
        ),
        (
            "rw=write\nverify=md5\nwrite_bw_log=x\nlog_avg_msec=50\nlog_offset=1\nper_job_logs=0\nss=bw:10k\nss_dur=9\nss_interval=3",
            "bs=4k iodepth=1 log_avg_msec=50 log_offset=1 name=j numjobs=1 per_job_logs=0 rw=write size=1g steadystate=bw:10240 \
             steadystate_check_interval=3s steadystate_duration=9s verify=meta write_bw_log=x",
        ),
    ] {
        let spec = specs(&format!("[j]\n{text}\n")).remove(0);
        let options = options::options(&spec);
        let line: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(line.join(" "), expected, "{text}");
        // A job file of these options gives the same job.
        let again: String = options.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        assert_eq!(specs(&format!("[j]\n{again}")).remove(0), spec, "{again}");
    }
}

#[test]
fn entries_of_the_report_have_names_of_their_own() {
    for (text, expected) in [
        ("[a]\n[b]\n", "0 a, 1 b"),
        ("[a]\nnumjobs=2\n[a]\n", "0 a.0, 1 a.1, 2 a.0#2"),
        ("[a]\nnumjobs=2\ngroup_reporting\n[b]\n", "0 a, 0 a, 1 b"),
        ("[global]\ngroup_reporting\n[a]\n[b]\n[c]\nnew_group\n[a]\n", "0 a, 0 a, 1 c, 1 c"),
        ("[a]\ngroup_reporting\n[a]\nnew_group\ngroup_reporting\n", "0 a, 1 a#2"),
    ] {
        let seen: Vec<_> =
            reported(&specs(text)).into_iter().map(|(entry, name)| format!("{entry} {name}")).collect();
        assert_eq!(seen.join(", "), expected, "{text}");
    }
}

#[test]
fn the_length_of_a_run_is_known_where_it_can_be() {
    let extent = |text: &str| Plan::Fio(specs(text), None).extent();
    let seconds = |s| Some(Duration::from_secs(s));
    let timed =
        "[a]\ntime_based\nruntime=3\nramp_time=1\n[b]\ntime_based\nruntime=2\n[c]\nstonewall\nruntime=5\n";
    assert_eq!(extent(timed).time, seconds(9));
    assert_eq!(extent(timed).requests, None);
    let counted = extent("[a]\nbs=4k\nsize=4m\n[b]\nnumber_ios=10\n");
    assert_eq!(counted, Extent { time: None, requests: Some(1034) });
    assert_eq!(Plan::Fio(specs("[a]\nruntime=250ms\n"), None).interval(), Duration::from_micros(12_500));
    assert_eq!(Plan::Fio(specs("[a]\nruntime=1d\n"), None).interval(), INTERVAL_MAX);
    assert_eq!(Plan::Fio(specs("[a]\n"), None).interval(), INTERVAL_UNKNOWN);
}

/// A job and a trace, both with requests for adjacent addresses.
#[test]
fn jobs_and_traces_run_on_a_block_layer() {
    let path = std::env::temp_dir().join(format!("weir-layer-{}.trace", std::process::id()));
    let lines = (0..3000u64).map(|at| format!("{} 0 {} 16 {}\n", at / 30 * 1000, at * 16, at / 1000 % 2));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    let text = format!(
        "name = 'x'\ntrack_contents = true\n[[device]]\n{SMALL}\n[[workload]]\nname = 'job'\nfio_inline = '''\n[w]\n\
         rw=write\nbs=8k\niodepth=64\nnumber_ios=3000\nverify=md5\n'''\n[[workload]]\nname = 'trace'\n\
         trace = {{ file = '{}', format = 'mqsim' }}\n",
        path.display()
    );
    let run = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let scenario = Scenario::parse("x.toml", &text, &overrides, &|_| Err("no files".into()));
        run(&Experiment::new(scenario.unwrap_or_else(|e| panic!("{e}"))).unwrap(), 2)
    };
    let count = |outcome: &Outcome, name: &str| match outcome.result.metrics.get(name) {
        Some(flashweir_sim::measure::MetricValue::Count(count)) => *count,
        other => panic!("{name}: {other:?}"),
    };
    let without = run(&[]);
    let merging = run(&["block_layer.scheduler=deadline", "block_layer.depth=4"]);
    let alone = run(&["block_layer.scheduler=none", "block_layer.merge_blocks_max=0"]);
    std::fs::remove_file(&path).unwrap();
    for ((without, merging), alone) in without.iter().zip(&merging).zip(&alone) {
        for outcome in [without, merging, alone] {
            assert_eq!((outcome.errors, outcome.requests), (0, without.requests), "{outcome:?}");
        }
        assert!(!without.result.metrics.keys().any(|name| name.starts_with("block_layer.")));
        let [commands, merged] = [alone, merging].map(|outcome| count(outcome, "block_layer.dispatched"));
        assert_eq!(count(merging, "block_layer.submitted"), without.requests);
        assert!(commands == without.requests && merged < commands / 2, "{merged} of {commands}");
    }
}

/// Small open channels below host FTLs, full and written over, with this job.
fn above_host_ftls(job: &str, more: &str) -> Result<Experiment, String> {
    let device = |assembly: &str| {
        format!(
            "[[device]]\npreset = 'qblke'\nname = '{assembly}'\nset = {{ \"geometry.channels\" = 2, \"geometry.pages_per_block\" = 16 }}\n\
             host_ftl = {{ assembly = '{assembly}', rings = 2 }}\n"
        )
    };
    let (pblk, qblke) = (device("pblk"), device("qblke"));
    let text = format!(
        "name = 'x'\nprecondition = {{ mode = 'instant', overwrite = 0.2 }}\n{pblk}{qblke}[[workload]]\nname = 'w'\n\
         fio_inline = '''\n{job}\n'''\n{more}\n"
    );
    let scenario = Scenario::parse("x.toml", &text, &[], &|_| Err("no files".into()))
        .map_err(|error| error.to_string())?;
    Experiment::new(scenario).map_err(|error| error.to_string())
}

/// fio's sizes are parts of what the host FTL leaves; what was written over all of it is read back.
#[test]
fn jobs_above_host_ftls_are_verified() {
    for more in ["", "[block_layer]\nscheduler = 'deadline'"] {
        let job = "[w]\nrw=randwrite\nbs=16k\niodepth=8\nnumjobs=2\noffset_increment=50%\nsize=50%\nfsync=100\nverify=meta";
        let experiment = above_host_ftls(job, more).unwrap();
        let outcomes = run(&experiment, 2);
        assert_eq!(outcomes.len(), 2);
        for outcome in &outcomes {
            assert_eq!((outcome.errors, &outcome.first_error), (0, &None), "{more}");
            let written = outcome.result.totals.host_written_bytes;
            let physical = 2 * 4 * 2 * 32 * 16 * (16 << 10);
            assert!((physical * 80 / 100..physical * 90 / 100).contains(&written), "{written} of {physical}");
            let kinds = outcome.result.jobs.iter().flat_map(|job| &job.kinds);
            let read: u64 = kinds.filter(|kind| kind.kind == Kind::Read).map(|kind| kind.bytes).sum();
            assert_eq!(read, written, "everything is read back");
            assert_eq!(outcome.result.metrics.contains_key("block_layer.submitted"), !more.is_empty());
        }
        assert_eq!(run(&experiment, 1), outcomes, "a run is a function of its scenario");
    }
}

#[test]
fn parts_of_mapping_units_are_refused_above_a_host_ftl() {
    let error = above_host_ftls("[w]\nrw=randwrite\nbs=2k\nsize=1m", "").unwrap_err();
    assert!(
        error.contains("a host FTL takes whole mapping units: expected writes that are multiples of 4KiB in size and place"),
        "{error}"
    );
    assert!(above_host_ftls("[w]\nrw=randread\nbs=2k\nsize=1m", "").is_ok());
}
