//! Clients that break the rules, vanish, stall or flood, beside one that does everything right (crash-laboratory §5.1); and power cuts at
//! awkward times.

use crate::running::{PATIENCE, Running, Setup, UNIT, ask};
use flashweir_core::random::RandomStream;
use flashweir_device::config::BufferMode;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_serve::client::{Client, ClientError};
use flashweir_serve::control::{self, Reply};
use flashweir_serve::nbd::wire::{Errno, OPTION_MAGIC, command, command_flag, option};
use flashweir_serve::nbd::{Config, Export, Limits, TlsMode};
use flashweir_serve::{Clock, Disk, Endpoint, Server, ServerConfig, Speed};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A plain stream that has got the greeting.
fn greeted(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream
}

/// A plain stream to `disk` in its transmission phase, with simple replies.
fn transmitting(socket: &Path) -> UnixStream {
    let mut stream = greeted(socket);
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(option::EXPORT_NAME.to_be_bytes());
    hello.extend(4u32.to_be_bytes());
    hello.extend(b"disk");
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn header(command: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    ask(command, offset, length).header(cookie).to_bytes()
}

/// Reads until the server closes the connection; gives what came before.
#[track_caller]
fn until_closed(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => bytes,
        Err(error) => panic!("the connection stays open: {error}"),
    }
}

fn errno(
    client: &mut Client,
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
    data: &[u8],
) -> Option<u32> {
    let ask = flashweir_serve::client::Ask { command, flags, offset, length };
    client.call(ask, data, PATIENCE).unwrap().result.err()
}

#[test]
fn wrong_requests_get_the_protocols_error_and_the_connection_goes_on() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    let mut client = server.connect("disk");
    let size = client.facts().size;
    let (inval, nospc) = (Some(Errno::Inval as u32), Some(Errno::NoSpc as u32));
    let large = vec![7; (32 << 20) + 512];
    for _ in 0..2 {
        assert_eq!(errno(&mut client, command::WRITE, 0, 0, large.len() as u32, &large), inval, "oversize");
        assert_eq!(errno(&mut client, command::READ, 0, 0, 1 << 31, &[]), inval, "oversize");
        assert_eq!(errno(&mut client, command::READ, 0, 100, 512, &[]), inval, "misaligned");
        assert_eq!(errno(&mut client, command::WRITE, 0, 512, 100, &[1; 100]), inval, "misaligned");
        assert_eq!(errno(&mut client, command::WRITE, 0, size, 512, &[1; 512]), nospc, "beyond the end");
        assert_eq!(errno(&mut client, command::READ, 0, size - 512, 1024, &[]), inval, "beyond the end");
        assert_eq!(errno(&mut client, command::TRIM, 0, u64::MAX - 511, 512, &[]), inval, "it wraps");
        assert_eq!(errno(&mut client, command::READ, 0, 0, 0, &[]), inval, "empty");
        assert_eq!(errno(&mut client, 77, 0, 0, 512, &[]), inval, "unknown command");
        assert_eq!(errno(&mut client, command::READ, 1 << 9, 0, 512, &[]), inval, "unknown flag");
        assert_eq!(errno(&mut client, command::WRITE, command_flag::FUA, 0, 512, &[9; 512]), None);
        assert_eq!(client.call(ask(command::READ, 0, 512), &[], PATIENCE).unwrap().result, Ok(vec![9; 512]));
    }
    good.end();
}

#[test]
fn truncated_messages_and_garbage_end_their_connection_only() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    let write = header(command::WRITE, 1, 0, 1 << 20);
    for cut_off in [1, 27, 28, 29, 28 + 70_000] {
        let mut stream = transmitting(&server.socket);
        let message = [&write[..], &vec![5; 1 << 20]].concat();
        stream.write_all(&message[..cut_off]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(until_closed(&mut stream).is_empty(), "{cut_off} bytes of a write");
    }
    let mut random = RandomStream::new(1, "garbage");
    for _ in 0..50 {
        let garbage: Vec<u8> = (0..2_000).map(|_| random.next_u64() as u8 | 1).collect();
        for mut stream in [greeted(&server.socket), transmitting(&server.socket)] {
            // The server may have closed it before everything was sent.
            let _ = stream.write_all(&garbage);
            until_closed(&mut stream);
        }
    }
    // An unknown flag of the handshake, and options with wrong lengths.
    let mut stream = greeted(&server.socket);
    stream.write_all(&[0, 0, 0, 7]).unwrap();
    until_closed(&mut stream);
    let mut stream = greeted(&server.socket);
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(&OPTION_MAGIC.to_be_bytes()).unwrap();
    stream.write_all(&option::EXPORT_NAME.to_be_bytes()).unwrap();
    stream.write_all(&u32::MAX.to_be_bytes()).unwrap();
    until_closed(&mut stream);
    server.until("nobody is left but the good client", |status| status.connections == 1);
    let mut client = server.connect("disk");
    let first = client.call(ask(command::READ, 0, 4096), &[], PATIENCE).unwrap().result;
    assert_eq!(first, Ok(vec![0; 4096]), "half a write wrote nothing");
    good.end();
}

