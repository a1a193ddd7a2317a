//! Each message of the protocol, byte by byte.

use super::client::*;
use flashweir_serve::nbd::wire::{command, command_flag, info, option};
use flashweir_serve::nbd::{Command, Errno, Extent, Limits, Request, Session, TlsMode};

/// Bytes of a text of hexadecimal digits; blanks are for the eye.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2));
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The head of a reply to an option.
const REPLY: &str = "0003e889 045565a9";

/// What a session says to options after the client's flags, as hexadecimal numbers.
#[track_caller]
fn options(input: &[Vec<u8>], expected: &[&str]) -> Session {
    let mut session = session();
    take_output(&mut session);
    feed(&mut session, &client_flags());
    for bytes in input {
        feed(&mut session, bytes);
    }
    assert_eq!(session.next_request(), Ok(None));
    assert_bytes(&take_output(&mut session), &expected.concat());
    session
}

#[track_caller]
fn assert_bytes(found: &[u8], expected: &str) {
    let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(text(found), text(&hex(expected)));
}

/// Makes one request of raw bytes.
#[track_caller]
fn one(session: &mut Session, bytes: &str) -> Request {
    feed(session, &hex(bytes));
    let request = session.next_request().expect("a good request").expect("a whole request");
    assert_eq!(session.in_flight(), 1);
    request
}

#[test]
fn greeting() {
    assert_bytes(session().output(), "4e42444d41474943 49484156454f5054 0003");
}

#[test]
fn export_name_with_and_without_zeros() {
    let mut quiet =
        options(&[hex("49484156454f5054 00000001 00000004 6469736b")], &["0000000000100000 0d6d"]);
    assert!(quiet.is_transmitting());
    assert_eq!(quiet.export(), Some(0));
    assert_eq!(quiet.next_request(), Ok(None));

    let mut session = session();
    take_output(&mut session);
    feed(&mut session, &hex("00000001 49484156454f5054 00000001 00000003 6f6c64"));
    assert_eq!(session.next_request(), Ok(None));
    assert_bytes(session.output(), &format!("0000000000100000 050f {}", "00".repeat(124)));
    assert_eq!(session.export(), Some(1));
}

#[test]
fn abort() {
    let session =
        options(&[hex("49484156454f5054 00000002 00000000")], &[REPLY, "00000002 00000001 00000000"]);
    assert!(session.wants_close());
}

#[test]
fn abort_is_acknowledged_before_the_end() {
    let mut session = session();
    feed(&mut session, &client_flags());
    feed(&mut session, &option(option::ABORT, &[]));
    assert_eq!(session.next_request(), Ok(None));
    assert!(!session.wants_close() && !session.wants_read());
    take_output(&mut session);
    assert!(session.wants_close());
}

#[test]
fn list() {
    options(
        &[hex("49484156454f5054 00000003 00000000")],
        &[
            REPLY,
            "00000003 00000002 0000000e 00000004 6469736b 61206469736b",
            REPLY,
            "00000003 00000002 00000007 00000003 6f6c64",
            REPLY,
            "00000003 00000001 00000000",
        ],
    );
}

#[test]
fn info_tells_what_was_asked_and_size_and_blocks_always() {
    let session = options(
        &[hex("49484156454f5054 00000006 0000000e 00000004 6469736b 0002 0001 0002")],
        &[
            REPLY,
            "00000006 00000003 0000000c 0000 0000000000100000 0d6d",
            REPLY,
            "00000006 00000003 0000000e 0003 00000200 00001000 02000000",
            REPLY,
            "00000006 00000003 00000006 0001 6469736b",
            REPLY,
            "00000006 00000003 00000008 0002 61206469736b",
            REPLY,
            "00000006 00000001 00000000",
        ],
    );
    assert!(!session.is_transmitting());
}

