use super::on_files::{FileJobError, prepare, run};
use super::{FileJob, FileJobs, FioJob, parse_job_file_on_files};
use flashweir_core::{Duration, Instant};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::{Creds, Follow, HostCosts, MountOptions, Process, Vfs};
use flashweir_sim::measure::JobResult;
use flashweir_sim::request::Kind;
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::workload::{Step, Workload};

fn parse(text: &str) -> Result<FileJobs, String> {
    parse_job_file_on_files("j.fio", text).map_err(|error| error.to_string())
}

/// Returns a stack with an in-memory file system whose disk takes 10 µs per page.
fn bed() -> (Stack, Process<MemFs>) {
    let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
    let fs = MemFs::with_disk(MemFsConfig::default(), stack.handle(), Duration::from_micros(10));
    let costs = HostCosts { syscall: Duration::from_nanos(500), ..HostCosts::ZERO };
    let vfs = Vfs::mount(fs, stack.handle(), MountOptions { costs, ..MountOptions::default() }).unwrap();
    (stack, vfs.process(Creds::ROOT))
}

fn results(text: &str) -> (Vec<JobResult>, Process<MemFs>, Stack) {
    let (mut stack, process) = bed();
    let jobs = parse(text).unwrap_or_else(|error| panic!("{error}")).jobs;
    let (handle, caller) = (stack.handle(), process.clone());
    let done = stack.block_on(async move {
        prepare(&caller, &jobs).await?;
        run(&caller, &handle, &jobs, 1, Duration::from_secs(1), &|_| ()).await
    });
    (done.unwrap().unwrap_or_else(|error| panic!("{error}")), process, stack)
}

#[test]
fn options_about_files_are_read_or_refused() {
    let text = "[global]\ndirectory=/d\nsize=8m\nioengine=libaio\niodepth=4\ndirect=1\n[a]\nnrfiles=4\nnumjobs=2\n\
                [b]\nfilename=x:/y\ndirect=0\n[c]\nioengine=psync\nfilesize=1m\nsize=512k";
    let jobs = parse(text).unwrap();
    let [a0, a1, b, c] = &jobs.jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(a0.files, ["/d/a.0.0", "/d/a.0.1", "/d/a.0.2", "/d/a.0.3"]);
    assert_eq!(a1.files[3], "/d/a.1.3");
    assert_eq!((a0.file_bytes, a0.spec.iodepth, a0.is_direct), (2 << 20, 4, true));
    assert_eq!(b.files, ["/d/x", "/y"]);
    assert_eq!((b.file_bytes, b.spec.iodepth, b.is_direct), (4 << 20, 1, false));
    assert_eq!((c.files.len(), c.file_bytes, c.spec.iodepth, c.spec.region.blocks), (1, 1 << 20, 1, 1024));
    assert!(jobs.warnings.contains(&"j.fio: [b] buffered I/O keeps one request in flight".to_owned()));
    for (text, message) in [
        ("[a]\nrw=read", "j.fio:1: [a]: files need a length: `size` or `filesize` in bytes"),
        (
            "[a]\nnrfiles=3\nsize=1m",
            "j.fio:1: [a]: `size` is not a multiple of 512 bytes for each of its files",
        ),
        ("[a]\nnrfiles=0", {
            "j.fio:2: option `nrfiles` in [a] cannot be `0`: expected a whole number from 1 to 1048576"
        }),
        ("[a]\nsize=10%", {
            "j.fio:2: option `size` in [a] cannot be `10%`: expected a multiple of 512 bytes above 0, such as 1g"
        }),
        ("[a]\nsize=1m\nfile_service_type=zipf", {
            "j.fio:3: option `file_service_type` in [a] cannot be `zipf`: expected roundrobin, random or sequential; \
             the first two with :N requests"
        }),
        ("[a]\nnrfiles=2\nfilesize=1m\nsize=1m", {
            "j.fio:1: [a]: with several files, `offset` and a `size` that is smaller than all of them are not supported"
        }),
        ("[a]\nnrfiles=4\nsize=32k\nbs=16k", {
            "j.fio:1: [a]: each of its files has 8KiB, less than its request of 16KiB"
        }),
        ("[a]\nnrfiles=2\nsize=1m\nrw=randread\nrandom_distribution=zoned:50/10:50/90", {
            "j.fio:1: [a]: zones of several files are not supported; give each job one file"
        }),
        ("[a]\nfilename=a::b", {
            "j.fio:2: option `filename` in [a] cannot be `a::b`: expected names separated by colons"
        }),
        ("[a]\nrw=write\nsize=1m\nshare_from=0", {
            "j.fio:1: [a]: the sources of `share_from`, 1MiB from 0B on, overlap the region of the job, which begins at 0B"
        }),
        ("[a]\nrw=read\nsize=1m\nfsync=1\natomic_files=1", {
            "j.fio:1: [a]: `atomic_files` needs a job that writes"
        }),
        ("[a]\nrw=write\nsize=1m\nfsync=1\nsync=1\natomic_files=1", {
            "j.fio:1: [a]: `sync` makes each write durable at once, and `atomic_files` withholds it until an fsync"
        }),
        ("[a]\nrw=write\nsize=1m\nend_fsync=1\natomic_files=1", {
            "j.fio:1: [a]: `atomic_files` withholds what is written until an fsync: expected `fsync` or `fdatasync`"
        }),
        ("[a]\nrw=write\nsize=1m\natomic_files=yes", {
            "j.fio:4: option `atomic_files` in [a] cannot be `yes`: expected 0 or 1"
        }),
        ("[a]\nsize=1m\nopendir=/x\nzonemode=zbd", {
            "j.fio:1: [a]: `zonemode=zbd` needs a device with segments; a file has no zones"
        }),
    ] {
        assert_eq!(parse(text).unwrap_err(), message, "{text}");
    }
}

