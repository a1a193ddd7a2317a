//! The JSON that commands print: one option, and one form of document (docs/output.md).

use super::{Place, good, text};
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};

/// A document has the one head that all have; gives the kind that it says it is.
fn kind_of(document: &str) -> String {
    let value: serde_json::Value =
        serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    assert!(
        document.trim_start_matches('{').trim_start().starts_with("\"schema\":"),
        "what a document is stands first: {document}"
    );
    let schema = value["schema"].as_object().unwrap_or_else(|| panic!("no object: {}", value["schema"]));
    assert_eq!(schema.keys().collect::<Vec<_>>(), ["kind", "version"]);
    assert!(schema["version"].as_u64().is_some_and(|version| version > 0), "{schema:?}");
    schema["kind"].as_str().expect("a name").to_owned()
}

/// Commands that give JSON, the quickest way to have each print some, and the kind of document; those about a running
/// server are in the test itself.
const DOCUMENTS: [(&str, &str, &str); 17] = [
    ("run", "run good.toml -q", "runs"),
    ("fio", "fio job.fio --device sata-mlc -q", "fio"),
    ("replay", "replay good.trace --device sata-mlc --device rflush -q", "runs"),
    ("files", "files varmail,nfiles=50,nthreads=2 --device rflush --runtime 5ms -q", "files"),
    ("sqlite", "sqlite --device barrier-850 --transactions 5 -q", "sqlite"),
    ("trace-info", "trace info good.trace", "trace"),
    ("device-list", "device list", "devices"),
    ("device-check", "device check shown.toml", "devices"),
    ("explain", "explain job.fio --device sata-mlc --fill 0.05 -q", "explain"),
    (
        "waf",
        "waf --device amf-page --set geometry.channels=1 --over-provisioning 0.3 --settle 0.1 --measure 0.1 -q",
        "waf",
    ),
    ("reproduce", "reproduce barrier --study dwsl-ufs -q", "reproduce"),
    ("volume-info", "volume info v", "volume"),
    ("volume-check", "volume check v", "volume-check"),
    ("fsck", "fsck d.img", "fsck"),
    ("crash", "crash --device tiny-d1 --states 500 -q", "crash"),
    ("crash-files", "crash files --count 1 -q", "crash-files"),
    (
        "crash-sqlite",
        "crash sqlite --journal wal --count 1 --cuts-each 2 --transactions 4 -q",
        "crash-sqlite",
    ),
];

#[test]
fn every_command_gives_json_by_one_option_and_in_one_form() {
    let place = Place::new("json");
    good(&place.say("man --out-dir pages"));
    let mut commands: Vec<String> = Vec::new();
    for name in std::fs::read_dir(place.0.join("pages")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        let page = std::fs::read_to_string(place.0.join("pages").join(&name)).unwrap();
        let words = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
        assert!(!words.contains("\n--json"), "{name}: the option is --output json");
        if words.contains("\n--output") {
            commands.push(name.trim_start_matches("weir-").trim_end_matches(".1").to_owned());
        } else {
            assert!(!words.contains("JSON") || name == "weir.1", "{name} gives JSON in another way");
        }
    }
    commands.sort();
    let mut known: Vec<&str> = DOCUMENTS.iter().map(|(command, ..)| *command).collect();
    known.extend(["check", "cut", "rerun", "serve", "threads", "top"]);
    known.sort_unstable();
    assert_eq!(commands, known, "a command that gives JSON is tried here");
    std::fs::write(place.0.join("shown.toml"), good(&place.say("device show sata-mlc"))).unwrap();
    good(&place.say("volume create v --device sata-mlc --capacity 1GiB"));
    good(&place.say("mkfs ext4 d.img --size 64MiB"));
    for (command, line, kind) in DOCUMENTS {
        let output = place.say(&format!("{line} --output json"));
        assert_eq!(kind_of(good(&output)), kind, "{command}");
        let (name, rest) = line.split_once(' ').unwrap();
        let refused = place.say(&format!("{line} --json"));
        assert_eq!(refused.status.code(), Some(2), "{name} {rest}");
        assert!(text(&refused.stderr).contains("expected --output json"), "{}", text(&refused.stderr));
    }
    assert_eq!(kind_of(good(&place.say("run good.toml -q --output fio-json"))), "fio");
    let found = place.say("crash --device tiny-d1 --planted early-flush -q --output json");
    let report: serde_json::Value = serde_json::from_str(text(&found.stdout)).unwrap();
    let again = place.weir(&[
        "crash",
        "--replay",
        report["violations"][0]["token"].as_str().unwrap(),
        "--output",
        "json",
    ]);
    assert_eq!(kind_of(text(&again.stdout)), "crash-replay");
    // Mounting is up to the machine.
    if place.say("check --verify true -- true").status.success() {
        let checked = place.say("check --verify true -q --output json -- touch {}/a");
        assert_eq!(kind_of(good(&checked)), "check");
        // Each format has a disk that it works on.
        for format in ["ext4-soj", "ext4-sdj", "ext4-sdj-dual", "f2fs-ssc", "f2fs-ssc-dual"] {
            good(
                &place.say(&format!("check --verify true -q --format {format} --states 10 -- touch {{}}/a")),
            );
        }
    }
}

