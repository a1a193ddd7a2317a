//! Live power cuts of a server in this process, and whether they find what is wrong with it.
//!
//! `cargo xtask evidence live-cuts` does the same with processes of `weir serve`, a thousand times.

use crate::proxy::{Lie, Proxy};
use crate::running::{PATIENCE, Running, Setup, UNIT};
use flashweir_contract::DeviceKind;
use flashweir_device::config::BufferMode;
use flashweir_host::HostFtlConfig;
use flashweir_serve::Speed;
use flashweir_serve::client::campaign::{Counts, Plan, Target, run};
use flashweir_serve::client::fio::check_header;
use flashweir_serve::client::{Failure, FailureKind};
use flashweir_serve::nbd::wire::{RequestHeader, command, command_flag};

const KINDS: [(BufferMode, DeviceKind); 3] = [
    (BufferMode::WriteThrough, DeviceKind::D0),
    (BufferMode::WriteBack, DeviceKind::D1),
    (BufferMode::PowerLossProtected, DeviceKind::D2),
];

fn cuts(setup: &Setup, kind: DeviceKind, lie: Option<Lie>, plan: &Plan) -> Result<Counts, Failure> {
    let server = Running::start(setup);
    let proxy = lie.map(|lie| Proxy::start(&server.socket, lie));
    let socket = proxy.as_ref().map_or(&server.socket, |proxy| &proxy.socket).clone();
    let control = server.control.clone();
    run(&Target { socket, control, export: "disk".into(), kind, patience: PATIENCE, draws: true }, plan)
}

fn plan(seed: u64, cuts: u32, blocks: bool) -> Plan {
    Plan { seed, cuts, region: 0..8 << 20, blocks, requests_max: 400, eio: 0.3 }
}

/// Each case has a server of its own, and all of them wait most of the time.
fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        cases.into_iter().for_each(|case| drop(scope.spawn(|| run(case))));
    });
}

#[test]
fn a_device_keeps_what_its_kind_promises() {
    let speeds =
        [(Speed::Scaled(20.0), false, false), (Speed::Max, true, true), (Speed::Scaled(8.0), true, false)];
    let cases = KINDS.into_iter().flat_map(|kind| speeds.map(|speed| (kind, speed)));
    at_once(cases, |((mode, kind), (speed, versions, blocks))| {
        let setup = Setup { speed, mode, versions, ..Setup::default() };
        let counts = cuts(&setup, kind, None, &plan(1, 4, blocks)).unwrap();
        assert_eq!(counts.cuts, 4);
        assert!(counts.requests > 20 && counts.units > 0 && counts.promised > 0, "{kind:?}: {counts:?}");
    });
}

/// Above a host FTL, with more requests than rings.
#[test]
fn a_host_ftl_keeps_what_it_promises() {
    let assemblies = [HostFtlConfig::pblk(), HostFtlConfig::qblke(2)];
    let cases = assemblies
        .into_iter()
        .flat_map(|ftl| [(Speed::Scaled(8.0), false), (Speed::Max, true)].map(|speed| (ftl.clone(), speed)));
    at_once(cases, |(ftl, (speed, versions))| {
        let setup = Setup { speed, versions, host_ftl: Some(ftl), ..Setup::default() };
        let counts = cuts(&setup, DeviceKind::D1, None, &plan(5, 6, false)).unwrap();
        assert_eq!(counts.cuts, 6);
        assert!(counts.promised > 20 && counts.in_flight > 0, "{counts:?}");
    });
}

/// The same counts cannot come from nothing: over many cuts there are promises, requests in flight, and, where the
/// buffer is volatile, losses.
#[test]
fn cuts_fall_into_requests_and_take_what_is_not_promised() {
    let setup = Setup { speed: Speed::Scaled(8.0), ..Setup::default() };
    let counts = cuts(&setup, DeviceKind::D1, None, &plan(3, 20, true)).unwrap();
    assert!(counts.promised > 100 && counts.in_flight > 20 && counts.older > 100, "{counts:?}");
    assert!(counts.eio > 0 && counts.drawn > 0, "{counts:?}");
}

/// A device is held against a promise that it never made.
#[test]
fn a_volatile_buffer_is_no_protected_one() {
    let failure = cuts(&Setup::default(), DeviceKind::D2, None, &plan(2, 20, false)).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Lost, "{failure}");
}

