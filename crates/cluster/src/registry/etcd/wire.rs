//! What is said to etcd and what it says, in the JSON of its gateway: numbers of 64 bits are strings, bytes are in base64, and what is
//! nought or empty is left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::super::{Change, Condition, Entry, Snapshot, Write};

/// Codes of gRPC.
const NOT_FOUND: u64 = 5;
/// The request makes no sense, or is not allowed: nothing else will come of it if it is made again.
const FINAL: [u64; 7] = [3, NOT_FOUND, 7, 9, 11, 12, 16];

/// Bytes, or text, in base64.
fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Digits {
    Text(String),
    Plain(u64),
}

fn number<'a, D: Deserializer<'a>>(from: D) -> Result<u64, D::Error> {
    match Digits::deserialize(from)? {
        Digits::Text(text) => text.parse().map_err(D::Error::custom),
        Digits::Plain(number) => Ok(number),
    }
}

fn bytes<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(from)?).map_err(D::Error::custom)
}

/// A number that etcd can have.
pub(super) fn fits(number: u64) -> bool {
    (1..=i64::MAX as u64).contains(&number)
}

#[derive(Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: u64,
}

/// A key and its value.
#[derive(Deserialize)]
struct Pair {
    #[serde(deserialize_with = "bytes")]
    key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    mod_revision: u64,
    #[serde(default, deserialize_with = "number")]
    lease: u64,
}

#[derive(Deserialize)]
pub(super) struct Ranged {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
pub(super) struct Decided {
    #[serde(default)]
    pub(super) succeeded: bool,
}

#[derive(Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: u64,
}

#[derive(Deserialize)]
pub(super) struct Revoked {}

/// A line of a stream.
#[derive(Deserialize)]
pub(super) enum Line<T> {
    #[serde(rename = "result")]
    Result(T),
    #[serde(rename = "error")]
    Error(Problem),
}

#[derive(Deserialize)]
pub(super) struct KeptAlive {
    /// Seconds that are left: none of a lease that is over.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub(super) ttl: u64,
}

#[derive(Deserialize)]
pub(super) struct Watched {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) created: bool,
    #[serde(default)]
    pub(super) canceled: bool,
    /// What was before is no longer known.
    #[serde(default, deserialize_with = "number")]
    pub(super) compact_revision: u64,
    #[serde(default)]
    pub(super) events: Vec<serde::de::IgnoredAny>,
}

/// Why nothing came of it.
#[derive(Deserialize)]
pub(super) struct Problem {
    #[serde(alias = "grpc_code", deserialize_with = "number")]
    code: u64,
    pub(super) message: String,
}

/// What that means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing was done, and may be done at another time or by another server.
    NotDone(String),
    /// It may have been done.
    Unclear(String),
    /// Nothing was done: there is no such lease.
    NoLease,
    /// Nothing was done, nor will be.
    Refused(String),
}

impl From<Problem> for Failure {
    fn from(Problem { code, message }: Problem) -> Failure {
        // These are said before anything is begun.
        let not_begun =
            ["etcdserver: no leader", "etcdserver: too many requests", "etcdserver: rpc not supported for learner"];
        if not_begun.contains(&&*message) {
            return Failure::NotDone(message);
        }
        match code {
            NOT_FOUND if message.contains("lease not found") => Failure::NoLease,
            code if FINAL.contains(&code) => Failure::Refused(message),
            _ => Failure::Unclear(message),
        }
    }
}

/// All keys of a table.
#[derive(Clone)]
pub(super) struct Range {
    prefix: String,
    table: String,
}

impl Range {
    pub(super) fn new(prefix: &str, table: &str) -> Range {
        Range { prefix: prefix.into(), table: table.into() }
    }

    fn bounds(&self) -> [String; 2] {
        // The one behind the slash.
        ["/", "0"].map(|end| base64([&self.prefix, &self.table, end].concat()))
    }

    pub(super) fn request(&self) -> Value {
        let [key, range_end] = self.bounds();
        json!({ "key": key, "range_end": range_end })
    }

    /// Tells what happens to them from a revision on.
    pub(super) fn watch(&self, from: u64) -> Value {
        let [key, range_end] = self.bounds();
        json!({ "create_request": { "key": key, "range_end": range_end, "start_revision": from.to_string() } })
    }

    pub(super) fn snapshot(&self, ranged: Ranged) -> Snapshot {
        let entry = |pair: Pair| {
            let key = String::from_utf8(pair.key).ok()?.strip_prefix(&self.prefix)?.to_owned();
            let lease = Some(pair.lease).filter(|lease| *lease > 0);
            Some(Entry { key, value: pair.value, version: pair.mod_revision, lease })
        };
        Snapshot { revision: ranged.header.revision, entries: ranged.kvs.into_iter().filter_map(entry).collect() }
    }
}

/// A write as one transaction.
pub(super) fn transaction(prefix: &str, write: &Write) -> Value {
    let name = |key: &str| base64([prefix, key].concat());
    let compare = |condition: &Condition| {
        // A key that is not there was changed at revision 0.
        let (key, revision) = match condition {
            Condition::Absent(key) => (key, 0),
            Condition::Version(key, version) => (key, *version),
        };
        json!({ "key": name(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
    };
    let change = |change: &Change| match change {
        Change::Put { key, value, lease } => {
            let lease = lease.unwrap_or(0).to_string();
            json!({ "request_put": { "key": name(key), "value": base64(value), "lease": lease } })
        }
        Change::Delete(key) => json!({ "request_delete_range": { "key": name(key) } }),
    };
    let compare: Vec<Value> = write.when.iter().map(compare).collect();
    let success: Vec<Value> = write.then.iter().map(change).collect();
    json!({ "compare": compare, "success": success })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_read() {
        let text = r#"{"header":{"cluster_id":"3","revision":"7","raft_term":"2"},"kvs":[
            {"key":"eC90L2E=","create_revision":"2","mod_revision":"5","version":"1","value":"MQ==","lease":"9"},
            {"key":"eC90L2I=","mod_revision":6}],"count":"2"}"#;
        let range = Range::new("x/", "t");
        let told = range.snapshot(serde_json::from_str(text).unwrap());
        let entry =
            |key: &str, value: &[u8], version, lease| Entry { key: key.into(), value: value.into(), version, lease };
        assert_eq!(
            told,
            Snapshot { revision: 7, entries: vec![entry("t/a", b"1", 5, Some(9)), entry("t/b", b"", 6, None)] }
        );
        let failure = |text: &str| Failure::from(serde_json::from_str::<Problem>(text).unwrap());
        let lost = r#"{"error":"x","message":"etcdserver: requested lease not found","code":5}"#;
        assert_eq!(failure(lost), Failure::NoLease);
        let waits = r#"{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"x"}"#;
        assert_eq!(failure(waits), Failure::NotDone("etcdserver: no leader".into()));
        let late = r#"{"message":"etcdserver: request timed out","code":14}"#;
        assert!(matches!(failure(late), Failure::Unclear(_)));
        assert!(matches!(failure(r#"{"message":"etcdserver: duplicate key","code":3}"#), Failure::Refused(_)));
        // It may be what the write itself has brought about.
        assert!(matches!(
            failure(r#"{"message":"etcdserver: mvcc: database space exceeded","code":8}"#),
            Failure::Unclear(_)
        ));
        for bad in ["", "{}", "[1]", r#"{"header":{},"kvs":[{"key":"?"}]}"#] {
            assert!(serde_json::from_str::<Ranged>(bad).is_err(), "{bad}");
        }
    }
}
