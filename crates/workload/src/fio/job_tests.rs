//! Jobs on a device that serves any number of requests at once, each in a fixed time.

use super::*;
use crate::fio::parse_job_file;
use flashweir_core::Bytes;
use flashweir_core::command::Handle;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// A request with the time of its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    at_us: u64,
    request: Request,
    in_flight_before: u32,
}

fn jobs(text: &str) -> Vec<FioJob> {
    let file = parse_job_file("t.fio", text, Bytes(64 * MIB)).unwrap_or_else(|error| panic!("{error}"));
    file.jobs.into_iter().map(|spec| FioJob::new(spec, 1)).collect()
}

fn job(options: &str) -> FioJob {
    jobs(&format!("[j]\n{options}")).remove(0)
}

/// Runs a job to its end; returns the requests that it sent and its end time.
fn drive(job: &mut FioJob, service_us: u64) -> (Vec<Sent>, u64) {
    let mut sent = Vec::new();
    let mut flying: BTreeMap<(Instant, usize), u32> = BTreeMap::new();
    let mut now = Instant::ZERO;
    loop {
        let wake = match job.poll(now) {
            Step::Submit(request) => {
                let in_flight_before = flying.len() as u32;
                sent.push(Sent { at_us: now.as_nanos() / 1000, request, in_flight_before });
                assert!(in_flight_before < job.spec().iodepth);
                let within = request.lba.0 >= job.spec().region.first.0
                    && request.lba.0 + u64::from(request.blocks)
                        <= job.spec().region.first.0 + job.spec().region.blocks;
                assert!(request.kind == Kind::Flush || within);
                flying.insert((now + Duration::from_micros(service_us), sent.len()), request.token);
                continue;
            }
            Step::Wait(until) => {
                assert!(until > now);
                until
            }
            Step::Blocked => {
                assert!(!flying.is_empty(), "a job that is blocked has requests in flight");
                Instant::MAX
            }
            Step::Done => break,
        };
        match flying.first_key_value().map(|(key, token)| (*key, *token)) {
            Some((key, token)) if key.0 <= wake => {
                now = key.0;
                flying.remove(&key);
                job.completed(now, token);
            }
            _ => now = wake,
        }
    }
    (sent, now.as_nanos() / 1000)
}

fn run(options: &str) -> Vec<Sent> {
    drive(&mut job(options), 100).0
}

fn lbas(sent: &[Sent]) -> Vec<u64> {
    sent.iter().map(|s| s.request.lba.0).collect()
}

fn count(sent: &[Sent], kind: Kind) -> usize {
    sent.iter().filter(|s| s.request.kind == kind).count()
}

#[test]
fn sequential_walks_wrap_around_and_keep_their_gaps() {
    assert_eq!(lbas(&run("rw=read\nsize=16k")), [0, 8, 16, 24]);
    assert_eq!(lbas(&run("rw=read\nsize=10k")), [0, 8]);
    assert_eq!(
        lbas(&run("rw=write\nsize=16k\nio_size=24k\noffset=1m")),
        [2048, 2056, 2064, 2072, 2048, 2056]
    );
    assert_eq!(lbas(&run("rw=write\nsize=16k\nio_size=50%")), [0, 8]);
    assert_eq!(lbas(&run("rw=write\nsize=8k\nloops=2")), [0, 8, 0, 8]);
    assert_eq!(lbas(&run("rw=read:4k\nsize=32k")), [0, 16, 32, 48, 0, 16, 32, 48]);
    assert_eq!(lbas(&run("rw=read:-8k\nsize=16k")), [0, 16, 8, 0]);
    assert_eq!(lbas(&run("rw=trim\nsize=8k")), [0, 8]);
    assert_eq!(run("rw=read\nsize=64k\nnumber_ios=3").len(), 3);
    assert_eq!(run("rw=read\nsize=64k\nnumber_ios=3\nloops=3").len(), 9);
    assert_eq!(run("rw=read\nsize=8k\nnumber_ios=3\nloops=3").len(), 6);
    assert_eq!(run("rw=trimwrite\nsize=64k\nnumber_ios=6").len(), 6, "trims count");
    let mixed = run("rw=rw\nsize=64k");
    for kind in [Kind::Read, Kind::Write] {
        let own: Vec<Sent> = mixed.iter().copied().filter(|s| s.request.kind == kind).collect();
        assert!(lbas(&own).into_iter().eq((0..own.len() as u64).map(|i| i * 8)));
    }
}

