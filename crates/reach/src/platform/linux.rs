//! What a node needs of Linux.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

pub(crate) const SEND: SendFlags = SendFlags::NOSIGNAL;
pub(crate) const RECV: RecvFlags = RecvFlags::CMSG_CLOEXEC;

/// What tells that the other end is gone, beside the hang-up that is always told.
pub(crate) const HANG_UP: PollFlags = PollFlags::RDHUP;

/// A listening socket, whose abstract name goes with its last descriptor.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
}

impl Listener {
    pub(crate) fn open(name: &[u8; 16]) -> io::Result<Listener> {
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(text(name))?)?;
        socket.set_nonblocking(true)?;
        Ok(Listener { socket })
    }

    /// The same for a name that others may have: `AddrInUse` then.
    pub(crate) fn open_fixed(name: &[u8; 16]) -> io::Result<Listener> {
        Listener::open(name)
    }

    pub(crate) fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

/// A non-blocking connection: `AGAIN` while the listener's queue is full.
pub(crate) fn connect(name: &[u8; 16]) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(text(name).as_bytes())?)?;
    Ok(socket)
}

/// The user at the other end.
pub(crate) fn peer_user(socket: impl AsFd) -> Result<u32, Errno> {
    Ok(credentials(socket)?.uid)
}

/// The process at the other end; none if this one has no number for it, since it is in another namespace.
pub(crate) fn peer_process(socket: impl AsFd) -> Option<u32> {
    credentials(socket).ok().and_then(|peer| u32::try_from(peer.pid).ok()).filter(|pid| *pid != 0)
}

/// What becomes readable when the process at the other end has ended, though a child that it forked may keep the
/// connection open; none if the system cannot tell. `SRCH`: it has ended already.
pub(crate) fn process_end(socket: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let Some(process) = peer_process(socket).and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return Ok(None) };
    match rustix::process::pidfd_open(process, PidfdFlags::empty()) {
        Ok(end) => Ok(Some(end)),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        // An old system, one that forbids it, or no descriptor left: the connection's end tells most of it.
        Err(_) => Ok(None),
    }
}

/// Who listened at the other end. By hand, since a process of another namespace has the number 0.
fn credentials(socket: impl AsFd) -> Result<libc::ucred, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and both results are places of this function, of the size that is told.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast::<libc::c_void>(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(peer) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// Makes a received descriptor stay in this process. `CMSG_CLOEXEC` did it already.
pub(crate) fn keep_private(_: &OwnedFd) {}

/// The boot.
pub(crate) fn machine_identity() -> io::Result<Vec<u8>> {
    std::fs::read("/proc/sys/kernel/random/boot_id")
}

/// The boot and the network namespace, which is where abstract names live.
pub(crate) fn host_identity() -> io::Result<Vec<u8>> {
    let mut identity = machine_identity()?;
    let namespace = std::fs::metadata("/proc/self/ns/net")?;
    identity.extend_from_slice(&namespace.ino().to_le_bytes());
    Ok(identity)
}

fn text(name: &[u8; 16]) -> String {
    name.iter().fold(String::from("fulmen-"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all text");
        text
    })
}