#[test]
fn a_half_closed_client_is_answered_or_dropped() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    for _ in 0..20 {
        let mut stream = transmitting(&server.socket);
        stream.write_all(&header(command::READ, 1, 0, 512)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answer = until_closed(&mut stream);
        assert!(answer.is_empty() || answer.len() == 16 + 512, "{} bytes", answer.len());
    }
    server.until("nobody is left but the good client", |status| status.connections == 1);
    good.end();
}

/// Sends bytes, one by one; false if the server has closed the connection.
fn drip(stream: &mut UnixStream, bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| stream.write_all(&[*byte]).is_ok())
}

#[test]
fn a_slow_loris_is_dropped_after_the_patience_and_an_idle_client_is_not() {
    let setup = Setup::by_hand();
    let server = Running::start(&setup);
    let good = server.good_client();
    let mut idle = server.connect("disk");
    // A handshake without end: options that are unknown, one after the other.
    let mut handshake = greeted(&server.socket);
    let mut options = vec![0, 0, 0, 3];
    options.extend(OPTION_MAGIC.to_be_bytes());
    options.extend([99u32.to_be_bytes(), 0u32.to_be_bytes()].concat());
    // The payload of a write, and of one that is refused.
    let [mut write, mut refused] = [0, 1].map(|offset| {
        let mut stream = transmitting(&server.socket);
        stream.write_all(&header(command::WRITE, 1, offset, 1 << 20)).unwrap();
        stream
    });
    server.until("all are there", |status| status.connections == 5);
    for _ in 0..3 {
        assert!(drip(&mut handshake, &options) && drip(&mut write, &[1; 9]) && drip(&mut refused, &[1; 9]));
        options.drain(..options.len().min(4));
        server.pass(setup.patience / 4, &good);
    }
    for _ in 0..2 {
        assert_eq!(server.status().connections, 5, "their patience has not passed");
    }
    server.pass(setup.patience, &good);
    server.until("they are dropped", |status| status.connections == 2);
    for mut stream in [handshake, write, refused] {
        until_closed(&mut stream);
    }
    assert_eq!(errno(&mut idle, command::READ, 0, 0, 512, &[]), None, "idle since the beginning");
    good.end();
    assert_eq!(server.stop().1, 3, "three were dropped");
}

#[test]
fn a_slow_client_that_moves_is_served() {
    // Several times what waits in a socket, so that the server takes or gives a good share of each part at its time.
    const PART: usize = 512 << 10;
    let setup = Setup::by_hand();
    let server = Running::start(&setup);
    let good = server.good_client();
    let mut stream = transmitting(&server.socket);
    set_socket_send_buffer_size(&stream, 64 << 10).unwrap();
    let bytes: Vec<u8> = (0..4 * PART).map(|i| (i / 512 % 251) as u8).collect();
    let nearly = setup.patience * 9 / 10;
    stream.write_all(&header(command::WRITE, 1, 0, bytes.len() as u32)).unwrap();
    for part in bytes.chunks(PART) {
        stream.write_all(part).unwrap();
        server.pass(nearly, &good);
    }
    stream.read_exact(&mut [0; 16]).unwrap();
    stream.write_all(&header(command::READ, 2, 0, bytes.len() as u32)).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    let mut back = vec![0; bytes.len()];
    for part in back.chunks_mut(PART) {
        stream.read_exact(part).unwrap();
        server.pass(nearly, &good);
    }
    assert!(back == bytes, "the content is what was written");
    good.end();
    assert_eq!(server.stop().1, 0, "no client was dropped");
}