/// The requests of the only job as letter and file, such as `w0` for a write to the first one. Each completes before the next.
fn order(text: &str) -> String {
    let jobs = parse(text).unwrap_or_else(|error| panic!("{error}")).jobs;
    let [FileJob { spec, file_bytes, files, .. }] = &jobs[..] else { panic!("{jobs:?}") };
    let mut job = FioJob::new(spec.clone(), 1);
    let mut order = Vec::new();
    loop {
        let request = match job.poll(Instant::ZERO) {
            Step::Submit(request) => request,
            Step::Done => return order.join(" "),
            step => panic!("{step:?}"),
        };
        let file = request.lba.0 * 512 / file_bytes;
        let letter = match request.kind {
            Kind::Read => 'r',
            Kind::Write => 'w',
            _ => 's',
        };
        let all = file == files.len() as u64;
        let files = if all { 0..files.len() as u64 } else { file..file + 1 };
        order.extend(files.map(|file| format!("{letter}{file}")));
        job.completed(Instant::ZERO, request.token);
    }
}

/// As fio 3.33 logs them with `write_iolog`. A sync goes to the file whose turn it is, whether or not that was written.
#[test]
fn files_take_turns_as_in_fio() {
    for (options, logged) in [
        ("nrfiles=3\nrw=randwrite\nfsync=2", "w0 w1 s2 w0 w1 s2 w0 w1 s2 w0 w1 s2 w2 w2 s2 w2 w2"),
        (
            "nrfiles=3\nrw=write\nfsync=1",
            "w0 s1 w2 s0 w1 s2 w0 s1 w2 s0 w1 s2 w0 s1 w2 s0 w1 s2 w0 s1 w2 s0 w1",
        ),
        ("nrfiles=2\nrw=randwrite\nfsync=3\nfile_service_type=roundrobin:2", "w0 w0 w1 s1 w0 w0 w1 s1 w1 w1"),
        ("nrfiles=2\nrw=randwrite\nfsync=3\nfile_service_type=sequential", "w0 w0 w0 s0 w0 w1 w1 s1 w1 w1"),
        (
            "nrfiles=3\nrw=write\nfsync=3\nfile_service_type=sequential\nend_fsync=1",
            "w0 w0 w0 s0 w0 w1 w1 s1 w1 w1 w2 s2 w2 w2 w2 s0 s1 s2",
        ),
        ("nrfiles=2\nrw=randread", "r0 r1 r0 r1 r0 r1 r0 r1"),
    ] {
        assert_eq!(order(&format!("[a]\nfilesize=16k\nbs=4k\n{options}")), logged, "{options}");
    }
}

#[test]
fn each_page_of_each_file_is_visited_once() {
    for service in ["roundrobin:3", "random", "random:5", "sequential"] {
        let text = format!("[a]\nnrfiles=5\nfilesize=42k\nbs=4k\nrw=randread\nfile_service_type={service}");
        let order = order(&text);
        for file in 0..5 {
            assert_eq!(order.matches(&format!("r{file}")).count(), 10, "{service}: {order}");
        }
    }
}

