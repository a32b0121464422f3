//! One end of a link over a device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_verbs::{Carrier, Completion, CompletionStatus, PostError, QueuePair};

use super::frames::{FrameError, Frames};
use super::hub::{Berth, Hub, Work};
use super::info::{RailInfo, RailState, RailStatus};
use super::memory::Registered;
use super::moves::Moves;
use super::rdma::Rdma;
use crate::driver::{Broken, Payload, Takes, Wire};
use crate::engine::{Lent, Link, PREFIX, Place, Reliable, Source, Target};
use crate::lanes::TURNS;
use crate::options::Flow;

/// The queue pairs of a link. Dropping them destroys them: the device has no hand in any memory any more.
#[derive(Clone)]
pub(super) struct Pairs {
    /// For frames.
    pub frames: Arc<dyn QueuePair>,
    /// For the bytes of large messages: gone when they no longer go this way.
    pub moves: Option<Arc<dyn QueuePair>>,
}

/// How long a message may make no progress, before and after the peer has shown that it is there, until it counts as not
/// having come.
const STALL: Duration = Duration::from_millis(300);

/// The shortest message that is moved over such a carrier.
pub(super) fn rendezvous(flow: &Flow, carrier: Carrier) -> u64 {
    let shortest = if matches!(carrier, Carrier::Tcp { .. }) { flow.rendezvous_tcp } else { flow.rendezvous };
    shortest.max(1)
}

/// How long the answer to a peer's goodbye may take at most to go.
pub(super) const FAREWELL: Duration = Duration::from_millis(10);

/// How often the device is asked at most whether the peer is gone, and after how many looks at nothing: a thread that is parked has
/// 20 a second, and [leaves most out](TURNS).
const ASKED: Duration = Duration::from_millis(50);
const LOOKS: u32 = 16 / TURNS;

/// How long nothing may come from a peer that is gone until that is believed: what it sent before counts.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// One end of a link over a device: moves a [`Link`] on.
pub(crate) struct Rail {
    berth: Berth,
    info: RailInfo,
    /// The device's name.
    device: Arc<str>,
    hub: Arc<Hub>,
    /// Gone when the link is over.
    pairs: Option<Pairs>,
    frames: Frames,
    moves: Moves,
    /// Where both devices do one-sided operations.
    rdma: Option<Rdma>,
    completions: VecDeque<Completion>,
    /// The memory that the device can reach.
    registered: Arc<Registered>,
    /// The shortest message that is moved straight out of registered memory.
    rendezvous: u64,
    /// From which the times of frames are counted.
    start: Instant,
    /// How long the peer may acknowledge nothing.
    patience: Duration,
    /// Why large messages are to go over their queue pair no more.
    trouble: Option<String>,
    stall: Option<Stall>,
    /// Looks at nothing, and when the device was asked last.
    looks: u32,
    asked: Instant,
    received_bytes: u64,
    /// Since when the device says that the peer is gone.
    gone: Option<Instant>,
}

/// Messages make no progress.
struct Stall {
    /// Where they stand.
    at: u64,
    since: Duration,
    /// A frame that was sent since then, and when its acknowledgement was seen.
    asked: Option<u32>,
    answered: Option<Duration>,
}

/// What a rail is made of.
pub(super) struct Parts {
    pub berth: Berth,
    pub info: RailInfo,
    pub hub: Arc<Hub>,
    pub pairs: Pairs,
    pub frames: Frames,
    pub moves: Moves,
    pub rdma: Option<Rdma>,
    pub registered: Arc<Registered>,
    /// The shortest message that is moved.
    pub rendezvous: u64,
    pub patience: Duration,
    /// The most completions that can wait.
    pub entries: usize,
}

impl Rail {
    pub(super) fn new(parts: Parts) -> Rail {
        let Parts { berth, info, hub, pairs, frames, moves, rdma, registered, rendezvous, patience, entries } = parts;
        let completions = VecDeque::with_capacity(entries);
        Rail {
            berth,
            device: info.here.device.as_str().into(),
            info,
            hub,
            pairs: Some(pairs),
            frames,
            moves,
            rdma,
            completions,
            registered,
            rendezvous,
            start: Instant::now(),
            patience,
            trouble: None,
            stall: None,
            looks: 0,
            asked: Instant::now(),
            received_bytes: 0,
            gone: None,
        }
    }