#[test]
fn a_client_that_vanishes_with_a_thousand_requests_in_flight_leaves_nothing() {
    for mode in [BufferMode::WriteBack, BufferMode::WriteThrough] {
        let server = Running::start(&Setup { mode, ..Setup::default() });
        let good = server.good_client();
        for round in 0..5u64 {
            let mut stream = transmitting(&server.socket);
            let mut messages = Vec::new();
            for number in 0..1_000 {
                let offset = number * UNIT;
                messages.extend(match (number + round) % 4 {
                    0 => header(command::READ, number, offset, 4096).to_vec(),
                    1 => header(command::FLUSH, number, 0, 0).to_vec(),
                    2 => header(command::TRIM, number, offset, 4096).to_vec(),
                    _ => [&header(command::WRITE, number, offset, 4096)[..], &[3; 4096]].concat(),
                });
            }
            stream.write_all(&messages).unwrap();
            drop(stream);
        }
        server.until("nothing is in flight on the disk", |status| status.disks[0].in_flight == 0);
        server.until("nobody is left but the good client", |status| status.connections == 1);
        let mut client = server.connect("disk");
        assert_eq!(errno(&mut client, command::FLUSH, 0, 0, 0, &[]), None);
        good.end();
        server.stop();
    }
}

#[test]
fn a_client_that_never_reads_is_bounded_and_dropped() {
    let setup = Setup::by_hand();
    let server = Running::start(&setup);
    let good = server.good_client();
    let mut stream = transmitting(&server.socket);
    stream.set_nonblocking(true).unwrap();
    // Reads of 8 MiB: a few fill what a connection may hold; the rest stays with the client.
    let mut sent = 0u64;
    let dropped = loop {
        assert!(server.hand.passed() < 100 * setup.patience, "it is not dropped");
        match stream.write(&header(command::READ, sent, 0, 8 << 20)) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(server.status().disks[0].in_flight <= 9, "64 MiB and one request more");
                server.pass(setup.patience / 4, &good);
            }
            Err(_) => break server.hand.passed(),
        }
    };
    assert!(dropped >= setup.patience, "dropped after {dropped:?}");
    assert!(sent < 20_000, "{sent} requests were taken");
    server.until("the good client alone is left", |status| status.connections == 1);
    good.end();
    assert_eq!(server.stop().1, 1);
}

#[test]
fn more_clients_than_there_are_places_are_turned_away() {
    let server = Running::start(&Setup { connections_max: 8, ..Setup::default() });
    let good = server.good_client();
    server.until("the good client is there", |status| status.connections == 1);
    let mut clients: Vec<Client> = (0..7).map(|_| server.connect("disk")).collect();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        assert!(until_closed(&mut stream).is_empty(), "no greeting without a place");
    }
    for client in &mut clients {
        assert_eq!(errno(client, command::READ, 0, 0, 512, &[]), None);
    }
    clients.pop();
    server.until("there is a place", |status| status.connections == 7);
    clients.push(server.connect("disk"));
    good.end();
    assert_eq!(server.stop().1, 20);
}

#[test]
fn places_of_clients_that_left_work_behind_are_not_given_away() {
    let slow = Setup { speed: Speed::Scaled(1e-4), connections_max: 4, ..Setup::default() };
    let server = Running::start(&slow);
    for _ in 0..4 {
        let mut stream = transmitting(&server.socket);
        stream.write_all(&[&header(command::WRITE, 1, 0, 512)[..], &[1; 512]].concat()).unwrap();
        let taken = |status: &control::Status| status.disks[0].in_flight > 0;
        server.until("the device has something to do", taken);
        drop(stream);
        server.until("the client is gone", |status| status.connections == 0);
    }
    assert_eq!(server.status().disks[0].in_flight, 4, "the device is slow");
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    assert!(until_closed(&mut stream).is_empty(), "every place is owed an answer");
    server.until("the device has done it", |status| status.disks[0].in_flight == 0);
    greeted(&server.socket);
}

#[test]
fn a_flood_of_connections_passes() {
    let server = Running::start(&Setup { connections_max: 16, ..Setup::default() });
    let good = server.good_client();
    for round in 0..1_500 {
        let Ok(mut stream) = UnixStream::connect(&server.socket) else { continue };
        if round % 3 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
    }
    server.until("nobody is left but the good client", |status| status.connections == 1);
    assert_eq!(errno(&mut server.connect("disk"), command::READ, 0, 0, 512, &[]), None);
    good.end();
}

