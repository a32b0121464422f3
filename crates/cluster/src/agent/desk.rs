//! Processes that are asked for in memory: a program hands over a region in which records of [`fulmen_abi::SpawnRequest`] lie, and rings for
//! what processes read and write. Nothing but a byte over a socket says that there is something to look at, so that any language can
//! ask, and whatever writes memory with it.

mod request;

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fulmen_abi::{ErrorCode, SHARE_MAGIC, ShareAnswer, ShareRequest, SpawnRequest, SpawnState, VERSION};
use fulmen_memory::{Exposed, Region};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Client;
use super::identity::random;
use request::Record;

/// How long a program may take to say which memory it shares.
const HELLO: Duration = Duration::from_secs(10);
/// This node's number in records.
const OWN: u32 = 0;

/// Memory that a program has handed over.
struct Share {
    memory: Exposed,
    generation: u64,
    slot: u32,
    tag: u64,
    /// Changes when the program has written something.
    written: watch::Sender<u64>,
    /// The program is told there that something was written.
    program: UnixStream,
}

impl Share {
    /// Tells the program that there is something to see.
    fn ring(&self) {
        // If there is no room, there are bytes that it has not seen.
        let _ = self.program.try_write(&[1]);
    }
}

/// Serves what comes to the socket, as long as it is polled. Processes are asked for as other programs of this host ask for them.
pub(super) async fn serve(listener: UnixListener, state: &Path, generation: u64) {
    let slots = AtomicU32::new(1);
    let mut programs = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let slot = slots.fetch_add(1, Ordering::Relaxed);
                    programs.spawn(program(stream, Client::new(state), generation, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "a program that shares memory was not accepted");
                    // Nothing tells when the system has descriptors again.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            _ = programs.join_next(), if !programs.is_empty() => {}
        }
    }
}

/// Serves one program to its end.
async fn program(mut stream: UnixStream, client: Client, generation: u64, slot: u32) {
    let who =
        stream.peer_cred().ok().and_then(|peer| peer.pid()).map_or("a program".into(), |pid| format!("pid {pid}"));
    let hello = tokio::time::timeout(HELLO, hello(&mut stream)).await;
    let opened = match hello {
        Ok(Ok((request, region))) => open(&request, region),
        Ok(Err(error)) => {
            tracing::info!(who, %error, "a program shares no memory");
            return;
        }
        Err(_) => return,
    };
    let tag = random().map(u64::from_le_bytes).unwrap_or_default();
    let mut answer =
        ShareAnswer { magic: SHARE_MAGIC, version: VERSION, generation, node: OWN, slot, tag, ..ShareAnswer::ZERO };
    let (memory, offsets) = match opened {
        Ok(opened) => opened,
        Err(problem) => {
            tracing::info!(who, problem, "shared memory is refused");
            answer.error = ErrorCode::InvalidRequest.word();
            let _ = stream.write_all(answer.as_bytes()).await;
            return;
        }
    };
    if stream.write_all(answer.as_bytes()).await.is_err() {
        return;
    }
    let share = Arc::new(Share { memory, generation, slot, tag, written: watch::Sender::new(0), program: stream });
    let client = client.on_behalf_of(&format!("{who}, by shared memory"));
    // They end with the connection, and what is not detached with them.
    let mut serving = JoinSet::new();
    let mut bytes = [0; 256];
    loop {
        for offset in &offsets {
            let record = Record::new(share.clone(), *offset);
            if record.accept() {
                serving.spawn(request::serve(record, client.clone()));
            }
        }
        tokio::select! {
            ready = share.program.readable() => match ready.and_then(|()| share.program.try_read(&mut bytes)) {
                Ok(1..) => share.written.send_modify(|count| *count += 1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            },
            _ = serving.join_next(), if !serving.is_empty() => {}
        }
    }
}

/// What a program says first, and the memory that comes with it.
async fn hello(stream: &mut UnixStream) -> io::Result<(ShareRequest, OwnedFd)> {
    let mut bytes = [0; size_of::<ShareRequest>()];
    let (mut filled, mut region) = (0, None);
    while filled < bytes.len() {
        let took = stream.async_io(Interest::READABLE, || receive(&*stream, &mut bytes[filled..], &mut region)).await?;
        if took == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += took;
    }
    let request = ShareRequest::from_bytes(&bytes).map_err(io::Error::other)?;
    let region = region.ok_or_else(|| io::Error::other("no descriptor came with it"))?;
    Ok((request, region))
}

fn receive(socket: impl AsFd, into: &mut [u8], region: &mut Option<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            *region = rights.last().or(region.take());
        }
    }
    #[cfg(not(target_os = "linux"))]
    region.iter().try_for_each(rustix::io::ioctl_fioclex)?;
    Ok(received.bytes)
}

/// Maps the memory, and finds its records.
fn open(request: &ShareRequest, region: OwnedFd) -> Result<(Exposed, Vec<usize>), String> {
    request.check().map_err(|error| error.to_string())?;
    let len = usize::try_from(request.region_len).map_err(|_| "it is larger than this machine's memory".to_string())?;
    let memory = Region::from_fd(region, len).and_then(|region| region.expose()).map_err(|error| error.to_string())?;
    let first = request.requests_offset as usize;
    let offsets = (0..request.request_count as usize).map(|number| first + number * size_of::<SpawnRequest>());
    Ok((memory, offsets.collect()))
}

/// The state of a record, to be taken by whoever exchanges it first.
fn take(state: &AtomicU64, from: SpawnState, to: SpawnState) -> bool {
    state.compare_exchange(from.word(), to.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
