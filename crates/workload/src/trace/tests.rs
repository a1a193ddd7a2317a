//! Tests of all formats: samples, messages, order, replay, and round trips through text.

use super::*;
use flashweir_core::Instant;
use flashweir_core::Lba;
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use proptest::prelude::*;
use std::sync::Arc;

const MSR: &str = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
                   128166372016382155,usr,0,Write,1317441536,8192,1963\n";
const BLKPARSE: &str = "Input file sda.blktrace.0 added
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        0     0.000002000     0  m   N cfq697S / alloced
  8,0    3        3     0.000004000   697  P   N [kjournald]
  8,0    3        4     0.000010000   697  Q FWFS 1000 + 16 [jbd2/sda1 + 8]
  8,0    3        5     0.000020000   697  D   W 223490 + 8 [kjournald]
  8,0    3        6     0.000030000   697  C   W 223490 + 8 [0]
259,10   1        7     0.000040000   697  Q  RA 64 + 8 [other]
  8,0    3        8     0.000050000   697  Q  FN [kworker/3:1H]
  8,0    3        9     0.000060000   697  Q  DS 4096 + 2048 [fstrim]
  8,0    3       10     0.000070000   697  Q   R 36 (12 00 00 00 24 00 ..) [smartd]
  8,0    3       11     1.500000000   697  Q  WS 223498 + 8 (    1234) [kjournald]
CPU3 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           3,       16KiB

Total (8,0):
 Throughput (R/W): 0KiB/s / 0KiB/s
";

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

fn load(text: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    Trace::load("trace.txt", text.as_bytes(), options)
}

fn records(text: &str) -> Vec<Record> {
    load(text, &ReadOptions::default()).unwrap().records().to_vec()
}

fn write(at: u64, lba: u64, blocks: u32) -> Record {
    Record::new(ns(at), Kind::Write, Lba(lba), blocks)
}

fn read(at: u64, lba: u64, blocks: u32) -> Record {
    Record::new(ns(at), Kind::Read, Lba(lba), blocks)
}

#[test]
fn samples_of_the_column_formats_are_read() {
    for (format, text, expected) in [
        ("mqsim", "5 0 16 8 1\n\n9 3 24 1 0\r\n", vec![read(5, 16, 8), write(9, 24, 1)]),
        ("disksim", "0.5 0 16 8 1\n1.000002 0 24 1 a\n", vec![read(500_000, 16, 8), write(1_000_002, 24, 1)]),
        (
            "msr",
            MSR,
            vec![
                read(12_816_637_200_306_162_900, 13_700_410, 48),
                write(12_816_637_201_638_215_500, 2_573_128, 16),
            ],
        ),
        (
            "alibaba",
            "device_id,opcode,offset,length,timestamp\n0,R,126703644672,4096,1577808000000626\n",
            vec![read(1_577_808_000_000_626_000, 247_468_056, 8)],
        ),
        (
            "tencent",
            "1538323199,105352008,584,1,1576\n1538323200,8,1,0,1576",
            vec![write(1_538_323_199_000_000_000, 105_352_008, 584), read(1_538_323_200_000_000_000, 8, 1)],
        ),
    ] {
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(detect(&lines).map(Format::name), Some(format));
        assert_eq!(records(text), expected, "{format}");
        let options = ReadOptions { format: Some(format.parse().unwrap()), ..ReadOptions::default() };
        assert_eq!(load(text, &options).unwrap().records(), expected, "{format}");
    }
    let trace = load(MSR, &ReadOptions::default()).unwrap();
    assert_eq!(trace.device(), Some("usr_0"));
    assert!(trace.warnings().is_empty());
}

