//! The registry that nodes keep among themselves, by Raft: a majority of the known nodes has to be there for anything to be agreed on.
//!
//! Requests go to the leader, whichever node they come from. The clocks of leases are the leader's: they run by elapsed time, not by the
//! time of day, and a new leader begins them anew.

mod network;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use openraft::error::{ClientWriteError, Fatal, InitializeError, RaftError};
use openraft::{ChangeMembers, Config, EmptyNode, Raft, SnapshotPolicy};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout, timeout_at};

pub use network::{Carrier, CarrierError};
pub use store::OpenError;

use super::table::{Command, Outcome};
use super::{Answer, Lease, PATIENCE, Registry, RegistryError, Snapshot, Verdict, Write};
use network::Network;
use store::{Machine, Types};

/// How often the leader says that it is there, and after how long without that another is elected.
const HEARTBEAT_MS: u64 = 200;
const ELECTION_MS: std::ops::Range<u64> = 1000..2000;
/// How often the clocks of leases are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait before the leader is looked for again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the answer of one that led is waited for, when it does not seem to any more.
const MOMENT: Duration = Duration::from_secs(1);
/// Commands between two snapshots.
const SNAPSHOT: u64 = 1000;

/// What one node asks the leader for.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Ask {
    Read(String),
    Command(Command),
    Renew(Lease),
    /// These nodes are the members, and those vote.
    Members {
        all: BTreeSet<u64>,
        voters: BTreeSet<u64>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Told {
    Snapshot(Snapshot),
    Outcome(Outcome),
    Done,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Refusal {
    /// Nothing was done: somebody else leads.
    NotLeader(Option<u64>),
    /// Nothing was done: no majority has answered.
    NoMajority,
    /// Nothing was done.
    Error(RegistryError),
    /// It may have been done.
    Unknown(String),
}

/// A node's part of the registry. Clones are the same.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    raft: Raft<Types>,
    machine: Machine,
    carrier: Arc<dyn Carrier>,
    /// When each lease is over, as long as this node leads.
    clocks: Mutex<Clocks>,
}

#[derive(Default)]
struct Clocks {
    /// Of the time in which this node led.
    term: u64,
    ends: HashMap<Lease, Instant>,
}

impl Embedded {
    /// Opens a node's part, which is kept in a file. It belongs to no cluster before it [founds](Embedded::found) one or is
    /// [made a member](Embedded::set_members). To be called in a runtime of tokio's.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(id: u64, file: &Path, carrier: Arc<dyn Carrier>) -> Result<Embedded, OpenError> {
        let (log, machine) = store::open(file)?;
        let config = Config {
            cluster_name: "fulmen".into(),
            heartbeat_interval: HEARTBEAT_MS,
            election_timeout_min: ELECTION_MS.start,
            election_timeout_max: ELECTION_MS.end,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT),
            max_in_snapshot_log_to_keep: SNAPSHOT / 2,
            ..Config::default()
        };
        let config = Arc::new(config.validate().expect("the times are in order"));
        let network = Network::new(carrier.clone());
        let raft = Raft::new(id, config, network, log, machine.clone()).await;
        let raft = raft.map_err(|error| store::open_error(file, &error))?;
        let inner = Arc::new(Inner { id, raft, machine, carrier, clocks: Mutex::default() });
        tokio::spawn(keep_time(Arc::downgrade(&inner)));
        Ok(Embedded { inner })
    }

    /// Makes a node the only member, where the majority is lost for good. Nobody is at the file; the node is opened then. If the others are
    /// only cut off, there are two clusters from now on, which do not know of each other.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn recover(id: u64, file: &Path) -> Result<(), OpenError> {
        store::recover(file, id).await
    }

    /// Makes a cluster of which this node is the only member, unless it has one.
    ///
    /// # Errors
    /// [`RegistryError::Ended`].
    pub async fn found(&self) -> Result<(), RegistryError> {
        let alone = BTreeMap::from([(self.inner.id, EmptyNode {})]);
        // Nobody else is to be waited for.
        let sole = self.members().1 == BTreeSet::from([self.inner.id]);
        if sole {
            let elected = self.inner.raft.trigger().elect().await;
            return elected.map_err(|fatal| RegistryError::Ended(fatal.to_string()));
        }
        match self.inner.raft.initialize(alone).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(RegistryError::Ended(error.to_string())),
        }
    }

    /// Makes these nodes the members, of which some vote: to be called by whoever leads, and again until it succeeds. New voters
    /// are told everything first.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn set_members(&self, all: BTreeSet<u64>, voters: BTreeSet<u64>) -> Result<(), RegistryError> {
        self.ask(Ask::Members { all, voters }).await.map(drop)
    }

    /// Whether this node leads, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.inner.leads()
    }

    /// Whether a majority has been heard of in the last seconds, as far as this node knows. Agents go by their leases.
    #[cfg(test)]
    fn has_majority(&self) -> bool {
        let metrics = self.inner.raft.metrics().borrow().clone();
        let late = |ms: u64| ms > ELECTION_MS.end;
        match metrics.current_leader {
            Some(leader) if leader == self.inner.id => {
                self.known() == 1 || metrics.millis_since_quorum_ack.is_some_and(|ms| !late(ms))
            }
            Some(_) => true,
            None => false,
        }
    }

    /// The members, and those of them that vote.
    #[must_use]
    pub fn members(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let metrics = self.inner.raft.metrics().borrow().clone();
        let members = metrics.membership_config.membership();
        (members.nodes().map(|(id, _)| *id).collect(), members.voter_ids().collect())
    }

    fn known(&self) -> usize {
        self.inner.raft.metrics().borrow().membership_config.membership().voter_ids().count()
    }

    /// Answers what another node's [`Carrier`] has brought, of this kind. A node that is no voter may change no other entries than those
    /// with these keys.
    ///
    /// # Errors
    /// The request is damaged, of an unknown kind, or not for this node to make.
    pub async fn serve(&self, kind: &str, body: &[u8], bounds: Option<&[String]>) -> Result<Vec<u8>, CarrierError> {
        network::serve(&self.inner, kind, body, bounds).await
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.raft.metrics().borrow().running_state.is_err()
    }

    /// Ends this node's part, and closes its file: it can be opened again at once, also if there are clones of this one.
    pub async fn close(&self) {
        let _ = self.inner.raft.shutdown().await;
        self.inner.machine.close().await;
    }

    /// Has the leader do something, whoever that is, and waits for one if there is none.
    async fn ask(&self, ask: Ask) -> Result<Told, RegistryError> {
        let inner = &self.inner;
        let end = tokio::time::Instant::now() + PATIENCE;
        let changes = matches!(ask, Ask::Command(_));
        let none = || RegistryError::NoMajority { known: self.known().max(1) };
        let (mut leader, mut turn) = (None, 0);
        loop {
            let seen = inner.raft.metrics().borrow().current_leader;
            leader = leader.or(seen);
            if leader.is_none() {
                // One that is new here is told nothing yet.
                let others = inner.carrier.nodes();
                leader = others.get(turn % others.len().max(1)).copied();
                turn += 1;
            }
            let answer = match leader {
                None => Err(Refusal::NotLeader(None)),
                Some(id) if id == inner.id => match timeout_at(end, inner.lead(ask.clone())).await {
                    Ok(answer) => answer,
                    Err(_) if changes => Err(Refusal::Unknown("no majority has taken note of it".into())),
                    Err(_) => Err(Refusal::NoMajority),
                },
                Some(id) => {
                    let late = |cause: &str| match changes {
                        true => Err(Refusal::Unknown(cause.into())),
                        false => Err(Refusal::NoMajority),
                    };
                    tokio::select! {
                        answer = timeout_at(end, network::forward(&*inner.carrier, id, &ask)) => {
                            answer.unwrap_or_else(|_| late("the leader has not answered"))
                        }
                        // Nothing else tells of one that is cut off, and leases are over before patience is.
                        () = inner.leader_changes(seen, changes) => late("another leads now, and the leader has not answered"),
                    }
                }
            };
            leader = match answer {
                Ok(told) => return Ok(told),
                Err(Refusal::NotLeader(other)) => other.filter(|other| Some(*other) != leader),
                Err(Refusal::NoMajority) => None,
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::Unknown(cause)) => return Err(RegistryError::Unknown(cause)),
            };
            if tokio::time::Instant::now() + AGAIN >= end {
                return Err(none());
            }
            sleep(AGAIN).await;
        }
    }
}

