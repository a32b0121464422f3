//! How large the last of this machine's caches is.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use fulmen_kernels::Stores;

/// Where the system does not say: as large as many have it.
const USUAL: usize = 32 << 20;

/// Bytes of the last cache of the first processor.
fn last() -> usize {
    static LAST: OnceLock<usize> = OnceLock::new();
    *LAST.get_or_init(|| read(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(USUAL))
}

/// The largest that Linux lists there.
fn read(caches: &Path) -> Option<usize> {
    let size = |entry: fs::DirEntry| parse(fs::read_to_string(entry.path().join("size")).ok()?.trim());
    fs::read_dir(caches).ok()?.filter_map(|entry| size(entry.ok()?)).max()
}

fn parse(size: &str) -> Option<usize> {
    let number = |digits: &str| digits.parse::<usize>().ok();
    match (size.strip_suffix('K'), size.strip_suffix('M')) {
        (Some(kib), _) => number(kib)?.checked_mul(1 << 10),
        (_, Some(mib)) => number(mib)?.checked_mul(1 << 20),
        _ => number(size),
    }
}

/// The most that counts: of larger ones, others use a part.
const MOST: usize = 64 << 20;

/// How results are written by a call in which all ranks together read and write so many bytes: past the cache, if not nearly all
/// has room in it. Measured of two ranks with a cache of 32 MiB: an all-reduce with 8 MiB each (32 MiB in all) takes 0.75 of the time
/// through the cache, and an all-gather of 12 MiB (36 MiB) 0.7; an all-reduce with 12 MiB (48 MiB) takes the same either way; one with
/// 16 MiB (64 MiB) takes 0.83 of it past the cache, and an all-gather of 16 MiB (48 MiB) 0.87. Past the cache, a core writes no faster for
/// two ranks than for one: where one rank alone writes, it pays sooner. A broadcast of 8 MiB to one rank (16 MiB in all) takes 0.85 of the
/// time through the cache, and one of 16 MiB (32 MiB) 0.65 of it past the cache.
pub(super) fn stores_for(touched: usize, writers: usize) -> Stores {
    let limit = if writers == 1 { room() / 8 * 5 } else { room() };
    if touched > limit { Stores::Streaming } else { Stores::Cached }
}

/// Bytes of which nearly all have room in the caches.
pub(crate) fn room() -> usize {
    let room = last().min(MOST);
    room + room / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        assert_eq!((parse("32768K"), parse("2M"), parse("512")), (Some(32 << 20), Some(2 << 20), Some(512)));
        assert_eq!((parse(""), parse("K"), parse("1G"), parse("99999999999999999999K")), (None, None, None, None));
        assert_eq!(read(Path::new("/nonexistent")), None);
        assert!(last() >= 1 << 10);
    }
}
