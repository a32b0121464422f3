//! `memory`: which kinds of memory a device registers, with which rights, and whether messages go out of them and into
//! them.
//!
//! Each kind is tried by a process of its own: one that brings the driver down says nothing about the others.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use fulmen::parts::gpu::{Cuda, CudaRegistration};
use fulmen::parts::memory::kinds::{MemoryKind, udmabuf};
use fulmen::parts::memory::{FileAccess, Region};
use fulmen::parts::verbs::{
    Access, Completion, Device, DmaBufRegistration, ProtectionDomain, RecvRequest, SendRequest, VerbsError,
};

use super::answer::{Answer, Memory as Row, Refusal, Right};
use super::ends::{End, Memory, all_access, best_kind, poll, region_in_one_piece};
use super::pattern;
use super::worker::{Done, Voice};

/// Bytes that are asked for.
const LEN: usize = 64 << 10;
/// Bytes of a message: whole frames, one piece of any registration.
const MESSAGE: usize = 16 << 10;

const READ_ONLY_FILE: &str = "read-only file";
const CUDA_PINNED: &str = "CUDA-pinned";
const CUDA_REGISTERED: &str = "CUDA-registered";
const UDMABUF: &str = "dma-buf of a memfd";
const GPU_DMA_BUF: &str = "dma-buf of a GPU";

/// The names of all kinds.
pub fn names() -> Vec<&'static str> {
    let own = MemoryKind::all().iter().map(|kind| kind.name());
    own.chain([READ_ONLY_FILE, CUDA_PINNED, CUDA_REGISTERED, UDMABUF, GPU_DMA_BUF]).collect()
}

/// Memory of a kind.
enum Source {
    Mapped(Region),
    /// A mapping that the CUDA driver has registered, as long as this lives.
    Cuda(CudaRegistration),
    DmaBuf(Box<RegisterDmaBuf>),
}

/// Registers a dma-buf with a domain.
type RegisterDmaBuf = dyn Fn(&dyn ProtectionDomain, Access) -> Result<Box<dyn DmaBufRegistration>, VerbsError>;

fn source(name: &str) -> anyhow::Result<Source> {
    Ok(match name {
        READ_ONLY_FILE => Source::Mapped(read_only_file()?),
        CUDA_PINNED => Source::Mapped(Cuda::open()?.pinned(LEN)?),
        CUDA_REGISTERED => Source::Cuda(Cuda::open()?.register(&Region::alloc(LEN)?)?),
        UDMABUF => {
            let fd = udmabuf(&Region::alloc(LEN)?)?;
            Source::DmaBuf(Box::new(move |pd, access| {
                pd.register_dma_buf(std::os::fd::AsFd::as_fd(&fd), 0, LEN, access)
            }))
        }
        GPU_DMA_BUF => {
            let buffer = Cuda::open()?.dma_buf(0, LEN)?;
            Source::DmaBuf(Box::new(move |pd, access| pd.register_dma_buf(buffer.fd(), buffer.offset(), LEN, access)))
        }
        name => {
            let kind = MemoryKind::all().iter().find(|kind| kind.name() == name).context("no such kind of memory")?;
            Source::Mapped(kind.allocate(LEN)?)
        }
    })
}