    /// Posts the receives for the first frames.
    pub(super) fn open(&mut self) -> Result<(), PostError> {
        self.pairs.as_ref().map_or(Ok(()), |pairs| self.frames.post(&*pairs.frames))
    }

    /// The time of frames. Devices that keep them need none.
    fn now(&self) -> Duration {
        if self.frames.reliable().is_some() { self.start.elapsed() } else { Duration::ZERO }
    }

    fn step(&mut self, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let now = self.now();
        let mut worked = self.complete(now, link, lent)?;
        if link.peer_left() {
            return Ok(worked);
        }
        self.watch_moves(now, link);
        if link.is_forsaken() {
            self.trouble = Some("the peer gave it up".into());
        }
        self.fall_back(link);
        let Some(pairs) = &self.pairs else { return Ok(worked) };
        let (device, peer) = (self.device.clone(), self.berth.peer);
        let broken = |what: &str, cause: &dyn std::fmt::Display| broken(&device, peer, what, cause);
        // In this order: receives are posted before the frames that give credits back for them or grant them.
        self.frames.post(&*pairs.frames).map_err(|cause| broken("cannot receive frames", &cause))?;
        // Asked after what has come was taken.
        if self.frames.reliable().is_some_and(Reliable::is_dead) {
            let silence = format!("no acknowledgement for {:?}", self.patience);
            return Err(broken("sent in vain", &silence));
        }
        if let Some(pair) = &pairs.moves {
            match self.moves.advance(&**pair, link) {
                Ok(moved) => worked |= moved,
                Err(cause) if self.frames.reliable().is_some() => self.trouble = Some(cause.to_string()),
                Err(cause) => return Err(broken("cannot move a message", &cause)),
            }
        }
        if let Some(rdma) = &mut self.rdma {
            worked |= rdma.advance().map_err(|cause| broken("cannot do one-sided operations", &cause))?;
        }
        self.fall_back(link);
        let Some(pairs) = &self.pairs else { return Ok(worked) };
        worked |= self
            .frames
            .transmit(&*pairs.frames, now, link, lent)
            .map_err(|cause| broken("cannot send frames", &cause))?;
        Ok(worked)
    }

    fn complete(&mut self, now: Duration, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let mut completions = std::mem::take(&mut self.completions);
        self.hub.take(self.berth, &mut completions)?;
        let worked = !completions.is_empty();
        let mut result = Ok(());
        for completion in &completions {
            result = if completion.status.is_success() {
                self.take(completion, now, link, lent)
            } else {
                self.take_failed(completion, &completions, link)
            };
            if result.is_err() {
                break;
            }
        }
        completions.clear();
        self.completions = completions;
        result.map(|()| worked)
    }

    fn take(
        &mut self,
        completion: &Completion,
        now: Duration,
        link: &mut Link,
        lent: &mut Lent<'_>,
    ) -> Result<(), Broken> {
        let unknown = "a completion out of order";
        let (device, peer) = (&self.device, self.berth.peer);
        let (work, index) = Work::of(completion.wr_id).ok_or_else(|| broken(device, peer, "failed", &unknown))?;
        let failed = |cause: &dyn std::fmt::Display| broken(device, peer, &format!("failed {}", work.name()), cause);
        match work {
            Work::FrameIn => {
                self.received_bytes += u64::from(completion.byte_len);
                let arrived = self.frames.arrived(index, completion.byte_len, now, link, lent);
                arrived.map_err(|cause| match cause {
                    FrameError::Order => failed(&cause),
                    cause => broken(device, peer, "brought", &cause),
                })
            }
            Work::FrameOut => {
                if self.frames.sent(index) {
                    Ok(())
                } else {
                    Err(failed(&unknown))
                }
            }
            Work::Rdma => match &mut self.rdma {
                Some(rdma) => rdma.completed(index).map_err(|cause| failed(&cause)),
                None => Err(failed(&unknown)),
            },
            Work::ChunkIn | Work::ChunkOut => {
                if !self.has_moves() {
                    // Of a queue pair that is gone.
                    return Ok(());
                }
                let moved = match work {
                    Work::ChunkIn => {
                        self.received_bytes += u64::from(completion.byte_len);
                        self.moves.received(index, completion, link)
                    }
                    _ => self.moves.sent(index, link),
                };
                match moved.map_err(|cause| failed(&cause)) {
                    Err(Broken(cause)) if self.frames.reliable().is_some() => {
                        self.trouble.get_or_insert(cause);
                        Ok(())
                    }
                    moved => moved,
                }
            }
        }
    }