#[test]
fn go_chooses_the_default_export() {
    let session = options(
        &[hex("49484156454f5054 00000007 00000006 00000000 0000")],
        &[
            REPLY,
            "00000007 00000003 0000000c 0000 0000000000100000 0d6d",
            REPLY,
            "00000007 00000003 0000000e 0003 00000200 00001000 02000000",
            REPLY,
            "00000007 00000001 00000000",
        ],
    );
    assert_eq!(session.export(), Some(0));
}

#[test]
fn structured_replies_add_the_flag_df() {
    options(
        &[hex("49484156454f5054 00000008 00000000"), hex("49484156454f5054 00000001 00000003 6f6c64")],
        &[REPLY, "00000008 00000001 00000000", "0000000000100000 058f"],
    );
}

#[test]
fn what_is_not_supported_says_so() {
    // Extended headers, a withdrawn option, and an unknown one.
    for (number, digits) in [(11, "3131"), (4, "34"), (0xffff_ffff, "34323934393637323935")] {
        let length = 24 + digits.len() / 2;
        options(
            &[option(number, &[])],
            &[
                REPLY,
                &format!("{number:08x} 80000001 {length:08x} 6f7074696f6e20 {digits}"),
                "206973206e6f7420737570706f72746564",
            ],
        );
    }
}

#[test]
fn an_unknown_export_is_unknown_and_the_client_may_try_again() {
    let session = options(
        &[option(option::GO, &info_data("nope", &[])), option(option::EXPORT_NAME, b"disk")],
        &[
            REPLY,
            "00000007 80000006 00000019 7468657265206973206e6f206578706f727420276e6f706527",
            "0000000000100000 0d6d",
        ],
    );
    assert!(session.is_transmitting());
}

#[test]
fn metadata_contexts_are_listed_and_chosen() {
    let base = "626173653a616c6c6f636174696f6e";
    options(
        &[
            option(option::STRUCTURED_REPLY, &[]),
            // All of them, those of a namespace, none that is known.
            hex("49484156454f5054 00000009 0000000c 00000004 6469736b 00000000"),
            option(option::LIST_META_CONTEXT, &context_data("disk", &["base:"])),
            option(option::LIST_META_CONTEXT, &context_data("disk", &["qemu:"])),
            // No query chooses nothing.
            hex("49484156454f5054 0000000a 0000000c 00000004 6469736b 00000000"),
            option(option::SET_META_CONTEXT, &context_data("disk", &["x:y", "base:allocation"])),
        ],
        &[
            &format!("{REPLY} 00000008 00000001 00000000"),
            &format!("{REPLY} 00000009 00000004 00000013 00000000 {base}"),
            &format!("{REPLY} 00000009 00000001 00000000"),
            &format!("{REPLY} 00000009 00000004 00000013 00000000 {base}"),
            &format!("{REPLY} 00000009 00000001 00000000"),
            &format!("{REPLY} 00000009 00000001 00000000"),
            &format!("{REPLY} 0000000a 00000001 00000000"),
            &format!("{REPLY} 0000000a 00000004 00000013 00000001 {base}"),
            &format!("{REPLY} 0000000a 00000001 00000000"),
        ],
    );
}

#[test]
fn tls_is_refused_where_there_is_none() {
    options(
        &[hex("49484156454f5054 00000005 00000000")],
        &[REPLY, "00000005 80000002 00000016 7468697320736572766572 20686173206e6f20544c53"],
    );
}

#[test]
fn tls_is_acknowledged_where_it_is_offered() {
    let mut session = Session::new(config(TlsMode::Offered, Limits::default()));
    take_output(&mut session);
    feed(&mut session, &[client_flags(), option(option::STARTTLS, &[])].concat());
    assert_eq!(session.next_request(), Ok(None));
    assert!(session.is_starting_tls() && !session.wants_read());
    assert_bytes(&take_output(&mut session), &format!("{REPLY} 00000005 00000001 00000000"));
    session.tls_started();
    assert!(session.wants_read());
    // A second time it is wrong.
    feed(&mut session, &option(option::STARTTLS, &[]));
    assert_eq!(session.next_request(), Ok(None));
    let replies = messages(session.output(), 0);
    assert!(matches!(replies.as_slice(), [Message::Option { option: 5, kind: 0x8000_0003, .. }]));
}

