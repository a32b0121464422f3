//! Connections between the nodes of a cluster: HTTP over mutual TLS, in which each end is the node whose key it shows.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use fulmen_trust::{Identity as Seal, Protocol, Welcome, fingerprint, server_name};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};

use super::identity::{Identity, hex};
use super::members::View;
use crate::registry::{Carrier, CarrierError};

/// What nodes speak, and what newcomers speak with them.
const NODES: Protocol = Protocol(b"fulmen-agent/1");
pub(super) const NEWCOMERS: Protocol = Protocol(b"fulmen-join/1");

/// How long a connection may take until both ends know each other.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a newcomer's connection may last.
const VISIT: Duration = Duration::from_secs(60);
/// Handshakes that are under way at a time, and connections whose turn it is not yet.
const GUESTS: usize = 64;
/// The longest answer of a registry.
const ANSWER: usize = 64 << 20;
/// How long the opening of a connection goes on at least, also when the request for which it was to be has given up: those of registries
/// take less time than a handshake with a node that is far away, or has much to do.
const OPENING: Duration = Duration::from_secs(2);
/// Connections to a node that are kept for the next request.
const IDLE: usize = 4;

pub(super) type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn full(bytes: Vec<u8>) -> Body {
    BodyExt::boxed_unsync(Full::new(Bytes::from(bytes)).map_err(|never| match never {}))
}

/// Why a node was not reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("there is no node {0} in this cluster: fulmen status lists them")]
    Unknown(String),
    #[error("node {node} has told nobody where it can be reached: see whether it was ever up")]
    NoAddress { node: String },
    #[error("node {node} is not reached at {address} ({cause}): it may be down, or cut off from here")]
    NotReached { node: String, address: String, cause: String },
    #[error("at {address} is not node {node}, but somebody with another key")]
    Stranger { node: String, address: String },
}

/// What to do with a connection so that its end is noticed when the other host is gone.
pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    // The same for what was sent and is not acknowledged.
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, 10_000)?;
    Ok(())
}

/// The ways to the other nodes.
pub(super) struct Peers {
    /// This node's number.
    own: u64,
    seal: Seal,
    view: watch::Receiver<View>,
    idle: Mutex<HashMap<u64, Vec<SendRequest<Body>>>>,
    /// These, for what goes on in the background.
    this: Weak<Peers>,
}

impl Peers {
    pub(super) fn new(own: u64, seal: Seal, view: watch::Receiver<View>) -> Arc<Peers> {
        Arc::new_cyclic(|this| Peers { own, seal, view, idle: Mutex::default(), this: this.clone() })
    }

    /// Opens a connection to a node.
    pub(super) async fn open(&self, node: &str) -> Result<SendRequest<Body>, PeerError> {
        let (wanted, address) = {
            let view = self.view.borrow();
            let record = view.nodes.get(node).ok_or_else(|| PeerError::Unknown(node.into()))?;
            let address = view.addresses.get(node).cloned();
            (record.fingerprint.clone(), address.ok_or_else(|| PeerError::NoAddress { node: node.into() })?)
        };
        let not_reached = |cause: String| PeerError::NotReached { node: node.into(), address: address.clone(), cause };
        let dial = async {
            let tcp = TcpStream::connect(&address).await?;
            keep_alive(&tcp)?;
            TlsConnector::from(self.seal.client(NODES)).connect(server_name(), tcp).await
        };
        let tls: client::TlsStream<TcpStream> = timeout(HANDSHAKE, dial)
            .await
            .map_err(|_| not_reached(format!("no answer for {} s", HANDSHAKE.as_secs())))?
            .map_err(|error| not_reached(error.to_string()))?;
        let shown = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        if shown.is_none_or(|shown| hex(&fingerprint(shown)) != wanted) {
            return Err(PeerError::Stranger { node: node.into(), address });
        }
        let (sender, connection) =
            http1::handshake(TokioIo::new(tls)).await.map_err(|error| not_reached(error.to_string()))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn take(&self, id: u64) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(&id)?;
        std::iter::from_fn(|| kept.pop()).find(|sender| sender.is_ready())
    }

    fn give_back(&self, id: u64, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.entry(id).or_default();
        if kept.len() < IDLE {
            kept.push(sender);
        }
    }

    /// Opens a connection to a node, which the next request has if this one does not wait for it.
    async fn open_kept(&self, id: u64, node: String, limit: Duration) -> Result<SendRequest<Body>, PeerError> {
        let (wanted, opened) = oneshot::channel();
        let this = self.this.clone();
        tokio::spawn(async move {
            let Some(peers) = this.upgrade() else { return };
            if let Ok(result) = timeout(limit.max(OPENING), peers.open(&node)).await
                && let Err(Ok(sender)) = wanted.send(result)
            {
                peers.give_back(id, sender);
            }
        });
        match opened.await {
            Ok(result) => result,
            // Who asks has a limit, too, which is not longer.
            Err(_) => std::future::pending().await,
        }
    }

