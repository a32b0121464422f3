//! The calls of Linux.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::super::watch::AT_ONCE;
use super::Event;

/// How much may lie in a socket that the network does not take yet. What goes after it, such as the acknowledgement of what
/// comes the other way, waits for all of that. Over loopback it takes as much of the processors for a byte as without a limit.
const UNSENT: libc::c_int = 512 << 10;

/// A peer that is gone is an error, and no signal, which would end programs that are not written in Rust.
pub(super) const QUIETLY: libc::c_int = libc::MSG_NOSIGNAL;

pub(super) fn tune(tcp: &TcpStream) -> io::Result<()> {
    set(tcp, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT)
}

/// Has the port of a bound socket chosen when it connects, so that it need only be free towards that peer.
pub(super) fn bind_late(tcp: &TcpStream) {
    // Old kernels cannot, and have ports enough.
    let _ = set(tcp, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
}

/// The rules by which systems decide how much may be under way, unless told otherwise: made for long paths. Where the path takes
/// microseconds, BBR believes far too little of it, and paces, and CUBIC ends its start at the first longer round trip, which
/// processors cause, with less under way than a message has bytes.
const FOR_LONG_PATHS: [&[u8]; 2] = [b"bbr", b"cubic"];
/// What is asked for instead: it allows more as long as nothing is lost. The system has it and allows it to all. Over such a path,
/// what CUBIC allows after a loss is no more.
const RENO: &[u8] = b"reno";
/// The longest round trip of a path that is one cable or switch. Over longer ones the system's choice stands.
const SHORT: Duration = Duration::from_millis(1);

pub(super) fn suit_path(tcp: &TcpStream) {
    let is_for_long = |name: Vec<u8>| FOR_LONG_PATHS.iter().any(|long| name.starts_with(long));
    if is_short(tcp) && congestion_control(tcp).is_some_and(is_for_long) {
        // It goes on with what it has if that is refused.
        let _ = set_bytes(tcp, libc::IPPROTO_TCP, libc::TCP_CONGESTION, RENO);
    }
}

fn is_short(tcp: &TcpStream) -> bool {
    info(tcp).is_some_and(|info| info.tcpi_rtt > 0 && Duration::from_micros(info.tcpi_rtt.into()) < SHORT)
}

/// The name of the connection's congestion control.
fn congestion_control(tcp: &TcpStream) -> Option<Vec<u8>> {
    let mut name = [0_u8; 16];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the socket is open, and the system writes at most `len` bytes.
    let told = unsafe {
        libc::getsockopt(tcp.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr().cast(), &mut len)
    };
    (told == 0).then(|| name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

fn set(tcp: &TcpStream, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_bytes(tcp, level, name, &value.to_ne_bytes())
}

fn set_bytes(tcp: &TcpStream, level: libc::c_int, name: libc::c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the socket is open, and the option's bytes are there during the call.
    let set = unsafe {
        let len = value.len() as libc::socklen_t;
        libc::setsockopt(tcp.as_raw_fd(), level, name, value.as_ptr().cast(), len)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the system knows of a connection.
fn info(tcp: &TcpStream) -> Option<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the socket is open, and the system writes at most `len` bytes.
    let told = unsafe {
        libc::getsockopt(tcp.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    // SAFETY: it consists of numbers, all of which are zero or what the system wrote.
    let info = unsafe { info.assume_init() };
    // The last field that is looked at.
    let known = offset_of!(libc::tcp_info, tcpi_rtt) + 4;
    (told == 0 && len as usize >= known).then_some(info)
}

pub(super) fn owed(tcp: &TcpStream) -> Option<Duration> {
    let info = info(tcp)?;
    // Something was sent, or the system has asked whether the peer has room again.
    let owed = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
    owed.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}

/// A set of sockets.
pub(in super::super) struct Poller(OwnedFd);

impl Poller {
    pub(in super::super) fn new() -> io::Result<Poller> {
        Ok(Poller(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a connection. Each change is told once.
    pub(in super::super) fn add_edges(&self, tcp: &TcpStream, token: u64) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        self.add(tcp, token, Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET)
    }

    /// Adds something that is told of as long as it can be read.
    pub(in super::super) fn add_level(&self, source: &impl AsFd, token: u64) -> io::Result<()> {
        self.add(source, token, epoll::EventFlags::IN)
    }

    /// Adds another set, which is told of once after each [`Poller::arm_set`].
    pub(in super::super) fn add_set(&self, set: &Poller, token: u64) -> io::Result<()> {
        self.add(&set.0, token, epoll::EventFlags::ONESHOT)
    }

    /// Has the other set told of once something in it changes, or at once if something has and nobody has asked since.
    pub(in super::super) fn arm_set(&self, set: &Poller, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::modify(&self.0, &set.0, epoll::EventData::new_u64(token), flags)?)
    }

    pub(in super::super) fn remove(&self, tcp: &TcpStream) -> io::Result<()> {
        Ok(epoll::delete(&self.0, tcp)?)
    }

    /// Waits for changes; without a time, for ever.
    pub(in super::super) fn wait(&self, into: &mut [Event], time: Option<Duration>) -> io::Result<usize> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); AT_ONCE];
        let time = time.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let room = into.len().min(AT_ONCE);
        let (events, _) = epoll::wait(&self.0, &mut events[..room], time.as_ref())?;
        for (into, event) in into.iter_mut().zip(&*events) {
            use epoll::EventFlags as Flags;
            let flags = event.flags;
            *into = Event {
                token: event.data.u64(),
                readable: flags.contains(Flags::IN),
                writable: flags.contains(Flags::OUT),
                hung_up: flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR),
            };
        }
        Ok(events.len())
    }

    fn add(&self, source: &impl AsFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, source, epoll::EventData::new_u64(token), flags)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_connection_of_a_short_path_is_not_held_to_the_rules_of_long_ones() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for rule in FOR_LONG_PATHS {
            let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut other, _) = listener.accept().unwrap();
            if let Err(cause) = set_bytes(&one, libc::IPPROTO_TCP, libc::TCP_CONGESTION, rule) {
                eprintln!("SKIPPED: connections with {}: this system has none ({cause})", rule.escape_ascii());
                continue;
            }
            assert_eq!(congestion_control(&one).unwrap(), rule);
            one.write_all(&[1]).unwrap();
            other.read_exact(&mut [0]).unwrap();
            // A machine that stands still for a moment makes a long path of it.
            let expected = if is_short(&one) { RENO } else { rule };
            suit_path(&one);
            assert_eq!(congestion_control(&one).unwrap(), expected);
        }
    }
}
