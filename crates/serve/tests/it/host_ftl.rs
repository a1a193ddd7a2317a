//! A volume of an open channel below a host FTL, served to more connections than it has rings, and how it comes back from every end.

use crate::running::{PATIENCE, Running, Setup, UNIT, ask, open_channel};
use flashweir_host::HostFtlConfig;
use flashweir_serve::client::Client;
use flashweir_serve::nbd::wire::command;
use flashweir_serve::volume::{self, Volume, VolumeError};
use flashweir_serve::{Disk, Speed};
use std::path::{Path, PathBuf};

/// More than the FTL has rings.
const CLIENTS: usize = 5;
/// Units that each client writes and that a flush covers.
const UNITS: u64 = 24;

/// A directory for a volume, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-host-ftl-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Stop,
    Kill,
    /// The power fails under the server, which then ends like a process.
    CutThenKill,
}

fn serve(directory: &Path) -> Running {
    let (volume, device, _) = Volume::open(directory, &mut |_| {}).unwrap();
    let disk = Disk::on_volume("disk", volume, device).unwrap();
    assert!(disk.host_ftl().unwrap().is_ready(), "it recovers before a client comes");
    Running::serve(&Setup { speed: Speed::Max, ..Setup::default() }, vec![disk])
}

fn all(client: &mut Client) -> Vec<u8> {
    client.read_range(0, CLIENTS as u64 * UNITS * UNIT, PATIENCE).unwrap().unwrap()
}

#[test]
fn what_any_connection_flushed_is_there_after_every_end() {
    for (name, ftl) in [("pblk", HostFtlConfig::pblk()), ("qblke", HostFtlConfig::qblke(2))] {
        let place = Place::new(name);
        let ftl = HostFtlConfig { queues: 0, ..ftl };
        Volume::create_below(&place.0, &open_channel(), Some(&ftl), 1).unwrap();
        let mut expected = vec![0; (CLIENTS as u64 * UNITS * UNIT) as usize];
        for (round, end) in
            [End::Kill, End::Stop, End::CutThenKill, End::Kill, End::Stop].into_iter().enumerate()
        {
            let server = serve(&place.0);
            let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect("disk")).collect();
            assert_eq!(clients[0].facts().blocks[0], UNIT as u32, "no part of a unit is written");
            assert!(all(&mut clients[1]) == expected, "{name}, round {round}");
            for unit in 0..UNITS {
                for (number, client) in clients.iter_mut().enumerate() {
                    // Each client has units of its own, side by side with those of the others.
                    let at = (unit * CLIENTS as u64 + number as u64) * UNIT;
                    let byte = (1 + round * 40 + number * 5) as u8 ^ unit as u8;
                    let data = vec![byte; UNIT as usize];
                    client
                        .call(ask(command::WRITE, at, UNIT as u32), &data, PATIENCE)
                        .unwrap()
                        .result
                        .unwrap();
                    expected[at as usize..(at + UNIT) as usize].fill(byte);
                }
            }
            // One connection deallocates, another one flushes for all.
            clients[2]
                .call(ask(command::TRIM, 7 * UNIT, UNIT as u32), &[], PATIENCE)
                .unwrap()
                .result
                .unwrap();
            expected[7 * UNIT as usize..8 * UNIT as usize].fill(0);
            clients[3].call(ask(command::FLUSH, 0, 0), &[], PATIENCE).unwrap().result.unwrap();
            let part = clients[4].call(ask(command::WRITE, 512, 512), &[7; 512], PATIENCE).unwrap();
            assert!(part.result.is_err(), "parts of a mapping unit are refused");
            // A client is gone with data in a ring.
            let beyond = CLIENTS as u64 * UNITS * UNIT;
            clients[4]
                .call(ask(command::WRITE, beyond, UNIT as u32), &[9; 4096], PATIENCE)
                .unwrap()
                .result
                .unwrap();
            drop(clients);
            match end {
                End::Stop => drop(server.stop()),
                End::Kill => server.kill(),
                End::CutThenKill => {
                    let done = server.cut(false, std::time::Duration::ZERO);
                    assert!(done.recovery_ns > 0 && done.units >= CLIENTS as u64 * UNITS - 1, "{done:?}");
                    assert!(all(&mut server.connect("disk")) == expected, "{name}, cut of round {round}");
                    server.kill();
                }
            }
            let info = volume::info(&place.0, &mut |_| {}).unwrap();
            assert_eq!(info.clean, end == End::Stop);
            let mapped = info.content.unwrap().mapped_bytes.unwrap() / UNIT;
            let least = CLIENTS as u64 * UNITS - 1;
            assert!((least..=least + 1).contains(&mapped), "{mapped} units");
            assert!(volume::check(&place.0, &mut |_| {}).unwrap().problems.is_empty());
        }
    }
}

/// A volume has the FTL that it was made for, or none.
#[test]
fn a_volume_without_what_its_device_needs_is_refused() {
    let place = Place::new("refused");
    let refused = |error: VolumeError| match error {
        VolumeError::Unsuitable(reason) => reason,
        other => panic!("{other}"),
    };
    let reason = refused(Volume::create(&place.0, &open_channel(), 1).unwrap_err());
    assert!(reason.contains("or a host FTL above it: --host-ftl pblk or qblke"), "{reason}");
    let pages = flashweir_device::presets::preset("sata-mlc").unwrap();
    let ftl = HostFtlConfig::pblk();
    let reason = refused(Volume::create_below(&place.0, &pages, Some(&ftl), 1).unwrap_err());
    assert!(
        reason.starts_with("host_ftl: expected none above sata-mlc, which has an FTL of its own"),
        "{reason}"
    );
    assert!(!place.0.exists());
}
