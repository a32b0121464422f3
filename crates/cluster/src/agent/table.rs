//! The processes of an agent: who they are, and who waits for them.
//!
//! Each leads a process group of its own. This process adopts what loses its parent (Linux), so that as long as a group has members,
//! one of them is its child, and the group's number belongs to nobody else: no signal hits a stranger.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group, wait, waitid, waitpgid,
};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::api::{Because, Ended, Outcome, Process, Size};
use super::log::Log;
use super::terminal::Terminal;

/// Asks whether a child has ended, without waiting and without taking its status.
const LOOK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);
/// Processes that have ended and are still known.
const REMEMBERED: usize = 1000;

/// One process.
pub(super) struct Entry {
    /// Without its outcome, which the log has.
    pub(super) info: Process,
    pub(super) pid: Pid,
    pub(super) log: Log,
    /// How it ended, as soon as the system has said so.
    pub(super) status: watch::Sender<Option<WaitStatus>>,
    /// Why it is to be ended.
    pub(super) end: watch::Sender<Option<Because>>,
    pub(super) stdin: AsyncMutex<Option<pipe::Sender>>,
    /// What it has for a terminal, until it ends.
    pub(super) terminal: Mutex<Option<Terminal>>,
    /// What asks it to end: a shell at a terminal does not act on SIGTERM.
    pub(super) asks: Signal,
}

impl Entry {
    /// What is known of it now.
    pub(super) fn process(&self) -> Process {
        Process { outcome: self.log.outcome(), ..self.info.clone() }
    }

    /// Gives its terminal another size: whether it has one.
    pub(super) fn resize(&self, size: Size) -> std::io::Result<bool> {
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        terminal.as_ref().map(|terminal| terminal.resize(size)).transpose().map(|done| done.is_some())
    }

    /// It needs its terminal no more.
    pub(super) fn hang_up(&self) {
        self.terminal.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Has it ended. Only the first reason counts.
    pub(super) fn end(&self, because: Because) {
        self.end.send_if_modified(|reason| reason.is_none() && reason.replace(because).is_none());
    }
}

/// All of them.
pub(super) struct Table {
    inner: Mutex<Inner>,
    /// How many run.
    running: watch::Sender<u64>,
    /// How many slots there are, and are taken.
    slots: u32,
    taken: watch::Sender<u32>,
}

struct Inner {
    all: BTreeMap<u64, Arc<Entry>>,
    /// Those that were not waited for.
    by_pid: HashMap<Pid, Arc<Entry>>,
    /// Processes that are being started, and the ends of some that nobody knows yet. Others may be among them, which were adopted.
    starting: usize,
    early: HashMap<Pid, WaitStatus>,
    /// Those that have ended, oldest first.
    over: VecDeque<u64>,
    spawned: u64,
    ended: Ended,
    closed: bool,
}

/// Why nothing was started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// The agent is about to end.
    Closing,
    /// So few slots are free.
    NoSlots {
        free: u32,
        all: u32,
    },
    System(std::io::Error),
}

impl Table {
    pub(super) fn new(slots: u32) -> Table {
        let inner = Inner {
            all: BTreeMap::new(),
            by_pid: HashMap::new(),
            starting: 0,
            early: HashMap::new(),
            over: VecDeque::new(),
            spawned: 0,
            ended: Ended::default(),
            closed: false,
        };
        Table { inner: Mutex::new(inner), running: watch::Sender::new(0), slots, taken: watch::Sender::new(0) }
    }

