//! Asking a coordinator which version of the protocol it speaks, without a secret and without taking a seat.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::greeting::{GO_ON, Hello, MAGIC, excerpt, read_exact};

/// Why no version came back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Whoever answers is no coordinator.
    #[error("whoever answers speaks another protocol (it began with {first:?}): look which program has this port")]
    Foreign {
        /// Its first bytes.
        first: String,
    },
    /// Nothing came, or the connection broke.
    #[error("no greeting came ({0}): look which program has this port")]
    Io(io::Error),
}

/// The version of the protocol that the coordinator at the other end speaks; [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) is this build's. The
/// connection is of no use afterwards.
///
/// # Errors
/// [`AskError`].
pub fn version_of(stream: &mut TcpStream, timeout: Duration) -> Result<u16, AskError> {
    let deadline = Instant::now() + timeout;
    let hello = Hello::ours(GO_ON).to_bytes();
    stream.set_write_timeout(Some(timeout)).and_then(|()| stream.write_all(&hello)).map_err(AskError::Io)?;
    // A coordinator of another version begins its answer like any other; the rest is not looked at.
    let (mut magic, mut version) = ([0; MAGIC.len()], [0; 2]);
    read_exact(stream, &mut magic, deadline).map_err(AskError::Io)?;
    if magic != *MAGIC {
        return Err(AskError::Foreign { first: excerpt(&magic) });
    }
    read_exact(stream, &mut version, deadline).map_err(AskError::Io)?;
    Ok(u16::from_le_bytes(version))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::super::{Coordinator, Options, PROTOCOL_VERSION, Secret};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_coordinator_tells_its_version_to_strangers() {
        let address = "127.0.0.1:0".parse().unwrap();
        let coordinator = Coordinator::bind(address, 2, Secret::generate().unwrap(), Options::default()).unwrap();
        let serving = coordinator.serve().unwrap();
        let mut stream = TcpStream::connect(serving.local_addr()).unwrap();
        assert_eq!(version_of(&mut stream, LIMIT).unwrap(), PROTOCOL_VERSION);
    }

    #[test]
    fn another_protocol_is_told_from_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
            // The other end reads before this one closes.
            io::Read::read_to_end(&mut stream, &mut Vec::new()).unwrap();
        });
        let mut stream = TcpStream::connect(address).unwrap();
        let error = version_of(&mut stream, LIMIT).unwrap_err();
        drop(stream);
        // The rest of the greeting may have been refused by then.
        let _ = server.join();
        assert!(matches!(&error, AskError::Foreign { first } if first == "HTTP"), "{error}");
    }
}
