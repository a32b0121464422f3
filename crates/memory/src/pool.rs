use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tlsf::Tlsf;
use crate::{Block, ChunkRule, Exposed, Region, RegionError};

/// Every block starts at a multiple of this many bytes: a cache line, and enough for every vector type.
pub(crate) const GRAIN: usize = 64;

/// Why a pool gave no block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No free piece is long enough.
    #[error(
        "no block of {len} bytes in a pool of {total}: {free} are free, {largest} in one piece; drop blocks or make the pool larger"
    )]
    Full {
        /// Bytes asked for.
        len: usize,
        /// Bytes of the pool.
        total: usize,
        /// Bytes that are free.
        free: usize,
        /// The longest free piece in bytes.
        largest: usize,
    },
    /// The block would be longer than what the device registers in one piece of this region.
    #[error("a block of {len} bytes cannot lie in one registration of at most {largest} bytes: use several blocks")]
    LargerThanChunk {
        /// Bytes asked for.
        len: usize,
        /// Bytes of the longest piece.
        largest: usize,
    },
    /// The pool was [taken back](Pool::take_back).
    #[error("the pool was taken back from its peers and gives no more blocks: take them from the new one")]
    TakenBack,
}

/// How a pool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks that are out.
    pub blocks: usize,
    /// Bytes that blocks can be cut from.
    pub total: usize,
    /// Bytes that are free.
    pub free: usize,
    /// The longest free piece, in bytes.
    pub largest: usize,
}

/// Cuts [`Block`]s out of a region: thread-safe, in constant time. A clone is another handle to the same pool.
///
/// A block occupies whole multiples of 64 bytes, at least one; what a region has beyond its last multiple of 64 bytes
/// stays unused. Only a pool that has nothing larger left searches longer, through the free pieces of about the size
/// asked for. Its books are kept outside of the region, where no peer can write.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    region: Region,
    /// The pieces into which the rule cuts the region, and the longest block that fits into one.
    pieces: usize,
    longest_piece: usize,
    books: Mutex<Books>,
    /// Held while the memory is taken back.
    taking: Mutex<()>,
    /// Memory that nobody may have until somebody knows that no peer writes it any more. Handles keep the pool, so that
    /// memory which is never restored is never used again.
    withheld: Mutex<Vec<Exposed>>,
}

struct Books {
    tlsf: Tlsf,
    blocks: usize,
    /// Nothing is given any more.
    closed: bool,
}

impl Pool {
    /// A pool over a whole region, for devices that register it in one piece.
    ///
    /// # Errors
    /// [`RegionError::Claimed`] if the region is exposed or has (or had) a pool, [`RegionError::NotExclusive`] if others
    /// map it, too: a file, or another process's region.
    pub fn new(region: &Region) -> Result<Pool, RegionError> {
        Pool::with_rule(region, ChunkRule::NONE)
    }

    /// A pool none of whose blocks straddles two registrations under `rule`.
    ///
    /// # Errors
    /// As [`Pool::new`].
    ///
    /// # Panics
    /// If the rule's boundary is no power of two, or its longest registration is zero bytes.
    pub fn with_rule(region: &Region, rule: ChunkRule) -> Result<Pool, RegionError> {
        // Before the claim: a rule that panics leaves the region as it was.
        let pieces = region.registrations(rule);
        region.claim_for_pool()?;
        let count = pieces.len();
        let mut tlsf = Tlsf::new();
        let mut longest_piece = 0;
        for piece in pieces {
            // Regions start at a page, and so at a grain; a piece may not, if the rule's longest registration is odd.
            let start = piece.start.next_multiple_of(GRAIN);
            let end = piece.end / GRAIN * GRAIN;
            if start < end {
                tlsf.add(start / GRAIN, (end - start) / GRAIN);
                longest_piece = longest_piece.max(end - start);
            }
        }
        let books = Mutex::new(Books { tlsf, blocks: 0, closed: false });
        let (region, taking, withheld) = (region.clone(), Mutex::default(), Mutex::default());
        Ok(Pool { shared: Arc::new(Shared { region, pieces: count, longest_piece, books, taking, withheld }) })
    }

