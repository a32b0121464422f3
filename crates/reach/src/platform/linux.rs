//! What a node needs of Linux.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

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
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Makes a received descriptor stay in this process. `CMSG_CLOEXEC` did it already.
pub(crate) fn keep_private(_: &OwnedFd) {}

/// The boot and the network namespace, which is where abstract names live.
pub(crate) fn host_identity() -> io::Result<Vec<u8>> {
    let mut identity = std::fs::read("/proc/sys/kernel/random/boot_id")?;
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