#[test]
fn blkparse_output_is_read() {
    let trace = load(BLKPARSE, &ReadOptions::default()).unwrap();
    assert_eq!(trace.format(), Format::Blkparse);
    let expected = [
        write(0, 223_490, 8),
        Record { preflush: true, fua: true, ..write(10_000, 1000, 16) },
        Record::flush(ns(50_000)),
        Record::new(ns(60_000), Kind::Trim, Lba(4096), 2048),
        write(1_500_000_000, 223_498, 8),
    ];
    assert_eq!(trace.records(), expected);
    assert_eq!(
        trace.warnings(),
        ["trace.txt: only device `8,0` is replayed; 1 requests of 1 other devices are skipped"]
    );
    let other = ReadOptions { device: Some(Devices::Only("259,10".into())), ..ReadOptions::default() };
    assert_eq!(load(BLKPARSE, &other).unwrap().records(), [read(40_000, 64, 8)]);
    let issued = ReadOptions { action: Some(Action::D), ..ReadOptions::default() };
    assert_eq!(load(BLKPARSE, &issued).unwrap().records(), [write(20_000, 223_490, 8)]);
    let below: String =
        BLKPARSE.lines().filter(|line| !line.contains(" Q ")).map(|l| format!("{l}\n")).collect();
    assert_eq!(records(&below), [write(20_000, 223_490, 8)]);
    let inserted = ReadOptions { action: Some(Action::I), ..ReadOptions::default() };
    assert_eq!(
        load(BLKPARSE, &inserted).unwrap_err().to_string(),
        "trace.txt: no requests with action I: expected at least one; there are 7 with action Q, 1 with \
         action D"
    );
}

#[test]
fn logs_of_fio_are_read() {
    let two = "fio version 2 iolog\n/f add\n/f open\n/f read 0 4096\n/f wait 150 0\n/f write 4096 512\n\
               /f wait 50 0\n/f sync 0 0\n/f datasync\n/f trim 8192 4096\n/f close\n";
    let trim = |at| Record::new(ns(at), Kind::Trim, Lba(16), 8);
    let flush = Record::flush(ns(200_000));
    assert_eq!(records(two), [read(0, 0, 8), write(150_000, 8, 1), flush, flush, trim(200_000)]);
    let three = "fio version 3 iolog\n20 /f add\n135 /f open\n139 /f read 0 4096\n1490 /f sync 45056 0\n\
                 1500 /f trim 8192 4096\n17703 /f close\n";
    assert_eq!(records(three), [read(139_000, 0, 8), Record::flush(ns(1_490_000)), trim(1_500_000)]);
}

/// Parses each text in its format; the expected message is `trace.txt:` and the third column.
fn refused(table: &[(&str, String, String)]) {
    for (format, text, expected) in table {
        let options = ReadOptions { format: Some(format.parse().unwrap()), ..ReadOptions::default() };
        let error = load(text, &options).unwrap_err();
        assert_eq!(error.to_string(), format!("trace.txt:{expected}"), "{format}: {text}");
        assert_eq!(Reader::new("x", text.as_bytes(), &options).unwrap().filter(Result::is_err).count(), 1);
    }
}

