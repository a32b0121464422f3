//! One end of a link that has several rails.
//!
//! - *Frames*: all are sealed, numbered and kept until they are acknowledged by one [`Reliable`] of the link, whatever the devices
//!   promise. They go over the *primary* rail, of those that are up the one with the shortest way. If it fails, the next one is
//!   primary, and what is not acknowledged goes again at once, so that nothing is lost and nothing comes twice. If nothing is
//!   acknowledged although nothing has failed, others are tried in turn. What comes is taken from every rail.
//! - *Moves*: [`stripes`](super::stripes).
//! - *A rail that fails* loses its queue pairs before anything else happens, so that no device has a hand in any memory; then
//!   its chunks come over others, and the peer is told. It is made anew after a while ([`mender`](super::mender)). The link
//!   breaks only if there has been no rail for as long as a peer may be silent.
//! - *One-sided operations* go over the frames, where each comes once: what a device had under way when it failed may have
//!   happened or not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_verbs::Completion;

use super::frames::FrameError;
use super::hub::{Hub, Work};
use super::info::RailStatus;
use super::ping::{self, Ping};
use super::rail::{FAREWELL, broken, first_cause};
use super::stripes::{self, Stripes};
use super::track::Track;
use crate::driver::{Broken, Payload, Takes, Wire};
use crate::engine::{Lent, Link, PREFIX, Place, Reliable, Source, Target};
use crate::liveness::Life;

/// How often it is looked at what time alone changes.
const LOOK: Duration = Duration::from_millis(10);
/// How long nothing may be acknowledged over a rail until another one is tried.
const TURN: Duration = Duration::from_millis(200);

/// What a bundle is made of.
pub(super) struct Parts {
    pub rank: u32,
    pub peer: u32,
    pub hub: Arc<Hub>,
    /// The frames of the first have the guard.
    pub tracks: Vec<Track>,
    pub rendezvous: u64,
    pub patience: Duration,
    pub generation: u64,
    pub life: Arc<Life>,
}

/// See the [module](self).
pub(super) struct Bundle {
    pub rank: u32,
    pub peer: u32,
    hub: Arc<Hub>,
    pub tracks: Vec<Track>,
    /// Over which frames go: none if no rail is up.
    pub primary: Option<usize>,
    /// Whose frames have the guard, and in whose places the frames are that are not acknowledged.
    guard: usize,
    places: usize,
    pub stripes: Stripes,
    completions: VecDeque<Completion>,
    rendezvous: u64,
    start: Instant,
    patience: Duration,
    pub generation: u64,
    pub life: Arc<Life>,
    /// When it is looked at what time changes.
    pub look_at: Instant,
    /// How long nothing had been acknowledged when another rail was tried last.
    turned: Duration,
    pub calls: u32,
    /// When anything last came from the peer.
    pub heard: Instant,
    /// Since when there is no rail.
    alone: Option<Instant>,
    pub first_cause: Option<String>,
    /// Large messages came damaged.
    trouble: Option<String>,
    over: bool,
}

impl Bundle {
    pub(super) fn new(parts: Parts) -> Bundle {
        let Parts { rank, peer, hub, mut tracks, rendezvous, patience, generation, life } = parts;
        let now = Instant::now();
        let entries = tracks.iter().map(|track| track.entries).max().unwrap_or(0);
        let primary = tracks.iter().position(Track::is_live);
        if let Some(primary) = primary {
            // Until it shows that it carries nothing.
            tracks[primary].state = super::track::State::Up;
        }
        Bundle {
            rank,
            peer,
            hub,
            tracks,
            primary,
            guard: 0,
            places: primary.unwrap_or(0),
            stripes: Stripes::default(),
            completions: VecDeque::with_capacity(entries),
            rendezvous,
            start: now,
            patience,
            generation,
            life,
            look_at: now,
            turned: Duration::ZERO,
            calls: 0,
            heard: now,
            alone: None,
            first_cause: None,
            trouble: None,
            over: false,
        }
    }

    /// Has this rail's frames guarded by the link's one guard.
    fn lend_guard(&mut self, to: usize) {
        if self.guard != to
            && let Ok([from, to]) = self.tracks.get_disjoint_mut([self.guard, to])
        {
            from.frames.lend_guard(&mut to.frames);
        }
        self.guard = to;
    }

    fn reliable(&self) -> Option<&Reliable> {
        self.tracks.get(self.guard)?.frames.reliable()
    }