/// A server that was started by a command line, and the lines that it prints.
fn started(place: &Place, line: &str) -> (Child, impl Iterator<Item = String>) {
    use std::io::BufRead as _;
    let mut server = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(line.split(' '))
        .current_dir(&place.0)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    (server, lines.map(Result::unwrap))
}

/// Kinds of the documents that a server prints when it is interrupted.
fn kinds_at_the_end(server: &Child, lines: impl Iterator<Item = String>) -> Vec<String> {
    assert!(Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap().success());
    lines.map(|line| kind_of(&line)).collect()
}

#[test]
fn a_server_speaks_json_line_by_line() {
    let place = Place::new("json-serve");
    let line = "serve low-latency-slc --unix disk.sock --record session.rec --output json";
    let (mut server, mut lines) = started(&place, line);
    let ready = lines.next().unwrap();
    assert_eq!(kind_of(&ready), "serve-ready");
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["exports"][0]["device"], "low-latency-slc");
    let control = ready["control"].as_str().unwrap();
    assert_eq!(kind_of(good(&place.say(&format!("top {control} --output json")))), "status");
    assert_eq!(kind_of(good(&place.say("cut disk.sock --output json"))), "cut");
    assert_eq!(kinds_at_the_end(&server, lines), ["serve"]);
    server.wait().unwrap();
    assert_eq!(kind_of(good(&place.say("rerun session.rec --output json"))), "rerun");
}

/// A disk on threads in a file: power cut, ended, found again, and for one process at a time.
#[test]
fn a_disk_on_threads_speaks_json_line_by_line() {
    let place = Place::new("json-threads");
    for (life, line) in ["threads d.weir --create 20MiB --worst", "threads d.weir"].into_iter().enumerate() {
        let line = format!("{line} --unix d.sock --output json");
        let (mut server, mut lines) = started(&place, &line);
        let ready = lines.next().unwrap();
        assert_eq!(kind_of(&ready), "threads-ready");
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        assert_eq!(ready["size"], 20 << 20);
        let second = place.say("threads d.weir --unix e.sock");
        assert_eq!(text(&second.stderr), "weir: d.weir: another process has it\n");
        if life == 0 {
            assert_eq!(kind_of(good(&place.say("cut d.sock --seed 3 --output json"))), "cut");
            let refused = place.say("cut d.sock --eio");
            assert!(text(&refused.stderr).contains("expected no --eio"), "{}", text(&refused.stderr));
        } else {
            let refused = place.say("cut d.sock --seed 3");
            assert!(text(&refused.stderr).contains("expected no --seed"), "{}", text(&refused.stderr));
        }
        // A client that talks nonsense is told the end of it, with nobody else there.
        let mut client = std::os::unix::net::UnixStream::connect(place.0.join("d.sock")).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        client.write_all(&[0xff; 64]).unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(kinds_at_the_end(&server, lines), ["threads"]);
        assert!(server.wait().unwrap().success());
    }
}

/// What was damaged while nobody served it is said, and served only on request.
#[test]
fn a_disk_on_threads_that_was_damaged_says_so() {
    let place = Place::new("json-threads-damaged");
    let (mut server, mut lines) =
        started(&place, "threads d.weir --create 20MiB --unix d.sock --output json");
    lines.next().unwrap();
    assert_eq!(kinds_at_the_end(&server, lines), ["threads"]);
    assert!(server.wait().unwrap().success());
    // An opening of block 0, which was never used.
    let file = std::fs::File::options().write(true).open(place.0.join("d.weir")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9], 4096).unwrap();
    drop(file);
    let refused = place.say("threads d.weir --unix d.sock");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--accept-damage serves it"), "{}", text(&refused.stderr));
    let (mut server, mut lines) =
        started(&place, "threads d.weir --accept-damage --unix d.sock --output json");
    assert_eq!(kind_of(&lines.next().unwrap()), "threads-ready");
    // A server whose power is off, which its clients see, need not wait to end.
    let mut client = std::os::unix::net::UnixStream::connect(place.0.join("d.sock")).unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| place.say("cut d.sock --off 100000s"));
        client.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(kinds_at_the_end(&server, lines), ["threads"]);
        assert!(server.wait().unwrap().success());
    });
}

/// A device that fails in a power cut ends the server with its reason, and the controller hears it.
#[test]
fn a_disk_on_threads_that_cannot_recover_says_why() {
    let place = Place::new("json-threads-fails");
    let (mut server, mut lines) =
        started(&place, "threads d.weir --create 20MiB --unix d.sock --output json");
    assert_eq!(kind_of(&lines.next().unwrap()), "threads-ready");
    let file = std::fs::File::options().write(true).open(place.0.join("d.weir")).unwrap();
    file.set_len(100_000).unwrap();
    let cut = place.say("cut d.sock");
    assert!(text(&cut.stderr).contains("the server ends: recovery: "), "{}", text(&cut.stderr));
    assert_eq!(server.wait().unwrap().code(), Some(1));
}

/// What was made for a disk that cannot be served is gone again.
#[test]
fn a_disk_on_threads_without_a_socket_leaves_no_file() {
    let place = Place::new("threads-no-socket");
    let refused = place.say("threads d.weir --create 20MiB --unix nowhere/d.sock");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(!place.0.join("d.weir").exists());
}
