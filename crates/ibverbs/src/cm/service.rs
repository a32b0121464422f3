//! The thread that listens to all other ends.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;

use super::endpoint::{Endpoint, State};

/// The number of the descriptor by which the thread is woken.
const WAKE: u64 = 0;

/// The sockets of a process, and the thread that waits for them.
#[derive(Debug)]
pub(super) struct Service {
    epoll: OwnedFd,
    wake: OwnedFd,
    next: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    endpoints: HashMap<u64, Arc<Endpoint>>,
    /// When to look at which endpoint. Whether something is due there its own state says.
    due: BTreeSet<(Instant, u64)>,
}

impl Service {
    /// This process's, which a child that was forked does not share.
    ///
    /// # Errors
    /// The system has no room for another descriptor or thread.
    pub(super) fn get() -> Result<Arc<Service>, Errno> {
        static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);
        let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        match &*service {
            Some((owner, service)) if *owner == process => Ok(service.clone()),
            _ => {
                let started = Service::start().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                *service = Some((process, started.clone()));
                Ok(started)
            }
        }
    }

    fn start() -> io::Result<Arc<Service>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let service = Arc::new(Service { epoll, wake, next: AtomicU64::new(WAKE + 1), table: Mutex::default() });
        let there = service.clone();
        // It runs until the process ends, as the one in a kernel does.
        drop(fulmen_reach::spawn_without_signals("fulmen-cm", move || there.run())?);
        Ok(service)
    }

    /// Waits for what comes over the endpoint's socket, and for its deadline.
    ///
    /// # Errors
    /// The system has no room for it.
    pub(super) fn watch(&self, endpoint: &Arc<Endpoint>, state: &mut State) -> Result<(), Errno> {
        if state.watched.is_some() {
            return Ok(());
        }
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        // Known before the first event can come. Its handler waits for the state, which the caller has locked.
        self.lock().endpoints.insert(key, endpoint.clone());
        // A socket that is not connected would always say that the other end hung up.
        if let Some(socket) = state.socket.as_ref().filter(|_| state.unsent.is_none())
            && let Err(error) = epoll::add(&self.epoll, socket, EventData::new_u64(key), EventFlags::IN)
        {
            self.lock().endpoints.remove(&key);
            return Err(error);
        }
        state.watched = Some(key);
        Ok(())
    }

    /// Waits for an endpoint no more.
    pub(super) fn forget(&self, key: u64, socket: Option<&OwnedFd>) {
        if let Some(socket) = socket {
            // The descriptor may have been inherited by a child: then closing it alone would not do.
            let _ = epoll::delete(&self.epoll, socket);
        }
        self.lock().endpoints.remove(&key);
    }

    /// Looks at a watched endpoint at that time, if not before.
    pub(super) fn set_deadline(&self, state: &mut State, deadline: Option<Instant>) {
        state.deadline = deadline;
        let (Some(deadline), Some(key)) = (deadline, state.watched) else { return };
        let mut table = self.lock();
        let first = table.due.first().is_none_or(|(earliest, _)| deadline < *earliest);
        table.due.insert((deadline, key));
        drop(table);
        if first {
            // Full means that it is woken already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let patience = self.handle_due();
            let patience = patience.map(|patience| Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: patience.subsec_nanos().into(),
            });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "connection management cannot wait for its sockets, and ends");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
                    }
                    key => {
                        let endpoint = self.lock().endpoints.get(&key).cloned();
                        if let Some(endpoint) = endpoint {
                            endpoint.progress();
                        }
                    }
                }
            }
        }
    }

    /// Sees to what is due; then how long until something else is.
    fn handle_due(&self) -> Option<Duration> {
        loop {
            let now = Instant::now();
            let endpoint = {
                let mut table = self.lock();
                let (due, key) = *table.due.first()?;
                if due > now {
                    return Some(due - now);
                }
                table.due.pop_first();
                table.endpoints.get(&key).cloned()
            };
            if let Some(endpoint) = endpoint {
                endpoint.overdue(now);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
