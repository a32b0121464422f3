//! What is said over the agent's socket: JSON bodies, and events as a line of JSON each.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use fulmen_attach::DeviceStatus;
use serde::{Deserialize, Serialize};

/// The agent, as it tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node's name.
    pub name: String,
    /// The agent's process.
    pub pid: u32,
    /// Fulmen's version.
    pub version: String,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The directory of its state.
    pub state: String,
    /// Processes that run.
    pub running: u64,
    /// Processes that were started since the agent was.
    pub spawned: u64,
    /// Those that have ended, by outcome.
    pub ended: Ended,
    /// The cluster to which the node belongs.
    pub cluster: ClusterStatus,
    /// The devices that the agent owns, and programs use through it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceStatus>,
}

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The etcd that is the cluster's registry, if its nodes do not keep that among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Whether this node agrees with a majority of the known nodes, or of the registry's servers. If it does not, it cannot know whether
    /// others are up.
    pub in_touch: bool,
    /// Whether the majority is already one of all nodes that are to vote: those that have just joined do so within seconds.
    pub settled: bool,
    /// The node that coordinates, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<String>,
    /// All known nodes, by name.
    pub nodes: Vec<NodeStatus>,
}

/// A node, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Where other nodes reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether it is up.
    pub state: NodeState,
    /// Ranks that it runs at a time; 0 while it is not up.
    pub slots: u32,
    /// How many of them are taken.
    pub slots_taken: u32,
    /// When it joined, in milliseconds since 1970.
    pub joined_ms: u64,
}

/// Whether a node is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It is.
    Up,
    /// It has ended, or has not been heard of for seconds.
    Down,
    /// That cannot be known from here.
    Unknown,
    /// It is being removed.
    Leaving,
}

impl NodeState {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NodeState::Up => "up",
            NodeState::Down => "down",
            NodeState::Unknown => "unknown",
            NodeState::Leaving => "leaving",
        }
    }
}

/// What nodes of a role may do on others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Whether they belong to the majority that agrees on everything, coordinate, and let others in.
    #[serde(default)]
    pub votes: bool,
    /// What they may start.
    pub spawn: Programs,
}

/// Programs, by their names as they are asked for: an entry without a slash allows that name alone, which is looked for in PATH.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Programs {
    /// Any.
    All,
    /// These, with any arguments.
    Only(Vec<String>),
}

impl Programs {
    /// Whether this one is among them.
    #[must_use]
    pub fn allows(&self, program: &str) -> bool {
        match self {
            Programs::All => true,
            Programs::Only(programs) => programs.iter().any(|allowed| allowed == program),
        }
    }
}

/// A token that is to be made, with which others can join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The role of those who join with it.
    pub role: String,
    /// How many can.
    pub uses: u32,
    /// For how many milliseconds it is good.
    pub valid_ms: u64,
}

/// A token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAnswer {
    /// For `fulmen up --join`. Whoever has it can join.
    pub token: String,
}

/// How many processes ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// With code 0.
    pub well: u64,
    /// With another code.
    pub failed: u64,
    /// By a signal.
    pub signaled: u64,
}

/// A process that is to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpawnRequest {
    /// The program, a path or a name that is looked for in PATH, and its arguments.
    pub command: Vec<String>,
    /// Variables for it, beside those of the agent.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it runs; an absolute path. The agent's home directory if there is none.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Whether it gets a standard input that can be written; else that is empty.
    #[serde(default)]
    pub stdin: bool,
    /// After so many milliseconds it is ended.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Milliseconds between SIGTERM and SIGKILL when it is ended.
    #[serde(default = "default_grace")]
    pub grace_ms: u64,
    /// It goes on when the caller goes away.
    #[serde(default)]
    pub detach: bool,
    /// All that it writes is also kept in files.
    #[serde(default)]
    pub keep_output: bool,
    /// As many of the node's slots are taken while it runs. It is not started if fewer are free.
    #[serde(default)]
    pub slots: u32,
    /// What it may use, with all that descends from it.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// It gets a terminal of this size, which is its standard input, output and error.
    #[serde(default)]
    pub tty: Option<Size>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in each.
    pub cols: u16,
}

/// What a process may use, with all that descends from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Bytes of memory: if it uses more, it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor: if it could use more, it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
}

/// Milliseconds between SIGTERM and SIGKILL where nobody says otherwise.
pub const GRACE_MS: u64 = 3000;

fn default_grace() -> u64 {
    GRACE_MS
}

