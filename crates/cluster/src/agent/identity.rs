//! Who a node is: its key, its certificate, and whom it knew when it was last up.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmen_trust::{Authority, NodeKey, TrustError};
use serde::{Deserialize, Serialize};

use super::members::Known;
use super::state::StateError;
use crate::registry::EtcdAddress;

/// The file, which is for its owner's eyes alone.
const FILE: &str = "node.json";
/// Numbers of nodes are exact in every language that reads JSON.
const NUMBERS: u64 = (1 << 53) - 1;

/// Bytes in base64.
mod bytes {
    use base64::Engine as _;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::STANDARD;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    id: u64,
    name: String,
    #[serde(with = "bytes")]
    key: Vec<u8>,
    #[serde(with = "bytes")]
    certificate: Vec<u8>,
    #[serde(with = "bytes")]
    root: Vec<u8>,
    /// Of the cluster, for nodes that admit others.
    authority: Option<String>,
    known: Vec<Known>,
    port: Option<u16>,
    founder: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registry: Option<EtcdAddress>,
}

/// A node of a cluster.
pub(super) struct Identity {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) key: NodeKey,
    pub(super) certificate: Vec<u8>,
    pub(super) root: Vec<u8>,
    /// Of the cluster, for nodes that admit others.
    pub(super) secret: Option<[u8; 32]>,
    /// The nodes that it knew last.
    pub(super) known: Vec<Known>,
    /// Where it listened last.
    pub(super) port: Option<u16>,
    /// It made the cluster.
    pub(super) founder: bool,
    /// Where the cluster's registry is, if its nodes do not keep it themselves.
    pub(super) registry: Option<EtcdAddress>,
}

/// What a node gets when it is let in.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) id: u64,
    #[serde(with = "bytes")]
    pub(super) certificate: Vec<u8>,
    #[serde(with = "bytes")]
    pub(super) root: Vec<u8>,
    /// In base64.
    pub(super) authority: Option<String>,
    pub(super) known: Vec<Known>,
    /// Where the cluster's registry is, if its nodes do not keep it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) registry: Option<EtcdAddress>,
}

/// A random number for a node.
pub(super) fn number() -> Result<u64, TrustError> {
    Ok(u64::from_le_bytes(random()?) & NUMBERS)
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], TrustError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| TrustError::Keys(error.to_string()))?;
    Ok(bytes)
}

fn secret(text: Option<&str>) -> io::Result<Option<[u8; 32]>> {
    let damaged = || io::Error::other("the authority's secret is damaged");
    let bytes = text.map(|text| STANDARD.decode(text).map_err(|_| damaged())).transpose()?;
    bytes.map(|bytes| bytes.try_into().map_err(|_| damaged())).transpose()
}

impl Identity {
    /// The first node of a new cluster, which has an authority of its own.
    pub(super) fn found(name: &str, registry: Option<EtcdAddress>) -> Result<Identity, TrustError> {
        let secret = random()?;
        let authority = Authority::of_cluster(&secret)?;
        let key = NodeKey::generate()?;
        let certificate = authority.admit(name, &key.public())?;
        Ok(Identity {
            id: number()?,
            name: name.into(),
            key,
            certificate,
            root: authority.root(),
            secret: Some(secret),
            known: Vec::new(),
            port: None,
            founder: true,
            registry,
        })
    }

    /// A node that was let in.
    pub(super) fn admitted(name: &str, key: NodeKey, admission: Admission) -> Result<Identity, TrustError> {
        let Admission { id, certificate, root, authority, known, registry } = admission;
        let secret = secret(authority.as_deref()).map_err(|error| TrustError::Keys(error.to_string()))?;
        // Are the certificates what they should be?
        key.identity(&root, &certificate)?;
        let name = name.into();
        Ok(Identity { id, name, key, certificate, root, secret, known, port: None, founder: false, registry })
    }

    pub(super) fn fingerprint(&self) -> String {
        hex(&fulmen_trust::fingerprint(&self.certificate))
    }

    /// What lets others in, if this node may.
    pub(super) fn authority(&self) -> Result<Option<Authority>, TrustError> {
        self.secret.as_ref().map(Authority::of_cluster).transpose()
    }

    /// The identity of the node whose state is there, if it has one.
    pub(super) fn load(directory: &Path) -> Result<Option<Identity>, StateError> {
        let path = directory.join(FILE);
        let system = |cause| StateError::System { path: path.clone(), cause };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system(error)),
        };
        let read = || -> io::Result<Identity> {
            let kept: Kept = serde_json::from_slice(&text)?;
            let key = NodeKey::from_bytes(&kept.key).map_err(io::Error::other)?;
            Ok(Identity {
                id: kept.id,
                name: kept.name,
                key,
                certificate: kept.certificate,
                root: kept.root,
                secret: secret(kept.authority.as_deref())?,
                known: kept.known,
                port: kept.port,
                founder: kept.founder,
                registry: kept.registry,
            })
        };
        read().map(Some).map_err(system)
    }

    /// Removes it.
    pub(super) fn forget(directory: &Path) {
        let _ = fs::remove_file(directory.join(FILE));
    }

    /// Keeps it: whole, or as it was before.
    pub(super) fn save(&self, directory: &Path) -> Result<(), StateError> {
        let path = directory.join(FILE);
        let kept = Kept {
            id: self.id,
            name: self.name.clone(),
            key: self.key.to_bytes(),
            certificate: self.certificate.clone(),
            root: self.root.clone(),
            authority: self.secret.map(|secret| STANDARD.encode(secret)),
            known: self.known.clone(),
            port: self.port,
            founder: self.founder,
            registry: self.registry.clone(),
        };
        let save = || -> io::Result<()> {
            let new = directory.join("node.new");
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(&kept)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        save().map_err(|cause| StateError::System { path: path.clone(), cause })
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_found_again_and_nobody_else_reads_it() {
        let place = tempfile::tempdir().unwrap();
        assert!(Identity::load(place.path()).unwrap().is_none());
        let mut one = Identity::found("a", Some("etcd://a:1".parse().unwrap())).unwrap();
        one.port = Some(7);
        one.save(place.path()).unwrap();
        let again = Identity::load(place.path()).unwrap().unwrap();
        assert_eq!((again.id, &*again.name, again.port), (one.id, "a", Some(7)));
        assert_eq!((again.fingerprint(), again.secret), (one.fingerprint(), one.secret));
        assert_eq!((again.key.public(), again.registry), (one.key.public(), one.registry));
        let path = place.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "{}").unwrap();
        assert!(Identity::load(place.path()).is_err());
    }

    #[test]
    fn who_is_admitted_has_the_right_certificate() {
        let first = Identity::found("a", None).unwrap();
        let authority = first.authority().unwrap().unwrap();
        let (key, other) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let admission = |key: &NodeKey| Admission {
            id: 7,
            certificate: authority.admit("b", &key.public()).unwrap(),
            root: authority.root(),
            authority: None,
            known: Vec::new(),
            registry: None,
        };
        assert!(Identity::admitted("b", NodeKey::generate().unwrap(), admission(&other)).is_err());
        let second = Identity::admitted("b", key, admission(&other));
        assert!(second.is_err(), "another key's");
        let key = NodeKey::generate().unwrap();
        let admission = admission(&key);
        assert!(Identity::admitted("b", key, admission).unwrap().authority().unwrap().is_none());
    }
}