    /// Cuts a block of `len` bytes (zero is allowed).
    ///
    /// # Errors
    /// [`PoolError::Full`] if no free piece is long enough, [`PoolError::LargerThanChunk`] if none can ever be because
    /// the rule cuts the region into several, shorter pieces, and [`PoolError::TakenBack`].
    pub fn take(&self, len: usize) -> Result<Block, PoolError> {
        if len > self.shared.longest_piece && self.shared.pieces > 1 {
            return Err(PoolError::LargerThanChunk { len, largest: self.shared.longest_piece });
        }
        let grains = len.div_ceil(GRAIN).max(1);
        let mut books = self.shared.books();
        if books.closed {
            return Err(PoolError::TakenBack);
        }
        match books.tlsf.take(grains) {
            Some((node, start)) => {
                books.blocks += 1;
                drop(books);
                Ok(Block::new(Lease { pool: self.clone(), node, offset: start * GRAIN }, len))
            }
            None => {
                let (total, free, largest) =
                    (books.tlsf.total() * GRAIN, books.tlsf.free() * GRAIN, books.tlsf.largest() * GRAIN);
                Err(PoolError::Full { len, total, free, largest })
            }
        }
    }

    /// The region out of which blocks are cut.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.shared.region
    }

    /// Cuts this process's view of the memory off from everybody who maps it: what others write from now on is never
    /// seen here. Blocks, and exposed handles of them, stay what they are, at the same addresses and with the same bytes;
    /// threads of this process may read and write them meanwhile, and no store of theirs is lost. What others write
    /// *while* this runs may be seen or not.
    ///
    /// For memory that a process may still write which nobody waits for any more, because it was stopped. Peers that
    /// map the region no longer see what is written here, and the region can be [shared](Region::fd) no more. The pool
    /// gives no more blocks; those that are out return to it. Pages of blocks are copied, so that they take memory twice
    /// until nobody else maps the region. A device that registered the region is to be rid of it before: it may know the
    /// pages by themselves.
    ///
    /// A second call does nothing.
    ///
    /// # Errors
    /// [`RegionError::CannotTakeBack`] for memory that was [adopted](Region::adopt); [`RegionError::NoMemory`] if there is
    /// none for the copies, and what else the system refuses: then others may still write, and another call goes on. The
    /// pool gives no blocks in either case.
    pub fn take_back(&self) -> Result<(), RegionError> {
        let _taking = self.shared.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut books = self.shared.books();
        books.closed = true;
        let mut taken: Vec<_> = books.tlsf.taken().map(|(start, len)| start * GRAIN..(start + len) * GRAIN).collect();
        drop(books);
        taken.sort_unstable_by_key(|range| range.start);
        self.shared.region.take_back(&taken)
    }

    /// Keeps memory out of use that a peer may still write, until [`Pool::restore`]; for ever, if that is never called.
    pub fn withhold(&self, memory: Exposed) {
        self.withheld().push(memory);
    }

    /// Gives back what was withheld: no peer writes it any more, says the caller.
    pub fn restore(&self) {
        // The lock goes first: what is dropped returns to the pool.
        let withheld = std::mem::take(&mut *self.withheld());
        drop(withheld);
    }

    fn withheld(&self) -> MutexGuard<'_, Vec<Exposed>> {
        self.shared.withheld.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the pool stands.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let books = self.shared.books();
        PoolStats {
            blocks: books.blocks,
            total: books.tlsf.total() * GRAIN,
            free: books.tlsf.free() * GRAIN,
            largest: books.tlsf.largest() * GRAIN,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The books themselves would fill pages.
        f.debug_struct("Pool").field("region", &self.shared.region.id()).field("stats", &self.stats()).finish()
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing panics while the books are open, so a poisoned lock still guards consistent books.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block's claim on its piece of the pool, given up on drop.
pub(crate) struct Lease {
    pool: Pool,
    node: u32,
    offset: usize,
}

impl Lease {
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut books = self.pool.shared.books();
        books.tlsf.give_back(self.node);
        books.blocks -= 1;
    }
}
