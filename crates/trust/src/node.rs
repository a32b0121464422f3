//! The keys of nodes, which outlive their processes, and how newcomers come.

use std::fmt;
use std::sync::Arc;

use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SignatureAlgorithm};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, ServerConfig};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::authority::keys;
use crate::error::TrustError;
use crate::identity::{Identity, Protocol, no_resumption, provider};

/// What tells a certificate from all others: a hash of it.
#[must_use]
pub fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    *blake3::hash(certificate).as_bytes()
}

/// A node's public key (Ed25519).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// A node's key, which never leaves it. `Debug` prints nothing of it.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// A new one.
    ///
    /// # Errors
    /// [`TrustError::Keys`] if the system gives no random bytes.
    pub fn generate() -> Result<NodeKey, TrustError> {
        KeyPair::generate_for(&PKCS_ED25519).map(NodeKey).map_err(keys)
    }

    /// One that was [kept](NodeKey::to_bytes).
    ///
    /// # Errors
    /// [`TrustError::Keys`] if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<NodeKey, TrustError> {
        let document = PrivatePkcs8KeyDer::from(bytes);
        KeyPair::from_pkcs8_der_and_sign_algo(&document, &PKCS_ED25519).map(NodeKey).map_err(keys)
    }

    /// To be kept where nobody else can read it (PKCS #8, DER).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.serialize_der()
    }

    /// What others may know of it.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.der_bytes().try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// The identity of a node whose certificate the authority has made, whose own certificate is `root`.
    ///
    /// # Errors
    /// [`TrustError::Keys`] if the certificates are damaged, or not this key's.
    pub fn identity(&self, root: &[u8], certificate: &[u8]) -> Result<Identity, TrustError> {
        let root = CertificateDer::from(root.to_vec());
        let chain = vec![CertificateDer::from(certificate.to_vec()), root.clone()];
        Identity::new(roots(&root).map_err(keys)?, chain, PrivateKeyDer::Pkcs8(self.to_bytes().into()))
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

fn roots(root: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone())?;
    Ok(Arc::new(roots))
}

/// What a newcomer knows an authority by: a hash of its public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin(pub [u8; 32]);

impl Pin {
    pub(crate) fn of_key(public: &[u8]) -> Pin {
        Pin(*blake3::hash(public).as_bytes())
    }
}

/// Connections between a newcomer, which has no certificate, and a node.
pub struct Welcome;

impl Welcome {
    /// How a newcomer opens one: to a node of the authority with this pin, and to nobody else.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn client(pin: Pin, protocol: Protocol) -> Result<Arc<ClientConfig>, TrustError> {
        let verifier = Arc::new(Pinned { pin });
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(keys)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.alpn_protocols = vec![protocol.0.to_vec()];
        Ok(Arc::new(config))
    }

    /// How a node accepts one: from anybody, of whom nothing is known.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn server(
        key: &NodeKey,
        root: &[u8],
        certificate: &[u8],
        protocol: Protocol,
    ) -> Result<Arc<ServerConfig>, TrustError> {
        let chain = vec![CertificateDer::from(certificate.to_vec()), CertificateDer::from(root.to_vec())];
        let nobody: Arc<dyn ClientCertVerifier> = Arc::new(NoClientAuth);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(keys)?
            .with_client_cert_verifier(nobody)
            .with_single_cert(chain, PrivateKeyDer::Pkcs8(key.to_bytes().into()))
            .map_err(keys)?;
        no_resumption(&mut config);
        config.alpn_protocols = vec![protocol.0.to_vec()];
        Ok(Arc::new(config))
    }
}

