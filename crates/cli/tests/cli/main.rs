//! The program as a user meets it: what it says to mistakes, and that good runs leave what was asked for.

mod documents;
mod fio;
mod host_ftl;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory of its own for each test, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-cli-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        for (name, text) in FILES {
            std::fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// Arguments separated by blanks.
    fn say(&self, line: &str) -> Output {
        self.weir(&line.split_whitespace().collect::<Vec<_>>())
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Two blocks of nothing.
const ZEROS: &str = match std::str::from_utf8(&[0; 8192]) {
    Ok(zeros) => zeros,
    Err(_) => panic!("zeros are text"),
};

/// Files that stand in the directory of every test.
const FILES: [(&str, &str); 31] = [
    ("placed.fio", "[p]\nfdp=1\nfdp_pli=3\nrw=write\nbs=64k\nsize=64m\n"),
    ("zoned.fio", "[z]\nzonemode=zbd\nzonesize=16m\nrw=write\nbs=64k\nsize=64m\n"),
    ("strided.fio", "[z]\nzonesize=16m\nrw=write\nbs=64k\nsize=64m\n"),
    ("share.fio", "[s]\nrw=write\nbs=64k\nsize=16m\noffset=64m\nshare_from=0\n"),
    ("share.log", "fio version 3 iolog\n0 /f add\n1 /f write 0 8192\n9 /f share 81920 8192 0\n"),
    ("again.fio", "[j]\nrw=write\nsize=4m\n"),
    ("job.fio", "[j]\nrw=randread\nbs=4k\niodepth=4\nsize=64m\nnumber_ios=2000\n"),
    ("option.fio", "[j]\nrw=randread\niodept=4\n"),
    ("value.fio", "[j]\nrw=randread\n\nbs=700\n"),
    ("outside.fio", "rw=randread\n"),
    ("empty.fio", ""),
    ("large.fio", "[j]\nsize=1t\n"),
    ("engine.fio", "[j]\nioengine=cpuio\n"),
    ("good.trace", "0 0 0 8 1\n1000 0 8 8 0\n2000 0 16 8 1\n"),
    ("field.trace", "0 0 0 8 1\n1000 0 eight 8 0\n"),
    ("columns.trace", "0 0 0 8 1\n1000 0 8\n"),
    ("backwards.trace", "9000000 0 0 8 1\n1000 0 8 8 0\n"),
    ("beyond.trace", "0 0 999999999999 8 1\n"),
    ("prose.trace", "It was a dark and stormy night.\n"),
    ("empty.trace", ""),
    ("zeros.img", ZEROS),
    (
        "key.toml",
        "name = 's'\n[[device]]\npreset = 'sata-mlc'\nftl.gc.polcy = 'fifo'\n[[workload]]\nfio = 'job.fio'\n",
    ),
    ("top.toml", "name = 's'\nseed = 3\n[[device]]\npreset = 'sata-mlc'\n[[workload]]\nfio = 'job.fio'\n"),
    ("preset.toml", "name = 's'\n[[device]]\npreset = 'sata-mcl'\n[[workload]]\nfio = 'job.fio'\n"),
    ("nofio.toml", "name = 's'\n[[device]]\npreset = 'sata-mlc'\n[[workload]]\nfio = 'none.fio'\n"),
    ("badfio.toml", "name = 's'\n[[device]]\npreset = 'sata-mlc'\n[[workload]]\nfio = 'option.fio'\n"),
    ("syntax.toml", "name = 's'\n[[device]\n"),
    ("good.toml", "name = 's'\n[[device]]\npreset = 'sata-mlc'\n[[workload]]\nfio = 'job.fio'\n"),
    ("device.toml", "name = 'd'\n[geometry]\nchannels = 0\n"),
    ("config.xml", "<Execution_Parameter_Set></Execution_Parameter_Set>"),
    ("broken.xml", "<Execution_Parameter_Set>"),
];

/// Command lines that are wrong, or name files that are, and the one line that each earns. Lists of names that grow
/// stand in angle brackets.
#[rustfmt::skip]
const BAD: [(&str, &str); 306] = [
    ("threads", "missing: <FILE>"),
    ("threads nosuch.weir", "nosuch.weir: there is no such file; --create SIZE makes one"),
    (
        "threads good.toml",
        "good.toml: too short for a volume of threads; expected what weir threads --create has made",
    ),
    ("threads good.toml --create 64MiB", "good.toml exists already: expected a new file, or no --create for the disk in it"),
    ("threads /dev/null --create 64MiB", "/dev/null: expected a new file or a block device"),
    (
        "threads new.weir --create 1000",
        "--create cannot be `1000`: expected a size from 1MiB on, such as 1GiB",
    ),
    ("threads --memory 1026KiB", "--memory 1050624: expected a multiple of 4 KiB"),
    ("threads new.weir --memory 64MiB", "[FILE] cannot be used with --memory <SIZE>"),
    ("threads --memory 64MiB --worst", "--memory cannot be used with --worst"),
    ("threads --memory 64MiB --overwrite", "--memory cannot be used with --overwrite"),
    ("threads good.toml --create 64MiB --accept-damage", "--create cannot be used with --accept-damage"),
    (
        "threads --memory 64MiB --ftl pblke",
        "--ftl cannot be `pblke`: expected pblk, rings, map, lines, pool or qblke; did you mean `pblk`?",
    ),
    (
        "threads --memory 64MiB --tcp 0.0.0.0:0",
        "--tcp 0.0.0.0:0 can be reached from other machines, and NBD in clear text protects nothing: expected --tls-cert, --tls-key and --tls-required, or --clear-text if that is meant",
    ),
    ("frobnicate", "unknown command `frobnicate`; weir --help lists the commands"),
    ("check", "missing: --verify <SHELL COMMAND>, <COMMAND>..."),
    ("check --verify true --", "missing: <COMMAND>..."),
    ("check --verify true --format ext3 -- touch {}/a", "--format cannot be `ext3`: expected f2fs, f2fs-dual, ext4, ext4-journal, ext4-dual, ext4-soj, ext4-sdj, ext4-sdj-dual, f2fs-ssc, f2fs-ssc-dual or alfs; did you mean `ext4`?"),
    ("check --verify true --size 1MiB -- touch {}/a", "--size 1MiB: 256 blocks are too small for a journal: expected at least 2048, or ^has_journal"),
    ("check --verify true --states 1 -- touch {}/a", "--states cannot be `1`: expected a whole number from 2 to 10000000"),
    ("check --verify true --dir nosuch -- touch {}/a", "--dir nosuch: No such file or directory (os error 2)"),
    ("check --verify true --dir . -- touch {}/a", "--dir .: expected an empty directory"),
    ("check --verify true --keep good.toml -- touch {}/a", "--keep good.toml: cannot be made: File exists (os error 17)"),
    ("devices list", "unknown command `devices`; did you mean `device`?"),
    ("device lst", "unknown command `lst`; did you mean `list`?"),
    ("run", "missing: <SCENARIO.toml>"),
    ("run good.toml --jbos 2", "unknown argument `--jbos`; did you mean `--jobs`?"),
    ("run good.toml --jobs 0", "--jobs cannot be `0`: expected a whole number from 1 to 100000"),
    ("run good.toml --jobs two", "--jobs cannot be `two`: expected a whole number from 1 to 100000"),
    ("run good.toml --output yaml", "--output cannot be `yaml`: expected table, json or fio-json"),
    ("run good.toml --output tabel", "--output cannot be `tabel`: expected table, json or fio-json; did you mean `table`?"),
    ("run good.toml --seeds 0", "--seeds cannot be `0`: expected a whole number from 1 to 100000"),
    ("run good.toml --jobs", "--jobs needs a value"),
    ("run good.toml again", "unknown argument `again`"),
    ("run good.toml --quiet --quiet", "--quiet is given more than once"),
    ("run none.toml", "none.toml: cannot be read: No such file or directory (os error 2)"),
    ("run key.toml", "key.toml: unknown key `ftl.gc.polcy` in device 0 (sata-mlc); did you mean `policy`? Known keys: choices, hot_cold, policy, preemptible, reserve_blocks, start_below_blocks"),
    ("run top.toml", "top.toml: unknown key `seed` in the scenario; did you mean `seeds`? Known keys: block_layer, device, host_ftl, name, precondition, seeds, track_contents, workload"),
    ("run preset.toml", "preset.toml: unknown preset `sata-mcl` in device 0 (sata-mcl); did you mean `sata-mlc`? Presets: <presets>"),
    ("run nofio.toml", "nofio.toml: cannot read `none.fio` for workload 0: No such file or directory (os error 2)"),
    ("run badfio.toml", "badfio.toml: workload 0: on device sata-mlc: option.fio:3: unknown option `iodept` in [j]; did you mean `iodepth`?"),
    ("run syntax.toml", "syntax.toml:2: unclosed array table, expected `]`"),
    ("run good.toml --set seeds", "good.toml: --set seeds: expected key=value, as in seeds=5"),
    ("run good.toml --set seeds=-1", "good.toml: `seeds` in the scenario cannot be -1: expected a number from 1 to 100000, or a list of different seeds such as [1, 2, 3]"),
    ("run good.toml --set device.3.ftl.gc.policy=fifo", "good.toml: --set device.3.ftl.gc.policy=fifo: there is no `device.3`: expected 0 to 0 or *"),
    ("run good.toml --set device.*.ftl.gc.policy=fif", "good.toml: `ftl.gc.policy` in device 0 (sata-mlc) cannot be \"fif\"; did you mean `fifo`? Expected greedy, cost-benefit, d-choices, random-greedy or fifo"),
    ("run good.toml --set precondition.fill=2", "good.toml: `precondition.mode` is missing in the scenario: expected none, instant or age-by-writing"),
    ("run good.toml --out none/out.json", "none/out.json cannot be written: there is no directory none"),
    ("run good.toml --csv .", ". is a directory: expected the name of a file to write"),
    ("run good.toml --seeds 2 --output fio-json", "--output fio-json shows one run and this scenario has 2: expected one device, one workload and one seed, or --output json"),
    ("fio job.fio", "missing: --device <PRESET|FILE.toml>"),
    ("fio none.fio --device sata-mlc", "none.fio: cannot be read: No such file or directory (os error 2)"),
    ("fio job.fio --device sata-mcl", "`sata-mcl` is neither a preset nor a device file; did you mean `sata-mlc`? Presets: <presets>"),
    ("fio job.fio --device none.toml", "none.toml: cannot be read: No such file or directory (os error 2)"),
    ("fio job.fio --device device.toml", "`geometry.chips_per_channel` is missing in device 0 (device.toml): expected a whole number"),
    ("fio job.fio --device sata-mlc --device sata-mlc", "--device sata-mlc is given twice: expected different devices, or a name for one of them as in --set device.1.name=other"),
    ("fio option.fio --device sata-mlc", "option.fio:3: unknown option `iodept` in [j]; did you mean `iodepth`?"),
    ("fio value.fio --device sata-mlc", "value.fio:4: option `bs` in [j] cannot be `700`: expected a multiple of 512 bytes up to 1g, such as 4k, or up to three with commas for reads, writes and trims"),
    ("fio outside.fio --device sata-mlc", "outside.fio:1: `rw=randread` stands outside of any section"),
    ("fio empty.fio --device sata-mlc", "empty.fio: no job is defined: expected a section such as [writer]"),
    ("fio large.fio --device sata-mlc", "large.fio:1: [j] reaches beyond the device: offset 0B and size 1TiB on 14909MiB"),
    ("fio engine.fio --device sata-mlc", "engine.fio:2: option `ioengine` in [j] cannot be `cpuio`: expected an engine that reads and writes a device, such as libaio or io_uring"),
    ("fio job.fio --device sata-mlc --set geometry.channels=0", "device 0 (sata-mlc): geometry.channels = 0: expected 1 to 256"),
    ("fio job.fio --device qblke", "firmware = open-channel: expected page: a host without an FTL of its own needs a device with a page namespace (of the medium of QBLKe there is `qblke-page`), or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in a scenario"),
    ("fio job.fio --device qblke --host-ftl pbl", "`the assembly` in --host-ftl cannot be `pbl`; did you mean `pblk`? Expected pblk, qblke, pblk-as-released or qblke-as-released"),
    ("fio job.fio --device qblke --host-ftl pblk,rings=200", "--host-ftl rings = 200: expected 1 to 128"),
    ("fio job.fio --device qblke --host-ftl pblk,rings=2,rings=4", "--host-ftl: `rings` is given twice: expected one value"),
    ("fio job.fio --device qblke --host-ftl pblk,cpus=2,costs.turn=0ns", "--host-ftl costs.turn = 0ns: expected more than nothing where --host-ftl full = \"retry\": threads that find no room would try again for ever"),
    ("fio job.fio --device qblke --host-ftl pblk,retry_after=0ns", "--host-ftl retry_after = 0ns: expected more than nothing"),
    ("fio job.fio --device sata-mlc --host-ftl pblk", "--host-ftl needs a device with an open channel: expected one, as in --device qblke"),
    ("fio job.fio --device qblke --host-ftl pblk --set host_ftl.assembly=qblke", "--set host_ftl: a host FTL is no key of a device here: expected --host-ftl, as in --host-ftl qblke,rings=4"),
    ("fio job.fio --device qblke --host-ftl pblk --block-layer none --perfetto x.json", "--perfetto follows requests through a block layer or through a host FTL, which qblke needs: expected no block layer, or a device with pages, such as qblke-page"),
    ("files varmail --device qblke", "qblke: firmware = open-channel: expected page: a host without an FTL of its own needs a device with a page namespace (of the medium of QBLKe there is `qblke-page`), or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in a scenario"),
    ("files varmail --device qblke --host-ftl qblke-as-released --format ext4 --commit dual", "--commit cannot be `dual` on qblke: --host-ftl sequence is ring: expected sequence=device, or --commit legacy"),
    ("files varmail --device qblke --host-ftl qblke --clean share", "--clean cannot be `share` on qblke: a host FTL has no SHARE: expected --clean copy"),
    ("sqlite --device qblke --host-ftl qblke-as-released --order all", "barriers cannot be on qblke: --host-ftl sequence is ring: expected sequence=device, or --order none"),
    ("explain job.fio --device qblke --host-ftl qblke --block-layer none", "weir explain follows requests through a block layer or through a host FTL, which qblke needs: expected no block layer, or a device with pages, such as qblke-page"),
    ("explain job.fio --device sata-mlc --host-ftl pblk", "--host-ftl needs a device with an open channel: expected one, as in --device qblke"),
    ("fio job.fio --device sata-mlc --set geometry.chanels=8", "unknown key `geometry.chanels` in device 0 (sata-mlc); did you mean `channels`? Known keys: blocks_per_plane, channels, chips_per_channel, dies_per_chip, page_bytes, pages_per_block, planes_per_die, unit_bytes"),
    ("fio job.fio --device sata-mlc --set timing.read=75", "`timing.read` in device 0 (sata-mlc) cannot be 75: expected a duration such as \"75us\", or a list of them"),
    ("fio job.fio --device sata-mlc --set timing.read.x=75", "--set timing.read.x=75: there is no `read.x`: expected 0 to 1 or *"),
    ("fio job.fio --device sata-mlc --set append.segments=8", "device 0 (sata-mlc): [append] = set: expected firmware = \"append\" or \"page-and-append\""),
    ("fio job.fio --device sata-mlc --set buffer.protected=1MiB", "device 0 (sata-mlc): buffer.protected = 1MiB: expected none, or buffer.mode = \"power-loss-protected\""),
    ("fio job.fio --device sata-mlc --set timing.erase=2000000s", "device 0 (sata-mlc): timing.erase = 2000000s: expected at most an hour"),
    ("fio job.fio --device page-and-append --set ftl.over_provisioning=-1e30", "device 0 (page-and-append): ftl.over_provisioning = -1000000000000000000000000000000: expected 0 to 0.9"),
    ("fio job.fio --device amf --device sata-mlc --overwrite 2", "--overwrite has no meaning for amf, whose segments are empty until a job writes them: expected no --overwrite"),
    ("explain job.fio --device sata-mlc --precondition none --pattern random", "--pattern needs a device that was written to: expected --precondition instant or age-by-writing"),
    ("fio job.fio --device sata-mlc --fill 1.5", "--fill = 1.5: expected 0 to 1"),
    ("fio job.fio --device sata-mlc --precondition instnat", "--precondition cannot be `instnat`: expected none, instant or age-by-writing; did you mean `instant`?"),
    ("fio job.fio --device sata-mlc --seed x", "--seed cannot be `x`: expected a whole number of 0 or more"),
    ("fio job.fio --device sata-mlc --seed -1", "--seed cannot be `-1`: expected a whole number of 0 or more"),
    ("fio job.fio --device sata-mlc --fill -0.5", "--fill = -0.5: expected 0 to 1"),
    ("serve zeros.img", "zeros.img is an image and no device: expected a preset, a device file or a volume; weir mount zeros.img DIR mounts its file system"),
    ("serve sata-mlc --fill 0.5", "--fill needs a device that was written to: expected --precondition instant or age-by-writing"),
    ("fio job.fio --device sata-mlc --report good.toml/x.html", "good.toml/x.html cannot be written: there is no directory good.toml"),
    ("completions tcsh", "<SHELL> cannot be `tcsh`: expected bash, elvish, fish, powershell or zsh; did you mean `zsh`?"),
    ("replay none.trace --device sata-mlc", "none.trace: cannot be read: No such file or directory (os error 2)"),
    ("replay field.trace --device sata-mlc", "field.trace:2: `eight` is not an address: expected a whole number"),
    ("replay columns.trace --device sata-mlc", "columns.trace:2: 3 fields: expected `time_ns device lba size type`"),
    ("replay backwards.trace --device sata-mlc", "backwards.trace:2: time goes back by 8999us, which is more than the tolerance of 1ms: expected a trace in order of time, or the option `sort`"),
    ("replay beyond.trace --device sata-mlc", "beyond.trace:1: blocks 999999999999..1000000000007 reach beyond the device, which has 30533632 blocks (14909MiB): expected a device of at least 512000000003584B, or the fit `wrap`"),
    ("replay prose.trace --device sata-mlc", "prose.trace:1: `It was a dark and stormy night.` is not a line of a known format: expected mqsim, disksim, msr, alibaba, tencent, blkparse or fio-iolog"),
    ("replay empty.trace --device sata-mlc", "empty.trace: no requests: expected at least one"),
    ("replay good.trace --device sata-mlc --format mqsm", "--format cannot be `mqsm`: expected mqsim, disksim, msr, alibaba, tencent, blkparse or fio-iolog; did you mean `mqsim`?"),
    ("replay good.trace --device sata-mlc --timing closed=0", "--timing cannot be `closed=0`: timing.closed = 0: expected a depth of 1 or more"),
    ("replay good.trace --device sata-mlc --trace-device 7", "good.trace: no requests of device `7`: expected one of `0` (3)"),
    ("replay good.trace --device sata-mlc --timing fast", "--timing cannot be `fast`: expected original, scaled=FACTOR as in scaled=0.5, or closed=DEPTH as in closed=32"),
    ("trace info prose.trace", "prose.trace:1: `It was a dark and stormy night.` is not a line of a known format: expected mqsim, disksim, msr, alibaba, tencent, blkparse or fio-iolog"),
    ("device check device.toml", "device.toml: `geometry.chips_per_channel` is missing in the device: expected a whole number"),
    ("device show sata", "`sata` is neither a preset nor a device file. Presets: <presets>"),
    ("fio job.fio --device sata-mlc --set ftl.over_provisioning=0.95", "device 0 (sata-mlc): ftl.over_provisioning = 0.95: expected 0 to 0.9"),
    ("fio job.fio --device sata-mlc --overwrite x", "--overwrite cannot be `x`: expected a number such as 0.5"),
    ("fio job.fio --device sata-mlc --output xml", "--output cannot be `xml`: expected table or json"),
    ("fio job.fio --device sata-mlc --perfetto-window 1ms..2ms", "missing: --perfetto <FILE>"),
    ("fio job.fio --device sata-mlc --perfetto t.json --perfetto-window 2ms..1ms", "--perfetto-window cannot be `2ms..1ms`: it ends before it begins; expected START..END in virtual time, as in 10ms..12.5ms, 1s.. or ..500us"),
    ("run good.toml --perfetto t.json --perfetto-window 10", "--perfetto-window cannot be `10`: expected START..END in virtual time, as in 10ms..12.5ms, 1s.. or ..500us"),
    ("run good.toml --perfetto t.json --perfetto-window 10..20ms", "--perfetto-window cannot be `10..20ms`: `10` is not a duration: expected a number with ns, us, ms or s, as in 75us"),
    ("explain job.fio", "missing: --device <PRESET|FILE.toml>"),
    ("explain none.fio --device sata-mlc", "none.fio: cannot be read: No such file or directory (os error 2)"),
    ("explain none.toml", "none.toml: cannot be read: No such file or directory (os error 2)"),
    ("explain good.toml --fill 0.5", "--fill belongs to a job file, and good.toml is a scenario: expected --set precondition.fill=0..1"),
    ("explain good.toml --block-layer cfq", "--block-layer belongs to a job file, and good.toml is a scenario: expected --set block_layer.scheduler=SCHEDULER"),
    ("explain job.fio --device sata-mlc --block-layer cqf", "`scheduler` in --block-layer cannot be \"cqf\"; did you mean `cfq`? Expected none, deadline or cfq"),
    ("explain good.toml --device sata-mlc", "--device belongs to a job file, and good.toml is a scenario: expected --set device.N.KEY=VALUE"),
    ("explain job.fio --device sata-mlc --slowest 0.1", "--slowest cannot be `0.1`: expected more than 0% and at most 100%, as in 0.1%"),
    ("explain job.fio --device sata-mlc --slowest 0%", "--slowest cannot be `0%`: expected more than 0% and at most 100%, as in 0.1%"),
    ("explain job.fio --device sata-mlc --request x", "--request cannot be `x`: expected a whole number of 0 or more"),
    ("explain job.fio --device sata-mlc --fill 0 --request 2000", "--request 2000: there is none with this number: 2,000 requests completed, counted from 0"),
    ("explain job.fio --device sata-mlc --device amf-page --request 1", "--request names a request of one run and this scenario has 2: expected one device, one workload and one seed"),
    ("explain job.fio --device sata-mlc --kind erase", "--kind cannot be `erase`: expected read, write, trim, write-zeroes, share or flush"),
    ("explain job.fio --device sata-mlc --kind read --request 1", "--kind cannot be used with --request <N>"),
    ("replay good.trace --device sata-mlc --perfetto none/t.json", "none/t.json cannot be written: there is no directory none"),
    ("replay good.trace --device sata-mlc --limit 0", "--limit cannot be `0`: expected a whole number of 1 or more"),
    ("replay good.trace --device sata-mlc --fit squeeze", "--fit cannot be `squeeze`: expected refuse or wrap"),
    ("replay good.trace", "missing: --device <PRESET|FILE.toml>"),
    ("trace info none.trace", "none.trace: cannot be read: No such file or directory (os error 2)"),
    ("trace info", "missing: <TRACE>"),
    ("device show", "missing: <NAME>"),
    ("device check none.toml", "none.toml: cannot be read: No such file or directory (os error 2)"),
    ("import mqsim none.xml", "none.xml: cannot be read: No such file or directory (os error 2)"),
    ("import mqsim config.xml", "config.xml: Host_Parameter_Set is missing in Execution_Parameter_Set (line 1)"),
    ("import mqsim broken.xml", "broken.xml: not an XML file: the root node was opened but never closed"),
    ("import mqsim config.xml --workload w.xml", "missing: --out-dir <DIR>"),
    ("import femu x", "unknown command `femu`; weir import --help lists the commands"),
    ("files --device rflush", "missing: <WORKLOAD[,VARIABLE=VALUE...]>..."),
    ("files varmail", "missing: --device <PRESET|FILE.toml>"),
    ("files linkbench,nodes=5 --device rflush", "nodes is 5: expected 100 to 4294967296"),
    ("files tpcc,commit=now --device rflush", "commit cannot be `now`: expected sync, write or lazy"),
    ("sqlite", "missing: --device <PRESET|FILE.toml>"),
    ("sqlite --device barrier-850 --order all --commit legacy", "--order all needs --commit dual"),
    ("sqlite --device sata-mlc --order durable", "barriers cannot be on sata-mlc: order.policy is none: expected --set order.policy=in-order-recovery, or --order none"),
    ("sqlite --device barrier-850 --format f2fs --journal-mode ordered", "--journal-mode needs --format ext4, not f2fs"),
    ("sqlite --device rflush --flush rflush", "--flush rflush needs --format f2fs or alfs, not ext4"),
    ("crash sqlite --order durable", "--order durable needs a format with order, not ext4"),
    ("crash sqlite --journal batch-atomic", "--journal batch-atomic needs atomic files: expected ext4 that journals data, or either format where it uses SHARE, not ext4"),
    ("crash sqlite --format ext4-sdj-dual --order durable --journal batch-atomic", "--order durable has no sync to order with journal batch-atomic: expected order none, not ext4-sdj-dual"),
    ("sqlite --device rflush --journal batch-atomic --checkpoint share", "--checkpoint cannot be `share` on rflush: ftl.share.pages is 0: expected --set ftl.share.pages=65536, or --checkpoint write"),
    ("files varmail --device barrier-850 --format ext4 --order-only", "--order-only needs --commit dual"),
    ("files varmail --device barrier-850 --commit dual --multi-version", "--multi-version needs --format ext4, not f2fs"),
    ("files varmial --device rflush", "WORKLOAD cannot be `varmial`: expected a file, or one of fileserver, varmail, webserver, oltp, tpcc, linkbench, oltp-insert, oltp-non-transactional, oltp-read-only, oltp-read-write, oltp-write-only; did you mean `varmail`?"),
    ("files varmail --device sata-mlc --flush rflush", "--flush cannot be `rflush` on sata-mlc: buffer.range_flush is none: expected --set buffer.range_flush=selective, or another --flush"),
    ("files varmail varmail --device rflush", "WORKLOAD `varmail` is there twice: expected different names"),
    ("files varmail,x --device rflush", "WORKLOAD `varmail,x`: `x` is no setting: expected VARIABLE=VALUE"),
    ("files varmail --device rflush --cache 1", "--cache cannot be `1`: expected a size from 128KiB to 8TiB, such as 1GiB"),
    ("files varmail --device rflush --format ext3", "--format cannot be `ext3`: expected f2fs, ext4 or alfs; did you mean `ext4`?"),
    ("files varmail --device rflush --journal-mode journal", "--journal-mode needs --format ext4, not f2fs"),
    ("files varmail --device rflush --commit dual", "--commit cannot be `dual` on rflush: order.policy is none: expected --set order.policy=in-order-recovery, or --commit legacy"),
    ("files varmail --device barrier-850 --commit dual --range-checkpoints", "--range-checkpoints needs --commit legacy, not dual"),
    ("files varmail --device rflush --format ext4 --commit dual", "--commit cannot be `dual` on rflush: order.policy is none: expected --set order.policy=in-order-recovery, or --commit legacy"),
    ("files varmail --device rflush --forced-commits", "--forced-commits needs --format ext4, not f2fs"),
    ("files varmail --device rflush --format ext4 --forced-commits", "--forced-commits needs --journal-mode journal"),
    ("files varmail --device rflush --journal-max 1GiB", "--journal-max needs --format ext4, not f2fs"),
    ("files varmail --device rflush --journal-size 1GiB", "--journal-size needs --format ext4, not f2fs"),
    ("files varmail --device rflush --format ext4 --journal-max 1MiB", "--journal-max cannot be `1MiB`: expected a multiple of 4096 bytes from 4MiB to 40000MiB, such as 128MiB"),
    ("files varmail --device rflush --format ext4 --fastboot", "--fastboot needs --format f2fs or alfs, not ext4"),
    ("files varmail --device rflush --format ext4 --range-checkpoints", "--range-checkpoints needs --format f2fs, not ext4"),
    ("files varmail --device rflush --format ext4 --flush rflush", "--flush rflush needs --format f2fs or alfs, not ext4"),
    ("files varmail --device rflush --runtime 0s", "--runtime cannot be `0s`: expected more than 0"),
    ("reproduce", "missing: <PAPER>"),
    ("reproduce rflsh", "PAPER cannot be `rflsh`: expected one of rflush, barrier, share, amf, qblke; did you mean `rflush`?"),
    ("crash files --format ext4 --planted no-inode", "--planted: `no-inode` is no planted bug of ext4: expected one of no-barriers, unordered-data, no-flush-before-commit, lazy-commit, no-revoke, no-orphans, early-discard-of-freed, trusted-old-commits, log-before-inode"),
    ("reproduce rflush --study thread", "--study cannot be `thread`: expected one of threads, fileserver-tpcc-direct, fileserver-linkbench-direct, tpcc-linkbench-direct, fileserver-tpcc-buffered, fileserver-linkbench-buffered, threads-one-lock, threads-checkpoints; did you mean `threads`?"),
    ("reproduce rflush --seeds 0", "--seeds cannot be `0`: expected a whole number from 1 to 100000"),
    ("reproduce rflush --scale huge", "--scale cannot be `huge`: expected quick or full"),
    ("waf --device nothing", "`nothing` is neither a preset nor a device file. Presets: <presets>"),
    ("waf --device amf-page --policy gredy", "`ftl.gc.policy` in device 0 (amf-page) cannot be \"gredy\"; did you mean `greedy`? Expected greedy, cost-benefit, d-choices, random-greedy or fifo"),
    ("waf --device amf-page --over-provisioning 2", "device 0 (amf-page): ftl.over_provisioning = 2: expected 0 to 0.9"),
    ("waf --measure 0", "--measure cannot be `0`: expected more than 0 and at most 1000"),
    ("volume create", "missing: --device <PRESET|FILE.toml>, <DIR>"),
    ("volume create v", "missing: --device <PRESET|FILE.toml>"),
    ("volume create v --device sata", "`sata` is neither a preset nor a device file. Presets: <presets>"),
    ("volume create v --device sata-mlc --capacity big", "--capacity cannot be `big`: expected a size such as 100GiB"),
    ("volume create v --device sata-mlc --capacity 0", "--capacity cannot be `0`: expected a size such as 100GiB"),
    ("volume create v --device sata-mlc --capacity 1MiB", "--capacity = 1MiB: expected at least 91648KiB for sata-mlc"),
    ("volume create v --device sata-mlc --capacity 999TiB", "--capacity = 999TiB: expected at most 7633633MiB for sata-mlc"),
    ("volume create v --device sata-mlc --seed x", "--seed cannot be `x`: expected a whole number of 0 or more"),
    ("volume create v --device sata-mlc --set buffer.mod=x", "unknown key `buffer.mod` in device 0 (sata-mlc); did you mean `mode`? Known keys: access_latency, bytes_per_s, capacity, eviction, exclusive_flush, high_water, low_water, mode, protected, range_flush"),
    ("volume create v --device qblke", "device 0 (qblke): firmware = open-channel: expected page: a host without an FTL of its own needs a device with a page namespace (of the medium of QBLKe there is `qblke-page`), or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in a scenario"),
    ("volume create v --device qblke --host-ftl pblk --capacity 1GiB", "--capacity is for devices with an FTL of their own: what a host FTL leaves follows from the flash, as in --set geometry.pages_per_block=64"),
    ("volume create v --device sata-mlc --host-ftl pblk", "--host-ftl needs a device with an open channel: expected one, as in --device qblke"),
    ("serve qblke", "device 0 (qblke): firmware = open-channel: expected page: a host without an FTL of its own needs a device with a page namespace (of the medium of QBLKe there is `qblke-page`), or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in a scenario"),
    ("serve qblke --host-ftl pblk --record r", "--record cannot record a host FTL: expected a device with pages, such as qblke-page"),
    ("volume create v --device mqsim-default", "ftl.metadata = none of mqsim-default: expected log, because a volume is recovered from what the device keeps on flash"),
    ("volume create . --device sata-mlc", ". is not empty: expected an empty directory, or a new name"),
    ("volume create none/v --device sata-mlc", "none/v cannot be made: there is no directory none"),
    ("volume create job.fio --device sata-mlc", "job.fio is not a directory: expected an empty directory, or a new name"),
    ("volume info", "missing: <DIR>"),
    ("volume info none", "none: there is no such directory"),
    ("volume info .", ". is not a volume: it has no volume.toml"),
    ("volume check none", "none: there is no such directory"),
    ("volume check job.fio", "job.fio is not a volume: it has no volume.toml"),
    ("mkfs f2fs", "missing: --size <SIZE>, <IMAGE>"),
    ("mkfs ext2 d.img", "unknown command `ext2`; did you mean `ext4`?"),
    ("mkfs f2fs d.img --size big", "--size cannot be `big`: expected a multiple of 4096 bytes, such as 1GiB"),
    ("mkfs f2fs d.img --size 1000", "--size cannot be `1000`: expected a multiple of 4096 bytes, such as 1GiB"),
    ("mkfs f2fs d.img --size 20MiB", "d.img: 20 MiB are too small for zones of 2 MiB: 2 zones are left for contents, expected at least 12"),
    ("mkfs f2fs d.img --size 16TiB", "d.img: 4294967296 blocks: expected at most 8 TiB"),
    ("mkfs f2fs d.img --size 1GiB --overprovision 96", "--overprovision cannot be `96`: expected 0.01 to 95"),
    ("mkfs f2fs d.img --size 1GiB -s 0", "--segments-per-section cannot be `0`: expected a whole number from 1 to 1024"),
    ("mkfs f2fs d.img --size 1GiB --feature verity", "d.img: no feature \"verity\" to make; there are extra_attr, flexible_inline_xattr, inode_checksum, inode_crtime, sb_checksum"),
    ("mkfs f2fs d.img --size 1GiB --uuid 123", "--uuid cannot be `123`: expected 32 hexadecimal digits, with or without dashes"),
    ("mkfs f2fs none/d.img --size 1GiB", "none/d.img cannot be written: there is no directory none"),
    ("mkfs f2fs job.fio --size 1GiB", "job.fio exists: expected a new name, or --force to replace it"),
    ("mkfs f2fs . --size 1GiB", ". is a directory: expected the name of a file to write"),
    ("mkfs ext4", "missing: --size <SIZE>, <IMAGE>"),
    ("mkfs ext4 d.img --size 4MiB", "d.img: 1024 blocks are too small for a journal: expected at least 2048, or ^has_journal"),
    ("mkfs ext4 d.img --size 20TiB", "d.img: 5368709120 blocks: expected less than 16 TiB"),
    ("mkfs ext4 d.img --size 40MiB -J 1MiB", "--journal-size cannot be `1MiB`: expected a multiple of 4096 bytes from 4MiB to 40000MiB, such as 128MiB"),
    ("mkfs ext4 d.img --size 64MiB -J 40MiB", "d.img: a journal of 10240 blocks on a volume of 16384: expected at most half"),
    ("mkfs ext4 d.img --size 64MiB -J 8MiB -O ^has_journal", "d.img: a journal of 2048 blocks, and none: the feature has_journal is off"),
    ("mkfs ext4 d.img --size 1GiB -N 1000000", "d.img: 1000000 inodes are too many for a volume of 262144 blocks: expected at most 262144"),
    ("mkfs ext4 d.img --size 1GiB -i 1024", "--inode-ratio cannot be `1024`: expected a whole number from 4096 to 67108864"),
    ("mkfs ext4 d.img --size 1GiB -m 51", "--reserved cannot be `51`: expected a whole number from 0 to 50"),
    ("mkfs ext4 d.img --size 1GiB --label a-label-of-17-byt", "d.img: a label of 17 bytes: expected at most 16"),
    ("mkfs ext4 d.img --size 1GiB -O verity", "d.img: no feature \"verity\" to switch; there are has_journal, dir_index, 64bit, flex_bg, sparse_super, huge_file, dir_nlink, uninit_bg, metadata_csum"),
    ("mkfs ext4 d.img --size 1GiB --hash-seed 1", "--hash-seed cannot be `1`: expected 32 hexadecimal digits, with or without dashes"),
    ("mkfs ext4 job.fio --size 1GiB", "job.fio exists: expected a new name, or --force to replace it"),
    ("fsck", "missing: <IMAGE>"),
    ("fsck none.img", "none.img: No such file or directory (os error 2)"),
    ("fsck .", ".: is a directory, expected an image file"),
    ("fsck job.fio", "job.fio: not an F2FS volume: the disk has 0 blocks of 4096 bytes; nor an ext4 volume: the disk has 0 bytes"),
    ("fsck zeros.img", "zeros.img: not an F2FS volume: the superblock begins with 0x00000000, expected 0xf2f52010; nor an ext4 volume: the magic number of the superblock is 0x0000, expected 0xef53"),
    ("volume chek none", "unknown command `chek`; did you mean `check`?"),
    (
        "crash sqlite --planted loose-set --journal delete",
        "--planted loose-set needs --journal batch-atomic: without, it changes nothing",
    ),
    (
        "crash sqlite --planted data-barriers --order none --format ext4-dual",
        "--planted data-barriers needs an --order with barriers: without, it changes nothing",
    ),
    (
        "sqlite --device amf --format alfs --commit dual",
        "--commit dual needs --format f2fs or ext4, not alfs",
    ),
    ("crash --device tiny", "--device cannot be `tiny`: expected one of <tiny>, tiny-drawn-N, or how some begin, as in `tiny-d4*`"),
    ("crash --planted early-flsh", "--planted cannot be `early-flsh`: expected one of <bugs>; did you mean `early-flush`?"),
    ("crash --replay v0-abc1234:tiny-d1/17/2/all/c1/-/-", "--replay: the line is of model 0 (commit abc1234), and this program has model 1: what happens differs, so replay it with that commit"),
    ("crash --replay nonsense", "--replay: `nonsense`: expected device/seed/boot/ops/cCUT/torn/nested[/bug]"),
    ("crash --mutants --planted early-flush", "--mutants cannot be used with --planted <BUG>"),
    ("crash files --on disk", "--on cannot be `disk`: expected model, late, device, layer or host-ftl"),
    ("run good.toml --report none/page.html", "none/page.html cannot be written: there is no directory none"),
    ("run good.toml --report", "--report needs a value"),
    ("run good.toml --set block_layer.scheduler=deadlin", "good.toml: `block_layer.scheduler` in the scenario cannot be \"deadlin\"; did you mean `deadline`? Expected none, deadline or cfq"),
    ("run good.toml --set block_layer.queues=2", "good.toml: the scenario: block_layer.queues = 2: expected 1 to 1 (on device sata-mlc)"),
    ("fio job.fio --device sata-mlc --block-layer mq", "`scheduler` in --block-layer cannot be \"mq\": expected none, deadline or cfq"),
    ("fio job.fio --device sata-mlc --block-layer cfq,dept=8", "unknown key `dept` in --block-layer; did you mean `depth`? Known keys: depth, dispatch, epochs, flush, merge_blocks_max, queues, retry_after, retry_on_completion, scheduler"),
    ("fio job.fio --device sata-mlc --block-layer dispatch=legcy", "`dispatch` in --block-layer cannot be \"legcy\"; did you mean `legacy`? Expected order-preserving, multi-queue or legacy"),
    ("replay good.trace --device sata-mlc --block-layer depth=0", "--block-layer: depth = 0: expected 1 to 65536"),
    ("fio job.fio --device sata-mlc --block-layer cfq,depth", "--block-layer: `depth` has no value: expected KEY=VALUE, as in depth=8"),
    ("fio job.fio --device sata-mlc --block-layer dispatch=multi-queue,queues=2", "block_layer.queues = 2, block_layer.depth = 32: expected at most 1 queues of 32 with multi-queue, as the link has"),
    ("run good.toml --out same --perfetto ./same", "--perfetto cannot be ./same: --out is that file: expected another"),
    ("run good.toml --csv same --report same", "--report cannot be same: --csv is that file: expected another"),
    ("fio job.fio --device sata-mlc --report .", ". is a directory: expected the name of a file to write"),
    ("waf --report none/page.html", "none/page.html cannot be written: there is no directory none"),
    ("trace info good.trace --report page.html", "unknown argument `--report`"),
    ("crash --report page.html", "unknown argument `--report`"),
    ("fsck d.img --json", "unknown argument `--json`: expected --output json, which every command has that gives JSON"),
    ("fio job.fio --device amf", "job.fio: [j]: segments are written at their write pointers: expected `zonemode=zbd`"),
    ("fio strided.fio --device amf", "strided.fio:1: [z]: `zonesize` without `zonemode` means `zonemode=strided`, which is not modelled: expected `zonemode=zbd` or `none`"),
    ("fio zoned.fio --device amf-page", "zoned.fio: [z]: `zonemode=zbd` needs a device with segments, such as `amf`"),
    ("fio zoned.fio --device amf --set append.lanes=8", "zoned.fio: [z]: zonesize=16MiB: the segments of the device have 4MiB"),
    ("fio zoned.fio --device amf --precondition instant", "precondition: expected none: segments are empty until a job writes them"),
    ("fio zoned.fio --device amf --block-layer deadline", "block_layer: expected none: it knows no segments"),
    ("replay good.trace --device amf", "good.trace: request 2, at sector 8, does not fit zones: nothing is written in its zone: expected sector 0"),
    ("serve amf", "device 0 (amf): firmware = append: expected page: a host that writes sectors in place needs a device with a page namespace (of the card of AMF there are `amf-page`, `amf-dftl` and `amf-fdp`)"),
    ("fio zoned.fio --device amf --set append.lanes=3", "device 0 (amf): append.lanes = 3: expected 0, or a part of the 32 planes into which they can be divided"),
    ("files fileserver --device sata-mlc --atomic-files", "--atomic-files withholds what is written until an fsync, and `fileserver` has none: expected a model that syncs, such as varmail"),
    ("files tpcc --device sata-mlc --atomic-files", "--atomic-files concerns models of filebench: expected one; a fio job has `atomic_files=1`, a database `double_write=atomic`"),
    ("fio share.fio --device sata-mlc", "share.fio: [s]: `share_from` needs a device with SHARE: expected `ftl.share.pages` above 0, as in the preset `share-960evo`"),
    ("fio share.fio --device share-960evo --set ftl.share.batch=8", "share.fio: [s]: a write of 64KiB is more than one SHARE of this device: expected at most 32KiB (ftl.share.batch)"),
    ("replay share.log --device sata-mlc", "share.log: a trace with remaps needs a device with SHARE: expected `ftl.share.pages` above 0, as in the preset `share-960evo`"),
    ("replay share.log --device share-960evo --set ftl.share.batch=1", "share.log: a remap of 16 sectors is more than one SHARE of this device: expected at most 8 (ftl.share.batch)"),
    ("fio placed.fio --device amf-page", "placed.fio: [p]: `fdp=1` needs a device with `ftl.placement.handles` above 1"),
    ("fio placed.fio --device amf-page --set ftl.placement.handles=2", "placed.fio: [p]: fdp_pli has 3: the device has the handles 0 to 1"),
    ("files job.fio again.fio --device sata-mlc", "[j] is a section of `job` and of `again`, which would use the same files: expected different names"),
    ("fio job.fio --device sata-mlc --seed 18446744073709551616", "--seed cannot be `18446744073709551616`: expected a whole number from 0 to 18446744073709551615"),
    ("serve sata-mlc --unix s --control s", "--control cannot be s: --unix is that socket: expected another"),
    ("threads --memory 64MiB --unix s --control s", "--control cannot be s: --unix is that socket: expected another"),
    ("serve sata-mlc --connections 0", "--connections cannot be `0`: expected a whole number from 1 to 4096"),
    ("sqlite --device sata-mlc --runtime 0s", "--runtime cannot be `0s`: expected more than 0"),
    ("crash foo", "unknown command `foo`; weir crash --help lists the commands"),
    ("crash --states 10 files", "--states <N> cannot be used with a command behind it"),
    ("crash sqlite --planted lazy-commit", "--planted lazy-commit needs a format with order, not ext4"),
    ("crash --states 0", "--states cannot be `0`: expected a whole number of 1 or more"),
    ("mkfs alfs new.img --size 64MiB", "new.img: 64 MiB are too small for segments of 16 MiB: 4 segments, expected 16 or more"),
    ("mkfs alfs new.img --size 1GiB --segment-size 3MiB", "--segment-size cannot be `3MiB`: expected a multiple of 2MiB up to 1GiB, such as 16MiB"),
    ("mkfs alfs new.img --size 1GiB -O casefold", "new.img: no feature \"casefold\" to make; there are extra_attr, flexible_inline_xattr, inode_checksum, inode_crtime"),
    ("files varmail --device amf", "--format f2fs writes over sectors, and amf has append segments: expected --format alfs, or another --device"),
    ("files varmail --device sata-mlc --format alfs", "--format alfs needs a device of append segments, and sata-mlc has none: expected --device amf, or --format f2fs or ext4"),
    ("files varmail --device amf --format alfs --commit dual", "--commit dual needs --format f2fs or ext4, not alfs"),
    ("crash files --format alfs --on late", "--on late with --format alfs: append segments in memory answer at once: expected model or device"),
    ("crash files --format f2fs-ssc --on host-ftl", "--on host-ftl with --format f2fs-ssc: a host FTL has no SHARE: expected model, late, device or layer"),
    ("crash sqlite --format alfs --on layer", "--on layer with format alfs: a block layer passes no segments: expected model or device"),
    ("crash files --format alfs --fsck-every 3", "--fsck-every: no program outside checks alfs: expected --format f2fs or ext4"),
    ("sqlite --device amf --format alfs --order all", "--order all needs --format f2fs or ext4, not alfs"),
];

#[test]
fn every_mistake_earns_one_line_and_exit_code_2() {
    let place = Place::new("bad");
    let presets: Vec<_> = flashweir_device::presets::names().collect();
    let tiny: Vec<_> = flashweir_crash::devices::all_names().collect();
    let bugs: Vec<_> = flashweir_crash::Bug::all().map(|(_, name)| name).collect();
    let lists = [("<presets>", presets.join(", ")), ("<tiny>", tiny.join(", ")), ("<bugs>", bugs.join(", "))];
    let before = place.names();
    for (line, expected) in BAD {
        let output = place.say(line);
        let mut expected = format!("weir: {expected}\n");
        for (mark, names) in &lists {
            expected = expected.replace(mark, names);
        }
        assert_eq!(text(&output.stderr), expected, "weir {line}");
        assert_eq!(output.status.code(), Some(2), "weir {line}");
        assert_eq!(text(&output.stdout), "", "weir {line}");
    }
    assert_eq!(place.names(), before, "a mistake leaves no file");
}

#[test]
fn zones_of_fio_are_segments() {
    let place = Place::new("zoned");
    let output = place.say("fio zoned.fio --device amf --set append.segments=8 --output json -q");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let job = &report["jobs"][0];
    assert_eq!((&job["write"]["total_ios"], &job["write"]["io_kbytes"]), (&1024.into(), &65_536.into()));
    assert_eq!(job["error"], 0);
}

#[test]
fn without_a_command_there_is_help_and_exit_code_2() {
    let output = Place::new("nothing").weir(&[]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
    assert!(text(&output.stderr).contains("Usage: weir"));
    assert!(text(&output.stderr).ends_with("weir: a command is missing; the help is above\n"));
}

#[test]
fn every_help_page_teaches_within_100_columns() {
    let place = Place::new("help");
    let pages = [
        "",
        "run",
        "fio",
        "files",
        "sqlite",
        "crash sqlite",
        "replay",
        "explain",
        "waf",
        "crash",
        "reproduce",
        "import mqsim",
        "volume create",
        "volume check",
        "mkfs f2fs",
        "mkfs ext4",
        "fsck",
    ];
    for page in pages {
        let output = place.say(&format!("{page} --help"));
        assert!(good(&output).contains("Examples:"), "{page}");
    }
    for page in
        pages.iter().chain(&["trace info", "device show", "device check", "device", "trace", "import"])
    {
        let output = place.say(&format!("{page} --help"));
        let wide = good(&output).lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{page}");
    }
    let version = place.say("--version");
    let version = good(&version).trim_end();
    assert!(version.starts_with(concat!("weir ", env!("CARGO_PKG_VERSION"))), "{version}");
    // Hash and day of the commit, where there is one.
    if let Some((_, commit)) = version.split_once(" (") {
        let (hash, day) = commit.strip_suffix(')').unwrap().split_once(' ').unwrap();
        assert!(hash.len() >= 7 && hash.chars().all(|digit| digit.is_ascii_hexdigit()), "{version}");
        assert!(day.len() == 10 && day.split('-').count() == 3, "{version}");
    }
}

#[test]
fn shells_and_the_manual_know_every_command() {
    let place = Place::new("manual");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.say(&format!("completions {shell}"));
        for word in ["replay", "perfetto-window", "mkfs"] {
            assert!(good(&script).contains(word), "{shell}: {word}");
        }
    }
    let page = place.say("man");
    assert!(good(&page).starts_with(".") && good(&page).contains("Time is virtual"), "{}", good(&page));
    assert_eq!(good(&place.say("man --out-dir pages/man1")), "");
    for (page, option) in [("weir.1", "help"), ("weir-fio.1", "csv"), ("weir-mkfs-ext4.1", "size")] {
        let text = std::fs::read_to_string(place.0.join("pages/man1").join(page)).unwrap();
        assert!(text.contains(option), "{page}");
    }
}

#[test]
fn devices_are_listed_shown_and_checked() {
    let place = Place::new("devices");
    let list = place.say("device list");
    for name in flashweir_device::presets::names() {
        assert_eq!(
            good(&list).lines().filter(|line| line.split(' ').next() == Some(name)).count(),
            1,
            "{name}"
        );
    }
    let shown = place.say("device show sata-mlc");
    std::fs::write(place.0.join("mine.toml"), good(&shown)).unwrap();
    let checked = place.say("device check mine.toml");
    assert!(
        good(&checked).starts_with("mine.toml: valid\n\nname        sata-mlc\n"),
        "{}",
        text(&checked.stdout)
    );
    let run = place.say("fio job.fio --device mine.toml --quiet");
    assert!(good(&run).contains("sata-mlc"));
    assert_eq!(text(&run.stderr), "");
}

#[test]
fn fio_prints_tables_and_the_json_of_fio() {
    let place = Place::new("fio");
    let table = place.say("fio job.fio --device sata-mlc --device low-latency-slc");
    let shown = good(&table);
    for word in ["device", "IOPS", "p99 µs", "WAF", "sata-mlc", "low-latency-slc", "read"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(text(&table.stderr).starts_with("weir: 4,000 requests in "), "{}", text(&table.stderr));
    let json = place.say("fio job.fio --device sata-mlc --output json --csv series.csv");
    let json: serde_json::Value = serde_json::from_str(good(&json)).unwrap();
    let job = &json["jobs"][0];
    assert_eq!(job["jobname"], "j");
    assert_eq!(job["read"]["total_ios"], 2000);
    assert_eq!(job["job options"]["rw"], "randread");
    assert_eq!(json["flashweir"]["device"], "sata-mlc");
    let csv = std::fs::read_to_string(place.0.join("series.csv")).unwrap();
    assert!(csv.lines().count() > 1 && csv.starts_with("device,workload,seed,job,kind"));
}

#[test]
fn set_reaches_the_device_and_precondition_its_state() {
    let place = Place::new("set");
    let iops = |options: &str| {
        let output = place.say(&format!("fio job.fio --device sata-mlc -q --output json {options}"));
        let json: serde_json::Value = serde_json::from_str(good(&output)).unwrap();
        json["jobs"][0]["read"]["iops"].as_f64().unwrap()
    };
    let plain = iops("");
    assert!(iops("--set timing.read=500us") < plain / 2.0);
    assert!(iops("--precondition none") > plain * 1.5, "nothing is read from the flash of a fresh device");
    assert_eq!(iops("--seed 1"), plain);
    assert!(iops("--seed 2") != plain);
}

const MATRIX: &str = "name = 'm'\nseeds = 2\nprecondition = { mode = 'instant', overwrite = 0.5 }
[[device]]\npreset = 'barrier-ufs'\ngeometry.blocks_per_plane = 64\nftl.over_provisioning = 0.3
[[device]]\npreset = 'low-latency-slc'\ngeometry.blocks_per_plane = 64\nftl.over_provisioning = 0.3
[[workload]]\nfio = 'job.fio'
[[workload]]\nname = 'w'\nfio_inline = \"[w]\\nrw=randrw\\nbs=4k\\niodepth=16\\nfsync=16\\nnumber_ios=3000\\n\"\n";

#[test]
fn any_number_of_jobs_gives_the_same_bytes() {
    let place = Place::new("jobs");
    std::fs::write(place.0.join("matrix.toml"), MATRIX).unwrap();
    let run = |jobs: &str| {
        let json = place.say(&format!("run matrix.toml --output json --jobs {jobs}"));
        let table = place.say(&format!("run matrix.toml --jobs {jobs}"));
        (good(&json).to_owned(), good(&table).to_owned())
    };
    let one = run("1");
    assert_eq!(one, run("2"));
    assert_eq!(one, run("7"));
    let json: serde_json::Value = serde_json::from_str(&one.0).unwrap();
    assert_eq!(json["runs"].as_array().unwrap().len(), 8);
    assert_eq!(json["runs"][7]["seed"], 2);
    assert!(one.1.contains("2 seeds, ±") && one.1.contains('±'));
}

#[test]
fn a_report_is_a_page_by_itself_and_changes_no_result() {
    let place = Place::new("report");
    std::fs::write(place.0.join("matrix.toml"), MATRIX).unwrap();
    let plain = good(&place.say("run matrix.toml -q")).to_owned();
    let page = |jobs: &str| {
        let shown = place.say(&format!("run matrix.toml --report page.html {jobs}"));
        assert_eq!(good(&shown), plain);
        std::fs::read_to_string(place.0.join("page.html")).unwrap()
    };
    let one = page("--jobs 1");
    assert!(one == page("-q -j 2"), "any number of jobs gives the same page");
    assert!(one.contains("<pre>weir run matrix.toml --report page.html</pre>"));
    assert!(one.starts_with("<!DOCTYPE html>") && one.ends_with("</html>\n"));
    for part in
        ["2 seeds", "id=\"throughput\"", "id=\"heat\"", "id=\"wear\"", "rw=randrw", "blocks_per_plane = 64"]
    {
        assert!(one.contains(part), "{part}");
    }
    let json = place.say("run matrix.toml -q --output json --report page.html");
    let json: serde_json::Value = serde_json::from_str(good(&json)).unwrap();
    assert!(json["runs"][0]["course"]["host_units"].is_string(), "who asks for a report gets its data");
    good(&place.say("replay good.trace --device sata-mlc -q --report trace.html"));
    let trace = std::fs::read_to_string(place.0.join("trace.html")).unwrap();
    assert!(trace.contains("id=\"throughput\"") && trace.contains("Device sata-mlc"));
}

#[test]
fn files_appear_whole_and_alone() {
    let place = Place::new("files");
    let before = place.names();
    good(&place.say("run good.toml --output json --out results.json --csv series.csv"));
    let mut expected = before.clone();
    expected.extend(["results.json".to_owned(), "series.csv".to_owned()]);
    expected.sort();
    assert_eq!(place.names(), expected);
    let first = std::fs::read(place.0.join("results.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&first).unwrap();
    let failed = place.say("run badfio.toml --output json --out results.json");
    assert_eq!(failed.status.code(), Some(2));
    assert_eq!(
        std::fs::read(place.0.join("results.json")).unwrap(),
        first,
        "a failure leaves what was there"
    );
}

/// Found here: the file that a symbolic link leads to stayed old, and the link was gone; a name that is no UTF-8 ended a run after its last
/// request, without its page.
#[test]
fn regression_links_lead_to_files_and_names_are_bytes() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new("links");
    std::fs::write(place.0.join("target"), "old").unwrap();
    std::os::unix::fs::symlink("target", place.0.join("link")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["run", "good.toml", "--csv", "link", "--report"]).arg(odd).current_dir(&place.0);
    good(&command.output().unwrap());
    assert!(place.0.join("link").is_symlink());
    assert!(std::fs::read_to_string(place.0.join("target")).unwrap().contains(','));
    assert!(place.0.join(odd).is_file());
}

#[test]
fn results_come_before_files_that_cannot_be_written() {
    let place = Place::new("unwritable");
    let fio = "fio job.fio --device sata-mlc";
    let waf = "waf --device amf-page --set geometry.channels=1 --set geometry.chips_per_channel=1 --policy greedy \
               --over-provisioning 0.3 --settle 0 --measure 0.1";
    // That device accepts no output, and only reports that when it is written to.
    for line in [
        format!("{fio} --csv /dev/full"),
        format!("{fio} --report /dev/full"),
        format!("{fio} --csv /dev/full --report good.html"),
        format!("{waf} --report /dev/full"),
    ] {
        let output = place.say(&line);
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stdout).lines().count() > 1, "{line}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("/dev/full cannot be written: No space left"), "{line}");
    }
    assert!(place.names().contains(&"good.html".to_owned()), "one file costs no other");
}

#[test]
fn time_lines_of_all_runs_are_in_one_file() {
    let place = Place::new("perfetto");
    let before = place.names();
    let two = "fio job.fio --device sata-mlc --device low-latency-slc --fill 0.05";
    let plain = place.say(&format!("{two} -q"));
    let traced = place.say(&format!("{two} --perfetto t.json"));
    assert_eq!(good(&plain), good(&traced), "what is measured does not depend on it");
    assert!(text(&traced.stderr).contains("t.json: ") && text(&traced.stderr).contains(" events"));
    let shown = |file: &str| {
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.0.join(file)).unwrap()).unwrap();
        json["traceEvents"].as_array().unwrap().clone()
    };
    let names: Vec<String> = shown("t.json")
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), 8);
    assert!(names[0].starts_with("sata-mlc, job · ") && names[7].starts_with("low-latency-slc, job · "));
    let window = place
        .say("fio job.fio --device sata-mlc --fill 0.05 -q --perfetto w.json --perfetto-window 1ms..1.5ms");
    assert_eq!(text(&window.stderr), "");
    let times: Vec<f64> = shown("w.json").iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert!(times.len() > 20 && times.iter().all(|ts| (0.0..1600.0).contains(ts)), "{times:?}");
    let mut expected = before;
    expected.extend(["t.json".to_owned(), "w.json".to_owned()]);
    expected.sort();
    assert_eq!(place.names(), expected, "no parts are left");
}

