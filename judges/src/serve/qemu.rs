//! Judges: qemu's block layer.

use crate::judge::Finding;
use crate::place::Place;
use crate::program::{run, run_failing};
use crate::serve::files::{compare, image};
use crate::serve::server::{Server, TINY};
use serde_json::Value;

/// Converts images to and from the disk, in order and out of order, and lets qemu compare them.
pub(super) fn img(place: &Place) -> Finding {
    let server = Server::start(place, &[TINY])?;
    let (uri, size) = (server.uri(), server.counts()?.size);
    let info = run(place, &["qemu-img", "info", "--output=json", &uri])?;
    let info: Value = serde_json::from_str(&info).map_err(|error| format!("qemu-img info: {error}"))?;
    if info["virtual-size"] != size || info["format"] != "raw" {
        return Err(format!("qemu-img info says {info}, expected a raw image of {size} bytes"));
    }
    let (raw, packed, back) = (place.path("there.img"), place.path("packed.qcow2"), place.path("back.img"));
    let ways: [&[&str]; 2] = [&["-W", "-m", "8"], &["-t", "writeback", "-S", "0"]];
    let mut data = 0;
    for (number, way) in (10..).zip(ways) {
        data += image(&raw, place.seed(), number, size)?;
        let mut line = vec!["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw"];
        line.extend(way);
        line.extend([raw.as_str(), &uri]);
        run(place, &line)?;
        run(place, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &raw, &uri])?;
        run(place, &["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, &packed])?;
        run(place, &["qemu-img", "compare", "-f", "qcow2", "-F", "raw", &packed, &uri])?;
        run(place, &["qemu-img", "convert", "-f", "qcow2", "-O", "raw", &packed, &back])?;
        compare(&raw, &back)?;
    }
    let other = "write -P 0x5a 4096 512";
    run(place, &["qemu-io", "-f", "raw", "-c", other, &back])?;
    run_failing(place, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &back, &uri])?;
    server.stop()?;
    Ok(format!("{} images, {:.1} MB of data converted there and back", ways.len(), data as f64 / 1e6))
}

/// Scripts: written data are read back, zeroes and discards leave the right holes, and invalid requests fail.
pub(super) fn io(place: &Place) -> Finding {
    let server = Server::start(place, &[TINY])?;
    let (uri, size) = (server.uri(), server.counts()?.size);
    let good = [
        "write -P 0x11 0 64k",
        "write -P 0x22 4k 512",
        "write -z 8k 8k",
        "write -z -u 32k 8k",
        "discard 48k 8k",
        "write -f -P 0x33 60k 4k",
        "flush",
        "read -P 0x11 0 4k",
        "read -P 0x22 4k 512",
        "read -P 0x11 4608 3584",
        "read -P 0 8k 8k",
        "read -P 0x11 16k 16k",
        "read -P 0 32k 8k",
        "read -P 0x11 40k 8k",
        "read -P 0 48k 8k",
        "read -P 0x11 56k 4k",
        "read -P 0x33 60k 4k",
        // The request is not aligned to sectors: qemu reads, merges and writes.
        "write -P 0x44 200001 777",
        "read -P 0x44 200001 777",
        "read -P 0 199000 1001",
        "read -P 0 200778 1000",
        // Requests for parts of a mapping unit keep the rest of it. Whether a discard of a part has an effect is open.
        "write -P 0x55 1M 4k",
        "discard 1049600 1k",
        "read -P 0x55 1M 1k",
        "read -P 0x55 1050624 2k",
        "write -z -u 1048576 512",
        "read -P 0 1048576 512",
        "read -P 0x55 1049088 512",
        // Several requests are in flight at once.
        "aio_write -P 0x61 2M 1M",
        "aio_write -P 0x62 3M 1M",
        "aio_write -z 4M 1M",
        "aio_flush",
        "flush",
        "read -P 0x61 2M 1M",
        "read -P 0x62 3M 1M",
        "read -P 0 4M 1M",
        // Requests are as large as the largest payload, and larger.
        "write -P 0x71 32M 32M",
        "read -P 0x71 32M 32M",
        "write -P 0x72 16M 40M",
        "read -P 0x72 16M 40M",
        "read -P 0x71 56M 8M",
    ];
    let last = [
        format!("write -P 0x81 {} 512", size - 512),
        format!("read -P 0x81 {} 512", size - 512),
        format!("read -P 0 {} 512", size - 1024),
    ];
    let commands: Vec<&str> = good.into_iter().chain(last.iter().map(String::as_str)).collect();
    let mut line = vec!["qemu-io", "-f", "raw", "-d", "unmap"];
    commands.iter().for_each(|command| line.extend(["-c", command]));
    line.push(&uri);
    run(place, &line)?;
    let map = run(place, &["qemu-img", "map", "--output=json", "-f", "raw", &uri])?;
    let map: Value = serde_json::from_str(&map).map_err(|error| format!("qemu-img map: {error}"))?;
    // Zeroes that must not be a hole stay allocated; zeroes that may be one, and discards, do not.
    for (at, is_data) in [(8 << 10, true), (32 << 10, false), (48 << 10, false), (60 << 10, true)] {
        let extents = map.as_array().map_or(&[][..], Vec::as_slice);
        let holds = |extent: &&Value| {
            let (start, length) = (extent["start"].as_u64(), extent["length"].as_u64());
            start.zip(length).is_some_and(|(start, length)| (start..start + length).contains(&at))
        };
        let found = extents.iter().find(holds).ok_or_else(|| format!("qemu-img map leaves out byte {at}"))?;
        if found["data"] != is_data {
            return Err(format!("byte {at}: the map says {found}, expected data: {is_data}"));
        }
    }
    let bad = [
        // This pattern is not there, which shows that the judge can fail.
        "read -P 9 0 512".to_owned(),
        format!("read {size} 512"),
        format!("read {} 1k", size - 512),
        format!("write {size} 512"),
        format!("write {} 1k", size - 512),
        format!("discard {size} 4k"),
        format!("write -z {} 4k", size - 512),
    ];
    for command in &bad {
        run_failing(place, &["qemu-io", "-f", "raw", "-d", "unmap", "-c", command, &uri])?;
    }
    run(place, &["qemu-io", "-f", "raw", "-c", &last[1], &uri])?;
    let refused = Server::stop(server).and_then(|_| read_only(place))?;
    Ok(format!("{} commands as expected, {} refused", commands.len() + 1, bad.len() + refused))
}

/// A read-only disk can be read and not written.
fn read_only(place: &Place) -> Result<usize, String> {
    let server = Server::start(place, &[TINY, &["--read-only"]])?;
    let uri = server.uri();
    run(place, &["qemu-io", "-r", "-f", "raw", "-c", "read -P 0 0 64k", &uri])?;
    run_failing(place, &["qemu-io", "-f", "raw", "-c", "write 0 4k", &uri])?;
    server.stop()?;
    Ok(1)
}