    /// How many slots are taken.
    pub(super) fn slots_taken(&self) -> watch::Receiver<u32> {
        self.taken.subscribe()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process. It takes as long as the system does, and others may be started meanwhile.
    pub(super) fn start(
        &self,
        slots: u32,
        launch: impl FnOnce() -> std::io::Result<Child>,
        entry: impl FnOnce(&Child, Pid) -> Entry,
    ) -> Result<Arc<Entry>, NotStarted> {
        {
            let mut inner = self.inner();
            if inner.closed {
                return Err(NotStarted::Closing);
            }
            let free = self.slots - *self.taken.borrow();
            if slots > free {
                return Err(NotStarted::NoSlots { free, all: self.slots });
            }
            self.take_slots(slots);
            inner.starting += 1;
            self.running.send_modify(|running| *running += 1);
        }
        let child = launch();
        let mut inner = self.inner();
        let started = child.map(|child| {
            let pid = Pid::from_child(&child);
            let entry = Arc::new(entry(&child, pid));
            // If it is still there, an end under its number was that of another process.
            let ended =
                inner.early.remove(&pid).filter(|_| matches!(waitid(WaitId::Pid(pid), LOOK), Err(Errno::CHILD)));
            match ended {
                Some(status) => drop(entry.status.send_replace(Some(status))),
                None => drop(inner.by_pid.insert(pid, entry.clone())),
            }
            entry
        });
        inner.starting -= 1;
        if inner.starting == 0 {
            inner.early.clear();
        }
        match started {
            Ok(entry) => {
                inner.all.insert(entry.info.id, entry.clone());
                inner.spawned += 1;
                if inner.closed {
                    entry.end(Because::AgentDown);
                }
                Ok(entry)
            }
            Err(error) => {
                self.give_slots(slots);
                self.running.send_modify(|running| *running -= 1);
                Err(NotStarted::System(error))
            }
        }
    }

    /// To be called with the lock held, as [`Table::give_slots`].
    fn take_slots(&self, slots: u32) {
        if slots > 0 {
            self.taken.send_modify(|taken| *taken += slots);
        }
    }

    fn give_slots(&self, slots: u32) {
        if slots > 0 {
            self.taken.send_modify(|taken| *taken -= slots);
        }
    }

    /// Takes what the system says of processes that have ended: this agent's, and those that it adopted.
    pub(super) fn reap(&self) {
        let mut inner = self.inner();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(entry) = inner.by_pid.remove(&pid) {
                        entry.status.send_replace(Some(status));
                    } else if inner.starting > 0 {
                        inner.early.insert(pid, status);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Sends a signal to a process's group, if there is still one: whether there was.
    pub(super) fn signal(&self, entry: &Entry, signal: Signal) -> bool {
        // Held so that nobody waits for the leader meanwhile.
        let _inner = self.inner();
        // Its number may be another one's after its end.
        let lives = || entry.status.borrow().is_none() || is_there(entry.pid);
        entry.log.outcome().is_none() && lives() && kill_process_group(entry.pid, signal).is_ok()
    }

    /// Whether a process that has ended left others behind in its group.
    pub(super) fn has_remains(&self, entry: &Entry) -> bool {
        let _inner = self.inner();
        is_there(entry.pid)
    }

    /// It has ended, with all that belonged to it.
    pub(super) fn ended(&self, entry: &Entry, outcome: Outcome) {
        let mut inner = self.inner();
        let ended = &mut inner.ended;
        *match outcome {
            Outcome { signal: Some(_), .. } => &mut ended.signaled,
            Outcome { code: Some(0), .. } => &mut ended.well,
            _ => &mut ended.failed,
        } += 1;
        // In this order: who hears of its end can start another one.
        self.give_slots(entry.info.slots);
        entry.log.end(outcome);
        inner.over.push_back(entry.info.id);
        if inner.over.len() > REMEMBERED
            && let Some(id) = inner.over.pop_front()
        {
            inner.all.remove(&id);
        }
        drop(inner);
        self.running.send_modify(|running| *running -= 1);
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Entry>> {
        self.inner().all.get(&id).cloned()
    }

    /// Those of them that are wanted.
    pub(super) fn list(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Process> {
        self.inner().all.values().filter(|entry| wanted(entry)).map(|entry| entry.process()).collect()
    }

    /// How many run, were started, and have ended.
    pub(super) fn counts(&self) -> (u64, u64, Ended) {
        let inner = self.inner();
        (*self.running.borrow(), inner.spawned, inner.ended)
    }

    /// Starts no more, ends all, and waits until they have.
    pub(super) async fn close(&self) {
        let all: Vec<Arc<Entry>> = {
            let mut inner = self.inner();
            inner.closed = true;
            inner.all.values().cloned().collect()
        };
        all.iter().for_each(|entry| entry.end(Because::AgentDown));
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

/// Whether a group has members. Those that have ended are waited for.
fn is_there(group: Pid) -> bool {
    loop {
        match waitpgid(group, WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
