//! Ports: sockets whose names say who waits where.
//!
//! The kernel keeps the names, in the network namespace, and frees one when its last descriptor is closed, however the
//! process ends. Others can take a name as well: what comes from another user is refused at both ends.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::ffi::{RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_port_space};
use super::frame::{FRAME, Frame, FrameError};

/// Connections that wait for [`accept`], which follows at once: the program's own limit is counted elsewhere.
const BACKLOG: i32 = 4096;
/// The ports that are given to who does not name one, as Linux has them.
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;

/// What kind of service a port number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortSpace {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Datagrams among IPoIB's own, which are of the same kind here.
    Ipoib,
}

impl PortSpace {
    /// `None` for a number that is none, or `RDMA_PS_IB`, whose addresses are not the internet's.
    pub(super) fn of(number: rdma_port_space) -> Option<PortSpace> {
        match number {
            RDMA_PS_TCP => Some(PortSpace::Tcp),
            RDMA_PS_UDP => Some(PortSpace::Udp),
            RDMA_PS_IPOIB => Some(PortSpace::Ipoib),
            _ => None,
        }
    }

    fn number(self) -> rdma_port_space {
        match self {
            PortSpace::Tcp => RDMA_PS_TCP,
            PortSpace::Udp => RDMA_PS_UDP,
            PortSpace::Ipoib => RDMA_PS_IPOIB,
        }
    }

    pub(super) fn is_datagram(self) -> bool {
        self != PortSpace::Tcp
    }

    fn name(self, port: u16) -> Result<SocketAddrUnix, Errno> {
        let user = rustix::process::geteuid().as_raw();
        SocketAddrUnix::new_abstract_name(format!("fulmen-cm-{user}-{:04x}-{port}", self.number()).as_bytes())
    }
}

/// A socket without a name.
pub(super) fn nameless() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Takes a port: `ADDRINUSE` if somebody has it.
pub(super) fn bind(space: PortSpace, port: u16) -> Result<OwnedFd, Errno> {
    let socket = nameless()?;
    rustix::net::bind(&socket, &space.name(port)?)?;
    Ok(socket)
}

/// Takes some port that is free: `ADDRNOTAVAIL` if none is.
pub(super) fn bind_any(space: PortSpace, random: u32) -> Result<(OwnedFd, u16), Errno> {
    let socket = nameless()?;
    let count = u32::from(EPHEMERAL.end - EPHEMERAL.start);
    for step in 0..count {
        let port = EPHEMERAL.start + u16::try_from((random.wrapping_add(step)) % count).expect("fewer than 65536");
        match rustix::net::bind(&socket, &space.name(port)?) {
            Ok(()) => return Ok((socket, port)),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::ADDRNOTAVAIL)
}

/// Lets others connect.
pub(super) fn listen(socket: impl AsFd) -> Result<(), Errno> {
    rustix::net::listen(socket, BACKLOG)
}

/// The next one that connected; `AGAIN` if there is none.
pub(super) fn accept(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Connects to a port: `CONNREFUSED` if nobody listens there, `AGAIN` if too many connect just now, `PERM` if who
/// listens is another user.
pub(super) fn connect(socket: impl AsFd, space: PortSpace, port: u16) -> Result<(), Errno> {
    rustix::net::connect(&socket, &space.name(port)?)?;
    if is_own(&socket)? { Ok(()) } else { Err(Errno::PERM) }
}

/// Whether the other end is a process of the same user.
pub(super) fn is_own(socket: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid == rustix::process::geteuid())
}

/// Sends a frame. The room for packets is never used up by a protocol of three or four, so that no room is an error.
pub(super) fn send(socket: impl AsFd, frame: &Frame) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::send(socket, &frame.encode(), flags)?;
    if sent == FRAME { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// What a connection gave.
#[derive(Debug)]
pub(super) enum Received {
    Frame(Box<Frame>),
    Bad(FrameError),
    /// Nothing more for now.
    Nothing,
    /// The other end is gone.
    End,
}

pub(super) fn receive(socket: impl AsFd) -> Received {
    // One byte more than a frame has tells a longer packet from a frame.
    let mut bytes = [0; FRAME + 1];
    loop {
        return match rustix::net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT) {
            // Packets are never empty: `decode` would refuse one.
            Ok((_, 0)) => Received::End,
            Ok((_, len)) => match Frame::decode(&bytes[..len]) {
                Ok(frame) => Received::Frame(Box::new(frame)),
                Err(error) => Received::Bad(error),
            },
            // A reset is told before what came ahead of it, and told once.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::End,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Kind;
    use super::*;

    #[test]
    fn a_port_is_taken_once_and_free_when_dropped() {
        let (first, port) = bind_any(PortSpace::Tcp, 12345).unwrap();
        assert!(EPHEMERAL.contains(&port));
        assert_eq!(bind(PortSpace::Tcp, port).unwrap_err(), Errno::ADDRINUSE);
        let other_space = bind(PortSpace::Udp, port).unwrap();
        drop(first);
        bind(PortSpace::Tcp, port).unwrap();
        drop(other_space);
    }

    #[test]
    fn frames_pass_and_a_long_packet_is_bad() {
        let (server, port) = bind_any(PortSpace::Tcp, 999).unwrap();
        let client = nameless().unwrap();
        assert_eq!(connect(&client, PortSpace::Tcp, port).unwrap_err(), Errno::CONNREFUSED, "nobody listens yet");
        listen(&server).unwrap();
        connect(&client, PortSpace::Tcp, port).unwrap();
        let there = accept(&server).unwrap();
        assert_eq!(accept(&server).unwrap_err(), Errno::AGAIN);
        assert!(is_own(&there).unwrap());
        assert!(matches!(receive(&there), Received::Nothing));
        send(&client, &Frame::new(Kind::Ready)).unwrap();
        rustix::net::send(&client, &[0; FRAME + 8], SendFlags::empty()).unwrap();
        assert!(matches!(receive(&there), Received::Frame(frame) if frame.kind == Kind::Ready));
        assert!(matches!(receive(&there), Received::Bad(FrameError::Length(_))));
        // The answer that nobody read makes the end a reset, which must not hide the last word.
        send(&there, &Frame::new(Kind::Reply)).unwrap();
        send(&client, &Frame::new(Kind::Disconnect)).unwrap();
        drop(client);
        assert!(matches!(receive(&there), Received::Frame(frame) if frame.kind == Kind::Disconnect));
        assert!(matches!(receive(&there), Received::End));
        assert_eq!(send(&there, &Frame::new(Kind::Ready)).unwrap_err(), Errno::PIPE);
    }
}
