use super::*;
use crate::filebench::{parse_model, personality};
use flashweir_core::Duration;
use flashweir_core::Payload;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::memfs::{Faults, MemFs, MemFsConfig};
use flashweir_fs::port::{Block, BlockPort as _, Write};
use flashweir_fs::vfs::{CacheConfig, Creds, Errno, Follow, HostCosts, MountOptions, Vfs};
use flashweir_sim::measure::CallResult;
use flashweir_sim::stack::{FlushMode, Stack};

/// A mount in a stack, on a disk that takes `us` microseconds per page.
struct Bed {
    stack: Stack,
    vfs: Vfs<MemFs>,
}

impl Bed {
    fn new(us: u64) -> Self {
        let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
        let stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
        let fs = MemFs::with_disk(MemFsConfig::default(), stack.handle(), Duration::from_micros(us));
        let costs = HostCosts { syscall: Duration::from_nanos(500), ..HostCosts::ZERO };
        let options =
            MountOptions { cache: CacheConfig::of_bytes(64 << 20), costs, ..MountOptions::default() };
        let vfs = Vfs::mount(fs, stack.handle(), options).unwrap();
        Self { stack, vfs }
    }

    fn process(&self) -> Process<MemFs> {
        self.vfs.process(Creds::ROOT)
    }

    /// Makes the files and runs the model.
    fn run(
        &mut self,
        text: &str,
        set: &[(&str, &str)],
        options: Options,
    ) -> Result<WorkloadResult, RunError> {
        let model = Rc::new(parse_model("m.f", text, set).unwrap_or_else(|error| panic!("{error}")));
        let (process, handle) = (self.process(), self.stack.handle());
        let run = async move { Filebench::prepare(model, process, handle, options).await?.run().await };
        self.stack.block_on(run).expect("the run comes to its end")
    }
}

fn of<'a>(result: &'a WorkloadResult, name: &str) -> &'a CallResult {
    result.call(name).unwrap_or_else(|| panic!("{name}"))
}

const SMALL: [(&str, &str); 3] = [("nfiles", "200"), ("nthreads", "4"), ("runtime", "2")];

#[test]
fn varmail_does_what_its_file_says_and_the_same_for_the_same_seed() {
    let varmail = personality("varmail").unwrap();
    let run = |seed| Bed::new(20).run(varmail, &SMALL, Options::new("mail", seed)).unwrap();
    let result = run(1);
    assert_eq!(result, run(1));
    assert_ne!(result, run(2));
    assert_eq!((result.span_ns(), result.ended_early.as_deref()), (2_000_000_000, None));
    // Each thread executes the flowops in order, so two counts differ by at most the number of threads.
    let counts: Vec<u64> = result.calls.iter().map(|call| call.calls).collect();
    assert!(counts[1] > 1000, "{counts:?}");
    for window in counts.windows(2) {
        assert!((window[1]..=window[1] + 4).contains(&window[0]), "{counts:?}");
    }
    let total = result.sum(&[]);
    assert_eq!((total.calls, total.latency.bins.count()), (counts.iter().sum(), counts.iter().sum()));
    let fsyncs = result.sum(&["fsync"]);
    assert_eq!(fsyncs.calls, of(&result, "fsync-new").calls + of(&result, "fsync-changed").calls);
    // Sizes from 0 to 16 KiB, uniformly distributed.
    let append = of(&result, "append-new");
    let mean = append.bytes as f64 / append.calls as f64;
    assert!((7_400.0..9_000.0).contains(&mean), "{mean}");
    // Two pages take the disk 40 µs; four threads share it.
    assert!(fsyncs.latency.summary.mean_ns > 40_000.0, "{fsyncs:?}");
}

