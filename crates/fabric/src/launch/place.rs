//! What a foreign launcher says, in whatever words.

use super::environment::{Environment, Set};
use super::meeting::{self, Address, Meeting};
use super::{COORDINATOR, Dialect, Launch, LaunchError, secret};
use crate::Cables;
use crate::bootstrap::MAX_RANKS;

/// A rank's place among the others, read from one dialect's variables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub rank: Set<u32>,
    pub size: Set<u32>,
    /// A name of the job that no other one has on this host, if all its ranks run here.
    pub job_here: Option<String>,
    /// Where rank 0 can be met.
    pub address: Option<Address>,
    pub cables: Option<Cables>,
}

/// Checks a place and finds out where to meet and by what secret.
pub(super) fn settle(environment: &Environment<'_>, dialect: Dialect, place: Place) -> Result<Launch, LaunchError> {
    let Place { rank, size, job_here, address, cables } = place;
    if !(1..=MAX_RANKS).contains(&size.value) {
        return Err(LaunchError::Size { name: size.name, size: size.value });
    }
    let (rank_name, rank, size) = (rank.name, rank.value, size.value);
    if rank >= size {
        return Err(LaunchError::RankOutside { rank_name, rank, size });
    }
    if size == 1 {
        return Ok(Launch::Alone);
    }
    let meeting = match (environment.text(COORDINATOR)?, job_here, address) {
        (Some(value), _, _) => Meeting::RankZero(coordinator(&value)?),
        (None, Some(job), _) => meeting::on_this_host(environment, &format!("{}\0{size}\0{job}", dialect.name()))?,
        (None, None, Some(address)) => Meeting::RankZero(address),
        (None, None, None) => return Err(LaunchError::NoAddress { launcher: dialect.name(), rank, size }),
    };
    Ok(Launch::Rank { rank, size, meeting, secret: secret::of_user(environment)?, cables, dialect })
}

fn coordinator(value: &str) -> Result<Address, LaunchError> {
    address_of(COORDINATOR, value)
}

/// Reads an address.
pub(super) fn address_of(name: &'static str, value: &str) -> Result<Address, LaunchError> {
    Address::parse(value).ok_or_else(|| LaunchError::Malformed {
        name,
        value: value.escape_debug().collect(),
        expected: "a host with a port, like 192.0.2.1:7117",
    })
}

/// Both, or an error that says which one is missing.
pub(super) fn both<A, B>(
    launcher: Dialect,
    one: (Option<Set<A>>, &'static str),
    other: (Option<Set<B>>, &'static str),
) -> Result<(Set<A>, Set<B>), LaunchError> {
    let half = |set, missing| Err(LaunchError::HalfSet { launcher: launcher.name(), set, missing });
    match (one, other) {
        ((Some(one), _), (Some(other), _)) => Ok((one, other)),
        ((Some(one), _), (None, missing)) => half(one.name, missing),
        ((None, missing), (Some(other), _)) => half(other.name, missing),
        ((None, _), (None, _)) => Err(LaunchError::NotLaunched { launcher: launcher.name() }),
    }
}
