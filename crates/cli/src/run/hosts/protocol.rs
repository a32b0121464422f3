//! What the launcher and its helper on another host say to each other, over the standard input and output of `fulmen __host`.
//!
//! The helper begins: a mark that no text contains, and its version. This beginning is the same in every version, so that
//! another version can be named. Whatever a login shell prints before the mark is passed over. Frames follow in both
//! directions: the length (u32, little-endian) and a message in postcard. Numbers of signals differ between systems, so they
//! cross as places in a list.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::control::Event;

/// What comes before all else from the helper.
const MARK: [u8; 16] = *b"\0FULMEN-HOST\r\n\x1a\0";
/// The version of what follows.
const PROTOCOL: u32 = 3;
/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The longest version that is read.
const LONGEST_VERSION: usize = 64;
/// Most bytes that a login shell may print before the mark.
pub const MOST_NOISE: usize = 64 << 10;
/// The longest message. Arguments and variables of a program take 2 MiB at most on most systems.
const LONGEST: usize = 8 << 20;

/// Bytes of the ranks' output that one host may send before the launcher has passed them on.
pub const OUTPUT_WINDOW: usize = 1 << 20;
/// Bytes of standard input that the launcher may send before the rank's pipe has taken them.
pub const INPUT_WINDOW: usize = 256 << 10;
/// The longest record that is brought to the launcher, in bytes: less than the longest message.
pub const LONGEST_RECORD: usize = 4 << 20;
/// Most bytes of records that one host brings.
pub const MOST_RECORDS: usize = 64 << 20;

/// What to run on a host.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// The first rank there, by its number in the run.
    pub first: u32,
    /// How many ranks are there.
    pub count: u32,
    /// The working directory.
    pub directory: Vec<u8>,
    /// Whether the program is this one, wherever it is on the host.
    pub own: bool,
    /// The program's name and arguments.
    pub program: Vec<Vec<u8>>,
    /// Variables of the ranks and of the processes that start them.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Variables of the program alone.
    pub program_env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace: u64,
    /// Milliseconds that either side of this conversation may be silent.
    pub silence: u64,
    /// Where ranks write their records, if the user chose it.
    pub trace: Option<Vec<u8>>,
    /// Whether the first rank reads what comes as [`ToHost::Input`].
    pub reads: bool,
    /// The secret of the run, as ranks read it.
    pub secret: Secret,
}

/// The bytes of a word that crosses.
pub fn bytes(word: &OsStr) -> Vec<u8> {
    word.as_bytes().to_vec()
}

/// A secret on its way: it is not shown.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// One of the two output streams of a rank: 0 is standard output, 1 standard error.
pub type Stream = u8;

/// What the launcher says. A rank's process has an `id` of its own each time that it is started.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// What to run; comes once, before all else.
    Task(Task),
    /// Start this rank.
    Start { id: u32, rank: u32 },
    /// Deliver a signal, by its place in the list.
    Signal { id: u32, signal: i32 },
    /// So many bytes of output were passed on.
    Credit(u32),
    /// Nobody reads this stream any more.
    Close { id: u32, stream: Stream },
    /// Standard input for the first rank.
    Input(Vec<u8>),
    /// Its end.
    InputEnd,
    /// A sign of life, with the launcher's time in nanoseconds.
    Beat(u64),
    /// The launcher is about to be stopped: its silence means nothing until it speaks again.
    Pause,
    /// Have the ranks write what they did last.
    Record,
    /// All ranks of the run have ended; whether the run has failed: then the records come, before all else that follows.
    Finish { failed: bool },
}

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The addresses of the connection, as ssh's server tells them; comes once, before all else.
    Greeting { connection: Option<String> },
    /// The task can be begun.
    Ready,
    /// It cannot: an exit code and the reason.
    Refused { code: u8, words: String },
    /// What happened to a rank, by which signal its program had been asked to end before (by its place in the list, or 0), and when by
    /// the helper's clock, in nanoseconds.
    Reported { id: u32, event: Event, asked: i32, at: u64 },
    /// Nothing of the rank's processes is left.
    Gone { id: u32 },
    /// What it wrote.
    Output { id: u32, stream: Stream, bytes: Vec<u8> },
    /// It writes no more.
    End { id: u32, stream: Stream },
    /// So many bytes of input were taken.
    Credit(u32),
    /// The answer to a sign of life: the launcher's time, and the helper's.
    Beat { echo: u64, at: u64 },
    /// The ranks have written their records, or have had time enough.
    Recorded,
    /// A record of a rank of that host: the name of its file, and the whole of it.
    Record { name: String, bytes: Vec<u8> },
    /// There is no further one.
    NoRecords,
}

