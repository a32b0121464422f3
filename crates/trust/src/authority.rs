//! The authority of a world, and what it issues.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, PublicKeyData, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::TrustError;
use crate::identity::Identity;
use crate::node::{Pin, PublicKey};

/// What the secret is derived for. Another use of the same secret has another text, and so another key.
const CONTEXT: &str = "fulmen-trust 2026-11-22 authority of a world, Ed25519 seed";
const CLUSTER: &str = "fulmen-trust 2026-11-26 authority of a cluster, Ed25519 seed";
/// RFC 8410: a private key in PKCS #8, version 1, up to its 32 bytes.
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// Every certificate is for this name: who an end is does not depend on the address by which it was reached.
pub(crate) const SERVER_NAME: &str = "fulmen";
/// The longest name of an identity, in bytes. What is longer is cut.
pub const MAX_NAME: usize = 128;

/// The keys of a world: the same in every process that holds its secret. `Debug` prints nothing of them.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

struct Inner {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    /// Derives the authority of the world that has this secret. Whoever has it can do the same.
    ///
    /// # Errors
    /// [`TrustError::Keys`]; never for want of a good secret, since all are.
    pub fn from_secret(secret: &[u8; 32]) -> Result<Authority, TrustError> {
        Authority::derive(CONTEXT, secret)
    }

    /// Derives the authority of the cluster that has this secret, which [admits](Authority::admit) nodes.
    ///
    /// # Errors
    /// [`TrustError::Keys`]; never for want of a good secret, since all are.
    pub fn of_cluster(secret: &[u8; 32]) -> Result<Authority, TrustError> {
        Authority::derive(CLUSTER, secret)
    }

    fn derive(context: &str, secret: &[u8; 32]) -> Result<Authority, TrustError> {
        let seed = blake3::derive_key(context, secret);
        let document = PrivatePkcs8KeyDer::from([&ED25519_PKCS8[..], &seed].concat());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&document, &PKCS_ED25519).map_err(keys)?;

        let mut params = params("fulmen authority")?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).map_err(keys)?;
        let root = certificate.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).map_err(keys)?;
        Ok(Authority(Arc::new(Inner { issuer: Issuer::new(params, key), root, roots: Arc::new(roots) })))
    }

    /// What a newcomer knows it by, before it has anything of the cluster: a hash of its public key.
    #[must_use]
    pub fn pin(&self) -> Pin {
        Pin::of_key(self.0.issuer.key().der_bytes())
    }

    /// Its own certificate, in DER: what its nodes trust.
    #[must_use]
    pub fn root(&self) -> Vec<u8> {
        self.0.root.to_vec()
    }

    /// Certifies a node's key under a name, for good: the certificate, in DER. Whether it is let in is for the cluster to say each time.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn admit(&self, name: &str, public: &PublicKey) -> Result<Vec<u8>, TrustError> {
        Ok(self.issue(name, public)?.to_vec())
    }

    /// Issues an identity for a key made now. `name` is told to the other ends ([`Sealed::peer`](crate::Sealed::peer)), and
    /// proves nothing: each process that holds the secret can take any.
    ///
    /// # Errors
    /// [`TrustError::Keys`] if the system gives no random bytes.
    pub fn identity(&self, name: &str) -> Result<Identity, TrustError> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(keys)?;
        let certificate = self.issue(name, &key)?;
        let document = PrivatePkcs8KeyDer::from(key.serialize_der());
        Identity::new(self.0.roots.clone(), vec![certificate], PrivateKeyDer::Pkcs8(document))
    }

    fn issue(&self, name: &str, key: &impl PublicKeyData) -> Result<CertificateDer<'static>, TrustError> {
        let mut params = params(&name[..name.floor_char_boundary(MAX_NAME)])?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        Ok(params.signed_by(key, &self.0.issuer).map_err(keys)?.der().clone())
    }
}

/// What all certificates have in common. They do not expire: the secret does, with its world, and a host whose clock is
/// wrong must not be taken for a stranger.
fn params(name: &str) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(keys)?;
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

pub(crate) fn keys(error: impl fmt::Display) -> TrustError {
    TrustError::Keys(error.to_string())
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(..)")
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) fn sample(name: &str) -> Vec<u8> {
    let authority = Authority::from_secret(&[0; 32]).expect("every secret has an authority");
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    authority.issue(name, &key).expect("a certificate").to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: u8) -> Vec<u8> {
        Authority::from_secret(&[secret; 32]).unwrap().0.issuer.key().der_bytes().to_vec()
    }

    #[test]
    fn a_secret_has_one_authority_and_another_secret_another() {
        assert_eq!(key(1), key(1));
        assert_ne!(key(1), key(2));
        // Hosts of different builds must derive the same: this key is part of the protocol.
        let hex: String = key(0).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "9c0fef9445a6938be868e2e8a95735290ddf617cb9f2e5c1848af6728a8134d2");
    }

    #[test]
    fn every_identity_has_a_key_of_its_own_and_the_name_that_it_was_given() {
        let authority = Authority::from_secret(&[1; 32]).unwrap();
        let issued = |name: &str| {
            let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            authority.issue(name, &key).unwrap()
        };
        assert_ne!(issued("a"), issued("a"));
        let long = "ä".repeat(200);
        for (name, told) in [("rank 3, pid 77", "rank 3, pid 77"), ("", ""), (&long, &long[..MAX_NAME])] {
            assert_eq!(crate::name::of(&issued(name)).unwrap(), told);
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let authority = Authority::from_secret(&[1; 32]).unwrap();
        assert_eq!(format!("{authority:?}"), "Authority(..)");
        assert_eq!(format!("{:?}", authority.identity("a").unwrap()), "Identity(..)");
    }
}
