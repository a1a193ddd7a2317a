use super::*;
use flashweir_device::config::{BufferMode, FirmwareKind, Miss, PageTimes};
use flashweir_ftl::GcPolicy;
use flashweir_sim::precondition::Mode;

const FIO: &str = "[job]\nrw=randread\nbs=4k\nsize=64m\n";

/// Files beside the scenario.
fn files(path: &Path) -> Result<String, String> {
    match path.to_str().unwrap() {
        "dir/job.fio" => Ok(FIO.into()),
        "dir/bad.fio" => Ok("[job]\nrw=randraed\n".into()),
        "dir/huge.fio" => Ok("[job]\nrw=read\nsize=9t\n".into()),
        "dir/my.toml" => {
            Ok(presets::text("amf-page").unwrap().replace("name = \"amf-page\"", "name = \"mine\""))
        }
        "dir/typo.toml" => Ok(presets::text("amf-page").unwrap().replace("channels", "chanels")),
        "dir/broken.toml" => Ok("name = \"a\"\nname = \"b\"\n".into()),
        _ => Err("no such file".into()),
    }
}

fn read(text: &str, overrides: &[&str]) -> Result<Scenario, String> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Scenario::parse("dir/s.toml", text, &overrides, &files).map_err(|error| error.to_string())
}

const GOOD: &str = r#"
name = "good"
[[device]]
preset = "rflush"
[[workload]]
fio = "job.fio"
"#;

#[test]
fn a_scenario_has_defaults() {
    let scenario = read(GOOD, &[]).unwrap();
    assert_eq!(scenario.seeds, [1]);
    assert_eq!(scenario.precondition, Precondition::default());
    assert_eq!(scenario.devices, [presets::preset("rflush").unwrap()]);
    assert_eq!(
        scenario.workloads,
        [WorkloadConfig {
            name: "job".into(),
            source: Source::Fio { file: "job.fio".into(), text: FIO.into() }
        }]
    );
}

#[test]
fn devices_are_put_together_in_layers() {
    let text = r#"
        name = "layers"
        seeds = 3
        precondition = { mode = "age-by-writing", fill = 0.9, overwrite = 2, pattern = "sequential" }
        track_contents = true
        [[device]]
        preset = "rflush"
        name = "one"
        set = { "ftl.gc.policy" = "fifo", "timing.read" = "7us", buffer = { capacity = "8MiB" } }
        [device.ftl]
        over_provisioning = 0.2
        gc = { policy = "cost-benefit" }
        [[device]]
        file = "my.toml"
        [[workload]]
        name = "a"
        fio_inline = """
        [x]
        rw=read
        size=1m
        """
        [[workload]]
        trace = { file = "t.trace", format = "mqsim", device = "all", timing = { scaled = 0.5 }, limit = 9 }
    "#;
    let scenario = read(text, &["device.*.buffer.mode=write-through", "device.1.name=two"]).unwrap();
    let [one, two] = scenario.devices.as_slice() else { panic!("two devices") };
    assert_eq!((one.name.as_str(), two.name.as_str()), ("one", "two"));
    assert_eq!((one.ftl.gc.policy, one.ftl.over_provisioning), (GcPolicy::Fifo, 0.2));
    assert_eq!(one.timing.read, PageTimes::Same(Duration::from_micros(7)));
    assert_eq!((one.buffer.capacity, one.buffer.high_water), (Bytes::mib(8), 0.9));
    assert_eq!([one.buffer.mode, two.buffer.mode], [BufferMode::WriteThrough; 2]);
    assert_eq!((scenario.seeds.as_slice(), scenario.track_contents), (&[1, 2, 3][..], true));
    assert_eq!(scenario.precondition.overwrite, 2.0);
    let Source::Trace { file, read, replay } = &scenario.workloads[1].source else { panic!("a trace") };
    assert_eq!((file.to_str(), scenario.workloads[1].name.as_str()), (Some("dir/t.trace"), "t"));
    assert_eq!((read.limit, &read.device), (Some(9), &Some(Devices::All)));
    assert_eq!(replay.timing, Timing::Scaled(0.5));
    assert_eq!(scenario.runs().count(), 12);
    assert_eq!(scenario.runs().nth(4), Some(Run { device: 1, workload: 0, seed: 2 }));
}

