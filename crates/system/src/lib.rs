//! The machine's own RDMA devices, through its own library: `libibverbs.so.1` on Linux, `librdma.dylib` on macOS, opened at
//! run time.
#![warn(missing_docs)]