/// Something that is answered at once and does nothing.
fn nothing(header: &mut RequestHeader) {
    (header.command, header.flags, header.offset, header.length) = (command::CACHE, 0, 0, 512);
}

#[test]
fn planted_bugs_of_a_server_are_found_and_named() {
    use FailureKind::*;
    let bugs: [(&str, DeviceKind, Lie, &[FailureKind]); 7] = [
        ("an honest proxy", DeviceKind::D1, |_, _| {}, &[]),
        (
            "a flush is answered and not done",
            DeviceKind::D1,
            |header, _| {
                if header.command == command::FLUSH {
                    nothing(header);
                }
            },
            &[Lost],
        ),
        ("FUA is not looked at", DeviceKind::D1, |header, _| header.flags &= !command_flag::FUA, &[Lost]),
        (
            "some trims and zeroes are answered and not done",
            DeviceKind::D0,
            |header, _| {
                if matches!(header.command, command::TRIM | command::WRITE_ZEROES) && header.cookie % 3 == 0 {
                    nothing(header);
                }
            },
            // A block of which they cover a part shows both.
            &[Lost, Stale, Shorn],
        ),
        (
            "some writes go to the next unit",
            DeviceKind::D0,
            |header, _| {
                if header.command == command::WRITE && header.cookie % 16 == 0 && header.offset < 4 << 20 {
                    header.offset += UNIT;
                }
            },
            &[Misdirected, Stale],
        ),
        (
            "some writes of a unit end in its middle",
            DeviceKind::D0,
            |header, data| {
                if header.command == command::WRITE && header.length >= UNIT as u32 && header.cookie % 8 == 0
                {
                    header.length -= 1024;
                    data.truncate(header.length as usize);
                }
            },
            &[Shorn, Stale, Lost],
        ),
        (
            "some writes arrive with a wrong bit",
            DeviceKind::D2,
            |_, data| {
                if let Some(byte) = data.get_mut(700) {
                    *byte ^= 4;
                }
            },
            &[Corrupt, Stale],
        ),
    ];
    at_once(bugs, |(name, kind, lie, expected)| {
        let (mode, _) = *KINDS.iter().find(|(_, other)| *other == kind).unwrap();
        let setup = Setup { mode, speed: Speed::Scaled(20.0), ..Setup::default() };
        // Moods differ: some boots have no flush at all.
        let few = Plan { region: 0..2 << 20, requests_max: 200, ..plan(5, 30, false) };
        let found = cuts(&setup, kind, Some(lie), &few);
        match found {
            Ok(counts) => assert!(expected.is_empty(), "{name} was not found: {counts:?}"),
            Err(failure) => assert!(expected.contains(&failure.kind), "{name}: {failure}"),
        }
    });
}

/// A block as fio 3.33 wrote it with `--verify=crc32c`, made from its header's fields.
fn fio_block(offset: u64, number: u16) -> Vec<u8> {
    let mut block: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 253) as u8).collect();
    block[0..4].copy_from_slice(&[0xca, 0xac, 5, 0]);
    block[4..8].copy_from_slice(&4096u32.to_le_bytes());
    block[16..24].copy_from_slice(&offset.to_le_bytes());
    block[24..32].copy_from_slice(&[0, 0, 0, 0, 0x90, 0xd0, 0x92, 0x0e]);
    block[32..36].copy_from_slice(&[1, 0, number as u8, 0]);
    let crc = !crc32c::crc32c(&block[..36]);
    block[36..40].copy_from_slice(&crc.to_le_bytes());
    let crc = !crc32c::crc32c(&block[44..]);
    block[40..44].copy_from_slice(&crc.to_le_bytes());
    block
}

#[test]
fn headers_of_fio_tell_torn_from_misdirected() {
    let block = fio_block(8192, 3);
    assert_eq!(check_header(&block, 8192), Ok(Some((0, 0x0e92_d090, 3))));
    assert_eq!(check_header(&[0; 4096], 8192), Ok(None));
    let kind = |block: &[u8]| check_header(block, 8192).unwrap_err().kind;
    assert_eq!(kind(&fio_block(4096, 3)), FailureKind::Misdirected);
    let mut torn = block.clone();
    torn[2048..].fill(0);
    assert_eq!(kind(&torn), FailureKind::Shorn);
    let mut corrupt = block;
    corrupt[17] ^= 1;
    assert_eq!(kind(&corrupt), FailureKind::Corrupt);
}