    /// Chooses the rail with the shortest way, but not another one than it is for a small difference.
    pub(super) fn choose_primary(&mut self) {
        let time = |at: usize| self.tracks[at].latency.unwrap_or(Duration::from_secs(1));
        let up = (0..self.tracks.len()).filter(|at| self.tracks[*at].is_up());
        let best = up.min_by_key(|at| time(*at));
        let stays =
            |now: &usize| self.tracks[*now].is_up() && best.is_some_and(|best| time(best) * 3 >= time(*now) * 2);
        self.set_primary(self.primary.filter(stays).or(best));
    }

    fn set_primary(&mut self, to: Option<usize>) {
        self.primary = to;
        let Some(to) = to else { return };
        self.lend_guard(to);
        if self.places != to
            && let Ok([new, old]) = self.tracks.get_disjoint_mut([to, self.places])
        {
            new.frames.adopt(&old.frames);
        }
        self.places = to;
    }

    /// Sends all again that is not acknowledged.
    pub(super) fn resend(&mut self) {
        if let Some(track) = self.tracks.get_mut(self.guard) {
            track.frames.resend();
        }
    }

    /// Tries another rail if the primary brings no answers.
    fn turn(&mut self) {
        let waited = self.reliable().map_or(Duration::ZERO, Reliable::waited);
        if waited < self.turned {
            self.turned = Duration::ZERO;
        }
        let Some(primary) = self.primary.filter(|_| waited >= self.turned + TURN) else { return };
        self.turned = waited;
        let count = self.tracks.len();
        let next = (1..count).map(|step| (primary + step) % count).find(|at| self.tracks[*at].is_up());
        if next.is_some() {
            self.suspect(primary);
            self.set_primary(next);
            self.resend();
        }
    }

    fn step(&mut self, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let now = self.start.elapsed();
        let mut worked = false;
        for at in 0..self.tracks.len() {
            worked |= self.complete(at, now, link, lent)?;
        }
        if link.peer_left() {
            return Ok(worked);
        }
        self.hear(link)?;
        let at = self.start + now;
        let broken = (0..self.tracks.len()).any(|track| self.tracks[track].broken.is_some());
        if at >= self.look_at || broken {
            self.look_at = at + LOOK;
            worked |= self.look_after(link, at);
        }
        self.fall_back(link);
        // In this order: receives are posted before the frames that give credits back for them or grant them.
        for at in 0..self.tracks.len() {
            let track = &mut self.tracks[at];
            let Some(pairs) = &track.pairs else { continue };
            if let Err(cause) = track.frames.post(&*pairs.frames) {
                self.fail(at, &format!("cannot receive frames: {cause}"), true, link);
            }
        }
        // Asked after what has come was taken.
        if self.reliable().is_some_and(Reliable::is_dead) {
            let silence = format!("no acknowledgement for {:?}", self.patience);
            return Err(broken_link(self.peer, &silence));
        }
        self.turn();
        self.stripes.take(&mut self.tracks, link);
        worked |= self.move_on(link, at);
        worked |= self.transmit(now, link, lent);
        self.check_alone(at)?;
        Ok(worked)
    }

    fn move_on(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut worked = false;
        loop {
            match self.stripes.grant(&mut self.tracks, link, now) {
                Ok(granted) => {
                    worked |= granted;
                    break;
                }
                Err((at, cause)) => self.fail(at, &format!("cannot receive a message: {cause}"), true, link),
            }
        }
        for at in 0..self.tracks.len() {
            match stripes::post_sends(&mut self.tracks[at]) {
                Ok(posted) => worked |= posted,
                Err(cause) => self.fail(at, &format!("cannot send a message: {cause}"), true, link),
            }
        }
        worked
    }

    fn transmit(&mut self, now: Duration, link: &mut Link, lent: &mut Lent<'_>) -> bool {
        let mut worked = false;
        // Ends, since each turn but the last takes a rail out.
        while let Some(at) = self.primary {
            self.lend_guard(at);
            let track = &mut self.tracks[at];
            let Some(pair) = track.pairs.as_ref().map(|pairs| pairs.frames.clone()) else { break };
            match track.frames.transmit(&*pair, now, link, lent) {
                Ok(sent) => return worked | sent,
                Err(cause) => {
                    worked = true;
                    drop(pair);
                    self.fail(at, &format!("cannot send frames: {cause}"), true, link);
                }
            }
        }
        worked
    }

    fn check_alone(&mut self, now: Instant) -> Result<(), Broken> {
        if self.primary.is_some() {
            self.alone = None;
            return Ok(());
        }
        if now.saturating_duration_since(*self.alone.get_or_insert(now)) < self.patience {
            return Ok(());
        }
        let cause = self.first_cause.take().unwrap_or_else(|| "no rail is left".into());
        Err(Broken(format!("{cause}; no other rail was left for {:?}", self.patience)))
    }

