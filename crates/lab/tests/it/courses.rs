//! Courses of whole experiments: their columns add up to the counters, and keeping courses changes nothing.

use flashweir_lab::experiment::{Experiment, Outcome};
use flashweir_lab::scenario::Scenario;
use flashweir_sim::measure::{COLUMNS_MAX, MetricValue};
use std::sync::atomic::AtomicBool;

/// Two preconditioned devices under reads, writes and flushes; reads of one suspend programs and erases.
fn outcomes(with_courses: bool) -> Vec<Outcome> {
    let text = "name = 'x'\nprecondition = { mode = 'instant', overwrite = 0.5 }\n\
        [[device]]\npreset = 'barrier-ufs'\ngeometry.blocks_per_plane = 32\nftl.over_provisioning = 0.3\n\
        timing.suspend = { latency = '5us', program = true, erase = true, max_per_operation = 4 }\n\
        [[device]]\npreset = 'mqsim-small-ideal'\ngeometry.channels = 2\nftl.over_provisioning = 0.3\n\
        [[workload]]\nname = 'w'\nfio_inline = '''\n[j]\nrw=randrw\nbs=8k\niodepth=16\nfsync=32\n\
        number_ios=8000\n[k]\nrw=randread\nbs=32k\nnumber_ios=300\n'''\n";
    let scenario = Scenario::parse("x.toml", text, &[], &|_| Err("no files".into()));
    let mut experiment = Experiment::new(scenario.unwrap_or_else(|e| panic!("{e}"))).unwrap();
    if with_courses {
        experiment.keep_courses();
    }
    experiment.run(1, &AtomicBool::new(false), &|_| ()).expect("nobody cancels")
}

#[test]
fn columns_add_up_to_what_the_run_counted() {
    for outcome in outcomes(true) {
        let run = outcome.result;
        let course = run.course.as_deref().expect("it was asked for");
        let metric = |name: &str| match run.metrics[&format!("device.{name}")] {
            MetricValue::Count(count) => count,
            MetricValue::Ratio(_) => panic!("{name} is a count"),
        };
        for (numbers, name) in [
            (&course.host_units, "host_units_written"),
            (&course.user_units, "user_units_programmed"),
            (&course.gc_units, "gc_units_moved"),
            (&course.filler_units, "filler_units"),
            (&course.meta_units, "meta_units"),
            (&course.erases, "erases"),
        ] {
            assert_eq!(numbers.iter().sum::<u64>(), metric(name), "{name}");
        }
        assert!(metric("erases") > 0 && metric("gc_units_moved") > 0, "there is something to add up");
        let jobs = || run.jobs.iter().flat_map(|job| &job.kinds);
        for requests in &course.requests {
            let of_kind = || jobs().filter(|kind| kind.kind == requests.kind);
            assert_eq!(requests.count.iter().sum::<u64>(), of_kind().map(|k| k.requests).sum::<u64>());
            assert_eq!(requests.bytes.iter().sum::<u64>(), of_kind().map(|k| k.bytes).sum::<u64>());
            assert_eq!(requests.count.len(), course.request_columns().len());
        }
        // Little's law: requests in flight, summed over time, are the sum of the latencies.
        let latencies: f64 = jobs().map(|k| k.clat.summary.mean_ns * k.requests as f64).sum();
        let area = course.in_flight_ns.iter().sum::<u64>() as f64;
        assert!((area / latencies - 1.0).abs() < 1e-9, "{area} {latencies}");
    }
}

#[test]
fn nothing_works_longer_than_a_column_lasts() {
    for outcome in outcomes(true) {
        let course = outcome.result.course.expect("it was asked for");
        assert!(course.len() <= COLUMNS_MAX && course.end == outcome.result.virtual_time_ns);
        for numbers in course.station_busy_ns.iter().chain(&course.channel_busy_ns) {
            assert_eq!(numbers.len(), course.len());
            for (i, busy) in numbers.iter().enumerate() {
                let length = course.column.min(course.end - i as u64 * course.column);
                assert!(*busy <= length, "column {i}: {busy} of {length}");
            }
        }
        // Only time that was charged when an operation began, and had not passed at the end, may be missing.
        let MetricValue::Ratio(charged) = outcome.result.metrics["nand.station_utilisation"] else {
            panic!()
        };
        let seen: u64 = course.station_busy_ns.iter().flat_map(|numbers| numbers.iter()).sum();
        let seen = seen as f64 / course.station_busy_ns.len() as f64 / course.end as f64;
        assert!(seen <= charged * (1.0 + 1e-9) && seen > charged * 0.9, "{seen} {charged}");
    }
}

#[test]
fn a_course_changes_nothing_else() {
    let mut with = outcomes(true);
    assert!(with.iter_mut().all(|outcome| outcome.result.course.take().is_some()));
    assert_eq!(with, outcomes(false));
}