#[test]
fn explanations_add_up_and_agree_with_what_was_measured() {
    let place = Place::new("explain");
    let read = |line: &str| -> serde_json::Value { serde_json::from_str(good(&place.say(line))).unwrap() };
    let measured = read("fio job.fio --device sata-mlc --fill 0.05 --output json -q");
    let mean = measured["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    let explained = read("explain job.fio --device sata-mlc --fill 0.05 --output json -q");
    let run = &explained["runs"][0];
    let all = &run["kinds"][0]["all"];
    assert_eq!((&run["kinds"][0]["kind"], &all["requests"]), (&"read".into(), &2000.into()));
    assert!((all["latency_ns"].as_f64().unwrap() / mean - 1.0).abs() < 1e-6, "{all} {mean}");
    for column in ["all", "median", "slowest"] {
        let column = &run["kinds"][0][column];
        let stages = column["stages"].as_object().unwrap();
        let sum: f64 = stages.values().map(|stage| stage["ns"].as_f64().unwrap()).sum();
        assert!((sum / column["latency_ns"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{column}");
    }
    let layered = "job.fio --device sata-mlc --fill 0.05 --block-layer deadline,depth=1 --output json -q";
    let measured = read(&format!("fio {layered}"));
    let mean = measured["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    let explained = read(&format!("explain {layered}"));
    let all = &explained["runs"][0]["kinds"][0]["all"];
    assert!((all["latency_ns"].as_f64().unwrap() / mean - 1.0).abs() < 1e-6, "{all} {mean}");
    let stages = all["stages"].as_object().unwrap();
    let sum: f64 = stages.values().map(|stage| stage["ns"].as_f64().unwrap()).sum();
    assert!((sum / mean - 1.0).abs() < 1e-6, "{all}");
    assert!(stages["block layer: in the scheduler"]["ns"].as_f64().unwrap() > 0.0, "{all}");
    let slowest = &run["slowest_requests"][0];
    let number = slowest["request"].as_u64().unwrap();
    let one =
        read(&format!("explain job.fio --device sata-mlc --fill 0.05 --request {number} --output json -q"));
    assert_eq!(one["runs"][0]["pieces"], slowest["pieces"]);
    let pieces = slowest["pieces"].as_array().unwrap();
    let ends =
        pieces.iter().map(|piece| (piece["from_ns"].as_u64().unwrap(), piece["until_ns"].as_u64().unwrap()));
    let end = ends.fold(0, |at, (from, until)| {
        assert_eq!(at, from, "{pieces:?}");
        until
    });
    assert_eq!(slowest["latency_ns"], end);
    let shown = place.say(&format!("explain job.fio --device sata-mlc --fill 0.05 --request {number} -q"));
    for word in ["array, host read, ch ", "link up", "latency", "100%"] {
        assert!(good(&shown).contains(word), "{word}: {}", text(&shown.stdout));
    }
    let table = place.say(
        "explain good.toml -q --slowest 1% --set precondition.mode=instant --set precondition.fill=0.05",
    );
    for word in
        ["sata-mlc, job: read\n", "× the median", "slowest 1 %", "die busy with host read", "--request N: "]
    {
        assert!(good(&table).contains(word), "{word}: {}", text(&table.stdout));
    }
}

#[test]
fn remaps_run_from_job_files_and_from_traces() {
    let place = Place::new("remaps");
    let read = |line: &str| -> serde_json::Value { serde_json::from_str(good(&place.say(line))).unwrap() };
    let run = read("fio share.fio --device share-960evo --fill 0.02 --output json -q");
    let ours = &run["flashweir"];
    assert_eq!(
        (&ours["shares"][0]["total_ios"], &ours["metrics"]["device.shares"]),
        (&256.into(), &256.into())
    );
    assert_eq!(ours["metrics"]["device.host_units_shared"], 4096);
    assert_eq!(
        (&ours["totals"]["host_written_bytes"], &run["jobs"][0]["write"]["total_ios"]),
        (&0.into(), &0.into())
    );
    assert_eq!(run["jobs"][0]["job options"]["share_from"], "0");
    let layered = "explain share.fio --device share-960evo --fill 0.02 --block-layer none --kind share --output json -q";
    let kinds = read(layered)["runs"][0]["kinds"].clone();
    assert_eq!((&kinds[0]["kind"], &kinds[0]["all"]["requests"]), (&"share".into(), &256.into()));
    let run = read("replay share.log --device share-960evo --fill 0.02 --output json -q");
    assert_eq!(run["flashweir"]["metrics"]["device.host_units_shared"], 2);
    let info = place.say("trace info share.log");
    assert!(
        good(&info).contains("shares        1 (50.0 %), 0.0 MB, 8.0 KiB each\n"),
        "{}",
        text(&info.stdout)
    );
}

#[test]
fn requests_that_fail_are_exit_code_1_after_the_results() {
    let place = Place::new("worn");
    let job = "[j]\nrw=randwrite\nbs=4k\niodepth=8\nio_size=1g\nnorandommap\n";
    std::fs::write(place.0.join("worn.fio"), job).unwrap();
    let output = place.say(
        "fio worn.fio --device mobile-ufs --set faults.endurance=2 --set geometry.blocks_per_plane=32 \
         --set geometry.pages_per_block=48 --set ftl.over_provisioning=0.4 --overwrite 1 --quiet",
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("IOPS"));
    let said = text(&output.stderr);
    assert!(said.ends_with(" the device is read-only: it has no spare blocks left\n"), "{said}");
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["device", "show", "sata-mlc"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn an_interrupt_ends_the_run_shows_what_is_there_and_writes_no_file() {
    let place = Place::new("interrupt");
    std::fs::write(place.0.join("long.fio"), "[j]\nrw=randread\niodepth=4\ntime_based\nruntime=10d\n")
        .unwrap();
    let before = place.names();
    let output = Command::new("timeout")
        .args(["--preserve-status", "--signal=INT", "4", env!("CARGO_BIN_EXE_weir"), "fio", "long.fio"])
        .args(["--device", "barrier-ufs", "--precondition", "none", "--out", "out.json"])
        .current_dir(&place.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = "weir: stopped: 0 of 1 runs are through, 1 in part\nweir: stopped before the end\n";
    assert_eq!(text(&output.stderr), said);
    let shown = text(&output.stdout);
    assert!(shown.lines().any(|line| line.starts_with("barrier-ufs  long      j    read  ")), "{shown}");
    assert_eq!(place.names(), before);
}

#[test]
fn traces_are_summed_up_and_replayed() {
    let place = Place::new("trace");
    let info = place.say("trace info good.trace");
    assert!(good(&info).contains("requests      3\n"), "{}", text(&info.stdout));
    let info = place.say("trace info good.trace --output json");
    let info: serde_json::Value = serde_json::from_str(good(&info)).unwrap();
    assert_eq!((&info["reads"], &info["format"]), (&2.into(), &"mqsim".into()));
    let replayed =
        place.say("replay good.trace --device sata-mlc --output json --timing closed=2 --repeat 3");
    let json: serde_json::Value = serde_json::from_str(good(&replayed)).unwrap();
    assert_eq!(json["jobs"][0]["read"]["total_ios"], 6);
    assert_eq!(json["jobs"][0]["job options"]["timing"], "closed=2");
    let wrapped = place.say("replay beyond.trace --device sata-mlc --fit wrap -q");
    assert!(good(&wrapped).contains("beyond"));
    let sorted = place.say("replay backwards.trace --device sata-mlc --sort");
    good(&sorted);
    assert!(text(&sorted.stderr).contains("warning: backwards.trace: 1 requests are earlier"));
}

/// MQSim's files as they come with the project.
fn mqsim(name: &str) -> String {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/mqsim")).join(name).display().to_string()
}

#[test]
fn mqsim_files_become_a_device_and_jobs_that_run() {
    let place = Place::new("import");
    let imported = place.say(&format!(
        "import mqsim {} --workload {} -o imported -q",
        mqsim("ssd-small-ideal.xml"),
        mqsim("r8k-qd32.xml")
    ));
    assert!(good(&imported).contains("weir fio imported/scenario-1.fio --device imported/device.toml"));
    let checked = place.say("device check imported/device.toml");
    assert!(good(&checked).contains("name        ssd-small-ideal"));
    let on_stdout = place.say(&format!("import mqsim {} -q", mqsim("ssd-small-ideal.xml")));
    let file = std::fs::read_to_string(place.0.join("imported/device.toml")).unwrap();
    assert_eq!(good(&on_stdout), file);
}

#[test]
fn write_amplification_stands_beside_theory() {
    let place = Place::new("waf");
    let small = "waf --device amf-page --set geometry.channels=1 --set geometry.chips_per_channel=1 \
                 --set ftl.gc.hot_cold=false --over-provisioning 0.2,0.3 --output json -q";
    let points = |options: &str| good(&place.say(&format!("{small} {options}"))).to_owned();
    let text = points("--jobs 1");
    assert_eq!(text, points("--jobs 2 --report page.html"));
    let page = std::fs::read_to_string(place.0.join("page.html")).unwrap();
    for part in ["id=\"parameter\"", "id=\"waf\"", "id=\"wear\"", "closed form", "greedy, spare 0.2"] {
        assert!(page.contains(part), "{part}");
    }
    let points: serde_json::Value = serde_json::from_str(&text).unwrap();
    let points = points["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    for point in points {
        let (ours, theirs) = (point["measured"].as_f64().unwrap(), point["closed_form"].as_f64().unwrap());
        assert!((ours / theirs - 1.0).abs() < 0.03, "{point}");
    }
}

#[test]
fn workloads_on_files_run_side_by_side() {
    let place = Place::new("files");
    let jobs = "[sync]\nrw=randwrite\nbs=4k\nsize=1m\ndirect=1\nfsync=8\n";
    std::fs::write(place.0.join("sync.fio"), jobs).unwrap();
    let line = "files varmail,nfiles=50,nthreads=2 sync.fio --device rflush --set geometry.chips_per_channel=2 \
                --flush flush,noflush --runtime 50ms -q";
    let table = good(&place.say(line)).to_owned();
    for needle in ["rflush, FLUSH", "rflush, NOFLUSH", "fsync-new", "sync      write", "write amplification"]
    {
        assert!(table.contains(needle), "{needle}: {table}");
    }
    let json = |jobs: u32| good(&place.say(&format!("{line} --output json --jobs {jobs}"))).to_owned();
    let all: serde_json::Value = serde_json::from_str(&json(1)).unwrap();
    assert_eq!(all["runs"].as_array().unwrap().len(), 2);
    assert_eq!(all["runs"][0]["workloads"][1]["name"], "sync");
    assert_eq!(json(1), json(2), "results depend on the number of jobs");
    assert!(all["runs"][0].get("ext4").is_none() && all["runs"][0].get("f2fs").is_none());
    let line = "files varmail,nfiles=50,nthreads=2 --device barrier-850 --format ext4 --commit dual --runtime 50ms -q";
    let table = good(&place.say(line)).to_owned();
    for needle in ["barrier-850, ext4 ordered dual, FLUSH", "transactions committed"] {
        assert!(table.contains(needle), "{needle}: {table}");
    }
    let all: serde_json::Value =
        serde_json::from_str(good(&place.say(&format!("{line} --output json")))).unwrap();
    assert_eq!(all["runs"][0]["ext4"]["commit_mode"], "dual_mode");
    assert!(all["runs"][0]["metrics"]["ext4.commits"].as_u64().unwrap() > 0);
    let line = "files varmail,nfiles=50,nthreads=2 --device barrier-850 --commit dual --runtime 50ms -q";
    let table = good(&place.say(line)).to_owned();
    assert!(table.contains("barrier-850, f2fs dual, FLUSH"), "{table}");
}

#[test]
fn sqlite_runs_by_waiting_and_by_order() {
    let place = Place::new("sqlite");
    let line = "sqlite --device barrier-850 --journal persist,wal --order none,durable --transactions 30 -q";
    let table = good(&place.say(line)).to_owned();
    for needle in [
        "journal's end   fdatasync",
        "fdatabarrier",
        "ext4 ordered legacy",
        "ext4 ordered dual",
        "transactions/s",
    ] {
        assert!(table.contains(needle), "{needle}: {table}");
    }
    let json = |jobs: u32| good(&place.say(&format!("{line} --output json --jobs {jobs}"))).to_owned();
    let all: serde_json::Value = serde_json::from_str(&json(1)).unwrap();
    assert_eq!(all["runs"].as_array().unwrap().len(), 4);
    assert_eq!(all["runs"][3]["plan"]["order"], "durable");
    assert_eq!(json(1), json(2), "results depend on the number of jobs");
    let line = "crash sqlite --journal wal --count 1 --cuts-each 6 --transactions 8 -q";
    assert!(good(&place.say(line)).contains("violations"));
    let bug = place.say("crash sqlite --planted no-database-sync --count 4 -q");
    assert_eq!(bug.status.code(), Some(1));
    assert!(
        text(&bug.stdout)
            .contains("to see it again: weir crash sqlite --format ext4 --on device --journal delete")
    );
}

#[test]
fn claims_stand_beside_what_comes_out() {
    let place = Place::new("reproduce");
    let json = |jobs: u32| {
        good(&place.say(&format!("reproduce barrier --study dwsl-ufs -q --jobs {jobs} --output json")))
            .to_owned()
    };
    let text = json(1);
    assert_eq!(text, json(2));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let claims = value["claims"].as_array().unwrap();
    let verdict =
        |id: &str| claims.iter().find(|claim| claim["id"] == id).unwrap()["verdict"].as_str().unwrap();
    assert_eq!((verdict("B2-ufs"), verdict("B8-ufs")), ("reproduced", "reproduced"));
    let table = place.say("reproduce barrier --study dwsl-ufs -q --report page.html");
    assert!(good(&table).contains(&format!("of {} claims inside their bands", claims.len())));
    let page = std::fs::read_to_string(place.0.join("page.html")).unwrap();
    assert!(page.contains("fsync_mean_us") && page.contains("BFS-MV"));
    assert!(page.contains("<td>B8-ufs</td>") && page.contains("<td>reproduced</td>"));
}

#[test]
fn the_crash_laboratory_counts_draws_and_replays() {
    let place = Place::new("crash");
    let clean = place.say("crash --device tiny-d1 --states 2000");
    assert!(good(&clean).contains("violations: 0"));
    assert!(text(&clean.stderr).contains(" distinct states in "));
    let found = place.say("crash --device tiny-d1 --planted early-flush --quiet");
    assert_eq!((found.status.code(), text(&found.stderr)), (Some(1), "weir: 1 violation of the contract\n"));
    let shown = text(&found.stdout);
    let token =
        shown.lines().find_map(|line| line.strip_prefix("to see it again: weir crash --replay ")).unwrap();
    let replayed = place.weir(&["crash", "--replay", token.trim_matches('\'')]);
    assert_eq!(replayed.status.code(), Some(1));
    assert!(text(&replayed.stderr).starts_with("weir: violation: "), "{}", text(&replayed.stderr));
}

#[test]
fn a_volume_is_made_looked_at_and_checked() {
    let place = Place::new("volume");
    let made = place.say("volume create v --device sata-mlc --capacity 1GiB --seed 7");
    assert_eq!(good(&made), "v: 1.0 GiB of sata-mlc; weir serve v\n");
    let info = place.say("volume info v");
    for line in [
        "volume       v\n",
        "device       sata-mlc, seed 7\n",
        "capacity     1.0 GiB (1073741824 bytes)\n",
        "kind         D1, write-back: a write is durable after a FLUSH\n",
        "format       2, firmware page-mapped\n",
        "state        closed\n",
        "used         0.0 MiB written and not deallocated (0.0 %)\n",
    ] {
        assert!(good(&info).contains(line), "{line}{}", text(&info.stdout));
    }
    let info = place.say("volume info v --output json");
    let info: serde_json::Value = serde_json::from_str(good(&info)).unwrap();
    assert_eq!((&info["capacity_bytes"], &info["kind"]), (&(1 << 30).into(), &"D1".into()));
    assert_eq!((&info["clean"], &info["content"]["mapped_bytes"]), (&true.into(), &0.into()));
    let checked = place.say("volume check v");
    assert_eq!(good(&checked), "no problems: 0 pages read, closed, recovery finds 0.0 MiB of the host\n");
    let checked = place.say("volume check v --output json");
    let checked: serde_json::Value = serde_json::from_str(good(&checked)).unwrap();
    assert_eq!(checked["problems"], serde_json::json!([]));
}

#[test]
fn segments_of_a_volume_are_reported() {
    let place = Place::new("segments");
    good(&place.say("mkfs alfs --size 64MiB --segment-size 2MiB a.img"));
    let said = place.say("fsck a.img --segments");
    let lines: Vec<&str> = good(&said).lines().collect();
    for (number, line) in [(0, "0 closed 2 - superblock"), (3, "3 closed 4 4 map"), (31, "31 empty 0 0 free")]
    {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(lines.iter().any(|said| words(said) == line), "{number}: {lines:#?}");
    }
    good(&place.say("mkfs ext4 --size 64MiB e.img"));
    let refused = place.say("fsck e.img --segments");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("e.img is ext4, which has none: expected ALFS"));
}

#[test]
fn a_damaged_volume_is_exit_code_1_with_a_list() {
    let place = Place::new("damaged");
    good(&place.say("volume create v --device sata-mlc --capacity 1GiB"));
    let flip = |file: &str, at: usize| {
        let path = place.0.join("v").join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    [0, 640].into_iter().for_each(|at| flip("blocks", at));
    let checked = place.say("volume check v");
    assert_eq!(
        text(&checked.stdout),
        "blocks, block 0: both slots are wrong\nblocks, block 10: both slots are wrong\n\
         2 problems: 0 pages read, closed, recovery was not tried\n"
    );
    assert_eq!(checked.status.code(), Some(1));
    assert_eq!(text(&checked.stderr), "weir: v is damaged: 2 problems\n");
    let info = place.say("volume info v");
    assert!(good(&info).contains("used         not known: 2 problems, weir volume check lists them\n"));
    [0, 640].into_iter().for_each(|at| flip("blocks", at));
    flip("state", 3);
    let info = place.say("volume info v");
    assert_eq!((info.status.code(), text(&info.stderr)), (Some(1), "weir: v: state: wrong checksum\n"));
    flip("state", 3);
    let description = std::fs::read_to_string(place.0.join("v/volume.toml")).unwrap();
    std::fs::write(place.0.join("v/volume.toml"), description.replace("format = 2", "format = 3")).unwrap();
    let newer = place.say("volume check v");
    let said = "weir: v: the volume has format 3, and this program knows formats up to 2\n";
    assert_eq!((newer.status.code(), text(&newer.stderr)), (Some(2), said));
}

/// A volume of format 1 that was killed in the middle of a write, from the fixtures of the volumes' own tests.
fn unpack_old_volume(place: &Place, name: &str) {
    use std::io::Read as _;
    let packed = include_bytes!("../../../serve/src/volume/fixtures/page-torn.gz");
    let (mut whole, directory) = (Vec::new(), place.0.join(name));
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut whole).unwrap();
    std::fs::create_dir(&directory).unwrap();
    let mut rest = &whole[..];
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (file, len) = text(&rest[..end]).split_once(' ').unwrap();
        let (content, after) = rest[end + 1..].split_at(len.parse().unwrap());
        std::fs::write(directory.join(file), content).unwrap();
        rest = after;
    }
    std::fs::remove_file(directory.join("expected")).unwrap();
}

#[test]
fn an_old_volume_is_named_looked_at_and_upgraded() {
    let place = Place::new("upgrade");
    unpack_old_volume(&place, "v");
    let said = "weir: v: the volume has format 1, and this program writes format 2: weir volume upgrade v\n";
    for line in ["serve v --tcp 127.0.0.1:0", "mount v ."] {
        let refused = place.say(line);
        assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(2), said), "{line}");
    }
    let info = place.say("volume info v");
    let format = "format       1, firmware page-mapped, an old one: weir volume upgrade\n";
    assert!(good(&info).contains(format), "{}", text(&info.stdout));
    good(&place.say("volume check v"));
    let done = place.say("volume upgrade v");
    let recovers = "it was not closed, and its device recovers when it is opened";
    let (before, after) = good(&done).split_once(" pages; ").unwrap();
    assert!(before.starts_with("v: format 1 became 2, "), "{before}");
    assert_eq!(after, format!("{recovers}\n"));
    assert_eq!(good(&place.say("volume upgrade v")), "v has format 2 already\n");
    let info: serde_json::Value =
        serde_json::from_str(good(&place.say("volume info v --output json"))).unwrap();
    assert_eq!((&info["format"], &info["firmware"]), (&2.into(), &"page-mapped".into()));
    assert!(good(&place.say("volume check v")).starts_with("no problems: "));
    for line in ["serve v --tcp 127.0.0.1:0 --memory 1GiB", "mount v . --memory 1GiB"] {
        let refused = place.say(line);
        assert_eq!(refused.status.code(), Some(2), "{line}");
        assert!(text(&refused.stderr).ends_with("on the volume v is on the host's disk\n"), "{line}");
    }
    let refused = place.say("serve v --tcp 127.0.0.1:0 --host-ftl pblk");
    let said = "weir: --host-ftl is for devices in memory: the volume v has its own\n";
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(2), said));
    let small = place.say("serve sata-mlc --memory 4KiB");
    assert!(
        text(&small.stderr).contains("expected a size from 1MiB on, such as 1GiB"),
        "{}",
        text(&small.stderr)
    );
    let missing = place.say("volume upgrade w");
    assert_eq!(
        (missing.status.code(), text(&missing.stderr)),
        (Some(2), "weir: w: there is no such directory\n")
    );
}

#[test]
fn a_volume_that_is_locked_is_not_checked() {
    let place = Place::new("locked");
    good(&place.say("volume create v --device sata-mlc --capacity 1GiB"));
    let (own, gone) = (std::process::id(), u32::MAX);
    let lock = std::fs::File::open(place.0.join("v/lock")).unwrap();
    lock.lock().unwrap();
    // The number is that of the process that has it open; of one that has ended it is left out.
    for (process, who) in [(own, format!("process {own}")), (gone, "another process".to_owned())] {
        std::fs::write(place.0.join("v/lock"), format!("{process}\n")).unwrap();
        let checked = place.say("volume check v");
        assert_eq!(checked.status.code(), Some(1));
        assert_eq!(text(&checked.stderr), format!("weir: v is in use by {who}\n"));
        assert!(good(&place.say("volume info v")).contains(&format!("state        in use by {who}\n")));
    }
    lock.unlock().unwrap();
    // Two who only look do not hold each other up.
    lock.lock_shared().unwrap();
    good(&place.say("volume info v"));
    lock.unlock().unwrap();
    good(&place.say("volume check v"));
}

#[test]
fn an_image_is_made_and_checked() {
    let place = Place::new("mkfs");
    let uuid = "--uuid 00112233-4455-6677-8899-aabbccddeeff --time 1700000000";
    let line = format!("mkfs f2fs d.img --size 256MiB --label weir -O inode_checksum {uuid}");
    let made = place.say(&line);
    let volume = "F2FS of 256.0 MiB called \"weir\" with extra_attr, inode_checksum";
    assert_eq!(good(&made), format!("d.img: {volume}; weir fsck d.img\n"));
    let bytes = std::fs::read(place.0.join("d.img")).unwrap();
    assert_eq!(bytes.len(), 256 << 20);
    let checked = place.say("fsck d.img");
    assert_eq!(
        good(&checked),
        format!(
            "{volume}, unmounted, checkpoint 428935297\n1 directories, 0 files, 0 others, 0 orphans; 1 nodes, 1 blocks of \
             data, 0 reserved\n"
        )
    );
    good(&place.say(&format!("{line} --force")));
    assert!(std::fs::read(place.0.join("d.img")).unwrap() == bytes, "the same options give the same bytes");
    let found: serde_json::Value =
        serde_json::from_str(good(&place.say("fsck d.img --output json"))).unwrap();
    assert_eq!((&found["clean"], &found["problems"]), (&true.into(), &serde_json::json!([])));
    let other = place.say("mkfs f2fs e.img --size 256MiB");
    good(&other);
    assert!(
        std::fs::read(place.0.join("e.img")).unwrap() != bytes,
        "an identity is random unless it is given"
    );
}

#[test]
fn an_ext4_image_is_made_recognised_and_checked() {
    let place = Place::new("mkfs-ext4");
    let ids = "--uuid 00112233-4455-6677-8899-aabbccddeeff --time 1700000000 --hash-seed \
               000102030405060708090a0b0c0d0e0f";
    let line = format!("mkfs ext4 d.img --size 64MiB --label weir -O ^64bit {ids}");
    let volume = "ext4 of 64.0 MiB called \"weir\" with ^64bit";
    assert_eq!(good(&place.say(&line)), format!("d.img: {volume}; weir fsck d.img\n"));
    let path = place.0.join("d.img");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 64 << 20);
    let found =
        "2 directories, 0 files, 0 others, 0 orphans; 1029 blocks of data, 1028 of metadata, 14327 free";
    assert_eq!(good(&place.say("fsck d.img")), format!("{volume}, unmounted\n{found}\n"));
    good(&place.say(&format!("{line} --force")));
    assert!(std::fs::read(&path).unwrap() == bytes, "the same options give the same bytes");
    let json: serde_json::Value = serde_json::from_str(good(&place.say("fsck d.img --output json"))).unwrap();
    assert_eq!((&json["format"], &json["problems"]), (&"ext4".into(), &serde_json::json!([])));
    let mut broken = bytes.clone();
    broken[1024 + 0x78] ^= 1;
    std::fs::write(&path, &broken).unwrap();
    let checked = place.say("fsck d.img");
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stdout).starts_with("mount: the superblock's checksum is "));
    assert_eq!(text(&checked.stderr), "weir: d.img is damaged: 1 problem\n");
}

