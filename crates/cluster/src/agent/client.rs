//! What programs ask an agent with.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::Stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::api::{
    Event, Noted, Process, Refusal, Role, SignalRequest, Size, SpawnRequest, Status, TokenAnswer, TokenRequest,
};
use super::state;

/// The header that names whom the agent itself asks for.
pub(super) const BEHALF: &str = "fulmen-on-behalf-of";
/// The longest line of events: what is read of a stream at a time, in base64.
const LINE: usize = 1 << 20;
/// The longest answer that is not events.
const ANSWER: usize = 64 << 20;

/// How long an agent may take to answer what it can answer at once.
const ANSWERS: Duration = Duration::from_secs(30);
/// How long it may take to end: its processes have their grace.
const ENDS: Duration = Duration::from_secs(300);

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;

/// Why an agent was asked in vain.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// None is up there.
    #[error("no agent is up with the state in {}: start one (fulmen up), or name its directory (--state)", .0.display())]
    NotUp(PathBuf),
    /// It has refused.
    #[error("{error}")]
    Refused {
        /// Why.
        error: String,
        /// The system's number for it, if the system refused.
        os_error: Option<i32>,
    },
    /// It has gone in the middle.
    #[error("the agent went away ({0}): the end of its agent.log may say why")]
    Gone(String),
    /// It does not answer.
    #[error("the agent has not answered for {} s: it may be stopped, or wait for processes that do not end (fulmen ps)", .0.as_secs())]
    Silent(Duration),
    /// It said something else than agents do.
    #[error("the agent gave an answer that cannot be read ({0}): it may be of another version")]
    Garbled(String),
    /// The system refused something.
    #[error("{}: {cause}", socket.display())]
    System {
        /// The agent's socket.
        socket: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

impl From<hyper::Error> for ClientError {
    fn from(error: hyper::Error) -> ClientError {
        ClientError::Gone(error.to_string())
    }
}

/// Asks the agent whose state is in a directory. Each request has a connection of its own. An agent that does not answer within 30 s is
/// [silent](ClientError::Silent), also in the middle of events, among which it gives signs of life; what is written to a process's standard
/// input takes as long as it takes.
#[derive(Clone, Debug)]
pub struct Client {
    state: PathBuf,
    /// Where processes are asked for.
    base: String,
    /// For whom the agent itself asks.
    behalf: Option<String>,
}

impl Client {
    /// Of the agent with this state. Nothing is asked yet.
    #[must_use]
    pub fn new(state: &Path) -> Client {
        Client { state: state.to_owned(), base: "/v1".into(), behalf: None }
    }

    /// The directory of the agent's state.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The same agent, asked about another node and its processes: the one with that name, or `@gateway`, the one that coordinates the
    /// cluster.
    #[must_use]
    pub fn on(&self, node: &str) -> Client {
        Client { base: format!("/v1/nodes/{node}"), ..self.clone() }
    }

    /// The agent itself asks for somebody else.
    pub(super) fn on_behalf_of(&self, who: &str) -> Client {
        Client { behalf: Some(who.into()), ..self.clone() }
    }

    /// What the agent tells of itself, or the agent of the [other node](Client::on).
    ///
    /// # Errors
    /// [`ClientError`], as of all others.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get(&format!("{}/status", self.base)).await
    }

    /// The last lines of the audit log, of 500 at most, behind the one with this number.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn audit(&self, after: u64) -> Result<Vec<Noted>, ClientError> {
        self.get(&format!("{}/audit?after={after}", self.base)).await
    }

    /// All processes that the agent knows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn processes(&self) -> Result<Vec<Process>, ClientError> {
        self.get(&format!("{}/processes", self.base)).await
    }

    /// One process.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn process(&self, id: u64) -> Result<Process, ClientError> {
        self.get(&format!("{}/processes/{id}", self.base)).await
    }

    /// Starts a process that goes on by itself.
    ///
    /// # Errors
    /// [`ClientError`]: then it was not started, unless the agent is [gone](ClientError::Gone), or another node did not answer in time.
    pub async fn detach(&self, request: SpawnRequest) -> Result<Process, ClientError> {
        let request = SpawnRequest { detach: true, ..request };
        answer(self.post(&format!("{}/processes", self.base), json(&request)?).await?).await
    }

    /// Starts a process and tells what happens to it. It is ended when the events are dropped.
    ///
    /// # Errors
    /// As [`Client::detach`].
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Events, ClientError> {
        let request = SpawnRequest { detach: false, ..request };
        events(self.post(&format!("{}/processes", self.base), json(&request)?).await?).await
    }

    /// Tells what happens to a process, from its start as far as that is kept. Nothing happens to it when the events are dropped.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn attach(&self, id: u64) -> Result<Events, ClientError> {
        events(self.ask("GET", &format!("{}/processes/{id}/events", self.base), None).await?).await
    }

    /// Writes to a process's standard input until the stream ends, and closes it.
    ///
    /// # Errors
    /// [`ClientError`], also if the process reads no more.
    pub async fn stdin(
        &self,
        id: u64,
        bytes: impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static,
    ) -> Result<(), ClientError> {
        use futures_util::StreamExt;
        let frames = bytes.map(|bytes| bytes.map(|bytes| Frame::data(Bytes::from(bytes))));
        let body = BodyExt::boxed_unsync(StreamBody::new(frames));
        let (mut sender, _connection) = self.connect().await?;
        // It answers when all is written.
        let path = format!("{}/processes/{id}/stdin", self.base);
        let response = sender.send_request(request("POST", &path, body)?).await?;
        done(response).await
    }

    /// Sends a signal to a process's group.
    ///
    /// # Errors
    /// [`ClientError`], also if it has ended.
    pub async fn signal(&self, id: u64, signal: i32) -> Result<(), ClientError> {
        let path = format!("{}/processes/{id}/signal", self.base);
        done(self.post(&path, json(&SignalRequest { signal })?).await?).await
    }

    /// Makes a token, with which others can join the agent's cluster.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn token(&self, request: &TokenRequest) -> Result<String, ClientError> {
        let answer: TokenAnswer = answer(self.post("/v1/tokens", json(request)?).await?).await?;
        Ok(answer.token)
    }

    /// Says what nodes of a role may do.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn set_role(&self, role: &Role) -> Result<(), ClientError> {
        done(self.post("/v1/roles", json(role)?).await?).await
    }

    /// Removes a node from the agent's cluster: false if that is not over yet, but nobody listens to it any more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn remove(&self, node: &str) -> Result<bool, ClientError> {
        let response = accepted(self.ask("DELETE", &format!("/v1/nodes/{node}"), None).await?).await?;
        Ok(response.status() == StatusCode::NO_CONTENT)
    }

    /// Gives a process's terminal another size.
    ///
    /// # Errors
    /// [`ClientError`], also if it has none or has ended.
    pub async fn resize(&self, id: u64, size: Size) -> Result<(), ClientError> {
        done(self.post(&format!("{}/processes/{id}/size", self.base), json(&size)?).await?).await
    }

    /// Has the agent end, with all its processes, and waits until it has: 5 minutes at most.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn down(&self) -> Result<(), ClientError> {
        self.end("/v1/down").await
    }

    /// The same for a node that is to leave its cluster, and forgets it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn leave(&self) -> Result<(), ClientError> {
        self.end("/v1/leave").await
    }

    async fn end(&self, path: &str) -> Result<(), ClientError> {
        let (mut sender, connection) = self.connect().await?;
        let response = in_time(ANSWERS, sender.send_request(request("POST", path, json(&())?)?)).await??;
        done(response).await?;
        // It closes it last.
        in_time(ENDS, connection).await.map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        answer(self.ask("GET", path, None).await?).await
    }

    async fn post(&self, path: &str, body: Body) -> Result<Response<Incoming>, ClientError> {
        self.ask("POST", path, Some(body)).await
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Body>) -> Result<Response<Incoming>, ClientError> {
        // It ends with the answer's body.
        let (mut sender, _connection) = self.connect().await?;
        let mut request = request(method, path, body.unwrap_or_else(|| full(Vec::new())))?;
        if let Some(behalf) = self.behalf.as_ref().and_then(|behalf| behalf.parse().ok()) {
            request.headers_mut().insert(BEHALF, behalf);
        }
        Ok(in_time(ANSWERS, sender.send_request(request)).await??)
    }

    async fn connect(&self) -> Result<(http1::SendRequest<Body>, JoinHandle<hyper::Result<()>>), ClientError> {
        let socket = state::socket(&self.state);
        let stream = in_time(ANSWERS, UnixStream::connect(&socket)).await?.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotUp(self.state.clone()),
            _ => ClientError::System { socket, cause },
        })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok((sender, tokio::spawn(connection)))
    }
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, ClientError> {
    tokio::time::timeout(limit, work).await.map_err(|_| ClientError::Silent(limit))
}

