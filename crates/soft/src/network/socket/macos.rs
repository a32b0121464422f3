//! The calls of macOS.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::kqueue::{self, EventFilter, EventFlags};
use rustix::net::sockopt;

use super::super::watch::AT_ONCE;
use super::Event;

/// After how many seconds without an acknowledgement of what was sent a connection is over (`netinet/tcp.h`). A peer that
/// answers and has no room does not count.
const TCP_RXT_CONNDROPTIME: libc::c_int = 0x80;
const DROP_AFTER: libc::c_int = 10;

/// Signals are switched off for the whole socket, in [`tune`].
pub(super) const QUIETLY: libc::c_int = 0;

pub(super) fn tune(tcp: &TcpStream) -> io::Result<()> {
    // A peer that is gone is an error, and no signal, which would end programs that are not written in Rust.
    sockopt::set_socket_nosigpipe(tcp, true)?;
    let seconds = DROP_AFTER;
    // SAFETY: the socket is open, and the option is a number, which is there during the call.
    let set = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(tcp.as_raw_fd(), libc::IPPROTO_TCP, TCP_RXT_CONNDROPTIME, (&raw const seconds).cast(), len)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn bind_late(_tcp: &TcpStream) {}

pub(super) fn suit_path(_tcp: &TcpStream) {}

pub(super) fn owed(_tcp: &TcpStream) -> Option<Duration> {
    None
}

/// A set of sockets.
pub(in super::super) struct Poller(OwnedFd);

impl Poller {
    pub(in super::super) fn new() -> io::Result<Poller> {
        let set = kqueue::kqueue()?;
        rustix::io::fcntl_setfd(&set, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Poller(set))
    }

    /// Adds a connection. Each change is told once.
    pub(in super::super) fn add_edges(&self, tcp: &TcpStream, token: u64) -> io::Result<()> {
        let (fd, flags) = (tcp.as_raw_fd(), EventFlags::ADD | EventFlags::CLEAR);
        self.change(EventFilter::Read(fd), flags, token)?;
        self.change(EventFilter::Write(fd), flags, token)
    }

    /// Adds something that is told of as long as it can be read.
    pub(in super::super) fn add_level(&self, source: &impl AsFd, token: u64) -> io::Result<()> {
        self.change(EventFilter::Read(number(source)), EventFlags::ADD, token)
    }

    /// Adds another set, which is told of once after each [`Poller::arm_set`].
    pub(in super::super) fn add_set(&self, _set: &Poller, _token: u64) -> io::Result<()> {
        // What is told of once has to be added anew each time.
        Ok(())
    }

    /// Has the other set told of once something in it changes, or at once if something has and nobody has asked since.
    pub(in super::super) fn arm_set(&self, set: &Poller, token: u64) -> io::Result<()> {
        self.change(EventFilter::Read(number(&set.0)), EventFlags::ADD | EventFlags::ONESHOT, token)
    }

    pub(in super::super) fn remove(&self, tcp: &TcpStream) -> io::Result<()> {
        self.change(EventFilter::Read(tcp.as_raw_fd()), EventFlags::DELETE, 0)?;
        self.change(EventFilter::Write(tcp.as_raw_fd()), EventFlags::DELETE, 0)
    }

    /// Waits for changes; without a time, for ever.
    pub(in super::super) fn wait(&self, into: &mut [Event], time: Option<Duration>) -> io::Result<usize> {
        let mut events = [const { MaybeUninit::<kqueue::Event>::uninit() }; AT_ONCE];
        let room = into.len().min(AT_ONCE);
        // SAFETY: nothing is added by this call.
        let (events, _) = unsafe { kqueue::kevent(&self.0, &[], &mut events[..room], time)? };
        for (into, event) in into.iter_mut().zip(&*events) {
            let ended = event.flags().intersects(EventFlags::EOF | EventFlags::ERROR);
            *into = Event {
                token: event.udata().addr() as u64,
                readable: matches!(event.filter(), EventFilter::Read(_)),
                writable: matches!(event.filter(), EventFilter::Write(_)),
                hung_up: ended,
            };
        }
        Ok(events.len())
    }

    fn change(&self, filter: EventFilter, flags: EventFlags, token: u64) -> io::Result<()> {
        let change = kqueue::Event::new(filter, flags, std::ptr::without_provenance_mut(token as usize));
        let mut none: [MaybeUninit<kqueue::Event>; 0] = [];
        // SAFETY: the socket or set is open during the call, and the system forgets it when it is closed.
        unsafe { kqueue::kevent(&self.0, &[change], &mut none[..], Some(Duration::ZERO))? };
        Ok(())
    }
}

fn number(source: &impl AsFd) -> RawFd {
    source.as_fd().as_raw_fd()
}
