use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, ftruncate},
    io::{FdFlags, fcntl_setfd},
    shm::{OFlags, open, unlink},
};

/// The processors that this process may use.
pub fn allowed_processors() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
}

/// The system offers no binding to processors; it leaves busy threads where they are.
pub fn pin(_processors: &[usize]) -> io::Result<()> {
    Ok(())
}

/// The system offers no such service; waits end by their bound.
pub fn end_with_parent() -> io::Result<()> {
    Ok(())
}

/// An unnamed file of zeroes that child processes inherit.
pub fn shared_file(bytes: u64) -> io::Result<OwnedFd> {
    let name = format!("/fulmen-floor-{}", std::process::id());
    let file = open(&name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, Mode::RUSR | Mode::WUSR)?;
    unlink(&name)?;
    fcntl_setfd(&file, FdFlags::empty())?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Nothing to allow: see [`read_process`].
pub fn allow_reads() {}

/// The system offers ordinary processes no reading of others.
///
/// # Safety
/// None is asked for; the signature is that of other systems.
pub unsafe fn read_process(_pid: u32, _from: usize, _to: *mut u8, _bytes: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