#[test]
fn what_is_made_and_deleted_is_on_the_file_system() {
    let mut bed = Bed::new(5);
    let text = "define fileset name=f,path=/a/b,size=10k,entries=40,dirwidth=100000,prealloc=50
        define process name=p { thread name=t {
            flowop createfile name=create,filesetname=f,fd=1
            flowop writewholefile name=write,fd=1,srcfd=1,iosize=4k
            flowop closefile name=close,fd=1
            flowop finishoncount name=end,target=create,value=7 } }";
    let result = bed.run(text, &[], Options::new("x", 3)).unwrap();
    assert_eq!(result.ended_early.as_deref(), Some("flowop `end`: 7 reached"));
    let counts: Vec<_> = result.calls.iter().map(|call| (call.calls, call.bytes)).collect();
    assert_eq!(counts, [(7, 0), (7, 7 * 10_240), (7, 0), (7, 0)]);
    assert_eq!(result.sum(&[]).calls, 21);
    let process = bed.process();
    let sizes = bed.stack.block_on(async move {
        let mut sizes = Vec::new();
        for entry in process.list("/a/b/f/00000001").await.unwrap() {
            let path = format!("/a/b/f/00000001/{}", String::from_utf8(entry.name.to_vec()).unwrap());
            sizes.push(process.stat(path, Follow::No).await.unwrap().size);
        }
        sizes
    });
    let sizes = sizes.unwrap();
    assert!(sizes.len() > 7 + 8 && sizes.len() < 7 + 32, "{}", sizes.len());
    assert!(sizes.iter().all(|&size| size == 10_240), "{sizes:?}");
    // A second run starts again; one that creates more files than allowed ends when there is nothing left to do.
    let ramp = Duration::from_secs(5);
    let in_ramp =
        bed.run(&text.replace("/a/b", "/c"), &[], Options { ramp, ..Options::new("y", 3) }).unwrap();
    assert_eq!(in_ramp.ended_early.as_deref(), Some("flowop `end`: 7 reached"));
    assert_eq!((in_ramp.span_ns(), in_ramp.sum(&[]).calls), (0, 0));
    let without_end = text.replace("finishoncount name=end,target=create,value=7", "hog name=h,value=1000");
    let options = Options { runtime: Some(Duration::from_secs(9)), ..Options::new("x", 3) };
    let result = bed.run(&without_end, &[], options).unwrap();
    assert_eq!(of(&result, "create").calls + (sizes.len() as u64 - 7), 40);
    assert_eq!(result.ended_early.as_deref(), Some("flowop `create`: no file of `f` is missing"));
    assert!(result.span_ns() < 1_000_000_000);
}

#[test]
fn fileserver_and_webserver_keep_their_ratios() {
    let mut bed = Bed::new(2);
    let short = |name| Options { runtime: Some(Duration::from_millis(300)), ..Options::new(name, 1) };
    let result = bed.run(personality("fileserver").unwrap(), &SMALL, short("files")).unwrap();
    let counts: Vec<u64> = result.calls.iter().map(|call| call.calls).collect();
    assert_eq!(result.ended_early, None);
    assert!(counts[0] > 300 && counts.iter().all(|&count| count.abs_diff(counts[0]) <= 4), "{counts:?}");
    let written = of(&result, "write").bytes / of(&result, "write").calls;
    assert!((100_000..160_000).contains(&written), "{written}");
    let result = bed.run(personality("webserver").unwrap(), &SMALL, short("web")).unwrap();
    let appended = of(&result, "append-log").calls;
    assert!(appended > 300, "{appended}");
    assert!(result.sum(&["openfile"]).calls.abs_diff(10 * appended) <= 40);
    assert!(result.sum(&["closefile"]).calls.abs_diff(10 * appended) <= 40);
    assert_eq!(result.calls.len(), 31);
}

#[test]
fn oltp_holds_its_readers_where_its_writers_are() {
    let set = [
        ("nshadows", "20"),
        ("ndbwriters", "2"),
        ("runtime", "3"),
        ("filesize", "1m"),
        ("logfilesize", "1m"),
    ];
    let result = Bed::new(1).run(personality("oltp").unwrap(), &set, Options::new("oltp", 1)).unwrap();
    let calls = |name| of(&result, name).calls;
    let (reads, posts, blocks) = (calls("read"), calls("post-db"), calls("db-block"));
    assert!(reads.abs_diff(posts) <= 20 && reads > 10_000, "{reads} {posts}");
    // Each of two writers takes 1000 posts per 100 writes; readers lead by at most that and the high-water mark.
    assert!(posts <= 1000 * (blocks / 2 + 1) + 2000, "{posts} {blocks}");
    assert!(blocks >= 2 * (posts / 1000).saturating_sub(2), "{posts} {blocks}");
    assert!(calls("db-write").abs_diff(100 * blocks) <= 200 + 200, "{} {blocks}", calls("db-write"));
    assert_eq!(of(&result, "read").bytes, 2048 * reads);
    // The CPU time of a reader: 200,000 steps of 1 ns.
    assert_eq!(of(&result, "think").latency.summary.min_ns, 200_000);
    assert_eq!(calls("rate"), 0);
    let set = [&set[..], &[("eventrate", "500")]].concat();
    let limited = Bed::new(1).run(personality("oltp").unwrap(), &set, Options::new("oltp", 1)).unwrap();
    let rate = limited.call("rate").unwrap().calls;
    assert!((1480..=1500).contains(&rate), "{rate}");
    // The limit holds in a ramp, too: it once ended the run there.
    let options = Options { ramp: Duration::from_secs(1), ..Options::new("oltp", 1) };
    let ramped = Bed::new(1).run(personality("oltp").unwrap(), &set, options).unwrap();
    let rate = ramped.call("rate").unwrap().calls;
    assert!((1480..=1501).contains(&rate), "{rate}");
}

