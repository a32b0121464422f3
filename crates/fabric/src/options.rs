//! What a program can choose.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

/// The deadline of an operation where nothing else was asked for.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the pool where nothing else was asked for. The system gives pages when they are first touched.
pub const DEFAULT_POOL: usize = 1 << 30;

/// How long a peer may acknowledge nothing where nothing else was asked for.
pub const DEFAULT_SILENCE: Duration = Duration::from_secs(10);

/// How a fabric is set up. Ranks must agree on `windows`, `profile`, `flow` and `verify_data`; [`Fabric::start`](crate::Fabric::start)
/// checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricOptions {
    /// The deadline of operations whose caller names none: 60 s, or `FULMEN_TIMEOUT` in seconds.
    pub timeout: Duration,
    /// Bytes of the pool from which [`Fabric::alloc`](crate::Fabric::alloc) takes: 1 GiB, or `FULMEN_POOL`.
    pub pool: usize,
    /// Whether ranks of one host map one another's memory. Those of several hosts need [devices](crate::Providers::devices) beside it.
    pub windows: bool,
    /// On which host this rank is: what the system and `FULMEN_HOST_ID` say, if nothing is given. Ranks that give the same must be
    /// on one machine.
    pub host: Option<[u8; 16]>,
    /// The profile of the devices over which links run, if they run over devices.
    pub profile: Option<String>,
    /// How much a link carries at once.
    pub flow: Flow,
    /// How long a rank that leaves waits for sends whose handles were dropped before they ended, and for what it sent over
    /// devices that promise nothing to be acknowledged: 2 s. As long, one that [regroups](crate::Fabric::regroup) while nobody
    /// is lost waits for what it sent to arrive.
    pub farewell: Duration,
    /// Whether everything that goes to another rank carries a checksum, and is refused if it is wrong: no, or yes if
    /// `FULMEN_VERIFY_DATA` is `1`. Frames over devices that promise nothing are always checked. Nothing is sent, and so
    /// nothing checked, where a rank works on memory that it maps (windows). A large message whose memory is written while
    /// it is sent ends with [`FabricError::Changed`](crate::FabricError::Changed) then, at both ranks.
    pub verify_data: bool,
    /// How long a rank may acknowledge nothing, over a device that promises nothing, before the link to it is broken: 10 s,
    /// or `FULMEN_SILENCE` in seconds, as long as the coordinator waits for it. A process that is stopped for longer is lost.
    pub silence: Duration,
    /// How long a device's port that is not active yet, or has no address yet, is waited for when a fabric starts: 10 s, and no
    /// longer than half of `timeout`.
    pub port_wait: Duration,
    /// How a thread waits; `None` chooses by the number of ranks and of processors.
    pub poll: Option<PollPolicy>,
    /// Whether the last operations are recorded ([`recorder`](crate::recorder)): yes, unless `FULMEN_RECORD` is 0.
    pub record: bool,
    /// Where records are written when something fails and on SIGUSR1: `FULMEN_TRACE_DIR`, or else nowhere.
    pub trace_dir: Option<PathBuf>,
}

/// How much a link carries at once. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Flow {
    /// Bytes of the longest frame, header included: 256 to 65,536. Over shared memory, messages of more than 2 KiB go in frames of up to
    /// 256 KiB, in cells of memory that both ranks share, if that is longer and there is room for it.
    pub frame: u32,
    /// Frames that may be under way to a rank before it has made room again: 16 to 1,024. Of those that are longer than [`Flow::frame`], as many
    /// as there are cells (7 each way among up to sixteen ranks, fewer among more).
    pub credits: u16,
    /// The shortest message, in bytes, out of registered memory that is moved with one copy (rendezvous) instead of in
    /// frames.
    pub rendezvous: u64,
    /// The same where a connection of the kernel's carries the link (TCP): the bytes are copied into it anyway, and to agree on a
    /// move takes two more ways there and back.
    pub rendezvous_tcp: u64,
    /// Bytes of messages that a rank keeps for receives that have not been posted. Beyond it, the sender is held.
    pub unexpected: u64,
}

impl Default for Flow {
    /// Frames of 8 KiB (with the ring's head word), 60 credits, rendezvous from 16 KiB on, or 256 KiB over TCP, 4 MiB of unexpected messages.
    /// A ring then has 512 KiB.
    fn default() -> Flow {
        Flow { frame: (8 << 10) - 8, credits: 60, rendezvous: 16 << 10, rendezvous_tcp: 256 << 10, unexpected: 4 << 20 }
    }
}

/// How a thread waits before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollPolicy {
    /// Empty polls in a row.
    pub spins: u32,
    /// Times that it then offers its processor to others, with a few polls after each.
    pub yields: u32,
}

impl PollPolicy {
    /// For ranks that have a processor each: spins for some tens of microseconds.
    pub const BUSY: PollPolicy = PollPolicy { spins: 4096, yields: 0 };
    /// For more ranks than processors: whoever is waited for needs this one.
    pub const POLITE: PollPolicy = PollPolicy { spins: 1, yields: 32 };

    /// The policy for ranks that share processors, or do not.
    #[must_use]
    pub fn of(crowded: bool) -> PollPolicy {
        if crowded { PollPolicy::POLITE } else { PollPolicy::BUSY }
    }
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions {
            timeout: DEFAULT_TIMEOUT,
            pool: DEFAULT_POOL,
            windows: true,
            host: None,
            profile: None,
            flow: Flow::default(),
            farewell: Duration::from_secs(2),
            verify_data: false,
            silence: DEFAULT_SILENCE,
            port_wait: Duration::from_secs(10),
            poll: None,
            record: true,
            trace_dir: None,
        }
    }
}

