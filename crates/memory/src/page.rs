/// The size of a page in bytes: 4 KiB on x86-64 Linux, 16 KiB on Apple silicon.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}
