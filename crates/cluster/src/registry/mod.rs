//! What all nodes of a cluster agree on: a small table of keys and values.
//!
//! A [`Registry`] keeps it. There are two, which do the same (one suite of tests runs over both): [`Embedded`], among the nodes
//! themselves, of which a majority has to be there; and [`Etcd`], a service of its own. Every read sees all writes that had ended before
//! it, and every write is done whole or not at all, if what it depends on still holds.
//!
//! Keys are `table/name`. An entry may have a *lease*: it goes when the lease is not renewed in time.

#[cfg(test)]
mod conformance;
mod embedded;
mod etcd;
mod table;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use embedded::{Carrier, CarrierError, Embedded, OpenError};
pub use etcd::{Etcd, EtcdAddress, EtcdAddressError};

/// How long a request may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The number of a lease.
pub type Lease = u64;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// `table/name`.
    pub key: String,
    /// Its bytes.
    pub value: Vec<u8>,
    /// Grows with every write to the key, and is never used again for another value of it.
    pub version: u64,
    /// With which it goes.
    pub lease: Option<Lease>,
}

/// The entries of a table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment, for [`Registry::changed`].
    pub revision: u64,
    /// In the order of their keys.
    pub entries: Vec<Entry>,
}

/// What a write depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// There is no such key.
    Absent(String),
    /// The key has this version.
    Version(String, u64),
}

/// What a write does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Gives a key a value.
    Put {
        /// `table/name`.
        key: String,
        /// Its bytes.
        value: Vec<u8>,
        /// With which it goes.
        lease: Option<Lease>,
    },
    /// Removes a key, if it is there.
    Delete(String),
}

/// A write: all of its changes at once, if all of its conditions hold. No key is changed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// All of these have to hold.
    pub when: Vec<Condition>,
    /// What is done then.
    pub then: Vec<Change>,
}

impl Write {
    /// A write that depends on nothing.
    #[must_use]
    pub fn new(then: Vec<Change>) -> Write {
        Write { when: Vec::new(), then }
    }

    /// Whether nothing is changed twice: what the two would leave behind, registries do not agree on.
    pub(crate) fn is_sound(&self) -> bool {
        let mut keys = BTreeSet::new();
        self.then.iter().all(|change| match change {
            Change::Put { key, .. } | Change::Delete(key) => keys.insert(key),
        })
    }
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was done.
    Done,
    /// A condition does not hold: nothing was done.
    Refused,
}

/// Why the registry was asked in vain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RegistryError {
    /// Too few nodes are there.
    #[error(
        "no majority of the {known} known nodes can be reached, so that nothing can be agreed on. Whether the others are down or only \
         cut off from here cannot be known: start them again, or mend the network"
    )]
    NoMajority {
        /// How many are known.
        known: usize,
    },
    /// The service does not answer.
    #[error("the registry at {at} does not answer ({cause}): see whether it is up, and reachable from here")]
    Unreachable {
        /// Its addresses.
        at: String,
        /// What is wrong.
        cause: String,
    },
    /// A write or the end of a lease was asked for, and no answer came.
    #[error("whether it was done cannot be known, since no answer came ({0}): look, and try again")]
    Unknown(String),
    /// The lease is over.
    #[error("the lease is over: it was not renewed in time")]
    LeaseOver,
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// This node is over.
    #[error("the registry of this node has ended: {0}")]
    Ended(String),
}

/// An answer that comes within 10 s.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, RegistryError>>;

/// A table that all nodes agree on.
pub trait Registry: Send + Sync {
    /// The entries of a table (`"nodes"`), as of all writes that have ended.
    fn read<'a>(&'a self, table: &'a str) -> Answer<'a, Snapshot>;

    /// Changes entries.
    fn write(&self, write: Write) -> Answer<'_, Verdict>;

    /// A new lease, which lasts for `time` from each [renewal](Registry::renew) on; at least that long, and a few seconds longer if the
    /// registry has to change its leader.
    fn grant(&self, time: Duration) -> Answer<'_, Lease>;

    /// Renews a lease.
    ///
    /// # Errors
    /// [`RegistryError::LeaseOver`], as in [writes](Registry::write) with it.
    fn renew(&self, lease: Lease) -> Answer<'_, ()>;

    /// Ends a lease, and with it its entries.
    fn revoke(&self, lease: Lease) -> Answer<'_, ()>;

    /// The entries of a table, as soon as it has changed since `after`, however long that takes. What is told may be older than what a
    /// [read](Registry::read) would say, but is never older than what was told before.
    fn changed<'a>(&'a self, table: &'a str, after: u64) -> Answer<'a, Snapshot>;
}
