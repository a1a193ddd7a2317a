//! What a client must not do (crash-laboratory §5.1), each by its name.

use super::client::*;
use flashweir_serve::nbd::wire::{command, command_flag, option};
use flashweir_serve::nbd::{Fatal, Limits, Session, TlsMode};

/// What a session does about it.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// It ends.
    Closed(Fatal),
    /// The option gets this reply; the next one is served.
    Option(u32),
    /// The request, cookie 7, gets this error; the next one is served.
    Request(u32),
}
use Outcome::{Closed, Option as Refused, Request as Failed};

const INVALID: u32 = 0x8000_0003;
const TOO_BIG: u32 = 0x8000_0009;
const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

/// What the session says to `bytes`, and that it serves the next message if it is still there.
fn outcome(mut session: Session, bytes: &[u8]) -> Outcome {
    take_output(&mut session);
    let mut left = bytes;
    let mut result = Ok(None);
    while !left.is_empty() && result == Ok(None) {
        let n = left.len().min(50_000);
        feed(&mut session, &left[..n]);
        left = &left[n..];
        result = session.next_request();
    }
    match result {
        Err(fatal) => {
            assert!(session.wants_close() && !session.wants_read() && !session.is_runnable());
            assert_eq!(session.next_request(), Ok(None), "what is closed stays closed");
            return Closed(fatal);
        }
        Ok(request) => assert_eq!(request, None, "it is no request for the engine"),
    }
    assert!(!session.is_mid_message(), "all of it was taken");
    let said = take_output(&mut session);
    if session.is_transmitting() {
        let (cookie, errno) = only_error(&said).expect("one error");
        assert_eq!(cookie, 7);
        feed(&mut session, &request(0, command::READ, 8, 0, 512));
        assert!(session.next_request().unwrap().is_some(), "the next request is served");
        return Failed(errno);
    }
    let replies = messages(&said, 0);
    let [Message::Option { kind, .. }] = replies.as_slice() else { panic!("{replies:?}") };
    feed(&mut session, &option(option::LIST, &[]));
    assert_eq!(session.next_request(), Ok(None));
    assert!(!messages(session.output(), 0).is_empty(), "the next option is served");
    Refused(*kind)
}

/// A session that has the client's flags.
fn haggling() -> Session {
    let mut session = session();
    feed(&mut session, &client_flags());
    assert_eq!(session.next_request(), Ok(None));
    session
}

/// The same with structured replies.
fn structured() -> Session {
    let mut session = haggling();
    feed(&mut session, &option(option::STRUCTURED_REPLY, &[]));
    assert_eq!(session.next_request(), Ok(None));
    session
}

/// A request with cookie 7.
fn bad(flags: u16, command: u16, offset: u64, length: u32) -> Vec<u8> {
    request(flags, command, 7, offset, length)
}

/// A write with its payload.
fn bad_write(offset: u64, length: u32) -> Vec<u8> {
    [bad(0, command::WRITE, offset, length), vec![1; length as usize]].concat()
}

