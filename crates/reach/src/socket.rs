//! Frames over a non-blocking socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage};

use crate::platform;
use crate::wire::FRAME;

/// Sends a whole frame, and a descriptor with it; `AGAIN` if there is no room.
pub(crate) fn send(socket: impl AsFd, frame: &[u8; FRAME], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "there is space for one descriptor");
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, platform::SEND)?;
    // The system takes frames this small whole. If ever it does not, the stream is of no use any more.
    if sent == FRAME { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// Collects the frames that come from a socket.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: [u8; FRAME],
    filled: usize,
    descriptor: Option<OwnedFd>,
}

/// What a socket gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// A whole frame, and the descriptor that came with it.
    Frame([u8; FRAME], Option<OwnedFd>),
    /// Nothing more for now.
    Nothing,
    /// The other end hung up.
    End,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { bytes: [0; FRAME], filled: 0, descriptor: None }
    }

    /// Reads no further than to the end of the current frame, so that a descriptor belongs to the frame that it came
    /// with.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> Received {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut self.bytes[self.filled..])];
            let received = match rustix::net::recvmsg(&socket, into, &mut ancillary, platform::RECV) {
                Ok(received) => received.bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Received::Nothing,
                // A reset: the other end died with unread bytes.
                Err(_) => return Received::End,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    for descriptor in descriptors {
                        platform::keep_private(&descriptor);
                        // Of several, the last stays and the others are closed: the protocol knows one.
                        self.descriptor = Some(descriptor);
                    }
                }
            }
            if received == 0 {
                return Received::End;
            }
            self.filled += received;
            if self.filled == FRAME {
                self.filled = 0;
                return Received::Frame(self.bytes, self.descriptor.take());
            }
        }
    }
}
