//! What an agent is asked: by programs of its host over its socket, and by other nodes.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::watch;

use super::api::{Because, Event, Noted, Process, Programs, Refusal, SignalRequest, Size, SpawnRequest, Status};
use super::audit::Note;
use super::client::BEHALF;
use super::log::Reader;
use super::members::{ADDRESSES, ALIVE};
use super::nodes::{admit, leave, pass_on, registry, remove, role, token, trunk};
use super::peers::{Gate, Peer};
use super::process::SpawnError;
use super::table::Entry;
use super::{Agent, metrics};

/// Events as lines of JSON.
const EVENTS: &str = "application/x-ndjson";

/// How long a stream of events says nothing before it gives a sign of life: an empty line.
const SIGN: Duration = Duration::from_secs(5);
/// The longest body, which is a registry's.
const LONGEST: usize = 64 << 20;
/// The longest thing that an owner of devices asks another one.
const LONGEST_CALL: usize = 64 << 10;

/// Serves until `ends`, and what is under way then to its end.
pub(super) async fn serve(
    agent: &Arc<Agent>,
    listener: UnixListener,
    (nodes, newcomers): (Gate, Gate),
    ends: impl Future<Output = ()>,
) -> io::Result<()> {
    let stop = watch::Sender::new(false);
    let stopped = || {
        let mut stop = stop.subscribe();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    };
    let local =
        routes(agent.clone()).layer(middleware::from_fn(of_this_host)).into_make_service_with_connect_info::<Local>();
    let known = peers(agent.clone())
        .layer(middleware::from_fn_with_state(agent.clone(), of_a_node))
        .into_make_service_with_connect_info::<Peer>();
    let new = Router::new().route("/v1/join", post(admit)).with_state(agent.clone());
    let new = new.into_make_service_with_connect_info::<Peer>();
    let known = tokio::spawn(axum::serve(nodes, known).with_graceful_shutdown(stopped()).into_future());
    let new = tokio::spawn(axum::serve(newcomers, new).with_graceful_shutdown(stopped()).into_future());
    let mut served = pin!(axum::serve(listener, local).with_graceful_shutdown(stopped()).into_future());
    let result = tokio::select! {
        result = &mut served => return result,
        () = ends => {
            // Readers hear of the last ends. One that does not read is not waited for.
            stop.send_replace(true);
            tokio::time::timeout(Duration::from_secs(1), served).await.unwrap_or(Ok(()))
        }
    };
    known.abort();
    new.abort();
    result
}

/// What nodes of the cluster may ask, too.
fn peers(agent: Arc<Agent>) -> Router {
    processes()
        .route("/v1/status", get(status))
        .route("/v1/registry/{kind}", post(registry).layer(DefaultBodyLimit::max(LONGEST)))
        .route("/v1/trunks/{gid}", post(trunk).layer(DefaultBodyLimit::max(LONGEST_CALL)))
        .route("/metrics", get(prometheus))
        .fallback(nothing)
        .with_state(agent)
}

fn processes() -> Router<Arc<Agent>> {
    Router::new()
        .route("/v1/audit", get(audit))
        .route("/v1/processes", get(list).post(spawn))
        .route("/v1/processes/{id}", get(show))
        .route("/v1/processes/{id}/events", get(events))
        .route("/v1/processes/{id}/stdin", post(stdin))
        .route("/v1/processes/{id}/signal", post(signal))
        .route("/v1/processes/{id}/size", post(size))
}

async fn nothing() -> Refused {
    refuse(StatusCode::NOT_FOUND, "there is nothing here: /openapi.json says what there is")
}

pub(super) fn routes(agent: Arc<Agent>) -> Router {
    processes()
        .route("/v1/status", get(status))
        .route("/v1/down", post(down))
        .route("/v1/leave", post(leave))
        .route("/v1/tokens", post(token))
        .route("/v1/roles", post(role))
        .route("/v1/nodes/{node}", delete(remove))
        .route("/v1/nodes/{node}/{*rest}", any(pass_on))
        .route("/metrics", get(prometheus))
        .route("/openapi.json", get(openapi))
        .fallback(nothing)
        .with_state(agent)
}

/// Who asks for something.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) words: String,
    /// The node, if it is another one, and what it may start.
    pub(super) node: Option<(String, Programs)>,
}

impl Caller {
    /// Whether it may do anything to a process.
    fn may_touch(&self, entry: &Entry) -> bool {
        match &self.node {
            None | Some((_, Programs::All)) => true,
            Some((name, Programs::Only(_))) => entry.info.by.as_ref() == Some(name),
        }
    }
}

/// The other end of a connection of this host.
#[derive(Clone)]
struct Local {
    words: String,
    /// It is the agent itself.
    own: bool,
}