#[test]
fn messages_name_the_line_the_field_and_what_was_expected() {
    let good_msr = MSR.lines().next().unwrap();
    let range = "1 to 2^32 - 1 blocks of 512 bytes";
    let table = [
        ("mqsim", "5 0 16 8\n".into(), "1: 4 fields: expected `time_ns device lba size type`".to_owned()),
        ("mqsim", "5 0 16 8 1 1\n".into(), "1: 6 fields: expected `time_ns device lba size type`".into()),
        (
            "mqsim",
            "5 0 16 8 1\n6 0 16 8 2\n".into(),
            "2: `2` is not a type: expected 0 (write) or 1 (read)".into(),
        ),
        ("mqsim", "5 0 16 0 1\n".into(), format!("1: `0` is not a size: expected {range}")),
        ("mqsim", "5 0 16 4294967296 1\n".into(), format!("1: `4294967296` is not a size: expected {range}")),
        ("mqsim", "5 0 -1 8 1\n".into(), "1: `-1` is not an address: expected a whole number".into()),
        (
            "mqsim",
            "5 0 36028797018963967 8 1\n".into(),
            "1: `36028797018963967` is not an address: expected one whose last byte is below 2^64".into(),
        ),
        (
            "mqsim",
            "5 0 99999999999999999999 8 1\n".into(),
            "1: `99999999999999999999` is not an address: expected a whole number below 2^64".into(),
        ),
        (
            "mqsim",
            "0.5 0 16 8 1\n".into(),
            "1: `0.5` is not a time: expected whole nanoseconds (milliseconds are the format disksim)".into(),
        ),
        ("mqsim", "5 x 16 8 1\n".into(), "1: `x` is not a device: expected a whole number".into()),
        (
            "mqsim",
            "9000000 0 16 8 1\n5 0 16 8 1\n".into(),
            "2: time goes back by 8999995ns, which is more than the tolerance of 1ms: expected a trace in \
             order of time, or the option `sort`"
                .into(),
        ),
        (
            "disksim",
            "1. 0 16 8 1\n".into(),
            "1: `1.` is not a time: expected milliseconds such as 12.345678".into(),
        ),
        (
            "disksim",
            "1.5 0 16 8 zz\n".into(),
            "1: `zz` is not a set of flags: expected a hexadecimal number".into(),
        ),
        (
            "msr",
            format!("{good_msr}\n{}\n", good_msr.replace("Read", "Wrte")),
            "2: `Wrte` is not a type: expected Read or Write".into(),
        ),
        (
            "msr",
            format!("{good_msr}\n{}\n", good_msr.replace("7014609920", "7014609921")),
            "2: `7014609921` is not an offset: expected a multiple of 512 bytes".into(),
        ),
        (
            "msr",
            good_msr.replace("24576", "100"),
            "1: `100` is not a size: expected a multiple of 512 bytes".into(),
        ),
        (
            "msr",
            good_msr.replace("41286", ""),
            "1: `` is not a response time: expected a whole number".into(),
        ),
        ("msr", good_msr.replace("usr", ""), "1: `` is not a host: expected a name".into()),
        (
            "msr",
            good_msr.replace("128166372003061629", "184467440737095517"),
            "1: `184467440737095517` is not a time: expected a Windows file time before the year 2185".into(),
        ),
        ("alibaba", "0,r,0,4096,1\n".into(), "1: `r` is not an opcode: expected R or W".into()),
        ("alibaba", "0,R,0,4096,1e6\n".into(), "1: `1e6` is not a time: expected microseconds".into()),
        ("tencent", "1,8,8,2,9\n".into(), "1: `2` is not a type: expected 0 (read) or 1 (write)".into()),
        ("tencent", "1,8,8,1,v9\n".into(), "1: `v9` is not a volume: expected a whole number".into()),
    ];
    refused(&table);
}

#[test]
fn messages_about_events_do_so_too() {
    let fio3 = "fio version 3 iolog\n1 /f add\n";
    let fio2 = "fio version 2 iolog\n/f add\n";
    let table = [
        (
            "blkparse",
            "  8,0  3  1  0.0  697  Q\n".into(),
            "1: 6 fields: expected `major,minor cpu sequence seconds pid action RWBS \
             [sector + blocks] [process]`"
                .into(),
        ),
        (
            "blkparse",
            "  8:0  3  1  0.0  697  Q W 1 + 1 [x]\n".into(),
            "1: `8:0` is not a device: expected major,minor such as 8,0".into(),
        ),
        (
            "blkparse",
            "  8,0  3  1  0.0  697  Q WX 1 + 1 [x]\n".into(),
            "1: `WX` is not an RWBS: expected [F] and one of R, W, D, N, then flags of F, A, S, M".into(),
        ),
        (
            "blkparse",
            "  8,0  3  1  0.0  697  Q ZA 1 + 1 [x]\n".into(),
            "1: `ZA` is not an RWBS: expected a command that is not about zones".into(),
        ),
        (
            "blkparse",
            "  8,0  3  1  0.0  697  Q W 1 - 1 [x]\n".into(),
            "1: `1` is not a range: expected sector + blocks, or the process in brackets".into(),
        ),
        (
            "fio-iolog",
            "fio version 4 iolog\n".into(),
            "1: `fio version 4 iolog` is not a header: expected `fio version 2 iolog` or 3".into(),
        ),
        (
            "fio-iolog",
            format!("{fio3}2 /g read 0 512\n"),
            "3: `/g` is not a file of this log: expected one that was added before".into(),
        ),
        (
            "fio-iolog",
            format!("{fio3}2 /f wait 0 512\n"),
            "3: `wait` is not an action of version 3: expected add, open, close, read, write, trim, share, sync or \
             datasync"
                .into(),
        ),
        (
            "fio-iolog",
            format!("{fio2}/f rite 0 512\n"),
            "3: `rite` is not an action of version 2: expected add, open, close, read, write, trim, share, \
             sync, datasync or wait"
                .into(),
        ),
        (
            "fio-iolog",
            format!("{fio2}/f read 0\n"),
            "3: 3 fields: expected `filename action [offset length]`".into(),
        ),
        ("fio-iolog", format!("{fio2}/f add\n"), " no requests: expected at least one".into()),
    ];
    refused(&table);
}