    /// Where frames come again, the queue pair for moves can be done without.
    fn take_failed(
        &mut self,
        completion: &Completion,
        all: &VecDeque<Completion>,
        link: &mut Link,
    ) -> Result<(), Broken> {
        if let Some(rdma) = &mut self.rdma
            && matches!(Work::of(completion.wr_id), Some((Work::Rdma, _)))
            && rdma.is_refusal(completion.status)
        {
            rdma.fall_back(link);
            return Ok(());
        }
        let of_moves = matches!(Work::of(completion.wr_id), Some((Work::ChunkIn | Work::ChunkOut, _)));
        let cause = self.failure(first_cause(completion, all));
        if !of_moves || self.frames.reliable().is_none() {
            return Err(cause);
        }
        if self.has_moves() {
            self.trouble.get_or_insert(cause.0);
        }
        Ok(())
    }

    fn has_moves(&self) -> bool {
        self.trouble.is_none() && self.pairs.as_ref().is_some_and(|pairs| pairs.moves.is_some())
    }

    /// Finds out that a message does not come over a device that promises nothing: nothing moves, although the peer is there
    /// and has had time.
    fn watch_moves(&mut self, now: Duration, link: &mut Link) {
        let Some(reliable) = self.frames.reliable().filter(|_| self.has_moves()) else { return };
        let Some(at) = self.moves.pending(link) else {
            self.stall = None;
            return;
        };
        let stall = match &mut self.stall {
            Some(stall) if stall.at == at => stall,
            stall => {
                *stall = Some(Stall { at, since: now, asked: None, answered: None });
                return;
            }
        };
        match (stall.asked, stall.answered) {
            (None, _) if now >= stall.since + STALL => {
                stall.asked = Some(reliable.next());
                link.nudge();
            }
            (Some(asked), None) if reliable.has_acknowledged(asked) => stall.answered = Some(now),
            (_, Some(answered)) if now >= answered + STALL => {
                self.trouble = Some("chunks of a message do not come".into());
            }
            _ => {}
        }
    }

    /// Finds out that the peer of a reliable link is gone although nothing fails, since nothing was sent to it: the device may know.
    fn watch_peer(&mut self, worked: bool) -> Result<bool, Broken> {
        if worked || self.frames.reliable().is_some() {
            self.gone = None;
            return Ok(worked);
        }
        self.looks = self.looks.wrapping_add(1);
        if self.gone.is_none() && (!self.looks.is_multiple_of(LOOKS) || self.asked.elapsed() < ASKED) {
            return Ok(false);
        }
        self.asked = Instant::now();
        if !self.is_peer_gone() {
            self.gone = None;
        } else if self.gone.get_or_insert_with(Instant::now).elapsed() >= LAST_WORDS {
            return Err(broken(&self.device, self.berth.peer, "lost the connection", &"its other end is gone"));
        }
        Ok(false)
    }

    /// Gives the queue pair for moves up, if there is trouble with it.
    fn fall_back(&mut self, link: &mut Link) {
        let Some(cause) = self.trouble.take() else { return };
        let Some(pairs) = &mut self.pairs else { return };
        if pairs.moves.take().is_none() {
            return;
        }
        // In this order: no device has a hand in the memory any more.
        self.moves.clear();
        self.stall = None;
        link.give_up_moves();
        tracing::warn!(
            rank = self.berth.peer,
            device = &*self.device,
            cause,
            "large messages are copied into frames from now on: the device lost or damaged one"
        );
    }

    /// The peer has left. Where it waits for the word that its last frame has come, it gets it before the queue pair goes:
    /// that takes a device some microseconds.
    fn part(&mut self) -> Result<(), Broken> {
        let Some(pairs) = self.pairs.as_ref().filter(|_| self.frames.reliable().is_some()) else { return Ok(()) };
        self.frames.leave(&*pairs.frames)?;
        let mut completions = std::mem::take(&mut self.completions);
        let end = Instant::now() + FAREWELL;
        while !self.frames.has_gone() && Instant::now() < end {
            thread::yield_now();
            self.frames.flush(&*pairs.frames)?;
            self.hub.deal(self.berth);
            self.hub.take(self.berth, &mut completions)?;
            for completion in completions.drain(..) {
                if let Some((Work::FrameOut, index)) = Work::of(completion.wr_id) {
                    self.frames.sent(index);
                }
            }
        }
        Ok(())
    }

