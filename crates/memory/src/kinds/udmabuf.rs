use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::KindError;
use crate::{Region, page_size};

/// `linux/udmabuf.h`: `struct udmabuf_create`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: libc::Ioctl = (1 << 30 | (size_of::<Create>() as u32) << 16 | (b'u' as u32) << 8 | 0x42) as libc::Ioctl;

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// Makes a dma-buf of the whole of a region made by [`Region::alloc`], by `/dev/udmabuf`. The region is whole pages long.
/// The dma-buf keeps the memory, also when the region is gone.
///
/// # Errors
/// [`KindError::NoUdmabuf`] and [`KindError::UdmabufPermission`] where the device is not to be had,
/// [`KindError::NoMemfd`] for other memory, [`KindError::NotWholePages`], [`KindError::UdmabufLimit`] for more than the
/// kernel allows, and what the system refuses.
pub fn udmabuf(region: &Region) -> Result<OwnedFd, KindError> {
    let memfd = region.fd().ok_or(KindError::NoMemfd)?;
    let (len, page) = (region.len(), page_size());
    // Some kernels take a page of which the memfd has a part, later ones do not.
    if !len.is_multiple_of(page) {
        return Err(KindError::NotWholePages { len, page });
    }
    let device = rustix::fs::open("/dev/udmabuf", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let device = device.map_err(|cause| match cause {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => KindError::NoUdmabuf,
        Errno::ACCESS | Errno::PERM => KindError::UdmabufPermission { cause },
        cause => refused("open /dev/udmabuf for", region, cause),
    })?;
    let create = Create { memfd: memfd.as_raw_fd().cast_unsigned(), flags: CLOEXEC, offset: 0, size: len as u64 };
    // SAFETY: both descriptors are open, and the structure is the one that this request reads.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    if made < 0 {
        let cause = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        return Err(match size_limit() {
            Some(limit) if cause == Errno::INVAL && create.size > limit << 20 => KindError::UdmabufLimit { len, limit },
            _ => refused("make a dma-buf of", region, cause),
        });
    }
    // SAFETY: the system just made this descriptor for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// MiB.
fn size_limit() -> Option<u64> {
    std::fs::read_to_string("/sys/module/udmabuf/parameters/size_limit_mb").ok()?.trim().parse().ok()
}

fn refused(action: &'static str, region: &Region, cause: Errno) -> KindError {
    KindError::System { action, kind: "memfd", len: region.len(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_number_of_the_header() {
        assert_eq!((size_of::<Create>(), CREATE as u32), (24, 0x4018_7542));
    }
}