#[test]
fn garbage_on_the_control_socket_is_answered_with_an_error_or_dropped() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    let connect = || {
        let stream = UnixStream::connect(&server.control).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    for wrong in ["", "{}", "\"stopp\"", "{\"cut\":{\"seed\":-1}}", "[1,2", "\u{0}\u{1}"] {
        let mut stream = connect();
        writeln!(stream, "{wrong}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let reply: Reply = serde_json::from_str(&line).unwrap();
        assert!(matches!(reply, Reply::Error(_)), "{wrong:?}: {reply:?}");
    }
    let unknown =
        control::Ask::Cut(control::CutOrder { export: Some("no".into()), seed: None, eio: false, off_ns: 0 });
    let error = control::ask(&server.control, &unknown).unwrap_err().to_string();
    assert_eq!(error, "there is no export `no`; there are `disk`, `other`");
    // A line without an end.
    let mut stream = connect();
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    until_closed(&mut stream);
    // Bytes that are no text, and a client that goes in the middle of a line.
    connect().write_all(&[0xff; 100]).unwrap();
    // More of them than there are places: one that asks is served nevertheless.
    let silent: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    assert_eq!(server.status().disks.len(), 2);
    drop(silent);
    good.end();
}

#[test]
fn a_stop_answers_or_ends_every_client_soon() {
    for power_off in [false, true] {
        let setup = Setup::by_hand();
        let server = Running::start(&setup);
        let mut idle = server.connect("other");
        let _negotiating = greeted(&server.socket);
        if power_off {
            server.cut(false, Duration::from_secs(3_600));
        }
        let mut busy: Vec<Client> = (0..3).map(|_| server.connect("disk")).collect();
        for client in &mut busy {
            for number in 0..30 {
                client.send(ask(command::WRITE, number * UNIT, 4096), &[6; 4096]);
            }
            client.pump();
        }
        server.until("the server has them", |status| status.disks[0].in_flight > 0 || !power_off);
        server.ask_to_stop();
        if power_off {
            // It waits for answers that do not come, for as long as its patience lasts.
            while server.socket.exists() {
                std::thread::yield_now();
            }
            server.hand.advance(setup.patience);
        }
        server.stop();
        for client in &mut busy {
            let end = loop {
                match client.wait(PATIENCE) {
                    Ok(reply) => assert!(
                        matches!(reply.result, Ok(_) | Err(108)),
                        "answered, or refused because the server stops: {reply:?}"
                    ),
                    Err(end) => break end,
                }
            };
            assert!(matches!(end, ClientError::Gone(_)), "{end}");
        }
        assert!(matches!(idle.wait(PATIENCE), Err(ClientError::Gone(_))));
    }
}

#[test]
fn a_cut_drops_the_clients_of_its_disk_and_nobody_else() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    let mut half = greeted(&server.socket);
    half.write_all(&[0, 0, 0, 3]).unwrap();
    half.write_all(&OPTION_MAGIC.to_be_bytes()[..5]).unwrap();
    let mut client = server.connect("disk");
    for number in 0..50 {
        client.send(ask(command::WRITE, number * UNIT, 4096), &[6; 4096]);
    }
    client.pump();
    let done = server.cut(false, Duration::from_millis(20));
    assert_eq!(done.connections_dropped, 1);
    let end = loop {
        if let Err(end) = client.wait(PATIENCE) {
            break end;
        }
    };
    assert!(matches!(end, ClientError::Gone(_)), "{end}");
    // A client in the middle of its negotiation continues it.
    let mut rest = OPTION_MAGIC.to_be_bytes()[5..].to_vec();
    rest.extend(option::EXPORT_NAME.to_be_bytes());
    rest.extend(4u32.to_be_bytes());
    rest.extend(b"disk");
    half.write_all(&rest).unwrap();
    half.read_exact(&mut [0; 10]).unwrap();
    half.write_all(&header(command::READ, 1, 0, 512)).unwrap();
    half.read_exact(&mut [0; 16 + 512]).unwrap();
    good.end();
}