#[test]
fn read() {
    let bytes = "25609513 0000 0000 0102030405060708 0000000000000200 00000200";
    let mut simple = transmitting(false, "disk");
    let request = one(&mut simple, bytes);
    assert_eq!((request.offset, request.length, &request.command), (512, 512, &Command::Read));
    simple.reply_read(request.token, |reply| {
        reply.fill(2, |bytes| bytes.fill(7));
        reply.data(&[9; 500]);
        reply.hole(10);
    });
    assert_bytes(
        simple.output(),
        &format!("67446698 00000000 0102030405060708 0707 {} {}", "09".repeat(500), "00".repeat(10)),
    );

    let mut structured = transmitting(true, "disk");
    let request = one(&mut structured, bytes);
    structured.reply_read(request.token, |reply| reply.data(&[9; 512]));
    assert_bytes(
        structured.output(),
        &format!("668e33ef 0001 0001 0102030405060708 00000208 0000000000000200 {}", "09".repeat(512)),
    );
}

#[test]
fn read_with_holes() {
    let mut session = transmitting(true, "disk");
    let request = one(&mut session, "25609513 0000 0000 0000000000000005 0000000000001000 00000c00");
    session.reply_read(request.token, |reply| {
        reply.hole(512);
        reply.hole(512);
        reply.data(&[1; 512]);
        reply.data(&[2; 256]);
        // Too short for a chunk of its own.
        reply.hole(256);
        assert_eq!(reply.left(), 1024);
        reply.hole(1024);
    });
    assert_bytes(
        session.output(),
        &[
            "668e33ef 0000 0002 0000000000000005 0000000c 0000000000001000 00000400",
            "668e33ef 0000 0001 0000000000000005 00000408 0000000000001400",
            &"01".repeat(512),
            &"02".repeat(256),
            &"00".repeat(256),
            "668e33ef 0001 0002 0000000000000005 0000000c 0000000000001800 00000400",
        ]
        .concat(),
    );
}

#[test]
fn read_in_one_chunk() {
    let mut session = transmitting(true, "disk");
    let request = one(&mut session, "25609513 0004 0000 0000000000000005 0000000000000000 00000400");
    session.reply_read(request.token, |reply| {
        reply.hole(512);
        reply.data(&[1; 512]);
    });
    assert_bytes(
        session.output(),
        &format!(
            "668e33ef 0001 0001 0000000000000005 00000408 0000000000000000 {}{}",
            "00".repeat(512),
            "01".repeat(512)
        ),
    );
}

