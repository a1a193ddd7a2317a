//! A session on a non-blocking stream, in clear text or through TLS.
//!
//! Invariants: nothing is read while the session does not want it; what it wants to say in clear text is sent before
//! TLS begins; bytes that TLS has decrypted already are counted, as no poll of the stream will report them.
//!
//! Deliberately absent: waiting. The caller polls the stream, for reading while [`Connection::wants_read`] and for
//! writing while [`Connection::wants_write`].

use super::export::{Config, TlsMode};
use super::session::Session;
use super::tls::TlsKeys;
use rustls::ServerConnection;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Most bytes of cipher text that wait for the stream.
const TLS_OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Result of an attempt to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Reading: so many bytes went to the session, there may be more. Writing: all of the output, as many bytes, went
    /// to the stream.
    Done(usize),
    /// The stream is not ready, or the session does not want to read now, or TLS has to write first.
    Blocked,
    /// The client has closed its side; only reading says so.
    Closed,
}

/// A session and its stream.
pub struct Connection<S> {
    stream: S,
    session: Session,
    keys: Option<TlsKeys>,
    tls: Option<Box<ServerConnection>>,
    /// Decrypted bytes that TLS holds for us.
    decrypted: usize,
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("session", &self.session)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

impl<S: Read + Write> Connection<S> {
    /// A new connection on a stream that does not block. `keys` are needed where `config` offers TLS.
    ///
    /// # Panics
    /// They are missing there.
    pub fn new(stream: S, config: Arc<Config>, keys: Option<TlsKeys>) -> Self {
        assert!(config.tls() == TlsMode::Off || keys.is_some(), "TLS needs a certificate and a key");
        Self { stream, session: Session::new(config), keys, tls: None, decrypted: 0 }
    }

    /// The stream, for polling.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The session, for requests and answers.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Reads once what fits. To be called until it is blocked, or again when [`Self::is_runnable`].
    ///
    /// # Errors
    /// The stream failed, or TLS did: the connection is of no more use.
    pub fn read(&mut self) -> io::Result<Progress> {
        if !self.session.wants_read() {
            return Ok(Progress::Blocked);
        }
        loop {
            let space = self.session.space();
            if space.is_empty() {
                return Ok(Progress::Blocked);
            }
            let Some(tls) = &mut self.tls else {
                return match retry(|| self.stream.read(space))? {
                    None => Ok(Progress::Blocked),
                    Some(0) => Ok(Progress::Closed),
                    Some(n) => {
                        self.session.received(n);
                        Ok(Progress::Done(n))
                    }
                };
            };
            match tls.reader().read(space) {
                Ok(0) => return Ok(Progress::Closed),
                Ok(n) => {
                    self.decrypted = self.decrypted.saturating_sub(n);
                    self.session.received(n);
                    return Ok(Progress::Done(n));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The client went without a farewell of TLS. All requests that it completed are there.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Progress::Closed),
                Err(error) => return Err(error),
            }
            let handshaking = tls.is_handshaking();
            if retry(|| tls.read_tls(&mut self.stream))?.is_none() {
                return Ok(Progress::Blocked);
            }
            match tls.process_new_packets() {
                Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
                Err(error) => {
                    // The alert tells the client why; if it cannot be sent, that is no worse.
                    let _ = tls.write_tls(&mut self.stream);
                    return Err(io::Error::new(ErrorKind::InvalidData, error));
                }
            }
            if handshaking && tls.wants_write() {
                // The client may wait for that before it says more.
                return Ok(Progress::Blocked);
            }
        }
    }

    /// Writes what it can of the output. TLS begins in here.
    ///
    /// # Errors
    /// The stream failed: the connection is of no more use.
    pub fn flush(&mut self) -> io::Result<Progress> {
        let mut total = 0;
        if self.tls.is_none() {
            while !self.session.output().is_empty() {
                let Some(n) = self.write_clear()? else { return Ok(Progress::Blocked) };
                total += n;
            }
            if self.session.is_starting_tls() {
                self.start_tls()?;
            }
        }
        let Some(tls) = &mut self.tls else { return Ok(Progress::Done(total)) };
        loop {
            while tls.wants_write() {
                match retry(|| tls.write_tls(&mut self.stream))? {
                    None => return Ok(Progress::Blocked),
                    Some(0) => return Err(ErrorKind::WriteZero.into()),
                    Some(n) => total += n,
                }
            }
            // Before the handshake is over, the writer keeps what it takes.
            let output = self.session.output();
            if output.is_empty() || tls.is_handshaking() {
                return Ok(Progress::Done(total));
            }
            let taken = tls.writer().write(output)?;
            self.session.sent(taken);
        }
    }

    /// Says farewell where TLS has one. The output that is left is lost; [`Session::wants_close`] says when none is.
    pub fn close(mut self) -> S {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // It may be too late for that, and no caller would act on it.
            while tls.wants_write() && matches!(tls.write_tls(&mut self.stream), Ok(n) if n > 0) {}
        }
        self.stream
    }

    /// The stream is worth polling for reading.
    pub fn wants_read(&self) -> bool {
        self.session.wants_read()
    }

    /// The stream is worth polling for writing: something was left by [`Self::flush`], or it was not called.
    pub fn wants_write(&self) -> bool {
        match &self.tls {
            Some(tls) => tls.wants_write() || (!self.session.output().is_empty() && !tls.is_handshaking()),
            None => !self.session.output().is_empty() || self.session.is_starting_tls(),
        }
    }

    /// [`Self::read`] and [`Session::next_request`] have something to do without any event of the stream: bytes that
    /// are here already.
    pub fn is_runnable(&self) -> bool {
        self.session.is_runnable() || (self.decrypted > 0 && self.session.wants_read())
    }

    fn write_clear(&mut self) -> io::Result<Option<usize>> {
        match retry(|| self.stream.write(self.session.output()))? {
            Some(0) => Err(ErrorKind::WriteZero.into()),
            Some(n) => {
                self.session.sent(n);
                Ok(Some(n))
            }
            None => Ok(None),
        }
    }

    fn start_tls(&mut self) -> io::Result<()> {
        let keys = self.keys.as_ref().expect("TLS is offered where there are keys");
        let mut tls = ServerConnection::new(keys.0.clone()).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(TLS_OUTPUT_BYTES_MAX));
        self.tls = Some(Box::new(tls));
        self.session.tls_started();
        Ok(())
    }
}

/// Repeats what was interrupted; `None` if it would block.
fn retry(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match attempt() {
            Ok(n) => return Ok(Some(n)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
