//! Kinds of memory that programs bring: each is made, used and freed, or says why it cannot be.

use fulmen_memory::kinds::{KindError, MemoryKind, udmabuf};
use fulmen_memory::{Pool, Region, RegionError, page_size};

/// A region of the kind; none where the system has not what it takes, which is told.
fn allocate(kind: MemoryKind, len: usize) -> Option<Region> {
    match kind.allocate(len) {
        Ok(region) => Some(region),
        Err(error @ (KindError::NoHugePages { .. } | KindError::HugePagesUnknown | KindError::NoSpace { .. })) => {
            eprintln!("SKIPPED: {} of {len} bytes, because {error}", kind.name());
            None
        }
        Err(error) => panic!("{} of {len} bytes: {error}", kind.name()),
    }
}

#[test]
fn each_kind_is_zeroed_whole_pages_that_can_be_written() {
    let page = page_size();
    for &kind in MemoryKind::all() {
        for len in [1, 4095, page, page + 1, 3 * page, 1_000_003] {
            let Some(region) = allocate(kind, len) else { continue };
            assert_eq!(region.addr() % page, 0, "{}", kind.name());
            assert!(region.len() >= len && region.len().is_multiple_of(page), "{}: {}", kind.name(), region.len());
            assert!(region.is_writable(), "{}", kind.name());
            let exposed = region.expose().expect("memory of its own");
            let mut bytes = vec![1; region.len()];
            exposed.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0), "{}", kind.name());
            let pattern: Vec<u8> = (0..region.len()).map(|at| (at % 251) as u8).collect();
            exposed.write(0, &pattern);
            exposed.read(0, &mut bytes);
            assert!(bytes == pattern, "{}", kind.name());
        }
    }
}

#[test]
fn memory_that_only_this_process_has_can_be_pooled() {
    for &kind in MemoryKind::all() {
        let Some(region) = allocate(kind, 4 * page_size()) else { continue };
        match Pool::new(&region) {
            Ok(pool) => {
                let mut block = pool.take(64).expect("a block");
                block.as_mut_slice::<u64>().fill(7);
            }
            Err(error) => assert_eq!(kind, MemoryKind::File, "{}: {error}", kind.name()),
        }
    }
}

#[test]
fn regions_of_a_kind_live_side_by_side() {
    for &kind in MemoryKind::all() {
        let regions: Vec<Region> = (0..4).map_while(|_| allocate(kind, 2 * page_size())).collect();
        let exposed: Vec<_> = regions.iter().map(|region| region.expose().expect("exposed")).collect();
        for (at, memory) in exposed.iter().enumerate() {
            memory.fill(0..memory.len(), at as u8 + 1);
        }
        for (at, memory) in exposed.iter().enumerate() {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == at as u8 + 1), "{}", kind.name());
        }
    }
}

#[test]
fn lengths_that_no_machine_has_are_refused_in_words() {
    for &kind in MemoryKind::all() {
        assert!(matches!(kind.allocate(0), Err(KindError::Region(RegionError::Empty))), "{}", kind.name());
        for len in [usize::MAX, usize::MAX - page_size(), isize::MAX as usize, 1 << 60] {
            let error = kind.allocate(len).expect_err("more than any machine has").to_string();
            assert!(error.contains("ask for less"), "{}: {error}", kind.name());
        }
    }
}

#[test]
fn names_are_told_apart() {
    let mut names: Vec<_> = MemoryKind::all().iter().map(|kind| kind.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), MemoryKind::all().len());
}

#[test]
fn a_kind_of_another_system_says_so() {
    let foreign = if cfg!(target_os = "macos") { MemoryKind::Memfd } else { MemoryKind::IoSurface };
    assert!(!MemoryKind::all().contains(&foreign));
    let error = foreign.allocate(1).expect_err("it is not of this system");
    assert!(matches!(error, KindError::OtherSystem { .. }), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn huge_pages_are_whole_or_the_error_says_how_to_reserve_them() {
    match MemoryKind::HugePages.allocate(page_size()) {
        Ok(region) => assert!(region.len() > page_size(), "a huge page is larger than others"),
        Err(error @ KindError::NoHugePages { .. }) => {
            assert!(error.to_string().contains("vm.nr_hugepages="), "{error}");
        }
        Err(error) => eprintln!("SKIPPED: huge pages, because {error}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_dma_buf_is_made_of_a_memfd_alone() {
    let other = MemoryKind::AnonymousMmap.allocate(1).expect("pages");
    assert!(matches!(udmabuf(&other), Err(KindError::NoMemfd)));
    let odd = Region::alloc(page_size() + 1).expect("a region");
    assert!(matches!(udmabuf(&odd), Err(KindError::NotWholePages { .. })));
    let region = Region::alloc(2 * page_size()).expect("a region");
    let fd = match udmabuf(&region) {
        Ok(fd) => fd,
        Err(error @ KindError::NoUdmabuf) => {
            assert!(error.to_string().contains("modprobe udmabuf"), "{error}");
            eprintln!("SKIPPED: a dma-buf of memory, because {error}");
            return;
        }
        Err(error @ KindError::UdmabufPermission { .. }) => {
            eprintln!("SKIPPED: a dma-buf of memory, because {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    // Its size is what a seek to its end tells.
    let size = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).expect("a dma-buf can be measured");
    assert_eq!(size, 2 * page_size() as u64);
    // The same memory, also when the region is gone.
    region.expose().expect("exposed").fill(0..2 * page_size(), 6);
    drop(region);
    // SAFETY: the system chooses an unused range, which is read below and then left to the end of the process.
    let bytes = unsafe {
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        let start = rustix::mm::mmap(std::ptr::null_mut(), 2 * page_size(), protection, flags, &fd, 0).expect("mapped");
        std::slice::from_raw_parts(start.cast::<u8>(), 2 * page_size())
    };
    assert!(bytes.iter().all(|byte| *byte == 6));

    let large = Region::alloc(65 << 20).expect("a region");
    match udmabuf(&large) {
        Err(error @ KindError::UdmabufLimit { .. }) => assert!(error.to_string().contains("size_limit_mb"), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => eprintln!("this system's limit is above 65 MiB"),
    }
}

#[cfg(target_os = "macos")]
#[test]
fn there_is_no_udmabuf_elsewhere() {
    let region = Region::alloc(1).expect("a region");
    assert!(matches!(udmabuf(&region), Err(KindError::OtherSystem { .. })));
}
