//! Regions: what they are made of, and what they refuse.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_memory::{ChunkRule, FileAccess, Pool, Region, RegionError, page_size};

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0xff; region.len()];
    region.expose().unwrap().read(0, &mut bytes);
    bytes
}

fn descriptor(region: &Region) -> OwnedFd {
    region.fd().unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn a_region_is_zeroed_aligned_and_of_any_length() {
    for len in [1, 63, 4095, 4096, 4097, 100_000] {
        let region = Region::alloc(len).unwrap();
        assert_eq!(region.len(), len);
        assert_eq!(region.addr() % page_size(), 0);
        assert!(region.is_writable() && !region.is_empty() && region.fd().is_some() && region.file().is_none());
        assert_eq!(bytes(&region), vec![0; len]);
    }
    assert_ne!(Region::alloc(1).unwrap().id(), Region::alloc(1).unwrap().id());
}

#[test]
fn nothing_and_too_much_are_refused() {
    assert!(matches!(Region::alloc(0), Err(RegionError::Empty)));
    for len in [1 << 50, isize::MAX as usize, usize::MAX] {
        match Region::alloc(len) {
            Err(RegionError::TooLarge { len: asked, total }) => assert!(asked == len && total > 0),
            Err(RegionError::NoMemory { .. }) if cfg!(target_os = "macos") => {}
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn the_size_is_sealed() {
    let region = Region::alloc(4096).unwrap();
    let file = File::from(descriptor(&region));
    assert!(file.set_len(0).is_err(), "a peer could shrink the region under us");
    assert!(file.set_len(8192).is_err(), "a peer could grow the region");
    assert_eq!(file.metadata().unwrap().len(), 4096);
}

#[test]
fn a_received_region_is_the_same_memory() {
    let here = Region::alloc(8192).unwrap();
    let there = Region::from_fd(descriptor(&here), 8192).unwrap();
    assert_ne!((here.addr(), here.id()), (there.addr(), there.id()));
    let (ours, theirs) = (here.expose().unwrap(), there.expose().unwrap());
    ours.write(8000, b"to there");
    theirs.write(1, b"to here");
    let (mut a, mut b) = ([0; 8], [0; 7]);
    theirs.read(8000, &mut a);
    ours.read(1, &mut b);
    assert_eq!((&a, &b), (b"to there", b"to here"));
    // A received region can be handed on, outlives the first, and may be a part.
    let part = Region::from_fd(descriptor(&there), 100).unwrap();
    drop((here, ours, there, theirs));
    assert_eq!(&bytes(&part)[1..8], b"to here");
    assert_eq!(part.len(), 100);
}

#[test]
fn a_received_region_is_not_pooled() {
    let here = Region::alloc(4096).unwrap();
    let there = Region::from_fd(descriptor(&here), 4096).unwrap();
    let _pool = Pool::new(&here).unwrap();
    // Two pools would give two exclusive slices of the same bytes.
    assert!(matches!(Pool::new(&there), Err(RegionError::NotExclusive { what: "another process's region" })));
    there.expose().unwrap();
}

fn problem(fd: impl Into<OwnedFd>, len: usize) -> &'static str {
    match Region::from_fd(fd.into(), len) {
        Err(RegionError::Unfit { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn foreign_descriptors_are_unfit() {
    let (reader, writer) = std::io::pipe().unwrap();
    problem(reader, 1);
    problem(writer, 1);
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    problem(file, 4096);
    problem(File::open("/dev/null").unwrap(), 1);
    assert_eq!(problem(descriptor(&Region::alloc(4096).unwrap()), 4097), "is shorter than promised");
    assert_eq!(problem(descriptor(&Region::alloc(4096).unwrap()), usize::MAX), "is shorter than promised");
    assert!(matches!(Region::from_fd(descriptor(&Region::alloc(1).unwrap()), 0), Err(RegionError::Empty)));
}

#[cfg(target_os = "linux")]
#[test]
fn memory_without_the_seals_is_unfit() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let make = |seals: SealFlags| {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let unsealed = "is not sealed, so its owner could shorten it";
    assert_eq!(problem(make(SealFlags::empty()), 4096), unsealed);
    assert_eq!(problem(make(SealFlags::SHRINK | SealFlags::SEAL), 4096), unsealed);
    assert_eq!(problem(make(SealFlags::SHRINK | SealFlags::GROW), 4096), unsealed);
    let sizes = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert_eq!(problem(make(sizes | SealFlags::WRITE), 4096), "cannot be written");
    // Others may add seals of their own, as long as writing stays possible.
    assert_eq!(bytes(&Region::from_fd(make(sizes), 4096).unwrap()), vec![0; 4096]);
}

#[test]
fn a_file_is_mapped_for_reading() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"on disk").unwrap();
    let region = Region::map_file(&File::open(file.path()).unwrap(), FileAccess::ReadOnly).unwrap();
    assert_eq!(bytes(&region), b"on disk");
    assert!(!region.is_writable() && region.fd().is_none() && region.file().is_some());
    assert!(matches!(Pool::new(&region), Err(RegionError::NotExclusive { what: "a mapped file" })));

    let exposed = region.expose().unwrap();
    let refused = |write: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).expect_err("a write went through");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the region is mapped read-only"));
    };
    refused(&|| exposed.write(0, b"x"));
    refused(&|| exposed.fill(0..1, 0));
    refused(&|| exposed.copy_to(0, &exposed, 1, 1));
    refused(&|| {
        let _ = exposed.atomic_u32(0);
    });
    refused(&|| {
        let _ = exposed.slice(0..4).atomic_u32(0);
    });
}

#[test]
fn a_file_is_mapped_for_writing() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"old bytes").unwrap();
    let region = Region::map_file(&file, FileAccess::ReadWrite).unwrap();
    region.expose().unwrap().write(0, b"new");
    file.write_all(b" and more").unwrap();
    drop(region);
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "new bytes and more");
}

