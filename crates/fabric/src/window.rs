//! Memory of every rank that all ranks map.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::ShareKey;
use serde::{Deserialize, Serialize};

use crate::fabric::Inner;
use crate::{Fabric, FabricError, OpName, clock};

const OP: OpName = "window";

/// What a rank tells about its part of a window.
#[derive(Serialize, Deserialize)]
struct Part {
    len: u64,
    /// The key of its memory, or why there is none.
    key: Result<u64, String>,
}

/// Memory of every rank, mapped by all of them. See [`Fabric::window`].
///
/// It is unmapped on each rank when its window is dropped there.
pub struct Window {
    inner: Arc<Inner>,
    own: Exposed,
    key: ShareKey,
    /// The ranks that have it, with the keys of the others' parts.
    ranks: Vec<u32>,
    keys: Vec<u64>,
    parts: Vec<Exposed>,
}

/// This rank's part of a window, which others have not mapped yet. See [`Fabric::window_part`].
#[derive(Debug)]
pub struct WindowPart(Window);

impl WindowPart {
    /// What others map it by.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.0.key.to_u64()
    }

    /// The window of these ranks, each with the key of its part, of which this rank is one. In the window, they are numbered in
    /// this order. All of them have parts of the same length.
    ///
    /// # Errors
    /// [`FabricError::Reach`], [`FabricError::PeerLost`] and [`FabricError::TimedOut`] if a part cannot be mapped, and
    /// [`FabricError::OutOfBounds`] if it is shorter than this rank's.
    pub fn join(self, members: &[(u32, u64)], timeout: Duration) -> Result<Window, FabricError> {
        // From here on dropping it takes everything back.
        let WindowPart(mut window) = self;
        window.map_all(members, clock::after(timeout))?;
        Ok(window)
    }
}

impl Fabric {
    /// Makes a window: `len` zeroed bytes of each rank. Collective: all ranks make the same windows in the same order.
    ///
    /// # Errors
    /// [`FabricError::NoWindows`] where ranks do not map one another's memory, [`FabricError::Mismatch`] if ranks ask
    /// for different lengths, [`FabricError::PeerFailed`], [`FabricError::Memory`], [`FabricError::Reach`], and
    /// [`FabricError::Session`], also when `timeout` has passed (with up to 10 s more for the coordinator's verdict).
    /// When one rank fails, all do.
    pub fn window(&self, len: usize, timeout: Duration) -> Result<Window, FabricError> {
        if !self.has_windows() {
            return Err(FabricError::NoWindows { op: OP });
        }
        self.window_nearby(len, timeout)
    }

    /// The same, of this rank and those others whose memory is mapped here, in their order. Collective among all ranks, also those that
    /// map nobody's.
    ///
    /// # Errors
    /// As [`Fabric::window`]; [`FabricError::NoWindows`] where no ranks map one another's memory.
    pub fn window_nearby(&self, len: usize, timeout: Duration) -> Result<Window, FabricError> {
        let inner = &self.inner;
        if inner.neighbours.is_none() {
            return Err(FabricError::NoWindows { op: OP });
        }
        inner.check_goes_on(OP)?;
        let deadline = clock::after(timeout);
        let left = || clock::until(deadline);

        let own = self.window_part(len);
        let key = own.as_ref().map(WindowPart::key).map_err(ToString::to_string);
        let part = postcard::to_stdvec(&Part { len: len as u64, key }).expect("a vector takes what is written to it");
        let gathered = inner.session.all_gather(&part, left());
        let own = own?;
        let keys = read_parts(&gathered.map_err(|cause| inner.session_failed(OP, cause))?, len)?;
        let members: Vec<_> = (0..).zip(keys).filter(|(rank, _)| self.has_windows_among(&[*rank])).collect();
        self.agree(OP, own.join(&members, left()), left())
    }

