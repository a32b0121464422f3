//! macOS: threads cannot be bound to processors, and memory is compressed and swapped before it runs out.

use std::io;

/// None that a rank could have to itself.
pub fn cores() -> Vec<Vec<usize>> {
    Vec::new()
}

/// Always refused.
pub fn bind(_processors: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not told.
pub fn available_memory() -> Option<u64> {
    None
}
