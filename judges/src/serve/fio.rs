//! Judges: fio's `nbd` engine with verification.
//!
//! With this engine fio flushes by `fsync`; there is no `fdatasync`.

use crate::judge::Finding;
use crate::place::Place;
use crate::program::run;
use crate::serve::server::{Server, TINY};

/// Jobs that write, trim and flush side by side, each in an area of its own, and verify what they wrote. They write so
/// much more than the capacity that GC runs.
fn jobs(uri: &str, seed: u64) -> String {
    format!(
        "[global]
ioengine=nbd
uri={uri}
randseed={seed}
verify_fatal=1
iodepth=16
group_reporting

[write]
rw=randwrite
bsrange=4k-64k
size=40m
loops=3
fsync=32
verify=crc32c
verify_backlog=256

[small]
rw=randrw
bsrange=512-16k
offset=40m
size=16m
fsync=8
verify=crc32c

[sequential]
rw=write
bs=128k
offset=56m
size=32m
loops=3
fsync=16
verify=crc32c

[trim-write]
rw=randtrimwrite
bs=8k
offset=88m
size=16m
verify=crc32c

[fill]
rw=write
bs=64k
offset=104m
size=16m
fsync=64
verify=0

[trim]
stonewall
rw=randtrim
bsrange=4k-32k
offset=104m
size=16m
verify=0
"
    )
}

/// Runs the jobs in real time over a unix socket.
pub(super) fn unix(place: &Place) -> Finding {
    let server = Server::start(place, &[TINY])?;
    let uri = server.uri();
    verified(place, server, &uri)
}

/// Runs the jobs as fast as possible over TCP.
pub(super) fn tcp(place: &Place) -> Finding {
    let server = Server::start(place, &[TINY, &["--tcp", "127.0.0.1:0", "--speed", "max"]])?;
    let uri = format!("nbd://{}", server.tcp()?);
    verified(place, server, &uri)
}

fn verified(place: &Place, server: Server, uri: &str) -> Finding {
    let file = place.write("jobs.fio", jobs(uri, place.seed() % (1 << 31)).as_bytes())?;
    run(place, &["fio", &file])?;
    // The trim job covers its area, because fio visits each of its blocks once.
    run(place, &["qemu-io", "-f", "raw", "-c", "read -P 0 104M 16M", &server.uri()])?;
    let counts = server.counts()?;
    server.stop()?;
    let asked = [counts.reads, counts.writes, counts.trims, counts.flushes];
    if counts.errors > 0 || asked.contains(&0) || counts.erases == 0 {
        return Err(format!("not what these jobs ask for: {counts:?}"));
    }
    let [reads, writes, trims, flushes] = asked;
    Ok(format!(
        "verified: {writes} writes, {trims} trims, {flushes} flushes, {reads} reads, {} blocks erased",
        counts.erases
    ))
}
