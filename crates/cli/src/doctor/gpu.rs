//! GPUs, and whether an RDMA device registers memory that they work on.

use fulmen::parts::gpu::{Cuda, CudaError};
use fulmen::parts::memory::Region;
use fulmen::parts::system::Library;
use fulmen::parts::verbs::{Access, Device, ProtectionDomain};
use serde::{Deserialize, Serialize};

use super::ask::Asker;
use super::facts::{ListedFacts, Refusal};
use super::library::troubled;
use super::report::Check;
use super::root::Root;

const GPUS: &str = "gpus";
const MEMORY: &str = "gpu memory";
/// Bytes that are registered to try it.
const TRIED: usize = 2 << 20;

/// The GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GpuFacts {
    /// In words.
    Found(Vec<String>),
    /// There is no driver, for this reason.
    NoDriver(String),
    /// The driver has no GPU, or refuses; and the way out.
    Refused(String, String),
}

/// Which memory a device registers; otherwise why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// Host memory that the GPU's driver has pinned.
    pinned: Result<(), String>,
    /// A region that GPUs work on in place.
    region: Result<(), String>,
    /// Memory of a GPU, by dma-buf; `None` if the GPU or the device does not have that.
    device: Option<Result<(), String>>,
}

/// Both checks of GPUs.
pub fn checks(asker: &Asker, root: &Root, devices: &[ListedFacts]) -> Vec<Check> {
    let not_tried = |sentence| Check::not_applicable(MEMORY, sentence);
    let found = match asker.gpus() {
        Ok(GpuFacts::Found(found)) => found,
        Ok(GpuFacts::NoDriver(cause)) => {
            let gpus = match root.list("/proc/driver/nvidia/gpus").len() {
                0 => Check::not_applicable(GPUS, format!("no GPU that needs one, and {cause}")),
                count => Check::failure(
                    GPUS,
                    format!("the kernel's driver has {count} of NVIDIA's GPUs, and programs cannot use them ({cause})"),
                    "install the driver's libraries (libcuda1), or hand the GPUs to the container with its runtime",
                ),
            };
            return vec![gpus, not_tried("there is no GPU to register memory of")];
        }
        Ok(GpuFacts::Refused(sentence, fix)) => {
            return vec![Check::warning(GPUS, sentence, fix), not_tried("there is no GPU to register memory of")];
        }
        Err(trouble) => {
            let fix = "look at `nvidia-smi` and the system's log, and bring library and kernel module to one version";
            let check = Check::failure(GPUS, format!("the CUDA driver does not answer: {trouble}"), fix);
            return vec![check, not_tried("there is no GPU to register memory of")];
        }
    };
    let gpus = Check::ok(GPUS, found.join(", "));
    let Some(device) = devices.first() else {
        return vec![gpus, not_tried("there is no RDMA device to register memory with")];
    };
    let memory = match asker.gpu_memory(&device.name) {
        Ok(Ok(facts)) => memory(&device.name, &facts),
        Ok(Err(refusal)) => {
            let sentence = format!("{} is not there to register memory with: {}", device.name, refusal.sentence);
            Check::not_applicable(MEMORY, sentence)
        }
        Err(trouble) => troubled(MEMORY, &format!("{} registering memory of GPUs", device.name), &trouble),
    };
    vec![gpus, memory]
}

fn memory(device: &str, facts: &MemoryFacts) -> Check {
    let host = [("memory pinned by CUDA", &facts.pinned), ("regions that GPUs work on in place", &facts.region)];
    let failed: Vec<_> =
        host.iter().filter_map(|(what, outcome)| Some(format!("{what} ({})", outcome.as_ref().err()?))).collect();
    if !failed.is_empty() {
        return Check::warning(
            MEMORY,
            format!("{device} does not register {}", failed.join(", nor ")),
            "raise the limit on locked memory (`ulimit -l unlimited`), and update the drivers of both",
        );
    }
    let both = format!("{device} registers memory pinned by CUDA and regions that GPUs work on in place");
    match &facts.device {
        None => Check::ok(MEMORY, format!("{both}; memory of the GPU itself goes through those (no dma-buf here)")),
        Some(Ok(())) => Check::ok(MEMORY, format!("{both}, and memory of the GPU itself, by dma-buf")),
        Some(Err(cause)) => Check::warning(
            MEMORY,
            format!("{both}, but not memory of the GPU itself: {cause}"),
            "use NVIDIA's open kernel modules and an adapter's driver with dma-buf; else data goes through host memory",
        ),
    }
}

/// Looks for GPUs, in the child.
pub fn gpus() -> GpuFacts {
    let cuda = match Cuda::open() {
        Ok(cuda) => cuda,
        Err(error @ (CudaError::OtherSystem | CudaError::NoDriver { .. })) => {
            let text = error.to_string();
            return GpuFacts::NoDriver(text.rsplit_once(": ").map_or(&*text, |(cause, _)| cause).to_owned());
        }
        Err(error) => {
            let text = error.to_string();
            let (sentence, fix) = text.rsplit_once(": ").unwrap_or((&text, "see `nvidia-smi`"));
            return GpuFacts::Refused(sentence.to_owned(), fix.to_owned());
        }
    };
    let described = cuda.gpus().iter().map(|gpu| {
        let (major, minor) = gpu.cuda;
        format!("{} ({} GiB, CUDA {major}.{minor})", gpu.name, gpu.memory >> 30)
    });
    GpuFacts::Found(described.collect())
}

/// Registers memory with a device, in the child.
pub fn register(name: &str) -> Result<MemoryFacts, Refusal> {
    let device = Library::open()?.open_device(name)?;
    let cuda = Cuda::open().map_err(|error| Refusal::of(&error))?;
    let domain = device.alloc_pd().map_err(|error| Refusal::of(&error))?;
    let try_region = |region: &Region| -> anyhow::Result<()> {
        for piece in region.registrations(device.info().limits.registration) {
            domain.register(region, piece, Access::LOCAL_WRITE)?;
        }
        Ok(())
    };
    let pinned = || -> anyhow::Result<()> { try_region(&cuda.pinned(TRIED)?) };
    let worked_on = || -> anyhow::Result<()> {
        let region = Region::alloc(TRIED)?;
        let _registration = cuda.register(&region)?;
        try_region(&region)
    };
    let words = |result: anyhow::Result<()>| result.map_err(|error| format!("{error:#}"));
    let exports = cuda.gpus().iter().position(|gpu| gpu.dma_buf).filter(|_| device.info().capabilities.dma_buf);
    let own = exports.map(|gpu| words(of_gpu(&cuda, gpu, &*domain)));
    Ok(MemoryFacts { pinned: words(pinned()), region: words(worked_on()), device: own })
}

fn of_gpu(cuda: &Cuda, gpu: usize, domain: &dyn ProtectionDomain) -> anyhow::Result<()> {
    let memory = cuda.dma_buf(gpu, TRIED)?;
    domain.register_dma_buf(memory.fd(), memory.offset(), memory.len(), Access::LOCAL_WRITE)?;
    Ok(())
}
