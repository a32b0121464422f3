//! Who of the peers is lost.
//!
//! Losses come from two sides: the connection between two processes of a host hangs up as soon as one of them ends, and
//! the coordinator tells of ranks whose connection to it ended without a goodbye. Both come within milliseconds of a
//! process's death; every wait on the dead rank ends in **under 2 s**. A process that is merely stopped is not lost to
//! the first, and lost to the second only after the silence that the coordinator allows.
//!
//! A link that breaks between two live processes is a loss too, for its two ends and nobody else. The end that finds out
//! has the coordinator tell the other one. Since a link also breaks because the process at its other end has died, which
//! the coordinator may say a little later, errors wait half a second for that better cause; and so they do where the other
//! end gave the link up, which may have heard of a death earlier than this one.
//!
//! Errors name the *first cause*. A rank that left, gave a link up or asked for a new generation did so for a reason: where
//! another rank was dead before, that one is named. A generation as a whole *ends* when a rank regroups, or when the
//! others went on without this rank: then no wait goes on, whomever it waits for.
//!
//! A waiting thread looks at one counter in its own memory, and only when that has moved at who it was.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::Parker;
use crate::{Loss, Recorder};

/// How long an error about a link that broke or was given up waits for the word of the death behind that.
const GRACE: Duration = Duration::from_millis(500);

/// The ranks that a wait depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On<'a> {
    /// All other ranks.
    All,
    /// These.
    Ranks(&'a [u32]),
}

impl<'a> From<&'a [u32]> for On<'a> {
    fn from(ranks: &'a [u32]) -> On<'a> {
        On::Ranks(ranks)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for On<'a> {
    fn from(ranks: &'a [u32; N]) -> On<'a> {
        On::Ranks(ranks)
    }
}

/// The losses that this rank knows of.
pub(crate) struct Life {
    size: u32,
    /// How many there are: what waits look at.
    count: AtomicU32,
    /// How many have said goodbye to the coordinator.
    departures: AtomicU32,
    known: Mutex<Known>,
    /// Notified when a death has become known, which may be why a link broke or was given up.
    explained: Condvar,
    parker: Box<dyn Parker>,
    /// Has a rank told that the link to it is over.
    cut: OnceLock<Box<dyn Fn(u32) + Send + Sync>>,
    recorder: OnceLock<Recorder>,
}

struct Known {
    /// In the order in which they were noted.
    lost: Vec<Lost>,
    /// Nothing of this generation goes on.
    ended: Option<Fate>,
    /// Those that have said goodbye to the coordinator, and since when that is known.
    left: Vec<(u32, Instant)>,
}

/// Why an operation ends without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost {
        rank: u32,
        loss: Loss,
    },
    /// This rank itself has gone on.
    Ended,
}

struct Lost {
    rank: u32,
    loss: Loss,
    at: Instant,
    /// Whether the rank would have said goodbye over its link: something had come over that.
    heard: bool,
}

impl Life {
    pub(crate) fn new(size: u32, parker: Box<dyn Parker>) -> Life {
        let known = Mutex::new(Known { lost: Vec::new(), ended: None, left: Vec::new() });
        Life {
            size,
            count: AtomicU32::new(0),
            departures: AtomicU32::new(0),
            known,
            explained: Condvar::new(),
            parker,
            cut: OnceLock::new(),
            recorder: OnceLock::new(),
        }
    }

    /// Notes a loss, the first of a rank only, and wakes whoever waits. That a process has ended, or is lost to the
    /// coordinator, also explains why the link to it broke before; a goodbye explains why it has ended.
    pub(crate) fn lose(&self, rank: u32, loss: Loss) {
        self.note_loss(rank, loss, true);
    }

    /// As [`Life::lose`], of a link that is opened on first use and broke before anything came over it: the peer may have left
    /// without a word over that, and be heard to say goodbye to the coordinator only now.
    pub(crate) fn lose_unheard(&self, rank: u32, loss: Loss) {
        self.note_loss(rank, loss, false);
    }