impl Inner {
    fn leads(&self) -> bool {
        self.raft.metrics().borrow().current_leader == Some(self.id)
    }

    /// Returns when another node leads than the one that was seen to, or nobody seems to; a moment later, if an answer that is on its way
    /// is worth more than another try.
    async fn leader_changes(&self, seen: Option<u64>, awaits: bool) {
        let changed = self.raft.metrics().wait_for(|metrics| metrics.current_leader != seen).await.is_ok();
        if !changed {
            // It has ended, which is told elsewhere.
            std::future::pending::<()>().await;
        }
        if awaits {
            sleep(MOMENT).await;
        }
    }

    /// Does something as the leader, or refuses.
    async fn lead(&self, ask: Ask) -> Result<Told, Refusal> {
        match ask {
            Ask::Read(table) => {
                self.confirm().await?;
                Ok(Told::Snapshot(self.machine.seen().table.snapshot(&table)))
            }
            Ask::Renew(lease) => {
                // Before it is confirmed that this node still leads: the lease is not made longer than it seems to its holder.
                let now = Instant::now();
                self.confirm().await?;
                let time = self.machine.seen().table.leases().find(|(id, _)| *id == lease);
                let (_, time) = time.ok_or(Refusal::Error(RegistryError::LeaseOver))?;
                let term = self.raft.metrics().borrow().current_term;
                let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
                // Its end is on its way to the others, or will be: that takes long where a majority was just found again.
                if clocks.term == term && clocks.ends.get(&lease).is_some_and(|end| *end <= Instant::now()) {
                    return Err(Refusal::Error(RegistryError::LeaseOver));
                }
                let end = clocks.ends.entry(lease).or_insert(now);
                *end = (*end).max(now + Duration::from_millis(time));
                Ok(Told::Done)
            }
            Ask::Command(command) => self.command(command).await.map(Told::Outcome),
            Ask::Members { all, voters } => self.set_members(&all, &voters).await.map(|()| Told::Done),
        }
    }

