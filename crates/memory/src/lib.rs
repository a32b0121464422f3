//! Memory that devices, processes and GPUs can share.
//!
//! A [`Region`] is one page-aligned mapping. It is registered with devices as a whole (or in the pieces that a
//! [`ChunkRule`] asks for), mapped by other processes of the host, and imported by GPUs. Nothing registers per buffer:
//! buffers are cut out of a region.
//!
//! A region by itself gives no access to its bytes. There are two ways to them, and a region serves only one:
//!
//! - [`Pool`] cuts [`Block`]s out of it. A block is exclusive, gives slices (`&[T]`, `&mut [T]`), and returns to its
//!   pool when dropped.
//! - [`Exposed`] memory may be written by others (a device, a peer, another process), so it gives raw copies and
//!   atomics, and never a reference to its bytes.
//!
//! A block becomes exposed memory by [`Block::into_exposed`] and a block again by [`Exposed::into_block`], which
//! succeeds for the last handle only. An operation in flight holds a clone of the exposed memory that it works on, so
//! slices of that memory cannot exist before the operation has ended, also when its handle was forgotten.
//!
//! Types hold those who go through them. Whoever is handed the descriptor of a region, or the key of a registration, can
//! write any of its bytes at any time: peers that are trusted with one write what has been exposed to them, and nothing
//! else. A region that was received from somebody else, and a mapped file, can be exposed but never pooled.
#![warn(missing_docs)]

mod block;
mod cache;
mod chunk;
mod copies;
mod exposed;
pub mod kinds;
mod page;
mod pool;
mod region;
mod tlsf;

pub use block::{Block, Plain};
pub use cache::{cache_room, copies_past_caches, is_past_caches};
pub use chunk::ChunkRule;
pub use copies::{copy_in, copy_out, copy_past};
pub use exposed::Exposed;
pub use page::page_size;
pub use pool::{Pool, PoolError, PoolStats};
pub use region::{FileAccess, Region, RegionError, WeakRegion};
