//! The socket below: bytes as they are, never waiting, but where it is said.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// What is written to it raises no signal, whoever the process belongs to: the library also lives in programs that are not
/// Rust's, which a SIGPIPE would end.
pub(crate) struct Quiet<'a>(pub &'a TcpStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// The standard library asks for no signal in `write` alone.
    #[cfg(target_os = "linux")]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
        Ok(sendmsg(self.0, pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    /// On macOS a socket has that as a property, which the standard library sets.
    #[cfg(not(target_os = "linux"))]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What has come, up to the length of `into`; 0 is the end of the stream.
pub(crate) fn receive(mut stream: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Waits until the socket can be read or written, or has an error to tell.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at `end`.
pub(crate) fn wait(stream: &TcpStream, read: bool, write: bool, end: Instant) -> io::Result<()> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, read);
    flags.set(PollFlags::OUT, write);
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
    match poll(&mut [PollFd::new(stream, flags)], Some(&left)) {
        // Whether that was the end is seen when nothing has come by then.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
