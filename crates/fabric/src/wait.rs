//! Waiting: poll, yield, park.

use std::hint;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use crate::fabric::Inner;
use crate::lanes::Lanes;
use crate::{Fabric, FabricError, On, OpName};

/// The longest park. A wake-up that was lost, because a process died between its store and its ring, costs this much.
const CAP: Duration = Duration::from_millis(50);

/// Polls between two looks at everything else: messages, losses, the clock.
const BURST: u32 = 32;

/// The same of who shares its processor: what it waits for needs that one more than it does.
const SHORT_BURST: u32 = 8;

/// Polls between two looks at messages, except before parking.
const PUMP: u32 = 4 * BURST;

/// Polls after which the processor is told that this is a loop that waits.
const EAGER: u32 = 256;

/// Who waits for links and shares its processor offers it so many times more often than who waits for a word: to be woken
/// takes two threads of the device's, which need a processor, too.
const OFFERS: u32 = 2;

/// How a wait goes on.
struct Pace {
    /// Calls of `ready` between two looks at everything else.
    burst: u32,
    /// How often the processor is offered to others.
    yields: u32,
    /// The longest park.
    nap: Duration,
}

impl Fabric {
    /// Waits until `ready` says so.
    ///
    /// It is called again and again on this thread: for some microseconds in a row, then after each time that this rank
    /// was rung ([`Fabric::ring`], [`Window::ring`](crate::Window::ring)) and at least every 50 ms. It should look at a
    /// few words and return.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] as soon as one of the ranks `on` is lost (under 2 s after its process ended) unless
    /// `ready` is, or any rank [regroups](Fabric::regroup), and [`FabricError::TimedOut`], which names these ranks, after `timeout`.
    #[inline]
    pub fn wait<'a, T>(
        &self,
        op: OpName,
        on: impl Into<On<'a>>,
        timeout: Duration,
        ready: impl FnMut() -> Poll<T>,
    ) -> Result<T, FabricError> {
        self.wait_in_naps(op, on, timeout, CAP, ready)
    }

    /// As [`Fabric::wait`], for operations on several links ([`Fabric::start_send`] …): moves them on before each call of
    /// `ready`, which asks [`Operation::has_ended`](crate::Operation::has_ended).
    ///
    /// # Errors
    /// As [`Fabric::wait`].
    pub fn wait_on_links<'a, T>(
        &self,
        op: OpName,
        on: impl Into<On<'a>>,
        timeout: Duration,
        mut ready: impl FnMut() -> Poll<T>,
    ) -> Result<T, FabricError> {
        // Each call takes as long as a poll of every link.
        let yields = self.inner.poll.yields * OFFERS;
        let burst = if yields > 0 { 1 } else { (BURST / (self.inner.size - 1).max(1)).max(1) };
        self.wait_as(op, on, timeout, Pace { burst, yields, nap: CAP }, || {
            self.progress();
            ready()
        })
    }

    /// As [`Fabric::wait`], for what may come without anybody being rung: `ready` is called at least once in each `nap`.
    #[inline]
    pub(crate) fn wait_in_naps<'a, T>(
        &self,
        op: OpName,
        on: impl Into<On<'a>>,
        timeout: Duration,
        nap: Duration,
        ready: impl FnMut() -> Poll<T>,
    ) -> Result<T, FabricError> {
        let yields = self.inner.poll.yields;
        let burst = if yields > 0 { SHORT_BURST } else { BURST };
        self.wait_as(op, on, timeout, Pace { burst, yields, nap }, ready)
    }

    #[inline]
    fn wait_as<'a, T>(
        &self,
        op: OpName,
        on: impl Into<On<'a>>,
        timeout: Duration,
        pace: Pace,
        mut ready: impl FnMut() -> Poll<T>,
    ) -> Result<T, FabricError> {
        if let Poll::Ready(value) = ready() {
            return Ok(value);
        }
        let mut waiter = Waiter::new(&self.inner, op, on.into(), timeout, &pace);
        loop {
            for _ in 0..pace.burst {
                if let Poll::Ready(value) = ready() {
                    return Ok(value);
                }
                if waiter.polls >= EAGER {
                    hint::spin_loop();
                }
            }
            match waiter.look() {
                Ok(Next::Poll) => {}
                Ok(Next::Park) => {
                    let mut result = Poll::Pending;
                    waiter.park(&mut || {
                        result = ready();
                        result.is_ready()
                    });
                    if let Poll::Ready(value) = result {
                        return Ok(value);
                    }
                }
                // What came before the end counts.
                Err(error) => match ready() {
                    Poll::Ready(value) => return Ok(value),
                    Poll::Pending => return Err(error),
                },
            }
        }
    }
}

enum Next {
    Poll,
    Park,
}

/// A wait that was not over at once.
struct Waiter<'a> {
    inner: &'a Inner,
    lanes: &'a Lanes,
    op: OpName,
    on: On<'a>,
    timeout: Duration,
    pace: &'a Pace,
    /// The clock is read first after the first burst: shorter waits never do.
    started: Option<Instant>,
    polls: u32,
    yields: u32,
    losses: u32,
}

impl<'a> Waiter<'a> {
    #[inline]
    fn new(inner: &'a Inner, op: OpName, on: On<'a>, timeout: Duration, pace: &'a Pace) -> Waiter<'a> {
        inner.lanes.enter();
        Waiter { inner, lanes: &inner.lanes, op, on, timeout, pace, started: None, polls: 0, yields: 0, losses: 0 }
    }

    /// After a burst of polls: everything else that a waiting thread does.
    fn look(&mut self) -> Result<Next, FabricError> {
        self.polls = self.polls.saturating_add(BURST);
        if self.polls.is_multiple_of(PUMP) {
            if self.polls == PUMP {
                self.inner.recorder.waits();
            }
            self.lanes.pump_all();
        }
        let life = &self.lanes.life;
        let losses = life.count();
        if losses != self.losses {
            self.losses = losses;
            // A rank that has said goodbye is not dead.
            self.lanes.pump_all();
            if let Some(fate) = life.first(self.on) {
                // What it sent before its end counts.
                self.lanes.pump_all();
                return Err(self.inner.failure(self.op, fate));
            }
        }
        let now = Instant::now();
        let waited = now - *self.started.get_or_insert(now);
        if waited >= self.timeout {
            let missing = match self.on {
                On::Ranks(ranks) => ranks.to_vec(),
                On::All => (0..self.inner.size).filter(|rank| *rank != self.inner.rank).collect(),
            };
            return Err(FabricError::TimedOut { op: self.op, link: self.inner.link_kind(), waited, missing });
        }
        if self.polls < self.inner.poll.spins {
            return Ok(Next::Poll);
        }
        if self.yields < self.pace.yields {
            self.yields += 1;
            thread::yield_now();
            return Ok(Next::Poll);
        }
        Ok(Next::Park)
    }

    /// Parks until this rank is rung. `ready` is looked at once more before, when a ring can no longer be missed.
    fn park(&mut self, ready: &mut dyn FnMut() -> bool) {
        let waited = self.started.map_or(Duration::ZERO, |start| start.elapsed());
        let timeout = self.lanes.until_deadline(self.timeout.saturating_sub(waited).min(self.pace.nap));
        // Where there are few polls before.
        self.inner.recorder.waits();
        let losses = self.losses;
        let lanes = self.lanes;
        lanes.parker.park(timeout, &mut || ready() || lanes.life.count() != losses || lanes.pump_all());
        // Whoever was woken is likely in the middle of a conversation.
        self.polls = 0;
        self.yields = 0;
    }
}

impl Drop for Waiter<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lanes.leave();
    }
}
