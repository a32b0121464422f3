//! What the environment of a process says about its rank.
//!
//! | variable | holds |
//! |---|---|
//! | `FULMEN_RANK` | this process's rank, from 0 |
//! | `FULMEN_SIZE` | how many ranks there are |
//! | `FULMEN_COORDINATOR` | where they meet, `ip:port` on loopback |
//! | `FULMEN_SECRET_FD` | an inherited descriptor to read the world's secret from |
//!
//! Either all four are set, or none is: then the process is a world of one. The descriptor is a pipe or a memory file that
//! holds 64 lower-case hexadecimal digits and at most a newline after them; so the secret is in no argument and in no
//! variable, which other processes could read.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bootstrap::{JoinConfig, JoinError, MAX_RANKS, Secret, Session};

const RANK: &str = "FULMEN_RANK";
const SIZE: &str = "FULMEN_SIZE";
const COORDINATOR: &str = "FULMEN_COORDINATOR";
const SECRET_FD: &str = "FULMEN_SECRET_FD";

/// How long the secret may take to come out of a pipe.
const SECRET_WAIT: Duration = Duration::from_secs(5);
/// The digits and a newline.
const SECRET_LEN: usize = 65;

/// How this process was launched.
#[derive(Debug, Clone)]
pub enum Launch {
    /// As a world of one.
    Alone,
    /// As one rank of a world.
    Rank {
        /// Its rank, below `size`.
        rank: u32,
        /// How many ranks there are.
        size: u32,
        /// Where they meet.
        coordinator: SocketAddr,
        /// What they share.
        secret: Secret,
    },
}

/// Why the environment says nothing sensible about this process's rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Some of the variables are set and some are not.
    #[error("{set} is set but {missing} is not: start the program with `fulmen run`, or unset {set} to run it alone")]
    Incomplete {
        /// A variable that is set.
        set: &'static str,
        /// A variable that is not.
        missing: &'static str,
    },
    /// A variable's value is not what it must be.
    #[error("{name}={value} is not {expected}: start the program with `fulmen run`, or correct {name}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value, escaped.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The rank is not below the size.
    #[error("FULMEN_RANK={rank} is outside a world of FULMEN_SIZE={size}: ranks go from 0 to {}", .size - 1)]
    RankOutside {
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// The descriptor does not exist in this process.
    #[error("FULMEN_SECRET_FD={fd} is not open here: pass the descriptor on to the program (do not close it on exec)")]
    SecretClosed {
        /// The descriptor.
        fd: u32,
    },
    /// The descriptor cannot be read.
    #[error("FULMEN_SECRET_FD={fd} cannot be read ({cause}): it must be the reading end of a pipe or a memory file")]
    SecretUnreadable {
        /// The descriptor.
        fd: u32,
        /// What the system said.
        cause: String,
    },
    /// Nothing came out of the descriptor.
    #[error("FULMEN_SECRET_FD={fd} gave no whole secret within {wait:?}: write 64 hexadecimal digits into it before the program starts", wait = SECRET_WAIT)]
    SecretLate {
        /// The descriptor.
        fd: u32,
    },
    /// The descriptor holds something else, or was read before.
    #[error(
        "FULMEN_SECRET_FD={fd} does not hold 64 lower-case hexadecimal digits: give it the world's secret (a pipe can be read only once)"
    )]
    SecretMalformed {
        /// The descriptor.
        fd: u32,
    },
}

impl Launch {
    /// Reads the environment of this process, and the secret from its descriptor: that is waited for at most 5 s. A pipe can
    /// be read only once, so a process calls this once.
    pub fn from_env() -> Result<Launch, LaunchError> {
        Launch::from_variables(|name| std::env::var_os(name))
    }