    /// Waits until a majority has said that this node leads, and everything before that was applied.
    async fn confirm(&self) -> Result<(), Refusal> {
        use openraft::error::CheckIsLeaderError as Cause;
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(Cause::ForwardToLeader(to))) => Err(Refusal::NotLeader(to.leader_id)),
            Err(RaftError::APIError(Cause::QuorumNotEnough(_))) => Err(Refusal::NoMajority),
            Err(RaftError::Fatal(fatal)) => Err(ended(&fatal)),
        }
    }

    async fn command(&self, command: Command) -> Result<Outcome, Refusal> {
        match self.raft.client_write(command).await {
            Ok(written) => Ok(written.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(Refusal::NotLeader(to.leader_id)),
            Err(RaftError::APIError(error)) => Err(Refusal::Unknown(error.to_string())),
            Err(RaftError::Fatal(fatal)) => Err(ended(&fatal)),
        }
    }

    async fn set_members(&self, all: &BTreeSet<u64>, voters: &BTreeSet<u64>) -> Result<(), Refusal> {
        let metrics = self.raft.metrics().borrow().clone();
        let members = metrics.membership_config.membership();
        let known: BTreeSet<u64> = members.nodes().map(|(id, _)| *id).collect();
        let voting: BTreeSet<u64> = members.voter_ids().collect();
        for id in all.difference(&known) {
            self.change(ChangeMembers::AddNodes(BTreeMap::from([(*id, EmptyNode {})]))).await?;
        }
        let behind = |id: &u64| {
            let last = metrics.last_applied.map(|last| last.index);
            let matched = metrics.replication.as_ref().and_then(|all| *all.get(id)?);
            matched.map(|matched| matched.index) < last
        };
        // One at a time, so that each majority has most of the one before it.
        if let Some(id) = voters.difference(&voting).find(|id| !behind(id)) {
            self.change(ChangeMembers::AddVoterIds(BTreeSet::from([*id]))).await?;
        } else if let Some(id) = voting.difference(voters).next() {
            // It is still told of that, and taken out later.
            self.change(ChangeMembers::RemoveVoters(BTreeSet::from([*id]))).await?;
        }
        let gone: BTreeSet<u64> = known.difference(all).filter(|id| !voting.contains(id)).copied().collect();
        if !gone.is_empty() {
            self.change(ChangeMembers::RemoveNodes(gone)).await?;
        }
        Ok(())
    }

    async fn change(&self, change: ChangeMembers<u64, EmptyNode>) -> Result<(), Refusal> {
        let changed = timeout(PATIENCE, self.raft.change_membership(change, true)).await;
        match changed.map_err(|_| Refusal::NoMajority)? {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(Refusal::NotLeader(to.leader_id)),
            // Another change is on its way, or nothing is to be changed any more.
            Err(RaftError::APIError(error)) => {
                tracing::debug!(%error, "the members were not changed");
                Ok(())
            }
            Err(RaftError::Fatal(fatal)) => Err(ended(&fatal)),
        }
    }
}