/// A process of the agent's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number; no other process of the agent's has it, also after a restart.
    pub id: u64,
    /// Its number in the system, which leads its process group.
    pub pid: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// It goes on when its caller goes away.
    pub detached: bool,
    /// The node that asked for it, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// As many of the node's slots are taken while it runs.
    #[serde(default)]
    pub slots: u32,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Where all that it writes is kept: the files' common beginning, to which `.stdout` and `.stderr` are added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// How a process ended. Each has exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its exit code, unless a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why the agent ended it, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Because>,
    /// How long it ran, in milliseconds.
    pub ran_ms: u64,
    /// If it failed: what it wrote last to standard error, a line of up to 200 characters. It is in no log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The exit code that stands for a process that was killed because it used too much memory.
pub const OVER_MEMORY: u8 = 253;

impl Outcome {
    /// The exit code that a shell would give: the code, or 128 and the signal; [`OVER_MEMORY`] where that was the reason.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.because == Some(Because::Memory) {
            return OVER_MEMORY;
        }
        let code = self.code.or_else(|| Some(128 + self.signal?)).unwrap_or(1);
        u8::try_from(code & 0xff).unwrap_or(1)
    }
}

/// Why the agent ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Because {
    /// Its time was over.
    Timeout,
    /// Who had asked for it went away.
    CallerGone,
    /// The agent ended.
    AgentDown,
    /// It used more memory than its limit.
    Memory,
}

impl Because {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Because::Timeout => "its time was over",
            Because::CallerGone => "its caller went away",
            Because::AgentDown => "the agent ended",
            Because::Memory => "it used more memory than its limit",
        }
    }
}

/// An output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What happens to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The first event.
    Started(Process),
    /// It wrote something.
    Output {
        /// Where.
        stream: Stream,
        /// What.
        #[serde(flatten)]
        data: Data,
    },
    /// Bytes that it wrote are no longer kept, since so many came after them.
    Missed {
        /// How many.
        bytes: u64,
    },
    /// It has ended: the last event.
    Ended(Outcome),
}

/// Bytes in JSON: as text where they are UTF-8, and mostly such characters as need no six bytes to be said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// These characters.
    Text(String),
    /// These bytes, in base64.
    Base64(String),
}

impl Data {
    /// Says these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Data {
        let long = |byte: &&u8| **byte < b' ' && !b"\n\r\t".contains(byte);
        match str::from_utf8(bytes) {
            Ok(text) if bytes.iter().filter(long).count() <= bytes.len() / 16 => Data::Text(text.into()),
            _ => Data::Base64(STANDARD.encode(bytes)),
        }
    }

    /// The bytes; `None` if it is no base64.
    #[must_use]
    pub fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Data::Text(text) => Some(text.into_bytes()),
            Data::Base64(text) => STANDARD.decode(text).ok(),
        }
    }
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    /// Its number, since the agent was started.
    pub number: u64,
    /// What it says: `time_ms`, `event`, and what belongs to that.
    #[serde(flatten)]
    pub line: serde_json::Map<String, serde_json::Value>,
}

/// A signal for a process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Its number.
    pub signal: i32,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// In words, with the way out.
    pub error: String,
    /// The system's number for it, if the system refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_error: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for bytes in [&b""[..], b"text\n", b"\xff\x00", "\u{fc}".as_bytes(), &[0xc3]] {
            let line =
                serde_json::to_string(&Event::Output { stream: Stream::Stderr, data: Data::new(bytes) }).unwrap();
            let Event::Output { stream: Stream::Stderr, data } = serde_json::from_str(&line).unwrap() else {
                panic!("{line}")
            };
            assert_eq!(data.bytes().unwrap(), bytes, "{line}");
        }
        assert_eq!(Data::Base64("*".into()).bytes(), None);
        assert!(matches!(Data::new(&[0; 100]), Data::Base64(_)));
        assert!(matches!(Data::new(b"\x1b[31mred\x1b[0m: words and words and words\n"), Data::Text(_)));
    }

    #[test]
    fn a_request_has_defaults_and_nothing_unknown() {
        let request: SpawnRequest = serde_json::from_str(r#"{"command":["true"]}"#).unwrap();
        assert_eq!(
            request,
            SpawnRequest { command: vec!["true".into()], grace_ms: GRACE_MS, ..SpawnRequest::default() }
        );
        assert!(serde_json::from_str::<SpawnRequest>(r#"{"command":["true"],"enviroment":{}}"#).is_err());
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let outcome = |code, signal| Outcome { code, signal, because: None, ran_ms: 0, said: None }.exit_code();
        assert_eq!((outcome(Some(0), None), outcome(Some(255), None), outcome(None, Some(15))), (0, 255, 143));
        assert_eq!(outcome(None, None), 1);
        let over = Outcome { code: None, signal: Some(9), because: Some(Because::Memory), ran_ms: 0, said: None };
        assert_eq!(over.exit_code(), OVER_MEMORY);
    }
}