    fn failure(&self, completion: &Completion) -> Broken {
        let work = Work::of(completion.wr_id).map_or("a request", |(work, _)| work.name());
        let what = format!("failed {work} (queue pair {})", completion.qp_num);
        broken(&self.device, self.berth.peer, &what, &completion.status)
    }
}

impl Wire for Rail {
    fn look(&self) {
        if self.pairs.is_some() && !self.hub.has_work(self.berth) {
            self.hub.deal(self.berth);
        }
    }

    fn has_come(&self) -> bool {
        self.pairs.is_some() && self.hub.has_work(self.berth)
    }

    /// A link whose peer has said goodbye does not break any more: it ends quietly.
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, _takes: Takes) -> Result<bool, Broken> {
        if self.pairs.is_none() {
            return Ok(false);
        }
        let result = self.step(link, lent);
        if link.peer_left() {
            // If that fails, it leaves without the word.
            let _ = result.and_then(|_| self.part());
            self.sever();
            return Ok(true);
        }
        let result = result.and_then(|worked| self.watch_peer(worked));
        if result.is_err() {
            self.sever();
        }
        result
    }

    fn push(&mut self, _link: &Link, header: &[u8; PREFIX], payload: Payload<'_>) -> Result<bool, Broken> {
        let Some(pairs) = &self.pairs else { return Ok(false) };
        let pushed = self.frames.push(&*pairs.frames, self.now(), header, payload);
        pushed.map_err(|cause| {
            self.sever();
            broken(&self.device, self.berth.peer, "cannot send frames", &cause)
        })
    }

    fn source(&self, memory: Exposed) -> Source {
        if memory.len() as u64 >= self.rendezvous && self.registered.key(&memory).is_some() {
            return Source::Offered { memory, place: Place::default() };
        }
        Source::Memory(memory)
    }

    fn target(&self, memory: Exposed) -> Target {
        let direct = self.registered.key(&memory).is_some();
        Target::Memory { memory, direct }
    }

    fn is_idle(&self) -> bool {
        self.pairs.is_none() || self.frames.is_idle()
    }

    fn is_peer_gone(&self) -> bool {
        self.pairs.as_ref().is_some_and(|pairs| pairs.frames.is_peer_gone())
    }

    fn is_dormant(&self) -> bool {
        self.pairs.as_ref().is_some_and(|pairs| pairs.frames.is_dormant())
    }

    fn end(&mut self, link: &mut Link) {
        if self.frames.end() {
            link.nudge();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.pairs.as_ref()?;
        Some(self.start + self.frames.deadline()?)
    }

    fn is_demanding(&self) -> bool {
        self.frames.reliable().is_some()
    }

    fn sever(&mut self) {
        // In this order: what the device no longer knows is let go.
        self.pairs = None;
        self.moves.clear();
        if let Some(rdma) = &mut self.rdma {
            rdma.sever();
        }
    }

    fn rails(&self) -> Vec<RailStatus> {
        let gone = || RailState::Down { cause: "the link is over".into() };
        vec![RailStatus {
            info: self.info.clone(),
            state: if self.pairs.is_some() { RailState::Up } else { gone() },
            latency: None,
            bytes_per_second: None,
            sent_bytes: self.frames.bytes() + self.moves.sent_bytes(),
            received_bytes: self.received_bytes,
            failures: 0,
        }]
    }

    fn rdma(&mut self) -> Option<&mut Rdma> {
        self.rdma.as_mut()
    }
}

/// What failed first: what was flushed after it may complete before it, in another queue.
pub(super) fn first_cause<'a>(failed: &'a Completion, all: &'a VecDeque<Completion>) -> &'a Completion {
    let cause =
        |completion: &&Completion| !completion.status.is_success() && completion.status != CompletionStatus::Flushed;
    all.iter().find(cause).unwrap_or(failed)
}

pub(super) fn broken(device: &str, peer: u32, what: &str, cause: &dyn std::fmt::Display) -> Broken {
    Broken(format!("{device} {what} with rank {peer}: {cause}"))
}