/// Why what came is not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// No mark.
    #[error("what came is not Fulmen's: it begins with {0:?}")]
    NoMark(String),
    /// Another version.
    #[error("version {version} (protocol {protocol})")]
    Version {
        /// Of the other program.
        version: String,
        /// Of its protocol.
        protocol: u32,
    },
    /// No message.
    #[error("what came is no message of the protocol")]
    Message,
}

/// The helper's beginning.
pub fn hello() -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    bytes.push(VERSION.len() as u8);
    bytes.extend_from_slice(VERSION.as_bytes());
    bytes.extend_from_slice(&PROTOCOL.to_le_bytes());
    bytes
}

/// The version that this program calls itself in messages.
pub fn own_version() -> String {
    format!("version {VERSION} (protocol {PROTOCOL})")
}

/// Appends a message to what is to be sent.
pub fn push(message: &impl Serialize, out: &mut Vec<u8>) {
    let body = postcard::to_stdvec(message).expect("these messages have no form that postcard lacks");
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
}

/// What has come and was not read yet.
#[derive(Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// How many of them were read.
    read: usize,
}

impl Incoming {
    /// Takes what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads the helper's beginning; `None` until it is there. Gives what came before it.
    pub fn hello(&mut self) -> Result<Option<Vec<u8>>, Garbled> {
        let rest = &self.bytes[self.read..];
        let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) else {
            if rest.len() >= MOST_NOISE {
                return Err(Garbled::NoMark(excerpt(rest)));
            }
            return Ok(None);
        };
        let after = &rest[at + MARK.len()..];
        let Some((&len, after)) = after.split_first() else { return Ok(None) };
        let len = usize::from(len);
        if len > LONGEST_VERSION {
            return Err(Garbled::Message);
        }
        let Some((version, after)) = after.split_at_checked(len) else { return Ok(None) };
        let Some(protocol) = after.first_chunk() else { return Ok(None) };
        let (version, protocol) = (String::from_utf8_lossy(version).into_owned(), u32::from_le_bytes(*protocol));
        if version != VERSION || protocol != PROTOCOL {
            return Err(Garbled::Version { version, protocol });
        }
        let noise = rest[..at].to_vec();
        self.read += at + MARK.len() + 1 + len + 4;
        Ok(Some(noise))
    }

    /// Reads the next message; `None` until it is whole.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Garbled> {
        let rest = &self.bytes[self.read..];
        let Some((len, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > LONGEST {
            return Err(Garbled::Message);
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let (message, more) = postcard::take_from_bytes(body).map_err(|_| Garbled::Message)?;
        if !more.is_empty() {
            return Err(Garbled::Message);
        }
        self.read += 4 + len;
        Ok(Some(message))
    }

    /// What came and was not understood, for a message.
    pub fn excerpt(&self) -> String {
        excerpt(&self.bytes[self.read..])
    }
}

/// The first line of what came, shortened.
pub fn excerpt(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    String::from_utf8_lossy(line).trim().chars().take(60).collect()
}

/// The signals that have a number here, in the order that counts between hosts.
const SIGNALS: [Signal; 24] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::ILL,
    Signal::TRAP,
    Signal::ABORT,
    Signal::BUS,
    Signal::FPE,
    Signal::KILL,
    Signal::USR1,
    Signal::SEGV,
    Signal::USR2,
    Signal::PIPE,
    Signal::ALARM,
    Signal::TERM,
    Signal::CHILD,
    Signal::CONT,
    Signal::STOP,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::SYS,
];