#[test]
fn a_damaged_image_is_exit_code_1_with_a_list() {
    let place = Place::new("fsck");
    good(&place.say("mkfs f2fs d.img --size 64MiB --uuid 00112233445566778899aabbccddeeff"));
    let path = place.0.join("d.img");
    let whole = std::fs::read(&path).unwrap();
    let damaged = |changes: &[(usize, u8)]| {
        let mut bytes = whole.clone();
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        std::fs::write(&path, bytes).unwrap();
        let checked = place.say("fsck d.img");
        assert_eq!(checked.status.code(), Some(1), "{}", text(&checked.stderr));
        (text(&checked.stdout).to_owned(), text(&checked.stderr).to_owned())
    };
    let main = whole.chunks(4096).position(|block| block[..4] == [0xed, 0x41, 0, 1]).unwrap() * 4096;
    let (said, end) = damaged(&[(main + 12, 5)]);
    assert!(said.starts_with("links: directory 3 counts 5 links, found 2\n"), "{said}");
    assert_eq!(end, "weir: d.img is damaged: 1 problem\n");
    let (said, end) = damaged(&[(512 * 4096, 0xff), (1024 * 4096, 0xff)]);
    assert!(said.starts_with("mount: no checkpoint pack is valid\n"), "{said}");
    assert_eq!(end, "weir: d.img is damaged: 1 problem\n");
}