    /// Takes what has completed on a rail.
    fn complete(&mut self, at: usize, now: Duration, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let berth = self.tracks[at].berth;
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(Broken(cause)) = self.hub.take(berth, &mut completions)
            && self.tracks[at].is_live()
        {
            self.fail(at, &cause, true, link);
        }
        let worked = !completions.is_empty();
        let mut result = Ok(());
        for completion in &completions {
            // Of queue pairs that are gone.
            if !self.tracks[at].has(completion.qp_num) {
                continue;
            }
            if !completion.status.is_success() {
                let cause = first_cause(completion, &completions);
                let work = Work::of(cause.wr_id).map_or("a request", |(work, _)| work.name());
                let cause = format!("failed {work} (queue pair {}): {}", cause.qp_num, cause.status);
                self.fail(at, &cause, true, link);
                break;
            }
            match self.taken(at, completion, now, link, lent) {
                Ok(()) => {}
                Err(Trouble::Link(cause)) => {
                    result = Err(cause);
                    break;
                }
                Err(Trouble::Rail(cause)) => self.fail(at, &cause, true, link),
            }
        }
        completions.clear();
        self.completions = completions;
        result.map(|()| worked)
    }

    fn taken(
        &mut self,
        at: usize,
        completion: &Completion,
        now: Duration,
        link: &mut Link,
        lent: &mut Lent<'_>,
    ) -> Result<(), Trouble> {
        let order = || Trouble::Rail("a completion out of order".into());
        let (work, index) = Work::of(completion.wr_id).ok_or_else(order)?;
        let time = self.start + now;
        match work {
            Work::FrameIn => {
                self.heard = time;
                self.tracks[at].received_bytes += u64::from(completion.byte_len);
                self.frame(at, index, completion.byte_len, now, link, lent)
            }
            Work::FrameOut => self.tracks[at].frames.sent(index).then_some(()).ok_or_else(order),
            Work::ChunkIn => {
                self.heard = time;
                let landed = self.stripes.landed(&mut self.tracks[at], index, completion, (link, time));
                match landed {
                    // Over which rails it came damaged nobody knows.
                    Err(cause @ super::moves::MoveError::Corrupted) => {
                        self.trouble.get_or_insert(cause.to_string());
                        Ok(())
                    }
                    landed => landed.map_err(|cause| Trouble::Rail(cause.to_string())),
                }
            }
            Work::ChunkOut => {
                let sent = stripes::sent(&mut self.tracks[at], index, link);
                sent.map_err(|cause| Trouble::Rail(cause.to_string()))
            }
            Work::Rdma => Err(order()),
        }
    }

    fn frame(
        &mut self,
        at: usize,
        index: u32,
        len: u32,
        now: Duration,
        link: &mut Link,
        lent: &mut Lent<'_>,
    ) -> Result<(), Trouble> {
        if len as usize == ping::LEN {
            let bytes = self.tracks[at].frames.take_few(index);
            let bytes = bytes.ok_or_else(|| Trouble::Rail("a completion out of order".into()))?;
            if let Some(ping) = Ping::read(&bytes, self.generation) {
                self.pinged(at, ping, self.start + now);
            }
            return Ok(());
        }
        self.lend_guard(at);
        let track = &mut self.tracks[at];
        match track.frames.arrived(index, len, now, link, lent) {
            Ok(()) => {}
            Err(cause @ FrameError::Order) => return Err(Trouble::Rail(cause.to_string())),
            Err(cause) => {
                let device = &track.info.here.device;
                return Err(Trouble::Link(broken(device, self.peer, "brought", &cause)));
            }
        }
        // Where the peer's way is another one than this end's, it may be the only one that there is.
        if self.primary != Some(at)
            && let Some(pairs) = &track.pairs
        {
            let answered = track.frames.acknowledge(&*pairs.frames, now);
            answered.map_err(|cause| Trouble::Rail(format!("cannot send frames: {cause}")))?;
        }
        Ok(())
    }

    /// Gives the rails up for large messages, if any end has trouble with them.
    fn fall_back(&mut self, link: &mut Link) {
        let forsaken = || "the peer gave it up".to_owned();
        let Some(cause) = self.trouble.take().or_else(|| link.is_forsaken().then(forsaken)) else { return };
        // In this order: no device has a hand in the memory any more.
        for track in &mut self.tracks {
            if let Some(pairs) = &mut track.pairs {
                pairs.moves = None;
            }
            track.forget_moves();
        }
        self.stripes.clear();
        link.give_up_moves();
        tracing::warn!(
            rank = self.peer,
            cause,
            "large messages are copied into frames from now on: a device lost or damaged one"
        );
    }

