//! Properties of the NBD machine: chunks do not matter, and no bytes break it.

use super::client::*;
use flashweir_serve::nbd::wire::{command, command_flag};
use flashweir_serve::nbd::{Limits, Session, TlsMode};
use proptest::collection::vec;
use proptest::prelude::*;

/// A request of a client that keeps the protocol or nearly so, with its payload.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(0), 1 => Just(command_flag::FUA), 1 => 0..32_u16];
    let command =
        prop_oneof![8 => 0..8_u16, 1 => any::<u16>()].prop_filter("no farewell", |&c| c != command::DISC);
    let offset = prop_oneof![8 => (0..2048_u64).prop_map(|n| n * 512), 1 => any::<u64>()];
    let length = prop_oneof![6 => (1..64_u32).prop_map(|n| n * 512), 2 => (1..600_u32).prop_map(|n| n * 512), 1 => 0..200_000_u32];
    (flags, command, 0..4_u64, offset, length, any::<u8>()).prop_map(
        |(flags, command, cookie, offset, length, fill)| {
            let mut bytes = match command {
                command::FLUSH => request(flags, command, cookie, 0, 0),
                _ => request(flags, command, cookie, offset, length),
            };
            if command == command::WRITE {
                bytes.extend((0..length).map(|n| fill.wrapping_add(n as u8)));
            }
            bytes
        },
    )
}

/// Feeds a stream in chunks, answers each request at once, takes the output now and then.
fn play(stream: &[u8], chunks: &[usize], limits: Limits) -> (Vec<u8>, Memory) {
    let mut session = Session::new(config(TlsMode::Off, limits));
    let mut memory = Memory::new();
    let mut output = Vec::new();
    let mut sizes = chunks.iter().copied().cycle();
    let mut left = stream;
    loop {
        let before = (left.len(), session.output().len(), session.is_runnable());
        if session.wants_read() && !left.is_empty() {
            let space = session.space();
            let n = sizes.next().unwrap_or(usize::MAX).min(left.len()).min(space.len());
            space[..n].copy_from_slice(&left[..n]);
            session.received(n);
            left = &left[n..];
        }
        while let Some(request) = session.next_request().expect("no violation") {
            memory.answer(&mut session, request);
        }
        let size = sizes.next().unwrap_or(usize::MAX).min(session.output().len());
        output.extend_from_slice(&session.output()[..size]);
        session.sent(size);
        if left.is_empty() && !session.is_runnable() && session.output().is_empty() {
            return (output, memory);
        }
        let after = (left.len(), session.output().len(), session.is_runnable());
        assert!(before != after || size > 0, "the session is stuck");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn chunks_do_not_matter(
        structured: bool,
        requests in vec(any_request(), 1..30),
        chunks in vec(1..100_000_usize, 1..20),
        small in vec(1..40_usize, 1..20),
    ) {
        let stream = [negotiation(structured, "disk"), requests.concat(), request(0, command::DISC, 0, 0, 0)].concat();
        let (whole, disk) = play(&stream, &[], Limits::default());
        let (other, other_disk) = play(&stream, &chunks, Limits::default());
        prop_assert!(whole == other);
        prop_assert!(disk.bytes == other_disk.bytes);
        // Small limits change when something happens, not what.
        let limits = Limits { requests: 1, request_bytes: 1, output_bytes: 1 };
        prop_assert!(whole == play(&stream, &chunks, limits).0);
        if stream.len() < 50_000 {
            prop_assert!(whole == play(&stream, &small, limits).0);
        }
    }

    #[test]
    fn what_was_written_is_read(
        structured: bool,
        whole_chunk: bool,
        writes in vec((0..256_u64, 1..64_u64, any::<u8>(), 0..4_u8), 1..20),
    ) {
        let mut session = transmitting(structured, "disk");
        let mut memory = Memory::new();
        let mut expected = vec![0; DISK_BYTES as usize];
        for (block, blocks, fill, kind) in writes {
            let (offset, length) = (block * 512, blocks * 512);
            let (number, byte) = match kind {
                0 => (command::TRIM, 0),
                1 => (command::WRITE_ZEROES, 0),
                _ => (command::WRITE, fill),
            };
            feed(&mut session, &request(0, number, 1, offset, length as u32));
            if number == command::WRITE {
                feed(&mut session, &vec![byte; length as usize]);
            }
            expected[offset as usize..(offset + length) as usize].fill(byte);
            let request = session.next_request().unwrap().expect("one request");
            memory.answer(&mut session, request);
        }
        take_output(&mut session);
        let flags = if whole_chunk && structured { command_flag::DF } else { 0 };
        feed(&mut session, &request(flags, command::READ, 9, 512, 512 * 300));
        let read = session.next_request().unwrap().expect("one request");
        memory.answer(&mut session, read);
        let replies = messages(session.output(), 512 * 300);
        prop_assert!(replies.len() == 1 || !whole_chunk);
        prop_assert!(content(&replies, 9, 512, 512 * 300) == expected[512..512 * 301]);
    }

    #[test]
    fn no_bytes_break_it(
        start in 0..4_u8,
        noise in vec(
            prop_oneof![
                vec(any::<u8>(), 0..200),
                (0..13_u32, vec(any::<u8>(), 0..60)).prop_map(|(number, data)| option(number, &data)),
                (any::<u16>(), 0..10_u16, any::<u64>(), any::<u64>(), any::<u32>())
                    .prop_map(|(flags, number, cookie, offset, length)| request(flags, number, cookie, offset, length)),
            ],
            0..30,
        ),
        chunk in 1..5000_usize,
    ) {
        let mut session = match start {
            0 => session(),
            1 => transmitting(false, "disk"),
            2 => transmitting(true, "old"),
            _ => {
                let mut session = session();
                feed(&mut session, &client_flags());
                session
            }
        };
        let mut memory = Memory::new();
        for bytes in noise.concat().chunks(chunk) {
            if !session.wants_read() {
                break;
            }
            feed(&mut session, bytes);
            while let Ok(Some(request)) = session.next_request() {
                memory.answer(&mut session, request);
            }
            take_output(&mut session);
            prop_assert!(session.memory_bytes() < 4 << 20, "{} bytes", session.memory_bytes());
        }
        prop_assert_eq!(session.in_flight(), 0);
    }
}