#[test]
fn overrides_reach_everything() {
    let scenario = read(
        GOOD,
        &[
            "seeds=[7, 9]",
            "name=other",
            "device.0.preset=amf-page",
            "device.0.timing.erase=1ms",
            "device.0.ftl.over_provisioning=0.3",
            "precondition.mode=instant",
            "workload.0.name=w",
        ],
    )
    .unwrap();
    assert_eq!((scenario.seeds.as_slice(), scenario.name.as_str()), (&[7, 9][..], "other"));
    assert_eq!((scenario.devices[0].name.as_str(), scenario.workloads[0].name.as_str()), ("amf-page", "w"));
    assert_eq!(scenario.devices[0].timing.erase, Duration::from_millis(1));
    assert_eq!(scenario.precondition.mode, Mode::Instant);
}

#[test]
fn bad_overrides_are_refused() {
    for (change, message) in [
        ("seeds", "--set seeds: expected key=value, as in seeds=5"),
        ("device..x=1", "--set device..x=1: a part of the key is empty"),
        ("device.4.name=x", "--set device.4.name=x: there is no `device.4`: expected 0 to 0 or *"),
        (
            "device.first.name=x",
            "--set device.first.name=x: there is no `device.first`: expected 0 to 0 or *",
        ),
        ("device.0.name.x=1", "--set device.0.name.x=1: `name` is a value, not a table"),
        (
            "device.0.ftl.gc.polcy=fifo",
            "unknown key `ftl.gc.polcy` in device 0 (rflush); did you mean `policy`? Known keys: choices, hot_cold, \
             policy, preemptible, reserve_blocks, start_below_blocks",
        ),
        (
            "sedes=5",
            "unknown key `sedes` in the scenario; did you mean `seeds`? Known keys: block_layer, device, host_ftl, name, precondition, seeds, track_contents, workload",
        ),
    ] {
        assert_eq!(read(GOOD, &[change]).unwrap_err(), format!("dir/s.toml: {message}"));
    }
}