    /// The peer has left: it gets the word that its last frame has come before the queue pairs go.
    fn part(&mut self) -> Option<()> {
        let at = self.primary?;
        self.lend_guard(at);
        let track = &mut self.tracks[at];
        let pair = track.pairs.as_ref()?.frames.clone();
        track.frames.leave(&*pair).ok()?;
        let mut completions = std::mem::take(&mut self.completions);
        let end = Instant::now() + FAREWELL;
        while !track.frames.has_gone() && Instant::now() < end {
            thread::yield_now();
            track.frames.flush(&*pair).ok()?;
            self.hub.deal(track.berth);
            self.hub.take(track.berth, &mut completions).ok()?;
            for completion in completions.drain(..) {
                if let Some((Work::FrameOut, index)) = Work::of(completion.wr_id)
                    && track.has(completion.qp_num)
                {
                    track.frames.sent(index);
                }
            }
        }
        Some(())
    }
}

/// What is wrong with what came.
enum Trouble {
    Rail(String),
    Link(Broken),
}

fn broken_link(peer: u32, cause: &str) -> Broken {
    Broken(format!("all rails sent in vain with rank {peer}: {cause}"))
}

impl Wire for Bundle {
    fn look(&self) {
        for track in self.tracks.iter().filter(|track| !self.over && !self.hub.has_work(track.berth)) {
            self.hub.deal(track.berth);
        }
    }

    /// A link whose peer has said goodbye does not break any more: it ends quietly.
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, _takes: Takes) -> Result<bool, Broken> {
        if self.over {
            return Ok(false);
        }
        let result = self.step(link, lent);
        if link.peer_left() {
            self.part();
            self.sever();
            return Ok(true);
        }
        if result.is_err() {
            self.sever();
        }
        result
    }

    fn push(&mut self, _link: &Link, header: &[u8; PREFIX], payload: Payload<'_>) -> Result<bool, Broken> {
        let Some(at) = self.primary.filter(|_| !self.over) else { return Ok(false) };
        self.lend_guard(at);
        let now = self.start.elapsed();
        let track = &mut self.tracks[at];
        let Some(pairs) = track.pairs.as_ref().filter(|_| track.broken.is_none()) else { return Ok(false) };
        match track.frames.push(&*pairs.frames, now, header, payload) {
            Ok(pushed) => Ok(pushed),
            // It has its number, and goes over another rail.
            Err(cause) => {
                track.broken = Some(format!("cannot send frames: {cause}"));
                Ok(true)
            }
        }
    }

    fn source(&self, memory: Exposed) -> Source {
        if memory.len() as u64 >= self.rendezvous && self.reaches(&memory) {
            return Source::Offered { memory, place: Place::default() };
        }
        Source::Memory(memory)
    }

    fn target(&self, memory: Exposed) -> Target {
        let direct = self.reaches(&memory);
        Target::Memory { memory, direct }
    }

    fn is_idle(&self) -> bool {
        self.over || self.reliable().is_none_or(|reliable| reliable.in_flight() == 0)
    }

    /// A peer that makes a rail anew keeps another one.
    fn is_peer_gone(&self) -> bool {
        let mut open = self.tracks.iter().filter_map(|track| track.pairs.as_ref()).peekable();
        open.peek().is_some() && open.all(|pairs| pairs.frames.is_peer_gone())
    }

    fn deadline(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        let frames = self.primary.and(self.tracks.get(self.guard)?.frames.deadline()).map(|at| self.start + at);
        let unsettled = |track: &Track| !track.is_up() || track.call.is_some() || !track.landing.is_empty();
        let look = self.tracks.iter().any(unsettled).then_some(self.look_at);
        [frames, look].into_iter().flatten().min()
    }

    /// The peer relies on acknowledgements, and on answers to its calls.
    fn is_demanding(&self) -> bool {
        true
    }

    fn sever(&mut self) {
        self.over = true;
        self.primary = None;
        // In this order: what the devices no longer know is let go.
        for track in &mut self.tracks {
            track.pairs = None;
            track.forget_moves();
            track.end();
        }
        self.stripes.clear();
    }

    fn rails(&self) -> Vec<RailStatus> {
        self.tracks.iter().map(Track::status).collect()
    }

    fn restrict(&mut self, rail: Option<usize>) {
        self.stripes.only = rail.filter(|rail| *rail < self.tracks.len());
    }
}

impl Bundle {
    /// Whether the devices of all rails reach this memory.
    fn reaches(&self, memory: &Exposed) -> bool {
        self.tracks.iter().all(|track| track.registered.key(memory).is_some())
    }
}