#[test]
fn client_flags_and_options() {
    let greeted = session;
    let name = |length: usize| vec![b'n'; length];
    let unknown = Fatal::UnknownExport("n".repeat(4096));
    for (what, session, bytes, expected) in [
        ("no fixed newstyle", greeted(), vec![0, 0, 0, 0], Closed(Fatal::ClientFlags(0))),
        ("an unknown client flag", greeted(), vec![0, 0, 0, 7], Closed(Fatal::ClientFlags(7))),
        ("a high client flag", greeted(), vec![128, 0, 0, 3], Closed(Fatal::ClientFlags(0x8000_0003))),
        ("bad option magic", haggling(), vec![b'x'; 16], Closed(Fatal::OptionMagic(0x7878_7878_7878_7878))),
        ("oversized option data", haggling(), option(option::INFO, &name(65_537)), Refused(TOO_BIG)),
        ("oversized unknown option", haggling(), option(99, &name(1_000_000)), Refused(TOO_BIG)),
        ("the largest option data", haggling(), option(99, &name(65_536)), Refused(0x8000_0001)),
        (
            "a name over 4096",
            haggling(),
            option(option::EXPORT_NAME, &name(4097)),
            Closed(Fatal::NameTooLong(4097)),
        ),
        ("an unknown name of 4096", haggling(), option(option::EXPORT_NAME, &name(4096)), Closed(unknown)),
        (
            "a GO name over 4096",
            haggling(),
            option(option::GO, &info_data(&"n".repeat(4097), &[])),
            Refused(INVALID),
        ),
        (
            "a GO name of 4096",
            haggling(),
            option(option::GO, &info_data(&"n".repeat(4096), &[])),
            Refused(0x8000_0006),
        ),
        (
            "an inner length beyond the outer",
            haggling(),
            option(option::GO, &[0, 0, 0, 9, b'd', 0, 0]),
            Refused(INVALID),
        ),
        ("an inner length of 2^32 - 1", haggling(), option(option::INFO, &[255; 10]), Refused(INVALID)),
        (
            "a count beyond the outer",
            haggling(),
            option(option::GO, &[0, 0, 0, 0, 0, 2, 0, 3]),
            Refused(INVALID),
        ),
        ("a tail after the fields", haggling(), option(option::GO, &[0, 0, 0, 0, 0, 0, 1]), Refused(INVALID)),
        ("a GO without anything", haggling(), option(option::GO, &[]), Refused(INVALID)),
        ("LIST with data", haggling(), option(option::LIST, &[1]), Refused(INVALID)),
        ("STRUCTURED REPLY with data", haggling(), option(option::STRUCTURED_REPLY, &[1]), Refused(INVALID)),
        (
            "a context without structured replies",
            haggling(),
            option(option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])),
            Refused(INVALID),
        ),
        (
            "a count of queries that wraps",
            structured(),
            option(option::SET_META_CONTEXT, &[0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]),
            Refused(INVALID),
        ),
        (
            "a query over 4096",
            structured(),
            option(option::LIST_META_CONTEXT, &context_data("disk", &[&"q".repeat(4097)])),
            Refused(INVALID),
        ),
        (
            "a context of an unknown export",
            structured(),
            option(option::SET_META_CONTEXT, &context_data("nope", &["base:allocation"])),
            Refused(0x8000_0006),
        ),
    ] {
        assert_eq!(outcome(session, &bytes), expected, "{what}");
    }
}

#[test]
fn requests() {
    use command::*;
    let mut wrong_magic = request(0, READ, 7, 0, 512);
    wrong_magic[3] += 1;
    let all_flags_but_fua = !command_flag::FUA;
    let max = 32 << 20;
    for structured in [false, true] {
        for (what, export, bytes, expected) in [
            ("an unknown command", "disk", bad(0, 8, 0, 512), Failed(EINVAL)),
            ("the last command", "disk", bad(0, u16::MAX, 0, 512), Failed(EINVAL)),
            ("unknown flags", "disk", bad(all_flags_but_fua, READ, 0, 512), Failed(EINVAL)),
            ("NO_HOLE with a read", "disk", bad(command_flag::NO_HOLE, READ, 0, 512), Failed(EINVAL)),
            ("DF with a trim", "disk", bad(command_flag::DF, TRIM, 0, 512), Failed(EINVAL)),
            ("REQ_ONE with a flush", "disk", bad(command_flag::REQ_ONE, FLUSH, 0, 0), Failed(EINVAL)),
            ("FAST_ZERO with a cache", "disk", bad(command_flag::FAST_ZERO, CACHE, 0, 512), Failed(EINVAL)),
            (
                "a write with an unknown flag",
                "disk",
                [bad(32, WRITE, 0, 512), vec![1; 512]].concat(),
                Failed(EINVAL),
            ),
            ("offset + length that wraps", "disk", bad(0, READ, u64::MAX - 511, 512), Failed(EINVAL)),
            ("a write that wraps", "disk", bad_write(u64::MAX - 511, 512), Failed(ENOSPC)),
            ("a read beyond the end", "disk", bad(0, READ, DISK_BYTES - 512, 1024), Failed(EINVAL)),
            ("a trim beyond the end", "disk", bad(0, TRIM, DISK_BYTES, 512), Failed(EINVAL)),
            ("a cache beyond the end", "disk", bad(0, CACHE, DISK_BYTES, 512), Failed(EINVAL)),
            ("a write beyond the end", "disk", bad_write(DISK_BYTES, 512), Failed(ENOSPC)),
            ("zeroes beyond the end", "disk", bad(0, WRITE_ZEROES, 0, 0xffff_fe00), Failed(ENOSPC)),
            ("a status beyond the end", "disk", bad(0, BLOCK_STATUS, DISK_BYTES, 512), Failed(EINVAL)),
            ("a misaligned offset", "disk", bad(0, READ, 100, 512), Failed(EINVAL)),
            ("a misaligned length", "disk", bad(0, TRIM, 0, 513), Failed(EINVAL)),
            ("a misaligned write", "disk", bad_write(512, 100), Failed(EINVAL)),
            ("an empty read", "disk", bad(0, READ, 0, 0), Failed(EINVAL)),
            ("an empty write", "disk", bad_write(0, 0), Failed(EINVAL)),
            ("an empty trim", "disk", bad(0, TRIM, 0, 0), Failed(EINVAL)),
            ("a flush with a range", "disk", bad(0, FLUSH, 0, 512), Failed(EINVAL)),
            ("a read above the maximum", "disk", bad(0, READ, 0, max + 512), Failed(EINVAL)),
            ("a write above the maximum", "disk", bad_write(0, max + 512), Failed(EINVAL)),
            ("a write to a read-only export", "old", bad_write(0, 512), Failed(EPERM)),
            ("a trim of a read-only export", "old", bad(0, TRIM, 0, 512), Failed(EPERM)),
            ("zeroes on a read-only export", "old", bad(0, WRITE_ZEROES, 0, 512), Failed(EPERM)),
            ("bad magic", "disk", wrong_magic.clone(), Closed(Fatal::RequestMagic(0x2560_9514))),
        ] {
            assert_eq!(outcome(transmitting(structured, export), &bytes), expected, "{what}, {structured}");
        }
    }
    let status = bad(0, BLOCK_STATUS, 0, 512);
    assert_eq!(
        outcome(transmitting(false, "disk"), &status),
        Failed(EINVAL),
        "status without structured replies"
    );
    let unfragmented = bad(command_flag::DF, READ, 0, 512);
    assert_eq!(
        outcome(transmitting(false, "disk"), &unfragmented),
        Failed(EINVAL),
        "DF without structured replies"
    );
}

