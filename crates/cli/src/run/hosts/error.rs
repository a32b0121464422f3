//! Why hosts cannot be used.

use std::net::IpAddr;
use std::process::ExitStatus;
use std::time::Duration;

use std::os::unix::process::ExitStatusExt;

use super::super::signals;
use super::super::verdict::Seconds;
use super::Means;
use super::protocol::own_version;

/// The exit code when a host cannot be reached or is lost: ssh's own.
pub const UNREACHED: u8 = 255;

/// Why a run cannot begin on one of its hosts.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The ssh program cannot be started.
    #[error("cannot start {program}: {cause}; --ssh names another program than the system's ssh")]
    NoSsh {
        /// The program.
        program: String,
        /// What the system said.
        cause: String,
    },
    /// What leads there ended without an answer of the host's `fulmen`.
    #[error("host {host}: {}", ended(*means, *status, words, host))]
    Unreached {
        /// The host.
        host: String,
        /// What leads there.
        means: Means,
        /// How it ended.
        status: Option<ExitStatus>,
        /// What it said last.
        words: String,
    },
    /// The host's shell finds no such program.
    #[error(
        "host {host}: there is no fulmen at {path}{}: put the same version there, or name its place with --remote-fulmen PATH",
        said(words)
    )]
    Missing {
        /// The host.
        host: String,
        /// Where it was looked for.
        path: String,
        /// What the shell said.
        words: String,
    },
    /// The host's shell may not execute it.
    #[error(
        "host {host}: {path} cannot be executed{}: it must be a fulmen of that machine's kind; --remote-fulmen PATH names another one",
        said(words)
    )]
    NotExecutable {
        /// The host.
        host: String,
        /// The file.
        path: String,
        /// What the shell said.
        words: String,
    },
    /// Another version.
    #[error(
        "host {host} has fulmen {theirs}, and this is {ours}: put the same version on both, or name it with --remote-fulmen PATH",
        ours = own_version()
    )]
    Version {
        /// The host.
        host: String,
        /// Its version.
        theirs: String,
    },
    /// Something else answers.
    #[error(
        "host {host}: no fulmen answers; what came begins with {excerpt:?}: does {path} there print anything else, or a login shell very much?"
    )]
    Foreign {
        /// The host.
        host: String,
        /// What was started there.
        path: String,
        /// What came.
        excerpt: String,
    },
    /// It has said something that is not understood.
    #[error("host {host}: its fulmen says what this one does not understand: put the same version on both")]
    Garbled {
        /// The host.
        host: String,
    },
    /// Nothing came in time.
    #[error("host {host}: no answer within {}{} (--connect-timeout sets the limit)", Seconds(*limit), said(words))]
    Late {
        /// The host.
        host: String,
        /// Its time.
        limit: Duration,
        /// What ssh said last.
        words: String,
    },
    /// It cannot run the program.
    #[error("host {host}: {words}")]
    Refused {
        /// The host.
        host: String,
        /// The exit code.
        code: u8,
        /// Why.
        words: String,
    },
    /// Nobody has told by which address the host sees this machine.
    #[error(
        "host {host} does not say by which address it sees this machine{}: give one that all hosts reach with --address IP",
        seen.as_ref().map_or(String::new(), |seen| format!(" ({seen:?} is none that others could use)"))
    )]
    NoAddress {
        /// The host.
        host: String,
        /// What it says.
        seen: Option<String>,
    },
    /// The address is none of this machine's.
    #[error(
        "{ip} is none of this machine's addresses{}: give one that all hosts reach with --address IP",
        host.as_ref().map_or(String::new(), |host| format!(", though host {host} sees it there (are addresses translated between them?)"))
    )]
    NotOurs {
        /// The address.
        ip: IpAddr,
        /// Who sees it, unless the user gave it.
        host: Option<String>,
    },
}

impl HostError {
    /// The exit code of the run.
    pub fn exit_code(&self) -> u8 {
        match self {
            HostError::Unreached { .. } | HostError::Late { .. } => UNREACHED,
            HostError::Missing { .. } | HostError::NoSsh { .. } => 127,
            HostError::NotExecutable { .. } => 126,
            HostError::Refused { code, .. } => *code,
            HostError::Version { .. }
            | HostError::Foreign { .. }
            | HostError::Garbled { .. }
            | HostError::NoAddress { .. }
            | HostError::NotOurs { .. } => 2,
        }
    }
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

fn ended(means: Means, status: Option<ExitStatus>, words: &str, host: &str) -> String {
    let (it, try_it) = match means {
        Means::Ssh => ("ssh", format!("try `ssh -o BatchMode=yes {host} true`")),
        Means::Nodes => ("fulmen spawn", format!("try `fulmen spawn --node {host} -- true`")),
    };
    match status.map(|status| (status.code(), status.signal())) {
        // This is how ssh says that it has failed itself, and not what it ran.
        Some((Some(255), _)) if !words.is_empty() => format!("{it} cannot reach it: {words}; {try_it}"),
        Some((Some(code), _)) => format!("{it} ended with code {code} before fulmen answered{}; {try_it}", said(words)),
        Some((None, Some(signal))) => {
            format!("{it} was ended by {} before fulmen answered{}", signals::name(signal), said(words))
        }
        _ => format!("{it} closed the connection before fulmen answered{}; {try_it}", said(words)),
    }
}

/// In words, why a host that was at work is lost.
pub fn why_lost(status: Option<ExitStatus>, words: &str) -> String {
    let how = match status.map(|status| (status.code(), status.signal())) {
        Some((Some(255), _)) => "the connection has broken".to_string(),
        Some((Some(code), _)) => format!("fulmen there has ended with code {code}"),
        Some((None, Some(signal))) => format!("what led there was ended by {}", signals::name(signal)),
        _ => "its connection was closed".to_string(),
    };
    format!("{how}{}", said(words))
}