    /// This rank's part of a window of some ranks, of `len` zeroed bytes. They tell each other the keys, and
    /// [join](WindowPart::join).
    ///
    /// # Errors
    /// [`FabricError::NoWindows`] where ranks do not map one another's memory, [`FabricError::Memory`], [`FabricError::Reach`].
    pub fn window_part(&self, len: usize) -> Result<WindowPart, FabricError> {
        let inner = &self.inner;
        let Some(neighbours) = &inner.neighbours else { return Err(FabricError::NoWindows { op: OP }) };
        let region = Region::alloc(len).and_then(|region| Ok((region.expose()?, region)));
        let (own, region) = region.map_err(|cause| FabricError::Memory { op: OP, cause: Arc::new(cause) })?;
        let shared = neighbours.share(&region);
        let key = shared.map_err(|cause| FabricError::Reach { op: OP, rank: inner.rank, cause: Arc::new(cause) })?;
        let (ranks, keys, parts) = (Vec::new(), Vec::new(), Vec::new());
        Ok(WindowPart(Window { inner: inner.clone(), own, key, ranks, keys, parts }))
    }

    /// Tells all ranks whether this one succeeded: when one failed, all do. Collective.
    ///
    /// # Errors
    /// This rank's own; else [`FabricError::PeerFailed`], which names the first rank that failed, and
    /// [`FabricError::Session`] if a rank does not come within `timeout` (with up to 10 s more for the coordinator's
    /// verdict).
    pub fn agree<T, E>(&self, op: OpName, outcome: Result<T, E>, timeout: Duration) -> Result<T, E>
    where
        E: From<FabricError> + fmt::Display,
    {
        let problem = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let verdicts = self.inner.session.all_gather(problem.as_bytes(), timeout);
        let value = outcome?;
        for (rank, problem) in (0..).zip(verdicts.map_err(|cause| self.inner.session_failed(op, cause))?) {
            if !problem.is_empty() {
                let problem = String::from_utf8_lossy(&problem).into_owned();
                return Err(FabricError::PeerFailed { op, rank, problem }.into());
            }
        }
        Ok(value)
    }
}

/// The keys of all ranks' parts. Every rank reads the same and comes to the same verdict.
fn read_parts(blobs: &[Vec<u8>], len: usize) -> Result<Vec<u64>, FabricError> {
    let mut keys = Vec::with_capacity(blobs.len());
    for (rank, blob) in (0..).zip(blobs) {
        let failed = |problem| FabricError::PeerFailed { op: OP, rank, problem };
        let part: Part = postcard::from_bytes(blob).map_err(|_| FabricError::Mismatch {
            op: OP,
            rank,
            ours: format!("a window of {len} bytes"),
            theirs: "something else".into(),
        })?;
        if part.len != len as u64 {
            let (ours, theirs) = (format!("{len} bytes"), format!("{} bytes", part.len));
            return Err(FabricError::Mismatch { op: OP, rank, ours, theirs });
        }
        keys.push(part.key.map_err(failed)?);
    }
    Ok(keys)
}

impl Window {
    fn map_all(&mut self, members: &[(u32, u64)], deadline: Instant) -> Result<(), FabricError> {
        let inner = &self.inner;
        let neighbours = inner.neighbours.as_ref().ok_or(FabricError::NoWindows { op: OP })?;
        for (rank, key) in members.iter().copied() {
            let part = if rank == inner.rank {
                self.own.clone()
            } else {
                let part = neighbours.region(OP, rank, key, clock::until(deadline))?;
                let (len, region) = (self.own.len() as u64, part.len() as u64);
                if region < len {
                    neighbours.forget(rank, key);
                    return Err(FabricError::OutOfBounds { op: OP, rank, offset: 0, len, region });
                }
                part.slice(0..self.own.len())
            };
            self.ranks.push(rank);
            self.keys.push(key);
            self.parts.push(part);
        }
        Ok(())
    }

    /// Bytes of each rank's part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.local().len()
    }

    /// Never: a window has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// This rank's part.
    #[must_use]
    pub fn local(&self) -> &Exposed {
        &self.own
    }

    /// A rank's part, by its number in the window; of this rank, too.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    #[track_caller]
    pub fn peer(&self, rank: u32) -> &Exposed {
        &self.parts[rank as usize]
    }

    /// Wakes a rank, by its number in the window: see [`Fabric::ring`].
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    pub fn ring(&self, rank: u32) {
        if let Some(neighbours) = &self.inner.neighbours {
            neighbours.ring(self.ranks[rank as usize]);
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(neighbours) = &self.inner.neighbours else { return };
        neighbours.unshare(self.key);
        for (rank, key) in self.ranks.iter().zip(&self.keys).filter(|(rank, _)| **rank != self.inner.rank) {
            neighbours.forget(*rank, *key);
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.len()).field("ranks", &self.parts.len()).finish()
    }
}