#[test]
fn random_jobs_cover_each_block_exactly_once_per_pass() {
    for (options, directions) in
        [("rw=randread", 1), ("rw=randwrite", 1), ("rw=randrw", 1), ("rw=randtrimwrite", 2)]
    {
        let sent = run(&format!("{options}\nsize=3000k\nloops=3\niodepth=4\noffset=4k"));
        assert_eq!(sent.len(), 750 * 3 * directions);
        let mut passes = Vec::new();
        for pass in sent.chunks(750 * directions) {
            let mut addresses = lbas(pass);
            passes.push(addresses.clone());
            addresses.sort_unstable();
            addresses.dedup();
            assert!(addresses.into_iter().eq((0..750).map(|i| 8 + 8 * i)), "{options}");
        }
        assert_ne!(passes[0], passes[1]);
    }
    let mut free = lbas(&run("rw=randread\nsize=3000k\nnorandommap"));
    free.sort_unstable();
    free.dedup();
    // Of n draws with repetition, a fraction of 1 - 1/e of all addresses is hit.
    assert!((450..500).contains(&free.len()), "{}", free.len());
}

#[test]
fn runs_follow_random_addresses() {
    let sent = lbas(&run("rw=randread:4\nsize=32m\nnumber_ios=4000"));
    let steps = sent.windows(2).filter(|pair| pair[1] == pair[0] + 8).count();
    assert!((2950..=3010).contains(&steps), "{steps}");
    let same = lbas(&run("rw=randread:4\nrw_sequencer=identical\nsize=32m\nnumber_ios=4000"));
    assert_eq!(same.windows(2).filter(|pair| pair[1] == pair[0]).count(), 3000);
    let half = lbas(&run("rw=randread\npercentage_random=50\nnorandommap\nsize=32m\nnumber_ios=4000"));
    let steps = half.windows(2).filter(|pair| pair[1] == pair[0] + 8).count();
    assert!((1850..2150).contains(&steps), "{steps}");
    // The option is about runs.
    let job =
        "rw=randread\nrw_sequencer=identical\npercentage_random=50\nnorandommap\nsize=32m\nnumber_ios=4000";
    assert_eq!(lbas(&run(job)), half);
}

#[test]
fn mixes_and_sizes_have_their_shares() {
    let sent = run(
        "rw=randrw\nrwmixread=70\nnorandommap\nsize=32m\nio_size=1g\nnumber_ios=20000\nbssplit=4k/80:16k/20,8k",
    );
    let reads = count(&sent, Kind::Read);
    assert!((13_700..14_300).contains(&reads), "{reads}");
    let small = sent.iter().filter(|s| s.request.kind == Kind::Read && s.request.blocks == 8).count();
    assert!((small as f64 / reads as f64 - 0.8).abs() < 0.015, "{small} of {reads}");
    let writes = |s: &&Sent| s.request.kind == Kind::Write;
    assert!(sent.iter().filter(writes).all(|s| s.request.blocks == 16));
    let ranged = run("rw=randwrite\nbsrange=4k-16k\nnumber_ios=8000\nio_size=1g\nsize=32m");
    for blocks in [8, 16, 24, 32] {
        let share = ranged.iter().filter(|s| s.request.blocks == blocks).count();
        assert!((1850..2150).contains(&share), "{blocks}: {share}");
    }
    // fio 3.33 issued 2/5, 2/5 and 1/5.
    let uneven = run("rw=randwrite\nbsrange=4k-10k\nnumber_ios=10000\nio_size=1g\nsize=32m");
    for (blocks, expected) in [(8, 4000), (16, 4000), (20, 2000)] {
        let share = uneven.iter().filter(|s| s.request.blocks == blocks).count();
        assert!(share.abs_diff(expected) < 200, "{blocks}: {share}");
    }
    // A range counts, wherever a single size stands.
    for options in ["bsrange=4k-16k\nbs=64k", "bs=64k\nbsrange=4k-16k"] {
        let ranged = run(&format!("rw=randwrite\n{options}\nnumber_ios=1000\nio_size=1g\nsize=32m"));
        let most = ranged.iter().map(|sent| sent.request.blocks).max();
        assert_eq!(most, Some(32), "{options}");
    }
    // An alignment that changes nothing leaves the map of what was drawn.
    let all = lbas(&run("rw=randwrite\nbs=4k\nblockalign=4k\nsize=32m"));
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 8192);
    let aligned = run("rw=randwrite\nbs=4k\nblockalign=64k\nnumber_ios=1000\nsize=32m");
    assert!(lbas(&aligned).iter().all(|lba| lba % 128 == 0));
}