#[test]
fn files_that_cannot_be_mapped_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(Region::map_file(file.as_file(), FileAccess::ReadWrite), Err(RegionError::Empty)));
    file.as_file().set_len(10).unwrap();
    let reading = File::open(file.path()).unwrap();
    let error = Region::map_file(&reading, FileAccess::ReadWrite).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file is not open for reading and writing: open it so, or map it with another access"
    );
    let writing = OpenOptions::new().write(true).open(file.path()).unwrap();
    let error = Region::map_file(&writing, FileAccess::ReadOnly).unwrap_err();
    assert!(matches!(error, RegionError::FileAccess { needs: "reading" }), "{error}");
    assert!(Region::map_file(&File::open("/").unwrap(), FileAccess::ReadOnly).is_err(), "a directory");
}

/// Counts its drops.
struct Owner {
    drops: Arc<AtomicUsize>,
    _memory: Region,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

fn owner() -> (Arc<AtomicUsize>, NonNull<u8>, Box<Owner>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let memory = Region::alloc(4 * page_size()).unwrap();
    let start = NonNull::new(memory.expose().unwrap().as_ptr()).unwrap();
    (drops.clone(), start, Box::new(Owner { drops, _memory: memory }))
}

#[test]
fn an_adopted_region_keeps_its_owner_until_its_last_handle() {
    let (drops, start, owner) = owner();
    // SAFETY: the owner keeps the four pages mapped, and nobody else uses them.
    let region = unsafe { Region::adopt(start, 2 * page_size(), owner) }.unwrap();
    assert_eq!((region.addr(), region.len()), (start.as_ptr() as usize, 2 * page_size()));
    assert!(region.fd().is_none() && region.file().is_none() && region.is_writable());
    let pool = Pool::new(&region).unwrap();
    let mut block = pool.take(2 * page_size()).unwrap();
    drop((region, pool));
    block.as_mut_slice::<u8>().fill(3);
    let exposed = block.into_exposed();
    let handle = exposed.clone();
    drop(exposed);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    std::thread::spawn(move || drop(handle)).join().unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn an_adopted_region_is_whole_pages() {
    let page = page_size();
    for (offset, len) in [(1, page), (0, page - 1), (64, page), (0, page + 1)] {
        let (drops, start, owner) = owner();
        // SAFETY: the owner keeps the four pages mapped, and nobody else uses them.
        let start = unsafe { start.add(offset) };
        // SAFETY: as above.
        let error = unsafe { Region::adopt(start, len, owner) }.unwrap_err();
        assert!(
            matches!(error, RegionError::Unaligned { addr, len: l, .. } if addr == start.as_ptr() as usize && l == len)
        );
        assert_eq!(drops.load(Ordering::SeqCst), 1, "the owner is not leaked by an error");
    }
    let (drops, start, owner) = owner();
    // SAFETY: as above.
    assert!(matches!(unsafe { Region::adopt(start, 0, owner) }, Err(RegionError::Empty)));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn registrations_are_cut_at_addresses() {
    let region = Region::alloc(5 * page_size()).unwrap();
    let rule = ChunkRule { boundary: Some(2 * page_size() as u64), max_len: None };
    let pieces = region.registrations(rule);
    // Two pages a piece; where the first is cut depends on where the region lies.
    assert_eq!(pieces.len(), 3);
    for piece in &pieces[1..] {
        assert_eq!((region.addr() + piece.start) % (2 * page_size()), 0);
    }
    assert_eq!(region.registrations(ChunkRule::NONE), std::slice::from_ref(&(0..region.len())));
}

#[test]
fn handles_cross_threads() {
    fn check<T: Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<Region>();
    check::<Pool>();
    check::<fulmen_memory::Block>();
    check::<fulmen_memory::Exposed>();
    assert!(Region::alloc(1).unwrap().fd().unwrap().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_weak_handle_keeps_nothing_mapped() {
    let (drops, start, owner) = owner();
    // SAFETY: the owner keeps the four pages mapped, and nobody else uses them.
    let region = unsafe { Region::adopt(start, page_size(), owner) }.unwrap();
    let weak = region.downgrade();
    let again = weak.upgrade().expect("another handle keeps it");
    assert_eq!(again.id(), region.id());
    drop((region, again));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(weak.upgrade().is_none());
}
