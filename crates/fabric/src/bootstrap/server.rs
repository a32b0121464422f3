//! The coordinator's thread: it waits for all its connections at once and hands what they say to the world.
//!
//! It also watches the processes behind lost connections: whether they have ended decides who may go on without them.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use fulmen_trust::Identity;

use super::Heartbeat;
use super::coordinator::{Event, Options, Seated};
use super::message::{LossCause, Refusal, ToCoordinator, ToRank};
use super::peer::{Heard, Peer, Stage};
use super::process::{self, Watch};
use super::wire::{Frame, head};
use super::world::{Output, Violation, World};
use crate::clock::after;

/// How long the coordinator accepts nothing after the system refused it a connection, for want of descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The coordinator looks at its clock at least this often.
const LONGEST_TURN: Duration = Duration::from_secs(3600);
/// The most connections that are accepted before those that are there have their turn.
const ACCEPT_TURN: usize = 64;
/// The most connections without a seat, beyond one for each rank.
const SPARE_CONNECTIONS: usize = 16;

/// How long a process may take to end after its connection closed, as the system does for one that ends, before it counts
/// as one that may live.
const LAST_BREATH: Duration = Duration::from_secs(1);
/// How often a process is looked at that cannot be waited for, while a moment later decides.
const LOOK: Duration = Duration::from_millis(10);

pub(super) struct Server {
    world: World,
    listener: TcpListener,
    /// By what ranks know the coordinator.
    identity: Identity,
    options: Options,
    /// By number in order of arrival, so that the first without a seat is the oldest.
    peers: BTreeMap<u64, Peer>,
    next_id: u64,
    /// The processes of the ranks that have joined, by connection, until their end is known or nobody asks any more.
    processes: BTreeMap<u64, Process>,
    accept_after: Option<Instant>,
    seated: Arc<Seated>,
}

struct Process {
    watch: Watch,
    lost: Lost,
}

/// Whether a process has lost its connection.
#[derive(Clone, Copy)]
enum Lost {
    No,
    /// It is about to end, it seems. Then it counts as one that may live.
    Until(Instant),
    /// It counts as one that may live, until its end is seen after all.
    MayLive,
}

impl Process {
    fn until(&self) -> Option<Instant> {
        if let Lost::Until(until) = self.lost { Some(until) } else { None }
    }
}

impl Server {
    pub fn new(
        listener: TcpListener,
        world: World,
        identity: Identity,
        options: Options,
        seated: Arc<Seated>,
    ) -> Server {
        Server {
            world,
            listener,
            identity,
            options,
            peers: BTreeMap::new(),
            next_id: 0,
            processes: BTreeMap::new(),
            accept_after: None,
            seated,
        }
    }

    /// Serves until the other end of `stopped` is shut down.
    pub fn run(mut self, stopped: &UnixStream) {
        let mut scratch = vec![0; 64 << 10];
        let mut last = Instant::now();
        loop {
            let Some((accept, ready)) = self.wait(stopped) else { return };
            let now = Instant::now();
            if accept {
                self.accept(now);
            }
            for id in ready {
                self.serve_peer(id, now, &mut scratch);
                self.deliver();
            }
            self.look_at_clock(now, now - last);
            self.deliver();
            self.look_at_processes(now);
            self.deliver();
            self.seated.set(self.peers.values().filter(|peer| peer.is_seated()).count());
            last = now;
        }
    }

    /// Waits for something to do; `None` is the end.
    fn wait(&mut self, stopped: &UnixStream) -> Option<(bool, Vec<u64>)> {
        let now = Instant::now();
        let mut timeout = self.options.heartbeat.every.min(LONGEST_TURN);
        let unseated = self.peers.values().filter(|peer| !peer.is_seated()).map(|peer| peer.until);
        let dying = || self.processes.values().filter_map(Process::until);
        for until in unseated.chain(self.accept_after).chain(dying()) {
            timeout = timeout.min(until.saturating_duration_since(now));
        }
        // Rounded up, so that a time that has almost come does not turn the wait into a spin.
        let mut timeout = timeout + Duration::from_millis(1);
        let lost = self.processes.values().filter(|process| !matches!(process.lost, Lost::No));
        let ends: Vec<BorrowedFd<'_>> = lost.filter_map(|process| process.watch.fd()).collect();
        if ends.is_empty() && dying().next().is_some() {
            timeout = timeout.min(LOOK);
        }
        if self.peers.values().any(Peer::has_more) {
            timeout = Duration::ZERO;
        }
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };

