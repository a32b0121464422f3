//! Requests to whichever server of an etcd answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::PATIENCE;
use super::address::EtcdAddress;
use super::wire::{Failure, Line, Problem, Range, Watched};

/// How long one server may take to be connected to, and to answer what another can be asked instead.
const CONNECT: Duration = Duration::from_secs(2);
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long to wait before all servers are asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a watch says nothing before it is taken up at another server: the one that it is at may hear nothing itself.
const SILENCE: Duration = Duration::from_secs(5);
/// The longest answer.
const ANSWER: usize = 64 << 20;
/// Has a server that knows of no leader say so, instead of waiting for one, also in the middle of a watch.
const HAS_LEADER: &str = "grpc-metadata-hasleader";

/// What may be done when no answer came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    /// To ask again: it does no harm twice.
    Again,
    /// Nothing: it may have been done, and others may have changed it meanwhile.
    Once,
}

/// What came of a watch.
pub(super) enum Heard {
    /// There was a change.
    Change,
    /// What happened before is no longer known.
    Forgotten,
    /// The server knows less than was told before.
    Behind,
    /// Nothing for a while.
    Nothing,
}

/// Why nothing came of a request.
#[derive(Debug)]
pub(super) enum Vain {
    /// In time, no server has done it.
    NotDone(String),
    /// Likewise, but one of them may have done it.
    Unclear(String),
    /// There is no such lease.
    NoLease,
    /// It makes no sense.
    Refused(String),
}

pub(super) struct Client {
    endpoints: Vec<String>,
    /// Which of them is asked first: one that has answered.
    turn: AtomicUsize,
}

