//! One end of a link over a device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_verbs::{Completion, CompletionStatus, PostError, QueuePair};

use super::frames::{FrameError, Frames};
use super::hub::{Hub, Work};
use super::memory::Registered;
use super::moves::Moves;
use crate::driver::{Broken, Wire};
use crate::engine::{Lent, Link, PREFIX, Place, Reliable, Source, Target};

/// The queue pairs of a link. Dropping them destroys them: the device has no hand in any memory any more.
#[derive(Clone)]
pub(super) struct Pairs {
    /// For frames.
    pub frames: Arc<dyn QueuePair>,
    /// For the bytes of large messages: gone when they no longer go this way.
    pub moves: Option<Arc<dyn QueuePair>>,
}

/// How long a peer's goodbye is answered at most.
const FAREWELL: Duration = Duration::from_millis(50);

/// One end of a link over a device: moves a [`Link`] on.
pub(crate) struct Rail {
    peer: u32,
    /// The device's name.
    device: Arc<str>,
    hub: Arc<Hub>,
    /// Gone when the link is over.
    pairs: Option<Pairs>,
    frames: Frames,
    moves: Moves,
    completions: VecDeque<Completion>,
    /// The memory that the device can reach.
    registered: Arc<Registered>,
    /// The shortest message that is moved straight out of registered memory.
    rendezvous: u64,
    /// From which the times of frames are counted.
    start: Instant,
    /// How long the peer may acknowledge nothing.
    patience: Duration,
    /// The peer has left: until when it may be told that this was heard.
    farewell: Option<Duration>,
}

/// What a rail is made of.
pub(super) struct Parts {
    pub peer: u32,
    pub device: Arc<str>,
    pub hub: Arc<Hub>,
    pub pairs: Pairs,
    pub frames: Frames,
    pub moves: Moves,
    pub registered: Arc<Registered>,
    pub rendezvous: u64,
    pub patience: Duration,
    /// The most completions that can wait.
    pub entries: usize,
}

impl Rail {
    pub(super) fn new(parts: Parts) -> Rail {
        let Parts { peer, device, hub, pairs, frames, moves, registered, rendezvous, patience, entries } = parts;
        let completions = VecDeque::with_capacity(entries);
        Rail {
            peer,
            device,
            hub,
            pairs: Some(pairs),
            frames,
            moves,
            completions,
            registered,
            rendezvous,
            start: Instant::now(),
            patience,
            farewell: None,
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
        let Some(pairs) = &self.pairs else { return Ok(worked) };
        let broken = |what: &str, cause: &dyn std::fmt::Display| broken(&self.device, self.peer, what, cause);
        // In this order: receives are posted before the frames that give credits back for them or grant them.
        self.frames.post(&*pairs.frames).map_err(|cause| broken("cannot receive frames", &cause))?;
        // Asked after what has come was taken.
        if self.frames.reliable().is_some_and(Reliable::is_dead) {
            let silence = format!("no acknowledgement for {:?}", self.patience);
            return Err(broken("sent in vain", &silence));
        }
        if let Some(pair) = &pairs.moves {
            worked |= self.moves.advance(&**pair, link).map_err(|cause| broken("cannot move a message", &cause))?;
        }
        worked |= self
            .frames
            .transmit(&*pairs.frames, now, link, lent)
            .map_err(|cause| broken("cannot send frames", &cause))?;
        Ok(worked)
    }

    fn complete(&mut self, now: Duration, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let mut completions = std::mem::take(&mut self.completions);
        self.hub.take(self.peer, &mut completions)?;
        let worked = !completions.is_empty();
        let mut result = Ok(());
        for completion in &completions {
            if !completion.status.is_success() {
                result = Err(self.failure(first_cause(completion, &completions)));
                break;
            }
            result = self.take(completion, now, link, lent);
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
        let (device, peer) = (&self.device, self.peer);
        let (work, index) = Work::of(completion.wr_id).ok_or_else(|| broken(device, peer, "failed", &unknown))?;
        let failed = |cause: &dyn std::fmt::Display| broken(device, peer, &format!("failed {}", work.name()), cause);
        match work {
            Work::FrameIn => {
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
            Work::ChunkIn => self.moves.received(index, completion, link).map_err(|cause| failed(&cause)),
            Work::ChunkOut => self.moves.sent(index, link).map_err(|cause| failed(&cause)),
        }
    }

    /// The peer has left. Where it waits for the word that its last frame has come, it gets it before the queue pair goes:
    /// true when that is over.
    fn part(&mut self) -> bool {
        let now = self.now();
        let Some(pairs) = &mut self.pairs else { return true };
        if self.frames.reliable().is_some() && self.farewell.is_none() {
            pairs.moves = None;
            self.moves.clear();
            let told = self.frames.leave(&*pairs.frames).is_ok();
            self.farewell = told.then_some(now + FAREWELL);
        }
        self.frames.has_gone() || self.farewell.is_none_or(|end| end <= now)
    }

    fn failure(&self, completion: &Completion) -> Broken {
        let work = Work::of(completion.wr_id).map_or("a request", |(work, _)| work.name());
        let what = format!("failed {work} (queue pair {})", completion.qp_num);
        broken(&self.device, self.peer, &what, &completion.status)
    }
}

impl Wire for Rail {
    /// A link whose peer has said goodbye does not break any more: it ends quietly.
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        if self.pairs.is_none() {
            return Ok(false);
        }
        if !self.hub.has_work(self.peer) {
            self.hub.deal();
        }
        let result = self.step(link, lent);
        if link.peer_left() {
            let over = result.is_err() || self.part();
            if over {
                self.sever();
            }
            return Ok(over);
        }
        if result.is_err() {
            self.sever();
        }
        result
    }

    fn push(&mut self, header: &[u8; PREFIX], payload: &[u8]) -> Result<bool, Broken> {
        let Some(pairs) = &self.pairs else { return Ok(false) };
        let pushed = self.frames.push(&*pairs.frames, self.now(), header, payload);
        pushed.map_err(|cause| {
            self.sever();
            broken(&self.device, self.peer, "cannot send frames", &cause)
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

    fn is_parting(&self) -> bool {
        self.pairs.is_some() && self.farewell.is_some()
    }

    fn is_idle(&self) -> bool {
        self.pairs.is_none() || self.frames.is_idle()
    }

    fn deadline(&self) -> Option<Instant> {
        self.pairs.as_ref()?;
        Some(self.start + self.farewell.or_else(|| self.frames.deadline())?)
    }

    fn is_demanding(&self) -> bool {
        self.frames.reliable().is_some()
    }

    fn sever(&mut self) {
        // In this order: what the device no longer knows is let go.
        self.pairs = None;
        self.moves.clear();
    }
}

/// What failed first: what was flushed after it may complete before it, in another queue.
fn first_cause<'a>(failed: &'a Completion, all: &'a VecDeque<Completion>) -> &'a Completion {
    let cause =
        |completion: &&Completion| !completion.status.is_success() && completion.status != CompletionStatus::Flushed;
    all.iter().find(cause).unwrap_or(failed)
}

fn broken(device: &str, peer: u32, what: &str, cause: &dyn std::fmt::Display) -> Broken {
    Broken(format!("{device} {what} with rank {peer}: {cause}"))
}
