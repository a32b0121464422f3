//! Making a rail anew after it has failed.
//!
//! Connecting queue pairs may take long (a device in software dials its peer), so that a thread of its own does it, the *mender*,
//! and never one that holds a link. The rank with the lower number begins: it makes queue pairs and tells the peer of them,
//! which makes and connects its own and answers with them. Then a call over the rail and its answer prove that it carries.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bring_up::Ends;
use super::hub::lock;
use super::info::RailInfo;
use super::maker::Maker;
use super::rail::Pairs;
use crate::engine::Word;

/// How long making may take in all.
pub(super) const MAKING: Duration = Duration::from_secs(10);

/// What the ends of a link tell one another about its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Tale {
    /// This one has failed: the sender has destroyed its queue pairs.
    Down { rail: u8, incarnation: u32 },
    /// The sender has made new queue pairs for it.
    Ends { rail: u8, incarnation: u32, ends: Ends },
}

impl Tale {
    pub(super) fn to_word(self) -> Word {
        let mut bytes = [0; Word::MOST];
        let written = postcard::to_slice(&self, &mut bytes).expect("no tale is longer than a word");
        Word::new(written).expect("it was written into as many bytes")
    }

    pub(super) fn read(word: &Word) -> Option<Tale> {
        postcard::from_bytes(word.as_bytes()).ok()
    }
}

/// What the mender has made.
pub(super) struct Made {
    pub pairs: Pairs,
    pub own: Ends,
    /// What the rail is now, if it is connected.
    pub info: Option<RailInfo>,
}

type Outcome = Result<Made, String>;

/// What the mender is at.
pub(super) struct Job(Arc<Mutex<Option<Outcome>>>);

impl Job {
    fn start(work: impl FnOnce() -> Outcome + Send + 'static) -> Result<Job, String> {
        let outcome = Arc::new(Mutex::new(None));
        let told = outcome.clone();
        let spawned = thread::Builder::new().name("fulmen-mender".into()).spawn(move || {
            let made = work();
            *lock(&told) = Some(made);
        });
        spawned.map(|_| Job(outcome)).map_err(|cause| format!("no thread to make it anew: {cause}"))
    }

    /// Makes queue pairs.
    pub(super) fn make(maker: Arc<Maker>) -> Result<Job, String> {
        Job::start(move || {
            let (both, own) = maker.make(false).map_err(|cause| cause.to_string())?;
            Ok(Made { pairs: both.pairs, own, info: None })
        })
    }

    /// Connects these with the peer's.
    pub(super) fn connect(maker: Arc<Maker>, (pairs, own): (Pairs, Ends), theirs: Ends) -> Result<Job, String> {
        Job::start(move || connect(&maker, pairs, own, &theirs))
    }

    /// Both.
    pub(super) fn answer(maker: Arc<Maker>, theirs: Ends) -> Result<Job, String> {
        Job::start(move || {
            let (both, own) = maker.make(false).map_err(|cause| cause.to_string())?;
            connect(&maker, both.pairs, own, &theirs)
        })
    }

    /// What came of it, once.
    fn outcome(&self) -> Option<Outcome> {
        lock(&self.0).take()
    }
}

fn connect(maker: &Maker, pairs: Pairs, own: Ends, theirs: &Ends) -> Outcome {
    maker.bring_up(&pairs, &own, theirs).map_err(|cause| cause.to_string())?;
    let info = maker.describe(&pairs, &own, theirs, false);
    Ok(Made { pairs, own, info: Some(info) })
}

/// A rail that is being made.
pub(super) struct Making {
    pub until: Instant,
    pub stage: Stage,
}

pub(super) enum Stage {
    /// The mender works.
    Job(Job),
    /// The peer is to say what it made.
    Told(Pairs, Ends),
}

impl Making {
    pub(super) fn new(job: Job, now: Instant) -> Making {
        Making { until: now + MAKING, stage: Stage::Job(job) }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match &self.stage {
            Stage::Job(job) => job.outcome(),
            Stage::Told(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bring_up::End;
    use super::*;

    #[test]
    fn the_longest_tale_fits_into_a_word() {
        let end = End { number: u32::MAX, psn: u32::MAX };
        let ends = Ends { frames: end, moves: end, rdma: Some((end, end)) };
        for tale in [
            Tale::Ends { rail: u8::MAX, incarnation: u32::MAX, ends },
            Tale::Down { rail: u8::MAX, incarnation: u32::MAX },
        ] {
            assert_eq!(Tale::read(&tale.to_word()), Some(tale));
        }
        assert_eq!(Tale::read(&Word::new(&[9]).unwrap()), None);
    }
}