    /// Joins the world that the process was launched for; see [`Session::join`].
    pub fn join(&self, deadline: Duration) -> Result<Session, JoinError> {
        match *self {
            Launch::Alone => Ok(Session::alone()),
            Launch::Rank { rank, size, coordinator, ref secret } => {
                Session::join(&JoinConfig { coordinator, rank, size, secret: secret.clone(), deadline })
            }
        }
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Launch, LaunchError> {
        let names = [RANK, SIZE, COORDINATOR, SECRET_FD];
        let values = names.map(&variable);
        let [Some(rank), Some(size), Some(coordinator), Some(fd)] = &values else {
            let at = |wanted: bool| names.into_iter().zip(&values).find(|(_, value)| value.is_some() == wanted);
            return match (at(true), at(false)) {
                (Some((set, _)), Some((missing, _))) => Err(LaunchError::Incomplete { set, missing }),
                _ => Ok(Launch::Alone),
            };
        };
        let rank = parse(RANK, rank, "a number from 0", number)?;
        let size = parse(SIZE, size, "a number from 1 to 4096", |text| {
            number(text).filter(|size| (1..=MAX_RANKS).contains(size))
        })?;
        if rank >= size {
            return Err(LaunchError::RankOutside { rank, size });
        }
        let coordinator =
            parse(COORDINATOR, coordinator, "a loopback address with a port, like 127.0.0.1:7000", |text| {
                text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback() && address.port() != 0)
            })?;
        let fd = parse(SECRET_FD, fd, "the number of a descriptor", |text| {
            number(text).filter(|fd| *fd <= i32::MAX as u32)
        })?;
        Ok(Launch::Rank { rank, size, coordinator, secret: read_secret(fd, SECRET_WAIT)? })
    }
}