#[test]
fn an_interrupt_shows_what_was_explained_and_which_claims_were_judged() {
    let place = Place::new("interrupt-explain");
    std::fs::write(place.0.join("long.fio"), "[j]\nrw=randread\niodepth=4\ntime_based\nruntime=10d\n")
        .unwrap();
    // Stopped after a short time, which is longer on a busy machine: until `is_enough` accepts what was done by then.
    let interrupted = |line: &str, is_enough: &dyn Fn(&Output) -> bool| {
        let stopped = ["4", "10", "40", "160"].into_iter().map(|after| {
            let output = Command::new("timeout")
                .args(["--preserve-status", "--signal=INT", after, env!("CARGO_BIN_EXE_weir")])
                .args(line.split(' '))
                .current_dir(&place.0)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
            output
        });
        let mut stopped = stopped.skip_while(|output| !is_enough(output));
        stopped.next().unwrap_or_else(|| panic!("`{line}` has done nothing in 160 s"))
    };
    let output = interrupted("explain long.fio --device barrier-ufs --precondition none", &|output| {
        text(&output.stderr).contains("1 in part")
    });
    assert!(text(&output.stderr).starts_with("weir: stopped: 0 of 1 runs are through, 1 in part\n"));
    assert!(text(&output.stdout).contains("latency"), "{}", text(&output.stdout));
    // The first study takes seconds, the other ones minutes.
    let studies = "--study dwsl-ufs --study sqlite-itself-ufs --study oltp-insert-plain";
    let output = interrupted(&format!("reproduce barrier {studies} --jobs 1 -q"), &|output| {
        text(&output.stdout).contains("claims inside their bands")
    });
    assert!(text(&output.stderr).contains("runs are through"), "{}", text(&output.stderr));
}

