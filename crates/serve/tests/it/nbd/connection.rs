//! The connection on a stream that is slow, in clear text and through TLS.

use super::client::*;
use flashweir_serve::nbd::wire::{command, info, option};
use flashweir_serve::nbd::{Connection, Limits, Progress, TlsKeys, TlsMode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// One direction of a stream.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    room: usize,
    closed: bool,
}

/// One end of a stream that takes and gives few bytes at a time, and then would block.
#[derive(Debug)]
struct End {
    from: Rc<RefCell<Pipe>>,
    to: Rc<RefCell<Pipe>>,
}

/// Both ends of a stream that holds up to `room` bytes in each direction.
fn stream(room: usize) -> (End, End) {
    let [a, b] = [(); 2].map(|()| Rc::new(RefCell::new(Pipe { room, ..Pipe::default() })));
    (End { from: a.clone(), to: b.clone() }, End { from: b, to: a })
}

impl Drop for End {
    fn drop(&mut self) {
        self.to.borrow_mut().closed = true;
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.from.borrow_mut();
        if pipe.bytes.is_empty() && !pipe.closed {
            return Err(ErrorKind::WouldBlock.into());
        }
        pipe.bytes.read(buffer)
    }
}

impl Write for End {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut pipe = self.to.borrow_mut();
        let n = buffer.len().min(pipe.room - pipe.bytes.len());
        if n == 0 && !buffer.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        pipe.bytes.extend(&buffer[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a server does when its client may have said something, until nothing more happens. `None`: it is over.
fn serve(connection: &mut Connection<End>, memory: &mut Memory) -> io::Result<Option<()>> {
    loop {
        let read = connection.read()?;
        while let Some(request) = connection.session().next_request().map_err(io::Error::other)? {
            memory.answer(connection.session(), request);
        }
        connection.flush()?;
        if connection.session().wants_close() || read == Progress::Closed {
            return Ok(None);
        }
        if read == Progress::Blocked && !connection.is_runnable() {
            return Ok(Some(()));
        }
    }
}

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/nbd/pem").join(name)
}

fn keys(client_ca: Option<&str>) -> TlsKeys {
    let authority = client_ca.map(pem);
    TlsKeys::load(&pem("server.pem"), &pem("server.key"), authority.as_deref()).expect("good keys")
}

/// A client that trusts the test authority and, where asked to, shows a certificate.
fn tls_client(certificate: Option<&str>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pem("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(pem(&format!("{name}.pem"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(pem(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// What a client wants to say, and what it was told.
struct Client {
    end: End,
    tls: Option<ClientConnection>,
    say: VecDeque<u8>,
    heard: Vec<u8>,
}

impl Client {
    fn new(end: End) -> Self {
        Self { end, tls: None, say: VecDeque::new(), heard: Vec::new() }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.say.extend(bytes);
    }

    /// One round: writes and reads what it can. An error is one of TLS.
    fn turn(&mut self) -> Result<(), rustls::Error> {
        let mut buffer = [0; 10_000];
        let Some(tls) = &mut self.tls else {
            let bytes = self.say.make_contiguous();
            let n = self.end.write(bytes).unwrap_or(0);
            self.say.drain(..n);
            while let Ok(n @ 1..) = self.end.read(&mut buffer) {
                self.heard.extend(&buffer[..n]);
            }
            return Ok(());
        };
        if !tls.is_handshaking() {
            let n = tls.writer().write(self.say.make_contiguous()).unwrap();
            self.say.drain(..n);
        }
        while tls.wants_write() && tls.write_tls(&mut self.end).is_ok() {}
        while matches!(tls.read_tls(&mut self.end), Ok(1..)) {
            tls.process_new_packets()?;
            while let Ok(n @ 1..) = tls.reader().read(&mut buffer) {
                self.heard.extend(&buffer[..n]);
            }
        }
        Ok(())
    }

    /// Turns of both sides until the client has heard `bytes` bytes; hands them out.
    #[track_caller]
    fn hear(&mut self, server: &mut Connection<End>, memory: &mut Memory, bytes: usize) -> Vec<u8> {
        for _ in 0..2_000_000 {
            self.turn().expect("the client has nothing against it");
            if self.heard.len() >= bytes {
                return self.heard.drain(..bytes).collect();
            }
            serve(server, memory).expect("the server has nothing against it").expect("it is not over");
        }
        panic!("only {} of {bytes} bytes came", self.heard.len());
    }
}

/// Writes and reads 300 KiB, more than fits any buffer on the way.
fn exchange(client: &mut Client, server: &mut Connection<End>) {
    let mut memory = Memory::new();
    let length = 300 << 10;
    let content: Vec<u8> = (0..length).map(|n: u32| (n / 7) as u8).collect();
    client.say(&option(option::GO, &info_data("disk", &[])));
    client.hear(server, &mut memory, 20 + 12 + 20 + 14 + 20);
    assert!(server.session().is_transmitting());
    client.say(&request(0, command::WRITE, 1, 512, length));
    client.say(&content);
    client.say(&request(0, command::READ, 2, 512, length));
    let replies = client.hear(server, &mut memory, 16 + 16 + length as usize);
    assert_eq!(messages(&replies[..16], 0), [Message::Simple { errno: 0, cookie: 1, data: vec![] }]);
    assert_eq!(
        messages(&replies[16..], length as usize),
        [Message::Simple { errno: 0, cookie: 2, data: content }]
    );
    client.say(&request(0, command::DISC, 3, 0, 0));
    while serve(server, &mut memory).unwrap().is_some() {
        client.turn().unwrap();
    }
    assert!(server.session().wants_close());
}

#[test]
fn clear_text_on_a_slow_stream() {
    for room in [1, 7, 1000, 100_000] {
        let (ours, theirs) = stream(room);
        let mut server = Connection::new(ours, config(TlsMode::Off, Limits::default()), None);
        assert!(server.wants_write());
        let mut client = Client::new(theirs);
        let greeting = client.hear(&mut server, &mut Memory::new(), 18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client.say(&client_flags());
        exchange(&mut client, &mut server);
    }
}

/// Up to the handshake: the client has the acknowledgement of STARTTLS.
fn started_tls(room: usize, mode: TlsMode, keys: TlsKeys, injected: &[u8]) -> (Client, Connection<End>) {
    let (ours, theirs) = stream(room);
    let mut server = Connection::new(ours, config(mode, Limits::default()), Some(keys));
    let mut client = Client::new(theirs);
    client.say(&[client_flags(), option(option::STARTTLS, &[]), injected.to_vec()].concat());
    let said = client.hear(&mut server, &mut Memory::new(), 18 + 20);
    assert_eq!(messages(&said[18..], 0), [Message::Option { option: 5, kind: 1, data: vec![] }]);
    (client, server)
}

#[test]
fn tls_on_a_slow_stream() {
    for (room, mode, authority, certificate) in [
        (11, TlsMode::Offered, None, None),
        (1000, TlsMode::Required, None, None),
        (100_000, TlsMode::Required, Some("ca.pem"), Some("client")),
    ] {
        let (mut client, mut server) = started_tls(room, mode, keys(authority), &[]);
        client.tls = Some(tls_client(certificate));
        exchange(&mut client, &mut server);
        server.close();
        let mut buffer = [0; 100];
        client.turn().unwrap();
        let tls = client.tls.as_mut().unwrap();
        if room > 100 {
            assert_eq!(tls.reader().read(&mut buffer).unwrap(), 0, "TLS ends with a farewell");
        }
    }
}

#[test]
fn clear_text_behind_starttls_is_not_heard() {
    let injected = option(option::GO, &info_data("old", &[info::NAME]));
    let (mut client, mut server) = started_tls(100_000, TlsMode::Required, keys(None), &injected);
    assert!(client.heard.is_empty() && client.say.is_empty());
    client.tls = Some(tls_client(None));
    exchange(&mut client, &mut server);
    assert_eq!(server.session().export(), Some(0));
}

#[test]
fn clients_without_a_certificate_of_the_authority_are_refused() {
    for certificate in [None, Some("stranger")] {
        let (mut client, mut server) = started_tls(100_000, TlsMode::Required, keys(Some("ca.pem")), &[]);
        client.tls = Some(tls_client(certificate));
        let mut memory = Memory::new();
        let error = loop {
            // With TLS 1.3 the client believes in its success before the server has looked.
            let _ = client.turn();
            match serve(&mut server, &mut memory) {
                Ok(state) => assert_eq!(state, Some(())),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert!(!server.session().is_transmitting());
        assert!(client.turn().is_err(), "an alert says why");
    }
}

#[test]
fn noise_instead_of_a_handshake_is_an_error() {
    let (mut client, mut server) = started_tls(100_000, TlsMode::Offered, keys(None), &[]);
    client.say(&[b'x'; 1000]);
    client.turn().unwrap();
    let error = serve(&mut server, &mut Memory::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn a_client_that_drops_in_the_middle_is_gone() {
    for tls in [false, true] {
        let (mut client, mut server) = match tls {
            true => started_tls(100_000, TlsMode::Offered, keys(None), &[]),
            false => {
                let (ours, theirs) = stream(100_000);
                (Client::new(theirs), Connection::new(ours, config(TlsMode::Off, Limits::default()), None))
            }
        };
        let mut memory = Memory::new();
        if tls {
            client.tls = Some(tls_client(None));
        } else {
            client.say(&client_flags());
            client.hear(&mut server, &mut memory, 18);
        }
        client.say(&option(option::GO, &info_data("disk", &[])));
        client.hear(&mut server, &mut memory, 86);
        client.say(&request(0, command::READ, 1, 0, 4096));
        client.say(&request(0, command::WRITE, 2, 0, 4096)[..20]);
        client.turn().unwrap();
        drop(client);
        // The whole request is there, the half one is not, and the end is seen.
        let mut found = Vec::new();
        loop {
            let read = server.read().unwrap();
            found.extend(server.session().next_request().unwrap());
            if read == Progress::Closed {
                break;
            }
        }
        assert_eq!(found.len(), 1);
        assert!(server.session().is_mid_message());
        server.session().reply_read(found[0].token, |reply| reply.hole(4096));
    }
}

#[test]
fn decrypted_bytes_are_not_forgotten() {
    for requests in [1, 1000] {
        let limits = Limits { requests, ..Limits::default() };
        let (ours, theirs) = stream(2 << 20);
        let mut server = Connection::new(ours, config(TlsMode::Offered, limits), Some(keys(None)));
        let mut client = Client::new(theirs);
        let mut memory = Memory::new();
        client.say(&[client_flags(), option(option::STARTTLS, &[])].concat());
        client.hear(&mut server, &mut memory, 38);
        client.tls = Some(tls_client(None));
        client.say(&option(option::GO, &info_data("disk", &[])));
        client.hear(&mut server, &mut memory, 86);
        // The end of a large write and the next request share a record: while the session takes in the one, the
        // other stays in TLS, where no poll sees it.
        for cookie in 0..10 {
            client.say(&request(0, command::WRITE, cookie, 0, 100 << 10));
            client.say(&vec![cookie as u8; 100 << 10]);
            client.say(&request(0, command::READ, cookie, 0, 512));
        }
        while !client.say.is_empty() {
            client.turn().unwrap();
        }
        client.turn().unwrap();
        let mut served = 0;
        loop {
            // As a server does: it reads when a poll says so, or the connection.
            let polled = server.wants_read() && !server.stream().from.borrow().bytes.is_empty();
            if !polled && !server.is_runnable() {
                break;
            }
            server.read().unwrap();
            while let Some(request) = server.session().next_request().unwrap() {
                memory.answer(server.session(), request);
                served += 1;
            }
            server.flush().unwrap();
        }
        assert_eq!(served, 20);
    }
}

#[test]
fn keys_that_are_wrong_are_named() {
    let load = |certificate: &str, key: &str| {
        let error = TlsKeys::load(&pem(certificate), &pem(key), None).unwrap_err();
        error.to_string().replace(pem("").to_str().unwrap(), "")
    };
    assert!(load("nowhere.pem", "server.key").starts_with("nowhere.pem: no certificates in PEM: "));
    assert_eq!(load("server.key", "server.key"), "server.key: no certificates in PEM: there is none");
    assert!(load("server.pem", "client.pem").starts_with("client.pem: no private key in PEM: "));
    assert!(load("server.pem", "client.key").starts_with("server.pem: does not go with the key: "));
}
