//! Locks, guarded values and barriers for the ranks of a group.
//!
//! They live in registered memory of one rank, their *home*, and everybody works on them by one-sided operations: the
//! home's program takes no part. They stand and fall with it: when the home is lost, so are they.
//!
//! # A lock whose holder dies
//!
//! A [`Lock`] is held under a *lease*. Its holder renews it; one that does not in time loses the lock to whoever waits,
//! be it dead, stopped or just slow. No clock is shared: a waiter measures, by its own clock, for how long the lock has
//! not changed. So a late holder may believe that it still holds the lock. That is what the *fence number* is for: it
//! grows with each acquisition and renewal, and whoever guards something by the lock refuses smaller numbers than it has
//! seen. [`Guarded`] does so for a value.
//!
//! ```no_run
//! use std::time::Duration;
//! use fulmen_cluster::sync::{Guarded, Lock};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let group = fulmen::init()?;
//! let lock = Lock::new(&group, 0, Duration::from_secs(1))?;
//! let total = Guarded::new(&group, 0, 8)?;
//! let mut guard = lock.acquire(Duration::from_secs(30))?;
//! let old = u64::from_le_bytes(total.read(Duration::from_secs(30))?.try_into().unwrap());
//! total.write(&mut guard, &(old + 1).to_le_bytes())?; // refused if the lock was lost meanwhile
//! guard.release()?;
//! # Ok(())
//! # }
//! ```

mod barrier;
mod error;
mod guarded;
mod home;
mod lock;

pub use barrier::Barrier;
pub use error::SyncError;
pub use guarded::Guarded;
pub use lock::{Guard, Lock};
