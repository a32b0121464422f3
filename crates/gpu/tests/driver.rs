//! The calls that are made of a CUDA driver, over one without a GPU that is compiled for these tests: what is taken is
//! given back, and errors have the driver's words.
#![cfg(target_os = "linux")]

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::process::Command;

use fulmen_gpu::{Cuda, CudaError};
use fulmen_memory::{FileAccess, Region, page_size};
use tempfile::TempDir;

/// A driver of a test's own.
struct Fake {
    library: libloading::Library,
    path: PathBuf,
    _dir: TempDir,
}

impl Fake {
    /// `None`, and a line that says why, where there is no C compiler.
    fn new(defines: &[&str]) -> Option<Fake> {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, path) = (dir.path().join("fakecuda.c"), dir.path().join("libcuda.so.1"));
        std::fs::write(&source, include_str!("fake/fakecuda.c")).expect("the source is written");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC"]).args(defines).arg("-o").arg(&path).arg(&source);
        match cc.output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                eprintln!(
                    "SKIPPED: the fake driver was not built, because the C compiler `cc` cannot be run ({error})"
                );
                return None;
            }
        }
        // SAFETY: the library does nothing when it is loaded.
        let library = unsafe { libloading::Library::new(&path) }.expect("it was just built");
        Some(Fake { library, path, _dir: dir })
    }

    fn open(&self) -> Cuda {
        Cuda::open_at(&self.path).expect("the fake driver")
    }

    fn ask(&self, name: &str) -> c_int {
        // SAFETY: the counting functions of fakecuda.c have this type.
        unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>(name).expect("a function")() }
    }

    fn fail(&self, call: &str, status: c_int) {
        let call = CString::new(call).expect("no zero").into_raw();
        // SAFETY: the function of fakecuda.c has this type, and keeps the string, which is never freed.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char, c_int)>("fake_fail").expect("a function")(
                call, status,
            )
        }
    }

    #[track_caller]
    fn expect(&self, live: c_int, contexts: c_int) {
        assert_eq!(self.ask("fake_depth"), 0, "every context that was pushed is popped");
        assert_eq!((self.ask("fake_live"), self.ask("fake_contexts")), (live, contexts));
    }
}

#[test]
fn gpus_are_described() {
    let Some(fake) = Fake::new(&[]) else { return };
    let cuda = fake.open();
    let [first, second] = cuda.gpus() else { panic!("{cuda:?}") };
    // As long as there is room for, and still a string.
    assert!(first.name.len() > 100 && first.name.chars().all(|letter| letter == 'A'), "{first:?}");
    assert_eq!((first.pci.as_str(), second.pci.as_str()), ("0000:01:00.0", "0000:02:00.0"));
    assert_eq!((first.memory, second.memory, first.cuda), (1 << 30, 2 << 30, (12, 8)));
    assert!(first.dma_buf && !second.dma_buf && first.unified_addressing && !first.host_atomics);
    fake.expect(0, 0);
}

#[test]
fn what_is_taken_is_given_back() {
    let Some(fake) = Fake::new(&[]) else { return };
    let cuda = fake.open();
    let pinned = cuda.pinned(5000).expect("pinned");
    fake.expect(1, 1);
    let mut bytes = vec![1; pinned.len()];
    pinned.expose().expect("exposed").read(0, &mut bytes);
    assert!(bytes.len() == 2 * page_size() && bytes.iter().all(|byte| *byte == 0));

    let region = Region::alloc(page_size() + 1).expect("a region");
    let memory = region.expose().expect("exposed");
    let registration = cuda.register(&region).expect("registered");
    assert_eq!(registration.device_addr(), region.addr() as u64);
    cuda.fill(1, &memory.slice(3..9), 5).expect("filled");
    let mut some = [0; 4];
    memory.read(7, &mut some);
    assert_eq!(some, [5, 5, 0, 0]);
    fake.expect(2, 2);

    let buffer = cuda.dma_buf(0, 1).expect("exported");
    assert!(buffer.device_addr().is_multiple_of(page_size() as u64) && buffer.len() == page_size());
    buffer.write(1, b"abc").expect("written");
    buffer.write(buffer.len(), b"").expect("nothing");
    let mut bytes = [0; 5];
    buffer.read(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"\0abc\0");
    buffer.read(usize::MAX, &mut bytes).expect_err("beyond");
    fake.expect(3, 2);

    drop(cuda);
    fake.expect(3, 2);
    drop((registration, buffer));
    fake.expect(1, 2);
    drop(pinned);
    fake.expect(0, 0);
}