impl Connected<IncomingStream<'_, UnixListener>> for Local {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Local {
        let whole = stream.io().peer_cred().map(|peer| match peer.pid() {
            Some(pid) => format!("uid {}, pid {pid}", peer.uid()),
            None => format!("uid {}", peer.uid()),
        });
        let own = stream.io().peer_cred().ok().and_then(|peer| peer.pid()) == i32::try_from(std::process::id()).ok();
        Local { words: whole.unwrap_or_else(|_| "unknown".into()), own }
    }
}

impl Connected<IncomingStream<'_, Gate>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Gate>) -> Peer {
        stream.remote_addr().clone()
    }
}

async fn of_this_host(ConnectInfo(caller): ConnectInfo<Local>, mut request: Request, next: Next) -> Response {
    let behalf = request.headers_mut().remove(BEHALF).filter(|_| caller.own);
    let words = behalf.and_then(|who| who.to_str().map(str::to_owned).ok()).unwrap_or(caller.words);
    request.extensions_mut().insert(Caller { words, node: None });
    next.run(request).await
}

/// Whoever is no node, or no longer one, is refused: each time.
async fn of_a_node(
    Shared(agent): Shared<Arc<Agent>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = {
        let view = agent.cluster.view();
        let known = peer.fingerprint.as_deref().and_then(|fingerprint| view.of_fingerprint(fingerprint));
        known.map(|(name, record)| (name.to_owned(), view.role(&record.role), record.leaving))
    };
    let Some((name, role, leaving)) = found else {
        let problem = "this is no node of the cluster, or no longer one: it has to join again (fulmen up --join)";
        if agent.strangers.is_new(peer.fingerprint.as_deref().unwrap_or_default()) {
            agent.audit.write(Note::Stranger { address: &peer.address });
        }
        return refuse(StatusCode::FORBIDDEN, problem).into_response();
    };
    let registry = request.uri().path().starts_with("/v1/registry/");
    if leaving && !registry {
        return refuse(StatusCode::FORBIDDEN, format!("node {name} is being removed")).into_response();
    }
    if registry && !role.votes {
        request.extensions_mut().insert(Bounds(vec![format!("{ALIVE}/{name}"), format!("{ADDRESSES}/{name}")]));
    }
    let words = format!("node {name}");
    request.extensions_mut().insert(Caller { words, node: Some((name, role.spawn)) });
    next.run(request).await
}

/// The keys of the registry that a node may change, if not all.
#[derive(Clone)]
pub(super) struct Bounds(pub(super) Vec<String>);

/// Why nothing was done.
pub(super) struct Refused(StatusCode, Refusal);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

pub(super) fn refuse(status: StatusCode, error: impl Into<String>) -> Refused {
    Refused(status, Refusal { error: error.into(), os_error: None })
}

/// A body that is what it should be.
pub(super) fn read<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Refused> {
    body.map(|Json(value)| value).map_err(|bad| refuse(StatusCode::BAD_REQUEST, bad.body_text()))
}

/// A process that the caller may know of.
fn find(agent: &Agent, caller: &Caller, id: &str) -> Result<Arc<Entry>, Refused> {
    let entry = id.parse().ok().and_then(|id| agent.table.get(id));
    entry.filter(|entry| caller.may_touch(entry)).ok_or_else(|| {
        refuse(StatusCode::NOT_FOUND, format!("there is no process {id}: it was never there, or ended long ago"))
    })
}

async fn status(Shared(agent): Shared<Arc<Agent>>) -> Json<Status> {
    Json(agent.status())
}

/// Which lines of the audit log.
#[derive(serde::Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn audit(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Query(After { after }): Query<After>,
) -> Result<Json<Vec<Noted>>, Refused> {
    if !matches!(caller.node, None | Some((_, Programs::All))) {
        return Err(refuse(StatusCode::FORBIDDEN, format!("{} may not see what others do", caller.words)));
    }
    Ok(Json(agent.audit.after(after)))
}

