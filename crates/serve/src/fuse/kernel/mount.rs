//! The mount itself: by the system call for root, by Debian's `fusermount3` for others.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Program that mounts for unprivileged users.
const HELPER: &str = "fusermount3";

/// How something is to be mounted. The kernel checks rights by modes.
#[derive(Clone, Debug)]
pub(crate) struct Mounting {
    /// Source in the table of mounts.
    pub(crate) source: String,
    /// Type in the table of mounts, after `fuse.`.
    pub(crate) kind: &'static str,
    pub(crate) read_only: bool,
    /// Users other than the one who mounts may use it.
    pub(crate) allow_other: bool,
}

impl Mounting {
    /// Mounts; gives the device by which the kernel asks, which does not block.
    pub(super) fn mount(&self, at: &Path) -> io::Result<File> {
        let device = match self.mount_by_call(at) {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                self.mount_by_helper(at)
            }
            mounted => mounted,
        }?;
        rustix::io::ioctl_fionbio(&device, true)?;
        Ok(device)
    }

    fn others(&self) -> &'static str {
        if self.allow_other { ",allow_other" } else { "" }
    }

    fn mount_by_call(&self, at: &Path) -> io::Result<File> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("/dev/fuse: {error}"));
        let device = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::ACCESS) => return Err(Errno::PERM.into()),
            device => device.map_err(|errno| named(errno.into()))?,
        };
        let mode = std::fs::metadata(at)?.mode() & 0o170_000;
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let options = format!(
            "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions{}",
            device.as_raw_fd(),
            self.others()
        );
        let options = CString::new(options).expect("there is no zero in it");
        let mut flags = MountFlags::empty();
        if self.read_only {
            flags |= MountFlags::RDONLY;
        }
        if !rustix::process::geteuid().is_root() {
            flags |= MountFlags::NOSUID | MountFlags::NODEV;
        }
        let kind = format!("fuse.{}", self.kind);
        rustix::mount::mount(&*self.source, at, &*kind, flags, Some(options.as_c_str()))?;
        Ok(device.into())
    }

    /// The helper opens the device, mounts, and sends the device through a socket, which is its standard input.
    fn mount_by_helper(&self, at: &Path) -> io::Result<File> {
        let (ours, theirs) = UnixStream::pair()?;
        // Commas and backslashes part options.
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut options =
            format!("fsname={source},subtype={},default_permissions{}", self.kind, self.others());
        if self.read_only {
            options += ",ro";
        }
        let mut command = Command::new(HELPER);
        command.arg("-o").arg(options).arg("--").arg(at).env("_FUSE_COMMFD", "0");
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let at = String::from_utf8_lossy(at.as_os_str().as_bytes()).into_owned();
            io::Error::new(error.kind(), format!("{HELPER}, which mounts {at} for others than root: {error}"))
        })?;
        drop(command);
        let device = receive(&ours);
        let mut said = String::new();
        if let Some(mut errors) = child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let status = child.wait()?;
        match device {
            Ok(device) if status.success() => Ok(device),
            Err(error) if said.is_empty() => Err(error),
            _ => Err(io::Error::other(said.trim().to_owned())),
        }
    }
}

/// A descriptor that comes through a socket.
fn receive(socket: &UnixStream) -> io::Result<File> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    device.map(File::from).ok_or_else(|| io::Error::other(format!("{HELPER} sends no device")))
}
