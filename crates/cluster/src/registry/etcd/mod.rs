//! The registry that a service keeps: etcd, of which a majority of servers has to be there.
//!
//! It is spoken to through its gateway for HTTP and JSON, at whichever of its servers answers. A table is the range of keys that begin
//! with its name, behind the prefix; a version is the revision at which a key was changed last. Each request has a connection of its
//! own, so that one that was not connected is known not to have been done.
//!
//! The clocks of leases are those of etcd's leader, in whole seconds, and a new leader begins them anew. A leader that is cut off renews
//! leases until it notices, within about a second; since the next one begins their clocks after that, they last no shorter than it says.

mod address;
mod client;
mod wire;

use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

pub use address::{EtcdAddress, EtcdAddressError};

use super::{Answer, Change, Condition, Lease, PATIENCE, Registry, RegistryError, Snapshot, Verdict, Write};
use client::{Client, Heard, Nature, Vain};
use wire::{Decided, Granted, KeptAlive, Line, Range, Ranged, Revoked, fits, transaction};

/// How long to wait before a watch that was cut is taken up again.
const AGAIN: Duration = Duration::from_millis(100);

/// A part of an etcd.
pub struct Etcd {
    address: EtcdAddress,
    client: Client,
}

impl Etcd {
    /// That etcd. Nothing is asked yet.
    #[must_use]
    pub fn new(address: EtcdAddress) -> Etcd {
        Etcd { client: Client::new(&address), address }
    }

    fn unreachable(&self, cause: String) -> RegistryError {
        RegistryError::Unreachable { at: self.address.to_string(), cause }
    }

    /// Why a request was in vain that does no harm if it was done.
    fn vain(&self, vain: Vain) -> RegistryError {
        match vain {
            Vain::NotDone(cause) | Vain::Unclear(cause) => self.unreachable(cause),
            Vain::NoLease => RegistryError::LeaseOver,
            Vain::Refused(cause) => RegistryError::Invalid(format!("etcd refuses this: {cause}")),
        }
    }

    /// The same where it matters whether it was done.
    fn in_doubt(&self, vain: Vain) -> RegistryError {
        match vain {
            Vain::Unclear(cause) => RegistryError::Unknown(cause),
            other => self.vain(other),
        }
    }

    fn range(&self, table: &str) -> Range {
        Range::new(&self.address.prefix, table)
    }

    async fn snapshot(&self, range: &Range) -> Result<Snapshot, RegistryError> {
        // Reads are linearizable unless something else is asked for.
        let ranged: Result<Ranged, Vain> = self.client.ask("/v3/kv/range", &range.request(), Nature::Again).await;
        ranged.map(|ranged| range.snapshot(ranged)).map_err(|vain| self.vain(vain))
    }

    async fn decide(&self, write: &Write) -> Result<Verdict, RegistryError> {
        if !write.is_sound() {
            return Err(RegistryError::Invalid("a write changes a key twice".into()));
        }
        // No key has such a version, and to etcd 0 means that there is no key.
        let never = |condition: &Condition| matches!(condition, Condition::Version(_, version) if !fits(*version));
        if write.when.iter().any(never) {
            return Ok(Verdict::Refused);
        }
        // Nor is there such a lease, and to etcd 0 means that there is none.
        let over = |change: &Change| matches!(change, Change::Put { lease: Some(lease), .. } if !fits(*lease));
        if write.then.iter().any(over) {
            return Err(RegistryError::LeaseOver);
        }
        let nature = if write.then.is_empty() { Nature::Again } else { Nature::Once };
        let decided: Result<Decided, Vain> =
            self.client.ask("/v3/kv/txn", &transaction(&self.address.prefix, write), nature).await;
        let Decided { succeeded } = decided.map_err(|vain| self.in_doubt(vain))?;
        Ok(if succeeded { Verdict::Done } else { Verdict::Refused })
    }

    async fn next(&self, table: &str, after: u64) -> Result<Snapshot, RegistryError> {
        let range = self.range(table);
        if after == 0 {
            let now = self.snapshot(&range).await?;
            if !now.entries.is_empty() {
                return Ok(now);
            }
        }
        let (mut heard, mut away) = (Instant::now(), 0);
        loop {
            match self.client.watch(&range, after.saturating_add(1), away).await {
                // What has changed before is as good as a change: whoever asks has to look anyway.
                Ok(Heard::Change | Heard::Forgotten) => return self.snapshot(&range).await,
                Ok(Heard::Behind) => {
                    // A server may be behind the others, but not all of them.
                    if self.snapshot(&range).await?.revision < after {
                        let cause = "it knows less than before, since it was emptied or set back to an old copy: start the agents again";
                        return Err(self.unreachable(cause.into()));
                    }
                    sleep(AGAIN).await;
                    heard = Instant::now();
                }
                Ok(Heard::Nothing) => heard = Instant::now(),
                Err(cause) if heard.elapsed() >= PATIENCE => return Err(self.unreachable(cause)),
                Err(_) => sleep(AGAIN).await,
            }
            away += 1;
        }
    }
}

impl Registry for Etcd {
    fn read<'a>(&'a self, table: &'a str) -> Answer<'a, Snapshot> {
        async move { self.snapshot(&self.range(table)).await }.boxed()
    }

    fn write(&self, write: Write) -> Answer<'_, Verdict> {
        async move { self.decide(&write).await }.boxed()
    }

    fn grant(&self, time: Duration) -> Answer<'_, Lease> {
        async move {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            let request = json!({ "TTL": seconds.max(1).to_string() });
            // One that nobody has heard of ends by itself.
            let granted: Result<Granted, Vain> = self.client.ask("/v3/lease/grant", &request, Nature::Again).await;
            granted.map(|granted| granted.id).map_err(|vain| self.vain(vain))
        }
        .boxed()
    }

    fn renew(&self, lease: Lease) -> Answer<'_, ()> {
        async move {
            if !fits(lease) {
                return Err(RegistryError::LeaseOver);
            }
            let request = json!({ "ID": lease.to_string() });
            // A stream, which ends after its first line since nothing more is asked.
            let kept: Result<Line<KeptAlive>, Vain> =
                self.client.ask("/v3/lease/keepalive", &request, Nature::Again).await;
            match kept.map_err(|vain| self.vain(vain))? {
                Line::Result(KeptAlive { ttl: 0 }) => Err(RegistryError::LeaseOver),
                Line::Result(_) => Ok(()),
                Line::Error(problem) => Err(self.unreachable(problem.message)),
            }
        }
        .boxed()
    }

    fn revoke(&self, lease: Lease) -> Answer<'_, ()> {
        async move {
            if !fits(lease) {
                return Ok(());
            }
            let request = json!({ "ID": lease.to_string() });
            let revoked: Result<Revoked, Vain> = self.client.ask("/v3/lease/revoke", &request, Nature::Again).await;
            match revoked {
                Ok(Revoked {}) | Err(Vain::NoLease) => Ok(()),
                Err(vain) => Err(self.in_doubt(vain)),
            }
        }
        .boxed()
    }

    fn changed<'a>(&'a self, table: &'a str, after: u64) -> Answer<'a, Snapshot> {
        async move { self.next(table, after).await }.boxed()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