/// Several workloads on one mount, and one on the device itself.
#[test]
fn workloads_side_by_side_have_results_of_their_own() {
    let mut bed = Bed::new(20);
    let alone = Bed::new(20).run(personality("varmail").unwrap(), &SMALL, Options::new("mail", 1)).unwrap();
    let results = Rc::new(RefCell::new(Vec::new()));
    for (name, dir, kind) in [("mail", "/m", "varmail"), ("files", "/f", "fileserver")] {
        let set = [&SMALL[..], &[("dir", dir)]].concat();
        let model = Rc::new(parse_model(name, personality(kind).unwrap(), &set).unwrap());
        let (process, handle, results) = (bed.process(), bed.stack.handle(), Rc::clone(&results));
        bed.stack.spawn(async move {
            let ready = Filebench::prepare(model, process, handle, Options::new(name, 1)).await.unwrap();
            let result = ready.run().await.unwrap();
            results.borrow_mut().push(result);
        });
    }
    let (port, handle, seen) = (bed.stack.port(), bed.stack.handle(), Rc::clone(&results));
    bed.stack.spawn(async move {
        while seen.borrow().len() < 2 {
            port.write(Write::new(Block(1), vec![Payload::Tag(1)])).completed().await.unwrap();
            handle.sleep_until(handle.now() + Duration::from_millis(1)).await;
        }
    });
    while results.borrow().len() < 2 {
        assert!(bed.stack.turn());
    }
    let results = results.borrow();
    let mail = results.iter().find(|result| result.name == "mail").unwrap();
    let files = results.iter().find(|result| result.name == "files").unwrap();
    assert!(files.sum(&[]).calls > 1000);
    assert!(mail.sum(&[]).calls < alone.sum(&[]).calls, "they share the disk");
    assert!(bed.stack.with_device(|device| device.metrics().host_writes) > 1000);
}

#[test]
fn what_goes_wrong_ends_the_run_and_is_said() {
    let files = "define fileset name=f,path=/d,size=10k,entries=10,dirwidth=20,prealloc\n";
    let run = |flowops: &str, text: &str| {
        let text = format!("{files}define process name=p {{ thread name=t {{ {flowops} }} }}\n{text}");
        Bed::new(5).run(&text, &[], Options::new("x", 1)).unwrap_err().to_string()
    };
    let read = "flowop read name=r,filesetname=f,iosize=4k,random";
    assert_eq!(
        run(read, ""),
        "the model has no end: expected `run SECONDS`, a runtime from the caller, or a finishon flowop"
    );
    assert_eq!(run("flowop fsync name=s,fd=1", "run 1"), "flowop `s`: fd=1 is not open");
    let twice = "flowop openfile name=o,filesetname=f,fd=1";
    assert_eq!(run(twice, "run 1"), "flowop `o`: fd=1 is still open");
    assert_eq!(
        run(&read.replace("4k", "11k"), "run 1"),
        "flowop `r`: a file of 10240 bytes is smaller than iosize=11264"
    );
    let append = "flowop appendfile name=a,filesetname=f,iosize=700,directio";
    assert_eq!(run(append, "run 1"), "flowop `a`: /d/f/00000001/00000001: EINVAL: invalid argument");
    assert_eq!(
        run("flowop sempost name=s,value=0,target=b flowop semblock name=b,value=0", "run 1"),
        "flowop `s`: the thread takes no virtual time; mount with host costs, or on a device"
    );
    let mut bed = Bed::new(5);
    bed.vfs.fs().set_faults(Faults { writes: Some(Errno::EIO), ..Faults::default() });
    let model = format!("{files}define process name=p {{ thread name=t {{ {read} }} }} run 1");
    let failed = bed.run(&model, &[], Options::new("x", 1)).unwrap_err().to_string();
    assert_eq!(failed, "fileset `f`: /d: EIO: input or output error");
}