fn request(method: &str, path: &str, body: Body) -> Result<Request<Body>, ClientError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "agent")
        .header(header::CONTENT_TYPE, "application/json");
    request.body(body).map_err(|error| ClientError::Garbled(error.to_string()))
}

fn full(bytes: Vec<u8>) -> Body {
    BodyExt::boxed_unsync(Full::new(Bytes::from(bytes)).map_err(|never| match never {}))
}

fn json(value: &impl Serialize) -> Result<Body, ClientError> {
    serde_json::to_vec(value).map(full).map_err(|error| ClientError::Garbled(error.to_string()))
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let limited = http_body_util::Limited::new(response.into_body(), ANSWER);
    let collected = in_time(ANSWERS, limited.collect()).await?;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| ClientError::Gone(error.to_string()))
}

/// The answer, if it is no refusal.
async fn accepted(response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = whole(response).await?;
    Err(match serde_json::from_slice(&bytes) {
        Ok(Refusal { error, os_error }) => ClientError::Refused { error, os_error },
        Err(_) => ClientError::Garbled(format!("status {status}")),
    })
}

async fn done(response: Response<Incoming>) -> Result<(), ClientError> {
    let response = accepted(response).await?;
    if [StatusCode::NO_CONTENT, StatusCode::ACCEPTED].contains(&response.status()) {
        return Ok(());
    }
    Err(ClientError::Garbled(format!("status {}", response.status())))
}

