//! How nodes come to belong to a cluster.
//!
//! A node that votes makes a *token*, which tells where the cluster is, by which hash its authority is known, and a secret. The newcomer
//! connects to a node that has a certificate of that authority, shows the secret and a key of its own, and gets a certificate. Of the
//! secret, the cluster knows but a hash. A token is good for a time, which is counted by elapsed time and not by anybody's clock, and
//! for so many newcomers.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use fulmen_trust::{NodeKey, Pin, PublicKey, TrustError, Welcome, server_name};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::api::{Refusal, TokenRequest};
use super::cluster::{Cluster, put};
use super::identity::{Admission, Identity, hex, number, random};
use super::members::{NODES, NodeRecord, TOKENS};
use super::peers::{self, NEWCOMERS};
use super::state::{State, StateError, registry};
use super::{check_name, now_ms};
use crate::registry::{Condition, Embedded, EtcdAddress, OpenError, RegistryError, Verdict, Write};

/// What a token begins with.
const START: &str = "fulmen1-";
/// How long one node of the cluster may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer.
const ANSWER: usize = 16 << 20;
/// Nodes that a token names.
const NAMED: usize = 4;

/// What a token says.
#[derive(Serialize, Deserialize)]
struct Token {
    addresses: Vec<String>,
    pin: [u8; 32],
    secret: [u8; 16],
}

/// What the cluster keeps of it, under a hash of its secret.
#[derive(Serialize, Deserialize)]
struct TokenRecord {
    role: String,
    left: u32,
    by: String,
}

/// A newcomer's request.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JoinRequest {
    /// In base64.
    secret: String,
    pub(super) name: String,
    /// In base64.
    public_key: String,
}