    fn note_loss(&self, rank: u32, loss: Loss, heard: bool) {
        if rank >= self.size {
            return;
        }
        let mut known = self.lock();
        let is_explained = matches!(loss, Loss::Broken(_)) && known.left.iter().any(|(left, _)| *left == rank);
        let loss = if is_explained { Loss::Left } else { loss };
        if let Some(before) = known.lost.iter_mut().find(|lost| lost.rank == rank) {
            if matches!(before.loss, Loss::Broken(_)) && is_death(&loss) {
                tracing::debug!(rank, cause = %loss, "the lost rank is dead");
                before.loss = loss;
                self.explained.notify_all();
            } else if before.loss == Loss::Ended && loss == Loss::Left {
                // It said goodbye before it ended, which was heard later.
                before.loss = loss;
            }
            return;
        }
        tracing::debug!(rank, cause = %loss, "lost a rank");
        if let Some(recorder) = self.recorder.get() {
            recorder.note("lost", 0, Some(rank), &loss.to_string());
        }
        let broken = matches!(loss, Loss::Broken(_));
        if is_death(&loss) {
            self.explained.notify_all();
        }
        known.lost.push(Lost { rank, loss, at: Instant::now(), heard });
        self.count.fetch_add(1, Ordering::Release);
        // Before anybody can see the loss, and ask for a new generation: whoever decides on that has heard of it by then. What
        // is said of a generation that is over, whose links are taken down by all, is nobody's concern.
        if broken && let Some(cut) = self.cut.get() {
            cut(rank);
        }
        drop(known);
        self.parker.wake();
    }

    /// A rank has said goodbye to the coordinator. What it sent over links may still come; those that carried nothing have no
    /// goodbye of their own.
    pub(crate) fn leave(&self, rank: u32) {
        let mut known = self.lock();
        known.left.push((rank, Instant::now()));
        self.departures.fetch_add(1, Ordering::Release);
        // It went while the first word was on its way to it. Where it would have said goodbye over its link, that broke
        // before, and it leaves because of that: the cause stands.
        let unheard = |lost: &&mut Lost| lost.rank == rank && matches!(lost.loss, Loss::Broken(_)) && !lost.heard;
        if let Some(lost) = known.lost.iter_mut().find(unheard) {
            lost.loss = Loss::Left;
            self.explained.notify_all();
        }
    }

    /// Whether it is known for so long that a rank has said goodbye.
    #[inline]
    pub(crate) fn has_left_for(&self, rank: u32, time: Duration) -> bool {
        let known = |&(left, at): &(u32, Instant)| left == rank && at.elapsed() >= time;
        self.departures.load(Ordering::Acquire) > 0 && self.lock().left.iter().any(known)
    }

    /// Ends the whole generation: every wait ends, on whomever. The first word counts.
    pub(crate) fn end(&self, why: Fate) {
        let mut known = self.lock();
        if known.ended.is_some() {
            return;
        }
        tracing::debug!(?why, "the generation has ended");
        known.ended = Some(why);
        self.count.fetch_add(1, Ordering::Release);
        drop(known);
        self.explained.notify_all();
        self.parker.wake();
    }

    /// What to do as soon as a link breaks: its other end has a process that may live and may not know of it. It must not
    /// wait, nor ask for losses.
    pub(crate) fn on_broken(&self, cut: impl Fn(u32) + Send + Sync + 'static) {
        // It is said once, at the start.
        let _ = self.cut.set(Box::new(cut));
    }

    /// Where losses are noted.
    pub(crate) fn record(&self, recorder: Recorder) {
        // It is said once, at the start.
        let _ = self.recorder.set(recorder);
    }

    /// Something that happens rarely, for the record.
    pub(crate) fn note(&self, event: &'static str, rank: u32, text: &str) {
        if let Some(recorder) = self.recorder.get() {
            recorder.note(event, 0, Some(rank), text);
        }
    }

    /// Changes with every loss.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// How a rank was lost, if it was, as far as is known now.
    #[inline]
    pub(crate) fn loss(&self, rank: u32) -> Option<Loss> {
        if self.count() == 0 {
            return None;
        }
        self.lock().of(rank)
    }