async fn answer<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, ClientError> {
    let bytes = whole(accepted(response).await?).await?;
    serde_json::from_slice(&bytes).map_err(|error| ClientError::Garbled(error.to_string()))
}

async fn events(response: Response<Incoming>) -> Result<Events, ClientError> {
    Ok(Events { body: accepted(response).await?.into_body(), buffer: Vec::new(), over: false })
}

/// What happens to a process.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    over: bool,
}

impl Events {
    /// The next event; `None` after the last, which is [`Event::Ended`].
    ///
    /// # Errors
    /// [`ClientError::Gone`] if they end without that.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.buffer[looked..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=looked + end).collect();
                if line.len() == 1 {
                    // A sign of life.
                    looked = 0;
                    continue;
                }
                let event = serde_json::from_slice(&line).map_err(|error| ClientError::Garbled(error.to_string()))?;
                self.over |= matches!(event, Event::Ended(_));
                return Ok(Some(event));
            }
            looked = self.buffer.len();
            if looked > LINE {
                return Err(ClientError::Garbled(format!("a line of more than {LINE} bytes")));
            }
            match in_time(ANSWERS, self.body.frame()).await? {
                Some(frame) => self.buffer.extend(frame?.into_data().unwrap_or_default()),
                None if self.over => return Ok(None),
                None => return Err(ClientError::Gone("its answer ended early".into())),
            }
        }
    }
}
