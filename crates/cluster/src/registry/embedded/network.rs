//! What nodes say to each other, and how it is carried.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{EmptyNode, RaftNetwork, RaftNetworkFactory};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::table::Command;
use super::super::{Change, RegistryError};
use super::store::Types;
use super::{Ask, Inner, Refusal, Told};

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// Nothing has reached the other node.
    #[error("not reached: {0}")]
    NotReached(io::Error),
    /// It may have reached the other node.
    #[error("no answer: {0}")]
    NoAnswer(io::Error),
    /// What came makes no sense.
    #[error("it cannot be read: {0}")]
    Garbled(String),
    /// The other node may not ask for that.
    #[error("this is not for a node that has no vote")]
    NotAllowed,
}

/// Brings requests of one node's registry to another's [`serve`](super::Embedded::serve), and the answer back.
pub trait Carrier: Send + Sync {
    /// Nodes that may know who leads.
    fn nodes(&self) -> Vec<u64>;

    /// Brings a request of a kind, which is a short word, to the node with this number.
    fn carry<'a>(
        &'a self,
        to: u64,
        kind: &'static str,
        body: Vec<u8>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<u8>, CarrierError>>;
}

/// The kinds of requests.
pub(super) struct Kind;

impl Kind {
    const APPEND: &str = "append";
    const SNAPSHOT: &str = "snapshot";
    const VOTE: &str = "vote";
    const ASK: &str = "ask";
}

/// How long a request to the leader may take on its way.
const ASKED: Duration = super::PATIENCE;

pub(super) struct Network {
    carrier: Arc<dyn Carrier>,
}

impl Network {
    pub(super) fn new(carrier: Arc<dyn Carrier>) -> Network {
        Network { carrier }
    }
}

/// The way to one node.
pub(super) struct Way {
    to: u64,
    carrier: Arc<dyn Carrier>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Way;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> Way {
        Way { to: target, carrier: self.carrier.clone() }
    }
}

type Rpc<T, E> = Result<T, RPCError<u64, EmptyNode, RaftError<u64, E>>>;

impl Way {
    async fn call<T: DeserializeOwned, E: std::error::Error + DeserializeOwned>(
        &self,
        kind: &'static str,
        request: &impl Serialize,
        option: &RPCOption,
    ) -> Rpc<T, E> {
        let garbled = |error: postcard::Error| RPCError::Network(NetworkError::new(&error));
        let body = postcard::to_stdvec(request).map_err(garbled)?;
        let answer = self.carrier.carry(self.to, kind, body, option.hard_ttl()).await.map_err(|error| match error {
            CarrierError::NotReached(_) => RPCError::Unreachable(Unreachable::new(&error)),
            _ => RPCError::Network(NetworkError::new(&error)),
        })?;
        let answer: Result<T, RaftError<u64, E>> = postcard::from_bytes(&answer).map_err(garbled)?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.to, error)))
    }
}

impl RaftNetwork<Types> for Way {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<u64>, openraft::error::Infallible> {
        self.call(Kind::APPEND, &rpc, &option).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Rpc<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        self.call(Kind::SNAPSHOT, &rpc, &option).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<u64>, openraft::error::Infallible> {
        self.call(Kind::VOTE, &rpc, &option).await
    }
}

/// Has another node do something as the leader.
pub(super) async fn forward(carrier: &dyn Carrier, leader: u64, ask: &Ask) -> Result<Told, Refusal> {
    let unknown = |cause: String| match ask {
        // Twice does no harm.
        Ask::Read(_) | Ask::Renew(_) | Ask::Members { .. } => Refusal::NotLeader(None),
        Ask::Command(_) => Refusal::Unknown(cause),
    };
    let body = postcard::to_stdvec(ask).map_err(|error| unknown(error.to_string()))?;
    match carrier.carry(leader, Kind::ASK, body, ASKED).await {
        Ok(answer) => match postcard::from_bytes(&answer) {
            // It is the leader that has ended, and not this node.
            Ok(Err(Refusal::Error(RegistryError::Ended(cause)))) => Err(unknown(cause)),
            Ok(answer) => answer,
            Err(error) => Err(unknown(error.to_string())),
        },
        Err(CarrierError::NotReached(_)) => Err(Refusal::NotLeader(None)),
        Err(error) => Err(unknown(error.to_string())),
    }
}

/// Answers a request that a carrier has brought.
pub(super) async fn serve(
    inner: &Inner,
    kind: &str,
    body: &[u8],
    bounds: Option<&[String]>,
) -> Result<Vec<u8>, CarrierError> {
    if bounds.is_some() && kind != Kind::ASK {
        return Err(CarrierError::NotAllowed);
    }
    fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CarrierError> {
        postcard::from_bytes(body).map_err(|error| CarrierError::Garbled(error.to_string()))
    }
    let answer = match kind {
        Kind::APPEND => postcard::to_stdvec(&inner.raft.append_entries(read(body)?).await),
        Kind::SNAPSHOT => postcard::to_stdvec(&inner.raft.install_snapshot(read(body)?).await),
        Kind::VOTE => postcard::to_stdvec(&inner.raft.vote(read(body)?).await),
        Kind::ASK => {
            let ask: Ask = read(body)?;
            if bounds.is_some_and(|keys| !is_within(&ask, keys)) {
                return Err(CarrierError::NotAllowed);
            }
            let changes = matches!(ask, Ask::Command(_));
            let answer = match tokio::time::timeout(ASKED, inner.lead(ask)).await {
                Ok(answer) => answer,
                Err(_) if changes => Err(Refusal::Unknown("no majority has taken note of it".into())),
                Err(_) => Err(Refusal::NoMajority),
            };
            postcard::to_stdvec(&answer)
        }
        _ => return Err(CarrierError::Garbled(format!("there is no request {kind:?}"))),
    };
    answer.map_err(|error| CarrierError::Garbled(error.to_string()))
}

/// Whether something changes nothing but these keys. Leases are anybody's who knows their numbers, which only voters do not forget.
fn is_within(ask: &Ask, keys: &[String]) -> bool {
    match ask {
        Ask::Read(_) | Ask::Renew(_) | Ask::Command(Command::Grant(_) | Command::End(_)) => true,
        Ask::Command(Command::Write(write)) => write.then.iter().all(|change| match change {
            Change::Put { key, .. } | Change::Delete(key) => keys.contains(key),
        }),
        Ask::Members { .. } => false,
    }
}
