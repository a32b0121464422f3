//! Who belongs to a world, and connections that nobody else can read, change or join.
//!
//! There is one rule: **whoever holds the world's secret belongs to it**. From the secret's 32 bytes every process derives the same
//! [`Authority`], a pair of keys. With it, each process issues a certificate for a key of its own, made when it starts and
//! never written down: its [`Identity`]. Both ends of a [`Sealed`] connection show theirs and check the other's: mutual TLS
//! 1.3, nothing older, no resumption, no early data. The secret itself never travels, and neither does anything from which
//! it could be found.
//!
//! A *cluster* outlives its processes, and its secret stays with those of its nodes that may admit others. A node has a [`NodeKey`],
//! which it keeps and never shows, and a certificate, which the authority has made for it. A newcomer has neither: it knows the
//! authority by its [`Pin`], and is let in by whatever else it can say ([`Welcome`]).
//!
//! What is spoken over a connection is a [`Protocol`], a name with a version in it. It is part of the handshake, so that
//! an end of another version is found before its first byte is read.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//! use std::time::{Duration, Instant};
//! use fulmen_trust::{Authority, Protocol};
//!
//! const GREETINGS: Protocol = Protocol(b"greetings/1");
//! const WAIT: Duration = Duration::from_secs(60);
//! let secret = [7; 32];
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! // Another process, as a rule.
//! let other = std::thread::spawn(move || {
//!     let one = Authority::from_secret(&secret).unwrap().identity("one").unwrap();
//!     let stream = TcpStream::connect(address).unwrap();
//!     let sealed = one.connect(stream, GREETINGS, Instant::now() + WAIT).unwrap();
//!     sealed.write(b"hello", WAIT).unwrap();
//!     sealed.peer().to_owned()
//! });
//! let zero = Authority::from_secret(&secret)?.identity("zero")?;
//! let (stream, _) = listener.accept()?;
//! let sealed = zero.accept(stream, GREETINGS, Instant::now() + WAIT)?;
//! let mut word = [0; 5];
//! assert_eq!((sealed.read(&mut word, WAIT)?, &word), (5, b"hello"));
//! assert_eq!(sealed.peer(), "one");
//! assert_eq!(other.join().unwrap(), "zero");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod authority;
mod channel;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod name;
mod node;
mod opening;
mod sealed;
mod socket;

pub use authority::{Authority, MAX_NAME};
pub use error::TrustError;
pub use identity::{Identity, Protocol, server_name};
pub use node::{NodeKey, Pin, PublicKey, Welcome, fingerprint};
pub use opening::{Opening, Progress};
pub use sealed::Sealed;