/// A variable of the environment that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The deadline is no positive number.
    #[error("FULMEN_TIMEOUT is \"{0}\": give a number of seconds from 0.001 to 1000000, such as 60")]
    Timeout(String),
    /// The silence is no positive number.
    #[error("FULMEN_SILENCE is \"{0}\": give a number of seconds from 0.001 to 1000000, such as 10")]
    Silence(String),
    /// Neither yes nor no.
    #[error("FULMEN_VERIFY_DATA is \"{0}\": give 1 to verify data, or 0")]
    VerifyData(String),
    /// The pool's size is no size.
    #[error("FULMEN_POOL is \"{0}\": give a size of at least 64K, such as 256M or 1G")]
    Pool(String),
    /// It is neither on nor off.
    #[error("FULMEN_RECORD is \"{0}\": give 1 to record the last operations, or 0 not to")]
    Record(String),
}

impl FabricOptions {
    /// The defaults, with what `FULMEN_TIMEOUT`, `FULMEN_SILENCE`, `FULMEN_POOL`, `FULMEN_VERIFY_DATA`, `FULMEN_RECORD`,
    /// `FULMEN_TRACE_DIR` and `FULMEN_PROFILE` say. A profile turns windows off.
    ///
    /// # Errors
    /// [`OptionsError`] for a value that means nothing.
    pub fn from_env() -> Result<FabricOptions, OptionsError> {
        FabricOptions::from_lookup(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<FabricOptions, OptionsError> {
        let lookup = |name| lookup(name).filter(|value| !value.trim().is_empty());
        let mut options = FabricOptions::default();
        if let Some(text) = lookup("FULMEN_TIMEOUT") {
            options.timeout = parse_timeout(&text).ok_or(OptionsError::Timeout(text))?;
        }
        if let Some(text) = lookup("FULMEN_POOL") {
            options.pool = parse_size(&text).filter(|size| *size >= 64 << 10).ok_or(OptionsError::Pool(text))?;
        }
        if let Some(text) = lookup("FULMEN_RECORD") {
            options.record = match text.trim() {
                "0" => false,
                "1" => true,
                _ => return Err(OptionsError::Record(text)),
            };
        }
        options.trace_dir = lookup("FULMEN_TRACE_DIR").map(PathBuf::from);
        if let Some(text) = lookup("FULMEN_SILENCE") {
            options.silence = parse_timeout(&text).ok_or(OptionsError::Silence(text))?;
        }
        if let Some(text) = lookup("FULMEN_VERIFY_DATA") {
            options.verify_data = match text.trim() {
                "0" => false,
                "1" => true,
                _ => return Err(OptionsError::VerifyData(text)),
            };
        }
        options.profile = lookup("FULMEN_PROFILE");
        options.windows = options.profile.is_none();
        Ok(options)
    }
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (0.001..=1e6).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: usize = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        _ => return None,
    };
    digits.trim().parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<FabricOptions, OptionsError> {
        FabricOptions::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(FabricOptions::from_lookup(|_| None), Ok(FabricOptions::default()));
    }

    #[test]
    fn sizes_and_times_are_read() {
        assert_eq!(with("FULMEN_POOL", "256M").unwrap().pool, 256 << 20);
        assert_eq!(with("FULMEN_POOL", "65536").unwrap().pool, 65536);
        assert_eq!(with("FULMEN_POOL", "2 GiB").unwrap().pool, 2 << 30);
        assert_eq!(with("FULMEN_TIMEOUT", "1.5").unwrap().timeout, Duration::from_millis(1500));
        assert_eq!(with("FULMEN_SILENCE", "30").unwrap().silence, Duration::from_secs(30));
        assert!(with("FULMEN_VERIFY_DATA", "1").unwrap().verify_data);
        assert!(!with("FULMEN_VERIFY_DATA", "0").unwrap().verify_data);
        assert!(!with("FULMEN_PROFILE", "thunderbolt").unwrap().windows);
        assert!(!with("FULMEN_RECORD", "0").unwrap().record && with("FULMEN_RECORD", "1").unwrap().record);
        assert_eq!(with("FULMEN_TRACE_DIR", "/tmp/x").unwrap().trace_dir, Some("/tmp/x".into()));
    }

    #[test]
    fn nonsense_is_refused_with_the_variable_and_the_way_out() {
        for value in ["-1", "0", "soon", "inf", "nan", "1e99"] {
            let text = with("FULMEN_TIMEOUT", value).unwrap_err().to_string();
            assert!(text.contains("FULMEN_TIMEOUT") && text.contains(value), "{text}");
            let text = with("FULMEN_SILENCE", value).unwrap_err().to_string();
            assert!(text.contains("FULMEN_SILENCE") && text.contains(value), "{text}");
        }
        let text = with("FULMEN_VERIFY_DATA", "maybe").unwrap_err().to_string();
        assert!(text.contains("FULMEN_VERIFY_DATA") && text.contains("maybe"), "{text}");
        for value in ["0", "1", "-5M", "1X", "99999999999999999999", "18446744073709551615T"] {
            let text = with("FULMEN_POOL", value).unwrap_err().to_string();
            assert!(text.contains("FULMEN_POOL") && text.contains(value), "{text}");
        }
        let text = with("FULMEN_RECORD", "maybe").unwrap_err().to_string();
        assert!(text.contains("FULMEN_RECORD") && text.contains("maybe"), "{text}");
    }
}