#[test]
fn an_announced_write_costs_memory_only_as_it_arrives() {
    let mut session = transmitting(false, "disk");
    // The export is smaller than the payload limit, so the largest good write has the size of the export.
    let fresh = session.memory_bytes();
    feed(&mut session, &request(0, command::WRITE, 1, 0, DISK_BYTES as u32));
    assert_eq!(session.next_request(), Ok(None));
    assert!(session.is_mid_message());
    assert!(session.memory_bytes() < fresh + 1024, "nothing was allocated for the announcement");
    for arrived in 1..=1000 {
        feed(&mut session, &[1; 1000]);
        assert_eq!(session.next_request(), Ok(None));
        let allowed = fresh + (2 * arrived * 1000).max(256 << 10) + 1024;
        assert!(session.memory_bytes() <= allowed, "{} of {allowed}", session.memory_bytes());
    }
    feed(&mut session, &vec![2; DISK_BYTES as usize - 1_000_000]);
    let request = session.next_request().unwrap().unwrap();
    assert_eq!(u64::from(request.length), DISK_BYTES);
}

#[test]
fn wrong_writes_cost_no_memory() {
    let mut session = transmitting(false, "disk");
    let fresh = session.memory_bytes();
    feed(&mut session, &request(0, command::WRITE, 1, 0, u32::MAX));
    for _ in 0..2000 {
        assert_eq!(session.next_request(), Ok(None));
        feed(&mut session, &[0; 50_000]);
        assert!(session.memory_bytes() <= fresh);
    }
}

#[test]
fn a_client_that_does_not_read_is_not_served() {
    let limits = Limits { output_bytes: 10_000, ..Limits::default() };
    let mut session = Session::new(config(TlsMode::Off, limits));
    feed(&mut session, &negotiation(false, "disk"));
    let mut memory = Memory::new();
    let mut served = 0;
    // It asks for 8 KiB again and again, and takes nothing.
    while session.wants_read() {
        feed(&mut session, &request(0, command::READ, 1, 0, 8192));
        while let Some(request) = session.next_request().unwrap() {
            memory.answer(&mut session, request);
            served += 1;
        }
    }
    assert_eq!(served, 2);
    assert!(session.output().len() < 10_000 + 2 * 8192);
    // It takes some, so one more request is served; that was received before, so no byte is needed.
    feed(&mut session, &request(0, command::READ, 1, 0, 8192));
    assert_eq!(session.next_request(), Ok(None));
    assert!(!session.is_runnable());
    session.sent(8192);
    assert!(session.is_runnable() && session.wants_read());
    assert!(session.next_request().unwrap().is_some());
}

