//! GPUs beside registered memory: what the machine has, and which of its memory RDMA devices reach.
//!
//! [`Cuda`] is NVIDIA's driver, opened at run time: its absence is an ordinary error, and nothing is linked. It gives host
//! memory that the driver has pinned ([`Cuda::pinned`]), registers a region so that GPUs work on it in place
//! ([`Cuda::register`]), and exports memory of a GPU as a dma-buf that an RDMA device registers ([`Cuda::dma_buf`]).
//!
//! On macOS there is no CUDA. Memory of Metal is a kind of [`fulmen_memory::kinds`].
#![warn(missing_docs)]

mod cuda;
mod driver;
mod error;
mod memory;

pub use cuda::{Cuda, Gpu};
pub use error::CudaError;
pub use memory::{CudaRegistration, DmaBuf};
