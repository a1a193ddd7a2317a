//! Requests per CPU second through the NBD machine alone: decoded, answered, encoded. No socket and no device.

use crate::cpu;
use flashweir_serve::nbd::wire::{REQUEST_MAGIC, RequestHeader, command, option};
use flashweir_serve::nbd::{Command, Config, Export, Limits, Session, TlsMode};
use std::sync::Arc;

const BATCHES: u32 = 60_000;
/// Half of them read, half of them write.
const BATCH: u32 = 16;
const BYTES: u32 = 4096;

/// Batches of 16 requests of 4 KiB, as a client with that queue depth sends them, with structured replies.
pub(crate) fn session() -> Result<Vec<(&'static str, f64)>, String> {
    let export = Export {
        name: "disk".into(),
        description: String::new(),
        size: 1 << 30,
        read_only: false,
        least_block: 512,
        preferred_block: BYTES,
    };
    let config =
        Config::new(vec![export], TlsMode::Off, Limits::default()).map_err(|error| error.to_string())?;
    let mut session = Session::new(Arc::new(config));
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    feed(&mut session, &[0, 0, 0, 3]);
    feed(&mut session, &option(option::STRUCTURED_REPLY, &[]));
    feed(&mut session, &option(option::GO, &[0; 6]));
    serve(&mut session)?;

    let batch: Vec<u8> = (0..BATCH)
        .flat_map(|n| {
            let command = if n % 2 == 0 { command::READ } else { command::WRITE };
            let offset = u64::from(n * BYTES);
            let header = RequestHeader {
                magic: REQUEST_MAGIC,
                flags: 0,
                command,
                cookie: n.into(),
                offset,
                length: BYTES,
            };
            let payload = if n % 2 == 0 { 0 } else { BYTES as usize };
            [&header.to_bytes()[..], &vec![1; payload]].concat()
        })
        .collect();
    let start = cpu::seconds()?;
    let mut requests = 0;
    for _ in 0..BATCHES {
        feed(&mut session, &batch);
        requests += serve(&mut session)?;
    }
    let seconds = cpu::seconds()? - start;
    assert_eq!(requests, BATCHES * BATCH, "each request arrives");
    Ok(vec![("requests_per_cpu_s", f64::from(requests) / seconds)])
}

fn feed(session: &mut Session, bytes: &[u8]) {
    let space = &mut session.space()[..bytes.len()];
    space.copy_from_slice(bytes);
    session.received(bytes.len());
}

/// Answers everything that is there; says how much that was.
fn serve(session: &mut Session) -> Result<u32, String> {
    let content = [7; BYTES as usize];
    let mut requests = 0;
    while let Some(request) = session.next_request().map_err(|error| error.to_string())? {
        requests += 1;
        match request.command {
            Command::Read => session.reply_read(request.token, |reply| reply.data(&content)),
            _ => session.reply_ok(request.token),
        }
    }
    session.sent(session.output().len());
    Ok(requests)
}
