//! What the launcher and the supervisor of a rank say to each other, over one Unix socket per rank.
//!
//! The launcher hands over the rank's descriptors once, and then sends one byte per signal that is to be delivered; SIGKILL
//! means "end everything now", and so does the end of the stream, which comes when the launcher dies, whatever killed it. The
//! supervisor sends [`Report`]s; its stream ends when nothing of the rank is left.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Most descriptors that are handed over at once.
const MOST: usize = 2;

/// Sends `fds` with one byte.
pub fn hand_over(socket: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "at most {MOST} descriptors");
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())
    })?;
    Ok(())
}

/// Receives what [`hand_over`] sent: exactly `N` descriptors, close-on-exec.
pub fn receive<const N: usize>(socket: &UnixStream) -> io::Result<[OwnedFd; N]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    for fd in &fds {
        // Not every system can do this while receiving. The receiver has one thread, so nothing is forked in between.
        fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    }
    fds.try_into().map_err(|fds: Vec<OwnedFd>| {
        io::Error::other(format!("{} of {N} descriptors arrived; is the limit of open files reached?", fds.len()))
    })
}

/// Takes the socket that this process was given as its standard input, and puts `instead` there.
pub fn take_stdin(instead: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(instead)?;
    Ok(UnixStream::from(socket))
}

/// The monotonic clock, which all processes of a host share.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// What happened to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The program exited with this code.
    Exited(i32),
    /// The program was ended by this signal.
    Signaled(i32),
    /// No process could be made for the program: this system error.
    NoProcess(i32),
    /// The program could not be executed: this system error.
    NotExecuted(i32),
    /// So many processes of the rank would not die.
    Left(i32),
    /// Its supervisor was killed by this signal; only the helper on another host says so.
    Lost(i32),
    /// Its host is lost.
    HostLost,
}

/// An event and when it was seen ([`now`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What happened.
    pub event: Event,
    /// The last signal by which the program had been asked to end before, or 0.
    pub asked: i32,
    /// When the supervisor saw it.
    pub at: Duration,
}

/// Bytes of a report on the socket.
const REPORT: usize = 20;

impl Report {
    /// A report of something that was seen just now, of a program that nobody had asked to end.
    pub fn now(event: Event) -> Report {
        Report { event, asked: 0, at: now() }
    }

    /// The report as it crosses the socket: kind, value, signal, nanoseconds.
    pub fn to_bytes(self) -> [u8; REPORT] {
        let (kind, value): (u32, i32) = match self.event {
            Event::Exited(code) => (1, code),
            Event::Signaled(signal) => (2, signal),
            Event::NoProcess(errno) => (3, errno),
            Event::NotExecuted(errno) => (4, errno),
            Event::Left(count) => (5, count),
            Event::Lost(signal) => (6, signal),
            Event::HostLost => (7, 0),
        };
        let nanos = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; REPORT];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&value.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.asked.to_ne_bytes());
        bytes[12..].copy_from_slice(&nanos.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; REPORT]) -> Option<Report> {
        let [k0, k1, k2, k3, v0, v1, v2, v3, a0, a1, a2, a3, nanos @ ..] = bytes;
        let value = i32::from_ne_bytes([v0, v1, v2, v3]);
        let event = match u32::from_ne_bytes([k0, k1, k2, k3]) {
            1 => Event::Exited(value),
            2 => Event::Signaled(value),
            3 => Event::NoProcess(value),
            4 => Event::NotExecuted(value),
            5 => Event::Left(value),
            6 => Event::Lost(value),
            7 => Event::HostLost,
            _ => return None,
        };
        let (asked, at) = (i32::from_ne_bytes([a0, a1, a2, a3]), Duration::from_nanos(u64::from_ne_bytes(nanos)));
        Some(Report { event, asked, at })
    }
}

/// The reports of one rank as they arrive.
#[derive(Default)]
pub struct Reports {
    bytes: Vec<u8>,
}

impl Reports {
    /// Reads once from a readable socket. `false` when the supervisor's stream has ended.
    pub fn read(&mut self, mut socket: &UnixStream) -> bool {
        let mut buffer = [0; 4 * REPORT];
        match socket.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.bytes.extend_from_slice(&buffer[..count]);
                true
            }
            // A supervisor that was killed with bytes unread resets the stream: that is its end.
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }

    /// The next whole report. What is no report is skipped.
    pub fn next(&mut self) -> Option<Report> {
        while let Some(bytes) = self.bytes.first_chunk::<REPORT>().copied() {
            self.bytes.drain(..REPORT);
            if let Some(report) = Report::from_bytes(bytes) {
                return Some(report);
            }
        }
        None
    }
}

/// Whether an error of a system call is one of a limit on processes or descriptors, and how to raise it.
pub fn limit_of(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => Some("the limit of processes is reached (`ulimit -u` shows and raises it)"),
        Some(Errno::MFILE) => Some("the limit of open files is reached (`ulimit -n` shows and raises it)"),
        Some(Errno::NFILE) => Some("the machine's limit of open files is reached (sysctl fs.file-max)"),
        Some(Errno::NOMEM) => Some("there is not enough memory for another process"),
        _ => None,
    }
}

/// Sends a descriptor-free byte, ignoring a receiver that is gone: its end is noticed where its stream is read.
pub fn send_byte(socket: &UnixStream, byte: u8) {
    // A socket buffer holds thousands of single bytes; one that is full belongs to a supervisor that was stopped, and a
    // launcher that waited for it would stop too.
    let _ = rustix::net::send(socket.as_fd(), &[byte], SendFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn reports_survive_any_cut() {
        let events = [
            Event::Exited(3),
            Event::Signaled(9),
            Event::NoProcess(11),
            Event::NotExecuted(2),
            Event::Left(1),
            Event::Lost(9),
            Event::HostLost,
        ];
        let sent: Vec<Report> =
            (0..).zip(events).map(|(asked, event)| Report { asked, ..Report::now(event) }).collect();
        let bytes: Vec<u8> = sent.iter().flat_map(|report| report.to_bytes()).collect();
        for cut in 1..REPORT * 2 {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let (mut reports, mut seen) = (Reports::default(), Vec::new());
            for chunk in bytes.chunks(cut) {
                ours.write_all(chunk).unwrap();
                assert!(reports.read(&theirs));
                seen.extend(std::iter::from_fn(|| reports.next()));
            }
            drop(ours);
            assert!(!reports.read(&theirs));
            assert_eq!(seen, sent, "cut every {cut} bytes");
        }
    }

    #[test]
    fn descriptors_arrive_close_on_exec() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        hand_over(&ours, &[file.as_fd(), file.as_fd()]).unwrap();
        let fds: [OwnedFd; 2] = receive(&theirs).unwrap();
        for fd in &fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
        }
        drop(ours);
        assert!(receive::<1>(&theirs).is_err());
    }

    #[test]
    fn limits_name_the_way_out() {
        for (errno, way) in [(Errno::AGAIN, "ulimit -u"), (Errno::MFILE, "ulimit -n"), (Errno::NFILE, "file-max")] {
            assert!(limit_of(&io::Error::from(errno)).unwrap().contains(way));
        }
        assert!(limit_of(&io::Error::from(Errno::NOENT)).is_none());
    }
}
