//! The cards of the AMF paper without a file system: their raw speed, and interleaved streams (figure 8).

use super::super::study::{Scale, Study, run_scenario};
use flashweir_sim::measure::RunResult;

pub(super) const CARDS: Study = Study {
    name: "cards",
    what: "the raw card, as its preset is: requests of 4 KiB, 1,024 in flight at a link of as many, sequential and random reads of half of it, \
           sequential writes of the rest; for AMF in zones",
    missing: "the card itself: its array takes the paper's upper bound for a read, and the time of a program is derived from its 67,000 writes/s",
    parameter: "job",
    names: &["sequential reads", "random reads", "writes"],
    metrics: &[("iops", "requests/s")],
    variants: &["AMF", "PFTL"],
    points: |_| vec![1.0, 2.0, 3.0],
    measure: |variant, x, seed, scale| {
        let rw = ["read", "randread", "write"][x as usize - 1];
        let mib = match scale {
            Scale::Quick => 1024,
            Scale::Full => 4096,
        };
        let zones = if variant == 0 { "zonemode=zbd\n" } else { "" };
        let offset = if rw == "write" { 8 } else { 0 };
        let jobs = format!(
            "[global]\nbs=4k\n{zones}size={mib}m\n[fill]\nrw=write\niodepth=256\n\
             [measured]\nstonewall\nrw={rw}\noffset={offset}g\niodepth=1024\n"
        );
        let result = raw(variant, &jobs, &["link.queue_depth=1024"], seed);
        vec![iops(&result, "measured")]
    },
};

pub(super) const STREAMS: Study = Study {
    name: "streams",
    what: "so many sequential streams of writes of 4 KiB at once, each to segments of its own, 128 requests in flight together, on the raw card",
    missing: "nothing that is known",
    parameter: "streams",
    names: &[],
    metrics: &[("iops", "writes/s"), ("of_one_stream", "the same, as a share of that of one stream")],
    variants: &["AMF", "PFTL"],
    points: |_| vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    measure: |variant, x, seed, scale| {
        let mib = match scale {
            Scale::Quick => 1024,
            Scale::Full => 4096,
        };
        let streams = |count: u64| {
            let zones = if variant == 0 { "zonemode=zbd\n" } else { "" };
            let (size, depth) = (mib / count, 128 / count);
            let jobs = format!(
                "[s]\nrw=write\nbs=4k\n{zones}numjobs={count}\niodepth={depth}\nsize={size}m\noffset_increment={size}m\n"
            );
            let result = raw(variant, &jobs, &[], seed);
            result.jobs.iter().map(|job| iops(&result, &job.name)).sum::<f64>()
        };
        let iops = streams(x as u64);
        vec![iops, iops / streams(1)]
    },
};

/// Runs jobs on a card that is empty.
fn raw(variant: usize, jobs: &str, set: &[&str], seed: u64) -> RunResult {
    let preset = ["amf", "amf-page"][variant];
    let set = set.iter().fold(String::new(), |text, one| {
        let (key, value) = one.split_once('=').expect("a key and its value");
        text + &format!("\"{key}\" = {value}, ")
    });
    let text = format!(
        "name = 'amf'\nseeds = [{seed}]\nprecondition = {{ mode = 'none' }}\n\
         [[device]]\npreset = '{preset}'\nset = {{ {set} }}\n\
         [[workload]]\nname = 'jobs'\nfio_inline = '''\n{jobs}'''\n"
    );
    run_scenario(&text)
}

/// Requests in each second of a job.
fn iops(result: &RunResult, job: &str) -> f64 {
    let job = result.jobs.iter().find(|one| one.name == job).expect("the job is there");
    let requests: u64 = job.kinds.iter().map(|kind| kind.requests).sum();
    requests as f64 * 1e9 / (job.end_ns - job.start_ns) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_what_one_stream_has() {
        let one = (STREAMS.measure)(0, 1.0, 1, Scale::Quick);
        assert!(one[1] == 1.0 && one[0] > 50_000.0, "{one:?}");
    }
}