        let listen = if self.accept_after.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(&self.listener, listen)];
        for peer in self.peers.values() {
            let write = if peer.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(peer.tcp(), PollFlags::IN | write));
        }
        // They only end the wait; which of them is readable is asked later.
        fds.extend(ends.iter().map(|end| PollFd::from_borrowed_fd(*end, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some((false, Vec::new())),
            Err(error) => {
                tracing::error!(%error, "the coordinator cannot wait for its connections and ends");
                return None;
            }
        }
        if !fds[0].revents().is_empty() {
            return None;
        }
        let accept = !fds[1].revents().is_empty();
        let ready =
            fds[2..].iter().zip(&self.peers).filter(|(fd, (_, peer))| !fd.revents().is_empty() || peer.has_more());
        Some((accept, ready.map(|(_, (id, _))| *id).collect()))
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_TURN {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.make_room();
                    match Peer::new(stream, address, after(self.options.greeting)) {
                        Ok(peer) => {
                            self.peers.insert(self.next_id, peer);
                            self.next_id += 1;
                        }
                        Err(error) => tracing::debug!(%address, %error, "a connection ended before it began"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    tracing::warn!(%error, "the coordinator cannot accept connections for a moment");
                    self.accept_after = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// The oldest connection without a seat makes way: a rank takes its seat in moments, so it is the least likely to be one.
    fn make_room(&mut self) {
        let unseated = self.peers.iter().filter(|(_, peer)| !peer.is_seated());
        let (count, oldest) = unseated.fold((0, None), |(count, oldest), (id, _)| (count + 1, oldest.or(Some(*id))));
        if count >= self.world.size() as usize + SPARE_CONNECTIONS
            && let Some(id) = oldest
        {
            self.give_up_on(id);
        }
    }

    fn give_up_on(&mut self, id: u64) {
        if let Some(peer) = self.peers.remove(&id)
            && !matches!(peer.stage, Stage::Draining)
        {
            self.tell(Event::Refused { from: peer.address, refusal: Refusal::TooSlow });
        }
    }

    fn serve_peer(&mut self, id: u64, now: Instant, scratch: &mut [u8]) {
        let Some(mut peer) = self.peers.remove(&id) else { return };
        peer.flush();
        let (peer, heard) = peer.hear(&self.identity, scratch);
        self.peers.insert(id, peer);
        match heard {
            Heard::Frames(frames) => {
                self.act_on(id, frames, now);
            }
            Heard::Refused(refusal) => self.refuse(id, refusal, now),
            Heard::Ended(frames, cause) => {
                // A goodbye among the frames makes the end a good one.
                if self.act_on(id, frames, now) {
                    self.end(id, cause);
                }
            }
        }
    }

    /// Acts on what a peer said; `false` if it is gone or refused afterwards.
    fn act_on(&mut self, id: u64, frames: Vec<Frame>, now: Instant) -> bool {
        for frame in frames {
            let Some(peer) = self.peers.get(&id) else { return false };
            let message = frame.message::<ToCoordinator>();
            if !peer.is_seated() {
                match message {
                    Ok(ToCoordinator::Join { rank, size, pid, pids }) => self.join(id, (rank, size), (pid, pids), now),
                    Ok(_) => self.refuse(id, Refusal::Violation("it did not ask for a seat".into()), now),
                    Err(error) => self.refuse(id, Refusal::Violation(error.to_string()), now),
                }
                continue;
            }
            let done = match message {
                Ok(message) => {
                    let leaves = message == ToCoordinator::Goodbye;
                    let done = self.world.hear(id, message, frame.body);
                    if leaves {
                        self.peers.remove(&id);
                        return false;
                    }
                    done
                }
                Err(_) => Err(Violation("sent a message that cannot be read")),
            };
            if let Err(Violation(what)) = done {
                self.end(id, LossCause::Violation(what.into()));
                return false;
            }
        }
        self.peers.contains_key(&id)
    }

    fn join(&mut self, id: u64, (rank, size): (u32, u32), (pid, pids): (u32, Option<u64>), now: Instant) {
        let silence_ms = u64::try_from(self.options.heartbeat.silence.as_millis()).unwrap_or(u64::MAX);
        match self.world.join(id, rank, size, pid, silence_ms) {
            Ok(()) => {
                if let Some(watch) = process::watch(pid, pids) {
                    self.processes.insert(id, Process { watch, lost: Lost::No });
                }
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.seat(pid);
                }
                if let Some(rank) = self.options.ends_with {
                    // After the answer, which the world has put there.
                    let message = ToRank::EndsWith { rank, pid: std::process::id() };
                    self.world.outbox.push(Output { to: Arc::new([id]), message, body: Arc::default() });
                }
            }
            Err(refusal) => self.refuse(id, refusal, now),
        }
    }

    fn refuse(&mut self, id: u64, refusal: Refusal, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refuse(&refusal, now);
            let from = peer.address;
            self.tell(Event::Refused { from, refusal });
        }
    }

    /// A connection ended, or fell silent: then it may stay.
    fn end(&mut self, id: u64, cause: LossCause) {
        let Some(peer) = self.peers.get(&id) else { return };
        let pid = peer.pid();
        // The system closes the connections of a process that ends a moment before that can be seen to have ended. It is
        // not waited for where the same process has another rank, which lives, or where it has only stopped.
        let closed = matches!(cause, LossCause::Closed | LossCause::Broken(_));
        if !self.world.lose(id, cause) {
            self.peers.remove(&id);
        }
        if !self.world.wants_fate(id) {
            return;
        }
        let lives = !closed || self.peers.values().any(|peer| peer.pid() == pid);
        match self.processes.get_mut(&id) {
            Some(process) if lives => {
                process.lost = Lost::MayLive;
                let ended = process.watch.has_ended();
                self.world.fate(id, ended);
            }
            Some(process) => process.lost = Lost::Until(Instant::now() + LAST_BREATH),
            None => self.world.fate(id, false),
        }
    }

    /// Tells the world of processes that have ended, and of those that are given up on.
    fn look_at_processes(&mut self, now: Instant) {
        let Server { world, processes, peers, .. } = self;
        processes.retain(|id, process| {
            if matches!(process.lost, Lost::No) {
                return peers.contains_key(id);
            }
            if !world.wants_fate(*id) {
                // It may be a member again.
                process.lost = Lost::No;
                return peers.contains_key(id);
            }
            if process.watch.has_ended() {
                world.fate(*id, true);
                return false;
            }
            if process.until().is_some_and(|until| until <= now) {
                process.lost = Lost::MayLive;
                world.fate(*id, false);
            }
            true
        });
    }

    fn look_at_clock(&mut self, now: Instant, step: Duration) {
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
        }
        let Heartbeat { every, silence } = self.options.heartbeat;
        // Time in which this process did not run is nobody's silence.
        let step = step.min(every.min(LONGEST_TURN) * 2);
        let (mut late, mut silent) = (Vec::new(), Vec::new());
        for (id, peer) in &mut self.peers {
            if !peer.is_seated() {
                if peer.until <= now {
                    late.push(*id);
                }
                continue;
            }
            peer.silent += step;
            if peer.silent >= silence {
                silent.push((*id, peer.silent.as_millis() as u64));
            } else if peer.silent >= every && !peer.pinged {
                peer.ping();
            }
        }
        for id in late {
            self.give_up_on(id);
        }
        for (id, ms) in silent {
            self.end(id, LossCause::Silent(ms));
        }
    }

    /// Hands out what the world wants to say.
    fn deliver(&mut self) {
        let mut touched = Vec::new();
        for Output { to, message, body } in std::mem::take(&mut self.world.outbox) {
            let head = Arc::new(head(&message, body.len()));
            for id in to.iter() {
                let Some(peer) = self.peers.get_mut(id) else { continue };
                peer.send(head.clone());
                if !body.is_empty() {
                    peer.send(body.clone());
                }
                touched.push(*id);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.flush();
            }
        }
        for event in std::mem::take(&mut self.world.events) {
            self.tell(event);
        }
    }

    fn tell(&self, event: Event) {
        match &event {
            // The next program's rank asks again and again until this world has ended.
            Event::Refused { from, refusal: refusal @ Refusal::RankLeft { .. } } => {
                tracing::debug!(%from, %refusal, "the coordinator refused a connection");
            }
            Event::Refused { from, refusal } => tracing::warn!(%from, %refusal, "the coordinator refused a connection"),
            Event::Lost(lost) => tracing::warn!(%lost, "a rank was lost"),
            Event::Failed(failure) => tracing::warn!(%failure, "the generation failed"),
            Event::Formed(formed) => tracing::info!(members = ?formed.members, "a new generation"),
            other => tracing::debug!(event = ?other, "the coordinator's world changed"),
        }
        if let Some(on_event) = &self.options.on_event {
            on_event(&event);
        }
    }
}
