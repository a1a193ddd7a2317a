//! Where clients connect: addresses, listening sockets, and the streams that they accept.
//!
//! Invariant: the file of a unix socket goes with its server; one at which another server listens is left alone.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Addresses at which clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket; the file is made and removed by the server.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// Why a server cannot run.
#[derive(Debug)]
pub struct ServeError(String);

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ServeError {}

pub(crate) fn failed<E: fmt::Display>(what: impl fmt::Display) -> impl Fn(E) -> ServeError {
    let what = what.to_string();
    move |error| ServeError(format!("{what}: {error}"))
}

#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Another end of the same stream.
    pub(crate) fn twin(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Ends it for both sides.
    pub(crate) fn shutdown(&self) {
        // The other side may have ended it.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Waits from now on, for so long, where it had nothing to read.
    pub(crate) fn block(&self, most: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(most))?;
                stream.set_read_timeout(Some(most))
            }
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(most))?;
                stream.set_read_timeout(Some(most))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}
impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
    Control(UnixListener),
}

impl Listener {
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(listener) | Self::Control(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Stream::Unix(stream)
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        })
    }

    /// Address at which clients reach it; of TCP with the port that the system chose, where that was 0.
    pub(crate) fn address(&self) -> Option<String> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| format!("nbd://{address}")),
            Self::Unix(listener) => {
                let address = listener.local_addr().ok()?;
                Some(format!("nbd+unix:///?socket={}", address.as_pathname()?.display()))
            }
            Self::Control(_) => None,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) | Self::Control(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Opens the sockets: of control first, so that it exists when a client finds that the server listens.
pub(crate) fn listen(
    control: Option<&Path>,
    endpoints: &[Endpoint],
) -> Result<(Vec<Listener>, Sockets), ServeError> {
    let (mut listeners, mut sockets) = (Vec::new(), Sockets::default());
    let mut unix = |path: &Path| {
        if sockets.0.iter().any(|other| other == path) {
            return Err(ServeError(format!("{}: expected another path for each socket", path.display())));
        }
        let listener = bind_unix(path)?;
        sockets.0.push(path.to_owned());
        Ok(listener)
    };
    if let Some(path) = control {
        listeners.push(Listener::Control(unix(path)?));
    }
    for endpoint in endpoints {
        listeners.push(match endpoint {
            Endpoint::Unix(path) => Listener::Unix(unix(path)?),
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed(address))?;
                listener.set_nonblocking(true).map_err(failed(address))?;
                Listener::Tcp(listener)
            }
        });
    }
    Ok((listeners, sockets))
}

/// Unix sockets that go when the server ends, or when it cannot begin.
#[derive(Debug, Default)]
pub(crate) struct Sockets(Vec<PathBuf>);

impl Sockets {
    pub(crate) fn remove(&mut self) {
        for path in self.0.drain(..) {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Descriptors beside those of connections: listeners, controllers, files of volumes, the libraries'.
const FILES_BESIDE: u64 = 128;

/// Makes sure that this process may open so many descriptors for each of its connections: a listener without any would be ready for ever.
pub(crate) fn reserve_files(connections: usize, for_each: u64) -> Result<(), ServeError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections as u64 * for_each + FILES_BESIDE;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(most) = maximum.filter(|most| *most < needed) {
        return Err(ServeError(format!(
            "{connections} connections need {needed} open files, of which this process may have {most} (ulimit -Hn)"
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .map_err(|error| ServeError(format!("{needed} open files for {connections} connections: {error}")))
}

/// Listens on a unix socket. A file that a dead server left behind is replaced; one that is alive is not.
pub(crate) fn bind_unix(path: &Path) -> Result<UnixListener, ServeError> {
    let name = path.display();
    if let Ok(kind) = std::fs::symlink_metadata(path).map(|meta| meta.file_type()) {
        use std::os::unix::fs::FileTypeExt as _;
        if !kind.is_socket() {
            return Err(ServeError(format!("{name}: there is a file that is no socket; it is not replaced")));
        }
        // Only nobody at the other end is a dead server: a socket of another kind, or of another user, is somebody's.
        match UnixStream::connect(path) {
            Ok(_) => return Err(ServeError(format!("{name}: another server listens here"))),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(failed(&name)(error)),
        }
        std::fs::remove_file(path).map_err(failed(&name))?;
    }
    let listener = UnixListener::bind(path).map_err(failed(&name))?;
    listener.set_nonblocking(true).map_err(failed(&name))?;
    Ok(listener)
}
