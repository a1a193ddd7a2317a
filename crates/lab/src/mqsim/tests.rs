use super::*;
use flashweir_device::presets::preset;
use flashweir_workload::fio::{Direction, Mix, Sizes, parse_job_file};
use std::path::Path;

/// A file of the comparison data.
fn data(name: &str) -> String {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/mqsim")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const DEVICE: &str = include_str!("device.xml");
const FLOW: &str = include_str!("flow.xml");

fn named(mut config: DeviceConfig, like: &DeviceConfig) -> DeviceConfig {
    config.name.clone_from(&like.name);
    config.source.clone_from(&like.source);
    config
}

#[test]
fn the_stock_files_become_the_presets() {
    for (file, name) in
        [("ssd-small-ideal.xml", "mqsim-small-ideal"), ("ssdconfig-default.xml", "mqsim-default")]
    {
        let (config, warnings) = import_device(&data(file)).unwrap();
        let preset = preset(name).unwrap();
        assert_eq!(named(config, &preset), preset);
        let map = warnings.iter().any(|w| w.starts_with("Ideal_Mapping_Table = false is not modelled"));
        assert_eq!(map, name == "mqsim-default", "{warnings:#?}");
        assert!(warnings.contains(
            &"Queue_Fetch_Size = 512 is not modelled: the device takes commands as they come".to_owned()
        ));
    }
}

#[test]
fn the_write_cache_is_a_buffer_of_one_page_for_each_plane() {
    let (config, _) = import_device_with(DEVICE, Caching::Write).unwrap();
    assert_eq!(config.buffer.mode, BufferMode::WriteBack);
    assert_eq!(config.buffer.capacity, Bytes::mib(1));
    let page = config.buffer.access_latency + Duration::of_transfer(8192, config.buffer.bytes_per_s);
    assert_eq!(page.as_nanos(), 40_986, "MQSim's DRAM time of a page");
}

#[test]
fn every_key_is_accounted_for() {
    // Without any one key there is an error that names it, or its warning is gone, or the key had neither.
    let (config, warnings) = import_device(DEVICE).unwrap();
    for (number, line) in DEVICE.lines().enumerate() {
        let Some(key) =
            line.trim().strip_prefix('<').and_then(|l| l.split_once("</")).map(|(_, k)| &k[..k.len() - 1])
        else {
            continue;
        };
        let without: String =
            DEVICE.lines().enumerate().filter(|(n, _)| *n != number).map(|(_, l)| format!("{l}\n")).collect();
        match import_device(&without) {
            Err(error) => assert!(error.starts_with(&format!("{key} is missing in ")), "{key}: {error}"),
            Ok((same, fewer)) => {
                assert_eq!(same, config, "{key}");
                let warned = warnings.iter().any(|warning| warning.starts_with(&format!("{key} = ")));
                assert_eq!(warnings.len() - fewer.len(), usize::from(warned), "{key}");
            }
        }
    }
}

#[test]
fn bad_devices_are_refused_with_key_value_and_line() {
    let memory = "<Memory_Type>FLASH</Memory_Type>";
    for (old, new, message) in [
        (memory, "<Memory_Type>PCM</Memory_Type>", "Memory_Type = PCM: expected FLASH (line 13)"),
        (memory, "", "Memory_Type is missing in Device_Parameter_Set (line 10)"),
        (
            memory,
            "<Memory_Tpye>FLASH</Memory_Tpye>",
            "Memory_Type is missing in Device_Parameter_Set (line 10); is `Memory_Tpye` meant to be it?",
        ),
        (
            memory,
            "<Memory_Type>FLASH</Memory_Type><Memory_Type>FLASH</Memory_Type>",
            "Memory_Type stands twice in Device_Parameter_Set (line 13)",
        ),
        (
            memory,
            "<Memory_Type>FLASH</Memory_Type><Memory_Sort>9</Memory_Sort>",
            "unknown key Memory_Sort in Device_Parameter_Set (line 13)",
        ),
        (
            memory,
            "<Memory_Type>FLASH</Memory_Type><CMT_Capcity>9</CMT_Capcity>",
            "unknown key CMT_Capcity in Device_Parameter_Set (line 13); did you mean `CMT_Capacity`?",
        ),
        (">NVME<", ">SATA<", "HostInterface_Type = SATA: expected NVME (line 14)"),
        (">NVDDR2<", ">NVDDR3<", "Flash_Comm_Protocol = NVDDR3: expected NVDDR2 (line 48)"),
        (">PAGE_LEVEL<", ">HYBRID<", "Address_Mapping = HYBRID: expected PAGE_LEVEL (line 26)"),
        (
            ">CWDP<",
            ">CWDF<",
            "Plane_Allocation_Scheme = CWDF: expected a permutation of the letters C, W, D and P (line 30)",
        ),
        (
            ">RGA<",
            ">RANDOM_PP<",
            "GC_Block_Selection_Policy = RANDOM_PP: expected GREEDY or RGA or RANDOM or RANDOM_P or FIFO (line 34)",
        ),
        (">333<", ">3333<", "Channel_Transfer_Rate = 3333: expected a whole number from 1 to 1000 (line 46)"),
        (">0.07<", ">7%<", "Overprovisioning_Ratio = 7%: expected a number from 0 to 0.9 (line 32)"),
        (
            ">0.07<",
            ">0.01<",
            "the imported device is not valid: ftl.over_provisioning = 0.01: expected enough for 4.0 spare blocks in each plane of 64 (reserve, write frontiers, one victim, and what is left unused by GC); this leaves 0.6 after metadata and bad blocks",
        ),
        (
            "<Static_Wearleveling_Enabled>true<",
            "<Static_Wearleveling_Enabled>yes<",
            "Static_Wearleveling_Enabled = yes: expected true or false (line 39)",
        ),
        ("</Execution_Parameter_Set>", "", "not an XML file: "),
        (
            "Host_Parameter_Set>",
            "Hots_Parameter_Set>",
            "Host_Parameter_Set is missing in Execution_Parameter_Set (line 2)",
        ),
        (
            "Execution_Parameter_Set>",
            "MQSim_IO_Scenarios>",
            "<MQSim_IO_Scenarios> has no meaning here: expected <Execution_Parameter_Set> (line 2)",
        ),
    ] {
        let xml = DEVICE.replace(old, new);
        assert_ne!(xml, DEVICE, "{old}");
        let error = import_device(&xml).unwrap_err();
        match message.ends_with(": ") {
            true => assert!(error.starts_with(message), "{error}"),
            false => assert_eq!(error, message),
        }
    }
}

fn small() -> DeviceConfig {
    preset("mqsim-small-ideal").unwrap()
}

/// The job file of the only scenario of `xml`.
fn job(xml: &str) -> (String, Vec<String>) {
    let (mut workload, warnings) = import_workload(xml, &small(), false).unwrap();
    (workload.scenarios.remove(0).fio.unwrap(), warnings)
}

#[test]
fn a_closed_loop_becomes_a_job() {
    let (text, warnings) = job(FLOW);
    assert_eq!(
        text,
        "; From scenario 1 of an MQSim workload file, whose device begins as with --fill 0.5.\n[flow0]\nrw=randread\nbs=8192\nsize=7988576256\n\
         ; MQSim draws addresses with replacement.\nnorandommap\niodepth=32\nruntime=10\ntime_based\n"
    );
    assert_eq!(
        warnings,
        [
            "Initial_Occupancy_Percentage = 75 has no effect, in MQSim too: Enabled_Preconditioning is false",
            "Seed = 798 is not modelled: randomness comes from the seed of the run",
        ]
    );
    let capacity = Bytes(Geometry::new(&small()).capacity_lbas() * LBA_BYTES);
    let file = parse_job_file("flow", &text, capacity).unwrap();
    let spec = &file.jobs[0];
    assert_eq!((spec.mix, spec.iodepth), (Mix::Only(Direction::Read), 32));
    assert_eq!((&spec.sizes[0], spec.random_map), (&Sizes::Fixed(16), false));
    assert_eq!(spec.limits.runtime, Some(Duration::from_secs(10)));
    assert_eq!(file.warnings, [""; 0]);
}

#[test]
fn the_state_of_the_device_is_that_of_mqsim() {
    let with =
        |changes: &[(&str, &str)]| changes.iter().fold(FLOW.to_owned(), |xml, (a, b)| xml.replace(a, b));
    let writes = ("<Read_Percentage>100<", "<Read_Percentage>0<");
    let streams = (">RANDOM_UNIFORM<", ">STREAMING<");
    for (changes, preconditioned, state) in [
        // Reads find the pages that MQSim maps when they are first read.
        (&[][..], false, "--fill 0.5"),
        (&[writes], false, "--precondition none"),
        (&[], true, "--fill 0.75"),
        (&[("Set_Percentage>50<", "Set_Percentage>85<")], true, "--fill 0.85"),
        (&[writes], true, "--fill 0.75 --overwrite 2 --pattern random"),
        (&[writes, streams], true, "--fill 0.75 --overwrite 2 --pattern sequential"),
        (&[writes, ("Occupancy_Percentage>75<", "Occupancy_Percentage>0<")], true, "--precondition none"),
    ] {
        let (workload, _) = import_workload(&with(changes), &small(), preconditioned).unwrap();
        assert_eq!(workload.scenarios[0].state(), state, "{changes:?}");
        let command = workload.scenarios[0].command("my job.fio", "device.toml");
        assert_eq!(command, format!("weir fio 'my job.fio' --device device.toml {state}"));
    }
    assert!(!is_preconditioned(DEVICE).unwrap());
    let on = DEVICE.replace("Preconditioning>false<", "Preconditioning>true<");
    assert!(is_preconditioned(&on).unwrap());
}

#[test]
fn a_device_that_keeps_more_free_than_it_has_to_spare_is_warned_about() {
    let (config, warnings) = import_device(DEVICE).unwrap();
    let problem = "ftl.gc.start_below_blocks = 10 of 64: with 100 % of the capacity written, 59.5 blocks of each plane \
                   hold data and 4.5 are left, so GC never stops and moves nearly full blocks; expected at \
                   most 4, more ftl.over_provisioning, or at most 90 % written";
    assert_eq!(warnings.last().map(String::as_str), Some(problem));
    assert_eq!(config.collection_never_stops(0.9), None);
    assert!(config.collection_never_stops(0.92).is_some());
}

#[test]
fn other_flows_become_jobs_that_parse() {
    let capacity = Bytes(Geometry::new(&small()).capacity_lbas() * LBA_BYTES);
    for (changes, lines) in [
        (&[("<Read_Percentage>100<", "<Read_Percentage>70<")][..], &["rw=randrw", "rwmixread=70"][..]),
        (
            &[("<Read_Percentage>100<", "<Read_Percentage>0<"), (">RANDOM_UNIFORM<", ">STREAMING<")],
            &["rw=write"],
        ),
        (
            &[(">RANDOM_UNIFORM<", ">RANDOM_HOTCOLD<"), ("Hot_Region>0<", "Hot_Region>20<")],
            &["random_distribution=zoned:80/20:20/80"],
        ),
        (&[(">QUEUE_DEPTH<", ">BANDWIDTH<")], &["rate=32768", "rate_process=poisson"]),
        // A rate is one of each direction.
        (
            &[("<Read_Percentage>100<", "<Read_Percentage>70<"), (">QUEUE_DEPTH<", ">BANDWIDTH<")],
            &["rate=22937,9831"],
        ),
        (
            &[("<Generated_Aligned_Addresses>true<", "<Generated_Aligned_Addresses>false<")],
            &["blockalign=512"],
        ),
        (&[(">10000000000<", ">1500<")], &["runtime=2us"]),
        (&[(">10000000000<", ">0<"), ("Generate>0<", "Generate>77<")], &["number_ios=77", "io_size=630784"]),
    ] {
        let xml = changes.iter().fold(FLOW.to_owned(), |xml, (old, new)| {
            assert!(xml.contains(old), "{old}");
            xml.replace(old, new)
        });
        let (text, _) = job(&xml);
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
        }
        parse_job_file("flow", &text, capacity).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

#[test]
fn flows_share_the_device() {
    let flow = FLOW.split_once("<IO_Scenario>").unwrap().1.split_once("</IO_Scenario>").unwrap().0;
    let (text, warnings) = job(&FLOW.replace(flow, &flow.repeat(2)));
    assert!(text.contains("[flow1]") && text.contains("\noffset=7988576256\n"), "{text}");
    assert!(warnings[0].starts_with("2 flows share the device"), "{warnings:?}");
}

#[test]
fn a_trace_becomes_a_command() {
    let (head, tail) = FLOW.split_once("<Working_Set_Percentage>").unwrap();
    let rest = "<File_Path>traces/tpcc-small.trace</File_Path><Percentage_To_Be_Executed>50</Percentage_To_Be_Executed>\
                <Relay_Count>2</Relay_Count><Time_Unit>NANOSECOND</Time_Unit></IO_Flow_Parameter_Set_Synthetic>";
    let tail = tail.split_once("</IO_Flow_Parameter_Set_Synthetic>").unwrap().1;
    let xml = format!("{head}{rest}{tail}")
        .replace("Set_Synthetic", "Set_Trace_Based")
        .replace("TURNED_OFF", "WRITE_CACHE");
    let (workload, warnings) = import_workload(&xml, &small(), false).unwrap();
    assert_eq!((workload.caching, &workload.scenarios[0].fio), (Caching::Write, &None));
    assert_eq!(
        workload.scenarios[0].replay_commands("mqsim-default"),
        [
            "weir replay traces/tpcc-small.trace --device mqsim-default --format mqsim --fit wrap --repeat 2 --fill 1"
        ]
    );
    assert!(warnings[1].starts_with("Percentage_To_Be_Executed = 50 is not modelled"), "{warnings:?}");
}

#[test]
fn bad_workloads_are_refused_with_key_value_and_line() {
    for (old, new, message) in [
        (
            ">TURNED_OFF<",
            ">READ_CACHE<",
            "Device_Level_Data_Caching_Mode = READ_CACHE: expected TURNED_OFF or WRITE_CACHE (line 6)",
        ),
        (">FIXED<", ">NORMAL<", "Request_Size_Distribution = NORMAL: expected FIXED (line 19)"),
        (">0,1,2,3<", ">0,1,2,9<", "Chip_IDs = 0,1,2,9: expected a list of numbers from 0 to 3 (line 8)"),
        (
            ">RANDOM_UNIFORM<",
            ">RANDOM_HOTCOLD<",
            "Percentage_of_Hot_Region = 0: expected 1 to 99 with RANDOM_HOTCOLD",
        ),
        (
            ">10000000000<",
            ">0<",
            "Stop_Time and Total_Requests_To_Generate are both 0: one must end the flow",
        ),
        (
            "Set_Percentage>50<",
            "Set_Percentage>0<",
            "Working_Set_Percentage = 0: expected a whole number from 1 to 100 (line 12)",
        ),
        (">10000000000<", ">soon<", "Stop_Time = soon: expected a whole number (line 25)"),
        (">32<", ">0<", "Average_No_of_Reqs_in_Queue = 0: expected 1 to 65535 with QUEUE_DEPTH"),
        (
            "<Average_Request_Size>16<",
            "<Average_Request_Size>0<",
            "Average_Request_Size = 0: expected a whole number from 1 to 65536 (line 20)",
        ),
        (
            "Parameter_Set_Synthetic",
            "Parameter_Set_Random",
            "<IO_Flow_Parameter_Set_Random> has no meaning here: expected <IO_Flow_Parameter_Set_Synthetic> or <IO_Flow_Parameter_Set_Trace_Based> (line 4)",
        ),
    ] {
        let xml = FLOW.replace(old, new);
        assert_ne!(xml, FLOW, "{old}");
        assert_eq!(import_workload(&xml, &small(), false).unwrap_err(), message);
    }
}
