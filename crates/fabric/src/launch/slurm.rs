//! Slurm's variables, as `srun` sets them for the tasks of a step.
//!
//! | variable | holds |
//! |---|---|
//! | `SLURM_STEP_ID` (or `SLURM_STEPID`), `SLURM_JOB_ID` | which step of which job this is |
//! | `SLURM_PROCID` | the rank |
//! | `SLURM_STEP_NUM_TASKS` | how many tasks the step has |
//! | `SLURM_STEP_NUM_NODES` | on how many nodes |
//! | `SLURM_STEP_NODELIST` | their names; rank 0 is on the first |
//!
//! In an allocation (`salloc`, `sbatch`) there is `SLURM_NTASKS`, and in a batch script `SLURM_PROCID=0` as well, though nobody
//! has started other tasks: a program that is started there without `srun` is alone. So only a step counts, by its own number
//! of tasks, and neither the batch script's nor the interactive shell's, which have numbers of their own. A shell that `srun --pty`
//! starts with more than one task is such a step, and a program in it waits for the others.
//!
//! Rank 0 serves the coordinator at a port that follows from the numbers of job and step, from 20000 to 29999: below those
//! that systems give away. The node from which `srun` was started (`SLURM_LAUNCH_NODE_IPADDR`) may have no task at all.

use super::environment::Environment;
use super::meeting::Address;
use super::place::{Place, both};
use super::{Dialect, LaunchError};

const STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];
const RANK: &str = "SLURM_PROCID";
const SIZE: &str = "SLURM_STEP_NUM_TASKS";
const NODES: &str = "SLURM_STEP_NODELIST";

/// Steps from here on are none that somebody started tasks for.
const SPECIAL_STEPS: u32 = 0xffff_fff0;

const PORTS: std::ops::Range<u16> = 20_000..30_000;

pub(super) fn is_spoken(environment: &Environment<'_>) -> bool {
    let step = environment.number(&STEP).ok().flatten();
    step.is_some_and(|step| step.value < SPECIAL_STEPS) && (environment.has(RANK) || environment.has(SIZE))
}

/// Whether another launcher's variables give this task its rank in the step and the step's size.
pub(super) fn agrees(environment: &Environment<'_>, rank_and_size: [&'static str; 2]) -> bool {
    let value = |name| environment.number(&[name]).ok().flatten().map(|set| set.value);
    let same = |(own, other)| value(own).is_some() && value(own) == value(other);
    [RANK, SIZE].into_iter().zip(rank_and_size).all(same)
}

pub(super) fn read(environment: &Environment<'_>) -> Result<Place, LaunchError> {
    let (rank, size) =
        both(Dialect::Slurm, (environment.number(&[RANK])?, RANK), (environment.number(&[SIZE])?, SIZE))?;
    let job = environment.text("SLURM_JOB_ID")?.unwrap_or_default();
    let step = environment.first(&STEP)?.map(|step| step.value).unwrap_or_default();
    let restart = environment.text("SLURM_RESTART_COUNT")?.unwrap_or_default();
    let is_here = environment.number(&["SLURM_STEP_NUM_NODES"])?.is_some_and(|nodes| nodes.value == 1);
    let job_here = is_here.then(|| format!("{job}.{step}.{restart}"));
    let address = match environment.text(NODES)? {
        Some(nodes) => {
            let malformed = || LaunchError::Malformed {
                name: NODES,
                value: nodes.escape_debug().take(200).collect(),
                expected: "a list of hosts, like node[01-04]",
            };
            let host = first_host(&nodes).ok_or_else(malformed)?;
            Some(Address::new(&host, port(&job, &step)).ok_or_else(malformed)?)
        }
        None => None,
    };
    Ok(Place { rank, size, job_here, address, cables: None })
}

/// The first host of a list such as `node[01-03,07],gpu1`; a name may have several brackets.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return Some(host);
        }
        let (inside, after) = rest[at + 1..].split_once(']')?;
        let first = inside.split([',', '-']).next().filter(|first| !first.is_empty())?;
        if !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    (!host.is_empty()).then_some(host)
}

fn port(job: &str, step: &str) -> u16 {
    let hash = blake3::hash(format!("{job}.{step}").as_bytes());
    let [low, high, ..] = *hash.as_bytes();
    PORTS.start + u16::from_le_bytes([low, high]) % (PORTS.end - PORTS.start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[01-03,07],gpu1", "node01"),
            ("node[7]", "node7"),
            ("rack[1-2]node[10-12].example", "rack1node10.example"),
            ("a-b,c", "a-b"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", "node[", "node[]", "node[a-b]", "node[-3]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn steps_have_ports_of_their_own() {
        assert_eq!(port("17", "0"), port("17", "0"));
        assert_ne!(port("17", "0"), port("17", "1"));
    }

    proptest! {
        #[test]
        fn no_list_is_too_strange(list in "[a-z0-9,\\[\\]-]{0,30}", any in ".{0,30}") {
            for list in [list, any] {
                if let Some(host) = first_host(&list) {
                    prop_assert!(!host.contains(['[', ',']) , "{host}");
                }
            }
        }

        #[test]
        fn ports_are_in_their_range(job in any::<u32>(), step in any::<u32>()) {
            prop_assert!(PORTS.contains(&port(&job.to_string(), &step.to_string())));
        }
    }
}