#[test]
fn skewed_requests_are_aligned_and_concentrated() {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for lba in
        lbas(&run("rw=randread\nrandom_distribution=zipf:1.2\nsize=4000k\nio_size=1g\nnumber_ios=50000"))
    {
        assert_eq!(lba % 8, 0);
        *counts.entry(lba).or_default() += 1;
    }
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let sum: f64 = (1..=1000).map(|k| f64::from(k).powf(-1.2)).sum();
    for rank in [1usize, 2, 3, 10] {
        let expected = 50_000.0 * (rank as f64).powf(-1.2) / sum;
        let got = f64::from(counts[rank - 1]);
        assert!((got / expected - 1.0).abs() < 0.08, "rank {rank}: {got} for {expected}");
    }
}

#[test]
fn rated_requests_are_intended_on_schedule_even_when_late() {
    // 10,000 requests per second are due every 100 us; a device of 250 us at depth 1 falls behind.
    let (sent, _) = drive(&mut job("rw=randread\nrate_iops=10k\nnumber_ios=50\nsize=1m"), 250);
    for (i, s) in sent.iter().enumerate() {
        let due = Duration::of_transfer(i as u64 * 4096, 10 * 1024 * 4096).as_nanos();
        assert!(s.request.intended.as_nanos().abs_diff(due) <= 1, "{i}");
        assert_eq!(s.at_us, i as u64 * 250);
    }
    let (sent, _) = drive(&mut job("rw=randread\nrate_iops=3000\nnumber_ios=3001\nsize=16m\niodepth=8"), 250);
    let last = sent.last().unwrap();
    assert_eq!((last.at_us, last.request.intended.as_nanos()), (1_000_000, 1_000_000_000));
    assert!(sent.iter().all(|s| s.in_flight_before == 0));
    let (sent, _) = drive(&mut job("rw=write\nbs=64k\nrate=64m\nsize=1m"), 10);
    assert!(sent.iter().enumerate().all(|(i, s)| s.at_us == i as u64 * 15_625 / 16));
}

#[test]
fn poisson_arrivals_have_the_mean_and_the_spread_of_their_law() {
    let options =
        "rw=randread\nrate_iops=10000\nrate_process=poisson\nnumber_ios=20001\nnorandommap\niodepth=64";
    let sent = run(options);
    let times: Vec<f64> = sent.iter().map(|s| s.request.intended.as_nanos() as f64 / 1000.0).collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((mean - 100.0).abs() < 2.5, "{mean}");
    assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
}

#[test]
fn paces_of_two_directions_are_kept_apart() {
    let sent = run("rw=randrw\nrate_iops=1000,3000\nruntime=1\ntime_based\nnorandommap\niodepth=4");
    assert_eq!((count(&sent, Kind::Read), count(&sent, Kind::Write)), (1000, 3000));
    assert!(sent.iter().all(|s| s.request.intended.as_nanos() / 1000 == s.at_us));
}

#[test]
fn a_direction_without_a_rate_is_not_held_back_by_the_other() {
    let options = "rw=randrw\nrate_iops=100,\nruntime=1\ntime_based\nnorandommap";
    let sent = drive(&mut job(options), 100).0;
    assert_eq!((count(&sent, Kind::Read), count(&sent, Kind::Write)), (100, 9_900));
    let reads_alone = run("rw=randrw\nrwmixread=100\nrate_iops=100,\nruntime=1\ntime_based\nnorandommap");
    assert_eq!((count(&reads_alone, Kind::Read), reads_alone.len()), (100, 100));
}

#[test]
fn pauses_begin_when_all_requests_are_complete() {
    let sent = run("rw=read\nthinktime=400\nnumber_ios=5\niodepth=8");
    assert!(sent.iter().map(|s| s.at_us).eq([0, 500, 1000, 1500, 2000]));
    let sent = run("rw=read\nthinktime=400us\nthinktime_blocks=3\nnumber_ios=7\niodepth=2");
    assert!(sent.iter().map(|s| s.at_us).eq([0, 0, 100, 600, 600, 700, 1200]));
    let sent = run("rw=read\nthinktime=1ms\nthinktime_iotime=300us\nnumber_ios=5");
    assert!(sent.iter().map(|s| s.at_us).eq([0, 100, 200, 1300, 1400]));
}

