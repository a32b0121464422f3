//! Fulmen's own variables, as `fulmen run` sets them.

use std::net::SocketAddr;

use super::devices;
use super::environment::{Environment, number, parse};
use super::secret::{self, SECRET_FD};
use super::{COORDINATOR, Dialect, Launch, LaunchError, Meeting};
use crate::bootstrap::MAX_RANKS;

pub(super) const RANK: &str = "FULMEN_RANK";
pub(super) const SIZE: &str = "FULMEN_SIZE";
/// The devices that lead from this rank to each rank, as a row of a device file.
const CABLES: &str = "FULMEN_CABLES";

/// Whether somebody speaks it. An address or a secret does not say so: they may help another launcher.
pub(super) fn is_spoken(environment: &Environment<'_>) -> bool {
    [RANK, SIZE].iter().any(|name| environment.raw(name).is_some())
}

pub(super) fn read(environment: &Environment<'_>) -> Result<Launch, LaunchError> {
    let names = [RANK, SIZE, COORDINATOR, SECRET_FD];
    let values = names.map(|name| environment.raw(name));
    let [Some(rank), Some(size), Some(coordinator), Some(fd)] = &values else {
        let at = |wanted: bool| names.into_iter().zip(&values).find(|(_, value)| value.is_some() == wanted);
        return match (at(true), at(false)) {
            (Some((set, _)), Some((missing, _))) => Err(LaunchError::Incomplete { set, missing }),
            _ => Ok(Launch::Alone),
        };
    };
    let rank = parse(RANK, rank, "a number from 0", number)?;
    let size = parse(SIZE, size, "a number from 1 to 4096", |text| {
        number(text).filter(|size| (1..=MAX_RANKS).contains(size))
    })?;
    if rank >= size {
        return Err(LaunchError::RankOutside { rank_name: RANK, rank, size });
    }
    let coordinator = parse(COORDINATOR, coordinator, "an address with a port, like 192.0.2.1:7000", |text| {
        text.parse().ok().filter(|address: &SocketAddr| {
            let ip = address.ip();
            !ip.is_unspecified() && !ip.is_multicast() && address.port() != 0
        })
    })?;
    let secret = secret::from_descriptor(fd)?;
    let cables = match environment.text(CABLES)? {
        Some(row) => Some(parse(CABLES, &row.into(), "a row of devices, one cell a rank", |text| {
            devices::read_row(text, rank, size).ok()
        })?),
        None => None,
    };
    let meeting = Meeting::Launcher(coordinator);
    Ok(Launch::Rank { rank, size, meeting, secret, cables, dialect: Dialect::Fulmen })
}
