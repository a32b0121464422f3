//! How results are written.

use fulmen_kernels::Stores;
use fulmen_memory::{cache_room, is_past_caches};

/// How results are written by a call in which all ranks together read and write so many bytes: past the cache, if not nearly all
/// has room in it. Measured of two ranks with a cache of 32 MiB: an all-reduce with 8 MiB each (32 MiB in all) takes 0.75 of the time
/// through the cache, and an all-gather of 12 MiB (36 MiB) 0.7; an all-reduce with 12 MiB (48 MiB) takes the same either way; one with
/// 16 MiB (64 MiB) takes 0.83 of it past the cache, and an all-gather of 16 MiB (48 MiB) 0.87. Past the cache, a core writes no faster for
/// two ranks than for one: where one rank alone writes, it pays sooner.
pub(super) fn stores_for(touched: usize, writers: usize) -> Stores {
    let past = if writers == 1 { is_past_caches(touched) } else { touched > cache_room() };
    if past { Stores::Streaming } else { Stores::Cached }
}