fn parse<T>(
    name: &'static str,
    value: &OsString,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, LaunchError> {
    let malformed =
        || LaunchError::Malformed { name, value: value.to_string_lossy().escape_debug().collect(), expected };
    value.to_str().and_then(read).ok_or_else(malformed)
}

/// Digits alone: `u32`'s own parser would take a sign.
fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn read_secret(fd: u32, wait: Duration) -> Result<Secret, LaunchError> {
    let unreadable =
        |error: Errno| LaunchError::SecretUnreadable { fd, cause: std::io::Error::from(error).to_string() };
    // Opening the descriptor by its path makes one that this process owns, and one that never blocks.
    let directory = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(format!("{directory}/{fd}"), flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::BADF => LaunchError::SecretClosed { fd },
        other => unreadable(other),
    })?;

    let end = crate::clock::after(wait);
    let mut bytes = [0; SECRET_LEN + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(&file, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // A writer that keeps its end open may have said all there is to say.
            Err(Errno::AGAIN) if filled >= SECRET_LEN - 1 => break,
            Err(Errno::AGAIN) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(LaunchError::SecretLate { fd });
                }
                let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
                match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&left)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(unreadable(error)),
                }
            }
            Err(error) => return Err(unreadable(error)),
        }
    }
    let text = std::str::from_utf8(&bytes[..filled]).ok();
    let digits = text.map(|text| text.strip_suffix('\n').unwrap_or(text));
    digits.and_then(|digits| Secret::from_hex(digits).ok()).ok_or(LaunchError::SecretMalformed { fd })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;

    const HEX: &str = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef";

    fn launch(variables: &[(&str, &str)]) -> Result<Launch, LaunchError> {
        Launch::from_variables(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    /// A pipe that holds `content`, its writing end closed.
    fn pipe(content: &str) -> OwnedFd {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(content.as_bytes()).unwrap();
        reader.into()
    }

    fn read_from(fd: &OwnedFd) -> Result<Secret, LaunchError> {
        read_secret(fd.as_raw_fd() as u32, Duration::from_secs(60))
    }

    #[test]
    fn nothing_set_is_a_world_of_one() {
        assert!(matches!(launch(&[]), Ok(Launch::Alone)));
        let session = Launch::Alone.join(Duration::from_secs(60)).unwrap();
        assert_eq!((session.rank(), session.size()), (0, 1));
    }

    #[test]
    fn everything_set_is_a_rank() {
        let secret = pipe(HEX);
        let fd = secret.as_raw_fd().to_string();
        let all = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, &fd)];
        let Launch::Rank { rank, size, coordinator, secret } = launch(&all).unwrap() else { panic!("alone") };
        assert_eq!((rank, size, coordinator), (1, 4, "127.0.0.1:7000".parse().unwrap()));
        assert_eq!(secret.to_hex(), HEX);
    }

    #[test]
    fn every_half_set_combination_names_what_is_set_and_what_is_missing() {
        let all = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, "0")];
        for set in 1..15usize {
            let chosen: Vec<_> = (0..4).filter(|at| set >> at & 1 == 1).map(|at| all[at]).collect();
            let error = launch(&chosen).unwrap_err();
            let LaunchError::Incomplete { set, missing } = &error else { panic!("{error:?}") };
            assert!(chosen.iter().any(|(name, _)| name == set), "{error}");
            assert!(
                all.iter().any(|(name, _)| name == missing) && !chosen.iter().any(|(name, _)| name == missing),
                "{error}"
            );
        }
    }

    #[test]
    fn every_malformed_value_names_its_variable() {
        let good = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, "0")];
        let bad: [(usize, &[&str]); 4] = [
            (0, &["", "x", "-1", "+1", "1.0", " 1", "4294967296"]),
            (1, &["", "0", "4097", "four", "-4"]),
            (
                2,
                &[
                    "",
                    "7000",
                    "localhost:7000",
                    "127.0.0.1",
                    "127.0.0.1:0",
                    "127.0.0.1:70000",
                    "192.0.2.1:7000",
                    "[::]:7000",
                ],
            ),
            (3, &["", "-1", "stdin", "2147483648", "99999999999"]),
        ];
        for (at, values) in bad {
            for value in values {
                let mut all = good;
                all[at].1 = value;
                let error = launch(&all).unwrap_err();
                assert!(
                    matches!(&error, LaunchError::Malformed { name, .. } if *name == good[at].0),
                    "{value}: {error}"
                );
                assert!(!error.to_string().contains('\n'));
            }
        }
        let mut all = good;
        all[0].1 = "4";
        assert_eq!(launch(&all).unwrap_err(), LaunchError::RankOutside { rank: 4, size: 4 });
    }

    #[test]
    fn a_value_that_is_no_text_is_malformed() {
        use std::os::unix::ffi::OsStringExt;
        let error = Launch::from_variables(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert!(matches!(error, LaunchError::Malformed { name: RANK, .. }));
    }

    #[test]
    fn the_secret_may_end_with_a_newline_or_with_an_open_pipe() {
        assert_eq!(read_from(&pipe(HEX)).unwrap().to_hex(), HEX);
        assert_eq!(read_from(&pipe(&format!("{HEX}\n"))).unwrap().to_hex(), HEX);
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(HEX.as_bytes()).unwrap();
        assert_eq!(read_from(&reader.into()).unwrap().to_hex(), HEX);
        drop(writer);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_memory_file_is_read_from_its_beginning() {
        let memory = rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, HEX.as_bytes()).unwrap();
        assert_eq!(read_from(&memory).unwrap().to_hex(), HEX);
        assert_eq!(read_from(&memory).unwrap().to_hex(), HEX);
    }

    #[test]
    fn every_bad_descriptor_has_an_error_of_its_own() {
        let long = "0".repeat(1000);
        for content in ["", "short", &HEX[1..], &HEX.to_uppercase(), &format!("{HEX}0"), &format!("{HEX}\n\n"), &long] {
            let fd = pipe(content);
            assert_eq!(read_from(&fd).unwrap_err(), LaunchError::SecretMalformed { fd: fd.as_raw_fd() as u32 });
        }
        // No process has that many descriptors.
        let fd = i32::MAX as u32;
        assert_eq!(read_secret(fd, Duration::ZERO).unwrap_err(), LaunchError::SecretClosed { fd });
        let directory: OwnedFd = std::fs::File::open("/").unwrap().into();
        assert!(matches!(read_from(&directory).unwrap_err(), LaunchError::SecretUnreadable { .. }));
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd() as u32;
        assert_eq!(read_secret(fd, Duration::from_millis(1)).unwrap_err(), LaunchError::SecretLate { fd });
        drop(writer);
    }
}