#[test]
fn each_job_has_its_own_results_and_its_own_files() {
    let text = "[global]\ndirectory=/bench\nsize=2m\nbs=4k\ndirect=1\n\
                [sync]\nrw=randwrite\nfsync=8\n[async]\nrw=randread\nioengine=libaio\niodepth=16\nnrfiles=2\n\
                [after]\nstonewall\nrw=write\ndirect=0\nend_fsync=1\nbs=64k";
    let (jobs, process, mut stack) = results(text);
    let [sync, asynchronous, after] = &jobs[..] else { panic!("{jobs:?}") };
    let count = |job: &JobResult, kind| job.kind(kind).map_or((0, 0), |kind| (kind.requests, kind.bytes));
    // An fsync after every eight writes, but none after the last one.
    assert_eq!((count(sync, Kind::Write), count(sync, Kind::Flush).0), ((512, 2 << 20), 63));
    assert_eq!((count(asynchronous, Kind::Read), count(asynchronous, Kind::Write)), ((512, 2 << 20), (0, 0)));
    assert_eq!((count(after, Kind::Write), count(after, Kind::Flush).0), ((32, 2 << 20), 1));
    assert_eq!(sync.depth_levels[0], 512 + 63);
    assert!(asynchronous.depth_levels[4] > 400, "{:?}", asynchronous.depth_levels);
    // One disk serves both jobs; buffered writes do not wait, their fsync waits for 512 pages.
    assert!(after.start_ns >= sync.end_ns.max(asynchronous.end_ns));
    assert!(after.kind(Kind::Write).unwrap().clat.summary.max_ns < 10_000);
    assert!(after.kind(Kind::Flush).unwrap().clat.summary.mean_ns > 5_000_000.0);
    let (again, ..) = results(text);
    assert_eq!(jobs, again);
    let sizes = stack.block_on(async move {
        let mut sizes = Vec::new();
        for entry in process.list("/bench").await.unwrap() {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            let size = process.stat(format!("/bench/{name}"), Follow::No).await.unwrap().size;
            sizes.push((name, size));
        }
        sizes
    });
    let expected =
        [("after.0.0", 2 << 20), ("async.0.0", 1 << 20), ("async.0.1", 1 << 20), ("sync.0.0", 2 << 20)];
    assert_eq!(sizes.unwrap(), expected.map(|(name, size)| (name.to_owned(), size)));
}

#[test]
fn what_files_cannot_do_is_an_error() {
    let run_text = |text: &str| {
        let (mut stack, process) = bed();
        let jobs = parse(text).unwrap().jobs;
        let handle = stack.handle();
        let done = stack.block_on(async move {
            prepare(&process, &jobs).await?;
            run(&process, &handle, &jobs, 1, Duration::from_secs(1), &|_| ()).await
        });
        done.unwrap().unwrap_err()
    };
    assert_eq!(
        run_text("[t]\nrw=randtrim\nsize=1m").to_string(),
        "[t]: `rw` cannot trim files: expected reads and writes"
    );
    assert_eq!(
        run_text("[t]\nrw=randwrite\nsize=1m\nfsync=1\natomic_files=1").to_string(),
        "[t]: `atomic_files` needs a file system with atomic files: expected ext4 that journals data, or either format on a \
         device with SHARE"
    );
    let full = run_text("[w]\nrw=read\nfilename=/w\nsize=2g");
    assert!(matches!(&full, FileJobError::Call { path, .. } if path == "/w"), "{full}");
    assert_eq!(full.to_string(), "[w]: /w: ENOSPC: no space left");
}

#[test]
fn what_only_devices_do_is_warned_about() {
    let text = "[a]\nrw=write\nsize=1m\nverify=md5\nss=iops:5%\nss_dur=2\nwrite_bw_log\n[b]\nsize=1m\n";
    let read = parse(text).unwrap();
    let warned = |option: &str| read.warnings.iter().filter(|line| line.contains(option)).count();
    assert_eq!(["[a] verify", "[a] steadystate", "[a] write_bw_log", "[b]"].map(warned), [1, 1, 1, 0]);
    let spec = &read.jobs[0].spec;
    assert!(spec.verify.is_none() && spec.steady.is_none() && !spec.log.is_wanted());
}
