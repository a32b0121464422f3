//! One rail of a link that has several.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_verbs::{PostError, QueuePairKind};

use super::frames::Frames;
use super::full::Fullness;
use super::hub::Berth;
use super::info::{RailInfo, RailState, RailStatus};
use super::maker::Maker;
use super::memory::Registered;
use super::mender::Making;
use super::rail::Pairs;
use crate::engine::OpId;

/// How long a rail that has just been made may take to answer; at the start, when others may still be starting, longer.
pub(super) const PROOF: Duration = Duration::from_secs(2);
pub(super) const FIRST_PROOF: Duration = Duration::from_secs(10);
/// How long after a failure a rail is made anew.
const PAUSE: Duration = Duration::from_millis(200);
/// So many failures in such a time, and the rail is left alone for as long again.
const FAILURES: usize = 3;
const SHORT: Duration = Duration::from_secs(10);

/// How a rail is.
pub(super) enum State {
    Up,
    /// Its queue pairs are connected, and a few bytes are to show that it carries. `calls`: this end begins.
    Proving {
        until: Instant,
        calls: bool,
    },
    /// It has no queue pairs. It is made anew then, or when the peer begins.
    Down {
        cause: String,
        until: Instant,
        out: bool,
    },
    Making(Making),
}

/// A chunk for which a RECV is posted.
#[derive(Clone, Copy)]
pub(super) struct Landing {
    pub op: OpId,
    pub offset: u64,
    pub len: u64,
}

/// A chunk that is to be sent.
pub(super) struct Going {
    pub op: OpId,
    pub memory: Exposed,
}

/// A call that has not been answered.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub number: u32,
    /// Of this one, and of the first that was not answered.
    pub at: Instant,
    pub since: Instant,
}

/// Bytes a second, smoothed.
#[derive(Debug, Default)]
pub(super) struct Rate {
    smooth: Option<f64>,
    since: Option<Instant>,
    bytes: u64,
    /// When it was last measured.
    measured: Option<Instant>,
}

/// What was measured so long ago may be otherwise now: a peer that got no processor for a while makes a rail look slow, and
/// nothing goes over a slow one that would show what it can.
const STALE: Duration = Duration::from_secs(1);

impl Rate {
    /// Something is under way from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// So many bytes have come; `last`: nothing more is under way.
    pub(super) fn count(&mut self, bytes: u64, last: bool, now: Instant) {
        const LEAST: Duration = Duration::from_millis(1);
        self.bytes += bytes;
        let Some(since) = self.since else { return };
        let time = now.saturating_duration_since(since);
        if time >= LEAST || last && !time.is_zero() {
            let seen = self.bytes as f64 / time.as_secs_f64();
            self.smooth = Some(self.smooth.map_or(seen, |before| before * 0.75 + seen * 0.25));
            (self.since, self.bytes) = (Some(now), 0);
            self.measured = Some(now);
        }
        if last {
            (self.since, self.bytes) = (None, 0);
        }
    }

    pub(super) fn get(&self) -> Option<f64> {
        self.smooth
    }

    /// What is known now.
    pub(super) fn known(&self, now: Instant) -> Option<f64> {
        self.smooth.filter(|_| self.measured.is_some_and(|at| now.saturating_duration_since(at) < STALE))
    }
}

pub(super) struct TrackParts {
    pub berth: Berth,
    pub maker: Arc<Maker>,
    pub info: RailInfo,
    pub frames: Frames,
    pub pool: Arc<Registered>,
    pub entries: usize,
}

/// See the [module](self).
pub(super) struct Track {
    pub berth: Berth,
    pub maker: Arc<Maker>,
    pub info: RailInfo,
    pub registered: Arc<Registered>,
    pub entries: usize,
    pub state: State,
    /// Which of the rails that have had this number.
    pub incarnation: u32,
    /// There while it is up or proves itself. Dropping them destroys them: the device has no hand in any memory any more.
    pub pairs: Option<Pairs>,
    /// The numbers of those.
    numbers: [u32; 2],
    pub frames: Frames,
    /// Chunks that come, and how many have ever been posted.
    pub landing: VecDeque<Landing>,
    pub posted: u64,
    /// Chunks that are to go, those that the device has, and how many it has ever had.
    pub going: VecDeque<Going>,
    pub flying: VecDeque<(OpId, u64)>,
    pub sent: u64,
    pub fullness: Fullness,
    pub rate: Rate,
    pub latency: Option<Duration>,
    pub call: Option<Call>,
    /// When a call was last answered.
    pub answered: Option<Instant>,
    /// When a chunk last came, or the first one was asked for.
    pub progress: Instant,
    /// Since when the device says that the peer's end is gone.
    pub gone: Option<Instant>,
    /// It has failed where nothing could be done about it at once.
    pub broken: Option<String>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub failures: u64,
    recent: VecDeque<Instant>,
}

