//! The machine's own CUDA driver and GPUs. Without a driver, what it says is tested, and the rest is skipped.
//!
//! The executable needs nothing beside it: it can be carried to a machine with a GPU and run there, with `--nocapture` to
//! see what the machine has.

use std::path::Path;

use fulmen_gpu::{Cuda, CudaError};
use fulmen_memory::kinds::MemoryKind;
use fulmen_memory::{Pool, Region, RegionError, page_size};

/// The driver; none where there is none, which is told.
fn cuda(for_what: &str) -> Option<Cuda> {
    match Cuda::open() {
        Ok(cuda) => Some(cuda),
        Err(error @ (CudaError::NoDriver { .. } | CudaError::NoGpu | CudaError::OtherSystem)) => {
            eprintln!("SKIPPED: {for_what}, because {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_driver_that_is_absent_is_named() {
    let error = Cuda::open_at(Path::new("/nowhere/libcuda.so.1")).expect_err("no such file");
    assert!(matches!(error, CudaError::NoDriver { .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("/nowhere/libcuda.so.1") && words.contains("install NVIDIA's driver"), "{words}");
    if let Err(error @ CudaError::NoDriver { .. }) = Cuda::open() {
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    }
    // A library that is none of the driver's.
    let error = Cuda::open_at(Path::new("libc.so.6")).expect_err("no driver");
    assert!(matches!(error, CudaError::MissingSymbol { name: "cuInit", .. }), "{error}");
}

#[cfg(target_os = "macos")]
#[test]
fn there_is_no_driver_elsewhere() {
    assert!(matches!(Cuda::open_at(Path::new("libcuda.so.1")), Err(CudaError::OtherSystem)));
}

#[test]
fn gpus_are_described() {
    let Some(cuda) = cuda("GPUs") else { return };
    for gpu in cuda.gpus() {
        eprintln!("{gpu:?}");
        assert!(!gpu.name.is_empty() && gpu.pci.contains(':') && gpu.memory > 1 << 28 && gpu.cuda.0 > 0, "{gpu:?}");
    }
    let beyond = cuda.gpus().len();
    assert!(
        matches!(cuda.dma_buf(beyond, 1), Err(CudaError::UnknownGpu { gpu, known }) if gpu == beyond && known == beyond)
    );
}

#[test]
fn pinned_memory_is_a_region_that_every_gpu_writes() {
    let Some(cuda) = cuda("pinned memory") else { return };
    for len in [1, page_size(), 1_000_003, 64 << 20] {
        let region = cuda.pinned(len).expect("pinned memory");
        assert!(region.len() >= len && region.len().is_multiple_of(page_size()));
        let memory = region.expose().expect("exposed");
        let mut bytes = vec![1; region.len()];
        memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "it is zeroed");
        for gpu in 0..cuda.gpus().len() {
            let byte = gpu as u8 + 1;
            memory.fill(0..region.len(), 0xff);
            // Not from the start, and not to the end.
            let (from, to) = (region.len() / 4, region.len() / 2);
            cuda.fill(gpu, &memory.slice(from..to), byte).expect("the GPU writes");
            memory.read(0, &mut bytes);
            let right = |at| if (from..to).contains(&at) { byte } else { 0xff };
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == right(at)), "{len} bytes, GPU {gpu}");
        }
    }
    let mut block =
        Pool::new(&cuda.pinned(page_size()).expect("pinned memory")).expect("a pool").take(64).expect("a block");
    block.as_mut_slice::<u64>().fill(7);
    assert!(matches!(cuda.pinned(0), Err(CudaError::Region(RegionError::Empty))));
    let error = cuda.pinned(1 << 60).expect_err("more than any machine has").to_string();
    assert!(error.contains("cuMemHostAlloc failed with CUDA_ERROR"), "{error}");
    assert!(cuda.pinned(usize::MAX).is_err());
}

#[test]
fn a_registered_region_is_written_in_place_until_the_registration_ends() {
    let Some(cuda) = cuda("registered regions") else { return };
    let region = Region::alloc((64 << 20) + 1).expect("a region");
    let memory = region.expose().expect("exposed");
    for round in 0..3 {
        let registration = cuda.register(&region).expect("a sealed memfd registers");
        if cuda.gpus().iter().all(|gpu| gpu.unified_addressing) {
            assert_eq!(registration.device_addr(), region.addr() as u64);
        }
        cuda.fill(0, &memory, 40 + round).expect("the GPU writes");
        let mut bytes = vec![0; region.len()];
        memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 40 + round));
        let error = cuda.register(&region).expect_err("it is registered already").to_string();
        assert!(error.contains("cuMemHostRegister") && error.contains("ALREADY_REGISTERED"), "{error}");
        drop(registration);
        // Where a GPU sees all of the processors' memory, it may write it still.
        let after = cuda.fill(0, &memory, 1).map_err(|error| error.to_string());
        eprintln!("a write after the registration: {after:?}");
    }
    let registration = cuda.register(&region).expect("registers");
    drop((region, memory, cuda));
    assert!(!registration.region().is_empty(), "a registration keeps region and driver");
}

#[test]
fn every_kind_of_memory_says_whether_it_registers() {
    let Some(cuda) = cuda("kinds of memory") else { return };
    for &kind in MemoryKind::all() {
        let region = match kind.allocate(4 << 20) {
            Ok(region) => region,
            Err(error) => {
                eprintln!("{}: not tried, because {error}", kind.name());
                continue;
            }
        };
        match cuda.register(&region) {
            Err(error) => {
                eprintln!("{}: refused: {error}", kind.name());
                assert!(error.to_string().contains("CUDA_ERROR"), "{error}");
            }
            Ok(_registration) => {
                let memory = region.expose().expect("exposed");
                cuda.fill(0, &memory, 9).expect("the GPU writes what it registered");
                let mut bytes = vec![0; region.len()];
                memory.read(0, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == 9), "{}", kind.name());
                eprintln!("{}: registers, and the GPU writes it in place", kind.name());
            }
        }
    }
}

#[test]
fn memory_of_a_gpu_becomes_a_dma_buf() {
    let Some(cuda) = cuda("dma-bufs of GPU memory") else { return };
    for gpu in 0..cuda.gpus().len() {
        for len in [1, page_size() + 1, 16 << 20] {
            let buffer = match cuda.dma_buf(gpu, len) {
                Ok(buffer) => buffer,
                Err(error @ (CudaError::Unsupported { .. } | CudaError::MissingSymbol { .. })) => {
                    eprintln!("SKIPPED: dma-bufs of GPU {gpu}, because {error}");
                    break;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(buffer.len() >= len && buffer.len().is_multiple_of(page_size()) && buffer.offset() == 0);
            let link = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&buffer.fd())));
            eprintln!("GPU {gpu}, {} bytes at {:#x}: {link:?}", buffer.len(), buffer.device_addr());
            let mut bytes = vec![1; buffer.len()];
            buffer.read(0, &mut bytes).expect("read");
            assert!(bytes.iter().all(|byte| *byte == 0), "it is zeroed");
            buffer.write(buffer.len() - 5, b"bytes").expect("written");
            let mut end = [0; 5];
            buffer.read(buffer.len() - 5, &mut end).expect("read");
            assert_eq!(&end, b"bytes");
            let error = buffer.write(buffer.len() - 4, b"bytes").expect_err("one byte beyond");
            assert!(matches!(error, CudaError::OutOfBounds { .. }), "{error}");
        }
    }
    assert!(matches!(cuda.dma_buf(0, 0), Err(CudaError::Region(RegionError::Empty) | CudaError::Unsupported { .. })));
}
