//! A queue behind a descriptor, which programs poll and set to non-blocking as they do with those of a driver.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// How the byte is sent: at once, and without a signal if the program closed the descriptor.
#[cfg(target_os = "linux")]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// How the byte is sent: at once. The socket is told to give no signal.
#[cfg(not(target_os = "linux"))]
const SEND: SendFlags = SendFlags::DONTWAIT;

/// A queue whose descriptor is readable while it holds something.
pub(crate) struct Pollable<T> {
    queue: Mutex<VecDeque<T>>,
    /// What the program polls: it holds one byte while the queue is not empty.
    reader: OwnedFd,
    writer: OwnedFd,
}

impl<T> Pollable<T> {
    pub(crate) fn new() -> io::Result<Pollable<T>> {
        #[cfg(target_os = "linux")]
        let flags = SocketFlags::CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = SocketFlags::empty();
        let (reader, writer) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        #[cfg(not(target_os = "linux"))]
        for fd in [&reader, &writer] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
            rustix::net::sockopt::set_socket_nosigpipe(fd, true)?;
        }
        Ok(Pollable { queue: Mutex::default(), reader, writer })
    }

    /// The descriptor that programs poll.
    pub(crate) fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to it. Never waits.
    pub(crate) fn push(&self, item: T) {
        let mut queue = self.queue();
        if queue.is_empty() {
            // One byte fits into a socket that holds none.
            let _ = rustix::net::send(&self.writer, &[1], SEND);
        }
        queue.push_back(item);
    }

    /// The oldest item, if there is one. [`wait`] waits for it.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut queue = self.queue();
        let item = queue.pop_front()?;
        self.settle(&queue);
        Some(item)
    }

    /// Drops the items of which `keep` says so, and tells how many.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) -> usize {
        let mut queue = self.queue();
        let before = queue.len();
        queue.retain(keep);
        let dropped = before - queue.len();
        if dropped > 0 {
            self.settle(&queue);
        }
        dropped
    }

    /// Takes the byte out of the socket once the queue is empty.
    fn settle(&self, queue: &VecDeque<T>) {
        if queue.is_empty() {
            let _ = rustix::net::recv(self.reader.as_fd(), &mut [0_u8; 1][..], RecvFlags::DONTWAIT);
        }
    }
}

// The C library's own call is where a thread can be cancelled. One that is leaves through its caller.
unsafe extern "C-unwind" {
    fn recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn pause() -> c_int;
}

/// Waits until a descriptor of a queue can be read, unless the program made it non-blocking; then, or if a signal came, the
/// number of the error. If the queue goes meanwhile it waits on, as in a driver's file that is closed: programs leave
/// threads there when they end, and take an error for the failure of the whole program.
pub(crate) fn wait(fd: RawFd) -> Option<c_int> {
    let mut byte = 0_u8;
    // The byte stays where it is: whoever takes the last item takes it.
    // SAFETY: there is room for one byte. If the thread is cancelled, nothing here has a destructor.
    match unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        1.. => None,
        // Both ends were closed.
        0 => {
            // SAFETY: a call without arguments. If the thread is cancelled, nothing here has a destructor.
            unsafe { pause() };
            Some(libc::EINTR)
        }
        _ => Some(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(queue: &Pollable<u32>) -> bool {
        let mut fds = [PollFd::new(&queue.reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_something_waits() {
        let queue = Pollable::new().unwrap();
        assert!(!readable(&queue));
        for item in 0..1000 {
            queue.push(item);
        }
        assert!(readable(&queue));
        assert_eq!(queue.pop().unwrap(), 0);
        assert!(readable(&queue));
        assert_eq!(queue.retain(|item| *item == 7), 998);
        assert!(readable(&queue));
        assert_eq!(queue.pop().unwrap(), 7);
        assert!(!readable(&queue));
    }

    #[test]
    fn a_descriptor_that_does_not_block_says_so() {
        let queue = Pollable::<u32>::new().unwrap();
        rustix::fs::fcntl_setfl(&queue.reader, rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!((queue.pop(), wait(queue.fd())), (None, Some(libc::EAGAIN)));
        queue.push(3);
        assert_eq!(queue.pop().unwrap(), 3);
    }

    #[test]
    fn one_who_waits_gets_what_comes() {
        let queue = Pollable::new().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                assert_eq!(wait(queue.fd()), None);
                queue.pop().unwrap()
            });
            queue.push(5);
            assert_eq!(waiter.join().unwrap(), 5);
        });
    }
}