async fn prometheus(Shared(agent): Shared<Arc<Agent>>) -> Response {
    ([(header::CONTENT_TYPE, metrics::TYPE)], metrics::text(&agent.status())).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

async fn down(Shared(agent): Shared<Arc<Agent>>, Extension(caller): Extension<Caller>) -> Response {
    agent.audit.write(Note::Down { caller: &caller.words });
    agent.down.send_replace(true);
    StatusCode::ACCEPTED.into_response()
}

async fn list(Shared(agent): Shared<Arc<Agent>>, Extension(caller): Extension<Caller>) -> Json<Vec<Process>> {
    Json(agent.table.list(|entry| caller.may_touch(entry)))
}

async fn show(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Process>, Refused> {
    Ok(Json(find(&agent, &caller, &id)?.process()))
}

async fn spawn(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<SpawnRequest>, JsonRejection>,
) -> Result<Response, Refused> {
    let request = read(body)?;
    if let Some((node, programs)) = &caller.node
        && let Some(program) = request.command.first()
        && !programs.allows(program)
    {
        let problem = format!("node {node} may not start {program}: its role does not allow it (fulmen role)");
        agent.audit.write(Note::Refused { caller: &caller.words, command: &request.command, problem: &problem });
        return Err(refuse(StatusCode::FORBIDDEN, problem));
    }
    // The system holds the thread up until the program runs. Should the caller go away meanwhile, its holder is dropped here.
    let started = tokio::task::spawn_blocking(move || {
        let entry = agent.spawn(&request, &caller.words, caller.node.map(|(name, _)| name))?;
        let holder = (!request.detach).then(|| Holder(entry.clone()));
        Ok::<_, SpawnError>((entry, holder))
    });
    let started = started.await.map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let (entry, holder) = started.map_err(|error| {
        let os_error = match &error {
            SpawnError::System { cause, .. } => cause.raw_os_error(),
            _ => None,
        };
        let status = match error {
            SpawnError::Invalid(_) => StatusCode::BAD_REQUEST,
            SpawnError::System { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            SpawnError::Closing | SpawnError::NoSlots { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refused(status, Refusal { error: error.to_string(), os_error })
    })?;
    if holder.is_none() {
        return Ok((StatusCode::CREATED, Json(entry.process())).into_response());
    }
    Ok(tell(entry, holder))
}

async fn events(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Refused> {
    Ok(tell(find(&agent, &caller, &id)?, None))
}

/// Who asked for a process: it is held up for them, and ends with them.
struct Holder(Arc<Entry>);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.log.release();
        if self.0.log.outcome().is_none() {
            self.0.end(Because::CallerGone);
        }
    }
}

/// All that happens to a process, from its start.
fn tell(entry: Arc<Entry>, holder: Option<Holder>) -> Response {
    let first = stream::iter([Some(Event::Started(entry.info.clone()))]);
    let rest = stream::unfold((entry, holder, Reader::default()), |(entry, holder, mut reader)| async move {
        let next = tokio::time::timeout(SIGN, entry.log.next(&mut reader, holder.is_some())).await;
        let event = next.map_or(Some(None), |event| event.map(Some))?;
        Some((event, (entry, holder, reader)))
    });
    let lines = first.chain(rest).map(|event| {
        let mut line = match event {
            Some(event) => serde_json::to_vec(&event).map_err(io::Error::other)?,
            None => Vec::new(),
        };
        line.push(b'\n');
        Ok::<_, io::Error>(Bytes::from(line))
    });
    ([(header::CONTENT_TYPE, EVENTS)], Body::from_stream(lines)).into_response()
}

/// Writes the body to a process's standard input, and closes that.
async fn stdin(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let entry = find(&agent, &caller, &id)?;
    // Taken, so that it is closed whatever happens to the body.
    let Some(mut pipe) = entry.stdin.lock().await.take() else {
        let problem =
            "its standard input is empty, or was written already: ask for it with \"stdin\": true, and write it once";
        return Err(refuse(StatusCode::CONFLICT, problem));
    };
    let mut body = request.into_body().into_data_stream();
    let written = async {
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
            if let Err(error) = pipe.write_all(&bytes).await {
                return Err(refuse(StatusCode::CONFLICT, format!("it reads no more: {error}")));
            }
        }
        Ok(StatusCode::NO_CONTENT)
    };
    // A terminal is hung up only when nobody types there any more.
    let mut status = entry.status.subscribe();
    tokio::select! {
        biased;
        result = written => result,
        _ = status.wait_for(Option::is_some) => Err(refuse(StatusCode::CONFLICT, format!("process {id} has ended"))),
    }
}

async fn size(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Result<Json<Size>, JsonRejection>,
) -> Result<StatusCode, Refused> {
    let (entry, size) = (find(&agent, &caller, &id)?, read(body)?);
    match entry.resize(size) {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(refuse(
            StatusCode::CONFLICT,
            format!("process {id} has no terminal, or has ended: ask for one with \"tty\" when it is started"),
        )),
        Err(error) => {
            Err(refuse(StatusCode::CONFLICT, format!("process {id} keeps the size of its terminal: {error}")))
        }
    }
}

async fn signal(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Result<Json<SignalRequest>, JsonRejection>,
) -> Result<StatusCode, Refused> {
    let (entry, request) = (find(&agent, &caller, &id)?, read(body)?);
    let Some(signal) = Signal::from_named_raw(request.signal) else {
        let problem = format!("{} is no signal: 15 asks a process to end, 9 kills it", request.signal);
        return Err(refuse(StatusCode::BAD_REQUEST, problem));
    };
    if !agent.table.signal(&entry, signal) {
        return Err(refuse(StatusCode::CONFLICT, format!("process {id} has ended")));
    }
    agent.audit.write(Note::Signalled { id: entry.info.id, signal: request.signal, because: &caller.words });
    Ok(StatusCode::NO_CONTENT)
}
