//! Judges: power cuts under clients, and recorded sessions.

use crate::disk::{Fuse, Loop, Mount};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, run, wait_until};
use crate::random::Random;
use crate::serve::records::SyncedFiles;
use crate::serve::server::{SMALL, Server, TINY, run_weir};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

/// Number of this error on Linux.
const EIO: i32 = 5;

/// A session that is recorded under fio, with a power cut in the middle, gives the same trace when it is run again.
pub(super) fn rerun(place: &Place) -> Finding {
    let file = place.path("session.rec");
    let server = Server::start(place, &[TINY, &["--record", &file]])?;
    let uri = format!("--uri={}", server.uri());
    let seed = format!("--randseed={}", place.seed() % (1 << 31));
    let load = ["fio", "--name=load", "--ioengine=nbd", &uri, &seed, "--rw=randrw", "--bsrange=4k-64k"];
    let mut first =
        Program::start(place, &[&load[..], &["--iodepth=16", "--size=100m", "--loops=100"]].concat())?;
    sleep(Duration::from_millis(700));
    if !first.is_running() {
        return Err(format!("fio ended before the cut: {}", first.output().trim()));
    }
    server.cut(place, &["--seed", &place.seed().to_string()])?;
    if first.wait(Duration::from_secs(20))?.success() {
        return Err("fio did not notice that its disk lost the power".into());
    }
    run(place, &[&load[..], &["--iodepth=16", "--size=32m", "--fsync=16"]].concat())?;
    run(place, &[&load[..6], &["--rw=randtrimwrite", "--bs=8k", "--size=8m"]].concat())?;
    server.stop()?;
    let mut hashes = Vec::new();
    let mut requests = 0;
    for _ in 0..2 {
        let text = run_weir(place, &["rerun", "--output", "json", &file])?;
        let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{text:?}: {error}"))?;
        requests = answer["requests"].as_u64().unwrap_or(0);
        if answer["cuts"] != 1 || requests == 0 || !answer["recorded_hash"].is_u64() {
            return Err(format!(
                "the recording holds {answer}, expected requests, one power cut, and its end"
            ));
        }
        hashes.extend([answer["recorded_hash"].clone(), answer["hash"].clone()]);
    }
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(format!("trace hashes differ: {hashes:?}"));
    }
    Ok(format!("{requests} requests and a power cut, the same trace twice"))
}

/// Clients can stay connected, and get errors until the power is back.
pub(super) fn eio(place: &Place) -> Finding {
    const CUTS: usize = 3;
    const BLOCK: usize = 4096;
    const STEP: u64 = 256 << 10;
    let server = Server::start(place, &[TINY])?;
    let fuse = Fuse::mount_once(place, server.socket())?;
    let name = fuse.file();
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let file = File::options().read(true).write(true).open(&name).map_err(failed)?;
    let mut refused = 0;
    let mut fresh = STEP;
    for cut in 0..CUTS {
        let pattern = 0x41 + cut as u8;
        let at = (cut * BLOCK) as u64;
        file.write_all_at(&[pattern; BLOCK], at).and_then(|()| file.sync_all()).map_err(failed)?;
        server.cut(place, &["--eio", "--off", "400ms"])?;
        wait_until("the end of a power cut", || {
            // Each try reads another place, because the kernel caches reads.
            fresh += STEP;
            match file.read_exact_at(&mut [0; BLOCK], fresh) {
                Ok(()) => Ok(true),
                Err(error) if error.raw_os_error() == Some(EIO) => {
                    refused += 1;
                    Ok(false)
                }
                Err(error) => Err(failed(error)),
            }
        })?;
        // Data that were not flushed may be lost: only the first flush after a cut reports it.
        match file.sync_all() {
            Err(error) if error.raw_os_error() == Some(EIO) => {}
            other => return Err(format!("the first flush after a cut gave {other:?}, expected EIO")),
        }
        file.sync_all().map_err(failed)?;
        let read = format!("read -P {pattern} {at} {BLOCK}");
        run(place, &["qemu-io", "-f", "raw", "-c", &read, &server.uri()])?;
    }
    drop(file);
    fuse.unmount()?;
    let words = server.stop()?;
    if refused < CUTS || !words.contains(&format!("{CUTS} power cuts")) {
        return Err(format!("{refused} errors in {CUTS} cuts; the server says: {}", words.trim()));
    }
    Ok(format!("{CUTS} cuts, {refused} reads refused, the connection goes on"))
}

/// The power is cut several times while files are made and synced.
pub(super) fn ext4(place: &Place) -> Finding {
    const CUTS: u64 = 5;
    let server = Server::start(place, &[SMALL, &["--worst"]])?;
    {
        let fuse = Fuse::mount(place, server.socket())?;
        let disk = Loop::attach(place, &fuse.file())?;
        run(place, &["mkfs.ext4", "-q", "-F", disk.device()])?;
        disk.detach()?;
        fuse.unmount()?;
    }
    let mut random = Random::new(place.seed(), 5);
    let mut files = SyncedFiles::new(place.seed());
    let mut replayed = 0;
    for cut in 0..CUTS {
        let fuse = Fuse::mount(place, server.socket())?;
        let disk = Loop::attach(place, &fuse.file())?;
        let mount = Mount::new(place, disk.device())?;
        let writer = files.write(mount.dir());
        sleep(Duration::from_millis(300 + random.below(500)));
        let seed = random.below(1 << 40).to_string();
        let drawn = ["--seed", &seed];
        let outcome = server.cut(place, if cut == 0 { &[] } else { &drawn });
        if outcome.is_err() {
            // The writer only ends with its disk.
            server.kill()?;
            return outcome;
        }
        files = writer.join().map_err(|_| "the writer panicked")?;
        // Data that this client still has in memory cannot reach the disk, because its connection is closed.
        drop(mount);
        drop(disk);
        drop(fuse);

        let fuse = Fuse::mount(place, server.socket())?;
        let disk = Loop::attach(place, &fuse.file())?;
        replayed += u32::from(needs_recovery(place, disk.device())?);
        let mount = Mount::new(place, disk.device())?;
        files.verify(mount.dir()).map_err(|error| format!("cut {cut} with seed {seed}: {error}"))?;
        mount.unmount()?;
        if needs_recovery(place, disk.device())? {
            return Err("the journal was not replayed by the mount".into());
        }
        run(place, &["e2fsck", "-fn", disk.device()])?;
        disk.detach()?;
        fuse.unmount()?;
    }
    server.stop()?;
    if u64::from(replayed) != CUTS || files.count() == 0 {
        return Err(format!(
            "{replayed} journals replayed after {CUTS} cuts, {} files synced",
            files.count()
        ));
    }
    Ok(format!("{CUTS} cuts, {replayed} journals replayed, {} synced files there", files.count()))
}

/// Whether an ext4 volume needs a replay of its journal, which e2fsck without changes does not tell.
pub(super) fn needs_recovery(place: &Place, device: &str) -> Result<bool, String> {
    Ok(run(place, &["dumpe2fs", "-h", device])?.contains("needs_recovery"))
}