#[test]
fn what_is_no_trace_is_refused() {
    let message = |bytes: &[u8]| Trace::load("t", bytes, &ReadOptions::default()).unwrap_err().to_string();
    assert_eq!(message(b""), "t: no requests: expected at least one");
    assert_eq!(message(b"\n \n"), "t: no requests: expected at least one");
    assert_eq!(
        message(b"\nhello\x07 world\n"),
        "t:2: `hello\\u{7} world` is not a line of a known format: expected mqsim, disksim, msr, alibaba, \
         tencent, blkparse or fio-iolog"
    );
    assert_eq!(message(b"\xff\xfe\n"), "t:1: the line is not text: expected UTF-8");
    assert_eq!(message(b"\xff\xfe\nhello\n"), "t:1: the line is not text: expected UTF-8");
    assert_eq!(message(b"5 0 16 8 1\n\xff\n"), "t:2: the line is not text: expected UTF-8");
    let long = vec![b'7'; 10_000];
    assert_eq!(message(&long), "t:1: the line is too long: expected at most 4096 bytes of text");
    let only = ReadOptions { device: Some(Devices::Only("7".into())), ..ReadOptions::default() };
    assert_eq!(
        load("5 0 16 8 1\n6 1 8 8 1\n7 1 8 8 1\n", &only).unwrap_err().to_string(),
        "trace.txt: no requests of device `7`: expected one of `0` (1), `1` (2)"
    );
    let missing = Trace::open("/nonexistent/trace".as_ref(), &ReadOptions::default()).unwrap_err();
    assert!(missing.to_string().starts_with("/nonexistent/trace: cannot be read: "), "{missing}");
    assert!("foo".parse::<Format>().unwrap_err().starts_with("`foo` is not a trace format: expected mqsim,"));
}