/// A file that is open for reading alone, with the pattern of [`carry`] in it.
fn read_only_file() -> anyhow::Result<Region> {
    let path = std::env::temp_dir().join(format!("fulmen-probe-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let written = file.write_all(&pattern::bytes(OUT, LEN));
    let opened = File::open(&path);
    fs::remove_file(&path)?;
    written?;
    Ok(Region::map_file(&opened?, FileAccess::ReadOnly)?)
}

/// Seeds of what goes out of the memory and into it.
const OUT: u64 = 1;
const IN: u64 = 2;

/// Tries one kind.
pub fn memory(voice: &Voice, device: &Arc<dyn Device>, name: &str) -> anyhow::Result<Done> {
    let mut row = Row { kind: name.to_string(), ..Row::default() };
    voice.at(&format!("making {name} memory"));
    let source = match source(name) {
        Ok(source) => source,
        Err(error) => {
            row.absent = Some(crate::chain(&error));
            return Ok(Done { answer: Some(Answer::Memory(vec![row])), wrong: Vec::new() });
        }
    };
    let pd = device.alloc_pd()?;
    for (rights, access) in [
        ("local read", Access::empty()),
        ("local write", Access::LOCAL_WRITE),
        ("remote read and write", Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE),
        ("remote atomics", Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
    ] {
        voice.at(&format!("registering {name} memory for {rights}"));
        let registered = match &source {
            Source::Mapped(region) => pd.register(region, first_piece(device, region), access).map(drop),
            Source::Cuda(cuda) => pd.register(cuda.region(), first_piece(device, cuda.region()), access).map(drop),
            Source::DmaBuf(register) => register(&*pd, access).map(drop),
        };
        let refusal = registered.as_ref().err().map(Refusal::from);
        row.rights.push(Right { rights: rights.to_string(), refusal });
    }
    row.registers = row.rights.iter().any(|right| right.refusal.is_none());
    // Requests name mapped memory, and a dma-buf is none.
    let mapped = match &source {
        Source::Mapped(region) => Some(region),
        Source::Cuda(cuda) => Some(cuda.region()),
        Source::DmaBuf(_) => None,
    };
    if let Some(region) = mapped.filter(|_| row.registers) {
        let may_write = row.rights[1].refusal.is_none();
        row.messages_out = Some(false);
        match carry(voice, device, &pd, region, may_write) {
            Ok(()) => (row.messages_out, row.messages_in) = (Some(true), may_write.then_some(true)),
            Err(error) => row.problem = Some(format!("{name} memory: {error:#}")),
        }
    }
    let wrong = row.problem.iter().cloned().collect();
    Ok(Done { answer: Some(Answer::Memory(vec![row])), wrong })
}

/// What the device registers in one piece, from the start on.
fn first_piece(device: &Arc<dyn Device>, region: &Region) -> std::ops::Range<usize> {
    region.registrations(device.info().limits.registration).into_iter().next().unwrap_or(0..region.len())
}

/// Sends out of the memory, and into it if it may be written.
fn carry(
    voice: &Voice,
    device: &Arc<dyn Device>,
    pd: &Arc<dyn ProtectionDomain>,
    region: &Region,
    may_write: bool,
) -> anyhow::Result<()> {
    voice.at("connecting two queue pairs");
    let kind = best_kind(device.info());
    let [a, b] = [End::new(device, &**pd, kind, None, (4, 4))?, End::new(device, &**pd, kind, None, (4, 4))?];
    a.init()?;
    b.init()?;
    a.connect(&b.address())?;
    b.connect(&a.address())?;
    let ordinary = region_in_one_piece(&**device, MESSAGE)?;
    let mr = pd.register(&ordinary, 0..MESSAGE, all_access(device.info()))?;
    let ordinary = Memory { bytes: ordinary.expose()?.slice(0..MESSAGE), mr };
    let access = if may_write { Access::LOCAL_WRITE } else { Access::empty() };
    let mr = pd.register(region, first_piece(device, region), access)?;
    let probed = Memory { bytes: region.expose()?.slice(0..MESSAGE), mr };
    let send = |from: &Memory, to: &Memory, what: &str, seed: u64| -> anyhow::Result<()> {
        voice.at(what);
        b.qp.post_recv(&[RecvRequest::new(2, [to.piece()])])?;
        a.qp.post_send(&[SendRequest::send(1, [from.piece()])])?;
        poll(&*b.recv_cq, &mut [Completion::BLANK], what)?;
        poll(&*a.send_cq, &mut [Completion::BLANK], what)?;
        pattern::check(&to.bytes, seed, what).map_err(anyhow::Error::msg)
    };
    if region.is_writable() {
        pattern::write(&probed.bytes, OUT);
    }
    send(&probed, &ordinary, "a message out of it", OUT)?;
    if may_write {
        pattern::write(&ordinary.bytes, IN);
        send(&ordinary, &probed, "a message into it", IN)?;
    }
    Ok(())
}
