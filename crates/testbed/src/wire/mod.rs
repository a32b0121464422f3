//! The wire: a thread that moves frames between TAP devices.

mod line;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use self::line::{HEADER, Line, Nanos};
use crate::{Link, sys};

/// How many frames are taken from one device before the others have their turn.
const BURST: usize = 64;
/// The longest frame of a TAP device, and more.
const LONGEST: usize = 1 << 17;
/// What epoll says when the thread was woken, and not by a device.
const WOKEN: u64 = u64::MAX;

/// The hardware address of a port: it names the net and the port in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mac([u8; 6]);

impl Mac {
    pub(crate) fn new(net: u8, port: u8) -> Mac {
        Mac([0x02, 0x46, 0, net, 0, port])
    }

    fn port(bytes: &[u8]) -> usize {
        bytes[5].into()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

/// The wire's thread, which ends with this.
#[derive(Debug)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    epoll: OwnedFd,
    wake: OwnedFd,
    begin: Instant,
}

#[derive(Default)]
struct State {
    nets: Vec<Switch>,
    is_over: bool,
}

struct Switch {
    ports: Vec<Port>,
    /// From each port to each, row by row; those from a port to itself stay empty.
    lines: Vec<Line>,
}

struct Port {
    tap: OwnedFd,
    mac: Mac,
    is_plugged: bool,
}

/// The devices of one net on the wire.
pub(crate) struct Taps {
    shared: Arc<Shared>,
    net: usize,
}

impl Wire {
    pub(crate) fn start() -> io::Result<Wire> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)?;
        let shared = Arc::new(Shared { state: Mutex::default(), epoll, wake, begin: Instant::now() });
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("wire".into()).spawn(move || of_thread.work())?;
        Ok(Wire { shared, thread: Some(thread) })
    }

    pub(crate) fn add(&self, taps: Vec<(OwnedFd, Mac)>, link: Link) -> io::Result<Taps> {
        let mut state = self.shared.lock();
        let net = state.nets.len();
        for (port, (tap, _)) in taps.iter().enumerate() {
            let place = (net as u64) << 32 | port as u64;
            epoll::add(&self.shared.epoll, tap, epoll::EventData::new_u64(place), epoll::EventFlags::IN)?;
        }
        let directions = 0..(taps.len() * taps.len()) as u64;
        let lines = directions.map(|direction| Line::new(link, direction)).collect();
        let ports = taps.into_iter().map(|(tap, mac)| Port { tap, mac, is_plugged: true }).collect();
        state.nets.push(Switch { ports, lines });
        Ok(Taps { shared: self.shared.clone(), net })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake();
        // If it panicked, it has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Taps {
    /// With each line between two ports.
    pub(crate) fn all_lines(&self, mut work: impl FnMut(usize, usize, &mut Line)) {
        let mut state = self.shared.lock();
        let switch = &mut state.nets[self.net];
        let ports = switch.ports.len();
        switch.lines.iter_mut().enumerate().for_each(|(at, line)| work(at / ports, at % ports, line));
        self.shared.wake();
    }

    pub(crate) fn line<T>(&self, from: usize, to: usize, work: impl FnOnce(&mut Line) -> T) -> T {
        let mut state = self.shared.lock();
        let switch = &mut state.nets[self.net];
        let ports = switch.ports.len();
        let done = work(&mut switch.lines[from * ports + to]);
        self.shared.wake();
        done
    }

    /// Has this end of a cable plugged in or not.
    pub(crate) fn plug(&self, at: usize, is_there: bool) -> io::Result<()> {
        let mut state = self.shared.lock();
        let switch = &mut state.nets[self.net];
        let port = &mut switch.ports[at];
        port.is_plugged = is_there;
        sys::set_carrier(&port.tap, is_there)?;
        if !is_there {
            let ports = switch.ports.len();
            (0..ports).for_each(|other| {
                switch.lines[at * ports + other].cut();
                switch.lines[other * ports + at].cut();
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Taps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Taps(of net {})", self.net)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} nets)", self.nets.len())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // An error says that it is woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn now(&self) -> Nanos {
        self.begin.elapsed().as_nanos() as Nanos
    }

    fn work(&self) {
        // Delays are some milliseconds; the kernel would add 50 µs to each.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut events = Vec::with_capacity(64);
        let mut buffer = vec![0; LONGEST];
        let mut next: Option<Nanos> = None;
        loop {
            let wait = next.map(|next| timespec(next.saturating_sub(self.now())));
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("the wire's thread cannot wait: {error}"),
            }
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    WOKEN => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    place => {
                        state.nets[(place >> 32) as usize].receive(place as u32 as usize, &mut buffer, || self.now())
                    }
                }
            }
            next = state.nets.iter_mut().filter_map(|switch| switch.deliver(|| self.now())).min();
        }
    }
}

impl Switch {
    /// Takes what a host has sent.
    fn receive(&mut self, from: usize, buffer: &mut [u8], now: impl Fn() -> Nanos) {
        for _ in 0..BURST {
            // An interface that is down has nothing, and says so by an error.
            let Ok(len) = rustix::io::read(&self.ports[from].tap, &mut *buffer) else { return };
            let Some(frame) = buffer.get(..len).filter(|frame| frame.len() >= HEADER) else { continue };
            let ports = self.ports.len();
            let to = Mac::port(frame);
            if frame[0] & 1 == 1 {
                (0..ports).filter(|to| *to != from).for_each(|to| self.cross(from, to, frame, now()));
            } else if to < ports && to != from && self.ports[to].mac.0 == frame[..6] {
                self.cross(from, to, frame, now());
            }
        }
    }

    fn cross(&mut self, from: usize, to: usize, frame: &[u8], now: Nanos) {
        let line = &mut self.lines[from * self.ports.len() + to];
        match self.ports[from].is_plugged && self.ports[to].is_plugged {
            true => line.enter(frame, now),
            false => line.pulled(),
        }
    }

    /// Hands out what is due, and says when the next is.
    fn deliver(&mut self, now: impl Fn() -> Nanos) -> Option<Nanos> {
        let ports = self.ports.len();
        let mut next: Option<Nanos> = None;
        for (at, line) in self.lines.iter_mut().enumerate() {
            while let Some(due) = line.due() {
                let now = now();
                if due > now {
                    next = Some(next.map_or(due, |next| next.min(due)));
                    break;
                }
                if let Some(frame) = line.take(now)
                    && rustix::io::write(&self.ports[at % ports].tap, &frame).is_err()
                {
                    line.refuse();
                }
            }
        }
        next
    }
}

fn timespec(nanos: Nanos) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ }
}
