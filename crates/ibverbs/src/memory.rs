//! The program's own memory as the device sees it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::{OnceLock, PoisonError, RwLock};

use fulmen_memory::{Exposed, Region, RegionError, page_size};
use fulmen_verbs::{Piece, Pieces};

use crate::aliasing::{self, Void};

/// The registrations of an open device, by their local keys.
#[derive(Default)]
pub(crate) struct Memory {
    entries: RwLock<Entries>,
}

type Entries = HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>;

/// What is remembered of a registration.
pub(crate) struct Entry {
    /// All of its bytes.
    pub(crate) memory: Exposed,
    /// The address by which requests call its first byte.
    pub(crate) addr: u64,
    /// Which domain it belongs to: an address.
    pub(crate) domain: usize,
    /// It crosses a multiple of 4 GiB, and the device keeps 32 bits of addresses: what takes the place of memory that is
    /// meant then and not registered.
    pub(crate) aliased: Option<Void>,
}

impl Entry {
    /// Where bytes by these addresses are, if all of them are its own.
    #[inline]
    fn slice(&self, addr: u64, len: usize) -> Option<Exposed> {
        let start = addr.wrapping_sub(self.addr);
        let whole = self.memory.len() as u64;
        let inside = start <= whole && len as u64 <= whole - start;
        inside.then(|| self.memory.slice(start as usize..start as usize + len))
    }
}

/// Keys of registrations are as good as random in some of their bits.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    fn write_u32(&mut self, key: u32) {
        // An odd number with its bits spread (the golden ratio), so that high and low bits both depend on the key.
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Memory {
    /// One scatter/gather element for the device, which takes it in two pieces if it crosses a boundary. One that does not
    /// lie in the registration that it names goes to the device under key 0, which no registration has, so that the
    /// request completes with a protection error.
    #[inline]
    pub(crate) fn add_pieces(&self, lkey: u32, addr: u64, len: u32, pieces: &mut Pieces) {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let found = entries.get(&lkey).and_then(|entry| Some((entry, entry.slice(addr, len as usize)?)));
        match found {
            Some((Entry { aliased: None, .. }, memory)) => pieces.push(Piece { memory, lkey }),
            Some((entry @ Entry { aliased: Some(void), .. }, _)) => {
                for (meant, len) in aliasing::runs(entry.addr, addr, len.into()) {
                    pieces.push(meant_piece(&entries, entry.domain, meant, len).unwrap_or_else(|| void.piece(len)));
                }
            }
            None => {
                drop(entries);
                pieces.push(Piece { memory: nowhere().slice(0..len as usize), lkey: 0 });
            }
        }
    }

    pub(crate) fn add(&self, lkey: u32, entry: Entry) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(lkey, entry);
    }

    pub(crate) fn remove(&self, lkey: u32) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&lkey);
    }
}

/// These bytes, in whichever registration of the domain they are.
fn meant_piece(entries: &Entries, domain: usize, addr: u64, len: usize) -> Option<Piece> {
    let mut own = entries.iter().filter(|(_, entry)| entry.domain == domain);
    own.find_map(|(&lkey, entry)| Some(Piece { memory: entry.slice(addr, len)?, lkey }))
}

/// Bytes that nobody can touch, for elements that name no registered memory: as many as one element can have.
fn nowhere() -> &'static Exposed {
    static NOWHERE: OnceLock<Exposed> = OnceLock::new();
    NOWHERE.get_or_init(|| {
        let len = 1_usize << 32;
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE;
        let none = rustix::mm::ProtFlags::empty();
        // SAFETY: the system chooses an unused range of addresses, which costs no memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, none, flags) };
        let start = NonNull::new(start.expect("there are 4 GiB of addresses").cast()).expect("not at address zero");
        // SAFETY: the range is this function's own and stays for ever. Nobody can read or write it, and the device does
        // not try: it looks at the key first.
        let region = unsafe { Region::adopt(start, len, Box::new(())) }.expect("it is whole pages");
        region.expose().expect("it is new")
    })
}

/// The pages around `len` bytes at `addr`, and where the bytes start in them.
///
/// # Errors
/// [`RegionError`].
///
/// # Safety
/// The bytes are mapped, and stay mapped as long as the device has a registration of them; the program knows that the
/// device reads and writes them.
pub(crate) unsafe fn adopt(addr: usize, len: usize) -> Result<(Region, usize), RegionError> {
    let page = page_size();
    let first = addr / page * page;
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or(RegionError::Empty)?;
    let start = NonNull::new(first as *mut u8).ok_or(RegionError::Empty)?;
    // SAFETY: the caller's promise. The region is exposed only, never pooled, so that no reference to its bytes comes
    // from here, and several regions may contain the same bytes.
    let region = unsafe { Region::adopt(start, end - first, Box::new(())) }?;
    Ok((region, addr - first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_in_the_registrations_that_they_name() {
        let mut bytes = vec![0_u8; 100];
        let addr = bytes.as_mut_ptr() as usize;
        // SAFETY: the vector lives to the end of the test, and is not touched meanwhile.
        let (region, offset) = unsafe { adopt(addr, 100) }.unwrap();
        let memory = Memory::default();
        let exposed = region.expose().unwrap().slice(offset..offset + 100);
        memory.add(7, Entry { memory: exposed, addr: 1 << 40, domain: 1, aliased: None });
        let piece = |lkey, addr, len| {
            let mut pieces = Pieces::new();
            memory.add_pieces(lkey, addr, len, &mut pieces);
            let [piece] = pieces.as_slice() else { panic!("{pieces:?}") };
            piece.clone()
        };
        let at = 1_u64 << 40;
        let inside = piece(7, at + 10, 90);
        assert_eq!((inside.lkey, inside.memory.addr(), inside.memory.len()), (7, addr + 10, 90));
        assert_eq!(piece(7, at + 100, 0).lkey, 7);
        for (lkey, addr, len) in [(7, at + 10, 91), (7, at - 1, 1), (8, at, 1), (7, u64::MAX, u32::MAX)] {
            let outside = piece(lkey, addr, len);
            assert_eq!((outside.lkey, outside.memory.len()), (0, len as usize));
        }
        memory.remove(7);
        assert_eq!(piece(7, at, 1).lkey, 0);
    }
}