impl Track {
    pub(super) fn new(parts: TrackParts) -> Track {
        let TrackParts { berth, maker, info, frames, pool, entries } = parts;
        let now = Instant::now();
        Track {
            berth,
            maker,
            info,
            registered: pool,
            entries,
            state: State::Proving { until: now + FIRST_PROOF, calls: true },
            incarnation: 0,
            pairs: None,
            numbers: [0; 2],
            frames,
            landing: VecDeque::new(),
            posted: 0,
            going: VecDeque::new(),
            flying: VecDeque::new(),
            sent: 0,
            fullness: Fullness::default(),
            rate: Rate::default(),
            latency: None,
            call: None,
            answered: None,
            progress: now,
            gone: None,
            broken: None,
            sent_bytes: 0,
            received_bytes: 0,
            failures: 0,
            recent: VecDeque::new(),
        }
    }

    /// Takes connected queue pairs, and posts the receives for the first frames.
    pub(super) fn open(&mut self, pairs: Pairs) -> Result<(), PostError> {
        let moves = pairs.moves.as_ref().map_or(0, |pair| pair.qp_num());
        self.numbers = [pairs.frames.qp_num(), moves];
        let pairs = self.pairs.insert(pairs);
        self.frames.post(&*pairs.frames)
    }

    /// It could not be connected at the start.
    pub(super) fn unconnected(&mut self, cause: String) {
        self.broken = Some(cause);
    }

    /// Whether these queue pairs are still there, so that what completes on them counts.
    pub(super) fn has(&self, number: u32) -> bool {
        self.pairs.is_some() && self.numbers.contains(&number)
    }

    /// Whether it has queue pairs and nothing is known against it.
    pub(super) fn is_live(&self) -> bool {
        self.pairs.is_some() && self.broken.is_none()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up) && self.is_live()
    }

    pub(super) fn is_unreliable(&self) -> bool {
        self.maker.plan.kind == QueuePairKind::Uc
    }

    /// Lets go of its queue pairs, and of all that was to go over them.
    pub(super) fn close(&mut self, cause: &str, now: Instant) {
        self.pairs = None;
        self.frames.reset();
        self.forget_moves();
        (self.posted, self.sent) = (0, 0);
        self.fullness = Fullness::default();
        (self.call, self.answered, self.gone, self.broken) = (None, None, None, None);
        self.rate = Rate::default();
        self.failures += 1;
        self.recent.push_back(now);
        if self.recent.len() > FAILURES {
            self.recent.pop_front();
        }
        let often = self.recent.len() == FAILURES && now.duration_since(self.recent[0]) < SHORT;
        let until = now + if often { SHORT } else { PAUSE };
        self.state = State::Down { cause: cause.to_owned(), until, out: often };
    }

    /// Lets go of all memory of messages: their queue pair is gone.
    pub(super) fn forget_moves(&mut self) {
        self.landing.clear();
        self.going.clear();
        self.flying.clear();
    }

    /// The link is over.
    pub(super) fn end(&mut self) {
        self.state = State::Down { cause: "the link is over".into(), until: Instant::now(), out: false };
    }

    /// Bytes of chunks that are to come.
    pub(super) fn outstanding(&self) -> u64 {
        self.landing.iter().map(|landing| landing.len).sum()
    }

    pub(super) fn status(&self) -> RailStatus {
        let state = match &self.state {
            State::Up => RailState::Up,
            State::Proving { .. } | State::Making(_) => RailState::Coming,
            State::Down { cause, out: false, .. } => RailState::Down { cause: cause.clone() },
            State::Down { cause, until, .. } => {
                RailState::Out { cause: cause.clone(), rest: until.saturating_duration_since(Instant::now()) }
            }
        };
        RailStatus {
            info: self.info.clone(),
            state,
            latency: self.latency,
            bytes_per_second: self.rate.get(),
            sent_bytes: self.frames.bytes() + self.sent_bytes,
            received_bytes: self.received_bytes,
            failures: self.failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_what_comes_and_not_the_time_between() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.get(), None);
        rate.begin(start);
        rate.count(1_000_000, true, start + Duration::from_millis(10));
        assert_eq!(rate.get(), Some(1e8));
        // Nothing was under way for an hour.
        let later = start + Duration::from_secs(3600);
        rate.begin(later);
        rate.count(500, false, later + Duration::from_micros(5));
        rate.count(999_500, true, later + Duration::from_millis(10));
        assert_eq!(rate.get(), Some(1e8));
        rate.begin(later);
        let end = later + Duration::from_millis(10);
        rate.count(2_000_000, true, end);
        assert_eq!((rate.get(), rate.known(end + STALE / 2)), (Some(1.25e8), Some(1.25e8)));
        assert_eq!((rate.get(), rate.known(end + STALE)), (Some(1.25e8), None));
    }
}