/// A signal's number here as it crosses: its place from 1, or what it is here, negative.
pub fn signal_to_wire(signal: i32) -> i32 {
    let place = SIGNALS.iter().position(|known| known.as_raw() == signal);
    place.map_or(-signal, |place| place as i32 + 1)
}

/// The number that a signal has here.
pub fn signal_from_wire(wire: i32) -> i32 {
    let known = usize::try_from(wire).ok().and_then(|place| SIGNALS.get(place.checked_sub(1)?));
    known.map_or(wire.checked_abs().unwrap_or(0), |signal| signal.as_raw())
}

/// An event with the numbers of this system, as it crosses; and back, with `signal` the other way round.
pub fn event_with(event: Event, signal: impl Fn(i32) -> i32) -> Event {
    match event {
        Event::Signaled(number) => Event::Signaled(signal(number)),
        Event::Lost(number) => Event::Lost(signal(number)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> (Vec<ToLauncher>, Vec<u8>) {
        let said = vec![
            ToLauncher::Greeting { connection: Some("192.0.2.1 40000 192.0.2.2 22".into()) },
            ToLauncher::Ready,
            ToLauncher::Output { id: 3, stream: 1, bytes: b"hello\n".to_vec() },
            ToLauncher::Reported { id: 3, event: Event::Exited(0), asked: 15, at: 77 },
            ToLauncher::Gone { id: 3 },
        ];
        let mut bytes = hello();
        said.iter().for_each(|message| push(message, &mut bytes));
        (said, bytes)
    }

    #[test]
    fn noise_before_the_mark_is_passed_over_at_any_cut() {
        let (said, bytes) = messages();
        let whole = [b"Welcome!\n\0FULMEN-HOS\0", &bytes[..]].concat();
        for cut in 1..whole.len() {
            let mut incoming = Incoming::default();
            let (mut noise, mut seen) = (None, Vec::new());
            for part in whole.chunks(cut) {
                incoming.push(part);
                if noise.is_none() {
                    noise = incoming.hello().unwrap();
                }
                while noise.is_some()
                    && let Some(message) = incoming.next::<ToLauncher>().unwrap()
                {
                    seen.push(message);
                }
            }
            assert_eq!(noise.as_deref(), Some(&whole[..whole.len() - bytes.len()]), "cut every {cut} bytes");
            assert_eq!(format!("{seen:?}"), format!("{said:?}"), "cut every {cut} bytes");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut other = MARK.to_vec();
        other.extend_from_slice(b"\x059.9.9\x07\0\0\0");
        let mut incoming = Incoming::default();
        incoming.push(&other);
        let error = incoming.hello().unwrap_err();
        assert_eq!(error, Garbled::Version { version: "9.9.9".into(), protocol: 7 });
        assert_eq!(error.to_string(), "version 9.9.9 (protocol 7)");
    }

    #[test]
    fn endless_noise_is_given_up() {
        let mut incoming = Incoming::default();
        incoming.push(&b"no such thing\n".repeat(MOST_NOISE / 14 + 1));
        assert_eq!(incoming.hello().unwrap_err(), Garbled::NoMark("no such thing".into()));
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_kept() {
        let mut incoming = Incoming::default();
        incoming.push(&(LONGEST as u32 + 1).to_le_bytes());
        assert_eq!(incoming.next::<ToHost>().unwrap_err(), Garbled::Message);
    }

    #[test]
    fn signals_keep_their_meaning() {
        for signal in 1..=64 {
            assert_eq!(signal_from_wire(signal_to_wire(signal)), signal);
        }
        assert_eq!(signal_to_wire(Signal::KILL.as_raw()), 9);
        assert_eq!(signal_from_wire(i32::MIN), 0);
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret("0123".into())), "Secret(..)");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200), short in any::<bool>()) {
            let mut incoming = Incoming::default();
            if short {
                incoming.push(&(bytes.len() as u32).to_le_bytes());
            }
            incoming.push(&bytes);
            let _ = incoming.hello();
            while let Ok(Some(_)) = incoming.next::<ToLauncher>() {}
            let _ = incoming.next::<ToHost>();
        }
    }
}