#[test]
fn refusals_have_the_drivers_words_and_leave_nothing_behind() {
    let Some(fake) = Fake::new(&[]) else { return };
    let cuda = fake.open();
    let region = Region::alloc(1).expect("a region");
    let registration = cuda.register(&region).expect("registered");
    let error = cuda.register(&region).expect_err("registered already").to_string();
    assert!(error.contains("cuMemHostRegister failed with CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"), "{error}");
    assert!(
        error.contains("the driver has no words for it") && error.contains("end that registration first"),
        "{error}"
    );
    drop(registration);
    let error = cuda.pinned(1 << 50).expect_err("too much").to_string();
    assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY (out of memory)") && error.contains("ulimit -l"), "{error}");
    let error = cuda.fill(0, &region.expose().expect("exposed"), 1).expect_err("not registered").to_string();
    assert!(error.contains("cuMemHostGetDevicePointer failed with result 1"), "{error}");
    fake.expect(0, 1);

    for call in ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuMemGetHandleForAddressRange", "cuCtxSynchronize"] {
        fake.fail(call, 2);
        let error = cuda.dma_buf(0, 1).expect_err("told to fail").to_string();
        assert!(error.contains(call.trim_end_matches("_v2")), "{error}");
        fake.expect(0, 1);
    }
    fake.fail("cuMemHostGetDevicePointer_v2", 801);
    cuda.register(&region).expect_err("told to fail");
    fake.expect(0, 1);
    fake.fail("cuCtxPushCurrent_v2", 709);
    cuda.pinned(1).expect_err("told to fail");
    fake.fail("cuDevicePrimaryCtxRetain", 2);
    cuda.fill(1, &region.expose().expect("exposed"), 1).expect_err("told to fail");
    fake.fail("", 0);

    assert!(matches!(cuda.dma_buf(1, 1), Err(CudaError::Unsupported { .. })));
    assert!(matches!(cuda.dma_buf(2, 1), Err(CudaError::UnknownGpu { gpu: 2, known: 2 })));
    cuda.dma_buf(0, usize::MAX).expect_err("absurd");
    cuda.dma_buf(0, isize::MAX as usize - page_size()).expect_err("absurd");
    drop(cuda);
    fake.expect(0, 0);
}

#[test]
fn a_file_mapped_for_reading_registers_so_and_is_not_written() {
    let Some(fake) = Fake::new(&[]) else { return };
    let cuda = fake.open();
    let file = tempfile::tempfile().expect("a file");
    file.set_len(10).expect("ten bytes");
    let region = Region::map_file(&file, FileAccess::ReadOnly).expect("mapped");
    let _registration = cuda.register(&region).expect("registered");
    assert!(matches!(cuda.fill(0, &region.expose().expect("exposed"), 1), Err(CudaError::ReadOnly)));
}

#[test]
fn drivers_that_are_old_or_find_nothing_say_so() {
    let Some(fake) = Fake::new(&["-DOLD"]) else { return };
    let error = fake.open().dma_buf(0, 1).expect_err("the driver is old").to_string();
    assert!(error.contains("cuMemGetHandleForAddressRange") && error.contains("11.7"), "{error}");
    fake.fail("cuInit", 100);
    assert!(matches!(Cuda::open_at(&fake.path), Err(CudaError::NoGpu)));
    fake.fail("cuInit", 803);
    let error = Cuda::open_at(&fake.path).expect_err("told to fail").to_string();
    assert!(error.contains("cuInit failed with result 803") && error.contains("restart"), "{error}");
    fake.fail("", 0);
    // SAFETY: the function of fakecuda.c has this type.
    unsafe { fake.library.get::<unsafe extern "C" fn(c_int)>("fake_gpus").expect("a function")(0) }
    assert!(matches!(Cuda::open_at(&fake.path), Err(CudaError::NoGpu)));
}
