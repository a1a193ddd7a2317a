//! A disk in memory behind the NBD machine: shows how a [`Connection`] is driven, and can be used to try other programs without a device.
//!
//! ```text
//! cargo run -p flashweir-serve --example nbd_memory -- 127.0.0.1:10809 64 [off|offered|required CERT KEY [CLIENT_CA]]
//! nbdinfo nbd://127.0.0.1:10809
//! ```
//!
//! The second argument is the size in MiB. One thread serves one client; its streams block.

use flashweir_serve::nbd::{
    Command, Config, Connection, Export, Extent, Limits, Progress, Request, Session, TlsKeys, TlsMode,
};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const UNIT: usize = 4096;

/// Units of content; `None` is a hole.
type Disk = Mutex<Vec<Option<Box<[u8]>>>>;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, mib, rest @ ..] = args.as_slice() else {
        return Err("arguments: ADDRESS MIB [TLS…]".into());
    };
    let size = mib.parse::<u64>()? << 20;
    let (tls, keys) = match rest {
        [] => (TlsMode::Off, None),
        [mode, certificate, key, authority @ ..] => {
            let mode = if mode == "required" { TlsMode::Required } else { TlsMode::Offered };
            let authority = authority.first().map(Path::new);
            (mode, Some(TlsKeys::load(Path::new(certificate), Path::new(key), authority)?))
        }
        _ => return Err("TLS needs CERT and KEY".into()),
    };
    let export = |name: &str, read_only| Export {
        name: name.into(),
        description: "a disk in memory".into(),
        size,
        read_only,
        least_block: 512,
        preferred_block: UNIT as u32,
    };
    let exports = vec![export("disk", false), export("read-only", true)];
    let config = Arc::new(Config::new(exports, tls, Limits::default())?);
    let disk: Arc<Disk> = Arc::new(Mutex::new(vec![None; (size as usize).div_ceil(UNIT)]));
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let (config, keys, disk) = (config.clone(), keys.clone(), disk.clone());
        let stream = stream?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || match serve(Connection::new(stream, config, keys), &disk) {
            Ok(()) => println!("a client is gone"),
            Err(error) => println!("a client is gone: {error}"),
        });
    }
    Ok(())
}

fn serve(mut connection: Connection<TcpStream>, disk: &Disk) -> Result<(), Box<dyn Error>> {
    loop {
        connection.flush()?;
        if connection.session().wants_close() {
            connection.close();
            return Ok(());
        }
        // The stream blocks, so it is not read while requests are here already.
        if !connection.session().is_runnable() && connection.read()? == Progress::Closed {
            return Ok(());
        }
        while let Some(request) = connection.session().next_request()? {
            answer(connection.session(), request, disk);
        }
    }
}

/// The units that a range touches: number, and where the range lies in it.
fn parts(offset: u64, length: u32) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let (mut at, end) = (offset as usize, offset as usize + length as usize);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (unit, begin) = (at / UNIT, at % UNIT);
            let stop = UNIT.min(begin + end - at);
            at += stop - begin;
            (unit, begin..stop)
        })
    })
}

fn answer(session: &mut Session, request: Request, disk: &Disk) {
    let Request { token, offset, length, command } = request;
    let mut disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
    match command {
        Command::Read => session.reply_read(token, |reply| {
            for (unit, range) in parts(offset, length) {
                match &disk[unit] {
                    Some(content) => reply.data(&content[range]),
                    None => reply.hole(range.len()),
                }
            }
        }),
        Command::Write { data, .. } => {
            let mut left = &data[..];
            for (unit, range) in parts(offset, length) {
                let (here, rest) = left.split_at(range.len());
                disk[unit].get_or_insert_with(|| vec![0; UNIT].into_boxed_slice())[range]
                    .copy_from_slice(here);
                left = rest;
            }
            session.reply_ok(token);
        }
        Command::Trim { .. } | Command::WriteZeroes { .. } => {
            let keep = matches!(command, Command::WriteZeroes { no_hole: true, .. });
            for (unit, range) in parts(offset, length) {
                match &mut disk[unit] {
                    Some(content) if keep || range.len() < UNIT => content[range].fill(0),
                    None if keep => disk[unit] = Some(vec![0; UNIT].into_boxed_slice()),
                    content => *content = None,
                }
            }
            session.reply_ok(token);
        }
        Command::Flush | Command::Cache => session.reply_ok(token),
        Command::BlockStatus { .. } => session.reply_block_status(
            token,
            parts(offset, length).map(|(unit, range)| {
                let hole = disk[unit].is_none();
                Extent { length: range.len() as u32, hole, zero: hole }
            }),
        ),
    }
}
