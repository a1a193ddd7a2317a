//! Judges: the tools of libnbd.

use crate::judge::Finding;
use crate::place::Place;
use crate::program::{run, run_failing};
use crate::serve::files::{compare, image};
use crate::serve::server::{Server, TINY};
use serde_json::Value;

/// Data of the server about its exports, and their allocation.
pub(super) fn nbdinfo(place: &Place) -> Finding {
    let second = ["second=sata-mlc"];
    let first = format!("first={}", TINY[0]);
    let first: Vec<&str> = std::iter::once(first.as_str()).chain(TINY[1..].iter().copied()).collect();
    // A --set applies to every device, and the first one's sizes are too small for the planes of the second one.
    let server = Server::start(place, &[&first, &["--speed", "max"]])?;
    let (uri, size) = (server.uri(), server.counts()?.size);
    let mut facts = 0;
    let mut expect = |what: &str, found: &Value, wanted: Value| {
        facts += 1;
        if *found == wanted { Ok(()) } else { Err(format!("{what} is {found}, expected {wanted}")) }
    };
    let text = run(place, &["nbdinfo", "--json", &uri])?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("nbdinfo --json: {error}"))?;
    expect("protocol", &answer["protocol"], "newstyle-fixed".into())?;
    expect("structured", &answer["structured"], true.into())?;
    let export = &answer["exports"][0];
    expect("export-name", &export["export-name"], "first".into())?;
    expect("export-size", &export["export-size"], size.into())?;
    expect("contexts", &export["contexts"], vec!["base:allocation"].into())?;
    for (key, value) in [("minimum", 512), ("preferred", 4096), ("maximum", 32 << 20)] {
        let key = format!("block_size_{key}");
        expect(&key, &export[&key], value.into())?;
    }
    for key in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
        let key = format!("can_{key}");
        expect(&key, &export[&key], true.into())?;
    }
    for key in ["is_read_only", "is_rotational"] {
        expect(key, &export[key], false.into())?;
    }
    let map = run(place, &["nbdinfo", "--map", &uri])?;
    expect("the map of a new device", &map_of(&map), vec![format!("0 {size} 3")].into())?;
    run(place, &["qemu-io", "-f", "raw", "-c", "write 1M 4k", "-c", "write 3M 64k", &uri])?;
    let written = ["0 1048576 3", "1048576 4096 0", "1052672 2093056 3", "3145728 65536 0"];
    let mut written: Vec<String> = written.map(str::to_owned).into();
    written.push(format!("3211264 {} 3", size - 3_211_264));
    let map = run(place, &["nbdinfo", "--map", &uri])?;
    expect("the map after two writes", &map_of(&map), written.into())?;
    let wrong = run_failing(place, &["nbdinfo", &uri.replacen("///", "///no-such-export", 1)])?;
    if !wrong.contains("no-such-export") {
        return Err(format!("an export that is not there gives: {}", wrong.trim()));
    }
    server.stop()?;
    let server = Server::start(place, &[&["first=mobile-ufs"], &second, &["--read-only"]])?;
    let text = run(place, &["nbdinfo", "--list", "--json", &server.uri()])?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("nbdinfo --list: {error}"))?;
    let names: Vec<&Value> = answer["exports"].as_array().into_iter().flatten().collect();
    let names: Vec<Value> = names.iter().map(|export| export["export-name"].clone()).collect();
    expect("the list of exports", &names.into(), vec!["first", "second"].into())?;
    expect("is_read_only", &answer["exports"][1]["is_read_only"], true.into())?;
    server.stop()?;
    Ok(format!("{facts} facts as expected"))
}

/// Extents of `nbdinfo --map` as `offset length type`.
fn map_of(text: &str) -> Value {
    let lines = text.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<String>>().into()
}

/// Random images with holes are copied in and out, in one way after the other, and are unchanged.
pub(super) fn nbdcopy(place: &Place) -> Finding {
    let server = Server::start(place, &[TINY])?;
    let (uri, size) = (server.uri(), server.counts()?.size);
    let ways: [&[&str]; 4] = [
        &["--flush"],
        &["--connections=4", "--requests=16"],
        &["--synchronous", "--sparse=4096"],
        &["--allocated", "--connections=2"],
    ];
    let (mut data, back) = (0, place.path("back.img"));
    for (number, way) in (0..).zip(ways) {
        let there = place.path("there.img");
        data += image(&there, place.seed(), number, size)?;
        let copy = |from: &str, to: &str| {
            let mut line = vec!["nbdcopy"];
            line.extend(way);
            line.extend([from, to]);
            run(place, &line).map(drop)
        };
        copy(&there, &uri)?;
        let _ = std::fs::remove_file(&back);
        copy(&uri, &back)?;
        compare(&there, &back).map_err(|error| format!("nbdcopy {}: {error}", way.join(" ")))?;
    }
    let counts = server.counts()?;
    if counts.errors > 0 || counts.writes == 0 || counts.zeroes + counts.trims == 0 {
        return Err(format!("not what a round trip asks for: {counts:?}"));
    }
    server.stop()?;
    let images = ways.len();
    Ok(format!("{images} images with holes, {:.1} MB of data there and back", data as f64 / 1e6))
}
