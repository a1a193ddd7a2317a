//! One connection: where bytes of the client become requests, and answers become bytes.
//!
//! ```text
//! client flags ─► options ─┬─► transmission ─► leaving ─► closed
//!                  ▲   │   └────────────────────┘  ▲        ▲
//!                  │   ▼ STARTTLS       DISC, ABORT ┘        │ a violation, from anywhere
//!                 start TLS
//! ```
//!
//! Invariants: nothing is parsed while the connection holds as much memory as [`Limits`](super::Limits) allow; a
//! request is answered once; what was said before TLS is forgotten when TLS starts.
//!
//! Deliberately absent: time. A deadline for the handshake asks [`Session::is_transmitting`], one for stalled messages
//! [`Session::is_mid_message`].

use super::export::{Config, Export};
use super::in_flight::InFlight;
use super::input::Input;
use super::output::Output;
use super::request::{Payload, Rejection, Request};
use super::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, OPTION_MAGIC, REQUEST_MAGIC, STRING_BYTES_MAX, be32,
};
use std::fmt;
use std::sync::Arc;

/// Meaning of the next bytes of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its answer to the greeting.
    ClientFlags,
    /// Options.
    Options,
    /// The TLS handshake, which is not ours.
    StartTls,
    /// Requests.
    Transmission,
    /// Nothing that matters; answers are still sent.
    Leaving,
    /// Nothing that matters.
    Closed,
}

/// Answer that is given when unwanted bytes have passed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Discarded {
    /// The data of an option that were too long.
    Option(u32),
    /// The payload of a wrong write.
    Write(Rejection),
}

/// Whether parsing can go on.
pub(super) enum Step {
    /// Something was consumed.
    Again,
    /// The message is not complete.
    NeedBytes,
    /// A request is complete.
    Ready(Request),
}

/// The NBD protocol with one client.
#[derive(Debug)]
pub struct Session {
    pub(super) config: Arc<Config>,
    pub(super) phase: Phase,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) in_flight: InFlight,
    /// A large write whose payload arrives in a buffer of its own.
    pub(super) payload: Option<Payload>,
    /// Number of unwanted bytes, and the answer after them.
    pub(super) discard: Option<(u64, Discarded)>,
    /// The client does not want 124 zeros after `NBD_OPT_EXPORT_NAME`.
    pub(super) no_zeroes: bool,
    pub(super) tls: bool,
    pub(super) structured: bool,
    /// The export for which `base:allocation` was chosen.
    pub(super) context: Option<usize>,
    /// The export, once there is one.
    pub(super) export: Option<usize>,
    pub(super) shutting_down: bool,
    /// The last look for a request ended for want of bytes.
    starved: bool,
}

impl Session {
    /// A new connection; the greeting waits in the output.
    pub fn new(config: Arc<Config>) -> Self {
        let mut output = Output::default();
        let bytes = output.end();
        bytes.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self {
            config,
            phase: Phase::ClientFlags,
            input: Input::new(),
            output,
            in_flight: InFlight::default(),
            payload: None,
            discard: None,
            no_zeroes: false,
            tls: false,
            structured: false,
            context: None,
            export: None,
            shutting_down: false,
            starved: true,
        }
    }