    async fn bring(&self, to: u64, kind: &str, body: Vec<u8>, limit: Duration) -> Result<Vec<u8>, CarrierError> {
        let not_reached = |error: PeerError| CarrierError::NotReached(io::Error::other(error.to_string()));
        let no_answer = |error: &dyn std::fmt::Display| CarrierError::NoAnswer(io::Error::other(error.to_string()));
        let name = self.view.borrow().named(to).map(str::to_owned);
        let name = name.ok_or_else(|| not_reached(PeerError::Unknown(to.to_string())))?;
        let mut sender = match self.take(to) {
            Some(sender) => sender,
            None => self.open_kept(to, name, limit).await.map_err(not_reached)?,
        };
        let request =
            Request::post(format!("/v1/registry/{kind}")).header(hyper::header::HOST, "agent").body(full(body));
        let response = sender.send_request(request.map_err(|error| no_answer(&error))?).await;
        let response: Response<Incoming> = response.map_err(|error| no_answer(&error))?;
        let status = response.status();
        let answer = http_body_util::Limited::new(response.into_body(), ANSWER).collect().await;
        let answer = answer.map_err(|error| no_answer(&error))?.to_bytes().to_vec();
        self.give_back(to, sender);
        if !status.is_success() {
            return Err(no_answer(&format!("{status}: {}", String::from_utf8_lossy(&answer))));
        }
        Ok(answer)
    }
}

impl Carrier for Peers {
    fn nodes(&self) -> Vec<u64> {
        let view = self.view.borrow();
        let others =
            view.nodes.iter().filter(|(name, record)| view.addresses.contains_key(*name) && record.id != self.own);
        others.map(|(_, record)| record.id).collect()
    }

    fn carry<'a>(
        &'a self,
        to: u64,
        kind: &'static str,
        body: Vec<u8>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<u8>, CarrierError>> {
        async move {
            let late = |_| CarrierError::NoAnswer(io::ErrorKind::TimedOut.into());
            timeout(limit, self.bring(to, kind, body, limit)).await.map_err(late)?
        }
        .boxed()
    }
}

/// Who is at the other end of a connection that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// Of its certificate, in hex; of a newcomer, none.
    pub(super) fingerprint: Option<String>,
    pub(super) address: String,
}

/// A connection that was accepted, and ends when the node at its other end is removed from the cluster, also in the middle of something; a
/// newcomer's after a while.
pub(super) struct Guarded {
    tls: server::TlsStream<TcpStream>,
    /// Ready, and gone then, when the other end is no node any more.
    removed: Option<BoxFuture<'static, ()>>,
    over: bool,
}

impl Guarded {
    fn new(tls: server::TlsStream<TcpStream>, peer: &Peer, mut view: watch::Receiver<View>) -> Guarded {
        let fingerprint = peer.fingerprint.clone();
        let removed = async move {
            let Some(fingerprint) = fingerprint else { return sleep(VISIT).await };
            // Whoever is new here may not be known yet.
            for known in [true, false] {
                let wanted = |view: &View| view.of_fingerprint(&fingerprint).is_some() == known;
                if view.wait_for(wanted).await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        Guarded { tls, removed: Some(removed.boxed()), over: false }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(removed) = &mut self.removed
            && removed.as_mut().poll(cx).is_ready()
        {
            (self.removed, self.over) = (None, true);
        }
        if self.over {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.tls).poll_read(cx, to)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if self.over {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.tls).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

type Accepted = (Guarded, Peer);

/// Connections of one kind, after their handshake.
pub(super) struct Gate {
    accepted: mpsc::Receiver<Accepted>,
}

impl Listener for Gate {
    type Io = Guarded;
    type Addr = Peer;

    async fn accept(&mut self) -> Accepted {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The agent ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { fingerprint: None, address: String::new() })
    }
}

/// How connections are accepted.
struct Doors {
    nodes: (Arc<ServerConfig>, mpsc::Sender<Accepted>),
    newcomers: (Arc<ServerConfig>, mpsc::Sender<Accepted>),
    view: watch::Receiver<View>,
}

/// Accepts connections until it is dropped: those of nodes of this cluster, and of newcomers.
pub(super) fn accept(
    listener: TcpListener,
    identity: &Identity,
    view: watch::Receiver<View>,
) -> Result<(Gate, Gate), fulmen_trust::TrustError> {
    let seal = identity.key.identity(&identity.root, &identity.certificate)?;
    let welcome = Welcome::server(&identity.key, &identity.root, &identity.certificate, NEWCOMERS)?;
    let (nodes, from_nodes) = mpsc::channel(GUESTS);
    let (newcomers, from_newcomers) = mpsc::channel(GUESTS);
    let doors = Arc::new(Doors { nodes: (seal.server(NODES), nodes), newcomers: (welcome, newcomers), view });
    let places = Arc::new(tokio::sync::Semaphore::new(GUESTS));
    tokio::spawn(async move {
        loop {
            let place = places.clone().acquire_owned().await;
            let (tcp, address) = tokio::select! {
                () = doors.nodes.1.closed() => return,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not accepted");
                        // Nothing tells when the system has descriptors again.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let doors = doors.clone();
            tokio::spawn(async move {
                match timeout(HANDSHAKE, doors.open(tcp, address.to_string())).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::info!(%address, %error, "a connection was refused"),
                    Err(_) => tracing::info!(%address, "a connection was refused: it took too long"),
                }
                drop(place);
            });
        }
    });
    Ok((Gate { accepted: from_nodes }, Gate { accepted: from_newcomers }))
}

impl Doors {
    async fn open(&self, tcp: TcpStream, address: String) -> io::Result<()> {
        keep_alive(&tcp)?;
        let hello = LazyConfigAcceptor::new(Default::default(), tcp).await?;
        let newcomer = hello.client_hello().alpn().is_some_and(|mut all| all.any(|name| name == NEWCOMERS.0));
        let (config, to) = if newcomer { &self.newcomers } else { &self.nodes };
        let tls = hello.into_stream(config.clone()).await?;
        let shown = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer = Peer { fingerprint: shown.map(|certificate| hex(&fingerprint(certificate))), address };
        let _ = to.send((Guarded::new(tls, &peer, self.view.clone()), peer)).await;
        Ok(())
    }
}
