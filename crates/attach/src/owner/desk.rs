//! Where programs come to the owner: a socket of the system's, with a thread for each program.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fulmen_reach::spawn_without_signals;
use rustix::event::{PollFd, PollFlags, poll};

use super::Owner;
use super::device::Owned;
use crate::wire::{Ask, Entry, PAIRS, Port, Refusal, Told, VERSION, hear, say};

/// How long a program may take to listen to an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Nothing tells when the system has descriptors or threads again.
const AGAIN: Duration = Duration::from_millis(100);

/// Serves programs until it is dropped. That ends what they have, and waits for it: whoever opens the device next finds all of it.
pub struct Desk {
    /// Ends the thread that accepts.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    programs: Arc<Programs>,
}

/// The connections of programs, by number.
#[derive(Default)]
struct Programs {
    all: Mutex<(u64, HashMap<u64, UnixStream>)>,
    fewer: Condvar,
}

impl Programs {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, UnixStream>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, stream: UnixStream) -> u64 {
        let mut all = self.lock();
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, stream);
        number
    }

    /// Waits until all have ended.
    fn end(&self) {
        let mut all = self.lock();
        for stream in all.1.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        while !all.1.is_empty() {
            all = self.fewer.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Owner {
    /// Serves the programs that come to a socket, which only those that may use the devices should reach.
    ///
    /// # Errors
    /// The system has no thread, or no descriptors.
    pub fn serve(&self, listener: UnixListener) -> io::Result<Desk> {
        let (wake, woken) = UnixStream::pair()?;
        listener.set_nonblocking(true)?;
        let programs = Arc::<Programs>::default();
        let (owner, all) = (self.clone(), programs.clone());
        let thread = spawn_without_signals("fulmen-desk", move || accept(&owner, &listener, &woken, &all))?;
        Ok(Desk { wake, thread: Some(thread), programs })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.wake.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
        self.programs.end();
    }
}

fn accept(owner: &Owner, listener: &UnixListener, woken: &UnixStream, programs: &Arc<Programs>) {
    loop {
        let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN)];
        match poll(&mut both, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "programs can use no device any more");
                return;
            }
        }
        if !both[1].revents().is_empty() {
            return;
        }
        let program = match listener.accept() {
            Ok((stream, _)) => welcome(owner.clone(), stream, programs),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = program {
            tracing::warn!(%error, "a program that wants to use a device was not accepted");
            std::thread::sleep(AGAIN);
        }
    }
}

fn welcome(owner: Owner, stream: UnixStream, programs: &Arc<Programs>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let guest = Guest { number: programs.add(stream.try_clone()?), programs: programs.clone() };
    let run = move || {
        let _guest = guest;
        let mut program = Program { owner, device: None, pairs: HashSet::new() };
        if let Err(error) = program.serve(&stream)
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::info!(%error, "a program stops using a device");
        }
    };
    spawn_without_signals("fulmen-program", run).map(drop)
}

/// A place among the programs, until this is dropped: after all that the program has.
struct Guest {
    number: u64,
    programs: Arc<Programs>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.programs.lock().1.remove(&self.number);
        self.programs.fewer.notify_all();
    }
}

/// A program that uses a device, or is about to. What it has ends with this.
struct Program {
    owner: Owner,
    /// The device, and the GID of the program's software device.
    device: Option<(Arc<Owned>, [u8; 16])>,
    pairs: HashSet<u32>,
}

impl Program {
    fn serve(&mut self, stream: &UnixStream) -> io::Result<()> {
        loop {
            let ask = hear(stream)?;
            let told = self.answer(ask).unwrap_or_else(Told::Refused);
            say(stream, &told)?;
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<Told, Refusal> {
        let invalid = |problem: &str| Refusal::Invalid(problem.into());
        let devices = &self.owner.inner.devices;
        match ask {
            Ask::Offer { version } | Ask::Attach { version, .. } if version != VERSION => {
                Err(Refusal::Version(VERSION))
            }
            Ask::Offer { .. } => Ok(Told::Offer(devices.iter().map(|owned| owned.name().to_owned()).collect())),
            Ask::Attach { .. } if self.device.is_some() => Err(invalid("a connection is for one device")),
            Ask::Attach { device, gid, .. } => {
                let owned = devices.iter().find(|owned| owned.name() == device);
                let owned = owned.cloned().ok_or(Refusal::NoDevice(device))?;
                let ports = owned.device().info().ports.min(1);
                self.device = Some((owned, gid));
                Ok(Told::Attached { ports })
            }
            Ask::Port { number } => {
                let (owned, _) = self.device()?;
                let refused = |cause: fulmen_verbs::VerbsError| Refusal::Invalid(cause.to_string());
                let port = owned.device().port(number).map_err(refused)?;
                let gids = owned.device().gid_table(number).map_err(refused)?;
                Ok(Told::Port { port: Port::of(&port), gids: gids.iter().map(Entry::of).collect() })
            }
            Ask::Create { .. } if self.pairs.len() >= PAIRS as usize => Err(Refusal::Many),
            Ask::Create { soft } => {
                let (owned, gid) = self.device()?;
                let number = owned.create(gid, soft)?;
                self.pairs.insert(number);
                Ok(Told::Created { number })
            }
            Ask::Connect { number, .. } | Ask::Disconnect { number } | Ask::Remove { number }
                if !self.pairs.contains(&number) =>
            {
                Err(invalid("there is no such queue pair"))
            }
            Ask::Connect { number, gid_index, to, remote } => {
                let (owned, _) = self.device()?;
                let inner = &self.owner.inner;
                let (gid, pair) = owned.connect(number, gid_index, (to, remote), &**inner)?;
                Ok(Told::Connected { gid: gid.0, pair })
            }
            Ask::Disconnect { number } => {
                self.device()?.0.part(number);
                Ok(Told::Done)
            }
            Ask::Remove { number } => {
                self.device()?.0.remove(number);
                self.pairs.remove(&number);
                Ok(Told::Done)
            }
        }
    }

    fn device(&self) -> Result<(Arc<Owned>, [u8; 16]), Refusal> {
        self.device.clone().ok_or_else(|| Refusal::Invalid("the program has named no device".into()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Some((owned, _)) = &self.device else { return };
        self.pairs.iter().for_each(|number| owned.remove(*number));
    }
}
