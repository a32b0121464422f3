//! Which processors ranks run on: what one can see is its own part of a machine, if whoever started it bound it to that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// The processors of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Processors {
    /// Those that it may run on, by the system's numbers.
    allowed: BTreeSet<u16>,
    /// So many of them at a time: a container may be given less than it sees.
    at_once: u16,
}

impl Processors {
    /// Those of the calling thread and of what it starts.
    pub fn own() -> Processors {
        let at_once =
            std::thread::available_parallelism().map_or(1, |count| count.get().try_into().unwrap_or(u16::MAX));
        Processors { allowed: allowed().unwrap_or_else(|| (0..at_once).collect()), at_once }
    }

    #[cfg(test)]
    pub fn bound(to: &[u16]) -> Processors {
        Processors { allowed: to.iter().copied().collect(), at_once: to.len() as u16 }
    }

    /// What is taken of a rank that does not tell.
    pub fn unknown() -> Processors {
        Processors { allowed: BTreeSet::from([0]), at_once: 1 }
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> Option<BTreeSet<u16>> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let set = sched_getaffinity(None).ok()?;
    let allowed: BTreeSet<u16> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u16).collect();
    (!allowed.is_empty()).then_some(allowed)
}

/// Here nobody binds threads to processors.
#[cfg(not(target_os = "linux"))]
fn allowed() -> Option<BTreeSet<u16>> {
    None
}

/// Those that this process could run on when it first asked.
static AT_FIRST: OnceLock<Option<BTreeSet<u16>>> = OnceLock::new();

/// Remembers the processors of this process, before its program binds any thread.
pub(crate) fn remember() {
    AT_FIRST.get_or_init(allowed);
}

/// Lets the calling thread run on all processors that this process had when it first started a fabric. A thread begins with those of the thread
/// that makes it, and a program that has bound itself to one of them would wait there for what is to go on beside it.
pub fn unbind_thread() {
    if let Some(Some(processors)) = AT_FIRST.get() {
        run_on(processors);
    }
}

#[cfg(target_os = "linux")]
fn run_on(processors: &BTreeSet<u16>) {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    processors.iter().for_each(|cpu| set.set((*cpu).into()));
    // Whoever is bound by others meanwhile stays so.
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, "a thread stays bound to the processors of the one that made it");
    }
}

#[cfg(not(target_os = "linux"))]
fn run_on(_processors: &BTreeSet<u16>) {}

/// How many processors ranks of one machine have between them; one at least.
pub(crate) fn count(ranks: &[&Processors]) -> usize {
    let (mut all, mut most) = (BTreeSet::<u16>::new(), usize::MAX);
    for rank in ranks {
        all.extend(&rank.allowed);
        if usize::from(rank.at_once) < rank.allowed.len() {
            // It is not known who else lives off the same share: all of them, as ranks of one container do.
            most = most.min(rank.at_once.into());
        }
    }
    all.len().min(most).max(1)
}

/// Whether ranks of one machine have to share processors, so that one which waits should leave its own to another.
pub(crate) fn are_shared(ranks: &[&Processors]) -> bool {
    let mut bound: BTreeMap<&BTreeSet<u16>, usize> = BTreeMap::new();
    for rank in ranks {
        *bound.entry(&rank.allowed).or_default() += 1;
    }
    let within =
        |set: &BTreeSet<u16>| bound.iter().filter(|(other, _)| other.is_subset(set)).map(|(_, ranks)| ranks).sum();
    ranks.len() > count(ranks) || bound.keys().any(|set| set.len() < within(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As with programs that bind the thread which computes, and start calls from it.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_of_one_that_is_bound_is_free() {
        // Threads of tests are bound to nothing.
        remember();
        let all = allowed().expect("the system tells");
        let one = BTreeSet::from([*all.first().expect("it runs somewhere")]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run_on(&one);
                assert_eq!(allowed(), Some(one.clone()));
                let made = scope.spawn(|| {
                    let at_first = allowed();
                    unbind_thread();
                    (at_first, allowed())
                });
                assert_eq!(made.join().expect("it does not panic"), (Some(one.clone()), Some(all.clone())));
                assert_eq!(allowed(), Some(one.clone()), "this one stays where it is");
            });
        });
    }

    #[test]
    fn ranks_share_processors_if_some_of_them_have_too_few() {
        let shared = |ranks: &[&[u16]]| {
            let ranks: Vec<Processors> = ranks.iter().map(|set| Processors::bound(set)).collect();
            let ranks: Vec<&Processors> = ranks.iter().collect();
            (count(&ranks), are_shared(&ranks))
        };
        assert_eq!(shared(&[&[0, 1], &[0, 1]]), (2, false));
        assert_eq!(shared(&[&[0, 1], &[0, 1], &[0, 1]]), (2, true));
        assert_eq!(shared(&[&[0], &[1], &[2], &[3]]), (4, false), "each is bound to one of its own");
        assert_eq!(shared(&[&[0], &[1], &[0], &[1]]), (2, true));
        assert_eq!(
            shared(&[&[0], &[0], &[1, 2, 3]]),
            (4, true),
            "two are bound to the same one, though there are more"
        );
        assert_eq!(shared(&[&[0], &[0, 1], &[1], &[2, 3, 4]]), (5, true), "three are bound to two");
        assert_eq!(shared(&[&[0], &[0, 1], &[2, 3]]), (4, false));
        assert_eq!(shared(&[&[]]), (1, true));
    }

    #[test]
    fn a_share_of_the_processors_is_all_that_there_is() {
        let some = Processors { allowed: (0..64).collect(), at_once: 4 };
        assert_eq!((count(&[&some; 4]), are_shared(&[&some; 4])), (4, false));
        assert_eq!((count(&[&some; 5]), are_shared(&[&some; 5])), (4, true));
    }

    #[test]
    fn this_machine_has_processors() {
        let own = Processors::own();
        assert!(!own.allowed.is_empty() && own.at_once > 0);
        assert!(!are_shared(&[&own]));
    }
}