/// A part of [`GOOD`], its replacement, and the complete message.
const BAD: &[(&str, &str, &str)] = &[
    (
        "name = \"good\"",
        "nmae = \"good\"",
        "dir/s.toml: unknown key `nmae` in the scenario; did you mean `name`? Known keys: block_layer, device, host_ftl, name, precondition, seeds, track_contents, workload",
    ),
    (
        "name = \"good\"",
        "title = \"good\"",
        "dir/s.toml: unknown key `title` in the scenario. Known keys: block_layer, device, host_ftl, name, precondition, seeds, track_contents, workload",
    ),
    ("name = \"good\"", "", "dir/s.toml: `name` is missing in the scenario: expected text in quotes"),
    (
        "name = \"good\"",
        "name = 7",
        "dir/s.toml: `name` in the scenario cannot be 7: expected text in quotes",
    ),
    ("name = \"good\"", "name = \"good", "dir/s.toml:2: invalid basic string, expected `\"`"),
    (
        "name = \"good\"",
        "name = \"good\"\nseeds = 0",
        "dir/s.toml: `seeds` in the scenario cannot be 0: expected a number from 1 to 100000, or a list of different seeds such as [1, 2, 3]",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nseeds = [1, 1]",
        "dir/s.toml: `seeds` in the scenario cannot be [1, 1]: expected a number from 1 to 100000, or a list of different seeds such as [1, 2, 3]",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nseeds = \"many\"",
        "dir/s.toml: `seeds` in the scenario cannot be \"many\": expected a number from 1 to 100000, or a list of different seeds such as [1, 2, 3]",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\ntrack_contents = 1",
        "dir/s.toml: `track_contents` in the scenario cannot be 1: expected true or false",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nprecondition = \"instant\"",
        "dir/s.toml: `precondition` in the scenario cannot be \"instant\": expected a table with the keys fill, mode, overwrite, pattern",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nprecondition = { fill = 0.5 }",
        "dir/s.toml: `precondition.mode` is missing in the scenario: expected none, instant or age-by-writing",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nprecondition = { mode = \"instent\" }",
        "dir/s.toml: `precondition.mode` in the scenario cannot be \"instent\"; did you mean `instant`? Expected none, instant or age-by-writing",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nprecondition = { mode = \"instant\", fill = 1.5 }",
        "dir/s.toml: the scenario: precondition.fill = 1.5: expected 0 to 1",
    ),
    (
        "name = \"good\"",
        "name = \"good\"\nprecondition = { mode = \"instant\", fil = 1.5 }",
        "dir/s.toml: unknown key `precondition.fil` in the scenario; did you mean `fill`? Known keys: fill, mode, overwrite, pattern",
    ),
    (
        "[[device]]",
        "[[devices]]",
        "dir/s.toml: unknown key `devices` in the scenario; did you mean `device`? Known keys: block_layer, device, host_ftl, name, precondition, seeds, track_contents, workload",
    ),
    (
        "[[device]]",
        "[device]",
        "dir/s.toml: `device` in the scenario cannot be a table: expected one or more tables such as [[device]] preset = \"rflush\"",
    ),
    (
        "[[device]]\npreset = \"rflush\"",
        "",
        "dir/s.toml: `device` is missing in the scenario: expected one or more tables such as [[device]] preset = \"rflush\"",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflsh\"",
        "dir/s.toml: unknown preset `rflsh` in device 0 (rflsh); did you mean `rflush`? Presets: rflush, amf, amf-page, amf-dftl, amf-fdp, page-and-append, qblke, ocssd-2.0, qblke-page, share-960evo, remap-ssd, barrier-ufs, barrier-850, barrier-843, mqsim-default, mqsim-small-ideal, consumer-tlc-nvme, datacenter-tlc-plp-nvme, mobile-ufs, sata-mlc, low-latency-slc",
    ),
    (
        "preset = \"rflush\"",
        "preset = 5",
        "dir/s.toml: `preset` in device 0 cannot be 5: expected text in quotes",
    ),
    (
        "preset = \"rflush\"",
        "prset = \"rflush\"",
        "dir/s.toml: unknown key `prset` in device 0; did you mean `preset`? Known keys: append, buffer, faults, file, firmware, ftl, geometry, host_ftl, link, name, open, order, preset, set, source, timing",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nfile = \"my.toml\"",
        "dir/s.toml: device 0 (rflush): has both `preset` and `file`: expected one of them",
    ),
    (
        "preset = \"rflush\"",
        "file = \"gone.toml\"",
        "dir/s.toml: cannot read `gone.toml` for device 0 (gone.toml): no such file",
    ),
    (
        "preset = \"rflush\"",
        "file = \"typo.toml\"",
        "typo.toml: unknown key `geometry.chanels` in the device; did you mean `channels`? Known keys: blocks_per_plane, channels, chips_per_channel, dies_per_chip, page_bytes, pages_per_block, planes_per_die, unit_bytes",
    ),
    ("preset = \"rflush\"", "file = \"broken.toml\"", "broken.toml:2: duplicate key"),
    (
        "preset = \"rflush\"",
        "name = \"bare\"",
        "dir/s.toml: `geometry` is missing in device 0 (bare): expected a table with the keys blocks_per_plane, channels, chips_per_channel, dies_per_chip, page_bytes, pages_per_block, planes_per_die, unit_bytes",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"ftl.gc.polcy\" = \"fifo\" }",
        "dir/s.toml: unknown key `ftl.gc.polcy` in device 0 (rflush); did you mean `policy`? Known keys: choices, hot_cold, policy, preemptible, reserve_blocks, start_below_blocks",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"ftl.gc.policy\" = \"fido\" }",
        "dir/s.toml: `ftl.gc.policy` in device 0 (rflush) cannot be \"fido\"; did you mean `fifo`? Expected greedy, cost-benefit, d-choices, random-greedy or fifo",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"timing.erase\" = 3 }",
        "dir/s.toml: `timing.erase` in device 0 (rflush) cannot be 3: expected a duration such as \"75us\"",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"timing.erase\" = \"3\" }",
        "dir/s.toml: `timing.erase` in device 0 (rflush) cannot be \"3\": expected a number with ns, us, ms or s, as in 75us",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"timing.read\" = \"fast\" }",
        "dir/s.toml: `timing.read` in device 0 (rflush) cannot be \"fast\": expected a duration such as \"75us\", or a list of them",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"buffer.capacity\" = \"1 gig\" }",
        "dir/s.toml: `buffer.capacity` in device 0 (rflush) cannot be \"1 gig\": expected a number with B, KiB, MiB, GiB or TiB, as in 4KiB",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"geometry.channels\" = -1 }",
        "dir/s.toml: `geometry.channels` in device 0 (rflush) cannot be -1: expected a whole number from 0 to 4294967295",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"geometry.channels\" = 300 }",
        "dir/s.toml: device 0 (rflush): geometry.channels = 300: expected 1 to 256",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"geometry.channels\" = \"ten\" }",
        "dir/s.toml: `geometry.channels` in device 0 (rflush) cannot be \"ten\": expected a whole number from 0 to 4294967295",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"ftl.over_provisioning\" = \"7%\" }",
        "dir/s.toml: `ftl.over_provisioning` in device 0 (rflush) cannot be \"7%\": expected a number",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"ftl.striping\" = \"CWDX\" }",
        "dir/s.toml: `ftl.striping` in device 0 (rflush) cannot be \"CWDX\": expected a permutation of the letters C, W, D and P",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"timing.command\" = [\"1us\"] }",
        "dir/s.toml: `timing.command` in device 0 (rflush) cannot be [\"1us\"]: expected a list such as [\"200ns\", \"250ns\", \"150ns\"]",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { \"timing.suspend\" = { program = true, erase = true, latency = \"1us\" } }",
        "dir/s.toml: `timing.suspend.max_per_operation` is missing in device 0 (rflush): expected a whole number",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = { ftl = 3 }",
        "dir/s.toml: `ftl` in device 0 (rflush) cannot be 3: expected a table with the keys allocation, demand, gc, metadata, over_provisioning, placement, share, striping, translation, wear",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\nset = \"fifo\"",
        "dir/s.toml: `set` in device 0 (rflush) cannot be \"fifo\": expected a table of dotted keys, as in { \"ftl.gc.policy\" = \"fifo\" }",
    ),
    (
        "preset = \"rflush\"",
        "preset = \"rflush\"\n[[device]]\npreset = \"rflush\"",
        "dir/s.toml: the scenario: two devices are called `rflush`: give one of them another `name`",
    ),
    (
        "fio = \"job.fio\"",
        "foi = \"job.fio\"",
        "dir/s.toml: unknown key `foi` in workload 0; did you mean `fio`? Known keys: fio, fio_inline, name, trace",
    ),
    (
        "fio = \"job.fio\"",
        "",
        "dir/s.toml: workload 0: has none of `fio`, `fio_inline` and `trace`: expected exactly one",
    ),
    (
        "fio = \"job.fio\"",
        "fio = \"job.fio\"\nfio_inline = \"[x]\"",
        "dir/s.toml: workload 0: has more than one of `fio`, `fio_inline` and `trace`: expected exactly one",
    ),
    (
        "fio = \"job.fio\"",
        "fio = \"gone.fio\"",
        "dir/s.toml: cannot read `gone.fio` for workload 0: no such file",
    ),
    (
        "fio = \"job.fio\"",
        "fio = \"bad.fio\"",
        "dir/s.toml: workload 0: on device rflush: bad.fio:2: option `rw` in [job] cannot be `randraed`: expected read, write, trim, rw, trimwrite, randread, randwrite, randtrim, randrw or randtrimwrite, with an offset modifier as in randread:8 or write:4k if wanted",
    ),
    (
        "fio = \"job.fio\"",
        "name = \"w\"\nfio = \"huge.fio\"",
        "dir/s.toml: workload 0 (w): on device rflush: huge.fio:1: [job] reaches beyond the device: offset 0B and size 9TiB on 36568800KiB",
    ),
    (
        "fio = \"job.fio\"",
        "fio = [\"job.fio\"]",
        "dir/s.toml: `fio` in workload 0 cannot be [\"job.fio\"]: expected text in quotes",
    ),
    (
        "fio = \"job.fio\"",
        "trace = \"t.trace\"",
        "dir/s.toml: `trace` in workload 0 cannot be \"t.trace\": expected a table with the keys action, device, file, fit, format, limit, repeat, sort, timing, tolerance",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { format = \"msr\" }",
        "dir/s.toml: `trace.file` is missing in workload 0: expected text in quotes",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", format = \"mrs\" }",
        "dir/s.toml: `trace.format` in workload 0 cannot be \"mrs\"; did you mean `msr`? Expected mqsim, disksim, msr, alibaba, tencent, blkparse or fio-iolog",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", timing = \"closd\" }",
        "dir/s.toml: `trace.timing` in workload 0 cannot be \"closd\"; did you mean `closed`? Expected original, scaled or closed",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", timing = { closd = 3 } }",
        "dir/s.toml: `trace.timing` in workload 0 cannot be { closd = 3 }; did you mean `closed`? Expected original, scaled or closed",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", timing = { scaled = 0 } }",
        "dir/s.toml: workload 0: timing.scaled = 0: expected 0.000001 to 1000000",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", limit = -1 }",
        "dir/s.toml: `trace.limit` in workload 0 cannot be -1: expected a whole number from 0 to 9223372036854775807",
    ),
    (
        "fio = \"job.fio\"",
        "trace = { file = \"t\", speed = 2 }",
        "dir/s.toml: unknown key `trace.speed` in workload 0. Known keys: action, device, file, fit, format, limit, repeat, sort, timing, tolerance",
    ),
    (
        "fio = \"job.fio\"",
        "fio = \"job.fio\"\n[[workload]]\nfio = \"job.fio\"",
        "dir/s.toml: the scenario: two workloads are called `job`: give one of them another `name`",
    ),
];

#[test]
fn bad_scenarios_are_refused_with_place_key_value_and_what_was_expected() {
    assert!(BAD.len() >= 20);
    for (old, new, message) in BAD {
        let text = GOOD.replace(old, new);
        assert_ne!(text, GOOD, "{old}");
        let error = read(&text, &[]).unwrap_err();
        assert_eq!(error, *message, "{new}");
    }
}

#[test]
fn device_files_are_read_alike() {
    let text = presets::text("sata-mlc").unwrap();
    assert_eq!(read_device("d.toml", text).unwrap(), presets::preset("sata-mlc").unwrap());
    for (old, new, message) in [
        (
            "channels",
            "chanels",
            "d.toml: unknown key `geometry.chanels` in the device; did you mean `channels`? Known keys: blocks_per_plane, channels, chips_per_channel, dies_per_chip, page_bytes, pages_per_block, planes_per_die, unit_bytes",
        ),
        (
            "queue_depth = 32 ",
            "",
            "d.toml: `link.queue_depth` is missing in the device: expected a whole number",
        ),
        (
            "over_provisioning = 0.09",
            "over_provisioning = 0.99",
            "d.toml: the device: ftl.over_provisioning = 0.99: expected 0 to 0.9",
        ),
        ("[link]", "[link", "d.toml:55: unclosed table, expected `]`"),
    ] {
        let changed = text.replace(old, new);
        assert_ne!(changed, text);
        assert_eq!(read_device("d.toml", &changed).unwrap_err().to_string(), message);
    }
}

#[test]
fn every_shape_is_a_valid_value() {
    let table = shape(HEAD_SHAPE);
    tree::read::<Head>(&table, &table, "here").unwrap();
    let table = shape(WORKLOAD_SHAPE);
    tree::read::<WorkloadKeys>(&table, &table, "here").unwrap();
    let table = device_shape();
    tree::read::<DeviceConfig>(&table, &table, "here").unwrap();
    for config in presets::all() {
        let table = Table::try_from(&config).unwrap();
        tree::check_keys(&table, &device_shape(), &[], "here").unwrap();
    }
}

#[test]
fn a_map_on_the_medium_has_keys_of_its_own() {
    let text = presets::text("amf-dftl").unwrap().replace("holds-all", "holds-own");
    let config = read_device("d.toml", &text).unwrap();
    assert_eq!((config.ftl.demand.entries, config.ftl.demand.miss), (128, Miss::HoldsOwn));
    assert_eq!(
        read_device("d.toml", &text.replace("miss =", "mis =")).unwrap_err().to_string(),
        "d.toml: unknown key `ftl.demand.mis` in the device; did you mean `miss`? Known keys: cached, entries, miss"
    );
}

#[test]
fn a_device_file_may_have_an_open_channel_and_a_scenario_may_not() {
    let page = presets::text("sata-mlc").unwrap();
    let is_kept = |section: &&str| !["ftl", "buffer", "order"].iter().any(|name| section.starts_with(name));
    let (head, sections) = page.split_once("\n[").unwrap();
    let sections: Vec<&str> = sections.split("\n[").filter(is_kept).collect();
    let text = format!("{head}\nfirmware = \"open-channel\"\n\n[{}", sections.join("\n["))
        .replace("paired_page_loss = true", "paired_page_loss = false");
    let config = read_device("d.toml", &text).unwrap();
    assert_eq!(config.firmware, FirmwareKind::OpenChannel);
    assert_eq!(
        read_device("d.toml", &text.replace("open-channel", "open-chanel")).unwrap_err().to_string(),
        "d.toml: `firmware` in the device cannot be \"open-chanel\"; did you mean `open-channel`? Expected page, append, page-and-append or open-channel"
    );
    assert!(config.check_page_namespace().is_err());
}

#[test]
fn the_examples_are_valid() {
    for name in ["first-look", "mqsim-qd32"] {
        let path =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios")).join(format!("{name}.toml"));
        let scenario = Scenario::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        for WorkloadConfig { source, .. } in &scenario.workloads {
            let Source::Fio { file, text } = source else { panic!("the examples use fio jobs") };
            for device in &scenario.devices {
                let capacity = Bytes(flashweir_device::Geometry::new(device).capacity_lbas() * LBA_BYTES);
                assert_eq!(parse_job_file(file, text, capacity).unwrap().warnings, [""; 0]);
            }
        }
    }
}

#[test]
fn a_scenario_may_have_a_block_layer() {
    use flashweir_host::{DeadlineConfig, Dispatch, Scheduler, Wait};
    assert_eq!(read(GOOD, &[]).unwrap().block_layer, None);
    let with = |table: &str| read(&GOOD.replace("[[device]]", &format!("{table}\n[[device]]")), &[]);
    let layer = |table: &str| with(table).unwrap().block_layer.unwrap();
    assert_eq!(layer("[block_layer]"), HostConfig::default());
    let deadline = Scheduler::Deadline(DeadlineConfig::default());
    assert_eq!(
        layer("block_layer = { scheduler = 'deadline', depth = 8, retry_after = '1ms' }"),
        HostConfig {
            scheduler: deadline,
            depth: 8,
            retry_after: Duration::from_millis(1),
            ..HostConfig::default()
        }
    );
    let figures = DeadlineConfig { fifo_batch: 3, ..DeadlineConfig::default() };
    assert_eq!(
        layer(
            "[block_layer]\nscheduler = { deadline = { fifo_batch = 3 } }\ndispatch = { legacy = 'transfer' }"
        ),
        HostConfig {
            scheduler: Scheduler::Deadline(figures),
            dispatch: Dispatch::Legacy(Wait::Transfer),
            ..HostConfig::default()
        }
    );
    let set = read(GOOD, &["block_layer.scheduler=deadline"]).unwrap().block_layer.unwrap();
    assert_eq!(set.scheduler, deadline);
    let twice = |text| read_block_layer("--block-layer", text).unwrap_err().to_string();
    assert!(twice("deadline,depth=8,depth=32").contains("`depth` is given twice: expected one value"));
    assert!(twice("deadline,scheduler=cfq").contains("`scheduler` is given twice: expected one value"));
    for (table, error) in [
        (
            "block_layer = 3",
            "`block_layer` in the scenario cannot be 3: expected a table with the keys depth, ",
        ),
        (
            "[block_layer]\nschedular = 'cfq'",
            "unknown key `block_layer.schedular` in the scenario; did you mean `scheduler`? ",
        ),
        (
            "[block_layer]\nscheduler = 'cqf'",
            "`block_layer.scheduler` in the scenario cannot be \"cqf\"; did you mean `cfq`? Expected none, deadline or cfq",
        ),
        (
            "[block_layer]\ndispatch = { legacy = 'flush' }",
            "xpected transfer, completion or transfer-and-flush",
        ),
        (
            "[block_layer]\ndepth = 0",
            "the scenario: block_layer.depth = 0: expected 1 to 65536 (on device rflush)",
        ),
    ] {
        let message = with(table).unwrap_err();
        assert!(message.contains(error), "{message}");
    }
}

/// A written block layer is read back unchanged.
#[test]
fn every_block_layer_can_be_written_down() {
    use flashweir_host::{CfqConfig, DeadlineConfig, Dispatch, Epochs, Scheduler, Wait};
    for (scheduler, dispatch) in [
        (Scheduler::None, Dispatch::OrderPreserving),
        (Scheduler::Deadline(DeadlineConfig::default()), Dispatch::MultiQueue),
        (Scheduler::Cfq(CfqConfig::default()), Dispatch::Legacy(Wait::Completion)),
    ] {
        let config = HostConfig { scheduler, dispatch, epochs: Epochs::Closing, ..HostConfig::default() };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<HostConfig>(&text).unwrap(), config, "{text}");
    }
}

#[test]
fn a_block_layer_fits_into_one_option() {
    use flashweir_host::Scheduler;
    let read = |text: &str| read_block_layer("--block-layer", text).map_err(|fault| fault.to_string());
    assert_eq!(read("none"), Ok(HostConfig::default()));
    let config = read("cfq, depth=4, merge_blocks_max=0").unwrap();
    assert_eq!((config.scheduler.name(), config.depth, config.merge_blocks_max), ("cfq", 4, 0));
    assert!(matches!(read("scheduler=deadline,retry_after=1ms").unwrap().scheduler, Scheduler::Deadline(_)));
    for (text, error) in [
        ("", "`scheduler` in --block-layer cannot be \"\": expected none, deadline or cfq"),
        (
            "depth=many",
            "`depth` in --block-layer cannot be \"many\": expected a whole number from 0 to 4294967295",
        ),
        ("cfq,deadline", "--block-layer: `deadline` has no value: expected KEY=VALUE, as in depth=8"),
        ("queues=2", "--block-layer: queues = 2: expected 1 to 1"),
    ] {
        assert_eq!(read(text), Err(error.to_string()));
    }
}

/// A device with an open channel, with these lines.
fn channel(lines: &str) -> String {
    format!(
        "name = 'x'\n[[device]]\npreset = 'qblke'\n{lines}\n[[workload]]\nname = 'w'\nfio_inline = \"\"\"\n[w]\nsize=1m\n\"\"\"\n"
    )
}

#[test]
fn a_host_ftl_is_an_assembly_and_what_differs() {
    let none = |_: &Path| Err("no files".into());
    let parse = |text: &str, overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|change| (*change).to_owned()).collect();
        Scenario::parse("s.toml", text, &overrides, &none).map_err(|error| error.to_string())
    };
    let other = "[[device]]\npreset = 'sata-mlc'\n[[device]]\npreset = 'qblke'\nname = 'other'\nhost_ftl = { assembly = 'pblk', rings = 2 }";
    let table = "\n[host_ftl]\nassembly = 'qblke'\nrings = 4\npad_after = '1ms'\n";
    let scenario = parse(&(channel(other) + table), &["device.2.host_ftl.entries=8192"]).unwrap();
    let base = HostFtlConfig { pad_after: Duration::from_millis(1), queues: 0, ..HostFtlConfig::qblke(4) };
    assert_eq!(scenario.host_ftl(0), Some(&base));
    assert_eq!(scenario.host_ftl(1), None);
    let pblk = HostFtlConfig {
        pad_after: base.pad_after,
        queues: 0,
        rings: 2,
        entries: 8192,
        ..HostFtlConfig::pblk()
    };
    assert_eq!(scenario.host_ftl(2), Some(&pblk));
    for (lines, error) in [
        (
            "",
            "s.toml: the scenario: firmware = open-channel: expected page: a host without an FTL of its own needs a device with a page \
             namespace (of the medium of QBLKe there is `qblke-page`), or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in \
             a scenario (on device qblke)",
        ),
        (
            "host_ftl = { assembly = 'pblke' }",
            "s.toml: `host_ftl.assembly` in device 0 (qblke) cannot be \"pblke\"; did you mean `pblk`? Expected pblk, qblke, pblk-as-released or qblke-as-released",
        ),
        (
            "host_ftl = { rings = 2 }",
            "s.toml: `host_ftl.assembly` is missing in device 0 (qblke): expected pblk, qblke, pblk-as-released or qblke-as-released",
        ),
        (
            "host_ftl = 'pblk'",
            "s.toml: `host_ftl` in device 0 (qblke) cannot be \"pblk\": expected a table, as in { assembly = \"pblk\" }",
        ),
        (
            "host_ftl = { assembly = 'pblk', ring = 2 }",
            "s.toml: unknown key `host_ftl.ring` in device 0 (qblke); did you mean `rings`? Known keys: assembly, costs, cpus, entries, full, \
             gc_readers, gc_waits, invalidation, limits, lines, map, over_provisioning, pad_after, pool, programs_per_die, queues, reads_first, \
             retry_after, rings, sequence, trims, urgent, user_active_for",
        ),
        (
            "host_ftl = { assembly = 'pblk', lines = 'chanel' }",
            "s.toml: `host_ftl.lines` in device 0 (qblke) cannot be \"chanel\"; did you mean `channel`? Expected device or channel",
        ),
        (
            "host_ftl = { assembly = 'pblk', over_provisioning = 0.01 }",
            "s.toml: the scenario: host_ftl.over_provisioning = 0.01: expected at least 0.094 here, 3 of 32 lines (on device qblke)",
        ),
        (
            "host_ftl = { assembly = 'pblk' }\n[block_layer]\ndispatch = 'multi-queue'",
            "s.toml: the scenario: block_layer.dispatch = \"multi-queue\": expected another above a host FTL, which spreads requests over \
             its rings itself (on device qblke)",
        ),
    ] {
        assert_eq!(parse(&channel(lines), &[]).unwrap_err(), error, "{lines}");
    }
    let pages = "name = 'x'\n[host_ftl]\nassembly = 'pblk'\n[[device]]\npreset = 'sata-mlc'\n[[workload]]\nfio_inline = '[w]'\n";
    assert_eq!(
        parse(pages, &[]).unwrap_err(),
        "s.toml: the scenario: host_ftl: none of the devices has an open channel: expected one, as the preset qblke"
    );
    assert!(
        Scenario::parse("host-ftl.toml", include_str!("../../../../scenarios/host-ftl.toml"), &[], &none)
            .is_ok()
    );
}

#[test]
fn a_host_ftl_fits_into_one_option() {
    let read = |text: &str| read_host_ftl("--host-ftl", text).map_err(|fault| fault.to_string());
    assert_eq!(read("pblk"), Ok(HostFtlConfig { queues: 0, ..HostFtlConfig::pblk() }));
    let config = read("qblke, rings=2,limits=windows").unwrap();
    assert_eq!((config.rings, config.limits), (2, flashweir_host::Limits::Windows));
    for (text, error) in [
        (
            "qblkes",
            "`the assembly` in --host-ftl cannot be `qblkes`; did you mean `qblke`? Expected pblk, qblke, pblk-as-released or qblke-as-released",
        ),
        ("qblke,4", "--host-ftl: `4` has no value: expected KEY=VALUE, as in rings=4"),
        (
            "qblke,rings=many",
            "`rings` in --host-ftl cannot be \"many\": expected a whole number from 0 to 65535",
        ),
    ] {
        assert_eq!(read(text), Err(error.to_string()));
    }
}

/// The page for users names every key.
#[test]
fn the_reference_of_scenarios_and_devices_is_complete() {
    fn missing(table: &Table, page: &str, all: &mut Vec<String>) {
        for (key, value) in table {
            if ![format!("`{key}`"), format!(".{key}`"), format!("### [{key}]")]
                .iter()
                .any(|named| page.contains(named))
            {
                all.push(key.clone());
            }
            if let Value::Table(table) = value {
                missing(table, page, all);
            }
        }
    }
    let page = std::fs::read_to_string("../../docs/scenarios.md").unwrap();
    let mut all = Vec::new();
    for table in [shape(HEAD_SHAPE), shape(WORKLOAD_SHAPE), device_shape()] {
        missing(&table, &page, &mut all);
    }
    assert_eq!(all, Vec::<String>::new());
}