#[test]
fn pauses_are_caught_up_unless_the_job_says_otherwise() {
    let options = "rw=read\nrate_iops=5000\nthinktime=1ms\nthinktime_blocks=5\nnumber_ios=15\n";
    let caught_up: Vec<u64> = run(options).iter().map(|s| s.request.intended.as_nanos() / 1000).collect();
    assert!(caught_up.into_iter().eq((0..15).map(|i| i * 200)));
    let moved = run(&format!("{options}rate_ignore_thinktime=1"));
    assert_eq!(moved[5].request.intended.as_nanos() / 1000, 2100);
}

#[test]
fn flushes_are_alone_and_follow_every_nth_write() {
    let sent = run("rw=randwrite\nfsync=8\niodepth=4\nnumber_ios=64");
    assert_eq!(count(&sent, Kind::Flush), 7);
    for (i, s) in sent.iter().enumerate() {
        assert_eq!(s.request.kind == Kind::Flush, i % 9 == 8);
        if s.request.kind == Kind::Flush || i % 9 == 0 {
            assert_eq!(s.in_flight_before, 0);
        }
        assert_eq!((s.request.blocks == 0, s.request.lba.0 % 8), (s.request.kind == Kind::Flush, 0));
    }
    let mixed = run("rw=randrw\nrwmixread=50\nfdatasync=10\nsize=8m");
    assert_eq!(count(&mixed, Kind::Flush), count(&mixed, Kind::Write) / 10);
    assert_eq!(count(&run("rw=randread\nfsync=1\nsize=64k"), Kind::Flush), 0);
    let ended = run("rw=write\nsize=16k\nend_fsync=1\niodepth=4");
    assert_eq!((ended.len(), ended[4].request.kind, ended[4].at_us), (5, Kind::Flush, 100));
    // Both counters are full at the twelfth write, which needs only one flush.
    assert_eq!(count(&run("rw=write\nsize=52k\nfsync=4\nfdatasync=6"), Kind::Flush), 4);
}

#[test]
fn trims_complete_before_their_ranges_are_written() {
    let sent = run("rw=randtrimwrite\nsize=64k\niodepth=4");
    assert_eq!(sent.len(), 32);
    for pair in sent.chunks(2) {
        assert_eq!((pair[0].request.kind, pair[1].request.kind), (Kind::Trim, Kind::Write));
        assert_eq!(pair[0].request.lba, pair[1].request.lba);
        assert_eq!(pair[0].at_us + 100, pair[1].at_us);
    }
}

#[test]
fn durable_writes_are_marked() {
    let sent = run("rw=randrw\nsync=1\nsize=256k");
    assert!(sent.iter().all(|s| s.request.fua == (s.request.kind == Kind::Write)));
}

#[test]
fn writes_of_a_job_with_sources_are_remaps() {
    let sent = run("rw=randrw\nsize=256k\noffset=1m\nshare_from=4m\nfsync=8");
    let shares = || sent.iter().filter(|s| s.request.kind == Kind::Share);
    assert!(shares().count() > 20 && sent.iter().all(|s| s.request.kind != Kind::Write));
    assert!(shares().all(|s| s.request.source.0 == s.request.lba.0 + 3 * 2048));
    assert_eq!(shares().count() / 8, sent.iter().filter(|s| s.request.kind == Kind::Flush).count());
    assert!(sent.iter().filter(|s| s.request.kind == Kind::Read).all(|s| s.request.source == Lba(0)));
    // The sources of a clone move with its region.
    let file = "[w]\nrw=write\nsize=64k\nnumjobs=2\noffset=1m\noffset_increment=64k\nshare_from=4m";
    let jobs = parse_job_file("job.fio", file, Bytes(1 << 30)).unwrap().jobs;
    let sources: Vec<_> = jobs.iter().map(|job| (job.region.first.0, job.share_from)).collect();
    assert_eq!(sources, [(2048, Some(Lba(8192))), (2176, Some(Lba(8320)))]);
}

#[test]
fn writes_take_the_handles_of_their_job() {
    let handles = |options: &str| -> Vec<u8> {
        let sent = run(&format!("rw=rw\nsize=256k\n{options}"));
        assert!(sent.iter().all(|s| s.request.kind == Kind::Write || s.request.handle == Handle(0)));
        sent.iter().filter(|s| s.request.kind == Kind::Write).map(|s| s.request.handle.0).collect()
    };
    assert!(handles("fdp_pli=3").iter().all(|handle| *handle == 0), "fdp=0 is the default");
    let in_turn = handles("fdp=1\nfdp_pli=1,3,2\nfdp_pli_select=roundrobin");
    assert!(in_turn.len() > 20 && in_turn.iter().zip([1, 3, 2].into_iter().cycle()).all(|(a, b)| *a == b));
    let drawn = handles("dataplacement=fdp\nplids=0,5");
    assert!(
        [0, 5].iter().all(|handle| drawn.contains(handle))
            && drawn.iter().all(|handle| [0, 5].contains(handle))
    );
}