#[test]
fn a_client_that_floods_options_is_not_served_before_it_reads() {
    let limits = Limits { output_bytes: 1000, ..Limits::default() };
    let mut session = Session::new(config(TlsMode::Off, limits));
    feed(&mut session, &client_flags());
    for _ in 0..1000 {
        feed(&mut session, &option(option::LIST, &[]));
    }
    assert_eq!(session.next_request(), Ok(None));
    assert!(session.is_throttled() && session.output().len() < 1200);
}

#[test]
fn requests_in_flight_are_bounded_by_number_and_by_bytes() {
    for (limits, expected) in [
        (Limits { requests: 3, ..Limits::default() }, 3),
        // The fourth one finds 24 KiB there.
        (Limits { request_bytes: 20_000, ..Limits::default() }, 3),
    ] {
        let mut session = Session::new(config(TlsMode::Off, limits));
        feed(&mut session, &negotiation(true, "disk"));
        for cookie in 0..10 {
            feed(&mut session, &request(0, command::READ, cookie, 0, 8192));
        }
        let requests: Vec<_> = std::iter::from_fn(|| session.next_request().unwrap()).collect();
        assert_eq!(requests.len(), expected);
        assert!(!session.wants_read());
        session.reply_read(requests[1].token, |reply| reply.hole(8192));
        assert!(session.is_runnable());
        assert!(session.next_request().unwrap().is_some());
        assert_eq!(session.next_request(), Ok(None));
    }
}

#[test]
fn everything_before_tls_is_forgotten() {
    let mut session = Session::new(config(TlsMode::Offered, Limits::default()));
    let injected = [
        client_flags(),
        option(option::STRUCTURED_REPLY, &[]),
        option(option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])),
        option(option::STARTTLS, &[]),
        // Sent in clear text behind STARTTLS, to be taken for the client's own words after the handshake.
        option(option::GO, &info_data("disk", &[])),
    ]
    .concat();
    feed(&mut session, &injected);
    assert_eq!(session.next_request(), Ok(None));
    // It also comes while the reply is on its way.
    feed(&mut session, &option(option::GO, &info_data("disk", &[])));
    assert_eq!(session.next_request(), Ok(None));
    take_output(&mut session);
    session.tls_started();
    assert_eq!(session.next_request(), Ok(None));
    assert!(session.output().is_empty() && !session.is_transmitting() && !session.is_mid_message());
    // Neither structured replies nor the context are there any more.
    feed(&mut session, &option(option::GO, &info_data("disk", &[])));
    feed(&mut session, &request(0, command::BLOCK_STATUS, 7, 0, 512));
    feed(&mut session, &request(0, command::READ, 8, 0, 512));
    let read = session.next_request().unwrap().unwrap();
    session.reply_read(read.token, |reply| reply.hole(512));
    let replies = messages(session.output(), 512);
    assert!(matches!(
        replies.as_slice(),
        [
            Message::Option { .. },
            Message::Option { .. },
            Message::Option { .. },
            Message::Simple { errno: 22, cookie: 7, .. },
            Message::Simple { errno: 0, cookie: 8, .. }
        ]
    ));
}

#[test]
fn nothing_but_tls_and_farewell_where_tls_is_required() {
    let required = || {
        let mut session = Session::new(config(TlsMode::Required, Limits::default()));
        feed(&mut session, &client_flags());
        assert_eq!(session.next_request(), Ok(None));
        take_output(&mut session);
        session
    };
    for number in (2..200).filter(|number| ![option::ABORT, option::STARTTLS].contains(number)) {
        let mut session = required();
        feed(&mut session, &option(number, &info_data("disk", &[])));
        assert_eq!(session.next_request(), Ok(None));
        let replies = messages(session.output(), 0);
        assert!(matches!(replies.as_slice(), [Message::Option { kind: 0x8000_0005, .. }]), "option {number}");
    }
    let mut session = required();
    feed(&mut session, &option(option::EXPORT_NAME, b"disk"));
    assert_eq!(session.next_request(), Err(Fatal::TlsRequired));
    let mut session = required();
    feed(&mut session, &option(option::ABORT, &[]));
    assert_eq!(session.next_request(), Ok(None));
    take_output(&mut session);
    assert!(session.wants_close());
}

#[test]
#[should_panic(expected = "a request is answered once")]
fn a_second_answer_is_a_bug_of_the_engine() {
    let mut session = transmitting(false, "disk");
    feed(&mut session, &request(0, command::FLUSH, 1, 0, 0));
    let request = session.next_request().unwrap().unwrap();
    session.reply_ok(request.token);
    session.reply_ok(request.token);
}
