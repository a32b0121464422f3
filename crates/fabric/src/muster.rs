//! Ranks before they are connected: where they are, and whether each has what links are to run over.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bootstrap::Session;
use crate::{Hosts, StartError};

/// The ranks of a session, before they choose what links run over.
pub struct Muster<'a> {
    session: &'a Session,
    hosts: Hosts,
    timeout: Duration,
}

/// What a rank says in a round before the ranks connect. It tells which round it means, so that none is taken for another.
#[derive(Serialize, Deserialize)]
enum Step {
    /// Before it chooses.
    Word(Vec<u8>),
    /// It has chosen.
    Ready,
    /// It has nothing that links could run over, and why.
    Problem(String),
}

impl<'a> Muster<'a> {
    pub(crate) fn new(session: &'a Session, hosts: Hosts, timeout: Duration) -> Muster<'a> {
        Muster { session, hosts, timeout }
    }

    /// The ranks' session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.session
    }

    /// Where the ranks are.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Gives this rank's word to all and returns everybody's, by rank. Collective: all ranks choose by the same rules, which ask for it
    /// or not. Not for ranks that [talk already](Hosts::means), since those do not choose again.
    ///
    /// # Errors
    /// [`StartError`], which names the rank that failed, or that asks for something else.
    pub fn all_gather(&self, word: &[u8]) -> Result<Vec<Vec<u8>>, StartError> {
        let heard = round(self.session, self.timeout, &Step::Word(word.to_vec()))?;
        let word = |(rank, step)| match step {
            Step::Word(word) => Ok(word),
            Step::Problem(problem) => Err(StartError::PeerFailed { rank, problem }),
            Step::Ready => Err(StartError::Unlike { rank }),
        };
        (0..).zip(heard).map(word).collect()
    }
}

/// Tells all ranks whether this one is ready to connect: nobody waits for one that is not. All begin with [`Hosts::exchange`]
/// and end with this, whether they have just joined or come from an older generation.
pub(crate) fn ready<T, E>(session: &Session, timeout: Duration, outcome: Result<T, E>) -> Result<T, E>
where
    E: From<StartError> + fmt::Display,
{
    let step = outcome.as_ref().err().map_or(Step::Ready, |problem| Step::Problem(problem.to_string()));
    let heard = round(session, timeout, &step);
    let value = outcome?;
    for (rank, step) in (0..).zip(heard?) {
        match step {
            Step::Ready => {}
            Step::Problem(problem) => return Err(StartError::PeerFailed { rank, problem }.into()),
            Step::Word(_) => return Err(StartError::Unlike { rank }.into()),
        }
    }
    Ok(value)
}

fn round(session: &Session, timeout: Duration, own: &Step) -> Result<Vec<Step>, StartError> {
    let own = postcard::to_stdvec(own).expect("a vector takes what is written to it");
    let blobs = session.all_gather(&own, timeout)?;
    let read = |(rank, blob): (u32, Vec<u8>)| postcard::from_bytes(&blob).map_err(|_| StartError::Garbled { rank });
    (0..).zip(blobs).map(read).collect()
}