/// A connection, which ends when it is dropped.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    task: JoinHandle<hyper::Result<()>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Connects to a server: until then, nothing is done.
    async fn open(endpoint: &str) -> Result<Connection, Failure> {
        let dial = async {
            let stream = TcpStream::connect(endpoint).await.map_err(|error| error.to_string())?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())
        };
        let dialled = timeout_at(Instant::now() + CONNECT, dial).await;
        let late = |_| Failure::NotDone(format!("{endpoint}: no connection for {} s", CONNECT.as_secs()));
        let (sender, connection) =
            dialled.map_err(late)?.map_err(|cause| Failure::NotDone(format!("{endpoint}: {cause}")))?;
        Ok(Connection { sender, task: tokio::spawn(connection) })
    }

    async fn send(&mut self, endpoint: &str, path: &str, body: &Value) -> Result<Response<Incoming>, Failure> {
        let unclear = |cause: String| Failure::Unclear(format!("{endpoint}: {cause}"));
        let request = Request::post(path)
            .header(header::HOST, endpoint)
            .header(header::CONTENT_TYPE, "application/json")
            .header(HAS_LEADER, "true")
            .body(Full::new(Bytes::from(body.to_string())));
        let request = request.map_err(|error| Failure::Refused(error.to_string()))?;
        let response = self.sender.send_request(request).await.map_err(|error| unclear(error.to_string()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response).await.map_err(unclear)?;
        let problem = serde_json::from_slice::<Problem>(&body).or_else(|error| match serde_json::from_slice(&body) {
            Ok(Line::<serde::de::IgnoredAny>::Error(problem)) => Ok(problem),
            _ => Err(error),
        });
        Err(problem.map_or_else(|_| unclear(format!("this is no answer of etcd's (HTTP {status})")), Failure::from))
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, String> {
    let collected = Limited::new(response.into_body(), ANSWER).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| error.to_string())
}

/// One line of what comes. A line that is there already counts before the end.
async fn line<T: DeserializeOwned>(body: &mut Incoming, buffer: &mut Vec<u8>) -> Result<T, Failure> {
    loop {
        let mut values = serde_json::Deserializer::from_slice(buffer).into_iter::<Line<T>>();
        match values.next() {
            Some(Ok(line)) => {
                let read = values.byte_offset();
                buffer.drain(..read);
                return match line {
                    Line::Result(value) => Ok(value),
                    Line::Error(problem) => Err(problem.into()),
                };
            }
            Some(Err(error)) if !error.is_eof() => return Err(Failure::Unclear(error.to_string())),
            _ => {}
        }
        if buffer.len() > ANSWER {
            return Err(Failure::Unclear(format!("a line of more than {ANSWER} bytes")));
        }
        match body.frame().await {
            Some(Ok(frame)) => buffer.extend(frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return Err(Failure::Unclear(error.to_string())),
            None => return Err(Failure::Unclear("its answer ended early".into())),
        }
    }
}

async fn once<T: DeserializeOwned>(endpoint: &str, path: &str, body: &Value) -> Result<T, Failure> {
    let unclear = |cause: String| Failure::Unclear(format!("{endpoint}: {cause}"));
    let mut connection = Connection::open(endpoint).await?;
    let answer = whole(connection.send(endpoint, path, body).await?).await.map_err(unclear)?;
    serde_json::from_slice(&answer).map_err(|error| unclear(error.to_string()))
}

impl Client {
    pub(super) fn new(address: &EtcdAddress) -> Client {
        Client { endpoints: address.endpoints.clone(), turn: AtomicUsize::new(0) }
    }

    fn endpoint(&self, turn: usize) -> &str {
        &self.endpoints[turn % self.endpoints.len()]
    }

    /// Another is asked first from now on, unless that was found before.
    fn pass(&self, turn: usize) {
        let _ = self.turn.compare_exchange(turn, turn.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Asks until a server has done it, or refused it for good, for as long as a request may take.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value, nature: Nature) -> Result<T, Vain> {
        let end = Instant::now() + PATIENCE;
        let (mut tried, mut doubt) = (0, None);
        loop {
            let turn = self.turn.load(Ordering::Relaxed);
            let endpoint = self.endpoint(turn);
            let limit = match nature {
                Nature::Again => end.min(Instant::now() + ATTEMPT),
                Nature::Once => end,
            };
            let late = |_| Err(Failure::Unclear(format!("{endpoint}: no answer in time")));
            let cause = match timeout_at(limit, once(endpoint, path, body)).await.unwrap_or_else(late) {
                Ok(value) => return Ok(value),
                Err(Failure::NoLease) => return Err(Vain::NoLease),
                Err(Failure::Refused(cause)) => return Err(Vain::Refused(cause)),
                Err(Failure::Unclear(cause)) => {
                    doubt = Some(cause.clone());
                    cause
                }
                Err(Failure::NotDone(cause)) => cause,
            };
            self.pass(turn);
            tried += 1;
            let round = if tried % self.endpoints.len() == 0 { AGAIN } else { Duration::ZERO };
            let over = Instant::now() + round >= end;
            match doubt {
                Some(cause) if nature == Nature::Once || over => return Err(Vain::Unclear(cause)),
                None if over => return Err(Vain::NotDone(cause)),
                _ => sleep(round).await,
            }
        }
    }

    /// Waits for a while until something has happened in a range from a revision on, asking so many servers away from the one that has
    /// answered last.
    pub(super) async fn watch(&self, range: &Range, from: u64, away: usize) -> Result<Heard, String> {
        let endpoint = self.endpoint(self.turn.load(Ordering::Relaxed).wrapping_add(away));
        let start = Instant::now();
        let work = async {
            let mut connection = Connection::open(endpoint).await?;
            let response = connection.send(endpoint, "/v3/watch", &range.watch(from)).await?;
            let (mut body, mut buffer) = (response.into_body(), Vec::new());
            let mut limit = start + ATTEMPT;
            loop {
                let Ok(watched) = timeout_at(limit, line::<Watched>(&mut body, &mut buffer)).await else {
                    let began = limit > start + ATTEMPT;
                    return if began { Ok(Heard::Nothing) } else { Err(Failure::NotDone("no answer in time".into())) };
                };
                let watched = watched?;
                if watched.compact_revision > 0 {
                    return Ok(Heard::Forgotten);
                }
                if watched.canceled {
                    return Err(Failure::NotDone("the watch was ended there".into()));
                }
                if !watched.events.is_empty() {
                    return Ok(Heard::Change);
                }
                if watched.created && watched.header.revision.saturating_add(1) < from {
                    return Ok(Heard::Behind);
                }
                limit = start + ATTEMPT + SILENCE;
            }
        };
        // What comes before the first line takes its time, too.
        let late = || Err(Failure::NotDone("no answer in time".into()));
        let heard = timeout_at(start + ATTEMPT + SILENCE + CONNECT, work).await.unwrap_or_else(|_| late());
        heard.map_err(|failure| match failure {
            Failure::NotDone(cause) | Failure::Unclear(cause) | Failure::Refused(cause) => {
                format!("{endpoint}: {cause}")
            }
            Failure::NoLease => format!("{endpoint}: an answer to something else"),
        })
    }
}
