//! What a process shows to others.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::ring::{default_provider, kx_group::X25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

use crate::authority::{SERVER_NAME, keys};
use crate::error::TrustError;
use crate::opening::Opening;
use crate::sealed::Sealed;

/// What is spoken over a connection: a name and a version, such as `fulmen-rail/1`. Both ends must name the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Protocol(pub &'static [u8]);

/// A key of this process and its certificate. Clones are the same identity, and cheap. `Debug` prints nothing of it.
#[derive(Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Identity, TrustError> {
        let provider = provider();
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(keys)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(keys)?;
        // Each connection shows anew who is there, and nothing of an earlier one helps with it.
        client.resumption = Resumption::disabled();
        client.enable_sni = false;

        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(keys)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(keys)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(keys)?;
        no_resumption(&mut server);
        Ok(Identity { client: Arc::new(client), server: Arc::new(server) })
    }

    /// How this process opens connections of a protocol, for whoever drives them by itself.
    #[must_use]
    pub fn client(&self, protocol: Protocol) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = vec![protocol.0.to_vec()];
        Arc::new(config)
    }

    /// How this process accepts connections of a protocol, for whoever drives them by itself. The other end has to have a
    /// certificate of the same authority.
    #[must_use]
    pub fn server(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.server);
        config.alpn_protocols = vec![protocol.0.to_vec()];
        Arc::new(config)
    }

    /// Seals a connection that this process has opened. Returns within the time until `end`.
    ///
    /// That this end is trusted is known once the other one has said something: until then, the first
    /// [read](Sealed::read) may tell that it is not.
    ///
    /// # Errors
    /// [`TrustError`], which says whether the other end is no TLS, a stranger, of another version, late or gone.
    pub fn connect(&self, stream: TcpStream, protocol: Protocol, end: Instant) -> Result<Sealed, TrustError> {
        self.begin_connect(stream, protocol).finish(end)
    }

    /// Seals a connection that this process has accepted. Returns within the time until `end`.
    ///
    /// # Errors
    /// [`TrustError`], as [`Identity::connect`].
    pub fn accept(&self, stream: TcpStream, protocol: Protocol, end: Instant) -> Result<Sealed, TrustError> {
        self.begin_accept(stream, protocol).finish(end)
    }

    /// As [`Identity::connect`], for a thread that serves others meanwhile. The socket never waits from here on.
    #[must_use]
    pub fn begin_connect(&self, stream: TcpStream, protocol: Protocol) -> Opening {
        let tls = ClientConnection::new(self.client(protocol), server_name()).map_err(keys);
        Opening::new(stream, tls.map(Connection::from), protocol.0)
    }

    /// As [`Identity::accept`], for a thread that serves others meanwhile. The socket never waits from here on.
    #[must_use]
    pub fn begin_accept(&self, stream: TcpStream, protocol: Protocol) -> Opening {
        let tls = ServerConnection::new(self.server(protocol)).map_err(keys);
        Opening::new(stream, tls.map(Connection::from), protocol.0)
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        // The first is fast wherever processors have AES, the second where they have not. 128 bits are what the exchange of
        // keys has, too.
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256],
        kx_groups: vec![X25519],
        ..default_provider()
    })
}

/// Each connection shows anew who is there.
pub(crate) fn no_resumption(server: &mut ServerConfig) {
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
}

/// The name that every certificate is for.
#[must_use]
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from(SERVER_NAME).expect("a good name")
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol({})", self.0.escape_ascii())
    }
}
