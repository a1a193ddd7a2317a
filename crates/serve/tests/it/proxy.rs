//! A proxy that lies: it stands between a client and a server and changes requests on their way, as a server with a
//! bug would misunderstand them. Replies pass as they are.

use flashweir_serve::nbd::wire::{REQUEST_BYTES, RequestHeader, command, option};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Changes a request and the data of a write.
pub(crate) type Lie = fn(&mut RequestHeader, &mut Vec<u8>);

pub(crate) struct Proxy {
    pub(crate) socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(server: &Path, lie: Lie) -> Self {
        let mut socket = server.as_os_str().to_owned();
        socket.push(".proxy");
        let socket = PathBuf::from(socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (server, told) = (server.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for client in listener.incoming() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
                let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                threads.push(std::thread::spawn(move || {
                    // Either side may go at any time; then the other one goes as well.
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                }));
                threads.push(std::thread::spawn(move || {
                    let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                    let _ = requests(client, server, lie);
                    ends.iter().for_each(|end| {
                        let _ = end.shutdown(Shutdown::Both);
                    });
                }));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Self { socket, stop, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pass(from: &mut UnixStream, to: &mut UnixStream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    from.read_exact(&mut buffer)?;
    to.write_all(&buffer)?;
    Ok(buffer)
}

fn requests(mut client: UnixStream, mut server: UnixStream, lie: Lie) -> io::Result<()> {
    pass(&mut client, &mut server, 4)?;
    loop {
        let header = pass(&mut client, &mut server, 16)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        pass(&mut client, &mut server, word(12) as usize)?;
        if word(8) == option::GO {
            break;
        }
    }
    loop {
        let mut header = [0; REQUEST_BYTES];
        client.read_exact(&mut header)?;
        let mut header = RequestHeader::parse(&header);
        let mut data = Vec::new();
        if header.command == command::WRITE {
            data.resize(header.length as usize, 0);
            client.read_exact(&mut data)?;
        }
        lie(&mut header, &mut data);
        server.write_all(&[&header.to_bytes()[..], &data].concat())?;
    }
}
