//! Systems without such calls: everything is refused.

use std::io;

/// Bytes of one process.
#[derive(Clone, Copy)]
pub(super) struct Range;

impl Range {
    pub(super) fn new(_addr: u64, _len: usize) -> Range {
        Range
    }
}

pub(super) fn own_bytes_mut(_bytes: &mut [u8]) -> Range {
    Range
}

/// # Safety
/// It does nothing.
pub(super) unsafe fn read(_pid: u32, _into: &mut [Range], _from: &mut [Range]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// # Safety
/// It does nothing.
pub(super) unsafe fn write(_pid: u32, _from: &mut [Range], _to: &mut [Range]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn is_about_memory(_error: &io::Error) -> bool {
    false
}

pub(super) fn is_gone(_error: &io::Error) -> bool {
    false
}

pub(super) fn why(_error: &io::Error) -> &'static str {
    " (this system has no calls that copy between processes)"
}

pub(super) fn invite() {}
