//! The coordinator at which the ranks of a run meet, and the secret that lets them in.

use std::io::{self, PipeReader, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use fulmen::parts::fabric::bootstrap::{Coordinator, Heartbeat, Options, Secret, Serving};

use super::RunError;
use super::control::limit_of;

/// A coordinator at work. It ends when this is dropped.
pub struct Meeting {
    serving: Serving,
    secret: String,
}

impl Meeting {
    /// Opens a meeting of `size` ranks at this address. A rank that is silent for so long is lost.
    pub fn open(size: u32, silence: Duration, address: SocketAddr) -> anyhow::Result<Meeting> {
        Meeting::try_open(size, silence, address).map_err(|error| {
            // A limit of the system says how to raise it, wherever it was hit.
            let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
            match cause.and_then(limit_of) {
                Some(limit) => RunError::Limit { ranks: size, limit }.into(),
                None => error,
            }
        })
    }

    fn try_open(size: u32, silence: Duration, address: SocketAddr) -> anyhow::Result<Meeting> {
        let secret = Secret::generate()?;
        let hex = secret.to_hex();
        let heartbeat = Heartbeat { every: Heartbeat::default().every.min(silence / 5), silence };
        let coordinator = Coordinator::bind(address, size, secret, Options { heartbeat, ..Options::default() })
            .context("cannot open the coordinator of the run")?;
        Ok(Meeting { serving: coordinator.serve()?, secret: hex })
    }

    /// Where ranks find the coordinator.
    pub fn address(&self) -> SocketAddr {
        self.serving.local_addr()
    }

    /// What lets ranks in, as 64 hexadecimal digits.
    pub fn secret(&self) -> &str {
        &self.secret
    }
}

/// A descriptor from which one rank can read the secret, once.
pub fn hand_out(secret: &str) -> io::Result<PipeReader> {
    let (reader, mut writer) = io::pipe()?;
    // An empty pipe takes these few bytes at once.
    writer.write_all(secret.as_bytes())?;
    Ok(reader)
}
