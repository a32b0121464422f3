//! Two ends to test with.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_trust::{Authority, Identity, Protocol, Sealed, TrustError};

/// A wait that does not pass in a test that succeeds.
pub const LONG: Duration = Duration::from_secs(60);
pub const PROTOCOL: Protocol = Protocol(b"fulmen-test/1");

pub fn end() -> Instant {
    Instant::now() + LONG
}

pub fn identity(secret: u8, name: &str) -> Identity {
    Authority::from_secret(&[secret; 32]).unwrap().identity(name).unwrap()
}

/// Two ends of a connection: the one that opened it and the one that accepted it.
pub fn plain() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for stream in [&one, &other] {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
    }
    (one, other)
}

/// What comes of a handshake at both ends: of the one that connects, then of the one that accepts.
pub fn meet(
    connects: (&Identity, Protocol),
    accepts: (&Identity, Protocol),
) -> (Result<Sealed, TrustError>, Result<Sealed, TrustError>) {
    let (one, other) = plain();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| accepts.0.accept(other, accepts.1, end()));
        (connects.0.connect(one, connects.1, end()), accepting.join().unwrap())
    })
}

pub fn sealed() -> (Sealed, Sealed) {
    let (one, other) = meet((&identity(1, "one"), PROTOCOL), (&identity(1, "other"), PROTOCOL));
    (one.unwrap(), other.unwrap())
}

pub fn write_all(sealed: &Sealed, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        bytes = &bytes[sealed.write(bytes, LONG).unwrap()..];
    }
}

pub fn read_exact(sealed: &Sealed, into: &mut [u8]) {
    let mut filled = 0;
    while filled < into.len() {
        let count = sealed.read(&mut into[filled..], LONG).unwrap();
        assert_ne!(count, 0, "it ended after {filled} bytes");
        filled += count;
    }
}