#[test]
fn fio_reads_back_what_it_wrote_and_compares_it() {
    let place = Place::new("verify");
    let job = "[v]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=8\nverify=crc32c\nend_fsync=1\n";
    std::fs::write(place.0.join("verify.fio"), job).unwrap();
    let read = |file: &str| -> serde_json::Value {
        serde_json::from_str(good(&place.say(&format!("fio {file} --device sata-mlc -q --output json"))))
            .unwrap()
    };
    let json = read("verify.fio");
    let job = &json["jobs"][0];
    assert_eq!((&job["write"]["total_ios"], &job["read"]["total_ios"]), (&1024.into(), &1024.into()));
    std::fs::write(place.0.join("plain.fio"), "[v]\nrw=randwrite\nbs=4k\nsize=4m\nverify=md5\ndo_verify=0\n")
        .unwrap();
    assert_eq!(read("plain.fio")["jobs"][0]["read"]["total_ios"], 0);
    // Two jobs in one place: as in fio, one of them finds what the other wrote.
    let both = "[global]\nrw=write\nbs=4k\nsize=1m\nverify=crc32c\n[a]\n[b]\n";
    std::fs::write(place.0.join("both.fio"), both).unwrap();
    let output = place.say("fio both.fio --device sata-mlc -q");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("reads back something else at"), "{}", text(&output.stderr));
    for (options, wrong) in [
        (
            "rw=randread\nverify=md5",
            "`verify` reads back what the job itself has written, and it writes nothing",
        ),
        (
            "rw=write\nbs=512\nverify=md5",
            "`verify` compares whole mapping units: expected writes that are multiples of 4",
        ),
        ("rw=write\nverify=rot13", "cannot be `rot13`: expected none, null, md5"),
        ("rw=write\nverify_backlog=8", "what was written is read back at the end"),
    ] {
        std::fs::write(place.0.join("wrong.fio"), format!("[w]\nsize=1m\n{options}\n")).unwrap();
        let output = place.say("fio wrong.fio --device sata-mlc");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(wrong), "{wrong}: {}", text(&output.stderr));
    }
}