#[test]
fn order_of_time_is_kept_or_made() {
    let text = "9000000 0 1 1 1\n8500000 0 2 1 1\n1000 0 3 1 1\n1000 0 4 1 1\n";
    let sort = ReadOptions { sort: true, ..ReadOptions::default() };
    let sorted = load(text, &sort).unwrap();
    assert_eq!(sorted.records().iter().map(|r| r.lba.0).collect::<Vec<_>>(), [3, 4, 2, 1]);
    assert_eq!(
        sorted.warnings(),
        ["trace.txt: 3 requests are earlier than one before them; the trace is sorted"]
    );
    let two = ReadOptions { limit: Some(2), ..ReadOptions::default() };
    let moved = load(text, &two).unwrap();
    assert_eq!(moved.records(), [read(9_000_000, 1, 1), read(9_000_000, 2, 1)]);
    assert!(load(text, &ReadOptions::default()).is_err());
    let info = TraceInfo::of("t", text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!((info.backwards, info.duration), (3, ns(8_999_000)));
}

/// Replays on a device that takes `latency` for each request, one after the other if `serial`.
fn run(replay: &mut Replay, start: u64, latency: u64) -> Vec<Request> {
    let mut now = Instant::from_nanos(start);
    let mut flights: Vec<(Instant, u32)> = Vec::new();
    let mut submitted = Vec::new();
    loop {
        let step = replay.poll(now);
        let wake = match step {
            Step::Submit(request) => {
                assert!(flights.iter().all(|(_, token)| *token != request.token), "tokens are unique");
                assert!(request.intended <= now);
                submitted.push(request);
                flights.push((now + ns(latency), request.token));
                continue;
            }
            Step::Wait(at) => {
                assert!(at > now);
                Some(at)
            }
            Step::Blocked => {
                assert!(!flights.is_empty(), "something will complete");
                None
            }
            Step::Done if flights.is_empty() => return submitted,
            Step::Done => None,
        };
        match flights.first().copied() {
            Some((at, token)) if wake.is_none_or(|wake| at <= wake) => {
                flights.remove(0);
                now = at;
                replay.completed(now, token);
            }
            _ => now = wake.unwrap(),
        }
    }
}

fn replay(text: &str, config: ReplayConfig, capacity: u64) -> Result<Replay, TraceError> {
    Replay::new(Arc::new(load(text, &ReadOptions::default())?), &config, capacity)
}

const THREE: &str = "1000 0 0 8 0\n1100 0 8 8 1\n1300 0 16 8 0\n";

#[test]
fn open_loop_keeps_the_times_of_the_trace() {
    let times = |timing, repeat| {
        let config = ReplayConfig { timing, repeat, ..ReplayConfig::default() };
        let mut replay = replay(THREE, config, 24).unwrap();
        let last = replay.planned().unwrap().as_nanos();
        let times: Vec<u64> = run(&mut replay, 50, 1_000).iter().map(|r| r.intended.as_nanos()).collect();
        assert_eq!(*times.last().unwrap(), 50 + last);
        times
    };
    assert_eq!(times(Timing::Original, 1), [50, 150, 350]);
    assert_eq!(times(Timing::Original, 2), [50, 150, 350, 500, 600, 800]);
    assert_eq!(times(Timing::Scaled(2.0), 1), [50, 250, 650]);
    assert_eq!(times(Timing::Scaled(0.5), 1), [50, 100, 200]);
}

#[test]
fn closed_loop_keeps_the_depth() {
    let config = ReplayConfig { timing: Timing::Closed(2), repeat: 2, ..ReplayConfig::default() };
    let mut replay = replay(THREE, config, 24).unwrap();
    assert_eq!(replay.planned(), None);
    let times: Vec<u64> = run(&mut replay, 0, 10).iter().map(|r| r.intended.as_nanos()).collect();
    assert_eq!(times, [0, 0, 10, 10, 20, 20]);
}

#[test]
fn a_flush_goes_before_its_write_and_only_before_that() {
    let text = "8,0 0 1 0.000000000 1 Q FWFS 0 + 8 [x]\n8,0 0 2 0.000000005 1 Q R 8 + 8 [x]\n";
    for (timing, expected) in [
        (Timing::Original, [(Kind::Flush, 0, false), (Kind::Read, 5, false), (Kind::Write, 100, true)]),
        (Timing::Closed(1), [(Kind::Flush, 0, false), (Kind::Write, 100, true), (Kind::Read, 200, false)]),
    ] {
        let config = ReplayConfig { timing, ..ReplayConfig::default() };
        let requests = run(&mut replay(text, config, 16).unwrap(), 0, 100);
        let seen: Vec<_> = requests.iter().map(|r| (r.kind, r.intended.as_nanos(), r.fua)).collect();
        assert_eq!(seen, expected);
    }
    let fws = text.replace("FWFS", "FWS").replace("0.000000005", "0.000000000");
    let requests = run(&mut replay(&fws, ReplayConfig::default(), 16).unwrap(), 0, 100);
    assert_eq!(
        requests.iter().map(|r| (r.kind, r.fua)).collect::<Vec<_>>(),
        [(Kind::Flush, false), (Kind::Read, false), (Kind::Write, false)]
    );
}

#[test]
fn settings_out_of_range_are_refused() {
    let message = |config| replay(THREE, config, 24).unwrap_err().to_string();
    let timed = |timing| ReplayConfig { timing, ..ReplayConfig::default() };
    let scale = "expected 0.000001 to 1000000";
    assert_eq!(message(timed(Timing::Scaled(0.0))), format!("trace.txt: timing.scaled = 0: {scale}"));
    assert_eq!(message(timed(Timing::Scaled(f64::NAN))), format!("trace.txt: timing.scaled = NaN: {scale}"));
    assert_eq!(
        message(timed(Timing::Closed(0))),
        "trace.txt: timing.closed = 0: expected a depth of 1 or more"
    );
    let repeat = ReplayConfig { repeat: 0, ..ReplayConfig::default() };
    assert_eq!(message(repeat), "trace.txt: repeat = 0: expected 1 or more");
    let long = "0 0 0 8 0\n9000000000000000000 0 8 8 1\n";
    let scaled = ReplayConfig { timing: Timing::Scaled(1e6), repeat: u32::MAX, ..ReplayConfig::default() };
    assert!(replay(long, scaled, 24).unwrap_err().to_string().contains("at most 292 years"));
    let text = r#"{"timing":{"closed":4},"fit":"wrap","repeat":2}"#;
    let config: ReplayConfig = serde_json::from_str(text).unwrap();
    assert_eq!(config, ReplayConfig { timing: Timing::Closed(4), fit: Fit::Wrap, repeat: 2 });
    assert!(serde_json::from_str::<ReplayConfig>(r#"{"speed":4}"#).is_err());
    let options: ReadOptions =
        serde_json::from_str(r#"{"format":"fio-iolog","device":{"only":"/f"}}"#).unwrap();
    assert_eq!(options.device, Some(Devices::Only("/f".into())));
}

#[test]
fn addresses_beyond_the_device_are_refused_or_wrapped() {
    let message = |fit, capacity| {
        let config = ReplayConfig { fit, ..ReplayConfig::default() };
        replay(THREE, config, capacity).unwrap_err().to_string()
    };
    assert_eq!(
        message(Fit::Refuse, 23),
        "trace.txt:3: blocks 16..24 reach beyond the device, which has 23 blocks (11776B): expected a device \
         of at least 12KiB, or the fit `wrap`"
    );
    assert_eq!(
        message(Fit::Wrap, 7),
        "trace.txt:1: a request of 8 blocks does not fit on the device: expected at most 7"
    );
    let config = ReplayConfig { fit: Fit::Wrap, ..ReplayConfig::default() };
    // 20 sectors hold two and a half pages of 4 KiB: page 2 becomes page 0, and 12..20 across the end of the aligned
    // part keeps its place on the device.
    let text = "0 0 16 8 0\n0 0 12 8 0\n0 0 15 8 0\n0 0 3 20 0\n0 0 1 8 0\n";
    let requests = run(&mut replay(text, config.clone(), 20).unwrap(), 0, 1);
    let ranges: Vec<_> = requests.iter().map(|r| (r.lba.0, r.blocks)).collect();
    assert_eq!(ranges, [(0, 8), (12, 8), (7, 8), (0, 20), (1, 8)]);
    let trim = "8,0 0 1 0.0 1 Q D 8 + 999 [x]\n";
    let requests = run(&mut replay(trim, config, 20).unwrap(), 0, 1);
    assert_eq!((requests[0].lba.0, requests[0].blocks), (0, 20));
}

/// Remaps are in fio's log, by an action of ours; each names its source, which is wrapped and counted as well.
#[test]
fn remaps_are_read_printed_and_replayed() {
    let text = "fio version 3 iolog\n0 /f add\n5 /f write 0 8192\n9 /f share 81920 8192 0\n";
    let share = Record::share(ns(9_000), Lba(160), Lba(0), 16);
    assert_eq!(records(text)[1], share);
    let mut printed = Vec::new();
    print(&mut printed, Format::FioIolog, "/f", [share]).unwrap();
    assert!(String::from_utf8(printed).unwrap().ends_with("\n9 /f share 81920 8192 0\n"));
    for format in Format::ALL.into_iter().filter(|format| *format != Format::FioIolog) {
        let error = print(&mut Vec::new(), format, "0", [share]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{format}");
    }
    let requests = run(&mut replay(text, ReplayConfig::default(), 176).unwrap(), 0, 1);
    let Request { kind, lba, source, blocks, .. } = requests[1];
    assert_eq!((kind, lba, source, blocks), (Kind::Share, Lba(160), Lba(0), 16));
    assert!(requests[0].kind == Kind::Write && requests[0].source == Lba(0));
    // The source may lie beyond the device, too.
    let text = "fio version 3 iolog\n0 /f add\n9 /f share 0 4096 81920\n";
    let refused = replay(text, ReplayConfig::default(), 160).unwrap_err().to_string();
    assert!(refused.contains("blocks 160..168 reach beyond the device"), "{refused}");
    let wraps = ReplayConfig { fit: Fit::Wrap, ..ReplayConfig::default() };
    assert_eq!(run(&mut replay(text, wraps, 160).unwrap(), 0, 1)[0].source, Lba(0));
    let info = TraceInfo::of("t", text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!((info.shares, info.share_bytes, info.footprint_pages), (1, 4096, 2));
    assert_eq!((info.written_pages, info.end_bytes), (0, 86016));
    for (line, message) in [
        ("9 /f share 0 4096", "5 fields: expected `timestamp filename share offset length source`"),
        ("9 /f share 0 4096 0 0", "7 fields: expected `timestamp filename share offset length source`"),
        ("9 /g share 0 4096 0", "`/g` is not a file of this log: expected one that was added before"),
    ] {
        let text = format!("fio version 3 iolog\n0 /f add\n{line}\n");
        let error = load(&text, &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.ends_with(message), "{error}");
    }
}

#[test]
fn the_summary_counts() {
    let info = TraceInfo::of("t", BLKPARSE.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!((info.requests, info.reads, info.writes, info.trims, info.flushes), (5, 0, 3, 1, 1));
    assert_eq!((info.preflushes, info.fua, info.unaligned), (1, 1, 2));
    assert_eq!((info.read_bytes, info.write_bytes, info.trim_bytes), (0, 32 * 512, 2048 * 512));
    // Sectors 223490..223506 touch three pages, 1000..1016 two.
    assert_eq!((info.footprint_pages, info.written_pages), (5, 5));
    assert_eq!((info.end_bytes, info.duration), (223_506 * 512, ns(1_500_000_000)));
    assert_eq!(
        info.devices.iter().map(|(d, n)| (d.as_str(), *n)).collect::<Vec<_>>(),
        [("259,10", 1), ("8,0", 5)]
    );
    assert_eq!(info.device.as_deref(), Some("8,0"));
}

/// The trace of the cross-validation with MQSim. The counts are the output of
/// `awk '{n[$5]++; b[$5]+=$4*512; if ($3+$4>m) m=$3+$4} END {print NR, n[0], n[1], b[0], b[1], m*512}'`.
#[test]
fn the_trace_of_mqsim_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/mqsim/tpcc-small.trace");
    if !std::path::Path::new(path).exists() {
        println!("skipped: {path} is absent");
        return;
    }
    let info = TraceInfo::open(path.as_ref(), &ReadOptions::default()).unwrap();
    assert_eq!(info.format, Format::Mqsim);
    assert_eq!((info.requests, info.writes, info.reads), (6_999, 2_618, 4_381));
    assert_eq!((info.write_bytes, info.read_bytes), (23_403_520, 36_315_136));
    assert_eq!((info.end_bytes, info.devices.len(), info.backwards), (232_713_410_560, 16, 0));
    let first = ReadOptions { device: Some(Devices::First), ..ReadOptions::default() };
    let trace = Trace::open(path.as_ref(), &first).unwrap();
    assert_eq!((trace.device(), trace.records().len()), (Some("4"), 453));
    let all = Arc::new(Trace::open(path.as_ref(), &ReadOptions::default()).unwrap());
    let mut replay = Replay::new(all.clone(), &ReplayConfig::default(), all.end()).unwrap();
    let planned = replay.planned().unwrap();
    let requests = run(&mut replay, 0, 100_000);
    assert_eq!(requests.len(), 6_999);
    assert_eq!(requests.last().unwrap().intended, Instant::ZERO + planned);
}

/// Generates records that `format` can express, in order of time.
fn expressible(format: Format) -> impl Strategy<Value = Vec<Record>> {
    let (unit, kinds, flags) = match format {
        Format::Mqsim | Format::Disksim => (1, 2u8, false),
        Format::Msr => (100, 2, false),
        Format::Alibaba => (1_000, 2, false),
        Format::Tencent => (1_000_000_000, 2, false),
        Format::Blkparse => (1, 4, true),
        Format::FioIolog => (1_000, 5, false),
    };
    let record = (0..1_000_000u64, 0..1u64 << 50, 1..=u32::MAX, 0..kinds, any::<bool>(), any::<bool>());
    proptest::collection::vec(record, 1..40).prop_map(move |rows| {
        let mut at = 0;
        let rows = rows.into_iter().map(|(gap, lba, blocks, kind, preflush, fua)| {
            at += gap * unit;
            let kind = [Kind::Read, Kind::Write, Kind::Trim, Kind::Flush, Kind::Share][kind as usize];
            match kind {
                Kind::Flush => return Record::flush(ns(at)),
                Kind::Share => return Record::share(ns(at), Lba(lba), Lba(lba.rotate_left(7) >> 14), blocks),
                _ => {}
            }
            let record = Record::new(ns(at), kind, Lba(lba), blocks);
            Record { preflush: flags && preflush, fua: flags && fua && kind == Kind::Write, ..record }
        });
        rows.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn printed_records_are_read_again(
        (format, expected) in proptest::sample::select(&Format::ALL[..])
            .prop_flat_map(|format| (Just(format), expressible(format)))
    ) {
        let device = match format {
            Format::Msr => "usr_1",
            Format::Blkparse => "259,0",
            Format::FioIolog => "/dev/nvme0n1",
            _ => "7",
        };
        let mut text = Vec::new();
        print(&mut text, format, device, expected.iter().copied()).unwrap();
        let trace = Trace::load("t", text.as_slice(), &ReadOptions::default()).unwrap();
        prop_assert_eq!(trace.format(), format);
        prop_assert_eq!(trace.device().unwrap_or("7"), device);
        prop_assert_eq!(trace.records(), expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        words in proptest::collection::vec(
            proptest::sample::select(&[
                "0", "1", "8,0", "Q", "FWFS", "F", "FN", "W", "+", "[x]", "(", " ", ",", "\n", ".", "0.5",
                "Read", "R", "4096", "512", "fio version 2 iolog\n", "fio version 3 iolog\n", "/f add\n",
                "/f", "wait", "sync", "18446744073709551615", "99999999999999999999999", "-1", "\r\n", "\u{e9}",
                "CPU0 (x):\n", "usr",
            ][..]),
            0..120,
        ),
        format in proptest::option::of(proptest::sample::select(&Format::ALL[..])),
        sort in any::<bool>(),
    ) {
        let options = ReadOptions { format, sort, ..ReadOptions::default() };
        let texts = [words.concat(), words.join(" "), words.join(",")].map(String::into_bytes);
        for text in [bytes].into_iter().chain(texts) {
            let trace = Trace::load("t", text.as_slice(), &options);
            if let Ok(trace) = trace {
                prop_assert!(!trace.records().is_empty());
                let config = ReplayConfig { fit: Fit::Wrap, ..ReplayConfig::default() };
                let _ = Replay::new(Arc::new(trace), &config, 1_000);
            } else {
                prop_assert!(trace.unwrap_err().to_string().len() < 1_000);
            }
        }
    }

    #[test]
    fn wrapped_requests_lie_on_the_device(
        rows in proptest::collection::vec((0..1u64 << 40, 1..64u32), 1..20),
        capacity in 64..5_000u64,
    ) {
        let text: String = rows.iter().map(|(lba, blocks)| format!("0 0 {lba} {blocks} 0\n")).collect();
        let config = ReplayConfig { fit: Fit::Wrap, timing: Timing::Closed(3), ..ReplayConfig::default() };
        let requests = run(&mut replay(&text, config, capacity).unwrap(), 0, 7);
        prop_assert_eq!(requests.len(), rows.len());
        for (request, (lba, blocks)) in requests.iter().zip(rows) {
            prop_assert_eq!(request.blocks, blocks);
            prop_assert!(request.lba.0 + u64::from(blocks) <= capacity);
            if u64::from(blocks) + 8 <= capacity {
                prop_assert_eq!(request.lba.0 % 8, lba % 8, "the offset inside a page is kept");
            }
        }
    }
}
