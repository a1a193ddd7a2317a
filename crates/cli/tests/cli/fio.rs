//! What fio's jobs write beside their tables: logs, steady states, and its JSON.

use super::{Place, good};
use std::process::Command;

#[test]
fn fio_writes_its_logs_and_ends_when_steady() {
    let place = Place::new("logs");
    let job = "[global]\nrw=randrw\nbs=(2*2k)\nfilesize=${SIZE}\nsize=64k\nwrite_bw_log=out\nwrite_lat_log=out\n\
               [a]\nwrite_lat_log\n[b]\nwrite_iops_log\nlog_offset=1\n";
    std::fs::write(place.0.join("logs.fio"), job).unwrap();
    let run = |arguments: &str| {
        Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments.split(' '))
            .env("SIZE", "1m")
            .current_dir(&place.0)
            .output()
            .unwrap()
    };
    let before = place.names();
    good(&run("fio logs.fio --device sata-mlc -q"));
    let mut names = place.names();
    names.retain(|name| !before.contains(name));
    let expected = ["b_iops.2", "out_bw.1", "out_bw.2", "out_clat.1", "out_clat.2", "out_lat.1", "out_lat.2"];
    let mut expected: Vec<String> =
        expected.iter().chain(&["out_slat.1", "out_slat.2"]).map(|name| format!("{name}.log")).collect();
    expected.sort();
    assert_eq!(names, expected);
    let read = |name: &str| -> Vec<Vec<u64>> {
        let text = std::fs::read_to_string(place.0.join(name)).unwrap();
        text.lines().map(|line| line.split(", ").map(|word| word.parse().unwrap()).collect()).collect()
    };
    let (bandwidth, latency) = (read("out_bw.1.log"), read("out_clat.1.log"));
    assert_eq!((bandwidth.len(), latency.len()), (16, 16), "64 KiB in requests of 4 KiB");
    for (bandwidth, latency) in bandwidth.iter().zip(&latency) {
        assert_eq!((bandwidth.len(), bandwidth[3], bandwidth[2] < 2), (5, 4096, true));
        assert_eq!(bandwidth[1], 4_096_000_000 / latency[1]);
    }
    assert!(read("b_iops.2.log").iter().all(|line| line.len() == 6 && line[1] == 1 && line[4] < 1 << 20));
    good(&run("fio logs.fio --device sata-mlc --device rflush -q"));
    assert!(place.names().contains(&"rflush-logs-out_bw.2.log".to_owned()), "{:?}", place.names());

    // The last window is whole though the last request of it was earlier.
    let job = "[w]\nrw=read\nrate_iops=100\ntime_based\nruntime=1\nwrite_iops_log\nlog_avg_msec=100\n";
    std::fs::write(place.0.join("windows.fio"), job).unwrap();
    good(&place.say("fio windows.fio --device sata-mlc -q"));
    let windows: Vec<[u64; 2]> = read("w_iops.1.log").iter().map(|line| [line[0], line[1]]).collect();
    assert_eq!(windows, (1..=10).map(|window| [window * 100, 100]).collect::<Vec<_>>());

    let job = "[s]\nrw=randread\ntime_based\nruntime=10d\nss=iops_slope:1%\nss_dur=100ms\nss_interval=10ms\n\
               write_iops_log=steady\nlog_avg_msec=10\n";
    std::fs::write(place.0.join("steady.fio"), job).unwrap();
    let json: serde_json::Value =
        serde_json::from_str(good(&place.say("fio steady.fio --device sata-mlc -q --output json"))).unwrap();
    let (steady, read_iops) = (&json["jobs"][0]["steadystate"], &json["jobs"][0]["read"]["iops"]);
    assert_eq!((&steady["attained"], &steady["ss"]), (&1.into(), &"iops_slope:1%".into()));
    assert_eq!(steady["data"]["iops"].as_array().unwrap().len(), 10);
    let (mean, iops) = (steady["data"]["iops_mean"].as_f64().unwrap(), read_iops.as_f64().unwrap());
    assert!((mean / iops - 1.0).abs() < 0.2, "{mean} {iops}");
    assert!(json["jobs"][0]["job_runtime"].as_u64().unwrap() < 10_000);
    assert!(std::fs::read_to_string(place.0.join("steady_iops.1.log")).unwrap().starts_with("10, "));
}

/// Times of a log begin with the measurement, and a job of which nothing is measured has an empty log, as in fio.
#[test]
fn logs_begin_behind_the_ramp() {
    let place = Place::new("ramps");
    let log = |name: &str, job: &str| {
        std::fs::write(place.0.join("ramp.fio"), format!("[{name}]\nrw=read\nsize=64m\n{job}\n")).unwrap();
        good(&place.say("fio ramp.fio --device sata-mlc -q"));
        std::fs::read_to_string(place.0.join(format!("{name}_iops.1.log"))).unwrap()
    };
    let windows = log(
        "ramp",
        "rate_iops=1000\ntime_based\nstartdelay=7ms\nramp_time=25ms\nruntime=40ms\nwrite_iops_log\nlog_avg_msec=10",
    );
    let expected: Vec<String> = (1..=4).map(|window| format!("{}, 1000, 0, 0, 0", window * 10)).collect();
    assert_eq!(windows.lines().collect::<Vec<_>>(), expected);
    assert_eq!(log("short", "number_ios=5\nramp_time=10s\nwrite_iops_log"), "");
}

/// fio adds up the times of jobs that it reports as one.
#[test]
fn times_of_jobs_in_a_group_are_added_up() {
    let place = Place::new("groups");
    let job = "[g]\nrw=randread\nsize=64m\ntime_based\nruntime=10ms\nnumjobs=4\ngroup_reporting\n";
    std::fs::write(place.0.join("group.fio"), job).unwrap();
    let said = place.say("fio group.fio --device sata-mlc -q --output json");
    let json: serde_json::Value = serde_json::from_str(good(&said)).unwrap();
    let jobs = json["jobs"].as_array().unwrap();
    assert_eq!(
        (jobs.len(), &jobs[0]["job_runtime"], &jobs[0]["read"]["runtime"]),
        (1, &40.into(), &10.into())
    );
}
