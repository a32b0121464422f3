use fulmen_memory::RegionError;

/// Why the CUDA driver did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The system has no CUDA.
    #[error("there is no CUDA on this system: NVIDIA's driver is for Linux")]
    OtherSystem,
    /// The driver's library cannot be opened.
    #[error("no CUDA driver ({cause}): install NVIDIA's driver, or hand the GPU to the container")]
    NoDriver {
        /// What the loader said, with the library's name.
        cause: String,
    },
    /// The driver's library lacks an entry point.
    #[error("the CUDA driver has no {name}: update it to one of CUDA {since} or later")]
    MissingSymbol {
        /// The entry point.
        name: &'static str,
        /// The version of CUDA that brought it.
        since: &'static str,
    },
    /// The driver finds no GPU.
    #[error(
        "the CUDA driver finds no GPU: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the container was given one"
    )]
    NoGpu,
    /// There is no GPU of this number.
    #[error("there is no GPU {gpu}: this machine has {known}, counted from 0")]
    UnknownGpu {
        /// The number asked for.
        gpu: usize,
        /// How many there are.
        known: usize,
    },
    /// The GPU cannot do it.
    #[error("{gpu} cannot {what}: {way_out}")]
    Unsupported {
        /// The GPU's name.
        gpu: String,
        /// What it cannot do.
        what: &'static str,
        /// What helps, or what to use instead.
        way_out: &'static str,
    },
    /// The memory may only be read.
    #[error("memory of a file that is mapped for reading cannot be written: map it for writing")]
    ReadOnly,
    /// A range does not lie in the memory.
    #[error("{len} bytes from {offset} do not lie in {size} bytes of GPU memory")]
    OutOfBounds {
        /// The first byte.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes that there are.
        size: usize,
    },
    /// The memory makes no region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A call failed.
    #[error("{call} failed with {name} ({text}): {way_out}")]
    Call {
        /// The driver's entry point.
        call: &'static str,
        /// What it returned.
        status: i32,
        /// The driver's name of that.
        name: String,
        /// The driver's words for it.
        text: String,
        /// What helps.
        way_out: &'static str,
    },
}

/// What helps against a result of the driver.
pub(crate) fn way_out(status: i32) -> &'static str {
    match status {
        1 => "this is an error of Fulmen or of the memory's length: report it with the call",
        2 => "ask for less, free memory of the GPU or the host, or raise the limit on locked memory (`ulimit -l`)",
        4 => "the program is ending",
        34 => "the library is a stub for linking: put the driver's own libcuda.so.1 before it in the search path",
        46 | 802 => "another program holds the GPU, or its services are not up: see `nvidia-smi`",
        712 => "the memory is registered already: end that registration first",
        713 => "the memory is not registered",
        800 => "the system forbids it: look at the permissions of /dev/nvidia*",
        801 => "this GPU, driver or kind of memory does not have it",
        803 => "library and kernel module are of different versions: restart after the driver's update",
        _ => "see the kernel's log (`dmesg`) and `nvidia-smi`",
    }
}
