//! Judges: volumes survive their server, however it ends.

use crate::disk::{Fuse, Loop, Mount};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, run};
use crate::random::Random;
use crate::serve::cuts::needs_recovery;
use crate::serve::files::Tree;
use crate::serve::records::{Records, SyncedFiles};
use crate::serve::server::{SMALL, Server, run_weir};
use std::thread::sleep;
use std::time::Duration;

/// Makes a volume with the small device.
fn create(place: &Place) -> Result<String, String> {
    let volume = place.path("volume");
    run_weir(place, &[&["volume", "create", &volume, "--device"][..], SMALL].concat())?;
    Ok(volume)
}

/// After a stop a file system is unchanged, and so is its allocation.
pub(super) fn stopped(place: &Place) -> Finding {
    let volume = create(place)?;
    let server = Server::start(place, &[&[&volume, "--speed", "max"]])?;
    let fuse = Fuse::mount(place, server.socket())?;
    let disk = Loop::attach(place, &fuse.file())?;
    run(place, &["mkfs.ext4", "-q", "-F", disk.device()])?;
    let mount = Mount::new(place, disk.device())?;
    let mut tree = Tree::new(place.seed());
    tree.fill(mount.dir(), 300)?;
    mount.unmount()?;
    disk.detach()?;
    fuse.unmount()?;
    let map = run(place, &["nbdinfo", "--map", &server.uri()])?;
    server.stop()?;
    const LIVES: u32 = 2;
    for life in 0..LIVES {
        run_weir(place, &["volume", "check", "--quiet", &volume])?;
        let server = Server::start(place, &[&[&volume, "--speed", "max"]])?;
        if life == 0 && run(place, &["nbdinfo", "--map", &server.uri()])? != map {
            return Err("after the restart other areas are allocated than before".into());
        }
        let fuse = Fuse::mount(place, server.socket())?;
        let disk = Loop::attach(place, &fuse.file())?;
        run(place, &["e2fsck", "-fn", disk.device()])?;
        let mount = Mount::new(place, disk.device())?;
        tree.verify(mount.dir())?;
        tree.churn(mount.dir())?;
        tree.fill(mount.dir(), 100)?;
        mount.unmount()?;
        disk.detach()?;
        fuse.unmount()?;
        server.stop()?;
    }
    run_weir(place, &["volume", "check", "--quiet", &volume])?;
    Ok(format!("{} files of {:.1} MB as they were, {LIVES} restarts", tree.len(), tree.bytes() as f64 / 1e6))
}

/// A server of a simulated device on a volume.
pub(super) fn killed(place: &Place) -> Finding {
    let volume = create(place)?;
    let check = || run_weir(place, &["volume", "check", "--quiet", &volume]);
    killed_and_started(place, || Server::start(place, &[&[&volume]]), check)
}

/// A server of a host FTL on threads, in a file.
pub(super) fn threads_killed(place: &Place) -> Finding {
    let file = place.path("disk.weir");
    // The first start makes the file.
    let made = std::path::PathBuf::from(&file);
    let serve = || {
        let create: &[&str] = if made.exists() { &[] } else { &["--create", "512MiB"] };
        Server::start_as(place, "threads", &[&[file.as_str()][..], create].concat())
    };
    killed_and_started(place, serve, || Ok(String::new()))
}

/// The server is killed under fio and under writers that remember what was synced.
fn killed_and_started(
    place: &Place,
    serve: impl Fn() -> Result<Server, String>,
    check: impl Fn() -> Result<String, String>,
) -> Finding {
    const KILLS: u32 = 3;
    let seed = format!("--randseed={}", place.seed() % (1 << 31));
    let load = |uri: &str, more: &[&str]| {
        let uri = format!("--uri={uri}");
        let line =
            ["fio", "--name=load", "--ioengine=nbd", &uri, &seed, "--rw=randwrite", "--bsrange=4k-64k"];
        let line = [&line[..], &["--iodepth=16", "--verify=crc32c", "--size=24m"], more].concat();
        Program::start(place, &line)
    };
    // The areas are: data that fio has synced, data that fio is writing, records, and an ext4 volume on a loop device on the rest.
    let (records_at, rest_at) = (64 << 20, "83886080");
    let mut records = Records::new(place.seed(), records_at, 1024);
    let mut files = SyncedFiles::new(place.seed());
    let mut random = Random::new(place.seed(), 6);
    let server = serve()?;
    let done = load(&server.uri(), &["--do_verify=0", "--end_fsync=1"])?.wait(Duration::from_secs(60))?;
    if !done.success() {
        return Err(format!("fio ended with {done}"));
    }
    let mut server = Some(server);
    for kill in 0..KILLS {
        let running = server.take().expect("each round leaves a server");
        let fuse = Fuse::mount(place, running.socket())?;
        let disk = Loop::attach_at(place, &fuse.file(), rest_at)?;
        if kill == 0 {
            run(place, &["mkfs.ext4", "-q", "-F", disk.device()])?;
        }
        let mount = Mount::new(place, disk.device())?;
        let under_load = ["--offset=32m", "--fsync=8", "--do_verify=0", "--loops=1000"];
        let fio = load(&running.uri(), &under_load)?;
        let writer = records.write(&fuse.file());
        let maker = files.write(mount.dir());
        sleep(Duration::from_millis(500 + random.below(1000)));
        running.kill()?;
        drop(fio);
        records = writer.join().map_err(|_| "the writer of records panicked")?;
        files = maker.join().map_err(|_| "the writer of files panicked")?;
        drop(mount);
        drop(disk);
        drop(fuse);

        let after = |error: String| format!("after kill {kill}: {error}");
        check().map_err(after)?;
        let again = serve().map_err(after)?;
        let verify =
            load(&again.uri(), &["--verify_only", "--verify_fatal=1"])?.wait(Duration::from_secs(60))?;
        if !verify.success() {
            return Err(after(format!("what fio had synced is not there: it ended with {verify}")));
        }
        let fuse = Fuse::mount(place, again.socket())?;
        records.verify(&fuse.file()).map_err(after)?;
        let disk = Loop::attach_at(place, &fuse.file(), rest_at)?;
        if !needs_recovery(place, disk.device())? {
            return Err(after("the journal of ext4 is empty".into()));
        }
        let mount = Mount::new(place, disk.device())?;
        files.verify(mount.dir()).map_err(after)?;
        mount.unmount()?;
        run(place, &["e2fsck", "-fn", disk.device()]).map_err(after)?;
        disk.detach()?;
        fuse.unmount()?;
        server = Some(again);
    }
    server.expect("each round leaves a server").stop()?;
    if records.synced() == 0 || files.count() == 0 {
        return Err(format!("nothing was synced: {} records, {} files", records.synced(), files.count()));
    }
    Ok(format!(
        "{KILLS} kills, {} records and {} files that were synced are there",
        records.synced(),
        files.count()
    ))
}
