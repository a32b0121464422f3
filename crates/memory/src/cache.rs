//! How large the last of this machine's caches is, and what that means for who writes much.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

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

/// Bytes of which nearly all have room in the last of this machine's caches, beside what others have there.
#[must_use]
pub fn cache_room() -> usize {
    let room = last().min(MOST);
    room + room / 4
}

/// Whether one that alone copies or writes does so faster past the caches, if it reads and writes so many bytes in all. Measured with a cache
/// of 32 MiB: a copy of 8 MiB (16 MiB in all) takes 0.85 of the time through it, and one of 16 MiB (32 MiB) 0.65 of it past it.
#[must_use]
pub fn is_past_caches(touched: usize) -> bool {
    touched > cache_room() / 8 * 5
}

/// The same of one that copies so many bytes, in one piece or in several.
#[must_use]
pub fn copies_past_caches(len: usize) -> bool {
    len > 1 << 20 && is_past_caches(2 * len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        assert_eq!((parse("32768K"), parse("2M"), parse("512")), (Some(32 << 20), Some(2 << 20), Some(512)));
        assert_eq!((parse(""), parse("K"), parse("1G"), parse("99999999999999999999K")), (None, None, None, None));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it looks at files")]
    fn every_machine_has_a_size() {
        assert_eq!(read(Path::new("/nonexistent")), None);
        assert!(last() >= 1 << 10);
    }
}