/// Why a node does not belong to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The token is none.
    #[error("this is no token ({0}): take what `fulmen token` prints on a node of the cluster, whole")]
    Token(&'static str),
    /// It belongs to one already.
    #[error("the node with the state in {} belongs to a cluster already: take another directory (--state), or have it leave (fulmen down --leave)", .0)]
    Member(String),
    /// The registry is no majority of nodes.
    #[error(
        "the cluster of this node agrees in the registry {0}, whatever nodes are left: leave --recover out, and see to it that this is up"
    )]
    Elsewhere(EtcdAddress),
    /// Nobody there answers.
    #[error("no node of the cluster answers: {0}")]
    NotReached(String),
    /// The cluster has refused.
    #[error("{0}")]
    Refused(String),
    /// There is nothing to go on with.
    #[error(
        "the node with the state in {0} has no vote in a cluster, with which it could go on: take a member's state (--state)"
    )]
    Nothing(String),
    /// Its part of the registry cannot be used.
    #[error(transparent)]
    Registry(#[from] OpenError),
    /// The name cannot be a node's.
    #[error(transparent)]
    Name(#[from] super::NameError),
    /// The state cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// There are no keys.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

impl Token {
    fn text(&self) -> String {
        let bytes = postcard::to_stdvec(self).expect("plain data");
        format!("{START}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    fn parse(text: &str) -> Result<Token, JoinError> {
        let rest = text.trim().strip_prefix(START).ok_or(JoinError::Token("it begins with something else"))?;
        let bytes = URL_SAFE_NO_PAD.decode(rest).map_err(|_| JoinError::Token("it has letters that no token has"))?;
        let token = postcard::take_from_bytes::<Token>(&bytes);
        match token {
            Ok((token, [])) if !token.addresses.is_empty() => Ok(token),
            _ => Err(JoinError::Token("a part of it is missing, or more than it")),
        }
    }
}

fn hash(secret: &[u8]) -> String {
    hex(blake3::hash(secret).as_bytes())
}

/// Makes the node whose state is to be in this directory belong to the cluster that made the token, under a name. No agent is up there
/// yet; one that is started then finds its cluster.
///
/// # Errors
/// [`JoinError`].
pub async fn join(state: &Path, token: &str, name: &str) -> Result<(), JoinError> {
    let token = Token::parse(token)?;
    check_name(name)?;
    let state = State::take(state)?;
    if Identity::load(state.directory())?.is_some() {
        return Err(JoinError::Member(state.directory().display().to_string()));
    }
    let key = NodeKey::generate()?;
    let request = JoinRequest {
        secret: STANDARD.encode(token.secret),
        name: name.into(),
        public_key: STANDARD.encode(key.public().0),
    };
    let mut problems = Vec::new();
    for address in &token.addresses {
        match timeout(PATIENCE, ask(address, Pin(token.pin), &request)).await {
            Ok(Ok(Ok(admission))) => {
                Identity::admitted(name, key, admission)?.save(state.directory())?;
                return Ok(());
            }
            Ok(Ok(Err(refusal))) => return Err(JoinError::Refused(refusal)),
            Ok(Err(problem)) => problems.push(format!("{address}: {problem}")),
            Err(_) => problems.push(format!("{address}: no answer for {} s", PATIENCE.as_secs())),
        }
    }
    Err(JoinError::NotReached(problems.join("; ")))
}

/// Makes the node whose state is in this directory the only one that votes, where the majority of its cluster is lost for good. No agent is
/// up there. If the others are only cut off, there are two clusters from then on.
///
/// # Errors
/// [`JoinError`]; [`JoinError::Nothing`] if there is no cluster to go on with.
pub async fn recover(state: &Path) -> Result<(), JoinError> {
    let state = State::take(state)?;
    let nothing = || JoinError::Nothing(state.directory().display().to_string());
    let identity =
        Identity::load(state.directory())?.filter(|identity| identity.secret.is_some()).ok_or_else(nothing)?;
    if let Some(registry) = identity.registry {
        return Err(JoinError::Elsewhere(registry));
    }
    Ok(Embedded::recover(identity.id, &registry(state.directory())).await?)
}

/// Asks one node: what it gave, or why it has refused.
async fn ask(
    address: &str,
    pin: Pin,
    request: &JoinRequest,
) -> Result<Result<Admission, String>, Box<dyn std::error::Error + Send + Sync>> {
    let tcp = TcpStream::connect(address).await?;
    peers::keep_alive(&tcp)?;
    let tls = TlsConnector::from(Welcome::client(pin, NEWCOMERS)?).connect(server_name(), tcp).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post("/v1/join")
        .header(hyper::header::HOST, "agent")
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .body(peers::full(serde_json::to_vec(request)?))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = http_body_util::Limited::new(response.into_body(), ANSWER).collect().await?.to_bytes();
    connection.abort();
    if status.is_success() {
        return Ok(Ok(serde_json::from_slice(&body)?));
    }
    Ok(Err(serde_json::from_slice::<Refusal>(&body)?.error))
}

/// Why nobody is let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdmitError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Trust(#[from] TrustError),
}

impl Cluster {
    /// Makes a token.
    pub(super) async fn make_token(&self, request: &TokenRequest) -> Result<String, AdmitError> {
        let Some(authority) = self.authority() else {
            let problem = "this node may not let others in: ask a node that votes (fulmen status lists them)";
            return Err(AdmitError::Refused(problem.into()));
        };
        if request.uses == 0 || request.valid_ms == 0 {
            return Err(AdmitError::Invalid("a token for nobody, or for no time, is of no use".into()));
        }
        check_name(&request.role).map_err(|error| AdmitError::Invalid(error.to_string()))?;
        let secret = random()?;
        let record = TokenRecord { role: request.role.clone(), left: request.uses, by: self.name().into() };
        let lease = self.registry.grant(Duration::from_millis(request.valid_ms)).await?;
        self.registry.write(Write::new(vec![put(TOKENS, &hash(&secret), &record, Some(lease))])).await?;
        let others = {
            let view = self.view();
            let votes = |name: &&String| view.role_of(name).is_some_and(|role| role.votes) && **name != self.name();
            view.nodes.keys().filter(votes).filter_map(|name| view.addresses.get(name).cloned()).collect::<Vec<_>>()
        };
        let addresses = std::iter::once(self.address().to_owned()).chain(others).take(NAMED).collect();
        Ok(Token { addresses, pin: authority.pin().0, secret }.text())
    }

    /// Lets a newcomer in, if its token is good.
    pub(super) async fn admit(&self, request: &JoinRequest) -> Result<(Admission, String), AdmitError> {
        let refused = |problem: String| AdmitError::Refused(problem);
        let invalid = |problem: &str| AdmitError::Invalid(problem.into());
        check_name(&request.name).map_err(|error| AdmitError::Invalid(error.to_string()))?;
        let secret = STANDARD.decode(&request.secret).map_err(|_| invalid("the secret is not in base64"))?;
        let public = STANDARD.decode(&request.public_key).ok().and_then(|key| key.try_into().ok());
        let public = PublicKey(public.ok_or_else(|| invalid("the key is no Ed25519 key in base64"))?);
        let authority = self.authority().ok_or_else(|| refused("this node may not let others in".into()))?;
        // Whoever is let in has to find the cluster again.
        let known = timeout(PATIENCE / 2, self.known()).await;
        let known =
            known.map_err(|_| refused("this node is not in touch with its cluster: try another, or later".into()))?;
        let (token, node) = (format!("{TOKENS}/{}", hash(&secret)), format!("{NODES}/{}", request.name));
        loop {
            let tokens = self.registry.read(TOKENS).await?;
            let entry = tokens.entries.into_iter().find(|entry| entry.key == token);
            let record = entry.as_ref().and_then(|entry| serde_json::from_slice::<TokenRecord>(&entry.value).ok());
            let (Some(entry), Some(record)) = (entry, record) else {
                let problem = "the token is not good any more, or never was: make another one (fulmen token)";
                return Err(refused(problem.into()));
            };
            if record.left == 0 {
                let problem = "the token was used already, as often as it can be: make another one (fulmen token)";
                return Err(refused(problem.into()));
            }
            if self.registry.read(NODES).await?.entries.iter().any(|entry| entry.key == node) {
                let name = &request.name;
                let problem = format!(
                    "there is a node {name} already: take another name (--name), or remove it (fulmen remove {name})"
                );
                return Err(refused(problem));
            }
            let certificate = authority.admit(&request.name, &public)?;
            let role = self.view().role(&record.role);
            let new = NodeRecord {
                id: number()?,
                fingerprint: hex(&fulmen_trust::fingerprint(&certificate)),
                role: record.role.clone(),
                joined_ms: now_ms(),
                leaving: false,
            };
            let id = new.id;
            let left = TokenRecord { left: record.left - 1, ..record };
            let when = vec![Condition::Version(token.clone(), entry.version), Condition::Absent(node.clone())];
            let then = vec![put(TOKENS, &hash(&secret), &left, entry.lease), put(NODES, &request.name, &new, None)];
            if self.registry.write(Write { when, then }).await? == Verdict::Refused {
                continue;
            }
            let authority_secret = self.identity.secret.filter(|_| role.votes).map(|secret| STANDARD.encode(secret));
            let (root, registry) = (authority.root(), self.identity.registry.clone());
            let admission = Admission { id, certificate, root, authority: authority_secret, known, registry };
            return Ok((admission, left.role));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_is_read_whole_or_not_at_all() {
        let token = Token { addresses: vec!["10.0.0.1:7387".into()], pin: [1; 32], secret: [2; 16] };
        let text = token.text();
        let again = Token::parse(&format!(" {text}\n")).unwrap();
        assert_eq!((again.addresses, again.pin, again.secret), (token.addresses, token.pin, token.secret));
        for cut in 0..text.len() {
            assert!(Token::parse(&text[..cut]).is_err(), "{cut}");
        }
        assert!(Token::parse(&format!("{text}AAAA")).is_err());
        let nowhere = Token { addresses: vec![], pin: [1; 32], secret: [2; 16] };
        assert!(Token::parse(&nowhere.text()).is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_is_no_token_does_harm(text in "(fulmen1-)?[-_A-Za-z0-9]{0,200}") {
            let _ = Token::parse(&text);
        }
    }
}