    /// Buffer for received bytes. It is empty only if [`Self::next_request`] was not called until it had nothing.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.payload {
            Some(payload) if self.input.unread().is_empty() => payload.space(),
            _ => self.input.space(),
        }
    }

    /// The first `n` bytes of [`Self::space`] were received.
    ///
    /// # Panics
    /// The space was smaller than that.
    pub fn received(&mut self, n: usize) {
        match &mut self.payload {
            Some(payload) if self.input.unread().is_empty() => payload.received(n),
            _ => self.input.received(n),
        }
        self.starved &= n == 0;
    }

    /// The next request, if one is complete and the connection may hold more. Negotiation happens in here. To be
    /// called until there is none, and again when [`Self::is_runnable`].
    ///
    /// # Errors
    /// The client broke the protocol in a way that has no reply. The connection has to be closed.
    pub fn next_request(&mut self) -> Result<Option<Request>, Fatal> {
        while !self.is_throttled() {
            let step = match self.phase {
                _ if self.discard.is_some() => Ok(self.discard()),
                Phase::ClientFlags => self.client_flags(),
                Phase::Options => self.option(),
                Phase::Transmission => self.request(),
                Phase::StartTls => Ok(Step::NeedBytes),
                Phase::Leaving | Phase::Closed => {
                    self.input.clear();
                    Ok(Step::NeedBytes)
                }
            };
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Ready(request)) => return Ok(Some(request)),
                Ok(Step::NeedBytes) => {
                    self.starved = true;
                    break;
                }
                Err(fatal) => {
                    self.phase = Phase::Closed;
                    self.payload = None;
                    self.discard = None;
                    self.input.clear();
                    return Err(fatal);
                }
            }
        }
        Ok(None)
    }

    /// Bytes for the client.
    #[inline]
    pub fn output(&self) -> &[u8] {
        self.output.pending()
    }

    /// The first `n` bytes of [`Self::output`] were sent.
    ///
    /// # Panics
    /// The output was shorter than that.
    pub fn sent(&mut self, n: usize) {
        self.output.sent(n);
    }

    /// The handshake is over and the client has chosen an export.
    pub fn is_transmitting(&self) -> bool {
        self.export.is_some()
    }

    /// Index of the export that the client has chosen.
    pub fn export(&self) -> Option<usize> {
        self.export
    }

    /// Offer of the server.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Requests that wait for their answer.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The connection holds as much memory as it may; answers and sent bytes change that.
    pub fn is_throttled(&self) -> bool {
        let limits = self.config.limits();
        self.output.len() >= limits.output_bytes
            || self.in_flight.len() >= limits.requests
            || self.in_flight.bytes() >= limits.request_bytes
    }

    /// Memory that this connection holds, in bytes: what requests in flight brought or ask for, the payload that
    /// arrives, and buffers. Buffers that grow have up to twice the size of what is in them.
    pub fn memory_bytes(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, Payload::capacity);
        self.input.capacity() + self.output.capacity() + self.in_flight.capacity_bytes() + payload
    }

    /// Received bytes are welcome. Where this says no, the socket is left alone, so that the client has to wait.
    pub fn wants_read(&self) -> bool {
        matches!(self.phase, Phase::ClientFlags | Phase::Options | Phase::Transmission)
            && !self.is_throttled()
    }

    /// [`Self::next_request`] would find something to do without a further byte.
    pub fn is_runnable(&self) -> bool {
        !self.starved && self.wants_read()
    }

    /// A message of the client has begun and is not complete.
    pub fn is_mid_message(&self) -> bool {
        self.payload.is_some() || self.discard.is_some() || !self.input.unread().is_empty()
    }

    /// Everything is said: the connection can be closed. After a violation that is at once, after a farewell when all
    /// requests are answered and the answers sent.
    pub fn wants_close(&self) -> bool {
        match self.phase {
            Phase::Closed => true,
            Phase::Leaving => self.in_flight.len() == 0 && self.output.len() == 0,
            _ => false,
        }
    }

    /// The client has asked for TLS: when the output is sent, a TLS handshake follows on the same stream.
    pub fn is_starting_tls(&self) -> bool {
        self.phase == Phase::StartTls
    }

    /// From here on bytes come through TLS. Whatever was received or agreed on before is forgotten.
    ///
    /// # Panics
    /// The client has not asked for TLS, or the reply to that is not sent.
    pub fn tls_started(&mut self) {
        assert!(self.is_starting_tls() && self.output.len() == 0, "TLS starts after the reply to STARTTLS");
        self.input.clear();
        self.structured = false;
        self.context = None;
        self.tls = true;
        self.starved = true;
        self.phase = Phase::Options;
    }

    /// The server stops: whatever the client asks from here on is refused; requests in flight are the engine's.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// The export of the transmission phase.
    pub(super) fn chosen(&self) -> &Export {
        &self.config.exports()[self.export.expect("requests follow the choice of an export")]
    }

    fn client_flags(&mut self) -> Result<Step, Fatal> {
        let Some(flags) = self.input.unread().get(..4) else { return Ok(Step::NeedBytes) };
        let flags = be32(flags, 0);
        let (fixed, no_zeroes) = (u32::from(FLAG_FIXED_NEWSTYLE), u32::from(FLAG_NO_ZEROES));
        if flags & fixed == 0 || flags & !(fixed | no_zeroes) != 0 {
            return Err(Fatal::ClientFlags(flags));
        }
        self.input.consume(4);
        self.no_zeroes = flags & no_zeroes != 0;
        self.phase = Phase::Options;
        Ok(Step::Again)
    }

    fn discard(&mut self) -> Step {
        let Some((left, then)) = &mut self.discard else { return Step::Again };
        let here = (*left).min(self.input.unread().len() as u64);
        *left -= here;
        self.input.consume(here as usize);
        if *left > 0 {
            return Step::NeedBytes;
        }
        let then = *then;
        self.discard = None;
        match then {
            Discarded::Option(option) => self.option_too_big(option),
            Discarded::Write(rejection) => self.reject(rejection),
        }
        Step::Again
    }
}

/// Faults of a client that have no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// Its flags are unknown, or it does not speak the fixed newstyle protocol.
    ClientFlags(u32),
    /// An option begins with other bytes than it should.
    OptionMagic(u64),
    /// A request begins with other bytes than it should.
    RequestMagic(u32),
    /// `NBD_OPT_EXPORT_NAME` with a name of that many bytes.
    NameTooLong(u32),
    /// `NBD_OPT_EXPORT_NAME` with a name that is not there.
    UnknownExport(String),
    /// `NBD_OPT_EXPORT_NAME` before TLS where TLS is required.
    TlsRequired,
    /// `NBD_OPT_EXPORT_NAME` while the server stops.
    ShuttingDown,
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientFlags(flags) => {
                write!(
                    f,
                    "client flags {flags:#x}; fixed newstyle (1) is needed and no zeroes (2) is possible"
                )
            }
            Self::OptionMagic(magic) => {
                write!(f, "an option begins with {magic:#018x}, not {OPTION_MAGIC:#018x}")
            }
            Self::RequestMagic(magic) => {
                write!(f, "a request begins with {magic:#010x}, not {REQUEST_MAGIC:#010x}")
            }
            Self::NameTooLong(bytes) => {
                write!(f, "the name of an export has {bytes} bytes; up to {STRING_BYTES_MAX} are possible")
            }
            Self::UnknownExport(name) => write!(f, "there is no export '{name:.80}'"),
            Self::TlsRequired => write!(f, "an export was chosen without TLS, which is required"),
            Self::ShuttingDown => write!(f, "an export was chosen while the server stops"),
        }
    }
}

impl std::error::Error for Fatal {}
