//! Event channels: queues with a descriptor that a program waits on.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::endpoint::Endpoint;
use super::ffi::rdma_cm_event_type;
use super::frame::Frame;
use crate::pollable;

/// Something that happened to an endpoint, before a program takes it.
#[derive(Debug)]
pub(super) struct Raised {
    /// To whom; for a request to connect, who listens.
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) event: rdma_cm_event_type,
    /// 0, a negative error number, or why the other end refused.
    pub(super) status: i32,
    /// What came with it.
    pub(super) frame: Option<Box<Frame>>,
    /// The new endpoint of a request to connect.
    pub(super) newcomer: Option<Arc<Endpoint>>,
}

impl Raised {
    pub(super) fn new(endpoint: &Arc<Endpoint>, event: rdma_cm_event_type, status: i32) -> Raised {
        Raised { endpoint: endpoint.clone(), event, status, frame: None, newcomer: None }
    }

    fn concerns(&self, endpoint: &Arc<Endpoint>) -> bool {
        Arc::ptr_eq(&self.endpoint, endpoint)
    }
}

/// A queue of events. The program's descriptor can be read as long as events wait.
///
/// It is one end of a pair of sockets rather than an eventfd: a byte that became needless can be taken out without
/// waiting, whatever the program told its descriptor about that, and beside another thread that waits in it.
#[derive(Debug)]
pub(super) struct Channel {
    program: OwnedFd,
    ours: OwnedFd,
    /// Holds a byte in `program` while it is not empty.
    queue: Mutex<VecDeque<Raised>>,
}

impl Channel {
    pub(super) fn new() -> Result<Channel, Errno> {
        let (program, ours) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Channel { program, ours, queue: Mutex::default() })
    }

    /// What the program waits on.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    pub(super) fn push(&self, raised: Raised) {
        let mut queue = self.lock();
        if queue.is_empty() {
            self.signal();
        }
        queue.push_back(raised);
    }

    /// The next event, if there is one.
    pub(super) fn take(&self) -> Option<Raised> {
        let mut queue = self.lock();
        let raised = queue.pop_front()?;
        if queue.is_empty() {
            self.quiet();
        }
        raised.endpoint.count_reported();
        Some(raised)
    }

    /// Waits until there is an event, unless the program made its descriptor non-blocking. Another thread may take it.
    ///
    /// # Errors
    /// `AGAIN` if there is none and the descriptor is non-blocking, `INTR` if a signal came.
    pub(super) fn wait(&self) -> Result<(), Errno> {
        match pollable::wait(self.program.as_raw_fd()) {
            None => Ok(()),
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Takes out everything that concerns an endpoint, so that it is never reported from here.
    pub(super) fn withdraw(&self, endpoint: &Arc<Endpoint>) -> Vec<Raised> {
        let mut queue = self.lock();
        let (out, rest): (Vec<_>, Vec<_>) = queue.drain(..).partition(|raised| raised.concerns(endpoint));
        queue.extend(rest);
        if queue.is_empty() {
            self.quiet();
        }
        out
    }

    /// Whether something that concerns this endpoint waits.
    pub(super) fn has(&self, endpoint: &Arc<Endpoint>) -> bool {
        self.lock().iter().any(|raised| raised.concerns(endpoint))
    }

    fn signal(&self) {
        // No room means that bytes are there already.
        let _ = rustix::net::send(&self.ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the byte out.
    fn quiet(&self) {
        while matches!(rustix::net::recv(&self.program, &mut [0u8; 16], RecvFlags::DONTWAIT), Ok((_, 1..))) {}
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Raised>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::super::ffi::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED};
    use super::super::port::PortSpace;
    use super::*;

    fn readable(channel: &Channel) -> bool {
        let mut fds = [PollFd::new(&channel.program, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    fn endpoint() -> Arc<Endpoint> {
        Endpoint::new(PortSpace::Tcp, None)
    }

    #[test]
    fn a_channel_can_be_read_as_long_as_events_wait() {
        let channel = Channel::new().unwrap();
        rustix::io::ioctl_fionbio(&channel.program, true).unwrap();
        let (one, other) = (endpoint(), endpoint());
        assert!(channel.take().is_none());
        assert_eq!(channel.wait(), Err(Errno::AGAIN));
        channel.push(Raised::new(&one, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        channel.push(Raised::new(&other, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        channel.push(Raised::new(&one, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        assert!(readable(&channel));
        assert_eq!(channel.take().unwrap().event, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert!(readable(&channel), "two are left");
        assert_eq!(channel.withdraw(&one).len(), 1);
        assert!(readable(&channel) && channel.has(&other) && !channel.has(&one));
        assert_eq!(channel.withdraw(&other).len(), 1);
        assert!(!readable(&channel));
        assert_eq!(channel.wait(), Err(Errno::AGAIN));
        channel.push(Raised::new(&one, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        channel.take().unwrap();
        assert!(!readable(&channel));
    }

    #[test]
    fn a_thread_waits_until_there_is_an_event() {
        let channel = Arc::new(Channel::new().unwrap());
        let there = channel.clone();
        let waits = std::thread::spawn(move || {
            loop {
                there.wait().unwrap();
                if let Some(raised) = there.take() {
                    return raised.event;
                }
            }
        });
        let one = endpoint();
        // Withdrawn events may wake the thread, but do not end its wait.
        channel.push(Raised::new(&one, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        if !channel.withdraw(&one).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
            channel.push(Raised::new(&one, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        }
        assert_eq!(waits.join().unwrap(), RDMA_CM_EVENT_ADDR_RESOLVED);
    }
}
