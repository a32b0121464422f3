//! A handshake that nobody waits for.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use rustls::Connection;

use crate::channel::Channel;
use crate::error::TrustError;
use crate::name;
use crate::sealed::Sealed;
use crate::socket::wait;

/// A connection in its handshake. It never waits: whoever has it watches the [socket](Opening::tcp) and lets it
/// [go on](Opening::advance), for as long as it cares to.
pub struct Opening {
    tcp: TcpStream,
    /// The error is told when it goes on.
    channel: Result<Channel, TrustError>,
}

/// How far a handshake came.
#[derive(Debug)]
pub enum Progress {
    /// It is over: both ends know each other. Bytes of the other end may have come with it, which the socket does not tell
    /// of, so the connection should be read now.
    Open(Sealed),
    /// It goes on when the socket can be read, or [written](Opening::wants_to_write).
    Waits(Opening),
    /// It failed. The other end was told, if it could be; to close the socket before it has read that could take it back.
    Failed(TrustError, TcpStream),
}

impl Opening {
    pub(crate) fn new(tcp: TcpStream, tls: Result<Connection, TrustError>, protocol: &'static [u8]) -> Opening {
        let quick = tcp.set_nonblocking(true).and_then(|()| tcp.set_nodelay(true));
        let channel = quick.map_err(TrustError::from).and(tls).map(|tls| Channel::new(tls, protocol));
        Opening { tcp, channel }
    }

    /// Does what can be done now.
    #[must_use]
    pub fn advance(self) -> Progress {
        let Opening { tcp, channel } = self;
        let mut channel = match channel {
            Ok(channel) => channel,
            Err(error) => return Progress::Failed(error, tcp),
        };
        match channel.shake_hands(&tcp) {
            Ok(true) => {
                let certificates = channel.tls().peer_certificates();
                let name = certificates.and_then(|chain| name::of(chain.first()?)).unwrap_or_default();
                Progress::Open(Sealed::new(tcp, channel, name))
            }
            Ok(false) => Progress::Waits(Opening { tcp, channel: Ok(channel) }),
            Err(error) => Progress::Failed(error, tcp),
        }
    }

    /// Whether it waits for the socket to take bytes.
    #[must_use]
    pub fn wants_to_write(&self) -> bool {
        self.channel.as_ref().is_ok_and(|channel| channel.tls().wants_write())
    }

    /// The socket, to watch it.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Waits for the end, until `end`.
    pub(crate) fn finish(mut self, end: Instant) -> Result<Sealed, TrustError> {
        loop {
            self = match self.advance() {
                Progress::Open(sealed) => return Ok(sealed),
                Progress::Waits(opening) => opening,
                Progress::Failed(error, _) => return Err(error),
            };
            match wait(&self.tcp, true, self.wants_to_write(), end) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(TrustError::TimedOut),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}