#[test]
fn runtime_ends_jobs_and_the_ramp_comes_before_it() {
    let mut ramped = job("rw=randread\nramp_time=2ms\nruntime=3ms\ntime_based\nsize=16k\nstartdelay=1ms");
    assert!(!ramped.measured(Instant::ZERO));
    assert_eq!(ramped.planned(), Some(Duration::from_millis(5)));
    let (sent, done) = drive(&mut ramped, 100);
    assert_eq!((sent[0].at_us, sent.len(), done), (1000, 50, 6000));
    let at = |us: u64| Instant::from_nanos(us * 1000);
    assert!(!ramped.measured(at(2999)) && ramped.measured(at(3000)));
    assert!(job("rw=read").measured(Instant::ZERO));
    assert!(!job("rw=read\nstats=0").measured(at(1)));
    // Without time_based, the size ends the job early, and a runtime cuts a pause short.
    assert_eq!(drive(&mut job("rw=read\nsize=16k\nruntime=1"), 100).1, 300);
    assert_eq!(drive(&mut job("rw=read\nruntime=1ms\nthinktime=1s"), 100).1, 1000);
    assert_eq!(drive(&mut job("rw=read\nruntime=1ms\nrate_iops=1"), 100).1, 1000);
}

#[test]
fn delays_are_drawn_from_their_range() {
    let starts: Vec<u64> = jobs("[j]\nnumjobs=20\nstartdelay=1ms-3ms\nnumber_ios=1")
        .iter_mut()
        .map(|job| drive(job, 1).0[0].at_us)
        .collect();
    assert!(starts.iter().all(|us| (1000..=3000).contains(us)));
    assert!(starts.iter().any(|us| *us != starts[0]));
}

#[test]
fn equal_seeds_make_equal_requests_and_clones_differ() {
    let text = "[j]\nrw=randrw\nnumjobs=2\nsize=1m\n[j]\nrw=randrw\nsize=1m\n";
    let runs: Vec<Vec<u64>> = jobs(text).iter_mut().map(|job| lbas(&drive(job, 10).0)).collect();
    let again: Vec<Vec<u64>> = jobs(text).iter_mut().map(|job| lbas(&drive(job, 10).0)).collect();
    assert_eq!(runs, again);
    assert!(runs[0] != runs[1] && runs[0] != runs[2] && runs[1] != runs[2]);
    let spec = |seed| {
        let text = format!("[j]\nrw=randread\nsize=1m\n{seed}");
        parse_job_file("t.fio", &text, Bytes(MIB)).unwrap().jobs.remove(0)
    };
    let from = |option, seed| lbas(&drive(&mut FioJob::new(spec(option), seed), 10).0);
    assert_ne!(from("", 1), from("", 2));
    assert_eq!(from("randseed=5", 1), from("randseed=5", 2));
    assert_ne!(from("randseed=5", 1), from("randseed=6", 1));
}

/// Prints the cost of a request in wall time, without a check; run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_request() {
    for options in [
        "rw=randread\nnorandommap",
        "rw=randwrite\nnorandommap",
        "rw=randwrite",
        "rw=randrw\nbssplit=4k/60:8k/40\nnorandommap",
        "rw=write",
        "rw=randread\nrandom_distribution=zipf:1.2",
        "rw=randread\nrandom_distribution=pareto:0.2",
        "rw=randread\nrandom_distribution=normal:10",
        "rw=randread\nrandom_distribution=zoned:60/10:40/90\nrate_iops=1m",
    ] {
        let mut job = job(&format!("{options}\niodepth=32\ntime_based\nruntime=1d"));
        let mut ring = std::collections::VecDeque::with_capacity(64);
        let mut sum = 0u64;
        #[expect(clippy::disallowed_methods, reason = "this measures the wall time of the code")]
        let begin = std::time::Instant::now();
        let requests = 10_000_000u64;
        for n in 0..requests {
            let now = Instant::from_nanos(n * 1_000);
            while let Step::Submit(request) = job.poll(now) {
                sum = sum.wrapping_add(request.lba.0);
                ring.push_back(request.token);
            }
            if let Some(token) = ring.pop_front() {
                job.completed(now, token);
            }
        }
        let ns = begin.elapsed().as_nanos() as f64 / requests as f64;
        println!("{ns:6.1} ns  {}  ({sum:x})", options.replace('\n', " "));
    }
}
