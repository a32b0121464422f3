//! Whether memory is there: a driver pins pages when it registers them, and says so if it cannot.

/// Checks that `len` bytes at `addr` are mapped and can be read, and written if `writable`. Their pages are there
/// afterwards, as if they had been touched.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(addr: usize, len: usize, writable: bool) -> Result<(), String> {
    let page = fulmen_memory::page_size();
    let start = addr / page * page;
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return Err(format!("{len} bytes at {addr:#x} go beyond the last address"));
    };
    let need = if writable { "written" } else { "read" };
    let problem = || format!("{len} bytes at {addr:#x} are not all mapped so that they can be {need}");
    platform::check(start, end, writable).then_some(()).ok_or_else(problem)
}

#[cfg(target_os = "linux")]
mod platform {
    use std::sync::OnceLock;

    /// Brings pages in, as reading or writing them would, and says if that cannot be.
    fn populate(start: usize, len: usize, writable: bool) -> Result<(), i32> {
        let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        loop {
            // SAFETY: pages are brought in as touching them would; no byte changes, and no mapping.
            if unsafe { libc::madvise(start as *mut _, len, advice) } == 0 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            if error != libc::EINTR && error != libc::EAGAIN {
                return Err(error);
            }
        }
    }

    /// Whether the system knows how (Linux 5.14): then it can do it with memory that is certainly there.
    fn can_populate() -> bool {
        static CAN: OnceLock<bool> = OnceLock::new();
        *CAN.get_or_init(|| {
            let page = fulmen_memory::page_size();
            let certainly = vec![0_u8; 2 * page];
            let start = certainly.as_ptr().addr().next_multiple_of(page);
            populate(start, page, true).is_ok()
        })
    }

    pub(super) fn check(start: usize, end: usize, writable: bool) -> bool {
        match populate(start, end - start, writable) {
            Ok(()) => true,
            Err(libc::EINVAL) if !can_populate() => listed(start, end, writable),
            Err(_) => false,
        }
    }

    /// The same out of the list of mappings.
    pub(super) fn listed(start: usize, end: usize, writable: bool) -> bool {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
        let mut reached = start;
        for line in maps.lines() {
            let Some((from, to, rights)) = mapping(line) else { continue };
            if from > reached {
                break;
            }
            if to > reached {
                if !rights.starts_with('r') || writable && !rights[1..].starts_with('w') {
                    break;
                }
                reached = to;
            }
            if reached >= end {
                return true;
            }
        }
        false
    }

    fn mapping(line: &str) -> Option<(usize, usize, &str)> {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, rest.get(..4)?))
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    /// The system says what is mapped; rights are found out when bytes are touched.
    pub(super) fn check(start: usize, end: usize, _writable: bool) -> bool {
        let mut pages = vec![0; (end - start) / fulmen_memory::page_size()];
        // SAFETY: there is one byte for each page.
        unsafe { libc::mincore(start as *const _, end - start, pages.as_mut_ptr()) == 0 }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn what_is_not_mapped_or_not_writable_is_told() {
        let page = fulmen_memory::page_size();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an own range of four pages, of which the third becomes read-only and the fourth is given back.
        let start = unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), 4 * page, rights, MapFlags::PRIVATE).unwrap();
            mprotect(start.byte_add(2 * page), page, MprotectFlags::READ).unwrap();
            munmap(start.byte_add(3 * page), page).unwrap();
            start.addr()
        };
        for (offset, len, writable, good) in [
            (0, 2 * page, true, true),
            (10, 2 * page - 10, true, true),
            (10, 2 * page, true, false),
            (10, 2 * page, false, true),
            (0, 3 * page, false, true),
            (0, 3 * page + 1, false, false),
            (3 * page, 1, false, false),
        ] {
            assert_eq!(check(start + offset, len, writable).is_ok(), good, "{offset} {len} {writable}");
            let (first, end) = ((start + offset) / page * page, (start + offset + len).next_multiple_of(page));
            assert_eq!(platform::listed(first, end, writable), good, "in the list: {offset} {len} {writable}");
        }
        assert!(check(usize::MAX - 10, 100, false).is_err());
        // SAFETY: the rest of the own range.
        unsafe { munmap(start as *mut _, 3 * page).unwrap() };
    }
}
