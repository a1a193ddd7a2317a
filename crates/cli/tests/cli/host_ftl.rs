//! A volume with a host FTL below a server that is killed.

use super::{Place, good, text};
use flashweir_serve::client::{Ask, Client};
use flashweir_serve::nbd::wire::command;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of a volume, once it takes clients.
fn served(place: &Place, volume: &str) -> (Child, String) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", volume, "--unix", "disk.sock", "--speed", "max", "--output", "json"])
        .current_dir(&place.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("disk.sock"), "{ready}");
    (server, ready)
}

/// `kill -9` of a server whose disk has a host FTL: what a FLUSH of another connection covered is there when the next server is.
#[test]
fn a_host_ftl_on_a_volume_survives_kill_9() {
    let place = Place::new("host-ftl");
    let made = place.say(
        "volume create v --device qblke --host-ftl qblke,rings=2 --set geometry.channels=2 --set geometry.pages_per_block=16",
    );
    assert_eq!(good(&made), "v: 109.5 MiB of qblke; weir serve v\n");
    let socket = place.0.join("disk.sock");
    for round in 1..=3u8 {
        let (mut server, _) = served(&place, "v");
        let mut clients: Vec<Client> =
            (0..3).map(|_| Client::connect(&socket, "qblke", true, PATIENCE).unwrap()).collect();
        let expected: Vec<u8> = (0..3).flat_map(|client| [(round - 1) * 10 + client; 8192]).collect();
        let found = clients[1].read_range(0, 3 * 8192, PATIENCE).unwrap().unwrap();
        assert!(round == 1 && found == [0; 3 * 8192] || found == expected, "round {round}");
        for (number, client) in (0..).zip(&mut clients) {
            let ask =
                Ask { command: command::WRITE, flags: 0, offset: u64::from(number) * 8192, length: 8192 };
            client.call(ask, &[round * 10 + number; 8192], PATIENCE).unwrap().result.unwrap();
        }
        let flush = Ask { command: command::FLUSH, flags: 0, offset: 0, length: 0 };
        clients[2].call(flush, &[], PATIENCE).unwrap().result.unwrap();
        server.kill().unwrap();
        let ended = server.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        assert!(
            said.contains("its host FTL recovered in ") && said.contains("the map takes 0.2 MiB"),
            "{said}"
        );
        std::fs::remove_file(&socket).unwrap();
    }
    let info = place.say("volume info v");
    assert!(
        good(&info).contains("host FTL     2 rings, lines of a channel, scores\n"),
        "{}",
        text(&info.stdout)
    );
    assert!(good(&place.say("volume check v")).starts_with("no problems: "));
}

/// Lines with bad blocks counted as whole ones, so GC ran out of pages: requests were lost, or GC copied short lines round and round. Writes end,
/// or are refused.
#[test]
fn regression_grown_bad_blocks_end_in_refusals() {
    let place = Place::new("grown-bad-blocks");
    std::fs::write(place.0.join("w.fio"), "[w]\nbs=4k\nrw=randwrite\niodepth=8\nnorandommap\nio_size=30m\n")
        .unwrap();
    let small = "--device qblke --set geometry.pages_per_block=16 --set geometry.channels=2 --fill 1.0 --overwrite 0.3 --quiet";
    for (faults, is_refused) in [
        (
            "--host-ftl qblke,rings=2 --set faults.program_fail=0.00005 --set faults.chunk_goes_on=1.0 --seed 1",
            None,
        ),
        ("--host-ftl pblk --set faults.program_fail=0.00005 --set faults.chunk_goes_on=1.0 --seed 1", None),
        ("--host-ftl qblke,rings=2 --set faults.erase_fail=0.01", Some(true)),
        ("--host-ftl pblk --set faults.erase_fail=0.01", Some(true)),
        ("--host-ftl qblke,rings=2 --set faults.factory_bad=0.03", Some(false)),
    ] {
        let output = place.say(&format!("fio w.fio {small} {faults}"));
        let said = text(&output.stderr);
        let was_refused = output.status.code() == Some(1)
            && said.contains("requests failed; the first on qblke, w: the device is read-only");
        assert!(was_refused || output.status.success(), "{faults}: {said}");
        assert!(is_refused.is_none_or(|expected| expected == was_refused), "{faults}: {said}");
    }
}