#[test]
fn write() {
    let mut session = transmitting(true, "disk");
    let header = "25609513 0001 0001 0000000000000006 0000000000000400 00000200";
    let request = one(&mut session, &format!("{header} {}", "ab".repeat(512)));
    assert_eq!((request.offset, request.length), (1024, 512));
    assert_eq!(request.command, Command::Write { data: [0xab; 512].into(), fua: true });
    session.reply_ok(request.token);
    assert_bytes(session.output(), "67446698 00000000 0000000000000006");
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn commands_without_a_payload() {
    for (numbers, range, expected) in [
        ("0000 0003", (0, 0), Command::Flush),
        ("0001 0003", (0, 0), Command::Flush),
        ("0000 0004", (4096, 8192), Command::Trim { fua: false }),
        ("0001 0004", (4096, 8192), Command::Trim { fua: true }),
        ("0000 0005", (4096, 8192), Command::Cache),
        ("0000 0006", (4096, 8192), Command::WriteZeroes { fua: false, no_hole: false, fast: false }),
        ("0003 0006", (4096, 8192), Command::WriteZeroes { fua: true, no_hole: true, fast: false }),
        ("0010 0006", (4096, 8192), Command::WriteZeroes { fua: false, no_hole: false, fast: true }),
    ] {
        let mut session = transmitting(true, "disk");
        let (offset, length) = range;
        let request =
            one(&mut session, &format!("25609513 {numbers} 00000000000000ff {offset:016x} {length:08x}"));
        assert_eq!((request.offset, request.length, request.command), (offset, length, expected));
        session.reply_ok(request.token);
        assert_bytes(session.output(), "67446698 00000000 00000000000000ff");
    }
}

#[test]
fn block_status() {
    let extent = |length, hole| Extent { length, hole, zero: hole };
    let extents =
        [extent(512, false), extent(0, true), extent(512, false), extent(1024, true), extent(9999, false)];
    let mut session = transmitting(true, "disk");
    let request = one(&mut session, "25609513 0000 0007 0000000000000008 0000000000000000 00001000");
    assert_eq!(request.command, Command::BlockStatus { one: false });
    session.reply_block_status(request.token, extents);
    assert_bytes(
        &take_output(&mut session),
        "668e33ef 0001 0005 0000000000000008 0000001c 00000001
         00000400 00000000 00000400 00000003 00000800 00000000",
    );
    let request = one(&mut session, "25609513 0008 0007 0000000000000008 0000000000000000 00001000");
    assert_eq!(request.command, Command::BlockStatus { one: true });
    session.reply_block_status(request.token, extents);
    assert_bytes(session.output(), "668e33ef 0001 0005 0000000000000008 0000000c 00000001 00000400 00000000");
}

#[test]
fn block_status_of_many_extents_ends_early() {
    let mut session = transmitting(true, "disk");
    let request = one(&mut session, "25609513 0000 0007 0000000000000008 0000000000000000 00100000");
    let extents = (0..5000).map(|n| Extent { length: 1, hole: n % 2 == 1, zero: false });
    session.reply_block_status(request.token, extents);
    let replies = messages(session.output(), 0);
    let [Message::Chunk { done: true, kind: 5, payload, .. }] = replies.as_slice() else {
        panic!("{replies:?}")
    };
    assert_eq!(payload.len(), 4 + 4096 * 8);
}

#[test]
fn errors() {
    let bytes = "25609513 0000 0000 0000000000000009 0000000000000200 00000400";
    let mut simple = transmitting(false, "disk");
    let request = one(&mut simple, bytes);
    simple.reply_error(request.token, Errno::Io, "worn out");
    assert_bytes(&take_output(&mut simple), "67446698 00000005 0000000000000009");
    let request = one(&mut simple, bytes);
    simple.reply_error_at(request.token, Errno::Io, "worn out", 1024);
    assert_bytes(simple.output(), "67446698 00000005 0000000000000009");

    let mut structured = transmitting(true, "disk");
    let request = one(&mut structured, bytes);
    structured.reply_error(request.token, Errno::Io, "worn out");
    assert_bytes(
        &take_output(&mut structured),
        "668e33ef 0001 8001 0000000000000009 0000000e 00000005 0008 776f726e206f7574",
    );
    let request = one(&mut structured, bytes);
    structured.reply_error_at(request.token, Errno::NotSup, "worn out", 1024);
    assert_bytes(
        &take_output(&mut structured),
        "668e33ef 0001 8002 0000000000000009 00000016 0000005f 0008 776f726e206f7574 0000000000000400",
    );
    // Texts are cut between characters.
    let request = one(&mut structured, bytes);
    structured.reply_error(request.token, Errno::NoMem, &"ä".repeat(200));
    let replies = messages(structured.output(), 0);
    let [Message::Chunk { payload, .. }] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!(&payload[6..], "ä".repeat(128).as_bytes());
}

#[test]
fn a_farewell_waits_for_the_answers() {
    let mut session = transmitting(false, "disk");
    feed(&mut session, &request(0, command::READ, 1, 0, 512));
    feed(&mut session, &request(0, command::DISC, 2, 0, 0));
    feed(&mut session, b"whatever follows");
    let request = session.next_request().unwrap().unwrap();
    assert_eq!(session.next_request(), Ok(None));
    assert!(!session.wants_read() && !session.wants_close());
    session.reply_read(request.token, |reply| reply.hole(512));
    assert!(!session.wants_close());
    assert_eq!(take_output(&mut session).len(), 16 + 512);
    assert!(session.wants_close());
}

#[test]
fn answers_may_come_in_any_order_and_cookies_may_repeat() {
    let mut session = transmitting(false, "disk");
    for offset in [0, 512, 1024] {
        feed(&mut session, &request(0, command::READ, 77, offset, 512));
    }
    let requests: Vec<Request> = std::iter::from_fn(|| session.next_request().unwrap()).collect();
    assert_eq!(requests.len(), 3);
    for request in requests.iter().rev() {
        session.reply_read(request.token, |reply| reply.data(&[(request.offset / 512) as u8; 512]));
    }
    let replies = messages(session.output(), 512);
    let firsts: Vec<u8> = replies
        .iter()
        .map(|reply| match reply {
            Message::Simple { errno: 0, cookie: 77, data } => data[0],
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(firsts, [2, 1, 0]);
}

#[test]
fn a_server_that_stops_refuses() {
    let mut session = transmitting(true, "disk");
    feed(&mut session, &request(0, command::READ, 1, 0, 512));
    let before = session.next_request().unwrap().unwrap();
    session.shut_down();
    feed(&mut session, &request(0, command::WRITE, 2, 0, 512));
    feed(&mut session, &[0; 512]);
    assert_eq!(session.next_request(), Ok(None));
    assert_eq!(only_error(&take_output(&mut session)), Some((2, 108)));
    session.reply_read(before.token, |reply| reply.hole(512));
    assert_eq!(content(&messages(session.output(), 0), 1, 0, 512), [0; 512]);

    let mut early = session_that_stops();
    feed(&mut early, &option(option::LIST, &[]));
    assert_eq!(early.next_request(), Ok(None));
    let replies = messages(early.output(), 0);
    assert!(matches!(replies.as_slice(), [Message::Option { option: 3, kind: 0x8000_0007, .. }]));
}

fn session_that_stops() -> Session {
    let mut session = session();
    take_output(&mut session);
    feed(&mut session, &client_flags());
    session.shut_down();
    session
}

#[test]
fn the_last_choice_of_contexts_counts() {
    for (last, data) in [
        ("nothing", context_data("disk", &["x:y"])),
        ("an unknown export", context_data("nope", &["base:allocation"])),
        ("nonsense", vec![1, 2, 3]),
    ] {
        let mut session = session();
        feed(&mut session, &client_flags());
        feed(&mut session, &option(option::STRUCTURED_REPLY, &[]));
        feed(&mut session, &option(option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])));
        feed(&mut session, &option(option::SET_META_CONTEXT, &data));
        feed(&mut session, &option(option::GO, &info_data("disk", &[])));
        feed(&mut session, &request(0, command::BLOCK_STATUS, 1, 0, 512));
        assert_eq!(session.next_request(), Ok(None), "{last}");
    }
}

#[test]
fn a_context_is_for_the_export_that_it_was_chosen_for() {
    for (chosen, export, allowed) in [("disk", "disk", true), ("", "disk", true), ("old", "disk", false)] {
        let mut session = session();
        feed(&mut session, &client_flags());
        feed(&mut session, &option(option::STRUCTURED_REPLY, &[]));
        feed(&mut session, &option(option::SET_META_CONTEXT, &context_data(chosen, &["base:allocation"])));
        feed(&mut session, &option(option::GO, &info_data(export, &[info::NAME])));
        feed(&mut session, &request(command_flag::REQ_ONE, command::BLOCK_STATUS, 1, 0, 512));
        let found = session.next_request().unwrap();
        assert_eq!(found.is_some(), allowed, "context of '{chosen}', export '{export}'");
    }
}
