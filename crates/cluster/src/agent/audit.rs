//! The audit log: a line of JSON for everything that an agent starts, signals, ends, lets in or refuses, appended to a file.
//!
//! Values of variables are left out, since they may be secrets; so is what processes write.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::api::{Limit, Noted, Outcome, Process, Role, TokenRequest};

/// What is noted.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum Note<'a> {
    Up {
        name: &'a str,
        pid: u32,
        version: &'a str,
    },
    Spawned {
        caller: &'a str,
        #[serde(flatten)]
        process: &'a Process,
        #[serde(skip_serializing_if = "Option::is_none")]
        cwd: Option<&'a str>,
        #[serde(serialize_with = "names")]
        env: &'a BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
    },
    Refused {
        caller: &'a str,
        command: &'a [String],
        problem: &'a str,
    },
    Signalled {
        id: u64,
        signal: i32,
        because: &'a str,
    },
    Ended {
        id: u64,
        #[serde(flatten)]
        outcome: &'a Outcome,
    },
    Down {
        caller: &'a str,
    },
    Token {
        caller: &'a str,
        #[serde(flatten)]
        request: &'a TokenRequest,
    },
    Joined {
        node: &'a str,
        address: &'a str,
        role: &'a str,
    },
    NotJoined {
        node: &'a str,
        address: &'a str,
        problem: &'a str,
    },
    Removed {
        caller: &'a str,
        node: &'a str,
    },
    Role {
        caller: &'a str,
        #[serde(flatten)]
        role: &'a Role,
    },
    /// What this node sees of another one.
    Seen {
        node: &'a str,
        state: &'a str,
    },
    /// Who coordinates now, if somebody does.
    Coordinator {
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<&'a str>,
    },
    /// Somebody with a certificate that was good once.
    Stranger {
        address: &'a str,
    },
}

fn names<S: serde::Serializer>(env: &BTreeMap<String, String>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(env.keys())
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    #[serde(flatten)]
    note: &'a Note<'a>,
}

/// How long a stranger that tries again and again is not noted again, and how many are remembered.
const QUIET: Duration = Duration::from_secs(600);
const STRANGERS: usize = 1000;

/// Strangers that were noted.
#[derive(Default)]
pub(super) struct Strangers(Mutex<HashMap<String, Instant>>);

impl Strangers {
    /// Whether this one is to be noted: a node that was removed may not know it, and go on for ever.
    pub(super) fn is_new(&self, fingerprint: &str) -> bool {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.retain(|_, at| at.elapsed() < QUIET);
        if noted.contains_key(fingerprint) || noted.len() >= STRANGERS {
            return false;
        }
        noted.insert(fingerprint.into(), Instant::now());
        true
    }
}

/// Lines that are kept in memory, too.
const KEPT: usize = 500;

pub(super) struct Audit {
    file: Mutex<File>,
    recent: Mutex<Recent>,
}

/// The last lines, with their numbers.
#[derive(Default)]
struct Recent {
    next: u64,
    /// As they are in the file.
    lines: VecDeque<(u64, Vec<u8>)>,
}

impl Audit {
    /// Goes on with the file, for its owner's eyes alone.
    pub(super) fn open(path: &Path) -> io::Result<Audit> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Audit { file: Mutex::new(file), recent: Mutex::default() })
    }

    pub(super) fn write(&self, note: Note<'_>) {
        let mut line = serde_json::to_vec(&Line { time_ms: super::now_ms(), note: &note }).expect("plain data");
        line.push(b'\n');
        // One write, so that lines stay whole.
        let written = self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        if let Err(error) = written {
            tracing::error!(%error, "the audit log cannot be written");
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.next += 1;
        let number = recent.next;
        recent.lines.push_back((number, line));
        if recent.lines.len() > KEPT {
            recent.lines.pop_front();
        }
    }

    /// The last lines, behind the one with this number.
    pub(super) fn after(&self, number: u64) -> Vec<Noted> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = recent.lines.iter().filter(|(own, _)| *own > number);
        newer
            .map(|(number, line)| Noted { number: *number, line: serde_json::from_slice(line).expect("an object") })
            .collect()
    }
}