    /// Whether nothing of this generation goes on.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.count() > 0 && self.lock().ended.is_some()
    }

    /// Why nothing goes on with a rank, if it does not, for an error: waits a moment for a better cause than that its link
    /// broke.
    #[inline]
    pub(crate) fn cause(&self, rank: u32) -> Option<Fate> {
        if self.count() == 0 {
            return None;
        }
        self.first(On::Ranks(&[rank]))
    }

    /// The first cause why nothing goes on with one of these ranks, for an error: as [`Life::cause`].
    pub(crate) fn first(&self, on: On<'_>) -> Option<Fate> {
        let counts = |lost: &&Lost| match on {
            On::All => true,
            On::Ranks(ranks) => ranks.contains(&lost.rank),
        };
        let known = self.lock();
        let Some((rank, at)) = known.lost.iter().find(counts).map(|lost| (lost.rank, lost.at)) else {
            return known.ended.clone().map(|ended| known.first_cause(None, ended));
        };
        let left = GRACE.saturating_sub(at.elapsed());
        let unexplained = |known: &mut Known| {
            known.ended.is_none()
                && match known.of(rank) {
                    Some(Loss::Broken(_)) => true,
                    Some(Loss::GaveUp) => !known.lost.iter().any(|lost| is_death(&lost.loss)),
                    _ => false,
                }
        };
        let (known, _) =
            self.explained.wait_timeout_while(known, left, unexplained).unwrap_or_else(PoisonError::into_inner);
        let lost = known.lost.iter().find(|lost| lost.rank == rank)?;
        let until = if lost.loss == Loss::GaveUp { lost.at + GRACE } else { lost.at };
        Some(known.first_cause(Some(until), Fate::Lost { rank, loss: lost.loss.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn of(&self, rank: u32) -> Option<Loss> {
        self.lost.iter().find(|lost| lost.rank == rank).map(|lost| lost.loss.clone())
    }

    /// The death that is behind this fate, among those known at some time or now, if that is none itself.
    fn first_cause(&self, until: Option<Instant>, fate: Fate) -> Fate {
        let is_own_cause = match &fate {
            Fate::Lost { loss, .. } => is_death(loss) || matches!(loss, Loss::Broken(_)),
            Fate::Ended => false,
        };
        let early = |lost: &&Lost| is_death(&lost.loss) && until.is_none_or(|until| lost.at <= until);
        let death = self.lost.iter().find(early).filter(|_| !is_own_cause);
        death.map_or(fate, |lost| Fate::Lost { rank: lost.rank, loss: lost.loss.clone() })
    }
}

/// Whether a rank was lost for a reason of its own, and not because of another one.
fn is_death(loss: &Loss) -> bool {
    matches!(loss, Loss::Ended | Loss::Session(_))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    struct Deaf;
    impl Parker for Deaf {
        fn park(&self, _timeout: Duration, _awake: &mut dyn FnMut() -> bool) {}
        fn wake(&self) {}
    }

    fn lost(rank: u32, loss: Loss) -> Option<Fate> {
        Some(Fate::Lost { rank, loss })
    }

    #[test]
    fn the_first_word_about_a_rank_counts() {
        let life = Life::new(3, Box::new(Deaf));
        assert_eq!(life.first(On::All), None);
        life.lose(2, Loss::Ended);
        life.lose(2, Loss::GaveUp);
        life.lose(7, Loss::Ended);
        assert_eq!(life.count(), 1);
        assert_eq!(life.loss(2), Some(Loss::Ended));
        assert_eq!(life.loss(7), None);
        assert_eq!(life.first(On::Ranks(&[0, 1])), None);
        assert_eq!(life.first((&[1, 2]).into()), lost(2, Loss::Ended));
        assert_eq!(life.first(On::All), lost(2, Loss::Ended));
        // It is heard later, and was said before.
        life.lose(2, Loss::Left);
        assert_eq!(life.first(On::All), lost(2, Loss::Left));
        assert_eq!(life.count(), 1);
    }

    #[test]
    fn the_rank_that_was_lost_first_is_named() {
        let life = Life::new(4, Box::new(Deaf));
        life.lose(1, Loss::Left);
        life.lose(2, Loss::Ended);
        life.lose(0, Loss::GaveUp);
        life.lose(3, Loss::Session(crate::LossCause::Closed));
        assert_eq!(life.first(On::Ranks(&[0, 2])), lost(2, Loss::Ended));
        assert_eq!(life.cause(0), lost(2, Loss::Ended), "why it gave up");
        assert_eq!(life.loss(0), Some(Loss::GaveUp));
        assert_eq!(life.cause(1), lost(1, Loss::Left), "it left before");
        assert_eq!(life.cause(3), lost(3, Loss::Session(crate::LossCause::Closed)), "a death of its own");
    }

    #[test]
    fn why_a_link_was_given_up_may_be_heard_after_that() {
        loop {
            let life = Arc::new(Life::new(4, Box::new(Deaf)));
            let began = Instant::now();
            life.lose(0, Loss::GaveUp);
            let asking = std::thread::spawn({
                let life = life.clone();
                move || life.cause(0)
            });
            life.lose(3, Loss::Ended);
            let is_soon = began.elapsed() <= GRACE / 2;
            let told = asking.join().unwrap();
            // What was heard too late, since this thread was not run meanwhile, is another case.
            if is_soon {
                assert_eq!(told, lost(3, Loss::Ended));
                assert_eq!(life.loss(0), Some(Loss::GaveUp));
                break;
            }
        }

        let life = Life::new(4, Box::new(Deaf));
        life.lose(0, Loss::GaveUp);
        assert_eq!(life.cause(0), lost(0, Loss::GaveUp), "nobody has died");
        life.lose(3, Loss::Ended);
        assert_eq!(life.cause(0), lost(0, Loss::GaveUp), "that came much later");
    }

    #[test]
    fn a_goodbye_after_a_link_broke_explains_only_links_without_a_goodbye_of_their_own() {
        let life = Life::new(4, Box::new(Deaf));
        let broken = |cause: &str| Loss::Broken(cause.into());
        life.lose(1, broken("a bad frame"));
        life.leave(1);
        assert_eq!(life.loss(1), Some(broken("a bad frame")), "it left because of that");
        life.lose_unheard(2, broken("no answer"));
        life.leave(2);
        assert_eq!(life.loss(2), Some(Loss::Left));
        // It had left before.
        life.leave(3);
        life.lose(3, broken("no answer"));
        assert_eq!(life.loss(3), Some(Loss::Left));
        assert_eq!(life.count(), 3);
    }

    #[test]
    fn a_generation_that_has_ended_ends_every_wait_with_its_first_cause() {
        let life = Life::new(4, Box::new(Deaf));
        let asked = Fate::Lost { rank: 1, loss: Loss::Regroups };
        life.end(asked.clone());
        life.end(Fate::Ended);
        assert_eq!(life.count(), 1);
        assert_eq!(life.first(On::Ranks(&[0])), Some(asked.clone()));
        assert_eq!(life.first(On::Ranks(&[])), Some(asked));
        assert_eq!(life.loss(0), None);
        life.lose(3, Loss::Left);
        life.lose(2, Loss::Ended);
        assert_eq!(life.first(On::Ranks(&[0])), lost(2, Loss::Ended), "why they regroup");

        let life = Life::new(2, Box::new(Deaf));
        life.end(Fate::Ended);
        assert_eq!(life.first(On::All), Some(Fate::Ended));
    }

    #[test]
    fn the_death_behind_a_broken_link_is_its_cause_and_a_broken_link_alone_says_so_to_its_other_end() {
        let life = Arc::new(Life::new(4, Box::new(Deaf)));
        let cut = Arc::new(Mutex::new(Vec::new()));
        let told = cut.clone();
        let watched = Arc::downgrade(&life);
        life.on_broken(move |rank| {
            told.lock().unwrap().push(rank);
            assert!(watched.upgrade().unwrap().known.try_lock().is_err(), "nobody has seen the loss before");
        });
        life.lose(2, Loss::Broken("no answer".into()));
        let asking = std::thread::spawn({
            let life = life.clone();
            move || life.cause(2)
        });
        let dead = Loss::Session(crate::LossCause::Closed);
        life.lose(2, dead.clone());
        // Whether it was asked before or after.
        assert!(asking.join().unwrap().is_some());
        assert_eq!(life.cause(2), lost(2, dead));
        life.lose(2, Loss::Left);
        life.lose(1, Loss::Broken("a bad frame".into()));
        assert_eq!(life.cause(1), lost(1, Loss::Broken("a bad frame".into())), "nothing better is heard of");
        life.lose(3, Loss::GaveUp);
        assert_eq!(*cut.lock().unwrap(), [2, 1]);
        assert_eq!(life.count(), 3);
        // Who goes on is not decided yet.
        life.end(Fate::Lost { rank: 3, loss: Loss::Regroups });
        life.lose(0, Loss::Broken("no answer".into()));
        assert_eq!(*cut.lock().unwrap(), [2, 1, 0]);
    }
}