fn ended(fatal: &Fatal<u64>) -> Refusal {
    Refusal::Error(RegistryError::Ended(fatal.to_string()))
}

/// Ends leases that nobody has renewed, as long as this node leads.
async fn keep_time(inner: std::sync::Weak<Inner>) {
    loop {
        sleep(LOOK).await;
        let Some(inner) = inner.upgrade() else { return };
        let term = inner.raft.metrics().borrow().current_term;
        let over: Vec<Lease> = {
            let mut clocks = inner.clocks.lock().unwrap_or_else(PoisonError::into_inner);
            if !inner.leads() {
                clocks.ends.clear();
                continue;
            }
            if clocks.term != term {
                *clocks = Clocks { term, ends: HashMap::new() };
            }
            let now = Instant::now();
            let seen = inner.machine.seen();
            clocks.ends.retain(|lease, _| seen.table.has_lease(*lease));
            let running = seen.table.leases();
            let end = |(lease, time): (Lease, u64)| {
                let end = clocks.ends.entry(lease).or_insert(now + Duration::from_millis(time));
                (*end <= now).then_some(lease)
            };
            running.filter_map(end).collect()
        };
        for lease in over {
            if inner.command(Command::End(lease)).await.is_err() {
                break;
            }
        }
    }
}

impl Registry for Embedded {
    fn read<'a>(&'a self, table: &'a str) -> Answer<'a, Snapshot> {
        async move {
            match self.ask(Ask::Read(table.into())).await? {
                Told::Snapshot(snapshot) => Ok(snapshot),
                other => Err(garbled(&other)),
            }
        }
        .boxed()
    }

    fn write(&self, write: Write) -> Answer<'_, Verdict> {
        async move {
            if !write.is_sound() {
                return Err(RegistryError::Invalid("a write changes a key twice".into()));
            }
            match self.ask(Ask::Command(Command::Write(write))).await? {
                Told::Outcome(Outcome::Written(verdict)) => Ok(verdict),
                Told::Outcome(Outcome::LeaseOver) => Err(RegistryError::LeaseOver),
                other => Err(garbled(&other)),
            }
        }
        .boxed()
    }

    fn grant(&self, time: Duration) -> Answer<'_, Lease> {
        async move {
            match self.ask(Ask::Command(Command::Grant(time.as_millis() as u64))).await? {
                Told::Outcome(Outcome::Granted(lease)) => Ok(lease),
                other => Err(garbled(&other)),
            }
        }
        .boxed()
    }

    fn renew(&self, lease: Lease) -> Answer<'_, ()> {
        async move { self.ask(Ask::Renew(lease)).await.map(drop) }.boxed()
    }

    fn revoke(&self, lease: Lease) -> Answer<'_, ()> {
        async move { self.ask(Ask::Command(Command::End(lease))).await.map(drop) }.boxed()
    }

    fn changed<'a>(&'a self, table: &'a str, after: u64) -> Answer<'a, Snapshot> {
        async move {
            let mut applied = self.inner.machine.applied();
            loop {
                applied.borrow_and_update();
                {
                    let seen = self.inner.machine.seen();
                    if seen.table.changed(table) > after {
                        return Ok(seen.table.snapshot(table));
                    }
                }
                let ended = |_| RegistryError::Ended("it was closed".into());
                applied.changed().await.map_err(ended)?;
            }
        }
        .boxed()
    }
}

fn garbled(told: &Told) -> RegistryError {
    RegistryError::Unknown(format!("the leader gave an answer that does not belong here: {told:?}"))
}

#[cfg(test)]
mod tests;
