//! Calls of the system on sockets: the only place of the network where memory is named by bare addresses. All of them come
//! from [`Exposed`](fulmen_memory::Exposed) memory and slices, which keep it for as long as a call takes.
//!
//! What is sent is copied by the system. It can be told to send pages as they are (MSG_ZEROCOPY), and tells in a second queue of
//! the socket when the memory is the program's again, which is when the peer has acknowledged. Over loopback (Linux 6.18, 1 MiB
//! a call) each such notice says that the bytes were copied after all, and the processors' time for a byte is the same. So it
//! is left out until a path is at hand where it helps.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use smallvec::SmallVec;

use super::stream::{MOST_PIECES, Out, Room};

#[cfg_attr(target_os = "linux", path = "socket/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "socket/macos.rs")]
mod system;

pub(super) use system::Poller;

/// A connection on which nothing happens is tested after this time,
const IDLE: Duration = Duration::from_secs(4);
/// and again after each such time,
const TEST_AGAIN: Duration = Duration::from_secs(2);
/// so often, before it is over: 10 s in all.
const TESTS: u32 = 3;

/// What changed at a socket or a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) token: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) hung_up: bool,
}

impl Event {
    pub(super) const BLANK: Event = Event { token: 0, readable: false, writable: false, hung_up: false };
}

type Vectors = SmallVec<[libc::iovec; MOST_PIECES]>;

/// Sends some of `pieces`.
pub(super) fn send(tcp: &TcpStream, pieces: &[Out<'_>]) -> io::Result<usize> {
    let mut vectors = Vectors::new();
    for piece in pieces.iter().take(MOST_PIECES) {
        let (start, len) = match piece {
            Out::Bytes(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
            Out::Memory { memory, at, len } => {
                assert!(at.checked_add(*len).is_some_and(|end| end <= memory.len()), "it lies inside");
                (memory.as_ptr().wrapping_add(*at), *len)
            }
        };
        vectors.push(libc::iovec { iov_base: start.cast(), iov_len: len });
    }
    let flags = libc::MSG_DONTWAIT | system::QUIETLY;
    // SAFETY: the socket is open. The pieces are borrowed for this call: slices, and ranges inside of memory that their handles
    // keep. The system only reads them. Others may write exposed memory meanwhile, to which there are no references.
    until_done(|| unsafe {
        match &vectors[..] {
            // The system looks at less for these, which counts where messages are short.
            [one] => libc::send(tcp.as_raw_fd(), one.iov_base, one.iov_len, flags),
            _ => libc::sendmsg(tcp.as_raw_fd(), &message(&mut vectors), flags),
        }
    })
}

/// Receives into `pieces`. 0 is the end.
pub(super) fn receive(tcp: &TcpStream, pieces: &mut [Room<'_>]) -> io::Result<usize> {
    let mut vectors = Vectors::new();
    for piece in pieces.iter_mut().take(MOST_PIECES) {
        let (start, len) = match piece {
            Room::Bytes(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            Room::Memory { memory, at, len } => {
                assert!(at.checked_add(*len).is_some_and(|end| end <= memory.len()), "it lies inside");
                assert!(memory.region().is_writable(), "the region is mapped read-only");
                (memory.as_ptr().wrapping_add(*at), *len)
            }
        };
        vectors.push(libc::iovec { iov_base: start.cast(), iov_len: len });
    }
    // SAFETY: the socket is open. The pieces are borrowed for this call: slices that are borrowed mutably, and ranges inside of
    // writable memory that their handles keep and to which there are no references. Any bytes are valid there.
    until_done(|| unsafe {
        match &vectors[..] {
            [one] => libc::recv(tcp.as_raw_fd(), one.iov_base, one.iov_len, libc::MSG_DONTWAIT),
            _ => libc::recvmsg(tcp.as_raw_fd(), &mut message(&mut vectors), libc::MSG_DONTWAIT),
        }
    })
}

fn message(vectors: &mut Vectors) -> libc::msghdr {
    // SAFETY: a message without address and control data is all zeros but for its vectors.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len() as _);
    message
}

fn until_done(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sets what every connection has: small messages leave at once, and a peer's host that is gone is noticed. The sizes of
/// buffers are left to the system, which adapts them to the path; 4 MiB, set by hand, took as much of the processors for a byte.
pub(super) fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nonblocking(true)?;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, IDLE)?;
    sockopt::set_tcp_keepintvl(tcp, TEST_AGAIN)?;
    sockopt::set_tcp_keepcnt(tcp, TESTS)?;
    system::tune(tcp)
}

/// Has a connection that has carried something already go by rules that suit its path.
pub(super) fn suit_path(tcp: &TcpStream) {
    system::suit_path(tcp);
}

/// How long ago the peer's host has last answered, if it owes an answer: it was sent something that it has not acknowledged.
/// `None` where the system does not say; there it ends the connection by itself.
pub(super) fn owed(tcp: &TcpStream) -> Option<Duration> {
    system::owed(tcp)
}

/// Connects from `source` to `peer`. The socket never waits.
pub(super) fn dial(peer: SocketAddr, source: Option<SocketAddr>, until: Instant) -> Result<TcpStream, DialError> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tcp: OwnedFd = socket(family, SocketType::STREAM, None).map_err(DialError::socket)?;
    rustix::io::fcntl_setfd(&tcp, rustix::io::FdFlags::CLOEXEC).map_err(DialError::socket)?;
    let tcp = TcpStream::from(tcp);
    tune(&tcp).map_err(DialError::Socket)?;
    if let Some(source) = source {
        system::bind_late(&tcp);
        bind(&tcp, &source).map_err(|error| DialError::Route(error.into()))?;
    }
    match connect(&tcp, &peer) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            let left = until.saturating_duration_since(Instant::now());
            wait(&tcp, false, left).map_err(|_| DialError::TimedOut)?;
            sockopt::socket_error(&tcp).map_err(DialError::socket)?.map_err(DialError::of)?;
        }
        Err(error) => return Err(DialError::of(error)),
    }
    Ok(tcp)
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    Refused,
    Route(io::Error),
    TimedOut,
    Socket(io::Error),
}

impl DialError {
    fn of(error: Errno) -> DialError {
        match error {
            Errno::CONNREFUSED | Errno::CONNRESET => DialError::Refused,
            Errno::TIMEDOUT => DialError::TimedOut,
            error => DialError::Route(error.into()),
        }
    }

    fn socket(error: Errno) -> DialError {
        DialError::Socket(error.into())
    }
}

/// Waits until the socket can be read (or written, or is over): a time-out after `time`.
pub(super) fn wait(tcp: &TcpStream, read: bool, time: Duration) -> io::Result<()> {
    let until = Instant::now() + time;
    let flags = if read { PollFlags::IN } else { PollFlags::OUT };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Longer than any deadline of this crate, and short enough for every system.
        let left = Timespec::try_from(left.min(Duration::from_secs(24 * 3600))).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(tcp, flags)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}
