//! What an agent is asked about its cluster.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path, Request, State as Shared};
use axum::http::{Extensions, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use fulmen_verbs::Gid;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::api::{Role, TokenAnswer, TokenRequest};
use super::audit::Note;
use super::devices::Unanswered;
use super::identity::Admission;
use super::join::{AdmitError, JoinRequest};
use super::members::{GUEST, MEMBER};
use super::peers::{Peer, PeerError};
use super::server::{Bounds, Caller, Refused, read, refuse, routes};
use super::{Agent, check_name};
use crate::registry::{CarrierError, RegistryError};

/// The node that coordinates, by whatever name.
const GATEWAY: &str = "@gateway";
/// How long the others may take to let a node go.
const LEAVES: Duration = Duration::from_secs(20);
/// How long another node may take to answer what is passed on to it: less than programs wait, so that they hear which node it is.
const ANSWERS: Duration = Duration::from_secs(20);

impl From<RegistryError> for Refused {
    fn from(error: RegistryError) -> Refused {
        refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<AdmitError> for Refused {
    fn from(error: AdmitError) -> Refused {
        match error {
            AdmitError::Registry(error) => error.into(),
            AdmitError::Invalid(problem) => refuse(StatusCode::BAD_REQUEST, problem),
            AdmitError::Refused(problem) => refuse(StatusCode::FORBIDDEN, problem),
            AdmitError::Trust(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

/// Makes a token.
pub(super) async fn token(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<TokenRequest>, JsonRejection>,
) -> Result<Json<TokenAnswer>, Refused> {
    let request = read(body)?;
    let token = agent.cluster.make_token(&request).await?;
    agent.audit.write(Note::Token { caller: &caller.words, request: &request });
    Ok(Json(TokenAnswer { token }))
}

/// Lets a newcomer in.
pub(super) async fn admit(
    Shared(agent): Shared<Arc<Agent>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<Json<Admission>, Refused> {
    let request = read(body)?;
    let (node, address) = (&*request.name, &*peer.address);
    match agent.cluster.admit(&request).await {
        Ok((admission, role)) => {
            agent.audit.write(Note::Joined { node, address, role: &role });
            Ok(Json(admission))
        }
        Err(error) => {
            agent.audit.write(Note::NotJoined { node, address, problem: &error.to_string() });
            Err(error.into())
        }
    }
}

/// Removes a node from the cluster.
pub(super) async fn remove(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(node): Path<String>,
) -> Result<StatusCode, Refused> {
    if !agent.cluster.remove(&node).await? {
        return Err(PeerError::Unknown(node).into());
    }
    agent.audit.write(Note::Removed { caller: &caller.words, node: &node });
    let removed = tokio::time::timeout(LEAVES, agent.cluster.is_removed(&node)).await;
    Ok(if removed.is_ok() { StatusCode::NO_CONTENT } else { StatusCode::ACCEPTED })
}

/// Has this node leave its cluster and end.
pub(super) async fn leave(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
) -> Result<StatusCode, Refused> {
    let name = agent.cluster.name().to_owned();
    let alone = agent.cluster.view().nodes.len() < 2;
    if !alone {
        agent.cluster.remove(&name).await?;
        agent.audit.write(Note::Removed { caller: &caller.words, node: &name });
        if tokio::time::timeout(LEAVES, agent.cluster.let_go()).await.is_err() {
            let problem = "the others have not let this node go yet, since no majority has agreed: try again, or end it as it is (fulmen down)";
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, problem));
        }
    } else {
        agent.cluster.dissolve().await?;
    }
    agent.audit.write(Note::Down { caller: &caller.words });
    agent.leaves.store(true, std::sync::atomic::Ordering::SeqCst);
    agent.down.send_replace(true);
    Ok(StatusCode::ACCEPTED)
}

/// Says what nodes of a role may do.
pub(super) async fn role(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Role>, JsonRejection>,
) -> Result<StatusCode, Refused> {
    let role = read(body)?;
    check_name(&role.name).map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
    if [MEMBER, GUEST].contains(&&*role.name) {
        let problem = format!("the role {} is what it is: take another name", role.name);
        return Err(refuse(StatusCode::BAD_REQUEST, problem));
    }
    agent.cluster.set_role(&role).await?;
    agent.audit.write(Note::Role { caller: &caller.words, role: &role });
    Ok(StatusCode::NO_CONTENT)
}

/// What another node's registry says.
pub(super) async fn registry(
    Shared(agent): Shared<Arc<Agent>>,
    Path(kind): Path<String>,
    bounds: Option<Extension<Bounds>>,
    body: Bytes,
) -> Result<Vec<u8>, Refused> {
    let bounds = bounds.as_ref().map(|Extension(Bounds(keys))| &**keys);
    let Some(embedded) = &agent.cluster.embedded else {
        let problem = "this cluster has its registry in an etcd, and none of its nodes keeps one";
        return Err(refuse(StatusCode::NOT_FOUND, problem));
    };
    let answer = embedded.serve(&kind, &body, bounds).await;
    answer.map_err(|error| {
        let status = match error {
            CarrierError::NotAllowed => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_REQUEST,
        };
        refuse(status, error.to_string())
    })
}

/// What another node's owner of devices asks the one of the device with this GID.
pub(super) async fn trunk(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(gid): Path<Ipv6Addr>,
    body: Bytes,
) -> Result<Vec<u8>, Refused> {
    let gid = Gid(gid.octets());
    let answered = match agent.devices() {
        Some(devices) => devices.answer(gid, caller.node.map(|(name, _)| name), body.to_vec()).await,
        None => Err(Unanswered::NotHere(gid)),
    };
    answered.map_err(|error| {
        let status = match error {
            Unanswered::NotHere(_) => StatusCode::NOT_FOUND,
            Unanswered::Others { .. } => StatusCode::FORBIDDEN,
        };
        refuse(status, error.to_string())
    })
}

impl From<PeerError> for Refused {
    fn from(error: PeerError) -> Refused {
        let status = match error {
            PeerError::Unknown(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_GATEWAY,
        };
        refuse(status, error.to_string())
    }
}

/// Asks another node in this one's name, and passes on what it says.
pub(super) async fn pass_on(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path((node, rest)): Path<(String, String)>,
    mut request: Request,
) -> Result<Response, Refused> {
    let node = if node == GATEWAY {
        let problem = match &agent.cluster.embedded {
            Some(_) => "no node coordinates the cluster now: a majority of the known nodes has to be up",
            None => "no node coordinates the cluster now: its registry has to be reached (fulmen status)",
        };
        let coordinator = agent.cluster.status().coordinator;
        coordinator.ok_or_else(|| refuse(StatusCode::SERVICE_UNAVAILABLE, problem))?
    } else {
        node
    };
    let path = match request.uri().query() {
        Some(query) => format!("/v1/{rest}?{query}"),
        None => format!("/v1/{rest}"),
    };
    *request.uri_mut() = path.parse::<Uri>().map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
    // What was found in the path so far would be taken for what is in the rest of it.
    *request.extensions_mut() = Extensions::new();
    if node == agent.cluster.name() {
        request.extensions_mut().insert(caller);
        return Ok(match routes(agent).oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        });
    }
    let mut sender = agent.cluster.peers.open(&node).await?;
    let (parts, body) = request.into_parts();
    let body = body.map_err(std::io::Error::other).boxed_unsync();
    // What is written to standard input takes as long as it takes.
    let limit = if rest.ends_with("/stdin") { Duration::MAX } else { ANSWERS };
    let response = tokio::time::timeout(limit, sender.send_request(hyper::Request::from_parts(parts, body))).await;
    let response = response.map_err(|_| {
        let problem = format!(
            "node {node} has not answered for {} s, and whether it has done this is not known: its agent may be stopped",
            ANSWERS.as_secs()
        );
        refuse(StatusCode::GATEWAY_TIMEOUT, problem)
    })?;
    let response = response.map_err(|error| {
        let problem = format!("node {node} went away ({error}): it may be down, or cut off from here");
        refuse(StatusCode::BAD_GATEWAY, problem)
    })?;
    Ok(response.map(Body::new).into_response())
}