#[test]
fn requests_wait_for_the_power_and_a_second_cut_loses_them() {
    let server = Running::start(&Setup::default());
    let good = server.good_client();
    let hour = Duration::from_secs(3_600);
    server.cut(false, hour);
    assert!(!server.status().disks[0].on);
    let mut client = server.connect("disk");
    client.send(ask(command::WRITE, 0, 512), &[1; 512]);
    client.pump();
    server.until("it waits", |status| status.disks[0].in_flight == 1);
    // The requests of a client that leaves while the power is off are dropped.
    let mut gone = server.connect("disk");
    gone.send(ask(command::WRITE, 4096, 512), &[2; 512]);
    gone.pump();
    server.until("it waits", |status| status.disks[0].in_flight == 2);
    drop(gone);
    server.until("it does not wait any more", |status| status.disks[0].in_flight == 1);
    let done = server.cut(true, hour);
    assert_eq!((done.connections_dropped, done.requests_lost), (0, 1));
    assert_eq!(client.wait(PATIENCE).unwrap().result, Err(Errno::Io as u32));
    let done = server.cut(false, Duration::ZERO);
    assert_eq!((done.connections_dropped, done.requests_lost), (1, 0));
    let mut client = server.connect("disk");
    let read = client.call(ask(command::READ, 0, 8192), &[], PATIENCE).unwrap();
    assert_eq!(read.result, Ok(vec![0; 8192]), "what waited was never done");
    // Those of a connection that the cut drops count as well.
    server.cut(false, hour);
    let mut client = server.connect("disk");
    client.send(ask(command::WRITE, 0, 512), &[1; 512]);
    client.pump();
    server.until("it waits", |status| status.disks[0].in_flight == 1);
    let done = server.cut(false, Duration::ZERO);
    assert_eq!((done.connections_dropped, done.requests_lost), (1, 1));
    assert_eq!(server.status().disks[0].cuts, 5);
    // What failed without having reached the device is counted as well.
    let kinds = server.status().disks[0].kinds.clone();
    assert_eq!(kinds.iter().map(|kind| kind.errors).sum::<u64>(), 1);
    good.end();
}

#[test]
fn after_a_cut_with_eio_requests_fail_until_the_power_is_back_and_the_next_flush_fails_too() {
    let setups = [(BufferMode::WriteBack, true), (BufferMode::WriteThrough, false)];
    for (mode, volatile) in setups {
        let off = Duration::from_secs(2);
        let server = Running::start(&Setup { mode, ..Setup::by_hand() });
        let good = server.good_client();
        let mut client = server.connect("disk");
        assert_eq!(errno(&mut client, command::WRITE, 0, 0, 4096, &[1; 4096]), None);
        let done = server.cut(true, off);
        assert_eq!(done.connections_dropped, 0);
        let eio = Some(Errno::Io as u32);
        assert_eq!(errno(&mut client, command::WRITE, 0, 4096, 4096, &[2; 4096]), eio);
        assert_eq!(errno(&mut client, command::READ, 0, 0, 4096, &[]), eio);
        server.hand.advance(off);
        server.until("the power is back", |status| status.disks[0].on);
        let read = client.call(ask(command::READ, 0, 8192), &[], PATIENCE).unwrap().result.unwrap();
        assert_eq!(read[0], u8::from(!volatile), "the buffer is lost");
        assert_eq!(read[4096], 0, "what failed was not done");
        // The write that was answered is gone, so the flush that would have covered it fails, once.
        assert_eq!(errno(&mut client, command::FLUSH, 0, 0, 0, &[]), eio.filter(|_| volatile));
        assert_eq!(errno(&mut client, command::FLUSH, 0, 0, 0, &[]), None);
        assert_eq!(errno(&mut server.connect("disk"), command::FLUSH, 0, 0, 0, &[]), None);
        good.end();
    }
}

/// The second of its sockets is another program's: the first one goes again, and the control socket with it.
#[test]
fn a_server_that_cannot_begin_leaves_no_socket() {
    let dir = std::env::temp_dir().join(format!("weir-it-begin-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = ServerConfig {
        endpoints: vec![Endpoint::Unix(dir.join("disk.sock")), Endpoint::Tcp(address)],
        control: Some(dir.join("control")),
        clock: Clock::new(Speed::Max),
        keys: None,
        connections_max: 1,
        patience: PATIENCE,
        spin: Duration::ZERO,
        give_back: None,
        say: |line| panic!("{line}"),
    };
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    let device = Device::new(preset("mobile-ufs").unwrap(), options);
    let (name, description, size) =
        ("disk".to_owned(), String::new(), device.geometry().capacity_lbas() * 512);
    let export =
        Export { name, description, size, read_only: false, least_block: 512, preferred_block: UNIT as u32 };
    let nbd = Config::new(vec![export], TlsMode::Off, Limits::default()).unwrap();
    let disks = vec![Disk::new("disk", device, options)];
    let refused = Server::bind(config, nbd, disks).unwrap_err().to_string();
    assert!(refused.contains(&address.to_string()), "{refused}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
}
