//! The agent's socket.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use super::api::{Because, Event, Process, Refusal, SignalRequest, SpawnRequest, Status};
use super::audit::Note;
use super::log::Reader;
use super::process::SpawnError;
use super::table::Entry;
use super::{Agent, metrics};

/// Events as lines of JSON.
const EVENTS: &str = "application/x-ndjson";

/// Serves until `ends`, and what is under way then to its end.
pub(super) async fn serve(
    agent: &Arc<Agent>,
    listener: UnixListener,
    ends: impl Future<Output = ()>,
) -> io::Result<()> {
    let stop = tokio::sync::watch::Sender::new(false);
    let mut stopped = stop.subscribe();
    let service = routes(agent.clone()).into_make_service_with_connect_info::<Caller>();
    let served = axum::serve(listener, service).with_graceful_shutdown(async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    });
    let mut served = pin!(served.into_future());
    tokio::select! {
        result = &mut served => return result,
        () = ends => {}
    }
    // Readers hear of the last ends. One that does not read is not waited for.
    stop.send_replace(true);
    tokio::time::timeout(std::time::Duration::from_secs(1), served).await.unwrap_or(Ok(()))
}

pub(super) fn routes(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/down", post(down))
        .route("/v1/processes", get(list).post(spawn))
        .route("/v1/processes/{id}", get(show))
        .route("/v1/processes/{id}/events", get(events))
        .route("/v1/processes/{id}/stdin", post(stdin))
        .route("/v1/processes/{id}/signal", post(signal))
        .route("/metrics", get(prometheus))
        .route("/openapi.json", get(openapi))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there is nothing here: /openapi.json says what there is") })
        .with_state(agent)
}

/// Who is at the other end of a connection.
#[derive(Clone)]
struct Caller(String);

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Caller {
        let whole = stream.io().peer_cred().map(|peer| match peer.pid() {
            Some(pid) => format!("uid {}, pid {pid}", peer.uid()),
            None => format!("uid {}", peer.uid()),
        });
        Caller(whole.unwrap_or_else(|_| "unknown".into()))
    }
}

/// Why nothing was done.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { error: self.1 })).into_response()
    }
}

fn refuse(status: StatusCode, error: impl Into<String>) -> Refused {
    Refused(status, error.into())
}

/// A body that is what it should be.
fn read<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Refused> {
    body.map(|Json(value)| value).map_err(|bad| refuse(StatusCode::BAD_REQUEST, bad.body_text()))
}

fn find(agent: &Agent, id: &str) -> Result<Arc<Entry>, Refused> {
    let entry = id.parse().ok().and_then(|id| agent.table.get(id));
    entry.ok_or_else(|| {
        refuse(StatusCode::NOT_FOUND, format!("there is no process {id}: it was never there, or ended long ago"))
    })
}

async fn status(Shared(agent): Shared<Arc<Agent>>) -> Json<Status> {
    Json(agent.status())
}

async fn prometheus(Shared(agent): Shared<Arc<Agent>>) -> Response {
    ([(header::CONTENT_TYPE, metrics::TYPE)], metrics::text(&agent.status())).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

async fn down(Shared(agent): Shared<Arc<Agent>>, ConnectInfo(caller): ConnectInfo<Caller>) -> Response {
    agent.audit.write(Note::Down { caller: &caller.0 });
    agent.down.send_replace(true);
    StatusCode::ACCEPTED.into_response()
}

async fn list(Shared(agent): Shared<Arc<Agent>>) -> Json<Vec<Process>> {
    Json(agent.table.list())
}

async fn show(Shared(agent): Shared<Arc<Agent>>, Path(id): Path<String>) -> Result<Json<Process>, Refused> {
    Ok(Json(find(&agent, &id)?.process()))
}

async fn spawn(
    Shared(agent): Shared<Arc<Agent>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    body: Result<Json<SpawnRequest>, JsonRejection>,
) -> Result<Response, Refused> {
    let request = read(body)?;
    // The system holds the thread up until the program runs. Should the caller go away meanwhile, its holder is dropped here.
    let started = tokio::task::spawn_blocking(move || {
        let entry = agent.spawn(&request, &caller.0)?;
        let holder = (!request.detach).then(|| Holder(entry.clone()));
        Ok::<_, SpawnError>((entry, holder))
    });
    let started = started.await.map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let (entry, holder) = started.map_err(|error| {
        let status = match error {
            SpawnError::Invalid(_) => StatusCode::BAD_REQUEST,
            SpawnError::System { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            SpawnError::Closing => StatusCode::SERVICE_UNAVAILABLE,
        };
        refuse(status, error.to_string())
    })?;
    if holder.is_none() {
        return Ok((StatusCode::CREATED, Json(entry.process())).into_response());
    }
    Ok(tell(entry, holder))
}

async fn events(Shared(agent): Shared<Arc<Agent>>, Path(id): Path<String>) -> Result<Response, Refused> {
    Ok(tell(find(&agent, &id)?, None))
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
    let first = stream::iter([Event::Started(entry.info.clone())]);
    let rest = stream::unfold((entry, holder, Reader::default()), |(entry, holder, mut reader)| async move {
        let event = entry.log.next(&mut reader, holder.is_some()).await?;
        Some((event, (entry, holder, reader)))
    });
    let lines = first.chain(rest).map(|event| {
        let mut line = serde_json::to_vec(&event).map_err(io::Error::other)?;
        line.push(b'\n');
        Ok::<_, io::Error>(Bytes::from(line))
    });
    ([(header::CONTENT_TYPE, EVENTS)], Body::from_stream(lines)).into_response()
}

/// Writes the body to a process's standard input, and closes that.
async fn stdin(
    Shared(agent): Shared<Arc<Agent>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let entry = find(&agent, &id)?;
    // Taken, so that it is closed whatever happens to the body.
    let Some(mut pipe) = entry.stdin.lock().await.take() else {
        let problem =
            "its standard input is empty, or was written already: ask for it with \"stdin\": true, and write it once";
        return Err(refuse(StatusCode::CONFLICT, problem));
    };
    let mut body = request.into_body().into_data_stream();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
        if let Err(error) = pipe.write_all(&bytes).await {
            return Err(refuse(StatusCode::CONFLICT, format!("it reads no more: {error}")));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn signal(
    Shared(agent): Shared<Arc<Agent>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(id): Path<String>,
    body: Result<Json<SignalRequest>, JsonRejection>,
) -> Result<StatusCode, Refused> {
    let (entry, request) = (find(&agent, &id)?, read(body)?);
    let Some(signal) = Signal::from_named_raw(request.signal) else {
        let problem = format!("{} is no signal: 15 asks a process to end, 9 kills it", request.signal);
        return Err(refuse(StatusCode::BAD_REQUEST, problem));
    };
    if !agent.table.signal(&entry, signal) {
        return Err(refuse(StatusCode::CONFLICT, format!("process {id} has ended")));
    }
    agent.audit.write(Note::Signalled { id: entry.info.id, signal: request.signal, because: &caller.0 });
    Ok(StatusCode::NO_CONTENT)
}
