//! Where an etcd is, and which part of it is a cluster's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where keys are if nobody says otherwise.
const PREFIX: &str = "fulmen/";

/// An etcd: `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`. All keys begin with the prefix, which is `fulmen` unless it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EtcdAddress {
    /// `host:port` of each of its servers.
    pub(super) endpoints: Vec<String>,
    /// It ends with a slash.
    pub(super) prefix: String,
}

/// Text that is no address of an etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdAddressError {
    /// It begins with something else.
    #[error(
        "{0:?} is no registry: give etcd://HOST:PORT, with commas between several, and /PREFIX behind them if others use the same etcd"
    )]
    Scheme(String),
    /// TLS.
    #[error(
        "etcd is spoken to without TLS so far: give etcd://, over a network or a tunnel that only the cluster's nodes reach"
    )]
    Tls,
    /// A server's address is none.
    #[error("{0:?} is no address of a server: give HOST:PORT, where etcd hears its clients (2379 mostly)")]
    Endpoint(String),
    /// The prefix cannot be one.
    #[error("{0:?} cannot be a prefix: words of letters, digits, and any of - _ . with / between them")]
    Prefix(String),
}

impl FromStr for EtcdAddress {
    type Err = EtcdAddressError;

    fn from_str(text: &str) -> Result<EtcdAddress, EtcdAddressError> {
        if text.starts_with("etcds://") {
            return Err(EtcdAddressError::Tls);
        }
        let rest = text.strip_prefix("etcd://").ok_or_else(|| EtcdAddressError::Scheme(text.into()))?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_endpoint = |endpoint: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.[]:".contains(&byte);
            let parts = endpoint.rsplit_once(':').filter(|_| endpoint.bytes().all(allowed));
            parts.is_some_and(|(host, port)| {
                let bare = !host.is_empty() && !host.contains([':', '[', ']']);
                let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
                (bare || bracketed) && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if let Some(bad) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(EtcdAddressError::Endpoint(bad.clone()));
        }
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let words = prefix.strip_suffix('/').unwrap_or(prefix);
        let prefix = match prefix {
            "" => PREFIX.into(),
            _ if words.split('/').all(is_word) => format!("{words}/"),
            bad => return Err(EtcdAddressError::Prefix(bad.into())),
        };
        Ok(EtcdAddress { endpoints, prefix })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.prefix.trim_end_matches('/'))
    }
}

impl TryFrom<String> for EtcdAddress {
    type Error = EtcdAddressError;

    fn try_from(text: String) -> Result<EtcdAddress, EtcdAddressError> {
        text.parse()
    }
}

impl From<EtcdAddress> for String {
    fn from(address: EtcdAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_is_what_it_should_be_or_refused() {
        let read = |text: &str| text.parse::<EtcdAddress>();
        let plain = read("etcd://a:2379").unwrap();
        assert_eq!((&*plain.prefix, plain.to_string()), ("fulmen/", "etcd://a:2379/fulmen".into()));
        let full = read("etcd://10.0.0.1:1,[::1]:2379,c.example:3/x/y-1/").unwrap();
        assert_eq!(full.endpoints, ["10.0.0.1:1", "[::1]:2379", "c.example:3"]);
        assert_eq!((&*full.prefix, read(&full.to_string())), ("x/y-1/", Ok(full.clone())));
        assert_eq!(read("etcds://a:2379"), Err(EtcdAddressError::Tls));
        for bad in ["", "a:2379", "http://a:2379"] {
            assert_eq!(read(bad), Err(EtcdAddressError::Scheme(bad.into())));
        }
        for bad in ["etcd://", "etcd://a", "etcd://a:0", "etcd://a:1,", "etcd://::1:1", "etcd://a b:1", "etcd://[]:1"] {
            assert!(matches!(read(bad), Err(EtcdAddressError::Endpoint(_))), "{bad}");
        }
        for bad in ["etcd://a:1//", "etcd://a:1/x//y", "etcd://a:1/x y"] {
            assert!(matches!(read(bad), Err(EtcdAddressError::Prefix(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "etcd://[a-z0-9:,.\\[\\]]{0,20}(/[a-z/.]{0,10})?") {
            if let Ok(address) = text.parse::<EtcdAddress>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