/// Takes the root that a server shows if it is the one with the pin, and then checks the server's certificate as ever.
#[derive(Debug)]
struct Pinned {
    pin: Pin,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let pinned = |root: &&CertificateDer<'_>| {
            let anchor = webpki_key(root);
            anchor.is_some_and(|key| Pin::of_key(&key) == self.pin)
        };
        let root = intermediates.iter().find(pinned).ok_or_else(unknown)?.clone().into_owned();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(&root)?, provider()).build();
        verifier.map_err(|_| unknown())?.verify_server_cert(end_entity, &[], server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The public key of a certificate: 32 bytes, as all of this crate's are.
fn webpki_key(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    // RFC 8410: the algorithm with no parameters, and a bit string of 33 bytes, the first of which says that no bits are unused.
    const ED25519_SPKI: [u8; 10] = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    let store = roots(&certificate.clone().into_owned()).ok()?;
    let spki = store.roots.first()?.subject_public_key_info.as_ref().to_vec();
    spki.strip_prefix(&ED25519_SPKI)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustls::{ClientConnection, ServerConnection, StreamOwned};

    use super::*;
    use crate::Authority;
    use crate::identity::server_name;

    const HELLO: Protocol = Protocol(b"hello/1");

    fn node(authority: &Authority, name: &str) -> (NodeKey, Vec<u8>) {
        let key = NodeKey::generate().unwrap();
        let certificate = authority.admit(name, &key.public()).unwrap();
        (key, certificate)
    }

    /// What comes of a connection at its client.
    fn meet(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> std::io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let limit = Some(Duration::from_secs(30));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (tcp, _) = listener.accept().unwrap();
                tcp.set_read_timeout(limit).unwrap();
                let mut tls = StreamOwned::new(ServerConnection::new(server).unwrap(), tcp);
                let mut byte = [0];
                if tls.read_exact(&mut byte).is_ok() {
                    let _ = tls.write_all(b"welcome").and_then(|()| tls.flush());
                }
            });
            let tcp = TcpStream::connect(address)?;
            tcp.set_read_timeout(limit)?;
            let mut tls = StreamOwned::new(ClientConnection::new(client, server_name()).unwrap(), tcp);
            tls.write_all(b"?")?;
            let mut words = vec![0; 7];
            tls.read_exact(&mut words)?;
            Ok(words)
        })
    }

    #[test]
    fn a_newcomer_knows_the_authority_by_its_pin() {
        let authority = Authority::of_cluster(&[1; 32]).unwrap();
        let (key, certificate) = node(&authority, "a");
        let server = || Welcome::server(&key, &authority.root(), &certificate, HELLO).unwrap();
        assert_eq!(meet(Welcome::client(authority.pin(), HELLO).unwrap(), server()).unwrap(), b"welcome");
        let other = Authority::of_cluster(&[2; 32]).unwrap();
        meet(Welcome::client(other.pin(), HELLO).unwrap(), server()).unwrap_err();
        // One that shows the right root has no certificate of it.
        let (key, certificate) = node(&other, "a");
        let liar = Welcome::server(&key, &authority.root(), &certificate, HELLO).unwrap();
        meet(Welcome::client(authority.pin(), HELLO).unwrap(), liar).unwrap_err();
        // A world of the same secret is another one.
        assert_ne!(Authority::from_secret(&[1; 32]).unwrap().pin(), authority.pin());
    }

    #[test]
    fn nodes_know_each_other_and_no_stranger() {
        let authority = Authority::of_cluster(&[1; 32]).unwrap();
        let identity = |authority: &Authority, name: &str| {
            let (key, certificate) = node(authority, name);
            // As after a restart.
            let key = NodeKey::from_bytes(&key.to_bytes()).unwrap();
            key.identity(&authority.root(), &certificate).unwrap()
        };
        let (a, b) = (identity(&authority, "a"), identity(&authority, "b"));
        assert_eq!(meet(a.client(HELLO), b.server(HELLO)).unwrap(), b"welcome");
        meet(a.client(HELLO), b.server(Protocol(b"hello/2"))).unwrap_err();
        let stranger = identity(&Authority::of_cluster(&[2; 32]).unwrap(), "a");
        meet(stranger.client(HELLO), b.server(HELLO)).unwrap_err();
        meet(Welcome::client(authority.pin(), HELLO).unwrap(), b.server(HELLO)).unwrap_err();
    }

    #[test]
    fn keys_are_kept_and_not_printed() {
        let key = NodeKey::generate().unwrap();
        assert_eq!(NodeKey::from_bytes(&key.to_bytes()).unwrap().public(), key.public());
        assert!(NodeKey::from_bytes(b"no key").is_err());
        assert_eq!(format!("{key:?}"), "NodeKey(..)");
        let authority = Authority::of_cluster(&[1; 32]).unwrap();
        let other = NodeKey::generate().unwrap();
        let certificate = authority.admit("a", &other.public()).unwrap();
        assert!(key.identity(&authority.root(), &certificate).is_err(), "another key's certificate");
    }
}
