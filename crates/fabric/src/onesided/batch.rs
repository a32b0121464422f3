//! Many small operations at once.

use std::fmt;
use std::time::Duration;

use fulmen_memory::Exposed;

use super::Remote;
use super::remote::Path;
use crate::{FabricError, Rights};

/// Small operations on memory of one rank, which go out together: in as few requests as the way there allows. They may take
/// effect in any order.
pub struct Batch<'a> {
    remote: &'a Remote,
    /// The bytes of all puts.
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

pub(super) enum Request {
    Put { offset: u64, from: usize, len: usize },
    Get { offset: u64, into: Exposed },
    FetchAdd { offset: u64, add: u64 },
    CompareSwap { offset: u64, expect: u64, new: u64 },
}

impl<'a> Batch<'a> {
    pub(super) fn new(remote: &'a Remote) -> Batch<'a> {
        Batch { remote, bytes: Vec::new(), requests: Vec::new() }
    }

    /// Adds [`Remote::put_bytes`]. The bytes are copied now.
    pub fn put(&mut self, offset: u64, data: &[u8]) -> &mut Batch<'a> {
        self.requests.push(Request::Put { offset, from: self.bytes.len(), len: data.len() });
        self.bytes.extend_from_slice(data);
        self
    }

    /// Adds [`Remote::get`].
    pub fn get(&mut self, offset: u64, into: &Exposed) -> &mut Batch<'a> {
        self.requests.push(Request::Get { offset, into: into.clone() });
        self
    }

    /// Adds [`Remote::fetch_add`].
    pub fn fetch_add(&mut self, offset: u64, add: u64) -> &mut Batch<'a> {
        self.requests.push(Request::FetchAdd { offset, add });
        self
    }

    /// Adds [`Remote::compare_swap`].
    pub fn compare_swap(&mut self, offset: u64, expect: u64, new: u64) -> &mut Batch<'a> {
        self.requests.push(Request::CompareSwap { offset, expect, new });
        self
    }

    /// How many operations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Does all of them, and returns what each gave, in the order in which they were added: the number of bytes of a put or
    /// get, and what was there before of an atomic. The batch is empty then.
    ///
    /// # Errors
    /// That of the first operation that failed: see [`Remote`]. Each of the others may have been done or not.
    pub fn post(&mut self, timeout: Duration) -> Result<Vec<u64>, FabricError> {
        let requests = std::mem::take(&mut self.requests);
        let bytes = std::mem::take(&mut self.bytes);
        let remote = self.remote;
        for request in &requests {
            let (need, offset, len) = request.place();
            remote.check(request.name(), need, offset, len)?;
        }
        if let Path::Link = remote.path {
            return remote.link_batch(requests, &bytes, timeout);
        }
        let each = |request: Request| match request {
            Request::Put { offset, from, len } => {
                remote.put_bytes(offset, &bytes[from..from + len], timeout).map(|()| len as u64)
            }
            Request::Get { offset, into } => remote.get(offset, &into, timeout).map(|()| into.len() as u64),
            Request::FetchAdd { offset, add } => remote.fetch_add(offset, add, timeout),
            Request::CompareSwap { offset, expect, new } => remote.compare_swap(offset, expect, new, timeout),
        };
        requests.into_iter().map(each).collect()
    }
}

impl Request {
    /// What it needs, and where it works on how many bytes.
    fn place(&self) -> (Rights, u64, usize) {
        match self {
            Request::Put { offset, len, .. } => (Rights::WRITE, *offset, *len),
            Request::Get { offset, into } => (Rights::READ, *offset, into.len()),
            Request::FetchAdd { offset, .. } | Request::CompareSwap { offset, .. } => (Rights::ATOMIC, *offset, 8),
        }
    }
}

/// The offset of the first operation, and the bytes of all: what is recorded of a batch.
pub(super) fn extent(requests: &[Request]) -> (u64, usize) {
    let len = requests.iter().map(|request| request.place().2).sum();
    (requests.first().map_or(0, |request| request.place().1), len)
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("remote", self.remote).field("requests", &self.requests.len()).finish()
    }
}
